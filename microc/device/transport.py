# SPDX-License-Identifier: Apache-2.0
"""Transports, the lines to a board: serial ports, TCP sockets, boards behind ``microc serve`` and processes on a pipe;
and the search for a board's port."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, Queue, SimpleQueue
from threading import Thread
from typing import Any, Protocol

from microc.base.file_access import read_text
from microc.base.immutable import frozen
from microc.base.operating_system import (
    can_lock_serial_port,
    example_serial_port,
    is_windows,
    join_arguments,
    split_command,
    terminal_error_types,
)
from microc.device.board_info import make_printable
from microc.device.boards import emulated_board_hint
from microc.errors import DeviceError, UsageError, similar_names_hint
from microc.target import Board

# ---- Serial ports of this computer, and the port of a board by the USB ids in its file.

ADAPTERS = (
    "0403:6001",
    "0403:6010",
    "0403:6014",
    "0403:6015",
    "067b:2303",
    "10c4:ea60",
    "1a86:7523",
    "1a86:55d3",
    "1a86:55d4",
)
"""USB ids of common serial adapters (FTDI, Prolific, Silicon Labs, WCH), for boards without USB of their own."""


@frozen
class Port:
    """A serial port of this computer.

    ``usb``: USB ids ``vid:pid`` in lower-case hexadecimal, empty for other ports. ``serial``: USB serial number."""

    name: str
    description: str
    usb: str
    serial: str


def list_ports() -> tuple[Port, ...]:
    """List the serial ports of this computer by name, with descriptions that are safe to print."""
    from serial.tools import list_ports as machine

    return tuple(
        Port(
            p.device,
            make_printable(p.description or ""),
            "" if p.vid is None else f"{p.vid:04x}:{p.pid:04x}",
            make_printable(p.serial_number or ""),
        )
        for p in sorted(machine.comports())
    )


def select_candidate_ports(board: Board, ports: Sequence[Port]) -> tuple[Port, ...]:
    """List the ports with a board's USB ids; without any, the ports of common serial adapters."""
    ids: tuple[str, ...] = tuple(board.raw.get("usb", ()))
    return tuple(p for p in ports if p.usb in ids) or tuple(p for p in ports if p.usb in ADAPTERS)


def find_board_port(board: Board) -> str:
    """Find the serial port of a board by its USB ids; return its name. Raises UsageError unless exactly one port
    matches."""
    ports = list_ports()
    matches = select_candidate_ports(board, ports)
    if len(matches) == 1:
        return matches[0].name
    if matches:
        match_text = ", ".join(f"{p.name} ({p.description})" for p in matches)
        raise UsageError(
            f"board {board.name!r} may be on any of {len(matches)} ports: {match_text}",
            hint=f"name its port: --port {matches[0].name}",
        )
    port_names = ", ".join(p.name for p in ports) or "none"
    raise UsageError(
        f"board {board.name!r} is on no serial port that microc recognises; the ports of this computer: {port_names}",
        hint="; ".join(
            filter(None, (f"plug it in, or name its port: --port {example_serial_port()}", emulated_board_hint(board)))
        ),
    )


# ---- Transports: serial ports and ptys, TCP sockets (emulators, serial servers), host processes.
#
# A transport moves bytes and knows nothing of frames. A lost line (unplugged, closed, process ended) raises
# :class:`~microc.errors.DeviceError`; a silent line returns empty reads.

_CHUNK = 4096
_MAX_CHUNKS = 64  # that a program has written and nobody has read; then the program waits, as on a pipe
_WRITE_SECONDS = 10.0
_MAX_MESSAGES = 4096  # bytes of a program's standard error that are kept
_POLL = 0.02  # seconds; pyserial reconfigures the port whenever its time-out changes, so that stays fixed and reads are repeated
_BUSY = (errno.EBUSY, errno.EAGAIN)
_GONE_HINT = "check the cable and the power, then try again"


class Transport(Protocol):
    """Interface of a line to a board. A lost line raises DeviceError."""

    @property
    def description(self) -> str:
        """The line's address, for error messages."""

    def read(self, timeout: float) -> bytes:
        """Return the bytes that have arrived; wait ``timeout`` seconds for the first byte, and return nothing if none
        came."""

    def write(self, data: bytes) -> None:
        """Send all bytes of ``data``."""

    def reopen(self) -> bool:
        """Try once to reopen a lost line; return True on success."""

    def close(self) -> None:
        """Close the line; further calls do nothing."""


