"""Text for people: tables, sizes, progress."""

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
from microc.base.terminal import control, shorten_layer
from microc.compiler.interaction import Progress, ProgressLine, draw, say, wipe
from microc.errors import MicrocError
from microc.reports import text_tables
from microc.reports.text_tables import count as count

if TYPE_CHECKING:
    from microc.run.profile import Clock


_PATIENCE = 1.0
_SHOWN_VALUES = 16


@frozen
class Answer:
    """A command's result: plain data, the same as text, and the exit code; ``error`` where that is what was found."""

    data: dict[str, Any]
    text: str
    exit_code: int = 0
    error: MicrocError | None = None


def table(header: Sequence[str], rows: Sequence[Sequence[object]], left: int = 1) -> str:
    """As :func:`microc.reports.text_tables.table`, as wide as the terminal at most."""
    utf = (sys.stdout.encoding or "").lower().startswith("utf")
    return text_tables.table(header, rows, left, columns(), "…" if utf else "...")


def facts(rows: Sequence[tuple[str, object]]) -> str:
    """As :func:`microc.reports.text_tables.facts`, as wide as the terminal at most."""
    return text_tables.facts(rows, columns())


def columns() -> int:
    """Letters of a line of standard output: those of the terminal, or COLUMNS; 0 in a file or a pipe, which take any."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal():
        return int(said)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def fit_to_terminal(text: str) -> str:
    """Wrap lines of prose to the width of the terminal, at their own indent; lines that fit stay, and no word is broken."""
    width = columns()
    if not width:
        return text
    return "\n".join(part for line in text.split("\n") for part in _fit_line(line, width))


def _fit_line(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    start = line[: len(line) - len(line.lstrip())]
    begin, hang = (start + "- ", start + "  ") if line.lstrip().startswith("- ") else (start, start)
    text = line[len(begin) :]
    return textwrap.wrap(
        text, width, initial_indent=begin, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False
    )


def of(number: int, room: int) -> str:
    """Bytes, and how many there are."""
    return f"{number:,} of {room:,} bytes ({100 * number / room:.1f} %)" if room else f"{number:,} bytes"


def shape(dimensions: Sequence[int]) -> str:
    return "x".join(map(str, dimensions)) or "scalar"


def progress(quiet: bool, verbose: bool) -> Progress | None:
    """A line on standard error that is written over and over, on a terminal; every step, with ``verbose``; None otherwise."""
    if quiet:
        return None
    if verbose:
        return lambda what, done, total: say(f"[{done + 1}/{total}] {what}\n")
    return ProgressLine() if sys.stderr.isatty() else None


def note(text: str) -> None:
    """A line on standard error."""
    say(text + "\n")


def refuse(error: MicrocError) -> None:
    """Write an error to standard error; in colours on a terminal, unless NO_COLOR or a dumb one says no."""
    text = _message(str(error)) + "\n"
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        head, _, rest = text.partition(":")
        text = f"\x1b[1;31m{head}\x1b[0m:{rest}".replace("\n  help:", "\n  \x1b[36mhelp\x1b[0m:")
    control(text)


def _message(text: str) -> str:
    """An error within the width of the terminal: further lines of a part hang below it."""
    width = error_columns()
    if not width:
        return text
    lines = list[str]()
    for line in text.split("\n"):
        hang = " " * (len(line) - len(line.lstrip()) + (6 if line.startswith("  help: ") else 2))
        lines += textwrap.wrap(line, width, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False,
                               drop_whitespace=True) or [""]  # fmt: skip
    return "\n".join(lines)


def error_columns() -> int:
    """Letters of a line of standard error, where that is a terminal; else 0."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns if sys.stderr.isatty() else 0
    except (OSError, ValueError):
        return 0


def json_text(data: Mapping[str, Any], indent: int | None = None) -> str:
    """JSON of ASCII, in which no terminal finds anything to obey."""
    return json.dumps(data, indent=indent).replace("\x7f", "\\u007f")


@contextmanager
def working(command: str, silent: bool) -> Iterator[None]:
    """Tell on a terminal that a command is at work, and for how long, where it has told nothing of its progress for a second."""
    if silent or not sys.stderr.isatty():
        yield
        return
    ended, begin = threading.Event(), time.monotonic()

    def tell() -> None:
        while not ended.wait(_PATIENCE):
            if time.monotonic() - ProgressLine.told >= _PATIENCE:
                draw(f"{command}: {time.monotonic() - begin:.0f} s")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if time.monotonic() - begin >= _PATIENCE:
            wipe()


def values(numbers: Sequence[bool | int | float]) -> str:
    """The first elements of an array."""
    words = [f"{x:.6g}" if isinstance(x, float) else str(x) for x in numbers[:_SHOWN_VALUES]]
    return " ".join(words) + (f" ... ({len(numbers)} elements)" if len(numbers) > _SHOWN_VALUES else "")


def plain(numbers: Any) -> Any:
    """Nested lists for JSON, which has no numbers beyond the finite ones: those become their names."""
    if isinstance(numbers, list):
        return [plain(x) for x in numbers]
    return str(numbers) if isinstance(numbers, float) and not math.isfinite(numbers) else numbers


def duration(clock: Clock, amount: int) -> str:
    """An amount of a board's unit, the time where it is one, and what the unit is."""
    seconds = clock.seconds(amount)
    time = "" if seconds is None else f", {1000 * seconds:.3f} ms"
    return f"{count(amount)} {clock.unit}{time} ({clock.meaning})"


layer = shorten_layer


def confusion(counts: Sequence[Sequence[int]], before: Sequence[Sequence[int]] | None = None) -> str:
    """A confusion matrix, truth by row, with the share of each class that is right; ``before``: an earlier one, against which
    every cell says how it changed."""
    rows = []
    for truth, row in enumerate(counts):
        cells = [str(n or ".") for n in row]
        if before is not None:
            changes = [n - old for n, old in zip(row, before[truth], strict=True)]
            cells = [f"{cell} {change:+d}" if change else cell for cell, change in zip(cells, changes, strict=True)]
        total = sum(row)
        rows.append((truth, *cells, f"{100 * row[truth] / total:.1f}" if total else ""))
    return table(("truth \\ answer", *map(str, range(len(counts))), "% right"), rows, 0)
