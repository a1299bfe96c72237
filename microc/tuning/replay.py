"""A kernel's schedule by its steps alone, as records and batches of a fleet have it."""

from __future__ import annotations

from collections.abc import Iterable

from microc.driver.compile.kernel import replayed
from microc.driver.tuned.task import Task
from microc.errors import UsageError
from microc.schedule.choose import constant_bytes
from microc.schedule.step import Step
from microc.tuning.space import Candidate, Point


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
