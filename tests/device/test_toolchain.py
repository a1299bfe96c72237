# SPDX-License-Identifier: Apache-2.0
"""Finding tools, running make, measuring programs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from microc.base import file_access
from microc.device.boards import load_board
from microc.device.toolchain import find_compiler, read_linked_sizes, require_program, run_make
from microc.errors import ToolError
from tests.device.smoke import EMULATED, build, needs


def test_missing_program_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ToolError) as caught:
        find_compiler(load_board("mps2-an386"))
    assert "arm-none-eabi-gcc is not on PATH" in caught.value.what
    assert "apt-get install -y --no-install-recommends gcc-arm-none-eabi" in caught.value.hint
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(ToolError, match="cc is not on PATH"):
        find_compiler(load_board("host"))
    with pytest.raises(ToolError, match="frobnicate is not on PATH"):
        require_program("frobnicate")


@needs("cc")
def test_host_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    assert find_compiler(load_board("host")).version
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(ToolError, match="no-such-compiler"):
        find_compiler(load_board("host"))


@pytest.mark.cross
@needs("arm-none-eabi-gcc")
def test_cross_compiler() -> None:
    compiler = find_compiler(load_board("microbit"))
    assert compiler.program.endswith("arm-none-eabi-gcc")
    assert "gcc" in compiler.version


@needs("make")
def test_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MAKEFLAGS", "-n")  # as under another make; it must not reach ours
    (tmp_path / "Makefile").write_text("all:\n\t@echo quiet; touch done\nbroken:\n\t@echo trouble here; exit 3\n")
    run_make(tmp_path)
    assert (tmp_path / "done").exists()
    with pytest.raises(ToolError) as caught:
        run_make(tmp_path, ["broken"])
    assert "trouble here" in caught.value.what
    assert caught.value.where == str(tmp_path)
    assert capfd.readouterr() == ("", "")


PROGRAM = """
const char table[1000] = {1};
int filled[100] = {1};
static int empty[200];
int *reach(int i) { return &empty[i] + table[i]; }
int main(int argc, char **argv) { (void)argv; return *reach(argc) + filled[argc]; }
"""


@needs("cc")
def test_sizes_of_a_host_program(tmp_path: Path) -> None:
    (tmp_path / "p.c").write_text(PROGRAM)
    subprocess.run(["cc", "-O0", "p.c", "-o", "p"], cwd=tmp_path, check=True)
    sizes = read_linked_sizes(tmp_path / "p")
    found = {s.name: (s.section, s.size) for s in sizes.symbols}
    assert found["table"] == (".rodata", 1000)
    assert found["filled"] == (".data", 400)
    assert found["empty"] == (".bss", 800)
    assert found["main"][0] == ".text"
    assert sizes.static_ram >= 1200
    assert sizes.flash >= 1400
    assert sizes.reserved_stack == 0
    subprocess.run(["strip", "p"], cwd=tmp_path, check=True)
    assert read_linked_sizes(tmp_path / "p").symbols == ()


def test_sizes_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ToolError, match="not a program that microc can read: Magic"):
        read_linked_sizes(tmp_path / "text")
    with pytest.raises(ToolError, match="cannot read the program"):
        read_linked_sizes(tmp_path / "absent")


@pytest.mark.cross
@needs("arm-none-eabi-gcc")
@pytest.mark.parametrize("name", EMULATED)
def test_firmware_builds_without_warnings(name: str, tmp_path: Path) -> None:
    board = load_board(name)
    sizes = read_linked_sizes(build(board, tmp_path, "-Wl,--defsym=__stack_size=1024"))
    sections = dict(sizes.sections)
    assert sizes.reserved_stack == sections[".stack"] == 1024
    assert sizes.flash == sections[".text"] + sections[".data"]
    assert sizes.static_ram == sections[".data"] + sections[".bss"]
    assert sizes.static_ram < 1000
    assert not any(s.startswith(".ARM") for s in sections)


@pytest.mark.cross
@needs("arm-none-eabi-gcc")
def test_the_board_of_the_readme_builds(tmp_path: Path) -> None:
    text = (file_access.boards_folder() / "README.md").read_text()
    path = tmp_path / "nucleo-f410rb.toml"
    path.write_text(text.partition("```toml\n")[2].partition("```")[0])
    board = load_board(path)
    assert (board.flash_bytes, board.ram_bytes) == (128 << 10, 32 << 10)
    assert read_linked_sizes(build(board, tmp_path)).reserved_stack == 4096


@pytest.mark.cross
@needs("arm-none-eabi-gcc")
@pytest.mark.parametrize(
    ("cpu_board", "limit"), [("mps2-an386", 800), ("mps3-an547", 800), ("netduinoplus2", 900), ("microbit", 900)]
)
def test_ports_are_small(cpu_board: str, limit: int, tmp_path: Path) -> None:
    """Code and tables of startup, console and timer at -Os, in bytes."""
    sizes = read_linked_sizes(build(load_board(cpu_board), tmp_path))
    ours = [s for s in sizes.symbols if s.name.startswith("microc_") or s.name.endswith("_Handler")]
    assert sum(s.size for s in ours if s.section == ".text") < limit
