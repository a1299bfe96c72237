"""Terminal output of commands: tables, numbers, progress, errors."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from microc.base.immutable import frozen
from microc.base.terminal import fit_layer_name as fit_layer_name
from microc.base.terminal import write_trusted_control_sequence
from microc.compiler.interaction import Progress, ProgressLine, clear_progress_line, draw_progress_line, write_stderr
from microc.errors import MicrocError
from microc.reports import text_tables
from microc.reports.text_tables import format_integer as format_integer

if TYPE_CHECKING:
    from microc.run.profile import Clock


_PATIENCE = 1.0
"""Seconds without progress after which :func:`show_elapsed_time` shows that a command is still running."""
_SHOWN_VALUES = 16
"""Largest number of elements of an array that are printed."""


@frozen
class Answer:
    """The result of a command.

    ``data``: plain data, printed for ``--json``; ``text``: the same for people; ``error``: a failure that is reported in
    addition to the result, such as a difference between board and host."""

    data: dict[str, Any]
    text: str
    exit_code: int = 0
    error: MicrocError | None = None


def format_table(header: Sequence[str], rows: Sequence[Sequence[object]], text_columns: int = 1) -> str:
    """Format a table by :func:`microc.reports.text_tables.format_table` for the width of the terminal.

    ``text_columns``: number of columns of text, which are flush left; the others are numbers."""
    utf = (sys.stdout.encoding or "").lower().startswith("utf")
    return text_tables.format_table(header, rows, text_columns, terminal_columns(), "…" if utf else "...")


def format_pairs(rows: Sequence[tuple[str, object]]) -> str:
    """Format rows of a name and a value by :func:`microc.reports.text_tables.format_pairs` for the width of the terminal."""
    return text_tables.format_pairs(rows, terminal_columns())


def terminal_columns() -> int:
    """Return the width of standard output in characters; 0 (unlimited) for a file or pipe.

    The environment variable COLUMNS takes precedence over the width of the terminal."""
    width = os.environ.get("COLUMNS", "")
    if width.isdecimal():
        return int(width)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def fit_to_terminal(text: str) -> str:
    """Wrap the lines of a text to the width of the terminal, and keep their indent.

    Lines that fit are unchanged. Words are not broken."""
    width = terminal_columns()
    if not width:
        return text
    return "\n".join(wrapped for line in text.split("\n") for wrapped in _wrap_prose_line(line, width))


def _wrap_prose_line(line: str, width: int) -> list[str]:
    """Wrap a line of prose to ``width`` characters, and keep its indent.

    If the line is a list item (it begins with a dash), further lines are indented by two more characters."""
    if len(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    begin, hang = (indent + "- ", indent + "  ") if line.lstrip().startswith("- ") else (indent, indent)
    text = line[len(begin) :]
    return textwrap.wrap(
        text, width, initial_indent=begin, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False
    )


def format_memory_usage(nbytes: int, capacity: int) -> str:
    """Format a size in bytes, and its share of a memory's ``capacity`` in bytes (0 if unknown)."""
    return f"{nbytes:,} of {capacity:,} bytes ({100 * nbytes / capacity:.1f} %)" if capacity else f"{nbytes:,} bytes"


def format_shape(dimensions: Sequence[int]) -> str:
    """Format a tensor's shape, as in ``1x8x8x1``."""
    return "x".join(map(str, dimensions)) or "scalar"


def make_progress_callback(quiet: bool, verbose: bool) -> Progress | None:
    """Return the function that shows progress on standard error; None if ``quiet``.

    If ``verbose``, it prints a line for every step. Otherwise it overwrites a single line on a terminal; if standard error is
    no terminal, the result is None."""
    if quiet:
        return None
    if verbose:
        return lambda what, done, total: write_stderr(f"[{done + 1}/{total}] {what}\n")
    return ProgressLine() if sys.stderr.isatty() else None


def print_note(text: str) -> None:
    """Print a note as a line on standard error."""
    write_stderr(text + "\n")


