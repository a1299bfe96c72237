# SPDX-License-Identifier: Apache-2.0
"""The verifier: passes what is right, names every class of fault."""

from collections.abc import Callable

import pytest

from microc import te
from microc.errors import InternalError, ProgramError
from microc.schedule.schedule import Schedule
from microc.tir import ir
from microc.tir.analysis.cover import explain_incomplete_coverage
from microc.tir.extents import SizeDomain
from microc.tir.ir import Bin, Const, Expr, Select, Un, Var, const
from microc.tir.text import from_text, to_text
from microc.tir.verify import constant_names, verify

I, J, V, W = Var("i"), Var("j"), Var("v"), Var("w")  # noqa: E741
X = ir.Buffer("x", (8,), "int32")
N = ir.Buffer("n", (8,), "int8")
C = ir.Buffer("c", (8,), "int32", "const")
R = ir.Buffer("r", (8,), "float32")
OUT = ir.Buffer("out", (4, 8), "int32")
ONE = const(1, "int32")


def kernel(body: ir.Stmt) -> ir.PrimFunc:
    return ir.PrimFunc("f", (X, N, C, R, OUT), body)


def store(value: Expr, index: Expr = ONE) -> ir.Stmt:
    return ir.Store(X, (index,), value)


def over(extent: int, body: ir.Stmt) -> ir.Stmt:
    return ir.loops([(I, extent)], body)


