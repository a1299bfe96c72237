"""Merging of layers that read the same value into one layer with the weights of all: one kernel loads every input once for
all.

Equal chains of elementwise operators behind the layers are merged with them; ``requantize`` then has per-channel parameters.
Attributes that hold for all channels, such as zero points and limits, must be equal in all chains. Each result is a slice of
the merged one along the channels. Layers are merged where that slice costs nothing:

- it is a view, because there is one row;
- or ``concat`` puts the slices together in the same order.

Elsewhere slices would be copied, which costs more than the merged layer saves. Every channel is the same sum as before. Layers
are merged only with those whose weights have the same storage form (bit-packed, or integers times a scale).

TVM calls this CombineParallelConv2D and CombineParallelDense.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import prod

import numpy as np

from microc.base.dtypes import Array
from microc.graph.ir import Attr, Graph, NameSet, Node, TensorType
from microc.ops import registry
from microc.ops.matrix.gemm import recover_quantised_weights
from microc.tir.bit_fields import smallest_bit_width, smallest_packing
from microc.transform.channel_relations import channel_count, is_mixing
from microc.transform.pass_context import Pass, PassContext

Branch = tuple[Node, ...]
"""A layer and the elementwise nodes behind it."""
_BY_CHANNEL = {"multiplier": np.int32, "shift": np.int8}
"""Attributes of ``requantize`` that are one number for all channels, or None if an operand of this dtype has one per
channel."""
_CONSEQUENCES = ("bound", "shift_range")
"""Attributes derived from weights and parameters, so they may differ between merged nodes."""


def join_parallel_layers(graph: Graph, context: PassContext) -> Graph:
    """Merge ``conv2d`` and ``dense`` layers with constant weights. Returns the graph itself if none are merged."""
    return _LayerMerger(graph).run()


class _LayerMerger:
    """Merges branches. ``joined`` maps a node, by identity, to the nodes that replace it; ``gone`` are nodes merged into
    others."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.readers = graph.consumers()
        self.kept = {*graph.outputs, *graph.updates.values()}
        self.types, self.consts = dict(graph.types), dict(graph.consts)
        self.names = NameSet(graph.types)
        self.joined: dict[int, list[Node]] = {}
        self.gone: set[int] = set()

    def run(self) -> Graph:
        for branches in self.find_candidates():
            if self.rows(branches[0]) == 1:
                self.join_with_slices(branches)
            else:
                self.join_in_concat(branches)
        if not self.joined:
            return self.graph
        nodes = (new for old in self.graph.nodes for new in self.joined.get(id(old), [old]) if id(new) not in self.gone)
        return replace(self.graph, types=self.types, consts=self.consts).with_nodes(nodes)

    # ------------------------------------------------------------ candidates

    def find_candidates(self) -> Iterator[list[Branch]]:
        """Yield lists of at least two branches that differ only in per-channel numbers."""
        by_signature: dict[Hashable, list[Branch]] = {}
        for node in self.graph.nodes:
            if len(self.readers.get((*node.inputs, "")[0], ())) > 1 and is_mixing(self.graph, node):
                branch = self.branch(node)
                if branch is not None:
                    by_signature.setdefault(self.merge_key(branch), []).append(branch)
        for branches in by_signature.values():
            if len(branches) > 1:
                forms: dict[Hashable, list[Branch]] = {}
                for branch in branches:
                    forms.setdefault(_storage_form(self.consts[branch[0].inputs[1]]), []).append(branch)
                yield from (same for same in forms.values() if len(same) > 1)

    def branch(self, layer: Node) -> Branch | None:
        """Return a layer and the elementwise nodes behind it; None if the last value is an output, or if a node that cannot
        be merged would fuse with it."""
        nodes = [layer]
        while True:
            value = nodes[-1].outputs[0]
            readers = self.readers.get(value, ())
            if value in self.kept:
                return None
            if len(readers) != 1 or not self.would_fuse(value, readers[0]):
                return tuple(nodes)
            if not self.is_by_channel(value, readers[0]):
                return None
            nodes.append(readers[0])

    def would_fuse(self, value: str, reader: Node) -> bool:
        """Test whether fusion would put a reader into the kernel that computes a value."""
        has_same_size = self.types[reader.outputs[0]].size == self.types[value].size
        return registry.get(reader.op).elementwise and has_same_size

    def is_by_channel(self, value: str, node: Node) -> bool:
        """Test whether a node's other operands are constants of one number, or of one per channel."""
        whole, count = registry.get(node.op).whole, channel_count(self.graph, value)
        if any(node.inputs[k] not in self.consts for k in whole):
            return False
        others = [name for k, name in enumerate(node.inputs) if name and name != value and k not in whole]
        keeps_shape = node.attrs.get("axis") is None and self.types[node.outputs[0]].shape == self.types[value].shape
        sizes = [(self.types[name].size, channel_count(self.graph, name)) for name in others]
        are_constant = all(name in self.consts for name in node.inputs if name and name != value)
        return keeps_shape and are_constant and all(size == 1 or size == last == count for size, last in sizes)

    def merge_key(self, branch: Branch) -> Hashable:
        """Return a key that is equal for branches that can be merged: all that must not differ between them."""
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

    def rows(self, branch: Branch) -> int:
        """Return the number of rows of a branch's result: its elements divided by its channels."""
        return prod(self.types[branch[-1].outputs[0]].shape[:-1])

    # ------------------------------------------------------------ the merged layer

    def join_with_slices(self, branches: Sequence[Branch]) -> None:
        """Put the merged nodes of branches where the first layer was, and a slice for each result behind them."""
        nodes, value = self.merged_nodes(branches)
        shape, start = self.types[value].shape, 0
        for branch in branches:
            result = branch[-1].outputs[0]
            count = channel_count(self.graph, result)
            lead = (0,) * (len(shape) - 1)
            attrs: dict[str, Attr] = {"begin": (*lead, start), "end": (*shape[:-1], start + count)}
            attrs["strides"] = (1,) * len(shape)
            nodes.append(Node("slice", (value,), (result,), attrs, branch[-1].loc))
            start += count
        self.replace(branches, nodes)

    def join_in_concat(self, branches: Iterable[Branch]) -> None:
        """Merge neighbouring operands of one ``concat`` along the channels."""
        branches_by_result = {
            branch[-1].outputs[0]: branch for branch in branches if self.concat_of(branch) is not None
        }
        for concat in {
            id(node): node for branch in branches_by_result.values() if (node := self.concat_of(branch))
        }.values():
            inputs: list[str] = []
            for is_part, names in groupby(concat.inputs, branches_by_result.__contains__):
                run = list(names)
                if is_part and len(run) > 1:
                    parts = [branches_by_result[name] for name in run]
                    nodes, value = self.merged_nodes(parts)
                    self.replace(parts, nodes)
                    run = [value]
                inputs += run
            if len(inputs) < len(concat.inputs):
                self.joined[id(concat)] = [replace(concat, inputs=tuple(inputs))]

    def concat_of(self, branch: Branch) -> Node | None:
        """Return the only reader of a branch's result if it is a ``concat`` along the channels that reads it once."""
        value = branch[-1].outputs[0]
        readers = self.readers.get(value, ())
        if len(readers) != 1 or readers[0].op != "concat":
            return None
        last = readers[0].attr("axis") % len(self.types[value].shape) == len(self.types[value].shape) - 1
        return readers[0] if last and readers[0].inputs.count(value) == 1 else None

    def replace(self, branches: Sequence[Branch], nodes: list[Node]) -> None:
        """Record that ``nodes`` replace the branches, at the position of the first layer."""
        self.gone |= {id(node) for branch in branches for node in branch}
        self.joined[id(min((branch[0] for branch in branches), key=self.graph.nodes.index))] = nodes

    def merged_nodes(self, branches: Sequence[Branch]) -> tuple[list[Node], str]:
        """Return the merged nodes of all branches and the value that the last one computes."""
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

    def merge_layers(self, column: Sequence[Node]) -> Node:
        """Return the first layer of ``column`` with the weights and biases of all, concatenated along the output channels."""
        first, out = column[0], self.types[column[0].outputs[0]]
        weights = np.concatenate([self.consts[node.inputs[1]] for node in column])
        inputs = [first.inputs[0], self.add_constant(first.inputs[1], weights, self.types[first.inputs[1]].layout)]
        biases = [(*node.inputs, "")[2] for node in column]
        if any(biases):
            units = [self.types[node.outputs[0]].shape[-1] for node in column]
            zeros = [np.zeros(count, out.dtype) for count in units]
            parts = [self.consts[name].reshape(-1) if name else none for name, none in zip(biases, zeros, strict=True)]
            inputs.append(self.add_constant(f"{first.outputs[0]}.bias", np.concatenate(parts)))
        return replace(first, inputs=tuple(inputs))

    def merge_elementwise(self, column: Sequence[Node], data_operand: str) -> Node:
        """Return the first node of ``column`` with the constants of all its nodes concatenated along the channels.

        ``data_operand``: the value that the merged node reads."""
        first, definition, attrs = column[0], registry.get(column[0].op), dict(column[0].attrs)
        operands = list(zip(*(_constants_by_operand(node, self.consts) for node in column), strict=True))
        counts = [channel_count(self.graph, node.outputs[0]) for node in column]
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
            shifts, bounds = self.consts[inputs[2]], [int(node.attr("bound")) for node in column]
            attrs |= {"multiplier": None, "shift": None, "shift_range": (int(shifts.min()), int(shifts.max()))}
            attrs["bound"] = -1 if min(bounds) < 0 else max(bounds)
        return replace(first, inputs=tuple(inputs), attrs=attrs)

    def add_constant(self, stem: str, array: Array, layout: str = "") -> str:
        """Add a constant of the merged nodes, and return its name."""
        name = self.names.fresh(f"{stem}.joined")
        self.consts[name] = array
        self.types[name] = TensorType(array.shape, array.dtype.name, layout=layout)
        return name


def _constants_by_operand(node: Node, consts: Mapping[str, Array]) -> list[Array | None]:
    """Return the constants of a node by operand, None for others. The attributes of a ``requantize`` count as operands."""
    found = [consts.get(name) for name in node.inputs]
    if node.op != "requantize":
        return found
    left, numbers = found[1:], [(node.attr(name), dtype) for name, dtype in _BY_CHANNEL.items()]
    return [None, *(left.pop(0) if n is None else np.array([n], dtype) for n, dtype in numbers)]


def _storage_form(weights: Array) -> Hashable:
    """Return a key of the form in which weights are stored: bits and block; None for floats that are no integers times
    scales."""
    rows = weights.reshape(len(weights), -1)
    if weights.dtype == np.int8:
        return smallest_packing(rows)
    levels = recover_quantised_weights(rows) if weights.dtype == np.float32 and np.isfinite(rows).all() else None
    return levels and (levels.block, smallest_bit_width(levels.values))


PASS = Pass("parallel_layers", join_parallel_layers, 4)
