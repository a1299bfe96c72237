"""Converters of TFLite's operators that compute shapes, reshape, join, pad and slice tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from microc.base.immutable import frozen
from microc.frontend.tflite.context import (
    FLOAT,
    MOVABLE,
    PLAIN,
    ComputedSlice,
    Converter,
    OpContext,
    activation_name,
    check_same_quantisation,
)
from microc.graph.ir import Attr
from microc.ops.attributes import Ties

# ---- Converters of operators with constant results: SHAPE, RANK, RANGE, FILL, ZEROS_LIKE, BROADCAST_ARGS.

_MOST = 1 << 20
"""Maximum number of elements of a RANGE."""
_SMALL = 1 << 16
"""Maximum number of elements of a FILL that becomes a constant. A larger tensor is filled at run time."""


def convert_shape(context: OpContext) -> None:
    """Convert SHAPE to a constant, because every shape is known at compile time."""
    context.result_constant(np.array(context.type(context.value(0)).shape, context.output_tensor().type.dtype))


def convert_rank(context: OpContext) -> None:
    """Convert RANK, the number of axes, to a constant."""
    context.result_constant(np.array(len(context.type(context.value(0)).shape), context.output_tensor().type.dtype))


def convert_range(context: OpContext) -> None:
    """Convert RANGE with constant start, limit and step to a constant."""
    start, limit, step = (context.constant(position).reshape(-1)[:1] for position in range(3))
    if not (start.size == limit.size == step.size == 1) or step[0] == 0:
        context.broken(
            f"got {start.size} start, {limit.size} limit and {step.size} delta, expected one of each and delta != 0"
        )
    count = (float(limit[0]) - float(start[0])) / float(step[0])
    if not count <= _MOST:
        context.refuse(f"got a range of {count} elements, expected at most {_MOST}", "shorten the range")
    numbers = start[0] + np.arange(max(int(np.ceil(count)), 0)) * step[0]
    context.result_constant(numbers.astype(context.output_tensor().type.dtype))


def convert_fill(context: OpContext) -> None:
    """Convert FILL: a tensor of constant shape whose elements all have the same value."""
    shape, value = context.integers(0), context.unchanged_operand(1)
    check_same_quantisation(context, [1])
    if any(extent < 0 for extent in shape) or context.type(value).size != 1:
        context.broken(
            f"got dims {shape} and a value of shape {context.type(value).shape}, "
            "expected extents of at least 0 and one element"
        )
    known = context.builder.consts.get(value)
    if known is not None and prod(shape) <= _SMALL:
        context.result_constant(np.full(shape, known.reshape(-1)[0], known.dtype))
    else:
        context.result("broadcast_to", (context.reshape(value, ()),), {"shape": shape})


def convert_zeros_like(context: OpContext) -> None:
    """Convert ZEROS_LIKE: a constant of stored zeros in the shape of the operand."""
    type_ = context.type(context.value(0))
    context.result_constant(np.zeros(type_.shape, context.output_tensor().type.dtype))


def convert_broadcast_args(context: OpContext) -> None:
    """Convert BROADCAST_ARGS: the shape that tensors of two constant shapes are broadcast to."""
    shapes = (context.integers(0), context.integers(1))
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        context.broken(f"got shapes {shapes[0]} and {shapes[1]}, expected shapes that broadcast to each other")
    context.result_constant(np.array(shape, context.output_tensor().type.dtype))


CONSTANT_CONVERTERS: Mapping[str, Converter] = {
    "BROADCAST_ARGS": Converter(convert_broadcast_args, PLAIN),
    "FILL": Converter(convert_fill, MOVABLE),
    "RANGE": Converter(convert_range, (*FLOAT, *PLAIN)),
    "RANK": Converter(convert_rank, PLAIN),
    "SHAPE": Converter(convert_shape, PLAIN),
    "ZEROS_LIKE": Converter(convert_zeros_like, MOVABLE),
}


# ---- Converters of operators that move elements without computing on them: RESHAPE, CONCATENATION, PAD, TRANSPOSE ...

_ONE_ELEMENT = "use slices of constant size, or let the concatenation replace one element of a list"


def convert_reshape(context: OpContext) -> None:
    """Convert RESHAPE.

    The new shape is a constant operand or an option. If the network computes it, the shape that the file declares is
    used."""
    data, target = _operand_with_complex_as_floats(context), context.output_tensor()
    if context.has_input(1) and context.value(1) in context.builder.consts:
        shape = context.integers(1)
    elif not context.has_input(1) and context.operator.options.table_type:
        shape = context.operator.options.fields("ReshapeOptions").read_integers("NewShape")
    else:
        shape = tuple(-1 if axis in target.unknown_axes else extent for axis, extent in enumerate(target.type.shape))
    _emit_reshaped_result(
        context, data, _resolve_unknown_extent(context, shape, _shape_without_complex_axis(context, data))
    )


def _operand_with_complex_as_floats(context: OpContext) -> str:
    """Return the name of operand 0. For a complex tensor, return the float value that contains its real and imaginary
    parts."""
    source = context.input_tensor(0)
    if source.type.dtype != "complex64":
        return context.unchanged_operand(0)
    if source.name not in context.builder.complex_values:
        context.refuse(
            f"input {source.name!r}: complex64 is not supported here",
            "use complex numbers for the output of RFFT2D only",
        )
    return context.builder.complex_values[source.name]


def _shape_without_complex_axis(context: OpContext, data_name: str) -> tuple[int, ...]:
    """Return the shape of the value ``data_name`` of operand 0.

    For a complex tensor, leave out the additional axis of real and imaginary parts."""
    shape = context.type(data_name).shape
    return shape[:-1] if context.input_tensor(0).name in context.builder.complex_values else shape


def _emit_reshaped_result(context: OpContext, data_name: str, shape: tuple[int, ...]) -> None:
    """Define the output as the value ``data_name``, reshaped to ``shape``. For a complex tensor, record the reshaped
    float value instead."""
    complexes = context.builder.complex_values
    if context.input_tensor(0).name in complexes:
        complexes[context.output_tensor().name] = context.reshape(data_name, (*shape, 2))
    else:
        context.result_reshape(data_name, shape)


def convert_squeeze_or_expand_dims(context: OpContext) -> None:
    """Convert SQUEEZE and EXPAND_DIMS, which remove or insert axes of extent 1, to a reshape."""
    data = _operand_with_complex_as_floats(context)
    shape = _shape_without_complex_axis(context, data)
    if context.operator.code == "EXPAND_DIMS":
        new_axes = context.integers(1) if context.has_input(1) else (0,)
        if len(new_axes) != 1:
            context.broken(f"got {len(new_axes)} axes, expected one")
        axis = context.axis(new_axes[0], len(shape) + 1)
        _emit_reshaped_result(context, data, (*shape[:axis], 1, *shape[axis:]))
        return
    dims = context.operator.options.fields("SqueezeOptions").read_integers("SqueezeDims")
    axes = {context.axis(axis, len(shape)) for axis in dims}
    axes = axes or {axis for axis, extent in enumerate(shape) if extent == 1}
    _emit_reshaped_result(context, data, tuple(extent for axis, extent in enumerate(shape) if axis not in axes))


def convert_concatenation(context: OpContext) -> None:
    """Convert CONCATENATION along one axis. Operands other than uint8 must have the output's quantisation."""
    fields = context.operator.options.fields("ConcatenationOptions")
    if activation_name(context, fields.read_integer("FusedActivationFunction")):
        context.refuse(
            "fused_activation_function: got an activation, expected NONE", "write the activation as a separate operator"
        )
    if any(
        context.input_tensor(k).name in context.builder.computed_slices for k in range(len(context.operator.inputs))
    ):
        _convert_list_update(context)
        return
    values = [context.unchanged_operand(position) for position in range(len(context.operator.inputs))]
    if not values:
        context.broken("got no inputs, expected at least one")
    if context.output_tensor().type.dtype == "uint8":
        values = [_requantise_to_output(context, value) for value in values]
    else:
        check_same_quantisation(context, range(len(values)))
    axis = context.axis(fields.read_integer("Axis"), len(context.type(values[0]).shape))
    context.result("concat", values, {"axis": axis})


