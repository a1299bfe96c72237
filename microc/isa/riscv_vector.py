"""RISC-V vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.isa.instruction_set import Body, Core, Costs, InstructionSet, Probe, Turns, VectorUnit, vector
from microc.isa.portable import LIBRARY, PORTABLE_LIBRARY, WORD_MOVES
from microc.isa.vocabulary.scalar_words import COPIED
from microc.isa.vocabulary.vector_lanes import LEAST, MEMORY, WIDTHS
from microc.tir.lower.lane_code import SCALABLE_NUMBERS
from microc.tir.symbolic import LENGTH

# ---- What the words of RISC-V's vectors are written with: how many lanes a vector has, the names of types and
# functions of ``riscv_vector.h``.

GUARD = "defined(__riscv_vector) && __riscv_v_min_vlen >= 128 && __riscv_v_intrinsic >= 12000"
"""clang 17, gcc 14 and later."""
COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")

Words = Iterator[tuple[str, int, str]]
"""Names, instructions, C."""


@frozen
class Width:
    """So many lanes, or (``scalable``) that times what registers are longer than 128 bits, of which ``vl`` take part."""

    lanes: int
    scalable: bool = False

    def __str__(self) -> str:
        """How many take part, in C."""
        return "(size_t)vl" if self.scalable else str(self.lanes)

    def vector(self, element: str) -> str:
        return vector(element, self.lanes, self.scalable)


def v(name: str, *operands: str | int | Width) -> str:
    """A call of an instruction's function; the last operand is how many lanes it has."""
    return f"__riscv_v{name}({', '.join(map(str, operands))})"


def group(width: Width, bits: int = 32) -> str:
    """The registers that so many lanes fill: ``m4``, or ``mf2`` for half of one."""
    filled = width.lanes * bits
    return f"m{filled // 128}" if filled >= 128 else f"mf{128 // filled}"


def unsigned(vector: str, lanes: Width) -> str:
    return f"__riscv_vreinterpret_u32{group(lanes)}({vector})"


def signed(vector: str, lanes: Width) -> str:
    return f"__riscv_vreinterpret_i32{group(lanes)}({vector})"


def mask(width: Width, condition: str) -> str:
    return f"const vbool{128 // width.lanes}_t m = {condition};\n"


