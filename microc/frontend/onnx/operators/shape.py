# SPDX-License-Identifier: Apache-2.0
"""Conversion of ONNX operators that reshape, transpose, slice, concatenate, repeat and pad tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Annotated, Literal

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.onnx.context import MOVABLE, ConverterTable, OpContext
from microc.frontend.operator_context import slice_attributes
from microc.frontend.signature import AttributeBefore, Axis, Image, Ints, SameDtype, Value
from microc.graph.ir import Attr

CONVERTERS = ConverterTable()

# ---- Converters of operators that change a tensor's shape or order, or only read its shape.


@CONVERTERS.register("Shape", dtypes=MOVABLE)
def convert_shape(context: OpContext, data: Value, *, start: int = 0, end: int | None = None) -> None:
    """Convert Shape, the extents of axes ``start`` to ``end`` - 1, to a constant."""
    context.result_constant(np.array(data.shape[slice(start, end)], np.int64))


@CONVERTERS.register("Size", dtypes=MOVABLE)
def convert_size(context: OpContext, data: Value) -> None:
    """Convert Size, the number of elements, to a constant."""
    context.result_constant(np.array(data.size, np.int64))


@CONVERTERS.register("Identity", dtypes=MOVABLE)
def convert_identity(context: OpContext, data: Value) -> None:
    """Convert Identity."""
    context.result_alias(data)


@CONVERTERS.register("Dropout", dtypes=MOVABLE)
def convert_dropout(context: OpContext, data: Value, ratio: Value | None, training_mode: Array | None) -> None:
    """Convert Dropout, which does nothing in inference."""
    drops = ratio is None or ratio.constant is None or ratio.constant.any()
    if training_mode is not None and training_mode.any() and drops:
        context.refuse("training_mode is true, expected false", "export the network for inference")
    context.result_constant(np.ones(data.shape, np.bool_), 1)
    context.result_alias(data)


def _resolve_target_shape(
    context: OpContext, extents: Sequence[int], requested_shape: Sequence[int], allowzero: bool
) -> tuple[int, ...]:
    """Return the shape of Reshape's result for data of shape ``extents``.

    In ``requested_shape`` an extent of 0 means the extent of the same axis of the input, unless ``allowzero``. One
    extent may be -1; it is computed from the number of elements."""
    extents_out = [
        extents[k] if e == 0 and not allowzero and k < len(extents) else e for k, e in enumerate(requested_shape)
    ]
    if extents_out.count(-1) > 1 or any(e < -1 for e in extents_out):
        context.broken(f"shape: got {tuple(requested_shape)}, expected extents of at least 0, at most one of them -1")
    if -1 in extents_out:
        rest = prod(e for e in extents_out if e != -1)
        extents_out[extents_out.index(-1)] = prod(extents) // rest if rest else 0
    return tuple(extents_out)


@CONVERTERS.register("Reshape", dtypes=MOVABLE)
def convert_reshape(context: OpContext, data: Value, shape: Ints, *, allowzero: bool = False) -> None:
    """Convert Reshape, whose target shape must be a constant."""
    context.result_reshape(data, _resolve_target_shape(context, data.shape, shape, allowzero))


@CONVERTERS.register("Flatten", dtypes=MOVABLE)
def convert_flatten(context: OpContext, data: Value, *, axis: int = 1) -> None:
    """Convert Flatten to a matrix: axes before ``axis`` are merged to rows, all other axes to columns."""
    axis = axis if axis == data.rank else context.axis(axis, max(data.rank, 1))
    context.result_reshape(data, (prod(data.shape[:axis]), prod(data.shape[axis:])))


@CONVERTERS.register("Squeeze", dtypes=MOVABLE)
def convert_squeeze(context: OpContext, data: Value, axes: Annotated[Ints | None, AttributeBefore(13)]) -> None:
    """Convert Squeeze, which removes the axes in ``axes``, of extent 1, or all axes of extent 1 if ``axes`` is
    absent."""
    ones = tuple(k for k, e in enumerate(data.shape) if e == 1)
    removed = ones if axes is None else context.normalize_axes(axes, data.rank)
    if any(data.shape[axis] != 1 for axis in removed):
        context.broken(f"axes: got {removed} of shape {data.shape}, expected axes of extent 1")
    context.result_reshape(data, tuple(e for k, e in enumerate(data.shape) if k not in removed))


@CONVERTERS.register("Unsqueeze", dtypes=MOVABLE)
def convert_unsqueeze(context: OpContext, data: Value, axes: Annotated[Ints, AttributeBefore(13)]) -> None:
    """Convert Unsqueeze, which inserts axes of extent 1. ``axes`` are positions in the result's shape."""
    extents = list(data.shape)
    for axis in sorted(context.normalize_axes(axes, len(extents) + len(axes))):
        extents.insert(axis, 1)
    context.result_reshape(data, tuple(extents))


