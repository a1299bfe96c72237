"""What a board's timings mean: ticks of a timer, or instructions that an emulator counts."""

from __future__ import annotations

from fractions import Fraction

from microc.device.simulator import simulated
from microc.errors import UsageError
from microc.frozen import frozen
from microc.target import Board

INSTRUCTIONS, TICKS = "instructions", "ticks"


@frozen
class Clock:
    """The unit of all timings of a board. ``tick_hz``: ticks a second of the timer that its firmware reads; ``emulated``: we run
    its emulator.

    An emulator that counts instructions makes the timer follow them, at some pace: its ticks, and a time made of them, say
    nothing about the chip. There instructions are the unit, and no time is told.
    """

    board: Board
    tick_hz: int
    emulated: bool

    @property
    def counts(self) -> bool:
        """Whether ticks stand for a number of instructions."""
        return self.emulated and "ticks_per_instruction" in self.board.raw["emulator"]

    @property
    def unit(self) -> str:
        return INSTRUCTIONS if self.counts else TICKS

    @property
    def meaning(self) -> str:
        """What the unit is, in words that stand behind it."""
        if self.counts:
            return "counted by the emulator: neither cycles nor time"
        rate = f"{self.tick_hz:,} a second"
        if self.board.target.isa == "host":
            return f"{rate}, of this computer's clock"
        if self.emulated:
            return f"{rate}, of an emulator that follows this computer's time: they say nothing about the chip"
        if simulated(self.board):
            return f"{rate}, of the timer of a core that is simulated cycle by cycle"
        return f"{rate}, of the board's timer"

    def amount(self, ticks: int) -> int:
        """Ticks in the unit."""
        return instructions(self.board, ticks) if self.counts else ticks

    def seconds(self, amount: int) -> float | None:
        """The time that an amount of the unit is; None where it says nothing about the chip."""
        return None if self.emulated else amount / self.tick_hz


def instructions(board: Board, ticks: int) -> int:
    """Instructions that took ``ticks`` on an emulated board: the least number whose time reaches them.

    Exact wherever a tick is no longer than an instruction. Raises :class:`UsageError` on a board that is not emulated.
    """
    if "emulator" not in board.raw:
        raise UsageError(f"board {board.name!r} has no emulator", hint="use its serial port: --port")
    ratio = Fraction(str(board.raw["emulator"]["ticks_per_instruction"]))
    return -(-ticks * ratio.denominator // ratio.numerator)
