"""Bodies that any compiler makes good code of: words at any address, on cores that allow it; runs of memory by words where both
ends allow it, on cores that do not."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from microc.isa.base import Body, Turns
from microc.isa.sets import InstructionSet

ALIGNED_WORD = "typedef int32_t __attribute__((may_alias)) word;\n"
"""A word at a multiple of four bytes, of whatever type its bytes are. (With ``memcpy`` of an assumed alignment gcc keeps every
address in a register of its own.)"""
_LOAD = Body("int32_t r;\n(void)memcpy(&r, p, sizeof r);\nreturn r;")
_STORE = Body("(void)memcpy(p, &a, sizeof a);")
ALIGNED: Mapping[str, Body] = MappingProxyType(
    {
        "load_i16x2_aligned": Body(f"{ALIGNED_WORD}return *(const word *)(const void *)p;", (("load", 1),)),
        "store_i16x2_aligned": Body(f"{ALIGNED_WORD}*(word *)(void *)p = a;", (("store", 1),)),
    }
)
UNALIGNED: Mapping[str, Body] = MappingProxyType(
    {
        **{
            f"{kind}_{lanes}": body
            for lanes in ("i8x4", "u8x4", "i16x2")
            for kind, body in (("load", _LOAD), ("store", _STORE))
        },
        **ALIGNED,
    }
)
"""Little-endian words."""

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


def _move(step: int) -> Body:
    turns = Turns("n", step, (("load", 4), ("store", 4), ("alu", 3), ("branch", 1)))
    return Body(_MOVE.replace("STEP", str(step)), (("alu", 14), ("branch", 6)), turns, apart=True)


WORD_MOVES = InstructionSet(
    "word moves",
    "defined(__GNUC__)",
    {f"move_{short}": _move(step) for short, step in (("i8", 16), ("u8", 16), ("i16", 8), ("u16", 8))},
    frozenset({"words"}),
)