@CONVERTERS.register("Transpose", dtypes=MOVABLE)
def convert_transpose(context: OpContext, data: Value, *, perm: Ints | None = None) -> None:
    """Convert Transpose, which reverses the order of axes unless ``perm`` is set.

    Constants are transposed at compile time."""
    order = tuple(reversed(range(data.rank))) if perm is None else perm
    if sorted(order) != list(range(data.rank)):
        context.broken(f"perm is {order}, expected each of 0..{data.rank - 1} once")
    stored = context.find_stored_tensor(data)
    if stored is not None:
        context.add_stored_tensor(f"{data}_transposed", stored.transpose(order), context.output())
    else:
        context.result("transpose", (data,), {"axes": order})


@CONVERTERS.register("DepthToSpace", dtypes=MOVABLE)
def convert_depth_to_space(
    context: OpContext, data: Image, *, blocksize: int, mode: Literal["DCR", "CRD"] = "DCR"
) -> None:
    """Convert DepthToSpace, which moves groups of blocksize ** 2 channels to squares of pixels."""
    batch, channels, height, width = data.shape
    if blocksize < 1 or channels % (blocksize * blocksize):
        context.broken(f"blocksize is {blocksize}, expected one whose square divides {channels} channels")
    depth = channels // (blocksize * blocksize)
    split_shape = (batch, blocksize, blocksize, depth) if mode == "DCR" else (batch, depth, blocksize, blocksize)
    order = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    parts = context.reshape(data, (*split_shape, height, width))
    moved = context.emit("transpose", (parts,), {"axes": order})
    context.result_reshape(moved, (batch, depth, height * blocksize, width * blocksize))


@CONVERTERS.register("SpaceToDepth", dtypes=MOVABLE)
def convert_space_to_depth(
    context: OpContext, data: Image, *, blocksize: int, mode: Literal["DCR", "CRD"] = "DCR"
) -> None:
    """Convert SpaceToDepth, which moves squares of pixels to groups of blocksize ** 2 channels."""
    batch, channels, height, width = data.shape
    if blocksize < 1 or height % blocksize or width % blocksize:
        context.broken(f"blocksize is {blocksize}, expected a divisor of {height} and {width}, the height and width")
    rows, columns = height // blocksize, width // blocksize
    parts = context.reshape(data, (batch, channels, rows, blocksize, columns, blocksize))
    order = (0, 1, 3, 5, 2, 4) if mode == "CRD" else (0, 3, 5, 1, 2, 4)
    moved = context.emit("transpose", (parts,), {"axes": order})
    context.result_reshape(moved, (batch, channels * blocksize * blocksize, rows, columns))


@CONVERTERS.register("Constant", dtypes=())
def convert_constant(
    context: OpContext,
    *,
    value: Array | None = None,
    value_float: float | None = None,
    value_floats: tuple[float, ...] | None = None,
    value_int: int | None = None,
    value_ints: Ints | None = None,
) -> None:
    """Convert Constant, whose data are in its only attribute."""
    names = context.attributes.names()
    if len(names) != 1:
        context.broken(f"got the attributes {', '.join(names) or 'none'}, expected one that holds the value")
    real = value_floats if value_float is None else value_float
    integer = value_ints if value_int is None else value_int
    if value is not None:
        context.result_constant(value)
    elif real is not None:
        context.result_constant(np.array(real, np.float32))
    elif integer is not None:
        context.result_constant(np.array(integer, np.int64))
    else:
        context.refuse(f"attribute {names[0]!r} is not supported", "export the constant as a dense tensor of numbers")


