"""Flash and RAM of a firmware, by symbol, and their growth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from microc.base.immutable import frozen
from microc.device.images import KINDS, Piece, pieces
from microc.device.toolchain import STACK
from microc.errors import GrowthError, UsageError

if TYPE_CHECKING:
    from microc.run.board_project import Project


# ---- Whose the symbols of a firmware are: which part of it, which network, which layers.

PARTS: Mapping[str, str] = MappingProxyType(
    {
        "weights": "constants of layers",
        "kernels": "code of layers",
        "self-test": "samples that a network checks itself with",
        "network": "steps, entry points and helpers of the network",
        "arena": "memory that the layers share",
        "buffers": "inputs and outputs outside of the arena",
        "runtime": "RPC over the serial line, main",
        "board": "start-up, console, timer of the board",
        "library": "C library, compiler's functions, start-up of the toolchain",
        "rest": "everything that is not microc's",
        "padding": "alignment, and what has no symbol",
        "stack": "room for the stack",
    }
)
"""Parts of a firmware, and what each is."""


@frozen
class SymbolSize:
    """Bytes of one symbol. ``part`` is one of :data:`PARTS`; ``network`` and ``steps``: the layers that it belongs to."""

    name: str
    part: str
    network: str
    steps: tuple[int, ...]
    source: str
    section: str
    kind: str
    size: int


_NONE = ("", ())


class Owners:
    """Whose a symbol is, by the manifests of the firmware's networks. ``own``: it is the firmware that the project builds."""

    def __init__(self, networks: Sequence[Project], own: bool) -> None:
        self._functions = [_steps((k["function"],) for k in n.manifest["kernels"]) for n in networks]
        self._names: list[str] = [n.manifest["model"] for n in networks]
        self._constants: dict[str, tuple[str, tuple[int, ...]]] = {}
        for name, network in zip(self._names, networks, strict=True):
            read = _steps([c["symbol"] for c in k["constants"]] for k in network.manifest["kernels"])
            self._constants |= {symbol: (name, steps) for symbol, steps in read.items()}
        self._tests = {
            symbol: name
            for name, network in zip(self._names, networks, strict=True)
            for symbol in (network.manifest.get("self_test") or {}).get("symbols", ())
        }
        entries = ("run", "run_kernel", "reset", "self_test")
        self._entries = {f"{name}_{entry}": name for name in self._names for entry in entries}
        folder = networks[0].folder
        self._board = {Path(source).name for source in networks[0].board.raw["build"]["sources"]}
        runtime = {"rpc_model.c", *(path.name for path in (folder / "runtime" / "src").glob("*.c"))}
        self._runtime = runtime | {path.name for path in folder.glob("*.c")}
        self._stranger = "library" if own else "rest"

    def symbols(self, found: Sequence[Piece]) -> tuple[SymbolSize, ...]:
        """Every named piece, and for every section what has no name."""
        units = self._units(found)
        named = [self._symbol(piece, units) for piece in found if piece.names]
        ours = {s.section for s in named if s.part != self._stranger}
        unnamed: dict[tuple[str, str], int] = {}
        for piece in found:
            if not piece.names:
                key = piece.section, piece.kind
                unnamed[key] = unnamed.get(key, 0) + piece.size
        for (section, kind), size in unnamed.items():
            part = "stack" if section == STACK else "padding" if section in ours else self._stranger
            named.append(SymbolSize(f"({section})", part, *_NONE, "", section, kind, size))
        return tuple(named)

    def _units(self, found: Sequence[Piece]) -> dict[int, int]:
        """Which network each of the files called model.c is: the one whose functions are most like its own."""
        inside: dict[int, set[str]] = {}
        for piece in found:
            if piece.source == "model.c":
                inside.setdefault(piece.unit, set()).update(_bare(piece.names))
        units: dict[int, int] = {}
        for unit, names in sorted(inside.items()):
            alike = [
                (_likeness(names, self._functions[k]), -k) for k in range(len(self._names)) if k not in units.values()
            ]
            best, k = max(alike, default=(0.0, 0))
            if best:
                units[unit] = -k
        return units

    def _symbol(self, piece: Piece, units: Mapping[int, int]) -> SymbolSize:
        part, network, steps = self._owner(piece, units)
        return SymbolSize(piece.names[0], part, network, steps, piece.source, piece.section, piece.kind, piece.size)

    def _owner(self, piece: Piece, units: Mapping[int, int]) -> tuple[str, str, tuple[int, ...]]:
        for name in piece.names:
            if name in self._constants:
                return "weights", *self._constants[name]
            if name in self._tests:
                return "self-test", self._tests[name], ()
        names = _bare(piece.names)
        for entry in names & self._entries.keys():
            return "network", self._entries[entry], ()
        if piece.source == "model.c" and piece.unit in units:
            which = units[piece.unit]
            table = self._functions[which]
            steps = tuple(sorted({step for name in names for step in table.get(name, ())}))
            return ("kernels" if steps else "network"), self._names[which], steps
        if piece.source in ("rpc_model.c", "main.c") and piece.kind == "bss":
            part = (
                "arena"
                if names & {"arena", "microc_arena"}
                else "buffers"
                if piece.source == "rpc_model.c"
                else "runtime"
            )
            return part, *_NONE
        if piece.source in self._board:
            return "board", *_NONE
        return ("runtime" if piece.source in self._runtime else self._stranger), *_NONE


