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
from tests.ops.compiled import Built, assert_answer, assert_compiled, compiled_cases, definitions
from tests.support.campaign import everything, in_turn
from tests.support.growth import memory_faults

VECTORS = native_core() if native_core() != "host" else next(name for name, core in CORES.items() if core.lanes)
"""This computer's, else what other compilers make of such."""
OTHERS = ("aarch64-dotprod", "rv64gcv", "wasm-simd128")
COMPUTING = [family for family in FAMILIES if definitions(family)]


@pytest.mark.parametrize("family", COMPUTING)
def test_compiled_cases_equal_the_reference(family: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Every core's C with undefined behaviour told; optimised, each case by the schedule of one core in turn."""
    built: Built = {}
    cores = ("host", "cortex-m4", VECTORS)
    for k, cpu in enumerate(cores):
        cases = compiled_cases(family, cpu)
        assert cases
        optimised = None if everything() else tuple(cases)[k :: len(cores)]
        assert_compiled(cases, tmp_path / cpu, cpu, built, optimised)
        assert "runtime error" not in capfd.readouterr().err
    assert not [fault for source in tmp_path.rglob("kernels.c") for fault in memory_faults(source.read_text())]


@pytest.mark.emulator
@pytest.mark.parametrize(("family", "name"), in_turn(COMPUTING, OTHERS))
def test_other_machines_equal_the_reference(family: str, name: str, tmp_path: Path) -> None:
    machine = MACHINES[name]
    known = compiled_cases(family, machine.cpu)
    cases = {case_name: case for case_name, case in known.items() if machine.runs(str(case.func))}
    assert len(cases) > len(known) / 2
    funcs = [case.func for case in cases.values()]
    with emulated(funcs, tmp_path, "-O1", machine=machine, compiler=machine.first) as calls:
        for title, case in cases.items():
            assert_answer(title, case, calls, name)
