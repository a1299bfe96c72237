# SPDX-License-Identifier: Apache-2.0
"""Export of elementwise operators, reductions, loops and branches to ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.frontend.onnx.operators.elementwise import COMPARISONS, EXTREMA, FUNCTIONS, PAIRS, OneToOneOperator
from microc.frontend.onnx.writer.context import CODES, NodeContext, OnnxGraphWriter, OpWriter, make_value_info
from microc.frontend.onnx.writer.rows_layers import write_quantize
from microc.graph.ir import Graph, TensorType
from microc.ops.control import UNBOUNDED, scanned_operand_count

# ---- Functions of one and two numbers, comparisons, selection, conversions.


def make_one_to_one_writer(correspondence: OneToOneOperator) -> OpWriter:
    """Make the function that writes a graph operator as the ONNX operator with the same operands.

    ``correspondence``: names of both operators."""

    def write_one_to_one(context: NodeContext) -> None:
        context = context.in_layout_of_operands()
        operands = [context.operand_name(k) for k in range(len(context.node.inputs))]
        context.write_result(
            correspondence.onnx_op_type,
            *operands,
            **{name: context.attr(name) for name in correspondence.real_attributes},
        )

    return write_one_to_one


def write_clip(context: NodeContext) -> None:
    """Write ``clip`` as Clip. Bounds for integer data are integers of the data's dtype."""
    context = context.in_layout_of_operands()
    bounds = [_share_clip_bound_initializer(context, context.attr(name)) for name in ("minimum", "maximum")]
    context.write_result("Clip", context.operand_name(), *bounds)


def _share_clip_bound_initializer(context: NodeContext, bound: float) -> str:
    """Return the name of an initialiser with a bound of Clip.

    For integer data the bound is limited to the range of their dtype."""
    if not dtypes.is_float(context.operand_dtype()):
        low, high = dtypes.int_range(context.operand_dtype())
        bound = min(max(int(bound), low), high)
    return context.share_scalar_initializer(bound)


def dequantise_number(context: NodeContext, stored_number: float) -> float:
    """Return the float32 number that ``stored_number`` represents; the number itself if operands are not quantised."""
    quant = context.operand_type().quant
    if not context.is_quantised or quant is None:
        return stored_number
    return float(np.float32(stored_number - quant.zero_point[0]) * np.float32(quant.scale[0]))


def write_quotient(context: NodeContext) -> None:
    """Write ``div`` as Div. Integer division rounds towards zero in microc and in ONNX."""
    context.write_result("Div", context.operand_name(0), context.operand_name(1))


def make_remainder_writer(has_dividend_sign: int) -> OpWriter:
    """Make the function that writes a remainder as Mod.

    The remainder has the sign of the dividend if ``has_dividend_sign``, else that of the divisor. ONNX's Mod supports
    the sign of the divisor for integers only. For floats a - floor(a / b) * b is written instead."""

    def write_remainder(context: NodeContext) -> None:
        a, b = context.operand_name(0), context.operand_name(1)
        if has_dividend_sign or not dtypes.is_float(context.operand_dtype()):
            context.write_result("Mod", a, b, fmod=has_dividend_sign)
            return
        down = context.emit("Floor", context.emit("Div", a, b))
        context.write_result("Sub", a, context.emit("Mul", down, b))

    return write_remainder


def write_floor_quotient(context: NodeContext) -> None:
    """Write floor(a / b). For integers it is written as (a - (a mod b)) / b, a division without remainder."""
    a, b = context.operand_name(0), context.operand_name(1)
    if dtypes.is_float(context.operand_dtype()):
        context.write_result("Floor", context.emit("Div", a, b))
    else:
        rest = context.emit("Mod", a, b, fmod=0)
        context.write_result("Div", context.emit("Sub", a, rest), b)


def write_power(context: NodeContext) -> None:
    """Write ``pow`` as Pow."""
    context.write_result("Pow", context.operand_name(0), context.operand_name(1))


