# SPDX-License-Identifier: Apache-2.0
"""Operators that reverse, mirror, broadcast or mask elements, and operators on sequences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.attributes import choice, flag, int_pairs_by_axis, integer, one_axis, result_extents, some_axes
from microc.ops.constants import BOUNDED
from microc.ops.gradients.rules import (
    build_broadcast_gradient,
    build_mirror_pad_gradient,
    build_reverse_gradient,
    build_triangle_gradient,
)
from microc.ops.registry import Case, OpCall, OpDef, map_along_axes, map_broadcast, map_padding
from microc.tir import ir
from microc.tir.extents import broadcast_shapes
from microc.tir.ir import Expr

# ---- ``reverse``, ``mirror_pad``, ``broadcast_to``, ``triangle``; helpers for operators with indices.
#
# Sources: TFLite ``reverse.h``, ``mirror_pad``; ONNX Pad, Expand, Trilu.

INDICES = ("int32", "int64")
"""Dtypes of index operands."""


def clamp_index(index: Expr, extent: int) -> Expr:
    """Clamp a run-time index to 0..extent - 1 and convert it to int32."""
    return ir.cast("int32", ir.clamp(index, 0, extent - 1))


def wrap_index(index: Expr, extent: int) -> Expr:
    """Return a valid int32 index for a run-time index of any magnitude: negative indices count from the end, and indices
    out of range are clamped."""
    wrapped = ir.select(index < 0, ir.clamp(index, -extent, -1) + extent, ir.minimum(index, extent - 1))
    return ir.cast("int32", wrapped)


def wrap_index_array(indices: Array, extent: int) -> Array:
    """Return valid indices along an axis of ``extent`` elements: negative indices count from the end, and the result is
    clamped."""
    return np.clip(np.where(indices < 0, indices + extent, indices), 0, extent - 1)


def check_index_dtype(op_name: str, indices_type: TensorType) -> None:
    """Raise ModelError unless the operand that contains the indices is int32 or int64."""
    if indices_type.dtype not in INDICES:
        raise ModelError(
            f"{op_name}: the indices have an unsupported dtype; got {indices_type.dtype}, expected {' or '.join(INDICES)}"
        )


def _infer_reverse_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    axes = attrs["axes"]
    if len(set(axes)) < len(axes) or any(not 0 <= axis < len(types[0].shape) for axis in axes):
        raise ModelError(f"reverse: axes must be different axes of the data; got axes={axes} for {types[0].shape}")
    return (TensorType(types[0].shape, types[0].dtype),)


def _compute_reverse(call: OpCall) -> te.Tensor:
    data, axes = call.data, call.attrs["axes"]
    x, shape = data.tensor(), data.type.shape

    def build_reversed_element(*index: Expr) -> Expr:
        return x[tuple(shape[k] - 1 - i if k in axes else i for k, i in enumerate(index))]

    return te.compute(shape, build_reversed_element, "turned")


def _make_reverse_test_cases() -> Iterable[Case]:
    for shape, axes in (((5,), (0,)), ((2, 3, 4), (1,)), ((2, 3, 4), (0, 2)), ((3, 2), ())):
        yield Case({"axes": axes}, (TensorType(shape, "int8"),))
    yield Case({"axes": (1,)}, (TensorType((2, 3), "float32"),))


_MODES = ("reflect", "symmetric", "edge", "wrap")


def _infer_mirror_pad_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    shape, padding, mode = types[0].shape, attrs["padding"], attrs["mode"]
    if mode not in _MODES or len(padding) != len(shape) or any(min(p) < 0 for p in padding):
        raise ModelError(
            f"mirror_pad: padding needs two numbers from 0 on for each axis, and a known mode; got padding={padding} "
            f"and mode={mode!r} for {shape}, expected one of {', '.join(_MODES)}"
        )
    most = {"reflect": -1, "symmetric": 0}
    for extent, amounts in zip(shape, padding, strict=True):
        if not extent or (mode in most and max(amounts) > extent + most[mode]):
            raise ModelError(
                f"mirror_pad: padding exceeds the {extent} elements of an axis; got {amounts}, expected at most "
                f"{max(extent + most.get(mode, 0), 0)} by mode={mode!r}"
            )
    extents = (before + extent + after for extent, (before, after) in zip(shape, padding, strict=True))
    return (TensorType(tuple(extents), types[0].dtype),)


def _evaluate_mirror_pad_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    return (np.pad(arrays[0], attrs["padding"], mode=attrs["mode"]) if arrays[0].ndim else arrays[0],)


def _compute_mirror_pad(call: OpCall) -> te.Tensor:
    data, mode = call.data, call.attrs["mode"]
    x = data.tensor()

    def build_source_index(index: Expr, extent: int, pad_before: int, pad_after: int) -> Expr:
        """Build the index of the element that is copied to ``index`` of an axis padded by ``mode``."""
        if mode == "wrap" and max(pad_before, pad_after) > extent:  # the axis is repeated more than once
            return (index + -pad_before % extent) % extent
        inside = index - pad_before if pad_before else index
        skipped = 0 if mode == "reflect" else 1
        first = {"edge": ir.const(0, "int32"), "wrap": inside + extent}.get(mode, -inside - skipped)
        last = {"edge": ir.const(extent - 1, "int32"), "wrap": inside - extent}.get(
            mode, 2 * (extent - 1) + skipped - inside
        )
        found = ir.select(index >= pad_before + extent, last, inside) if pad_after else inside
        return ir.select(index < pad_before, first, found) if pad_before else found

    def build_padded_element(*index: Expr) -> Expr:
        parts = zip(index, data.type.shape, call.attrs["padding"], strict=True)
        return x[tuple(build_source_index(i, extent, before, after) for i, extent, (before, after) in parts)]

    return te.compute(call.out_types[0].shape, build_padded_element, "padded_out")


def _make_mirror_pad_test_cases() -> Iterable[Case]:
    for mode in _MODES:
        for shape, padding in (((4,), ((3, 2),)), ((2, 3), ((0, 1), (2, 0))), ((1, 3, 2), ((0, 0), (2, 2), (1, 1)))):
            yield Case({"padding": padding, "mode": mode}, (TensorType(shape, "int8"),), name=f"{mode} {shape}")
    yield Case({"padding": ((1, 1),), "mode": "edge"}, (TensorType((1,), "float32"),), name="one element")
    yield Case({"padding": ((0, 2), (7, 4)), "mode": "wrap"}, (TensorType((1, 3), "int8"),), name="repeated axes")


def _infer_broadcast_to_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    shape = tuple(attrs["shape"])
    try:
        fits = broadcast_shapes(types[0].shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ModelError(
            f"broadcast_to: the data do not broadcast to the shape; got {types[0].shape}, expected axes of 1 or "
            f"those of {shape}"
        )
    return (TensorType(shape, types[0].dtype),)


def _compute_broadcast_to(call: OpCall) -> te.Tensor:
    data, shape = call.data, call.attrs["shape"]
    x, own = data.tensor(), data.type.shape

    def build_broadcast_element(*index: Expr) -> Expr:
        mine = index[len(index) - len(own) :]
        return x[tuple(0 if extent == 1 else i for i, extent in zip(mine, own, strict=True))]

    return te.compute(tuple(shape), build_broadcast_element, "spread")


def _make_broadcast_to_test_cases() -> Iterable[Case]:
    for shape, result in (
        ((3,), (2, 3)),
        ((2, 1), (2, 4)),
        ((), (2, 2)),
        ((), (2, 24)),
        ((1, 3, 1), (2, 3, 2)),
        ((2,), (2,)),
    ):
        yield Case({"shape": result}, (TensorType(shape, "int8"),))
    yield Case({"shape": (2, 2)}, (TensorType((2, 1), "float32"),))
    yield Case({"shape": (0, 3)}, (TensorType((1, 3), "float32"),), name="empty")


def _infer_triangle_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if len(types[0].shape) < 2:
        raise ModelError(f"triangle: the data need two axes at least; got {types[0].shape}")
    return (TensorType(types[0].shape, types[0].dtype),)


def _evaluate_triangle_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    return ((np.triu if attrs["upper"] else np.tril)(arrays[0], attrs["diagonal"]),)


def _compute_triangle(call: OpCall) -> te.Tensor:
    (data,) = call.present
    x, diagonal, upper = data.tensor(), int(call.attrs["diagonal"]), call.attrs["upper"]

    def build_triangle_element(*index: Expr) -> Expr:
        limit = index[-2] + diagonal
        kept = index[-1] >= limit if upper else index[-1] <= limit
        return ir.select(kept, x[index], ir.const(0, data.type.dtype))

    return te.compute(data.type.shape, build_triangle_element, "triangle")


def _make_triangle_test_cases() -> Iterable[Case]:
    for shape, dtype in (((3, 4), "int64"), ((2, 4, 3), "float32"), ((1, 1), "bool")):
        for diagonal in (0, 1, -1, 9, -9):
            for upper in (True, False):
                attrs = {"diagonal": diagonal, "upper": upper}
                yield Case(attrs, (TensorType(shape, dtype),), name=f"{shape} {diagonal}")


PLACES_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "reverse",
        gradient=build_reverse_gradient,
        attrs={"axes": some_axes("axes that are reversed")},
        axes=map_along_axes,
        moves=True,
        infer=_infer_reverse_types,
        reference=lambda attrs, arrays: (np.ascontiguousarray(np.flip(arrays[0], attrs["axes"])),),
        compute=_compute_reverse,
        cases=_make_reverse_test_cases,
        operand_names=("data",),
    ),
    OpDef(
        "mirror_pad",
        gradient=build_mirror_pad_gradient,
        attrs={
            "padding": int_pairs_by_axis("elements before and behind each axis"),
            "mode": choice("rule for the values of the padding", "reflect", "symmetric", "edge", "wrap"),
        },
        axes=map_padding,
        moves=True,
        infer=_infer_mirror_pad_types,
        reference=_evaluate_mirror_pad_reference,
        compute=_compute_mirror_pad,
        cases=_make_mirror_pad_test_cases,
        operand_names=("data",),
    ),
    OpDef(
        "broadcast_to",
        gradient=build_broadcast_gradient,
        attrs={"shape": result_extents("of the result")},
        axes=lambda attrs, types: (map_broadcast(types[0], attrs["shape"], len(attrs["shape"])),),
        moves=True,
        infer=_infer_broadcast_to_types,
        reference=lambda attrs, arrays: (np.broadcast_to(arrays[0], attrs["shape"]).copy(),),
        compute=_compute_broadcast_to,
        cases=_make_broadcast_to_test_cases,
        operand_names=("data",),
    ),
    OpDef(
        "triangle",
        gradient=build_triangle_gradient,
        infer=_infer_triangle_types,
        reference=_evaluate_triangle_reference,
        compute=_compute_triangle,
        cases=_make_triangle_test_cases,
        attrs={
            "diagonal": integer("diagonal that bounds the triangle; positive numbers are above the main diagonal", 0),
            "upper": flag("True: elements above the diagonal are kept; False: those below", True),
        },
        operand_names=("data",),
    ),
)


# ---- Sequences: ``reverse_sequence`` and ``cache_update`` (the cache of keys and values of attention).
# Sources: ONNX ReverseSequence, TensorScatter.


def _infer_reverse_sequence_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, lengths = types
    batch, time = attrs["batch_axis"], attrs["time_axis"]
    inside = batch != time and 0 <= min(batch, time) <= max(batch, time) < len(data.shape)
    if not inside or lengths.shape != (data.shape[batch],):
        raise ModelError(
            "reverse_sequence: batch_axis and time_axis must be two axes, and lengths one number for each batch; "
            f"got data {data.shape}, lengths {lengths.shape}, batch_axis={batch} and time_axis={time}"
        )
    return (TensorType(data.shape, data.dtype),)


def _evaluate_reverse_sequence_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, lengths = arrays
    axes = (attrs["batch_axis"], attrs["time_axis"])
    result, source = (np.moveaxis(array, axes, (0, 1)) for array in (data.copy(), data))
    for row, length in enumerate(np.clip(lengths, 0, data.shape[attrs["time_axis"]])):
        result[row, :length] = source[row, :length][::-1]
    return (np.ascontiguousarray(np.moveaxis(result, (0, 1), axes)),)


def _compute_reverse_sequence(call: OpCall) -> te.Tensor:
    data, lengths = call.present
    batch, time = call.attrs["batch_axis"], call.attrs["time_axis"]
    x, ends, extent = data.tensor(), lengths.tensor(), data.type.shape[time]

    def build_reversed_element(*index: Expr) -> Expr:
        length = ir.cast("int32", ir.clamp(ends[index[batch]], 0, extent))
        reversed_index = clamp_index(length - 1 - index[time], extent)
        place = tuple(reversed_index if k == time else i for k, i in enumerate(index))
        return ir.select(index[time] < length, x[place], x[index])

    return te.compute(data.type.shape, build_reversed_element, "turned")


def _make_reverse_sequence_test_cases() -> Iterable[Case]:
    lengths = np.array([1, 4, 0], np.int64)
    for shape, batch, time in (((4, 3), 1, 0), ((3, 4, 2), 0, 1), ((2, 3, 2, 4), 1, 3)):
        types = (TensorType(shape, "float32"), TensorType((3,), "int64"))
        yield Case({"batch_axis": batch, "time_axis": time}, types, arrays=(None, lengths), name=str(shape))


def _infer_cache_update_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    cache, update, starts = types
    axis = attrs["axis"]
    fits = len(cache.shape) == len(update.shape) and 0 < axis < len(cache.shape)
    if not fits or any(c != u for k, (c, u) in enumerate(zip(cache.shape, update.shape, strict=True)) if k != axis):
        raise ModelError(
            "cache_update: cache and update may differ along axis only, and axis may not be 0; got cache "
            f"{cache.shape}, update {update.shape} and axis={axis}"
        )
    if starts.shape != cache.shape[:1] or starts.dtype not in INDICES or update.dtype != cache.dtype:
        raise ModelError(
            f"cache_update: operands have wrong types; got cache {cache.dtype}, update {update.dtype} and starts "
            f"{starts.dtype} {starts.shape}, expected the same dtype for cache and update, and starts "
            f"{' or '.join(INDICES)} {cache.shape[:1]}"
        )
    return (TensorType(cache.shape, cache.dtype),)


def _evaluate_cache_update_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    cache, update, starts = arrays
    axis, result = attrs["axis"], arrays[0].copy()
    extent = cache.shape[axis]
    for row, start in enumerate(starts):
        for k in range(update.shape[axis]):
            place = int(start) + k
            if attrs["circular"] or 0 <= place < extent:
                result[row].swapaxes(0, axis - 1)[place % extent] = update[row].swapaxes(0, axis - 1)[k]
    return (result,)


def _compute_cache_update(call: OpCall) -> te.Tensor:
    """Build a loop over the cache. An element comes from the update if the update has a row for its position, else it
    is unchanged."""
    cache, update, starts = call.present
    axis = call.attrs["axis"]
    x, new, first = cache.tensor(), update.tensor(), starts.tensor()
    extent, count = cache.type.shape[axis], update.type.shape[axis]

    def build_updated_element(*index: Expr) -> Expr:
        start: Expr = first[index[0]]
        start = start % extent if call.attrs["circular"] else ir.clamp(start, -count, extent)
        row = index[axis] - ir.cast("int32", start)
        if call.attrs["circular"]:
            row = ir.select(row < 0, row + extent, row)
        inside = ir.Bin("and", row >= 0, row < count)
        place = tuple(clamp_index(row, count) if k == axis else i for k, i in enumerate(index))
        return ir.select(inside, new[place], x[index])

    return te.compute(cache.type.shape, build_updated_element, "updated")


def _make_cache_update_test_cases() -> Iterable[Case]:
    starts = np.array([1, 3], np.int64)
    for circular in (True, False):
        for shape, update, axis in (((2, 4, 3), (2, 2, 3), 1), ((2, 1, 4), (2, 1, 3), 2)):
            types = (TensorType(shape, "float32"), TensorType(update, "float32"), TensorType((2,), "int64"))
            yield Case({"axis": axis, "circular": circular}, types, arrays=(None, None, starts), name=f"{shape}")


SEQUENCES_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "reverse_sequence",
        attrs={"time_axis": one_axis(), "batch_axis": one_axis()},
        infer=_infer_reverse_sequence_types,
        reference=_evaluate_reverse_sequence_reference,
        compute=_compute_reverse_sequence,
        cases=_make_reverse_sequence_test_cases,
        constants={1: BOUNDED},
        moves=True,
        operand_names=("data", "lengths"),
    ),
    OpDef(
        "cache_update",
        infer=_infer_cache_update_types,
        reference=_evaluate_cache_update_reference,
        compute=_compute_cache_update,
        cases=_make_cache_update_test_cases,
        constants={2: BOUNDED},
        attrs={"axis": one_axis(), "circular": flag("True if positions behind the end continue at the beginning")},
        operand_names=("cache", "update", "starts"),
    ),
)


OPERATORS = (*PLACES_OPERATORS, *SEQUENCES_OPERATORS)
