# SPDX-License-Identifier: Apache-2.0
"""Merging of parallel layers: layers that read the same value become one layer with all their weights, which loads each
input once.

Equal chains of elementwise operators after the layers are merged, too; a merged ``requantize`` has per-channel
parameters. Attributes that apply to all channels, such as zero points and clamp bounds, must be equal in all chains.
The result of each original layer is a slice of the merged result along the channels. Layers are merged only if this
slice costs nothing:

- because it is a view, as the result has one row;
- or because a ``concat`` joins the slices again in the same order.

Otherwise slices would be copied, which costs more than the merged layer saves. Each channel is computed as the same sum
as before. Layers are merged only if their weights are stored in the same form (bit-packed, or integers times a scale).

TVM calls this CombineParallelConv2D and CombineParallelDense. :func:`split_layers` is the inverse.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from math import prod

import numpy as np

from microc.base.dtypes import Array
from microc.graph.ir import Attr, Graph, NameSet, Node, TensorType
from microc.ops import registry
from microc.ops.matrix.gemm import recover_quantised_weights
from microc.tir.bit_fields import smallest_bit_width, smallest_bits_and_block
from microc.transform.channel_relations import channel_count, sums_over_all_channels
from microc.transform.pass_context import Pass, PassContext

Branch = tuple[Node, ...]
"""Layer and the chain of elementwise nodes that follows it."""
_BY_CHANNEL = {"multiplier": np.int32, "shift": np.int8}
"""Attributes of ``requantize`` that are None if an operand, of this dtype, contains one number for each channel."""
_CONSEQUENCES = ("bound", "shift_range")
"""Attributes that are derived from weights and parameters, so that they may differ between merged nodes."""


def join_parallel_layers(graph: Graph, context: PassContext) -> Graph:
    """Merge parallel ``conv2d`` and ``dense`` layers with constant weights; return the graph itself if none can be
    merged."""
    return _LayerMerger(graph).merge_parallel_layers()


class _LayerMerger:
    """Merger of parallel branches (layers with their elementwise nodes).

    ``replacements`` maps the id of a node to the nodes that replace it; ``merged_node_ids`` contains the ids of nodes
    that were merged into others."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.readers = graph.consumers()
        self.kept = {*graph.outputs, *graph.updates.values()}
        self.types, self.consts = dict(graph.types), dict(graph.consts)
        self.names = NameSet(graph.types)
        self.replacements: dict[int, list[Node]] = {}
        self.merged_node_ids: set[int] = set()

    def merge_parallel_layers(self) -> Graph:
        for branches in self.find_candidates():
            if self.count_rows(branches[0]) == 1:
                self.merge_and_slice_result(branches)
            else:
                self.merge_operands_of_concat(branches)
        if not self.replacements:
            return self.graph
        nodes = (
            new
            for old in self.graph.nodes
            for new in self.replacements.get(id(old), [old])
            if id(new) not in self.merged_node_ids
        )
        return replace(self.graph, types=self.types, consts=self.consts).with_nodes(nodes)

    # ------------------------------------------------------------ candidates

    def find_candidates(self) -> Iterator[list[Branch]]:
        """Yield lists of two or more branches that differ only in per-channel numbers."""
        by_signature: dict[Hashable, list[Branch]] = {}
        for node in self.graph.nodes:
            if len(self.readers.get((*node.inputs, "")[0], ())) > 1 and sums_over_all_channels(self.graph, node):
                branch = self.find_branch(node)
                if branch is not None:
                    by_signature.setdefault(self.compute_merge_key(branch), []).append(branch)
        for branches in by_signature.values():
            if len(branches) > 1:
                forms: dict[Hashable, list[Branch]] = {}
                for branch in branches:
                    forms.setdefault(_weight_storage_key(self.consts[branch[0].inputs[1]]), []).append(branch)
                yield from (same for same in forms.values() if len(same) > 1)

    def find_branch(self, layer: Node) -> Branch | None:
        """Return a layer and the elementwise nodes after it.

        Return None if the last value is an output of the graph, or if it would be fused with a node that cannot be
        merged."""
        nodes = [layer]
        while True:
            value = nodes[-1].outputs[0]
            readers = self.readers.get(value, ())
            if value in self.kept:
                return None
            if len(readers) != 1 or not self.would_be_fused(value, readers[0]):
                return tuple(nodes)
            if not _has_channel_constants_only(self.graph, value, readers[0]):
                return None
            nodes.append(readers[0])

    def would_be_fused(self, value: str, reader: Node) -> bool:
        """Test whether the pass ``fuse`` would put a reader into the kernel that computes a value."""
        has_same_size = self.types[reader.outputs[0]].size == self.types[value].size
        return registry.get(reader.op).elementwise and has_same_size

    def compute_merge_key(self, branch: Branch) -> Hashable:
        """Return a key that is equal for branches that can be merged. It contains everything that must not differ
        between them."""
        layer = branch[0]
        weights = self.consts[layer.inputs[1]]
        parts: list[Hashable] = [layer.inputs[0], weights.shape[1:], weights.dtype.name]
        value = layer.inputs[0]
        for node in branch:
            whole, result = registry.get(node.op).whole, self.types[node.outputs[0]]
            attrs = {k: v for k, v in node.attrs.items() if k not in (*_CONSEQUENCES, *_BY_CHANNEL)}
            positions = tuple(k for k, name in enumerate(node.inputs) if name == value)
            tables = tuple(self.consts[node.inputs[k]].tobytes() for k in whole)
            parts.append((node.op, repr(attrs), positions, tables, result.shape[:-1], result.dtype))
            value = node.outputs[0]
        return tuple(parts)

    def count_rows(self, branch: Branch) -> int:
        """Return the number of rows (elements per channel) of a branch's result."""
        return prod(self.types[branch[-1].outputs[0]].shape[:-1])

    # ------------------------------------------------------------ the merged layer

    def merge_and_slice_result(self, branches: Sequence[Branch]) -> None:
        """Replace branches by the merged nodes, at the position of the first layer, and a slice for each original
        result."""
        nodes, value = self.merge_branches(branches)
        shape, start = self.types[value].shape, 0
        for branch in branches:
            result = branch[-1].outputs[0]
            count = channel_count(self.graph, result)
            lead = (0,) * (len(shape) - 1)
            attrs: dict[str, Attr] = {"begin": (*lead, start), "end": (*shape[:-1], start + count)}
            attrs["strides"] = (1,) * len(shape)
            nodes.append(Node("slice", (value,), (result,), attrs, branch[-1].loc))
            start += count
        self.record_replacement(branches, nodes)

    def merge_operands_of_concat(self, branches: Iterable[Branch]) -> None:
        """Merge branches whose results are neighbouring operands of one ``concat`` along the channels."""
        branches_by_result = {
            branch[-1].outputs[0]: branch for branch in branches if self.find_only_reader_if_concat(branch) is not None
        }
        for concat in {
            id(node): node
            for branch in branches_by_result.values()
            if (node := self.find_only_reader_if_concat(branch))
        }.values():
            inputs: list[str] = []
            for is_part, names in groupby(concat.inputs, branches_by_result.__contains__):
                run = list(names)
                if is_part and len(run) > 1:
                    parts = [branches_by_result[name] for name in run]
                    nodes, value = self.merge_branches(parts)
                    self.record_replacement(parts, nodes)
                    run = [value]
                inputs += run
            if len(inputs) < len(concat.inputs):
                self.replacements[id(concat)] = [replace(concat, inputs=tuple(inputs))]

    def find_only_reader_if_concat(self, branch: Branch) -> Node | None:
        """Return the only reader of a branch's result, if it is a ``concat`` along the channels that reads the result
        once."""
        value = branch[-1].outputs[0]
        readers = self.readers.get(value, ())
        if len(readers) != 1 or readers[0].op != "concat":
            return None
        last = readers[0].attr("axis") % len(self.types[value].shape) == len(self.types[value].shape) - 1
        return readers[0] if last and readers[0].inputs.count(value) == 1 else None

    def record_replacement(self, branches: Sequence[Branch], nodes: list[Node]) -> None:
        """Record that ``nodes`` replace the branches, at the position of the first layer."""
        self.merged_node_ids |= {id(node) for branch in branches for node in branch}
        self.replacements[id(min((branch[0] for branch in branches), key=self.graph.nodes.index))] = nodes

    def merge_branches(self, branches: Sequence[Branch]) -> tuple[list[Node], str]:
        """Return the merged nodes of all branches, and the name of the value that the last of these nodes computes."""
        made: list[Node] = []
        for column in zip(*branches, strict=True):
            before = made[-1].outputs[0] if made else column[0].inputs[0]
            node = self.merge_layers(column) if not made else self.merge_elementwise(column, before)
            kinds = [self.types[each.outputs[0]] for each in column]
            shape = (*kinds[0].shape[:-1], sum(kind.shape[-1] for kind in kinds))
            value = self.names.fresh(f"{column[0].outputs[0]}.joined")
            self.types[value] = TensorType(shape, kinds[0].dtype, layout=kinds[0].layout)
            made.append(replace(node, outputs=(value,)))
        return made, made[-1].outputs[0]

    def merge_layers(self, parallel_layers: Sequence[Node]) -> Node:
        """Return the first layer of ``parallel_layers`` with the weights and biases of all its layers, concatenated
        along the output channels."""
        first, out = parallel_layers[0], self.types[parallel_layers[0].outputs[0]]
        weights = np.concatenate([self.consts[node.inputs[1]] for node in parallel_layers])
        inputs = [first.inputs[0], self.add_constant(first.inputs[1], weights, self.types[first.inputs[1]].layout)]
        biases = [(*node.inputs, "")[2] for node in parallel_layers]
        if any(biases):
            units = [self.types[node.outputs[0]].shape[-1] for node in parallel_layers]
            zeros = [np.zeros(count, out.dtype) for count in units]
            parts = [self.consts[name].reshape(-1) if name else none for name, none in zip(biases, zeros, strict=True)]
            inputs.append(self.add_constant(f"{first.outputs[0]}.bias", np.concatenate(parts)))
        return replace(first, inputs=tuple(inputs))

    def merge_elementwise(self, parallel_nodes: Sequence[Node], data_operand: str) -> Node:
        """Return the first node of ``parallel_nodes`` with the constants of all its nodes, concatenated along the
        channels.

        ``data_operand``: the value that the merged node reads."""
        first, definition, attrs = parallel_nodes[0], registry.get(parallel_nodes[0].op), dict(parallel_nodes[0].attrs)
        operands = list(zip(*(_constants_by_operand(node, self.consts) for node in parallel_nodes), strict=True))
        counts = [channel_count(self.graph, node.outputs[0]) for node in parallel_nodes]
        inputs: list[str] = []
        for k, arrays in enumerate(operands):
            known = [array for array in arrays if array is not None]
            if known and k not in definition.whole:
                name = f"{first.outputs[0]}.{(definition.operand_names or 'abc')[k]}"
                parts = (np.broadcast_to(array.reshape(-1), n) for array, n in zip(known, counts, strict=True))
                inputs.append(self.add_constant(name, np.concatenate(list(parts))))
            else:
                inputs.append(data_operand if first.inputs[k] and not known else first.inputs[k])
        if first.op == "requantize":
            shifts, bounds = self.consts[inputs[2]], [int(node.attr("bound")) for node in parallel_nodes]
            attrs |= {"multiplier": None, "shift": None, "shift_range": (int(shifts.min()), int(shifts.max()))}
            attrs["bound"] = -1 if min(bounds) < 0 else max(bounds)
        return replace(first, inputs=tuple(inputs), attrs=attrs)

    def add_constant(self, stem: str, array: Array, layout: str = "") -> str:
        """Add a constant for the merged nodes; return its name."""
        name = self.names.fresh(f"{stem}.joined")
        self.consts[name] = array
        self.types[name] = TensorType(array.shape, array.dtype.name, layout=layout)
        return name


