# SPDX-License-Identifier: Apache-2.0
"""Every runner against a fake of its program: the exact command line, missing probes, time-outs, drives."""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from microc.base import file_access
from microc.device.boards import list_boards, list_runners, list_runners_of_board, load_board, select_runner
from microc.device.flashing import encode_intel_hex, flash_image, join_segments, read_segments
from microc.errors import DeviceError, ToolError, UsageError
from microc.target import Board
from tests.device.smoke import build, needs

Fake = Callable[..., Path]

JLINK = "JLinkExe -NoGui 1 -ExitOnError 1 -if SWD -speed 4000 -autoconnect 1 -device STM32F446RE -CommandFile x.jlink"
NRFUTIL = (
    "nrfutil device program --firmware x.hex --options "
    "chip_erase_mode=ERASE_RANGES_TOUCHED_BY_FIRMWARE,verify=VERIFY_READ,reset=RESET_SYSTEM"
)
COMMANDS = [
    ("nucleo-f446re", "openocd", 'openocd -f board/st_nucleo_f4.cfg -c program "x.elf" verify reset exit'),
    ("nucleo-f446re", "pyocd", "pyocd flash -W -t stm32f446retx x.elf"),
    ("nucleo-f446re", "st-flash", "st-flash --reset write x.bin 0x8000000"),
    ("nucleo-f446re", "probe-rs", "probe-rs download --non-interactive --chip STM32F446RE x.elf"),
    ("nucleo-f446re", "jlink", JLINK),
    ("nrf52840dk", "nrfutil", NRFUTIL),
    ("arduino-uno", "avrdude", "avrdude -p m328p -c arduino -b 115200 -P PORT -D -U flash:w:x.hex:i"),
    ("arduino-mega", "avrdude", "avrdude -p m2560 -c wiring -b 115200 -P PORT -D -U flash:w:x.hex:i"),
    ("feather-m4", "bossac", "bossac -p PORT -e -w -v -R --offset=0x4000 x.bin"),
    ("d1-mini", "esptool-esp8266", "esptool --chip esp8266 --port PORT --baud 460800 write-flash 0x0 x.esp"),
    ("esp32-c3", "esptool", "esptool --chip esp32c3 --port PORT --baud 460800 write-flash 0x0 x.bin"),
    ("esp32-s3", "idf", "idf.py -C . -B ./build -p PORT flash"),
    ("arduino-nano33ble", "bossac", "bossac -p PORT -e -w -v -R x.bin"),
    ("raspberry-pi-pico", "picotool", "picotool load --verify --execute x.elf -t elf"),
    ("raspberry-pi-pico", "uf2", "cp x.uf2 {drive}"),
    ("teensy41", "teensy", "teensy_loader_cli --mcu=TEENSY41 -v -w x.hex"),
    (
        "lm3s6965evb",
        "gdb",
        "gdb-multiarch -nx -batch -ex target remote {gdb} -ex load -ex compare-sections -ex monitor system_reset x.elf",
    ),
]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """A PATH of fakes alone: each writes its arguments down, prints and ends as it is told."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def fake(name: str, says: str = "", code: int = 0, script: str = "") -> Path:
        said = tmp_path / f"{name}.said"
        path = folder / name
        body = (
            f"import sys\nopen({str(said)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\nprint({says!r})\n{script}\n"
        )
        path.write_text(f"#!{sys.executable}\n{body}sys.exit({code})\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return said

    return fake


@pytest.fixture(scope="module")
def pico(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(load_board("raspberry-pi-pico"), tmp_path_factory.mktemp("pico"))


def empty(folder: Path) -> Path:
    """A file where the image should be, for runners that read it themselves."""
    path = folder / "x.elf"
    path.write_bytes(b"")
    return path


@pytest.mark.parametrize(("board", "runner", "command"), COMMANDS, ids=[f"{b}-{r}" for b, r, _ in COMMANDS])
def test_dry_run(board: str, runner: str, command: str) -> None:
    commands = flash_image(load_board(board), Path("x.elf"), runner=runner, port="PORT", dry_run=True)
    assert " ".join(commands[0]) == command


def test_all_are_tried() -> None:
    """Every runner that comes along is in the list above."""
    assert {runner for _, runner, _ in COMMANDS} == set(list_runners())


@pytest.mark.parametrize("name", list_boards())
def test_boards_fill_all_but_what_a_run_knows(name: str) -> None:
    for runner in list_runners_of_board(load_board(name)):
        for command in flash_image(load_board(name), Path("x.elf"), runner=runner.name, port="PORT", dry_run=True):
            left = [word for word in command if "{" in word]
            assert all(word in ("{drive}", "{gdb}", "target remote {gdb}") for word in left), left


def test_a_run_is_the_dry_run(programs: Fake, tmp_path: Path) -> None:
    elf = empty(tmp_path)
    said = programs("openocd")
    commands = flash_image(load_board("nucleo-f446re"), elf)
    assert said.read_text() == " ".join(commands[0][1:]) + "\n"
    assert commands == flash_image(load_board("nucleo-f446re"), elf, dry_run=True)


def test_two_commands(programs: Fake, tmp_path: Path) -> None:
    said = programs("probe-rs")
    flash_image(load_board("nucleo-f446re"), empty(tmp_path))
    first, second = said.read_text().splitlines()
    assert first.startswith("download") and second == "reset --non-interactive --chip STM32F446RE"


@pytest.mark.cross
@needs("arm-none-eabi-gcc")
def test_images_are_made(pico: Path, programs: Fake) -> None:
    """The J-Link's commands name a hex file, which holds the program."""
    programs("JLinkExe")
    board = load_board("raspberry-pi-pico")
    flash_image(board, pico, runner="jlink")
    lines = pico.with_suffix(".jlink").read_text().splitlines()
    assert lines == [f"loadfile {pico.with_suffix('.hex')}", "r", "g", "exit"]
    assert pico.with_suffix(".hex").read_text() == encode_intel_hex(read_segments(pico))
    programs("bossac")
    flash_image(load_board("feather-m4"), pico, runner="bossac", port="/dev/ttyACM7")
    assert pico.with_suffix(".bin").read_bytes() == join_segments(read_segments(pico))


