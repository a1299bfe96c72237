"""Every operator on every one of its cases, through schedules and C: what the machine computes is what numpy says.

The schedules of a Cortex-M4 run here too, with the portable bodies of its intrinsics, and those of vectors, in vectors where this
computer has them.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from microc.device.machine import native
from microc.isa import CORES
from microc.ops.registry import FAMILIES, OpDef
from tests.growth import memory_faults
from tests.ops.compiled import assert_compiled, c_name, compiled_case
from tests.ops.harness import named_cases

VECTORS = native() if native() != "host" else next(name for name, core in CORES.items() if core.lanes)
"""This computer's, else what other compilers make of such."""


def definitions(family: str) -> list[OpDef]:
    """The operators of a family that compute: a view is no kernel, and the driver makes those of control flow."""
    return [d for d in importlib.import_module(f"microc.ops.{family}").OPERATORS if not (d.view or d.regions)]


@pytest.mark.parametrize("cpu", ["host", "cortex-m4", VECTORS])
@pytest.mark.parametrize("family", [family for family in FAMILIES if definitions(family)])
def test_compiled_cases_equal_the_reference(
    family: str, cpu: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cases = {
        name: compiled_case(definition, case, cpu, f"{c_name(name)}_{number}")
        for number, (name, definition, case) in enumerate(named_cases(definitions(family)))
    }
    assert cases
    assert_compiled(cases, tmp_path, cpu)
    assert "runtime error" not in capfd.readouterr().err
    assert not memory_faults((tmp_path / "optimised" / "kernels.c").read_text())
