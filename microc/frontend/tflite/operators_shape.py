# SPDX-License-Identifier: Apache-2.0
"""Converters of TFLite's operators that compute shapes, reshape, join, pad and slice tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Annotated

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.operator_context import slice_attributes
from microc.frontend.signature import Axis, Ints, Range, Rank, ReadWith, Value
from microc.frontend.tflite.builder import ComputedSlice
from microc.frontend.tflite.context import (
    FLOAT,
    MOVABLE,
    PLAIN,
    ConverterTable,
    Moved,
    NoActivation,
    OpContext,
    Unchanged,
)
from microc.graph.ir import Attr
from microc.ops.attributes import Ties

CONVERTERS = ConverterTable()

# ---- Converters of operators with constant results: SHAPE, RANK, RANGE, FILL, ZEROS_LIKE, BROADCAST_ARGS.

_MOST = 1 << 20
"""Maximum number of elements of a RANGE."""
_SMALL = 1 << 16
"""Maximum number of elements of a FILL that becomes a constant. A larger tensor is filled at run time."""


@CONVERTERS.register("SHAPE", dtypes=PLAIN)
def convert_shape(context: OpContext, x: Value) -> None:
    """Convert SHAPE to a constant, because every shape is known at compile time."""
    context.result_constant(np.array(x.shape, context.output_dtype()))


@CONVERTERS.register("RANK", dtypes=PLAIN)
def convert_rank(context: OpContext, x: Value) -> None:
    """Convert RANK, the number of axes, to a constant."""
    context.result_constant(np.array(x.rank, context.output_dtype()))


@CONVERTERS.register("RANGE", dtypes=(*FLOAT, *PLAIN))
def convert_range(context: OpContext, start: Array, limit: Array, delta: Array) -> None:
    """Convert RANGE with constant start, limit and step to a constant."""
    start, limit, delta = (data.reshape(-1)[:1] for data in (start, limit, delta))
    if not (start.size == limit.size == delta.size == 1) or delta[0] == 0:
        context.broken(
            f"got {start.size} start, {limit.size} limit and {delta.size} delta, expected one of each and delta != 0"
        )
    count = (float(limit[0]) - float(start[0])) / float(delta[0])
    if not count <= _MOST:
        context.refuse(f"got a range of {count} elements, expected at most {_MOST}", "shorten the range")
    numbers = start[0] + np.arange(max(int(np.ceil(count)), 0)) * delta[0]
    context.result_constant(numbers.astype(context.output_dtype()))


@CONVERTERS.register("FILL", dtypes=MOVABLE)
def convert_fill(context: OpContext, dims: Ints, value: Moved) -> None:
    """Convert FILL: a tensor of constant shape whose elements all have the same value."""
    if any(extent < 0 for extent in dims) or value.size != 1:
        context.broken(
            f"got dims {dims} and a value of shape {value.shape}, expected extents of at least 0 and one element"
        )
    if value.constant is not None and prod(dims) <= _SMALL:
        context.result_constant(np.full(dims, value.constant.reshape(-1)[0], value.constant.dtype))
    else:
        context.result("broadcast_to", (context.reshape(value, ()),), {"shape": dims})


@CONVERTERS.register("ZEROS_LIKE", dtypes=MOVABLE)
def convert_zeros_like(context: OpContext, x: Value) -> None:
    """Convert ZEROS_LIKE: a constant of stored zeros in the shape of the operand."""
    context.result_constant(np.zeros(x.shape, context.output_dtype()))


@CONVERTERS.register("BROADCAST_ARGS", dtypes=PLAIN)
def convert_broadcast_args(context: OpContext, a: Ints, b: Ints) -> None:
    """Convert BROADCAST_ARGS: the shape that tensors of two constant shapes are broadcast to."""
    try:
        shape = np.broadcast_shapes(a, b)
    except ValueError:
        context.broken(f"got shapes {a} and {b}, expected shapes that broadcast to each other")
    context.result_constant(np.array(shape, context.output_dtype()))


# ---- Converters of operators that move elements without computing on them: RESHAPE, CONCATENATION, PAD, TRANSPOSE ...

_ONE_ELEMENT = "use slices of constant size, or let the concatenation replace one element of a list"


def _read_complex_as_reals(context: OpContext, input_position: int) -> Value:
    """Return operand 0. For a complex tensor, return the float value that contains its real and imaginary parts."""
    source = context.input_tensor(input_position)
    if source.type.dtype != "complex64":
        return context.unchanged_operand(input_position)
    if source.name not in context.builder.complex_values:
        context.refuse(
            f"input {source.name!r}: complex64 is not supported here",
            "use complex numbers for the output of RFFT2D only",
        )
    return context.look_up(context.builder.complex_values[source.name])


_RealOrComplex = Annotated[Value, ReadWith(_read_complex_as_reals)]


def _shape_without_complex_axis(context: OpContext, data: Value) -> tuple[int, ...]:
    """Return the shape of operand 0, whose value is ``data``.

    For a complex tensor, leave out the additional axis of real and imaginary parts."""
    return data.shape[:-1] if context.input_tensor(0).name in context.builder.complex_values else data.shape


def _emit_reshaped_result(context: OpContext, data: Value, shape: tuple[int, ...]) -> None:
    """Define the output as ``data``, the value of operand 0, reshaped to ``shape``. For a complex tensor, record the
    reshaped float value instead."""
    complexes = context.builder.complex_values
    if context.input_tensor(0).name in complexes:
        complexes[context.output_tensor().name] = context.reshape(data, (*shape, 2))
    else:
        context.result_reshape(data, shape)


def _read_new_shape(context: OpContext, input_position: int) -> Ints | None:
    """Return the new shape of RESHAPE; None if the network computes it."""
    is_known = context.value(input_position).constant is not None
    return context.integers(input_position) if is_known else None


@CONVERTERS.register("RESHAPE", options="ReshapeOptions", dtypes=(*MOVABLE, "complex64"))
def convert_reshape(
    context: OpContext,
    data: _RealOrComplex,
    shape: Annotated[Ints | None, ReadWith(_read_new_shape)],
    *,
    new_shape: Ints | None = None,
) -> None:
    """Convert RESHAPE.

    The new shape is a constant operand or an option. If the network computes it, the shape that the file declares is
    used."""
    target = context.output_tensor()
    if shape is None and not context.has_input(1):
        shape = new_shape
    if shape is None:
        shape = tuple(-1 if axis in target.unknown_axes else extent for axis, extent in enumerate(target.type.shape))
    own_shape = _shape_without_complex_axis(context, data)
    _emit_reshaped_result(context, data, _resolve_unknown_extent(context, shape, own_shape))


@CONVERTERS.register("EXPAND_DIMS", dtypes=(*MOVABLE, "complex64"))
def convert_expand_dims(context: OpContext, data: _RealOrComplex, axes: Ints | None) -> None:
    """Convert EXPAND_DIMS, which inserts an axis of extent 1, to a reshape."""
    shape, axes = _shape_without_complex_axis(context, data), (0,) if axes is None else axes
    if len(axes) != 1:
        context.broken(f"got {len(axes)} axes, expected one")
    axis = context.axis(axes[0], len(shape) + 1)
    _emit_reshaped_result(context, data, (*shape[:axis], 1, *shape[axis:]))


@CONVERTERS.register("SQUEEZE", options="SqueezeOptions", dtypes=(*MOVABLE, "complex64"))
def convert_squeeze(context: OpContext, data: _RealOrComplex, *, squeeze_dims: Ints = ()) -> None:
    """Convert SQUEEZE, which removes axes of extent 1, to a reshape."""
    shape = _shape_without_complex_axis(context, data)
    axes = context.normalize_axes(squeeze_dims, len(shape)) or [k for k, extent in enumerate(shape) if extent == 1]
    _emit_reshaped_result(context, data, tuple(extent for axis, extent in enumerate(shape) if axis not in axes))


def _read_concatenation(context: OpContext, input_position: int) -> Value:
    """Return an operand of CONCATENATION.

    A slice of computed size is not in the graph: the value has the type that the file declares. The operands that are
    joined with such slices are not checked here."""
    tensor, pieces = context.input_tensor(input_position), context.builder.computed_slices
    if tensor.name in pieces:
        return Value(tensor.name, tensor.type)
    if any(context.input_tensor(position).name in pieces for position in range(context.input_count())):
        return context.value(input_position)
    return context.unchanged_operand(input_position)


@CONVERTERS.register("CONCATENATION", options="ConcatenationOptions", dtypes=MOVABLE)
def convert_concatenation(
    context: OpContext,
    *values: Annotated[Value, ReadWith(_read_concatenation)],
    axis: int = 0,
    fused_activation_function: NoActivation = None,
) -> None:
    """Convert CONCATENATION along one axis. Operands other than uint8 must have the output's quantisation."""
    if any(value in context.builder.computed_slices for value in values):
        _convert_list_update(context, values)
        return
    if not values:
        context.broken("got no inputs, expected at least one")
    if context.output_dtype() == "uint8":
        values = tuple(_requantise_to_output(context, value) for value in values)
    else:
        for position in range(len(values)):
            context.check_same_quantisation(position)
    context.result("concat", values, {"axis": context.axis(axis, values[0].rank)})


