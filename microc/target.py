"""Targets of code generation: a :class:`Target` (core, features), a :class:`Board` (target, memory, console, emulator) and a
:class:`Goal` (price of a byte of flash).

A board is data, read from ``boards/<name>.toml`` by ``device/boards.py``; this module knows no particular board.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from microc.errors import UsageError, known_names_hint

if TYPE_CHECKING:
    from microc.isa import Core


@dataclass(frozen=True, slots=True)
class Target:
    """A core: its name, family and features. Schedules test ``has("dot2")``, never a name.

    - ``features``: properties, and the intrinsics that the core has instructions for (``isa/``).
    - ``flash_wait``: mean cycles that the core waits for a byte of constants, if its board's flash is slower than the core.
    - ``npu``: the board's accelerator, as ``--external`` names it; empty without one.
    """

    cpu: str
    isa: str
    features: frozenset[str]
    flash_wait: float = 0.0
    npu: str = ""

    def has(self, feature: str) -> bool:
        """Test whether the core has a feature."""
        return feature in self.features

    def having(self, *features: str) -> Target:
        """Return the target with further features."""
        return replace(self, features=self.features.union(features))

    @property
    def core(self) -> Core:
        """The core's description."""
        from microc.isa import CORES

        return CORES[self.cpu]


def target_for(cpu: str) -> Target:
    """Return the target of a core, by its name or an alias (:data:`microc.isa.ALIASES`); UsageError if it is unknown."""
    from microc.isa import ALIASES, CORES  # with all intrinsics: help and the parsing of arguments do without

    cpu = ALIASES.get(cpu, cpu)
    if cpu not in CORES:
        raise UsageError(f"unknown core {cpu!r}", hint=known_names_hint(cpu, CORES, "cores"))
    core = CORES[cpu]
    return Target(cpu, core.family, core.has)


