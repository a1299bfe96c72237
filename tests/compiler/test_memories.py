# SPDX-License-Identifier: Apache-2.0
"""Networks in several memories: what is planned, printed, built natively, and booted, is the network with one arena."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.cli import main
from microc.compiler.api import Program
from microc.compiler.bundle import bundle
from microc.errors import FitError, InternalError
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph
from microc.module import Module
from microc.plan.plan_check import check_plan
from microc.run.session import Device
from microc.run.verification import compare_board_with_host
from tests.models.test_boards import TOOLS
from tests.support import digits
from tests.support.memories import SLOW, layers, two_memories
from tests.support.native import WARNINGS

FAST = 612
"""Bytes that hold all of digits' tensors but the largest workspace; all together they take 912."""
LATE = """
#include <stdio.h>
#include <string.h>
#include "model.h"

static struct { void *to; const void *from; uint32_t bytes; } waiting[8];
static int count;

void layers_copy_begin(void *to, const void *from, uint32_t bytes)
{
    waiting[count].to = to;
    waiting[count].from = from;
    waiting[count].bytes = bytes;
    ++count;
}

void layers_copy_wait(void)
{
    while (count > 0) {
        --count;
        memcpy(waiting[count].to, waiting[count].from, waiting[count].bytes);
    }
}

static uint64_t in_dtcm[(LAYERS_ARENA_DTCM_SIZE + 7) / 8];
static uint64_t in_sram[(LAYERS_ARENA_SRAM_SIZE + 7) / 8];

int main(void)
{
    const struct layers_arenas arenas = { .dtcm = in_dtcm, .sram = in_sram };
    const struct layers_inputs inputs = { .x = layers_x(&arenas) };
    const struct layers_outputs outputs = { .y = layers_y(&arenas) };
    FILE *const from = fopen("x.bin", "rb"), *const to = fopen("y.bin", "wb");
    if (from == NULL || to == NULL || fread(layers_x(&arenas), 4, LAYERS_X_SIZE, from) != LAYERS_X_SIZE) {
        return 1;
    }
    layers_reset(&arenas);
    if (layers_run(&arenas, &inputs, &outputs) != LAYERS_OK || fwrite(outputs.y, 4, LAYERS_Y_SIZE, to) != LAYERS_Y_SIZE) {
        return 2;
    }
    return fclose(from) + fclose(to);
}
"""


def cycles(program: Program) -> int:
    return sum(call.cycles for call in program.module.calls)


def split(folder: Path, fast: int = FAST, **options: Any) -> Program:
    program = microc.compile(digits.INT8, board=two_memories(folder, fast), **options)
    assert isinstance(program, Program)
    return program


def accumulating() -> Graph:
    """A network that keeps a sum from run to run."""
    builder = GraphBuilder()
    x = builder.input("x", (1, 40))
    total = builder.state("total", np.zeros((1, 40), np.float32))
    grown = builder.op("add", x, total)
    builder.update(total, grown)
    return builder.graph("sums", {"y": builder.op("tanh", grown)})


def test_the_split_is_faster_than_one_arena(tmp_path: Path) -> None:
    """The bar: at most 0.8 of the cycles that the same kernels take where all of the arena is in the memory that holds it."""
    two = split(tmp_path)
    one = split(tmp_path, 0)
    assert [arena.size > 0 for arena in two.module.plan.arenas] == [True, True]  # type: ignore[union-attr]
    assert [arena.size > 0 for arena in one.module.plan.arenas] == [False, True]  # type: ignore[union-attr]
    assert cycles(two) <= 0.8 * cycles(one)
    assert cycles(two) == sum(c.cycles - c.waits for c in one.module.calls) + sum(c.waits for c in two.module.calls)


def test_what_fits_the_fast_memory_has_one_arena_there(tmp_path: Path) -> None:
    """The same C as on a board with one memory, wherever the arena lies."""
    plain = microc.compile(digits.INT8, board="mps3-an547")
    wide = split(tmp_path, 1 << 16)
    names = ("model.c", "model.h", "model_data.c", "rpc_model.c")
    assert [wide.files()[name] for name in names] == [plain.files()[name] for name in names]
    elsewhere = microc.compile(digits.INT8, board="nucleo-h743zi").files()
    assert '#define MICROC_ARENA_SECTION __attribute__((section(".dtcm")))' in str(elsewhere["rpc_model.c"])
    assert "int digits_int8_run(void *arena, " in str(elsewhere["model.h"])


