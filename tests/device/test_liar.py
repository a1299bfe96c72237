# SPDX-License-Identifier: Apache-2.0
"""A host that faces a board that lies: every command ends in its time and in bounded memory, by an answer or DeviceError."""

from __future__ import annotations

import resource
import struct
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from microc.cli import main
from microc.device.board_info import make_printable
from microc.device.client import Client
from microc.device.line_protocol import REPLY, Frame, FrameDecoder, Operation, encode_frame
from microc.device.transport import Transport, list_ports
from microc.errors import DeviceError, MicrocError
from tests.device.liar import Liar, lies
from tests.device.test_client import A, ints, pipe

SECONDS = 0.3  # of a run, and of all that hello asks
LIMIT, LONGEST = 3.0, 30.0  # seconds of this process, and of the clock, which a busy machine stretches
MEGABYTES = 100

COMMANDS: dict[str, Callable[[Client], object]] = {
    "hello": lambda board: board.hello(),
    "write": lambda board: board.write_tensor(A, ints(7)),
    "read": lambda board: board.read_tensor(A),
    "run": lambda board: board.run(repeat=3),
    "profile": lambda board: board.profile(),
    "reset": lambda board: board.reset_state(),
    "stats": lambda board: board.stats(),
}
ASKS = {
    "hello": (Operation.HELLO, Operation.MODEL, Operation.TENSORS),
    "write": (Operation.WRITE,),
    "read": (Operation.READ,),
    "run": (Operation.RUN,),
    "profile": (Operation.PROFILE,),
    "reset": (Operation.RESET,),
    "stats": (Operation.STATS,),
}
PAIRS = [(name, operation) for name, operations in ASKS.items() for operation in operations]


def client(line: Transport) -> Client:
    return Client(line, timeout=0.01, retries=3, run_timeout=SECONDS)


def bounded(command: Callable[[], object]) -> MicrocError | None:
    """Run a command; the error that it ended in. Anything but DeviceError, too long, or too much memory, fails."""
    memory, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, (time.process_time(), time.monotonic())
    error: MicrocError | None = None
    try:
        command()
    except DeviceError as refused:
        error = refused
        assert str(error).replace("\n", "").isprintable()
    assert time.process_time() - begin[0] < LIMIT and time.monotonic() - begin[1] < LONGEST
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < MEGABYTES * 1024
    return error


@pytest.mark.parametrize(("name", "operation"), PAIRS)
def test_every_lie_about_every_answer(name: str, operation: Operation, firmware: Path) -> None:
    line = pipe(firmware)
    for lie in lies(operation).values():
        board = client(line)
        if name != "hello":
            board.hello()
        board._link.transport = Liar(line, operation, lie)
        bounded(lambda board=board: COMMANDS[name](board))  # type: ignore[misc]
    with client(line) as board:  # the firmware itself goes on
        board.hello()
        COMMANDS[name](board)


@pytest.mark.parametrize(
    "flood", [b"\0", b"x" * 5000, b"\0\0x", encode_frame(Frame(0x81, 1, 1)), encode_frame(Frame(1, 1, 1))]
)
@pytest.mark.parametrize("name", COMMANDS)
def test_output_without_end(name: str, flood: bytes, firmware: Path) -> None:
    """Zeros, noise, logs, replies and requests, for ever, in place of an answer."""
    line = pipe(firmware)
    board = client(line)
    if name != "hello":
        board.hello()
    board._link.transport = Liar(line, None, lambda reply: b"", flood=flood * 100)
    with board:
        error = bounded(lambda: COMMANDS[name](board))
    assert error is not None and "no answer" in error.what


@pytest.mark.parametrize("name", COMMANDS)
def test_a_byte_now_and_then(name: str, firmware: Path) -> None:
    """Each request is answered in time, and all together are not: the limit is the command's."""
    line = pipe(firmware)
    board = client(line)
    if name != "hello":
        board.hello()
    board._link.transport = Liar(line, None, encode_frame, pause=0.008)
    with board:
        bounded(lambda: COMMANDS[name](board))


