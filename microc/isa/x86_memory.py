"""Loads that widen and stores that narrow to and from 32-bit lanes on x86-64, of all lanes and of the first ones.

gcc spells the conversions of :mod:`microc.isa.gnu_vectors` element by element.
"""

from __future__ import annotations

from collections.abc import Iterator

from microc import dtypes
from microc.isa.vocabulary.words import MOVED

PREFIX = {4: "_mm", 8: "_mm256", 16: "_mm512"}
"""How the names of functions on so many lanes begin."""
_READ = {
    4: "int32_t w;\nmemcpy(&w, p, sizeof w);\nconst __m128i x = _mm_cvtsi32_si128(w);",
    8: "const __m128i x = _mm_loadl_epi64((const __m128i *)(const void *)p);",
    16: "const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);",
    32: "const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)p);",
}
_WRITTEN = {
    4: "const int32_t w = _mm_cvtsi128_si32(x);\nmemcpy(p, &w, sizeof w);",
    8: "_mm_storel_epi64((__m128i *)(void *)p, x);",
    16: "_mm_storeu_si128((__m128i *)(void *)p, x);",
    32: "_mm256_storeu_si256((__m256i *)(void *)p, x);",
}
"""By so many bytes. Compilers take them for a part of the instruction that widens or narrows."""
_LOWER = {
    1: "0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1",
    2: "0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1",
}
"""Which bytes of four words a number of one or two bytes is, for instructions that move the bytes of 16."""
_JOINED = {
    1: "_mm256_permutevar8x32_epi32(s, _mm256_setr_epi32(0, 4, 0, 0, 0, 0, 0, 0))",
    2: "_mm256_permute4x64_epi64(s, 8)",
}
"""Both halves of a vector of 256 bits, side by side."""


def memory(lanes: int, masks: bool) -> Iterator[tuple[str, str]]:
    """Words and their bodies; ``masks``: those of AVX-512."""
    yield from _loads(lanes)
    yield from _stores(lanes, masks)
    if masks:
        yield from _masked(lanes)


def _loads(lanes: int) -> Iterator[tuple[str, str]]:
    for dtype, short in MOVED.items():
        size, kind = dtypes.nbytes(dtype), "i" if dtype.startswith("i") else "u"
        widened = f"{PREFIX[lanes]}_cvtep{kind}{8 * size}_epi32(x)"
        yield f"load_{short}_i32x{lanes}", f"{_READ[lanes * size]}\nreturn (int32x{lanes}){widened};"


def _stores(lanes: int, masks: bool) -> Iterator[tuple[str, str]]:
    """Narrowing stores: one instruction with AVX-512, else the lower bytes of words moved together."""
    for dtype, short in MOVED.items():
        size = dtypes.nbytes(dtype)
        if masks:
            bits, narrowed = max(128, 8 * lanes * size), f"{PREFIX[lanes]}_cvtepi32_epi{8 * size}"
            text = f"const __m{bits}i x = {narrowed}((__m{32 * lanes}i)a);"
        elif lanes == 4:
            text = f"const __m128i x = _mm_shuffle_epi8((__m128i)a, _mm_setr_epi8({_LOWER[size]}));"
        else:
            lower = f"_mm256_setr_epi8({_LOWER[size]},\n    {_LOWER[size]})"
            text = f"const __m256i s = _mm256_shuffle_epi8((__m256i)a, {lower});\n"
            text += f"const __m128i x = _mm256_castsi256_si128({_JOINED[size]});"
        yield f"store_{short}_i32x{lanes}", f"{text}\n{_WRITTEN[lanes * size]}"


def _masked(lanes: int) -> Iterator[tuple[str, str]]:
    """The first n lanes by a mask, which AVX-512 has for every access."""
    p, mask = PREFIX[lanes], f"(__mmask{max(8, lanes)})((1U << n) - 1U)"
    for dtype, short in MOVED.items():
        bits, kind = 8 * dtypes.nbytes(dtype), "i" if dtype.startswith("i") else "u"
        part = max(128, bits * lanes)
        loaded = f"{PREFIX[part // 32]}_maskz_loadu_epi{bits}((__mmask{part // bits})((1U << n) - 1U), p)"
        yield f"load_{short}_i32x{lanes}_first", f"return (int32x{lanes}){p}_cvtep{kind}{bits}_epi32({loaded});"
        yield (
            f"store_{short}_i32x{lanes}_first",
            f"{p}_mask_cvtepi32_storeu_epi{bits}(p, {mask}, (__m{32 * lanes}i)a);",
        )
    for short, kind, vector, own in (("f32", "ps", "float32", ""), ("i32", "epi32", "int32", f"(__m{32 * lanes}i)")):
        loaded = f"{p}_maskz_loadu_{kind}({mask}, p)"
        yield f"load_{short}_{short}x{lanes}_first", f"return ({vector}x{lanes}){loaded};"
        yield f"store_{short}_{short}x{lanes}_first", f"{p}_mask_storeu_{kind}(p, {mask}, {own}a);"
