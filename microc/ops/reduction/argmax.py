# SPDX-License-Identifier: Apache-2.0
"""Operators ``argmax``, ``argmin`` and ``topk``. Of equal elements the first is selected.

NaN: ``topk`` orders NaN above all numbers, as ONNX Runtime and PyTorch do. In ``argmax`` and ``argmin`` every
comparison with NaN is false, as in TFLite and ONNX Runtime: NaN is skipped, but if the first element is NaN no other
element replaces it.

Sources: TFLite ``reference/arg_min_max.h``, ``topk_v2.cc``; ONNX ArgMax, TopK.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Attr, TensorType
from microc.ops.arithmetic import build_replaces_best_condition, mask_nan_for_argmax
from microc.ops.attributes import INDEX, flag, integer, one_axis
from microc.ops.registry import Case, OpCall, OpDef, map_along_axis, map_unchanged_axes
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var


def _nonnegative_axis(op_name: str, attrs: Mapping[str, Any], data_type: TensorType) -> int:
    """Return the attribute ``axis`` as an index from 0 to rank - 1. Raise ModelError if the data have no such axis, if
    it is empty, or if the data are bool."""
    rank = len(data_type.shape)
    if not -rank <= attrs["axis"] < rank or not data_type.shape[attrs["axis"]] or data_type.dtype == "bool":
        raise ModelError(
            f"{op_name}: axis or dtype are invalid; got axis={attrs['axis']} of {data_type.dtype} {data_type.shape}, "
            "expected a non-empty axis of numbers"
        )
    return int(attrs["axis"] % rank)


def _sizes_before_along_after_axis(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """Return the number of elements before the axis, along the axis, and after it."""
    return prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])


# ---------------------------------------------------------------- argmax, argmin


def _infer_arg_extremum_types(
    op_name: str, attrs: Mapping[str, Any], types: Sequence[TensorType]
) -> tuple[TensorType, ...]:
    axis = _nonnegative_axis(op_name, attrs, types[0])
    shape = list(types[0].shape)
    shape[axis : axis + 1] = [1] if attrs["keepdims"] else []
    return (TensorType(tuple(shape), attrs["out_dtype"]),)


def _evaluate_arg_extremum_reference(
    is_argmax: bool, attrs: Mapping[str, Any], arrays: Sequence[Any]
) -> tuple[Array, ...]:
    x, axis = mask_nan_for_argmax(arrays[0], is_argmax), attrs["axis"]
    find = np.argmax if is_argmax else np.argmin
    if attrs["last"]:
        found = x.shape[axis] - 1 - find(np.flip(x, axis), axis=axis, keepdims=attrs["keepdims"])
    else:
        found = find(x, axis=axis, keepdims=attrs["keepdims"])
    if arrays[0].dtype.kind == "f":
        first = np.take(arrays[0], [0], axis=axis)
        found = np.where(np.isnan(first if attrs["keepdims"] else first.squeeze(axis)), 0, found)
    return (np.asarray(found).astype(attrs["out_dtype"]),)


def _compute_arg_extremum(is_argmax: bool, call: OpCall) -> te.Tensor:
    """Build one pass over the axis that keeps the best element and its index in scalars."""
    data = call.data
    axis = _nonnegative_axis("argmax", call.attrs, data.type)
    outer, extent, inner = _sizes_before_along_after_axis(data.type.shape, axis)
    dtype = call.out_types[0].dtype
    better = "gt" if is_argmax else "lt"
    better = better.replace("t", "e") if call.attrs["last"] else better

    def build_arg_extremum_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x,), (out,) = operands, results
        n, k, i = Var("n"), Var("k"), Var("i")
        if extent == 1:
            return ir.loops([(n, outer), (i, inner)], ir.Store(out, (n, i), ir.const(0, dtype)))
        best, place = Buffer("best", (1,), x.dtype, "register"), Buffer("place", (1,), dtype, "register")
        zero = ir.const(0, "int32")
        first = ir.seq(ir.Store(best, (zero,), x[n, 0, i]), ir.Store(place, (zero,), ir.const(0, dtype)))
        wins = ir.If(
            ir.binary(better, x[n, k + 1, i], best[0]),
            ir.seq(ir.Store(best, (zero,), x[n, k + 1, i]), ir.Store(place, (zero,), ir.cast(dtype, k + 1))),
        )
        rest = ir.For(k, ir.const(extent - 1, "int32"), wins)
        body = ir.seq(first, rest, ir.Store(out, (n, i), place[0]))
        return ir.loops([(n, outer), (i, inner)], ir.Alloc(best, ir.Alloc(place, body)))

    operand = data.tensor((outer, extent, inner))
    return te.extern("search", (operand,), (("out", (outer, inner), dtype),), build_arg_extremum_loops)[0]


def _make_arg_extremum_test_cases() -> Iterable[Case]:
    for shape, axis in (((2, 5, 3), 1), ((7,), 0), ((3, 4), -1), ((4, 1), 1), ((5, 2), 0)):
        for dtype, out in (("float32", "int32"), ("int8", "int64")):
            for last in (False, True):
                attrs: dict[str, Attr] = {"axis": axis, "keepdims": last, "last": last, "out_dtype": out}
                yield Case(attrs, (TensorType(shape, dtype),), name=f"{dtype} {shape}")
    ties = np.array([[3, 1, 3, 1]], np.int8)
    for last in (False, True):
        attrs = {"axis": 1, "keepdims": False, "last": last, "out_dtype": "int32"}
        yield Case(attrs, (TensorType((1, 4), "int8"),), arrays=(ties,), name="ties")


def _define_arg_extremum(op_name: str, is_argmax: bool) -> OpDef:
    """Return the definition of ``argmax`` or ``argmin``."""
    return OpDef(
        op_name,
        infer=lambda attrs, types: _infer_arg_extremum_types(op_name, attrs, types),
        reference=lambda attrs, arrays: _evaluate_arg_extremum_reference(is_argmax, attrs, arrays),
        compute=lambda call: _compute_arg_extremum(is_argmax, call),
        cases=_make_arg_extremum_test_cases,
        edges="NaN is passed over, but where it comes first nothing beats it",
        attrs={
            "axis": one_axis("along which", -1),
            "keepdims": flag("it stays, with one element"),
            "last": flag("of equal elements the last"),
            "out_dtype": INDEX,
        },
        axes=lambda attrs, types: (map_unchanged_axes(len(types[0].shape), (attrs["axis"],), attrs["keepdims"]),),
        operand_names=("data",),
    )


# ---------------------------------------------------------------- topk


def _infer_topk_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    axis = _nonnegative_axis("topk", attrs, types[0])
    shape = list(types[0].shape)
    if not 1 <= attrs["k"] <= shape[axis]:
        raise ModelError(f"topk: k exceeds the elements along the axis; got k={attrs['k']}, expected 1..{shape[axis]}")
    shape[axis] = attrs["k"]
    return (TensorType(tuple(shape), types[0].dtype), TensorType(tuple(shape), attrs["out_dtype"]))


def _evaluate_topk_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = np.moveaxis(arrays[0], attrs["axis"], -1)
    keys = x.astype(np.float64) if x.dtype.kind == "f" else x.astype(object)
    if x.dtype.kind == "f" and attrs["largest"]:
        keys = np.where(np.isnan(keys), np.inf, np.minimum(keys, np.finfo(np.float64).max))
    order = np.argsort(-keys if attrs["largest"] else keys, axis=-1, kind="stable")[..., : attrs["k"]]
    values = np.take_along_axis(x, order, axis=-1)
    found = (np.moveaxis(a, -1, attrs["axis"]) for a in (values, order.astype(attrs["out_dtype"])))
    values, places = (np.ascontiguousarray(a) for a in found)
    return values, places


def _compute_topk(call: OpCall) -> tuple[te.Tensor, ...]:
    """Build a loop over elements that inserts each one in a sorted list of the best k elements so far."""
    data = call.data
    axis, count = _nonnegative_axis("topk", call.attrs, data.type), int(call.attrs["k"])
    outer, extent, inner = _sizes_before_along_after_axis(data.type.shape, axis)
    data_dtype, dtype = data.type.dtype, call.attrs["out_dtype"]
    better = "gt" if call.attrs["largest"] else "lt"

    def build_topk_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x,), (values, places) = operands, results
        n, i, e, j, c = Var("n"), Var("i"), Var("e"), Var("j"), Var("c")
        value, place = Buffer("value", (1,), data_dtype, "register"), Buffer("place", (1,), dtype, "register")
        zero = ir.const(0, "int32")
        held, at = Var("held", data_dtype), Var("at", dtype)
        alike: Expr = value[0].eq(held)
        if dtypes.is_float(data_dtype):
            alike = ir.Bin("or", alike, ir.Bin("and", value[0].ne(value[0]), held.ne(held)))
        earlier = ir.Bin("and", alike, place[0] < at)
        ahead = ir.Bin("or", at < 0, ir.Bin("or", build_replaces_best_condition(better, value[0], held), earlier))
        swap = ir.seq(
            ir.Store(values, (n, j, i), value[0]),
            ir.Store(places, (n, j, i), place[0]),
            ir.Store(value, (zero,), held),
            ir.Store(place, (zero,), at),
        )
        sink = ir.Let(held, values[n, j, i], ir.Let(at, places[n, j, i], ir.If(ahead, swap)))
        enter = ir.seq(ir.Store(value, (zero,), x[n, e, i]), ir.Store(place, (zero,), ir.cast(dtype, e)))
        each = ir.Alloc(value, ir.Alloc(place, ir.seq(enter, ir.For(j, ir.const(count, "int32"), sink))))
        empty = ir.seq(
            ir.Store(values, (n, c, i), ir.const(0, data_dtype)), ir.Store(places, (n, c, i), ir.const(-1, dtype))
        )
        body = ir.seq(ir.For(c, ir.const(count, "int32"), empty), ir.For(e, ir.const(extent, "int32"), each))
        return ir.loops([(n, outer), (i, inner)], body)

    shape = (outer, count, inner)
    return te.extern(
        "search",
        (data.tensor((outer, extent, inner)),),
        (("values", shape, data_dtype), ("places", shape, dtype)),
        build_topk_loops,
    )


def _make_topk_test_cases() -> Iterable[Case]:
    for shape, axis, k in (((2, 6), -1, 3), ((5,), 0, 5), ((2, 4, 3), 1, 1), ((4, 2), 0, 2)):
        for dtype, out in (("float32", "int32"), ("int8", "int64")):
            for largest in (True, False):
                attrs: dict[str, Attr] = {"axis": axis, "k": k, "largest": largest, "out_dtype": out}
                yield Case(attrs, (TensorType(shape, dtype),), name=f"{dtype} {shape}")
    ties = np.array([[2, 9, 2, 9, 9, 1]], np.int8)
    for largest in (True, False):
        attrs = {"axis": 1, "k": 4, "largest": largest, "out_dtype": "int32"}
        yield Case(attrs, (TensorType((1, 6), "int8"),), arrays=(ties,), name="ties")


OPERATORS: tuple[OpDef, ...] = (
    _define_arg_extremum("argmax", True),
    _define_arg_extremum("argmin", False),
    OpDef(
        "topk",
        infer=_infer_topk_types,
        reference=_evaluate_topk_reference,
        compute=_compute_topk,
        cases=_make_topk_test_cases,
        edges="NaN is larger than any number",
        attrs={
            "k": integer("how many", least=0),
            "axis": one_axis("along which", -1),
            "largest": flag("or the smallest", True),
            "out_dtype": INDEX,
        },
        axes=map_along_axis,
        operand_names=("data",),
    ),
)
