"""Export of elementwise operators, reductions, loops and branches to ONNX.

A row is the function that writes one operator of microc's graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.frontend.onnx.operators_elementwise import COMPARISONS, FUNCTIONS, PAIRS, OneToOne
from microc.frontend.onnx.writer.context import CODES, Application, OnnxGraphWriter, Row, value_info
from microc.frontend.onnx.writer.rows_layers import quantize
from microc.graph.ir import Graph, TensorType
from microc.ops.control import UNBOUNDED, scanned_operand_count

# ---- Functions of one and two numbers, comparisons, selection, conversions.


def one_to_one(row: OneToOne) -> Row:
    """Make the function that writes a graph operator with a direct equivalent in ONNX, described by ``row``."""

    def write(application: Application) -> None:
        application = application.in_layout_of_operands()
        operands = [application.operand(k) for k in range(len(application.node.inputs))]
        application.result(row.code, *operands, **{name: application.attr(name) for name in row.reals})

    return write


def clip(application: Application) -> None:
    """Write ``clip`` as Clip. Bounds for integer data are integers of the data's dtype."""
    application = application.in_layout_of_operands()
    bounds = [_clip_bound(application, application.attr(name)) for name in ("minimum", "maximum")]
    application.result("Clip", application.operand(), *bounds)


def _clip_bound(application: Application, bound: float) -> str:
    """Return the name of an initialiser for a bound of Clip; a bound for integers is limited to the range of their dtype."""
    if not dtypes.is_float(application.dtype()):
        low, high = dtypes.int_range(application.dtype())
        bound = min(max(int(bound), low), high)
    return application.number(bound)


def dequantised_number(application: Application, value: float) -> float:
    """Return the float32 that the stored number ``value`` represents; ``value`` itself if operands are not quantised."""
    quant = application.type().quant
    if not application.quantised or quant is None:
        return value
    return float(np.float32(value - quant.zero_point[0]) * np.float32(quant.scale[0]))


def quotient(application: Application) -> None:
    """Write ``div`` as Div. Integer division rounds towards zero in microc and in ONNX."""
    application.result("Div", application.operand(0), application.operand(1))


def remainder(has_dividend_sign: int) -> Row:
    """Make the function that writes a remainder as Mod.

    The remainder has the sign of the dividend if ``has_dividend_sign``, else that of the divisor.
    ONNX's Mod supports the sign of the divisor for integers only. For floats a - floor(a / b) * b is written instead."""

    def write(application: Application) -> None:
        a, b = application.operand(0), application.operand(1)
        if has_dividend_sign or not dtypes.is_float(application.dtype()):
            application.result("Mod", a, b, fmod=has_dividend_sign)
            return
        down = application.emit("Floor", application.emit("Div", a, b))
        application.result("Sub", a, application.emit("Mul", down, b))

    return write


def floor_quotient(application: Application) -> None:
    """Write floor(a / b); for integers as (a - (a mod b)) / b, which has no remainder."""
    a, b = application.operand(0), application.operand(1)
    if dtypes.is_float(application.dtype()):
        application.result("Floor", application.emit("Div", a, b))
    else:
        rest = application.emit("Mod", a, b, fmod=0)
        application.result("Div", application.emit("Sub", a, rest), b)


def power(application: Application) -> None:
    application.result("Pow", application.operand(0), application.operand(1))


def squared_difference(application: Application) -> None:
    """Write (a - b) * (a - b)."""
    difference = application.emit("Sub", application.operand(0), application.operand(1))
    application.result("Mul", difference, difference)


def reciprocal_root(application: Application) -> None:
    """Write 1 / sqrt(x)."""
    application.result("Reciprocal", application.emit("Sqrt", application.operand()))


def shift(direction: str) -> Row:
    """Make the function that writes a shift as BitShift; raise UnsupportedError for signed integers, which BitShift lacks."""

    def write(application: Application) -> None:
        if dtypes.dtype_parts(application.dtype()).kind != "uint":
            application.refuse(f"a shift of {application.dtype()}", "ONNX shifts unsigned integers only")
        application.result("BitShift", application.operand(0), application.operand(1), direction=direction)

    return write


def logical_not_of(comparison_operator: str) -> Row:
    """Make the function that writes Not of the ONNX operator ``comparison_operator``, such as Not of Equal."""

    def write(application: Application) -> None:
        application.result("Not", application.emit(comparison_operator, application.operand(0), application.operand(1)))

    return write


