"""A board with two memories for tensors: the emulated AN547, whose DTCM leaves so many bytes to the network."""

from __future__ import annotations

from pathlib import Path

from microc import paths
from microc.device.boards import load_board
from microc.driver.compile.fit import room_of
from microc.target import Board

SLOW = """
[[memory]]
name = "sram"
kind = "ram"
origin = 0x0100_0000
size = 0x20_0000
holds = ["tensors"]
wait_states = 2

[link]"""


def two_memories(folder: Path, fast: int, slow: str = SLOW) -> Board:
    """The board, with ``fast`` bytes for the network in the memory of the stack; ``slow``: what follows it in the file."""
    text = (paths.boards() / "mps3-an547.toml").read_text()
    start, end = text.index('[[memory]]\nname = "dtcm"'), text.index("[link]")
    path = folder / "two.toml"

    def board(size: int) -> Board:
        dtcm = f'[[memory]]\nname = "dtcm"\nkind = "ram"\norigin = 0x2000_0000\nsize = {size}\n'
        path.write_text(text[:start] + dtcm + slow + text[end + len("[link]") :])
        return load_board(path)

    most = board(0x8_0000)
    return board(0x8_0000 - room_of(most).memories[0].size + fast)
