"""Words on vectors of computers: their meaning interpreted, their portable C, and the instructions of this machine."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from microc.device.machine import machine_flags
from microc.dtypes import Array, to_numpy
from microc.isa import CORES, SCALAR
from microc.tir import ir
from tests.codegen.machines import meant, often
from tests.native import UNDEFINED, build, call

UNITS = [name for name, core in CORES.items() if core.lanes]
COUNT, REACH = 24, 400


def words(cpu: str) -> list[str]:
    """Those on whole vectors that a core has instructions for."""
    names = {name for s in CORES[cpu].sets for name in s.bodies if name in SCALAR and SCALAR[name].lanes}
    return sorted(name for name in names if SCALAR[name].lanes in CORES[cpu].lanes)


@lru_cache
def function(name: str) -> ir.PrimFunc:
    return often(name, COUNT, REACH)


@lru_cache
def operands(name: str) -> tuple[Array, ...]:
    """Numbers of every magnitude, within what the meaning allows; zeros of both signs among floats."""
    dice = np.random.default_rng(sum(map(ord, name)))
    found: list[Array] = []
    for param in function(name).params[:-1]:
        if param.dtype == "float32":
            array = (dice.normal(size=param.shape) * 10.0 ** dice.integers(-3, 6, param.shape)).astype(np.float32)
            array[:4] = (0.0, -0.0, 1.5, -2.5)
            array = np.abs(array) if name.startswith("sqrt") else array
        else:
            kind = np.iinfo(to_numpy(param.dtype))
            shift = kind.bits - dice.integers(1, kind.bits, param.shape)
            array = (dice.integers(kind.min, kind.max, param.shape, endpoint=True) >> shift).astype(kind.dtype)
            if name.startswith("dot2") and param.name == "c":
                array //= 4
            if name.startswith(("shl", "shift")):  # to the right by any distance, then to the left what has room for it
                half = len(array) // 2
                array = -(array % 32) if param.name == "b" else array
                array[half:] = -array[half:] % 9 if param.name == "b" else array[half:] // 512
            if name.endswith("_first") and param.name == "n":
                array %= SCALAR[name].lanes + 1
        found.append(array)
    return tuple(found)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("cpu", UNITS)
def test_instructions_compute_what_words_mean(
    cpu: str, compiler: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = machine_flags(CORES[cpu].machine)
    if not flags:
        pytest.skip(f"this computer is no {cpu}")
    names = words(cpu)
    library = build(
        [function(name) for name in names], tmp_path, "-O2", "-Wno-unused-function", *flags, compiler=compiler, cpu=cpu
    )
    for name in names:
        got = call(library, function(name), [*operands(name), np.zeros_like(meant(function(name), operands(name)))])
        np.testing.assert_array_equal(got[-1], meant(function(name), operands(name)), err_msg=name)


def test_portable_words(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    names = words(UNITS[-1])
    library = build([function(name) for name in names], tmp_path, UNDEFINED)
    for name in names:
        got = call(library, function(name), [*operands(name), np.zeros_like(meant(function(name), operands(name)))])
        np.testing.assert_array_equal(got[-1], meant(function(name), operands(name)), err_msg=name)
    assert "runtime error" not in capfd.readouterr().err
