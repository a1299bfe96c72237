# SPDX-License-Identifier: Apache-2.0
"""How values are stored: wider, in another order, two columns in a word. Every form computes the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_graph
from microc.errors import ScheduleError
from microc.frontend.graph_builder import GraphBuilder
from microc.schedule.cost.cost_model import estimate
from microc.schedule.primitives.tensorize import pack_column_pairs
from microc.schedule.primitives.tree import find_buffer
from microc.schedule.rules import candidate_schedules
from microc.schedule.schedule import Schedule
from microc.target import Goal, target_for
from microc.tir import ir
from microc.tir.lower import lower
from microc.tir.rewrite import walk_all_exprs, walk_stmt
from tests.schedule.functions import matmul, outputs
from tests.support.campaign import examples

NOTES: tuple[tuple[str, int | str], ...] = (("sum_bound", 1 << 22), ("smallest_weight", -127))
SMALL = Goal("balanced", 1e9)


def same(schedule: Schedule, *, lowered: bool = True) -> bool:
    func = matmul(5, 8, 6)
    return np.array_equal(outputs(func, lowered=lowered, schedule=schedule), outputs(func, lowered=False))


def test_wider_weights() -> None:
    assert same(Schedule(matmul(5, 8, 6)).set_dtype("weight", "int16"))


def test_wider_intermediates() -> None:
    schedule = Schedule(matmul(5, 8, 6)).cache_read("acc", "x", "workspace").compute_at("x_workspace", "p")
    assert same(schedule.set_dtype("x_workspace", "int16"))


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (0, 2, 1, 4, 3), (4, 3, 2, 1, 0)])
def test_weights_in_tiles(order: tuple[int, ...]) -> None:
    schedule = Schedule(matmul(5, 8, 6)).transform_layout("weight", ((None, 3), (None, 2, 2)), order)
    assert same(schedule)
    assert same(schedule, lowered=False)


@pytest.mark.parametrize("scale", [0, 7, 8])
@pytest.mark.parametrize("columns", [2, 6, 7])
@given(rows=st.integers(1, 8), depth=st.sampled_from([32, 36, 48]))
@settings(max_examples=examples(10), deadline=None)
def test_paired_columns(columns: int, scale: int, rows: int, depth: int) -> None:
    """Odd sums that are read times 2**8 are not shifted back; sums that are read otherwise are."""
    func = matmul(rows, depth, columns, notes=NOTES, scale=scale)
    schedules = candidate_schedules(func, "dense", target_for("cortex-m4"), SMALL)
    paired = [s for s in schedules if "tensorize_pairs" in {step.primitive for step in s.trace}]
    assert bool(paired) == (columns % 2 == 0)
    for schedule in paired:
        assert np.array_equal(outputs(func, lowered=True, schedule=schedule), outputs(func, lowered=False))
        separation = next(s for s in walk_stmt(schedule.func.body) if isinstance(s, ir.Block) and s.name == "acc_part")
        assert any(isinstance(x, ir.Bin) and x.op == "shr" for x in walk_all_exprs(separation)) == (scale != 8)


def test_distant_pairs_are_woven() -> None:
    """Two rows of pairs whose weights no load of two words reaches from one address alternate every four terms."""
    func = matmul(1, 516, 8, notes=NOTES)
    schedules = candidate_schedules(func, "dense", target_for("cortex-m4"), SMALL)
    steps = [(s, step.args) for s in schedules for step in s.trace if step.primitive == "tensorize_pairs"]
    assert steps
    for schedule, args in steps:
        assert args[4:] == (2,)
        assert find_buffer(schedule.func, "weight").shape == (2, 129, 2, 4)
        assert np.array_equal(outputs(func, lowered=True, schedule=schedule), outputs(func, lowered=False))


@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (1, 64), (1, 42), (3, 8)])
@pytest.mark.parametrize("depth", [72, 84, 96, 128])
def test_whole_terms_fit_the_stack(rows: int, columns: int, depth: int) -> None:
    """Candidates without a loop over K are lowered and priced within the frames that Python permits."""
    target = target_for("cortex-m4")
    for schedule in candidate_schedules(matmul(rows, depth, columns, notes=NOTES), "dense", target, SMALL):
        assert estimate(lower(schedule.func), target).instructions > 0


def test_woven_pairs_hold_both_weights() -> None:
    weights = np.arange(-64, 64, dtype=np.int8).reshape(8, 16)
    for dtype in ("int8", "int16"):
        plain = pack_column_pairs(weights, dtype)
        woven = pack_column_pairs(weights, dtype, 2)
        assert np.array_equal(woven[1, 2, 1], plain[3, 8:12])


def test_pairs_that_cannot_be_woven() -> None:
    schedule = Schedule(matmul(5, 8, 6, notes=NOTES)).split("o", (None, 2)).split("k", (None, 4))
    schedule = schedule.reorder("p", "o_0", "k_0", "o_1", "k_1").decompose_reduction("acc", "k_0")
    with pytest.raises(ScheduleError, match="multiple of 4"):
        schedule.tensorize_pairs("weight", "o_1", "k_0", "int8", 2)


def test_pairs_hold_both_weights() -> None:
    low, high = np.meshgrid(np.arange(-127, 128), np.arange(-127, 128))
    words = pack_column_pairs(np.stack([low.ravel(), high.ravel()]).astype(np.int8), "int16").astype(np.int64)
    even = ((words & 0xFF) ^ 0x80) - 0x80
    assert np.array_equal(even[0], low.ravel())
    assert np.array_equal((words[0] - even[0]) >> 8, high.ravel())


REFUSED = {
    "narrower": lambda s: s.set_dtype("bias", "int8"),
    "an input": lambda s: s.set_dtype("x", "int16"),
    "not divisible": lambda s: s.transform_layout("weight", ((None, 4), (None,)), (0, 1, 2)),
    "another number of axes": lambda s: s.transform_layout("weight", ((None,),), (0,)),
    "no order": lambda s: s.transform_layout("weight", ((None,), (None,)), (0, 0)),
    "unknown bounds": lambda s: (
        s.split("o", (None, 2))
        .split("k", (None, 4))
        .reorder("p", "o_0", "k_0", "o_1", "k_1")
        .decompose_reduction("acc", "k_0")
        .tensorize_pairs("weight", "o_1", "k_0", "int8")
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    with pytest.raises(ScheduleError):
        REFUSED[name](Schedule(matmul(5, 8, 6)))


def test_pairs_have_no_guarded_tail() -> None:
    schedule = Schedule(matmul(5, 8, 6, notes=NOTES)).split("o", (None, 2, 2)).split("k", (None, 4))
    schedule = schedule.reorder("p", "o_0", "k_0", "o_1", "o_2", "k_1").decompose_reduction("acc", "k_0")
    with pytest.raises(ScheduleError, match="guarded tail"):
        schedule.tensorize_pairs("weight", "o_2", "k_0", "int8")


@pytest.mark.parametrize("cpu", ["host", "cortex-m7"])
@pytest.mark.parametrize(("axes_a", "axes_b"), [((0, 1), (0, 1)), ((0, 1), (1, 0)), ((1, 0), (0, 1)), ((1, 0), (1, 0))])
def test_constant_factors_are_packed_in_any_order_of_their_axes(
    cpu: str, axes_a: tuple[int, int], axes_b: tuple[int, int]
) -> None:
    """Panels hold columns, whichever axis these are: 2 terms do not divide into panels of 4."""
    net = GraphBuilder()
    b = np.arange(8, dtype=np.float32).reshape(2, 4).transpose(axes_b)
    a = net.input("a", (16, 2) if axes_a == (0, 1) else (2, 16))
    y = net.op("matmul", a, net.constant("b", np.ascontiguousarray(b)), axes_a=axes_a, axes_b=axes_b)
    compile_graph(net.graph("product", {"y": y}), "product", target_for(cpu), make_options())
