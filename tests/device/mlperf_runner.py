# SPDX-License-Identifier: Apache-2.0
"""The host's side of MLPerf Tiny's text protocol, written from its description: what the benchmark's runner says and expects."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from microc.device.transport import Transport

BYTES_PER_COMMAND = 31
PATIENCE = 60.0
LONGEST = 1 << 20
"""Bytes of an answer."""


class Runner:
    """A dialogue with a device: every command ends with ``%``, every answer with a line ``m-ready``."""

    def __init__(self, line: Transport, *, echo: bool = False) -> None:
        """A device that has just been reset greets; what came before is dropped. ``echo``: the line gives commands back."""
        self._line = line
        self._echo = echo
        self._received = b""
        self.greeting = self._answer()
        while more := self._received or line.read(0.3):
            self._received = more
            self.greeting = self._answer()

    def ask(self, command: str) -> list[str]:
        """The lines of an answer, without its last."""
        self._line.write(command.encode() + b"%")
        answer = self._answer()
        if self._echo and answer:
            answer[0] = answer[0].removeprefix(command + "%")
        return answer

    def _answer(self) -> list[str]:
        deadline = time.monotonic() + PATIENCE
        while b"m-ready\r\n" not in self._received:
            assert time.monotonic() < deadline and len(self._received) < LONGEST, self._received[:1000]
            self._received += self._line.read(1.0)
        answer, self._received = self._received.split(b"m-ready\r\n", 1)
        assert b"\n" not in answer.replace(b"\r\n", b"")
        return answer.decode("ascii").split("\r\n")[:-1]

    def load(self, data: bytes) -> None:
        """Send an input, 31 bytes a command, padded with zeros as the runner does."""
        assert self.ask(f"db load {len(data)}") == [f"m-[Expecting {len(data)} bytes]"]
        answers: list[str] = []
        for at in range(0, len(data), BYTES_PER_COMMAND):
            answers += self.ask("db " + data[at : at + BYTES_PER_COMMAND].ljust(BYTES_PER_COMMAND, b"\0").hex())
        assert answers == ["m-load-done"]

    def infer(self, times: int, warmup: int) -> tuple[int, list[float]]:
        """Microseconds of ``times`` inferences, and the results."""
        lines = self.ask(f"infer {times} {warmup}")
        laps = [int(line.removeprefix("m-lap-us-")) for line in lines if line.startswith("m-lap-us-")]
        steps = [line for line in lines if not line.startswith(("m-lap-us-", "m-results-"))]
        assert steps == [f"m-warmup-start-{warmup}", "m-warmup-done", f"m-infer-start-{times}", "m-infer-done"]
        return laps[1] - laps[0], results(lines)


def results(lines: Sequence[str]) -> list[float]:
    found = re.fullmatch(r"m-results-\[(.*)\]", lines[-1])
    assert found is not None
    return [float(word) for word in found[1].split(",")]
