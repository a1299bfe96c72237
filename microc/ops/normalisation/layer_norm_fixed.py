"""``qlayer_norm``: normalised rows of integers, times a factor and plus a term for each channel, in integers of any scale.

Of the stored numbers q of a row of N, T = N q - sum(q) and V = N sum(q * q) - sum(q) ** 2 + N ** 2 epsilon / scale ** 2 are
exact, zero points fall out, and T / sqrt(V) is the normalised number, within the root of N. The root is Newton's (TFLite's
GetInvSqrtQuantizedMultiplierExp), off by a few units of 2**-27 of itself. The normalised number is rounded to ``fraction`` bits;
its product with the channel's factor, and the term, keep ``right`` bits below the result's unit. What is shifted to
the right is rounded, ties upwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, frexp, log2
from typing import Any

import numpy as np

from microc import dtypes, te
from microc.dtypes import Array
from microc.errors import ModelError
from microc.fixed import INT32_MAX, NUMPY, doubling_high_mul
from microc.fixedpoint import inverse_square_root
from microc.frozen import frozen
from microc.graph.ir import Attr, Quant, TensorType
from microc.ops.arith import bit_length, clamped, with_names
from microc.ops.attributes import STORED, integer
from microc.ops.constants import Application, Constant, Use, stored
from microc.ops.normalisation.l2_normalize import inverse_root
from microc.ops.registry import Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

DTYPES = ("int8", "uint8", "int16")
MOST_DEPTH = 1 << 11
"""Elements of a row, for which V has 52 bits."""

MOST_EPSILON = float(1 << 52)

GUARD = 4
"""V has twice as many fractional bits, for its epsilon."""

_ROOM = 26
"""Bits of a normalised number in fixed point. Mantissas of inverse roots are 0.088 at least, so that a distance, which is within
the root of N V, takes at most 2 * 11.4 times as much when it is shifted to the left: 31 bits."""


@frozen
class Affine:
    """Factors (Q0.29 of a power of two) and terms (int32, with the zero point and half a unit) of the channels, the normalised
    numbers' fractional bits, and the result's. Factors are of either sign: what schedules make of products with mantissas, which
    are not, does not hold for them, so that their operand is doubled twice, as no such product's is."""

    factors: Array
    terms: Array
    fraction: int
    right: int


def affine(gamma: Array, beta: Array, depth: int, result: Quant, dtype: str) -> Affine | None:
    """``gamma`` and ``beta`` (depth) over the result's scale in fixed point; None where that has too few bits."""
    scale, zero = float(np.float32(result.scale[0])), result.zero_point[0]
    factors, terms = (np.asarray(part, np.float64) / scale for part in (gamma, beta))
    if not (np.isfinite(factors).all() and np.isfinite(terms).all() and factors.any()):
        return None
    exponent = frexp(float(np.abs(factors).max()))[1]
    finest = 30 - dtypes.info(dtype).bits - 2
    fraction = min(_ROOM - ceil(log2(depth) / 2), finest + 1 + exponent)
    right = fraction - 1 - exponent
    if right < 4 or fraction < 4:
        return None
    mantissas = np.rint(np.ldexp(factors, 29 - exponent)).astype(np.int64)
    levels = np.clip(np.rint(np.ldexp(terms + zero + 0.5, right)), -(1 << 30), 1 << 30)
    return Affine(mantissas.astype(np.int32), levels.astype(np.int32), fraction, right)


def _infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, factors, terms = types
    if data.dtype not in DTYPES or not data.shape or not 0 < data.shape[-1] <= MOST_DEPTH:
        raise ModelError(f"qlayer_norm of {data.dtype} {data.shape}")
    if any((kind.shape, kind.dtype) != (data.shape[-1:], "int32") for kind in (factors, terms)):
        raise ModelError("qlayer_norm takes a factor and a term of int32 for each channel")
    return (TensorType(data.shape, attrs["out_dtype"]),)


def _reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, factors, terms = (array.astype(np.int64) for array in arrays)
    depth, made = data.shape[-1], np.empty_like(data)
    for row, out in zip(data.reshape(-1, depth), made.reshape(-1, depth), strict=True):
        total = int(row.sum())
        spread = (depth * int((row * row).sum()) - total * total << 2 * GUARD) + attrs["epsilon"]
        halved = max(spread.bit_length() - 30, 0) >> 1
        mantissa, shift = inverse_square_root(spread >> 2 * halved)
        left = shift - halved + GUARD + attrs["fraction"]
        left, right = max(left, 0), max(-left, 0)
        shifted = doubling_high_mul((depth * row - total) << left, mantissa, NUMPY)
        normal = (shifted + ((1 << right) >> 1)) >> right
        levels = (doubling_high_mul(normal << 1, factors, NUMPY) + terms) >> attrs["right"]
        out[:] = np.clip(levels, attrs["minimum"], attrs["maximum"])
    return (made.astype(dtypes.to_numpy(attrs["out_dtype"])),)


