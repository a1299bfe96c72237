# SPDX-License-Identifier: Apache-2.0
"""Arm's driver in a firmware: set up for the accelerator that the board's file tells of, from a user's own copy."""

from __future__ import annotations

import os
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

import microc
from microc import GraphBuilder
from microc.base import file_access
from microc.cli import main
from microc.codegen.project.board_files import render_board_header
from microc.device.boards import list_boards, load_board
from microc.errors import UsageError
from microc.external.backend import partition
from microc.external.ethos_u.accelerator import VelaModel, compile_model, parse_configuration
from microc.external.ethos_u.driver import LIBRARY, SOURCES, configured_backend, open_driver
from microc.frontend.tflite.writer import to_tflite
from microc.target import target_for
from tests.device.smoke import WARNINGS, needs
from tests.external.ethos_u import standin
from tests.external.ethos_u.networks import DATA, convolution, installed, network
from tests.external.ethos_u.standin import FLAGS, HEADER, PREFIX, driver

DRIVER = os.environ.get("MICROC_ETHOS_U_DRIVER", "")
"""A clone of ethos-u-core-driver."""
BESIDE = tuple(name for name in list_boards() if load_board(name).target.npu)
M55 = target_for("cortex-m55")
U55 = replace(M55, npu="ethos-u55-128")


def firmware(board: str | Path, place: object, folder: Path) -> Path:
    said = {"ethos-u": f"driver={place}"}
    found = microc.compile(network(), board=board, external=said, external_choice="all", opt_level=0)
    return found.write(folder)


def clone(folder: Path) -> Path:
    """As much of one as files say."""
    for path in ("include/ethosu_driver.h", "src/ethosu_device.h", *(f"src/{name}" for name in SOURCES)):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(f"/* {path} */")
    return folder


def test_a_clone_is_compiled_and_says_nothing(tmp_path: Path) -> None:
    found = open_driver(parse_configuration(f"ethos-u55-128,driver={clone(tmp_path)}"), U55)
    assert set(found.c_paths) == {"microc_ethos_u.c", *(f"driver/src/{name}" for name in SOURCES)}
    assert found.include == ("", "driver/src", "driver/include") and not found.libraries
    assert found.defines == ("ETHOSU55", "ETHOSU_ARCH=u55", "ETHOSU_LOG_SEVERITY=-1", "NDEBUG")
    assert b"ethosu_init(&npu, (void *)(uintptr_t)MICROC_NPU_BASE" in found.files["microc_ethos_u.c"]
    other = open_driver(parse_configuration(f"ethos-u65-256,driver={tmp_path}"), M55)
    assert other.defines[0] == "ETHOSU65" and b"ethosu_init(" not in other.files["microc_ethos_u.c"]


def test_a_library_has_a_header_where_it_is_set_up(tmp_path: Path) -> None:
    said = parse_configuration(f"ethos-u55-128,driver={tmp_path}")
    with pytest.raises(UsageError, match=f"there is no lib{LIBRARY}.a in") as caught:
        open_driver(said, U55)
    assert "a clone of Arm's ethos-u-core-driver" in caught.value.hint
    (tmp_path / f"lib{LIBRARY}.a").touch()
    with pytest.raises(UsageError, match=r"there is no ethosu_driver\.h in"):
        open_driver(said, U55)
    assert not open_driver(said, M55).defines
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "ethosu_driver.h").write_text(HEADER)
    found = open_driver(said, U55)
    assert found.include == ("", "driver/include") and found.libraries == (LIBRARY,)


def test_files_stay_inside(tmp_path: Path) -> None:
    folder = clone(tmp_path / "driver")
    (tmp_path / "secret.h").write_text("")
    (folder / "src" / "evil.h").symlink_to(tmp_path / "secret.h")
    with pytest.raises(UsageError, match="leads out of the folder"):
        open_driver(parse_configuration(f"ethos-u55-128,driver={folder}"), U55)


@pytest.mark.parametrize("name", BESIDE)
def test_headers_tell_of_accelerators(name: str) -> None:
    board = load_board(name)
    npu, said = board.raw["npu"], render_board_header(board)
    assert f"#define MICROC_NPU_BASE {npu['base']:#010x}u" in said
    assert f"#define MICROC_NPU_IRQ {npu['irq']}u" in said and "#define MICROC_NPU_SECURE 1u" in said
    assert ("MICROC_NPU_CONSTANTS" in said) == ("constants" in npu)


@installed
@needs("arm-none-eabi-gcc")
@pytest.mark.parametrize("name", BESIDE)
def test_boards_build_and_link_with_a_stand_in(name: str, tmp_path: Path) -> None:
    board = load_board(name)
    npu, first = board.raw["npu"], next(region for region in board.regions if region.kind == "flash")
    ram = next(region for region in board.regions if region.kind == "ram")
    read = next((region for region in board.regions if region.name == npu.get("constants")), first)
    folder = firmware(name, driver(tmp_path / "driver", [], npu["base"], npu["irq"]), tmp_path / "firmware")
    subprocess.run(["make", "-C", str(folder)], check=True, capture_output=True)
    words = ["-Iexternal/ethos-u", "-Iexternal/ethos-u/driver", "-include", "board/microc_board.h"]
    source = "external/ethos-u/microc_ethos_u.c"
    command = [f"{PREFIX}gcc", *FLAGS, *WARNINGS, *words, "-c", source, "-o", str(tmp_path / "o")]
    subprocess.run(command, cwd=folder, check=True)
    symbols = subprocess.run([f"{PREFIX}nm", str(folder / "firmware.elf")], capture_output=True, text=True, check=True)
    at = {name: int(place, 16) for place, _, name in map(str.split, symbols.stdout.splitlines())}
    assert all(ram.origin <= place < ram.origin + ram.size for name, place in at.items() if name.endswith("arena"))
    constants = {name: place for name, place in at.items() if name.endswith(("_commands", "_weights"))}
    assert len(constants) == 4 and all(
        read.origin <= place < read.origin + read.size and place % 16 == 0 for place in constants.values()
    )


