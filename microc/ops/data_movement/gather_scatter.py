# SPDX-License-Identifier: Apache-2.0
"""Operators with run-time indices: dynamic slices, gathers, scatters and one-hot encoding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import te
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.arithmetic import computation_dtype
from microc.ops.attributes import REDUCTION, flag, integer, integers, one_axis
from microc.ops.constants import BOUNDED
from microc.ops.data_movement.rearrange import (
    INDICES,
    check_index_dtype,
    clamp_index,
    wrap_index,
    wrap_index_array,
)
from microc.ops.elementwise.scalar_functions import SCATTERED
from microc.ops.gradients.rules import build_gather_elements_gradient, build_gather_nd_gradient
from microc.ops.registry import Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

# ---- Slices that begin at run-time indices: ``dynamic_slice``, ``dynamic_update_slice``. The start is clamped so that the slice
# is within the data. Source: TFLite ``dynamic_update_slice.cc``.


def _check_slice_begin(
    op_name: str, attrs: Mapping[str, Any], data_type: TensorType, begin_type: TensorType, slice_extents: Sequence[int]
) -> None:
    """Raise ModelError unless the operand ``begin`` and ``slice_extents`` have one number for each axis, and the slice
    fits in the data."""
    check_index_dtype(op_name, begin_type)
    if begin_type.shape != (len(data_type.shape),) or len(slice_extents) != len(data_type.shape):
        raise ModelError(
            f"{op_name}: begin and slice extents need one number for each axis of the data; got begin of shape "
            f"{begin_type.shape} and {len(slice_extents)} extents for data {data_type.shape}"
        )
    if any(not 1 <= part <= extent for part, extent in zip(slice_extents, data_type.shape, strict=True)):
        raise ModelError(
            f"{op_name}: slice extents are out of range; got {tuple(slice_extents)}, expected 1 or more, "
            f"and at most {data_type.shape}"
        )


def _slice_at(begins: Any, shape: Sequence[int], slice_extents: Sequence[int]) -> tuple[slice, ...]:
    """Return the slice of ``slice_extents`` elements at ``begins``, moved so that it is within the data."""
    rows = zip(begins, shape, slice_extents, strict=True)
    starts = ((int(np.clip(begin, 0, extent - part)), part) for begin, extent, part in rows)
    return tuple(slice(start, start + part) for start, part in starts)


def _build_slice_starts(
    begins: Buffer | te.Tensor, shape: Sequence[int], slice_extents: Sequence[int]
) -> tuple[Expr, ...]:
    """Build the start of the slice along each axis, clamped so that ``slice_extents`` elements are within the data."""
    parts = enumerate(zip(shape, slice_extents, strict=True))
    return tuple(clamp_index(begins[k], extent - part + 1) for k, (extent, part) in parts)


def _infer_dynamic_slice_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    _check_slice_begin("dynamic_slice", attrs, types[0], types[1], attrs["size"])
    return (TensorType(tuple(attrs["size"]), types[0].dtype),)


def _evaluate_dynamic_slice_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, begin = arrays
    return (data[_slice_at(begin, data.shape, attrs["size"])].copy(),)


def _compute_dynamic_slice(call: OpCall) -> te.Tensor:
    data, begin = call.present
    x, size = data.tensor(), call.attrs["size"]
    starts = _build_slice_starts(begin.tensor(), data.type.shape, size)

    def build_slice_element(*index: Expr) -> Expr:
        return x[tuple(i + start for i, start in zip(index, starts, strict=True))]

    return te.compute(tuple(size), build_slice_element, "part")


def _make_dynamic_slice_test_cases() -> Iterable[Case]:
    for shape, begin, size in (((5,), [2], (3,)), ((4, 6), [3, -1], (2, 6)), ((2, 3, 4), [1, 0, 2], (1, 2, 2))):
        indices = np.array(begin, np.int32)
        types = (TensorType(shape, "int8"), TensorType(indices.shape, "int32"))
        yield Case({"size": size}, types, arrays=(None, indices))


def _infer_dynamic_update_slice_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, update, begin = types
    _check_slice_begin("dynamic_update_slice", attrs, data, begin, update.shape)
    if update.dtype != data.dtype:
        raise ModelError(
            f"dynamic_update_slice: update and data must have the same dtype; got update {update.dtype}, expected "
            f"{data.dtype}"
        )
    return (TensorType(data.shape, data.dtype),)


def _evaluate_dynamic_update_slice_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, update, begin = arrays
    result = data.copy()
    result[_slice_at(begin, data.shape, update.shape)] = update
    return (result,)


def _compute_dynamic_update_slice(call: OpCall) -> te.Tensor:
    data, update, begin = call.present
    shape, size = data.type.shape, update.type.shape
    x, new, starts = data.tensor(), update.tensor(), _build_slice_starts(begin.tensor(), shape, size)

    def build_updated_element(*index: Expr) -> Expr:
        offsets = [i - start for i, start in zip(index, starts, strict=True)]
        inside = ir.all_of(
            condition for offset, part in zip(offsets, size, strict=True) for condition in (offset >= 0, offset < part)
        )
        return x[index] if inside is None else ir.select(inside, new[tuple(offsets)], x[index])

    return te.compute(shape, build_updated_element, "updated")


def _update_in_place(call: OpCall) -> te.Tensor:
    """Build the loops that write only the elements of the update into the data, in place."""
    data, update, begin = call.present
    shape, size = data.type.shape, update.type.shape

    def build_update_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (new, first), (out,) = operands, results
        index = tuple(Var(f"i{k}") for k in range(len(size)))
        starts = _build_slice_starts(first, shape, size)
        target = tuple(i + start for i, start in zip(index, starts, strict=True))
        return ir.loops(zip(index, size, strict=True), ir.Store(out, target, new[index]))

    return te.extern(
        "write", (update.tensor(), begin.tensor()), (("out", shape, data.type.dtype),), build_update_loops
    )[0]


def _make_dynamic_update_slice_test_cases() -> Iterable[Case]:
    for shape, begin, size in (((5,), [2], (2,)), ((4, 6), [9, -1], (1, 6)), ((2, 3, 4), [1, 0, 2], (1, 2, 2))):
        indices = np.array(begin, np.int64)
        types = (TensorType(shape, "int8"), TensorType(size, "int8"), TensorType(indices.shape, "int64"))
        yield Case({}, types, arrays=(None, None, indices))


DYNAMIC_SLICES_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "dynamic_slice",
        attrs={"size": integers("size of the part on each axis", least=0)},
        infer=_infer_dynamic_slice_types,
        reference=_evaluate_dynamic_slice_reference,
        compute=_compute_dynamic_slice,
        cases=_make_dynamic_slice_test_cases,
        constants={1: BOUNDED},
        operand_names=("data", "begin"),
        edges="A start whose part is not inside is moved to the nearest one whose part is",
    ),
    OpDef(
        "dynamic_update_slice",
        infer=_infer_dynamic_update_slice_types,
        reference=_evaluate_dynamic_update_slice_reference,
        compute=_compute_dynamic_update_slice,
        update=_update_in_place,
        cases=_make_dynamic_update_slice_test_cases,
        constants={2: BOUNDED},
        operand_names=("data", "update", "begin"),
        edges="A start whose part is not inside is moved to the nearest one whose part is",
    ),
)


# ---- ``gather_elements``, ``scatter_elements``: every element has its own index along an axis. Indices out of range are clamped.
# Sources: ONNX GatherElements, ScatterElements.


def wrap_and_clamp_index(index: Expr, extent: int) -> Expr:
    """Return a valid index along an axis of ``extent`` elements: negative indices count from the end, and the result is
    clamped."""
    return clamp_index(ir.select(index < 0, index + extent, index), extent)


def _check_element_indices(
    op_name: str, attrs: Mapping[str, Any], data_type: TensorType, indices_type: TensorType
) -> None:
    """Raise ModelError unless the indices are integers, of the data's rank, and larger than the data at most along the
    attribute ``axis``."""
    axis, rank = attrs["axis"], len(data_type.shape)
    fits = 0 <= axis < rank == len(indices_type.shape) and 0 not in data_type.shape
    others = [k for k in range(rank) if k != axis]
    if not fits or any(indices_type.shape[k] > data_type.shape[k] for k in others) or indices_type.dtype not in INDICES:
        raise ModelError(
            f"{op_name}: data, indices and axis disagree; got data {data_type.shape}, indices {indices_type.dtype} "
            f"{indices_type.shape} and axis={axis}, expected as many axes in both, and indices of {' or '.join(INDICES)} "
            "that exceed the data along the axis only"
        )


def _infer_gather_elements_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    _check_element_indices("gather_elements", attrs, types[0], types[1])
    return (TensorType(types[1].shape, types[0].dtype),)


def _evaluate_gather_elements_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, indices = arrays
    axis = attrs["axis"]
    part = data[tuple(slice(None) if k == axis else slice(e) for k, e in enumerate(indices.shape))]
    return (np.take_along_axis(part, wrap_index_array(indices, data.shape[axis]), axis),)


def _compute_gather_elements(call: OpCall) -> te.Tensor:
    data, indices = call.present
    axis = call.attrs["axis"]
    x, at = data.tensor(), indices.tensor()

    def build_gathered_element(*index: Expr) -> Expr:
        place = wrap_and_clamp_index(at[index], data.type.shape[axis])
        return x[(*index[:axis], place, *index[axis + 1 :])]

    return te.compute(indices.type.shape, build_gathered_element, "gathered")


def _make_gather_elements_test_cases() -> Iterable[Case]:
    for shape, places, axis in (
        ((4,), [3, 0, -1], 0),
        ((3, 4), [[0, 2, 1, -3]], 0),
        ((3, 4), [[0, 3], [-4, 1]], 1),
        ((2, 2, 3), [[[0, 9]], [[1, 2]]], 2),
    ):
        for dtype in INDICES:
            indices = np.array(places, dtype)
            types = (TensorType(shape, "float32"), TensorType(indices.shape, dtype))
            yield Case({"axis": axis}, types, arrays=(None, indices), name=f"{shape} {dtype}")


def _infer_scatter_elements_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, indices, updates = types
    _check_element_indices("scatter_elements", attrs, data, indices)
    if (updates.shape, updates.dtype) != (indices.shape, data.dtype):
        raise ModelError(
            f"scatter_elements: the updates have a wrong type; got {updates.dtype} {updates.shape}, expected "
            f"{data.dtype} {indices.shape}"
        )
    return (TensorType(data.shape, data.dtype),)


def _evaluate_scatter_elements_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, indices, updates = arrays
    axis, result = attrs["axis"], arrays[0].copy()
    at: list[Any] = list(np.indices(indices.shape, sparse=True))
    at[axis] = wrap_index_array(indices, data.shape[axis])
    if attrs["reduction"]:
        reduce: Any = SCATTERED[attrs["reduction"]].evaluate_array
        reduce.at(result, tuple(at), updates)
    else:
        for place in np.ndindex(indices.shape):
            where = list(place)
            where[axis] = int(at[axis][place])
            result[tuple(where)] = updates[place]
    return (result,)


def _compute_scatter_elements(call: OpCall) -> te.Tensor:
    """Build the loops that copy the data and then write the updates."""
    data, indices, updates = call.present
    axis, reduction, tensor_type = call.attrs["axis"], call.attrs["reduction"], data.type
    compute = computation_dtype(tensor_type.dtype)

    def build_scatter_elements_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, at, new), (out,) = operands, results
        copied = [Var(f"i{k}") for k in range(len(tensor_type.shape))]
        index = tuple(Var(f"j{k}") for k in range(len(tensor_type.shape)))
        copy = ir.loops(zip(copied, tensor_type.shape, strict=True), ir.Store(out, tuple(copied), x[tuple(copied)]))
        place = (*index[:axis], wrap_and_clamp_index(at[index], tensor_type.shape[axis]), *index[axis + 1 :])
        value: Expr = new[index]
        if reduction:
            combined = SCATTERED[reduction].build_scalar(ir.cast(compute, out[place]), ir.cast(compute, value))
            value = ir.cast(tensor_type.dtype, combined)
        update = ir.loops(zip(index, indices.type.shape, strict=True), ir.Store(out, place, value))
        return ir.seq(copy, update)

    tensors = tuple(operand.tensor() for operand in (data, indices, updates))
    return te.extern(
        "scatter", tensors, (("out", tensor_type.shape, tensor_type.dtype),), build_scatter_elements_loops
    )[0]


def _make_scatter_elements_test_cases() -> Iterable[Case]:
    for shape, places, axis in (((4,), [3, 0, 3], 0), ((3, 4), [[0, 2, 1, -3]], 0), ((2, 3), [[0, -1], [1, 1]], 1)):
        for reduction in ("", *SCATTERED):
            for dtype in ("float32", "int8"):
                indices = np.array(places, np.int64)
                types = (TensorType(shape, dtype), TensorType(indices.shape, "int64"), TensorType(indices.shape, dtype))
                small = (
                    None if dtype == "float32" else (np.arange(indices.size) % 3).reshape(indices.shape).astype(dtype)
                )
                data = None if dtype == "float32" else (np.arange(np.prod(shape)) % 5 - 2).reshape(shape).astype(dtype)
                arrays = (data, indices, small)
                yield Case({"axis": axis, "reduction": reduction}, types, arrays=arrays, tolerance=1e-6, name=reduction)
    types = (TensorType((2,), "float32"), TensorType((4,), "int32"), TensorType((4,), "float32"))
    arrays = (None, np.array([0, 1, 0, 1], np.int32), np.array([np.nan, 1, 2, np.nan], np.float32))
    for reduction in ("max", "min"):
        yield Case({"axis": 0, "reduction": reduction}, types, arrays=arrays, name=f"NaN {reduction}")


ELEMENTS_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "gather_elements",
        gradient=build_gather_elements_gradient,
        attrs={"axis": one_axis()},
        infer=_infer_gather_elements_types,
        reference=_evaluate_gather_elements_reference,
        compute=_compute_gather_elements,
        cases=_make_gather_elements_test_cases,
        constants={1: BOUNDED},
        moves=True,
        operand_names=("data", "indices"),
        edges="Negative indices count from the end; an index outside reads the nearest element",
    ),
    OpDef(
        "scatter_elements",
        infer=_infer_scatter_elements_types,
        reference=_evaluate_scatter_elements_reference,
        compute=_compute_scatter_elements,
        cases=_make_scatter_elements_test_cases,
        constants={1: BOUNDED},
        attrs={"axis": one_axis(), "reduction": REDUCTION},
        operand_names=("data", "indices", "updates"),
        edges="Negative indices count from the end; an index outside writes the nearest element; NaN is kept",
    ),
)


# ---- ``one_hot``, ``gather_nd``, ``scatter_nd``: elements at run-time indices. Indices out of range are clamped, so that no
# other memory is accessed.
#
# Sources: TFLite ``gather_nd``, ``scatter_nd``; ONNX OneHot, GatherND, ScatterND.


def _infer_one_hot_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Infer the type of the result from the indices and the values ``on`` and ``off``, each a tensor of one element."""
    indices, on, off = types
    rank = len(indices.shape)
    if on.dtype != off.dtype or (on.size, off.size) != (1, 1) or not -rank - 1 <= attrs["axis"] <= rank:
        raise ModelError(
            f"one_hot: on, off or axis are invalid; got on {on.dtype} {on.shape}, off {off.dtype} {off.shape} and "
            f"axis={attrs['axis']}, expected one element each of the same dtype, and axis -{rank + 1}..{rank}"
        )
    if indices.dtype not in (*INDICES, "uint8"):
        raise ModelError(
            f"one_hot: the indices have an unsupported dtype; got {indices.dtype}, expected int32, int64 or uint8"
        )
    axis = attrs["axis"] % (rank + 1)
    return (TensorType((*indices.shape[:axis], attrs["depth"], *indices.shape[axis:]), on.dtype),)


