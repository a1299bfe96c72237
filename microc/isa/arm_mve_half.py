"""MVE's vectors of eight halves: products of small matrices whose terms are added in float16.

A vector of weights is multiplied by a number in a general register (``VFMA.F16``), which is loaded once for all columns. Behind a
run its sums are widened, those of even lanes and those of odd ones, and added to sums of float32 in memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from microc.isa.arm_mve_windows import WINDOW_BODIES
from microc.isa.base import Body, Turns
from microc.isa.sets import InstructionSet
from microc.isa.vocabulary.half_products import HALF_SHAPES, half_product_name

_ROWS, _NUMBERS = ("r0", "r1", "r2", "r3"), ("r4", "r5", "r6", "r8")
"""Registers of the rows' addresses and of their numbers; r7 may be the frame pointer."""
_OTHERS = {"b": "r9", "left": "r10", "turns": "r11", "sums": "r12"}
_SPARE = (6, 7)
"""Vectors of weights, and of widened sums."""
_UNROLLED = (4, 3, 2, 1)
"""Terms of an iteration, the first that come out even."""
_COUNTED = 8
"""Terms that costs are counted by."""


def _widened(wide: int, narrow: int, odd: int) -> str:
    """VCVTB or VCVTT of float16 to float32, by number: the GNU assembler (2.40) encodes vectors as those of twice theirs."""
    return f".inst.w {0xFE3F0E01 | wide << 13 | odd << 12 | narrow << 1:#x}"


def _narrowed(narrow: int, wide: int, odd: int) -> str:
    """VCVTB or VCVTT of float32 to float16, likewise."""
    return f".inst.w {0xEE3F0E01 | narrow << 13 | odd << 12 | wide << 1:#x}"


def _term(rows: int, vectors: int) -> Iterator[str]:
    for v in range(vectors):
        weights = f"q{_SPARE[v % 2]}"
        yield f"vldrh.u16 {weights}, [%[b]], #16"
        for r in range(rows):
            if v == 0:
                yield f"ldrh {_NUMBERS[r]}, [%[a{r}]], #2"
            yield f"vfma.f16 q{r * vectors + v}, {weights}, {_NUMBERS[r]}"


def _added(sums: int) -> Iterator[str]:
    """Vectors of sums of a run added to those in memory."""
    for n in range(sums):
        yield from (_widened(wide, n, odd) for odd, wide in enumerate(_SPARE))
        for odd, wide in enumerate(_SPARE):
            place = f"[%[sums], #{32 * n + 16 * odd}]"
            yield from (f"vldrw.u32 q{n}, {place}", f"vadd.f32 q{wide}, q{wide}, q{n}", f"vstrw.32 q{wide}, {place}")


def _text(rows: int, vectors: int) -> Iterator[str]:
    pointers = [f"a{r}" for r in range(rows)]
    for r, name in enumerate(pointers):
        yield f'register const uint16_t *{name} __asm__("{_ROWS[r]}") = a{f" + {r} * stride_a" if r else ""};'
    yield f'register const uint16_t *next __asm__("{_OTHERS["b"]}") = b;'
    yield f'register float *where __asm__("{_OTHERS["sums"]}") = sums;'
    yield f'register int32_t left __asm__("{_OTHERS["left"]}") = runs;'
    yield f'register int32_t turns __asm__("{_OTHERS["turns"]}");'
    vectors_used = (f"q{n}" for n in (*range(rows * vectors), *_SPARE))
    clobbers = ", ".join(f'"{name}"' for name in ("lr", "cc", "memory", *_NUMBERS[:rows], *vectors_used))
    moved = ", ".join(f'[{name}] "+r"({name})' for name in pointers)
    for times in _UNROLLED:
        yield f"if (depth / runs % {times} == 0) {{" if times > 1 else "{"
        yield f"    turns = depth / runs{f' / {times}' if times > 1 else ''};"
        yield "    __asm__ volatile inline("
        zeros = [f"vmov.i32 q{n}, #0" for n in range(rows * vectors)]
        turn = [line for _ in range(times) for line in _term(rows, vectors)]
        loop = ["1:", *zeros, "dls lr, %[turns]", "0:", *turn, "le lr, 0b"]
        lines = [*loop, *_added(rows * vectors), "subs %[left], %[left], #1", "bne 1b"]
        yield from (f'        "{line}\\n"' for line in lines)
        yield f'        : {moved}, [b] "+r"(next), [left] "+r"(left)'
        yield '        : [turns] "r"(turns), [sums] "r"(where)'
        yield f"        : {clobbers});"
        yield "} else" if times > 1 else "}"


def _body(rows: int, vectors: int) -> Body:
    sums = rows * vectors
    vector, load = (
        ("vector", (_COUNTED + 1) * sums),
        ("load", _COUNTED * rows),
    )  # a share of what follows a run included
    memory = (("vector_load", _COUNTED * vectors + sums // 2), ("vector_store", sums // 2))
    turns = Turns("depth", _COUNTED, (vector, load, *memory, ("branch", 2)))
    edges = (("alu", 6 + rows), ("vector", sums), ("vector_load", sums), ("vector_store", sums))
    return Body("\n".join(_text(rows, vectors)), edges, turns)


_EIGHT = (
    *("lsrs %[n], %[n], #3", "dls lr, %[n]", "0:", "vld20.32 {q0, q1}, [%[q]]", "vld21.32 {q0, q1}, [%[q]]!"),
    *(_narrowed(2, 0, 0), _narrowed(2, 1, 1), "vstrh.16 q2, [%[p]], #16", "le lr, 0b"),
)
_FOUR = (
    "dlstp.32 lr, %[n]",
    "0:",
    "vldrw.u32 q0, [%[q]], #16",
    _narrowed(0, 0, 0),
    "vstrh.32 q0, [%[p]], #8",
    "letp lr, 0b",
)


def _narrowing() -> Body:
    """Eight floats at a time where they come out even, even ones below odd ones, else four, of the last ones fewer."""
    text = []
    for condition, lines in (("if (n % 8 == 0) {", _EIGHT), ("} else {", _FOUR)):
        text += [condition, "    __asm__ volatile(", *(f'        "{line}\\n"' for line in lines)]
        text.append('        : [p] "+l"(p), [q] "+l"(q), [n] "+l"(n) : : "lr", "cc", "memory", "q0", "q1", "q2");')
    turns = Turns("n", 8, (("vector_load", 2), ("vector", 2), ("vector_store", 1), ("branch", 1)))
    return Body("\n".join((*text, "}")), (("alu", 4),), turns)


def _zeros() -> Body:
    lines = ("vmov.i32 q0, #0", "dlstp.16 lr, %[n]", "0:", "vstrh.16 q0, [%[p]], #16", "letp lr, 0b")
    text = "\\n".join(lines)
    turns = Turns("n", 8, (("vector_store", 1), ("branch", 1)))
    statement = f'__asm__ volatile("{text}" : [p] "+l"(p) : [n] "r"(n) : "lr", "memory", "q0");'
    return Body(statement, (("alu", 3),), turns)


ARM_MVE_HALF = InstructionSet(
    "Arm MVE half precision",
    "defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 2)",
    {
        **{half_product_name(*shape): _body(*shape) for shape in HALF_SHAPES},
        **WINDOW_BODIES,
        "narrow_f32_f16": _narrowing(),
        "zero_f16": _zeros(),
    },
    frozenset({"half_floats"}),
)
