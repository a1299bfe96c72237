"""What a worker of a fleet does: a batch of candidates, as plain data, measured on a board of its desk.

What comes is text and a graph in microc's own format: nothing of it runs, and steps are checked as those of a record are. Which
port the boards are on says the worker's own environment, :data:`PORT`, never the one who asks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from microc import __version__
from microc.device.boards import list_boards, load_board
from microc.driver.compile.kernel import algorithms_of
from microc.driver.tuned.task import NAME, Task
from microc.errors import MicrocError, UsageError
from microc.frontend.graph_file import read
from microc.schedule.step import Step, frozen_argument
from microc.tuning.on_board import BoardRunner
from microc.tuning.replay import candidate_of
from microc.tuning.space import Point

PORT = "MICROC_PORT"
"""The environment variable of a worker that names the line of its boards; without it they are emulated."""


def described(board: str) -> str:
    """What measures ``board`` here, as JSON: ``unit``, ``toolchain``, ``version``; or ``error``."""
    return _told(lambda: {"unit": _runner(board).unit, "toolchain": _runner(board).toolchain, "version": __version__})


def measured(job: str, graph: bytes) -> str:
    """The results of a batch as JSON: ``results``, or ``error`` where this worker cannot measure. ``job``: JSON of the ``board``,
    the ``features`` of the target, the kernel's ``key``, ``name`` and ``op``, and ``candidates`` by algorithm, rule and steps;
    ``graph``: what they compute (:func:`microc.graph.file.to_bytes`)."""
    return _told(lambda: {"results": _results(json.loads(job), graph)})


def _told(work: Callable[[], Mapping[str, Any]]) -> str:
    from distributed import get_worker

    found: Mapping[str, Any]
    try:
        found = work()
    except MicrocError as error:
        found = {"error": error.what}
    return json.dumps({**found, "worker": get_worker().address})


def _results(job: Mapping[str, Any], graph: bytes) -> list[dict[str, Any]]:
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
