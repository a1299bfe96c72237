"""Export of elementwise operators, reductions, loops and branches to ONNX.

A row is the function that writes one operator of microc's graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.frontend.onnx.operators_elementwise import COMPARISONS, FUNCTIONS, PAIRS, OneToOne
from microc.frontend.onnx.writer.context import CODES, NodeContext, OnnxGraphWriter, Row, value_info
from microc.frontend.onnx.writer.rows_layers import write_quantize
from microc.graph.ir import Graph, TensorType
from microc.ops.control import UNBOUNDED, scanned_operand_count

# ---- Functions of one and two numbers, comparisons, selection, conversions.


def one_to_one(row: OneToOne) -> Row:
    """Make the function that writes a graph operator with a direct equivalent in ONNX, described by ``row``."""

    def write(context: NodeContext) -> None:
        context = context.in_layout_of_operands()
        operands = [context.operand(k) for k in range(len(context.node.inputs))]
        context.result(row.onnx_type, *operands, **{name: context.attr(name) for name in row.real_attributes})

    return write


def write_clip(context: NodeContext) -> None:
    """Write ``clip`` as Clip. Bounds for integer data are integers of the data's dtype."""
    context = context.in_layout_of_operands()
    bounds = [_clip_bound(context, context.attr(name)) for name in ("minimum", "maximum")]
    context.result("Clip", context.operand(), *bounds)


def _clip_bound(context: NodeContext, bound: float) -> str:
    """Return the name of an initialiser for a bound of Clip; a bound for integers is limited to the range of their dtype."""
    if not dtypes.is_float(context.dtype()):
        low, high = dtypes.int_range(context.dtype())
        bound = min(max(int(bound), low), high)
    return context.number(bound)


def dequantised_number(context: NodeContext, value: float) -> float:
    """Return the float32 that the stored number ``value`` represents; ``value`` itself if operands are not quantised."""
    quant = context.type().quant
    if not context.quantised or quant is None:
        return value
    return float(np.float32(value - quant.zero_point[0]) * np.float32(quant.scale[0]))


def write_quotient(context: NodeContext) -> None:
    """Write ``div`` as Div. Integer division rounds towards zero in microc and in ONNX."""
    context.result("Div", context.operand(0), context.operand(1))


def remainder(has_dividend_sign: int) -> Row:
    """Make the function that writes a remainder as Mod.

    The remainder has the sign of the dividend if ``has_dividend_sign``, else that of the divisor.
    ONNX's Mod supports the sign of the divisor for integers only. For floats a - floor(a / b) * b is written instead."""

    def write(context: NodeContext) -> None:
        a, b = context.operand(0), context.operand(1)
        if has_dividend_sign or not dtypes.is_float(context.dtype()):
            context.result("Mod", a, b, fmod=has_dividend_sign)
            return
        down = context.emit("Floor", context.emit("Div", a, b))
        context.result("Sub", a, context.emit("Mul", down, b))

    return write


def write_floor_quotient(context: NodeContext) -> None:
    """Write floor(a / b); for integers as (a - (a mod b)) / b, which has no remainder."""
    a, b = context.operand(0), context.operand(1)
    if dtypes.is_float(context.dtype()):
        context.result("Floor", context.emit("Div", a, b))
    else:
        rest = context.emit("Mod", a, b, fmod=0)
        context.result("Div", context.emit("Sub", a, rest), b)


def write_power(context: NodeContext) -> None:
    context.result("Pow", context.operand(0), context.operand(1))


def write_squared_difference(context: NodeContext) -> None:
    """Write (a - b) * (a - b)."""
    difference = context.emit("Sub", context.operand(0), context.operand(1))
    context.result("Mul", difference, difference)


def write_reciprocal_root(context: NodeContext) -> None:
    """Write 1 / sqrt(x)."""
    context.result("Reciprocal", context.emit("Sqrt", context.operand()))


def shift(direction: str) -> Row:
    """Make the function that writes a shift as BitShift; raise UnsupportedError for signed integers, which BitShift lacks."""

    def write(context: NodeContext) -> None:
        if dtypes.dtype_parts(context.dtype()).kind != "uint":
            context.refuse(f"a shift of {context.dtype()}", "ONNX shifts unsigned integers only")
        context.result("BitShift", context.operand(0), context.operand(1), direction=direction)

    return write


def logical_not_of(comparison_operator: str) -> Row:
    """Make the function that writes Not of the ONNX operator ``comparison_operator``, such as Not of Equal."""

    def write(context: NodeContext) -> None:
        context.result("Not", context.emit(comparison_operator, context.operand(0), context.operand(1)))

    return write


def write_prelu(context: NodeContext) -> None:
    """Write ``prelu`` as PRelu."""
    context = context.in_layout_of_operands()
    context.result("PRelu", context.operand(0), context.operand(1))


