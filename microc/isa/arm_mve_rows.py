"""A row of bytes by many rows of weights on MVE: the row stays in vector registers while the weights pass, one after the other.

Two sums an iteration: one instruction loads what they start with and one stores them; of every vector of weights a load and a
product remain, where a product of one row by four loads five vectors for four products.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from microc.isa.base import Body, Turns
from microc.isa.vocabulary.products import ROW_DEPTHS, row_name

LANES = 16
_WEIGHTS, _AGAIN = 7, 6
"""Registers of a vector of weights, and of one of the row that has none of its own."""
_PAIR = ("c0", "c1")


def _body(depth: int) -> Body:
    vectors = depth // LANES
    kept = vectors if vectors <= _WEIGHTS else _AGAIN
    lines = [_row(k, k) for k in range(kept)]
    lines += ["dls lr, lr", "0:", "ldrd %[c0], %[c1], [%[start]], #8"]
    for total in _PAIR:
        for k in range(vectors):
            again = [] if k < kept else [_row(k, _AGAIN)]
            product = f"vmladava.s8 %[{total}], q{_AGAIN if again else k}, q{_WEIGHTS}"
            lines += [*again, f"vldrb.8 q{_WEIGHTS}, [%[b]], #{LANES}", product]
    lines += ["strd %[c0], %[c1], [%[sums]], #8", "le lr, 0b"]
    clobbers = ", ".join(f'"q{n}"' for n in range(_WEIGHTS + 1))
    text = "\n".join(
        (
            'register int32_t c0 __asm__("r8");',
            'register int32_t c1 __asm__("r10");',
            'register int32_t count __asm__("lr") = columns / 2;',
            "__asm__ volatile inline(",
            *(f'    "{line}\\n"' for line in lines),
            '    : [c0] "=&r"(c0), [c1] "=&r"(c1), [b] "+r"(b), [start] "+r"(start), [sums] "+r"(sums), "+r"(count)',
            '    : [a] "r"(a)',
            f'    : "memory", {clobbers});',
        )
    )
    loads = len(_PAIR) * (2 * vectors - kept)
    turn = (("load", 1), ("paired", 1), ("store", 1), ("vector_load", loads), ("vector", len(_PAIR) * vectors))
    return Body(text, (("vector_load", kept), ("alu", 4)), Turns("columns", len(_PAIR), (*turn, ("branch", 1))))


def _row(number: int, register: int) -> str:
    return f"vldrb.8 q{register}, [%[a], #{LANES * number}]"


ROW_BODIES: Mapping[str, Body] = MappingProxyType({row_name(depth): _body(depth) for depth in ROW_DEPTHS})
