# SPDX-License-Identifier: Apache-2.0
"""Distances that the analysis calls safe, against running kernels with their operands at every distance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from microc.base.dtypes import to_numpy
from microc.errors import InternalError
from microc.module import Module, Plan
from microc.plan.liveness import GRAIN, Overlaps, SafeOffsets, compute_lifetimes, find_safe_offsets, safe_distances
from microc.plan.plan_check import check_plan
from microc.schedule.identities import intrinsic_functions
from microc.schedule.rules.movement import vectorize_copy_loops
from microc.schedule.schedule import Schedule
from microc.target import target_for
from microc.tir import ir
from microc.tir.analysis.access_times import NEVER_TOUCHED, NEVER_WRITTEN
from microc.tir.interp import compile_func
from microc.tir.lower import lower, lower_annotated_loops
from microc.tir.rewrite import walk_stmt
from tests.plan.kernels import KERNELS, float_to_int, kernel, widen
from tests.plan.modules import Sketch
from tests.schedule.functions import matmul, padded_rows, schedule_kernel

SIZE = 32
CAREFUL = {"table", "rounds", "twice"}
"""Kernels that damage what they read, but not the result; or where data decides."""


def in_runs(rows: int, kept: int, fresh: int) -> ir.PrimFunc:
    """Rows that move up by a few elements and take new ones in, by calls that copy runs (``x`` ends where ``out`` does)."""
    n, i, j = ir.Var("n"), ir.Var("i"), ir.Var("j")
    x, new, out = (ir.Buffer(name, shape, "int8") for name, shape in (
        ("x", (rows, kept + fresh)), ("new", (rows, fresh)), ("out", (rows, kept + fresh)),
    ))  # fmt: skip
    stay = ir.loops([(i, kept)], ir.Store(out, (n, i), x[n, i + fresh]))
    come = ir.loops([(j, fresh)], ir.Store(out, (n, j + kept), new[n, j]))
    func = ir.PrimFunc("shift", (x, new, out), ir.loops([(n, rows)], ir.seq(stay, come)))
    return replace(
        func, body=lower_annotated_loops(vectorize_copy_loops(Schedule(func), target_for("cortex-m55")).func.body)
    )


SCHEDULED: dict[str, Callable[[], ir.PrimFunc]] = {
    "matrix": lambda: schedule_kernel(matmul(6, 8, 8), "dense", target_for("cortex-m4")).func,
    "matrix with a tail": lambda: schedule_kernel(matmul(5, 8, 8), "dense", target_for("cortex-m4")).func,
    "rows": lambda: Schedule(padded_rows(7, 8)).compute_at("padded", "y_acc").func,
    "stripes": lambda: Schedule(padded_rows(7, 8)).split("y_acc", (None, 3)).compute_at("padded", "y_acc_0").func,
    "rows by words": lambda: Schedule(padded_rows(6, 8)).compute_at("padded", "y_acc").vectorize("c_1").func,
}
FUNCTIONS = (
    {name: lambda make=make: make(SIZE) for name, make in KERNELS.items()}
    | {name: lambda make=make: lower(make()) for name, make in SCHEDULED.items()}
    | {"runs": lambda: in_runs(1, 24, 8), "runs of rows": lambda: in_runs(3, 12, 4)}
)


def one_step(func: ir.PrimFunc) -> Module:
    """A module that runs a kernel once, from its first parameter to ``out``."""
    sketch = Sketch()
    for param in func.params:
        storage = {"const": "const", "workspace": "workspace"}.get(
            param.scope, "output" if param.name == "out" else "input"
        )
        sketch.value(param.name, param.size, storage, param.dtype)
    by_scope = {scope: tuple(p.name for p in func.params if p.scope == scope) for scope in ("global", "workspace")}
    reads = tuple(name for name in by_scope["global"] if name != "out")
    sketch.add(func, reads, ("out",), by_scope["workspace"])
    module = sketch.module()
    return replace(module, calls=(replace(module.calls[0], args=tuple(p.name for p in func.params)),))


def room_of(func: ir.PrimFunc) -> SafeOffsets:
    """From the first parameter to ``out``."""
    module = one_step(func)
    found = find_safe_offsets(module, Overlaps(module), compute_lifetimes(module, io_in_arena=True))
    first, out = func.params[0], next(p for p in func.params if p.name == "out")
    return found.get((first.name, "out"), SafeOffsets(first.nbytes, out.nbytes))


def working(func: ir.PrimFunc) -> set[int]:
    """Distances at which ``out`` comes out as it does elsewhere."""
    dice = np.random.default_rng(0)
    source, out = func.params[0], next(p for p in func.params if p.name == "out")
    arrays = [dice.integers(-99, 99, p.size).astype(to_numpy(p.dtype)).reshape(p.shape) for p in func.params]
    compiled = compile_func(func)
    found = set()
    expected = None
    for distance in (source.nbytes + GRAIN, *range(-out.nbytes, source.nbytes + GRAIN, GRAIN)):
        arena = np.zeros(source.nbytes + 2 * out.nbytes + 2 * GRAIN, np.uint8)
        base = -(-out.nbytes // GRAIN) * GRAIN
        places = {source: arena[base:][: source.nbytes], out: arena[base + distance :][: out.nbytes]}
        memory = {p: places[p].view(to_numpy(p.dtype)).reshape(p.shape) for p in places}
        memory[source][...] = arrays[0]
        compiled(
            [memory[p] if p in memory else a.copy() for p, a in zip(func.params, arrays, strict=True)],
            intrinsic_functions(),
        )
        expected = memory[out].copy() if expected is None else expected
        if np.array_equal(memory[out], expected):
            found.add(distance)
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_safe_distances_are_those_that_work(name: str) -> None:
    func = FUNCTIONS[name]()
    room, good = room_of(func), working(func)
    distances = set(range(-room.second_bytes, room.first_bytes + GRAIN, GRAIN))
    claimed = {d for d in distances if room.next_allowed(d) == d}
    assert claimed <= good
    if name not in CAREFUL:
        assert claimed == good & distances


EXPECTED = {
    "forward": (-SIZE, 0),  # up to the input's own place
    "backward": (0, SIZE),
    "shrink": (-SIZE // 2, 0),
    "expand": (-2 * SIZE, -SIZE),
    "patch": (-SIZE, 0),
    "blocks": (-SIZE, -GRAIN),  # one block below
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_figures_one_expects(name: str) -> None:
    room = room_of(KERNELS[name](SIZE))
    low, high = EXPECTED[name]
    inner = range(-room.second_bytes + GRAIN, room.first_bytes, GRAIN)
    assert [d for d in inner if room.next_allowed(d) == d] == [d for d in inner if low <= d <= high]


def test_planes_may_come_back_to_any_pixel() -> None:
    room = room_of(KERNELS["planes"](SIZE))
    assert room.overlapping_distances == (range(-SIZE + GRAIN, SIZE, GRAIN),)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_checker_agrees(name: str) -> None:
    """It lets pass what works and nothing else, whatever the analysis thinks."""
    func = FUNCTIONS[name]()
    module, good = one_step(func), working(func)
    source, out = func.params[0], next(p for p in func.params if p.name == "out")
    rest = {p.name: 1000 + 1000 * k for k, p in enumerate(func.params) if p.scope == "workspace"}
    for distance in range(-out.nbytes + GRAIN, source.nbytes, GRAIN):
        plan = Plan({source.name: 400, "out": 400 + distance, **rest}, 8000, 0, "by hand")
        try:
            check_plan(module.with_plan(plan))
        except InternalError as error:
            assert "overlaps" in str(error)
            assert distance not in good or name in CAREFUL
        else:
            assert distance in good


def test_a_workspace_may_lie_over_what_is_read_before_and_under_what_is_written_after() -> None:
    body = """
