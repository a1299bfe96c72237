# SPDX-License-Identifier: Apache-2.0
"""Server of ``microc serve``: the serial line of one board behind TCP.

A client sends a line with the token and gets one line as answer (:mod:`microc.device.transport` has both). Then the bytes of the
board's protocol are carried as they are, in both directions, for one client at a time.

The main thread accepts, logs in and carries bytes to the board; a second thread, started with the board, carries the board's
bytes back. Whatever a client sends ends its own connection at most. The board is kept for the next client. It is opened again
if its line was lost; an emulated board also if it still computes for a client that has left.
"""

from __future__ import annotations

import hmac
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from math import inf
from types import TracebackType

from microc.base.immutable import frozen
from microc.device.board_info import make_printable
from microc.device.line_protocol import MAX_ENCODED_BYTES
from microc.device.transport import (
    ATTACHED,
    BUSY,
    DENIED,
    EMULATED,
    LOST,
    MAX_LOGIN_BYTES,
    READY,
    Transport,
    encode_login,
    format_tcp_address,
)
from microc.errors import MicrocError, UsageError

_CHUNK = 4096
_MAX_BYTES_PER_SECOND = 4 << 20
"""Bytes per second from a client to the board: far above a serial line, whose own rate then holds."""
_MAX_PENDING = 8
"""Connections without login that are kept. A further one displaces the oldest, so that strangers cannot lock clients out."""
_LOGIN_SECONDS = 5.0
_BUSY_SECONDS = 0.3
"""Time that a client waits for the one before to end, whose last bytes and end of connection may still have to be read."""
_SEND_SECONDS = 10.0
"""Time in which a client must take the board's answer, as long as a write to a board may take."""
_SELECT_SECONDS = 1.0
"""Longest wait of the main thread: on Windows, Ctrl-C does not end it earlier."""
_POLL_SECONDS = 0.1
"""Longest wait of the second thread for the board, after which it checks whether the line was closed."""


@frozen
class ServedBoard:
    """The board of a server.

    ``open_line``: open its line within a ``with`` block; called again when the line was lost. ``name``: name of its board
    file. ``emulated``: True if an emulator counts its ticks. ``restartable``: True if opening the line again restarts the
    board, as it does an emulator or a process."""

    open_line: Callable[[], AbstractContextManager[Transport]]
    name: str
    emulated: bool
    restartable: bool


