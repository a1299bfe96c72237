"""An external meter: a program that prints how much energy, or power, something took while it ran.

It is started before the inferences, and its standard input is closed behind them; then it prints a number and a unit, ``1.25 mJ``
or ``18 mW``. A J, mJ, uJ or nJ is the energy of all that lay between, a W, mW or uW the mean power. The environment holds what is
measured: ``MICROC_BOARD`` and ``MICROC_INFERENCES``.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

from microc.device.info import readable
from microc.errors import ToolError, UsageError

JOULES = MappingProxyType({"J": 1.0, "mJ": 1e-3, "uJ": 1e-6, "nJ": 1e-9})
WATTS = MappingProxyType({"W": 1.0, "mW": 1e-3, "uW": 1e-6})
_ANSWER = re.compile(r"([0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*([munJW]+)")
_SECONDS = 30.0
"""That it has to print what it found."""
_HINT = "it prints a number and a unit: 1.25 mJ (all of it) or 18 mW (the mean power)"


@dataclass
class Reading:
    """What the meter says when the ``with`` is over: joules of all inferences, or mean watts; the other is None."""

    joules: float | None = None
    watts: float | None = None
    inferences: int = field(default=1)

    def each(self, seconds: float | None) -> float:
        """Joules of one inference, which took so many seconds; ToolError where power needs a time that nobody knows."""
        if self.joules is not None:
            return self.joules / self.inferences
        if self.watts is None or seconds is None:
            raise ToolError(
                "a mean power is no energy: how long an inference takes is not known here",
                hint="an emulator's time says nothing about the chip: let the meter print joules",
            )
        return self.watts * seconds


def words_of(command: str) -> list[str]:
    """The command as words; no shell is asked. UsageError where it is none."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(
            f"--meter {command!r} is no command: {error}", hint='--meter "python meter.py --port COM3"'
        ) from error
    if not words:
        raise UsageError("--meter names no program", hint='--meter "python meter.py --port COM3"')
    return words


@contextmanager
def metering(command: str, board: str, inferences: int) -> Iterator[Reading]:
    """A meter for the length of a ``with``; ToolError where it does not run, end or print what it should."""
    words, reading = words_of(command), Reading(inferences=inferences)
    environment = {**os.environ, "MICROC_BOARD": board, "MICROC_INFERENCES": str(inferences)}
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
    except OSError as error:
        raise ToolError(f"the meter {words[0]} does not run: {error.strerror or error}", hint=_HINT) from error
    try:
        yield reading
        out, told = process.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ToolError(
            f"the meter {words[0]} did not end within {_SECONDS:.0f} s",
            hint="it ends when its standard input is closed",
        ) from error
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    text = out.decode("utf-8", "replace").strip()
    if process.returncode:
        last = told.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise ToolError(
            f"the meter {words[0]} failed: {readable(last[0], 200) if last else process.returncode}", hint=_HINT
        )
    found = _ANSWER.fullmatch(text)
    unit = found[2] if found else ""
    if found is None or unit not in {**JOULES, **WATTS}:
        raise ToolError(f"the meter {words[0]} says {readable(text)!r}, which is no energy", hint=_HINT)
    if unit in JOULES:
        reading.joules = float(found[1]) * JOULES[unit]
    else:
        reading.watts = float(found[1]) * WATTS[unit]
