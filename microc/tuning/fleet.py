# SPDX-License-Identifier: Apache-2.0
"""Meters at several places: fleets of boards in a Dask Distributed cluster, and the meter of a search."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any

from microc import __version__
from microc.base.operating_system import quote_argument
from microc.compiler.lowering.kernel_selection import group_algorithms
from microc.compiler.model import registers_plugins
from microc.compiler.tuned.measured_regions import RegionTask
from microc.compiler.tuned.records import FAILED, FROM_RAM, NAME, OK, WRONG, Record, Task, open_records
from microc.device.board_info import make_printable
from microc.device.boards import list_boards, load_board
from microc.device.emulators import ELF
from microc.device.transport import is_remote
from microc.errors import DeviceError, MicrocError, ToolError, UsageError
from microc.frontend.graph_file import read_graph_file
from microc.graph.file import to_bytes
from microc.run.profile import CYCLES
from microc.schedule.primitives.tree import Step, freeze_argument
from microc.target import Board, Target
from microc.tuning.candidate_image import rebuild_candidate_of_region_record
from microc.tuning.meters import BoardRunner, HostRunner, LoadRunner, Yardsticks
from microc.tuning.runner import MeasuredResult, Meter
from microc.tuning.search_space import Candidate, Point, replay_candidate
from microc.tuning.tuner import find_board_and_core, list_regions_for_external_code, parse_options_and_list_tasks

# ---- Functions that run on a worker of a fleet. They measure a batch of candidates on a board that is attached to the worker.
#
# A worker receives only text and a graph in microc's own format. Nothing of this is executed, and schedule steps are checked like
# those of a record. The port of the boards is set in the worker's own environment (:data:`PORT`), never by the client.

PORT = "MICROC_PORT"
"""Environment variable with the port of a worker's boards. If it is not set, the boards are emulated."""


def describe_worker_board(board: str) -> str:
    """Return a description of how this worker measures ``board``, as JSON: ``unit``, ``toolchain``, ``version``; or
    ``error``."""
    return _run_and_answer_as_json(
        lambda: {
            "unit": _runner_of_worker_board(board).unit,
            "toolchain": _runner_of_worker_board(board).toolchain,
            "version": __version__,
        }
    )


def measure_batch_on_worker(job: str, graph: bytes) -> str:
    """Measure a batch of candidates on this worker, and return JSON: ``results``, or ``error`` if the worker cannot
    measure.

    ``job``: JSON that contains the ``board``, the ``features`` of the target, the kernel's ``key``, ``name`` and
    ``op``, and the ``candidates`` as algorithm, rule and schedule steps. ``graph``: the kernel as a graph
    (:func:`microc.graph.file.to_bytes`).
    """
    return _run_and_answer_as_json(lambda: {"results": _measure_job(json.loads(job), graph)})


def _run_and_answer_as_json(work: Callable[[], Mapping[str, Any]]) -> str:
    """Return the result of the function ``work``, or the text of its error, as JSON that also contains the worker's
    address."""
    from distributed import get_worker

    answer: Mapping[str, Any]
    try:
        answer = work()
    except MicrocError as error:
        answer = {"error": error.what}
    return json.dumps({**answer, "worker": get_worker().address})


def _measure_job(job: Mapping[str, Any], graph: bytes) -> list[dict[str, Any]]:
    """Measure the candidates of a batch on this worker, and return the results as plain data."""
    runner, task = _runner_of_worker_board(job["board"]), _rebuild_task_of_job(job, graph)
    candidates = [
        replay_candidate(
            task,
            Point(entry["algorithm"], entry["rule"], ()),
            tuple(Step(row[0], tuple(map(freeze_argument, row[1:]))) for row in entry["steps"]),
        )
        for entry in job["candidates"]
    ]
    results = runner.measure(task, candidates)
    return [{"status": r.status, "ticks": r.ticks, "code": r.code, "detail": r.detail} for r in results]


def _rebuild_task_of_job(job: Mapping[str, Any], data: bytes) -> Task:
    """Return the kernel of a batch as a tuning task. ``data``: the kernel's graph as bytes.

    Raises UsageError if this version of microc lowers the kernel differently than the client's version.
    """
    graph = read_graph_file(data, "kernel", {})
    target = load_board(job["board"]).target.with_features(*job["features"])
    lowered = group_algorithms(graph, graph.nodes, target, NAME)
    task = Task(graph, (job["name"],), job["op"], target, 1, lowered, ())
    if task.key != job["key"]:
        raise UsageError(
            f"{task.name}: microc {__version__} of this worker lowers the kernel to another function than the client",
            hint="install the same version of microc on this computer and on all workers",
        )
    return task


@cache
def _runner_of_worker_board(board: str) -> BoardRunner:
    """Return the runner that measures on a board of this worker. There is one for each process. Raises UsageError for
    an unknown board."""
    if board not in list_boards():
        raise UsageError(
            f"fleet: unknown board; got {make_printable(board)}, expected a board that comes with microc",
            hint="choose a board that microc boards lists",
        )
    return BoardRunner(load_board(board), os.environ.get(PORT, ""))


