"""Where the time goes, by clocks and meters."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from microc.base.immutable import frozen
from microc.base.terminal import LAYER_WIDTH, shorten_layer, visible
from microc.device.board_info import readable
from microc.errors import ToolError, UsageError
from microc.module import UnitUse
from microc.reports.firmware_size import SizeReport, live_bytes
from microc.target import Board

if TYPE_CHECKING:
    from microc.run.board_project import Project


# ---- What a board's timings mean: ticks of a timer, or instructions that an emulator counts.

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
        if self.board.simulated:
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


# ---- An external meter: a program that prints how much energy, or power, something took while it ran.
#
# It is started before the inferences, and its standard input is closed behind them; then it prints a number and a unit, ``1.25
# mJ`` or ``18 mW``. A J, mJ, uJ or nJ is the energy of all that lay between, a W, mW or uW the mean power. The environment
# holds what is measured: ``MICROC_BOARD`` and ``MICROC_INFERENCES``.

JOULES = MappingProxyType({"J": 1.0, "mJ": 1e-3, "uJ": 1e-6, "nJ": 1e-9})
WATTS = MappingProxyType({"W": 1.0, "mW": 1e-3, "uW": 1e-6})
_ANSWER = re.compile(r"([0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*([munJW]+)")
_SECONDS = 30.0
"""That it has to print what it found."""
_HINT = "it prints a number and a unit: 1.25 mJ (all of it) or 18 mW (the mean power)"


@dataclass
class Reading:
    """What the meter says when the ``with`` is over: joules of all inferences, or mean watts; the other is None."""

    joules: float | None = None
    watts: float | None = None
    inferences: int = field(default=1)

    def each(self, seconds: float | None) -> float:
        """Joules of one inference, which took so many seconds; ToolError where power needs a time that nobody knows."""
        if self.joules is not None:
            return self.joules / self.inferences
        if self.watts is None or seconds is None:
            raise ToolError(
                "a mean power is no energy: how long an inference takes is not known here",
                hint="an emulator's time says nothing about the chip: let the meter print joules",
            )
        return self.watts * seconds


def words_of(command: str) -> list[str]:
    """The command as words; no shell is asked. UsageError where it is none."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(
            f"--meter {command!r} is no command: {error}", hint='--meter "python meter.py --port COM3"'
        ) from error
    if not words:
        raise UsageError("--meter names no program", hint='--meter "python meter.py --port COM3"')
    return words


@contextmanager
def metering(command: str, board: str, inferences: int) -> Iterator[Reading]:
    """A meter for the length of a ``with``; ToolError where it does not run, end or print what it should."""
    words, reading = words_of(command), Reading(inferences=inferences)
    environment = {**os.environ, "MICROC_BOARD": board, "MICROC_INFERENCES": str(inferences)}
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
    except OSError as error:
        raise ToolError(f"the meter {words[0]} does not run: {error.strerror or error}", hint=_HINT) from error
    try:
        yield reading
        out, told = process.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ToolError(
            f"the meter {words[0]} did not end within {_SECONDS:.0f} s",
            hint="it ends when its standard input is closed",
        ) from error
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    text = out.decode("utf-8", "replace").strip()
    if process.returncode:
        last = told.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise ToolError(
            f"the meter {words[0]} failed: {readable(last[0], 200) if last else process.returncode}", hint=_HINT
        )
    found = _ANSWER.fullmatch(text)
    unit = found[2] if found else ""
    if found is None or unit not in {**JOULES, **WATTS}:
        raise ToolError(f"the meter {words[0]} says {readable(text)!r}, which is no energy", hint=_HINT)
    if unit in JOULES:
        reading.joules = float(found[1]) * JOULES[unit]
    else:
        reading.watts = float(found[1]) * WATTS[unit]


# ---- Where the time goes: by layer, with the multiply-accumulates, the flash and the memory that it takes.


@frozen
class KernelTime:
    """One kernel of one inference. ``time`` is in the profile's unit, ``share`` its part of the whole; ``ticks`` are the timer's,
    ``instructions`` known under emulation alone.

    ``rule`` names the schedule, ``schedule`` is its trace; ``estimated_cycles`` is the cost model's, for a core at the board's
    speed of flash. ``code`` and ``constants``: bytes of flash (None where there is no linked program here); ``arena``: bytes of
    it that hold something meanwhile; ``tensor_unit``: what it does on a tensor unit, by the unit's rule, not measured.
    """

    kernel: int
    layer: str
    op: str
    macs: int
    time: int
    ticks: int
    share: float
    instructions: int | None
    rule: str
    schedule: str
    estimated_cycles: int
    code: int | None
    constants: int | None
    arena: int
    tensor_unit: UnitUse | None

    @property
    def flash(self) -> int | None:
        return None if self.code is None or self.constants is None else self.code + self.constants

    @property
    def time_per_mac(self) -> float | None:
        return self.time / self.macs if self.macs else None

    @property
    def ticks_per_mac(self) -> float | None:
        return self.ticks / self.macs if self.macs else None


