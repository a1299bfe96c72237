"""A linked program in the formats that loaders ask for: plain binary, Intel HEX and UF2."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from microc.codegen.files import replacing
from microc.device.toolchain import DAMAGED_ELF
from microc.errors import ToolError, UsageError
from microc.reading import open_regular
from microc.target import Board

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
