# SPDX-License-Identifier: Apache-2.0
"""The server of ``microc serve``: clients that work, strangers that do not get in, and boards that go away."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from microc.device.client import Client
from microc.device.line_protocol import MAX_ENCODED_BYTES, Frame, Operation, encode_frame
from microc.device.server import BoardServer, ServedBoard
from microc.device.transport import (
    TOKEN,
    TOKEN_FILE,
    PipeTransport,
    RemoteTransport,
    Transport,
    encode_login,
    open_transport,
)
from microc.errors import DeviceError, MicrocError, UsageError
from tests.device.test_client import DAWDLE, DIE, OUT, A, ints

SECRET = "a token of tests".replace(" ", "-")
Serve = Callable[..., "Served"]


class Served:
    """A server that runs in a thread, with the lines that it reports and the times that its board was started."""

    def __init__(self, firmware: Path, idle_seconds: float = 60.0, name: str = "host") -> None:
        self.firmware, self.starts = firmware, 0
        self.lines: list[str] = []
        self.server = BoardServer(
            ServedBoard(self._open_line, name, emulated=False, restartable=True),
            "127.0.0.1",
            0,
            SECRET,
            idle_seconds=idle_seconds,
            report=self.lines.append,
        )

    @contextmanager
    def _open_line(self) -> Iterator[Transport]:
        self.starts += 1
        line = PipeTransport([str(self.firmware)])
        try:
            yield line
        finally:
            line.close()

    def client(self, **options: Any) -> Client:
        return Client(open_transport(self.server.address), **options)

    def connect(self, first: bytes) -> socket.socket:
        connection = socket.create_connection((self.server.host, self.server.port), 5)
        connection.sendall(first)
        return connection

    def answer(self, first: bytes) -> bytes:
        """Return all that the server says to a stranger before it closes the connection."""
        data = b""
        with self.connect(first) as connection, suppress(ConnectionResetError):
            while more := connection.recv(100):
                data += more
        return data

    def works(self) -> None:
        """Compute on the board through a client of its own."""
        with self.client() as board:
            board.reset_state()
            board.write_tensor(A, ints(21))
            board.run()
            assert board.read_tensor(OUT) == ints(42)


@contextmanager
def served(firmware: Path, **options: Any) -> Iterator[Served]:
    found, ended = Served(firmware, **options), threading.Event()

    def work() -> None:
        while not ended.is_set():
            found.server.serve(0.02)

    with found.server:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield found
        finally:
            ended.set()
            thread.join(5)
        assert not thread.is_alive(), "the server has ended or hangs"


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, SECRET)


def test_clients_one_after_the_other(firmware: Path) -> None:
    with served(firmware) as it:
        for _ in range(5):  # at once after the one before: never "busy"
            it.works()
        assert it.starts == 1 and it.server.client_count == 5
        line = open_transport(it.server.address)
        assert isinstance(line, RemoteTransport) and (line.board, line.emulated) == ("host", False)
        line.close()


@pytest.mark.parametrize(("name", "shown"), [("my böard", "my böard"), ("a\nb", "a?b"), ("x" * 250, "x" * 250)])
def test_names_of_board_files(name: str, shown: str, firmware: Path) -> None:
    with served(firmware, name=name) as it:
        line = open_transport(it.server.address)
        assert isinstance(line, RemoteTransport) and line.board == shown
        line.close()


def test_a_second_client_is_told_that_the_board_is_busy(firmware: Path) -> None:
    with served(firmware) as it:
        with it.client() as board:
            board.write_tensor(A, ints(21))
            with pytest.raises(DeviceError, match="busy"):
                it.client()
            assert it.answer(encode_login(SECRET)) == b"busy\n"
            board.run()
            assert board.read_tensor(OUT) == ints(42)
        it.works()


@pytest.mark.parametrize(
    "first",
    [
        encode_login(SECRET + "x"),
        encode_login(SECRET[:-1]),
        encode_login(""),
        b"microc 2 " + SECRET.encode() + b"\n",
        encode_login(SECRET) + b"\0",
        b"\n",
        b"GET / HTTP/1.1\r\nHost: board\r\n\r\n",
        bytes(range(256)),
        b"\xff" * 100_000,
        encode_frame(Frame(Operation.HELLO, 1, 1)) + b"\n",
    ],
    ids=["wrong", "short", "none", "version", "early", "empty", "http", "bytes", "oversized", "frame"],
)
def test_strangers(first: bytes, firmware: Path) -> None:
    with served(firmware) as it:
        with it.client() as board:
            board.write_tensor(A, ints(21))
            assert it.answer(first) in (b"denied\n", b"")  # a reset may overtake the answer to what was not read
            board.run()
            assert board.read_tensor(OUT) == ints(42)
        assert it.server.client_count == 1 and not any(SECRET in line for line in it.lines)
        it.works()


def test_silent_strangers_keep_nobody_out(firmware: Path) -> None:
    with served(firmware) as it:
        silent = [it.connect(b"microc 1 ") for _ in range(20)]
        it.works()
        silent[0].settimeout(5)
        assert silent[0].recv(10) == b""  # displaced by later ones
        for connection in silent:
            connection.close()
        it.works()


def test_tokens_of_the_client(firmware: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(firmware) as it:
        monkeypatch.setenv(TOKEN, "another-token-of-tests")
        with pytest.raises(DeviceError, match="refuses the token"):
            it.client()
        monkeypatch.delenv(TOKEN)
        with pytest.raises(UsageError, match="requires a token"):
            it.client()
        (tmp_path / "token").write_text(f"{SECRET}\n")
        monkeypatch.setenv(TOKEN_FILE, str(tmp_path / "token"))
        it.works()
        for content in (b"short", b"\xff" * 20, b"two words and more", b"x" * 5000):
            (tmp_path / "token").write_bytes(content)
            with pytest.raises(UsageError, match="token") as refused:
                it.client()
            assert content.decode("latin-1") not in str(refused.value)
        monkeypatch.setenv(TOKEN_FILE, str(tmp_path))
        with pytest.raises(UsageError, match="cannot read the token"):
            it.client()
        with pytest.raises(UsageError, match="before the host") as refused:
            open_transport(it.server.address.replace("//", f"//{SECRET}@"))
        assert SECRET not in str(refused.value)


def test_a_client_that_goes_away_in_the_midst_of_a_run(firmware: Path) -> None:
    """The board that computes for another second is started anew for the next client, who need not wait."""
    with served(firmware) as it:
        with it.client() as board:
            board.write_tensor(A, ints(DAWDLE))
            sent = encode_frame(Frame(Operation.RUN, board._link.session, board._link.sequence + 1, 0,
                                      struct.pack("<HHI", 0, 2, 1)))  # fmt: skip
            board._link.transport.write(sent)
        it.works()
        assert it.starts == 2


def test_garbage_of_a_client_ends_its_connection_alone(firmware: Path) -> None:
    with served(firmware) as it:
        for garbage in (b"\1" * (MAX_ENCODED_BYTES + 1), b"\0\1" + b"\xff" * 100_000):
            connection = it.connect(encode_login(SECRET))
            assert connection.recv(100) == b"ready attached host\n"
            with connection, suppress(OSError):
                connection.sendall(garbage)
                while connection.recv(100):
                    pass
            it.works()
        connection = it.connect(encode_login(SECRET))
        connection.sendall(b"\0\1\2\3\0" * 3000)  # frames of an allowed length, all damaged
        connection.close()
        it.works()


def test_silence_ends_a_session(firmware: Path) -> None:
    with served(firmware, idle_seconds=0.1) as it:
        connection = it.connect(encode_login(SECRET))
        with connection:
            assert connection.recv(100) == b"ready attached host\n" and connection.recv(100) == b""
        it.works()
        assert any("silence" in line for line in it.lines)
        with it.client(reconnect=5.0) as board:  # and a client that comes back goes on
            board.reset_state()
            board.write_tensor(A, ints(21))
            for _ in range(1000):  # until the server has seen the silence
                if sum("silence" in line for line in it.lines) == 2:
                    break
                time.sleep(0.01)
            else:
                pytest.fail("a silent client stays connected")
            board.run()
            assert board.read_tensor(OUT) == ints(42)


def test_a_board_that_dies_comes_back(firmware: Path) -> None:
    with served(firmware) as it:
        with it.client(timeout=0.2, retries=1) as board:
            board.write_tensor(A, ints(DIE))
            with pytest.raises(DeviceError, match="connection is gone"):
                board.run()
        it.works()
        assert it.starts == 2
        it.firmware = it.firmware.with_name("absent")
        with it.client(timeout=0.2, retries=1) as board:
            board.write_tensor(A, ints(DIE))
            with pytest.raises(DeviceError):
                board.run()
        with pytest.raises(DeviceError, match="cannot reach its board"):
            it.client()
        assert any("cannot start the program" in line for line in it.lines)


def test_addresses(firmware: Path) -> None:
    with served(firmware) as it, pytest.raises(UsageError, match="cannot listen"):
        BoardServer(
            ServedBoard(it._open_line, "host", emulated=False, restartable=True),
            "127.0.0.1", it.server.port, SECRET, idle_seconds=1, report=print,
        )  # fmt: skip
    for wrong in ("tcp://", "tcp://board", "tcp://board:0", "tcp://:5555", "tcp://board:port"):
        with pytest.raises(UsageError, match="tcp://HOST:PORT"):
            open_transport(wrong)
    with socket.create_server(("127.0.0.1", 0)) as other:
        threading.Thread(target=lambda: other.accept()[0].sendall(b"220 ftp.example.org\n"), daemon=True).start()
        with pytest.raises(MicrocError, match="not that of microc serve"):
            open_transport(f"tcp://127.0.0.1:{other.getsockname()[1]}")
