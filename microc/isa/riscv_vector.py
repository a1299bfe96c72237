"""RISC-V's vectors, version 1.0: four, eight or sixteen lanes in one, two or four registers of at least 128 bits, or as many as
four or eight registers of a machine hold.

Bodies are the functions of ``riscv_vector.h``, each told how many lanes it has, so that the same code is right whatever the
length of a machine's registers. Numbers beside vectors are operands of instructions, the first n lanes are a shorter vector, and
runs of memory take as much as eight registers hold.
"""

from __future__ import annotations

from collections.abc import Iterator

from microc import dtypes
from microc.isa.base import Body, Turns
from microc.isa.library import LIBRARY, PORTABLE_LIBRARY
from microc.isa.riscv_vector_float import RVV_FLOAT
from microc.isa.riscv_width import (
    COMPARED,
    GUARD,
    Width,
    Words,
    bodies,
    group,
    mask,
    offsets,
    signed,
    types,
    unsigned,
    v,
)
from microc.isa.sets import Core, Costs, InstructionSet, Probe
from microc.isa.vocabulary.lanes import MEMORY, WIDTHS
from microc.isa.vocabulary.scalable import LEAST
from microc.isa.vocabulary.words import COPIED
from microc.isa.words import WORD_MOVES
from microc.tir.lower.lane_operations import SCALABLE_NUMBERS
from microc.tir.strips import LENGTH

_UP, _DOWN = "__RISCV_VXRM_RNU", "__RISCV_VXRM_RDN"
"""How numbers in fixed point are rounded: half up, down."""
_STEPS = {32: 0, 16: 1, 8: 2}
"""Instructions that narrow numbers of 32 bits."""


def _integers(lanes: Width) -> Words:
    end, n = lanes.vector("i32"), lanes
    for name in ("add", "sub", "mul", "min", "max", "and", "or", "xor"):
        yield f"{name}_{end}", 1, f"return {v(name, 'a', 'b', n)};"
    for name in ("add", "sub", "mul"):
        yield f"{name}_n_{end}", 1, f"return {v(name, 'a', 'b', n)};"
    for name, mode in (("doubling_high_mul", _UP), ("doubling_high_floor", _DOWN)):
        for each in (name, f"{name}_n"):
            yield f"{each}_{end}", 1, f"return __riscv_vsmul(a, b, {mode}, {n});"
    half = v("and", v("sra", v("mul", "a", "b", n), 31, n), 1, n)
    yield f"high_product_{end}", 1, f"return {v('mulh', 'a', 'b', n)};"
    yield f"high_mul_round_{end}", 5, f"return {v('add', v('mulh', 'a', 'b', n), half, n)};"
    yield f"mac_n_{end}", 1, f"return {v('macc', 'a', 'n', 'b', n)};"
    yield f"dup_{end}", 1, f"return {v(f'mv_v_x_i32{group(n)}', 'n', n)};"
    numbered = signed(v(f"id_v_u32{group(n)}", n), n)
    yield f"ramp_{end}", 2, f"return {v('mul', numbered, 'n', n)};"
    for op in COMPARED:
        yield f"select_{op}_{end}", 2, f"return {v('merge', 'y', 'x', v(f'ms{op}', 'a', 'b', n), n)};"


def _shifts(lanes: Width) -> Words:
    """To the left, or to the right where counts are negative. Instructions take counts modulo 32, and rounding is asked for 32,
    which leaves nothing."""
    end, n = lanes.vector("i32"), lanes
    left, right = unsigned("b", n), unsigned(v("neg", "b", n), n)
    chosen = mask(n, v("mslt", "b", 0, n)), v("sll", "a", left, n)
    yield f"shl_{end}", 4, f"{chosen[0]}return {v('sra_mu', 'm', chosen[1], 'a', right, n)};"
    rounded = f"const {n.vector('int32')} r = {v('ssra_mu', 'm', chosen[1], 'a', right, _UP, n)};\n"
    yield f"shift_round_{end}", 6, f"{chosen[0]}{rounded}return {v('merge', 'r', 0, v('mslt', 'b', -31, n), n)};"
    number = "if (b < 0) {{\n    return {};\n}}\n" + f"return {v('sll', 'a', '(size_t)b', n)};"
    yield f"shl_n_{end}", 1, number.format(v("sra", "a", "(size_t)-b", n))
    nothing = f"if (b < -31) {{\n    return {v(f'mv_v_x_i32{group(n)}', 0, n)};\n}}\n"
    yield f"shift_round_n_{end}", 1, nothing + number.format(v("ssra", "a", "(size_t)-b", _UP, n))


