# SPDX-License-Identifier: Apache-2.0
"""Constants in several flash regions: placed by their waits, printed, linked there, booted, and the same in every bit."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

import microc
from microc.base import file_access
from microc.compiler.api import Program
from microc.compiler.bundle import bundle
from microc.device.boards import load_board
from microc.device.flashing import join_segments
from microc.errors import FitError, InternalError, UsageError
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph
from microc.plan.code_and_constants import assign_constants
from microc.plan.plan_check import check_plan
from microc.run.session import Device
from microc.run.verification import compare_board_with_host
from microc.target import Board, FlashMemory
from tests.models.test_boards import TOOLS
from tests.support import digits
from tests.support.native import WARNINGS

EXTERNAL = """[[memory]]
name = "qspi"
kind = "flash"
origin = 0x2100_0000
size = {size}
wait_states = 80
line_bytes = 32
holds = ["constants"]

[link]"""
"""The AN386's PSRAM, which QEMU loads as it loads the flash: it stands in for a flash behind a serial line."""


def board(folder: Path, flash: int, size: int = 0x100_0000) -> Board:
    """A board with ``flash`` bytes of flash that waits a cycle for a word, and ``size`` bytes of a slower one, if any."""
    text = (file_access.boards_folder() / "mps2-an386.toml").read_text()
    text = text.replace("size = 0x40_0000 # ZBT SSRAM 1", f"size = {flash}\nwait_states = 1", 1)
    path = folder / "external.toml"
    path.write_text(text.replace("[link]", EXTERNAL.format(size=size), 1) if size else text)
    return load_board(path)


def placed(where: Board, **options: Any) -> Program:
    program = microc.compile(digits.INT8, board=where, cache=False, **options)
    assert isinstance(program, Program)
    return program


def large(units: int = 512) -> Graph:
    """Two dense layers of int8 weights, half a megabyte of them."""
    dice, net = np.random.default_rng(1), GraphBuilder()
    value = net.input("x", (1, units), "int8")
    scale: dict[str, Any] = {
        "multiplier": 1 << 30,
        "shift": -12,
        "shift_range": (-12, -12),
        "bound": -1,
        "rounding": "double",
    }
    ends: dict[str, Any] = {
        "input_zero_point": 0,
        "zero_point": 3,
        "minimum": -128,
        "maximum": 127,
        "out_dtype": "int8",
    }
    for number in range(2):
        weight = net.constant(f"w{number}", dice.integers(-127, 128, (units, units)).astype(np.int8))
        value = net.op("requantize", net.op("dense", value, weight, out_dtype="int32"), **scale, **ends)
    return net.graph("large", {"y": value})


