"""A search while it goes on: a live table on a terminal, lines of text or of JSON elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from microc.cli import show
from microc.cli.arguments import Arguments

if TYPE_CHECKING:
    from microc.tuning.tuner import Event, Tuned

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
    elif sys.stderr.isatty() and find_spec("rich") is not None:
        with _live() as watcher:
            yield watcher
    else:
        yield _Lines()


def gain(default: float | None, best: float) -> str:
    """By how much less the best takes, in percent."""
    if default is None or best == float("inf"):
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
    sys.stdout.write(json.dumps({"schema_version": show.SCHEMA_VERSION, "command": "tune", **event.to_data()}) + "\n")
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
    """A table that is drawn anew after every batch: the kernels that were measured last, as many as the terminal has room for."""
    from rich.console import Console
    from rich.live import Live

    console, kernels = Console(stderr=True), dict[str, Any]()

    def drawn(event: Event) -> None:
        kernels.pop(event.kernel.task.key, None)
        kernels[event.kernel.task.key] = event.kernel
        live.update(_drawn(list(kernels.values())[-max(1, console.height - _SPARE) :], event), refresh=True)

    with Live(console=console, auto_refresh=False) as live:
        yield drawn


def _drawn(kernels: list[Tuned], event: Event) -> Any:
    """The table; what a model calls its layers is plain text in it."""
    from rich.table import Table
    from rich.text import Text

    table = Table(caption=Text(summary(event)), box=None, pad_edge=False)
    for name in HEAD:
        table.add_column(name, justify="left" if name == HEAD[0] else "right", no_wrap=True)
    for kernel in kernels:
        table.add_row(*map(Text, cells(kernel)))
    return table
