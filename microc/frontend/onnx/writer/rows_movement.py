# SPDX-License-Identifier: Apache-2.0
"""Export of operators that move elements or sample images to ONNX."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product, zip_longest
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.frontend.onnx.operators.images import (
    Coordinates,
    NearestMode,
    ResizedAxis,
    ResizeMode,
    ResizeRule,
    compute_indices_and_weights,
    compute_source_positions,
)
from microc.frontend.onnx.writer.context import TO_FIRST, NodeContext, OpWriter
from microc.frontend.onnx.writer.rows_elementwise import dequantise_number

# ---- Operators that move or select elements.

BEFORE_START = -(1 << 62)
"""End index of a Slice with negative step that includes the first element."""


def write_reshape(context: NodeContext) -> None:
    """Write ``reshape`` as Reshape.

    Shapes with an extent of 0 require ``allowzero``, because a 0 otherwise means the extent of the data."""
    shape = context.attr("shape")
    allowzero = 1 if 0 in shape else None
    context.write_result(
        "Reshape", context.operand_name(), context.share_int64_initializer(*shape), allowzero=allowzero
    )


def write_transpose(context: NodeContext) -> None:
    """Write ``transpose`` as Transpose."""
    context.write_result("Transpose", context.operand_name(), perm=context.attr("axes"))


def write_concat(context: NodeContext) -> None:
    """Write ``concat`` as Concat, with channels first if all operands have been written only in that layout."""
    builder, names, rank = context.builder, context.node.inputs, len(context.result_type.shape)
    axis = context.attr("axis") % rank
    if all(map(builder.is_written_only_channels_first, names)):
        context, axis = context.with_channels_first(), TO_FIRST.index(axis)
    context.write_result("Concat", *(context.operand_name(k) for k in range(len(names))), axis=axis)


def write_slice(context: NodeContext) -> None:
    """Write ``slice`` as Slice along the axes on which it omits elements; as Identity if there are none."""
    parts = zip(
        *(context.attr(name) for name in ("begin", "end", "strides")), context.operand_type().shape, strict=True
    )
    partial = [(axis, *part[:3]) for axis, part in enumerate(parts) if part != (0, part[3], 1, part[3])]
    if not partial:
        context.write_result("Identity", context.operand_name())
        return
    axes, begin, end, strides = (context.share_int64_initializer(*numbers) for numbers in zip(*partial, strict=True))
    context.write_result("Slice", context.operand_name(), begin, end, axes, strides)


def write_reverse(context: NodeContext) -> None:
    """Write ``reverse`` as Slice with steps of -1."""
    axes = context.attr("axes")
    if not axes:
        context.write_result("Identity", context.operand_name())
        return
    numbers = ((-1,) * len(axes), (BEFORE_START,) * len(axes), axes, (-1,) * len(axes))
    context.write_result(
        "Slice",
        context.operand_name(),
        *(context.share_int64_initializer(*numbers_of_axis) for numbers_of_axis in numbers),
    )


def write_pad(context: NodeContext) -> None:
    """Write ``pad`` as Pad; the attribute ``value`` is as stored, and is dequantised here if the data are quantised."""
    value = dequantise_number(context, context.attr("value"))
    context.write_result(
        "Pad", context.operand_name(), _share_padding_initializer(context), context.share_scalar_initializer(value)
    )


def _share_padding_initializer(context: NodeContext) -> str:
    """Return the name of an initialiser with the padding before each axis, then the padding after each axis."""
    pairs = context.attr("padding")
    return context.share_int64_initializer(*(before for before, _ in pairs), *(after for _, after in pairs))


def write_mirror_pad(context: NodeContext) -> None:
    """Write ``mirror_pad`` as Pad with a mode.

    ONNX lacks mode ``symmetric``, which is written as a Gather along each padded axis."""
    mode, data = context.attr("mode"), context.operand_name()
    if mode != "symmetric":
        if mode == "wrap":
            context.builder.require_opset(19)
        context.write_result("Pad", data, _share_padding_initializer(context), mode=mode)
        return
    padded = [axis for axis, amounts in enumerate(context.attr("padding")) if any(amounts)]
    for axis in padded:
        extent, amounts = context.operand_type().shape[axis], context.attr("padding")[axis]
        symmetric_indices = np.pad(np.arange(extent, dtype=np.int64), amounts, mode="symmetric")
        data = context.emit("Gather", data, context.add_initializer(symmetric_indices, "places"), axis=axis)
    context.write_result("Identity", data)


def write_broadcast_to(context: NodeContext) -> None:
    """Write ``broadcast_to`` as Expand to a constant shape."""
    context.write_result("Expand", context.operand_name(), context.share_int64_initializer(*context.attr("shape")))


def write_triangle(context: NodeContext) -> None:
    """Write ``triangle`` as Trilu, which keeps the upper or lower triangle of matrices."""
    diagonal = context.add_initializer(np.array(context.attr("diagonal"), np.int64))
    context.write_result("Trilu", context.operand_name(), diagonal, upper=int(context.attr("upper")))


def write_reverse_sequence(context: NodeContext) -> None:
    """Write ``reverse_sequence`` as ReverseSequence."""
    axes = {"time_axis": context.attr("time_axis"), "batch_axis": context.attr("batch_axis")}
    if sorted(axes.values()) != [0, 1]:
        context.refuse(
            f"reverse_sequence: got axes {tuple(axes.values())} of time and batch, expected 0 and 1",
            "transpose the data before the operator",
        )
    context.write_result("ReverseSequence", context.operand_name(), get_index_operand_name(context, 1, "int64"), **axes)


def get_index_operand_name(context: NodeContext, operand_index: int, *supported_dtypes: str) -> str:
    """Return the ONNX name of an operand with indices, cast to a dtype that the ONNX operator supports.

    An operand whose dtype is not among ``supported_dtypes`` is cast to the first of them."""
    name = context.operand_name(operand_index)
    return (
        name
        if context.operand_type(operand_index).dtype in supported_dtypes
        else context.emit_cast(name, supported_dtypes[0])
    )


def write_gather(context: NodeContext) -> None:
    """Write ``gather`` as Gather, or as GatherND if data and indices share leading axes (``batch_dims``).

    GatherND's indices get a further axis of extent 1."""
    axis, batch, position = context.attr("axis") % len(context.operand_type().shape), context.attr("batch_dims"), 1
    if context.attr("span") > 1:
        context.refuse(
            f"gather: span is {context.attr('span')}, expected 1", "write the graph without the pass blocked_loops"
        )
    if not batch:
        operand = get_index_operand_name(context, position, "int32", "int64")
        context.write_result("Gather", context.operand_name(), operand, axis=axis)
        return
    if axis != batch:
        context.refuse(
            f"gather: axis is {axis} with batch_dims {batch}, expected equal numbers",
            "transpose the data so that the axis follows the shared axes",
        )
    shape = (*context.operand_type(position).shape, 1)
    indices_nd = context.emit(
        "Reshape", get_index_operand_name(context, position, "int64"), context.share_int64_initializer(*shape)
    )
    context.write_result("GatherND", context.operand_name(), indices_nd, batch_dims=batch)


