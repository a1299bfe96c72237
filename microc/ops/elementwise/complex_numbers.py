# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of complex numbers, as pairs (real, imaginary), over numpy arrays and TIR expressions, for Fourier
transforms.

There are three arithmetics: fixed point as in KISS FFT, 32-bit fixed point by the upper halves of products, and floats.

Source: KISS FFT 1.3.0 ``_kiss_fft_guts.h``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from microc.base.immutable import frozen
from microc.tir import ir
from microc.tir.ir import Expr, Stmt, Var

Complex = tuple[Any, Any]
"""A complex number (real, imaginary), of numpy arrays or TIR expressions."""


class ComplexArithmetic(Protocol):
    """Operations on complex numbers (real, imaginary) that the butterflies of an FFT need."""

    def multiply(self, a: Complex, b: Complex) -> Complex:
        """Return the complex product of ``a`` and ``b``."""

    def divide_by_radix(self, a: Complex, radix: int) -> Complex:
        """Return ``a`` divided by the stage's ``radix``, so that sums do not overflow; float arithmetic returns
        ``a``."""

    def multiply_by_twiddle(self, a: Complex, radix: int, twiddle: Complex) -> Complex:
        """Return ``a`` times ``twiddle``, divided by the stage's ``radix``; float arithmetic does not divide."""

    def add(self, a: Complex, b: Complex) -> Complex:
        """Return a + b."""

    def subtract(self, a: Complex, b: Complex) -> Complex:
        """Return a - b."""

    def half_of_sum(self, a: Any, b: Any) -> Any:
        """Return (a + b) / 2 of two real numbers."""

    def negate(self, a: Any) -> Any:
        """Return -a of a real number."""


@frozen
class FixedPointComplexArithmetic:
    """KISS FFT's fixed-point complex arithmetic, over numpy (int64) and TIR.

    ``fraction_bits``: number of fraction bits. ``wrap`` converts to the dtype of the numbers, ``widen`` to a dtype wide
    enough for products."""

    fraction_bits: int
    widen: Callable[[Any], Any]
    wrap: Callable[[Any], Any]

    def round_shift(self, x: Any) -> Any:
        """Return ``x`` without ``fraction_bits`` low bits, rounded half up and converted to the dtype of the
        numbers."""
        return self.wrap((x + (1 << self.fraction_bits - 1)) >> self.fraction_bits)

    def multiply(self, a: Complex, b: Complex) -> Complex:
        (ar, ai), (br, bi) = ((self.widen(p) for p in x) for x in (a, b))
        return self.round_shift(ar * br - ai * bi), self.round_shift(ar * bi + ai * br)

    def divide_by_radix(self, a: Complex, radix: int) -> Complex:
        share = ((1 << self.fraction_bits) - 1) // radix
        real, imaginary = (self.round_shift(self.widen(part) * share) for part in a)
        return real, imaginary

    def multiply_by_twiddle(self, a: Complex, radix: int, twiddle: Complex) -> Complex:
        return self.multiply(self.divide_by_radix(a, radix), twiddle)

    def add(self, a: Complex, b: Complex) -> Complex:
        return self.wrap(self.widen(a[0]) + self.widen(b[0])), self.wrap(self.widen(a[1]) + self.widen(b[1]))

    def subtract(self, a: Complex, b: Complex) -> Complex:
        return self.wrap(self.widen(a[0]) - self.widen(b[0])), self.wrap(self.widen(a[1]) - self.widen(b[1]))

    def half_of_sum(self, a: Any, b: Any) -> Any:
        """Return half of a + b."""
        return self.wrap((self.widen(a) + self.widen(b)) >> 1)

    def negate(self, a: Any) -> Any:
        return self.wrap(-self.widen(a))


