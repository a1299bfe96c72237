"""Many boards on many desks: workers of Dask Distributed offer them as resources, a search sends them batches (docs/tuning.md).

What travels is plain data. Records are written here alone, once a batch has come back whole; a batch whose worker died is given
to another by the scheduler, one whose board failed by us.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from threading import Lock
from typing import Any

from microc import __version__
from microc.device.boards import list_boards
from microc.device.info import readable
from microc.driver.tuned.records import FAILED, OK, WRONG
from microc.driver.tuned.task import Task
from microc.errors import DeviceError, UsageError
from microc.graph.file import to_bytes
from microc.target import Board
from microc.tuning.fleet_worker import described, measured
from microc.tuning.runner import Meter, Result
from microc.tuning.space import Candidate

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
