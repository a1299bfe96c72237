"""RISC-V's vectors, version 1.0: four, eight or sixteen lanes in one, two or four registers of at least 128 bits.

Bodies are the functions of ``riscv_vector.h``, each told how many lanes it has, so that the same code is right whatever the
length of a machine's registers. Numbers beside vectors are operands of instructions, the first n lanes are a shorter vector, and
runs of memory take as much as eight registers hold.
"""

from __future__ import annotations

from collections.abc import Iterator

from microc import dtypes
from microc.isa.base import Body, Turns
from microc.isa.library import LIBRARY, PORTABLE_LIBRARY
from microc.isa.sets import Core, Costs, InstructionSet, Probe, VectorUnit
from microc.isa.vocabulary.lanes import MEMORY, WIDTHS
from microc.isa.vocabulary.words import COPIED
from microc.isa.words import WORD_MOVES

_GUARD = "defined(__riscv_vector) && __riscv_v_min_vlen >= 128 && __riscv_v_intrinsic >= 12000"
"""clang 17, gcc 14 and later."""
_FLOAT_GUARD = f"{_GUARD} && __riscv_v_elen_fp >= 32"
_UP, _DOWN = "__RISCV_VXRM_RNU", "__RISCV_VXRM_RDN"
"""How numbers in fixed point are rounded: half up, down."""
_COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")
_STEPS = {32: 0, 16: 1, 8: 2}
"""Instructions that narrow numbers of 32 bits."""

_Words = Iterator[tuple[str, int, str]]
"""Names, instructions, C."""


def _v(name: str, *operands: str | int) -> str:
    """A call of an instruction's function; the last operand is how many lanes it has."""
    return f"__riscv_v{name}({', '.join(map(str, operands))})"


def _group(lanes: int, bits: int = 32) -> str:
    """The registers that so many lanes fill: ``m4``, or ``mf2`` for half of one."""
    filled = lanes * bits
    return f"m{filled // 128}" if filled >= 128 else f"mf{128 // filled}"


def _unsigned(vector: str, lanes: int) -> str:
    return f"__riscv_vreinterpret_u32{_group(lanes)}({vector})"


def _signed(vector: str, lanes: int) -> str:
    return f"__riscv_vreinterpret_i32{_group(lanes)}({vector})"


def _mask(lanes: int, condition: str) -> str:
    return f"const vbool{128 // lanes}_t m = {condition};\n"


def _integers(lanes: int) -> _Words:
    end, n = f"i32x{lanes}", lanes
    for name in ("add", "sub", "mul", "min", "max", "and", "or", "xor"):
        yield f"{name}_{end}", 1, f"return {_v(name, 'a', 'b', n)};"
    for name in ("add", "sub", "mul"):
        yield f"{name}_n_{end}", 1, f"return {_v(name, 'a', 'b', n)};"
    for name, mode in (("doubling_high_mul", _UP), ("doubling_high_floor", _DOWN)):
        for each in (name, f"{name}_n"):
            yield f"{each}_{end}", 1, f"return __riscv_vsmul(a, b, {mode}, {n});"
    half = _v("and", _v("sra", _v("mul", "a", "b", n), 31, n), 1, n)
    yield f"high_product_{end}", 1, f"return {_v('mulh', 'a', 'b', n)};"
    yield f"high_mul_round_{end}", 5, f"return {_v('add', _v('mulh', 'a', 'b', n), half, n)};"
    yield f"mac_n_{end}", 1, f"return {_v('macc', 'a', 'n', 'b', n)};"
    yield f"dup_{end}", 1, f"return {_v(f'mv_v_x_i32{_group(n)}', 'n', n)};"
    numbered = _signed(_v(f"id_v_u32{_group(n)}", n), n)
    yield f"ramp_{end}", 2, f"return {_v('mul', numbered, 'n', n)};"
    for op in _COMPARED:
        yield f"select_{op}_{end}", 2, f"return {_v('merge', 'y', 'x', _v(f'ms{op}', 'a', 'b', n), n)};"


