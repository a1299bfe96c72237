# SPDX-License-Identifier: Apache-2.0
"""Reductions over axes, and operators that search for the largest or smallest elements along an axis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ModelError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.numerics import quantize_multiplier
from microc.ops.arithmetic import (
    Rewrite,
    build_replaces_best_condition,
    computation_dtype,
    is_quantised,
    legalize_in_float,
    mask_nan_for_argmax,
    per_tensor_quant,
)
from microc.ops.attributes import INDEX, ROUNDING, Rounding, element_type, flag, integer, one_axis, some_axes
from microc.ops.constants import CheckedNode, window_sum_overflow_message
from microc.ops.elementwise.tables import IDENTITY, emit_quantised_function
from microc.ops.gradients.call import GradientRule
from microc.ops.gradients.rules import build_extremum_gradient, build_mean_gradient, build_sum_gradient
from microc.ops.quantised.computed_scales import mean_multiplier, mean_scale
from microc.ops.quantised.exact_rounding import exact_scale_ratio
from microc.ops.quantised.requantize import clip_to_float32, emit_scaled_sum
from microc.ops.registry import Case, Legalized, OpCall, OpDef, map_along_axes, map_along_axis, map_unchanged_axes
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var
from microc.tir.names import ACC

# ---- Reductions over axes: ``sum``, ``mean``, ``max``, ``min``, ``prod``. Neighbouring axes are reduced by one
# loop.
#
# ``sum`` starts from the attribute ``offset``, and its result has the dtype ``out_dtype`` (int32 if it is part
# of a quantised sum). ``mean`` of plain integers rounds towards zero. Integer overflow wraps around, as in
# numpy. All reductions propagate NaN.
#
# Quantised sums and means are legalised to ``sum`` and ``requantize`` (source: TFLite ``reduce.h``,
# QuantizedMeanOrSum), or to ``requantize_float`` with rounding ``even``. The attribute ``average`` of these two
# operators stores the factors of a mean's multiplier. From them the multiplier is computed again if the number
# of elements varies at run time.


def _normalise_reduced_axes(attrs: Mapping[str, Any], data_shape: tuple[int, ...], op_name: str) -> tuple[int, ...]:
    """Return the reduced axes as sorted non-negative integers; raise ModelError if they are not axes of
    ``data_shape``."""
    rank = len(data_shape)
    axes = sorted({axis % rank for axis in attrs["axes"] if -rank <= axis < rank})
    if not axes or len(axes) != len(attrs["axes"]) or 0 in data_shape:
        raise ModelError(
            f"{op_name}: axes must be different axes of data that are not empty; got axes={attrs['axes']} of {data_shape}"
        )
    return tuple(axes)


def _infer_reduction_types(
    op_name: str, attrs: Mapping[str, Any], types: Sequence[TensorType]
) -> tuple[TensorType, ...]:
    tensor_type = types[0]
    axes = _normalise_reduced_axes(attrs, tensor_type.shape, op_name)
    if tensor_type.dtype == "bool":
        raise ModelError(f"{op_name}: the data must be numbers; got bool")
    ones = [1 if axis in axes else extent for axis, extent in enumerate(tensor_type.shape)]
    kept = ones if attrs["keepdims"] else [extent for axis, extent in enumerate(ones) if axis not in axes]
    return (TensorType(tuple(kept), attrs.get("out_dtype") or tensor_type.dtype),)


@frozen
class Reduction:
    """Definition of one reduction over axes, such as ``sum``.

    ``combiner``: name of the function that combines two elements (a case of
    :func:`microc.te.tensor.build_reduction_step`). ``numpy_function``: the numpy function that
    reduces an array, with parameters ``axis`` and ``keepdims``. ``gradient``: its gradient rule."""

    name: str
    combiner: str
    numpy_function: Callable[..., Any]
    gradient: GradientRule | None = None

    def neutral_element(self, acc_dtype: str, data_dtype: str) -> float:
        """Return the neutral element of the combiner. For max and min it is an end of the range of ``data_dtype``."""
        if self.combiner in ("add", "mul"):
            return int(self.combiner == "mul")
        if dtypes.is_float(acc_dtype):
            return float("-inf") if self.combiner == "maximum" else float("inf")
        return dtypes.int_range(data_dtype)[self.combiner == "minimum"]


REDUCTIONS = (
    Reduction("sum", "add", np.sum, build_sum_gradient),
    Reduction("mean", "add", np.sum, build_mean_gradient),
    Reduction("max", "maximum", np.max, build_extremum_gradient),
    Reduction("min", "minimum", np.min, build_extremum_gradient),
    Reduction("prod", "mul", np.prod),
)


def _elements_per_result(attrs: Mapping[str, Any], shape: tuple[int, ...]) -> int:
    """Return the number of elements that are reduced to one."""
    return prod(shape[axis] for axis in attrs["axes"])


def _evaluate_reduction_reference(
    reduction: Reduction, attrs: Mapping[str, Any], arrays: Sequence[Any]
) -> tuple[Array, ...]:
    x = arrays[0]
    exact = np.uint64 if x.dtype == np.uint64 else np.int64
    wide = x.astype(np.float64 if x.dtype.kind == "f" else exact)
    result = np.asarray(reduction.numpy_function(wide, axis=attrs["axes"], keepdims=attrs["keepdims"])) + np.asarray(
        attrs.get("offset", 0)
    ).astype(wide.dtype)
    if reduction.name == "mean":
        count = _elements_per_result(attrs, x.shape)
        result = result / count if x.dtype.kind == "f" else np.sign(result) * (abs(result) // count)
    return (np.asarray(result).astype(attrs.get("out_dtype") or x.dtype),)


def merge_adjacent_axes(shape: tuple[int, ...], reduced_axes: tuple[int, ...]) -> list[tuple[int, bool]]:
    """Merge neighbouring axes that are all kept or all reduced to one axis; return (extent, is reduced) of each merged
    axis.

    Axes of one element are dropped."""
    runs: list[tuple[int, bool]] = []
    for axis, extent in enumerate(shape):
        if extent == 1:
            continue
        if runs and runs[-1][1] == (axis in reduced_axes):
            runs[-1] = (runs[-1][0] * extent, runs[-1][1])
        else:
            runs.append((extent, axis in reduced_axes))
    return runs


def _compute_reduction(reduction: Reduction, call: OpCall) -> te.Tensor:
    data = call.data
    tensor_type, attrs = data.type, call.attrs
    runs = merge_adjacent_axes(tensor_type.shape, _normalise_reduced_axes(attrs, tensor_type.shape, reduction.name))
    if not any(reduced for _, reduced in runs):
        runs.append((1, True))
    x = data.tensor(tuple(extent for extent, _ in runs))
    reduced = [te.reduce_axis(extent, f"k{i}") for i, (extent, is_reduced) in enumerate(runs) if is_reduced]
    dtype = _accumulator_dtype(reduction, tensor_type.dtype)

    def build_reduced_element(*index: Expr) -> Expr:
        kept, over = iter(index), iter(reduced)
        where = tuple(next(over).var if is_reduced else next(kept) for _, is_reduced in runs)
        start = reduction.neutral_element(dtype, tensor_type.dtype) + attrs.get("offset", 0)
        if dtype in ("uint32", "uint64"):
            start %= 1 << dtypes.dtype_parts(dtype).bits
        return te.Reduce(reduction.combiner, ir.cast(dtype, x[where]), tuple(reduced), ir.const(start, dtype))

    acc = te.compute(tuple(extent for extent, is_reduced in runs if not is_reduced), build_reduced_element, ACC)
    out_dtype = call.out_types[0].dtype
    if reduction.name != "mean" and acc.dtype == out_dtype:
        return acc
    if reduction.name != "mean":
        return te.compute(acc.shape, lambda *index: ir.cast(out_dtype, acc[index]), "narrowed")
    count = _elements_per_result(attrs, tensor_type.shape)

    def build_average(*index: Expr) -> Expr:
        if dtypes.is_float(dtype):
            return acc[index] / count
        total = ir.cast("int64", acc[index]) if tensor_type.dtype == "int64" else acc[index]
        return ir.cast(out_dtype, ir.binary("truncdiv", total, count))

    return te.compute(acc.shape, build_average, "average")


def _accumulator_dtype(reduction: Reduction, data_dtype: str) -> str:
    """Return the dtype in which elements of ``data_dtype`` are accumulated.

    It is unsigned if sums or products may overflow, because C defines the wrap-around of unsigned integers only."""
    if reduction.combiner == "mul" and dtypes.is_integer(data_dtype) and dtypes.nbytes(data_dtype) < 4:
        return "uint32"
    if (reduction.name, data_dtype) == ("mean", "uint32"):
        return "uint64"
    if data_dtype not in ("int32", "int64") or reduction.combiner not in ("add", "mul"):
        return computation_dtype(data_dtype)
    return "int64" if (reduction.name, data_dtype) == ("mean", "int32") else f"u{data_dtype}"


# ---------------------------------------------------------------- quantised


def _legalize_reduction(node: Node, graph: Graph) -> Legalized | None:
    if not is_quantised(node, graph) or node.attrs.get("out_dtype"):
        return None
    if node.op in ("max", "min"):
        return _legalize_extremum(node, graph)
    if node.op == "prod":
        return legalize_in_float(node, graph)
    return _legalize_sum(node, graph)


def _legalize_extremum(node: Node, graph: Graph) -> Legalized | None:
    """Rewrite a quantised max or min to the max or min of the stored integers and a rescaling.

    Return None if data and result have the same scale."""
    source, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    if source.quant == result.quant and source.dtype == result.dtype:
        return None
    rewrite = Rewrite(node, graph)
    plain = rewrite.add_value("extremum", result.shape, source.dtype, source.quant)
    rewrite.emit(node.op, node.inputs, plain, node.attrs)
    emit_quantised_function(rewrite, *IDENTITY, plain, node.outputs[0], str(node.attr("rounding")))
    return rewrite.legalized()


def _legalize_sum(node: Node, graph: Graph) -> Legalized:
    """Rewrite a quantised sum or mean to sum(x - zero point), scaled to the result.

    The sum is computed in floats if it may exceed 32 bits. The multiplier of a mean includes the factor 1 / element
    count."""
    source, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    scale_in, zero_in = per_tensor_quant(node, graph, node.inputs[0])
    scale_out, zero_out = per_tensor_quant(node, graph, node.outputs[0])
    count = prod(source.shape[axis] for axis in node.attr("axes"))
    least, most = dtypes.int_range(source.dtype)
    bound = count * max(most - zero_in, zero_in - least)
    if bound >= 1 << 31:
        return legalize_in_float(node, graph)
    rewrite = Rewrite(node, graph)
    total = rewrite.add_value("sum", result.shape, "int32")
    attrs = {"axes": node.attr("axes"), "keepdims": node.attr("keepdims"), "rounding": Rounding.NONE}
    rewrite.emit("sum", node.inputs, total, {**attrs, "offset": -zero_in * count, "out_dtype": "int32"})
    low, high = dtypes.int_range(result.dtype)
    target: dict[str, Attr] = {"zero_point": zero_out, "minimum": low, "maximum": high, "out_dtype": result.dtype}
    rounding, mean = str(node.attr("rounding")), node.op == "mean"
    if rounding == Rounding.EVEN:
        scale = clip_to_float32(mean_scale(scale_in, scale_out, count if mean else 1))
        average: dict[str, Attr] = {"average": (float(scale_in), float(scale_out), count)} if mean else {}
        factor = exact_scale_ratio(scale_in, scale_out) / (count if mean else 1)
        emit_scaled_sum(rewrite, total, bound, factor, scale, target, average)
        return rewrite.legalized()
    whole = quantize_multiplier(np.float64(scale_in) / np.float64(scale_out))
    mantissa, shift = mean_multiplier(*whole, count) if mean else whole
    target |= {"multiplier": mantissa, "shift": shift, "shift_range": (shift, shift), "bound": bound}
    target |= {"input_zero_point": 0, "rounding": Rounding(rounding).multiplier}
    target |= {"average": (*whole, count)} if mean else {}
    rewrite.emit("requantize", (total,), node.outputs[0], target)
    return rewrite.legalized()


# ---------------------------------------------------------------- registry


def _make_reduction_test_cases(reduction: Reduction) -> Iterable[Case]:
    base: dict[str, Attr] = {"offset": 0, "out_dtype": ""} if reduction.name == "sum" else {}
    for shape, axes, keepdims in (
        ((1, 4, 5, 3), (1, 2), True),
        ((1, 4, 5, 3), (1, 2), False),
        ((2, 3, 4), (0, 2), False),
        ((2, 3, 4), (-1,), True),
        ((2, 3, 4), (0, 1, 2), False),
        ((1,), (0,), False),
        ((3, 1, 2), (1,), False),
    ):
        attrs = {**base, "axes": axes, "keepdims": keepdims}
        yield Case(attrs, (TensorType(shape, "float32"),), tolerance=2e-5)
        x = np.arange(prod(shape)).reshape(shape) % 5 - 2
        if reduction.name == "prod":
            x = x % 2 + 1
        yield Case(attrs, (TensorType(shape, "int32"),), arrays=(x.astype(np.int32),), name="int32")
        if reduction.name != "prod":
            yield Case(attrs, (TensorType(shape, "int8"),), arrays=(x.astype(np.int8),), name="int8")
    if reduction.name == "sum":
        for dtype in ("int8", "uint8", "int16"):
            attrs = {"axes": (1, 2), "keepdims": True, "offset": -99, "out_dtype": "int32", "rounding": Rounding.NONE}
            yield Case(attrs, (TensorType((1, 7, 7, 5), dtype),), name=f"{dtype} to int32")


def _narrow_sum_overflow_message(checked_node: CheckedNode) -> str:
    """Return a message if sums of 8- or 16-bit integers, which are computed in int32, can overflow, else an empty
    string."""
    tensor_type, attrs = checked_node.types[0], checked_node.attrs
    narrow = dtypes.is_integer(tensor_type.dtype) and dtypes.nbytes(tensor_type.dtype) < 4
    count = _elements_per_result({"axes": _normalise_reduced_axes(attrs, tensor_type.shape, "sum")}, tensor_type.shape)
    return window_sum_overflow_message(checked_node, count, offset=attrs.get("offset", 0)) if narrow else ""


def _define_reduction(reduction: Reduction) -> OpDef:
    """Return the definition of the operator that computes ``reduction``."""
    more = (
        {"offset": integer("initial value of a sum", 0), "out_dtype": element_type("empty: the data's", "")}
        if reduction.name == "sum"
        else {}
    )
    return OpDef(
        reduction.name,
        infer=lambda attrs, types: _infer_reduction_types(reduction.name, attrs, types),
        reference=lambda attrs, arrays: _evaluate_reduction_reference(reduction, attrs, arrays),
        compute=lambda call: _compute_reduction(reduction, call),
        cases=lambda: _make_reduction_test_cases(reduction),
        attrs={
            "axes": some_axes("axes that are reduced"),
            "keepdims": flag("True if the reduced axes remain, with one element"),
            "rounding": ROUNDING,
            **more,
        },
        axes=map_along_axes,
        legalize=_legalize_reduction,
        sound=(_narrow_sum_overflow_message,) if reduction.combiner == "add" else (),
        operand_names=("data",),
        gradient=reduction.gradient,
        edges="Integers wrap around" if reduction.combiner in ("add", "mul") else "NaN is passed on",
    )


REDUCE_OPERATORS: tuple[OpDef, ...] = tuple(_define_reduction(reduction) for reduction in REDUCTIONS)


# ---- Operators ``argmax``, ``argmin`` and ``topk``. Of equal elements the first is selected.
#
# NaN: ``topk`` orders NaN above all numbers, as ONNX Runtime and PyTorch do. In ``argmax`` and ``argmin`` every
# comparison with NaN is false, as in TFLite and ONNX Runtime: NaN is skipped, but if the first element is NaN
# no other element replaces it.
#
# Sources: TFLite ``reference/arg_min_max.h``, ``topk_v2.cc``; ONNX ArgMax, TopK.


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
        edges="NaN is skipped, unless it is the first element, which is then the result",
        attrs={
            "axis": one_axis("axis along which the operator computes", -1),
            "keepdims": flag("True if the reduced axis remains, with one element"),
            "last": flag("True: the last of equal elements; False: the first"),
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


ARGMAX_OPERATORS: tuple[OpDef, ...] = (
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
            "k": integer("number of elements", least=0),
            "axis": one_axis("axis along which the operator computes", -1),
            "largest": flag("True: largest elements; False: smallest", True),
            "out_dtype": INDEX,
        },
        axes=map_along_axis,
        operand_names=("data",),
    ),
)


OPERATORS = (*REDUCE_OPERATORS, *ARGMAX_OPERATORS)