def _has_channel_constants_only(graph: Graph, value: str, node: Node) -> bool:
    """Test whether all operands of a node except ``value`` are constants with one number, or with one number per
    channel."""
    whole, count = registry.get(node.op).whole, channel_count(graph, value)
    if any(node.inputs[k] not in graph.consts for k in whole):
        return False
    others = [name for k, name in enumerate(node.inputs) if name and name != value and k not in whole]
    keeps_shape = node.attrs.get("axis") is None and graph.types[node.outputs[0]].shape == graph.types[value].shape
    sizes = [(graph.types[name].size, channel_count(graph, name)) for name in others]
    are_constant = all(name in graph.consts for name in node.inputs if name and name != value)
    return keeps_shape and are_constant and all(size == 1 or size == last == count for size, last in sizes)


def _constants_by_operand(node: Node, consts: Mapping[str, Array]) -> list[Array | None]:
    """Return the constant data of a node's operands, None for computed operands.

    For a ``requantize``, the parameters in attributes count as operands."""
    found = [consts.get(name) for name in node.inputs]
    if node.op != "requantize":
        return found
    left, numbers = found[1:], [(node.attr(name), dtype) for name, dtype in _BY_CHANNEL.items()]
    return [None, *(left.pop(0) if n is None else np.array([n], dtype) for n, dtype in numbers)]