@pytest.mark.cross
@needs("arm-none-eabi-gcc")
def test_the_drive_of_a_boot_loader(
    pico: Path, programs: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = load_board("raspberry-pi-pico")
    said = programs("cp")
    programs("picotool")
    monkeypatch.setenv("MICROC_DRIVES", str(tmp_path / "media"))
    assert select_runner(board).name == "picotool"  # there is no drive
    with pytest.raises(ToolError, match="no drive RPI-RP2") as caught:
        flash_image(board, pico, runner="uf2")
    assert "BOOTSEL" in caught.value.hint
    (tmp_path / "media" / "RPI-RP2").mkdir(parents=True)
    assert select_runner(board).name == "uf2"
    flash_image(board, pico)
    assert said.read_text() == f"{pico.with_suffix('.uf2')} {tmp_path / 'media' / 'RPI-RP2'}\n"
    assert len(pico.with_suffix(".uf2").read_bytes()) % 512 == 0


def test_nothing_is_here(programs: Fake, tmp_path: Path) -> None:
    """All ways are named, with what each of them lacks."""
    with pytest.raises(ToolError) as caught:
        flash_image(load_board("nucleo-f446re"), empty(tmp_path))
    for word in ("openocd is not on PATH", "pip install pyocd", "stlink-tools", "probe.rs", "SEGGER"):
        assert word in caught.value.what


@pytest.mark.parametrize(
    ("board", "program", "says", "means"),
    [
        ("nucleo-f446re", "openocd", "Error: open failed", "no probe answers"),
        ("nucleo-f446re", "pyocd", "No available debug probes are connected", "no probe is connected"),
        ("nucleo-f446re", "st-flash", "Couldn't find any ST-Link devices", "no ST-Link is connected"),
        ("nrf52840dk", "nrfutil", "No devices found", "no board is connected"),
        ("arduino-uno", "avrdude", "stk500_getsync(): not in sync", "the boot loader does not answer"),
        ("feather-m4", "bossac", "No device found on ttyACM0", "no boot loader answers"),
        (
            "raspberry-pi-pico",
            "picotool",
            "No accessible RP2040 devices in BOOTSEL mode",
            "no board in its boot loader",
        ),
    ],
)
@pytest.mark.cross
@needs("arm-none-eabi-gcc")
@pytest.mark.parametrize("code", [0, 1])
def test_a_missing_board_is_told(
    board: str, program: str, says: str, means: str, code: int, pico: Path, programs: Fake
) -> None:
    """Whatever the exit code: st-flash, for one, may report this with 0."""
    programs(program, says=says, code=code)
    with pytest.raises(DeviceError) as caught:
        flash_image(load_board(board), pico, runner=program, port="PORT")
    assert means in caught.value.what and says in caught.value.what and caught.value.hint


def test_a_port_is_needed(programs: Fake, tmp_path: Path) -> None:
    programs("avrdude")
    with pytest.raises(UsageError, match="expected the board's serial port") as caught:
        flash_image(load_board("arduino-uno"), empty(tmp_path))
    assert "microc ports" in caught.value.hint


def with_runner(name: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> Board:
    board = load_board(name)
    hasty = tuple(replace(runner, seconds=seconds) for runner in list_runners_of_board(board))
    monkeypatch.setattr("microc.device.flashing.select_runner", lambda board, name: hasty[0])
    return board


def test_a_runner_that_hangs(programs: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs("openocd", script="import time\ntime.sleep(60)")
    board = with_runner("nucleo-f446re", 0.5, monkeypatch)
    with pytest.raises(DeviceError, match=r"did not finish in 0\.5 s"):
        flash_image(board, empty(tmp_path))


def test_a_command_of_the_boards_own(programs: Fake, tmp_path: Path) -> None:
    said = programs("FVP_Corstone_SSE-300_Ethos-U55")
    flash_image(load_board("corstone-300"), empty(tmp_path))
    assert said.read_text().rstrip().endswith(f"-a {tmp_path / 'x.elf'}")


def test_an_unknown_runner_is_refused_in_its_line(tmp_path: Path) -> None:
    text = tmp_path / "mine.toml"
    source = (file_access.boards_folder() / "nucleo-f446re.toml").read_text()
    text.write_text(source.replace('name = "openocd"', 'name = "opencod"'))
    with pytest.raises(UsageError, match="there is no runner 'opencod'") as caught:
        load_board(text)
    line = text.read_text().splitlines().index('name = "opencod"') + 1
    assert caught.value.where.endswith(f":{line}") and "openocd" in caught.value.hint
