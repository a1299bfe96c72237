"""Export of operators that move elements or sample images to ONNX.

A row is the function that writes one operator of microc's graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product, zip_longest
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.frontend.onnx.operators_images import (
    ResizedAxis,
    ResizeRule,
    compute_indices_and_weights,
    compute_source_positions,
)
from microc.frontend.onnx.writer.context import TO_FIRST, NodeContext, Row
from microc.frontend.onnx.writer.rows_elementwise import dequantised_number

# ---- Operators that move or select elements.

BEFORE_START = -(1 << 62)
"""End index of a Slice with negative step that includes the first element."""


def write_reshape(context: NodeContext) -> None:
    """Write ``reshape`` as Reshape.

    Shapes with an extent of 0 require ``allowzero``, because a 0 otherwise means the extent of the data."""
    shape = context.attr("shape")
    allowzero = 1 if 0 in shape else None
    context.result("Reshape", context.operand(), context.integers(*shape), allowzero=allowzero)


def write_transpose(context: NodeContext) -> None:
    """Write ``transpose`` as Transpose."""
    context.result("Transpose", context.operand(), perm=context.attr("axes"))


def write_concat(context: NodeContext) -> None:
    """Write ``concat`` as Concat, with channels first if all operands have been written only in that layout."""
    builder, names, rank = context.builder, context.node.inputs, len(context.result_type.shape)
    axis = context.attr("axis") % rank
    if all(map(builder.is_first, names)):
        context, axis = context.with_channels_first(), TO_FIRST.index(axis)
    context.result("Concat", *(context.operand(k) for k in range(len(names))), axis=axis)


def write_slice(context: NodeContext) -> None:
    """Write ``slice`` as Slice along the axes on which it omits elements; as Identity if there are none."""
    parts = zip(*(context.attr(name) for name in ("begin", "end", "strides")), context.type().shape, strict=True)
    partial = [(axis, *part[:3]) for axis, part in enumerate(parts) if part != (0, part[3], 1, part[3])]
    if not partial:
        context.result("Identity", context.operand())
        return
    axes, begin, end, strides = (context.integers(*numbers) for numbers in zip(*partial, strict=True))
    context.result("Slice", context.operand(), begin, end, axes, strides)


def write_reverse(context: NodeContext) -> None:
    """Write ``reverse`` as Slice with steps of -1."""
    axes = context.attr("axes")
    if not axes:
        context.result("Identity", context.operand())
        return
    numbers = ((-1,) * len(axes), (BEFORE_START,) * len(axes), axes, (-1,) * len(axes))
    context.result("Slice", context.operand(), *(context.integers(*numbers_of_axis) for numbers_of_axis in numbers))


def write_pad(context: NodeContext) -> None:
    """Write ``pad`` as Pad; the attribute ``value`` is as stored, and is dequantised here if the data are quantised."""
    value = dequantised_number(context, context.attr("value"))
    context.result("Pad", context.operand(), _padding_operand(context), context.number(value))


def _padding_operand(context: NodeContext) -> str:
    """Return the name of an initialiser with the padding before each axis, then the padding after each axis."""
    pairs = context.attr("padding")
    return context.integers(*(before for before, _ in pairs), *(after for _, after in pairs))


def write_mirror_pad(context: NodeContext) -> None:
    """Write ``mirror_pad`` as Pad with a mode; mode ``symmetric``, which ONNX lacks, as a Gather along each padded axis."""
    mode, data = context.attr("mode"), context.operand()
    if mode != "symmetric":
        if mode == "wrap":
            context.builder.require(19)
        context.result("Pad", data, _padding_operand(context), mode=mode)
        return
    padded = [axis for axis, amounts in enumerate(context.attr("padding")) if any(amounts)]
    for axis in padded:
        extent, amounts = context.type().shape[axis], context.attr("padding")[axis]
        symmetric_indices = np.pad(np.arange(extent, dtype=np.int64), amounts, mode="symmetric")
        data = context.emit("Gather", data, context.constant(symmetric_indices, "places"), axis=axis)
    context.result("Identity", data)


def write_broadcast_to(context: NodeContext) -> None:
    """Write ``broadcast_to`` as Expand to a constant shape."""
    context.result("Expand", context.operand(), context.integers(*context.attr("shape")))


def write_triangle(context: NodeContext) -> None:
    """Write ``triangle`` as Trilu, which keeps the upper or lower triangle of matrices."""
    diagonal = context.constant(np.array(context.attr("diagonal"), np.int64))
    context.result("Trilu", context.operand(), diagonal, upper=int(context.attr("upper")))


def write_reverse_sequence(context: NodeContext) -> None:
    """Write ``reverse_sequence`` as ReverseSequence."""
    axes = {"time_axis": context.attr("time_axis"), "batch_axis": context.attr("batch_axis")}
    if sorted(axes.values()) != [0, 1]:
        context.refuse(f"sequences along axes {tuple(axes.values())}", "ONNX has them along axes 0 and 1")
    context.result("ReverseSequence", context.operand(), index_operand(context, 1, "int64"), **axes)


def index_operand(context: NodeContext, position: int, *dtypes: str) -> str:
    """Return the ONNX name of an operand of indices, cast to the first of ``dtypes`` if its dtype is not among ``dtypes``."""
    name = context.operand(position)
    return name if context.type(position).dtype in dtypes else context.cast(name, dtypes[0])


def write_gather(context: NodeContext) -> None:
    """Write ``gather`` as Gather.

    If data and indices share leading axes (``batch_dims``), GatherND is written; its indices get a further axis of extent 1."""
    axis, batch, position = context.attr("axis") % len(context.type().shape), context.attr("batch_dims"), 1
    if context.attr("span") > 1:
        context.refuse("gather with span > 1", "leave out the pass blocked_loops, which makes it")
    if not batch:
        operand = index_operand(context, position, "int32", "int64")
        context.result("Gather", context.operand(), operand, axis=axis)
        return
    if axis != batch:
        context.refuse(f"places along axis {axis} with {batch} shared axes", "move the axis behind the shared ones")
    shape = (*context.type(position).shape, 1)
    indices_nd = context.emit("Reshape", index_operand(context, position, "int64"), context.integers(*shape))
    context.result("GatherND", context.operand(), indices_nd, batch_dims=batch)


def write_gather_elements(context: NodeContext) -> None:
    """Write ``gather_elements`` as GatherElements."""
    operand = index_operand(context, 1, "int32", "int64")
    context.result("GatherElements", context.operand(), operand, axis=context.attr("axis"))


def write_gather_nd(context: NodeContext) -> None:
    """Write ``gather_nd`` as GatherND."""
    operand = index_operand(context, 1, "int64")
    context.result("GatherND", context.operand(), operand, batch_dims=context.attr("batch_dims"))


def scatter(code: str, *dtypes: str) -> Row:
    """Make the function that writes ONNX operator ``code``, ScatterElements or ScatterND; ``dtypes``: its dtypes of indices."""

    def write(context: NodeContext) -> None:
        operands = context.operand(), index_operand(context, 1, *dtypes), context.operand(2)
        reduction = context.attr("reduction") or None
        if reduction in ("max", "min"):
            context.builder.require(18)
        context.result(code, *operands, axis=context.attr("axis"), reduction=reduction)

    return write


def write_one_hot(context: NodeContext) -> None:
    """Write ``one_hot`` as OneHot.

    ONNX counts negative indices from the end. If the attribute ``wrap`` is not set, they are replaced by ``depth``, an index out
    of range, which sets no element."""
    depth = context.attr("depth")
    places = index_operand(context, 0, "int64")
    bound = context.constant(np.array(depth, np.int64), "depth")
    if not context.attr("wrap"):
        negative = context.emit("Less", places, context.constant(np.array(0, np.int64), "zero"))
        places = context.emit("Where", negative, bound, places)
    values = [context.emit("Reshape", context.operand(k), context.integers(1)) for k in (2, 1)]
    both = context.emit("Concat", *values, axis=0)
    if context.type().shape:
        context.result("OneHot", places, bound, both, axis=context.attr("axis"))
        return
    row = context.emit("Reshape", places, context.integers(1))
    context.result("OneHot", row, bound, both, then=[("Reshape", (context.integers(depth),), {})])


def write_dynamic_slice(context: NodeContext) -> None:
    """Write ``dynamic_slice`` as Slice; the computed start is clamped so that the slice lies inside the data."""
    shape, size = context.type().shape, context.attr("size")
    begin = index_operand(context, 1, "int64")
    limits = context.integers(*(extent - part for extent, part in zip(shape, size, strict=True)))
    nearest = context.emit("Min", begin, limits)
    first = context.emit("Max", nearest, context.integers(*(0,) * len(size)))
    slice_of_data = context.emit("Slice", context.operand(), first, context.emit("Add", first, context.integers(*size)))
    context.result("Reshape", slice_of_data, context.integers(*size))


MOVING_ROWS: Mapping[str, Row] = {
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
    "scatter_elements": scatter("ScatterElements", "int32", "int64"),
    "scatter_nd": scatter("ScatterND", "int64"),
    "slice": write_slice,
    "transpose": write_transpose,
    "triangle": write_triangle,
}


# ---- Operators on images: resizing, sampling.

_COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric")
_SINCE = {"half_pixel_symmetric": 19}
"""Smallest opset that supports a coordinate mode of Resize, if that is above the minimum opset of exported models."""
_PRECISION = 2.0**-22
_ROUNDINGS = ("round_prefer_floor", "floor", "ceil", "round_prefer_ceil")


def write_resample(context: NodeContext) -> None:
    """Write ``resample``, which computes elements from constant tables of source indices and weights.

    If a mode of Resize has the same source positions, Resize is written. Otherwise Gather, Mul and Add apply the tables."""
    axes, shift = context.attr("axes"), context.attr("shift")
    tables = [context.data(k) for k in range(1, len(context.node.inputs))]
    if any(data is None for data in tables):
        context.refuse("computed tables of indices or weights", "make them constants")
    constants = [data for data in tables if data is not None]
    indices, weights = constants[: len(axes)], constants[len(axes) :]
    if any(not dtypes.is_float(data.dtype.name) for data in weights):
        context.refuse(f"{context.dtype()} weighted by integers of {shift} bits", "ONNX resizes floats")
    before, after = context.type().shape, context.result_type.shape
    if context.builder.is_first(context.node.inputs[0]):
        context, axes = context.with_channels_first(), [TO_FIRST.index(axis) for axis in axes]
        before, after = (tuple(shape[axis] for axis in TO_FIRST) for shape in (before, after))
    resized = [ResizedAxis(axis, before[axis], after[axis], after[axis] / before[axis], 0.0, 1.0) for axis in axes]
    value, mode = context.operand(), _resize_mode(resized, indices, weights)
    if mode is not None:
        context.builder.require(_SINCE.get(mode["coordinate_transformation_mode"], 0))
        context.result("Resize", value, "", "", context.integers(*after), **mode)
        return
    for k, axis in enumerate(axes):
        value = _weight_along(context, value, axis, indices[k], weights[k] if weights else None)
    context.result("Identity", value)


def _resize_mode(
    axes: list[ResizedAxis], index_tables: list[Array], weight_tables: list[Array]
) -> Mapping[str, Any] | None:
    """Return the attributes of a Resize along ``axes`` with the source positions of the tables; None if there is none."""
    wanted_positions = [_table_positions(index, weight) for index, weight in zip_longest(index_tables, weight_tables)]
    if any(positions is None for positions in wanted_positions) or any(axis.output_extent == 0 for axis in axes):
        return None
    for rule in _resize_rules("linear" if weight_tables else "nearest"):
        tables = [compute_indices_and_weights(rule, axis, compute_source_positions(rule, axis)) for axis in axes]
        positions = [_table_positions(index, weight if weight_tables else None) for index, weight in tables]
        if all(
            _is_close(a, b, axis.input_extent) for a, b, axis in zip(positions, wanted_positions, axes, strict=True)
        ):
            nearest = rule.nearest_mode if rule.mode == "nearest" else None
            return {
                "mode": rule.mode,
                "coordinate_transformation_mode": rule.coordinate_transformation_mode,
                "nearest_mode": nearest,
            }
    return None


def _table_positions(index_table: Array, weight_table: Array | None) -> Array | None:
    """Return the source position of each result element, from its row of source indices and weights.

    A row may combine one element or two adjacent elements, with weights of sum 1. Return None for any other table."""
    if weight_table is None:
        return index_table[:, 0].astype(np.float64)
    used, real = weight_table != 0, index_table.astype(np.float64)
    first, last = (pick(np.where(used, real, other), axis=1) for pick, other in ((np.min, np.inf), (np.max, -np.inf)))
    whole = np.abs(weight_table.astype(np.float64).sum(1) - 1) <= _PRECISION
    return (real * weight_table).sum(1) if (whole & (last - first <= 1)).all() else None


def _is_close(positions: Array | None, other_positions: Array | None, extent: int) -> bool:
    """Test whether two arrays of source positions are equal, except for rounding of coordinates in float32."""
    return (
        positions is not None
        and other_positions is not None
        and bool((np.abs(positions - other_positions) <= _PRECISION * extent).all())
    )


def _resize_rules(mode: str) -> Iterator[ResizeRule]:
    """Yield a rule of Resize in ``mode`` for each coordinate mode and, in mode ``nearest``, each rounding mode."""
    for mode_of_coordinates, rounding in product(_COORDINATES, _ROUNDINGS if mode == "nearest" else _ROUNDINGS[:1]):
        yield ResizeRule(mode, mode_of_coordinates, rounding, -0.75, antialias=False, exclude_outside=False)


def _weight_along(context: NodeContext, value: str, axis: int, index_table: Array, weight_table: Array | None) -> str:
    """Write the resampling of one axis from its tables; return the name of the result.

    For each tap (column of the tables) elements are gathered and multiplied by the tap's weights; the products are summed."""
    axes_after = len(context.type().shape) - axis - 1
    total = ""
    for tap in range(index_table.shape[1]):
        tap_indices = context.constant(index_table[:, tap].astype(np.int64), "places")
        part = context.emit("Gather", value, tap_indices, axis=axis)
        if weight_table is not None:
            factors = weight_table[:, tap].reshape(-1, *(1,) * axes_after).astype(dtypes.to_numpy(context.dtype()))
            part = context.emit("Mul", part, context.constant(factors, "weights"))
        total = context.emit("Add", total, part) if total else part
    return total


