# SPDX-License-Identifier: Apache-2.0
"""The schedules that come with the compiler: how much they are, that they are taken, and what they must not be in the way of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import microc
from microc.compiler.lowering import kernel_selection
from microc.compiler.lowering.kernel_builder import KernelGroup
from microc.compiler.lowering.kernel_selection import (
    find_shipped_choice,
    group_algorithms,
    select_group_schedule,
    shipped_key,
)
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_network
from microc.compiler.tuned import shipped
from microc.compiler.tuned.records import write_records
from microc.compiler.tuned.shipped import ShippedSchedule
from microc.ops.lowering import LoweredGroup
from microc.schedule.primitives.tree import Step
from microc.schedule.rules import RULES, ScheduleRule
from microc.schedule.schedule import PRIMITIVES
from microc.target import SIZE, SPEED, Goal, target_for
from tests.support.campaign import everything, in_turn
from tests.support.corpus import CORPUS
from tests.tuning.test_records import RECORD

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits_int8.tflite"
CORES = ("cortex-m0plus", "cortex-m33", "cortex-m4", "cortex-m55", "cortex-m7", "rv32imc", "x86-64-v3")
OTHERS, MEASURED = ("kws", "vww", "ic", "strww"), CORES[2:6]
MOST = 1 << 20
"""Bytes of a wheel that they may take."""
GOALS = (SPEED, Goal("balanced", 0.3), Goal("balanced", 16.0), Goal("balanced", 700.0), SIZE)


def groups(cpu: str, model: Path = DIGITS) -> Iterator[tuple[tuple[LoweredGroup, ...], int]]:
    """The kernels of a network, and how many are alike."""
    made = compile_network(model, target_for(cpu), make_options(shipped=False))
    for origin in made.kernel_builder.origins.values():
        if isinstance(origin, KernelGroup):
            yield (
                group_algorithms(made.kernel_builder.graph, origin.nodes, made.kernel_builder.target, "kernel"),
                origin.uses,
            )


def test_a_wheel_has_room_for_them() -> None:
    assert tuple(shipped.list_shipped_cores()) == CORES
    assert sum(path.stat().st_size for path in shipped.FOLDER.iterdir()) <= MOST


@pytest.mark.parametrize("cpu", CORES)
def test_a_file_is_as_it_is_written(cpu: str) -> None:
    kernels = shipped.shipped_kernels_of(cpu)
    assert shipped.format_kernels(kernels) == (shipped.FOLDER / f"{cpu}.jsonl").read_text()
    assert len({each.key for each in kernels}) == len(kernels) > 80
    steps = {step.primitive for each in kernels for s in each.schedules for step in s.trace}
    assert steps <= PRIMITIVES.keys()
    for each in kernels:  # whatever a byte of flash is worth
        assert all(shipped.shipped_candidates(each.schedules, target_for(cpu), goal, 1) for goal in GOALS), each.layer


@pytest.mark.parametrize("cpu", CORES)
def test_a_plain_compilation_takes_them(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = compile_network(DIGITS, target_for(cpu), make_options(shipped=False)).module
    monkeypatch.setattr(kernel_selection, "_CHOICES", {})
    monkeypatch.setattr(kernel_selection, "list_candidates", _refuse)
    taken = compile_network(DIGITS, target_for(cpu), make_options()).module
    for ours, theirs in zip(taken.calls, plain.calls, strict=True):
        assert ours.rule.endswith(shipped.MEASURED_SUFFIX) or (ours.rule, ours.schedule) == (
            theirs.rule,
            theirs.schedule,
        )


def test_kernels_without_records_keep_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of records makes no network slower than it is without."""
    write_records(tmp_path / "other.jsonl", [RECORD])
    monkeypatch.setattr(shipped, "shipped_schedules_of", lambda cpu, key: tuple(map(_unrolled, known(cpu, key))))
    monkeypatch.setattr(kernel_selection, "_CHOICES", {})
    plain, tuned = (
        compile_network(DIGITS, target_for("cortex-m4"), make_options(tuned=path)).module
        for path in (None, tmp_path / "other.jsonl")
    )
    assert any(shipped.MEASURED_SUFFIX in call.rule for call in plain.calls)
    assert [(call.rule, call.schedule) for call in tuned.calls] == [(call.rule, call.schedule) for call in plain.calls]


def _refuse(*_: object) -> list[object]:
    raise AssertionError("rules were asked")


@pytest.mark.parametrize("cpu", CORES)
def test_what_the_rules_would_choose_is_chosen(cpu: str) -> None:
    """At any price, of which a core has two; or what was measured to be better. After a change of rules or of the cost model:
    benchmarks/maintain."""
    goals = [goal for core, goal in in_turn(CORES, GOALS, 2) if core == cpu]
    for lowered, uses in groups(cpu):
        for goal in goals:
            assert_as_the_rules_choose(lowered, cpu, goal, uses)


