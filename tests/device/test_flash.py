# SPDX-License-Identifier: Apache-2.0
"""Runners: which one, which command, and a true load into an emulated board."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from microc.device.boards import list_runners_of_board, load_board, select_runner
from microc.device.emulators import Emulator
from microc.device.flashing import flash_image, load_image_into_emulator
from microc.errors import DeviceError, ToolError, UsageError
from tests.device.smoke import FAMILIES, Line, build, needs

GDB = (
    "gdb-multiarch", "-nx", "-batch", "-ex", "target remote {gdb}", "-ex", "load", "-ex", "compare-sections",
    "-ex", "monitor system_reset", "x.elf",
)  # fmt: skip


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty PATH, to put fakes on."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def fake(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text("#!/bin/sh\n" + script + "\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(
    ("board", "runner", "command"),
    [
        ("mps2-an386", "", GDB),
        ("netduinoplus2", "gdb", GDB),
        (
            "netduinoplus2",
            "openocd",
            (
                "openocd",
                "-f",
                "interface/stlink.cfg",
                "-f",
                "target/stm32f4x.cfg",
                "-c",
                'program "x.elf" verify reset exit',
            ),
        ),
        ("microbit", "pyocd", ("pyocd", "flash", "-W", "-t", "nrf51", "x.elf")),
    ],
)
def test_dry_run(board: str, runner: str, command: tuple[str, ...]) -> None:
    assert flash_image(load_board(board), Path("x.elf"), runner=runner, dry_run=True) == (command,)


def test_first_found_wins(programs: Path) -> None:
    board = load_board("netduinoplus2")
    assert select_runner(board).name == "gdb"
    fake(programs, "openocd", "true")
    assert select_runner(board).name == "openocd"
    fake(programs, "gdb-multiarch", "true")
    assert select_runner(board).name == "gdb"
    assert [r.name for r in list_runners_of_board(board)] == ["gdb", "openocd"]


def test_wrong_choices(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not flashed"):
        flash_image(load_board("host"), Path("x"))
    with pytest.raises(UsageError, match="no runner 'jlink'") as caught:
        flash_image(load_board("microbit"), Path("x"), runner="jlink")
    assert caught.value.hint == "choose from: gdb, pyocd"
    with pytest.raises(UsageError, match="the image does not exist"):
        flash_image(load_board("microbit"), tmp_path / "x")


def test_a_probe_runner(programs: Path, tmp_path: Path) -> None:
    image = tmp_path / "x.elf"
    image.write_bytes(b"")
    board = load_board("netduinoplus2")
    with pytest.raises(ToolError) as missing:
        flash_image(board, image, runner="openocd")
    assert missing.value.hint.endswith("openocd")
    fake(programs, "openocd", f'echo "$@" > {tmp_path}/said')
    flash_image(board, image, runner="openocd", extra=("-d2",))
    assert (tmp_path / "said").read_text().endswith(f'program "{image}" verify reset exit -d2\n')
    fake(programs, "openocd", "echo 'Error: open failed'; exit 1")
    with pytest.raises(DeviceError, match=r"(?s)no probe answers.*Error: open failed"):
        flash_image(board, image, runner="openocd")


def test_a_runner_that_repeats_what_a_board_says(programs: Path, tmp_path: Path) -> None:
    """Megabytes, and sequences for the terminal: the last lines are shown, as text."""
    image = tmp_path / "x.elf"
    image.write_bytes(b"")
    fake(programs, "openocd", "/usr/bin/head -c 5000000 /dev/zero; printf '\\n\\033[2Jlast\\007\\n'; exit 1")
    with pytest.raises(ToolError) as failed:
        flash_image(load_board("netduinoplus2"), image, runner="openocd")
    assert failed.value.what.endswith("\n    ?[2Jlast?") and len(failed.value.what) < 1000
    assert failed.value.what.replace("\n", "").isprintable()


@pytest.mark.cross
@pytest.mark.emulator
@needs("arm-none-eabi-gcc", "qemu-system-arm", "gdb-multiarch")
@pytest.mark.parametrize("name", FAMILIES)
def test_load_into_an_empty_board(name: str, tmp_path: Path) -> None:
    board = load_board(name)
    elf = build(board, tmp_path)
    with Emulator(board, None, debug=True) as emulator:
        for argument in (7, 9):  # the second time over a running program
            assert load_image_into_emulator(emulator, elf)[0] == "gdb-multiarch"
            with Line(emulator.url) as line:
                line.command("M", argument)
                assert line.words(3) == (0x12345678, 0, argument * 3 // 2)


@pytest.mark.cross
@pytest.mark.emulator
@needs("arm-none-eabi-gcc", "qemu-system-arm", "gdb-multiarch")
def test_an_image_for_another_board_is_noticed(tmp_path: Path) -> None:
    elf = build(load_board("netduinoplus2"), tmp_path)
    assert flash_image(load_board("netduinoplus2"), elf)[0][0] == "gdb-multiarch"
    with pytest.raises(ToolError):
        flash_image(load_board("mps2-an386"), elf)  # there is no memory at 0x08000000


@pytest.mark.cross
@pytest.mark.emulator
@needs("arm-none-eabi-gcc", "qemu-system-arm")
def test_without_gdb_the_board_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = load_board("mps2-an386")
    elf = build(board, tmp_path)
    with Emulator(board, elf, debug=True) as emulator:
        monkeypatch.setattr("microc.device.boards.shutil.which", lambda program: None if "gdb" in program else program)
        assert "-kernel" in load_image_into_emulator(emulator, elf)
        with Line(emulator.url) as line:
            line.command("M", 7)
            assert line.words(3) == (0x12345678, 0, 10)
