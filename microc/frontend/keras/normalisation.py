"""Spellings of Keras's layers that normalise by what the data itself is, and of those that fit images to a size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from microc.frontend.keras.application import Layer, Spelling
from microc.graph.ir import Attr


def group_normalization(layer: Layer) -> str:
    """Channels, the last axis, in groups: each normalised over its channels and all axes but the batch."""
    layer.channels_last()
    config, shape = layer.config, layer.shape()
    channels = shape[-1]
    if int(config.get("axis", -1)) % len(shape) != len(shape) - 1:
        layer.refuse(f"groups along axis {config['axis']}", "normalise the last axis")
    groups = int(config["groups"]) if int(config["groups"]) > 0 else channels
    if channels % groups:
        layer.refuse(f"{groups} groups of {channels} channels", "channels must divide into groups")
    scale, centre = bool(config.get("scale", True)), bool(config.get("center", True))
    arrays = list(layer.arrays(scale + centre))
    rows = layer.reshape(layer.x, (shape[0], prod(shape[1:-1]), groups, channels // groups))
    over: Mapping[str, Attr] = {"axes": (1, 3), "keepdims": True}
    centred = layer.emit("sub", (rows, layer.emit("mean", (rows,), over)))
    spread = layer.emit("mean", (layer.emit("mul", (centred, centred)),), over)
    value = layer.reshape(layer.emit("mul", (centred, _inverse_root(layer, spread))), shape)
    if scale:
        value = layer.emit("mul", (value, layer.constant("gamma", arrays.pop(0))))
    return layer.emit("add", (value, layer.constant("beta", arrays.pop(0)))) if centre else value


def rms_normalization(layer: Layer) -> str:
    """x / sqrt(mean(x ** 2) + epsilon), times a factor for every place."""
    axes, rank = layer.config.get("axis", -1), len(layer.shape())
    if [axis % rank for axis in (axes if isinstance(axes, (list, tuple)) else [axes])] != [rank - 1]:
        layer.refuse(f"normalisation along axis {axes}", "normalise the last axis")
    (scale,) = layer.arrays(1)
    over: Mapping[str, Attr] = {"axes": (rank - 1,), "keepdims": True}
    power = layer.emit("mean", (layer.emit("mul", (layer.x, layer.x)),), over)
    value = layer.emit("mul", (layer.x, _inverse_root(layer, power)))
    return layer.emit("mul", (value, layer.constant("scale", scale)))


def unit_normalization(layer: Layer) -> str:
    """x / sqrt(max(sum(x ** 2), 1e-12))."""
    axes = layer.config.get("axis", -1)
    rank, axes = len(layer.shape()), axes if isinstance(axes, (list, tuple)) else [axes]
    over: Mapping[str, Attr] = {"axes": tuple(sorted(int(axis) % rank for axis in axes)), "keepdims": True}
    power = layer.emit("sum", (layer.emit("mul", (layer.x, layer.x)),), over)
    bounded = layer.emit("maximum", (power, layer.scalar(1e-12)))
    return layer.emit("mul", (layer.x, layer.emit("rsqrt", (bounded,))))


def _inverse_root(layer: Layer, power: str) -> str:
    epsilon = layer.scalar(float(layer.config.get("epsilon", 1e-3)))
    return layer.emit("rsqrt", (layer.emit("add", (power, epsilon)),))


def resizing(layer: Layer) -> str:
    """An image in another size, between centres of pixels."""
    layer.channels_last()
    config = layer.config
    how = config.get("interpolation", "bilinear")
    if how not in ("nearest", "bilinear") or config.get("antialias"):
        layer.refuse("antialias" if config.get("antialias") else f"interpolation {how!r}", "use nearest or bilinear")
    if config.get("crop_to_aspect_ratio") or config.get("pad_to_aspect_ratio"):
        layer.refuse("keeping the aspect ratio", "crop or pad with layers of their own")
    if layer.write.type(layer.x).dtype != "float32":
        layer.refuse("an image of integers", "give the model an input of float32")
    return resampled(layer, (int(config["height"]), int(config["width"])), bilinear=how == "bilinear")


def resampled(layer: Layer, sizes: Sequence[int], *, bilinear: bool) -> str:
    """The value with other extents of the axes from 1 on: the nearest element, or two weighted by their distance."""
    places, shares = [], []
    for extent, size in zip(layer.shape()[1:-1], sizes, strict=True):
        source = (np.arange(size) + 0.5) * (extent / size)
        source = np.clip(source - 0.5, 0, extent - 1) if bilinear else np.minimum(np.floor(source), extent - 1)
        first = np.floor(source).astype(np.int64)
        pair = np.stack([first, np.minimum(first + 1, extent - 1)], axis=1).astype(np.int32)
        places.append(layer.write.new_constant("places", pair if bilinear else pair[:, :1]))
        shares.append(layer.constant("shares", np.stack([1 - (source - first), source - first], axis=1)))
    tables = places + shares if bilinear else places
    return layer.emit("resample", (layer.x, *tables), {"axes": tuple(range(1, 1 + len(places)))})


def center_crop(layer: Layer) -> str:
    """The middle of an image that is at least as large."""
    layer.channels_last()
    shape, sizes = layer.shape(), (int(layer.config["height"]), int(layer.config["width"]))
    rows = len(shape) - 3
    if any(extent < size for extent, size in zip(shape[rows:], sizes, strict=False)):
        layer.refuse(f"an image of {shape[rows : rows + 2]}, smaller than what is cut out", "give it a larger one")
    begin, end = [0] * len(shape), list(shape)
    for axis, size in enumerate(sizes, rows):
        begin[axis] = (shape[axis] - size) // 2
        end[axis] = begin[axis] + size
    return layer.emit("slice", (layer.x,), {"begin": tuple(begin), "end": tuple(end), "strides": (1,) * len(shape)})


SPELLINGS: Mapping[str, Spelling] = {
    "CenterCrop": center_crop,
    "GroupNormalization": group_normalization,
    "RMSNormalization": rms_normalization,
    "Resizing": resizing,
    "UnitNormalization": unit_normalization,
}
