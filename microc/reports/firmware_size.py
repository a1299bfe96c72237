# SPDX-License-Identifier: Apache-2.0
"""Measure flash and RAM of a firmware by part, layer and symbol; compute changes and growth between two builds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from itertools import groupby
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from microc.base.file_access import open_regular_file
from microc.base.immutable import frozen
from microc.device.toolchain import DAMAGED_ELF, HOT_CODE, STACK, has_symbol_sizes, strip_clone_suffix
from microc.errors import GrowthError, ToolError, UsageError
from microc.plan.liveness import count_covered_addresses

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

    from microc.run.board_project import Project


# ---- Pieces: every byte of a program's memory belongs to one, with its symbol and source file.

KINDS = ("text", "data", "bss")
"""Kinds of memory as size(1) counts them: read-only, with initial values, without. Code that runs from RAM has initial
values."""


@frozen
class ProgramPiece:
    """A range of a program's memory that belongs to one symbol, or to none.

    ``names``: name of the symbol, and its aliases; empty for a range between symbols. ``source``: base name of the
    source file, empty if unknown. ``unit``: index of the object file among those whose source file has the same name,
    in link order; known for local symbols only. ``kind``: one of :data:`KINDS`. ``size``: size of the range in
    bytes."""

    names: tuple[str, ...]
    source: str
    unit: int
    section: str
    kind: str
    address: int
    size: int


@frozen
class _SymbolWithSourceFile:
    """A symbol of an ELF file with its source file. ``unit``: as in :class:`ProgramPiece`. ``section``: index of its
    section."""

    name: str
    source: str
    unit: int
    address: int
    size: int
    section: int


def cut_program_into_pieces(elf: Path, objects: Iterable[Path] = ()) -> tuple[ProgramPiece, ...]:
    """Cut all allocated sections of an ELF file into pieces at its symbols. Their sizes add up to those of size(1).

    ``objects``: the object files of the build, in which the source files of global symbols are looked up. An ELF file
    itself has the source files of local symbols only. Raises ToolError if the file is missing or no ELF file.
    """
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    if not has_symbol_sizes(elf):
        raise ToolError(
            "programs of Windows and macOS do not record the sizes of symbols; expected an ELF file",
            where=str(elf),
            hint="measure the firmware of a board: microc compile --board BOARD",
        )
    try:
        sources: dict[str, str] = {}
        for path in sorted(objects):
            with open_regular_file(path) as stream:
                sources |= {s.name: path.with_suffix(".c").name for s in _iterate_global_symbols(ELFFile(stream))}
        with open_regular_file(elf) as stream:
            return tuple(_cut_sections_into_pieces(ELFFile(stream), sources))
    except OSError as error:
        raise ToolError(
            f"cannot read the program: {error.strerror or error}",
            where=str(elf),
            hint="build the project: microc build DIR",
        ) from error
    except (ELFError, *DAMAGED_ELF) as error:
        raise ToolError(
            f"not an ELF file: {error}", where=str(elf), hint="name firmware.elf, or the project's folder"
        ) from error


def _iterate_symbol_table(elf: ELFFile) -> Iterator[Any]:
    """Iterate over the symbol table of an ELF file; empty for a stripped program."""
    table = elf.get_section_by_name(".symtab")
    return table.iter_symbols() if table is not None else iter(())


def _iterate_global_symbols(elf: ELFFile) -> Iterator[Any]:
    """Iterate over the global symbols that an ELF file defines."""
    return (
        s for s in _iterate_symbol_table(elf) if s["st_info"]["bind"] != "STB_LOCAL" and isinstance(s["st_shndx"], int)
    )


def _iterate_memory_symbols(elf: ELFFile, source_files: dict[str, str]) -> Iterator[_SymbolWithSourceFile]:
    """Yield the symbols of an ELF file that name memory: functions, objects, and global labels of assembler code.

    Labels have no size. ``source_files``: source files of global symbols by name."""
    thumb = 1 if elf["e_machine"] == "EM_ARM" else 0
    source_file, file_counts = "", Counter[str]()
    for symbol in _iterate_symbol_table(elf):
        kind, local = symbol["st_info"]["type"], symbol["st_info"]["bind"] == "STB_LOCAL"
        if kind == "STT_FILE":
            source_file = PurePath(symbol.name).name
            file_counts[source_file] += 1
        elif isinstance(symbol["st_shndx"], int) and (
            kind in ("STT_FUNC", "STT_OBJECT") or (kind == "STT_NOTYPE" and not local)
        ):
            address = symbol["st_value"] & ~thumb if kind == "STT_FUNC" else symbol["st_value"]
            source, unit = (
                (source_file, file_counts[source_file] - 1) if local else (source_files.get(symbol.name, ""), 0)
            )
            yield _SymbolWithSourceFile(symbol.name, source, unit, address, symbol["st_size"], symbol["st_shndx"])


def _cut_sections_into_pieces(elf: ELFFile, source_files: dict[str, str]) -> Iterator[ProgramPiece]:
    """Cut all allocated sections of an ELF file into pieces at their symbols.

    ``source_files``: source files of global symbols by name."""
    from elftools.elf.constants import SH_FLAGS

    symbols = sorted(_iterate_memory_symbols(elf, source_files), key=lambda s: (s.address, -s.size, s.name))
    for number, section in enumerate(elf.iter_sections()):
        flags, start, size = section["sh_flags"], section["sh_addr"], section["sh_size"]
        if not flags & SH_FLAGS.SHF_ALLOC or not size:
            continue
        kind = "bss" if section["sh_type"] == "SHT_NOBITS" else "data"
        if (flags & SH_FLAGS.SHF_EXECINSTR or not flags & SH_FLAGS.SHF_WRITE) and section.name != HOT_CODE:
            kind = "text"
        inside = [s for s in symbols if s.section == number and start <= s.address < start + size]
        # Outside of code, symbols without a size are labels of the linker script.
        named = inside if kind == "text" else [s for s in inside if s.size]
        for same, begin, end in _cut_address_range_at_symbols(named, start, start + size):
            sourced = next((s for s in same if s.source), None)
            source, unit = (sourced.source, sourced.unit) if sourced else ("", 0)
            names = tuple(dict.fromkeys(s.name for s in same))
            yield ProgramPiece(names, source, unit, section.name, kind, begin, end - begin)


def _cut_address_range_at_symbols(
    symbols: list[_SymbolWithSourceFile], start: int, stop: int
) -> Iterator[tuple[list[_SymbolWithSourceFile], int, int]]:
    """Cut the addresses from ``start`` to ``stop`` (exclusive) at the symbols in this range.

    Yields symbols, start and end (exclusive) of each piece; the list of symbols is empty between two symbols. A symbol
    without a size extends to the next symbol."""
    groups = [(address, list(group)) for address, group in groupby(symbols, key=lambda s: s.address)]
    at = start
    for k, (address, group) in enumerate(groups):
        following = groups[k + 1][0] if k + 1 < len(groups) else stop
        end = min(address + group[0].size, stop) if group[0].size else following
        if address < at or end == address:
            continue  # the symbol is inside of another one
        if address > at:
            yield [], at, address
        yield group, address, end
        at = end
    if at < stop:
        yield [], at, stop


# ---- Sizes of a firmware's parts.


# ---- Owners of linked symbols: the part of the firmware, the network and the layers to which a symbol belongs.

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
"""Parts of a firmware, with their descriptions."""


@frozen
class SymbolSize:
    """The size of a linked symbol, in bytes, and the owner of the symbol.

    ``part``: the part of the firmware, a key of :data:`PARTS`; ``network`` and ``steps``: network and step numbers of the
    layers that use the symbol, empty for other parts; ``source``: its C file; ``section``: its section in the ELF file;
    ``kind``: text, data or bss."""

    name: str
    part: str
    network: str
    steps: tuple[int, ...]
    source: str
    section: str
    kind: str
    size: int


_NO_NETWORK = ("", ())
"""Fields ``network`` and ``steps`` of a symbol that belongs to no network."""


class SymbolOwners:
    """Finder of the owner of each linked symbol: the part of the firmware, the network and the steps.

    It uses the manifests of ``networks``. ``own``: True if the ELF file is the firmware that the project builds, False if
    it is another program that contains the networks."""

    def __init__(self, networks: Sequence[Project], own: bool) -> None:
        self._functions = [_steps_by_symbol((k["function"],) for k in n.manifest["kernels"]) for n in networks]
        self._names: list[str] = [n.manifest["model"] for n in networks]
        self._constants: dict[str, tuple[str, tuple[int, ...]]] = {}
        for name, network in zip(self._names, networks, strict=True):
            steps_of = _steps_by_symbol([c["symbol"] for c in k["constants"]] for k in network.manifest["kernels"])
            self._constants |= {symbol: (name, steps) for symbol, steps in steps_of.items()}
        self._tests = {
            symbol: name
            for name, network in zip(self._names, networks, strict=True)
            for symbol in (network.manifest.get("self_test") or {}).get("symbols", ())
        }
        entries = ("check_weights", "read", "read_wait", "run", "run_kernel", "reset", "self_test")
        self._entries = {f"{name}_{entry}": name for name in self._names for entry in entries}
        folder = networks[0].folder
        raw = networks[0].board.raw
        sources = (*raw["build"]["sources"], *raw.get("storage", {}).get("sources", ()))
        self._board = {Path(source).name for source in sources}
        runtime = {"rpc_model.c", *(path.name for path in (folder / "runtime" / "src").glob("*.c"))}
        self._runtime = runtime | {path.name for path in folder.glob("*.c")}
        self._foreign_part = "library" if own else "rest"

    def symbols(self, pieces: Sequence[ProgramPiece]) -> tuple[SymbolSize, ...]:
        """List the sizes of all symbols with their owners; and, for every section, the size of bytes without a symbol."""
        network_index_by_unit = self._networks_of_object_files(pieces)
        sizes = [self._measure_symbol(piece, network_index_by_unit) for piece in pieces if piece.names]
        own_sections = {s.section for s in sizes if s.part != self._foreign_part}
        unnamed: dict[tuple[str, str], int] = {}
        for piece in pieces:
            if not piece.names:
                key = piece.section, piece.kind
                unnamed[key] = unnamed.get(key, 0) + piece.size
        for (section, kind), size in unnamed.items():
            part = "stack" if section == STACK else "padding" if section in own_sections else self._foreign_part
            sizes.append(SymbolSize(f"({section})", part, *_NO_NETWORK, "", section, kind, size))
        return tuple(sizes)

    def _networks_of_object_files(self, pieces: Sequence[ProgramPiece]) -> dict[int, int]:
        """Map the object files that were compiled from a ``model.c`` to the indices of their networks.

        Object files are identified by :attr:`ProgramPiece.unit`. An object file is assigned to the network whose function names
        are most similar to the function names in the file."""
        functions_of_unit: dict[int, set[str]] = {}
        for piece in pieces:
            if piece.source == "model.c":
                functions_of_unit.setdefault(piece.unit, set()).update(map(strip_clone_suffix, piece.names))
        network_index_by_unit: dict[int, int] = {}
        for unit, names in sorted(functions_of_unit.items()):
            similarities = [
                (_jaccard_index(names, self._functions[k]), -k)
                for k in range(len(self._names))
                if k not in network_index_by_unit.values()
            ]
            best, k = max(similarities, default=(0.0, 0))
            if best:
                network_index_by_unit[unit] = -k
        return network_index_by_unit

    def _measure_symbol(self, piece: ProgramPiece, network_index_by_unit: Mapping[int, int]) -> SymbolSize:
        """Return the size and the owner of a named piece (range of bytes) of the ELF file.

        ``network_index_by_unit``: index of the network by object file."""
        part, network, steps = self._find_owner_of_piece(piece, network_index_by_unit)
        return SymbolSize(piece.names[0], part, network, steps, piece.source, piece.section, piece.kind, piece.size)

    def _find_owner_of_piece(
        self, piece: ProgramPiece, network_index_by_unit: Mapping[int, int]
    ) -> tuple[str, str, tuple[int, ...]]:
        """Return the owner of a piece of the ELF file: part of the firmware, network and steps.

        ``network_index_by_unit``: index of the network by object file."""
        for name in piece.names:
            if name in self._constants:
                return "weights", *self._constants[name]
            if name in self._tests:
                return "self-test", self._tests[name], ()
        names = set(map(strip_clone_suffix, piece.names))
        for entry in names & self._entries.keys():
            return "network", self._entries[entry], ()
        if piece.source == "model.c" and piece.unit in network_index_by_unit:
            network_index = network_index_by_unit[piece.unit]
            table = self._functions[network_index]
            steps = tuple(sorted({step for name in names for step in table.get(name, ())}))
            return ("kernels" if steps else "network"), self._names[network_index], steps
        if piece.source in ("rpc_model.c", "main.c") and piece.kind == "bss":
            part = (
                "arena"
                if names & {"arena", "microc_arena"}
                else "buffers"
                if piece.source == "rpc_model.c"
                else "runtime"
            )
            return part, *_NO_NETWORK
        if piece.source in self._board:
            return "board", *_NO_NETWORK
        return ("runtime" if piece.source in self._runtime else self._foreign_part), *_NO_NETWORK


def _steps_by_symbol(symbols_by_step: Iterable[Iterable[str]]) -> dict[str, tuple[int, ...]]:
    """Map each symbol to the numbers of the steps that use it; ``symbols_by_step``: the symbols that each step uses."""
    steps_of: dict[str, tuple[int, ...]] = {}
    for step, names in enumerate(symbols_by_step):
        for name in names:
            steps_of[name] = (*steps_of.get(name, ()), step)
    return steps_of


def _jaccard_index(names: set[str], other_names: Iterable[str]) -> float:
    """Compute the Jaccard index of two sets of names: the size of their intersection divided by the size of their union.

    It is 0 if both sets are empty."""
    union = names.union(other_names)
    return len(names.intersection(other_names)) / len(union) if union else 0.0


# ---- Size reports: every byte of the ELF file by symbol, by part of the firmware, and by layer.
#
# The bytes of a function or constant that several layers share are divided equally among these layers. The first layers get the
# remainder, so that columns add up to the real total.


@frozen
class LayerSize:
    """The size of a layer in bytes.

    ``code``: its code, and its share of functions used by several layers; ``shared_code``: full size of these functions;
    ``arena``: bytes of the arena in use while the layer runs."""

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
    """The memory of a linked program, in bytes.

    ``text``, ``data`` and ``bss`` are totals as size(1) counts them, except that code that runs from RAM counts as data.
    ``stack``: upper bound of the stack of a run (:mod:`microc.codegen.c.resources`)."""

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
        """Bytes of ``bss`` that the linker script reserves for the stack."""
        return sum(symbol.size for symbol in self.symbols if symbol.part == "stack")

    @property
    def static_ram(self) -> int:
        return self.data + self.bss - self.reserved_stack

    @property
    def ram(self) -> int:
        """Bytes of RAM that the program needs: static RAM, which includes the arena, and the deepest stack of a run."""
        return self.static_ram + self.stack

    def layers_of_network(self, name: str) -> tuple[LayerSize, ...]:
        """Return the sizes of the layers of one network, by its name."""
        return tuple(layer for layer in self.layers if layer.network == name)

    def parts(self) -> dict[str, dict[str, int]]:
        """Sum up the bytes of every part of the firmware, by kind (text, data, bss). Parts without symbols are omitted."""
        sizes = {part: dict.fromkeys(KINDS, 0) for part in PARTS if any(s.part == part for s in self.symbols)}
        for symbol in self.symbols:
            sizes[symbol.part][symbol.kind] += symbol.size
        return sizes

    def to_data(self) -> dict[str, Any]:
        """Convert the report to plain data, ready for JSON."""
        totals = {name: getattr(self, name) for name in ("text", "data", "bss", "stack", "flash", "ram")}
        return {
            "program": self.program,
            "board": self.board,
            "totals": totals,
            "parts": self.parts(),
            "layers": [{**asdict(layer), "flash": layer.flash} for layer in self.layers],
            "symbols": [asdict(symbol) for symbol in self.symbols],
        }


def measure_firmware(project: Project, elf: Path | None = None) -> SizeReport:
    """Measure the linked firmware of a project, with all its networks.

    ``elf``: another linked program that contains the networks, to measure instead. Raises ToolError if the program is
    missing or no ELF file, UsageError if it contains no symbol of a network.
    """
    path = elf or project.program
    objects = () if elf else tuple((project.folder / "build").rglob("*.o"))
    networks = project.networks()
    symbols = SymbolOwners(networks, own=elf is None).symbols(cut_program_into_pieces(path, objects))
    if not any(s.part in ("weights", "kernels") for s in symbols):
        raise UsageError(
            f"{path.name} contains no symbol of the network {project.manifest['model']!r}",
            where=str(path),
            hint="name the project of its network (--project DIR), and a program that is not stripped",
        )
    totals = {kind: sum(s.size for s in symbols if s.kind == kind) for kind in KINDS}
    ordered = tuple(sorted(symbols, key=lambda s: (-s.size, s.name, s.source, s.section)))
    layers = tuple(layer for network in networks for layer in _layer_sizes(network.manifest, ordered))
    return SizeReport(path.name, project.board.name, **totals, stack=project.peak_stack, layers=layers, symbols=ordered)


def try_to_measure_firmware(project: Project) -> SizeReport | None:
    """Measure the linked firmware of a project; None if it is not built, or if its program does not record the sizes of
    symbols (:func:`microc.device.toolchain.has_symbol_sizes`)."""
    return measure_firmware(project) if project.elf.is_file() and has_symbol_sizes(project.elf) else None


def _layer_sizes(manifest: Mapping[str, Any], symbols: Sequence[SymbolSize]) -> list[LayerSize]:
    """Compute the sizes of a network's layers; the size of each symbol is divided among the steps that use the symbol."""
    name: str = manifest["model"]
    count = len(manifest["kernels"])
    code, constants, shared = [0] * count, [0] * count, [0] * count
    for symbol in (s for s in symbols if s.network == name):
        column = constants if symbol.part == "weights" else code
        for step, share in zip(symbol.steps, divide_evenly(symbol.size, len(symbol.steps)), strict=True):
            column[step] += share
            shared[step] += symbol.size if symbol.part == "kernels" and len(symbol.steps) > 1 else 0
    arena = live_arena_bytes(manifest)
    return [
        LayerSize(name, k, kernel["layer"], kernel["op"], code[k], constants[k], shared[k], arena[k])
        for k, kernel in enumerate(manifest["kernels"])
    ]


