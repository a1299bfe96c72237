"""Whose the symbols of a firmware are: which part of it, which network, which layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from microc.device.pieces import Piece
from microc.device.toolchain import STACK
from microc.frozen import frozen

if TYPE_CHECKING:
    from microc.driver.measure.firmware import Project

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
