# SPDX-License-Identifier: Apache-2.0
"""Projects as running firmware: built, booted, spoken to, compared with the host."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.cli import main
from microc.codegen.project.manifest import SCHEMA_VERSION
from microc.compiler.options import Options
from microc.device import transport
from microc.device.boards import load_board
from microc.errors import DeviceError, FitError, OutputError, ToolError, UsageError
from microc.project.checks import check_model
from microc.run import board_project
from microc.run.comparison import compare_bits
from microc.run.data.samples import draw_input_sets
from microc.run.verification import compare_board_with_host
from tests.device.smoke import needs
from tests.support import digits
from tests.support.corpus import models


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> board_project.Project:
    program = microc.compile(digits.INT8, board="host")
    project = board_project.open_project(program.write(tmp_path_factory.mktemp("digits") / "host"))
    board_project.build_project(project)
    return project


@pytest.fixture(scope="module")
def device(host: board_project.Project) -> Iterator[microc.Device]:
    with microc.Device(host) as device:
        yield device


def test_run(device: microc.Device) -> None:
    library = microc.compile(digits.INT8)
    for image in digits.images(10):
        assert np.array_equal(np.asarray(device.run(image)), np.asarray(library(image)))
    assert device.last is not None and device.last.max > 0
    assert not device.clock.counts_instructions
    assert device.time(3).count == 3
    assert device.stats().bad_frames == 0


def test_profile(device: microc.Device) -> None:
    device.set_inputs(digits.images(1)[0])
    result = device.profile()
    assert result.macs == 30528 and result.ticks == sum(k.ticks for k in result.kernels)
    assert sum(k.share for k in result.kernels) == pytest.approx(1.0)
    assert result.unit == "ticks" and result.time == result.ticks > 0 and result.size is not None


def test_verify_agrees(host: board_project.Project, device: microc.Device) -> None:
    layers, difference = compare_board_with_host(
        device, board_project.build_host_library(host), draw_input_sets(device.project.manifest, device.inputs, 2)
    )
    assert difference is None
    assert [layer.kernel for layer in layers] == list(range(len(device.kernels)))
    assert all(layer.elements > 0 and layer.error == 0 for layer in layers)


def test_floats_are_given_a_tolerance() -> None:
    x = np.array([1.0, -8.0, np.nan, np.inf, 0.0], np.float32)
    assert not compare_bits(x, x, 0.0).wrong.any() and not compare_bits(x, x, 1e-6).wrong.any()
    near = x.copy()
    near[0] += np.float32(2**-23)
    assert compare_bits(near, x, 0.0).wrong.sum() == 1
    close = compare_bits(near, x, 1e-6)
    assert not close.wrong.any() and close.error == 2**-23
    for k, value in enumerate((1.1, -7.9, 0.0, -np.inf, 0.1)):
        far = x.copy()
        far[k] = value
        assert compare_bits(far, x, 1e-6).wrong.nonzero()[0].tolist() == [k]
    assert compare_bits(np.array([1, 2], np.int32), np.array([1, 3], np.int32), 0.5).wrong.sum() == 1
    assert compare_bits(np.array([0.0]), np.array([-0.0]), 0.0).wrong.all()


@needs("arm-none-eabi-gcc", "qemu-system-arm")
@pytest.mark.cross
@pytest.mark.emulator
def test_float_models_agree_on_a_board(tmp_path: Path) -> None:
    """Every kernel but the softmax, which calls the C library's expf, agrees in every bit."""
    project = board_project.open_project(microc.compile(digits.FLOAT, board="mps2-an386").write(tmp_path / "float"))
    board_project.build_project(project)
    library = board_project.build_host_library(project)
    with microc.Device(project) as device:
        inputs = draw_input_sets(device.project.manifest, device.inputs, 2)
        layers, difference = compare_board_with_host(device, library, inputs)
    assert difference is None
    assert all(layer.error == 0 or "softmax" in layer.op for layer in layers)


def test_verify_finds_the_first_difference(host: board_project.Project, device: microc.Device, tmp_path: Path) -> None:
    other = shutil.copytree(host.folder, tmp_path / "other")
    data = other / "model_data.c"
    text = data.read_text()
    start = text.index("{", text.index("depthwise2_addend"))
    data.write_text(text[: start + 1] + "99999," + text[text.index(",", start) + 1 :])
    library = board_project.build_host_library(board_project.open_project(other))
    _, difference = compare_board_with_host(device, library, draw_input_sets(device.project.manifest, device.inputs, 2))
    assert difference is not None and difference.sample == 0
    assert difference.tensor == "depthwise2" and difference.board != difference.host
    assert 0 < difference.count < difference.elements and difference.index[-1] == 0
    error = difference.error("board host")
    assert error.exit_code == 1 and "depthwise2[0," in str(error)