def write_squared_difference(context: NodeContext) -> None:
    """Write (a - b) * (a - b)."""
    difference = context.emit("Sub", context.operand_name(0), context.operand_name(1))
    context.write_result("Mul", difference, difference)


def write_reciprocal_root(context: NodeContext) -> None:
    """Write 1 / sqrt(x)."""
    context.write_result("Reciprocal", context.emit("Sqrt", context.operand_name()))


def make_shift_writer(direction: str) -> OpWriter:
    """Make the function that writes a shift as BitShift.

    It raises UnsupportedError for signed integers, which ONNX's BitShift does not support."""

    def write_shift(context: NodeContext) -> None:
        if dtypes.dtype_parts(context.operand_dtype()).kind != "uint":
            context.refuse(
                f"shift: got {context.operand_dtype()} data, expected unsigned integers",
                "cast the data to unsigned integers",
            )
        context.write_result("BitShift", context.operand_name(0), context.operand_name(1), direction=direction)

    return write_shift


def make_negated_comparison_writer(comparison_operator: str) -> OpWriter:
    """Make the function that writes the negation of an ONNX comparison, such as Not of Equal for ``not_equal``."""

    def write_negated_comparison(context: NodeContext) -> None:
        context.write_result("Not", context.emit(comparison_operator, context.operand_name(0), context.operand_name(1)))

    return write_negated_comparison


def write_prelu(context: NodeContext) -> None:
    """Write ``prelu`` as PRelu."""
    context = context.in_layout_of_operands()
    context.write_result("PRelu", context.operand_name(0), context.operand_name(1))


def write_where(context: NodeContext) -> None:
    """Write ``where`` as Where."""
    context.write_result("Where", *(context.operand_name(k) for k in range(3)))


def write_logical_not(context: NodeContext) -> None:
    """Write ``logical_not`` as Not."""
    context.write_result("Not", context.operand_name())


def write_cast(context: NodeContext) -> None:
    """Write ``cast`` as Cast; between quantised types, as QuantizeLinear of the dequantised operand."""
    from microc.frontend.onnx.writer.context import CODES

    kind = context.result_type
    if context.operand_type().quant is not None and kind.quant is not None:
        quant = kind.quant
        attrs = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis, "out_dtype": kind.dtype}
        write_quantize(replace(context, node=replace(context.node, attrs=attrs)))
    else:
        context.write_result("Cast", context.operand_name(), to=CODES[context.attr("dtype")])


ELEMENTWISE_WRITERS: Mapping[str, OpWriter] = {
    **{row.op: make_one_to_one_writer(row) for row in (*FUNCTIONS, *PAIRS, *EXTREMA, *COMPARISONS)},
    "cast": write_cast,
    "clip": write_clip,
    "div": write_quotient,
    "floor_div": write_floor_quotient,
    "floor_mod": make_remainder_writer(0),
    "fmod": make_remainder_writer(1),
    "logical_not": write_logical_not,
    "not_equal": make_negated_comparison_writer("Equal"),
    "pow": write_power,
    "prelu": write_prelu,
    "rsqrt": write_reciprocal_root,
    "shift_left": make_shift_writer("LEFT"),
    "shift_right": make_shift_writer("RIGHT"),
    "squared_difference": write_squared_difference,
    "where": write_where,
}


# ---- Reductions, cumulative sums and searches along axes.

_IMAGES = {(1, 2): True, (2, 3): False}
"""Spatial axes of a batch of images; the value is True if channels are the last axis, False if channels are axis 1."""
INDEX_DTYPE = "int64"
"""Dtype of indices that ONNX operators return."""


def make_reduction_writer(onnx_op_type: str) -> OpWriter:
    """Make the function that writes a reduction over axes as ONNX operator ``onnx_op_type``, such as ReduceSum."""

    def write_reduction(context: NodeContext) -> None:
        if context.attr("offset") or context.attr("out_dtype"):
            context.refuse(
                f"{context.node.op}: got attribute offset or out_dtype, expected neither as in ONNX",
                "export the graph before any compiler pass changes it",
            )
        keepdims = int(context.attr("keepdims"))
        context.write_result(onnx_op_type, context.operand_name(), _share_axes_initializer(context), keepdims=keepdims)

    return write_reduction


