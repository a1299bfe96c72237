"""How integers are rounded when they are scaled, where a file leaves that to the program that runs it (TFLite).

``tflm``: the high half of a product, then a shift, each rounded, as TFLite Micro and CMSIS-NN do; what the readers say.
``litert``: as LiteRT's own kernels. Dense layers round once (but for negative ties, which these round down), quotients are scaled
by a float, relu and leaky_relu of int16 by a ratio in float32, and floats become int16 by the reciprocal of their scale.
``single``: all operators that scale by fixed-point multipliers round once, as builds with TFLITE_SINGLE_ROUNDING do, and as
XNNPACK's layers do whose weights have a scale for each channel.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from microc.graph.ir import Attr, Graph, Node, TensorType, fresh_name
from microc.ops import registry
from microc.ops.rounding import Rounding, Ties
from microc.transform.context import Pass, PassContext

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


PASS = Pass("rounding", rounding, 0, around=True)
