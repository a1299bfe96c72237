# SPDX-License-Identifier: Apache-2.0
"""Extents of a convolution, and the tensor expressions that gather its input (im2col) or pad it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import prod
from typing import Any

from microc import te
from microc.base.immutable import frozen
from microc.errors import ModelError
from microc.ops.attributes import (
    ACTIVATED,
    DYNAMIC,
    LAYOUT,
    OPTIONAL,
    Attributes,
    algorithm_choice,
    default_attributes,
    element_type,
    integer,
    integers,
    number,
)
from microc.ops.registry import WORD, Operand
from microc.ops.windows import Windows, window_axes
from microc.tir import ir
from microc.tir.ir import Expr, Var
from microc.tir.names import PADDED, PATCH

# ---- Extents of a convolution from shapes and attributes.

WINDOWS: Attributes = {
    "strides": integers("down and to the right", (1, 1), length=2, least=1),
    "padding": integers("top, left, bottom, right", (0, 0, 0, 0), length=4),
    "dilation": integers("down and to the right", (1, 1), length=2, least=1),
    "groups": integer("number of groups of channels with weights of their own", 1, least=1),
}
ATTRS: Attributes = {
    **WINDOWS,
    "layout": LAYOUT,
    **ACTIVATED,
    "pad_value": number("value of the padding, as stored", 0),
    "out_dtype": element_type("dtype of the sums; empty: that of the data", ""),
    "algorithm": algorithm_choice(
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
        "winograd_opened",
    ),
    "dynamic": DYNAMIC,
    "open": integers("for variable sizes: the largest padding on each side", OPTIONAL, length=4, least=0),
}
DEFAULTS = default_attributes(ATTRS)


@frozen
class Geometry:
    """Extents of a 2D convolution, independent of the layout. ``padding`` is top, left, bottom, right.

    If sizes vary at run time, the extents describe one example size, and ``open`` is the largest padding over all
    sizes. Code must check bounds by ``open``, because another size may need a check that the example does not need."""

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
    windows: Windows = field(init=False, repr=False, compare=False)
    """Windows along height and width, which follow from the other fields."""

    def __post_init__(self) -> None:
        windows = window_axes((self.height, self.width), self.kernel, self.strides, self.padding, self.dilation)
        object.__setattr__(self, "windows", windows)

    @property
    def max_padding(self) -> tuple[int, ...]:
        """Largest padding at top, left, bottom and right over all run-time sizes."""
        return self.open or self.padding

    @property
    def out_height(self) -> int:
        return self.windows[0].count

    @property
    def out_width(self) -> int:
        return self.windows[1].count

    @property
    def output_pixels(self) -> int:
        """Number of output pixels of all images in the batch."""
        return self.batch * self.out_height * self.out_width

    @property
    def depth(self) -> int:
        """Number of products in the sum of one output element: taps times input channels of a group."""
        return self.kernel[0] * self.kernel[1] * (self.channels // self.groups)

    @property
    def is_im2col_matrix(self) -> bool:
        """True if the data is already the im2col matrix: the kernel is 1 x 1 with stride 1, or as large as the image,
        without padding."""
        if any(self.max_padding):
            return False
        whole = self.kernel == (self.height, self.width) and self.dilation == (1, 1)
        return whole or (self.kernel == (1, 1) and self.strides == (1, 1))


def infer_geometry(attrs: Mapping[str, Any], data_shape: Sequence[int], weight_shape: Sequence[int]) -> Geometry:
    """Return the extents that follow from shapes and attributes; raise ModelError if these contradict each other."""
    attrs = {**DEFAULTS, **attrs}
    if len(data_shape) != 4 or len(weight_shape) != 4 or 0 in (*data_shape, *weight_shape):
        raise ModelError(
            f"conv2d: data and weights need four axes, none of them empty; got {tuple(data_shape)} and {tuple(weight_shape)}"
        )
    channels_first = attrs["layout"] == "NCHW"
    batch, channels, height, width = (
        data_shape if channels_first else (data_shape[0], data_shape[3], data_shape[1], data_shape[2])
    )
    out_channels, depth, *kernel = (
        weight_shape if channels_first else (weight_shape[0], weight_shape[3], weight_shape[1], weight_shape[2])
    )
    groups = attrs["groups"]
    if groups < 1 or channels != depth * groups or out_channels % groups:
        raise ModelError(
            f"conv2d: channel counts disagree; got {channels} of the data, {depth} of the weights, {out_channels} of the "
            f"output and groups={groups}",
            hint="make input channels = weight channels * groups, and output channels a multiple of groups",
        )
    extents = Geometry(
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
    if extents.out_height < 1 or extents.out_width < 1 or min(extents.padding) < 0:
        raise ModelError(
            f"conv2d: padding={extents.padding} is negative or leaves no output; got a {kernel[0]} x {kernel[1]} "
            f"kernel on {height} x {width} pixels"
        )
    return extents


# ---- Reading the input: gathered pixel by pixel (``patch``), or copied with its border (``padded``).


def build_range_checks(index: Expr, extent: int, low: int, high: int) -> list[Expr]:
    """Return the conditions for 0 <= ``index`` < ``extent``, except those that the known range ``low``..``high`` of
    ``index`` implies."""
    return [*([index >= 0] if low < 0 else []), *([index < extent] if high >= extent else [])]


def _unflatten_index(index: Expr, *extents: int) -> list[Expr]:
    """Convert a flat row-major index to indices along ``extents``. The index along an axis of one element is the
    constant 0."""
    indices: list[Expr] = []
    rest: Expr = index
    outer = prod(extents)
    for extent in extents:
        outer //= extent
        indices.append(ir.const(0, "int32") if extent == 1 else (rest // outer if outer != 1 else rest))
        rest = rest % outer if extent != 1 and outer != 1 else rest
    return indices


def add_128_as_uint8(int8_value: Expr) -> Expr:
    """Return an int8 expression plus 128, converted to uint8."""
    return ir.cast("uint8", ir.cast("int32", int8_value) + 128)


def select_inside_or_pad(is_inside: Expr | None, value: Expr, pad_value: int | float, as_uint8: bool) -> Expr:
    """Return ``value`` where the condition ``is_inside`` holds, else ``pad_value``. None: it holds everywhere.

    ``as_uint8``: both are int8 and are converted to uint8 by adding 128."""
    border = ir.const(pad_value + 128 if as_uint8 else pad_value, "uint8" if as_uint8 else value.dtype)
    value = add_128_as_uint8(value) if as_uint8 else value
    return value if is_inside is None else ir.select(is_inside, value, border)


def gather_patches(
    g: Geometry,
    data: Operand,
    pad_value: int | float,
    padded_terms: int,
    *,
    even_pixel_count: bool = False,
    as_uint8: bool = False,
    stored_dtype: str = "",
) -> te.Tensor:
    """Gather the inputs of every output pixel (im2col) as the stage ``patch``: (P, K), or (P, G, K) for several groups.

    K is ``padded_terms``; terms after the window have the value ``pad_value``. The data is read as rows of W * C
    elements.

    - ``even_pixel_count``: if the number of pixels is odd, the last pixel is repeated.
    - ``as_uint8``: int8 data and ``pad_value`` are stored as uint8 after 128 is added.
    - ``stored_dtype``: the data is rounded to this dtype.

    A row of taps is one contiguous run of memory, in which the border can start at any element. If a tap consists of
    whole words, or taps are dilated, each tap is copied as a run of C elements, which is completely inside or outside
    of the data."""
    row_size = g.width * g.channels
    rows = data.tensor((g.batch, g.height, row_size))
    (stride_y, stride_x), (step_y, step_x), (top, left, _, _) = g.strides, g.dilation, g.padding
    above, before, below, behind = g.max_padding
    group_channels = g.channels // g.groups
    # Terms behind the window (depth padded to whole words) index taps below it, whose rows must be checked, too.
    highest_tap = (padded_terms - 1) // (g.kernel[1] * group_channels)
    highest_row = (g.out_height - 1) * stride_y + highest_tap * step_y - top
    highest_column = (g.out_width - 1) * stride_x + (g.kernel[1] - 1) * step_x - left
    if g.open:  # for some sizes the last window reaches all of the padding
        highest_row, highest_column = g.height - 1 + below, g.width - 1 + behind
    again = even_pixel_count and g.output_pixels % 2

    by_tap = step_x > 1 or g.channels % WORD == 0 or g.groups > 1

    def build_patch_element(p: Var, *rest: Var) -> Expr:
        *group, k = rest
        pixel = ir.Bin("min", p, ir.const(g.output_pixels - 1, "int32")) if again else p
        n, y, x = _unflatten_index(pixel, g.batch, g.out_height, g.out_width)
        if by_tap:
            tap, across, channel = _unflatten_index(k, *g.kernel, group_channels)
            channel = group[0] * group_channels + channel if group else channel
            column = x * stride_x + across * step_x
            column = column - left if before else column
            position = column * g.channels + channel
            checks = build_range_checks(column, g.width, -before, highest_column)
        else:
            tap, run = _unflatten_index(k, g.kernel[0], g.kernel[1] * g.channels)
            position = x * (stride_x * g.channels) + run
            position = position - left * g.channels if before else position
            checks = build_range_checks(position, row_size, -before, (highest_column + 1) * g.channels - 1)
        row = y * stride_y + tap * step_y
        row = row - top if above else row
        checks += build_range_checks(row, g.height, -above, highest_row) + (
            [k < g.depth] if padded_terms > g.depth else []
        )
        inside = ir.all_of(checks)
        value = rows[n, row, position]
        return select_inside_or_pad(inside, ir.cast(stored_dtype or value.dtype, value), pad_value, as_uint8)

    if g.groups > 1:
        return te.compute((g.output_pixels, g.groups, padded_terms), build_patch_element, PATCH, ("p", "g", "k"))
    return te.compute((g.output_pixels + again, padded_terms), build_patch_element, PATCH, ("p", "k"))


def pad_input(
    g: Geometry, data: Operand, pad_value: int | float, as_uint8: bool = False, stored_dtype: str = ""
) -> te.Tensor:
    """Return the stage ``padded`` (N, H + padding, W + padding, C), or the data itself if nothing is padded or
    converted.

    ``as_uint8``: int8 data and its border are stored as uint8 after 128 is added. ``stored_dtype``: the data is rounded
    to this dtype."""
    source = data.tensor((g.batch, g.height, g.width, g.channels))
    top, left, bottom, right = g.padding
    above, before, below, behind = g.max_padding
    if not any(g.max_padding) and not (as_uint8 or stored_dtype):
        return source
    height, width = g.height + top + bottom, g.width + left + right

    def build_padded_element(n: Var, y: Var, x: Var, c: Var) -> Expr:
        row: Expr = y - top if above else y
        column: Expr = x - left if before else x
        checks = build_range_checks(row, g.height, -above, g.height - 1 + below)
        checks += build_range_checks(column, g.width, -before, g.width - 1 + behind)
        inside = ir.all_of(checks)
        return select_inside_or_pad(
            inside, ir.cast(stored_dtype or source.dtype, source[n, row, column, c]), pad_value, as_uint8
        )

    return te.compute((g.batch, height, width, g.channels), build_padded_element, PADDED, ("n", "y", "x", "c"))
