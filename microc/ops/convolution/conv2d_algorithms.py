# SPDX-License-Identifier: Apache-2.0
"""Algorithms of conv2d: windows that slide over rows of the image, depthwise convolution in float16, and Winograd's
minimal filtering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from microc import te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import InternalError
from microc.graph.ir import TensorType
from microc.ops.convolution.geometry import (
    DEFAULTS,
    Geometry,
    build_range_checks,
    infer_geometry,
    pad_input,
    select_inside_or_pad,
)
from microc.ops.matrix.gemm import (
    HALF,
    RUN,
    build_column_bias,
    build_initial_sum,
    can_store_data_as_uint8,
    find_float16_weights,
    padded_unit_count,
    sum_bound_annotations,
)
from microc.ops.registry import WORD, OpCall, Operand
from microc.tir import ir
from microc.tir.ir import Expr, Var
from microc.tir.names import ACC, FILTER, HALVES, PADDED, ROWS, TILE, UNTILE, WINDOWS

# ---- Convolution whose windows slide over the rows of an image, for cores with vectors, which read pixels in place.
#
# A row of a window's taps is one run of memory, KW * C long; ``acc`` (N, H, W, O) sums along rows of the window and along that
# run. Nothing is gathered: neighbouring windows share what they read. Only a border is copied: ``padded`` (N, H + padding,
# (W + padding) * C). Runs of bytes are padded to whole words: zeros follow the weights of a row, and the image's rows are longer.
# Gathering the nine copies of a 3 x 3 window took half of the time of layers with few channels; with AVX-512 VNNI an 8-bit
# ResNet-8 went from 89 to 61 us.

BYTES = ("int8", "uint8")
MIN_ROW_OUTPUTS = 8
"""Least number of outputs in a row for sliding windows. With fewer outputs, a tile within one row is smaller than a
tile of gathered pixels."""


def can_use_sliding_windows(call: OpCall) -> bool:
    """Test whether windows can slide over image rows: no horizontal dilation, constant weights, and operands that are
    8-bit or float32."""
    data, weight, _ = call.data_weight_bias
    attrs = call.attrs
    if weight.data is None or not call.has_constant_parameters or attrs.get("open") or attrs.get("groups", 1) != 1:
        return False
    g = infer_geometry(attrs, data.type.shape, weight.type.shape)
    if g.is_im2col_matrix or g.dilation[1] > 1 or g.kernel == (1, 1) or g.out_width < MIN_ROW_OUTPUTS:
        return False
    dtype_names = (data.type.dtype, weight.type.dtype, attrs.get("out_dtype") or data.type.dtype)
    return (dtype_names[0] in BYTES and dtype_names[1:] == ("int8", "int32")) or set(dtype_names) == {"float32"}


def can_use_uint8_sliding_windows(call: OpCall) -> bool:
    """Test whether windows can slide over int8 data that is stored as uint8 after 128 is added."""
    return can_use_sliding_windows(call) and can_store_data_as_uint8(call)


def build_sliding_window_product(
    call: OpCall, attrs: Mapping[str, Any], g: Geometry, *, as_uint8: bool = False
) -> te.Tensor:
    """Build the stage ``acc`` (N, H, W, O) of a convolution whose windows slide over the rows of the image.

    Output channels with zero weights are added until the channels fill vectors; they are computed, but omitted from the
    result. ``as_uint8``: int8 data is stored as uint8 after 128 is added."""
    data, weight, bias = call.data_weight_bias
    dtype = attrs["out_dtype"] or data.type.dtype
    assert weight.data is not None
    taps = g.kernel[1] * g.channels
    run = -(-taps // WORD) * WORD if data.type.dtype in BYTES else taps
    rows = _pad_rows(g, data, attrs["pad_value"], run - taps, as_uint8)
    more = padded_unit_count(call, g.out_channels) - g.out_channels
    notes = (*sum_bound_annotations(data, weight, bias), (WINDOWS, 1))
    zeros = ((0, more), (0, 0), (0, run - taps))
    by_row = weight.data.reshape(g.out_channels, g.kernel[0], taps)
    factors = weight.packed(np.pad(by_row, zeros).reshape(g.out_channels + more, -1))
    first = build_column_bias(call, more, unsigned_input=as_uint8)
    ky, k = te.reduce_axis(g.kernel[0], "ky"), te.reduce_axis(run, "k")
    (down, across), step = g.strides, g.dilation[0]

    def build_sum(n: Var, y: Var, x: Var, o: Var) -> Expr:
        value = rows[n, y * down + ky.var * step, x * (across * g.channels) + k.var]
        product = ir.cast(dtype, value) * ir.cast(dtype, factors[o, ky.var * run + k.var])
        return te.sum_reduce(product, ky, k, init=build_initial_sum(first, o, dtype))

    shape = (g.batch, g.out_height, g.out_width, g.out_channels)
    total = te.compute((*shape[:3], shape[3] + more), build_sum, ACC, ("n", "y", "x", "o"), notes)
    if not more:
        return total
    return te.compute(shape, lambda n, y, x, o: total[n, y, x, o], "wanted", ("n", "y", "x", "o"))


def _pad_rows(g: Geometry, data: Operand, pad_value: int | float, extra_elements: int, as_uint8: bool) -> te.Tensor:
    """Return the rows of the image (N, H, W * C) with their border, and ``extra_elements`` more elements at the end of
    each row.

    ``as_uint8``: int8 data is stored as uint8 after 128 is added. Return the data itself if nothing is added or
    converted."""
    row_size, (top, left, bottom, right) = g.width * g.channels, g.padding
    source = data.tensor((g.batch, g.height, row_size))
    if not any(g.padding) and not extra_elements and not as_uint8:
        return source

    def build_padded_element(n: Var, y: Var, i: Var) -> Expr:
        row: Expr = y - top if top else y
        place: Expr = i - left * g.channels if left else i
        checks = build_range_checks(row, g.height, -top, g.height - 1 + bottom)
        checks += build_range_checks(place, row_size, -left, row_size - 1 + right * g.channels + extra_elements)
        return select_inside_or_pad(ir.all_of(checks), source[n, row, place], pad_value, as_uint8)

    extents = (g.batch, g.height + top + bottom, (g.width + left + right) * g.channels + extra_elements)
    return te.compute(extents, build_padded_element, PADDED, ("n", "y", "i"))


# ---- Depthwise convolutions in float16 (``--math half``), with windows of three taps in a row. All terms of a window are
# summed in float16 as one run, so that the error bound in :mod:`microc.ops.matrix.gemm` holds.

WIDTH, STRIDES = 3, (1, 2)
"""Number of taps in a row, and horizontal strides, for which the core has intrinsics."""


def can_sum_windows_in_float16(call: OpCall) -> bool:
    """Test whether a float depthwise convolution can sum its windows in float16.

    It needs one output channel for each input channel, a number of channels that fills vectors, and at most RUN taps in
    a window."""
    data, weight, _ = call.data_weight_bias
    attrs, channels = {**DEFAULTS, **call.attrs}, data.type.shape[-1]
    if attrs["groups"] != channels or attrs.get("open") or weight.type.shape[0] != channels:
        return False
    _, *kernel, _ = weight.type.shape
    possible = kernel[1] == WIDTH and prod(kernel) <= RUN and attrs["strides"][1] in STRIDES
    return possible and attrs["dilation"] == (1, 1) and find_float16_weights(call, channels) is not None


def build_float16_depthwise_product(call: OpCall) -> te.Tensor:
    """Build a depthwise convolution (N, H, W, C) that sums products in float16 and adds the bias in float32."""
    data, weight, bias = call.data_weight_bias
    attrs = {**DEFAULTS, **call.attrs}
    g: Geometry = infer_geometry(attrs, data.type.shape, weight.type.shape)
    halves = find_float16_weights(call, g.channels)
    if halves is None:
        raise InternalError("conv2d: no float16 sums for this node; expected can_sum_windows_in_float16() to be True")
    taps = weight.packed(halves.reshape(g.channels, *g.kernel).transpose(1, 2, 0))
    padded = pad_input(g, data, attrs["pad_value"], stored_dtype=HALF)
    ky, kx = te.reduce_axis(g.kernel[0], "ky"), te.reduce_axis(g.kernel[1], "kx")
    down, right = g.strides

    def build_float16_sum(n: Var, y: Var, x: Var, c: Var) -> Expr:
        value = padded[n, y * down + ky.var, x * right + kx.var, c]
        return te.fma_reduce(value, taps[ky.var, kx.var, c], ky, kx, init=0.0)

    shape, axes = (g.batch, g.out_height, g.out_width, g.channels), ("n", "y", "x", "c")
    total = te.compute(shape, build_float16_sum, HALVES, axes)

    def build_float32_sum(n: Var, y: Var, x: Var, c: Var) -> Expr:
        real = ir.cast("float32", total[n, y, x, c])
        return real if bias is None else real + build_initial_sum(bias, c, "float32")

    return te.compute(shape, build_float32_sum, "wide", axes)


# ---- Winograd's minimal filtering F(2 x 2, 3 x 3): 16 products instead of 36 for four outputs. Exact for integers.
#
# A tile of 2 x 2 outputs reads 4 x 4 inputs d. With the matrices of Lavin and Gray (Fast Algorithms for Convolutional Neural
# Networks, 2015, section 4.1)
#
#     B' = | 1  0 -1  0 |    G = 1/2 | 2  0  0 |    A' = | 1  1  1  0 |
#          | 0  1  1  0 |            | 1  1  1 |         | 0  1 -1 -1 |
#          | 0 -1  1  0 |            | 1 -1  1 |
#          | 0  1  0 -1 |            | 0  0  2 |
#
# the outputs are Y = A' [sum over channels of (G g G') o (B' d B)] A, where o multiplies element by element.
#
# Exactness. The identity holds over the rationals, and 2 G is a matrix of integers. With U = (2 G) g (2 G)', computed at compile
# time, and V = B' d B every number is an integer, and A' [sum of U o V] A = 4 Y by linearity. Hence the left side is a multiple
# of four, the arithmetic shift by two is its exact quotient, and Y is the direct sum bit for bit, as long as no number
# overflows: ``can_use_winograd`` proves that from the weights. Elements of V are sums of four inputs with signs, so that |V| <=
# 512 for bytes; |U| <= 9 max|g|. Border elements are read as the pad value like any other input.
#
# Opened weights. U takes 3.6 times the bytes of g. Where many channels share a small image, g is stored instead, and a kernel
# computes U for a few output channels at a time. Then U = H g H', where H is 2 G with ones in place of its twos: 21 additions for
# the 16 numbers of a channel, which 2 G would double by 14 more. The first and the last column of A' become twice as large in
# its place, at no cost on cores whose additions shift an operand. Factors of two move from U to A', so that the products are
# those above, and no number is larger.
#
# Floats. U = G g G' is rounded once, V by two additions a number, Y by four. With u = 2**-24 and first-order terms alone
#
#     |error of Y| <= (C + 8) u |A'| [sum over channels of |U| o (|B'| |d| |B|)] |A|,
#
# for numbers of one size 64 C (C + 8) u against 81 C**2 u of the direct sum: 1.2 times that at 16 channels, less from 31 on.
# An infinity or NaN in the data makes all outputs of its tiles NaN, and sums of four inputs may overflow. So the user has to
# permit it (``--math fast``).
#
# F(4 x 4, 3 x 3), for floats only: 36 products instead of 144 for 16 outputs, with the matrices for the points 0, 1, -1, 2 and -2
# (same paper)
#
#     B' = | 4  0 -5  0  1  0 |    G = 1/24 | 6  0  0 |    A' = | 1  1  1  1  1  0 |
#          | 0 -4 -4  1  1  0 |             |-4 -4 -4 |         | 0  1 -1  2 -2  0 |
#          | 0  4 -4 -1  1  0 |             |-4  4 -4 |         | 0  1  1  4  4  0 |
#          | 0 -2 -1  2  1  0 |             | 1  2  4 |         | 0  1 -1  8 -8  1 |
#          | 0  2 -1 -2  1  0 |             | 1 -2  4 |
#          | 0  4  0 -5  0  1 |             | 0  0 24 |
#
# Powers of two multiply exactly. V takes three roundings an axis at most, Y four, U and every product of its sums as above:
#
#     |error of Y| <= (C + 16) u |A'| [sum over channels of |U| o (|B'| |d| |B|)] |A|.
#
# Measured against float64 the error of F(4 x 4) is 2 to 5 times that of direct sums (1.6e-6 of the largest output at 16
# channels).
#
# Stages: ``padded`` (only where something is padded), ``tile`` (V), ``filter`` (U, only of opened weights), ``acc`` (sums M of
# U V), ``rows`` (A' M), ``untile`` (Y and bias).

POINTS = 4
"""Number of inputs of a Winograd tile along an axis, for two outputs."""
PAIR = 2
"""The number of tiles in a row is padded to a multiple of this number, so that schedules can compute two tiles at
once."""
OPENED_SHARE = 4
"""Least ratio of the bytes of stored U to the workspace of opened weights, for U of a pair of output channels and V of a row of
tiles. Boards with Cortex-M4, M7 and M33 have 4.0 times as much flash as RAM (median of 26). Fewer tiles at once would share
opened weights too rarely: at 4 of 8 tiles a layer of 32 channels took 1.37 times the instructions of stored U."""
_TWICE_G = np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]], np.int64)
_A = np.array([[1, 0], [1, 1], [1, -1], [0, -1]], np.int64)
_G_OF_FOUR = np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]], np.float64)


def winograd_tile_counts(g: Geometry, tile_size: int = 2) -> tuple[int, int]:
    """Return ``(rows, columns)``: the number of rows of Winograd tiles, and of tiles in a row.

    A tile is ``tile_size`` x ``tile_size`` outputs. Tiles of 2 x 2 may extend beyond the image."""
    if tile_size > 2:
        return g.out_height // tile_size, g.out_width // tile_size
    return -(-g.out_height // 2), -(-g.out_width // (2 * PAIR)) * PAIR


def transform_winograd_weights(weight: Array, tile_size: int = 2) -> Array:
    """Return Winograd's transformed weights U (P, O, C) of OHWI weights with a 3 x 3 kernel.

    P is (``tile_size`` + 2) squared. U is 4 G g G' in int64 for integers, and G g G' in float32 for floats."""
    floats = weight.dtype.kind == "f"
    wide = weight.astype(np.float64 if floats else np.int64)
    matrix, scale = (_TWICE_G, 2) if tile_size == 2 else (_G_OF_FOUR, 24)
    u: Array = np.einsum("iy,jx,oyxc->ijoc", matrix, matrix, wide).reshape(-1, len(wide), wide.shape[3])
    return (u / scale**2).astype(np.float32) if floats else u


def _is_unit_stride_3x3(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> bool:
    """Test whether a convolution is 3 x 3 with stride 1, without dilation and groups, and has at least two outputs
    along both axes."""
    attrs = {**DEFAULTS, **attrs}
    g = infer_geometry(attrs, types[0].shape, types[1].shape)
    plain = (g.kernel, g.strides, g.dilation, g.groups) == ((3, 3), (1, 1), (1, 1), 1)
    return plain and min(g.out_height, g.out_width) >= 2 and bool(attrs["layout"] == "NHWC")


def can_use_float_winograd(
    attrs: Mapping[str, Any], operand_types: Sequence[TensorType], operand_constants: Sequence[Array | None]
) -> bool:
    """Test whether Winograd's F(2 x 2, 3 x 3) can compute a float32 conv2d with constant weights."""
    dtype_names = {operand_types[0].dtype, operand_types[1].dtype, attrs.get("out_dtype") or "float32"}
    is_constant = all(array is not None for array in operand_constants[1:]) and not attrs.get("open")
    return dtype_names == {"float32"} and is_constant and _is_unit_stride_3x3(attrs, operand_types)


