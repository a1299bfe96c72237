"""Keras layers that merge, move or drop elements, and attention."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod, sqrt

import numpy as np

from microc.base.dtypes import Array
from microc.frontend.keras.context import Layer, Spelling
from microc.frontend.keras.operators_layers import resampled

# ---- Spellings of Keras's layers that merge, move or drop elements.


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

MERGE_SPELLINGS: Mapping[str, Spelling] = {
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


# ---- Spellings of Keras's attention, and of the products over labelled axes that it is made of.
#
# Projections become dense layers over rows, which are what is quantised best; heads are moved by transposition.

_EQUATION = re.compile(r"(\.\.\.)?([a-zA-Z]*)(\.\.\.)?,([a-zA-Z]+)->(\.\.\.)?([a-zA-Z]*)(\.\.\.)?")
_MASKED = ("query_mask", "value_mask", "key_mask", "attention_mask", "mask")
_PROJECTION, _OUTPUT = "abc,cde->abde", "abcd,cde->abe"
"""Of rows into heads; of heads into rows."""


def einsum_dense(layer: Layer) -> str:
    """A product of the data and a kernel over the axes that the equation sums, and a bias along some."""
    axes = layer.config.get("bias_axes") or ""
    kernel, *bias = layer.arrays(1 + bool(axes))
    return layer.activated(_product(layer, layer.x, str(layer.config["equation"]), kernel, bias, axes))


def _product(layer: Layer, value: str, equation: str, kernel: Array, bias: Sequence[Array], bias_axes: str) -> str:
    """As rows of what is kept by columns of what is summed, in a dense layer."""
    data, weight, result = _labels(layer, equation, len(layer.shape(value)))
    kept = [label for label in data if label not in weight]
    summed = [label for label in data if label in weight]
    made = [label for label in weight if label not in data]
    if len({*data, *weight}) < len(kept + summed + made) or sorted(kept + made) != sorted(result):
        layer.refuse(f"the equation {equation!r}", "each axis is kept, summed with the kernel, or made by the kernel")
    extents = dict(zip((*data, *weight), (*layer.shape(value), *kernel.shape), strict=True))
    rows = layer.reshape(
        _moved(layer, value, [data.index(label) for label in kept + summed]),
        (prod(extents[label] for label in kept), prod(extents[label] for label in summed)),
    )
    turned = kernel.transpose([weight.index(label) for label in made + summed])
    operands = [rows, layer.constant("kernel", turned.reshape(-1, layer.shape(rows)[1]))]
    inside = bool(bias) and list(bias_axes) == made
    operands += [layer.constant("bias", bias[0].reshape(-1))] if inside else []
    found = layer.reshape(layer.emit("dense", operands), [extents[label] for label in kept + made])
    found = _moved(layer, found, [(kept + made).index(label) for label in result])
    return found if inside or not bias else layer.emit("add", (found, layer.constant("bias", bias[0])))


def _labels(layer: Layer, equation: str, rank: int) -> tuple[str, str, str]:
    """The axes of the data, the kernel and the result, dots spelled out."""
    parts = _EQUATION.fullmatch(equation.replace(" ", ""))
    if parts is None:
        layer.refuse(f"the equation {equation!r}", "two operands and a result, as in 'abc,cd->abd'")
    first, data, last, weight, before, result, behind = (part or "" for part in parts.groups())
    free = [chr(code) for code in range(ord("a"), ord("z") + 1) if chr(code) not in equation]
    dots = "".join(free[: max(0, rank - len(data))]) if first or last else ""
    data = dots + data if first else data + dots
    if len(data) != rank or len({*data}) < rank or len({*weight}) < len(weight):
        layer.refuse(f"the equation {equation!r} of data of {rank} axes", "name each axis once")
    return data, weight, dots + result if before else result + dots if behind else result


def _moved(layer: Layer, value: str, axes: Sequence[int]) -> str:
    return value if list(axes) == sorted(axes) else layer.emit("transpose", (value,), {"axes": tuple(axes)})


def multi_head_attention(layer: Layer) -> str:
    """Queries, keys and values of (N, rows, features), projected into heads; what the heads answer, projected back."""
    config, rank = layer.config, len(layer.shape())
    if rank != 3 or list(config.get("attention_axes") or [1]) != [1]:
        layer.refuse(f"attention over data of {rank} axes", "data of (batch, rows, features) is read")
    heads = _heads(layer)
    found = _attended(layer, heads, 1 / sqrt(int(config["key_dim"])))
    return _projected(layer, found, "output_dense", _OUTPUT, "e")


def grouped_query_attention(layer: Layer) -> str:
    """The same where several heads of queries share one of keys and values."""
    config, heads = layer.config, _heads(layer, "_")
    shared = np.arange(int(config["num_query_heads"])) * int(config["num_key_value_heads"])
    places = layer.write.new_constant("heads", (shared // int(config["num_query_heads"])).astype(np.int32))
    heads |= {name: layer.emit("gather", (heads[name], places), {"axis": 2}) for name in ("key", "value")}
    found = _attended(layer, heads, 1 / sqrt(int(config["head_dim"])))
    return _projected(layer, found, "_output_dense", _OUTPUT, "e")


def _operands(layer: Layer) -> dict[str, str]:
    """Queries, values, and keys, which are the values where they are not given."""
    query, *rest = (str(operand) for operand in layer.operands)
    value = rest[0] if rest else str(layer.kwargs["value"])
    return {"query": query, "value": value, "key": rest[1] if rest[1:] else str(layer.kwargs.get("key", value))}


def _heads(layer: Layer, prefix: str = "") -> dict[str, str]:
    """The operands by the weights that the layer has for each: (N, rows, heads, features)."""
    return {
        name: _projected(layer, value, f"{prefix}{name}_dense", _PROJECTION, "de")
        for name, value in _operands(layer).items()
    }


def _projected(layer: Layer, value: str, name: str, equation: str, bias_axes: str) -> str:
    """A value by the weights of a part of the layer."""
    kernel, *bias = layer.weights.inside(name).arrays()
    return _product(layer, value, equation, kernel, bias, bias_axes)


def _attended(layer: Layer, heads: Mapping[str, str], scale: float) -> str:
    """softmax(q k' scale) v of (N, rows, heads, features), in that form."""
    q, k, v = (
        layer.emit("transpose", (heads[name],), {"axes": axes})
        for name, axes in {"query": (0, 2, 1, 3), "key": (0, 2, 3, 1), "value": (0, 2, 1, 3)}.items()
    )
    answered = layer.emit("matmul", (_shares(layer, q, k, scale), v))
    return layer.emit("transpose", (answered,), {"axes": (0, 2, 1, 3)})


def _shares(layer: Layer, q: str, k: str, scale: float) -> str:
    """softmax(q k scale), of those in the past alone where that is asked for."""
    config, masks = layer.config, [name for name in _MASKED if layer.kwargs.get(name) is not None]
    if masks or config.get("use_gate") or config.get("sliding_window") is not None:
        what = masks[0] if masks else "use_gate" if config.get("use_gate") else "sliding_window"
        layer.refuse(what, "attention over all rows, or with use_causal_mask, is read")
    if layer.kwargs.get("return_attention_scores"):
        layer.refuse("return_attention_scores", "call it without")
    q = q if scale == 1 else layer.emit("mul", (q, layer.scalar(scale)))
    scores = layer.emit("matmul", (q, k))
    if layer.kwargs.get("use_causal_mask"):
        allowed = layer.write.new_constant("causal", np.tril(np.ones(layer.shape(scores)[-2:], bool)))
        scores = layer.emit("where", (allowed, scores, layer.scalar(float("-inf"))))
    return layer.emit("softmax", (scores,), {"axis": -1})


def attention(layer: Layer) -> str:
    """softmax(q k') v, or with a factor that was learned; rows have one head."""
    config = layer.config
    if config.get("score_mode", "dot") != "dot":
        layer.refuse(f"scores by {config['score_mode']!r}", "use score_mode='dot'")
    given = _operands(layer)
    scale = float(layer.arrays(1)[0]) if config.get("use_scale") else 1.0
    turned = layer.emit("transpose", (given["key"],), {"axes": (0, 2, 1)})
    return layer.emit("matmul", (_shares(layer, given["query"], turned, scale), given["value"]))


ATTENTION_SPELLINGS: Mapping[str, Spelling] = {
    "Attention": attention,
    "EinsumDense": einsum_dense,
    "GroupQueryAttention": grouped_query_attention,
    "GroupedQueryAttention": grouped_query_attention,
    "MultiHeadAttention": multi_head_attention,
}
