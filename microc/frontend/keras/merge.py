"""Spellings of Keras's layers that merge, move or drop elements."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from microc.frontend.keras.application import Layer, Spelling
from microc.frontend.keras.normalisation import resampled


def same(layer: Layer) -> str:
    """Layers that only train."""
    return layer.x


def merge(op: str) -> Spelling:
    """Operands that broadcast, folded from the left; numbers become constants."""

    def spell(layer: Layer) -> str:
        names = [o if isinstance(o, str) else layer.scalar(float(o)) for o in layer.operands]
        value = names[0]
        for name in names[1:]:
            value = layer.emit(op, (value, name))
        return value

    return spell


def average(layer: Layer) -> str:
    return layer.emit("mul", (str(merge("add")(layer)), layer.scalar(1 / len(layer.operands))))


def concatenate(layer: Layer) -> str:
    axis = layer.config.get("axis", layer.kwargs.get("axis", -1))
    return layer.emit("concat", [str(o) for o in layer.operands], {"axis": int(axis)})


def flatten(layer: Layer) -> str:
    shape = layer.shape()
    return layer.reshape(layer.x, (shape[0], prod(shape[1:])))


def reshape(layer: Layer) -> str:
    shape, wanted = layer.shape(), [int(n) for n in layer.config["target_shape"]]
    if -1 in wanted:
        wanted[wanted.index(-1)] = prod(shape[1:]) // -prod(wanted)
    return layer.reshape(layer.x, (shape[0], *wanted))


def permute(layer: Layer) -> str:
    return layer.emit("transpose", (layer.x,), {"axes": (0, *(int(d) for d in layer.config["dims"]))})


def repeat_vector(layer: Layer) -> str:
    batch, width = layer.shape()
    row = layer.reshape(layer.x, (batch, 1, width))
    return layer.emit("concat", (row,) * int(layer.config["n"]), {"axis": 1})


def _pairs(layer: Layer, name: str, count: int) -> list[tuple[int, int]]:
    """Amounts before and after every spatial axis: one number, one for each axis, or pairs."""
    found = layer.config[name]
    found = [found] * count if isinstance(found, int) else found
    if count == 1 and len(found) == 2:
        found = [found]
    return [(n, n) if isinstance(n, int) else (int(n[0]), int(n[1])) for n in found]


def zero_padding(layer: Layer) -> str:
    layer.channels_last()
    pairs = _pairs(layer, "padding", len(layer.shape()) - 2)
    return layer.emit("pad", (layer.x,), {"padding": ((0, 0), *pairs, (0, 0)), "value": 0.0})


def cropping(layer: Layer) -> str:
    layer.channels_last()
    shape = layer.shape()
    pairs = [(0, 0), *_pairs(layer, "cropping", len(shape) - 2), (0, 0)]
    begin = tuple(before for before, _ in pairs)
    end = tuple(extent - after for extent, (_, after) in zip(shape, pairs, strict=True))
    return layer.emit("slice", (layer.x,), {"begin": begin, "end": end, "strides": (1,) * len(shape)})


def upsampling(layer: Layer) -> str:
    """Whole factors: elements repeated, or two neighbours weighted along each axis."""
    layer.channels_last()
    shape, count = layer.shape(), len(layer.shape()) - 2
    factors = layer.pair("size", count)
    how = layer.config.get("interpolation", "nearest")
    if how not in ("nearest", "bilinear"):
        layer.refuse(f"interpolation {how!r}", "use nearest or bilinear")
    sizes = [extent * factor for extent, factor in zip(shape[1:-1], factors, strict=True)]
    return resampled(layer, sizes, bilinear=how == "bilinear")


def dot(layer: Layer) -> str:
    """Products of two operands, summed over an axis of each, as matrices for every sample."""
    axes, ranks = layer.config["axes"], [len(layer.shape(str(each))) for each in layer.operands]
    pair = [axes] * 2 if isinstance(axes, int) else list(axes)
    first, second = (int(axis) % rank for axis, rank in zip(pair, ranks, strict=True))
    if ranks not in ([2, 2], [3, 3]) or layer.config.get("normalize"):
        layer.refuse(f"operands of {ranks[0]} and {ranks[1]} axes, or normalised ones", "use two or three axes")
    a, b = (str(each) for each in layer.operands)
    if ranks == [2, 2]:
        return layer.emit("sum", (layer.emit("mul", (a, b)),), {"axes": (1,), "keepdims": True})
    a = a if first == 2 else layer.emit("transpose", (a,), {"axes": (0, 2, 1)})
    b = b if second == 1 else layer.emit("transpose", (b,), {"axes": (0, 2, 1)})
    return layer.emit("matmul", (a, b))


def rescaling(layer: Layer) -> str:
    scaled = layer.emit("mul", (_real(layer), layer.constant("scale", np.asarray(layer.config["scale"]))))
    offset = np.asarray(layer.config.get("offset", 0.0))
    return layer.emit("add", (scaled, layer.constant("offset", offset))) if offset.any() else scaled


def _real(layer: Layer) -> str:
    if layer.write.type(layer.x).dtype == "float32":
        return layer.x
    return layer.emit("cast", (layer.x,), {"dtype": "float32"})


_AUGMENTING = (
    "AugMix", "CutMix", "MixUp", "RandAugment", "RandomBrightness", "RandomColorDegeneration", "RandomColorJitter",
    "RandomContrast", "RandomElasticTransform", "RandomErasing", "RandomFlip", "RandomGaussianBlur", "RandomGrayscale",
    "RandomHue", "RandomInvert", "RandomPerspective", "RandomPosterization", "RandomRotation", "RandomSaturation",
    "RandomSharpness", "RandomShear", "RandomTranslation", "RandomZoom",
)  # fmt: skip
"""Layers that change images in training alone."""

SPELLINGS: Mapping[str, Spelling] = {
    **dict.fromkeys(_AUGMENTING, same),
    "ActivityRegularization": same,
    "Add": merge("add"),
    "AlphaDropout": same,
    "Average": average,
    "Concatenate": concatenate,
    "Cropping1D": cropping,
    "Cropping2D": cropping,
    "Cropping3D": cropping,
    "Dot": dot,
    "Divide": merge("div"),
    "Dropout": same,
    "Flatten": flatten,
    "GaussianDropout": same,
    "GaussianNoise": same,
    "Identity": same,
    "Maximum": merge("maximum"),
    "Minimum": merge("minimum"),
    "Multiply": merge("mul"),
    "Permute": permute,
    "RepeatVector": repeat_vector,
    "Rescaling": rescaling,
    "Reshape": reshape,
    "SpatialDropout1D": same,
    "SpatialDropout2D": same,
    "SpatialDropout3D": same,
    "Subtract": merge("sub"),
    "TrueDivide": merge("div"),
    "UpSampling1D": upsampling,
    "UpSampling2D": upsampling,
    "UpSampling3D": upsampling,
    "ZeroPadding1D": zero_padding,
    "ZeroPadding2D": zero_padding,
    "ZeroPadding3D": zero_padding,
}