def write_gather_elements(context: NodeContext) -> None:
    """Write ``gather_elements`` as GatherElements."""
    operand = get_index_operand_name(context, 1, "int32", "int64")
    context.write_result("GatherElements", context.operand_name(), operand, axis=context.attr("axis"))


def write_gather_nd(context: NodeContext) -> None:
    """Write ``gather_nd`` as GatherND."""
    operand = get_index_operand_name(context, 1, "int64")
    context.write_result("GatherND", context.operand_name(), operand, batch_dims=context.attr("batch_dims"))


def make_scatter_writer(onnx_op_type: str, *index_dtypes: str) -> OpWriter:
    """Make the function that writes a scatter operator as ``onnx_op_type``, ScatterElements or ScatterND.

    ``index_dtypes``: dtypes of indices that the ONNX operator supports."""

    def write_scatter(context: NodeContext) -> None:
        operands = context.operand_name(), get_index_operand_name(context, 1, *index_dtypes), context.operand_name(2)
        reduction = context.attr("reduction") or None
        if reduction in ("max", "min"):
            context.builder.require_opset(18)
        context.write_result(onnx_op_type, *operands, axis=context.attr("axis"), reduction=reduction)

    return write_scatter


def write_one_hot(context: NodeContext) -> None:
    """Write ``one_hot`` as OneHot.

    ONNX counts negative indices from the end. If the attribute ``wrap`` is not set, negative indices are replaced by
    ``depth``, an index out of range, which sets no element."""
    depth = context.attr("depth")
    places = get_index_operand_name(context, 0, "int64")
    bound = context.add_initializer(np.array(depth, np.int64), "depth")
    if not context.attr("wrap"):
        negative = context.emit("Less", places, context.add_initializer(np.array(0, np.int64), "zero"))
        places = context.emit("Where", negative, bound, places)
    values = [context.emit("Reshape", context.operand_name(k), context.share_int64_initializer(1)) for k in (2, 1)]
    both = context.emit("Concat", *values, axis=0)
    if context.operand_type().shape:
        context.write_result("OneHot", places, bound, both, axis=context.attr("axis"))
        return
    row = context.emit("Reshape", places, context.share_int64_initializer(1))
    context.write_result(
        "OneHot", row, bound, both, final_steps=[("Reshape", (context.share_int64_initializer(depth),), {})]
    )


