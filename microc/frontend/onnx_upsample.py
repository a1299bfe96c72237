"""Spellings of ONNX's operators that make images larger: ConvTranspose and Resize."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from microc.dtypes import Array
from microc.frontend.onnx_application import MOVABLE, Application, Spelling
from microc.frontend.onnx_build import Stored
from microc.frontend.onnx_resize import resample, resized_axes
from microc.frontend.onnx_slice import mirrored
from microc.frontend.onnx_window import as_image, spatial, weights
from microc.graph.ir import Attr, Quant

_LIMIT = 1 << 12


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
    made = application.emit("conv2d_transpose", operands, {**attrs, "rounding": "even"})
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


def interleaved(application: Application, value: str, factors: tuple[int, int]) -> str:
    """Channels that are the pixels of a rectangle (channel, row, column) put in their places."""
    (down, right), (batch, phases, height, width) = factors, application.type(value).shape
    if down * right == 1:
        return value
    channels = phases // (down * right)
    value = application.reshaped(value, (batch, channels, down, right, height, width))
    value = application.emit("transpose", (value,), {"axes": (0, 1, 4, 2, 5, 3)})
    return application.reshaped(value, (batch, channels, height * down, width * right))


def resize(application: Application) -> None:
    """Resize (and Upsample): images grow linearly by whole factors as a convolution, everything else is resampled."""
    axes = resized_axes(application)
    attributes, shape = application.operator.attributes, application.shape(0)
    default = "half_pixel" if application.opset >= 11 else "asymmetric"
    coordinates = attributes.text("coordinate_transformation_mode", default)
    centred = coordinates in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
    whole = all(a.scale.is_integer() and a.axis in (2, 3) and a.scale <= _LIMIT and a.size > 1 for a in axes)
    linear = attributes.text("mode", "nearest") == "linear" and not attributes.flag("exclude_outside")
    real = application.type(application.value(0)).dtype == "float32"
    if len(shape) == 4 and axes and whole and linear and real and (centred or coordinates == "asymmetric"):
        factors = {a.axis: int(a.scale) for a in axes}
        application.result_alias(_linear(application, (factors.get(2, 1), factors.get(3, 1)), centred))
    else:
        resample(application, axes)


def _linear(application: Application, factors: tuple[int, int], centred: bool) -> str:
    """A depthwise convolution with three by three taps for each of the pixels that one becomes; edges are repeated."""
    channels = application.shape(0)[1]
    down, right = (_linear_taps(factor, centred) for factor in factors)
    taps = np.einsum("ay,bx->abyx", down, right).reshape(1, -1, 1, 3, 3).astype(np.float32)
    weight = np.broadcast_to(taps, (channels, *taps.shape[1:])).reshape(-1, 1, 3, 3)
    data = mirrored(application, application.value(0), ((0, 0), (0, 0), (1, 1), (1, 1)), "edge")
    attrs: Mapping[str, Attr] = {
        "strides": (1, 1),
        "padding": (0, 0, 0, 0),
        "dilation": (1, 1),
        "groups": channels,
        "layout": "NCHW",
    }
    name = application.new_constant(f"{application.output()}_weight", weight)
    return interleaved(application, application.emit("conv2d", (data, name), attrs), factors)


def _linear_taps(factor: int, centred: bool) -> Array:
    """(factor, 3): the weights of the pixels before, at and after one, for each of the pixels that it becomes."""
    taps = np.zeros((factor, 3))
    for phase in range(factor):
        position = (phase + 0.5) / factor - 0.5 if centred else phase / factor
        first = math.floor(position)
        taps[phase, first + 1] += 1 - (position - first)
        taps[phase, min(first + 2, 2)] += position - first
    return taps


SPELLINGS: Mapping[str, Spelling] = {
    "ConvTranspose": Spelling(conv_transpose),
    "Resize": Spelling(resize, MOVABLE),
    "Upsample": Spelling(resize, MOVABLE),
}
