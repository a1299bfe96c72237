"""Words of the vocabulary that multiply small matrices: rows of activations by rows of weights.

``dot_<a>_<b>_<R>x<C>`` adds to R x C sums in memory the dot products of R rows of ``a`` with C rows of ``b``; the sums of a
single row begin with the numbers at ``start``, perhaps themselves. Strides that a single row or column does not need are no
parameters.
"""

from __future__ import annotations

import itertools

from microc.isa.base import ANY, Intrin, i32
from microc.tir import ir
from microc.tir.ir import Buffer, Var

_SHORT = {"int8": "i8", "uint8": "u8", "int16": "i16"}
_TILES = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2))
_TALL_TILES = ((2, 3), (3, 1), (3, 2))
"""More of bytes."""
PRODUCT_SHAPES = tuple(
    (a, b, *tile)
    for a, b in (("int8", "int8"), ("uint8", "int8"), ("int16", "int8"), ("int8", "int16"), ("int16", "int16"))
    for tile in (*_TILES, *(_TALL_TILES if a == b == "int8" else ()))
)
"""Dtypes, rows and columns of the products that exist."""


def product_name(a: str, b: str, rows: int, columns: int) -> str:
    return f"dot_{_SHORT[a]}_{_SHORT[b]}_{rows}x{columns}"


def _meaning(a: Buffer, b: Buffer, start: Buffer, sums: Buffer, rows: int, columns: int) -> ir.Stmt:
    """sums[r, c] += a[r, k] b[c, k] for k below ``depth``; before that sums[c] = start[c] of a single row."""
    k = Var("k")
    body, first = [], []
    for r, c in itertools.product(range(rows), range(columns)):
        place = (Var("stride_sums") * r + c if r else i32(c),)
        left = a[Var("stride_a") * r + k if r else k].astype("int32")
        right = b[Var("stride_b") * c + k if c else k].astype("int32")
        first += [ir.Store(sums, place, start[c])] if rows == 1 else []
        body.append(ir.Store(sums, place, ir.Load(sums, place) + left * right))
    return ir.seq(*first, ir.For(k, Var("depth"), ir.seq(*body)))


def _product(a: str, b: str, rows: int, columns: int) -> Intrin:
    left, right = Buffer("a", (ANY,), a), Buffer("b", (ANY,), b)
    start, sums = (Buffer(name, (ANY,), "int32") for name in ("start", "sums"))
    needed = {"depth": True, "stride_a": rows > 1, "stride_b": columns > 1, "stride_sums": rows > 1}
    params = (
        left,
        right,
        *((start,) if rows == 1 else ()),
        sums,
        *(Var(name) for name, used in needed.items() if used),
    )
    return Intrin(product_name(a, b, rows, columns), params, _meaning(left, right, start, sums, rows, columns))


PRODUCTS = tuple(_product(*shape) for shape in PRODUCT_SHAPES)
