# SPDX-License-Identifier: Apache-2.0
"""x86-64 cores by microarchitecture level: vector arithmetic, widening loads, narrowing stores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from microc.base import dtypes
from microc.isa.instruction_set import PLAIN, Body, Core, Costs, Family, InstructionSet, Probe
from microc.isa.portable import LIBRARY, UNALIGNED, build_gnu_vector_set, build_vector_instruction_body
from microc.isa.vocabulary.scalar_words import MOVED
from microc.isa.vocabulary.vector_lanes import NUMBERED
from microc.tir.names import SUFFIXES, WORD_LANES

# ---- Vector arithmetic of x86-64 without an operator in C, by one instruction each
#
# Inline assembly works in gcc and clang, and needs no header: reading ``immintrin.h`` takes a compiler as long as compiling a
# small network. Operands are in AT&T's order, the first one of Intel's manuals last.

_LONG = "typedef uint64_t w __attribute__((vector_size(sizeof a)));"
_HIGH = {
    "doubling_high_mul": ("1ULL << 30", 31),
    "doubling_high_floor": ("0", 31),
    "high_mul_round": ("1ULL << 31", 32),
    "high_product": ("0", 32),
}
"""For each intrinsic that returns the high part of a product: the 64-bit addend, and the shift."""
_FUSED = """#if defined(__clang__)
#pragma STDC FP_CONTRACT ON
return a * b + c;
#else
return {};
#endif"""
"""C body of a fused multiply-add. Compilers understand it, unlike inline assembly, and fold the load of a vector or
of a broadcast scalar into the instruction."""
_FUSED_BY = {
    4: "__builtin_ia32_vfmaddps(a, b, c)",
    8: "__builtin_ia32_vfmaddps256(a, b, c)",
    16: "__builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4)",
}
"""gcc's builtins of FMA by number of lanes. The argument 4 selects the current rounding mode."""


def format_unary_instruction(mnemonic: str, c_type: str, operand: str, register_constraint: str = "v") -> str:
    """Return the C that declares ``r`` of type ``c_type`` as the result of an instruction with the operand ``operand``.

    ``register_constraint``: letter of the register constraint; ``x`` if the instruction has no form in AVX-512."""
    return (
        f'{c_type} r;\n__asm__("{mnemonic} %1, %0" : "={register_constraint}"(r) : "{register_constraint}"({operand}));'
    )


def format_binary_instruction(mnemonic: str, c_type: str, a: str, b: str, result_name: str = "r") -> str:
    """Return the C that declares ``result_name`` of type ``c_type`` as the result of an instruction with the operands
    ``a`` and ``b``.

    AVX instructions, whose names begin with v, write to a third register; others overwrite a copy of ``a``."""
    if mnemonic.startswith("v"):
        return f'{c_type} {result_name};\n__asm__("{mnemonic} %2, %1, %0" : "=v"({result_name}) : "v"({a}), "v"({b}));'
    return f'{c_type} {result_name} = ({c_type}){a};\n__asm__("{mnemonic} %1, %0" : "+x"({result_name}) : "x"({b}));'


def format_accumulating_instruction(mnemonic: str, a: str, b: str) -> str:
    """Return the C that adds the result of an instruction with the operands ``a`` and ``b`` to ``c``, and returns
    ``c``."""
    return f'__asm__("{mnemonic} %2, %1, %0" : "+v"(c) : "v"({a}), "v"({b}));\nreturn c;'


