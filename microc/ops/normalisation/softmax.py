# SPDX-License-Identifier: Apache-2.0
"""Softmax of floats, of integers in TFLite's fixed point, and of bytes with any output scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import numerics, te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.numerics import INT32_MAX, NUMPY, Arith, doubling_high_mul, quantize_multiplier
from microc.ops.arithmetic import TIR, Rewrite, clamp_to_dtype, is_quantised, legalize_in_float, per_tensor_quant
from microc.ops.attributes import (
    MULTIPLIER_ROUNDING,
    ROUNDING_LITERT,
    SCALED,
    Multiplier,
    Rounding,
    element_type,
    exponent,
    integer,
    number,
    one_axis,
)
from microc.ops.constants import BOUNDED, POSITIVE, CheckedNode, NumberUse, OperandBounds, stored_range_error_message
from microc.ops.elementwise.elementwise import compute_interpolation_table, interpolate_table
from microc.ops.elementwise.scalar_functions import build_exp_of_negative
from microc.ops.gradients.rules import build_softmax_gradient
from microc.ops.quantised.scaling import build_doubling_high_mul
from microc.ops.registry import Case, Legalized, OpCall, OpDef, map_along_axis
from microc.tir import ir
from microc.tir.extents import upper_bound
from microc.tir.ir import Expr

# ---- Softmax in fixed point as TFLite Micro computes it: ``qsoftmax`` of 8-bit data, ``qsoftmax16`` of 16-bit data.
#
# ``qsoftmax`` looks up exponentials by the distance from the row's largest value (TFLite computes the same numbers for every
# element) and scales by a Newton reciprocal of their sum. ``qsoftmax16`` interpolates both functions in tables.
#
# Sources: TFLite ``reference/softmax.h``, ``quantization_util.cc`` (PreprocessSoftmaxScaling, CalculateInputRadius), ``common.h``
# (GetReciprocal, LUTPopulate, LUTLookup) and ``softmax_common.cc`` of TFLite Micro.

SUM_BITS = 12
"""Number of integer bits of the sum of exponentials in the 8-bit kernel. With 2**12 classes or more the sum can
overflow."""


def int32_headroom(positive_number: Any, lowest_bit: int, arith: Arith[Any], max_shifted: int = INT32_MAX) -> Any:
    """Return the largest left shift of ``positive_number`` that does not overflow int32.

    ``positive_number`` is at least 2**``lowest_bit`` and at most ``max_shifted``."""
    zero = positive_number * 0
    highest = min(upper_bound(max_shifted).bit_length(), 31)
    count = zero + (31 - highest)
    for bit in range(lowest_bit + 1, highest):
        count = count + arith.select(positive_number < (1 << bit), zero + 1, zero)
    return count


# ---------------------------------------------------------------- 8-bit data


def compute_exponential_table(in_scale: float, beta: float, rounding: Multiplier) -> Array:
    """Return exp(beta * ``in_scale`` * d) in Q0.31 (int32) for d = 0, -1 ... -255; zero where TFLite skips the term."""
    real = min(beta * in_scale * (1 << 26), float(INT32_MAX if rounding != Multiplier.SINGLE else (1 << 30) - 1))
    if real <= 1.0:
        raise UnsupportedError(
            f"input scale * beta is too small for fixed point; got {in_scale} * {beta}, expected more than {2.0**-26:.3g}",
            hint="keep the layer in float32",
        )
    mantissa, shift = quantize_multiplier(real, 31)
    radius = math.floor(math.ldexp(31 << 26, -shift))
    distance = -np.arange(256, dtype=np.int64)
    scaled = rounding.multiply_function(np.maximum(distance, -radius), mantissa, shift, NUMPY)
    return np.where(distance >= -radius, numerics.exp_on_negative_values(scaled, 5), 0).astype(np.int32)


def _infer_qsoftmax_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, table = types
    if x.dtype not in ("int8", "uint8") or not x.shape:
        raise ModelError(
            f"qsoftmax: the data have an unsupported type; got {x.dtype} {x.shape}, expected int8 or uint8 of one axis at "
            "least"
        )
    _check_table("qsoftmax", table)
    if not 0 < x.shape[-1] < 1 << SUM_BITS:
        raise ModelError(f"qsoftmax: too few or too many classes; got {x.shape[-1]}, expected 1..{(1 << SUM_BITS) - 1}")
    return (TensorType(x.shape, attrs["out_dtype"]),)


def _check_table(op_name: str, table: TensorType) -> None:
    if table.shape != (256,) or table.dtype != "int32":
        raise ModelError(
            f"{op_name}: the table of exponentials must be int32 of shape (256,); got {table.dtype} {table.shape}"
        )


def row_reciprocal(exponential_sum: Any, headroom: Any, arith: Arith[Any]) -> Any:
    """Return the reciprocal in Q0.31 of ``exponential_sum`` (Q12.19), after a left shift of the sum by ``headroom``.

    The shifted sum is (1 + x) / 2 in Q0.31."""
    return numerics.saturating_double(numerics.fixed_point_reciprocal(exponential_sum << headroom, arith))


def _unclamped_probability(exponential: Any, reciprocal: Any, headroom: Any, out_dtype: str, arith: Arith[Any]) -> Any:
    """Return exponential * reciprocal, shifted to the bits of the output, plus the output's lowest value. The result is
    not clamped yet.

    As nothing is negative, RoundingDivideByPOT is ((x >> (exponent - 1)) + 1) >> 1. If the exponent exceeds 32, the
    result is zero."""
    low, _ = dtypes.int_range(out_dtype)
    most = SUM_BITS - 2 + 31 - dtypes.dtype_parts(out_dtype).bits
    distance = most - headroom
    if most > 31:
        distance = arith.select(distance < 31, distance, distance * 0 + 31)
    return (((numerics.doubling_high_mul(exponential, reciprocal, arith) >> distance) + 1) >> 1) + low


def _evaluate_qsoftmax_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, table = (array.astype(np.int64) for array in arrays)
    powers = _look_up_exponentials(x, table)
    total = numerics.shift_right_half_up(powers, SUM_BITS).sum(axis=-1, keepdims=True)
    headroom = int32_headroom(total, 31 - SUM_BITS, NUMPY)
    result = _unclamped_probability(powers, row_reciprocal(total, headroom, NUMPY), headroom, attrs["out_dtype"], NUMPY)
    return (np.clip(result, *dtypes.int_range(attrs["out_dtype"])).astype(attrs["out_dtype"]),)


def build_row_maxima(x: te.Tensor, rows: int, classes: int, lowest_value: int) -> te.Tensor:
    """Build the stage ``largest``: the largest element of every row of ``x`` (rows, classes), at least
    ``lowest_value``."""
    k = te.reduce_axis(classes, "k")
    return te.compute(
        (rows,), lambda n: te.max_reduce(ir.cast("int32", x[n, k.var]), k, init=lowest_value), "largest", ("n",)
    )


def _look_up_exponentials(data: Array, table: Array) -> Array:
    """Return the entries of ``table`` at the distances of bytes from the largest number of their row."""
    return np.asarray(table[data.max(axis=-1, keepdims=True) - data])


def _build_exponentials(call: OpCall) -> tuple[int, int, Callable[[Expr, Expr], Expr]]:
    """Build the stage ``largest`` of bytes; return the number of rows, that of classes, and the function that builds the
    table's entry at the distance of element (row, class) from the largest number of its row."""
    data, table_operand = call.present
    rows, classes = prod(data.type.shape[:-1]), data.type.shape[-1]
    x, table = data.tensor((rows, classes)), table_operand.tensor()
    largest = build_row_maxima(x, rows, classes, dtypes.int_range(data.type.dtype)[0])
    return rows, classes, lambda n, c: table[largest[n] - ir.cast("int32", x[n, c])]