def assert_as_the_rules_choose(lowered: tuple[LoweredGroup, ...], cpu: str, goal: Goal, uses: int) -> None:
    found = find_shipped_choice(lowered, target_for(cpu), goal, uses)
    assert found is not None
    number, choice = select_group_schedule(lowered, target_for(cpu), goal, uses)
    same = (found[0], found[1].schedule.trace) == (number, choice.schedule.trace)
    assert same or found[1].schedule.rule.endswith(shipped.MEASURED_SUFFIX), (goal, choice.schedule)


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "cpu"),
    [(name, cpu) for name in ("ad", *OTHERS) for cpu in CORES]
    if everything()
    else [*zip(OTHERS, MEASURED, strict=True), *(("ad", cpu) for cpu in CORES if cpu not in MEASURED)],
)
def test_networks_of_the_benchmark_take_them(name: str, cpu: str) -> None:
    """At the price that they are compiled at. Where rules come later than these files, networks take more time than without them,
    and nothing else tells."""
    model = (CORPUS or Path()) / "tflite" / f"mlperf_{name}_int8.tflite"
    goal = compile_network(model, target_for(cpu), make_options()).kernel_builder.goal
    for lowered, uses in groups(cpu, model):
        assert_as_the_rules_choose(lowered, cpu, goal, uses)


def test_one_that_makes_no_schedule_any_more_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = compile_network(DIGITS, target_for("cortex-m4"), make_options(shipped=False)).module
    monkeypatch.setattr(kernel_selection, "_CHOICES", {})
    monkeypatch.setattr(shipped, "shipped_schedules_of", lambda cpu, key: tuple(map(_broken, known(cpu, key))))
    assert compile_network(DIGITS, target_for("cortex-m4"), make_options()).module.kernels == plain.kernels
    assert "the one that comes with microc" in str(microc.explain(DIGITS, "#3", board="mps2-an386"))


known = shipped.shipped_schedules_of


def _broken(each: ShippedSchedule) -> ShippedSchedule:
    return replace(each, trace=(*each.trace, Step("split", ("no_such_loop", (None, 2)))))


def test_rules_of_the_user_compete() -> None:
    lowered, uses = next(groups("cortex-m4"))
    target = target_for("cortex-m4")
    assert find_shipped_choice(lowered, target, SPEED, uses) is not None
    with RULES.extend({"mine": ScheduleRule("mine", lambda *_: ())}):
        assert find_shipped_choice(lowered, target, SPEED, uses) is None
    assert find_shipped_choice(lowered, target.with_features("threads"), SPEED, uses) is None
    assert find_shipped_choice(lowered, target_for("avr"), SPEED, uses) is None


def test_a_measured_one_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the cost model does not prefer, taken because it was measured: the story is told to the end."""
    monkeypatch.setattr(kernel_selection, "_CHOICES", {})
    monkeypatch.setattr(shipped, "shipped_schedules_of", lambda cpu, key: tuple(map(_unrolled, known(cpu, key))))
    text = str(microc.explain(DIGITS, "#3", board="mps2-an386"))
    assert shipped.MEASURED_SUFFIX in text and "measured to be slower or larger" in text


def _unrolled(each: ShippedSchedule) -> ShippedSchedule:
    trace = (*each.trace, Step("compile_with", ("unroll-loops",)))
    return replace(each, trace=trace, measured=True)


def test_shapes_are_told_apart_by_promises_that_decide() -> None:
    lowered, _ = next(groups("cortex-m4"))
    wide = tuple(_promising(group, 1 << 24) for group in lowered)
    near = tuple(_promising(group, 1 << 10) for group in lowered)
    assert shipped_key(wide) != shipped_key(near) == shipped_key(tuple(_promising(group, 99) for group in lowered))


def _promising(group: LoweredGroup, bound: int) -> LoweredGroup:
    from microc.tir import ir
    from microc.tir.names import SUM_BOUND
    from microc.tir.rewrite import map_stmt

    def note(s: ir.Stmt) -> ir.Stmt:
        if not isinstance(s, ir.Block) or SUM_BOUND not in dict(s.annotations):
            return s
        return replace(s, annotations=tuple({**dict(s.annotations), SUM_BOUND: bound}.items()))

    return replace(group, func=replace(group.func, body=map_stmt(group.func.body, note)))


def test_a_file_of_no_kernels() -> None:
    assert json.loads(shipped.format_kernels(())) == {"steps": []}
