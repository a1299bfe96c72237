"""Channels that always hold one number give it to the biases of the layers that read them.

For a layer with constant weights w whose input channel j is constant, x_j = c at every position,

    sum_i w_i x_i + b  =  sum_{i != j} w_i x_i  +  (b + c sum w_j),

the last sum over the channel's taps. Integers wrap nowhere: the magnitudes |c| sum |w_j| move from the products' bound to the
bias, so no partial sum can be larger than before. The identity needs every tap of channel j to see c. A convolution that pads
sees the padding value at the border, so the channel is folded only where that value is c too, or where no tap ever lies outside.
A depthwise convolution of such a channel is left alone: its result is constant too, or it is not (``ranges.py`` takes every set
of taps that can lie inside).

The layer's weights for the channel become zero; :mod:`microc.transform.dead_channels` then removes what nobody reads. A value
that is constant as a whole becomes a constant of its elementwise readers, so that the branch that made it goes. Only integers:
sums of floats would round in another order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.graph.ir import Graph, Node, TensorType, fresh_name
from microc.graph.rewriting import without_dead_nodes
from microc.ops import registry
from microc.ops.convolution.geometry import geometry
from microc.transform.channels import is_mixing
from microc.transform.context import Pass, PassContext
from microc.transform.ranges import Range, Ranges, every_tap_inside, value_ranges


def fold_constant_channels(graph: Graph, context: PassContext) -> Graph:
    """Fold constant input channels of ``conv2d`` and ``dense`` on integers into their biases."""
    ranges = value_ranges(graph)
    graph = _with_constant_values(graph, ranges)
    types, consts, nodes = dict(graph.types), dict(graph.consts), list(graph.nodes)
    for k, node in enumerate(nodes):
        data = ranges.get(node.inputs[0]) if node.inputs else None
        found = _folded(graph, node, data) if data is not None and is_mixing(graph, node) else None
        if found is None:
            continue
        names = [fresh_name(types, f"{stem}.folded") for stem in (node.inputs[1], f"{node.outputs[0]}.bias")]
        weights, bias = found
        types |= {names[0]: types[node.inputs[1]], names[1]: TensorType(bias.shape, str(bias.dtype))}
        consts |= {names[0]: weights, names[1]: bias}
        nodes[k] = replace(node, inputs=(node.inputs[0], *names))
    return replace(graph, types=types, consts=consts).with_nodes(nodes)


def _with_constant_values(graph: Graph, ranges: Ranges) -> Graph:
    """Computed values with constant channels only become constants where they are one pixel, or where an elementwise node reads
    them beside a value of the result's shape. The graph's outputs stay computed."""
    kept = {*graph.outputs, *graph.updates.values()}
    types, consts = dict(graph.types), dict(graph.consts)
    vectors: dict[str, str] = {}
    for name in (name for node in graph.nodes for name in node.outputs if name in ranges):
        kind, known = graph.types[name], ranges[name]
        if name in kept or not kind.size or not known.constant.all():
            continue
        shape = (*[1] * (len(kind.shape) - 1), kind.shape[-1])
        vectors[name] = name if shape == kind.shape else fresh_name(types, f"{name}.constant")
        types[vectors[name]] = replace(kind, shape=shape)
        consts[vectors[name]] = known.low.astype(dtypes.to_numpy(kind.dtype)).reshape(shape)
    if not vectors:
        return graph
    nodes = (_with_vectors(graph, node, vectors) for node in graph.nodes if node.outputs[0] not in consts)
    return without_dead_nodes(replace(graph, types=types, consts=consts).with_nodes(nodes))


def _with_vectors(graph: Graph, node: Node, vectors: Mapping[str, str]) -> Node:
    """An elementwise node that reads constants where another operand has the result's shape."""
    definition, shape = registry.get(node.op), graph.types[node.outputs[0]].shape
    varying = [name for name in node.inputs if name and name not in vectors and name not in graph.consts]
    if not definition.elementwise or all(graph.types[name].shape != shape for name in varying):
        return node
    names = (name if k in definition.whole else vectors.get(name, name) for k, name in enumerate(node.inputs))
    return replace(node, inputs=tuple(names))


def _folded(graph: Graph, node: Node, data: Range) -> tuple[Array, Array] | None:
    """A layer's weights without its constant channels, and the bias with them; None without any, or where the bias overflows."""
    weights, dtype = graph.consts[node.inputs[1]], graph.types[node.outputs[0]].dtype
    used = weights.any(axis=tuple(range(weights.ndim - 1)))
    chosen = data.constant & used & _sees_data_only(graph, node, data.low)
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    total = graph.consts[name].astype(np.int64).reshape(-1) if name else np.zeros(weights.shape[0], np.int64)
    sums = weights.reshape(weights.shape[0], -1, weights.shape[-1]).sum(axis=1, dtype=np.int64)
    total = total + sums[:, chosen] @ data.low[chosen]
    least, most = dtypes.int_range(dtype)
    if not chosen.any() or total.min() < least or total.max() > most:
        return None
    return np.where(chosen, 0, weights).astype(weights.dtype), total.astype(dtypes.to_numpy(dtype))


def _sees_data_only(graph: Graph, node: Node, value: Array) -> Array:
    """For each input channel that holds ``value``, whether every tap sees that value wherever the layer stands."""
    if node.op == "dense":
        return np.ones(value.shape, np.bool_)
    g = geometry(node.attrs, graph.types[node.inputs[0]].shape, graph.types[node.inputs[1]].shape)
    inside = every_tap_inside(g)
    return np.asarray(inside | (value == node.attrs.get("pad_value", 0)))


PASS = Pass("constant_channels", fold_constant_channels, 3)
