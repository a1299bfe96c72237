# SPDX-License-Identifier: Apache-2.0
"""Time of a network by kernel: units of time on boards and emulators, energy meters, and profiles."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from microc.base.immutable import frozen
from microc.base.operating_system import split_command
from microc.device.board_info import make_printable
from microc.device.boards import emulated_board_hint
from microc.document.blocks import Document, document, layer_names, numbers, prose, table
from microc.document.renderers import Showable, render_text
from microc.errors import ToolError, UsageError
from microc.module import UnitUse
from microc.reports.firmware_size import SizeReport, live_arena_bytes
from microc.target import Board

if TYPE_CHECKING:
    from microc.run.arm_cycles import KernelCycles
    from microc.run.board_project import Project


# ---- Units of a board's timings: ticks of a timer, or instructions that an emulator counts.

INSTRUCTIONS, TICKS = "instructions", "ticks"
CYCLES = "cycles"
"""Unit of model cycles and of a simulator's, which are measured beside timings (:mod:`microc.run.arm_cycles`)."""


@frozen
class Clock:
    """Unit of a board's timings: ticks of a timer, or instructions.

    ``tick_hz``: ticks per second of the timer that the firmware reads. ``emulated``: True if microc started an emulator
    that runs the board. An emulator that counts instructions advances the timer by a fixed, arbitrary amount for each
    instruction. Ticks of such a timer do not show how long the chip takes. The unit is then instructions, and no time
    is reported."""

    board: Board
    tick_hz: int
    emulated: bool

    @property
    def counts_instructions(self) -> bool:
        """True if the unit is instructions, counted by an emulator."""
        return self.emulated and "ticks_per_instruction" in self.board.raw["emulator"]

    @property
    def unit(self) -> str:
        """Name of the unit: ``instructions`` or ``ticks``."""
        return INSTRUCTIONS if self.counts_instructions else TICKS

    @property
    def meaning(self) -> str:
        """Meaning of the unit, as a phrase that follows the number."""
        if self.counts_instructions:
            return "counted by the emulator: neither cycles nor time"
        rate = f"{self.tick_hz:,} a second"
        if self.board.target.isa == "host":
            return f"{rate}, of this computer's clock"
        if self.emulated:
            return f"{rate}, of an emulator that follows this computer's time: they say nothing about the chip"
        if self.board.simulated:
            return f"{rate}, of the timer of a core that is simulated cycle by cycle"
        return f"{rate}, of the board's timer"

    def convert_ticks(self, ticks: int) -> int:
        """Convert ticks of the timer to :attr:`unit`: to instructions, or unchanged."""
        return ticks_to_instructions(self.board, ticks) if self.counts_instructions else ticks

    def seconds(self, amount: int) -> float | None:
        """Convert an amount in ticks to seconds; return None if the board is emulated, because its timer does not show
        the chip's speed."""
        return None if self.emulated else amount / self.tick_hz