class Teller:
    """A board that is all talk: any number of models, tensors and kernels of any size, every answer well-formed."""

    description = "teller"

    def __init__(
        self, models: int, tensors: int, kernels: int, nbytes: int = 4, payload: int = 4096, delay: float = 0
    ) -> None:
        self.delay = delay
        self._counts = models, tensors, kernels
        self._nbytes, self._payload = nbytes, payload
        self._decoder = FrameDecoder()
        self._said: list[bytes] = []

    def read(self, timeout: float) -> bytes:
        time.sleep(min(timeout, self.delay if self._said else timeout))
        return self._said.pop(0) if self._said else b""

    def write(self, data: bytes) -> None:
        for request in self._decoder.feed(data):
            kind = request.operation | REPLY
            self._said.append(encode_frame(Frame(kind, request.session, request.sequence, 0, self._answer(request))))

    def _answer(self, request: Frame) -> bytes:
        models, tensors, kernels = self._counts
        if request.operation == Operation.HELLO:
            return struct.pack("<HBBI", self._payload, models, 0, 1000)
        if request.operation == Operation.MODEL:
            described = struct.pack("<16sIHH", b"", 2**32 - 1, tensors, kernels) + b"\x1b[31m" * 100
            return described[: self._payload]
        if request.operation == Operation.TENSORS:
            (first,) = struct.unpack("<H", request.payload)
            count: int = min(self._payload // 8, tensors - first)
            return struct.pack("<IHBB", self._nbytes, 0, 1, 1) * count
        if request.operation == Operation.READ:
            _, _, size = struct.unpack("<HIH", request.payload)
            return bytes(int(size))
        if request.operation == Operation.PROFILE:
            first, last = struct.unpack("<HH", request.payload)
            return bytes(4 * (last - first + 1))
        if request.operation == Operation.RUN:
            return struct.pack("<IIQ", 5, 3, 2**63)  # the shortest is longer than the longest
        return b""

    def reopen(self) -> bool:
        return False

    def close(self) -> None:
        self._said.clear()


@pytest.mark.parametrize(
    "teller",
    [
        Teller(255, 65535, 65535),
        Teller(255, 255, 1, delay=0.005),
        Teller(255, 65535, 1, payload=32),
        Teller(1, 65535, 1, payload=65535),
        Teller(255, 0, 0),
        Teller(0, 0, 0),
    ],
    ids=["many", "slow", "small", "wide", "empty", "none"],
)
def test_descriptions_without_end(teller: Teller) -> None:
    error = bounded(lambda: client(teller).hello())
    assert error is not None or teller._counts[1] == 0


@pytest.mark.parametrize("delay", [0.0, 0.02])
@pytest.mark.parametrize("command", ["run", "profile", "write"])
def test_kernels_without_end(command: str, delay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("microc.device.client._MIN_BYTES_PER_SECOND", 1e6)  # bytes per second, for a profile of 262 kB
    board = client(teller := Teller(1, 3, 65535, payload=64))
    board.hello()
    teller.delay = delay
    error = bounded(lambda: board.write_tensor(0, bytes(4)) if command == "write" else COMMANDS[command](board))
    if command == "run":
        assert error is not None and "is malformed" in error.what
    if command == "profile" and delay:  # 4,096 requests, each answered in time
        assert error is not None and "too slow" in error.what


def test_a_tensor_without_end() -> None:
    """One of 4 GB is not asked for; one of 200 MB runs out of time, which a line of 2400 baud would not need."""
    with pytest.raises(MicrocError, match="cannot read"):
        client(Teller(1, 3, 1, 2**32 - 1)).read_tensor(0)
    board = client(teller := Teller(1, 3, 1, 10_000, 64))
    board.hello()
    teller.delay = 0.02
    with board._link.limit_time(SECONDS):
        error = bounded(lambda: board.read_tensor(0))
    assert error is not None and "too slow" in error.what


def test_a_name_cannot_speak_to_the_terminal() -> None:
    name = client(Teller(1, 0, 0)).hello().models[0].name
    assert name.isprintable() and len(name) == 64 and name.startswith("?[31m")
    assert make_printable("a\u202eb\x9bc\u2066\x00\x7f\n") == "a?b?c????"


def test_a_plug_cannot_speak_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Plugged:
        device, description, vid, pid, serial_number = (
            "/dev/ttyACM0",
            "\x1b[2Jboard\n" * 99,
            0x0483,
            0x374B,
            "\x1b]0;\x07",
        )

        def __lt__(self, other: object) -> bool:
            return False

    monkeypatch.setattr("serial.tools.list_ports.comports", lambda: [Plugged()])
    (port,) = list_ports()
    assert (port.description[:9], len(port.description), port.serial) == ("?[2Jboard", 64, "?]0;?")
    assert main(["ports"]) == 0
    assert capsys.readouterr().out.replace("\n", "").isprintable()


pieces = st.one_of(
    st.binary(max_size=300),
    st.sampled_from([b"\0", b"\0" * 4096, b"\xff" * 4096]),
    st.builds(
        lambda operation, argument, payload, shift, version: (operation, argument, payload, shift, version),
        st.sampled_from([None, *range(256)]),
        st.sampled_from([0, 0, 0, 0, 1, 127, 244, 255]),
        st.none() | st.binary(max_size=600) | st.integers(0, 8).map(lambda k: k),
        st.sampled_from([0, 0, 0, 1, 255]),
        st.sampled_from([1, 1, 1, 0, 2, 255]),
    ),
)


@given(st.lists(pieces, max_size=6), st.sampled_from(PAIRS), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
def test_any_answer_at_all(said: list[Any], pair: tuple[str, Operation], seed: int) -> None:
    """Bytes and frames of any kind in place of each answer to one operation; the rest is as a good board says it."""
    name, operation = pair
    chance = Random(seed)

    def lie(reply: Frame) -> bytes:
        out = b""
        for piece in said:
            if isinstance(piece, bytes):
                out += piece
                continue
            kind, argument, payload, shift, version = piece
            data = bytearray(reply.payload)
            if isinstance(payload, int):
                for _ in range(payload):
                    if data:
                        data[chance.randrange(len(data))] = chance.choice((0, 1, 127, 128, 255))
            elif payload is not None:
                data = bytearray(payload)
            sequence = (reply.sequence + shift) & 0xFF
            out += encode_frame(
                Frame(
                    reply.operation if kind is None else kind, reply.session, sequence, argument, bytes(data), version
                )
            )
        return out

    board = client(Liar(Teller(2, 5, 9, payload=64), operation, lie))
    bounded(lambda: COMMANDS[name](board) if name not in ("write", "read") else _small(board, name))


def _small(board: Client, name: str) -> object:
    try:
        if name == "write":
            board.write_tensor(A, bytes(4))
        return board.read_tensor(A, 4)
    except MicrocError as error:  # the board has told of a tensor of another size
        raise DeviceError(str(error)) from error
