"""One network on several boards: what it takes on each, and where it does not run, why."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from microc.base.immutable import frozen
from microc.compiler.fit.footprint import capacity
from microc.compiler.interaction import Progress
from microc.device.boards import list_boards, load_board
from microc.device.transport import list_ports
from microc.errors import MicrocError, UsageError
from microc.run.board_project import AUTO, build, open_project
from microc.run.profile import metering
from microc.run.session import PATIENCE, Device, flash_project
from microc.run.verify import SEED, random_inputs
from microc.target import Board

EMULATED, ATTACHED = "all-emulated", "attached"
"""Names for all boards that an emulator or a simulator runs here, and for all that are on a serial port by their USB ids."""
Write = Callable[[Board, Path], Path]
"""Compiles for a board into a folder, and gives the project's."""


@frozen
class BoardFigures:
    """What a network takes on a board. ``time``: of one inference in ``unit`` (``instructions`` or ``ticks``), ``seconds`` where
    that is a time of the chip; an emulator that counts nothing tells neither, and ``unit_meaning`` says so. ``flash`` and ``ram``
    in bytes, stack included, and what the board has, 0 if anything; ``joules`` of one inference where a meter was named. None is
    what is not known; ``error`` says why."""

    board: str
    cpu: str
    emulated: bool
    room_flash: int
    room_ram: int
    time: int | None = None
    unit: str = ""
    unit_meaning: str = ""
    seconds: float | None = None
    flash: int | None = None
    ram: int | None = None
    joules: float | None = None
    self_test: str | None = None
    error: MicrocError | None = None

    def to_data(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "error"}
        error = self.error
        return {
            **found,
            "error": error and {"code": error.code, "what": error.what, "where": error.where, "hint": error.hint},
        }


def boards_of(words: Sequence[str]) -> tuple[Board, ...]:
    """The boards that are meant, each once: names, paths of board files, :data:`EMULATED`, :data:`ATTACHED`. UsageError for what
    is none, and where nothing is attached."""
    found: dict[str, Board] = {}
    for word in words:
        for board in _meant(word):
            found.setdefault(board.name, board)
    return tuple(found.values())


def _meant(word: str) -> tuple[Board, ...]:
    if word == EMULATED:
        return tuple(board for board in map(load_board, list_boards()) if board.virtual)
    if word == ATTACHED:
        ids = {port.usb for port in list_ports() if port.usb}
        known = map(load_board, list_boards())
        here = tuple(board for board in known if ids & set(board.raw.get("usb", ())))
        if not here:
            raise UsageError(
                "no board is attached that we recognise", hint="microc ports shows what is; or name boards"
            )
        return here
    return (load_board(word),)


def measure_boards(
    write: Write,
    boards: Sequence[Board],
    *,
    meter: str = "",
    repeat: int = 1,
    patience: float = PATIENCE,
    progress: Progress | None = None,
) -> tuple[BoardFigures, ...]:
    """Compile, build, load and run one network on every board, one after the other, on the same random inputs.

    ``write``: compiles it. ``repeat``: inferences, of which the mean is taken. ``meter``: a command
    (:mod:`microc.run.profile`) that measures them. What goes wrong on a board is told in its row.
    """
    rows = []
    for k, board in enumerate(boards):
        if progress is not None:
            progress(board.name, k, len(boards) + 1)
        row = BoardFigures(
            board.name, board.target.cpu, "emulator" in board.raw, capacity(board, "flash"), capacity(board, "ram")
        )
        with tempfile.TemporaryDirectory(prefix="microc-") as folder:
            rows.append(_measured(row, board, write, Path(folder), meter, repeat, patience))
    if progress is not None:
        progress("", len(boards), len(boards) + 1)
    return tuple(rows)


def _measured(
    row: BoardFigures, board: Board, write: Write, folder: Path, meter: str, repeat: int, patience: float
) -> BoardFigures:
    try:
        project = open_project(write(board, folder / "firmware"))
        sizes = build(project).sizes
        row = replace(row, flash=sizes.flash, ram=sizes.static_ram + project.peak_stack)
        here = project.emulated or "simulator" in board.raw or board.target.isa == "host"
        if not here:
            flash_project(project, port=AUTO, patience=patience)
        with Device(project, "" if here else AUTO, patience=patience) as device:
            device.set_inputs(*random_inputs(device.inputs, np.random.default_rng(SEED)))
            if meter:
                with metering(meter, board.name, repeat) as reading:
                    timing = device.time(repeat)
            else:
                timing = device.time(repeat)
            clock = device.clock
            if clock.counts or not clock.emulated:
                amount = clock.amount(round(timing.mean))
                row = replace(row, time=amount, unit=clock.unit, seconds=clock.seconds(amount))
            row = replace(row, unit_meaning=clock.meaning, self_test=device.self_test)
            if meter:
                row = replace(row, joules=reading.each(row.seconds))
            return replace(row, error=device.failed_self_test())
    except MicrocError as error:
        return replace(row, error=error)
