"""A linked program cut into pieces: every byte of its memory belongs to one, with the symbol and the source file that made it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from microc.device.toolchain import DAMAGED_ELF, HOT_CODE
from microc.errors import ToolError
from microc.frozen import frozen
from microc.reading import open_regular

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

KINDS = ("text", "data", "bss")
"""What memory is, as size(1) counts it: read only, with initial values, without. Code that runs from RAM has initial values."""


@frozen
class Piece:
    """Bytes that belong together. ``names``: the symbols there, aliases too, none for what lies between symbols.

    ``source``: base name of the file it was compiled from, empty if nothing tells; ``unit``: which of the files of that name it
    was, in the order of the link, known of local symbols. ``kind`` is one of :data:`KINDS`.
    """

    names: tuple[str, ...]
    source: str
    unit: int
    section: str
    kind: str
    address: int
    size: int


@frozen
class _Symbol:
    name: str
    source: str
    unit: int
    address: int
    size: int
    section: int


def pieces(elf: Path, objects: Iterable[Path] = ()) -> tuple[Piece, ...]:
    """All allocated sections of an ELF file, cut at its symbols; sizes add up to what size(1) says.

    Local symbols name their source file themselves; that of global ones is looked up in ``objects``, the object files of a
    build. ToolError when the file is missing or not ELF.
    """
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        sources: dict[str, str] = {}
        for path in sorted(objects):
            with open_regular(path) as stream:
                sources |= {s.name: path.with_suffix(".c").name for s in _global_symbols(ELFFile(stream))}
        with open_regular(elf) as stream:
            return tuple(_cut(ELFFile(stream), sources))
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


def _table(elf: ELFFile) -> Iterator[Any]:
    table = elf.get_section_by_name(".symtab")
    return table.iter_symbols() if table is not None else iter(())


def _global_symbols(elf: ELFFile) -> Iterator[Any]:
    return (s for s in _table(elf) if s["st_info"]["bind"] != "STB_LOCAL" and isinstance(s["st_shndx"], int))


def _symbols(elf: ELFFile, sources: dict[str, str]) -> Iterator[_Symbol]:
    """Functions and objects, and labels that assembler programs give code without saying how long it is."""
    thumb = 1 if elf["e_machine"] == "EM_ARM" else 0
    file, seen = "", Counter[str]()
    for symbol in _table(elf):
        kind, local = symbol["st_info"]["type"], symbol["st_info"]["bind"] == "STB_LOCAL"
        if kind == "STT_FILE":
            file = PurePath(symbol.name).name
            seen[file] += 1
        elif isinstance(symbol["st_shndx"], int) and (
            kind in ("STT_FUNC", "STT_OBJECT") or (kind == "STT_NOTYPE" and not local)
        ):
            address = symbol["st_value"] & ~thumb if kind == "STT_FUNC" else symbol["st_value"]
            source, unit = (file, seen[file] - 1) if local else (sources.get(symbol.name, ""), 0)
            yield _Symbol(symbol.name, source, unit, address, symbol["st_size"], symbol["st_shndx"])


def _cut(elf: ELFFile, sources: dict[str, str]) -> Iterator[Piece]:
    from elftools.elf.constants import SH_FLAGS

    symbols = sorted(_symbols(elf, sources), key=lambda s: (s.address, -s.size, s.name))
    for number, section in enumerate(elf.iter_sections()):
        flags, start, size = section["sh_flags"], section["sh_addr"], section["sh_size"]
        if not flags & SH_FLAGS.SHF_ALLOC or not size:
            continue
        kind = "bss" if section["sh_type"] == "SHT_NOBITS" else "data"
        if (flags & SH_FLAGS.SHF_EXECINSTR or not flags & SH_FLAGS.SHF_WRITE) and section.name != HOT_CODE:
            kind = "text"
        inside = [s for s in symbols if s.section == number and start <= s.address < start + size]
        named = (
            inside if kind == "text" else [s for s in inside if s.size]
        )  # elsewhere such labels are marks of the linker
        for same, begin, end in _parts(named, start, start + size):
            of = next((s for s in same if s.source), None)
            source, unit = (of.source, of.unit) if of else ("", 0)
            names = tuple(dict.fromkeys(s.name for s in same))
            yield Piece(names, source, unit, section.name, kind, begin, end - begin)


def _parts(symbols: list[_Symbol], start: int, stop: int) -> Iterator[tuple[list[_Symbol], int, int]]:
    """The range cut into parts, with the symbols there: none between two. A symbol without a size reaches to the next one."""
    places = [(address, list(group)) for address, group in groupby(symbols, key=lambda s: s.address)]
    at = start
    for k, (address, group) in enumerate(places):
        following = places[k + 1][0] if k + 1 < len(places) else stop
        end = min(address + group[0].size, stop) if group[0].size else following
        if address < at or end == address:
            continue  # inside of another symbol
        if address > at:
            yield [], at, address
        yield group, address, end
        at = end
    if at < stop:
        yield [], at, stop