def prelu(application: Application) -> None:
    """Write ``prelu`` as PRelu."""
    application = application.in_layout_of_operands()
    application.result("PRelu", application.operand(0), application.operand(1))


def where(application: Application) -> None:
    application.result("Where", *(application.operand(k) for k in range(3)))


def logical_not(application: Application) -> None:
    application.result("Not", application.operand())


def cast(application: Application) -> None:
    """Write ``cast`` as Cast; between quantised types, as a requantisation to the scale, zero point and dtype of the result."""
    from microc.frontend.onnx.writer.context import CODES

    kind = application.result_type
    if application.type().quant is not None and kind.quant is not None:
        quant = kind.quant
        attrs = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis, "out_dtype": kind.dtype}
        quantize(replace(application, node=replace(application.node, attrs=attrs)))
    else:
        application.result("Cast", application.operand(), to=CODES[application.attr("dtype")])


ELEMENTWISE_ROWS: Mapping[str, Row] = {
    **{row.op: one_to_one(row) for row in (*FUNCTIONS, *PAIRS, *COMPARISONS)},
    "cast": cast,
    "clip": clip,
    "div": quotient,
    "floor_div": floor_quotient,
    "floor_mod": remainder(0),
    "fmod": remainder(1),
    "logical_not": logical_not,
    "not_equal": logical_not_of("Equal"),
    "pow": power,
    "prelu": prelu,
    "rsqrt": reciprocal_root,
    "shift_left": shift("LEFT"),
    "shift_right": shift("RIGHT"),
    "squared_difference": squared_difference,
    "where": where,
}


# ---- Reductions, cumulative sums and searches along axes.

_IMAGES = {(1, 2): True, (2, 3): False}
"""Spatial axes of a batch of images; the value is True if channels are the last axis, False if channels are axis 1."""
INDEX_DTYPE = "int64"
"""Dtype of indices that ONNX operators return."""


def reduction(code: str) -> Row:
    """Make the function that writes a reduction over axes as ONNX operator ``code``, such as ReduceSum."""

    def write(application: Application) -> None:
        if application.attr("offset") or application.attr("out_dtype"):
            application.refuse(
                "sums of other integers than the data", "write the graph as it was read, before any pass"
            )
        keepdims = int(application.attr("keepdims"))
        application.result(code, application.operand(), _axes_operand(application), keepdims=keepdims)

    return write


def _axes_operand(application: Application) -> str:
    """Return the name of an initialiser with the axes of a reduction."""
    return application.integers(*_sorted_axes(application))


def _sorted_axes(application: Application) -> tuple[int, ...]:
    """Return the axes of a reduction as numbers of 0 to rank - 1, in ascending order."""
    rank = len(application.type().shape)
    return tuple(sorted(axis % rank for axis in application.attr("axes")))


def mean(application: Application) -> None:
    """Write ``mean`` as ReduceMean.

    A mean over the spatial axes of images is written as GlobalAveragePool, because runtimes can compute this operator in
    integers."""
    application.only_floats()
    axes = _sorted_axes(application)
    if len(application.type().shape) != 4 or axes not in _IMAGES:
        application.result(
            "ReduceMean", application.operand(), _axes_operand(application), keepdims=int(application.attr("keepdims"))
        )
        return
    pooled = application.with_channels_first() if _IMAGES[axes] else application
    if application.attr("keepdims"):
        pooled.result("GlobalAveragePool", pooled.operand())
        return
    flat = application.integers(*application.result_type.shape)
    operand = pooled.operand()
    application.result("GlobalAveragePool", operand, then=[("Reshape", (flat,), {})])


def cumulative(code: str) -> Row:
    """Make the function that writes a cumulative sum or product as ONNX operator ``code``, CumSum or CumProd."""

    def write(application: Application) -> None:
        axis = application.constant(np.array(application.attr("axis"), np.int64))
        exclusive, reverse = (int(application.attr(name)) for name in ("exclusive", "reverse"))
        application.result(code, application.operand(), axis, exclusive=exclusive, reverse=reverse)

    return write


