"""Constants of float32 in 16 bits: one by one, or two float16 in a word, for cores that widen either half of a register."""

from __future__ import annotations

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.errors import ScheduleError
from microc.tir import ir
from microc.tir.affine import simplify

WORDS = "float16x2"
"""Neighbours along the last axis, an even number of them, the first one lowest: words that TIR knows as int32, and once they are
loaded as the float of these bits, for instructions take halves out of registers of floats. It is no NaN, since no half is one."""
FORMS = (*dtypes.HALF, WORDS)


def stored_in(buffer: ir.Buffer, form: str) -> str:
    """The dtype of a constant's elements in a form; ScheduleError for a buffer that has none."""
    if buffer.scope != "const" or buffer.dtype != "float32":
        raise ScheduleError(f"set_dtype: {buffer.name!r} is no constant of float32, which {form} may hold")
    if form == WORDS and (not buffer.shape or buffer.shape[-1] % 2):
        raise ScheduleError(f"set_dtype: the last axis of {buffer.name!r} is odd", hint="store it as float16")
    return "int32" if form == WORDS else form


def word_of(buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> ir.Expr:
    """The number at ``indices`` of what ``buffer`` has two to a word of."""
    *rows, last = indices
    word = ir.reinterpret("float32", ir.Load(buffer, (*rows, simplify(last // 2))))
    first, second = (ir.Call(f"float16_{half}", (word,), "float32") for half in ("low", "high"))
    return ir.select(ir.binary("eq", simplify(last % 2), 0), first, second)


def halves_of(array: Array, form: str) -> Array:
    """The elements of a constant in a form; ScheduleError where that does not hold every number."""
    dtype = "float16" if form == WORDS else form
    if not dtypes.keeps(array, dtype):
        raise ScheduleError(f"set_dtype: {dtype} does not hold every number", hint="round them first")
    found = dtypes.narrowed(array, dtype)
    if form != WORDS:
        return found
    bits = found.view(np.uint16).astype(np.uint32)
    words: Array = (bits[..., ::2] | bits[..., 1::2] << 16).view(np.int32)
    return words
