# SPDX-License-Identifier: Apache-2.0
"""Operator ``conv2d``: general, grouped and depthwise convolutions in two dimensions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from microc import te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import InternalError, ModelError
from microc.graph.ir import Graph, Node, TensorType
from microc.ops.arithmetic import is_quantised, split_activation
from microc.ops.constants import CheckedNode, product_sum_overflow_message
from microc.ops.convolution import conv2d_algorithms
from microc.ops.convolution.conv2d_algorithms import (
    build_float16_depthwise_product,
    build_sliding_window_product,
    can_sum_windows_in_float16,
    can_use_sliding_windows,
    can_use_uint8_sliding_windows,
)
from microc.ops.convolution.geometry import ATTRS, DEFAULTS, Geometry, gather_patches, infer_geometry, pad_input
from microc.ops.gradients.rules import build_conv2d_gradients
from microc.ops.matrix.gemm import (
    FAR,
    HALF,
    HALF_TOLERANCE,
    PACKED,
    TABLES,
    bias_for_uint8_data,
    build_dequantised_product,
    build_float16_product,
    build_initial_sum,
    build_unit_product,
    can_store_data_as_uint8,
    find_float16_weights,
    find_packed_weight_form,
    make_bias_operand,
    pack_weight_rows,
    packed_product_annotations,
    padded_depth_of_packed_weights,
    padded_float16_term_count,
    padded_term_count,
    padded_unit_count,
    recover_quantised_weights_of_call,
    sum_bound_annotations,
)
from microc.ops.matrix.products import ProductForm, legalize_product
from microc.ops.matrix.swar import build_paired_product, find_pair_packing
from microc.ops.registry import WORD, Algorithms, Case, Legalized, OpCall, OpDef, Operand, map_batch_axis
from microc.ops.windows import Product, Window, evaluate_product
from microc.tir import ir
from microc.tir.ir import Expr, Var
from microc.tir.names import ACC, GROUPED

# ---- Test cases of conv2d: every path of its tensor expression, borders, strides, dilations, dtypes, extents of one.


def _make_geometry_test_case(
    data_shape: tuple[int, ...],
    out_channels: int,
    kernel_shape: tuple[int, int],
    dtype_names: str = "int8 int8",
    bias: bool = True,
    **attrs: Any,
) -> Case:
    """Return a test case of a convolution, named after its shapes and settings.

    ``dtype_names``: the dtypes of data and weight, and of the accumulator unless it is int32, separated by spaces."""
    data_dtype, weight_dtype, *rest = dtype_names.split()
    out_dtype = rest[0] if rest else "int32"
    depth = data_shape[3] // attrs.get("groups", 1)
    types = [TensorType(data_shape, data_dtype), TensorType((out_channels, *kernel_shape, depth), weight_dtype)]
    types += [TensorType((out_channels,), out_dtype)] if bias else []
    arrays: tuple[Array | None, ...] = ()
    if bias and out_dtype != "float32":
        arrays = (None, None, (np.arange(out_channels) * 977 - 1000).astype(out_dtype))
    settings = " ".join(f"{key} {value}" for key, value in attrs.items())
    name = f"{data_shape} {dtype_names} {out_channels} {kernel_shape} {settings}"
    consts = tuple(range(1, len(types)))
    return Case(
        {**DEFAULTS, **attrs, "out_dtype": out_dtype},
        tuple(types),
        consts,
        arrays,
        HALF_TOLERANCE if attrs.get("algorithm") == "half" else 1e-4 if out_dtype == "float32" else 0.0,
        name,
    )


def _make_conv2d_test_cases() -> Iterable[Case]:
    """Yield test cases: every algorithm of ``compute``, borders, strides, dilations, dtypes, and extents of one
    element."""
    same, odd = (1, 1, 1, 1), (2, 0, 1, 3)
    mixed = ("uint8 int16", "int16 int8 int64", "int16 int8 int32", "float32 float32 float32")
    for dtype_names in ("int8 int8", "uint8 int8", *mixed):
        pad = 0 if "float" in dtype_names else 7
        yield _make_geometry_test_case((1, 5, 6, 3), 4, (3, 3), dtype_names, padding=same, pad_value=pad)
        yield _make_geometry_test_case((1, 4, 3, 6), 5, (1, 1), dtype_names)
        yield _make_geometry_test_case((1, 5, 4, 3), 3, (3, 3), dtype_names, padding=same, groups=3, pad_value=pad)
        yield _make_geometry_test_case((1, 5, 4, 4), 6, (2, 3), dtype_names, padding=odd, groups=2, pad_value=pad)
    yield _make_geometry_test_case((1, 7, 5, 3), 32, (3, 3), "uint8 int8", strides=(2, 1), padding=odd, pad_value=200)
    yield _make_geometry_test_case((2, 3, 3, 10), 16, (1, 1), "uint8 int8", bias=False)
    yield _make_geometry_test_case((2, 5, 6, 3), 4, (3, 2), strides=(2, 2), padding=odd, pad_value=-128)
    yield _make_geometry_test_case((2, 7, 6, 3), 4, (3, 3), strides=(2, 1), dilation=(1, 2))
    yield _make_geometry_test_case((1, 9, 8, 2), 3, (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2), pad_value=5)
    yield _make_geometry_test_case((1, 5, 4, 3), 4, (1, 1), strides=(2, 2))
    yield _make_geometry_test_case((1, 4, 4, 3), 4, (1, 1), padding=same, pad_value=-3)
    yield _make_geometry_test_case((2, 4, 3, 5), 4, (4, 3), bias=False)
    yield _make_geometry_test_case((1, 1, 10, 4), 3, (1, 3), padding=(0, 1, 0, 1), pad_value=1)
    yield _make_geometry_test_case((1, 10, 1, 4), 3, (4, 1), strides=(2, 1), padding=(3, 0, 0, 0), pad_value=1)
    yield _make_geometry_test_case((1, 1, 1, 1), 1, (1, 1))
    yield _make_geometry_test_case((1, 1, 1, 1), 1, (3, 3), padding=same, pad_value=2)
    yield _make_geometry_test_case((1, 2, 2, 1), 1, (5, 5), padding=(2, 2, 2, 2), pad_value=2, bias=False)
    yield _make_geometry_test_case((1, 6, 6, 1), 8, (3, 3), padding=(0, 0, 1, 1), strides=(2, 2), pad_value=-1)
    yield _make_geometry_test_case((2, 5, 4, 3), 6, (3, 3), padding=odd, groups=3, strides=(2, 2), pad_value=9)
    yield _make_geometry_test_case((1, 7, 7, 4), 4, (3, 3), groups=4, dilation=(2, 3))
    yield _make_geometry_test_case((1, 4, 4, 4), 4, (1, 1), groups=4, bias=False)
    yield _make_geometry_test_case((1, 1, 6, 2), 4, (1, 4), groups=2, padding=(0, 1, 0, 2), pad_value=-7)
    yield _make_geometry_test_case((1, 5, 5, 6), 9, (3, 3), groups=3, strides=(2, 2), dilation=(1, 1), bias=False)
    for dtype_names, pad in (("int8 int8", -5), ("uint8 int8", 200), ("uint8 int16", 7), ("int16 int8", 0)):
        yield _make_geometry_test_case((1, 5, 9, 16), 16, (3, 3), dtype_names, groups=16, padding=same, pad_value=pad)
    yield _make_geometry_test_case(
        (2, 7, 9, 8), 8, (5, 5), groups=8, padding=odd, strides=(2, 2), pad_value=-128, bias=False
    )
    yield _make_geometry_test_case((1, 1, 21, 12), 12, (1, 7), groups=12, padding=(0, 3, 0, 3), pad_value=9)
    yield _make_geometry_test_case((1, 9, 6, 8), 8, (4, 2), groups=8, dilation=(2, 1))
    for dtype_names, pad in (("int8 int8", -5), ("uint8 int8", 200)):
        yield _make_geometry_test_case(
            (1, 8, 8, 8), 4, (3, 3), dtype_names, padding=same, pad_value=pad, algorithm="winograd"
        )
        yield _make_geometry_test_case(
            (2, 5, 7, 4), 3, (3, 3), dtype_names, padding=odd, pad_value=pad, algorithm="winograd"
        )
        yield _make_geometry_test_case(
            (2, 5, 7, 4), 3, (3, 3), dtype_names, padding=odd, pad_value=pad, algorithm="winograd_opened"
        )
    floats = "float32 float32 float32"
    yield _make_geometry_test_case((1, 4, 6, 16), 32, (3, 3), floats, bias=False)
    yield _make_geometry_test_case((1, 6, 9, 8), 4, (3, 3), floats, padding=same, algorithm="winograd_floats")
    yield _make_geometry_test_case((2, 5, 7, 3), 5, (3, 3), floats, padding=odd, algorithm="winograd_floats")
    yield _make_geometry_test_case((1, 4, 6, 16), 32, (3, 3), floats, bias=False, algorithm="winograd_floats")
    yield _make_geometry_test_case((1, 8, 4, 8), 16, (3, 3), floats, padding=same, algorithm="winograd_four")
    yield _make_geometry_test_case((2, 6, 6, 3), 5, (3, 3), floats, bias=False, algorithm="winograd_four")
    yield _make_geometry_test_case((1, 5, 4, 3), 8, (3, 3), floats, padding=same, strides=(2, 1), algorithm="half")
    yield _make_geometry_test_case((1, 5, 7, 8), 8, (3, 3), floats, padding=same, groups=8, algorithm="half")
    yield _make_geometry_test_case(
        (1, 6, 5, 8), 8, (2, 3), floats, bias=False, strides=(1, 2), groups=8, algorithm="half"
    )
    yield _make_geometry_test_case((1, 3, 4, 12), 16, (1, 1), floats, bias=False, algorithm="half")
    yield _make_geometry_test_case((1, 3, 3, 5), 8, (3, 3), floats, padding=odd, algorithm="half")
    yield _make_geometry_test_case((1, 6, 6, 4), 2, (3, 3), algorithm="winograd", bias=False)
    yield _make_geometry_test_case((1, 4, 5, 20), 1, (3, 3), algorithm="winograd")
    yield _make_geometry_test_case((1, 5, 12, 6), 5, (3, 3), padding=same, algorithm="winograd")
    yield _make_geometry_test_case((1, 8, 9, 5), 5, (3, 3), groups=5, padding=same, pad_value=-5, algorithm="unsigned")
    yield _make_geometry_test_case(
        (2, 5, 7, 4), 8, (3, 3), groups=4, padding=odd, strides=(2, 2), pad_value=127, algorithm="unsigned"
    )
    yield _make_geometry_test_case(
        (1, 12, 1, 3), 3, (5, 1), groups=3, padding=(2, 0, 2, 0), pad_value=-128, algorithm="unsigned"
    )
    yield _make_geometry_test_case((1, 6, 7, 3), 3, (3, 5), groups=3, bias=False, dilation=(2, 1), algorithm="unsigned")
    yield _make_geometry_test_case(
        (1, 7, 5, 3), 32, (3, 3), strides=(2, 1), padding=odd, pad_value=-9, algorithm="unsigned_rows"
    )
    yield _make_geometry_test_case((1, 6, 6, 16), 16, (3, 3), padding=same, pad_value=127, algorithm="unsigned_rows")
    yield _make_geometry_test_case((2, 3, 3, 10), 5, (1, 1), bias=False, algorithm="unsigned_rows")
    for dtype_names, pad in (("int8 int8", -5), ("uint8 int8", 200), ("float32 float32 float32", 0)):
        yield _make_geometry_test_case(
            (2, 4, 8, 4), 16, (3, 3), dtype_names, padding=same, pad_value=pad, algorithm="windows"
        )
        yield _make_geometry_test_case(
            (1, 7, 21, 3), 12, (2, 3), dtype_names, padding=odd, strides=(1, 2), pad_value=pad, algorithm="windows"
        )
    yield _make_geometry_test_case((1, 6, 10, 4), 8, (3, 3), dilation=(2, 1), bias=False, algorithm="windows")
    yield _make_geometry_test_case((1, 5, 9, 4), 20, (3, 3), padding=same, pad_value=-9, algorithm="unsigned_windows")
    for dtype_names, pad in (("int8 int8", -5), ("uint8 int8", 200), ("int16 int8", 0), ("float32 float32 float32", 0)):
        yield _make_geometry_test_case(
            (1, 5, 6, 16), 16, (3, 3), dtype_names, groups=2, padding=same, pad_value=pad, algorithm="grouped"
        )
        yield _make_geometry_test_case((2, 4, 3, 6), 9, (1, 1), dtype_names, groups=3, algorithm="grouped")
    yield _make_geometry_test_case(
        (1, 7, 9, 8), 10, (2, 3), groups=2, padding=odd, strides=(2, 1), pad_value=9, algorithm="grouped"
    )
    yield _make_geometry_test_case(
        (1, 1, 20, 12), 8, (1, 3), groups=4, dilation=(1, 2), bias=False, algorithm="grouped"
    )
    yield _make_geometry_test_case((1, 3, 3, 8), 8, (3, 3), groups=2, algorithm="grouped")
    for dtype_names, pad in (("int8 int8", -5), ("uint8 int8", 200), ("int16 int8", 0), ("float32 float32 float32", 0)):
        yield _make_geometry_test_case(
            (2, 6, 9, 1), 5, (3, 3), dtype_names, padding=same, pad_value=pad, algorithm="single"
        )
        yield _make_geometry_test_case(
            (1, 1, 21, 1), 4, (1, 5), dtype_names, padding=(0, 2, 0, 2), pad_value=pad, algorithm="single"
        )
    yield _make_geometry_test_case(
        (1, 9, 8, 1), 3, (4, 2), padding=odd, strides=(2, 2), pad_value=9, bias=False, algorithm="single"
    )
    for k, (size, algorithm) in enumerate(zip((5, 4, 5, 5), PACKED, strict=True)):
        for case in (
            _make_geometry_test_case(
                (2, 5, 6, size), 4, (3, 3), padding=same, pad_value=7 - 9 * k, algorithm=algorithm
            ),
            _make_geometry_test_case((1, 4, 3, size), 5, (1, 1), "uint8 int8", algorithm=algorithm),
            _make_geometry_test_case(
                (1, 7, 6, size), 3, (3, 1), "int16 int8", strides=(2, 1), bias=False, algorithm=algorithm
            ),
        ):
            shape = case.types[1].shape
            for bits in (4, 2):
                small = (np.arange(np.prod(shape)) * 7 % (1 << bits) - (1 << bits - 1)).astype(np.int8).reshape(shape)
                weights_of_few_bits = small * FAR if algorithm == TABLES else small
                yield replace(
                    case, arrays=(None, weights_of_few_bits, *case.arrays[2:]), name=f"{case.name} {bits} bits"
                )
    dynamic = (TensorType((1, 4, 4, 3), "int16"), TensorType((2, 3, 3, 3), "int16"))
    yield Case({**DEFAULTS, "out_dtype": "int64"}, dynamic, name="computed weights")
    depthwise = (TensorType((1, 4, 4, 3), "int8"), TensorType((6, 3, 3, 1), "int8"))
    yield Case({**DEFAULTS, "groups": 3, "out_dtype": "int32"}, depthwise, name="computed depthwise weights")


# ---- Convolution in two dimensions: general, grouped, depthwise.
#
# An ungrouped convolution is a matrix product: pixels p by output channels o, summed over k, the kernel's taps and input channels
# in memory order. ``patch`` holds the k inputs of every pixel; pointwise convolutions need none. Canonical data is NHWC,
# weights OHWI. Type inference and the reference also accept layout NCHW (weights OIHW); the tensor expression does not.
#
# Sources: TFLite ``conv.h``, ``depthwise_conv.h``; ONNX Conv.

LONG_RUN = 8
"""Least width of a kernel for which gathering a patch of a single channel is fast enough. measured: unknown"""


def infer_conv2d_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Return the output type: batch, height, width and channels in the layout of the data, and ``out_dtype``, or the
    data's dtype if this is empty."""
    g = infer_geometry(attrs, types[0].shape, types[1].shape)
    if len(types) > 2 and types[2].size != g.out_channels:
        raise ModelError(
            f"conv2d: the bias has a wrong size; got {types[2].size}, expected {g.out_channels} (output channels)"
        )
    dtype = attrs.get("out_dtype") or types[0].dtype
    if attrs.get("layout", "NHWC") == "NCHW":
        return (TensorType((g.batch, g.out_channels, g.out_height, g.out_width), dtype, layout="NCHW"),)
    return (TensorType((g.batch, g.out_height, g.out_width, g.out_channels), dtype),)


