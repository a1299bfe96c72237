"""Boards on many desks, by Dask Distributed."""

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
from microc.compiler.lowering.kernel_selection import algorithms_of
from microc.compiler.tuned.records import FAILED, NAME, OK, WRONG, Task
from microc.device.board_info import readable
from microc.device.boards import list_boards, load_board
from microc.errors import DeviceError, MicrocError, UsageError
from microc.frontend.graph_file import read
from microc.graph.file import to_bytes
from microc.schedule.primitives.tree import Step, frozen_argument
from microc.target import Board
from microc.tuning.on_board import BoardRunner
from microc.tuning.runner import Meter, Result
from microc.tuning.search_space import Candidate, Point, candidate_of

# ---- What a worker of a fleet does: a batch of candidates, as plain data, measured on a board of its desk.
#
# What comes is text and a graph in microc's own format: nothing of it runs, and steps are checked as those of a record are. Which
# port the boards are on says the worker's own environment, :data:`PORT`, never the one who asks.

PORT = "MICROC_PORT"
"""The environment variable of a worker that names the line of its boards; without it they are emulated."""


def described(board: str) -> str:
    """What measures ``board`` here, as JSON: ``unit``, ``toolchain``, ``version``; or ``error``."""
    return _told(lambda: {"unit": _runner(board).unit, "toolchain": _runner(board).toolchain, "version": __version__})


def measured(job: str, graph: bytes) -> str:
    """The results of a batch as JSON: ``results``, or ``error`` where this worker cannot measure. ``job``: JSON of the ``board``,
    the ``features`` of the target, the kernel's ``key``, ``name`` and ``op``, and ``candidates`` by algorithm, rule and steps;
    ``graph``: what they compute (:func:`microc.graph.file.to_bytes`)."""
    return _told(lambda: {"results": _fleet_worker_results(json.loads(job), graph)})


def _told(work: Callable[[], Mapping[str, Any]]) -> str:
    from distributed import get_worker

    found: Mapping[str, Any]
    try:
        found = work()
    except MicrocError as error:
        found = {"error": error.what}
    return json.dumps({**found, "worker": get_worker().address})


def _fleet_worker_results(job: Mapping[str, Any], graph: bytes) -> list[dict[str, Any]]:
    runner, task = _runner(job["board"]), _task(job, graph)
    candidates = [
        candidate_of(
            task,
            Point(given["algorithm"], given["rule"], ()),
            tuple(Step(row[0], tuple(map(frozen_argument, row[1:]))) for row in given["steps"]),
        )
        for given in job["candidates"]
    ]
    found = runner.measure(task, candidates)
    return [{"status": r.status, "ticks": r.ticks, "code": r.code, "detail": r.detail} for r in found]


def _task(job: Mapping[str, Any], data: bytes) -> Task:
    """The kernel; UsageError where this microc makes another one of it."""
    graph = read(data, "kernel", {})
    target = load_board(job["board"]).target.having(*job["features"])
    lowered = algorithms_of(graph, graph.nodes, target, NAME)
    task = Task(graph, (job["name"],), job["op"], target, 1, lowered, ())
    if task.key != job["key"]:
        raise UsageError(
            f"microc {__version__} of this worker makes another kernel of it", hint="the same microc everywhere"
        )
    return task


@cache
def _runner(board: str) -> BoardRunner:
    if board not in list_boards():
        raise UsageError("the board is none that comes with microc", hint="microc boards")
    return BoardRunner(load_board(board), os.environ.get(PORT, ""))


# ---- Many boards on many desks: workers of Dask Distributed offer them as resources, a search sends them batches
# (docs/tuning.md).
#
# What travels is plain data. Records are written here alone, once a batch has come back whole; a batch whose worker died is given
# to another by the scheduler, one whose board failed by us.

CONNECT, GRACE, POLL = 10, 30.0, 1.0
"""Seconds to reach the scheduler; for a worker to come back once there is none; between looks at a batch."""