@pytest.mark.corpus
def test_state_lives_from_run_to_run(tmp_path: Path) -> None:
    """A streaming network: its state goes on between samples on both sides, and a reset forgets it."""
    (path,) = models("mww_v2_vad.tflite")
    project = board_project.open_project(microc.compile(path, board="host").write(tmp_path / "vad"))
    board_project.build_project(project)
    with microc.Device(project) as device:
        arrays = draw_input_sets(device.project.manifest, device.inputs, 4)
        _, difference = compare_board_with_host(device, board_project.build_host_library(project), arrays)
        assert difference is None
        device.reset()
        first = [np.asarray(device.run(*a)).tolist() for a in arrays]
        again = [np.asarray(device.run(*a)).tolist() for a in arrays]
        device.reset()
        assert [np.asarray(device.run(*a)).tolist() for a in arrays] == first != again


def test_wrong_inputs(device: microc.Device) -> None:
    image = digits.images(1)[0]
    with pytest.raises(UsageError, match="takes 1 inputs, 0 were given"):
        device.run()
    with pytest.raises(UsageError, match="got shape"):
        device.run(image[0])
    with pytest.raises(UsageError, match="expected int8"):
        device.run(image.astype(np.float64))
    with pytest.raises(UsageError, match="no tensor"):
        device.read("nothing")
    with pytest.raises(UsageError, match="samples: got 0"):
        draw_input_sets(device.project.manifest, device.inputs, 0)