def _requantise_to_output(context: OpContext, value: str) -> str:
    """Return a uint8 operand of CONCATENATION, requantised to the output's scale and zero point as in LiteRT."""
    own, quant = context.type(value).quant, context.output_tensor().type.quant
    if own == quant or own is None or quant is None:
        return value
    attrs: dict[str, Attr] = {"scale": own.scale, "zero_point": own.zero_point, "axis": None}
    real = context.emit("dequantize", (value,), attrs)
    attrs = {
        "scale": quant.scale,
        "zero_point": quant.zero_point,
        "axis": None,
        "out_dtype": "uint8",
        "rounding": Ties.AWAY,
    }
    return context.emit("quantize", (real,), attrs, like=replace(context.type(value), quant=quant))


def _convert_list_update(context: OpContext) -> None:
    """Convert a CONCATENATION that replaces one element of a list to ``dynamic_update_slice``.

    TFLite converters write the update of a list (a tensor) as a concatenation of three operands: the slice before the
    element, the new element, and the slice after it. The result is as large as the list. Therefore the element's index
    is the size of the first slice. Any other use of slices of computed size is refused.
    """
    pieces = context.builder.computed_slices
    if len(context.operator.inputs) != 3:
        context.refuse("input: got a slice of computed size, expected constant sizes", _ONE_ELEMENT)
    first, last = (pieces.get(context.input_tensor(k).name) for k in (0, 2))
    item = context.value(1)
    if first is None or last is None or first.data_name != last.data_name or context.input_tensor(1).name in pieces:
        context.refuse("input: got a slice of computed size, expected constant sizes", _ONE_ELEMENT)
    start = context.builder.consts.get(first.begin_name)
    if start is None or start.any() or last.begin_name in context.builder.consts:
        context.refuse("input: got a slice of computed size, expected constant sizes", _ONE_ELEMENT)
    context.result("dynamic_update_slice", (first.data_name, item, first.size_name), {})


