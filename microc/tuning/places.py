"""Where a search measures, side by side; one record measured once more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any

from microc.compiler.model import knows_plugins
from microc.compiler.tuned.measured_regions import RegionTask
from microc.compiler.tuned.records import FROM_RAM, Record, Task, records_of
from microc.device.emulators import ELF
from microc.errors import DeviceError, MicrocError, ToolError, UsageError
from microc.target import Board, Target
from microc.tuning.candidate_image import region_candidate
from microc.tuning.on_board import BoardRunner, LoadRunner
from microc.tuning.on_host import HostRunner, Yardsticks
from microc.tuning.runner import Meter, Result
from microc.tuning.search_space import Candidate, Point, candidate_of
from microc.tuning.tuner import place_of, regions_for, tasks_for

# ---- Several places that measure side by side: boards on several ports, or as many emulators.
#
# Each has one batch at a time. A place that fails, since its port hangs or its plug was pulled, is left for good, and its batch
# is measured at another one from the start: what it had measured of it is forgotten, so that nothing is told twice.


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


# ---- Where a search measures: on this computer, on emulators of a board, or on boards behind ports.


def meter_for(board: Board | None, target: Target, ports: Sequence[str], jobs: int, *, load: bool = False) -> Meter:
    """What measures on ``board``, or on this computer as ``target``; ``ports``: its lines, one that is empty is its emulator;
    ``jobs``: how many emulators, programs or processes run at once; ``load``: boards are flashed once, and candidates loaded.
    UsageError for a line that several would share."""
    lines = [port for port in ports if port]
    kind = LoadRunner if load else BoardRunner
    if board is None:
        if load:
            raise UsageError("this computer loads no code over a line", hint="--load is for boards: --board BOARD")
        if lines:
            raise UsageError(
                "this computer has no port to measure on", hint="name the board: --board BOARD --port PORT"
            )
        yardsticks = Yardsticks()
        return _pooled([(f"process {k + 1}", HostRunner(target, yardsticks, k)) for k in range(jobs)])
    if not lines:
        return _pooled([(f"emulator {number}", kind(board)) for number in range(1, jobs + 1)])
    single = [line for line in lines if ELF not in line]
    if len(set(single)) < len(single):
        raise UsageError("a port is named twice", where=", ".join(single), hint="name the port of each board once")
    if jobs > 1 and single:
        raise UsageError(
            f"{jobs} jobs cannot share a port, which has one board",
            hint="name the port of each board: --port A --port B",
        )
    return _pooled([(line, kind(board, line)) for line in lines for _ in range(jobs)])


def _pooled(runners: Sequence[tuple[str, Meter]]) -> Meter:
    """One by itself, several as a pool."""
    return Pool(runners) if len(runners) > 1 else runners[0][1]


# ---- One record's schedule, measured once more.


@knows_plugins
def repeat(
    model: Any,
    target: str = "",
    *,
    board: str | Path | Board | None = None,
    records: Path,
    record: str,
    port: str = "",
    **options: Any,
) -> tuple[Record, Result, str]:
    """Measure the schedule of the record whose number begins with ``record`` again: the record, what became of it now, the unit.

    UsageError where the file has no such record, or the network no such kernel."""
    found = [each for each in records_of(records) if record and each.id.startswith(record)]
    if not found:
        raise UsageError(
            f"there is no record {record!r}", where=str(records), hint="microc tune --show FILE lists failures"
        )
    place, core = place_of(target, board)
    chosen, tasks = tasks_for(model, core, place, options)
    every = (*tasks, *regions_for(model, core, chosen))
    task = next((each for each in every if each.key == found[-1].key), None)
    if task is None:
        raise UsageError(
            f"the network has no kernel of record {record}: {found[-1].layer}, {found[-1].op}",
            where=str(records),
            hint="give the model, the board and the options that it was tuned with",
        )
    meter = meter_for(place, core, [port], 1, load=found[-1].board.endswith(FROM_RAM))
    (result,) = meter.measure(task, [_candidate(task, found[-1])])
    return found[-1], result, meter.unit


def _candidate(task: Task, record: Record) -> Candidate:
    if isinstance(task, RegionTask):
        return region_candidate(task, record)
    return candidate_of(task, Point(record.algorithm, record.rule, record.decisions), record.trace)
