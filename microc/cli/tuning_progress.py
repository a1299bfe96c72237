"""A search while it goes on: a live table on a terminal, lines of text or of JSON elsewhere."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from microc.cli import SCHEMA_VERSION, show
from microc.cli.arguments import Arguments
from microc.driver.report import tables
from microc.terminal import control, visible

if TYPE_CHECKING:
    from microc.tuning.tuned import Event, Tuned

    Watcher = Callable[[Event], None]

HEAD = ("layer", "tried", "best", "gain")
_SPARE = 6
"""Lines of a terminal that are not rows of the table."""


@contextmanager
def watching(arguments: Arguments) -> Iterator[Watcher | None]:
    """What a search tells of its batches, for the length of a ``with``: JSON to standard output, all else to standard error."""
    if arguments.json:
        yield _write_json
    elif arguments.quiet:
        yield None
    elif sys.stderr.isatty():
        with _live() as watcher:
            yield watcher
    else:
        yield _Lines()


def gain(default: float | None, best: float) -> str:
    """By how much less the best takes, in percent."""
    if not default or best == float("inf"):
        return ""
    return f"{100 * (best / default - 1):+.1f} %"


def cells(kernel: Tuned) -> tuple[str, str, str, str]:
    """A kernel in the columns of :data:`HEAD`."""
    best = show.count(round(kernel.best)) if kernel.default is not None else ""
    return show.layer(kernel.task.name), show.count(kernel.tried), best, gain(kernel.default, kernel.best)


def summary(event: Event) -> str:
    """How far a search is."""
    left = f", {_time(event.left)} left" if event.left else ""
    lost = f"; lost: {'; '.join(event.lost)}" if event.lost else ""
    return f"{event.measured:,} of at most {event.trials:,} in {_time(event.seconds)}{left}{lost}"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _write_json(event: Event) -> None:
    sys.stdout.write(show.json_text({"schema_version": SCHEMA_VERSION, "command": "tune", **event.to_data()}) + "\n")
    sys.stdout.flush()


class _Lines:
    """A line for every batch; a place that failed is told once."""

    def __init__(self) -> None:
        self._lost = 0

    def __call__(self, event: Event) -> None:
        name, tried, best, less = cells(event.kernel)
        told = f"{name}: {tried} tried, " + (f"best {best} ({less})" if best else "its default does not run")
        for lost in event.lost[self._lost :]:
            sys.stderr.write(f"lost {lost}\n")
        self._lost = len(event.lost)
        sys.stderr.write(f"[{event.measured}/{event.trials}] {told}, {_time(event.left)} left\n")
        sys.stderr.flush()


@contextmanager
def _live() -> Iterator[Watcher]:
    """A table that is drawn over itself after every batch: the kernels that were measured last, as many as there is room for."""
    kernels, drawn_lines = dict[str, Any](), 0

    def drawn(event: Event) -> None:
        nonlocal drawn_lines
        kernels.pop(event.kernel.task.key, None)
        kernels[event.kernel.task.key] = event.kernel
        size = shutil.get_terminal_size()
        shown = [cells(kernel) for kernel in list(kernels.values())[-max(1, size.lines - _SPARE) :]]
        text = f"{tables.table(HEAD, shown, 1, size.columns - 1)}\n{summary(event)[: size.columns - 1]}\n"
        back = f"\x1b[{drawn_lines}A\x1b[J" if drawn_lines else ""
        control(back + visible(text))
        drawn_lines = text.count("\n")

    yield drawn
