# SPDX-License-Identifier: Apache-2.0
"""Functions of a user's own for all sizes within bounds: equal, in every bit, to the same function at that size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import microc
from microc import te, tir, topi
from microc.base.dtypes import Array
from microc.compiler.sizes import general
from microc.compiler.sizes.general import WrongAtSomeSize
from microc.errors import MicrocError, ProgramError, UnsupportedError, UsageError
from microc.tir import ir
from tests.device.smoke import needs

DICE = np.random.default_rng(5)
N, M, K = te.var("n"), te.var("m"), te.var("k")
X = te.placeholder((N,), "float32", "x")


def bytes_of(*shape: int) -> Array:
    return np.asarray(DICE.integers(-128, 128, shape), np.int8)


def floats_of(*shape: int) -> Array:
    return np.asarray(DICE.normal(size=shape), np.float32)


def one(name: str, shape: Sequence[Any], f: Callable[..., Any], inputs: Sequence[te.Tensor] = (X,)) -> tir.PrimFunc:
    return te.create_prim_func(name, inputs, [te.compute(shape, f, "out", tuple("ijk"[: len(shape)]))])


def product() -> tir.PrimFunc:
    a, b, k = te.placeholder((N, K), "int8", "a"), te.placeholder((M, K), "int8", "b"), te.reduce_axis(K, "depth")

    def value(i: Any, j: Any) -> Any:
        return te.sum_reduce(a[i, k.var].astype("int32") * b[j, k.var].astype("int32"), k)

    return te.create_prim_func("product", [a, b], [te.compute((N, M), value, "acc", ("i", "j"))])


def test_a_product_of_three_sizes() -> None:
    library = microc.build(product(), bounds={"n": 32, "m": (1, 32), "k": microc.Bound(64, 2)})
    for n, m, k in ((1, 1, 2), (3, 5, 7), (32, 1, 64), (32, 32, 64)):
        a, b = bytes_of(n, k), bytes_of(m, k)
        assert np.array_equal(library(a, b), a.astype(np.int32) @ b.T.astype(np.int32))


def test_steps_at_all_sizes() -> None:
    func = product()

    def scheduled(n: int, m: int) -> microc.Schedule:
        schedule = microc.Schedule(tir.specialize(func, {"n": n, "m": m, "k": 16})).split("j", (None, 4))
        return schedule.reorder("i", "j_0", "depth", "j_1").unroll("j_1")

    for bound, sizes in (((4, 32, 4), (4, 8, 32)), (32, (1, 7, 30))):  # the second split leaves tails
        library = microc.build(scheduled, bounds={"n": 32, "m": bound})
        for n, m in zip((1, 3, 32), sizes, strict=True):
            a, b = bytes_of(n, 16), bytes_of(m, 16)
            assert np.array_equal(library(a, b), a.astype(np.int32) @ b.T.astype(np.int32))
    with pytest.raises(UsageError, match="1 to 32"):
        library(bytes_of(1, 16), bytes_of(33, 16))


def test_splits_of_symbolic_extents_run_guarded_tails() -> None:
    schedule = microc.Schedule(product()).split("i", (None, 4)).split("j", (None, 8)).split("depth", (2, None))
    schedule = schedule.reorder("i_0", "j_0", "depth_0", "depth_1", "i_1", "j_1").unroll("i_1").parallel("i_0")
    library = microc.build(schedule.decompose_reduction("acc", "depth_0"), bounds={"n": 20, "m": (1, 20), "k": 20})
    for n, m, k in ((1, 1, 1), (4, 8, 9), (5, 7, 20), (20, 20, 2)):
        a, b = bytes_of(n, k), bytes_of(m, k)
        assert np.array_equal(library(a, b), a.astype(np.int32) @ b.T.astype(np.int32))


def test_tails_that_the_text_guards() -> None:
    library = microc.build(
        tir.from_text("""
