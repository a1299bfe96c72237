"""Words on vectors of computers: their meaning interpreted, their portable C, and the instructions of this machine and of those
that are emulated."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from microc.device.machine import machine_flags
from microc.dtypes import Array, to_numpy
from microc.isa import CORES, SCALAR
from microc.tir import ir
from tests.codegen.machines import meant, often
from tests.emulated.functions import emulated
from tests.emulated.machines import MACHINES
from tests.native import UNDEFINED, Calls, build, call

UNITS = [name for name, core in CORES.items() if core.lanes]
HERE = [name for name in UNITS if name not in MACHINES]
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
            if name.startswith("dot") and param.name == "c":
                array //= 4
            if name.startswith(("shl", "shift")):  # to the right by any distance, then to the left what has room for it
                half = len(array) // 2
                array = -(array % 32) if param.name == "b" else array
                array[half:] = -array[half:] % 9 if param.name == "b" else array[half:] // 512
            if name.endswith("_first") and param.name == "n":
                array %= SCALAR[name].lanes + 1
        found.append(array)
    return tuple(found)


def compare(library: ctypes.CDLL | Calls, cpu: str) -> None:
    """What the library's functions compute of every word is what it means."""
    for name in words(cpu):
        want = meant(function(name), operands(name))
        got = call(library, function(name), [*operands(name), np.zeros_like(want)])
        np.testing.assert_array_equal(got[-1], want, err_msg=name)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("cpu", HERE)
def test_instructions_compute_what_words_mean(cpu: str, compiler: str, tmp_path: Path) -> None:
    flags = machine_flags(CORES[cpu].machine)
    if not flags:
        pytest.skip(f"this computer is no {cpu}")
    funcs = [function(name) for name in words(cpu)]
    compare(build(funcs, tmp_path, "-O2", "-Wno-unused-function", *flags, compiler=compiler, cpu=cpu), cpu)


@pytest.mark.emulator
@pytest.mark.parametrize(("cpu", "compiler"), [(cpu, c) for cpu, m in MACHINES.items() for c in m.compilers])
def test_instructions_of_other_machines(cpu: str, compiler: str, tmp_path: Path) -> None:
    funcs = [function(name) for name in words(cpu)]
    with emulated(funcs, tmp_path, "-O2", "-Wno-unused-function", cpu=cpu, compiler=compiler) as calls:
        compare(calls, cpu)


@pytest.mark.parametrize("cpu", [HERE[-1], *MACHINES])
def test_portable_words(cpu: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    compare(build([function(name) for name in words(cpu)], tmp_path, UNDEFINED), cpu)
    assert "runtime error" not in capfd.readouterr().err
