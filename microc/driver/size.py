"""What a firmware's flash and RAM are spent on: every byte of the ELF file by symbol, by part of the firmware and by layer.

A function that several layers share, and a table that several read, counts for each of them in equal parts; remainders go to the
first, so that columns add up to the bytes that are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from microc.device.pieces import KINDS, Piece, pieces
from microc.device.toolchain import STACK
from microc.driver.firmware import Project
from microc.errors import UsageError

PARTS: Mapping[str, str] = MappingProxyType(
    {
        "weights": "constants of layers",
        "kernels": "code of layers",
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


@dataclass(frozen=True, slots=True)
class SymbolSize:
    """Bytes of one symbol. ``part`` is one of :data:`PARTS`; ``steps``: the layers it belongs to, by their numbers."""

    name: str
    part: str
    steps: tuple[int, ...]
    source: str
    section: str
    kind: str
    size: int


@dataclass(frozen=True, slots=True)
class LayerSize:
    """What a layer takes, in bytes. ``shared_code``: bytes of the functions it uses together with others, counted in full."""

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


@dataclass(frozen=True, slots=True)
class SizeReport:
    """A program's memory. ``text``, ``data`` and ``bss`` are the totals of size(1)."""

    program: str
    board: str
    text: int
    data: int
    bss: int
    layers: tuple[LayerSize, ...]
    symbols: tuple[SymbolSize, ...] = field(repr=False)

    @property
    def flash(self) -> int:
        return self.text + self.data

    @property
    def ram(self) -> int:
        return self.data + self.bss

    def parts(self) -> dict[str, dict[str, int]]:
        """Bytes of every part that is there, by kind of memory."""
        found = {part: dict.fromkeys(KINDS, 0) for part in PARTS if any(s.part == part for s in self.symbols)}
        for symbol in self.symbols:
            found[symbol.part][symbol.kind] += symbol.size
        return found

    def to_data(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        totals = {"text": self.text, "data": self.data, "bss": self.bss, "flash": self.flash, "ram": self.ram}
        return {
            "program": self.program,
            "board": self.board,
            "totals": totals,
            "parts": self.parts(),
            "layers": [{**asdict(layer), "flash": layer.flash} for layer in self.layers],
            "symbols": [asdict(symbol) for symbol in self.symbols],
        }


def measure(project: Project, elf: Path | None = None) -> SizeReport:
    """The memory of a project's firmware, or of another program ``elf`` that holds its network.

    ToolError when there is no such file or it is no ELF; UsageError when nothing of the network is in it.
    """
    path = elf or project.elf
    objects = () if elf else tuple((project.folder / "build").rglob("*.o"))
    owners = _Owners(project, own=elf is None)
    symbols = owners.symbols(pieces(path, objects))
    if not any(s.part in ("weights", "kernels") for s in symbols):
        raise UsageError(
            f"{path.name} holds nothing of the network {project.manifest['model']!r}",
            where=str(path),
            hint="name the project that it was built with: --project DIR. A stripped program has no symbols",
        )
    totals = {kind: sum(s.size for s in symbols if s.kind == kind) for kind in KINDS}
    ordered = tuple(sorted(symbols, key=lambda s: (-s.size, s.name, s.source, s.section)))
    return SizeReport(
        path.name, project.board.name, **totals, layers=_layers(project.manifest, ordered), symbols=ordered
    )


class _Owners:
    """Whose a symbol is, by the manifest."""

    def __init__(self, project: Project, own: bool) -> None:
        manifest = project.manifest
        self._functions: dict[str, tuple[int, ...]] = {}
        self._constants: dict[str, tuple[int, ...]] = {}
        for k, kernel in enumerate(manifest["kernels"]):
            self._functions[kernel["function"]] = (*self._functions.get(kernel["function"], ()), k)
            for constant in kernel["constants"]:
                self._constants[constant["symbol"]] = (*self._constants.get(constant["symbol"], ()), k)
        self._entries = {f"{manifest['model']}_{name}" for name in ("run", "run_kernel", "reset")}
        self._board = {Path(source).name for source in project.board.raw["build"]["sources"]}
        runtime = ("runtime/src", ".")
        self._runtime = {path.name for folder in runtime for path in (project.folder / folder).glob("*.c")}
        self._stranger = "library" if own else "rest"

    def symbols(self, found: Sequence[Piece]) -> tuple[SymbolSize, ...]:
        """Every named piece, and for every section what has no name."""
        named = [self._symbol(piece) for piece in found if piece.names]
        ours = {s.section for s in named if s.part != self._stranger}
        unnamed: dict[tuple[str, str], int] = {}
        for piece in found:
            if not piece.names:
                key = piece.section, piece.kind
                unnamed[key] = unnamed.get(key, 0) + piece.size
        for (section, kind), size in unnamed.items():
            part = "stack" if section == STACK else "padding" if section in ours else self._stranger
            named.append(SymbolSize(f"({section})", part, (), "", section, kind, size))
        return tuple(named)

    def _symbol(self, piece: Piece) -> SymbolSize:
        part, steps = self._owner(piece)
        return SymbolSize(piece.names[0], part, steps, piece.source, piece.section, piece.kind, piece.size)

    def _owner(self, piece: Piece) -> tuple[str, tuple[int, ...]]:
        constant = self._steps(self._constants, piece.names)
        if constant:
            return "weights", constant
        names = {name.partition(".")[0] for name in piece.names}  # gcc calls clones of f: f.constprop.0
        if piece.source == "model.c" or names & self._entries:
            steps = self._steps(self._functions, names)
            return ("kernels" if steps else "network"), steps
        if piece.source == "rpc_model.c" and piece.kind == "bss":
            return ("arena" if "arena" in names else "buffers"), ()
        if piece.source in self._board:
            return "board", ()
        return ("runtime" if piece.source in self._runtime else self._stranger), ()

    @staticmethod
    def _steps(table: Mapping[str, tuple[int, ...]], names: Sequence[str] | set[str]) -> tuple[int, ...]:
        return tuple(sorted({step for name in names for step in table.get(name, ())}))


def _layers(manifest: Mapping[str, Any], symbols: Sequence[SymbolSize]) -> tuple[LayerSize, ...]:
    count = len(manifest["kernels"])
    code, constants, shared = [0] * count, [0] * count, [0] * count
    for symbol in symbols:
        column = constants if symbol.part == "weights" else code
        for step, share in zip(symbol.steps, shares(symbol.size, len(symbol.steps)), strict=True):
            column[step] += share
            shared[step] += symbol.size if symbol.part == "kernels" and len(symbol.steps) > 1 else 0
    arena = live_bytes(manifest)
    return tuple(
        LayerSize(k, kernel["layer"], kernel["op"], code[k], constants[k], shared[k], arena[k])
        for k, kernel in enumerate(manifest["kernels"])
    )


def shares(size: int, count: int) -> list[int]:
    """``size`` in ``count`` equal parts, which add up to it."""
    return [size // count + (k < size % count) for k in range(count)]


def live_bytes(manifest: Mapping[str, Any]) -> list[int]:
    """Bytes of the arena that hold something during each step; what lies over another counts once."""
    return [
        _covered([(m["offset"], m["offset"] + m["bytes"]) for m in manifest["memory"] if m["first"] <= k <= m["last"]])
        for k in range(len(manifest["kernels"]))
    ]


def _covered(ranges: Sequence[tuple[int, int]]) -> int:
    total = end = 0
    for start, stop in sorted(ranges):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total
