# SPDX-License-Identifier: Apache-2.0
"""Lines with faults and echoes, to test what sits on them: emulated lines lose no byte and are silent; real ones are not so."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from microc.device.transport import Transport


@dataclass(frozen=True, slots=True)
class Rates:
    """How often a frame suffers each fault, from 0 (never) to 1 (always). Faults are independent and may combine.

    ``drop`` loses the frame, ``flip`` turns one bit of it over (perhaps of a delimiter), ``cut`` loses one byte of it,
    ``duplicate`` delivers it twice, ``split`` delivers it in two pieces.
    """

    drop: float = 0.0
    flip: float = 0.0
    cut: float = 0.0
    duplicate: float = 0.0
    split: float = 0.0


class FaultyTransport:
    """Passes frames through to ``inner`` and damages some, in both directions. The same ``seed`` damages alike.

    ``counts`` says how often each fault has struck.
    """

    def __init__(self, inner: Transport, rates: Rates, seed: int = 0) -> None:
        self.description = inner.description + " (with faults)"
        self.counts = dict.fromkeys(("drop", "flip", "cut", "duplicate", "split"), 0)
        self._inner = inner
        self._rates = rates
        self._random = random.Random(seed)
        self._incomplete = bytearray()
        self._ready: list[bytes] = []

    def read(self, timeout: float) -> bytes:
        deadline = time.monotonic() + timeout
        while not self._ready:
            data = self._inner.read(max(0.0, deadline - time.monotonic()))
            if not data:
                return b""
            self._incomplete += data
            *frames, rest = bytes(self._incomplete).split(b"\0")
            self._incomplete[:] = rest
            for frame in frames:
                self._ready += self._damage(frame + b"\0") if frame else [b"\0"]
        return self._ready.pop(0)

    def write(self, data: bytes) -> None:
        for piece in self._damage(data):
            self._inner.write(piece)

    def reopen(self) -> bool:
        return self._inner.reopen()

    def close(self) -> None:
        self._inner.close()

    def _strikes(self, fault: str) -> bool:
        struck: bool = self._random.random() < getattr(self._rates, fault)
        self.counts[fault] += struck
        return struck

    def _damage(self, frame: bytes) -> list[bytes]:
        """The pieces that arrive of one frame."""
        if self._strikes("drop"):
            return []
        data = bytearray(frame)
        if self._strikes("flip"):
            data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
        if self._strikes("cut"):
            del data[self._random.randrange(len(data))]
        if self._strikes("duplicate"):
            data *= 2
        if self._strikes("split"):
            at = self._random.randrange(len(data) + 1)
            return [bytes(data[:at]), bytes(data[at:])]
        return [bytes(data)]


class EchoTransport:
    """A line that echoes: ``host`` hears what it sends itself (half duplex), ``board`` hears its own answers (a loop-back plug, a
    terminal that repeats). ``echoed`` counts the bytes given back to the board."""

    def __init__(self, inner: Transport, *, host: bool = False, board: bool = False) -> None:
        self.description = inner.description + " (with an echo)"
        self.echoed = 0
        self._inner = inner
        self._host = host
        self._board = board
        self._heard = b""

    def read(self, timeout: float) -> bytes:
        data, self._heard = self._heard, b""
        if not data:
            data = self._inner.read(timeout)
            if self._board and data:
                self._inner.write(data)
                self.echoed += len(data)
        return data

    def write(self, data: bytes) -> None:
        self._inner.write(data)
        if self._host:
            self._heard += data

    def reopen(self) -> bool:
        return self._inner.reopen()

    def close(self) -> None:
        self._inner.close()
