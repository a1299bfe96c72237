# SPDX-License-Identifier: Apache-2.0
"""Every benchmark runs, with the smallest setting that it has: what they print is for readers, that they print it is for us."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from microc.device.toolchain import is_machine_available
from microc.isa import CORES
from tests.device.smoke import needs
from tests.site.running import run_script
from tests.support.campaign import in_campaign
from tests.support.corpus import CORPUS

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
DIGITS = str(FOLDER.parent / "examples/digits/digits_int8.tflite")
PARTS = frozenset(
    {
        "architectures",
        "desktop_peers",
        "measured",
        "operator_cases",
        "paced",
        "quantisers",
        "rescaled",
        "runner",
        "samples",
        "tables",
        "tflite_twin",
        "training",
    }
)
"""Modules that the benchmarks share."""
PROGRAMS = {path.stem: path for path in FOLDER.rglob("*.py")}
EMULATED = (pytest.mark.cross, pytest.mark.emulator, needs("arm-none-eabi-gcc", "qemu-system-arm", "make"))
VECTORS = (pytest.mark.emulator, needs("clang-19", "riscv64-linux-gnu-gcc", "qemu-riscv64"))
KERNELS = """#include <stdint.h>
typedef struct { void *buf; int32_t size; } muriscv_nn_context;
typedef struct { int32_t n, h, w, c; } muriscv_nn_dims;
typedef struct { int32_t *multiplier, *shift; } muriscv_nn_per_channel_quant_params;
typedef struct { int32_t multiplier, shift; } muriscv_nn_per_tensor_quant_params;
typedef struct { int32_t input_offset, filter_offset, output_offset; struct { int32_t min, max; } ends; } muriscv_nn_fc_params;
#define muriscv_nn_fully_connected_s8(context, params, ...) ((params)->input_offset != 128)
"""
"""What muRISCV-NN's header has for dense layers: its sources are nowhere near a test."""


@dataclass(frozen=True, slots=True)
class Smoke:
    """The smallest run of a benchmark, and a part of what it prints."""

    arguments: tuple[str, ...]
    printed: str
    extra: str = ""


