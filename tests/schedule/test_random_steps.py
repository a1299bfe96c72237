# SPDX-License-Identifier: Apache-2.0
"""Schedules as anybody may write them: any primitive with any arguments is refused as a ScheduleError, or changes no result."""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import microc
from microc import te
from microc.codegen.c.source import shared_files
from microc.compiler.single_function import compile_function
from microc.errors import ScheduleError
from microc.schedule.schedule import PRIMITIVES, Schedule
from microc.target import target_for
from microc.tir import ir
from microc.tir.rewrite import walk_stmt
from tests.schedule.functions import chain, matmul, outputs, padded_rows
from tests.support.campaign import everything

SCOPES = ("shared", "register", "local", "global", "const", "unit_input", "nonsense")
DTYPES = ("int8", "int16", "int32", "float32", "uint8", "nonsense")
CORES = ("host", "cortex-m0plus", "cortex-m4", "cortex-m55", "x86-64-v3", "rv64gcv", "avr")


def scaled(size: int) -> ir.PrimFunc:
    """Floats, element by element."""
    x = te.placeholder((size, 4), "float32", "x")
    out = te.compute((size, 4), lambda y, c: x[y, c] * 3.0 + 1.0, "out", ("y", "c"))
    return te.create_prim_func("scaled", [x], [out])


FUNCTIONS: dict[str, Callable[[], ir.PrimFunc]] = {
    "matmul": lambda: matmul(4, 8, 6),
    "odd matmul": lambda: matmul(3, 7, 5),
    "rows": lambda: padded_rows(6, 4),
    "chain": lambda: chain(8),
    "scaled": lambda: scaled(6),
}
PARAMETERS = {name: list(inspect.signature(function).parameters)[1:] for name, function in PRIMITIVES.items()}
STEPS = 4


def argument(name: str, func: ir.PrimFunc, draw: random.Random) -> Any:
    """A value for a parameter of a primitive: mostly what the function has, at times anything."""
    found = list(walk(func.body))
    loops = [s.var.name for s in found if isinstance(s, ir.For)] or ["i"]
    blocks = [s.name for s in found if isinstance(s, ir.Block)] or ["b"]
    buffers = [p.name for p in func.params] + [s.buffer.name for s in found if isinstance(s, ir.Alloc)]
    anything = [*loops, *blocks, *buffers, "nothing", "", 0, 1, -1, 2, 3, 4, 1 << 40]
    if draw.random() < 0.04:
        return draw.choice(anything)
    by_word: dict[str, Callable[[], Any]] = {
        "factors": lambda: factors(draw),
        "order": lambda: draw.choice([tuple(draw.sample(range(4), draw.randint(1, 4))), "planes", "lanes", ""]),
        "names": lambda: tuple(draw.choice(loops) for _ in range(draw.randint(0, 3))),
        "kind": lambda: draw.choice(
            ["unrolled", "vectorized", "parallel", "blockIdx.x", "threadIdx.x", "blockIdx.y", "serial"]
        ),
        "scope": lambda: draw.choice(SCOPES),
        "dtype": lambda: draw.choice(DTYPES),
        "key": lambda: draw.choice(["lanes", "private", "double_buffer", "unroll", "sum_bound", "nothing"]),
        "value": lambda: draw.choice([1, 2, 4, 8, 0, -1, "x"]),
        "intrin": lambda: draw.choice(["dot4_i8", "dot2", "nothing", "store_i8x4"]),
        "flags": lambda: draw.choice(["-O3", "-O2 -x", ""]),
        "how": lambda: draw.choice([True, False]),
    }
    if name in by_word:
        return by_word[name]()
    if name in ("block", "producer", "consumer"):
        return draw.choice(blocks)
    if name in ("loop", "reduction", "columns", "where", "row", "column"):
        return draw.choice(loops)
    if name in ("buffer", "weight"):
        return draw.choice(buffers)
    return draw.choice([0, 1, 2, 3, 4, 8, draw.choice(loops), draw.choice(buffers), draw.choice(blocks)])


