"""Elements chosen one by one along an axis: ``gather_elements``, ``scatter_elements``. Indices that lie outside are clamped.
Sources: ONNX GatherElements, ScatterElements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.attributes import REDUCTION, one_axis
from microc.ops.constants import BOUNDED
from microc.ops.elementwise.pair_functions import SCATTERED
from microc.ops.moving.places import INDICES, clamped_index
from microc.ops.numbers import compute_dtype
from microc.ops.registry import Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var


def _wrapped(index: Expr, extent: int) -> Expr:
    """An index that counts from the end where it is negative, within the axis."""
    return clamped_index(ir.select(index < 0, index + extent, index), extent)


def _wrapped_array(indices: Array, extent: int) -> Array:
    return np.clip(np.where(indices < 0, indices + extent, indices), 0, extent - 1)


def _check(name: str, attrs: Mapping[str, Any], data: TensorType, indices: TensorType) -> None:
    axis, rank = attrs["axis"], len(data.shape)
    fits = 0 <= axis < rank == len(indices.shape) and 0 not in data.shape
    others = [k for k in range(rank) if k != axis]
    if not fits or any(indices.shape[k] > data.shape[k] for k in others) or indices.dtype not in INDICES:
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
    data, indices = call.present
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
        for dtype in INDICES:
            indices = np.array(places, dtype)
            types = (TensorType(shape, "float32"), TensorType(indices.shape, dtype))
            yield Case({"axis": axis}, types, arrays=(None, indices), name=f"{shape} {dtype}")


def _infer_scatter(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, indices, updates = types
    _check("scatter_elements", attrs, data, indices)
    if (updates.shape, updates.dtype) != (indices.shape, data.dtype):
        raise ModelError(f"scatter_elements of {updates.dtype} {updates.shape} by {attrs['reduction']!r}")
    return (TensorType(data.shape, data.dtype),)


def _reference_scatter(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, indices, updates = arrays
    axis, result = attrs["axis"], arrays[0].copy()
    at: list[Any] = list(np.indices(indices.shape, sparse=True))
    at[axis] = _wrapped_array(indices, data.shape[axis])
    if attrs["reduction"]:
        reduce: Any = SCATTERED[attrs["reduction"]].array
        reduce.at(result, tuple(at), updates)
    else:
        for place in np.ndindex(indices.shape):
            where = list(place)
            where[axis] = int(at[axis][place])
            result[tuple(where)] = updates[place]
    return (result,)


def _compute_scatter(call: OpCall) -> te.Tensor:
    """The data copied, then one update after the other."""
    data, indices, updates = call.present
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
            combined = SCATTERED[reduction].scalar(ir.cast(compute, out[place]), ir.cast(compute, value))
            value = ir.cast(kind.dtype, combined)
        update = ir.loops(zip(index, indices.type.shape, strict=True), ir.Store(out, place, value))
        return ir.seq(copy, update)

    tensors = tuple(operand.tensor() for operand in (data, indices, updates))
    return te.extern("scatter", tensors, (("out", kind.shape, kind.dtype),), build)[0]


def _cases_scatter() -> Iterable[Case]:
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


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "gather_elements",
        attrs={"axis": one_axis()},
        infer=_infer_gather,
        reference=_reference_gather,
        compute=_compute_gather,
        cases=_cases_gather,
        constants={1: BOUNDED},
        moves=True,
        operand_names=("data", "indices"),
        edges="Negative places count from the end; beyond the ends the nearest element is read",
    ),
    OpDef(
        "scatter_elements",
        infer=_infer_scatter,
        reference=_reference_scatter,
        compute=_compute_scatter,
        cases=_cases_scatter,
        constants={1: BOUNDED},
        attrs={"axis": one_axis(), "reduction": REDUCTION},
        operand_names=("data", "indices", "updates"),
        edges="Negative places count from the end; beyond the ends the nearest element is written; NaN stays",
    ),
)
