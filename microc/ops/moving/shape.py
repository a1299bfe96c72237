"""Operators that move elements and compute nothing: reshape, transpose, slice, pad (concat and gather are in ``concat.py``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import te
from microc.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.attributes import by_axis, extents, integers, number, pairs_by_axis
from microc.ops.axes import AxisMap, padded, reshaped
from microc.ops.constants import number_fault
from microc.ops.moving.concat import CONCAT, GATHER
from microc.ops.registry import Alias, Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Expr
from microc.tir.names import PADDED

# ---------------------------------------------------------------- reshape


def _infer_reshape(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    shape = tuple(attrs["shape"])
    if min(shape, default=0) < 0 or prod(shape) != types[0].size:
        raise ModelError(f"shape {types[0].shape} cannot become {shape}")
    return (TensorType(shape, types[0].dtype),)


def _axes_reshape(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    shape = types[0].shape
    return (tuple(reshaped(shape, attrs["shape"], axis) for axis in range(len(shape))),)


def _reference_reshape(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    return (arrays[0].reshape(attrs["shape"]),)


def _compute_reshape(call: OpCall) -> te.Tensor:
    """A copy, for where the result cannot be a view."""
    data = call.data
    x = data.tensor((data.type.size,))
    return te.compute((data.type.size,), lambda i: x[i], "copy", ("i",))


def _cases_reshape() -> Iterable[Case]:
    yield Case({"shape": (2, 0)}, (TensorType((0, 3), "int8"),), name="empty")
    for before, after in (((2, 3, 4), (6, 4)), ((1,), ()), ((5,), (1, 5, 1))):
        yield Case({"shape": after}, (TensorType(before, "int8"),))
    yield Case({"shape": (4,)}, (TensorType((2, 2), "float32"),))


# ---------------------------------------------------------------- transpose


def _infer_transpose(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    shape, axes = types[0].shape, attrs["axes"]
    if sorted(axes) != list(range(len(shape))):
        raise ModelError(f"axes {axes} are no order of the axes of shape {shape}")
    return (TensorType(tuple(shape[axis] for axis in axes), types[0].dtype),)


def _reference_transpose(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    return (arrays[0].transpose(attrs["axes"]).copy(),)


def merged_axes(shape: Sequence[int], axes: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A transposition of fewer axes with the same effect on memory: axes of one element go, neighbours that stay
    neighbours become one. ``(shape, axes)`` again."""
    order = [axis for axis in axes if shape[axis] != 1]
    runs: list[list[int]] = []
    for axis in order:
        between = range(runs[-1][-1] + 1, axis) if runs else range(0)
        if runs and axis > runs[-1][-1] and all(shape[b] == 1 for b in between):
            runs[-1].append(axis)
        else:
            runs.append([axis])
    if not runs:
        return (1,), (0,)
    first = sorted(run[0] for run in runs)
    extents = {run[0]: prod(shape[axis] for axis in run) for run in runs}
    return tuple(extents[f] for f in first), tuple(first.index(run[0]) for run in runs)


def _compute_transpose(call: OpCall) -> te.Tensor:
    data = call.data
    shape, axes = merged_axes(data.type.shape, call.attrs["axes"])
    x: te.Tensor = data.tensor(shape)

    def element(*index: Expr) -> Expr:
        return x[tuple(index[axes.index(axis)] for axis in range(len(shape)))]

    return te.compute(tuple(shape[axis] for axis in axes), element, "moved")


def _cases_transpose() -> Iterable[Case]:
    for shape, axes in (
        ((2, 3), (1, 0)),
        ((1, 4, 5, 3), (0, 3, 1, 2)),
        ((2, 3, 4, 5), (2, 0, 1, 3)),
        ((2, 3, 4), (0, 1, 2)),
        ((1, 1, 3), (2, 1, 0)),
        ((), ()),
        ((2, 1, 3, 2), (3, 0, 1, 2)),
    ):
        yield Case({"axes": axes}, (TensorType(shape, "int8"),))
    yield Case({"axes": (2, 1, 0)}, (TensorType((2, 3, 2), "float32"),))
    yield Case({"axes": (1, 0)}, (TensorType((2, 3), "bool"),))


# ---------------------------------------------------------------- slice


