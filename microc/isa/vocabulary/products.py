"""Words of the vocabulary that multiply small matrices: rows of activations by rows of weights.

``dot_<a>_<b>_<R>x<C>`` stores as R x C sums in memory the dot products of R rows of ``a`` with C rows of ``b``; the sums of a
single row begin with the numbers at ``start``, perhaps themselves. Strides that a single row or column does not need are no
parameters. Weights ``i4`` and ``i2`` are numbers of four or two bits, 16 of which lie in the lowest fields of 16 bytes
(:class:`~microc.tir.bit_fields.BitFields`); ``depth`` is a multiple of what 16 bytes hold, ``stride_b`` counts bytes.

``row_i8_i8_<depth>`` does so with one row of so many bytes and ``columns`` rows of weights, an even number of them, which lie one
after the other.
"""

from __future__ import annotations

import itertools

from microc.isa.base import ANY, Intrin, i32
from microc.tir import ir
from microc.tir.bit_fields import FEW, VECTOR, BitFields
from microc.tir.ir import Buffer, Expr, Var

_SHORT = {"int8": "i8", "uint8": "u8", "int16": "i16"}
BITS = {f"int{bits}": BitFields(bits, VECTOR) for bits in FEW}
"""Forms of weights of few bits."""
_TILES = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2))
_TALL_TILES = ((2, 3), (3, 1), (3, 2))
"""More of bytes."""
PRODUCT_SHAPES = tuple(
    (a, b, *tile)
    for a, b in (
        *(("int8", "int8"), ("uint8", "int8"), ("int16", "int8"), ("int8", "int16"), ("int16", "int16")),
        *(("int8", few) for few in BITS),
    )
    for tile in (*_TILES, *(_TALL_TILES if a == "int8" and b != "int16" else ()))
)
"""Dtypes, rows and columns of the products that exist."""
ROW_DEPTHS = tuple(range(16, 129, 16))
"""Lengths of a row of bytes that is multiplied by any number of rows of weights."""


def product_name(a: str, b: str, rows: int, columns: int) -> str:
    return f"dot_{_SHORT[a]}_{f'i{BITS[b].bits}' if b in BITS else _SHORT[b]}_{rows}x{columns}"


def _meaning(
    a: Buffer, b: Buffer, form: BitFields | None, start: Buffer, sums: Buffer, rows: int, columns: int
) -> ir.Stmt:
    """sums[r, c] += a[r, k] b[c, k] for k below ``depth``, from start[c] of a single row on, from zero of several."""
    k = Var("k")
    body, first = [], []
    for r, c in itertools.product(range(rows), range(columns)):
        place = (Var("stride_sums") * r + c if r else i32(c),)
        left = a[Var("stride_a") * r + k if r else k].astype("int32")
        right = _weight(b, Var("stride_b") * c if c else i32(0), k, form)
        first.append(ir.Store(sums, place, start[c] if rows == 1 else i32(0)))
        body.append(ir.Store(sums, place, ir.Load(sums, place) + left * right))
    return ir.seq(*first, ir.For(k, Var("depth"), ir.seq(*body)))


def _weight(b: Buffer, row: Expr, k: Var, form: BitFields | None) -> Expr:
    """Number ``k`` of a row."""
    if form is None:
        return b[row + k if ir.int_value(row) is None else k].astype("int32")
    element, bit = form.place(k)
    return form.number(b[row + element if ir.int_value(row) is None else element], bit)


def _product(a: str, b: str, rows: int, columns: int) -> Intrin:
    form = BITS.get(b)
    left, right = Buffer("a", (ANY,), a), Buffer("b", (ANY,), form.dtype if form else b)
    start, sums = (Buffer(name, (ANY,), "int32") for name in ("start", "sums"))
    needed = {"depth": True, "stride_a": rows > 1, "stride_b": columns > 1, "stride_sums": rows > 1}
    params = (
        left,
        right,
        *((start,) if rows == 1 else ()),
        sums,
        *(Var(name) for name, used in needed.items() if used),
    )
    return Intrin(product_name(a, b, rows, columns), params, _meaning(left, right, form, start, sums, rows, columns))


def row_name(depth: int) -> str:
    return f"row_i8_i8_{depth}"


def _row(depth: int) -> Intrin:
    c, k, columns = Var("c"), Var("k"), Var("columns")
    a, b = Buffer("a", (ANY,), "int8"), Buffer("b", (ANY,), "int8")
    start, sums = (Buffer(name, (ANY,), "int32") for name in ("start", "sums"))
    product = a[k].astype("int32") * b[c * depth + k].astype("int32")
    terms = ir.For(k, i32(depth), ir.Store(sums, (c,), sums[c] + product))
    body = ir.For(c, columns, ir.seq(ir.Store(sums, (c,), start[c]), terms))
    return Intrin(row_name(depth), (a, b, start, sums, columns), body)


PRODUCTS = (*(_product(*shape) for shape in PRODUCT_SHAPES), *map(_row, ROW_DEPTHS))
