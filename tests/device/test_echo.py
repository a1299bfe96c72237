# SPDX-License-Identifier: Apache-2.0
"""Lines that echo: a board that hears its answers, a host that hears its requests, both; and firmware that answers itself."""

from __future__ import annotations

import os
import tty
from pathlib import Path

import pytest

import microc
from microc.device.client import Client
from microc.device.line_protocol import REPLY, Frame, FrameDecoder, encode_frame
from microc.device.transport import PipeTransport, open_transport
from microc.errors import DeviceError
from tests.device.faults import EchoTransport, FaultyTransport, Rates
from tests.device.mlperf_runner import Runner
from tests.device.test_client import OUT, A, B, bridge, first_of, ints, pipe
from tests.support import digits

ECHOES = {"host": {"host": True}, "board": {"board": True}, "both": {"host": True, "board": True}}


@pytest.mark.parametrize("who", ECHOES)
def test_a_session_over_an_echo(who: str, firmware: Path) -> None:
    line = EchoTransport(pipe(firmware), **ECHOES[who])
    with Client(line) as board:
        for step in range(1, 6):
            board.write_tensor(A, ints(step))
            board.write_tensor(B, ints(step))
            board.run()
            board.profile()
        board.reset_state()
        board.run(0, 1)
        board.run(2, 2)
        assert first_of(board.read_tensor(OUT)) == 20
        asked = board._link.sequence
        stats = board.stats()
    assert (line.echoed > 0) == ("board" in ECHOES[who])
    # Every request was heard once: no echo is counted, refused, or taken for a repetition.
    assert stats.frames <= asked + 258 and (stats.bad_frames, stats.repeats, stats.refusals) == (0, 0, 0)


def test_an_echo_over_a_faulty_line(firmware: Path) -> None:
    echo = EchoTransport(pipe(firmware), host=True, board=True)
    line = FaultyTransport(echo, Rates(0.02, 0.02, 0.02, 0.02, 0.02), seed=5)
    with Client(line, timeout=0.02, retries=12) as board:
        for step in range(1, 31):
            board.write_tensor(A, ints(step))
            board.run()
            assert first_of(board.read_tensor(OUT)) == step * (step + 1)


def test_a_terminal_that_echoes(firmware: Path) -> None:
    """A pseudo-terminal that gives the host back what it types, as a shell's does."""
    far, near = os.openpty()
    tty.setraw(near)
    program = pipe(firmware)

    def heard() -> bytes:
        data = os.read(far, 4096)
        os.write(far, data)  # half duplex: who sends hears it
        return data

    with Client(open_transport(os.ttyname(near))) as board, bridge(program, heard, lambda data: os.write(far, data)):
        os.close(near)
        board.write_tensor(A, ints(21))
        board.run()
        assert board.read_tensor(OUT) == ints(42)
        board.close()
        os.close(far)


class Talkative:
    """Firmware from before replies were told from requests, behind an echo: to every answer it hears, it answers again."""

    description = "talkative"

    def __init__(self, deaf: bool) -> None:
        self._deaf = deaf
        self._decoder = FrameDecoder()
        self._said = b""

    def read(self, timeout: float) -> bytes:
        return self._said * 100  # of the storm, as much as one read takes

    def write(self, data: bytes) -> None:
        for request in self._decoder.feed(data):
            session = request.session + self._deaf
            self._said = encode_frame(Frame(request.operation | REPLY, session, request.sequence, 0, bytes(8)))

    def reopen(self) -> bool:
        return False

    def close(self) -> None:
        self._said = b""


def test_firmware_that_answers_itself_is_named() -> None:
    with (
        Client(Talkative(deaf=True), timeout=0.02, retries=2) as board,
        pytest.raises(DeviceError, match="no answer to HELLO") as caught,
    ):
        board.hello()
    assert "older firmware answers its own" in caught.value.hint


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("echo") / "digits"
    project = microc.open_project(microc.compile(digits.INT8, board="host", protocol="mlperf").write(folder))
    return microc.build(project).elf


@pytest.mark.parametrize("who", ECHOES)
def test_the_benchmark_runners_protocol_over_an_echo(who: str, benchmark: Path) -> None:
    line = EchoTransport(PipeTransport([str(benchmark)]), **ECHOES[who])
    runner = Runner(line, echo="host" in ECHOES[who])
    answers = []
    for image in digits.images(3):
        runner.load(image.tobytes())
        answers.append(runner.infer(1, 0)[1])
        assert sum(answers[-1]) == pytest.approx(1, abs=0.05)
        assert runner.ask("dance") == ["e-[Unknown command: dance]"]
    assert answers[0] != answers[1]
    assert line.read(0.2) == b""  # nobody goes on talking
    line.close()
