"""Every operator on an AVR, cycle by cycle: it links, and answers as its reference says, floats within its bound.

By itself a case of each operator, the smallest; with ``MICROC_TESTS=all`` every case that the address space of 16 bits holds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from microc.ops.registry import FAMILIES
from tests.campaign import everything
from tests.emulated.functions import emulated
from tests.emulated.machines import AVR
from tests.native import GUARD
from tests.ops.compiled import CompiledCase, assert_answer, c_name, compiled_case, definitions
from tests.ops.harness import named_cases

BATCH = 40
"""Functions of a program, which has 256 KiB of flash."""
_APART = 64
"""Parameters begin at multiples of it."""


def held(case: CompiledCase) -> bool:
    """Test whether the memory of the parameters fits."""
    return sum(-(-(p.nbytes + 2 * GUARD) // _APART) * _APART for p in case.func.params) <= AVR.most


def cases() -> dict[str, CompiledCase]:
    """The smallest case of each operator, or all that fit; an operator without one that fits is an error."""
    found: dict[str, CompiledCase] = {}
    for family in FAMILIES:
        for definition in definitions(family):
            named = list(named_cases([definition]))
            named.sort(
                key=lambda row: (not all(kind.size for kind in row[2].types), sum(kind.size for kind in row[2].types))
            )
            made = {}
            for number, (title, _, case) in enumerate(named):
                compiled = compiled_case(definition, case, "avr", f"{c_name(title)}_{number}")
                if held(compiled):
                    made[title] = compiled
                    if not everything():
                        break
            assert made, f"{definition.name}: no case fits"
            found |= made
    return found


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