# ---- Slices from a computed start, of a constant size: start and end must differ by a constant.
#
# Loops use them to read a part of a tensor in every iteration: ``x[i : i + 1]``.


@frozen
class _RunTimeIndex:
    """Index of an element, computed as the sum of a run-time value and a constant.

    ``value_name``: name of the value, a scalar or a vector of one element; empty if the index is constant. ``offset``:
    the constant."""

    value_name: str
    offset: int


def _convert_dynamic_slice(
    context: OpContext, data: Value, starts: Value, ends: Value, axes: Ints | None, steps: Ints | None
) -> None:
    """Convert a Slice along one axis whose start is computed at run time to a ``dynamic_slice``.

    Start and end must differ by a constant, because shapes are static. The step must be 1."""
    axis = context.axis(axes[0] if axes else 0, data.rank)
    if any(bound.size != 1 or bound.dtype not in ("int32", "int64") for bound in (starts, ends)) or (
        steps not in (None, (1,))
    ):
        context.refuse(
            "starts is computed at run time, which is supported only for one axis and step 1",
            "slice along one axis at a time, with steps = 1",
        )
    start, end = (_split_index_into_value_and_offset(context, bound) for bound in (starts, ends))
    # The size is known although start and end are not: it is the difference of their constants.
    size = end.offset - start.offset
    if start.value_name != end.value_name or not 0 < size <= data.shape[axis]:
        context.refuse(
            "the extent of the slice depends on run-time data, expected ends - starts to be constant",
            "compute ends as starts plus a constant, so that shapes are known at compile time",
        )
    whole = context.new_constant("begin", np.zeros(1, dtypes.to_numpy(starts.dtype)))
    begin = [whole] * data.rank
    begin[axis] = context.reshape(starts, (1,))
    first = context.emit("concat", begin, {"axis": 0}) if len(begin) > 1 else begin[0]
    sizes = (*data.shape[:axis], size, *data.shape[axis + 1 :])
    context.result("dynamic_slice", (data, first), {"size": sizes})


def _split_index_into_value_and_offset(context: OpContext, index_name: str) -> _RunTimeIndex:
    """Split an index (a value of one element) into an earlier value and a constant offset, which add up to it.

    The index is traced back through reshapes, casts of integers, and additions and subtractions of constants."""
    builder, offset = context.builder, 0
    producer = {name: node for node in builder.nodes for name in node.outputs}
    while index_name in producer:
        node = producer[index_name]
        if node.op == "reshape" or (node.op == "cast" and dtypes.is_integer(builder.types[node.inputs[0]].dtype)):
            index_name = node.inputs[0]
            continue
        numbers = [builder.consts.get(name) for name in node.inputs]
        constants = [n for n in numbers if n is not None and n.size == 1]
        variables = [name for name, n in zip(node.inputs, numbers, strict=True) if n is None]
        if node.op not in ("add", "sub") or len(constants) != 1 or len(variables) != 1 or node.attr("activation"):
            break
        # constant - x has no form x + constant.
        if node.op == "sub" and numbers[0] is not None:
            break
        amount = int(constants[0].reshape(-1)[0])
        offset, index_name = offset + (amount if node.op == "add" else -amount), variables[0]
    if index_name in builder.consts:
        return _RunTimeIndex("", offset + int(builder.consts[index_name].reshape(-1)[0]))
    return _RunTimeIndex(index_name, offset)


# ---- Converters of operators that select, join, repeat and pad elements.

TILED_AXES = 3
"""Maximum number of axes that one broadcast repeats for Tile; the broadcast tensor has up to two axes for each."""
MAX_SLICES = 64
"""Maximum number of slices that replace a Gather with constant indices."""


