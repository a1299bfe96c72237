"""Parts of tensors that begin where data say: ``dynamic_slice``, ``dynamic_update_slice``. The beginning is clamped so that the
part lies inside. Source: TFLite ``dynamic_update_slice.cc``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.attributes import integers
from microc.ops.constants import BOUNDED
from microc.ops.moving.places import check_indices, clamped_index
from microc.ops.registry import Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var


def _check_begin(name: str, attrs: Mapping[str, Any], data: TensorType, begin: TensorType, size: Sequence[int]) -> None:
    check_indices(name, begin)
    if begin.shape != (len(data.shape),) or len(size) != len(data.shape):
        raise ModelError(f"{name} of shape {data.shape} from {begin.shape} indices on")
    if any(not 1 <= part <= extent for part, extent in zip(size, data.shape, strict=True)):
        raise ModelError(f"{name} of {tuple(size)} elements of shape {data.shape}")


def _starts(begin: Any, shape: Sequence[int], size: Sequence[int]) -> list[int]:
    return [int(np.clip(b, 0, extent - part)) for b, extent, part in zip(begin, shape, size, strict=True)]


def _infer_dynamic_slice(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    _check_begin("dynamic_slice", attrs, types[0], types[1], attrs["size"])
    return (TensorType(tuple(attrs["size"]), types[0].dtype),)


def _reference_dynamic_slice(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, begin = arrays
    starts = _starts(begin, data.shape, attrs["size"])
    return (data[tuple(slice(s, s + part) for s, part in zip(starts, attrs["size"], strict=True))].copy(),)


def _compute_dynamic_slice(call: OpCall) -> te.Tensor:
    data, begin = call.present
    x, first, size = data.tensor(), begin.tensor(), call.attrs["size"]

    def element(*index: Expr) -> Expr:
        parts = zip(index, data.type.shape, size, strict=True)
        return x[tuple(i + clamped_index(first[k], extent - part + 1) for k, (i, extent, part) in enumerate(parts))]

    return te.compute(tuple(size), element, "part")


def _cases_dynamic_slice() -> Iterable[Case]:
    for shape, begin, size in (((5,), [2], (3,)), ((4, 6), [3, -1], (2, 6)), ((2, 3, 4), [1, 0, 2], (1, 2, 2))):
        indices = np.array(begin, np.int32)
        types = (TensorType(shape, "int8"), TensorType(indices.shape, "int32"))
        yield Case({"size": size}, types, arrays=(None, indices))


def _infer_update(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, update, begin = types
    _check_begin("dynamic_update_slice", attrs, data, begin, update.shape)
    if update.dtype != data.dtype:
        raise ModelError(f"dynamic_update_slice of {update.dtype} into {data.dtype}")
    return (TensorType(data.shape, data.dtype),)


def _reference_update(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, update, begin = arrays
    starts, result = _starts(begin, data.shape, update.shape), data.copy()
    result[tuple(slice(s, s + part) for s, part in zip(starts, update.shape, strict=True))] = update
    return (result,)


def _compute_update(call: OpCall) -> te.Tensor:
    data, update, begin = call.present
    shape, size = data.type.shape, update.type.shape
    x, new, first = data.tensor(), update.tensor(), begin.tensor()

    def element(*index: Expr) -> Expr:
        offsets = [
            i - clamped_index(first[k], extent - part + 1)
            for k, (i, extent, part) in enumerate(zip(index, shape, size, strict=True))
        ]
        inside = ir.all_of(
            condition for offset, part in zip(offsets, size, strict=True) for condition in (offset >= 0, offset < part)
        )
        return x[index] if inside is None else ir.select(inside, new[tuple(offsets)], x[index])

    return te.compute(shape, element, "updated")


def _update_in_place(call: OpCall) -> te.Tensor:
    """The update's elements alone, at their places."""
    data, update, begin = call.present
    shape, size = data.type.shape, update.type.shape

    def build(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (new, first), (out,) = operands, results
        index = tuple(Var(f"i{k}") for k in range(len(size)))
        places = tuple(
            i + clamped_index(first[k], extent - part + 1)
            for k, (i, extent, part) in enumerate(zip(index, shape, size, strict=True))
        )
        return ir.loops(zip(index, size, strict=True), ir.Store(out, places, new[index]))

    return te.extern("write", (update.tensor(), begin.tensor()), (("out", shape, data.type.dtype),), build)[0]


def _cases_update() -> Iterable[Case]:
    for shape, begin, size in (((5,), [2], (2,)), ((4, 6), [9, -1], (1, 6)), ((2, 3, 4), [1, 0, 2], (1, 2, 2))):
        indices = np.array(begin, np.int64)
        types = (TensorType(shape, "int8"), TensorType(size, "int8"), TensorType(indices.shape, "int64"))
        yield Case({}, types, arrays=(None, None, indices))


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "dynamic_slice",
        attrs={"size": integers("of the part", least=0)},
        infer=_infer_dynamic_slice,
        reference=_reference_dynamic_slice,
        compute=_compute_dynamic_slice,
        cases=_cases_dynamic_slice,
        constants={1: BOUNDED},
        operand_names=("data", "begin"),
        edges="What would begin outside begins at the nearest place where the part lies inside",
    ),
    OpDef(
        "dynamic_update_slice",
        infer=_infer_update,
        reference=_reference_update,
        compute=_compute_update,
        update=_update_in_place,
        cases=_cases_update,
        constants={2: BOUNDED},
        operand_names=("data", "update", "begin"),
        edges="What would begin outside begins at the nearest place where the part lies inside",
    ),
)
