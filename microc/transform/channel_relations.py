# SPDX-License-Identifier: Apache-2.0
"""Dependencies between the channels of a node's operands and of its result. A channel is an index along the last axis.

There are three kinds of nodes. A *mixing* node (a layer of one group) computes each output channel as a sum over all
input channels with constant weights, so that any of its input and output channels can be removed. A
*linked* node computes each output channel from certain operand channels; linked channels are kept or removed together.
All other nodes need every channel.
"""

from __future__ import annotations

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.ops.windows import Product

MOST_CHANNELS = 1 << 22
"""Largest number of channels of all computed values of a graph together. Channels are analysed one by one, so that
graphs with more channels are not analysed."""


@frozen
class ChannelLink:
    """Dependency between channels of one operand and of the result, by which both are kept or removed together.

    Channel ``operand_channels[k]`` of operand number ``operand_index`` is linked to channel ``result_channels[k]`` of
    the result."""

    operand_index: int
    operand_channels: Array
    result_channels: Array


def channel_count(graph: Graph, value_name: str) -> int:
    """Return the number of channels of a value, which is the extent of its last axis, or 1 for a scalar."""
    return (1, *graph.types[value_name].shape)[-1]


def has_too_many_channels(graph: Graph) -> bool:
    """Test whether the graph has more than ``MOST_CHANNELS`` channels, as only unusual graphs with vectors of millions
    of elements have."""
    return sum(channel_count(graph, name) for name in graph.types if name not in graph.consts) > MOST_CHANNELS


def sums_over_all_channels(graph: Graph, node: Node) -> bool:
    """Test whether a node computes sums over all input channels with constant weights of shape (O, ..., I) and a
    constant bias."""
    product = registry.product_of(node, graph.types)
    mixes = product is not None and product.mixes_channels and product.channel_axis == -1
    return mixes and _has_constant_parameters(graph, node)


def _has_constant_parameters(graph: Graph, node: Node) -> bool:
    """Test whether weights and bias are constant, the bias has one element per output channel, and the data are
    computed."""
    (data, weight, bias) = (*node.inputs, "")[:3]
    if data in graph.consts or weight not in graph.consts:
        return False
    return not bias or (bias in graph.consts and graph.types[bias].size == channel_count(graph, bias))


def find_channel_links(graph: Graph, node: Node) -> tuple[ChannelLink, ...] | None:
    """Return the links of all computed operands of a node that works channel by channel, or None for all other nodes.

    All channels of an operand without a link (a scalar, a table, a value that all channels share) are needed."""
    if not node.inputs or len(node.outputs) != 1 or not graph.types[node.outputs[0]].shape:
        return None
    if registry.get(node.op).elementwise:
        return _link_channels_of_elementwise(graph, node)
    product = registry.product_of(node, graph.types)
    if product is not None:
        return _link_channels_of_depthwise(graph, node, product)
    if node.op == "concat":
        return _link_channels_of_concat(graph, node)
    if node.inputs[0] in graph.consts or not graph.types[node.inputs[0]].shape:
        return None
    if node.op == "reshape":
        return _link_channels_of_reshape(graph, node)
    if node.op == "slice":
        return _link_channels_of_slice(graph, node)
    mapped_axes = registry.get(node.op).axis_map(node, graph.types)[0]
    last = len(graph.types[node.outputs[0]].shape) - 1
    return _link_equal_channels(graph, node, 0) if mapped_axes is not None and mapped_axes[-1] == last else None


def _link_equal_channels(graph: Graph, node: Node, *operand_indices: int) -> tuple[ChannelLink, ...]:
    """Return links between equal channels of the result and of each of ``operand_indices``."""
    every = np.arange(channel_count(graph, node.outputs[0]))
    return tuple(ChannelLink(operand, every, every) for operand in operand_indices)


def _link_channels_of_elementwise(graph: Graph, node: Node) -> tuple[ChannelLink, ...] | None:
    """Return links between equal channels for all operands that have as many channels as the result."""
    if node.attrs.get("axis") is not None:
        return None
    whole, count = registry.get(node.op).whole, channel_count(graph, node.outputs[0])
    computed = (k for k, name in enumerate(node.inputs) if name and name not in graph.consts and k not in whole)
    return _link_equal_channels(graph, node, *(k for k in computed if channel_count(graph, node.inputs[k]) == count))


def _link_channels_of_depthwise(graph: Graph, node: Node, product: Product) -> tuple[ChannelLink, ...] | None:
    """Return the link between an input channel of a depthwise convolution and the output channels computed from it."""
    is_convolution = product.windows and not product.transposed and product.channel_axis == -1
    if not is_convolution or not _has_constant_parameters(graph, node):
        return None
    channels, outputs = (channel_count(graph, name) for name in (node.inputs[0], node.outputs[0]))
    every = np.arange(outputs)
    return (ChannelLink(0, every // (outputs // channels), every),) if product.groups == channels else None


def _link_channels_of_concat(graph: Graph, node: Node) -> tuple[ChannelLink, ...]:
    """Return links between the channels of each operand of a concatenation and their places in the result."""
    rank, counts = len(graph.types[node.outputs[0]].shape), [channel_count(graph, name) for name in node.inputs]
    last = node.attr("axis") % rank == rank - 1
    starts = np.cumsum([0, *counts]) if last else np.zeros(len(counts), np.int64)
    return tuple(
        ChannelLink(k, np.arange(count), np.arange(count) + start)
        for k, (count, start) in enumerate(zip(counts, starts, strict=False))
    )


def _link_channels_of_reshape(graph: Graph, node: Node) -> tuple[ChannelLink, ...] | None:
    """Return the link between channels before and after a reshape, which keeps the memory order.

    If one channel count divides the other, element e of the tensor has channel e % before and e % after. Both follow
    from e modulo the larger count. Return None if neither count divides the other."""
    before, after = channel_count(graph, node.inputs[0]), channel_count(graph, node.outputs[0])
    if not before or not after or max(before, after) % min(before, after):
        return None
    every = np.arange(max(before, after))
    return (ChannelLink(0, every % before, every % after),)


def _link_channels_of_slice(graph: Graph, node: Node) -> tuple[ChannelLink, ...] | None:
    """Return the link between the channels of a slice and the operand channels that it selects."""
    if node.attr("strides")[-1] != 1:
        return None
    every = np.arange(channel_count(graph, node.outputs[0]))
    return (ChannelLink(0, every + node.attr("begin")[-1], every),)
