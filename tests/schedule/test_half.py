# SPDX-License-Identifier: Apache-2.0
"""Products in float16 on cores that have vectors of halves: the same bits however they are computed, within the bound."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array, to_numpy
from microc.graph.ir import Graph, Node, TensorType
from microc.isa.vocabulary.matrix_products import HALF_PRODUCTS_LANES, HALF_SHAPES
from microc.ops.convolution.geometry import DEFAULTS
from microc.ops.lowering import LoweredGroup, lower_group
from microc.ops.matrix.gemm import RUN
from microc.ops.registry import get
from microc.schedule.identities import intrinsic_functions
from microc.schedule.rules.matrix import choose_float16_rows_and_vectors
from microc.schedule.rules.rule import product_multiples
from microc.schedule.schedule import Schedule, replay_trace
from microc.target import target_for
from microc.tir import ir
from microc.tir.interp import run
from microc.tir.lower import lower
from microc.tir.rewrite import walk_all_exprs
from microc.tir.verify import verify
from tests.schedule.functions import schedule_kernel
from tests.support.native import build, call

M55 = target_for("cortex-m55")
BOUND = (RUN + 2) * 2.0**-11
LAYERS: dict[str, tuple[Any, ...]] = {
    "pointwise": ((1, 5, 5, 64), 16, (1, 1), (0, 0, 0, 0), (1, 1)),
    "rows over": ((1, 7, 1, 24), 32, (1, 1), (0, 0, 0, 0), (1, 1)),
    "first layer": ((1, 9, 8, 3), 8, (3, 3), (1, 1, 1, 1), (2, 2)),
    "padded": ((1, 6, 5, 8), 24, (3, 3), (1, 1, 1, 1), (1, 1)),
    "zeros behind": ((1, 4, 3, 37), 8, (1, 1), (0, 0, 0, 0), (1, 1)),
    "one pixel": ((1, 1, 1, 50), 64, (1, 1), (0, 0, 0, 0), (1, 1)),
    "depthwise": ((1, 6, 5, 16), 16, (3, 3), (1, 1, 1, 1), (1, 1), 16),
    "depthwise of two": ((1, 7, 9, 8), 8, (3, 3), (0, 0, 1, 1), (2, 2), 8),
    "depthwise of a row": ((1, 3, 11, 8), 8, (1, 3), (0, 1, 0, 1), (1, 1), 8),
}


@cache
def layer(name: str) -> tuple[Graph, LoweredGroup, Array]:
    """A convolution with a bias and a ReLU, and its data."""
    shape, channels, kernel, padding, strides, *rest = LAYERS[name]
    groups = rest[0] if rest else 1
    dice = np.random.default_rng(len(name))
    consts: dict[str, Array] = {
        "w": dice.normal(size=(channels, *kernel, shape[-1] // groups)).astype(np.float32),
        "b": dice.normal(size=channels).astype(np.float32),
    }
    attrs = {**DEFAULTS, "padding": padding, "strides": strides, "groups": groups, "algorithm": "half"}
    types = {"x": TensorType(shape, "float32"), **{n: TensorType(c.shape, "float32") for n, c in consts.items()}}
    (made,) = get("conv2d").infer(attrs, [types[name] for name in "xwb"])
    nodes = (Node("conv2d", ("x", "w", "b"), ("y",), attrs), Node("relu", ("y",), ("z",), {}))
    graph = Graph("g", ("x",), ("z",), nodes, {**types, "y": made, "z": made}, consts)
    x = dice.normal(size=shape).astype(np.float32)
    return graph, lower_group(graph, nodes, product_multiples(M55), "layer"), x


def given(group: LoweredGroup, schedule: Schedule, func: ir.PrimFunc, x: Array) -> list[Array]:
    """Arguments for all parameters."""
    found: list[Array] = []
    for buffer, param in zip(group.func.params, group.params, strict=False):
        known = param.array is not None
        found.append(schedule.packed(buffer, param.array) if known else x.reshape(buffer.shape))  # type: ignore[arg-type]
    return found + [np.zeros(p.shape, to_numpy(p.dtype)) for p in func.params[len(found) :]]


def reference(graph: Graph, x: Array, attrs: Mapping[str, object], *, sizes: bool) -> Array:
    """The convolution in float64, or the sum of its terms' sizes."""
    arrays = [x, graph.consts["w"], graph.consts["b"]]
    kinds = [np.abs(a) if sizes else a for a in arrays[:2]]
    operands = [a.astype(np.float64) for a in (kinds if sizes else arrays)]
    (found,) = get("conv2d").reference(attrs, operands)
    return found if sizes else np.maximum(found, 0)


@pytest.mark.parametrize("name", LAYERS)
def test_sums_are_the_same_everywhere_and_within_the_bound(name: str, tmp_path: Path) -> None:
    graph, group, x = layer(name)
    schedule = schedule_kernel(group.func, "conv2d", M55)
    assert schedule.rule == ("window half" if "depthwise" in name else "matrix half")
    assert replay_trace(schedule.start, schedule.trace).func == schedule.func
    func = lower(schedule.func)
    verify(func, tables=())
    calls = {e.name for e in walk_all_exprs(func.body) if isinstance(e, ir.Call)}
    assert any(call.startswith("half_") for call in calls) and "fma" not in calls
    results = []
    for each in (group.func, schedule.func, func):
        arrays = given(group, schedule if each is not group.func else Schedule(group.func), each, x)
        run(each, arrays, intrinsic_functions())
        results.append(arrays[len(group.params)])
    arrays = given(group, schedule, func, x)
    results.append(call(build([func], tmp_path, cpu="cortex-m55"), func, arrays)[len(group.params)])
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    attrs = dict(graph.nodes[0].attrs)
    want, sizes = (reference(graph, x, attrs, sizes=flag).reshape(results[0].shape) for flag in (False, True))
    share = np.abs(results[0] - want) / sizes
    assert 0 < share.max() < BOUND / 4  # roundings go either way


def test_tiles() -> None:
    assert (
        choose_float16_rows_and_vectors(6, 64) == (3, 2)
        and choose_float16_rows_and_vectors(1, 64) == (1, 4)
        and choose_float16_rows_and_vectors(100, 8) == (4, 1)
    )
    assert choose_float16_rows_and_vectors(7, 24) in ((2, 3), (3, 1)) and choose_float16_rows_and_vectors(2, 40) == (
        2,
        1,
    )
    assert all(
        choose_float16_rows_and_vectors(rows, vectors * HALF_PRODUCTS_LANES) == (rows, vectors) or rows * vectors < 6
        for rows, vectors in HALF_SHAPES
    )


def test_what_is_beyond_float16_is_infinite() -> None:
    """Activations and sums of a run; weights keep a layer in float32."""
    _, group, x = layer("pointwise")
    schedule = schedule_kernel(group.func, "conv2d", M55)
    func = lower(schedule.func)
    x = x.copy()
    x[0, 0, 0, 0], x[0, 0, 1] = 70000, 20000
    arrays = given(group, schedule, func, x)
    run(func, arrays, intrinsic_functions())
    result = arrays[len(group.params)]
    assert set(np.unique(np.isfinite(result[0]))) <= {False, True} and not np.isfinite(result[0]).all()
    assert not np.isfinite(result[1]).all() and np.isfinite(result[2:]).all()
