"""Files about a board: header, linker script, editor tasks, ids in build systems."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from microc.base.immutable import frozen
from microc.codegen.project.manifest import to_json
from microc.codegen.render import Code, Name, Text, Word, render
from microc.target import Board, Region

# ---- A board's header and linker script.

KERNELS, NETWORKS = "kernels", "networks"
"""Types of code that a firmware may load over its serial line."""

HOT_SECTIONS = {"": ".hot_code", "esp-idf": ".iram1.microc"}
"""Section for kernels that run from RAM, by framework: one of our linker script, or the framework's own."""

_ADDRESSES = ("base", "address", "mask")
"""Suffixes of facts that are printed in hexadecimal."""


@frozen
class RegionContext:
    """A memory region, in bytes."""

    name: Name
    kind: Name
    origin: int
    size: int


@frozen
class BoardContext:
    """Variables of ``microc_board.h.j2`` and ``linker.ld.j2``.

    ``facts`` are macros of the console, the timer and the accelerator, with their values. ``setup`` are writes to registers
    before main, as calls of macros. ``takes`` is the code that is loaded over the line, ``kernels`` or ``networks``, for
    which RAM is reserved; ``core`` and ``abi`` are what it must be compiled for. ``self_test``: networks check themselves at
    boot. ``read_at``: the address of constants in the first flash region, if it differs from that of code. ``hot_code`` is
    the region that kernels run from (empty: none), ``hot_section`` its section. ``npu_constants`` is the region of an
    accelerator's constants, empty if that is the first one.
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


def board_header(board: Board, *, loaded_code: str = "", self_test: bool = False, hot_code_region: str = "") -> str:
    """Return ``microc_board.h``, which the build includes before every other file."""
    return render(
        "board/microc_board.h.j2",
        board_context(board, loaded_code=loaded_code, self_test=self_test, hot_code_region=hot_code_region),
    )


def linker_script(board: Board, *, loaded_code: str = "", hot_code_region: str = "") -> str:
    """Return ``linker.ld`` of a board with a flash and a RAM region."""
    return render("board/linker.ld.j2", board_context(board, loaded_code=loaded_code, hot_code_region=hot_code_region))


def abi_checksum(board: Board) -> int:
    """Return the id of a board's ABI for loaded code: the CRC-32 of the compiler's options (SPEC.md, "Blob")."""
    return zlib.crc32(" ".join(board.raw["build"]["c_flags"]).encode())


def board_context(
    board: Board, *, loaded_code: str = "", self_test: bool = False, hot_code_region: str = ""
) -> BoardContext:
    """Return a board's variables for the templates of its header and its linker script.

    ``loaded_code``: ``kernels`` or ``networks`` if code is loaded over the serial line, else empty; ``self_test``:
    networks check themselves at boot; ``hot_code_region``: the memory region that kernels run from, empty if there is
    none."""
    raw = board.raw
    slots: Mapping[str, int] = {
        k: v for k, v in raw.get("slots", {}).items() if loaded_code == NETWORKS and k != "sources"
    }
    npu = {key: int(value) for key, value in raw.get("npu", {}).items() if not isinstance(value, str)}
    flash: Mapping[str, int] = next((m for m in raw["memory"] if m["kind"] == "flash"), {})
    return BoardContext(
        title=Text(board.title),
        isa=Name(board.target.isa),
        core=Word(board.target.cpu),
        abi=Code(f"0x{abi_checksum(board):08x}u"),
        tick_hz=raw["timer"]["hz"],
        facts=tuple(
            (Name(f"MICROC_{table}_{key}".upper()), _unsigned_literal(value, hexadecimal=key.endswith(_ADDRESSES)))
            for table, entries in (("console", raw["console"]), ("timer", raw["timer"]), ("slots", slots), ("npu", npu))
            for key, value in entries.items()
            if key != "hz"
        ),
        setup=tuple(_register_macro_call(entry) for entry in raw["setup"]["registers"]),
        stack_bytes=raw.get("link", {}).get("stack_bytes", 0),
        regions=tuple(
            RegionContext(Name(r.name), Name(r.kind), r.origin, _bytes_before_slots(slots.get("base", 0), r))
            for r in board.regions
        ),
        takes=Word(loaded_code),
        self_test=self_test,
        read_at=flash.get("data_origin"),
        hot_code=Word(hot_code_region),
        hot_section=Word(HOT_SECTIONS[raw.get("framework", {}).get("name", "")]),
        npu_constants=Word(board.npu_constants),
    )


def _bytes_before_slots(slots_start: int, region: Region) -> int:
    """Return the bytes of a region in front of the slots for loaded networks, which begin at address ``slots_start``.

    All bytes of the region if the slots are elsewhere."""
    return slots_start - region.origin if region.origin < slots_start < region.origin + region.size else region.size


def _unsigned_literal(value: int, *, hexadecimal: bool = True) -> Code:
    """Print a number as an unsigned literal of C: hexadecimal with eight digits, or decimal."""
    return Code(f"0x{value:08x}u" if hexadecimal else f"{value}u")


def _register_macro_call(entry: Mapping[str, int]) -> Code:
    """Print one register access of a board's ``setup`` as a call of its macro.

    Registers narrower than 32 bits have a macro with a type."""
    kind = next(key for key in ("write", "wait", "set", "change") if key in entry)
    mask = entry.get("mask", 0)
    numbers = {
        "write": (entry[kind], entry.get("value", 0)),
        "wait": (entry[kind], mask, entry.get("value", 0)),
        "set": (entry[kind], mask, mask),
        "change": (entry[kind], mask, entry.get("value", 0)),
    }[kind]
    macro = {"write": "WRITE", "wait": "WAIT", "set": "CHANGE", "change": "CHANGE"}[kind]
    arguments = ", ".join(map(_unsigned_literal, numbers))
    bits = entry.get("bits", 32)
    return Code(f"{macro}({arguments})" if bits == 32 else f"MICROC_{macro}_AS(uint{bits}_t, {arguments})")


# ---- A board's names in build systems, for the templates of exports: ``[ids]`` of its file.


@frozen
class PlatformIO:
    """A PlatformIO board and its platform; the framework is Arduino."""

    platform: Word
    board: Word


@frozen
class Cmsis:
    """A CMSIS device (``VENDOR::NAME``) and its pack; ``version`` is the pack's, empty for any."""

    pack: Word
    version: Word
    device: Word


