"""x86-64 by the levels that compilers and distributions name: v2 has SSE4.2, v3 AVX2 and fused multiply-add, v4 AVX-512 and twice
as many registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from microc.isa.base import Body
from microc.isa.gnu_vectors import counted, gnu_vectors
from microc.isa.library import LIBRARY
from microc.isa.sets import PLAIN, Core, Costs, Family, InstructionSet, Probe
from microc.isa.words import UNALIGNED
from microc.isa.x86_memory import memory
from microc.isa.x86_words import accumulated, arithmetic

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


def _set(
    name: str,
    guard: str,
    widths: tuple[int, ...],
    features: frozenset[str] = frozenset(),
    *,
    avx: bool = True,
    masks: bool = False,
) -> InstructionSet:
    words = ((word, text) for n in widths for word, text in (*arithmetic(n, avx), *memory(n, avx, masks)))
    return InstructionSet(name, guard, {word: counted(word, text) for word, text in words}, features)


def _products() -> Iterator[tuple[str, str]]:
    for lanes in (4, 8, 16):
        yield f"dot2_i32x{lanes}", accumulated("vpdpwssd", "a", "b")
        yield f"dot4_u8_i32x{lanes}", accumulated("vpdpbusd", "a", "b")


_V2, _V3, _V4 = (
    "defined(__x86_64__) && defined(__SSE4_2__)",
    "defined(__AVX2__) && defined(__FMA__)",
    "defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)",
)
_VECTORS = frozenset({"vectors", "fma"})
SSE4 = _set("SSE4.2", _V2, (4,), frozenset({"vectors"}), avx=False)
AVX2 = _set("AVX2", _V3, (4, 8), _VECTORS)
AVX512 = _set("AVX-512", _V4, (4, 8, 16), _VECTORS, masks=True)
VNNI = InstructionSet(
    "AVX-512 VNNI", "defined(__AVX512VNNI__)", {name: Body(text, (("vector", 1),)) for name, text in _products()}
)
_FPU = frozenset({"fpu"})
_PIPELINED = 10
"""Two units for products, five cycles each (Haswell, Zen); four from Skylake and Zen 3 on. Source: Agner Fog's instruction
tables."""
_CACHE = {"x86-64-v2": 1 << 18, "x86-64-v3": 1 << 19, "x86-64-v4": 1 << 20, "x86-64-v4-vnni": 1 << 20}
"""The second cache of common computers of a level: Nehalem, Zen, Skylake-SP. Larger ones lose nothing."""
_UNITS = {
    "x86-64-v2": ("sse4.2", "popcnt"),
    "x86-64-v3": ("avx2", "fma", "bmi", "bmi2"),
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    "x86-64-v4-vnni": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vnni"),
}
"""What a computer of each level has beside those of the levels below; it is asked for these."""


def _core(name: str, machine: str, lanes: tuple[int, ...], vectors: int, guard: str, *sets: InstructionSet) -> Core:
    units = gnu_vectors(f"vectors of {name}", guard)
    asked = " && ".join(f'__builtin_cpu_supports("{unit}")' for unit in _UNITS[name])
    probe = Probe(guard, asked, attribute='__attribute__((target("arch=x86-64")))')
    every = (*sets, units, HOST_WORDS)
    return Core(
        name,
        "x86",
        replace(COSTS, vector_registers=vectors),
        every,
        _FPU,
        machine=machine,
        lanes=lanes,
        vectors=vectors,
        pipelined=_PIPELINED,
        cache=_CACHE[name],
        probe=probe,
    )


X86 = Family(
    "x86",
    (
        _core("x86-64-v2", "-march=x86-64-v2", (4,), 16, _V2, SSE4),
        _core("x86-64-v3", "-march=x86-64-v3", (8, 4), 16, _V3, AVX2),
        _core("x86-64-v4", "-march=x86-64-v4", (16, 8, 4), 32, _V4, AVX512),
        _core("x86-64-v4-vnni", "-march=x86-64-v4 -mavx512vnni", (16, 8, 4), 32, _V4, VNNI, AVX512),
    ),
    PLAIN,
    threads=True,
    flags=("unroll-loops", "no-tree-vectorize", "O3"),
    computers=("x86_64", "AMD64"),
)
