# SPDX-License-Identifier: Apache-2.0
"""A goal for every kernel where flash is short: the fewest instructions that fit, and what stands on it."""

from __future__ import annotations

from functools import cache
from itertools import product
from math import isinf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.compiler.fit.budget import flash_bytes, list_goals_to_try
from microc.compiler.fit.search import build_network
from microc.compiler.lowering.derivation import derive_kernel
from microc.compiler.lowering.graph_to_module import describe_loop_steps
from microc.compiler.lowering.kernel_builder import CompiledNetwork, Configuration
from microc.compiler.model import read_model
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_network
from microc.compiler.tuned.records import list_tuning_tasks
from microc.run.against import build_kernels_for_host
from microc.target import target_for
from tests.support import digits
from tests.support.campaign import everything
from tests.support.corpus import models

CORES, CORE = ("rv32imc", "cortex-m55"), "cortex-m0plus"


@cache
def made(cpu: str = "rv32imc", source: Path = digits.INT8, **options: Any) -> CompiledNetwork:
    return compile_network(source, target_for(cpu), make_options(**options))


@cache
def ladder(cpu: str) -> list[CompiledNetwork]:
    """The network at every price of flash, all of it at one."""
    graph, target, options = made(cpu).kernel_builder.graph, target_for(cpu), make_options()
    goals = list_goals_to_try(graph, options, target)
    return [build_network(Configuration(graph, goal), target, "", options) for goal in goals]


@pytest.mark.parametrize("cpu", CORES)
def test_no_price_for_all_takes_fewer_instructions(cpu: str) -> None:
    """At whatever limit; the flash is kept, and what there is of it is used."""
    steps = ladder(cpu)
    flash = [flash_bytes(each.module) for each in steps]
    mixed = 0
    for limit in np.linspace(min(flash), max(flash), 7 if everything() else 4).astype(int).tolist():
        found = made(cpu, flash=limit)
        assert flash_bytes(found.module) <= limit
        fitting = [each.module.instructions for each in steps if flash_bytes(each.module) <= limit]
        assert found.module.instructions <= min(fitting)
        mixed += bool(found.configuration.goals)
    assert mixed


def test_the_choice_is_exact() -> None:
    """Of all combinations of the prices, kernel by kernel, none that fits takes fewer instructions."""
    steps = ladder("rv32imc")
    limit = (flash_bytes(steps[0].module) + flash_bytes(steps[-1].module)) // 2
    ways = [dict.fromkeys(weighed(each, k) for each in steps) for k in range(len(steps[0].module.calls))]
    fixed = flash_bytes(steps[0].module) - sum(weighed(steps[0], k)[0] for k in range(len(ways)))
    sums = (tuple(map(sum, zip(*way, strict=True))) for way in product(*ways))
    best = min(instructions for flash, instructions in sums if fixed + flash <= limit)
    assert made(flash=limit).module.instructions == best


def weighed(network: CompiledNetwork, place: int) -> tuple[int, int]:
    """Bytes of a step's code and constants, and its instructions."""
    call, module = network.module.calls[place], network.module
    values = (module.values[name] for name in set(call.args))
    code = next(kernel.code_bytes for kernel in module.kernels if kernel.name == call.kernel)
    return code + sum(value.nbytes for value in values if value.storage == "const"), call.instructions


def test_everything_that_asks_for_a_kernel_gets_that(tmp_path: Path) -> None:
    """Explanations derive it again, and a search begins with it."""
    limit = (flash_bytes(made().module) + flash_bytes(made(optimize="size").module)) // 2
    found = made(flash=limit)
    assert found.configuration.goals and found.module.options["optimize"] == "balanced"
    derived = [derive_kernel(found, number).parts for number in range(len(found.module.calls))]
    assert len({part.goal.price for parts in derived for part in parts}) > 1
    number = next(k for k, parts in enumerate(derived) if parts[0].goal != found.kernel_builder.goal)
    explained = microc.explain(digits.INT8, number, target="rv32imc", flash=limit).to_data()["kernel"]["parts"]
    assert [part["price"] for part in explained] == [
        None if isinf(part.goal.price) else part.goal.price for part in derived[number]
    ]
    schedules = {call.schedule for call in found.module.calls}
    assert all(
        describe_loop_steps(task.untuned[0].choice.schedule.trace) in schedules for task in list_tuning_tasks(found)
    )
    (tmp_path / "none.jsonl").write_text("")
    tuned = made(flash=limit, tuned=tmp_path / "none.jsonl")
    assert [call.schedule for call in tuned.module.calls] == [call.schedule for call in found.module.calls]


@pytest.mark.parametrize("cpu", CORES)
def test_results_are_the_same(cpu: str) -> None:
    free, small = (made(cpu, optimize=goal) for goal in ("balanced", "size"))
    limit = (flash_bytes(free.module) + flash_bytes(small.module)) // 2
    graph, target = read_model(digits.INT8, make_options()), target_for(cpu)
    within, plain = (build_kernels_for_host(graph, make_options(flash=flash), target) for flash in (limit, 0))
    for image in digits.images(4):
        assert np.array_equal(within(image), plain(image))


@pytest.mark.corpus
def test_a_network_of_the_benchmark_in_three_quarters_of_what_can_be_saved() -> None:
    """It takes 12.9 % more instructions than without a limit. The step of the price for all that fits takes 14.2 %, and leaves
    2 KB."""
    (path,) = models("mlperf_ic_int8.tflite")
    free, small = made(CORE, path), made(CORE, path, optimize="size")
    limit = (3 * flash_bytes(free.module) + flash_bytes(small.module)) // 4
    found = made(CORE, path, flash=limit)
    assert limit - 1024 < flash_bytes(found.module) <= limit
    assert found.module.instructions < 1.13 * free.module.instructions
