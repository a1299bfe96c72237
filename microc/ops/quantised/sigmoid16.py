"""``qsigmoid16``: sigmoid and tanh of int16 with zero points of zero, interpolated in a table, as TFLite Micro's kernels do.

The table holds sigmoid(i / 24) in Q0.16 for i = 0 .. 255. Sources: TFLite ``integer_ops/logistic.h``, ``integer_ops/tanh.h``
(int16), ``common.h`` (sigmoid_table_uint16); TFLite Micro ``logistic_common.cc``, ``tanh.cc`` (multiplier and shift).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.fixed import FAR_APART, NUMPY, Arith
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.ops.arith import TIR, Rewrite, scalar_quant
from microc.ops.attributes import choice, integer
from microc.ops.registry import Case, Legalized, OpDef
from microc.tir import ir
from microc.tir.ir import Expr

_BITS = {"sigmoid": 9, "tanh": 8}
"""Bits of a place between two entries."""


def sigmoid_table() -> Array:
    """The 256 points (uint16), each raised by half of what interpolation lacks in the middle of the segment after it; the
    last one is the largest number there is."""
    x = np.arange(257) / 24
    exact = 1 / (1 + np.exp(-x))
    middle = 1 / (1 + np.exp(-(x[:-1] + 1 / 48)))
    lack = middle - (exact[:-1] + exact[1:]) / 2
    points = np.floor(65536 * (exact[:-1] + lack / 2) + 0.5)
    points[-1] = 65535
    return points.astype(np.uint16)


def input_scaling(curve: str, scale: float) -> tuple[int, int] | None:
    """(multiplier, right shift) that take data of ``scale`` to the table's; None where they leave 15 and 31 bits.

    The table's unit is 1 / (3 * 4096). Scales that are powers of two near it (within 0.1 %) multiply exactly.
    """
    log2 = float(np.float32(np.log(np.float32(scale))) * np.float32(1 / np.log(2.0)))
    left = 12 + round(log2)
    if abs(log2 - round(log2)) < 1e-3 and (left == 0 or (left == 1 and curve == "tanh")):
        return 3 << left, 0
    multiplier, shift = scale * 4096.0 * 3.0, 0
    while multiplier <= 32767.0 / 2.0 and shift <= 30:
        multiplier, shift = multiplier * 2.0, shift + 1
    return (int(multiplier), shift) if 1 <= multiplier < 32768 else None


def _scaled(attrs: Mapping[str, Any], x: Any) -> Any:
    """An int32 ``x`` within int16, in the table's unit."""
    shift = attrs["shift"]
    return (x * attrs["multiplier"] + ((1 << shift) >> 1)) >> shift


def _of_size(attrs: Mapping[str, Any], size: Any, table: Callable[[Any], Any], k: Arith[Any]) -> Any:
    """The sigmoid of a magnitude, or of twice it: Q0.25, Q0.24 for tanh."""
    bits = _BITS[attrs["curve"]]
    segment = size >> bits
    first = k.clamp(segment, 0, 254)
    low = table(first)
    inside = (low << bits) + (size & ((1 << bits) - 1)) * (table(first + 1) - low)
    return k.select(segment < 255, inside, inside * 0 + ((0x7FFF << 10) if bits == 9 else (0xFFFF << 8)))


def _curve(attrs: Mapping[str, Any], x: Any, table: Callable[[Any], Any], k: Arith[Any]) -> Any:
    """The result in Q0.15."""
    scaled = _scaled(attrs, x)
    value = _of_size(attrs, k.select(scaled < 0, -scaled, scaled), table, k)
    if attrs["curve"] == "sigmoid":
        return k.select(scaled < 0, (1 << 25) + (1 << 9) - 1 - value, value + (1 << 9)) >> 10
    return k.select(scaled < 0, (1 << 23) + (1 << 7) - 1 - value, value - (1 << 23) + (1 << 7)) >> 8


def _branchless(attrs: Mapping[str, Any], args: Sequence[Any]) -> Expr:
    """:func:`_curve` with the sign as a mask: -1 - value is the complement, and both choices are one bit apart then."""
    x, table = ir.cast("int32", args[0]), args[1]
    scaled = _scaled(attrs, x)
    sign, size = scaled >> 31, ir.maximum(scaled, -scaled)
    value = _of_size(attrs, size, lambda index: ir.cast("int32", table[index]), TIR) ^ sign
    if attrs["curve"] == "sigmoid":
        return ir.cast("int16", (value + (1 << 9) + (sign & (1 << 25))) >> 10)
    return ir.cast("int16", (value + (1 << 7) - (1 << 23) + (sign & (1 << 24))) >> 8)


def _infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, table = types
    if x.dtype != "int16" or table.shape != (256,):
        raise ModelError(f"qsigmoid16 ({attrs['curve']}) of {x.dtype} with a table of {table.shape}")
    return (TensorType(x.shape, "int16"),)


def _reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, table = (array.astype(np.int64) for array in arrays)
    return (np.asarray(_curve(attrs, x, lambda index: table[index], NUMPY)).astype(np.int16),)


def _scalar(attrs: Mapping[str, Any], args: Sequence[Any]) -> Expr:
    table = args[1]
    x = ir.cast("int32", args[0])
    return ir.cast("int16", _curve(attrs, x, lambda index: ir.cast("int32", table[index]), TIR))


def _cases() -> Iterable[Case]:
    x = np.append(np.linspace(-32768, 32767, 98), [0, 1, -1]).round().astype(np.int16)
    for curve in ("sigmoid", "tanh"):
        for scale in (1 / 4096, 1 / 2048, 3e-4, 1e-5, 0.01):
            scaling = input_scaling(curve, scale)
            assert scaling is not None
            attrs: dict[str, Attr] = {"curve": curve, "multiplier": scaling[0], "shift": scaling[1]}
            types = (TensorType(x.shape, "int16"), TensorType((256,), "uint16"))
            yield Case(attrs, types, consts=(1,), arrays=(x, sigmoid_table()), name=f"{curve} {scale}")


def legalize_sigmoid16(node: Node, graph: Graph) -> Legalized | None:
    """``sigmoid`` or ``tanh`` of int16 where TFLite's kernel applies: zero points of zero, output scale 2**-15."""
    scale_in, zero_in = scalar_quant(node, graph, node.inputs[0])
    scale_out, zero_out = scalar_quant(node, graph, node.outputs[0])
    if zero_in or zero_out or abs(scale_out * 32768 - 1) > 1e-3:
        return None
    scaling = input_scaling(node.op, scale_in)
    if scaling is None:
        raise UnsupportedError(f"an input scale of {scale_in:.3g}", hint=FAR_APART)
    rewrite = Rewrite(node, graph)
    operands = (node.inputs[0], rewrite.constant("table", sigmoid_table()))
    attrs: dict[str, Attr] = {"curve": node.op, "multiplier": scaling[0], "shift": scaling[1]}
    rewrite.emit("qsigmoid16", operands, node.outputs[0], attrs)
    return rewrite.legalized()


QSIGMOID16 = OpDef(
    "qsigmoid16",
    attrs={
        "curve": choice("of the table", "sigmoid", "tanh"),
        "multiplier": integer("of the input, Q0.15"),
        "shift": integer("its exponent, positive to the right"),
    },
    infer=_infer,
    reference=_reference,
    scalar=_scalar,
    branchless=_branchless,
    cases=_cases,
    operand_names=("x", "table"),
    whole=(1,),
    repeats=True,
)
