"""What code is generated for: a :class:`Target` (core, features), a :class:`Board` (target, memory, console, emulator) and
a :class:`Goal` (what a byte of flash is worth).

A board is data, read from ``boards/<name>.toml`` by ``device/boards.py``; nothing here knows a particular one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from microc.errors import UsageError, suggestion

if TYPE_CHECKING:
    from microc.isa import Core


@dataclass(frozen=True, slots=True)
class Target:
    """A core: its name, family and what it has. A schedule asks ``has("dot2")``, never for a name.

    ``features``: properties, and the intrinsics that the core has instructions for (``isa/``). ``flash_wait``: cycles that the
    core waits for a byte of constants, on average, where its board's flash is slower than it. ``npu``: the accelerator that the
    board has beside it, in the words of ``--external``; empty where there is none.
    """

    cpu: str
    isa: str
    features: frozenset[str]
    flash_wait: float = 0.0
    npu: str = ""

    def has(self, feature: str) -> bool:
        return feature in self.features

    def having(self, *features: str) -> Target:
        """The same with other properties, too."""
        return replace(self, features=self.features.union(features))

    @property
    def core(self) -> Core:
        """What is known of it."""
        from microc.isa import CORES

        return CORES[self.cpu]


def target_for(cpu: str) -> Target:
    """The target of a known core, by its name or another one (:data:`microc.isa.ALIASES`)."""
    from microc.isa import ALIASES, CORES  # with all intrinsics: help and the parsing of arguments do without

    cpu = ALIASES.get(cpu, cpu)
    if cpu not in CORES:
        raise UsageError(f"unknown core {cpu!r}", hint=suggestion(cpu, CORES, "cores"))
    core = CORES[cpu]
    return Target(cpu, core.family, core.has)


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


WORD = 4
"""Bytes that an access of a small core moves at most."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Accesses of a kernel to one operand in a call, and their bytes: averages, where guards depend on data.

    An access is to at most a word; an intrinsic that moves sixteen bytes makes four.
    """

    reads: float = 0.0
    writes: float = 0.0
    bytes_read: float = 0.0
    bytes_written: float = 0.0

    @staticmethod
    def of(width: int, extent: int = 1, step: int = 1, *, writes: bool = False) -> Traffic:
        """``extent`` elements of ``width`` bytes, ``step`` apart; neighbours come by words."""
        count = -(-extent * width // WORD) if step == 1 else extent * -(-width // WORD)
        return Traffic(0, count, 0, extent * width) if writes else Traffic(count, 0, extent * width, 0)

    def times(self, count: float) -> Traffic:
        """The same so often."""
        return Traffic(count * self.reads, count * self.writes, count * self.bytes_read, count * self.bytes_written)

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.reads + other.reads,
            self.writes + other.writes,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
        )


@dataclass(frozen=True, slots=True)
class Memory:
    """RAM that may hold tensors: ``size`` bytes for them, and how long the core waits there beyond its own time of an access.

    An access waits ``wait_states`` cycles; where a cache keeps what was fetched (``cached``), every line of ``line_bytes``
    does so once that a kernel reads, and once that it writes: an estimate that takes the cache for large enough. ``weights``:
    copies of constants may lie here, too.
    """

    name: str
    size: int
    wait_states: int = 0
    line_bytes: int = WORD
    cached: bool = False
    weights: bool = False

    def waits(self, traffic: Traffic, nbytes: int) -> float:
        """Cycles that a call waits for an operand of ``nbytes`` here."""
        if not self.cached:
            return self.wait_states * (traffic.reads + traffic.writes)
        moved = min(traffic.bytes_read, nbytes) + min(traffic.bytes_written, nbytes)
        return self.wait_states * moved / self.line_bytes


@dataclass(frozen=True, slots=True)
class Fetches:
    """Code as a core fetches it, of a function or of a loop in it with all loops inside: ``nbytes`` of instructions as printed,
    ``executed`` bytes of them in a call, the times that it is entered. Functions of libraries are no part of it."""

    nbytes: float = 0.0
    executed: float = 0.0
    entries: float = 1.0
    inside: tuple[Fetches, ...] = ()

    def missed(self, cache: int) -> float:
        """Bytes that come from memory in a call, behind a cache of so many bytes that holds nothing of it at first.

        A loop that the cache holds comes once each time that it is entered. Of a longer one every instruction comes anew but for
        those of the loops inside that fit: least recently used lines go first, so that a longer loop throws out all that it
        needs next. Without a cache all that is executed comes.
        """
        if self.nbytes <= cache:
            return min(self.nbytes * self.entries, self.executed)
        own = self.executed - sum(loop.executed for loop in self.inside)
        return own + sum(loop.missed(cache) for loop in self.inside)


NOTHING = Fetches()
"""The code of what is not ours."""


@dataclass(frozen=True, slots=True)
class Fetching:
    """How code comes from a memory: a line of ``line_bytes`` waits ``wait_states`` cycles of the core; ``cache_bytes`` of a cache
    for instructions in front of it (0: none). Lines count as full; what a branch leaves of one is not estimated."""

    wait_states: int = 0
    line_bytes: int = WORD
    cache_bytes: int = 0

    def waits(self, code: Fetches) -> float:
        """Cycles that a call waits for its instructions."""
        return self.wait_states * code.missed(self.cache_bytes) / self.line_bytes


@dataclass(frozen=True, slots=True)
class CodeMemory:
    """RAM that hot code may run from: ``size`` bytes for it, how code comes from there, and from where it is ``linked``.
    ``main``: stack, data and the first arena lie there, too."""

    name: str
    size: int
    fetching: Fetching
    linked: Fetching
    main: bool = False


@dataclass(frozen=True, slots=True)
class Board:
    """A board as its file describes it. ``raw`` holds the tables that only device/ and the templates read."""

    name: str
    title: str
    target: Target
    regions: tuple[Region, ...]
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ids(self) -> Mapping[str, Any]:
        """What build systems call the board, by their names: ``[ids]`` of its file, and the chip of its framework."""
        framework = self.raw.get("framework")
        own = {framework["name"]: framework["target"]} if framework else {}
        return {**own, **self.raw.get("ids", {})}

    @property
    def simulated(self) -> bool:
        """True if the board's file names a program that simulates it."""
        return "simulator" in self.raw

    @property
    def virtual(self) -> bool:
        """True if an emulator, or a simulator that packages install, runs its firmware on this computer."""
        simulator = self.raw.get("simulator")
        return "emulator" in self.raw or (simulator is not None and "install" not in simulator)

    @property
    def memories(self) -> tuple[Memory, ...]:
        """RAM for tensors where the board's file says what regions hold: the first one and those for tensors, in their order.
        Empty on all other boards, which have one arena."""
        ram = [m for m in self.raw.get("memory", ()) if m["kind"] == "ram"]
        found = [m for k, m in enumerate(ram) if not k or "tensors" in m.get("holds", ())]
        several = any({"tensors", "weights"} & {*each.get("holds", ())} for each in ram)
        speeds = ("wait_states", "line_bytes", "cached")
        return tuple(
            Memory(
                m["name"],
                m["size"],
                **{key: m[key] for key in speeds if key in m},
                weights="weights" in m.get("holds", ()),
            )
            for m in found
            if several
        )

    @property
    def code_memory(self) -> CodeMemory | None:
        """The memory that hot code may run from, all of it, where the board's file names one."""
        regions = self.raw.get("memory", ())
        own = next((m for m in regions if "code" in m.get("holds", ())), None)
        if own is None:
            return None
        flash = next(m for m in regions if m["kind"] == "flash")
        linked = Fetching(**{**_speed(flash), **flash.get("fetch", {})})
        cache = linked.cache_bytes if own.get("cached") else 0
        main = own is next(m for m in regions if m["kind"] == "ram")
        return CodeMemory(own["name"], own["size"], Fetching(**_speed(own), cache_bytes=cache), linked, main)

    @property
    def npu_constants(self) -> str:
        """The region of flash that an accelerator reads, empty where that is the first one, or there is no accelerator."""
        return str(self.raw.get("npu", {}).get("constants", ""))

    @property
    def flash_bytes(self) -> int:
        """Size of the regions that hold code and weights, but for an accelerator's; 0 when the board does not bound it."""
        return sum(r.size for r in self.regions if r.kind == "flash" and r.name != self.npu_constants)

    @property
    def ram_bytes(self) -> int:
        """Size of the regions that hold data, stack and arena; 0 when the board does not bound it."""
        return sum(r.size for r in self.regions if r.kind == "ram")


def _speed(region: Mapping[str, Any]) -> dict[str, int]:
    """What a region's table says of an access to it."""
    return {key: region[key] for key in ("wait_states", "line_bytes") if key in region}
