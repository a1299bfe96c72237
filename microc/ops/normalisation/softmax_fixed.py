"""Softmax in fixed point as TFLite Micro computes it: ``qsoftmax`` of 8-bit data, ``qsoftmax16`` of 16-bit data.

``qsoftmax`` looks exponentials up by the distance from the row's largest value (TFLite computes the same numbers anew for every
element) and scales by a Newton reciprocal of their sum. ``qsoftmax16`` interpolates both functions in tables.

Sources: TFLite ``reference/softmax.h``, ``quantization_util.cc`` (PreprocessSoftmaxScaling, CalculateInputRadius), ``common.h``
(GetReciprocal, LUTPopulate, LUTLookup) and ``softmax_common.cc`` of TFLite Micro.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import dtypes, fixed, fixedpoint, te
from microc.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.fixed import INT32_MAX, NUMPY, Arith, quantize_multiplier
from microc.graph.ir import Attr, TensorType
from microc.ops.arith import TIR, clamped
from microc.ops.attributes import MULTIPLIER_ROUNDING, SCALED, element_type, exponent
from microc.ops.constants import BOUNDED, POSITIVE, Application, Constant, Use
from microc.ops.registry import Case, OpCall, OpDef
from microc.ops.rounding import Multiplier
from microc.tir import ir
from microc.tir.ir import Expr

SUM_BITS = 12
"""Integer bits of the 8-bit kernel's sum of exponentials; more classes than 2**12 - 1 could overflow it."""


def free_bits(total: Any, lowest_bit: int, k: Arith[Any], most: int = INT32_MAX) -> Any:
    """How far ``total``, within 2**lowest_bit .. ``most``, can be shifted left and stay an int32."""
    zero = total * 0
    highest = min(most.bit_length(), 31)
    count = zero + (31 - highest)
    for bit in range(lowest_bit + 1, highest):
        count = count + k.select(total < (1 << bit), zero + 1, zero)
    return count


# ---------------------------------------------------------------- 8-bit data


def exponentials(scale: float, beta: float, rounding: Multiplier) -> Array:
    """exp(beta * scale * d) in Q0.31 for d = 0, -1 ... -255, exactly zero where TFLite skips the term (int32)."""
    real = min(beta * scale * (1 << 26), float(INT32_MAX if rounding != Multiplier.SINGLE else (1 << 30) - 1))
    if real <= 1.0:
        raise UnsupportedError(f"a quantised softmax with scale {scale} and beta {beta}, too small for fixed point")
    mantissa, shift = quantize_multiplier(real, 31)
    radius = math.floor(math.ldexp(31 << 26, -shift))
    distance = -np.arange(256, dtype=np.int64)
    scaled = rounding.times(np.maximum(distance, -radius), mantissa, shift, NUMPY)
    return np.where(distance >= -radius, fixedpoint.exp_on_negative_values(scaled, 5), 0).astype(np.int32)


