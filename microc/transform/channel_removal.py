"""Channels that are dead, constant or duplicate."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.graph.ir import Graph, Node, TensorType, fresh_name
from microc.graph.match import without_dead_nodes
from microc.ops import registry
from microc.ops.convolution.geometry import geometry
from microc.transform.channel_relations import Link, channels, is_mixing, links, too_many
from microc.transform.pass_context import Pass, PassContext
from microc.transform.quantised.integer_ranges import Range, Ranges, every_tap_inside, value_ranges

# ---- Channels that always hold one number give it to the biases of the layers that read them.
#
# For a layer with constant weights w whose input channel j is constant, x_j = c at every position,
#
#     sum_i w_i x_i + b  =  sum_{i != j} w_i x_i  +  (b + c sum w_j),
#
# the last sum over the channel's taps. Integers wrap nowhere: the magnitudes |c| sum |w_j| move from the products' bound to the
# bias, so no partial sum can be larger than before. The identity needs every tap of channel j to see c. A convolution that pads
# sees the padding value at the border, so the channel is folded only where that value is c too, or where no tap ever lies
# outside. A depthwise convolution of such a channel is left alone: its result is constant too, or it is not (``ranges.py``
# takes every set of taps that can lie inside).
#
# The layer's weights for the channel become zero; :mod:`microc.transform.channel_removal` then removes what nobody reads. A value
# that is constant as a whole becomes a constant of its elementwise readers, so that the branch that made it goes. Only integers:
# sums of floats would round in another order.


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


CONSTANT_CHANNELS_PASS = Pass("constant_channels", fold_constant_channels, 3)


# ---- Channels that nobody reads are not computed.
#
# The least sets of channels that have to stay follow from what must: all channels of inputs, outputs and state. A mixing node
# needs the input channels with a weight other than zero for one of its output channels that stay; a linked node keeps the
# channels that its links join; any other node needs all channels of all its operands
# (:mod:`microc.transform.channel_relations`). The sets grow to a fixed point, through chains and across residual sums.
#
# Dropping an input channel j of a mixing node is exact where all its weights are zero: 0 x_j adds nothing to a sum, borders
# included, for integers and for finite floats (a zero can lose its sign; an infinity would have made a NaN). Channels of linked
# nodes that go are read by nobody, and the others are computed as they were.
#
# Kernels work on whole words: where a layer's number of live channels is no multiple of ``MULTIPLE``, dead ones stay with it as
# fillers. Nobody reads a filler (every weight for it is zero), so it may hold anything: it takes the weights, bias and scale of a
# live channel, needs no further inputs, and widens neither the accumulator's bound nor the range of shifts.
#
# A value with dead channels gets a new name, since it is no longer what the model calls by that name.

MULTIPLE = 4
"""Layers have channels in fours. Measured on mlperf_vww_int8 and Cortex-M4: with kernels on bytes alone, 1, 2 and 4 gave 10.92,
10.60 and 10.37 M instructions; with 16-bit patches they are within 0.1 % of one another (8 costs 2 %), and fours take 9 % less
code than ones."""


def eliminate_dead_channels(graph: Graph, context: PassContext) -> Graph:
    """Remove channels that no result depends on; the graph itself if there are none."""
    graph = without_dead_nodes(graph)
    if too_many(graph):
        return graph
    found = _Liveness(graph)
    return graph if all(mask.all() for mask in found.live.values()) else _Narrowing(graph, found).run()


class _Liveness:
    """``live``: which channels of every computed value are read; ``masks``: which ones stay, fillers included. They grow."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.links: dict[int, tuple[Link, ...] | None] = {id(node): links(graph, node) for node in graph.nodes}
        values = {name for name in graph.types if name not in graph.consts}
        self.masks = {name: np.zeros(channels(graph, name), np.bool_) for name in values}
        for name in {*graph.inputs, *graph.outputs, *graph.state, *graph.updates.values()} & values:
            self.masks[name][:] = True
        self.live = self.masks
        self.settle(self.demand, self.tie)
        self.live = {name: mask.copy() for name, mask in self.masks.items()}
        self.fill()

    def settle(self, *steps: Callable[[Node], None]) -> None:
        """Take the steps at every node, last ones first, until nothing changes."""
        before, count = -1, 0
        while before != count:
            before = count
            for node in reversed(self.graph.nodes):
                for step in steps:
                    step(node)
            count = sum(int(mask.sum()) for mask in self.masks.values())

    def demand(self, node: Node) -> None:
        """What a node reads whatever it is linked to."""
        if is_mixing(self.graph, node):
            weight = self.graph.consts[node.inputs[1]]
            self.masks[node.inputs[0]] |= weight[self.live[node.outputs[0]]].any(axis=tuple(range(weight.ndim - 1)))
            return
        found = self.links[id(node)]
        linked = {link.operand for link in found or ()}
        whole = [name for k, name in enumerate(node.inputs) if k not in linked]
        for name in whole if found is not None else (*node.inputs, *node.outputs):
            if name in self.masks:
                self.masks[name][:] = True

    def tie(self, node: Node) -> None:
        """Channels on either side of a link that stay keep the other side."""
        for link in self.links[id(node)] or ():
            operand, result = self.masks.get(node.inputs[link.operand]), self.masks[node.outputs[0]]
            if operand is not None:
                operand[link.source[result[link.target]]] = True
                result[link.target[operand[link.source]]] = True

    def fill(self) -> None:
        """Let every layer have a multiple of ``MULTIPLE`` channels or all of them, and every value one channel at least."""
        for node in self.graph.nodes:
            if is_mixing(self.graph, node):
                mask = self.masks[node.outputs[0]]
                missing = -int(mask.sum()) % MULTIPLE if mask.any() else MULTIPLE
                fillers = np.flatnonzero(~mask)[:missing]
                if len(fillers):
                    mask[fillers] = True
                    self.settle(self.tie)
        for mask in self.masks.values():
            mask[:1] |= not mask.any()
        self.settle(self.tie)