def divide_evenly(size: int, part_count: int) -> list[int]:
    """Divide ``size`` into ``part_count`` integers that differ by at most 1 and whose sum is ``size``."""
    return [size // part_count + (k < size % part_count) for k in range(part_count)]


def live_arena_bytes(manifest: Mapping[str, Any]) -> list[int]:
    """Return the number of bytes of the arena in use during each step of a manifest.

    Bytes that several values share count once."""
    return [
        count_covered_addresses(
            [(m["offset"], m["offset"] + m["bytes"]) for m in manifest["memory"] if m["first"] <= k <= m["last"]]
        )
        for k in range(len(manifest["kernels"]))
    ]


# ---- Changes between two size reports.


def compare_sizes(before: Mapping[str, Any], after: SizeReport) -> dict[str, Any]:
    """Compare the sizes of two builds; return plain data with the bytes before, the bytes after and their difference.

    ``before``: the data of an earlier report, as :meth:`SizeReport.to_data` returns them. The result has ``totals``,
    ``parts`` (flash and RAM separately), and ``symbols``: those whose sizes differ, the largest difference first. Raises
    UsageError if ``before`` is no such report."""
    try:
        old_totals, old_parts = dict(before["totals"]), {k: dict(v) for k, v in before["parts"].items()}
        old_symbols = _sizes_by_symbol((s["part"], s["name"], s["source"], s["size"]) for s in before["symbols"])
        totals = [{"memory": k, **_size_change_data(old_totals[k], v)} for k, v in after.to_data()["totals"].items()]
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"--compare: expected the output of `microc size --json`: {type(error).__name__} {error}",
            hint="write one: microc size DIR --json > FILE",
        ) from error
    new_parts = after.parts()
    new_symbols = _sizes_by_symbol((s.part, s.name, s.source, s.size) for s in after.symbols)
    parts = [
        {
            "part": part,
            "memory": memory,
            **_size_change_data(_sum_part_bytes(old_parts, part, kinds), _sum_part_bytes(new_parts, part, kinds)),
        }
        for part in PARTS
        for memory, kinds in (("flash", ("text", "data")), ("ram", ("data", "bss")))
    ]
    symbols = [
        {
            "part": key[0],
            "symbol": key[1],
            "source": key[2],
            **_size_change_data(old_symbols.get(key, 0), new_symbols.get(key, 0)),
        }
        for key in {**old_symbols, **new_symbols}
    ]
    changed = [s for s in symbols if s["change"]]
    return {
        "totals": totals,
        "parts": [p for p in parts if p["before"] or p["after"]],
        "symbols": sorted(changed, key=lambda s: (-abs(s["change"]), s["symbol"])),
    }


