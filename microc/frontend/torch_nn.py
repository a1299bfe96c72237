"""Spellings of ATen's layers: convolutions, products, pools, attention, resizing, quantisation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc.dtypes import Array
from microc.frontend.torch_application import Application, Spelling
from microc.graph.ir import Attr


def _ints(x: Any, count: int) -> tuple[int, ...]:
    """A number for every axis."""
    found = [int(n) for n in x] if isinstance(x, Sequence) and not isinstance(x, str) else [int(x)]
    return tuple(found * count if len(found) == 1 else found)


def convolution(a: Application) -> str:
    """conv1d and conv2d (also as ``convolution``); a transposed one where its operator exists."""
    x = a.argument("input")
    data, weight, bias = a.value(x), a.operand("weight"), a.argument("bias")
    rank = len(a.shape(data)) - 2
    if len(a.shape(weight)) != rank + 2 or rank not in (1, 2):
        a.refuse(f"a convolution of {rank} spatial axes", "microc has one and two")
    strides, dilation = (_ints(a.argument(name, 1), rank) for name in ("stride", "dilation"))
    padding = _padding(a, a.shape(weight)[2:], dilation)
    if rank == 1:
        data = a.reshaped(data, (*a.shape(data)[:2], 1, a.shape(data)[2]))
        weight = _flat_weight(a, weight)
        strides, dilation, padding = (1, *strides), (1, *dilation), (0, padding[0], 0, padding[1])
    operands = (data, weight) if bias is None else (data, weight, a.value(bias))
    groups = int(a.argument("groups", 1))
    if a.argument("transposed", False):
        made = _transposed(a, operands, strides, padding, dilation, groups, rank)
    else:
        attrs: Mapping[str, Attr] = {
            "strides": strides, "dilation": dilation, "padding": padding, "groups": groups, "layout": "NCHW", "rounding": "even"
        }  # fmt: skip
        made = a.emit("conv2d", operands, attrs)
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
    return _ints(padding, len(kernel)) * 2


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
    weight = a.write.consts.get(operands[1])
    if weight is None:
        a.refuse("weights that are not known when compiling")
    extra = _ints(a.argument("output_padding", 0), rank)
    extra = (0, *extra) if rank == 1 else extra
    inputs, each = weight.shape[:2]
    moved = weight.reshape(groups, inputs // groups, each, *weight.shape[2:]).transpose(0, 2, 3, 4, 1)
    held = a.write.new_constant("weight", np.ascontiguousarray(moved).reshape(-1, *moved.shape[2:]))
    data = a.emit("transpose", (operands[0],), {"axes": (0, 2, 3, 1)})
    cut = (padding[0], padding[1], padding[2] - extra[0], padding[3] - extra[1])
    attrs: Mapping[str, Attr] = {"strides": strides, "padding": cut, "dilation": dilation, "groups": groups}
    made = a.emit("conv2d_transpose", (data, held, *operands[2:]), attrs)
    return a.emit("transpose", (made,), {"axes": (0, 3, 1, 2)})


def linear(a: Application) -> str:
    """A dense layer over the last axis."""
    data, weight, bias = a.value(a.argument("input")), a.operand("weight"), a.argument("bias")
    return dense(a, data, weight, bias)


def dense(a: Application, data: str, weight: str, bias: Any) -> str:
    shape = a.shape(data)
    rows = a.reshaped(data, (math.prod(shape[:-1]), shape[-1]))
    made = a.emit("dense", (rows, weight) if bias is None else (rows, weight, a.value(bias)), {"rounding": "even"})
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
        return a.emit("dense", (x, held), {"rounding": "even"})
    return a.emit("matmul", (x, a.value(y)))


def matmul(a: Application) -> str:
    """mm, bmm, matmul."""
    second = next(a.argument(name) for name in ("mat2", "other") if a.argument(name) is not None)
    x = a.operand("self")
    if len(a.shape(x)) == 1 or (second.dim() if isinstance(second, a.torch.Tensor) else len(a.shape(second))) == 1:
        a.refuse("a product with a vector", "give it a second axis")
    return product(a, x, second)


def pool(op: str) -> Spelling:
    """Pools over one or two spatial axes; ``ceil_mode`` only where it changes nothing."""

    def spell(a: Application) -> Any:
        x = a.operand("self")
        rank = 1 if a.name.endswith("1d") else 2
        kernel = _ints(a.argument("kernel_size"), rank)
        strides = _ints(a.argument("stride") or kernel, rank)
        padding = _ints(a.argument("padding", 0), rank)
        if any(d != 1 for d in _ints(a.argument("dilation", 1) or 1, rank)):
            a.refuse("a dilated pool")
        if a.argument("divisor_override") is not None:
            a.refuse("a divisor of its own")
        shape = a.shape(x)
        wanted = a.result_shape(0 if a.name.endswith("indices") else None)
        flat = (1,) * (4 - len(shape)) + shape if rank == 2 else (*(1,) * (3 - len(shape)), *shape[:-1], 1, shape[-1])
        if rank == 1:
            kernel, strides, padding = (1, *kernel), (1, *strides), (0, *padding)
        out = (1, *wanted[-1:]) if rank == 1 else wanted[-2:]
        missing = [
            (o - 1) * s + k - extent - 2 * p
            for o, s, k, extent, p in zip(out, strides, kernel, flat[-2:], padding, strict=True)
        ]
        if any(more > 0 for more in missing) and op == "avg_pool2d":
            a.refuse("an average with ceil_mode")
        after = tuple(p + max(more, 0) for p, more in zip(padding, missing, strict=True))
        attrs: dict[str, Attr] = {"kernel": kernel, "strides": strides, "padding": (*padding, *after), "layout": "NCHW"}
        if op == "avg_pool2d":
            attrs["count_include_pad"] = bool(a.argument("count_include_pad", True))
        made = a.reshaped(a.emit(op, (a.reshaped(x, flat),), {**attrs, "rounding": "even"}), wanted)
        return (made, "") if a.name.endswith("indices") else made

    return spell


def adaptive_average(a: Application) -> str:
    """To one element a mean; to a divisor of the extents a pool."""
    return _adaptive(a, "mean", "avg_pool2d", a.result_shape())


def adaptive_max(a: Application) -> tuple[str, str]:
    return _adaptive(a, "max", "max_pool2d", a.result_shape(0)), ""


def _adaptive(a: Application, whole: str, part: str, wanted: tuple[int, ...]) -> str:
    x = a.operand("self")
    shape, count = a.shape(x), 1 if a.name.endswith("1d") else 2
    spatial, out = shape[-count:], wanted[-count:]
    if all(extent == 1 for extent in out):
        axes = tuple(range(len(shape) - count, len(shape)))
        return a.emit(whole, (x,), {"axes": axes, "keepdims": True})
    if any(extent % o for extent, o in zip(spatial, out, strict=True)) or count == 1 or len(shape) != 4:
        a.refuse(f"an adaptive pool from {spatial} to {out}")
    kernel = tuple(extent // o for extent, o in zip(spatial, out, strict=True))
    attrs: Mapping[str, Attr] = {"kernel": kernel, "strides": kernel, "padding": (0, 0, 0, 0), "layout": "NCHW"}
    return a.emit(part, (x,), attrs)


def attention(a: Application) -> str:
    """softmax(q k' scale + mask) v."""
    q, k, v = (a.operand(name) for name in ("query", "key", "value"))
    scale = a.argument("scale")
    scale = 1 / math.sqrt(a.shape(q)[-1]) if scale is None else float(scale)
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
        "rounding": "even",
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
        a.refuse("scales that are missing")
    scale = tuple(float(np.float32(s)) for s in scales.tolist())
    zero = (0,) * len(scale) if zeros is None else tuple(int(z) for z in zeros.tolist())
    return scale, zero, int(a.argument("axis")), dtype


SPELLINGS: Mapping[str, Spelling] = {
    "_adaptive_avg_pool2d": adaptive_average,
    "adaptive_avg_pool1d": adaptive_average,
    "adaptive_max_pool2d": adaptive_max,
    "addmm": addmm,
    "avg_pool1d": pool("avg_pool2d"),
    "avg_pool2d": pool("avg_pool2d"),
    "bmm": matmul,
    "conv1d": convolution,
    "conv2d": convolution,
    "convolution": convolution,
    "dequantize_per_channel": dequantize,
    "dequantize_per_tensor": dequantize,
    "linear": linear,
    "matmul": matmul,
    "max_pool2d": pool("max_pool2d"),
    "max_pool2d_with_indices": pool("max_pool2d"),
    "mm": matmul,
    "quantize_per_channel": quantize,
    "quantize_per_tensor": quantize,
    "scaled_dot_product_attention": attention,
    "upsample_bilinear2d": upsample_linear,
    "upsample_nearest1d": upsample_nearest,
    "upsample_nearest2d": upsample_nearest,
}
