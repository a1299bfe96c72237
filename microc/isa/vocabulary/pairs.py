"""Words of the vocabulary on the lanes of a 32-bit word: pairs of 16-bit numbers, four bytes.

``dot2(a, b, c)`` adds both products of two pairs, ``mac_low_high`` that of one half each; ``dot4_<s>(a, b, c)`` adds the
products of four bytes, of ``a`` unsigned in ``dot4_u8``, of ``b`` signed; ``dot4_i16_aligned(p, a, b, c)`` those of four 16-bit
numbers in memory, at a multiple of four bytes, by the pairs ``a`` and ``b``. ``evens`` and ``odds`` widen bytes 0 and 2, or 1 and
3, to a pair, ``widen`` four bytes to four numbers in memory. ``add_i16x2``, ``max_u8x4`` and their like work lane by lane.
"""

from __future__ import annotations

from collections.abc import Iterator

from microc.isa.base import SUMS, A, B, C, Intrin, i32, pack16, sign8, sign16
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Var

_Z = Var("z")
_HALVES = {"low": (sign16(A), sign16(B)), "high": (A >> 16, B >> 16)}
_PRODUCTS = tuple(a * b for a, b in _HALVES.values())
_FOUR = Buffer("p", (4,), "int16")


def _widen(name: str, signed: bool, less: bool = False) -> Intrin:
    """Four bytes of a word become four 16-bit numbers in memory, in their order; ``p`` lies at a multiple of four bytes.
    ``less``: minus the number that ``z`` holds twice."""
    pointer = Buffer("p", (4,), "int16")

    def element(k: int) -> Expr:
        part = A >> (8 * k)
        value = sign8(part) if signed else part & 0xFF
        return ir.cast("int16", value - sign16(_Z) if less else value)

    stores = (ir.Store(pointer, (i32(k),), element(k)) for k in range(4))
    return Intrin(name, (pointer, A, *((_Z,) if less else ())), ir.seq(*stores))


def _larger(name: str, lanes: int, *, signed: bool, smallest: bool) -> Intrin:
    """The larger number of every lane of two words, or the smaller."""
    bits = 32 // lanes
    mask, sign = (1 << bits) - 1, 1 << (bits - 1)

    def lane(word: Expr, k: int) -> Expr:
        part = (word >> (bits * k)) & mask
        return (part ^ sign) - sign if signed else part

    total: Expr = i32(0)
    for k in range(lanes):
        found: Expr = ir.binary("min" if smallest else "max", lane(A, k), lane(B, k))
        found = found if k < lanes - 1 or signed else (found ^ sign) - sign
        total = total | ((found & mask) * (1 << (bits * k)) if k < lanes - 1 else found * (1 << (bits * k)))
    return Intrin(name, (A, B), total)


def _widenings() -> Iterator[Intrin]:
    for short, signed in (("i8", True), ("u8", False)):
        yield _widen(f"widen_{short}x4", signed)
        yield _widen(f"widen_less_{short}x4", signed, less=True)
        for name, first in (("evens", 0), ("odds", 8)):
            word = A >> first if first else A
            pair = pack16(sign8(word), sign8(A >> (first + 16))) if signed else word & 0x00FF00FF
            yield Intrin(f"{name}_{short}", (A,), pair)


def _wrapping(*products: Expr) -> Expr:
    """``c`` and products of 32 bits, modulo 2**32."""
    return sum((product.astype("int64") for product in products), C.astype("int64")).astype("int32")


def _dot4(signed: bool) -> Expr:
    parts = ((sign8(A >> k) if signed else (A >> k) & 0xFF) * sign8(B >> k) for k in (0, 8, 16, 24))
    return C + sum(parts, i32(0))


PAIRS = (
    *(
        _larger(f"{name}_{letter}{bits}x{32 // bits}", 32 // bits, signed=letter == "i", smallest=name == "min")
        for name in ("max", "min")
        for letter, bits in (("i", 8), ("u", 8), ("i", 16))
    ),
    Intrin("add_i16x2", (A, B), pack16(sign16(A) + sign16(B), sign16((A >> 16) + (B >> 16)))),
    Intrin("sub_i16x2", (A, B), pack16(sign16(A) - sign16(B), sign16((A >> 16) - (B >> 16)))),
    *_widenings(),
    Intrin("dot2", (A, B, C), C + _PRODUCTS[0] + _PRODUCTS[1], limits=SUMS),
    Intrin("dot2_wrapping", (A, B, C), _wrapping(*_PRODUCTS)),
    Intrin(
        "dot4_i16_aligned",
        (_FOUR, A, B, C),
        _wrapping(
            *(
                ir.Load(_FOUR, (i32(k),)).astype("int32") * half
                for k, half in enumerate((sign16(A), A >> 16, sign16(B), B >> 16))
            )
        ),
    ),
    *(
        Intrin(f"mac_{left}_{right}", (A, B, C), C + _HALVES[left][0] * _HALVES[right][1], limits=SUMS)
        for left in _HALVES
        for right in _HALVES
    ),
    Intrin("dot4_i8", (A, B, C), _dot4(signed=True), limits=SUMS),
    Intrin("dot4_u8", (A, B, C), _dot4(signed=False), limits=SUMS),
)
