"""Convolutions. ONNX has channels first: data, weights and results are turned where ours have them last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from microc import dtypes
from microc.frontend.onnx.writer.application import Application, Row, quantised_type
from microc.graph.ir import Quant


def conv2d(application: Application) -> None:
    """Conv."""
    _refuse_core(application)
    if application.attr("pad_value"):
        application.refuse("padding that is not zero", "write the graph as it was read, before any pass")
    if application.attr("layout") == "NHWC":
        application = application.with_channels_first()
    inputs = [application.operand(0), application.operand(1), *bias(application)]
    application.result(
        "Conv",
        *inputs,
        strides=application.attr("strides"),
        pads=application.attr("padding"),
        dilations=application.attr("dilation"),
        group=application.attr("groups"),
    )


def bias(application: Application) -> tuple[str, ...]:
    """The bias, if there is one: of quantised layers the sums' integers, at the scale of data times weights.

    TFLite's layers on 16-bit data have biases of 64 bits, whose numbers 32 bits hold but in networks that went wrong.
    """
    if not application.has(2):
        return ()
    data, builder, kind = application.data(2), application.builder, application.type(2)
    if data is None or not application.quantised:
        name = replace(application, first=False).operand(2)
        return (name if len(kind.shape) == 1 else application.emit("Reshape", name, application.integers(kind.size)),)
    scales, weights = application.type(0).quant, application.type(1).quant
    assert scales is not None and weights is not None
    sums = tuple(scales.scale[0] * scale for scale in weights.scale)
    flat = data.reshape(-1)
    low, high = dtypes.int_range("int32")
    if flat.size and not low <= flat.min() <= flat.max() <= high:
        application.refuse("a bias beyond 32 bits", "ONNX's quantised layers have biases of 32 bits")
    name = builder.constant(application.node.inputs[2], flat.astype(np.int32))
    quant = Quant(sums, (0,) * len(sums), None if weights.axis is None else 0)
    return (builder.dequantize(name, "int32", quant, quant.axis, application.fresh("bias")),)


def _refuse_core(application: Application) -> None:
    """Refuse what only passes make."""
    if application.attr("open") or not (application.quantised or dtypes.is_float(application.dtype())):
        application.refuse(
            f"{application.node.op} of plain integers", "write the graph as it was read, before any pass"
        )


def conv2d_transpose(application: Application) -> None:
    """ConvTranspose: weights are (C, O / groups, kernel); what is cut off below zero is added as ``output_padding``."""
    _refuse_core(application)
    top, left, bottom, right = application.attr("padding")
    strides, more = application.attr("strides"), (max(-bottom, 0), max(-right, 0))
    steps = map(max, strides, application.attr("dilation"))
    if any(extra >= step for extra, step in zip(more, steps, strict=True)):
        application.refuse(f"{more} rows and columns of the bias alone", "ONNX adds fewer than the stride")
    application = application.with_channels_first()
    application.result(
        "ConvTranspose",
        application.operand(0),
        _turned_weights(application),
        *bias(application),
        strides=strides,
        pads=(top, left, max(bottom, 0), max(right, 0)),
        dilations=application.attr("dilation"),
        output_padding=more,
        group=application.attr("groups"),
    )


def _turned_weights(application: Application) -> str:
    """(O, H, W, C / groups) as (C, O / groups, H, W); scales of channels that are several groups' are multiplied in."""
    data, kind, groups = application.data(1), application.type(1), application.attr("groups")
    if data is None:
        if groups > 1:
            application.refuse("weights of groups that are computed", "make them constants")
        last = replace(application, first=False)
        return application.emit("Transpose", last.operand(1), perm=(3, 0, 1, 2))
    outputs, height, width, depth = data.shape

    def turned(weights: np.ndarray) -> np.ndarray:
        grouped = weights.reshape(groups, outputs // groups, height, width, depth)
        return grouped.transpose(0, 4, 1, 2, 3).reshape(groups * depth, outputs // groups, height, width)

    quant = kind.quant
    if not application.quantised or quant is None or not quantised_type(kind):
        return application.constant(turned(data), "weight")
    if quant.axis is not None and groups > 1:
        shape = (outputs, 1, 1, 1)
        centred = data.astype(np.int64) - np.array(quant.zero_point).reshape(shape)
        return application.constant(
            turned((centred * np.array(quant.scale).reshape(shape)).astype(np.float32)), "weight"
        )
    name = application.constant(turned(data), "weight")
    axis = None if quant.axis is None else 1
    return application.builder.dequantize(name, kind.dtype, quant, axis, application.fresh("weight"))


def convolution(code: str) -> Row:
    """Conv or ConvTranspose over any number of axes, which have channels first on both sides."""

    def write(application: Application) -> None:
        application.only_floats()
        inputs = [application.operand(k) for k in range(len(application.node.inputs))]
        application.result(
            code,
            *inputs,
            strides=application.attr("strides"),
            pads=application.attr("padding"),
            dilations=application.attr("dilation"),
            group=application.attr("groups"),
        )

    return write


ROWS: Mapping[str, Row] = {
    "conv2d": conv2d,
    "conv2d_transpose": conv2d_transpose,
    "convolution": convolution("Conv"),
    "convolution_transpose": convolution("ConvTranspose"),
}
