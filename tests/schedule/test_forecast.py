# SPDX-License-Identifier: Apache-2.0
"""The forecast of a schedule's instructions, and that candidates which are not lowered because of it would not have won."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import microc
from microc.compiler.lowering import kernel_selection
from microc.schedule.choose import (
    Choice,
    CostedCandidate,
    best_candidate,
    choose_schedule,
    cost_candidate,
    scale_price_for_packing,
)
from microc.schedule.cost.forecast import forecast_instructions
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target, target_for
from microc.tir.lower import lower
from tests.schedule.functions import matmul
from tests.support.campaign import in_turn

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MODELS = ("digits/digits_int8.tflite", "digits/digits_float.onnx", "digits/digits_qdq.onnx")
CORES = ("cortex-m4", "cortex-m0", "cortex-m55", "rv32imc", "x86-64-v3")


def test_instructions_of_a_product() -> None:
    """5 x 6 sums of 8 products: each product takes two loads, a multiplication with its addition, and the sum's load and store;
    three loops are controlled by two instructions an iteration."""
    schedule = Schedule(matmul(5, 8, 6))
    products, loops = 5 * 6 * 8, 2 * (5 + 5 * 6 + 5 * 6 * 8)
    assert 3 * products < forecast_instructions(schedule.func, target_for("cortex-m4")) - loops < 7 * products


def test_unrolled_windows_share_what_they_load() -> None:
    """Loads and loop control that a schedule saves are saved in its forecast, too."""
    plain = Schedule(matmul(4, 8, 6))
    p, o, k = plain.loops_of("acc")
    tiled = plain.reorder(k, p, o).unroll(p).unroll(o)
    target = target_for("cortex-m4")
    assert forecast_instructions(tiled.func, target) < 0.6 * forecast_instructions(plain.func, target)


def test_a_partial_tile_counts_the_rows_that_it_has() -> None:
    """Of five rows in tiles of four only five are computed, though eight iterations are controlled."""
    five, eight = (Schedule(matmul(rows, 8, 6)) for rows in (5, 8))
    instructions = [
        forecast_instructions(plain.split(plain.loops_of("acc")[0], (None, 4)).func, target_for("cortex-m4"))
        for plain in (five, eight)
    ]
    assert instructions[0] < 0.8 * instructions[1]


@pytest.mark.parametrize(("pair", "optimize"), in_turn(in_turn(MODELS, CORES), ("balanced", "speed")))
def test_the_best_candidate_is_lowered(pair: tuple[str, str], optimize: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice weighs as much as the best of all candidates, up to the precision of the forecast (0.1 %)."""
    compared: list[tuple[float, float]] = []

    def choose(candidates: Sequence[Schedule], target: Target, goal: Goal, uses: int, workspace: float) -> Choice:
        choice = choose_schedule(candidates, target, goal, uses, workspace)
        if len(candidates) > 1:
            price = scale_price_for_packing(goal, candidates)

            def weigh(schedule: Schedule) -> CostedCandidate:
                return cost_candidate(Choice(schedule, lower(schedule.func)), target, price, uses)

            best = best_candidate([weigh(schedule) for schedule in candidates], price)
            compared.append((weigh(choice.schedule).weight.total, best.weight.total))
        return choice

    monkeypatch.setattr(kernel_selection, "choose_schedule", choose)
    kernel_selection.clear_schedule_memo()
    model, core = pair
    options: dict[str, Any] = {"target": core, "optimize": optimize, "shipped": False}
    microc.compile(EXAMPLES / model, **options)
    kernel_selection.clear_schedule_memo()
    assert compared
    assert all(chosen <= 1.001 * best for chosen, best in compared), compared