def convert_pack(context: OpContext) -> None:
    """Convert PACK: stack operands of the same shape along a new axis."""
    fields = context.operator.options.fields("PackOptions", required=True)
    values = [context.unchanged_operand(position) for position in range(len(context.operator.inputs))]
    if not values:
        context.broken("got no inputs, expected at least one")
    check_same_quantisation(context, range(len(values)))
    shape = context.type(values[0]).shape
    axis = context.axis(fields.read_integer("Axis"), len(shape) + 1)
    widened = (*shape[:axis], 1, *shape[axis:])
    if any(context.type(value).shape != shape for value in values):
        context.broken(
            f"got operands of shapes {', '.join(str(context.type(value).shape) for value in values)}, expected "
            "equal shapes"
        )
    context.result("concat", [context.reshape(value, widened) for value in values], {"axis": axis})


def convert_tile(context: OpContext) -> None:
    """Convert TILE: repeat the tensor along every axis a constant number of times."""
    data, multiples = context.unchanged_operand(0), context.integers(1)
    shape = context.type(data).shape
    if len(multiples) != len(shape) or min(multiples, default=1) < 0:
        context.broken(f"multiples: got {multiples}, expected {len(shape)} numbers of at least 0")
    check_same_quantisation(context, [0])
    split_shape = [extent for size in shape for extent in (1, size)]
    broadcast_shape = tuple(extent for pair in zip(multiples, shape, strict=True) for extent in pair)
    data = context.emit("broadcast_to", (context.reshape(data, split_shape),), {"shape": broadcast_shape})
    context.result_reshape(data, [multiple * size for multiple, size in zip(multiples, shape, strict=True)])


def convert_transpose(context: OpContext) -> None:
    """Convert TRANSPOSE by a constant permutation of the axes."""
    data = context.unchanged_operand(0)
    rank = len(context.type(data).shape)
    axes = tuple(context.axis(axis, rank) for axis in context.integers(1))
    if sorted(axes) != list(range(rank)):
        context.broken(f"perm: got {axes}, expected each of 0..{rank - 1} once")
    context.result("transpose", (data,), {"axes": axes})