def _steps(symbols: Iterable[Iterable[str]]) -> dict[str, tuple[int, ...]]:
    """For every symbol the steps that use it; ``symbols``: those of each step."""
    found: dict[str, tuple[int, ...]] = {}
    for step, names in enumerate(symbols):
        for name in names:
            found[name] = (*found.get(name, ()), step)
    return found


def _bare(names: Iterable[str]) -> set[str]:
    """Names of functions without what gcc adds to those of clones: f.constprop.0."""
    return {name.partition(".")[0] for name in names}


def _likeness(names: set[str], others: Iterable[str]) -> float:
    """Jaccard's index of two sets: what they share of all that they have."""
    union = names.union(others)
    return len(names.intersection(others)) / len(union) if union else 0.0


# ---- What a firmware's flash and RAM are spent on: every byte of the ELF file by symbol, by part of the firmware and
# by layer.
#
# A function that several layers share, and a table that several read, counts for each of them in equal parts; remainders go to
# the first, so that columns add up to the bytes that are there.


@frozen
class LayerSize:
    """What a layer of a network takes, in bytes. ``shared_code``: bytes of the functions it uses together with others, counted
    in full."""

    network: str
    step: int
    layer: str
    op: str
    code: int
    constants: int
    shared_code: int
    arena: int

    @property
    def flash(self) -> int:
        return self.code + self.constants


