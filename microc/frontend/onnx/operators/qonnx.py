# SPDX-License-Identifier: Apache-2.0
"""Conversion of QONNX's operators Quant, BipolarQuant and Trunc, which Brevitas exports.

They compute on floats that stand for integers of any number of bits. A Quant whose scale and zero point are constant, as that of
weights and activations, becomes ``quantize`` and ``dequantize``, so that the layers between are computed in integers. Others
are written step by step as their definition says (qonnx.custom_op.general), in float32.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.onnx.builder import StoredTensor
from microc.frontend.onnx.context import ConverterTable, OpContext
from microc.frontend.onnx.quantization import get_dequantize_attrs
from microc.frontend.signature import Value
from microc.graph.ir import Quant
from microc.ops.attributes import Ties

CONVERTERS = ConverterTable()
DOMAIN, BREVITAS_DOMAIN = "qonnx.custom_op.general", "onnx.brevitas"
"""Domains of the operators; Brevitas before 0.9 has one of its own."""

RoundingMode = Literal[
    "ROUND", "HALF_EVEN", "CEIL", "FLOOR", "UP", "DOWN", "ROUND_TO_ZERO", "HALF_UP", "HALF_DOWN",
    "round", "half_even", "ceil", "floor", "up", "down", "round_to_zero", "half_up", "half_down",
]  # fmt: skip
_TIES = {"ROUND": Ties.EVEN, "HALF_EVEN": Ties.EVEN, "HALF_UP": Ties.AWAY}
_MOST_BITS = 32


@frozen
class IntegerRange:
    """Integers that Quant rounds to: ``low`` .. ``high``. ``is_bipolar``: the only integers are -1 and 1."""

    low: int
    high: int
    is_bipolar: bool = False

    @property
    def dtype(self) -> str:
        """Narrowest dtype that ``quantize`` writes and that holds the range; empty if there is none."""
        names = ("int8", "uint8", "int16", "uint16")
        ranges = ((name, dtypes.int_range(name)) for name in names)
        return next((name for name, (low, high) in ranges if low <= self.low and self.high <= high), "")


def _read_integer_range(context: OpContext, bit_width: float, signed: bool, narrow: bool) -> IntegerRange:
    """Return the integers of ``bit_width`` bits; ``narrow`` leaves out the least (signed) or the largest (unsigned)."""
    bits = int(bit_width)
    if bits != bit_width or not 1 <= bits <= _MOST_BITS:
        context.refuse(
            f"bit width: got {bit_width}, expected an integer of 1..{_MOST_BITS}", "train with another width"
        )
    if not signed:
        return IntegerRange(0, (1 << bits) - 1 - narrow)
    return IntegerRange(narrow - (1 << bits - 1), (1 << bits - 1) - 1, is_bipolar=bits == 1)


@CONVERTERS.register("Quant", "IntQuant", domain=DOMAIN)
@CONVERTERS.register("Quant", domain=BREVITAS_DOMAIN)
def convert_quant(
    context: OpContext,
    x: Value,
    scale: Value,
    zero_point: Value,
    bit_width: float,
    *,
    signed: bool = True,
    narrow: bool = True,
    rounding_mode: RoundingMode = "ROUND",
) -> None:
    """Convert Quant, (round(clip(x / scale + zero_point)) - zero_point) * scale."""
    integers = _read_integer_range(context, bit_width, signed, narrow)
    _write_quant(context, x, scale, zero_point, integers, rounding_mode.upper())


@CONVERTERS.register("BipolarQuant", domain=DOMAIN)
@CONVERTERS.register("BipolarQuant", domain=BREVITAS_DOMAIN)
def convert_bipolar_quant(context: OpContext, x: Value, scale: Value) -> None:
    """Convert BipolarQuant: the scale if x / scale is at least 0, else minus the scale."""
    _write_quant(context, x, scale, context.scalar(0.0), IntegerRange(-1, 1, is_bipolar=True), "ROUND")


@CONVERTERS.register("Trunc", domain=DOMAIN)
@CONVERTERS.register("Trunc", domain=BREVITAS_DOMAIN)
def convert_trunc(
    context: OpContext,
    x: Value,
    scale: Value,
    zero_point: Value,
    in_bit_width: float,
    out_scale_or_bit_width: float,
    out_bit_width: Value | None,
    *,
    signed: bool = True,
    narrow: bool = False,
    rounding_mode: RoundingMode = "FLOOR",
) -> None:
    """Convert Trunc, which divides integers by a power of two and rounds again.

    Version 1 of the operator has the width of the result as its fifth input, and keeps the scale. Version 2 has the
    scale of the result there and the width after it, and clips. The power is the difference of widths, or the binary
    logarithm of the quotient of scales."""
    levels = context.emit("round", (_emit_levels(context, x, scale, zero_point),))
    if out_bit_width is None:
        divisor = context.scalar(2.0 ** (int(in_bit_width) - int(out_scale_or_bit_width)))
        out_scale, out_zero_point = scale, zero_point
        quotient = context.emit("div", (levels, divisor))
    else:
        integers = _read_integer_range(context, float(context.data(out_bit_width).reshape(())), signed, narrow)
        scales = context.data(scale).astype(np.float64).reshape(-1)
        if not (scales > 0).all() or not out_scale_or_bit_width > 0:
            context.broken(f"scales: got {scales[0]} and {out_scale_or_bit_width}, expected positive numbers")
        powers = 2.0 ** np.round(np.log2(out_scale_or_bit_width / context.data(scale).astype(np.float64)))
        divisor = context.new_constant(f"{context.output()}_divisor", powers.astype(np.float32))
        out_scale, out_zero_point = context.scalar(out_scale_or_bit_width), context.emit("div", (zero_point, divisor))
        quotient = context.emit("div", (levels, divisor))
        quotient = context.emit("clip", (quotient,), {"minimum": float(integers.low), "maximum": float(integers.high)})
    _write_reals(context, _emit_rounding(context, quotient, rounding_mode.upper()), out_scale, out_zero_point)


def _write_quant(
    context: OpContext, x: Value, scale: Value, zero_point: Value, integers: IntegerRange, mode: str
) -> None:
    """Write the output of Quant or BipolarQuant in the first form that is exact: a constant, ``quantize`` and
    ``dequantize``, or the definition's steps."""
    if scale.constant is not None and not (np.isfinite(scale.constant) & (scale.constant > 0)).all():
        context.broken(f"scale: got {scale.constant.reshape(-1)[0]}, expected positive numbers")
    quant = _read_constant_quantization(x, scale, zero_point, integers.dtype)
    if x.constant is not None and scale.constant is not None and zero_point.constant is not None:
        constants = _compute_levels(x.constant, scale.constant, zero_point.constant, integers, mode)
        if quant is None:
            context.result_constant((constants - zero_point.constant) * scale.constant)
        else:
            stored = StoredTensor(constants.astype(dtypes.to_numpy(integers.dtype)), quant)
            context.add_stored_tensor(context.output(), stored, context.output())
    elif quant is None or integers.is_bipolar or not _commutes_with_rounding(quant, mode):
        levels = _emit_levels(context, x, scale, zero_point)
        if integers.is_bipolar:
            is_positive = context.emit("greater_equal", (levels, context.scalar(0.0)))
            rounded = context.emit("where", (is_positive, context.scalar(1.0), context.scalar(-1.0)))
        else:
            bounds = {"minimum": float(integers.low), "maximum": float(integers.high)}
            rounded = _emit_rounding(context, context.emit("clip", (levels,), bounds), mode)
        _write_reals(context, rounded, scale, zero_point)
    else:
        if (integers.low, integers.high) != dtypes.int_range(integers.dtype):
            low, high = ((bound - quant.zero_point[0]) * quant.scale[0] for bound in (integers.low, integers.high))
            x = context.emit("clip", (x,), {"minimum": low, "maximum": high})
        attrs = get_dequantize_attrs(quant)
        quantized = context.emit("quantize", (x,), {**attrs, "out_dtype": integers.dtype, "rounding": _TIES[mode]})
        context.result("dequantize", (quantized,), attrs)


