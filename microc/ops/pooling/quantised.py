"""What quantised pools become; float pools only lose their activation."""

from __future__ import annotations

from math import lcm, prod

import numpy as np

from microc import dtypes
from microc.fixed import INT32_MAX
from microc.graph.ir import Attr, Graph, Node
from microc.ops.arith import Rewrite, activation_range, is_quantised, scalar_quant
from microc.ops.elementwise.tables import IDENTITY, emit_rescaled
from microc.ops.quantised.exact import LARGEST_DOMAIN, ratio
from microc.ops.quantised.requantization import Requantization, emit_requantize, emit_scaled_sum, within_float32
from microc.ops.registry import Legalized
from microc.ops.rounding import Rounding
from microc.ops.surface import ACTIVATIONS, emit_activation, quantize_attrs, split_activation


def legalize_max(node: Node, graph: Graph) -> Legalized | None:
    """The maximum of the stored integers; then another scale and the activation where there are any."""
    if not is_quantised(node, graph):
        return split_activation(node, graph)
    return _with_epilogue(node, graph) if _alike(node, graph) else _requantised_max(node, graph)


def legalize_avg(node: Node, graph: Graph) -> Legalized | None:
    """TFLite: the average of the stored integers. ONNX: their sum, rescaled. Through floats where neither is exact."""
    if not is_quantised(node, graph):
        return split_activation(node, graph)
    partial = any(node.attr("padding")) and not node.attr("count_include_pad")
    beyond = prod(node.attr("kernel")) << dtypes.info(graph.types[node.inputs[0]].dtype).bits > INT32_MAX
    plain = node.attr("rounding") != Rounding.EVEN and not node.attr("count_include_pad") and not beyond
    if plain and _alike(node, graph):
        return _with_epilogue(node, graph)
    return _averaged(node, graph) if beyond or partial else _summed(node, graph)


def _alike(node: Node, graph: Graph) -> bool:
    """Whether data and result are quantised alike; TFLite takes scales within 1e-6 for equal."""
    scale_in, zero_in = scalar_quant(node, graph, node.inputs[0])
    scale_out, zero_out = scalar_quant(node, graph, node.outputs[0])
    close = scale_in == scale_out if node.attr("rounding") == Rounding.EVEN else abs(scale_in - scale_out) <= 1e-6
    return close and zero_in == zero_out and graph.types[node.inputs[0]].dtype == graph.types[node.outputs[0]].dtype


def _with_epilogue(node: Node, graph: Graph) -> Legalized | None:
    """The pool of the stored integers, clamped where an activation asks."""
    activation = str(node.attr("activation"))
    if not activation:
        return None
    rewrite = Rewrite(node, graph)
    result = graph.types[node.outputs[0]]
    assert result.quant is not None
    low, high = activation_range(activation, result.quant, result.dtype, str(node.attr("rounding")), str(node.loc))
    plain = rewrite.value("pooled", result.shape, result.dtype)
    rewrite.emit(node.op, node.inputs, plain, {**node.attrs, "activation": ""})
    rewrite.emit("clip", (plain,), node.outputs[0], {"minimum": low, "maximum": high, "rounding": Rounding.NONE})
    return rewrite.legalized()


def _requantised_max(node: Node, graph: Graph) -> Legalized:
    """The maximum of the stored integers, taken to the result's scale, with the activation."""
    source, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    activation = str(node.attr("activation"))
    rewrite = Rewrite(node, graph)
    plain = rewrite.value("pooled", result.shape, source.dtype, source.quant)
    rewrite.emit(node.op, node.inputs, plain, {**node.attrs, "activation": ""})
    op, attrs = ACTIVATIONS[activation] if activation else IDENTITY
    emit_rescaled(rewrite, op, attrs, plain, node.outputs[0], str(node.attr("rounding")))
    return rewrite.legalized()


def _averaged(node: Node, graph: Graph) -> Legalized:
    """The average of floats that hold the stored integers less their zero point, scaled, with the activation, and quantised.

    Sums of such floats are exact below 2**24, in any order, so that ties are rounded alike wherever this is computed.
    """
    rewrite, result, activation = Rewrite(node, graph), graph.types[node.outputs[0]], str(node.attr("activation"))
    scale, zero = scalar_quant(node, graph, node.inputs[0])
    stored = rewrite.value("stored", graph.types[node.inputs[0]].shape, "float32")
    rewrite.emit("dequantize", node.inputs, stored, {"scale": (1.0,), "zero_point": (zero,), "axis": None})
    mean, real = (rewrite.value(name, result.shape, "float32") for name in ("mean", "real"))
    rewrite.emit(node.op, (stored,), mean, {**node.attrs, "activation": ""})
    if node.attr("rounding") == Rounding.EVEN and activation not in ("tanh", "sigmoid"):
        _emit_even(rewrite, mean)
        return rewrite.legalized()
    rewrite.emit("mul", (mean, rewrite.constant("scale", np.array([scale], np.float32))), real, {})
    if activation:
        mean, real = real, rewrite.value("active", result.shape, "float32")
        emit_activation(rewrite, activation, mean, real)
    rewrite.emit("quantize", (real,), node.outputs[0], quantize_attrs(result, node.attr("rounding")))
    return rewrite.legalized()


