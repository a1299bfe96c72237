"""exp of float32 numbers that are not positive, in arithmetic that any core has: what softmax asks for, without the library.

    exp(x) = 2**n p(x - n ln 2),    n = round(x / ln 2),

with a polynomial p of degree 5 on -ln 2 / 2 .. ln 2 / 2, one at zero, of the least relative error, 9.2e-8. The product n ln 2 is
rounded once, relative to x; since -x e**x is 1 / e at most, the error of exp stays below 2e-7 for every x. Powers of two are
made of the bits that adding 1.5 * 2**23 leaves, so that NaN is no number to convert, and comes out again.
"""

from __future__ import annotations

from math import log

from microc.fixed import TO_WHOLE
from microc.tir import ir
from microc.tir.ir import Expr

_LEAST = -87.0
"""Where results are taken for zero: below, powers of two leave the normal numbers."""
_POLYNOMIAL = (0.008290272, 0.04189816, 0.16667638, 0.49999148, 0.9999997, 1.0)
_EXPONENT_BITS, _ONE = 23, 127 << 23
"""Where a float32 keeps its exponent, and the bits of 1.0; the bits of 1.5 * 2**23 vanish when shifted as far."""


def exp_of_negative(x: Expr) -> Expr:
    """exp(x) of a float32 x <= 0, or NaN."""
    moved = x * (1 / log(2)) + TO_WHOLE
    rest = x - (moved - TO_WHOLE) * log(2)
    value: Expr = ir.const(_POLYNOMIAL[0], "float32")
    for coefficient in _POLYNOMIAL[1:]:
        value = value * rest + coefficient
    bits = (ir.reinterpret("uint32", moved) << _EXPONENT_BITS) + _ONE
    return ir.select(x < _LEAST, ir.const(0.0, "float32"), value * ir.reinterpret("float32", bits))
