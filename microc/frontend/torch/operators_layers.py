"""ATen layers: convolutions, products, attention, pools, normalisations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.frontend.torch.context import Application, Spelling, numbers
from microc.graph.ir import Attr
from microc.ops.attributes import Rounding

# ---- Spellings of ATen's layers: convolutions, products, attention, resizing, quantisation.


def convolution(a: Application) -> str:
    """conv1d, conv2d, conv3d (also as ``convolution``); a transposed one over one or two axes."""
    x = a.argument("input")
    data, weight, bias = a.value(x), a.operand("weight"), a.argument("bias")
    rank, single = len(a.shape(weight)) - 2, len(a.shape(data)) == len(a.shape(weight)) - 1
    if single:
        data = a.reshaped(data, (1, *a.shape(data)))
    strides, dilation = (numbers(a.argument(name, 1), rank) for name in ("stride", "dilation"))
    padding = _padding(a, a.shape(weight)[2:], dilation)
    transposed = bool(a.argument("transposed", False))
    if rank > 2 and transposed:
        a.refuse(f"a transposed convolution of {rank} spatial axes", "microc has one and two")
    if rank == 1:
        data = a.reshaped(data, (*a.shape(data)[:2], 1, a.shape(data)[2]))
        weight = _flat_weight(a, weight)
        strides, dilation, padding = (1, *strides), (1, *dilation), (0, padding[0], 0, padding[1])
    operands = (data, weight) if bias is None else (data, weight, a.value(bias))
    groups = int(a.argument("groups", 1))
    if transposed:
        made = _transposed(a, operands, strides, padding, dilation, groups, rank)
    else:
        attrs: Mapping[str, Attr] = {
            "strides": strides, "dilation": dilation, "padding": padding, "groups": groups
        }  # fmt: skip
        image: Mapping[str, Attr] = {"layout": "NCHW", "rounding": Rounding.EVEN}
        made = a.emit("convolution", operands, attrs) if rank > 2 else a.emit("conv2d", operands, {**attrs, **image})
    return a.reshaped(made, a.result_shape())


def _flat_weight(a: Application, weight: str) -> str:
    """Weights (O, I, W) as (O, I, 1, W)."""
    shape, held = a.shape(weight), a.write.consts.get(weight)
    if held is not None:
        return a.write.new_constant("weight", held[:, :, None])
    return a.reshaped(weight, (*shape[:2], 1, shape[2]))


def _padding(a: Application, kernel: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
    """Before every axis, then after every axis."""
    padding = a.argument("padding", 0)
    if padding == "valid":
        padding = 0
    if padding == "same":
        whole = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return (*(w // 2 for w in whole), *(w - w // 2 for w in whole))
    return numbers(padding, len(kernel)) * 2


def _transposed(
    a: Application,
    operands: Sequence[str],
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    rank: int,
) -> str:
    """Data to channels last, weights (I, O, H, W) of groups to OHWI, and back."""
    extra = numbers(a.argument("output_padding", 0), rank)
    extra = (0, *extra) if rank == 1 else extra
    inputs, each, *kernel = a.shape(operands[1])
    grouped = a.reshaped(operands[1], (groups, inputs // groups, each, *kernel))
    turned = a.emit("transpose", (grouped,), {"axes": (0, 2, 3, 4, 1)})
    weight = a.reshaped(turned, (groups * each, *kernel, inputs // groups))
    data = a.emit("transpose", (operands[0],), {"axes": (0, 2, 3, 1)})
    cut = (padding[0], padding[1], padding[2] - extra[0], padding[3] - extra[1])
    attrs: Mapping[str, Attr] = {"strides": strides, "padding": cut, "dilation": dilation, "groups": groups}
    made = a.emit("conv2d_transpose", (data, weight, *operands[2:]), attrs)
    return a.emit("transpose", (made,), {"axes": (0, 3, 1, 2)})


def linear(a: Application) -> str:
    """A dense layer over the last axis."""
    data, weight, bias = a.value(a.argument("input")), a.operand("weight"), a.argument("bias")
    return dense(a, data, weight, bias)


def dense(a: Application, data: str, weight: str, bias: Any) -> str:
    shape = a.shape(data)
    rows = a.reshaped(data, (math.prod(shape[:-1]), shape[-1]))
    made = a.emit(
        "dense", (rows, weight) if bias is None else (rows, weight, a.value(bias)), {"rounding": Rounding.EVEN}
    )
    return a.reshaped(made, a.result_shape())


def addmm(a: Application) -> str:
    """beta * self + alpha * mat1 mat2."""
    made = product(a, a.value(a.argument("mat1")), a.argument("mat2"))
    if float(a.argument("alpha", 1)) != 1:
        made = a.emit("mul", (made, a.value(float(a.argument("alpha")))))
    added = a.value(a.argument("self"))
    if float(a.argument("beta", 1)) != 1:
        added = a.emit("mul", (added, a.value(float(a.argument("beta")))))
    return a.emit("add", (made, added))


def product(a: Application, x: str, y: Any) -> str:
    """A product of matrices; known right sides make a dense layer."""
    if isinstance(y, a.torch.Tensor) and y.dim() == 2 and len(a.shape(x)) == 2:
        held = a.write.new_constant("weight", np.ascontiguousarray(a.array(y).T))
        return a.emit("dense", (x, held), {"rounding": Rounding.EVEN})
    return a.emit("matmul", (x, a.value(y)))


def matmul(a: Application) -> str:
    """mm, bmm, matmul."""
    second = next(a.argument(name) for name in ("mat2", "other") if a.argument(name) is not None)
    x = a.operand("self")
    rank = second.dim() if isinstance(second, a.torch.Tensor) else len(a.shape(second))
    if len(a.shape(x)) > 1 and rank > 1:
        return product(a, x, second)
    # Vectors are matrices of one row, or of one column.
    row = a.reshaped(x, (1, *a.shape(x))) if len(a.shape(x)) == 1 else x
    held = a.value(second)
    column = a.reshaped(held, (*a.shape(held), 1)) if rank == 1 else held
    return a.reshaped(a.emit("matmul", (row, column)), a.result_shape())


def attention(a: Application) -> str:
    """softmax(q k' scale + mask) v."""
    q, k, v = (a.operand(name) for name in ("query", "key", "value"))
    scale = a.argument("scale")
    scale = 1 / math.sqrt(a.shape(q)[-1]) if scale is None else float(scale)
    if a.argument("enable_gqa", False):
        k, v = (_shared_heads(a, x, a.shape(q)[-3]) for x in (k, v))
    rank = len(a.shape(k))
    turned = a.emit("transpose", (k,), {"axes": (*range(rank - 2), rank - 1, rank - 2)})
    scores = a.emit("matmul", (a.emit("mul", (q, a.value(scale))), turned))
    if a.argument("is_causal", False):
        allowed = np.tril(np.ones(a.shape(scores)[-2:], bool))
        scores = a.emit("where", (a.write.new_constant("causal", allowed), scores, a.value(float("-inf"))))
    mask = a.argument("attn_mask")
    if mask is not None:
        mask = a.value(mask)
        if a.dtype(mask) == "bool":
            scores = a.emit("where", (mask, scores, a.value(float("-inf"))))
        else:
            scores = a.emit("add", (scores, mask))
    return a.emit("matmul", (a.emit("softmax", (scores,), {"axis": -1}), v))


def _shared_heads(a: Application, x: str, heads: int) -> str:
    """Heads of keys or values (..., G, S, E), each repeated for the ``heads // G`` queries that share it."""
    *front, groups, rows, width = a.shape(x)
    if groups == heads:
        return x
    one = a.reshaped(x, (*front, groups, 1, rows, width))
    wide = a.emit("broadcast_to", (one,), {"shape": (*front, groups, heads // groups, rows, width)})
    return a.reshaped(wide, (*front, heads, rows, width))


def upsample_nearest(a: Application) -> str:
    """Whole factors: every element repeated."""
    x = a.operand("self") if a.argument("self") is not None else a.operand("input")
    for axis, wanted in enumerate(a.result_shape()):
        have = a.shape(x)[axis]
        if wanted != have:
            places = (np.arange(wanted) * have // wanted).astype(np.int32)
            x = a.emit("gather", (x, a.write.new_constant("places", places)), {"axis": axis})
    return x


def upsample_linear(a: Application) -> str:
    """upsample_bilinear2d: two neighbours along each axis, weighted."""
    x = a.operand("input")
    shape, wanted = a.shape(x), a.result_shape()
    factors = a.argument("scale_factors") or (None,) * 2
    tables = [
        _neighbours(shape[axis], wanted[axis], bool(a.argument("align_corners")), factors[axis - 2]) for axis in (2, 3)
    ]
    names = [a.write.new_constant("places", places) for places, _ in tables]
    names += [a.write.new_constant("shares", shares) for _, shares in tables]
    return a.emit("resample", (x, *names), {"axes": (2, 3)})


def _neighbours(have: int, wanted: int, aligned: bool, factor: float | None) -> tuple[Array, Array]:
    """For every output the two inputs that it lies between, and their shares."""
    if aligned:
        source = np.arange(wanted) * ((have - 1) / max(wanted - 1, 1))
    else:
        step = 1 / factor if factor else have / wanted
        source = np.maximum((np.arange(wanted) + 0.5) * step - 0.5, 0)
    first = np.minimum(np.floor(source).astype(np.int64), have - 1)
    share = source - first
    places = np.stack([first, np.minimum(first + 1, have - 1)], axis=1).astype(np.int32)
    return places, np.stack([1 - share, share], axis=1).astype(np.float32)


# ---------------------------------------------------------------- quantisation


def quantize(a: Application) -> str:
    scale, zero, axis, dtype = _parameters(a)
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


def dequantize(a: Application) -> str:
    scale, zero, axis, _ = _parameters(a)
    return a.emit("dequantize", (a.operand("input"),), {"scale": scale, "zero_point": zero, "axis": axis})


def _parameters(a: Application) -> tuple[tuple[float, ...], tuple[int, ...], int | None, str]:
    """Scales, zero points, the axis of several, and the dtype of the integers."""
    dtype = str(a.argument("dtype")).removeprefix("torch.")
    if a.name.endswith("per_tensor"):
        numbers = [x.item() if hasattr(x, "item") else x for x in (a.argument("scale"), a.argument("zero_point"))]
        return (float(numbers[0]),), (int(numbers[1]),), None, dtype
    scales, zeros = a.constant("scales"), a.constant("zero_points")
    if scales is None:
        a.refuse("scales that are missing", "export after convert_pt2e, with known scales")
    scale = tuple(float(np.float32(s)) for s in scales.tolist())
    zero = (0,) * len(scale) if zeros is None else tuple(int(z) for z in zeros.tolist())
    return scale, zero, int(a.argument("axis")), dtype


NN_SPELLINGS: Mapping[str, Spelling] = {
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


# ---- Spellings of ATen's normalisations. Those that come with statistics give three results, of which the first is
# used.


def batch_norm(a: Application) -> tuple[str, str, str]:
    """A factor and an offset for every channel."""
    x = a.operand("input")
    mean, var = (a.constant(name) for name in ("running_mean", "running_var"))
    if mean is None or var is None:
        a.refuse("statistics of the batch", "export in eval mode")
    weight, bias = (a.constant(name) for name in ("weight", "bias"))
    factor = 1 / np.sqrt(var.astype(np.float64) + float(a.argument("eps")))
    factor = factor if weight is None else factor * weight
    offset = (0 if bias is None else bias) - mean * factor
    return (_per_channel(a, x, factor, offset), "", "")


def _per_channel(a: Application, x: str, factor: Array, offset: Array) -> str:
    shape = (-1, *(1,) * (len(a.shape(x)) - 2))
    names = [
        a.write.new_constant(stem, part.astype(np.float32).reshape(shape))
        for stem, part in (("factor", factor), ("offset", np.asarray(offset)))
    ]
    return a.emit("add", (a.emit("mul", (x, names[0])), names[1]))


def instance_norm(a: Application) -> tuple[str, str, str]:
    """_native_batch_norm_legit without statistics: every channel by its own mean and variance, of the input at hand."""
    x = a.operand("input")
    rank = len(a.shape(x))
    made = _normalised(a, x, {"axes": (0, *range(2, rank)), "keepdims": True})
    weight, bias = (a.constant(name) for name in ("weight", "bias"))
    if weight is None and bias is None:
        return (made, "", "")
    ones = np.ones(a.shape(x)[1])
    return (_per_channel(a, made, ones if weight is None else weight, 0 * ones if bias is None else bias), "", "")


def layer_norm(a: Application) -> Any:
    """Over the last axes: (x - mean) / sqrt(var + eps), scaled and shifted."""
    x = a.operand("input")
    rank, count = len(a.shape(x)), len(a.argument("normalized_shape"))
    over: Mapping[str, Attr] = {"axes": tuple(range(rank - count, rank)), "keepdims": True}
    made = _normalised(a, x, over)
    for op, name in (("mul", "weight"), ("add", "bias")):
        if a.argument(name) is not None:
            made = a.emit(op, (made, a.operand(name)))
    return made if a.name == "layer_norm" else (made, "", "")


def _normalised(a: Application, x: str, over: Mapping[str, Attr]) -> str:
    centred = a.emit("sub", (x, a.emit("mean", (x,), over)))
    spread = a.emit("mean", (a.emit("mul", (centred, centred)),), over)
    scale = a.emit("rsqrt", (a.emit("add", (spread, a.value(float(a.argument("eps"))))),))
    return a.emit("mul", (centred, scale))


def group_norm(a: Application) -> Any:
    """native_group_norm: every group of channels by itself, then a factor and an offset for every channel."""
    x, groups = a.operand("input"), int(a.argument("group"))
    shape = a.shape(x)
    rows = a.reshaped(x, (shape[0] * groups, math.prod(shape[1:]) // groups))
    made = a.reshaped(_normalised(a, rows, {"axes": (1,), "keepdims": True}), shape)
    weight, bias = (a.constant(name) for name in ("weight", "bias"))
    if weight is not None or bias is not None:
        ones = np.ones(shape[1])
        made = _per_channel(a, made, ones if weight is None else weight, 0 * ones if bias is None else bias)
    return (made, "", "")


NORM_SPELLINGS: Mapping[str, Spelling] = {
    "_native_batch_norm_legit": instance_norm,
    "_native_batch_norm_legit_no_training": batch_norm,
    "layer_norm": layer_norm,
    "native_group_norm": group_norm,
    "native_layer_norm": layer_norm,
}


# ---- Spellings of ATen's pools: over images as operators with schedules of their own, over anything else as windows.


def pool(op: str) -> Spelling:
    """Pools over any number of spatial axes; ``ceil_mode`` becomes padding at the end."""

    def spell(a: Application) -> Any:
        x, rank = a.operand("self"), int(a.name.split("_pool")[1][0])
        kernel = numbers(a.argument("kernel_size"), rank)
        strides = numbers(a.argument("stride") or kernel, rank)
        padding, dilation = (numbers(a.argument(n, d) or d, rank) for n, d in (("padding", 0), ("dilation", 1)))
        if a.argument("divisor_override") is not None:
            a.refuse("a divisor of its own", "leave divisor_override out and scale the result")
        shape, pair = a.shape(x), a.name.endswith("indices")
        if pair and any(user.args[1] == 1 for user in a.node.users):
            a.refuse("the places of the largest elements", "pool with return_indices=False")
        wanted = a.result_shape(0 if pair else None)
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        rows = zip(wanted[-rank:], strides, spans, shape[-rank:], padding, strict=True)
        extra = tuple(max((o - 1) * s + span - extent - 2 * p, 0) for o, s, span, extent, p in rows)
        x = a.reshaped(x, (*(1,) * (rank + 2 - len(shape)), *shape))
        view = _View(kernel, strides, padding, extra, dilation)
        include = op == "avg_pool2d" and bool(a.argument("count_include_pad", True)) and any(padding)
        plain = rank < 3 and set(dilation) == {1} and not (include and any(extra))
        made = view.image(a, op, x, include) if plain else view.any_axes(a, op, x, include)
        made = a.reshaped(made, wanted)
        return (made, "") if pair else made

    return spell


class _View:
    """A window; ``extra`` is the padding at the end that only ``ceil_mode`` brings."""

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

    def image(self, a: Application, op: str, x: str, include: bool) -> str:
        """One or two axes without gaps; one is two with unit height."""
        high = (1,) * (2 - len(self.kernel))
        none = (0,) * len(high)
        shape = a.shape(x)
        attrs: dict[str, Attr] = {
            "kernel": (*high, *self.kernel),
            "strides": (*high, *self.strides),
            "padding": (*none, *self.before, *none, *self.after),
            "layout": "NCHW",
            "rounding": Rounding.EVEN,
        }
        if op == "avg_pool2d":
            attrs["count_include_pad"] = include
        return a.emit(op, (a.reshaped(x, (*shape[:2], *high, *shape[2:])),), attrs)

    def any_axes(self, a: Application, op: str, x: str, include: bool) -> str:
        """Sums over counts, which differ at the edges, or the largest."""
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
            counts = np.multiply.outer(counts, self._counts(axis, extent, a.shape(total)[2 + axis], include))
        return a.emit("div", (total, a.write.new_constant("counts", counts[None])))

    def _counts(self, axis: int, extent: int, out: int, include: bool) -> Array:
        """How many elements every window of an axis has; padding counts if ``include`` says so, what ceil_mode adds never."""
        low, high = (-self.before[axis], extent + self.before[axis]) if include else (0, extent)
        starts = np.arange(out)[:, None] * self.strides[axis] - self.before[axis]
        places = starts + np.arange(self.kernel[axis]) * self.dilation[axis]
        return np.asarray(((places >= low) & (places < high)).sum(axis=1), np.float32)


def adaptive_average(a: Application) -> str:
    """To one element a mean; to a divisor of the extents a pool; else weighted elements along each axis."""
    return _adaptive(a, "mean", "avg_pool2d", a.result_shape())


def adaptive_max(a: Application) -> tuple[str, str]:
    return _adaptive(a, "max", "max_pool2d", a.result_shape(0)), ""


def _adaptive(a: Application, whole: str, part: str, wanted: tuple[int, ...]) -> str:
    x = a.operand("self")
    count = int(a.name.split("_pool")[1][0])
    shape = a.shape(x)
    axes = tuple(range(len(shape) - count, len(shape)))
    spatial, out = shape[-count:], wanted[-count:]
    if all(extent == 1 for extent in out):
        return a.emit(whole, (x,), {"axes": axes, "keepdims": True})
    if count == 2 and len(shape) == 4 and not any(extent % o for extent, o in zip(spatial, out, strict=True)):
        kernel = tuple(extent // o for extent, o in zip(spatial, out, strict=True))
        attrs: Mapping[str, Attr] = {"kernel": kernel, "strides": kernel, "padding": (0, 0, 0, 0), "layout": "NCHW"}
        return a.emit(part, (x,), attrs)
    parts = [_parts(extent, o) for extent, o in zip(spatial, out, strict=True)]
    if whole == "mean":
        names = [a.write.new_constant("places", places) for places, _ in parts]
        names += [a.write.new_constant("shares", shares) for _, shares in parts]
        return a.emit("resample", (x, *names), {"axes": axes})
    for axis, (places, _) in zip(axes, parts, strict=True):
        gathered = a.emit("gather", (x, a.write.new_constant("places", places)), {"axis": axis})
        x = a.emit("max", (gathered,), {"axes": (axis + 1,), "keepdims": False})
    return x


def _parts(extent: int, out: int) -> tuple[Array, Array]:
    """For every output the elements that it is made of (the last one again where others have more), and their shares."""
    starts = np.arange(out) * extent // out
    ends = -(-(np.arange(out) + 1) * extent // out)
    places = starts[:, None] + np.arange(int((ends - starts).max()))
    shares = np.where(places < ends[:, None], 1 / (ends - starts)[:, None], 0)
    return np.minimum(places, ends[:, None] - 1).astype(np.int32), shares.astype(np.float32)


POOL_SPELLINGS: Mapping[str, Spelling] = {
    **{f"{way}avg_pool{rank}d": adaptive_average for way in ("adaptive_", "_adaptive_") for rank in (1, 2, 3)},
    **{f"adaptive_max_pool{rank}d": adaptive_max for rank in (1, 2, 3)},
    **{f"avg_pool{rank}d": pool("avg_pool2d") for rank in (1, 2, 3)},
    **{f"max_pool{rank}d{what}": pool("max_pool2d") for rank in (1, 2, 3) for what in ("", "_with_indices")},
}