def evaluate_conv2d_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    """Compute the convolution in float64. Exact for integers, whose sums are far below 2**53."""
    attrs = {**DEFAULTS, **attrs}
    data, weight, *bias = (np.asarray(x, np.float64) for x in arrays if x is not None)
    product = _describe_product(attrs, data.shape, weight.shape)
    result = evaluate_product(product, data, weight)
    if bias:
        result = result + bias[0].reshape(-1, *(1,) * (-1 - product.channel_axis))
    return (result.astype(dtypes.to_numpy(attrs["out_dtype"] or arrays[0].dtype.name)),)


# ---------------------------------------------------------------- tensor expressions


def _compute_conv2d(call: OpCall) -> te.Tensor:
    """Build the tensor expression of the convolution, by the algorithm in the node's attribute ``algorithm`` (see
    ALGORITHMS).

    Without an algorithm, one group is computed as a matrix product, and several groups by loops over taps."""
    if call.attrs.get("layout", "NHWC") != "NHWC":
        raise InternalError(f"conv2d: layout cannot be lowered; got {call.attrs['layout']!r}, expected 'NHWC'")
    data, weight, bias = call.data_weight_bias
    attrs = {**DEFAULTS, **call.attrs}
    g = infer_geometry(attrs, data.type.shape, weight.type.shape)
    dtype = attrs["out_dtype"] or data.type.dtype
    algorithm = attrs["algorithm"]
    if algorithm in ("winograd", "winograd_floats", "winograd_four", "winograd_opened"):
        opened = algorithm == "winograd_opened"
        return conv2d_algorithms.compute_winograd(call, g, 4 if algorithm == "winograd_four" else 2, opened=opened)
    if algorithm == "pairs":
        packing = find_pair_packing(call)
        if packing is None:
            raise InternalError(
                "conv2d: algorithm 'pairs' cannot pack these weights; expected find_pair_packing() to succeed"
            )
        pixels = _build_im2col_matrix(g, attrs, data, packing.uint8_weights.shape[1], even_pixel_count=True)
        return build_paired_product(pixels, g.output_pixels, weight, bias, packing)
    if algorithm in ("windows", "unsigned_windows"):
        return build_sliding_window_product(call, attrs, g, as_uint8=algorithm == "unsigned_windows")
    if algorithm == "half" and g.groups > 1:
        return build_float16_depthwise_product(call)
    if algorithm == "half":
        return build_float16_product(
            call,
            gather_patches(g, data, attrs["pad_value"], padded_float16_term_count(g.depth), stored_dtype=HALF),
            g.depth,
        )
    if algorithm == "opened":
        return build_dequantised_product(call, _build_im2col_matrix(g, attrs, data, g.depth))
    if g.groups == 1 and algorithm != "single":
        form = find_packed_weight_form(call, algorithm)
        depth = padded_term_count(call, g.depth) if form is None else padded_depth_of_packed_weights(form, g.depth)
        pixels = _build_im2col_matrix(g, attrs, data, depth, as_uint8=algorithm == "unsigned_rows")
        if form is not None:
            return build_unit_product(call, pixels, g.out_channels, g.depth, packed_product_annotations(call, form))
        more = padded_unit_count(call, g.out_channels) - g.out_channels
        return build_unit_product(
            call, pixels, g.out_channels, g.depth, sum_bound_annotations(data, weight, bias), more
        )
    if algorithm == "grouped":
        return _build_group_products(g, attrs, data, weight, bias, padded_term_count(call, g.depth, 0))
    unsigned = algorithm == "unsigned"
    padded = pad_input(g, data, attrs["pad_value"], unsigned)
    if g.channels == g.groups:
        return _build_depthwise_sums(g, padded, weight, bias, dtype, unsigned)
    return _build_grouped_sums(g, padded, weight, bias, dtype)


