"""Words of the vocabulary that multiply small matrices of float16 and add to sums of float32.

``half_product_<R>x<V>`` adds to R rows of V * 8 sums the products of R rows of ``a`` and of V * 8 columns of ``b``. ``depth``
terms are taken in ``runs`` of equal length: those of a run are added up in float16, each with one rounding, its sum then in
float32. ``b`` has the columns of a term side by side; of every eight, the first four in the even lanes, the other four in the odd
ones, for that is how vectors of halves are widened.
"""

from __future__ import annotations

from microc.isa.base import ANY, Intrin
from microc.tir import ir
from microc.tir.ir import Buffer, Var

LANES = 8
"""Columns of a vector."""
HALF_SHAPES = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (4, 1))
"""Rows and vectors of the products that exist: up to six vectors of sums beside two of weights."""


def half_product_name(rows: int, vectors: int) -> str:
    return f"half_product_{rows}x{vectors}"


def _product(rows: int, vectors: int) -> Intrin:
    a, b = (Buffer(name, (ANY,), "float16") for name in "ab")
    sums, total = Buffer("sums", (ANY,), "float32"), Buffer("total", (1,), "float16", "register")
    depth, runs, stride = Var("depth"), Var("runs"), Var("stride_a")
    row, vector, odd, lane, run, k = (Var(name) for name in ("row", "vector", "odd", "lane", "run", "k"))
    terms, first = ir.Bin("truncdiv", depth, runs), (ir.const(0, "int32"),)
    term = run * terms + k
    place = (row * (vectors * LANES) + vector * LANES + odd * 4 + lane,)
    left = a[row * stride + term if rows > 1 else term]
    right = b[term * (vectors * LANES) + vector * LANES + lane * 2 + odd]
    added = ir.For(k, terms, ir.Store(total, first, ir.call("fma", left, right, total[0])))
    whole = ir.Store(sums, place, ir.Load(sums, place) + ir.cast("float32", total[0]))
    body = ir.Alloc(total, ir.seq(ir.Store(total, first, ir.const(0.0, "float16")), added, whole))
    nest = ir.loops(((row, rows), (vector, vectors), (odd, 2), (lane, 4)), ir.For(run, runs, body))
    params = (a, b, sums, depth, runs, *((stride,) if rows > 1 else ()))
    return Intrin(half_product_name(rows, vectors), params, nest)


def _runs() -> tuple[Intrin, Intrin]:
    """n floats, one after the other, as float16; n zeros."""
    p, q, n, k = Buffer("p", (ANY,), "float16"), Buffer("q", (ANY,), "float32"), Var("n"), Var("k")
    narrowed, zero = ir.Store(p, (k,), ir.cast("float16", q[k])), ir.Store(p, (k,), ir.const(0.0, "float16"))
    return Intrin("narrow_f32_f16", (p, q, n), ir.For(k, n, narrowed)), Intrin("zero_f16", (p, n), ir.For(k, n, zero))


HALF_RUNS = _runs()
HALF_PRODUCTS = tuple(_product(*shape) for shape in HALF_SHAPES)
