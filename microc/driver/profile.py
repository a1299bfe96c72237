"""Where the time goes: ticks and multiply-accumulates by kernel, as data and as a Chrome trace."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from microc.driver.firmware import Device


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel of one inference. ``instructions`` is known under emulation alone; ``rule`` names the schedule;
    ``estimated_cycles`` is the cost model's, for a core at the board's speed of flash."""

    kernel: int
    layer: str
    op: str
    macs: int
    ticks: int
    share: float
    instructions: int | None
    rule: str = ""
    estimated_cycles: int = 0

    @property
    def ticks_per_mac(self) -> float | None:
        return self.ticks / self.macs if self.macs else None


@dataclass(frozen=True, slots=True)
class Profile:
    """One inference. Seconds are ticks divided by ``tick_hz``; under emulation they are those of the emulated clock."""

    board: str
    tick_hz: int
    emulated: bool
    kernels: tuple[KernelTime, ...]

    @property
    def ticks(self) -> int:
        return sum(k.ticks for k in self.kernels)

    @property
    def macs(self) -> int:
        return sum(k.macs for k in self.kernels)

    @property
    def estimated_cycles(self) -> int:
        return sum(k.estimated_cycles for k in self.kernels)

    def to_data(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "board": self.board,
            "tick_hz": self.tick_hz,
            "emulated": self.emulated,
            "ticks": self.ticks,
            "macs": self.macs,
            "instructions": sum(k.instructions or 0 for k in self.kernels) if self.emulated else None,
            "estimated_cycles": self.estimated_cycles,
            "kernels": [{**asdict(k), "ticks_per_mac": k.ticks_per_mac} for k in self.kernels],
        }

    def to_trace(self) -> dict[str, Any]:
        """A Chrome trace (open it in Perfetto): complete events one after the other, times in microseconds."""
        events, start = [], 0
        for k in self.kernels:
            events.append(
                {
                    "name": k.layer,
                    "cat": k.op,
                    "ph": "X",
                    "ts": start * 1e6 / self.tick_hz,
                    "dur": k.ticks * 1e6 / self.tick_hz,
                    "pid": 1,
                    "tid": 1,
                    "args": {"kernel": k.kernel, "op": k.op, "ticks": k.ticks, "macs": k.macs},
                }
            )
            start += k.ticks
        return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"board": self.board}}


def profile(device: Device) -> Profile:
    """Profile one inference on the inputs that the board holds."""
    ticks = device.profile()
    total = sum(ticks) or 1
    kernels = tuple(
        KernelTime(
            kernel=k,
            layer=kernel["layer"],
            op=kernel["op"],
            macs=kernel["macs"],
            ticks=t,
            share=t / total,
            instructions=device.instructions(t),
            rule=kernel["rule"],
            estimated_cycles=kernel["estimated_cycles"],
        )
        for k, (kernel, t) in enumerate(zip(device.kernels, ticks, strict=True))
    )
    return Profile(device.project.board.name, device.tick_hz, device.project.counted, kernels)
