# SPDX-License-Identifier: Apache-2.0
"""Spaces: every point a kernel or none, neighbours that differ in one decision, the same kernels by the same points."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from microc.compiler.tuned.records import Database
from microc.tir import ir
from microc.tuning.search_policies import AnalyticModel
from microc.tuning.search_space import Space
from microc.tuning.tuner import SearchLimits, Tuner
from tests.tuning.networks import Estimating, product, space_of, tasks


def test_equal_layers_are_one_task_and_the_default_is_what_is_compiled() -> None:
    found = tasks()
    assert len({task.key for task in found}) == len(found)
    for task in found:
        space = space_of(task)
        goal, number, choice = task.untuned[0]
        assert (goal, space.default.number, space.default.choice) == ("shipped", number, choice)
        assert str(space.default.point) == f"{task.algorithms[number]}: {choice.schedule.rule}"


@pytest.mark.parametrize("cpu", ["cortex-m4", "cortex-m0", "cortex-m55", "rv32imc", "x86-64-v3"])
def test_points_are_kernels_or_none(cpu: str) -> None:
    space = space_of(product(cpu))
    drawn = random.Random(1).sample(space.points, min(len(space.points), 12))
    built = [candidate for point in drawn if (candidate := space.candidate(point))]
    assert built and all(c.instructions > 0 and c.code > 0 for c in built)
    assert all(space.candidate(c.point) is c for c in built)


def test_candidates_take_no_index_from_constants_that_are_no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule may be the user's: what it makes is verified with the group's tables, as what is compiled."""
    space = Space(product())  # not the shared one: this space remembers that the point has no kernel
    point = next(p for p in space.points if space.price_point(p))
    found = space.price_point(point)
    assert found is not None
    x, table = ir.Buffer("x", (4,), "int32"), ir.Buffer("c", (1,), "int32", "const")
    out = ir.Buffer("y", (1,), "int32")
    func = ir.PrimFunc("f", (x, out, table), ir.Store(out, (ir.const(0, "int32"),), x[table[0]]))
    made = found._replace(choice=replace(found.choice, func=func, verified=False))
    monkeypatch.setattr(space, "price_point", lambda _: made)
    assert space.candidate(point) is None


def test_neighbours_differ_in_one_decision() -> None:
    space, draw = space_of(product()), random.Random(2)
    for point in draw.sample(space.points, 20):
        other = space.mutate(point, draw)
        assert other in space
        same = {name for name, value in other.values if (name, value) in point.values}
        if (other.algorithm, other.rule) == (point.algorithm, point.rule):
            assert len(other.values) - len(same) == 1


def test_children_have_the_decisions_of_their_parents() -> None:
    space, draw = space_of(product()), random.Random(3)
    one, *rest = (
        p for p in space.points if p.rule == space.points[0].rule and p.algorithm == space.points[0].algorithm
    )
    child = space.cross(one, rest[-1], draw)
    assert child in space and all(
        value in (dict(one.values)[name], dict(rest[-1].values)[name]) for name, value in child.values
    )


def test_a_record_finds_its_candidate_again() -> None:
    space, database, runner = space_of(product()), Database(), Estimating()
    Tuner([space.task], runner, database, model=AnalyticModel(), search="random").run(SearchLimits(8))
    found = [space.candidate_of(record) for record in database]
    assert [c and c.point for c in found] == [c.point for c in runner.measured]
    assert found[0] is space.default
    other = replace(next(iter(database)), rule="no rule", decisions=())
    assert space.candidate_of(other) is None
