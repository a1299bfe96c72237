"""Channels that nobody reads are not computed.

The least sets of channels that have to stay follow from what must: all channels of inputs, outputs and state. A mixing node needs
the input channels with a weight other than zero for one of its output channels that stay; a linked node keeps the channels that
its links join; any other node needs all channels of all its operands (:mod:`microc.transform.channels`). The sets grow to
a fixed point, through chains and across residual sums.

Dropping an input channel j of a mixing node is exact where all its weights are zero: 0 x_j adds nothing to a sum, borders
included, for integers and for finite floats (a zero can lose its sign; an infinity would have made a NaN). Channels of linked
nodes that go are read by nobody, and the others are computed as they were.

Kernels work on whole words: where a layer's number of live channels is no multiple of ``MULTIPLE``, dead ones stay with it as
fillers. Nobody reads a filler (every weight for it is zero), so it may hold anything: it takes the weights, bias and scale of a
live channel, needs no further inputs, and widens neither the accumulator's bound nor the range of shifts.

A value with dead channels gets a new name, since it is no longer what the model calls by that name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from microc.dtypes import Array
from microc.graph.ir import Graph, Node, TensorType, fresh_name
from microc.graph.rewriting import without_dead_nodes
from microc.ops import registry
from microc.transform.channels import Link, channels, is_mixing, links, too_many
from microc.transform.context import Pass, PassContext

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


PASS = Pass("dead_channels", eliminate_dead_channels, 3)
