# SPDX-License-Identifier: Apache-2.0
"""Several networks in one firmware, over one arena."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import microc
from microc.cli import main
from microc.device.client import Client
from microc.device.transport import PipeTransport
from microc.errors import FitError, UsageError
from microc.graph.ir import Graph, Node, TensorType
from microc.run.board_project import build_host_library, build_project, open_project
from microc.run.data.samples import draw_input_sets
from microc.run.verification import compare_board_with_host
from tests.device.smoke import needs
from tests.support import digits


def summing() -> Graph:
    """y = x + all x before."""
    row = TensorType((1, 8), "int32")
    node = Node("add", ("x", "s"), ("y",))
    types = dict.fromkeys(("x", "s", "y"), row)
    return Graph("summing", ("x",), ("y",), (node,), types, state={"s": np.zeros((1, 8), np.int32)}, updates={"s": "y"})


def programs(board: str) -> tuple[microc.Program, ...]:
    return (
        microc.compile(digits.INT8, board=board, name="small"),
        microc.compile(digits.FLOAT, board=board, name="large"),
        microc.compile(summing(), board=board),
    )


def check(folder: Path) -> None:
    """Every network agrees with the host in turn, and one with state keeps it while the others run."""
    build_project(open_project(folder))
    for name in ("small", "large", "summing"):
        project = open_project(folder, name)
        library = build_host_library(project)
        with microc.Device(project) as device:
            inputs = draw_input_sets(device.project.manifest, device.inputs, 2)
            layers, difference = compare_board_with_host(device, library, inputs)
        assert difference is None and layers


def test_on_the_host(tmp_path: Path) -> None:
    firmware = microc.bundle(*programs("host"))
    folder = firmware.write(tmp_path / "firmware")
    report = firmware.report()
    arenas = {m["model"]: m["arena"] for m in report["models"]}
    assert report["shared_arena"] == max(arenas["small"], arenas["large"])
    assert report["arena"] == report["shared_arena"] + arenas["summing"]
    check(folder)


@needs("arm-none-eabi-gcc", "qemu-system-arm")
@pytest.mark.cross
@pytest.mark.emulator
def test_on_a_board(tmp_path: Path) -> None:
    check(microc.bundle(*programs("mps2-an386")).write(tmp_path / "firmware"))


def test_state_outlives_the_turns_of_others(tmp_path: Path) -> None:
    folder = microc.bundle(*programs("host")).write(tmp_path / "firmware")
    build_project(open_project(folder))
    line = PipeTransport([str(folder / "firmware.elf")])
    devices = []
    for name in ("summing", "large"):
        project = open_project(folder, name)
        devices.append(microc.Device.over(project, Client(line, model=project.index)))
    summing, large = devices
    ones = np.ones((1, 8), np.int32)
    for turn in range(1, 4):
        summing.client.hello()
        assert np.array_equal(np.asarray(summing.run(ones)), turn * ones)
        large.client.hello()
        large.run(*draw_input_sets(large.project.manifest, large.inputs, 1, turn)[0])
    line.close()


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "firmware"
    assert main(["compile", str(digits.INT8), str(digits.FLOAT), "-o", str(folder)]) == 0
    assert "of them shared" in capsys.readouterr().out
    assert main(["verify", str(folder), "--network", "digits_float"]) == 0
    assert main(["run", str(folder), "--network", "digits"]) == 2
    assert "did you mean digits_int8 or digits_float?" in capsys.readouterr().err
    assert main(["compile", str(digits.INT8), str(digits.INT8), "-o", str(tmp_path / "twice")]) == 2
    assert "would both be called 'digits_int8'" in capsys.readouterr().err


def test_what_does_not_go_together(tmp_path: Path) -> None:
    small, large, _ = programs("host")
    with pytest.raises(UsageError, match="different boards; got host, mps2-an386"):
        microc.bundle(small, microc.compile(digits.INT8, board="mps2-an386"))
    with pytest.raises(UsageError, match="different goals; got optimize balanced, size"):
        microc.bundle(small, microc.compile(digits.FLOAT, board="host", optimize="size"))
    with pytest.raises(UsageError, match="cannot be called 'runtime'"):
        microc.bundle(small, microc.compile(digits.FLOAT, board="host", name="runtime"))
    board = digits.small_board(tmp_path, 20_000 + large.report()["flash"], 16_384)
    with pytest.raises(FitError, match="does not fit small"):
        microc.bundle(
            *(microc.compile(digits.FLOAT, board=board, name=name) for name in ("one", "two", "three"))
        ).write(tmp_path / "none")
    assert not (tmp_path / "none").exists()