@pytest.mark.parametrize("cached", [False, True])
def test_no_other_placement_in_two_regions_waits_less(cached: bool) -> None:
    """Held against all subsets of the constants of digits that fit the faster region."""
    program = microc.compile(digits.INT8, board="mps2-an386")
    assert isinstance(program, Program)
    module = program.module
    sizes = {v.name: -(-v.nbytes // v.align) * v.align for v in module.values.values() if v.storage == "const"}
    subsets = np.array(list(product((False, True), repeat=len(sizes))))
    taken = subsets @ np.array(list(sizes.values()))
    for capacity in (300, 5000, 9300):
        fast, slow = FlashMemory("fast", capacity, 0.25), FlashMemory("slow", 1 << 20, 2.5, cached)
        waits = {region: np.zeros(len(sizes)) for region in (fast, slow)}
        for call in module.calls:
            for name, moved in zip(call.args, call.traffic, strict=True):
                if name in sizes:
                    for region, cycles in waits.items():
                        cycles[list(sizes).index(name)] += region.wait_cycles(moved, module.values[name].nbytes)
        totals = np.where(subsets, waits[fast], waits[slow]).sum(axis=1)
        homes = assign_constants(module, (fast, slow))
        inside = np.array([homes[name] is fast for name in sizes])
        assert inside @ np.array(list(sizes.values())) <= capacity
        assert np.where(inside, waits[fast], waits[slow]).sum() == totals[taken <= capacity].min()
        assert assign_constants(module, (slow, fast)) == homes


def test_constants_stay_in_front_where_regions_are_alike() -> None:
    """What does not fit anywhere is in the slowest region, which is then exceeded."""
    program = microc.compile(digits.INT8, board="mps2-an386")
    assert isinstance(program, Program)
    first, other, third = (FlashMemory(name, 1 << 20) for name in ("first", "other", "third"))
    assert set(assign_constants(program.module, (first, other)).values()) == {first}
    tight = FlashMemory("tight", 600)
    homes = assign_constants(program.module, (tight, FlashMemory("other", 700), third))
    assert {home.name for home in homes.values()} == {"tight", "other", "third"}
    slow = FlashMemory("slow", 100, 2.0)
    inside = assign_constants(program.module, (tight, slow))
    assert slow in inside.values() and tight in inside.values()


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_regions_are_macros_and_the_c_is_clean(compiler: str, tmp_path: Path) -> None:
    """For whoever builds otherwise the macro is nothing; a board that has room in front prints none."""
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    program = placed(board(tmp_path, 0x4600))
    plan = program.module.plan
    assert plan is not None and len(plan.flash) == 2 and all(region.constants for region in plan.flash)
    folder = program.write(tmp_path / "project")
    for name in ("model_data.h", "model_data.c"):
        lines = [line for line in (folder / name).read_text().splitlines() if "const " in line]
        for region in plan.flash:
            for constant in region.constants:
                line = next(line for line in lines if f" digits_int8_{constant}[" in line)
                assert ("MICROC_CONSTANTS_QSPI" in line) == (region.memory == "qspi")
    for more in ([], ['-DMICROC_CONSTANTS_QSPI=__attribute__((section(".slow")))']):
        command = [compiler, *WARNINGS, *more, "-c", str(folder / "model_data.c"), "-o", str(tmp_path / "data.o")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    roomy, plain = (placed(board(tmp_path, 0x40_0000, size)).files() for size in (0x100_0000, 0))
    assert all(roomy[name] == plain[name] for name in ("model.c", "model_data.c", "model_data.h"))


def test_regions_are_reported_and_wait(tmp_path: Path) -> None:
    """By name in the manifest, the report and what commands show; a layer waits for its constants where they are."""
    tight, roomy = placed(board(tmp_path, 0x4600)), placed(board(tmp_path, 0x40_0000))
    plan = tight.module.plan
    assert plan is not None
    code, qspi = plan.flash
    assert (code.memory, qspi.memory) == ("code", "qspi") and qspi.waits > 0 and code.size <= code.capacity
    rows = [row for row in tight.report()["memories"] if "constants" in row]
    assert [(row["memory"], row["bytes"], row["waits"]) for row in rows] == [
        (region.memory, region.size, region.waits) for region in plan.flash
    ]
    manifest = json.loads(str(tight.files()["manifest.json"]))
    listed = {c["symbol"]: c.get("memory", "code") for kernel in manifest["kernels"] for c in kernel["constants"]}
    assert {f"digits_int8_{name}" for name in qspi.constants} == {s for s, memory in listed.items() if memory == "qspi"}
    slower = sum(call.cycles for call in tight.module.calls) - sum(call.cycles for call in roomy.module.calls)
    assert slower == sum(call.waits for call in tight.module.calls) - sum(call.waits for call in roomy.module.calls) > 0
    assert sum(call.waits for call in tight.module.calls) == pytest.approx(code.waits + qspi.waits, abs=6)
    assert tight.report()["board_flash"] == 0x4600 + 0x100_0000
    check_plan(tight.module)
    for regions in ((code,), (code, replace(qspi, constants=code.constants))):
        with pytest.raises(InternalError, match="not in exactly one flash region"):
            check_plan(tight.module.with_plan(replace(plan, flash=regions)))


def test_what_does_not_fit_is_told_with_its_region(tmp_path: Path) -> None:
    """A constant is in one region as a whole: two halves of flash do not hold the largest."""
    with pytest.raises(FitError, match="does not fit external: it needs"):
        placed(board(tmp_path, 0x3000, 512)).write(tmp_path / "project")
    with pytest.raises(FitError, match="flash region 'qspi' is too small; got 50176 bytes of constants and code"):
        microc.compile(large(224), board=board(tmp_path, 0xF000, 0xC200)).write(tmp_path / "project")
    with pytest.raises(UsageError, match=r"cannot be one file; got content at 0x8000004 and at 0x90000000"):
        join_segments([(0x800_0000, b"1234"), (0x800_0004, b"5678"), (0x9000_0000, b"1234")])


def test_networks_of_one_firmware_share_the_regions(tmp_path: Path) -> None:
    """Each is planned beside those before it: what the first leaves of the fast region is for the second."""
    both = bundle(*(placed(board(tmp_path, 0x4600), name=name) for name in ("one", "two")))
    plans = [module.plan for module in both.modules]
    assert plans[0] is not None and plans[1] is not None
    (first, _), (second, outside) = plans[0].flash, plans[1].flash
    assert second.capacity == max(first.capacity - first.size, 0) and outside.constants
    assert set(second.constants) | set(outside.constants) == set(first.constants) | set(plans[0].flash[1].constants)
    both.write(tmp_path / "both")


@pytest.mark.emulator
@pytest.mark.cross
@pytest.mark.skipif(any(shutil.which(tool) is None for tool in TOOLS), reason="needs " + ", ".join(TOOLS))
def test_weights_of_half_a_megabyte_run_from_external_flash(tmp_path: Path) -> None:
    """They are linked there, and every layer computes what it does on the host."""
    program = microc.compile(large(), board=board(tmp_path, 0x1_0000), cache=False)
    assert isinstance(program, Program)
    plan = program.module.plan
    assert plan is not None and plan.flash[1].size >= 500_000
    project = microc.open_project(program.write(tmp_path / "project"))
    microc.build(project)
    with project.elf.open("rb") as stream:
        elf = ELFFile(stream)
        section = elf.get_section_by_name(".qspi")
        assert section["sh_addr"] == 0x2100_0000 and section["sh_size"] >= plan.flash[1].size
        symbols = {s.name: s["st_value"] for s in elf.get_section_by_name(".symtab").iter_symbols()}
    assert all(symbols[f"large_{name}"] >= 0x2100_0000 for name in plan.flash[1].constants)
    samples = [[np.random.default_rng(1).integers(-128, 128, (1, 512)).astype(np.int8)]]
    library = program.library()
    with Device(project) as device:
        layers, difference = compare_board_with_host(device, library, samples, tolerance=0)
    assert difference is None and len(layers) == len(program.module.calls)
