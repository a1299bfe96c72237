# SPDX-License-Identifier: Apache-2.0
"""Intrinsics whose C bodies are portable and compile to good code, and the costs of library functions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from microc.isa.instruction_set import Body, BodyLoop, InstructionSet

# ---- Costs of library functions, in instructions

SOFT_FLOAT = {
    "call_float_add": 53.0,
    "call_float_multiply": 33.0,
    "call_float_divide": 149.0,
    "call_float_compare": 37.0,
    "call_float_convert": 25.0,
}
"""Instructions of libgcc's float functions for Armv7-M, including the moves of arguments and the test of a
comparison's result. Measured by ``benchmarks/maintain/soft_floats.py`` with gcc 12.2 and normal operands. Another libgcc must
be measured again."""
LIBRARY = {"call_math": 60.0, "call_sqrt": 16.0, "call_rint": 20.0, "call_divide_long": 120.0, "call_double": 80.0}
"""Instructions of library functions on a core with a floating-point unit."""
SOFT_LIBRARY = {
    **LIBRARY, **SOFT_FLOAT, "call_math": 1050.0, "call_sqrt": 320.0, "call_tanh": 1810.0, "call_erf": 1590.0, "call_log": 1200.0,
}  # fmt: skip
"""Instructions of library functions on a 32-bit core without an FPU, which multiplies to 64 bits. ``call_math`` is
``expf`` of newlib; functions that take longer have types of their own."""
PORTABLE_LIBRARY = {
    **SOFT_LIBRARY, "call_float_add": 75.0, "call_float_multiply": 109.0, "call_float_divide": 103.0, "call_float_compare": 22.0,
    "call_float_convert": 45.0, "call_math": 1870.0, "call_sqrt": 265.0, "call_tanh": 3290.0, "call_erf": 3030.0,
    "call_log": 2340.0,
}  # fmt: skip
"""Instructions of library functions on a core whose library is portable C: libgcc and picolibc on RISC-V, measured
like :data:`SOFT_FLOAT`. Picolibc's ``expf`` computes in double."""
SHORT_LIBRARY = {
    **LIBRARY, "call_float_add": 62.0, "call_float_multiply": 118.0, "call_float_divide": 200.0, "call_float_compare": 30.0,
    "call_float_convert": 40.0, "call_multiply_long": 30.0, "call_divide": 70.0, "call_sqrt": 400.0, "call_math": 1500.0,
    "call_rint": 60.0, "call_shift_long": 12.0,
}  # fmt: skip
"""Instructions of library functions on a core that multiplies to 32 bits and has no division."""
THUMB_LIBRARY = {
    **SHORT_LIBRARY, "call_float_add": 72.0, "call_float_divide": 379.0, "call_float_compare": 38.0, "call_math": 2200.0,
    "call_sqrt": 320.0, "call_tanh": 3930.0, "call_erf": 3600.0, "call_log": 2710.0,
}  # fmt: skip
"""Instructions of library functions on Armv6-M, whose libgcc divides floats bit by bit; measured like
:data:`SOFT_FLOAT`."""


# ---- Bodies that any compiler translates well: words at any address, on cores that permit unaligned accesses; on other cores,
# copies of contiguous memory by words if both addresses have the same alignment

ALIGNED_WORD = "typedef int32_t __attribute__((may_alias)) word;\n"
"""C type of a word at a multiple of four bytes that may alias any type. With ``memcpy`` and an asserted alignment
gcc would keep every address in a register of its own."""
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
"""C bodies of accesses to little-endian words at any address."""

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
"""C body that copies four words in an iteration. Iterations go from the first to the last element and read before
they write, so that memory may be moved to a lower address that overlaps it."""


def _build_word_move_body(elements_per_iteration: int) -> Body:
    """Build the C body that copies ``elements_per_iteration`` elements (four words) in an iteration."""
    loop = BodyLoop("n", elements_per_iteration, (("load", 4), ("store", 4), ("alu", 3), ("branch", 1)))
    return Body(_MOVE.replace("STEP", str(elements_per_iteration)), (("alu", 14), ("branch", 6)), loop, apart=True)


WORD_MOVES = InstructionSet(
    "word moves",
    "defined(__GNUC__)",
    {f"move_{short}": _build_word_move_body(step) for short, step in (("i8", 16), ("u8", 16), ("i16", 8), ("u16", 8))},
    frozenset({"words"}),
)