def can_use_float_winograd_4x4(
    attrs: Mapping[str, Any], operand_types: Sequence[TensorType], operand_constants: Sequence[Array | None]
) -> bool:
    """Test whether Winograd's F(4 x 4, 3 x 3) can compute a float32 conv2d.

    The tiles must cover the image exactly: bounds checks of tiles that extend beyond it would be more code than the
    sums."""
    g = infer_geometry({**DEFAULTS, **attrs}, operand_types[0].shape, operand_types[1].shape)
    return (
        g.out_height % 4 == 0
        and g.out_width % 4 == 0
        and can_use_float_winograd(attrs, operand_types, operand_constants)
    )


def can_use_integer_winograd(
    attrs: Mapping[str, Any], operand_types: Sequence[TensorType], operand_constants: Sequence[Array | None]
) -> bool:
    """Test whether Winograd's F(2 x 2, 3 x 3) computes an integer conv2d exactly, without overflow for any data.

    ``operand_types`` and ``operand_constants``: types and constant data of data, weight and bias. Weight and bias must
    be constant. The transformed weights U must fit int16; the transformed data V always does for 8-bit data. Partial
    sums of U V, of the output transform, and of outputs Y and bias are bounded by 4 |Y| + |bias|, if the magnitudes of
    all terms are added. This bound must fit int32."""
    if not _is_unit_stride_3x3(attrs, operand_types) or attrs.get("out_dtype") != "int32":
        return False
    if operand_types[0].dtype not in ("int8", "uint8") or any(array is None for array in operand_constants[1:]):
        return False
    weight, *bias = (array for array in operand_constants[1:] if array is not None)
    u = np.abs(transform_winograd_weights(weight))
    low, high = dtypes.int_range(operand_types[0].dtype)
    sums = u.sum(axis=2).reshape(POINTS, POINTS, -1) * (4 * max(-low, high))
    largest = np.einsum("ia,jb,ijo->abo", np.abs(_A), np.abs(_A), sums).max(initial=0)
    start = max((int(np.abs(array.astype(np.int64)).max(initial=0)) for array in bias), default=0)
    fits = u.max(initial=0) <= dtypes.int_range("int16")[1]
    return bool(fits and int(largest) + start <= dtypes.int_range("int32")[1])


