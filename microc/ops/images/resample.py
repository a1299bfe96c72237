"""``resample``: every element along some axes is a weighted sum of a few elements, or one of them.

Which elements and with what weights is known when compiling, so that any rule of resizing (nearest, linear, cubic; corners or
centres aligned) is a pair of tables per axis: indices (out, taps), and weights of the same shape unless every index stands alone.
Integers are weighted by integers and scaled by 2**-``shift``, rounded half away from zero.

Source: TFLite ``reference/resize_bilinear.h`` (ResizeBilinearInteger), ``resize_nearest_neighbor.h``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from microc import dtypes, te
from microc.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.attributes import integer, some_axes
from microc.ops.axes import along_axes
from microc.ops.registry import Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Expr
from microc.tir.names import ACC

INDEX_DTYPES = ("int16", "int32")


def _tables(attrs: Mapping[str, Any], operands: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Index tables and weight tables (none where elements are picked), one for every axis."""
    count = len(attrs["axes"])
    return operands[1 : 1 + count], operands[1 + count :]


def _infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, axes = types[0], attrs["axes"]
    indices, weights = _tables(attrs, types)
    if not axes or sorted(set(axes)) != list(axes) or not 0 <= axes[0] <= axes[-1] < len(data.shape) or 0 in data.shape:
        raise ModelError(f"resample of shape {data.shape} along axes {axes}")
    if len(indices) != len(axes) or len(weights) not in (0, len(axes)):
        raise ModelError(f"resample along {len(axes)} axes with {len(types) - 1} tables")
    if any(kind.dtype not in INDEX_DTYPES or len(kind.shape) != 2 for kind in indices):
        raise ModelError("resample with index tables that are not int16 or int32 of two axes")
    if any(kind.shape != index.shape for kind, index in zip(weights, indices, strict=False)):
        raise ModelError("resample with weights for other taps than indices")
    if not weights and any(kind.shape[1] != 1 for kind in indices):
        raise ModelError("resample of several elements without weights")
    shape = list(data.shape)
    for axis, kind in zip(axes, indices, strict=True):
        shape[axis] = kind.shape[0]
    return (TensorType(tuple(shape), data.dtype),)


def _reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    """Integers axis after axis, in int64."""
    data, (indices, weights) = arrays[0], _tables(attrs, arrays)
    if not weights:
        for axis, index in zip(attrs["axes"], indices, strict=True):
            data = np.take(data, index[:, 0], axis=axis)
        return (data,)
    if data.dtype.kind == "f":
        return (_weighted(attrs["axes"], data, indices, weights),)
    total = data.astype(np.int64)
    for axis, index, weight in zip(attrs["axes"], indices, weights, strict=True):
        factors = weight.astype(total.dtype).reshape(*weight.shape, *(1,) * (total.ndim - axis - 1))
        total = (np.take(total, index, axis=axis) * factors).sum(axis=axis + 1)
    half = 1 << attrs["shift"] >> 1
    return ((np.sign(total) * (abs(total) + half >> attrs["shift"])).astype(data.dtype),)


def _weighted(axes: Sequence[int], data: Array, indices: Sequence[Array], weights: Sequence[Array]) -> Array:
    """Sums of floats tap by tap in their dtype, as the loops take them: ties of quantised results hang on the last bit."""
    total: Array | None = None
    for taps in np.ndindex(*(weight.shape[1] for weight in weights)):
        factor, part = np.ones((), data.dtype), data
        for axis, index, weight, tap in zip(axes, indices, weights, taps, strict=True):
            factor = factor * weight[:, tap].reshape(-1, *(1,) * (data.ndim - axis - 1))
            part = np.take(part, index[:, tap], axis=axis)
        total = part * factor if total is None else total + part * factor
    assert total is not None
    return total


def _compute(call: OpCall) -> te.Tensor:
    operands = [operand for operand in call.operands if operand is not None]
    x, axes = operands[0].tensor(), call.attrs["axes"]
    indices, weights = ([table.tensor() for table in tables] for tables in _tables(call.attrs, operands))
    shape, dtype = call.out_types[0].shape, x.dtype

    def place(index: Sequence[Expr], taps: Sequence[Expr]) -> tuple[Expr, ...]:
        found = list(index)
        for axis, table, tap in zip(axes, indices, taps, strict=True):
            found[axis] = ir.cast("int32", table[index[axis], tap])
        return tuple(found)

    if not weights:
        return te.compute(shape, lambda *index: x[place(index, [ir.const(0, "int32")] * len(axes))], "picked")
    taps = [te.reduce_axis(table.shape[1], f"k{k}") for k, table in enumerate(indices)]
    wide = dtype if dtypes.is_float(dtype) else "int32" if dtypes.nbytes(dtype) == 1 else "int64"

    def element(*index: Expr) -> Expr:
        parts = [
            ir.cast(wide, table[index[axis], tap.var]) for axis, table, tap in zip(axes, weights, taps, strict=True)
        ]
        factor = reduce(lambda a, b: a * b, parts)
        return te.sum_reduce(ir.cast(wide, x[place(index, [tap.var for tap in taps])]) * factor, *taps)

    acc = te.compute(shape, element, ACC)
    if dtypes.is_float(dtype):
        return acc
    half = 1 << call.attrs["shift"] >> 1

    def rounded(*index: Expr) -> Expr:
        total = acc[index]
        nearest = total + ir.select(total > 0, ir.const(half, wide), -half)
        return ir.cast(dtype, ir.binary("truncdiv", nearest, 1 << call.attrs["shift"]))

    return te.compute(shape, rounded, "rounded")


def _cases() -> Iterable[Case]:
    rows, columns = np.array([[0], [0], [2], [1]], np.int16), np.array([[3], [1]], np.int32)
    for dtype in ("float32", "int8", "bool"):
        kinds = (TensorType((2, 3, 4, 3), dtype), TensorType((4, 1), "int16"), TensorType((2, 1), "int32"))
        yield Case({"axes": (1, 2), "shift": 0}, kinds, (1, 2), (None, rows, columns), name=f"picked {dtype}")
    pairs = np.array([[0, 1], [1, 2], [2, 2]], np.int16)
    for dtype, weight, one in (("float32", "float32", 1.0), ("int8", "int16", 1024), ("int16", "int16", 1024)):
        share = np.array([[0.25, 0.75], [0.5, 0.5], [1.0, 0.0]]) * one
        tables = (pairs, share.astype(weight))
        for shape, axes in (((1, 3, 3, 2), (1, 2)), ((3,), (0,)), ((2, 3), (1,))):
            types: tuple[TensorType, ...] = (
                TensorType(shape, dtype),
                *(TensorType((3, 2), "int16"),) * len(axes),
                *(TensorType((3, 2), weight),) * len(axes),
            )
            arrays = (None, *tables[:1] * len(axes), *tables[1:] * len(axes))
            consts = tuple(range(1, len(types)))
            attrs = {"axes": axes, "shift": 10 * len(axes)}
            yield Case(attrs, types, consts, arrays, tolerance=2e-6, name=f"{dtype} {shape}")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "resample",
        infer=_infer,
        reference=_reference,
        compute=_compute,
        cases=_cases,
        attrs={
            "axes": some_axes("along which is resampled, one table each", in_order=True),
            "shift": integer("of integers: bits of the weights' sum", 0, least=0),
        },
        axes=along_axes,
        operand_names=("data",),
    ),
)
