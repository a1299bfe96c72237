# SPDX-License-Identifier: Apache-2.0
"""Progress display, and error messages in the caller's terms: command-line flags for commands, keywords for Python."""

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

from microc.compiler import option_values
from microc.compiler.options import OPTIONS, Bound, Option
from microc.errors import MicrocError, escape_unprintable, write_trusted_control_sequence

# ---- Progress of long operations. ``progress(stage, finished_steps, total_steps)`` is called before every step. A line on
# the terminal shows the progress.

Progress = Callable[[str, int, int], None]
MAX_COLUMNS = 79
"""Maximum width of the progress line in columns."""
_UPDATE_SECONDS = 0.1  # minimum seconds between two updates of the line
_SILENT_SECONDS = 2.0  # time before the remaining time is shown, because earlier estimates are too inaccurate


def as_callback(progress: Progress | bool | None) -> Progress | None:
    """Return the progress callback for the argument ``progress``.

    A function is returned as it is. True returns a callback that writes to standard error: on a terminal one line that
    is overwritten, elsewhere (for example in a notebook) one line for each stage. None and False return None. Raises
    UsageError for any other value.
    """
    from microc.compiler import validation  # imported here, so that ``--help`` does not import numpy

    if progress is None or progress is False:
        return None
    if progress is True:
        return ProgressLine() if sys.stderr.isatty() else _StageLinePrinter()
    return cast(Progress, validation.as_function_or_none("progress", progress))


class ProgressLine:
    """Progress callback that overwrites one line on a terminal.

    The line is drawn at most ten times a second and at the start of each stage. It is cleared at the last step. After
    two seconds it shows the remaining time, which is extrapolated from the finished steps.
    """

    last_call_seconds = 0.0
    """Time of the last call of any instance in seconds, from :func:`time.monotonic`."""

    def __init__(self) -> None:
        self._next_update_seconds = 0.0
        self._stage = ""
        self._finished_steps = 0
        self._begin_seconds = 0.0

    def __call__(self, stage: str, finished_steps: int, total_steps: int) -> None:
        ProgressLine.last_call_seconds = now = time.monotonic()
        if stage != self._stage or finished_steps <= self._finished_steps:
            self._begin_seconds = now
        self._stage, self._finished_steps = stage, finished_steps
        if finished_steps + 1 >= total_steps:
            clear_progress_line()
        elif now >= self._next_update_seconds or not finished_steps:
            self._next_update_seconds = now + _UPDATE_SECONDS
            remaining = _format_remaining_time(now - self._begin_seconds, finished_steps, total_steps)
            text_columns = max(0, _progress_line_width() - len(remaining))
            draw_progress_line(
                f"[{finished_steps + 1}/{total_steps}] {stage}"[:text_columns].ljust(text_columns) + remaining
            )


class _StageLinePrinter:
    """Progress callback that prints one line for each stage. A stage starts when ``finished_steps`` decreases or
    ``total_steps`` changes."""

    def __init__(self) -> None:
        self._total_steps, self._finished_steps = 0, 0

    def __call__(self, stage: str, finished_steps: int, total_steps: int) -> None:
        if total_steps != self._total_steps or finished_steps < self._finished_steps:
            write_stderr(f"{stage} (1 of {total_steps})\n" if total_steps > 1 else f"{stage}\n")
        self._total_steps, self._finished_steps = total_steps, finished_steps


def _format_remaining_time(elapsed_seconds: float, finished_steps: int, total_steps: int) -> str:
    """Return the remaining time as text, extrapolated from the number of finished steps; empty in the first two
    seconds."""
    if elapsed_seconds < _SILENT_SECONDS or not finished_steps:
        return ""
    seconds = elapsed_seconds * (total_steps - finished_steps) / finished_steps
    return f" {seconds:.0f} s left" if seconds < 120 else f" {seconds / 60:.0f} min left"


def write_stderr(text: str) -> None:
    """Write text to standard error, with unprintable characters escaped, and flush it."""
    write_trusted_control_sequence(escape_unprintable(text))


def draw_progress_line(line: str) -> None:
    """Overwrite the current line of standard error with ``line``."""
    columns = _progress_line_width()
    write_trusted_control_sequence("\r" + escape_unprintable(line, "").ljust(columns)[:columns])


