"""Words of the vocabulary that reach memory: whole words loaded and stored, runs of memory moved or filled.

``load_i8x4`` gives four bytes as a little-endian word, ``store_i16x2`` stores two 16-bit numbers; an ``_aligned`` one does so
at a multiple of four bytes. ``move_<t>`` and ``copy_<t>`` bring ``n`` elements from ``q`` to ``p`` from the first to the last,
so that memory may move down over itself; ``fill_<t>`` stores one number. ``move`` is by words where both ends allow it,
``copy`` by vectors. ``copy_strided_<t>`` brings elements that lie ``step`` apart to neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator

from microc.isa.base import ANY, A, Intrin, i32, pack16, sign8, sign16
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Var

MOVED = {"int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16"}
COPIED = {**MOVED, "int32": "i32", "float32": "f32"}
"""What runs consist of, and how intrinsics are called by it."""
FARTHEST = ((1 << 16) - 1) // 7
"""The largest step of a strided copy: eight elements lie at offsets of 16 bits."""


def _bytes(p: Buffer) -> Expr:
    """Four bytes from ``p`` on as a little-endian word."""
    parts = [p[k].astype("int32") & 0xFF for k in range(4)]
    top = sign8(parts[3])
    return parts[0] | (parts[1] * 256) | (parts[2] * 65536) | (top * 16777216)


def _low_byte(x: Expr, dtype: str) -> Expr:
    return ir.cast(dtype, sign8(x) if dtype == "int8" else x & 0xFF)


def _words() -> Iterator[Intrin]:
    for dtype in ("int8", "uint8"):
        p = Buffer("p", (4,), dtype)
        stored = (ir.Store(p, (i32(k),), _low_byte(A >> (8 * k), dtype)) for k in range(4))
        yield Intrin(f"load_{MOVED[dtype]}x4", (p,), _bytes(p))
        yield Intrin(f"store_{MOVED[dtype]}x4", (p, A), ir.seq(*stored))
    for suffix in ("", "_aligned"):
        p = Buffer("p", (2,), "int16")
        stored = (ir.Store(p, (i32(k),), sign16(A >> (16 * k)).astype("int16")) for k in range(2))
        yield Intrin(f"load_i16x2{suffix}", (p,), pack16(p[0].astype("int32"), p[1].astype("int32")))
        yield Intrin(f"store_i16x2{suffix}", (p, A), ir.seq(*stored))


def _runs() -> Iterator[Intrin]:
    k, n, value, step = Var("k"), Var("n"), Var("value"), Var("step")
    for dtype, short in COPIED.items():
        p, q = Buffer("p", (ANY,), dtype), Buffer("q", (ANY,), dtype)
        moved = ir.For(k, n, ir.Store(p, (k,), q[k]))
        if dtype in MOVED:
            yield Intrin(f"move_{short}", (p, q, n), moved)
            apart = ir.For(k, n, ir.Store(p, (k,), q[k * step]))
            yield Intrin(f"copy_strided_{short}", (p, q, n, step), apart, limits=(("step", 1, FARTHEST),))
        yield Intrin(f"copy_{short}", (p, q, n), moved)
        if dtype != "float32":  # one number is an integer in a core register
            yield Intrin(f"fill_{short}", (p, value, n), ir.For(k, n, ir.Store(p, (k,), ir.cast(dtype, value))))


WORDS = (*_words(), *_runs())
