"""Quantised and activated surface operators become core operators with explicit integer parameters."""

from __future__ import annotations

from dataclasses import replace

from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.transform.context import Pass, PassContext

ROUNDS = 4
"""An operator may become surface operators again (a mean becomes a sum and a requantize); few steps settle everything."""


def legalize(graph: Graph, context: PassContext) -> Graph:
    """Rewrite until nothing changes. With option ``requantize=fixed``, ONNX's float requantisation becomes fixed point."""
    if context.options.get("requantize") == "fixed":
        graph = graph.with_nodes(_fixed(graph, node) for node in graph.nodes)
    for _ in range(ROUNDS):
        rewritten = _once(graph)
        if rewritten is graph:
            break
        graph = rewritten
    return graph


def _fixed(graph: Graph, node: Node) -> Node:
    """The same operator, rounding as TFLite does."""
    if node.attrs.get("rounding") != "even" or node.op in ("quantize", "dequantize"):
        return node
    quantised = all(graph.types[name].quant is not None for name in (*node.inputs[:1], *node.outputs))
    return replace(node, attrs={**node.attrs, "rounding": "double"}) if quantised else node


def _once(graph: Graph) -> Graph:
    """Every node once; the same object when no operator had anything to rewrite."""
    nodes: list[Node] = []
    types, consts = dict(graph.types), dict(graph.consts)
    changed = False
    for node in graph.nodes:
        rewrite = registry.get(node.op).legalize
        found = rewrite(node, replace(graph, types=types, consts=consts)) if rewrite is not None else None
        if found is None:
            nodes.append(node)
            continue
        changed = True
        new_nodes, new_types, new_consts = found
        nodes.extend(new_nodes)
        types.update(new_types)
        consts.update(new_consts)
    return replace(graph, types=types, consts=consts).with_nodes(nodes) if changed else graph


PASS = Pass("legalize", legalize, 0)
