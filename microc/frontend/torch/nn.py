"""Spellings of ATen's layers: convolutions, products, attention, resizing, quantisation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc.dtypes import Array
from microc.frontend.torch.application import Application, Spelling, numbers
from microc.graph.ir import Attr
from microc.ops.rounding import Rounding


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


SPELLINGS: Mapping[str, Spelling] = {
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
