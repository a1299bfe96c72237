"""Progress, and hints in the caller's language."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import ParamSpec, TypeVar, cast

from microc.base.terminal import control, visible
from microc.compiler import option_values as meaning
from microc.compiler.options import OPTIONS, Bound, Option
from microc.errors import MicrocError

# ---- How long work tells of itself: ``progress(what, done, total)`` before every step, and the line that shows it to
# people.

Progress = Callable[[str, int, int], None]
WIDTH = 79
"""Columns of the line at most."""
_EVERY = 0.1
_SILENT_SECONDS = 2.0  # before an estimate is worth showing


def teller(progress: Progress | bool | None) -> Progress | None:
    """What is told of steps: a function as it is; True is a line on standard error, written over and over on a terminal, a line
    for each stage elsewhere (in a notebook, say); None and False are nobody. UsageError for anything else."""
    from microc.compiler import validation  # with numpy: a command line's help does without

    if progress is None or progress is False:
        return None
    if progress is True:
        return ProgressLine() if sys.stderr.isatty() else _Stages()
    return cast(Progress, validation.call("progress", progress))


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


# ---- Hints in the language of whoever asked: errors name flags, which a Python program gives as keywords.

P = ParamSpec("P")
R = TypeVar("R")

_ON_A_COMMAND_LINE: ContextVar[bool] = ContextVar("on_a_command_line", default=False)
_FLAGS: Mapping[str, str] = MappingProxyType({option.flag: name for name, option in OPTIONS.items() if option.flag})
_PLAIN: Mapping[str, str] = MappingProxyType(
    {f"--{name}": name for name in ("board", "target", "data", "against", "samples", "labels", "evaluate")}
)
"""Keywords of functions that are no options."""
_SPOKEN = re.compile(r"microc [a-z]+ [^,;()]*|(?<![\w-])(--[a-z][a-z-]*)(?: ([^\s;()]*[^\s;:(),.]))?")
"""A command, which is left as it is, or a flag with the word behind it."""


@contextmanager
def flags() -> Iterator[None]:
    """Errors inside speak of flags: they are shown by a command."""
    before = _ON_A_COMMAND_LINE.set(True)
    try:
        yield
    finally:
        _ON_A_COMMAND_LINE.reset(before)


def in_python(text: str) -> str:
    """A hint with keywords for flags: ``ram="30K"`` for ``--ram 30K``."""
    return _SPOKEN.sub(_keyword, text)


def speaks_python(function: Callable[P, R]) -> Callable[P, R]:
    """A function of the library whose errors speak Python, unless a command calls it."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except MicrocError as error:
            if not _ON_A_COMMAND_LINE.get():
                error.what, error.hint = in_python(error.what), in_python(error.hint)
                error.args = (error.what,)
            raise

    return call


def _keyword(found: re.Match[str]) -> str:
    flag, word = found.group(1), found.group(2)
    if flag in _PLAIN:
        return f'{_PLAIN[flag]}="{word}"' if word and word.isupper() else found.group().replace(flag, _PLAIN[flag])
    if flag not in _FLAGS:
        return found.group()
    name = _FLAGS[flag]
    if flag == f"--no-{name}":
        return f"{name}=False"
    value = _value(OPTIONS[name], word) if word else None
    return f"{name}={value}" if value is not None else found.group().replace(flag, name)


def _value(option: Option, word: str) -> str | None:
    """How Python writes what a word behind a flag means; None where it is no such word, but the next of the sentence."""
    if option.words:
        return _written(option.words[word]) if word in option.words else None
    if option.word is meaning.bytes:
        return None if _parsed(option, word) is None else word if word.isdecimal() else _written(word)
    if option.word is Path:
        return _written(word) if word.isupper() or "/" in word or "." in word else None
    from microc.base import dtypes

    if option.word is meaning.wish and not (
        dtypes.is_valid(word.split("=")[-1]) or word.split("=")[-1].startswith("N")
    ):
        return None
    if option.word not in (meaning.shape, meaning.parse_bound, meaning.count, meaning.parse_axis, meaning.wish):
        return None
    value = _parsed(option, word)
    if isinstance(value, tuple):
        name, value = value
        return _written(value) if name == "*" else f'{{"{name}": {_written(value)}}}'
    return None if value is None else _written(value)


def _parsed(option: Option, word: str) -> object:
    try:
        return option.word(word)
    except ValueError:
        return None


def _written(value: object) -> str:
    if isinstance(value, Bound):  # a bound, as a number, or as least, most and step
        plain = (value.maximum, value.minimum, value.step) == (value.maximum, 1, 1)
        return str(value.maximum) if plain else f"({value.minimum}, {value.maximum}, {value.step})"
    return f'"{value}"' if isinstance(value, str) else repr(value)
