# SPDX-License-Identifier: Apache-2.0
"""The interpreter: against a plain evaluator, against numpy on lowered functions, and on everything it must refuse."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from microc import te
from microc.base.dtypes import Array
from microc.errors import InternalError, ProgramError
from microc.tir import ir
from microc.tir.interp import compile_func, execute, run
from microc.tir.ir import Bin, Const, Expr, Select, Var, const
from tests.support.campaign import examples
from tests.tir.strategies import SOURCES, Overflow, data_exprs, evaluate

I, J = Var("i"), Var("j")  # noqa: E741
IN = ir.Buffer("x", (4,), "int32")
OUT = ir.Buffer("y", (4,), "int32")
ZERO = const(0, "int32")


def compute(value: Expr, *arrays: Array, **options: Any) -> Any:
    """The value of an expression over :data:`IN` (or the sources)."""
    out = ir.Buffer("out", (1,), value.dtype)
    params = (IN, out) if arrays else (*SOURCES.values(), out)
    given = arrays or tuple(np.ones(3, b.dtype) for b in SOURCES.values())
    func = ir.PrimFunc("f", params, ir.Store(out, (ZERO,), value))
    return execute(func, [*given, np.zeros(1, value.dtype)], **options)[-1][0]


def ints(*values: int) -> Array:
    return np.array(values, np.int32)


@settings(max_examples=examples(500), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(list(SOURCES)).flatmap(data_exprs), st.integers(0, 2**32))
def test_against_the_plain_evaluator(expr: Expr, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = {d: (rng.integers(0, 256, 24, dtype=np.uint8) & (1 if d == "bool" else 255)) for d in SOURCES}
    data = {d: np.ascontiguousarray(raw.view(d)[:3]) for d, raw in arrays.items()}
    env: dict[Expr, Any] = {
        b[k]: data[d][k] if d.startswith("float") else int(data[d][k]) for d, b in SOURCES.items() for k in range(3)
    }
    out = ir.Buffer("out", (1,), expr.dtype)
    func = ir.PrimFunc("f", (*SOURCES.values(), out), ir.Store(out, (ZERO,), expr))
    inputs = [*data.values(), np.zeros(1, expr.dtype)]
    try:
        expected = np.array([evaluate(expr, env)]).astype(expr.dtype)
    except Overflow:
        with pytest.raises(InternalError):
            execute(func, inputs)
        return
    np.testing.assert_array_equal(execute(func, inputs)[-1], expected)


# ---------------------------------------------------------------- functions


def test_matmul() -> None:
    a, b = te.placeholder((5, 7), "int8", "a"), te.placeholder((7, 3), "int8", "b")
    k = te.reduce_axis(7, "k")
    c = te.compute(
        (5, 3),
        lambda i, j: te.sum_reduce(a[i, k.var].astype("int32") * b[k.var, j].astype("int32"), k),
        "c",
        ("i", "j"),
    )
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-128, 128, shape, dtype=np.int8) for shape in ((5, 7), (7, 3)))
    out = np.full((5, 3), 99, np.int32)
    run(te.create_prim_func("matmul", [a, b], [c]), [x, y, out])
    assert np.array_equal(out, x.astype(np.int32) @ y)


def test_padded_convolution() -> None:
    x, w = te.placeholder((1, 6, 6, 3), "int8", "x"), te.placeholder((4, 3, 3, 3), "int8", "w")

    def pad(n: Expr, h: Expr, v: Expr, c: Expr) -> Expr:
        inside = ir.all_of([h >= 1, h < 7, v >= 1, v < 7])
        assert inside is not None
        return ir.select(inside, x[n, h - 1, v - 1, c], 5)

    padded = te.compute((1, 8, 8, 3), pad, "padded")
    axes = [te.reduce_axis(3, name) for name in ("p", "q", "c")]
    p, q, k = (axis.var for axis in axes)

    def window(n: Expr, h: Expr, v: Expr, o: Expr) -> Expr:
        product = padded[n, h + p, v + q, k].astype("int32") * w[o, p, q, k].astype("int32")
        return te.sum_reduce(product, *axes)

    out = te.compute((1, 6, 6, 4), window, "out")
    rng = np.random.default_rng(0)
    data, weights = (rng.integers(-128, 128, shape, dtype=np.int8) for shape in (x.shape, w.shape))
    result = execute(te.create_prim_func("conv", [x], [out], [w]), [data, weights, np.zeros(out.shape, np.int32)])[-1]
    full = np.pad(data.astype(np.int32), ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=5)
    windows = np.lib.stride_tricks.sliding_window_view(full, (3, 3), axis=(1, 2))
    assert np.array_equal(result, np.einsum("nhvcpq,opqc->nhvo", windows, weights.astype(np.int32)))


def test_block_predicate_init_and_extent() -> None:
    """An imperfect split: sums of pairs, the guard skips what lies beyond, init runs once per element."""
    v, r, o, n = Var("v"), Var("r"), Var("o"), Var("n")
    block = ir.Block(
        "sum",
        (ir.IterVar(v, 3, "space", o * 2 + n), ir.IterVar(r, 2, "reduce", J)),
        ir.Store(OUT, (v,), OUT[v] + IN[v + r]),
        ir.Store(OUT, (v,), ZERO),
        o * 2 + n < 3,
    )
    body = ir.loops([(o, 2), (n, 2), (J, 2)], block)
    assert execute(ir.PrimFunc("f", (IN, OUT), body), [ints(1, 2, 3, 4), ints(9, 9, 9, 9)])[-1].tolist() == [3, 5, 7, 9]


def test_statements() -> None:
    """Let, If with both branches, variable extents, allocation, sequence."""
    tmp, v = ir.Buffer("tmp", (4,), "int32", "register"), Var("v")
    fill = ir.For(J, I + 1, ir.Store(tmp, (J,), J * 10))
    choose = ir.If(v > 2, ir.Store(OUT, (I,), v), ir.Store(OUT, (I,), tmp[I]))
    body = ir.loops([(I, 4)], ir.Alloc(tmp, ir.seq(fill, ir.Let(v, IN[I] + 1, choose))))
    assert execute(ir.PrimFunc("f", (IN, OUT), body), [ints(5, 0, 7, 1), ints(0, 0, 0, 0)])[-1].tolist() == [
        6,
        10,
        8,
        30,
    ]


def test_many_nested_loops_and_deep_sums() -> None:
    """Beyond what one Python function or expression can nest."""
    variables = [Var(f"n{k}") for k in range(30)]
    total: Expr = IN[0]
    for _ in range(120):
        total = total + IN[1]
    right: Expr = IN[0]
    for _ in range(120):
        right = IN[1] + right
    store = ir.seq(ir.Store(OUT, (ZERO,), total), ir.Store(OUT, (const(1, "int32"),), OUT[1] + 1))
    body = ir.seq(
        ir.loops([(v, 2 if k % 10 == 0 else 1) for k, v in enumerate(variables)], store), ir.Store(OUT, (ZERO,), right)
    )
    func = ir.PrimFunc("f", (IN, OUT), body)
    assert execute(func, [ints(1, 2, 3, 4), ints(0, 0, 0, 0)])[-1].tolist() == [241, 8, 0, 0]


def test_deep_expressions_stay_lazy() -> None:
    """The far side of a Select may index out of bounds even when its text had to move into a function."""
    deep: Expr = IN[I + 100]
    for _ in range(120):
        deep = deep + 1
    body = ir.loops([(I, 4)], ir.Store(OUT, (I,), Select(I < 4, I, deep)))
    assert execute(ir.PrimFunc("f", (IN, OUT), body), [ints(0, 0, 0, 0), ints(0, 0, 0, 0)])[-1].tolist() == [0, 1, 2, 3]


def test_intrinsics() -> None:
    address = ir.AddressOf(IN, (const(1, "int32"),), 2)
    target = ir.AddressOf(OUT, (const(2, "int32"),), 1, True)

    def dot(args: list[Any]) -> int:
        (data, k), scale = args
        return int(data[k] + data[k + 1]) * int(scale)

    def put(args: list[Any]) -> int:
        (data, k), value = args
        data[k] = value
        return 0

    value = ir.Call("dot", (address, const(3, "int32")), "int32")
    body = ir.Evaluate(ir.Call("put", (target, value), "int32"))
    func = ir.PrimFunc("f", (IN, OUT), body)
    arrays = [ints(1, 2, 3, 4), ints(0, 0, 0, 0)]
    assert execute(func, arrays, {"dot": dot, "put": put})[-1].tolist() == [0, 0, 15, 0]
    with pytest.raises(ProgramError, match="without a definition; got dot"):
        execute(func, arrays, {"put": put})
    far = ir.AddressOf(IN, (const(3, "int32"),), 2)
    with pytest.raises(InternalError, match="outside"):
        compute(ir.Call("dot", (far, const(3, "int32")), "int32"), ints(1, 2, 3, 4), intrinsics={"dot": dot})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("exp", 1.0, math.e), ("log", 2.0, math.log(2)), ("sqrt", 2.0, math.sqrt(2)),
        ("erf", 0.5, math.erf(0.5)),
        ("tanh", 0.5, math.tanh(0.5)), ("sin", 1.0, math.sin(1)), ("cos", 1.0, math.cos(1)),
        ("floor", -1.5, -2.0), ("ceil", -1.5, -1.0),
        ("round", 2.5, 3.0), ("round", -2.5, -3.0),
        ("rint", 2.5, 2.0), ("fabs", -2.0, 2.0), ("trunc", -1.5, -1.0),
    ],
)  # fmt: skip
def test_mathematics(name: str, value: float, expected: float) -> None:
    for dtype, tolerance in (("float32", 1e-6), ("float64", 1e-15)):
        result = compute(ir.call(name, const(value, dtype)))
        assert result.dtype == dtype and result == pytest.approx(expected, rel=tolerance)


def test_integers_as_floats_round_once() -> None:
    value = (1 << 60) + (1 << 36) + 1
    assert compute(ir.Cast("float32", Const(value, "int64"))) == np.int64(value).astype(np.float32)


def test_float_arithmetic_is_that_of_its_dtype() -> None:
    tenth = const(0.1, "float32")
    assert compute(tenth * 3.0) == np.float32(0.1) * np.float32(3)
    assert compute(Bin("div", tenth, const(0, "float32"))) == math.inf
    assert math.isnan(compute(ir.call("sqrt", const(-1, "float32"))))


def test_poisoned_workspace() -> None:
    tmp = ir.Buffer("tmp", (1,), "int16", "workspace")
    body = ir.Alloc(tmp, ir.Store(OUT, (ZERO,), tmp[0].astype("int32")))
    assert execute(ir.PrimFunc("f", (OUT,), body), [ints(0, 0, 0, 0)])[0][0] == 0x5555


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (IN[0] + IN[0], "add overflows int32; got 4294967294"),
        (IN[0] * -2, "mul overflows int32"),
        (IN[1] - IN[0], "sub overflows int32"),
        (-(IN[1] - 1), "neg overflows int32"),
        (IN[0] << 1, "shl overflows int32"),
        (IN[0] << IN[0], "shl of int32 by 2147483647"),
        (Bin("truncdiv", IN[1] - 1, const(-1, "int32")), "truncdiv overflows"),
        (IN[0] // IN[2], "division by zero"),
        (IN[IN[1]], r"x\[-2147483647\] is outside of the buffer.s shape \[4\]"),
        (IN[IN[2] + 4], r"x\[4\] is outside of"),
        (ir.Cast("int32", const(3e9, "float32")), "does not fit int32"),
        (ir.Cast("int32", const(math.nan, "float32")), "does not fit int32"),
        (Bin("add", IN[0], const(1, "int64")), "int32 and int64"),
        (Bin("div", IN[0], IN[1]), "floordiv or truncdiv"),
        (IN[I], "i is not defined"),
        (ir.Load(OUT, (ZERO,)), "neither a parameter nor allocated"),
        (ir.AddressOf(IN, (ZERO,)), "has no value"),
    ],
)
def test_faults(value: Expr, message: str) -> None:
    with pytest.raises(InternalError, match=message) as caught:
        compute(value, ints(2**31 - 1, -(2**31) + 1, 0, 0))
    assert caught.value.where == "f"


def test_unsigned_wraps() -> None:
    big = Const(2**32 - 1, "uint32")
    assert compute(Bin("add", SOURCES["uint32"][0], big)) == 0
    assert compute(Bin("sub", SOURCES["uint32"][0], Const(2, "uint32"))) == 2**32 - 1


def test_blocks_stay_in_their_domain() -> None:
    v = Var("v")
    block = ir.Block("b", (ir.IterVar(v, 4, "space", I + 1),), ir.Store(OUT, (v,), ZERO))
    with pytest.raises(InternalError, match=r"block b: v = 4 is not in 0\.\.3"):
        execute(ir.PrimFunc("f", (OUT,), ir.loops([(I, 4)], block)), [ints(0, 0, 0, 0)])


def test_wrong_arguments() -> None:
    func = ir.PrimFunc("f", (OUT,), ir.Store(OUT, (ZERO,), ZERO))
    compiled = compile_func(func)
    for arrays, message in (
        ([], "got 0, expected 1"),
        ([np.zeros(3, np.int32)], r"y: wrong array; got int32\[3\], expected int32\[4\]"),
        ([np.zeros(4, np.int8)], "got int8"),
        ([np.zeros(8, np.int32)[::2]], "not contiguous"),
    ):
        with pytest.raises(InternalError, match=message):
            compiled(arrays, {})
    constant = ir.Buffer("w", (4,), "int32", "const")
    with pytest.raises(InternalError, match="store to constant w"):
        compile_func(ir.PrimFunc("f", (constant,), ir.Store(constant, (ZERO,), ZERO)))
