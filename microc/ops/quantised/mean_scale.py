"""What a quantised mean is multiplied by, computed when the network runs: for means over as many elements as a caller tells.

A mean of a known number of elements has its multiplier as a number (:mod:`microc.ops.reduction.reduce`); these are the same,
exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.dtypes import Array
from microc.graph.ir import TensorType
from microc.ops.attributes import SCALED, integer, real
from microc.ops.registry import Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Buffer, Stmt, Var

_MOST = 30
"""Bits of a count but for the first."""


def mean_multiplier(mantissa: int, shift: int, count: int) -> tuple[int, int]:
    """The multiplier divided by ``count``, as TFLite keeps it precise: shifted left first, the quotient rounded down."""
    extra = min(count.bit_length() - 1, _places(shift))
    return (mantissa << extra) // count, shift - extra


def _places(shift: int) -> int:
    """How far a mantissa may be shifted to the left."""
    return min(_MOST, 31 + shift)


def mean_scale(scale_in: float, scale_out: float, count: int) -> float:
    """The multiplier in float32 throughout."""
    with np.errstate(over="ignore"):
        return float(np.float32(scale_in) / (np.float32(scale_out) * np.float32(count)))


def _multiplier(call: OpCall) -> tuple[te.Tensor, ...]:
    """Division bit by bit behind the first 31 bits of the quotient: small cores have none of 64 bits."""
    mantissa, shift = int(call.attrs["multiplier"]), int(call.attrs["shift"])
    count, k, zero = ir.const(call.attrs["count"], "int32"), Var("k"), ir.const(0, "int32")
    divisor = ir.cast("uint32", count)

    def build(_: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        quotient, rest = (Buffer(name, (1,), "uint32", "register") for name in ("quotient", "rest"))
        places = Buffer("places", (1,), "int32", "register")

        def put(buffer: Buffer, value: ir.Expr) -> Stmt:
            return ir.Store(buffer, (zero,), value)

        start = [put(places, zero), put(rest, ir.const(mantissa, "uint32"))]
        start += [put(quotient, ir.binary("truncdiv", rest[0], divisor)), put(rest, rest[0] - quotient[0] * divisor)]
        one = ir.seq(put(quotient, quotient[0] + 1), put(rest, rest[0] - divisor))
        doubled = [put(quotient, quotient[0] << 1), put(rest, rest[0] << 1), put(places, places[0] + 1)]
        further = ir.seq(*doubled, ir.If(rest[0] >= divisor, one))
        search = ir.loops([(k, _places(shift))], ir.If((ir.const(2, "int32") << k) <= count, further))
        end = [put(results[0], ir.cast("int32", quotient[0])), put(results[1], ir.const(shift, "int32") - places[0])]
        body = ir.seq(*start, search, *end)
        return ir.Alloc(quotient, ir.Alloc(rest, ir.Alloc(places, body)))

    return te.extern("scale", (), (("multiplier", (1,), "int32"), ("shift", (1,), "int32")), build)


def _scale(call: OpCall) -> te.Tensor:
    scale_in, scale_out = (ir.const(call.attrs[name], "float32") for name in ("scale_in", "scale_out"))
    count = ir.cast("float32", ir.const(call.attrs["count"], "int32"))
    return te.compute((1,), lambda _: scale_in / (scale_out * count), "scale")


def _reference_multiplier(attrs: Mapping[str, Any], _: Sequence[Any]) -> tuple[Array, ...]:
    multiplier, shift = mean_multiplier(attrs["multiplier"], attrs["shift"], attrs["count"])
    return np.array([multiplier], np.int32), np.array([shift], np.int32)


def _reference_scale(attrs: Mapping[str, Any], _: Sequence[Any]) -> tuple[Array, ...]:
    return (np.array([mean_scale(attrs["scale_in"], attrs["scale_out"], attrs["count"])], np.float32),)


def _multiplier_cases() -> Iterable[Case]:
    for count in (1, 2, 7, 49, 1000, 65535, 65536, (1 << 31) - 1):
        for mantissa, shift in ((1 << 30, -4), ((1 << 31) - 1, 2), (1431655765, -29)):
            yield Case({"multiplier": mantissa, "shift": shift, "count": count}, (), name=f"{count} {shift}")


def _scale_cases() -> Iterable[Case]:
    for count in (1, 3, 49, 1 << 24):
        yield Case({"scale_in": 0.0625, "scale_out": 0.0123, "count": count}, (), name=f"{count}")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "mean_multiplier",
        attrs={**SCALED, "count": integer("elements of the mean", least=1, most=(1 << 31) - 1)},
        infer=lambda _, __: (TensorType((1,), "int32"), TensorType((1,), "int32")),
        reference=_reference_multiplier,
        compute=_multiplier,
        cases=_multiplier_cases,
    ),
    OpDef(
        "mean_scale",
        attrs={
            "scale_in": real("of the data"),
            "scale_out": real("of the result"),
            "count": integer("elements of the mean", least=1, most=(1 << 31) - 1),
        },
        infer=lambda _, __: (TensorType((1,), "float32"),),
        reference=_reference_scale,
        compute=_scale,
        cases=_scale_cases,
    ),
)