def _infer_q(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, table = types
    if x.dtype not in ("int8", "uint8") or not x.shape:
        raise ModelError(f"qsoftmax of {x.dtype} {x.shape}")
    if table.shape != (256,) or table.dtype != "int32":
        raise ModelError(f"qsoftmax with a table of {table.dtype} {table.shape}")
    if not 0 < x.shape[-1] < 1 << SUM_BITS:
        raise ModelError(f"qsoftmax over {x.shape[-1]} classes; it takes up to {(1 << SUM_BITS) - 1}")
    return (TensorType(x.shape, attrs["out_dtype"]),)


def row_reciprocal(total: Any, headroom: Any, k: Arith[Any]) -> Any:
    """The reciprocal of ``total`` (Q12.19) in Q0.31, up to the power of two that ``headroom`` says: ``total`` shifted up is
    (1 + x) / 2 in Q0.31."""
    return fixedpoint.saturating_double(fixedpoint.reciprocal(total << headroom, k))


def _probability(power: Any, scale: Any, headroom: Any, out_dtype: str, k: Arith[Any]) -> Any:
    """The result for one exponential, before clamping: power * scale, shifted to the output's bits, from the lowest value up.

    Nothing is negative, so RoundingDivideByPOT is ((x >> (exponent - 1)) + 1) >> 1; where the exponent passes 32, all is zero.
    """
    low, _ = dtypes.int_range(out_dtype)
    most = SUM_BITS - 2 + 31 - dtypes.info(out_dtype).bits
    distance = most - headroom
    if most > 31:
        distance = k.select(distance < 31, distance, distance * 0 + 31)
    return (((fixed.doubling_high_mul(power, scale, k) >> distance) + 1) >> 1) + low


def _reference_q(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, table = (array.astype(np.int64) for array in arrays)
    powers = table[x.max(axis=-1, keepdims=True) - x]
    total = fixedpoint.shift_right_half_up(powers, SUM_BITS).sum(axis=-1, keepdims=True)
    headroom = free_bits(total, 31 - SUM_BITS, NUMPY)
    result = _probability(powers, row_reciprocal(total, headroom, NUMPY), headroom, attrs["out_dtype"], NUMPY)
    return (np.clip(result, *dtypes.int_range(attrs["out_dtype"])).astype(attrs["out_dtype"]),)


def largest_of_rows(x: te.Tensor, rows: int, classes: int, low: int) -> te.Tensor:
    """``largest``: the largest element of every row (rows, classes), at least ``low``."""
    k = te.reduce_axis(classes, "k")
    return te.compute((rows,), lambda n: te.max_reduce(ir.cast("int32", x[n, k.var]), k, init=low), "largest", ("n",))


def _compute_q(call: OpCall) -> te.Tensor:
    """Stages ``largest``, ``total``, ``headroom``, ``scale`` per row, then ``softmax``."""
    data, table_operand = call.present
    shape, out_dtype = data.type.shape, call.attrs["out_dtype"]
    rows, classes = prod(shape[:-1]), shape[-1]
    x, table = data.tensor((rows, classes)), table_operand.tensor()
    largest = largest_of_rows(x, rows, classes, dtypes.int_range(data.type.dtype)[0])
    j = te.reduce_axis(classes, "j")

    def power(n: Expr, c: Expr) -> Expr:
        return table[largest[n] - ir.cast("int32", x[n, c])]

    def term(n: Expr) -> Expr:
        return te.sum_reduce(fixedpoint.shift_right_half_up(power(n, j.var), SUM_BITS), j)

    total, most = te.compute((rows,), term, "total", ("n",)), classes << 31 - SUM_BITS
    headroom = te.compute((rows,), lambda n: free_bits(total[n], 31 - SUM_BITS, TIR, most), "headroom", ("n",))
    scale = te.compute((rows,), lambda n: row_reciprocal(total[n], headroom[n], TIR), "scale", ("n",))

    def element(n: Expr, c: Expr) -> Expr:
        result = _probability(power(n, c), scale[n], headroom[n], out_dtype, TIR)
        return clamped(result, *dtypes.int_range(out_dtype), out_dtype)

    return te.compute((rows, classes), element, "softmax", ("n", "c"))


def _sound_q(application: Application) -> str:
    """The largest number of a row has an exponential of one: so much is in the sum whose reciprocal is taken."""
    table = application.data[1]
    return "" if table is None or table[0] == INT32_MAX else f"table[0]={table[0]}, expected {INT32_MAX}"


def _cases_q() -> Iterable[Case]:
    for dtype, out_dtype in (("int8", "int8"), ("int8", "int16"), ("uint8", "uint8")):
        for scale, shape in ((0.1, (1, 10)), (0.7, (3, 7)), (0.001, (2, 1)), (4.0, (2, 2, 5))):
            table = exponentials(scale, 1.0, Multiplier.DOUBLE)
            types = (TensorType(shape, dtype), TensorType((256,), "int32"))
            yield Case({"out_dtype": out_dtype}, types, (1,), (None, table), name=f"{dtype} {out_dtype} {scale}")
    same = np.full((1, 600), 5, np.int8)
    types = (TensorType(same.shape, "int8"), TensorType((256,), "int32"))
    yield Case({"out_dtype": "int8"}, types, (1,), (same, exponentials(0.1, 1.0, Multiplier.DOUBLE)), name="flat")


# ---------------------------------------------------------------- 16-bit data

_RANGE = np.float32(65535)


def interpolation_table(function: Callable[[Any], Any], scale: Any, zero_point: int, out_scale: Any) -> Array:
    """513 points of ``function`` over the whole int16 range of (scale, zero_point) as int16 of ``out_scale``.

    Each point is corrected by half the error in the middle of its segment. All arithmetic is float32, as LUTPopulateInt16's.
    """
    one = np.float32
    low, high = (scale * one(limit - zero_point) for limit in (-32768, 32767))
    inverse = one(65536) / (out_scale * one(32767) - out_scale * one(-32768))
    step = (high - low) / one(512)
    index = np.arange(512).astype(np.float32)
    value = fixed.round_half_away(function(low + index * step) * inverse)
    following = function(low + (index + one(1)) * step) * inverse
    middle = fixed.round_half_away(function(low + index * step + step / one(2)) * inverse)
    error = fixed.round_half_away((following + value) / one(2)) - middle
    points = value - fixed.round_half_away(error / one(2))
    last = fixed.round_half_away(function(np.asarray(high)) * inverse)
    clipped: Array = np.clip(np.append(points, last), -32768, 32767)
    return clipped.astype(np.int16)


def interpolated(table: Callable[[Any], Any], x: Any) -> Any:
    """The table of 513 points at an x within int16: nine bits choose the segment, seven the place in it (LUTLookup)."""
    index = (x + 32768) >> 7
    base = table(index)
    return base + (((table(index + 1) - base) * (x & 0x7F) + 64) >> 7)


def tables16(scale: float, beta: float, rounding: Multiplier) -> tuple[Mapping[str, Attr], tuple[Array, Array]]:
    """Attributes of ``qsoftmax16`` for data of ``scale``; tables of exp on -10 .. 0 and of 1 / (1 + x) on 0 .. 1, in Q0.15."""
    mantissa, shift = quantize_multiplier(scale * beta / (10.0 / 65535.0))
    if shift > 14:
        raise UnsupportedError(f"a 16-bit softmax with scale {scale} and beta {beta}, too large for fixed point")
    one = np.float32(1)
    out_scale = np.float32(2) / _RANGE
    exp = interpolation_table(
        lambda x: np.exp(x.astype(np.float64)).astype(np.float32), np.float32(10) / _RANGE, 32767, out_scale
    )
    reciprocal = interpolation_table(lambda x: one / (one + x), one / _RANGE, -32768, out_scale)
    return {"multiplier": mantissa, "shift": shift, "rounding": rounding}, (exp, reciprocal)


def _infer_q16(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, *tables = types
    if x.dtype != "int16" or not x.shape or not 0 < x.shape[-1] < 1 << 16:
        raise ModelError(f"qsoftmax16 of {x.dtype} {x.shape}")
    if any(table.shape != (513,) or table.dtype != "int16" for table in tables):
        raise ModelError("qsoftmax16 takes two tables of 513 int16")
    return (TensorType(x.shape, "int16"),)


def _distance16(distance: Any, attrs: Mapping[str, Any], k: Arith[Any]) -> Any:
    """A distance <= 0 where -65535 stands for -10, shifted to the middle of int16."""
    scaled = Multiplier(attrs["rounding"]).times(distance, attrs["multiplier"], attrs["shift"], k)
    return k.select(scaled > -65535, scaled + 32767, scaled * 0 - 32768)


def _centred(total: Any, headroom: Any, k: Arith[Any]) -> Any:
    """The total shifted up to 1 + x, and x to the middle of int16."""
    x = fixedpoint.shift_right_half_up(total << headroom, 14) - ((1 << 15) + (1 << 16))
    return k.select(x < 32767, x, x * 0 + 32767)


def _probability16(power: Any, scale: Any, headroom: Any) -> Any:
    """power * scale (each Q0.15), shifted to Q0.15, ties upwards, before clamping."""
    shift = 30 - headroom
    half = (shift * 0 + 1) << (shift - 1)
    return (power * scale + half) >> shift


def _reference_q16(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, exp, reciprocal = (array.astype(np.int64) for array in arrays)
    powers = interpolated(lambda i: exp[i], _distance16(x - x.max(axis=-1, keepdims=True), attrs, NUMPY))
    total = powers.sum(axis=-1, keepdims=True)
    headroom = free_bits(total, 14, NUMPY)
    scale = interpolated(lambda i: reciprocal[i], _centred(total, headroom, NUMPY))
    return (np.clip(_probability16(powers, scale, headroom), 0, 32767).astype(np.int16),)


def _compute_q16(call: OpCall) -> te.Tensor:
    """Stages ``largest``, ``distance``, ``power``, ``total``, ``headroom``, ``place``, ``scale``, then ``softmax``."""
    data, *table_operands = call.present
    exp, reciprocal = (operand.tensor() for operand in table_operands)
    rows, classes = prod(data.type.shape[:-1]), data.type.shape[-1]
    x = data.tensor((rows, classes))
    largest = largest_of_rows(x, rows, classes, -32768)

    def read(table: te.Tensor) -> Callable[[Expr], Expr]:
        return lambda index: ir.cast("int32", table[index])

    def row(name: str, f: Callable[[Expr], Expr]) -> te.Tensor:
        return te.compute((rows,), f, name, ("n",))

    distance = te.compute(
        (rows, classes),
        lambda n, c: _distance16(ir.cast("int32", x[n, c]) - largest[n], call.attrs, TIR),
        "distance",
        ("n", "c"),
    )
    power = te.compute((rows, classes), lambda n, c: interpolated(read(exp), distance[n, c]), "power", ("n", "c"))
    j = te.reduce_axis(classes, "j")
    total = row("total", lambda n: te.sum_reduce(power[n, j.var], j))
    headroom = row("headroom", lambda n: free_bits(total[n], 14, TIR, classes << 15))
    place = row("place", lambda n: _centred(total[n], headroom[n], TIR))
    scale = row("scale", lambda n: interpolated(read(reciprocal), place[n]))

    def element(n: Expr, c: Expr) -> Expr:
        return clamped(_probability16(power[n, c], scale[n], headroom[n]), 0, 32767, "int16")

    return te.compute((rows, classes), element, "softmax", ("n", "c"))


def _sound_q16(application: Application) -> str:
    """The exponential of zero, at the end of the table, is about one: so much is in the sum whose reciprocal is taken."""
    table = application.data[1]
    if table is None or table[-2:].min() >= 1 << 14:
        return ""
    return f"exp_table ends in {table[-2:].min()}, expected at least {1 << 14}"


def _cases_q16() -> Iterable[Case]:
    for scale, shape in ((3e-4, (1, 10)), (1e-3, (3, 7)), (0.05, (2, 1)), (1.0, (2, 2, 5))):
        attrs, tables = tables16(scale, 1.0, Multiplier.DOUBLE)
        types = (TensorType(shape, "int16"), TensorType((513,), "int16"), TensorType((513,), "int16"))
        yield Case(attrs, types, (1, 2), (None, *tables), name=f"scale {scale}")


QSOFTMAX = OpDef(
    "qsoftmax",
    attrs={"out_dtype": element_type()},
    infer=_infer_q,
    reference=_reference_q,
    compute=_compute_q,
    cases=_cases_q,
    constants={0: BOUNDED, 1: POSITIVE},
    sound=(_sound_q,),
    operand_names=("data", "table"),
)
QSOFTMAX16 = OpDef(
    "qsoftmax16",
    attrs={**SCALED, "shift": exponent("its exponent, positive to the left", most=14), "rounding": MULTIPLIER_ROUNDING},
    infer=_infer_q16,
    reference=_reference_q16,
    compute=_compute_q16,
    cases=_cases_q16,
    constants={0: BOUNDED, 1: Constant(Use.POINT, 0, (1 << 15) - 1), 2: Constant(Use.POINT, 0, (1 << 15) - 1)},
    sound=(_sound_q16,),
    operand_names=("data", "exp_table", "reciprocal_table"),
)
