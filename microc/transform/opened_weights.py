"""Layers of floats whose constant weights are integers times scales, with these opened before the layer runs.

A product that opens its weights in registers does so again for every few rows. Opened first, they are read as they are, and take
RAM while the layer runs. A sum changes by no more than :mod:`microc.ops.matrix.levels` says.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import prod

from microc.graph.ir import Graph, Node, TensorType, fresh_name, new_value
from microc.ops import registry
from microc.ops.matrix.levels import Levels, find_levels
from microc.tir.bit_fields import bits_of
from microc.transform.context import WHERE_REQUIRED, Pass, PassContext

ROWS = 8
"""Rows of a product from which on weights serve often enough to be worth it."""
LAYERS = ("conv2d", "dense")
BYTE = 8


def opened_weights(graph: Graph, context: PassContext) -> Graph:
    """The graph with all such weights opened first."""
    found = find_opened(graph)
    return with_opened(graph, found, found) if found else graph


def find_opened(graph: Graph) -> dict[str, Levels]:
    """By name, the weights of such layers, each channel's with one scale; those of few bits, packed for the flash, stay."""
    found = {}
    for node in graph.nodes:
        name = node.inputs[1] if node.op in LAYERS else ""
        array = graph.consts.get(name)
        if array is None or array.dtype != "float32" or node.attrs.get("groups", 1) != 1 or _rows(graph, node) < ROWS:
            continue
        levels = find_levels(array.reshape(len(array), -1))
        if levels is not None and levels.scales.shape[1] == 1 and bits_of(levels.values) == BYTE:
            found[name] = levels
    return found


def _rows(graph: Graph, node: Node) -> int:
    """Of a layer's product: its results over its channels."""
    return prod(graph.types[node.outputs[0]].shape) // max(graph.types[node.inputs[1]].shape[0], 1)


def with_opened(graph: Graph, found: Mapping[str, Levels], chosen: Collection[str]) -> Graph:
    """The graph, fused or not, with the chosen weights opened by kernels of their own, each in front of the first layer that
    reads it."""
    types, consts = dict(graph.types), {name: array for name, array in graph.consts.items() if name not in chosen}
    nodes, waiting, groups = list[Node](), set(chosen), {node.group for node in graph.nodes}
    for node in graph.nodes:
        for name in dict.fromkeys(name for name in node.inputs if name in waiting):
            shape, levels = types[name].shape, found[name]
            factors = levels.scales.reshape(-1, *(1 for _ in shape[1:]))
            whole = new_value(types, f"{name}.levels", TensorType(shape, "int8"))
            real = new_value(types, f"{name}.real", TensorType(shape, "float32"))
            scale = new_value(types, f"{name}.scale", TensorType(factors.shape, "float32"))
            group = fresh_name(groups, "opened")
            groups.add(group)
            consts[whole], consts[scale] = levels.values.reshape(shape), factors
            nodes.append(Node("cast", (whole,), (real,), {"dtype": "float32"}, node.loc, group))
            nodes.append(Node("mul", (real, scale), (name,), dict(registry.get("mul").defaults), node.loc, group))
        waiting.difference_update(node.inputs)
        nodes.append(node)
    return replace(graph, types=types, consts=consts).with_nodes(nodes)


PASS = Pass("opened_weights", opened_weights, WHERE_REQUIRED, before="fuse")
"""Time for memory: the driver compares (``driver/compile/opened.py``)."""