for i in T.serial(16):
    work[i] = x[i]
for i in T.serial(16):
    out[i] = work[i]
"""
    module = one_step(kernel("x: 16 int8, out: 16 int8, work: 16 int8 workspace", body))
    check_plan(module.with_plan(Plan({"x": 0, "out": 0, "work": 0}, 16, 0, "by hand")))
    found = find_safe_offsets(module, Overlaps(module), compute_lifetimes(module, io_in_arena=True))
    assert all(
        0 in [d for span in found[pair].overlapping_distances for d in span]
        for pair in (("x", "work"), ("work", "out"))
    )


def test_other_types_do_not_overlap() -> None:
    """A float read and an integer written in one place: C's compilers may swap the two."""
    assert not room_of(float_to_int(8)).overlapping_distances
    assert room_of(widen(8)).overlapping_distances == (range(-28, -23, GRAIN),)
    module = one_step(float_to_int(8))
    with pytest.raises(InternalError, match="another type"):
        check_plan(module.with_plan(Plan({"x": 0, "out": 0}, 32, 0, "by hand")))


def test_parallel_turns_have_no_order() -> None:
    func = KERNELS["forward"](SIZE)
    assert isinstance(func.body, ir.For)
    func = replace(func, body=replace(func.body, kind="parallel"))
    assert not room_of(func).overlapping_distances
    with pytest.raises(InternalError, match="order"):
        check_plan(one_step(func).with_plan(Plan({"x": 0, "out": 0}, 64, 0, "by hand")))