def _build_group_products(
    g: Geometry, attrs: Mapping[str, Any], data: Operand, weight: Operand, bias: Operand | None, padded_terms: int
) -> te.Tensor:
    """Build the stage ``acc`` (pixels, G, O / G): one matrix product for each of the G groups of channels.

    ``padded_terms``: number of products in a sum, with zeros appended."""
    dtype, outs, each = attrs["out_dtype"] or data.type.dtype, g.out_channels // g.groups, g.channels // g.groups
    direct = g.kernel == (1, 1) and g.is_im2col_matrix and padded_terms == each
    a = (
        data.tensor((g.output_pixels, g.groups, each))
        if direct
        else gather_patches(g, data, attrs["pad_value"], padded_terms)
    )
    b = pack_weight_rows(weight, g.out_channels, g.depth, padded_terms)
    k = te.reduce_axis(padded_terms, "k")

    def build_sum(p: Var, group: Var, o: Var) -> Expr:
        row = group * outs + o
        product = ir.cast(dtype, a[p, group, k.var]) * ir.cast(dtype, b[row, k.var])
        return te.sum_reduce(product, k, init=build_initial_sum(bias, row, dtype))

    notes = (*sum_bound_annotations(data, weight, bias), (GROUPED, 1))
    return te.compute((g.output_pixels, g.groups, outs), build_sum, ACC, ("p", "g", "o"), notes)


