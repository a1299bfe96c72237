"""Converters of ATen's operators that move elements: views, slices, concatenations, padding, gathers and scatters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.frontend.torch.context import Converter, OpContext

# ---- Converters of views, slices, concatenations, padding, and constants of a shape.


def convert_to_reshape(context: OpContext) -> str:
    return context.reshape(context.operand("self"), context.result_shape())


def return_operand_unchanged(context: OpContext) -> str:
    """Return the operand unchanged, for operators that copy, change strides, or act only in training (dropout)."""
    return context.operand("self") if context.argument("self") is not None else context.operand("input")


def convert_permute_or_transpose(context: OpContext) -> str:
    x = context.operand("self")
    rank = len(context.shape(x))
    if context.operator_name == "permute":
        axes = [d % rank for d in context.argument("dims")]
    else:
        axes = list(range(rank))
        first, second = (
            (0, rank - 1)
            if context.operator_name == "t"
            else (context.argument("dim0") % rank, context.argument("dim1") % rank)
        )
        axes[first], axes[second] = axes[second], axes[first]
    return x if axes == sorted(axes) else context.emit("transpose", (x,), {"axes": tuple(axes)})


def convert_expand(context: OpContext) -> str:
    x, result_shape = context.operand("self"), context.result_shape()
    return x if context.shape(x) == result_shape else context.emit("broadcast_to", (x,), {"shape": result_shape})


def convert_repeat(context: OpContext) -> str:
    x, result_shape = context.operand("self"), context.result_shape()
    x = context.reshape(x, (1,) * (len(result_shape) - len(context.shape(x))) + context.shape(x))
    for axis, extent in enumerate(result_shape):
        current = context.shape(x)[axis]
        if current != extent:
            x = context.emit("concat", (x,) * (extent // current), {"axis": axis})
    return x


def convert_cat(context: OpContext) -> str:
    parts = [context.convert_to_value(part) for part in context.argument("tensors")]
    parts = [part for part in parts if 0 not in context.shape(part)]
    if len(parts) == 1:
        return parts[0]
    return context.emit("concat", parts, {"axis": int(context.argument("dim", 0))})


def convert_stack(context: OpContext) -> str:
    axis, result_shape = int(context.argument("dim", 0)), context.result_shape()
    axis %= len(result_shape)
    unsqueezed = (*result_shape[:axis], 1, *result_shape[axis + 1 :])
    return context.emit(
        "concat",
        [context.reshape(context.convert_to_value(part), unsqueezed) for part in context.argument("tensors")],
        {"axis": axis},
    )


def emit_slice(context: OpContext, x: str, axis: int, begin: int, end: int, step: int = 1) -> str:
    """Emit a slice along one axis: elements begin, begin + step ... below end."""
    shape = context.shape(x)
    if (begin, end, step) == (0, shape[axis], 1):
        return x
    starts, ends, strides = [0] * len(shape), list(shape), [1] * len(shape)
    starts[axis], ends[axis], strides[axis] = begin, end, step
    return context.emit("slice", (x,), {"begin": tuple(starts), "end": tuple(ends), "strides": tuple(strides)})


def convert_slice(context: OpContext) -> str:
    x, axis = context.operand("self"), int(context.argument("dim", 0)) % len(context.shape(context.operand("self")))
    begin, end, step = slice(context.argument("start"), context.argument("end"), context.argument("step", 1)).indices(
        context.shape(x)[axis]
    )
    return emit_slice(context, x, axis, begin, end, step)


def convert_select(context: OpContext) -> str:
    x, axis = context.operand("self"), int(context.argument("dim")) % len(context.shape(context.operand("self")))
    index = int(context.argument("index")) % context.shape(x)[axis]
    return context.reshape(emit_slice(context, x, axis, index, index + 1), context.result_shape())


def convert_split_with_sizes(context: OpContext) -> tuple[str, ...]:
    x, axis = context.operand("self"), int(context.argument("dim", 0)) % len(context.shape(context.operand("self")))
    extents = [context.result_shape(k)[axis] for k in range(len(context.node.meta["val"]))]
    starts = [sum(extents[:k]) for k in range(len(extents))]
    return tuple(
        emit_slice(context, x, axis, start, start + extent) for start, extent in zip(starts, extents, strict=True)
    )


def convert_unbind(context: OpContext) -> tuple[str, ...]:
    x, axis = context.operand("self"), int(context.argument("dim", 0)) % len(context.shape(context.operand("self")))
    return tuple(
        context.reshape(emit_slice(context, x, axis, k, k + 1), context.result_shape(k))
        for k in range(context.shape(x)[axis])
    )


def convert_constant_pad(context: OpContext) -> str:
    """Convert constant_pad_nd.

    The argument ``pad`` has two numbers of elements (before, after) for each axis, beginning with the last axis.
    Negative numbers crop."""
    x, amounts = context.operand("self"), context.argument("pad")
    rank = len(context.shape(x))
    pairs: list[Sequence[int]] = [(0, 0)] * rank
    for k in range(len(amounts) // 2):
        pairs[rank - 1 - k] = amounts[2 * k : 2 * k + 2]
    for axis, (before, after) in enumerate(pairs):
        x = emit_slice(context, x, axis, max(-before, 0), context.shape(x)[axis] - max(-after, 0))
    padding = tuple((max(int(b), 0), max(int(e), 0)) for b, e in pairs)
    if not any(map(any, padding)):
        return x
    return context.emit("pad", (x,), {"padding": padding, "value": float(context.argument("value", 0) or 0)})


def convert_dtype_cast(context: OpContext) -> str:
    return context.cast(context.operand("self"), context.result_dtype())


def convert_full_like(context: OpContext) -> str:
    """Convert full_like, zeros_like and ones_like to a constant."""
    number = {"zeros_like": 0, "ones_like": 1}.get(context.operator_name, context.argument("fill_value"))
    return context.builder.new_constant(
        "full", np.full(context.result_shape(), number, dtypes.to_numpy(context.result_dtype()))
    )


MOVEMENT_CONVERTERS: Mapping[str, Converter] = {
    "_to_copy": convert_dtype_cast,
    "_unsafe_view": convert_to_reshape,
    "alias": return_operand_unchanged,
    "cat": convert_cat,
    "clone": return_operand_unchanged,
    "constant_pad_nd": convert_constant_pad,
    "contiguous": return_operand_unchanged,
    "detach": return_operand_unchanged,
    "dropout": return_operand_unchanged,
    "expand": convert_expand,
    "flatten": convert_to_reshape,
    "full_like": convert_full_like,
    "lift_fresh_copy": return_operand_unchanged,
    "ones_like": convert_full_like,
    "permute": convert_permute_or_transpose,
    "repeat": convert_repeat,
    "select": convert_select,
    "slice": convert_slice,
    "split_with_sizes": convert_split_with_sizes,
    "squeeze": convert_to_reshape,
    "stack": convert_stack,
    "t": convert_permute_or_transpose,
    "transpose": convert_permute_or_transpose,
    "unbind": convert_unbind,
    "unsqueeze": convert_to_reshape,
    "view": convert_to_reshape,
    "zeros_like": convert_full_like,
}


# ---- Converters of gathers, scatters, indexing and strided views.


def convert_embedding(context: OpContext) -> str:
    return context.emit("gather", (context.operand("weight"), context.operand("indices")), {"axis": 0})


def convert_index_select(context: OpContext) -> str:
    return context.emit(
        "gather", (context.operand("self"), context.operand("index")), {"axis": int(context.argument("dim"))}
    )


def convert_gather(context: OpContext) -> str:
    return context.emit(
        "gather_elements",
        (context.operand("self"), context.operand("index")),
        {"axis": _read_dim_as_nonnegative_axis(context)},
    )


def convert_scatter(context: OpContext) -> str:
    """Convert scatter, of a tensor or a number, and scatter_add."""
    x, indices, source = context.operand("self"), context.operand("index"), context.argument("src")
    if source is None:
        number = context.convert_to_value(context.argument("value"), context.dtype(x))
        source = context.emit("broadcast_to", (number,), {"shape": context.shape(indices)})
    source = context.convert_to_value(source)
    if context.shape(source) != context.shape(indices):
        shape = context.shape(indices)
        source = context.emit(
            "slice", (source,), {"begin": (0,) * len(shape), "end": shape, "strides": (1,) * len(shape)}
        )
    reduction = "add" if context.operator_name == "scatter_add" else ""
    return context.emit(
        "scatter_elements",
        (x, indices, source),
        {"axis": _read_dim_as_nonnegative_axis(context), "reduction": reduction},
    )


def _read_dim_as_nonnegative_axis(context: OpContext) -> int:
    """Return the argument ``dim`` as an axis 0..rank - 1."""
    rank = len(context.shape(context.operand("self")))
    return int(context.argument("dim")) % rank


def convert_index(context: OpContext) -> str:
    """Convert index: select elements by index tensors along some axes, and all elements along the other axes."""
    x, indices = context.operand("self"), context.argument("indices")
    indexed_axes = [axis for axis, axis_indices in enumerate(indices) if axis_indices is not None]
    if len(indexed_axes) == 1:
        return context.emit(
            "gather", (x, context.convert_to_value(indices[indexed_axes[0]])), {"axis": indexed_axes[0]}
        )
    rank = len(context.shape(x))
    front = (*indexed_axes, *(axis for axis in range(rank) if axis not in indexed_axes))
    gathered = context.emit(
        "gather_nd",
        (_emit_transpose(context, x, front), _emit_index_vectors(context, [indices[axis] for axis in indexed_axes])),
        {},
    )
    count = len(context.shape(gathered)) - (rank - len(indexed_axes))
    if indexed_axes != list(range(indexed_axes[0], indexed_axes[0] + len(indexed_axes))):
        return gathered
    other_axes = range(count, len(context.shape(gathered)))
    return _emit_transpose(
        context, gathered, (*other_axes[: indexed_axes[0]], *range(count), *other_axes[indexed_axes[0] :])
    )


def convert_index_put(context: OpContext) -> str:
    """Convert index_put: set the elements selected by index tensors along some axes, or add to them."""
    x, indices, values = context.operand("self"), context.argument("indices"), context.operand("values")
    indexed_axes = [axis for axis, axis_indices in enumerate(indices) if axis_indices is not None]
    rank, first = len(context.shape(x)), indexed_axes[0]
    mask = context.convert_to_value(indices[first])
    if len(indexed_axes) == 1 and context.dtype(mask) == "bool" and np.prod(context.shape(values), dtype=int) == 1:
        return _emit_masked_fill(context, x, mask, values, first)
    if indexed_axes != list(range(first, first + len(indexed_axes))):
        context.refuse(
            "indices: expected index tensors along consecutive axes only", "transpose these axes side by side first"
        )
    index_vectors = _emit_index_vectors(context, [indices[axis] for axis in indexed_axes])
    front = (*indexed_axes, *(axis for axis in range(rank) if axis not in indexed_axes))
    extents, count = context.shape(index_vectors)[:-1], len(context.shape(index_vectors)) - 1
    values_shape = (*context.shape(x)[:first], *extents, *context.shape(x)[first + len(indexed_axes) :])
    if context.shape(values) != values_shape:
        values = context.emit("broadcast_to", (values,), {"shape": values_shape})
    values_axes = (*range(first, first + count), *range(first), *range(first + count, len(values_shape)))
    reduction = "add" if context.argument("accumulate", False) else ""
    operands = (_emit_transpose(context, x, front), index_vectors, _emit_transpose(context, values, values_axes))
    scattered = context.emit("scatter_nd", operands, {"reduction": reduction})
    return _emit_transpose(context, scattered, tuple(front.index(axis) for axis in range(rank)))


def _emit_masked_fill(context: OpContext, x: str, mask: str, fill_value: str, first_axis: int) -> str:
    """Emit index_put with a bool mask: set the elements to one number, or add it, where the mask is true.

    ``mask`` covers consecutive axes of ``x``, beginning with ``first_axis``."""
    after = len(context.shape(x)) - first_axis - len(context.shape(mask))
    wide = context.reshape(mask, (*(1,) * first_axis, *context.shape(mask), *(1,) * after))
    fill_value = context.reshape(fill_value, ())
    changed = context.emit("add", (x, fill_value)) if context.argument("accumulate", False) else fill_value
    return context.emit("where", (wide, changed, x))


def _emit_index_vectors(context: OpContext, indices: Sequence[object]) -> str:
    """Emit the index vectors for ``gather_nd`` and ``scatter_nd`` from one index tensor for each axis.

    The tensors are broadcast to the same shape and concatenated along a new last axis."""
    names = [context.convert_to_value(axis_indices) for axis_indices in indices]
    if any(context.dtype(name) == "bool" for name in names):
        context.refuse("indices: bool tensors are not supported", "use torch.where")
    shape = np.broadcast_shapes(*(context.shape(name) for name in names))
    broadcast = [
        name if context.shape(name) == shape else context.emit("broadcast_to", (name,), {"shape": shape})
        for name in (context.cast(name, "int64") for name in names)
    ]
    return context.emit("concat", [context.reshape(name, (*shape, 1)) for name in broadcast], {"axis": len(shape)})


def _emit_transpose(context: OpContext, x: str, axes: Sequence[int]) -> str:
    """Emit a transpose of ``x`` to ``axes``; return ``x`` itself if the axes are in order already."""
    return x if list(axes) == sorted(axes) else context.emit("transpose", (x,), {"axes": tuple(axes)})


def convert_as_strided(context: OpContext) -> str:
    """Convert as_strided, which reads the operand's memory with other strides, to a gather.

    The indices of the gather are found at compile time: PyTorch applies the same strides to a tensor of element
    numbers.
    """
    operand = context.node.all_input_nodes[0].meta["val"]
    numbers = context.torch.empty_strided(operand.shape, operand.stride(), dtype=context.torch.int64)
    numbers.copy_(context.torch.arange(operand.numel()).view(operand.shape))
    size, strides, begin = context.argument("size"), context.argument("stride"), context.argument("storage_offset") or 0
    return _emit_element_gather(context, numbers.as_strided(size, strides, begin))


def convert_diagonal(context: OpContext) -> str:
    numbers = _make_element_index_tensor(context)
    return _emit_element_gather(
        context, numbers.diagonal(*(int(context.argument(name)) for name in ("offset", "dim1", "dim2")))
    )


def _make_element_index_tensor(context: OpContext) -> Any:
    """Return a PyTorch tensor of the operand's shape, whose elements are their own row-major indices."""
    shape = context.shape(context.operand("self"))
    return context.torch.arange(math.prod(shape)).view(shape)