def _evaluate_one_hot_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    indices, on, off = arrays
    axis, depth = attrs["axis"] % (indices.ndim + 1), attrs["depth"]
    wrapped = np.where(indices < 0, indices.astype(np.int64) + depth, indices) if attrs["wrap"] else indices
    places = np.arange(depth).reshape((depth,) + (1,) * (indices.ndim - axis))
    hot = np.expand_dims(wrapped, axis) == places
    return (np.where(hot, on.reshape(()), off.reshape(())).astype(on.dtype),)


def _compute_one_hot(call: OpCall) -> te.Tensor:
    indices, on, off = call.present
    depth, rank = call.attrs["depth"], len(indices.type.shape)
    axis = call.attrs["axis"] % (rank + 1)
    outer, inner = prod(indices.type.shape[:axis]), prod(indices.type.shape[axis:])
    x, high, low = indices.tensor((outer, inner)), on.tensor((1,)), off.tensor((1,))

    def build_one_hot_element(n: Expr, d: Expr, i: Expr) -> Expr:
        index = x[n, i] if indices.type.dtype != "uint8" else ir.cast("int32", x[n, i])
        if call.attrs["wrap"]:
            index = ir.select(index < 0, index + depth, index)
        return ir.select(index.eq(ir.cast(index.dtype, d)), high[0], low[0])

    return te.compute((outer, depth, inner), build_one_hot_element, "hot", ("n", "d", "i"))


