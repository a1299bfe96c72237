"""How long work tells of itself: ``progress(what, done, total)`` before every step, and the line that shows it to people."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import cast

from microc.terminal import control, visible

Progress = Callable[[str, int, int], None]
WIDTH = 79
"""Columns of the line at most."""
_EVERY = 0.1
_SILENT_SECONDS = 2.0  # before an estimate is worth showing


def teller(progress: Progress | bool | None) -> Progress | None:
    """What is told of steps: a function as it is; True is a line on standard error, written over and over on a terminal, a line
    for each stage elsewhere (in a notebook, say); None and False are nobody. UsageError for anything else."""
    from microc.driver import accepted  # with numpy: a command line's help does without

    if progress is None or progress is False:
        return None
    if progress is True:
        return ProgressLine() if sys.stderr.isatty() else _Stages()
    return cast(Progress, accepted.call("progress", progress))


class ProgressLine:
    """The line under way; not more often than ten times a second but for what begins, and wiped when its work is done. Work that
    goes on for some seconds is told how many are left, if it goes on as it did."""

    told = 0.0
    """When any of them told something."""

    def __init__(self) -> None:
        self._next = 0.0
        self._what = ""
        self._done = 0
        self._begin = 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        ProgressLine.told = now = time.monotonic()
        if what != self._what or done <= self._done:
            self._begin = now
        self._what, self._done = what, done
        if done + 1 >= total:
            wipe()
        elif now >= self._next or not done:
            self._next = now + _EVERY
            left = _remaining(now - self._begin, done, total)
            room = max(0, _columns() - len(left))
            draw(f"[{done + 1}/{total}] {what}"[:room].ljust(room) + left)


class _Stages:
    """A line for each stage: where a step begins to count anew."""

    def __init__(self) -> None:
        self._total, self._done = 0, 0

    def __call__(self, what: str, done: int, total: int) -> None:
        if total != self._total or done < self._done:
            say(f"{what} (1 of {total})\n" if total > 1 else f"{what}\n")
        self._total, self._done = total, done


def _remaining(elapsed: float, done: int, total: int) -> str:
    if elapsed < _SILENT_SECONDS or not done:
        return ""
    seconds = elapsed * (total - done) / done
    return f" {seconds:.0f} s left" if seconds < 120 else f" {seconds / 60:.0f} min left"


def say(text: str) -> None:
    """Write to standard error at once."""
    control(visible(text))


def draw(line: str) -> None:
    """Write a line of standard error over the one that is there."""
    columns = _columns()
    control("\r" + visible(line, "").ljust(columns)[:columns])


def wipe() -> None:
    """Clear the line that :func:`draw` wrote."""
    control("\r" + " " * _columns() + "\r")


def _columns() -> int:
    """Width of the line: a terminal that is narrower would go on in the next row, and a carriage return would not come back.

    The last column stays free, for some terminals go on after they have filled it. A terminal without a size has 80 columns.
    """
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError, AttributeError):
        columns = 0
    return min(WIDTH, (columns or WIDTH + 1) - 1)
