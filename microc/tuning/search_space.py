# SPDX-License-Identifier: Apache-2.0
"""The search space of a kernel's schedules, and candidates made from the steps of a record."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import cached_property, partial
from math import inf
from typing import Any, NamedTuple

from microc.compiler.lowering.kernel_selection import replay_on_algorithm
from microc.compiler.tuned.records import UNTUNED, Record, Task
from microc.errors import MicrocError, ScheduleError
from microc.module import ExternalBody
from microc.ops.lowering import Param
from microc.schedule.choose import Choice, constant_bytes
from microc.schedule.cost.cost_model import estimate
from microc.schedule.cost.forecast import forecast_instructions
from microc.schedule.primitives.tree import Step
from microc.schedule.rules import OURS, RULES
from microc.schedule.rules.around_rules import canonicalise_for_target, select_instructions
from microc.schedule.rules.rule import MOSTLY, Rule
from microc.schedule.schedule import Schedule
from microc.target import SPEED, Target
from microc.tir.lower import lower
from microc.tir.names import FLAGS
from microc.tir.verify import verify

# ---- The search space of a kernel. It has a point for every algorithm, every schedule rule that applies to it, and every
# combination of the rule's decisions.
#
# A point is plain data. It is stored in records, and it always gives the same schedule. Two points are neighbours if they
# differ in one decision.

MAX_POINTS = 1 << 14
"""Maximum number of points of a kernel. If the decisions have more combinations, only the first of these are used."""
PROMISING_RATIO = 2.0
"""A rule is slow if its schedules take more than this multiple of the instructions of the best rule, by their forecasts."""
MAX_CODE_BYTES = 24 << 10
"""Maximum number of bytes of code, by the cost model. Larger candidates are dropped, because the C compiler would take
minutes for them."""


class Point(NamedTuple):
    """A point of a kernel's search space: the names of an algorithm and a schedule rule, and the decisions of the rule.

    ``decisions``: names and plain values, such as ``(("tile.rows", 4), ...)``.
    """

    algorithm: str
    rule: str
    decisions: tuple[tuple[str, Any], ...]

    @property
    def values(self) -> tuple[tuple[str, Any], ...]:
        """All decisions by name, including the algorithm and the rule."""
        return (("algorithm", self.algorithm), ("rule", self.rule), *self.decisions)

    @property
    def flags(self) -> str:
        """Compiler options for this kernel alone; empty if it is compiled with the usual options."""
        return next((value for name, value in self.decisions if name == FLAGS), "")

    def with_flags(self, flags: str) -> Point:
        """Return the point with other compiler options."""
        plain = tuple(each for each in self.decisions if each[0] != FLAGS)
        return self._replace(decisions=(*plain, (FLAGS, flags)) if flags else plain)

    def __str__(self) -> str:
        parts = ", ".join(
            f"{name.rpartition('.')[2]} {value}"
            for name, value in self.decisions
            if value not in ("", False) and name != UNTUNED
        )
        return f"{self.algorithm}: {self.rule}" + (f" ({parts})" if parts else "")


ScheduleMaker = Callable[[], Schedule | None]
"""Function that creates the schedule of a point; None if a decision does not apply to the function."""


class RegionData(NamedTuple):
    """Additional data of a candidate that computes a whole region instead of a single kernel.

    ``params``: the values or constants that are passed as parameters, without results and workspaces. ``external``:
    external code that replaces the loops of the function. ``align``: alignment in bytes that this code requires.
    ``bound``: tolerance of its float outputs, relative to the largest float. If it is infinite, any output is accepted,
    integers too.
    """

    params: tuple[Param, ...]
    external: ExternalBody | None = None
    align: int = 0
    bound: float = 0.0


def _fewest_instructions(rule: Rule, start: Schedule, target: Target) -> float:
    """Return the fewest forecast instructions among the schedules that a rule itself compares; infinity if it compares
    none."""
    schedules = rule.schedules(start, target, SPEED)
    return min((forecast_instructions(schedule.func, target) for schedule in schedules), default=inf)


class Candidate(NamedTuple):
    """A candidate to be measured: a point with its schedule, its lowered function, and the estimates of the cost model.

    ``number``: index of the point's algorithm. ``code``, ``constants``, ``workspace``: number of bytes. ``whole``: only
    for candidates that compute a region.
    """

    point: Point
    number: int
    choice: Choice
    instructions: float
    code: int
    constants: int
    workspace: int
    whole: RegionData | None = None


class Space:
    """The search space of a kernel. A candidate is built when it is needed, and only once.

    Every point and every default candidate may also be combined with each of the C compiler options :attr:`flags`. Such
    points belong to the space but not to :attr:`points`, because a search combines only the fastest points with
    compiler options.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.flags = task.flags
        self._makers: dict[Point, tuple[int, ScheduleMaker]] = {}
        self._built: dict[Point, Candidate | None] = {}
        for number, algorithm in enumerate(task.algorithms):
            for rule, decisions, maker in itertools.islice(self._rule_choices(number), MAX_POINTS - len(self._makers)):
                self._makers.setdefault(Point(algorithm, rule, _flatten_decisions(decisions)), (number, maker))

    def _rule_choices(self, algorithm_index: int) -> Iterator[tuple[str, Mapping[str, Any], ScheduleMaker]]:
        """Yield the points of an algorithm: the name of the rule, its decisions, and the function that creates the
        schedule.

        ``algorithm_index``: index of the algorithm in the task. Of slow rules only the decisions that the rule itself
        compares are included, because some of them give smaller code. A rule of the user that stands alone is the whole
        space.
        """
        group, target = self.task.lowered[algorithm_index], self.task.target
        own = [(rule, rule.schedules(group.func, group.anchor.op, target)) for rule in RULES.values()]
        alone = [(rule, schedules) for rule, schedules in own if rule.alone and schedules]
        start = canonicalise_for_target(group.func, target)
        matching = [] if alone else [rule for rule in OURS if rule.applies_to(start, target)]
        fewest: dict[str, float] = {}
        for rule in matching:
            # A function of the user may have other blocks than the rule expects; for kernels of networks no rule fails.
            with suppress(ScheduleError):
                fewest[rule.name] = _fewest_instructions(rule, start, target)
        for rule in [rule for rule in matching if rule.name in fewest]:
            is_slow = PROMISING_RATIO * min(fewest.values()) < fewest[rule.name] < inf
            choices = rule.compared_decisions if is_slow else rule.searched_decisions
            for decisions in choices(start, target, SPEED):
                yield rule.name, decisions, partial(rule.schedule, start, target, decisions)
        for rule_of_user, schedules in alone or own:
            for variant, schedule in enumerate(schedules):
                yield rule_of_user.name, {"variant": variant}, partial(Schedule.named, schedule, rule_of_user.name)

    def __contains__(self, point: object) -> bool:
        if isinstance(point, Point) and point.flags in self.flags:
            plain = point.with_flags("")
            return plain in self._makers or any(plain == each.point for each in self.untuned)
        return point in self._makers

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """All points, in the order of algorithms and rules."""
        return tuple(self._makers)

    @cached_property
    def default(self) -> Candidate:
        """The candidate that is used without tuning records."""
        return self.untuned[0]

    @cached_property
    def untuned(self) -> tuple[Candidate, ...]:
        """The default candidates, without duplicates: the default schedule, the rules' choice if no schedule is
        bundled, and the rules' choices for other optimisation goals."""
        by_body: dict[object, Candidate] = {}
        for goal, number, choice in self.task.untuned:
            point = Point(self.task.algorithms[number], choice.schedule.rule or "as written", ((UNTUNED, goal),))
            by_body.setdefault((number, choice.func.body), _priced_candidate(self.task, point, number, choice))
        return tuple(by_body.values())

    def candidate_of(self, record: Record) -> Candidate | None:
        """Return the candidate that a record measured; None if the space no longer contains such a kernel."""
        if record.untuned:
            same = (record.algorithm, record.trace)
            return next((c for c in self.untuned if (c.point.algorithm, c.choice.schedule.trace) == same), None)
        point = Point(record.algorithm, record.rule, record.decisions)
        return self.candidate(point) if point in self else None

    def domains(self) -> Mapping[str, tuple[Any, ...]]:
        """Return all values of each decision that occur in the space, by the name of the decision."""
        values_by_name: dict[str, dict[Any, None]] = defaultdict(dict)
        for point in self.points:
            for name, value in point.values:
                values_by_name[name].setdefault(value)
        return {name: tuple(values) for name, values in values_by_name.items()}

    def candidate(self, point: Point) -> Candidate | None:
        """Return the candidate of a point, verified; None if the point gives no valid schedule."""
        candidate_ = self.price_point(point)
        if candidate_ is not None and not candidate_.choice.verified:
            candidate_ = self._built[point] = _verify_candidate(candidate_, self.task.lowered[candidate_.number].tables)
        return candidate_

    def price_point(self, point: Point) -> Candidate | None:
        """Return the candidate of a point with its estimated costs; None if the point gives no schedule.

        The candidate is not verified, because most candidates have higher costs than others and are never used.
        """
        if point not in self._built:
            self._built[point] = self._build_candidate(point)
        return self._built[point]

    def candidate_at(self, point: Point) -> Candidate | None:
        """Return the candidate of a point, which may be the point of a default candidate."""
        return next((each for each in self.untuned if each.point == point), None) or self.candidate(point)

    def with_each_flag(self, point: Point) -> list[Point]:
        """Return the point combined with each of the compiler options."""
        return [point.with_flags(flags) for flags in self.flags]

    def _build_candidate(self, point: Point) -> Candidate | None:
        """Build the candidate of a point; None if its schedule steps do not apply, or if its code is too long."""
        if point.flags:
            candidate = self.candidate_at(point.with_flags(""))
            return candidate and _candidate_with_compiler_options(candidate, point)
        number, maker = self._makers[point]
        try:
            schedule = maker()
            if schedule is None:
                return None
            schedule = select_instructions(schedule, self.task.target)
            candidate = _priced_candidate(self.task, point, number, Choice(schedule, lower(schedule.func)))
        except (MicrocError, RecursionError):  # the schedule steps cannot be applied to this function
            return None
        return candidate if candidate.code <= MAX_CODE_BYTES else None

    def mutate(self, point: Point, generator: random.Random) -> Point:
        """Return a neighbour of a point, in which one decision has another value. Compiler options stay the same.

        If the point has no neighbour, a random point of the space is returned.
        """
        if point.flags:
            return self.mutate(point.with_flags(""), generator).with_flags(point.flags)
        positions = list(range(len(point.values)))
        generator.shuffle(positions)
        for position in positions if point in self else ():
            near = [
                other
                for other in self._points_by_other_decisions[_decisions_without(point, position)]
                if _differ_at_position(point, other, position)
            ]
            if near:
                return generator.choice(near)
        return generator.choice(self.points)

    def cross(self, one: Point, other: Point, generator: random.Random) -> Point:
        """Return a point that combines decisions of two points with the same algorithm and rule.

        If the points differ in algorithm or rule, or the combination is not in the space, ``one`` is returned.
        """
        if one[:2] != other[:2] or len(one.decisions) != len(other.decisions):
            return one
        pairs = zip(one.decisions, other.decisions, strict=True)
        child = Point(one.algorithm, one.rule, tuple(generator.choice(pair) for pair in pairs))
        return child if child in self else one

    @cached_property
    def _points_by_other_decisions(self) -> Mapping[Any, list[Point]]:
        """The points that agree in all decisions but one, by a key of the decisions in which they agree."""
        lines: dict[Any, list[Point]] = defaultdict(list)
        for point in self.points:
            for position in range(len(point.values)):
                lines[_decisions_without(point, position)].append(point)
        return lines