@T.prim_func
def twice(x: T.Buffer((n,), "int32"), y: T.Buffer((n,), "int32"), n: T.int32):
    for i in T.serial(n // 4):
        for j in T.serial(4):
            y[i * 4 + j] = x[i * 4 + j] * 2
    for i in T.serial(n % 4):
        y[n // 4 * 4 + i] = x[n // 4 * 4 + i] * 2
"""),
        bounds={"n": 30},
    )
    for n in (5, 8, 29, 30):  # loops without iterations are not verified, so that the smallest size is 5
        assert np.array_equal(library(np.arange(n, dtype=np.int32)), np.arange(n) * 2)


def test_parallel_loops_keep_slices_of_workspaces() -> None:
    func = tir.from_text("""
@T.prim_func
def centre(a: T.Buffer((n, m), "int32"), c: T.Buffer((n, m), "int32"), n: T.int32, m: T.int32):
    b = T.alloc_buffer((n, m), "int32")
    for i in T.parallel(n):
        for j in range(m):
            b[i, j] = a[i, j] * 2
        for j in range(m):
            c[i, j] = b[i, j] - b[i, 0]
""")
    library = microc.build(func, bounds={"n": 20, "m": 20})
    for n, m in ((1, 1), (7, 3), (20, 20)):
        a = bytes_of(n, m).astype(np.int32)
        assert np.array_equal(library(a), 2 * (a - a[:, :1]))
    with pytest.raises(MicrocError, match="would share the workspace 'b'"):
        microc.build(tir.from_text(tir.to_text(func).replace("b[i, ", "b[0, ")), bounds={"n": 20, "m": 20})


def test_constants_are_packed_by_the_steps() -> None:
    def dense(n: int) -> microc.Schedule:
        x, w, k = te.placeholder((n, 16), "int8", "x"), te.placeholder((12, 16), "int8", "w"), te.reduce_axis(16, "k")

        def value(i: Any, j: Any) -> Any:
            return te.sum_reduce(x[i, k.var].astype("int32") * w[j, k.var].astype("int32"), k)

        func = te.create_prim_func("dense", [x], [te.compute((n, 12), value, "acc", ("i", "j"))], [w])
        schedule = microc.Schedule(func).split("j", (None, 4)).reorder("j_0", "i", "k", "j_1")
        return schedule.set_dtype("w", "int16").transform_layout("w", ((None, 4), (None,)), (0, 2, 1))

    weight = bytes_of(12, 16)
    library = microc.build(dense, bounds={"n": 20}, constants={"w": weight})
    for n in (1, 2, 20):
        data = bytes_of(n, 16)
        assert np.array_equal(library(data), data.astype(np.int32) @ weight.T.astype(np.int32))


@pytest.mark.parametrize(
    ("func", "wanted", "sizes"),
    [
        (one("reversed", (N,), lambda i: X[N - 1 - i]), lambda x: x[::-1], (1, 2, 100)),
        (one("half", ((N + 1) // 2,), lambda i: X[i * 2]), lambda x: x[::2], (1, 2, 3, 100)),
        (one("difference", (N - 1,), lambda i: X[i + 1] - X[i]), np.diff, (2, 3, 100)),
        (one("scaled", (N,), lambda i: X[i] / N.astype("float32")), lambda x: x / np.float32(len(x)), (1, 7, 100)),
        (one("outer", (N, N), lambda i, j: X[i] * X[j]), lambda x: x[:, None] * x, (1, 2, 100)),
    ],
)
def test_extents_that_are_expressions(
    func: tir.PrimFunc, wanted: Callable[[Array], Array], sizes: Sequence[int]
) -> None:
    library = microc.build(func, bounds={"n": 100})
    for n in sizes:
        x = floats_of(n)
        assert np.array_equal(library(x), wanted(x))


def test_a_size_without_elements_is_not_possible() -> None:
    library = microc.build(one("difference", (N - 1,), lambda i: X[i + 1] - X[i]), bounds={"n": 100})
    with pytest.raises(UsageError, match="expected 2 to 100"):
        library(floats_of(1))


def test_operators_at_all_sizes() -> None:
    def softmax(n: int) -> tir.PrimFunc:
        x = te.placeholder((2, n), "float32", "x")
        return te.create_prim_func("softmax", [x], [topi.softmax(x, axis=1)])

    library = microc.build(softmax, bounds={"n": 50})
    for n in (1, 2, 50):
        x = floats_of(2, n)
        assert np.array_equal(library(x), microc.build(softmax(n))(x))


def test_text_with_a_loop_as_long_as_another_says() -> None:
    library = microc.build(
        tir.from_text("""
@T.prim_func
def sums(x: T.Buffer((n,), "int32"), y: T.Buffer((n,), "int32"), n: T.int32):
    t = T.alloc_buffer((n,), "int32", scope="workspace")
    for i in T.serial(n):
        t[i] = x[i] * 2
    for i in T.serial(n):
        y[i] = 0
        for j in T.serial(i + 1):
            y[i] = y[i] + t[j]
"""),
        bounds={"n": 10},
    )
    for n in (1, 2, 10):
        x = np.arange(n, dtype=np.int32)
        assert np.array_equal(library(x), np.cumsum(x * 2))


def test_sizes_may_be_written_into_texts() -> None:
    def doubled(n: int) -> Any:
        return tir.from_text(f"""
@T.prim_func
def doubled(x: T.Buffer(({n}, 3), "int32"), y: T.Buffer(({n} + 1, {3 * n}), "int32")):
    for i, j in T.grid({n + 1}, {3 * n}):
        with T.block("y"):
            vi, vj = T.axis.remap("SS", [i, j])
            y[vi, vj] = T.if_then_else(vi < {n}, x[T.min(vi, {n - 1}), vj % 3] * 2, -1)
""")

    library = microc.build(doubled, bounds={"n": 10})
    for n in (1, 2, 10):
        x = np.arange(3 * n, dtype=np.int32).reshape(n, 3)
        assert np.array_equal(library(x), [*np.tile(2 * x, n), [-1] * (3 * n)])


@pytest.mark.parametrize(
    ("count", "count_at"),
    [
        ("n // 4 % 3", lambda n: n // 4 % 3),
        ("(n - 1) % 4", lambda n: (n - 1) % 4),
        ("T.min(n, 7) % 4", lambda n: min(n, 7) % 4),
    ],
)
@pytest.mark.parametrize("largest", [40, 150_000])
def test_loops_that_some_sizes_do_not_enter(count: str, count_at: Callable[[int], int], largest: int) -> None:
    library = microc.build(
        tir.from_text(f"""
@T.prim_func
def first(x: T.Buffer((n,), "int32"), y: T.Buffer((n,), "int32"), n: T.int32):
    for j in T.serial(n):
        y[j] = 0
    for i in T.serial({count}):
        y[i] = x[i]
"""),
        bounds={"n": largest},
    )
    for n in range(4, 41, 3):
        kept = count_at(n)
        assert np.asarray(library(np.full(n, 5, np.int32))).tolist() == [5] * kept + [0] * (n - kept)


def test_remainders_are_not_learnt_from_few_sizes() -> None:
    """Of three sizes only some combinations are tried, and spaced ones left the remainders 3 to 7 of 9."""
    library = microc.build(
        tir.from_text("""
@T.prim_func
def guarded(
    x: T.Buffer((n,), "int32"),
    u: T.Buffer((m,), "int32"),
    v: T.Buffer((k,), "int32"),
    y: T.Buffer((7,), "int32"),
    n: T.int32,
    m: T.int32,
    k: T.int32,
):
    for i in T.serial(7):
        y[i] = T.Select(i < (n + 2) % 9, x[0], 0)
"""),
        bounds={"n": 40, "m": 9, "k": 9},
    )
    other = np.ones(1, np.int32)
    for n in range(1, 41):
        kept = min((n + 2) % 9, 7)
        assert np.asarray(library(np.full(n, 5, np.int32), other, other)).tolist() == [5] * kept + [0] * (7 - kept)


@pytest.mark.parametrize("is_between", [lambda n: 16 <= n < 32, lambda n: n == 16])
def test_functions_that_differ_at_some_sizes_are_refused(is_between: Callable[[Any], bool]) -> None:
    def scaled(n: Any) -> tir.PrimFunc:
        x, factor = te.placeholder((n,), "float32", "x"), 2.0 if is_between(n) else 1.0
        return one("scaled", (n,), lambda i: x[i] * factor, [x])

    with pytest.raises(UnsupportedError, match="gives other results at sizes size_n="):
        microc.build(scaled, bounds={"n": 64})


@needs("arm-none-eabi-gcc", "qemu-system-arm")
def test_on_a_board(tmp_path: Any) -> None:
    program = microc.build(product(), board="mps2-an386", bounds={"n": 8, "m": 8, "k": 8})
    project = microc.open_project(program.write(tmp_path / "out"))
    microc.build(project)
    with microc.Device(project) as device:
        for n, m, k in ((1, 2, 3), (8, 8, 8)):
            a, b = bytes_of(n, k), bytes_of(m, k)
            assert np.array_equal(device.run(a, b), a.astype(np.int32) @ b.T.astype(np.int32))


def _constant_of_a_size() -> Any:
    w = te.placeholder((N,), "float32", "w")
    func = te.create_prim_func("f", [X], [te.compute((N,), lambda i: X[i] * w[i], "out")], [w])
    return microc.build(func, bounds={"n": 10}, constants={"w": np.ones(10, np.float32)})


def _other_rank(n: int) -> tir.PrimFunc:
    x = te.placeholder((n,) if n % 2 else (n, 1), "float32", "x")
    return te.create_prim_func("f", [x], [te.compute(x.shape, lambda *i: x[i], "out")])


DOUBLE = te.placeholder((N * 2,), "float32", "double")
COPY = one("copy", (N,), lambda i: X[i])


@pytest.mark.parametrize(
    ("wrong", "kind", "said"),
    [
        (lambda: microc.build(COPY, bounds={"m": 4}), UsageError, "got bounds for m, expected n"),
        (lambda: microc.build(COPY, bounds=4), UsageError, "a dict with names as keys"),  # type: ignore[call-overload]
        (lambda: microc.build(COPY, bounds={"n": (5, 2)}), UsageError, "no size is possible; got 5 to 2"),
        (lambda: microc.build(COPY, bounds={"n": "4"}), UsageError, "a microc.Bound"),
        (lambda: microc.build([COPY]), ProgramError, "symbolic extents; got the sizes n"),
        (lambda: microc.build(microc.Schedule(tir.specialize(COPY, {"n": 8})), bounds={"n": 2}), UsageError, "no dynamic sizes"),
        (lambda: microc.build(lambda m: COPY, bounds={"n": 2}), UsageError, "cannot be called with the sizes n"),
        (lambda: microc.build(lambda n: n, bounds={"n": 2}), UsageError, "int cannot be built"),
        (lambda: microc.build(_other_rank, bounds={"n": 10}), UsageError, "nodes or state of the network differ"),
        (lambda: microc.build(one("f", (N,), lambda i: i, ()), bounds={"n": 9}), UsageError, "no input with an axis"),
        (lambda: microc.build(one("f", (N,), lambda i: DOUBLE[i], (DOUBLE,)), bounds={"n": 9}), UsageError, "no input with an"),
        (lambda: microc.build(one("f", (N % 3 + 1,), lambda i: X[0]), bounds={"n": 99}), UsageError, "no rule derives"),
        (lambda: microc.build(one("f", (N,), lambda i: X[i + 1]), bounds={"n": 9}), ProgramError, "may be 1..9"),
        (lambda: microc.build(one("f", (N,), lambda i: X[i] * M.astype("float32")), bounds={"n": 9}), ProgramError, "variable m"),
        (_constant_of_a_size, UsageError, "the shape cannot depend on dynamic sizes"),
    ],
)  # fmt: skip
def test_what_is_refused(wrong: Callable[[], Any], kind: type[MicrocError], said: str) -> None:
    with pytest.raises(kind) as caught:
        wrong()
    assert said in str(caught.value) and caught.value.exit_code in (2, 3)


def test_no_index_of_sizes_is_from_a_constant_that_nobody_has_judged() -> None:
    """Register sees no function of sizes again."""
    x, table = ir.Buffer("x", (4,), "int32"), ir.Buffer("c", (1,), "int32", "const")
    out = ir.Buffer("y", (1,), "int32")
    func = ir.PrimFunc("f", (x, out, table), ir.Store(out, (ir.const(0, "int32"),), x[table[0]]))
    assert general._require_valid(func, "here", ("c",)) is func
    with pytest.raises(WrongAtSomeSize, match="are not checked"):
        general._require_valid(func, "here", ())
