"""Arithmetic of complex numbers, (real, imaginary), over numpy and TIR: in fixed point as KISS FFT's, by high halves of products,
and of floats.

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


class Arithmetic(Protocol):
    """Arithmetic of complex numbers, (real, imaginary)."""

    def times(self, a: Complex, b: Complex) -> Complex:
        """a b."""

    def divided(self, a: Complex, by: int) -> Complex:
        """What a stage divides its operands by, so that nothing overflows."""

    def turned(self, a: Complex, by: int, turn: Complex) -> Complex:
        """a ``turn``, divided by a stage's radix."""

    def add(self, a: Complex, b: Complex) -> Complex:
        """a + b."""

    def subtract(self, a: Complex, b: Complex) -> Complex:
        """a - b."""

    def half(self, a: Any, b: Any) -> Any:
        """Half of the sum of two numbers that are not complex."""

    def negative(self, a: Any) -> Any:
        """-a of a number that is not complex."""


@frozen
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

    def turned(self, a: Complex, by: int, turn: Complex) -> Complex:
        return self.times(self.divided(a, by), turn)

    def add(self, a: Complex, b: Complex) -> Complex:
        return self.wrap(self.wide(a[0]) + self.wide(b[0])), self.wrap(self.wide(a[1]) + self.wide(b[1]))

    def subtract(self, a: Complex, b: Complex) -> Complex:
        return self.wrap(self.wide(a[0]) - self.wide(b[0])), self.wrap(self.wide(a[1]) - self.wide(b[1]))

    def half(self, a: Any, b: Any) -> Any:
        """Half of a + b."""
        return self.wrap((self.wide(a) + self.wide(b)) >> 1)

    def negative(self, a: Any) -> Any:
        return self.wrap(-self.wide(a))


@frozen
class High:
    """The same of 32-bit numbers by the high halves of their products, rounded: an instruction each where there is one.

    Numbers stay below 2**31 in magnitude if they enter so, for every stage divides by its radix. Turns of stages are of 30 bits,
    so that a high half is a quarter of the product, as a stage of radix four wants it; those of :meth:`times` are of 31 bits.
    """

    high: Callable[[Any, Any], Any]

    def times(self, a: Complex, b: Complex) -> Complex:
        """Half of a b."""
        return self.high(a[0], b[0]) - self.high(a[1], b[1]), self.high(a[0], b[1]) + self.high(a[1], b[0])

    def divided(self, a: Complex, by: int) -> Complex:
        return (a[0] + by // 2) >> by // 2, (a[1] + by // 2) >> by // 2

    def turned(self, a: Complex, by: int, turn: Complex) -> Complex:
        """A stage of radix two is the first one, and turns nothing."""
        return self.times(a, turn) if by == 4 else self.divided(a, by)

    def add(self, a: Complex, b: Complex) -> Complex:
        return a[0] + b[0], a[1] + b[1]

    def subtract(self, a: Complex, b: Complex) -> Complex:
        return a[0] - b[0], a[1] - b[1]

    def half(self, a: Any, b: Any) -> Any:
        """Half of a number and of b's double: b comes from :meth:`times`."""
        return ((a + 1) >> 1) + b

    def negative(self, a: Any) -> Any:
        return -a


class Real:
    """The same of floats, which need no division."""

    def times(self, a: Complex, b: Complex) -> Complex:
        return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]

    def divided(self, a: Complex, by: int) -> Complex:
        return a

    def turned(self, a: Complex, by: int, turn: Complex) -> Complex:
        return self.times(a, turn)

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


def high_arithmetic(*, loops: bool) -> Arithmetic:
    """32-bit numbers, by high halves of products."""
    if loops:
        return High(lambda a, b: ir.call("high_mul_round", a, b))
    return High(lambda a, b: (np.asarray(a, np.int64) * np.asarray(b, np.int64) + (1 << 31)) >> 32)


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

    def turned(self, a: Complex, by: int, turn: Complex) -> Complex:
        return self.held.pair(self.inner.turned(a, by, turn))

    def add(self, a: Complex, b: Complex) -> Complex:
        return self.held.pair(self.inner.add(a, b))

    def subtract(self, a: Complex, b: Complex) -> Complex:
        return self.held.pair(self.inner.subtract(a, b))

    def half(self, a: Any, b: Any) -> Any:
        return self.held.name(self.inner.half(a, b))

    def negative(self, a: Any) -> Any:
        return self.held.name(self.inner.negative(a))
