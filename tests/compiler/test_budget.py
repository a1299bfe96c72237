# SPDX-License-Identifier: Apache-2.0
"""The goal of a compilation: compiler options, merged kernels, and the flash budget."""

from __future__ import annotations

from typing import Any

import pytest

import microc
from microc.compiler.fit.budget import flash_bytes, list_goals_to_try, list_larger_boards, region_bytes
from microc.compiler.model import read_model
from microc.compiler.options import Options
from microc.compiler.pipeline import compile_model, optimise_graph
from microc.device.boards import load_board
from microc.errors import FitError, UsageError
from microc.module import Module
from microc.target import GOALS, SIZE, SPEED, target_for
from tests.support import digits


def compiled(**options: object) -> Module:
    return compile_model(digits.INT8, target_for("cortex-m4"), Options(**options))  # type: ignore[arg-type]


def test_goals_end_with_size_and_prices_rise() -> None:
    graph = optimise_graph(read_model(digits.INT8, Options()), Options())
    target = target_for("cortex-m4")
    ladder = list_goals_to_try(graph, Options(optimize="speed"), target)
    prices = [goal.price for goal in ladder]
    assert ladder[0] == SPEED and ladder[-1] == SIZE and prices == sorted(prices)
    balanced = list_goals_to_try(graph, Options(), target)[0]
    assert balanced.name == "balanced" and 0 < balanced.price < 1000
    size, last = list_goals_to_try(graph, Options(optimize="size"), target)
    assert size.name == "size" and balanced.price < size.price < last.price and last == SIZE


def test_flash_is_worth_nothing_on_a_computer_but_in_a_budget() -> None:
    graph = optimise_graph(read_model(digits.INT8, Options()), Options())
    assert list_goals_to_try(graph, Options(), target_for("x86-64-v3")) == list_goals_to_try(
        graph, Options(optimize="speed"), target_for("cortex-m4")
    )
    assert list_goals_to_try(graph, Options(optimize="size"), target_for("x86-64-v3"))[0].name == "size"
    assert list_goals_to_try(graph, Options(), target_for("host"))[0].name == "balanced", (
        "portable C may be for any machine"
    )
    assert list_goals_to_try(graph, Options(), target_for("rv32imc"))[0].name == "balanced", (
        "no computer, whatever its family has"
    )


@pytest.mark.parametrize("goal", GOALS)
def test_the_module_knows_its_goal(goal: str) -> None:
    assert compiled(optimize=goal).options["optimize"] == goal


def test_a_budget_that_fits_changes_nothing() -> None:
    free = compiled()
    assert compiled(flash=flash_bytes(free)).fingerprint == free.fingerprint


def test_an_impossible_budget_is_refused_with_the_numbers() -> None:
    weights = compiled(optimize="size").const_bytes
    with pytest.raises(FitError, match=rf"budget of 8000 bytes cannot hold {weights} bytes of weights") as caught:
        compiled(flash=8000)
    assert "--flash" in caught.value.hint


def test_the_goal_chooses_compiler_options() -> None:
    goals: tuple[Any, ...] = GOALS
    makefiles = {
        goal: str(microc.compile(digits.INT8, board="mps2-an386", optimize=goal).files()["Makefile"]) for goal in goals
    }
    assert "\nOPT ?= -Os\n" in makefiles["size"]
    assert "\nOPT ?= -O2 -fno-schedule-insns" in makefiles["balanced"]
    assert all("\nRUNTIME_OPT ?= -Os\n" in text for text in makefiles.values())
    riscv = str(microc.compile(digits.INT8, board="qemu-riscv32").files()["Makefile"])
    assert "\nOPT ?= -O3 -fno-schedule-insns" in riscv  # a tile's loads stay where they are used


def test_wrong_choices() -> None:
    with pytest.raises(UsageError, match="optimize cannot be 'fast'"):
        microc.compile(digits.INT8, optimize="fast")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="flash budget cannot be -1"):
        microc.compile(digits.INT8, flash=-1)


def test_boards_in_hints_hold_the_network_in_the_region_that_the_linker_fills() -> None:
    """A board with several RAMs has more bytes than a network can use: it is named only if the first one is large enough."""
    for ram in (90_000, 320_000, 500_000, 600_000):
        boards = [load_board(name) for name in list_larger_boards(10_000, ram)]
        assert boards and all(region_bytes(board, "ram") >= ram for board in boards)
