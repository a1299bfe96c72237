"""Nodes over constants are computed now, by the operator's own reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from microc import dtypes
from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.transform.context import Pass, PassContext

LARGE = 1 << 20
GROWTH = 16


def fold_constants(graph: Graph, context: PassContext) -> Graph:
    """Constants that would be larger than 1 MiB and more than 16 times their inputs are left to run time."""
    consts = dict(graph.consts)
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = [name for name in node.inputs if name]
        if not inputs or any(name not in consts for name in inputs) or _explodes(graph, node, inputs):
            nodes.append(node)
            continue
        results = registry.get(node.op).reference(node.attrs, [consts[name] for name in inputs])
        for name, array in zip(node.outputs, results, strict=True):
            kind = graph.types[name]
            consts[name] = np.ascontiguousarray(array, dtype=dtypes.to_numpy(kind.dtype)).reshape(kind.shape)
    return replace(graph, consts=consts).with_nodes(nodes) if len(nodes) != len(graph.nodes) else graph


def _explodes(graph: Graph, node: Node, inputs: list[str]) -> bool:
    made = sum(graph.types[name].nbytes for name in node.outputs)
    return made > LARGE and made > GROWTH * sum(graph.types[name].nbytes for name in inputs)


PASS = Pass("fold_constants", fold_constants)
