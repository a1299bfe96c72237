# SPDX-License-Identifier: Apache-2.0
"""Model cycles: a disassembly cut into blocks by counts, what llvm-mca is given, kernels counted in an emulator, refusals."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import microc
from benchmarks.maintain.cycles import count_issues, is_dependent, is_strict_pair, strict_cycles
from microc.cli import main
from microc.device.boards import load_board
from microc.errors import DeviceError, ToolError, UsageError
from microc.run import arm_cycles as cycles_module
from microc.run.arm_cycles import (
    convert_simulated_ticks,
    count_executions,
    count_extra_cycles,
    fill_issue_slots,
    model_cycles,
    parse_disassembly,
    require_cycle_source,
    split_blocks,
    translate_block,
)
from microc.run.board_project import Project, build_project, open_project
from tests.device.smoke import needs
from tests.support import digits

DISASSEMBLY = """
firmware.elf:\tfile format elf32-littlearm

00000100 <scale>:
     100:      \tdls\tlr, r2
     104:      \tvldrb.s32\tq0, [r0], #4
     108:      \tvpst
     10c:      \tvaddt.i32\tq0, q0, q1
     110:      \tle\tlr, #-0x10
     114:      \tcmp\tr3, #0x0               @ imm = #0x0
     116:      \tite\teq
     118:      \tmoveq.w\tr0, r1
     11c:      \tvmovne.f32\ts0, s1
     120:      \tbx\tlr
     122:      \tnop
     124: 00 20 00 20  \t.word\t0x20002000

00000128 <copy.constprop.0>:
     128:      \tbx\tlr
"""
COUNTS = dict.fromkeys((256, 276, 278, 280, 284, 288, 296), 2) | dict.fromkeys((260, 264, 268, 272), 9)


def test_blocks_of_a_disassembly() -> None:
    blocks = split_blocks(parse_disassembly(DISASSEMBLY), COUNTS)
    assert [(b.instructions[0].function, b.instructions[0].address, b.count) for b in blocks] == [
        ("scale", 0x100, 2),
        ("scale", 0x104, 9),
        ("scale", 0x114, 2),
        ("copy.constprop.0", 0x128, 2),
    ]
    assert sum(b.count * len(b.instructions) for b in blocks) == sum(COUNTS.values())
    assert [translate_block(b) for b in blocks] == [
        ["nop"],
        ["vldrb.s32 q0, [r0], #4", "vpst", "vaddt.i32 q0, q0, q1"],
        ["cmp r3, #0x0", "mov.w r0, r1", "vmov.f32 s0, s1", "nop"],
        ["nop"],
    ]


@needs("llvm-mca-19")
def test_cycles_of_blocks() -> None:
    loop = [line for k in range(3, 9) for line in (f"smlad r0, r1, r2, r{k}", f"ldr r{k}, [r12]")]
    regions = [loop, ["ldrd r0, r1, [r2]"], ["sxtb16 r0, r1", "add r2, r3"], [], ["not_an_instruction"]]
    cycles, unknown = model_cycles("cortex-m4", regions)
    assert unknown == {"not_an_instruction"}
    assert cycles[3] == 0
    assert cycles[1] == pytest.approx(3, abs=0.1) and strict_cycles("cortex-m4", regions, cycles) == cycles
    cycles, _ = model_cycles("cortex-m7", regions)
    strict = strict_cycles("cortex-m7", regions, cycles)
    assert [s - c for s, c in zip(strict, cycles, strict=True)] == pytest.approx([0, 0, 1, 0, 0])
    assert cycles[0] == pytest.approx(len(loop) / 2, rel=0.1)


def test_cycles_beyond_the_model_of_cortex_m4() -> None:
    cases = {
        "ldrd r0, r1, [r2]": 2, "strd r0, r1, [sp, #8]": 2, "ldr r0, [r1]": 0, "push {r4, r5, r6, lr}": 4,
        "pop.w {r4-r7, pc}": 5, "ldm.w r0!, {r1, r2}": 2, "vldmia r0!, {s0, s1, s2}": 3, "vpush {d8-d10}": 6,
        "vdiv.f32 s0, s1, s2": 1, "vfma.f32 s0, s1, s2": 1, "vfnms.f32 s0, s1, s2": 1, "vmul.f32 s0, s1, s2": 0,
        "vldr d0, [r1]": 1, "vldr s0, [r1]": 0, "vmov r0, r1, s0, s1": 1, "vmov r0, s0": 0, "smlad r0, r1, r2, r0": 0,
    }  # fmt: skip
    assert {line: count_extra_cycles(line) for line in cases} == cases


def test_a_load_on_cortex_m4_waits_unless_an_access_follows() -> None:
    region = ["ldr r0, [r1]", "ldrsb r2, [r1]", "add r0, r2", "ldr r0, [r1]", "str r0, [r3]", "vldr s0, [r1]"]
    filled = fill_issue_slots(region)
    assert [k for k, line in enumerate(filled) if line == "nop"] == [2, 7]
    assert [line for line in filled if line != "nop"] == region


@needs("llvm-mca-19")
def test_cortex_m4_takes_the_cycles_of_the_manual() -> None:
    add = "add r10, r11, r12"
    wanted = {
        ("ldr r0, [r1]", add): 3, ("ldr r0, [r1]", "ldr r2, [r1]", add): 4, ("ldrd r0, r2, [r1]", add): 4,
        ("ldm r1, {r2, r3, r4}", add): 5, ("vdiv.f32 s0, s1, s2", add): 15, ("vdiv.f32 s0, s1, s2",) * 2: 28,
        ("vfma.f32 s0, s1, s2", "vfma.f32 s3, s1, s2", add): 7, ("vldr d0, [r1]", add): 3 + 1,
    }  # fmt: skip
    cycles, _ = model_cycles("cortex-m4", list(wanted))
    assert cycles == pytest.approx(list(wanted.values()), abs=0.2)


def test_rules_of_pairs() -> None:
    load, product = "ldr r3, [r4], #4", "smlad r0, r1, r2, r0"
    assert is_strict_pair(product, load)
    assert not is_strict_pair(load, product)
    assert is_strict_pair(load, "smlal r0, r1, r2, r3")
    assert not is_strict_pair("sxtb16 r1, r2", load)
    assert not is_strict_pair("ldrd r0, r1, [r2]", "add r3, r3, r5")
    assert is_dependent(load, "add r0, r0, r4")
    assert is_dependent("ldrd r0, r1, [r2]", "add r3, r3, r1")
    assert not is_dependent("str r0, [r2]", "add r3, r0, r2")
    assert count_issues([load, product, load, product], is_strict_pair) == 3


COUNTED = (
    pytest.mark.cross,
    pytest.mark.emulator,
    needs("arm-none-eabi-gcc", "qemu-system-arm", "make", "llvm-mca-19"),
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("cycles") / "digits, built"  # QEMU separates its options by commas
    project = open_project(microc.compile(digits.INT8, board="mps2-an386").write(folder))
    build_project(project)
    return project


@pytest.mark.parametrize("_", [pytest.param("", marks=COUNTED)])
def test_kernels_of_an_inference(_: str, project: Project) -> None:
    """Instructions are those of the board's timer, within those of reading it, and the same at every inference."""
    with microc.Device(project, cycles=True) as device:
        device.set_inputs(np.zeros(device.inputs[0]["shape"], np.int8))
        first = device.profile()
        ticks, counted = device.measure_kernels()
        assert counted is not None and counted.instructions == device.measure_kernels()[1].instructions  # type: ignore[union-attr]
        assert [k.cycles for k in first.kernels] == list(counted.cycles)
        for kernel, instructions in zip(first.kernels, counted.instructions, strict=True):
            assert abs(kernel.time - instructions) <= 20
            assert kernel.cycles is not None and instructions / 2 < kernel.cycles < 2 * instructions
        assert len(ticks) == len(counted.cycles)
        # A run reads the timer too: it is no profile.
        device.run_kernel(0)
        with pytest.raises(DeviceError, match="read its timer"):
            device._counter.read_kernels(len(ticks), len(ticks))  # type: ignore[union-attr]
    data = first.to_data()
    assert data["cycles"] == sum(k["cycles"] for k in data["kernels"]) == first.cycles
    assert "cortex-m4" in data["cycles_meaning"] and "wait states" in str(first)
    assert "not modelled" not in data["cycles_meaning"]