@frozen
class Profile:
    """One inference of ``project``. All times are in the unit of ``clock``, and ``time`` is the sum of the kernels'. ``size`` is
    that of the firmware, None where there is no linked program here."""

    project: Project
    clock: Clock
    kernels: tuple[KernelTime, ...]
    size: SizeReport | None

    @property
    def board(self) -> str:
        return self.project.board.name

    @property
    def unit(self) -> str:
        """``instructions`` or ``ticks``."""
        return self.clock.unit

    @property
    def time(self) -> int:
        return sum(k.time for k in self.kernels)

    @property
    def ticks(self) -> int:
        return sum(k.ticks for k in self.kernels)

    @property
    def macs(self) -> int:
        return sum(k.macs for k in self.kernels)

    @property
    def estimated_cycles(self) -> int:
        return sum(k.estimated_cycles for k in self.kernels)

    def __str__(self) -> str:
        """A line for every kernel, and the total; as wide as the terminal at most."""
        numbers = len(f"  {0:>12}  {0:6.1%}  {0:>12}")
        room = max(12, min(LAYER_WIDTH, shutil.get_terminal_size().columns - numbers))
        names = [shorten_layer(k.layer, room) for k in self.kernels]
        width = max(map(len, (*names, "layer")))
        rows = [
            f"{name:{width}}  {k.time:>12,}  {k.share:6.1%}  {k.macs:>12,}"
            for name, k in zip(names, self.kernels, strict=True)
        ]
        head = f"{'layer':{width}}  {self.unit:>12}  {'share':>6}  {'MACs':>12}"
        return visible("\n".join([head, *rows, f"{'total':{width}}  {self.time:>12,}  {1:6.1%}  {self.macs:>12,}"]))

    def __repr__(self) -> str:
        name = self.project.manifest["model"]
        return f"<Profile of {name} on {self.board}: {self.time:,} {self.unit}, {len(self.kernels)} kernels>"

    def _repr_html_(self) -> str:
        """The same for a notebook."""
        cells = [(escape(shorten_layer(k.layer)), f"{k.time:,}", f"{k.share:.1%}", f"{k.macs:,}") for k in self.kernels]
        lines = [(f"<b>{name}</b>" for name in ("layer", self.unit, "share", "MACs")), *cells]
        lines.append(("total", f"{self.time:,}", "100.0%", f"{self.macs:,}"))
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
        return f"<table>{body}</table>"

    def to_data(self) -> dict[str, Any]:
        """Plain data, ready for JSON. ``seconds`` is None under emulation."""
        return {
            "board": self.board,
            "unit": self.unit,
            "unit_meaning": self.clock.meaning,
            "time": self.time,
            "seconds": self.clock.seconds(self.time),
            "tick_hz": self.clock.tick_hz,
            "emulated": self.clock.emulated,
            "ticks": self.ticks,
            "macs": self.macs,
            "instructions": self.time if self.clock.counts else None,
            "estimated_cycles": self.estimated_cycles,
            "arena": self.project.manifest["arena_size"],
            "flash": self.size.flash if self.size else None,
            "ram": self.size.ram if self.size else None,
            "kernels": [
                {**asdict(k), "flash": k.flash, "time_per_mac": k.time_per_mac, "ticks_per_mac": k.ticks_per_mac}
                for k in self.kernels
            ],
        }


def make_profile(project: Project, clock: Clock, ticks: tuple[int, ...], size: SizeReport | None) -> Profile:
    """What the ticks of a project's kernels, in order, say."""
    times = [clock.amount(t) for t in ticks]
    total = sum(times) or 1
    arena = live_bytes(project.manifest)
    sizes = size.of_network(project.manifest["model"]) if size else ()
    kernels = tuple(
        KernelTime(
            kernel=k,
            layer=kernel["layer"],
            op=kernel["op"],
            macs=kernel["macs"],
            time=times[k],
            ticks=ticks[k],
            share=times[k] / total,
            instructions=times[k] if clock.counts else None,
            rule=kernel["rule"],
            schedule=kernel["schedule"],
            estimated_cycles=kernel["estimated_cycles"],
            code=sizes[k].code if sizes else None,
            constants=sizes[k].constants if sizes else None,
            arena=arena[k],
            tensor_unit=UnitUse(**kernel["tensor_unit"]) if "tensor_unit" in kernel else None,
        )
        for k, kernel in enumerate(project.manifest["kernels"])
    )
    return Profile(project, clock, kernels, size)


def short_layer(layer: str) -> str:
    """A layer without the name of the model file, and of names that a converter has glued together the first."""
    start = layer.find("#")
    return (layer[start:] if start > 0 else layer).partition(";")[0]
