"""What build systems call a board, for the templates of exports: ``[ids]`` of its file, through the filters of text."""

from __future__ import annotations

from microc.codegen.text import Word
from microc.frozen import frozen
from microc.target import Board


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
