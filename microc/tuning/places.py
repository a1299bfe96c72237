# SPDX-License-Identifier: Apache-2.0
"""Create the meter of a search, which measures at one place (a board or a process) or at several in parallel; and
measure one record again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any

from microc.compiler.model import registers_plugins
from microc.compiler.tuned.measured_regions import RegionTask
from microc.compiler.tuned.records import FROM_RAM, Record, Task, open_records
from microc.device.emulators import ELF
from microc.device.transport import is_remote
from microc.errors import DeviceError, MicrocError, ToolError, UsageError
from microc.target import Board, Target
from microc.tuning.candidate_image import rebuild_candidate_of_region_record
from microc.tuning.on_board import BoardRunner, LoadRunner
from microc.tuning.on_host import HostRunner, Yardsticks
from microc.tuning.runner import MeasuredResult, Meter
from microc.tuning.search_space import Candidate, Point, replay_candidate
from microc.tuning.tuner import find_board_and_core, list_regions_for_external_code, parse_options_and_list_tasks

# ---- Several places that measure in parallel: boards on several ports, several emulators, or several processes.
#
# Each place measures one batch at a time. A place that fails, for example because its board was unplugged, is not used again.
# Its batch is measured again at another place from the start. Results that it had already are dropped, so that none is
# reported twice.


class MeterPool(Meter):
    """Meter that distributes batches over several meters, which measure in parallel.

    ``runners``: the meters, each with its name for messages. All must have the same board name, unit of time and
    compiler.
    """

    def __init__(self, runners: Sequence[tuple[str, Meter]]) -> None:
        first = runners[0][1]
        for name, runner in runners:
            if runner.origin != first.origin:
                raise UsageError(
                    f"ports: {name} measures {runner.unit} of {runner.board}, expected {first.unit} of {first.board} "
                    "and the same compiler, as at the first port",
                    hint="use only boards of the same name, compiler and clock",
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

    def measure(self, task: Task, candidates: Sequence[Candidate]) -> list[MeasuredResult]:
        while True:
            place = self._free.get()
            if place is None:
                self._free.put(None)  # wakes the next waiting caller
                raise self._make_none_left_error()
            try:
                found = self._runners[place][1].measure(task, candidates)
            except (DeviceError, ToolError, UsageError) as error:
                if self._stopped:
                    raise
                self._drop_place(place, error)
            else:
                self._free.put(place)
                return found

    def stop(self) -> None:
        self._stopped = True
        for _, runner in self._runners:
            runner.stop()

    def _drop_place(self, place_index: int, error: MicrocError) -> None:
        """Remove a place (a board or process) that failed, so that it is not used again. If no place is left, all
        waiting callers are woken to raise an error."""
        with self._changing:
            self._left.discard(place_index)
            self.lost.append(f"{self._runners[place_index][0]}: {error.what}")
            if not self._left:
                self._free.put(None)

    def _make_none_left_error(self) -> DeviceError:
        """Create the error for a pool in which all places failed. It lists the reasons."""
        return DeviceError(
            f"all {self.places} boards or processes that measure have failed",
            where=self.board,
            hint="\n    ".join(
                ("repair them and run the command again: it continues after the measurements so far", *self.lost)
            ),
        )


# ---- The meter of a search: this computer, emulators of a board, or boards on ports.


def make_meter(
    board: Board | None, target: Target, ports: Sequence[str], jobs: int, *, load_into_ram: bool = False
) -> Meter:
    """Return the meter that measures on ``board`` or, if it is None, on this computer compiled for ``target``.

    ``ports``: ports of boards; an empty one means the emulator. ``jobs``: number of emulators, programs or processes
    that run in parallel. ``load_into_ram``: flash each board once, and load candidates into its RAM. Raises UsageError
    if several jobs would share a port.
    """
    lines = [port for port in ports if port]
    runner_class = LoadRunner if load_into_ram else BoardRunner
    if board is None:
        if load_into_ram:
            raise UsageError("--load requires a board; got none", hint="name the board: --board BOARD")
        if lines:
            raise UsageError(
                f"--port requires a board; got {', '.join(lines)} and no board",
                hint="name the board: --board BOARD --port PORT",
            )
        yardsticks = Yardsticks()
        return _combine_meters([(f"process {k + 1}", HostRunner(target, yardsticks, k)) for k in range(jobs)])
    if not lines:
        return _combine_meters([(f"emulator {number}", runner_class(board)) for number in range(1, jobs + 1)])
    remote = [line for line in lines if is_remote(line)]
    if remote and not load_into_ram:
        raise UsageError(
            f"--port: a board behind microc serve cannot be flashed from here; got {', '.join(remote)} without --load",
            hint="serve a project that was compiled with --protocol tuning, and load candidates into its RAM: --load",
        )
    single = [line for line in lines if ELF not in line]
    if len(set(single)) < len(single):
        raise UsageError(
            f"--port: a port is named twice; got {', '.join(single)}", hint="name the port of each board once"
        )
    if jobs > 1 and single:
        raise UsageError(
            f"--jobs: got {jobs} for {', '.join(single)}, expected 1, since a port has one board",
            hint="name the port of each board: --port A --port B",
        )
    return _combine_meters([(line, runner_class(board, line)) for line in lines for _ in range(jobs)])


def _combine_meters(named_meters: Sequence[tuple[str, Meter]]) -> Meter:
    """Return the meter if there is only one, else a pool of all meters. ``named_meters``: each meter with its name for
    messages."""
    return MeterPool(named_meters) if len(named_meters) > 1 else named_meters[0][1]


# ---- Measuring the schedule of a single record again.


@registers_plugins
def measure_record(
    model: Any,
    target: str = "",
    *,
    board: str | Path | Board | None = None,
    records: Path,
    record_id_prefix: str,
    port: str = "",
    **options: Any,
) -> tuple[Record, MeasuredResult, str]:
    """Measure the schedule of the record whose id begins with ``record_id_prefix`` again.

    Return the record, the new result, and its unit of time. Raises UsageError if the file ``records`` contains no such
    record or if the network has no such kernel.
    """
    matching = [each for each in open_records(records) if record_id_prefix and each.id.startswith(record_id_prefix)]
    if not matching:
        raise UsageError(
            f"--repeat: there is no record whose id begins with {record_id_prefix!r}",
            where=str(records),
            hint=f"choose an id that this command lists: microc tune --show {shlex.quote(str(records))}",
        )
    place, core = find_board_and_core(target, board)
    chosen, tasks = parse_options_and_list_tasks(model, core, place, options)
    all_tasks = (*tasks, *list_regions_for_external_code(model, core, chosen))
    task = next((each for each in all_tasks if each.key == matching[-1].key), None)
    if task is None:
        raise UsageError(
            f"record {record_id_prefix}: the network has no such kernel as {matching[-1].op} of layer {matching[-1].layer}",
            where=str(records),
            hint="give the model, the board and the options with which it was tuned",
        )
    meter = make_meter(place, core, [port], 1, load_into_ram=matching[-1].board.endswith(FROM_RAM))
    (result,) = meter.measure(task, [_rebuild_candidate_of_record(task, matching[-1])])
    return matching[-1], result, meter.unit


def _rebuild_candidate_of_record(task: Task, record: Record) -> Candidate:
    """Return the candidate that a record of a kernel or region measured, so that it can be measured again."""
    if isinstance(task, RegionTask):
        return rebuild_candidate_of_region_record(task, record)
    return replay_candidate(task, Point(record.algorithm, record.rule, record.decisions), record.trace)
