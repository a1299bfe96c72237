"""Frames between host and board: COBS between 0x00 delimiters, an 8-byte header, the CRC-32 of zlib.

``runtime_c/SPEC.md`` defines every byte; ``runtime_c/src/microc_frame.c`` is the same on the board.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum

from microc.frozen import frozen

VERSION = 1
REPLY = 0x80
OVERHEAD = 12
_HEADER = struct.Struct("<BBHBBH")
_LONGEST = 4096 + OVERHEAD + 32


class Operation(IntEnum):
    """What a request asks for; its reply carries the same number with :data:`REPLY` added."""

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


class Status(IntEnum):
    """Outcome of a request, as the reply's header says it."""

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
    """One request or reply. ``argument`` is the model's index in a request and the status, as one byte, in a reply."""

    operation: int
    session: int
    sequence: int
    argument: int = 0
    payload: bytes = b""
    version: int = VERSION

    @property
    def status(self) -> int:
        """``argument`` as the signed number that it is in a reply."""
        return self.argument - 256 if self.argument > 127 else self.argument


def seal(body: bytes) -> bytes:
    """The bytes on the line for a header and payload: CRC appended, COBS, a delimiter on both sides."""
    from cobs import cobs

    encoded: bytes = cobs.encode(body + struct.pack("<I", zlib.crc32(body)))
    return b"\0" + encoded + b"\0"


def encode(frame: Frame) -> bytes:
    """The bytes on the line for ``frame``."""
    header = _HEADER.pack(
        frame.version, frame.operation, frame.session, frame.sequence, frame.argument, len(frame.payload)
    )
    return seal(header + frame.payload)


class Decoder:
    """Collects bytes of the line into frames; damaged frames are counted in ``bad`` and skipped."""

    def __init__(self) -> None:
        self.bad = 0
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Take bytes as they arrive; return the frames that they complete, in order."""
        *ended, rest = data.split(b"\0")
        frames = []
        for piece in ended:
            self._pending += piece
            if self._pending:
                frame = _decode(bytes(self._pending))
                if frame is None:
                    self.bad += 1
                else:
                    frames.append(frame)
            self._pending.clear()
        # What is longer than any frame cannot become one: keep just enough of it to be refused.
        self._pending += rest[: max(0, _LONGEST - len(self._pending))]
        return frames


def _decode(encoded: bytes) -> Frame | None:
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
