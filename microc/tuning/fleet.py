# SPDX-License-Identifier: Apache-2.0
"""Measure candidates on a fleet of boards, which are attached to the workers of a Dask Distributed cluster."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from threading import Lock
from typing import Any

from microc import __version__
from microc.compiler.lowering.kernel_selection import group_algorithms
from microc.compiler.tuned.records import FAILED, NAME, OK, WRONG, Task
from microc.device.board_info import make_printable
from microc.device.boards import list_boards, load_board
from microc.errors import DeviceError, MicrocError, UsageError
from microc.frontend.graph_file import read_graph_file
from microc.graph.file import to_bytes
from microc.schedule.primitives.tree import Step, freeze_argument
from microc.target import Board
from microc.tuning.on_board import BoardRunner
from microc.tuning.runner import MeasuredResult, Meter
from microc.tuning.search_space import Candidate, Point, replay_candidate

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
            raise UsageError("fleet: Dask Distributed is not installed", hint="install it: pip install 'microc[fleet]'")
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