def write_dynamic_slice(context: NodeContext) -> None:
    """Write ``dynamic_slice`` as Slice; the computed start is clamped so that the slice does not exceed the data."""
    shape, size = context.operand_type().shape, context.attr("size")
    begin = get_index_operand_name(context, 1, "int64")
    limits = context.share_int64_initializer(*(extent - part for extent, part in zip(shape, size, strict=True)))
    nearest = context.emit("Min", begin, limits)
    first = context.emit("Max", nearest, context.share_int64_initializer(*(0,) * len(size)))
    slice_of_data = context.emit(
        "Slice", context.operand_name(), first, context.emit("Add", first, context.share_int64_initializer(*size))
    )
    context.write_result("Reshape", slice_of_data, context.share_int64_initializer(*size))


MOVING_WRITERS: Mapping[str, OpWriter] = {
    "broadcast_to": write_broadcast_to,
    "concat": write_concat,
    "dynamic_slice": write_dynamic_slice,
    "gather": write_gather,
    "gather_elements": write_gather_elements,
    "gather_nd": write_gather_nd,
    "mirror_pad": write_mirror_pad,
    "one_hot": write_one_hot,
    "pad": write_pad,
    "reshape": write_reshape,
    "reverse": write_reverse,
    "reverse_sequence": write_reverse_sequence,
    "scatter_elements": make_scatter_writer("ScatterElements", "int32", "int64"),
    "scatter_nd": make_scatter_writer("ScatterND", "int64"),
    "slice": write_slice,
    "transpose": write_transpose,
    "triangle": write_triangle,
}


# ---- Operators on images: resizing, sampling.

_COORDINATES: tuple[Coordinates, ...] = (
    "half_pixel",
    "asymmetric",
    "align_corners",
    "pytorch_half_pixel",
    "half_pixel_symmetric",
)
_SINCE = {"half_pixel_symmetric": 19}
"""Smallest opset that supports a coordinate mode of Resize, if that is above the minimum opset of exported models."""
_PRECISION = 2.0**-22
_ROUNDINGS: tuple[NearestMode, ...] = ("round_prefer_floor", "floor", "ceil", "round_prefer_ceil")


def write_resample(context: NodeContext) -> None:
    """Write ``resample``, which computes elements from constant tables of source indices and weights.

    If a mode of Resize has the same source positions, Resize is written. Otherwise Gather, Mul and Add apply the
    tables."""
    axes, shift = context.attr("axes"), context.attr("shift")
    tables = [context.get_constant_data(k) for k in range(1, len(context.node.inputs))]
    if any(data is None for data in tables):
        context.refuse(
            "resample: the tables of indices or weights are computed at run time, expected constants",
            "make the tables constant",
        )
    constants = [data for data in tables if data is not None]
    indices, weights = constants[: len(axes)], constants[len(axes) :]
    if any(not dtypes.is_float(data.dtype.name) for data in weights):
        context.refuse(
            f"resample: got integer weights of {shift} bits for {context.operand_dtype()} data, expected floats",
            "use float weights",
        )
    before, after = context.operand_type().shape, context.result_type.shape
    if context.builder.is_written_only_channels_first(context.node.inputs[0]):
        context, axes = context.with_channels_first(), [TO_FIRST.index(axis) for axis in axes]
        before, after = (tuple(shape[axis] for axis in TO_FIRST) for shape in (before, after))
    resized = [ResizedAxis(axis, before[axis], after[axis], after[axis] / before[axis], 0.0, 1.0) for axis in axes]
    value, mode = context.operand_name(), _find_resize_attributes(resized, indices, weights)
    if mode is not None:
        context.builder.require_opset(_SINCE.get(mode["coordinate_transformation_mode"], 0))
        context.write_result("Resize", value, "", "", context.share_int64_initializer(*after), **mode)
        return
    for k, axis in enumerate(axes):
        value = _write_weighted_gathers(context, value, axis, indices[k], weights[k] if weights else None)
    context.write_result("Identity", value)


def _find_resize_attributes(
    resized_axes: list[ResizedAxis], index_tables: list[Array], weight_tables: list[Array]
) -> Mapping[str, Any] | None:
    """Return the attributes of a Resize along ``resized_axes`` that has the same source positions as the tables.

    Return None if no mode of Resize has them."""
    wanted_positions = [
        _compute_source_positions_from_tables(index, weight)
        for index, weight in zip_longest(index_tables, weight_tables)
    ]
    if any(positions is None for positions in wanted_positions) or any(
        axis.output_extent == 0 for axis in resized_axes
    ):
        return None
    for rule in _iterate_resize_rules("linear" if weight_tables else "nearest"):
        tables = [
            compute_indices_and_weights(rule, axis, compute_source_positions(rule, axis)) for axis in resized_axes
        ]
        positions = [
            _compute_source_positions_from_tables(index, weight if weight_tables else None) for index, weight in tables
        ]
        if all(
            _are_positions_close(a, b, axis.input_extent)
            for a, b, axis in zip(positions, wanted_positions, resized_axes, strict=True)
        ):
            nearest = rule.nearest_mode if rule.mode == "nearest" else None
            return {
                "mode": rule.mode,
                "coordinate_transformation_mode": rule.coordinate_transformation_mode,
                "nearest_mode": nearest,
            }
    return None


