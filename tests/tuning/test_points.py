# SPDX-License-Identifier: Apache-2.0
"""Points compute what their kernel is: drawn of every rule of a space, they run on this computer in the C of any core."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.compiler.lowering.kernel_selection import group_algorithms, select_group_schedule
from microc.compiler.tuned.records import NAME, OK, DefaultSchedule, Task, extract_kernel_graph
from microc.graph.ir import Graph, Node, TensorType
from microc.ops import registry
from microc.ops.attributes import default_attributes
from microc.ops.convolution.geometry import DEFAULTS
from microc.schedule.rules.rule import FAST_MATH
from microc.target import SPEED, target_for
from microc.tuning.meters import HostRunner
from microc.tuning.runner import draw_inputs_and_expected_outputs
from microc.tuning.search_space import Candidate, Point, Space
from tests.support.campaign import in_campaign
from tests.tuning.networks import space_of, tasks

DRAWN = 3
"""Points of every rule."""


def drawn(task: Task, rules: tuple[str, ...]) -> list[Candidate]:
    """Some points of each rule."""
    space, by_rule = space_of(task), defaultdict[str, list[Point]](list)
    for point in space.points:
        by_rule[point.rule].append(point)
    found = []
    for rule in set(rules) & by_rule.keys():
        points = random.Random(rule).sample(by_rule[rule], min(DRAWN, len(by_rule[rule])))
        found += [candidate for point in points if (candidate := space.candidate(point)) is not None]
    return found


@pytest.mark.parametrize(
    ("cpu", "rules"),
    [
        ("cortex-m55", ("matrix mve", "depthwise mve")),
        ("cortex-m4", ("matrix dsp", "depthwise dsp")),
        pytest.param("cortex-m0", ("depthwise bytes", "matrix"), marks=in_campaign),
    ],
)
def test_points_are_exact(cpu: str, rules: tuple[str, ...]) -> None:
    runner, met = HostRunner(target_for("x86-64-v2")), set[str]()
    for task in tasks(cpu):
        candidates = drawn(task, rules)
        results = runner.measure(task, candidates)
        assert [(r.candidate.point, r.status, r.detail) for r in results if r.status != OK] == []
        met |= {candidate.point.rule for candidate in candidates}
    assert met == set(rules)


def task_of(op: str, attrs: dict[str, Any], x: TensorType, consts: dict[str, Array]) -> Task:
    """A kernel of one operator on a Cortex-M4."""
    types = {"x": x} | {name: TensorType(array.shape, str(array.dtype)) for name, array in consts.items()}
    types["y"] = registry.get(op).infer(attrs, tuple(types.values()))[0]
    nodes = (Node(op, ("x", *consts), ("y",), attrs),)
    graph, target = Graph("net", ("x",), ("y",), nodes, types, consts), target_for("cortex-m4").with_features(FAST_MATH)
    lowered = group_algorithms(graph, nodes, target, NAME)
    untuned = (DefaultSchedule("speed", *select_group_schedule(lowered, target, SPEED, 1)),)
    return Task(extract_kernel_graph(graph, nodes, lowered), ("y",), op, target, 1, lowered, untuned)


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_points_of_winograd_are_exact(dtype: str) -> None:
    weight = np.random.default_rng(1).integers(-127, 128, (8, 3, 3, 8)).astype(dtype)
    attrs = {**DEFAULTS, "padding": (1, 1, 1, 1), "out_dtype": "int32" if dtype == "int8" else ""}
    check(task_of("conv2d", attrs, TensorType((1, 8, 8, 8), dtype), {"w": weight}), "winograd", "winograd floats")


@pytest.mark.parametrize("outputs", [24, 40])
def test_points_of_opened_winograd_weights_are_exact(outputs: int) -> None:
    """With 40 outputs, two rows of tiles may share the weights."""
    weight = np.random.default_rng(1).choice(np.array([-128, -127, 0, 127]), (outputs, 3, 3, 8)).astype("int8")
    attrs = {**DEFAULTS, "padding": (1, 1, 1, 1), "out_dtype": "int32", "algorithm": "winograd_opened"}
    task = task_of("conv2d", attrs, TensorType((1, 7, 8, 8), "int8"), {"w": weight})
    check(task, "winograd")


def test_points_of_the_sketch_are_exact() -> None:
    pool = registry.get("avg_pool2d")
    attrs = {**default_attributes(pool.attrs), "kernel": (2, 3), "strides": (2, 2), "padding": (0, 1, 0, 1)}
    check(task_of("avg_pool2d", attrs, TensorType((1, 8, 8, 6), "float32"), {}), "sketch")


def check(task: Task, *rules: str, count: int = DRAWN) -> None:
    candidates = drawn(task, rules)
    assert len(candidates) == count
    assert {result.status for result in HostRunner(target_for("x86-64-v2")).measure(task, candidates)} == {OK}


def test_layers_of_one_shape_have_one_key_whatever_numbers_they_compute_with() -> None:
    def key(**attrs: Any) -> str:
        known = {**default_attributes(registry.get("sum_pool2d").attrs), "kernel": (2, 2), "strides": (2, 2), **attrs}
        return task_of("sum_pool2d", known, TensorType((1, 8, 8, 6), "int8"), {}).key

    assert key(pad_value=0, offset=3) == key(pad_value=-128, offset=-70000)
    assert key(pad_value=0, offset=3) != key(pad_value=0, offset=3, kernel=(2, 3))


def test_wide_integers_between_layers_stay_in_their_dtype() -> None:
    """A product of bytes whose zero points were taken off, as ONNX Runtime's dynamic quantisation has it: sums of any numbers of
    32 bits would mean nothing, and every kernel would be called wrong."""
    matmul = registry.get("matmul")
    weight = np.random.default_rng(0).integers(-255, 256, (48, 12)).astype(np.int32)
    attrs = {**default_attributes(matmul.attrs), "out_dtype": "int32"}
    task = task_of("matmul", attrs, TensorType((1, 48), "int32"), {"w": weight})
    (given,), (wanted,) = draw_inputs_and_expected_outputs(task)
    assert np.array_equal(wanted, given.astype(np.int64) @ weight)
    (result,) = HostRunner(target_for("x86-64-v2")).measure(task, [Space(task).default])
    assert result.status == OK
