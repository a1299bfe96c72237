"""MVE (Helium), the vectors of Armv8.1-M: four 32-bit lanes, and runs of memory in tail-predicated loops."""

from __future__ import annotations

from collections.abc import Iterator

from microc.isa.arm_mve_products import PRODUCT_BODIES
from microc.isa.base import Body, Turns
from microc.isa.sets import InstructionSet, VectorUnit
from microc.isa.vocabulary.lanes import MEMORY, NUMBERED
from microc.isa.vocabulary.words import COPIED

_WIDTH = {"8": "b", "16": "h", "32": "w"}
_LANEWISE = {
    "add": "vaddq", "sub": "vsubq", "mul": "vmulq", "doubling_high_mul": "vqrdmulhq", "doubling_high_floor": "vqdmulhq",
    "high_product": "vmulhq", "high_mul_round": "vrmulhq", "shl": "vshlq", "shift_round": "vrshlq", "min": "vminq",
    "max": "vmaxq", "and": "vandq", "or": "vorrq", "xor": "veorq",
}  # fmt: skip


def _arithmetic() -> Iterator[tuple[str, str]]:
    for name, function in _LANEWISE.items():
        yield f"{name}_i32x4", f"return {function}_s32(a, b);"
    for name in NUMBERED:
        yield f"{name}_n_i32x4", f"return {_LANEWISE[name]}_{'r' if name == 'shl' else 'n'}_s32(a, b);"
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


def _runs() -> Iterator[tuple[str, Body]]:
    for short in COPIED.values():
        size = int(short[1:])
        loop = "\\n".join(("dlstp.{0} lr, %[n]", "0:", "{1}vstr{2}.{0} q0, [%[p]], #16", "letp lr, 0b"))
        load = f"vldr{_WIDTH[str(size)]}.{size} q0, [%[q]], #16\\n"
        copying = loop.format(size, load, _WIDTH[str(size)])
        body = f'__asm__ volatile("{copying}" : [p] "+r"(p), [q] "+r"(q) : [n] "r"(n) : "lr", "memory", "q0");'
        turns = Turns("n", 128 // size, (("vector_load", 1), ("vector_store", 1), ("branch", 1)))
        yield f"copy_{short}", Body(body, (("alu", 4),), turns)
        filling = loop.format(size, "", _WIDTH[str(size)]).replace("dlstp", f"vdup.{size} q0, %[value]\\ndlstp")
        body = f'__asm__ volatile("{filling}" : [p] "+r"(p) : [value] "r"(value), [n] "r"(n) : "lr", "memory", "q0");'
        turns = Turns("n", 128 // size, (("vector_store", 1), ("branch", 1)))
        if short != "f32":
            yield f"fill_{short}", Body(body, (("alu", 4),), turns)


ARM_MVE = InstructionSet(
    "Arm MVE",
    "defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 1)",
    {
        **{name: Body(text) for name, text in (*_arithmetic(), *_memory())},
        **dict(_runs()),
        **PRODUCT_BODIES,
    },
    frozenset({"lanes"}),
    unit=VectorUnit({"int32x4": "int32x4_t"}, "arm_mve.h"),
)