def _requantise_to_output(context: OpContext, value: Value) -> Value:
    """Return a uint8 operand of CONCATENATION, requantised to the output's scale and zero point as in LiteRT."""
    own, quant = value.quant, context.output_tensor().type.quant
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
    return context.emit("quantize", (real,), attrs, like=replace(value.type, quant=quant))


def _convert_list_update(context: OpContext, values: tuple[Value, ...]) -> None:
    """Convert a CONCATENATION that replaces one element of a list to ``dynamic_update_slice``.

    TFLite converters write the update of a list (a tensor) as a concatenation of three operands: the slice before the
    element, the new element, and the slice after it. The result is as large as the list. Therefore the element's index
    is the size of the first slice. Any other use of slices of computed size is refused.
    """
    pieces = context.builder.computed_slices
    if len(values) != 3:
        context.refuse("input: got a slice of computed size, expected constant sizes", _ONE_ELEMENT)
    first, item, last = pieces.get(values[0]), values[1], pieces.get(values[2])
    if first is None or last is None or first.data_name != last.data_name or item in pieces:
        context.refuse("input: got a slice of computed size, expected constant sizes", _ONE_ELEMENT)
    start = context.builder.consts.get(first.begin_name)
    if start is None or start.any() or last.begin_name in context.builder.consts:
        context.refuse("input: got a slice of computed size, expected constant sizes", _ONE_ELEMENT)
    context.result("dynamic_update_slice", (first.data_name, item, first.size_name))


