"""Where the time goes: by layer, with the multiply-accumulates, the flash and the memory that it takes."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING, Any

from microc.driver.measure.clock import Clock
from microc.driver.report.size import SizeReport, live_bytes
from microc.frozen import frozen
from microc.module import UnitUse
from microc.terminal import LAYER_WIDTH, shorten_layer, visible

if TYPE_CHECKING:
    from microc.driver.measure.firmware import Project


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