def _compute_qsoftmax(call: OpCall) -> te.Tensor:
    """Build the stages ``largest``, ``total``, ``headroom`` and ``scale`` of each row, then ``softmax``."""
    (rows, classes, build_exponential), out_dtype = _build_exponentials(call), call.attrs["out_dtype"]
    j = te.reduce_axis(classes, "j")

    def build_exponential_sum(n: Expr) -> Expr:
        return te.sum_reduce(numerics.shift_right_half_up(build_exponential(n, j.var), SUM_BITS), j)

    total, most = te.compute((rows,), build_exponential_sum, "total", ("n",)), classes << 31 - SUM_BITS
    headroom = te.compute((rows,), lambda n: int32_headroom(total[n], 31 - SUM_BITS, TIR, most), "headroom", ("n",))
    scale = te.compute((rows,), lambda n: row_reciprocal(total[n], headroom[n], TIR), "scale", ("n",))

    def build_probability(n: Expr, c: Expr) -> Expr:
        result = _unclamped_probability(build_exponential(n, c), scale[n], headroom[n], out_dtype, TIR)
        return clamp_to_dtype(result, *dtypes.int_range(out_dtype), out_dtype)

    return te.compute((rows, classes), build_probability, "softmax", ("n", "c"))


def _qsoftmax_table_error_message(checked_node: CheckedNode) -> str:
    """Return an error message if the exponential of distance zero, the first entry of the table, is not one; else an
    empty string.

    This exponential of the row's largest number is the least sum that a row can have."""
    table = checked_node.data[1]
    return (
        ""
        if table is None or table[0] == INT32_MAX
        else f"table[0] is not one in fixed point; got {table[0]}, expected {INT32_MAX}"
    )


