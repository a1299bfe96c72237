# SPDX-License-Identifier: Apache-2.0
"""Plans are correct, never below the lower bound, and the same every time."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from microc.module import Module, Plan
from microc.plan.liveness import (
    Overlaps,
    Placement,
    Unit,
    demand_of_module,
    make_demand,
    placement_byte_count,
    placement_lower_bound,
)
from microc.plan.placement import (
    EXACT_LIMIT,
    PLANNERS,
    IntervalIndex,
    Planner,
    beam_search,
    find_lowest_gap,
    first_fit,
    greedy_by_size,
    place_exactly,
)
from microc.plan.plan import plan_module
from microc.plan.plan_check import check_plan
from tests.plan.modules import Sketch, modules, residual
from tests.support.campaign import examples


def planned(module: Module, placement: Placement) -> Module:
    """The module under a placement of its units."""
    offsets = {unit.name: at for unit, at in placement.items()}
    return module.with_plan(Plan(offsets, placement_byte_count(placement), 0, "test"))


@given(modules(), st.booleans())
@settings(max_examples=examples(50), deadline=None)
def test_plans_are_correct(module: Module, io_in_arena: bool) -> None:
    plan = plan_module(module, io_in_arena=io_in_arena).plan
    assert plan is not None and plan.size >= plan.lower_bound and plan.size % 4 == 0
    again = plan_module(module, io_in_arena=io_in_arena).plan
    assert again == plan
    places = {"intermediate", "workspace", "state"} | ({"input", "output"} if io_in_arena else set())
    views = {view.name for view in module.views}
    for name in plan.offsets:
        assert module.values[name].storage in places and name not in views


@pytest.mark.parametrize(("name", "planner"), PLANNERS, ids=[name for name, _ in PLANNERS])
@given(module=modules(calls=14))
@settings(max_examples=examples(30), deadline=None)
def test_every_planner_is_correct(name: str, planner: Planner, module: Module) -> None:
    wanted = demand_of_module(module, Overlaps(module), io_in_arena=True)
    placement = planner(wanted)
    assert placement is not None and set(placement) == set(wanted.units)
    assert placement_byte_count(placement) >= placement_lower_bound(wanted)
    check_plan(planned(module, placement))


@given(modules(calls=14), st.integers(0, 64))
@settings(max_examples=examples(30), deadline=None)
def test_beam_search_finds_the_same_below_a_limit(module: Module, more: int) -> None:
    wanted = demand_of_module(module, Overlaps(module), io_in_arena=True)
    found = beam_search(wanted)
    assert found is not None
    assert beam_search(replace(wanted, limit=placement_byte_count(found) + 1 + more)) == found
    assert beam_search(replace(wanted, limit=placement_byte_count(found))) is None


def _unit(number: int, parts: tuple[int, int, int, int]) -> Unit:
    size, align, first, length = parts
    return Unit(f"u{number}", size, align, first, first + length)


unit_sets = st.lists(
    st.tuples(st.integers(1, 40), st.sampled_from([1, 4, 16]), st.integers(0, 5), st.integers(0, 3)), max_size=5
).map(lambda many: tuple(_unit(k, parts) for k, parts in enumerate(many)))


@given(unit_sets)
@settings(max_examples=examples(150), deadline=None)
def test_exact_is_the_best_of_all_orders(found: tuple[Unit, ...]) -> None:
    wanted = make_demand(found)
    best = min((placement_byte_count(first_fit(wanted, order)) for order in permutations(found)), default=0)
    assert placement_byte_count(place_exactly(wanted)) == best
    for _, planner in PLANNERS:
        assert placement_lower_bound(wanted) <= best <= placement_byte_count(planner(wanted) or {})


@given(modules(calls=8), st.integers(0, 8))
@settings(max_examples=examples(40), deadline=None)
def test_what_is_placed_is_not_placed_again(module: Module, count: int) -> None:
    wanted = demand_of_module(module, Overlaps(module), io_in_arena=True)
    whole = first_fit(wanted, wanted.units)
    before = {unit: whole[unit] for unit in wanted.units[:count]}
    assert list(first_fit(wanted, wanted.units, before=before).items()) == list(whole.items())


@given(modules(calls=8), st.integers(0, 8), st.randoms(use_true_random=False))
@settings(max_examples=examples(60), deadline=None)
def test_many_units_are_placed_as_few_are(module: Module, count: int, dice: random.Random) -> None:
    wanted = demand_of_module(module, Overlaps(module), io_in_arena=True)
    order = dice.sample(wanted.units, len(wanted.units))
    whole = first_fit(wanted, order)
    shelf = IntervalIndex({unit: whole[unit] for unit in order[:count]})
    for unit in order[count:]:
        shelf.add(unit, shelf.find_lowest_gap(unit, wanted.allowed_distances[unit]))
    assert shelf.placed == whole


def test_thousands_of_units_are_placed_as_few_are() -> None:
    dice = random.Random(0)
    parts = [(dice.randrange(1, 40), dice.choice((1, 4, 16)), dice.randrange(9), dice.randrange(4)) for _ in range(600)]
    wanted = make_demand(tuple(_unit(number, part) for number, part in enumerate(parts)))
    placed: dict[Unit, int] = {}
    for unit in wanted.units:
        placed[unit] = find_lowest_gap(wanted, unit, placed)
    assert first_fit(wanted, wanted.units) == placed


@given(modules(calls=3))
@settings(max_examples=examples(40), deadline=None)
def test_exact_is_correct(module: Module) -> None:
    wanted = demand_of_module(module, Overlaps(module), io_in_arena=True)
    if len(wanted.units) <= EXACT_LIMIT:
        placement = place_exactly(wanted)
        check_plan(planned(module, placement))
        assert placement_byte_count(placement) <= placement_byte_count(greedy_by_size(wanted))


def test_known_optimum() -> None:
    """While c is computed from b, a waits: three tensors of 64 bytes."""
    plan = plan_module(residual()).plan
    assert plan is not None
    assert (plan.size, plan.lower_bound) == (192, 192)


def test_inputs_outside_the_arena() -> None:
    plan = plan_module(residual(), io_in_arena=False).plan
    assert plan is not None and not {"x", "y"} & set(plan.offsets)


def test_a_view_keeps_its_base_alive() -> None:
    sketch = Sketch()
    sketch.value("x", 16, "input")
    for name in ("a", "b"):
        sketch.value(name, 16)
    sketch.value("y", 16, "output")
    sketch.view("part", "a", 4, 8)
    sketch.call(("x",), ("a",))
    sketch.call(("x",), ("b",))
    sketch.call(("b", "part"), ("y",))
    plan = plan_module(sketch.module()).plan
    assert plan is not None and plan.lower_bound == 48


@pytest.mark.parametrize(("style", "size"), [("apart", 32), ("together", 16), ("late", 16)])
def test_a_view_is_read_as_well(style: str, size: int) -> None:
    """y may take the place of a only if whatever reads a, under whichever name, is done by then."""
    sketch = Sketch()
    sketch.value("x", 16, "input")
    sketch.value("a", 16)
    sketch.view("again", "a", 0, 16)
    sketch.value("y", 16, "output")
    sketch.call(("x",), ("a",), style="late")
    sketch.call(("a", "again"), ("y",), style=style)
    plan = plan_module(sketch.module()).plan
    assert plan is not None and plan.size == plan.lower_bound == size


def test_nothing_to_place() -> None:
    plan = plan_module(Sketch().module()).plan
    assert plan is not None and plan.size == 0