def _compute_source_positions_from_tables(index_table: Array, weight_table: Array | None) -> Array | None:
    """Return the source position of each result element, from its row of source indices and weights.

    A row must have one element, or two adjacent elements with weights of sum 1. Return None for any other table."""
    if weight_table is None:
        return index_table[:, 0].astype(np.float64)
    used, real = weight_table != 0, index_table.astype(np.float64)
    first, last = (pick(np.where(used, real, other), axis=1) for pick, other in ((np.min, np.inf), (np.max, -np.inf)))
    whole = np.abs(weight_table.astype(np.float64).sum(1) - 1) <= _PRECISION
    return (real * weight_table).sum(1) if (whole & (last - first <= 1)).all() else None


def _are_positions_close(positions: Array | None, other_positions: Array | None, extent: int) -> bool:
    """Test whether two arrays of source positions are equal, except for rounding of coordinates in float32."""
    return (
        positions is not None
        and other_positions is not None
        and bool((np.abs(positions - other_positions) <= _PRECISION * extent).all())
    )


def _iterate_resize_rules(mode: ResizeMode) -> Iterator[ResizeRule]:
    """Yield a rule of Resize in ``mode`` for each coordinate transformation and, in mode ``nearest``, each rounding."""
    for mode_of_coordinates, rounding in product(_COORDINATES, _ROUNDINGS if mode == "nearest" else _ROUNDINGS[:1]):
        yield ResizeRule(mode, mode_of_coordinates, rounding)


def _write_weighted_gathers(
    context: NodeContext, value_name: str, axis: int, index_table: Array, weight_table: Array | None
) -> str:
    """Write the resampling of one axis from its tables; return the name of the result.

    For each tap (column of the tables) elements are gathered and multiplied by the tap's weights; the products are
    summed."""
    axes_after = len(context.operand_type().shape) - axis - 1
    total = ""
    for tap in range(index_table.shape[1]):
        tap_indices = context.add_initializer(index_table[:, tap].astype(np.int64), "places")
        part = context.emit("Gather", value_name, tap_indices, axis=axis)
        if weight_table is not None:
            factors = (
                weight_table[:, tap].reshape(-1, *(1,) * axes_after).astype(dtypes.to_numpy(context.operand_dtype()))
            )
            part = context.emit("Mul", part, context.add_initializer(factors, "weights"))
        total = context.emit("Add", total, part) if total else part
    return total


def write_grid_sample(context: NodeContext) -> None:
    """Write ``grid_sample`` as GridSample."""
    if context.attr("coordinates") == "elements":
        context.refuse(
            "grid_sample: coordinates is 'elements', expected 'corners' or 'edges'",
            "scale the grid to coordinates from -1 to 1",
        )
    shape, places = context.operand_type().shape, context.operand_type(1).shape
    if not 4 <= len(shape) == len(places):
        context.refuse(
            f"grid_sample: got data of shape {shape} and grid of shape {places}, expected equal numbers of axes, at least 4",
            "add a spatial axis of extent 1",
        )
    context.builder.require_opset(20)
    context.write_result(
        "GridSample",
        context.operand_name(0),
        context.operand_name(1),
        mode=context.attr("mode"),
        padding_mode=_BORDERS[context.attr("border")],
        align_corners=int(context.attr("coordinates") == "corners"),
    )


_BORDERS = {"zeros": "zeros", "edge": "border", "reflection": "reflection"}


def write_roi_align(context: NodeContext) -> None:
    """Write ``roi_align`` as RoiAlign."""
    height, width = context.attr("size")
    images = context.operand_name(2)
    context.write_result(
        "RoiAlign",
        context.operand_name(0),
        context.operand_name(1),
        images if context.operand_type(2).dtype == "int64" else context.emit_cast(images, "int64"),
        mode=context.attr("mode"),
        output_height=height,
        output_width=width,
        sampling_ratio=context.attr("samples"),
        spatial_scale=context.attr("scale"),
        coordinate_transformation_mode="half_pixel" if context.attr("half_pixel") else "output_half_pixel",
    )


IMAGES_WRITERS: Mapping[str, OpWriter] = {
    "grid_sample": write_grid_sample,
    "resample": write_resample,
    "roi_align": write_roi_align,
}