def ticks_to_instructions(board: Board, ticks: int) -> int:
    """Convert ticks of an emulated board's timer to instructions, rounded up.

    The result is exact if a tick is no longer than an instruction. Raises UsageError for a board without an
    emulator."""
    if "emulator" not in board.raw:
        hint = "; ".join(filter(None, ("name the serial port of the board: --port", emulated_board_hint(board))))
        raise UsageError(f"board {board.name!r} has no emulator", hint=hint)
    ratio = Fraction(str(board.raw["emulator"]["ticks_per_instruction"]))
    return -(-ticks * ratio.denominator // ratio.numerator)


# ---- An external meter: a program that measures energy or power while a board runs.
#
# It is started before the inferences. After them its standard input is closed; then it prints a number and a unit, ``1.25 mJ``
# or ``18 mW``: the energy of all inferences (J, mJ, uJ, nJ), or the mean power (W, mW, uW). The environment tells it what is
# measured: ``MICROC_BOARD`` and ``MICROC_INFERENCES``.

JOULES = MappingProxyType({"J": 1.0, "mJ": 1e-3, "uJ": 1e-6, "nJ": 1e-9})
WATTS = MappingProxyType({"W": 1.0, "mW": 1e-3, "uW": 1e-6})
_ANSWER = re.compile(r"([0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*([munJW]+)")
_RESULT_TIMEOUT = 30.0
"""Seconds for the meter to print its result."""
_HINT = "print a number and a unit: 1.25 mJ (all of it) or 18 mW (the mean power)"


@dataclass
class MeterReading:
    """Result of an energy meter; its fields are set when the ``with`` block of :func:`run_meter` ends.

    ``joules``: energy of all inferences together; ``watts``: mean power. The meter measures one of the two; the other
    is None. ``inferences``: number of inferences that were measured."""

    joules: float | None = None
    watts: float | None = None
    inferences: int = field(default=1)

    def joules_per_inference(self, seconds: float | None) -> float:
        """Compute the energy of one inference in joules. ``seconds``: duration of one inference, None if unknown.

        Raises ToolError if the meter gave watts and the duration is unknown."""
        if self.joules is not None:
            return self.joules / self.inferences
        if self.watts is None or seconds is None:
            raise ToolError(
                "the meter measured power, but the time of an inference is unknown",
                hint="use a meter that prints joules, because an emulator does not measure the time of the chip",
            )
        return self.watts * seconds


def split_meter_command(command: str) -> list[str]:
    """Split the command of ``--meter`` into words as a shell does, without running a shell. Raises UsageError if it is
    malformed or empty."""
    try:
        words = split_command(command)
    except ValueError as error:
        raise UsageError(
            f"--meter: got {command!r}, expected a command: {error}",
            hint='quote it as in a shell: --meter "python meter.py --port COM3"',
        ) from error
    if not words:
        raise UsageError(
            "--meter: got no program, expected a command", hint='name one: --meter "python meter.py --port COM3"'
        )
    return words


@contextmanager
def run_meter(command: str, board: str, inferences: int) -> Iterator[MeterReading]:
    """Run the program of an energy meter while the body of a ``with`` statement runs, and yield its reading.

    ``board``: name of the board; ``inferences``: number of inferences in the body. Raises ToolError if the program
    cannot be started, does not end, or prints no energy or power."""
    argv, reading = split_meter_command(command), MeterReading(inferences=inferences)
    environment = {**os.environ, "MICROC_BOARD": board, "MICROC_INFERENCES": str(inferences)}
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
    except OSError as error:
        raise ToolError(f"cannot start the meter {argv[0]}: {error.strerror or error}", hint=_HINT) from error
    try:
        yield reading
        out, errors = process.communicate(timeout=_RESULT_TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise ToolError(
            f"the meter {argv[0]} did not end within {_RESULT_TIMEOUT:.0f} s",
            hint="end the program when its standard input is closed",
        ) from error
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    text = out.decode("utf-8", "replace").strip()
    if process.returncode:
        last = errors.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise ToolError(
            f"the meter {argv[0]} failed: {make_printable(last[0], 200) if last else process.returncode}", hint=_HINT
        )
    match = _ANSWER.fullmatch(text)
    unit = match[2] if match else ""
    if match is None or unit not in {**JOULES, **WATTS}:
        raise ToolError(
            f"the meter {argv[0]} printed {make_printable(text)!r}, expected an energy or a power", hint=_HINT
        )
    if unit in JOULES:
        reading.joules = float(match[1]) * JOULES[unit]
    else:
        reading.watts = float(match[1]) * WATTS[unit]


# ---- Profiles: time, multiply-accumulates, flash and memory by layer.


@frozen
class KernelTime:
    """Measurement of one kernel in one inference.

    ``kernel``: position of the kernel in the order of execution. ``layer``, ``op``: its layer in the model, and its
    operator. ``time``: duration in the profile's unit, ticks or instructions. ``share``: ``time`` as a fraction of the
    total, 0 to 1. ``ticks``: duration in ticks of the board's timer. ``instructions``: number of instructions, None
    unless an emulator counts them. ``rule``: name of the schedule rule; ``schedule``: trace of the schedule.
    ``estimated_cycles``: cycles that the cost model estimates for the board's core and flash. ``cycles``: cycles of the
    executed instructions, None unless the device counts them (:mod:`microc.run.arm_cycles`). ``code``, ``constants``:
    bytes of flash, None if no program was linked. ``arena``: bytes of the arena in use during the kernel.
    ``tensor_unit``: estimated work of a tensor unit, None if the kernel uses none. ``cores``: number of cores that share
    the kernel's loops.
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
    cycles: int | None
    code: int | None
    constants: int | None
    arena: int
    tensor_unit: UnitUse | None
    cores: int = 1

    @property
    def flash(self) -> int | None:
        """Bytes of flash for code and constants; None if no program was linked."""
        return None if self.code is None or self.constants is None else self.code + self.constants

    @property
    def time_per_mac(self) -> float | None:
        return self.time / self.macs if self.macs else None

    @property
    def ticks_per_mac(self) -> float | None:
        return self.ticks / self.macs if self.macs else None


@frozen
class Profile(Showable):
    """Measurement of one inference of ``project``, kernel by kernel.

    Times are in the unit of ``clock``. ``size``: flash and RAM of the firmware, None without a linked program.
    ``cycles_meaning``: source of the kernels' ``cycles``, and what these leave out; empty if there are none."""

    project: Project
    clock: Clock
    kernels: tuple[KernelTime, ...]
    size: SizeReport | None
    cycles_meaning: str = ""

    @property
    def board(self) -> str:
        return self.project.board.name

    @property
    def unit(self) -> str:
        """Name of the unit: ``instructions`` or ``ticks``."""
        return self.clock.unit

    @property
    def time(self) -> int:
        """Sum of the kernels' times, in :attr:`unit`."""
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

    @property
    def cycles(self) -> int | None:
        """Sum of the kernels' cycles; None if the device does not count them."""
        return sum(k.cycles or 0 for k in self.kernels) if self.cycles_meaning else None

    def __str__(self) -> str:
        """Format the table of kernels within the width of the terminal."""
        return render_text(self.document(), shutil.get_terminal_size().columns)

    def __repr__(self) -> str:
        name = self.project.manifest["model"]
        return f"<Profile of {name} on {self.board}: {self.time:,} {self.unit}, {len(self.kernels)} kernels>"

    def document(self) -> Document:
        """Return a table with a row per kernel and the total as a document, which terminals and notebooks show."""
        columns = (*layer_names("layer"), *numbers(self.unit), *numbers("share", spec=".1%"), *numbers("MACs"))
        rows = [(k.layer, k.time, k.share, k.macs) for k in self.kernels]
        totals = ("total", self.time, 1.0, self.macs)
        if not self.cycles_meaning:
            return document(table(columns, rows, totals=totals))
        with_cycles = [(*row, k.cycles) for row, k in zip(rows, self.kernels, strict=True)]
        return document(
            table((*columns, *numbers("cycles")), with_cycles, totals=(*totals, self.cycles)),
            prose(f"cycles: {self.cycles_meaning}"),
        )

    def to_data(self) -> dict[str, Any]:
        """Return the profile as plain data for JSON. ``seconds`` is None under emulation."""
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
            "instructions": self.time if self.clock.counts_instructions else None,
            "estimated_cycles": self.estimated_cycles,
            "cycles": self.cycles,
            "cycles_meaning": self.cycles_meaning or None,
            "arena": self.project.manifest["arena_size"],
            "flash": self.size.flash if self.size else None,
            "ram": self.size.ram if self.size else None,
            "kernels": [
                {**asdict(k), "flash": k.flash, "time_per_mac": k.time_per_mac, "ticks_per_mac": k.ticks_per_mac}
                for k in self.kernels
            ],
        }


def make_profile(
    project: Project,
    clock: Clock,
    ticks: tuple[int, ...],
    size: SizeReport | None,
    cycles: KernelCycles | None = None,
) -> Profile:
    """Build the profile of a project from the ticks of its kernels, in the order of execution.

    ``size``: flash and RAM of the linked firmware, None if there is none. ``cycles``: cycles of its kernels, if counted."""
    times = [clock.convert_ticks(t) for t in ticks]
    total = sum(times) or 1
    arena = live_arena_bytes(project.manifest)
    sizes = size.layers_of_network(project.manifest["model"]) if size else ()
    kernels = tuple(
        KernelTime(
            kernel=k,
            layer=kernel["layer"],
            op=kernel["op"],
            macs=kernel["macs"],
            time=times[k],
            ticks=ticks[k],
            share=times[k] / total,
            instructions=times[k] if clock.counts_instructions else None,
            rule=kernel["rule"],
            schedule=kernel["schedule"],
            estimated_cycles=kernel["estimated_cycles"],
            cycles=cycles.cycles[k] if cycles else None,
            code=sizes[k].code if sizes else None,
            constants=sizes[k].constants if sizes else None,
            arena=arena[k],
            tensor_unit=UnitUse(**kernel["tensor_unit"]) if "tensor_unit" in kernel else None,
            cores=kernel.get("cores", 1),
        )
        for k, kernel in enumerate(project.manifest["kernels"])
    )
    return Profile(project, clock, kernels, size, cycles.meaning if cycles else "")


def shorten_layer_name(layer: str) -> str:
    """Shorten a layer's name: omit the model's file name before ``#``, and keep the first of several names that a
    converter joined with semicolons (``a;b``)."""
    start = layer.find("#")
    return (layer[start:] if start > 0 else layer).partition(";")[0]
