# SPDX-License-Identifier: Apache-2.0
"""Conversion of ONNX operators that search for elements, and that gather or scatter elements at indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Annotated, Literal

import numpy as np

from microc.base.dtypes import Array
from microc.frontend.graph_builder import make_operator_emitter
from microc.frontend.onnx.context import MOVABLE, NUMBERS, ConverterTable, OpContext
from microc.frontend.signature import AttributeBefore, Axis, DefaultBefore, Dtype, SameDtype, Value
from microc.graph.ir import Attr

CONVERTERS = ConverterTable()

_Reduction = Literal["none", "add", "mul", "max", "min"]


def _emit_integer_indices(context: OpContext, indices: Value) -> Value:
    """Return indices as int32 or int64; other dtypes are cast to int64."""
    return indices if indices.dtype == "int32" else context.cast(indices, "int64")


@CONVERTERS.register("GatherElements", dtypes=MOVABLE)
def convert_gather_elements(context: OpContext, data: Value, indices: Value, *, axis: Axis = 0) -> None:
    """Convert GatherElements, which gathers single elements at indices along one axis."""
    context.result("gather_elements", (data, _emit_integer_indices(context, indices)), {"axis": axis})


@CONVERTERS.register("Scatter", dtypes=MOVABLE)
def convert_scatter(context: OpContext, data: Value, indices: Value, updates: SameDtype, *, axis: Axis = 0) -> None:
    """Convert Scatter, the name of ScatterElements before opset 11."""
    convert_scatter_elements(context, data, indices, updates, axis=axis)


@CONVERTERS.register("ScatterElements", dtypes=MOVABLE)
def convert_scatter_elements(
    context: OpContext,
    data: Value,
    indices: Value,
    updates: SameDtype,
    *,
    axis: Axis = 0,
    reduction: _Reduction = "none",
) -> None:
    """Convert ScatterElements, which writes elements at indices along one axis, or combines them with the data."""
    attrs: Mapping[str, Attr] = {"axis": axis, "reduction": "" if reduction == "none" else reduction}
    context.result("scatter_elements", (data, _emit_integer_indices(context, indices), updates), attrs)


@CONVERTERS.register("ScatterND", dtypes=MOVABLE)
def convert_scatter_nd(
    context: OpContext, data: Value, indices: Value, updates: SameDtype, *, reduction: _Reduction = "none"
) -> None:
    """Convert ScatterND, which writes slices at indices of several axes, or combines them with the data."""
    attrs: Mapping[str, Attr] = {"reduction": "" if reduction == "none" else reduction}
    context.result("scatter_nd", (data, _emit_integer_indices(context, indices), updates), attrs)


@CONVERTERS.register("GatherND", dtypes=MOVABLE)
def convert_gather_nd(context: OpContext, data: Value, indices: Value, *, batch_dims: int = 0) -> None:
    """Convert GatherND, which gathers slices at indices of several axes."""
    context.result("gather_nd", (data, _emit_integer_indices(context, indices)), {"batch_dims": batch_dims})


def _make_arg_extremum_converter(op: str) -> Callable[..., None]:
    """Make a converter of ArgMax or ArgMin to the graph operator ``op``."""

    def convert_arg_extremum(
        context: OpContext, data: Value, *, axis: Axis = 0, keepdims: bool = True, select_last_index: bool = False
    ) -> None:
        attrs: Mapping[str, Attr] = {
            "axis": axis,
            "keepdims": keepdims,
            "last": select_last_index,
            "out_dtype": "int64",
        }
        context.result(op, (data,), attrs)

    return convert_arg_extremum


CONVERTERS.register("ArgMax", dtypes=NUMBERS)(_make_arg_extremum_converter("argmax"))
CONVERTERS.register("ArgMin", dtypes=NUMBERS)(_make_arg_extremum_converter("argmin"))


@CONVERTERS.register("TopK", dtypes=NUMBERS)
def convert_top_k(
    context: OpContext, x: Value, k: Annotated[int, AttributeBefore(10)], *, axis: Axis = -1, largest: bool = True
) -> None:
    """Convert TopK, the k largest or smallest elements along an axis and their indices."""
    attrs: Mapping[str, Attr] = {"axis": axis, "k": k, "largest": largest, "out_dtype": "int64"}
    context.write_node_with_outputs("topk", (x,), attrs, context.operator.outputs)


def _make_cumulative_converter(op: str) -> Callable[..., None]:
    """Make a converter of CumSum or CumProd, along a constant axis, to the graph operator ``op``."""

    def convert_cumulative(
        context: OpContext, x: Value, axis: int, *, exclusive: bool = False, reverse: bool = False
    ) -> None:
        attrs: Mapping[str, Attr] = {
            "axis": context.axis(axis, x.rank),
            "exclusive": exclusive,
            "reverse": reverse,
        }
        context.result(op, (x,), attrs)

    return convert_cumulative


CONVERTERS.register("CumProd", dtypes=NUMBERS)(_make_cumulative_converter("cumprod"))
CONVERTERS.register("CumSum", dtypes=NUMBERS)(_make_cumulative_converter("cumsum"))


@CONVERTERS.register("OneHot", dtypes=NUMBERS)
def convert_one_hot(context: OpContext, indices: Value, depth: Array, values: Value, *, axis: int = -1) -> None:
    """Convert OneHot. ``values`` has two elements, the value of all other elements and the value at the index."""
    integer_indices = _emit_integer_indices(context, indices)
    off, on = (context.emit("slice", (values,), {"begin": (k,), "end": (k + 1,), "strides": (1,)}) for k in (0, 1))
    attrs: Mapping[str, Attr] = {
        "depth": int(depth.reshape(-1)[0]),
        "axis": context.axis(axis, indices.rank + 1),
        "wrap": True,
    }
    context.result("one_hot", (integer_indices, on, off), attrs)


@CONVERTERS.register("Hardmax")
def convert_hardmax(context: OpContext, x: Value, *, axis: Annotated[Axis, DefaultBefore(13, 1)] = -1) -> None:
    """Convert Hardmax, which is 1 at the first maximum along an axis and 0 elsewhere.

    Before opset 13 the maximum is over ``axis`` and all axes after it together."""
    data, along = x, axis
    if context.opset < 13:
        data, along = context.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:]))), 1
    index = context.emit("argmax", (data,), {"axis": along, "keepdims": False, "out_dtype": "int64"})
    on, off = (context.scalar(number, x.dtype) for number in (1, 0))
    attrs: Mapping[str, Attr] = {"depth": data.shape[along], "axis": along, "wrap": False}
    context.result_reshape(context.emit("one_hot", (index, on, off), attrs), x.shape)


@CONVERTERS.register("Trilu", dtypes=MOVABLE)
def convert_trilu(context: OpContext, data: Value, k: int | None, *, upper: bool = True) -> None:
    """Convert Trilu, which keeps the upper or lower triangle of matrices and sets other elements to 0."""
    context.result("triangle", (data,), {"diagonal": k or 0, "upper": upper})


@CONVERTERS.register("ReverseSequence", dtypes=MOVABLE)
def convert_reverse_sequence(
    context: OpContext, data: Value, sequence_lens: Value, *, batch_axis: int = 1, time_axis: int = 0
) -> None:
    """Convert ReverseSequence, which reverses the first ``sequence_lens[i]`` elements of sequence i."""
    attrs: Mapping[str, Attr] = {"batch_axis": batch_axis, "time_axis": time_axis}
    context.result("reverse_sequence", (data, _emit_integer_indices(context, sequence_lens)), attrs)


@CONVERTERS.register("TensorScatter", dtypes=MOVABLE)
def convert_tensor_scatter(
    context: OpContext,
    past_cache: Value,
    update: SameDtype,
    write_indices: Value | None,
    *,
    axis: Axis = -2,
    mode: Literal["linear", "circular"] = "linear",
) -> None:
    """Convert TensorScatter, which overwrites rows of a cache from a start index for each element of the batch."""
    if write_indices is None:
        starts = context.new_constant(f"{context.output()}_starts", np.zeros(past_cache.shape[:1], np.int64))
    else:
        starts = _emit_integer_indices(context, write_indices)
    attrs: Mapping[str, Attr] = {"axis": axis, "circular": mode == "circular"}
    context.result("cache_update", (past_cache, update, starts), attrs)


@CONVERTERS.register("LpNormalization")
def convert_lp_normalization(context: OpContext, x: Value, *, axis: Axis = -1, p: int = 2) -> None:
    """Convert LpNormalization, x divided by its L1 or L2 norm along an axis; the result is 0 if the norm is 0."""
    if p not in (1, 2):
        context.broken(f"p is {p}, expected 1 or 2")
    make = make_operator_emitter(context)
    powers = make("abs", x) if p == 1 else make("mul", x, x)
    total = context.emit("sum", (powers,), {"axes": (axis,), "keepdims": True})
    length = total if p == 1 else make("sqrt", total)
    safe = make("where", make("equal", length, 0.0), 1.0, length)
    context.result("div", (x, safe))


@CONVERTERS.register("BitCast", dtypes=MOVABLE)
def convert_bit_cast(context: OpContext, data: Value, *, to: Dtype) -> None:
    """Convert BitCast, which reads the bits of each element as another dtype."""
    context.result("bit_cast", (data,), {"dtype": to})
