"""Regions that other people's code can compute, while they are measured: theirs beside ours, and ours once more when its kernels
have better schedules.

They are no spaces to search: there is one theirs, and of ours what the rules choose for each goal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from microc.driver.tuned.records import SOURCES, UNTUNED, Record
from microc.driver.tuned.regions import OURS, Ours, RegionTask, best_code, repeated_code
from microc.external.kernel import function
from microc.ops.lowering import Param
from microc.schedule.choose import Choice
from microc.schedule.cost import estimate
from microc.schedule.schedule import Schedule
from microc.tuning.space import Candidate, Point, Whole

_TUNED = (("kernels", "tuned"),)
"""What is decided of ours with the best schedules that are known."""


class RegionSpace:
    """The candidates of a region, as :class:`microc.tuning.space.Space` has those of a kernel: ours first, theirs last."""

    def __init__(self, task: RegionTask) -> None:
        self.task = task
        found: dict[object, Candidate] = {}
        for ours in task.ours:
            made = ours_candidate(task, ours, ((UNTUNED, ours.goal.name),))
            found.setdefault(made.choice.func.body, made)
        self.candidates = [*found.values(), theirs_candidate(task)]

    @property
    def points(self) -> Sequence[Point]:
        return [each.point for each in self.candidates]

    @property
    def default(self) -> Candidate:
        """Ours, as it is compiled without records."""
        return self.candidates[0]

    def candidate_of(self, record: Record) -> Candidate | None:
        """What a record tells of; None where it is of other code than there is today."""
        if record.theirs:
            return self.candidates[-1] if record.theirs == self.task.digest else None
        return next((each for each in self.candidates[:-1] if each.choice.schedule.trace == record.trace), None)

    def domains(self) -> Mapping[str, tuple[Any, ...]]:
        """What may be chosen."""
        return {"code": tuple(map(_words, self.candidates))}


def _words(candidate: Candidate) -> str:
    goal = dict(candidate.point.decisions).get(UNTUNED)
    return f"{candidate.point}, for {goal}" if goal else str(candidate.point)


class RegionSearch:
    """Proposes every candidate of a region once."""

    def __init__(self, task: RegionTask) -> None:
        self.task, self.space = task, RegionSpace(task)
        self.waiting = list(self.space.candidates)

    @property
    def spent(self) -> bool:
        return not self.waiting

    def propose(self, count: int) -> list[Candidate]:
        """At most so many candidates that were never proposed."""
        found, self.waiting = self.waiting[:count], self.waiting[count:]
        return found

    def know(self, candidate: Candidate, ticks: float) -> None:
        """A measurement of an earlier run."""
        self.waiting = [each for each in self.waiting if each is not candidate]

    def tell(self, measured: Sequence[tuple[Candidate, float]]) -> None:
        """Nothing is learned from what candidates took."""

    def renew(self, records: Callable[[str], Sequence[Record]]) -> None:
        """Propose ours with the fastest schedules of its kernels, where these are others than before; ``records(key)``: those of
        a kernel where this is measured."""
        task = self.task
        best = best_code(task, records)
        if all(each.choice.schedule.trace != best.trace for each in self.space.candidates[:-1]):
            made = ours_candidate(task, best, _TUNED)
            self.space.candidates.insert(-1, made)
            self.waiting.append(made)


def region_candidate(task: RegionTask, record: Record) -> Candidate:
    """What a record of a region tells of, to be measured again; MicrocError where its steps make no code of ours."""
    return (
        theirs_candidate(task)
        if record.theirs
        else ours_candidate(task, repeated_code(task, record.trace), record.decisions)
    )


def ours_candidate(task: RegionTask, ours: Ours, decisions: tuple[tuple[str, Any], ...]) -> Candidate:
    """Our code for a region."""
    func, params = ours.control.func, ours.control.params
    cost = estimate(func, task.target)
    scratch = func.params[len(params) + len(task.graph.outputs) :]
    choice = Choice(Schedule(func, ours.trace, ours.rule), func)
    workspace = sum(each.nbytes for each in scratch)
    point = Point(OURS, ours.rule, decisions)
    return Candidate(point, 0, choice, cost.instructions, cost.code_bytes, ours.constants, workspace, Whole(params))


def theirs_candidate(task: RegionTask) -> Candidate:
    """The backend's code for a region."""
    taken, code = task.taken, task.taken.code
    func, external = function(taken)
    inputs = [Param(f"in_{k}", name) for k, name in enumerate(task.graph.nodes[0].inputs)]
    data = [Param(role, "", array.reshape(-1)) for role, array in code.data.items()]
    bound = inf if code.differs else taken.backend.bound
    whole = Whole((*inputs, *data), external, code.align, bound)
    decisions: tuple[tuple[str, Any], ...] = ((SOURCES, task.digest), ("version", task.sources.version))
    point = Point(taken.backend.name, taken.entry.name, decisions)
    constants = sum(array.nbytes for array in code.data.values())
    choice = Choice(Schedule(func), func)
    return Candidate(point, 0, choice, code.instructions, code.code_bytes, constants, code.workspace, whole)