def factors(draw: random.Random) -> Any:
    plain: list[Any] = [draw.choice([None, 1, 2, 3, 4, 0, -1, 100]) for _ in range(draw.randint(1, 3))]
    return tuple(plain) if draw.random() < 0.7 else tuple((each,) for each in plain)


def walk(stmt: ir.Stmt) -> Iterator[ir.Stmt]:
    return walk_stmt(stmt)


def schedule_at_random(func: ir.PrimFunc, draw: random.Random) -> tuple[Schedule, int]:
    """Some steps that were taken; how many were refused. Any other exception than ScheduleError is a failure."""
    schedule, refused = Schedule(func), 0
    for _ in range(12 * STEPS):
        primitive = draw.choice(list(PRIMITIVES))
        names = PARAMETERS[primitive]
        args = [argument(name, schedule.func, draw) for name in names]
        if draw.random() < 0.03:
            args = args[:-1]
        try:
            schedule = schedule.apply(primitive, *args)
        except ScheduleError:
            refused += 1
        except Exception as error:
            step = f"{primitive}{tuple(args)}"
            raise AssertionError(
                f"{[str(s) for s in schedule.trace]}, then {step}: {type(error).__name__}: {error}"
            ) from error
        if len(schedule.trace) == STEPS:
            break
    return schedule, refused


def check(name: str, seed: int) -> int:
    """Draw a schedule of a function; it is lowered and printed for a core, or refused, and computes what the function does."""
    draw = random.Random(seed)
    func = FUNCTIONS[name]()
    schedule, refused = schedule_at_random(func, draw)
    steps = [str(step) for step in schedule.trace]
    constants = {p.name: np.ones(p.shape, p.dtype) for p in func.params if p.scope == "const"}
    try:
        shared_files(compile_function(schedule, target_for(draw.choice(CORES)), constants), "0")
    except ScheduleError:
        return refused
    except Exception as error:
        raise AssertionError(f"{name}: {steps}: {type(error).__name__}: {error}") from error
    if name == "scaled":
        return refused  # its numbers are compared in C
    wanted = outputs(func, lowered=False)
    np.testing.assert_array_equal(outputs(func, lowered=True, schedule=schedule), wanted, err_msg=f"{name}: {steps}")
    return refused


@pytest.mark.parametrize("name", FUNCTIONS)
def test_random_steps(name: str) -> None:
    count = 2000 if everything() else 25
    failed = []
    for seed in range(count):
        try:
            check(name, seed)
        except AssertionError as error:
            failed.append(f"seed {seed}: {error}")
    assert not failed, f"{len(failed)} of {count}: " + "\n".join(failed[:5])


def test_what_others_share_or_keep_in_registers_is_plain_c() -> None:
    """Without bound loops, a group's memory is a workspace; registers ask for unrolled loops."""
    func = chain(8)
    x = np.arange(-8, 8, dtype=np.int8).reshape(8, 2)
    wanted = microc.build(func)(x)
    for schedule in (
        Schedule(func).cache_read("wide", "x", "shared"),
        Schedule(func).cache_write("out", "shared"),
        Schedule(func).cache_write("out", "local"),
    ):
        np.testing.assert_array_equal(microc.build(schedule)(x), wanted)
    with pytest.raises(ScheduleError, match="out_register: a loop that indexes it is not unrolled") as caught:
        microc.build(Schedule(func).cache_write("out", "register"))
    assert "'local'" in caught.value.hint


@pytest.mark.parametrize(
    ("core", "word"), [("x86-64-v3", "f32x8"), ("cortex-m55", "f32x4"), ("cortex-m4", ""), ("host", "")]
)
def test_a_vectorised_loop_takes_the_lanes_of_the_core(core: str, word: str) -> None:
    x = te.placeholder((64,), "float32", "x")
    out = te.compute((64,), lambda i: x[i] * 3.0 + 1.0, "out", ("i",))
    schedule = Schedule(te.create_prim_func("scaled", [x], [out])).vectorize("i")
    source = shared_files(compile_function(schedule, target_for(core), {}), "0")["model.c"]
    assert re.findall(r"add_(f32x\d+)", str(source))[:1] == ([word] if word else [])
