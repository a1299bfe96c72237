"""Export of operators that move elements or sample images to ONNX.

A row is the function that writes one operator of microc's graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product, zip_longest
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.frontend.onnx.operators_images import ResizedAxis, ResizeRule, resize_table, source_positions
from microc.frontend.onnx.writer.context import TO_FIRST, Application, Row
from microc.frontend.onnx.writer.rows_elementwise import dequantised_number

# ---- Operators that move or select elements.

BEFORE_START = -(1 << 62)
"""End index of a Slice with negative step that includes the first element."""


def reshape(application: Application) -> None:
    """Write ``reshape`` as Reshape.

    Shapes with an extent of 0 require ``allowzero``, because a 0 otherwise means the extent of the data."""
    shape = application.attr("shape")
    allowzero = 1 if 0 in shape else None
    application.result("Reshape", application.operand(), application.integers(*shape), allowzero=allowzero)


def transpose(application: Application) -> None:
    """Write ``transpose`` as Transpose."""
    application.result("Transpose", application.operand(), perm=application.attr("axes"))


def concat(application: Application) -> None:
    """Write ``concat`` as Concat, with channels first if all operands have been written only in that layout."""
    builder, names, rank = application.builder, application.node.inputs, len(application.result_type.shape)
    axis = application.attr("axis") % rank
    if all(map(builder.is_first, names)):
        application, axis = application.with_channels_first(), TO_FIRST.index(axis)
    application.result("Concat", *(application.operand(k) for k in range(len(names))), axis=axis)


def slice_(application: Application) -> None:
    """Write ``slice`` as Slice along the axes on which it omits elements; as Identity if there are none."""
    parts = zip(
        *(application.attr(name) for name in ("begin", "end", "strides")), application.type().shape, strict=True
    )
    partial = [(axis, *part[:3]) for axis, part in enumerate(parts) if part != (0, part[3], 1, part[3])]
    if not partial:
        application.result("Identity", application.operand())
        return
    axes, begin, end, strides = (application.integers(*numbers) for numbers in zip(*partial, strict=True))
    application.result("Slice", application.operand(), begin, end, axes, strides)


def reverse(application: Application) -> None:
    """Write ``reverse`` as Slice with steps of -1."""
    axes = application.attr("axes")
    if not axes:
        application.result("Identity", application.operand())
        return
    numbers = ((-1,) * len(axes), (BEFORE_START,) * len(axes), axes, (-1,) * len(axes))
    application.result(
        "Slice", application.operand(), *(application.integers(*numbers_of_axis) for numbers_of_axis in numbers)
    )


def pad(application: Application) -> None:
    """Write ``pad`` as Pad; the attribute ``value`` is as stored, and is dequantised here if the data are quantised."""
    value = dequantised_number(application, application.attr("value"))
    application.result("Pad", application.operand(), _padding_operand(application), application.number(value))


def _padding_operand(application: Application) -> str:
    """Return the name of an initialiser with the padding before each axis, then the padding after each axis."""
    pairs = application.attr("padding")
    return application.integers(*(before for before, _ in pairs), *(after for _, after in pairs))


def mirror_pad(application: Application) -> None:
    """Write ``mirror_pad`` as Pad with a mode; mode ``symmetric``, which ONNX lacks, as a Gather along each padded axis."""
    mode, data = application.attr("mode"), application.operand()
    if mode != "symmetric":
        if mode == "wrap":
            application.builder.require(19)
        application.result("Pad", data, _padding_operand(application), mode=mode)
        return
    padded = [axis for axis, amounts in enumerate(application.attr("padding")) if any(amounts)]
    for axis in padded:
        extent, amounts = application.type().shape[axis], application.attr("padding")[axis]
        symmetric_indices = np.pad(np.arange(extent, dtype=np.int64), amounts, mode="symmetric")
        data = application.emit("Gather", data, application.constant(symmetric_indices, "places"), axis=axis)
    application.result("Identity", data)


def broadcast_to(application: Application) -> None:
    """Write ``broadcast_to`` as Expand to a constant shape."""
    application.result("Expand", application.operand(), application.integers(*application.attr("shape")))


def triangle(application: Application) -> None:
    """Write ``triangle`` as Trilu, which keeps the upper or lower triangle of matrices."""
    diagonal = application.constant(np.array(application.attr("diagonal"), np.int64))
    application.result("Trilu", application.operand(), diagonal, upper=int(application.attr("upper")))


def reverse_sequence(application: Application) -> None:
    """Write ``reverse_sequence`` as ReverseSequence."""
    axes = {"time_axis": application.attr("time_axis"), "batch_axis": application.attr("batch_axis")}
    if sorted(axes.values()) != [0, 1]:
        application.refuse(f"sequences along axes {tuple(axes.values())}", "ONNX has them along axes 0 and 1")
    application.result("ReverseSequence", application.operand(), index_operand(application, 1, "int64"), **axes)


def index_operand(application: Application, position: int, *dtypes: str) -> str:
    """Return the ONNX name of an operand of indices, cast to the first of ``dtypes`` if its dtype is not among ``dtypes``."""
    name = application.operand(position)
    return name if application.type(position).dtype in dtypes else application.cast(name, dtypes[0])


def gather(application: Application) -> None:
    """Write ``gather`` as Gather.

    If data and indices share leading axes (``batch_dims``), GatherND is written; its indices get a further axis of extent 1."""
    axis, batch, position = application.attr("axis") % len(application.type().shape), application.attr("batch_dims"), 1
    if application.attr("span") > 1:
        application.refuse("gather with span > 1", "leave out the pass blocked_loops, which makes it")
    if not batch:
        operand = index_operand(application, position, "int32", "int64")
        application.result("Gather", application.operand(), operand, axis=axis)
        return
    if axis != batch:
        application.refuse(f"places along axis {axis} with {batch} shared axes", "move the axis behind the shared ones")
    shape = (*application.type(position).shape, 1)
    indices_nd = application.emit(
        "Reshape", index_operand(application, position, "int64"), application.integers(*shape)
    )
    application.result("GatherND", application.operand(), indices_nd, batch_dims=batch)


def gather_elements(application: Application) -> None:
    """Write ``gather_elements`` as GatherElements."""
    operand = index_operand(application, 1, "int32", "int64")
    application.result("GatherElements", application.operand(), operand, axis=application.attr("axis"))


def gather_nd(application: Application) -> None:
    """Write ``gather_nd`` as GatherND."""
    operand = index_operand(application, 1, "int64")
    application.result("GatherND", application.operand(), operand, batch_dims=application.attr("batch_dims"))


def scatter(code: str, *dtypes: str) -> Row:
    """Make the function that writes ONNX operator ``code``, ScatterElements or ScatterND; ``dtypes``: its dtypes of indices."""

    def write(application: Application) -> None:
        operands = application.operand(), index_operand(application, 1, *dtypes), application.operand(2)
        reduction = application.attr("reduction") or None
        if reduction in ("max", "min"):
            application.builder.require(18)
        application.result(code, *operands, axis=application.attr("axis"), reduction=reduction)

    return write


def one_hot(application: Application) -> None:
    """Write ``one_hot`` as OneHot.

    ONNX counts negative indices from the end. If the attribute ``wrap`` is not set, they are replaced by ``depth``, an index out
    of range, which sets no element."""
    depth = application.attr("depth")
    places = index_operand(application, 0, "int64")
    bound = application.constant(np.array(depth, np.int64), "depth")
    if not application.attr("wrap"):
        negative = application.emit("Less", places, application.constant(np.array(0, np.int64), "zero"))
        places = application.emit("Where", negative, bound, places)
    values = [application.emit("Reshape", application.operand(k), application.integers(1)) for k in (2, 1)]
    both = application.emit("Concat", *values, axis=0)
    if application.type().shape:
        application.result("OneHot", places, bound, both, axis=application.attr("axis"))
        return
    row = application.emit("Reshape", places, application.integers(1))
    application.result("OneHot", row, bound, both, then=[("Reshape", (application.integers(depth),), {})])


def dynamic_slice(application: Application) -> None:
    """Write ``dynamic_slice`` as Slice; the computed start is clamped so that the slice lies inside the data."""
    shape, size = application.type().shape, application.attr("size")
    begin = index_operand(application, 1, "int64")
    limits = application.integers(*(extent - part for extent, part in zip(shape, size, strict=True)))
    nearest = application.emit("Min", begin, limits)
    first = application.emit("Max", nearest, application.integers(*(0,) * len(size)))
    slice_of_data = application.emit(
        "Slice", application.operand(), first, application.emit("Add", first, application.integers(*size))
    )
    application.result("Reshape", slice_of_data, application.integers(*size))


MOVING_ROWS: Mapping[str, Row] = {
    "broadcast_to": broadcast_to,
    "concat": concat,
    "dynamic_slice": dynamic_slice,
    "gather": gather,
    "gather_elements": gather_elements,
    "gather_nd": gather_nd,
    "mirror_pad": mirror_pad,
    "one_hot": one_hot,
    "pad": pad,
    "reshape": reshape,
    "reverse": reverse,
    "reverse_sequence": reverse_sequence,
    "scatter_elements": scatter("ScatterElements", "int32", "int64"),
    "scatter_nd": scatter("ScatterND", "int64"),
    "slice": slice_,
    "transpose": transpose,
    "triangle": triangle,
}


# ---- Operators on images: resizing, sampling.

_COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric")
_SINCE = {"half_pixel_symmetric": 19}
"""Smallest opset that supports a coordinate mode of Resize, if that is above the minimum opset of exported models."""
_PRECISION = 2.0**-22
_ROUNDINGS = ("round_prefer_floor", "floor", "ceil", "round_prefer_ceil")


def resample(application: Application) -> None:
    """Write ``resample``, which computes elements from constant tables of source indices and weights.

    If a mode of Resize has the same source positions, Resize is written. Otherwise Gather, Mul and Add apply the tables."""
    axes, shift = application.attr("axes"), application.attr("shift")
    tables = [application.data(k) for k in range(1, len(application.node.inputs))]
    if any(data is None for data in tables):
        application.refuse("computed tables of indices or weights", "make them constants")
    constants = [data for data in tables if data is not None]
    indices, weights = constants[: len(axes)], constants[len(axes) :]
    if any(not dtypes.is_float(data.dtype.name) for data in weights):
        application.refuse(f"{application.dtype()} weighted by integers of {shift} bits", "ONNX resizes floats")
    before, after = application.type().shape, application.result_type.shape
    if application.builder.is_first(application.node.inputs[0]):
        application, axes = application.with_channels_first(), [TO_FIRST.index(axis) for axis in axes]
        before, after = (tuple(shape[axis] for axis in TO_FIRST) for shape in (before, after))
    resized = [ResizedAxis(axis, before[axis], after[axis], after[axis] / before[axis], 0.0, 1.0) for axis in axes]
    value, mode = application.operand(), _resize_mode(resized, indices, weights)
    if mode is not None:
        application.builder.require(_SINCE.get(mode["coordinate_transformation_mode"], 0))
        application.result("Resize", value, "", "", application.integers(*after), **mode)
        return
    for k, axis in enumerate(axes):
        value = _weight_along(application, value, axis, indices[k], weights[k] if weights else None)
    application.result("Identity", value)


def _resize_mode(
    axes: list[ResizedAxis], index_tables: list[Array], weight_tables: list[Array]
) -> Mapping[str, Any] | None:
    """Return the attributes of a Resize along ``axes`` with the source positions of the tables; None if there is none."""
    wanted_positions = [_table_positions(index, weight) for index, weight in zip_longest(index_tables, weight_tables)]
    if any(positions is None for positions in wanted_positions) or any(axis.size == 0 for axis in axes):
        return None
    for rule in _resize_rules("linear" if weight_tables else "nearest"):
        tables = [resize_table(rule, axis, source_positions(rule, axis)) for axis in axes]
        positions = [_table_positions(index, weight if weight_tables else None) for index, weight in tables]
        if all(_is_close(a, b, axis.extent) for a, b, axis in zip(positions, wanted_positions, axes, strict=True)):
            nearest = rule.rounding if rule.mode == "nearest" else None
            return {"mode": rule.mode, "coordinate_transformation_mode": rule.coordinates, "nearest_mode": nearest}
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


def _weight_along(
    application: Application, value: str, axis: int, index_table: Array, weight_table: Array | None
) -> str:
    """Write the resampling of one axis from its tables; return the name of the result.

    For each tap (column of the tables) elements are gathered and multiplied by the tap's weights; the products are summed."""
    axes_after = len(application.type().shape) - axis - 1
    total = ""
    for tap in range(index_table.shape[1]):
        tap_indices = application.constant(index_table[:, tap].astype(np.int64), "places")
        part = application.emit("Gather", value, tap_indices, axis=axis)
        if weight_table is not None:
            factors = weight_table[:, tap].reshape(-1, *(1,) * axes_after).astype(dtypes.to_numpy(application.dtype()))
            part = application.emit("Mul", part, application.constant(factors, "weights"))
        total = application.emit("Add", total, part) if total else part
    return total


