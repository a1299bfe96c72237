"""Converters of ATen's operators that move elements: views, slices, concatenations, padding, gathers and scatters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.frontend.torch.context import Converter, OpContext

# ---- Converters of views, slices, concatenations, padding, and constants of a shape.


def view(a: OpContext) -> str:
    return a.reshape(a.operand("self"), a.result_shape())


def identity(a: OpContext) -> str:
    """Return the operand unchanged, for operators that copy, change strides, or act only in training (dropout)."""
    return a.operand("self") if a.argument("self") is not None else a.operand("input")


def permute(a: OpContext) -> str:
    x = a.operand("self")
    rank = len(a.shape(x))
    if a.name == "permute":
        axes = [d % rank for d in a.argument("dims")]
    else:
        axes = list(range(rank))
        first, second = (0, rank - 1) if a.name == "t" else (a.argument("dim0") % rank, a.argument("dim1") % rank)
        axes[first], axes[second] = axes[second], axes[first]
    return x if axes == sorted(axes) else a.emit("transpose", (x,), {"axes": tuple(axes)})


def expand(a: OpContext) -> str:
    x, result_shape = a.operand("self"), a.result_shape()
    return x if a.shape(x) == result_shape else a.emit("broadcast_to", (x,), {"shape": result_shape})


def repeat(a: OpContext) -> str:
    x, result_shape = a.operand("self"), a.result_shape()
    x = a.reshape(x, (1,) * (len(result_shape) - len(a.shape(x))) + a.shape(x))
    for axis, extent in enumerate(result_shape):
        current = a.shape(x)[axis]
        if current != extent:
            x = a.emit("concat", (x,) * (extent // current), {"axis": axis})
    return x


def concat(a: OpContext) -> str:
    parts = [a.value(part) for part in a.argument("tensors")]
    parts = [part for part in parts if 0 not in a.shape(part)]
    if len(parts) == 1:
        return parts[0]
    return a.emit("concat", parts, {"axis": int(a.argument("dim", 0))})


def stack(a: OpContext) -> str:
    axis, result_shape = int(a.argument("dim", 0)), a.result_shape()
    axis %= len(result_shape)
    unsqueezed = (*result_shape[:axis], 1, *result_shape[axis + 1 :])
    return a.emit("concat", [a.reshape(a.value(part), unsqueezed) for part in a.argument("tensors")], {"axis": axis})


def emit_slice(a: OpContext, x: str, axis: int, begin: int, end: int, step: int = 1) -> str:
    """Emit a slice along one axis: elements begin, begin + step ... below end."""
    shape = a.shape(x)
    if (begin, end, step) == (0, shape[axis], 1):
        return x
    starts, ends, strides = [0] * len(shape), list(shape), [1] * len(shape)
    starts[axis], ends[axis], strides[axis] = begin, end, step
    return a.emit("slice", (x,), {"begin": tuple(starts), "end": tuple(ends), "strides": tuple(strides)})


def slice_(a: OpContext) -> str:
    x, axis = a.operand("self"), int(a.argument("dim", 0)) % len(a.shape(a.operand("self")))
    begin, end, step = slice(a.argument("start"), a.argument("end"), a.argument("step", 1)).indices(a.shape(x)[axis])
    return emit_slice(a, x, axis, begin, end, step)


def select(a: OpContext) -> str:
    x, axis = a.operand("self"), int(a.argument("dim")) % len(a.shape(a.operand("self")))
    index = int(a.argument("index")) % a.shape(x)[axis]
    return a.reshape(emit_slice(a, x, axis, index, index + 1), a.result_shape())


def split(a: OpContext) -> tuple[str, ...]:
    x, axis = a.operand("self"), int(a.argument("dim", 0)) % len(a.shape(a.operand("self")))
    extents = [a.result_shape(k)[axis] for k in range(len(a.node.meta["val"]))]
    starts = [sum(extents[:k]) for k in range(len(extents))]
    return tuple(emit_slice(a, x, axis, start, start + extent) for start, extent in zip(starts, extents, strict=True))


def unbind(a: OpContext) -> tuple[str, ...]:
    x, axis = a.operand("self"), int(a.argument("dim", 0)) % len(a.shape(a.operand("self")))
    return tuple(a.reshape(emit_slice(a, x, axis, k, k + 1), a.result_shape(k)) for k in range(a.shape(x)[axis]))


def pad(a: OpContext) -> str:
    """Convert constant_pad_nd.

    The argument ``pad`` has two numbers of elements (before, after) for each axis, beginning with the last axis. Negative
    numbers crop."""
    x, amounts = a.operand("self"), a.argument("pad")
    rank = len(a.shape(x))
    pairs: list[Sequence[int]] = [(0, 0)] * rank
    for k in range(len(amounts) // 2):
        pairs[rank - 1 - k] = amounts[2 * k : 2 * k + 2]
    for axis, (before, after) in enumerate(pairs):
        x = emit_slice(a, x, axis, max(-before, 0), a.shape(x)[axis] - max(-after, 0))
    padding = tuple((max(int(b), 0), max(int(e), 0)) for b, e in pairs)
    if not any(map(any, padding)):
        return x
    return a.emit("pad", (x,), {"padding": padding, "value": float(a.argument("value", 0) or 0)})


def to_dtype(a: OpContext) -> str:
    return a.cast(a.operand("self"), a.result_dtype())


def full_like(a: OpContext) -> str:
    """Convert full_like, zeros_like and ones_like to a constant."""
    number = {"zeros_like": 0, "ones_like": 1}.get(a.name, a.argument("fill_value"))
    return a.write.new_constant("full", np.full(a.result_shape(), number, dtypes.to_numpy(a.result_dtype())))


MOVEMENT_CONVERTERS: Mapping[str, Converter] = {
    "_to_copy": to_dtype,
    "_unsafe_view": view,
    "alias": identity,
    "cat": concat,
    "clone": identity,
    "constant_pad_nd": pad,
    "contiguous": identity,
    "detach": identity,
    "dropout": identity,
    "expand": expand,
    "flatten": view,
    "full_like": full_like,
    "lift_fresh_copy": identity,
    "ones_like": full_like,
    "permute": permute,
    "repeat": repeat,
    "select": select,
    "slice": slice_,
    "split_with_sizes": split,
    "squeeze": view,
    "stack": stack,
    "t": permute,
    "transpose": permute,
    "unbind": unbind,
    "unsqueeze": view,
    "view": view,
    "zeros_like": full_like,
}


# ---- Converters of gathers, scatters, indexing and strided views.


def embedding(a: OpContext) -> str:
    return a.emit("gather", (a.operand("weight"), a.operand("indices")), {"axis": 0})


def index_select(a: OpContext) -> str:
    return a.emit("gather", (a.operand("self"), a.operand("index")), {"axis": int(a.argument("dim"))})


def gather(a: OpContext) -> str:
    return a.emit("gather_elements", (a.operand("self"), a.operand("index")), {"axis": _dim_axis(a)})


def scatter(a: OpContext) -> str:
    """Convert scatter, of a tensor or a number, and scatter_add."""
    x, indices, source = a.operand("self"), a.operand("index"), a.argument("src")
    if source is None:
        number = a.value(a.argument("value"), a.dtype(x))
        source = a.emit("broadcast_to", (number,), {"shape": a.shape(indices)})
    source = a.value(source)
    if a.shape(source) != a.shape(indices):
        shape = a.shape(indices)
        source = a.emit("slice", (source,), {"begin": (0,) * len(shape), "end": shape, "strides": (1,) * len(shape)})
    reduction = "add" if a.name == "scatter_add" else ""
    return a.emit("scatter_elements", (x, indices, source), {"axis": _dim_axis(a), "reduction": reduction})


def _dim_axis(a: OpContext) -> int:
    """Return the argument ``dim`` as an axis 0..rank - 1."""
    rank = len(a.shape(a.operand("self")))
    return int(a.argument("dim")) % rank


def index(a: OpContext) -> str:
    """Convert index: select elements by index tensors along some axes, and all elements along the other axes."""
    x, indices = a.operand("self"), a.argument("indices")
    indexed_axes = [axis for axis, axis_indices in enumerate(indices) if axis_indices is not None]
    if len(indexed_axes) == 1:
        return a.emit("gather", (x, a.value(indices[indexed_axes[0]])), {"axis": indexed_axes[0]})
    rank = len(a.shape(x))
    front = (*indexed_axes, *(axis for axis in range(rank) if axis not in indexed_axes))
    gathered = a.emit(
        "gather_nd", (_emit_transpose(a, x, front), _stack_indices(a, [indices[axis] for axis in indexed_axes])), {}
    )
    count = len(a.shape(gathered)) - (rank - len(indexed_axes))
    if indexed_axes != list(range(indexed_axes[0], indexed_axes[0] + len(indexed_axes))):
        return gathered
    other_axes = range(count, len(a.shape(gathered)))
    return _emit_transpose(a, gathered, (*other_axes[: indexed_axes[0]], *range(count), *other_axes[indexed_axes[0] :]))


def index_put(a: OpContext) -> str:
    """Convert index_put: set the elements selected by index tensors along some axes, or add to them."""
    x, indices, values = a.operand("self"), a.argument("indices"), a.operand("values")
    indexed_axes = [axis for axis, axis_indices in enumerate(indices) if axis_indices is not None]
    rank, first = len(a.shape(x)), indexed_axes[0]
    mask = a.value(indices[first])
    if len(indexed_axes) == 1 and a.dtype(mask) == "bool" and np.prod(a.shape(values), dtype=int) == 1:
        return _masked_fill(a, x, mask, values, first)
    if indexed_axes != list(range(first, first + len(indexed_axes))):
        a.refuse("indices along axes that are not neighbours", "transpose the axes next to each other first")
    index_vectors = _stack_indices(a, [indices[axis] for axis in indexed_axes])
    front = (*indexed_axes, *(axis for axis in range(rank) if axis not in indexed_axes))
    extents, count = a.shape(index_vectors)[:-1], len(a.shape(index_vectors)) - 1
    values_shape = (*a.shape(x)[:first], *extents, *a.shape(x)[first + len(indexed_axes) :])
    if a.shape(values) != values_shape:
        values = a.emit("broadcast_to", (values,), {"shape": values_shape})
    values_axes = (*range(first, first + count), *range(first), *range(first + count, len(values_shape)))
    reduction = "add" if a.argument("accumulate", False) else ""
    operands = (_emit_transpose(a, x, front), index_vectors, _emit_transpose(a, values, values_axes))
    scattered = a.emit("scatter_nd", operands, {"reduction": reduction})
    return _emit_transpose(a, scattered, tuple(front.index(axis) for axis in range(rank)))


def _masked_fill(a: OpContext, x: str, mask: str, fill_value: str, first_axis: int) -> str:
    """Emit index_put with a bool mask: set the elements to one number, or add it, where the mask is true.

    ``mask`` covers consecutive axes of ``x``, beginning with ``first_axis``."""
    after = len(a.shape(x)) - first_axis - len(a.shape(mask))
    wide = a.reshape(mask, (*(1,) * first_axis, *a.shape(mask), *(1,) * after))
    fill_value = a.reshape(fill_value, ())
    changed = a.emit("add", (x, fill_value)) if a.argument("accumulate", False) else fill_value
    return a.emit("where", (wide, changed, x))


def _stack_indices(a: OpContext, indices: Sequence[object]) -> str:
    """Emit the index vectors for ``gather_nd`` and ``scatter_nd`` from one index tensor for each axis.

    The tensors are broadcast to the same shape and concatenated along a new last axis."""
    names = [a.value(axis_indices) for axis_indices in indices]
    if any(a.dtype(name) == "bool" for name in names):
        a.refuse("indexing by a bool tensor", "use torch.where")
    shape = np.broadcast_shapes(*(a.shape(name) for name in names))
    broadcast = [
        name if a.shape(name) == shape else a.emit("broadcast_to", (name,), {"shape": shape})
        for name in (a.cast(name, "int64") for name in names)
    ]
    return a.emit("concat", [a.reshape(name, (*shape, 1)) for name in broadcast], {"axis": len(shape)})


def _emit_transpose(a: OpContext, x: str, axes: Sequence[int]) -> str:
    """Emit a transpose of ``x`` to ``axes``; return ``x`` itself if the axes are in order already."""
    return x if list(axes) == sorted(axes) else a.emit("transpose", (x,), {"axes": tuple(axes)})


def as_strided(a: OpContext) -> str:
    """Convert as_strided, which reads the operand's memory with other strides, to a gather.

    The indices of the gather are found at compile time: PyTorch applies the same strides to a tensor of element numbers.
    """
    operand = a.node.all_input_nodes[0].meta["val"]
    numbers = a.torch.empty_strided(operand.shape, operand.stride(), dtype=a.torch.int64)
    numbers.copy_(a.torch.arange(operand.numel()).view(operand.shape))
    size, strides, begin = a.argument("size"), a.argument("stride"), a.argument("storage_offset") or 0
    return _take_elements(a, numbers.as_strided(size, strides, begin))


def diagonal(a: OpContext) -> str:
    numbers = _element_numbers(a)
    return _take_elements(a, numbers.diagonal(*(int(a.argument(name)) for name in ("offset", "dim1", "dim2"))))


def _element_numbers(a: OpContext) -> Any:
    """Return a PyTorch tensor of the operand's shape, whose elements are their own row-major indices."""
    shape = a.shape(a.operand("self"))
    return a.torch.arange(math.prod(shape)).view(shape)


