"""Conversion of ONNX operators that reshape, transpose, slice, concatenate, repeat and pad tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.onnx.context import MOVABLE, Converter, OpContext
from microc.graph.ir import Attr

# ---- Converters of operators that change a tensor's shape or order, or only read its shape.


def convert_shape(context: OpContext) -> None:
    """Convert Shape, the extents of axes ``start`` to ``end`` - 1, to a constant."""
    extents, attributes = context.shape(0), context.operator.attributes
    start, end = attributes.integer("start", 0), attributes.integer("end", len(extents))
    context.result_constant(np.array(extents[slice(start, end)], np.int64))


def convert_size(context: OpContext) -> None:
    """Convert Size, the number of elements, to a constant."""
    context.result_constant(np.array(context.type(context.value(0)).size, np.int64))


def convert_identity_or_dropout(context: OpContext) -> None:
    """Convert Identity, or Dropout, which does nothing in inference."""
    if context.operator.op_type == "Dropout":
        if context.has_input(2) and context.constant(2).any():
            ratio = float(context.constant(1).reshape(-1)[0]) if context.has_input(1) else 0.5
            if ratio:
                context.refuse("training_mode is true, expected false", "export the network for inference")
        if context.output(1):
            context.result_constant(np.ones(context.shape(0), np.bool_), 1)
    context.result_alias(context.value(0))


def resolve_target_shape(context: OpContext, requested_shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of Reshape's result.

    In ``requested_shape`` an extent of 0 means the extent of the same axis of the input, unless ``allowzero`` is set.
    One extent may be -1; it is computed from the number of elements."""
    extents = context.shape(0)
    keep = not context.operator.attributes.flag("allowzero")
    extents_out = [extents[k] if e == 0 and keep and k < len(extents) else e for k, e in enumerate(requested_shape)]
    if extents_out.count(-1) > 1 or any(e < -1 for e in extents_out):
        context.broken(f"shape: got {tuple(requested_shape)}, expected extents of at least 0, at most one of them -1")
    if -1 in extents_out:
        rest = prod(e for e in extents_out if e != -1)
        extents_out[extents_out.index(-1)] = prod(extents) // rest if rest else 0
    return tuple(extents_out)


def convert_reshape(context: OpContext) -> None:
    """Convert Reshape, whose target shape must be a constant."""
    context.result_reshape(context.value(0), resolve_target_shape(context, context.integers(1)))


def convert_flatten(context: OpContext) -> None:
    """Convert Flatten to a matrix: axes before ``axis`` are merged to rows, all other axes to columns."""
    extents = context.shape(0)
    axis = context.operator.attributes.integer("axis", 1)
    axis = axis if axis == len(extents) else context.axis(axis, max(len(extents), 1))
    context.result_reshape(context.value(0), (prod(extents[:axis]), prod(extents[axis:])))


def read_axes(context: OpContext, first_opset_with_axes_input: int = 13) -> tuple[int, ...] | None:
    """Return the operator's axes, or None if they are absent.

    Axes are an attribute before opset ``first_opset_with_axes_input``, and input 1 from this opset on."""
    if context.opset >= first_opset_with_axes_input:
        return context.integers(1) if context.has_input(1) else None
    attributes = context.operator.attributes
    return attributes.integers("axes") if "axes" in attributes else None


def convert_squeeze(context: OpContext) -> None:
    """Convert Squeeze, which removes the axes in ``axes``, of extent 1, or all axes of extent 1 if ``axes`` is
    absent."""
    extents, axes_given = context.shape(0), read_axes(context)
    ones = tuple(k for k, e in enumerate(extents) if e == 1)
    axes = ones if axes_given is None else context.normalize_axes(axes_given, len(extents))
    if any(extents[axis] != 1 for axis in axes):
        context.broken(f"axes: got {axes} of shape {extents}, expected axes of extent 1")
    context.result_reshape(context.value(0), tuple(e for k, e in enumerate(extents) if k not in axes))


