"""Words of the vocabulary on vectors of float32, lane by lane: ``<name>_f32x8``.

Arithmetic rounds as that of scalars does; ``fma`` rounds once; ``fma_n``, which not all units have, multiplies by a number for
all lanes. ``min`` and ``max`` give their second operand where one is NaN, as scalars do. Loads and stores are of neighbours in
memory, with ``_first`` those of the first n lanes; loads of ``f16`` and ``bf16`` widen, stores of ``f16`` round
to the nearest. ``from_i32`` converts integers, and
``nearest`` (half to even) and ``toward_zero`` give integers of numbers within int32. ``bits`` of a number are an int32,
``of_bits`` makes the number of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from microc.isa.base import ANY, LANE, Intrin
from microc.isa.vocabulary.lanes import WIDTHS
from microc.tir import ir
from microc.tir.ir import Buffer, Var
from microc.tir.lower.lane_code import FLOAT_CALLS, HALVES

ARITHMETIC = ("add", "sub", "mul", "div", "min", "max")
UNARY = sorted(FLOAT_CALLS - {"fma"})

_a, _b, _c, _x, _y, _n = (Var(name, "float32") for name in "abcxyn")


def floats(lanes: int) -> Iterator[Intrin]:
    """All words on vectors of so many."""
    end, vector, integers = f"f32x{lanes}", f"float32x{lanes}", f"int32x{lanes}"
    a, b, c, x, y = (Var(name, vector) for name in "abcxy")
    p, table = Buffer("p", (lanes,), "float32"), Buffer("p", (ANY,), "float32")
    whole, index, count = Var("a"), Var("a", integers), Var("n")
    for op in ARITHMETIC:
        yield Intrin(f"{op}_{end}", (a, b), ir.binary(op, _a, _b), lanes)
    yield Intrin(f"fma_{end}", (a, b, c), ir.call("fma", _a, _b, _c), lanes)
    yield Intrin(f"fma_n_{end}", (a, _n, c), ir.call("fma", _a, _n, _c), lanes)
    for name in UNARY:
        yield Intrin(f"{name}_{end}", (a,), ir.call(name, _a), lanes)
    yield Intrin(f"dup_{end}", (_n,), _n, lanes)
    for op in sorted(ir.COMPARISONS):
        yield Intrin(f"select_{op}_{end}", (a, b, x, y), ir.select(ir.binary(op, _a, _b), _x, _y), lanes)
    stored = ir.Store(p, (LANE,), _a)
    yield Intrin(f"load_f32_{end}", (p,), p[LANE], lanes)
    yield Intrin(f"load_f32_{end}_first", (p, count), ir.select(count > LANE, p[LANE], 0.0), lanes)
    for dtype, short in HALVES.items():
        q = Buffer("p", (lanes,), dtype)
        number = ir.cast("float32", q[LANE])
        yield Intrin(f"load_{short}_{end}", (q,), number, lanes)
        yield Intrin(f"load_{short}_{end}_first", (q, count), ir.select(count > LANE, number, 0.0), lanes)
    halves = ir.Store(Buffer("p", (lanes,), "float16"), (LANE,), ir.cast("float16", _a))
    yield Intrin(f"store_f16_{end}", (halves.buffer, a), halves, lanes)
    yield Intrin(f"store_f16_{end}_first", (halves.buffer, a, count), ir.If(count > LANE, halves), lanes)
    yield Intrin(f"gather_f32_{end}", (table, index), table[whole], lanes)
    yield Intrin(f"store_f32_{end}", (p, a), stored, lanes)
    yield Intrin(f"store_f32_{end}_first", (p, a, count), ir.If(count > LANE, stored), lanes)
    yield Intrin(f"from_i32_{end}", (index,), ir.cast("float32", whole), lanes)
    yield Intrin(f"of_bits_{end}", (index,), ir.reinterpret("float32", whole), lanes)
    yield Intrin(f"bits_i32x{lanes}", (a,), ir.reinterpret("int32", _a), lanes)
    yield Intrin(f"nearest_i32x{lanes}", (a,), ir.cast("int32", ir.call("rint", _a)), lanes)
    yield Intrin(f"toward_zero_i32x{lanes}", (a,), ir.cast("int32", _a), lanes)


FLOAT_LANES = tuple(each for lanes in WIDTHS for each in floats(lanes))