def write_grid_sample(context: NodeContext) -> None:
    """Write ``grid_sample`` as GridSample."""
    if context.attr("coordinates") == "elements":
        context.refuse("grid coordinates in elements", "ONNX's GridSample takes coordinates from -1 to 1")
    shape, places = context.type().shape, context.type(1).shape
    if not 4 <= len(shape) == len(places):
        context.refuse(f"grid_sample of shape {shape} at places {places}", "ONNX has it of two spatial axes or more")
    context.builder.require(20)
    context.result(
        "GridSample",
        context.operand(0),
        context.operand(1),
        mode=context.attr("mode"),
        padding_mode=_BORDERS[context.attr("border")],
        align_corners=int(context.attr("coordinates") == "corners"),
    )


_BORDERS = {"zeros": "zeros", "edge": "border", "reflection": "reflection"}


def write_roi_align(context: NodeContext) -> None:
    """Write ``roi_align`` as RoiAlign."""
    height, width = context.attr("size")
    images = context.operand(2)
    context.result(
        "RoiAlign",
        context.operand(0),
        context.operand(1),
        images if context.type(2).dtype == "int64" else context.cast(images, "int64"),
        mode=context.attr("mode"),
        output_height=height,
        output_width=width,
        sampling_ratio=context.attr("samples"),
        spatial_scale=context.attr("scale"),
        coordinate_transformation_mode="half_pixel" if context.attr("half_pixel") else "output_half_pixel",
    )


IMAGES_ROWS: Mapping[str, Row] = {
    "grid_sample": write_grid_sample,
    "resample": write_resample,
    "roi_align": write_roi_align,
}