def grid_sample(application: Application) -> None:
    """Write ``grid_sample`` as GridSample."""
    if application.attr("coordinates") == "elements":
        application.refuse("grid coordinates in elements", "ONNX's GridSample takes coordinates from -1 to 1")
    shape, places = application.type().shape, application.type(1).shape
    if not 4 <= len(shape) == len(places):
        application.refuse(
            f"grid_sample of shape {shape} at places {places}", "ONNX has it of two spatial axes or more"
        )
    application.builder.require(20)
    application.result(
        "GridSample",
        application.operand(0),
        application.operand(1),
        mode=application.attr("mode"),
        padding_mode=_BORDERS[application.attr("border")],
        align_corners=int(application.attr("coordinates") == "corners"),
    )


_BORDERS = {"zeros": "zeros", "edge": "border", "reflection": "reflection"}


def roi_align(application: Application) -> None:
    """Write ``roi_align`` as RoiAlign."""
    height, width = application.attr("size")
    images = application.operand(2)
    application.result(
        "RoiAlign",
        application.operand(0),
        application.operand(1),
        images if application.type(2).dtype == "int64" else application.cast(images, "int64"),
        mode=application.attr("mode"),
        output_height=height,
        output_width=width,
        sampling_ratio=application.attr("samples"),
        spatial_scale=application.attr("scale"),
        coordinate_transformation_mode="half_pixel" if application.attr("half_pixel") else "output_half_pixel",
    )


IMAGES_ROWS: Mapping[str, Row] = {"grid_sample": grid_sample, "resample": resample, "roi_align": roi_align}
