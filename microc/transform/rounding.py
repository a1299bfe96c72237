"""How integers are rounded when they are scaled, where a file leaves that to the program that runs it (TFLite).

``tflm``: the high half of a product, then a shift, each rounded, as TFLite Micro and CMSIS-NN do; what the readers say.
``litert``: dense layers round once, as LiteRT's own kernels do (but for negative ties, which these round down), and quotients are
scaled by a float. ``single``: all operators that scale by fixed-point multipliers round once, as builds with
TFLITE_SINGLE_ROUNDING do, and as XNNPACK's layers do whose weights have a scale for each channel.
"""

from __future__ import annotations

from dataclasses import replace

from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.ops.rounding import Rounding
from microc.transform.context import Pass, PassContext

_OF_LITERT = frozenset(("dense", "div"))


def rounding(graph: Graph, context: PassContext) -> Graph:
    """The attribute ``rounding`` of nodes from TFLite files, as the option asks."""
    wanted = context.options.get("rounding", "tflm")
    if wanted == "tflm":
        return graph

    def rounded(node: Node) -> Node:
        once = node.attrs.get("rounding") == Rounding.DOUBLE and (wanted == Rounding.SINGLE or node.op in _OF_LITERT)
        return replace(node, attrs={**node.attrs, "rounding": wanted}) if once else node

    return graph.with_nodes([rounded(node) for node in graph.nodes])


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
