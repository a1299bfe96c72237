"""How a convolution reads its input: gathered pixel by pixel (``patch``), or with its border (``padded``)."""

from __future__ import annotations

import numpy as np

from microc import te
from microc.ops.convolution.geometry import Geometry
from microc.ops.multiples import WORD
from microc.ops.registry import Operand
from microc.tir import ir
from microc.tir.ir import Expr, Var
from microc.tir.names import PADDED, PATCH


def within(index: Expr, extent: int, low: int, high: int) -> list[Expr]:
    """The checks that ``index``, known within low..high, needs to lie in 0..extent - 1."""
    return [*([index >= 0] if low < 0 else []), *([index < extent] if high >= extent else [])]


def _split(index: Expr, *extents: int) -> list[Expr]:
    """A flat index taken apart along ``extents`` (row-major); axes of one element cost nothing."""
    found: list[Expr] = []
    rest: Expr = index
    outer = int(np.prod(extents))
    for extent in extents:
        outer //= extent
        found.append(ir.const(0, "int32") if extent == 1 else (rest // outer if outer > 1 else rest))
        rest = rest % outer if extent > 1 and outer > 1 else rest
    return found


def as_unsigned(value: Expr) -> Expr:
    """An int8 number as uint8, 128 more."""
    return ir.cast("uint8", ir.cast("int32", value) + 128)


def bordered(inside: Expr | None, value: Expr, pad_value: int | float, unsigned: bool) -> Expr:
    """An element, or what padding holds where it does not lie ``inside``."""
    border = ir.const(pad_value + 128 if unsigned else pad_value, "uint8" if unsigned else value.dtype)
    value = as_unsigned(value) if unsigned else value
    return value if inside is None else ir.select(inside, value, border)


def patch(
    g: Geometry,
    data: Operand,
    pad_value: int | float,
    depth: int,
    *,
    even: bool = False,
    unsigned: bool = False,
    dtype: str = "",
) -> te.Tensor:
    """``patch`` (P, K): the inputs of every pixel, and ``pad_value`` up to ``depth``; (P, G, K) in several groups. Data is viewed
    as rows of W * C. With ``even`` an odd number of pixels is followed by the last one again; with ``unsigned`` int8 data and
    ``pad_value`` are stored as uint8, 128 more; with ``dtype`` data is rounded to that.

    A row of taps is one run of memory, with a border that starts anywhere in it; taps of whole words, and taps that are
    apart, are runs of C of their own instead, which lie inside or outside as a whole.
    """
    row_size = g.width * g.channels
    rows = data.tensor((g.batch, g.height, row_size))
    (stride_y, stride_x), (step_y, step_x), (top, left, _, _) = g.strides, g.dilation, g.padding
    above, before, below, behind = g.sides
    each = g.channels // g.groups
    highest_tap = (depth - 1) // (g.kernel[1] * each)
    highest_row = (g.out_height - 1) * stride_y + highest_tap * step_y - top
    highest_column = (g.out_width - 1) * stride_x + (g.kernel[1] - 1) * step_x - left
    if g.open:  # some extents let the last window reach all of the padding
        highest_row, highest_column = g.height - 1 + below, g.width - 1 + behind
    again = even and g.pixels % 2
    by_tap = step_x > 1 or g.channels % WORD == 0 or g.groups > 1

    def element(p: Var, *rest: Var) -> Expr:
        *group, k = rest
        pixel = ir.Bin("min", p, ir.const(g.pixels - 1, "int32")) if again else p
        n, y, x = _split(pixel, g.batch, g.out_height, g.out_width)
        if by_tap:
            tap, across, channel = _split(k, *g.kernel, each)
            channel = group[0] * each + channel if group else channel
            column = x * stride_x + across * step_x
            column = column - left if before else column
            place = column * g.channels + channel
            checks = within(column, g.width, -before, highest_column)
        else:
            tap, run = _split(k, g.kernel[0], g.kernel[1] * g.channels)
            place = x * (stride_x * g.channels) + run
            place = place - left * g.channels if before else place
            checks = within(place, row_size, -before, (highest_column + 1) * g.channels - 1)
        row = y * stride_y + tap * step_y
        row = row - top if above else row
        checks += within(row, g.height, -above, highest_row) + ([k < g.depth] if depth > g.depth else [])
        inside = ir.all_of(checks)
        value = rows[n, row, place]
        return bordered(inside, ir.cast(dtype or value.dtype, value), pad_value, unsigned)

    if g.groups > 1:
        return te.compute((g.pixels, g.groups, depth), element, PATCH, ("p", "g", "k"))
    return te.compute((g.pixels + again, depth), element, PATCH, ("p", "k"))


def padded_input(
    g: Geometry, data: Operand, pad_value: int | float, unsigned: bool = False, dtype: str = ""
) -> te.Tensor:
    """``padded`` (N, H + padding, W + padding, C), or the data itself where nothing is padded. With ``unsigned`` int8 data
    and its border are stored as uint8, 128 more; with ``dtype`` data is rounded to that."""
    source = data.tensor((g.batch, g.height, g.width, g.channels))
    top, left, bottom, right = g.padding
    above, before, below, behind = g.sides
    if not any(g.sides) and not (unsigned or dtype):
        return source
    height, width = g.height + top + bottom, g.width + left + right

    def element(n: Var, y: Var, x: Var, c: Var) -> Expr:
        row: Expr = y - top if above else y
        column: Expr = x - left if before else x
        checks = within(row, g.height, -above, g.height - 1 + below)
        checks += within(column, g.width, -before, g.width - 1 + behind)
        inside = ir.all_of(checks)
        return bordered(inside, ir.cast(dtype or source.dtype, source[n, row, column, c]), pad_value, unsigned)

    return te.compute((g.batch, height, width, g.channels), element, PADDED, ("n", "y", "x", "c"))
