# SPDX-License-Identifier: Apache-2.0
"""Removal of channels that are constant, dead (not needed by any result), or duplicates of other channels."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.graph.ir import Graph, Node, TensorType, fresh_name
from microc.graph.match import without_dead_nodes
from microc.ops import registry
from microc.transform.channel_relations import (
    ChannelLink,
    channel_count,
    find_channel_links,
    has_too_many_channels,
    sums_over_all_channels,
)
from microc.transform.pass_context import Pass, PassContext
from microc.transform.quantised.integer_ranges import Range, Ranges, compute_value_ranges

# ---- Fold constant channels into the biases of the layers that read them.
#
# For a layer with constant weights w whose input channel j is constant, x_j = c at every position,
#
#     sum_i w_i x_i + b  =  sum_{i != j} w_i x_i  +  (b + c sum w_j),
#
# where the last sum is over the channel's taps. Integers do not overflow: the magnitudes |c| sum |w_j| move from the bound of
# products to the bias, so that no partial sum can be larger than before. The identity needs every tap of channel j to read c. A
# padded convolution reads the padding value at the border. The channel is therefore folded only if that value is c, too, or if no
# tap reads padding. A depthwise convolution of such a channel is not folded: :mod:`microc.transform.quantised.integer_ranges`
# finds out whether its result is constant, from every set of taps that can be inside the data.
#
# The layer's weights for the channel become zero; the pass ``dead_channels`` then removes unused channels. A value whose
# channels are all constant becomes a constant of its elementwise readers, so that the branch that computes it is dead. This is
# done for integers only, because float sums would be rounded in another order.


def fold_constant_channels(graph: Graph, context: PassContext) -> Graph:
    """Fold constant input channels of integer layers into the biases of the layers."""
    ranges = compute_value_ranges(graph)
    graph = _replace_constant_values(graph, ranges)
    types, consts, nodes = dict(graph.types), dict(graph.consts), list(graph.nodes)
    for k, node in enumerate(nodes):
        data = ranges.get(node.inputs[0]) if node.inputs else None
        folded = (
            _fold_constant_channels_into_bias(graph, node, data)
            if data is not None and sums_over_all_channels(graph, node)
            else None
        )
        if folded is None:
            continue
        names = [fresh_name(types, f"{stem}.folded") for stem in (node.inputs[1], f"{node.outputs[0]}.bias")]
        weights, bias = folded
        types |= {names[0]: types[node.inputs[1]], names[1]: TensorType(bias.shape, str(bias.dtype))}
        consts |= {names[0]: weights, names[1]: bias}
        nodes[k] = replace(node, inputs=(node.inputs[0], *names))
    return replace(graph, types=types, consts=consts).with_nodes(nodes)


def _replace_constant_values(graph: Graph, ranges: Ranges) -> Graph:
    """Replace computed values whose channels are all constant by constants.

    This is done for values of one pixel, and for operands of an elementwise node that has another operand of the
    result's shape. Graph outputs stay computed."""
    kept = {*graph.outputs, *graph.updates.values()}
    types, consts = dict(graph.types), dict(graph.consts)
    vectors: dict[str, str] = {}
    for name in (name for node in graph.nodes for name in node.outputs if name in ranges):
        kind, range_ = graph.types[name], ranges[name]
        if name in kept or not kind.size or not range_.constant_channels.all():
            continue
        shape = (*[1] * (len(kind.shape) - 1), kind.shape[-1])
        vectors[name] = name if shape == kind.shape else fresh_name(types, f"{name}.constant")
        types[vectors[name]] = replace(kind, shape=shape)
        consts[vectors[name]] = range_.low.astype(dtypes.to_numpy(kind.dtype)).reshape(shape)
    if not vectors:
        return graph
    nodes = (
        _read_constants_instead_of_values(graph, node, vectors) for node in graph.nodes if node.outputs[0] not in consts
    )
    return without_dead_nodes(replace(graph, types=types, consts=consts).with_nodes(nodes))


