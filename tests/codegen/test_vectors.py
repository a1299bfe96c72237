# SPDX-License-Identifier: Apache-2.0
"""Words on vectors of computers: their meaning interpreted, their portable C, and the instructions of this machine and of those
that are emulated."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from microc.base.dtypes import HALF, Array, to_numpy
from microc.device.toolchain import flags_if_machine_available
from microc.isa import CORES, SCALAR
from microc.isa.vocabulary.vector_lanes import SCALABLE
from microc.tir import ir
from microc.tir.names import SUFFIXES
from tests.codegen.machines import meant, often
from tests.emulated.functions import emulated
from tests.emulated.machines import MACHINES
from tests.support.campaign import everything
from tests.support.native import UNDEFINED, Calls, build, call

UNITS = [name for name, core in CORES.items() if core.lanes]
MACHINES_WITH_VECTORS = {name: machine for name, machine in MACHINES.items() if CORES[machine.cpu].lanes}
OTHERS = sorted({machine.cpu for machine in MACHINES_WITH_VECTORS.values()})
HERE = [name for name in UNITS if name not in OTHERS]
COUNT, REACH = 24, 400
RUNS = {f"{name}_{short}" for name in ("copy", "fill") for short in SUFFIXES.values()}
SCALABLE_WORDS = {word.name for word in SCALABLE if word.lanes}
BUILDS = [
    (name, compiler)
    for number, (name, machine) in enumerate(MACHINES_WITH_VECTORS.items())
    for position, compiler in enumerate(machine.compilers)
    if everything() or position == number % len(machine.compilers)
]
"""Every machine by one of its compilers in turn, or by all of them."""
STRIDE = 20
"""From one result in memory to the next (:func:`tests.codegen.machines.often`)."""


def words(cpu: str) -> list[str]:
    """Those on whole vectors, and runs of memory, that a core has instructions for."""
    names = {name for s in CORES[cpu].sets for name in s.bodies if name in SCALAR}
    return sorted(
        name for name in names if SCALAR[name].lanes in CORES[cpu].lanes or name in SCALABLE_WORDS or name in RUNS
    )


@cache
def function(name: str) -> ir.PrimFunc:
    return often(name, COUNT, REACH)


@cache
def operands(name: str) -> tuple[Array, ...]:
    """Numbers of every magnitude, within what the meaning allows; zeros of both signs among floats."""
    dice = np.random.default_rng(sum(map(ord, name)))
    found: list[Array] = []
    for param in function(name).params[:-1]:
        if param.dtype == "float32":
            array = (dice.normal(size=param.shape) * 10.0 ** dice.integers(-3, 6, param.shape)).astype(np.float32)
            array[:4] = (0.0, -0.0, 1.5, -2.5)
            array = np.abs(array) if name.startswith("sqrt") else array
        elif param.dtype in HALF:  # subnormals, infinities and NaN among them
            array = dice.integers(0, 1 << 16, param.shape, np.uint16).view(to_numpy(param.dtype))
        else:
            kind = np.iinfo(to_numpy(param.dtype))
            shift = kind.bits - dice.integers(1, kind.bits, param.shape)
            numbers = dice.integers(kind.min, kind.max, param.shape, endpoint=True) >> shift
            if param.name == "vl":
                numbers = dice.integers(1, SCALAR[name].lanes, param.shape, endpoint=True)
            elif name.startswith("dot") and param.name == "c":
                numbers //= 4
            elif name.startswith(
                ("shl", "shift_round")
            ):  # to the right by any distance, then to the left what has room for it
                half = len(numbers) // 2
                if param.name == "b":
                    numbers = -dice.integers(0, 32, param.shape, endpoint=name.startswith("shift_round"))
                    numbers[half:] = dice.integers(0, 9, numbers[half:].shape)
                else:
                    numbers[half:] //= 512
            elif name.startswith(("gather", "scatter")) and param.name == "a":
                numbers = dice.integers(0, REACH if name.startswith("gather") else STRIDE - 1, param.shape)
            elif name.startswith("right") and param.name == "b":
                numbers = dice.integers(0, 31, param.shape, endpoint=True)
            elif name.startswith("mac_short_n") and param.name == "n":
                numbers >>= 16
            elif name.startswith("ramp"):
                numbers //= SCALAR[name].lanes
            elif param.name == "n" and ("first" in name or name in RUNS):
                numbers = dice.integers(0, (SCALAR[name].lanes or STRIDE - 1) + 1, param.shape)
            array = numbers.astype(kind.dtype)
        found.append(array)
    return tuple(found)


@cache
def wanted(name: str) -> Array:
    """What a word means: interpreting it takes most of the time, and most machines have the same words."""
    return meant(function(name), operands(name))


def compare(library: ctypes.CDLL | Calls, names: Sequence[str]) -> None:
    """What the library's functions compute of every word is what it means."""
    for name in names:
        want = wanted(name)
        got = call(library, function(name), [*operands(name), np.zeros_like(want)])
        np.testing.assert_array_equal(got[-1], want, err_msg=name)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("cpu", HERE)
def test_instructions_compute_what_words_mean(cpu: str, compiler: str, tmp_path: Path) -> None:
    flags = flags_if_machine_available(CORES[cpu].machine)
    if not flags:
        pytest.skip(f"this computer is no {cpu}")
    funcs = [function(name) for name in words(cpu)]
    compare(build(funcs, tmp_path, "-O2", *flags, compiler=compiler, cpu=cpu), words(cpu))


@pytest.mark.emulator
@pytest.mark.parametrize(("machine", "compiler"), BUILDS)
def test_instructions_of_other_machines(machine: str, compiler: str, tmp_path: Path) -> None:
    found = MACHINES[machine]
    names = [name for name in words(found.cpu) if not name.startswith(found.stops)]
    with emulated([function(name) for name in names], tmp_path, "-O2", machine=found, compiler=compiler) as calls:
        compare(calls, names)


def test_portable_words(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    names = list(dict.fromkeys(name for cpu in (HERE[-1], *OTHERS) for name in words(cpu)))
    compare(build([function(name) for name in names], tmp_path, UNDEFINED), names)
    assert "runtime error" not in capfd.readouterr().err
