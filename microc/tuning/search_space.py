"""The space of a kernel's schedules, and replay by steps alone."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from microc.compiler.lowering.kernel_selection import replayed
from microc.compiler.tuned.records import UNTUNED, Record, Task
from microc.errors import MicrocError, UsageError
from microc.module import External
from microc.ops.lowering import Param
from microc.schedule.choose import Choice, constant_bytes
from microc.schedule.cost.cost_model import estimate
from microc.schedule.primitives.tree import Step
from microc.schedule.rules import OURS, RULES
from microc.schedule.rules.around_rules import begun, with_instructions
from microc.schedule.rules.rule import MOSTLY
from microc.schedule.schedule import Schedule
from microc.target import SPEED
from microc.tir.lower import lower
from microc.tir.names import FLAGS
from microc.tir.verify import verify

# ---- The space of a kernel: for every algorithm, every rule that suits it, every choice of the rule's decisions, one
# point.
#
# A point is data: it is written into records, and building it again gives the same schedule. Two points are neighbours if they
# differ in one decision.

MOST = 1 << 14
"""Points of a kernel; of a larger product of domains the first so many are the space."""
LONGEST = 24 << 10
"""Bytes of code by the cost model from which on a candidate is none: it would take the C compiler minutes."""


class Point(NamedTuple):
    """An algorithm and a rule by name, and the parts of the rule's decisions: ``(("tile.rows", 4), ...)``."""

    algorithm: str
    rule: str
    decisions: tuple[tuple[str, Any], ...]

    @property
    def values(self) -> tuple[tuple[str, Any], ...]:
        """Everything that is decided, by name."""
        return (("algorithm", self.algorithm), ("rule", self.rule), *self.decisions)

    @property
    def flags(self) -> str:
        """The compiler's options for this kernel; empty where it is compiled as its file is."""
        return next((value for name, value in self.decisions if name == FLAGS), "")

    def with_flags(self, flags: str) -> Point:
        """The same with other options."""
        plain = tuple(each for each in self.decisions if each[0] != FLAGS)
        return self._replace(decisions=(*plain, (FLAGS, flags)) if flags else plain)

    def __str__(self) -> str:
        parts = ", ".join(
            f"{name.rpartition('.')[2]} {value}"
            for name, value in self.decisions
            if value not in ("", False) and name != UNTUNED
        )
        return f"{self.algorithm}: {self.rule}" + (f" ({parts})" if parts else "")


Way = Callable[[], Schedule | None]
"""How a point's schedule is made; None where a decision comes to nothing for the function."""


class Whole(NamedTuple):
    """What a candidate of a region is beside its function: what parameters are bound to, all but results and workspaces; other
    people's code in the place of the function's loops, its alignment, and what floats may differ by, a share of the largest
    (infinite: integers differ, too, and nobody says by how much)."""

    params: tuple[Param, ...]
    external: External | None = None
    align: int = 0
    bound: float = 0.0


class Candidate(NamedTuple):
    """A point that a kernel can have: its schedule, its lowered function, what the cost model says of it. ``whole``: of a region
    alone."""

    point: Point
    number: int
    choice: Choice
    instructions: float
    code: int
    constants: int
    workspace: int
    whole: Whole | None = None


