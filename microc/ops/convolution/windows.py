"""Convolution whose windows slide over the rows of an image, for cores that read what they multiply where it lies.

A row of a window's taps is one run of memory, KW * C long; ``acc`` (N, H, W, O) sums along rows of the window and along that run.
Nothing is gathered: neighbouring windows share what they read. Only a border is made: ``padded`` (N, H + padding,
(W + padding) * C). Runs of bytes are whole words: where they are not, zeros follow the weights, and the rows are longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from microc import te
from microc.ops.convolution.geometry import Geometry, geometry
from microc.ops.convolution.input import bordered, within
from microc.ops.matrix.gemm import (
    columns_bias,
    fits_unsigned,
    padded_units,
    product_notes,
    start,
)
from microc.ops.multiples import WORD
from microc.ops.registry import OpCall, Operand
from microc.tir import ir
from microc.tir.ir import Expr, Var
from microc.tir.names import ACC, PADDED, WINDOWS

BYTES = ("int8", "uint8")
LEAST = 8
"""Outputs of a row from which on their tiles are as large as those of pixels that are gathered."""


def suits_windows(call: OpCall) -> bool:
    """Whether taps lie side by side, constant weights multiply floats by floats, or bytes by bytes."""
    data, weight, _ = call.weighted
    attrs = call.attrs
    if weight.data is None or not call.constant or attrs.get("open") or attrs.get("groups", 1) != 1:
        return False
    g = geometry(attrs, data.type.shape, weight.type.shape)
    if g.direct or g.dilation[1] > 1 or g.kernel == (1, 1) or g.out_width < LEAST:
        return False
    kinds = (data.type.dtype, weight.type.dtype, attrs.get("out_dtype") or data.type.dtype)
    return (kinds[0] in BYTES and kinds[1:] == ("int8", "int32")) or set(kinds) == {"float32"}


def suits_unsigned_windows(call: OpCall) -> bool:
    """The same of int8 data that may be stored as uint8, 128 more."""
    return suits_windows(call) and fits_unsigned(call)


def window_product(call: OpCall, attrs: Mapping[str, Any], g: Geometry, *, unsigned: bool = False) -> te.Tensor:
    """``acc``; columns of zeros that were added to fill vectors are left out of what follows."""
    data, weight, bias = call.weighted
    dtype = attrs["out_dtype"] or data.type.dtype
    assert weight.data is not None
    taps = g.kernel[1] * g.channels
    run = -(-taps // WORD) * WORD if data.type.dtype in BYTES else taps
    rows = _rows(g, data, attrs["pad_value"], run - taps, unsigned)
    more = padded_units(call, g.out_channels) - g.out_channels
    notes = (*product_notes(data, weight, bias), (WINDOWS, 1))
    zeros = ((0, more), (0, 0), (0, run - taps))
    by_row = weight.data.reshape(g.out_channels, g.kernel[0], taps)
    factors = weight.packed(np.pad(by_row, zeros).reshape(g.out_channels + more, -1))
    first = columns_bias(call, more, unsigned=unsigned)
    ky, k = te.reduce_axis(g.kernel[0], "ky"), te.reduce_axis(run, "k")
    (down, across), step = g.strides, g.dilation[0]

    def element(n: Var, y: Var, x: Var, o: Var) -> Expr:
        value = rows[n, y * down + ky.var * step, x * (across * g.channels) + k.var]
        product = ir.cast(dtype, value) * ir.cast(dtype, factors[o, ky.var * run + k.var])
        return te.sum_reduce(product, ky, k, init=start(first, o, dtype))

    shape = (g.batch, g.out_height, g.out_width, g.out_channels)
    total = te.compute((*shape[:3], shape[3] + more), element, ACC, ("n", "y", "x", "o"), notes)
    if not more:
        return total
    return te.compute(shape, lambda n, y, x, o: total[n, y, x, o], "wanted", ("n", "y", "x", "o"))


def _rows(g: Geometry, data: Operand, pad_value: int | float, more: int, unsigned: bool) -> te.Tensor:
    """The image's rows with their border and ``more`` elements; the data itself where there are none, and bytes stay what they
    are."""
    row_size, (top, left, bottom, right) = g.width * g.channels, g.padding
    source = data.tensor((g.batch, g.height, row_size))
    if not any(g.padding) and not more and not unsigned:
        return source

    def element(n: Var, y: Var, i: Var) -> Expr:
        row: Expr = y - top if top else y
        place: Expr = i - left * g.channels if left else i
        checks = within(row, g.height, -top, g.height - 1 + bottom)
        checks += within(place, row_size, -left, row_size - 1 + right * g.channels + more)
        return bordered(ir.all_of(checks), source[n, row, place], pad_value, unsigned)

    extents = (g.batch, g.height + top + bottom, (g.width + left + right) * g.channels + more)
    return te.compute(extents, element, PADDED, ("n", "y", "i"))