def _make_qsoftmax_test_cases() -> Iterable[Case]:
    for dtype, out_dtype in (("int8", "int8"), ("int8", "int16"), ("uint8", "uint8")):
        for scale, shape in ((0.1, (1, 10)), (0.7, (3, 7)), (0.001, (2, 1)), (4.0, (2, 2, 5))):
            table = compute_exponential_table(scale, 1.0, Multiplier.DOUBLE)
            types = (TensorType(shape, dtype), TensorType((256,), "int32"))
            yield Case({"out_dtype": out_dtype}, types, (1,), (None, table), name=f"{dtype} {out_dtype} {scale}")
    same = np.full((1, 600), 5, np.int8)
    types = (TensorType(same.shape, "int8"), TensorType((256,), "int32"))
    yield Case(
        {"out_dtype": "int8"}, types, (1,), (same, compute_exponential_table(0.1, 1.0, Multiplier.DOUBLE)), name="flat"
    )


# ---------------------------------------------------------------- 16-bit data


def qsoftmax16_tables(
    in_scale: float, beta: float, rounding: Rounding
) -> tuple[Mapping[str, Attr], tuple[Array, Array]]:
    """Return ``(attributes, tables)`` of ``qsoftmax16`` for data of scale ``in_scale``.

    The tables are exp on -10 .. 0 and 1 / (1 + x) on 0 .. 1, in Q0.15. TFLite Micro computes them in float32, LiteRT in
    float64, which changes some points by one."""
    mantissa, shift = quantize_multiplier(in_scale * beta / (10.0 / 65535.0))
    if shift > 14:
        raise UnsupportedError(
            f"input scale * beta is too large for fixed point; got {in_scale} * {beta}, expected less than "
            f"{10 / 65535 * 2**14:.3g}",
            hint="keep the layer in float32",
        )
    real: Any = np.float64 if rounding == Rounding.LITERT else np.float32
    one, steps = real(1), real(65535)
    out_scale = real(2) / steps
    exp = compute_interpolation_table(
        lambda x: np.exp(x.astype(np.float64)).astype(real), real(10) / steps, 32767, out_scale
    )
    reciprocal = compute_interpolation_table(lambda x: one / (one + x), one / steps, -32768, out_scale)
    return {"multiplier": mantissa, "shift": shift, "rounding": rounding.multiplier}, (exp, reciprocal)


def _infer_qsoftmax16_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, *tables = types
    if x.dtype != "int16" or not x.shape or not 0 < x.shape[-1] < 1 << 16:
        raise ModelError(
            f"qsoftmax16: the data have an unsupported type; got {x.dtype} {x.shape}, expected int16 in rows of "
            f"1..{(1 << 16) - 1}"
        )
    if any(table.shape != (513,) or table.dtype != "int16" for table in tables):
        raise ModelError(
            f"qsoftmax16: tables have unsupported types; got {', '.join(f'{t.dtype} {t.shape}' for t in tables)}, expected "
            "int16 (513,)"
        )
    return (TensorType(x.shape, "int16"),)


def _scale_distance16(distance: Any, attrs: Mapping[str, Any], arith: Arith[Any]) -> Any:
    """Return the argument of the exp table for a distance <= 0 from the row's largest number.

    The distance is scaled so that -65535 corresponds to -10, and an offset is added so that the result fits int16."""
    scaled = Multiplier(attrs["rounding"]).multiply_function(distance, attrs["multiplier"], attrs["shift"], arith)
    return arith.select(scaled > -65535, scaled + 32767, scaled * 0 - 32768)


