"""Between reals and integers: what quantisers wrote as operators of their own."""

from __future__ import annotations

from collections.abc import Mapping

from microc.frontend.onnx.writer.application import QUANTISED, Application, Row, quantised_type
from microc.graph.ir import Quant


def quantize(application: Application) -> None:
    """QuantizeLinear; of integers, of the reals that they stand for."""
    node, builder, dtype = application.node, application.builder, application.attr("out_dtype")
    if dtype not in QUANTISED:
        application.refuse(f"quantisation to {dtype}", "ONNX quantises to 8 and 16 bits")
    quant = Quant(application.attr("scale"), application.attr("zero_point"), application.attr("axis"))
    first = quant.axis is None and application.where_it_lies().first
    data = builder.name(node.inputs[0], quantised_type(application.type()), first)
    parameters = builder.quantization(quant, dtype, node.outputs[0])
    made = builder.own_name(node.outputs[0], first)
    builder.bind(
        node.outputs[0], builder.emit("QuantizeLinear", [data, *parameters], [made], axis=quant.axis), first=first
    )


def dequantize(application: Application) -> None:
    """DequantizeLinear, written where it is read."""
    quant = Quant(application.attr("scale"), application.attr("zero_point"), application.attr("axis"))
    application.builder.dequantised[application.node.outputs[0]] = (application.node.inputs[0], quant)


ROWS: Mapping[str, Row] = {"dequantize": dequantize, "quantize": quantize}