def _share_axes_initializer(context: NodeContext) -> str:
    """Return the name of an initialiser with the axes of a reduction."""
    return context.share_int64_initializer(*_get_sorted_axes(context))


def _get_sorted_axes(context: NodeContext) -> tuple[int, ...]:
    """Return the axes of a reduction as numbers of 0 to rank - 1, in ascending order."""
    rank = len(context.operand_type().shape)
    return tuple(sorted(axis % rank for axis in context.attr("axes")))


def write_mean(context: NodeContext) -> None:
    """Write ``mean`` as ReduceMean.

    A mean over the spatial axes of images is written as GlobalAveragePool, because runtimes can compute this operator
    in integers."""
    context.require_real_operands()
    axes = _get_sorted_axes(context)
    if len(context.operand_type().shape) != 4 or axes not in _IMAGES:
        context.write_result(
            "ReduceMean",
            context.operand_name(),
            _share_axes_initializer(context),
            keepdims=int(context.attr("keepdims")),
        )
        return
    pooled = context.with_channels_first() if _IMAGES[axes] else context
    if context.attr("keepdims"):
        pooled.write_result("GlobalAveragePool", pooled.operand_name())
        return
    flat = context.share_int64_initializer(*context.result_type.shape)
    operand = pooled.operand_name()
    context.write_result("GlobalAveragePool", operand, final_steps=[("Reshape", (flat,), {})])


def make_cumulative_writer(onnx_op_type: str) -> OpWriter:
    """Make the function that writes a cumulative sum or product as ``onnx_op_type``, CumSum or CumProd."""

    def write_cumulative(context: NodeContext) -> None:
        axis = context.add_initializer(np.array(context.attr("axis"), np.int64))
        exclusive, reverse = (int(context.attr(name)) for name in ("exclusive", "reverse"))
        context.write_result(onnx_op_type, context.operand_name(), axis, exclusive=exclusive, reverse=reverse)

    return write_cumulative


def make_arg_extremum_writer(onnx_op_type: str) -> OpWriter:
    """Make the function that writes the index of a maximum or minimum as ``onnx_op_type``, ArgMax or ArgMin."""

    def write_arg_extremum(context: NodeContext) -> None:
        dtype = context.attr("out_dtype")
        context.write_result(
            onnx_op_type,
            context.operand_name(),
            final_steps=[("Cast", (), {"to": CODES[dtype]})] if dtype != INDEX_DTYPE else [],
            axis=context.attr("axis"),
            keepdims=int(context.attr("keepdims")),
            select_last_index=int(context.attr("last")),
        )

    return write_arg_extremum


def write_top_k(context: NodeContext) -> None:
    """Write ``topk`` as TopK with sorted results."""
    count = context.share_int64_initializer(context.attr("k"))
    attributes = {"axis": context.attr("axis"), "largest": int(context.attr("largest")), "sorted": 1}
    context.write_results("TopK", context.operand_name(), count, onnx_output_dtypes=(None, INDEX_DTYPE), **attributes)


REDUCTION_WRITERS: Mapping[str, OpWriter] = {
    "argmax": make_arg_extremum_writer("ArgMax"),
    "argmin": make_arg_extremum_writer("ArgMin"),
    "cumprod": make_cumulative_writer("CumProd"),
    "cumsum": make_cumulative_writer("CumSum"),
    "max": make_reduction_writer("ReduceMax"),
    "mean": write_mean,
    "min": make_reduction_writer("ReduceMin"),
    "prod": make_reduction_writer("ReduceProd"),
    "sum": make_reduction_writer("ReduceSum"),
    "topk": write_top_k,
}


# ---- Loops and branches: bodies become ONNX subgraphs, which read fixed values from outside by name.

SubgraphWriter = Callable[[Graph, OnnxGraphWriter, Mapping[str, str]], tuple[OnnxGraphWriter, tuple[str, ...]]]
"""Type of :func:`microc.frontend.onnx.writer.model_proto.write_subgraph`, which writes the body of a loop or branch."""