def write_where(context: NodeContext) -> None:
    context.result("Where", *(context.operand(k) for k in range(3)))


def write_logical_not(context: NodeContext) -> None:
    context.result("Not", context.operand())


def write_cast(context: NodeContext) -> None:
    """Write ``cast`` as Cast; between quantised types, as a requantisation to the scale, zero point and dtype of the result."""
    from microc.frontend.onnx.writer.context import CODES

    kind = context.result_type
    if context.type().quant is not None and kind.quant is not None:
        quant = kind.quant
        attrs = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis, "out_dtype": kind.dtype}
        write_quantize(replace(context, node=replace(context.node, attrs=attrs)))
    else:
        context.result("Cast", context.operand(), to=CODES[context.attr("dtype")])


ELEMENTWISE_ROWS: Mapping[str, Row] = {
    **{row.op: one_to_one(row) for row in (*FUNCTIONS, *PAIRS, *COMPARISONS)},
    "cast": write_cast,
    "clip": write_clip,
    "div": write_quotient,
    "floor_div": write_floor_quotient,
    "floor_mod": remainder(0),
    "fmod": remainder(1),
    "logical_not": write_logical_not,
    "not_equal": logical_not_of("Equal"),
    "pow": write_power,
    "prelu": write_prelu,
    "rsqrt": write_reciprocal_root,
    "shift_left": shift("LEFT"),
    "shift_right": shift("RIGHT"),
    "squared_difference": write_squared_difference,
    "where": write_where,
}


# ---- Reductions, cumulative sums and searches along axes.

_IMAGES = {(1, 2): True, (2, 3): False}
"""Spatial axes of a batch of images; the value is True if channels are the last axis, False if channels are axis 1."""
INDEX_DTYPE = "int64"
"""Dtype of indices that ONNX operators return."""


def reduction(code: str) -> Row:
    """Make the function that writes a reduction over axes as ONNX operator ``code``, such as ReduceSum."""

    def write(context: NodeContext) -> None:
        if context.attr("offset") or context.attr("out_dtype"):
            context.refuse("sums of other integers than the data", "write the graph as it was read, before any pass")
        keepdims = int(context.attr("keepdims"))
        context.result(code, context.operand(), _axes_operand(context), keepdims=keepdims)

    return write


def _axes_operand(context: NodeContext) -> str:
    """Return the name of an initialiser with the axes of a reduction."""
    return context.integers(*_sorted_axes(context))


def _sorted_axes(context: NodeContext) -> tuple[int, ...]:
    """Return the axes of a reduction as numbers of 0 to rank - 1, in ascending order."""
    rank = len(context.type().shape)
    return tuple(sorted(axis % rank for axis in context.attr("axes")))


def write_mean(context: NodeContext) -> None:
    """Write ``mean`` as ReduceMean.

    A mean over the spatial axes of images is written as GlobalAveragePool, because runtimes can compute this operator in
    integers."""
    context.only_floats()
    axes = _sorted_axes(context)
    if len(context.type().shape) != 4 or axes not in _IMAGES:
        context.result("ReduceMean", context.operand(), _axes_operand(context), keepdims=int(context.attr("keepdims")))
        return
    pooled = context.with_channels_first() if _IMAGES[axes] else context
    if context.attr("keepdims"):
        pooled.result("GlobalAveragePool", pooled.operand())
        return
    flat = context.integers(*context.result_type.shape)
    operand = pooled.operand()
    context.result("GlobalAveragePool", operand, then=[("Reshape", (flat,), {})])


def cumulative(code: str) -> Row:
    """Make the function that writes a cumulative sum or product as ONNX operator ``code``, CumSum or CumProd."""

    def write(context: NodeContext) -> None:
        axis = context.constant(np.array(context.attr("axis"), np.int64))
        exclusive, reverse = (int(context.attr(name)) for name in ("exclusive", "reverse"))
        context.result(code, context.operand(), axis, exclusive=exclusive, reverse=reverse)

    return write


def search(code: str) -> Row:
    """Make the function that writes the index of a maximum or minimum as ONNX operator ``code``, ArgMax or ArgMin."""

    def write(context: NodeContext) -> None:
        dtype = context.attr("out_dtype")
        context.result(
            code,
            context.operand(),
            then=[("Cast", (), {"to": CODES[dtype]})] if dtype != INDEX_DTYPE else [],
            axis=context.attr("axis"),
            keepdims=int(context.attr("keepdims")),
            select_last_index=int(context.attr("last")),
        )

    return write


