# SPDX-License-Identifier: Apache-2.0
"""A small network on every board: its firmware builds, and where there is an emulator it boots and agrees with the host."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.compiler.api import Program
from microc.device.boards import list_boards, load_board
from microc.device.emulators import find_program_or_simulator
from microc.device.toolchain import run_make
from microc.reports.firmware_size import measure_firmware
from microc.run.board_project import Project, build_project, open_project
from microc.run.data.samples import draw_input_sets
from microc.run.desktop.library import Library
from microc.run.session import Device
from microc.run.verification import compare_board_with_host
from tests.device.smoke import skip_without
from tests.reports.test_size import size_program

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
BOARDS = tuple(name for name in list_boards() if name != "host")
REPEATING = ("netduinoplus2", "mps2-an385", "mps2-an386", "mps2-an500", "mps3-an547", "microbit")
"""Emulated boards whose timer counts instructions, and whose stack is painted."""


@cache
def compiled(cpu: str) -> tuple[Program, Library]:
    """The network for a core, and the same kernels for this computer; boards with this core share them."""
    board = next(b for b in map(load_board, BOARDS) if b.target.cpu == cpu)
    program = microc.compile(DIGITS / "digits_int8.tflite", board=board)
    return program, program.library()


def explained(project: Project) -> tuple[int, int, int]:
    """The sums over all symbols, every one of which has an owner."""
    report = measure_firmware(project)
    parts = report.parts()
    assert parts["weights"]["text"] == project.manifest["const_bytes"] and parts["kernels"]["text"] > 0
    sums = {kind: sum(s.size for s in report.symbols if s.kind == kind) for kind in ("text", "data", "bss")}
    return sums["text"], sums["data"], sums["bss"]


@pytest.mark.cross
@pytest.mark.emulator
@pytest.mark.parametrize("name", BOARDS)
def test_every_board(name: str, tmp_path: Path) -> None:
    board = load_board(name)
    skip_without(board)
    program, library = compiled(board.target.cpu)
    project = open_project(Program(program.module, board).write(tmp_path / "project"))
    run_make(project.folder, ("CFLAGS=-Werror",))
    result = build_project(project)
    assert 0 < result.sizes.flash <= board.flash_bytes
    assert result.sizes.static_ram + result.sizes.reserved_stack <= board.ram_bytes
    assert explained(project) == size_program(project)
    if not project.emulated and not (board.simulated and find_program_or_simulator(board.raw["simulator"]["argv"][0])):
        return
    with Device(project) as device:
        inputs = draw_input_sets(device.project.manifest, device.inputs, 2)
        layers, difference = compare_board_with_host(device, library, inputs, tolerance=0)
        assert difference is None and len(layers) == len(device.kernels)
        image = np.load(DIGITS / "digits_test.npz")["images"][0]
        array = (np.round(image / 16 * 255) - 128).astype(np.int8).reshape(1, 8, 8, 1)
        assert np.array_equal(device.run(array), library(array))
        assert device.last is not None and device.last.mean > 0
        if name in REPEATING:
            ticks = []
            for _ in range(2):
                device.set_inputs(array)
                ticks.append(device.kernel_ticks())
            products = 16 if board.target.has("lanes") else 1  # of bytes, in an instruction
            assert ticks[0] == ticks[1] and device.clock.counts_instructions
            assert device.clock.convert_ticks(sum(ticks[0])) > program.module.macs / products
            stack = device.stats().stack_bytes
            assert stack is not None and 0 < stack < 2048


def test_there_are_many() -> None:
    virtual = [name for name in BOARDS if load_board(name).virtual]
    assert len(virtual) >= 20
    assert len(BOARDS) >= 40