def pad(condition: Expr) -> ir.Stmt:
    return over(10, store(Select(condition, X[I - 1], ONE), I // 2))


def block(*iters: tuple[Var, int, Expr], predicate: Expr | None = None, target: ir.Buffer = OUT) -> ir.Stmt:
    bound = tuple(ir.IterVar(var, extent, "space", binding) for var, extent, binding in iters)
    return ir.Block("b", bound, ir.Store(target, (V, W)[: len(iters)], ONE), None, predicate)


def nest(*extents: int) -> list[tuple[Var, int]]:
    return [(Var(name), extent) for name, extent in zip("ijk", extents, strict=False)]


def _tensorized() -> ir.Stmt:
    """Four elements at once: the iterator takes every fourth value of its domain."""
    address = ir.AddressOf(OUT, (V, W), 4, True)
    bound = (ir.IterVar(V, 4, "space", I), ir.IterVar(W, 8, "space", J * 4))
    return ir.Block("b", bound, ir.Evaluate(ir.Call("fill", (address, ONE), "int32")))


RIGHT = {
    "pad guard": pad(Bin("and", I >= 1, I < 9)),
    "pad guard the other way round": pad(Bin("and", Bin("le", ONE, I), Bin("gt", const(9, "int32"), I))),
    "negated guard": over(10, store(Select(Bin("or", I < 1, I >= 9), ONE, X[I - 1]), I // 2)),
    "guard within and": over(10, ir.If(Bin("and", I < 8, X[I] > 0), store(ONE, I))),
    "guard of an if": ir.loops([(I, 3), (J, 4)], ir.If(I * 4 + J < 8, store(ONE, I * 4 + J))),
    "guarded digit": ir.loops([(I, 4), (J, 3)], store(Select(I * 3 + J < 9, X[I * 3], ONE), I)),
    "guarded gather": over(8, store(Select(Bin("and", X[I] >= 0, X[I] < 8), X[X[I]], ONE), I)),
    "clamped gather": over(8, store(X[ir.clamp(X[I], 0, 7)], I)),
    "table": over(8, store(X[(N[I].astype("int32") + 128) // 32], I)),
    "tail": ir.loops([(I, 3)], ir.For(J, ir.minimum(const(3, "int32"), 8 - I * 3), store(ONE, I * 3 + J))),
    "let": over(4, ir.Let(V, I * 2 + 1, store(V, V))),
    "let of the same name beside": ir.seq(ir.Let(V, ONE, store(V)), ir.Let(V, ONE, store(V))),
    "address": ir.Evaluate(ir.Call("copy", (ir.AddressOf(X, (const(4, "int32"),), 4, True),), "int32")),
    "narrow comparison": store(Select(N[0] < N[1], ONE, ONE)),
    "narrow maximum": over(8, ir.Store(N, (I,), ir.maximum(N[I], 0))),
    "register": ir.Alloc(ir.Buffer("t", (2,), "int32", "register"), store(ONE)),
    "vector moved": ir.Let(
        Var("p", "int16x2"), ir.Call("load", (ONE,), "int16x2"), store(ir.Call("dot", (ONE,), "int32"))
    ),
    "block": ir.loops(nest(4, 8), block((V, 4, I), (W, 8, J))),
    "fused block": ir.loops(nest(32), block((V, 4, I // 8), (W, 8, I % 8))),
    "split block": ir.loops(nest(4, 2, 4), block((V, 4, I), (W, 8, J * 4 + Var("k")))),
    "imperfect split": ir.loops(
        nest(4, 3, 3), block((V, 4, I), (W, 8, J * 3 + Var("k")), predicate=J * 3 + Var("k") < 8)
    ),
    "fused and split imperfectly": ir.loops(
        nest(5, 7), block((V, 4, (I * 7 + J) // 8), (W, 8, (I * 7 + J) % 8), predicate=I * 7 + J < 32)
    ),
    "reversed block": ir.loops(nest(4, 8), block((V, 4, 3 - I), (W, 8, J))),
    "tail block": ir.loops(
        nest(4, 3),
        ir.For(Var("k"), ir.minimum(const(3, "int32"), 8 - J * 3), block((V, 4, I), (W, 8, J * 3 + Var("k")))),
    ),
    "tensorized block": ir.loops(nest(4, 2), _tensorized()),
    "part of a workspace": ir.Alloc(
        ir.Buffer("t", (8,), "int32", "workspace"),
        ir.loops(nest(4), block((V, 8, I * 2), target=ir.Buffer("t", (8,), "int32", "workspace"))),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str) -> None:
    verify(kernel(RIGHT[name]))


def test_lowered_functions_are_right() -> None:
    x, w = te.placeholder((6, 6), "int8", "x"), te.placeholder((3, 3), "int8", "w")
    p, q = te.reduce_axis(3, "p"), te.reduce_axis(3, "q")

    def tap(h: Expr, v: Expr) -> Expr:
        y, z = h * 2 + p.var - 1, v * 2 + q.var - 1
        inside = ir.all_of([y >= 0, y < 6, z >= 0, z < 6])
        assert inside is not None
        return te.sum_reduce(ir.select(inside, x[y, z].astype("int32") * w[p.var, q.var].astype("int32"), 0), p, q)

    verify(te.create_prim_func("conv", [x], [te.compute((3, 3), tap, "out")], [w]))


P = ir.Buffer("p", (8,), "float32", "register")
WRONG: dict[str, tuple[ir.Stmt, str]] = {
    "operand dtypes": (store(Bin("add", ONE, const(1, "int64"))), "add of int32 and int64"),
    "store dtype": (ir.Store(X, (ONE,), N[0]), "got int8, expected int32"),
    "index dtype": (ir.Store(X, (const(1, "int64"),), ONE), "index .* got int64"),
    "rank": (ir.Store(OUT, (ONE,), ONE), "out: wrong number of indices; got 1, expected 2"),
    "bounds of a loop": (over(9, store(ONE, I)), r"axis 0 of x\[8\]: i may be 0\.\.8, expected 0\.\.7"),
    "negative index": (over(8, store(ONE, I - 1)), r"may be -1\.\.6"),
    "half a guard": (pad(I >= 1), r"may be 0\.\.8"),
    "guard of another branch": (over(10, store(Select(I < 8, ONE, X[I]), I // 2)), r"may be 8\.\.9"),
    "unguarded gather": (store(X[X[0]]), r"may be \?\.\.\?"),
    "guard on overwritten data": (
        ir.If(Bin("and", X[0] >= 0, X[0] < 8), ir.Seq((store(const(99, "int32"), const(0, "int32")), store(X[X[0]])))),
        r"may be \?",
    ),
    "undefined variable": (store(I), r"variable i \(int32\) is not defined"),
    "variable of another dtype": (over(4, store(Var("i", "int64").astype("int32"))), "not defined"),
    "out of scope": (ir.seq(over(4, store(I)), store(I)), "not defined"),
    "shadowing": (over(4, over(4, store(I))), "i is declared twice"),
    "shadowed buffer": (ir.Let(Var("x"), ONE, store(ONE)), "x is declared twice"),
    "unknown buffer": (ir.Store(P, (ONE,), const(0, "float32")), "p is not declared"),
    "buffer of another shape": (ir.Store(ir.Buffer("x", (9,), "int32"), (ONE,), ONE), "x is not declared here"),
    "name": (ir.Let(Var("a b"), ONE, store(ONE)), "no ASCII identifier"),
    "constant written": (ir.Store(C, (ONE,), ONE), "store to the constant buffer c"),
    "constant written through an address": (
        ir.Evaluate(ir.Call("copy", (ir.AddressOf(C, (ONE,), 1, True),), "int32")),
        "writes the constant buffer c",
    ),
    "address beyond the end": (
        ir.Evaluate(ir.Call("copy", (ir.AddressOf(X, (const(5, "int32"),), 4),), "int32")),
        r"the end of T.address_of\(x\[5\], extent=4\): .* may be 8\.\.8",
    ),
    "address outside a call": (store(ir.AddressOf(X, (ONE,))), "outside of a call"),
    "condition": (ir.If(ONE, store(ONE)), "condition 1: wrong dtype; got int32"),
    "condition of a select": (store(Select(ONE, ONE, ONE)), "condition 1: wrong dtype; got int32"),
    "operand of and": (store(Select(Bin("and", ONE, ONE), ONE, ONE)), "condition 1: wrong dtype; got int32"),
    "branches of a select": (store(Select(ONE < 2, ONE, const(1, "int64"))), "select: .* got int32 and int64"),
    "narrow arithmetic": (ir.Store(N, (ONE,), N[0] + N[1]), "add is not defined for int8"),
    "vector arithmetic": (ir.Let(Var("p", "int16x2"), Un("neg", Var("q", "int16x2")), store(ONE)), "not defined"),
    "division of integers": (store(Bin("div", ONE, ONE)), "div is not defined for int32"),
    "floor division of floats": (
        ir.Store(R, (ONE,), Bin("floordiv", R[0], R[1])),
        "floordiv is not defined for float32",
    ),
    "unknown operator": (store(Bin("xnor", ONE, ONE)), "xnor of int32"),
    "not of a number": (store(Un("not", ONE)), "operator not: wrong dtype of the operand; got int32"),
    "literal": (store(Const(1 << 40, "int32")), "1099511627776 cannot be represented in int32"),
    "inexact literal": (ir.Store(R, (ONE,), Const(0.1, "float32")), "0.1 cannot be represented in float32"),
    "let dtype": (ir.Let(Var("v", "int64"), ONE, store(ONE)), "let v: .* got int32, expected int64"),
    "loop dtype": (ir.For(Var("i", "int64"), ONE, store(ONE)), "loop i: .* got int64"),
    "loop kind": (ir.For(I, ONE, store(ONE), "sideways"), "sideways"),
    "scope of an allocation": (ir.Alloc(ir.Buffer("t", (1,), "int8"), store(ONE)), "may have the scope global"),
    "evaluated value": (ir.Evaluate(ONE), "expected a call"),
    "mathematics": (ir.Store(R, (ONE,), ir.Call("exp", (ONE,), "float32")), "exp"),
    "bits": (ir.Store(R, (ONE,), ir.reinterpret("float32", const(1, "int64"))), "another number of bits"),
    "binding out of domain": (ir.loops(nest(5, 8), block((V, 4, I), (W, 8, J))), r"iterator v: i may be 0\.\.4"),
    "domain not covered": (
        ir.loops(nest(3, 8), block((V, 4, I), (W, 8, J))),
        "v = i does not take every value of 0..3",
    ),
    "one instance": (block((V, 4, const(0, "int32")), (W, 8, const(0, "int32"))), "v = 0 does not take every value"),
    "gap": (ir.loops(nest(4, 4), block((V, 4, I), (W, 8, J * 2))), "w = j \\* 2 does not take every value of"),
    "no iterations": (ir.loops(nest(4, 0), block((V, 4, I), (W, 1, J))), "loop j has no iterations"),
    "diagonal": (ir.loops(nest(4), block((V, 4, I), (W, 8, I))), "no independent mixed-radix digit"),
    "overlapping digits": (ir.loops(nest(16), block((V, 4, I // 4), (W, 8, I // 2))), "share the same part"),
    "predicate that cuts": (
        ir.loops(nest(4, 8), block((V, 4, I), (W, 8, J), predicate=J < 7)),
        "j < 7 may exclude instances",
    ),
    "condition that cuts": (
        ir.loops(nest(4, 8), ir.If(I > 0, block((V, 4, I), (W, 8, J)))),
        "i > 0 may exclude instances",
    ),
    "iterator kind": (ir.Block("b", (ir.IterVar(V, 1, "time", const(0, "int32")),), store(ONE)), "got 'time'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name: str) -> None:
    body, message = WRONG[name]
    with pytest.raises(InternalError, match=message) as caught:
        verify(kernel(body))
    assert caught.value.where.startswith("f")


def test_indices_from_data() -> None:
    """Indices from data of the run may stay unproven on request, indices of loops may not."""
    verify(kernel(store(X[X[0]])), tables=())
    with pytest.raises(InternalError, match="may be"):
        verify(kernel(over(9, store(ONE, I))), tables=())


REGISTER = ir.Buffer("held", (1,), "int32", "register")
CARRIED = ir.Alloc(REGISTER, ir.seq(ir.Store(REGISTER, (const(0, "int32"),), C[0]), store(X[REGISTER[0]])))
NAMED = ir.Let(I, C[0], store(X[I]))


@pytest.mark.parametrize("body", [store(X[C[0]]), NAMED, CARRIED], ids=["itself", "named", "carried"])
def test_constants_that_nobody_has_judged_are_no_indices(body: ir.Stmt) -> None:
    """An index loaded from a constant, by whatever way, is allowed if that is one of the tables."""
    verify(kernel(body), tables=("c",))
    verify(kernel(body), tables=constant_names(kernel(body)))
    with pytest.raises(InternalError, match="loaded from c, whose numbers are not checked"):
        verify(kernel(body), tables=())
    with pytest.raises(InternalError, match="may be"):
        verify(kernel(body))


@pytest.mark.parametrize("name", ["saturate_i8", "saturate_i8_shr_1"])
@pytest.mark.parametrize("extent", [256, 255])
def test_saturating_intrinsics_bound_indices(name: str, extent: int) -> None:
    """A lookup by a saturated sum of unknown constants is proved, by itself and by a name; a table that is short is not."""
    table = ir.Buffer("table", (extent,), "int8", "const")
    saturated = ir.Call(name, (C[ONE] + X[ONE],), "int32")
    for body in (
        store(table[saturated + 128].astype("int32")),
        ir.Let(V, saturated, store(table[V + 128].astype("int32"))),
    ):
        func = ir.PrimFunc("f", (X, C, table), body)
        if extent == 256:
            verify(func, tables=())
            continue
        with pytest.raises(ProgramError, match="axis 0 of table"):
            verify(func, tables=())


@pytest.mark.parametrize("body", [store(X[C[0]]), NAMED, store(X[C[0] + C[1] - 2])], ids=["itself", "named", "summed"])
def test_numbers_of_constants_prove_indices(body: ir.Stmt) -> None:
    last = X.shape[0] - 1
    verify(kernel(body), numbers={"c": (1, 1 + last // 2)})
    with pytest.raises(InternalError, match=f"loaded from c and may be -?\\d+..\\d+, expected 0..{last}"):
        verify(kernel(body), tables=(), numbers={"c": (-1, 2 * last)})


def test_parameters() -> None:
    for buffers, message in (
        ((X, X), "x is declared twice"),
        ((ir.Buffer("t", (2,), "int8", "register"),), "scope register"),
        ((ir.Buffer("t", (2,), "int7"),), "unknown dtype"),
        ((ir.Buffer("t", (2,), "int8", "moon"),), "unknown scope"),
        ((ir.Buffer("t", (-2,), "int8"),), "shape"),
    ):
        with pytest.raises(InternalError, match=message):
            verify(ir.PrimFunc("f", buffers, ir.Seq(())))


def test_faults_name_their_block() -> None:
    inner = ir.Block("wrong", (ir.IterVar(V, 4, "space", I),), store(ONE, V + 5))
    with pytest.raises(InternalError) as caught:
        verify(kernel(over(4, inner)))
    assert caught.value.where == "f, block wrong"


@pytest.mark.parametrize(("divisor", "covers"), [("a * 4 + b", True), ("a * 2 + b", False)])
def test_digits_of_a_split_loop_are_of_one_sum(divisor: str, covers: bool) -> None:
    """Row and column of a fused loop that was split with a tail; digits of different sums are not independent."""
    func = from_text(f"""
@T.prim_func
def f(x: T.Buffer((3, 3), "int8"), y: T.Buffer((3, 3), "int8")):
    for a, b in T.grid(3, 4):
        with T.block("y"):
            vi = T.axis.spatial(3, (a * 4 + b) // 3)
            vj = T.axis.spatial(3, ({divisor}) % 3)
            T.where(a * 4 + b < 9)
            y[vi, vj] = x[vi, vj]
""")
    if covers:
        verify(func)
    else:
        with pytest.raises(InternalError, match="do not provably cover"):
            verify(func)


@pytest.mark.parametrize(
    ("guards", "covers"),
    [
        ("a * 3 + b * 2 + c < 8 and b * 2 + c < 3", True),
        ("a * 3 + b * 2 + c < 8 and b * 2 + c < 2", False),
        ("a * 3 + b * 2 + c < 8 and b + c * 2 < 3", True),
        ("a * 3 + b * 2 + c < 7 and b * 2 + c < 3", False),
    ],
)
def test_loops_with_a_tail_are_split_again(guards: str, covers: bool) -> None:
    """8 values in threes, each of them 2 by 2: what the inner guard leaves is the variable before the second split.

    ``b + c * 2 < 3`` leaves the same three pairs of ``b`` and ``c``."""
    func = from_text(f"""
@T.prim_func
def f(x: T.Buffer((8,), "int8"), y: T.Buffer((8,), "int8")):
    for a, b, c in T.grid(3, 2, 2):
        with T.block("y"):
            v = T.axis.spatial(8, a * 3 + b * 2 + c)
            T.where({guards})
            y[v] = x[v]
""")
    if covers:
        verify(func)
    else:
        with pytest.raises(InternalError, match="do not provably cover"):
            verify(func)


def test_names_of_sums_are_not_those_of_loops() -> None:
    """The proof names the sum that a guard bounds: its name must not be that of a loop, which would get its number of values."""
    for number in range(5):
        loop = Var(f"sum_{number}")
        guarded = block((V, 3, loop), (W, 1, const(0, "int32")), predicate=I * 2 + J < 3)
        with pytest.raises(InternalError, match="do not provably cover"):
            verify(kernel(ir.loops([(loop, 2), (I, 2), (J, 2)], guarded)))


def test_guards_that_depend_on_sizes_bound_sums_at_all_sizes() -> None:
    """``i * 2 + j < n`` leaves all four values at large n alone."""
    domain = SizeDomain([{"n": size} for size in range(1, 9)], [{"n": 99}, {"n": 101}])
    size = domain.extent_of(Var("n"))
    for limit, covers in ((size, False), (size + 3, True)):
        guarded = block((V, 4, I * 2 + J), predicate=Bin("lt", I * 2 + J, Const(limit, "int32")))
        assert isinstance(guarded, ir.Block)
        loops = [ir.For(var, const(2, "int32"), guarded) for var in (I, J)]
        assert (explain_incomplete_coverage(guarded, loops) == "") == covers


def test_uncovered_digits_are_shown_as_they_are_written() -> None:
    func = from_text("""
@T.prim_func
def f(x: T.Buffer((4, 3), "int8"), y: T.Buffer((4, 3), "int8")):
    for a, b in T.grid(3, 3):
        with T.block("y"):
            vi = T.axis.spatial(4, (a * 3 + b) // 3)
            vj = T.axis.spatial(3, (a * 3 + b) % 3)
            y[vi, vj] = x[vi, vj]
""")
    with pytest.raises(InternalError, match=r"vi = \(a \* 3 \+ b\) // 3 does not take every value of 0..3"):
        verify(func)


@pytest.mark.parametrize(
    "steps",
    [
        lambda s: s.split("j", (2, None)).split("j_0", (None, 3)).split("j_1", (None, 2)).fuse("j_0_1", "j_1_0"),
        lambda s: s.fuse("i", "j").split("i_j", (2, None)).split("i_j_1", (None, 4)).fuse("i_j_1_0", "i_j_1_1"),
        lambda s: s.split("j", (None, 2)).fuse("i", "j_0").split("i_j_0", (None, 4)).fuse("i_j_0_1", "j_1"),
    ],
)
def test_loops_without_digits_are_enumerated(steps: Callable[[Schedule], Schedule]) -> None:
    """Fused parts of loops with tails: nothing but their values tells that all instances run."""
    func = from_text("""
@T.prim_func
def f(A: T.Buffer((6, 9), "int32"), D: T.Buffer((9, 6), "int32")):
    for i, j in T.grid(6, 9):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vj, vi] = A[vi, vj]
""")
    scheduled = steps(Schedule(func)).func
    verify(scheduled)
    text = to_text(scheduled)
    assert "T.where(" in text
    with pytest.raises(InternalError, match="do not provably cover"):
        verify(from_text(text.replace("< 9", "< 8").replace("< 27", "< 26").replace("< 5)", "< 4)")))