def build_arithmetic_bodies(lanes: int, has_avx: bool) -> Iterator[tuple[str, str]]:
    """Yield (intrinsic name, C body) for vector arithmetic. ``has_avx``: use the instructions of AVX2 or AVX-512."""
    v, floats, i = f"int32x{lanes}", f"float32x{lanes}", "v" if has_avx else ""
    if has_avx:
        yield f"fma_f32x{lanes}", _FUSED.format(_FUSED_BY[lanes])
    yield f"sqrt_f32x{lanes}", f"{format_unary_instruction(f'{i}sqrtps', floats, 'a')}\nreturn r;"
    rounded = (
        format_unary_instruction("vrndscaleps $4,", floats, "a")
        if lanes == 16
        else format_unary_instruction(f"{i}roundps $4,", floats, "a", "x")
    )
    yield f"rint_f32x{lanes}", f"{rounded}\nreturn r;"
    yield f"nearest_i32x{lanes}", f"{format_unary_instruction(f'{i}cvtps2dq', v, 'a')}\nreturn r;"
    for name in ("min", "max"):
        yield f"{name}_i32x{lanes}", f"{format_binary_instruction(f'{i}p{name}sd', v, 'a', 'b')}\nreturn r;"
        yield f"{name}_f32x{lanes}", f"{format_binary_instruction(f'{i}{name}ps', floats, 'a', 'b')}\nreturn r;"
    yield from _build_high_product_bodies(lanes, i)
    products = "typedef uint32_t u __attribute__((vector_size(sizeof a)));\n"
    products += format_binary_instruction(f"{i}pmaddwd", "u", "a", "b")
    yield f"dot2_i32x{lanes}", f"{products}\nreturn ({v})((u)c + r);"


def _build_high_product_bodies(lanes: int, mnemonic_prefix: str) -> Iterator[tuple[str, str]]:
    """Yield (intrinsic name, C body) for high parts of products, with a vector or with a broadcast scalar.

    The 64-bit products of even and of odd lanes are computed separately. The low 32 bits of each shifted product are
    the result. INT32_MIN times itself, which would saturate, does not occur: the lowering to lanes excludes it."""
    v = f"int32x{lanes}"
    for name, (half, distance) in _HIGH.items():
        for end in ("", "_n") if name in NUMBERED else ("",):
            factors = [f"const {v} n = b - ({v}){{0}};"] if end else []
            even, odd = ("n", "n") if end else ("b", "(w)b >> 32")
            factors += [
                format_binary_instruction(f"{mnemonic_prefix}pmuldq", "w", "a", even, "even"),
                format_binary_instruction(f"{mnemonic_prefix}pmuldq", "w", "((w)a >> 32)", odd, "odd"),
            ]
            sums = [f"even += {half};", f"odd += {half};"] if half != "0" else []
            low = "even >> 32" if distance == 32 else "(even >> 31 & 0xFFFFFFFFU)"
            high = "odd" if distance == 32 else "odd << 1"
            result = f"return ({v})({low} | ({high} & ~0xFFFFFFFFULL));"
            yield f"{name}{end}_i32x{lanes}", "\n".join([_LONG, *factors, *sums, result])


# ---- Widening loads and narrowing stores of 32-bit lanes on x86-64, of all lanes and of the first ones
#
# gcc translates the conversions of :mod:`microc.isa.portable` element by element.

_LETTERS = {1: "b", 2: "w"}
"""Suffix of instruction names by bytes of an element."""
_LOWER = {
    1: "0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1",
    2: "0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1",
}
"""Shuffle masks that gather the low one or two bytes of four words."""
_JOINED = {
    1: format_binary_instruction("vpermd", "t", "((int32x8){0, 4, 0, 0, 0, 0, 0, 0})", "s"),
    2: format_unary_instruction("vpermq $8,", "t", "s"),
}
"""C statements that gather the results of both halves of a 256-bit vector, by bytes of an element."""
_HALVES = '__asm__("vcvtph2ps %1, %0" : "=v"(r) : "m"(*(const uint16_t (*)[{}])p));'
_FIRST = "const uint16_t m = (uint16_t)((1U << n) - 1U);"


