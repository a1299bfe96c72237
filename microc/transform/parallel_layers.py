"""Layers that read the same value become one with the weights of all: one kernel in which every input is loaded for all of them.

Equal chains of elementwise work behind the layers are joined with them; ``requantize`` then has its parameters by channel. What
is one number for all channels, such as zero points and limits, has to be equal in all chains. Each result is a part of the
joined one along the channels, and layers are joined where that part costs nothing:

- it is a view, for there is one row;
- or ``concat`` puts the parts together as they lie.

Elsewhere parts would be copied, which costs more than the joined layer saves. Every channel is the sum that it was. Weights of
few bits, or on the levels of a scale, are stored so: layers are joined with those of the same form.

TVM calls this CombineParallelConv2D and CombineParallelDense.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import prod

import numpy as np

from microc.base.dtypes import Array
from microc.graph.ir import Attr, Graph, Names, Node, TensorType
from microc.ops import registry
from microc.ops.matrix.gemm import find_levels
from microc.tir.bit_fields import bits_of, few_bits
from microc.transform.channel_relations import channels, is_mixing
from microc.transform.pass_context import Pass, PassContext

Branch = tuple[Node, ...]
"""A layer and the elementwise nodes behind it."""
_BY_CHANNEL = {"multiplier": np.int32, "shift": np.int8}
"""Attributes of ``requantize`` that are one number for all channels, or None: an operand of this dtype."""
_CONSEQUENCES = ("bound", "shift_range")
"""Attributes that say what is known of sums and parameters."""


def join_parallel_layers(graph: Graph, context: PassContext) -> Graph:
    """Join ``conv2d`` and ``dense`` with constant weights; the graph itself where none are joined."""
    return _Joining(graph).run()


class _Joining:
    """``joined`` has what stands where a node did, ``gone`` the nodes that others stand for, by identity."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.readers = graph.consumers()
        self.kept = {*graph.outputs, *graph.updates.values()}
        self.types, self.consts = dict(graph.types), dict(graph.consts)
        self.names = Names(graph.types)
        self.joined: dict[int, list[Node]] = {}
        self.gone: set[int] = set()

    def run(self) -> Graph:
        for branches in self.alike():
            if self.rows(branches[0]) == 1:
                self.join(branches)
            else:
                self.join_in_concat(branches)
        if not self.joined:
            return self.graph
        nodes = (new for old in self.graph.nodes for new in self.joined.get(id(old), [old]) if id(new) not in self.gone)
        return replace(self.graph, types=self.types, consts=self.consts).with_nodes(nodes)

    # ------------------------------------------------------------ what can be joined

    def alike(self) -> Iterator[list[Branch]]:
        """Branches that differ in numbers by channel only, at least two at a time."""
        found: dict[Hashable, list[Branch]] = {}
        for node in self.graph.nodes:
            if len(self.readers.get((*node.inputs, "")[0], ())) > 1 and is_mixing(self.graph, node):
                branch = self.branch(node)
                if branch is not None:
                    found.setdefault(self.signature(branch), []).append(branch)
        for branches in found.values():
            if len(branches) > 1:
                forms: dict[Hashable, list[Branch]] = {}
                for branch in branches:
                    forms.setdefault(_form(self.consts[branch[0].inputs[1]]), []).append(branch)
                yield from (same for same in forms.values() if len(same) > 1)

    def branch(self, layer: Node) -> Branch | None:
        """A layer and what follows it; None where that is an output, or goes on with what cannot be joined."""
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
        """Whether a node continues the kernel that makes a value."""
        same = self.types[reader.outputs[0]].size == self.types[value].size
        return registry.get(reader.op).elementwise and same

    def is_by_channel(self, value: str, node: Node) -> bool:
        """Whether a node reads, beside the value, constants with one number for all channels or one for each."""
        whole, count = registry.get(node.op).whole, channels(self.graph, value)
        if any(node.inputs[k] not in self.consts for k in whole):
            return False
        others = [name for k, name in enumerate(node.inputs) if name and name != value and k not in whole]
        plain = node.attrs.get("axis") is None and self.types[node.outputs[0]].shape == self.types[value].shape
        sizes = [(self.types[name].size, channels(self.graph, name)) for name in others]
        constant = all(name in self.consts for name in node.inputs if name and name != value)
        return plain and constant and all(size == 1 or size == last == count for size, last in sizes)

    def signature(self, branch: Branch) -> Hashable:
        """What branches have in common that can be joined."""
        layer = branch[0]
        weights = self.consts[layer.inputs[1]]
        parts: list[Hashable] = [layer.inputs[0], weights.shape[1:], weights.dtype.name]
        value = layer.inputs[0]
        for node in branch:
            whole, result = registry.get(node.op).whole, self.types[node.outputs[0]]
            attrs = {k: v for k, v in node.attrs.items() if k not in (*_CONSEQUENCES, *_BY_CHANNEL)}
            places = tuple(k for k, name in enumerate(node.inputs) if name == value)
            tables = tuple(self.consts[node.inputs[k]].tobytes() for k in whole)
            parts.append((node.op, repr(attrs), places, tables, result.shape[:-1], result.dtype))
            value = node.outputs[0]
        return tuple(parts)

    def rows(self, branch: Branch) -> int:
        return prod(self.types[branch[-1].outputs[0]].shape[:-1])

    # ------------------------------------------------------------ the joined layer

    def join(self, branches: Sequence[Branch]) -> None:
        """Where the first layer stood: the joined nodes, and a slice for each result."""
        nodes, value = self.nodes(branches)
        shape, start = self.types[value].shape, 0
        for branch in branches:
            result = branch[-1].outputs[0]
            count = channels(self.graph, result)
            lead = (0,) * (len(shape) - 1)
            attrs: dict[str, Attr] = {"begin": (*lead, start), "end": (*shape[:-1], start + count)}
            attrs["strides"] = (1,) * len(shape)
            nodes.append(Node("slice", (value,), (result,), attrs, branch[-1].loc))
            start += count
        self.replace(branches, nodes)

    def join_in_concat(self, branches: Iterable[Branch]) -> None:
        """Neighbours in one ``concat`` of channels become one operand of it."""
        found = {branch[-1].outputs[0]: branch for branch in branches if self.concat_of(branch) is not None}
        for concat in {id(node): node for branch in found.values() if (node := self.concat_of(branch))}.values():
            inputs: list[str] = []
            for is_part, names in groupby(concat.inputs, found.__contains__):
                run = list(names)
                if is_part and len(run) > 1:
                    parts = [found[name] for name in run]
                    nodes, value = self.nodes(parts)
                    self.replace(parts, nodes)
                    run = [value]
                inputs += run
            if len(inputs) < len(concat.inputs):
                self.joined[id(concat)] = [replace(concat, inputs=tuple(inputs))]

    def concat_of(self, branch: Branch) -> Node | None:
        """The ``concat`` along the channels that alone reads a branch's result, once."""
        value = branch[-1].outputs[0]
        readers = self.readers.get(value, ())
        if len(readers) != 1 or readers[0].op != "concat":
            return None
        last = readers[0].attr("axis") % len(self.types[value].shape) == len(self.types[value].shape) - 1
        return readers[0] if last and readers[0].inputs.count(value) == 1 else None

    def replace(self, branches: Sequence[Branch], nodes: list[Node]) -> None:
        self.gone |= {id(node) for branch in branches for node in branch}
        self.joined[id(min((branch[0] for branch in branches), key=self.graph.nodes.index))] = nodes

    def nodes(self, branches: Sequence[Branch]) -> tuple[list[Node], str]:
        """The layer of all branches and what is behind it, and the value that these make."""
        made: list[Node] = []
        for column in zip(*branches, strict=True):
            before = made[-1].outputs[0] if made else column[0].inputs[0]
            node = self.layer(column) if not made else self.elementwise(column, before)
            kinds = [self.types[each.outputs[0]] for each in column]
            shape = (*kinds[0].shape[:-1], sum(kind.shape[-1] for kind in kinds))
            value = self.names.fresh(f"{column[0].outputs[0]}.joined")
            self.types[value] = TensorType(shape, kinds[0].dtype, layout=kinds[0].layout)
            made.append(replace(node, outputs=(value,)))
        return made, made[-1].outputs[0]

    def layer(self, column: Sequence[Node]) -> Node:
        first, out = column[0], self.types[column[0].outputs[0]]
        weights = np.concatenate([self.consts[node.inputs[1]] for node in column])
        inputs = [first.inputs[0], self.constant(first.inputs[1], weights, self.types[first.inputs[1]].layout)]
        biases = [(*node.inputs, "")[2] for node in column]
        if any(biases):
            units = [self.types[node.outputs[0]].shape[-1] for node in column]
            zeros = [np.zeros(count, out.dtype) for count in units]
            parts = [self.consts[name].reshape(-1) if name else none for name, none in zip(biases, zeros, strict=True)]
            inputs.append(self.constant(f"{first.outputs[0]}.bias", np.concatenate(parts)))
        return replace(first, inputs=tuple(inputs))

    def elementwise(self, column: Sequence[Node], before: str) -> Node:
        """The first of ``column``, reading ``before``, with the numbers of all channels."""
        first, definition, attrs = column[0], registry.get(column[0].op), dict(column[0].attrs)
        operands = list(zip(*(_constants(node, self.consts) for node in column), strict=True))
        counts = [channels(self.graph, node.outputs[0]) for node in column]
        inputs: list[str] = []
        for k, arrays in enumerate(operands):
            known = [array for array in arrays if array is not None]
            if known and k not in definition.whole:
                name = f"{first.outputs[0]}.{(definition.operand_names or 'abc')[k]}"
                parts = (np.broadcast_to(array.reshape(-1), n) for array, n in zip(known, counts, strict=True))
                inputs.append(self.constant(name, np.concatenate(list(parts))))
            else:
                inputs.append(before if first.inputs[k] and not known else first.inputs[k])
        if first.op == "requantize":
            shifts, bounds = self.consts[inputs[2]], [int(node.attr("bound")) for node in column]
            attrs |= {"multiplier": None, "shift": None, "shift_range": (int(shifts.min()), int(shifts.max()))}
            attrs["bound"] = -1 if min(bounds) < 0 else max(bounds)
        return replace(first, inputs=tuple(inputs), attrs=attrs)

    def constant(self, stem: str, array: Array, layout: str = "") -> str:
        name = self.names.fresh(f"{stem}.joined")
        self.consts[name] = array
        self.types[name] = TensorType(array.shape, array.dtype.name, layout=layout)
        return name


def _constants(node: Node, consts: Mapping[str, Array]) -> list[Array | None]:
    """By operand; the parameters of a ``requantize`` are operands."""
    found = [consts.get(name) for name in node.inputs]
    if node.op != "requantize":
        return found
    left, numbers = found[1:], [(node.attr(name), dtype) for name, dtype in _BY_CHANNEL.items()]
    return [None, *(left.pop(0) if n is None else np.array([n], dtype) for n, dtype in numbers)]


def _form(weights: Array) -> Hashable:
    """How weights are stored."""
    rows = weights.reshape(len(weights), -1)
    if weights.dtype == np.int8:
        return few_bits(rows)
    levels = find_levels(rows) if weights.dtype == np.float32 and np.isfinite(rows).all() else None
    return levels and (levels.block, bits_of(levels.values))


PASS = Pass("parallel_layers", join_parallel_layers, 4)