# ---- Functions that run on the client. Workers of Dask Distributed offer boards as resources, and a search sends batches of
# candidates to the workers (docs/tuning.md).
#
# Only plain data is sent. The client writes the records of a batch after it has received all results of the batch. If a worker
# dies, the Dask scheduler sends its batch to another worker. If a board fails, the client does so.

CONNECT_SECONDS, GRACE_SECONDS, POLL_SECONDS = 10, 30.0, 1.0
"""Times in seconds: to connect to the scheduler (CONNECT_SECONDS), to wait for a worker if there is none
(GRACE_SECONDS), and between two polls for the results of a batch (POLL_SECONDS)."""


class Fleet(Meter):
    """Meter that measures candidates on the boards of all workers of a Dask scheduler. ``board``: the type of board to
    measure on."""

    def __init__(self, address: str, board: Board) -> None:
        if find_spec("distributed") is None:
            raise UsageError("fleet: Dask Distributed is not installed", hint='install it: pip install "microc[fleet]"')
        if board.name not in list_boards():
            raise UsageError(
                f"fleet: got a board file of your own, {board.name}, expected a board that comes with microc",
                hint="choose a board that microc boards lists",
            )
        from distributed import Client

        self.board = board.name
        try:
            self._client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise DeviceError(
                f"fleet: no scheduler answers: {error}", where=address, hint="start one: dask scheduler"
            ) from error
        self._failed: dict[str, str] = {}
        self._changing = Lock()
        self._stopped = False
        workers = self._count_boards_by_worker()
        if not workers:
            raise self._make_no_worker_error()
        self.places = sum(workers.values())
        self.unit, self.toolchain = self._query_common_unit_and_toolchain(list(workers))

    @property
    def lost(self) -> Sequence[str]:  # type: ignore[override]
        """The workers whose boards failed, with the reasons."""
        return [f"{worker}: {why}" for worker, why in list(self._failed.items())]

    def measure(self, task: Task, candidates: Sequence[Candidate]) -> list[MeasuredResult]:
        job, graph = self._format_job_as_json(task, candidates), to_bytes(task.graph)
        while True:
            answer, worker = self._measure_on_some_worker(job, graph)
            if "error" not in answer:
                return _convert_worker_answer(candidates, answer)
            with self._changing:
                self._failed[worker] = make_printable(str(answer["error"]), 200)

    def stop(self) -> None:
        """Send no more batches. Results of running batches are ignored."""
        self._stopped = True
        self._client.close(timeout=CONNECT_SECONDS)

    def _count_boards_by_worker(self) -> Mapping[str, int]:
        """Return the number of boards that each worker offers, by the worker's address. Workers that failed are left
        out."""
        known = self._client.scheduler_info(n_workers=-1)["workers"]
        offers = {name: int(worker.get("resources", {}).get(self.board, 0)) for name, worker in known.items()}
        return {name: count for name, count in offers.items() if count and name not in self._failed}

    def _query_common_unit_and_toolchain(self, workers: Sequence[str]) -> tuple[str, str]:
        """Query unit and toolchain from all workers, and return them; raise UsageError if workers differ or if a worker
        cannot measure."""
        futures = [
            self._client.submit(
                describe_worker_board, self.board, workers=[worker], resources={self.board: 1}, pure=False
            )
            for worker in workers
        ]
        answers = [json.loads(text) for text in self._client.gather(futures)]
        for worker, answer in zip(workers, answers, strict=True):
            if "error" in answer or answer["version"] != __version__:
                why = answer.get("error") or f"got microc {answer['version']}, expected {__version__}"
                raise UsageError(
                    f"fleet: a worker cannot measure: {make_printable(why, 200)}",
                    where=worker,
                    hint="repair or stop the worker",
                )
            if (answer["unit"], answer["toolchain"]) != (answers[0]["unit"], answers[0]["toolchain"]):
                raise UsageError(
                    "fleet: workers have different compilers or units; "
                    f"got {make_printable(answer['toolchain'], 200)} in {make_printable(answer['unit'])}, "
                    f"expected {make_printable(answers[0]['toolchain'], 200)} in {make_printable(answers[0]['unit'])}",
                    where=worker,
                    hint="use only workers with the same compiler and the same unit of time",
                )
        return make_printable(answers[0]["unit"]), make_printable(answers[0]["toolchain"], 200)

    def _measure_on_some_worker(self, job: str, graph: bytes) -> tuple[Mapping[str, Any], str]:
        """Return a worker's answer to a batch, and the worker's address.

        Raises DeviceError if no worker is available for GRACE_SECONDS seconds.
        """
        last = time.monotonic()
        while not self._stopped:
            workers = self._count_boards_by_worker()
            if workers:
                text = self._wait_for_answer(workers, job, graph)
                if text is not None:
                    answer = json.loads(text)
                    return answer, str(answer["worker"])
                last = time.monotonic()
            elif time.monotonic() - last > GRACE_SECONDS:
                raise self._make_no_worker_error()
            time.sleep(POLL_SECONDS)
        raise DeviceError("fleet: the search was stopped")

    def _wait_for_answer(self, workers: Mapping[str, int], job: str, graph: bytes) -> str | None:
        """Send a batch to one of these workers, and return its answer; return None if all of these workers have left
        the cluster."""
        from distributed import CancelledError, KilledWorker
        from distributed import TimeoutError as Late

        resources = {self.board: 1}
        future = self._client.submit(
            measure_batch_on_worker, job, graph, workers=list(workers), resources=resources, pure=False
        )
        while True:
            try:
                return str(future.result(timeout=POLL_SECONDS))
            except Late:
                if not self._stopped and workers.keys() & self._count_boards_by_worker().keys():
                    continue
                future.cancel()
                return None
            except CancelledError:
                return None
            except KilledWorker as error:
                raise DeviceError(
                    "fleet: several workers stopped while they measured the same batch",
                    where=self.board,
                    hint="read their logs: they may have run out of memory",
                ) from error

    def _format_job_as_json(self, task: Task, candidates: Sequence[Candidate]) -> str:
        """Return a batch of candidates as JSON for a worker."""
        candidate_data = [
            {
                "algorithm": candidate.point.algorithm,
                "rule": candidate.point.rule,
                "steps": [[step.primitive, *step.args] for step in candidate.choice.schedule.trace],
            }
            for candidate in candidates
        ]
        kernel = {"key": task.key, "name": task.name, "op": task.op, "features": sorted(task.target.features)}
        return json.dumps({"board": self.board, **kernel, "candidates": candidate_data})

    def _make_no_worker_error(self) -> DeviceError:
        """Create the error that no worker of the fleet offers the board."""
        workers = f'dask worker ADDRESS --no-nanny --resources "{self.board}=1"'
        return DeviceError(
            f"no worker of the fleet offers a board {self.board}",
            where=self.board,
            hint="\n    ".join((f"start one: {workers}", *self.lost)),
        )


