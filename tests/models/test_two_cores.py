# SPDX-License-Identifier: Apache-2.0
"""A small network on both cores of every board that has two: it builds, and agrees with this computer where it boots."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import microc
from microc.base import file_access
from microc.device.boards import list_boards, load_board
from microc.device.toolchain import run_make
from microc.run.board_project import open_project
from microc.run.inputs import draw_input_sets
from microc.run.session import Device
from microc.run.verification import compare_board_with_host
from microc.target import Board
from tests.device.smoke import skip_without
from tests.support import digits

BOARDS = tuple(name for name in list_boards() if load_board(name).target.max_cores > 1)


def at_the_same_time(name: str, folder: Path) -> Board:
    """The board whose emulator runs both cores at once, each in a thread of this computer, and has no clock of its own."""
    text = (file_access.boards_folder() / f"{name}.toml").read_text()
    text = re.sub(r'"-icount", "[^"]*",|^cores_share_clock.*$|^ticks_per_instruction.*$', "", text, flags=re.M)
    assert "-icount" not in text
    (folder / "board.toml").write_text(text)
    return load_board(folder / "board.toml")


def build_and_compare(board: Board, folder: Path, runs: int) -> None:
    skip_without(board)
    program = microc.compile(digits.INT8, board=board, cores=2)
    project = open_project(program.write(folder / "project"))
    assert "microc_run_turns(" in (project.folder / "model.c").read_text()
    run_make(project.folder, ("CFLAGS=-Werror",))
    if not project.emulated:
        return
    with Device(project) as device:
        inputs = draw_input_sets(device.project.manifest, device.inputs, runs)
        layers, difference = compare_board_with_host(device, program.library(), inputs, tolerance=0)
        assert difference is None and len(layers) == len(device.kernels)


@pytest.mark.cross
@pytest.mark.emulator
@pytest.mark.parametrize("name", BOARDS)
def test_every_board(name: str, tmp_path: Path) -> None:
    build_and_compare(load_board(name), tmp_path, 2)


@pytest.mark.cross
@pytest.mark.emulator
def test_both_cores_at_the_same_time(tmp_path: Path) -> None:
    build_and_compare(at_the_same_time("mps2-an521", tmp_path), tmp_path, 5)
