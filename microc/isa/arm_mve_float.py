"""MVE's vectors of four floats: arithmetic, fused multiply-add by vectors or by a number in a general register, conversions.

A comparison holds where both numbers are numbers: the instructions' "less" is "not greater or equal", so operands change places.
There is no division and no square root of vectors; they go lane by lane, each lane written out: of loops over lanes gcc 12 drops
stores of the operands and divides what lay there before.
"""

from __future__ import annotations

from collections.abc import Iterator

from microc.isa.base import Body
from microc.isa.sets import InstructionSet, VectorUnit

_FIRST = "vctp32q((uint32_t)n)"
_WIDENED = """register uint32x4_t h __asm__("q0") = {};
register float32x4_t r __asm__("q0");
__asm__("vcvtb.f32.f16 q0, q0" : "=w"(r) : "w"(h));
return r;"""
"""In one register, for the GNU assembler (2.40) encodes others as those of twice their number."""
_NARROWED = """register float32x4_t x __asm__("q0") = a;
register uint32x4_t h __asm__("q0");
__asm__("vcvtb.f16.f32 q0, q0" : "=w"(h) : "w"(x));
{};"""
_COMPARED = {"lt": ("gt", "b, a"), "le": ("ge", "b, a"), "gt": ("gt", "a, b"), "ge": ("ge", "a, b")} | {
    op: (op, "a, b") for op in ("eq", "ne")
}


def _chosen(op: str, x: str, y: str) -> str:
    name, operands = _COMPARED[op]
    return f"return vpselq_f32({x}, {y}, vcmp{name}q_f32({operands}));"


def _texts() -> Iterator[tuple[str, str, str]]:
    """Words, kinds of operation (none where nothing happens) and statements."""
    for op in ("add", "sub", "mul"):
        yield f"{op}_f32x4", "vector", f"return v{op}q_f32(a, b);"
    yield "fma_f32x4", "vector", "return vfmaq_f32(c, a, b);"
    yield "fma_n_f32x4", "vector", "return vfmaq_n_f32(c, a, n);"
    yield "min_f32x4", "vector", _chosen("lt", "a", "b")
    yield "max_f32x4", "vector", _chosen("gt", "a", "b")
    for op in _COMPARED:
        yield f"select_{op}_f32x4", "vector", _chosen(op, "x", "y")
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


def _operations(name: str, kind: str) -> tuple[tuple[str, int], ...]:
    """What a word costs: loads and stores of halves are two instructions and, of float16, a load has a move to another register;
    lanes are divided one by one."""
    more = 2 if name.startswith("load_f16") else int(name.startswith(("load_bf16", "store_f16")))
    return (((kind, 4 if kind == "float_divide" else 1),) if kind else ()) + ((("vector", more),) if more else ())


ARM_MVE_FLOAT = InstructionSet(
    "Arm MVE floating point",
    "defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 2)",
    {name: Body(text, _operations(name, kind)) for name, kind, text in _texts()},
    unit=VectorUnit({"float32x4": "float32x4_t"}, "arm_mve.h", elements=True),
)
