"""What a firmware's flash and RAM are spent on: every byte of the ELF file by symbol, by part of the firmware and by layer.

A function that several layers share, and a table that several read, counts for each of them in equal parts; remainders go to the
first, so that columns add up to the bytes that are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc.device.pieces import KINDS, pieces
from microc.driver.report.owners import PARTS, Owners, SymbolSize
from microc.errors import UsageError
from microc.frozen import frozen

if TYPE_CHECKING:
    from microc.driver.measure.firmware import Project


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

    ``stack``: the most that a run takes (:mod:`microc.codegen.stack`).
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
