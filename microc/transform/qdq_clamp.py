"""Relu and clip that keep a value's quantisation are limits on integers: they join the layer before, or mean nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from microc import dtypes
from microc.graph.ir import Graph, Node, TensorType
from microc.ops import registry
from microc.ops.arith import activation_range
from microc.ops.rounding import Rounding

_ACTIVATIONS = ("", "relu", "relu6", "relu_n1_to_1")


def fuse_clamps(graph: Graph) -> Graph:
    """The graph with quantised relu and clip made the ``activation`` of their producer, or dropped where implied."""
    readers = Counter(name for node in graph.nodes for name in node.inputs)
    kept = {*graph.outputs, *graph.updates.values()}
    readers.update(kept)
    renamed: dict[str, str] = {}
    made: dict[str, int] = {}
    nodes: list[Node] = []
    for old in graph.nodes:
        node = replace(old, inputs=tuple(renamed.get(name, name) for name in old.inputs))
        source = node.inputs[0] if node.inputs else ""
        activation = _activation(graph, node)
        producer = nodes[made[source]] if source in made else None
        if activation == "" and node.outputs[0] not in kept:
            renamed[node.outputs[0]] = source
            readers[source] += readers[node.outputs[0]] - 1
            continue
        while producer is not None and registry.get(producer.op).moves and readers[producer.inputs[0]] == 1:
            producer = nodes[made[producer.inputs[0]]] if producer.inputs[0] in made else None
        joinable = producer is not None and producer.attrs.get("activation") == "" and readers[source] == 1
        if producer is not None and activation is not None and joinable:
            place = made[producer.outputs[0]]
            nodes[place] = replace(producer, attrs={**producer.attrs, "activation": activation})
            last = made.pop(source)
            nodes[last] = replace(nodes[last], outputs=node.outputs)
            made[node.outputs[0]] = last
            continue
        made.update({name: len(nodes) for name in node.outputs})
        nodes.append(node)
    return graph.with_nodes(nodes)


def _activation(graph: Graph, node: Node) -> str | None:
    """The activation that limits integers as ``node`` does; None if it is no such limit, or one without a name."""
    if node.op not in ("relu", "clip"):
        return None
    kind, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    if kind.quant is None or kind.quant.axis is not None or (kind.quant, kind.dtype) != (result.quant, result.dtype):
        return None
    limits = _limits(node, kind)
    for name in _ACTIVATIONS:
        if activation_range(name, kind.quant, kind.dtype, Rounding.EVEN) == limits:
            return name
    return None


def _limits(node: Node, kind: TensorType) -> tuple[int, int]:
    """The least and the greatest integer that a quantised relu or clip lets through."""
    assert kind.quant is not None
    low, high = dtypes.int_range(kind.dtype)
    scale, zero = np.float32(kind.quant.scale[0]), kind.quant.zero_point[0]
    if node.op == "relu":
        return max(low, min(high, zero)), high

    def level(real: float) -> int:
        return max(low, min(high, zero + int(np.rint(np.float32(real) / scale))))

    return level(node.attr("minimum")), level(node.attr("maximum"))