def build_memory_access_bodies(lanes: int, has_avx: bool, has_masks: bool) -> Iterator[tuple[str, str]]:
    """Yield (intrinsic name, C body) for loads and stores.

    ``has_avx``: use the instructions of AVX2 or AVX-512. ``has_masks``: use the masks of AVX-512."""
    for dtype, short in MOVED.items():
        size, word, kind = dtypes.nbytes(dtype), f"{short}_i32x{lanes}", "v" if has_avx else "x"
        widens = f"{'v' if has_avx else ''}pmov{'s' if dtype.startswith('i') else 'z'}x{_LETTERS[size]}d"
        loaded = f'__asm__("{widens} %1, %0" : "={kind}"(r) : "m"(*(const {dtypes.c_name(dtype)} (*)[{lanes}])p));'
        yield f"load_{word}", f"int32x{lanes} r;\n{loaded}\nreturn r;"
        narrowed = (
            format_unary_instruction(f"vpmovd{_LETTERS[size]}", "t", "a")
            if has_masks
            else _format_narrowing_by_shuffles(lanes, size, has_avx)
        )
        yield (
            f"store_{word}",
            f"{_format_register_type(lanes * (size if has_masks else 4))}\n{narrowed}\nmemcpy(p, &r, {lanes * size}U);",
        )
        if has_masks:
            part = (
                f"{_format_register_type(lanes * size)}\nt q;\n{_format_masked_load(f'vmovdqu{8 * size}', dtype, 'q')}"
            )
            yield f"load_{word}_first", f"{part}\n{format_unary_instruction(widens, f'int32x{lanes}', 'q')}\nreturn r;"
            yield f"store_{word}_first", _format_masked_store(f"vpmovd{_LETTERS[size]}", dtype)
    for packed in WORD_LANES if has_avx else ():  # gcc takes many through general registers
        source = f"*(const {dtypes.c_name(packed.dtype)} (*)[{packed.count}])p"
        text = f'__asm__("vpbroadcastd %1, %0" : "=v"(r) : "m"({source}));'
        yield f"dup_{packed.suffix}_i32x{lanes}", f"int32x{lanes} r;\n{text}\nreturn r;"
    if has_avx:
        yield f"load_f16_f32x{lanes}", f"float32x{lanes} r;\n{_HALVES.format(lanes)}\nreturn r;"
    for element, moves in (("float32", "vmovups"), ("int32", "vmovdqu32")) if has_masks else ():
        word, loaded = (
            f"{SUFFIXES[element]}_{SUFFIXES[element]}x{lanes}_first",
            _format_masked_load(moves, element, "r"),
        )
        yield f"load_{word}", f"{element}x{lanes} r;\n{loaded}\nreturn r;"
        yield f"store_{word}", _format_masked_store(moves, element)


def _format_register_type(byte_count: int) -> str:
    """Return the C declaration of the type ``t`` of a vector register that contains ``byte_count`` bytes."""
    return f"typedef int8_t t __attribute__((vector_size({max(16, byte_count)})));"


def _format_narrowing_by_shuffles(lanes: int, element_bytes: int, has_avx: bool) -> str:
    """Return the C that gathers the low ``element_bytes`` bytes of all 32-bit lanes by shuffles."""
    if lanes == 4:
        return format_binary_instruction(
            "vpshufb" if has_avx else "pshufb", "t", "a", f"((t){{{_LOWER[element_bytes]}}})"
        )
    moved = format_binary_instruction(
        "vpshufb", "t", "a", f"((t){{{_LOWER[element_bytes]},\n    {_LOWER[element_bytes]}}})", "s"
    )
    return f"{moved}\n{_JOINED[element_bytes]}"


def _format_masked_load(mnemonic: str, dtype: str, result_name: str) -> str:
    """Return the C that loads the first n elements at p into ``result_name``, by an AVX-512 mask."""
    source = f'"m"(*(const {dtypes.c_name(dtype)} (*)[n])p)'
    return f'{_FIRST}\n__asm__("{mnemonic} %1, %0%{{%2%}}%{{z%}}" : "=v"({result_name}) : {source}, "Yk"(m));'


def _format_masked_store(mnemonic: str, dtype: str) -> str:
    """Return the C that stores the first n lanes at p, by an AVX-512 mask. The elements in memory behind them are
    unchanged."""
    target = f'"+m"(*({dtypes.c_name(dtype)} (*)[n])p)'
    return f'{_FIRST}\n__asm__("{mnemonic} %1, %0%{{%2%}}" : {target} : "v"(a), "Yk"(m));'


# ---- x86-64 by the levels of compilers and distributions: v2 has SSE4.2, v3 AVX2 and fused multiply-add, v4 AVX-512 and twice as
# many registers

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


