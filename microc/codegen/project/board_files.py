# SPDX-License-Identifier: Apache-2.0
"""Write the files of a project that depend on its board: header, linker script, editor tasks, ids in build systems."""

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
"""Types of code that a firmware may receive over its serial line and run: single kernels, or whole networks."""

HOT_SECTIONS = {"": ".hot_code", "esp-idf": ".iram1.microc"}
"""Linker section for kernels that run from RAM, by the name of the vendor's framework.

The empty name is for boards without a framework, whose section is defined in the linker script that microc writes."""

_HEXADECIMAL_SUFFIXES = ("base", "address", "mask")
"""Suffixes of the keys in a board's file whose numbers are printed in hexadecimal."""


@frozen
class RegionContext:
    """A memory region of a board: ``origin`` is its first address, ``size`` its number of bytes, ``kind`` flash or RAM."""

    name: Name
    kind: Name
    origin: int
    size: int


@frozen
class BoardContext:
    """Variables of the templates ``microc_board.h.j2`` and ``linker.ld.j2``.

    ``facts`` are the names and values of macros for the console, the timer, the slots for loaded networks and the accelerator.
    ``setup`` are accesses to registers before main, as calls of macros. ``takes`` is the type of code that the firmware
    receives over its serial line, ``kernels`` or ``networks``, for which RAM is reserved; it is empty if the firmware loads no
    code. ``core`` and ``abi`` are the core and the id of the ABI that such code must be compiled for. ``self_test`` is True if
    networks run their self-test at boot, ``learns`` if a network learns. ``code`` is the region of code, if it is not the first
    flash region. ``read_at`` is the address at which data in the first flash region is read; None if it is the same as the
    address of code. ``hot_code`` is the memory region from which selected kernels run (empty: none), and ``hot_section`` the
    linker section of these kernels.
    ``npu_constants`` is the region for the constants of a neural processing unit; it is empty for the first region.
    ``constant_regions`` are the flash regions for constants of networks, without the first region.
    ``cores`` is the number of cores that share the large loops of networks, and ``cores_share_clock`` is True if the board's
    emulator counts the instructions of all of them as time.
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
    learns: bool
    code: Word
    read_at: int | None
    hot_code: Word
    hot_section: Word
    npu_constants: Word
    constant_regions: tuple[Name, ...]
    cores: int
    cores_share_clock: bool


def render_board_header(
    board: Board,
    *,
    loaded_code: str = "",
    self_test: bool = False,
    hot_code_region: str = "",
    cores: int = 1,
    stack_bound: int = 0,
    learns: bool = False,
) -> str:
    """Render ``microc_board.h``, a header that the build includes before every C file. For the arguments see
    :func:`make_board_context`."""
    return render(
        "board/microc_board.h.j2",
        make_board_context(
            board,
            loaded_code=loaded_code,
            self_test=self_test,
            hot_code_region=hot_code_region,
            cores=cores,
            stack_bound=stack_bound,
            learns=learns,
        ),
    )


def linker_script(board: Board, *, loaded_code: str = "", hot_code_region: str = "") -> str:
    """Render ``linker.ld``, the linker script of a board with a flash and a RAM region. For the arguments see
    :func:`make_board_context`."""
    return render(
        "board/linker.ld.j2", make_board_context(board, loaded_code=loaded_code, hot_code_region=hot_code_region)
    )


def abi_checksum(board: Board) -> int:
    """Return the id of a board's ABI. The board's firmware loads only code that was compiled for the same id.

    The id is the CRC-32 of the compiler's options (SPEC.md, "Blob")."""
    return zlib.crc32(" ".join(board.raw["build"]["c_flags"]).encode())