def convert_pad(context: OpContext) -> None:
    """Convert PAD and PADV2.

    PAD pads with the real number 0, which is the zero point of a quantised tensor. PADV2 pads with a constant operand
    of the data's dtype, a stored number."""
    data, type_ = context.unchanged_operand(0), context.output_tensor().type
    rank = len(context.type(data).shape)
    amounts = context.integers(1)
    if len(amounts) != 2 * rank or min(amounts, default=0) < 0:
        context.broken(f"paddings: got {amounts}, expected {2 * rank} numbers of at least 0")
    check_same_quantisation(context, [0])
    value: int | float = 0.0 if type_.dtype == "float32" else 0
    if context.operator.code == "PADV2":
        filler = context.constant(2)
        if filler.size != 1 or str(filler.dtype) != type_.dtype:
            context.broken(
                f"padding value: got shape {filler.shape} of {filler.dtype}, expected one element of {type_.dtype}"
            )
        value = filler.reshape(-1)[0].item()
    elif type_.quant is not None:
        value = type_.quant.zero_point[0]
    padding = tuple(zip(amounts[0::2], amounts[1::2], strict=True))
    context.result("pad", (data,), {"padding": padding, "value": value})


def convert_depth_to_space_or_inverse(context: OpContext) -> None:
    """Convert SPACE_TO_DEPTH, which moves the pixels of a block to channels, and the inverse, DEPTH_TO_SPACE."""
    to_depth = context.operator.code == "SPACE_TO_DEPTH"
    options = "SpaceToDepthOptions" if to_depth else "DepthToSpaceOptions"
    block = context.operator.options.fields(options, required=True).read_integer("BlockSize", 1, 1 << 15)
    data = context.unchanged_operand(0)
    batch, height, width, depth = context.shape_of_rank(data, 4)
    if (height % block or width % block) if to_depth else depth % (block * block):
        expected = "a divisor of the height and width" if to_depth else "one whose square divides the channels"
        context.broken(f"block_size: got {block} for shape {(batch, height, width, depth)}, expected {expected}")
    if to_depth:
        rows, columns = height // block, width // block
        blocked = (batch, rows, block, columns, block, depth)
        shape = (batch, rows, columns, block * block * depth)
    else:
        depth //= block * block
        blocked = (batch, height, width, block, block, depth)
        shape = (batch, height * block, width * block, depth)
    blocks = context.emit("reshape", (data,), {"shape": blocked})
    context.result_reshape(context.emit("transpose", (blocks,), {"axes": (0, 1, 3, 2, 4, 5)}), shape)