def _make_one_hot_test_cases() -> Iterable[Case]:
    for shape, axis, dtype in (((4,), -1, "int32"), ((2, 3), 0, "int64"), ((2, 3), 1, "int32"), ((), 0, "int32")):
        indices = (np.arange(prod(shape)) * 2 - 3).reshape(shape).astype(dtype)
        for wrap in (False, True):
            types = (TensorType(shape, dtype), TensorType((), "float32"), TensorType((1,), "float32"))
            attrs = {"depth": 4, "axis": axis, "wrap": wrap}
            yield Case(attrs, types, arrays=(indices, None, None), name=f"{shape} {axis}")


def _infer_gather_nd_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, indices = types
    check_index_dtype("gather_nd", indices)
    batch = attrs["batch_dims"]
    depth = indices.shape[-1] if indices.shape else 0
    if not indices.shape or data.shape[:batch] != indices.shape[:batch] or batch + depth > len(data.shape):
        raise ModelError(
            f"gather_nd: data and indices disagree; got data {data.shape}, indices {indices.shape} and "
            f"batch_dims={batch}, expected the same batch axes, and a last axis of at most {len(data.shape) - batch} "
            "indices"
        )
    if batch >= len(indices.shape) or 0 in data.shape:
        raise ModelError(
            f"gather_nd: batch_dims={batch} leaves no index axis, or the data are empty; got data "
            f"{data.shape} and indices {indices.shape}"
        )
    return (TensorType((*indices.shape[:-1], *data.shape[batch + depth :]), data.dtype),)


