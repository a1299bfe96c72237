"""Loops that take what they gather by the number of their turn row by row: it is read where it lies, and nothing is copied."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from microc.graph.ir import Graph, Node, TensorType, new_value
from microc.ops.control import scanned_of
from microc.transform.context import Pass, PassContext


def scanned_rows(graph: Graph, context: PassContext) -> Graph:
    """The graph with such loops."""
    nodes: list[Node] = []
    types = dict(graph.types)
    for node in graph.nodes:
        nodes += _scanning(node, types) if node.op == "loop" else [node]
    return graph if nodes == [*graph.nodes] else replace(graph, types=types).with_nodes(nodes)


def _scanning(loop: Node, types: dict[str, TensorType]) -> list[Node]:
    """The loop, and the views before it; ``types`` gets theirs."""
    body: Graph = loop.attr("body")
    scanned = scanned_of(loop)
    gathers = _gathers(body, int(loop.attr("carried")), scanned, int(loop.attr("count")))
    if not gathers:
        return [loop]
    views, inputs, outer = [], list(body.inputs), list(loop.inputs)
    for gather in gathers:
        place, row = inputs.index(gather.inputs[0]), body.types[gather.outputs[0]]
        data = outer.pop(place - 1)
        del inputs[place]
        shape = (int(loop.attr("count")), *row.shape)
        name = new_value(types, f"{data}.scanned", replace(types[data], shape=shape))
        views.append(Node("reshape", (data,), (name,), {"shape": shape}, loop.loc))
        outer.append(name)
        inputs.append(gather.outputs[0])
    gone = {gather.inputs[0] for gather in gathers}
    turn = replace(
        body,
        inputs=tuple(inputs),
        nodes=tuple(node for node in body.nodes if node not in gathers),
        types={name: kind for name, kind in body.types.items() if name not in gone},
    )
    attrs = {**loop.attrs, "body": turn, "scanned": scanned + len(gathers)}
    return [*views, replace(loop, inputs=tuple(outer), attrs=attrs)]


def _gathers(body: Graph, carried: int, scanned: int, count: int) -> list[Node]:
    """Those of a fixed value along the axis that the turns number, before which there are none, and which nothing else reads."""
    turn, fixed = body.inputs[0], body.inputs[1 + carried : len(body.inputs) - scanned]
    found = []
    for node in body.nodes:
        if node.op != "gather" or node.inputs[0] not in fixed or node.inputs[1] != turn:
            continue
        data = node.inputs[0]
        shape, size = body.types[data].shape, body.types[node.outputs[0]].size
        outer = shape[: node.attr("axis") % len(shape)]
        alone = sum(other.inputs.count(data) for other in body.nodes) == 1 and data not in body.outputs
        if alone and prod(outer) == 1 and size * count == body.types[data].size:
            found.append(node)
    return found


PASS = Pass("scanned_rows", scanned_rows, 2, around=True)
