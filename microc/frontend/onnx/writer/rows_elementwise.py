"""Rows for elementwise operators, reductions and control flow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.frontend.onnx.operators_elementwise import COMPARISONS, FUNCTIONS, PAIRS, Alike
from microc.frontend.onnx.writer.context import CODES, Application, Builder, Row, value_info
from microc.frontend.onnx.writer.rows_layers import quantize
from microc.graph.ir import Graph, TensorType
from microc.ops.control import UNBOUNDED, scanned_of

# ---- Functions of one number and of two, comparisons, choice, conversions.


def alike(row: Alike) -> Row:
    """An operator that is the same in ONNX."""

    def write(application: Application) -> None:
        application = application.where_it_lies()
        operands = [application.operand(k) for k in range(len(application.node.inputs))]
        application.result(row.code, *operands, **{name: application.attr(name) for name in row.reals})

    return write


def clip(application: Application) -> None:
    """Clip; of integers the bounds are as stored."""
    application = application.where_it_lies()
    bounds = [_bound(application, application.attr(name)) for name in ("minimum", "maximum")]
    application.result("Clip", application.operand(), *bounds)


def _bound(application: Application, value: float) -> str:
    """A bound, brought into the range of the dtype."""
    if not dtypes.is_float(application.dtype()):
        low, high = dtypes.int_range(application.dtype())
        value = min(max(int(value), low), high)
    return application.number(value)


def stored_real(application: Application, value: float) -> float:
    """The real that a stored number stands for, in float32; of numbers that are computed with as they are, itself."""
    quant = application.type().quant
    if not application.quantised or quant is None:
        return value
    return float(np.float32(value - quant.zero_point[0]) * np.float32(quant.scale[0]))


def quotient(application: Application) -> None:
    """Div; of integers both round to zero."""
    application.result("Div", application.operand(0), application.operand(1))


def remainder(fmod: int) -> Row:
    """Mod, with the divisor's sign (which ONNX has of integers only), or with the dividend's."""

    def write(application: Application) -> None:
        a, b = application.operand(0), application.operand(1)
        if fmod or not dtypes.is_float(application.dtype()):
            application.result("Mod", a, b, fmod=fmod)
            return
        down = application.emit("Floor", application.emit("Div", a, b))
        application.result("Sub", a, application.emit("Mul", down, b))

    return write


def floor_quotient(application: Application) -> None:
    """floor(a / b); of integers (a - (a mod b)) / b, which has no remainder."""
    a, b = application.operand(0), application.operand(1)
    if dtypes.is_float(application.dtype()):
        application.result("Floor", application.emit("Div", a, b))
    else:
        rest = application.emit("Mod", a, b, fmod=0)
        application.result("Div", application.emit("Sub", a, rest), b)


def power(application: Application) -> None:
    application.result("Pow", application.operand(0), application.operand(1))


def squared_difference(application: Application) -> None:
    """(a - b) * (a - b)."""
    difference = application.emit("Sub", application.operand(0), application.operand(1))
    application.result("Mul", difference, difference)


def reciprocal_root(application: Application) -> None:
    """1 / sqrt(x)."""
    application.result("Reciprocal", application.emit("Sqrt", application.operand()))


def shift(direction: str) -> Row:
    """BitShift, which ONNX has of unsigned integers."""

    def write(application: Application) -> None:
        if dtypes.info(application.dtype()).kind != "uint":
            application.refuse(f"a shift of {application.dtype()}", "ONNX shifts unsigned integers only")
        application.result("BitShift", application.operand(0), application.operand(1), direction=direction)

    return write


def negated(code: str) -> Row:
    """Not of what ``code`` tells."""

    def write(application: Application) -> None:
        application.result("Not", application.emit(code, application.operand(0), application.operand(1)))

    return write


def prelu(application: Application) -> None:
    """PRelu."""
    application = application.where_it_lies()
    application.result("PRelu", application.operand(0), application.operand(1))


def where(application: Application) -> None:
    application.result("Where", *(application.operand(k) for k in range(3)))


def logical_not(application: Application) -> None:
    application.result("Not", application.operand())


def cast(application: Application) -> None:
    """Cast; integers that stand for reals stand for the same in other bits."""
    from microc.frontend.onnx.writer.context import CODES

    kind = application.result_type
    if application.type().quant is not None and kind.quant is not None:
        quant = kind.quant
        attrs = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis, "out_dtype": kind.dtype}
        quantize(replace(application, node=replace(application.node, attrs=attrs)))
    else:
        application.result("Cast", application.operand(), to=CODES[application.attr("dtype")])


ELEMENTWISE_ROWS: Mapping[str, Row] = {
    **{row.op: alike(row) for row in (*FUNCTIONS, *PAIRS, *COMPARISONS)},
    "cast": cast,
    "clip": clip,
    "div": quotient,
    "floor_div": floor_quotient,
    "floor_mod": remainder(0),
    "fmod": remainder(1),
    "logical_not": logical_not,
    "not_equal": negated("Equal"),
    "pow": power,
    "prelu": prelu,
    "rsqrt": reciprocal_root,
    "shift_left": shift("LEFT"),
    "shift_right": shift("RIGHT"),
    "squared_difference": squared_difference,
    "where": where,
}


# ---- Reductions, running sums and searches along axes.

_IMAGES = {(1, 2): True, (2, 3): False}
"""Rows and columns of images, and whether channels are behind them."""
PLACES = "int64"
"""The dtype of what ONNX finds."""


def reduction(code: str) -> Row:
    """A reduction over axes."""

    def write(application: Application) -> None:
        if application.attr("offset") or application.attr("out_dtype"):
            application.refuse(
                "sums of other integers than the data", "write the graph as it was read, before any pass"
            )
        keepdims = int(application.attr("keepdims"))
        application.result(code, application.operand(), _axes(application), keepdims=keepdims)

    return write


def _axes(application: Application) -> str:
    return application.integers(*_sorted_axes(application))


def _sorted_axes(application: Application) -> tuple[int, ...]:
    rank = len(application.type().shape)
    return tuple(sorted(axis % rank for axis in application.attr("axes")))


def mean(application: Application) -> None:
    """ReduceMean; over the rows and columns of images GlobalAveragePool, which runtimes have in integers, too."""
    application.only_floats()
    axes = _sorted_axes(application)
    if len(application.type().shape) != 4 or axes not in _IMAGES:
        application.result(
            "ReduceMean", application.operand(), _axes(application), keepdims=int(application.attr("keepdims"))
        )
        return
    pooled = application.with_channels_first() if _IMAGES[axes] else application
    if application.attr("keepdims"):
        pooled.result("GlobalAveragePool", pooled.operand())
        return
    flat = application.integers(*application.result_type.shape)
    operand = pooled.operand()
    application.result("GlobalAveragePool", operand, then=[("Reshape", (flat,), {})])


def running(code: str) -> Row:
    """CumSum and CumProd."""

    def write(application: Application) -> None:
        axis = application.constant(np.array(application.attr("axis"), np.int64))
        exclusive, reverse = (int(application.attr(name)) for name in ("exclusive", "reverse"))
        application.result(code, application.operand(), axis, exclusive=exclusive, reverse=reverse)

    return write


def search(code: str) -> Row:
    """ArgMax and ArgMin."""

    def write(application: Application) -> None:
        dtype = application.attr("out_dtype")
        application.result(
            code,
            application.operand(),
            then=[("Cast", (), {"to": CODES[dtype]})] if dtype != PLACES else [],
            axis=application.attr("axis"),
            keepdims=int(application.attr("keepdims")),
            select_last_index=int(application.attr("last")),
        )

    return write


def top_k(application: Application) -> None:
    """TopK, sorted."""
    count = application.integers(application.attr("k"))
    ways = {"axis": application.attr("axis"), "largest": int(application.attr("largest")), "sorted": 1}
    application.results("TopK", application.operand(), count, made=(None, PLACES), **ways)


REDUCTION_ROWS: Mapping[str, Row] = {
    "argmax": search("ArgMax"),
    "argmin": search("ArgMin"),
    "cumprod": running("CumProd"),
    "cumsum": running("CumSum"),
    "max": reduction("ReduceMax"),
    "mean": mean,
    "min": reduction("ReduceMin"),
    "prod": reduction("ReduceProd"),
    "sum": reduction("ReduceSum"),
    "topk": top_k,
}


# ---- Loops and branches, whose graphs become graphs of ONNX: fixed values go in by their names outside.

WriteBody = Callable[[Graph, Builder, Mapping[str, str]], tuple[Builder, tuple[str, ...]]]
"""What writes a graph inside an operator: :func:`microc.frontend.onnx.writer.model.write_body`."""

_FLAG, _TURN = TensorType((), "bool"), TensorType((), "int64")


def loop(application: Application, write_body: WriteBody) -> None:
    """Loop. Ours counts its turns in int32, and a guard is a carried value; a loop that stacks makes all rows, however early
    it ends, which ONNX's does not."""
    body, carried, guarded = (application.attr(name) for name in ("body", "carried", "guarded"))
    if guarded and len(body.outputs) > carried:
        application.refuse("a loop that ends early and stacks values", "ONNX stacks those of the turns that were made")
    outer, names = application.builder, application.builder.names
    operands = [application.operand(k) for k in range(len(application.node.inputs))]
    turn, flag, narrow = (names.fresh(f"{application.node.outputs[0]}_{stem}") for stem in ("turn", "flag", "count"))
    inside = [names.fresh(name) for name in body.inputs[1 : 1 + carried]]
    rows = [names.fresh(name) for name in body.inputs[len(body.inputs) - scanned_of(application.node) :]]
    whole = operands[carried : len(operands) - len(rows)]
    bound = dict(zip(body.inputs, (narrow, *inside, *whole, *rows), strict=True))
    inner, ends = write_body(body, outer, bound)
    inner.emit_first("Cast", [turn], narrow, to=CODES["int32"])
    for row, operand in zip(rows, operands[carried + len(whole) :], strict=True):
        inner.emit_first("Gather", [operand, turn], row, axis=0)
    goes_on = inner.emit("Identity", [ends[0] if guarded else flag], [names.fresh(f"{flag}_next")])
    types = [body.types[name] for name in body.outputs]
    graph = _graph(
        inner,
        [(turn, _TURN), (flag, _FLAG), *zip(inside, types, strict=False)],
        [(goes_on, _FLAG), *zip(ends, types, strict=True)],
    )
    count = application.attr("count")
    most = "" if count == UNBOUNDED else application.constant(np.array(count, np.int64), "turns")
    condition = operands[0] if guarded else application.constant(np.array(True), "always")
    application.results("Loop", most, condition, *operands[:carried], body=graph)


def branch(application: Application, write_body: WriteBody) -> None:
    """If."""
    graphs = {}
    operands = [application.operand(k) for k in range(len(application.node.inputs))]
    for ours, theirs in (("then", "then_branch"), ("otherwise", "else_branch")):
        body = application.attr(ours)
        inner, ends = write_body(body, application.builder, dict(zip(body.inputs, operands[1:], strict=True)))
        types = [body.types[name] for name in body.outputs]
        graphs[theirs] = _graph(inner, [], list(zip(ends, types, strict=True)))
    application.results("If", operands[0], **graphs)


def _graph(builder: Builder, inputs: list[tuple[str, TensorType]], outputs: list[tuple[str, TensorType]]) -> Any:
    from onnx import helper

    ends = ([value_info(name, kind) for name, kind in values] for values in (inputs, outputs))
    return helper.make_graph(builder.nodes, builder.graph.name or "body", *ends, builder.initializers)


CONTROL_ROWS: Mapping[str, Callable[[Application, WriteBody], None]] = {"branch": branch, "loop": loop}