@pytest.mark.parametrize("_", [pytest.param("", marks=COUNTED)])
def test_profile_shows_cycles(_: str, project: Project, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = tmp_path / "layers.csv"
    assert main(["profile", str(project.folder), "--cycles", "--csv", str(table)]) == 0
    out = capsys.readouterr().out
    assert "  cycles  est. cycles\n" in out and "cycles: by LLVM's scheduling model of cortex-m4" in out
    rows = list(csv.DictReader(table.open(newline="")))
    assert len(rows) == 6 and all(0 < int(row["cycles"]) < 2 * int(row["instructions"]) for row in rows)


@pytest.mark.parametrize("_", [pytest.param("", marks=COUNTED)])
def test_requests_of_few_kernels(_: str, project: Project) -> None:
    """The file of the plugin has one section for each reading of the timer."""
    with count_executions(project) as counter:
        counter._counts.write_text("".join(f"{address} 1\n\n" for address in range(1, 9)))
        kernels = counter.read_kernels(3, 2)  # 5 readings for two kernels, 3 for one
        assert kernels == [{2: 1}, {4: 1}, {7: 1}]
        counter.skip()
        counter._counts.open("a").write("10 2\n10 3\n\nff 1\nff 2\n\n1 1\n\n")
        assert counter.read_kernels(1, 2) == [{0xFF: 3}]


@needs("llvm-mca-19")
def test_refusals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("microbit", "qemu-riscv32", "nucleo-f446re", "host"):
        with pytest.raises(UsageError, match="no model of cycles") as refused:
            require_cycle_source(load_board(name))
        assert "mps2-an500" in refused.value.hint and "raspberry-pi-pico" in refused.value.hint
    for source, port in ((tmp_path, "/dev/ttyACM0"), ("socket://127.0.0.1:1", "")):
        with pytest.raises(UsageError, match="counted in the emulator"):
            microc.Device(source, port, cycles=True)
    unbuilt = open_project(microc.compile(digits.INT8, board="mps2-an386").write(tmp_path / "unbuilt"))
    with pytest.raises(UsageError, match="the image does not exist"):
        microc.Device(unbuilt, cycles=True)
    monkeypatch.setattr(cycles_module, "MCA", "llvm-mca-of-nobody")
    with pytest.raises(ToolError, match="llvm-mca-of-nobody is not on PATH"):
        require_cycle_source(load_board("mps2-an386"))


def test_ticks_of_a_simulator() -> None:
    board = load_board("arduino-uno")
    assert convert_simulated_ticks(board, (3, 5)).cycles == (3, 5)
    slow = replace(board, raw={**board.raw, "timer": {"hz": board.raw["clock_hz"] // 8}})
    counted = convert_simulated_ticks(slow, (3, 5))
    assert counted.cycles == (24, 40) and "simavr" in counted.meaning
    require_cycle_source(board)
