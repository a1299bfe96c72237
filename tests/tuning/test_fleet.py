# SPDX-License-Identifier: Apache-2.0
"""A fleet: three workers with four emulated boards, one of them killed in the middle, and a fourth whose emulator does not start;
no record lost, none doubled."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import microc
from microc.compiler.tuned.records import OK, Database
from microc.errors import DeviceError, UsageError
from microc.tuning.tuner import TuningEvent
from tests.tuning.networks import DIGITS

distributed = pytest.importorskip("distributed")
BOARD = "mps2-an386"
PATIENCE = 60.0
pytestmark = pytest.mark.skipif(
    not shutil.which("qemu-system-arm") or not shutil.which("arm-none-eabi-gcc"),
    reason="needs qemu-system-arm and its compiler",
)


def started(stack: ExitStack, *words: str, **variables: str) -> subprocess.Popen[bytes]:
    """A command of Dask, ended with the test."""
    quiet = {"env": {**os.environ, **variables}, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, "-m", *words], **quiet)  # type: ignore[call-overload]
    stack.callback(process.wait)
    stack.callback(process.kill)
    found: subprocess.Popen[bytes] = process
    return found


def until(true: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := true()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    file = tmp_path / "scheduler.json"
    with ExitStack() as stack:
        here = ("--host", "127.0.0.1", "--no-dashboard")
        started(stack, "distributed.cli.dask_scheduler", *here, "--port", "0", "--scheduler-file", str(file))
        until(lambda: file.is_file() and file.stat().st_size)
        address = json.loads(file.read_text())["address"]
        broken = tmp_path / "bin" / "qemu-system-arm"
        broken.parent.mkdir()
        broken.write_text("#!/bin/sh\nexit 1\n")
        broken.chmod(0o755)
        path = os.environ["PATH"]
        desks = (("a", 2, path), ("b", 1, path), ("c", 1, path), ("d", 1, f"{broken.parent}:{path}"))
        workers = [
            started(stack, "distributed.cli.dask_worker", address, *here, "--no-nanny", "--nthreads", str(boards),
                    "--resources", f"{BOARD}={boards}", "--local-directory", str(tmp_path / name), PATH=path)
            for name, boards, path in desks
        ]  # fmt: skip
        with distributed.Client(address, set_as_default=False) as client:
            until(lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == 4)
        yield address, workers


def test_a_worker_that_dies_loses_nothing(cluster: tuple[str, list[subprocess.Popen[bytes]]], tmp_path: Path) -> None:
    address, workers = cluster
    events: list[TuningEvent] = []

    def kill(event: TuningEvent) -> None:
        events.append(event)
        if len(events) == 2:
            workers[0].kill()

    found = microc.tune(
        DIGITS, board=BOARD, fleet=address, trials=60, search="random", records=tmp_path / "r.jsonl", callback=kill
    )
    records = list(Database(tmp_path / "r.jsonl"))
    assert len(records) == sum(k.tried for k in found.kernels) == events[-1].measured == 60
    assert len({(r.key, r.algorithm, r.rule, r.decisions) for r in records}) == 60
    assert {r.status for r in records} == {OK} and {(r.board, r.unit) for r in records} == {(BOARD, "instructions")}
    assert workers[0].poll() is not None and workers[1].poll() is None
    assert len(events[-1].lost) == 1 and "qemu" in events[-1].lost[0]

    with pytest.raises(DeviceError, match="no worker of the fleet offers a board mps2-an500"):
        microc.tune(DIGITS, board="mps2-an500", fleet=address, trials=4)


def test_what_a_fleet_does_not_do() -> None:
    for more in ({"board": BOARD, "port": "A"}, {"board": BOARD, "jobs": 2}, {"target": "native"}):
        with pytest.raises(UsageError, match="boards of its workers"):
            microc.tune(DIGITS, fleet="tcp://127.0.0.1:9", **more)
    with pytest.raises(DeviceError, match="no scheduler answers"):
        microc.tune(DIGITS, board=BOARD, fleet="tcp://127.0.0.1:9")
