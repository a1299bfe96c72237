# SPDX-License-Identifier: Apache-2.0
"""``microc bench``: run one network on several boards and measure time, memory and energy on each, or estimate them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from microc.base.immutable import frozen
from microc.compiler.fit.budget import region_bytes
from microc.compiler.interaction import Progress
from microc.compiler.network_cost import PricedNetwork
from microc.device.boards import list_boards, load_board
from microc.device.transport import list_ports
from microc.errors import FitError, MicrocError, UsageError
from microc.run.board_project import AUTO, build_project, open_project
from microc.run.data.samples import SEED, draw_inputs
from microc.run.profile import run_meter
from microc.run.session import PATIENCE, Device, flash_project
from microc.run.tflm_firmware import TflmFigures, find_tflm, measure_tflm, run_to_tuple
from microc.target import Board

EMULATED, ATTACHED = "all-emulated", "attached"
"""Names for all boards that an emulator or simulator can run, and for all boards found on serial ports by their USB
ids."""
ESTIMATED = "estimated cycles"
"""Unit of estimated times."""
WriteProject = Callable[[Board, Path], Path]
"""Compiles for a board into a folder; returns the project's folder."""
COMPARED_SAMPLES = 4
"""Number of random inputs on which the outputs of two engines are compared."""


@frozen
class TflmModel:
    """A TFLite file to measure in TFLite Micro, too. ``data``: its bytes; ``folder``: the user's copy of TFLite Micro."""

    data: bytes
    folder: Path | None


@frozen
class BoardFigures:
    """Measurements of a network on one board, or estimates. A figure is None if it is unknown; ``error`` then states the
    reason.

    ``time``: duration of one inference in ``unit`` (``instructions``, ``ticks`` or :data:`ESTIMATED`). ``seconds``: the
    same in seconds, None if the unit does not measure time on the real chip. An emulator that does not count instructions
    gives neither, as ``unit_meaning`` states. ``flash``, ``ram``: used bytes, stack included. ``room_flash``,
    ``room_ram``: bytes of the board, 0 if unlimited. ``joules``: energy of one inference, None without a meter.
    ``shared_kernels``: number of kernels that two cores compute. ``fits``: True if flash and RAM suffice. ``tflm``: the same
    network in TFLite Micro, or the reason why it was not measured; None if it was not asked for.
    """

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
    shared_kernels: int = 0
    self_test: str | None = None
    fits: bool | None = None
    error: MicrocError | None = None
    fingerprint: str = ""
    tflm: TflmFigures | MicrocError | None = None

    def to_data(self) -> dict[str, Any]:
        """Return the figures as plain data for JSON."""
        figures = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("error", "tflm")}
        tflm: dict[str, Any] | None = None
        if isinstance(self.tflm, MicrocError):
            tflm = {"error": _error_data(self.tflm)}
        elif self.tflm is not None:
            tflm = {**asdict(self.tflm), "error": None}
        return {**figures, "error": self.error and _error_data(self.error), "tflm": tflm}


def _error_data(error: MicrocError) -> dict[str, Any]:
    """Return an error as plain data for JSON."""
    return {"code": error.code, "what": error.what, "where": error.where, "hint": error.hint}


def select_boards(selectors: Sequence[str]) -> tuple[Board, ...]:
    """List the boards that ``selectors`` select, each once.

    A selector is a name, the path of a board file, :data:`EMULATED` or :data:`ATTACHED`. Raises UsageError for an
    unknown board, or if no board is attached."""
    boards: dict[str, Board] = {}
    for word in selectors:
        for board in _boards_of_selector(word):
            boards.setdefault(board.name, board)
    return tuple(boards.values())


def _boards_of_selector(selector: str) -> tuple[Board, ...]:
    """List the boards that one selector selects. UsageError as for :func:`select_boards`."""
    if selector == EMULATED:
        return tuple(board for board in map(load_board, list_boards()) if board.virtual)
    if selector == ATTACHED:
        ids = {port.usb for port in list_ports() if port.usb}
        known = map(load_board, list_boards())
        attached = tuple(board for board in known if ids & set(board.raw.get("usb", ())))
        if not attached:
            raise UsageError(
                f"--boards: got {ATTACHED}, and no known board is attached",
                hint="name boards; microc ports lists the ports",
            )
        return attached
    return (load_board(selector),)


