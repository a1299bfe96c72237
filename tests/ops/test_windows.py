# SPDX-License-Identifier: Apache-2.0
"""Windows along axes, and the products that layers declare, counted tap by tap."""

from __future__ import annotations

from itertools import product as combinations

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.ops import registry
from microc.ops.registry import Case, OpDef
from microc.ops.windows import WindowAxis, window_axes
from tests.ops.harness import attributes, reference
from tests.support.campaign import table_row

AXES = [
    WindowAxis(extent, taps, stride, dilation, before, after)
    for extent, taps, stride, dilation, before, after in combinations(
        (1, 4, 7), (1, 2, 3), (1, 2, 3), (1, 2), (0, 1, 3), (0, 2)
    )
]
LAYERS = [
    pytest.param(definition, case, id=f"{name}-{number}")
    for name, definition in registry.registry().items()
    if definition.product is not None
    for number, case in enumerate(definition.cases())
    if not case.attrs.get("algorithm")
]


def taps_inside(axis: WindowAxis) -> Array:
    """For each window, tap and element of the data: True if the tap reads the element."""
    windows, taps, elements = np.ix_(np.arange(axis.count), np.arange(axis.taps), np.arange(axis.extent))
    return np.asarray(windows * axis.stride + taps * axis.dilation - axis.before == elements)


def test_window_axis_agrees_with_its_taps_counted_one_by_one() -> None:
    for axis in AXES:
        if axis.count > 0:
            with table_row(axis):
                check_window_axis(axis)


def check_window_axis(axis: WindowAxis) -> None:
    inside = np.asarray(taps_inside(axis).any(axis=2))
    assert axis.reads_padding == (not inside.all())
    if axis.dilation == 1:  # the taps of other windows may be on both sides of the data
        assert axis.has_empty_window == (not inside.any(axis=1).all())
    spans = {(row.argmax(), row.sum() + row.argmax()) if row.any() else None for row in inside}
    assert {tuple(span) if span[0] < span[1] else None for span in axis.distinct_tap_spans().tolist()} == spans
    padded = np.pad(np.arange(axis.extent), (axis.before, axis.after), constant_values=-1)
    for tap in range(axis.taps):
        elements = padded[axis.padded_slice(tap)]
        assert [*elements] == [int(row.argmax()) if row.any() else -1 for row in taps_inside(axis)[:, tap]]


def test_padding_before_all_axes_precedes_padding_after_them() -> None:
    rows, columns = window_axes((5, 6), (3, 2), (2, 1), (1, 0, 2, 3))
    assert (rows.before, rows.after, columns.before, columns.after) == (1, 2, 0, 3)
    assert (rows.count, columns.count) == (3, 8)


@pytest.mark.parametrize(("definition", "case"), LAYERS)
def test_product_of_a_layer_agrees_with_its_reference(definition: OpDef, case: Case) -> None:
    """Of ones, a layer computes the number of products in each sum."""
    assert definition.product is not None
    product = definition.product(attributes(definition, case), case.types)
    arrays = [np.ones(kind.shape, kind.dtype) for kind in case.types[:2]]
    (result,) = reference(definition, Case({**case.attrs, "pad_value": 0}, case.types[:2]), arrays)
    weights = np.moveaxis(arrays[1], product.channel_axis, -1)
    counts = np.full((), weights.shape[-1])
    for axis in product.windows:
        inside = taps_inside(axis)
        counts = np.multiply.outer(counts, inside.sum(axis=(0, 1) if product.transposed else (1, 2)))
    sums = np.moveaxis(result, product.channel_axis, -1)
    assert sums.shape[-1] == len(weights)
    assert np.array_equal(sums, np.broadcast_to(counts[..., np.newaxis], sums.shape))
    channels = np.moveaxis(arrays[0], product.channel_axis, -1).shape[-1]
    assert channels == product.groups * weights.shape[-1]
