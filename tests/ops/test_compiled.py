"""Every operator on every one of its cases, through schedules and C: what the machine computes is what numpy says.

The schedules of a Cortex-M4 run here too, with the portable bodies of its intrinsics.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from microc.ops.registry import FAMILIES, OpDef
from tests.ops.compiled import SANITIZERS, Batch, c_name, compiled_case
from tests.ops.harness import assert_same, attributes, named_cases


def definitions(family: str) -> list[OpDef]:
    return list(importlib.import_module(f"microc.ops.{family}").OPERATORS)


@pytest.mark.parametrize("cpu", ["host", "cortex-m4"])
@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_cases_equal_the_reference(family: str, cpu: str, tmp_path: Path) -> None:
    batch, names = Batch(), []
    for name, definition, case in named_cases(definitions(family)):
        if definition.view:
            continue
        batch.cases.append(compiled_case(definition, case, cpu, f"{c_name(name)}_{len(names)}"))
        names.append(name)
    library = batch.build(tmp_path, family, "-O1", *SANITIZERS)
    for name, compiled in zip(names, batch.cases, strict=True):
        attrs = attributes(compiled.definition, compiled.case)
        wanted = compiled.definition.reference(attrs, [a.copy() for a in compiled.arrays])
        for got, want in zip(compiled.run(library), wanted, strict=True):
            try:
                assert_same(got, want, compiled.case.tolerance)
            except AssertionError as difference:
                raise AssertionError(f"{name}: {difference}") from difference


def test_every_family_has_cases() -> None:
    def counts() -> Iterator[int]:
        for family in FAMILIES:
            yield len(list(named_cases(definitions(family))))

    assert min(counts()) > 0
