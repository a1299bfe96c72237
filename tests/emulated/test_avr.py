# SPDX-License-Identifier: Apache-2.0
"""Every operator on an AVR, cycle by cycle: it links, and answers as its reference says, floats within its bound.

Operators that compute are functions; views and what is composed of others are networks of one node. By itself a case of each
operator, the smallest; with ``MICROC_TESTS=all`` every case that the address space of 16 bits holds. Cases of float64 are refused
there (``refuse_float64``).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import microc
from microc.ops.registry import FAMILIES, Case, OpDef, registry
from tests.emulated.functions import emulated
from tests.emulated.machines import AVR
from tests.emulated.network import network
from tests.ops.compiled import CompiledCase, assert_answer, c_name, compiled_case, definitions, one_node
from tests.ops.edges import case_arrays
from tests.ops.harness import assert_same, attributes, named_cases, reference
from tests.support.campaign import everything
from tests.support.native import GUARD

BATCH = 40
"""Functions of a program, which has 256 KiB of flash."""
_APART = 64
"""Parameters begin at multiples of it."""


_EMPTY = frozenset({"lstm"})
"""Composed operators whose parts take no tensors without elements, on any core."""
NETWORKS = [definition for definition in registry().values() if definition.view or definition.composed]


def held(case: CompiledCase) -> bool:
    """Test whether the memory of the parameters fits."""
    return sum(-(-(p.nbytes + 2 * GUARD) // _APART) * _APART for p in case.func.params) <= AVR.most


def taken(definition: OpDef, case: Case) -> bool:
    """Test whether the core has all dtypes of a case."""
    return all(
        kind.dtype != "float64" for kind in (*case.types, *definition.infer(attributes(definition, case), case.types))
    )


def smallest_first(definition: OpDef) -> list[tuple[str, Case]]:
    """The cases of an operator that the core has dtypes for, those without elements last."""
    named = [(title, case) for title, _, case in named_cases([definition]) if taken(definition, case)]
    return sorted(
        named, key=lambda row: (not all(kind.size for kind in row[1].types), sum(kind.size for kind in row[1].types))
    )


def cases() -> dict[str, CompiledCase]:
    """The smallest case of each operator, or all that fit; an operator without one that fits is an error."""
    found: dict[str, CompiledCase] = {}
    for family in FAMILIES:
        for definition in definitions(family):
            made = {}
            for number, (title, case) in enumerate(smallest_first(definition)):
                compiled = compiled_case(definition, case, "avr", f"{c_name(title)}_{number}")
                if held(compiled):
                    made[title] = compiled
                    if not everything():
                        break
            assert made, f"{definition.name}: no case fits"
            found |= made
    return found


def test_every_operator_is_a_function_or_a_network() -> None:
    functions = {definition.name for family in FAMILIES for definition in definitions(family)}
    assert functions | {definition.name for definition in NETWORKS} == set(registry())


@pytest.mark.cross
@pytest.mark.emulator
def test_every_operator_on_an_avr(tmp_path: Path) -> None:
    rows = list(cases().items())
    failures = []
    for begin in range(0, len(rows), BATCH):
        batch = dict(rows[begin : begin + BATCH])
        folder = tmp_path / str(begin)
        folder.mkdir()
        with emulated([c.func for c in batch.values()], folder, "-Os", machine=AVR, compiler="gcc") as calls:
            for title, case in batch.items():
                try:
                    assert_answer(title, case, calls, "avr")
                except AssertionError as failure:
                    failures.append(str(failure))
    assert not failures, "\n".join(failures)


@pytest.mark.cross
@pytest.mark.emulator
@pytest.mark.parametrize("definition", NETWORKS, ids=lambda definition: definition.name)
def test_views_and_compositions_on_an_avr(definition: OpDef, tmp_path: Path) -> None:
    named = [
        row for row in smallest_first(definition) if definition.name not in _EMPTY or all(t.size for t in row[1].types)
    ]
    for number, (title, case) in enumerate(named if everything() else named[:1]):
        arrays = tuple(np.asarray(array, order="C") for array in case_arrays(case))
        library = microc.compile(one_node(definition, case, arrays)[0], "avr")
        assert isinstance(library, microc.Library)
        folder = tmp_path / str(number)
        folder.mkdir()
        flags = ("-Os", "-std=gnu99", "-Wno-pedantic")  # C99 has no address spaces
        with network(library, folder, *flags, machine=AVR, compiler="gcc") as run:
            found = run(*(array for k, array in enumerate(arrays) if k not in case.consts))
        for got, want in zip(found, reference(definition, case, arrays), strict=True):
            try:
                assert_same(got, want, case.tolerance)
            except AssertionError as difference:
                raise AssertionError(f"{title}: {difference}") from difference
