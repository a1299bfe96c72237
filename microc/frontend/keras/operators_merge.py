# SPDX-License-Identifier: Apache-2.0
"""Converters of Keras layers that merge tensors or move elements, and of attention layers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod, sqrt

import numpy as np

from microc.base.dtypes import Array
from microc.frontend.keras.context import Converter, LayerContext
from microc.frontend.keras.operators_layers import emit_resample

# ---- Converters of layers that merge tensors, or move, repeat, pad or crop elements.


def return_operand_unchanged(layer: LayerContext) -> str:
    """Return the operand unchanged, for layers that act only in training, such as Dropout."""
    return layer.first_operand


def make_merge_converter(op: str) -> Converter:
    """Return the converter of a layer that combines all operands by the binary operator ``op``, from left to right.

    Operands are broadcast. Numbers among them become constants."""

    def convert_merge(layer: LayerContext) -> str:
        names = [o if isinstance(o, str) else layer.scalar(float(o)) for o in layer.operands]
        value = names[0]
        for name in names[1:]:
            value = layer.emit(op, (value, name))
        return value

    return convert_merge


def convert_average(layer: LayerContext) -> str:
    return layer.emit("mul", (str(make_merge_converter("add")(layer)), layer.scalar(1 / len(layer.operands))))


def convert_concatenate(layer: LayerContext) -> str:
    axis = layer.config.get("axis", layer.kwargs.get("axis", -1))
    return layer.emit("concat", [str(o) for o in layer.operands], {"axis": int(axis)})


def convert_flatten(layer: LayerContext) -> str:
    shape = layer.shape()
    return layer.reshape(layer.first_operand, (shape[0], prod(shape[1:])))


def convert_reshape(layer: LayerContext) -> str:
    shape, wanted = layer.shape(), [int(n) for n in layer.config["target_shape"]]
    if -1 in wanted:
        wanted[wanted.index(-1)] = prod(shape[1:]) // -prod(wanted)
    return layer.reshape(layer.first_operand, (shape[0], *wanted))


def convert_permute(layer: LayerContext) -> str:
    return layer.emit("transpose", (layer.first_operand,), {"axes": (0, *(int(d) for d in layer.config["dims"]))})


def convert_repeat_vector(layer: LayerContext) -> str:
    batch, width = layer.shape()
    row = layer.reshape(layer.first_operand, (batch, 1, width))
    return layer.emit("concat", (row,) * int(layer.config["n"]), {"axis": 1})


def _read_counts_before_and_after(layer: LayerContext, setting_name: str, axis_count: int) -> list[tuple[int, int]]:
    """Return a setting such as ``padding`` as numbers of elements (before, after) for each of ``axis_count`` spatial
    axes.

    In the configuration the setting is one number, one number for each axis, or a pair for each axis."""
    setting = layer.config[setting_name]
    setting = [setting] * axis_count if isinstance(setting, int) else setting
    if axis_count == 1 and len(setting) == 2:
        setting = [setting]
    return [(n, n) if isinstance(n, int) else (int(n[0]), int(n[1])) for n in setting]


def convert_zero_padding(layer: LayerContext) -> str:
    layer.require_channels_last()
    pairs = _read_counts_before_and_after(layer, "padding", len(layer.shape()) - 2)
    return layer.emit("pad", (layer.first_operand,), {"padding": ((0, 0), *pairs, (0, 0)), "value": 0.0})


def convert_cropping(layer: LayerContext) -> str:
    layer.require_channels_last()
    shape = layer.shape()
    pairs = [(0, 0), *_read_counts_before_and_after(layer, "cropping", len(shape) - 2), (0, 0)]
    begin = tuple(before for before, _ in pairs)
    end = tuple(extent - after for extent, (_, after) in zip(shape, pairs, strict=True))
    return layer.emit("slice", (layer.first_operand,), {"begin": begin, "end": end, "strides": (1,) * len(shape)})


def convert_upsampling(layer: LayerContext) -> str:
    """Convert UpSampling1D, 2D and 3D by integer factors: repeat elements, or interpolate bilinearly."""
    layer.require_channels_last()
    shape, count = layer.shape(), len(layer.shape()) - 2
    factors = layer.read_setting_per_axis("size", count)
    interpolation = layer.config.get("interpolation", "nearest")
    if interpolation not in ("nearest", "bilinear"):
        layer.refuse(
            f"interpolation: got {interpolation!r}, expected 'nearest' or 'bilinear'", "use nearest or bilinear"
        )
    sizes = [extent * factor for extent, factor in zip(shape[1:-1], factors, strict=True)]
    return emit_resample(layer, sizes, is_bilinear=interpolation == "bilinear")


def convert_dot(layer: LayerContext) -> str:
    """Convert Dot: sum the products of two operands over one axis of each.

    Operands of rank 3 become one matrix product for each sample of the batch."""
    axes, ranks = layer.config["axes"], [len(layer.shape(str(operand))) for operand in layer.operands]
    pair = [axes] * 2 if isinstance(axes, int) else list(axes)
    first, second = (int(axis) % rank for axis, rank in zip(pair, ranks, strict=True))
    if ranks not in ([2, 2], [3, 3]) or layer.config.get("normalize"):
        layer.refuse(
            f"got operands of rank {ranks[0]} and {ranks[1]}, normalize={bool(layer.config.get('normalize'))}",
            "use two operands of rank 2 or two of rank 3, without normalize",
        )
    a, b = (str(operand) for operand in layer.operands)
    if ranks == [2, 2]:
        return layer.emit("sum", (layer.emit("mul", (a, b)),), {"axes": (1,), "keepdims": True})
    a = a if first == 2 else layer.emit("transpose", (a,), {"axes": (0, 2, 1)})
    b = b if second == 1 else layer.emit("transpose", (b,), {"axes": (0, 2, 1)})
    return layer.emit("matmul", (a, b))


def convert_rescaling(layer: LayerContext) -> str:
    scaled = layer.emit(
        "mul", (_cast_operand_to_float32(layer), layer.add_constant("scale", np.asarray(layer.config["scale"])))
    )
    offset = np.asarray(layer.config.get("offset", 0.0))
    return layer.emit("add", (scaled, layer.add_constant("offset", offset))) if offset.any() else scaled


def _cast_operand_to_float32(layer: LayerContext) -> str:
    """Return the layer's operand, cast to float32 if it has another dtype."""
    if layer.builder.type(layer.first_operand).dtype == "float32":
        return layer.first_operand
    return layer.emit("cast", (layer.first_operand,), {"dtype": "float32"})