class _Narrowing:
    """A graph rewritten for the channels that stay."""

    def __init__(self, graph: Graph, found: _Liveness) -> None:
        self.graph, self.live, self.masks = graph, found.live, found.masks
        self.kept = {name: np.flatnonzero(mask) for name, mask in found.masks.items() if not self.live[name].all()}
        self.types, self.consts = dict(graph.types), dict(graph.consts)
        self.names = {name: self.fresh(name, self.narrowed_type(name)) for name in sorted(self.kept)}

    def run(self) -> Graph:
        nodes = [self.narrowed(node) for node in self.graph.nodes]
        return replace(self.graph, types=self.types, consts=self.consts).with_nodes(nodes)

    def fresh(self, name: str, kind: TensorType) -> str:
        found = fresh_name(self.types, f"{name}.live")
        self.types[found] = kind
        return found

    def narrowed_type(self, name: str) -> TensorType:
        kind, kept = self.graph.types[name], self.kept[name]
        return _type_of_part(kind, len(kind.shape) - 1, kept)

    def part(self, name: str, axis: int, kept: Array) -> str:
        """A constant's part: the indices ``kept`` along ``axis``."""
        array = self.consts[name]
        found = self.fresh(name, _type_of_part(self.types[name], axis % array.ndim, kept))
        self.consts[found] = np.ascontiguousarray(array.take(kept, axis=axis))
        return found

    def narrowed(self, node: Node) -> Node:
        if self.kept.keys().isdisjoint((*node.inputs, *node.outputs)):
            return node
        attrs, constants = dict(node.attrs), {}
        out = self.parameters(node.outputs[0])
        if node.op in ("conv2d", "dense"):
            constants = self.layer_constants(node, out)
            if attrs.get("groups", 1) != 1:
                attrs["groups"] = int(self.masks[node.inputs[0]].sum())
        elif node.op == "concat" and out is not None:
            constants = self.concat_constants(node)
        elif registry.get(node.op).elementwise and out is not None:
            constants = self.elementwise_constants(node, out)
        elif node.op == "reshape" and out is not None:
            attrs["shape"] = (*node.attr("shape")[:-1], len(out))
        elif node.op == "slice":
            mask = self.masks[node.inputs[0]]
            for side in ("begin", "end"):
                attrs[side] = (*node.attr(side)[:-1], int(mask[: node.attr(side)[-1]].sum()))
        inputs = tuple(constants.get(k, self.names.get(name, name)) for k, name in enumerate(node.inputs))
        outputs = tuple(self.names.get(name, name) for name in node.outputs)
        return replace(node, inputs=inputs, outputs=outputs, attrs=attrs)

    def parameters(self, name: str) -> Array | None:
        """The channels that a value's stand in for: itself, or a live one for a filler. None where all stay."""
        if name not in self.kept:
            return None
        kept, live = self.kept[name], self.live[name]
        return np.where(live[kept], kept, np.argmax(live)) if live.any() else kept

    def layer_constants(self, node: Node, out: Array | None) -> dict[int, str]:
        """Weights and bias for the output channels ``out``; the weights of a mixing node for the inputs that stay too."""
        found = {k: name for k, name in enumerate(node.inputs) if k and name}
        if out is not None:
            found = {k: self.part(name, 0 if k == 1 else -1, out) for k, name in found.items()}
        inner = self.kept.get(node.inputs[0])
        if inner is not None and node.attrs.get("groups", 1) == 1:
            found[1] = self.part(found[1], -1, inner)
        return found

    def concat_constants(self, node: Node) -> dict[int, str]:
        """Constant operands lose the channels that the result loses."""
        found, mask = {}, self.masks[node.outputs[0]]
        for link in links(self.graph, node) or ():
            name = node.inputs[link.operand]
            if name in self.consts:
                found[link.operand] = self.part(name, -1, link.source[mask[link.target]])
        return found

    def elementwise_constants(self, node: Node, out: Array) -> dict[int, str]:
        """Constant operands with a number for every channel."""
        whole, count = registry.get(node.op).whole, channels(self.graph, node.outputs[0])
        found = {}
        for k, name in enumerate(node.inputs):
            if name in self.consts and k not in whole and channels(self.graph, name) == count > 1:
                found[k] = self.part(name, -1, out)
        return found