def _emit_element_gather(context: OpContext, flat_indices: Any) -> str:
    """Emit a gather of the operand's elements at row-major indices that are known at compile time."""
    x = context.operand("self")
    count, indices = math.prod(context.shape(x)), context.to_numpy_array(flat_indices).reshape(-1)
    if np.array_equal(indices, np.arange(count)):
        return context.reshape(x, context.result_shape())
    constant = context.builder.new_constant("places", indices.astype(np.int32))
    return context.reshape(
        context.emit("gather", (context.reshape(x, (count,)), constant), {"axis": 0}), context.result_shape()
    )


def convert_unfold(context: OpContext) -> str:
    """Convert unfold: windows of ``size`` elements along an axis, ``step`` elements apart. A window's elements are a
    new last axis."""
    return _emit_element_gather(
        context,
        _make_element_index_tensor(context).unfold(
            *(int(context.argument(name)) for name in ("dimension", "size", "step"))
        ),
    )


def convert_slice_scatter(context: OpContext) -> str:
    """Convert slice_scatter and select_scatter, which replace a part of the operand along an axis.

    The result is a gather along the axis from the concatenation of both operands.
    """
    x, source, axis = context.operand("self"), context.operand("src"), _read_dim_as_nonnegative_axis(context)
    shape = context.shape(x)
    if context.operator_name == "select_scatter":
        begin = int(context.argument("index")) % shape[axis]
        replaced_indices = np.array([begin])
        source = context.reshape(source, (*shape[:axis], 1, *shape[axis + 1 :]))
    else:
        part = slice(context.argument("start"), context.argument("end"), context.argument("step", 1))
        replaced_indices = np.arange(shape[axis])[part]
    indices = np.arange(shape[axis], dtype=np.int32)
    indices[replaced_indices] = shape[axis] + np.arange(replaced_indices.size)
    joined = context.emit("concat", (x, source), {"axis": axis})
    return context.emit("gather", (joined, context.builder.new_constant("places", indices)), {"axis": axis})


INDEXING_CONVERTERS: Mapping[str, Converter] = {
    "as_strided": convert_as_strided,
    "diagonal": convert_diagonal,
    "embedding": convert_embedding,
    "gather": convert_gather,
    "index": convert_index,
    "index_put": convert_index_put,
    "index_select": convert_index_select,
    "scatter": convert_scatter,
    "scatter_add": convert_scatter,
    "select_scatter": convert_slice_scatter,
    "slice_scatter": convert_slice_scatter,
    "unfold": convert_unfold,
}
