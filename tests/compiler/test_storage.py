# SPDX-License-Identifier: Apache-2.0
"""Constants in a memory that the core cannot address: chosen by waits, read in pieces, checked, and the same in every bit."""

from __future__ import annotations

import json
import shutil
import subprocess
import zlib
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.base import file_access
from microc.codegen.c.interface import pack_stored_constants
from microc.compiler.api import Program
from microc.compiler.bundle import bundle
from microc.device.boards import load_board
from microc.errors import DeviceError, FitError, InternalError, OutputError, UsageError
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph
from microc.module import Plan, StoredConstants
from microc.plan.code_and_constants import choose_stored_constants, list_constant_uses
from microc.plan.plan_check import check_plan
from microc.run.board_project import build_host_library
from microc.run.session import Device
from microc.run.verification import compare_board_with_host
from microc.target import Board, FlashMemory, Storage
from tests.models.test_boards import TOOLS
from tests.support import corpus, digits
from tests.support.campaign import in_campaign
from tests.support.native import WARNINGS

CARD = """[storage] # at 25 MHz and two cycles a bit, and what finding a block takes
name = "card"
size = {size}
latency = 2_500
block_bytes = 512
block_cycles = 8_192
dma = {dma}
sources = ["ports/semihosting_storage.c"]

[link]"""
TIGHT, ROOMY = 0x4600, 0x40_0000


def board(folder: Path, flash: int = TIGHT, *, dma: bool = True, size: int = 0x100_0000, more: str = "") -> Board:
    """An emulated board with ``flash`` bytes of flash whose card is a file of this computer."""
    text = (file_access.boards_folder() / "mps2-an386.toml").read_text()
    text = text.replace("size = 0x40_0000 # ZBT SSRAM 1", f"size = {flash}", 1)
    text = text.replace("[link]", more + CARD.format(size=size, dma=str(dma).lower()), 1)
    text = text.replace('"-nodefaults",', '"-nodefaults", "-semihosting-config", "enable=on,target=native",', 1)
    path = folder / "card.toml"
    path.write_text(text)
    return load_board(path)


def plan_with_storage(program: Program) -> tuple[Plan, StoredConstants]:
    """The plan of a program that reads constants from the card."""
    plan = program.module.plan
    assert plan is not None and plan.storage is not None
    return plan, plan.storage


def compiled(where: Board, model: Path | Graph = digits.INT8, **options: Any) -> Program:
    program = microc.compile(model, board=where, cache=False, **options)
    assert isinstance(program, Program)
    return program


def dense(units: int = 160) -> Graph:
    """A dense layer of int8 weights, ``units`` times ``units`` of them."""
    net = GraphBuilder()
    weight = net.constant("w", np.random.default_rng(1).integers(-127, 128, (units, units)).astype(np.int8))
    value = net.op("dense", net.input("x", (1, units), "int8"), weight, out_dtype="int32")
    return net.graph("dense", {"y": value})