_AUGMENTING = (
    "AugMix", "CutMix", "MixUp", "RandAugment", "RandomBrightness", "RandomColorDegeneration", "RandomColorJitter",
    "RandomContrast", "RandomElasticTransform", "RandomErasing", "RandomFlip", "RandomGaussianBlur", "RandomGrayscale",
    "RandomHue", "RandomInvert", "RandomPerspective", "RandomPosterization", "RandomRotation", "RandomSaturation",
    "RandomSharpness", "RandomShear", "RandomTranslation", "RandomZoom",
)  # fmt: skip
"""Classes of layers that change images in training only."""

MERGE_CONVERTERS: Mapping[str, Converter] = {
    **dict.fromkeys(_AUGMENTING, return_operand_unchanged),
    "ActivityRegularization": return_operand_unchanged,
    "Add": make_merge_converter("add"),
    "AlphaDropout": return_operand_unchanged,
    "Average": convert_average,
    "Concatenate": convert_concatenate,
    "Cropping1D": convert_cropping,
    "Cropping2D": convert_cropping,
    "Cropping3D": convert_cropping,
    "Dot": convert_dot,
    "Divide": make_merge_converter("div"),
    "Dropout": return_operand_unchanged,
    "Flatten": convert_flatten,
    "GaussianDropout": return_operand_unchanged,
    "GaussianNoise": return_operand_unchanged,
    "Identity": return_operand_unchanged,
    "Maximum": make_merge_converter("maximum"),
    "Minimum": make_merge_converter("minimum"),
    "Multiply": make_merge_converter("mul"),
    "Permute": convert_permute,
    "RepeatVector": convert_repeat_vector,
    "Rescaling": convert_rescaling,
    "Reshape": convert_reshape,
    "SpatialDropout1D": return_operand_unchanged,
    "SpatialDropout2D": return_operand_unchanged,
    "SpatialDropout3D": return_operand_unchanged,
    "Subtract": make_merge_converter("sub"),
    "TrueDivide": make_merge_converter("div"),
    "UpSampling1D": convert_upsampling,
    "UpSampling2D": convert_upsampling,
    "UpSampling3D": convert_upsampling,
    "ZeroPadding1D": convert_zero_padding,
    "ZeroPadding2D": convert_zero_padding,
    "ZeroPadding3D": convert_zero_padding,
}


# ---- Converters of attention layers, and of EinsumDense.
#
# The projections of attention layers are einsums. They become dense layers, because quantisation supports dense layers best.
# Transposes rearrange the heads.

_EQUATION = re.compile(r"(\.\.\.)?([a-zA-Z]*)(\.\.\.)?,([a-zA-Z]+)->(\.\.\.)?([a-zA-Z]*)(\.\.\.)?")
_MASKED = ("query_mask", "value_mask", "key_mask", "attention_mask", "mask")
_PROJECTION, _OUTPUT = "abc,cde->abde", "abcd,cde->abe"
"""Einsum equations of the projection of rows to heads, and of heads to rows."""


