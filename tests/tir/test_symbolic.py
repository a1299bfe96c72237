# SPDX-License-Identifier: Apache-2.0
"""Functions of symbolic extents: text that parses back, the function at some sizes, and where they are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microc
from microc import te, tir, topi
from microc.errors import MicrocError, ModelError, ProgramError, ScheduleError

TEXT = """\
@T.prim_func
def windows(
    x: T.Buffer((n, 4), "float32"),
    y: T.Buffer(((n - 1) // 2, 4), "float32"),
    n: T.int32,
):
    t = T.alloc_buffer((n, 4), "float32", scope="workspace")
    for i in T.serial(n):
        for j in T.serial(4):
            with T.block("t"):
                v_i = T.axis.spatial(n, i)
                v_j = T.axis.spatial(4, j)
                t[v_i, v_j] = x[v_i, v_j] * T.Cast("float32", n)
    for i in T.serial((n - 1) // 2):
        for j in T.serial(4):
            with T.block("y"):
                v_i = T.axis.spatial((n - 1) // 2, i)
                v_j = T.axis.spatial(4, j)
                y[v_i, v_j] = t[v_i * 2, v_j] + t[v_i * 2 + 2, v_j]
"""


def test_text_parses_back() -> None:
    func = tir.from_text(TEXT)
    assert tir.to_text(func) == TEXT and [scalar.name for scalar in func.scalars] == ["n"]


def test_remapped_axes_take_the_extents_of_their_loops() -> None:
    text = """
@T.prim_func
def f(x: T.Buffer((n, 4), "int8"), y: T.Buffer((n, 4), "int8"), n: T.int32):
    for i, j in T.grid(n, 4):
        with T.block("y"):
            v_i, v_j = T.axis.remap("SS", [i, j])
            y[v_i, v_j] = x[v_i, v_j]
"""
    assert "v_i = T.axis.spatial(n, i)" in tir.to_text(tir.from_text(text))


def test_sizes_of_int64_are_read_as_int32() -> None:
    """As Relax prints them; every size of a network fits."""
    func = tir.from_text(TEXT.replace("n: T.int32", "n: T.int64"))
    assert func.scalars == tir.from_text(TEXT).scalars
    assert tir.specialize(func, {"n": 9}).params[1].shape == (4, 4)


@pytest.mark.parametrize("n", [3, 4, 9])
def test_at_some_sizes(n: int) -> None:
    func = tir.specialize(tir.from_text(TEXT), {"n": n})
    tir.verify_func(func)
    assert not func.scalars and func.params[1].shape == ((n - 1) // 2, 4)
    x, y = np.arange(4 * n, dtype=np.float32).reshape(n, 4), np.zeros(func.params[1].shape, np.float32)
    tir.run(func, [x, y])
    assert np.array_equal(y, (x[:-2:2] + x[2::2]) * n)


def test_tensor_expressions_have_their_sizes_as_scalars() -> None:
    n, m = te.var("n"), te.var("m")
    x, k = te.placeholder((n, m + 1), "int32", "x"), te.reduce_axis(m, "k")
    total = te.compute((n,), lambda i: te.sum_reduce(x[i, k.var] * n, k), "total", ("i",))
    func = te.create_prim_func("total", [x], [total])
    assert [scalar.name for scalar in func.scalars] == ["n", "m"]
    assert tir.from_text(tir.to_text(func)) == func
    data, found = np.arange(20, dtype=np.int32).reshape(4, 5), np.zeros(4, np.int32)
    tir.run(tir.specialize(func, {"n": 4, "m": 4}), [data, found])
    assert np.array_equal(found, data[:, :4].sum(1) * 4)


STEPS: dict[str, Callable[[microc.Schedule], microc.Schedule]] = {
    "a guarded tail": lambda s: s.split("i", (None, 3)).unroll("i_1"),
    "an outer factor": lambda s: s.split("i", (4, None)),
    "two levels": lambda s: (
        s.split("i_y", (None, 2, 3)).split("j_y", (2, 2)).reorder("i_y_1", "j_y_0", "i_y_2", "j_y_1")
    ),
    "fused": lambda s: s.fuse("i", "j").split("i_j", (None, 8)).vectorize("i_j_1"),
    "inlined": lambda s: s.compute_inline("t").split("i_y", (None, 4)).parallel("i_y_0"),
    "copied": lambda s: s.cache_read("t", "x", "workspace").split("i", (None, 5)).parallel("i_0"),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_on_symbolic_extents(name: str) -> None:
    """The numbers of the sizes come after the steps: tails are guarded by predicates."""
    plain = tir.from_text(TEXT)
    func = STEPS[name](microc.Schedule(plain)).func
    assert tir.from_text(tir.to_text(func)) == func
    for n in (3, 5, 9, 16):
        x = np.arange(4 * n, dtype=np.float32).reshape(n, 4)
        tir.verify_func(tir.specialize(func, {"n": n}))
        outputs = [
            tir.execute(tir.specialize(f, {"n": n}), [x, np.zeros(((n - 1) // 2, 4), np.float32)])
            for f in (plain, func)
        ]
        assert np.array_equal(outputs[0][1], outputs[1][1])


def test_a_split_of_a_symbolic_extent_is_guarded() -> None:
    text = tir.to_text(microc.Schedule(tir.from_text(TEXT)).split("i", (None, 8)).func)
    assert "for i_0 in T.serial((n + 7) // 8):" in text and "T.where(i_0 * 8 + i_1 < n)" in text
    even = TEXT.replace("for i in T.serial(n)", "for i in T.serial(n * 8)").replace(
        "spatial(n, i)", "spatial(n * 8, i)"
    )
    text = tir.to_text(microc.Schedule(tir.from_text(even)).split("i", (None, 8)).func)
    assert "for i_0 in T.serial(n):" in text and "T.where" not in text


@pytest.mark.parametrize(
    ("wrong", "kind", "said"),
    [
        (lambda: tir.specialize(tir.from_text(TEXT), {"m": 4}), ProgramError, "size n of windows is missing; got m, expected n"),
        (lambda: tir.specialize(tir.from_text(TEXT), {"n": 2}), ProgramError, "got 0 at n=2"),
        (lambda: tir.verify_func(tir.from_text(TEXT)), ProgramError, "symbolic extents; got the sizes n"),
        (lambda: tir.run(tir.from_text(TEXT), []), ProgramError, "symbolic extents; got the sizes n"),
        (lambda: tir.lower_func(tir.from_text(TEXT)), ProgramError, "symbolic extents; got the sizes n"),
        (lambda: microc.Schedule(tir.from_text(TEXT)).compute_at("t", "j"), ScheduleError, "compute_at: function windows has"),
        (lambda: microc.Schedule(tir.from_text(TEXT)).split("i", (8, 8)), ScheduleError, "expected a product of n at least"),
        (lambda: microc.Schedule(tir.from_text(TEXT)).split("i", (None, None)), ScheduleError, "at most one None"),
        (lambda: microc.Schedule(tir.from_text(TEXT)).unroll("i"), ScheduleError, "no constant extent; got n"),
        (lambda: microc.build(microc.Schedule(tir.from_text(TEXT)).split("i", (None, 8))), ProgramError, "got the sizes n"),
        (lambda: microc.default_schedule(tir.from_text(TEXT)), ProgramError, "symbolic extents; got the sizes n"),
        (lambda: microc.build(tir.from_text(TEXT)), ProgramError, "symbolic extents; got the sizes n"),
        (lambda: topi.relu(te.placeholder((te.var("n"),), "int8", "x")), ProgramError, "operands need constant extents"),
        (lambda: tir.from_text(TEXT.replace("Buffer((n, 4)", "Buffer((m, 4)", 1)), ModelError, "m is not a variable"),
        (lambda: tir.from_text(TEXT.replace("n: T.int32", "n: T.float32")), ModelError, "an expression over symbolic sizes"),
        (lambda: tir.from_text(TEXT.replace("spatial(4, j)", "spatial(i + 1, j)", 1)), ModelError, "got i + 1"),
        (lambda: tir.from_text(TEXT.replace("spatial(4, j)", 'spatial(T.Cast("int32", x[0, 0]), j)', 1)), ModelError, "extent"),
    ],
)  # fmt: skip
def test_what_is_refused(wrong: Callable[[], Any], kind: type[MicrocError], said: str) -> None:
    with pytest.raises(kind) as caught:
        wrong()
    assert said in str(caught.value)
