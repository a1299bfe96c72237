# SPDX-License-Identifier: Apache-2.0
"""Values in several memories: the split waits least where all can be tried, fits always, and is checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from microc.errors import InternalError
from microc.module import Module
from microc.plan.liveness import Demand, Unit, make_demand, placement_byte_count
from microc.plan.memories import Homes, Waits, assign_memories, restrict_demand
from microc.plan.placement import first_fit
from microc.plan.plan import plan_in_one_arena, plan_module
from microc.plan.plan_check import check_plan
from microc.target import Memory, Traffic
from tests.plan.modules import Sketch, modules, residual
from tests.support.campaign import examples

FAST, SLOW, FAR = Memory("fast", 48), Memory("slow", 96, 1), Memory("far", 400, 6, 32, cached=True)


def unit(number: int, parts: tuple[int, int, int]) -> Unit:
    size, first, length = parts
    return Unit(f"u{number}", size, 4, first, first + length)


demands = st.lists(
    st.tuples(st.sampled_from([4, 8, 20, 24, 40]), st.integers(0, 3), st.integers(0, 2)), max_size=5
).map(lambda many: make_demand(tuple(unit(k, parts) for k, parts in enumerate(many))))


def fitting(wanted: Demand, memories: list[Memory]) -> Iterator[Homes]:
    """All splits that fit: every unit anywhere, and in every memory all orders of placing."""
    for homes in product(range(len(memories)), repeat=len(wanted.units)):
        own = [[u for u, home in zip(wanted.units, homes, strict=True) if home == m] for m in range(len(memories))]
        if all(
            min(
                (
                    placement_byte_count(first_fit(restrict_demand(wanted, units), order))
                    for order in permutations(units)
                ),
                default=0,
            )
            <= memory.size
            for units, memory in zip(own, memories, strict=True)
        ):
            yield dict(zip(wanted.units, homes, strict=True))


def test_a_network_of_thousands_of_values_is_split() -> None:
    """Deeper than Python calls itself: a chain of 1,200, of which the first two do not fit fast memory together."""
    wanted = make_demand((unit(1200, (40, 0, 1)), *(unit(k, (20, k, 1)) for k in range(1200))))
    waits: Waits = dict.fromkeys(wanted.units, (0.0, 5.0))
    found = assign_memories(wanted, waits, [Memory("fast", 48), Memory("far", 1 << 20)])
    assert set(found) == set(wanted.units) and set(found.values()) == {0, 1}


@given(demands, st.data())
@settings(max_examples=examples(80), deadline=None)
def test_no_split_waits_less(wanted: Demand, data: st.DataObject) -> None:
    memories = [FAST, SLOW, FAR][: data.draw(st.integers(2, 3))]
    cycles = st.integers(0, 50).map(float)
    waits: Waits = {u: tuple(data.draw(cycles) for _ in memories) for u in wanted.units}
    costs = [sum(waits[u][home] for u, home in homes.items()) for homes in fitting(wanted, memories)]
    found = assign_memories(wanted, waits, memories)
    assert set(found) == set(wanted.units)
    if costs:
        assert sum(waits[u][home] for u, home in found.items()) == min(costs)


def moved(module: Module, data: st.DataObject | None = None) -> Module:
    """The module with accesses to all arguments: every byte once, unless drawn."""
    calls = []
    for call in module.calls:
        counts = [data.draw(st.integers(0, 400)) if data else module.values[n].nbytes for n in call.args]
        calls.append(replace(call, traffic=tuple(Traffic(n, n, n, n) for n in counts)))
    return replace(module, calls=tuple(calls))


def refuse_unsound(planned: Module) -> None:
    """What holds of every plan in the memories of the next test."""
    plan = planned.plan
    assert plan is not None
    assert [arena.memory for arena in plan.arenas] == ["main", "fast", "far"]
    assert all(arena.size <= arena.capacity for arena in plan.arenas)
    assert sum(arena.waits for arena in plan.arenas) == pytest.approx(sum(call.waits for call in planned.calls), abs=2)


@given(modules(calls=12), st.data(), st.booleans())
@settings(max_examples=examples(30), deadline=None)
def test_plans_in_several_memories_are_correct(module: Module, data: st.DataObject, io_in_arena: bool) -> None:
    memories = (Memory("main", 200, 2), Memory("fast", 100), Memory("far", 1 << 14, 9))
    module = moved(module, data)
    planned = plan_module(module, io_in_arena=io_in_arena, memories=memories)
    refuse_unsound(planned)
    assert plan_module(module, io_in_arena=io_in_arena, memories=memories) == planned
    # Planned again it may find another order of calls, but the waits of before are not added to
    refuse_unsound(plan_module(planned, io_in_arena=io_in_arena, memories=memories))
    one = plan_in_one_arena(planned)
    assert one.plan is not None and not one.plan.arenas and not any(call.waits or call.cycles for call in one.calls)


@pytest.mark.parametrize(
    ("sizes", "used"),
    [((1000, 1000), ["slow"]), ((100, 1000), ["slow", "fast"]), ((64, 1000), ["slow", "fast"])],
)
def test_what_is_fast_is_filled(sizes: tuple[int, int], used: list[str]) -> None:
    """Where one memory holds all there is one arena, wherever it lies."""
    first = "slow" if sizes[0] < 1000 else "far"
    memories = (Memory("slow", 1000, 1), Memory("fast", sizes[0]))
    plan = plan_module(moved(residual()), memories=memories).plan
    assert plan is not None
    assert [arena.memory for arena in plan.used_arenas] == (used if first == "slow" else ["fast"])


def test_a_network_that_fits_nowhere_overflows_the_first_memory() -> None:
    plan = plan_module(moved(residual()), memories=(Memory("main", 8), Memory("other", 8))).plan
    assert plan is not None and plan.main_arena_size > 8


def test_a_line_is_waited_for_once() -> None:
    traffic = Traffic(reads=300, writes=20, bytes_read=300, bytes_written=40)
    assert SLOW.wait_cycles(traffic, 64) == 320
    assert FAR.wait_cycles(traffic, 64) == 6 * (64 + 40) / 32


def damaged(module: Module, what: str) -> Module:
    plan = module.plan
    assert plan is not None
    first, second = plan.arenas
    changes: dict[str, object] = {
        "over the next": {"arenas": (replace(first, size=second.start + 4), second)},
        "too large": {"arenas": (first, replace(second, capacity=second.size - 1))},
        "across": {
            "offsets": {**plan.offsets, next(n for n, at in plan.offsets.items() if at == second.start): first.size - 4}
        },
        "overwritten": {"offsets": {**plan.offsets, "c": plan.offsets["a"]}},
    }
    return module.with_plan(replace(plan, **changes[what]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("over the next", "overlaps another"),
        ("too large", "is too large"),
        ("across", "within a single arena"),
        ("overwritten", "overlaps|overwritten"),
    ],
)
def test_damage_in_an_arena_is_found(what: str, message: str) -> None:
    planned = plan_module(moved(residual()), memories=(Memory("slow", 1000, 1), Memory("fast", 100)))
    check_plan(planned)
    with pytest.raises(InternalError, match=message):
        check_plan(damaged(planned, what))


def test_state_and_views_have_memories_too() -> None:
    """A history that is read often goes where it is fast, with all that are views of it."""
    sketch = Sketch()
    sketch.value("x", 16, "input")
    sketch.value("memory", 32, "state")
    sketch.view("old", "memory", 16, 16)
    sketch.value("y", 16, "output")
    sketch.call(("x", "old"), ("y",))
    module = sketch.module()
    call = replace(module.calls[0], traffic=(Traffic(16), Traffic(900), Traffic(0, 16)))
    planned = plan_module(replace(module, calls=(call,)), memories=(Memory("slow", 64, 1), Memory("fast", 40)))
    assert planned.plan is not None
    assert planned.plan.offsets["memory"] == planned.plan.arenas[1].start
    assert planned.calls[0].waits == 32