def convert_einsum_dense(layer: LayerContext) -> str:
    """Convert EinsumDense: the einsum of data and kernel by the layer's equation, and a bias along some axes of the
    result."""
    axes = layer.config.get("bias_axes") or ""
    kernel, *bias = layer.read_weight_arrays(1 + bool(axes))
    return layer.emit_configured_activation(
        _emit_einsum(layer, layer.first_operand, str(layer.config["equation"]), kernel, bias, axes)
    )


def _emit_einsum(
    layer: LayerContext, value: str, equation: str, kernel: Array, bias: Sequence[Array], bias_axes: str
) -> str:
    """Emit an einsum of data and kernel as one dense layer, because quantisation supports dense layers best.

    The data become a matrix (kept axes, summed axes), the kernel a matrix (summed axes, new axes). Transposes before
    and after the product sort the axes.
    """
    data, weight, result = _parse_einsum_labels(layer, equation, len(layer.shape(value)))
    kept = [label for label in data if label not in weight]
    summed = [label for label in data if label in weight]
    new = [label for label in weight if label not in data]
    if len({*data, *weight}) < len(kept + summed + new) or sorted(kept + new) != sorted(result):
        layer.refuse(f"equation: {equation!r} is not supported", "use each axis in two of data, kernel and result")
    extents = dict(zip((*data, *weight), (*layer.shape(value), *kernel.shape), strict=True))
    rows = layer.reshape(
        _emit_transpose(layer, value, [data.index(label) for label in kept + summed]),
        (prod(extents[label] for label in kept), prod(extents[label] for label in summed)),
    )
    sorted_kernel = kernel.transpose([weight.index(label) for label in new + summed])
    operands = [rows, layer.add_constant("kernel", sorted_kernel.reshape(-1, layer.shape(rows)[1]))]
    bias_fits = bool(bias) and list(bias_axes) == new
    operands += [layer.add_constant("bias", bias[0].reshape(-1))] if bias_fits else []
    product = layer.reshape(layer.emit("dense", operands), [extents[label] for label in kept + new])
    product = _emit_transpose(layer, product, [(kept + new).index(label) for label in result])
    return product if bias_fits or not bias else layer.emit("add", (product, layer.add_constant("bias", bias[0])))


def _parse_einsum_labels(layer: LayerContext, equation: str, rank: int) -> tuple[str, str, str]:
    """Return the axis labels of data, kernel and result in an einsum equation, with ``...`` replaced by unused
    labels."""
    match = _EQUATION.fullmatch(equation.replace(" ", ""))
    if match is None:
        layer.refuse(
            f"equation: got {equation!r}, expected 'abc,cd->abd' or similar", "write two operands and a result"
        )
    first, data, last, weight, before, result, behind = (part or "" for part in match.groups())
    free = [chr(code) for code in range(ord("a"), ord("z") + 1) if chr(code) not in equation]
    dots = "".join(free[: max(0, rank - len(data))]) if first or last else ""
    data = dots + data if first else data + dots
    if len(data) != rank or len({*data}) < rank or len({*weight}) < len(weight):
        layer.refuse(f"equation: {equation!r} does not fit data of rank {rank}", "name each axis once")
    return data, weight, dots + result if before else result + dots if behind else result


def _emit_transpose(layer: LayerContext, value: str, axes: Sequence[int]) -> str:
    """Emit a transpose of ``value`` to ``axes``; return ``value`` itself if the axes are in order already."""
    return value if list(axes) == sorted(axes) else layer.emit("transpose", (value,), {"axes": tuple(axes)})


def convert_multi_head_attention(layer: LayerContext) -> str:
    """Convert MultiHeadAttention.

    Queries, keys and values (N, rows, features) are projected to heads, attention is computed for each head, and the
    result is projected back to rows."""
    config, rank = layer.config, len(layer.shape())
    if rank != 3 or list(config.get("attention_axes") or [1]) != [1]:
        layer.refuse(
            f"got data of rank {rank}, expected rank 3 and attention_axes [1]", "use data (batch, rows, features)"
        )
    heads = _emit_head_projections(layer)
    attended = _emit_attention(layer, heads, 1 / sqrt(int(config["key_dim"])))
    return _emit_projection_by_inner_layer(layer, attended, "output_dense", _OUTPUT, "e")


