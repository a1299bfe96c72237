"""Spelling of Det: elimination with the largest pivot of each column, one column a turn of a loop.

Rows are not exchanged: a row that has been a pivot is marked as used, and each pivot changes the sign once for every unused row
above it, as moving it to the top would. Source: ONNX Det; Golub and Van Loan, Matrix Computations, 3.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from microc import dtypes
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.onnx.application import Application, Spelling
from microc.graph.ir import Attr, Graph


def determinant(application: Application) -> None:
    """Det: matrices (..., N, N) to numbers (...)."""
    data, shape = application.value(0), application.shape(0)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        application.broken(f"matrices of shape {shape}")
    count, size, kind = prod(shape[:-2]), shape[-1], application.type(data).dtype
    matrices = application.reshaped(data, (count, size, size))
    free = application.new_constant(f"{application.output()}_free", np.ones((count, size), np.bool_))
    one = application.new_constant(f"{application.output()}_one", np.ones((count, 1), dtypes.to_numpy(kind)))
    attrs: dict[str, Any] = {
        "body": _turn(application, count, size, kind),
        "count": size,
        "carried": 3,
        "guarded": False,
    }
    made = [application.builder.unique(f"{application.output()}_{stem}") for stem in ("rest", "free", "product")]
    application.write_all("loop", (matrices, free, one), attrs, made)
    application.result_reshape(made[2], shape[:-2])


def _turn(application: Application, count: int, size: int, kind: str) -> Graph:
    """One column: carries the matrices (M, N, N), which rows are not used yet (M, N), the product of pivots (M, 1)."""
    body = GraphBuilder(application.loc.file)
    body.at(application.loc.index, application.loc.name)

    def make(op: str, *operands: str, **attrs: Attr) -> str:
        return body.emit(op, operands, attrs)

    def number(value: float) -> str:
        return body.new_constant("number", np.array(value, dtypes.to_numpy(kind)))

    turn, rest = body.input("turn", (), "int32"), body.input("rest", (count, size, size), kind)
    free, product = body.input("free", (count, size), "bool"), body.input("product", (count, 1), kind)
    rows = body.new_constant("rows", np.arange(size, dtype=np.int64)[None])
    column = make("gather", rest, turn, axis=2)
    magnitude = make("where", free, make("abs", column), number(-1.0))
    place = make("argmax", magnitude, axis=1, keepdims=True, last=False, out_dtype="int64")
    row = make("gather_nd", rest, place, batch_dims=1)
    pivot = make("gather_nd", column, place, batch_dims=1)
    pivot = body.reshape(pivot, (count, 1))
    left = make("logical_and", free, make("not_equal", rows, place))
    divisor = make("where", make("equal", pivot, number(0.0)), number(1.0), pivot)
    factor = make("where", left, make("div", column, divisor), number(0.0))
    step = make("mul", body.reshape(factor, (count, size, 1)), body.reshape(row, (count, 1, size)))
    above = make("logical_and", free, make("less", rows, place))
    signs = make("prod", make("where", above, number(-1.0), number(1.0)), axes=(1,), keepdims=True)
    product = make("mul", product, make("mul", pivot, signs))
    results: Mapping[str, str] = {"next_rest": make("sub", rest, step), "next_free": left, "next_product": product}
    return body.graph("column", results)


SPELLINGS: Mapping[str, Spelling] = {"Det": Spelling(determinant)}