def test_no_other_choice_of_constants_waits_less() -> None:
    """Held against all subsets of the large constants of digits that fit the flash, where nothing overlaps."""
    program = microc.compile(digits.INT8, board="mps2-an386")
    assert isinstance(program, Program)
    module = program.module
    sizes = {v.name: -(-v.nbytes // v.align) * v.align for v in module.values.values() if v.storage == "const"}
    large = [name for name in list_constant_uses(module) if module.values[name].nbytes >= 64]
    card = Storage("card", 1 << 20, 500, 32, 100.0)
    subsets = np.array(list(product((False, True), repeat=len(large))))
    taken = sum(sizes.values()) - subsets @ np.array([sizes[name] for name in large])
    waits = subsets @ np.array([card.read_cycles(module.values[name].nbytes) for name in large])
    for room in (2500, 6000, 12000):
        chosen = choose_stored_constants(module, (FlashMemory("flash", room),), card)
        assert sum(sizes.values()) - sum(sizes[name] for name in chosen) <= room
        assert sum(card.read_cycles(module.values[n].nbytes) for n in chosen) == waits[taken <= room].min()
    assert not choose_stored_constants(module, (FlashMemory("flash", sum(sizes.values())),), card)


def test_reads_overlap_the_kernel_before_theirs(tmp_path: Path) -> None:
    """With DMA a read begins one kernel earlier and waits for what the kernel does not cover; without, it waits as a whole."""
    for dma in (True, False):
        program = compiled(board(tmp_path, dma=dma))
        plan, card = plan_with_storage(program)
        module = program.module
        total = 0
        for number, call in enumerate(module.calls):
            begun = [name for name in card.offsets if name in call.args]
            assert all(plan.copies[name] == (max(number - 1, 0) if dma else number) for name in begun)
            reading = sum(2500 + -(-module.values[name].nbytes // 512) * 8192 for name in begun)
            hidden = module.calls[number - 1].cycles - module.calls[number - 1].waits if dma and number else 0
            assert call.waits == max(reading - hidden, 0)
            total += call.waits
        assert card.waits == total > 0
        assert module.const_bytes + sum(module.values[n].nbytes for n in card.offsets) == sum(
            value.nbytes for value in module.values.values() if value.storage == "const"
        )


def test_buffers_are_checked(tmp_path: Path) -> None:
    """A plan whose buffer is overwritten, or whose file has no room for a constant, is a defect."""
    program = compiled(board(tmp_path))
    plan, card = plan_with_storage(program)
    check_plan(program.module)
    name, step = next((name, plan.copies[name]) for name in card.offsets)
    user = next(call for call in program.module.calls if name in call.args)
    wrong = [
        (replace(plan, offsets={**plan.offsets, user.reads[0]: plan.offsets[name]}), "overlaps|overwritten"),
        (replace(plan, copies={**plan.copies, name: step + 2}), "not read before it is used"),
        (replace(plan, storage=replace(card, size=card.size - 1)), "expected .* or more"),
        (replace(plan, storage=replace(card, offsets={**card.offsets, user.args[2]: card.offsets[name] + 4})), "overlaps"),
    ]  # fmt: skip
    for changed, message in wrong:
        with pytest.raises(InternalError, match=message):
            check_plan(program.module.with_plan(changed))


def test_the_file_has_a_header_and_all_constants(tmp_path: Path) -> None:
    """Each constant begins at a block, as the core has it in memory."""
    program = compiled(board(tmp_path))
    _, card = plan_with_storage(program)
    content = pack_stored_constants(program.module)
    assert content[:8] == b"mcw1\x01\0\0\0" and int.from_bytes(content[8:12], "little") == len(content) == card.size
    assert int.from_bytes(content[12:16], "little") == zlib.crc32(content[16:])
    for name, offset in card.offsets.items():
        data = program.module.values[name].data
        assert data is not None and offset % 512 == 0
        assert content[offset : offset + data.nbytes] == data.tobytes()
    manifest = json.loads(str(program.files()["manifest.json"]))
    assert manifest["storage"]["crc"] == zlib.crc32(content[16:])
    assert manifest["storage"]["offsets"] == dict(card.offsets)
    row = program.report()["memories"][-1]
    assert (row["memory"], row["bytes"], row["waits"], row["reads"]) == ("card", card.size, card.waits, card.reads)


MAIN = """
#include "model.h"
#include <stdio.h>
#include <string.h>
static FILE *card;
static int broken = -1, queued;
static struct { uint32_t offset, bytes; void *to; } queue[8];
/* A driver that reads nothing before it must: what was begun is poison until the wait. */
int digits_int8_read(uint32_t offset, void *to, uint32_t bytes)
{
    if (broken-- == 0 || queued == 8 || ((uintptr_t)to & 3u) != 0u) {
        return 5;
    }
    (void)memset(to, 0x55, bytes);
    queue[queued].offset = offset, queue[queued].bytes = bytes, queue[queued++].to = to;
    return 0;
}
int digits_int8_read_wait(void)
{
    int wrong = 0;
    while (queued > 0) {
        --queued;
        wrong |= fseek(card, (long)queue[queued].offset, SEEK_SET) != 0;
        wrong |= fread(queue[queued].to, 1, queue[queued].bytes, card) != queue[queued].bytes;
    }
    return wrong;
}
int main(int argc, char **argv)
{
    static uint64_t arena[(DIGITS_INT8_ARENA_SIZE + 7) / 8 + 1];
    static int8_t image[DIGITS_INT8_IMAGE_SIZE];
    int8_t scores[DIGITS_INT8_PROBABILITIES_SIZE];
    const struct digits_int8_inputs inputs = { image };
    const struct digits_int8_outputs outputs = { scores };
    card = fopen(argv[1], "rb");
    if (argc != 3 || card == NULL) {
        return 2;
    }
    for (uint32_t k = 0; k < DIGITS_INT8_IMAGE_SIZE; ++k) {
        image[k] = (int8_t)(int)(k * 37u % 256u - 128u);
    }
    (void)sscanf(argv[2], "%d", &broken);
    printf("%d ", digits_int8_check_weights(arena));
    digits_int8_reset(arena);
    printf("%d", digits_int8_run(arena, &inputs, &outputs));
    for (uint32_t k = 0; k < DIGITS_INT8_PROBABILITIES_SIZE; ++k) {
        printf(" %d", scores[k]);
    }
    printf("\\n");
    return 0;
}
"""


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_a_driver_may_read_late_and_may_fail(compiler: str, tmp_path: Path) -> None:
    """The C is clean; a late read changes no bit; a failed read and another file end with their errors."""
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    program = compiled(board(tmp_path))
    _, card = plan_with_storage(program)
    folder = program.write(tmp_path / "project")
    (folder / "card.c").write_text(MAIN)
    sources = [str(folder / name) for name in ("model.c", "model_data.c", "card.c")]
    command = [compiler, *WARNINGS, "-O1", f"-I{folder}", *sources, "-lm", "-o", str(tmp_path / "card")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]

    def run(content: bytes, broken: int = -1) -> list[int]:
        (tmp_path / "weights.bin").write_bytes(content)
        line = [str(tmp_path / "card"), str(tmp_path / "weights.bin"), str(broken)]
        return list(map(int, subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()))

    content = (folder / "weights.bin").read_bytes()
    image = (np.arange(64) * 37 % 256 - 128).astype(np.int8).reshape(1, 8, 8, 1)
    expected = microc.compile(digits.INT8)(image)
    assert run(content) == [0, 0, *np.ravel(expected).tolist()]
    for place in (0, 5, card.size // 2, card.size - 1):  # the header, its version, a constant, the last byte
        damaged = bytearray(content)
        damaged[place] ^= 0x40
        assert run(bytes(damaged))[0] == -6
    assert run(content[:-1])[:2] == [-5, -5]
    checks = -(-card.size // (plan_with_storage(program)[0].size // 512 * 512))
    assert run(content, 0)[:2] == [-5, 0]
    for read in range(card.reads):
        assert run(content, checks + read)[:2] == [0, -5]


def test_a_project_runs_on_this_computer_from_its_file(tmp_path: Path) -> None:
    """The library of a project contains its weights.bin, and refuses another one."""
    program = compiled(board(tmp_path))
    project = microc.open_project(program.write(tmp_path / "project"))
    image = np.random.default_rng(2).integers(-128, 128, (1, 8, 8, 1)).astype(np.int8)
    expected = microc.compile(digits.INT8)(image)
    for library in (program.library(), build_host_library(project)):
        assert np.array_equal(library(image), expected)
    content = bytearray((project.folder / "weights.bin").read_bytes())
    content[-1] ^= 1
    (project.folder / "weights.bin").write_bytes(content)
    with pytest.raises(OutputError, match="is not the file of this network"):
        build_host_library(project)
    (project.folder / "weights.bin").unlink()
    with pytest.raises(OutputError, match="lacks a source file"):
        build_host_library(project)


def test_room_in_flash_and_budgets_decide(tmp_path: Path) -> None:
    """A board whose flash has room keeps everything there, by the same C; ``--flash`` gives less of it."""
    roomy, plain = compiled(board(tmp_path, ROOMY)), microc.compile(digits.INT8, board="mps2-an386", cache=False)
    assert isinstance(plain, Program) and roomy.module.plan is not None and roomy.module.plan.storage is None
    assert all(roomy.files()[name] == plain.files()[name] for name in ("model.c", "model.h", "model_data.c"))
    assert "weights.bin" not in roomy.files() and "runtime/ports/semihosting_storage.c" not in roomy.files()
    lean = compiled(board(tmp_path, ROOMY), flash=9000)
    plan_with_storage(lean)
    assert lean.module.const_bytes < 9000
    relocatable = compiled(board(tmp_path, ROOMY), relocatable=True)
    assert relocatable.module.plan is not None and relocatable.module.plan.storage is None


def test_several_memories_take_buffers_that_may_hold_weights(tmp_path: Path) -> None:
    """Buffers are where the board's file allows weights; the checker follows them."""
    more = '[[memory]]\nname = "psram"\nkind = "ram"\norigin = 0x2100_0000\nsize = 0x8000\nholds = ["tensors", "weights"]\n'
    program = compiled(board(tmp_path, more=more + "wait_states = 2\n\n"))
    plan, card = plan_with_storage(program)
    arena = next(arena for arena in plan.arenas if arena.memory == "psram")
    assert all(arena.start <= plan.offsets[name] < arena.start + arena.size for name in card.offsets)
    assert "uint8_t *const buffer = arenas->psram;" in str(program.files()["model.c"])
    image = np.random.default_rng(3).integers(-128, 128, (1, 8, 8, 1)).astype(np.int8)
    assert np.array_equal(program.library()(image), microc.compile(digits.INT8)(image))


def test_layers_are_split_where_their_weights_do_not_fit(tmp_path: Path) -> None:
    """Along output channels: pieces of a dense layer are computed in place by one kernel, two of them in RAM at a time."""
    data = np.random.default_rng(4).integers(-128, 128, (1, 160)).astype(np.int8)
    expected = microc.compile(dense())(data)
    for dma, ram in ((True, 8_000), (False, 2_600)):
        program = microc.compile(dense(), board=board(tmp_path, dma=dma), cache=False, ram=ram)
        assert isinstance(program, Program)
        plan, card = plan_with_storage(program)
        assert plan.size <= ram and len(program.module.kernels) == 1 < len(program.module.calls)
        assert card.waits > 0
        assert np.array_equal(program.library()(data), expected)


def test_an_export_contains_the_file_and_its_example_reads_it(tmp_path: Path) -> None:
    """The example of a plain C folder prints what it prints without a card."""
    printed = []
    for flash in (TIGHT, ROOMY):
        folder = tmp_path / str(flash)
        program = compiled(board(tmp_path, flash))
        program.export("c", folder)
        assert (folder / "weights.bin").is_file() == (flash == TIGHT)
        sources = sorted(map(str, folder.glob("*.c")))
        subprocess.run(["gcc", *WARNINGS, "-o", str(folder / "sample"), *sources, "-lm"], check=True)
        printed.append(subprocess.run([folder / "sample"], capture_output=True, check=True).stdout)
    assert printed[0] == printed[1] != b""


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    """With the layer and its bytes, or the storage and its size."""
    with pytest.raises(FitError, match=r"layer .* needs \d+ bytes of RAM, \d+ of them for the weights .* from card"):
        microc.compile(dense(), board=board(tmp_path), cache=False, ram=850)
    with pytest.raises(
        FitError, match=r"storage 'card' is too small; got weights.bin of \d+ bytes, expected at most 600"
    ):
        compiled(board(tmp_path, size=600)).write(tmp_path / "small")
    program = compiled(board(tmp_path), dense(), name="one")
    with pytest.raises(UsageError, match="firmware of several networks"):
        bundle(program, compiled(board(tmp_path), dense(), name="two"))
    with pytest.raises(UsageError, match=r"format rust: got a network that reads weights\.bin"):
        program.export("rust", tmp_path / "export")
    path = tmp_path / "card.toml"
    path.write_text(path.read_text().replace('name = "card"', 'name = "data"'))
    with pytest.raises(UsageError, match=r"\[storage\] name: got 'data'"):
        load_board(path)
    text = (file_access.boards_folder() / "arduino-uno.toml").read_text()
    path.write_text(text.replace("[link]", '[storage]\nname = "card"\nsize = 1024\n\n[link]', 1))
    with pytest.raises(UsageError, match="whose kernels read constants from flash only"):
        load_board(path)


EMULATED = pytest.mark.skipif(any(shutil.which(tool) is None for tool in TOOLS), reason="needs " + ", ".join(TOOLS))


@in_campaign
@pytest.mark.emulator
@pytest.mark.cross
@pytest.mark.parametrize("path", corpus.models("mlperf_ad_int8.tflite"), ids=lambda path: path.stem)
@EMULATED
def test_a_network_of_the_corpus_reads_its_weights_in_pieces(path: Path, tmp_path: Path) -> None:
    """270 KB of weights in 64 KiB of flash and an arena of 16,000 bytes, which the first layer's weights exceed five times."""
    program = microc.compile(path, board=board(tmp_path, 0x1_0000), cache=False, ram=16_000)
    assert isinstance(program, Program)
    plan, card = plan_with_storage(program)
    assert plan.size <= 16_000 and card.size > 200_000 and len(program.module.calls) > 14
    project = microc.open_project(program.write(tmp_path / "project"))
    microc.build(project)
    entry = program.module.values[program.module.inputs[0]]
    samples = [[np.random.default_rng(1).integers(-128, 128, entry.shape).astype(np.int8)]]
    with Device(project) as device:
        layers, difference = compare_board_with_host(device, program.library(), samples, tolerance=0)
        result = device.run(*samples[0])
    assert difference is None and len(layers) == len(program.module.calls)
    assert np.array_equal(result, microc.compile(path)(*samples[0]))


@pytest.mark.emulator
@pytest.mark.cross
@EMULATED
def test_a_board_reads_its_card(tmp_path: Path) -> None:
    """Every kernel of digits agrees with this computer; a damaged card is found at boot, and its network does not run."""
    program = compiled(board(tmp_path))
    project = microc.open_project(program.write(tmp_path / "project"))
    microc.build(project)
    samples = [[np.random.default_rng(1).integers(-128, 128, (1, 8, 8, 1)).astype(np.int8)]]
    library = program.library()
    with Device(project) as device:
        layers, difference = compare_board_with_host(device, library, samples, tolerance=0)
    assert difference is None and len(layers) == len(program.module.calls)
    content = bytearray((project.folder / "weights.bin").read_bytes())
    content[-1] ^= 1
    (project.folder / "weights.bin").write_bytes(content)
    with Device(project) as device, pytest.raises(DeviceError):
        device.run(*samples[0])
