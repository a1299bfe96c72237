"""Converters of ATen's layers: convolutions, matrix products, attention, resizing, quantisation, normalisations, pools."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.frontend.torch.context import Converter, OpContext, numbers_per_axis
from microc.graph.ir import Attr
from microc.ops.attributes import Rounding

# ---- Converters of convolutions, matrix products, attention, resizing and quantisation.


def convolution(a: OpContext) -> str:
    """Convert conv1d, conv2d, conv3d and ``convolution``. Transposed convolutions may have one or two spatial axes."""
    x = a.argument("input")
    data, weight, bias = a.value(x), a.operand("weight"), a.argument("bias")
    rank, is_unbatched = len(a.shape(weight)) - 2, len(a.shape(data)) == len(a.shape(weight)) - 1
    if is_unbatched:
        data = a.reshape(data, (1, *a.shape(data)))
    strides, dilation = (numbers_per_axis(a.argument(name, 1), rank) for name in ("stride", "dilation"))
    padding = _convolution_padding(a, a.shape(weight)[2:], dilation)
    transposed = bool(a.argument("transposed", False))
    if rank > 2 and transposed:
        a.refuse(f"a transposed convolution of {rank} spatial axes", "use one or two spatial axes")
    if rank == 1:
        data = a.reshape(data, (*a.shape(data)[:2], 1, a.shape(data)[2]))
        weight = _flat_weight(a, weight)
        strides, dilation, padding = (1, *strides), (1, *dilation), (0, padding[0], 0, padding[1])
    operands = (data, weight) if bias is None else (data, weight, a.value(bias))
    groups = int(a.argument("groups", 1))
    if transposed:
        result = _emit_conv2d_transpose(a, operands, strides, padding, dilation, groups, rank)
    else:
        attrs: Mapping[str, Attr] = {
            "strides": strides, "dilation": dilation, "padding": padding, "groups": groups
        }  # fmt: skip
        image: Mapping[str, Attr] = {"layout": "NCHW", "rounding": Rounding.EVEN}
        result = a.emit("convolution", operands, attrs) if rank > 2 else a.emit("conv2d", operands, {**attrs, **image})
    return a.reshape(result, a.result_shape())


def _flat_weight(a: OpContext, weight: str) -> str:
    """Return the weights (O, I, W) of a 1D convolution as those of a 2D convolution, (O, I, 1, W)."""
    shape, data = a.shape(weight), a.write.consts.get(weight)
    if data is not None:
        return a.write.new_constant("weight", data[:, :, None])
    return a.reshape(weight, (*shape[:2], 1, shape[2]))


def _convolution_padding(a: OpContext, kernel: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
    """Return the padding of a convolution: numbers of elements before each spatial axis, then after each spatial axis."""
    padding = a.argument("padding", 0)
    if padding == "valid":
        padding = 0
    if padding == "same":
        total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return (*(w // 2 for w in total), *(w - w // 2 for w in total))
    return numbers_per_axis(padding, len(kernel)) * 2


def _emit_conv2d_transpose(
    a: OpContext,
    operands: Sequence[str],
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    rank: int,
) -> str:
    """Emit a transposed convolution over two spatial axes; return its result, channels first.

    microc's ``conv2d_transpose`` is channels last. Therefore data and weights (I, O / groups, H, W) are transposed before it,
    the weights to OHWI, and the result is transposed back. ``rank``: number of spatial axes in PyTorch."""
    output_padding = numbers_per_axis(a.argument("output_padding", 0), rank)
    output_padding = (0, *output_padding) if rank == 1 else output_padding
    inputs, outputs_per_group, *kernel = a.shape(operands[1])
    grouped = a.reshape(operands[1], (groups, inputs // groups, outputs_per_group, *kernel))
    permuted = a.emit("transpose", (grouped,), {"axes": (0, 2, 3, 4, 1)})
    weight = a.reshape(permuted, (groups * outputs_per_group, *kernel, inputs // groups))
    data = a.emit("transpose", (operands[0],), {"axes": (0, 2, 3, 1)})
    reduced_padding = (padding[0], padding[1], padding[2] - output_padding[0], padding[3] - output_padding[1])
    attrs: Mapping[str, Attr] = {"strides": strides, "padding": reduced_padding, "dilation": dilation, "groups": groups}
    result = a.emit("conv2d_transpose", (data, weight, *operands[2:]), attrs)
    return a.emit("transpose", (result,), {"axes": (0, 3, 1, 2)})


def linear(a: OpContext) -> str:
    """Convert linear, a dense layer over the last axis."""
    data, weight, bias = a.value(a.argument("input")), a.operand("weight"), a.argument("bias")
    return emit_dense(a, data, weight, bias)


def emit_dense(a: OpContext, data: str, weight: str, bias: Any) -> str:
    """Emit a dense layer over the last axis of ``data``. ``bias`` may be None."""
    shape = a.shape(data)
    rows = a.reshape(data, (math.prod(shape[:-1]), shape[-1]))
    product = a.emit(
        "dense", (rows, weight) if bias is None else (rows, weight, a.value(bias)), {"rounding": Rounding.EVEN}
    )
    return a.reshape(product, a.result_shape())


def addmm(a: OpContext) -> str:
    """Convert addmm: beta * self + alpha * mat1 mat2."""
    product = emit_matmul(a, a.value(a.argument("mat1")), a.argument("mat2"))
    if float(a.argument("alpha", 1)) != 1:
        product = a.emit("mul", (product, a.value(float(a.argument("alpha")))))
    summand = a.value(a.argument("self"))
    if float(a.argument("beta", 1)) != 1:
        summand = a.emit("mul", (summand, a.value(float(a.argument("beta")))))
    return a.emit("add", (product, summand))


def emit_matmul(a: OpContext, x: str, y: Any) -> str:
    """Emit the matrix product x y. It becomes a dense layer if y is a matrix that is known at compile time."""
    if isinstance(y, a.torch.Tensor) and y.dim() == 2 and len(a.shape(x)) == 2:
        weight = a.write.new_constant("weight", np.ascontiguousarray(a.array(y).T))
        return a.emit("dense", (x, weight), {"rounding": Rounding.EVEN})
    return a.emit("matmul", (x, a.value(y)))


def matmul(a: OpContext) -> str:
    """Convert mm, bmm and matmul. A vector operand counts as a matrix of one row or one column."""
    second = next(a.argument(name) for name in ("mat2", "other") if a.argument(name) is not None)
    x = a.operand("self")
    rank = second.dim() if isinstance(second, a.torch.Tensor) else len(a.shape(second))
    if len(a.shape(x)) > 1 and rank > 1:
        return emit_matmul(a, x, second)
    # Vectors are matrices of one row, or of one column.
    row = a.reshape(x, (1, *a.shape(x))) if len(a.shape(x)) == 1 else x
    right = a.value(second)
    column = a.reshape(right, (*a.shape(right), 1)) if rank == 1 else right
    return a.reshape(a.emit("matmul", (row, column)), a.result_shape())


def attention(a: OpContext) -> str:
    """Convert scaled_dot_product_attention: softmax(q k' scale + mask) v, where k' is k transposed."""
    q, k, v = (a.operand(name) for name in ("query", "key", "value"))
    scale = a.argument("scale")
    scale = 1 / math.sqrt(a.shape(q)[-1]) if scale is None else float(scale)
    if a.argument("enable_gqa", False):
        k, v = (_shared_heads(a, x, a.shape(q)[-3]) for x in (k, v))
    rank = len(a.shape(k))
    transposed_key = a.emit("transpose", (k,), {"axes": (*range(rank - 2), rank - 1, rank - 2)})
    scores = a.emit("matmul", (a.emit("mul", (q, a.value(scale))), transposed_key))
    if a.argument("is_causal", False):
        causal_mask = np.tril(np.ones(a.shape(scores)[-2:], bool))
        scores = a.emit("where", (a.write.new_constant("causal", causal_mask), scores, a.value(float("-inf"))))
    mask = a.argument("attn_mask")
    if mask is not None:
        mask = a.value(mask)
        if a.dtype(mask) == "bool":
            scores = a.emit("where", (mask, scores, a.value(float("-inf"))))
        else:
            scores = a.emit("add", (scores, mask))
    return a.emit("matmul", (a.emit("softmax", (scores,), {"axis": -1}), v))


def _shared_heads(a: OpContext, x: str, query_heads: int) -> str:
    """Repeat each of the G heads of keys or values (..., G, S, E) for the ``query_heads`` / G heads of queries that share it.

    The result is (..., query_heads, S, E)."""
    *front, groups, rows, width = a.shape(x)
    if groups == query_heads:
        return x
    one = a.reshape(x, (*front, groups, 1, rows, width))
    wide = a.emit("broadcast_to", (one,), {"shape": (*front, groups, query_heads // groups, rows, width)})
    return a.reshape(wide, (*front, query_heads, rows, width))


def upsample_nearest(a: OpContext) -> str:
    """Convert upsample_nearest1d and upsample_nearest2d: a gather along each axis that is resized."""
    x = a.operand("self") if a.argument("self") is not None else a.operand("input")
    for axis, extent in enumerate(a.result_shape()):
        current = a.shape(x)[axis]
        if extent != current:
            indices = (np.arange(extent) * current // extent).astype(np.int32)
            x = a.emit("gather", (x, a.write.new_constant("places", indices)), {"axis": axis})
    return x


def upsample_linear(a: OpContext) -> str:
    """Convert upsample_bilinear2d: the weighted sum of two neighbours along each spatial axis."""
    x = a.operand("input")
    shape, result_shape = a.shape(x), a.result_shape()
    factors = a.argument("scale_factors") or (None,) * 2
    tables = [
        _linear_neighbours(shape[axis], result_shape[axis], bool(a.argument("align_corners")), factors[axis - 2])
        for axis in (2, 3)
    ]
    names = [a.write.new_constant("places", indices) for indices, _ in tables]
    names += [a.write.new_constant("shares", weights) for _, weights in tables]
    return a.emit("resample", (x, *names), {"axes": (2, 3)})


def _linear_neighbours(
    in_extent: int, out_extent: int, aligns_corners: bool, factor: float | None
) -> tuple[Array, Array]:
    """Return, for every output element along an axis, the indices and weights of the two neighbouring input elements.

    Both arrays have the shape (``out_extent``, 2). ``factor``: the scale factor that the program gives, or None."""
    if aligns_corners:
        source = np.arange(out_extent) * ((in_extent - 1) / max(out_extent - 1, 1))
    else:
        step = 1 / factor if factor else in_extent / out_extent
        source = np.maximum((np.arange(out_extent) + 0.5) * step - 0.5, 0)
    first = np.minimum(np.floor(source).astype(np.int64), in_extent - 1)
    weight = source - first
    indices = np.stack([first, np.minimum(first + 1, in_extent - 1)], axis=1).astype(np.int32)
    return indices, np.stack([1 - weight, weight], axis=1).astype(np.float32)


# ---------------------------------------------------------------- quantisation


def quantize(a: OpContext) -> str:
    scale, zero, axis, dtype = _quantisation_parameters(a)
    low, high = int(a.argument("quant_min")), int(a.argument("quant_max"))
    attrs: Mapping[str, Attr] = {
        "scale": scale,
        "zero_point": zero,
        "axis": axis,
        "out_dtype": dtype,
        "rounding": Rounding.EVEN,
    }
    info = np.iinfo(dtype)
    if (low, high) != (info.min, info.max):
        a.refuse(f"{dtype} that is clamped to {low}..{high}", f"quantise to {info.min}..{info.max}")
    return a.emit("quantize", (a.operand("input"),), attrs)


def dequantize(a: OpContext) -> str:
    scale, zero, axis, _ = _quantisation_parameters(a)
    return a.emit("dequantize", (a.operand("input"),), {"scale": scale, "zero_point": zero, "axis": axis})


def _quantisation_parameters(a: OpContext) -> tuple[tuple[float, ...], tuple[int, ...], int | None, str]:
    """Return the scales, zero points, axis and integer dtype of a quantised tensor. The axis is None for per-tensor
    quantisation."""
    dtype = str(a.argument("dtype")).removeprefix("torch.")
    if a.name.endswith("per_tensor"):
        numbers = [x.item() if hasattr(x, "item") else x for x in (a.argument("scale"), a.argument("zero_point"))]
        return (float(numbers[0]),), (int(numbers[1]),), None, dtype
    scales, zeros = a.constant("scales"), a.constant("zero_points")
    if scales is None:
        a.refuse("a quantised tensor whose scales are not known", "export after convert_pt2e, with known scales")
    scale = tuple(float(np.float32(s)) for s in scales.tolist())
    zero = (0,) * len(scale) if zeros is None else tuple(int(z) for z in zeros.tolist())
    return scale, zero, int(a.argument("axis")), dtype


LAYER_CONVERTERS: Mapping[str, Converter] = {
    "addmm": addmm,
    "bmm": matmul,
    "conv1d": convolution,
    "conv2d": convolution,
    "conv3d": convolution,
    "convolution": convolution,
    "dequantize_per_channel": dequantize,
    "dequantize_per_tensor": dequantize,
    "linear": linear,
    "matmul": matmul,
    "mm": matmul,
    "quantize_per_channel": quantize,
    "quantize_per_tensor": quantize,
    "scaled_dot_product_attention": attention,
    "upsample_bilinear2d": upsample_linear,
    "upsample_nearest1d": upsample_nearest,
    "upsample_nearest2d": upsample_nearest,
}


# ---- Converters of normalisations.
#
# Some ATen operators return the normalised tensor and two statistics. The statistics are used only in training; they become "".


def batch_norm(a: OpContext) -> tuple[str, str, str]:
    """Convert batch_norm in evaluation mode: multiply each channel by a factor and add an offset."""
    x = a.operand("input")
    mean, var = (a.constant(name) for name in ("running_mean", "running_var"))
    if mean is None or var is None:
        a.refuse("batch normalisation in training mode", "export in eval mode")
    weight, bias = (a.constant(name) for name in ("weight", "bias"))
    factor = 1 / np.sqrt(var.astype(np.float64) + float(a.argument("eps")))
    factor = factor if weight is None else factor * weight
    offset = (0 if bias is None else bias) - mean * factor
    return (_scale_and_offset_channels(a, x, factor, offset), "", "")


def _scale_and_offset_channels(a: OpContext, x: str, factor: Array, offset: Array) -> str:
    """Emit x * factor + offset, with one factor and one offset for each channel (axis 1)."""
    shape = (-1, *(1,) * (len(a.shape(x)) - 2))
    names = [
        a.write.new_constant(stem, part.astype(np.float32).reshape(shape))
        for stem, part in (("factor", factor), ("offset", np.asarray(offset)))
    ]
    return a.emit("add", (a.emit("mul", (x, names[0])), names[1]))


def instance_norm(a: OpContext) -> tuple[str, str, str]:
    """Convert _native_batch_norm_legit without running statistics: normalise every channel by its own mean and variance."""
    x = a.operand("input")
    rank = len(a.shape(x))
    normalised = _normalise_axes(a, x, {"axes": (0, *range(2, rank)), "keepdims": True})
    weight, bias = (a.constant(name) for name in ("weight", "bias"))
    if weight is None and bias is None:
        return (normalised, "", "")
    ones = np.ones(a.shape(x)[1])
    return (
        _scale_and_offset_channels(
            a, normalised, ones if weight is None else weight, 0 * ones if bias is None else bias
        ),
        "",
        "",
    )


def layer_norm(a: OpContext) -> Any:
    """Convert layer_norm over the last axes: (x - mean) / sqrt(var + eps) * weight + bias."""
    x = a.operand("input")
    rank, count = len(a.shape(x)), len(a.argument("normalized_shape"))
    over: Mapping[str, Attr] = {"axes": tuple(range(rank - count, rank)), "keepdims": True}
    normalised = _normalise_axes(a, x, over)
    for op, name in (("mul", "weight"), ("add", "bias")):
        if a.argument(name) is not None:
            normalised = a.emit(op, (normalised, a.operand(name)))
    return normalised if a.name == "layer_norm" else (normalised, "", "")


def _normalise_axes(a: OpContext, x: str, axes_attrs: Mapping[str, Attr]) -> str:
    """Emit (x - mean) / sqrt(var + eps). ``axes_attrs``: attributes of the reductions over the normalised axes."""
    centred = a.emit("sub", (x, a.emit("mean", (x,), axes_attrs)))
    spread = a.emit("mean", (a.emit("mul", (centred, centred)),), axes_attrs)
    scale = a.emit("rsqrt", (a.emit("add", (spread, a.value(float(a.argument("eps"))))),))
    return a.emit("mul", (centred, scale))


def group_norm(a: OpContext) -> Any:
    """Convert native_group_norm: normalise every group of channels, then multiply each channel by a factor and add an offset."""
    x, groups = a.operand("input"), int(a.argument("group"))
    shape = a.shape(x)
    rows = a.reshape(x, (shape[0] * groups, math.prod(shape[1:]) // groups))
    normalised = a.reshape(_normalise_axes(a, rows, {"axes": (1,), "keepdims": True}), shape)
    weight, bias = (a.constant(name) for name in ("weight", "bias"))
    if weight is not None or bias is not None:
        ones = np.ones(shape[1])
        normalised = _scale_and_offset_channels(
            a, normalised, ones if weight is None else weight, 0 * ones if bias is None else bias
        )
    return (normalised, "", "")


NORMALISATION_CONVERTERS: Mapping[str, Converter] = {
    "_native_batch_norm_legit": instance_norm,
    "_native_batch_norm_legit_no_training": batch_norm,
    "layer_norm": layer_norm,
    "native_group_norm": group_norm,
    "native_layer_norm": layer_norm,
}


# ---- Converters of pools.
#
# Most pools over one or two axes without dilation become pool operators, which have optimised schedules. All others become window
# operators (``window_sum``, ``window_max``).


def pool(op: str) -> Converter:
    """Return the converter of pools over one, two or three spatial axes. ``ceil_mode`` becomes additional padding at the end.

    ``op``: ``avg_pool2d`` or ``max_pool2d``."""

    def convert(a: OpContext) -> Any:
        x, rank = a.operand("self"), int(a.name.split("_pool")[1][0])
        kernel = numbers_per_axis(a.argument("kernel_size"), rank)
        strides = numbers_per_axis(a.argument("stride") or kernel, rank)
        padding, dilation = (
            numbers_per_axis(a.argument(n, d) or d, rank) for n, d in (("padding", 0), ("dilation", 1))
        )
        if a.argument("divisor_override") is not None:
            a.refuse("divisor_override", "leave it out and scale the result")
        shape, with_indices = a.shape(x), a.name.endswith("indices")
        if with_indices and any(user.args[1] == 1 for user in a.node.users):
            a.refuse("the indices of the largest elements", "pool with return_indices=False")
        result_shape = a.result_shape(0 if with_indices else None)
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        rows = zip(result_shape[-rank:], strides, spans, shape[-rank:], padding, strict=True)
        extra = tuple(max((o - 1) * s + span - extent - 2 * p, 0) for o, s, span, extent, p in rows)
        x = a.reshape(x, (*(1,) * (rank + 2 - len(shape)), *shape))
        window = _PoolWindow(kernel, strides, padding, extra, dilation)
        count_padding = op == "avg_pool2d" and bool(a.argument("count_include_pad", True)) and any(padding)
        plain = rank < 3 and set(dilation) == {1} and not (count_padding and any(extra))
        pooled = window.emit_pool2d(a, op, x, count_padding) if plain else window.emit_windows(a, op, x, count_padding)
        pooled = a.reshape(pooled, result_shape)
        return (pooled, "") if with_indices else pooled

    return convert


class _PoolWindow:
    """Window of a pool: its kernel, strides, padding and dilation along each spatial axis.

    ``padding``: elements of padding on both sides of an axis. ``extra``: additional elements after it, because of
    ``ceil_mode``."""

    def __init__(
        self,
        kernel: Sequence[int],
        strides: Sequence[int],
        padding: Sequence[int],
        extra: Sequence[int],
        dilation: Sequence[int],
    ) -> None:
        self.kernel, self.strides, self.before, self.dilation = map(tuple, (kernel, strides, padding, dilation))
        self.after = tuple(p + e for p, e in zip(padding, extra, strict=True))

    def emit_pool2d(self, a: OpContext, op: str, x: str, counts_padding: bool) -> str:
        """Emit a pool over one or two spatial axes, without dilation, as a 2D pool operator. A single axis gets a second axis of
        extent 1."""
        unit_axes = (1,) * (2 - len(self.kernel))
        no_padding = (0,) * len(unit_axes)
        shape = a.shape(x)
        attrs: dict[str, Attr] = {
            "kernel": (*unit_axes, *self.kernel),
            "strides": (*unit_axes, *self.strides),
            "padding": (*no_padding, *self.before, *no_padding, *self.after),
            "layout": "NCHW",
            "rounding": Rounding.EVEN,
        }
        if op == "avg_pool2d":
            attrs["count_include_pad"] = counts_padding
        return a.emit(op, (a.reshape(x, (*shape[:2], *unit_axes, *shape[2:])),), attrs)

    def emit_windows(self, a: OpContext, op: str, x: str, counts_padding: bool) -> str:
        """Emit a pool over any number of spatial axes as window operators: the maximum of each window, or its sum divided by its
        number of elements. This number differs at the edges."""
        attrs: dict[str, Attr] = {
            "kernel": self.kernel,
            "strides": self.strides,
            "padding": (*self.before, *self.after),
            "dilation": self.dilation,
        }
        if op == "max_pool2d":
            return a.emit("window_max", (x,), attrs)
        total = a.emit("window_sum", (x,), attrs)
        counts = np.ones((1,), np.float32)
        for axis, extent in enumerate(a.shape(x)[2:]):
            counts = np.multiply.outer(
                counts, self._elements_per_window(axis, extent, a.shape(total)[2 + axis], counts_padding)
            )
        return a.emit("div", (total, a.write.new_constant("counts", counts[None])))

    def _elements_per_window(self, axis: int, extent: int, out_extent: int, counts_padding: bool) -> Array:
        """Return the number of elements of every window along an axis.

        ``counts_padding`` includes padding, except for the padding that ``ceil_mode`` adds."""
        low, high = (-self.before[axis], extent + self.before[axis]) if counts_padding else (0, extent)
        starts = np.arange(out_extent)[:, None] * self.strides[axis] - self.before[axis]
        positions = starts + np.arange(self.kernel[axis]) * self.dilation[axis]
        return np.asarray(((positions >= low) & (positions < high)).sum(axis=1), np.float32)


def adaptive_average(a: OpContext) -> str:
    """Convert adaptive average pools.

    The result is a mean if it has one element for each channel, a pool operator if the input's extents are multiples of the
    result's, and otherwise weighted sums along each axis."""
    return _emit_adaptive_pool(a, "mean", "avg_pool2d", a.result_shape())


def adaptive_max(a: OpContext) -> tuple[str, str]:
    return _emit_adaptive_pool(a, "max", "max_pool2d", a.result_shape(0)), ""


def _emit_adaptive_pool(a: OpContext, reduce_op: str, pool_op: str, result_shape: tuple[int, ...]) -> str:
    """Emit an adaptive pool as a reduction, as a pool operator, or as gathers of the elements of each window with a reduction.

    ``reduce_op`` and ``pool_op``: microc's operators for the first two."""
    x = a.operand("self")
    count = int(a.name.split("_pool")[1][0])
    shape = a.shape(x)
    axes = tuple(range(len(shape) - count, len(shape)))
    spatial, out = shape[-count:], result_shape[-count:]
    if all(extent == 1 for extent in out):
        return a.emit(reduce_op, (x,), {"axes": axes, "keepdims": True})
    if count == 2 and len(shape) == 4 and not any(extent % o for extent, o in zip(spatial, out, strict=True)):
        kernel = tuple(extent // o for extent, o in zip(spatial, out, strict=True))
        attrs: Mapping[str, Attr] = {"kernel": kernel, "strides": kernel, "padding": (0, 0, 0, 0), "layout": "NCHW"}
        return a.emit(pool_op, (x,), attrs)
    windows = [_adaptive_windows(extent, o) for extent, o in zip(spatial, out, strict=True)]
    if reduce_op == "mean":
        names = [a.write.new_constant("places", indices) for indices, _ in windows]
        names += [a.write.new_constant("shares", weights) for _, weights in windows]
        return a.emit("resample", (x, *names), {"axes": axes})
    for axis, (indices, _) in zip(axes, windows, strict=True):
        gathered = a.emit("gather", (x, a.write.new_constant("places", indices)), {"axis": axis})
        x = a.emit("max", (gathered,), {"axes": (axis + 1,), "keepdims": False})
    return x


def _adaptive_windows(in_extent: int, out_extent: int) -> tuple[Array, Array]:
    """Return the indices and weights of the input elements of each of the ``out_extent`` windows of an adaptive pool.

    Both arrays have the shape (``out_extent``, elements of the largest window). A smaller window repeats its last index, with
    weight 0."""
    starts = np.arange(out_extent) * in_extent // out_extent
    ends = -(-(np.arange(out_extent) + 1) * in_extent // out_extent)
    indices = starts[:, None] + np.arange(int((ends - starts).max()))
    weights = np.where(indices < ends[:, None], 1 / (ends - starts)[:, None], 0)
    return np.minimum(indices, ends[:, None] - 1).astype(np.int32), weights.astype(np.float32)


POOL_CONVERTERS: Mapping[str, Converter] = {
    **{f"{way}avg_pool{rank}d": adaptive_average for way in ("adaptive_", "_adaptive_") for rank in (1, 2, 3)},
    **{f"adaptive_max_pool{rank}d": adaptive_max for rank in (1, 2, 3)},
    **{f"avg_pool{rank}d": pool("avg_pool2d") for rank in (1, 2, 3)},
    **{f"max_pool{rank}d{what}": pool("max_pool2d") for rank in (1, 2, 3) for what in ("", "_with_indices")},
}