class Space:
    """All points of a task, the default first; candidates are built when they are asked for, once.

    Each of them, and what the compiler takes by itself, may have :attr:`flags` of the C compiler beside; such points count
    as they are, but are none of :attr:`points`: a search comes to them from points that are fast already.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.flags = task.flags
        self._ways: dict[Point, tuple[int, Way]] = {}
        self._built: dict[Point, Candidate | None] = {}
        for number, algorithm in enumerate(task.algorithms):
            for rule, decisions, way in itertools.islice(self._choices(number), MOST - len(self._ways)):
                self._ways.setdefault(Point(algorithm, rule, _parts(decisions)), (number, way))

    def _choices(self, number: int) -> Iterator[tuple[str, Mapping[str, Any], Way]]:
        """What the rules may do with an algorithm's function: a rule, its decisions, and the way to the schedule. Of rules that
        others beat only their own choices: some take less code."""
        group, target = self.task.lowered[number], self.task.target
        start = begun(group.func, target)
        suited = [rule for rule in OURS if rule.suits(start, target)]
        beaten = {name for rule in suited for name in rule.over}
        for rule in suited:
            choices = rule.choices if rule.name in beaten else rule.points
            for decisions in choices(start, target, SPEED):
                yield rule.name, decisions, partial(rule.schedule, start, target, decisions)
        for name, own in RULES.items():
            for variant, schedule in enumerate(own.schedules(group.func, group.anchor.op, target)):
                yield name, {"variant": variant}, partial(Schedule.named, schedule, name)

    def __contains__(self, point: object) -> bool:
        if isinstance(point, Point) and point.flags in self.flags:
            plain = point.with_flags("")
            return plain in self._ways or any(plain == each.point for each in self.untuned)
        return point in self._ways

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """All of them, in the order of algorithms and rules."""
        return tuple(self._ways)

    @cached_property
    def default(self) -> Candidate:
        """What is compiled without records."""
        return self.untuned[0]

    @cached_property
    def untuned(self) -> tuple[Candidate, ...]:
        """That, what rules choose where it comes with the compiler, and what is for other goals, each once."""
        found: dict[object, Candidate] = {}
        for goal, number, choice in self.task.untuned:
            point = Point(self.task.algorithms[number], choice.schedule.rule or "as written", ((UNTUNED, goal),))
            found.setdefault((number, choice.func.body), _candidate(self.task, point, number, choice))
        return tuple(found.values())

    def candidate_of(self, record: Record) -> Candidate | None:
        """What a record tells of; None where the space has no such kernel any more."""
        if record.untuned:
            same = (record.algorithm, record.trace)
            return next((c for c in self.untuned if (c.point.algorithm, c.choice.schedule.trace) == same), None)
        point = Point(record.algorithm, record.rule, record.decisions)
        return self.candidate(point) if point in self else None

    def domains(self) -> Mapping[str, tuple[Any, ...]]:
        """The values that each decision takes somewhere in the space."""
        found: dict[str, dict[Any, None]] = defaultdict(dict)
        for point in self.points:
            for name, value in point.values:
                found[name].setdefault(value)
        return {name: tuple(values) for name, values in found.items()}

    def candidate(self, point: Point) -> Candidate | None:
        """A point as a kernel; None where there is no such schedule."""
        found = self.priced(point)
        if found is not None and not found.choice.verified:
            found = self._built[point] = _verified(found, self.task.lowered[found.number].tables)
        return found

    def priced(self, point: Point) -> Candidate | None:
        """The same before the verifier has seen it: most are dearer than others, and need not be right."""
        if point not in self._built:
            self._built[point] = self._build(point)
        return self._built[point]

    def candidate_at(self, point: Point) -> Candidate | None:
        """The same, where a point may be what the compiler takes by itself, too."""
        return next((each for each in self.untuned if each.point == point), None) or self.candidate(point)

    def flagged(self, point: Point) -> list[Point]:
        """The same with each of the options."""
        return [point.with_flags(flags) for flags in self.flags]

    def _build(self, point: Point) -> Candidate | None:
        if point.flags:
            found = self.candidate_at(point.with_flags(""))
            return found and _compiled_with(found, point)
        number, way = self._ways[point]
        try:
            schedule = way()
            if schedule is None:
                return None
            schedule = with_instructions(schedule, self.task.target)
            found = _candidate(self.task, point, number, Choice(schedule, lower(schedule.func)))
        except (MicrocError, RecursionError):  # steps that do not fit this function
            return None
        return found if found.code <= LONGEST else None

    def mutated(self, point: Point, draw: random.Random) -> Point:
        """A neighbour of a point: one of its decisions changed; where none of them can be, any other point. Options stay."""
        if point.flags:
            return self.mutated(point.with_flags(""), draw).with_flags(point.flags)
        places = list(range(len(point.values)))
        draw.shuffle(places)
        for place in places if point in self else ():
            near = [other for other in self._lines[_without(point, place)] if _differ(point, other, place)]
            if near:
                return draw.choice(near)
        return draw.choice(self.points)

    def crossed(self, one: Point, other: Point, draw: random.Random) -> Point:
        """A point that has its decisions from two of one algorithm and rule; ``one`` where there is no such point."""
        if one[:2] != other[:2] or len(one.decisions) != len(other.decisions):
            return one
        pairs = zip(one.decisions, other.decisions, strict=True)
        child = Point(one.algorithm, one.rule, tuple(draw.choice(pair) for pair in pairs))
        return child if child in self else one

    @cached_property
    def _lines(self) -> Mapping[Any, list[Point]]:
        """Points by all but one of their decisions."""
        found: dict[Any, list[Point]] = defaultdict(list)
        for point in self.points:
            for place in range(len(point.values)):
                found[_without(point, place)].append(point)
        return found


def _without(point: Point, place: int) -> Any:
    """All decisions but one; without the rule or the algorithm the others mean something else, and do not count."""
    values = point.values
    if place < 2:
        return place, values[1 - place]
    return place, values[:place], values[place + 1 :]


def _differ(one: Point, other: Point, place: int) -> bool:
    """Whether two points that are alike but for one decision differ in that."""
    return one != other if place >= 2 else one[place] != other[place]


def _parts(decisions: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Decisions as plain values: those of a tile or a walk one by one."""
    found: list[tuple[str, Any]] = []
    for name, value in decisions.items():
        if is_dataclass(value):
            parts = [(f, getattr(value, f.name)) for f in fields(value)]
            found += [(f"{name}.{f.name}", part) for f, part in parts if f.metadata != MOSTLY or part != f.default]
        else:
            found.append((name, value))
    return tuple(found)


