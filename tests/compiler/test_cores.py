# SPDX-License-Identifier: Apache-2.0
"""Networks for two cores of a board: the same bits as for one, in whatever order the halves of a loop run."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.base.file_access import boards_folder
from microc.codegen.c.c_statements import core_count_of, has_parallel_loop
from microc.codegen.c.source import shared_files
from microc.compiler.fit.search import CORE1_RAM, board_capacity
from microc.compiler.lowering.derivation import derive_kernel
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_model, compile_network
from microc.device.boards import load_board
from microc.errors import ScheduleError, UsageError
from microc.graph.ir import Graph
from microc.module import Module
from microc.schedule.choose import Choice
from microc.schedule.rules.around_rules import distribute_among_cores
from microc.schedule.schedule import Schedule
from microc.target import Target, target_for
from microc.tir import ir
from microc.tir.lower import lower
from microc.tir.rewrite import walk_stmt
from tests.schedule.functions import matmul, outputs, padded_rows, schedule_kernel
from tests.support import corpus, digits
from tests.support.campaign import in_turn
from tests.support.native import WARNINGS
from tests.transform.streams import Sequence

M33 = load_board("mps2-an521").target
MODELS = [digits.INT8, digits.FLOAT, *corpus.models("mlperf_kws_int8.tflite")]


def two_cores(cpu: str, least: int = 1) -> Target:
    """A core of which a board has two, and for which small loops are worth a fork."""
    return replace(target_for(cpu), max_cores=2, min_fork_instructions=least)


def module_of(model: Path, cores: int, cpu: str) -> Module:
    return compile_model(model, two_cores(cpu), make_options(cores=cores, name="net"))


_MAIN = """
#include <stdio.h>
#include "model.h"
static uint64_t arena[(NET_ARENA_SIZE + 7) / 8 + 1];
static uint32_t now(void)
{
    return 0;
}
int main(void)
{
    uint8_t *const bytes = (uint8_t *)arena;
    const struct net_inputs inputs = {INPUTS};
    const struct net_outputs outputs = {OUTPUTS};
    uint32_t seed = 1, next = 0;
    for (uint32_t run = 0; run < 3; ++run) {
        for (uint32_t k = 0; k < sizeof arena; ++k) {
            seed = seed * 1664525u + 1013904223u;
            bytes[k] = IS_FLOAT && k % 4 > 1 ? (uint8_t)(k % 4 == 3 ? 0x3F : 0x7F & (seed >> 24)) : (uint8_t)(seed >> 24);
        }
        net_reset(arena);
        for (uint32_t kernel = 0; kernel < NET_KERNEL_COUNT; ++kernel) {
            uint32_t hash = 2166136261u;
            (void)net_run_slice(arena, &inputs, &outputs, &next, now, 0u);
            for (uint32_t k = 0; k < NET_ARENA_SIZE; ++k) {
                hash = (hash ^ bytes[k]) * 16777619u;
            }
            (void)printf("%u %08x\\n", (unsigned)kernel, (unsigned)hash);
        }
    }
    return 0;
}
"""


def hashes(module: Module, folder: Path, *flags: str) -> str:
    """Of the arena after each kernel, which is a slice of the run."""
    ends = {"INPUTS": module.inputs, "OUTPUTS": module.outputs}
    main = _MAIN
    for word, names in ends.items():
        main = main.replace(word, ", ".join(f".{name} = net_{name}(arena)" for name in names))
    main = main.replace("IS_FLOAT", str(int(module.values[module.inputs[0]].dtype == "float32")))
    for name, text in {**shared_files(module, "test"), "main.c": main}.items():
        (folder / name).write_text(text)
    command = ["gcc", *WARNINGS, "-O1", *flags, "main.c", "model.c", "model_data.c", "-lm", "-o", "net"]
    for argv in (command, ["./net"]):
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr[:2000]
    return done.stdout


@pytest.mark.parametrize(
    ("model", "cpu"),
    in_turn(MODELS, ["cortex-m33-nodsp", "cortex-m33", "cortex-m0plus", "rv32imac_zba_zbb"], 2),
    ids=lambda value: getattr(value, "stem", value),
)
def test_every_kernel_is_the_same_in_both_orders(model: Path, cpu: str, tmp_path: Path) -> None:
    """One core runs both halves, the other one's first or last: what any two cores can do lies between. A half that needs what
    the other one writes, or a workspace that both use, shows in the arena's bytes."""
    module = module_of(model, 2, cpu)
    assert core_count_of(module) == 2
    assert sum(map(has_parallel_loop, module.kernels)) > 1
    first = hashes(module, tmp_path)
    assert first == hashes(module, tmp_path, "-DMICROC_OTHER_HALF_LAST")
    assert len(set(first.split())) > len(module.calls)


