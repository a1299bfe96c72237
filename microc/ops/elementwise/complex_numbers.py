"""Arithmetic of complex numbers, (real, imaginary), over numpy and TIR: in fixed point as KISS FFT's, and of floats.

Source: KISS FFT 1.3.0 ``_kiss_fft_guts.h``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from microc.tir import ir
from microc.tir.ir import Expr, Stmt, Var

Complex = tuple[Any, Any]


class Arithmetic(Protocol):
    """Arithmetic of complex numbers, (real, imaginary)."""

    def times(self, a: Complex, b: Complex) -> Complex:
        """a b."""

    def divided(self, a: Complex, by: int) -> Complex:
        """What a stage divides its operands by, so that nothing overflows."""

    def add(self, a: Complex, b: Complex) -> Complex:
        """a + b."""

    def subtract(self, a: Complex, b: Complex) -> Complex:
        """a - b."""

    def half(self, a: Any, b: Any) -> Any:
        """Half of the sum of two numbers that are not complex."""

    def negative(self, a: Any) -> Any:
        """-a of a number that is not complex."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Arithmetic of fixed point of a dtype, over numpy (int64) and TIR: ``wrap`` stores, ``wide`` makes room for products."""

    fraction: int
    wide: Callable[[Any], Any]
    wrap: Callable[[Any], Any]

    def rounded(self, x: Any) -> Any:
        return self.wrap((x + (1 << self.fraction - 1)) >> self.fraction)

    def times(self, a: Complex, b: Complex) -> Complex:
        (ar, ai), (br, bi) = ((self.wide(p) for p in x) for x in (a, b))
        return self.rounded(ar * br - ai * bi), self.rounded(ar * bi + ai * br)

    def divided(self, a: Complex, by: int) -> Complex:
        share = ((1 << self.fraction) - 1) // by
        real, imaginary = (self.rounded(self.wide(part) * share) for part in a)
        return real, imaginary

    def add(self, a: Complex, b: Complex) -> Complex:
        return self.wrap(self.wide(a[0]) + self.wide(b[0])), self.wrap(self.wide(a[1]) + self.wide(b[1]))

    def subtract(self, a: Complex, b: Complex) -> Complex:
        return self.wrap(self.wide(a[0]) - self.wide(b[0])), self.wrap(self.wide(a[1]) - self.wide(b[1]))

    def half(self, a: Any, b: Any) -> Any:
        """Half of a + b."""
        return self.wrap((self.wide(a) + self.wide(b)) >> 1)

    def negative(self, a: Any) -> Any:
        return self.wrap(-self.wide(a))


class Real:
    """The same of floats, which need no division."""

    def times(self, a: Complex, b: Complex) -> Complex:
        return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]

    def divided(self, a: Complex, by: int) -> Complex:
        return a

    def add(self, a: Complex, b: Complex) -> Complex:
        return a[0] + b[0], a[1] + b[1]

    def subtract(self, a: Complex, b: Complex) -> Complex:
        return a[0] - b[0], a[1] - b[1]

    def half(self, a: Any, b: Any) -> Any:
        return (a + b) * 0.5

    def negative(self, a: Any) -> Any:
        return -a


def arithmetic(dtype: str, *, loops: bool) -> Arithmetic:
    if dtype == "float32":
        return Real()
    fraction, width = (15, "int32") if dtype == "int16" else (31, "int64")
    if loops:
        return Fixed(fraction, lambda x: ir.cast(width, x), lambda x: ir.cast(dtype, x))
    return Fixed(fraction, lambda x: np.asarray(x, np.int64), lambda x: np.asarray(x).astype(dtype).astype(np.int64))


class Held:
    """Names for values that are used more than once."""

    def __init__(self, stem: str) -> None:
        self.stem = stem
        self.lets: list[tuple[Var, Expr]] = []

    def name(self, value: Expr) -> Expr:
        if isinstance(value, (Var, ir.Const)):
            return value
        var = Var(f"{self.stem}_{len(self.lets)}", value.dtype)
        self.lets.append((var, value))
        return var

    def pair(self, value: Complex) -> Complex:
        return self.name(value[0]), self.name(value[1])

    def around(self, body: Stmt) -> Stmt:
        for var, value in reversed(self.lets):
            body = ir.Let(var, value, body)
        return body


class Named:
    """Arithmetic whose every result gets a name."""

    def __init__(self, inner: Arithmetic, held: Held) -> None:
        self.inner, self.held = inner, held

    def times(self, a: Complex, b: Complex) -> Complex:
        return self.held.pair(self.inner.times(a, b))

    def divided(self, a: Complex, by: int) -> Complex:
        return self.held.pair(self.inner.divided(a, by))

    def add(self, a: Complex, b: Complex) -> Complex:
        return self.held.pair(self.inner.add(a, b))

    def subtract(self, a: Complex, b: Complex) -> Complex:
        return self.held.pair(self.inner.subtract(a, b))

    def half(self, a: Any, b: Any) -> Any:
        return self.held.name(self.inner.half(a, b))

    def negative(self, a: Any) -> Any:
        return self.held.name(self.inner.negative(a))