def _compute(call: OpCall) -> te.Tensor:
    """Row by row: both sums, the inverse root, the results."""
    data, factors, terms = call.present
    depth, attrs = data.type.shape[-1], call.attrs
    rows = data.type.size // depth
    largest = max(abs(end) for end in dtypes.int_range(data.type.dtype))
    squares = "int32" if depth * largest**2 <= INT32_MAX else "int64"

    def build(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, factor, term), (out,) = operands, results
        n, i, j, value, zero = Var("n"), Var("i"), Var("j"), Var("value"), ir.const(0, "int32")
        total, square = Buffer("total", (1,), "int32", "register"), Buffer("squares", (1,), squares, "register")
        added = ir.Store(square, (zero,), square[0] + ir.cast(squares, value * value))
        add = ir.Let(value, ir.cast("int32", x[n, i]), ir.seq(ir.Store(total, (zero,), total[0] + value), added))
        spread = ir.cast("int64", square[0]) * depth - ir.cast("int64", total[0]) * ir.cast("int64", total[0])
        lets, mantissa, shift = _root((spread << 2 * GUARD) + ir.const(attrs["epsilon"], "int64"))
        left, right, half, root = Var("left"), Var("right_shift"), Var("half_unit"), Var("inverse_root")
        lets += [
            (root, mantissa),
            (left, ir.maximum(shift + (attrs["fraction"] + GUARD + 1), 1)),
            (right, ir.maximum(-(shift + (attrs["fraction"] + GUARD)), 0)),
            (half, (ir.const(1, "int32") << right) >> 1),
        ]
        distance = ir.cast("int32", x[n, j]) * depth - total[0]
        normal = ir.call("high_mac_round", distance << left, root, half) >> right
        level = ir.call("high_mac_round", normal << 2, factor[j], term[j]) >> attrs["right"]
        store = ir.Store(out, (n, j), clamped(level, attrs["minimum"], attrs["maximum"], attrs["out_dtype"]))
        scaled = with_names(lets, ir.For(j, ir.const(depth, "int32"), store))
        start = ir.seq(ir.Store(total, (zero,), zero), ir.Store(square, (zero,), ir.const(0, squares)))
        body = ir.seq(start, ir.For(i, ir.const(depth, "int32"), add), scaled)
        return ir.loops([(n, rows)], ir.Alloc(total, ir.Alloc(square, body)))

    tensors = (data.tensor((rows, depth)), factors.tensor(), terms.tensor())
    return te.extern("normal", tensors, (("out", (rows, depth), attrs["out_dtype"]),), build)[0]


def _root(spread: Expr) -> tuple[list[tuple[Var, Expr]], Expr, Expr]:
    """Names, and mantissa and shift of the inverse root of a positive ``spread`` of 62 bits, of which 31 are looked at."""
    whole, halved = Var("spread", "int64"), Var("halved")
    lets: list[tuple[Var, Expr]] = [(whole, spread)]
    high = Var("high", "uint32")
    lets.append((high, ir.cast("uint32", whole >> 30)))
    more, bits = bit_length(high, "spread")
    lets += [*more, (halved, bits >> 1)]
    root, mantissa, shift = inverse_root(ir.cast("int32", whole >> ir.cast("int64", halved * 2)))
    return [*lets, *root], mantissa, shift - halved


def _cases() -> Iterable[Case]:
    """Ends and ties; the last row is constant but for its first number, which is the furthest from a mean that there is."""
    for dtype, out_dtype in (("int8", "int8"), ("uint8", "int16"), ("int16", "int16"), ("int16", "int8")):
        low, high = dtypes.int_range(dtype)
        for shape, epsilon in (((2, 3, 4), 0.1), ((3, 1), 5.0), ((2, 200), 1e6), ((2, MOST_DEPTH), 1e-3)):
            depth = shape[-1]
            wave = np.sin(np.arange(depth) * 2.3)
            quant = Quant((0.05 if out_dtype == "int8" else 3e-4,), (3,))
            made = affine(wave + 0.3, wave[::-1] * 2, depth, quant, out_dtype)
            assert made is not None
            x = np.resize(np.array([low, high, 3, low + 1, 3, 3, 7, high], dtypes.to_numpy(dtype)), shape)
            x[-1], x[-1, ..., 0] = low, high
            types = (TensorType(shape, dtype), *(TensorType((depth,), "int32"),) * 2)
            arrays = (x, made.factors, made.terms)
            yield Case(attrs_of(made, epsilon, out_dtype), types, (1, 2), arrays, name=f"{dtype} {out_dtype} {shape}")


def _sound(application: Application) -> str:
    """A normalised number, at most the root of the row's length, keeps 26 bits, as :func:`affine` makes it."""
    attrs, depth = application.attrs, application.types[0].shape[-1]
    most = _ROOM - ceil(log2(depth) / 2)
    return "" if attrs["fraction"] <= most else f"fraction={attrs['fraction']}, expected at most {most}"


def attrs_of(made: Affine, epsilon: float, dtype: str) -> dict[str, Attr]:
    """The attributes for a result of this dtype; ``epsilon`` is added to V."""
    low, high = dtypes.int_range(dtype)
    result: dict[str, Attr] = {"minimum": low, "maximum": high, "out_dtype": dtype}
    return {**result, "epsilon": max(round(epsilon * 4**GUARD), 1), "fraction": made.fraction, "right": made.right}


QLAYER_NORM = OpDef(
    "qlayer_norm",
    attrs={
        "epsilon": integer(
            f"added to V, with {2 * GUARD} fractional bits", least=1, most=round(MOST_EPSILON) << 2 * GUARD
        ),
        "fraction": integer("fractional bits of the normalised numbers", least=4, most=_ROOM),
        "right": integer("those of factors and terms", least=4, most=31),
        **{name: STORED[name] for name in ("minimum", "maximum", "out_dtype")},
    },
    infer=_infer,
    reference=_reference,
    compute=_compute,
    cases=_cases,
    constants={
        1: Constant(Use.FACTOR, -(1 << 29), 1 << 29),
        2: Constant(Use.TERM, -(1 << 30), 1 << 30),
    },
    sound=(stored, _sound),
    operand_names=("data", "factors", "terms"),
)
