# SPDX-License-Identifier: Apache-2.0
"""``microc.cost``: estimates without a compilation, held against the compiler's own; ``microc bench --estimate``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import microc
from benchmarks.maintain.prices import random_network
from microc.cli import main
from microc.compiler.lowering.kernel_selection import groups_of
from microc.compiler.network_cost import PricedNetwork, prices_of_core, work_of_group
from microc.compiler.options import make_options
from microc.device.boards import list_boards, load_board
from microc.errors import UsageError
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph
from tests.support import digits

BOUNDS = {"instructions": 0.35, "cycles": 0.35, "flash": 0.35, "ram": 0.45}
"""Largest relative error of a figure. docs/measuring.md has what 200 networks showed; if this fails, write the prices again:
``python benchmarks/maintain/prices.py``."""


def estimates_and_report(model: Graph | Path, board: str) -> tuple[dict[str, float], dict[str, float]]:
    cost, report = microc.cost(model, board), microc.compile(model, board=board, cache=False).report()
    names = {"instructions": "estimated_instructions", "cycles": "estimated_cycles", "flash": "flash", "ram": "ram"}
    return {name: getattr(cost, name) for name in names}, {name: report[key] for name, key in names.items()}


@pytest.mark.parametrize(
    ("model", "board"),
    [
        (digits.INT8, "mps2-an386"),
        (digits.INT8, "microbit"),
        (21, "mps2-an386"),
        (13, "qemu-riscv32"),
        (9, "mps3-an547"),
    ],
    ids=str,
)
def test_estimates_are_near_the_report(model: Path | int, board: str) -> None:
    source = random_network(model) if isinstance(model, int) else model
    estimated, reported = estimates_and_report(source, board)
    for name, bound in BOUNDS.items():
        assert abs(estimated[name] / reported[name] - 1) <= bound, (name, estimated, reported)


def test_every_board_has_prices() -> None:
    for name in list_boards():
        board = load_board(name)
        if board.regions:
            assert prices_of_core(board.target.cpu).kinds


def test_a_core_without_prices_is_refused() -> None:
    with pytest.raises(UsageError, match="there are no prices of kernels for host"):
        microc.cost(digits.INT8, "host")


@pytest.mark.parametrize("option", [{"ram": 4096}, {"optimize": "size"}, {"cores": 2}, {"code_in_ram": True}], ids=str)
def test_options_without_prices_are_refused(option: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=f"the option {next(iter(option))} has no prices"):
        microc.cost(digits.INT8, "mps2-an386", **option)  # type: ignore[arg-type]


def test_the_result_adds_up() -> None:
    cost = microc.cost(digits.INT8, "arduino-nano33ble")
    assert cost.instructions == sum(layer.instructions for layer in cost.layers) and cost.fits
    assert cost.cycles == sum(layer.cycles for layer in cost.layers)
    assert cost.flash == cost.weights + cost.code and cost.ram > cost.arena > 0
    assert cost.milliseconds == pytest.approx(1000 * cost.cycles / 64_000_000)
    data = json.loads(json.dumps(cost.to_data()))
    assert data["fits"] is True and len(data["layers"]) == len(cost.layers) == 6
    assert "instructions" in str(cost.document())
    small = microc.cost(digits.INT8, "arduino-uno")
    assert not small.fits and small.board_flash == 32256 < small.flash


def test_slow_flash_takes_cycles() -> None:
    fast, slow = (microc.cost(digits.INT8, name) for name in ("mps2-an386", "arduino-nano33ble"))
    assert fast.instructions == slow.instructions and fast.cycles < slow.cycles


def test_the_arena_is_at_least_what_values_need() -> None:
    """Inputs and outputs of a layer that must not overlap are both in the arena."""
    builder = GraphBuilder("pair")
    x = builder.input("x", (1, 32), "float32")
    out = builder.emit("dense", (x, builder.new_constant("w", np.ones((24, 32), np.float32))))
    graph = builder.graph("pair", {"out": out})
    assert microc.cost(graph, "mps2-an386").arena >= 4 * (32 + 24)
    assert microc.cost(graph, "mps2-an386", io_in_arena=False).arena == 0


def test_control_flow_counts_its_iterations() -> None:
    """A recurrent layer over twice the steps takes about twice the instructions."""
    counts = []
    for steps in (8, 16):
        builder, rng = GraphBuilder("recurrent"), np.random.default_rng(0)
        x = builder.input("x", (1, steps, 8), "float32")
        shapes = {"weights": (16, 8), "recurrent": (16, 16), "hidden": (1, 16)}
        operands = [builder.new_constant(n, rng.normal(size=s).astype(np.float32)) for n, s in shapes.items()]
        rows, _ = builder.emit_all("rnn", (x, *operands))
        counts.append(microc.cost(builder.graph("recurrent", {"out": rows}), "mps2-an386").instructions)
    assert 1.7 < counts[1] / counts[0] < 2.3


def test_state_is_in_the_arena() -> None:
    builder = GraphBuilder("counter")
    x, state = builder.input("x", (4,), "float32"), builder.input("s", (4,), "float32")
    total = builder.emit("add", (x, state))
    graph = builder.graph("counter", {"total": total, "out": builder.emit("relu", (total,))})
    assert microc.cost(graph, "mps2-an386", state={"s": "total"}, io_in_arena=False).arena >= 16


def test_operators_without_a_price_are_forecast() -> None:
    """Nothing is refused: loops as they are written take the place of a price, also behind a product."""
    builder = GraphBuilder("rare")
    x = builder.input("x", (1, 8, 8, 4), "float32")
    transformed = builder.emit("asinh", (x,))
    graph = builder.graph("rare", {"out": builder.emit("reverse", (transformed,), {"axes": (1,)})})
    optimised = PricedNetwork(graph, make_options()).graph
    kinds = {work.kind for nodes in groups_of(optimised) for work in work_of_group(optimised, nodes)}
    assert not kinds <= prices_of_core("cortex-m4").kinds.keys()
    assert microc.cost(graph, "mps2-an386").instructions > 2 * 256


def test_bench_ranks_all_boards(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(digits.INT8), "--all", "--estimate", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["boards"]
    assert {row["board"] for row in rows} == {name for name in list_boards() if load_board(name).regions}
    assert all(row["error"] is None and row["unit"] == "estimated cycles" for row in rows)
    fits = [row["fits"] for row in rows]
    assert fits == sorted(fits, reverse=True) and not all(fits) and any(fits)
    known = [row["seconds"] for row in rows if row["fits"] and row["seconds"] is not None]
    assert known == sorted(known) and len(known) > 20
    assert main(["bench", str(digits.INT8), "--boards", "microbit,mps2-an386", "--estimate"]) == 0
    assert "fits 2 of 2 boards, by estimate" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--all", "--boards", "microbit"], "--all cannot be combined with --boards"),
        (["--all", "--estimate", "--repeat", "3"], "--estimate cannot be combined with --repeat"),
        ([], "--boards: got none"),
    ],
    ids=str,
)
def test_bench_refuses(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(digits.INT8), *words]) == 2
    assert message in capsys.readouterr().err