@CONVERTERS.register("Concat", dtypes=MOVABLE)
def convert_concat(context: OpContext, *inputs: SameDtype, axis: Axis) -> None:
    """Convert Concat; operands without elements are omitted."""
    values = tuple(value for value in inputs if value.size) or inputs[:1]
    concat_along_axis(context, values, axis, context.output())


def concat_along_axis(context: OpContext, values: Sequence[Value], axis: int, output_name: str = "") -> Value:
    """Concatenate ``values`` along ``axis``.

    Return the result. Its name is ``output_name``, or a new name if this is empty."""
    if len(values) == 1:
        if output_name:
            context.result_alias(values[0])
        return values[0]
    if not output_name:
        return context.emit("concat", values, {"axis": axis})
    return context.write_node("concat", values, {"axis": axis}, output_name)


@CONVERTERS.register("Slice", dtypes=MOVABLE)
def convert_slice(
    context: OpContext,
    data: Value,
    starts: Value | None,
    ends: Value | None,
    axes: Annotated[Ints | None, AttributeBefore(10)],
    steps: Ints | None,
) -> None:
    """Convert Slice, with starts and ends clamped to the extents of the data.

    Axes with negative steps are reversed before the slice. Before opset 10 starts and ends are attributes."""
    if starts is not None and ends is not None and (starts.constant is None or ends.constant is None):
        _convert_dynamic_slice(context, data, starts, ends, axes, steps)
        return
    bounds = [
        context.attributes.integers(name) if context.opset < 10 else context.integers(k)
        for k, name in enumerate(("starts", "ends"), 1)
    ]
    extents = data.shape
    sliced = context.normalize_axes(tuple(range(len(bounds[0]))) if axes is None else axes, data.rank)
    steps = (1,) * len(bounds[0]) if steps is None else steps
    if not len(bounds[0]) == len(bounds[1]) == len(sliced) == len(steps) or 0 in steps:
        got = f"starts {bounds[0]}, ends {bounds[1]}, axes {sliced} and steps {steps}"
        context.broken(f"got {got}, expected equal lengths and no step of 0")
    begin, end, strides = [0] * len(extents), list(extents), [1] * len(extents)
    reversed_axes = []
    for axis, first, last, step in zip(sliced, *bounds, steps, strict=True):
        taken = range(extents[axis])[first:last:step]
        if step < 0:
            reversed_axes.append(axis)
            taken = range(extents[axis] - 1 - taken.start, extents[axis] - 1 - taken.stop, -step)
        begin[axis], end[axis], strides[axis] = taken.start, min(taken.stop, extents[axis]), taken.step
        if not taken:
            context.result_constant(_make_empty_array(data, axis))
            return
    if reversed_axes:
        data = context.emit("reverse", (data,), {"axes": tuple(sorted(reversed_axes))})
    if (begin, end, strides) == ([0] * len(extents), list(extents), [1] * len(extents)):
        context.result_alias(data)
        return
    attrs: Mapping[str, Attr] = {"begin": tuple(begin), "end": tuple(end), "strides": tuple(strides)}
    context.result("slice", (data,), attrs)


def _make_empty_array(value: Value, empty_axis: int) -> Array:
    """Return an array with the dtype and shape of ``value``, but with extent 0 along ``empty_axis``."""
    shape = tuple(0 if k == empty_axis else extent for k, extent in enumerate(value.shape))
    return np.zeros(shape, dtypes.to_numpy(value.dtype))