def _build_im2col_matrix(
    g: Geometry,
    attrs: Mapping[str, Any],
    data: Operand,
    padded_terms: int,
    *,
    even_pixel_count: bool = False,
    as_uint8: bool = False,
) -> te.Tensor:
    """Return the im2col matrix (pixels, ``padded_terms``): for every output pixel, the inputs in its window.

    Return the data itself if it already has this form. ``even_pixel_count``: if the number of rows is odd, the last row
    is repeated. ``as_uint8``: int8 data is stored as uint8 after 128 is added."""
    direct = g.is_im2col_matrix and padded_terms == g.depth and not as_uint8
    pad = attrs["pad_value"]
    return (
        data.tensor((g.output_pixels, g.depth))
        if direct
        else gather_patches(g, data, pad, padded_terms, even_pixel_count=even_pixel_count, as_uint8=as_uint8)
    )


def _can_use_winograd(call: OpCall) -> bool:
    """Test whether an exact integer Winograd convolution is possible, and the input channels fill whole words."""
    types, arrays = [x.type for x in call.present], [x.data for x in call.present]
    return types[0].shape[-1] % WORD == 0 and conv2d_algorithms.can_use_integer_winograd(call.attrs, types, arrays)


def _as_op_call_predicate(predicate: Callable[..., bool]) -> Callable[[OpCall], bool]:
    """Convert a predicate on attributes, operand types and constants to a predicate on an :class:`OpCall`."""
    return lambda call: predicate(call.attrs, [x.type for x in call.present], [x.data for x in call.present])


