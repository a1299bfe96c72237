# SPDX-License-Identifier: Apache-2.0
"""MVE (Helium), the vector extension of Armv8.1-M: int32, float32 and float16."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from microc.isa.instruction_set import Body, BodyLoop, BodyTable, InstructionSet, VectorUnit
from microc.isa.mve.arm_mve_products import PRODUCT_BODIES, REQUANTISATION_BODIES, ROW_BODIES, WINDOW_BODIES
from microc.isa.vocabulary.matrix_products import HALF_SHAPES, float16_product_name
from microc.isa.vocabulary.scalar_words import MOVED
from microc.isa.vocabulary.vector_lanes import NUMBERED
from microc.tir.lower.lane_code import NARROWING_DISTANCES, TYPES
from microc.tir.names import SUFFIXES

# ---- Integers: four 32-bit lanes, and copies and fills of contiguous memory in tail-predicated loops

_WIDTH = {"8": "b", "16": "h", "32": "w"}
_LANEWISE = {
    "add": "vaddq", "sub": "vsubq", "mul": "vmulq", "doubling_high_mul": "vqrdmulhq", "doubling_high_floor": "vqdmulhq",
    "high_product": "vmulhq", "high_mul_round": "vrmulhq", "shl": "vshlq", "shift_round": "vrshlq", "min": "vminq",
    "max": "vmaxq", "and": "vandq", "or": "vorrq", "xor": "veorq",
}  # fmt: skip
_SHIFT = """if (__builtin_constant_p(b) != 0) {
    return b < 0 ? a >> -b : a << b;
}
return vshlq_r_s32(a, b);"""
"""C body of a shift. A shift by a literal becomes an immediate instruction, which does not overwrite its operand."""
WORDS, STRAIGHT = 8, 4
"""Limits of the code for short copies: bytes up to which words are copied, and vectors up to which vectors are
copied without a loop."""
MAX_BYTE_STEP = ((1 << 8) - 1) // 15
"""Largest step at which the element offsets of 16 elements fit 8 bits."""


def _count_operations(intrinsic_name: str, operation_type: str) -> tuple[tuple[str, int], ...]:
    """Return the operation counts of an intrinsic on vectors, given its type of operation; empty if it needs none.

    Loads and stores of 16-bit floats are two instructions; a load of float16 also moves its operand to another
    register. Division and square root are done lane by lane. gcc 12 moves each predicate through a general register (VMRS, SXTH,
    VMSR) between a comparison and VPSEL; that of the first lanes waits there for VMSR and VPST."""
    if not operation_type:
        return ()
    counts = Counter({operation_type: 4 if operation_type == "float_divide" else 1})
    if intrinsic_name.startswith(("select_", "min_f32", "max_f32")):
        counts.update({"vector": 1, "alu": 3})
    if intrinsic_name.endswith("_first"):
        counts["alu"] += 2
    if intrinsic_name.startswith("load_f16"):
        counts["vector"] += 2
    elif intrinsic_name.startswith(("load_bf16", "store_f16")):
        counts["vector"] += 1
    return tuple(counts.items())


def _build_arithmetic_bodies() -> Iterator[tuple[str, str]]:
    """Yield (intrinsic name, C body) for arithmetic intrinsics on vectors of int32."""
    for name, function in _LANEWISE.items():
        yield f"{name}_i32x4", f"return {function}_s32(a, b);"
    for name in NUMBERED:
        yield f"{name}_n_i32x4", _SHIFT if name == "shl" else f"return {_LANEWISE[name]}_n_s32(a, b);"
    yield "mac_n_i32x4", "return vmlaq_n_s32(a, b, n);"
    yield "dup_i32x4", "return vdupq_n_s32(n);"
    yield "ramp_i32x4", "return vmulq_n_s32(vreinterpretq_s32_u32(vidupq_n_u32(0u, 1)), n);"
    for op in ("lt", "le", "gt", "ge", "eq", "ne"):
        yield f"select_{op}_i32x4", f"return vpselq_s32(x, y, vcmp{op}q_s32(a, b));"


def _build_memory_access_bodies() -> Iterator[tuple[str, str, str]]:
    """Yield (intrinsic name, operation type for the cost model, C body) for widening loads and narrowing stores.

    There are bodies for contiguous elements and for elements at given offsets, and for all lanes and the first n
    lanes."""
    first, at = "vctp32q((uint32_t)n)", "p, vreinterpretq_u32_s32(a)"
    for short in TYPES.values():
        bits, signed = short[1:], short[0] == "i"
        width, sign = _WIDTH[bits], "s32" if signed else "u32"
        offset = "offset" if bits == "8" else "shifted_offset"
        result = "return {};" if signed else "return vreinterpretq_s32_u32({});"
        a, b = ("a", "b") if signed else ("vreinterpretq_u32_s32(a)", "vreinterpretq_u32_s32(b)")
        load, store = f"vldr{width}q", f"vstr{width}q"
        for name, text in (
            ("load_{}_i32x4", f"{load}_{sign}(p)"),
            ("load_{}_i32x4_first", f"{load}_z_{sign}(p, {first})"),
            ("gather_{}_i32x4", f"{load}_gather_{offset}_{sign}({at})"),
            ("gather_{}_i32x4_first", f"{load}_gather_{offset}_z_{sign}({at}, {first})"),
        ):
            yield name.format(short), "vector_load", result.format(text)
        for name, text in (
            ("store_{}_i32x4", f"{store}_{sign}(p, {a});"),
            ("store_{}_i32x4_first", f"{store}_p_{sign}(p, {a}, {first});"),
            ("scatter_{}_i32x4", f"{store}_scatter_{offset}_{sign}({at}, {b});"),
            ("scatter_{}_i32x4_first", f"{store}_scatter_{offset}_p_{sign}({at}, {b}, {first});"),
        ):
            yield name.format(short), "vector_store", text


def _build_saturating_bodies() -> Iterator[tuple[str, Body]]:
    """Yield (intrinsic name, C body) for saturating intrinsics.

    VQMOVN saturates each lane to 16 bits in its low half; a second VQMOVN saturates it to a byte. Unlike clamping,
    that needs no vector registers for the bounds. The bodies are inline assembly, because the high halves of the
    result may contain anything. The compiler's own intrinsic functions cannot express that: they read the high
    halves from another vector, which gcc would copy."""
    halves = _format_lane_narrowing("int16x8_t h", "vqmovnb.s32", "a")
    yield "saturate_i16_i32x4", Body(f"{halves}\nreturn vmovlbq_s16(h);", (("vector", 2),))
    for distance in (0, *NARROWING_DISTANCES):
        name = f"rshr_{distance}_i32x4" if distance else "i32x4"
        signed, unsigned = ("vqrshrnb.s32", "vqrshrunb.s32") if distance else ("vqmovnb.s32", "vqmovunb.s32")
        halves = _format_lane_narrowing("int16x8_t h", signed, "a", distance)
        quarters = _format_lane_narrowing("int8x16_t b", "vqmovnb.s16", "h")
        unsigned_halves = _format_lane_narrowing("uint16x8_t h", unsigned, "a", distance)
        unsigned_quarters = _format_lane_narrowing("uint8x16_t b", "vqmovnb.u16", "h")
        for short, narrowings, store, result in (
            ("i16", (halves,), "vstrhq{}_s32", "vreinterpretq_s32_s16(h)"),
            ("i8", (halves, quarters), "vstrbq{}_s32", "vreinterpretq_s32_s8(b)"),
            ("u8", (unsigned_halves, unsigned_quarters), "vstrbq{}_u32", "vreinterpretq_u32_u8(b)"),
        ):
            lines, costs = "\n".join(narrowings), (("vector", len(narrowings)), ("vector_store", 1))
            yield f"store_saturated_{short}_{name}", Body(f"{lines}\n{store.format('')}(p, {result});", costs)
            stored = f"{store.format('_p')}(p, {result}, vctp32q((uint32_t)n));"
            yield f"store_saturated_{short}_{name}_first", Body(f"{lines}\n{stored}", costs)


def _format_lane_narrowing(declaration: str, instruction: str, source: str, distance: int = 0) -> str:
    """Return the C that declares a vector and saturates the lanes of the vector ``source`` into the low halves of
    its lanes. ``distance``: bits by which the instruction shifts to the right with rounding; 0 if it does not shift.

    The GNU assembler (2.40) assembles VQSHRNB, which does not round, as VQRSHRNB."""
    name, operand = declaration.split()[1], f", #{distance}" if distance else ""
    return f'{declaration};\n__asm__("{instruction} %q0, %q1{operand}" : "=w"({name}) : "w"({source}));'


def _format_short_copy_lines(element_bits: int) -> Iterator[str]:
    """Yield the C lines that copy few elements, if their number is known when the C is compiled: by words, or
    by vectors without a loop."""
    yield f"if (__builtin_constant_p(n) && n <= {WORDS * 8 // element_bits}) {{"
    yield f"    (void)memcpy(p, q, (size_t)n * {element_bits // 8}U);"
    form = f"r{_WIDTH[str(element_bits)]}.{element_bits}"
    for count in range(1, STRAIGHT + 1):
        yield f"}} else if (n == {count * 128 // element_bits}) {{"
        yield "    __asm__ volatile("
        for name, end in (("vld", "q"), ("vst", "p")):
            yield from (f'        "{name}{form} q{k}, [%[{end}], #{16 * k}]\\n"' for k in range(count))
        clobbers = ", ".join(f'"q{k}"' for k in range(count))
        yield f'        : : [p] "r"(p), [q] "r"(q) : "memory", {clobbers});'
    yield "} else {"


def _build_copy_and_fill_bodies() -> Iterator[tuple[str, Body]]:
    """Yield (intrinsic name, C body) for copies and fills of contiguous memory. They are
    tail-predicated loops (DLSTP, LETP)."""
    for short in SUFFIXES.values():
        size = int(short[1:])
        loop = "\\n".join(("dlstp.{0} lr, %[n]", "0:", "{1}vstr{2}.{0} q0, [%[p]], #16", "letp lr, 0b"))
        load = f"vldr{_WIDTH[str(size)]}.{size} q0, [%[q]], #16\\n"
        copying = loop.format(size, load, _WIDTH[str(size)])
        body = f'__asm__ volatile("{copying}" : [p] "+r"(p), [q] "+r"(q) : [n] "r"(n) : "lr", "memory", "q0");'
        body = "\n".join((*_format_short_copy_lines(size), f"    {body}", "}"))
        iterations = BodyLoop("n", 128 // size, (("vector_load", 1), ("vector_store", 1), ("branch", 1)))
        yield f"copy_{short}", Body(body, (("alu", 4),), iterations)
        filling = loop.format(size, "", _WIDTH[str(size)]).replace("dlstp", f"vdup.{size} q0, %[value]\\ndlstp")
        body = f'__asm__ volatile("{filling}" : [p] "+r"(p) : [value] "r"(value), [n] "r"(n) : "lr", "memory", "q0");'
        iterations = BodyLoop("n", 128 // size, (("vector_store", 1), ("branch", 1)))
        if short != "f32":
            yield f"fill_{short}", Body(body, (("alu", 4),), iterations)


def _build_strided_copy_bodies() -> Iterator[tuple[str, Body]]:
    """Yield (intrinsic name, C body) for strided copies.

    They gather 16 bytes at once if the offsets fit 8 bits, else eight elements at once."""
    for short in MOVED.values():
        byte_offsets = (f"if (step <= {MAX_BYTE_STEP}) {{", *_format_gather_lines(short, 8), "} else")
        body = "\n".join((*(byte_offsets if short.endswith("8") else ()), "{", *_format_gather_lines(short, 16), "}"))
        loop = BodyLoop("n", 8, (("alu", 1), ("vector_load", 1), ("vector_store", 1)))
        yield f"copy_strided_{short}", Body(body, (("alu", 2),), loop, types=("int32x4",))


def _format_gather_lines(dtype_suffix: str, element_bits: int) -> Iterator[str]:
    """Yield the C lines that gather vectors with lanes of ``element_bits`` bits: up to four vectors without a
    loop, else a loop, and then the remaining lanes under a predicate."""
    lanes, kind, width = (
        128 // element_bits,
        f"{dtype_suffix[0].replace('i', 's')}{element_bits}",
        _WIDTH[dtype_suffix[1:]],
    )
    gather = f"vldr{width}q_gather_{'offset' if width == 'b' else 'shifted_offset'}"

    def format_gather_and_store(first_index: str) -> str:
        return f"vstr{width}q_{kind}(p + {first_index}, {gather}_{kind}(q + {first_index} * step, at));"

    multiply, count = f"vmulq_n_u{element_bits}", f"vidupq_n_u{element_bits}(0u, 1)"
    yield f"    const uint{element_bits}x{lanes}_t at = {multiply}({count}, (uint{element_bits}_t)step);"
    yield f"    const int32_t rest = n % {lanes};"
    yield f"    if (n < {(STRAIGHT + 1) * lanes}) {{"
    for k in range(STRAIGHT):
        yield f"        if (n >= {(k + 1) * lanes}) {{"
        yield f"            {format_gather_and_store(str(k * lanes))}"
        yield "        }"
    yield "    } else {"
    yield f"        for (int32_t k = 0; k < n - rest; k += {lanes}) {{"
    yield f"            {format_gather_and_store('k')}"
    yield "        }"
    yield "    }"
    yield "    if (rest > 0) {"
    yield f"        const mve_pred16_t first = vctp{element_bits}q((uint32_t)rest);"
    yield f"        vstr{width}q_p_{kind}(p + (n - rest), {gather}_z_{kind}(q + (n - rest) * step, at, first), first);"
    yield "    }"


ARM_MVE = InstructionSet(
    "Arm MVE",
    "defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 1)",
    BodyTable(
        {
            **{name: Body(text, _count_operations(name, "vector")) for name, text in _build_arithmetic_bodies()},
            **{name: Body(text, _count_operations(name, kind)) for name, kind, text in _build_memory_access_bodies()},
            **dict(_build_saturating_bodies()),
            **dict(_build_copy_and_fill_bodies()),
            **dict(_build_strided_copy_bodies()),
            **PRODUCT_BODIES.entries,
            **ROW_BODIES,
            **REQUANTISATION_BODIES,
        }
    ),
    frozenset({"lanes"}),
    unit=VectorUnit({"int32x4": "int32x4_t"}, "arm_mve.h"),
)


# ---- Floats, four lanes: arithmetic, fused multiply-add by a vector or by a scalar in a general register, conversions
#
# A comparison with NaN must be false. MVE's condition "less" means "not greater or equal", which is true for NaN. Therefore
# "greater" with exchanged operands is used.
# There is no vector division or square root. Lanes are computed one by one, without a loop: in a loop over lanes gcc 12 drops
# stores of the operands and divides stale values.

_FIRST = "vctp32q((uint32_t)n)"
"""C expression of the predicate of the first n lanes."""
_WIDENED = """register uint32x4_t h __asm__("q0") = {};
register float32x4_t r __asm__("q0");
__asm__("vcvtb.f32.f16 q0, q0" : "=w"(r) : "w"(h));
return r;"""
"""C body that converts float16 to float32. It uses register q0 only, because the GNU assembler (2.40) encodes a
wrong register number for others."""
_NARROWED = """register float32x4_t x __asm__("q0") = a;
register uint32x4_t h __asm__("q0");
__asm__("vcvtb.f16.f32 q0, q0" : "=w"(h) : "w"(x));
{};"""
_COMPARED = {"lt": ("gt", "b, a"), "le": ("ge", "b, a"), "gt": ("gt", "a, b"), "ge": ("ge", "a, b")} | {
    op: (op, "a, b") for op in ("eq", "ne")
}


def _format_select_by_comparison(op: str, x: str, y: str) -> str:
    """Return the C that selects lanes of x or y by the comparison ``op`` of the lanes of a and b."""
    name, operands = _COMPARED[op]
    return f"return vpselq_f32({x}, {y}, vcmp{name}q_f32({operands}));"


def _build_float_vector_bodies() -> Iterator[tuple[str, str, str]]:
    """Yield (intrinsic name, operation type for the cost model, C body) for float32 vectors. The type is empty
    if the intrinsic needs no instruction."""
    for op in ("add", "sub", "mul"):
        yield f"{op}_f32x4", "vector", f"return v{op}q_f32(a, b);"
    yield "fma_f32x4", "vector", "return vfmaq_f32(c, a, b);"
    yield "fma_n_f32x4", "vector", "return vfmaq_n_f32(c, a, n);"
    yield "min_f32x4", "vector", _format_select_by_comparison("lt", "a", "b")
    yield "max_f32x4", "vector", _format_select_by_comparison("gt", "a", "b")
    for op in _COMPARED:
        yield f"select_{op}_f32x4", "vector", _format_select_by_comparison(op, "x", "y")
    for name, function in (("fabs", "vabsq"), ("rint", "vrndxq"), ("floor", "vrndmq")):
        yield f"{name}_f32x4", "vector", f"return {function}_f32(a);"
    for name, lane in (("div", "a[{0}] / b[{0}]"), ("sqrt", "sqrtf(a[{0}])")):
        lanes = ", ".join(lane.format(k) for k in range(4))
        yield f"{name}_f32x4", "float_divide", f"const float32x4 r = {{{lanes}}};\nreturn r;"
    yield "dup_f32x4", "vector", "return vdupq_n_f32(n);"
    yield "from_i32_f32x4", "vector", "return vcvtq_f32_s32(a);"
    yield "bits_i32x4", "", "return vreinterpretq_s32_f32(a);"
    yield "of_bits_f32x4", "", "return vreinterpretq_f32_s32(a);"
    yield "nearest_i32x4", "vector", "return vcvtnq_s32_f32(a);"
    yield "toward_zero_i32x4", "vector", "return vcvtq_s32_f32(a);"
    yield "load_f32_f32x4", "vector_load", "return vldrwq_f32(p);"
    yield "load_f32_f32x4_first", "vector_load", f"return vldrwq_z_f32(p, {_FIRST});"
    for end, load in (("", "vldrhq_u32(p)"), ("_first", f"vldrhq_z_u32(p, {_FIRST})")):
        yield f"load_f16_f32x4{end}", "vector_load", _WIDENED.format(load)
        yield f"load_bf16_f32x4{end}", "vector_load", f"return vreinterpretq_f32_u32(vshlq_n_u32({load}, 16));"
    yield "store_f16_f32x4", "vector_store", _NARROWED.format("vstrhq_u32(p, h)")
    yield "store_f16_f32x4_first", "vector_store", _NARROWED.format(f"vstrhq_p_u32(p, h, {_FIRST})")
    yield "gather_f32_f32x4", "vector_load", "return vldrwq_gather_shifted_offset_f32(p, vreinterpretq_u32_s32(a));"
    yield "store_f32_f32x4", "vector_store", "vstrwq_f32(p, a);"
    yield "store_f32_f32x4_first", "vector_store", f"vstrwq_p_f32(p, a, {_FIRST});"


ARM_MVE_FLOAT = InstructionSet(
    "Arm MVE floating point",
    "defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 2)",
    {name: Body(text, _count_operations(name, kind)) for name, kind, text in _build_float_vector_bodies()},
    unit=VectorUnit({"float32x4": "float32x4_t"}, "arm_mve.h", has_lane_subscripts=True),
)


# ---- Float16, eight lanes: products of small matrices whose terms are added in float16
#
# A vector of weights is multiplied by a scalar in a general register (``VFMA.F16``), which is loaded once for all columns.
# After some consecutive terms the sums of even and of odd lanes are widened, and added to float32 sums in memory.

_ROWS, _NUMBERS = ("r0", "r1", "r2", "r3"), ("r4", "r5", "r6", "r8")
"""Core registers for the addresses of rows, and for the elements of rows. r7 is not used, because it may be the
frame pointer."""
_OTHERS = {"b": "r9", "left": "r10", "iterations": "r11", "sums": "r12"}
_SPARE = (6, 7)
"""Numbers of the vector registers for weights, and afterwards for sums widened to float32."""
_UNROLLED = (4, 3, 2, 1)
"""Unroll factors of the loop over K in order of preference: the first factor that divides K is chosen."""
_COUNTED = 8
"""Number of terms in one iteration of the loop that the cost model assumes."""


def _format_float16_to_float32_instruction(float32_register: int, float16_register: int, odd_lanes: int) -> str:
    """Return the instruction that converts the even or odd float16 lanes of a vector register to float32.

    VCVTB converts even lanes, VCVTT (``odd_lanes`` is 1) odd lanes. The instruction is given by its encoding,
    because the GNU assembler (2.40) encodes wrong register numbers."""
    return f".inst.w {0xFE3F0E01 | float32_register << 13 | odd_lanes << 12 | float16_register << 1:#x}"


def _format_float32_to_float16_instruction(float16_register: int, float32_register: int, odd_lanes: int) -> str:
    """Return the instruction that converts float32 lanes to the even or odd float16 lanes of a vector register.

    VCVTB writes even lanes, VCVTT (``odd_lanes`` is 1) odd lanes. The instruction is given by its encoding, because
    the GNU assembler (2.40) encodes wrong register numbers."""
    return f".inst.w {0xEE3F0E01 | float16_register << 13 | odd_lanes << 12 | float32_register << 1:#x}"


def _format_term_instructions(row_count: int, vector_count: int) -> Iterator[str]:
    """Yield the instructions that multiply and accumulate one term of K for a tile of ``row_count`` rows by
    ``vector_count`` vectors of columns."""
    for v in range(vector_count):
        weights = f"q{_SPARE[v % 2]}"
        yield f"vldrh.u16 {weights}, [%[b]], #16"
        for r in range(row_count):
            if v == 0:
                yield f"ldrh {_NUMBERS[r]}, [%[a{r}]], #2"
            yield f"vfma.f16 q{r * vector_count + v}, {weights}, {_NUMBERS[r]}"


def _format_addition_to_float32_sums(sum_count: int) -> Iterator[str]:
    """Yield the instructions that add the float16 sums of some consecutive terms to the float32 sums in
    memory."""
    for n in range(sum_count):
        yield from (_format_float16_to_float32_instruction(wide, n, odd) for odd, wide in enumerate(_SPARE))
        for odd, wide in enumerate(_SPARE):
            address = f"[%[sums], #{32 * n + 16 * odd}]"
            yield from (
                f"vldrw.u32 q{n}, {address}",
                f"vadd.f32 q{wide}, q{wide}, q{n}",
                f"vstrw.32 q{wide}, {address}",
            )


def _format_float16_product_lines(rows: int, vectors: int) -> Iterator[str]:
    """Yield the C lines of a float16 matrix product of ``rows`` rows by ``vectors`` vectors of columns.

    All registers are fixed, because the register allocators of compilers would else run out of registers."""
    pointers = [f"a{r}" for r in range(rows)]
    for r, name in enumerate(pointers):
        yield f'register const uint16_t *{name} __asm__("{_ROWS[r]}") = a{f" + {r} * stride_a" if r else ""};'
    yield f'register const uint16_t *next __asm__("{_OTHERS["b"]}") = b;'
    yield f'register float *where __asm__("{_OTHERS["sums"]}") = sums;'
    yield f'register int32_t left __asm__("{_OTHERS["left"]}") = runs;'
    yield f'register int32_t iterations __asm__("{_OTHERS["iterations"]}");'
    vectors_used = (f"q{n}" for n in (*range(rows * vectors), *_SPARE))
    clobbers = ", ".join(f'"{name}"' for name in ("lr", "cc", "memory", *_NUMBERS[:rows], *vectors_used))
    moved = ", ".join(f'[{name}] "+r"({name})' for name in pointers)
    for times in _UNROLLED:
        yield f"if (depth / runs % {times} == 0) {{" if times > 1 else "{"
        yield f"    iterations = depth / runs{f' / {times}' if times > 1 else ''};"
        yield "    __asm__ volatile inline("
        zeros = [f"vmov.i32 q{n}, #0" for n in range(rows * vectors)]
        iteration = [line for _ in range(times) for line in _format_term_instructions(rows, vectors)]
        loop = ["1:", *zeros, "dls lr, %[iterations]", "0:", *iteration, "le lr, 0b"]
        lines = [*loop, *_format_addition_to_float32_sums(rows * vectors), "subs %[left], %[left], #1", "bne 1b"]
        yield from (f'        "{line}\\n"' for line in lines)
        yield f'        : {moved}, [b] "+r"(next), [left] "+r"(left)'
        yield '        : [iterations] "r"(iterations), [sums] "r"(where)'
        yield f"        : {clobbers});"
        yield "} else" if times > 1 else "}"


def _build_float16_product_body(rows: int, vectors: int) -> Body:
    """Build the body of a float16 matrix product of ``rows`` rows by ``vectors`` vectors of columns, with its
    operation counts."""
    sums = rows * vectors
    # Each iteration has a share of the code after a run.
    vector, load = ("vector", (_COUNTED + 1) * sums), ("load", _COUNTED * rows)
    memory = (("vector_load", _COUNTED * vectors + sums // 2), ("vector_store", sums // 2))
    loop = BodyLoop("depth", _COUNTED, (vector, load, *memory, ("branch", 2)))
    edges = (("alu", 6 + rows), ("vector", sums), ("vector_load", sums), ("vector_store", sums))
    return Body("\n".join(_format_float16_product_lines(rows, vectors)), edges, loop)


_EIGHT = (
    *("lsrs %[n], %[n], #3", "dls lr, %[n]", "0:", "vld20.32 {q0, q1}, [%[q]]", "vld21.32 {q0, q1}, [%[q]]!"),
    *(
        _format_float32_to_float16_instruction(2, 0, 0),
        _format_float32_to_float16_instruction(2, 1, 1),
        "vstrh.16 q2, [%[p]], #16",
        "le lr, 0b",
    ),
)
_FOUR = (
    "dlstp.32 lr, %[n]",
    "0:",
    "vldrw.u32 q0, [%[q]], #16",
    _format_float32_to_float16_instruction(0, 0, 0),
    "vstrh.32 q0, [%[p]], #8",
    "letp lr, 0b",
)


def _build_round_to_float16_body() -> Body:
    """Build the body that rounds an array of float32 to float16.

    If 8 divides the number of elements, it converts eight at once, which VLD2 loads interleaved. Else it converts
    four at once, with a predicated tail."""
    text = []
    for condition, lines in (("if (n % 8 == 0) {", _EIGHT), ("} else {", _FOUR)):
        text += [condition, "    __asm__ volatile(", *(f'        "{line}\\n"' for line in lines)]
        text.append('        : [p] "+l"(p), [q] "+l"(q), [n] "+l"(n) : : "lr", "cc", "memory", "q0", "q1", "q2");')
    loop = BodyLoop("n", 8, (("vector_load", 2), ("vector", 2), ("vector_store", 1), ("branch", 1)))
    return Body("\n".join((*text, "}")), (("alu", 4),), loop)


def _build_store_zeros_body() -> Body:
    """Build the body that fills contiguous float16 elements with zeros."""
    lines = ("vmov.i32 q0, #0", "dlstp.16 lr, %[n]", "0:", "vstrh.16 q0, [%[p]], #16", "letp lr, 0b")
    text = "\\n".join(lines)
    loop = BodyLoop("n", 8, (("vector_store", 1), ("branch", 1)))
    statement = f'__asm__ volatile("{text}" : [p] "+l"(p) : [n] "r"(n) : "lr", "memory", "q0");'
    return Body(statement, (("alu", 3),), loop)


ARM_MVE_HALF = InstructionSet(
    "Arm MVE half precision",
    "defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 2)",
    {
        **{float16_product_name(*shape): _build_float16_product_body(*shape) for shape in HALF_SHAPES},
        **WINDOW_BODIES,
        "narrow_f32_f16": _build_round_to_float16_body(),
        "zero_f16": _build_store_zeros_body(),
    },
    frozenset({"half_floats"}),
)
