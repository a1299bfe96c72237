# SPDX-License-Identifier: Apache-2.0
"""The short integer sequences against the definition in ``numerics.py``, over the edges of every case they tell apart."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from microc import te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.numerics import (
    NUMPY,
    doubling_high_mul,
    multiply_by_reduced_factor,
    multiply_double_rounding,
    multiply_single_rounding,
    reduce_multiplier,
)
from microc.ops.quantised.scaling import (
    HALF,
    FixedPointScale,
    ScaledResult,
    build_rounding_shift_right,
    largest_float32_not_above,
    round_to_int32,
    scale_by_reduced_multiplier,
    scale_double_rounding,
    scale_single_rounding,
)
from microc.tir import interp, ir
from microc.tir.rewrite import walk_all_exprs
from tests.ops.harness import INTRINSICS

MANTISSAS = (HALF, HALF + 1, 1518500250, 1999999999, (1 << 31) - 2, (1 << 31) - 1)


def around(*centres: int, reach: int = 3) -> Array:
    """The integers near each centre."""
    return np.unique(np.array([c + d for c in centres for d in range(-reach, reach + 1)], np.int64))


def edges(low: int, high: int) -> Array:
    """Integers where roundings change: near powers of two, ties, and the ends of low..high."""
    powers = [sign * (1 << k) for k in range(31) for sign in (1, -1)]
    ties = [sign * ((1 << k) + (1 << k >> 1)) for k in range(31) for sign in (1, -1)]
    found = np.concatenate((around(0, low, high), around(*powers), around(*ties)))
    return np.unique(found[(found >= low) & (found <= high)])


def kernel(element: ir.Expr, x: te.Tensor, i: ir.Var) -> ir.PrimFunc:
    """A loop that stores ``element`` of ``x[i]``."""
    out = te.Tensor("out", x.shape, element.dtype, te.ComputeDef((i,), element))
    return te.create_prim_func("kernel", [x], [out])


def run(func: ir.PrimFunc, x: Array) -> Array:
    out = np.zeros(x.shape, dtypes.to_numpy(func.params[-1].dtype))
    interp.run(func, [x.astype(dtypes.to_numpy(func.params[0].dtype)), out], INTRINSICS)
    return out


def test_high_mul_round_of_twice_x_is_the_doubling_high_multiply() -> None:
    x = edges(-HALF, HALF - 1)
    for mantissa in MANTISSAS:
        high_mul_round = (2 * x * mantissa + (1 << 31)) >> 32
        np.testing.assert_array_equal(high_mul_round, doubling_high_mul(x, mantissa, NUMPY))


def test_negative_values_clamp_to_the_zero_point_whatever_their_rounding() -> None:
    r = edges(-(1 << 31), -1)
    for exponent in range(1, 32):
        assert ((r + (1 << (exponent - 1))) >> exponent).max() <= 0
        assert ((r - 1 + (1 << (exponent - 1))) >> exponent).max() <= 0


OUTPUTS = (
    ScaledResult(-5, -128, 127, "int8"),
    ScaledResult(-128, -128, 100, "int8"),
    ScaledResult(127, 0, 255, "uint8"),
    ScaledResult(0, -32768, 32767, "int16"),
)
SHIFTS = (5, 1, 0, -1, -2, -7, -15, -24, -30, -31)
BOUNDS = (255, 1 << 20, HALF - 1, HALF, (1 << 31) - 1)


@pytest.mark.parametrize(
    ("shift", "bound"), [(s, b) for s, b in itertools.product(SHIFTS, BOUNDS) if b << max(s, 0) < 1 << 31]
)
def test_double_rounding_is_exact(shift: int, bound: int) -> None:
    x = edges(-bound, bound)
    for mantissa, out in itertools.product(MANTISSAS, OUTPUTS):
        tensor, i = te.placeholder(x.shape, "int32", "x"), ir.Var("i")
        func = kernel(
            scale_double_rounding(
                tensor[i], -bound, bound, FixedPointScale.from_mantissa_and_shift(mantissa, shift), out
            ),
            tensor,
            i,
        )
        scaled = multiply_double_rounding(x, mantissa, shift, NUMPY) + out.zero_point
        wanted = np.clip(scaled, out.minimum, out.maximum)
        np.testing.assert_array_equal(run(func, x), wanted, err_msg=f"{mantissa} {out}")


@pytest.mark.parametrize("form", ["single", "wide"])
@pytest.mark.parametrize("shift", [3, 0, -1, -2, -7, -24, -31])
@pytest.mark.parametrize("bound", [255, HALF - 1, HALF, (1 << 31) - 1])
def test_one_rounding_is_exact(form: str, shift: int, bound: int) -> None:
    x, terse = edges(-bound, bound), []
    for mantissa, out in itertools.product(MANTISSAS, OUTPUTS):
        tensor, i = te.placeholder(x.shape, "int32", "x"), ir.Var("i")
        if form == "single":
            func = kernel(
                scale_single_rounding(tensor[i], bound, FixedPointScale.from_mantissa_and_shift(mantissa, shift), out),
                tensor,
                i,
            )
            scaled = multiply_single_rounding(x, mantissa, shift, NUMPY)
        else:
            reduced = reduce_multiplier(mantissa)
            func = kernel(
                scale_by_reduced_multiplier(
                    tensor[i], bound, FixedPointScale.from_mantissa_and_shift(reduced, shift), out
                ),
                tensor,
                i,
            )
            scaled = multiply_by_reduced_factor(x, reduced, shift, NUMPY)
        wanted = np.clip(scaled + out.zero_point, out.minimum, out.maximum)
        np.testing.assert_array_equal(run(func, x), wanted, err_msg=f"{mantissa} {out}")
        terse.append(all(e.dtype != "int64" for e in walk_all_exprs(func.body)))
    assert all(terse) or not -8 < shift < -1  # elsewhere 64 bits may be needed


@pytest.mark.parametrize("shifts", [(-31, -24, -9, -2), (-9, -1, -12, -2), (0, -3, -20, -1), (2, -3, -1, 0)])
@pytest.mark.parametrize("bound", [255, 1 << 22, (1 << 29) - 1])
def test_one_rounding_by_shifts_of_channels_is_exact(shifts: tuple[int, ...], bound: int) -> None:
    """In 32 bits where the least shift leaves room for the operand."""
    x = edges(-bound, bound)
    range_of_right = -max(shifts), -min(shifts)
    fits = bound << max(1, 3 + max(shifts)) < 1 << 31
    for mantissa, out in itertools.product(MANTISSAS, OUTPUTS):
        tensor, by, i, c = (
            te.placeholder(x.shape, "int32", "x"),
            te.placeholder((4,), "int8", "shift"),
            ir.Var("i"),
            ir.Var("c"),
        )
        scale = FixedPointScale(mantissa, 0 - ir.cast("int32", by[c]), range_of_right)
        element = scale_single_rounding(tensor[i], bound, scale, out)
        made = te.Tensor("out", (x.size, 4), element.dtype, te.ComputeDef((i, c), element))
        func = te.create_prim_func("kernel", [tensor, by], [made])
        found = np.zeros((x.size, 4), dtypes.to_numpy(element.dtype))
        interp.run(func, [x.astype(np.int32), np.array(shifts, np.int8), found], INTRINSICS)
        scaled = multiply_single_rounding(x[:, None], mantissa, np.array(shifts, np.int64), NUMPY)
        np.testing.assert_array_equal(found, np.clip(scaled + out.zero_point, out.minimum, out.maximum))
        assert not fits or all(e.dtype != "int64" for e in walk_all_exprs(func.body))


def test_bounded_operands_take_no_64_bit_arithmetic() -> None:
    tensor, i = te.placeholder((4,), "int32", "x"), ir.Var("i")
    out = ScaledResult(-5, -128, 127, "int8")
    for shift in (0, -1, -9, -31):
        func = kernel(
            scale_double_rounding(
                tensor[i], 1 - HALF, HALF - 1, FixedPointScale.from_mantissa_and_shift(1518500250, shift), out
            ),
            tensor,
            i,
        )
        assert all(e.dtype != "int64" for e in walk_all_exprs(func.body))


def test_zero_point_is_folded_and_relu_drops_the_correction() -> None:
    x = te.placeholder((1,), "int32", "x")[0]
    plain = build_rounding_shift_right(
        x, 1 << 20, FixedPointScale.from_mantissa_and_shift(HALF, -8), ScaledResult(-5, -128, 127, "int8")
    )
    assert plain == ((x + (x >> 31) + (128 - (5 << 8))) >> 8, True)
    relu = build_rounding_shift_right(
        x, 1 << 20, FixedPointScale.from_mantissa_and_shift(HALF, -8), ScaledResult(-128, -128, 127, "int8")
    )
    assert relu == ((x + (128 - (128 << 8))) >> 8, True)


@pytest.mark.parametrize("rounding", ["away", "even"])
@pytest.mark.parametrize(("low", "high"), [(-128, 127), (0, 255), (-65535, 65535), (-(1 << 31), (1 << 31) - 1)])
def test_floats_round_exactly(rounding: str, low: int, high: int) -> None:
    whole = np.concatenate(
        (np.arange(-300, 300), np.arange(-70000, 70000, 997), [1 << 22, -(1 << 23), 1 << 30, -(1 << 31)])
    )
    ties = (np.concatenate((whole, whole + 0.5)) * 1.0).astype(np.float32)
    tiny = np.array([0.49999997, -0.49999997, 1e-30, -0.0, np.inf, -np.inf, 3e38], np.float32)
    x = np.concatenate((ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf)), tiny))
    tensor, i = te.placeholder(x.shape, "float32", "x"), ir.Var("i")
    clipped = np.clip(x, np.float32(low), np.float32(largest_float32_not_above(high))).astype(np.float64)
    away = np.copysign(np.floor(np.abs(clipped) + 0.5), clipped)
    wanted = np.rint(clipped) if rounding == "even" else away
    func = kernel(round_to_int32(tensor[i], low, high, rounding), tensor, i)
    np.testing.assert_array_equal(run(func, x), wanted.astype(np.int64))