def _take_elements(a: OpContext, flat_indices: Any) -> str:
    """Emit a gather of the operand's elements at row-major indices that are known at compile time."""
    x = a.operand("self")
    count, indices = math.prod(a.shape(x)), a.array(flat_indices).reshape(-1)
    if np.array_equal(indices, np.arange(count)):
        return a.reshape(x, a.result_shape())
    constant = a.write.new_constant("places", indices.astype(np.int32))
    return a.reshape(a.emit("gather", (a.reshape(x, (count,)), constant), {"axis": 0}), a.result_shape())


def unfold(a: OpContext) -> str:
    """Convert unfold: windows of ``size`` elements along an axis, ``step`` elements apart. A window's elements are a new last
    axis."""
    return _take_elements(
        a, _element_numbers(a).unfold(*(int(a.argument(name)) for name in ("dimension", "size", "step")))
    )


def slice_scatter(a: OpContext) -> str:
    """Convert slice_scatter and select_scatter, which replace a part of the operand along an axis.

    The result is a gather along the axis from the concatenation of both operands.
    """
    x, source, axis = a.operand("self"), a.operand("src"), _dim_axis(a)
    shape = a.shape(x)
    if a.name == "select_scatter":
        begin = int(a.argument("index")) % shape[axis]
        replaced_indices = np.array([begin])
        source = a.reshape(source, (*shape[:axis], 1, *shape[axis + 1 :]))
    else:
        part = slice(a.argument("start"), a.argument("end"), a.argument("step", 1))
        replaced_indices = np.arange(shape[axis])[part]
    indices = np.arange(shape[axis], dtype=np.int32)
    indices[replaced_indices] = shape[axis] + np.arange(replaced_indices.size)
    joined = a.emit("concat", (x, source), {"axis": axis})
    return a.emit("gather", (joined, a.write.new_constant("places", indices)), {"axis": axis})


INDEXING_CONVERTERS: Mapping[str, Converter] = {
    "as_strided": as_strided,
    "diagonal": diagonal,
    "embedding": embedding,
    "gather": gather,
    "index": index,
    "index_put": index_put,
    "index_select": index_select,
    "scatter": scatter,
    "scatter_add": scatter,
    "select_scatter": slice_scatter,
    "slice_scatter": slice_scatter,
    "unfold": unfold,
}
