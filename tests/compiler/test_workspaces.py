# SPDX-License-Identifier: Apache-2.0
"""Schedules of smaller workspaces: taken where an arena must be smaller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.cli import main
from microc.compiler.fit.budget import workspace_limits
from microc.compiler.fit.moves import ARENA_MOVES, propose_smaller_workspaces
from microc.compiler.fit.search import Move, NetworkBuilder, Search
from microc.compiler.lowering.external_layers import NetworkDivision
from microc.compiler.lowering.kernel_builder import CompiledNetwork, Configuration, KernelGroup
from microc.compiler.lowering.kernel_selection import group_algorithms, select_group_schedule
from microc.compiler.options import Options, make_options
from microc.compiler.pipeline import compile_network
from microc.compiler.tuned.records import kernel_key_by_layer, list_tuning_tasks
from microc.schedule.choose import workspace_bytes
from microc.target import Goal, target_for
from microc.tir import ir
from tests.support import digits
from tests.support.campaign import everything
from tests.support.corpus import models

CORES = ("cortex-m0plus", "cortex-m4", "cortex-m55", "x86-64-v3")


@cache
def made(cpu: str = "cortex-m4", source: Path = digits.INT8, **options: Any) -> CompiledNetwork:
    return compile_network(source, target_for(cpu), make_options(**options))


def arena(network: CompiledNetwork) -> int:
    assert network.module.plan is not None
    return network.module.plan.size


@pytest.mark.parametrize("cpu", CORES)
def test_kernels_keep_within_what_they_are_left(cpu: str) -> None:
    """Where any schedule does; the least of all where none does."""
    network = made(cpu)
    for origin in network.kernel_builder.origins.values():
        if not isinstance(origin, KernelGroup):
            continue
        lowered = group_algorithms(network.kernel_builder.graph, origin.nodes, network.kernel_builder.target, "kernel")

        def taken(workspace: float, lowered: Any = lowered) -> int:
            _, choice = select_group_schedule(
                lowered, network.kernel_builder.target, network.kernel_builder.goal, shipped=True, workspace=workspace
            )
            return workspace_bytes(choice.func)

        plain, least = taken(float("inf")), taken(0)
        assert least <= plain == taken(plain)
        assert all(
            taken(bytes_) <= bytes_ for bytes_ in range(least, plain, 1 + (plain - least) // (4 if everything() else 2))
        )
        assert taken(-1) == least


@pytest.mark.parametrize(("cpu", "limit"), [("cortex-m0plus", 700), ("cortex-m4", 1000), ("cortex-m4", 700)])
def test_an_arena_becomes_smaller(cpu: str, limit: int) -> None:
    plain, small = made(cpu), made(cpu, ram=limit)
    assert arena(small) <= limit < arena(plain)
    assert small.module.plain is not None and small.module.plain.arena == arena(plain)
    assert small.module.macs == plain.module.macs and not any(call.streamed for call in small.module.calls)
    if (cpu, limit) == ("cortex-m4", 1000) or everything():
        made_again = made.__wrapped__(cpu, ram=limit)
        assert made_again.module.fingerprint == small.module.fingerprint


def test_results_are_the_same() -> None:
    library, plain = microc.compile(digits.INT8, ram=700), microc.compile(digits.INT8)
    for image in digits.images(8):
        assert np.array_equal(library(image), plain(image))


def test_what_is_measured_is_compared_with_them(tmp_path: Path) -> None:
    """A file of records finds the same schedules to begin with, and fits the same arena."""
    (tmp_path / "none.jsonl").write_text("")
    small = made(ram=1000)

    def workspaces(func: ir.PrimFunc) -> tuple[ir.Buffer, ...]:
        return tuple(param for param in func.params if param.scope == "workspace")

    # Parameters are fewer where constants of channels are stored behind weights, as is chosen after schedules.
    assert {workspaces(task.untuned[0].choice.func) for task in list_tuning_tasks(small)} >= {
        workspaces(small.module.kernels[k].func) for k, call in enumerate(small.module.calls) if call.workspace
    }
    tuned = made(ram=1000, tuned=tmp_path / "none.jsonl")
    assert [call.schedule for call in tuned.module.calls] == [call.schedule for call in small.module.calls]


def test_rooms_of_layers_alike_are_the_least_of_theirs() -> None:
    network = made()
    tasks = list_tuning_tasks(network)
    rooms = workspace_limits(1000, network.module, kernel_key_by_layer(tasks))
    assert rooms.keys() == {task.key for task in tasks} and max(rooms.values()) < 1000
    together = [replace(tasks[0], layers=tuple(layer for task in tasks for layer in task.layers))]
    assert workspace_limits(1000, network.module, kernel_key_by_layer(together)) == {tasks[0].key: min(rooms.values())}


class Offers(NetworkBuilder):
    """A builder whose networks are given, the requested one first."""

    def __init__(self, networks: Sequence[CompiledNetwork], options: Options) -> None:
        graph, target = networks[0].kernel_builder.graph, networks[0].kernel_builder.target
        super().__init__(graph, NetworkDivision(graph, None), "", target, options)
        self.networks = dict(zip(map(float, range(len(networks))), networks, strict=True))

    def requested_configuration(self) -> Configuration:
        return self.offer(0)

    def offer(self, number: int) -> Configuration:
        return Configuration(self.division.graph, Goal("balanced", float(number)))

    def build(self, configuration: Configuration) -> CompiledNetwork:
        return self.networks.get(configuration.goal.price, self.networks[0.0])


def test_nothing_is_tried_where_no_step_has_a_workspace() -> None:
    network = made()
    bare = replace(network.module, calls=tuple(replace(call, workspace=()) for call in network.module.calls))
    search = Search(
        Offers([replace(network, module=bare)], make_options(ram=100)), optimise=lambda _: pytest.fail("optimised")
    )
    search.try_moves([Move("workspaces", propose_smaller_workspaces)])
    assert len(search.trials) == 1


def test_the_least_work_that_fits_is_taken() -> None:
    network = made()

    def like(size: int, instructions: int) -> CompiledNetwork:
        plan = network.module.plan
        assert plan is not None
        module = replace(network.module, plan=replace(plan, size=size), kernels=network.module.kernels)
        calls = tuple(replace(call, instructions=instructions if k == 0 else 0) for k, call in enumerate(module.calls))
        return replace(network, module=replace(module, calls=calls))

    plain, little, slow = like(100, 1000), like(50, 1040), like(50, 1500)
    rows, large = like(40, 1200), like(80, 1100)

    def found(limit: int, *offers: CompiledNetwork, flash: int = 0) -> CompiledNetwork:
        builder = Offers([plain, *offers], make_options(ram=limit, flash=flash))
        search = Search(builder, optimise=lambda _: pytest.fail("optimised"))
        numbers = range(1, len(offers) + 1)
        (move,) = (move for move in ARENA_MOVES if move.name == "workspaces")
        search.try_moves([replace(move, propose=lambda _: ((str(k), builder.offer(k)) for k in numbers))])
        assert [trial.instructions for trial in search.trials[1:]] == [each.module.instructions for each in offers]
        return search.best

    assert found(100, slow) is plain
    assert found(50, little, slow) is little
    assert found(50, slow, rows) is rows
    assert found(50, slow, large) is slow
    assert found(50, large, rows) is rows
    assert found(30, large, slow) is slow
    assert found(30, slow, rows, large) is rows
    assert found(50, little, rows, flash=100) is little  # more flash than there is, whatever is taken


def test_what_was_traded_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compile", str(digits.INT8), "--board", "mps2-an386", "--ram", "1000", "-o", str(tmp_path / "text")]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "smaller workspaces" in text and "bytes of arena for" in text


@pytest.mark.corpus
@pytest.mark.parametrize(("name", "most"), [("ad", 1.05), ("ic", 1.05), ("vww", 1.05)])
def test_networks_of_the_benchmark_in_a_little_less(name: str, most: float) -> None:
    (path,) = models(f"mlperf_{name}_int8.tflite")
    plain = made(source=path)
    small = made(source=path, ram=arena(plain) - 64)
    assert arena(small) <= arena(plain) - 64
    assert small.module.instructions <= most * plain.module.instructions