def _read_constants_instead_of_values(graph: Graph, node: Node, constants_by_value: Mapping[str, str]) -> Node:
    """Return an elementwise node that reads constants instead of the values in ``constants_by_value``, if another
    operand has the shape of its result.

    Any other node is returned unchanged. ``constants_by_value`` maps values to constants."""
    definition, shape = registry.get(node.op), graph.types[node.outputs[0]].shape
    varying = [name for name in node.inputs if name and name not in constants_by_value and name not in graph.consts]
    if not definition.elementwise or all(graph.types[name].shape != shape for name in varying):
        return node
    names = (
        name if k in definition.whole else constants_by_value.get(name, name) for k, name in enumerate(node.inputs)
    )
    return replace(node, inputs=tuple(names))


def _fold_constant_channels_into_bias(graph: Graph, node: Node, data_range: Range) -> tuple[Array, Array] | None:
    """Return the layer's weights with zeros for constant channels, and its bias plus the contribution of these channels
    to the sums.

    Return None if no channel can be folded, or if the bias would overflow its dtype."""
    weights, dtype = graph.consts[node.inputs[1]], graph.types[node.outputs[0]].dtype
    has_weights = weights.any(axis=tuple(range(weights.ndim - 1)))
    folds = data_range.constant_channels & has_weights & _find_channels_read_as_constant(graph, node, data_range.low)
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    new_bias = graph.consts[name].astype(np.int64).reshape(-1) if name else np.zeros(weights.shape[0], np.int64)
    sums = weights.reshape(weights.shape[0], -1, weights.shape[-1]).sum(axis=1, dtype=np.int64)
    new_bias = new_bias + sums[:, folds] @ data_range.low[folds]
    least, most = dtypes.int_range(dtype)
    if not folds.any() or new_bias.min() < least or new_bias.max() > most:
        return None
    return np.where(folds, 0, weights).astype(weights.dtype), new_bias.astype(dtypes.to_numpy(dtype))


def _find_channels_read_as_constant(graph: Graph, node: Node, channel_constants: Array) -> Array:
    """Return a mask of the input channels that every kernel tap reads as the same number at every position.

    That number is the channel's element of ``channel_constants``: padding, if taps read any, must be equal to it."""
    product = registry.product_of(node, graph.types)
    assert product is not None
    return np.asarray((not product.reads_padding) | (channel_constants == product.pad_value))


CONSTANT_CHANNELS_PASS = Pass("constant_channels", fold_constant_channels, 3)


# ---- Dead channel elimination.
#
# Liveness analysis: all channels of inputs, outputs and state are live. A mixing node needs the input channels with a nonzero
# weight for one of its live output channels; a linked node needs the channels at both ends of its links; any other node needs all
# channels of all operands (:mod:`microc.transform.channel_relations`). The sets grow to the least fixed point, through chains
# and across residual sums.
#
# Dropping an input channel j of a mixing node is exact if all its weights are zero: 0 x_j adds nothing to a sum, borders
# included, for integers and for finite floats (a zero can lose its sign; an infinity would have made a NaN). Removed channels
# of linked nodes have no reader, and the others are computed as before.
#
# Kernels process whole words: if a layer's number of live channels is no multiple of ``MULTIPLE``, some dead channels stay as
# fillers. No filler is read (every weight for it is zero), so that its content does not matter. It gets the weights, bias and
# scale of a live channel; then it needs no further inputs, and widens neither the accumulator's bound nor the range of shifts.
#
# A value with dead channels gets a new name, since it is no longer the model's value of that name.

MULTIPLE = 4
"""Divisor of the number of channels that a layer keeps, because kernels process whole words of four bytes.

Measured on mlperf_vww_int8 and Cortex-M4: with kernels on bytes alone, multiples of 1, 2 and 4 needed 10.92, 10.60 and
10.37 M instructions. With 16-bit patches they are within 0.1 % of one another (8 costs 2 %), and multiples of 4 need
9 % less code than 1."""