def _emit_even(rewrite: Rewrite, mean: str) -> None:
    """Append what scales means, ties to even. Times a common multiple of their counts they are integers, but for rounding."""
    node, result = rewrite.node, rewrite.type(rewrite.node.outputs[0])
    (scale, zero), (scale_out, zero_out) = (
        scalar_quant(node, rewrite.graph, name) for name in (node.inputs[0], node.outputs[0])
    )
    assert result.quant is not None
    least, most = dtypes.int_range(rewrite.type(node.inputs[0]).dtype)
    multiple = lcm(*_counts(node, rewrite.type(node.inputs[0]).shape, result.shape))
    bound, factor = multiple * max(most - zero, zero - least), ratio(scale, scale_out)
    low, high = activation_range(str(node.attr("activation")), result.quant, result.dtype, Rounding.EVEN, str(node.loc))
    if 2 * bound > LARGEST_DOMAIN:
        stored = rewrite.value("rounded", result.shape, result.dtype)
        attrs = {**quantize_attrs(result, Rounding.EVEN), "scale": (float(np.float32(1 / factor)),)}
        rewrite.emit("quantize", (mean,), stored, attrs)
        rewrite.emit("clip", (stored,), node.outputs, {"minimum": low, "maximum": high, "rounding": Rounding.NONE})
        return
    times = rewrite.constant("multiple", np.array([multiple], np.float32))
    large = rewrite.emit("mul", (mean, times), rewrite.value("multiple", result.shape, "float32"), {})
    rounded = rewrite.emit("round", (large,), rewrite.value("rounded", result.shape, "float32"), {})
    whole = rewrite.emit("cast", (rounded,), rewrite.value("whole", result.shape, "int32"), {"dtype": "int32"})
    end: dict[str, Attr] = {"zero_point": zero_out, "minimum": low, "maximum": high, "out_dtype": result.dtype}
    factor /= multiple
    emit_scaled_sum(rewrite, whole, bound, factor, within_float32(float(factor)), end)


def _counts(node: Node, data: tuple[int, ...], result: tuple[int, ...]) -> set[int]:
    """Count the elements that windows average over."""
    if node.attr("count_include_pad"):
        return {prod(node.attr("kernel"))}
    first = 2 if node.attr("layout") == "NCHW" else 1
    sides = []
    for axis, (kernel, stride) in enumerate(zip(node.attr("kernel"), node.attr("strides"), strict=True)):
        size, before = data[first + axis], node.attr("padding")[axis]
        starts = (at * stride - before for at in range(result[first + axis]))
        sides.append({min(start + kernel, size) - max(start, 0) for start in starts})
    return {rows * columns for rows in sides[0] for columns in sides[1]}


def _summed(node: Node, graph: Graph) -> Legalized:
    """round(sum(x - zero point) * scale / (result scale * count)) + zero point; half to even, scales are in float32 as ONNX
    Runtime's."""
    scale_in, zero_in = scalar_quant(node, graph, node.inputs[0])
    scale_out, zero_out = scalar_quant(node, graph, node.outputs[0])
    result, count = graph.types[node.outputs[0]], prod(node.attr("kernel"))
    assert result.quant is not None
    rewrite = Rewrite(node, graph)
    shared = {key: node.attr(key) for key in ("kernel", "strides", "padding", "layout")}
    total = rewrite.value("sum", result.shape, "int32")
    offset = {"pad_value": zero_in, "offset": -zero_in * count, "out_dtype": "int32"}
    rewrite.emit("sum_pool2d", node.inputs, total, {**shared, **offset})
    rounding, scale = (
        str(node.attr("rounding")),
        float(np.float32(scale_in) / (np.float32(scale_out) * np.float32(count))),
    )
    low, high = activation_range(str(node.attr("activation")), result.quant, result.dtype, rounding, str(node.loc))
    parameters = Requantization((scale,), zero_out, low, high, result.dtype)
    if rounding == Rounding.EVEN:
        least, most = dtypes.int_range(graph.types[node.inputs[0]].dtype)
        bound = count * max(most - zero_in, zero_in - least)
        factor = ratio(scale_in, scale_out) / count
        emit_scaled_sum(rewrite, total, bound, factor, within_float32(scale), parameters.result)
    else:
        emit_requantize(rewrite, total, node.outputs[0], parameters, rounding)
    return rewrite.legalized()