def _type_of_part(kind: TensorType, axis: int, kept: Array) -> TensorType:
    """The type of ``kept`` indices along an axis; scales along that axis go with them."""
    shape = tuple(len(kept) if k == axis else extent for k, extent in enumerate(kind.shape))
    quant = kind.quant
    if quant is not None and quant.axis == axis:
        scales, zeros = (tuple(part[k] for k in kept) for part in (quant.scale, quant.zero_point))
        quant = replace(quant, scale=scales, zero_point=zeros)
    return replace(kind, shape=shape, quant=quant)


DEAD_CHANNELS_PASS = Pass("dead_channels", eliminate_dead_channels, 3)


# ---- Channels that always equal an earlier one of the same value are not read.
#
# Channels are numbered as common subexpressions are: two channels of a result are equal if they are computed alike (the same
# weights, bias, multiplier, shift) from channels that are equal. A layer that reads equal channels i and j with weights u and v
# reads i alone,
#
#     u x_i + v x_j  =  (u + v) x_i,
#
# tap by tap, borders included, for padding reads one value in all channels. Sums stay within what they were, since
# |u + v| <= |u| + |v|. The new weight has to fit the weights' dtype, or the channel stays. Only integers: sums of floats would
# round in another order. The weights of the duplicate become zero; :mod:`microc.transform.channel_removal` does the rest.


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


DUPLICATE_CHANNELS_PASS = Pass("duplicate_channels", merge_duplicate_channels, 3)
