# SPDX-License-Identifier: Apache-2.0
"""Instruction sets of any machine: portable C, and the vector types of gcc and clang."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from microc.base import dtypes
from microc.isa.instruction_set import Body, BodyLoop, InstructionSet, VectorUnit
from microc.isa.vocabulary.scalar_words import MOVED
from microc.isa.vocabulary.vector_lanes import ARITHMETIC, WIDTHS
from microc.tir.names import SUFFIXES, WORD_LANES

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


# ---- GNU vector extensions: vector types of gcc and clang for any machine, on which C operators act lane by lane.
#
# They describe the vector units of desktop and server computers: an operator becomes one instruction if the
# machine has it, else several instructions. Operations for which C has no operator are written with masks.


_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^"}
_COMPARED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_UNSIGNED = "typedef uint32_t u __attribute__((vector_size(sizeof a)));"
"""C type for arithmetic in unsigned lanes, which wrap on overflow: inactive lanes contain undefined values, which
must not overflow."""


_BYTES = "(size_t)n * sizeof *p"


def _build_partial_access_bodies(element_dtype: str, name_suffix: str, vector_type: str) -> Iterator[tuple[str, str]]:
    """Yield (intrinsic name, C body) for the load and the store of the first n lanes. Elements in memory are as
    wide as a lane."""
    yield f"load_{element_dtype}_{name_suffix}_first", f"{vector_type} r = {{0}};\nmemcpy(&r, p, {_BYTES});\nreturn r;"
    yield f"store_{element_dtype}_{name_suffix}_first", f"memcpy(p, &a, {_BYTES});"


def _build_shift_bodies(name_suffix: str, vector_type: str) -> Iterator[tuple[str, str]]:
    """Yield (intrinsic name, C body) for shifts to the left by b, or to the right by -b if b is negative, with and
    without rounding.

    Rounding adds the last dropped bit in a separate step, because all 32 bits may be dropped."""
    left = f"const {vector_type} m = b < 0, r = -b & m, x = ({vector_type})((u)a << (u)(b & ~m));"
    yield f"shl_{name_suffix}", f"{_UNSIGNED}\n{left}\nreturn x >> r;"
    rounded = f"const {vector_type} k = m & 1, y = x >> ((r - 1) & m);\nreturn (y >> k) + (y & k);"
    yield f"shift_round_{name_suffix}", f"{_UNSIGNED}\n{left}\n{rounded}"
    left = f"({vector_type})((u)a << (uint32_t)b)"
    yield f"shl_n_{name_suffix}", f"{_UNSIGNED}\nreturn b < 0 ? a >> -b : {left};"
    rounded = f"const {vector_type} y = a >> (-b - 1);\n    return (y >> 1) + (y & 1);"
    yield f"shift_round_n_{name_suffix}", f"{_UNSIGNED}\nif (b < 0) {{\n    {rounded}\n}}\nreturn {left};"


def _build_int32_vector_bodies(lanes: int) -> Iterator[tuple[str, str]]:
    """Yield (intrinsic name, C body) for all intrinsics on vectors of ``lanes`` int32 lanes."""
    end, vector = f"i32x{lanes}", f"int32x{lanes}"
    for name in ("add", "sub", "mul"):
        yield f"{name}_{end}", f"{_UNSIGNED}\nreturn ({vector})((u)a {_SIGNS[name]} (u)b);"
        yield f"{name}_n_{end}", f"{_UNSIGNED}\nreturn ({vector})((u)a {_SIGNS[name]} (uint32_t)b);"
    yield f"mac_n_{end}", f"{_UNSIGNED}\nreturn ({vector})((u)a + (u)b * (uint32_t)n);"
    for name in ("and", "or", "xor"):
        yield f"{name}_{end}", f"return a {_SIGNS[name]} b;"
    for name, sign in (("min", "<"), ("max", ">")):
        yield f"{name}_{end}", f"const {vector} m = a {sign} b;\nreturn (a & m) | (b & ~m);"
    yield f"dup_{end}", f"return n - ({vector}){{0}};"
    yield from _build_shift_bodies(end, vector)
    for op, sign in _COMPARED.items():
        yield f"select_{op}_{end}", f"const {vector} m = a {sign} b;\nreturn (x & m) | (y & ~m);"
    for name in ("i32", *(word.suffix for word in WORD_LANES)):
        yield f"load_{name}_{end}", f"{vector} r;\nmemcpy(&r, p, sizeof r);\nreturn r;"
    for word in WORD_LANES:
        yield f"dup_{word.suffix}_{end}", f"int32_t n;\nmemcpy(&n, p, sizeof n);\nreturn n - ({vector}){{0}};"
    yield f"store_i32_{end}", "memcpy(p, &a, sizeof a);"
    yield from _build_partial_access_bodies("i32", end, vector)
    for dtype, short in MOVED.items():
        narrow = f"typedef {dtype}_t t __attribute__((vector_size({lanes * dtypes.nbytes(dtype)})));\n"
        widened = f"return __builtin_convertvector(r, {vector});"
        narrowed = f"{narrow}const t r = __builtin_convertvector(a, t);\n"
        yield f"load_{short}_{end}", f"{narrow}t r;\nmemcpy(&r, p, sizeof r);\n{widened}"
        yield f"load_{short}_{end}_first", f"{narrow}t r = {{0}};\nmemcpy(&r, p, {_BYTES});\n{widened}"
        yield f"store_{short}_{end}", f"{narrowed}memcpy(p, &r, sizeof r);"
        yield f"store_{short}_{end}_first", f"{narrowed}memcpy(p, &r, {_BYTES});"
    yield f"toward_zero_{end}", f"return __builtin_convertvector(a, {vector});"


_HALF = """const u x = __builtin_convertvector(r, u), m = (x & 0x7FFF) << 13;
const u f = (u)(({vector})m * 5.192296858534828e33f), far = (u)(m > 0x0F7FFFFF) & 0x7F800000;
return ({vector})(f | far | (x & 0x8000) << 16);"""
"""C body that converts float16 to float32.