def convert_grouped_query_attention(layer: LayerContext) -> str:
    """Convert GroupedQueryAttention, in which several heads of queries share one head of keys and values."""
    config, heads = layer.config, _emit_head_projections(layer, "_")
    scaled_numbers = np.arange(int(config["num_query_heads"])) * int(config["num_key_value_heads"])
    head_indices = layer.builder.new_constant(
        "heads", (scaled_numbers // int(config["num_query_heads"])).astype(np.int32)
    )
    heads |= {name: layer.emit("gather", (heads[name], head_indices), {"axis": 2}) for name in ("key", "value")}
    attended = _emit_attention(layer, heads, 1 / sqrt(int(config["head_dim"])))
    return _emit_projection_by_inner_layer(layer, attended, "_output_dense", _OUTPUT, "e")


def _find_attention_operands(layer: LayerContext) -> dict[str, str]:
    """Return the operands of an attention layer by name: ``query``, ``value`` and ``key``. An absent key is the
    value."""
    query, *rest = (str(operand) for operand in layer.operands)
    value = rest[0] if rest else str(layer.kwargs["value"])
    return {"query": query, "value": value, "key": rest[1] if rest[1:] else str(layer.kwargs.get("key", value))}


def _emit_head_projections(layer: LayerContext, part_prefix: str = "") -> dict[str, str]:
    """Emit the projections of query, key and value to heads (N, rows, heads, features); return the results by name.

    ``part_prefix``: prefix of the attribute names of the inner dense layers."""
    return {
        name: _emit_projection_by_inner_layer(layer, value, f"{part_prefix}{name}_dense", _PROJECTION, "de")
        for name, value in _find_attention_operands(layer).items()
    }


def _emit_projection_by_inner_layer(
    layer: LayerContext, value: str, part_name: str, equation: str, bias_axes: str
) -> str:
    """Emit the projection of a value by the weights and bias of the inner dense layer ``part_name``."""
    kernel, *bias = layer.weights.weights_of_inner_layer(part_name).arrays()
    return _emit_einsum(layer, value, equation, kernel, bias, bias_axes)


def _emit_attention(layer: LayerContext, heads: Mapping[str, str], scale: float) -> str:
    """Emit softmax(q k' scale) v for heads (N, rows, heads, features), where k' is k transposed. The result has the
    same layout."""
    q, k, v = (
        layer.emit("transpose", (heads[name],), {"axes": axes})
        for name, axes in {"query": (0, 2, 1, 3), "key": (0, 2, 3, 1), "value": (0, 2, 1, 3)}.items()
    )
    attended = layer.emit("matmul", (_emit_attention_weights(layer, q, k, scale), v))
    return layer.emit("transpose", (attended,), {"axes": (0, 2, 1, 3)})


def _emit_attention_weights(layer: LayerContext, queries: str, keys: str, scale: float) -> str:
    """Emit the attention weights softmax(queries keys * ``scale``). With ``use_causal_mask`` the weights of later rows
    are 0."""
    config, masks = layer.config, [name for name in _MASKED if layer.kwargs.get(name) is not None]
    if masks or config.get("use_gate") or config.get("sliding_window") is not None:
        option = masks[0] if masks else "use_gate" if config.get("use_gate") else "sliding_window"
        layer.refuse(f"{option} is not supported", f"leave {option} out, or use use_causal_mask")
    if layer.kwargs.get("return_attention_scores"):
        layer.refuse("return_attention_scores is not supported", "call the layer without it")
    queries = queries if scale == 1 else layer.emit("mul", (queries, layer.scalar(scale)))
    scores = layer.emit("matmul", (queries, keys))
    if layer.kwargs.get("use_causal_mask"):
        allowed = layer.builder.new_constant("causal", np.tril(np.ones(layer.shape(scores)[-2:], bool)))
        scores = layer.emit("where", (allowed, scores, layer.scalar(float("-inf"))))
    return layer.emit("softmax", (scores,), {"axis": -1})


def convert_attention(layer: LayerContext) -> str:
    """Convert Attention with one head: softmax(q k' scale) v, where k' is k transposed. ``scale`` is a weight of the
    layer, or 1."""
    config = layer.config
    if config.get("score_mode", "dot") != "dot":
        layer.refuse(f"score_mode: got {config['score_mode']!r}, expected 'dot'", "use score_mode='dot'")
    operands = _find_attention_operands(layer)
    scale = float(layer.read_weight_arrays(1)[0]) if config.get("use_scale") else 1.0
    transposed_key = layer.emit("transpose", (operands["key"],), {"axes": (0, 2, 1)})
    return layer.emit(
        "matmul", (_emit_attention_weights(layer, operands["query"], transposed_key, scale), operands["value"])
    )


ATTENTION_CONVERTERS: Mapping[str, Converter] = {
    "Attention": convert_attention,
    "EinsumDense": convert_einsum_dense,
    "GroupQueryAttention": convert_grouped_query_attention,
    "GroupedQueryAttention": convert_grouped_query_attention,
    "MultiHeadAttention": convert_multi_head_attention,
}