class SerialTransport:
    """A serial port, a pty, or another port that pyserial supports (``rfc2217://...``); 8 data bits, no parity."""

    def __init__(self, port: str, baud: int = 115200) -> None:
        self.description = port
        self._baud = baud
        self._errors_when_lost = _pyserial_error_types()
        self._usb_port = next((p for p in list_ports() if p.name == port and p.serial), None)
        try:
            self._serial = self._open_port(port)
        except self._errors_when_lost as error:
            raise DeviceError(
                f"cannot open the port: {_describe_system_error(error)}",
                where=port,
                hint=_hint_for_port_that_cannot_open(error, port),
            ) from error
        except ValueError as error:
            raise UsageError(f"cannot open the port: {error}", where=port) from error

    def _open_port(self, port: str) -> Any:
        """Open a port exclusively at the transport's baud rate; return the pyserial object."""
        import serial

        lines = {"baudrate": self._baud, "timeout": _POLL, "write_timeout": _WRITE_SECONDS}
        exclusive = True if can_lock_serial_port() else None  # one program at a time
        return serial.serial_for_url(port, exclusive=exclusive, **lines)

    def read(self, timeout: float) -> bytes:
        deadline = time.monotonic() + timeout
        try:
            data: bytes = self._serial.read(1)
            while not data and time.monotonic() < deadline:
                data = self._serial.read(1)
            return data + self._serial.read(self._serial.in_waiting) if data else b""
        except self._errors_when_lost as error:
            raise DeviceError(f"the port is gone: {error}", where=self.description, hint=_GONE_HINT) from error

    def write(self, data: bytes) -> None:
        try:
            self._serial.write(data)
            self._serial.flush()
        except self._errors_when_lost as error:
            raise DeviceError(f"the port is gone: {error}", where=self.description, hint=_GONE_HINT) from error

    def reopen(self) -> bool:
        """Try once to reopen the port; return True on success.

        Its USB serial number identifies it, since it may have another name after it was plugged in again."""
        self.close()
        usb_port = self._usb_port
        names = (p.name for p in list_ports() if usb_port and (p.usb, p.serial) == (usb_port.usb, usb_port.serial))
        with contextlib.suppress(ValueError, *self._errors_when_lost):
            self._serial = self._open_port(next(names, self.description))
            return True
        return False

    def close(self) -> None:
        with contextlib.suppress(*self._errors_when_lost):
            self._serial.close()


def _pyserial_error_types() -> tuple[type[Exception], ...]:
    """List the exception types that pyserial raises if a port vanishes: its own type, that of the operating system, and
    TypeError after ``close``."""
    import serial

    return (serial.SerialException, OSError, TypeError, *terminal_error_types())


def _describe_system_error(error: Exception) -> str:
    """Return the message of an error of the operating system, without its number."""
    number = getattr(error, "errno", None)
    return "another program has it open" if _is_busy(error) else os.strerror(number) if number else str(error)


def _is_busy(error: Exception) -> bool:
    """Test whether another program has a port open. Windows denies the access then, which pyserial reports as text."""
    return getattr(error, "errno", None) in _BUSY or (is_windows() and "PermissionError" in str(error))


def _hint_for_port_that_cannot_open(error: Exception, port: str) -> str:
    """Return the hint for a serial port that cannot be opened."""
    number = getattr(error, "errno", None)
    if number == 13:
        return "you may lack the right to open it: on Linux, join the group that owns the port (often dialout)"
    if _is_busy(error):
        return "close that program (a terminal, a monitor, another microc), or name another port"
    nearest_port = similar_names_hint(port, [found.name for found in list_ports()])
    return (
        nearest_port
        or "is the board plugged in? microc ports lists the ports; an emulated board has none: leave out --port"
    )