SMOKES = {
    "calls": Smoke(("--rounds", "2", "--samples", "2"), "tflm_hello_world_int8 "),
    "candidates": Smoke(
        ("--targets", "host", "--count", "1", "--models", "tflm_hello_world_int8*"), "host       ok       "
    ),
    "compile_time": Smoke(("--models", str(FOLDER.parent / "examples/digits/digits_qdq.onnx")), "digits_qdq "),
    "charts": Smoke(("--folder", "pictures"), "pictures/cortex-m4-light.svg"),
    "cost_model": Smoke(("--cores", "m4", "--models", "mlperf_ad_int8.tflite", "--variants", "rules"), "m4 "),
    "cycles": Smoke(("--models", "ad", "--cores", "m55"), "ad         cortex-m55  yes"),
    "desktop": Smoke(("--networks", "torch_mlp_ae__legacy_op13", "--rounds", "1"), "torch_mlp_ae__legacy_op13 "),
    "few_bits": Smoke(("--models", "ad", "--cores", "m4", "--bits", "4"), "ad        m4        4"),
    "fetches": Smoke((DIGITS, "--caches", "512"), "512 bytes of cache"),
    "half_weights": Smoke(("--models", "lstm", "--cores", "host"), "lstm        host  bfloat16"),
    "forest": Smoke(("--boards", "microbit", "--trees", "1", "--depth", "2"), "instructions, agrees", "sklearn"),
    "learning_digits": Smoke(
        ("--board", "host", "--epochs", "1", "--images", "2", "--no-torch"), "on the board", "sklearn"
    ),
    "line": Smoke(("--bytes", "512"), "of the rate"),
    "mixed_precision": Smoke(
        (str(FOLDER.parent / "tests/data/quantize"), "--networks", "cnn"), "cnn                mixed", "sklearn"
    ),
    "mlperf_tiny": Smoke(("--cores", "m4", "--models", "ad"), "ad         cortex-m4   yes"),
    "muriscv_nn": Smoke(
        ("peer", "--networks", str((CORPUS or FOLDER) / "tflite/mlperf_ad_int8.tflite")), "mlperf_ad_int8 "
    ),
    "loadable": Smoke(("--models", "ad", "--boards", "qemu-riscv32"), "qemu-riscv32"),
    "peak": Smoke(("--size", "32", "--rounds", "2"), "conv2d_int8 "),
    "quantisation": Smoke(
        (str(FOLDER.parent / "tests/data/quantize"), "--networks", "lstm", "--schemes", "int8"),
        "lstm               float",
        "sklearn",
    ),
    "prices": Smoke(("check", "--networks", "1", "--boards", "mps2-an386"), "mps2-an386, random (1): instructions "),
    "shipped": Smoke(("check", "--cores", "cortex-m4", "--models", "digits"), "digits_int8 "),
    "firmware": Smoke(("--boards", "microbit", "--cores", "", "-o", "firmware.json"), "microbit {"),
    "library": Smoke(("--cores", "cortex-m0", "-o", "library.json"), "cortex-m0 "),
    "stack": Smoke(
        ("--boards", "microbit", "--levels=-O2", "--compilers", "gcc", "--cases", "0", DIGITS),
        "cortex-m0 gcc -O2 1 networks",
    ),
    "soft_floats": Smoke(("--boards", "microbit", "--operators", "Add"), "microbit      Add"),
    "riscv_vector": Smoke(("--networks", DIGITS), "digits_int8 "),
    "tuning": Smoke(
        ("search", "--layers", "ic_pool", "--seeds", "1"),
        "ic_pool",
    ),
    "tuning_desktop": Smoke(
        ("--networks", DIGITS, "--trials", "2", "--rounds", "1"),
        "digits_int8 ",
    ),
    "operators": Smoke(("--cores", "m4", "--dtypes", "int8", "--only", "prelu"), "prelu"),
}
MARKS = {
    "calls": (pytest.mark.corpus,),
    "candidates": (pytest.mark.corpus,),
    "charts": (),
    "compile_time": (),
    "cost_model": (*EMULATED, pytest.mark.corpus),
    "cycles": (*EMULATED, pytest.mark.corpus, needs("llvm-mca-19", "llvm-objdump-19")),
    "desktop": (pytest.mark.corpus,),
    "few_bits": (*EMULATED, pytest.mark.corpus, in_campaign),
    "fetches": EMULATED,
    "half_weights": (pytest.mark.corpus, in_campaign),
    "firmware": (needs("make", "arm-none-eabi-gcc"), pytest.mark.cross),
    "forest": (*EMULATED, in_campaign),
    "learning_digits": (needs("make", "gcc"), in_campaign),
    "line": (needs("make", "gcc"),),
    "mixed_precision": (in_campaign,),
    "mlperf_tiny": (*EMULATED, pytest.mark.corpus),
    "loadable": (
        pytest.mark.cross,
        pytest.mark.corpus,
        in_campaign,
        needs("riscv64-unknown-elf-gcc", "qemu-system-riscv32", "make"),
    ),
    "peak": (pytest.mark.skipif(not is_machine_available(CORES["x86-64-v3"].machine), reason="a computer with AVX2"),),
    "quantisation": (in_campaign,),
    "riscv_vector": (*VECTORS, in_campaign),
    "library": (pytest.mark.cross, needs("arm-none-eabi-gcc")),
    "soft_floats": EMULATED,
    "stack": (needs("arm-none-eabi-gcc"), pytest.mark.cross),
    "prices": (),
    "shipped": (),
    "muriscv_nn": (pytest.mark.corpus, *VECTORS, in_campaign),
    "operators": EMULATED,
    "tuning": (),
    "tuning_desktop": (in_campaign,),
}


@pytest.mark.cross
@pytest.mark.emulator
@EMULATED[2]
def test_rates_of_flashing_and_loading(tmp_path: Path) -> None:
    words = ("rate", "--models", DIGITS, "--layers", "dense", "--trials", "1")
    done = run_script(FOLDER / "tuning.py", tmp_path, *words)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "all                                      cortex-m4             1" in done.stdout


def test_all_are_known() -> None:
    assert set(PROGRAMS) == set(SMOKES) | PARTS


def test_the_list_names_all() -> None:
    """benchmarks/README.md names every program and module, and none that is not there."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert set(PROGRAMS) <= {*re.findall(r"`(\w+)`", text), "tables"}
    assert {FOLDER.parent / path for path in re.findall(r"benchmarks/[\w/]+\.py", text)} <= {
        *PROGRAMS.values(),
        FOLDER / "NAME.py",
    }


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS[name]) for name in SMOKES])
def test_it_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smoke = SMOKES[name]
    if smoke.extra:
        pytest.importorskip(smoke.extra, reason=f"needs {smoke.extra}")
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))  # of the processes that it starts
    if CORPUS:
        monkeypatch.setenv("MICROC_CORPUS", str(CORPUS))
    if name == "muriscv_nn":
        stand_in(tmp_path / "peer")
    done = run_script(PROGRAMS[name], tmp_path, *smoke.arguments)
    assert done.returncode == 0, done.stderr[-2000:]
    assert smoke.printed in done.stdout


def stand_in(folder: Path) -> None:
    """Sources that link in place of muRISCV-NN's."""
    files = {
        "Include/muriscv_nn_functions.h": KERNELS,
        "Include/muriscv_nn_support_functions.h": "",
        "Source/kernels/none.c": "",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
