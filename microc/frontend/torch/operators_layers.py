"""Converters of ATen's layers: convolutions, matrix products, attention, resizing, quantisation, normalisations,
pools."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.frontend.torch.context import Converter, OpContext, expand_to_axes
from microc.graph.ir import Attr
from microc.ops.attributes import Rounding

# ---- Converters of convolutions, matrix products, attention, resizing and quantisation.


def convert_convolution(context: OpContext) -> str:
    """Convert conv1d, conv2d, conv3d and ``convolution``. Transposed convolutions may have one or two spatial
    axes."""
    x = context.argument("input")
    data, weight, bias = context.convert_to_value(x), context.operand("weight"), context.argument("bias")
    rank, is_unbatched = len(context.shape(weight)) - 2, len(context.shape(data)) == len(context.shape(weight)) - 1
    if is_unbatched:
        data = context.reshape(data, (1, *context.shape(data)))
    strides, dilation = (expand_to_axes(context.argument(name, 1), rank) for name in ("stride", "dilation"))
    padding = _read_convolution_padding(context, context.shape(weight)[2:], dilation)
    transposed = bool(context.argument("transposed", False))
    if rank > 2 and transposed:
        context.refuse(
            f"transposed convolution: got {rank} spatial axes, expected 1 or 2", "use one or two spatial axes"
        )
    if rank == 1:
        data = context.reshape(data, (*context.shape(data)[:2], 1, context.shape(data)[2]))
        weight = _conv1d_weight_as_conv2d(context, weight)
        strides, dilation, padding = (1, *strides), (1, *dilation), (0, padding[0], 0, padding[1])
    operands = (data, weight) if bias is None else (data, weight, context.convert_to_value(bias))
    groups = int(context.argument("groups", 1))
    if transposed:
        result = _emit_conv2d_transpose(context, operands, strides, padding, dilation, groups, rank)
    else:
        attrs: Mapping[str, Attr] = {
            "strides": strides, "dilation": dilation, "padding": padding, "groups": groups
        }  # fmt: skip
        image: Mapping[str, Attr] = {"layout": "NCHW", "rounding": Rounding.EVEN}
        result = (
            context.emit("convolution", operands, attrs)
            if rank > 2
            else context.emit("conv2d", operands, {**attrs, **image})
        )
    return context.reshape(result, context.result_shape())


def _conv1d_weight_as_conv2d(context: OpContext, weight: str) -> str:
    """Return the weights (O, I, W) of a 1D convolution as those of a 2D convolution, (O, I, 1, W)."""
    shape, data = context.shape(weight), context.builder.consts.get(weight)
    if data is not None:
        return context.builder.new_constant("weight", data[:, :, None])
    return context.reshape(weight, (*shape[:2], 1, shape[2]))


def _read_convolution_padding(context: OpContext, kernel: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
    """Return the padding of a convolution: numbers of elements before each spatial axis, then after each spatial
    axis."""
    padding = context.argument("padding", 0)
    if padding == "valid":
        padding = 0
    if padding == "same":
        total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return (*(w // 2 for w in total), *(w - w // 2 for w in total))
    return expand_to_axes(padding, len(kernel)) * 2


def _emit_conv2d_transpose(
    context: OpContext,
    operands: Sequence[str],
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    spatial_rank: int,
) -> str:
    """Emit a transposed convolution over two spatial axes; return its result, channels first.

    microc's ``conv2d_transpose`` is channels last. Therefore data and weights (I, O / groups, H, W) are transposed
    before it, the weights to OHWI, and the result is transposed back. ``spatial_rank``: number of spatial axes in
    PyTorch."""
    output_padding = expand_to_axes(context.argument("output_padding", 0), spatial_rank)
    output_padding = (0, *output_padding) if spatial_rank == 1 else output_padding
    inputs, outputs_per_group, *kernel = context.shape(operands[1])
    grouped = context.reshape(operands[1], (groups, inputs // groups, outputs_per_group, *kernel))
    permuted = context.emit("transpose", (grouped,), {"axes": (0, 2, 3, 4, 1)})
    weight = context.reshape(permuted, (groups * outputs_per_group, *kernel, inputs // groups))
    data = context.emit("transpose", (operands[0],), {"axes": (0, 2, 3, 1)})
    reduced_padding = (padding[0], padding[1], padding[2] - output_padding[0], padding[3] - output_padding[1])
    attrs: Mapping[str, Attr] = {"strides": strides, "padding": reduced_padding, "dilation": dilation, "groups": groups}
    result = context.emit("conv2d_transpose", (data, weight, *operands[2:]), attrs)
    return context.emit("transpose", (result,), {"axes": (0, 3, 1, 2)})


def convert_linear(context: OpContext) -> str:
    """Convert linear, a dense layer over the last axis."""
    data, weight, bias = (
        context.convert_to_value(context.argument("input")),
        context.operand("weight"),
        context.argument("bias"),
    )
    return emit_dense(context, data, weight, bias)


def emit_dense(context: OpContext, data: str, weight: str, bias: Any) -> str:
    """Emit a dense layer over the last axis of ``data``. ``bias`` may be None."""
    shape = context.shape(data)
    rows = context.reshape(data, (math.prod(shape[:-1]), shape[-1]))
    product = context.emit(
        "dense",
        (rows, weight) if bias is None else (rows, weight, context.convert_to_value(bias)),
        {"rounding": Rounding.EVEN},
    )
    return context.reshape(product, context.result_shape())


def convert_addmm(context: OpContext) -> str:
    """Convert addmm: beta * self + alpha * mat1 mat2."""
    product = emit_matmul(context, context.convert_to_value(context.argument("mat1")), context.argument("mat2"))
    if float(context.argument("alpha", 1)) != 1:
        product = context.emit("mul", (product, context.convert_to_value(float(context.argument("alpha")))))
    summand = context.convert_to_value(context.argument("self"))
    if float(context.argument("beta", 1)) != 1:
        summand = context.emit("mul", (summand, context.convert_to_value(float(context.argument("beta")))))
    return context.emit("add", (product, summand))


def emit_matmul(context: OpContext, x: str, y: Any) -> str:
    """Emit the matrix product x y. It becomes a dense layer if y is a matrix that is known at compile time."""
    if isinstance(y, context.torch.Tensor) and y.dim() == 2 and len(context.shape(x)) == 2:
        weight = context.builder.new_constant("weight", np.ascontiguousarray(context.to_numpy_array(y).T))
        return context.emit("dense", (x, weight), {"rounding": Rounding.EVEN})
    return context.emit("matmul", (x, context.convert_to_value(y)))


def convert_matmul(context: OpContext) -> str:
    """Convert mm, bmm and matmul. A vector operand counts as a matrix of one row or one column."""
    second = next(context.argument(name) for name in ("mat2", "other") if context.argument(name) is not None)
    x = context.operand("self")
    rank = second.dim() if isinstance(second, context.torch.Tensor) else len(context.shape(second))
    if len(context.shape(x)) > 1 and rank > 1:
        return emit_matmul(context, x, second)
    # Vectors are matrices of one row, or of one column.
    row = context.reshape(x, (1, *context.shape(x))) if len(context.shape(x)) == 1 else x
    right = context.convert_to_value(second)
    column = context.reshape(right, (*context.shape(right), 1)) if rank == 1 else right
    return context.reshape(context.emit("matmul", (row, column)), context.result_shape())


def convert_scaled_dot_product_attention(context: OpContext) -> str:
    """Convert scaled_dot_product_attention: softmax(q k' scale + mask) v, where k' is k transposed."""
    q, k, v = (context.operand(name) for name in ("query", "key", "value"))
    scale = context.argument("scale")
    scale = 1 / math.sqrt(context.shape(q)[-1]) if scale is None else float(scale)
    if context.argument("enable_gqa", False):
        k, v = (_repeat_shared_heads(context, x, context.shape(q)[-3]) for x in (k, v))
    rank = len(context.shape(k))
    transposed_key = context.emit("transpose", (k,), {"axes": (*range(rank - 2), rank - 1, rank - 2)})
    scores = context.emit("matmul", (context.emit("mul", (q, context.convert_to_value(scale))), transposed_key))
    if context.argument("is_causal", False):
        causal_mask = np.tril(np.ones(context.shape(scores)[-2:], bool))
        scores = context.emit(
            "where",
            (context.builder.new_constant("causal", causal_mask), scores, context.convert_to_value(float("-inf"))),
        )
    mask = context.argument("attn_mask")
    if mask is not None:
        mask = context.convert_to_value(mask)
        if context.dtype(mask) == "bool":
            scores = context.emit("where", (mask, scores, context.convert_to_value(float("-inf"))))
        else:
            scores = context.emit("add", (scores, mask))
    return context.emit("matmul", (context.emit("softmax", (scores,), {"axis": -1}), v))


def _repeat_shared_heads(context: OpContext, x: str, query_heads: int) -> str:
    """Repeat each of the G heads of keys or values (..., G, S, E) for the ``query_heads`` / G heads of queries that
    share it.

    The result is (..., query_heads, S, E)."""
    *front, groups, rows, width = context.shape(x)
    if groups == query_heads:
        return x
    one = context.reshape(x, (*front, groups, 1, rows, width))
    wide = context.emit("broadcast_to", (one,), {"shape": (*front, groups, query_heads // groups, rows, width)})
    return context.reshape(wide, (*front, query_heads, rows, width))


def convert_upsample_nearest(context: OpContext) -> str:
    """Convert upsample_nearest1d and upsample_nearest2d: a gather along each axis that is resized."""
    x = context.operand("self") if context.argument("self") is not None else context.operand("input")
    for axis, extent in enumerate(context.result_shape()):
        current = context.shape(x)[axis]
        if extent != current:
            indices = (np.arange(extent) * current // extent).astype(np.int32)
            x = context.emit("gather", (x, context.builder.new_constant("places", indices)), {"axis": axis})
    return x


def convert_upsample_bilinear(context: OpContext) -> str:
    """Convert upsample_bilinear2d: the weighted sum of two neighbours along each spatial axis."""
    x = context.operand("input")
    shape, result_shape = context.shape(x), context.result_shape()
    factors = context.argument("scale_factors") or (None,) * 2
    tables = [
        _linear_interpolation_indices_and_weights(
            shape[axis], result_shape[axis], bool(context.argument("align_corners")), factors[axis - 2]
        )
        for axis in (2, 3)
    ]
    names = [context.builder.new_constant("places", indices) for indices, _ in tables]
    names += [context.builder.new_constant("shares", weights) for _, weights in tables]
    return context.emit("resample", (x, *names), {"axes": (2, 3)})


def _linear_interpolation_indices_and_weights(
    in_extent: int, out_extent: int, aligns_corners: bool, scale_factor: float | None
) -> tuple[Array, Array]:
    """Return, for every output element along an axis, the indices and weights of the two neighbouring input elements.

    Both arrays have the shape (``out_extent``, 2). ``scale_factor``: the scale factor that the program gives, or
    None."""
    if aligns_corners:
        source = np.arange(out_extent) * ((in_extent - 1) / max(out_extent - 1, 1))
    else:
        step = 1 / scale_factor if scale_factor else in_extent / out_extent
        source = np.maximum((np.arange(out_extent) + 0.5) * step - 0.5, 0)
    first = np.minimum(np.floor(source).astype(np.int64), in_extent - 1)
    weight = source - first
    indices = np.stack([first, np.minimum(first + 1, in_extent - 1)], axis=1).astype(np.int32)
    return indices, np.stack([1 - weight, weight], axis=1).astype(np.float32)


# ---------------------------------------------------------------- quantisation


def convert_quantize(context: OpContext) -> str:
    scale, zero, axis, dtype = _read_scales_zero_points_axis_and_dtype(context)
    low, high = int(context.argument("quant_min")), int(context.argument("quant_max"))
    attrs: Mapping[str, Attr] = {
        "scale": scale,
        "zero_point": zero,
        "axis": axis,
        "out_dtype": dtype,
        "rounding": Rounding.EVEN,
    }
    info = np.iinfo(dtype)
    if (low, high) != (info.min, info.max):
        context.refuse(
            f"quant_min, quant_max: got {low}..{high}, expected {info.min}..{info.max} for {dtype}",
            "quantise to the whole range of the dtype",
        )
    return context.emit("quantize", (context.operand("input"),), attrs)


def convert_dequantize(context: OpContext) -> str:
    scale, zero, axis, _ = _read_scales_zero_points_axis_and_dtype(context)
    return context.emit("dequantize", (context.operand("input"),), {"scale": scale, "zero_point": zero, "axis": axis})


def _read_scales_zero_points_axis_and_dtype(
    context: OpContext,
) -> tuple[tuple[float, ...], tuple[int, ...], int | None, str]:
    """Return the scales, zero points, axis and integer dtype of a quantised tensor. The axis is None for per-tensor
    quantisation."""
    dtype = str(context.argument("dtype")).removeprefix("torch.")
    if context.operator_name.endswith("per_tensor"):
        numbers = [
            x.item() if hasattr(x, "item") else x for x in (context.argument("scale"), context.argument("zero_point"))
        ]
        return (float(numbers[0]),), (int(numbers[1]),), None, dtype
    scales, zeros = context.read_constant("scales"), context.read_constant("zero_points")
    if scales is None:
        context.refuse("scales: got None, expected a constant", "export the program after convert_pt2e")
    scale = tuple(float(np.float32(s)) for s in scales.tolist())
    zero = (0,) * len(scale) if zeros is None else tuple(int(z) for z in zeros.tolist())
    return scale, zero, int(context.argument("axis")), dtype


LAYER_CONVERTERS: Mapping[str, Converter] = {
    "addmm": convert_addmm,
    "bmm": convert_matmul,
    "conv1d": convert_convolution,
    "conv2d": convert_convolution,
    "conv3d": convert_convolution,
    "convolution": convert_convolution,
    "dequantize_per_channel": convert_dequantize,
    "dequantize_per_tensor": convert_dequantize,
    "linear": convert_linear,
    "matmul": convert_matmul,
    "mm": convert_matmul,
    "quantize_per_channel": convert_quantize,
    "quantize_per_tensor": convert_quantize,
    "scaled_dot_product_attention": convert_scaled_dot_product_attention,
    "upsample_bilinear2d": convert_upsample_bilinear,
    "upsample_nearest1d": convert_upsample_nearest,
    "upsample_nearest2d": convert_upsample_nearest,
}


# ---- Converters of normalisations.
#
# Some ATen operators return the normalised tensor and two statistics. The statistics are used only in training; they become "".


def convert_batch_norm(context: OpContext) -> tuple[str, str, str]:
    """Convert batch_norm in evaluation mode: multiply each channel by a factor and add an offset."""
    x = context.operand("input")
    mean, var = (context.read_constant(name) for name in ("running_mean", "running_var"))
    if mean is None or var is None:
        context.refuse("running_mean, running_var: got None, expected constants", "export the module in eval mode")
    weight, bias = (context.read_constant(name) for name in ("weight", "bias"))
    factor = 1 / np.sqrt(var.astype(np.float64) + float(context.argument("eps")))
    factor = factor if weight is None else factor * weight
    offset = (0 if bias is None else bias) - mean * factor
    return (_emit_channel_scale_and_offset(context, x, factor, offset), "", "")


def _emit_channel_scale_and_offset(context: OpContext, x: str, factor: Array, offset: Array) -> str:
    """Emit x * factor + offset, with one factor and one offset for each channel (axis 1)."""
    shape = (-1, *(1,) * (len(context.shape(x)) - 2))
    names = [
        context.builder.new_constant(stem, part.astype(np.float32).reshape(shape))
        for stem, part in (("factor", factor), ("offset", np.asarray(offset)))
    ]
    return context.emit("add", (context.emit("mul", (x, names[0])), names[1]))


def convert_instance_norm(context: OpContext) -> tuple[str, str, str]:
    """Convert _native_batch_norm_legit without running statistics: normalise every channel by its own mean and
    variance."""
    x = context.operand("input")
    rank = len(context.shape(x))
    normalised = _emit_normalisation_over_axes(context, x, {"axes": (0, *range(2, rank)), "keepdims": True})
    weight, bias = (context.read_constant(name) for name in ("weight", "bias"))
    if weight is None and bias is None:
        return (normalised, "", "")
    ones = np.ones(context.shape(x)[1])
    return (
        _emit_channel_scale_and_offset(
            context, normalised, ones if weight is None else weight, 0 * ones if bias is None else bias
        ),
        "",
        "",
    )


def convert_layer_norm(context: OpContext) -> Any:
    """Convert layer_norm over the last axes: (x - mean) / sqrt(var + eps) * weight + bias."""
    x = context.operand("input")
    rank, count = len(context.shape(x)), len(context.argument("normalized_shape"))
    over: Mapping[str, Attr] = {"axes": tuple(range(rank - count, rank)), "keepdims": True}
    normalised = _emit_normalisation_over_axes(context, x, over)
    for op, name in (("mul", "weight"), ("add", "bias")):
        if context.argument(name) is not None:
            normalised = context.emit(op, (normalised, context.operand(name)))
    return normalised if context.operator_name == "layer_norm" else (normalised, "", "")


def _emit_normalisation_over_axes(context: OpContext, x: str, axes_attrs: Mapping[str, Attr]) -> str:
    """Emit (x - mean) / sqrt(var + eps). ``axes_attrs``: attributes of the reductions over the normalised axes."""
    centred = context.emit("sub", (x, context.emit("mean", (x,), axes_attrs)))
    spread = context.emit("mean", (context.emit("mul", (centred, centred)),), axes_attrs)
    scale = context.emit(
        "rsqrt", (context.emit("add", (spread, context.convert_to_value(float(context.argument("eps"))))),)
    )
    return context.emit("mul", (centred, scale))


def convert_group_norm(context: OpContext) -> Any:
    """Convert native_group_norm: normalise every group of channels, then multiply each channel by a factor and add an
    offset."""
    x, groups = context.operand("input"), int(context.argument("group"))
    shape = context.shape(x)
    rows = context.reshape(x, (shape[0] * groups, math.prod(shape[1:]) // groups))
    normalised = context.reshape(_emit_normalisation_over_axes(context, rows, {"axes": (1,), "keepdims": True}), shape)
    weight, bias = (context.read_constant(name) for name in ("weight", "bias"))
    if weight is not None or bias is not None:
        ones = np.ones(shape[1])
        normalised = _emit_channel_scale_and_offset(
            context, normalised, ones if weight is None else weight, 0 * ones if bias is None else bias
        )
    return (normalised, "", "")


NORMALISATION_CONVERTERS: Mapping[str, Converter] = {
    "_native_batch_norm_legit": convert_instance_norm,
    "_native_batch_norm_legit_no_training": convert_batch_norm,
    "layer_norm": convert_layer_norm,
    "native_group_norm": convert_group_norm,
    "native_layer_norm": convert_layer_norm,
}


# ---- Converters of pools.
#
# Most pools over one or two axes without dilation become pool operators, which have optimised schedules. All others become window
# operators (``window_sum``, ``window_max``).


def make_pool_converter(op: str) -> Converter:
    """Return the converter of pools over one, two or three spatial axes. ``ceil_mode`` becomes additional padding at
    the end.

    ``op``: ``avg_pool2d`` or ``max_pool2d``."""

    def convert_pool(context: OpContext) -> Any:
        x, rank = context.operand("self"), int(context.operator_name.split("_pool")[1][0])
        kernel = expand_to_axes(context.argument("kernel_size"), rank)
        strides = expand_to_axes(context.argument("stride") or kernel, rank)
        padding, dilation = (
            expand_to_axes(context.argument(n, d) or d, rank) for n, d in (("padding", 0), ("dilation", 1))
        )
        if context.argument("divisor_override") is not None:
            context.refuse("divisor_override is not supported", "leave it out and scale the result")
        shape, with_indices = context.shape(x), context.operator_name.endswith("indices")
        if with_indices and any(user.args[1] == 1 for user in context.node.users):
            context.refuse("the result with indices is not supported", "pool with return_indices=False")
        result_shape = context.result_shape(0 if with_indices else None)
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        rows = zip(result_shape[-rank:], strides, spans, shape[-rank:], padding, strict=True)
        extra = tuple(max((o - 1) * s + span - extent - 2 * p, 0) for o, s, span, extent, p in rows)
        x = context.reshape(x, (*(1,) * (rank + 2 - len(shape)), *shape))
        window = _PoolWindow(kernel, strides, padding, extra, dilation)
        count_padding = op == "avg_pool2d" and bool(context.argument("count_include_pad", True)) and any(padding)
        plain = rank < 3 and set(dilation) == {1} and not (count_padding and any(extra))
        pooled = (
            window.emit_pool2d(context, op, x, count_padding)
            if plain
            else window.emit_window_operators(context, op, x, count_padding)
        )
        pooled = context.reshape(pooled, result_shape)
        return (pooled, "") if with_indices else pooled

    return convert_pool


class _PoolWindow:
    """Window of a pool: its kernel, strides, padding and dilation along each spatial axis.

    ``padding``: elements of padding on both sides of an axis. ``end_padding``: additional elements after it, because of
    ``ceil_mode``."""

    def __init__(
        self,
        kernel: Sequence[int],
        strides: Sequence[int],
        padding: Sequence[int],
        end_padding: Sequence[int],
        dilation: Sequence[int],
    ) -> None:
        self.kernel, self.strides, self.before, self.dilation = map(tuple, (kernel, strides, padding, dilation))
        self.after = tuple(p + e for p, e in zip(padding, end_padding, strict=True))

    def emit_pool2d(self, context: OpContext, op: str, x: str, counts_padding: bool) -> str:
        """Emit a pool over one or two spatial axes, without dilation, as a 2D pool operator. A single axis gets a
        second axis of extent 1."""
        unit_axes = (1,) * (2 - len(self.kernel))
        no_padding = (0,) * len(unit_axes)
        shape = context.shape(x)
        attrs: dict[str, Attr] = {
            "kernel": (*unit_axes, *self.kernel),
            "strides": (*unit_axes, *self.strides),
            "padding": (*no_padding, *self.before, *no_padding, *self.after),
            "layout": "NCHW",
            "rounding": Rounding.EVEN,
        }
        if op == "avg_pool2d":
            attrs["count_include_pad"] = counts_padding
        return context.emit(op, (context.reshape(x, (*shape[:2], *unit_axes, *shape[2:])),), attrs)

    def emit_window_operators(self, context: OpContext, op: str, x: str, counts_padding: bool) -> str:
        """Emit a pool over any number of spatial axes as window operators: the maximum of each window, or its sum
        divided by its number of elements. This number differs at the edges."""
        attrs: dict[str, Attr] = {
            "kernel": self.kernel,
            "strides": self.strides,
            "padding": (*self.before, *self.after),
            "dilation": self.dilation,
        }
        if op == "max_pool2d":
            return context.emit("window_max", (x,), attrs)
        total = context.emit("window_sum", (x,), attrs)
        counts = np.ones((1,), np.float32)
        for axis, extent in enumerate(context.shape(x)[2:]):
            counts = np.multiply.outer(
                counts, self._count_elements_per_window(axis, extent, context.shape(total)[2 + axis], counts_padding)
            )
        return context.emit("div", (total, context.builder.new_constant("counts", counts[None])))

    def _count_elements_per_window(self, axis: int, extent: int, out_extent: int, counts_padding: bool) -> Array:
        """Return the number of elements of every window along an axis.

        ``counts_padding`` includes padding, except for the padding that ``ceil_mode`` adds."""
        low, high = (-self.before[axis], extent + self.before[axis]) if counts_padding else (0, extent)
        starts = np.arange(out_extent)[:, None] * self.strides[axis] - self.before[axis]
        positions = starts + np.arange(self.kernel[axis]) * self.dilation[axis]
        return np.asarray(((positions >= low) & (positions < high)).sum(axis=1), np.float32)


def convert_adaptive_average_pool(context: OpContext) -> str:
    """Convert adaptive average pools.

    The result is a mean if it has one element for each channel, a pool operator if the input's extents are multiples of
    the result's, and otherwise weighted sums along each axis."""
    return _emit_adaptive_pool(context, "mean", "avg_pool2d", context.result_shape())


def convert_adaptive_max_pool(context: OpContext) -> tuple[str, str]:
    return _emit_adaptive_pool(context, "max", "max_pool2d", context.result_shape(0)), ""


def _emit_adaptive_pool(context: OpContext, reduce_op: str, pool_op: str, result_shape: tuple[int, ...]) -> str:
    """Emit an adaptive pool as a reduction, as a pool operator, or as gathers of the elements of each window with a
    reduction.

    ``reduce_op`` and ``pool_op``: microc's operators for the reduction and the pool."""
    x = context.operand("self")
    count = int(context.operator_name.split("_pool")[1][0])
    shape = context.shape(x)
    axes = tuple(range(len(shape) - count, len(shape)))
    spatial, out = shape[-count:], result_shape[-count:]
    if all(extent == 1 for extent in out):
        return context.emit(reduce_op, (x,), {"axes": axes, "keepdims": True})
    if count == 2 and len(shape) == 4 and not any(extent % o for extent, o in zip(spatial, out, strict=True)):
        kernel = tuple(extent // o for extent, o in zip(spatial, out, strict=True))
        attrs: Mapping[str, Attr] = {"kernel": kernel, "strides": kernel, "padding": (0, 0, 0, 0), "layout": "NCHW"}
        return context.emit(pool_op, (x,), attrs)
    windows = [_adaptive_window_indices_and_weights(extent, o) for extent, o in zip(spatial, out, strict=True)]
    if reduce_op == "mean":
        names = [context.builder.new_constant("places", indices) for indices, _ in windows]
        names += [context.builder.new_constant("shares", weights) for _, weights in windows]
        return context.emit("resample", (x, *names), {"axes": axes})
    for axis, (indices, _) in zip(axes, windows, strict=True):
        gathered = context.emit("gather", (x, context.builder.new_constant("places", indices)), {"axis": axis})
        x = context.emit("max", (gathered,), {"axes": (axis + 1,), "keepdims": False})
    return x


def _adaptive_window_indices_and_weights(in_extent: int, out_extent: int) -> tuple[Array, Array]:
    """Return the indices and weights of the input elements of each of the ``out_extent`` windows of an adaptive pool.

    Both arrays have the shape (``out_extent``, elements of the largest window). A smaller window repeats its last
    index, with weight 0."""
    starts = np.arange(out_extent) * in_extent // out_extent
    ends = -(-(np.arange(out_extent) + 1) * in_extent // out_extent)
    indices = starts[:, None] + np.arange(int((ends - starts).max()))
    weights = np.where(indices < ends[:, None], 1 / (ends - starts)[:, None], 0)
    return np.minimum(indices, ends[:, None] - 1).astype(np.int32), weights.astype(np.float32)


POOL_CONVERTERS: Mapping[str, Converter] = {
    **{
        f"{way}avg_pool{rank}d": convert_adaptive_average_pool
        for way in ("adaptive_", "_adaptive_")
        for rank in (1, 2, 3)
    },
    **{f"adaptive_max_pool{rank}d": convert_adaptive_max_pool for rank in (1, 2, 3)},
    **{f"avg_pool{rank}d": make_pool_converter("avg_pool2d") for rank in (1, 2, 3)},
    **{
        f"max_pool{rank}d{what}": make_pool_converter("max_pool2d")
        for rank in (1, 2, 3)
        for what in ("", "_with_indices")
    },
}
