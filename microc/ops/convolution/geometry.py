"""Extents of a convolution from shapes and attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from microc.errors import ModelError
from microc.frozen import frozen
from microc.ops.attributes import (
    ACTIVATED,
    DYNAMIC,
    LAYOUT,
    OPTIONAL,
    Attributes,
    defaults_of,
    element_type,
    integer,
    integers,
    number,
    ways,
)
from microc.tir.ir import Expr

WINDOWS: Attributes = {
    "strides": integers("down and to the right", (1, 1), length=2, least=1),
    "padding": integers("top, left, bottom, right", (0, 0, 0, 0), length=4),
    "dilation": integers("down and to the right", (1, 1), length=2, least=1),
    "groups": integer("of channels that have weights of their own", 1, least=1),
}
ATTRS: Attributes = {
    **WINDOWS,
    "layout": LAYOUT,
    **ACTIVATED,
    "pad_value": number("what padding holds, as stored", 0),
    "out_dtype": element_type("of the sums; empty: the data's", ""),
    "algorithm": ways(
        "grouped",
        "half",
        "opened",
        "packed",
        "packed_halves",
        "packed_tables",
        "packed_vectors",
        "pairs",
        "single",
        "unsigned",
        "unsigned_rows",
        "unsigned_windows",
        "windows",
        "winograd",
        "winograd_floats",
        "winograd_four",
    ),
    "dynamic": DYNAMIC,
    "open": integers("where sizes vary: the most padding that any has", OPTIONAL, length=4, least=0),
}
DEFAULTS = defaults_of(ATTRS)


@frozen
class Geometry:
    """Extents of a convolution, whatever the layout. ``padding`` is top, left, bottom, right.

    Where the extents are one example of many, the attribute ``open`` holds the most padding that any of them has: nothing may
    be left out that only these extents do not need.
    """

    batch: int
    height: int
    width: int
    channels: int
    out_channels: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int
    open: tuple[int, ...] = ()

    @property
    def sides(self) -> tuple[int, ...]:
        """Where there is padding: top, left, bottom, right."""
        return self.open or self.padding

    @property
    def out_height(self) -> int:
        reach = (self.kernel[0] - 1) * self.dilation[0] + 1
        return (self.height + self.padding[0] + self.padding[2] - reach) // self.strides[0] + 1

    @property
    def out_width(self) -> int:
        reach = (self.kernel[1] - 1) * self.dilation[1] + 1
        return (self.width + self.padding[1] + self.padding[3] - reach) // self.strides[1] + 1

    @property
    def pixels(self) -> int:
        return self.batch * self.out_height * self.out_width

    @property
    def depth(self) -> int:
        """Products in one output: taps times input channels of a group."""
        return self.kernel[0] * self.kernel[1] * (self.channels // self.groups)

    @property
    def direct(self) -> bool:
        """Whether the inputs of a pixel already lie one after another, pixel by pixel: pointwise, or one pixel of everything."""
        if any(self.sides):
            return False
        whole = self.kernel == (self.height, self.width) and self.dilation == (1, 1)
        return whole or (self.kernel == (1, 1) and self.strides == (1, 1))


def geometry(attrs: Mapping[str, Any], data: Sequence[int], weight: Sequence[int]) -> Geometry:
    """The extents that shapes and attributes give; ModelError where they contradict each other."""
    attrs = {**DEFAULTS, **attrs}
    if len(data) != 4 or len(weight) != 4 or 0 in (*data, *weight):
        what = f"conv2d of shapes {tuple(data)} and {tuple(weight)}"
        raise ModelError(what, hint="both have four axes, none of them empty")
    first = attrs["layout"] == "NCHW"
    batch, channels, height, width = data if first else (data[0], data[3], data[1], data[2])
    out_channels, depth, *kernel = weight if first else (weight[0], weight[3], weight[1], weight[2])
    groups = attrs["groups"]
    if groups < 1 or channels != depth * groups or out_channels % groups:
        raise ModelError(
            f"conv2d of {channels} channels by {out_channels} x {depth} weight channels in {groups} groups",
            hint="input channels are weight channels times groups, and groups divide the output channels",
        )
    found = Geometry(
        batch,
        height,
        width,
        channels,
        out_channels,
        (kernel[0], kernel[1]),
        tuple(attrs["strides"]),
        tuple(attrs["padding"]),
        tuple(attrs["dilation"]),
        groups,
        tuple(attrs.get("open", ())),
    )
    if found.out_height < 1 or found.out_width < 1 or min(found.padding) < 0:
        raise ModelError(f"a {kernel[0]} x {kernel[1]} kernel on {height} x {width} pixels, padding {found.padding}")
    return found


def meets_row(place: Expr, extent: int, stride: int, dilation: int) -> tuple[Expr, Expr]:
    """Return conditions that ``place // stride`` is one of ``extent`` rows, for a place that is a multiple of the stride.

    They bound the place, or the quotient if taps are apart: then multiples of a tap leave the quotient, which no bound of the
    place proves to be within the data.
    """
    row, last = (place, (extent - 1) * stride) if dilation == 1 else (place // stride, extent - 1)
    return row >= 0, row <= last
