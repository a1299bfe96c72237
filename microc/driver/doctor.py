"""Which tools are here, and how to get those that are not."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
from dataclasses import dataclass

from microc.device.toolchain import PACKAGES

LIBRARIES = ("numpy", "jinja2", "onnx", "tflite", "flatbuffers", "pyserial", "cobs", "pyelftools", "jsonschema")
READERS = (
    ("h5py", "Keras models: microc[keras]"),
    ("skl2onnx", "scikit-learn's estimators: microc[sklearn]"),
    ("torch", "PyTorch programs: microc[torch]"),
    ("onnxruntime", "verify --against onnxruntime: microc[reference]"),
    ("tflite-micro", "verify --against tflm: microc[reference]"),
    ("ai-edge-litert", "verify --against litert: microc[reference]"),
)
"""Python packages that some formats and comparisons need."""
PROGRAMS = (
    ("cc", "host libraries and the host board", True),
    ("make", "building projects", True),
    ("arm-none-eabi-gcc", "building for Arm boards", False),
    ("qemu-system-arm", "emulated boards", False),
    ("riscv64-unknown-elf-gcc", "building for RISC-V boards", False),
    ("qemu-system-riscv32", "emulated RISC-V boards", False),
    ("avr-gcc", "building for AVR boards", False),
    ("qemu-system-avr", "emulated AVR boards", False),
    ("hazard3-sim", "the simulated board hazard3-sim: scripts/hazard3/build.sh makes it", False),
    ("verilator", "making hazard3-sim", False),
    ("gdb-multiarch", "flashing emulated boards", False),
    ("openocd", "flashing over a debug probe", False),
)
"""Programs, what they serve, and whether microc is of no use without them."""
_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One tool; ``version`` is empty when it is missing."""

    name: str
    purpose: str
    essential: bool
    version: str
    path: str

    @property
    def missing(self) -> bool:
        return not self.version


def examine() -> tuple[Finding, ...]:
    """Python, its packages and all programs."""
    found = [Finding("python", "microc itself", True, platform.python_version(), "")]
    for name in LIBRARIES:
        found.append(Finding(name, "Python package", True, _package_version(name), ""))
    found += [Finding(name, purpose, False, _package_version(name), "") for name, purpose in READERS]
    for name, purpose, essential in PROGRAMS:
        path = shutil.which(name) or ""
        found.append(Finding(name, purpose, essential, _program_version(path) if path else "", path))
    return tuple(found)


def remedy(findings: tuple[Finding, ...]) -> str:
    """Commands that install everything that is missing; empty when nothing is."""
    packages = [f.name for f in findings if f.missing and f.purpose == "Python package"]
    programs = dict.fromkeys(PACKAGES[f.name] for f in findings if f.missing and f.name in PACKAGES)
    lines = ["pip install " + " ".join(packages)] if packages else []
    lines += ["apt-get install -y --no-install-recommends " + " ".join(programs)] if programs else []
    return "\n".join(lines)


def _package_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _program_version(path: str) -> str:
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if lines else ""
