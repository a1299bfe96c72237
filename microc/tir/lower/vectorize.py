"""``vectorized`` loops: copies and fills go word by word, everything else runs as an ordinary loop.

Bytes are moved by the intrinsics ``load_<t>x4`` and ``store_<t>x4`` (``t`` is ``i8`` or ``u8``); a schedule marks loops
``vectorized`` where the core loads and stores unaligned words. Copies of bytes to 16-bit numbers (``widen_<t>x4``, less a number
``widen_less_<t>x4``) are for cores with DSP instructions; their destination must lie at whole words. Elements that are words
already are moved four at a time, wherever they lie.
"""

from __future__ import annotations

from math import prod

from microc import dtypes
from microc.tir import ir
from microc.tir.affine import linear, simplify
from microc.tir.lower.pairs import pairs_of_sums
from microc.tir.lower.region import address, consecutive
from microc.tir.rewrite import map_stmt, substitute

LANES = 4
SHORT = 16
"""Copies of at most this many elements that no word can move are unrolled."""
_TYPES = {"int8": "i8", "uint8": "u8"}


def lower_vectorized(stmt: ir.Stmt) -> ir.Stmt:
    """``stmt`` without ``vectorized`` loops."""

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        if not isinstance(s, ir.For) or s.kind != "vectorized":
            return s
        return _words(s) or pairs_of_sums(s) or ir.For(s.var, s.extent, s.body, "serial", s.annotations)

    return map_stmt(stmt, on_stmt)


def _words(loop: ir.For) -> ir.Stmt | None:
    """The loop as words and a rest of single elements; None when it is no copy or fill of consecutive elements."""
    extent, store = ir.int_value(loop.extent), loop.body
    if extent is None or not isinstance(store, ir.Store):
        return None
    if dtypes.nbytes(store.buffer.dtype) == LANES and isinstance(store.value, (ir.Load, ir.Const)):
        return _whole_words(store, loop.var, extent)
    if not consecutive(store.indices, loop.var):
        return None
    word = ir.Var(loop.var.name, loop.var.dtype)
    move = _moved(store, loop.var, word) if extent >= LANES else None
    count = extent // LANES
    if move is None:
        return _runs(loop, store, word, extent) if _widens(store) else None
    body: ir.Stmt = ir.For(word, ir.const(count, "int32"), move, "serial" if count > 4 else "unrolled")
    return ir.seq(body, _elements(store, loop.var, count * LANES, extent))


def _runs(loop: ir.For, store: ir.Store, word: ir.Var, extent: int) -> ir.Stmt:
    """A copy that no word can move: some elements at a time, so that the loop costs little."""
    if extent <= SHORT:
        return _elements(store, loop.var, 0, extent)
    run = next((n for n in range(SHORT, SHORT // 2, -1) if extent % n == 0), SHORT // 2)
    count = extent // run
    body = ir.seq(*(_element(store, {loop.var: word * run + k}) for k in range(run)))
    rest = _elements(store, loop.var, count * run, extent)
    return ir.seq(ir.For(word, ir.const(count, "int32"), body), rest)


def _whole_words(store: ir.Store, var: ir.Var, extent: int) -> ir.Stmt:
    """A copy of 32-bit elements, four to an iteration."""
    word = ir.Var(var.name, var.dtype)
    count = extent // LANES
    four = ir.seq(*(_element(store, {var: word * LANES + k}) for k in range(LANES)))
    body = ir.For(word, ir.const(count, "int32"), four, "serial" if count > 4 else "unrolled")
    return ir.seq(body, _elements(store, var, count * LANES, extent))


def _widens(store: ir.Store) -> bool:
    return store.buffer.dtype == "int16" and isinstance(store.value, (ir.Cast, ir.Const))


def _moved(store: ir.Store, var: ir.Var, word: ir.Var) -> ir.Stmt | None:
    """Four elements from four times ``word`` on."""
    at: dict[ir.Var, ir.Expr] = {var: word * LANES}
    target = address(store.buffer, store.indices, at, LANES, writes=True)
    kind = _TYPES.get(store.buffer.dtype)
    match store.value:
        case ir.Const(int() as value) if kind is not None:
            return ir.Evaluate(ir.Call(f"store_{kind}x4", (target, _repeated(value)), "int32"))
        case ir.Load(buffer, indices) if buffer.dtype == store.buffer.dtype and kind and consecutive(indices, var):
            source = ir.Call(f"load_{kind}x4", (address(buffer, indices, at, LANES, writes=False),), "int32")
            return ir.Evaluate(ir.Call(f"store_{kind}x4", (target, source), "int32"))
        case ir.Const(int() as value) if store.buffer.dtype == "int16" and -128 <= value <= 127 and _aligned(target):
            return ir.Evaluate(ir.Call("widen_i8x4", (target, _repeated(value)), "int32"))
        case ir.Cast("int16", value) if (found := _difference(value)) is not None and _aligned(target):
            (buffer, indices), less = (found[0].buffer, found[0].indices), found[1]
            if buffer.dtype not in _TYPES or not consecutive(indices, var):
                return None
            kind = _TYPES[buffer.dtype]
            source = ir.Call(f"load_{kind}x4", (address(buffer, indices, at, LANES, writes=False),), "int32")
            if less == 0:
                return ir.Evaluate(ir.Call(f"widen_{kind}x4", (target, source), "int32"))
            return ir.Evaluate(ir.Call(f"widen_less_{kind}x4", (target, source, _twice(less)), "int32"))
        case _:
            return None


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


def _twice(value: int) -> ir.Expr:
    """A word of two equal 16-bit numbers."""
    packed = (value & 0xFFFF) * 0x10001
    return ir.const(packed - (1 << 32) if packed >= 1 << 31 else packed, "int32")


def _repeated(value: int) -> ir.Expr:
    """A word of four equal bytes."""
    packed = (value & 0xFF) * 0x01010101
    return ir.const(packed - (1 << 32) if packed >= 1 << 31 else packed, "int32")


def _aligned(target: ir.AddressOf) -> bool:
    """Whether an address of 16-bit elements is a multiple of four bytes, as its buffer's start is."""
    for axis, index in enumerate(target.indices):
        terms, offset = linear(simplify(index))
        stride = prod(target.buffer.shape[axis + 1 :])
        if any(factor * stride % 2 for factor in (*terms.values(), offset)):
            return False
    return True


def _elements(store: ir.Store, var: ir.Var, start: int, stop: int) -> ir.Stmt:
    """Single elements, one after the other."""
    return ir.seq(*(_element(store, {var: ir.const(k, "int32")}) for k in range(start, stop)))


def _element(store: ir.Store, at: dict[ir.Var, ir.Expr]) -> ir.Stmt:
    return ir.Store(store.buffer, tuple(substitute(i, at) for i in store.indices), substitute(store.value, at))
