"""Plans are correct, never below the lower bound, and the same every time."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from microc.module import Module, Plan
from microc.plan.check import check_plan
from microc.plan.liveness import Unit, lower_bound, units
from microc.plan.plan import plan_module
from microc.plan.planners import EXACT_LIMIT, PLANNERS, Placement, Planner, exact, first_fit, greedy_by_size, size_of
from tests.plan.modules import Sketch, modules, residual


def planned(module: Module, placement: Placement) -> Module:
    """The module under a placement of its units."""
    offsets = {name: at for unit, at in placement.items() for name in unit.names}
    return module.with_plan(Plan(offsets, size_of(placement), lower_bound(tuple(placement)), "test"))


@given(modules(), st.booleans())
@settings(max_examples=150, deadline=None)
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
@settings(max_examples=60, deadline=None)
def test_every_planner_is_correct(name: str, planner: Planner, module: Module) -> None:
    found = units(module, io_in_arena=True)
    placement = planner(found)
    assert set(placement) == set(found)
    assert size_of(placement) >= lower_bound(found)
    check_plan(planned(module, placement))


def _unit(number: int, parts: tuple[int, int, int, int]) -> Unit:
    size, align, first, length = parts
    return Unit((f"u{number}",), size, align, first, first + length)


unit_sets = st.lists(
    st.tuples(st.integers(1, 40), st.sampled_from([1, 4, 16]), st.integers(0, 5), st.integers(0, 3)), max_size=5
).map(lambda many: tuple(_unit(k, parts) for k, parts in enumerate(many)))


@given(unit_sets)
@settings(max_examples=150, deadline=None)
def test_exact_is_the_best_of_all_orders(found: tuple[Unit, ...]) -> None:
    best = min((size_of(first_fit(order)) for order in permutations(found)), default=0)
    assert size_of(exact(found)) == best
    for _, planner in PLANNERS:
        assert lower_bound(found) <= best <= size_of(planner(found))


@given(modules(calls=3))
@settings(max_examples=40, deadline=None)
def test_exact_is_correct(module: Module) -> None:
    found = units(module, io_in_arena=True)
    if len(found) <= EXACT_LIMIT:
        placement = exact(found)
        check_plan(planned(module, placement))
        assert size_of(placement) <= size_of(greedy_by_size(found))


def test_known_optimum() -> None:
    """While c is computed from b, a waits: three tensors of 64 bytes. The sum is made in place."""
    plan = plan_module(residual()).plan
    assert plan is not None
    assert (plan.size, plan.lower_bound) == (192, 192)
    assert plan.offsets["y"] in (plan.offsets["a"], plan.offsets["c"])


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


def test_no_sum_in_place_of_what_a_view_still_reads() -> None:
    """y[i] = a[i] + a_again[n - i]: the pair (y, a) is declared, but y must not damage a's view."""
    sketch = Sketch()
    sketch.value("x", 16, "input")
    sketch.value("a", 16)
    sketch.view("again", "a", 0, 16)
    sketch.value("y", 16, "output")
    sketch.call(("x",), ("a",))
    sketch.call(("a", "again"), ("y",), inplace=(("y", "a"),))
    plan = plan_module(sketch.module()).plan
    assert plan is not None and plan.offsets["y"] != plan.offsets["a"]


def test_nothing_to_place() -> None:
    plan = plan_module(Sketch().module()).plan
    assert plan is not None and plan.size == 0
