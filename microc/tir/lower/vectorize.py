"""``vectorized`` loops: copies and fills of bytes go word by word, everything else runs as an ordinary loop.

The words are moved by the intrinsics ``load_<t>x4`` and ``store_<t>x4`` (``t`` is ``i8`` or ``u8``); a schedule marks loops
``vectorized`` where the core loads and stores unaligned words.
"""

from __future__ import annotations

from microc.tir import ir
from microc.tir.affine import linear, simplify
from microc.tir.rewrite import free_vars, map_stmt, substitute

LANES = 4
_TYPES = {"int8": "i8", "uint8": "u8"}


def lower_vectorized(stmt: ir.Stmt) -> ir.Stmt:
    """``stmt`` without ``vectorized`` loops."""

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        if not isinstance(s, ir.For) or s.kind != "vectorized":
            return s
        return _words(s) or ir.For(s.var, s.extent, s.body, "serial", s.annotations)

    return map_stmt(stmt, on_stmt)


def _words(loop: ir.For) -> ir.Stmt | None:
    """The loop as words and a rest of bytes; None when it is no copy or fill of consecutive bytes."""
    extent, store = ir.int_value(loop.extent), loop.body
    if extent is None or extent < LANES or not isinstance(store, ir.Store) or store.buffer.dtype not in _TYPES:
        return None
    if not _consecutive(store.indices, loop.var):
        return None
    kind = _TYPES[store.buffer.dtype]
    word = ir.Var(loop.var.name, loop.var.dtype)
    at = {loop.var: word * LANES}
    match store.value:
        case ir.Const(value):
            byte = int(value) & 0xFF
            packed = byte * 0x01010101
            source: ir.Expr = ir.const(packed - (1 << 32) if packed >= 1 << 31 else packed, "int32")
        case ir.Load(buffer, indices) if buffer.dtype == store.buffer.dtype and _consecutive(indices, loop.var):
            source = ir.Call(f"load_{kind}x4", (_address(buffer, indices, at, writes=False),), "int32")
        case _:
            return None
    target = _address(store.buffer, store.indices, at, writes=True)
    moved = ir.Evaluate(ir.Call(f"store_{kind}x4", (target, source), "int32"))
    count = extent // LANES
    body: ir.Stmt = ir.For(word, ir.const(count, "int32"), moved, "serial" if count > 4 else "unrolled")
    rest = [_byte(store, {loop.var: ir.const(k, "int32")}) for k in range(count * LANES, extent)]
    return ir.seq(body, *rest)


def _byte(store: ir.Store, at: dict[ir.Var, ir.Expr]) -> ir.Stmt:
    return ir.Store(store.buffer, tuple(substitute(i, at) for i in store.indices), substitute(store.value, at))


def _address(
    buffer: ir.Buffer, indices: tuple[ir.Expr, ...], at: dict[ir.Var, ir.Expr], *, writes: bool
) -> ir.AddressOf:
    return ir.AddressOf(buffer, tuple(simplify(substitute(i, at)) for i in indices), LANES, writes)


def _consecutive(indices: tuple[ir.Expr, ...], var: ir.Var) -> bool:
    """Whether the last index moves by one with ``var`` and the others do not move."""
    for axis, index in enumerate(indices):
        terms, _ = linear(simplify(index))
        hidden = any(var in free_vars(t) for t in terms if t != var)
        if hidden or terms.get(var, 0) != (1 if axis == len(indices) - 1 else 0):
            return False
    return True
