"""Elements chosen one by one along an axis: ``gather_elements``, ``scatter_elements``, ``reverse_sequence``, ``triangle``,
``cache_update``. Indices that lie outside are clamped. Sources: ONNX GatherElements, ScatterElements, ReverseSequence, Trilu,
TensorScatter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.functions import compute_dtype
from microc.ops.places import clamped_index
from microc.ops.registry import Case, OpCall, OpDef, Operand
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

_INDICES = ("int32", "int64")


def _operands(call: OpCall) -> tuple[Operand, ...]:
    return tuple(operand for operand in call.operands if operand is not None)


def _wrapped(index: Expr, extent: int) -> Expr:
    """An index that counts from the end where it is negative, within the axis."""
    return clamped_index(ir.select(index < 0, index + extent, index), extent)


def _wrapped_array(indices: Array, extent: int) -> Array:
    return np.clip(np.where(indices < 0, indices + extent, indices), 0, extent - 1)


# ---------------------------------------------------------------- gather_elements


def _check(name: str, attrs: Mapping[str, Any], data: TensorType, indices: TensorType) -> None:
    axis, rank = attrs["axis"], len(data.shape)
    fits = 0 <= axis < rank == len(indices.shape) and 0 not in data.shape
    others = [k for k in range(rank) if k != axis]
    if not fits or any(indices.shape[k] > data.shape[k] for k in others) or indices.dtype not in _INDICES:
        raise ModelError(f"{name} of shape {data.shape} at {indices.dtype} {indices.shape} along axis {axis}")


def _infer_gather(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    _check("gather_elements", attrs, types[0], types[1])
    return (TensorType(types[1].shape, types[0].dtype),)


def _reference_gather(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, indices = arrays
    axis = attrs["axis"]
    part = data[tuple(slice(None) if k == axis else slice(e) for k, e in enumerate(indices.shape))]
    return (np.take_along_axis(part, _wrapped_array(indices, data.shape[axis]), axis),)


def _compute_gather(call: OpCall) -> te.Tensor:
    data, indices = _operands(call)
    axis = call.attrs["axis"]
    x, at = data.tensor(), indices.tensor()

    def element(*index: Expr) -> Expr:
        place = _wrapped(at[index], data.type.shape[axis])
        return x[(*index[:axis], place, *index[axis + 1 :])]

    return te.compute(indices.type.shape, element, "gathered")


def _cases_gather() -> Iterable[Case]:
    for shape, places, axis in (
        ((4,), [3, 0, -1], 0),
        ((3, 4), [[0, 2, 1, -3]], 0),
        ((3, 4), [[0, 3], [-4, 1]], 1),
        ((2, 2, 3), [[[0, 9]], [[1, 2]]], 2),
    ):
        for dtype in _INDICES:
            indices = np.array(places, dtype)
            types = (TensorType(shape, "float32"), TensorType(indices.shape, dtype))
            yield Case({"axis": axis}, types, arrays=(None, indices), name=f"{shape} {dtype}")


# ---------------------------------------------------------------- scatter_elements

_REDUCTIONS: Mapping[str, Any] = {"": None, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _infer_scatter(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, indices, updates = types
    _check("scatter_elements", attrs, data, indices)
    if (updates.shape, updates.dtype) != (indices.shape, data.dtype) or attrs["reduction"] not in _REDUCTIONS:
        raise ModelError(f"scatter_elements of {updates.dtype} {updates.shape} by {attrs['reduction']!r}")
    return (TensorType(data.shape, data.dtype),)


def _reference_scatter(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, indices, updates = arrays
    axis, result = attrs["axis"], arrays[0].copy()
    at: list[Any] = list(np.indices(indices.shape, sparse=True))
    at[axis] = _wrapped_array(indices, data.shape[axis])
    reduce = _REDUCTIONS[attrs["reduction"]]
    if reduce is None:
        for place in np.ndindex(indices.shape):
            where = list(place)
            where[axis] = int(at[axis][place])
            result[tuple(where)] = updates[place]
    else:
        reduce.at(result, tuple(at), updates)
    return (result,)


def _compute_scatter(call: OpCall) -> te.Tensor:
    """The data copied, then one update after the other."""
    data, indices, updates = _operands(call)
    axis, reduction, kind = call.attrs["axis"], call.attrs["reduction"], data.type
    compute = compute_dtype(kind.dtype)

    def build(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, at, new), (out,) = operands, results
        copied = [Var(f"i{k}") for k in range(len(kind.shape))]
        index = tuple(Var(f"j{k}") for k in range(len(kind.shape)))
        copy = ir.loops(zip(copied, kind.shape, strict=True), ir.Store(out, tuple(copied), x[tuple(copied)]))
        place = (*index[:axis], _wrapped(at[index], kind.shape[axis]), *index[axis + 1 :])
        value: Expr = new[index]
        if reduction:
            pair = (ir.cast(compute, out[place]), ir.cast(compute, value))
            value = ir.cast(kind.dtype, ir.binary(reduction, *pair))
        update = ir.loops(zip(index, indices.type.shape, strict=True), ir.Store(out, place, value))
        return ir.seq(copy, update)

    tensors = tuple(operand.tensor() for operand in (data, indices, updates))
    return te.extern("scatter", tensors, (("out", kind.shape, kind.dtype),), build)[0]


def _cases_scatter() -> Iterable[Case]:
    for shape, places, axis in (((4,), [3, 0, 3], 0), ((3, 4), [[0, 2, 1, -3]], 0), ((2, 3), [[0, -1], [1, 1]], 1)):
        for reduction in _REDUCTIONS:
            for dtype in ("float32", "int8"):
                indices = np.array(places, np.int64)
                types = (TensorType(shape, dtype), TensorType(indices.shape, "int64"), TensorType(indices.shape, dtype))
                small = (
                    None if dtype == "float32" else (np.arange(indices.size) % 3).reshape(indices.shape).astype(dtype)
                )
                data = None if dtype == "float32" else (np.arange(np.prod(shape)) % 5 - 2).reshape(shape).astype(dtype)
                arrays = (data, indices, small)
                yield Case({"axis": axis, "reduction": reduction}, types, arrays=arrays, tolerance=1e-6, name=reduction)


# ---------------------------------------------------------------- reverse_sequence


def _infer_sequence(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, lengths = types
    batch, time = attrs["batch_axis"], attrs["time_axis"]
    inside = batch != time and 0 <= min(batch, time) <= max(batch, time) < len(data.shape)
    if not inside or lengths.shape != (data.shape[batch],):
        raise ModelError(f"reverse_sequence of {data.shape} by lengths {lengths.shape} along axes {batch} and {time}")
    return (TensorType(data.shape, data.dtype),)


def _reference_sequence(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, lengths = arrays
    axes = (attrs["batch_axis"], attrs["time_axis"])
    result, source = (np.moveaxis(array, axes, (0, 1)) for array in (data.copy(), data))
    for row, length in enumerate(np.clip(lengths, 0, data.shape[attrs["time_axis"]])):
        result[row, :length] = source[row, :length][::-1]
    return (np.ascontiguousarray(np.moveaxis(result, (0, 1), axes)),)


def _compute_sequence(call: OpCall) -> te.Tensor:
    data, lengths = _operands(call)
    batch, time = call.attrs["batch_axis"], call.attrs["time_axis"]
    x, ends, extent = data.tensor(), lengths.tensor(), data.type.shape[time]

    def element(*index: Expr) -> Expr:
        length = ir.cast("int32", ir.clamp(ends[index[batch]], 0, extent))
        turned = clamped_index(length - 1 - index[time], extent)
        place = tuple(turned if k == time else i for k, i in enumerate(index))
        return ir.select(index[time] < length, x[place], x[index])

    return te.compute(data.type.shape, element, "turned")


def _cases_sequence() -> Iterable[Case]:
    lengths = np.array([1, 4, 0], np.int64)
    for shape, batch, time in (((4, 3), 1, 0), ((3, 4, 2), 0, 1), ((2, 3, 2, 4), 1, 3)):
        types = (TensorType(shape, "float32"), TensorType((3,), "int64"))
        yield Case({"batch_axis": batch, "time_axis": time}, types, arrays=(None, lengths), name=str(shape))


# ---------------------------------------------------------------- triangle


def _infer_triangle(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if len(types[0].shape) < 2:
        raise ModelError(f"a triangle of shape {types[0].shape}")
    return (TensorType(types[0].shape, types[0].dtype),)


def _reference_triangle(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    return ((np.triu if attrs["upper"] else np.tril)(arrays[0], attrs["diagonal"]),)


def _compute_triangle(call: OpCall) -> te.Tensor:
    (data,) = _operands(call)
    x, diagonal, upper = data.tensor(), int(call.attrs["diagonal"]), call.attrs["upper"]

    def element(*index: Expr) -> Expr:
        limit = index[-2] + diagonal
        kept = index[-1] >= limit if upper else index[-1] <= limit
        return ir.select(kept, x[index], ir.const(0, data.type.dtype))

    return te.compute(data.type.shape, element, "triangle")


def _cases_triangle() -> Iterable[Case]:
    for shape, dtype in (((3, 4), "int64"), ((2, 4, 3), "float32"), ((1, 1), "bool")):
        for diagonal in (0, 1, -1, 9, -9):
            for upper in (True, False):
                attrs = {"diagonal": diagonal, "upper": upper}
                yield Case(attrs, (TensorType(shape, dtype),), name=f"{shape} {diagonal}")


# ---------------------------------------------------------------- cache_update


def _infer_cache(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    cache, update, starts = types
    axis = attrs["axis"]
    fits = len(cache.shape) == len(update.shape) and 0 < axis < len(cache.shape)
    if not fits or any(c != u for k, (c, u) in enumerate(zip(cache.shape, update.shape, strict=True)) if k != axis):
        raise ModelError(f"cache_update of {cache.shape} by {update.shape} along axis {axis}")
    if starts.shape != cache.shape[:1] or starts.dtype not in _INDICES or update.dtype != cache.dtype:
        raise ModelError(f"cache_update at {starts.dtype} {starts.shape} with {update.dtype}")
    return (TensorType(cache.shape, cache.dtype),)


def _reference_cache(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    cache, update, starts = arrays
    axis, result = attrs["axis"], arrays[0].copy()
    extent = cache.shape[axis]
    for row, start in enumerate(starts):
        for k in range(update.shape[axis]):
            place = int(start) + k
            if attrs["circular"] or 0 <= place < extent:
                result[row].swapaxes(0, axis - 1)[place % extent] = update[row].swapaxes(0, axis - 1)[k]
    return (result,)


def _compute_cache(call: OpCall) -> te.Tensor:
    """Every place of the cache asks which row of the update, if any, lands on it."""
    cache, update, starts = _operands(call)
    axis = call.attrs["axis"]
    x, new, first = cache.tensor(), update.tensor(), starts.tensor()
    extent, count = cache.type.shape[axis], update.type.shape[axis]

    def element(*index: Expr) -> Expr:
        start: Expr = first[index[0]]
        start = start % extent if call.attrs["circular"] else ir.clamp(start, -count, extent)
        row = index[axis] - ir.cast("int32", start)
        if call.attrs["circular"]:
            row = ir.select(row < 0, row + extent, row)
        inside = ir.Bin("and", row >= 0, row < count)
        place = tuple(clamped_index(row, count) if k == axis else i for k, i in enumerate(index))
        return ir.select(inside, new[place], x[index])

    return te.compute(cache.type.shape, element, "updated")


def _cases_cache() -> Iterable[Case]:
    starts = np.array([1, 3], np.int64)
    for circular in (True, False):
        for shape, update, axis in (((2, 4, 3), (2, 2, 3), 1), ((2, 1, 4), (2, 1, 3), 2)):
            types = (TensorType(shape, "float32"), TensorType(update, "float32"), TensorType((2,), "int64"))
            yield Case({"axis": axis, "circular": circular}, types, arrays=(None, None, starts), name=f"{shape}")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "gather_elements",
        infer=_infer_gather,
        reference=_reference_gather,
        compute=_compute_gather,
        cases=_cases_gather,
        operand_names=("data", "indices"),
    ),
    OpDef(
        "scatter_elements",
        infer=_infer_scatter,
        reference=_reference_scatter,
        compute=_compute_scatter,
        cases=_cases_scatter,
        defaults={"reduction": ""},
        operand_names=("data", "indices", "updates"),
    ),
    OpDef(
        "reverse_sequence",
        infer=_infer_sequence,
        reference=_reference_sequence,
        compute=_compute_sequence,
        cases=_cases_sequence,
        operand_names=("data", "lengths"),
    ),
    OpDef(
        "triangle",
        infer=_infer_triangle,
        reference=_reference_triangle,
        compute=_compute_triangle,
        cases=_cases_triangle,
        defaults={"diagonal": 0, "upper": True},
        operand_names=("data",),
    ),
    OpDef(
        "cache_update",
        infer=_infer_cache,
        reference=_reference_cache,
        compute=_compute_cache,
        cases=_cases_cache,
        defaults={"circular": False},
        operand_names=("cache", "update", "starts"),
    ),
)