Exponent and fraction of the float16, moved to the fields of a float32, represent its number times 2**-112, also for
subnormals. The largest exponent represents infinity and NaN, and is set separately."""


def _build_float_vector_bodies(lanes: int) -> Iterator[tuple[str, str]]:
    """Yield (intrinsic name, C body) for all intrinsics on vectors of ``lanes`` float32 lanes."""
    end, vector = f"f32x{lanes}", f"float32x{lanes}"
    chosen = "typedef int32_t v __attribute__((vector_size(sizeof a)));\n" + (
        f"const v m = a {{}} b;\nreturn ({vector})(((v){{}} & m) | ((v){{}} & ~m));"
    )
    for name in ARITHMETIC[:4]:
        yield f"{name}_{end}", f"return a {_SIGNS[name]} b;"
    for name, sign in (("min", "<"), ("max", ">")):
        yield f"{name}_{end}", chosen.format(sign, "a", "b")
    for op, sign in _COMPARED.items():
        yield f"select_{op}_{end}", chosen.format(sign, "x", "y")
    yield f"dup_{end}", f"return n - ({vector}){{0.0f}};"
    yield f"from_i32_{end}", f"return __builtin_convertvector(a, {vector});"
    yield f"of_bits_{end}", f"return ({vector})a;"
    yield f"bits_i32x{lanes}", f"return (int32x{lanes})a;"
    yield f"load_f32_{end}", f"{vector} r;\nmemcpy(&r, p, sizeof r);\nreturn r;"
    yield f"store_f32_{end}", "memcpy(p, &a, sizeof a);"
    yield from _build_partial_access_bodies("f32", end, vector)
    types = f"typedef uint16_t t __attribute__((vector_size({2 * lanes})));\n"
    types += f"typedef uint32_t u __attribute__((vector_size({4 * lanes})));\n"
    for first, loaded in (
        ("", "t r;\nmemcpy(&r, p, sizeof r);"),
        ("_first", f"t r = {{0}};\nmemcpy(&r, p, {_BYTES});"),
    ):
        yield f"load_bf16_{end}{first}", f"{types}{loaded}\nreturn ({vector})(__builtin_convertvector(r, u) << 16);"
        yield f"load_f16_{end}{first}", f"{types}{loaded}\n{_HALF.format(vector=vector)}"


def c_vector_type(element: str, lanes: int) -> str:
    """Return the C type of a vector of ``lanes`` elements of 32 bits, declared by gcc's attribute ``vector_size``."""
    return f"{element} __attribute__((vector_size({4 * lanes})))"


TYPES = {
    f"{dtype}x{lanes}": c_vector_type(element, lanes)
    for lanes in WIDTHS
    for dtype, element in (("int32", "int32_t"), ("float32", "float"))
}


def build_vector_instruction_body(intrinsic_name: str, c_text: str) -> Body:
    """Build a body that the cost model counts as one vector instruction: a load, a store or arithmetic, according to
    the intrinsic's name."""
    loads = intrinsic_name.startswith(("load", *(f"dup_{word.suffix}" for word in WORD_LANES)))
    kind = "vector_load" if loads else "vector_store" if intrinsic_name.startswith("store") else "vector"
    return Body(c_text, ((kind, 1),))


def _build_contiguous_copy_bodies() -> Iterator[tuple[str, Body]]:
    """Yield (intrinsic name, C body) for copies of contiguous memory, which call the C library."""
    for dtype, short in SUFFIXES.items():
        size = dtypes.nbytes(dtype)
        loop = BodyLoop("n", 32 // size, (("vector_load", 1), ("vector_store", 1)))
        yield f"copy_{short}", Body(f"memmove(p, q, (size_t)n * {size}U);", (("alu", 2),), loop)


_FLOATS = re.compile("f32x|^toward_zero|^bits_")
"""Names of the intrinsics that have floats as operands or results."""
_BODIES = dict(_build_contiguous_copy_bodies()) | {
    name: build_vector_instruction_body(name, text)
    for n in WIDTHS
    for name, text in (*_build_int32_vector_bodies(n), *_build_float_vector_bodies(n))
}


def build_gnu_vector_set(name: str, guard: str, header: str = "", *, has_floats: bool = True) -> InstructionSet:
    """Build the instruction set of a machine's vectors.

    ``guard``: C preprocessor condition under which compilers support the vectors. ``header``: header that declares
    functions which other instruction sets use on the same vectors. ``has_floats``: False if arithmetic on vectors of
    floats is not that of IEEE 754, so that only integers are in vectors."""
    integers = {name: body for name, body in _BODIES.items() if not _FLOATS.search(name)}
    bodies = _BODIES if has_floats else integers
    return InstructionSet(name, guard, bodies, unit=VectorUnit(TYPES, header, has_lane_subscripts=True))
