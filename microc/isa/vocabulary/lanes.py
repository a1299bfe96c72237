"""Words of the vocabulary on vectors of 32-bit integers: what the lowering of loops to lanes (``tir/lower/lanes.py``) makes.

``<name>_i32x4`` is lane by lane; ``_n`` takes a number for all lanes instead of the last vector. ``load_<t>_i32x4`` widens
elements of dtype t, ``store_<t>_i32x4`` narrows to them (wrapping), ``gather`` and ``scatter`` do so at offsets in elements; with
``_first`` only the first n lanes touch memory; ``store_saturated`` clamps to the dtype. Vectors of 8 and 16 have the same words;
those of floats are :mod:`microc.isa.vocabulary.float_lanes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from microc import dtypes
from microc.isa.base import ANY, LANE, Intrin
from microc.isa.vocabulary.pairs import PAIRS
from microc.isa.vocabulary.scalars import SATURATED
from microc.isa.vocabulary.words import MOVED
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Var

WIDTHS = (4, 8, 16)
"""Lanes that a vector may have."""
MEMORY = {**MOVED, "int32": "i32"}
"""What vectors are loaded from, and how intrinsics are called by it."""
SHORT_WORDS = MappingProxyType({"i16x2": ("int16", 2), "i8x4": ("int8", 4), "u8x4": ("uint8", 4)})
"""Words of several numbers that vectors are loaded from, or all lanes from one: dtype and count."""
PRODUCTS = ("dot2", "dot4_i8", "dot4_u8")
"""Sums of products of what words hold."""
NUMBERED = ("add", "sub", "mul", "doubling_high_mul", "doubling_high_floor", "shl", "shift_round")
"""Operations that have a number for all lanes as second operand, too."""

_a, _b, _x, _y, _n = (Var(name) for name in "abxyn")


def _wide(x: Expr) -> Expr:
    return x.astype("int64")


def wrapping(op: str, a: Expr, b: Expr) -> Expr:
    """Modulo 2**32: lanes also compute what nobody asked for."""
    return ir.binary(op, a.astype("uint32"), b.astype("uint32")).astype("int32")


def _doubled(a: Expr, b: Expr) -> Expr:
    """(a b + 2**30) >> 31; only both INT32_MIN saturate."""
    return ir.minimum((_wide(a) * _wide(b) + (1 << 30)) >> 31, (1 << 31) - 1).astype("int32")


def _doubled_floor(a: Expr, b: Expr) -> Expr:
    """(a b) >> 31; only both INT32_MIN saturate."""
    return ir.minimum(_wide(a) * _wide(b) >> 31, (1 << 31) - 1).astype("int32")


def _high(a: Expr, b: Expr, added: int = 0) -> Expr:
    return ((_wide(a) * _wide(b) + added) >> 32).astype("int32")


def _right(s: Expr) -> Expr:
    """How far a shift by ``s`` goes to the right, for no count that C leaves undefined."""
    return ir.maximum(-s, 0)


def _shifted(a: Expr, s: Expr) -> Expr:
    """``s`` within -31 .. 31, positive to the left, where bits beyond the word are lost."""
    left = ir.reinterpret("uint32", a) << ir.maximum(s, 0).astype("uint32")
    return ir.select(s < 0, a >> _right(s), ir.reinterpret("int32", left))


def _rounded(a: Expr, s: Expr) -> Expr:
    """Like :func:`_shifted`, half rounds up; ``s`` is -32 at least, which leaves nothing."""
    right = _wide(_right(s))
    half = (ir.const(1, "int64") << right) >> 1
    return ir.select(s < 0, ((_wide(a) + half) >> right).astype("int32"), a << ir.maximum(s, 0))


def arithmetic(lanes: int) -> Iterator[Intrin]:
    """Vector by vector and, of some, vector by number."""
    end = f"i32x{lanes}"
    wide_a, wide_b, wide_x, wide_y = (Var(name, f"int32x{lanes}") for name in "abxy")
    table: dict[str, Expr] = {
        **{op: wrapping(op, _a, _b) for op in ("add", "sub", "mul")},
        "doubling_high_mul": _doubled(_a, _b),
        "doubling_high_floor": _doubled_floor(_a, _b),
        "high_product": _high(_a, _b),
        "high_mul_round": _high(_a, _b, 1 << 31),
        "shl": _shifted(_a, _b),
        "shift_round": _rounded(_a, _b),
        "min": ir.minimum(_a, _b),
        "max": ir.maximum(_a, _b),
        "and": _a & _b,
        "or": _a | _b,
        "xor": _a ^ _b,
    }
    for name, meaning in table.items():
        yield Intrin(f"{name}_{end}", (wide_a, wide_b), meaning, lanes)
        if name in NUMBERED:
            yield Intrin(f"{name}_n_{end}", (wide_a, _b), meaning, lanes)
    yield Intrin(f"mac_n_{end}", (wide_a, wide_b, _n), wrapping("add", _a, wrapping("mul", _b, _n)), lanes)
    yield Intrin(f"dup_{end}", (_n,), _n, lanes)
    yield Intrin(f"ramp_{end}", (_n,), LANE * _n, lanes)
    for op in sorted(ir.COMPARISONS):
        chosen = ir.select(ir.binary(op, _a, _b), _x, _y)
        yield Intrin(f"select_{op}_{end}", (wide_a, wide_b, wide_x, wide_y), chosen, lanes)


def memory(lanes: int) -> Iterator[Intrin]:
    """From and to neighbours or offsets in elements; all lanes or the first n."""
    end = f"i32x{lanes}"
    wide_a, wide_b = (Var(name, f"int32x{lanes}") for name in "ab")
    for dtype, short in MEMORY.items():
        p, table = Buffer("p", (lanes,), dtype), Buffer("p", (ANY,), dtype)
        element, found = ir.cast("int32", p[LANE]), ir.cast("int32", table[_a])
        stored, spread = ir.Store(p, (LANE,), ir.cast(dtype, _a)), ir.Store(table, (_a,), ir.cast(dtype, _b))
        values: tuple[tuple[str, tuple[Var | Buffer, ...], Expr], ...] = (
            ("load", (p,), element),
            ("gather", (table, wide_a), found),
        )
        for name, params, value in values:
            yield Intrin(f"{name}_{short}_{end}", params, value, lanes)
            yield Intrin(f"{name}_{short}_{end}_first", (*params, _n), ir.select(_n > LANE, value, 0), lanes)
        places: tuple[tuple[str, tuple[Var | Buffer, ...], ir.Stmt], ...] = (
            ("store", (p, wide_a), stored),
            ("scatter", (table, wide_a, wide_b), spread),
        )
        for name, params, store in places:
            yield Intrin(f"{name}_{short}_{end}", params, store, lanes)
            yield Intrin(f"{name}_{short}_{end}_first", (*params, _n), ir.If(_n > LANE, store), lanes)


def _saturated(lanes: int) -> Iterator[Intrin]:
    """Clamping to a dtype, as instructions for words do it."""
    end, a = f"i32x{lanes}", Var("a", f"int32x{lanes}")
    yield Intrin(f"saturate_i16_{end}", (a,), ir.clamp(_a, *dtypes.int_range("int16")), lanes)
    for dtype in (dtype for dtype, short in MEMORY.items() if f"saturate_{short}" in SATURATED):
        p, name = Buffer("p", (lanes,), dtype), f"store_saturated_{MEMORY[dtype]}_{end}"
        store = ir.Store(p, (LANE,), ir.cast(dtype, ir.clamp(_a, *dtypes.int_range(dtype))))
        yield Intrin(name, (p, a), store, lanes)
        yield Intrin(f"{name}_first", (p, a, _n), ir.If(_n > LANE, store), lanes)


def _word(p: Buffer, first: Expr, count: int, bits: int) -> Expr:
    """Some numbers of so many bits as one word."""
    word: Expr = ir.const(0, "uint32")
    for k in range(count):
        part = p[first + k].astype("int32").astype("uint32") & ((1 << bits) - 1)
        word = word | (part << (bits * k))
    return word.astype("int32")


def _words(lanes: int) -> Iterator[Intrin]:
    """Numbers of 16 or 8 bits in the words of lanes, in those of all lanes alike (``dup``), and sums of their products."""
    end, vector = f"i32x{lanes}", f"int32x{lanes}"
    for short, (dtype, count) in SHORT_WORDS.items():
        bits = dtypes.info(dtype).bits
        p, q = Buffer("p", (count * lanes,), dtype), Buffer("p", (count,), dtype)
        yield Intrin(f"load_{short}_{end}", (p,), _word(p, LANE * count, count, bits), lanes)
        yield Intrin(f"dup_{short}_{end}", (q,), _word(q, ir.const(0, "int32"), count, bits), lanes)
    for name in PRODUCTS:
        scalar = next(each for each in PAIRS if each.name == name)
        params = tuple(Var(p.name, vector) for p in scalar.params)
        yield Intrin(f"{name}_{end}", params, scalar.meaning, lanes, scalar.limits)


LANEWISE = tuple(
    each for lanes in WIDTHS for each in (*arithmetic(lanes), *memory(lanes), *_saturated(lanes), *_words(lanes))
)