class Fleet(Meter):
    """The boards named as ``board`` of all workers behind the scheduler at ``address``."""

    def __init__(self, address: str, board: Board) -> None:
        if find_spec("distributed") is None:
            raise UsageError("a fleet needs Dask Distributed", hint="pip install 'microc[fleet]'")
        if board.name not in list_boards():
            raise UsageError("a fleet knows boards by their names", where=board.name, hint="one of `microc boards`")
        from distributed import Client

        self.board = board.name
        try:
            self._client = Client(address, timeout=CONNECT, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise DeviceError(f"no scheduler answers: {error}", where=address, hint="dask scheduler") from error
        self._failed: dict[str, str] = {}
        self._changing = Lock()
        self._stopped = False
        workers = self._workers()
        if not workers:
            raise self._nobody()
        self.places = sum(workers.values())
        self.unit, self.toolchain = self._agreed(list(workers))

    @property
    def lost(self) -> Sequence[str]:  # type: ignore[override]
        """Workers whose boards failed."""
        return [f"{worker}: {why}" for worker, why in list(self._failed.items())]

    def measure(self, task: Task, candidates: Sequence[Candidate]) -> list[Result]:
        job, graph = self._job(task, candidates), to_bytes(task.graph)
        while True:
            answer, worker = self._answer(job, graph)
            if "error" not in answer:
                return _results(candidates, answer)
            with self._changing:
                self._failed[worker] = readable(str(answer["error"]), 200)

    def stop(self) -> None:
        """Nothing more is sent; what workers have begun they end, unheard."""
        self._stopped = True
        self._client.close(timeout=CONNECT)

    def _workers(self) -> Mapping[str, int]:
        """How many of the boards each worker offers, by address; without those that failed."""
        known = self._client.scheduler_info(n_workers=-1)["workers"]
        offers = {name: int(each.get("resources", {}).get(self.board, 0)) for name, each in known.items()}
        return {name: count for name, count in offers.items() if count and name not in self._failed}

    def _agreed(self, workers: Sequence[str]) -> tuple[str, str]:
        """The unit and the toolchain that all workers have; UsageError where they differ."""
        futures = [
            self._client.submit(described, self.board, workers=[worker], resources={self.board: 1}, pure=False)
            for worker in workers
        ]
        found = [json.loads(text) for text in self._client.gather(futures)]
        for worker, each in zip(workers, found, strict=True):
            if "error" in each or each["version"] != __version__:
                why = each.get("error") or f"it has microc {each['version']}, here is {__version__}"
                raise UsageError(f"a worker cannot measure: {readable(why, 200)}", where=worker, hint="mend or end it")
            if (each["unit"], each["toolchain"]) != (found[0]["unit"], found[0]["toolchain"]):
                raise UsageError("workers have different compilers or units", where=worker, hint="tune them apart")
        return readable(found[0]["unit"]), readable(found[0]["toolchain"], 200)

    def _answer(self, job: str, graph: bytes) -> tuple[Mapping[str, Any], str]:
        """What a worker says of a batch, and which one; DeviceError once there has been none for some time."""
        last = time.monotonic()
        while not self._stopped:
            workers = self._workers()
            if workers:
                text = self._from_one_of(workers, job, graph)
                if text is not None:
                    answer = json.loads(text)
                    return answer, str(answer["worker"])
                last = time.monotonic()
            elif time.monotonic() - last > GRACE:
                raise self._nobody()
            time.sleep(POLL)
        raise DeviceError("the search was ended")

    def _from_one_of(self, workers: Mapping[str, int], job: str, graph: bytes) -> str | None:
        """What one of these workers says; None where all of them have gone."""
        from distributed import CancelledError, KilledWorker
        from distributed import TimeoutError as Late

        resources = {self.board: 1}
        future = self._client.submit(measured, job, graph, workers=list(workers), resources=resources, pure=False)
        while True:
            try:
                return str(future.result(timeout=POLL))
            except Late:
                if not self._stopped and workers.keys() & self._workers().keys():
                    continue
                future.cancel()
                return None
            except CancelledError:
                return None
            except KilledWorker as error:
                raise DeviceError(
                    "several workers died of one batch",
                    where=self.board,
                    hint="do they run out of memory? Their logs say",
                ) from error

    def _job(self, task: Task, candidates: Sequence[Candidate]) -> str:
        """A batch as the text that travels."""
        given = [
            {
                "algorithm": each.point.algorithm,
                "rule": each.point.rule,
                "steps": [[step.primitive, *step.args] for step in each.choice.schedule.trace],
            }
            for each in candidates
        ]
        kernel = {"key": task.key, "name": task.name, "op": task.op, "features": sorted(task.target.features)}
        return json.dumps({"board": self.board, **kernel, "candidates": given})

    def _nobody(self) -> DeviceError:
        workers = f'dask worker ADDRESS --no-nanny --resources "{self.board}=1"'
        return DeviceError(
            f"no worker of the fleet offers a board {self.board}",
            where=self.board,
            hint="\n    ".join((f"start some: {workers}", *self.lost)),
        )


def _results(candidates: Sequence[Candidate], answer: Mapping[str, Any]) -> list[Result]:
    """What a worker says of each candidate, which is no more trusted than a board."""
    told = answer["results"]
    if len(told) != len(candidates) or any(each["status"] not in (OK, WRONG, FAILED) for each in told):
        raise DeviceError("a worker answers nonsense", hint="the same microc everywhere")
    return [
        Result(candidate, each["status"], float(each["ticks"]), int(each["code"]), readable(str(each["detail"]), 200))
        for candidate, each in zip(candidates, told, strict=True)
    ]
