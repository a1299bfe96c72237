"""Words of the vocabulary on vectors of four 32-bit numbers: what the lowering of loops to lanes (``tir/lower/lanes.py``) makes.

``<name>_i32x4`` is lane by lane; ``_n`` takes a number for all lanes instead of the last vector. ``load_<t>_i32x4`` widens
elements of dtype t, ``store_<t>_i32x4`` narrows to them (wrapping), ``gather`` and ``scatter`` do so at offsets in elements; with
``_first`` only the first n lanes touch memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from microc.isa.base import ANY, LANE, Intrin
from microc.isa.vocabulary.words import MOVED
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Var

VECTOR, LANES = "int32x4", 4
MEMORY = {**MOVED, "int32": "i32"}
"""What vectors are loaded from, and how intrinsics are called by it."""
NUMBERED = ("add", "sub", "mul", "doubling_high_mul", "doubling_high_floor", "shl", "shift_round")
"""Operations that have a number for all lanes as second operand, too."""

_A, _B, _X, _Y = (Var(name, VECTOR) for name in "abxy")
_a, _b, _x, _y, _n = (Var(name) for name in "abxyn")


def _wide(x: Expr) -> Expr:
    return x.astype("int64")


def _wrapping(op: str, a: Expr, b: Expr) -> Expr:
    """Modulo 2**32: lanes also compute what nobody asked for."""
    return ir.binary(op, a.astype("uint32"), b.astype("uint32")).astype("int32")


def _doubled(a: Expr, b: Expr) -> Expr:
    """(a b + 2**30) >> 31; only both INT32_MIN saturate."""
    return ir.minimum((_wide(a) * _wide(b) + (1 << 30)) >> 31, (1 << 31) - 1).astype("int32")


def _doubled_floor(a: Expr, b: Expr) -> Expr:
    """(a b) >> 31; only both INT32_MIN saturate."""
    return ir.minimum(_wide(a) * _wide(b) >> 31, (1 << 31) - 1).astype("int32")


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


def _lanewise(name: str, params: tuple[Var | Buffer, ...], meaning: Expr | ir.Stmt) -> Intrin:
    return Intrin(name, params, meaning, LANES)


def _arithmetic() -> Iterator[Intrin]:
    """Vector by vector and, of some, vector by number."""
    table: dict[str, Expr] = {
        **{op: _wrapping(op, _a, _b) for op in ("add", "sub", "mul")},
        "doubling_high_mul": _doubled(_a, _b),
        "doubling_high_floor": _doubled_floor(_a, _b),
        "high_mul_round": _high(_a, _b),
        "shl": _shifted(_a, _b),
        "shift_round": _rounded(_a, _b),
        "min": ir.minimum(_a, _b),
        "max": ir.maximum(_a, _b),
        "and": _a & _b,
        "or": _a | _b,
        "xor": _a ^ _b,
    }
    for name, meaning in table.items():
        yield _lanewise(f"{name}_i32x4", (_A, _B), meaning)
        if name in NUMBERED:
            yield _lanewise(f"{name}_n_i32x4", (_A, _b), meaning)
    yield _lanewise("mac_n_i32x4", (_A, _B, _n), _wrapping("add", _a, _wrapping("mul", _b, _n)))
    yield _lanewise("dup_i32x4", (_n,), _n)
    yield _lanewise("ramp_i32x4", (_n,), LANE * _n)
    for op in sorted(ir.COMPARISONS):
        yield _lanewise(f"select_{op}_i32x4", (_A, _B, _X, _Y), ir.select(ir.binary(op, _a, _b), _x, _y))


def _memory() -> Iterator[Intrin]:
    """From and to neighbours or offsets in elements; all lanes or the first n."""
    for dtype, short in MEMORY.items():
        p, table = Buffer("p", (LANES,), dtype), Buffer("p", (ANY,), dtype)
        element, found = ir.cast("int32", p[LANE]), ir.cast("int32", table[_a])
        stored, spread = ir.Store(p, (LANE,), ir.cast(dtype, _a)), ir.Store(table, (_a,), ir.cast(dtype, _b))
        lanes: tuple[tuple[str, tuple[Var | Buffer, ...], Expr], ...] = (
            ("load", (p,), element),
            ("gather", (table, _A), found),
        )
        for name, params, value in lanes:
            yield _lanewise(f"{name}_{short}_i32x4", params, value)
            yield _lanewise(f"{name}_{short}_i32x4_first", (*params, _n), ir.select(_n > LANE, value, 0))
        places: tuple[tuple[str, tuple[Var | Buffer, ...], ir.Stmt], ...] = (
            ("store", (p, _A), stored),
            ("scatter", (table, _A, _B), spread),
        )
        for name, params, store in places:
            yield _lanewise(f"{name}_{short}_i32x4", params, store)
            yield _lanewise(f"{name}_{short}_i32x4_first", (*params, _n), ir.If(_n > LANE, store))


LANEWISE = (*_arithmetic(), *_memory())
