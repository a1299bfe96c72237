"""Simulated boards: a program that a board's file names runs the firmware, and is asked as a board on a line is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.device.boards import load_board
from microc.driver.measure.firmware import build, open_project
from microc.driver.measure.session import Device
from microc.errors import ToolError, UsageError
from microc.target import Board
from microc.tuning.on_board import BoardRunner

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits_int8.tflite"


def simulated_host(*argv: str) -> Board:
    """This computer, whose firmware is started by a program."""
    host = load_board("host")
    return replace(host, raw={**host.raw, "simulator": {"argv": [*argv], "install": "make one"}})


def test_the_program_is_started_with_the_image(tmp_path: Path) -> None:
    project = open_project(microc.compile(DIGITS, board=simulated_host("env", "{elf}")).write(tmp_path / "project"))
    with pytest.raises(UsageError, match="no such image"):
        Device(project)
    build(project)
    with Device(project) as device:
        device.set_inputs(np.zeros(device.inputs[0]["shape"], np.int8))
        assert device.time(1).max > 0
        assert (device.emulated, device.clock.unit) == (False, "ticks")


def test_a_missing_program_is_told_with_the_way_to_get_it(tmp_path: Path) -> None:
    program = microc.compile(DIGITS, board=simulated_host("no-such-simulator", "{elf}"))
    project = open_project(program.write(tmp_path / "project"))
    project.elf.write_bytes(b"")
    with pytest.raises(ToolError, match="no-such-simulator is not on PATH") as caught:
        Device(project)
    assert caught.value.hint == "make one"


def test_a_simulated_board_can_be_measured_on() -> None:
    assert BoardRunner(load_board("hazard3-sim")).unit == "ticks"


def test_files_name_simulators(tmp_path: Path) -> None:
    text = (microc.paths.boards() / "hazard3-sim.toml").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert load_board(path).raw["simulator"]["argv"] == ["hazard3-sim", "{elf}"]
    path.write_text(text.replace('"{elf}"]', '"{elf}", "a\\nb"]'))
    with pytest.raises(UsageError, match=r"simulator\.argv"):
        load_board(path)