def test_the_interface_takes_an_arena_for_each_memory(tmp_path: Path) -> None:
    files = split(tmp_path).files()
    header, table = str(files["model.h"]), str(files["rpc_model.c"])
    for text in (
        "struct digits_int8_arenas {\n    void *dtcm;\n    void *sram;\n};",
        "#define DIGITS_INT8_ARENA_DTCM_SIZE 612",
        "#define DIGITS_INT8_ARENA_SRAM_SIZE 648",
        "int digits_int8_run(const struct digits_int8_arenas *arenas, ",
        "void digits_int8_reset(const struct digits_int8_arenas *arenas);",
    ):
        assert text in header
    assert "DIGITS_INT8_ARENA_SIZE" not in header + table
    assert '#define MICROC_ARENA_SRAM_SECTION __attribute__((section(".sram")))' in table


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("options", [{}, {"io_in_arena": False}, {"self_test": True}])
def test_the_c_is_clean(compiler: str, options: dict[str, Any], tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    if "self_test" in options:
        np.savez(tmp_path / "images.npz", image=digits.images(2))
        options = {"self_test": tmp_path / "images.npz"}
    folder = split(tmp_path, **options).write(tmp_path / "project")
    for source in (folder / name for name in ("model.c", "model_data.c", "rpc_model.c")):
        command = [
            compiler,
            *WARNINGS,
            "-DMICROC_SELF_TEST=1",
            "-I",
            str(folder),
            "-I",
            str(folder / "runtime" / "include"),
            "-c",
            str(source),
        ]
        done = subprocess.run([*command, "-o", str(tmp_path / "x.o")], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_this_computer_runs_the_same(tmp_path: Path) -> None:
    image = digits.images(1)[0]
    wanted = microc.compile(digits.INT8)(image)
    assert np.array_equal(split(tmp_path).library()(image), wanted)
    assert np.array_equal(split(tmp_path, io_in_arena=False).library()(image), wanted)


def test_state_is_kept_in_its_arena(tmp_path: Path) -> None:
    program = microc.compile(accumulating(), board=two_memories(tmp_path, 160))
    assert isinstance(program, Program)
    assert len(program.module.plan.used_arenas) == 2  # type: ignore[union-attr]
    library, x = program.library(), np.full((1, 40), 0.25, np.float32)
    assert [float(np.asarray(library(x))[0, 0]) for _ in range(2)] == pytest.approx(
        [np.tanh(0.25), np.tanh(0.5)], abs=1e-6
    )
    library.reset()
    assert float(np.asarray(library(x))[0, 0]) == pytest.approx(np.tanh(0.25), abs=1e-6)


def test_what_other_build_systems_and_several_networks_get_has_one_arena(tmp_path: Path) -> None:
    program = split(tmp_path)
    program.export("c", tmp_path / "export")
    assert "digits_int8_run(void *arena, " in next((tmp_path / "export").rglob("*_model.h")).read_text()
    assert not split(tmp_path, 1 << 12, relocatable=True, name="loaded").module.plan.arenas  # type: ignore[union-attr]
    files = bundle(program, split(tmp_path, name="second")).files()
    assert "second_run(void *arena, " in str(files["second/model.h"])


def test_what_fits_nowhere_is_refused(tmp_path: Path) -> None:
    """With the numbers of the memory that holds the stack, too, as on any board."""
    small = SLOW.replace("0x20_0000", "0x180")
    with pytest.raises(FitError, match=r"does not fit two|cannot hold"):
        microc.compile(digits.INT8, board=two_memories(tmp_path, 100, small), optimize="size").write(tmp_path / "no")


@pytest.mark.emulator
@pytest.mark.cross
@pytest.mark.skipif(any(shutil.which(tool) is None for tool in TOOLS), reason="needs " + ", ".join(TOOLS))
def test_a_board_with_two_arenas_agrees_in_every_bit(tmp_path: Path) -> None:
    program = split(tmp_path)
    project = microc.open_project(program.write(tmp_path / "project"))
    microc.build(project)
    sections = subprocess.run(
        ["arm-none-eabi-size", "-A", str(project.folder / "firmware.elf")], capture_output=True, text=True, check=True
    ).stdout
    assert any(line.split()[:1] == [".sram"] and int(line.split()[2]) == 0x0100_0000 for line in sections.splitlines())
    host, library = microc.compile(digits.INT8), program.library()
    with Device(project) as device:
        for image in digits.images(3):
            assert np.array_equal(device.run(image), host(image))
        samples = [[image] for image in digits.images(2)]
        layers, difference = compare_board_with_host(device, library, samples, tolerance=0)
    assert difference is None and len(layers) == 6


def test_reports_tell_what_lies_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    board = two_memories(tmp_path, FAST)
    report = split(tmp_path).report()
    fast, slow = report["memories"]
    assert (fast["memory"], fast["bytes"], fast["waits"]) == ("dtcm", 612, 0)
    assert slow == {
        "memory": "sram", "bytes": 648, "capacity": slow["capacity"], "accesses": 2808, "waits": 5616,
        "holds": {"workspace": 1},
    }  # fmt: skip
    assert sum(layer["estimated_waits"] for layer in report["layers"]) == 5616
    for command in (["check", "--exact"], ["explain"], ["report"]):
        word, *more = command
        assert main([word, str(digits.INT8), "--board", str(tmp_path / "two.toml"), *more]) == 0
        shown = capsys.readouterr().out
        assert (
            f"648 of {slow['capacity']:,} bytes: 1 workspace; 2,808 accesses, 5,616 cycles of waiting, estimated"
            in shown
        )
    assert microc.compile(digits.INT8, board="mps2-an386").report()["memories"] == []
    assert board.memories[1].name == "sram"


def weighty(folder: Path, fast: int) -> Program:
    """Five layers with 4,096 bytes of weights each, on a board whose flash is slow."""
    program = microc.compile(layers(5), board=two_memories(folder, fast, flash=8))
    assert isinstance(program, Program)
    return program


def test_weights_go_where_they_are_read_faster(tmp_path: Path) -> None:
    """All of them stay where there is room; where there is little, two places take turns, and a copy goes on a layer ahead."""
    linked = microc.compile(layers(5), board=two_memories(tmp_path, 1 << 17))
    roomy, tight = weighty(tmp_path, 1 << 17), weighty(tmp_path, 9000)
    for program, steps in ((roomy, [-1] * 5), (tight, [0, 0, 1, 2, 3])):
        plan = program.module.plan
        assert plan is not None and sorted(plan.copies.values()) == steps
        check_plan(program.module)
    assert cycles(roomy) == cycles(linked)  # nothing waits
    without = sum(call.cycles + 8 // 4 * sum(t.bytes_read for t in call.traffic[1:2]) for call in linked.module.calls)
    assert cycles(roomy) < cycles(tight) <= 0.5 * without
    places = tight.module.plan.offsets  # type: ignore[union-attr]
    names = [call.args[1] for call in tight.module.calls]
    assert [places[name] for name in names] == [4096, 0, 4096, 0, 4096]
    x = np.random.default_rng(2).standard_normal((48, 32)).astype(np.float32)
    for program in (roomy, tight):
        assert np.array_equal(np.asarray(program.library()(x)), np.asarray(linked.library()(x)))


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_a_controller_of_the_users_own_copies(compiler: str, tmp_path: Path) -> None:
    """Functions with the names of the hook replace it; here they copy as late as they may, when the network waits."""
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    program = weighty(tmp_path, 9000)
    folder = program.write(tmp_path / "project")
    x = np.random.default_rng(2).standard_normal((48, 32)).astype(np.float32)
    (folder / "x.bin").write_bytes(x.tobytes())
    (folder / "late.c").write_text(LATE)
    command = [compiler, *WARNINGS, "late.c", "model.c", "model_data.c", "-lm", "-o", "late"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    subprocess.run(["./late"], cwd=folder, check=True)
    found = np.fromfile(folder / "y.bin", np.float32).reshape(48, 32)
    np.testing.assert_allclose(found, np.asarray(program.library()(x)), rtol=1e-5, atol=1e-6)


def damaged(module: Module, what: str) -> Module:
    plan = module.plan
    assert plan is not None
    weight, made = module.calls[2].args[1], module.calls[2].writes[0]
    changes: dict[str, dict[str, Any]] = {
        "not copied": {"copies": {name: step for name, step in plan.copies.items() if name != weight}},
        "copied too early": {"copies": {**plan.copies, weight: 0}},
        "copied too late": {"copies": {**plan.copies, weight: 3}},
        "under a result": {"offsets": {**plan.offsets, weight: plan.offsets[made]}},
    }
    return module.with_plan(replace(plan, **changes[what]))


@pytest.mark.parametrize("what", ["not copied", "copied too early", "copied too late", "under a result"])
def test_the_checker_follows_copies(what: str, tmp_path: Path) -> None:
    with pytest.raises(InternalError, match=r"overwritten|within a single arena"):
        check_plan(damaged(weighty(tmp_path, 9000).module, what))


@pytest.mark.emulator
@pytest.mark.cross
@pytest.mark.skipif(any(shutil.which(tool) is None for tool in TOOLS), reason="needs " + ", ".join(TOOLS))
@pytest.mark.parametrize("fast", [1 << 15, 9000])
def test_a_board_with_weights_in_ram_agrees(fast: int, tmp_path: Path) -> None:
    program = weighty(tmp_path, fast)
    project = microc.open_project(program.write(tmp_path / "project"))
    microc.build(project)
    x = np.random.default_rng(2).standard_normal((48, 32)).astype(np.float32)
    library = program.library()
    with Device(project) as device:
        checked, difference = compare_board_with_host(device, library, [[x], [-x]], tolerance=0)
    assert difference is None and len(checked) == 5
