"""Every operator on every one of its cases, through schedules and C: what the machine computes is what numpy says.

The schedules of a Cortex-M4 run here too, with the portable bodies of its intrinsics, and those of vectors, in vectors where this
computer has them, and on emulated machines in theirs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from microc.device.machine import native
from microc.isa import CORES
from microc.ops.registry import FAMILIES
from tests.emulated.functions import emulated
from tests.emulated.machines import MACHINES
from tests.growth import memory_faults
from tests.ops.compiled import assert_answers, assert_compiled, compiled_cases, definitions

VECTORS = native() if native() != "host" else next(name for name, core in CORES.items() if core.lanes)
"""This computer's, else what other compilers make of such."""
OTHERS = ("aarch64-dotprod", "rv64gcv", "wasm-simd128")
PRODUCTS = ("convolution.conv2d", "matrix.dense")


@pytest.mark.parametrize("cpu", ["host", "cortex-m4", VECTORS])
@pytest.mark.parametrize("family", [family for family in FAMILIES if definitions(family)])
def test_compiled_cases_equal_the_reference(
    family: str, cpu: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cases = compiled_cases(family, cpu)
    assert cases
    assert_compiled(cases, tmp_path, cpu)
    assert "runtime error" not in capfd.readouterr().err
    assert not memory_faults((tmp_path / "optimised" / "kernels.c").read_text())


def _elsewhere() -> Iterator[tuple[str, str]]:
    """Families with machines: products with each, others with one, in turn, or with each where MICROC_MACHINES is ``all``."""
    everywhere = os.environ.get("MICROC_MACHINES") == "all"
    for number, family in enumerate(family for family in FAMILIES if definitions(family)):
        for machine in OTHERS if everywhere or family in PRODUCTS else OTHERS[number % len(OTHERS) :][:1]:
            yield family, machine


@pytest.mark.emulator
@pytest.mark.parametrize(("family", "name"), list(_elsewhere()))
def test_other_machines_equal_the_reference(family: str, name: str, tmp_path: Path) -> None:
    machine = MACHINES[name]
    known = compiled_cases(family, machine.cpu)
    cases = {case_name: case for case_name, case in known.items() if machine.runs(str(case.func))}
    assert len(cases) > len(known) / 2
    funcs = [case.func for case in cases.values()]
    with emulated(funcs, tmp_path, "-O1", machine=machine, compiler=machine.first) as calls:
        assert_answers(cases, calls, name)
