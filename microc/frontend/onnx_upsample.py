"""Spellings of ONNX's operators that make images larger: ConvTranspose, and Resize to whole multiples by nearest neighbours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from microc.dtypes import Array
from microc.frontend.onnx_application import MOVABLE, Application, Spelling
from microc.frontend.onnx_build import Stored
from microc.frontend.onnx_slice import cut, mirrored, repeated
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
    weight, bias = weights(application, 1, 2)
    shape = application.shape(0)
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
    """Resize (and Upsample) to whole multiples: to nearest neighbours, or linearly between the pixels of images."""
    attributes, shape = application.operator.attributes, application.shape(0)
    mode, factors = attributes.text("mode", "nearest"), _factors(application, shape)
    coordinates = (
        attributes.text("coordinate_transformation_mode", "half_pixel") if application.opset >= 11 else "asymmetric"
    )
    rounding = attributes.text("nearest_mode", "round_prefer_floor") if application.opset >= 11 else "floor"
    centred = coordinates in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
    if not centred and coordinates != "asymmetric":
        application.refuse(f"resizing with coordinates {coordinates!r}")
    if mode == "nearest":
        if rounding != "floor" if not centred else not rounding.startswith("round"):
            application.refuse(f"resizing with coordinates {coordinates!r} and rounding {rounding!r}")
        application.result_alias(_nearest(application, factors))
    elif mode == "linear" and len(shape) == 4 and factors[:2] == (1, 1):
        if application.type(application.value(0)).dtype != "float32":
            application.refuse("linear resizing of integers")
        application.result_alias(_linear(application, (factors[2], factors[3]), centred))
    else:
        application.refuse(f"resizing of shape {shape} by {factors} in mode {mode!r}", "use mode nearest")


def _nearest(application: Application, factors: Sequence[int]) -> str:
    """Every element as often as the factors say: copies along axes of one element between the others."""
    value, shape = application.value(0), application.shape(0)
    if all(factor == 1 for factor in factors):
        return value
    value = application.reshaped(value, [extent for each in shape for extent in (each, 1)])
    for axis, factor in enumerate(factors):
        value = repeated(application, value, 2 * axis + 1, factor)
    return application.reshaped(value, [e * f for e, f in zip(shape, factors, strict=True)])


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


def _factors(application: Application, shape: Sequence[int]) -> tuple[int, ...]:
    """The whole factors by which the axes grow."""
    position = 1 if application.opset < 11 or application.operator.code == "Upsample" else 2
    if "axes" in application.operator.attributes:
        application.refuse("resizing of chosen axes")
    if application.opset < 9:
        scales: tuple[float, ...] = application.operator.attributes.reals("scales")
    elif application.has(position) and application.constant(position).size:
        scales = tuple(float(scale) for scale in application.constant(position).reshape(-1))
    else:
        sizes = application.integers(3)
        scales = tuple(size / extent for size, extent in zip(sizes, shape, strict=False))
    if len(scales) != len(shape) or len(shape) > 4:
        application.broken(f"{len(scales)} scales for shape {tuple(shape)}")
    if any(not scale.is_integer() or not 1 <= scale <= _LIMIT for scale in scales):
        application.refuse(f"resizing by {scales}", "use whole factors")
    return tuple(int(scale) for scale in scales)


SPELLINGS: Mapping[str, Spelling] = {
    "ConvTranspose": Spelling(conv_transpose),
    "Resize": Spelling(resize, MOVABLE),
    "Upsample": Spelling(resize, MOVABLE),
}