@pytest.mark.parametrize(
    "options", [{"learn": {"layers": 2, "optimiser": "momentum"}}, {"stream": 1}], ids=["learns", "stream"]
)
def test_networks_with_state_are_the_same_in_both_orders(options: dict[str, Any], tmp_path: Path) -> None:
    model: Path | Graph = digits.FLOAT
    if "stream" in options:
        net = Sequence(3, integers=True, width=4, channels=8)
        middle = net.conv(net.x, (3, 3), channels=16, padding=(2, 1, 0, 1))
        model = net.graph(net.conv(middle, (3, 1), channels=8, padding=(2, 0, 0, 0)))
    module = compile_model(model, two_cores("cortex-m33"), make_options(cores=2, name="net", **options))
    assert sum(map(has_parallel_loop, module.kernels)) > 1
    assert hashes(module, tmp_path) == hashes(module, tmp_path, "-DMICROC_OTHER_HALF_LAST")


@pytest.mark.parametrize("model", MODELS[:2], ids=lambda path: path.stem)
def test_two_cores_compute_what_one_does(model: Path) -> None:
    """By the meaning of the functions, which is that of serial loops."""
    from microc.run.desktop.load import build_library

    options = {n: make_options(cores=n, name="net") for n in (1, 2)}
    built = {
        n: build_library(shared_files(compile_model(model, two_cores("cortex-m33"), o), "test"))
        for n, o in options.items()
    }
    tensor = built[1].inputs[0]
    real = np.random.default_rng(0).standard_normal((8, *tensor["shape"])) * (1 if tensor["dtype"] == "float32" else 64)
    x = real.astype(tensor["dtype"])
    assert np.asarray(built[2].batch(x)).tobytes() == np.asarray(built[1].batch(x)).tobytes()


def parallel(func: ir.PrimFunc) -> list[ir.For]:
    return [s for s in walk_stmt(func.body) if isinstance(s, ir.For) and s.kind == "parallel"]


def distributed(schedule: Schedule, least: int = 1) -> Choice:
    target = replace(two_cores("cortex-m4", least), cores=2)
    return distribute_among_cores(Choice(schedule, lower(schedule.func)), target)


@pytest.mark.parametrize(
    "func",
    [matmul(24, 8, 12), matmul(10, 5, 6), matmul(13, 8, 8), matmul(3, 16, 32), padded_rows(9, 8), padded_rows(2, 4)],
    ids=["even", "odd", "tail", "few rows", "rows", "two rows"],
)
def test_the_meaning_is_kept(func: ir.PrimFunc) -> None:
    schedule = distributed(schedule_kernel(func, "dense", target_for("host"))).schedule
    assert parallel(schedule.func)
    assert np.array_equal(outputs(schedule.func, lowered=True, schedule=schedule), outputs(func, lowered=False))


def test_a_tail_belongs_to_the_core_that_forks() -> None:
    """Nine rows in tiles of two: four full ones, two for each core, and one row."""
    start = Schedule(matmul(9, 6, 4)).reverse_compute_at("out", "o").set_scope("acc", "register").split("p", (None, 2))
    func = lower(start.distribute("p_0", 2).func)
    (loop,) = parallel(func)
    assert isinstance(loop.body, ir.Seq)
    tiles, tail = loop.body.body
    assert isinstance(tiles, ir.For)
    assert ir.int_value(tiles.extent) == 2
    assert isinstance(tail, ir.If)
    assert tail.condition == ir.Bin("eq", loop.var, ir.as_index(0))


def test_each_core_has_a_workspace() -> None:
    start = Schedule(padded_rows(6, 8)).compute_at("padded", "y_acc")
    (alone,) = (b for b in lower(start.func).params if b.name == "padded")
    (both,) = (b for b in lower(start.distribute("y_acc", 2).func).params if b.name == "padded")
    assert both.shape == (2, *alone.shape)


def test_slices_of_iterations_share_the_workspace_of_their_core() -> None:
    """Each row writes sums of its own: on threads each keeps its slice, on cores one after the other takes the same."""
    start = Schedule(matmul(8, 6, 4)).reverse_compute_at("out", "p").set_scope("acc", "workspace")

    def workspace_shape(schedule: Schedule) -> tuple[int, ...]:
        return next(b.shape for b in lower(schedule.func).params if b.name == "acc")

    alone = workspace_shape(start)
    assert workspace_shape(start.parallel("p")) == (8, *alone)
    assert workspace_shape(start.distribute("p", 2)) == (2, *alone)