def _weight_storage_key(weights: Array) -> Hashable:
    """Return a key of the form in which weights are stored: number of bits and block size, or None for floats that are
    not integers times scales."""
    rows = weights.reshape(len(weights), -1)
    if weights.dtype == np.int8:
        return smallest_bits_and_block(rows)
    levels = recover_quantised_weights(rows) if weights.dtype == np.float32 and np.isfinite(rows).all() else None
    return levels and (levels.block, smallest_bit_width(levels.values))


# ---- The inverse: a layer becomes parallel layers with some of its output channels each, whose results a ``concat`` joins.
#
# Their weights are constants of their own, which need not be in memory together. Of a result with one row the ``concat`` is free:
# each part is computed in its place. Other results are copied.


def split_layers(graph: Graph, most_channels: Mapping[str, int]) -> Graph:
    """Split layers of a fused graph by their output channels; return the graph itself if none can be split.

    ``most_channels``: the most channels of a part, by the result of the layer's last node. Each channel is computed as
    before. A layer stays whole if its parts would need more than constants per channel beside the layer's data."""
    splitter = _LayerSplitter(graph)
    nodes, split = [], set[int]()
    for node in graph.nodes:
        group = tuple(n for n in graph.nodes if n.group == node.group) if node.group else (node,)
        step = most_channels.get(group[-1].outputs[0], 0)
        if node is group[0] and 0 < step < channel_count(graph, group[-1].outputs[0]) and _is_separable(graph, group):
            nodes += splitter.split_group(group, step)
            split |= set(map(id, group))
        elif id(node) not in split:
            nodes.append(node)
    return replace(graph, types=splitter.types, consts=splitter.consts).with_nodes(nodes) if split else graph


