"""Linked programs as files that loaders take, and cut into pieces."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from microc.base.file_access import open_regular
from microc.base.immutable import frozen
from microc.codegen.output_files import replacing
from microc.device.toolchain import DAMAGED_ELF, HOT_CODE
from microc.errors import ToolError, UsageError
from microc.target import Board

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile


# ---- A linked program in the formats that loaders ask for: plain binary, Intel HEX and UF2.

Segment = tuple[int, bytes]
"""Load address and content."""

_HEX_BYTES = 16
_UF2_BYTES = 256
_UF2_MAGIC = (0x0A324655, 0x9E5D5157)
_UF2_END = 0x0AB16F30
_UF2_HAS_FAMILY = 0x2000


def segments(elf: Path) -> tuple[Segment, ...]:
    """What a loader writes into flash, in the order of addresses: the loadable segments with content, at their load addresses."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        with open_regular(elf) as stream:
            found = [
                (int(s["p_paddr"]), bytes(s.data())) for s in ELFFile(stream).iter_segments("PT_LOAD") if s["p_filesz"]
            ]
    except OSError as error:
        raise ToolError(f"cannot read the program: {error.strerror or error}", where=str(elf)) from error
    except (ELFError, *DAMAGED_ELF) as error:
        raise ToolError(f"not an ELF file: {error}", where=str(elf)) from error
    return tuple(sorted(found))


def binary(parts: Sequence[Segment]) -> bytes:
    """The content from the lowest address on, gaps filled with FF as erased flash is."""
    base = parts[0][0]
    image = bytearray(b"\xff" * (max(start + len(data) for start, data in parts) - base))
    for start, data in parts:
        image[start - base : start - base + len(data)] = data
    return bytes(image)


def intel_hex(parts: Sequence[Segment]) -> str:
    """Intel HEX with 32-bit addresses."""
    lines, upper = [], -1
    for start, data in parts:
        at = start
        while at < start + len(data):
            if at >> 16 != upper:
                upper = at >> 16
                lines.append(_record(4, 0, upper.to_bytes(2, "big")))
            count = min(_HEX_BYTES, start + len(data) - at, 0x10000 - (at & 0xFFFF))
            lines.append(_record(0, at & 0xFFFF, data[at - start : at - start + count]))
            at += count
    return "\n".join([*lines, _record(1, 0, b""), ""])


def _record(kind: int, address: int, data: bytes) -> str:
    body = bytes([len(data), *address.to_bytes(2, "big"), kind]) + data
    return f":{body.hex().upper()}{-sum(body) & 0xFF:02X}"


def uf2(parts: Sequence[Segment], family: int) -> bytes:
    """UF2 blocks of 256 bytes for a family of chips (https://github.com/microsoft/uf2)."""
    base = parts[0][0] // _UF2_BYTES * _UF2_BYTES
    image = binary([(base, b""), *parts])
    image += b"\xff" * (-len(image) % _UF2_BYTES)
    count = len(image) // _UF2_BYTES
    blocks = []
    for k in range(count):
        data = image[k * _UF2_BYTES : (k + 1) * _UF2_BYTES]
        head = struct.pack("<8I", *_UF2_MAGIC, _UF2_HAS_FAMILY, base + k * _UF2_BYTES, _UF2_BYTES, k, count, family)
        blocks.append(head + data.ljust(476, b"\0") + struct.pack("<I", _UF2_END))
    return b"".join(blocks)


def _uf2_of(parts: Sequence[Segment], board: Board) -> bytes:
    family = board.raw["flash"].get("uf2_family")
    if family is None:
        raise UsageError(f"board {board.name!r} names no UF2 family", hint="set uf2_family in its table [flash]")
    return uf2(parts, family)


FORMATS: Mapping[str, Callable[[Sequence[Segment], Board], bytes]] = MappingProxyType(
    {
        "bin": lambda parts, board: binary(parts),
        "hex": lambda parts, board: intel_hex(parts).encode("ascii"),
        "uf2": _uf2_of,
    }
)
"""How to make a file for a loader, by its suffix."""


def convert(elf: Path, suffix: str, board: Board) -> Path:
    """Write the image beside ``elf`` in a format of :data:`FORMATS`; returns its path."""
    parts = segments(elf)
    if not parts:
        raise ToolError("the program has nothing to load", where=str(elf))
    target = elf.with_suffix(f".{suffix}")
    with replacing(target) as temporary:
        temporary.write_bytes(FORMATS[suffix](parts, board))
    return target


# ---- A linked program cut into pieces: every byte of its memory belongs to one, with the symbol and the source file
# that made it.

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