def _is_fixed_size_grouped_convolution(call: OpCall) -> bool:
    """Test whether the convolution has several groups of several channels each, and all sizes are fixed at compile
    time."""
    return 1 < call.attrs.get("groups", 1) < call.present[0].type.shape[-1] and not call.attrs.get("open")


def _can_sum_depthwise_as_uint8(call: OpCall) -> bool:
    """Test whether a depthwise convolution of int8 data can be computed on uint8 data (plus 128) with sums that fit
    int32."""
    return can_store_data_as_uint8(call) and 1 < call.attrs.get("groups", 1) == call.present[0].type.shape[-1]


def _is_single_channel(call: OpCall) -> bool:
    """Test whether the data has one channel and weights are constant, with rows of taps too short to be worth an im2col
    copy."""
    data, weight, _ = call.data_weight_bias
    _, *kernel, _ = weight.type.shape
    is_constant = weight.data is not None and not call.attrs.get("open")
    return is_constant and data.type.shape[-1] == 1 and kernel != [1, 1] and kernel[1] < LONG_RUN


ALGORITHMS: Algorithms = {
    "winograd": _can_use_winograd,
    "winograd_floats": _as_op_call_predicate(conv2d_algorithms.can_use_float_winograd),
    "winograd_opened": lambda call: _can_use_winograd(call) and conv2d_algorithms.can_open_winograd_weights(call),
    "winograd_four": _as_op_call_predicate(conv2d_algorithms.can_use_float_winograd_4x4),
    "pairs": lambda call: find_pair_packing(call) is not None,
    "grouped": _is_fixed_size_grouped_convolution,
    "unsigned": _can_sum_depthwise_as_uint8,
    "unsigned_rows": lambda call: can_store_data_as_uint8(call) and call.attrs.get("groups", 1) == 1,
    "windows": can_use_sliding_windows,
    "unsigned_windows": can_use_uint8_sliding_windows,
    "single": _is_single_channel,
    **PACKED,
    "opened": lambda call: recover_quantised_weights_of_call(call) is not None,
    "half": lambda call: find_float16_weights(call) is not None or can_sum_windows_in_float16(call),
}
"""Algorithms with a predicate that tests whether the algorithm can compute a call.

- ``winograd``, ``winograd_floats``, ``winograd_four``: Winograd's minimal filtering of integers, and of floats in tiles
of 2 x 2 or 4 x 4; ``winograd_opened``: of integers, with weights that are transformed at run time.
- ``pairs``: two pixels are multiplied in one word.
- ``grouped``: one matrix product for each group of channels.
- ``unsigned``: depthwise convolution of data stored as uint8; ``unsigned_rows``: matrix product of such data.
- ``windows``: windows slide over data that is read in place; ``unsigned_windows``: over data stored as uint8.
- ``single``: data of a single channel, computed like a depthwise convolution (3 x 3 to eight channels on a Cortex-M4:
1.91 instead of 5.43 instructions per product).
- ``packed`` and its variants: weights of few bits.
- ``opened``: float weights stored as integers times scales.
- ``half``: sums in float16."""


