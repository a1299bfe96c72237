"""x86-64 by the levels that compilers and distributions name: v3 has AVX2 and fused multiply-add, v4 AVX-512 and twice as many
registers."""

from __future__ import annotations

from collections.abc import Iterator

from microc import dtypes
from microc.isa.base import Body
from microc.isa.gnu_vectors import gnu_vectors
from microc.isa.library import LIBRARY
from microc.isa.sets import PLAIN, Core, Costs, Family, InstructionSet
from microc.isa.vocabulary.words import MOVED
from microc.isa.words import UNALIGNED

_FORMS = frozenset({"indexed", "predicated"})
_LITTLE_ENDIAN = "defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__"
HOST_WORDS = InstructionSet("host words", _LITTLE_ENDIAN, UNALIGNED, frozenset({"unaligned"}))

COSTS = Costs(
    14,
    16,
    1 << 31,
    _FORMS,
    4.5,
    {**LIBRARY, "call_math": 40.0},
    {"divide": 20.0, "float_divide": 10.0},
    0.35,
)


_PREFIX = {4: "_mm", 8: "_mm256", 16: "_mm512"}
_DOUBLED = """const {i} odd_a = {p}_srli_epi64(({i})a, 32), odd_b = {p}_srli_epi64(({i})b, 32), half = {p}_set1_epi64{x}(1 << 30);
const {i} even = {p}_add_epi64({p}_mul_epi32(({i})a, ({i})b), half), odd = {p}_add_epi64({p}_mul_epi32(odd_a, odd_b), half);
const {i} low = {p}_srli_epi64(even, 31), high = {p}_slli_epi64({p}_srli_epi64(odd, 31), 32);
return ({v}){blend};"""
"""Products of 64 bits, of even and of odd lanes: the lower 32 bits of what is shifted are those of the result."""


def _bodies(lanes: int) -> Iterator[tuple[str, str]]:
    """By the functions that compilers declare in one header."""
    p, v, i = _PREFIX[lanes], f"int32x{lanes}", f"__m{32 * lanes}i"
    wide = lanes == 16
    blend = (
        "_mm512_mask_blend_epi32(0xAAAA, low, high)"
        if wide
        else f"{p}_blend_epi32(low, high, {0xAA & ((1 << lanes) - 1)})"
    )
    yield f"fma_f32x{lanes}", f"return {p}_fmadd_ps(a, b, c);"
    yield f"sqrt_f32x{lanes}", f"return {p}_sqrt_ps(a);"
    yield f"rint_f32x{lanes}", f"return {'_mm512_roundscale_ps' if wide else f'{p}_round_ps'}(a, 4);"
    yield f"nearest_i32x{lanes}", f"return ({v}){p}_cvtps_epi32(a);"
    for name in ("min", "max"):
        yield f"{name}_i32x{lanes}", f"return ({v}){p}_{name}_epi32(({i})a, ({i})b);"
        yield f"{name}_f32x{lanes}", f"return {p}_{name}_ps(a, b);"
    yield f"doubling_high_mul_i32x{lanes}", _DOUBLED.format(p=p, v=v, i=i, blend=blend, x="" if wide else "x")
    yield f"dot2_i32x{lanes}", f"return ({v}){p}_add_epi32(({i})c, {p}_madd_epi16(({i})a, ({i})b));"


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


def _loads(lanes: int) -> Iterator[tuple[str, str]]:
    """Widening loads, which gcc spells element by element where it is left to it."""
    for dtype, short in MOVED.items():
        size, kind = dtypes.nbytes(dtype), "i" if dtype.startswith("i") else "u"
        widened = f"{_PREFIX[lanes]}_cvtep{kind}{8 * size}_epi32(x)"
        yield f"load_{short}_i32x{lanes}", f"{_READ[lanes * size]}\nreturn (int32x{lanes}){widened};"


def _stores(lanes: int, masks: bool) -> Iterator[tuple[str, str]]:
    """Narrowing stores: one instruction with AVX-512, else the lower bytes of words moved together."""
    for dtype, short in MOVED.items():
        size = dtypes.nbytes(dtype)
        if masks:
            bits, narrowed = max(128, 8 * lanes * size), f"{_PREFIX[lanes]}_cvtepi32_epi{8 * size}"
            text = f"const __m{bits}i x = {narrowed}((__m{32 * lanes}i)a);"
        elif lanes == 4:
            text = f"const __m128i x = _mm_shuffle_epi8((__m128i)a, _mm_setr_epi8({_LOWER[size]}));"
        else:
            lower = f"_mm256_setr_epi8({_LOWER[size]},\n    {_LOWER[size]})"
            text = f"const __m256i s = _mm256_shuffle_epi8((__m256i)a, {lower});\n"
            text += f"const __m128i x = _mm256_castsi256_si128({_JOINED[size]});"
        yield f"store_{short}_i32x{lanes}", f"{text}\n{_WRITTEN[lanes * size]}"


def _set(
    name: str, guard: str, widths: tuple[int, ...], features: frozenset[str] = frozenset(), masks: bool = False
) -> InstructionSet:
    texts = {
        "vector": (text for n in widths for text in _bodies(n)),
        "vector_load": (text for n in widths for text in _loads(n)),
        "vector_store": (text for n in widths for text in _stores(n, masks)),
    }
    bodies = {word: Body(text, ((kind, 1),)) for kind, found in texts.items() for word, text in found}
    return InstructionSet(name, guard, bodies, features)


def _accumulated() -> Iterator[tuple[str, str]]:
    for lanes in (4, 8, 16):
        p, v, i = _PREFIX[lanes], f"int32x{lanes}", f"__m{32 * lanes}i"
        yield f"dot2_i32x{lanes}", f"return ({v}){p}_dpwssd_epi32(({i})c, ({i})a, ({i})b);"
        yield f"dot4_u8_i32x{lanes}", f"return ({v}){p}_dpbusd_epi32(({i})c, ({i})a, ({i})b);"


_V3, _V4 = (
    "defined(__AVX2__) && defined(__FMA__)",
    "defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)",
)
_VECTORS = frozenset({"vectors", "fma"})
AVX2 = _set("AVX2", _V3, (4, 8), _VECTORS)
AVX512 = _set("AVX-512", _V4, (4, 8, 16), _VECTORS, masks=True)
VNNI = InstructionSet(
    "AVX-512 VNNI", "defined(__AVX512VNNI__)", {name: Body(text, (("vector", 1),)) for name, text in _accumulated()}
)
_FPU = frozenset({"fpu"})

_HEADER = "immintrin.h"


def _core(name: str, machine: str, lanes: tuple[int, ...], vectors: int, guard: str, *sets: InstructionSet) -> Core:
    units = gnu_vectors(f"vectors of {name}", guard, _HEADER)
    return Core(name, "x86", COSTS, (*sets, units, HOST_WORDS), _FPU, machine=machine, lanes=lanes, vectors=vectors)


X86 = Family(
    "x86",
    (
        _core("x86-64-v3", "-march=x86-64-v3", (8, 4), 16, _V3, AVX2),
        _core("x86-64-v4", "-march=x86-64-v4", (16, 8, 4), 32, _V4, AVX512),
        _core("x86-64-v4-vnni", "-march=x86-64-v4 -mavx512vnni", (16, 8, 4), 32, _V4, VNNI, AVX512),
    ),
    PLAIN,
    threads=True,
)