def _commutes_with_rounding(quant: Quant, mode: str) -> bool:
    """Test whether ``quantize``, which rounds before it adds the zero point, equals Quant, which adds it before.

    Ties to even do so for even zero points, ties away from zero for 0 only. ``quantize`` has no other modes, and here no
    scales per channel, because clips have none."""
    is_exact = quant.zero_point[0] % 2 == 0 if mode in _TIES and _TIES[mode] == Ties.EVEN else not any(quant.zero_point)
    return quant.axis is None and mode in _TIES and is_exact


def _read_constant_quantization(x: Value, scale: Value, zero_point: Value, dtype: str) -> Quant | None:
    """Return the quantisation of ``x`` as integers of ``dtype``; None if scale or zero point are computed or of another
    form than one number, or one for each element of an axis, or if ``dtype`` is empty or does not hold the zero
    points."""
    if scale.constant is None or zero_point.constant is None or not dtype:
        return None
    low, high = dtypes.int_range(dtype)
    zeros = zero_point.constant
    if not ((zeros == np.rint(zeros)) & (zeros >= low) & (zeros <= high)).all():
        return None
    if scale.size == zeros.size == 1:
        return Quant((float(scale.constant.reshape(())),), (int(zeros.reshape(())),))
    shape = (1,) * (x.rank - scale.rank) + scale.shape
    axes = [axis for axis, extent in enumerate(shape) if extent != 1]
    if (
        len(axes) != 1
        or len(shape) != x.rank
        or shape[axes[0]] != x.shape[axes[0]]
        or zeros.size not in (1, scale.size)
    ):
        return None
    numbers = tuple(float(number) for number in scale.constant.reshape(-1))
    points = np.broadcast_to(zeros.reshape(-1), (len(numbers),))
    return Quant(numbers, tuple(int(point) for point in points), axes[0])


