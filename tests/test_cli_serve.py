# SPDX-License-Identifier: Apache-2.0
"""``microc serve`` as a user calls it: another process serves a board, and the commands use it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.cli import main
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_network
from microc.compiler.tuned.records import FAILED, OK, list_tuning_tasks
from microc.device.boards import load_board
from microc.device.transport import TOKEN
from microc.errors import UsageError
from microc.target import target_for
from microc.tuning.meters import LoadRunner
from tests.support import digits
from tests.tuning.test_loaded import hanging
from tests.tuning.test_regions import layer
from tests.tuning.test_runners import candidates, emulated

SECRET = "the-token-of-this-test"
BOARD = "mps2-an386"


@contextmanager
def serving(project: Path) -> Iterator[dict[str, Any]]:
    """A server of a project's board, and the line that it prints at the start. At the end it gets Ctrl-C."""
    command = [sys.executable, "-m", "microc", "serve", str(project), "--token", "-", "--json"]
    with subprocess.Popen(
        command,
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whoever runs the tests may have it ignored
    ) as running:
        assert running.stdin is not None and running.stdout is not None
        try:
            running.stdin.write(SECRET)
            running.stdin.close()
            start = json.loads(running.stdout.readline())
            yield start
            running.send_signal(signal.SIGINT)
            assert running.wait(20) == 0
            last = json.loads(running.stdout.read())
            assert last.pop("clients") > 0 and last == start
        finally:
            running.kill()


@pytest.fixture
def outputs(capsys: pytest.CaptureFixture[str]) -> Any:
    """What ``microc run`` prints, without what a computer's clock says."""

    def call(*words: str) -> Any:
        capsys.readouterr()
        assert main(["run", *words, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        if found["board"] == "host":
            found = {name: value for name, value in found.items() if name not in ("time", "seconds", "ticks")}
        return found

    return call


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent as a signal")


def test_a_served_board_equals_a_direct_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], outputs: Any
) -> None:
    project = tmp_path / "firmware"
    microc.compile(digits.INT8, board="host").write(project)
    direct = outputs(str(project))
    monkeypatch.setenv(TOKEN, SECRET)
    monkeypatch.chdir(tmp_path)
    with serving(project) as start:
        address = start["address"]
        assert start["host"] == "127.0.0.1" and start["board"] == "host" and start["token"] is None
        assert outputs(str(project), "--port", address) == direct
        assert main(["verify", str(project), "--port", address, "--samples", "1"]) == 0
        capsys.readouterr()
        image = digits.images(1)[0]
        with (
            microc.Device(address) as remote,
            microc.Device(project) as local,
        ):  # which finds the project in this folder
            assert np.array_equal(remote.run(image), local.run(image)) and not remote.emulated
            assert main(["run", str(project), "--port", address]) == 6 and "busy" in capsys.readouterr().err
        monkeypatch.setenv(TOKEN, SECRET[::-1])
        assert main(["run", str(project), "--port", address]) == 6
        told = capsys.readouterr().err
        assert "refuses the token" in told and SECRET not in told and SECRET[::-1] not in told
        monkeypatch.delenv(TOKEN)
        assert main(["run", str(project), "--port", address]) == 2 and TOKEN in capsys.readouterr().err
        assert main(["flash", str(project), "--port", address]) == 2
        assert "cannot be flashed from here" in capsys.readouterr().err
        tune = ["tune", str(digits.INT8), "--board", "nucleo-f446re", "--port", address]
        assert main(tune) == 2 and "--load" in capsys.readouterr().err
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((start["host"], start["port"]), 1)


@pytest.mark.cross
@pytest.mark.emulator
@emulated
def test_an_emulated_board_runs_and_tunes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outputs: Any) -> None:
    """Instructions are the same; a candidate that hangs costs itself alone, since the server starts the emulator anew."""
    project = tmp_path / "firmware"
    microc.compile(layer(), board=BOARD, protocol="tuning").write(project)
    monkeypatch.setenv(TOKEN, SECRET)
    with serving(project) as start:
        assert start["emulated"] and start["board"] == BOARD
        direct = outputs(str(project))
        assert outputs(str(project), "--port", start["address"]) == direct and direct["instructions"]
        with pytest.raises(UsageError, match=f"the server has '{BOARD}'"):
            LoadRunner(load_board("microbit"), start["address"])
        runner = LoadRunner(load_board(BOARD), start["address"], patience=1.0)
        try:
            assert runner.unit == "instructions"
            network = compile_network(layer(), target_for("cortex-m4"), make_options(optimize="speed"))
            (task,) = list_tuning_tasks(network)
            first, second, third = candidates(task, 2)
            results = runner.measure(task, [first, hanging(second), third])
            assert [result.status for result in results] == [OK, FAILED, OK]
        finally:
            runner.stop()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--quiet"], "--quiet requires --token"),
        (["--token", "absent"], "--token: cannot read the token"),
        (["--token", "short"], "expected 16 to 128 printable ASCII characters"),
        (["--port", "99999"], "expected a TCP port"),
        (["--port", "/dev/ttyACM0"], "expected a TCP port"),
        (["--idle", "0"], "a number of seconds above 0"),
        ([], "there is no folder firmware"),
    ],
)
def test_mistakes(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short").write_text("short\n")
    assert main(["serve", "firmware", *words]) == 2
    assert said in capsys.readouterr().err


def test_an_address_that_is_not_of_this_computer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = tmp_path / "firmware"
    microc.compile(digits.INT8, board="host").write(project)
    assert main(["serve", str(project), "--host", "192.0.2.1"]) == 2
    assert "cannot listen on tcp://192.0.2.1:0" in capsys.readouterr().err
