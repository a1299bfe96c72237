# SPDX-License-Identifier: Apache-2.0
"""TIR as text: what is printed reads back equal; what is malformed is refused with its line."""

import math

import pytest
from hypothesis import HealthCheck, given, settings

from microc.errors import InternalError, ModelError
from microc.tir import ir
from microc.tir.ir import Bin, Const, Un, Var
from microc.tir.text import format_expr, from_text, to_text
from tests.support.campaign import examples
from tests.tir.strategies import functions

A = ir.Buffer("a", (4, 8), "int8", "const")
OUT = ir.Buffer("out", (4,), "float32")


def kernel(body: ir.Stmt) -> ir.PrimFunc:
    return ir.PrimFunc("kernel", (A, OUT), body)


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(functions())
def test_round_trip(func: ir.PrimFunc) -> None:
    assert from_text(to_text(func)) == func


def test_golden() -> None:
    i, k, v_i, v_k = Var("i"), Var("k"), Var("v_i"), Var("v_k")
    total = ir.Buffer("sum", (4,), "int32", "workspace")
    update = ir.Store(total, (v_i,), total[v_i] + A[v_i, v_k].astype("int32"))
    block = ir.Block(
        "sum",
        (ir.IterVar(v_i, 4, "space", i), ir.IterVar(v_k, 8, "reduce", k)),
        update,
        ir.Store(total, (v_i,), Const(0, "int32")),
        i < 3,
    )
    body = ir.Alloc(total, ir.loops([(i, 4), (k, 8)], block))
    assert to_text(kernel(body)) == (
        "@T.prim_func\n"
        "def kernel(\n"
        '    a: T.Buffer((4, 8), "int8", scope="const"),\n'
        '    out: T.Buffer((4,), "float32"),\n'
        "):\n"
        '    sum = T.alloc_buffer((4,), "int32", scope="workspace")\n'
        "    for i, k in T.grid(4, 8):\n"
        '        with T.block("sum"):\n'
        "            v_i = T.axis.spatial(4, i)\n"
        "            v_k = T.axis.reduce(8, k)\n"
        "            T.where(i < 3)\n"
        "            with T.init():\n"
        "                sum[v_i] = 0\n"
        '            sum[v_i] = sum[v_i] + T.Cast("int32", a[v_i, v_k])\n'
    )


def test_sizes_are_parameters() -> None:
    n, i = Var("n"), Var("i")
    func = ir.PrimFunc("fill", (OUT,), ir.For(i, n, ir.Store(OUT, (i,), Const(0.0, "float32"))), scalars=(n,))
    assert "    n: T.int32,\n" in to_text(func) and from_text(to_text(func)) == func
    with pytest.raises(ModelError, match="expected all buffers first"):
        from_text('@T.prim_func\ndef f(n: T.int32, a: T.Buffer((4,), "int8")):\n    pass\n')


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (Un("neg", Const(4, "int32")), "T.neg(4)"),
        (Const(-4, "int32"), "-4"),
        (Bin("sub", Var("x"), Bin("sub", Var("y"), Var("z"))), "x - (y - z)"),
        (Bin("sub", Bin("sub", Var("x"), Var("y")), Var("z")), "x - y - z"),
        (Bin("truncdiv", Var("x"), Const(3, "int32")), "T.truncdiv(x, 3)"),
        (Const(-0.0, "float32"), "T.float32(-0.0)"),
        (Const(-math.inf, "float64"), 'T.float64("-inf")'),
        (Bin("eq", Bin("lt", Var("x"), Var("y")), Const(1, "bool")), "(x < y) == True"),
        (Var("lambda"), "lambda_"),
        (ir.Call("exp", (Var("x", "float32"),), "float32"), "T.exp(x)"),
        (ir.Call("dot2", (Var("x"),), "int64"), 'T.call("dot2", x, dtype="int64")'),
    ],
)
def test_expressions(expr: ir.Expr, text: str) -> None:
    assert format_expr(expr) == text


