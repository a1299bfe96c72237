# SPDX-License-Identifier: Apache-2.0
"""Frames and sessions of microc's serial protocol, over a line that may lose or damage bytes."""

from __future__ import annotations

import secrets
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from math import inf
from types import MappingProxyType

from microc.base.immutable import frozen
from microc.device.transport import Transport
from microc.errors import DeviceError

# ---- Frames: an 8-byte header, payload and zlib's CRC-32, in COBS between 0x00 delimiters.
#
# ``runtime_c/SPEC.md`` defines every byte; ``runtime_c/src/microc_frame.c`` is the board's implementation.

VERSION = 1
REPLY = 0x80
OVERHEAD = 12
"""Bytes of header and CRC."""
_HEADER = struct.Struct("<BBHBBH")
MAX_ENCODED_BYTES = 4096 + OVERHEAD + 32
"""Largest length of a frame between its delimiters: header, payload and CRC in COBS, which adds a byte per 254."""


class Operation(IntEnum):
    """Number of a request's operation. The reply has the same number plus :data:`REPLY`."""

    HELLO = 1
    MODEL = 2
    TENSORS = 3
    WRITE = 4
    READ = 5
    RUN = 6
    PROFILE = 7
    RESET = 8
    STATS = 9
    REGION = 10
    LOAD = 11
    FETCH = 12
    CALL = 13
    CHECK = 14
    SLOTS = 15
    ERASE = 16
    COMMIT = 17
    BANK = 18
    BANK_READ = 19
    SAVE = 20
    RESTORE = 21
    CLEAR = 22


class Status(IntEnum):
    """Status code in the header of a reply; negative codes are refusals."""

    OK = 0
    BAD_VERSION = -1
    BAD_SESSION = -2
    BAD_SEQUENCE = -3
    BAD_OPERATION = -4
    BAD_LENGTH = -5
    BAD_MODEL = -6
    BAD_TENSOR = -7
    BAD_RANGE = -8
    BAD_COUNT = -9
    UNBOUND = -10
    RUN_FAILED = -11
    BAD_IMAGE = -12
    BAD_TARGET = -13
    NO_ROOM = -14
    BAD_SIGNATURE = -15
    SLOT_FAILED = -16


@frozen
class Frame:
    """A frame of the serial protocol: a request or a reply.

    ``argument``: index of the model in a request, status as an unsigned byte in a reply."""

    operation: int
    session: int
    sequence: int
    argument: int = 0
    payload: bytes = b""
    version: int = VERSION

    @property
    def status(self) -> int:
        """Status of a reply: ``argument`` as a signed byte."""
        return self.argument - 256 if self.argument > 127 else self.argument


def encode_with_crc(body: bytes) -> bytes:
    """Encode the header and payload of a frame for the line: append the CRC-32, apply COBS, add a 0 on both sides."""
    from cobs import cobs

    encoded: bytes = cobs.encode(body + struct.pack("<I", zlib.crc32(body)))
    return b"\0" + encoded + b"\0"


def encode_frame(frame: Frame) -> bytes:
    """Encode a frame as the bytes that the line carries."""
    header = _HEADER.pack(
        frame.version, frame.operation, frame.session, frame.sequence, frame.argument, len(frame.payload)
    )
    return encode_with_crc(header + frame.payload)


