"""Progress display, and errors in the language of the caller: flags on the command line, keywords in Python."""

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

from microc.base.terminal import escape_unprintable, write_control
from microc.compiler import option_values
from microc.compiler.options import OPTIONS, Bound, Option
from microc.errors import MicrocError

# ---- Progress of long work: ``progress(what, done, total)`` is called before every step; a line on the terminal shows it.

Progress = Callable[[str, int, int], None]
WIDTH = 79
"""Largest width of the progress line in columns."""
_EVERY = 0.1  # seconds between two updates of the line
_SILENT_SECONDS = 2.0  # before an estimate of the remaining time is worth showing


def as_callback(progress: Progress | bool | None) -> Progress | None:
    """Return a progress callback.

    A function is returned as it is. True gives a line on standard error: overwritten in place on a terminal, one line
    per stage elsewhere (in a notebook, for example). None and False give None. Raises UsageError for anything else.
    """
    from microc.compiler import validation  # with numpy: a command line's help does without

    if progress is None or progress is False:
        return None
    if progress is True:
        return ProgressLine() if sys.stderr.isatty() else _StageLines()
    return cast(Progress, validation.as_function_or_none("progress", progress))


class ProgressLine:
    """The progress line on a terminal.

    It is drawn at most ten times a second, except at the start of a stage, and cleared when the work is done. After two
    seconds it shows the remaining time, extrapolated from the steps done.
    """

    told = 0.0
    """Time of the last report by any instance, of :func:`time.monotonic`."""

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
            clear_progress_line()
        elif now >= self._next or not done:
            self._next = now + _EVERY
            left = _format_remaining_time(now - self._begin, done, total)
            room = max(0, _line_columns() - len(left))
            draw_progress_line(f"[{done + 1}/{total}] {what}"[:room].ljust(room) + left)


class _StageLines:
    """Progress as one line for each stage. A stage starts where the count of steps begins again."""

    def __init__(self) -> None:
        self._total, self._done = 0, 0

    def __call__(self, what: str, done: int, total: int) -> None:
        if total != self._total or done < self._done:
            write_stderr(f"{what} (1 of {total})\n" if total > 1 else f"{what}\n")
        self._total, self._done = total, done


def _format_remaining_time(elapsed: float, done: int, total: int) -> str:
    """Return the remaining time as text, extrapolated from the steps done; empty within the first seconds."""
    if elapsed < _SILENT_SECONDS or not done:
        return ""
    seconds = elapsed * (total - done) / done
    return f" {seconds:.0f} s left" if seconds < 120 else f" {seconds / 60:.0f} min left"


def write_stderr(text: str) -> None:
    """Write to standard error at once."""
    write_control(escape_unprintable(text))


def draw_progress_line(line: str) -> None:
    """Write a line of standard error over the one that is there."""
    columns = _line_columns()
    write_control("\r" + escape_unprintable(line, "").ljust(columns)[:columns])


def clear_progress_line() -> None:
    """Clear the line that :func:`draw_progress_line` wrote."""
    write_control("\r" + " " * _line_columns() + "\r")


def _line_columns() -> int:
    """Return the width of the progress line in columns.

    On a narrower terminal the line would wrap, and a carriage return would not reach its start. The last column stays
    free, since some terminals wrap once it is filled. A terminal without a size counts as 80 columns."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError, AttributeError):
        columns = 0
    return min(WIDTH, (columns or WIDTH + 1) - 1)


# ---- Errors and hints are written with flags; for a Python program they are converted to keywords.

P = ParamSpec("P")
R = TypeVar("R")

_ON_A_COMMAND_LINE: ContextVar[bool] = ContextVar("on_a_command_line", default=False)
_FLAGS: Mapping[str, str] = MappingProxyType({option.flag: name for name, option in OPTIONS.items() if option.flag})
_ARGUMENTS: Mapping[str, str] = MappingProxyType(
    {f"--{name}": name for name in ("board", "target", "data", "against", "samples", "labels", "evaluate")}
)
"""Keywords of functions that are not options."""
_FLAG_OR_COMMAND = re.compile(r"microc [a-z]+ [^,;()]*|(?<![\w-])(--[a-z][a-z-]*)(?: ([^\s;()]*[^\s;:(),.]))?")
"""A command, which is left as it is, or a flag with the word behind it."""


@contextmanager
def keep_flags_in_errors() -> Iterator[None]:
    """Mark errors raised inside of the ``with`` as shown by a command: they keep their flags."""
    before = _ON_A_COMMAND_LINE.set(True)
    try:
        yield
    finally:
        _ON_A_COMMAND_LINE.reset(before)


def flags_to_keywords(text: str) -> str:
    """Convert the command-line flags in a hint to Python keywords: ``--ram 30K`` becomes ``ram="30K"``."""
    return _FLAG_OR_COMMAND.sub(_flag_to_keyword, text)


def with_python_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function of the library: its errors name keywords, unless a command calls it."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except MicrocError as error:
            if not _ON_A_COMMAND_LINE.get():
                error.what, error.hint = flags_to_keywords(error.what), flags_to_keywords(error.hint)
                error.args = (error.what,)
            raise

    return call


def _flag_to_keyword(match: re.Match[str]) -> str:
    """Convert a matched flag, with its word if that is a value, to a keyword argument."""
    flag, word = match.group(1), match.group(2)
    if flag in _ARGUMENTS:
        return (
            f'{_ARGUMENTS[flag]}="{word}"' if word and word.isupper() else match.group().replace(flag, _ARGUMENTS[flag])
        )
    if flag not in _FLAGS:
        return match.group()
    name = _FLAGS[flag]
    if flag == f"--no-{name}":
        return f"{name}=False"
    value = _word_as_literal(OPTIONS[name], word) if word else None
    return f"{name}={value}" if value is not None else match.group().replace(flag, name)


def _word_as_literal(option: Option, word: str) -> str | None:
    """Convert the word behind a flag to a Python literal; None if it is no value but the next word of the sentence."""
    if option.words:
        return _python_literal(option.words[word]) if word in option.words else None
    if option.word is option_values.parse_bytes:
        return None if _parse_option_word(option, word) is None else word if word.isdecimal() else _python_literal(word)
    if option.word is Path:
        return _python_literal(word) if word.isupper() or "/" in word or "." in word else None
    from microc.base import dtypes

    if option.word is option_values.parse_named_word and not (
        dtypes.is_valid(word.split("=")[-1]) or word.split("=")[-1].startswith("N")
    ):
        return None
    if option.word not in (
        option_values.parse_shape,
        option_values.parse_bound,
        option_values.parse_count,
        option_values.parse_axis,
        option_values.parse_named_word,
    ):
        return None
    value = _parse_option_word(option, word)
    if isinstance(value, tuple):
        name, value = value
        return _python_literal(value) if name == "*" else f'{{"{name}": {_python_literal(value)}}}'
    return None if value is None else _python_literal(value)


def _parse_option_word(option: Option, word: str) -> object:
    """Return the value of a command-line word for an option; None if the option does not accept the word."""
    try:
        return option.word(word)
    except ValueError:
        return None


def _python_literal(value: object) -> str:
    """Write a value as Python source; a bound as its maximum, or as (minimum, maximum, step)."""
    if isinstance(value, Bound):
        plain = (value.maximum, value.minimum, value.step) == (value.maximum, 1, 1)
        return str(value.maximum) if plain else f"({value.minimum}, {value.maximum}, {value.step})"
    return f'"{value}"' if isinstance(value, str) else repr(value)