@CONVERTERS.register("Split", dtypes=MOVABLE)
def convert_split(
    context: OpContext, data: Value, split: Annotated[Ints | None, AttributeBefore(13)], *, axis: Axis = 0
) -> None:
    """Convert Split to a slice for each output.

    If the file does not specify the extents in ``split``, they are equal, but the last may be smaller."""
    outputs, extent = context.operator.outputs, data.shape[axis]
    part = -(-extent // len(outputs))
    parts = (*[part] * (len(outputs) - 1), extent - part * (len(outputs) - 1)) if split is None else split
    if len(parts) != len(outputs) or sum(parts) != extent or min(parts) < 0:
        context.broken(f"split: got {parts}, expected {len(outputs)} extents that sum to {extent}")
    first = 0
    for position, part in enumerate(parts):
        if part == extent:
            context.result_alias(data, position)
        elif part == 0:
            context.result_constant(_make_empty_array(data, axis), position)
        elif outputs[position]:
            context.result("slice", (data,), slice_attributes(data.shape, axis, first, first + part), position)
        first += part


@CONVERTERS.register("Gather", dtypes=MOVABLE)
def convert_gather(context: OpContext, data: Value, indices: Value, *, axis: Axis = 0) -> None:
    """Convert Gather to slices or to a ``gather``.

    At most MAX_SLICES constant indices become slices, one for each run of consecutive indices, which are concatenated.
    Other indices become the operand of a ``gather``."""
    if indices.constant is None or indices.size > MAX_SLICES:
        context.result("gather", (data, indices), {"axis": axis})
        return
    if indices.dtype not in ("int32", "int64") or not indices.size:
        context.broken(
            f"indices: got shape {indices.shape} of {indices.dtype}, expected at least one, of int32 or int64"
        )
    element_indices = [context.axis(int(i), data.shape[axis]) for i in indices.constant.reshape(-1)]
    chosen = select_elements(context, data, axis, element_indices)
    context.result_reshape(chosen, (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]))


def select_elements(context: OpContext, value: Value, axis: int, element_indices: Sequence[int]) -> Value:
    """Select the elements of ``value`` at ``element_indices`` along ``axis``; return the result.

    Each run of consecutive indices becomes a slice; the slices are concatenated."""
    runs: list[tuple[int, int]] = []
    for index in element_indices:
        if runs and index == runs[-1][1]:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    if len(runs) > MAX_SLICES:
        context.refuse(
            f"the indices select {len(runs)} separate slices, expected at most {MAX_SLICES}",
            "make the indices an input of the network, so that Gather reads them at run time",
        )
    return concat_along_axis(context, [context.slice_axis(value, axis, begin, end) for begin, end in runs], axis)


@CONVERTERS.register("Pad", dtypes=MOVABLE)
def convert_pad(
    context: OpContext,
    data: Value,
    pads: Annotated[Ints, AttributeBefore(11)],
    constant_value: Value | None,
    axes: Ints | None,
    *,
    mode: Literal["constant", "reflect", "edge", "wrap"] = "constant",
    value: float = 0.0,
) -> None:
    """Convert Pad, which adds elements at the ends of axes: a constant, or reflected, repeated or wrapped data.

    Negative padding removes elements by a slice. Before opset 11 the constant is the attribute ``value``."""
    padded, widths = data, _get_padding_by_axis(context, data.rank, pads, axes)
    for axis, (before, after) in enumerate(widths):
        left = data.shape[axis] + min(before, 0) + min(after, 0)
        if left < 0:
            context.broken(
                f"pads: got {widths} for shape {data.shape}, expected to remove at most the elements of an axis"
            )
        if not left:
            context.refuse(
                f"pads: got {widths} for shape {data.shape}, expected a result with elements",
                "cut the network before this operator with --outputs",
            )
        padded = context.slice_axis(padded, axis, max(-before, 0), data.shape[axis] + min(after, 0))
    widths = tuple((max(before, 0), max(after, 0)) for before, after in widths)
    if not any(before or after for before, after in widths):
        context.result_alias(padded)
    elif mode != "constant":
        context.result_alias(context.emit("mirror_pad", (padded,), {"padding": widths, "mode": mode}))
    elif constant_value is not None and constant_value.constant is None:
        context.result_alias(_emit_pad_with_run_time_value(context, padded, widths, context.operand(2)))
    else:
        number = value if context.opset < 11 else _get_pad_value(context, data.dtype, constant_value)
        context.result_alias(context.emit("pad", (padded,), {"padding": widths, "value": number}))


