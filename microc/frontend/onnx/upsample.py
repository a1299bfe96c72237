"""Spellings of ONNX's operators that make images larger: ConvTranspose and Resize."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from microc.frontend.onnx.application import MOVABLE, Application, Spelling
from microc.frontend.onnx.build import Stored
from microc.frontend.onnx.resize import resample, resized_axes
from microc.frontend.onnx.window import as_image, spatial, weights
from microc.graph.ir import Quant
from microc.ops.rounding import Rounding


def conv_transpose(application: Application) -> None:
    """ConvTranspose: over one or two axes with weights known when compiling, or over any with any."""
    attrs, shape = _transposed(application), application.shape(0)
    known = [application.builder.stored(application.value(k)) is not None for k in (1, 2) if application.has(k)]
    plain = application.type(application.value(0)).dtype == "float32" and len(shape) in (3, 4)
    if not plain or not all(known):
        operands = [application.operand(k) for k in range(3) if application.has(k)]
        application.result("convolution_transpose", operands, attrs)
        return
    weight, bias = weights(application, 1, 2)
    name = application.output()
    image = application.emit("transpose", (as_image(application, application.value(0)),), {"axes": (0, 2, 3, 1)})
    operands = [image, application.store(f"{name}_weight", _channels_last(application, weight, int(attrs["groups"])))]
    if bias is not None:
        operands.append(application.store(f"{name}_bias", bias))
    if len(shape) == 3:
        (stride,), (spread,), (before, after) = attrs["strides"], attrs["dilation"], attrs["padding"]
        attrs = {**attrs, "strides": (1, stride), "dilation": (1, spread), "padding": (0, before, 0, after)}
    made = application.emit("conv2d_transpose", operands, {**attrs, "rounding": Rounding.EVEN})
    made = application.emit("transpose", (made,), {"axes": (0, 3, 1, 2)})
    batch, channels, _, width = application.type(made).shape
    application.result_alias(made if len(shape) == 4 else application.reshaped(made, (batch, channels, width)))


def _channels_last(application: Application, weight: Stored, groups: int) -> Stored:
    """Weights (I, O / groups, [H,] W) as (O, H, W, I / groups)."""
    inputs, each, *kernel = weight.data.shape
    split = weight.data.reshape(groups, inputs // groups, each, *[1] * (2 - len(kernel)), *kernel)
    moved = np.ascontiguousarray(split.transpose(0, 2, 3, 4, 1))
    quant = weight.quant
    if quant is not None and quant.axis is not None:
        if quant.axis != 1:
            application.refuse(
                f"weights quantised along axis {quant.axis}", "quantise them along axis 1, the output channels"
            )
        quant = Quant(quant.scale * groups, quant.zero_point * groups, 0)
    return Stored(moved.reshape(-1, *moved.shape[2:]), quant)


def _transposed(application: Application) -> Mapping[str, Any]:
    """The attributes of a transposed convolution over any number of axes; output padding is padding taken back."""
    attributes, extents, kernel = application.operator.attributes, application.shape(0)[2:], application.shape(1)[2:]
    rank, groups = len(extents), attributes.integer("group", 1)
    if (
        len(kernel) != rank
        or 0 in application.shape(1)
        or attributes.integers("kernel_shape", kernel)[-rank:] != kernel
    ):
        application.broken(f"weights of shape {application.shape(1)} for data of shape {application.shape(0)}")
    if groups < 1 or application.shape(1)[0] != application.shape(0)[1] or application.shape(0)[1] % groups:
        application.broken(f"{groups} groups of weights {application.shape(1)} for {application.shape(0)[1]} channels")
    strides, dilation = (spatial(application, name, (1,) * rank, 1) for name in ("strides", "dilations"))
    growth = spatial(application, "output_padding", (0,) * rank, 0)
    pads = spatial(application, "pads", (0,) * 2 * rank, 0)
    axes = list(zip(extents, strides, kernel, dilation, strict=True))
    sizes = [(e - 1) * s + (k - 1) * d + 1 for e, s, k, d in axes]
    mode, wanted = attributes.text("auto_pad", "NOTSET"), attributes.integers("output_shape", ())[-rank:]
    if len(wanted) not in (0, rank) or mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        application.broken(f"output_shape {wanted} and auto_pad {mode!r} for {rank} axes")
    pads = pads if mode == "NOTSET" else (0,) * 2 * rank
    before, after = list(pads[:rank]), list(pads[rank:])
    if mode in ("SAME_UPPER", "SAME_LOWER") and not wanted:
        wanted = tuple(e * s for e, s in zip(extents, strides, strict=True))
    for k, (size, more) in enumerate(zip(sizes, growth, strict=True)):
        if wanted:
            total = size + more - wanted[k]
            small = total // 2
            before[k] = small if mode == "SAME_UPPER" else total - small
            after[k] = total - before[k] - more
        else:
            after[k] -= more
    padding = (*before, *after)
    return {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups}


def resize(application: Application) -> None:
    """Resize (and Upsample): every element is one of the data's, or a weighted sum of a few."""
    resample(application, resized_axes(application))


SPELLINGS: Mapping[str, Spelling] = {
    "ConvTranspose": Spelling(conv_transpose),
    "Resize": Spelling(resize, MOVABLE),
    "Upsample": Spelling(resize, MOVABLE),
}
