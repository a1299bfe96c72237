"""``vectorized`` loops: copies and fills go word by word, everything else runs as an ordinary loop.

Bytes are moved by the intrinsics ``load_<t>`` and ``store_<t>`` (``t`` is ``i8x4`` or ``u8x4``), 16-bit numbers by ``i16x2``; a
schedule marks loops ``vectorized`` where the core loads and stores unaligned words. What is done with words on their way is for
cores with DSP instructions: largest numbers (:mod:`microc.tir.lower.words`), and copies of bytes to 16-bit numbers
(``widen_<t>``, less a number ``widen_less_<t>``), whose destination must lie at whole words. Elements that are words already are
moved four at a time, wherever they lie.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from microc import dtypes
from microc.tir import ir
from microc.tir.affine import linear, simplify
from microc.tir.lower.pairs import pairs_of_sums
from microc.tir.lower.region import address, consecutive
from microc.tir.lower.unroll import unroll_loops
from microc.tir.lower.words import KINDS, Words, repeated, word_stores
from microc.tir.rewrite import map_stmt, substitute, substitute_stmt, walk_stmt

LANES = 4
FEW = 4
"""Words that are moved without a loop."""
MANY = 24
"""Words from which on four are moved in a turn, where that leaves none."""
MOST = 20
"""What is done with them in as many statements at most."""
_BYTES = ("int8", "uint8")
SHORT = 16
"""Copies of at most this many elements that no word can move are unrolled."""
GUARDED = 8
"""So are those of at most this many elements that a guard chooses one by one."""


def lower_vectorized(stmt: ir.Stmt) -> ir.Stmt:
    """``stmt`` without ``vectorized`` loops."""

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        if not isinstance(s, ir.For) or s.kind != "vectorized":
            return s
        return _words(s) or pairs_of_sums(s) or _guarded(s) or ir.For(s.var, s.extent, s.body, "serial", s.annotations)

    return map_stmt(stmt, on_stmt)


def _words(loop: ir.For) -> ir.Stmt | None:
    """The loop as words and a rest of single elements; None when words cannot do what it does. They share its registers."""
    if isinstance(loop.body, ir.Alloc) and loop.body.buffer.scope == "register":
        made = _words(replace(loop, body=loop.body.body))
        return made and ir.Alloc(loop.body.buffer, made)
    extent, store, word = ir.int_value(loop.extent), loop.body, ir.Var(f"{loop.var.name}_0", loop.var.dtype)
    if extent is None:
        return None
    found, widens = word_stores(loop.body, loop.var, word), isinstance(store, ir.Store) and _widens(store)
    if isinstance(store, ir.Store):
        if dtypes.nbytes(store.buffer.dtype) == LANES and isinstance(store.value, (ir.Load, ir.Const)):
            return _whole_words(loop, store, extent)
        found = _widened(store, loop.var, word) or found
    if found is not None and extent >= found[0]:
        lanes, move = found
        return ir.seq(_several(word, extent // lanes, move), _elements(loop, extent // lanes * lanes, extent))
    return _runs(loop, store, word, extent) if isinstance(store, ir.Store) and widens else None


def _guarded(loop: ir.For) -> ir.Stmt | None:
    """A few elements at a border, each copied or filled, one after the other: a loop would take half as long again."""
    extent, store = ir.int_value(loop.extent), loop.body
    if extent is None or extent > GUARDED or not isinstance(store, ir.Store) or not isinstance(store.value, ir.Select):
        return None
    return _elements(loop, 0, extent)


def _several(word: ir.Var, count: int, move: ir.Stmt) -> ir.Stmt:
    """A word after the other: a few without a loop, of many several in each turn where they are moved only."""
    long = sum(isinstance(s, (ir.Store, ir.Evaluate)) for s in walk_stmt(move))
    if count <= FEW and count * long <= MOST:
        return ir.For(word, ir.const(count, "int32"), move, "unrolled")
    size = FEW if count >= MANY and count % FEW == 0 else 2
    if count % size or long > 1:
        return ir.For(word, ir.const(count, "int32"), move)
    turn = ir.seq(*(substitute_stmt(move, {word: word * size + k}) for k in range(size)))
    return ir.For(word, ir.const(count // size, "int32"), turn)


def _runs(loop: ir.For, store: ir.Store, word: ir.Var, extent: int) -> ir.Stmt:
    """A copy that no word can move: some elements at a time, so that the loop costs little."""
    if extent <= SHORT:
        return _elements(loop, 0, extent)
    run = next((n for n in range(SHORT, SHORT // 2, -1) if extent % n == 0), SHORT // 2)
    count = extent // run
    body = ir.seq(*(_element(store, {loop.var: word * run + k}) for k in range(run)))
    rest = _elements(loop, count * run, extent)
    return ir.seq(ir.For(word, ir.const(count, "int32"), body), rest)


def _whole_words(loop: ir.For, store: ir.Store, extent: int) -> ir.Stmt:
    """A copy of 32-bit elements, four to an iteration."""
    word = ir.Var(f"{loop.var.name}_0", loop.var.dtype)
    count = extent // LANES
    four = ir.seq(*(_element(store, {loop.var: word * LANES + k}) for k in range(LANES)))
    body = ir.For(word, ir.const(count, "int32"), four, "serial" if count > 4 else "unrolled")
    return ir.seq(body, _elements(loop, count * LANES, extent))


def _widens(store: ir.Store) -> bool:
    return store.buffer.dtype == "int16" and isinstance(store.value, (ir.Cast, ir.Const))


def _widened(store: ir.Store, var: ir.Var, word: ir.Var) -> tuple[int, ir.Stmt] | None:
    """Four bytes from four times ``word`` on as 16-bit numbers."""
    if not _widens(store) or not consecutive(store.indices, var):
        return None
    target = address(store.buffer, store.indices, {var: word * LANES}, LANES, writes=True)
    match store.value:
        case ir.Const(int() as value) if -128 <= value <= 127:
            source: ir.Expr | None = repeated(value, "int8")
            kind, less = "i8x4", 0
        case ir.Cast("int16", value) if (found := _difference(value)) is not None and found[0].dtype in _BYTES:
            load, less = found
            source = Words(load.dtype, var, word * LANES).value(load)
            kind = KINDS[load.dtype]
        case _:
            return None
    if source is None or not _aligned(target):
        return None
    if less == 0:
        return LANES, ir.Evaluate(ir.Call(f"widen_{kind}", (target, source), "int32"))
    return LANES, ir.Evaluate(ir.Call(f"widen_less_{kind}", (target, source, repeated(less, "int16")), "int32"))


def _difference(value: ir.Expr) -> tuple[ir.Load, int] | None:
    """The element of which a number within 9 bits is taken, and that number."""
    match value:
        case ir.Load():
            return value, 0
        case ir.Cast("int32", ir.Load() as load):
            return load, 0
        case ir.Bin("sub", ir.Cast("int32", ir.Load() as load), ir.Const(int() as less)) if abs(less) < 256:
            return load, less
        case ir.Bin("add", ir.Cast("int32", ir.Load() as load), ir.Const(int() as more)) if abs(more) < 256:
            return load, -more
        case _:
            return None


def _aligned(target: ir.AddressOf) -> bool:
    """Whether an address of 16-bit elements is a multiple of four bytes, as its buffer's start is."""
    for axis, index in enumerate(target.indices):
        terms, offset = linear(simplify(index))
        stride = prod(target.buffer.shape[axis + 1 :])
        if any(factor * stride % 2 for factor in (*terms.values(), offset)):
            return False
    return True


def _elements(loop: ir.For, start: int, stop: int) -> ir.Stmt:
    """Single elements, one after the other."""
    if start == stop:
        return ir.seq()
    rest = ir.For(loop.var, ir.const(stop - start, "int32"), substitute_stmt(loop.body, {loop.var: loop.var + start}))
    return unroll_loops(replace(rest, kind="unrolled"))


def _element(store: ir.Store, at: dict[ir.Var, ir.Expr]) -> ir.Stmt:
    return ir.Store(store.buffer, tuple(substitute(i, at) for i in store.indices), substitute(store.value, at))
