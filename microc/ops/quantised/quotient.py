"""``qdiv``: quotients of bytes by tables of reciprocals, as TFLite computes them (``reference/div.h``, ``common.h``).

The divisor's sign goes to the dividend; its reciprocal, a mantissa and a number of bits, is read from tables. The dividend is
shifted to the left as far as it goes, multiplied, and shifted back with the output's multiplier, the ratio of the scales: in
doubles as TFLite Micro is built, in floats in LiteRT. A divisor of zero gives zero. So do dividends so small that TFLite would
shift by more than 31 bits; ratios so large that it would shift to the left give what no shift does. C leaves both undefined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import dtypes, te
from microc.dtypes import Array
from microc.errors import ModelError
from microc.fixed import NUMPY, doubling_high_mul, quantize_multiplier, rounding_shift_right
from microc.fixedpoint import half_of_one_plus, reciprocal, saturating_double
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.ops.arith import TIR, Rewrite, activation_range, scalar_quant
from microc.ops.attributes import SCALED, STORED, integer
from microc.ops.constants import MANTISSA, Constant, Use, stored, zero_point_of
from microc.ops.registry import Case, Legalized, OpDef
from microc.ops.rounding import Rounding
from microc.ops.surface import through_float
from microc.tir import ir
from microc.tir.ir import Expr


def reciprocal_tables() -> tuple[Array, Array]:
    """Mantissas (int32) and bits above one (int8) of 1 / d, d = 0 .. 255."""
    bits = np.array([max(d.bit_length() - 1, 0) for d in range(256)], np.int64)
    above = (np.arange(256, dtype=np.int64) << (31 - bits)) - (1 << 31)
    mantissas = saturating_double(reciprocal(half_of_one_plus(np.maximum(above, 0)), NUMPY))
    mantissas[0] = 0
    return mantissas.astype(np.int32), bits.astype(np.int8)


def legalize_div(node: Node, graph: Graph) -> Legalized:
    """div of int8: ``qdiv``; other dtypes through floats."""
    result = graph.types[node.outputs[0]]
    if any(graph.types[name].dtype != "int8" for name in (*node.inputs, *node.outputs)):
        return through_float(node, graph)
    names = (*node.inputs, *node.outputs)
    (a, zero_a), (b, zero_b), (out, zero) = (scalar_quant(node, graph, name) for name in names)
    assert result.quant is not None
    low, high = activation_range(str(node.attrs.get("activation", "")), result.quant, "int8", where=str(node.loc))
    real = a / (b * out)
    if node.attrs.get("rounding") == Rounding.LITERT:
        real = float(np.float32(a) / np.float32(np.float32(b) * np.float32(out)))
    multiplier, shift = quantize_multiplier(real)
    rewrite = Rewrite(node, graph)
    mantissas, bits = reciprocal_tables()
    tables = (rewrite.constant("reciprocals", mantissas), rewrite.constant("bits", bits))
    attrs: dict[str, Attr] = {"zero_point_a": zero_a, "zero_point_b": zero_b, "zero_point": zero}
    attrs |= {"multiplier": multiplier, "shift": shift, "minimum": low, "maximum": high}
    rewrite.emit("qdiv", (*node.inputs, *tables), node.outputs, attrs)
    return rewrite.legalized()


def _infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    a, b, mantissas, bits = types
    if (a.dtype, b.dtype) != ("int8", "int8") or mantissas.shape != (256,) or bits.shape != (256,):
        raise ModelError(f"qdiv of {a.dtype} and {b.dtype} with tables of {mantissas.shape} and {bits.shape}")
    try:
        return (TensorType(np.broadcast_shapes(a.shape, b.shape), "int8"),)
    except ValueError:
        raise ModelError(f"qdiv of shapes {a.shape} and {b.shape}, which do not broadcast") from None


def _reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    a, b = (np.asarray(x, np.int64) - attrs[f"zero_point_{k}"] for x, k in zip(arrays[:2], "ab", strict=True))
    a, b = np.broadcast_arrays(np.where(b < 0, -a, a), np.abs(b))
    mantissa, bits = arrays[2].astype(np.int64)[b], arrays[3].astype(np.int64)[b]
    magnitude = np.where(a < 0, -2 * a - 1, a)
    lengths = np.frompyfunc(lambda n: int(n).bit_length(), 1, 1)(magnitude).astype(np.int64)
    headroom = np.where(a < 0, 32, 31) - lengths
    quotient = doubling_high_mul(a << headroom, mantissa, NUMPY)
    right = NUMPY.clamp(bits + headroom - attrs["shift"], 0, 31)
    scaled = doubling_high_mul(quotient, attrs["multiplier"], NUMPY)
    value = rounding_shift_right(scaled, right, NUMPY)
    return (np.clip(value + attrs["zero_point"], attrs["minimum"], attrs["maximum"]).astype(np.int8),)


def _scalar(attrs: Mapping[str, Any], args: Sequence[Any]) -> Expr:
    a, b = (ir.cast("int32", x) - attrs[f"zero_point_{k}"] for x, k in zip(args[:2], "ab", strict=True))
    mantissas: te.Tensor = args[2]
    bits: te.Tensor = args[3]
    a, b = ir.select(b < 0, -a, a), ir.select(b < 0, -b, b)
    magnitude = ir.select(a < 0, a * -2 - 1, a)
    headroom: Expr = ir.select(a < 0, ir.const(32, "int32"), 31)
    for power in range(9):
        headroom = headroom - ir.select(magnitude >= (1 << power), ir.const(1, "int32"), 0)
    quotient = doubling_high_mul(a << headroom, mantissas[b], TIR)
    right = ir.clamp(ir.cast("int32", bits[b]) + headroom - attrs["shift"], 0, 31)
    scaled = doubling_high_mul(quotient, ir.const(attrs["multiplier"], "int32"), TIR)
    value = rounding_shift_right(scaled, right, TIR) + attrs["zero_point"]
    return ir.cast("int8", ir.clamp(value, attrs["minimum"], attrs["maximum"]))


def _cases() -> Iterable[Case]:
    mantissas, bits = reciprocal_tables()
    low, high = dtypes.int_range("int8")
    common: dict[str, Attr] = {"minimum": low, "maximum": high, "zero_point": 3}
    a, b = np.meshgrid(np.array([-128, -1, 0, 1, 5, 100, 127], np.int8), np.array([-127, -9, 6, 7, 50, 127], np.int8))
    types = (TensorType(a.shape, "int8"),) * 2 + (TensorType((256,), "int32"), TensorType((256,), "int8"))
    for zero_a, zero_b, multiplier, shift in ((0, 0, 1500000000, 4), (5, 5, 1999999999, 2), (-128, -128, 1 << 30, 6)):
        attrs = {**common, "zero_point_a": zero_a, "zero_point_b": zero_b, "multiplier": multiplier, "shift": shift}
        yield Case(attrs, types, (2, 3), (a, b, mantissas, bits), name=f"{zero_a}")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "qdiv",
        attrs={
            "zero_point_a": integer("of a"),
            "zero_point_b": integer("of b"),
            **SCALED,
            "zero_point": STORED["zero_point"],
            "minimum": STORED["minimum"],
            "maximum": STORED["maximum"],
        },
        infer=_infer,
        reference=_reference,
        scalar=_scalar,
        cases=_cases,
        constants={2: MANTISSA, 3: Constant(Use.SHIFT, 0, 31)},
        sound=(stored, zero_point_of("zero_point_a", 0), zero_point_of("zero_point_b", 1)),
        operand_names=("a", "b", "reciprocals", "bits"),
        whole=(2, 3),
        repeats=True,
    ),
)
