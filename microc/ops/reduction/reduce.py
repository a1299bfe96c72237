# SPDX-License-Identifier: Apache-2.0
"""Reductions over axes: ``sum``, ``mean``, ``max``, ``min``, ``prod``. Neighbouring axes are reduced by one loop.

``sum`` starts from the attribute ``offset``, and its result has the dtype ``out_dtype`` (int32 if it is part of a
quantised sum). ``mean`` of plain integers rounds towards zero. Integer overflow wraps around, as in numpy. All
reductions propagate NaN.

Quantised sums and means are legalised to ``sum`` and ``requantize`` (source: TFLite ``reduce.h``, QuantizedMeanOrSum),
or to ``requantize_float`` with rounding ``even``. The attribute ``average`` of these two operators stores the factors
of a mean's multiplier. From them the multiplier is computed again if the number of elements varies at run time.
"""

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
from microc.ops.arithmetic import Rewrite, computation_dtype, is_quantised, legalize_in_float, per_tensor_quant
from microc.ops.attributes import ROUNDING, Rounding, element_type, flag, integer, some_axes
from microc.ops.constants import CheckedNode, window_sum_overflow_message
from microc.ops.elementwise.tables import IDENTITY, emit_quantised_function
from microc.ops.gradients.call import GradientRule
from microc.ops.gradients.reduction import build_extremum_gradient, build_mean_gradient, build_sum_gradient
from microc.ops.quantised.computed_scales import mean_multiplier, mean_scale
from microc.ops.quantised.exact_rounding import exact_scale_ratio
from microc.ops.quantised.requantize import clip_to_float32, emit_scaled_sum
from microc.ops.registry import Case, Legalized, OpCall, OpDef, map_along_axes
from microc.tir import ir
from microc.tir.ir import Expr
from microc.tir.names import ACC


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
    :func:`microc.te.lower.build_reduction_step`). ``numpy_function``: the numpy function that
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
            return acc[index] / float(count)
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
        {"offset": integer("what a sum begins with", 0), "out_dtype": element_type("empty: the data's", "")}
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
            "axes": some_axes("that are reduced"),
            "keepdims": flag("they stay, with one element"),
            "rounding": ROUNDING,
            **more,
        },
        axes=map_along_axes,
        legalize=_legalize_reduction,
        sound=(_narrow_sum_overflow_message,) if reduction.combiner == "add" else (),
        operand_names=("data",),
        gradient=reduction.gradient,
        edges="Integers wrap around" if reduction.combiner in ("add", "mul") else "NaN goes through",
    )


OPERATORS: tuple[OpDef, ...] = tuple(_define_reduction(reduction) for reduction in REDUCTIONS)
