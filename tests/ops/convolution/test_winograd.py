# SPDX-License-Identifier: Apache-2.0
"""Winograd's algorithm: the identity, bounds that refuse it, the error of floats, and the cost model's choice of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from microc.base.dtypes import Array
from microc.compiler.lowering.kernel_selection import schedule_group
from microc.graph.ir import Graph, Node, TensorType
from microc.ops import registry
from microc.ops.convolution.conv2d import evaluate_conv2d_reference, infer_conv2d_types
from microc.ops.convolution.conv2d_algorithms import (
    POINTS,
    can_use_float_winograd,
    can_use_float_winograd_4x4,
    can_use_integer_winograd,
    transform_winograd_weights,
)
from microc.ops.convolution.geometry import DEFAULTS
from microc.ops.lowering import LoweredGroup
from microc.ops.registry import Case
from microc.schedule.choose import Choice
from microc.schedule.rules.rule import FAST_MATH
from microc.target import SIZE, SPEED, Goal, target_for
from tests.ops.harness import evaluate
from tests.support.campaign import examples

ATTRS: dict[str, Any] = {**DEFAULTS, "padding": (1, 1, 1, 1), "out_dtype": "int32"}
INPUT_STEP = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
OUTPUT_STEP = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])
INPUT_STEP_OF_FOUR = np.array(
    [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ]
)
OUTPUT_STEP_OF_FOUR = np.array([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]])


def by_tiles(data: Array, weight: Array) -> Array:
    """Sums of a 4 x 4 x C tile by the published formula, in integers, before the division by four."""
    tile = np.einsum("ip,jq,pqc->ijc", INPUT_STEP, INPUT_STEP, data.astype(np.int64))
    products = np.einsum(
        "ijoc,ijc->ijo", transform_winograd_weights(weight).reshape(POINTS, POINTS, *weight.shape[::3]), tile
    )
    result: Array = np.einsum("ai,bj,ijo->abo", OUTPUT_STEP, OUTPUT_STEP, products)
    return result


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32 - 1), channels=st.integers(1, 9), extreme=st.booleans())
def test_four_times_the_direct_sums(seed: int, channels: int, extreme: bool) -> None:
    dice = np.random.default_rng(seed)
    ends = np.array([-128, 127])
    shapes = ((1, 4, 4, channels), (3, 3, 3, channels))
    data, weight = (
        (dice.choice(ends, shape) if extreme else dice.integers(-128, 128, shape)).astype(np.int8) for shape in shapes
    )
    (direct,) = evaluate_conv2d_reference({**ATTRS, "padding": (0, 0, 0, 0)}, [data, weight])
    np.testing.assert_array_equal(by_tiles(data[0], weight), 4 * direct[0].astype(np.int64))


def _suits(weight: Array, bias: Array | None = None, **attrs: Any) -> bool:
    operands = [weight] if bias is None else [weight, bias]
    types = [TensorType((1, 8, 8, weight.shape[3]), "int8"), *(TensorType(a.shape, str(a.dtype)) for a in operands)]
    return can_use_integer_winograd({**ATTRS, **attrs}, types, [None, *operands])


ORDINARY = np.full((2, 3, 3, 8), 100, np.int8)


def test_what_suits() -> None:
    assert _suits(ORDINARY) and _suits(ORDINARY, np.full(2, 1 << 20, np.int32))


@pytest.mark.parametrize("attrs", [{"strides": (2, 1)}, {"dilation": (2, 2)}, {"out_dtype": "int64"}])
def test_other_forms_do_not_suit(attrs: dict[str, Any]) -> None:
    assert not _suits(ORDINARY, **attrs)


def test_sums_that_could_overflow_do_not_suit() -> None:
    """4 |Y| + |bias| must stay within 32 bits whatever the data are."""
    assert not _suits(ORDINARY, np.full(2, (1 << 31) - 1, np.int32))
    assert not _suits(np.full((1, 3, 3, 4000), 127, np.int8))
    assert _suits(np.full((1, 3, 3, 40), 127, np.int8))


@pytest.mark.parametrize("spread", [0, 3])
@pytest.mark.parametrize("channels", [1, 16, 64])
@pytest.mark.parametrize(("algorithm", "outputs"), [("winograd_floats", 2), ("winograd_four", 4)])
def test_floats_err_as_little_as_is_stated(algorithm: str, outputs: int, channels: int, spread: int) -> None:
    """``spread``: powers of ten between the sizes of numbers."""
    dice = np.random.default_rng(channels)
    shapes = ((1, 6, 10, channels), (8, 3, 3, channels))
    data, weight = ((dice.normal(size=s) * 10.0 ** dice.uniform(-spread, spread, s)).astype(np.float32) for s in shapes)
    attrs = {**DEFAULTS, "algorithm": algorithm}
    case = Case(attrs, (TensorType(data.shape, "float32"), TensorType(weight.shape, "float32")), (1,))
    (got,) = evaluate(registry.get("conv2d"), case, (data, weight))
    (exact,) = evaluate_conv2d_reference(DEFAULTS, [data.astype(np.float64), weight.astype(np.float64)])
    assert (np.abs(got - exact) <= stated_bound(np.abs(data[0]), weight, outputs) + 2.0**-24 * np.abs(exact)).all()


def stated_bound(sizes: Array, weight: Array, outputs: int) -> Array:
    """Of every output (1, H, W, O), from the sizes (H, W, C) of what it is computed from."""
    points = outputs + 2
    u = (
        np.abs(transform_winograd_weights(weight, outputs))
        .reshape(points, points, *weight.shape[::3])
        .astype(np.float64)
    )
    steps = (INPUT_STEP, OUTPUT_STEP) if outputs == 2 else (INPUT_STEP_OF_FOUR, OUTPUT_STEP_OF_FOUR)
    into, out = map(np.abs, steps)
    height, width, channels = sizes.shape
    bound, more = np.zeros((1, height - 2, width - 2, len(weight))), 8 if outputs == 2 else 16
    for y, x in np.ndindex((height - 2) // outputs, (width - 2) // outputs):
        top, left = outputs * y, outputs * x
        part = sizes[top : top + points, left : left + points].astype(np.float64)
        tile = np.einsum("ip,jq,pqc->ijc", into, into, part)
        sums = np.einsum("ai,bj,ijoc,ijc->abo", out, out, u, tile)
        bound[0, top : top + outputs, left : left + outputs] = (channels + more) * 2.0**-24 * sums
    return bound


@pytest.mark.parametrize(
    "attrs", [{"strides": (2, 1)}, {"dilation": (2, 2)}, {"groups": 8}, {"out_dtype": "int32"}], ids=str
)
def test_which_floats_suit(attrs: dict[str, Any]) -> None:
    weight = np.ones((8, 3, 3, 8 // attrs.get("groups", 1)), np.float32)
    types = [TensorType((1, 8, 8, 8), "float32"), TensorType(weight.shape, "float32")]
    assert not can_use_float_winograd({**DEFAULTS, **attrs}, types, [None, weight])
    if not attrs.get("groups"):
        assert can_use_float_winograd(DEFAULTS, types, [None, weight]) and not can_use_float_winograd(
            DEFAULTS, types, [None, None]
        )


@pytest.mark.parametrize(("size", "suits"), [(10, True), (8, False), (7, False)])
def test_tiles_of_four_fill_the_image(size: int, suits: bool) -> None:
    weight = np.ones((8, 3, 3, 8), np.float32)
    types = [TensorType((1, size, 6, 8), "float32"), TensorType(weight.shape, "float32")]
    assert can_use_float_winograd_4x4(DEFAULTS, types, [None, weight]) is suits


def rule(cpu: str, size: bool, shape: tuple[int, ...], outputs: int, dtype: str = "int8", math: bool = True) -> str:
    """The rule whose schedule is taken for a convolution with padding, for speed or for size."""
    return choice(cpu, SIZE if size else SPEED, shape, outputs, dtype, math)[1].schedule.rule


def choice(
    cpu: str, goal: Goal, shape: tuple[int, ...], outputs: int, dtype: str = "int8", math: bool = True
) -> tuple[LoweredGroup, Choice]:
    """The group and the choice for a convolution with padding."""
    integers = dtype == "int8"
    weight = np.random.default_rng(1).integers(-127, 128, (outputs, 3, 3, shape[3])).astype(dtype)
    weight = (
        weight
        if integers
        else weight * np.float32(np.pi) + np.sqrt(np.arange(outputs, dtype=dtype)).reshape(-1, 1, 1, 1)
    )
    attrs = ATTRS if integers else {**ATTRS, "out_dtype": ""}
    types = {"x": TensorType(shape, dtype), "w": TensorType(weight.shape, dtype)}
    types["y"] = infer_conv2d_types(attrs, (types["x"], types["w"]))[0]
    node = Node("conv2d", ("x", "w"), ("y",), attrs)
    graph = Graph("net", ("x",), ("y",), (node,), types, {"w": weight})
    target = target_for(cpu).with_features(FAST_MATH) if math else target_for(cpu)
    return schedule_group(graph, (node,), target, goal, "kernel")


def test_the_cost_model_takes_it_where_it_pays() -> None:
    """For speed on a core with DSP instructions, with channels enough; never for size."""
    assert rule("cortex-m4", False, (1, 16, 16, 16), 16) == "winograd"
    assert rule("cortex-m4", True, (1, 16, 16, 16), 16) != "winograd"
    assert rule("cortex-m3", False, (1, 16, 16, 16), 16) != "winograd"
    assert rule("cortex-m4", False, (1, 16, 16, 3), 16) != "winograd"


@pytest.mark.parametrize(
    ("goal", "shape", "outputs", "algorithm"),
    [
        (SPEED, (1, 8, 8, 64), 64, "winograd"),
        (Goal("balanced", 20.0), (1, 8, 8, 64), 64, "winograd_opened"),
        (Goal("balanced", 20.0), (1, 16, 16, 32), 32, "winograd"),
    ],
)
def test_weights_are_opened_where_many_channels_share_a_small_image(
    goal: Goal, shape: tuple[int, ...], outputs: int, algorithm: str
) -> None:
    """Stored weights take more flash; opened ones of a large image take too much workspace."""
    assert choice("cortex-m4", goal, shape, outputs)[0].algorithm == algorithm


@pytest.mark.parametrize("cpu", ["cortex-m4", "cortex-m7", "x86-64-v3", "x86-64-v4", "aarch64"])
def test_floats_take_it_where_a_multiply_add_is_one_instruction(cpu: str) -> None:
    assert rule(cpu, False, (1, 16, 16, 16), 16, "float32") == "winograd floats"
    assert rule(cpu, True, (1, 16, 16, 16), 16, "float32") != "winograd floats"
    assert rule(cpu, False, (1, 16, 16, 1), 16, "float32") != "winograd floats"
    assert rule(cpu, False, (1, 16, 16, 16), 16, "float32", math=False) != "winograd floats"


@pytest.mark.parametrize("cpu", ["cortex-m3", "cortex-m55", "cortex-m0"])
def test_other_cores_do_not(cpu: str) -> None:
    assert rule(cpu, False, (1, 16, 16, 16), 16, "float32") != "winograd floats"