def _build_reciprocal_table_argument(exponential_sum: Any, headroom: Any, arith: Arith[Any]) -> Any:
    """Return the argument x of the reciprocal table as int16, where -32768 means x = 0. ``exponential_sum`` shifted
    left by ``headroom`` is 1 + x."""
    x = numerics.shift_right_half_up(exponential_sum << headroom, 14) - ((1 << 15) + (1 << 16))
    return arith.select(x < 32767, x, x * 0 + 32767)


def _unclamped_probability16(exponential: Any, reciprocal: Any, headroom: Any) -> Any:
    """Return exponential * reciprocal (each Q0.15), shifted to Q0.15 with ties upwards. The result is not clamped
    yet."""
    shift = 30 - headroom
    half = (shift * 0 + 1) << (shift - 1)
    return (exponential * reciprocal + half) >> shift


def _evaluate_qsoftmax16_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, exp, reciprocal = (array.astype(np.int64) for array in arrays)
    powers = interpolate_table(lambda i: exp[i], _scale_distance16(x - x.max(axis=-1, keepdims=True), attrs, NUMPY))
    total = powers.sum(axis=-1, keepdims=True)
    headroom = int32_headroom(total, 14, NUMPY)
    scale = interpolate_table(lambda i: reciprocal[i], _build_reciprocal_table_argument(total, headroom, NUMPY))
    return (np.clip(_unclamped_probability16(powers, scale, headroom), 0, 32767).astype(np.int16),)


def _compute_qsoftmax16(call: OpCall) -> te.Tensor:
    """Build the stages ``largest``, ``distance``, ``power``, ``total``, ``headroom``, ``place``, ``scale``, then
    ``softmax``."""
    data, *table_operands = call.present
    exp, reciprocal = (operand.tensor() for operand in table_operands)
    rows, classes = prod(data.type.shape[:-1]), data.type.shape[-1]
    x = data.tensor((rows, classes))
    largest = build_row_maxima(x, rows, classes, -32768)

    def make_table_reader(table: te.Tensor) -> Callable[[Expr], Expr]:
        return lambda index: ir.cast("int32", table[index])

    def build_stage_of_row_values(stage_name: str, build_value: Callable[[Expr], Expr]) -> te.Tensor:
        return te.compute((rows,), build_value, stage_name, ("n",))

    distance = te.compute(
        (rows, classes),
        lambda n, c: _scale_distance16(ir.cast("int32", x[n, c]) - largest[n], call.attrs, TIR),
        "distance",
        ("n", "c"),
    )
    power = te.compute(
        (rows, classes), lambda n, c: interpolate_table(make_table_reader(exp), distance[n, c]), "power", ("n", "c")
    )
    j = te.reduce_axis(classes, "j")
    total = build_stage_of_row_values("total", lambda n: te.sum_reduce(power[n, j.var], j))
    headroom = build_stage_of_row_values("headroom", lambda n: int32_headroom(total[n], 14, TIR, classes << 15))
    place = build_stage_of_row_values("place", lambda n: _build_reciprocal_table_argument(total[n], headroom[n], TIR))
    scale = build_stage_of_row_values("scale", lambda n: interpolate_table(make_table_reader(reciprocal), place[n]))

    def build_probability(n: Expr, c: Expr) -> Expr:
        return clamp_to_dtype(_unclamped_probability16(power[n, c], scale[n], headroom[n]), 0, 32767, "int16")

    return te.compute((rows, classes), build_probability, "softmax", ("n", "c"))


def _qsoftmax16_table_error_message(checked_node: CheckedNode) -> str:
    """Return an error message if the exponential of distance zero, at the end of the table, is not about one; else an
    empty string.

    This exponential of the row's largest number is the least sum that a row can have."""
    table = checked_node.data[1]
    if table is None or table[-2:].min() >= 1 << 14:
        return ""
    return f"the last two entries of exp_table are too small; got {table[-2:].min()}, expected at least {1 << 14}"


def _make_qsoftmax16_test_cases() -> Iterable[Case]:
    for scale, shape in ((3e-4, (1, 10)), (1e-3, (3, 7)), (0.05, (2, 1)), (1.0, (2, 2, 5))):
        attrs, tables = qsoftmax16_tables(scale, 1.0, Rounding.DOUBLE)
        types = (TensorType(shape, "int16"), TensorType((513,), "int16"), TensorType((513,), "int16"))
        yield Case(attrs, types, (1, 2), (None, *tables), name=f"scale {scale}")


