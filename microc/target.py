"""What code is generated for: a :class:`Target` (core, features), a :class:`Board` (target, memory, console, emulator) and
a :class:`Goal` (what a byte of flash is worth).

A board is data, read from ``boards/<name>.toml`` by ``device/boards.py``; nothing here knows a particular one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from microc.errors import UsageError

CPUS: Mapping[str, tuple[str, frozenset[str]]] = MappingProxyType(
    {
        "host": ("host", frozenset({"fpu", "unaligned"})),
        "cortex-m0": ("arm", frozenset({"thumb1", "words"})),
        "cortex-m0plus": ("arm", frozenset({"thumb1", "words"})),
        "cortex-m3": ("arm", frozenset({"sat", "unaligned", "mul64"})),
        "cortex-m4": ("arm", frozenset({"sat", "dsp", "fpu", "fma", "vcvtr", "unaligned", "mul64"})),
        "cortex-m7": ("arm", frozenset({"sat", "dsp", "fpu", "fma", "vcvtr", "unaligned", "mul64"})),
        "cortex-m33": ("arm", frozenset({"sat", "dsp", "fpu", "fma", "vcvtr", "unaligned", "mul64"})),
        "cortex-m33-nodsp": ("arm", frozenset({"sat", "unaligned", "mul64"})),
        "cortex-m55": ("arm", frozenset({"sat", "dsp", "fpu", "fma", "vcvtr", "mve", "unaligned", "mul64"})),
        "avr": ("avr", frozenset()),
        "xtensa-lx7": ("xtensa", frozenset({"fpu", "mul64", "words"})),
        "rv32imc": ("riscv", frozenset({"mul64", "words"})),
        "rv32imac": ("riscv", frozenset({"mul64", "words"})),
        "rv32imafc": ("riscv", frozenset({"fpu", "fma", "mul64", "words"})),
        "rv64imac": ("riscv", frozenset({"mul64", "words"})),
        "rv64imafdc": ("riscv", frozenset({"fpu", "fma", "mul64", "words"})),
    }
)


@dataclass(frozen=True, slots=True)
class Target:
    """A core: its name, instruction set family and features. A schedule asks ``has("dsp")``, never for a name.

    ``flash_wait``: cycles that the core waits for a byte of constants, on average, where its board's flash is slower than it.
    """

    cpu: str
    isa: str
    features: frozenset[str]
    flash_wait: float = 0.0

    def has(self, feature: str) -> bool:
        return feature in self.features

    @property
    def multiplies_alone(self) -> bool:
        """Whether 32-bit numbers are multiplied fast, and shorter ones not side by side: Armv6-M and Armv7-M without DSP."""
        return self.isa == "arm" and not self.has("dsp")


def target_for(cpu: str) -> Target:
    """The target of a known core."""
    if cpu not in CPUS:
        raise UsageError(f"unknown core {cpu!r}", hint="known: " + ", ".join(CPUS))
    isa, features = CPUS[cpu]
    return Target(cpu, isa, features)


GOALS = ("speed", "size", "balanced")


@dataclass(frozen=True, slots=True)
class Goal:
    """What a choice between ways to compute the same weighs.

    ``price``: instructions of one inference that a byte of flash is worth; 0 for speed alone, infinite for size alone.
    """

    name: str
    price: float


SPEED, SIZE = Goal("speed", 0.0), Goal("size", float("inf"))


@dataclass(frozen=True, slots=True)
class Region:
    """A memory region of a board; ``kind`` is ``flash`` or ``ram``."""

    name: str
    kind: str
    origin: int
    size: int


@dataclass(frozen=True, slots=True)
class Board:
    """A board as its file describes it. ``raw`` holds the tables that only device/ and the templates read."""

    name: str
    title: str
    target: Target
    regions: tuple[Region, ...]
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def flash_bytes(self) -> int:
        """Size of the regions that hold code and weights; 0 when the board does not bound it."""
        return sum(r.size for r in self.regions if r.kind == "flash")

    @property
    def ram_bytes(self) -> int:
        """Size of the regions that hold data, stack and arena; 0 when the board does not bound it."""
        return sum(r.size for r in self.regions if r.kind == "ram")