@pytest.mark.parametrize("value", [0.1, 1e-45, 3.4028234663852886e38, math.inf, -0.0])
def test_floats_are_exact(value: float) -> None:
    stored = ir.const(value, "float32")
    read = from_text(to_text(kernel(ir.Store(OUT, (Const(0, "int32"),), stored))))
    assert isinstance(read.body, ir.Store) and isinstance(read.body.value, Const)
    assert math.copysign(1, read.body.value.value) == math.copysign(1, stored.value)
    assert read.body.value == stored


def test_nan_reads_back() -> None:
    text = to_text(kernel(ir.Store(OUT, (Const(0, "int32"),), Const(math.nan, "float32"))))
    assert 'T.float32("nan")' in text and to_text(from_text(text)) == text


def test_names_that_cannot_be_written_are_refused() -> None:
    with pytest.raises(InternalError, match="no identifier"):
        format_expr(Var("v.0"))


HEAD = '@T.prim_func\ndef f(a: T.Buffer((4,), "int32")):\n'


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "exactly one function"),
        ("def f(:\n", 1, "malformed"),
        ("def f():\n    pass\n", 1, "prim_func"),
        ('@T.prim_func\ndef f(a: T.Buffer((4,), "int33")):\n    pass\n', 2, "int33"),
        ('@T.prim_func\ndef f(a: T.Buffer((4,), "int8", scope="moon")):\n    pass\n', 2, "moon"),
        (HEAD + "    a[0] = x\n", 3, "not a variable"),
        (HEAD + "    a[0] = b[0]\n", 3, "not a buffer"),
        (HEAD + "    a[0, 1] = 1\n", 3, "got 2, expected 1"),
        (HEAD + "    pass\n    a[0] = T.int64(1)\n", 4, "got int64, expected int32"),
        (HEAD + "    a[0] = a[0] + T.uint32(1)\n", 3, "got uint32, expected int32"),
        (HEAD + "    a[0] = T.int8(300)\n", 3, "does not fit"),
        (HEAD + "    a[0] = 3000000000\n", 3, "does not fit"),
        (HEAD + "    a[0] = T.float32(1e40)\n", 3, "does not fit"),
        (HEAD + "    for i in T.moon(4):\n        pass\n", 3, "moon"),
        (HEAD + "    for i, j in T.grid(4):\n        pass\n", 3, "2 loop variables"),
        (HEAD + "    for i in enumerate(4):\n        pass\n", 3, "functions of T"),
        (HEAD + "    while True:\n        pass\n", 3, "the loop cannot end"),
        (HEAD + "    import os\n", 3, "Import is no statement"),
        (HEAD + "    a[0] = __import__('os').system('true')\n", 3, "functions of T"),
        (HEAD + "    a[0] = 0 if 1 else 2\n", 3, "got int32, expected bool"),
        (HEAD + "    T.evaluate(1 < 2 is 3)\n", 3, "no expression"),
        (HEAD + "    with T.block('b'):\n        v = T.axis.moon(1, 0)\n", 4, "axis"),
        (HEAD + "    with T.block('b', 1):\n        pass\n", 3, "expected 0 to 1"),
        (HEAD + "    a[0] = T.min(1)\n", 3, "expected 2"),
        (HEAD + "    a[0] = T.address_of(a[0], size=3)\n", 3, "unknown keyword argument; got size"),
        (HEAD + "    T.func_attr({1: 2})\n    pass\n", 3, "string literal"),
        (HEAD + "    if a[0]:\n        pass\n", 3, "expected bool"),
        (
            HEAD + "    for i in T.serial(4, annotations={'lanes': 'foo'}):\n        pass\n",
            3,
            "got 'foo', expected a number",
        ),
        (
            HEAD + "    for i in T.serial(4, annotations={'lanes': 'i8x0'}):\n        pass\n",
            3,
            "got 'i8x0', expected a number",
        ),
        (
            HEAD + "    for i in T.vectorized(4, annotations={'lanes': 0}):\n        pass\n",
            3,
            "got 0, expected a number",
        ),
        (HEAD + "    a[0] = " + "(" * 300 + "1" + ")" * 300 + "\n", 3, "malformed"),
        ("\0", 1, "malformed"),
    ],
)
def test_malformed_text(text: str, line: int, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        from_text(text)
    assert caught.value.where == f"line {line}"