def write_top_k(context: NodeContext) -> None:
    """Write ``topk`` as TopK with sorted results."""
    count = context.integers(context.attr("k"))
    attributes = {"axis": context.attr("axis"), "largest": int(context.attr("largest")), "sorted": 1}
    context.results("TopK", context.operand(), count, dtypes_made=(None, INDEX_DTYPE), **attributes)


REDUCTION_ROWS: Mapping[str, Row] = {
    "argmax": search("ArgMax"),
    "argmin": search("ArgMin"),
    "cumprod": cumulative("CumProd"),
    "cumsum": cumulative("CumSum"),
    "max": reduction("ReduceMax"),
    "mean": write_mean,
    "min": reduction("ReduceMin"),
    "prod": reduction("ReduceProd"),
    "sum": reduction("ReduceSum"),
    "topk": write_top_k,
}


# ---- Loops and branches: bodies become ONNX subgraphs, which read fixed values from outside by name.

WriteBody = Callable[[Graph, OnnxGraphWriter, Mapping[str, str]], tuple[OnnxGraphWriter, tuple[str, ...]]]
"""Function that writes a loop's or branch's body in ONNX: :func:`microc.frontend.onnx.writer.model_proto.write_body`."""

_FLAG, ITERATION = TensorType((), "bool"), TensorType((), "int64")


def write_loop(context: NodeContext, write_body: WriteBody) -> None:
    """Write ``loop`` as Loop.

    The body in microc's graph reads the iteration number as int32, so the ONNX body starts with a Cast from int64. If the
    loop is guarded, its first carried value is the condition to continue. A guarded loop that also stacks outputs is
    refused: microc stacks rows for all iterations, ONNX only for those that ran.
    """
    body, carried, guarded = (context.attr(name) for name in ("body", "carried", "guarded"))
    if guarded and len(body.outputs) > carried:
        context.refuse(
            "stacked outputs of a loop that may end early", "ONNX's Loop stacks those of the iterations that ran"
        )
    outer, names = context.builder, context.builder.names
    operands = [context.operand(k) for k in range(len(context.node.inputs))]
    iteration, flag, count_int32 = (
        names.fresh(f"{context.node.outputs[0]}_{stem}") for stem in ("turn", "flag", "count")
    )
    inside = [names.fresh(name) for name in body.inputs[1 : 1 + carried]]
    rows = [names.fresh(name) for name in body.inputs[len(body.inputs) - scanned_operand_count(context.node) :]]
    fixed = operands[carried : len(operands) - len(rows)]
    bound = dict(zip(body.inputs, (count_int32, *inside, *fixed, *rows), strict=True))
    inner, ends = write_body(body, outer, bound)
    inner.emit_first("Cast", [iteration], count_int32, to=CODES["int32"])
    for row, operand in zip(rows, operands[carried + len(fixed) :], strict=True):
        inner.emit_first("Gather", [operand, iteration], row, axis=0)
    goes_on = inner.emit("Identity", [ends[0] if guarded else flag], [names.fresh(f"{flag}_next")])
    types = [body.types[name] for name in body.outputs]
    graph = _body_graph(
        inner,
        [(iteration, ITERATION), (flag, _FLAG), *zip(inside, types, strict=False)],
        [(goes_on, _FLAG), *zip(ends, types, strict=True)],
    )
    count = context.attr("count")
    trip_count = "" if count == UNBOUNDED else context.constant(np.array(count, np.int64), "turns")
    condition = operands[0] if guarded else context.constant(np.array(True), "always")
    context.results("Loop", trip_count, condition, *operands[:carried], body=graph)


def write_branch(context: NodeContext, write_body: WriteBody) -> None:
    """Write ``branch`` as If, with both branches as ONNX subgraphs."""
    graphs = {}
    operands = [context.operand(k) for k in range(len(context.node.inputs))]
    for ours, theirs in (("then", "then_branch"), ("otherwise", "else_branch")):
        body = context.attr(ours)
        inner, ends = write_body(body, context.builder, dict(zip(body.inputs, operands[1:], strict=True)))
        types = [body.types[name] for name in body.outputs]
        graphs[theirs] = _body_graph(inner, [], list(zip(ends, types, strict=True)))
    context.results("If", operands[0], **graphs)


def _body_graph(
    builder: OnnxGraphWriter, inputs: list[tuple[str, TensorType]], outputs: list[tuple[str, TensorType]]
) -> Any:
    """Return the GraphProto of the subgraph that ``builder`` wrote; ``inputs`` and ``outputs`` are pairs of name and type."""
    from onnx import helper

    ends = ([value_info(name, kind) for name, kind in values] for values in (inputs, outputs))
    return helper.make_graph(builder.nodes, builder.graph.name or "body", *ends, builder.initializers)


CONTROL_ROWS: Mapping[str, Callable[[NodeContext, WriteBody], None]] = {"branch": write_branch, "loop": write_loop}
