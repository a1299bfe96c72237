"""Loads and stores of whole words, on cores that allow them at any address; runs of memory by words where both ends allow it, on
cores that do not."""

from __future__ import annotations

from microc.schedule.intrinsics.base import ANY, Intrin, Turns, i32, pack16, sign8, sign16
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Var

_A = Var("a")


def _bytes(p: Buffer) -> Expr:
    """Four bytes from ``p`` on as a little-endian word."""
    parts = [p[k].astype("int32") & 0xFF for k in range(4)]
    top = sign8(parts[3])
    return parts[0] | (parts[1] * 256) | (parts[2] * 65536) | (top * 16777216)


def _load(name: str, dtype: str) -> Intrin:
    pointer = Buffer("p", (4,), dtype)
    body = "int32_t r;\n(void)memcpy(&r, p, sizeof r);\nreturn r;"
    return Intrin(name, (pointer,), _bytes(pointer), "unaligned", "defined(__ARM_FEATURE_UNALIGNED)", body)


def _store(name: str, dtype: str) -> Intrin:
    """Four bytes of a little-endian word to ``p``."""
    pointer = Buffer("p", (4,), dtype)
    parts = [ir.Store(pointer, (i32(k),), _low_byte(_A >> (8 * k), dtype)) for k in range(4)]
    body = "(void)memcpy(p, &a, sizeof a);"
    return Intrin(name, (pointer, _A), ir.seq(*parts), "unaligned", "defined(__ARM_FEATURE_UNALIGNED)", body)


def _low_byte(x: Expr, dtype: str) -> Expr:
    return ir.cast(dtype, sign8(x) if dtype == "int8" else x & 0xFF)


def _load16(name: str, body: str) -> Intrin:
    pointer = Buffer("p", (2,), "int16")
    low, high = pointer[0].astype("int32"), pointer[1].astype("int32")
    return Intrin(name, (pointer,), pack16(low, high), "unaligned", "defined(__ARM_FEATURE_UNALIGNED)", body)


def _store16(name: str, body: str) -> Intrin:
    """Two 16-bit numbers of a word to ``p``."""
    pointer = Buffer("p", (2,), "int16")
    parts = (ir.Store(pointer, (i32(k),), sign16(_A >> (16 * k)).astype("int16")) for k in range(2))
    return Intrin(name, (pointer, _A), ir.seq(*parts), "unaligned", "defined(__ARM_FEATURE_UNALIGNED)", body)


ALIGNED_WORD = "typedef int32_t __attribute__((may_alias)) word;\n"
"""A word at a multiple of four bytes, of whatever type its bytes are. (With ``memcpy`` of an assumed alignment gcc keeps every
address in a register of its own.)"""

_MOVE = """typedef uint32_t __attribute__((may_alias)) word;
int32_t k = 0;
if ((((uintptr_t)p ^ (uintptr_t)q) & 3u) == 0u) {
    for (; k < n && ((uintptr_t)&p[k] & 3u) != 0u; ++k) {
        p[k] = q[k];
    }
    for (; n - k >= STEP; k += STEP) {
        word *to = (word *)(void *)&p[k];
        const word *from = (const word *)(const void *)&q[k];
        const word a = from[0], b = from[1], c = from[2], d = from[3];
        to[0] = a;
        to[1] = b;
        to[2] = c;
        to[3] = d;
    }
}
for (; n - k >= 4; k += 4) {
    p[k] = q[k];
    p[k + 1] = q[k + 1];
    p[k + 2] = q[k + 2];
    p[k + 3] = q[k + 3];
}
for (; k < n; ++k) {
    p[k] = q[k];
}"""
"""Turns are read before they are written, from the first to the last, so that memory may move down over itself."""


def _move(name: str, dtype: str, step: int) -> Intrin:
    """``n`` elements from ``q`` to ``p``."""
    p, q, k, n = Buffer("p", (ANY,), dtype), Buffer("q", (ANY,), dtype), Var("k"), Var("n")
    meaning = ir.For(k, n, ir.Store(p, (k,), q[k]))
    turns = Turns("n", step, (("load", 4), ("store", 4), ("alu", 3), ("branch", 1)))
    body = _MOVE.replace("STEP", str(step))
    costs = (("alu", 14), ("branch", 6))
    return Intrin(name, (p, q, n), meaning, "words", "defined(__GNUC__)", body, costs, turns=turns, apart=True)


WORDS = (
    _move("move_i8", "int8", 16),
    _move("move_u8", "uint8", 16),
    _move("move_i16", "int16", 8),
    _move("move_u16", "uint16", 8),
    _load("load_i8x4", "int8"),
    _load("load_u8x4", "uint8"),
    _load16("load_i16x2", "int32_t r;\n(void)memcpy(&r, p, sizeof r);\nreturn r;"),
    _load16("load_i16x2_aligned", f"{ALIGNED_WORD}return *(const word *)(const void *)p;"),
    _store16("store_i16x2", "(void)memcpy(p, &a, sizeof a);"),
    _store16("store_i16x2_aligned", f"{ALIGNED_WORD}*(word *)(void *)p = a;"),
    _store("store_i8x4", "int8"),
    _store("store_u8x4", "uint8"),
)
