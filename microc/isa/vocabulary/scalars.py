"""Words of the vocabulary on single numbers: high halves of products, saturation, floats to integers.

``high_mul_round(a, b)`` is (a b + 2**31) >> 32, ``high_product`` the high half that is rounded down; ``high_mac_round`` and
``high_mac`` add them. ``saturate_<t>`` clamps to the dtype, ``_half`` after a shift by one; ``clamp8`` is the same as
``saturate_i8``, where most values pass. ``hold`` keeps a number in a register, where instructions that shift an operand want it.
``float16_low`` and ``float16_high`` widen the half floats in a word, which is a float by its bits.
``high_mul(x, m)``: round(x m / 2**31), ties upwards, for |x| < 2**30 and m >= 0; ``product_2_31(x, m)``: the same rounded down;
``product_2_30(x, m)``: floor(x m / 2**30) for |x| <= 2**20: for cores that multiply 32 by 32 bits to 32, where 64-bit products
are calls.

With x = 2**15 h + l and m = 2**16 u + v, where 0 <= l < 2**15, 0 <= v < 2**16 and 0 <= u < 2**15,

    x m / 2**16  =  2**15 h u + l u + (h v + l v / 2**15) / 2,

and a floor may be taken at every division by a power of two, for what is added outside is an integer. For |x| < 2**30 each
product and each sum fits 32 signed bits: l u < 2**30, l v < 2**31, |h v + 2**16| <= 2**31 - 1, and the half of that plus l u
plus 2**14 stays below 2**31.

For |x| <= 2**20 there are fewer: m in thirds, m = 2**20 a + 2**10 b + c with a < 2**11 and b, c < 2**10, gives

    floor(x m / 2**20)  =  x a + floor((x b + floor(x c / 2**10)) / 2**10),

where |x c| < 2**30, |x b| + 2**20 <= 2**30, and the sum is x m / 2**20 rounded down, within 32 signed bits.
"""

from __future__ import annotations

from collections.abc import Iterator

from microc.isa.base import SUMS, A, B, C, Intrin, i32
from microc.tir import ir
from microc.tir.ir import Var

SATURATED = {"saturate_i8": (-128, 127), "saturate_u8": (0, 255), "saturate_i16": (-32768, 32767)}
"""What words clamp to."""
_F, _X, _M = Var("x", "float32"), Var("x"), Var("m")
_END = float(1 << 31)
_H, _L = _X >> 15, _X & 0x7FFF
_U, _V = _M >> 16, _M & 0xFFFF
_MANTISSA = ("m", 0, (1 << 31) - 1)
_HALVES = (("x", -(1 << 30), (1 << 30) - 1), _MANTISSA)
_WIDE = A.astype("int64") * B.astype("int64")
_TOP = _H * _U
_REST = _L * _U + ((_H * _V + ((_L * _V) >> 15)) >> 1)
"""x m / 2**31 as an integer and a number of 2**-15."""
_ROUNDED = (_WIDE >> 32).astype("int32") + ((_WIDE >> 31) & 1).astype("int32")
"""The high half rounded half up: plus the highest bit of the low half, which needs no carry."""
_NEAREST = ir.select(
    _F < _END,
    ir.select(_F >= -_END, ir.cast("int32", ir.call("rint", _F)), ir.const(-(1 << 31), "int32")),
    ir.select(_F >= _END, i32((1 << 31) - 1), 0),
)
"""Half to even, saturating; NaN, which is neither below nor above, becomes 0."""


def _saturation() -> Iterator[Intrin]:
    for name, (low, high) in SATURATED.items():
        yield Intrin(name, (A,), ir.clamp(A, low, high))
        yield Intrin(f"{name}_half", (A,), ir.clamp(A >> 1, low, high))


_BITS = ir.reinterpret("int32", _F)


def _half(bits: ir.Expr) -> ir.Expr:
    return ir.cast("float32", ir.reinterpret("float16", ir.cast("uint16", bits)))


SCALARS = (
    *_saturation(),
    Intrin("clamp8", (A,), ir.clamp(A, -128, 127)),
    Intrin("nearest_i32", (_F,), _NEAREST),
    Intrin("hold", (A,), A),
    Intrin("float16_low", (_F,), _half(_BITS & 0xFFFF)),
    Intrin("float16_high", (_F,), _half(_BITS >> 16 & 0xFFFF)),
    Intrin("mul_i8", (A, B), A * B, limits=(("a", -128, 127), ("b", -128, 127))),
    Intrin("mul_i8_u8", (A, B), A * B, limits=(("a", -128, 127), ("b", 0, 255))),
    Intrin("high_mul_round", (A, B), _ROUNDED),
    Intrin("high_product", (A, B), (_WIDE >> 32).astype("int32")),
    Intrin("high_mac", (A, B, C), C + (_WIDE >> 32).astype("int32"), limits=SUMS),
    Intrin("high_mac_round", (A, B, C), C + _ROUNDED, limits=SUMS),
    Intrin("high_mul", (_X, _M), _TOP + ((_REST + (1 << 14)) >> 15), limits=_HALVES),
    Intrin("product_2_31", (_X, _M), _TOP + (_REST >> 15), limits=_HALVES),
    Intrin(
        "product_2_30",
        (_X, _M),
        (_X * (_M >> 20) + ((_X * (_M >> 10 & 1023) + ((_X * (_M & 1023)) >> 10)) >> 10)) >> 10,
        limits=(("x", -(1 << 20), 1 << 20), _MANTISSA),
    ),
)
