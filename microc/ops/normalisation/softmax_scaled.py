"""Softmax of bytes into bytes of any scale: ``qsoftmax_scaled``, what ``dequantize -> softmax -> quantize`` becomes.

Exponentials are looked up by the distance from the row's largest number, as integers of F bits: so many that the sum of a row
fits 30. The sum's reciprocal, by Newton's method, and the output's scale are one multiplier for all elements of a row.

Against exact real numbers: a sum of C classes is off by C / 2 units of 2**-F at most, an exponential by half a unit, so that a
result differs by less than (C + 1) / 2**(F + 1) of a probability before it is rounded. F = 30 - log2(C) makes that 0.03 of a
probability's 256th for 512 classes and less than 0.13 for 1024, the most: results are one step apart at most, where floats
come as close to a tie.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import dtypes, te
from microc.dtypes import Array
from microc.errors import ModelError
from microc.fixed import NUMPY, Arith, doubling_high_mul, quantize_multiplier
from microc.graph.ir import Attr, TensorType
from microc.ops.arith import TIR, clamped
from microc.ops.attributes import SCALED, element_type, integer
from microc.ops.constants import BOUNDED, POSITIVE, Application, stored
from microc.ops.normalisation.softmax_fixed import free_bits, largest_of_rows, row_reciprocal
from microc.ops.quantised.scaling import high_mul
from microc.ops.registry import Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Expr

MOST_CLASSES = 1024
_TOTAL_BITS = 30


def table_bits(classes: int) -> int:
    """F, for which the sum of so many exponentials fits, and twice an exponential fits 31 bits."""
    return _TOTAL_BITS - max((classes - 1).bit_length(), 1)


def scaled_exponentials(scale: float, classes: int) -> Array:
    """exp(-scale * d) for d = 0 ... 255, int32 with :func:`table_bits` fractional bits."""
    distance = np.arange(256) * float(np.float32(scale))
    return np.asarray(np.rint(np.exp(-distance) * (1 << table_bits(classes))), np.int32)


def fits(out_scale: float, classes: int) -> bool:
    """Whether the integers suffice for rows of so many classes and an output of this scale."""
    if not 0 < classes <= MOST_CLASSES:
        return False
    return 0 <= quantize_multiplier(1 / float(np.float32(out_scale)))[1] < table_bits(classes)


def _infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, table = types
    if x.dtype not in ("int8", "uint8") or not x.shape or not 0 < x.shape[-1] <= MOST_CLASSES:
        raise ModelError(f"qsoftmax_scaled of {x.dtype} {x.shape}")
    if table.shape != (256,) or table.dtype != "int32":
        raise ModelError(f"qsoftmax_scaled with a table of {table.dtype} {table.shape}")
    return (TensorType(x.shape, attrs["out_dtype"]),)


def _row_multiplier(total: Any, headroom: Any, attrs: Mapping[str, Any], k: Arith[Any]) -> Any:
    """1 / total / the output's scale as a mantissa in Q0.31; :func:`_shift` says how far its products go to the right."""
    return doubling_high_mul(row_reciprocal(total, headroom, k), attrs["multiplier"], k)


def _shift(headroom: Any, attrs: Mapping[str, Any]) -> Any:
    return (_TOTAL_BITS - attrs["shift"]) - headroom


def _reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, table = (array.astype(np.int64) for array in arrays)
    powers = table[x.max(axis=-1, keepdims=True) - x]
    total = powers.sum(axis=-1, keepdims=True)
    headroom = free_bits(total, table_bits(x.shape[-1]), NUMPY)
    product = doubling_high_mul(powers, _row_multiplier(total, headroom, attrs, NUMPY), NUMPY)
    result = (((product >> (_shift(headroom, attrs) - 1)) + 1) >> 1) + attrs["zero_point"]
    return (np.clip(result, *dtypes.int_range(attrs["out_dtype"])).astype(attrs["out_dtype"]),)


