# SPDX-License-Identifier: Apache-2.0
"""Distances that are safe at all sizes, against those of every single size; and the checker against distances that are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from microc.errors import InternalError
from microc.module import Module, Plan, Size
from microc.plan.liveness import GRAIN, Overlaps, SafeOffsets, distances_without_conflicts
from microc.plan.plan_check import check_plan
from microc.schedule.cost.loop_region import expand_memory_calls
from microc.tir import ir
from microc.tir.analysis.access_order import UnsafeDistanceProver
from microc.tir.extents import SizeDomain
from microc.tir.rewrite import replace_buffers
from microc.tir.symbolic import instantiate, specialize
from tests.plan.kernels import KERNELS, half, kernel, wide
from tests.plan.test_overlap import FUNCTIONS, one_step, room_of

SIZE = Size("n", "n", 1, 12)


def allowed(room: SafeOffsets) -> set[int]:
    """All distances at which the blocks meet and may do so."""
    return {
        d
        for d in range(GRAIN - room.second_bytes // GRAIN * GRAIN, room.first_bytes, GRAIN)
        if room.next_allowed(d) == d
    }


def transposed(n: int) -> ir.PrimFunc:
    """Channels come last in ``x`` and first in ``out``, as many as the size says."""
    return kernel(
        f"x: {8 * n} int8, out: {8 * n} int8", f"for c, p in T.grid({n}, 8):\n    out[c * 8 + p] = x[p * {n} + c]"
    )


def open_planes(n: int) -> ir.PrimFunc:
    """One of n channels at a time goes to a workspace and comes back: in place at a size, a step aside at no other one."""
    body = f"""
for c in T.serial({n}):
    for p in T.serial(8):
        work[p] = x[p * {n} + c]
    for p in T.serial(8):
        out[p * {n} + c] = {half(wide("work[p]") + " + " + wide("work[7 - p]"))}
"""
    return kernel(f"x: {8 * n} int8, out: {8 * n} int8, work: 8 int8 workspace", body)


def pixels(n: int) -> ir.PrimFunc:
    """A 3 x 3 window over an image of n columns, by the number of the pixel, with nothing beyond its border."""
    rows = f"p // {n} + k - 1"
    body = f"""
