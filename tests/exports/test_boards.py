# SPDX-License-Identifier: Apache-2.0
"""Exports know their board: what build systems call it stands in their files, commands and READMEs; else what stands for all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import microc
from microc.base import file_access
from microc.cli import main
from microc.codegen.exports import Package, build_package
from microc.device.boards import list_boards, load_board, make_board_of_core
from microc.errors import UsageError
from microc.target import Board
from tests.device.smoke import needs
from tests.exports.programs import program, run, said
from tests.exports.test_arduino import CORE
from tests.exports.test_builds import assert_alike
from tests.support import digits

yaml = pytest.importorskip("yaml", reason="needs pyyaml (pip install microc[test])")
NUCLEO = "nucleo-f446re"
FQBN = "STMicroelectronics:stm32:Nucleo_64:pnum=NUCLEO_F446RE"


def exported(board: Board | str, name: str) -> Package:
    """An export of the digits for a board; its C is for this computer, which no id depends on."""
    return build_package(program().module, load_board(board) if isinstance(board, str) else board, name, "test")


def test_a_boards_own_names() -> None:
    arduino, zephyr = exported(NUCLEO, "arduino"), exported(NUCLEO, "zephyr")
    assert f"arduino-cli compile --fqbn {FQBN} " in arduino.commands[1]
    assert zephyr.commands == ("west build -b nucleo_f446re samples/digits_int8_model", "west flash")
    sample = yaml.safe_load(str(zephyr.files["samples/digits_int8_model/sample.yaml"]))
    assert sample["tests"]["sample.digits_int8_model"]["platform_allow"] == "nucleo_f446re"
    platformio = exported(NUCLEO, "platformio")
    assert platformio.commands == ("pio run", "pio run -t upload -t monitor") and "src/main.c" not in platformio.files
    told = str(platformio.files["platformio.ini"])
    assert "[env:nucleo_f446re]\nplatform = ststm32\nboard = nucleo_f446re\nframework = arduino\n" in told
    assert "void loop()" in str(platformio.files["src/main.cpp"])
    cmsis = exported(NUCLEO, "cmsis")
    solution = yaml.safe_load(str(cmsis.files["sample.csolution.yml"]))["solution"]
    assert [pack["pack"] for pack in solution["packs"]] == ["ARM::CMSIS", "Keil::STM32F4xx_DFP@2.17.1"]
    assert solution["target-types"][0]["device"] == "STMicroelectronics::STM32F446RETx"
    assert cmsis.commands[0] == "cpackget add Keil::STM32F4xx_DFP@2.17.1"
    for made, id in (
        (arduino, FQBN),
        (zephyr, "nucleo_f446re"),
        (platformio, "nucleo_f446re"),
        (cmsis, "STM32F446RETx"),
    ):
        assert f"{id}`." in str(made.files["README.md"])


@pytest.mark.parametrize(("board", "chip"), [("esp32-c3", "esp32c3"), ("esp32-s3", "esp32s3")])
def test_a_chip_of_esp_idf(board: str, chip: str) -> None:
    """That of a board which ESP-IDF builds is said once, in [framework]."""
    assert exported(board, "esp-idf").commands[0] == f"idf.py set-target {chip} build"


def test_a_chip_for_cores_without_a_board() -> None:
    for board, chip in (
        (make_board_of_core("host"), "esp32s3"),
        (make_board_of_core("xtensa-lx6"), "esp32s3"),
        (load_board("hazard3-sim"), "esp32c3"),
    ):
        made = exported(board, "esp-idf")
        assert made.commands[0] == f"idf.py set-target {chip} build"
        assert f"for an ESP32-{chip[5:].upper()}" in str(made.files["README.md"])


@pytest.mark.parametrize(
    ("board", "name"),
    [
        ("arduino-mega", "esp-idf"), ("arduino-mega", "zephyr"), ("arduino-uno", "cmsis"), ("mps2-an386", "esp-idf"),
        ("esp32-s3", "cmsis"), ("esp32-c3", "stm32cube"), ("hazard3-sim", "cmsis"),
    ],
)  # fmt: skip
def test_a_build_system_for_other_cores(board: str, name: str) -> None:
    """Its next commands would build for whatever stands for all boards there."""
    with pytest.raises(UsageError, match=f"format {name}: its build system does not build for ") as refused:
        exported(board, name)
    assert "arduino, c, cmake" in refused.value.hint and name not in refused.value.hint.split(", ")


def test_a_machine_of_qemu_is_run() -> None:
    assert exported("mps2-an386", "zephyr").commands[1] == "west build -t run"
    assert exported("microbit", "zephyr").commands[1] == "west flash"  # which is a board, too


@pytest.mark.parametrize(
    ("name", "command", "instead"),
    [
        (
            "arduino",
            "--fqbn BOARD ",
            "`BOARD`, in whose place a board of `arduino-cli board listall` stands that holds the network",
        ),
        ("platformio", ".pio/build/native/program", "this computer"),
        ("zephyr", "west build -b native_sim ", "a program of this computer"),
        ("cmsis", "cpackget add ARM::Cortex_DFP", "a bare core"),
    ],
)
def test_a_board_without_a_name(name: str, command: str, instead: str) -> None:
    """What stands for all boards stays, and the README says so; without a board it says how one is named."""
    made = exported("lm3s811evb", name)
    assert any(command in line for line in made.commands)
    told = str(made.files["README.md"])
    assert "microc knows no name for Stellaris LM3S811" in told and f"the commands are for {instead}." in told
    assert f"The commands are for {instead}; let microc" in str(
        exported(make_board_of_core("host"), name).files["README.md"]
    )


def test_what_an_ide_is_given() -> None:
    """IAR, Keil and MCUXpresso take a list of files, all of which are there."""
    made = exported(NUCLEO, "cmsis")
    table = str(made.files["README.md"]).partition("MCUXpresso")[2].partition("## ")[0]
    named = [word for word in table.split("`") if word.endswith(".c")]
    assert set(named) == {path for path in made.files if path.endswith(".c")} and len(named) == 4


@needs("g++")
def test_platformios_program_is_cpp(tmp_path: Path) -> None:
    """What PlatformIO compiles for a board: C++ with Arduino.h, here a stand-in."""
    microc.compile(digits.INT8, board=load_board("nucleo-f446re")).export("platformio", tmp_path / "net")
    (tmp_path / "Arduino.h").write_text(CORE)
    (tmp_path / "test.cpp").write_text('#include "net/src/main.cpp"\nint main() { setup(); loop(); }\n')
    sources = tmp_path / "net" / "lib" / "digits_int8_model" / "src"
    run(tmp_path, "gcc", "-c", *sorted(sources.glob("*.c")))
    run(
        tmp_path,
        "g++",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-I.",
        f"-I{sources}",
        "test.cpp",
        *tmp_path.glob("*.o"),
        "-o",
        "main",
    )
    assert_alike(run(tmp_path, "./main").splitlines()[:-1], said(turns=1).splitlines())


def test_the_list_of_boards_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["boards", "--json"]) == 0
    rows = {row["name"]: row["ids"] for row in json.loads(capsys.readouterr().out)["boards"]}
    assert set(rows) == set(list_boards()) and rows["lm3s811evb"] == {} and rows["esp32-s3"]["esp-idf"] == "esp32s3"
    assert rows[NUCLEO]["platformio"] == {"platform": "ststm32", "board": "nucleo_f446re"}
    assert main(["boards", "show", NUCLEO]) == 0
    assert FQBN in capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    [
        'arduino = "arduino:avr"',
        'arduino = "a:b:c; rm -rf x"',
        'zephyr = "$(id)"',
        'zephyr = "Nucleo\\nx"',
        'esp-idf = "esp32 s3"',
        'platformio = { platform = "p" }',
        'platformio = { platform = "p", board = "b]" }',
        'cmsis = { pack = "Keil", device = "A::B" }',
        'cmsis = { pack = "Keil::X@1", device = "A::B" }',
        'cmake = "x"',
    ],
)
def test_mistakes_in_a_name(tmp_path: Path, line: str) -> None:
    """Names reach generated files and commands: each has the form that its tool has for it, or is refused with its line."""
    before, _, rest = (file_access.boards_folder() / f"{NUCLEO}.toml").read_text().partition("[ids]")
    path = tmp_path / "mine.toml"
    path.write_text(f"{before}[ids]\n{line}\n\n[[memory]]{rest.partition('[[memory]]')[2]}")
    with pytest.raises(UsageError) as caught:
        load_board(path)
    assert "ids" in str(caught.value) and f"{path}:{7 if 'cmake' in line else 8}" in str(caught.value)
