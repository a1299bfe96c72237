# SPDX-License-Identifier: Apache-2.0
"""Kernels that run from RAM: chosen, printed, linked there, booted, and the same in every bit."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

import microc
from microc.base import file_access
from microc.cli import main
from microc.compiler.api import Program
from microc.compiler.bundle import bundle
from microc.device.boards import load_board
from microc.device.toolchain import read_linked_sizes
from microc.errors import FitError, UsageError
from microc.reports.firmware_size import measure_firmware
from microc.run.session import Device
from microc.run.verification import compare_board_with_host
from microc.target import Board
from tests.models.test_boards import TOOLS
from tests.support import digits
from tests.support.native import WARNINGS

APART = """[[memory]]
name = "itcm"
kind = "ram"
origin = 0x2100_0000
size = {size}
holds = ["code"]

[link]"""
"""Memory that the AN386 has; no branch of Thumb reaches it from its flash."""


def board(folder: Path, base: str = "mps2-an386", size: int = 0, fetch: str = "wait_states = 2") -> Board:
    """A board whose code waits two cycles for a word, and runs from ``size`` bytes of a memory apart, or beside the stack."""
    text = (file_access.boards_folder() / f"{base}.toml").read_text()
    text = text.replace('kind = "flash"\n', f'kind = "flash"\nfetch = {{ {fetch} }}\n', 1)
    if size:
        text = text.replace("[link]", APART.format(size=size), 1)
    else:
        text = text.replace('kind = "ram"\n', 'kind = "ram"\nholds = ["code"]\n', 1)
    path = folder / "waits.toml"
    path.write_text(text)
    return load_board(path)


def placed(where: Board, **options: Any) -> Program:
    program = microc.compile(digits.INT8, board=where, code_in_ram=True, **options)
    assert isinstance(program, Program)
    return program


def cycles(program: Program) -> int:
    return sum(call.cycles for call in program.module.calls)


def test_code_that_waits_for_nothing_takes_less_than_half(tmp_path: Path) -> None:
    """All kernels where there is room, the ones that gain most where there is little; by the estimate what waits is known."""
    all_of_it, some = (placed(board(tmp_path, size=size)) for size in (0x4000, 0x800))
    linked = microc.compile(digits.INT8, board=board(tmp_path, size=0x800))
    roomy, tight = (program.module.plan.code for program in (all_of_it, some))  # type: ignore[union-attr]
    assert roomy is not None and tight is not None
    assert len(roomy.kernels) == 6 and roomy.waits == 0 and 0 < len(tight.kernels) < 6
    assert cycles(all_of_it) == cycles(linked)
    assert cycles(some) == pytest.approx(cycles(linked) + tight.waits, abs=6)  # each call is rounded
    assert cycles(all_of_it) <= 0.5 * (cycles(all_of_it) + roomy.saved)
    assert tight.size <= tight.capacity < 0x800 and roomy.saved > tight.saved > 0


def test_a_cache_leaves_little_to_gain(tmp_path: Path) -> None:
    """Each kernel comes once in a call."""
    fetch = "wait_states = 2, cache_bytes = 4096"
    program = placed(board(tmp_path, size=0x4000, fetch=fetch))
    plan = program.module.plan
    assert plan is not None and plan.code is not None
    assert plan.code.saved == pytest.approx(sum(k.code_bytes for k in program.module.kernels) * 2 / 4, abs=6)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_only_kernels_are_marked_and_the_c_is_clean(compiler: str, tmp_path: Path) -> None:
    """For whoever builds otherwise the macro is nothing; without the option nothing is printed."""
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    program, waits = placed(board(tmp_path, size=0x800)), board(tmp_path, size=0x800)
    text, plan = str(program.files()["model.c"]), program.module.plan
    assert plan is not None and plan.code is not None
    for kernel in program.module.kernels:
        options = r'(DIGITS_INT8_OPTIMIZE\(".*"\)\n)?'
        marked = re.search(rf"MICROC_HOT_CODE\n{options}DIGITS_INT8_KERNEL {kernel.name}\(", text) is not None
        assert marked == (kernel.name in plan.code.kernels)
    folder = program.write(tmp_path / "project")
    for more in ([], ['-DMICROC_HOT_CODE=__attribute__((section(".fast")))']):
        command = [compiler, *WARNINGS, *more, "-c", str(folder / "model.c"), "-o", str(tmp_path / "model.o")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    linked = microc.compile(digits.INT8, board=waits).files()
    plain = microc.compile(digits.INT8, board="mps2-an386").files()
    assert linked["model.c"] == plain["model.c"] and linked["board/microc_board.h"] == plain["board/microc_board.h"]
    assert "hot_code" not in str(linked["board/linker.ld"]) + str(linked["manifest.json"])
    program.export("c", tmp_path / "export")
    exported = next((tmp_path / "export").rglob("*_model.c")).read_text()
    assert "#ifndef MICROC_HOT_CODE\n#define MICROC_HOT_CODE\n#endif" in exported


@pytest.mark.emulator
@pytest.mark.cross
@pytest.mark.skipif(any(shutil.which(tool) is None for tool in TOOLS), reason="needs " + ", ".join(TOOLS))
@pytest.mark.parametrize(
    ("base", "size"),
    [("mps2-an386", 0x800), ("mps2-an500", 0), ("microbit", 0), ("qemu-riscv32", 0)],
)
def test_kernels_run_where_they_are_planned(base: str, size: int, tmp_path: Path) -> None:
    """Those that were chosen lie in the memory, the others do not, and every one computes what it does on the host."""
    program = placed(board(tmp_path, base, size))
    plan, memory = program.module.plan, program.board.code_memory
    assert plan is not None and plan.code is not None and memory is not None
    project = microc.open_project(program.write(tmp_path / "project"))
    microc.build(project)
    region = next(each for each in program.board.regions if each.name == memory.name)
    with project.elf.open("rb") as stream:
        elf = ELFFile(stream)
        table = elf.get_section_by_name(".symtab")
        functions = {s.name.partition(".")[0]: s for s in table.iter_symbols() if s["st_info"]["type"] == "STT_FUNC"}
        section = elf.get_section_by_name(".hot_code")
        begin, end = section["sh_addr"], section["sh_addr"] + section["sh_size"]
    assert region.origin <= begin < end <= region.origin + region.size
    for kernel in program.module.kernels:
        inside = begin <= functions[kernel.name]["st_value"] < end
        assert inside == (kernel.name in plan.code.kernels)
    library = program.library()
    with Device(project) as device:
        samples = [[image] for image in digits.images(2)]
        layers, difference = compare_board_with_host(device, library, samples, tolerance=0)
    assert difference is None and len(layers) == 6


@pytest.mark.cross
@pytest.mark.skipif(any(shutil.which(tool) is None for tool in TOOLS), reason="needs " + ", ".join(TOOLS))
@pytest.mark.parametrize("name", ["nucleo-h743zi", "teensy41", "raspberry-pi-pico"])
def test_boards_of_ours_link(name: str, tmp_path: Path) -> None:
    program = placed(load_board(name))
    plan, memory = program.module.plan, program.board.code_memory
    assert plan is not None and plan.code is not None and memory is not None
    assert len(plan.code.kernels) == 6 and plan.code.saved > 0
    project = microc.open_project(program.write(tmp_path / "project"))
    microc.build(project)
    region = next(each for each in program.board.regions if each.name == memory.name)
    with project.elf.open("rb") as stream:
        section = ELFFile(stream).get_section_by_name(".hot_code")
        place, code = section["sh_addr"], section["sh_size"]
    assert region.origin <= place < place + code <= region.origin + region.size and code > 1000
    size, sections = measure_firmware(project), read_linked_sizes(project.elf)
    assert sum(layer.code for layer in size.layers) <= code <= size.data
    assert (size.flash, size.static_ram) == (sections.flash, sections.static_ram)


def test_arenas_come_first(tmp_path: Path) -> None:
    """Beside the stack code has what the arena leaves; the firmware still fits."""
    text = (file_access.boards_folder() / "microbit.toml").read_text()
    text = text.replace('kind = "flash"\n', 'kind = "flash"\nfetch = { wait_states = 2 }\n', 1)
    text = text.replace('kind = "ram"\n', 'kind = "ram"\nholds = ["code"]\n', 1).replace("0x4000", "0x1e00")
    (tmp_path / "little.toml").write_text(text)
    program = placed(load_board(tmp_path / "little.toml"))
    report = program.report()
    assert 0 < len(report["memories"][0]["kernels"]) < 6
    assert report["ram"] <= report["board_ram"] == 0x1E00


def test_a_memory_that_is_too_small_when_it_is_linked_says_what_to_do(tmp_path: Path) -> None:
    """Sizes are estimates before; here the memory shrinks behind them."""
    if any(shutil.which(tool) is None for tool in TOOLS):
        pytest.skip("needs " + ", ".join(TOOLS))
    folder = placed(board(tmp_path, size=0x4000)).write(tmp_path / "project")
    script = folder / "board" / "linker.ld"
    script.write_text(script.read_text().replace("LENGTH = 0x4000", "LENGTH = 0x100"))
    with pytest.raises(FitError, match="itcm needs") as refusal:
        microc.build(microc.open_project(folder))
    assert "without --code-in-ram" in refusal.value.hint


def test_what_has_no_memory_for_code_is_refused(tmp_path: Path) -> None:
    for options, said in (
        ({"board": "mps2-an386"}, "names no memory for code"),
        ({}, "code_in_ram: applies only to the firmware of a board"),
        ({"board": board(tmp_path), "relocatable": True}, "code_in_ram cannot be combined with relocatable"),
        ({"board": board(tmp_path), "protocol": "tuning"}, "reserves RAM for uploaded code"),
    ):
        with pytest.raises(UsageError, match=said):
            microc.compile(digits.INT8, code_in_ram=True, **options)
    with pytest.raises(UsageError, match="firmware of several networks"):
        bundle(placed(board(tmp_path)), placed(board(tmp_path), name="second"))


def test_reports_tell_what_runs_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = board(tmp_path, size=0x800)
    row = placed(where).report()["memories"][-1]
    assert row["memory"] == "itcm" and row["holds"] == {"kernel": len(row["kernels"])}
    count = f"{len(row['kernels'])} kernel" + "s" * (len(row["kernels"]) > 1)
    for words in (["check", "--exact"], ["explain"], ["report"]):
        word, *more = words
        assert main([word, str(digits.INT8), "--board", str(tmp_path / "waits.toml"), "--code-in-ram", *more]) == 0
        shown = capsys.readouterr().out
        assert f"of {row['capacity']:,} bytes: code of {count}; {row['waits']:,} cycles" in shown
        assert f"{row['saved']:,} fewer than from flash" in shown