def _build_numpy_index_arrays(data_shape: Sequence[int], indices: Array, batch_axes: int = 0) -> tuple[Array, ...]:
    """Return one index array for each axis of the data, with which numpy selects the elements at ``indices``.

    The last axis of ``indices`` contains the index along each axis after the batch axes. The first ``batch_axes`` axes
    of data and indices correspond."""
    batches = np.indices(indices.shape[:-1], sparse=True)[:batch_axes]
    last_axis = np.moveaxis(indices.astype(np.int64), -1, 0)
    return (*batches, *map(wrap_index_array, last_axis, data_shape[batch_axes:]))


def _evaluate_gather_nd_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, indices = arrays
    return (np.array(data[_build_numpy_index_arrays(data.shape, indices, attrs["batch_dims"])]),)


def _build_flat_row_index(index_tuples: Buffer | te.Tensor, tuple_number: Expr, extents: Sequence[int]) -> Expr:
    """Build the flat index of the row that the tuple of indices ``tuple_number`` selects along axes of ``extents``
    elements.

    Negative indices count from the end; indices out of range are clamped."""
    flat: Expr = ir.const(0, "int32")
    for k, extent in enumerate(extents):
        flat = flat * extent + wrap_index(index_tuples[tuple_number, k], extent)
    return flat