def _compute_levels(x: Array, scale: Array, zero_point: Array, integers: IntegerRange, mode: str) -> Array:
    """Return the integers, as float32, to which Quant rounds constants."""
    levels = x / scale + zero_point
    if integers.is_bipolar:
        return np.where(levels >= 0, np.float32(1), np.float32(-1))
    levels = np.clip(levels, integers.low, integers.high)
    match mode:
        case "ROUND" | "HALF_EVEN":
            return np.rint(levels)
        case "CEIL":
            return np.ceil(levels)
        case "FLOOR":
            return np.floor(levels)
    magnitude = np.abs(levels)
    rounded = {
        "UP": np.ceil(magnitude),
        "DOWN": np.floor(magnitude),
        "ROUND_TO_ZERO": np.floor(magnitude),  # Brevitas's name of DOWN
        "HALF_UP": np.floor(magnitude + np.float32(0.5)),
        "HALF_DOWN": np.ceil(magnitude - np.float32(0.5)),
    }[mode]
    return np.asarray(np.sign(levels) * rounded)


def _emit_levels(context: OpContext, x: Value, scale: Value, zero_point: Value) -> Value:
    """Emit x / scale + zero_point."""
    levels = context.emit("div", (x, scale))
    is_zero = zero_point.constant is not None and not zero_point.constant.any()
    return levels if is_zero else context.emit("add", (levels, zero_point))


def _write_reals(context: OpContext, levels: Value, scale: Value, zero_point: Value) -> None:
    """Write the output (levels - zero_point) * scale."""
    is_zero = zero_point.constant is not None and not zero_point.constant.any()
    difference = levels if is_zero else context.emit("sub", (levels, zero_point))
    context.result("mul", (difference, scale))


def _emit_rounding(context: OpContext, levels: Value, mode: str) -> Value:
    """Emit ``levels`` rounded to integers by the rounding mode ``mode`` of QONNX."""
    plain = {"ROUND": "round", "HALF_EVEN": "round", "CEIL": "ceil", "FLOOR": "floor"}
    if mode in plain:
        return context.emit(plain[mode], (levels,))
    magnitude, sign = context.emit("abs", (levels,)), context.emit("sign", (levels,))
    half = context.scalar(0.5)
    if mode in ("HALF_UP", "HALF_DOWN"):
        magnitude = context.emit("add" if mode == "HALF_UP" else "sub", (magnitude, half))
    rounded = context.emit("ceil" if mode in ("UP", "HALF_DOWN") else "floor", (magnitude,))
    return context.emit("mul", (sign, rounded))