def test_small_loops_and_one_core_change_nothing() -> None:
    schedule = schedule_kernel(matmul(24, 8, 12), "dense", target_for("cortex-m4"))
    choice = Choice(schedule, lower(schedule.func))
    assert distribute_among_cores(choice, two_cores("cortex-m4")) is choice
    assert not parallel(distributed(schedule, 1 << 30).schedule.func)


def test_few_iterations_are_left_to_the_loop_inside() -> None:
    """Three rows of 64 columns: two rows and one would take a third longer than half of the columns of each."""
    schedule = Schedule(matmul(3, 32, 64)).reverse_compute_at("out", "o").set_scope("acc", "register")
    assert [loop.var.name for loop in parallel(distributed(schedule).schedule.func)] == ["o"]
    assert [loop.var.name for loop in parallel(distributed(schedule, 20_000).schedule.func)] == ["p"]


def test_steps_that_cannot_be() -> None:
    schedule = Schedule(matmul(4, 8, 4)).reverse_compute_at("out", "o").set_scope("acc", "register")
    with pytest.raises(ScheduleError, match="expected 2"):
        schedule.distribute("p", 3)
    with pytest.raises(ScheduleError, match="which cores share"):
        schedule.distribute("o", 2).distribute("p", 2)
    with pytest.raises(ScheduleError, match="reduces"):
        schedule.distribute("k", 2)


def test_reports_derive_the_same_functions() -> None:
    network = compile_network(digits.FLOAT, two_cores("cortex-m4"), make_options(cores=2))
    for number in range(len(network.module.calls)):
        derive_kernel(network, number)  # InternalError where what is derived is not what was compiled


def test_one_core_has_no_word_of_them() -> None:
    text = shared_files(compile_model(digits.INT8, M33, make_options(name="net")), "test")["model.c"]
    assert not any(word in text for word in ("fork", "core", "_seen"))


def test_refusals() -> None:
    for board in ("nucleo-h743zi", "host"):
        with pytest.raises(UsageError, match="cores: got 2, expected 1 on"):
            microc.compile(digits.INT8, board=board, cores=2)
    with pytest.raises(UsageError, match="cores: got 2, expected 1 on"):
        microc.compile(digits.INT8, "cortex-m33", cores=2)
    for count in (0, 3, "2", True):
        with pytest.raises(UsageError, match="number of cores cannot be"):
            microc.compile(digits.INT8, board="mps2-an521", cores=count)  # type: ignore[arg-type]


def test_kernels_that_need_too_much_memory_stay_on_one_core() -> None:
    """What fits on one core fits on two: some kernels are left to one of them then, and reports derive these, too."""
    one, two = (module_of(digits.INT8, cores, "cortex-m33-nodsp") for cores in (1, 2))
    assert one.plan is not None and two.plan is not None and one.plan.size < two.plan.size
    options = make_options(cores=2, name="net", ram=one.plan.size)
    network = compile_network(digits.INT8, two_cores("cortex-m33-nodsp"), options)
    plan = network.module.plan
    assert plan is not None and plan.size <= one.plan.size
    assert network.configuration.alone
    for number in range(len(network.module.calls)):
        derive_kernel(network, number)


def test_combinations_that_are_refused() -> None:
    with pytest.raises(UsageError, match="relocatable"):
        microc.compile(digits.INT8, board="mps2-an521", cores=2, relocatable=True)
    with pytest.raises(UsageError, match="dynamic sizes"):
        compile_network(digits.FLOAT, two_cores("cortex-m4"), make_options(cores=2, bounds={"n": 2}))


@pytest.mark.parametrize("removed", [r"^cores = 2\n", r"^\[fork\].*\n(.+\n)+"])
def test_a_board_names_its_second_core_and_what_starts_it(removed: str, tmp_path: Path) -> None:
    text, count = re.subn(removed, "", (boards_folder() / "mps2-an521.toml").read_text(), flags=re.M)
    assert count == 1
    (tmp_path / "board.toml").write_text(text)
    with pytest.raises(UsageError, match="a second core needs both"):
        load_board(tmp_path / "board.toml")


@pytest.mark.parametrize(("name", "static_bytes"), [("mps2-an521", CORE1_RAM), ("esp32-s3", 1600)])
def test_the_second_core_is_part_of_the_ram(name: str, static_bytes: int) -> None:
    """Its stack and what starts it are static: estimates, and what a board leaves to its network, count them."""
    board = load_board(name)
    one, two = (microc.compile(digits.INT8, board=board, cores=n).report() for n in (1, 2))
    fixed = static_bytes + board.raw["fork"]["stack_bytes"]
    assert two["ram"] - two["arena"] - two["stack_bound"] == one["ram"] - one["arena"] - one["stack_bound"] + fixed
    assert board_capacity(board).ram - board_capacity(board, cores=2).ram == fixed