def _convert_worker_answer(candidates: Sequence[Candidate], answer: Mapping[str, Any]) -> list[MeasuredResult]:
    """Convert a worker's answer to the results of a batch. The answer is checked, because a worker is not trusted."""
    answers = answer["results"]
    if len(answers) != len(candidates) or any(entry["status"] not in (OK, WRONG, FAILED) for entry in answers):
        raise DeviceError(
            "fleet: a worker returned results that do not belong to its batch of candidates",
            hint="install the same version of microc on this computer and on all workers",
        )
    return [
        MeasuredResult(
            candidate,
            entry["status"],
            float(entry["ticks"]),
            int(entry["code"]),
            make_printable(str(entry["detail"]), 200),
        )
        for candidate, entry in zip(candidates, answers, strict=True)
    ]


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
    board: Board | None,
    target: Target,
    ports: Sequence[str],
    jobs: int,
    *,
    load_into_ram: bool = False,
    cycles: bool = False,
) -> Meter:
    """Return the meter that measures on ``board`` or, if it is None, on this computer compiled for ``target``.

    ``ports``: ports of boards; an empty one means the emulator. ``jobs``: number of emulators, programs or processes
    that run in parallel. ``load_into_ram``: flash each board once, and load candidates into its RAM. ``cycles``: measure
    cycles in the board's emulator or simulator instead of time. Raises UsageError if several jobs would share a port, or
    if the board has no cycles.
    """
    if cycles and (board is None or load_into_ram):
        raise UsageError(
            "--measure cycles counts in the emulator of a board, in flash; "
            f"got {'--load' if load_into_ram else 'this computer'}",
            hint="leave out --load" if load_into_ram else "name a board instead of --target: --board BOARD",
        )
    lines = [port for port in ports if port]
    runner_class = LoadRunner if load_into_ram else partial(BoardRunner, cycles=cycles)
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
            hint=f"choose an id that this command lists: microc tune --show {quote_argument(str(records))}",
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
    from_ram, cycles = matching[-1].board.endswith(FROM_RAM), matching[-1].unit == CYCLES
    meter = make_meter(place, core, [port], 1, load_into_ram=from_ram, cycles=cycles)
    (result,) = meter.measure(task, [_rebuild_candidate_of_record(task, matching[-1])])
    return matching[-1], result, meter.unit


def _rebuild_candidate_of_record(task: Task, record: Record) -> Candidate:
    """Return the candidate that a record of a kernel or region measured, so that it can be measured again."""
    if isinstance(task, RegionTask):
        return rebuild_candidate_of_region_record(task, record)
    return replay_candidate(task, Point(record.algorithm, record.rule, record.decisions), record.trace)
