"""What a rule is: data that says which functions it suits, what it leaves open, and how it builds a schedule of a choice."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from types import MappingProxyType
from typing import Any

from microc.errors import MicrocError
from microc.frozen import frozen
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target

Decisions = Mapping[str, Any]
"""A value for every name of :attr:`Rule.decisions`."""
Matches = Callable[[Schedule, Target], bool]
"""Whether a rule suits the function that a schedule holds, before any step."""
Domain = Callable[[Schedule, Target, Goal], Sequence[Any]]
"""The values of a decision that are worth comparing for a function, a core and a goal; at least one."""
MOSTLY: Mapping[str, bool] = MappingProxyType({"mostly": True})
"""Of a part of a decision: it has its default in most rules, so that points of a search name it elsewhere only."""


@frozen
class Rule:
    """A way to schedule a family of functions. Every rule that matches gives candidates, one for each choice of its decisions.

    - ``matches(start, target)``: whether it suits the function.
    - ``build(start, target, decisions)``: the schedule; None where the decision comes to nothing for the function.
    - ``decisions``: what it leaves to the cost model, by name. The name of one that is True is shown behind the rule's.
    - ``space``: wider domains of decisions, for a search that measures (:mod:`microc.tuning`); by name, those of ``decisions``
      where it has none.
    - ``lean``: by name of a decision, what makes of its domain one that takes little workspace and more time.
    - ``needs``: features that the core must have.
    - ``over``: rules that cannot win where this one matches, so that they need not be lowered; its file says why.
    """

    name: str
    matches: Matches
    build: Callable[[Schedule, Target, Decisions], Schedule | None]
    decisions: Mapping[str, Domain] = field(default_factory=dict)
    needs: frozenset[str] = frozenset()
    over: tuple[str, ...] = ()
    space: Mapping[str, Domain] = field(default_factory=dict)
    lean: Mapping[str, Callable[[Domain], Domain]] = field(default_factory=dict)

    def suits(self, start: Schedule, target: Target) -> bool:
        """Whether it has schedules for the function on the core."""
        return self.needs <= target.features and self.matches(start, target)

    def lean_schedules(self, start: Schedule, target: Target, goal: Goal) -> Iterator[Schedule]:
        """One for each choice of decisions that take little workspace, where steps make one of it."""
        small = {name: change(self.decisions[name]) for name, change in self.lean.items()}
        for decisions in _choices({**self.decisions, **small}, start, target, goal):
            with suppress(MicrocError):
                made = self.schedule(start, target, decisions)
                if made is not None:
                    yield made

    def schedules(self, start: Schedule, target: Target, goal: Goal) -> Iterator[Schedule]:
        """One for each choice."""
        for decisions in self.choices(start, target, goal):
            made = self.schedule(start, target, decisions)
            if made is not None:
                yield made

    def schedule(self, start: Schedule, target: Target, decisions: Decisions) -> Schedule | None:
        """That of one choice, under the rule's name."""
        made = self.build(start, target, decisions)
        return made and made.named(
            ", ".join((self.name, *(name for name, value in decisions.items() if value is True)))
        )

    def choices(self, start: Schedule, target: Target, goal: Goal) -> Iterator[Decisions]:
        """All that the cost model compares."""
        return _choices(self.decisions, start, target, goal)

    def points(self, start: Schedule, target: Target, goal: Goal) -> Iterator[Decisions]:
        """All choices that a search may make."""
        return _choices({**self.decisions, **self.space}, start, target, goal)


def _choices(domains: Mapping[str, Domain], start: Schedule, target: Target, goal: Goal) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*(domain(start, target, goal) for domain in domains.values())):
        yield dict(zip(domains, values, strict=True))


def matching(rules: Sequence[Rule], start: Schedule, target: Target) -> list[Rule]:
    """Those that suit a function, in their order, less those that others need not be compared with."""
    found = [rule for rule in rules if rule.suits(start, target)]
    beaten = {name for rule in found for name in rule.over}
    return [rule for rule in found if rule.name not in beaten]


def fixed(*values: Any) -> Domain:
    """The same values for every function."""
    return lambda start, target, goal: values