def _decisions_without(point: Point, position: int) -> Any:
    """Return a key of all decisions of a point except the decision at ``position``.

    If the algorithm or the rule is left out, so are the decisions of the rule, because their meaning depends on it.
    """
    values = point.values
    if position < 2:
        return position, values[1 - position]
    return position, values[:position], values[position + 1 :]


def _differ_at_position(first: Point, second: Point, position: int) -> bool:
    """Test whether two points that agree in all other decisions differ in the decision at ``position``."""
    return first != second if position >= 2 else first[position] != second[position]


def _flatten_decisions(decisions: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return the decisions of a rule as names and plain values.

    A decision that is a dataclass, such as a tile, becomes one decision for each field. Some fields are left out if
    they have their default value.
    """
    parts_: list[tuple[str, Any]] = []
    for name, value in decisions.items():
        if is_dataclass(value):
            parts = [(f, getattr(value, f.name)) for f in fields(value)]
            parts_ += [(f"{name}.{f.name}", part) for f, part in parts if f.metadata != MOSTLY or part != f.default]
        else:
            parts_.append((name, value))
    return tuple(parts_)


def _verify_candidate(candidate: Candidate, index_tables: Container[str]) -> Candidate | None:
    """Return the candidate if the verifier accepts it, else None. A candidate may be invalid, because rules may be the
    user's.

    ``index_tables``: names of the constants whose elements may be used as indices, as the verifier accepts them.
    """
    try:
        verify(candidate.choice.func, tables=index_tables)
    except MicrocError:
        return None
    return candidate._replace(choice=replace(candidate.choice, verified=True))


def _candidate_with_compiler_options(base_candidate: Candidate, point: Point) -> Candidate:
    """Return a candidate with the loops of ``base_candidate`` and the compiler options of ``point``."""
    schedule = base_candidate.choice.schedule.compile_with(point.flags)
    func = replace(base_candidate.choice.func, annotations=schedule.func.annotations)
    return base_candidate._replace(point=point, choice=replace(base_candidate.choice, schedule=schedule, func=func))


def _priced_candidate(task: Task, point: Point, algorithm_index: int, choice: Choice) -> Candidate:
    """Create a candidate with the costs that the cost model estimates. ``algorithm_index``: index of its algorithm in
    the task."""
    cost = estimate(choice.func, task.target)
    scratch = choice.func.params[len(task.lowered[algorithm_index].func.params) :]
    workspace = sum(p.nbytes for p in scratch)
    return Candidate(
        point, algorithm_index, choice, cost.instructions, cost.code_bytes, constant_bytes(choice.schedule), workspace
    )


# ---- Candidates that are created from schedule steps alone, as records and batches of a fleet contain them.


def replay_candidate(task: Task, point: Point, trace: Iterable[Step]) -> Candidate:
    """Return the candidate of a kernel with the given schedule steps, without estimated costs.

    Raises MicrocError if the steps cannot be applied to the kernel.
    """
    number, choice = replay_on_algorithm(task.lowered, point.algorithm, trace, point.rule)
    scratch = choice.func.params[len(task.lowered[number].func.params) :]
    return Candidate(point, number, choice, 0.0, 0, constant_bytes(choice.schedule), sum(p.nbytes for p in scratch))
