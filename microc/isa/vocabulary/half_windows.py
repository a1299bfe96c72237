"""Words of the vocabulary that slide a window over a row of pixels of float16, eight channels at once.

``half_window_<S>_<X>`` stores, of X neighbouring pixels, the sums of ``rows`` by three products of ``a``, in which their windows
lie S pixels apart, with the taps ``b``: every one is added in float16 with one rounding. Pixels and taps lie ``step`` elements
apart, rows of ``a`` ``row_step``.
"""

from __future__ import annotations

from microc.isa.base import ANY, Intrin
from microc.tir import ir
from microc.tir.ir import Buffer, Var

LANES, TAPS = 8, 3
"""Channels, and taps of a row."""
HALF_WINDOWS = tuple((stride, pixels) for stride in (1, 2) for pixels in (1, 2, 3, 4))
"""Strides and pixels."""


def half_window_name(stride: int, pixels: int) -> str:
    return f"half_window_{stride}_{pixels}"


def _window(stride: int, pixels: int) -> Intrin:
    a, b, sums = (Buffer(name, (ANY,), "float16") for name in ("a", "b", "sums"))
    rows, row_step, step = Var("rows"), Var("row_step"), Var("step")
    pixel, lane, row, tap = (Var(name) for name in ("pixel", "lane", "row", "tap"))
    place = (pixel * LANES + lane,)
    left, right = a[row * row_step + (pixel * stride + tap) * step + lane], b[(row * TAPS + tap) * step + lane]
    added = ir.Store(sums, place, ir.call("fma", left, right, ir.Load(sums, place)))
    begun = ir.Store(sums, place, ir.const(0.0, "float16"))
    taps = ir.For(row, rows, ir.loops(((tap, TAPS),), added))
    nest = ir.loops(((pixel, pixels), (lane, LANES)), ir.seq(begun, taps))
    return Intrin(half_window_name(stride, pixels), (a, b, sums, rows, row_step, step), nest)


WINDOWS = tuple(_window(*shape) for shape in HALF_WINDOWS)
