# SPDX-License-Identifier: Apache-2.0
"""Every operator on every one of its cases, through schedules and C: what the machine computes is what numpy says.

The schedules of a Cortex-M4 run here too, with the portable bodies of its intrinsics, and those of vectors, in vectors where this
computer has them, and on emulated machines in theirs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from microc.device.toolchain import native_core
from microc.isa import CORES
from microc.ops.registry import FAMILIES
from tests.emulated.functions import emulated
from tests.emulated.machines import MACHINES
from tests.ops.compiled import Built, CompiledCase, assert_answer, assert_compiled, compiled_cases, definitions
from tests.ops.harness import named_cases
from tests.support.campaign import everything, in_turn
from tests.support.growth import memory_faults

VECTORS = native_core() if native_core() != "host" else next(name for name, core in CORES.items() if core.lanes)
"""This computer's, else what other compilers make of such."""
CORES_HERE = ("host", "cortex-m4", VECTORS)
"""Cores whose C this computer runs; that of the M4 with the portable bodies of its intrinsics."""
OTHERS = ("aarch64-dotprod", "rv64gcv", "wasm-simd128")
COMPUTING = [family for family in FAMILIES if definitions(family)]


def cases_of_core(family: str, position: int) -> dict[str, CompiledCase]:
    """Every case of a family for the core at ``position``; by default, those that come to this core in turn.

    The assignment moves on by one core after each round, because a family's cases often repeat their dtypes by threes.
    """
    count = len(CORES_HERE)

    def comes_here(number: int) -> bool:
        return everything() or (number + number // count) % count == position

    return compiled_cases(family, CORES_HERE[position], comes_here)


@pytest.mark.parametrize("family", COMPUTING)
def test_compiled_cases_equal_the_reference(family: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each case in the C of one core in turn: with undefined behaviour told, and optimised."""
    built: Built = {}
    for position, cpu in enumerate(CORES_HERE):
        assert_compiled(cases_of_core(family, position), tmp_path / cpu, cpu, built)
        assert "runtime error" not in capfd.readouterr().err
    assert not [fault for source in tmp_path.rglob("kernels.c") for fault in memory_faults(source.read_text())]


def test_both_sums_of_rows_of_one_number_are_vectorised(tmp_path: Path) -> None:
    """The result is fused into the loop of the first sum of its row; the second sum leaves it there."""
    family = "normalisation.norms"
    rows = [n for n, (_, _, case) in enumerate(named_cases(definitions(family))) if case.types[0].shape == (3, 1)]
    cases = compiled_cases(family, VECTORS, rows.__contains__, lambda schedule: schedule.rule == "vectors")
    assert any(case.definition.name == "layer_norm" for case in cases.values())
    assert_compiled(cases, tmp_path, VECTORS)


@pytest.mark.emulator
@pytest.mark.parametrize(("family", "name"), in_turn(COMPUTING, OTHERS))
def test_other_machines_equal_the_reference(family: str, name: str, tmp_path: Path) -> None:
    """Every fourth case. All cases run on the cores of this computer."""
    machine = MACHINES[name]
    known = compiled_cases(family, machine.cpu, lambda number: everything() or number % 4 == 0)
    cases = {case_name: case for case_name, case in known.items() if machine.runs(str(case.func))}
    assert len(cases) > len(known) / 2
    funcs = [case.func for case in cases.values()]
    with emulated(funcs, tmp_path, "-O1", machine=machine, compiler=machine.first) as calls:
        for title, case in cases.items():
            assert_answer(title, case, calls, name)