def eliminate_dead_channels(graph: Graph, context: PassContext) -> Graph:
    """Remove channels on which no result depends; return the graph itself if there are none."""
    graph = without_dead_nodes(graph)
    if has_too_many_channels(graph):
        return graph
    liveness = _Liveness(graph)
    return (
        graph
        if all(mask.all() for mask in liveness.live.values())
        else _ChannelRemover(graph, liveness).remove_channels()
    )


class _Liveness:
    """Liveness of the channels of all values of a graph, as a mask for each value. The masks grow to a fixed point.

    ``live``: channels that are read. ``masks``: channels that are kept, which are the live channels and the fillers."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.node_links: dict[int, tuple[ChannelLink, ...] | None] = {
            id(node): find_channel_links(graph, node) for node in graph.nodes
        }
        values = {name for name in graph.types if name not in graph.consts}
        self.masks = {name: np.zeros(channel_count(graph, name), np.bool_) for name in values}
        for name in {*graph.inputs, *graph.outputs, *graph.state, *graph.updates.values()} & values:
            self.masks[name][:] = True
        self.live = self.masks
        self.iterate_to_fixed_point(self.mark_reads, self.mark_link_ends)
        self.live = {name: mask.copy() for name, mask in self.masks.items()}
        self.keep_filler_channels()

    def iterate_to_fixed_point(self, *steps: Callable[[Node], None]) -> None:
        """Apply ``steps`` to every node, in reverse order, again and again until no mask changes."""
        before, count = -1, 0
        while before != count:
            before = count
            for node in reversed(self.graph.nodes):
                for step in steps:
                    step(node)
            count = sum(int(mask.sum()) for mask in self.masks.values())

    def mark_reads(self, node: Node) -> None:
        """Mark the operand channels that a node reads independently of its links."""
        if sums_over_all_channels(self.graph, node):
            weight = self.graph.consts[node.inputs[1]]
            self.masks[node.inputs[0]] |= weight[self.live[node.outputs[0]]].any(axis=tuple(range(weight.ndim - 1)))
            return
        links = self.node_links[id(node)]
        linked = {link.operand_index for link in links or ()}
        whole = [name for k, name in enumerate(node.inputs) if k not in linked]
        for name in whole if links is not None else (*node.inputs, *node.outputs):
            if name in self.masks:
                self.masks[name][:] = True

    def mark_link_ends(self, node: Node) -> None:
        """Mark the channels at both ends of each link of a node if the channel at one end is kept."""
        for link in self.node_links[id(node)] or ():
            operand, result = self.masks.get(node.inputs[link.operand_index]), self.masks[node.outputs[0]]
            if operand is not None:
                operand[link.operand_channels[result[link.result_channels]]] = True
                result[link.result_channels[operand[link.operand_channels]]] = True

    def keep_filler_channels(self) -> None:
        """Keep dead channels as fillers, so that every layer has a multiple of ``MULTIPLE`` channels or all of its
        channels.

        Every value keeps at least one channel."""
        for node in self.graph.nodes:
            if sums_over_all_channels(self.graph, node):
                mask = self.masks[node.outputs[0]]
                missing = -int(mask.sum()) % MULTIPLE if mask.any() else MULTIPLE
                fillers = np.flatnonzero(~mask)[:missing]
                if len(fillers):
                    mask[fillers] = True
                    self.iterate_to_fixed_point(self.mark_link_ends)
        for mask in self.masks.values():
            mask[:1] |= not mask.any()
        self.iterate_to_fixed_point(self.mark_link_ends)


class _ChannelRemover:
    """Writer of the graph without the channels that are not kept.

    ``kept`` maps each value that loses channels to the indices of those that are kept; ``names`` maps it to its new
    name."""

    def __init__(self, graph: Graph, liveness: _Liveness) -> None:
        self.graph, self.live, self.masks = graph, liveness.live, liveness.masks
        self.kept = {name: np.flatnonzero(mask) for name, mask in liveness.masks.items() if not self.live[name].all()}
        self.types, self.consts = dict(graph.types), dict(graph.consts)
        self.names = {name: self.new_value(name, self.type_of_kept_channels(name)) for name in sorted(self.kept)}

    def remove_channels(self) -> Graph:
        nodes = [self.rewrite_node(node) for node in self.graph.nodes]
        return replace(self.graph, types=self.types, consts=self.consts).with_nodes(nodes)

    def new_value(self, name: str, tensor_type: TensorType) -> str:
        """Add a value of type ``tensor_type``; return its unique name, which begins with ``name``."""
        new_name = fresh_name(self.types, f"{name}.live")
        self.types[new_name] = tensor_type
        return new_name

    def type_of_kept_channels(self, name: str) -> TensorType:
        """Return the type of a value with only its kept channels."""
        kind, kept = self.graph.types[name], self.kept[name]
        return _keep_indices_of_type(kind, len(kind.shape) - 1, kept)

    def add_slice_of_constant(self, name: str, axis: int, kept_indices: Array) -> str:
        """Add a constant with only the indices ``kept_indices`` of another constant along ``axis``; return its name."""
        array = self.consts[name]
        new_name = self.new_value(name, _keep_indices_of_type(self.types[name], axis % array.ndim, kept_indices))
        self.consts[new_name] = np.ascontiguousarray(array.take(kept_indices, axis=axis))
        return new_name

    def rewrite_node(self, node: Node) -> Node:
        """Return the node with new operands, results and attributes for the kept channels."""
        if self.kept.keys().isdisjoint((*node.inputs, *node.outputs)):
            return node
        attrs, constants = dict(node.attrs), {}
        out = self.find_parameter_channels(node.outputs[0])
        if registry.is_layer(node):
            constants = self.slice_layer_constants(node, out)
            if attrs.get("groups", 1) != 1:
                attrs["groups"] = int(self.masks[node.inputs[0]].sum())
        elif node.op == "concat" and out is not None:
            constants = self.slice_concat_constants(node)
        elif registry.get(node.op).elementwise and out is not None:
            constants = self.slice_elementwise_constants(node, out)
        elif node.op == "reshape" and out is not None:
            attrs["shape"] = (*node.attr("shape")[:-1], len(out))
        elif node.op == "slice":
            mask = self.masks[node.inputs[0]]
            for side in ("begin", "end"):
                attrs[side] = (*node.attr(side)[:-1], int(mask[: node.attr(side)[-1]].sum()))
        inputs = tuple(constants.get(k, self.names.get(name, name)) for k, name in enumerate(node.inputs))
        outputs = tuple(self.names.get(name, name) for name in node.outputs)
        return replace(node, inputs=inputs, outputs=outputs, attrs=attrs)

    def find_parameter_channels(self, name: str) -> Array | None:
        """Return for each kept channel of a value the index of the channel whose weights, bias and scale it gets.

        A live channel gets its own parameters, a filler the parameters of a live channel. Return None if the value
        keeps all channels."""
        if name not in self.kept:
            return None
        kept, live = self.kept[name], self.live[name]
        return np.where(live[kept], kept, np.argmax(live)) if live.any() else kept

    def slice_layer_constants(self, node: Node, kept_outputs: Array | None) -> dict[int, str]:
        """Return the names of new weights and bias of a layer, by operand number, with only the output channels
        ``kept_outputs``.

        The weights of a mixing node are also reduced to the kept input channels."""
        names = {k: name for k, name in enumerate(node.inputs) if k and name}
        if kept_outputs is not None:
            names = {
                k: self.add_slice_of_constant(name, 0 if k == 1 else -1, kept_outputs) for k, name in names.items()
            }
        inner = self.kept.get(node.inputs[0])
        if inner is not None and node.attrs.get("groups", 1) == 1:
            names[1] = self.add_slice_of_constant(names[1], -1, inner)
        return names

    def slice_concat_constants(self, node: Node) -> dict[int, str]:
        """Return the names of new constant operands of a concatenation, by operand number, with only the channels that
        the result keeps."""
        names, mask = {}, self.masks[node.outputs[0]]
        for link in find_channel_links(self.graph, node) or ():
            name = node.inputs[link.operand_index]
            if name in self.consts:
                names[link.operand_index] = self.add_slice_of_constant(
                    name, -1, link.operand_channels[mask[link.result_channels]]
                )
        return names

    def slice_elementwise_constants(self, node: Node, kept_channels: Array) -> dict[int, str]:
        """Return the names of new per-channel constants of an elementwise node, by operand number, with only the
        channels ``kept_channels``."""
        whole, count = registry.get(node.op).whole, channel_count(self.graph, node.outputs[0])
        names = {}
        for k, name in enumerate(node.inputs):
            if name in self.consts and k not in whole and channel_count(self.graph, name) == count > 1:
                names[k] = self.add_slice_of_constant(name, -1, kept_channels)
        return names


def _keep_indices_of_type(tensor_type: TensorType, axis: int, kept_indices: Array) -> TensorType:
    """Return the type of a tensor, with its per-channel scales, after only ``kept_indices`` along ``axis`` are kept."""
    shape = tuple(len(kept_indices) if k == axis else extent for k, extent in enumerate(tensor_type.shape))
    quant = tensor_type.quant
    if quant is not None and quant.axis == axis:
        scales, zeros = (tuple(part[k] for k in kept_indices) for part in (quant.scale, quant.zero_point))
        quant = replace(quant, scale=scales, zero_point=zeros)
    return replace(tensor_type, shape=shape, quant=quant)


DEAD_CHANNELS_PASS = Pass("dead_channels", eliminate_dead_channels, 3)


# ---- Merge duplicate channels: a channel that always equals an earlier channel of the same value is no longer read.
#
# Value numbering by channels: two channels of a result are equal if they are computed with the same weights, bias, multiplier
# and shift from equal channels. A layer that reads equal channels i and j with weights u and v reads i alone,
#
#     u x_i + v x_j  =  (u + v) x_i,
#
# for each tap, also at borders, because padding has the same value in all channels. Sums do not exceed their former bounds, since
# |u + v| <= |u| + |v|. The new weight must fit the weights' dtype, otherwise the channel is still read. This is done for integers
# only, because float sums would be rounded in another order. The weights of the duplicate become zero, and the pass
# ``dead_channels`` removes it.


def merge_duplicate_channels(graph: Graph, context: PassContext) -> Graph:
    """Let each integer layer read only the first of several equal input channels."""
    if has_too_many_channels(graph):
        return graph
    types, consts, nodes = dict(graph.types), dict(graph.consts), list(graph.nodes)
    first = {name: np.arange(channel_count(graph, name)) for name in graph.types if name not in graph.consts}
    for k, node in enumerate(nodes):
        keys = _compute_equality_key_of_channels(graph, node, first)
        if keys is not None:
            first[node.outputs[0]] = _find_first_index_of_equal_key(keys)
        if not _is_integer_layer(graph, node):
            continue
        weights = consts[node.inputs[1]]
        merged = _merge_weights(weights, first[node.inputs[0]])
        if not np.array_equal(merged, weights):
            name = fresh_name(types, f"{node.inputs[1]}.merged")
            types[name], consts[name] = types[node.inputs[1]], merged
            nodes[k] = replace(node, inputs=(node.inputs[0], name, *node.inputs[2:]))
    return replace(graph, types=types, consts=consts).with_nodes(nodes)


def _is_integer_layer(graph: Graph, node: Node) -> bool:
    """Test whether a node is a layer with constant weights on integer data."""
    return sums_over_all_channels(graph, node) and dtypes.is_integer(graph.types[node.inputs[0]].dtype)


def _merge_weights(weights: Array, first_equal_channel: Array) -> Array:
    """Add the weights of duplicate channels to the weights of the first channel that equals them, if the dtype can
    represent the sums.

    ``first_equal_channel[k]``: index of the first channel that equals channel k."""
    wide, bounds = weights.astype(np.int64), np.iinfo(weights.dtype)
    for k in np.flatnonzero(first_equal_channel != np.arange(first_equal_channel.size)):
        total = wide[..., first_equal_channel[k]] + wide[..., k]
        if bounds.min <= total.min() and total.max() <= bounds.max:
            wide[..., first_equal_channel[k]], wide[..., k] = total, 0
    return wide.astype(weights.dtype)


# ---------------------------------------------------------------- value numbers of channels


def _find_first_index_of_equal_key(keys: Sequence[Hashable]) -> Array:
    """Return for each channel the index of the first channel with the same key."""
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(key, k) for k, key in enumerate(keys)], np.int64)


def _compute_equality_key_of_channels(
    graph: Graph, node: Node, first_equal_channels: Mapping[str, Array]
) -> list[tuple[Hashable, ...]] | None:
    """Return a key for each channel of the node's result. Channels with equal keys are equal. Return None if the node
    cannot be analysed.

    ``first_equal_channels``: for each value and channel, the index of the first channel that equals it."""
    if _is_integer_layer(graph, node):
        weights = _merge_weights(graph.consts[node.inputs[1]].astype(np.int64), first_equal_channels[node.inputs[0]])
        return _append_parameters_to_channel_keys(
            [() for _ in weights], weights, *_bias_as_tuple_of_arrays(graph, node)
        )
    node_links = find_channel_links(graph, node)
    if node_links is None:
        return None
    keys: list[list[Hashable]] = [[] for _ in range(channel_count(graph, node.outputs[0]))]
    for link in node_links:
        name = node.inputs[link.operand_index]
        for k, (source, target) in enumerate(zip(link.operand_channels, link.result_channels, strict=True)):
            period = k // min(channel_count(graph, name), len(keys)) if node.op == "reshape" else 0
            source_key: Hashable = (
                graph.consts[name][..., source].tobytes()
                if name in graph.consts
                else int(first_equal_channels[name][source])
            )
            keys[target] += (name if name in first_equal_channels else "", source_key, period)
    return _append_parameters_to_channel_keys(keys, *_constants_that_differ_by_channel(graph, node))


def _append_parameters_to_channel_keys(
    keys: Sequence[Sequence[Hashable]], *parameters: Array
) -> list[tuple[Hashable, ...]]:
    """Append each channel's slices of ``parameters`` to its key. The first axis of every parameter is the channels."""
    return [(*key, *(array[k].tobytes() for array in parameters)) for k, key in enumerate(keys)]


def _bias_as_tuple_of_arrays(graph: Graph, node: Node) -> tuple[Array, ...]:
    """Return the layer's constant bias with one number per output channel, as a tuple of one array; empty without a
    bias."""
    return tuple(graph.consts[name].reshape(-1) for name in node.inputs[2:] if name)


def _constants_that_differ_by_channel(graph: Graph, node: Node) -> tuple[Array, ...]:
    """Return the constants of a linked node that differ between channels, with the channels as first axis."""
    if registry.is_layer(node):
        return graph.consts[node.inputs[1]], *_bias_as_tuple_of_arrays(graph, node)
    definition, count = registry.get(node.op), channel_count(graph, node.outputs[0])
    names = [name for k, name in enumerate(node.inputs) if name in graph.consts and k not in definition.whole]
    if not definition.elementwise:
        return ()
    return tuple(np.moveaxis(graph.consts[name], -1, 0) for name in names if channel_count(graph, name) == count > 1)


DUPLICATE_CHANNELS_PASS = Pass("duplicate_channels", merge_duplicate_channels, 3)
