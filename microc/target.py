# SPDX-License-Identifier: Apache-2.0
"""Targets of code generation: a :class:`Target` (core and features), a :class:`Board` (target, memories, console,
emulator) and a :class:`Goal` (price of a byte of flash).

A board is data, read from ``boards/<name>.toml`` by ``device/boards.py``. This module depends on no particular
board."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from microc.errors import UsageError, known_names_hint

if TYPE_CHECKING:
    from microc.isa import Core


@dataclass(frozen=True, slots=True)
class Target:
    """A core as target of compilation: its name, family and features. Schedule rules test features such as
    ``has("dot2")``, never the name.

    - ``cpu``: name of the core; ``isa``: its family.
    - ``features``: properties of the core, and the names of the intrinsics for which it has instructions (``isa/``).
    - ``flash_wait``: mean number of cycles that the core waits for one byte of constants, if its board's flash is
      slower than the core. ``copies_weights``: True if a faster memory of the board may hold weights.
    - ``npu``: name of the board's accelerator for ``--external``; empty if it has none.
    - ``max_cores``: number of cores of the board that run the same code in the same memory; ``cores``: number of them
      that share the large loops of a network, as the option of this name says.
    - ``min_fork_instructions``: least number of instructions of a loop that is worth a fork and a join."""

    cpu: str
    isa: str
    features: frozenset[str]
    flash_wait: float = 0.0
    copies_weights: bool = False
    npu: str = ""
    max_cores: int = 1
    cores: int = 1
    min_fork_instructions: int = 0

    def has(self, feature: str) -> bool:
        """Test whether the core has a feature."""
        return feature in self.features

    def with_features(self, *features: str) -> Target:
        """Return the target with additional features."""
        return replace(self, features=self.features.union(features))

    @property
    def waits_for_flash(self) -> bool:
        """True if kernels read their constants from a flash that is slower than the core."""
        return self.flash_wait > 0 and not self.copies_weights

    @property
    def core(self) -> Core:
        """The description of the core."""
        from microc.isa import CORES

        return CORES[self.cpu]


def target_for(cpu: str) -> Target:
    """Return the target of a core, given its name or an alias (:data:`microc.isa.ALIASES`). Raise UsageError if the
    name is unknown."""
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
    """The optimisation goal: the weight of flash against time in a choice between implementations.

    ``price``: number of instructions of one inference that are worth a byte of flash. It is 0 if speed alone counts,
    infinite if size alone counts."""

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
"""Most bytes that one access of a small core moves."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Average number of read and write accesses that one call of a kernel makes to one operand, and their bytes.

    An access moves at most a word (4 bytes): an intrinsic that moves sixteen bytes counts as four accesses."""

    reads: float = 0.0
    writes: float = 0.0
    bytes_read: float = 0.0
    bytes_written: float = 0.0

    @staticmethod
    def of(element_bytes: int, extent: int = 1, step: int = 1, *, writes: bool = False) -> Traffic:
        """Return the traffic of an access to ``extent`` elements of ``element_bytes`` bytes. ``step`` is the distance
        of the elements.

        Contiguous elements are moved word by word."""
        count = -(-extent * element_bytes // WORD) if step == 1 else extent * -(-element_bytes // WORD)
        return Traffic(0, count, 0, extent * element_bytes) if writes else Traffic(count, 0, extent * element_bytes, 0)

    def times(self, repetitions: float) -> Traffic:
        """Return the traffic of an access that is repeated ``repetitions`` times."""
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
    """A RAM region that may contain tensors, with ``size`` bytes for them, and the speed of its accesses.

    - ``wait_states``: cycles that an access waits.
    - ``cached``: True if there is a data cache. Then every line of ``line_bytes`` bytes waits once if a kernel reads
      it, and once if the kernel writes it. This assumes that the cache is large enough.
    - ``weights``: True if constants may be copied to this region, too."""

    name: str
    size: int
    wait_states: int = 0
    line_bytes: int = WORD
    cached: bool = False
    weights: bool = False

    def wait_cycles(self, traffic: Traffic, nbytes: int) -> float:
        """Return the number of cycles that a call waits for an operand of ``nbytes`` bytes in this memory."""
        if not self.cached:
            return self.wait_states * (traffic.reads + traffic.writes)
        filled = min(traffic.bytes_read, nbytes) + min(traffic.bytes_written, nbytes)
        return self.wait_states * filled / self.line_bytes


@dataclass(frozen=True, slots=True)
class FlashMemory:
    """A flash region that may contain constants, with ``size`` bytes for them, and the speed of its reads.

    - ``wait``: mean number of cycles that the core waits for a byte: wait states of a line, divided by its bytes.
    - ``cached``: True if there is a data cache. Then every byte of a constant comes once in a call that reads it. This
      assumes that the cache is large enough.
    - ``code``: True if code is linked to this region, too."""

    name: str
    size: int
    wait: float = 0.0
    cached: bool = False
    code: bool = False

    def wait_cycles(self, traffic: Traffic, nbytes: int) -> float:
        """Return the number of cycles that a call waits for a constant of ``nbytes`` bytes in this region."""
        return self.wait * (min(traffic.bytes_read, nbytes) if self.cached else traffic.bytes_read)


@dataclass(frozen=True, slots=True)
class Storage:
    """A memory that the core cannot address, such as an SD card: constants in it are read into RAM by a function.

    - ``size``: bytes for the file of the constants.
    - ``latency``: cycles of the core until the first block of a read arrives.
    - ``block_bytes``: bytes that are transferred at once, in ``block_cycles`` cycles; a constant starts at a block.
    - ``dma``: True if a read goes on while the core computes."""

    name: str
    size: int
    latency: int = 0
    block_bytes: int = 1
    block_cycles: float = 0.0
    dma: bool = False

    def read_cycles(self, nbytes: int) -> float:
        """Return the number of cycles that a read of ``nbytes`` bytes takes."""
        return self.latency + -(-nbytes // self.block_bytes) * self.block_cycles


@dataclass(frozen=True, slots=True)
class Fetches:
    """Instruction fetches of a function, or of one loop of it with the loops inside that loop.

    ``code_bytes``: bytes of machine code. ``executed_bytes``: bytes of machine code that one call executes. ``entry_count``:
    number of times that a call enters the loop. ``inner_loops``: fetches of the inner loops. Library functions are not
    counted."""

    code_bytes: float = 0.0
    executed_bytes: float = 0.0
    entry_count: float = 1.0
    inner_loops: tuple[Fetches, ...] = ()

    def count_missed_bytes(self, cache_bytes: int) -> float:
        """Return the number of bytes that a call fetches from memory if there is an instruction cache of
        ``cache_bytes`` bytes, which is empty at the start of the call.

        Without a cache (0 bytes) all executed bytes are fetched. A loop that fits the cache is fetched once each
        time that it is entered. A loop that is larger than the cache is fetched again in every iteration, except its
        inner loops that fit: the cache evicts the least recently used lines, which are those that the next iteration
        needs first."""
        if self.code_bytes <= cache_bytes:
            return min(self.code_bytes * self.entry_count, self.executed_bytes)
        own = self.executed_bytes - sum(loop.executed_bytes for loop in self.inner_loops)
        return own + sum(loop.count_missed_bytes(cache_bytes) for loop in self.inner_loops)


NOTHING = Fetches()
"""Fetches of code that microc does not print, such as library functions."""


@dataclass(frozen=True, slots=True)
class Fetching:
    """Speed of instruction fetches from a memory: for each line of ``line_bytes`` bytes the core waits ``wait_states``
    cycles.

    ``cache_bytes``: size of the instruction cache in front of the memory; 0 if there is none. Every line counts as
    full; lines that branches use partly are not modelled."""

    wait_states: int = 0
    line_bytes: int = WORD
    cache_bytes: int = 0

    def wait_cycles(self, code: Fetches) -> float:
        """Return the number of cycles that one call waits for its instructions."""
        return self.wait_states * code.count_missed_bytes(self.cache_bytes) / self.line_bytes


@dataclass(frozen=True, slots=True)
class CodeMemory:
    """A RAM region to which frequently executed kernels may be copied, in order to run from there.

    ``size``: bytes of the region. ``fetching``: speed of fetches from it. ``linked``: speed of fetches from the
    memory to which code is linked by default. ``main``: True if stack, data and the first arena are in this region,
    too."""

    name: str
    size: int
    fetching: Fetching
    linked: Fetching
    main: bool = False


@dataclass(frozen=True, slots=True)
class Board:
    """A board as described by its TOML file. ``raw`` contains the TOML tables of the file; only ``device/`` and the
    templates read all of them."""

    name: str
    title: str
    target: Target
    regions: tuple[Region, ...]
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ids(self) -> Mapping[str, Any]:
        """The identifiers of the board in build systems: table ``[ids]`` of its file, and the chip of its framework."""
        framework = self.raw.get("framework")
        own = {framework["name"]: framework["target"]} if framework else {}
        return {**own, **self.raw.get("ids", {})}

    @property
    def simulated(self) -> bool:
        """True if the board's file names a simulator program."""
        return "simulator" in self.raw

    @property
    def virtual(self) -> bool:
        """True if the firmware can run on this computer without hardware: in an emulator, or in a simulator that is
        installed by system packages."""
        simulator = self.raw.get("simulator")
        return "emulator" in self.raw or (simulator is not None and "install" not in simulator)

    @property
    def memories(self) -> tuple[Memory, ...]:
        """RAM regions that may contain tensors: the first RAM region, then the regions that the board's file assigns to
        tensors, in the order of the file.

        Empty if the file assigns no region to tensors or weights; such a board has a single arena."""
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
    def flash_memories(self) -> tuple[FlashMemory, ...]:
        """Flash regions that may contain constants: the first flash region, then the regions that the board's file
        assigns to constants, in the order of the file. Empty if the board has no flash."""
        flash = [m for m in self.raw.get("memory", ()) if m["kind"] == "flash"]
        code = self.raw.get("link", {}).get("code", flash[0]["name"] if flash else "")
        return tuple(
            FlashMemory(
                m["name"],
                m["size"],
                m.get("wait_states", 0) / m.get("line_bytes", WORD),
                m.get("cached", False),
                m["name"] == code,
            )
            for k, m in enumerate(flash)
            if not k or "constants" in m.get("holds", ())
        )

    @property
    def storage(self) -> Storage | None:
        """The memory that the core cannot address, for constants for which the flash has no room; None if there is
        none."""
        table = self.raw.get("storage")
        if table is None:
            return None
        speeds = ("latency", "block_bytes", "block_cycles", "dma")
        return Storage(table["name"], table["size"], **{key: table[key] for key in speeds if key in table})

    @property
    def code_memory(self) -> CodeMemory | None:
        """The RAM region to which the board's file assigns frequently executed code; None if there is no such
        region."""
        regions = self.raw.get("memory", ())
        own = next((m for m in regions if "code" in m.get("holds", ())), None)
        if own is None:
            return None
        flash = next(m for m in regions if m["kind"] == "flash")
        linked = Fetching(**{**_read_access_speed(flash), **flash.get("fetch", {})})
        cache = linked.cache_bytes if own.get("cached") else 0
        main = own is next(m for m in regions if m["kind"] == "ram")
        return CodeMemory(
            own["name"], own["size"], Fetching(**_read_access_speed(own), cache_bytes=cache), linked, main
        )

    @property
    def npu_constants(self) -> str:
        """Name of the flash region from which the accelerator reads its constants; empty if that is the first flash
        region, or if there is no accelerator."""
        return str(self.raw.get("npu", {}).get("constants", ""))

    @property
    def flash_bytes(self) -> int:
        """Bytes of all flash regions for code and weights, without a region for an accelerator's constants; 0 if the
        board sets no limit."""
        return sum(r.size for r in self.regions if r.kind == "flash" and r.name != self.npu_constants)

    @property
    def ram_bytes(self) -> int:
        """Bytes of all RAM regions for data, stack and arena; 0 if the board sets no limit."""
        return sum(r.size for r in self.regions if r.kind == "ram")


def _read_access_speed(region: Mapping[str, Any]) -> dict[str, int]:
    """Return the wait states and the line length, in bytes, from the TOML table of a memory region, if the table
    contains them."""
    return {key: region[key] for key in ("wait_states", "line_bytes") if key in region}
