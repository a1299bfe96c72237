# SPDX-License-Identifier: Apache-2.0
"""Orders of axes, against numpy."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from microc.graph.ir import Quant, TensorType
from microc.transform.transposes import (
    compose_axes,
    invert_axes,
    keeps_memory_order,
    move_transpose_through_reshape,
    permute_items,
    permute_type,
    transpose_array,
)

shapes = st.lists(st.sampled_from([1, 1, 2, 3, 4, 6]), min_size=1, max_size=5).map(tuple)


@st.composite
def transposed(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = draw(shapes)
    return shape, tuple(draw(st.permutations(range(len(shape)))))


@st.composite
def reshaped(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """A shape, an order, and another shape of as many elements: axes split and merged at random."""
    shape, axes = draw(transposed())
    factors = [f for extent in permute_items(shape, axes) for f in {6: (2, 3), 4: (2, 2)}.get(extent, (extent,))]
    wanted, current = [], 1
    for factor in factors:
        current *= factor
        if draw(st.booleans()):
            wanted.append(current)
            current = 1
            wanted += [1] * draw(st.sampled_from([0, 0, 1]))
    return shape, axes, (*wanted, current)


def numbers(shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.arange(prod(shape)).reshape(shape)


@given(transposed())
def test_inverse_and_composition(what: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    shape, axes = what
    x = numbers(shape)
    np.testing.assert_array_equal(x.transpose(axes).transpose(invert_axes(axes)), x)
    second = axes[::-1]
    np.testing.assert_array_equal(x.transpose(compose_axes(axes, second)), x.transpose(axes).transpose(second))
    assert permute_items(shape, axes) == x.transpose(axes).shape


@given(transposed())
def test_keeping_memory_means_being_a_reshape(what: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    shape, axes = what
    x = numbers(shape)
    assert keeps_memory_order(shape, axes) == np.array_equal(x.transpose(axes).reshape(-1), x.reshape(-1))


@given(reshaped())
def test_a_transposition_moves_through_a_reshape(
    what: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
) -> None:
    shape, axes, wanted = what
    x = numbers(shape)
    found = move_transpose_through_reshape(shape, axes, wanted)
    assert found is not None
    first, middle, second = found
    np.testing.assert_array_equal(
        x.transpose(first).reshape(middle).transpose(second), x.transpose(axes).reshape(wanted)
    )


@pytest.mark.parametrize(
    ("shape", "axes", "wanted", "found"),
    [
        ((1, 8, 8, 6), (0, 3, 1, 2), (1, 2, 3, 8, 8), ((0, 1, 2, 3), (1, 8, 8, 2, 3), (0, 3, 4, 1, 2))),
        ((1, 4, 5, 6), (0, 3, 1, 2), (1, 6, 20), ((0, 1, 2, 3), (1, 20, 6), (0, 2, 1))),
        ((1, 1, 5, 6), (0, 3, 1, 2), (1, 6, 5), ((0, 1, 2, 3), (1, 5, 6), (0, 2, 1))),
        (
            (1, 4, 5, 3, 2, 2),
            (0, 3, 1, 4, 2, 5),
            (1, 3, 8, 10),
            ((0, 1, 4, 2, 5, 3), (1, 8, 10, 3), (0, 3, 1, 2)),
        ),
    ],
    ids=["channel shuffle", "pixels become a row", "one axis less", "depth to space"],
)
def test_what_networks_do(
    shape: tuple[int, ...], axes: tuple[int, ...], wanted: tuple[int, ...], found: tuple[object, ...]
) -> None:
    assert move_transpose_through_reshape(shape, axes, wanted) == found


def test_a_reshape_that_mixes_axes_leaves_the_order_before_it() -> None:
    assert move_transpose_through_reshape((2, 3), (1, 0), (2, 3)) == ((1, 0), (2, 3), (0, 1))
    assert move_transpose_through_reshape((0,), (0,), (0, 5)) is None


def test_scales_move_with_their_axis() -> None:
    kind = TensorType((2, 3, 4), "int8", Quant((1.0, 2.0, 3.0), (0, 0, 0), 1), "HWC")
    assert permute_type(kind, (1, 2, 0)) == TensorType((3, 4, 2), "int8", Quant((1.0, 2.0, 3.0), (0, 0, 0), 0))


def test_broadcast_operands_get_axes_in_front() -> None:
    array = transpose_array(np.arange(6).reshape(2, 3), (0, 2, 3, 1))
    assert array.shape == (1, 2, 3, 1) and array.flags.c_contiguous
