# SPDX-License-Identifier: Apache-2.0
"""Quantised operators of ONNX in integers: equal to exact arithmetic with ties to even, before and after every pass and in C."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.compiler.options import Options
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.ops import registry
from microc.ops.meaning import evaluate
from microc.ops.quantised.exact_rounding import exact_rounded_sums, find_exact_factors, is_exact_scale
from microc.transform import PASSES
from microc.transform.pass_context import PassContext, run_passes

LEVELS = np.arange(-128, 128)
PAIRS = np.repeat(LEVELS, 256).astype(np.int8)[None], np.tile(LEVELS, 256).astype(np.int8)[None]
SCALES = [
    ((0.1, 0), (0.1, 0), (0.2, 0)),  # halves
    ((0.05, 3), (0.1, -7), (0.1, 5)),
    ((0.1, 3), (0.3, -7), (0.6, 5)),  # ties, whose factors are no binary fractions
    ((0.0123, 3), (0.0345, -7), (0.04, 5)),  # as near to ties as 2**-30
    ((0.013717, -128), (0.021934, 127), (0.0288, -128)),
]


class Stages:
    """An instrument that keeps the graph of every pass."""

    def __init__(self) -> None:
        self.graphs: list[tuple[str, Graph]] = []

    def before(self, name: str, graph: Graph) -> None:
        self.graphs += [] if self.graphs else [("reading", graph)]

    def after(self, name: str, graph: Graph) -> None:
        self.graphs.append((name, graph))


def between_quantisation(
    op: str,
    attrs: Mapping[str, Attr],
    shapes: Sequence[tuple[int, ...]],
    result: tuple[int, ...],
    scales: Sequence[Any],
) -> Graph:
    """dequantize -> ``op`` -> quantize; ``scales`` are (scale, zero point) of operands and result."""
    kinds: dict[str, TensorType] = {}
    nodes = []
    for k, (shape, (scale, zero)) in enumerate(zip(shapes, scales, strict=False)):
        kinds |= {f"x{k}": TensorType(shape, "int8"), f"r{k}": TensorType(shape, "float32")}
        given: dict[str, Attr] = {"scale": (float(np.float32(scale)),), "zero_point": (zero,), "axis": None}
        nodes.append(Node("dequantize", (f"x{k}",), (f"r{k}",), given))
    kinds |= {"real": TensorType(result, "float32"), "y": TensorType(result, "int8")}
    nodes.append(
        Node(op, tuple(f"r{k}" for k in range(len(shapes))), ("real",), {**registry.get(op).defaults, **attrs})
    )
    end: dict[str, Attr] = {"scale": (float(np.float32(scales[-1][0])),), "zero_point": (scales[-1][1],), "axis": None}
    nodes.append(Node("quantize", ("real",), ("y",), {**end, "out_dtype": "int8", "rounding": "even"}))
    return Graph("net", tuple(f"x{k}" for k in range(len(shapes))), ("y",), tuple(nodes), kinds)


def check_every_stage(graph: Graph, arrays: Sequence[Array], wanted: Array) -> None:
    """Every pass, and the generated C."""
    seen, options = Stages(), Options()
    chosen = {"requantize": options.requantize, "hybrid": options.hybrid, "rounding": options.rounding}
    run_passes(graph, PASSES, PassContext(instruments=(seen,), options=chosen), PASSES)
    for name, stage in seen.graphs:
        (found,), _ = evaluate(stage, dict(zip(stage.inputs, arrays, strict=True)))
        np.testing.assert_array_equal(found.reshape(wanted.shape), wanted, err_msg=name)
    made = microc.compile(graph, check=False)(*arrays)
    np.testing.assert_array_equal(np.asarray(made).reshape(wanted.shape), wanted)


def exactly(terms: Sequence[tuple[Array, Fraction]], zero: int) -> Array:
    """The sum of x * factor by Python's integers, half to even, + zero, saturated."""
    q = math.lcm(*(factor.denominator for _, factor in terms))
    total = np.asarray(sum(np.asarray(x, object) * int(factor * q) for x, factor in terms), object)
    level, rest = total // q, total % q
    up = np.asarray((2 * rest > q) | ((2 * rest == q) & (level % 2 == 1)))
    result: Array = np.clip((level + up.astype(int)).astype(np.int64) + zero, -128, 127).astype(np.int8)
    return result


