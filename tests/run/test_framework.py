# SPDX-License-Identifier: Apache-2.0
"""Boards whose project is one of the vendor's framework: built and run against stand-ins for its functions."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

import microc
from microc.base import file_access
from microc.compiler.api import Program
from microc.compiler.bundle import bundle
from microc.device.boards import list_boards, load_board
from microc.errors import ToolError
from microc.run.board_project import build_project, open_project
from microc.run.data.samples import draw_input_sets
from microc.run.session import Device
from microc.run.verification import compare_board_with_host
from tests.device.smoke import needs
from tests.exports.programs import awkward
from tests.support import digits
from tests.support.native import WARNINGS

STAND_IN = Path(__file__).parents[1] / "exports" / "stand_ins" / "esp_idf"
BOARDS = tuple(name for name in list_boards() if "framework" in load_board(name).raw)


@pytest.fixture
def esp_idf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins on PATH, as the framework's own environment puts its tools there."""
    monkeypatch.setenv("IDF_PATH", str(STAND_IN))
    monkeypatch.setenv("PATH", str(STAND_IN / "tools"), prepend=":")


@needs("cmake", "gcc", "make")
def test_esp_idf(esp_idf: None, tmp_path: Path) -> None:
    """The project builds through its Makefile, and every kernel agrees over the line."""
    assert BOARDS == ("esp32", "esp32-c6", "esp32-h2", "esp32-p4", "esp32-s2", "esp32-s3", "esp32-wrover")
    program = microc.compile(digits.INT8, board=load_board("esp32-s3"))
    project = open_project(program.write(tmp_path / "project"))
    assert not (project.folder / "board" / "linker.ld").exists()
    assert build_project(project).elf == project.elf
    assert build_project(project).sizes.flash > project.manifest["const_bytes"]
    with Device(project, f"pipe:{shlex.quote(str(project.elf))}") as device:
        layers, difference = compare_board_with_host(
            device, program.library(), draw_input_sets(device.project.manifest, device.inputs, 2), tolerance=0
        )
        assert difference is None and len(layers) == len(device.kernels)
        assert device.stats().stack_bytes == 1000
        assert device.tick_hz == 240_000_000


@needs("cmake", "gcc", "make")
def test_both_cores(esp_idf: None, tmp_path: Path) -> None:
    """A task of FreeRTOS, here a thread, computes the second halves: the same bits in every kernel of every run."""
    text = (file_access.boards_folder() / "esp32-s3.toml").read_text()
    path = tmp_path / "eager.toml"
    path.write_text(re.sub(r"(?m)^min_instructions = .*$", "min_instructions = 1", text))
    program = microc.compile(digits.INT8, board=load_board(path), cores=2)
    project = open_project(program.write(tmp_path / "project"))
    assert sum(kernel.get("cores") == 2 for kernel in project.manifest["kernels"]) > 1
    build_project(project)
    with Device(project, f"pipe:{shlex.quote(str(project.elf))}") as device:
        inputs = draw_input_sets(device.project.manifest, device.inputs, 20)
        layers, difference = compare_board_with_host(device, program.library(), inputs, tolerance=0)
        assert difference is None and len(layers) == len(device.kernels)
        assert device.stats().core1_stack_bytes == 600


@needs("gcc")
def test_the_second_core_needs_two(tmp_path: Path) -> None:
    """ESP-IDF can be set to use one core only: then the port says so at compile time."""
    (tmp_path / "sdkconfig.h").write_text("#define CONFIG_FREERTOS_UNICORE 1\n")
    runtime = file_access.runtime_c_folder()
    folders = [STAND_IN / "components" / "esp_driver_uart" / "include", runtime / "include", tmp_path]
    command = ["gcc", "-fsyntax-only", "-DMICROC_FORK_STACK_BYTES=2048u", *(f"-I{folder}" for folder in folders)]
    source = str(runtime / "ports" / "cores_esp_idf.c")
    done = subprocess.run([*command, source], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0 and "compile the network with --cores 1" in done.stderr
    (tmp_path / "sdkconfig.h").write_text("")
    subprocess.run([*command, *WARNINGS, source], check=True, timeout=60)


@needs("cmake", "gcc", "make")
def test_tensors_in_external_ram_have_a_section_of_the_framework(esp_idf: None, tmp_path: Path) -> None:
    """What the RAM of the stack does not hold is in an arena of its own, which the linker's fragment places."""
    text = (file_access.boards_folder() / "esp32-s3.toml").read_text()
    external = (file_access.boards_folder() / "esp32-wrover.toml").read_text()
    external = external[external.index('[[memory]]\nname = "psram"') : external.index("[link]")]
    path = tmp_path / "external_ram.toml"
    path.write_text(text.replace("[link]", external + "[link]", 1))
    program = microc.compile(digits.INT8, board=load_board(path), ram=612)
    assert isinstance(program, Program)
    assert "main/linker.lf" not in microc.compile(digits.INT8, board=load_board("esp32")).files()
    project = open_project(program.write(tmp_path / "project"))
    fragment = (project.folder / "main" / "linker.lf").read_text()
    assert "entries:\n    .psram+\n" in fragment and "microc_external_ram -> extern_ram" in fragment
    assert "LDFRAGMENTS linker.lf" in (project.folder / "main" / "CMakeLists.txt").read_text()
    assert dict(build_project(project).sizes.sections)[".psram"] >= project.manifest["arenas"][1]["size"] > 0
    with Device(project, f"pipe:{shlex.quote(str(project.elf))}") as device:
        layers, difference = compare_board_with_host(
            device, program.library(), draw_input_sets(device.project.manifest, device.inputs, 2), tolerance=0
        )
    assert difference is None and len(layers) == len(program.module.calls)


@needs("cmake", "gcc", "make")
def test_code_in_ram_has_a_section_of_the_framework(esp_idf: None, tmp_path: Path) -> None:
    program = microc.compile(digits.INT8, board=load_board("esp32-s3"), code_in_ram=True)
    project = open_project(program.write(tmp_path / "project"))
    sizes = dict(build_project(project).sizes.sections)
    assert sizes[".iram1.microc"] > 1000 and len(project.manifest["hot_code"]["kernels"]) == 6
    with Device(project, f"pipe:{shlex.quote(str(project.elf))}") as device:
        layers, difference = compare_board_with_host(
            device, program.library(), draw_input_sets(device.project.manifest, device.inputs, 1), tolerance=0
        )
        assert difference is None and len(layers) == len(device.kernels)


@needs("cmake", "gcc", "make")
def test_two_networks(esp_idf: None, tmp_path: Path) -> None:
    board = load_board("esp32-s3")
    programs = [microc.compile(digits.INT8, board=board, name="digits"), microc.compile(awkward(), board=board)]
    project = open_project(bundle(*programs).write(tmp_path / "project"))
    build_project(project)
    for one in project.networks():
        with Device(one, f"pipe:{shlex.quote(str(one.elf))}") as device:
            assert device.run_kernel(0).mean >= 0


@pytest.mark.parametrize("name", BOARDS)
def test_missing_tool(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    board = load_board(name)
    project = open_project(Program(microc.compile(digits.INT8, board=board).module, board).write(tmp_path / "project"))
    with pytest.raises(ToolError, match=f"{board.raw['framework']['tool']} is not on PATH") as caught:
        build_project(project)
    assert caught.value.hint == board.raw["framework"]["install"]
