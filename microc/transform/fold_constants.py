"""Nodes over constants are computed now, by the operator's own reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from microc.dtypes import Array
from microc.errors import InternalError
from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.transform.context import Pass, PassContext

LARGE = 1 << 20
GROWTH = 16


def fold_constants(graph: Graph, context: PassContext) -> Graph:
    """Constants that would be larger than 1 MiB and more than 16 times their inputs are left to run time.

    So are quantised operators, which mean something else than their integers until they are legalized, and what updates state.
    The attributes of dequantize say all that it means.
    """
    consts = dict(graph.consts)
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = [name for name in node.inputs if name]
        constant = bool(inputs) and all(name in consts for name in inputs)
        if not constant or not _may_fold(replace(graph, consts=consts), node):
            nodes.append(node)
            continue
        consts.update(_computed(graph, node, [consts[name] for name in inputs]))
    return replace(graph, consts=consts).with_nodes(nodes) if len(nodes) != len(graph.nodes) else graph


def _may_fold(graph: Graph, node: Node) -> bool:
    made = sum(graph.types[name].nbytes for name in node.outputs if name)
    if made > LARGE and made > GROWTH * sum(graph.types[name].nbytes for name in node.inputs if name):
        return False
    legalize = registry.get(node.op).legalize
    surface = node.op != "dequantize" and legalize is not None and legalize(node, graph) is not None
    return not surface and set(graph.updates.values()).isdisjoint(node.outputs)


def _computed(graph: Graph, node: Node, arrays: list[Array]) -> dict[str, Array]:
    definition = registry.get(node.op)
    with np.errstate(all="ignore"):
        results = definition.reference({**definition.defaults, **node.attrs}, arrays)
    found = {}
    for name, array in zip(node.outputs, results, strict=True):
        kind = graph.types[name]
        if (array.shape, str(array.dtype)) != (kind.shape, kind.dtype):
            raise InternalError(f"{node.op} gave {array.dtype} {array.shape} for {name!r}", where=str(node.loc))
        found[name] = np.array(array, order="C")
    return found


PASS = Pass("fold_constants", fold_constants, 2)
