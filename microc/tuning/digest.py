"""Around a candidate on a board: its output is wiped before, and digested behind, so that a line carries four bytes of it.

Equal outputs have equal digests, so one that was read and found right speaks for all that are digested alike, in later images,
too. Of outputs that differ in one word digests always differ, as the multiplier is odd; of others all but one in 2 ** 32.
"""

from __future__ import annotations

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.tir import builders, ir
from microc.tir.ir import Buffer, Expr, For, PrimFunc, Stmt, Store, Var

WORD = "uint32"
_MULTIPLIER = 0x01000193  # the prime of FNV-1a
_WIPED = 0x55  # what memory of workspaces holds in the interpreter, too


def wipe_func(dtype: str, elements: int) -> PrimFunc:
    """All of ``values`` made what a candidate before has hardly left there."""
    values, i = Buffer("values", (elements,), dtype), Var("i")
    wiped = ir.const(dtype == "bool" or _WIPED, dtype)
    return PrimFunc("wipe", (values,), For(i, ir.const(elements, "int32"), Store(values, (i,), wiped)))


def digest_func(dtype: str, elements: int) -> PrimFunc:
    """``digest[0]`` of ``values``: ``digest * multiplier + word`` over the words of all elements, in order."""
    values, digest, i = Buffer("values", (elements,), dtype), Buffer("digest", (1,), WORD), Var("i")
    place = (ir.const(0, "int32"),)

    def added(word: Expr) -> Stmt:
        return Store(digest, place, digest[place] * ir.const(_MULTIPLIER, WORD) + word)

    steps = builders.seq(*map(added, _words(values[i], dtype)))
    begin = Store(digest, place, ir.const(1, WORD))
    return PrimFunc("digest", (values, digest), builders.seq(begin, For(i, ir.const(elements, "int32"), steps)))


def digest_of(values: Array) -> int:
    """What :func:`digest_func` makes of an array of this computer."""
    bits = 8 * values.dtype.itemsize
    raw = values.reshape(-1) if values.dtype.kind == "i" else values.reshape(-1).view(f"u{bits // 8}")
    words = raw.astype(WORD) if bits <= 32 else raw.view(WORD)
    terms = np.append(np.ones(1, WORD), words)
    powers = np.full(terms.size, _MULTIPLIER, WORD)
    powers[0] = 1
    return int((terms * powers.cumprod(dtype=WORD)[::-1]).sum(dtype=WORD))


def _words(value: Expr, dtype: str) -> list[Expr]:
    """The bits of an element."""
    bits = 8 * dtypes.nbytes(dtype)
    if dtypes.is_float(dtype):
        value = builders.reinterpret(f"uint{bits}", value)
    if bits <= 32:
        return [ir.cast(WORD, value)]
    whole = ir.cast(f"uint{bits}", value)
    return [ir.cast(WORD, whole), ir.cast(WORD, ir.binary("shr", whole, ir.const(32, whole.dtype)))]