def clear_progress_line() -> None:
    """Clear the line that :func:`draw_progress_line` drew."""
    write_trusted_control_sequence("\r" + " " * _progress_line_width() + "\r")


def _progress_line_width() -> int:
    """Return the width of the progress line in columns.

    The line must not wrap, because a carriage return would then not reach its start. Therefore the line is not wider
    than the terminal, and its last column stays free, since some terminals wrap as soon as the last column is filled.
    If the terminal reports no size, 80 columns are assumed.
    """
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError, AttributeError):
        columns = 0
    return min(MAX_COLUMNS, (columns or MAX_COLUMNS + 1) - 1)


# ---- The source code writes errors and hints with command-line flags. For a Python program they are converted to keywords.

P = ParamSpec("P")
R = TypeVar("R")

_ON_A_COMMAND_LINE: ContextVar[bool] = ContextVar("on_a_command_line", default=False)
_FLAGS: Mapping[str, str] = MappingProxyType({option.flag: name for name, option in OPTIONS.items() if option.flag})
_ARGUMENTS: Mapping[str, str] = MappingProxyType(
    {f"--{name}": name for name in ("board", "target", "data", "against", "samples", "labels", "evaluate")}
)
"""Flags that correspond to a keyword of a Python function but not to a field of :class:`.options.Options`, with that
keyword."""
_FLAG_OR_COMMAND = re.compile(r"microc [a-z]+ [^,;()]*|(?<![\w-])(--[a-z][a-z-]*)(?: ([^\s;()]*[^\s;:(),.]))?")
"""Pattern of a whole ``microc`` command, which is not converted, or of a flag and the word after the flag."""


@contextmanager
def keep_flags_in_errors() -> Iterator[None]:
    """Keep command-line flags in errors that are raised in the ``with`` block, because a command prints them."""
    before = _ON_A_COMMAND_LINE.set(True)
    try:
        yield
    finally:
        _ON_A_COMMAND_LINE.reset(before)


def convert_flags_to_keywords(text: str) -> str:
    """Convert the command-line flags in a message to Python keywords: ``--ram 30K`` becomes ``ram="30K"``."""
    return _FLAG_OR_COMMAND.sub(_flag_to_keyword, text)


def convert_flags_in_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function of the Python API so that command-line flags in its errors are converted to Python keywords,
    unless a command calls the function."""

    @wraps(function)
    def call_and_convert_errors(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except MicrocError as error:
            if not _ON_A_COMMAND_LINE.get():
                error.what, error.hint = convert_flags_to_keywords(error.what), convert_flags_to_keywords(error.hint)
                error.args = (error.what,)
            raise

    return call_and_convert_errors


def _flag_to_keyword(match: re.Match[str]) -> str:
    """Convert a flag that :data:`_FLAG_OR_COMMAND` matched to a keyword argument. The word after the flag becomes its
    value if the option accepts the word."""
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
    value = _option_word_to_python_literal(OPTIONS[name], word) if word else None
    return f"{name}={value}" if value is not None else match.group().replace(flag, name)


def _option_word_to_python_literal(option: Option, word: str) -> str | None:
    """Convert the word after a flag in a message to a Python literal; None if the option does not accept the word,
    which then belongs to the sentence."""
    if option.words:
        return _python_literal(option.words[word]) if word in option.words else None
    if option.word is option_values.parse_byte_count:
        return (
            None if _parse_word_or_none(option, word) is None else word if word.isdecimal() else _python_literal(word)
        )
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
    value = _parse_word_or_none(option, word)
    if isinstance(value, tuple):
        name, value = value
        return _python_literal(value) if name == "*" else f'{{"{name}": {_python_literal(value)}}}'
    return None if value is None else _python_literal(value)


def _parse_word_or_none(option: Option, word: str) -> object:
    """Parse a command-line word as the value of an option; None if the option does not accept the word."""
    try:
        return option.word(word)
    except ValueError:
        return None


def _python_literal(value: object) -> str:
    """Format a value as Python source. A bound becomes its maximum, or the tuple (minimum, maximum, step)."""
    if isinstance(value, Bound):
        plain = (value.maximum, value.minimum, value.step) == (value.maximum, 1, 1)
        return str(value.maximum) if plain else f"({value.minimum}, {value.maximum}, {value.step})"
    return f'"{value}"' if isinstance(value, str) else repr(value)