@CONVERTERS.register("PACK", options="PackOptions", dtypes=MOVABLE)
def convert_pack(context: OpContext, *values: Moved, axis: int) -> None:
    """Convert PACK: stack operands of the same shape along a new axis."""
    if not values:
        context.broken("got no inputs, expected at least one")
    shape = values[0].shape
    axis = context.axis(axis, len(shape) + 1)
    if any(value.shape != shape for value in values):
        context.broken(
            f"got operands of shapes {', '.join(str(value.shape) for value in values)}, expected equal shapes"
        )
    widened = (*shape[:axis], 1, *shape[axis:])
    context.result("concat", [context.reshape(value, widened) for value in values], {"axis": axis})


@CONVERTERS.register("TILE", dtypes=MOVABLE)
def convert_tile(context: OpContext, data: Moved, multiples: Ints) -> None:
    """Convert TILE: repeat the tensor along every axis a constant number of times."""
    shape = data.shape
    if len(multiples) != len(shape) or min(multiples, default=1) < 0:
        context.broken(f"multiples: got {multiples}, expected {len(shape)} numbers of at least 0")
    split_shape = [extent for size in shape for extent in (1, size)]
    broadcast_shape = tuple(extent for pair in zip(multiples, shape, strict=True) for extent in pair)
    data = context.emit("broadcast_to", (context.reshape(data, split_shape),), {"shape": broadcast_shape})
    context.result_reshape(data, [multiple * size for multiple, size in zip(multiples, shape, strict=True)])


@CONVERTERS.register("TRANSPOSE", dtypes=MOVABLE)
def convert_transpose(context: OpContext, data: Unchanged, perm: Ints) -> None:
    """Convert TRANSPOSE by a constant permutation of the axes."""
    axes = tuple(context.axis(axis, data.rank) for axis in perm)
    if sorted(axes) != list(range(data.rank)):
        context.broken(f"perm: got {axes}, expected each of 0..{data.rank - 1} once")
    context.result("transpose", (data,), {"axes": axes})


@CONVERTERS.register("PAD", dtypes=MOVABLE)
def convert_pad(context: OpContext, data: Moved, paddings: Ints) -> None:
    """Convert PAD, which pads with the real number 0: the zero point of a quantised tensor."""
    zero: int | float = 0.0 if data.dtype == "float32" else 0
    quant = context.output_tensor().type.quant
    _emit_padded_result(context, data, paddings, zero if quant is None else quant.zero_point[0])


