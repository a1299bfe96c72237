"""RISC-V's vectors of floats."""

from __future__ import annotations

from microc.isa.riscv_width import COMPARED, GUARD, Width, Words, bodies, group, mask, offsets, signed, types, v
from microc.isa.sets import InstructionSet

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