def convert_unsqueeze(context: OpContext) -> None:
    """Convert Unsqueeze, which inserts axes of extent 1. ``axes`` are positions in the result's shape."""
    axes_given = read_axes(context)
    if axes_given is None:
        context.broken("the attribute or input 'axes' is missing")
    extents = list(context.shape(0))
    for axis in sorted(context.normalize_axes(axes_given, len(extents) + len(axes_given))):
        extents.insert(axis, 1)
    context.result_reshape(context.value(0), tuple(extents))


def convert_transpose(context: OpContext) -> None:
    """Convert Transpose, which reverses the order of axes unless ``perm`` is set.

    Constants are transposed at compile time."""
    data, rank = context.value(0), len(context.shape(0))
    order = context.operator.attributes.integers("perm", tuple(reversed(range(rank))))
    if sorted(order) != list(range(rank)):
        context.broken(f"perm is {order}, expected each of 0..{rank - 1} once")
    stored = context.builder.get_stored_constant(data)
    if stored is not None:
        context.add_stored_tensor(f"{data}_transposed", stored.transpose(order), context.output())
    else:
        context.result("transpose", (data,), {"axes": order})


def convert_depth_to_space(context: OpContext) -> None:
    """Convert DepthToSpace, which moves groups of blocksize ** 2 channels to squares of pixels."""
    attributes = context.operator.attributes
    mode, block = attributes.text("mode", "DCR"), attributes.integer("blocksize")
    batch, channels, height, width = require_image_shape(context)
    if mode not in ("DCR", "CRD") or block < 1 or channels % (block * block):
        expected = f"a square that divides {channels} channels, and DCR or CRD"
        context.broken(f"got blocksize {block} and mode {mode!r}, expected {expected}")
    depth = channels // (block * block)
    split_shape = (batch, block, block, depth) if mode == "DCR" else (batch, depth, block, block)
    order = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    parts = context.reshape(context.value(0), (*split_shape, height, width))
    moved = context.emit("transpose", (parts,), {"axes": order})
    context.result_reshape(moved, (batch, depth, height * block, width * block))