def can_open_winograd_weights(call: OpCall) -> bool:
    """Test whether Winograd's transform of int8 weights at run time takes little workspace beside the flash that it saves."""
    data, weight, _ = call.data_weight_bias
    if weight.type.dtype != "int8" or call.attrs.get("open"):
        return False
    g = infer_geometry({**DEFAULTS, **call.attrs}, data.type.shape, weight.type.shape)
    return OPENED_SHARE * (winograd_tile_counts(g)[1] + PAIR) <= g.out_channels


def compute_winograd(call: OpCall, g: Geometry, tile_size: int = 2, *, opened: bool = False) -> te.Tensor:
    """Build the convolution ``untile`` (N, OH, OW, O) in int32 or float32 by Winograd tiles of ``tile_size`` x
    ``tile_size`` outputs. ``opened``: int8 weights are stored as they are, and transformed at run time."""
    data, weight, bias = call.data_weight_bias
    floats = data.type.dtype == "float32"
    is_possible = (
        can_use_integer_winograd
        if not floats
        else can_use_float_winograd_4x4
        if tile_size == 4
        else can_use_float_winograd
    )
    if not is_possible(call.attrs, [x.type for x in call.present], [x.data for x in call.present]):
        raise InternalError("conv2d: no Winograd form of this node; expected a can_use_*_winograd() to be True")
    assert weight.data is not None
    rows, columns = winograd_tile_counts(g, tile_size)
    top, left = g.padding[:2]
    # Tiles that exceed the image read beyond it: the border is enlarged to 2 inputs more than the tiles' outputs.
    reach = (top, left, tile_size * rows + 2 - g.height - top, tile_size * columns + 2 - g.width - left)
    padded = pad_input(replace(g, padding=reach), data, call.attrs.get("pad_value", 0))
    if opened:
        u = _build_weight_transform(g, weight.tensor(weight.type.shape))
    else:
        u = weight.packed(transform_winograd_weights(weight.data, tile_size).astype(np.float32 if floats else np.int16))
    first = None if bias is None else bias.tensor((bias.type.size,))
    return _build_winograd_stages(g, padded, u, first, tile_size, edge_factor=2 if opened else 1)


