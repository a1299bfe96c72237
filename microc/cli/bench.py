"""``microc bench``: one network on several boards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from microc.cli import show
from microc.cli.arguments import Arguments
from microc.cli.compiling import compile_model, progress
from microc.errors import UsageError

if TYPE_CHECKING:
    from microc.driver.measure.bench import BoardFigures
    from microc.target import Board

_SMALL = 1e-3


def bench(arguments: Arguments) -> show.Answer:
    """``microc bench``. The exit code is that of the first board's error where none was measured."""
    from microc.driver.measure.bench import boards_of, measure_boards
    from microc.driver.measure.meter import words_of

    if arguments.source.is_dir() and (arguments.source / "manifest.json").is_file():
        raise UsageError(
            f"{arguments.source} is a project, which is for one board", hint="give the model that it was compiled from"
        )
    if not arguments.board_names:
        raise UsageError("bench needs boards", hint="name them: --boards microbit,mps2-an386, or all-emulated")
    if arguments.meter:
        words_of(arguments.meter)
    boards = boards_of(arguments.board_names)

    def write(board: Board, folder: Path) -> Path:
        return compile_model(arguments.source, arguments, board).write(folder)

    compile_model(arguments.source, arguments, "host")  # what is wrong with the model is wrong on every board
    rows = measure_boards(
        write,
        boards,
        meter=arguments.meter,
        repeat=arguments.repeat or (_METERED if arguments.meter else 1),
        patience=arguments.timeout,
        progress=progress(arguments),
    )
    failed = [row.error for row in rows if row.error is not None]
    code = failed[0].exit_code if len(failed) == len(rows) else 0
    return show.Answer({"boards": [row.to_data() for row in rows]}, _text(rows), code)


_METERED = 100
"""Inferences that a meter is given."""


def _text(rows: tuple[BoardFigures, ...]) -> str:
    metered = any(row.joules is not None for row in rows)
    head = ("board", "core", "time", "unit", "ms", "flash", "%", "RAM", "%", *(("energy",) if metered else ()))
    cells = [
        (
            row.board, row.cpu, _count(row.time), row.unit,
            "" if row.seconds is None else f"{1000 * row.seconds:.3f}",
            _count(row.flash), _share(row.flash, row.room_flash), _count(row.ram), _share(row.ram, row.room_ram),
            *((_energy(row.joules),) if metered else ()),
        )
        for row in rows
    ]  # fmt: skip
    notes = dict.fromkeys(f"{row.unit or row.board}: {row.unit_meaning}" for row in rows if row.unit_meaning)
    why = [f"{row.board}: {row.error.what}" for row in rows if row.error is not None]
    table = show.table(head, cells, 2)
    return "\n\n".join(filter(None, (table, "\n".join(why), "\n".join(notes))))


def _count(number: int | None) -> str:
    return "-" if number is None else show.count(number)


def _share(number: int | None, room: int) -> str:
    return f"{100 * number / room:.1f}" if number is not None and room else ""


def _energy(joules: float | None) -> str:
    if joules is None:
        return "-"
    return f"{1e3 * joules:.4g} mJ" if joules >= _SMALL else f"{1e6 * joules:.4g} uJ"