def _size_change_data(before: int, after: int) -> dict[str, int]:
    """Return two sizes in bytes and their difference as plain data."""
    return {"before": before, "after": after, "change": after - before}


def _sum_part_bytes(parts: Mapping[str, Mapping[str, int]], part: str, memory_kinds: Sequence[str]) -> int:
    """Sum up the bytes of a part of the firmware over some kinds of memory (text, data, bss)."""
    return sum(parts.get(part, {}).get(kind, 0) for kind in memory_kinds)


def _sizes_by_symbol(rows: Iterable[tuple[str, str, str, int]]) -> dict[tuple[str, str, str], int]:
    """Sum up sizes in bytes of symbols that agree in part, name and source file; ``rows``: (part, name, source, size)."""
    sizes: dict[tuple[str, str, str], int] = {}
    for *key, size in rows:
        part, name, source = key
        sizes[part, name, source] = sizes.get((part, name, source), 0) + size
    return sizes


# ---- Growth of flash, RAM and time since an earlier build, checked against limits.

FIGURES = ("flash", "ram", "time")
"""Figures whose growth can be limited; flash and RAM are in bytes."""


@frozen
class Growth:
    """The growth of one figure (flash, RAM or time) between two builds.

    ``what``: name of the figure; ``allowed``: the share by which it may grow, None if unlimited."""

    what: str
    before: int
    after: int
    allowed: float | None

    @property
    def share(self) -> float:
        """Growth relative to the value before; infinite if the value before was zero."""
        if self.before:
            return (self.after - self.before) / self.before
        return float("inf") if self.after else 0.0

    @property
    def exceeds(self) -> bool:
        return self.allowed is not None and self.share > self.allowed

    def to_data(self) -> dict[str, Any]:
        """Convert the growth to plain data; ``share`` is None if the value before was zero and the value after is not."""
        share = self.share if self.before or not self.after else None
        return {**asdict(self), "change": self.after - self.before, "share": share, "exceeds": self.exceeds}


