# SPDX-License-Identifier: Apache-2.0
"""The client against firmware in a process, over clean, faulty, dead and silent lines."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from microc.device.board_info import TensorInfo
from microc.device.client import Client
from microc.device.line_protocol import REPLY, Frame, FrameDecoder, Operation, ProtocolSession, encode_frame
from microc.device.transport import PipeTransport, Transport, open_transport
from microc.errors import DeviceError, UsageError
from tests.device.faults import FaultyTransport, Rates

A, B, OUT, SUM, TOTAL, FLAG, UNBOUND = range(7)
N = 150
DIE, DAWDLE = 1000000001, 1000000002


def ints(*values: int) -> bytes:
    return np.resize(np.array(values, "<i4"), N).tobytes()


def first_of(data: bytes) -> int:
    return int(np.frombuffer(data, "<i4")[0])


def pipe(firmware: Path) -> PipeTransport:
    return PipeTransport([str(firmware)])


def test_hello_describes_the_board(firmware: Path) -> None:
    with Client(pipe(firmware)) as board:
        info = board.info
        assert (info.version, info.max_payload, info.tick_hz, len(info.models)) == (1, 256, 1000000000, 1)
        model = board.model
        assert (model.name, model.arena_bytes, model.kernel_count) == ("fake", 1280, 3)
        assert bytes.fromhex(model.fingerprint) == b"0123456789abcde\0"
        assert model.tensors[OUT] == TensorInfo(OUT, 600, "int32", "output", 2)
        assert model.tensors[FLAG] == TensorInfo(FLAG, 1, "bool", "input", None)
        assert [tensor.kind for tensor in model.tensors[:5]] == ["input", "input", "output", "intermediate", "state"]
        board.check_fingerprint(model.fingerprint)
        with pytest.raises(DeviceError, match="another build"):
            board.check_fingerprint("00" * 16)


@pytest.mark.parametrize("small", [False, True], ids=["256", "32"])
def test_tensors_runs_and_state(small: bool, firmware: Path, small_firmware: Path) -> None:
    with Client(pipe(small_firmware if small else firmware)) as board:
        a, b = np.arange(N, dtype="<i4"), np.arange(N, dtype="<i4") * -3
        board.write_tensor(A, a.tobytes())
        board.write_tensor(B, b.tobytes())
        board.run()
        assert board.read_tensor(OUT) == (2 * (a + b)).tobytes()
        assert board.read_tensor(SUM) == (a + b).tobytes()
        board.run()
        assert board.read_tensor(OUT) == (4 * (a + b)).tobytes()
        board.reset_state()
        board.run(0, 0)
        board.write_tensor(SUM, ints(50))
        board.run(1, 2)
        assert board.read_tensor(OUT) == ints(100)
        board.write_tensor(FLAG, b"\1")
        assert board.read_tensor(FLAG) == b"\1"


def test_timing_and_profile(firmware: Path) -> None:
    told: list[tuple[str, int, int]] = []
    with Client(pipe(firmware), progress=lambda *step: told.append(step)) as board:
        timing = board.run(repeat=1000)
        assert timing.count == 1000
        assert 0 < timing.min <= timing.mean <= timing.max
        assert told[-1] == ("run", 1000, 1000)
        board.reset_state()
        board.write_tensor(A, ints(1))
        ticks = board.profile()
        assert len(ticks) == 3 and all(ticks)
        assert board.read_tensor(OUT) == ints(2)  # a profile is one execution


def test_profile_goes_in_pieces_but_executes_once() -> None:
    """More kernels than a reply can hold: every kernel is asked for once, in order."""
    asked: list[tuple[int, int]] = []

    def serve(request: Frame) -> bytes | None:
        if request.operation == Operation.MODEL:
            return struct.pack("<16sIHH", bytes(16), 0, 0, 20)
        if request.operation != Operation.PROFILE:
            return struct.pack("<HBBI", 32, 1, 0, 1000)
        first, last = struct.unpack("<HH", request.payload)
        asked.append((first, last))
        return struct.pack(f"<{last - first + 1}I", *range(first, last + 1))

    with Client(Puppet(serve)) as board:
        assert board.profile() == tuple(range(20))
    assert asked == [(0, 7), (8, 15), (16, 19)]


@pytest.mark.parametrize("operation", [Operation.RUN, Operation.PROFILE])
def test_a_counter_that_goes_backwards_is_refused(operation: Operation) -> None:
    """A difference of 32 bits below zero is no time."""

    def serve(request: Frame) -> bytes | None:
        if request.operation == Operation.MODEL:
            return struct.pack("<16sIHH", bytes(16), 0, 0, 1)
        if request.operation == Operation.RUN:
            return struct.pack("<IIQ", 2**32 - 48_084, 2**32 - 48_084, 2**32 - 48_084)
        if request.operation == Operation.PROFILE:
            return struct.pack("<I", 2**32 - 48_084)
        return struct.pack("<HBBI", 32, 1, 0, 1000)

    with (
        Client(Puppet(serve)) as board,
        pytest.raises(DeviceError, match=r"4,294,919,212 ticks for one execution; expected fewer than 2,147,483,648"),
    ):
        board.run() if operation == Operation.RUN else board.profile()


def test_stats_count_frames(firmware: Path) -> None:
    with Client(pipe(firmware)) as board:
        board.hello()
        before = board.stats()
        assert before.stack_bytes is None
        board._link.transport.write(b"\0damaged\0")
        after = board.stats()
        assert (after.frames - before.frames, after.bad_frames - before.bad_frames) == (1, 1)
        assert (after.repeats, after.refusals) == (0, 0)


def test_wrong_arguments_are_usage_errors(firmware: Path) -> None:
    with Client(pipe(firmware)) as board:
        wrong: list[Callable[[], object]] = [
            lambda: board.write_tensor(A, b"123"),
            lambda: board.write_tensor(7, b""),
            lambda: board.read_tensor(-1),
            lambda: board.run(2, 1),
            lambda: board.run(0, 3),
            lambda: board.run(repeat=0),
        ]
        for call in wrong:
            with pytest.raises(UsageError):
                call()
    with Client(pipe(firmware), model=1) as board, pytest.raises(UsageError, match="model: got number 1"):
        board.run()


def test_refusals_of_the_board(firmware: Path) -> None:
    with Client(pipe(firmware)) as board:
        with pytest.raises(DeviceError, match="no memory") as caught:
            board.read_tensor(UNBOUND)
        assert caught.value.exit_code == 6 and caught.value.hint and caught.value.where.startswith("pipe:")
        board.write_tensor(A, ints(-(2**31)))
        with pytest.raises(DeviceError, match="RUN: the model's run function has failed"):
            board.run()


RATES = Rates(drop=0.01, flip=0.01, cut=0.01, duplicate=0.01, split=0.01)


def test_300_runs_over_a_faulty_line(firmware: Path) -> None:
    line = FaultyTransport(pipe(firmware), RATES, seed=3)
    with Client(line, timeout=0.02, retries=12) as board:
        board.run()
        board.reset_state()
        for step in range(1, 301):
            board.write_tensor(A, ints(step, 0, -step))
            board.run()
            total = step * (step + 1) // 2  # exactly one execution a step, or the state would differ
            assert board.read_tensor(OUT) == ints(2 * total, 0, -2 * total)
        stats = board.stats()
    assert all(line.counts.values()), line.counts
    assert stats.repeats > 0 and stats.bad_frames > 0


def test_a_very_bad_line(firmware: Path) -> None:
    line = FaultyTransport(pipe(firmware), Rates(0.15, 0.15, 0.15, 0.3, 0.5), seed=1)
    with Client(line, timeout=0.01, retries=60) as board:
        for step in range(1, 11):
            board.write_tensor(A, ints(step))
            board.run()
            assert board.read_tensor(OUT) == ints(step * (step + 1))


def test_the_same_seed_damages_alike() -> None:
    def received(seed: int) -> list[bytes]:
        sink = Puppet(lambda request: None)
        line = FaultyTransport(sink, Rates(0.2, 0.2, 0.2, 0.2, 0.2), seed)
        for number in range(50):
            line.write(encode_frame(Frame(1, 2, number)))
        return sink.written

    assert received(4) == received(4)
    assert received(4) != received(5)


def test_a_run_longer_than_the_time_out_is_not_repeated(firmware: Path) -> None:
    with Client(pipe(firmware), timeout=0.02, retries=12) as board:
        board.write_tensor(A, ints(DAWDLE))
        board.reset_state()
        assert board.run().min > 300_000_000
        assert first_of(board.read_tensor(TOTAL)) == DAWDLE
        assert board.stats().repeats > 2


def test_an_earlier_session_cannot_answer(firmware: Path) -> None:
    """A second client on the same line drops what the first left behind, and the board refuses the first."""
    line = pipe(firmware)
    old = Client(line)
    old.write_tensor(A, ints(1))
    old._link.transport.write(
        encode_frame(Frame(Operation.READ, old._link.session, old._link.sequence + 1, 0, struct.pack("<HIH", A, 0, 4)))
    )
    with Client(line) as new:
        new.write_tensor(A, ints(2))
        assert new.read_tensor(A) == ints(2)
        with pytest.raises(DeviceError, match="restarted"):
            old.read_tensor(A)
        assert new.read_tensor(A) == ints(2)


def test_a_session_that_the_board_is_in_is_not_taken_for_a_new_one(
    firmware: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chances = iter([4, 4, 4])
    monkeypatch.setattr("microc.device.line_protocol.secrets.randbelow", lambda bound: next(chances))
    line = pipe(firmware)
    first = Client(line)
    first.write_tensor(A, ints(1))
    with Client(line) as second:
        assert second.read_tensor(A) == ints(1)
        assert (first._link.session, second._link.session) == (5, 10)


class Puppet:
    """A board played by a function from request to payload; None keeps silent."""

    description = "puppet"

    def __init__(self, serve: Callable[[Frame], bytes | None], version: int = 1) -> None:
        self.written: list[bytes] = []
        self._serve = serve
        self._version = version
        self._decoder = FrameDecoder()
        self._answers: list[bytes] = []

    def read(self, timeout: float) -> bytes:
        if not self._answers:
            time.sleep(timeout)
            return b""
        return self._answers.pop(0)

    def write(self, data: bytes) -> None:
        self.written.append(data)
        for request in self._decoder.feed(data):
            payload = self._serve(request)
            if payload is not None:
                kind = request.operation | REPLY
                reply = Frame(kind, request.session, request.sequence, 0, payload, self._version)
                self._answers.append(encode_frame(reply))

    def reopen(self) -> bool:
        return False

    def close(self) -> None:
        self._answers.clear()


def test_another_protocol_version_is_refused() -> None:
    board = Client(Puppet(lambda request: b"", version=2))
    with pytest.raises(DeviceError, match=r"got 2, expected 1") as caught:
        board.hello()
    assert "flash" in caught.value.hint


@pytest.mark.parametrize("payload", [b"", b"\x20\x00\x01\x00\x01\x00\x00", b"\x20\x00\x01\x00\x01\x00\x00\x00"])
def test_nonsense_is_refused(payload: bytes) -> None:
    with pytest.raises(DeviceError, match="is malformed"):
        Client(Puppet(lambda request: payload)).hello()


def test_a_silent_board_gives_an_error_in_time() -> None:
    silent = Puppet(lambda request: None)
    begin = time.monotonic()
    with pytest.raises(DeviceError, match="no answer to HELLO") as caught:
        Client(silent, timeout=0.05, retries=3).hello()
    assert 0.3 < time.monotonic() - begin < 1.0
    assert len(silent.written) == 4
    assert caught.value.where == "puppet" and "firmware" in caught.value.hint


def test_a_silent_program_gives_an_error_in_time() -> None:
    with Client(PipeTransport(["sleep", "60"]), timeout=0.05, retries=2) as board, pytest.raises(DeviceError):
        board.hello()


def test_a_process_that_dies_in_a_run(firmware: Path) -> None:
    with Client(pipe(firmware)) as board:
        board.write_tensor(A, ints(DIE))
        begin = time.monotonic()
        with pytest.raises(DeviceError, match="ended with exit code 3"):
            board.run()
        assert time.monotonic() - begin < 2
        with pytest.raises(DeviceError):
            board.run()


def test_what_a_dying_program_says_is_shown() -> None:
    with Client(open_transport("pipe:sh -c 'echo out of luck >&2; exit 4'")) as board:
        with pytest.raises(DeviceError, match="exit code 4") as caught:
            board.hello()
        assert "out of luck" in caught.value.hint


def test_pipe_closes_and_ends_the_program(firmware: Path) -> None:
    line = pipe(firmware)
    line.close()
    line.close()
    assert line._process.returncode == 0
    with pytest.raises(DeviceError, match="closed"):
        line.write(b"x")


def test_a_program_that_writes_without_end_has_to_wait() -> None:
    line = PipeTransport(["yes"])
    while not line._received.full():
        assert line._threads[0].is_alive()
    line.close()
    assert not any(thread.is_alive() for thread in line._threads)
    with pytest.raises(DeviceError, match="closed"):
        line.read(0)


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs a system that stops processes")
def test_bytes_that_are_read_too_late_end_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("microc.device.transport._WRITE_SECONDS", 0.05)
    line, late = PipeTransport(["cat"]), bytes(1 << 20)
    line._process.send_signal(signal.SIGSTOP)
    with pytest.raises(DeviceError, match="does not read its input"):
        line.write(late)
    line._process.send_signal(signal.SIGCONT)
    left = len(late)
    while left:
        left -= len(line.read(60))
    with pytest.raises(DeviceError, match="does not read its input"):
        line.write(b"x")
    line.close()


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("pipe:./there-is-no-such-program", DeviceError),
        ("pipe:", UsageError),
        ("pipe:'unclosed", UsageError),
        ("", UsageError),
        ("socket://localhost", UsageError),
        ("socket://localhost:99999", UsageError),
        ("socket://127.0.0.1:1", DeviceError),
        ("/dev/there-is-no-such-port", DeviceError),
        ("nonsense://x", UsageError),
    ],
)
def test_addresses_that_cannot_be_opened(address: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        open_transport(address)


@contextlib.contextmanager
def bridge(program: Transport, receive: Callable[[], bytes], send: Callable[[bytes], object]) -> Iterator[None]:
    """Carry bytes between a program and the far end of a line, which must be closed before the end of the block."""
    ended = threading.Event()

    def forward() -> None:
        with contextlib.suppress(OSError, DeviceError):
            while data := receive():
                program.write(data)

    def back() -> None:
        with contextlib.suppress(OSError, DeviceError):
            while not ended.is_set():
                send(program.read(0.05))

    threads = [threading.Thread(target=work, daemon=True) for work in (forward, back)]
    for thread in threads:
        thread.start()
    yield
    ended.set()
    for thread in threads:
        thread.join(5)
    program.close()


def test_over_a_socket(firmware: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        board = Client(open_transport(f"socket://127.0.0.1:{server.getsockname()[1]}"))
        far, _ = server.accept()
        with board, bridge(pipe(firmware), lambda: far.recv(4096), far.sendall):
            board.write_tensor(A, ints(21))
            board.run()
            assert board.read_tensor(OUT) == ints(42)
            far.shutdown(socket.SHUT_RDWR)
            with pytest.raises(DeviceError, match="connection is gone"):
                board.run()
        far.close()


def test_over_a_pty(firmware: Path) -> None:
    far, terminal = os.openpty()
    with (
        Client(open_transport(os.ttyname(terminal))) as board,
        bridge(pipe(firmware), lambda: os.read(far, 4096), lambda data: os.write(far, data)),
    ):
        os.close(terminal)
        board.write_tensor(A, ints(21))
        board.run()
        assert board.read_tensor(OUT) == ints(42)
        os.close(far)
        with pytest.raises(DeviceError, match="port is gone"):
            board.run()


def test_a_run_that_never_ends_names_the_loop() -> None:
    """A `while` whose condition stays true: nothing but time tells it from a crash."""
    with pytest.raises(DeviceError, match="no answer to RUN") as caught:
        ProtocolSession(Puppet(lambda request: None), 0.02, 1).request(Operation.RUN)
    assert "loop" in caught.value.hint and "--timeout" in caught.value.hint
