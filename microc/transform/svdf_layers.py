"""SVDF of floats as the layers that it is made of, each of which has an integer form.

A dense layer makes a feature of each filter. The last M of them, the state (B, F * M), become an image (B, M, 1, F): the new
frame goes in below, the oldest leaves above. Sums over the filters of a unit by weights of time are a convolution as high as that
image, whose groups are the units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc.dtypes import Array
from microc.graph.ir import Attr, Graph, Node
from microc.ops import registry
from microc.ops.arith import Rewrite
from microc.ops.surface import emit_activation
from microc.transform.context import Pass, PassContext


def svdf_as_layers(graph: Graph, context: PassContext) -> Graph:
    """The graph with layers, of other state, where nothing but a step of SVDF reads and writes the state."""
    nodes, types, consts = list[Node](), dict(graph.types), dict(graph.consts)
    state, updates = dict(graph.state), dict(graph.updates)
    for node in graph.nodes:
        if not _splits(node, graph):
            nodes.append(node)
            continue
        step = _Step(node, graph)
        step.write()
        nodes += step.rewrite.nodes
        types |= step.rewrite.types
        consts |= step.rewrite.consts
        old = node.inputs[4]
        del updates[old], types[old]
        start = step.start(state.pop(old))
        if step.memory > 1:
            state[step.image], updates[step.image] = start, step.line
    return graph.with_nodes(nodes, types=types, consts=consts, state=state, updates=updates)


def _splits(node: Node, graph: Graph) -> bool:
    """Whether a node is such a step, of constant weights."""
    if node.op != "svdf" or graph.types[node.inputs[0]].dtype != "float32":
        return False
    state, new = node.inputs[4], node.outputs[1]
    readers = [each for each in graph.nodes if {state, new} & set(each.inputs)]
    own = graph.updates.get(state) == new and list(graph.updates.values()).count(new) == 1
    kept = {state, new} & set(graph.outputs)
    return own and readers == [node] and not kept and all(name in graph.consts for name in node.inputs[1:4])


class _Step:
    """The layers of one node. ``image``: its state, unless only the newest feature counts; ``line``: what that holds next."""

    def __init__(self, node: Node, graph: Graph) -> None:
        self.node, self.rewrite = node, Rewrite(node, graph)
        self.time = graph.consts[node.inputs[2]]
        self.filters, self.memory = self.time.shape
        self.batch, self.rank = graph.types[node.inputs[0]].shape[0], int(node.attr("rank"))
        self.image = self.rewrite.value("past", self.pixels(self.memory), "float32")
        self.line = ""

    def pixels(self, rows: int) -> tuple[int, ...]:
        return (self.batch, rows, 1, self.filters)

    def start(self, old: Array) -> Array:
        """The initial state, as it lies now."""
        frames = old.reshape(self.batch, self.filters, self.memory).transpose(0, 2, 1)
        return np.ascontiguousarray(frames).reshape(self.pixels(self.memory))

    def write(self) -> None:
        data, weights, _, bias, _ = self.node.inputs
        units = self.filters // self.rank
        features = self.emit("dense", (data, weights), (self.batch, self.filters))
        frame = self.emit("reshape", (features,), self.pixels(1), {"shape": self.pixels(1)})
        self.line = self.lengthened(frame) if self.memory > 1 else frame
        taps = np.ascontiguousarray(self.time.reshape(units, self.rank, self.memory).transpose(0, 2, 1))
        kernel = self.rewrite.constant("time", taps.reshape(units, self.memory, 1, self.rank))
        attrs: Mapping[str, Attr] = {"padding": (0, 0, 0, 0), "groups": units, "layout": "NHWC"}
        sums = self.emit("conv2d", (self.line, kernel, bias), (self.batch, 1, 1, units), attrs)
        activation = str(self.node.attr("activation"))
        if activation:
            linear, sums = sums, self.rewrite.value("activated", (self.batch, 1, 1, units), "float32")
            emit_activation(self.rewrite, activation, linear, sums)
        self.rewrite.emit("reshape", (sums,), self.node.outputs[0], {"shape": (self.batch, units)})

    def lengthened(self, frame: str) -> str:
        """The image with the new frame in place of the oldest."""
        cut: Mapping[str, Attr] = {"begin": (0, 1, 0, 0), "end": self.pixels(self.memory), "strides": (1, 1, 1, 1)}
        past = self.emit("slice", (self.image,), self.pixels(self.memory - 1), cut)
        return self.emit("concat", (past, frame), self.pixels(self.memory), {"axis": 1})

    def emit(self, op: str, inputs: Sequence[str], shape: Sequence[int], attrs: Mapping[str, Any] | None = None) -> str:
        every = {**registry.get(op).defaults, **(attrs or {})}
        return self.rewrite.emit(op, inputs, self.rewrite.value(op, shape, "float32"), every)


PASS = Pass("svdf_layers", svdf_as_layers, 0)