def core1_stack_bytes(board: Board, stack_bound: int) -> int:
    """Return the size of the second core's stack: what the board's file says, or a kernel's bound if that is more."""
    return int(max(board.raw["fork"]["stack_bytes"], -(-stack_bound // 16) * 16))


def make_board_context(
    board: Board,
    *,
    loaded_code: str = "",
    self_test: bool = False,
    hot_code_region: str = "",
    cores: int = 1,
    stack_bound: int = 0,
    learns: bool = False,
) -> BoardContext:
    """Return the variables of the templates of a board's header and linker script.

    ``loaded_code``: ``kernels`` or ``networks`` if the firmware receives such code over its serial line, else empty.
    ``self_test``: True if networks run their self-test at boot. ``hot_code_region``: the memory region from which
    selected kernels run; empty if all kernels run from flash. ``cores``: number of cores that share large loops.
    ``stack_bound``: bytes of stack that the second core needs at most: a kernel's, since it runs parts of kernels.
    ``learns``: True if a network learns."""
    raw = board.raw
    fork = {"stack_bytes": core1_stack_bytes(board, stack_bound)} if cores > 1 else {}
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
            (
                Name(f"MICROC_{table}_{key}".upper()),
                _unsigned_literal(value, hexadecimal=key.endswith(_HEXADECIMAL_SUFFIXES)),
            )
            for table, entries in (
                ("console", raw["console"]),
                ("timer", raw["timer"]),
                ("slots", slots),
                ("npu", npu),
                ("fork", fork),
            )
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
        learns=learns,
        code=Word(raw.get("link", {}).get("code", "")),
        read_at=flash.get("data_origin"),
        hot_code=Word(hot_code_region),
        hot_section=Word(HOT_SECTIONS[raw.get("framework", {}).get("name", "")]),
        npu_constants=Word(board.npu_constants),
        constant_regions=tuple(Name(memory.name) for memory in board.flash_memories[1:]),
        cores=cores,
        cores_share_clock=cores > 1 and raw.get("emulator", {}).get("cores_share_clock", False),
    )


def _bytes_before_slots(slots_start: int, region: Region) -> int:
    """Return the number of bytes of a memory region that the firmware may use.

    Slots for loaded networks begin at the address ``slots_start``. If they are in the region, the result is the number
    of bytes before them, else the size of the region."""
    return slots_start - region.origin if region.origin < slots_start < region.origin + region.size else region.size


def _unsigned_literal(value: int, *, hexadecimal: bool = True) -> Code:
    """Print a number as an unsigned C literal: in hexadecimal with eight digits, or in decimal."""
    return Code(f"0x{value:08x}u" if hexadecimal else f"{value}u")


def _register_macro_call(entry: Mapping[str, int]) -> Code:
    """Print one register access in the ``setup`` of a board's file as a call of a C macro.

    For a register narrower than 32 bits, the macro has the type of the register as an argument."""
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


# ---- The names that build systems have for a board: the table ``[ids]`` of the board's file, for the templates of exports.


@frozen
class PlatformIO:
    """The names that PlatformIO has for a board and for its platform. The framework is always Arduino."""

    platform: Word
    board: Word


@frozen
class Cmsis:
    """The name that CMSIS has for a board's device (``VENDOR::NAME``), and the device's pack.

    ``version``: version of the pack; empty if any version will do."""

    pack: Word
    version: Word
    device: Word


@frozen
class BuildSystemIds:
    """The names that build systems have for a board.

    If a build system has no name for the board, its field is empty or None. An export is then for a generic board of that build
    system, such as a simulator. ``emulated`` is True if the board is an emulated machine of QEMU, which needs no programmer."""

    arduino: Word
    platformio: PlatformIO | None
    zephyr: Word
    esp_idf: Word
    cmsis: Cmsis | None
    emulated: bool


def list_board_ids(board: Board) -> BuildSystemIds:
    """Return the names that build systems have for a board, from the board's file."""
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


# ---- Tasks of a project for Visual Studio Code and compatible editors: build, flash, run, verify. The editor lists their errors.

TASKS_FILE = ".vscode/tasks.json"
_PROBLEM_MATCHER = {
    "owner": "microc",
    "source": "microc",
    "severity": "error",
    "fileLocation": ["autoDetect", "${workspaceFolder}"],
    "pattern": [
        {"regexp": r"^error\[(E\d{4})\]: (.*)$", "kind": "file", "code": 1, "message": 2},
        {"regexp": r"^  --> (.*)$", "file": 1},
    ],
}
"""Problem matcher of Visual Studio Code for the errors that microc prints (:mod:`microc.errors`): a line with code and text, then
a line with the file."""
_SAMPLE_PROMPT = {
    "id": "sample",
    "type": "promptString",
    "description": "the network's input: a .npy file or a picture",
    "default": "x.npy",
}


def render_tasks_json(networks: Sequence[Name], is_host: bool) -> str:
    """Return the text of ``tasks.json``, the editor's tasks for a project with ``networks``.

    ``is_host``: True if the project runs on this computer, so that there is no task ``flash``. The editor has patterns of its own
    for messages of compilers; :data:`_PROBLEM_MATCHER` is the pattern for messages of microc."""
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
        task_list.append(_make_command_task("flash", "build"))
    for name in networks:
        arguments = ("--network", str(name)) if len(networks) > 1 else ()
        label = f" {name}" if arguments else ""
        task_list.append(_make_command_task("run", "build", "--input", "${input:sample}", *arguments, label=label))
        task_list.append({**_make_command_task("verify", "build", *arguments, label=label), "group": "test"})
    return to_json({"version": "2.0.0", "tasks": task_list, "inputs": [_SAMPLE_PROMPT]})


def _make_command_task(command: str, preceding_task: str, *words: str, label: str = "") -> dict[str, Any]:
    """Return an editor's task that runs the microc command ``command`` on the project, after ``preceding_task``.

    ``words``: further arguments of the command. ``label``: suffix of the task's label."""
    return {
        "label": command + label,
        "type": "process",
        "command": "microc",
        "args": [command, ".", *words],
        "dependsOn": preceding_task,
        "problemMatcher": [_PROBLEM_MATCHER],
    }