QSOFTMAX = OpDef(
    "qsoftmax",
    attrs={"out_dtype": element_type()},
    infer=_infer_qsoftmax_types,
    reference=_evaluate_qsoftmax_reference,
    compute=_compute_qsoftmax,
    cases=_make_qsoftmax_test_cases,
    constants={0: BOUNDED, 1: POSITIVE},
    sound=(_qsoftmax_table_error_message,),
    operand_names=("data", "table"),
)
QSOFTMAX16 = OpDef(
    "qsoftmax16",
    attrs={**SCALED, "shift": exponent("its exponent, positive to the left", most=14), "rounding": MULTIPLIER_ROUNDING},
    infer=_infer_qsoftmax16_types,
    reference=_evaluate_qsoftmax16_reference,
    compute=_compute_qsoftmax16,
    cases=_make_qsoftmax16_test_cases,
    constants={
        0: BOUNDED,
        1: OperandBounds(NumberUse.POINT, 0, (1 << 15) - 1),
        2: OperandBounds(NumberUse.POINT, 0, (1 << 15) - 1),
    },
    sound=(_qsoftmax16_table_error_message,),
    operand_names=("data", "exp_table", "reciprocal_table"),
)


# ---- ``qsoftmax_scaled``: softmax of bytes to bytes of any scale, to which ``dequantize -> softmax -> quantize`` is rewritten.
#
# Exponentials are looked up by the distance from the row's largest number, as integers of F fraction bits, F such that the sum of
# a row fits 30 bits. The sum's reciprocal, by Newton's method, and the output's scale are one multiplier for all elements of a
# row.
#
# Error: a sum of C classes is off by C / 2 units of 2**-F at most, an exponential by half a unit, so that a result differs by
# less than (C + 1) / 2**(F + 1) of a probability before it is rounded. With F = 30 - log2(C) that is 0.03 of 1 / 256 for 512
# classes and less than 0.13 for 1024, the most. So a result differs from the float one by one step at most, and only near ties.

MOST_CLASSES = 1024
"""Largest number of classes of ``qsoftmax_scaled``."""
_TOTAL_BITS = 30
"""Number of bits that a row's sum of exponentials may have."""


def exponential_fraction_bits(classes: int) -> int:
    """Return the number of fraction bits of an exponential with which a sum of ``classes`` exponentials fits an int32.

    Twice an exponential also fits 31 bits."""
    return _TOTAL_BITS - max((classes - 1).bit_length(), 1)


def compute_scaled_exponentials(in_scale: float, classes: int) -> Array:
    """Return exp(-``in_scale`` * d) for d = 0 ... 255 as int32 with :func:`exponential_fraction_bits` fraction bits."""
    distance = np.arange(256) * float(np.float32(in_scale))
    return np.asarray(np.rint(np.exp(-distance) * (1 << exponential_fraction_bits(classes))), np.int32)


def can_compute_scaled_softmax(out_scale: float, classes: int) -> bool:
    """Test whether ``qsoftmax_scaled`` can compute rows of ``classes`` classes with an output of scale
    ``out_scale``."""
    if not 0 < classes <= MOST_CLASSES:
        return False
    return 0 <= quantize_multiplier(1 / float(np.float32(out_scale)))[1] < exponential_fraction_bits(classes)


def _infer_qsoftmax_scaled_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, table = types
    if x.dtype not in ("int8", "uint8") or not x.shape or not 0 < x.shape[-1] <= MOST_CLASSES:
        raise ModelError(
            f"qsoftmax_scaled: the data have an unsupported type; got {x.dtype} {x.shape}, expected int8 or uint8 in rows "
            f"of 1..{MOST_CLASSES}"
        )
    _check_table("qsoftmax_scaled", table)
    return (TensorType(x.shape, attrs["out_dtype"]),)


def _row_multiplier(exponential_sum: Any, headroom: Any, attrs: Mapping[str, Any], arith: Arith[Any]) -> Any:
    """Return 1 / (``exponential_sum`` * scale of the output) as a mantissa in Q0.31.

    Products with the mantissa are to be shifted right by :func:`_product_right_shift`."""
    return doubling_high_mul(row_reciprocal(exponential_sum, headroom, arith), attrs["multiplier"], arith)


