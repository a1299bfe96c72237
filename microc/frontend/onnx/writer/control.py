"""Loops and branches, whose graphs become graphs of ONNX: fixed values go in by their names outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from microc.frontend.onnx.writer.application import Application
from microc.frontend.onnx.writer.build import CODES, Builder, value_info
from microc.graph.ir import Graph, TensorType
from microc.ops.control import UNBOUNDED, scanned_of

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


ROWS: Mapping[str, Callable[[Application, WriteBody], None]] = {"branch": branch, "loop": loop}