@frozen
class HighMultiplyComplexArithmetic:
    """Complex arithmetic on int32 that uses only the upper 32 bits of products, rounded. Many cores compute these in
    one instruction.

    Magnitudes stay below 2**31 if all inputs are below 2**31, because every stage divides by its radix. Twiddle factors
    of stages have 30 fraction bits, so that the upper 32 bits are a quarter of the product, as a stage of radix four
    needs. The factors that are passed to :meth:`multiply` directly have 31 fraction bits."""

    high_multiply: Callable[[Any, Any], Any]

    def multiply(self, a: Complex, b: Complex) -> Complex:
        """Return half of the complex product of ``a`` and ``b``."""
        return self.high_multiply(a[0], b[0]) - self.high_multiply(a[1], b[1]), self.high_multiply(
            a[0], b[1]
        ) + self.high_multiply(a[1], b[0])

    def divide_by_radix(self, a: Complex, radix: int) -> Complex:
        return (a[0] + radix // 2) >> radix // 2, (a[1] + radix // 2) >> radix // 2

    def multiply_by_twiddle(self, a: Complex, radix: int, twiddle: Complex) -> Complex:
        """Return a quarter of ``a`` times ``twiddle``; for radix two, half of ``a``.

        Only stages of radix four have twiddle factors: a stage of radix two is always the first."""
        return self.multiply(a, twiddle) if radix == 4 else self.divide_by_radix(a, radix)

    def add(self, a: Complex, b: Complex) -> Complex:
        return a[0] + b[0], a[1] + b[1]

    def subtract(self, a: Complex, b: Complex) -> Complex:
        return a[0] - b[0], a[1] - b[1]

    def half_of_sum(self, a: Any, b: Any) -> Any:
        """Return half of ``a``, plus ``b``: ``b`` is a result of :meth:`multiply` and therefore halved already."""
        return ((a + 1) >> 1) + b

    def negate(self, a: Any) -> Any:
        return -a


class FloatComplexArithmetic:
    """Complex arithmetic of floats, in which stages do not divide by their radix."""

    def multiply(self, a: Complex, b: Complex) -> Complex:
        return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]

    def divide_by_radix(self, a: Complex, radix: int) -> Complex:
        return a

    def multiply_by_twiddle(self, a: Complex, radix: int, twiddle: Complex) -> Complex:
        return self.multiply(a, twiddle)

    def add(self, a: Complex, b: Complex) -> Complex:
        return a[0] + b[0], a[1] + b[1]

    def subtract(self, a: Complex, b: Complex) -> Complex:
        return a[0] - b[0], a[1] - b[1]

    def half_of_sum(self, a: Any, b: Any) -> Any:
        return (a + b) * 0.5

    def negate(self, a: Any) -> Any:
        return -a


def fft_arithmetic(dtype: str, *, over_tir: bool) -> ComplexArithmetic:
    """Return the complex arithmetic for ``dtype``, over TIR expressions if ``over_tir``, else over numpy arrays."""
    if dtype == "float32":
        return FloatComplexArithmetic()
    fraction, width = (15, "int32") if dtype == "int16" else (31, "int64")
    if over_tir:
        return FixedPointComplexArithmetic(fraction, lambda x: ir.cast(width, x), lambda x: ir.cast(dtype, x))
    return FixedPointComplexArithmetic(
        fraction, lambda x: np.asarray(x, np.int64), lambda x: np.asarray(x).astype(dtype).astype(np.int64)
    )


def high_multiply_fft_arithmetic(*, over_tir: bool) -> ComplexArithmetic:
    """Return the int32 arithmetic that uses only the upper 32 bits of products, over TIR if ``over_tir``, else over
    numpy."""
    if over_tir:
        return HighMultiplyComplexArithmetic(lambda a, b: ir.call("high_mul_round", a, b))
    return HighMultiplyComplexArithmetic(
        lambda a, b: (np.asarray(a, np.int64) * np.asarray(b, np.int64) + (1 << 31)) >> 32
    )


class LetCollector:
    """Collector of expressions and of the ``Let`` variables that name them, so that an expression that is used several
    times is computed once."""

    def __init__(self, let_name_prefix: str) -> None:
        self.stem = let_name_prefix
        self.lets: list[tuple[Var, Expr]] = []

    def bind(self, value: Expr) -> Expr:
        """Return a new variable that is defined as ``value``; return ``value`` itself if it is a variable or a
        constant."""
        if isinstance(value, (Var, ir.Const)):
            return value
        var = Var(f"{self.stem}_{len(self.lets)}", value.dtype)
        self.lets.append((var, value))
        return var

    def bind_complex(self, value: Complex) -> Complex:
        """Return a complex number whose parts are variables, defined as the parts of ``value``."""
        return self.bind(value[0]), self.bind(value[1])

    def wrap_in_definitions(self, body: Stmt) -> Stmt:
        """Wrap ``body`` in the ``Let`` statements that define all variables."""
        for var, value in reversed(self.lets):
            body = ir.Let(var, value, body)
        return body


class LetBindingComplexArithmetic:
    """Complex arithmetic that computes with ``inner`` and names every result by a ``Let`` variable."""

    def __init__(self, inner: ComplexArithmetic, names: LetCollector) -> None:
        self.inner, self.let_collector = inner, names

    def multiply(self, a: Complex, b: Complex) -> Complex:
        return self.let_collector.bind_complex(self.inner.multiply(a, b))

    def divide_by_radix(self, a: Complex, radix: int) -> Complex:
        return self.let_collector.bind_complex(self.inner.divide_by_radix(a, radix))

    def multiply_by_twiddle(self, a: Complex, radix: int, twiddle: Complex) -> Complex:
        return self.let_collector.bind_complex(self.inner.multiply_by_twiddle(a, radix, twiddle))

    def add(self, a: Complex, b: Complex) -> Complex:
        return self.let_collector.bind_complex(self.inner.add(a, b))

    def subtract(self, a: Complex, b: Complex) -> Complex:
        return self.let_collector.bind_complex(self.inner.subtract(a, b))

    def half_of_sum(self, a: Any, b: Any) -> Any:
        return self.let_collector.bind(self.inner.half_of_sum(a, b))

    def negate(self, a: Any) -> Any:
        return self.let_collector.bind(self.inner.negate(a))