def _product_right_shift(headroom: Any, attrs: Mapping[str, Any]) -> Any:
    return (_TOTAL_BITS - attrs["shift"]) - headroom


def _evaluate_qsoftmax_scaled_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, table = (array.astype(np.int64) for array in arrays)
    powers = _look_up_exponentials(x, table)
    total = powers.sum(axis=-1, keepdims=True)
    headroom = int32_headroom(total, exponential_fraction_bits(x.shape[-1]), NUMPY)
    product = doubling_high_mul(powers, _row_multiplier(total, headroom, attrs, NUMPY), NUMPY)
    result = (((product >> (_product_right_shift(headroom, attrs) - 1)) + 1) >> 1) + attrs["zero_point"]
    return (np.clip(result, *dtypes.int_range(attrs["out_dtype"])).astype(attrs["out_dtype"]),)


def _compute_qsoftmax_scaled(call: OpCall) -> te.Tensor:
    """Build the stages ``largest``, ``total``, ``headroom``, ``multiplier`` and ``shift`` of each row, then
    ``softmax``."""
    (rows, classes, build_exponential), attrs = _build_exponentials(call), call.attrs
    bits, j = exponential_fraction_bits(classes), te.reduce_axis(classes, "j")

    total = te.compute((rows,), lambda n: te.sum_reduce(build_exponential(n, j.var), j), "total", ("n",))
    headroom = te.compute((rows,), lambda n: int32_headroom(total[n], bits, TIR), "headroom", ("n",))
    multiplier = te.compute((rows,), lambda n: _row_multiplier(total[n], headroom[n], attrs, TIR), "multiplier", ("n",))
    shift = te.compute((rows,), lambda n: _product_right_shift(headroom[n], attrs) - 1, "shift", ("n",))

    def build_probability(n: Expr, c: Expr) -> Expr:
        product = build_doubling_high_mul(build_exponential(n, c), 0, 1 << bits, multiplier[n])
        result = (((product >> shift[n]) + 1) >> 1) + attrs["zero_point"]
        return clamp_to_dtype(result, *dtypes.int_range(attrs["out_dtype"]), attrs["out_dtype"])

    return te.compute((rows, classes), build_probability, "softmax", ("n", "c"))


def _scaled_softmax_error_message(checked_node: CheckedNode) -> str:
    """Return an error message if the table or the shift is invalid, else an empty string.

    Exponentials must be at most one, the exponential of distance zero must be one, and results must be shifted
    right."""
    bits, table = exponential_fraction_bits(checked_node.types[0].shape[-1]), checked_node.data[1]
    if table is not None and (table[0] != 1 << bits or int(table.max()) > 1 << bits):
        return f"table[0] and the maximum must be one; got {table[0]} and {table.max()}, expected {1 << bits}"
    shift = checked_node.attrs["shift"]
    return "" if 0 <= shift < bits else f"shift is out of range; got {shift}, expected 0..{bits - 1}"


def scaled_softmax_attrs(out_scale: float, out_zero_point: int, out_dtype: str) -> dict[str, Attr]:
    """Return the attributes of ``qsoftmax_scaled`` for an output with the given scale, zero point and dtype."""
    multiplier, shift = quantize_multiplier(1 / float(np.float32(out_scale)))
    return {"multiplier": multiplier, "shift": shift, "zero_point": out_zero_point, "out_dtype": out_dtype}


def _make_qsoftmax_scaled_test_cases() -> Iterable[Case]:
    quantisations = (("int8", "int8", 1 / 256, -128), ("uint8", "uint8", 0.0039, 0), ("uint8", "int8", 0.002, 5))
    for dtype, out_dtype, out_scale, zero in quantisations:
        for scale, shape in ((0.1, (1, 10)), (0.7, (3, 7)), (0.001, (2, 1)), (4.0, (2, 2, 5)), (0.02, (1, 300))):
            types = (TensorType(shape, dtype), TensorType((256,), "int32"))
            arrays = (None, compute_scaled_exponentials(scale, shape[-1]))
            yield Case(
                scaled_softmax_attrs(out_scale, zero, out_dtype),
                types,
                (1,),
                arrays,
                name=f"{dtype} {out_dtype} {scale}",
            )
    same = np.full((1, 1024), 5, np.int8)
    types = (TensorType(same.shape, "int8"), TensorType((256,), "int32"))
    yield Case(
        scaled_softmax_attrs(1 / 256, -128, "int8"),
        types,
        (1,),
        (same, compute_scaled_exponentials(0.1, 1024)),
        name="flat",
    )


