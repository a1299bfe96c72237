# SPDX-License-Identifier: Apache-2.0
"""A board with two memories for tensors: the emulated AN547, whose DTCM leaves so many bytes to the network."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from microc.base import file_access
from microc.compiler.fit.search import board_capacity
from microc.device.boards import load_board
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph
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


def two_memories(folder: Path, fast: int, slow: str = SLOW, flash: int = 0) -> Board:
    """The board, with ``fast`` bytes for the network in the memory of the stack; ``slow``: what follows it in the file.

    ``flash``: cycles that a word of its constants waits, where the fast memory takes copies of them.
    """
    text = (file_access.boards_folder() / "mps3-an547.toml").read_text()
    text = text.replace('kind = "flash"\n', f'kind = "flash"\nwait_states = {flash}\n')
    holds = 'holds = ["tensors", "weights"]\n' if flash else ""
    start, end = text.index('[[memory]]\nname = "dtcm"'), text.index("[link]")
    path = folder / "two.toml"

    def board(size: int) -> Board:
        dtcm = f'[[memory]]\nname = "dtcm"\nkind = "ram"\norigin = 0x2000_0000\nsize = {size}\n{holds}'
        path.write_text(text[:start] + dtcm + slow + text[end + len("[link]") :])
        return load_board(path)

    most = board(0x8_0000)
    return board(0x8_0000 - board_capacity(most).memories[0].size + fast)


def layers(count: int, units: int = 32, rows: int = 48) -> Graph:
    """Dense layers of ``units`` floats, each with weights of its own, which are read once for a few of the rows."""
    dice, net = np.random.default_rng(1), GraphBuilder()
    value = net.input("x", (rows, units))
    for number in range(count):
        weight = net.constant(f"w{number}", (dice.standard_normal((units, units)) / 6).astype(np.float32))
        value = net.op("dense", value, weight, activation="relu")
    return net.graph("layers", {"y": value})
