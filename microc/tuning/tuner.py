"""The loop: a kernel is picked that can still win, its search proposes, a runner measures, the database keeps.

Which kernel comes next follows Ansor's task scheduler (Zheng et al., OSDI 2020, section 6): the one whose next measurements are
worth most to the network, by what the last ones gained, and by how few it had.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from microc.device.info import readable
from microc.driver.tuned.records import OK, Database, Record
from microc.driver.tuned.task import Task
from microc.tuning.model import Model
from microc.tuning.runner import Meter, Result
from microc.tuning.search import SEARCHES, GridSearch
from microc.tuning.space import Candidate, Space

WINDOW = 3
"""Batches of a kernel that say what its next ones may gain."""
HOPE = 0.05
"""Share of its time that a kernel may still lose by the next batch, over the number of those that it had."""
STALE = 6
"""Batches without a gain after which a kernel is done."""
LEAST, PARTS = 4, 32
"""A kernel's first batches are this part of its space at most, but may always have so many candidates."""
LONGEST_NAME = 200
"""Letters of a layer's name in records."""
ENOUGH = 0.002
"""A gain that is worth going on for."""


@dataclass(slots=True, eq=False)
class Tuned:
    """A kernel while it is tuned: ``tried`` measurements; ``default`` and ``best`` in ticks,
    ``point`` of the best in words; ``history``: the best after every batch."""

    task: Task
    search: GridSearch
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
        return len(self.task.layers) * max(slope, HOPE * self.best / (1 + len(self.history)))

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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop: measurements of the whole network, seconds."""

    trials: int
    seconds: float = float("inf")


class Tuner:
    """Tunes the kernels of a network, on as many places as ``runner`` has; ``event`` is told of every batch."""

    def __init__(
        self,
        tasks: Sequence[Task],
        runner: Meter,
        database: Database,
        *,
        model: Model,
        search: str = "evolutionary",
        seed: int = 0,
        event: Callable[[Event], None] | None = None,
    ) -> None:
        self.runner, self.database, self.seed, self.event = runner, database, seed, event
        self.kernels = [Tuned(task, SEARCHES[search](Space(task), seed, model)) for task in tasks]
        self.spent = 0

    def run(self, limits: Limits) -> None:
        """Measure until a limit, or until nothing is left to win. What was measured is in the database whatever ends this."""
        begin = time.monotonic()
        end = begin + limits.seconds
        for each in self.kernels:
            self._recall(each)
        with ThreadPoolExecutor(self.runner.places) as pool:
            running: dict[Future[list[Result]], Tuned] = {}
            try:
                while True:
                    while len(running) < self.runner.places and time.monotonic() < end:
                        batch = self._batch(limits.trials, running.values())
                        if batch is None:
                            break
                        each, candidates = batch
                        running[pool.submit(self.runner.measure, each.task, candidates)] = each
                    if not running:
                        return
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        each = running.pop(future)
                        self._keep(each, future.result())
                        self._tell(each, limits, time.monotonic() - begin)
            finally:
                self.runner.stop()

    def _recall(self, each: Tuned) -> None:
        """What earlier runs measured on the same board, by the same compiler."""
        runner = self.runner
        for record in self.database.of(each.task.key):
            if (record.board, record.unit, record.toolchain) != (runner.board, runner.unit, runner.toolchain):
                continue
            candidate = each.search.space.candidate_of(record) if record.status == OK else None
            if candidate is not None:
                each.search.know(candidate, record.ticks)
                each.keep(candidate, record.ticks)

    def _batch(self, trials: int, busy: Collection[Tuned]) -> tuple[Tuned, list[Candidate]] | None:
        """What is measured next; None where nothing is."""
        if trials <= self.spent:
            return None
        open_ = [k for k in self.kernels if not k.done and (k not in busy or k.default is not None)]
        for each in sorted(open_, key=lambda k: (k in busy, -k.worth)):
            found = each.search.propose(min(self.runner.batch, each.batch, trials - self.spent))
            if found:
                self.spent += len(found)
                return each, found
        return None

    def _keep(self, each: Tuned, results: Sequence[Result]) -> None:
        """Results into the database, the search and the progress."""
        self.database.add(self._record(each.task, result) for result in results)
        good = [result for result in results if result.status == OK]
        each.search.tell([(result.candidate, result.ticks) for result in good])
        each.tried += len(results)
        each.failed += len(results) - len(good)
        for result in good:
            each.keep(result.candidate, result.ticks)
        each.history.append(each.best)

    def _tell(self, each: Tuned, limits: Limits, seconds: float) -> None:
        """Whoever watches of a kernel's batch."""
        if self.event is not None:
            measured = sum(kernel.tried for kernel in self.kernels)
            left = seconds * (limits.trials - measured) / max(1, measured)
            left = max(0.0, min(left, limits.seconds - seconds))
            self.event(Event(each, measured, limits.trials, seconds, left, tuple(self.runner.lost)))

    def _record(self, task: Task, result: Result) -> Record:
        candidate, runner = result.candidate, self.runner
        return Record(
            key=task.key,
            op=task.op,
            layer=readable(task.name, LONGEST_NAME),
            cpu=task.target.cpu,
            board=runner.board,
            toolchain=runner.toolchain,
            unit=runner.unit,
            status=result.status,
            algorithm=candidate.point.algorithm,
            rule=candidate.point.rule,
            decisions=candidate.point.decisions,
            trace=candidate.choice.schedule.trace,
            ticks=result.ticks,
            code=result.code or candidate.code,
            constants=candidate.constants,
            workspace=candidate.workspace,
            seed=self.seed,
        )