QSOFTMAX_SCALED = OpDef(
    "qsoftmax_scaled",
    attrs={**SCALED, "zero_point": integer("of the result"), "out_dtype": element_type()},
    infer=_infer_qsoftmax_scaled_types,
    reference=_evaluate_qsoftmax_scaled_reference,
    compute=_compute_qsoftmax_scaled,
    cases=_make_qsoftmax_scaled_test_cases,
    constants={0: BOUNDED, 1: POSITIVE},
    sound=(stored_range_error_message, _scaled_softmax_error_message),
    operand_names=("data", "table"),
)


# ---- Softmax of floats, and the legalisation of quantised ones to the operators above.


def _nonnegative_axis(attrs: Mapping[str, Any], shape: tuple[int, ...]) -> int:
    """Return the attribute ``axis`` counted from the first axis; raise ModelError if it is out of range."""
    axis: int = attrs["axis"]
    if not -len(shape) <= axis < len(shape):
        raise ModelError(
            f"softmax: the axis is outside of the data; got axis {axis}, expected -{len(shape)}..{len(shape) - 1} "
            f"for {shape}"
        )
    return axis % len(shape)


# ---------------------------------------------------------------- floats


def _infer_softmax_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    tensor_type = types[0]
    if not dtypes.is_float(tensor_type.dtype) and tensor_type.quant is None:
        raise ModelError(
            f"softmax: the data have an unsupported dtype; got {tensor_type.dtype}, expected floats or quantised integers"
        )
    _nonnegative_axis(attrs, tensor_type.shape)
    return (TensorType(tensor_type.shape, tensor_type.dtype),)


def _evaluate_softmax_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = arrays[0].astype(np.float64)
    axis = _nonnegative_axis(attrs, x.shape)
    powers = np.exp((x - x.max(axis=axis, keepdims=True, initial=-np.inf)) * np.float32(attrs["beta"]))
    return ((powers / powers.sum(axis=axis, keepdims=True)).astype(arrays[0].dtype),)


def _compute_softmax(call: OpCall) -> te.Tensor:
    """Build the stages ``largest``, ``power``, ``total``, ``factor`` and ``softmax`` over (outer, classes, inner).

    In float32 the error of a power is at most 2e-7 (``scalar_functions.py``), where the power of the largest element is
    1. Therefore the error of a result is at most 1e-6 of the row's largest result, including the rounding of the common
    factor."""
    data = call.data
    shape = data.type.shape
    axis = _nonnegative_axis(call.attrs, shape)
    outer, classes, inner = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
    x, beta = data.tensor((outer, classes, inner)), float(call.attrs["beta"])
    short = data.type.dtype == "float32" and beta > 0.0
    k, j = te.reduce_axis(classes, "k"), te.reduce_axis(classes, "j")
    rows = ("n", "i")
    largest = te.compute(
        (outer, inner), lambda n, i: te.max_reduce(x[n, k.var, i], k, init=float("-inf")), "largest", rows
    )

    def build_exponential(n: Expr, c: Expr, i: Expr) -> Expr:
        distance = x[n, c, i] - largest[n, i]
        scaled = distance if beta == 1.0 else distance * beta
        return build_exp_of_negative(scaled) if short else ir.call("exp", scaled)

    powers = te.compute((outer, classes, inner), build_exponential, "power", ("n", "c", "i"))
    total = te.compute((outer, inner), lambda n, i: te.sum_reduce(powers[n, j.var, i], j), "total", rows)
    factor = te.compute((outer, inner), lambda n, i: 1.0 / total[n, i], "factor", rows)
    return te.compute(
        (outer, classes, inner), lambda n, c, i: powers[n, c, i] * factor[n, i], "softmax", ("n", "c", "i")
    )


def _make_softmax_test_cases() -> Iterable[Case]:
    for shape, axis in (((1, 10), 1), ((3, 5), 0), ((2, 3, 4), -2), ((1, 1), 1), ((7,), -1)):
        yield Case({"axis": axis, "beta": 1.0}, (TensorType(shape, "float32"),), tolerance=2e-6)
    attrs: dict[str, Attr] = {"axis": -1, "beta": 0.5}
    x = np.array([[1e30, -1e30, 0.0], [-100.0, -100.0, -1000.0]], np.float32)
    yield Case(attrs, (TensorType(x.shape, "float32"),), arrays=(x,), tolerance=2e-6, name="large")


