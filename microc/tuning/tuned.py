"""A kernel while it is tuned, a region that other people's code can compute, the network as a whole, and what whoever watches is
told of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from microc.driver.tuned.network import Together
from microc.driver.tuned.records import UNTUNED, Record
from microc.driver.tuned.regions import OURS, RegionTask
from microc.driver.tuned.task import Task
from microc.driver.tuned.verdict import Verdict
from microc.frozen import frozen
from microc.tuning.space import Candidate, Point

WINDOW = 3
"""Batches of a kernel that say what its next ones may gain."""
HOPE = 0.05
"""Share of its time that a kernel may still lose by the next batch, over the number of those that it had."""
STALE = 6
"""Batches without a gain after which a kernel is done."""
LEAST, PARTS = 4, 32
"""A kernel's first batches are this part of its space at most, but may always have so many candidates."""
ENOUGH = 0.002
"""A gain that is worth going on for."""


class Candidates(Protocol):
    """What a search is about: a space of schedules, or whose code computes a region."""

    @property
    def points(self) -> Sequence[Point]: ...

    @property
    def default(self) -> Candidate: ...

    def candidate_of(self, record: Record) -> Candidate | None: ...


class Search(Protocol):
    """What proposes candidates, and is told what they took, as :class:`microc.tuning.search.GridSearch` is."""

    @property
    def space(self) -> Candidates: ...

    @property
    def spent(self) -> bool: ...

    def propose(self, count: int) -> list[Candidate]: ...

    def know(self, candidate: Candidate, ticks: float) -> None: ...

    def tell(self, measured: Sequence[tuple[Candidate, float]]) -> None: ...


@dataclass(slots=True, eq=False)
class Tuned:
    """A kernel, or a region, while it is tuned: ``tried`` measurements; ``default`` and ``best`` in ticks,
    ``point`` of the best in words; ``history``: the best after every batch."""

    task: Task
    search: Search
    tried: int = 0
    failed: int = 0
    default: float | None = None
    best: float = float("inf")
    point: str = ""
    history: list[float] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether more measurements are no use."""
        if self.search.spent or (self.history and self.default is None):  # nothing to compare others with
            return True
        last = self.history[-STALE - 1 :]
        return len(last) > STALE and last[0] <= (1 + ENOUGH) * last[-1]

    @property
    def batch(self) -> int:
        """The most measurements at once: the next batch is to learn from this one, so they grow with what is known."""
        return max(LEAST, len(self.search.space.points) // PARTS, self.tried // 2)

    def keep(self, candidate: Candidate, ticks: float) -> None:
        """A measurement that counts."""
        if candidate is self.search.space.default:
            self.default = ticks
        if ticks < self.best:
            self.best, self.point = ticks, str(candidate.point)

    @property
    def worth(self) -> float:
        """Ticks of the network that the next batch may save; any number before the first one."""
        if self.default is None:
            return math.inf
        recent = self.history[-WINDOW:]
        slope = (recent[0] - recent[-1]) / len(recent) if len(recent) > 1 else 0.0
        return self.task.runs * max(slope, HOPE * self.best / (1 + len(self.history)))

    def to_data(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "layers": list(self.task.layers),
            "op": self.task.op,
            "key": self.task.key,
            "points": len(self.search.space.points),
            "measured": self.tried,
            "failed": self.failed,
            "default": self.default,
            "best": self.best if self.default is not None else None,
            "point": self.point,
        }


@frozen
class TunedRegion:
    """A region that other people's code can compute: its measurements, and what all that are known say."""

    task: RegionTask
    tuned: Tuned
    verdict: Verdict

    @property
    def taken(self) -> str:
        """Whose code a compilation takes by these measurements; empty where they do not decide."""
        if self.task.taken.code.differs:
            return OURS
        if not self.verdict.decides:
            return ""
        return self.task.taken.backend.name if self.verdict.theirs_is_less else OURS

    @property
    def why(self) -> str:
        """What else there is to say."""
        why = "" if self.verdict.ours is not None else self.verdict.why
        return "; ".join(filter(None, (self.task.taken.code.differs, why)))

    def to_data(self) -> dict[str, Any]:
        """Plain data, ready for JSON: ticks that are not known are None."""
        return {
            "layers": list(self.task.layers),
            "op": self.task.op,
            "key": self.task.key,
            "backend": self.task.taken.backend.name,
            "pattern": self.task.taken.entry.name,
            "measured": self.tuned.tried,
            "failed": self.tuned.failed,
            "ours": self.verdict.ours,
            "theirs": self.verdict.theirs,
            "taken": self.taken,
            "why": self.why,
        }


@frozen
class TunedNetwork:
    """The network as a whole, as it is compiled without records and with the best combination that was measured of its kernels'
    schedules: ``kernels`` are all that it has."""

    key: str
    together: Together
    kernels: Sequence[Task]

    @property
    def default(self) -> float:
        """Ticks of a run without records."""
        return self.together.untuned.ticks

    @property
    def best(self) -> float:
        """Ticks of a run as a compilation with these records makes it."""
        return self.together.best.ticks

    @property
    def kept(self) -> tuple[str, ...]:
        """The layers of kernels that stay as they were, though something was faster alone: the first layer of each."""
        return tuple(task.name for task in self.kernels if task.key in self.together.kept)

    @property
    def taken(self) -> str:
        """The best combination: the id of its record, or that it is the network without records."""
        return UNTUNED if self.together.best.untuned else self.together.best.id

    def to_data(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {"key": self.key, "default": self.default, "best": self.best, "kept": list(self.kept)}


@frozen
class Event:
    """A batch was measured. ``kernel``: whose it was, as it stands now; ``measured`` of at most ``trials`` in this run;
    ``seconds`` since it began, and how many are ``left`` at this pace, at most; ``lost``: places that failed, in words."""

    kernel: Tuned
    measured: int
    trials: int
    seconds: float
    left: float
    lost: tuple[str, ...]

    def to_data(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "event": "batch",
            "measured": self.measured,
            "trials": self.trials,
            "seconds": round(self.seconds, 3),
            "left": round(self.left, 3),
            "lost": list(self.lost),
            "kernel": self.kernel.to_data(),
        }
