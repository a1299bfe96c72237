# SPDX-License-Identifier: Apache-2.0
"""Loops that a condition ends: ``while`` in TIR text, as TVM's tests of ``tir.While`` write it."""

from collections.abc import Callable

import numpy as np
import pytest

import microc
from microc import Schedule, tir
from microc.base.dtypes import Array
from microc.errors import ModelError, ScheduleError
from microc.tir import ir
from microc.tir.rewrite import is_endless, walk_stmt, while_branch

SEARCH = tir.from_text("""
@T.prim_func
def search(A: T.Buffer((8,), "int32"), B: T.Buffer((5,), "int32"), C: T.Buffer((5,), "int32")):
    lo = T.alloc_buffer((1,), "int32", scope="local")
    hi = T.alloc_buffer((1,), "int32", scope="local")
    for i in range(5):
        with T.block("C"):
            vi = T.axis.S(5, i)
            lo[0] = 0
            hi[0] = 8
            while lo[0] < hi[0]:
                mid = (lo[0] + hi[0]) // 2
                if A[T.min(T.max(mid, 0), 7)] < B[vi]:
                    lo[0] = mid + 1
                else:
                    hi[0] = mid
            C[vi] = lo[0]
""")
ROOTS = tir.from_text("""
@T.prim_func
def roots(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
    B = T.alloc_buffer((8,), "int32")
    E = T.alloc_buffer((8,), "int32")
    for i in range(8):
        with T.block("B"):
            vi = T.axis.S(8, i)
            B[vi] = A[vi] * 2
    for i in range(8):
        with T.block("E"):
            vi = T.axis.S(8, i)
            E[vi] = 0
            while E[vi] * E[vi] < B[vi] and E[vi] < 1000:
                E[vi] += 1
    for i in range(8):
        with T.block("C"):
            vi = T.axis.S(8, i)
            C[vi] = E[vi] + 1
""")
NUMBERS = np.array([7, 0, 40, 12, 3, 99, 2, 50], np.int32)


def square_roots(numbers: Array) -> Array:
    return np.asarray(np.ceil(np.sqrt(2 * numbers)).astype(np.int32) + 1)


def test_a_search_ends_where_its_condition_fails() -> None:
    table, values = np.arange(1, 17, 2, dtype=np.int32), np.array([0, 5, 6, 15, 100], np.int32)
    tir.verify_func(SEARCH)
    assert tir.from_text(tir.to_text(SEARCH)) == SEARCH
    assert "            while lo[0] < hi[0]:\n" in tir.to_text(SEARCH)
    for schedule in (Schedule(SEARCH), Schedule(SEARCH).parallel("i"), Schedule(SEARCH).split("i", (None, 2))):
        np.testing.assert_array_equal(microc.build(schedule)(table, values), np.searchsorted(table, values))


STEPS: dict[str, Callable[[Schedule], Schedule]] = {
    "none": lambda s: s,
    "tails": lambda s: s.split("i_E", (None, 3)).split("i_C", (None, 5)),
    "moved": lambda s: s.compute_at("B", "i_E").reverse_compute_at("C", "i_E"),
    "inlined": lambda s: s.compute_inline("B").unroll("i_C"),
    "cached": lambda s: s.cache_read("E", "B", "workspace").parallel("i_E"),
    "unrolled": lambda s: s.unroll("i_E"),
}


@pytest.mark.parametrize("name", STEPS)
def test_schedules_around_a_while_loop(name: str) -> None:
    """The condition is tested in every iteration, also behind guarded tails."""
    schedule = STEPS[name](Schedule(ROOTS))
    tir.verify_func(schedule.func)
    assert tir.from_text(tir.to_text(schedule.func)) == schedule.func
    lowered = tir.lower_func(schedule.func)
    loops = [s for s in walk_stmt(lowered.body) if isinstance(s, ir.For) and is_endless(s)]
    assert loops and all(while_branch(loop) for loop in loops)
    for func in (schedule.func, lowered):
        arrays = [NUMBERS, *(np.zeros(p.shape, p.dtype) for p in func.params[1:])]
        tir.run(func, arrays)
        np.testing.assert_array_equal(arrays[1], square_roots(NUMBERS))
    np.testing.assert_array_equal(microc.build(schedule)(NUMBERS), square_roots(NUMBERS))


