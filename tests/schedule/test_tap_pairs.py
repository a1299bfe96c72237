# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolutions by pairs of taps, channels in the lanes of vectors: the same integers as the reference."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from microc.errors import ScheduleError
from microc.schedule.identities import intrinsic_functions
from microc.schedule.primitives.tensorize import pack_tap_words
from microc.schedule.rules import OURS
from microc.schedule.schedule import Schedule, replay_trace, trace_from_json, trace_to_json
from microc.target import SPEED, target_for
from microc.tir import ir
from microc.tir.interp import run
from microc.tir.lower import lower
from microc.tir.rewrite import walk_all_exprs
from microc.tir.verify import verify
from tests.schedule.functions import matmul, schedule_kernel
from tests.schedule.test_depthwise import SAME, Layer, arguments, reference
from tests.support.native import UNDEFINED, build

V3 = target_for("x86-64-v3")
VECTORS = next(rule for rule in OURS if rule.name == "depthwise vectors")
LAYERS: dict[str, Layer] = {
    "3x3": Layer((5, 6, 8), (3, 3), SAME),
    "stride 2": Layer((7, 9, 8), (3, 3), (0, 0, 1, 1), strides=(2, 2), relu=False),
    "5x5": Layer((6, 5, 4), (5, 5), (2, 2, 2, 2), relu=False),
    "even taps": Layer((6, 7, 4), (4, 2), (2, 0, 1, 1)),
    "long": Layer((9, 1, 4), (7, 1)),
    "wide": Layer((1, 11, 8), (1, 7), (0, 3, 0, 3)),
    "one tap": Layer((2, 3, 4), (1, 1)),
    "dilated": Layer((8, 9, 4), (3, 3), (2, 1, 2, 1), dilation=(2, 1)),
    "batch": Layer((4, 4, 4), (3, 3), SAME, batch=2),
    "unsigned": Layer((5, 6, 8), (3, 3), SAME, dtype="uint8"),
    "16 bits": Layer((5, 6, 4), (3, 3), SAME, dtype="int16"),
    "no bias": Layer((4, 5, 4), (2, 3), bias=False),
}


def paired(group_func: ir.PrimFunc) -> Schedule:
    start = Schedule(group_func)
    assert VECTORS.applies_to(start, V3)
    made = VECTORS.schedule(start, V3, {"pixels": 4, "pairs": True})
    assert made is not None
    return made


@pytest.mark.parametrize("name", LAYERS)
def test_pairs_are_exact(name: str, tmp_path: Path) -> None:
    graph, group = LAYERS[name].group()
    schedule = paired(group.func)
    assert replay_trace(group.func, trace_from_json(trace_to_json(schedule.trace))).func == schedule.func
    func = lower(schedule.func)
    verify(func, tables=())
    x, place = LAYERS[name].input(), len(group.params)
    wanted = reference(graph, x)
    interpreted, compiled = (arguments(group, schedule, func, x) for _ in range(2))
    run(func, interpreted, intrinsic_functions())
    library = build([func], tmp_path, UNDEFINED)
    library.call_kernel(*(ctypes.c_void_p(np.ascontiguousarray(a).ctypes.data) for a in compiled))
    for arrays in (interpreted, compiled):
        np.testing.assert_array_equal(arrays[place].reshape(-1), wanted.reshape(-1))


def test_words_of_data_serve_neighbours() -> None:
    """Three rows by three columns for four outputs: six columns of words, and of rows that are left."""
    _, group = Layer((3, 4, 8), (3, 3), SAME).group()
    calls = [e for e in walk_all_exprs(lower(paired(group.func).func).body) if isinstance(e, ir.Call)]
    count = {name: sum(e.name == f"{name}_i32x8" for e in calls) for name in ("dot2", "or", "mul")}
    assert count == {"dot2": 4 * 6, "or": 6, "mul": 0}


def test_a_core_takes_pairs_where_they_cost_less() -> None:
    _, group = LAYERS["3x3"].group()
    taken = {
        cpu: "tensorize_taps"
        in {step.primitive for step in schedule_kernel(group.func, "conv2d", target_for(cpu)).trace}
        for cpu in ("x86-64-v2", "x86-64-v3", "x86-64-v4-vnni", "aarch64", "wasm-simd128", "cortex-m55")
    }
    assert [cpu for cpu, pairs in taken.items() if pairs] == ["x86-64-v2", "x86-64-v3", "x86-64-v4-vnni"]


@pytest.mark.parametrize("layer", [Layer((5, 6, 8), (3, 3), SAME, times=2), Layer((12, 12, 8), (7, 7))])
def test_others_have_none(layer: Layer) -> None:
    """Several outputs of a channel lie in other lanes than it; of many taps a row is written out."""
    _, group = layer.group()
    start = Schedule(group.func)
    assert [choice["pairs"] for choice in VECTORS.compared_decisions(start, V3, SPEED)] == [False]
    assert {point["pairs"] for point in VECTORS.searched_decisions(start, V3, SPEED)} == {False}


def test_a_search_tries_both() -> None:
    _, group = LAYERS["3x3"].group()
    start = Schedule(group.func)
    assert [choice["pairs"] for choice in VECTORS.compared_decisions(start, V3, SPEED)] == [True]
    assert {point["pairs"] for point in VECTORS.searched_decisions(start, V3, SPEED)} == {True, False}


@pytest.mark.parametrize("taps", [1, 2, 3])
def test_words_hold_both_weights(taps: int) -> None:
    weights = np.random.default_rng(taps).integers(-128, 128, (2, taps, 5)).astype(np.int8)
    halves = pack_tap_words(weights, 1).view(np.int16).reshape(2, -1, 5, 2).transpose(0, 1, 3, 2).reshape(2, -1, 5)
    np.testing.assert_array_equal(halves[:, :taps], weights)
    assert not halves[:, taps:].any()


REFUSED: dict[str, Callable[[Schedule], Schedule]] = {
    "no such block": lambda s: s.tensorize_taps("sums", "weight", 1),
    "no constant": lambda s: s.tensorize_taps("acc", "x", 1),
    "no taps": lambda s: s.tensorize_taps("acc", "weight", 0),
    "no such axis": lambda s: s.tensorize_taps("acc", "weight", 2),
    "split": lambda s: s.split("k", (None, 4)).tensorize_taps("acc", "weight", 1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_teach(name: str) -> None:
    with pytest.raises(ScheduleError) as refusal:
        REFUSED[name](Schedule(matmul(5, 8, 6)))
    assert refusal.value.hint
