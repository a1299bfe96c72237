# SPDX-License-Identifier: Apache-2.0
"""Which candidate wins, and what is said of those that lose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from microc.schedule import choose as chooser
from microc.schedule.choose import (
    Choice,
    CostedCandidate,
    best_candidate,
    choose_schedule,
    explain_rejection,
    scale_price_for_packing,
    weigh_cost,
)
from microc.schedule.cost.cost_model import Cost
from microc.schedule.primitives.tree import Step
from microc.schedule.schedule import Schedule
from microc.target import SIZE, SPEED, Goal, target_for
from microc.tir import ir

EMPTY = ir.PrimFunc("f", (), ir.Seq(()))
BALANCED = Goal("balanced", 2.0)


def rival(instructions: float, cycles: float, code: int, goal: Goal, constants: int = 0) -> CostedCandidate:
    cost = Cost(instructions, cycles, code, 0.0, {})
    return CostedCandidate(Choice(Schedule(EMPTY), EMPTY), cost, constants, weigh_cost(cost, constants, goal, 1))


PACKED = Schedule(EMPTY, (Step("pack_bits", ("weight", 4, "neighbours")),))


@pytest.mark.parametrize(
    ("goal", "instructions", "constants", "packs"),
    [
        (SPEED, 1001, 500, False),
        (SIZE, 5000, 999, True),
        (BALANCED, 1290, 990, True),  # at most 1.3 times the instructions
        (BALANCED, 1600, 990, False),
        (BALANCED, 1600, 600, True),  # the flash is worth it
    ],
)
def test_weights_of_few_bits_are_packed(goal: Goal, instructions: float, constants: int, packs: bool) -> None:
    goal = scale_price_for_packing(goal, [Schedule(EMPTY), PACKED])
    whole = rival(1000, 2000, 100, goal, 1000)
    packed = rival(instructions, 2 * instructions, 100, goal, constants)
    packed = replace(packed, choice=Choice(PACKED, EMPTY))
    assert (best_candidate([whole, packed], goal) is packed) == packs
    assert explain_rejection(packed if not packs else whole, [whole, packed], goal)


CASES: Mapping[str, tuple[Goal, tuple[float, float, int], str]] = {
    "slower": (SPEED, (1120, 2240, 100), "12 % more instructions"),
    "alike": (SPEED, (1015, 2100, 100), "ties within 2 %, 5 % more cycles"),
    "alike, faster by fewer instructions": (SPEED, (990, 2100, 100), "ties within 2 %, 5 % more cycles"),
    "the same": (SPEED, (1000, 2000, 100), "ties within 2 %, comes later"),
    "alike, larger": (
        BALANCED,
        (990, 1990, 110),
        "ties within 2 %, flash: +10 bytes of code, +0 of constants, which 0.5 % fewer cycles are not worth",
    ),
    "slower and larger": (
        BALANCED,
        (1100, 2200, 140),
        "10 % more instructions, flash: +40 bytes of code, +0 of constants",
    ),
    "slower, not larger": (BALANCED, (1100, 2200, 90), "10 % more instructions"),
    "larger": (
        BALANCED,
        (900, 1800, 300),
        "flash: +200 bytes of code, +0 of constants, which 10 % fewer instructions are not worth",
    ),
    "larger, for size": (SIZE, (900, 1800, 101), "flash: +1 bytes of code, +0 of constants"),
    "slower, for size": (SIZE, (1500, 1800, 100), "as much flash, 50 % more instructions"),
    "the same, for size": (SIZE, (1000, 2000, 100), "costs the same, comes later"),
}


@pytest.mark.parametrize("name", CASES)
def test_why_it_lost(name: str) -> None:
    goal, loser, words = CASES[name]
    rivals = [rival(1000, 2000, 100, goal), rival(*loser, goal)]
    assert best_candidate(rivals, goal) is rivals[0]
    assert explain_rejection(rivals[1], rivals, goal) == words


@pytest.mark.parametrize(("goal", "lowered"), [(SPEED, 2), (SIZE, 1), (BALANCED, 1)])
def test_what_is_too_large_is_not_lowered(goal: Goal, lowered: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants that weigh more by themselves than all of a rival decide before loops are looked at."""
    seen: list[ir.PrimFunc] = []

    def lower(func: ir.PrimFunc) -> ir.PrimFunc:
        seen.append(func)
        return func

    monkeypatch.setattr(chooser, "lower", lower)
    large, small = (
        Schedule(ir.PrimFunc("f", (ir.Buffer("w", (size,), "int8", "const"),), ir.Seq(()))) for size in (10_000, 10)
    )
    assert choose_schedule([large, small], target_for("cortex-m4"), goal).schedule == (
        large if goal is SPEED else small
    )
    assert len(seen) == lowered
