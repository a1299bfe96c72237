"""Quantised functions in int32 where a table would be too large: relu, clip, leaky_relu, abs of 16 bits, squared differences.

Sources: TFLite Micro ``activations_common.cc``, ``leaky_relu_common.cc``, ``elementwise.cc``, ``squared_difference.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc import dtypes
from microc.fixed import INT32_MAX, INT32_MIN
from microc.graph.ir import Attr, Graph, Node
from microc.ops.arith import Rewrite, scalar_quant
from microc.ops.elementwise.tables import slope_ratio, stored_bounds
from microc.ops.quantised.requantization import Requantization, emit_requantize
from microc.ops.registry import Legalized
from microc.ops.rounding import Rounding


def int16_rescaled(node: Node, graph: Graph) -> Legalized:
    """``node`` (relu, clip or leaky_relu, quantised) as ``requantize`` and, for leaky_relu, integer arithmetic."""
    rewrite = Rewrite(node, graph)
    source, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    scale_in, zero_in = scalar_quant(node, graph, node.inputs[0])
    scale_out, zero_out = scalar_quant(node, graph, node.outputs[0])
    single = node.attr("rounding") == Rounding.LITERT  # LiteRT divides the scales in float32, TFLite Micro in double
    ratio = (
        float(np.float32(scale_in) / np.float32(scale_out)) if single else np.float64(scale_in) / np.float64(scale_out)
    )
    least, most = dtypes.int_range(source.dtype)
    bound = max(most - zero_in, zero_in - least)
    if node.op != "leaky_relu":
        assert result.quant is not None
        low, high = stored_bounds(node.op, node.attrs, result.quant, result.dtype, _rounding(node))
        parameters = Requantization((float(ratio),), zero_out, low, high, result.dtype)
        emit_requantize(rewrite, node.inputs[0], node.outputs[0], parameters, _rounding(node), bound, zero_in)
        return rewrite.legalized()
    alpha = node.attr("alpha")
    slope = slope_ratio(scale_in, scale_out, alpha)
    if single:
        slope = float(np.float32(scale_in) * abs(np.float32(alpha)) / np.float32(scale_out))
    x = rewrite.emit("cast", node.inputs[:1], rewrite.value("wide", source.shape, "int32"), {"dtype": "int32"})
    if zero_in:
        x = _with(rewrite, "sub", x, zero_in)
    parts = [
        _scaled(rewrite, _with(rewrite, op, x, 0), float(real), bound)
        for op, real in (("maximum", ratio), ("minimum", slope))
    ]
    total = rewrite.value("sum", source.shape, "int32")
    rewrite.emit("sub" if alpha < 0 else "add", parts, total, {"activation": "", "rounding": Rounding.NONE})
    if zero_out:
        total = _with(rewrite, "add", total, zero_out)
    low, high = dtypes.int_range(result.dtype)
    clipped = rewrite.value("clipped", source.shape, "int32")
    rewrite.emit("clip", (total,), clipped, {"minimum": low, "maximum": high, "rounding": Rounding.NONE})
    rewrite.emit("cast", (clipped,), node.outputs[0], {"dtype": result.dtype})
    return rewrite.legalized()


def int16_abs(node: Node, graph: Graph) -> Legalized:
    """``abs`` of int16 values, scaled where the output's scale is another one."""
    rewrite = Rewrite(node, graph)
    source, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    scale_in, zero_in = scalar_quant(node, graph, node.inputs[0])
    scale_out, zero_out = scalar_quant(node, graph, node.outputs[0])
    x = rewrite.emit("cast", node.inputs[:1], rewrite.value("wide", source.shape, "int32"), {"dtype": "int32"})
    if zero_in:
        x = _with(rewrite, "sub", x, zero_in)
    size = rewrite.emit("abs", (x,), rewrite.value("size", source.shape, "int32"), {"rounding": Rounding.NONE})
    ratio = np.float64(scale_in) / np.float64(scale_out)
    low, high = dtypes.int_range(result.dtype)
    parameters = Requantization((float(ratio),), zero_out, low, high, result.dtype)
    emit_requantize(rewrite, size, node.outputs[0], parameters, _rounding(node), 1 << 16)
    return rewrite.legalized()


def squared_difference(node: Node, graph: Graph) -> Legalized:
    """(a - b) squared: both sides on twice the larger scale, after a shift by 7 bits (none of 16-bit data)."""
    rewrite = Rewrite(node, graph)
    result = graph.types[node.outputs[0]]
    scales = [float(np.float32(scalar_quant(node, graph, name)[0])) for name in (*node.inputs, *node.outputs)]
    zero_out = scalar_quant(node, graph, node.outputs[0])[1]
    left, twice = 7 if dtypes.nbytes(graph.types[node.inputs[0]].dtype) == 1 else 0, 2.0 * max(scales[:2])
    terms = [
        shifted_scaled(rewrite, name, left, scale / twice) for name, scale in zip(node.inputs, scales, strict=False)
    ]
    plain: Mapping[str, Attr] = {"activation": "", "rounding": Rounding.NONE}
    difference = rewrite.emit("sub", terms, rewrite.value("difference", result.shape, "int32"), plain)
    square = rewrite.emit("mul", (difference,) * 2, rewrite.value("square", result.shape, "int32"), plain)
    real = twice * twice / float(np.float32((1 << left * 2) * np.float32(scales[2])))
    low, high = dtypes.int_range(result.dtype)
    parameters = Requantization((real,), zero_out, low, high, result.dtype)
    emit_requantize(rewrite, square, node.outputs[0], parameters, _rounding(node), INT32_MAX)
    return rewrite.legalized()


def shifted_scaled(rewrite: Rewrite, name: str, left: int, real: float) -> str:
    """A value less its zero point, shifted to the left, times ``real`` (at most one), rounded: int32."""
    kind = rewrite.type(name)
    zero = scalar_quant(rewrite.node, rewrite.graph, name)[1]
    low, high = dtypes.int_range(kind.dtype)
    x = rewrite.emit("cast", (name,), rewrite.value("wide", kind.shape, "int32"), {"dtype": "int32"})
    x = _with(rewrite, "sub", x, zero) if zero else x
    x = _with(rewrite, "mul", x, 1 << left) if left else x
    return _scaled(rewrite, x, real, max(high - zero, zero - low) << left)


def _rounding(node: Node) -> str:
    return Rounding(str(node.attr("rounding"))).multiplier


def _with(rewrite: Rewrite, op: str, value: str, number: int) -> str:
    """An int32 operator applied to a value and a number."""
    constant = rewrite.constant("number", np.array(number, np.int32))
    result = rewrite.value(op, rewrite.type(value).shape, "int32")
    return rewrite.emit(op, (value, constant), result, {"activation": "", "rounding": Rounding.NONE})


def _scaled(rewrite: Rewrite, value: str, real: float, bound: int) -> str:
    """An int32 value within ``bound`` times ``real``, as int32."""
    output = rewrite.value("scaled", rewrite.type(value).shape, "int32")
    parameters = Requantization((real,), 0, INT32_MIN, INT32_MAX, "int32")
    emit_requantize(rewrite, value, output, parameters, _rounding(rewrite.node), bound)
    return output
