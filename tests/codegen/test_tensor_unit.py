# SPDX-License-Identifier: Apache-2.0
"""The tensor unit in C: its model computes what instructions mean, counts cycles by the rule, and sees what no token orders."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.base import file_access
from microc.base.dtypes import Array
from microc.cli import main
from microc.codegen.c.source import network_files
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_model
from microc.module import Module
from microc.target import target_for
from tests.support import digits
from tests.support.campaign import everything, in_turn
from tests.support.corpus import cases, models
from tests.support.native import WARNINGS

CPU = "host+tensor16"
TINY = models("mlperf_*_int8.tflite")
EXAMPLE = Path(__file__).parents[2] / "examples" / "tensor_unit"
SMALL = [path for path in TINY if "_kws_" in path.name or "_ad_" in path.name]


class Counts(ctypes.Structure):
    """``struct <name>_unit_counts``."""

    _fields_ = (
        ("cycles", ctypes.c_uint64),
        ("busy", ctypes.c_uint64 * 3),
        ("macs", ctypes.c_uint64),
        ("faults", ctypes.c_uint32),
    )


@dataclass(frozen=True)
class Built:
    """A network with the model of its unit, as a library."""

    module: Module
    library: ctypes.CDLL

    def __call__(self, data: Array) -> tuple[Array, Counts]:
        """One output and what was counted so far."""
        module = self.module
        assert module.plan is not None
        out = module.values[module.outputs[0]]
        result, arena = np.zeros(out.shape, out.dtype), np.zeros(module.plan.size + 64, np.uint8)
        place = (ctypes.c_void_p(array.ctypes.data) for array in (np.ascontiguousarray(data), result))
        inputs, outputs = (ctypes.byref(pointer) for pointer in place)
        aligned = ctypes.c_void_p(arena.ctypes.data + -arena.ctypes.data % 64)
        assert getattr(self.library, f"{module.name}_run")(aligned, inputs, outputs) == 0
        counts = Counts()
        getattr(self.library, f"{module.name}_unit_counts")(ctypes.byref(counts))
        return result, counts


def build(module: Module, folder: Path, *flags: str, change: tuple[str, str] = ("", "")) -> Built:
    """``change``: a pattern in the network's kernels, and what stands in its place."""
    for name, text in network_files(module, "test").items():
        head, mark, kernels = text.partition("/* Kernels are not inlined")
        (folder / name).write_text(head + mark + (re.sub(*change, kernels) if change[0] else kernels))
    sources = [str(folder / name) for name in ("model.c", "model_data.c")]
    argv = ["gcc", *WARNINGS, *flags, "-O2", "-shared", "-fPIC", "-o", str(folder / "net.so"), *sources, "-lm"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return Built(module, ctypes.CDLL(str(folder / "net.so")))


def compiled(path: Path) -> Module:
    return compile_model(path, target_for(CPU), make_options())


@pytest.mark.parametrize("path", [digits.INT8, *SMALL], ids=lambda path: path.stem)
def test_the_model_counts_the_cycles_of_the_rule(path: Path, tmp_path: Path) -> None:
    """Bit for bit what the processor alone computes, no faults, and the cycles that reports tell."""
    built = build(compiled(path), tmp_path, "-DMICROC_UNIT_CHECKED")
    plain = microc.compile(path)
    shape = plain.inputs[0]["shape"]
    for seed in range(2):
        data = np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)
        result, counts = built(data)
        np.testing.assert_array_equal(result, np.asarray(plain(data)).reshape(result.shape))
        uses = [call.unit for call in built.module.calls if call.unit]
        assert counts.faults == 0 and uses
        assert counts.cycles == (seed + 1) * sum(use.cycles for use in uses)
        assert counts.macs == (seed + 1) * sum(use.macs for use in uses)
        assert list(counts.busy) == [
            (seed + 1) * sum(getattr(use, name) for use in uses) for name in ("load", "compute", "store")
        ]


@pytest.mark.parametrize(
    "path", [path for path in TINY if everything() or "_vww_" not in path.name], ids=lambda path: path.stem
)
def test_mlperf_tiny_is_exact(path: Path) -> None:
    """Inputs of the corpus give what the processor alone computes."""
    library = microc.compile(path, target=CPU)
    known = microc.compile(path)
    for inputs, _ in cases(path)[:2]:
        np.testing.assert_array_equal(np.asarray(library(*inputs)), np.asarray(known(*inputs)))


