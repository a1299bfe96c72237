# SPDX-License-Identifier: Apache-2.0
"""Functions of symbolic extents: text that parses back, the function at some sizes, and where they are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microc
from microc import te, tir, topi
from microc.errors import MicrocError, ModelError, ProgramError

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


@pytest.mark.parametrize(
    ("wrong", "kind", "said"),
    [
        (lambda: tir.specialize(tir.from_text(TEXT), {"m": 4}), ProgramError, "size n of windows is missing; got m, expected n"),
        (lambda: tir.specialize(tir.from_text(TEXT), {"n": 2}), ProgramError, "got 0 at n=2"),
        (lambda: tir.verify_func(tir.from_text(TEXT)), ProgramError, "symbolic extents; got the sizes n"),
        (lambda: tir.run(tir.from_text(TEXT), []), ProgramError, "symbolic extents; got the sizes n"),
        (lambda: tir.lower_func(tir.from_text(TEXT)), ProgramError, "symbolic extents; got the sizes n"),
        (lambda: microc.Schedule(tir.from_text(TEXT)), ProgramError, "symbolic extents; got the sizes n"),
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
