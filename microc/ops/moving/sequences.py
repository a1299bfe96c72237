"""Rows of sequences: ``reverse_sequence`` and ``cache_update`` (the cache of keys and values of attention). Sources: ONNX
ReverseSequence, TensorScatter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.attributes import flag, one_axis
from microc.ops.constants import BOUNDED
from microc.ops.moving.places import INDICES, clamped_index
from microc.ops.registry import Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Expr


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
    data, lengths = call.present
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


def _infer_cache(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    cache, update, starts = types
    axis = attrs["axis"]
    fits = len(cache.shape) == len(update.shape) and 0 < axis < len(cache.shape)
    if not fits or any(c != u for k, (c, u) in enumerate(zip(cache.shape, update.shape, strict=True)) if k != axis):
        raise ModelError(f"cache_update of {cache.shape} by {update.shape} along axis {axis}")
    if starts.shape != cache.shape[:1] or starts.dtype not in INDICES or update.dtype != cache.dtype:
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
    cache, update, starts = call.present
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
        "reverse_sequence",
        attrs={"time_axis": one_axis(), "batch_axis": one_axis()},
        infer=_infer_sequence,
        reference=_reference_sequence,
        compute=_compute_sequence,
        cases=_cases_sequence,
        constants={1: BOUNDED},
        moves=True,
        operand_names=("data", "lengths"),
    ),
    OpDef(
        "cache_update",
        infer=_infer_cache,
        reference=_reference_cache,
        compute=_compute_cache,
        cases=_cases_cache,
        constants={2: BOUNDED},
        attrs={"axis": one_axis(), "circular": flag("places behind the end are those at the beginning")},
        operand_names=("cache", "update", "starts"),
    ),
)