def exact(scale: float) -> Fraction:
    return Fraction(float(np.float32(scale)))


@pytest.mark.parametrize("scales", SCALES, ids=lambda scales: "-".join(str(scale) for scale, _ in scales))
@pytest.mark.parametrize("op", ["add", "sub", "mul"])
def test_all_pairs_of_bytes(op: str, scales: Any) -> None:
    (a, zero_a), (b, zero_b), (out, zero) = scales
    x, y = (PAIRS[0].astype(np.int64) - zero_a, PAIRS[1].astype(np.int64) - zero_b)
    if op == "mul":
        wanted = exactly([(x * y, exact(a) * exact(b) / exact(out))], zero)
    else:
        wanted = exactly([(x, exact(a) / exact(out)), (y, (1 if op == "add" else -1) * exact(b) / exact(out))], zero)
    graph = between_quantisation(op, {}, [(1, 65536)] * 2, (1, 65536), scales)
    check_every_stage(graph, PAIRS, wanted)


@pytest.mark.parametrize("out", [(0.1, 3), (0.06, -5), (0.0123, 100)], ids=str)
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("counts", [False, True])
def test_averages(out: tuple[float, int], padding: int, counts: bool) -> None:
    """Windows of 2 by 3, of which padding leaves 6, 4, 3 and 2 elements."""
    data = np.random.default_rng(3).integers(-128, 128, (1, 16, 16, 4)).astype(np.int8)
    side = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    x, ones = (np.pad(part, side) for part in (data.astype(np.int64) - 3, np.ones(data.shape, np.int64)))
    windows = [np.lib.stride_tricks.sliding_window_view(part, (2, 3), axis=(1, 2)) for part in (x, ones)]
    total, count = (part.sum(axis=(4, 5)) for part in windows)
    count = np.full_like(count, 6) if counts else count
    multiple = math.lcm(*np.unique(count).tolist())
    wanted = exactly([(total * (multiple // count), exact(0.1) / exact(out[0]) / multiple)], out[1])
    attrs: dict[str, Attr] = {
        "kernel": (2, 3),
        "strides": (1, 1),
        "padding": (padding,) * 4,
        "layout": "NHWC",
        "count_include_pad": counts,
    }
    graph = between_quantisation("avg_pool2d", attrs, [data.shape], wanted.shape, [(0.1, 3), out])
    check_every_stage(graph, [data], wanted)


@pytest.mark.parametrize("out", [(0.1, 3), (0.06, -5), (0.0123, 100)], ids=str)
@pytest.mark.parametrize("op", ["mean", "sum"])
def test_sums_along_axes(op: str, out: tuple[float, int]) -> None:
    data = np.random.default_rng(4).integers(-128, 128, (40, 3, 4)).astype(np.int8)
    total = (data.astype(np.int64) - 3).sum(axis=(1, 2))
    wanted = exactly([(total, exact(0.1) / exact(out[0]) / (12 if op == "mean" else 1))], out[1])
    attrs: dict[str, Attr] = {"axes": (1, 2), "keepdims": False}
    check_every_stage(between_quantisation(op, attrs, [data.shape], (40,), [(0.1, 3), out]), [data], wanted)


def test_levels_are_exact_by_any_path() -> None:
    """Ratios whose integers fit 64 bits, and others, whose numbers near ties take integers of any size."""
    x = np.arange(-4096, 4097)
    for factor in (Fraction(1, 6), Fraction(1, 2), exact(0.1) / exact(0.3), exact(0.0123) * exact(0.7) / exact(0.04)):
        wanted = [round(factor * int(each)) for each in x]
        np.testing.assert_array_equal(exact_rounded_sums(((x, factor),)), wanted)


def test_factors_are_proved() -> None:
    x = np.arange(-2000, 2001)
    for count in (3, 6, 7, 12, 36, 49):
        found = find_exact_factors(((x, Fraction(1, count)),), -128, 127)
        assert found is not None
        np.testing.assert_array_equal(
            np.clip(found.round_sums([x]), -128, 127),
            np.clip(exact_rounded_sums(((x, Fraction(1, count)),)), -128, 127),
        )
    assert find_exact_factors(((x, Fraction(1, 1 << 70)),), -128, 127) is None
    assert is_exact_scale(0.5, 2000, Fraction(1, 2), -128, 127)
    assert not is_exact_scale(0.5, 1 << 20, Fraction(1, 2), -128, 127)