@pytest.mark.parametrize(
    "pattern",
    [r"unit_wait\(0, 1, \d+, 1\);", r"unit_wait\(1, 2, \d+, 1\);", r"unit_wait\(1, 0, \d+, 1\);"],
    ids=["products before their operands", "stores before their sums", "loads over what is read"],
)
def test_hazards_are_faults(pattern: str, tmp_path: Path) -> None:
    """Without a wait the model computes as before, and counts the elements that nothing orders."""
    built = build(compiled(digits.INT8), tmp_path, "-DMICROC_UNIT_CHECKED", change=(pattern, ";"))
    data = np.zeros(built.module.values[built.module.inputs[0]].shape, np.int8)
    assert built(data)[1].faults > 0


def test_a_wait_for_a_token_that_nobody_gave_is_a_fault(tmp_path: Path) -> None:
    built = build(compiled(digits.INT8), tmp_path, change=(r"unit_signal\(0, 1, \d+, 1\);", ";"))
    data = np.zeros(built.module.values[built.module.inputs[0]].shape, np.int8)
    assert built(data)[1].faults > 0


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_a_header_of_ones_own_takes_the_models_place(compiler: str, tmp_path: Path) -> None:
    """The example's, which writes registers: every instruction is there, and no model."""
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is absent")
    for name, text in network_files(compiled(digits.INT8), "test").items():
        (tmp_path / name).write_text(text)
    flags = [*WARNINGS, '-DMICROC_TENSOR_UNIT="acme8.h"', f"-I{EXAMPLE}"]
    for more in (flags, [*WARNINGS], [*WARNINGS, "-DMICROC_UNIT_CHECKED"]):
        argv = [compiler, *more, "-c", "-o", str(tmp_path / "model.o"), str(tmp_path / "model.c")]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:2000]
        symbols = subprocess.run(["nm", str(tmp_path / "model.o")], capture_output=True, text=True, check=True).stdout
        assert ("unit_counts" in symbols) == (more is not flags)


def test_a_unit_of_ones_own() -> None:
    """The example's description: smaller tiles, the same integers; without the plugin nobody knows the core."""
    with pytest.raises(microc.errors.UsageError, match="unknown core"):
        microc.compile(digits.INT8, target="rv32imafc+acme8")
    ours = microc.compile(digits.INT8, target="rv32imafc+acme8", plugins=EXAMPLE / "unit.py")
    plain = microc.compile(digits.INT8)
    data = np.random.default_rng(0).integers(-128, 128, plain.inputs[0]["shape"]).astype(np.int8)
    np.testing.assert_array_equal(np.asarray(ours(data)), np.asarray(plain(data)))
    layers = microc.explain(digits.INT8, target="rv32imafc+acme8", plugins=EXAMPLE / "unit.py").to_data()["layers"]
    used = [layer["tensor_unit"]["utilisation"] for layer in layers if layer["tensor_unit"]]
    assert len(used) == 4 and all(0 < part < 1 for part in used)


BOARDS = {
    "mps2-an386": ("cortex-m4", ("arm-none-eabi-gcc", "qemu-system-arm")),
    "qemu-riscv32": ("rv32imafc", ("riscv64-unknown-elf-gcc", "qemu-system-riscv32")),
}


@pytest.mark.cross
@pytest.mark.emulator
@pytest.mark.parametrize(
    ("path", "board"), in_turn([digits.INT8, *SMALL], list(BOARDS)), ids=lambda part: getattr(part, "stem", part)
)
def test_firmware_answers_as_the_processor_alone(path: Path, board: str, tmp_path: Path) -> None:
    """The model of the unit in firmware: every kernel as here, and the outputs those without a unit."""
    core, tools = BOARDS[board]
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{missing[0]} is absent")
    text = (file_access.boards_folder() / f"{board}.toml").read_text(encoding="utf-8")
    file, folder = tmp_path / "board.toml", tmp_path / "firmware"
    file.write_text(text.replace(f'cpu = "{core}"', f'cpu = "{core}+tensor16"'), encoding="utf-8")
    assert main(["compile", str(path), "--board", str(file), "-o", str(folder), "--quiet"]) == 0
    assert main(["build", str(folder), "--quiet"]) == 0
    plain = microc.compile(path)
    with microc.Device(folder) as device:
        for seed in range(2):
            data = np.random.default_rng(seed).integers(-128, 128, plain.inputs[0]["shape"]).astype(np.int8)
            np.testing.assert_array_equal(np.asarray(device.run(data)), np.asarray(plain(data)))