@frozen
class SizeReport:
    """A program's memory in bytes. ``text``, ``data`` and ``bss`` are the totals of size(1), but code that runs from RAM is data.

    ``stack``: the most that a run takes (:mod:`microc.codegen.c.resources`).
    """

    program: str
    board: str
    text: int
    data: int
    bss: int
    stack: int
    layers: tuple[LayerSize, ...]
    symbols: tuple[SymbolSize, ...] = field(repr=False)

    @property
    def flash(self) -> int:
        return self.text + self.data

    @property
    def reserved_stack(self) -> int:
        """The part of ``bss`` that the linker script keeps for the stack."""
        return sum(symbol.size for symbol in self.symbols if symbol.part == "stack")

    @property
    def static_ram(self) -> int:
        return self.data + self.bss - self.reserved_stack

    @property
    def ram(self) -> int:
        """RAM needed: static RAM, the arena in it, and the deepest stack of a run."""
        return self.static_ram + self.stack

    def of_network(self, name: str) -> tuple[LayerSize, ...]:
        """The layers of one network, by their steps."""
        return tuple(layer for layer in self.layers if layer.network == name)

    def parts(self) -> dict[str, dict[str, int]]:
        """Bytes of every part that is there, by kind of memory."""
        found = {part: dict.fromkeys(KINDS, 0) for part in PARTS if any(s.part == part for s in self.symbols)}
        for symbol in self.symbols:
            found[symbol.part][symbol.kind] += symbol.size
        return found

    def to_data(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        totals = {name: getattr(self, name) for name in ("text", "data", "bss", "stack", "flash", "ram")}
        return {
            "program": self.program,
            "board": self.board,
            "totals": totals,
            "parts": self.parts(),
            "layers": [{**asdict(layer), "flash": layer.flash} for layer in self.layers],
            "symbols": [asdict(symbol) for symbol in self.symbols],
        }


def measure(project: Project, elf: Path | None = None) -> SizeReport:
    """The memory of a project's firmware with all of its networks, or of another program ``elf`` that holds them.

    ToolError when there is no such file or it is no ELF; UsageError when nothing of the network is in it.
    """
    path = elf or project.program
    objects = () if elf else tuple((project.folder / "build").rglob("*.o"))
    together = project.networks()
    symbols = Owners(together, own=elf is None).symbols(pieces(path, objects))
    if not any(s.part in ("weights", "kernels") for s in symbols):
        raise UsageError(
            f"{path.name} holds nothing of the network {project.manifest['model']!r}",
            where=str(path),
            hint="name the project that it was built with: --project DIR. A stripped program has no symbols",
        )
    totals = {kind: sum(s.size for s in symbols if s.kind == kind) for kind in KINDS}
    ordered = tuple(sorted(symbols, key=lambda s: (-s.size, s.name, s.source, s.section)))
    layers = tuple(layer for network in together for layer in _layers(network.manifest, ordered))
    return SizeReport(path.name, project.board.name, **totals, stack=project.peak_stack, layers=layers, symbols=ordered)


def _layers(manifest: Mapping[str, Any], symbols: Sequence[SymbolSize]) -> list[LayerSize]:
    name: str = manifest["model"]
    count = len(manifest["kernels"])
    code, constants, shared = [0] * count, [0] * count, [0] * count
    for symbol in (s for s in symbols if s.network == name):
        column = constants if symbol.part == "weights" else code
        for step, share in zip(symbol.steps, shares(symbol.size, len(symbol.steps)), strict=True):
            column[step] += share
            shared[step] += symbol.size if symbol.part == "kernels" and len(symbol.steps) > 1 else 0
    arena = live_bytes(manifest)
    return [
        LayerSize(name, k, kernel["layer"], kernel["op"], code[k], constants[k], shared[k], arena[k])
        for k, kernel in enumerate(manifest["kernels"])
    ]


def shares(size: int, count: int) -> list[int]:
    """``size`` in ``count`` equal parts, which add up to it."""
    return [size // count + (k < size % count) for k in range(count)]


def live_bytes(manifest: Mapping[str, Any]) -> list[int]:
    """Bytes of the arena that hold something during each step; what lies over another counts once."""
    return [
        covered([(m["offset"], m["offset"] + m["bytes"]) for m in manifest["memory"] if m["first"] <= k <= m["last"]])
        for k in range(len(manifest["kernels"]))
    ]


def covered(ranges: Sequence[tuple[int, int]]) -> int:
    """Bytes in any of some ranges of addresses, from the first of each to before the second."""
    total = end = 0
    for start, stop in sorted(ranges):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total


# ---- What has changed between two reports of a firmware's size.


def compare(before: Mapping[str, Any], after: SizeReport) -> dict[str, Any]:
    """What has changed since a report that :meth:`SizeReport.to_data` gave: bytes before, after and their difference.

    ``totals`` and ``parts`` (flash and RAM apart), then ``symbols`` that differ, largest difference first. UsageError when
    ``before`` is no such report.
    """
    try:
        old_totals, old_parts = dict(before["totals"]), {k: dict(v) for k, v in before["parts"].items()}
        old_symbols = _by_symbol((s["part"], s["name"], s["source"], s["size"]) for s in before["symbols"])
        totals = [_change(k, old_totals[k], v) for k, v in after.to_data()["totals"].items()]
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError("this is no report of `microc size --json`", hint="microc size DIR --json > FILE") from error
    new_parts = after.parts()
    new_symbols = _by_symbol((s.part, s.name, s.source, s.size) for s in after.symbols)
    parts = [
        {"part": part, "memory": memory, **_sizes(_in(old_parts, part, kinds), _in(new_parts, part, kinds))}
        for part in PARTS
        for memory, kinds in (("flash", ("text", "data")), ("ram", ("data", "bss")))
    ]
    symbols = [
        {"part": key[0], "symbol": key[1], "source": key[2], **_sizes(old_symbols.get(key, 0), new_symbols.get(key, 0))}
        for key in {**old_symbols, **new_symbols}
    ]
    changed = [s for s in symbols if s["change"]]
    return {
        "totals": totals,
        "parts": [p for p in parts if p["before"] or p["after"]],
        "symbols": sorted(changed, key=lambda s: (-abs(s["change"]), s["symbol"])),
    }


def _sizes(before: int, after: int) -> dict[str, int]:
    return {"before": before, "after": after, "change": after - before}


def _change(name: str, before: int, after: int) -> dict[str, Any]:
    return {"memory": name, **_sizes(before, after)}


def _in(parts: Mapping[str, Mapping[str, int]], part: str, kinds: Sequence[str]) -> int:
    return sum(parts.get(part, {}).get(kind, 0) for kind in kinds)


def _by_symbol(rows: Iterable[tuple[str, str, str, int]]) -> dict[tuple[str, str, str], int]:
    found: dict[tuple[str, str, str], int] = {}
    for *key, size in rows:
        part, name, source = key
        found[part, name, source] = found.get((part, name, source), 0) + size
    return found


# ---- Has a firmware grown? Its flash, RAM and time beside those of an earlier one, and what was allowed.

WHAT = ("flash", "ram", "time")
"""What has bounds. The first two are bytes."""


@frozen
class Growth:
    """One figure, before and after; ``allowed``: the share of the first by which it may grow, None for any."""

    what: str
    before: int
    after: int
    allowed: float | None

    @property
    def share(self) -> float:
        """By how much of what was it has grown; infinite from nothing on."""
        if self.before:
            return (self.after - self.before) / self.before
        return float("inf") if self.after else 0.0

    @property
    def exceeds(self) -> bool:
        return self.allowed is not None and self.share > self.allowed

    def to_data(self) -> dict[str, Any]:
        """Plain data; ``share`` is None where there was nothing before."""
        share = self.share if self.before or not self.after else None
        return {**asdict(self), "change": self.after - self.before, "share": share, "exceeds": self.exceeds}


def figures_of(data: Any, where: str) -> dict[str, Any]:
    """What a report has of :data:`WHAT`, and the ``unit`` of its time: that of `microc size --json`, or `microc profile --json`.
    UsageError for any other."""
    totals = data.get("totals") if isinstance(data, Mapping) else None
    if isinstance(totals, Mapping):
        found = {name: totals.get(name) for name in ("flash", "ram")}
    elif isinstance(data, Mapping) and "time" in data and "kernels" in data:
        found = {name: data.get(name) for name in WHAT}
    else:
        found = {}
    known = {name: value for name, value in found.items() if value is not None}
    if not known or not all(type(value) is int and value >= 0 for value in known.values()):
        raise UsageError(
            "this is no report of a firmware",
            where=where,
            hint="microc size DIR --json > FILE, or microc profile DIR --json > FILE for its time, too",
        )
    return {**known, "unit": f"{data.get('board')} {data.get('unit')}"} if "time" in known else known


def growth(before: Mapping[str, Any], after: Mapping[str, Any], allowed: Mapping[str, float]) -> tuple[Growth, ...]:
    """Every figure that both have; ``allowed``: by their names, or by an empty name for all. UsageError where a bound is on what
    is not in both, and where times are of two units."""
    both = [name for name in WHAT if name in before and name in after]
    for name in allowed:
        if name and name not in both:
            raise UsageError(
                f"there is no {name} in both reports",
                hint="time is in those of microc profile --json" if name == "time" else f"they have {', '.join(both)}",
            )
    if "time" in both and before["unit"] != after["unit"]:
        raise UsageError(
            f"a time in {before['unit']} and one in {after['unit']} cannot be compared",
            hint="profile both on the same board, both emulated or both not",
        )
    everything = allowed.get("")
    return tuple(Growth(name, before[name], after[name], allowed.get(name, everything)) for name in both)


def refusal(found: Sequence[Growth], where: str) -> GrowthError | None:
    """The error for what has grown beyond its bound."""
    beyond = [each for each in found if each.exceeds]
    if not beyond:
        return None
    parts = [
        f"{each.what} grew from {each.before:,} to {each.after:,}, by {_percent(each.share)}; allowed: {_percent(each.allowed)}"
        for each in beyond
    ]
    return GrowthError(
        "; ".join(parts),
        where=where,
        hint="microc size --against shows what has changed; or keep the new report as the base",
    )


def _percent(share: float | None) -> str:
    return "any" if share in (None, float("inf")) else f"{100 * share:.2f} %"