def read_growth_figures(data: Any, file_name: str) -> dict[str, Any]:
    """Return the figures whose growth can be limited (:data:`FIGURES`), and the ``unit`` of the time.

    ``data``: what ``microc size --json`` or ``microc profile --json`` printed; raises UsageError for any other data.
    ``file_name``: name of the file
    that contains the data, for this error."""
    totals = data.get("totals") if isinstance(data, Mapping) else None
    if isinstance(totals, Mapping):
        figures = {name: totals.get(name) for name in ("flash", "ram")}
    elif isinstance(data, Mapping) and "time" in data and "kernels" in data:
        figures = {name: data.get(name) for name in FIGURES}
    else:
        figures = {}
    available = {name: value for name, value in figures.items() if value is not None}
    if not available or not all(type(value) is int and value >= 0 for value in available.values()):
        raise UsageError(
            "report: expected numbers of flash, RAM or time of a firmware, got none",
            where=file_name,
            hint="write one: microc size DIR --json > FILE, or microc profile DIR --json > FILE for its time, too",
        )
    return {**available, "unit": f"{data.get('board')} {data.get('unit')}"} if "time" in available else available


def compute_growth(
    before: Mapping[str, Any], after: Mapping[str, Any], allowed: Mapping[str, float]
) -> tuple[Growth, ...]:
    """Compute the growth of all figures that both reports contain.

    ``before``, ``after``: results of :func:`read_growth_figures`; ``allowed``: limits of growth as shares, by the name of
    the figure; an empty name is for all figures without a limit of their own. Raises UsageError for a limit of a figure that
    one of the reports lacks, or for times in different units."""
    common = [name for name in FIGURES if name in before and name in after]
    for name in allowed:
        if name and name not in common:
            raise UsageError(
                f"--fail-over: got {name}, expected a figure of both reports: {', '.join(common) or 'they have none'}",
                hint="write both reports by microc profile --json" if name == "time" else "limit another figure",
            )
    if "time" in common and before["unit"] != after["unit"]:
        raise UsageError(
            f"the reports measure time in different units, {before['unit']} and {after['unit']}, which cannot be compared",
            hint="measure both with microc profile on the same board, both emulated or both on hardware",
        )
    default_limit = allowed.get("")
    return tuple(Growth(name, before[name], after[name], allowed.get(name, default_limit)) for name in common)


def make_growth_error(growths: Sequence[Growth], where: str) -> GrowthError | None:
    """Return the error that lists the figures whose growth exceeds its limit; None if no figure does."""
    exceeding = [item for item in growths if item.exceeds]
    if not exceeding:
        return None
    parts = [
        f"{item.what} grew from {item.before:,} to {item.after:,}, by {_format_allowed_percent(item.share)}; "
        f"allowed: {_format_allowed_percent(item.allowed)}"
        for item in exceeding
    ]
    return GrowthError(
        "; ".join(parts),
        where=where,
        hint="list the changes with microc size --against, or save the new report as the base",
    )


def _format_allowed_percent(share: float | None) -> str:
    """Format the limit of a growth in percent; ``any`` for None and infinity."""
    return "any" if share in (None, float("inf")) else f"{100 * share:.2f} %"
