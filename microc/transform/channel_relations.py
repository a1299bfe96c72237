"""Dependencies between the channels of a node's operands and its result. A channel is an index along the last axis.

There are three types of nodes. A *mixing* node (``conv2d`` of one group, ``dense``) can read any set of input channels and
compute any set of output channels: each output is a sum over all inputs with constant weights. A *linked* node computes every
output channel from certain operand channels; these are kept or removed together. All other nodes need every channel.
"""

from __future__ import annotations

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.ops.convolution.geometry import infer_geometry

MOST_CHANNELS = 1 << 22
"""Limit of channels of all computed values of a graph. Channels are examined one by one; a graph with more is skipped."""


@frozen
class Link:
    """A dependency between channels: channel ``source[k]`` of operand number ``operand`` and channel ``target[k]`` of the
    result are kept or removed together."""

    operand: int
    source: Array
    target: Array


def channel_count(graph: Graph, value: str) -> int:
    """Return the number of channels of a value: the extent of its last axis, 1 for a scalar."""
    return (1, *graph.types[value].shape)[-1]


def has_too_many_channels(graph: Graph) -> bool:
    """Test whether the graph has more than MOST_CHANNELS channels: vectors of millions of elements, which no network has."""
    return sum(channel_count(graph, name) for name in graph.types if name not in graph.consts) > MOST_CHANNELS


def is_mixing(graph: Graph, node: Node) -> bool:
    """Test whether a node sums over all input channels with constant weights and bias; the weights are (O, ..., I)."""
    if node.op not in ("conv2d", "dense") or node.attrs.get("layout") == "NCHW" or node.attrs.get("groups", 1) != 1:
        return False
    return _has_constants(graph, node)


def _has_constants(graph: Graph, node: Node) -> bool:
    """Test whether weights and bias are constant, the bias is a vector, and the data are computed."""
    (data, weight, bias) = (*node.inputs, "")[:3]
    if data in graph.consts or weight not in graph.consts:
        return False
    return not bias or (bias in graph.consts and graph.types[bias].size == channel_count(graph, bias))


def channel_links(graph: Graph, node: Node) -> tuple[Link, ...] | None:
    """Return links for the computed operands of a node that works channel by channel; None for all other nodes.

    Operands without a link (scalars, tables, one number for all channels) are needed whole.
    """
    if not node.inputs or len(node.outputs) != 1 or not graph.types[node.outputs[0]].shape:
        return None
    if registry.get(node.op).elementwise:
        return _link_elementwise(graph, node)
    if node.op == "conv2d":
        return _link_depthwise(graph, node)
    if node.op == "concat":
        return _link_concat(graph, node)
    if node.inputs[0] in graph.consts or not graph.types[node.inputs[0]].shape:
        return None
    if node.op == "reshape":
        return _link_reshape(graph, node)
    if node.op == "slice":
        return _link_slice(graph, node)
    mapped_axes = registry.get(node.op).axis_map(node, graph.types)[0]
    last = len(graph.types[node.outputs[0]].shape) - 1
    return _link_identity(graph, node, 0) if mapped_axes is not None and mapped_axes[-1] == last else None


def _link_identity(graph: Graph, node: Node, *operands: int) -> tuple[Link, ...]:
    every = np.arange(channel_count(graph, node.outputs[0]))
    return tuple(Link(operand, every, every) for operand in operands)


def _link_elementwise(graph: Graph, node: Node) -> tuple[Link, ...] | None:
    if node.attrs.get("axis") is not None:
        return None
    whole, count = registry.get(node.op).whole, channel_count(graph, node.outputs[0])
    computed = (k for k, name in enumerate(node.inputs) if name and name not in graph.consts and k not in whole)
    return _link_identity(graph, node, *(k for k in computed if channel_count(graph, node.inputs[k]) == count))


def _link_depthwise(graph: Graph, node: Node) -> tuple[Link, ...] | None:
    data, weight = (graph.types[name].shape for name in node.inputs[:2])
    if node.attrs.get("layout") == "NCHW" or not _has_constants(graph, node):
        return None
    g = infer_geometry(node.attrs, data, weight)
    every = np.arange(g.out_channels)
    return (Link(0, every // (g.out_channels // g.channels), every),) if g.groups == g.channels else None


def _link_concat(graph: Graph, node: Node) -> tuple[Link, ...]:
    rank, counts = len(graph.types[node.outputs[0]].shape), [channel_count(graph, name) for name in node.inputs]
    last = node.attr("axis") % rank == rank - 1
    starts = np.cumsum([0, *counts]) if last else np.zeros(len(counts), np.int64)
    return tuple(
        Link(k, np.arange(count), np.arange(count) + start)
        for k, (count, start) in enumerate(zip(counts, starts, strict=False))
    )


def _link_reshape(graph: Graph, node: Node) -> tuple[Link, ...] | None:
    """Link channels that keep the memory order.

    If one extent divides the other, element e has channel e % before and e % after: both follow from e modulo the larger one.
    """
    before, after = channel_count(graph, node.inputs[0]), channel_count(graph, node.outputs[0])
    if not before or not after or max(before, after) % min(before, after):
        return None
    every = np.arange(max(before, after))
    return (Link(0, every % before, every % after),)


def _link_slice(graph: Graph, node: Node) -> tuple[Link, ...] | None:
    if node.attr("strides")[-1] != 1:
        return None
    every = np.arange(channel_count(graph, node.outputs[0]))
    return (Link(0, every + node.attr("begin")[-1], every),)
