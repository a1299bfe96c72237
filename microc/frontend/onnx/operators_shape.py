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


def shape(application: OpContext) -> None:
    """Convert Shape, the extents of axes ``start`` to ``end`` - 1, to a constant."""
    extents, attributes = application.shape(0), application.operator.attributes
    start, end = attributes.integer("start", 0), attributes.integer("end", len(extents))
    application.result_constant(np.array(extents[slice(start, end)], np.int64))


def size(application: OpContext) -> None:
    """Convert Size, the number of elements, to a constant."""
    application.result_constant(np.array(application.type(application.value(0)).size, np.int64))


def identity(application: OpContext) -> None:
    """Convert Identity, or Dropout, which is an identity in inference."""
    if application.operator.code == "Dropout":
        if application.has(2) and application.constant(2).any():
            ratio = float(application.constant(1).reshape(-1)[0]) if application.has(1) else 0.5
            if ratio:
                application.refuse("dropout in training", "export the network for inference")
        if application.output(1):
            application.result_constant(np.ones(application.shape(0), np.bool_), 1)
    application.result_alias(application.value(0))


def target_shape(application: OpContext, requested_shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of Reshape's result.

    In ``requested_shape`` an extent of 0 means the extent of the same axis of the input, unless ``allowzero`` is set. One extent
    may be -1; it is computed from the number of elements."""
    extents = application.shape(0)
    keep = not application.operator.attributes.flag("allowzero")
    extents_out = [extents[k] if e == 0 and keep and k < len(extents) else e for k, e in enumerate(requested_shape)]
    if extents_out.count(-1) > 1 or any(e < -1 for e in extents_out):
        application.broken(
            f"shape: got {tuple(requested_shape)}, expected extents of at least 0, at most one of them -1"
        )
    if -1 in extents_out:
        rest = prod(e for e in extents_out if e != -1)
        extents_out[extents_out.index(-1)] = prod(extents) // rest if rest else 0
    return tuple(extents_out)


def reshape(application: OpContext) -> None:
    """Convert Reshape, whose shape must be constant."""
    application.result_reshape(application.value(0), target_shape(application, application.integers(1)))


def flatten(application: OpContext) -> None:
    """Convert Flatten, which merges the axes before ``axis`` to rows and the others to columns of a matrix."""
    extents = application.shape(0)
    axis = application.operator.attributes.integer("axis", 1)
    axis = axis if axis == len(extents) else application.axis(axis, max(len(extents), 1))
    application.result_reshape(application.value(0), (prod(extents[:axis]), prod(extents[axis:])))


def axes_operand(application: OpContext, axes_input_opset: int = 13) -> tuple[int, ...] | None:
    """Return the operator's axes, or None if they are absent.

    They are an attribute before opset ``axes_input_opset`` and input 1 since then."""
    if application.opset >= axes_input_opset:
        return application.integers(1) if application.has(1) else None
    attributes = application.operator.attributes
    return attributes.integers("axes") if "axes" in attributes else None


def squeeze(application: OpContext) -> None:
    """Convert Squeeze, which removes the given axes of extent 1, or all axes of extent 1 if none are given."""
    extents, axes_given = application.shape(0), axes_operand(application)
    ones = tuple(k for k, e in enumerate(extents) if e == 1)
    axes = ones if axes_given is None else application.axes(axes_given, len(extents))
    if any(extents[axis] != 1 for axis in axes):
        application.broken(f"got axes {axes} of shape {extents}, expected axes of one element")
    application.result_reshape(application.value(0), tuple(e for k, e in enumerate(extents) if k not in axes))


def unsqueeze(application: OpContext) -> None:
    """Convert Unsqueeze, which inserts axes of extent 1; their positions count in the result."""
    axes_given = axes_operand(application)
    if axes_given is None:
        application.broken("the attribute or input 'axes' is missing")
    extents = list(application.shape(0))
    for axis in sorted(application.axes(axes_given, len(extents) + len(axes_given))):
        extents.insert(axis, 1)
    application.result_reshape(application.value(0), tuple(extents))


def transpose(application: OpContext) -> None:
    """Convert Transpose, which reverses the order of axes unless ``perm`` is set. Constants are transposed at compile time."""
    data, rank = application.value(0), len(application.shape(0))
    order = application.operator.attributes.integers("perm", tuple(reversed(range(rank))))
    if sorted(order) != list(range(rank)):
        application.broken(f"perm is {order}, expected each of 0..{rank - 1} once")
    stored = application.builder.stored_constant(data)
    if stored is not None:
        application.store(f"{data}_transposed", stored.transpose(order), application.output())
    else:
        application.result("transpose", (data,), {"axes": order})


def depth_to_space(application: OpContext) -> None:
    """Convert DepthToSpace, which moves groups of blocksize ** 2 channels to squares of pixels."""
    attributes = application.operator.attributes
    mode, block = attributes.text("mode", "DCR"), attributes.integer("blocksize")
    batch, channels, height, width = image_shape(application)
    if mode not in ("DCR", "CRD") or block < 1 or channels % (block * block):
        expected = f"a square that divides {channels} channels, and DCR or CRD"
        application.broken(f"got blocksize {block} and mode {mode!r}, expected {expected}")
    depth = channels // (block * block)
    split_shape = (batch, block, block, depth) if mode == "DCR" else (batch, depth, block, block)
    order = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    parts = application.reshape(application.value(0), (*split_shape, height, width))
    moved = application.emit("transpose", (parts,), {"axes": order})
    application.result_reshape(moved, (batch, depth, height * block, width * block))


def space_to_depth(application: OpContext) -> None:
    """Convert SpaceToDepth, which moves squares of pixels to groups of blocksize ** 2 channels."""
    block = application.operator.attributes.integer("blocksize")
    batch, channels, height, width = image_shape(application)
    if block < 1 or height % block or width % block:
        application.broken(f"blocksize is {block}, expected a divisor of {height} and {width}, the height and width")
    view = (batch, channels, height // block, block, width // block, block)
    mode = application.operator.attributes.text("mode", "DCR")
    parts = application.reshape(application.value(0), view)
    order = (0, 1, 3, 5, 2, 4) if mode == "CRD" else (0, 3, 5, 1, 2, 4)
    moved = application.emit("transpose", (parts,), {"axes": order})
    application.result_reshape(moved, (batch, channels * block * block, height // block, width // block))


def image_shape(application: OpContext) -> tuple[int, int, int, int]:
    """Return the shape (batch, channels, height, width) of input 0; raise ModelError if it has not four axes."""
    extents = application.shape(0)
    if len(extents) != 4:
        application.broken(f"got data of shape {extents}, expected four axes")
    return extents[0], extents[1], extents[2], extents[3]


def constant_data(application: OpContext) -> Array:
    """Return the data of a Constant node, which are in its only attribute."""
    attributes = application.operator.attributes
    names = attributes.names()
    if len(names) != 1:
        application.broken(f"got the attributes {', '.join(names) or 'none'}, expected one that holds the value")
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
    return application.refuse(f"a Constant with attribute {names[0]}", "export it as a dense tensor of numbers")


def constant(application: OpContext) -> None:
    """Convert Constant, whose data are in an attribute."""
    application.result_constant(constant_data(application))


SHAPE_CONVERTERS: Mapping[str, Converter] = {
    "Constant": Converter(constant, ()),
    "DepthToSpace": Converter(depth_to_space, MOVABLE),
    "Dropout": Converter(identity, MOVABLE),
    "Flatten": Converter(flatten, MOVABLE),
    "Identity": Converter(identity, MOVABLE),
    "Reshape": Converter(reshape, MOVABLE),
    "Shape": Converter(shape, MOVABLE),
    "Size": Converter(size, MOVABLE),
    "SpaceToDepth": Converter(space_to_depth, MOVABLE),
    "Squeeze": Converter(squeeze, MOVABLE),
    "Transpose": Converter(transpose, MOVABLE),
    "Unsqueeze": Converter(unsqueeze, MOVABLE),
}


# ---- Slices from a computed start, of a constant size: start and end must differ by a constant.
#
# Loops use them to read a part of a tensor in every iteration: ``x[i : i + 1]``.


@frozen
class _TracedIndex:
    """Index of an element as the sum of a value known at run time and a constant.

    ``value``: name of a scalar or of a vector of one element; empty if the index is constant. ``offset``: the constant."""

    value: str
    offset: int


def dynamic_slice(application: OpContext) -> None:
    """Convert a Slice along one axis whose start is computed at run time, to a ``dynamic_slice``.

    Start and end must differ by a constant, because shapes are static. The step must be 1."""
    shape = application.shape(0)
    (axis,) = application.integers(3)[:1] if application.has(3) else (0,)
    axis = application.axis(axis, len(shape))
    step = application.integers(4) if application.has(4) else (1,)
    index_types = [application.type(application.value(position)) for position in (1, 2)]
    if any(type_.size != 1 or type_.dtype not in ("int32", "int64") for type_ in index_types) or step != (1,):
        application.refuse(
            "a slice from a computed start along several axes, or with steps other than 1",
            "slice along one axis at a time, in steps of one",
        )
    start, end = (_trace_offset(application, application.value(position)) for position in (1, 2))
    # The size is known although start and end are not: it is the difference of their constants.
    size = end.offset - start.offset
    if start.value != end.value or not 0 < size <= shape[axis]:
        application.refuse(
            "a slice whose size depends on data is not supported", "shapes are static: give it a constant size"
        )
    whole = application.new_constant("begin", np.zeros(1, dtypes.to_numpy(index_types[0].dtype)))
    begin = [whole] * len(shape)
    begin[axis] = application.reshape(application.value(1), (1,))
    first = application.emit("concat", begin, {"axis": 0}) if len(begin) > 1 else begin[0]
    application.result(
        "dynamic_slice", (application.value(0), first), {"size": (*shape[:axis], size, *shape[axis + 1 :])}
    )


def _trace_offset(application: OpContext, value: str) -> _TracedIndex:
    """Return an index (a value of one element) as an earlier value plus a constant.

    Its computation is followed back through reshapes, casts of integers, and additions and subtractions of constants."""
    builder, offset = application.builder, 0
    producer = {name: node for node in builder.nodes for name in node.outputs}
    while value in producer:
        node = producer[value]
        if node.op == "reshape" or (node.op == "cast" and dtypes.is_integer(builder.types[node.inputs[0]].dtype)):
            value = node.inputs[0]
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
        offset, value = offset + (amount if node.op == "add" else -amount), variables[0]
    if value in builder.consts:
        return _TracedIndex("", offset + int(builder.consts[value].reshape(-1)[0]))
    return _TracedIndex(value, offset)


# ---- Converters of operators that select, join, repeat and pad elements.

TILED_AXES = 3
"""Maximum number of axes that one broadcast repeats for Tile; the broadcast tensor has up to two axes for each."""
MAX_SLICES = 64
"""Maximum number of slices that replace a Gather with constant indices."""


def concat(application: OpContext) -> None:
    """Convert Concat; operands without elements are omitted."""
    values = tuple(application.operand(position) for position in range(application.count()))
    if not values:
        application.broken("got no operands, expected at least one")
    axis = application.axis(application.operator.attributes.integer("axis"), len(application.type(values[0]).shape))
    values = tuple(value for value in values if application.type(value).size) or values[:1]
    concat_along(application, values, axis, application.output())


def concat_along(application: OpContext, values: Sequence[str], axis: int, output_name: str = "") -> str:
    """Concatenate ``values`` along ``axis``; return the name of the result, ``output_name`` or a new name if this is empty."""
    if len(values) == 1 and not output_name:
        return values[0]
    if len(values) == 1:
        application.result_alias(values[0])
        return values[0]
    if not output_name:
        return application.emit("concat", values, {"axis": axis})
    return application.write("concat", values, {"axis": axis}, output_name)


def slice_along(application: OpContext, value: str, axis: int, begin: int, end: int, output_name: str = "") -> str:
    """Slice elements ``begin`` to ``end`` - 1 of ``value`` along ``axis``; return the name of the result.

    If ``output_name`` is empty, the result has a new name, or is ``value`` itself if the slice contains all elements."""
    extents = application.type(value).shape
    bounds = [(0, extent) for extent in extents]
    bounds[axis] = (begin, end)
    attrs: Mapping[str, Attr] = {
        "begin": tuple(b for b, _ in bounds),
        "end": tuple(e for _, e in bounds),
        "strides": (1,) * len(extents),
    }
    if output_name:
        return application.write("slice", (value,), attrs, output_name)
    return value if (begin, end) == (0, extents[axis]) else application.emit("slice", (value,), attrs)


def slice_bounds(application: OpContext) -> tuple[tuple[int, ...], ...]:
    """Return starts, ends, axes and steps of a Slice; they are attributes before opset 10 and constant inputs since then."""
    rank = len(application.shape(0))
    if application.opset < 10:
        attributes = application.operator.attributes
        starts, ends = attributes.integers("starts"), attributes.integers("ends")
        axes_given, steps = attributes.integers("axes", tuple(range(len(starts)))), (1,) * len(starts)
    else:
        starts, ends = application.integers(1), application.integers(2)
        axes_given = application.integers(3) if application.has(3) else tuple(range(len(starts)))
        steps = application.integers(4) if application.has(4) else (1,) * len(starts)
    axes = application.axes(axes_given, rank)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        application.broken(
            f"got starts {starts}, ends {ends}, axes {axes} and steps {steps}, expected equal lengths and no step of 0"
        )
    return starts, ends, axes, steps


def slice_(application: OpContext) -> None:
    """Convert Slice. Starts and ends are clamped to the extents; axes with negative steps are reversed before the slice."""
    if application.opset >= 10 and any(application.value(k) not in application.builder.consts for k in (1, 2)):
        dynamic_slice(application)
        return
    starts, ends, axes, steps = slice_bounds(application)
    extents = application.shape(0)
    begin, end, strides = [0] * len(extents), list(extents), [1] * len(extents)
    reversed_axes = []
    for axis, first, last, step in zip(axes, starts, ends, steps, strict=True):
        taken = range(extents[axis])[first:last:step]
        if step < 0:
            reversed_axes.append(axis)
            taken = range(extents[axis] - 1 - taken.start, extents[axis] - 1 - taken.stop, -step)
        begin[axis], end[axis], strides[axis] = taken.start, min(taken.stop, extents[axis]), taken.step
        if not taken:
            application.result_constant(_empty_constant(application, axis))
            return
    data = application.value(0)
    if reversed_axes:
        data = application.emit("reverse", (data,), {"axes": tuple(sorted(reversed_axes))})
    if (begin, end, strides) == ([0] * len(extents), list(extents), [1] * len(extents)):
        application.result_alias(data)
        return
    attrs: Mapping[str, Attr] = {"begin": tuple(begin), "end": tuple(end), "strides": tuple(strides)}
    application.result("slice", (data,), attrs)


def _empty_constant(application: OpContext, axis: int) -> Array:
    """Return an array with the dtype and shape of input 0, but with extent 0 along ``axis``."""
    kind = application.type(application.value(0))
    shape = tuple(0 if k == axis else extent for k, extent in enumerate(kind.shape))
    return np.zeros(shape, dtypes.to_numpy(kind.dtype))


def split(application: OpContext) -> None:
    """Convert Split to a slice for each output."""
    extents, attributes, outputs = application.shape(0), application.operator.attributes, application.operator.outputs
    axis = application.axis(attributes.integer("axis", 0), len(extents))
    parts = split_parts(application, extents[axis])
    if len(parts) != len(outputs) or sum(parts) != extents[axis] or min(parts) < 0:
        application.broken(f"split: got {parts}, expected {len(outputs)} extents that sum to {extents[axis]}")
    first = 0
    for position, part in enumerate(parts):
        if part == extents[axis]:
            application.result_alias(application.value(0), position)
        elif part == 0:
            application.result_constant(_empty_constant(application, axis), position)
        elif outputs[position]:
            slice_along(application, application.value(0), axis, first, first + part, outputs[position])
        first += part


def split_parts(application: OpContext, axis_extent: int) -> tuple[int, ...]:
    """Return the extent of each output of a Split along the split axis.

    If the file does not specify the extents, they are equal, but the last may be smaller."""
    attributes, count = application.operator.attributes, len(application.operator.outputs)
    if application.opset < 13 and "split" in attributes:
        return attributes.integers("split")
    if application.opset >= 13 and application.has(1):
        return application.integers(1)
    if count == 0:
        application.broken("got no outputs, expected at least one")
    part = -(-axis_extent // count)
    return (*[part] * (count - 1), axis_extent - part * (count - 1))


def gather(application: OpContext) -> None:
    """Convert Gather.

    If there are at most MAX_SLICES indices and they are constant, slices are concatenated, one for each run of consecutive
    indices. Otherwise Gather becomes a ``gather``."""
    data, extents = application.value(0), application.shape(0)
    axis = application.axis(application.operator.attributes.integer("axis", 0), len(extents))
    if application.value(1) not in application.builder.consts or application.constant(1).size > MAX_SLICES:
        application.result("gather", (application.value(0), application.value(1)), {"axis": axis})
        return
    indices = application.constant(1)
    if indices.dtype not in (np.int32, np.int64) or not indices.size:
        application.broken(
            f"indices: got shape {indices.shape} of {indices.dtype}, expected at least one, of int32 or int64"
        )
    indices_found = [application.axis(int(i), extents[axis]) for i in indices.reshape(-1)]
    chosen = select_elements(application, data, axis, indices_found)
    application.result_reshape(chosen, (*extents[:axis], *indices.shape, *extents[axis + 1 :]))


def select_elements(application: OpContext, value: str, axis: int, indices: Sequence[int]) -> str:
    """Select the elements of ``value`` at ``indices`` along ``axis``; return the name of the result.

    Each run of consecutive indices becomes a slice; the slices are concatenated."""
    runs: list[tuple[int, int]] = []
    for index in indices:
        if runs and index == runs[-1][1]:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    if len(runs) > MAX_SLICES:
        application.refuse(
            f"{len(runs)} separate pieces of a tensor; at most {MAX_SLICES}",
            "make the indices an input",
        )
    return concat_along(application, [slice_along(application, value, axis, begin, end) for begin, end in runs], axis)


def pad(application: OpContext) -> None:
    """Convert Pad, which adds elements at the ends of axes: a constant, or data reflected, repeated or wrapped around.

    Negative padding removes elements by a slice."""
    attributes, extents = application.operator.attributes, application.shape(0)
    mode = attributes.text("mode", "constant")
    widths, value = padding_widths(application), application.value(0)
    for axis, (before, after) in enumerate(widths):
        left = extents[axis] + min(before, 0) + min(after, 0)
        if left < 0:
            application.broken(f"pads: got {widths}, which cut more elements off than shape {extents} has")
        if not left:
            application.refuse(
                f"padding {widths} of shape {extents}, which leaves nothing", "cut the network before it"
            )
        value = slice_along(application, value, axis, max(-before, 0), extents[axis] + min(after, 0))
    widths = tuple((max(before, 0), max(after, 0)) for before, after in widths)
    if not any(before or after for before, after in widths):
        application.result_alias(value)
    elif mode in ("reflect", "edge", "wrap"):
        application.result_alias(application.emit("mirror_pad", (value,), {"padding": widths, "mode": mode}))
    elif mode != "constant":
        application.broken(f"mode is {mode!r}, expected constant, reflect, edge or wrap")
    elif application.opset >= 11 and application.has(2) and application.value(2) not in application.builder.consts:
        application.result_alias(_pad_with_value(application, value, widths))
    else:
        value = application.emit("pad", (value,), {"padding": widths, "value": pad_value(application)})
        application.result_alias(value)


def _pad_with_value(application: OpContext, value: str, padding_by_axis: tuple[tuple[int, int], ...]) -> str:
    """Pad ``value`` with a number that is known only at run time (operand 2); return the name of the result."""
    kind = application.type(value)
    inside = application.new_constant(f"{application.output()}_inside", np.ones(kind.shape, np.bool_))
    mask = application.emit("pad", (inside,), {"padding": padding_by_axis, "value": False})
    data = application.emit("pad", (value,), {"padding": padding_by_axis, "value": 0})
    return application.emit("where", (mask, data, application.reshape(application.operand(2), ())))


def padding_widths(application: OpContext) -> tuple[tuple[int, int], ...]:
    """Return the numbers of elements that Pad adds (before, after) each axis; negative numbers remove elements."""
    rank = len(application.shape(0))
    pads = application.operator.attributes.integers("pads") if application.opset < 11 else application.integers(1)
    axes = tuple(range(rank))
    if application.opset >= 18 and application.has(3):
        axes = application.axes(application.integers(3), rank)
    if len(pads) != 2 * len(axes) or any(abs(p) > 1 << 24 for p in pads):
        application.broken(f"pads: got {pads}, expected {2 * len(axes)} numbers, each at most {1 << 24}")
    widths = dict(zip(axes, zip(pads[: len(axes)], pads[len(axes) :], strict=True), strict=True))
    return tuple(widths.get(axis, (0, 0)) for axis in range(rank))


def pad_value(application: OpContext) -> float | int:
    """Return the constant with which Pad fills in mode ``constant``."""
    if application.opset < 11:
        return application.operator.attributes.real("value", 0.0)
    kind = application.type(application.value(0)).dtype
    if not application.has(2):
        return 0.0 if kind.startswith("float") else 0
    data = application.constant(2)
    if data.size != 1 or data.dtype.name != kind:
        application.broken(f"constant_value: got shape {data.shape} of {data.dtype}, expected one element of {kind}")
    number = data.reshape(()).item()
    return number if isinstance(number, float) else int(number)


def expand(application: OpContext) -> None:
    """Convert Expand, which broadcasts the data and a given shape to each other."""
    extents = application.shape(0)
    wanted = application.broadcast(extents, application.integers(1))
    if wanted == application.shape(0):
        application.result_alias(application.value(0))
    else:
        application.result("broadcast_to", (application.value(0),), {"shape": wanted})


def tile(application: OpContext) -> None:
    """Convert Tile, which repeats the tensor along each axis; at most TILED_AXES axes are repeated by one broadcast."""
    counts = application.integers(1)
    if len(counts) != len(application.shape(0)) or any(count < 1 for count in counts):
        application.broken(f"repeats: got {counts}, expected {len(application.shape(0))} numbers of at least 1")
    value, extents = application.value(0), list(application.shape(0))
    axes = [axis for axis, count in enumerate(counts) if count > 1]
    for at in range(0, len(axes), TILED_AXES):
        value = _repeat_axes(application, value, extents, {axis: counts[axis] for axis in axes[at : at + TILED_AXES]})
        extents = [extent * (counts[k] if k in axes[at : at + TILED_AXES] else 1) for k, extent in enumerate(extents)]
    application.result_reshape(value, extents)


def _repeat_axes(application: OpContext, value: str, extents: Sequence[int], repeats_by_axis: Mapping[int, int]) -> str:
    """Repeat a tensor along some axes by a broadcast; return the name of the result, which is still to be reshaped.

    The broadcast adds an axis of copies before each repeated axis. Adjacent axes that are not repeated are merged, which keeps
    the rank low. The elements are in the order of Tile's result. ``repeats_by_axis``: number of copies by axis."""
    parts, copies = [1], [1]
    for axis, extent in enumerate(extents):
        if axis in repeats_by_axis:
            parts, copies = [*parts, 1, extent], [*copies, repeats_by_axis[axis], extent]
        else:
            parts[-1], copies[-1] = parts[-1] * extent, copies[-1] * extent
    return application.emit("broadcast_to", (application.reshape(value, parts),), {"shape": tuple(copies)})


SLICE_CONVERTERS: Mapping[str, Converter] = {
    "Concat": Converter(concat, MOVABLE),
    "Expand": Converter(expand, MOVABLE),
    "Gather": Converter(gather, MOVABLE),
    "Pad": Converter(pad, MOVABLE),
    "Slice": Converter(slice_, MOVABLE),
    "Split": Converter(split, MOVABLE),
    "Tile": Converter(tile, MOVABLE),
}
