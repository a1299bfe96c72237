"""Spellings of TFLite's windows that networks seldom have: over volumes, over neighbouring channels, over pixels moved apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from microc.dtypes import Array
from microc.frontend.tflite.application import Application
from microc.frontend.tflite.options import Fields
from microc.frontend.tflite.spelling import FLOAT, MOVABLE, Spelling, activation, check_alike, real_clip
from microc.graph.ir import Attr

_CHANNELS_FIRST, _CHANNELS_LAST = (0, 4, 1, 2, 3), (0, 2, 3, 4, 1)


def conv_3d(application: Application) -> None:
    """CONV_3D: data (N, D, H, W, C), weights (D, H, W, C / groups, O)."""
    fields, (weight, bias) = _options(application), _weights(application, (4, 3, 0, 1, 2))
    data, taps = _volume(application, 0), weight.shape[2:]
    shape = application.type(data).shape
    strides, dilation = _triple(fields, "Stride{}"), _triple(fields, "Dilation{}Factor")
    if shape[1] % weight.shape[1]:
        application.broken(f"weights of {weight.shape[1]} channels for {shape[1]}")
    padding = _padding(application, fields, shape[2:], taps, strides, dilation)
    attrs: Mapping[str, Attr] = {"strides": strides, "dilation": dilation, "padding": padding}
    name = application.new_constant("weights", weight)
    groups: Mapping[str, Attr] = {"groups": shape[1] // weight.shape[1]}
    _finish(application, fields, application.emit("convolution", (data, name, *bias), {**attrs, **groups}))


def conv_3d_transpose(application: Application) -> None:
    """CONV_3D_TRANSPOSE: output shape, weights (D, H, W, O, C), data; the padding is that of a convolution of the output."""
    fields, (weight, bias) = _options(application), _weights(application, (4, 3, 0, 1, 2))
    data, taps, wanted = _volume(application, 2), weight.shape[2:], application.integers(0)
    shape = application.type(data).shape
    strides, dilation = _triple(fields, "Stride{}"), _triple(fields, "Dilation{}Factor")
    if len(wanted) != 5 or min(wanted) < 1 or weight.shape[0] != shape[1]:
        application.broken(f"output shape {wanted} of data of shape {shape} and weights {weight.shape}")
    before = _padding(application, fields, wanted[1:4], taps, strides, dilation)[:3]
    rows = zip(shape[2:], taps, strides, dilation, before, wanted[1:4], strict=True)
    after = tuple((e - 1) * s + (k - 1) * d + 1 - b - out for e, k, s, d, b, out in rows)
    attrs: Mapping[str, Attr] = {"strides": strides, "dilation": dilation, "padding": (*before, *after), "groups": 1}
    name = application.new_constant("weights", weight)
    _finish(application, fields, application.emit("convolution_transpose", (data, name, *bias), attrs))


def _options(application: Application) -> Fields:
    return application.operator.options.fields("Conv3DOptions", required=True)


def _triple(fields: Fields, pattern: str) -> tuple[int, int, int]:
    depth, height, width = (fields.integer(pattern.format(axis), 1) for axis in "DHW")
    return depth, height, width


def _weights(application: Application, order: tuple[int, ...]) -> tuple[Array, tuple[str, ...]]:
    """The constant weights, their axes in another order, and the name of the bias if there is one."""
    weight = application.constant(1)
    if weight.ndim != 5 or weight.dtype != np.float32:
        application.refuse(f"weights of {weight.dtype} {weight.shape}", "weights of volumes are float32 of five axes")
    bias_at = 3 if application.operator.code == "CONV_3D_TRANSPOSE" else 2
    bias = (application.operand(bias_at),) if application.has(bias_at) else ()
    return np.ascontiguousarray(weight.transpose(order)), bias


def _volume(application: Application, position: int) -> str:
    data = application.operand(position)
    application.rank(data, 5)
    return application.emit("transpose", (data,), {"axes": _CHANNELS_FIRST})


def _padding(
    application: Application,
    fields: Fields,
    extents: Sequence[int],
    taps: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...]:
    """SAME or VALID as all amounts before, then all after (``padding.h``)."""
    scheme = fields.integer("Padding", 0, 1)
    rows = zip(extents, taps, strides, dilation, strict=True)
    total = [0 if scheme else max((-(-e // s) - 1) * s + (k - 1) * d + 1 - e, 0) for e, k, s, d in rows]
    return (*(t // 2 for t in total), *(t - t // 2 for t in total))


def _finish(application: Application, fields: Fields, value: str) -> None:
    last = application.emit("transpose", (value,), {"axes": _CHANNELS_LAST})
    code = fields.integer("FusedActivationFunction")
    real_clip(application, last, activation(application, code))


def local_response_normalization(application: Application) -> None:
    """LOCAL_RESPONSE_NORMALIZATION: x (bias + alpha s)**-beta, s the sum of squares of the channels around."""
    fields = application.operator.options.fields("LocalResponseNormalizationOptions", required=True)
    data = application.operand(0)
    shape = application.rank(data, 4)
    rows, depth = prod(shape[:-1]), shape[-1]
    radius = min(fields.integer("Radius", 0), depth - 1)
    squares = application.reshaped(application.emit("mul", (data, data), {}), (rows, 1, depth))
    attrs: Mapping[str, Attr] = {"kernel": (2 * radius + 1,), "padding": (radius, radius)}
    around = application.emit("window_sum", (squares,), {**attrs, "strides": (1,), "dilation": (1,)})
    value = application.reshaped(around, shape)
    for op, name in (("mul", "Alpha"), ("add", "Bias")):
        value = application.emit(op, (value, application.scalar(fields.real(name))), {})
    power = application.emit("pow", (value, application.scalar(-fields.real("Beta"))), {})
    application.result("mul", (data, power), {})


def dilate(application: Application) -> None:
    """DILATE: elements moved apart along every axis, a constant value between them."""
    data, factors, filler = application.moved(0), application.integers(1), application.constant(2)
    check_alike(application, [0])
    shape = application.type(data).shape
    if len(factors) != len(shape) or min(factors, default=1) < 1 or filler.size != 1 or 0 in shape:
        application.broken(f"shape {shape} moved apart by {factors}")
    for axis, factor in enumerate(factors):
        if factor == 1:
            continue
        extent = shape[axis]
        apart = application.reshaped(data, (prod(shape[:axis]), extent, 1, prod(shape[axis + 1 :])))
        padding = ((0, 0), (0, 0), (0, factor - 1), (0, 0))
        wide = application.emit("pad", (apart,), {"padding": padding, "value": filler.reshape(-1)[0].item()})
        joined = application.reshaped(wide, (prod(shape[:axis]), extent * factor, prod(shape[axis + 1 :])))
        end = (prod(shape[:axis]), (extent - 1) * factor + 1, prod(shape[axis + 1 :]))
        data = application.emit("slice", (joined,), {"begin": (0, 0, 0), "end": end, "strides": (1, 1, 1)})
        shape = (*shape[:axis], end[1], *shape[axis + 1 :])
        data = application.reshaped(data, shape)
    application.result_reshape(data, shape)


SPELLINGS: Mapping[str, Spelling] = {
    "CONV_3D": Spelling(conv_3d, FLOAT),
    "CONV_3D_TRANSPOSE": Spelling(conv_3d_transpose, FLOAT),
    "DILATE": Spelling(dilate, MOVABLE),
    "LOCAL_RESPONSE_NORMALIZATION": Spelling(local_response_normalization, FLOAT),
}