def search(code: str) -> Row:
    """Make the function that writes the index of a maximum or minimum as ONNX operator ``code``, ArgMax or ArgMin."""

    def write(application: Application) -> None:
        dtype = application.attr("out_dtype")
        application.result(
            code,
            application.operand(),
            then=[("Cast", (), {"to": CODES[dtype]})] if dtype != INDEX_DTYPE else [],
            axis=application.attr("axis"),
            keepdims=int(application.attr("keepdims")),
            select_last_index=int(application.attr("last")),
        )

    return write


def top_k(application: Application) -> None:
    """Write ``topk`` as TopK with sorted results."""
    count = application.integers(application.attr("k"))
    attributes = {"axis": application.attr("axis"), "largest": int(application.attr("largest")), "sorted": 1}
    application.results("TopK", application.operand(), count, dtypes_made=(None, INDEX_DTYPE), **attributes)


REDUCTION_ROWS: Mapping[str, Row] = {
    "argmax": search("ArgMax"),
    "argmin": search("ArgMin"),
    "cumprod": cumulative("CumProd"),
    "cumsum": cumulative("CumSum"),
    "max": reduction("ReduceMax"),
    "mean": mean,
    "min": reduction("ReduceMin"),
    "prod": reduction("ReduceProd"),
    "sum": reduction("ReduceSum"),
    "topk": top_k,
}


# ---- Loops and branches: bodies become ONNX subgraphs, which read fixed values from outside by name.

WriteBody = Callable[[Graph, OnnxGraphWriter, Mapping[str, str]], tuple[OnnxGraphWriter, tuple[str, ...]]]
"""Function that writes a loop's or branch's body in ONNX: :func:`microc.frontend.onnx.writer.model_proto.write_body`."""

_FLAG, ITERATION = TensorType((), "bool"), TensorType((), "int64")


def loop(application: Application, write_body: WriteBody) -> None:
    """Write ``loop`` as Loop.

    The body in microc's graph reads the iteration number as int32, so the ONNX body starts with a Cast from int64. If the
    loop is guarded, its first carried value is the condition to continue. A guarded loop that also stacks outputs is
    refused: microc stacks rows for all iterations, ONNX only for those that ran.
    """
    body, carried, guarded = (application.attr(name) for name in ("body", "carried", "guarded"))
    if guarded and len(body.outputs) > carried:
        application.refuse(
            "stacked outputs of a loop that may end early", "ONNX's Loop stacks those of the iterations that ran"
        )
    outer, names = application.builder, application.builder.names
    operands = [application.operand(k) for k in range(len(application.node.inputs))]
    iteration, flag, count_int32 = (
        names.fresh(f"{application.node.outputs[0]}_{stem}") for stem in ("turn", "flag", "count")
    )
    inside = [names.fresh(name) for name in body.inputs[1 : 1 + carried]]
    rows = [names.fresh(name) for name in body.inputs[len(body.inputs) - scanned_operand_count(application.node) :]]
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
    count = application.attr("count")
    trip_count = "" if count == UNBOUNDED else application.constant(np.array(count, np.int64), "turns")
    condition = operands[0] if guarded else application.constant(np.array(True), "always")
    application.results("Loop", trip_count, condition, *operands[:carried], body=graph)


def branch(application: Application, write_body: WriteBody) -> None:
    """Write ``branch`` as If, with both branches as ONNX subgraphs."""
    graphs = {}
    operands = [application.operand(k) for k in range(len(application.node.inputs))]
    for ours, theirs in (("then", "then_branch"), ("otherwise", "else_branch")):
        body = application.attr(ours)
        inner, ends = write_body(body, application.builder, dict(zip(body.inputs, operands[1:], strict=True)))
        types = [body.types[name] for name in body.outputs]
        graphs[theirs] = _body_graph(inner, [], list(zip(ends, types, strict=True)))
    application.results("If", operands[0], **graphs)


def _body_graph(
    builder: OnnxGraphWriter, inputs: list[tuple[str, TensorType]], outputs: list[tuple[str, TensorType]]
) -> Any:
    """Return the GraphProto of the subgraph that ``builder`` wrote; ``inputs`` and ``outputs`` are pairs of name and type."""
    from onnx import helper

    ends = ([value_info(name, kind) for name, kind in values] for values in (inputs, outputs))
    return helper.make_graph(builder.nodes, builder.graph.name or "body", *ends, builder.initializers)


CONTROL_ROWS: Mapping[str, Callable[[Application, WriteBody], None]] = {"branch": branch, "loop": loop}
