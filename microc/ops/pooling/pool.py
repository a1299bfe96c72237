# SPDX-License-Identifier: Apache-2.0
"""Operators ``max_pool2d``, ``avg_pool2d`` and ``sum_pool2d``: reductions over windows of height and width, of floats
and integers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import lcm, prod
from typing import Any

import numpy as np

from microc import te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import InternalError, ModelError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.numerics import INT32_MAX
from microc.ops.arithmetic import (
    ACTIVATIONS,
    Rewrite,
    activation_range,
    computation_dtype,
    emit_activation,
    is_quantised,
    per_tensor_quant,
    quantize_attrs,
    split_activation,
)
from microc.ops.attributes import ACTIVATED, LAYOUT, OPTIONAL, Attributes, Rounding, choice, flag, integer, integers
from microc.ops.constants import CheckedNode, window_sum_overflow_message
from microc.ops.elementwise.tables import IDENTITY, emit_quantised_function
from microc.ops.gradients.rules import build_avg_pool_gradient, build_max_pool_gradient
from microc.ops.quantised.exact_rounding import LARGEST_DOMAIN, exact_scale_ratio
from microc.ops.quantised.requantize import Requantization, clip_to_float32, emit_requantize, emit_scaled_sum
from microc.ops.registry import AxisMap, Case, Legalized, OpCall, OpDef
from microc.ops.windows import Window, Windows, gather_taps, window_axes
from microc.tir import ir
from microc.tir.ir import Expr
from microc.tir.names import ACC, PADDED

# ---- Legalisation of pools: quantised ones become integer operators; float ones only have their activation split off.


def legalize_max_pool(node: Node, graph: Graph) -> Legalized | None:
    """Rewrite a quantised max pool to a max pool of the stored integers, and if needed a rescaling and the activation.

    For a float max pool, only split off the activation."""
    if not is_quantised(node, graph):
        return split_activation(node, graph)
    return _emit_pool_and_clip(node, graph) if _has_same_quant(node, graph) else _emit_requantised_max(node, graph)


def legalize_avg_pool(node: Node, graph: Graph) -> Legalized | None:
    """Rewrite a quantised average pool to an average of the stored integers (TFLite) or to a rescaled sum of them
    (ONNX).

    If neither gives exact results, rewrite it to float operators. For a float average pool, only split off the
    activation."""
    if not is_quantised(node, graph):
        return split_activation(node, graph)
    partial = any(node.attr("padding")) and not node.attr("count_include_pad")
    beyond = prod(node.attr("kernel")) << dtypes.dtype_parts(graph.types[node.inputs[0]].dtype).bits > INT32_MAX
    plain = node.attr("rounding") != Rounding.EVEN and not node.attr("count_include_pad") and not beyond
    if plain and _has_same_quant(node, graph):
        return _emit_pool_and_clip(node, graph)
    return _emit_float_average(node, graph) if beyond or partial else _emit_scaled_sum(node, graph)


def _has_same_quant(node: Node, graph: Graph) -> bool:
    """Test whether data and result have the same dtype, scale and zero point. As in TFLite, scales count as equal if
    they differ by at most 1e-6."""
    scale_in, zero_in = per_tensor_quant(node, graph, node.inputs[0])
    scale_out, zero_out = per_tensor_quant(node, graph, node.outputs[0])
    close = scale_in == scale_out if node.attr("rounding") == Rounding.EVEN else abs(scale_in - scale_out) <= 1e-6
    return close and zero_in == zero_out and graph.types[node.inputs[0]].dtype == graph.types[node.outputs[0]].dtype


def _emit_pool_and_clip(node: Node, graph: Graph) -> Legalized | None:
    """Rewrite to the pool of the stored integers and a ``clip`` that applies the activation; return None if there is no
    activation."""
    activation = str(node.attr("activation"))
    if not activation:
        return None
    rewrite = Rewrite(node, graph)
    result = graph.types[node.outputs[0]]
    assert result.quant is not None
    low, high = activation_range(activation, result.quant, result.dtype, str(node.attr("rounding")), str(node.loc))
    plain = rewrite.add_value("pooled", result.shape, result.dtype)
    rewrite.emit(node.op, node.inputs, plain, {**node.attrs, "activation": ""})
    rewrite.emit("clip", (plain,), node.outputs[0], {"minimum": low, "maximum": high, "rounding": Rounding.NONE})
    return rewrite.legalized()


def _emit_requantised_max(node: Node, graph: Graph) -> Legalized:
    """Rewrite to the maximum of the stored integers, followed by the activation and the conversion to the result's
    scale."""
    source, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    activation = str(node.attr("activation"))
    rewrite = Rewrite(node, graph)
    plain = rewrite.add_value("pooled", result.shape, source.dtype, source.quant)
    rewrite.emit(node.op, node.inputs, plain, {**node.attrs, "activation": ""})
    op, attrs = ACTIVATIONS[activation] if activation else IDENTITY
    emit_quantised_function(rewrite, op, attrs, plain, node.outputs[0], str(node.attr("rounding")))
    return rewrite.legalized()


def _emit_float_average(node: Node, graph: Graph) -> Legalized:
    """Rewrite to an average in floats of the stored integers minus their zero point, followed by scaling, activation
    and ``quantize``.

    Sums of such floats are exact below 2**24 in any order of additions, so that ties are rounded the same way on every
    core."""
    rewrite, result, activation = Rewrite(node, graph), graph.types[node.outputs[0]], str(node.attr("activation"))
    scale, zero = per_tensor_quant(node, graph, node.inputs[0])
    stored = rewrite.add_value("stored", graph.types[node.inputs[0]].shape, "float32")
    rewrite.emit("dequantize", node.inputs, stored, {"scale": (1.0,), "zero_point": (zero,), "axis": None})
    mean, real = (rewrite.add_value(name, result.shape, "float32") for name in ("mean", "real"))
    rewrite.emit(node.op, (stored,), mean, {**node.attrs, "activation": ""})
    if node.attr("rounding") == Rounding.EVEN and activation not in ("tanh", "sigmoid"):
        _emit_half_even_means(rewrite, mean)
        return rewrite.legalized()
    rewrite.emit("mul", (mean, rewrite.add_constant("scale", np.array([scale], np.float32))), real, {})
    if activation:
        mean, real = real, rewrite.add_value("active", result.shape, "float32")
        emit_activation(rewrite, activation, mean, real)
    rewrite.emit("quantize", (real,), node.outputs[0], quantize_attrs(result, node.attr("rounding")))
    return rewrite.legalized()


def _emit_half_even_means(rewrite: Rewrite, mean_value: str) -> None:
    """Append the operators that scale the float means ``mean_value`` to the quantised result, with ties to even.

    The means times a common multiple of the windows' element counts are integers up to rounding errors; these integers
    are scaled exactly. If there are too many integers to prove that, the means are quantised in floats."""
    node, result = rewrite.node, rewrite.type(rewrite.node.outputs[0])
    (scale, zero), (scale_out, zero_out) = (
        per_tensor_quant(node, rewrite.graph, name) for name in (node.inputs[0], node.outputs[0])
    )
    assert result.quant is not None
    least, most = dtypes.int_range(rewrite.type(node.inputs[0]).dtype)
    multiple = lcm(*_element_counts_of_windows(node, rewrite.type(node.inputs[0]).shape))
    bound, factor = multiple * max(most - zero, zero - least), exact_scale_ratio(scale, scale_out)
    low, high = activation_range(str(node.attr("activation")), result.quant, result.dtype, Rounding.EVEN, str(node.loc))
    if 2 * bound > LARGEST_DOMAIN:
        stored = rewrite.add_value("rounded", result.shape, result.dtype)
        attrs = {**quantize_attrs(result, Rounding.EVEN), "scale": (float(np.float32(1 / factor)),)}
        rewrite.emit("quantize", (mean_value,), stored, attrs)
        rewrite.emit("clip", (stored,), node.outputs, {"minimum": low, "maximum": high, "rounding": Rounding.NONE})
        return
    times = rewrite.add_constant("multiple", np.array([multiple], np.float32))
    large = rewrite.emit("mul", (mean_value, times), rewrite.add_value("multiple", result.shape, "float32"), {})
    rounded = rewrite.emit("round", (large,), rewrite.add_value("rounded", result.shape, "float32"), {})
    whole = rewrite.emit("cast", (rounded,), rewrite.add_value("whole", result.shape, "int32"), {"dtype": "int32"})
    end: dict[str, Attr] = {"zero_point": zero_out, "minimum": low, "maximum": high, "out_dtype": result.dtype}
    factor /= multiple
    emit_scaled_sum(rewrite, whole, bound, factor, clip_to_float32(float(factor)), end)


def _element_counts_of_windows(node: Node, data_shape: Sequence[int]) -> set[int]:
    """Return the distinct numbers of elements over which the windows average. Windows at a border with padding have
    fewer elements."""
    if node.attr("count_include_pad"):
        return {prod(node.attr("kernel"))}
    spans = (axis.distinct_tap_spans() for axis in _windows(node.attrs, data_shape))
    rows, columns = (np.diff(each).reshape(-1).tolist() for each in spans)
    return {row_count * column_count for row_count in rows for column_count in columns}


def _emit_scaled_sum(node: Node, graph: Graph) -> Legalized:
    """Rewrite to a window sum and a scaling: round(sum(x - zero point) * scale / (result scale * count)) + zero point.

    Ties are rounded to even and scales are computed in float32, as in ONNX Runtime."""
    scale_in, zero_in = per_tensor_quant(node, graph, node.inputs[0])
    scale_out, zero_out = per_tensor_quant(node, graph, node.outputs[0])
    result, count = graph.types[node.outputs[0]], prod(node.attr("kernel"))
    assert result.quant is not None
    rewrite = Rewrite(node, graph)
    shared = {key: node.attr(key) for key in ("kernel", "strides", "padding", "layout")}
    total = rewrite.add_value("sum", result.shape, "int32")
    offset = {"pad_value": zero_in, "offset": -zero_in * count, "out_dtype": "int32"}
    rewrite.emit("sum_pool2d", node.inputs, total, {**shared, **offset})
    rounding, scale = (
        str(node.attr("rounding")),
        float(np.float32(scale_in) / (np.float32(scale_out) * np.float32(count))),
    )
    low, high = activation_range(str(node.attr("activation")), result.quant, result.dtype, rounding, str(node.loc))
    parameters = Requantization((scale,), zero_out, low, high, result.dtype)
    if rounding == Rounding.EVEN:
        least, most = dtypes.int_range(graph.types[node.inputs[0]].dtype)
        bound = count * max(most - zero_in, zero_in - least)
        factor = exact_scale_ratio(scale_in, scale_out) / count
        emit_scaled_sum(rewrite, total, bound, factor, clip_to_float32(scale), parameters.result_attrs)
    else:
        emit_requantize(rewrite, total, node.outputs[0], parameters, rounding)
    return rewrite.legalized()


# ---- Test cases of the pools: padding, strides, dtypes, windows over the whole image, axes of one element.


def _make_pool_test_case(
    data_shape: tuple[int, ...], data_dtype: str, kernel_shape: tuple[int, int], tolerance: float = 0.0, **attrs: Any
) -> Case:
    given = {"kernel": kernel_shape, "strides": kernel_shape, **attrs}
    return Case(given, (TensorType(data_shape, data_dtype),), tolerance=tolerance)


def make_max_pool_test_cases(**extra: Any) -> Iterable[Case]:
    for dtype in ("float32", "int8", "uint8", "int16"):
        near = 2e-6 if dtype == "float32" else 0.0
        yield _make_pool_test_case((1, 4, 4, 3), dtype, (2, 2), near, **extra)
        yield _make_pool_test_case((2, 5, 7, 1), dtype, (3, 2), near, strides=(2, 1), padding=(1, 0, 1, 1), **extra)
        yield _make_pool_test_case((1, 3, 3, 4), dtype, (3, 3), near, strides=(1, 1), padding=(1, 1, 1, 1), **extra)
        yield _make_pool_test_case((1, 3, 5, 6), dtype, (3, 5), near, **extra)
        yield _make_pool_test_case((1, 1, 1, 1), dtype, (1, 1), near, **extra)
        yield _make_pool_test_case((1, 6, 1, 2), dtype, (2, 1), near, strides=(3, 1), padding=(0, 0, 1, 0), **extra)


def make_avg_pool_test_cases() -> Iterable[Case]:
    yield from make_max_pool_test_cases(count_include_pad=False)
    yield _make_pool_test_case(
        (1, 3, 3, 2), "float32", (2, 2), 2e-6, strides=(1, 1), padding=(1, 1, 0, 0), count_include_pad=True
    )


def make_sum_pool_test_cases() -> Iterable[Case]:
    base: dict[str, Attr] = {"strides": (2, 2), "padding": (1, 0, 0, 1), "layout": "NHWC", "out_dtype": "int32"}
    for dtype in ("int8", "uint8", "int16"):
        attrs: dict[str, Attr] = {**base, "kernel": (2, 3), "pad_value": 3, "offset": -18}
        yield Case(attrs, (TensorType((2, 5, 6, 3), dtype),))
        yield Case({**attrs, "kernel": (5, 6), "padding": (0, 0, 0, 0)}, (TensorType((2, 5, 6, 3), dtype),))


# ---- Pools over height and width. ``max_pool2d`` and ``avg_pool2d`` of integers use the stored integers as TFLite's kernels do.
#
# Padding never contributes to a maximum. It contributes zeros to an average only if ``count_include_pad``. A window must contain
# at least one element of the data. Quantised averages of ONNX are legalised to ``sum_pool2d``. The channels-first layout exists
# only before the pass ``channels_last``: type inference and reference support it, tensor expressions do not.
#
# Source of the integer average: TFLite ``reference/integer_ops/pooling.h`` (AveragePool).

WINDOWS: Attributes = {
    "kernel": integers("rows and columns of a window", length=2, least=1),
    "strides": integers("down and to the right", length=2, least=1),
    "padding": integers("top, left, bottom, right", (0, 0, 0, 0), length=4, least=0),
    "layout": LAYOUT,
    "open": integers("for variable sizes: the largest padding on each side", OPTIONAL, length=4, least=0),
}
ATTRS: Attributes = {**WINDOWS, **ACTIVATED}


def _windows(attrs: Mapping[str, Any], shape: Sequence[int]) -> Windows:
    """Return the windows along height and width."""
    extents = shape[2:4] if attrs["layout"] == "NCHW" else shape[1:3]
    return window_axes(extents, attrs["kernel"], attrs["strides"], attrs["padding"])


def _infer_pool_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    tensor_type = types[0]
    if len(tensor_type.shape) != 4:
        raise ModelError(
            f"pool: the data need four axes, batch, two spatial axes and channels; got {tensor_type.shape}"
        )
    if tensor_type.dtype == "bool":
        raise ModelError("pool: the data have a wrong dtype; got bool, expected numbers")
    windows = _windows(attrs, tensor_type.shape)
    for axis in windows:
        if axis.count < 1 or axis.has_empty_window:
            raise ModelError(
                f"pool: a window of {axis.taps} with stride {axis.stride} and padding={attrs['padding']} does not fit an "
                f"axis; got {axis.extent} elements",
                hint="make every window hold one element at least",
            )
    extents = [axis.count for axis in windows]
    shape = (
        (*tensor_type.shape[:2], *extents)
        if attrs["layout"] == "NCHW"
        else (tensor_type.shape[0], *extents, tensor_type.shape[3])
    )
    return (TensorType(shape, attrs.get("out_dtype") or tensor_type.dtype, layout=tensor_type.layout),)


# ---------------------------------------------------------------- reference


def _gather_taps(attrs: Mapping[str, Any], x: Array, pad_value: float) -> Array:
    """Return all windows of the padded data, as an array of shape (taps, N, H, W, C)."""
    first = 2 if attrs["layout"] == "NCHW" else 1
    taps = np.stack([elements for _, elements in gather_taps(_windows(attrs, x.shape), x, pad_value, first)])
    return taps.transpose(0, 1, 3, 4, 2) if attrs["layout"] == "NCHW" else taps


def _convert_from_nhwc(attrs: Mapping[str, Any], nhwc_result: Array, result_dtype: Any) -> tuple[Array, ...]:
    """Return the NHWC array in the layout of the node and in the dtype of the result."""
    nhwc_result = nhwc_result.transpose(0, 3, 1, 2) if attrs["layout"] == "NCHW" else nhwc_result
    return (np.ascontiguousarray(nhwc_result).astype(result_dtype),)


def _evaluate_max_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = arrays[0]
    return _convert_from_nhwc(attrs, _gather_taps(attrs, x, _lowest_value(x.dtype.name)).max(0), x.dtype)


def _evaluate_avg_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = arrays[0]
    wide = x.astype(np.float64 if x.dtype.kind == "f" else np.int64)
    total = _gather_taps(attrs, wide, 0).sum(0)
    count = np.full(total.shape, prod(attrs["kernel"]))
    if not attrs["count_include_pad"]:
        count = _gather_taps(attrs, np.ones(x.shape, np.int64), 0).sum(0)
    if x.dtype.kind == "f":
        return _convert_from_nhwc(attrs, total / count, x.dtype)
    half = np.where(total > 0, total + count // 2, count // 2 - total) // count
    return _convert_from_nhwc(attrs, np.where(total > 0, half, -half), x.dtype)


def _evaluate_sum_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    total = _gather_taps(attrs, arrays[0].astype(np.int64), attrs["pad_value"]).sum(0) + attrs["offset"]
    return _convert_from_nhwc(attrs, total, np.int32)


# ---------------------------------------------------------------- tensor expressions


def _reduce_windows(call: OpCall, combiner: str, pad_value: float, initial_value: float) -> te.Tensor:
    """Build the te stage ``acc``: each window reduced by ``combiner`` in the computation dtype.

    A window that covers the whole image without padding is reduced over one axis of height * width elements."""
    data = call.data
    if call.attrs["layout"] != "NHWC":
        raise InternalError(f"pool: layout cannot be lowered; got {call.attrs['layout']!r}, expected 'NHWC'")
    batch, height, width, channels = data.type.shape
    dtype = computation_dtype(data.type.dtype)
    start = ir.const(initial_value, dtype)
    if call.attrs["kernel"] == (height, width) and not any(_largest_padding_of_sides(call)):
        image, k = data.tensor((batch, height * width, channels)), te.reduce_axis(height * width, "k")

        def build_whole_image_element(n: Expr, c: Expr) -> Expr:
            return te.Reduce(combiner, ir.cast(dtype, image[n, k.var, c]), (k,), start)

        return te.compute((batch, channels), build_whole_image_element, ACC, ("n", "c"))
    x = _pad_data(call, data.tensor(), pad_value)
    ky, kx = (te.reduce_axis(extent, name) for extent, name in zip(call.attrs["kernel"], ("ky", "kx"), strict=True))
    down, right = call.attrs["strides"]

    def build_reduced_element(n: Expr, y: Expr, column: Expr, c: Expr) -> Expr:
        value = x[n, y * down + ky.var, column * right + kx.var, c]
        return te.Reduce(combiner, ir.cast(dtype, value), (ky, kx), start)

    return te.compute(call.out_types[0].shape, build_reduced_element, ACC, ("n", "y", "x", "c"))


def _largest_padding_of_sides(call: OpCall) -> tuple[int, ...]:
    """Return the largest padding of each side (top, left, bottom, right) over all sizes that the network may get at run
    time.

    It is the attribute ``open``, as in :class:`microc.ops.convolution.geometry.Geometry`, or the padding itself if
    sizes are fixed."""
    return tuple(call.attrs.get("open") or call.attrs["padding"])


def _pad_data(call: OpCall, x: te.Tensor, pad_value: float) -> te.Tensor:
    """Build the te stage ``padded``: the data with a border of ``pad_value``. Return the data itself if there is no
    padding."""
    sides = _largest_padding_of_sides(call)
    if not any(sides):
        return x
    rows, columns = _windows(call.attrs, x.shape)

    def build_padded_element(n: Expr, row: Expr, column: Expr, c: Expr) -> Expr:
        inside = ir.all_of(
            condition
            for index, axis, before, after in zip((row, column), (rows, columns), sides[:2], sides[2:], strict=True)
            for condition in (
                *((index >= axis.before,) if before else ()),
                *((index < axis.extent + axis.before,) if after else ()),
            )
        )
        assert inside is not None
        return ir.select(inside, x[n, row - rows.before, column - columns.before, c], ir.const(pad_value, x.dtype))

    batch, *extents, channels = x.shape
    height, width = (e + axis.before + axis.after for e, axis in zip(extents, (rows, columns), strict=True))
    return te.compute((batch, height, width, channels), build_padded_element, PADDED, ("n", "y", "x", "c"))


def _compute_max(call: OpCall) -> te.Tensor:
    data = call.data
    lowest = _lowest_value(data.type.dtype)
    acc = _reduce_windows(call, "maximum", lowest, lowest)
    return _build_pool_stage(acc, lambda value, *_: ir.cast(data.type.dtype, value))


def _lowest_value(dtype: str) -> int | float:
    """Return the lowest value of ``dtype``, which is the neutral element of the maximum."""
    return float("-inf") if dtypes.is_float(dtype) else dtypes.int_range(dtype)[0]


def _compute_avg(call: OpCall) -> te.Tensor:
    data = call.data
    dtype = data.type.dtype
    acc = _reduce_windows(call, "add", 0, 0)

    def build_average(value: Expr, *index: Expr) -> Expr:
        count = _build_window_size(call, data.type.shape, index)
        if dtypes.is_float(dtype):
            return value / ir.cast(dtype, count)
        count = ir.cast(value.dtype, count)
        half = ir.binary("truncdiv", count, 2)
        nudged = ir.select(value > 0, value + half, value - half)
        return ir.cast(dtype, ir.binary("truncdiv", nudged, count))

    return _build_pool_stage(acc, build_average)


def _build_window_size(call: OpCall, data_shape: tuple[int, ...], window_index: Sequence[Expr]) -> Expr:
    """Build the number of elements (int32) over which the window at ``window_index`` averages."""
    sides = _largest_padding_of_sides(call)
    if call.attrs["count_include_pad"] or not any(sides):
        return ir.const(prod(call.attrs["kernel"]), "int32")
    total: Expr = ir.const(1, "int32")
    windows = _windows(call.attrs, data_shape)
    for axis, index, before, after in zip(windows, window_index[1:3], sides[:2], sides[2:], strict=True):
        first = index * axis.stride - axis.before
        start = ir.maximum(first, 0) if before else first
        end = ir.minimum(first + axis.taps, axis.extent) if after else first + axis.taps
        total = total * ((end - start) if before or after else ir.const(axis.taps, "int32"))
    return total


def _build_pool_stage(acc: te.Tensor, build_result: Any) -> te.Tensor:
    """Build the te stage ``pool``, which applies ``build_result`` to the reduced value of each window and its index."""
    assert isinstance(acc.definition, te.ComputeDef)
    axes = tuple(axis.name for axis in acc.definition.axes)
    return te.compute(acc.shape, lambda *index: build_result(acc[index], *index), "pool", axes)


def _compute_sum(call: OpCall) -> te.Tensor:
    return _reduce_windows(call, "add", call.attrs["pad_value"], call.attrs["offset"])


# ---------------------------------------------------------------- registry


def _map_pool_axes(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    return ((0, None, None, 3) if attrs["layout"] == "NHWC" else (0, 1, None, None),)


def _pool_input_window(
    attrs: Mapping[str, Any], types: Sequence[TensorType], pad_value: int | float | None
) -> Window | None:
    """Return the window of the input that one element of the result reads; None in the channels-first layout."""
    return Window(_windows(attrs, types[0].shape), pad_value) if attrs["layout"] == "NHWC" else None


def _count_pool_macs(attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]) -> int:
    """Return the number of additions or comparisons of a pool, counted as multiply-accumulate operations."""
    return out_types[0].size * int(prod(attrs["kernel"]))


def _pool_overflow_message(checked_node: CheckedNode) -> str:
    """Return a message if the sum of a window's integers plus the attribute ``offset`` can overflow int32, else an
    empty string."""
    attrs, count = checked_node.attrs, prod(checked_node.attrs["kernel"])
    if "offset" not in attrs:
        return window_sum_overflow_message(checked_node, count, rounding_addend=count)
    if not dtypes.is_integer(checked_node.types[0].dtype):
        return f"the data must be integers; got {checked_node.types[0].dtype}"
    return window_sum_overflow_message(checked_node, count, attrs["pad_value"], attrs["offset"])


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "max_pool2d",
        gradient=build_max_pool_gradient,
        infer=_infer_pool_types,
        reference=_evaluate_max_reference,
        compute=_compute_max,
        cases=make_max_pool_test_cases,
        attrs=ATTRS,
        legalize=legalize_max_pool,
        edges="NaN is passed on",
        axes=_map_pool_axes,
        window=lambda attrs, types: _pool_input_window(attrs, types, _lowest_value(types[0].dtype)),
        operand_names=("data",),
    ),
    OpDef(
        "avg_pool2d",
        gradient=build_avg_pool_gradient,
        infer=_infer_pool_types,
        reference=_evaluate_avg_reference,
        compute=_compute_avg,
        cases=make_avg_pool_test_cases,
        sound=(_pool_overflow_message,),
        attrs={**ATTRS, "count_include_pad": flag("True if the mean includes the padding, as zeros")},
        legalize=legalize_avg_pool,
        macs=_count_pool_macs,
        axes=_map_pool_axes,
        window=lambda attrs, types: _pool_input_window(attrs, types, 0 if attrs["count_include_pad"] else None),
        operand_names=("data",),
    ),
    OpDef(
        "sum_pool2d",
        infer=_infer_pool_types,
        reference=_evaluate_sum_reference,
        compute=_compute_sum,
        cases=make_sum_pool_test_cases,
        sound=(_pool_overflow_message,),
        attrs={
            **WINDOWS,
            "pad_value": integer("value of the padding"),
            "offset": integer("initial value of a sum"),
            "out_dtype": choice("of the result", "int32", default="int32"),
        },
        macs=_count_pool_macs,
        axes=_map_pool_axes,
        window=lambda attrs, types: _pool_input_window(attrs, types, attrs["pad_value"]),
        operand_names=("data",),
    ),
)
