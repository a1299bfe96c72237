# SPDX-License-Identifier: Apache-2.0
"""Terminal output of commands: answers, numbers, progress, errors."""

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
from microc.base.operating_system import has_control_sequences
from microc.compiler.interaction import Progress, ProgressLine, clear_progress_line, draw_progress_line, write_stderr
from microc.document.blocks import Document, Table, numbers, table
from microc.document.blocks import format_capacity_use as format_capacity_use
from microc.document.blocks import format_integer as format_integer
from microc.document.blocks import format_shape as format_shape
from microc.document.renderers import render_text
from microc.errors import MicrocError, write_trusted_control_sequence
from microc.errors import fit_layer_name as fit_layer_name

if TYPE_CHECKING:
    from microc.run.profile import Clock


_PATIENCE = 1.0
"""Seconds without progress after which :func:`show_elapsed_time` shows that a command is still running."""
_SHOWN_VALUES = 16
"""Largest number of elements of an array that are printed."""


@frozen
class Answer:
    """The result of a command.

    ``data``: plain data, printed for ``--json``; ``document``: the same for people; ``error``: a failure that is reported in
    addition to the result, such as a difference between board and host."""

    data: dict[str, Any]
    document: Document
    exit_code: int = 0
    error: MicrocError | None = None


def render(document: Document) -> str:
    """Render a document as text for the width and the encoding of the terminal."""
    utf = (sys.stdout.encoding or "").lower().startswith("utf")
    return render_text(document, terminal_columns(), "…" if utf else "...")


def terminal_columns() -> int:
    """Return the width of standard output in characters; 0 (unlimited) for a file or pipe.

    The environment variable COLUMNS takes precedence over the width of the terminal."""
    width = os.environ.get("COLUMNS", "")
    if width.isdecimal():
        return int(width)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


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
    if not os.environ.get("NO_COLOR") and has_control_sequences(sys.stderr):
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

    def show_seconds() -> None:
        while not done.wait(_PATIENCE):
            if time.monotonic() - ProgressLine.last_call_seconds >= _PATIENCE:
                draw_progress_line(f"{command}: {time.monotonic() - start:.0f} s")

    thread = threading.Thread(target=show_seconds, daemon=True)
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


def confusion_table(counts: Sequence[Sequence[int]], before: Sequence[Sequence[int]] | None = None) -> Table:
    """Make a table of a confusion matrix, with a row for each true class and its percentage of right answers.

    ``counts``: number of samples by true class and answered class; ``before``: earlier counts, None if there are none. Cells
    show the change since."""
    rows = []
    for truth, row in enumerate(counts):
        cells = [str(n or ".") for n in row]
        if before is not None:
            changes = [n - old for n, old in zip(row, before[truth], strict=True)]
            cells = [f"{cell} {change:+d}" if change else cell for cell, change in zip(cells, changes, strict=True)]
        total = sum(row)
        rows.append((truth, *cells, 100 * row[truth] / total if total else None))
    classes = map(str, range(len(counts)))
    return table((*numbers("truth \\ answer", *classes, spec=""), *numbers("% right", spec=".1f")), rows)