def _verified(candidate: Candidate, tables: Container[str]) -> Candidate | None:
    """Return a candidate that the verifier accepts, else None; ``tables``: as it takes them, for rules may be the user's."""
    try:
        verify(candidate.choice.func, tables=tables)
    except MicrocError:
        return None
    return candidate._replace(choice=replace(candidate.choice, verified=True))


def _compiled_with(plain: Candidate, point: Point) -> Candidate:
    """The same loops, for which the compiler has options of their own."""
    schedule = plain.choice.schedule.compile_with(point.flags)
    func = replace(plain.choice.func, annotations=schedule.func.annotations)
    return plain._replace(point=point, choice=replace(plain.choice, schedule=schedule, func=func))


def _candidate(task: Task, point: Point, number: int, choice: Choice) -> Candidate:
    cost = estimate(choice.func, task.target)
    scratch = choice.func.params[len(task.lowered[number].func.params) :]
    workspace = sum(p.nbytes for p in scratch)
    return Candidate(
        point, number, choice, cost.instructions, cost.code_bytes, constant_bytes(choice.schedule), workspace
    )


# ---- A kernel's schedule by its steps alone, as records and batches of a fleet have it.


def candidate_of(task: Task, point: Point, trace: Iterable[Step]) -> Candidate:
    """A kernel's schedule by its steps, ready to be measured, not priced; MicrocError where they make none."""
    number = next((n for n, name in enumerate(task.algorithms) if name == point.algorithm), None)
    if number is None:
        raise UsageError(
            f"{task.name} has no algorithm {point.algorithm!r}", hint="it is of another microc: tune again"
        )
    choice = replayed(task.lowered[number], trace, point.rule)
    scratch = choice.func.params[len(task.lowered[number].func.params) :]
    return Candidate(point, number, choice, 0.0, 0, constant_bytes(choice.schedule), sum(p.nbytes for p in scratch))