@CONVERTERS.register("PADV2", dtypes=MOVABLE)
def convert_padv2(context: OpContext, data: Moved, paddings: Ints, filler: Array) -> None:
    """Convert PADV2, which pads with a constant operand of the data's dtype, a stored number."""
    if filler.size != 1 or str(filler.dtype) != data.dtype:
        context.broken(
            f"padding value: got shape {filler.shape} of {filler.dtype}, expected one element of {data.dtype}"
        )
    _emit_padded_result(context, data, paddings, filler.reshape(-1)[0].item())


def _emit_padded_result(context: OpContext, data: Value, paddings: Ints, value: int | float) -> None:
    """Define the output as ``data``, padded with ``value``."""
    if len(paddings) != 2 * data.rank or min(paddings, default=0) < 0:
        context.broken(f"paddings: got {paddings}, expected {2 * data.rank} numbers of at least 0")
    padding = tuple(zip(paddings[0::2], paddings[1::2], strict=True))
    context.result("pad", (data,), {"padding": padding, "value": value})


_Image = Annotated[Unchanged, Rank(4, 4, has_elements=True)]
_BlockSize = Annotated[int, Range(1, 1 << 15)]


def _make_block_converter(to_depth: bool) -> Callable[..., None]:
    """Make a converter of SPACE_TO_DEPTH, which moves the pixels of a block to channels, or of the inverse,
    DEPTH_TO_SPACE."""

    def convert_blocks(context: OpContext, data: _Image, *, block_size: _BlockSize) -> None:
        (batch, height, width, depth), block = data.shape, block_size
        if (height % block or width % block) if to_depth else depth % (block * block):
            expected = "a divisor of the height and width" if to_depth else "one whose square divides the channels"
            context.broken(f"block_size: got {block} for shape {data.shape}, expected {expected}")
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

    return convert_blocks


for _code, _options in (("SPACE_TO_DEPTH", "SpaceToDepthOptions"), ("DEPTH_TO_SPACE", "DepthToSpaceOptions")):
    CONVERTERS.register(_code, options=_options, dtypes=MOVABLE)(_make_block_converter(_code == "SPACE_TO_DEPTH"))