GOALS = ("speed", "size", "balanced")
"""Names of the goals that users may choose."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The weight of flash against time in a choice between implementations.

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
"""Bytes that an access of a small core moves, at most."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Average number of accesses of a kernel to one operand in a call, and their bytes.

    An access moves at most a word; an intrinsic that moves sixteen bytes counts as four."""

    reads: float = 0.0
    writes: float = 0.0
    bytes_read: float = 0.0
    bytes_written: float = 0.0

    @staticmethod
    def of(element_bytes: int, extent: int = 1, step: int = 1, *, writes: bool = False) -> Traffic:
        """Return the traffic of an access to ``extent`` elements of ``element_bytes`` bytes, ``step`` elements apart.

        Contiguous elements move by words."""
        count = -(-extent * element_bytes // WORD) if step == 1 else extent * -(-element_bytes // WORD)
        return Traffic(0, count, 0, extent * element_bytes) if writes else Traffic(count, 0, extent * element_bytes, 0)

    def times(self, repetitions: float) -> Traffic:
        """Return the traffic of ``repetitions`` repetitions."""
        return Traffic(
            repetitions * self.reads,
            repetitions * self.writes,
            repetitions * self.bytes_read,
            repetitions * self.bytes_written,
        )

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.reads + other.reads,
            self.writes + other.writes,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
        )


@dataclass(frozen=True, slots=True)
class Memory:
    """RAM that may hold tensors: ``size`` bytes for them, and the wait states of its accesses.

    An access waits ``wait_states`` cycles. With a cache (``cached``) every line of ``line_bytes`` waits once if a kernel reads
    it, and once if it writes it: this assumes that the cache is large enough. ``weights``: copies of constants may be here, too.
    """

    name: str
    size: int
    wait_states: int = 0
    line_bytes: int = WORD
    cached: bool = False
    weights: bool = False

    def waits(self, traffic: Traffic, nbytes: int) -> float:
        """Return the cycles that a call waits for an operand of ``nbytes`` in this memory."""
        if not self.cached:
            return self.wait_states * (traffic.reads + traffic.writes)
        filled = min(traffic.bytes_read, nbytes) + min(traffic.bytes_written, nbytes)
        return self.wait_states * filled / self.line_bytes


@dataclass(frozen=True, slots=True)
class Fetches:
    """Instruction fetches of a function, or of a loop in it with all loops inside.

    ``nbytes``: printed instructions; ``executed``: bytes of them executed in a call; ``entries``: times that the loop is entered;
    ``inside``: the loops inside. Library functions do not count.
    """

    nbytes: float = 0.0
    executed: float = 0.0
    entries: float = 1.0
    inside: tuple[Fetches, ...] = ()

    def missed(self, cache_bytes: int) -> float:
        """Return the bytes that a call fetches from memory, behind an instruction cache that is cold at first.

        ``cache_bytes``: size of the cache; without one all executed bytes are fetched. A loop that fits the cache is
        fetched once each time that it is entered. A longer loop is fetched in every iteration, but for inner loops that
        fit: the least recently used lines are evicted first, so that it evicts the code that it needs next."""
        if self.nbytes <= cache_bytes:
            return min(self.nbytes * self.entries, self.executed)
        own = self.executed - sum(loop.executed for loop in self.inside)
        return own + sum(loop.missed(cache_bytes) for loop in self.inside)


NOTHING = Fetches()
"""The fetches of code that is not ours."""


@dataclass(frozen=True, slots=True)
class Fetching:
    """The speed of instruction fetches from a memory: a line of ``line_bytes`` waits ``wait_states`` cycles of the core.

    ``cache_bytes``: the instruction cache in front of the memory (0: none). Lines count as full; partial lines at branches are
    not estimated.
    """

    wait_states: int = 0
    line_bytes: int = WORD
    cache_bytes: int = 0

    def waits(self, code: Fetches) -> float:
        """Return the cycles that a call waits for its instructions."""
        return self.wait_states * code.missed(self.cache_bytes) / self.line_bytes


@dataclass(frozen=True, slots=True)
class CodeMemory:
    """RAM that hot code may run from: ``size`` bytes, its speed, and the speed of the memory from which code is ``linked``.

    ``main``: stack, data and the first arena are in this RAM, too.
    """

    name: str
    size: int
    fetching: Fetching
    linked: Fetching
    main: bool = False


@dataclass(frozen=True, slots=True)
class Board:
    """A board, as its file describes it. ``raw`` holds the tables that only device/ and the templates read."""

    name: str
    title: str
    target: Target
    regions: tuple[Region, ...]
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ids(self) -> Mapping[str, Any]:
        """The names of the board in build systems: ``[ids]`` of its file, and the chip of its framework."""
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
        """RAM regions that may hold tensors: the first RAM region, then those that the board's file assigns to tensors, in
        order.

        Empty if the file assigns no region to tensors or weights; such a board has one arena."""
        ram = [m for m in self.raw.get("memory", ()) if m["kind"] == "ram"]
        for_tensors = [m for k, m in enumerate(ram) if not k or "tensors" in m.get("holds", ())]
        has_assignments = any({"tensors", "weights"} & {*m.get("holds", ())} for m in ram)
        speeds = ("wait_states", "line_bytes", "cached")
        return tuple(
            Memory(
                m["name"],
                m["size"],
                **{key: m[key] for key in speeds if key in m},
                weights="weights" in m.get("holds", ()),
            )
            for m in for_tensors
            if has_assignments
        )

    @property
    def code_memory(self) -> CodeMemory | None:
        """The memory to which the board's file assigns hot code; None if it assigns none."""
        regions = self.raw.get("memory", ())
        own = next((m for m in regions if "code" in m.get("holds", ())), None)
        if own is None:
            return None
        flash = next(m for m in regions if m["kind"] == "flash")
        linked = Fetching(**{**_access_speed(flash), **flash.get("fetch", {})})
        cache = linked.cache_bytes if own.get("cached") else 0
        main = own is next(m for m in regions if m["kind"] == "ram")
        return CodeMemory(own["name"], own["size"], Fetching(**_access_speed(own), cache_bytes=cache), linked, main)

    @property
    def npu_constants(self) -> str:
        """The region of flash that an accelerator reads; empty if that is the first region, or there is no accelerator."""
        return str(self.raw.get("npu", {}).get("constants", ""))

    @property
    def flash_bytes(self) -> int:
        """The size of the regions that hold code and weights, without an accelerator's; 0 if the board does not bound it."""
        return sum(r.size for r in self.regions if r.kind == "flash" and r.name != self.npu_constants)

    @property
    def ram_bytes(self) -> int:
        """The size of the regions that hold data, stack and arena; 0 if the board does not bound it."""
        return sum(r.size for r in self.regions if r.kind == "ram")


def _access_speed(region: Mapping[str, Any]) -> dict[str, int]:
    """Return the wait states and the line length of a region's table, as far as it has them."""
    return {key: region[key] for key in ("wait_states", "line_bytes") if key in region}