def _build_weight_transform(g: Geometry, weight: te.Tensor) -> te.Tensor:
    """Build the stage ``filter``: opened weights U (P, O, C) in int16 of int8 weights (O, 3, 3, C)."""

    def build_step(i: Expr, column: list[Expr]) -> Expr:
        ends = column[0] + column[2]
        return _build_select_chain(i, [column[0], ends + column[1], ends - column[1], column[2]])

    def build_weight(s: Var, o: Var, c: Var) -> Expr:
        columns = [build_step(s // POINTS, [ir.cast("int32", weight[o, p, q, c]) for p in range(3)]) for q in range(3)]
        return ir.cast("int16", build_step(s % POINTS, columns))

    return te.compute((POINTS * POINTS, g.out_channels, g.channels), build_weight, FILTER, ("s", "o", "c"))


def _build_winograd_stages(
    g: Geometry,
    padded: te.Tensor,
    weight: te.Tensor,
    bias: te.Tensor | None,
    tile_size: int,
    edge_factor: int,
) -> te.Tensor:
    """Build the stages of Winograd's algorithm from the padded input and the transformed weights U (P, O, C).

    Return the last stage, ``untile`` (N, OH, OW, O). Sums are int32 with U and V in int16, or all are float32.
    ``edge_factor``: factor of the first and the last row and column of M (2: of opened weights)."""
    rows, columns = winograd_tile_counts(g, tile_size)
    points, image = tile_size + 2, (g.batch, rows, columns)
    narrow, wide = weight.dtype, "int32" if weight.dtype == "int16" else "float32"
    into, back = (
        (_build_2x2_input_transform_element, _build_2x2_output_transform_element)
        if tile_size == 2
        else (_build_4x4_input_transform_element, _build_4x4_output_transform_element)
    )

    def build_input_transform(s: Var, n: Var, y: Var, x: Var, c: Var) -> Expr:
        def build_tile_column(q: int) -> Expr:
            d = [ir.cast(wide, padded[n, y * tile_size + p, x * tile_size + q, c]) for p in range(points)]
            return into(s // points, d)

        return ir.cast(narrow, into(s % points, [build_tile_column(q) for q in range(points)]))

    v = te.compute((points * points, *image, g.channels), build_input_transform, TILE, ("s", "n", "y", "x", "c"))
    k = te.reduce_axis(g.channels, "k")

    def build_product(s: Var, n: Var, y: Var, x: Var, o: Var) -> Expr:
        return te.sum_reduce(ir.cast(wide, v[s, n, y, x, k.var]) * ir.cast(wide, weight[s, o, k.var]), k)

    m = te.compute((points * points, *image, g.out_channels), build_product, ACC, ("s", "n", "y", "x", "o"))

    def transform_back(a: Expr, column: list[Expr]) -> Expr:
        ends = (0, points - 1) if edge_factor > 1 else ()
        return back(a, [x * edge_factor if i in ends else x for i, x in enumerate(column)])

    def build_output_row(j: Var, a: Var, n: Var, y: Var, x: Var, o: Var) -> Expr:
        return transform_back(a, [m[j + i * points, n, y, x, o] for i in range(points)])

    z = te.compute((points, tile_size, *image, g.out_channels), build_output_row, ROWS, ("j", "a", "n", "y", "x", "o"))

    def build_output_element(n: Var, y: Var, x: Var, o: Var) -> Expr:
        total = transform_back(
            x % tile_size, [z[j, y % tile_size, n, y // tile_size, x // tile_size, o] for j in range(points)]
        )
        # Integer U is 4 G g G', so the sum is 4 Y, and the shift is exact.
        total = total >> 2 if wide == "int32" else total
        return total if bias is None else total + ir.cast(wide, bias[o])

    return te.compute(
        (g.batch, g.out_height, g.out_width, g.out_channels), build_output_element, UNTILE, ("n", "y", "x", "o")
    )


def _build_2x2_input_transform_element(i: Expr, d: list[Expr]) -> Expr:
    """Return element ``i`` of B' d, one step of Winograd's input transform, for F(2 x 2, 3 x 3)."""
    return _build_select_chain(i, [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]])


def _build_2x2_output_transform_element(a: Expr, m: list[Expr]) -> Expr:
    """Return element ``a`` of A' m, one step of Winograd's output transform, for F(2 x 2, 3 x 3)."""
    return _build_select_chain(a, [m[0] + (m[1] + m[2]), (m[1] - m[2]) - m[3]])


def _build_4x4_input_transform_element(i: Expr, d: list[Expr]) -> Expr:
    """Return element ``i`` of B' d, one step of Winograd's input transform, for F(4 x 4, 3 x 3)."""
    # Rows 1 and 2 of B' are even +- odd, rows 3 and 4 near +- far: common terms are computed once.
    even, odd = d[4] - d[2] * 4.0, d[3] - d[1] * 4.0
    near, far = d[4] - d[2], (d[3] - d[1]) * 2.0
    ends = [d[k + 4] - d[k + 2] * 5.0 + d[k] * 4.0 for k in (0, 1)]
    return _build_select_chain(i, [ends[0], even + odd, even - odd, near + far, near - far, ends[1]])


def _build_4x4_output_transform_element(a: Expr, m: list[Expr]) -> Expr:
    """Return element ``a`` of A' m, one step of Winograd's output transform, for F(4 x 4, 3 x 3)."""
    # Columns of A' for the points 1, -1 and 2, -2 differ in sign only: their sums and differences are computed once.
    near, apart = m[1] + m[2], m[1] - m[2]
    far, wide = m[3] + m[4], m[3] - m[4]
    return _build_select_chain(a, [m[0] + near + far, apart + wide * 2.0, near + far * 4.0, apart + wide * 8.0 + m[5]])


def _build_select_chain(index: Expr, elements: list[Expr]) -> Expr:
    """Return ``elements[index]`` as a chain of selects. Schedules unroll the loop of ``index``, so that it becomes a
    constant."""
    selected = elements[-1]
    for k in range(len(elements) - 2, -1, -1):
        selected = ir.select(index.eq(k), elements[k], selected)
    return selected
