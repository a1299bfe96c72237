# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for TIR: index expressions, typed data expressions, whole functions; and a plain evaluator."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st

from microc.base import dtypes
from microc.tir import ir
from microc.tir.ir import Bin, Const, Expr, Select, Un, Var

INDEX_VARS = tuple(Var(name) for name in "ijkl")
INDEX_LEAVES = st.one_of(st.sampled_from(INDEX_VARS), st.integers(-20, 20).map(lambda v: Const(v, "int32")))
DIVISORS = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16]).map(lambda v: Const(v, "int32"))
FACTORS = st.sampled_from([-4, -1, 0, 1, 2, 3, 4, 8, 12]).map(lambda v: Const(v, "int32"))


def _index(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    condition = st.builds(Bin, st.sampled_from(sorted(ir.COMPARISONS)), children, children)
    both = st.builds(Bin, st.sampled_from(["and", "or"]), condition, condition)
    return st.one_of(
        st.builds(Bin, st.sampled_from(["add", "sub", "min", "max"]), children, children),
        st.builds(Bin, st.sampled_from(["floordiv", "floormod", "truncdiv", "truncmod"]), children, DIVISORS),
        st.builds(Bin, st.just("mul"), children, FACTORS),
        st.builds(lambda a: Un("neg", a), children),
        st.builds(Select, st.one_of(condition, both, condition.map(lambda c: Un("not", c))), children, children),
    )


index_exprs = st.recursive(INDEX_LEAVES, _index, max_leaves=12)


@st.composite
def index_bounds(draw: st.DrawFn) -> dict[Var, tuple[int, int]]:
    """Bounds of some of the index variables."""
    found = {}
    for var in INDEX_VARS:
        if draw(st.booleans()):
            low = draw(st.sampled_from([0, 0, 0, -5, 3]))
            found[var] = (low, low + draw(st.sampled_from([0, 1, 3, 7, 15, 100])))
    return found


class Overflow(Exception):
    """A signed result that does not fit its dtype, or another fault that TIR forbids."""


def _whole(op: str, a: int, b: int) -> int:
    """Integer arithmetic without a width, each operator by its definition."""
    if op.endswith(("div", "mod")) and b == 0:
        raise Overflow
    match op:
        case "floordiv":
            return math.floor(Fraction(a, b))
        case "floormod":
            return a - b * math.floor(Fraction(a, b))
        case "truncdiv":
            return math.trunc(Fraction(a, b))
        case "truncmod":
            return a - b * math.trunc(Fraction(a, b))
        case "bitand":
            return a & b
        case "bitor":
            return a | b
        case "bitxor":
            return a ^ b
        case "shl":
            return a * (1 << b)
        case "shr":
            return math.floor(Fraction(a, 1 << b))
        case "min" | "max":
            return a if (a < b) == (op == "min") else b
        case _:
            return {"add": a + b, "sub": a - b, "mul": a * b}[op]


def evaluate(expr: Expr, values: Mapping[Expr, Any]) -> Any:
    """The value of an expression; ``values`` gives variables and loads. Integers are Python's, floats numpy scalars."""
    go: Callable[[Expr], Any] = lambda e: evaluate(e, values)  # noqa: E731
    match expr:
        case Const(value, dtype):
            return dtypes.to_numpy(dtype).type(value) if dtypes.is_float(dtype) else int(value)
        case Var() | ir.Load():
            return values[expr]
        case Select(c, a, b):
            return go(a) if go(c) else go(b)
        case Bin("and", a, b):
            return go(a) and go(b)
        case Bin("or", a, b):
            return go(a) or go(b)
        case Un("not", a):
            return not go(a)
        case Un(op, a):
            return -go(a) if dtypes.is_float(a.dtype) else _fit(-go(a) if op == "neg" else ~go(a), a.dtype)
        case ir.Cast(dtype, a):
            return _convert(go(a), a.dtype, dtype)
        case Bin(op, a, b) if op in ir.COMPARISONS:
            x, y = go(a), go(b)
            return {"lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y, "eq": x == y, "ne": x != y}[op]
        case Bin(op, a, b):
            x, y = go(a), go(b)
            if not dtypes.is_float(a.dtype):
                return _fit(_whole(op, x, y), a.dtype)
            with np.errstate(all="ignore"):
                match op:
                    case "min":
                        return x if x < y else y
                    case "max":
                        return x if x > y else y
                    case _:
                        return {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[op](x, y)
        case _:
            raise AssertionError(expr)


def _fit(value: int, dtype: str) -> int:
    low, high = dtypes.int_range(dtype)
    if dtypes.dtype_parts(dtype).kind == "uint":
        return value % (high + 1)
    if not low <= value <= high:
        raise Overflow
    return value


def _convert(value: Any, source: str, dtype: str) -> Any:
    if dtypes.is_float(dtype):
        with np.errstate(over="ignore"):
            return np.array(value, dtypes.to_numpy(source)).astype(dtype)[()]
    if dtype == "bool":
        return value != 0
    if dtypes.is_float(source):
        low, high = dtypes.int_range(dtype)
        if not np.isfinite(value) or not low <= int(value) <= high:
            raise Overflow
        return int(value)
    bits = dtypes.dtype_parts(dtype).bits
    wrapped = int(value) % 2**bits
    return wrapped - 2**bits if dtypes.dtype_parts(dtype).kind == "int" and wrapped >= 2 ** (bits - 1) else wrapped


# ---------------------------------------------------------------- typed data expressions

STORED = ("int8", "uint8", "int16", "int32", "int64", "uint32", "uint64", "float32", "float64", "bool")
COMPUTE = ("int32", "int64", "uint32", "uint64", "float32", "float64")
SOURCES = {dtype: ir.Buffer(f"in_{dtype}", (3,), dtype) for dtype in STORED}


def literals(dtype: str) -> st.SearchStrategy[Expr]:
    if dtype == "bool":
        return st.booleans().map(lambda v: Const(int(v), "bool"))
    if dtypes.is_float(dtype):
        floats = st.floats(width=32 if dtype == "float32" else 64, allow_nan=False)
        return st.one_of(st.sampled_from([0.0, -0.0, 1.0, -2.5]), floats).map(lambda v: Const(v, dtype))
    low, high = dtypes.int_range(dtype)
    return st.one_of(st.integers(max(low, -9), 9), st.integers(low, high)).map(lambda v: Const(v, dtype))


@st.composite
def data_exprs(draw: st.DrawFn, dtype: str, depth: int = 3, variables: tuple[Var, ...] = ()) -> Expr:
    """A well-typed expression over literals, elements of :data:`SOURCES` and given variables."""
    named = [v for v in variables if v.dtype == dtype]
    if depth == 0 or (dtype not in (*COMPUTE, "bool") and draw(st.booleans())):
        kinds = ["literal", "load"] + (["variable"] * 2 if named else [])
        match draw(st.sampled_from(kinds)):
            case "literal":
                return draw(literals(dtype))
            case "load":
                return SOURCES[dtype][draw(st.integers(0, 2))]
            case _:
                return draw(st.sampled_from(named))

    def below(kind: str) -> Expr:
        return draw(data_exprs(kind, depth - 1, variables))

    shape = draw(st.sampled_from(["cast", "select", "binary", "binary", "unary"]))
    if shape == "select":
        return Select(below("bool"), below(dtype), below(dtype))
    if dtype == "bool":
        if shape == "unary":
            return Un("not", below("bool"))
        if shape == "binary":
            return Bin(draw(st.sampled_from(["and", "or"])), below("bool"), below("bool"))
        kind = draw(st.sampled_from(COMPUTE))
        return Bin(draw(st.sampled_from(sorted(ir.COMPARISONS))), below(kind), below(kind))
    if dtype not in COMPUTE or shape == "cast":
        return ir.Cast(dtype, below(draw(st.sampled_from(STORED))))
    if dtypes.is_float(dtype):
        if shape == "unary":
            return Un("neg", below(dtype))
        return Bin(draw(st.sampled_from(["add", "sub", "mul", "div", "min", "max"])), below(dtype), below(dtype))
    if shape == "unary":
        return Un(draw(st.sampled_from(["neg", "bitnot"])), below(dtype))
    op = draw(st.sampled_from(sorted(ir.ARITHMETIC - {"div"})))
    second = Const(draw(st.integers(0, 31)), dtype) if op in ("shl", "shr") else below(dtype)
    return Bin(op, below(dtype), second)


# ---------------------------------------------------------------- whole functions

notes = st.lists(st.tuples(st.text(max_size=4), st.one_of(st.integers(-9, 9), st.text(max_size=4))), max_size=2).map(
    tuple
)
OUTPUT = ir.Buffer("in", (4, 1), "int32", align=16)  # a keyword, to be escaped in text
SCALAR = ir.Buffer("scalar", (), "float32")


@st.composite
def statements(draw: st.DrawFn, depth: int, variables: tuple[Var, ...] = ()) -> ir.Stmt:
    """Any statement; well-typed, not necessarily safe to run. Names are unique along every path."""
    kinds = ["store", "scalar", "evaluate", "empty"]
    if depth:
        kinds += ["for", "if", "seq", "let", "alloc", "block"] * 2

    def expr(dtype: str) -> Expr:
        return draw(data_exprs(dtype, 2, variables))

    def below(*added: Var) -> ir.Stmt:
        return draw(statements(depth - 1, (*variables, *added)))

    fresh = f"x{len(variables)}_{depth}"
    match draw(st.sampled_from(kinds)):
        case "store":
            return ir.Store(OUTPUT, (expr("int32"), Const(0, "int32")), expr("int32"))
        case "scalar":
            return ir.Store(SCALAR, (), expr("float32"))
        case "evaluate":
            address = ir.AddressOf(OUTPUT, (expr("int32"), expr("int32")), draw(st.integers(1, 3)), draw(st.booleans()))
            first = address if draw(st.booleans()) else expr("float32")
            return ir.Evaluate(ir.Call(draw(st.sampled_from(["exp", "min", "lambda", "dot2"])), (first,), "float32"))
        case "empty":
            return ir.Seq(())
        case "for":
            var = Var(fresh, draw(st.sampled_from(["int32", "int32", "int64"])))
            extent = Const(4, var.dtype) if draw(st.booleans()) else expr(var.dtype)
            return ir.For(
                var, extent, below(var), draw(st.sampled_from(ir.FOR_KINDS[:1] * 3 + ir.FOR_KINDS)), draw(notes)
            )
        case "if":
            return ir.If(expr("bool"), below(), below() if draw(st.booleans()) else None)
        case "seq":
            return ir.Seq(tuple(below() for _ in range(draw(st.integers(0, 3)))))
        case "let":
            var = Var(fresh, draw(st.sampled_from(STORED)))
            return ir.Let(var, expr(var.dtype), below(var))
        case "alloc":
            scope = draw(st.sampled_from(["workspace", "register"]))
            return ir.Alloc(ir.Buffer(fresh, (2,), "int8", scope, draw(st.sampled_from([0, 8]))), below())
        case _:
            first, second = Var(fresh), Var(fresh + "r", "int64")
            iters = (
                ir.IterVar(first, 4, "space", expr("int32")),
                ir.IterVar(second, 2, "reduce", expr("int64")),
            )[: draw(st.integers(0, 2))]
            added = tuple(i.var for i in iters)
            init = below(*added) if draw(st.booleans()) else None
            predicate = expr("bool") if draw(st.booleans()) else None
            return ir.Block(draw(st.text(max_size=3)), iters, below(*added), init, predicate, draw(notes))


@st.composite
def functions(draw: st.DrawFn) -> ir.PrimFunc:
    """A function over :data:`SOURCES` with any statements in it."""
    params = (*SOURCES.values(), OUTPUT, SCALAR)
    return ir.PrimFunc("kernel", params, draw(statements(3)), draw(notes))