_FLAG, ITERATION = TensorType((), "bool"), TensorType((), "int64")


def write_loop(context: NodeContext, write_subgraph: SubgraphWriter) -> None:
    """Write ``loop`` as Loop.

    The body in microc's graph reads the iteration number as int32, so the ONNX body starts with a Cast from int64. If
    the loop is guarded, its first carried value is the condition to continue. A guarded loop that also stacks outputs
    is refused: microc stacks rows for all iterations, ONNX only for iterations that ran."""
    body, carried, guarded = (context.attr(name) for name in ("body", "carried", "guarded"))
    if guarded and len(body.outputs) > carried:
        context.refuse(
            "a loop that stacks outputs may end early, expected a fixed number of iterations",
            "remove the condition or the stacked outputs",
        )
    outer, names = context.builder, context.builder.names
    operands = [context.operand_name(k) for k in range(len(context.node.inputs))]
    iteration, flag, count_int32 = (
        names.fresh(f"{context.node.outputs[0]}_{stem}") for stem in ("iteration", "flag", "count")
    )
    inside = [names.fresh(name) for name in body.inputs[1 : 1 + carried]]
    rows = [names.fresh(name) for name in body.inputs[len(body.inputs) - scanned_operand_count(context.node) :]]
    fixed = operands[carried : len(operands) - len(rows)]
    bound = dict(zip(body.inputs, (count_int32, *inside, *fixed, *rows), strict=True))
    inner, ends = write_subgraph(body, outer, bound)
    inner.insert_at_start("Cast", [iteration], count_int32, to=CODES["int32"])
    for row, operand in zip(rows, operands[carried + len(fixed) :], strict=True):
        inner.insert_at_start("Gather", [operand, iteration], row, axis=0)
    goes_on = inner.emit("Identity", [ends[0] if guarded else flag], [names.fresh(f"{flag}_next")])
    types = [body.types[name] for name in body.outputs]
    graph = _make_body_graph_proto(
        inner,
        [(iteration, ITERATION), (flag, _FLAG), *zip(inside, types, strict=False)],
        [(goes_on, _FLAG), *zip(ends, types, strict=True)],
    )
    count = context.attr("count")
    trip_count = "" if count == UNBOUNDED else context.add_initializer(np.array(count, np.int64), "trip_count")
    condition = operands[0] if guarded else context.add_initializer(np.array(True), "always")
    context.write_results("Loop", trip_count, condition, *operands[:carried], body=graph)


def write_branch(context: NodeContext, write_subgraph: SubgraphWriter) -> None:
    """Write ``branch`` as If, with both branches as ONNX subgraphs."""
    graphs = {}
    operands = [context.operand_name(k) for k in range(len(context.node.inputs))]
    for ours, theirs in (("then", "then_branch"), ("otherwise", "else_branch")):
        body = context.attr(ours)
        inner, ends = write_subgraph(body, context.builder, dict(zip(body.inputs, operands[1:], strict=True)))
        types = [body.types[name] for name in body.outputs]
        graphs[theirs] = _make_body_graph_proto(inner, [], list(zip(ends, types, strict=True)))
    context.write_results("If", operands[0], **graphs)


def _make_body_graph_proto(
    builder: OnnxGraphWriter,
    input_names_and_types: list[tuple[str, TensorType]],
    output_names_and_types: list[tuple[str, TensorType]],
) -> Any:
    """Make the GraphProto of the subgraph that ``builder`` wrote.

    ``input_names_and_types``, ``output_names_and_types``: ONNX name and type of each input and output."""
    from onnx import helper

    ends = (
        [make_value_info(name, kind) for name, kind in values]
        for values in (input_names_and_types, output_names_and_types)
    )
    return helper.make_graph(builder.nodes, builder.graph.name or "body", *ends, builder.initializers)


CONTROL_WRITERS: Mapping[str, Callable[[NodeContext, SubgraphWriter], None]] = {
    "branch": write_branch,
    "loop": write_loop,
}
