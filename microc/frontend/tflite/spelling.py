"""What the spelling tables of the TFLite operator families share: rows, dtypes, activations, padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from microc.frontend.tflite.application import Application
from microc.frontend.tflite.build import DTYPES
from microc.frozen import frozen
from microc.graph.ir import Attr
from microc.ops.rounding import Ties

FLOAT = ("float32",)
QUANTISED = ("int8", "uint8", "int16")
PLAIN = ("int32", "int64")
"""Integers that stand for themselves: shapes, indices, counts."""
REAL = FLOAT + QUANTISED
MOVABLE = DTYPES

ONE_SCALE = "give them one scale and zero point, as converters do, or put a QUANTIZE before the operator"
_NO_ATTRS: Mapping[str, Attr] = {}
ACTIVATIONS = ("", "relu", "relu_n1_to_1", "relu6", "tanh")
"""TFLite's ActivationFunctionType in our words."""


@frozen
class Spelling:
    """One TFLite operator: the function that spells it, and the dtypes that its first output may have."""

    spell: Callable[[Application], None]
    dtypes: tuple[str, ...] = REAL


def activation(application: Application, code: int) -> str:
    """TFLite's ActivationFunctionType as our ``activation`` attribute."""
    if not 0 <= code < len(ACTIVATIONS):
        application.refuse(f"the fused activation number {code}", "relu, relu6, relu_n1_to_1 and tanh are known")
    name = ACTIVATIONS[code]
    dtype = application.target().type.dtype
    if (name == "tanh" and dtype != "float32") or (name and dtype in PLAIN):
        application.refuse(f"a fused {name} on {dtype} tensors", "make the activation an operator of its own")
    return name


def real_operand(application: Application, position: int) -> str:
    """An operand as floats, for operators that are spelled as several ones on real numbers."""
    value = application.operand(position)
    quant = application.type(value).quant
    if quant is None:
        return value
    attrs: Mapping[str, Attr] = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": None}
    return application.emit("dequantize", (value,), attrs)


def real_result(
    application: Application, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS
) -> None:
    """The output of the last of them, rounded to the output's integers if it has such."""
    kind = application.target().type
    if kind.quant is None:
        application.result(op, inputs, attrs)
        return
    scale: Mapping[str, Attr] = {"scale": kind.quant.scale, "zero_point": kind.quant.zero_point, "axis": None}
    real = application.emit(op, inputs, attrs)
    application.result("quantize", (real,), {**scale, "out_dtype": kind.dtype, "rounding": Ties.AWAY})


_BOUNDS = {"": (-math.inf, math.inf), "relu": (0.0, math.inf), "relu6": (0.0, 6.0), "relu_n1_to_1": (-1.0, 1.0)}


def real_clip(application: Application, value: str, function: str) -> None:
    """The output as a float value behind an activation."""
    if function not in _BOUNDS:
        application.refuse(f"a fused {function}", "make the activation an operator of its own")
    low, high = _BOUNDS[function]
    application.result("clip", (value,), {"minimum": low, "maximum": high})


def bare(application: Application, value: str) -> str:
    """The stored integers of a value, without what they stand for."""
    kind = application.type(value)
    if kind.quant is None:
        return value
    return application.emit("reshape", (value,), {"shape": kind.shape}, like=replace(kind, quant=None))


def check_alike(application: Application, positions: Sequence[int]) -> None:
    """Moved elements keep their meaning only where operands and output share one quantisation."""
    target = application.target().type
    if target.dtype in QUANTISED and any(application.source(i).type.quant != target.quant for i in positions):
        application.refuse("operands and output are quantised differently", ONE_SCALE)


def explicit_padding(
    application: Application,
    scheme: int,
    extent: tuple[int, int],
    window: tuple[int, int],
    strides: tuple[int, int],
    dilation: tuple[int, int] = (1, 1),
) -> tuple[int, int, int, int]:
    """TFLite's SAME (0) or VALID (1) as (top, left, bottom, right) elements."""
    if scheme not in (0, 1):
        application.broken(f"padding scheme {scheme}; SAME is 0 and VALID is 1")
    return (0, 0, 0, 0) if scheme == 1 else same_padding(extent, window, strides, dilation)


def same_padding(
    extent: Sequence[int], window: Sequence[int], strides: Sequence[int], dilation: Sequence[int] = (1, 1)
) -> tuple[int, int, int, int]:
    """Top, left, bottom, right of SAME: max((ceil(extent / stride) - 1) * stride + (window - 1) * dilation + 1 - extent, 0) on
    each axis, the smaller half before (TFLite ``padding.h``, ComputePaddingWithOffset)."""
    before, after = [], []
    for size, taps, stride, spread in zip(extent, window, strides, dilation, strict=True):
        total = max((-(-size // stride) - 1) * stride + (taps - 1) * spread + 1 - size, 0)
        before.append(total // 2)
        after.append(total - total // 2)
    return (before[0], before[1], after[0], after[1])
