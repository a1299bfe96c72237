"""Arithmetic on vectors of x86-64 that C has no operator for, by one instruction each.

gcc and clang share statements for them, so that no header is needed: ``immintrin.h`` takes a compiler as long to read as a small
network to compile. Operands stand in AT&T's order, the first one of Intel's manuals last.
"""

from __future__ import annotations

from collections.abc import Iterator

from microc.isa.vocabulary.lanes import NUMBERED

_LONG = "typedef uint64_t w __attribute__((vector_size(sizeof a)));"
_HIGH = {
    "doubling_high_mul": ("1ULL << 30", 31),
    "doubling_high_floor": ("0", 31),
    "high_mul_round": ("1ULL << 31", 32),
    "high_product": ("0", 32),
}
"""High parts of products: what is added to 64 bits before they are shifted."""
_FUSED = """#if defined(__clang__)
#pragma STDC FP_CONTRACT ON
return a * b + c;
#else
return {};
#endif"""
"""What compilers know, unlike a statement: so it takes a vector, or a number for all lanes, from memory by itself."""
_FUSED_BY = {
    4: "__builtin_ia32_vfmaddps(a, b, c)",
    8: "__builtin_ia32_vfmaddps256(a, b, c)",
    16: "__builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4)",
}
"""gcc's own names of the instructions. 4: the rounding that is set."""


def unary(name: str, kind: str, a: str, registers: str = "v") -> str:
    """``kind r`` by an instruction on one operand. ``registers``: x where it has no form of AVX-512."""
    return f'{kind} r;\n__asm__("{name} %1, %0" : "={registers}"(r) : "{registers}"({a}));'


def binary(name: str, kind: str, a: str, b: str, result: str = "r") -> str:
    """``kind result`` by an instruction on two operands: one of AVX, whose names begin with a v, or one that overwrites ``a``."""
    if name.startswith("v"):
        return f'{kind} {result};\n__asm__("{name} %2, %1, %0" : "=v"({result}) : "v"({a}), "v"({b}));'
    return f'{kind} {result} = ({kind}){a};\n__asm__("{name} %1, %0" : "+x"({result}) : "x"({b}));'


def accumulated(name: str, a: str, b: str) -> str:
    """What is added to ``c`` by an instruction."""
    return f'__asm__("{name} %2, %1, %0" : "+v"(c) : "v"({a}), "v"({b}));\nreturn c;'


def arithmetic(lanes: int, avx: bool) -> Iterator[tuple[str, str]]:
    """Words and their bodies; ``avx``: those of AVX2 and AVX-512."""
    v, floats, i = f"int32x{lanes}", f"float32x{lanes}", "v" if avx else ""
    if avx:
        yield f"fma_f32x{lanes}", _FUSED.format(_FUSED_BY[lanes])
    yield f"sqrt_f32x{lanes}", f"{unary(f'{i}sqrtps', floats, 'a')}\nreturn r;"
    rounded = unary("vrndscaleps $4,", floats, "a") if lanes == 16 else unary(f"{i}roundps $4,", floats, "a", "x")
    yield f"rint_f32x{lanes}", f"{rounded}\nreturn r;"
    yield f"nearest_i32x{lanes}", f"{unary(f'{i}cvtps2dq', v, 'a')}\nreturn r;"
    for name in ("min", "max"):
        yield f"{name}_i32x{lanes}", f"{binary(f'{i}p{name}sd', v, 'a', 'b')}\nreturn r;"
        yield f"{name}_f32x{lanes}", f"{binary(f'{i}{name}ps', floats, 'a', 'b')}\nreturn r;"
    yield from _high_products(lanes, i)
    products = f"typedef uint32_t u __attribute__((vector_size(sizeof a)));\n{binary(f'{i}pmaddwd', 'u', 'a', 'b')}"
    yield f"dot2_i32x{lanes}", f"{products}\nreturn ({v})((u)c + r);"


def _high_products(lanes: int, i: str) -> Iterator[tuple[str, str]]:
    """Products of 64 bits, of even and of odd lanes, by vectors and by a number for all lanes: the lower 32 bits of what is
    shifted are those of the result. INT32_MIN by itself, which saturates, does not come: what lanes recognise has no room for it.
    """
    v = f"int32x{lanes}"
    for name, (half, distance) in _HIGH.items():
        for end in ("", "_n") if name in NUMBERED else ("",):
            factors = [f"const {v} n = b - ({v}){{0}};"] if end else []
            even, odd = ("n", "n") if end else ("b", "(w)b >> 32")
            factors += [
                binary(f"{i}pmuldq", "w", "a", even, "even"),
                binary(f"{i}pmuldq", "w", "((w)a >> 32)", odd, "odd"),
            ]
            sums = [f"even += {half};", f"odd += {half};"] if half != "0" else []
            low = "even >> 32" if distance == 32 else "(even >> 31 & 0xFFFFFFFFU)"
            high = "odd" if distance == 32 else "odd << 1"
            result = f"return ({v})({low} | ({high} & ~0xFFFFFFFFULL));"
            yield f"{name}{end}_i32x{lanes}", "\n".join([_LONG, *factors, *sums, result])
