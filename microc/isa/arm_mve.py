"""MVE (Helium), the vectors of Armv8.1-M: four 32-bit lanes, and runs of memory in tail-predicated loops."""

from __future__ import annotations

from collections.abc import Iterator

from microc.isa.arm_mve_products import PRODUCT_BODIES
from microc.isa.arm_mve_rows import ROW_BODIES
from microc.isa.base import Body, Turns
from microc.isa.sets import InstructionSet, VectorUnit
from microc.isa.vocabulary.lanes import MEMORY, NUMBERED
from microc.isa.vocabulary.words import COPIED, MOVED

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
"""Shifts by a literal have instructions of their own, which keep their operand."""
WORDS, STRAIGHT = 8, 4
"""Bytes that are copied by words, and vectors without a loop."""
CLOSE = ((1 << 8) - 1) // 15
"""The largest step by which 16 elements lie at offsets of 8 bits."""


def _arithmetic() -> Iterator[tuple[str, str]]:
    for name, function in _LANEWISE.items():
        yield f"{name}_i32x4", f"return {function}_s32(a, b);"
    for name in NUMBERED:
        yield f"{name}_n_i32x4", _SHIFT if name == "shl" else f"return {_LANEWISE[name]}_n_s32(a, b);"
    yield "mac_n_i32x4", "return vmlaq_n_s32(a, b, n);"
    yield "dup_i32x4", "return vdupq_n_s32(n);"
    yield "ramp_i32x4", "return vmulq_n_s32(vreinterpretq_s32_u32(vidupq_n_u32(0u, 1)), n);"
    for op in ("lt", "le", "gt", "ge", "eq", "ne"):
        yield f"select_{op}_i32x4", f"return vpselq_s32(x, y, vcmp{op}q_s32(a, b));"


def _memory() -> Iterator[tuple[str, str]]:
    """Loads that widen, stores that narrow, from and to neighbours or offsets in elements; all lanes or the first n."""
    first, at = "vctp32q((uint32_t)n)", "p, vreinterpretq_u32_s32(a)"
    for short in MEMORY.values():
        bits, signed = short[1:], short[0] == "i"
        width, sign = _WIDTH[bits], "s32" if signed else "u32"
        offset = "offset" if bits == "8" else "shifted_offset"
        loaded = "return {};" if signed else "return vreinterpretq_s32_u32({});"
        a, b = ("a", "b") if signed else ("vreinterpretq_u32_s32(a)", "vreinterpretq_u32_s32(b)")
        load, store = f"vldr{width}q", f"vstr{width}q"
        yield f"load_{short}_i32x4", loaded.format(f"{load}_{sign}(p)")
        yield f"load_{short}_i32x4_first", loaded.format(f"{load}_z_{sign}(p, {first})")
        yield f"gather_{short}_i32x4", loaded.format(f"{load}_gather_{offset}_{sign}({at})")
        yield f"gather_{short}_i32x4_first", loaded.format(f"{load}_gather_{offset}_z_{sign}({at}, {first})")
        yield f"store_{short}_i32x4", f"{store}_{sign}(p, {a});"
        yield f"store_{short}_i32x4_first", f"{store}_p_{sign}(p, {a}, {first});"
        yield f"scatter_{short}_i32x4", f"{store}_scatter_{offset}_{sign}({at}, {b});"
        yield f"scatter_{short}_i32x4_first", f"{store}_scatter_{offset}_p_{sign}({at}, {b}, {first});"


def _saturating() -> Iterator[tuple[str, Body]]:
    """Clamped by VQMOVN, into the low half of a lane and of that: no vectors of bounds, which would take registers. What the
    other halves hold does not matter, which no intrinsic says: it reads them from a vector that gcc would copy."""
    halves = _narrowing("int16x8_t h", "vqmovnb.s32", "a")
    quarters = "\n".join((halves, _narrowing("int8x16_t b", "vqmovnb.s16", "h")))
    unsigned = "\n".join(
        (_narrowing("uint16x8_t h", "vqmovunb.s32", "a"), _narrowing("uint8x16_t b", "vqmovnb.u16", "h"))
    )
    yield "saturate_i16_i32x4", Body(f"{halves}\nreturn vmovlbq_s16(h);", (("alu", 2),))
    for short, narrowed, store, kind, made in (
        ("i16", halves, "vstrhq", "s32", "vreinterpretq_s32_s16(h)"),
        ("i8", quarters, "vstrbq", "s32", "vreinterpretq_s32_s8(b)"),
        ("u8", unsigned, "vstrbq", "u32", "vreinterpretq_u32_u8(b)"),
    ):
        name, costs = f"store_saturated_{short}_i32x4", (("alu", narrowed.count("__asm__") + 1),)
        yield name, Body(f"{narrowed}\n{store}_{kind}(p, {made});", costs)
        yield f"{name}_first", Body(f"{narrowed}\n{store}_p_{kind}(p, {made}, vctp32q((uint32_t)n));", costs)