def _compute_gather_nd(call: OpCall) -> te.Tensor:
    data, indices = call.present
    batch, depth = int(call.attrs["batch_dims"]), indices.type.shape[-1]
    shape, extents = data.type.shape, data.type.shape[batch : batch + depth]
    groups, rows = prod(shape[:batch]), prod(indices.type.shape[batch:-1])
    inner = prod(shape[batch + depth :])
    x = data.tensor((groups, prod(extents), inner))
    at = indices.tensor((groups * rows, depth))

    def build_gathered_element(g: Expr, r: Expr, c: Expr) -> Expr:
        return x[g, _build_flat_row_index(at, g * rows + r, extents), c]

    return te.compute((groups, rows, inner), build_gathered_element, "gathered", ("g", "r", "c"))


def _make_gather_nd_test_cases() -> Iterable[Case]:
    for shape, places, batch in (
        ((3, 4), [[0, 1], [2, -1], [-3, 9]], 0),
        ((3, 4), [[2], [0]], 0),
        ((2, 3, 2), [[[1, 0], [2, 1]], [[0, 0], [-1, -1]]], 1),
        ((2, 2, 2, 3), [[[1, 0]], [[0, 1]]], 0),
    ):
        for dtype, data_dtype in (("int32", "int8"), ("int64", "float32")):
            indices = np.array(places, dtype)
            types = (TensorType(shape, data_dtype), TensorType(indices.shape, dtype))
            yield Case({"batch_dims": batch}, types, arrays=(None, indices), name=f"{shape} {data_dtype}")


