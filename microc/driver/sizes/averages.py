"""Quantised means over as many elements as the sizes of a run say: what they are multiplied by is made when the network runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.ops import registry

Nodes = Sequence[Node]
"""The same node at several sizes."""


def with_open_averages(graphs: Sequence[Graph]) -> tuple[Graph, ...]:
    """One network at several sizes, its graphs alike node by node: where the count of a mean differs, a node of its own makes
    the multiplier, which is an operand then."""
    columns = [_opened(together) for together in zip(*(graph.nodes for graph in graphs), strict=True)]
    made = []
    for k, graph in enumerate(graphs):
        first = [column[k][0] for column in columns if len(column[k]) > 1]
        types = {name: kind for node in first for name, kind in _made(node)}
        nodes = (*first, *(column[k][-1] for column in columns))
        made.append(replace(graph, nodes=nodes, types={**graph.types, **types}) if nodes != graph.nodes else graph)
    return tuple(made)


def _opened(together: Nodes) -> list[tuple[Node, ...]]:
    """A node at every size, behind what makes its multiplier if that differs."""
    averages: list[Any] = [node.attrs.get("average") for node in together]
    if len(set(averages)) > 1:
        if together[0].op == "requantize_float":
            return [_scaled(node, *average) for node, average in zip(together, averages, strict=True)]
        lowest = min(int(node.attr("shift")) for node in together)
        return [_multiplied(node, lowest, *average) for node, average in zip(together, averages, strict=True)]
    inside: dict[str, tuple[Graph, ...]] = {}
    for key, value in together[0].attrs.items():
        if isinstance(value, Graph):
            inside[key] = with_open_averages([node.attrs[key] for node in together])  # type: ignore[misc]
    return [
        (replace(node, attrs={**node.attrs, **{key: graphs[k] for key, graphs in inside.items()}}),)
        for k, node in enumerate(together)
    ]


def _scaled(node: Node, scale_in: float, scale_out: float, count: int) -> tuple[Node, Node]:
    name = f"{node.outputs[0]}.scale"
    maker = Node("mean_scale", (), (name,), {"scale_in": scale_in, "scale_out": scale_out, "count": count}, node.loc)
    return maker, _given(node, (name,), {"scale": None})


def _multiplied(node: Node, lowest: int, multiplier: int, shift: int, count: int) -> tuple[Node, Node]:
    names = f"{node.outputs[0]}.multiplier", f"{node.outputs[0]}.shift"
    attrs: dict[str, Attr] = {"multiplier": multiplier, "shift": shift, "count": count}
    given = {"multiplier": None, "shift": None, "shift_range": (lowest, shift)}
    return Node("mean_multiplier", (), names, attrs, node.loc), _given(node, names, given)


def _given(node: Node, names: tuple[str, ...], attrs: dict[str, Any]) -> Node:
    kept = {key: value for key, value in node.attrs.items() if key != "average"}
    return replace(node, inputs=(*node.inputs, *names), attrs={**kept, **attrs})


def _made(node: Node) -> list[tuple[str, TensorType]]:
    return list(zip(node.outputs, registry.infer(node.op, node.attrs, ()), strict=True))
