"""A board as its header and its linker script show it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from microc.codegen.render import render
from microc.codegen.text import Code, Name, Text, Word
from microc.frozen import frozen
from microc.target import Board, Region

KERNELS, NETWORKS = "kernels", "networks"
"""What firmware may take as code."""

HOT_SECTIONS = {"": ".hot_code", "esp-idf": ".iram1.microc"}
"""Where kernels go that run from RAM, by framework: into a section of our linker script, or the framework's own for code."""

_ADDRESSES = ("base", "address", "mask")
"""Ends of the names of facts that are read in hexadecimal digits."""


@frozen
class RegionContext:
    """A memory region, in bytes."""

    name: Name
    kind: Name
    origin: int
    size: int


@frozen
class BoardContext:
    """What ``microc_board.h.j2`` and ``linker.ld.j2`` show.

    ``facts``: macros of the console, the timer and the accelerator, with their values. ``setup``: what happens to registers
    before main, in calls of macros. ``takes``: code that comes over the line, ``kernels`` or ``networks``, for which RAM is
    left; ``core``, ``abi``: what it must be compiled for. ``self_test``: networks check themselves at boot. ``read_at``: where
    constants in the first flash region are read, if elsewhere than code runs. ``hot_code``: the region that kernels run from,
    empty where none do, by ``hot_section``. ``npu_constants``: the region with what an accelerator reads, empty where that is
    the first one.
    """

    title: Text
    isa: Name
    core: Word
    abi: Code
    tick_hz: int
    facts: tuple[tuple[Name, Code], ...]
    setup: tuple[Code, ...]
    stack_bytes: int
    regions: tuple[RegionContext, ...]
    takes: Word
    self_test: bool
    read_at: int | None
    hot_code: Word
    hot_section: Word
    npu_constants: Word


def board_header(board: Board, *, takes: str = "", self_test: bool = False, hot_code: str = "") -> str:
    """``microc_board.h``, which the build includes before every other file."""
    return render("board/microc_board.h.j2", board_context(board, takes=takes, self_test=self_test, hot_code=hot_code))


def linker_script(board: Board, *, takes: str = "", hot_code: str = "") -> str:
    """``linker.ld`` of a board with a flash and a RAM region."""
    return render("board/linker.ld.j2", board_context(board, takes=takes, hot_code=hot_code))


def abi_of(board: Board) -> int:
    """What tells code for a core from other code for it: the CRC-32 of the compiler's options (SPEC.md, "Blob")."""
    return zlib.crc32(" ".join(board.raw["build"]["c_flags"]).encode())


def board_context(board: Board, *, takes: str = "", self_test: bool = False, hot_code: str = "") -> BoardContext:
    """The parts of a board's file that these two files show; ``takes``: ``kernels`` or ``networks``, as code over the line;
    ``hot_code``: the region that kernels run from, if any do."""
    raw = board.raw
    slots: Mapping[str, int] = {k: v for k, v in raw.get("slots", {}).items() if takes == NETWORKS and k != "sources"}
    npu = {key: int(value) for key, value in raw.get("npu", {}).items() if not isinstance(value, str)}
    flash: Mapping[str, int] = next((m for m in raw["memory"] if m["kind"] == "flash"), {})
    return BoardContext(
        title=Text(board.title),
        isa=Name(board.target.isa),
        core=Word(board.target.cpu),
        abi=Code(f"0x{abi_of(board):08x}u"),
        tick_hz=raw["timer"]["hz"],
        facts=tuple(
            (Name(f"MICROC_{table}_{key}".upper()), _number(value, hexadecimal=key.endswith(_ADDRESSES)))
            for table, entries in (("console", raw["console"]), ("timer", raw["timer"]), ("slots", slots), ("npu", npu))
            for key, value in entries.items()
            if key != "hz"
        ),
        setup=tuple(_register(entry) for entry in raw["setup"]["registers"]),
        stack_bytes=raw.get("link", {}).get("stack_bytes", 0),
        regions=tuple(
            RegionContext(Name(r.name), Name(r.kind), r.origin, _below(slots.get("base", 0), r)) for r in board.regions
        ),
        takes=Word(takes),
        self_test=self_test,
        read_at=flash.get("data_origin"),
        hot_code=Word(hot_code),
        hot_section=Word(HOT_SECTIONS[raw.get("framework", {}).get("name", "")]),
        npu_constants=Word(board.npu_constants),
    )


def _below(slots: int, region: Region) -> int:
    """Bytes of a region that slots leave to the firmware, in front of them."""
    return slots - region.origin if region.origin < slots < region.origin + region.size else region.size


def _number(value: int, *, hexadecimal: bool = True) -> Code:
    return Code(f"0x{value:08x}u" if hexadecimal else f"{value}u")


def _register(entry: Mapping[str, int]) -> Code:
    """A register's turn in the setup, in a call of its kind's macro; registers of fewer bits have one that takes their type."""
    kind = next(key for key in ("write", "wait", "set", "change") if key in entry)
    mask = entry.get("mask", 0)
    numbers = {
        "write": (entry[kind], entry.get("value", 0)),
        "wait": (entry[kind], mask, entry.get("value", 0)),
        "set": (entry[kind], mask, mask),
        "change": (entry[kind], mask, entry.get("value", 0)),
    }[kind]
    macro = {"write": "WRITE", "wait": "WAIT", "set": "CHANGE", "change": "CHANGE"}[kind]
    arguments = ", ".join(map(_number, numbers))
    bits = entry.get("bits", 32)
    return Code(f"{macro}({arguments})" if bits == 32 else f"MICROC_{macro}_AS(uint{bits}_t, {arguments})")