class BoardServer:
    """A TCP server for one board, as a context manager.

    ``host``, ``port``: address to listen on; port 0 is any free one. ``token``: what clients must send first.
    ``idle_seconds``: silence after which a client is disconnected. ``report``: called with a line about each client.
    Raises UsageError if it cannot listen, and errors of the board if that cannot be opened at the start.
    """

    def __init__(
        self,
        board: ServedBoard,
        host: str,
        port: int,
        token: str,
        *,
        idle_seconds: float,
        report: Callable[[str], None],
    ) -> None:
        self.client_count = 0
        self._board = board
        self._login = encode_login(token)
        self._idle_seconds = idle_seconds
        self._report = report
        self._pending: dict[socket.socket, _PendingLogin] = {}
        self._next: _PendingLogin | None = None
        self._session: _Session | None = None
        self._line: _BoardLine | None = None
        try:
            self._listener = socket.create_server(
                (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
            )
        except (OSError, UnicodeError) as error:
            raise UsageError(
                f"cannot listen on {format_tcp_address(host, port)}: {getattr(error, 'strerror', None) or error}",
                hint="choose another port (--port), or an address of this computer (--host)",
            ) from error
        self._listener.setblocking(False)
        self.host, self.port = self._listener.getsockname()[:2]

    @property
    def address(self) -> str:
        """Address for clients: ``tcp://HOST:PORT``."""
        return format_tcp_address(self.host, self.port)

    def __enter__(self) -> BoardServer:
        try:
            self._line = _BoardLine(self._board, self._send_to_client, self._end_lost_session)
        except BaseException:
            self._listener.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        for connection in self._pending:
            connection.close()
        if self._next is not None:
            self._next.connection.close()
        if self._session is not None:
            self._session.close()
        if self._line is not None:
            self._line.close()

    def serve(self, seconds: float = inf) -> None:
        """Serve clients for ``seconds``, or until an exception such as KeyboardInterrupt ends it."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            self._close_overdue(now)
            session = self._session
            connections = [*([session.connection] if session else []), self._listener, *self._pending]
            deadlines = [end, *(login.deadline for login in self._pending.values())]
            deadlines += [session.last_byte + self._idle_seconds] if session else []
            deadlines += [self._next.deadline] if self._next else []
            wait = min(deadlines) - now
            ready = select.select(connections, [], [], max(0.0, min(wait, _SELECT_SECONDS)))[0]
            if session is not None and session.connection in ready:
                self._carry_to_board(session)
            if self._session is None and self._next is not None:
                login, self._next = self._next, None
                self._begin_session(login)
            for connection in [c for c in self._pending if c in ready]:
                self._read_login(connection)
            if self._listener in ready:
                self._accept()

    # ---- Logins.

    def _accept(self) -> None:
        """Accept a connection, which then has to log in."""
        try:
            connection, peer = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:  # it is gone already, or this process has no more file descriptors
            return
        connection.settimeout(_SEND_SECONDS)
        if len(self._pending) == _MAX_PENDING:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            oldest.close()
        peer_text = make_printable(format_tcp_address(*peer[:2]).partition("://")[2])
        self._pending[connection] = _PendingLogin(connection, peer_text, time.monotonic() + _LOGIN_SECONDS)

    def _read_login(self, connection: socket.socket) -> None:
        """Read what has come of a client's first line; begin its session or refuse it when the line is complete."""
        login = self._pending[connection]
        try:
            data = connection.recv(MAX_LOGIN_BYTES)
        except OSError:
            data = b""
        login.line += data
        if data and b"\n" not in login.line and len(login.line) < MAX_LOGIN_BYTES:
            return
        del self._pending[connection]
        # One comparison in constant time, for the token, the version and bytes that come too early.
        if not hmac.compare_digest(login.line, self._login):
            self._refuse(connection, DENIED)
            self._report(f"{login.peer}: denied, without the token")
        elif self._session is None:
            self._begin_session(login)
        elif self._next is None:
            login.deadline = time.monotonic() + _BUSY_SECONDS
            self._next = login
        else:
            self._refuse_busy(login)

    def _refuse(self, connection: socket.socket, answer: str) -> None:
        """Answer one line and close the connection."""
        with suppress(OSError):
            connection.sendall(f"{answer}\n".encode())
        connection.close()

    def _refuse_busy(self, login: _PendingLogin) -> None:
        """Refuse a client that has logged in, since another one uses the board."""
        self._refuse(login.connection, BUSY)
        self._report(f"{login.peer}: refused, since another client uses the board")

    def _open_line(self) -> _BoardLine | None:
        """Return the line to a board that works; None, with a report, if it cannot be opened again."""
        line = self._line
        if line is not None and not line.is_lost and not (self._board.restartable and line.is_computing):
            return line
        if line is not None:
            self._line = None
            line.close()
        try:
            self._line = _BoardLine(self._board, self._send_to_client, self._end_lost_session)
        except MicrocError as error:
            self._report(f"board {self._board.name}: {error.what}")
        return self._line

    # ---- The session of the one client.

    def _begin_session(self, login: _PendingLogin) -> None:
        """Begin the session of a client that has logged in, if the board can be reached."""
        connection, line = login.connection, self._open_line()
        if line is None:
            self._refuse(connection, LOST)
            return
        self.client_count += 1
        board_name = make_printable(self._board.name, MAX_LOGIN_BYTES)  # a file's name, which may contain line ends
        ready = f"{READY} {EMULATED if self._board.emulated else ATTACHED} {board_name}\n"
        try:
            connection.sendall(ready.encode("utf-8", "replace"))
        except OSError:
            connection.close()
            return
        self._session = session = _Session(connection, login.peer, line)
        self._report(f"{login.peer}: connected")
        if line.is_lost:  # before there was a session that the board's thread could have ended
            session.shut_down()

    def _carry_to_board(self, session: _Session) -> None:
        """Carry the bytes that have come from the client to the board. End the session if the client has gone or sends
        more than a frame without a delimiter, or if the board is lost."""
        try:
            data = session.connection.recv(_CHUNK)
        except OSError:
            data = b""
        if not data:
            self._end_session("the board is lost" if session.line.is_lost else "disconnected")
        elif not session.measure_frames(data):
            self._end_session(f"disconnected, since a frame exceeds {MAX_ENCODED_BYTES} bytes")
        elif not session.line.write(data):
            self._end_session("disconnected, since the board is lost")
        else:
            session.last_byte = time.monotonic()
            time.sleep(len(data) / _MAX_BYTES_PER_SECOND)

    def _send_to_client(self, data: bytes) -> None:
        """Carry bytes of the board to the client, if there is one. The board's thread calls this."""
        session = self._session
        if session is not None:
            try:
                session.connection.sendall(data)
            except OSError:  # it has gone or reads nothing: the main thread sees the end of the connection
                session.shut_down()

    def _end_lost_session(self) -> None:
        """End the connection of the client, since the board is lost. The board's thread calls this."""
        session = self._session
        if session is not None:
            session.shut_down()

    def _end_session(self, reason: str) -> None:
        """Close the connection of the client."""
        session, self._session = self._session, None
        if session is not None:
            session.close()
            self._report(f"{session.peer}: {reason}")

    def _close_overdue(self, now: float) -> None:
        """Close connections that have been silent for too long."""
        for connection in [c for c, login in self._pending.items() if login.deadline <= now]:
            del self._pending[connection]
            self._refuse(connection, DENIED)
        if self._next is not None and self._next.deadline <= now:
            login, self._next = self._next, None
            self._refuse_busy(login)
        if self._session is not None and self._session.last_byte + self._idle_seconds <= now:
            self._end_session(f"disconnected after {self._idle_seconds:g} s of silence")


class _PendingLogin:
    """A connection that has not sent its whole first line yet, or waits for the client before it to end."""

    def __init__(self, connection: socket.socket, peer: str, deadline: float) -> None:
        self.connection, self.peer, self.deadline = connection, peer, deadline
        self.line = b""


class _Session:
    """The client that uses the board."""

    def __init__(self, connection: socket.socket, peer: str, line: _BoardLine) -> None:
        self.connection, self.peer, self.line = connection, peer, line
        self.last_byte = time.monotonic()
        self._frame_bytes = 0

    def measure_frames(self, data: bytes) -> bool:
        """Add bytes of the client; return False if a frame, the bytes between two zeros, is longer than the protocol
        allows."""
        first, *others = data.split(b"\0")
        lengths = [self._frame_bytes + len(first), *map(len, others)]
        self._frame_bytes = lengths[-1]
        return max(lengths) <= MAX_ENCODED_BYTES

    def shut_down(self) -> None:
        """End the connection, so that the main thread finds it closed."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. The shutdown wakes the board's thread if it is sending."""
        self.shut_down()
        self.connection.close()


class _BoardLine:
    """The open line to the board, and the thread that reads it.

    ``is_lost``: True after the line has failed. ``is_computing``: True if the board has sent nothing since the last byte
    that it got, so that it computes or has crashed."""

    def __init__(self, board: ServedBoard, receive: Callable[[bytes], None], lose: Callable[[], None]) -> None:
        self.is_lost = self.is_computing = False
        self._receive, self._lose = receive, lose
        self._is_ended = threading.Event()
        with ExitStack() as stack:
            self._transport = stack.enter_context(board.open_line())
            self._stack = stack.pop_all()
        self._thread = threading.Thread(target=self._read_board, daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> bool:
        """Send bytes to the board; return False if its line is lost."""
        self.is_computing = True
        try:
            self._transport.write(data)
        except MicrocError:
            self.is_lost = True
        return not self.is_lost

    def close(self) -> None:
        """Close the line. The thread ends first, since it may be reading."""
        self._is_ended.set()
        self._thread.join()
        self._stack.close()

    def _read_board(self) -> None:
        """Read the board until the line is closed or lost."""
        while not self._is_ended.is_set():
            try:
                data = self._transport.read(_POLL_SECONDS)
            except MicrocError:
                self.is_lost = True
                self._lose()
                return
            if data:
                self.is_computing = False
                self._receive(data)
