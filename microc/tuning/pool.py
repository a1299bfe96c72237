"""Several places that measure side by side: boards on several ports, or as many emulators.

Each has one batch at a time. A place that fails, since its port hangs or its plug was pulled, is left for good, and its batch is
measured at another one from the start: what it had measured of it is forgotten, so that nothing is told twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue
from threading import Lock

from microc.driver.tuned.task import Task
from microc.errors import DeviceError, MicrocError, ToolError, UsageError
from microc.tuning.runner import Meter, Result
from microc.tuning.space import Candidate


class Pool(Meter):
    """``runners`` with what they are called in messages; all measure in one unit, by one compiler."""

    def __init__(self, runners: Sequence[tuple[str, Meter]]) -> None:
        first = runners[0][1]
        for name, runner in runners:
            if (runner.board, runner.unit, runner.toolchain) != (first.board, first.unit, first.toolchain):
                raise UsageError(
                    f"{name} measures {runner.unit} of {runner.board}, others do not", hint="tune them apart"
                )
        self.board, self.unit, self.toolchain, self.batch = first.board, first.unit, first.toolchain, first.batch
        self._runners = tuple(runners)
        self._free: SimpleQueue[int | None] = SimpleQueue()
        self.places = len(runners)
        self._left = set(range(self.places))
        for place in sorted(self._left):
            self._free.put(place)
        self._changing = Lock()
        self._stopped = False
        self.lost: list[str] = []

    def measure(self, task: Task, candidates: Sequence[Candidate]) -> list[Result]:
        while True:
            place = self._free.get()
            if place is None:
                self._free.put(None)  # for whoever comes next
                raise self._none_left()
            try:
                found = self._runners[place][1].measure(task, candidates)
            except (DeviceError, ToolError, UsageError) as error:
                if self._stopped:
                    raise
                self._lose(place, error)
            else:
                self._free.put(place)
                return found

    def stop(self) -> None:
        self._stopped = True
        for _, runner in self._runners:
            runner.stop()

    def _lose(self, place: int, error: MicrocError) -> None:
        """A place is left; where it was the last one, whoever asks for a place is told so."""
        with self._changing:
            self._left.discard(place)
            self.lost.append(f"{self._runners[place][0]}: {error.what}")
            if not self._left:
                self._free.put(None)

    def _none_left(self) -> DeviceError:
        return DeviceError(
            f"all {self.places} places to measure at have failed",
            where=self.board,
            hint="\n    ".join(("what was measured is kept, and the same command goes on there", *self.lost)),
        )