class SocketTransport:
    """A TCP connection to an emulator's serial line or a serial server."""

    scheme = "socket"
    other_side = "the emulator or serial server"

    def __init__(self, host: str, port: int, connect_timeout: float = 5.0) -> None:
        self.description = format_tcp_address(host, port, self.scheme)
        self._address = (host, port)
        self._connect_timeout = connect_timeout
        try:
            self._socket = self._connect_socket()
        except OSError as error:
            raise DeviceError(
                f"cannot connect: {error}", where=self.description, hint=f"start {self.other_side}"
            ) from error

    def _connect_socket(self) -> socket.socket:
        """Connect to the address; raise OSError if that fails."""
        connection = socket.create_connection(self._address, self._connect_timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(_WRITE_SECONDS)
        return connection

    def read(self, timeout: float) -> bytes:
        try:
            if not select.select([self._socket], [], [], timeout)[0]:
                return b""
            data = self._socket.recv(_CHUNK)
        except (OSError, ValueError) as error:
            raise self._make_lost_line_error(str(error)) from error
        if not data:
            raise self._make_lost_line_error("closed by the other side")
        return data

    def write(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._make_lost_line_error(str(error)) from error

    def reopen(self) -> bool:
        self.close()
        try:
            self._socket = self._connect_socket()
        except (OSError, DeviceError):
            return False
        return True

    def close(self) -> None:
        self._socket.close()

    def _make_lost_line_error(self, why: str) -> DeviceError:
        """Return the error for a lost connection."""
        return DeviceError(
            f"the connection is gone: {why}", where=self.description, hint=f"start {self.other_side} again"
        )


# ---- A board behind ``microc serve``. The client sends one line with the token, and the server answers with one line.
#
# Afterwards both sides carry the bytes of the board's serial line as they are. :mod:`microc.device.server` is the other side.

TOKEN, TOKEN_FILE = "MICROC_TOKEN", "MICROC_TOKEN_FILE"
"""Environment variables of the client: the token, or the path of a file that contains it. A token on a command line or in
an address would be visible to the other users of the computer."""
READY, DENIED, BUSY, LOST = "ready", "denied", "busy", "lost"
"""First words of the server's answers. READY is followed by :data:`EMULATED` or :data:`ATTACHED` and the board's name."""
EMULATED, ATTACHED = "emulated", "attached"
MAX_LOGIN_BYTES = 512
"""Largest length of the line with the token, and of the answer, in bytes with the line end."""
_TOKEN_FORM = re.compile("[!-~]{16,128}")
_READY_FORM = re.compile(f"{READY} ({EMULATED}|{ATTACHED}) (.+)")
_LOGIN_SECONDS = 60.0
"""Time to wait for the answer: the server may have to start an emulator first."""
_REFUSALS = {
    DENIED: ("the server refuses the token", f"set {TOKEN} to the token that microc serve of the same version prints"),
    BUSY: ("the board is busy: another client uses it", "wait until that client has ended, then try again"),
    LOST: ("the server cannot reach its board", "check the board's cable and power, and what microc serve prints"),
}


def encode_login(token: str) -> bytes:
    """Encode the first line of a client; its number is the version of the handshake."""
    return f"microc 1 {token}\n".encode("ascii")


def parse_token(text: str, source: str) -> str:
    """Return a token without surrounding white space. ``source``: its origin, for the error, which never shows the token.

    Raises UsageError unless it has 16 to 128 printable ASCII characters without blanks."""
    token = text.strip()
    if not _TOKEN_FORM.fullmatch(token):
        raise UsageError(
            f"{source}: got no valid token, expected 16 to 128 printable ASCII characters without blanks",
            hint="make one: python -c 'import secrets; print(secrets.token_urlsafe())'",
        )
    return token


def read_token_file(path: Path, source: str) -> str:
    """Read the token in a file. ``source``: name of the option or variable, for errors. Raises UsageError if there is
    none."""
    try:
        return parse_token(read_text(path, 4096), source)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(
            f"{source}: cannot read the token: {why}", where=str(path), hint="name a file that contains the token alone"
        ) from error


def _token_of_environment(address: str) -> str:
    """Return the token for a server, from the environment. Raises UsageError if there is none."""
    if token := os.environ.get(TOKEN):
        return parse_token(token, TOKEN)
    if path := os.environ.get(TOKEN_FILE):
        return read_token_file(Path(path), TOKEN_FILE)
    raise UsageError(
        "a board behind microc serve requires a token; got none",
        where=address,
        hint=f"set {TOKEN} to the token that the server prints, or {TOKEN_FILE} to a file that contains it",
    )


class RemoteTransport(SocketTransport):
    """A board behind ``microc serve`` on another computer.

    ``board``: name of its board file. ``emulated``: True if the server's emulator runs it, so that its ticks are no
    time."""

    scheme = "tcp"
    other_side = "microc serve"

    def __init__(self, host: str, port: int, token: str) -> None:
        self.board, self.emulated = "", False
        self._token = token
        super().__init__(host, port)

    def _connect_socket(self) -> socket.socket:
        """Connect and log in. Raises OSError if there is no server, DeviceError if it refuses."""
        connection = super()._connect_socket()
        try:
            connection.sendall(encode_login(self._token))
            answer = _read_line(connection, time.monotonic() + _LOGIN_SECONDS)
            if ready := _READY_FORM.fullmatch(answer):
                self.emulated, self.board = ready[1] == EMULATED, make_printable(ready[2], MAX_LOGIN_BYTES)
                return connection
            what, hint = _REFUSALS.get(answer, ("the answer is not that of microc serve", "check host and port"))
            raise DeviceError(what, where=self.description, hint=hint)
        except BaseException:
            connection.close()
            raise


def _read_line(connection: socket.socket, deadline: float) -> str:
    """Read a line of at most :data:`MAX_LOGIN_BYTES` bytes, without its end; what came before the other side closed, the
    line grew too long or the deadline passed, if that is earlier."""
    line = b""
    # Byte by byte: those after the line belong to the board.
    while len(line) < MAX_LOGIN_BYTES and (remaining := deadline - time.monotonic()) > 0:
        byte = connection.recv(1) if select.select([connection], [], [], remaining)[0] else b""
        if byte in (b"", b"\n"):
            break
        line += byte
    return line.decode("utf-8", "replace")


def format_tcp_address(host: str, port: int, scheme: str = RemoteTransport.scheme) -> str:
    """Format an address ``SCHEME://HOST:PORT``, with brackets around the colons of IPv6."""
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


class PipeTransport:
    """A process on this computer with the line on its standard input and output, such as firmware built for the
    host.

    A thread reads the output and a thread writes the input, since Windows cannot wait for several pipes or for a time."""

    def __init__(self, command: Sequence[str]) -> None:
        self.description = "pipe:" + join_arguments(command)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        try:
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, bufsize=0
            )
        except OSError as error:
            self._errors.close()
            raise DeviceError(
                f"cannot start the program: {error}",
                where=self.description,
                hint="build it, and check that it is executable",
            ) from error
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._is_closed = False
        self._is_stalled = False  # True from the first write that the program did not read in time
        self._received: Queue[bytes] = Queue(_MAX_CHUNKS)  # empty bytes: the program has closed its output
        self._unsent: SimpleQueue[bytes] = SimpleQueue()  # empty bytes: nothing more to send
        self._sent: SimpleQueue[bool] = SimpleQueue()  # one for each of ``_unsent``: False if the program has ended
        self._threads = [Thread(target=run, daemon=True) for run in (self._receive_all, self._send_all)]
        for thread in self._threads:
            thread.start()

    def _receive_all(self) -> None:
        """Queue what the program writes until it closes its output; discard it after :meth:`close`."""
        data = b"more"
        while data:
            try:
                data = os.read(self._output.fileno(), _CHUNK)
            except OSError:
                data = b""
            if not self._is_closed:
                self._received.put(data)

    def _send_all(self) -> None:
        """Write what is queued to the program's input, then close it."""
        while data := self._unsent.get():
            try:
                while data:
                    data = data[self._input.write(data) or 0 :]
                self._sent.put(True)
            except (OSError, ValueError):
                self._sent.put(False)
        with contextlib.suppress(OSError):
            self._input.close()

    def read(self, timeout: float) -> bytes:
        if self._is_closed:
            raise self._make_lost_line_error()
        try:
            data = self._received.get(timeout=max(0.0, timeout))
        except Empty:
            return b""
        if not data:
            self._received.put(data)  # for the next call
            raise self._make_lost_line_error()
        return data

    def write(self, data: bytes) -> None:
        # After a timeout the thread still has the bytes, and its answer would count for the next ones.
        if self._is_closed or self._is_stalled:
            raise self._make_lost_line_error()
        if not data:
            return
        self._unsent.put(data)
        try:
            is_sent = self._sent.get(timeout=_WRITE_SECONDS)
        except Empty:
            self._is_stalled, is_sent = True, False
        if not is_sent:
            raise self._make_lost_line_error()

    def reopen(self) -> bool:
        """Return False, since the tensors of a program that has ended are lost."""
        return False

    def close(self) -> None:
        """Close the pipe, so that the program ends. It is killed if it runs for another second."""
        self._is_closed = True
        with contextlib.suppress(Empty):
            while True:  # a full queue blocks the thread, and the thread the program
                self._received.get_nowait()
        self._unsent.put(b"")
        self._wait_or_kill()
        for thread in self._threads:
            thread.join(1)  # not for ever: a process that the program has started may keep its output open
        if not any(thread.is_alive() for thread in self._threads):
            self._output.close()
        self._errors.close()

    def _wait_or_kill(self) -> int:
        """Wait a second for the program to end, else kill it; return its exit code."""
        try:
            return self._process.wait(1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _make_lost_line_error(self) -> DeviceError:
        """Return the error for a pipe that is closed or not read, or for a program that has ended, with its exit code and
        the first lines of its errors."""
        if self._is_closed:
            return DeviceError("the pipe is closed", where=self.description)
        if self._is_stalled and self._process.poll() is None:
            return DeviceError(
                "the program does not read its input", where=self.description, hint="check that it is the firmware"
            )
        exit_code = self._wait_or_kill()
        ending = f"was ended by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
        self._errors.seek(0)
        messages = [
            make_printable(line, 200)
            for line in self._errors.read(_MAX_MESSAGES).decode(errors="replace").strip().splitlines()
        ]
        return DeviceError(
            f"the program {ending}",
            where=self.description,
            hint="it said: " + " | ".join(messages[:3]) if messages else "",
        )


def open_transport(address: str, baud: int = 115200) -> Transport:
    """Open a line by its address: ``tcp://HOST:PORT`` (``microc serve``), ``socket://HOST:PORT``, ``pipe:PROGRAM
    ARGUMENTS``, or the name of a serial port."""
    if address.startswith("pipe:"):
        return PipeTransport(_split_pipe_command(address))
    if is_remote(address):
        host, port = _split_tcp_address(address)
        return RemoteTransport(host, port, _token_of_environment(address))
    if address.startswith(f"{SocketTransport.scheme}://"):
        return SocketTransport(*_split_tcp_address(address))
    if not address:
        examples = f"{example_serial_port()}, socket://HOST:PORT or pipe:./firmware"
        raise UsageError("port: got an empty address", hint=f"write {examples}")
    return SerialTransport(address, baud)


def is_remote(address: str) -> bool:
    """Test whether an address is that of a board behind ``microc serve``."""
    return address.startswith(f"{RemoteTransport.scheme}://")


def _split_tcp_address(address: str) -> tuple[str, int]:
    """Split an address ``SCHEME://HOST:PORT`` into host and port; raise UsageError if it is malformed."""
    scheme, _, authority = address.partition("://")
    if "@" in authority:  # the address is not repeated: what precedes the @ may be a token
        raise UsageError(
            f"port: got an address with a user or token before the host, expected {scheme}://HOST:PORT",
            hint=f"set {TOKEN} or {TOKEN_FILE} instead",
        )
    host, _, port = authority.rstrip("/").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(
            f"port: got {address!r}, expected {scheme}://HOST:PORT",
            where=address,
            hint=f"write {scheme}://127.0.0.1:5555",
        )
    return host.strip("[]"), int(port)


def _split_pipe_command(address: str) -> list[str]:
    """Split the command of an address ``pipe:COMMAND`` into words. Raises UsageError if it is malformed or empty."""
    try:
        command = split_command(address.removeprefix("pipe:"))
    except ValueError as error:
        raise UsageError(
            f"port: the address names no program: {error}", where=address, hint="write pipe:./firmware"
        ) from error
    if not command:
        raise UsageError("port: the address names no program", where=address, hint="write pipe:./firmware")
    return command
