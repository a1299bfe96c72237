"""Channels last: every convolution and pool works on NHWC data and OHWI weights; transpositions are moved until few remain.

The host's view does not change: inputs and outputs keep their shapes, so a transposition may remain at either end. One that
moves only axes of one element is a reshape, which costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from microc.dtypes import Array
from microc.graph.ir import Attr, Graph, Node, fresh_name, new_value
from microc.graph.rewriting import rewrite
from microc.ops import registry
from microc.transform.axes import Axes, permuted_type
from microc.transform.context import Pass, PassContext
from microc.transform.reshapes import reshape_rules
from microc.transform.transposes import joining_rules, resting_rules, transpose_rules

CHANNELS_LAST: Mapping[int, Axes] = {3: (0, 2, 1), 4: (0, 2, 3, 1)}
CHANNELS_FIRST: Mapping[int, Axes] = {3: (0, 2, 1), 4: (0, 3, 1, 2)}
"""Orders of the axes that make the one layout from the other, by rank."""


def channels_last(graph: Graph, context: PassContext) -> Graph:
    """Convert the operators with layout NCHW, if there are any, and clear up.

    An image at the input may be transposed before anything else or where it is read: what moves fewer elements is taken, and
    of equals the former, for then what comes next joins the kernel that transposes.
    """
    if all(node.attrs.get("layout") != "NCHW" for node in graph.nodes):
        return rewrite(rewrite(graph, transpose_rules()), resting_rules())
    images = _images(graph)
    candidates = [_converted(graph, swapped) for swapped in ((images, {}) if images else ({},))]
    return min(candidates, key=_moved_elements)


def _converted(graph: Graph, swapped: Mapping[str, str]) -> Graph:
    converted = rewrite(_Converter(graph, swapped).run(), (*transpose_rules(), *reshape_rules()))
    converted = rewrite(_with_true_inputs(converted, graph, swapped), joining_rules())
    return rewrite(converted, (*resting_rules(), *reshape_rules()))


def _moved_elements(graph: Graph) -> int:
    return sum(graph.types[node.outputs[0]].size for node in graph.nodes if node.op == "transpose")


def _images(graph: Graph) -> dict[str, str]:
    """Inputs that feed convolutions or pools directly, or through elementwise work and views, and a name for them in NHWC."""
    reached: set[str] = set()
    for node in reversed(graph.nodes):
        definition = registry.get(node.op)
        passes = definition.elementwise or definition.view or node.op == "pad"
        if node.attrs.get("layout") == "NCHW":
            reached.add(node.inputs[0])
        elif passes and not reached.isdisjoint(node.outputs):
            reached.update(node.inputs)
    found: dict[str, str] = {}
    for name in graph.inputs:
        if name in reached and len(graph.types[name].shape) in CHANNELS_LAST:
            found[name] = fresh_name({*graph.types, *found.values()}, f"{name}.nhwc")
    return found


class _Converter:
    """Writes the graph anew: operators in NHWC, between transpositions.

    The inputs named in ``swapped`` are taken in NHWC for the time being, so that transpositions behind them can cancel.
    """

    def __init__(self, graph: Graph, swapped: Mapping[str, str]) -> None:
        self.graph, self.swapped = graph, swapped
        self.nodes: list[Node] = []
        self.types = dict(graph.types)
        self.consts = dict(graph.consts)

    def run(self) -> Graph:
        for name, image in self.swapped.items():
            kind = self.graph.types[name]
            self.types[image] = permuted_type(kind, CHANNELS_LAST[len(kind.shape)])
            self.nodes.append(Node("transpose", (image,), (name,), {"axes": CHANNELS_FIRST[len(kind.shape)]}))
        for node in self.graph.nodes:
            if node.attrs.get("layout") == "NCHW":
                self.convert(node)
            else:
                self.nodes.append(node)
        inputs = tuple(self.swapped.get(name, name) for name in self.graph.inputs)
        graph = replace(self.graph, inputs=inputs, types=self.types, consts=self.consts)
        return graph.with_nodes(self.nodes)

    def convert(self, node: Node) -> None:
        data, *rest = node.inputs
        output = node.outputs[0]
        if rest:
            rest[0] = self.weight(rest[0], node)
        image = self.transposed(data, node, CHANNELS_LAST[4])
        result = new_value(self.types, f"{output}.nhwc", permuted_type(self.graph.types[output], CHANNELS_LAST[4]))
        attrs = {**node.attrs, "layout": "NHWC"}
        self.nodes.append(replace(node, inputs=(image, *rest), outputs=(result,), attrs=attrs))
        self.nodes.append(Node("transpose", (result,), (output,), {"axes": CHANNELS_FIRST[4]}, node.loc))

    def transposed(self, value: str, node: Node, axes: Axes) -> str:
        name = new_value(self.types, f"{value}.nhwc", permuted_type(self.types[value], axes))
        self.nodes.append(Node("transpose", (value,), (name,), {"axes": axes}, node.loc))
        return name

    def weight(self, value: str, node: Node) -> str:
        """OIHW weights as OHWI: now, where they are constant, if need be behind dequantize."""
        axes = CHANNELS_LAST[4]
        if value in self.consts:
            return self.constant(value)
        producer = next((n for n in self.graph.nodes if value in n.outputs), None)
        if producer is None or producer.op != "dequantize" or producer.inputs[0] not in self.consts:
            return self.transposed(value, node, axes)
        axis = producer.attr("axis")
        attrs: dict[str, Attr] = {**producer.attrs, "axis": None if axis is None else axes.index(axis)}
        name = new_value(self.types, f"{value}.ohwi", permuted_type(self.types[value], axes))
        self.nodes.append(replace(producer, inputs=(self.constant(producer.inputs[0]),), outputs=(name,), attrs=attrs))
        return name

    def constant(self, value: str) -> str:
        axes = CHANNELS_LAST[4]
        name = new_value(self.types, f"{value}.ohwi", permuted_type(self.types[value], axes))
        array: Array = np.ascontiguousarray(self.consts[value].transpose(axes))
        self.consts[name] = array
        return name


def _with_true_inputs(graph: Graph, original: Graph, swapped: Mapping[str, str]) -> Graph:
    """The converted graph with the inputs of the original one, those in ``swapped`` transposed at the start."""
    types = dict(graph.types)
    nodes: list[Node] = []
    for name, image in swapped.items():
        types[name] = original.types[name]
        axes = CHANNELS_LAST[len(types[name].shape)]
        nodes.append(Node("transpose", (name,), (image,), {"axes": axes}, graph.place(name)))
    nodes.extend(node for node in graph.nodes if swapped.keys().isdisjoint(node.outputs))
    return replace(graph, inputs=original.inputs, types=types).with_nodes(nodes)


PASS = Pass("layout", channels_last, 0)
