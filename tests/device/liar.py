# SPDX-License-Identifier: Apache-2.0
"""Boards that lie: firmware behind a line that replaces, damages, delays and multiplies what it says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from microc.device.line_protocol import REPLY, Frame, FrameDecoder, Operation, encode_frame
from microc.device.transport import Transport

Lie = Callable[[Frame], bytes]
"""The bytes that the host hears in place of a reply."""


class Liar:
    """Passes requests on to ``honest`` and its replies back, those to ``operation`` (None: all) through ``lie``.

    ``flood``: bytes that come without end once it has lied; ``pause``: seconds before each single byte. ``passed`` counts the
    bytes that the host has taken.
    """

    def __init__(
        self, honest: Transport, operation: int | None, lie: Lie, *, flood: bytes = b"", pause: float = 0.0
    ) -> None:
        self.description = "liar"
        self.passed = 0
        self._honest = honest
        self._operation = operation
        self._lie = lie
        self._flood = flood
        self._pause = pause
        self._decoder = FrameDecoder()
        self._ready = b""
        self._lied = False

    def read(self, timeout: float) -> bytes:
        if not self._ready:
            self._ready = self._hear(timeout)
        if not self._ready and self._lied and self._flood:
            self._ready = self._flood
        size = 1 if self._pause else 4096
        if self._ready and self._pause:
            if timeout < self._pause:
                time.sleep(timeout)
                return b""
            time.sleep(self._pause)
        data, self._ready = self._ready[:size], self._ready[size:]
        self.passed += len(data)
        return data

    def _hear(self, timeout: float) -> bytes:
        said = b""
        for reply in self._decoder.feed(self._honest.read(0.001 if self._lied and self._flood else timeout)):
            if self._operation in (None, reply.operation - REPLY):
                said += self._lie(reply)
                self._lied = True
            else:
                said += encode_frame(reply)
        return said

    def write(self, data: bytes) -> None:
        self._honest.write(data)

    def reopen(self) -> bool:
        return False

    def close(self) -> None:
        self._honest.close()


def _sizes(reply: Frame) -> Iterator[bytes]:
    """Payloads of other sizes."""
    for size in (0, 1, 7, len(reply.payload) - 1, len(reply.payload) + 1, 4096, 60000):
        if size >= 0 and size != len(reply.payload):
            yield (reply.payload + bytes(60000))[:size]


def lies(operation: int) -> dict[str, Lie]:
    """Everything about one reply that may be wrong, by name; a host must end in an error, or have what it asked for."""
    made: dict[str, Lie] = {
        "silence": lambda reply: b"",
        "another sequence": lambda reply: encode_frame(replace(reply, sequence=(reply.sequence + 1) & 0xFF)),
        "another session": lambda reply: encode_frame(replace(reply, session=reply.session ^ 1)),
        "another operation": lambda reply: encode_frame(replace(reply, operation=reply.operation ^ 2)),
        "another version": lambda reply: encode_frame(replace(reply, version=2)),
        "a request": lambda reply: encode_frame(replace(reply, operation=reply.operation - REPLY)),
        "half a frame": lambda reply: encode_frame(reply)[:-5],
        "half a frame, many times": lambda reply: encode_frame(reply)[:-5] * 500,
        "a long frame": lambda reply: b"\0" + b"\1" * 100_000 + b"\0",
        "another crc": lambda reply: bytes([*encode_frame(reply)[:-2], encode_frame(reply)[-2] ^ 3 or 1, 0]),
        "the reply a thousand times": lambda reply: encode_frame(reply) * 1000,
        "ones": lambda reply: encode_frame(replace(reply, payload=b"\xff" * len(reply.payload))),
        "zeros": lambda reply: encode_frame(replace(reply, payload=bytes(len(reply.payload)))),
    }
    for status in (1, 2, 127, 128, 250, 255):
        made[f"status {status}"] = lambda reply, status=status: encode_frame(replace(reply, argument=status))  # type: ignore[misc]
    for number in range(6):
        made[f"size {number}"] = lambda reply, number=number: encode_frame(  # type: ignore[misc]
            replace(reply, payload=(list(_sizes(reply)) * 6)[number])
        )
    if operation == Operation.MODEL:
        name = b"\x1b]0;owned\x07\x1b[2J\r\n\xe2\x80\xaeabc\x00%s"
        made["escape sequences"] = lambda reply: encode_frame(replace(reply, payload=reply.payload[:24] + name))
    return made
