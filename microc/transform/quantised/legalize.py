"""Quantised operators become core operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.errors import InternalError, UnsupportedError
from microc.graph.ir import Attr, Graph, Node, TensorType, fresh_name
from microc.ops import registry
from microc.ops.arithmetic import Rewrite, emit_activation
from microc.ops.attributes import Rounding, Ties
from microc.transform.pass_context import Pass, PassContext

# ---- How integers are rounded when they are scaled, where a file leaves that to the program that runs it (TFLite).
#
# ``tflm``: the high half of a product, then a shift, each rounded, as TFLite Micro and CMSIS-NN do; what the readers say.
# ``litert``: as LiteRT's own kernels. Dense layers round once (but for negative ties, which these round down), quotients are
# scaled by a float, relu and leaky_relu of int16 by a ratio in float32, and floats become int16 by the reciprocal of their
# scale. ``single``: all operators that scale by fixed-point multipliers round once, as builds with TFLITE_SINGLE_ROUNDING do,
# and as XNNPACK's layers do whose weights have a scale for each channel.

_OF_LITERT = frozenset(("dense", "div"))
_RESCALED_BY_LITERT = frozenset(("clip", "leaky_relu", "relu"))
"""Operators whose scales LiteRT divides in float32: of int16 one in thousands shows it, of bytes none."""


def rounding(graph: Graph, context: PassContext) -> Graph:
    """The attribute ``rounding`` of nodes from TFLite files, as the option asks."""
    wanted = context.options.get("rounding", "tflm")
    if wanted == "tflm":
        return graph

    def rounded(node: Node) -> Node:
        special = node.op in _OF_LITERT or (node.op in _RESCALED_BY_LITERT and _is_int16(graph, node))
        once = node.attrs.get("rounding") == Rounding.DOUBLE and (wanted == Rounding.SINGLE or special)
        return replace(node, attrs={**node.attrs, "rounding": wanted}) if once else node

    found = graph.with_nodes([rounded(node) for node in graph.nodes])
    return _by_reciprocals(found) if wanted == Rounding.LITERT else found


def _is_int16(graph: Graph, node: Node) -> bool:
    return all(
        graph.types[name].dtype == "int16" and graph.types[name].quant for name in (node.inputs[0], node.outputs[0])
    )


def _by_reciprocals(graph: Graph) -> Graph:
    """Floats become int16 by the reciprocal of their scale, ties to even: LiteRT's own kernel for that (its reference kernel
    divides, ties away from zero)."""
    nodes: list[Node] = []
    types, consts = dict(graph.types), dict(graph.consts)
    for node in graph.nodes:
        floats = node.op == "quantize" and graph.types[node.inputs[0]].dtype == "float32"
        if (
            not floats
            or node.attr("rounding") != Ties.AWAY
            or node.attr("out_dtype") != "int16"
            or len(node.attr("scale")) > 1
        ):
            nodes.append(node)
            continue
        factor, steps = (fresh_name(types, f"{node.outputs[0]}.{stem}") for stem in ("reciprocal", "steps"))
        consts[factor] = np.array([np.float32(1) / np.float32(node.attr("scale")[0])], np.float32)
        types[factor], types[steps] = (
            TensorType((1,), "float32"),
            replace(types[node.outputs[0]], dtype="float32", quant=None),
        )
        plain: dict[str, Attr] = {"activation": "", "rounding": Rounding.NONE}
        nodes.append(replace(node, op="mul", inputs=(node.inputs[0], factor), outputs=(steps,), attrs=plain))
        nodes.append(replace(node, inputs=(steps,), attrs={**node.attrs, "scale": (1.0,), "rounding": Ties.EVEN}))
    return graph.with_nodes(nodes, types=types, consts=consts)


def in_fixed_point(graph: Graph) -> Graph:
    """ONNX's requantisation by floats as one by fixed-point multipliers that round once: the same but for ties, one in millions.

    Numbers of 16 bits may have no zero points but those of bytes. Softmax of bytes is on integers already, of any scales, which
    TFLite's is not; bytes are requantised by a table.
    """

    def fixed(node: Node) -> Node:
        if regions := registry.get(node.op).regions:
            return replace(node, attrs={**node.attrs, **{name: in_fixed_point(node.attr(name)) for name in regions}})
        if node.attrs.get("rounding") != Rounding.EVEN or node.op == "dequantize":
            return node
        kinds = [graph.types[name] for name in (*node.inputs[:2], *node.outputs) if name]
        quantised = all(kind.quant is not None for kind in (kinds[0], kinds[-1]))
        shifted = any(abs(zero) > 255 for kind in kinds if kind.quant is not None for zero in kind.quant.zero_point)
        by_table = node.op in ("quantize", "softmax") and kinds[0].dtype != "int16"
        if not quantised or shifted or by_table:
            return node
        return replace(node, attrs={**node.attrs, "rounding": Rounding.SINGLE})

    return graph.with_nodes(fixed(node) for node in graph.nodes)


ROUNDING_PASS = Pass("rounding", rounding, 0, around=True)


# ---- SVDF of floats as the layers that it is made of, each of which has an integer form.
#
# A dense layer makes a feature of each filter. The last M of them, the state (B, F * M), become an image (B, M, 1, F): the new
# frame goes in below, the oldest leaves above. Sums over the filters of a unit by weights of time are a convolution as high as
# that image, whose groups are the units.


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


SVDF_LAYERS_PASS = Pass("svdf_layers", svdf_as_layers, 0)


# ---- Quantised and activated surface operators become core operators with explicit integer parameters.

ROUNDS = 8
"""An operator may become surface operators again (a mean becomes a sum and a requantize); few rounds settle everything."""


def legalize(graph: Graph, context: PassContext) -> Graph:
    """Rewrite until nothing changes. With option ``requantize=fixed``, ONNX's float requantisation becomes fixed point.

    Raises UnsupportedError that lists every operator which has no core form.
    """
    if context.options.get("requantize") == "fixed":
        graph = in_fixed_point(graph)
    for _ in range(ROUNDS):
        rewritten = _once(graph)
        if rewritten is graph:
            return graph
        graph = rewritten
    raise InternalError(f"legalizing graph {graph.name} comes to no end")


def _once(graph: Graph) -> Graph:
    """Every node once; the same object when no operator had anything to rewrite."""
    nodes: list[Node] = []
    types, consts = dict(graph.types), dict(graph.consts)
    refused: list[UnsupportedError] = []
    changed = False
    for node in graph.nodes:
        rewrite = registry.get(node.op).legalize
        try:
            found = rewrite(node, replace(graph, types=types, consts=consts)) if rewrite is not None else None
        except UnsupportedError as error:
            refused.append(error if error.where else _placed(error, node))
            continue
        if found is None:
            nodes.append(node)
            continue
        changed = True
        new_nodes, new_types, new_consts = found
        nodes.extend(new_nodes)
        types.update(new_types)
        consts.update(new_consts)
    if refused:
        raise _all_at_once(refused)
    return replace(graph, types=types, consts=consts).with_nodes(nodes) if changed else graph


def _placed(error: UnsupportedError, node: Node) -> UnsupportedError:
    """The same of a node: arithmetic does not know whose numbers it is given."""
    return UnsupportedError(
        f"{node.op} of {', '.join(map(repr, node.outputs))}: {error.what}", where=str(node.loc), hint=error.hint
    )


def _all_at_once(errors: list[UnsupportedError]) -> UnsupportedError:
    """One error that says what all say."""
    if len(errors) == 1:
        return errors[0]
    lines = [f"  {e.where}: {e.what}" + (f" (help: {e.hint})" if e.hint else "") for e in errors]
    return UnsupportedError("\n".join((f"{len(errors)} operators are not supported:", *lines)))


LEGALIZE_PASS = Pass("legalize", legalize, 0)
