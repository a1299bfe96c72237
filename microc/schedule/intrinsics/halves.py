"""The rounded high half of a product on cores that multiply 32 by 32 bits to 32 (Armv6-M), where 64-bit products are calls.

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

from microc.schedule.intrinsics.base import Intrin
from microc.tir.ir import Var

_X, _M = Var("x"), Var("m")
_H, _L = _X >> 15, _X & 0x7FFF
_U, _V = _M >> 16, _M & 0xFFFF

HALVES = (
    Intrin(
        "high_mul",
        (_X, _M),
        _H * _U + ((_L * _U + ((_H * _V + ((_L * _V) >> 15)) >> 1) + (1 << 14)) >> 15),
        "thumb1",
        "",
        "",
    ),
    Intrin(
        "product_2_30",
        (_X, _M),
        (_X * (_M >> 20) + ((_X * (_M >> 10 & 1023) + ((_X * (_M & 1023)) >> 10)) >> 10)) >> 10,
        "thumb1",
        "",
        "",
    ),
)
"""``high_mul(x, m)``: round(x m / 2**31), ties upwards, for |x| < 2**30 and m >= 0. ``product_2_30(x, m)``:
floor(x m / 2**30) for |x| <= 2**20. They have no body but their meaning."""
