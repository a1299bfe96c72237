# SPDX-License-Identifier: Apache-2.0
"""A project, programs and an emulator that lie: run, profile and verify end in an answer, a difference or a refusal."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

import microc
from microc.device.emulators import QmpSession
from microc.device.line_protocol import Frame, Operation, encode_frame
from microc.device.transport import PipeTransport, Transport
from microc.errors import DeviceError
from microc.run.board_project import Project, build_host_library, build_project
from microc.run.desktop.library import Library
from microc.run.session import Device
from microc.run.verification import compare_board_with_host
from tests.device.liar import Liar, lies
from tests.device.test_liar import LIMIT, bounded, client
from tests.support import digits


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("liar") / "digits"
    found = microc.open_project(microc.compile(digits.INT8, board="host").write(folder))
    build_project(found)
    return found


@pytest.fixture(scope="module")
def library(project: Project) -> Library:
    return build_host_library(project)


def _session(project: Project, library: Library, line: Transport) -> object:
    with Device.over(project, client(line)) as device:
        device.run(digits.images(1)[0])
        device.time(3)
        str(device.profile())
        layers, difference = compare_board_with_host(device, library, [[digits.images(1)[0]]])
        return layers if difference is None else str(difference.error("the line"))


@pytest.mark.parametrize("operation", Operation, ids=lambda operation: operation.name)
def test_a_project_on_a_board_that_lies(operation: Operation, project: Project, library: Library) -> None:
    """Run, time, profile and verify over a lying line: an answer, a difference that is told, or a refusal."""
    for lie in lies(operation).values():
        line = PipeTransport([str(project.elf)])
        bounded(lambda line=line, lie=lie: _session(project, library, Liar(line, operation, lie)))  # type: ignore[misc]
        line.close()


def test_tables_of_another_project_are_refused(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A board that has the fingerprint and other kernels or tensors."""

    def fewer(reply: Frame) -> bytes:
        return encode_frame(replace(reply, payload=reply.payload[:22] + b"\1\0" + reply.payload[24:]))

    def larger(reply: Frame) -> bytes:
        return encode_frame(replace(reply, payload=b"\xff" + reply.payload[1:]))

    for operation, lie in ((Operation.MODEL, fewer), (Operation.TENSORS, larger)):
        with (
            client(Liar(PipeTransport([str(project.elf)]), operation, lie)) as board,
            pytest.raises(DeviceError, match="differ from those of the project"),
        ):
            Device.over(project, board)


def test_a_program_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("microc.device.transport._WRITE_SECONDS", 0.2)
    with client(PipeTransport(["sleep", "60"])) as board:
        begin = time.monotonic()
        with pytest.raises(DeviceError, match="does not read"):
            for _ in range(100):
                board._link.transport.write(bytes(4096))
        assert time.monotonic() - begin < LIMIT


def test_a_program_that_says_much_before_it_ends() -> None:
    script = "printf '\\033[2Jout\\n' >&2; head -c 3000000 /dev/zero >&2; exit 4"
    with client(PipeTransport(["sh", "-c", script])) as board:
        error = bounded(board.hello)
    assert error is not None and error.hint.startswith("it said: ?[2Jout | ???") and len(error.hint) < 300


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"", "has ended"),
        (b"nonsense\n", "is malformed"),
        (b"[" * 100_000 + b"\n", "is malformed"),
        (b"5\n", "is malformed"),
        (b"x" * 3_000_000, "is malformed"),
        (b'{"error": {"desc": "\\u001b[2J"}}\n', r"refuses stop: \?\[2J"),
        (b'{"error": 3}\n', "refuses stop: 3"),
        (b'{"event": "x"}\n' * 1000, "has ended"),
    ],
)
def test_an_emulator_that_lies(answer: bytes, what: str, tmp_path: Path) -> None:
    """The control socket of an emulator is a line, too."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "qmp"))
        server.listen(1)

        def serve() -> None:
            with server.accept()[0] as line, contextlib.suppress(OSError):
                line.sendall(b'{"QMP": {}}\n{"return": {}}\n' + answer)
                heard = b""
                while b"stop" not in heard:
                    heard += line.recv(4096)

        thread = threading.Thread(target=serve)
        thread.start()
        control = QmpSession(tmp_path / "qmp")
        error = bounded(lambda: control.execute("stop"))
        assert error is not None and re.search(what, error.what)
        control.close()
        thread.join(5)