def test_steps_on_a_while_loop_are_refused() -> None:
    func = tir.from_text("""
@T.prim_func
def f(A: T.Buffer((8,), "int32"), n: T.Buffer((1,), "int32"), C: T.Buffer((8,), "int32")):
    B = T.alloc_buffer((8,), "int32")
    n[0] = 3
    while n[0] > 0:
        n[0] -= 1
        for i in range(8):
            with T.block("B"):
                vi = T.axis.S(8, i)
                B[vi] = A[vi] * n[0]
    for i in range(8):
        with T.block("C"):
            vi = T.axis.S(8, i)
            C[vi] = B[vi]
""")
    schedule = Schedule(func)
    steps: list[Callable[[], Schedule]] = [
        lambda: schedule.split("while_0", (None, 2)),
        lambda: schedule.parallel("while_0"),
        lambda: schedule.reorder("i", "while_0"),
        lambda: schedule.reverse_compute_at("C", "while_0"),
    ]
    for step in steps:
        with pytest.raises(ScheduleError, match="loop 'while_0' is a while loop, whose iterations cannot be counted"):
            step()
    with pytest.raises(ScheduleError, match=r"block 'B' is in a while loop(.|\n)*inside of a block"):
        schedule.compute_at("B", "i_C")
    built = schedule.split("i", (None, 4)).vectorize("i_1").func
    c = np.zeros(8, np.int32)
    tir.run(built, [NUMBERS, np.zeros(1, np.int32), c])
    assert not c.any()


def test_loops_in_loops_keep_their_names() -> None:
    """TVM's buffers without axes, its ``T.While``, and conditions of several buffers."""
    func = tir.from_text("""
@T.prim_func
def collatz(A: T.Buffer((8,), "int32"), steps: T.Buffer((8,), "int32")):
    n = T.alloc_buffer((), "int32", scope="local")
    for i in range(8):
        n[()] = T.max(A[i], 1)
        steps[i] = 0
        with T.While(n[()] != 1 and steps[i] < 500):
            while n[()] % 2 == 0:
                n[()] = n[()] // 2
                steps[i] += 1
            if n[()] != 1:
                n[()] = n[()] * 3 + 1
                steps[i] += 1
    n[()] = 5
    while n[()] > 4:
        n[()] -= 1
""")
    text = tir.to_text(func)
    assert tir.from_text(text) == func and text.count("while ") == 3
    assert {s.var.name for s in walk_stmt(func.body) if isinstance(s, ir.For)} == {"i", "while_0", "while_1", "while_2"}

    def count(n: int) -> int:
        steps = 0
        while n > 1:
            n, steps = (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1
        return steps

    np.testing.assert_array_equal(microc.build(func)(NUMBERS), [count(int(n)) for n in NUMBERS])
    renamed = tir.from_text(text.replace("while n[()] > 4:", "for k in T.serial(2147483647):\n      if n[()] > 4:"))
    assert tir.from_text(tir.to_text(renamed)) == renamed and tir.to_text(renamed).count("while ") == 2


@pytest.mark.parametrize(
    "lines, message",
    [
        ("while True:\n    x[0] += 1", "while True: the loop cannot end(.|\n)*while n"),
        ("while y[0] < 3:\n    x[0] += 1", "stores to no buffer that the condition loads"),
        ("while x[0]:\n    x[0] -= 1", "expected bool"),
        ("while x[0] < 3:\n    x[0] += 1\nelse:\n    x[0] = 0", "no else in TIR(.|\n)*behind the loop"),
        ("while x[0] < 3:\n    x[0] += 1\n    break", "break is no statement(.|\n)*a flag in its condition"),
        ("for i in range(4):\n    continue", "continue is no statement"),
    ],
)
def test_refused_loops(lines: str, message: str) -> None:
    head = '@T.prim_func\ndef f(x: T.Buffer((8,), "int32"), y: T.Buffer((8,), "int32")):\n'
    with pytest.raises(ModelError, match=message):
        tir.from_text(head + "".join(f"    {line}\n" for line in lines.splitlines()))
