"""Spellings of ONNX's operators that make images larger: ConvTranspose, and and Resize."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from microc.dtypes import Array
from microc.frontend.onnx_application import MOVABLE, Application, Spelling
from microc.frontend.onnx_build import Stored
from microc.frontend.onnx_resize import resample, resized_axes
from microc.frontend.onnx_slice import cut, mirrored
from microc.frontend.onnx_window import as_image, weights
from microc.graph.ir import Attr, Quant

_LIMIT = 1 << 12


@dataclass(frozen=True, slots=True)
class Phases:
    """A transposed convolution: ``strides``, ``taps`` of each of the stride's phases, the full result's ``sizes``."""

    groups: int
    strides: tuple[int, int]
    taps: tuple[int, int]
    sizes: tuple[int, int]


def conv_transpose(application: Application) -> None:
    """ConvTranspose, without dilation, as a convolution that makes all pixels of a stride-sized square as channels.

    Along one axis: y[s q + p] = sum over j of w[p + s j] x[q - j]. So phase p is a convolution with the taps p, p + s,
    ... in reverse; the phases are channels until they are interleaved; ONNX's padding cuts the result.
    """
    shape = application.shape(0)
    known = all(application.builder.stored(application.value(k)) is not None for k in (1, 2) if application.has(k))
    dilated = set(application.operator.attributes.integers("dilations", (1,))) != {1}
    plain = len(shape) in (3, 4) and application.type(application.value(0)).dtype == "float32"
    if not known or dilated or not plain:
        operands = [application.operand(k) for k in range(3) if application.has(k)]
        application.result("convolution_transpose", operands, _transposed(application))
        return
    weight, bias = weights(application, 1, 2)
    if len(shape) not in (3, 4) or weight.data.ndim != len(shape) or 0 in weight.data.shape:
        application.refuse(f"data of shape {shape} and weights of shape {weight.data.shape}")
    one = (1,) * (4 - len(shape))
    wide = weight.reshaped((*weight.data.shape[:2], *one, *weight.data.shape[2:]))
    if wide is None:
        application.refuse("weights quantised along their width")
    data = as_image(application, application.value(0))
    phases, growth = _phases(application, wide)
    made = _all_phases(application, data, wide, bias, phases)
    for axis, (before, after) in enumerate(_cuts(application, phases, growth)):
        made = cut(application, made, 2 + axis, before, phases.sizes[axis] - after)
    result = application.type(made).shape
    application.result_alias(made if not one else application.reshaped(made, (*result[:2], result[3])))


def _transposed(application: Application) -> Mapping[str, Attr]:
    """The attributes of a transposed convolution over any number of axes; output padding is padding taken back."""
    attributes, extents, kernel = application.operator.attributes, application.shape(0)[2:], application.shape(1)[2:]
    rank = len(extents)
    if len(kernel) != rank:
        application.broken(f"weights of shape {application.shape(1)} for data of shape {application.shape(0)}")
    strides, dilation = (attributes.integers(name, (1,) * rank) for name in ("strides", "dilations"))
    growth, pads = attributes.integers("output_padding", (0,) * rank), attributes.integers("pads", (0,) * 2 * rank)
    axes = list(zip(extents, strides, kernel, dilation, strict=True))
    sizes = [(e - 1) * s + (k - 1) * d + 1 for e, s, k, d in axes]
    mode, wanted = attributes.text("auto_pad", "NOTSET"), attributes.integers("output_shape", ())[-rank:]
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
    return {"strides": strides, "padding": padding, "dilation": dilation, "groups": attributes.integer("group", 1)}


def _pair(application: Application, name: str, default: int, lowest: int) -> tuple[int, int]:
    """A spatial attribute as (height, width)."""
    rank = len(application.shape(0)) - 2
    values = application.operator.attributes.integers(name, (default,) * rank)
    if len(values) != rank or any(not lowest <= value <= _LIMIT for value in values):
        application.broken(f"{name} is {values}")
    return (default, values[0]) if rank == 1 else (values[0], values[1])


def _phases(application: Application, weight: Stored) -> tuple[Phases, tuple[int, int]]:
    """What the attributes say, and the output padding."""
    strides, growth = _pair(application, "strides", 1, 1), _pair(application, "output_padding", 0, 0)
    if _pair(application, "dilations", 1, 1) != (1, 1):
        application.refuse("a dilated transposed convolution")
    groups, kernel = application.operator.attributes.integer("group", 1), weight.data.shape[2:]
    channels, extents = application.shape(0)[1], (1, *application.shape(0)[2:])[-2:]
    if application.operator.attributes.integers("kernel_shape", ())[-2:] not in ((), kernel, kernel[1:]):
        application.broken(f"kernel_shape differs from weights of shape {weight.data.shape}")
    if groups < 1 or weight.data.shape[0] != channels or channels % groups:
        application.broken(f"{groups} groups of weights {weight.data.shape} for {channels} channels")
    taps = [-(-(k + more) // s) for k, more, s in zip(kernel, growth, strides, strict=True)]
    sizes = [(e - 1) * s + k + more for e, s, k, more in zip(extents, strides, kernel, growth, strict=True)]
    return Phases(groups, strides, (taps[0], taps[1]), (sizes[0], sizes[1])), growth


def _cuts(application: Application, phases: Phases, growth: tuple[int, int]) -> list[tuple[int, int]]:
    """How much padding takes off before and after, along height and width."""
    attributes, rank = application.operator.attributes, len(application.shape(0)) - 2
    mode, pads = attributes.text("auto_pad", "NOTSET"), attributes.integers("pads", (0,) * 2 * rank)
    wanted = attributes.integers("output_shape", ())[-rank:]
    if mode in ("SAME_UPPER", "SAME_LOWER") and not wanted:
        wanted = tuple(e * s for e, s in zip(application.shape(0)[2:], phases.strides[-rank:], strict=True))
    if wanted and len(wanted) == rank:
        totals = [size - goal for size, goal in zip(phases.sizes[-rank:], wanted, strict=True)]
        small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
        pads = (*small, *large) if mode == "SAME_UPPER" else (*large, *small)
    elif mode == "VALID":
        pads = (0,) * 2 * rank
    sizes = phases.sizes[-rank:]
    if len(pads) != 2 * rank or any(
        min(b, a) < 0 or b + a >= s for b, a, s in zip(pads, pads[rank:], sizes, strict=False)
    ):
        application.broken(f"pads {pads} of a result of {sizes}, output_padding {growth}")
    return [(0, 0)] * (2 - rank) + list(zip(pads[:rank], pads[rank:], strict=True))


def _all_phases(application: Application, data: str, weight: Stored, bias: Stored | None, phases: Phases) -> str:
    """The full result, padding not yet cut off; it may be larger than ``phases.sizes``."""
    (down, right), (rows, columns) = phases.strides, phases.taps
    outputs, name = weight.data.shape[1] * phases.groups, application.output()
    if bias is not None and bias.data.shape != (outputs,):
        application.broken(f"bias of shape {bias.data.shape} for {outputs} channels")
    operands = [
        data,
        application.store(
            f"{name}_weight",
            Stored(_phase_weights(weight, phases), _spread(application, weight.quant, 1, down * right)),
        ),
    ]
    if bias is not None:
        spread = Stored(np.repeat(bias.data, down * right), _spread(application, bias.quant, 0, down * right))
        operands.append(application.store(f"{name}_bias", spread))
    attrs: Mapping[str, Attr] = {
        "strides": (1, 1),
        "padding": (rows - 1, columns - 1, rows - 1, columns - 1),
        "dilation": (1, 1),
        "groups": phases.groups,
        "layout": "NCHW",
    }
    return interleaved(application, application.emit("conv2d", operands, attrs), (down, right))


def interleaved(application: Application, value: str, factors: tuple[int, int]) -> str:
    """Channels that are the pixels of a rectangle (channel, row, column) put in their places."""
    (down, right), (batch, phases, height, width) = factors, application.type(value).shape
    if down * right == 1:
        return value
    channels = phases // (down * right)
    value = application.reshaped(value, (batch, channels, down, right, height, width))
    value = application.emit("transpose", (value,), {"axes": (0, 1, 4, 2, 5, 3)})
    return application.reshaped(value, (batch, channels, height * down, width * right))


def _phase_weights(weight: Stored, phases: Phases) -> Array:
    """Weights (I, O / groups, H, W) as (O * phases, I / groups, taps, taps), the taps reversed."""
    inputs, outputs, height, width = weight.data.shape
    (down, right), (rows, columns) = phases.strides, phases.taps
    fill = weight.quant.zero_point[0] if weight.quant else 0
    margin = ((0, 0), (0, 0), (0, rows * down - height), (0, columns * right - width))
    split = np.pad(weight.data, margin, constant_values=fill)
    split = split.reshape(phases.groups, inputs // phases.groups, outputs, rows, down, columns, right)
    ordered = split.transpose(0, 2, 4, 6, 1, 3, 5)[..., ::-1, ::-1]
    return np.ascontiguousarray(ordered).reshape(-1, inputs // phases.groups, rows, columns)


def _spread(application: Application, quant: Quant | None, axis: int, count: int) -> Quant | None:
    """Scales along ``axis``, the output channels, for ``count`` phases of each."""
    if quant is None or quant.axis is None:
        return quant
    if quant.axis != axis or len(set(quant.zero_point)) > 1 or application.operator.attributes.integer("group", 1) > 1:
        application.refuse("weights quantised along another axis than the output channels")
    scale = tuple(each for each in quant.scale for _ in range(count))
    return replace(quant, scale=scale, zero_point=quant.zero_point[:1] * len(scale), axis=0)


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
