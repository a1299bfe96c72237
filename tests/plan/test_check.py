# SPDX-License-Identifier: Apache-2.0
"""The checker catches damage, whoever made the plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from microc.errors import InternalError
from microc.module import Module, Plan, View
from microc.plan.liveness import compute_lifetimes
from microc.plan.plan import plan_module
from microc.plan.plan_check import check_plan
from tests.plan.modules import modules, residual
from tests.support.campaign import examples


def moved(module: Module, **offsets: int) -> Module:
    """The planned module with some values elsewhere."""
    assert module.plan is not None
    return module.with_plan(replace(module.plan, offsets={**module.plan.offsets, **offsets}, size=1 << 12))


@given(modules(), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_a_value_moved_onto_a_live_one_is_caught(module: Module, data: st.DataObject) -> None:
    planned = plan_module(module)
    assert planned.plan is not None
    alive = compute_lifetimes(planned, io_in_arena=True)
    parted = {view.base for view in module.views}  # the rest of a value whose parts are read later may be written over
    whole = [name for name in alive if name not in parted]
    pairs = [(a, b) for a in whole for b in alive if alive[a][0] < alive[b][0] < alive[a][1] and a != b]
    assume(pairs)
    victim, intruder = data.draw(st.sampled_from(pairs))
    with pytest.raises(InternalError):
        check_plan(moved(planned, **{intruder: planned.plan.offsets[victim]}))


@given(modules(), st.data())
@settings(max_examples=examples(40), deadline=None)
def test_a_missing_place_is_caught(module: Module, data: st.DataObject) -> None:
    plan = plan_module(module).plan
    assert plan is not None
    name = data.draw(st.sampled_from(sorted(plan.offsets)))
    assume(module.values[name].storage not in ("input", "output"))
    rest = {other: at for other, at in plan.offsets.items() if other != name}
    with pytest.raises(InternalError, match="has no offset"):
        check_plan(module.with_plan(replace(plan, offsets=rest)))


SWAPS = {
    "x and a swapped into each other": ({"a": 32, "x": 0}, "overlaps"),
    "a overwritten by b": ({"a": 0, "b": 0}, "overlaps"),
    "a overwritten by c": ({"a": 0, "b": 64, "c": 32}, "overlaps|overwritten"),
    "workspace over an operand": ({"work": 0, "a": 0}, "overlaps"),
    "in place, but shifted": ({"a": 0, "b": 64, "c": 128, "y": 4}, "overlaps"),
    "before the arena": ({"a": -4}, "outside of the arena"),
    "behind the arena": ({"a": 4096}, "outside of the arena"),
    "misaligned": ({"a": 401}, "misaligned"),
}


@pytest.mark.parametrize("name", SWAPS)
def test_faults(name: str) -> None:
    offsets, message = SWAPS[name]
    far = {"x": 1000, "a": 1100, "b": 1200, "c": 1300, "y": 1400, "work": 1500}
    check_plan(moved(plan_module(residual()), **far))
    with pytest.raises(InternalError, match=message):
        check_plan(moved(plan_module(residual()), **{**far, **offsets}))


def test_a_step_without_loops_may_not_overlap() -> None:
    plan = Plan({"x": 0, "a": 64, "b": 0, "c": 128, "y": 64, "work": 256}, 512, 0, "by hand")
    check_plan(residual().with_plan(plan))
    with pytest.raises(InternalError, match="y overlaps a"):
        check_plan(replace(residual(), kernels=()).with_plan(plan))


def test_a_view_beyond_its_base_is_caught() -> None:
    module = plan_module(residual())
    with pytest.raises(InternalError, match="reaches beyond"):
        check_plan(replace(module, views=(View("b", "a", 4),)))
