"""Vectors of four 32-bit numbers on MVE: what the lowering of loops to lanes (``tir/lower/lanes.py``) is made of.

``<name>_i32x4`` is lane by lane; ``_n`` takes a number for all lanes instead of the last vector. ``load_<t>_i32x4`` widens
elements of dtype t, ``store_<t>_i32x4`` narrows to them (wrapping); with ``_first`` only the first n lanes touch memory.
``copy_<t>`` and ``fill_<t>`` move whole runs of memory in a tail-predicated loop.
"""

from __future__ import annotations

from collections.abc import Iterator

from microc.ops.numbers import wrapping
from microc.schedule.intrinsics.base import ANY, LANE, Intrin, Turns
from microc.schedule.intrinsics.mve_products import MVE, SHORT
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Var

VECTOR, LANES = "int32x4", 4

_A, _B, _X, _Y = (Var(name, VECTOR) for name in "abxy")
_a, _b, _x, _y, _n = (Var(name) for name in "abxyn")
_MEMORY = {**SHORT, "uint16": "u16", "int32": "i32"}
_WIDTH = {"8": "b", "16": "h", "32": "w"}


def _wide(x: Expr) -> Expr:
    return x.astype("int64")


def _doubled(a: Expr, b: Expr) -> Expr:
    """(a b + 2**30) >> 31; only both INT32_MIN saturate."""
    return ir.minimum((_wide(a) * _wide(b) + (1 << 30)) >> 31, (1 << 31) - 1).astype("int32")


def _high(a: Expr, b: Expr) -> Expr:
    return ((_wide(a) * _wide(b) + (1 << 31)) >> 32).astype("int32")


def _right(s: Expr) -> Expr:
    """How far a shift by ``s`` goes to the right, for no count that C leaves undefined."""
    return ir.maximum(-s, 0)


def _shifted(a: Expr, s: Expr) -> Expr:
    """``s`` within -31 .. 31, positive to the left."""
    return ir.select(s < 0, a >> _right(s), a << ir.maximum(s, 0))


def _rounded(a: Expr, s: Expr) -> Expr:
    """Like :func:`_shifted`, half rounds up."""
    right = _wide(_right(s))
    half = (ir.const(1, "int64") << right) >> 1
    return ir.select(s < 0, ((_wide(a) + half) >> right).astype("int32"), a << ir.maximum(s, 0))


def _lanewise(name: str, params: tuple[Var | Buffer, ...], meaning: Expr | ir.Stmt, body: str) -> Intrin:
    return Intrin(name, params, meaning, "mve", MVE, body, lanes=LANES)


def _arithmetic() -> Iterator[Intrin]:
    """Vector by vector and, where the instruction has it, vector by number. Sums and products wrap around, as they do there:
    lanes also compute what nobody asked for."""
    table: tuple[tuple[str, Expr, str, str], ...] = (
        ("add", wrapping("add", _a, _b), "vaddq_s32", "vaddq_n_s32"),
        ("sub", wrapping("sub", _a, _b), "vsubq_s32", "vsubq_n_s32"),
        ("mul", wrapping("mul", _a, _b), "vmulq_s32", "vmulq_n_s32"),
        ("doubling_high_mul", _doubled(_a, _b), "vqrdmulhq_s32", "vqrdmulhq_n_s32"),
        ("high_mul_round", _high(_a, _b), "vrmulhq_s32", ""),
        ("shl", _shifted(_a, _b), "vshlq_s32", "vshlq_r_s32"),
        ("shift_round", _rounded(_a, _b), "vrshlq_s32", "vrshlq_n_s32"),
        ("min", ir.minimum(_a, _b), "vminq_s32", ""),
        ("max", ir.maximum(_a, _b), "vmaxq_s32", ""),
        ("and", _a & _b, "vandq_s32", ""),
        ("or", _a | _b, "vorrq_s32", ""),
        ("xor", _a ^ _b, "veorq_s32", ""),
    )
    for name, meaning, whole, number in table:
        yield _lanewise(f"{name}_i32x4", (_A, _B), meaning, f"return {whole}(a, b);")
        if number:
            yield _lanewise(f"{name}_n_i32x4", (_A, _b), meaning, f"return {number}(a, b);")
    yield _lanewise(
        "mac_n_i32x4", (_A, _B, _n), wrapping("add", _a, wrapping("mul", _b, _n)), "return vmlaq_n_s32(a, b, n);"
    )
    yield _lanewise("dup_i32x4", (_n,), _n, "return vdupq_n_s32(n);")
    ramp = "return vmulq_n_s32(vreinterpretq_s32_u32(vidupq_n_u32(0u, 1)), n);"
    yield _lanewise("ramp_i32x4", (_n,), LANE * _n, ramp)
    for op in ("lt", "le", "gt", "ge", "eq", "ne"):
        chosen = ir.select(ir.binary(op, _a, _b), _x, _y)
        body = f"return vpselq_s32(x, y, vcmp{op}q_s32(a, b));"
        yield _lanewise(f"select_{op}_i32x4", (_A, _B, _X, _Y), chosen, body)