class FrameDecoder:
    """Decoder of received bytes to frames. It skips damaged frames and counts them in ``bad``."""

    def __init__(self) -> None:
        self.bad = 0
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Add received bytes; return the frames that they complete, in order."""
        *completed, rest = data.split(b"\0")
        frames = []
        for piece in completed:
            self._pending += piece
            if self._pending:
                frame = _decode_frame(bytes(self._pending))
                if frame is None:
                    self.bad += 1
                else:
                    frames.append(frame)
            self._pending.clear()
        # Bound memory: bytes beyond the longest frame are dropped, and the rest is rejected as damaged.
        self._pending += rest[: max(0, MAX_ENCODED_BYTES - len(self._pending))]
        return frames


def _decode_frame(encoded: bytes) -> Frame | None:
    """Decode the bytes between two delimiters (0) to a frame; None if they are damaged."""
    from cobs import cobs

    try:
        sealed: bytes = cobs.decode(encoded)
    except cobs.DecodeError:
        return None
    body = sealed[:-4]
    if len(body) < _HEADER.size or zlib.crc32(body) != int.from_bytes(sealed[-4:], "little"):
        return None
    version, operation, session, sequence, argument, length = _HEADER.unpack_from(body)
    payload = body[_HEADER.size :]
    if length != len(payload):
        return None
    return Frame(operation, session, sequence, argument, payload, version)


# ---- Requests and replies: each request is executed exactly once, or raises an error.
#
# One request is in progress at a time. Without an answer it is repeated with the same sequence number; if the board had executed
# it, it repeats its stored answer instead of executing again. See ``runtime_c/SPEC.md``, "Session and sequence".

_GROWTH, _LARGEST_GROWTH = 1.5, 4.0
"""Factor by which the wait grows with each repetition, and its limit in multiples of the first wait."""
_REOPEN_SECONDS = 0.1
_MANY_STRAYS = 50  # frames that answer none of our requests; a few are normal on a bad line, many suggest an echo

_REASONS: Mapping[int, tuple[str, str]] = MappingProxyType(
    {
        Status.BAD_VERSION: ("the firmware speaks another protocol version", "build and flash the project again"),
        Status.BAD_SESSION: ("the board has restarted", "connect again and repeat; did the firmware crash?"),
        Status.BAD_SEQUENCE: ("the board has lost count of the requests", "does another program use this line?"),
        Status.BAD_OPERATION: (
            "the firmware does not know this operation",
            "build and flash the project again; to load kernels, with --protocol tuning; networks, with --relocatable",
        ),
        Status.BAD_MODEL: ("the firmware holds no such model", ""),
        Status.BAD_TENSOR: ("the model has no such tensor", ""),
        Status.BAD_RANGE: ("bytes or kernels out of range", ""),
        Status.UNBOUND: ("the tensor has no memory on the board", "bind it in the firmware before the host uses it"),
        Status.RUN_FAILED: (
            "the model's run function has failed",
            "if the network reads weights.bin, copy the file of this project to the board's storage",
        ),
        Status.BAD_IMAGE: ("the code is not there whole", "load it again: something has overwritten it"),
        Status.BAD_TARGET: (
            "the network is of another core, ABI or format than the firmware",
            "compile it for the board whose firmware is there: --board BOARD --relocatable",
        ),
        Status.NO_ROOM: ("the network needs more flash, memory or stack than the firmware has for it", ""),
        Status.BAD_SIGNATURE: (
            "the firmware does not accept the network's signature",
            "sign it as the firmware's microc_slot_verify expects; the network before it still runs",
        ),
        Status.SLOT_FAILED: ("the board could not erase or write its slot", "load it again; is its flash worn out?"),
    }
)
"""Message and hint by status."""
_BANK_REASONS: Mapping[int, tuple[str, str]] = MappingProxyType(
    {
        **_REASONS,
        Status.BAD_OPERATION: ("the network does not learn", "compile it with --learn head.toml, build and flash it"),
        Status.BAD_IMAGE: ("the weights are not there whole", "send them again; the save before is kept"),
        Status.BAD_TARGET: ("the weights are of another network", "send those of the same model with the same --learn"),
        Status.SLOT_FAILED: (
            "the board could not read, erase or write its banks",
            "define microc_port_bank_read and microc_port_bank_write (docs/learning.md)",
        ),
    }
)
"""Message and hint by status, of requests about banks of learned weights."""
_RESTORE_REASONS: Mapping[int, tuple[str, str]] = MappingProxyType(
    {
        **_BANK_REASONS,
        Status.BAD_IMAGE: ("no bank contains a whole save", "save the weights first: microc learn --keep"),
    }
)
"""Message and hint by status, of RESTORE."""


class ProtocolSession:
    """A session of the serial protocol on ``transport``.

    ``timeout``: seconds without an answer before a request is repeated. The wait grows with each of the ``retries``
    repetitions, up to four times as long. If the board restarts during a run, it refuses the next repetition, since it
    does not know the session. ``reconnect``: seconds to wait for a lost line. A board that kept its power continues the
    session."""

    def __init__(self, transport: Transport, timeout: float, retries: int, reconnect: float = 0.0) -> None:
        self.transport = transport
        self.session = 0
        self.sequence = 0
        self._timeout = timeout
        self._retries = retries
        self._reconnect = reconnect
        self._decoder = FrameDecoder()
        self._deadline = inf
        self._limit = inf
        self._strays = 0

    @property
    def where(self) -> str:
        """Description of the line, for errors."""
        return self.transport.description

    @property
    def patience(self) -> float:
        """Seconds after which a request without an answer fails."""
        waits = (self._timeout * min(_GROWTH**k, _LARGEST_GROWTH) for k in range(self._retries + 1))
        return sum(waits) + self._reconnect

    @contextmanager
    def limit_time(self, seconds: float) -> Iterator[None]:
        """Limit the total time of all requests in a ``with`` block to ``seconds``, else DeviceError.

        A board that answers each request at the last moment, or sends single bytes, therefore cannot block the host."""
        before = self._deadline, self._limit
        self._deadline, self._limit = min((time.monotonic() + seconds, seconds), before)
        try:
            yield
        finally:
            self._deadline, self._limit = before

    def begin_session(self) -> bytes:
        """Begin a new session; return the board's answer to HELLO."""
        reply = self._send_hello()
        if reply.status == Status.BAD_SEQUENCE:  # the random session number happened to be the board's current one
            reply = self._send_hello()
        return self._extract_payload_of_reply(Operation.HELLO, reply, 8)

    def _send_hello(self) -> Frame:
        """Send HELLO with a new random session number; return the reply."""
        choices = 0xFFFF - (self.session != 0)
        self.session = (self.session + secrets.randbelow(choices)) % 0xFFFF + 1  # neither the previous one nor 0
        return self._send_with_next_sequence_number(Operation.HELLO, b"", 0, 0.0)

    def request(
        self,
        operation: Operation,
        payload: bytes = b"",
        *,
        model: int = 0,
        answer_bytes: int | None = None,
        min_wait_seconds: float = 0.0,
    ) -> bytes:
        """Send a request; return the answer, of ``answer_bytes`` bytes if given.

        Raises DeviceError after ``retries`` unanswered repetitions and at least ``min_wait_seconds``, and if the board
        refuses.
        """
        return self._extract_payload_of_reply(
            operation, self._send_with_next_sequence_number(operation, payload, model, min_wait_seconds), answer_bytes
        )

    def invalid_answer_error(self, operation: Operation) -> DeviceError:
        """Return the error for an answer to ``operation`` that violates the protocol."""
        what = f"the board's answer to {operation.name} is malformed"
        return DeviceError(what, where=self.where, hint="flash the firmware again")

    def _extract_payload_of_reply(self, operation: Operation, reply: Frame, answer_bytes: int | None) -> bytes:
        """Return the payload of a reply to ``operation``. Raises DeviceError if its protocol version, its status or its
        length ``answer_bytes`` (None: any) is wrong."""
        if reply.version != VERSION:
            raise DeviceError(
                f"the firmware has another protocol version; got {reply.version}, expected {VERSION}",
                where=self.where,
                hint="build and flash the project again with this microc",
            )
        if reply.status != Status.OK:
            bank_reasons = _RESTORE_REASONS if operation == Operation.RESTORE else _BANK_REASONS
            reasons = bank_reasons if operation >= Operation.BANK else _REASONS
            what, hint = reasons.get(reply.status, (f"status {reply.status}", ""))
            raise DeviceError(f"the board refuses {operation.name}: {what}", where=self.where, hint=hint)
        if answer_bytes is not None and len(reply.payload) != answer_bytes:
            raise self.invalid_answer_error(operation)
        return reply.payload

    def _send_with_next_sequence_number(
        self, operation: Operation, payload: bytes, model: int, min_wait_seconds: float
    ) -> Frame:
        """Send a request under the next sequence number; return the reply."""
        self.sequence = (self.sequence + 1) & 0xFF
        return self._repeat_until_reply(Frame(operation, self.session, self.sequence, model, payload), min_wait_seconds)

    def _repeat_until_reply(self, request: Frame, min_wait_seconds: float) -> Frame:
        """Send a request, repeat it until a reply comes, and return the reply.

        Raises DeviceError after the last repetition, but not before ``min_wait_seconds`` have passed."""
        data = encode_frame(request)
        start = time.monotonic()
        wait, attempt, elapsed = self._timeout, 0, 0.0
        self._strays = 0
        while attempt <= self._retries or elapsed < min_wait_seconds:
            remaining = self._deadline - time.monotonic()
            if remaining <= 0:
                name = Operation(request.operation).name
                what = f"the board is too slow: no answer to {name} within the {self._limit:.1f} s for this operation"
                raise DeviceError(what, where=self.where, hint=self._hint_about_silence(request))
            reply = self._send_once(request, data, min(wait, remaining))
            if reply is not None:
                return reply
            attempt += 1
            elapsed = time.monotonic() - start
            wait = min(wait * _GROWTH, self._timeout * _LARGEST_GROWTH)
        what = (
            f"no answer to {Operation(request.operation).name} in {elapsed:.1f} s; the request was sent {attempt} times"
        )
        raise DeviceError(what, where=self.where, hint=self._hint_about_silence(request))

    def _hint_about_silence(self, request: Frame) -> str:
        """Return the hint about the likely reason why a request got no reply."""
        if self._strays > _MANY_STRAYS:
            return (
                f"build and flash the firmware again with this microc: {self._strays} frames came without a request, "
                "since older firmware answers its own answers on a line that echoes"
            )
        if request.operation == Operation.HELLO:
            return "is the firmware running, and built with the RPC protocol and this baud rate?"
        if request.operation in (Operation.RUN, Operation.PROFILE, Operation.CALL):
            return (
                "a loop of the network may never end, where its condition stays true for these inputs, or the run takes longer: "
                "allow more time (--timeout), else reset the board, or did the firmware crash?"
            )
        return "did the firmware crash? reset the board, or allow more time"

    def _send_once(self, request: Frame, encoded_request: bytes, wait_seconds: float) -> Frame | None:
        """Send a request once and wait ``wait_seconds`` for its reply; None if none came or a lost line was reopened.

        ``encoded_request``: the bytes of the request on the line."""
        try:
            self.transport.write(encoded_request)
            return self._await_reply(request, time.monotonic() + wait_seconds)
        except DeviceError:
            if not self._reopen_lost_line():
                raise
            self._decoder = FrameDecoder()
            return None

    def _reopen_lost_line(self) -> bool:
        """Try to reopen a lost line for the ``reconnect`` seconds of the session; return True on success."""
        deadline = min(time.monotonic() + self._reconnect, self._deadline)
        while time.monotonic() < deadline:
            if self.transport.reopen():
                return True
            time.sleep(_REOPEN_SECONDS)
        return False

    def _await_reply(self, request: Frame, deadline: float) -> Frame | None:
        """Wait for the reply to ``request``; None at the deadline.

        Other frames are dropped: late replies, and the host's own requests on a line that echoes them."""
        expected = (request.operation | REPLY, request.session, request.sequence)
        while (remaining := deadline - time.monotonic()) > 0:
            for frame in self._decoder.feed(self.transport.read(remaining)):
                if (frame.operation, frame.session, frame.sequence) == expected:
                    return frame
                self._strays += frame != request
        return None