def measure_boards(
    write: WriteProject,
    boards: Sequence[Board],
    *,
    meter: str = "",
    repeat: int = 1,
    patience: float = PATIENCE,
    tflm: TflmModel | None = None,
    progress: Progress | None = None,
) -> tuple[BoardFigures, ...]:
    """Compile, build, flash and run one network on each board, one after the other, on the same random inputs.

    ``write``: function that compiles the network for a board into a folder. ``repeat``: number of inferences, whose
    mean time is reported. ``meter``: a command (:mod:`microc.run.profile`) that measures their energy. ``patience``:
    seconds without an answer after which a board is skipped. ``tflm``: the model for TFLite Micro, which is then measured
    on the same board and inputs. An error on a board is reported in its row."""
    rows = []
    for k, board in enumerate(boards):
        if progress is not None:
            progress(board.name, k, len(boards) + 1)
        row = _describe_board(board)
        with tempfile.TemporaryDirectory(prefix="microc-") as folder:
            rows.append(_measure_board(row, board, write, Path(folder), meter, repeat, patience, tflm))
    if progress is not None:
        progress("", len(boards), len(boards) + 1)
    return tuple(rows)


def list_boards_with_limits() -> tuple[Board, ...]:
    """List all boards that come with microc and have flash and RAM of their own: all but this computer."""
    return tuple(board for board in map(load_board, list_boards()) if board.regions)


def estimate_boards(network: PricedNetwork, boards: Sequence[Board]) -> tuple[BoardFigures, ...]:
    """Estimate one network on each board without compiling it (:func:`microc.cost`).

    The boards that it fits come first, the fastest of them at the top; those without a known clock and those that it does
    not fit follow. An error on a board is reported in its row, which is among the last."""

    def rank(row: BoardFigures) -> tuple[bool, bool, bool, float, str]:
        seconds = row.seconds if row.seconds is not None else row.time or 0
        return row.error is not None, not row.fits, row.seconds is None, seconds, row.board

    return tuple(sorted((_estimate_board(network, board) for board in boards), key=rank))


def _estimate_board(network: PricedNetwork, board: Board) -> BoardFigures:
    """Estimate a network on one board; return the board's row with the figures, or with the error."""
    row = _describe_board(board)
    try:
        found = network.cost_on(board)
    except MicrocError as error:
        return replace(row, error=error)
    seconds = None if found.milliseconds is None else found.milliseconds / 1000
    meaning = "nothing was compiled or measured; flash, RAM and time are estimates (docs/measuring.md)"
    row = replace(row, time=found.cycles, unit=ESTIMATED, unit_meaning=meaning, seconds=seconds)
    return replace(row, flash=found.flash, ram=found.ram, fits=found.fits)


def _describe_board(board: Board) -> BoardFigures:
    """Return the row of a board without figures."""
    rooms = region_bytes(board, "flash"), region_bytes(board, "ram")
    return BoardFigures(board.name, board.target.cpu, "emulator" in board.raw, *rooms)


def _measure_board(
    row: BoardFigures,
    board: Board,
    write: WriteProject,
    folder: Path,
    meter: str,
    repeat: int,
    answer_timeout: float,
    tflm: TflmModel | None,
) -> BoardFigures:
    """Measure a network on one board; return the board's row with the figures, or with the error.

    ``folder``: folder to write projects to. ``repeat``: number of inferences. ``answer_timeout``: seconds without an
    answer after which the measurement fails."""
    try:
        project = open_project(write(board, folder / "firmware"))
        sizes = build_project(project).sizes
        shared = sum(kernel.get("cores", 1) > 1 for kernel in project.manifest["kernels"])
        ram = sizes.static_ram + project.peak_stack
        fingerprint = project.manifest["fingerprint"]
        row = replace(row, flash=sizes.flash, ram=ram, shared_kernels=shared, fits=True, fingerprint=fingerprint)
        if project.needs_hardware:
            flash_project(project, port=AUTO, patience=answer_timeout)
        with Device(project, AUTO if project.needs_hardware else "", patience=answer_timeout) as device:
            generator = np.random.default_rng(SEED)
            samples = [draw_inputs(device.inputs, generator) for _ in range(COMPARED_SAMPLES if tflm else 1)]
            outputs = [run_to_tuple(device, sample) for sample in samples] if tflm else []
            device.set_inputs(*samples[0])
            if meter:
                with run_meter(meter, board.name, repeat) as reading:
                    timing = device.time(repeat)
            else:
                timing = device.time(repeat)
            clock = device.clock
            if clock.counts_instructions or not clock.emulated:
                amount = clock.convert_ticks(round(timing.mean))
                row = replace(row, time=amount, unit=clock.unit, seconds=clock.seconds(amount))
            row = replace(row, unit_meaning=clock.meaning, self_test=device.self_test)
            if meter:
                row = replace(row, joules=reading.joules_per_inference(row.seconds))
            row = replace(row, error=device.failed_self_test())
    except FitError as error:
        return replace(row, fits=False, error=error)
    except MicrocError as error:
        return replace(row, error=error)
    if tflm is None:
        return row
    try:
        copy = find_tflm(tflm.folder, board)
        figures = measure_tflm(
            project, sizes, tflm.data, copy, samples, outputs, folder / "tflm", repeat=repeat, patience=answer_timeout
        )
    except MicrocError as error:
        return replace(row, tflm=error)
    return replace(row, tflm=figures)
