# SPDX-License-Identifier: Apache-2.0
"""RISC-V cores: vectors (RVV 1.0), and scalar extensions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.isa.instruction_set import (
    UNSCHEDULED,
    Body,
    BodyLoop,
    Core,
    Costs,
    Family,
    InstructionSet,
    Probe,
    VectorUnit,
    vector_dtype,
)
from microc.isa.portable import LIBRARY, PORTABLE_LIBRARY, WORD_MOVES
from microc.isa.small_families import REFERENCE, with_unit
from microc.isa.vocabulary.vector_lanes import LEAST, WIDTHS
from microc.tir.lower.lane_code import SCALABLE_SCALAR_OPS, TYPES
from microc.tir.names import SUFFIXES
from microc.tir.symbolic import LENGTH

# ---- Naming helpers: LMUL, types and intrinsic suffixes of ``riscv_vector.h``

VECTOR_GUARD = "defined(__riscv_vector) && __riscv_v_min_vlen >= 128 && __riscv_v_intrinsic >= 12000"
"""C preprocessor condition of a compiler with the RVV intrinsics of version 0.12: clang 17, gcc 14 and later."""
COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")

CountedBodies = Iterator[tuple[str, int, str]]
"""Iterator over (name of the intrinsic, number of instructions without memory accesses, C body)."""


@frozen
class VectorWidth:
    """The width of an RVV vector: a fixed number of lanes or, if ``scalable``, that number times the register length
    over 128 bits. Of a scalable vector ``vl`` lanes are active."""

    lanes: int
    scalable: bool = False

    def __str__(self) -> str:
        """Return the C expression of the number of active lanes."""
        return "(size_t)vl" if self.scalable else str(self.lanes)

    def vector(self, element: str) -> str:
        """Return the TIR dtype of a vector of this width whose elements have dtype ``element``."""
        return vector_dtype(element, self.lanes, self.scalable)


def rvv_call(name: str, *operands: str | int | VectorWidth) -> str:
    """Return the C call of the intrinsic function ``__riscv_v<name>`` of ``riscv_vector.h``. The last operand is the
    number of lanes."""
    return f"__riscv_v{name}({', '.join(map(str, operands))})"


def register_group_suffix(width: VectorWidth, element_bits: int = 32) -> str:
    """Return the register group (LMUL) that a vector occupies, as in C names: ``m4`` for four registers, ``mf2`` for
    half a register.

    ``element_bits``: bits of an element."""
    filled = width.lanes * element_bits
    return f"m{filled // 128}" if filled >= 128 else f"mf{128 // filled}"


def reinterpret_as_unsigned(vector: str, width: VectorWidth) -> str:
    """Return the C expression that reinterprets a vector of 32-bit lanes as uint32."""
    return f"__riscv_vreinterpret_u32{register_group_suffix(width)}({vector})"


def reinterpret_as_signed(vector: str, width: VectorWidth) -> str:
    """Return the C expression that reinterprets a vector of 32-bit lanes as int32."""
    return f"__riscv_vreinterpret_i32{register_group_suffix(width)}({vector})"


def format_mask_declaration(width: VectorWidth, condition: str) -> str:
    """Return the C declaration of a mask ``m`` that is initialised with the expression ``condition``."""
    return f"const vbool{128 // width.lanes}_t m = {condition};\n"


def format_byte_offsets(width: VectorWidth, element_bits: int) -> str:
    """Return the C expression that converts the vector ``a`` of element offsets to byte offsets. Elements have
    ``element_bits`` bits."""
    elements = reinterpret_as_unsigned("a", width)
    return elements if element_bits == 8 else rvv_call("sll", elements, element_bits // 16, width)


ALL_WIDTHS = (*map(VectorWidth, WIDTHS), *(VectorWidth(n, scalable=True) for n in LEAST))


def vector_unit_of_dtypes(*element_dtypes: str) -> VectorUnit:
    """Return the vector unit with the C types of vectors of all widths whose elements have these dtypes."""
    bits = {element: dtypes.dtype_parts(element).bits for element in element_dtypes}
    names = {
        n.vector(element): f"v{element}{register_group_suffix(n, bits[element])}_t"
        for n in ALL_WIDTHS
        for element in element_dtypes
    }
    return VectorUnit(names, "riscv_vector.h")


def build_bodies_of_all_widths(build_bodies_of_width: Callable[[VectorWidth], CountedBodies]) -> dict[str, Body]:
    """Call ``build_bodies_of_width`` for every vector width; return all C bodies by the name of the intrinsic.

    Intrinsics ``..._first`` are omitted for scalable vectors, which pass the number of lanes as ``vl``."""
    widths = ((n, *word) for n in ALL_WIDTHS for word in build_bodies_of_width(n))
    return {
        name: _body_with_operation_counts(name, count, text)
        for n, name, count, text in widths
        if not (n.scalable and "_first" in name)
    }


def _body_with_operation_counts(name: str, other_instructions: int, c_text: str) -> Body:
    """Build a C body with its operation counts: the memory access that the intrinsic's name implies, and
    ``other_instructions`` vector instructions."""
    memory = {"load": "vector_load", "gather": "vector_load", "store": "vector_store", "scatter": "vector_store"}
    access = memory.get(name.partition("_")[0])
    return Body(
        c_text,
        (*(((access, 1),) if access else ()), *((("vector", other_instructions),) if other_instructions else ())),
    )


# ---- Vectors of floats

_FLOAT_GUARD = f"{VECTOR_GUARD} && __riscv_v_elen_fp >= 32"


def _build_load_16_bit_float_bodies(width: VectorWidth) -> CountedBodies:
    """Yield the C bodies of loads that widen float16 and bfloat16, of all lanes or of the first n lanes.

    Exponent and fraction of a float16, moved to the fields of a float32, represent its number times 2**-112, also
    for subnormals. The largest exponent represents infinity and NaN, and is set separately."""
    n, end, whole, half = (
        width,
        width.vector("f32"),
        f"f32{register_group_suffix(width)}",
        f"u16{register_group_suffix(width, 16)}",
    )
    zero = rvv_call(f"mv_v_x_{half}", 0, n)
    for first, value in (
        ("", rvv_call(f"le16_v_{half}", "p", n)),
        ("_first", rvv_call("le16_tu", zero, "p", "(size_t)n")),
    ):
        wide = rvv_call("zext_vf2", value, n)
        shifted = f"__riscv_vreinterpret_{whole}({rvv_call('sll', wide, 16, n)})"
        yield f"load_bf16_{end}{first}", 2, f"return {shifted};"
        unsigned_type = f"vuint32{register_group_suffix(n)}_t"
        fields = rvv_call("sll", rvv_call("and", "x", "0x7FFF", n), 13, n)
        scaled = rvv_call("fmul", f"__riscv_vreinterpret_{whole}(m)", "5.192296858534828e33f", n)
        number = f"const {unsigned_type} f = __riscv_vreinterpret_u32{register_group_suffix(n)}({scaled});\n"
        far = rvv_call("or_mu", "far", "f", "f", "0x7F800000", n)
        ended = f"{format_mask_declaration(n, rvv_call('msgtu', 'm', '0x0F7FFFFF', n)).replace(' m =', ' far =')}"
        sign = rvv_call("sll", rvv_call("and", "x", "0x8000", n), 16, n)
        parts = f"const {unsigned_type} x = {wide};\nconst {unsigned_type} m = {fields};\n{number}{ended}"
        yield (
            f"load_f16_{end}{first}",
            9,
            f"{parts}return __riscv_vreinterpret_{whole}({rvv_call('or', far, sign, n)});",
        )


def _build_float_vector_bodies(width: VectorWidth) -> CountedBodies:
    """Yield the C bodies of the intrinsics on vectors of float32."""
    end, n, whole = width.vector("f32"), width, width.vector("i32")
    for name in ("add", "sub", "mul", "div"):
        yield f"{name}_{end}", 1, f"return {rvv_call(f'f{name}', 'a', 'b', n)};"
    for name, op in (("min", "lt"), ("max", "gt")):
        yield f"{name}_{end}", 2, f"return {rvv_call('merge', 'b', 'a', rvv_call(f'mf{op}', 'a', 'b', n), n)};"
    yield f"fma_{end}", 1, f"return {rvv_call('fmacc', 'c', 'a', 'b', n)};"
    yield f"fma_n_{end}", 1, f"return {rvv_call('fmacc', 'c', 'n', 'a', n)};"
    yield f"sqrt_{end}", 1, f"return {rvv_call('fsqrt', 'a', n)};"
    yield f"fabs_{end}", 1, f"return {rvv_call('fabs', 'a', n)};"
    for name, mode in (("rint", ()), ("floor", ("__RISCV_FRM_RDN",))):
        fraction = rvv_call("mflt", rvv_call("fabs", "a", n), "8388608.0f", n)
        rounded = rvv_call("fcvt_f", rvv_call("fcvt_x", "a", *mode, n), n)
        restored = rvv_call("fsgnj_mu", "m", "a", rounded, "a", n)
        yield f"{name}_{end}", 5, f"{format_mask_declaration(n, fraction)}return {restored};"
    yield f"dup_{end}", 1, f"return {rvv_call(f'fmv_v_f_f32{register_group_suffix(n)}', 'n', n)};"
    for op in COMPARED:
        yield f"select_{op}_{end}", 2, f"return {rvv_call('merge', 'y', 'x', rvv_call(f'mf{op}', 'a', 'b', n), n)};"
    yield f"load_f32_{end}", 0, f"return {rvv_call(f'le32_v_f32{register_group_suffix(n)}', 'p', n)};"
    zero = rvv_call(f"fmv_v_f_f32{register_group_suffix(n)}", "0.0f", n)
    yield f"load_f32_{end}_first", 1, f"return {rvv_call('le32_tu', zero, 'p', '(size_t)n')};"
    yield from _build_load_16_bit_float_bodies(n)
    yield f"store_f32_{end}_first", 0, f"{rvv_call('se32', 'p', 'a', '(size_t)n')};"
    yield f"gather_f32_{end}", 1, f"return {rvv_call('luxei32', 'p', format_byte_offsets(n, 32), n)};"
    yield f"store_f32_{end}", 0, f"{rvv_call('se32', 'p', 'a', n)};"
    yield f"from_i32_{end}", 1, f"return {rvv_call('fcvt_f', 'a', n)};"
    unused = "(void)vl;\n" if n.scalable else ""
    yield f"of_bits_{end}", 0, f"{unused}return __riscv_vreinterpret_f32{register_group_suffix(n)}(a);"
    yield f"bits_{whole}", 0, f"{unused}return {reinterpret_as_signed('a', n)};"
    yield f"nearest_{whole}", 1, f"return {rvv_call('fcvt_x', 'a', n)};"
    yield f"toward_zero_{whole}", 1, f"return {rvv_call('fcvt_rtz_x', 'a', n)};"


RVV_FLOAT = InstructionSet(
    "vectors of floats",
    _FLOAT_GUARD,
    build_bodies_of_all_widths(_build_float_vector_bodies),
    unit=vector_unit_of_dtypes("float32"),
)


# ---- Vectors of integers: four, eight or sixteen lanes in one, two or four registers of at least 128 bits; or scalable vectors,
# of as many lanes as four or eight registers of a machine contain
#
# Bodies call the functions of ``riscv_vector.h`` with the number of lanes, so that the same code is correct for any register
# length. Instructions accept scalar operands. A load or store of the first n lanes uses a shorter vector. Copies of memory use
# eight registers at once.

_UP, _DOWN = "__RISCV_VXRM_RNU", "__RISCV_VXRM_RDN"
"""Rounding modes of fixed-point instructions: half up, and down."""
_STEPS = {32: 0, 16: 1, 8: 2}
"""Number of halving instructions that narrow an int32 to 32, 16 or 8 bits."""


def _build_integer_arithmetic_bodies(width: VectorWidth) -> CountedBodies:
    """Yield the C bodies of arithmetic on vectors of int32."""
    end, n = width.vector("i32"), width
    for name in ("add", "sub", "mul", "min", "max", "and", "or", "xor"):
        yield f"{name}_{end}", 1, f"return {rvv_call(name, 'a', 'b', n)};"
    for name in ("add", "sub", "mul"):
        yield f"{name}_n_{end}", 1, f"return {rvv_call(name, 'a', 'b', n)};"
    for name, mode in (("doubling_high_mul", _UP), ("doubling_high_floor", _DOWN)):
        for variant in (name, f"{name}_n"):
            yield f"{variant}_{end}", 1, f"return __riscv_vsmul(a, b, {mode}, {n});"
    half = rvv_call("and", rvv_call("sra", rvv_call("mul", "a", "b", n), 31, n), 1, n)
    yield f"high_product_{end}", 1, f"return {rvv_call('mulh', 'a', 'b', n)};"
    yield f"high_mul_round_{end}", 5, f"return {rvv_call('add', rvv_call('mulh', 'a', 'b', n), half, n)};"
    yield f"mac_n_{end}", 1, f"return {rvv_call('macc', 'a', 'n', 'b', n)};"
    yield f"dup_{end}", 1, f"return {rvv_call(f'mv_v_x_i32{register_group_suffix(n)}', 'n', n)};"
    numbered = reinterpret_as_signed(rvv_call(f"id_v_u32{register_group_suffix(n)}", n), n)
    yield f"ramp_{end}", 2, f"return {rvv_call('mul', numbered, 'n', n)};"
    for op in COMPARED:
        yield f"select_{op}_{end}", 2, f"return {rvv_call('merge', 'y', 'x', rvv_call(f'ms{op}', 'a', 'b', n), n)};"


def _build_shift_bodies(width: VectorWidth) -> CountedBodies:
    """Yield the C bodies of shifts to the left, or to the right if the count is negative.

    The instructions take counts modulo 32. Rounding shifts by 32 to the right also occur; their result is 0."""
    end, n = width.vector("i32"), width
    left, right = reinterpret_as_unsigned("b", n), reinterpret_as_unsigned(rvv_call("neg", "b", n), n)
    chosen = format_mask_declaration(n, rvv_call("mslt", "b", 0, n)), rvv_call("sll", "a", left, n)
    yield f"shl_{end}", 4, f"{chosen[0]}return {rvv_call('sra_mu', 'm', chosen[1], 'a', right, n)};"
    rounded = f"const {n.vector('int32')} r = {rvv_call('ssra_mu', 'm', chosen[1], 'a', right, _UP, n)};\n"
    yield (
        f"shift_round_{end}",
        6,
        f"{chosen[0]}{rounded}return {rvv_call('merge', 'r', 0, rvv_call('mslt', 'b', -31, n), n)};",
    )
    number = "if (b < 0) {{\n    return {};\n}}\n" + f"return {rvv_call('sll', 'a', '(size_t)b', n)};"
    yield f"shl_n_{end}", 1, number.format(rvv_call("sra", "a", "(size_t)-b", n))
    nothing = f"if (b < -31) {{\n    return {rvv_call(f'mv_v_x_i32{register_group_suffix(n)}', 0, n)};\n}}\n"
    yield f"shift_round_n_{end}", 1, nothing + number.format(rvv_call("ssra", "a", "(size_t)-b", _UP, n))


def _build_widening_load_bodies(width: VectorWidth) -> CountedBodies:
    """Yield the C bodies of widening loads, of contiguous elements or of elements at given offsets. Loads of
    the first n lanes set the others to zero."""
    end = width.vector("i32")
    for dtype, short in TYPES.items():
        bits, narrow = (
            dtypes.dtype_parts(dtype).bits,
            f"{short}{register_group_suffix(width, dtypes.dtype_parts(dtype).bits)}",
        )
        zero = rvv_call(f"mv_v_x_{narrow}", 0, width)
        loads = {
            f"load_{short}_{end}": rvv_call(f"le{bits}_v_{narrow}", "p", width),
            f"load_{short}_{end}_first": rvv_call(f"le{bits}_tu", zero, "p", "(size_t)n"),
            f"gather_{short}_{end}": rvv_call("luxei32", "p", format_byte_offsets(width, bits), width),
            f"gather_{short}_{end}_first": rvv_call(
                "luxei32_tu", zero, "p", format_byte_offsets(width, bits), "(size_t)n"
            ),
        }
        for name, value in loads.items():
            if short[0] == "i":
                widened = value if bits == 32 else rvv_call(f"sext_vf{32 // bits}", value, width)
            else:
                widened = reinterpret_as_signed(rvv_call(f"zext_vf{32 // bits}", value, width), width)
            yield name, int(bits < 32), f"return {widened};"


def _build_narrowing_store_bodies(width: VectorWidth) -> CountedBodies:
    """Yield the C bodies of narrowing stores, to contiguous elements or to elements at given offsets, of all
    lanes or of the first n lanes. Lanes are stored in order."""
    end = width.vector("i32")
    for dtype, short in TYPES.items():
        bits = dtypes.dtype_parts(dtype).bits
        p = "p" if short[0] == "i" else f"(int{bits}_t *)p"
        values = {name: _format_narrowed_vector(name, width, bits) for name in ("a", "b")}
        for suffix, count in (("", str(width)), ("_first", "(size_t)n")):
            yield f"store_{short}_{end}{suffix}", _STEPS[bits], f"{rvv_call(f'se{bits}', p, values['a'], count)};"
            scattered = rvv_call("soxei32", p, format_byte_offsets(width, bits), values["b"], count)
            yield f"scatter_{short}_{end}{suffix}", _STEPS[bits] + int(bits > 8), f"{scattered};"


def _format_narrowed_vector(vector: str, width: VectorWidth, bits: int) -> str:
    """Return the C expression of a vector of int32 narrowed to ``bits`` bits; each instruction halves the width."""
    for _ in range(_STEPS[bits]):
        vector = rvv_call("ncvt_x", vector, width)
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
"""C body that fills memory by eight registers at once, as ``_COPIED`` copies memory. ``_COPIED`` reads before it
writes, so that memory may be moved to a lower address that overlaps it."""


def _build_copy_and_fill_bodies() -> Iterator[tuple[str, Body]]:
    """Yield (intrinsic name, C body) for copies and fills of contiguous memory."""
    for dtype, short in SUFFIXES.items():
        size = dtypes.nbytes(dtype)
        fields = {"bits": 8 * size, "shift": size.bit_length() - 1}
        elements, common = 128 // size, (("vector_store", 1), ("branch", 1))
        copy_loop = BodyLoop("n", elements, (("vector_load", 1), ("alu", 5), *common))
        yield f"copy_{short}", Body(_COPIED.format(**fields), (("alu", 1),), copy_loop)
        if short != "f32":
            fill_loop = BodyLoop("n", elements, (("alu", 4), *common))
            yield f"fill_{short}", Body(_FILLED.format(**fields), (("alu", 3),), fill_loop)


def _build_scalable_only_bodies(width: VectorWidth) -> CountedBodies:
    """Yield the C bodies of intrinsics that exist only for scalable vectors."""
    end, n = width.vector("i32"), width
    yield f"mac_{end}", 1, f"return {rvv_call('macc', 'a', 'b', 'c', n)};"
    yield f"neg_{end}", 1, f"return {rvv_call('neg', 'a', n)};"
    yield f"mac_short_{end}", 1, f"return {rvv_call('wmacc', 'a', 'b', 'c', n)};"
    yield f"mac_short_n_{end}", 1, f"return {rvv_call('wmacc', 'a', '(int16_t)n', 'b', n)};"
    for short, wide in (("i8", "sext"), ("u8", "zext")):
        loaded = rvv_call(f"{wide}_vf2", rvv_call(f"le8_v_{short}{register_group_suffix(n, 8)}", "p", n), n)
        signed_short = loaded if short == "i8" else f"__riscv_vreinterpret_i16{register_group_suffix(n, 16)}({loaded})"
        yield f"load_{short}_{n.vector('i16')}", 1, f"return {signed_short};"
    yield f"load_i16_{n.vector('i16')}", 0, f"return {rvv_call(f'le16_v_i16{register_group_suffix(n, 16)}', 'p', n)};"
    for suffix, count in (("", reinterpret_as_unsigned("b", n)), ("_n", "(size_t)b")):
        yield f"right{suffix}_{end}", 1, f"return {rvv_call('sra', 'a', count, n)};"
        yield f"right_round{suffix}_{end}", 1, f"return {rvv_call('ssra', 'a', count, _UP, n)};"
    for name in SCALABLE_SCALAR_OPS:
        yield f"{name}_n_{end}", 1, f"return {rvv_call(name, 'a', 'b', n)};"
    halves = rvv_call("nclip", "a", 0, _DOWN, n)
    yield f"store_saturated_i16_{end}", 1, f"{rvv_call('se16', 'p', halves, n)};"
    yield f"store_saturated_i8_{end}", 2, f"{rvv_call('se8', 'p', rvv_call('nclip', halves, 0, _DOWN, n), n)};"


def _build_int32_vector_bodies(width: VectorWidth) -> CountedBodies:
    """Yield the C bodies of all intrinsics on vectors of int32."""
    yield from (
        *_build_integer_arithmetic_bodies(width),
        *_build_shift_bodies(width),
        *_build_widening_load_bodies(width),
        *_build_narrowing_store_bodies(width),
    )
    if width.scalable:
        yield from _build_scalable_only_bodies(width)


_LENGTHS = {
    f"{LENGTH}{n}": Body(
        f"return (int32_t)__riscv_vsetvl_e32{register_group_suffix(VectorWidth(n))}((size_t)n);", (("alu", 1),)
    )
    for n in LEAST
}
RVV = InstructionSet(
    "vectors of integers",
    VECTOR_GUARD,
    {**build_bodies_of_all_widths(_build_int32_vector_bodies), **_LENGTHS, **dict(_build_copy_and_fill_bodies())},
    frozenset({"vectors", "scalable"}),
    unit=vector_unit_of_dtypes("int32", "int16"),
)
_CYCLES = {"load": 2.0, "taken": 2.0, "divide": 32.0}
_BASE_LENGTHS = {"multiply_long": 2.0, "extension": 2.0}
"""Instructions of operations of the base set: high and low product, and two shifts where Zbb has one instruction."""
_VECTOR_CORE = Costs(26, 0, 2047, frozenset({"compared"}), 3.5, {**PORTABLE_LIBRARY, **_BASE_LENGTHS}, _CYCLES)
_VECTOR_CORE_FPU = Costs(26, 30, 2047, frozenset({"compared"}), 3.5, {**LIBRARY, **_BASE_LENGTHS}, _CYCLES)
_LANES = tuple(sorted(WIDTHS, reverse=True))
_PROBE = Probe(
    "defined(__riscv_vector) && defined(__linux__)",
    "(getauxval(AT_HWCAP) & (1UL << ('V' - 'A'))) != 0UL",
    "sys/auxv.h",
)


def _build_rvv_core(name: str, costs: Costs, *features: str, floats: bool, register_extension: str = "") -> Core:
    """Build a RISC-V core with vectors.

    ``register_extension``: extension that guarantees registers of 128 bits, if ``name`` does not imply it."""
    sets = (RVV_FLOAT, RVV, WORD_MOVES) if floats else (RVV, WORD_MOVES)
    machine = f"-march={name}{register_extension}"
    every = frozenset({"mul64", *features})
    return Core(
        name, "riscv", costs, sets, every, machine, machine, lanes=_LANES, vectors=32 * 4 // _LANES[0], probe=_PROBE
    )


RVV_CORES = (
    _build_rvv_core("rv32imc_zve32x", _VECTOR_CORE, floats=False, register_extension="_zvl128b"),
    _build_rvv_core("rv32imafc_zve32f", _VECTOR_CORE_FPU, "fpu", "fma", floats=True, register_extension="_zvl128b"),
    _build_rvv_core("rv64gcv", _VECTOR_CORE_FPU, "fpu", "fma", floats=True),
)


# ---- CORE-V's extensions for packed SIMD (XCVsimd), clipping (XCValu) and hardware loops (XCVhwlp) of CV32E40P, after its user
# manual (version 1.3.2)
#
# Instructions are written by their encodings (``.insn``), which any RISC-V assembler accepts. Compilers that know the extensions
# define macros; with others, ``-DMICROC_XCV`` enables them. Hardware loops are left to the compiler: CORE-V's gcc makes them of
# counted loops with ``_xcvhwlp`` in ``-march``.

GUARD = "defined(__riscv_xcvsimd) || defined(MICROC_XCV)"
_SIMD, _ALU = 0x7B, 0x2B
"""Major opcodes custom-3 and custom-1."""
ENCODINGS = {
    "dot4_i8": ("cv.sdotsp.b", 0x54, 1),
    "dot4_u8": ("cv.sdotusp.b", 0x50, 1),
    "dot2": ("cv.sdotsp.h", 0x54, 0),
    "dot2_wrapping": ("cv.sdotsp.h", 0x54, 0),
    "add_i16x2": ("cv.add.h", 0x00, 0),
    "sub_i16x2": ("cv.sub.h", 0x04, 0),
    "min_i8x4": ("cv.min.b", 0x10, 1),
    "min_u8x4": ("cv.minu.b", 0x14, 1),
    "min_i16x2": ("cv.min.h", 0x10, 0),
    "max_i8x4": ("cv.max.b", 0x18, 1),
    "max_u8x4": ("cv.maxu.b", 0x1C, 1),
    "max_i16x2": ("cv.max.h", 0x18, 0),
}
"""Instruction, funct7 and funct3, by intrinsic."""
CLIPPED = {
    "saturate_i8": ("cv.clip", 0x38, 8),
    "saturate_u8": ("cv.clipu", 0x39, 9),
    "saturate_i16": ("cv.clip", 0x38, 16),
    "saturate_u15": ("cv.clipu", 0x39, 16),
}
"""Instruction, funct7 and number of bits to which it clips, by intrinsic. The number is one larger for the
instruction that clips negative numbers to 0."""


def _build_packed_simd_body(intrinsic_name: str) -> Body:
    """Build the C body of the packed SIMD instruction that computes the intrinsic ``intrinsic_name``. A dot product
    instruction adds to its result register."""
    _, funct7, funct3 = ENCODINGS[intrinsic_name]
    text = f".insn r {_SIMD:#x}, {funct3}, {funct7:#x}, %0, %1, %2"
    if intrinsic_name.startswith("dot"):
        return Body(f'__asm__("{text}" : "+r"(c) : "r"(a), "r"(b));\nreturn c;')
    return Body(f'int32_t r;\n__asm__("{text}" : "=r"(r) : "r"(a), "r"(b));\nreturn r;')


def _build_clip_body(intrinsic_name: str) -> Body:
    """Build the C body of the clipping instruction that computes the intrinsic ``intrinsic_name``."""
    _, funct7, bits = CLIPPED[intrinsic_name]
    text = f".insn r {_ALU:#x}, 3, {funct7:#x}, %0, %1, x{bits}"
    return Body(f'int32_t r;\n__asm__("{text}" : "=r"(r) : "r"(a));\nreturn r;')


_WORD = "*({0}char (*)[4])({0}void *)p"
_LOAD = Body(f'int32_t r;\n__asm__("lw %0, %1" : "=r"(r) : "m"({_WORD.format("const ")}));\nreturn r;', (("load", 1),))
_STORE = Body(f'__asm__("sw %1, %0" : "=m"({_WORD.format("")}) : "r"(a));', (("store", 1),))
"""C bodies of word accesses by assembly instructions. Compilers load single bytes unless they know the alignment,
but the core loads words at any address."""

XCV = InstructionSet(
    "XCVsimd, XCValu",
    GUARD,
    {
        **{name: _build_packed_simd_body(name) for name in ENCODINGS},
        **{name: _build_clip_body(name) for name in CLIPPED},
        **{f"load_{lanes}": _LOAD for lanes in ("i8x4", "u8x4", "i16x2", "i16x2_aligned")},
        **{f"store_{lanes}": _STORE for lanes in ("i8x4", "u8x4", "i16x2", "i16x2_aligned")},
    },
    frozenset({"unaligned"}),
)

_RISCV_XCV_CYCLES = {"taken": 2.0, "divide": 20.0, "multiply_long": 6.0}
_COSTS = Costs(26, 0, 2047, frozenset({"compared"}), 3.2, {**PORTABLE_LIBRARY, "multiply_long": 2.0}, _RISCV_XCV_CYCLES)

CV32E40P = Core(
    "cv32e40p",
    "riscv",
    _COSTS,
    (XCV,),
    frozenset({"mul64"}),
    machine="-march=rv32imc_zicsr_xcvmac_xcvsimd_xcvalu_xcvhwlp",
)


# ---- Bit manipulation extensions of Hazard3. Compilers use minima, maxima and sign extensions (Zbb) and sums of shifted numbers
# (Zba) for plain C; therefore these sets have no bodies.

ZBA = InstructionSet("Zba", "defined(__riscv_zba)", {})
ZBB = InstructionSet("Zbb", "defined(__riscv_zbb)", {}, frozenset({"minmax"}))


# ---- Cores by their base sets.

_RISCV_CYCLES = {"load": 2.0, "taken": 2.0, "divide": 32.0}
_FORMS = frozenset({"compared"})
_INTEGER = Costs(26, 0, 2047, _FORMS, 3.2, {**PORTABLE_LIBRARY, **_BASE_LENGTHS}, _RISCV_CYCLES)
_INTEGER_ZBB = replace(_INTEGER, lengths={**_INTEGER.lengths, "extension": 1.0})
_FLOAT = Costs(26, 30, 2047, _FORMS, 3.2, {**LIBRARY, **_BASE_LENGTHS}, _RISCV_CYCLES)

_FASTEST = "-O3 -fno-schedule-insns"
"""Compiler options for speed. -O3 needs half a percent to 3 % fewer cycles than -O2, for 15 to 25 % more code."""


def _build_riscv_core(name: str, costs: Costs, *features: str, extra_sets: tuple[InstructionSet, ...] = ()) -> Core:
    """Build a RISC-V core.

    ``extra_sets``: instruction sets that the libraries of boards do not use. If there are any, only the network's
    files are compiled with the option that selects the core."""
    machine = f"-march={name}"
    return Core(
        name,
        "riscv",
        costs,
        (*extra_sets, WORD_MOVES),
        frozenset({"mul64", *features}),
        machine if extra_sets else "",
        machine,
    )


RISCV = Family(
    "riscv",
    (
        _build_riscv_core("rv32imc", _INTEGER, "one_product"),
        _build_riscv_core("rv32imac", _INTEGER, "one_product"),
        _build_riscv_core("rv32imac_zba_zbb", _INTEGER_ZBB, "one_product", extra_sets=(ZBA, ZBB)),
        _build_riscv_core("rv32imafc", _FLOAT, "fpu", "fma"),
        with_unit(_build_riscv_core("rv32imafc", _FLOAT, "fpu", "fma"), REFERENCE),
        _build_riscv_core("rv64imac", _INTEGER),
        _build_riscv_core("rv64imafdc", _FLOAT, "fpu", "fma"),
        CV32E40P,
        *RVV_CORES,
    ),
    {**UNSCHEDULED, "speed": _FASTEST, "balanced": _FASTEST},
    computers=("riscv64",),
    flags=("unroll-loops", "no-gcse", "no-gcse,unroll-loops", "no-tree-loop-im", "schedule-insns", "Os"),
)