def _memory() -> Iterator[Intrin]:
    """Loads that widen, stores that narrow, from and to neighbours or offsets in elements; all lanes or the first n."""
    first = "vctp32q((uint32_t)n)"
    for dtype, short in _MEMORY.items():
        bits, signed = short[1:], short[0] == "i"
        width, sign = _WIDTH[bits], "s32" if signed else "u32"
        p, table = Buffer("p", (LANES,), dtype), Buffer("p", (ANY,), dtype)
        element = ir.cast("int32", p[LANE])

        def value(text: str, signed: bool = signed) -> str:
            return f"return {text};" if signed else f"return vreinterpretq_s32_u32({text});"

        load, store = f"load_{short}_i32x4", f"store_{short}_i32x4"
        yield _lanewise(load, (p,), element, value(f"vldr{width}q_{sign}(p)"))
        some = ir.select(_n > LANE, element, 0)
        yield _lanewise(f"{load}_first", (p, _n), some, value(f"vldr{width}q_z_{sign}(p, {first})"))
        offset, at = "offset" if bits == "8" else "shifted_offset", "p, vreinterpretq_u32_s32(a)"
        found, gather, scatter = ir.cast("int32", table[_a]), f"gather_{short}_i32x4", f"scatter_{short}_i32x4"
        yield _lanewise(gather, (table, _A), found, value(f"vldr{width}q_gather_{offset}_{sign}({at})"))
        some = ir.select(_n > LANE, found, 0)
        text = value(f"vldr{width}q_gather_{offset}_z_{sign}({at}, {first})")
        yield _lanewise(f"{gather}_first", (table, _A, _n), some, text)
        spread, source = ir.Store(table, (_a,), ir.cast(dtype, _b)), "b" if signed else "vreinterpretq_u32_s32(b)"
        body = f"vstr{width}q_scatter_{offset}_{sign}({at}, {source});"
        yield _lanewise(scatter, (table, _A, _B), spread, body)
        body = f"vstr{width}q_scatter_{offset}_p_{sign}({at}, {source}, {first});"
        yield _lanewise(f"{scatter}_first", (table, _A, _B, _n), ir.If(_n > LANE, spread), body)
        stored = ir.Store(p, (LANE,), ir.cast(dtype, _a))
        source = "a" if signed else "vreinterpretq_u32_s32(a)"
        yield _lanewise(store, (p, _A), stored, f"vstr{width}q_{sign}(p, {source});")
        body = f"vstr{width}q_p_{sign}(p, {source}, {first});"
        yield _lanewise(f"{store}_first", (p, _A, _n), ir.If(_n > LANE, stored), body)


def _runs() -> Iterator[Intrin]:
    """Memory to memory, from the first element to the last, and one number to memory."""
    k = Var("k")
    for dtype, short in {**_MEMORY, "float32": "f32"}.items():
        size = int(short[1:])
        step = 128 // size
        width = _WIDTH[str(size)]
        p, q, value = Buffer("p", (ANY,), dtype), Buffer("q", (ANY,), dtype), Var("value")
        loop = "\\n".join(("dlstp.{0} lr, %[n]", "0:", "{1}vstr{2}.{0} q0, [%[p]], #16", "letp lr, 0b"))
        load = f"vldr{width}.{size} q0, [%[q]], #16\\n"
        copying = loop.format(size, load, width)
        filling = loop.format(size, "", width).replace("dlstp", f"vdup.{size} q0, %[value]\\ndlstp")
        body = f'__asm__ volatile("{copying}" : [p] "+r"(p), [q] "+r"(q) : [n] "r"(n) : "lr", "memory", "q0");'
        meaning = ir.For(k, _n, ir.Store(p, (k,), q[k]))
        turns = Turns("n", step, (("vector_load", 1), ("vector_store", 1), ("branch", 1)))
        yield Intrin(f"copy_{short}", (p, q, _n), meaning, "mve", MVE, body, (("alu", 4),), turns=turns)
        if dtype == "float32":  # one number is an integer in a core register
            continue
        body = f'__asm__ volatile("{filling}" : [p] "+r"(p) : [value] "r"(value), [n] "r"(n) : "lr", "memory", "q0");'
        meaning = ir.For(k, _n, ir.Store(p, (k,), ir.cast(dtype, value)))
        turns = Turns("n", step, (("vector_store", 1), ("branch", 1)))
        yield Intrin(f"fill_{short}", (p, value, _n), meaning, "mve", MVE, body, (("alu", 4),), turns=turns)


MVE_LANES = (*_arithmetic(), *_memory(), *_runs())