def _shifts(lanes: int) -> _Words:
    """To the left, or to the right where counts are negative. Instructions take counts modulo 32, and rounding is asked for 32,
    which leaves nothing."""
    end, n = f"i32x{lanes}", lanes
    left, right = _unsigned("b", n), _unsigned(_v("neg", "b", n), n)
    chosen = _mask(n, _v("mslt", "b", 0, n)), _v("sll", "a", left, n)
    yield f"shl_{end}", 4, f"{chosen[0]}return {_v('sra_mu', 'm', chosen[1], 'a', right, n)};"
    rounded = f"const int32x{n} r = {_v('ssra_mu', 'm', chosen[1], 'a', right, _UP, n)};\n"
    yield f"shift_round_{end}", 6, f"{chosen[0]}{rounded}return {_v('merge', 'r', 0, _v('mslt', 'b', -31, n), n)};"
    number = "if (b < 0) {{\n    return {};\n}}\n" + f"return {_v('sll', 'a', '(size_t)b', n)};"
    yield f"shl_n_{end}", 1, number.format(_v("sra", "a", "(size_t)-b", n))
    nothing = f"if (b < -31) {{\n    return {_v(f'mv_v_x_i32{_group(n)}', 0, n)};\n}}\n"
    yield f"shift_round_n_{end}", 1, nothing + number.format(_v("ssra", "a", "(size_t)-b", _UP, n))


def _loads(lanes: int) -> _Words:
    """Widened, from neighbours or offsets in elements; of the first n lanes, others are zero."""
    for dtype, short in MEMORY.items():
        bits, narrow = dtypes.info(dtype).bits, f"{short}{_group(lanes, dtypes.info(dtype).bits)}"
        zero = _v(f"mv_v_x_{narrow}", 0, lanes)
        found = {
            f"load_{short}_i32x{lanes}": _v(f"le{bits}_v_{narrow}", "p", lanes),
            f"load_{short}_i32x{lanes}_first": _v(f"le{bits}_tu", zero, "p", "(size_t)n"),
            f"gather_{short}_i32x{lanes}": _v("luxei32", "p", _offsets(lanes, bits), lanes),
            f"gather_{short}_i32x{lanes}_first": _v("luxei32_tu", zero, "p", _offsets(lanes, bits), "(size_t)n"),
        }
        for name, value in found.items():
            if short[0] == "i":
                widened = value if bits == 32 else _v(f"sext_vf{32 // bits}", value, lanes)
            else:
                widened = _signed(_v(f"zext_vf{32 // bits}", value, lanes), lanes)
            yield name, int(bits < 32), f"return {widened};"


def _stores(lanes: int) -> _Words:
    """Narrowed, to neighbours or offsets in elements, in the order of lanes; all or the first n."""
    for dtype, short in MEMORY.items():
        bits = dtypes.info(dtype).bits
        p = "p" if short[0] == "i" else f"(int{bits}_t *)p"
        values = {name: _narrowed(name, lanes, bits) for name in ("a", "b")}
        for suffix, count in (("", str(lanes)), ("_first", "(size_t)n")):
            yield f"store_{short}_i32x{lanes}{suffix}", _STEPS[bits], f"{_v(f'se{bits}', p, values['a'], count)};"
            scattered = _v("soxei32", p, _offsets(lanes, bits), values["b"], count)
            yield f"scatter_{short}_i32x{lanes}{suffix}", _STEPS[bits] + int(bits > 8), f"{scattered};"


def _narrowed(vector: str, lanes: int, bits: int) -> str:
    for _ in range(_STEPS[bits]):
        vector = _v("ncvt_x", vector, lanes)
    return vector


