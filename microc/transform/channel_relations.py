"""How the channels of a node's operands and result hang together. A channel is an index along the last axis.

Three kinds of nodes exist. A *mixing* node (``conv2d`` of one group, ``dense``) can read any set of input channels and make any
set of output channels: each output is a sum over all inputs by constant weights. A *linked* node computes every output channel
from certain operand channels, and these stay or go together. Of all others every channel is needed.
"""

from __future__ import annotations

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.ops.convolution.geometry import geometry

MOST_CHANNELS = 1 << 22
"""Of all computed values of a graph; channels are looked at one by one, those of a graph with more not at all."""


@frozen
class Link:
    """Channel ``source[k]`` of operand number ``operand`` and channel ``target[k]`` of the result stay or go together."""

    operand: int
    source: Array
    target: Array


def channels(graph: Graph, value: str) -> int:
    """The extent of the last axis; 1 for a scalar."""
    return (1, *graph.types[value].shape)[-1]


def too_many(graph: Graph) -> bool:
    """Whether the graph has more channels than are looked at: vectors of millions of elements, which no network has."""
    return sum(channels(graph, name) for name in graph.types if name not in graph.consts) > MOST_CHANNELS


def is_mixing(graph: Graph, node: Node) -> bool:
    """Whether the node sums over all input channels with constant weights and bias, channels first and last in the weights."""
    if node.op not in ("conv2d", "dense") or node.attrs.get("layout") == "NCHW" or node.attrs.get("groups", 1) != 1:
        return False
    return _has_constants(graph, node)


def _has_constants(graph: Graph, node: Node) -> bool:
    """Whether weights and bias are constant, the bias a vector, and the data are not."""
    (data, weight, bias) = (*node.inputs, "")[:3]
    if data in graph.consts or weight not in graph.consts:
        return False
    return not bias or (bias in graph.consts and graph.types[bias].size == channels(graph, bias))


def links(graph: Graph, node: Node) -> tuple[Link, ...] | None:
    """The links of a node that computes channel by channel, for its operands computed at run time; None for all other nodes.

    Operands without a link (scalars, tables, one number for all channels) are needed whole.
    """
    if not node.inputs or len(node.outputs) != 1 or not graph.types[node.outputs[0]].shape:
        return None
    if registry.get(node.op).elementwise:
        return _elementwise(graph, node)
    if node.op == "conv2d":
        return _depthwise(graph, node)
    if node.op == "concat":
        return _concat(graph, node)
    if node.inputs[0] in graph.consts or not graph.types[node.inputs[0]].shape:
        return None
    if node.op == "reshape":
        return _reshape(graph, node)
    if node.op == "slice":
        return _slice(graph, node)
    places = registry.get(node.op).axis_map(node, graph.types)[0]
    last = len(graph.types[node.outputs[0]].shape) - 1
    return _identity(graph, node, 0) if places is not None and places[-1] == last else None


def _identity(graph: Graph, node: Node, *operands: int) -> tuple[Link, ...]:
    every = np.arange(channels(graph, node.outputs[0]))
    return tuple(Link(operand, every, every) for operand in operands)


def _elementwise(graph: Graph, node: Node) -> tuple[Link, ...] | None:
    if node.attrs.get("axis") is not None:
        return None
    whole, count = registry.get(node.op).whole, channels(graph, node.outputs[0])
    computed = (k for k, name in enumerate(node.inputs) if name and name not in graph.consts and k not in whole)
    return _identity(graph, node, *(k for k in computed if channels(graph, node.inputs[k]) == count))


def _depthwise(graph: Graph, node: Node) -> tuple[Link, ...] | None:
    data, weight = (graph.types[name].shape for name in node.inputs[:2])
    if node.attrs.get("layout") == "NCHW" or not _has_constants(graph, node):
        return None
    g = geometry(node.attrs, data, weight)
    every = np.arange(g.out_channels)
    return (Link(0, every // (g.out_channels // g.channels), every),) if g.groups == g.channels else None


def _concat(graph: Graph, node: Node) -> tuple[Link, ...]:
    rank, counts = len(graph.types[node.outputs[0]].shape), [channels(graph, name) for name in node.inputs]
    last = node.attr("axis") % rank == rank - 1
    starts = np.cumsum([0, *counts]) if last else np.zeros(len(counts), np.int64)
    return tuple(
        Link(k, np.arange(count), np.arange(count) + start)
        for k, (count, start) in enumerate(zip(counts, starts, strict=False))
    )


def _reshape(graph: Graph, node: Node) -> tuple[Link, ...] | None:
    """In memory order channels repeat: where one extent divides the other, index modulo the smaller one tells them."""
    before, after = channels(graph, node.inputs[0]), channels(graph, node.outputs[0])
    if not before or not after or max(before, after) % min(before, after):
        return None
    every = np.arange(max(before, after))
    return (Link(0, every % before, every % after),)


def _slice(graph: Graph, node: Node) -> tuple[Link, ...] | None:
    if node.attr("strides")[-1] != 1:
        return None
    every = np.arange(channels(graph, node.outputs[0]))
    return (Link(0, every + node.attr("begin")[-1], every),)
