# SPDX-License-Identifier: Apache-2.0
"""Small networks on both cores of every board that has two: they build, and agree with this computer where they boot."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.base import file_access
from microc.cli import main
from microc.compiler.bundle import Bundle
from microc.device.boards import list_boards, load_board
from microc.device.toolchain import run_make
from microc.run.board_project import open_project
from microc.run.data.samples import draw_input_sets
from microc.run.session import Device
from microc.run.verification import compare_board_with_host
from microc.target import Board
from tests.device.smoke import skip_without
from tests.support import digits
from tests.transform.streams import Sequence

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
    if project.needs_hardware:
        return
    library = program.library()  # while no emulator takes the other CPU
    with Device(project) as device:
        inputs = draw_input_sets(device.project.manifest, device.inputs, runs)
        layers, difference = compare_board_with_host(device, library, inputs, tolerance=0)
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


@pytest.fixture(scope="module", params=["mps2-an521", "raspberry-pi-pico"])
def firmware(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Path]:
    """Firmware of two networks that takes code for tuning: one network is run as a whole, the other one is a stream."""
    board = load_board(request.param)
    skip_without(board)
    net = Sequence(3, integers=True, width=4, channels=8)
    middle = net.conv(net.x, (3, 3), channels=16, padding=(2, 1, 0, 1))
    stream = net.graph(net.conv(middle, (3, 1), channels=8, padding=(2, 0, 0, 0)))
    both = microc.bundle(
        microc.compile(digits.INT8, board=board, cores=2, protocol="tuning", name="digits"),
        microc.compile(stream, board=board, cores=2, protocol="tuning", stream=1, name="sequence"),
    )
    folder = both.write(tmp_path_factory.mktemp("two") / "project")
    run_make(folder, ("CFLAGS=-Werror",))
    return both, folder


@pytest.mark.cross
@pytest.mark.emulator
def test_a_stream_beside_another_network(firmware: tuple[Bundle, Path]) -> None:
    both, folder = firmware
    for program, name in zip(both.programs, ("digits", "sequence"), strict=True):
        project = open_project(folder, name)
        assert any(kernel.get("cores") == 2 for kernel in project.manifest["kernels"])
        library = program.library()
        with Device(project) as device:
            inputs = draw_input_sets(
                project.manifest, device.inputs, 4
            )  # four steps of the stream, whose state goes on
            _, difference = compare_board_with_host(device, library, inputs, tolerance=0)
            assert difference is None
            stats = device.stats()
            assert stats.stack_bytes and stats.core1_stack_bytes
            assert stats.core1_stack_bytes <= project.manifest["stack_bound"]


@pytest.mark.cross
@pytest.mark.emulator
def test_loaded_code_runs_on_one_core(firmware: tuple[Bundle, Path]) -> None:
    """A network that two cores share is loaded beside them: the core that calls it runs both halves."""
    project = open_project(firmware[1], "digits")
    with Device(project) as device:
        image = digits.images(1)[0]
        want = device.run(image)
        before = device.stats().core1_stack_bytes
        loaded = device.load(microc.compile(digits.INT8, board=project.board, cores=2))
        assert np.array_equal(np.asarray(loaded(image)), np.asarray(want))
        assert device.stats().core1_stack_bytes == before


@pytest.mark.cross
@pytest.mark.emulator
def test_a_profile_shows_both_cores(firmware: tuple[Bundle, Path], capsys: pytest.CaptureFixture[str]) -> None:
    command = ["profile", str(firmware[1]), "--network", "digits"]
    assert main([*command, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    shared = [kernel for kernel in data["kernels"] if kernel["cores"] == 2]
    assert 0 < len(shared) < len(data["kernels"])
    assert 0 < data["core1_stack"] < data["stack"]
    assert data["ram"] <= firmware[0].report()["ram"]  # the estimate counts what the second core needs
    assert main(command) == 0
    share = 100 * sum(kernel["share"] for kernel in shared)
    expected = f"two cores: {len(shared)} of {len(data['kernels'])} kernels, {share:.1f} % of the time; stack: {data['stack']:,}"
    assert expected in " ".join(capsys.readouterr().out.split())


@pytest.mark.cross
@pytest.mark.emulator
def test_boards_of_one_core_and_of_two_in_one_bench(capsys: pytest.CaptureFixture[str]) -> None:
    """The board of one core has a row that says why it has no figures."""
    skip_without(load_board("mps2-an521"))
    assert main(["bench", str(digits.INT8), "--boards", "mps2-an521,mps2-an386", "--cores", "2", "--json"]) == 0
    two, one = json.loads(capsys.readouterr().out)["boards"]
    assert two["error"] is None and two["time"] and two["shared_kernels"] > 1
    assert one["time"] is None and "cores: got 2, expected 1" in one["error"]["what"]