def _build_x86_instruction_set(
    name: str,
    guard: str,
    lane_counts: tuple[int, ...],
    features: frozenset[str] = frozenset(),
    *,
    has_avx: bool = True,
    has_masks: bool = False,
) -> InstructionSet:
    """Build the instruction set of an x86-64 microarchitecture level, for the vector widths ``lane_counts`` (numbers of
    lanes)."""
    words = (
        (word, text)
        for n in lane_counts
        for word, text in (*build_arithmetic_bodies(n, has_avx), *build_memory_access_bodies(n, has_avx, has_masks))
    )
    return InstructionSet(
        name, guard, {word: build_vector_instruction_body(word, text) for word, text in words}, features
    )


def _build_vnni_bodies() -> Iterator[tuple[str, str]]:
    """Yield (intrinsic name, C body) for the dot products of VNNI."""
    for lanes in (4, 8, 16):
        yield f"dot2_i32x{lanes}", format_accumulating_instruction("vpdpwssd", "a", "b")
        yield f"dot4_u8_i32x{lanes}", format_accumulating_instruction("vpdpbusd", "a", "b")


_V2, _V3, _V4 = (
    "defined(__x86_64__) && defined(__SSE4_2__)",
    "defined(__AVX2__) && defined(__FMA__)",
    "defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)",
)
_VECTORS = frozenset({"vectors", "fma"})
SSE4 = _build_x86_instruction_set("SSE4.2", _V2, (4,), frozenset({"vectors"}), has_avx=False)
AVX2 = _build_x86_instruction_set("AVX2", _V3, (4, 8), _VECTORS)
AVX512 = _build_x86_instruction_set("AVX-512", _V4, (4, 8, 16), _VECTORS, has_masks=True)
VNNI = InstructionSet(
    "AVX-512 VNNI",
    "defined(__AVX512VNNI__)",
    {name: Body(text, (("vector", 1),)) for name, text in _build_vnni_bodies()},
)
_FPU = frozenset({"fpu"})
_PIPELINED = 10
"""Vector multiply-adds in flight: two units, five cycles of latency (Haswell, Zen). From Skylake and Zen 3 on the
latency is four cycles. Source: Agner Fog's instruction tables."""
_CACHE = {"x86-64-v2": 1 << 18, "x86-64-v3": 1 << 19, "x86-64-v4": 1 << 20, "x86-64-v4-vnni": 1 << 20}
"""Least size of the second-level cache of common computers of a level, in bytes: Nehalem, Zen, Skylake-SP. Computers
with a larger cache lose nothing."""
_UNITS = {
    "x86-64-v2": ("sse4.2", "popcnt"),
    "x86-64-v3": ("avx2", "fma", "bmi", "bmi2"),
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    "x86-64-v4-vnni": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vnni"),
}
"""CPU features that each level adds to the levels below. The probe tests a computer for these."""


def _build_x86_core(
    name: str, machine: str, lane_counts: tuple[int, ...], register_count: int, guard: str, *sets: InstructionSet
) -> Core:
    """Build the core of an x86-64 microarchitecture level, with its probe (the test at run time whether a computer has it)."""
    units = build_gnu_vector_set(f"vectors of {name}", guard)
    test = " && ".join(f'__builtin_cpu_supports("{unit}")' for unit in _UNITS[name])
    probe = Probe(guard, test, attribute='__attribute__((target("arch=x86-64")))')
    every = (*sets, units, HOST_WORDS)
    return Core(
        name,
        "x86",
        replace(COSTS, vector_registers=register_count),
        every,
        _FPU,
        machine=machine,
        lanes=lane_counts,
        vectors=register_count,
        pipelined=_PIPELINED,
        cache=_CACHE[name],
        probe=probe,
    )


X86 = Family(
    "x86",
    (
        _build_x86_core("x86-64-v2", "-march=x86-64-v2", (4,), 16, _V2, SSE4),
        _build_x86_core("x86-64-v3", "-march=x86-64-v3", (8, 4), 16, _V3, AVX2),
        _build_x86_core("x86-64-v4", "-march=x86-64-v4", (16, 8, 4), 32, _V4, AVX512),
        _build_x86_core("x86-64-v4-vnni", "-march=x86-64-v4 -mavx512vnni", (16, 8, 4), 32, _V4, VNNI, AVX512),
    ),
    PLAIN,
    threads=True,
    flags=("unroll-loops", "no-tree-vectorize", "O3"),
    computers=("x86_64", "AMD64"),
)
