"""Winograd's algorithm in integers: the identity, the bounds that refuse it, and the cost model's choice of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from microc.driver.compile.kernel import schedule_group
from microc.dtypes import Array
from microc.graph.ir import Graph, Node, TensorType
from microc.ops.convolution.conv2d import infer, reference
from microc.ops.convolution.geometry import DEFAULTS
from microc.ops.convolution.winograd import POINTS, suits_winograd, transformed_weights
from microc.target import SIZE, SPEED, target_for

ATTRS: dict[str, Any] = {**DEFAULTS, "padding": (1, 1, 1, 1), "out_dtype": "int32"}
INPUT_STEP = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
OUTPUT_STEP = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])


def by_tiles(data: Array, weight: Array) -> Array:
    """Sums of a 4 x 4 x C tile by the published formula, in integers, before the division by four."""
    tile = np.einsum("ip,jq,pqc->ijc", INPUT_STEP, INPUT_STEP, data.astype(np.int64))
    products = np.einsum("ijoc,ijc->ijo", transformed_weights(weight).reshape(POINTS, POINTS, *weight.shape[::3]), tile)
    result: Array = np.einsum("ai,bj,ijo->abo", OUTPUT_STEP, OUTPUT_STEP, products)
    return result


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), channels=st.integers(1, 9), extreme=st.booleans())
def test_four_times_the_direct_sums(seed: int, channels: int, extreme: bool) -> None:
    dice = np.random.default_rng(seed)
    ends = np.array([-128, 127])
    shapes = ((1, 4, 4, channels), (3, 3, 3, channels))
    data, weight = (
        (dice.choice(ends, shape) if extreme else dice.integers(-128, 128, shape)).astype(np.int8) for shape in shapes
    )
    (direct,) = reference({**ATTRS, "padding": (0, 0, 0, 0)}, [data, weight])
    np.testing.assert_array_equal(by_tiles(data[0], weight), 4 * direct[0].astype(np.int64))


def _suits(weight: Array, bias: Array | None = None, **attrs: Any) -> bool:
    operands = [weight] if bias is None else [weight, bias]
    types = [TensorType((1, 8, 8, weight.shape[3]), "int8"), *(TensorType(a.shape, str(a.dtype)) for a in operands)]
    return suits_winograd({**ATTRS, **attrs}, types, [None, *operands])


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


def test_the_cost_model_takes_it_where_it_pays() -> None:
    """For speed on a core with DSP instructions, with channels enough; never for size."""

    def rule(cpu: str, size: bool, shape: tuple[int, ...], outputs: int) -> str:
        weight = np.random.default_rng(1).integers(-127, 128, (outputs, 3, 3, shape[3])).astype(np.int8)
        types = {"x": TensorType(shape, "int8"), "w": TensorType(weight.shape, "int8")}
        types["y"] = infer(ATTRS, (types["x"], types["w"]))[0]
        node = Node("conv2d", ("x", "w"), ("y",), ATTRS)
        graph = Graph("net", ("x",), ("y",), (node,), types, {"w": weight})
        return schedule_group(graph, (node,), target_for(cpu), SIZE if size else SPEED, "kernel")[1].schedule.rule

    assert rule("cortex-m4", False, (1, 16, 16, 16), 16) == "winograd"
    assert rule("cortex-m4", True, (1, 16, 16, 16), 16) != "winograd"
    assert rule("cortex-m3", False, (1, 16, 16, 16), 16) != "winograd"
    assert rule("cortex-m4", False, (1, 16, 16, 3), 16) != "winograd"