def convert_space_to_depth(context: OpContext) -> None:
    """Convert SpaceToDepth, which moves squares of pixels to groups of blocksize ** 2 channels."""
    block = context.operator.attributes.integer("blocksize")
    batch, channels, height, width = require_image_shape(context)
    if block < 1 or height % block or width % block:
        context.broken(f"blocksize is {block}, expected a divisor of {height} and {width}, the height and width")
    view = (batch, channels, height // block, block, width // block, block)
    mode = context.operator.attributes.text("mode", "DCR")
    parts = context.reshape(context.value(0), view)
    order = (0, 1, 3, 5, 2, 4) if mode == "CRD" else (0, 3, 5, 1, 2, 4)
    moved = context.emit("transpose", (parts,), {"axes": order})
    context.result_reshape(moved, (batch, channels * block * block, height // block, width // block))


def require_image_shape(context: OpContext) -> tuple[int, int, int, int]:
    """Return the shape (batch, channels, height, width) of input 0; raise ModelError if it has not four axes."""
    extents = context.shape(0)
    if len(extents) != 4:
        context.broken(f"got data of shape {extents}, expected four axes")
    return extents[0], extents[1], extents[2], extents[3]


def read_constant_data(context: OpContext) -> Array:
    """Return the data of a Constant node, which are in its only attribute."""
    attributes = context.operator.attributes
    names = attributes.names()
    if len(names) != 1:
        context.broken(f"got the attributes {', '.join(names) or 'none'}, expected one that holds the value")
    match names[0]:
        case "value":
            return attributes.tensor("value")
        case "value_float":
            return np.array(attributes.real("value_float"), np.float32)
        case "value_floats":
            return np.array(attributes.reals("value_floats"), np.float32)
        case "value_int":
            return np.array(attributes.integer("value_int"), np.int64)
        case "value_ints":
            return np.array(attributes.integers("value_ints"), np.int64)
    return context.refuse(
        f"attribute {names[0]!r} is not supported", "export the constant as a dense tensor of numbers"
    )


def convert_constant(context: OpContext) -> None:
    """Convert Constant, whose data are in an attribute."""
    context.result_constant(read_constant_data(context))


SHAPE_CONVERTERS: Mapping[str, Converter] = {
    "Constant": Converter(convert_constant, ()),
    "DepthToSpace": Converter(convert_depth_to_space, MOVABLE),
    "Dropout": Converter(convert_identity_or_dropout, MOVABLE),
    "Flatten": Converter(convert_flatten, MOVABLE),
    "Identity": Converter(convert_identity_or_dropout, MOVABLE),
    "Reshape": Converter(convert_reshape, MOVABLE),
    "Shape": Converter(convert_shape, MOVABLE),
    "Size": Converter(convert_size, MOVABLE),
    "SpaceToDepth": Converter(convert_space_to_depth, MOVABLE),
    "Squeeze": Converter(convert_squeeze, MOVABLE),
    "Transpose": Converter(convert_transpose, MOVABLE),
    "Unsqueeze": Converter(convert_unsqueeze, MOVABLE),
}


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


def convert_dynamic_slice(context: OpContext) -> None:
    """Convert a Slice along one axis whose start is computed at run time to a ``dynamic_slice``.

    Start and end must differ by a constant, because shapes are static. The step must be 1."""
    shape = context.shape(0)
    (axis,) = context.integers(3)[:1] if context.has_input(3) else (0,)
    axis = context.axis(axis, len(shape))
    step = context.integers(4) if context.has_input(4) else (1,)
    index_types = [context.type(context.value(position)) for position in (1, 2)]
    if any(type_.size != 1 or type_.dtype not in ("int32", "int64") for type_ in index_types) or step != (1,):
        context.refuse(
            "starts is computed at run time, which is supported only for one axis and step 1",
            "slice along one axis at a time, with steps = 1",
        )
    start, end = (_split_index_into_value_and_offset(context, context.value(position)) for position in (1, 2))
    # The size is known although start and end are not: it is the difference of their constants.
    size = end.offset - start.offset
    if start.value_name != end.value_name or not 0 < size <= shape[axis]:
        context.refuse(
            "the extent of the slice depends on run-time data, expected ends - starts to be constant",
            "compute ends as starts plus a constant, so that shapes are known at compile time",
        )
    whole = context.new_constant("begin", np.zeros(1, dtypes.to_numpy(index_types[0].dtype)))
    begin = [whole] * len(shape)
    begin[axis] = context.reshape(context.value(1), (1,))
    first = context.emit("concat", begin, {"axis": 0}) if len(begin) > 1 else begin[0]
    context.result("dynamic_slice", (context.value(0), first), {"size": (*shape[:axis], size, *shape[axis + 1 :])})


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


def convert_concat(context: OpContext) -> None:
    """Convert Concat; operands without elements are omitted."""
    values = tuple(context.operand(position) for position in range(context.input_count()))
    if not values:
        context.broken("got no operands, expected at least one")
    axis = context.axis(context.operator.attributes.integer("axis"), len(context.type(values[0]).shape))
    values = tuple(value for value in values if context.type(value).size) or values[:1]
    concat_along_axis(context, values, axis, context.output())


def concat_along_axis(context: OpContext, value_names: Sequence[str], axis: int, output_name: str = "") -> str:
    """Concatenate ``value_names`` along ``axis``.

    Return the name of the result, ``output_name`` or a new name if this is empty."""
    if len(value_names) == 1 and not output_name:
        return value_names[0]
    if len(value_names) == 1:
        context.result_alias(value_names[0])
        return value_names[0]
    if not output_name:
        return context.emit("concat", value_names, {"axis": axis})
    return context.write_node("concat", value_names, {"axis": axis}, output_name)


def slice_along_axis(
    context: OpContext, value_name: str, axis: int, start_index: int, end_index: int, output_name: str = ""
) -> str:
    """Slice elements ``start_index`` to ``end_index`` - 1 of ``value_name`` along ``axis``.

    Return the name of the result. If ``output_name`` is empty, the result has a new name, or is ``value_name`` itself
    if the slice contains all elements."""
    extents = context.type(value_name).shape
    bounds = [(0, extent) for extent in extents]
    bounds[axis] = (start_index, end_index)
    attrs: Mapping[str, Attr] = {
        "begin": tuple(b for b, _ in bounds),
        "end": tuple(e for _, e in bounds),
        "strides": (1,) * len(extents),
    }
    if output_name:
        return context.write_node("slice", (value_name,), attrs, output_name)
    return value_name if (start_index, end_index) == (0, extents[axis]) else context.emit("slice", (value_name,), attrs)


def read_starts_ends_axes_and_steps(context: OpContext) -> tuple[tuple[int, ...], ...]:
    """Return starts, ends, axes and steps of a Slice: four tuples with one number for each sliced axis.

    They are attributes before opset 10 and constant inputs from opset 10 on."""
    rank = len(context.shape(0))
    if context.opset < 10:
        attributes = context.operator.attributes
        starts, ends = attributes.integers("starts"), attributes.integers("ends")
        axes_given, steps = attributes.integers("axes", tuple(range(len(starts)))), (1,) * len(starts)
    else:
        starts, ends = context.integers(1), context.integers(2)
        axes_given = context.integers(3) if context.has_input(3) else tuple(range(len(starts)))
        steps = context.integers(4) if context.has_input(4) else (1,) * len(starts)
    axes = context.normalize_axes(axes_given, rank)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        context.broken(
            f"got starts {starts}, ends {ends}, axes {axes} and steps {steps}, expected equal lengths and no step of 0"
        )
    return starts, ends, axes, steps


def convert_slice(context: OpContext) -> None:
    """Convert Slice, with starts and ends clamped to the extents of the data.

    Axes with negative steps are reversed before the slice."""
    if context.opset >= 10 and any(context.value(k) not in context.builder.consts for k in (1, 2)):
        convert_dynamic_slice(context)
        return
    starts, ends, axes, steps = read_starts_ends_axes_and_steps(context)
    extents = context.shape(0)
    begin, end, strides = [0] * len(extents), list(extents), [1] * len(extents)
    reversed_axes = []
    for axis, first, last, step in zip(axes, starts, ends, steps, strict=True):
        taken = range(extents[axis])[first:last:step]
        if step < 0:
            reversed_axes.append(axis)
            taken = range(extents[axis] - 1 - taken.start, extents[axis] - 1 - taken.stop, -step)
        begin[axis], end[axis], strides[axis] = taken.start, min(taken.stop, extents[axis]), taken.step
        if not taken:
            context.result_constant(_make_empty_array(context, axis))
            return
    data = context.value(0)
    if reversed_axes:
        data = context.emit("reverse", (data,), {"axes": tuple(sorted(reversed_axes))})
    if (begin, end, strides) == ([0] * len(extents), list(extents), [1] * len(extents)):
        context.result_alias(data)
        return
    attrs: Mapping[str, Attr] = {"begin": tuple(begin), "end": tuple(end), "strides": tuple(strides)}
    context.result("slice", (data,), attrs)


def _make_empty_array(context: OpContext, empty_axis: int) -> Array:
    """Return an array with the dtype and shape of input 0, but with extent 0 along ``empty_axis``."""
    kind = context.type(context.value(0))
    shape = tuple(0 if k == empty_axis else extent for k, extent in enumerate(kind.shape))
    return np.zeros(shape, dtypes.to_numpy(kind.dtype))


def convert_split(context: OpContext) -> None:
    """Convert Split to a slice for each output."""
    extents, attributes, outputs = context.shape(0), context.operator.attributes, context.operator.outputs
    axis = context.axis(attributes.integer("axis", 0), len(extents))
    parts = read_split_extents(context, extents[axis])
    if len(parts) != len(outputs) or sum(parts) != extents[axis] or min(parts) < 0:
        context.broken(f"split: got {parts}, expected {len(outputs)} extents that sum to {extents[axis]}")
    first = 0
    for position, part in enumerate(parts):
        if part == extents[axis]:
            context.result_alias(context.value(0), position)
        elif part == 0:
            context.result_constant(_make_empty_array(context, axis), position)
        elif outputs[position]:
            slice_along_axis(context, context.value(0), axis, first, first + part, outputs[position])
        first += part


def read_split_extents(context: OpContext, axis_extent: int) -> tuple[int, ...]:
    """Return the extent of each output of a Split along the split axis.

    If the file does not specify the extents, they are equal, but the last may be smaller."""
    attributes, count = context.operator.attributes, len(context.operator.outputs)
    if context.opset < 13 and "split" in attributes:
        return attributes.integers("split")
    if context.opset >= 13 and context.has_input(1):
        return context.integers(1)
    if count == 0:
        context.broken("got no outputs, expected at least one")
    part = -(-axis_extent // count)
    return (*[part] * (count - 1), axis_extent - part * (count - 1))


def convert_gather(context: OpContext) -> None:
    """Convert Gather to slices or to a ``gather``.

    At most MAX_SLICES constant indices become slices, one for each run of consecutive indices, which are concatenated.
    Other indices become the operand of a ``gather``."""
    data, extents = context.value(0), context.shape(0)
    axis = context.axis(context.operator.attributes.integer("axis", 0), len(extents))
    if context.value(1) not in context.builder.consts or context.constant(1).size > MAX_SLICES:
        context.result("gather", (context.value(0), context.value(1)), {"axis": axis})
        return
    indices = context.constant(1)
    if indices.dtype not in (np.int32, np.int64) or not indices.size:
        context.broken(
            f"indices: got shape {indices.shape} of {indices.dtype}, expected at least one, of int32 or int64"
        )
    indices_found = [context.axis(int(i), extents[axis]) for i in indices.reshape(-1)]
    chosen = select_elements(context, data, axis, indices_found)
    context.result_reshape(chosen, (*extents[:axis], *indices.shape, *extents[axis + 1 :]))


def select_elements(context: OpContext, value_name: str, axis: int, element_indices: Sequence[int]) -> str:
    """Select the elements of ``value_name`` at ``element_indices`` along ``axis``; return the name of the result.

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
    return concat_along_axis(
        context, [slice_along_axis(context, value_name, axis, begin, end) for begin, end in runs], axis
    )


def convert_pad(context: OpContext) -> None:
    """Convert Pad, which adds elements at the ends of axes: a constant, or reflected, repeated or wrapped data.

    Negative padding removes elements by a slice."""
    attributes, extents = context.operator.attributes, context.shape(0)
    mode = attributes.text("mode", "constant")
    widths, value = read_padding_widths(context), context.value(0)
    for axis, (before, after) in enumerate(widths):
        left = extents[axis] + min(before, 0) + min(after, 0)
        if left < 0:
            context.broken(
                f"pads: got {widths} for shape {extents}, expected to remove at most the elements of an axis"
            )
        if not left:
            context.refuse(
                f"pads: got {widths} for shape {extents}, expected a result with elements",
                "cut the network before this operator with --outputs",
            )
        value = slice_along_axis(context, value, axis, max(-before, 0), extents[axis] + min(after, 0))
    widths = tuple((max(before, 0), max(after, 0)) for before, after in widths)
    if not any(before or after for before, after in widths):
        context.result_alias(value)
    elif mode in ("reflect", "edge", "wrap"):
        context.result_alias(context.emit("mirror_pad", (value,), {"padding": widths, "mode": mode}))
    elif mode != "constant":
        context.broken(f"mode is {mode!r}, expected constant, reflect, edge or wrap")
    elif context.opset >= 11 and context.has_input(2) and context.value(2) not in context.builder.consts:
        context.result_alias(_emit_pad_with_run_time_value(context, value, widths))
    else:
        value = context.emit("pad", (value,), {"padding": widths, "value": read_pad_value(context)})
        context.result_alias(value)


def _emit_pad_with_run_time_value(
    context: OpContext, value_name: str, padding_by_axis: tuple[tuple[int, int], ...]
) -> str:
    """Pad ``value_name`` with a number that is computed at run time (input 2); return the name of the result."""
    kind = context.type(value_name)
    inside = context.new_constant(f"{context.output()}_inside", np.ones(kind.shape, np.bool_))
    mask = context.emit("pad", (inside,), {"padding": padding_by_axis, "value": False})
    data = context.emit("pad", (value_name,), {"padding": padding_by_axis, "value": 0})
    return context.emit("where", (mask, data, context.reshape(context.operand(2), ())))


def read_padding_widths(context: OpContext) -> tuple[tuple[int, int], ...]:
    """Return the numbers of elements that Pad adds (before, after) each axis; a negative number removes elements."""
    rank = len(context.shape(0))
    pads = context.operator.attributes.integers("pads") if context.opset < 11 else context.integers(1)
    axes = tuple(range(rank))
    if context.opset >= 18 and context.has_input(3):
        axes = context.normalize_axes(context.integers(3), rank)
    if len(pads) != 2 * len(axes) or any(abs(p) > 1 << 24 for p in pads):
        context.broken(f"pads: got {pads}, expected {2 * len(axes)} numbers, each at most {1 << 24}")
    widths = dict(zip(axes, zip(pads[: len(axes)], pads[len(axes) :], strict=True), strict=True))
    return tuple(widths.get(axis, (0, 0)) for axis in range(rank))


def read_pad_value(context: OpContext) -> float | int:
    """Return the constant that Pad inserts in mode ``constant``."""
    if context.opset < 11:
        return context.operator.attributes.real("value", 0.0)
    kind = context.type(context.value(0)).dtype
    if not context.has_input(2):
        return 0.0 if kind.startswith("float") else 0
    data = context.constant(2)
    if data.size != 1 or data.dtype.name != kind:
        context.broken(f"constant_value: got shape {data.shape} of {data.dtype}, expected one element of {kind}")
    number = data.reshape(()).item()
    return number if isinstance(number, float) else int(number)


def convert_expand(context: OpContext) -> None:
    """Convert Expand, which broadcasts the data and the shape in input 1 to each other."""
    extents = context.shape(0)
    wanted = context.broadcast_shapes(extents, context.integers(1))
    if wanted == context.shape(0):
        context.result_alias(context.value(0))
    else:
        context.result("broadcast_to", (context.value(0),), {"shape": wanted})


def convert_tile(context: OpContext) -> None:
    """Convert Tile, which repeats the tensor along each axis; at most TILED_AXES axes are repeated by one broadcast."""
    counts = context.integers(1)
    if len(counts) != len(context.shape(0)) or any(count < 1 for count in counts):
        context.broken(f"repeats: got {counts}, expected {len(context.shape(0))} numbers of at least 1")
    value, extents = context.value(0), list(context.shape(0))
    axes = [axis for axis, count in enumerate(counts) if count > 1]
    for at in range(0, len(axes), TILED_AXES):
        value = _repeat_axes(context, value, extents, {axis: counts[axis] for axis in axes[at : at + TILED_AXES]})
        extents = [extent * (counts[k] if k in axes[at : at + TILED_AXES] else 1) for k, extent in enumerate(extents)]
    context.result_reshape(value, extents)


def _repeat_axes(
    context: OpContext, value_name: str, extents: Sequence[int], repeats_by_axis: Mapping[int, int]
) -> str:
    """Repeat a tensor along some axes by a broadcast; return the name of the broadcast tensor.

    The broadcast adds an axis of copies before each repeated axis. Adjacent axes that are not repeated are merged,
    which keeps the rank low. The caller still has to reshape the result; its elements are in the order of Tile's
    result. ``repeats_by_axis``: number of copies by axis."""
    parts, copies = [1], [1]
    for axis, extent in enumerate(extents):
        if axis in repeats_by_axis:
            parts, copies = [*parts, 1, extent], [*copies, repeats_by_axis[axis], extent]
        else:
            parts[-1], copies[-1] = parts[-1] * extent, copies[-1] * extent
    return context.emit("broadcast_to", (context.reshape(value_name, parts),), {"shape": tuple(copies)})


SLICE_CONVERTERS: Mapping[str, Converter] = {
    "Concat": Converter(convert_concat, MOVABLE),
    "Expand": Converter(convert_expand, MOVABLE),
    "Gather": Converter(convert_gather, MOVABLE),
    "Pad": Converter(convert_pad, MOVABLE),
    "Slice": Converter(convert_slice, MOVABLE),
    "Split": Converter(convert_split, MOVABLE),
    "Tile": Converter(convert_tile, MOVABLE),
}
