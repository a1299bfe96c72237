"""Quantised relu, clip and leaky_relu of 16 bits, where a table would be too large: rescaled in int32 as TFLite Micro does.

Sources: TFLite Micro ``activations_common.cc`` and ``leaky_relu_common.cc``.
"""

from __future__ import annotations

import numpy as np

from microc import dtypes
from microc.fixed import INT32_MAX, INT32_MIN
from microc.graph.ir import Graph, Node
from microc.ops.arith import Rewrite, scalar_quant
from microc.ops.registry import Legalized
from microc.ops.requantization import Requantization, emit_requantize
from microc.ops.tables import stored_bounds


def int16_rescaled(node: Node, graph: Graph) -> Legalized:
    """``node`` (relu, clip or leaky_relu, quantised) as ``requantize`` and, for leaky_relu, integer arithmetic."""
    rewrite = Rewrite(node, graph)
    source, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    scale_in, zero_in = scalar_quant(node, graph, node.inputs[0])
    scale_out, zero_out = scalar_quant(node, graph, node.outputs[0])
    ratio = np.float64(scale_in) / np.float64(scale_out)
    least, most = dtypes.int_range(source.dtype)
    bound = max(most - zero_in, zero_in - least)
    if node.op != "leaky_relu":
        assert result.quant is not None
        low, high = stored_bounds(node.op, node.attrs, result.quant, result.dtype, _rounding(node))
        parameters = Requantization((float(ratio),), zero_out, low, high, result.dtype)
        emit_requantize(rewrite, node.inputs[0], node.outputs[0], parameters, _rounding(node), bound, zero_in)
        return rewrite.legalized()
    alpha = np.float64(np.float32(node.attr("alpha")))
    slope = np.float64(scale_in) * abs(alpha) / np.float64(scale_out)
    x = rewrite.emit("cast", node.inputs[:1], rewrite.value("wide", source.shape, "int32"), {"dtype": "int32"})
    if zero_in:
        x = _with(rewrite, "sub", x, zero_in)
    parts = [
        _scaled(rewrite, _with(rewrite, op, x, 0), float(real), bound)
        for op, real in (("maximum", ratio), ("minimum", slope))
    ]
    total = rewrite.value("sum", source.shape, "int32")
    rewrite.emit("sub" if alpha < 0 else "add", parts, total, {"activation": "", "rounding": ""})
    if zero_out:
        total = _with(rewrite, "add", total, zero_out)
    low, high = dtypes.int_range(result.dtype)
    clipped = rewrite.value("clipped", source.shape, "int32")
    rewrite.emit("clip", (total,), clipped, {"minimum": low, "maximum": high, "rounding": ""})
    rewrite.emit("cast", (clipped,), node.outputs[0], {"dtype": result.dtype})
    return rewrite.legalized()


def _rounding(node: Node) -> str:
    return "single" if node.attr("rounding") == "single" else "double"


def _with(rewrite: Rewrite, op: str, value: str, number: int) -> str:
    """An int32 operator applied to a value and a number."""
    constant = rewrite.constant("number", np.array(number, np.int32))
    result = rewrite.value(op, rewrite.type(value).shape, "int32")
    return rewrite.emit(op, (value, constant), result, {"activation": "", "rounding": ""})


def _scaled(rewrite: Rewrite, value: str, real: float, bound: int) -> str:
    """An int32 value within ``bound`` times ``real``, as int32."""
    output = rewrite.value("scaled", rewrite.type(value).shape, "int32")
    parameters = Requantization((real,), 0, INT32_MIN, INT32_MAX, "int32")
    emit_requantize(rewrite, value, output, parameters, _rounding(rewrite.node), bound)
    return output
