"""Channels that always equal an earlier one of the same value are not read.

Channels are numbered as common subexpressions are: two channels of a result are equal if they are computed alike (the same
weights, bias, multiplier, shift) from channels that are equal. A layer that reads equal channels i and j with weights u and v
reads i alone,

    u x_i + v x_j  =  (u + v) x_i,

tap by tap, borders included, for padding reads one value in all channels. Sums stay within what they were, since
|u + v| <= |u| + |v|. The new weight has to fit the weights' dtype, or the channel stays. Only integers: sums of floats would
round in another order. The weights of the duplicate become zero; :mod:`microc.transform.dead_channels` does the rest.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.graph.ir import Graph, Node, fresh_name
from microc.ops import registry
from microc.transform.channels import channels, is_mixing, links, too_many
from microc.transform.context import Pass, PassContext


def merge_duplicate_channels(graph: Graph, context: PassContext) -> Graph:
    """Let ``conv2d`` and ``dense`` on integers read the first of equal channels only."""
    if too_many(graph):
        return graph
    types, consts, nodes = dict(graph.types), dict(graph.consts), list(graph.nodes)
    first = {name: np.arange(channels(graph, name)) for name in graph.types if name not in graph.consts}
    for k, node in enumerate(nodes):
        keys = _keys(graph, node, first)
        if keys is not None:
            first[node.outputs[0]] = _first_of_equals(keys)
        if not _is_integer_layer(graph, node):
            continue
        weights = consts[node.inputs[1]]
        merged = _merged(weights, first[node.inputs[0]])
        if not np.array_equal(merged, weights):
            name = fresh_name(types, f"{node.inputs[1]}.merged")
            types[name], consts[name] = types[node.inputs[1]], merged
            nodes[k] = replace(node, inputs=(node.inputs[0], name, *node.inputs[2:]))
    return replace(graph, types=types, consts=consts).with_nodes(nodes)


def _is_integer_layer(graph: Graph, node: Node) -> bool:
    return is_mixing(graph, node) and dtypes.is_integer(graph.types[node.inputs[0]].dtype)


def _merged(weights: Array, first: Array) -> Array:
    """Weights with those of duplicates (``first[k] != k``) added to the first's, as far as their dtype holds the sums."""
    wide, bounds = weights.astype(np.int64), np.iinfo(weights.dtype)
    for k in np.flatnonzero(first != np.arange(first.size)):
        total = wide[..., first[k]] + wide[..., k]
        if bounds.min <= total.min() and total.max() <= bounds.max:
            wide[..., first[k]], wide[..., k] = total, 0
    return wide.astype(weights.dtype)


# ---------------------------------------------------------------- what a channel is computed from


def _first_of_equals(keys: Sequence[Hashable]) -> Array:
    """For each channel the first one with the same key."""
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(key, k) for k, key in enumerate(keys)], np.int64)


def _keys(graph: Graph, node: Node, first: Mapping[str, Array]) -> list[tuple[Hashable, ...]] | None:
    """A key for every channel of the node's result; equal keys mean equal channels. None where nothing is known."""
    if _is_integer_layer(graph, node):
        weights = _merged(graph.consts[node.inputs[1]].astype(np.int64), first[node.inputs[0]])
        return _with_slices([() for _ in weights], weights, *_bias(graph, node))
    found = links(graph, node)
    if found is None:
        return None
    keys: list[list[Hashable]] = [[] for _ in range(channels(graph, node.outputs[0]))]
    for link in found:
        name = node.inputs[link.operand]
        for k, (source, target) in enumerate(zip(link.source, link.target, strict=True)):
            place = k // min(channels(graph, name), len(keys)) if node.op == "reshape" else 0
            same: Hashable = (
                graph.consts[name][..., source].tobytes() if name in graph.consts else int(first[name][source])
            )
            keys[target] += (name if name in first else "", same, place)
    return _with_slices(keys, *_parameters(graph, node))


def _with_slices(keys: Sequence[Sequence[Hashable]], *parameters: Array) -> list[tuple[Hashable, ...]]:
    """The keys with each channel's part of constants that have the channels first."""
    return [(*key, *(array[k].tobytes() for array in parameters)) for k, key in enumerate(keys)]


def _bias(graph: Graph, node: Node) -> tuple[Array, ...]:
    return tuple(graph.consts[name].reshape(-1) for name in node.inputs[2:] if name)


def _parameters(graph: Graph, node: Node) -> tuple[Array, ...]:
    """The constants of a linked node that differ between channels, the channels first."""
    if node.op == "conv2d":
        return graph.consts[node.inputs[1]], *_bias(graph, node)
    definition, count = registry.get(node.op), channels(graph, node.outputs[0])
    names = [name for k, name in enumerate(node.inputs) if name in graph.consts and k not in definition.whole]
    if not definition.elementwise:
        return ()
    return tuple(np.moveaxis(graph.consts[name], -1, 0) for name in names if channels(graph, name) == count > 1)


PASS = Pass("duplicate_channels", merge_duplicate_channels, 3)