def _resolve_unknown_extent(
    context: OpContext, shape: tuple[int, ...], source_shape: tuple[int, ...]
) -> tuple[int, ...]:
    """Return ``shape`` with an extent of -1 replaced by the extent that follows from the number of elements.

    ``source_shape``: shape of the tensor that is reshaped."""
    known = prod(extent for extent in shape if extent != -1)
    if any(extent < -1 for extent in shape) or shape.count(-1) > 1 or (shape.count(-1) == 1 and not known):
        context.broken(f"shape: got {shape}, expected extents of at least 0, at most one of them -1")
    return tuple(prod(source_shape) // known if extent == -1 else extent for extent in shape)


# ---- Converters of operators that slice a tensor.


@CONVERTERS.register("UNPACK", options="UnpackOptions", dtypes=MOVABLE)
def convert_unpack(context: OpContext, data: Unchanged, *, axis: Axis) -> None:
    """Convert UNPACK: one output for each index of an axis, without this axis."""
    shape, count = data.shape, len(context.operator.outputs)
    if count != shape[axis]:
        context.broken(f"got {count} outputs, expected {shape[axis]}, the extent of the axis")
    for position in range(count):
        part = context.slice_axis(data, axis, position, position + 1)
        context.result_reshape(part, (*shape[:axis], *shape[axis + 1 :]), position)


@CONVERTERS.register("SPLIT", dtypes=MOVABLE)
def convert_split(context: OpContext, axis: int, data: Unchanged) -> None:
    """Convert SPLIT: split a tensor into equal parts along a constant axis."""
    axis, count = context.axis(axis, data.rank), len(context.operator.outputs)
    extent = data.shape[axis]
    if not count or extent % count:
        context.broken(f"num_splits is {count}, expected a divisor of {extent}, the extent of the axis")
    _emit_consecutive_slices(context, data, axis, [extent // count] * count)


@CONVERTERS.register("SPLIT_V", dtypes=MOVABLE)
def convert_split_v(context: OpContext, data: Unchanged, size_splits: Ints, axis: int) -> None:
    """Convert SPLIT_V: split a tensor into parts of constant sizes along a constant axis.

    One size may be -1, which means all elements that the other parts do not contain."""
    axis, sizes, count = context.axis(axis, data.rank), list(size_splits), len(context.operator.outputs)
    extent = data.shape[axis]
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = extent - sum(sizes) - 1
    if len(sizes) != count or min(sizes, default=0) < 1 or sum(sizes) != extent:
        context.broken(f"size_splits: got {sizes}, expected {count} numbers of at least 1 that sum to {extent}")
    _emit_consecutive_slices(context, data, axis, sizes)


@CONVERTERS.register("SLICE", dtypes=MOVABLE)
def convert_slice(context: OpContext, data: Unchanged, begin: Value, size: Value) -> None:
    """Convert SLICE. Begin and size are given for each axis; a size of -1 means all elements from begin to the end."""
    if begin.constant is None or size.constant is None:
        _convert_computed_slice(context, data, begin, size)
    else:
        _convert_constant_slice(context, data, context.integers(1), context.integers(2))


def _convert_constant_slice(context: OpContext, data: Value, begin: Ints, size: Ints) -> None:
    """Convert a SLICE with constant begin and size."""
    shape = data.shape
    if not len(begin) == len(size) == len(shape):
        context.broken(f"begin, size: got {begin} and {size} for shape {shape}, expected {len(shape)} numbers each")
    end = tuple(
        extent if count == -1 else first + count for first, count, extent in zip(begin, size, shape, strict=True)
    )
    if any(not 0 <= first <= last <= extent for first, last, extent in zip(begin, end, shape, strict=True)):
        context.broken(f"begin, size: got {begin} and {size}, expected a slice within shape {shape}")
    if begin and any(first == last for first, last in zip(begin, end, strict=True)):
        sizes = [last - first for first, last in zip(begin, end, strict=True)]
        context.result_constant(np.zeros(sizes, data.dtype))
        return
    context.result("slice", (data,), {"begin": begin, "end": end, "strides": (1,) * len(shape)})


def _convert_computed_slice(context: OpContext, data: Value, begin: Value, size: Value) -> None:
    """Convert a SLICE whose begin or size is computed at run time.

    If the size is constant, append ``dynamic_slice``. If not, only record the slice (:class:`ComputedSlice`): a
    CONCATENATION may combine it with others to a tensor of known size."""
    known = size.constant
    if known is not None and known.size == data.rank and known.min(initial=1) >= 1:
        context.result("dynamic_slice", (data, begin), {"size": tuple(int(part) for part in known.reshape(-1))})
    else:
        context.builder.computed_slices[context.output_tensor().name] = ComputedSlice(data, begin, size)


@frozen
class _SliceMasks:
    """Bit masks of STRIDED_SLICE. Bit i refers to entry i of the operands begin, end and strides."""

    begin_mask: int
    end_mask: int
    ellipsis_mask: int
    new_axis_mask: int
    shrink_axis_mask: int


@CONVERTERS.register("STRIDED_SLICE", options="StridedSliceOptions", dtypes=MOVABLE)
def convert_strided_slice(
    context: OpContext, data: Unchanged, begin: Value, end: Value, strides: Ints, *, masks: _SliceMasks, offset: bool
) -> None:
    """Convert STRIDED_SLICE, which slices as numpy does, with inserted and removed axes.

    With ``offset``, ``end`` is relative to ``begin``. Axes with negative strides are reversed first."""
    if begin.constant is None or end.constant is None:
        _convert_computed_strided_slice(context, data, begin, strides, masks)
        return
    begins, ends = context.integers(1), context.integers(2)
    if not len(begins) == len(ends) == len(strides):
        context.broken(f"begin, end, strides: got {begins}, {ends} and {strides}, expected equal lengths")
    if offset:
        ends = tuple(first + count for first, count in zip(begins, ends, strict=True))
    ranges, shape = _resolve_slice_ranges_and_shape(context, data.shape, (begins, ends, strides), masks)
    reversed_axes = tuple(axis for axis, entry in enumerate(ranges) if entry[2] < 0)
    if reversed_axes:
        data = context.emit("reverse", (data,), {"axes": reversed_axes})
        extents = data.shape
        ranges = [
            (extents[axis] - 1 - first, extents[axis] - 1 - last, -step) if step < 0 else (first, last, step)
            for axis, (first, last, step) in enumerate(ranges)
        ]
    if 0 in shape:
        context.result_constant(np.zeros(shape, data.dtype))
        return
    first, last, steps = (tuple(entry[i] for entry in ranges) for i in range(3))
    attrs: dict[str, Attr] = {"begin": first, "end": last, "strides": steps}
    if masks.new_axis_mask or masks.shrink_axis_mask:
        context.result_reshape(context.emit("slice", (data,), attrs), shape)
    else:
        context.result("slice", (data,), attrs)


def _convert_computed_strided_slice(
    context: OpContext, data: Value, begin: Value, strides: Ints, masks: _SliceMasks
) -> None:
    """Convert a STRIDED_SLICE whose begin is computed at run time, such as ``x[:, i]`` or ``x[i : i + 3]``.

    Strides must be 1. The size of the slice follows from the output's declared shape. A negative begin counts from the
    end of the axis, as in a constant STRIDED_SLICE.
    """
    shape, target, entries = data.shape, context.output_tensor(), begin.size
    if any(step != 1 for step in strides) or masks.ellipsis_mask or masks.new_axis_mask:
        context.refuse(
            "a computed begin with strides, an ellipsis or new axes is not supported",
            "slice without them, then reshape",
        )
    kept = [axis for axis in range(len(shape)) if not masks.shrink_axis_mask >> axis & 1]
    if entries > len(shape) or target.unknown_axes or len(target.type.shape) != len(kept):
        context.refuse(
            f"a slice of computed size is not supported; got shape {shape}", "slice a fixed size: x[:, i], x[i : i + 3]"
        )
    size = [1] * len(shape)
    for axis, extent in zip(kept, target.type.shape, strict=True):
        size[axis] = extent
    if any(not 1 <= count <= extent for count, extent in zip(size, shape, strict=True)):
        context.broken(f"size: got {tuple(size)} for shape {shape}, expected 1 up to the extent of each axis")
    is_whole_axis = [masks.begin_mask >> axis & 1 and not masks.shrink_axis_mask >> axis & 1 for axis in range(entries)]
    extents, zeros, is_used = (
        context.new_constant(stem, np.array(numbers, begin.dtype))
        for stem, numbers in (
            ("extents", shape[:entries]),
            ("zeros", [0] * entries),
            ("used", [not w for w in is_whole_axis]),
        )
    )
    from_end = context.emit("less", (begin, zeros))
    begins = context.emit("where", (from_end, context.emit("add", (begin, extents)), begin))
    begins = context.emit("mul", (begins, is_used))
    if entries < len(shape):
        begins = context.emit("pad", (begins,), {"padding": ((0, len(shape) - entries),), "value": 0})
    context.result_reshape(context.emit("dynamic_slice", (data, begins), {"size": tuple(size)}), target.type.shape)


def _resolve_slice_ranges_and_shape(
    context: OpContext, data_shape: tuple[int, ...], begin_end_strides: Sequence[tuple[int, ...]], masks: _SliceMasks
) -> tuple[list[tuple[int, int, int]], list[int]]:
    """Return the range (begin, end, stride) of every axis of the data, and the output's shape.

    ``begin_end_strides``: the constant operands begin, end and strides."""
    entries = len(begin_end_strides[0])
    consumed = sum(not (masks.ellipsis_mask | masks.new_axis_mask) >> i & 1 for i in range(entries))
    if consumed > len(data_shape) or (masks.ellipsis_mask & (1 << entries) - 1).bit_count() > 1:
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
        if masks.ellipsis_mask >> i & 1:
            append_ranges_of_unsliced_axes(len(data_shape) - consumed)
        elif masks.new_axis_mask >> i & 1:
            result.append(1)
        elif masks.shrink_axis_mask >> i & 1:
            ranges.append(_range_of_single_index(context, first, data_shape[len(ranges)]))
        else:
            extent = data_shape[len(ranges)]
            first = (0 if stride > 0 else extent - 1) if masks.begin_mask >> i & 1 else first
            last = (extent if stride > 0 else -1 - extent) if masks.end_mask >> i & 1 else last
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


def _emit_consecutive_slices(context: OpContext, data: Value, axis: int, part_extents: Sequence[int]) -> None:
    """Define the operator's outputs as consecutive slices of ``data`` along an axis.

    ``part_extents``: extents of the slices along this axis."""
    first = 0
    for position, size in enumerate(part_extents):
        attrs = slice_attributes(data.shape, axis, first, first + size)
        context.result("slice", (data,), attrs, position)
        first += size