@frozen
class BuildSystemIds:
    """A board's names in build systems.

    Where a build system has no name for it, the text is empty or the table None: the export is then for a generic board
    there, such as a simulator. ``emulated``: it is a QEMU machine, without a programmer."""

    arduino: Word
    platformio: PlatformIO | None
    zephyr: Word
    esp_idf: Word
    cmsis: Cmsis | None
    emulated: bool


def board_ids(board: Board) -> BuildSystemIds:
    """Return the names of a board in build systems."""
    names = board.ids
    platformio, cmsis = names.get("platformio"), names.get("cmsis")
    runners = {runner["name"] for runner in board.raw.get("flash", {}).get("runner", ())}
    return BuildSystemIds(
        arduino=Word(names.get("arduino", "")),
        platformio=platformio and PlatformIO(Word(platformio["platform"]), Word(platformio["board"])),
        zephyr=Word(names.get("zephyr", "")),
        esp_idf=Word(names.get("esp-idf", "")),
        cmsis=cmsis and Cmsis(Word(cmsis["pack"]), Word(cmsis.get("version", "")), Word(cmsis["device"])),
        emulated="emulator" in board.raw and runners <= {"gdb"},
    )


# ---- Tasks of a project for Visual Studio Code and compatible editors: build, flash, run, verify, with a problem list.

TASKS_FILE = ".vscode/tasks.json"
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
"""Format of our errors (:mod:`microc.errors`): a line with code and text, a line with the place."""
_SAMPLE = {
    "id": "sample",
    "type": "promptString",
    "description": "the network's input: a .npy file or a picture",
    "default": "x.npy",
}


def tasks_json(networks: Sequence[Name], is_host: bool) -> str:
    """Return the text of ``tasks.json``. The editor matches compilers' messages itself; a pattern here matches ours."""
    task_list = [
        {
            "label": "build",
            "type": "shell",
            "command": "make",
            "group": {"kind": "build", "isDefault": True},
            "problemMatcher": ["$gcc"],
        }
    ]
    if not is_host:
        task_list.append(_command_task("flash", "build"))
    for name in networks:
        arguments = ("--network", str(name)) if len(networks) > 1 else ()
        label = f" {name}" if arguments else ""
        task_list.append(_command_task("run", "build", "--input", "${input:sample}", *arguments, label=label))
        task_list.append({**_command_task("verify", "build", *arguments, label=label), "group": "test"})
    return to_json({"version": "2.0.0", "tasks": task_list, "inputs": [_SAMPLE]})


def _command_task(command: str, preceding_task: str, *words: str, label: str = "") -> dict[str, Any]:
    """Return an editor's task that runs a microc command on the project after ``preceding_task``.

    ``command_arguments``: further arguments of the command."""
    return {
        "label": command + label,
        "type": "process",
        "command": "microc",
        "args": [command, ".", *words],
        "dependsOn": preceding_task,
        "problemMatcher": [_PROBLEMS],
    }
