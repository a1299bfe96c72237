# SPDX-License-Identifier: Apache-2.0
"""Unrolling of loops over time: the nodes of all iterations, one after the other, of which gradients are made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from microc.errors import UnsupportedError
from microc.graph.ir import Attr, Graph, NameSet, Node
from microc.ops import registry
from microc.ops.arithmetic import Rewrite
from microc.ops.registry import Legalized

MAX_UNROLLED_NODES = 20_000
"""Largest number of nodes of an unrolled loop. measured: a network of this many takes minutes to compile."""


class _Unrolling(Rewrite):
    """Nodes that replace a loop. Types are inferred."""

    def __init__(self, node: Node, graph: Graph) -> None:
        super().__init__(node, graph)
        self._names = NameSet(graph.types)

    def _unused_value_name(self, stem: str) -> str:
        return self._names.fresh(f"{next(filter(None, self.node.outputs))}.{stem}")

    def apply(self, op: str, *inputs: str, result: str = "", stem: str = "step", **attrs: Attr) -> str:
        """Append a node; return the name of its result, which is new unless ``result`` names it."""
        whole = {**registry.get(op).defaults, **attrs}
        (tensor_type,) = registry.infer(op, whole, [self.type(name) for name in inputs])
        if not result:
            result = self.add_value(stem, tensor_type.shape, tensor_type.dtype, tensor_type.quant)
        return self.emit(op, inputs, result, whole)

    def take_row(self, value: str, axis: int, index: int) -> str:
        """Return the element of ``value`` at ``index`` along ``axis``, without this axis."""
        shape = self.type(value).shape
        begin, end = [0] * len(shape), list(shape)
        begin[axis], end[axis] = index, index + 1
        row = self.apply("slice", value, begin=tuple(begin), end=tuple(end), strides=(1,) * len(shape))
        return self.apply("reshape", row, shape=(*shape[:axis], *shape[axis + 1 :]))

    def stack_rows(self, rows: list[str], axis: int, result: str) -> None:
        """Append the stack of ``rows`` along a new axis, as the value ``result``."""
        shape = self.type(rows[0]).shape
        planes = [self.apply("reshape", row, shape=(*shape[:axis], 1, *shape[axis:])) for row in rows]
        self.apply("concat", *planes, result=result, axis=axis)


def _check_size(node: Node, iterations: int, nodes: int) -> None:
    """Raise UnsupportedError if the unrolled loop has too many nodes."""
    if iterations * nodes > MAX_UNROLLED_NODES:
        raise UnsupportedError(
            f"{node.op}: too long for a gradient, which unrolls it; got {iterations} iterations of {nodes} operators, "
            f"expected at most {MAX_UNROLLED_NODES} operators",
            where=str(node.loc),
            hint="shorten the sequence",
        )


def unroll_loop(node: Node, graph: Graph) -> Legalized:
    """Replace a ``loop`` with a fixed number of iterations by the nodes of all iterations.

    Constants of the body are shared by all iterations, under new names made from their own. Raise UnsupportedError for
    a loop that a condition ends, and for one with too many iterations."""
    body: Any = node.attr("body")
    count, carried = int(node.attr("count")), int(node.attr("carried"))
    scanned: Any = node.attrs.get("scanned", 0)
    if node.attr("guarded"):
        raise UnsupportedError(
            "loop: a loop that ends by a condition has no gradient; got guarded=True, expected a fixed count",
            where=str(node.loc),
            hint="export the model with a fixed number of iterations",
        )
    _check_size(node, count, len(body.nodes))
    unrolling = _Unrolling(node, graph)
    constants = {name: unrolling.add_constant(name, data) for name, data in body.consts.items()}
    for name, renamed in constants.items():
        unrolling.types[renamed] = body.types[name]
    whole = len(node.inputs) - scanned
    states, fixed, rows = list(node.inputs[:carried]), node.inputs[carried:whole], node.inputs[whole:]
    stacked: list[list[str]] = [[] for _ in body.outputs[carried:]]
    for iteration in range(count):
        number = unrolling.add_constant("iteration", np.asarray(iteration, np.int32))
        elements = [unrolling.take_row(name, 0, iteration) for name in rows]
        names = {**constants, **dict(zip(body.inputs, (number, *states, *fixed, *elements), strict=True))}
        for inner in body.nodes:
            _copy_node(unrolling, inner, body, names)
        states = [names[name] for name in body.outputs[:carried]]
        for column, name in zip(stacked, body.outputs[carried:], strict=True):
            column.append(names[name])
    for state, result in zip(states, node.outputs, strict=False):
        if result:
            unrolling.apply("reshape", state, result=result, shape=graph.types[result].shape)
    for column, result in zip(stacked, node.outputs[carried:], strict=True):
        if result:
            unrolling.stack_rows(column, 0, result)
    return unrolling.legalized()


def _copy_node(unrolling: _Unrolling, node: Node, body: Graph, names: dict[str, str]) -> None:
    """Append a copy of a node of the body. ``names``: names of the body's values in the graph, to which the results are
    added."""
    inputs = tuple(name and names[name] for name in node.inputs)
    for name in filter(None, node.outputs):
        tensor_type = body.types[name]
        names[name] = unrolling.add_value(name, tensor_type.shape, tensor_type.dtype, tensor_type.quant)
    unrolling.nodes.append(replace(node, inputs=inputs, outputs=tuple(name and names[name] for name in node.outputs)))