def _infer_scatter_nd_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, indices, updates = types
    check_index_dtype("scatter_nd", indices)
    depth = indices.shape[-1] if indices.shape else 0
    if not 1 <= depth <= len(data.shape) or updates.shape != (*indices.shape[:-1], *data.shape[depth:]):
        raise ModelError(
            f"scatter_nd: data, indices and updates disagree; got data {data.shape}, indices {indices.shape} and "
            f"updates {updates.shape}, expected updates {(*indices.shape[:-1], *data.shape[depth:])} and "
            f"1..{len(data.shape)} indices in the last axis"
        )
    if 0 in data.shape[:depth] and updates.size:
        raise ModelError(
            f"scatter_nd: the data are empty, so that no index is valid; got updates {updates.shape} into {data.shape}"
        )
    if updates.dtype != data.dtype:
        raise ModelError(
            f"scatter_nd: updates and data must have the same dtype; got updates {updates.dtype}, expected {data.dtype}"
        )
    return (TensorType(data.shape, data.dtype),)


def _evaluate_scatter_nd_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, indices, updates = arrays
    result, at = data.copy(), _build_numpy_index_arrays(data.shape, indices)
    if attrs["reduction"]:
        reduce: Any = SCATTERED[attrs["reduction"]].evaluate_array
        reduce.at(result, at, updates)
    else:
        for place in np.ndindex(indices.shape[:-1]):
            result[tuple(int(axis[place]) for axis in at)] = updates[place]
    return (result,)