@pytest.fixture
def emulated(tmp_path: Path) -> Path:
    """The platform with an accelerator as the emulator that has none stands in for it."""
    text = (file_access.boards_folder() / "mps3-an547.toml").read_text()
    place = tmp_path / "platform.toml"
    own = (file_access.boards_folder() / "corstone-300.toml").read_text().partition("[[flash.runner]]")[0]
    place.write_text(own + text[text.index("[emulator]") :])
    return place


@installed
@needs("arm-none-eabi-gcc")
@needs("qemu-system-arm")
@pytest.mark.emulator
def test_the_interrupt_comes_back_to_a_driver_that_was_set_up(
    emulated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    npu = tomllib.loads(emulated.read_text())["npu"]
    said = npu["accelerator"]
    taken = partition(network(), [configured_backend(said)], M55).taken
    made = [compile_model(to_tflite(each.region.graph), parse_configuration(said)) for each in taken]
    pairs = [(each, done) for each, done in zip(taken, made, strict=True) if isinstance(done, VelaModel)]
    folder = firmware(emulated, driver(tmp_path / "driver", pairs, npu["base"], npu["irq"]), tmp_path / "firmware")
    assert main(["verify", str(folder)]) == 0
    assert "every bit" in capsys.readouterr().out
    other = driver(tmp_path / "other", pairs, npu["base"] + 1, npu["irq"])
    assert main(["verify", str(firmware(emulated, other, tmp_path / "wrong"))]) != 0
    assert "the model's run function has failed" in capsys.readouterr().err


@installed
@needs("arm-none-eabi-gcc")
@pytest.mark.skipif(not DRIVER, reason="MICROC_ETHOS_U_DRIVER names no clone of ethos-u-core-driver")
@pytest.mark.parametrize("name", BESIDE)
def test_arms_own_driver_links(name: str, tmp_path: Path) -> None:
    folder = firmware(name, DRIVER, tmp_path / "firmware")
    subprocess.run(["make", "-C", str(folder)], check=True, capture_output=True)
    symbols = subprocess.run([f"{PREFIX}nm", str(folder / "firmware.elf")], capture_output=True, text=True, check=True)
    assert " T ethosu_init\n" in symbols.stdout and "printf" not in symbols.stdout


@installed
@needs("arm-none-eabi-gcc")
@needs("qemu-system-arm")
@pytest.mark.emulator
@pytest.mark.skipif(not DRIVER, reason="MICROC_ETHOS_U_DRIVER names no clone of ethos-u-core-driver")
def test_arms_own_driver_runs_over_registers_that_are_memory(
    emulated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It sets the accelerator up, gives it commands and memories, and takes its interrupt; a region is computed in our code."""
    b = GraphBuilder("net")
    h = convolution(b, b.input("x", (1, 8, 8, 4), "int8", DATA), (8, 3, 3, 4), 1, padding=(1, 1, 1, 1))
    graph = b.graph("net", {"y": convolution(b, h, (8, 1, 1, 8), 2)})
    npu = tomllib.loads(emulated.read_text())["npu"]
    (taken,) = partition(graph, [configured_backend(npu["accelerator"])], M55).taken
    made = compile_model(to_tflite(taken.region.graph), parse_configuration(npu["accelerator"]))
    assert isinstance(made, VelaModel)
    base, (configuration, identity) = 0x2000_0000, standin.configured(made)
    place = standin.accelerator(Path(DRIVER), tmp_path / "driver", (taken, made), base, npu["irq"])

    def verified(name: str, rights: int) -> int:
        values = {
            standin.ID: identity,
            standin.STATUS: standin.DONE,
            standin.PROTECTION: rights,
            standin.CONFIG: configuration,
        }
        registers = ", ".join(f"{{ write = {base + offset}, value = {value} }}" for offset, value in values.items())
        board = tmp_path / f"{name}.toml"
        text = emulated.read_text().replace(f"base = {'0x4810_2000'}", f"base = {base}")
        board.write_text(f"{text}\n[setup]\nregisters = [{registers}]\n")
        said = {"ethos-u": f"driver={place}"}
        program = microc.compile(graph, board=board, external=said, external_choice="all", opt_level=0)
        return main(["verify", str(program.write(tmp_path / name))])

    assert verified("right", standin.PRIVILEGED) == 0
    assert "every bit" in capsys.readouterr().out
    assert verified("wrong", 0) != 0  # the accelerator has not the rights that the board's file says
    assert "the model's run function has failed" in capsys.readouterr().err
