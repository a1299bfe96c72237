"""Sums of bytes by pairs of 16-bit numbers: a ``vectorized`` loop of four that stores sums and differences of widened bytes.

    for c in 4: p[.. crossed c ..] = int16(int32(a[c]) - int32(b[c]))

becomes two words: ``evens`` of a loaded word gives its bytes 0 and 2 as a pair, ``odds`` 1 and 3, ``add_i16x2`` and
``sub_i16x2`` compute with pairs; both are what narrowing the exact result to int16 gives. A schedule lays the destination out
for it: elements 0, 2, 1, 3 in this order, at whole words. The loop may hold unrolled loops, which do not change.
"""

from __future__ import annotations

from math import prod

from microc.tir import ir
from microc.tir.affine import linear, simplify
from microc.tir.lower.region import flat_step
from microc.tir.rewrite import free_vars, substitute

LANES = 4
CROSSED = (0, 2, 1, 3)
_WIDENED = {"int8": "i8", "uint8": "u8"}
_LANEWISE = {"add": "add_i16x2", "sub": "sub_i16x2"}


def pairs_of_sums(loop: ir.For) -> ir.Stmt | None:
    """The loop as two stores of words; None when it has another form."""
    if ir.int_value(loop.extent) != LANES:
        return None
    halves = [_half(loop.body, loop.var, half) for half in (0, 1)]
    return ir.seq(*halves) if None not in halves else None


def _half(stmt: ir.Stmt, var: ir.Var, half: int) -> ir.Stmt | None:
    """The statement for elements ``half`` and ``half + 2``."""
    match stmt:
        case ir.For(inner, extent, body, "unrolled", annotations):
            part = _half(body, var, half)
            return None if part is None else ir.For(inner, extent, part, "unrolled", annotations)
        case ir.Store(buffer, indices, ir.Cast("int16", value)) if buffer.dtype == "int16":
            pair = _pair(value, var, half)
            places = [simplify(_flat(buffer, indices, var, k) - _flat(buffer, indices, var, 0)) for k in range(LANES)]
            if pair is None or [ir.int_value(p) for p in places] != list(CROSSED) or not _even(buffer, indices, var):
                return None
            at = {var: ir.const(half, "int32")}
            target = ir.AddressOf(buffer, tuple(simplify(substitute(i, at)) for i in indices), 2, writes=True)
            return ir.Evaluate(ir.Call("store_i16x2_aligned", (target, pair), "int32"))
        case _:
            return None


def _pair(value: ir.Expr, var: ir.Var, half: int) -> ir.Expr | None:
    """The pair of values at elements ``half`` and ``half + 2``."""
    match value:
        case ir.Bin(("add" | "sub") as op, a, b):
            first, second = _pair(a, var, half), _pair(b, var, half)
            return None if first is None or second is None else ir.Call(_LANEWISE[op], (first, second), "int32")
        case ir.Select(condition, a, b) if var not in free_vars(condition):
            first, second = _pair(a, var, half), _pair(b, var, half)
            return None if first is None or second is None else ir.Select(condition, first, second)
        case ir.Cast("int32", ir.Load(buffer, indices)) if buffer.dtype in _WIDENED:
            if flat_step(buffer, indices, var) != 1:
                return None
            kind = _WIDENED[buffer.dtype]
            start = tuple(simplify(substitute(i, {var: ir.const(0, "int32")})) for i in indices)
            word = ir.Call(f"load_{kind}x4", (ir.AddressOf(buffer, start, LANES),), "int32")
            return ir.Call(f"{'odds' if half else 'evens'}_{kind}", (word,), "int32")
        case _:
            return None


def _flat(buffer: ir.Buffer, indices: tuple[ir.Expr, ...], var: ir.Var, lane: int) -> ir.Expr:
    """The element's number in the buffer's memory."""
    total: ir.Expr = ir.const(0, "int32")
    for axis, index in enumerate(indices):
        total = total + substitute(index, {var: ir.const(lane, "int32")}) * prod(buffer.shape[axis + 1 :])
    return total


def _even(buffer: ir.Buffer, indices: tuple[ir.Expr, ...], var: ir.Var) -> bool:
    """Whether the first element lies at a whole word, as the buffer's start does."""
    terms, offset = linear(simplify(_flat(buffer, indices, var, 0)))
    return not any(factor % 2 for factor in (*terms.values(), offset))
