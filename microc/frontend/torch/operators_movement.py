# SPDX-License-Identifier: Apache-2.0
"""Converters of ATen's operators that move elements: views, slices, concatenations, padding, gathers and scatters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.frontend.signature import Argument, ConverterTable, Ints, Value
from microc.frontend.torch.context import OpContext

CONVERTERS = ConverterTable()

# ---- Converters of views, copies, and constants of a shape.


@CONVERTERS.register("_unsafe_view", "flatten", "squeeze", "unsqueeze", "view")
def convert_to_reshape(context: OpContext, x: Value) -> Value:
    """Convert a view with the same elements in the same order."""
    if context.result_dtype() != x.dtype:
        context.refuse(
            f"view of {x.dtype} as {context.result_dtype()} is not supported", "convert the values with Tensor.to"
        )
    return context.reshape(x, context.result_shape())


@CONVERTERS.register("alias", "clone", "contiguous", "detach", "dropout", "lift_fresh_copy")
def return_operand(context: OpContext, x: Value) -> Value:
    """Return the operand unchanged, for operators that copy, change strides, or act only in training (dropout)."""
    return x


@CONVERTERS.register("_to_copy")
def convert_dtype_cast(context: OpContext, x: Value) -> Value:
    """Convert _to_copy, a cast to the dtype of the result."""
    return context.cast(x, context.result_dtype())


@CONVERTERS.register("permute")
def convert_permute(context: OpContext, x: Value, *, dims: Ints) -> Value:
    """Convert permute, a transpose of all axes."""
    return context.transpose(x, [d % x.rank for d in dims])


@CONVERTERS.register("transpose")
def convert_transpose(context: OpContext, x: Value, *, dim0: int, dim1: int) -> Value:
    """Convert transpose, which swaps two axes."""
    axes = list(range(x.rank))
    first, second = dim0 % x.rank, dim1 % x.rank
    axes[first], axes[second] = axes[second], axes[first]
    return context.transpose(x, axes)


@CONVERTERS.register("t")
def convert_matrix_transpose(context: OpContext, x: Value) -> Value:
    """Convert t, the transpose of a matrix; a vector is returned unchanged."""
    return context.transpose(x, tuple(reversed(range(x.rank))))


@CONVERTERS.register("expand")
def convert_expand(context: OpContext, x: Value) -> Value:
    """Convert expand, a broadcast to the shape of the result."""
    return context.broadcast_to(x, context.result_shape())


@CONVERTERS.register("repeat")
def convert_repeat(context: OpContext, x: Value) -> Value:
    """Convert repeat to concatenations of the operand with itself along each repeated axis."""
    result_shape = context.result_shape()
    x = context.reshape(x, (1,) * (len(result_shape) - x.rank) + x.shape)
    for axis, extent in enumerate(result_shape):
        if x.shape[axis] != extent:
            x = context.emit("concat", (x,) * (extent // x.shape[axis]), {"axis": axis})
    return x


@CONVERTERS.register("full_like")
def convert_full_like(context: OpContext, fill_value: Argument) -> Value:
    """Convert full_like to a constant."""
    dtype = dtypes.to_numpy(context.result_dtype())
    return context.new_constant("full", np.full(context.result_shape(), fill_value, dtype))


@CONVERTERS.register("zeros_like")
def convert_zeros_like(context: OpContext) -> Value:
    """Convert zeros_like to a constant."""
    return convert_full_like(context, 0)


@CONVERTERS.register("ones_like")
def convert_ones_like(context: OpContext) -> Value:
    """Convert ones_like to a constant."""
    return convert_full_like(context, 1)


# ---- Converters of concatenations, slices and padding.


@CONVERTERS.register("cat")
def convert_cat(context: OpContext, tensors: Argument, *, dim: int = 0) -> Value:
    """Convert cat: concatenate tensors along an axis. Tensors without elements are left out."""
    values = [context.convert_to_value(tensor) for tensor in tensors]
    values = [value for value in values if 0 not in value.shape]
    return values[0] if len(values) == 1 else context.emit("concat", values, {"axis": dim})


@CONVERTERS.register("stack")
def convert_stack(context: OpContext, tensors: Argument, *, dim: int = 0) -> Value:
    """Convert stack: concatenate tensors along a new axis."""
    result_shape = context.result_shape()
    axis = dim % len(result_shape)
    unsqueezed = (*result_shape[:axis], 1, *result_shape[axis + 1 :])
    values = [context.reshape(context.convert_to_value(tensor), unsqueezed) for tensor in tensors]
    return context.emit("concat", values, {"axis": axis})


def _emit_slice(context: OpContext, x: Value, axis: int, begin: int, end: int, step: int = 1) -> Value:
    """Emit a slice along one axis: elements begin, begin + step ... below end."""
    if (begin, end, step) == (0, x.shape[axis], 1):
        return x
    starts, ends, strides = [0] * x.rank, list(x.shape), [1] * x.rank
    starts[axis], ends[axis], strides[axis] = begin, end, step
    return context.emit("slice", (x,), {"begin": tuple(starts), "end": tuple(ends), "strides": tuple(strides)})


@CONVERTERS.register("slice")
def convert_slice(
    context: OpContext, x: Value, *, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    """Convert slice along one axis."""
    axis = dim % x.rank
    return _emit_slice(context, x, axis, *slice(start, end, step).indices(x.shape[axis]))


@CONVERTERS.register("select")
def convert_select(context: OpContext, x: Value, *, dim: int, index: int) -> Value:
    """Convert select: the elements at one index of an axis, without this axis."""
    axis = dim % x.rank
    index %= x.shape[axis]
    return context.reshape(_emit_slice(context, x, axis, index, index + 1), context.result_shape())


@CONVERTERS.register("split_with_sizes")
def convert_split_with_sizes(context: OpContext, x: Value, *, split_sizes: Ints, dim: int = 0) -> tuple[Value, ...]:
    """Convert split_with_sizes: parts of an axis, one behind the other."""
    starts = [sum(split_sizes[:k]) for k in range(len(split_sizes))]
    return tuple(
        _emit_slice(context, x, dim % x.rank, start, start + extent)
        for start, extent in zip(starts, split_sizes, strict=True)
    )


@CONVERTERS.register("unbind")
def convert_unbind(context: OpContext, x: Value, *, dim: int = 0) -> tuple[Value, ...]:
    """Convert unbind: the elements at each index of an axis, without this axis."""
    axis = dim % x.rank
    return tuple(
        context.reshape(_emit_slice(context, x, axis, k, k + 1), context.result_shape(k)) for k in range(x.shape[axis])
    )


@CONVERTERS.register("constant_pad_nd")
def convert_constant_pad(context: OpContext, x: Value, *, pad: Ints, value: float = 0.0) -> Value:
    """Convert constant_pad_nd.

    ``pad`` has two numbers of elements (before, after) for each axis, beginning with the last axis. Negative numbers
    crop."""
    pairs = [(0, 0)] * x.rank
    for k in range(len(pad) // 2):
        pairs[x.rank - 1 - k] = pad[2 * k], pad[2 * k + 1]
    for axis, (before, after) in enumerate(pairs):
        x = _emit_slice(context, x, axis, max(-before, 0), x.shape[axis] - max(-after, 0))
    padding = tuple((max(before, 0), max(after, 0)) for before, after in pairs)
    return context.emit("pad", (x,), {"padding": padding, "value": value}) if any(map(any, padding)) else x


# ---- Converters of gathers, scatters and indexing.


@CONVERTERS.register("embedding")
def convert_embedding(context: OpContext, weight: Value, indices: Value) -> Value:
    """Convert embedding, a gather of rows of ``weight``."""
    return context.emit("gather", (weight, indices), {"axis": 0})


@CONVERTERS.register("index_select")
def convert_index_select(context: OpContext, x: Value, index: Value, *, dim: int) -> Value:
    """Convert index_select, a gather along an axis."""
    return context.emit("gather", (x, index), {"axis": dim})


@CONVERTERS.register("gather")
def convert_gather(context: OpContext, x: Value, index: Value, *, dim: int) -> Value:
    """Convert gather, whose elements each have an index of their own."""
    return context.emit("gather_elements", (x, index), {"axis": dim % x.rank})


@CONVERTERS.register("scatter")
def convert_scatter(
    context: OpContext,
    x: Value,
    index: Value,
    src: Value | None = None,
    value: Argument = None,
    *,
    dim: int,
    reduce: Literal["", "add", "multiply"] = "",
) -> Value:
    """Convert scatter, of a tensor or a number, which may be added to the elements or multiplied by them."""
    if src is None:
        number = context.convert_to_value(value, x.dtype)
        src = context.emit("broadcast_to", (number,), {"shape": index.shape})
    return _emit_scatter(context, x, index, src, dim, {"multiply": "mul"}.get(reduce, reduce))


@CONVERTERS.register("scatter_add")
def convert_scatter_add(context: OpContext, x: Value, index: Value, src: Value, *, dim: int) -> Value:
    """Convert scatter_add, which adds to the elements at the indices."""
    return _emit_scatter(context, x, index, src, dim, "add")


def _emit_scatter(context: OpContext, x: Value, index: Value, src: Value, dim: int, reduction: str) -> Value:
    """Emit a scatter of the elements of ``src`` for which there is an index."""
    src = context.slice(src, (0,) * index.rank, index.shape)
    return context.emit("scatter_elements", (x, index, src), {"axis": dim % x.rank, "reduction": reduction})


@CONVERTERS.register("index")
def convert_index(context: OpContext, x: Value, indices: Argument) -> Value:
    """Convert index: select elements by index tensors along some axes, and all elements along the other axes."""
    indexed_axes = [axis for axis, axis_indices in enumerate(indices) if axis_indices is not None]
    if len(indexed_axes) == 1:
        (axis,) = indexed_axes
        return context.emit("gather", (x, context.convert_to_value(indices[axis])), {"axis": axis})
    front = (*indexed_axes, *(axis for axis in range(x.rank) if axis not in indexed_axes))
    moved = context.transpose(x, front)
    gathered = context.emit(
        "gather_nd", (moved, _emit_index_vectors(context, [indices[axis] for axis in indexed_axes])), {}
    )
    count = gathered.rank - (x.rank - len(indexed_axes))
    if indexed_axes != list(range(indexed_axes[0], indexed_axes[0] + len(indexed_axes))):
        return gathered
    other_axes = range(count, gathered.rank)
    return context.transpose(gathered, (*other_axes[: indexed_axes[0]], *range(count), *other_axes[indexed_axes[0] :]))


@CONVERTERS.register("index_put")
def convert_index_put(
    context: OpContext, x: Value, indices: Argument, values: Value, *, accumulate: bool = False
) -> Value:
    """Convert index_put: set the elements selected by index tensors along some axes, or add to them."""
    indexed_axes = [axis for axis, axis_indices in enumerate(indices) if axis_indices is not None]
    first = indexed_axes[0]
    mask = context.convert_to_value(indices[first])
    if len(indexed_axes) == 1 and mask.dtype == "bool" and values.size == 1:
        return _emit_masked_fill(context, x, mask, values, first, accumulate)
    if indexed_axes != list(range(first, first + len(indexed_axes))):
        context.refuse(
            "indices: expected index tensors along consecutive axes only", "transpose these axes side by side first"
        )
    index_vectors = _emit_index_vectors(context, [indices[axis] for axis in indexed_axes])
    front = (*indexed_axes, *(axis for axis in range(x.rank) if axis not in indexed_axes))
    extents, count = index_vectors.shape[:-1], index_vectors.rank - 1
    values_shape = (*x.shape[:first], *extents, *x.shape[first + len(indexed_axes) :])
    values = context.broadcast_to(values, values_shape)
    values_axes = (*range(first, first + count), *range(first), *range(first + count, len(values_shape)))
    operands = (context.transpose(x, front), index_vectors, context.transpose(values, values_axes))
    scattered = context.emit("scatter_nd", operands, {"reduction": "add" if accumulate else ""})
    return context.transpose(scattered, tuple(front.index(axis) for axis in range(x.rank)))


def _emit_masked_fill(
    context: OpContext, x: Value, mask: Value, fill_value: Value, first_axis: int, accumulate: bool
) -> Value:
    """Emit index_put with a bool mask: set the elements to one number, or add it, where the mask is true.

    ``mask`` covers consecutive axes of ``x``, beginning with ``first_axis``."""
    after = x.rank - first_axis - mask.rank
    wide = context.reshape(mask, (*(1,) * first_axis, *mask.shape, *(1,) * after))
    fill_value = context.reshape(fill_value, ())
    changed = context.emit("add", (x, fill_value)) if accumulate else fill_value
    return context.emit("where", (wide, changed, x))


def _emit_index_vectors(context: OpContext, indices: Sequence[Argument]) -> Value:
    """Emit the index vectors for ``gather_nd`` and ``scatter_nd`` from one index tensor for each axis.

    The tensors are broadcast to the same shape and concatenated along a new last axis."""
    values = [context.convert_to_value(axis_indices) for axis_indices in indices]
    if any(value.dtype == "bool" for value in values):
        context.refuse("indices: bool tensors are not supported", "use torch.where")
    shape = np.broadcast_shapes(*(value.shape for value in values))
    broadcast = [context.broadcast_to(value, shape) for value in (context.cast(value, "int64") for value in values)]
    return context.emit("concat", [context.reshape(value, (*shape, 1)) for value in broadcast], {"axis": len(shape)})


# ---- Converters of strided views and of writes into parts: gathers whose indices are known at compile time.


@CONVERTERS.register("as_strided")
def convert_as_strided(
    context: OpContext, x: Value, *, size: Ints, stride: Ints, storage_offset: int | None = None
) -> Value:
    """Convert as_strided, which reads the operand's memory with other strides.

    The indices of the gather are found at compile time: PyTorch applies the same strides to a tensor of element
    numbers.
    """
    operand = context.node.all_input_nodes[0].meta["val"]
    numbers = context.torch.empty_strided(operand.shape, operand.stride(), dtype=context.torch.int64)
    numbers.copy_(context.torch.arange(operand.numel()).view(operand.shape))
    return _emit_element_gather(context, x, numbers.as_strided(size, stride, storage_offset or 0))


@CONVERTERS.register("diagonal")
def convert_diagonal(context: OpContext, x: Value, *, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """Convert diagonal, of two axes."""
    return _emit_element_gather(context, x, _make_element_numbers(context, x).diagonal(offset, dim1, dim2))


@CONVERTERS.register("unfold")
def convert_unfold(context: OpContext, x: Value, *, dimension: int, size: int, step: int) -> Value:
    """Convert unfold: windows of ``size`` elements along an axis, ``step`` elements apart. A window's elements are a
    new last axis."""
    return _emit_element_gather(context, x, _make_element_numbers(context, x).unfold(dimension, size, step))


def _make_element_numbers(context: OpContext, x: Value) -> Any:
    """Return a PyTorch tensor of the shape of ``x``, whose elements are their own row-major indices."""
    return context.torch.arange(x.size).view(x.shape)


def _emit_element_gather(context: OpContext, x: Value, flat_indices: Any) -> Value:
    """Emit a gather of the operand's elements at row-major indices that are known at compile time."""
    indices = context.to_numpy_array(flat_indices).reshape(-1)
    if np.array_equal(indices, np.arange(x.size)):
        return context.reshape(x, context.result_shape())
    constant = context.new_constant("places", indices.astype(np.int32))
    gathered = context.emit("gather", (context.reshape(x, (x.size,)), constant), {"axis": 0})
    return context.reshape(gathered, context.result_shape())


@CONVERTERS.register("slice_scatter")
def convert_slice_scatter(
    context: OpContext,
    x: Value,
    src: Value,
    *,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    """Convert slice_scatter, which replaces a slice of the operand along an axis."""
    axis = dim % x.rank
    return _emit_replacement(context, x, src, axis, np.arange(x.shape[axis])[start:end:step])


@CONVERTERS.register("select_scatter")
def convert_select_scatter(context: OpContext, x: Value, src: Value, *, dim: int, index: int) -> Value:
    """Convert select_scatter, which replaces the elements at one index of an axis."""
    axis = dim % x.rank
    src = context.reshape(src, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    return _emit_replacement(context, x, src, axis, np.array([index % x.shape[axis]]))


def _emit_replacement(context: OpContext, x: Value, src: Value, axis: int, replaced: Array) -> Value:
    """Emit ``x`` with the elements at the indices ``replaced`` of an axis from ``src``: a gather along the axis from the
    concatenation of both."""
    indices = np.arange(x.shape[axis], dtype=np.int32)
    indices[replaced] = x.shape[axis] + np.arange(replaced.size)
    joined = context.emit("concat", (x, src), {"axis": axis})
    return context.emit("gather", (joined, context.new_constant("places", indices)), {"axis": axis})