def _resolve_unknown_extent(
    context: OpContext, shape: tuple[int, ...], source_shape: tuple[int, ...]
) -> tuple[int, ...]:
    """Return ``shape`` with an extent of -1 replaced by the extent that follows from the number of elements.

    ``source_shape``: shape of the tensor that is reshaped."""
    known = prod(extent for extent in shape if extent != -1)
    if any(extent < -1 for extent in shape) or shape.count(-1) > 1 or (shape.count(-1) == 1 and not known):
        context.broken(f"shape: got {shape}, expected extents of at least 0, at most one of them -1")
    return tuple(prod(source_shape) // known if extent == -1 else extent for extent in shape)


SHAPE_CONVERTERS: Mapping[str, Converter] = {
    "CONCATENATION": Converter(convert_concatenation, MOVABLE),
    "DEPTH_TO_SPACE": Converter(convert_depth_to_space_or_inverse, MOVABLE),
    "EXPAND_DIMS": Converter(convert_squeeze_or_expand_dims, (*MOVABLE, "complex64")),
    "PACK": Converter(convert_pack, MOVABLE),
    "PAD": Converter(convert_pad, MOVABLE),
    "PADV2": Converter(convert_pad, MOVABLE),
    "RESHAPE": Converter(convert_reshape, (*MOVABLE, "complex64")),
    "SPACE_TO_DEPTH": Converter(convert_depth_to_space_or_inverse, MOVABLE),
    "SQUEEZE": Converter(convert_squeeze_or_expand_dims, (*MOVABLE, "complex64")),
    "TILE": Converter(convert_tile, MOVABLE),
    "TRANSPOSE": Converter(convert_transpose, MOVABLE),
}


# ---- Converters of operators that slice a tensor.


def convert_unpack(context: OpContext) -> None:
    """Convert UNPACK: one output for each index of an axis, without this axis."""
    fields = context.operator.options.fields("UnpackOptions", required=True)
    data = context.unchanged_operand(0)
    shape = context.type(data).shape
    axis = context.axis(fields.read_integer("Axis"), len(shape))
    if len(context.operator.outputs) != shape[axis]:
        context.broken(f"got {len(context.operator.outputs)} outputs, expected {shape[axis]}, the extent of the axis")
    for position in range(shape[axis]):
        part = context.emit("slice", (data,), _axis_slice_attributes(shape, axis, position, position + 1))
        context.result_reshape(part, (*shape[:axis], *shape[axis + 1 :]), position)


def convert_split(context: OpContext) -> None:
    """Convert SPLIT: split a tensor (input 1) into equal parts along a constant axis (input 0)."""
    data = context.unchanged_operand(1)
    (axis,) = context.integers(0)[:1] or (0,)
    shape = context.type(data).shape
    axis, count = context.axis(axis, len(shape)), len(context.operator.outputs)
    if not count or shape[axis] % count:
        context.broken(f"num_splits is {count}, expected a divisor of {shape[axis]}, the extent of the axis")
    _emit_consecutive_slices(context, data, axis, [shape[axis] // count] * count)


def convert_split_v(context: OpContext) -> None:
    """Convert SPLIT_V: split a tensor into parts of constant sizes along a constant axis.

    One size may be -1, which means all elements that the other parts do not contain."""
    data, sizes = context.unchanged_operand(0), list(context.integers(1))
    (axis,) = context.integers(2)[:1] or (0,)
    shape = context.type(data).shape
    axis = context.axis(axis, len(shape))
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = shape[axis] - sum(sizes) - 1
    if len(sizes) != len(context.operator.outputs) or min(sizes, default=0) < 1 or sum(sizes) != shape[axis]:
        count = len(context.operator.outputs)
        context.broken(f"size_splits: got {sizes}, expected {count} numbers of at least 1 that sum to {shape[axis]}")
    _emit_consecutive_slices(context, data, axis, sizes)


def convert_slice(context: OpContext) -> None:
    """Convert SLICE. Begin and size are given for each axis; a size of -1 means all elements from begin to the end."""
    data = context.unchanged_operand(0)
    if any(context.value(position) not in context.builder.consts for position in (1, 2)):
        _convert_computed_slice(context, data)
        return
    begin, size = context.integers(1), context.integers(2)
    shape = context.type(data).shape
    if not len(begin) == len(size) == len(shape):
        context.broken(f"begin, size: got {begin} and {size} for shape {shape}, expected {len(shape)} numbers each")
    end = tuple(
        extent if count == -1 else first + count for first, count, extent in zip(begin, size, shape, strict=True)
    )
    if any(not 0 <= first <= last <= extent for first, last, extent in zip(begin, end, shape, strict=True)):
        context.broken(f"begin, size: got {begin} and {size}, expected a slice within shape {shape}")
    if begin and any(first == last for first, last in zip(begin, end, strict=True)):
        sizes = [last - first for first, last in zip(begin, end, strict=True)]
        context.result_constant(np.zeros(sizes, context.output_tensor().type.dtype))
        return
    context.result("slice", (data,), {"begin": begin, "end": end, "strides": (1,) * len(shape)})


def _convert_computed_slice(context: OpContext, data_name: str) -> None:
    """Convert a SLICE whose begin or size is computed at run time.

    If the size is constant, append ``dynamic_slice``. If not, only record the slice (:class:`ComputedSlice`): a
    CONCATENATION may combine it with others to a tensor of known size."""
    begin, size, shape = context.value(1), context.value(2), context.type(data_name).shape
    known = context.builder.consts.get(size)
    if known is not None and known.size == len(shape) and known.min(initial=1) >= 1:
        context.result("dynamic_slice", (data_name, begin), {"size": tuple(int(part) for part in known.reshape(-1))})
    else:
        context.builder.computed_slices[context.output_tensor().name] = ComputedSlice(data_name, begin, size)


@frozen
class _SliceMasks:
    """Bit masks of STRIDED_SLICE. Bit i refers to entry i of the operands begin, end and strides."""

    begin: int
    end: int
    ellipsis: int
    new_axis: int
    shrink_axis: int


def convert_strided_slice(context: OpContext) -> None:
    """Convert STRIDED_SLICE, which slices as numpy does, with inserted and removed axes.

    Axes with negative strides are reversed first."""
    fields = context.operator.options.fields("StridedSliceOptions", required=True)
    masks = _SliceMasks(
        *(fields.read_integer(f"{name}Mask") for name in ("Begin", "End", "Ellipsis", "NewAxis", "ShrinkAxis"))
    )
    data = context.unchanged_operand(0)
    if any(context.value(position) not in context.builder.consts for position in (1, 2)):
        _convert_computed_strided_slice(context, data, masks)
        return
    begin, end, strides = (context.integers(position) for position in (1, 2, 3))
    if not len(begin) == len(end) == len(strides):
        context.broken(f"begin, end, strides: got {begin}, {end} and {strides}, expected equal lengths")
    if fields.read_integer("Offset"):
        end = tuple(first + count for first, count in zip(begin, end, strict=True))
    ranges, shape = _resolve_slice_ranges_and_shape(context, context.type(data).shape, (begin, end, strides), masks)
    reversed_axes = tuple(axis for axis, entry in enumerate(ranges) if entry[2] < 0)
    if reversed_axes:
        data = context.emit("reverse", (data,), {"axes": reversed_axes})
        extents = context.type(data).shape
        ranges = [
            (extents[axis] - 1 - first, extents[axis] - 1 - last, -step) if step < 0 else (first, last, step)
            for axis, (first, last, step) in enumerate(ranges)
        ]
    if 0 in shape:
        context.result_constant(np.zeros(shape, context.output_tensor().type.dtype))
        return
    first, last, steps = (tuple(entry[i] for entry in ranges) for i in range(3))
    attrs: dict[str, Attr] = {"begin": first, "end": last, "strides": steps}
    if masks.new_axis or masks.shrink_axis:
        context.result_reshape(context.emit("slice", (data,), attrs), shape)
    else:
        context.result("slice", (data,), attrs)


def _convert_computed_strided_slice(context: OpContext, data_name: str, masks: _SliceMasks) -> None:
    """Convert a STRIDED_SLICE whose begin is computed at run time, such as ``x[:, i]`` or ``x[i : i + 3]``.

    Strides must be 1. The size of the slice follows from the output's declared shape. A negative begin counts from the
    end of the axis, as in a constant STRIDED_SLICE.
    """
    begin, shape, target = context.value(1), context.type(data_name).shape, context.output_tensor()
    entries = prod(context.type(begin).shape)
    if any(step != 1 for step in context.integers(3)) or masks.ellipsis or masks.new_axis:
        context.refuse(
            "a computed begin with strides, an ellipsis or new axes is not supported",
            "slice without them, then reshape",
        )
    kept = [axis for axis in range(len(shape)) if not masks.shrink_axis >> axis & 1]
    if entries > len(shape) or target.unknown_axes or len(target.type.shape) != len(kept):
        context.refuse(
            f"a slice of computed size is not supported; got shape {shape}", "slice a fixed size: x[:, i], x[i : i + 3]"
        )
    size = [1] * len(shape)
    for axis, extent in zip(kept, target.type.shape, strict=True):
        size[axis] = extent
    if any(not 1 <= count <= extent for count, extent in zip(size, shape, strict=True)):
        context.broken(f"size: got {tuple(size)} for shape {shape}, expected 1 up to the extent of each axis")
    is_whole_axis = [masks.begin >> axis & 1 and not masks.shrink_axis >> axis & 1 for axis in range(entries)]
    type_ = context.type(begin).dtype
    extents, zeros, is_used = (
        context.new_constant(stem, np.array(numbers, type_))
        for stem, numbers in (
            ("extents", shape[:entries]),
            ("zeros", [0] * entries),
            ("used", [not w for w in is_whole_axis]),
        )
    )
    from_end = context.emit("less", (begin, zeros), {})
    begins = context.emit("where", (from_end, context.emit("add", (begin, extents), {}), begin), {})
    begins = context.emit("mul", (begins, is_used), {})
    if entries < len(shape):
        begins = context.emit("pad", (begins,), {"padding": ((0, len(shape) - entries),), "value": 0})
    context.result_reshape(context.emit("dynamic_slice", (data_name, begins), {"size": tuple(size)}), target.type.shape)


def _resolve_slice_ranges_and_shape(
    context: OpContext, data_shape: tuple[int, ...], begin_end_strides: Sequence[tuple[int, ...]], masks: _SliceMasks
) -> tuple[list[tuple[int, int, int]], list[int]]:
    """Return the range (begin, end, stride) of every axis of the data, and the output's shape.

    ``begin_end_strides``: the constant operands begin, end and strides."""
    entries = len(begin_end_strides[0])
    consumed = sum(not (masks.ellipsis | masks.new_axis) >> i & 1 for i in range(entries))
    if consumed > len(data_shape) or (masks.ellipsis & (1 << entries) - 1).bit_count() > 1:
        context.broken(
            f"begin: got {entries} entries for shape {data_shape}, expected at most one for each axis, and one ellipsis"
        )
    ranges: list[tuple[int, int, int]] = []
    result: list[int] = []

    def append_ranges_of_unsliced_axes(axis_count: int) -> None:
        """Append the ranges of the next ``axis_count`` axes, which are not sliced."""
        for extent in data_shape[len(ranges) : len(ranges) + axis_count]:
            ranges.append((0, extent, 1))
            result.append(extent)

    for i, (first, last, stride) in enumerate(zip(*begin_end_strides, strict=True)):
        if masks.ellipsis >> i & 1:
            append_ranges_of_unsliced_axes(len(data_shape) - consumed)
        elif masks.new_axis >> i & 1:
            result.append(1)
        elif masks.shrink_axis >> i & 1:
            ranges.append(_range_of_single_index(context, first, data_shape[len(ranges)]))
        else:
            extent = data_shape[len(ranges)]
            first = (0 if stride > 0 else extent - 1) if masks.begin >> i & 1 else first
            last = (extent if stride > 0 else -1 - extent) if masks.end >> i & 1 else last
            ranges.append(_clamp_range_to_axis(context, first, last, stride, extent))
            result.append(-(-abs(ranges[-1][1] - ranges[-1][0]) // abs(stride)))
    append_ranges_of_unsliced_axes(len(data_shape) - len(ranges))
    return ranges, result


def _range_of_single_index(context: OpContext, index: int, extent: int) -> tuple[int, int, int]:
    """Return the range (begin, end, stride) that contains only ``index``. A negative index counts from the end of the
    axis."""
    index += extent if index < 0 else 0
    if not 0 <= index < extent:
        context.broken(f"got index {index}, expected 0..{extent - 1}")
    return index, index + 1, 1


def _clamp_range_to_axis(context: OpContext, begin: int, end: int, stride: int, extent: int) -> tuple[int, int, int]:
    """Return the range (begin, end, stride) with its bounds clamped to the axis.

    Bounds are in 0 .. extent for a positive stride and in -1 .. extent - 1 for a negative one. An empty range is (0, 0,
    1)."""
    if stride == 0:
        context.broken("strides: got 0, expected a number other than 0")
    begin, end = (bound + extent if bound < 0 else bound for bound in (begin, end))
    low, high = (0, extent) if stride > 0 else (-1, extent - 1)
    begin, end = min(max(begin, low), high), min(max(end, low), high)
    return (begin, end, stride) if (end - begin) * stride > 0 else (0, 0, 1)


def _axis_slice_attributes(shape: tuple[int, ...], axis: int, first_element: int, end_element: int) -> dict[str, Attr]:
    """Return the attributes of a ``slice`` node that contains elements ``first_element`` to ``end_element`` - 1 along
    ``axis``.

    The other axes are not sliced."""
    begin = tuple(first_element if i == axis else 0 for i in range(len(shape)))
    end = tuple(end_element if i == axis else extent for i, extent in enumerate(shape))
    return {"begin": begin, "end": end, "strides": (1,) * len(shape)}


def _emit_consecutive_slices(context: OpContext, data_name: str, axis: int, part_extents: Sequence[int]) -> None:
    """Define the operator's outputs as consecutive slices of the value ``data_name`` along an axis.

    ``part_extents``: extents of the slices along this axis."""
    first = 0
    for position, size in enumerate(part_extents):
        attrs = _axis_slice_attributes(context.type(data_name).shape, axis, first, first + size)
        context.result("slice", (data_name,), attrs, position)
        first += size


SLICE_CONVERTERS: Mapping[str, Converter] = {
    "SLICE": Converter(convert_slice, MOVABLE),
    "SPLIT": Converter(convert_split, MOVABLE),
    "SPLIT_V": Converter(convert_split_v, MOVABLE),
    "STRIDED_SLICE": Converter(convert_strided_slice, MOVABLE),
    "UNPACK": Converter(convert_unpack, MOVABLE),
}
