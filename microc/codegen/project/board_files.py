"""Files about a board: header, linker script, editor tasks, ids of build systems."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from microc.base.immutable import frozen
from microc.codegen.project.manifest import to_json
from microc.codegen.render import Code, Name, Text, Word, render
from microc.target import Board, Region

# ---- A board as its header and its linker script show it.

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


# ---- What build systems call a board, for the templates of exports: ``[ids]`` of its file, through the filters of
# text.


@frozen
class PlatformIO:
    """A board of PlatformIO and the platform that has it; Arduino is its framework."""

    platform: Word
    board: Word


@frozen
class Cmsis:
    """A device (``VENDOR::NAME``) and its pack; ``version``: of the pack, empty where any will do."""

    pack: Word
    version: Word
    device: Word


@frozen
class Ids:
    """A board by build system. Where one has no name for it, its text is empty or its table ``None``: an export is then for
    whatever stands for all boards there, as a simulator. ``emulated``: it is a machine of QEMU, and no programmer flashes it."""

    arduino: Word
    platformio: PlatformIO | None
    zephyr: Word
    esp_idf: Word
    cmsis: Cmsis | None
    emulated: bool


def board_ids(board: Board) -> Ids:
    """The names of a board."""
    found = board.ids
    platformio, cmsis = found.get("platformio"), found.get("cmsis")
    runners = {runner["name"] for runner in board.raw.get("flash", {}).get("runner", ())}
    return Ids(
        arduino=Word(found.get("arduino", "")),
        platformio=platformio and PlatformIO(Word(platformio["platform"]), Word(platformio["board"])),
        zephyr=Word(found.get("zephyr", "")),
        esp_idf=Word(found.get("esp-idf", "")),
        cmsis=cmsis and Cmsis(Word(cmsis["pack"]), Word(cmsis.get("version", "")), Word(cmsis["device"])),
        emulated="emulator" in board.raw and runners <= {"gdb"},
    )


# ---- Tasks of a project for Visual Studio Code and what reads its files: build, flash, run, verify, with problems in
# its list.

TASKS = ".vscode/tasks.json"
_PROBLEMS = {
    "owner": "microc",
    "source": "microc",
    "severity": "error",
    "fileLocation": ["autoDetect", "${workspaceFolder}"],
    "pattern": [
        {"regexp": r"^error\[(E\d{4})\]: (.*)$", "kind": "file", "code": 1, "message": 2},
        {"regexp": r"^  --> (.*)$", "file": 1},
    ],
}
"""How errors of ours look (:mod:`microc.errors`): a line of what, one of where."""
_SAMPLE = {
    "id": "sample",
    "type": "promptString",
    "description": "the network's input: a .npy file or a picture",
    "default": "x.npy",
}


def tasks(networks: Sequence[Name], is_host: bool) -> str:
    """The text of ``tasks.json``. Compilers' messages are found by the editor's own matcher, those of microc by one here."""
    found = [
        {
            "label": "build",
            "type": "shell",
            "command": "make",
            "group": {"kind": "build", "isDefault": True},
            "problemMatcher": ["$gcc"],
        }
    ]
    if not is_host:
        found.append(_task("flash", "build"))
    for name in networks:
        which = ("--network", str(name)) if len(networks) > 1 else ()
        label = f" {name}" if which else ""
        found.append(_task("run", "build", "--input", "${input:sample}", *which, label=label))
        found.append({**_task("verify", "build", *which, label=label), "group": "test"})
    return to_json({"version": "2.0.0", "tasks": found, "inputs": [_SAMPLE]})


def _task(command: str, after: str, *words: str, label: str = "") -> dict[str, Any]:
    """A command of microc on the project, after another task."""
    return {
        "label": command + label,
        "type": "process",
        "command": "microc",
        "args": [command, ".", *words],
        "dependsOn": after,
        "problemMatcher": [_PROBLEMS],
    }
