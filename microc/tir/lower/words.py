"""Words of bytes or of 16-bit numbers: what a loop stores, computed for all lanes of a word at once.

Copies and constants are words as they are; largest and smallest numbers are found by ``max_<t>`` and ``min_<t>``, which cores
with DSP instructions have. A choice that does not depend on the loop chooses between words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from microc import dtypes
from microc.frozen import frozen
from microc.tir import ir
from microc.tir.fold import fits
from microc.tir.lower.region import address, consecutive
from microc.tir.lower.unroll import unroll_loops
from microc.tir.rewrite import free_vars

KINDS: Mapping[str, str] = {"int8": "i8x4", "uint8": "u8x4", "int16": "i16x2"}
"""How words of a dtype are called in the names of intrinsics."""


@frozen
class Words:
    """Computes what elements of ``dtype`` are where ``var`` is ``word`` and at the places after it, as one word.

    ``own``: registers that hold words (None), or still the one number that they start with.
    """

    dtype: str
    var: ir.Var
    word: ir.Expr
    own: dict[ir.Expr, int | None] = field(default_factory=dict)

    def value(self, value: ir.Expr) -> ir.Expr | None:
        """The word; None when it cannot be computed so."""
        match value:
            case ir.Const(int() as number) if fits(number, self.dtype):
                return repeated(number, self.dtype)
            case ir.Load() if value in self.own:
                held = self.own[value]
                return value if held is None else repeated(held, self.dtype)
            case ir.Load(buffer, indices) if buffer.dtype == self.dtype and consecutive(indices, self.var):
                lanes = 4 // dtypes.nbytes(self.dtype)
                place = address(buffer, indices, {self.var: self.word}, lanes, writes=False)
                return ir.Call(f"load_{KINDS[self.dtype]}", (place,), "int32")
            case ir.Cast("int32", ir.Load(buffer) as load) if buffer.dtype == self.dtype:
                return self.value(load)
            case ir.Cast(to, inner) if to == self.dtype and inner.dtype == "int32":
                return self.value(inner)
            case ir.Bin("max" | "min" as op, a, b):
                return self._picked(op, a, b)
            case ir.Select(condition, a, b) if self.var not in free_vars(condition):
                first, second = self.value(a), self.value(b)
                return None if first is None or second is None else ir.Select(condition, first, second)
            case _:
                return None

    def _picked(self, op: str, a: ir.Expr, b: ir.Expr) -> ir.Expr | None:
        low, high = dtypes.int_range(self.dtype)
        if self.own.get(a) == (low if op == "max" else high):
            return self.value(b)
        first, second = self.value(a), self.value(b)
        name = f"{op}_{KINDS[self.dtype]}"
        return None if first is None or second is None else ir.Call(name, (first, second), "int32")


def word_stores(body: ir.Stmt, var: ir.Var, word: ir.Var) -> tuple[int, ir.Stmt] | None:
    """The body of a loop over ``var`` for a word of what it stores, and the number of elements in that; None when it does more
    than fill registers and store one element to memory at last."""
    body = unroll_loops(body)
    stores = body.body if isinstance(body, ir.Seq) else (body,)
    last = stores[-1]
    if not isinstance(last, ir.Store) or last.buffer.dtype not in KINDS or not consecutive(last.indices, var):
        return None
    lanes = 4 // dtypes.nbytes(last.buffer.dtype)
    words, found = Words(last.buffer.dtype, var, word * lanes), list[ir.Store]()
    for store in stores:
        if not isinstance(store, ir.Store) or (store.buffer.scope == "register") != (store is not last):
            return None
        place, number = ir.Load(store.buffer, store.indices), ir.int_value(store.value)
        if store is not last and number is not None and fits(number, words.dtype):
            words.own[place] = number
            continue
        value = words.value(store.value)
        if value is None:
            return None
        words.own[place] = None
        found.append(ir.Store(store.buffer, store.indices, value))
    target = address(last.buffer, last.indices, {var: word * lanes}, lanes, writes=True)
    stored = ir.Evaluate(ir.Call(f"store_{KINDS[words.dtype]}", (target, found[-1].value), "int32"))
    return lanes, ir.seq(*found[:-1], stored)


def repeated(number: int, dtype: str) -> ir.Expr:
    """A word of equal numbers."""
    packed = (number & 0xFF) * 0x01010101 if dtypes.nbytes(dtype) == 1 else (number & 0xFFFF) * 0x10001
    return ir.const(packed - (1 << 32) if packed >= 1 << 31 else packed, "int32")