def _offsets(lanes: int, bits: int) -> str:
    """Those of ``a``, in bytes."""
    elements = _unsigned("a", lanes)
    return elements if bits == 8 else _v("sll", elements, bits // 16, lanes)


def _halves(lanes: int) -> _Words:
    """Loads that widen, of all lanes or the first. A float16's fields, moved to those of a float32, are that of its number over
    2**112, of subnormals too; the largest exponent stands for infinity and NaN."""
    n, whole, half = lanes, f"f32{_group(lanes)}", f"u16{_group(lanes, 16)}"
    zero = _v(f"mv_v_x_{half}", 0, n)
    for first, value in (("", _v(f"le16_v_{half}", "p", n)), ("_first", _v("le16_tu", zero, "p", "(size_t)n"))):
        wide = _v("zext_vf2", value, n)
        shifted = f"__riscv_vreinterpret_{whole}({_v('sll', wide, 16, n)})"
        yield f"load_bf16_f32x{n}{first}", 2, f"return {shifted};"
        kind = f"vuint32{_group(n)}_t"
        fields = _v("sll", _v("and", "x", "0x7FFF", n), 13, n)
        scaled = _v("fmul", f"__riscv_vreinterpret_{whole}(m)", "5.192296858534828e33f", n)
        number = f"const {kind} f = __riscv_vreinterpret_u32{_group(n)}({scaled});\n"
        far = _v("or_mu", "far", "f", "f", "0x7F800000", n)
        ended = f"{_mask(n, _v('msgtu', 'm', '0x0F7FFFFF', n)).replace(' m =', ' far =')}"
        sign = _v("sll", _v("and", "x", "0x8000", n), 16, n)
        parts = f"const {kind} x = {wide};\nconst {kind} m = {fields};\n{number}{ended}"
        yield f"load_f16_f32x{n}{first}", 9, f"{parts}return __riscv_vreinterpret_{whole}({_v('or', far, sign, n)});"


def _floats(lanes: int) -> _Words:
    end, n, whole = f"f32x{lanes}", lanes, f"i32x{lanes}"
    for name in ("add", "sub", "mul", "div"):
        yield f"{name}_{end}", 1, f"return {_v(f'f{name}', 'a', 'b', n)};"
    for name, op in (("min", "lt"), ("max", "gt")):
        yield f"{name}_{end}", 2, f"return {_v('merge', 'b', 'a', _v(f'mf{op}', 'a', 'b', n), n)};"
    yield f"fma_{end}", 1, f"return {_v('fmacc', 'c', 'a', 'b', n)};"
    yield f"sqrt_{end}", 1, f"return {_v('fsqrt', 'a', n)};"
    yield f"fabs_{end}", 1, f"return {_v('fabs', 'a', n)};"
    for name, mode in (("rint", ()), ("floor", ("__RISCV_FRM_RDN",))):
        fraction = _v("mflt", _v("fabs", "a", n), "8388608.0f", n)
        rounded = _v("fcvt_f", _v("fcvt_x", "a", *mode, n), n)
        signed = _v("fsgnj_mu", "m", "a", rounded, "a", n)
        yield f"{name}_{end}", 5, f"{_mask(n, fraction)}return {signed};"
    yield f"dup_{end}", 1, f"return {_v(f'fmv_v_f_f32{_group(n)}', 'n', n)};"
    for op in _COMPARED:
        yield f"select_{op}_{end}", 2, f"return {_v('merge', 'y', 'x', _v(f'mf{op}', 'a', 'b', n), n)};"
    yield f"load_f32_{end}", 0, f"return {_v(f'le32_v_f32{_group(n)}', 'p', n)};"
    zero = _v(f"fmv_v_f_f32{_group(n)}", "0.0f", n)
    yield f"load_f32_{end}_first", 1, f"return {_v('le32_tu', zero, 'p', '(size_t)n')};"
    yield from _halves(n)
    yield f"store_f32_{end}_first", 0, f"{_v('se32', 'p', 'a', '(size_t)n')};"
    yield f"gather_f32_{end}", 1, f"return {_v('luxei32', 'p', _offsets(n, 32), n)};"
    yield f"store_f32_{end}", 0, f"{_v('se32', 'p', 'a', n)};"
    yield f"from_i32_{end}", 1, f"return {_v('fcvt_f', 'a', n)};"
    yield f"of_bits_{end}", 0, f"return __riscv_vreinterpret_f32{_group(n)}(a);"
    yield f"bits_{whole}", 0, f"return {_signed('a', n)};"
    yield f"nearest_{whole}", 1, f"return {_v('fcvt_x', 'a', n)};"
    yield f"toward_zero_{whole}", 1, f"return {_v('fcvt_rtz_x', 'a', n)};"


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
        elements, each = 128 // size, (("vector_store", 1), ("alu", 4), ("branch", 1))
        copied = Turns("n", elements, (("vector_load", 1), *each, ("alu", 1)))
        yield f"copy_{short}", Body(_COPIED.format(**places), (("alu", 1),), copied)
        if short != "f32":
            yield f"fill_{short}", Body(_FILLED.format(**places), (("alu", 3),), Turns("n", elements, each))


def _counted(name: str, count: int, text: str) -> Body:
    memory = {"load": "vector_load", "gather": "vector_load", "store": "vector_store", "scatter": "vector_store"}
    kind = memory.get(name.partition("_")[0])
    return Body(text, (*(((kind, 1),) if kind else ()), *((("vector", count),) if count else ())))


def _types(kind: str, short: str) -> VectorUnit:
    return VectorUnit({f"{kind}x{n}": f"v{short}{_group(n)}_t" for n in WIDTHS}, "riscv_vector.h")


def _whole(lanes: int) -> _Words:
    yield from (*_integers(lanes), *_shifts(lanes), *_loads(lanes), *_stores(lanes))


_WHOLE = {name: _counted(name, count, text) for n in WIDTHS for name, count, text in _whole(n)}
RVV = InstructionSet(
    "vectors of integers", _GUARD, {**_WHOLE, **dict(_runs())}, frozenset({"vectors"}), unit=_types("int32", "int32")
)
RVV_FLOAT = InstructionSet(
    "vectors of floats",
    _FLOAT_GUARD,
    {name: _counted(name, count, text) for n in WIDTHS for name, count, text in _floats(n)},
    unit=_types("float32", "float32"),
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