def _narrowing(made: str, instruction: str, source: str) -> str:
    """Lanes saturated into the low halves of those of a new vector."""
    name = made.split()[1]
    return f'{made};\n__asm__("{instruction} %q0, %q1" : "=w"({name}) : "w"({source}));'


def _few(size: int) -> Iterator[str]:
    """Copies of a number of elements that is known to be small: words, or whole vectors without a loop."""
    yield f"if (__builtin_constant_p(n) && n <= {WORDS * 8 // size}) {{"
    yield f"    (void)memcpy(p, q, (size_t)n * {size // 8}U);"
    form = f"r{_WIDTH[str(size)]}.{size}"
    for count in range(1, STRAIGHT + 1):
        yield f"}} else if (n == {count * 128 // size}) {{"
        yield "    __asm__ volatile("
        for name, end in (("vld", "q"), ("vst", "p")):
            yield from (f'        "{name}{form} q{k}, [%[{end}], #{16 * k}]\\n"' for k in range(count))
        clobbers = ", ".join(f'"q{k}"' for k in range(count))
        yield f'        : : [p] "r"(p), [q] "r"(q) : "memory", {clobbers});'
    yield "} else {"


def _runs() -> Iterator[tuple[str, Body]]:
    for short in COPIED.values():
        size = int(short[1:])
        loop = "\\n".join(("dlstp.{0} lr, %[n]", "0:", "{1}vstr{2}.{0} q0, [%[p]], #16", "letp lr, 0b"))
        load = f"vldr{_WIDTH[str(size)]}.{size} q0, [%[q]], #16\\n"
        copying = loop.format(size, load, _WIDTH[str(size)])
        body = f'__asm__ volatile("{copying}" : [p] "+r"(p), [q] "+r"(q) : [n] "r"(n) : "lr", "memory", "q0");'
        body = "\n".join((*_few(size), f"    {body}", "}"))
        turns = Turns("n", 128 // size, (("vector_load", 1), ("vector_store", 1), ("branch", 1)))
        yield f"copy_{short}", Body(body, (("alu", 4),), turns)
        filling = loop.format(size, "", _WIDTH[str(size)]).replace("dlstp", f"vdup.{size} q0, %[value]\\ndlstp")
        body = f'__asm__ volatile("{filling}" : [p] "+r"(p) : [value] "r"(value), [n] "r"(n) : "lr", "memory", "q0");'
        turns = Turns("n", 128 // size, (("vector_store", 1), ("branch", 1)))
        if short != "f32":
            yield f"fill_{short}", Body(body, (("alu", 4),), turns)


def _strided() -> Iterator[tuple[str, Body]]:
    """Elements at offsets: 16 bytes at a time where these offsets are bytes, else eight."""
    for short in MOVED.values():
        close = (f"if (step <= {CLOSE}) {{", *_gathered(short, 8), "} else")
        body = "\n".join((*(close if short.endswith("8") else ()), "{", *_gathered(short, 16), "}"))
        turns = Turns("n", 8, (("alu", 1), ("vector_load", 1), ("vector_store", 1)))
        yield f"copy_strided_{short}", Body(body, (("alu", 2),), turns, types=("int32x4",))


def _gathered(short: str, size: int) -> Iterator[str]:
    """Vectors of lanes of ``size`` bits, few of them without a loop, and the first lanes of one for the rest."""
    lanes, kind, width = 128 // size, f"{short[0].replace('i', 's')}{size}", _WIDTH[short[1:]]
    gather = f"vldr{width}q_gather_{'offset' if width == 'b' else 'shifted_offset'}"

    def vector(first: str) -> str:
        return f"vstr{width}q_{kind}(p + {first}, {gather}_{kind}(q + {first} * step, at));"

    yield f"    const uint{size}x{lanes}_t at = vmulq_n_u{size}(vidupq_n_u{size}(0u, 1), (uint{size}_t)step);"
    yield f"    const int32_t rest = n % {lanes};"
    yield f"    if (n < {(STRAIGHT + 1) * lanes}) {{"
    for k in range(STRAIGHT):
        yield f"        if (n >= {(k + 1) * lanes}) {{"
        yield f"            {vector(str(k * lanes))}"
        yield "        }"
    yield "    } else {"
    yield f"        for (int32_t k = 0; k < n - rest; k += {lanes}) {{"
    yield f"            {vector('k')}"
    yield "        }"
    yield "    }"
    yield "    if (rest > 0) {"
    yield f"        const mve_pred16_t first = vctp{size}q((uint32_t)rest);"
    yield f"        vstr{width}q_p_{kind}(p + (n - rest), {gather}_z_{kind}(q + (n - rest) * step, at, first), first);"
    yield "    }"


ARM_MVE = InstructionSet(
    "Arm MVE",
    "defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 1)",
    {
        **{name: Body(text) for name, text in (*_arithmetic(), *_memory())},
        **dict(_saturating()),
        **dict(_runs()),
        **dict(_strided()),
        **PRODUCT_BODIES,
        **ROW_BODIES,
    },
    frozenset({"lanes"}),
    unit=VectorUnit({"int32x4": "int32x4_t"}, "arm_mve.h"),
)
