"""x86-64 by the levels that compilers and distributions name: v3 has AVX2 and fused multiply-add, v4 AVX-512 and twice as many
registers."""

from __future__ import annotations

from collections.abc import Iterator

from microc.isa.base import Body
from microc.isa.gnu_vectors import counted, gnu_vectors
from microc.isa.library import LIBRARY
from microc.isa.sets import PLAIN, Core, Costs, Family, InstructionSet
from microc.isa.vocabulary.lanes import NUMBERED
from microc.isa.words import UNALIGNED
from microc.isa.x86_memory import PREFIX, memory

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


_HIGH = {
    "doubling_high_mul": ("1LL << 30", 31),
    "doubling_high_floor": ("0", 31),
    "high_mul_round": ("1LL << 31", 32),
    "high_product": ("0", 32),
}
"""High parts of products: what is added to 64 bits before they are shifted."""


def _high_products(lanes: int) -> Iterator[tuple[str, str]]:
    """Products of 64 bits, of even and of odd lanes, by vectors and by a number for all lanes: the lower 32 bits of what is
    shifted are those of the result. INT32_MIN by itself, which saturates, does not come: what lanes recognise has no room for it.
    """
    p, v, i, wide = PREFIX[lanes], f"int32x{lanes}", f"__m{32 * lanes}i", lanes == 16
    blend = (
        f"{p}_mask_blend_epi32(0xAAAA, low, high)"
        if wide
        else f"{p}_blend_epi32(low, high, {0xAA & ((1 << lanes) - 1)})"
    )
    for name, (added, distance) in _HIGH.items():
        factors = {"": (f"({i})b", f"{p}_srli_epi64(({i})b, 32)"), "_n": (f"{p}_set1_epi32(b)",) * 2}
        for end in ("", "_n") if name in NUMBERED else ("",):
            even, odd = factors[end]
            high = "odd" if distance == 32 else f"{p}_slli_epi64({p}_srli_epi64(odd, {distance}), 32)"
            yield (
                f"{name}{end}_i32x{lanes}",
                f"const {i} half = {p}_set1_epi64{'' if wide else 'x'}({added});\n"
                f"const {i} even = {p}_add_epi64({p}_mul_epi32(({i})a, {even}), half);\n"
                f"const {i} odd = {p}_add_epi64({p}_mul_epi32({p}_srli_epi64(({i})a, 32), {odd}), half);\n"
                f"const {i} low = {p}_srli_epi64(even, {distance}), high = {high};\n"
                f"return ({v}){blend};",
            )


def _bodies(lanes: int) -> Iterator[tuple[str, str]]:
    """By the functions that compilers declare in one header."""
    p, v, i = PREFIX[lanes], f"int32x{lanes}", f"__m{32 * lanes}i"
    wide = lanes == 16
    yield f"fma_f32x{lanes}", f"return {p}_fmadd_ps(a, b, c);"
    yield f"sqrt_f32x{lanes}", f"return {p}_sqrt_ps(a);"
    yield f"rint_f32x{lanes}", f"return {'_mm512_roundscale_ps' if wide else f'{p}_round_ps'}(a, 4);"
    yield f"nearest_i32x{lanes}", f"return ({v}){p}_cvtps_epi32(a);"
    for name in ("min", "max"):
        yield f"{name}_i32x{lanes}", f"return ({v}){p}_{name}_epi32(({i})a, ({i})b);"
        yield f"{name}_f32x{lanes}", f"return {p}_{name}_ps(a, b);"
    yield from _high_products(lanes)
    yield f"dot2_i32x{lanes}", f"return ({v}){p}_add_epi32(({i})c, {p}_madd_epi16(({i})a, ({i})b));"


def _set(
    name: str, guard: str, widths: tuple[int, ...], features: frozenset[str] = frozenset(), masks: bool = False
) -> InstructionSet:
    words = ((word, text) for n in widths for word, text in (*_bodies(n), *memory(n, masks)))
    return InstructionSet(name, guard, {word: counted(word, text) for word, text in words}, features)


def _accumulated() -> Iterator[tuple[str, str]]:
    for lanes in (4, 8, 16):
        p, v, i = PREFIX[lanes], f"int32x{lanes}", f"__m{32 * lanes}i"
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