def _compute(call: OpCall) -> te.Tensor:
    """Stages ``largest``, ``total``, ``headroom``, ``multiplier``, ``shift`` per row, then ``softmax``."""
    data, table_operand = call.present
    shape, attrs = data.type.shape, call.attrs
    rows, classes = prod(shape[:-1]), shape[-1]
    x, table = data.tensor((rows, classes)), table_operand.tensor()
    largest = largest_of_rows(x, rows, classes, dtypes.int_range(data.type.dtype)[0])
    bits, j = table_bits(classes), te.reduce_axis(classes, "j")

    def power(n: Expr, c: Expr) -> Expr:
        return table[largest[n] - ir.cast("int32", x[n, c])]

    total = te.compute((rows,), lambda n: te.sum_reduce(power(n, j.var), j), "total", ("n",))
    headroom = te.compute((rows,), lambda n: free_bits(total[n], bits, TIR), "headroom", ("n",))
    multiplier = te.compute((rows,), lambda n: _row_multiplier(total[n], headroom[n], attrs, TIR), "multiplier", ("n",))
    shift = te.compute((rows,), lambda n: _shift(headroom[n], attrs) - 1, "shift", ("n",))

    def element(n: Expr, c: Expr) -> Expr:
        product = high_mul(power(n, c), 0, 1 << bits, multiplier[n])
        result = (((product >> shift[n]) + 1) >> 1) + attrs["zero_point"]
        return clamped(result, *dtypes.int_range(attrs["out_dtype"]), attrs["out_dtype"])

    return te.compute((rows, classes), element, "softmax", ("n", "c"))


def _sound(application: Application) -> str:
    """Exponentials are at most one, which the largest number of a row has; a result is shifted to the right."""
    bits, table = table_bits(application.types[0].shape[-1]), application.data[1]
    if table is not None and (table[0] != 1 << bits or int(table.max()) > 1 << bits):
        return f"table begins with {table[0]} and reaches {table.max()}, expected {1 << bits} for both"
    shift = application.attrs["shift"]
    return "" if 0 <= shift < bits else f"shift={shift}, expected 0..{bits - 1}"


def scaled_attrs(scale: float, zero_point: int, out_dtype: str) -> dict[str, Attr]:
    """The attributes for an output of this quantisation."""
    multiplier, shift = quantize_multiplier(1 / float(np.float32(scale)))
    return {"multiplier": multiplier, "shift": shift, "zero_point": zero_point, "out_dtype": out_dtype}


def _cases() -> Iterable[Case]:
    kinds = (("int8", "int8", 1 / 256, -128), ("uint8", "uint8", 0.0039, 0), ("uint8", "int8", 0.002, 5))
    for dtype, out_dtype, out_scale, zero in kinds:
        for scale, shape in ((0.1, (1, 10)), (0.7, (3, 7)), (0.001, (2, 1)), (4.0, (2, 2, 5)), (0.02, (1, 300))):
            types = (TensorType(shape, dtype), TensorType((256,), "int32"))
            arrays = (None, scaled_exponentials(scale, shape[-1]))
            yield Case(
                scaled_attrs(out_scale, zero, out_dtype), types, (1,), arrays, name=f"{dtype} {out_dtype} {scale}"
            )
    same = np.full((1, 1024), 5, np.int8)
    types = (TensorType(same.shape, "int8"), TensorType((256,), "int32"))
    yield Case(scaled_attrs(1 / 256, -128, "int8"), types, (1,), (same, scaled_exponentials(0.1, 1024)), name="flat")


QSOFTMAX_SCALED = OpDef(
    "qsoftmax_scaled",
    attrs={**SCALED, "zero_point": integer("of the result"), "out_dtype": element_type()},
    infer=_infer,
    reference=_reference,
    compute=_compute,
    cases=_cases,
    constants={0: BOUNDED, 1: POSITIVE},
    sound=(stored, _sound),
    operand_names=("data", "table"),
)