for p in T.serial({6 * n}):
    acc = T.alloc_buffer((1,), "int32", scope="register")
    acc[0] = 0
    for k, j in T.grid(3, 3):
        if {rows} >= 0 and {rows} < 6 and p % {n} + j >= 1 and p % {n} + j < {n + 1}:
            acc[0] = acc[0] + {wide(f"x[({rows}) * {n} + p % {n} + j - 1]")}
    out[p] = T.Cast("int8", acc[0] // 9)
"""
    return kernel(f"x: {6 * n} int8, out: {6 * n} int8", body)


def four_at_once(n: int) -> ir.PrimFunc:
    """Planes of four channels, their pixels four at once, the last ones guarded."""
    lines = [f"        work[q * 4 + {k}] = x[(q * 4 + {k}) * 4 + c]" for k in range(4)]
    body = [f"for c in T.serial(4):\n    for q in T.serial({n}):", *lines, f"    for q in T.serial({n + 1}):"]
    for k in range(4):
        body += [
            f"        if q * 4 + {k} < {4 * n}:",
            f"            out[(q * 4 + {k}) * 4 + c] = work[{4 * n - 1 - k} - q * 4]",
        ]
    return kernel(f"x: {16 * n} int8, out: {16 * n} int8, work: {4 * n} int8 workspace", "\n".join(body))


OPEN: dict[str, Callable[[int], ir.PrimFunc]] = {
    **{name: lambda n, make=make: make(8 * n) for name, make in KERNELS.items() if name != "tail"},  # type: ignore[misc]
    **{f.__name__: f for f in (transposed, open_planes, pixels, four_at_once)},
}
EXACT = {
    "forward",
    "backward",
    "window",
    "shrink",
    "expand",
    "patch",
    "blocks",
    "planes",
    "named",
    "four_at_once",
}


def open_function(make: Callable[[int], ir.PrimFunc]) -> ir.PrimFunc:
    """One function for all sizes: numbers of its text are expressions over the size, its tensors the largest."""
    name = SIZE.scalar.name
    domain = SizeDomain([{name: n} for n in range(1, SIZE.maximum + 1)], [{name: 997}])
    func = make(domain.extent_of(SIZE.scalar))
    largest = dict(zip(func.params, specialize(func, {name: SIZE.maximum}).params, strict=True))
    return replace(func, params=tuple(largest.values()), body=replace_buffers(func.body, largest))


def open_step(func: ir.PrimFunc) -> Module:
    return replace(one_step(func), sizes=(SIZE,))


@pytest.mark.parametrize("name", OPEN)
def test_safe_at_every_size(name: str) -> None:
    """No distance is claimed that a size forbids; where the proof loses nothing, none is missing."""
    func = open_function(OPEN[name])
    assert func.scalars
    module = open_step(func)
    first, out = func.params[0], next(p for p in func.params if p.name == "out")
    room = Overlaps(module).safe_offsets(module.calls[0], first.name, "out") or SafeOffsets(first.nbytes, out.nbytes)
    common = None
    for n in range(1, SIZE.maximum + 1):
        at = instantiate(func, {SIZE.scalar.name: n})
        own = allowed(room_of(at))
        common = own if common is None else common & own
    assert common is not None and allowed(room) <= common
    if name in EXACT:
        assert allowed(room) == common and room.max_shared_bytes


@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_one_size_as_the_other_analysis(name: str) -> None:
    """It knows no distance that is not safe, and but for rings all that are."""
    func = FUNCTIONS[name]()
    first, out = func.params[0], next(p for p in func.params if p.name == "out")
    conflicts = UnsafeDistanceProver(expand_memory_calls(func), {}).find_unsafe_distances(first, out)
    room = SafeOffsets(first.nbytes, out.nbytes, distances_without_conflicts(conflicts, first.nbytes, out.nbytes))
    assert allowed(room) <= allowed(room_of(func))
    assert name == "words" or room.max_shared_bytes == room_of(func).max_shared_bytes


@pytest.mark.parametrize("name", [name for name in OPEN if name != "words"])
def test_the_checker_tries_other_sizes(name: str) -> None:
    """What the proof allows passes; what it forbids at one of the sizes that are tried does not."""
    func = open_function(OPEN[name])
    module = open_step(func)
    first, out = func.params[0], next(p for p in func.params if p.name == "out")
    room = Overlaps(module).safe_offsets(module.calls[0], first.name, "out") or SafeOffsets(first.nbytes, out.nbytes)
    rest = {p.name: 4000 + 1000 * k for k, p in enumerate(func.params) if p.scope == "workspace"}
    tried = [allowed(room_of(instantiate(func, {SIZE.scalar.name: n}))) for n in (1, 2, 6, 11, 12)]
    for distance in range(GRAIN - out.nbytes, first.nbytes, GRAIN * 5):
        plan = Plan({first.name: 1600, "out": 1600 + distance, **rest}, 16000, 0, "by hand")
        good = all(distance in safe for safe in tried)
        try:
            check_plan(module.with_plan(plan))
        except InternalError as error:
            assert "overlaps" in str(error) and distance not in allowed(room)
        else:
            assert good or name in ("table", "rounds", "twice", "window")


def test_too_many_sizes_keep_apart() -> None:
    """Only those count that the kernel depends on."""
    func, others = open_function(KERNELS["forward"]), (Size("m", "m", 1, 1 << 20),)
    module = replace(one_step(func), sizes=(*others, SIZE))
    assert Overlaps(module).safe_offsets(module.calls[0], "x", "out") is not None
    module = replace(module, sizes=(replace(SIZE, maximum=1 << 20),))
    assert Overlaps(module).safe_offsets(module.calls[0], "x", "out") is None