def print_error(error: MicrocError) -> None:
    """Print an error on standard error, in colours if it is a terminal.

    Colours are not used if the environment variable NO_COLOR is set, or if TERM is ``dumb``."""
    text = _wrap_error_message(str(error)) + "\n"
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        head, _, rest = text.partition(":")
        text = f"\x1b[1;31m{head}\x1b[0m:{rest}".replace("\n  help:", "\n  \x1b[36mhelp\x1b[0m:")
    write_trusted_control_sequence(text)


def _wrap_error_message(text: str) -> str:
    """Wrap the text of an error to the width of the terminal, with a hanging indent."""
    width = error_terminal_columns()
    if not width:
        return text
    lines = list[str]()
    for line in text.split("\n"):
        hang = " " * (len(line) - len(line.lstrip()) + (6 if line.startswith("  help: ") else 2))
        lines += textwrap.wrap(line, width, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False,
                               drop_whitespace=True) or [""]  # fmt: skip
    return "\n".join(lines)


def error_terminal_columns() -> int:
    """Return the width of standard error in characters if standard error is a terminal, else 0."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns if sys.stderr.isatty() else 0
    except (OSError, ValueError):
        return 0


def ascii_json(data: Mapping[str, Any], indent: int | None = None) -> str:
    """Format data as JSON in ASCII, without control characters.

    Names in a model can thus not send escape sequences to the terminal."""
    return json.dumps(data, indent=indent).replace("\x7f", "\\u007f")


@contextmanager
def show_elapsed_time(command: str, silent: bool) -> Iterator[None]:
    """Show the elapsed time of a command on a terminal, whenever the command has shown no progress for :data:`_PATIENCE`
    seconds."""
    if silent or not sys.stderr.isatty():
        yield
        return
    done, start = threading.Event(), time.monotonic()

    def show_elapsed() -> None:
        while not done.wait(_PATIENCE):
            if time.monotonic() - ProgressLine.last_call_seconds >= _PATIENCE:
                draw_progress_line(f"{command}: {time.monotonic() - start:.0f} s")

    thread = threading.Thread(target=show_elapsed, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        if time.monotonic() - start >= _PATIENCE:
            clear_progress_line()


def format_leading_values(numbers: Sequence[bool | int | float]) -> str:
    """Format the first elements of an array as text; if there are more, also the number of all elements."""
    shown = [f"{x:.6g}" if isinstance(x, float) else str(x) for x in numbers[:_SHOWN_VALUES]]
    return " ".join(shown) + (f" ... ({len(numbers)} elements)" if len(numbers) > _SHOWN_VALUES else "")


def replace_non_finite(numbers: Any) -> Any:
    """Replace infinities and NaN in nested lists of numbers by strings, because JSON does not allow them."""
    if isinstance(numbers, list):
        return [replace_non_finite(x) for x in numbers]
    return str(numbers) if isinstance(numbers, float) and not math.isfinite(numbers) else numbers


def format_measured_time(clock: Clock, amount: int) -> str:
    """Format a measured time of a board: the amount in the clock's unit, milliseconds if known, and the meaning of the unit."""
    seconds = clock.seconds(amount)
    time = "" if seconds is None else f", {1000 * seconds:.3f} ms"
    return f"{format_integer(amount)} {clock.unit}{time} ({clock.meaning})"


def confusion_table(counts: Sequence[Sequence[int]], before: Sequence[Sequence[int]] | None = None) -> str:
    """Format a confusion matrix as a table, with a row for each true class and its percentage of right answers.

    ``counts``: number of samples by true class and answered class; ``before``: earlier counts, None if there are none. Cells
    show the change since."""
    rows = []
    for truth, row in enumerate(counts):
        cells = [str(n or ".") for n in row]
        if before is not None:
            changes = [n - old for n, old in zip(row, before[truth], strict=True)]
            cells = [f"{cell} {change:+d}" if change else cell for cell, change in zip(cells, changes, strict=True)]
        total = sum(row)
        rows.append((truth, *cells, f"{100 * row[truth] / total:.1f}" if total else ""))
    return format_table(("truth \\ answer", *map(str, range(len(counts))), "% right"), rows, 0)
