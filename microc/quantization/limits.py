"""Limits of a board that a quantised network keeps."""

from __future__ import annotations

from typing import Any

from microc.driver import accepted
from microc.errors import UsageError
from microc.frozen import frozen
from microc.quantization.cost import board_of
from microc.target import Board


@frozen
class Limits:
    """What must be kept. ``flash``, ``ram``: bytes, as a firmware for ``board`` is estimated; ``cycles``: of a run, by the cost
    model; ``max_drop``: by how much the score may be less than the float network's."""

    board: Board
    flash: int | None = None
    ram: int | None = None
    cycles: int | None = None
    max_drop: float | None = None


def limits_of(
    board: Any, flash: int | None, ram: int | None, time: float | None, max_drop: float | None
) -> Limits | None:
    """Limits that a caller names, None where there are none. UsageError where one is no number, or no board is named."""
    given = {"flash": flash, "ram": ram}
    amounts = {name: accepted.integer(name, n, least=1) for name, n in given.items() if n is not None}
    if max_drop is not None:
        accepted.number("max_drop", max_drop, 0.0, float("inf"))
    elif not amounts and time is None:
        return None
    if not board:
        raise UsageError("limits are those of a board", hint="name it with board (--board): microc boards lists them")
    found = board_of(board)
    return Limits(found, cycles=None if time is None else _cycles(found, time), max_drop=max_drop, **amounts)


def _cycles(board: Board, time: float) -> int:
    """How many cycles fit in so many seconds."""
    accepted.number("time", time, 0.0, float("inf"))
    clock = board.raw.get("clock_hz", 0)
    if not clock:
        raise UsageError(f"{board.name} has no clock to limit time by", hint="limit it for another board")
    return int(time * clock)