def test_another_build_is_refused(host: board_project.Project, tmp_path: Path) -> None:
    other = shutil.copytree(host.folder, tmp_path / "other")
    manifest = json.loads((other / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps({**manifest, "fingerprint": "0" * 32}))
    with pytest.raises(DeviceError, match="another build"), microc.Device(other):
        pass


def test_no_project(host: board_project.Project, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="there is no folder"):
        microc.open_project(tmp_path / "absent")
    with pytest.raises(OutputError, match="no project of microc"):
        microc.open_project(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(OutputError, match="damaged"):
        microc.open_project(tmp_path)
    (tmp_path / "manifest.json").write_text('{"schema_version": 99, "board": "host"}')
    with pytest.raises(OutputError, match="schema version 99"):
        microc.open_project(tmp_path)
    (tmp_path / "manifest.json").write_text(f'{{"schema_version": {SCHEMA_VERSION}, "board": "host"}}')
    with pytest.raises(OutputError, match="is a required property"):
        microc.open_project(tmp_path)
    unbuilt = shutil.copytree(host.folder, tmp_path / "unbuilt")
    (unbuilt / "firmware.elf").unlink()
    with pytest.raises(UsageError, match="not built"), microc.Device(unbuilt):
        pass


def test_a_broken_source_is_shown(host: board_project.Project, tmp_path: Path) -> None:
    other = shutil.copytree(host.folder, tmp_path / "other")
    (other / "main.c").write_text("int main(void) { return nonsense; }\n")
    with pytest.raises(ToolError, match="nonsense"):
        board_project.build_project(board_project.open_project(other))


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a line on which nobody ever answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        threading.Thread(target=_accept, args=(server,), daemon=True).start()
        yield f"socket://127.0.0.1:{server.getsockname()[1]}"


def _accept(server: socket.socket) -> None:
    try:
        connection, _ = server.accept()
    except OSError:
        return
    with connection:
        while connection.recv(4096):
            pass


def test_a_silent_board(host: board_project.Project, silent: str) -> None:
    begin = time.monotonic()
    with pytest.raises(DeviceError, match="no answer to HELLO"), microc.Device(host, silent, patience=0.4):
        pass
    assert 0.2 < time.monotonic() - begin < 3


def test_a_silent_pty(host: board_project.Project) -> None:
    ours, theirs = os.openpty()
    try:
        with pytest.raises(DeviceError, match="no answer"), microc.Device(host, os.ttyname(theirs), patience=0.3):
            pass
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_port_that_is_not_there(host: board_project.Project) -> None:
    with pytest.raises(DeviceError, match="cannot open the port"), microc.Device(host, "/dev/ttyNOWHERE"):
        pass


def test_hardware_needs_a_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "list_ports", lambda: ())
    path = digits.small_board(tmp_path, 1 << 20, 1 << 17)
    text = path.read_text()
    path.write_text(text[: text.index("# The emulated TIM2 counts")])
    project = microc.open_project(microc.compile(digits.INT8, board=path).write(tmp_path / "out"))
    assert project.board.name == "small" and not project.emulated
    with pytest.raises(UsageError, match="on no serial port that microc recognises"), microc.Device(project):
        pass


@needs("arm-none-eabi-gcc")
@pytest.mark.cross
def test_the_linker_has_the_last_word(tmp_path: Path) -> None:
    """The estimate leaves a margin; what slips through it is refused with numbers all the same."""
    program = microc.compile(digits.INT8, board="netduinoplus2")
    project = board_project.open_project(program.write(tmp_path / "out"))
    script = project.folder / "board" / "linker.ld"
    script.write_text(script.read_text().replace("LENGTH = 0x100000", "LENGTH = 0x1000"))
    with pytest.raises(FitError, match=r"flash needs \d+ bytes, the board has \d+ \(\d+ too many\)") as caught:
        board_project.build_project(project)
    assert caught.value.exit_code == 4


@needs("arm-none-eabi-gcc")
@pytest.mark.cross
def test_estimates_do_not_exceed_the_truth(tmp_path: Path) -> None:
    program = microc.compile(digits.INT8, board="netduinoplus2")
    sizes = board_project.build_project(board_project.open_project(program.write(tmp_path / "out"))).sizes
    report = program.report()
    assert 0.8 * sizes.flash <= report["flash"] <= 1.05 * sizes.flash
    assert (
        0.9 * (sizes.static_ram + sizes.reserved_stack)
        <= report["ram_taken"]
        <= sizes.static_ram + sizes.reserved_stack
    )
    assert 0.9 * (sizes.static_ram + report["stack_bound"]) <= report["ram"] <= sizes.static_ram + report["stack_bound"]


@needs("clang")
def test_host_project_with_clang(host: board_project.Project, tmp_path: Path) -> None:
    other = shutil.copytree(host.folder, tmp_path / "other")
    make = ["make", "-B", "-C", str(other), "CC=clang", "CFLAGS=-Werror"]
    done = subprocess.run(make, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@needs("cmake")
def test_cmake(host: board_project.Project, tmp_path: Path) -> None:
    subprocess.run(["cmake", "-S", str(host.folder), "-B", str(tmp_path)], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", str(tmp_path)], check=True, capture_output=True)
    assert (tmp_path / "firmware.elf").is_file()


@pytest.mark.parametrize("path", [digits.INT8, digits.FLOAT, digits.QDQ], ids=lambda p: p.stem)
def test_check(path: Path) -> None:
    board = load_board("microbit")
    found = check_model(path, Options(), board)
    program = microc.compile(path, board="host")
    assert found.verdict == "maybe" and found.macs == program.module.macs == 30528
    assert program.module.plan is not None
    assert 0 < found.least.arena <= found.live <= program.module.plan.size
    assert found.operators["conv2d"] == 4


def test_check_refuses(tmp_path: Path) -> None:
    board = load_board(digits.small_board(tmp_path, 4096, 8192 + 100))
    reasons = check_model(digits.INT8, Options(), board).reasons
    assert len(reasons) == 2 and "4096 of flash" in reasons[0] and "of RAM" in reasons[1]


@needs("arm-none-eabi-gcc")
@pytest.mark.cross
@pytest.mark.parametrize("board", ["microbit", "mps2-an386"])
def test_compile_and_check_say_what_build_finds(board: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The C library and the RPC count: an estimate alone said 14,758 bytes for a firmware of 20,052."""
    assert main(["compile", str(digits.FLOAT), "--board", board, "-o", str(tmp_path / "out"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["report"]
    sizes = board_project.build_project(board_project.open_project(tmp_path / "out")).sizes
    assert report["flash_linked"] and report["flash"] == sizes.flash
    found = check_model(digits.FLOAT, Options(), load_board(board), exact=True)
    assert found.verdict == "yes" and found.built and found.need is not None
    assert (found.need.flash, found.need.required_board_ram) == (sizes.flash, sizes.static_ram + sizes.reserved_stack)
    assert found.need.ram == sizes.static_ram + report["stack_bound"]


@needs("arm-none-eabi-gcc")
@pytest.mark.cross
def test_compile_writes_nothing_that_is_not_linked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The estimate leaves open whether 34,816 bytes are enough; the linker knows."""
    board, out = digits.small_board(tmp_path, 34 * 1024, 0x4000), tmp_path / "out"
    assert main(["compile", str(digits.FLOAT), "--board", str(board), "-o", str(out)]) == 4
    assert "too many" in capsys.readouterr().err and not out.exists()
