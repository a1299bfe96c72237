"""The loop: a kernel is picked that can still win, its search proposes, a runner measures, the database keeps.

Which kernel comes next follows Ansor's task scheduler (Zheng et al., OSDI 2020, section 6): the one whose next measurements are
worth most to the network, by what the last ones gained, and by how few it had.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import copy_context

from microc.device.info import readable
from microc.driver.tuned.records import OK, Database, Record
from microc.driver.tuned.regions import RegionTask
from microc.driver.tuned.task import Task
from microc.driver.tuned.verdict import verdict_of
from microc.frozen import frozen
from microc.tuning.model import Model
from microc.tuning.regions import RegionSearch
from microc.tuning.runner import Meter, Result, foreign
from microc.tuning.search import SEARCHES
from microc.tuning.space import Candidate, Space
from microc.tuning.tuned import Event, Tuned, TunedRegion

LONGEST_NAME = 200
"""Letters of a layer's name in records."""


@frozen
class Limits:
    """When to stop: measurements of the whole network, seconds."""

    trials: int
    seconds: float = float("inf")


class Tuner:
    """Tunes the kernels of a network, on as many places as ``runner`` has; ``event`` is told of every batch. ``regions`` that
    other people's code can compute are measured before all kernels, and ours once more behind them, where it has got faster."""

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
        regions: Sequence[RegionTask] = (),
    ) -> None:
        self.runner, self.database, self.seed, self.event = runner, database, seed, event
        self.kernels = [Tuned(task, SEARCHES[search](Space(task), seed, model)) for task in tasks]
        self._searches = [RegionSearch(task) for task in regions]
        self.regions = [Tuned(search.task, search) for search in self._searches]
        self.spent = 0

    def run(self, limits: Limits) -> None:
        """Measure until a limit, or until nothing is left to win. What was measured is in the database whatever ends this."""
        begin = time.monotonic()
        for each in (*self.kernels, *self.regions):
            self._recall(each)
        try:
            self._renew()
            self._measure(self.regions, limits, begin, limits.trials, limits.seconds)
            regions = time.monotonic() - begin  # which they may take again
            kept = min(len(self.regions), limits.trials - self.spent)
            self._measure(self.kernels, limits, begin, limits.trials - kept, limits.seconds - regions)
            self._renew()
            self._measure(self.regions, limits, begin, limits.trials, limits.seconds)
        finally:
            self.runner.stop()

    def _measure(self, among: Sequence[Tuned], limits: Limits, begin: float, trials: int, seconds: float) -> None:
        """Some kernels, until so many measurements were spent in all, or so many seconds after the beginning. One batch more than
        there are places is proposed, so that none waits while the next one is lowered."""
        end = begin + seconds
        with ThreadPoolExecutor(self.runner.places) as pool:
            running: dict[Future[list[Result]], Tuned] = {}
            try:
                while True:
                    while len(running) <= self.runner.places and time.monotonic() < end:
                        batch = self._batch(among, trials, running.values())
                        if batch is None:
                            break
                        each, candidates = batch
                        known = copy_context()  # a thread of the pool begins without the plugins of this one
                        running[pool.submit(known.run, self.runner.measure, each.task, candidates)] = each
                    if not running:
                        return
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        each = running.pop(future)
                        self._keep(each, future.result())
                        self._tell(each, limits, time.monotonic() - begin)
                    if time.monotonic() >= end:
                        running = {future: each for future, each in running.items() if not future.cancel()}
            except BaseException:
                self.runner.stop()  # before the pool waits for what is running
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def whose(self) -> tuple[TunedRegion, ...]:
        """What is known of the regions."""
        pairs = zip(self._searches, self.regions, strict=True)
        return tuple(
            TunedRegion(search.task, each, verdict_of(search.task, self.database, self.runner.board))
            for search, each in pairs
        )

    def _renew(self) -> None:
        """Let regions have our code by the best schedules that are known."""
        for search, each in zip(self._searches, self.regions, strict=True):
            search.renew(self._here)
            self._recall(each)

    def _here(self, key: str) -> list[Record]:
        """Records of a kernel that were measured where this is."""
        runner = self.runner
        where = (runner.board, runner.unit, runner.toolchain)
        return [r for r in self.database.of(key) if (r.board, r.unit, r.toolchain) == where]

    def _recall(self, each: Tuned) -> None:
        """What earlier runs measured on the same board, by the same compiler."""
        for record in self._here(each.task.key):
            candidate = each.search.space.candidate_of(record) if record.status == OK else None
            if candidate is not None:
                each.search.know(candidate, record.ticks)
                each.keep(candidate, record.ticks)

    def _batch(
        self, among: Sequence[Tuned], trials: int, busy: Collection[Tuned]
    ) -> tuple[Tuned, list[Candidate]] | None:
        """What is measured next; None where nothing is. Where all places are taken, nothing of a kernel that is being measured:
        it would learn nothing of that."""
        if trials <= self.spent:
            return None
        ahead = len(busy) >= self.runner.places
        open_ = [k for k in among if not k.done and (k not in busy or (k.default is not None and not ahead))]
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
            measured = sum(kernel.tried for kernel in (*self.kernels, *self.regions))
            left = seconds * (limits.trials - measured) / max(1, measured)
            left = max(0.0, min(left, limits.seconds - seconds))
            self.event(Event(each, measured, limits.trials, seconds, left, tuple(self.runner.lost)))

    def _record(self, task: Task, result: Result) -> Record:
        candidate, runner = result.candidate, self.runner
        measured = 0 if foreign(candidate) else result.code  # of theirs the kernel's symbol has the call alone
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
            code=measured or candidate.code,
            constants=candidate.constants,
            workspace=candidate.workspace,
            seed=self.seed,
        )