def _build_depthwise_sums(
    g: Geometry, padded: te.Tensor, weight: Operand, bias: Operand | None, acc_dtype: str, unsigned_input: bool
) -> te.Tensor:
    """Build the stage ``acc`` of a depthwise convolution, in which each output channel reads one input channel.

    Constant weights are stored as (KH, KW, C), so that weights of neighbouring channels are neighbours in memory.
    ``unsigned_input``: ``padded`` is int8 data stored as uint8 after 128 was added, and the bias is corrected for
    this."""
    bias = make_bias_operand(bias or weight, bias_for_uint8_data(weight, bias)) if unsigned_input else bias
    times = g.out_channels // g.channels
    packed = None if weight.data is None else weight.packed(weight.data.transpose(1, 2, 3, 0)[:, :, 0])
    taps = weight.tensor((g.out_channels, *g.kernel)) if packed is None else packed
    ky, kx = te.reduce_axis(g.kernel[0], "ky"), te.reduce_axis(g.kernel[1], "kx")

    def build_sum(n: Var, y: Var, x: Var, c: Var) -> Expr:
        value = padded[(n, *_find_padded_row_and_column(g, y, x, ky.var, kx.var), c // times if times > 1 else c)]
        factor = taps[c, ky.var, kx.var] if packed is None else taps[ky.var, kx.var, c]
        return te.sum_reduce(
            ir.cast(acc_dtype, value) * ir.cast(acc_dtype, factor), ky, kx, init=build_initial_sum(bias, c, acc_dtype)
        )

    return te.compute((g.batch, g.out_height, g.out_width, g.out_channels), build_sum, ACC, ("n", "y", "x", "c"))


def _build_grouped_sums(
    g: Geometry, padded: te.Tensor, weight: Operand, bias: Operand | None, acc_dtype: str
) -> te.Tensor:
    """Build the stage ``acc`` of a grouped convolution by loops over taps; an output channel reads the input channels
    of its group."""
    depth, outs = g.channels // g.groups, g.out_channels // g.groups
    taps = weight.tensor() if weight.data is None else weight.packed(weight.data)
    ky, kx = te.reduce_axis(g.kernel[0], "ky"), te.reduce_axis(g.kernel[1], "kx")
    k = te.reduce_axis(depth, "k")

    def build_sum(n: Var, y: Var, x: Var, c: Var) -> Expr:
        value = padded[(n, *_find_padded_row_and_column(g, y, x, ky.var, kx.var), c // outs * depth + k.var)]
        product = ir.cast(acc_dtype, value) * ir.cast(acc_dtype, taps[c, ky.var, kx.var, k.var])
        return te.sum_reduce(product, ky, kx, k, init=build_initial_sum(bias, c, acc_dtype))

    return te.compute((g.batch, g.out_height, g.out_width, g.out_channels), build_sum, ACC, ("n", "y", "x", "c"))


def _find_padded_row_and_column(g: Geometry, y: Expr, x: Expr, ky: Expr, kx: Expr) -> tuple[Expr, Expr]:
    """Return the row and column of the padded input that the tap (``ky``, ``kx``) of output pixel (``y``, ``x``)
    reads."""
    rows, columns = g.windows
    return rows.padded_index(y, ky), columns.padded_index(x, kx)


# ---------------------------------------------------------------- legalisation, cost


def _legalize_conv2d(node: Node, graph: Graph) -> Legalized | None:
    """Rewrite a quantised convolution to a convolution on plain integers and ``requantize``; split a fused activation
    from a float convolution."""
    if not is_quantised(node, graph):
        return split_activation(node, graph)
    data, weight = (graph.types[name] for name in node.inputs[:2])
    g = infer_geometry(node.attrs, data.shape, weight.shape)
    # TFLite multiplies the scales of uint8 convolutions as floats (GetQuantizedConvolutionMultipler), of others as doubles.
    trailing = 2 if node.attrs.get("layout", "NHWC") == "NCHW" else 0
    return legalize_product(
        node,
        graph,
        ProductForm(g.depth, trailing, multiplies_scales_in_float32=data.dtype == "uint8", core_has_pad_value=True),
    )


def count_conv2d_macs(attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]) -> int:
    """Return the number of multiply-accumulates, including products with padding."""
    return out_types[0].size * infer_geometry(attrs, types[0].shape, types[1].shape).depth


def _describe_product(attrs: Mapping[str, Any], data_shape: Sequence[int], weight_shape: Sequence[int]) -> Product:
    g = infer_geometry(attrs, data_shape, weight_shape)
    return Product(-3 if attrs["layout"] == "NCHW" else -1, g.groups, g.windows, attrs["pad_value"])


def _conv2d_input_window(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> Window | None:
    """Return the window of rows and columns of the data that an output pixel reads; None in layout NCHW."""
    product = _describe_product({**DEFAULTS, **attrs}, types[0].shape, types[1].shape)
    return Window(product.windows, product.pad_value) if product.channel_axis == -1 else None


def _conv2d_overflow_message(checked_node: CheckedNode) -> str:
    """Return an error message if sums of products can overflow their dtype, else an empty string."""
    depth = infer_geometry(checked_node.attrs, checked_node.types[0].shape, checked_node.types[1].shape).depth
    return product_sum_overflow_message(checked_node, depth, checked_node.attrs["pad_value"])


OPERATORS = (
    OpDef(
        "conv2d",
        gradient=build_conv2d_gradients,
        infer=infer_conv2d_types,
        reference=evaluate_conv2d_reference,
        compute=_compute_conv2d,
        cases=_make_conv2d_test_cases,
        attrs=ATTRS,
        legalize=_legalize_conv2d,
        macs=count_conv2d_macs,
        product=lambda attrs, types: _describe_product(attrs, types[0].shape, types[1].shape),
        axes=map_batch_axis,
        window=_conv2d_input_window,
        algorithms=ALGORITHMS,
        sound=(_conv2d_overflow_message,),
        operand_names=("data", "weight", "bias"),
    ),
)