def _infer_slice(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    shape, begin, end, strides = types[0].shape, attrs["begin"], attrs["end"], attrs["strides"]
    lengths = {len(begin), len(end), len(strides)}
    if lengths != {len(shape)} or any(
        not 0 <= b < e <= extent or s < 1 for b, e, s, extent in zip(begin, end, strides, shape, strict=True)
    ):
        raise ModelError(f"a slice from {begin} to {end} with strides {strides} of shape {shape}")
    extents = tuple(-(-(e - b) // s) for b, e, s in zip(begin, end, strides, strict=True))
    return (TensorType(extents, types[0].dtype),)


def _axes_slice(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    """The axes of which everything is taken."""
    taken = zip(attrs["begin"], attrs["end"], attrs["strides"], types[0].shape, strict=True)
    return (tuple(k if part == (0, part[3], 1, part[3]) else None for k, part in enumerate(taken)),)


def _reference_slice(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    parts = zip(attrs["begin"], attrs["end"], attrs["strides"], strict=True)
    return (arrays[0][tuple(slice(*part) for part in parts)].copy(),)


def _compute_slice(call: OpCall) -> te.Tensor:
    data, begin, strides = call.data, call.attrs["begin"], call.attrs["strides"]
    shape = data.type.shape
    x = data.tensor()

    def element(*index: Expr) -> Expr:
        return x[tuple(i * s + b for i, s, b in zip(index, strides, begin, strict=True))]

    if not shape:
        return te.compute((), lambda: x[()], "part")
    return te.compute(call.out_types[0].shape, element, "part")


def _alias_slice(
    attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]
) -> Alias | None:
    """A slice is one run of memory when it is whole along every axis after the first that it cuts to more than one."""
    if any(s != 1 for s in attrs["strides"]):
        return None
    shape, result = types[0].shape, out_types[0].shape
    free = next((axis for axis, extent in enumerate(result) if extent != 1), len(result))
    if any(result[axis] != shape[axis] for axis in range(free + 1, len(result))):
        return None
    return Alias(source=sum(b * prod(shape[axis + 1 :]) for axis, b in enumerate(attrs["begin"])))


def _cases_slice() -> Iterable[Case]:
    for shape, begin, end, strides in (
        ((5,), (1,), (4,), (1,)),
        ((4, 6), (0, 1), (4, 6), (1, 2)),
        ((1, 5, 5, 3), (0, 1, 0, 2), (1, 5, 5, 3), (1, 3, 2, 1)),
        ((3, 4), (2, 0), (3, 4), (1, 1)),
        ((1,), (0,), (1,), (1,)),
    ):
        yield Case({"begin": begin, "end": end, "strides": strides}, (TensorType(shape, "int8"),))
    yield Case({"begin": (0, 1), "end": (2, 3), "strides": (1, 1)}, (TensorType((2, 3), "float32"),))


# ---------------------------------------------------------------- pad


def _infer_pad(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    shape, padding = types[0].shape, attrs["padding"]
    if len(padding) != len(shape) or any(len(p) != 2 or min(p) < 0 for p in padding):
        raise ModelError(f"padding {padding} of shape {shape}")
    extents = tuple(before + extent + after for extent, (before, after) in zip(shape, padding, strict=True))
    return (TensorType(extents, types[0].dtype),)


def _reference_pad(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = arrays[0]
    return (np.pad(x, attrs["padding"], constant_values=x.dtype.type(attrs["value"])) if x.ndim else x,)


def _compute_pad(call: OpCall) -> te.Tensor:
    data, padding = call.data, call.attrs["padding"]
    shape = data.type.shape
    x, value = data.tensor(), ir.const(call.attrs["value"], data.type.dtype)

    def element(*index: Expr) -> Expr:
        inside = ir.all_of(
            condition
            for i, extent, (before, after) in zip(index, shape, padding, strict=True)
            for condition in (*((i >= before,) if before else ()), *((i < before + extent,) if after else ()))
        )
        read = x[tuple(i - before if before else i for i, (before, _) in zip(index, padding, strict=True))]
        return read if inside is None else ir.select(inside, read, value)

    return te.compute(call.out_types[0].shape, element, PADDED)


def _cases_pad() -> Iterable[Case]:
    for shape, padding, value in (
        ((3,), ((1, 2),), -128),
        ((2, 3), ((0, 0), (2, 0)), 7),
        ((1, 2, 3, 2), ((0, 0), (1, 1), (0, 2), (0, 0)), 0),
        ((2, 2), ((0, 0), (0, 0)), 5),
    ):
        yield Case({"padding": padding, "value": value}, (TensorType(shape, "int8"),))
    yield Case({"padding": ((1, 0),), "value": -1.5}, (TensorType((2,), "float32"),))


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "reshape",
        attrs={"shape": extents("of the result")},
        axes=_axes_reshape,
        moves=True,
        infer=_infer_reshape,
        reference=_reference_reshape,
        compute=_compute_reshape,
        cases=_cases_reshape,
        view=True,
        operand_names=("data",),
    ),
    OpDef(
        "transpose",
        attrs={"axes": integers("of the data, in the result's order", least=0)},
        axes=lambda attrs, types: (tuple(attrs["axes"].index(k) for k in range(len(attrs["axes"]))),),
        moves=True,
        infer=_infer_transpose,
        reference=_reference_transpose,
        compute=_compute_transpose,
        cases=_cases_transpose,
        operand_names=("data",),
    ),
    CONCAT,
    GATHER,
    OpDef(
        "slice",
        attrs={
            "begin": by_axis("the first of each axis", least=0),
            "end": by_axis("behind the last", least=0),
            "strides": by_axis("of each axis", least=1),
        },
        axes=_axes_slice,
        moves=True,
        infer=_infer_slice,
        reference=_reference_slice,
        compute=_compute_slice,
        alias=_alias_slice,
        cases=_cases_slice,
        operand_names=("data",),
    ),
    OpDef(
        "pad",
        infer=_infer_pad,
        reference=_reference_pad,
        compute=_compute_pad,
        cases=_cases_pad,
        sound=(lambda application: number_fault("value", application.attrs["value"], application.types[0].dtype),),
        attrs={
            "padding": pairs_by_axis("elements before and behind each axis"),
            "value": number("what they are, as stored", 0),
        },
        axes=padded,
        operand_names=("data",),
    ),
)