def test_pointers_that_one_intrinsic_reads_and_writes() -> None:
    """Nobody knows in which order ``shuffle`` goes about it; its operands are there before it starts."""
    into = "T.address_of(out[0], extent=8, writes=True)"
    direct = f'T.evaluate(T.call("shuffle", {into}, T.address_of(x[0], extent=8), dtype="int32"))'
    loaded = f'T.evaluate(T.call("store", {into}, T.call("load", T.address_of(x[0], extent=8), dtype="int32"), dtype="int32"))'
    assert not room_of(kernel("x: 8 int8, out: 8 int8", direct)).overlapping_distances
    assert room_of(kernel("x: 8 int8, out: 8 int8", loaded)).overlapping_distances == (range(-GRAIN, GRAIN + 1, GRAIN),)
    with pytest.raises(InternalError, match="overlaps"):
        check_plan(one_step(kernel("x: 8 int8, out: 8 int8", direct)).with_plan(Plan({"x": 0, "out": 0}, 8, 0, "")))


def test_calls_that_copy_runs_are_seen() -> None:
    """What moves down over itself stays where it is; the checker sees it, too, and refuses a move up."""
    for func in (in_runs(1, 24, 8), in_runs(3, 12, 4)):
        assert any("copy_i8" in str(s) for s in walk_stmt(func.body))
        assert room_of(func).next_allowed(0) == 0
    module = one_step(in_runs(1, 24, 8))
    check_plan(module.with_plan(Plan({"x": 40, "new": 0, "out": 40}, 80, 0, "by hand")))
    with pytest.raises(InternalError, match="overlaps"):
        check_plan(module.with_plan(Plan({"x": 40, "new": 0, "out": 52}, 90, 0, "by hand")))


spans = st.lists(st.integers(-9, 14), unique=True).map(sorted)


@given(spans, st.integers(-15, 25))
def test_rooms(allowed: list[int], distance: int) -> None:
    """``next``, ``reverse`` and ``max_shared_bytes`` against their definitions."""
    room = SafeOffsets(15, 10, tuple(range(d, d + 1) for d in allowed))
    everything = {*range(-40, -9), *allowed, *range(15, 60)}
    assert room.next_allowed(distance) == min(d for d in everything if d >= distance)
    assert room.reverse().next_allowed(distance) == min(-d for d in everything if -d >= distance)
    assert room.max_shared_bytes == max([min(15, d + 10) - max(0, d) for d in allowed], default=0)


def test_times_beyond_32_bits_give_the_same_distances() -> None:
    """Times that fit 32 bits are compared as such; the order of times decides, not their size."""
    dice = np.random.default_rng(0)
    for count in (1, 7, 64, 257):
        writes, touches = np.arange(count) * 3, np.maximum(np.arange(count) * 3 - dice.integers(0, 9, count), 0)
        writes[dice.integers(0, count)], touches[dice.integers(0, count)] = NEVER_WRITTEN, NEVER_TOUCHED
        later = (np.where(times < NEVER_WRITTEN, times << 40, times) for times in (writes, touches))
        assert safe_distances(writes, touches) == safe_distances(*later)