def _is_separable(graph: Graph, group: Branch) -> bool:
    """Test whether a group is a layer with constant weights and elementwise nodes that need constants per channel only."""
    return sums_over_all_channels(graph, group[0]) and all(
        registry.get(node.op).elementwise and _has_channel_constants_only(graph, before.outputs[0], node)
        for before, node in pairwise(group)
    )


class _LayerSplitter:
    """Splits groups of a fused graph; collects the types and constants of the parts."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.types, self.consts, self.names = dict(graph.types), dict(graph.consts), NameSet(graph.types)

    def split_group(self, group: Branch, step: int) -> list[Node]:
        """Return the nodes that replace a group: parts with up to ``step`` channels, and the ``concat`` of their results."""
        result = group[-1].outputs[0]
        count, nodes, parts = channel_count(self.graph, result), list[Node](), list[str]()
        for start in range(0, count, step):
            renamed: dict[str, str] = {}
            label = self.names.fresh(f"{group[0].group or result}.part")
            for node in group:
                inputs = [
                    self.slice_operand(node, k, range(start, min(start + step, count))) for k in range(len(node.inputs))
                ]
                shape = self.graph.types[node.outputs[0]].shape
                value = self.names.fresh(f"{node.outputs[0]}.part")
                self.types[value] = replace(
                    self.graph.types[node.outputs[0]], shape=(*shape[:-1], min(step, count - start))
                )
                nodes.append(
                    replace(node, inputs=tuple(renamed.get(n, n) for n in inputs), outputs=(value,), group=label)
                )
                renamed[node.outputs[0]] = value
            parts.append(nodes[-1].outputs[0])
        axis = len(self.graph.types[result].shape) - 1
        return [*nodes, Node("concat", tuple(parts), (result,), {"axis": axis}, group[0].loc)]

    def slice_operand(self, node: Node, index: int, channels: range) -> str:
        """Return the operand ``index`` of a node of a part: a constant with the numbers of ``channels``, or the operand."""
        name = node.inputs[index]
        count = channel_count(self.graph, node.outputs[0])
        array = self.consts.get(name)
        if array is None or index in registry.get(node.op).whole:
            return name
        if registry.product_of(node, self.graph.types) is not None and index == 1:
            part = array[channels.start : channels.stop]
        elif array.size == count:
            part = array[..., channels.start : channels.stop]
        else:
            return name
        sliced = self.names.fresh(f"{name}.part")
        self.consts[sliced] = np.ascontiguousarray(part)
        self.types[sliced] = TensorType(part.shape, part.dtype.name, layout=self.types[name].layout)
        return sliced


PASS = Pass("parallel_layers", join_parallel_layers, 4)