def offsets(lanes: Width, bits: int) -> str:
    """Those of ``a``, in bytes."""
    elements = unsigned("a", lanes)
    return elements if bits == 8 else v("sll", elements, bits // 16, lanes)


EVERY = (*map(Width, WIDTHS), *(Width(n, scalable=True) for n in LEAST))


def types(*kinds: str) -> VectorUnit:
    """Vectors of some kinds of elements, of every width."""
    bits = {kind: dtypes.info(kind).bits for kind in kinds}
    names = {n.vector(kind): f"v{kind}{group(n, bits[kind])}_t" for n in EVERY for kind in kinds}
    return VectorUnit(names, "riscv_vector.h")


def bodies(words: Callable[[Width], Words]) -> dict[str, Body]:
    """Of vectors of every width; none of the first lanes where those that take part are told anyway."""
    found = ((n, *word) for n in EVERY for word in words(n))
    return {
        name: _counted(name, count, text) for n, name, count, text in found if not (n.scalable and "_first" in name)
    }


def _counted(name: str, count: int, text: str) -> Body:
    memory = {"load": "vector_load", "gather": "vector_load", "store": "vector_store", "scatter": "vector_store"}
    kind = memory.get(name.partition("_")[0])
    return Body(text, (*(((kind, 1),) if kind else ()), *((("vector", count),) if count else ())))


# ---- RISC-V's vectors of floats.

_FLOAT_GUARD = f"{GUARD} && __riscv_v_elen_fp >= 32"


def _halves(lanes: Width) -> Words:
    """Loads that widen, of all lanes or the first. A float16's fields, moved to those of a float32, are that of its number over
    2**112, of subnormals too; the largest exponent stands for infinity and NaN."""
    n, end, whole, half = lanes, lanes.vector("f32"), f"f32{group(lanes)}", f"u16{group(lanes, 16)}"
    zero = v(f"mv_v_x_{half}", 0, n)
    for first, value in (("", v(f"le16_v_{half}", "p", n)), ("_first", v("le16_tu", zero, "p", "(size_t)n"))):
        wide = v("zext_vf2", value, n)
        shifted = f"__riscv_vreinterpret_{whole}({v('sll', wide, 16, n)})"
        yield f"load_bf16_{end}{first}", 2, f"return {shifted};"
        kind = f"vuint32{group(n)}_t"
        fields = v("sll", v("and", "x", "0x7FFF", n), 13, n)
        scaled = v("fmul", f"__riscv_vreinterpret_{whole}(m)", "5.192296858534828e33f", n)
        number = f"const {kind} f = __riscv_vreinterpret_u32{group(n)}({scaled});\n"
        far = v("or_mu", "far", "f", "f", "0x7F800000", n)
        ended = f"{mask(n, v('msgtu', 'm', '0x0F7FFFFF', n)).replace(' m =', ' far =')}"
        sign = v("sll", v("and", "x", "0x8000", n), 16, n)
        parts = f"const {kind} x = {wide};\nconst {kind} m = {fields};\n{number}{ended}"
        yield f"load_f16_{end}{first}", 9, f"{parts}return __riscv_vreinterpret_{whole}({v('or', far, sign, n)});"


def _floats(lanes: Width) -> Words:
    end, n, whole = lanes.vector("f32"), lanes, lanes.vector("i32")
    for name in ("add", "sub", "mul", "div"):
        yield f"{name}_{end}", 1, f"return {v(f'f{name}', 'a', 'b', n)};"
    for name, op in (("min", "lt"), ("max", "gt")):
        yield f"{name}_{end}", 2, f"return {v('merge', 'b', 'a', v(f'mf{op}', 'a', 'b', n), n)};"
    yield f"fma_{end}", 1, f"return {v('fmacc', 'c', 'a', 'b', n)};"
    yield f"fma_n_{end}", 1, f"return {v('fmacc', 'c', 'n', 'a', n)};"
    yield f"sqrt_{end}", 1, f"return {v('fsqrt', 'a', n)};"
    yield f"fabs_{end}", 1, f"return {v('fabs', 'a', n)};"
    for name, mode in (("rint", ()), ("floor", ("__RISCV_FRM_RDN",))):
        fraction = v("mflt", v("fabs", "a", n), "8388608.0f", n)
        rounded = v("fcvt_f", v("fcvt_x", "a", *mode, n), n)
        restored = v("fsgnj_mu", "m", "a", rounded, "a", n)
        yield f"{name}_{end}", 5, f"{mask(n, fraction)}return {restored};"
    yield f"dup_{end}", 1, f"return {v(f'fmv_v_f_f32{group(n)}', 'n', n)};"
    for op in COMPARED:
        yield f"select_{op}_{end}", 2, f"return {v('merge', 'y', 'x', v(f'mf{op}', 'a', 'b', n), n)};"
    yield f"load_f32_{end}", 0, f"return {v(f'le32_v_f32{group(n)}', 'p', n)};"
    zero = v(f"fmv_v_f_f32{group(n)}", "0.0f", n)
    yield f"load_f32_{end}_first", 1, f"return {v('le32_tu', zero, 'p', '(size_t)n')};"
    yield from _halves(n)
    yield f"store_f32_{end}_first", 0, f"{v('se32', 'p', 'a', '(size_t)n')};"
    yield f"gather_f32_{end}", 1, f"return {v('luxei32', 'p', offsets(n, 32), n)};"
    yield f"store_f32_{end}", 0, f"{v('se32', 'p', 'a', n)};"
    yield f"from_i32_{end}", 1, f"return {v('fcvt_f', 'a', n)};"
    unused = "(void)vl;\n" if n.scalable else ""
    yield f"of_bits_{end}", 0, f"{unused}return __riscv_vreinterpret_f32{group(n)}(a);"
    yield f"bits_{whole}", 0, f"{unused}return {signed('a', n)};"
    yield f"nearest_{whole}", 1, f"return {v('fcvt_x', 'a', n)};"
    yield f"toward_zero_{whole}", 1, f"return {v('fcvt_rtz_x', 'a', n)};"


RVV_FLOAT = InstructionSet(
    "vectors of floats",
    _FLOAT_GUARD,
    bodies(_floats),
    unit=types("float32"),
)


# ---- RISC-V's vectors, version 1.0: four, eight or sixteen lanes in one, two or four registers of at least 128 bits,
# or as many as four or eight registers of a machine hold.
#
# Bodies are the functions of ``riscv_vector.h``, each told how many lanes it has, so that the same code is right whatever the
# length of a machine's registers. Numbers beside vectors are operands of instructions, the first n lanes are a shorter vector,
# and runs of memory take as much as eight registers hold.

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