# ---------------------------------------------------------------- quantised

_RESULTS = {  # scale and zero point of the results of TFLite's kernels, by dtypes of data and result
    ("int8", "int8"): (1 / 256, -128),
    ("uint8", "uint8"): (1 / 256, 0),
    ("int8", "int16"): (1 / 65536, -32768),
    ("int16", "int16"): (1 / 32768, 0),
}


def _legalize_softmax(node: Node, graph: Graph) -> Legalized | None:
    if not is_quantised(node, graph):
        return None
    source, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    scale_in, zero_in = per_tensor_quant(node, graph, node.inputs[0])
    scale_out, zero_out = per_tensor_quant(node, graph, node.outputs[0])
    wanted = _RESULTS.get((source.dtype, result.dtype))
    last = _nonnegative_axis(node.attrs, source.shape) == len(source.shape) - 1
    if node.attr("rounding") == Rounding.EVEN:
        return _legalize_by_table(node, graph) if last else legalize_in_float(node, graph)
    if not last or wanted is None:
        return legalize_in_float(node, graph)
    if abs(scale_out - wanted[0]) > 0.001 * wanted[0] or zero_out != wanted[1]:
        return legalize_in_float(node, graph)
    beta, rounding = float(node.attr("beta")), Rounding(str(node.attr("rounding")))
    rewrite = Rewrite(node, graph)
    if source.dtype == "int16":
        if zero_in or source.shape[-1] >= 1 << 16:
            return legalize_in_float(node, graph)
        attrs, tables = qsoftmax16_tables(scale_in, beta, rounding)
        operands = [
            rewrite.add_constant(stem, table) for stem, table in zip(("exp", "reciprocal"), tables, strict=True)
        ]
        rewrite.emit("qsoftmax16", (node.inputs[0], *operands), node.outputs[0], attrs)
        return rewrite.legalized()
    if source.shape[-1] >= 1 << SUM_BITS:
        raise UnsupportedError(
            f"too many classes for a quantised softmax; got {source.shape[-1]} classes, expected at most "
            f"{(1 << SUM_BITS) - 1}",
            where=str(node.loc),
            hint="keep it in float32",
        )
    table = rewrite.add_constant("exp", compute_exponential_table(scale_in, beta, rounding.multiplier))
    rewrite.emit("qsoftmax", (node.inputs[0], table), node.outputs[0], {"out_dtype": result.dtype})
    return rewrite.legalized()


def _legalize_by_table(node: Node, graph: Graph) -> Legalized:
    """Rewrite a softmax of 8-bit data to ``qsoftmax_scaled`` with a table of exponentials, and any other softmax to
    float operators."""
    source, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    scale, _ = per_tensor_quant(node, graph, node.inputs[0])
    out_scale, zero = per_tensor_quant(node, graph, node.outputs[0])
    narrow = all(
        dtypes.is_integer(tensor_type.dtype) and dtypes.nbytes(tensor_type.dtype) == 1
        for tensor_type in (source, result)
    )
    if not narrow or not can_compute_scaled_softmax(out_scale, source.shape[-1]):
        return legalize_in_float(node, graph)
    rewrite = Rewrite(node, graph)
    table = rewrite.add_constant("exp", compute_scaled_exponentials(scale * float(node.attr("beta")), source.shape[-1]))
    attrs = scaled_softmax_attrs(out_scale, zero, result.dtype)
    rewrite.emit("qsoftmax_scaled", (node.inputs[0], table), node.outputs[0], attrs)
    return rewrite.legalized()


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "softmax",
        gradient=build_softmax_gradient,
        infer=_infer_softmax_types,
        reference=_evaluate_softmax_reference,
        compute=_compute_softmax,
        cases=_make_softmax_test_cases,
        attrs={
            "axis": one_axis("axis along which the operator computes", -1),
            "beta": number("factor of the data", 1.0),
            "rounding": ROUNDING_LITERT,
        },
        axes=map_along_axis,
        legalize=_legalize_softmax,
        operand_names=("data",),
    ),
    QSOFTMAX,
    QSOFTMAX16,
    QSOFTMAX_SCALED,
)
