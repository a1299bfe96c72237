"""Pools over height and width. ``max_pool2d`` and ``avg_pool2d`` of integers work on the stored numbers as TFLite's kernels do.

Padding never contributes to a maximum, nor to an average unless ``count_include_pad`` (zeros that count); a window must hold
one element at least. ``sum_pool2d`` is what quantised averages of ONNX are made of. The channels-first layout is for before the
layout pass: inference and reference know it, tensor expressions do not.

Source of the integer average: TFLite ``reference/integer_ops/pooling.h`` (AveragePool).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import dtypes, te
from microc.dtypes import Array
from microc.errors import InternalError, ModelError
from microc.graph.ir import TensorType
from microc.ops.attributes import ACTIVATED, LAYOUT, OPTIONAL, Attributes, choice, flag, integer, integers
from microc.ops.axes import AxisMap, Window
from microc.ops.constants import Application, window_fault
from microc.ops.numbers import compute_dtype
from microc.ops.pooling.pool_cases import avg_cases, max_cases, sum_cases
from microc.ops.pooling.quantised import legalize_avg, legalize_max
from microc.ops.registry import OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Expr
from microc.tir.names import ACC, PADDED

WINDOWS: Attributes = {
    "kernel": integers("rows and columns of a window", length=2, least=1),
    "strides": integers("down and to the right", length=2, least=1),
    "padding": integers("top, left, bottom, right", (0, 0, 0, 0), length=4, least=0),
    "layout": LAYOUT,
    "open": integers("where sizes vary: the most padding that any has", OPTIONAL, length=4, least=0),
}
ATTRS: Attributes = {**WINDOWS, **ACTIVATED}


def _spatial(attrs: Mapping[str, Any], shape: tuple[int, ...]) -> tuple[int, int]:
    return (shape[2], shape[3]) if attrs["layout"] == "NCHW" else (shape[1], shape[2])


def _extents(attrs: Mapping[str, Any], shape: tuple[int, ...]) -> tuple[int, int]:
    """Height and width of the result."""
    top, left, bottom, right = attrs["padding"]
    sizes = zip(_spatial(attrs, shape), attrs["kernel"], attrs["strides"], (top + bottom, left + right), strict=True)
    height, width = ((size + padding - kernel) // stride + 1 for size, kernel, stride, padding in sizes)
    return height, width


def _infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    kind = types[0]
    if len(kind.shape) != 4:
        raise ModelError(f"a pool of shape {kind.shape}; it takes four axes")
    if kind.dtype == "bool":
        raise ModelError("a pool of bool")
    made, top_left = _extents(attrs, kind.shape), attrs["padding"][:2]
    for size, count, kernel, stride, before in zip(
        _spatial(attrs, kind.shape), made, attrs["kernel"], attrs["strides"], top_left, strict=True
    ):
        if count < 1 or before >= kernel or (count - 1) * stride - before >= size:
            raise ModelError(
                f"a window of {kernel} with stride {stride} over {size} elements, padding {attrs['padding']}",
                hint="every window must hold one element at least",
            )
    shape = (*kind.shape[:2], *made) if attrs["layout"] == "NCHW" else (kind.shape[0], *made, kind.shape[3])
    return (TensorType(shape, attrs.get("out_dtype") or kind.dtype, layout=kind.layout),)


# ---------------------------------------------------------------- reference


def _windows(attrs: Mapping[str, Any], x: Array, value: float) -> Array:
    """All windows of the padded data: (N, H, W, C, kernel height, kernel width)."""
    if attrs["layout"] == "NCHW":
        x = x.transpose(0, 2, 3, 1)
    height, width = _extents({**attrs, "layout": "NHWC"}, x.shape)
    top, left, bottom, right = attrs["padding"]
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=value)
    windows = np.lib.stride_tricks.sliding_window_view(padded, attrs["kernel"], axis=(1, 2))
    return windows[:, :: attrs["strides"][0], :: attrs["strides"][1]][:, :height, :width]


def _restored(attrs: Mapping[str, Any], y: Array, dtype: Any) -> tuple[Array, ...]:
    y = y.transpose(0, 3, 1, 2) if attrs["layout"] == "NCHW" else y
    return (np.ascontiguousarray(y).astype(dtype),)


def _max_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = arrays[0]
    return _restored(attrs, _windows(attrs, x, _lowest(x.dtype.name)).max(axis=(4, 5)), x.dtype)


def _avg_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = arrays[0]
    wide = x.astype(np.float64 if x.dtype.kind == "f" else np.int64)
    total = _windows(attrs, wide, 0).sum(axis=(4, 5))
    count = np.full(total.shape, prod(attrs["kernel"]))
    if not attrs["count_include_pad"]:
        count = _windows(attrs, np.ones(x.shape, np.int64), 0).sum(axis=(4, 5))
    if x.dtype.kind == "f":
        return _restored(attrs, total / count, x.dtype)
    half = np.where(total > 0, total + count // 2, count // 2 - total) // count
    return _restored(attrs, np.where(total > 0, half, -half), x.dtype)


def _sum_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    total = _windows(attrs, arrays[0].astype(np.int64), attrs["pad_value"]).sum(axis=(4, 5)) + attrs["offset"]
    return _restored(attrs, total, np.int32)


# ---------------------------------------------------------------- tensor expressions


def _reduced(call: OpCall, combine: str, pad: float, init: float) -> te.Tensor:
    """Stage ``acc``: every window reduced in the computing dtype. A window over the whole image needs no windows at all."""
    data = call.data
    if call.attrs["layout"] != "NHWC":
        raise InternalError("a pool is lowered in layout NHWC only")
    batch, height, width, channels = data.type.shape
    dtype = compute_dtype(data.type.dtype)
    start = ir.const(init, dtype)
    if call.attrs["kernel"] == (height, width) and not any(_sides(call)):
        image, k = data.tensor((batch, height * width, channels)), te.reduce_axis(height * width, "k")

        def whole(n: Expr, c: Expr) -> Expr:
            return te.Reduce(combine, ir.cast(dtype, image[n, k.var, c]), (k,), start)

        return te.compute((batch, channels), whole, ACC, ("n", "c"))
    x = _padded(call, data.tensor(), pad)
    ky, kx = (te.reduce_axis(extent, name) for extent, name in zip(call.attrs["kernel"], ("ky", "kx"), strict=True))
    down, right = call.attrs["strides"]

    def element(n: Expr, y: Expr, column: Expr, c: Expr) -> Expr:
        value = x[n, y * down + ky.var, column * right + kx.var, c]
        return te.Reduce(combine, ir.cast(dtype, value), (ky, kx), start)

    return te.compute(call.out_types[0].shape, element, ACC, ("n", "y", "x", "c"))


def _sides(call: OpCall) -> tuple[int, ...]:
    """Where there is padding; ``open`` as in :class:`microc.ops.convolution.geometry.Geometry`."""
    return tuple(call.attrs.get("open") or call.attrs["padding"])


def _padded(call: OpCall, x: te.Tensor, value: float) -> te.Tensor:
    """Stage ``padded``: the data between rows and columns of ``value``; the data itself where nothing is added."""
    top, left, bottom, right = call.attrs["padding"]
    above, ahead, below, behind = _sides(call)
    if not any(_sides(call)):
        return x
    batch, height, width, channels = x.shape

    def element(n: Expr, row: Expr, column: Expr, c: Expr) -> Expr:
        inside = ir.all_of(
            condition
            for index, start, extent, before, after in (
                (row, top, height, above, below),
                (column, left, width, ahead, behind),
            )
            for condition in (
                *((index >= start,) if before else ()),
                *((index < extent + start,) if after else ()),
            )
        )
        assert inside is not None
        return ir.select(inside, x[n, row - top, column - left, c], ir.const(value, x.dtype))

    shape = (batch, height + top + bottom, width + left + right, channels)
    return te.compute(shape, element, PADDED, ("n", "y", "x", "c"))


def _max_compute(call: OpCall) -> te.Tensor:
    data = call.data
    lowest = _lowest(data.type.dtype)
    acc = _reduced(call, "maximum", lowest, lowest)
    return _epilogue(acc, lambda value, *_: ir.cast(data.type.dtype, value))


def _lowest(dtype: str) -> int | float:
    """What no maximum notices."""
    return float("-inf") if dtypes.is_float(dtype) else dtypes.int_range(dtype)[0]


def _avg_compute(call: OpCall) -> te.Tensor:
    data = call.data
    dtype = data.type.dtype
    acc = _reduced(call, "add", 0, 0)

    def element(value: Expr, *index: Expr) -> Expr:
        count = _count(call, data.type.shape, index)
        if dtypes.is_float(dtype):
            return value / ir.cast(dtype, count)
        count = ir.cast(value.dtype, count)
        half = ir.binary("truncdiv", count, 2)
        nudged = ir.select(value > 0, value + half, value - half)
        return ir.cast(dtype, ir.binary("truncdiv", nudged, count))

    return _epilogue(acc, element)


def _count(call: OpCall, shape: tuple[int, ...], index: Sequence[Expr]) -> Expr:
    """How many elements the window at ``index`` averages over, as int32."""
    kernel, padding, sides = call.attrs["kernel"], call.attrs["padding"], _sides(call)
    if call.attrs["count_include_pad"] or not any(sides):
        return ir.const(prod(kernel), "int32")
    total: Expr = ir.const(1, "int32")
    for axis in (0, 1):
        size, before, after = shape[1 + axis], sides[axis], sides[2 + axis]
        first = index[1 + axis] * call.attrs["strides"][axis] - padding[axis]
        start = ir.maximum(first, 0) if before else first
        end = ir.minimum(first + kernel[axis], size) if after else first + kernel[axis]
        total = total * ((end - start) if before or after else ir.const(kernel[axis], "int32"))
    return total


def _epilogue(acc: te.Tensor, element: Any) -> te.Tensor:
    """Stage ``pool``: what each reduced window becomes."""
    assert isinstance(acc.definition, te.ComputeDef)
    axes = tuple(axis.name for axis in acc.definition.axes)
    return te.compute(acc.shape, lambda *index: element(acc[index], *index), "pool", axes)


def _sum_compute(call: OpCall) -> te.Tensor:
    return _reduced(call, "add", call.attrs["pad_value"], call.attrs["offset"])


# ---------------------------------------------------------------- registry


def _axes(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    return ((0, None, None, 3) if attrs["layout"] == "NHWC" else (0, 1, None, None),)


def _window(attrs: Mapping[str, Any], pad_value: int | float | None) -> Window | None:
    window = Window(attrs["kernel"], attrs["strides"], attrs["padding"], pad_value=pad_value)
    return window if attrs["layout"] == "NHWC" else None


def _macs(attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]) -> int:
    return out_types[0].size * int(prod(attrs["kernel"]))


def _sums_fit(application: Application) -> str:
    """Sums of a window's integers, begun with ``offset``, fit int32."""
    attrs, count = application.attrs, prod(application.attrs["kernel"])
    if "offset" not in attrs:
        return window_fault(application, count, half=count)
    if not dtypes.is_integer(application.types[0].dtype):
        return f"sums of {application.types[0].dtype}, expected integers"
    return window_fault(application, count, attrs["pad_value"], attrs["offset"])


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "max_pool2d",
        infer=_infer,
        reference=_max_reference,
        compute=_max_compute,
        cases=max_cases,
        attrs=ATTRS,
        legalize=legalize_max,
        edges="NaN goes through",
        axes=_axes,
        window=lambda attrs, types: _window(attrs, _lowest(types[0].dtype)),
        operand_names=("data",),
    ),
    OpDef(
        "avg_pool2d",
        infer=_infer,
        reference=_avg_reference,
        compute=_avg_compute,
        cases=avg_cases,
        sound=(_sums_fit,),
        attrs={**ATTRS, "count_include_pad": flag("padding counts, as zeros")},
        legalize=legalize_avg,
        macs=_macs,
        axes=_axes,
        window=lambda attrs, types: _window(attrs, 0 if attrs["count_include_pad"] else None),
        operand_names=("data",),
    ),
    OpDef(
        "sum_pool2d",
        infer=_infer,
        reference=_sum_reference,
        compute=_sum_compute,
        cases=sum_cases,
        sound=(_sums_fit,),
        attrs={
            **WINDOWS,
            "pad_value": integer("what padding holds"),
            "offset": integer("what a sum begins with"),
            "out_dtype": choice("of the result", "int32", default="int32"),
        },
        macs=_macs,
        axes=_axes,
        window=lambda attrs, types: _window(attrs, attrs["pad_value"]),
        operand_names=("data",),
    ),
)