def _loads(lanes: Width) -> Words:
    """Widened, from neighbours or offsets in elements; of the first n lanes, others are zero."""
    end = lanes.vector("i32")
    for dtype, short in MEMORY.items():
        bits, narrow = dtypes.info(dtype).bits, f"{short}{group(lanes, dtypes.info(dtype).bits)}"
        zero = v(f"mv_v_x_{narrow}", 0, lanes)
        found = {
            f"load_{short}_{end}": v(f"le{bits}_v_{narrow}", "p", lanes),
            f"load_{short}_{end}_first": v(f"le{bits}_tu", zero, "p", "(size_t)n"),
            f"gather_{short}_{end}": v("luxei32", "p", offsets(lanes, bits), lanes),
            f"gather_{short}_{end}_first": v("luxei32_tu", zero, "p", offsets(lanes, bits), "(size_t)n"),
        }
        for name, value in found.items():
            if short[0] == "i":
                widened = value if bits == 32 else v(f"sext_vf{32 // bits}", value, lanes)
            else:
                widened = signed(v(f"zext_vf{32 // bits}", value, lanes), lanes)
            yield name, int(bits < 32), f"return {widened};"


def _stores(lanes: Width) -> Words:
    """Narrowed, to neighbours or offsets in elements, in the order of lanes; all or the first n."""
    end = lanes.vector("i32")
    for dtype, short in MEMORY.items():
        bits = dtypes.info(dtype).bits
        p = "p" if short[0] == "i" else f"(int{bits}_t *)p"
        values = {name: _narrowed(name, lanes, bits) for name in ("a", "b")}
        for suffix, count in (("", str(lanes)), ("_first", "(size_t)n")):
            yield f"store_{short}_{end}{suffix}", _STEPS[bits], f"{v(f'se{bits}', p, values['a'], count)};"
            scattered = v("soxei32", p, offsets(lanes, bits), values["b"], count)
            yield f"scatter_{short}_{end}{suffix}", _STEPS[bits] + int(bits > 8), f"{scattered};"


def _narrowed(vector: str, lanes: Width, bits: int) -> str:
    for _ in range(_STEPS[bits]):
        vector = v("ncvt_x", vector, lanes)
    return vector


_COPIED = """__asm__ volatile(
    "0: vsetvli t0, %[n], e{bits}, m8, ta, ma\\n"
    "vle{bits}.v v8, (%[q])\\n"
    "vse{bits}.v v8, (%[p])\\n"
    "sub %[n], %[n], t0\\n"
    "slli t0, t0, {shift}\\n"
    "add %[q], %[q], t0\\n"
    "add %[p], %[p], t0\\n"
    "bnez %[n], 0b"
    : [p] "+r"(p), [q] "+r"(q), [n] "+r"(n)
    :
    : "t0", "memory", "vl", "vtype", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15");"""
_FILLED = """__asm__ volatile(
    "vsetvli t0, zero, e{bits}, m8, ta, ma\\n"
    "vmv.v.x v8, %[value]\\n"
    "0: vsetvli t0, %[n], e{bits}, m8, ta, ma\\n"
    "vse{bits}.v v8, (%[p])\\n"
    "sub %[n], %[n], t0\\n"
    "slli t0, t0, {shift}\\n"
    "add %[p], %[p], t0\\n"
    "bnez %[n], 0b"
    : [p] "+r"(p), [n] "+r"(n)
    : [value] "r"(value)
    : "t0", "memory", "vl", "vtype", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15");"""
"""As much as eight registers hold at a time, read before it is written, so that runs may move down over themselves."""


def _runs() -> Iterator[tuple[str, Body]]:
    for dtype, short in COPIED.items():
        size = dtypes.nbytes(dtype)
        places = {"bits": 8 * size, "shift": size.bit_length() - 1}
        elements, each = 128 // size, (("vector_store", 1), ("branch", 1))
        copied = Turns("n", elements, (("vector_load", 1), ("alu", 5), *each))
        yield f"copy_{short}", Body(_COPIED.format(**places), (("alu", 1),), copied)
        if short != "f32":
            filled = Turns("n", elements, (("alu", 4), *each))
            yield f"fill_{short}", Body(_FILLED.format(**places), (("alu", 3),), filled)