def _compute_scatter_nd(call: OpCall) -> te.Tensor:
    """Build the loops that copy the data and then write the updates."""
    data, indices, updates = call.present
    shape, depth, dtype = data.type.shape, indices.type.shape[-1], data.type.dtype
    rows, inner = prod(indices.type.shape[:-1]), prod(shape[depth:])
    compute = computation_dtype(dtype)

    def build_scatter_nd_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, at, new), (out,) = operands, results
        i, j, r, c = Var("i"), Var("j"), Var("r"), Var("c")
        copy = ir.loops([(i, prod(shape[:depth])), (j, inner)], ir.Store(out, (i, j), x[i, j]))
        place, value = _build_flat_row_index(at, r, shape[:depth]), ir.cast(compute, new[r, c])
        if call.attrs["reduction"]:
            value = SCATTERED[call.attrs["reduction"]].build_scalar(ir.cast(compute, out[place, c]), value)
        update = ir.Store(out, (place, c), ir.cast(dtype, value))
        return ir.seq(copy, ir.loops([(r, rows), (c, inner)], update))

    operands = (data.tensor((prod(shape[:depth]), inner)), indices.tensor((rows, depth)), updates.tensor((rows, inner)))
    return te.extern("scatter", operands, (("out", (prod(shape[:depth]), inner), dtype),), build_scatter_nd_loops)[0]


def _make_scatter_nd_test_cases() -> Iterable[Case]:
    for shape, places, dtype in (
        ((4, 3), [[1], [3], [1]], "int32"),
        ((4, 3), [[1, 2], [-1, 0], [1, 2], [0, 0]], "int64"),
        ((5,), [[4], [4], [0]], "int32"),
        ((2, 2, 3), [[[0, 1]], [[1, 1]]], "int32"),
    ):
        indices = np.array(places, dtype)
        updates = (*indices.shape[:-1], *shape[indices.shape[-1] :])
        for reduction in ("", *SCATTERED):
            for data_dtype in ("float32", "int32"):
                types = (
                    TensorType(shape, data_dtype),
                    TensorType(indices.shape, dtype),
                    TensorType(updates, data_dtype),
                )
                arrays = (None, indices, None)
                yield Case({"reduction": reduction}, types, arrays=arrays, tolerance=1e-6, name=f"{shape} {reduction}")
    twice = np.array([[0], [1], [0], [1]], np.int32)
    broken = (TensorType((2,), "float32"), TensorType((4, 1), "int32"), TensorType((4,), "float32"))
    updates_of_each = np.array([np.nan, 1, 2, np.nan], np.float32)
    for reduction in ("max", "min"):
        yield Case({"reduction": reduction}, broken, arrays=(None, twice, updates_of_each), name=f"NaN {reduction}")


INDEXING_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "one_hot",
        infer=_infer_one_hot_types,
        reference=_evaluate_one_hot_reference,
        compute=_compute_one_hot,
        cases=_make_one_hot_test_cases,
        constants={0: BOUNDED},
        attrs={
            "depth": integer("number of elements of the new axis", least=1),
            "axis": integer("position of the new axis in the result", -1),
            "wrap": flag("negative indices count from the end", True),
        },
        operand_names=("indices", "on", "off"),
    ),
    OpDef(
        "gather_nd",
        gradient=build_gather_nd_gradient,
        infer=_infer_gather_nd_types,
        reference=_evaluate_gather_nd_reference,
        compute=_compute_gather_nd,
        cases=_make_gather_nd_test_cases,
        constants={1: BOUNDED},
        moves=True,
        attrs={"batch_dims": integer("number of leading axes that data and indices share", 0, least=0)},
        operand_names=("data", "indices"),
        edges="Negative indices count from the end; an index outside reads the nearest element",
    ),
    OpDef(
        "scatter_nd",
        infer=_infer_scatter_nd_types,
        reference=_evaluate_scatter_nd_reference,
        compute=_compute_scatter_nd,
        cases=_make_scatter_nd_test_cases,
        constants={1: BOUNDED},
        attrs={"reduction": REDUCTION},
        operand_names=("data", "indices", "updates"),
        edges="Negative indices count from the end; an index outside writes the nearest element; NaN is kept",
    ),
)


OPERATORS = (*DYNAMIC_SLICES_OPERATORS, *ELEMENTS_OPERATORS, *INDEXING_OPERATORS)