def _emit_pad_with_run_time_value(
    context: OpContext, data: Value, padding_by_axis: tuple[tuple[int, int], ...], number: Value
) -> Value:
    """Pad ``data`` with a number that is computed at run time; return the result."""
    inside = context.new_constant(f"{context.output()}_inside", np.ones(data.shape, np.bool_))
    mask = context.emit("pad", (inside,), {"padding": padding_by_axis, "value": False})
    padded = context.emit("pad", (data,), {"padding": padding_by_axis, "value": 0})
    return context.emit("where", (mask, padded, context.reshape(number, ())))


def _get_padding_by_axis(context: OpContext, rank: int, pads: Ints, axes: Ints | None) -> tuple[tuple[int, int], ...]:
    """Return the numbers of elements that Pad adds (before, after) each axis; a negative number removes elements."""
    padded_axes = tuple(range(rank)) if axes is None else context.normalize_axes(axes, rank)
    count = len(padded_axes)
    if len(pads) != 2 * count or any(abs(p) > 1 << 24 for p in pads):
        context.broken(f"pads: got {pads}, expected {2 * count} numbers, each at most {1 << 24}")
    widths = dict(zip(padded_axes, zip(pads[:count], pads[count:], strict=True), strict=True))
    return tuple(widths.get(axis, (0, 0)) for axis in range(rank))


def _get_pad_value(context: OpContext, dtype: str, constant_value: Value | None) -> float | int:
    """Return the number that Pad inserts in data of ``dtype``; it is 0 if ``constant_value`` is absent."""
    if constant_value is None or constant_value.constant is None:
        return 0.0 if dtype.startswith("float") else 0
    if constant_value.size != 1 or constant_value.dtype != dtype:
        got = f"shape {constant_value.shape} of {constant_value.dtype}"
        context.broken(f"constant_value: got {got}, expected one element of {dtype}")
    number = constant_value.constant.reshape(()).item()
    return number if isinstance(number, float) else int(number)


@CONVERTERS.register("Expand", dtypes=MOVABLE)
def convert_expand(context: OpContext, data: Value, shape: Ints) -> None:
    """Convert Expand, which broadcasts the data and ``shape`` to each other."""
    wanted = context.broadcast_shapes(data.shape, shape)
    if wanted == data.shape:
        context.result_alias(data)
    else:
        context.result("broadcast_to", (data,), {"shape": wanted})


@CONVERTERS.register("Tile", dtypes=MOVABLE)
def convert_tile(context: OpContext, data: Value, repeats: Ints) -> None:
    """Convert Tile, which repeats the tensor along each axis; at most TILED_AXES axes are repeated by one broadcast."""
    if len(repeats) != data.rank or any(count < 1 for count in repeats):
        context.broken(f"repeats: got {repeats}, expected {data.rank} numbers of at least 1")
    extents = list(data.shape)
    axes = [axis for axis, count in enumerate(repeats) if count > 1]
    for at in range(0, len(axes), TILED_AXES):
        data = _repeat_axes(context, data, extents, {axis: repeats[axis] for axis in axes[at : at + TILED_AXES]})
        extents = [extent * (repeats[k] if k in axes[at : at + TILED_AXES] else 1) for k, extent in enumerate(extents)]
    context.result_reshape(data, extents)


def _repeat_axes(context: OpContext, value: Value, extents: Sequence[int], repeats_by_axis: Mapping[int, int]) -> Value:
    """Repeat a tensor along some axes by a broadcast; return the broadcast tensor.

    The broadcast adds an axis of copies before each repeated axis. Adjacent axes that are not repeated are merged,
    which keeps the rank low. The caller still has to reshape the result; its elements are in the order of Tile's
    result. ``repeats_by_axis``: number of copies by axis."""
    parts, copies = [1], [1]
    for axis, extent in enumerate(extents):
        if axis in repeats_by_axis:
            parts, copies = [*parts, 1, extent], [*copies, repeats_by_axis[axis], extent]
        else:
            parts[-1], copies[-1] = parts[-1] * extent, copies[-1] * extent
    return context.emit("broadcast_to", (context.reshape(value, parts),), {"shape": tuple(copies)})