def _strips(lanes: Width) -> Words:
    """What vectors of any length have beside."""
    end, n = lanes.vector("i32"), lanes
    yield f"mac_{end}", 1, f"return {v('macc', 'a', 'b', 'c', n)};"
    yield f"neg_{end}", 1, f"return {v('neg', 'a', n)};"
    yield f"mac_short_{end}", 1, f"return {v('wmacc', 'a', 'b', 'c', n)};"
    yield f"mac_short_n_{end}", 1, f"return {v('wmacc', 'a', '(int16_t)n', 'b', n)};"
    for short, wide in (("i8", "sext"), ("u8", "zext")):
        loaded = v(f"{wide}_vf2", v(f"le8_v_{short}{group(n, 8)}", "p", n), n)
        signed_short = loaded if short == "i8" else f"__riscv_vreinterpret_i16{group(n, 16)}({loaded})"
        yield f"load_{short}_{n.vector('i16')}", 1, f"return {signed_short};"
    yield f"load_i16_{n.vector('i16')}", 0, f"return {v(f'le16_v_i16{group(n, 16)}', 'p', n)};"
    for number, places in (("", unsigned("b", n)), ("_n", "(size_t)b")):
        yield f"right{number}_{end}", 1, f"return {v('sra', 'a', places, n)};"
        yield f"right_round{number}_{end}", 1, f"return {v('ssra', 'a', places, _UP, n)};"
    for name in SCALABLE_NUMBERS:
        yield f"{name}_n_{end}", 1, f"return {v(name, 'a', 'b', n)};"
    halves = v("nclip", "a", 0, _DOWN, n)
    yield f"store_saturated_i16_{end}", 1, f"{v('se16', 'p', halves, n)};"
    yield f"store_saturated_i8_{end}", 2, f"{v('se8', 'p', v('nclip', halves, 0, _DOWN, n), n)};"


def _whole(lanes: Width) -> Words:
    yield from (*_integers(lanes), *_shifts(lanes), *_loads(lanes), *_stores(lanes))
    if lanes.scalable:
        yield from _strips(lanes)


_LENGTHS = {
    f"{LENGTH}{n}": Body(f"return (int32_t)__riscv_vsetvl_e32{group(Width(n))}((size_t)n);", (("alu", 1),))
    for n in LEAST
}
RVV = InstructionSet(
    "vectors of integers",
    GUARD,
    {**bodies(_whole), **_LENGTHS, **dict(_runs())},
    frozenset({"vectors", "scalable"}),
    unit=types("int32", "int16"),
)
_CYCLES = {"load": 2.0, "taken": 2.0, "divide": 32.0}
_INTEGER = Costs(26, 0, 2047, frozenset({"compared"}), 3.5, {**PORTABLE_LIBRARY, "multiply_long": 2.0}, _CYCLES)
_FLOAT = Costs(26, 30, 2047, frozenset({"compared"}), 3.5, {**LIBRARY, "multiply_long": 2.0}, _CYCLES)
_LANES = tuple(sorted(WIDTHS, reverse=True))
_PROBE = Probe(
    "defined(__riscv_vector) && defined(__linux__)",
    "(getauxval(AT_HWCAP) & (1UL << ('V' - 'A'))) != 0UL",
    "sys/auxv.h",
)


def _core(name: str, costs: Costs, *features: str, floats: bool, length: str = "") -> Core:
    """``length``: the extension that promises registers of 128 bits, where the name does not."""
    sets = (RVV_FLOAT, RVV, WORD_MOVES) if floats else (RVV, WORD_MOVES)
    machine = f"-march={name}{length}"
    every = frozenset({"mul64", *features})
    return Core(
        name, "riscv", costs, sets, every, machine, machine, lanes=_LANES, vectors=32 * 4 // _LANES[0], probe=_PROBE
    )


RVV_CORES = (
    _core("rv32imc_zve32x", _INTEGER, floats=False, length="_zvl128b"),
    _core("rv32imafc_zve32f", _FLOAT, "fpu", "fma", floats=True, length="_zvl128b"),
    _core("rv64gcv", _FLOAT, "fpu", "fma", floats=True),
)
