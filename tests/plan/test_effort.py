# SPDX-License-Identifier: Apache-2.0
"""Searches for a plan end within the work they may do, the same way every time, with a plan that is right."""

from __future__ import annotations

import pytest

from microc.compiler.options import Options
from microc.compiler.pipeline import compile_model
from microc.module import Module
from microc.plan import placement as beam
from microc.plan import placement as effort
from microc.plan import placement as planners
from microc.plan import plan
from microc.plan.liveness import (
    Demand,
    Overlaps,
    Placement,
    Unit,
    count_conflicting_bytes,
    count_conflicts,
    make_demand,
    placement_byte_count,
    placement_lower_bound,
)
from microc.target import target_for
from tests.plan.modules import Sketch
from tests.support.corpus import models


def crowd(count: int) -> Demand:
    """Units of many sizes that are alive all at once, and a few that come and go."""
    units = tuple(Unit(f"u{k}", 4 + 4 * (k * 7 % 11), 4, 0, 9) for k in range(count))
    return make_demand((*units, *(Unit(f"v{k}", 40, 4, k, k + 1) for k in range(9))))


def fan(count: int, size: int = 8) -> Module:
    """One value read by many calls that know nothing of each other, and one call that reads what they made."""
    sketch = Sketch()
    sketch.value("x", size, "input")
    for k in range(count):
        sketch.call(("x",), (sketch.value(f"a{k}", size * (1 + k % 5)),))
        sketch.call((f"a{k}",), (sketch.value(f"b{k}", size),))
    sketch.call(tuple(f"b{k}" for k in range(count)), (sketch.value("y", size, "output"),))
    return sketch.module()


def is_right(wanted: Demand, placement: Placement | None) -> bool:
    """Whether units that conflict lie apart."""
    assert placement is not None and set(placement) == set(wanted.units)
    spans = sorted((at, at + unit.size, unit.first, unit.last) for unit, at in placement.items())
    pairs = [(a, b) for k, a in enumerate(spans) for b in spans[k + 1 :] if a[2] <= b[3] and b[2] <= a[3]]
    return all(a[1] <= b[0] for a, b in pairs)


def test_what_conflicts_is_counted() -> None:
    wanted = crowd(20)
    pairs = [(a, b) for k, a in enumerate(wanted.units) for b in wanted.units[:k] if a.conflicts(b)]
    assert count_conflicts(wanted) == len(pairs)
    assert count_conflicting_bytes(wanted) == {
        u: sum(v.size for v in wanted.units if v is not u and v.conflicts(u)) for u in wanted.units
    }


@pytest.mark.parametrize("count", [30, 150, 2000])
def test_beam_search_is_bounded(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every partial placement is held against its neighbours; in each of the three orders so many times in all."""
    looked, merged = 0, beam._merge_intervals

    def counted(stretches: object) -> object:
        nonlocal looked
        found = list(stretches)  # type: ignore[call-overload]
        looked += len(found)
        return merged(found)

    monkeypatch.setattr(beam, "_merge_intervals", counted)
    wanted = crowd(count)
    placement = beam.beam_search(wanted)
    assert looked <= 3 * effort.BEAM_EFFORT
    assert (placement is None) == (effort.count_affordable_repeats(wanted, effort.BEAM_EFFORT, beam.BEAM_WIDTH) == 0)
    assert placement is None or is_right(wanted, placement)


def test_exact_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it may look at it finds the best; with less, something right."""
    wanted = make_demand(
        tuple(Unit(f"u{k}", size, 4, k % 4, k % 4 + 2) for k, size in enumerate((9, 30, 17, 8, 25, 40, 13)))
    )
    best, looks, gap = planners.place_exactly(wanted), 0, planners.find_lowest_gap

    def counted(*args: object) -> int:
        nonlocal looks
        looks += 1
        return gap(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(planners, "find_lowest_gap", counted)
    monkeypatch.setattr(planners, "EXACT_EFFORT", 20)
    some = planners.place_exactly(wanted)
    assert looks <= 20 + 2 * len(wanted.units)  # two greedy placements come first
    assert is_right(wanted, some) and placement_byte_count(some) >= placement_byte_count(best) >= placement_lower_bound(
        wanted
    )


@pytest.mark.parametrize("count", [10, 40, 200])
def test_ordering_is_bounded(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders are drawn on by a call so many times, and a wide network comes out no worse than as it was written."""
    tried, after = 0, plan.OrderSearch.append_call

    def counted(search: plan.OrderSearch, state: plan._PartialOrder, k: int, place: int = 0) -> plan._PartialOrder:
        nonlocal tried
        tried += 1
        return after(search, state, k, place)

    monkeypatch.setattr(plan.OrderSearch, "append_call", counted)
    module = fan(count)
    ordered = plan.order_calls(module, Overlaps(module), io_in_arena=True)
    assert tried <= effort.ORDER_EFFORT + len(module.calls)  # the order as written comes last
    again = plan.order_calls(module, Overlaps(module), io_in_arena=True)
    assert again.calls == ordered.calls and set(ordered.calls) == set(module.calls)


def test_a_smaller_share_leaves_a_good_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large values that are made first and read last: a few ways to go on are enough to see that it is better one by one."""
    sketch = Sketch()
    sketch.value("x", 8, "input")
    for k in range(20):
        sketch.call(("x",), (sketch.value(f"a{k}", 100),))
    for k in range(20):
        sketch.call((f"a{k}",), (sketch.value(f"b{k}", 4),))
    sketch.call(tuple(f"b{k}" for k in range(20)), (sketch.value("y", 8, "output"),))
    module, peaks = sketch.module(), []
    for ways in (1, 64, 4096):
        monkeypatch.setattr(plan, "ORDER_EFFORT", ways * len(module.calls))
        peaks.append(plan.OrderSearch(module, Overlaps(module), io_in_arena=True).find_best_order().peak_bytes)
    assert peaks[0] > 2000 and peaks[1] == peaks[2] < 200


@pytest.mark.corpus
@pytest.mark.parametrize(("name", "most"), [("ad", 764), ("ic", 35712), ("kws", 8420), ("strww", 3840), ("vww", 41764)])
def test_ordinary_networks_are_searched_in_full(name: str, most: int) -> None:
    """MLPerf Tiny's networks take what they took when nothing was bounded, where their schedules' workspaces keep within that."""
    (path,) = models(f"mlperf_{name}_int8.tflite")
    module = compile_model(path, target_for("cortex-m4"), Options(ram=most))
    assert module.plan is not None and module.plan.size <= most
