# SPDX-License-Identifier: Apache-2.0
"""Register tiles of matrix products: as large as the core's registers, and parts of them at the ends of rows and columns."""

from __future__ import annotations

import numpy as np
import pytest

from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_graph
from microc.frontend.graph_builder import GraphBuilder
from microc.schedule.cost.cost_model import estimate
from microc.schedule.rules.matrix import scalar_tiles
from microc.schedule.schedule import Schedule
from microc.target import SPEED, target_for
from microc.tir.lower import lower
from tests.schedule.functions import matmul, outputs, schedule_kernel

CORES = ("cortex-m4", "cortex-m3", "cortex-m55", "rv32imac", "cv32e40p", "xtensa-lx7", "avr", "host")


@pytest.mark.parametrize("cpu", CORES)
def test_tiles_fit_the_registers(cpu: str) -> None:
    """Two by two everywhere; where a larger square fits, with both sides' operands and two addresses, that too; four by two
    where products need no register and no instruction multiplies several, with two weights, one activation, two addresses."""
    target = target_for(cpu)
    tiles = [(tile.rows, tile.columns) for tile in scalar_tiles(Schedule(matmul(64, 64, 64)), target, SPEED)]
    assert tiles[0] == (2, 2)
    others = {"rv32imac": [(4, 4)], "cv32e40p": [(4, 4)], "cortex-m3": [(4, 2)]}.get(cpu, [])
    assert tiles[1:] == others
    for tall, wide in others:
        operands = tall + wide if tall == wide else wide + 1
        assert tall * wide + operands + 2 <= target.core.costs.registers


def test_a_large_tile_is_chosen_where_it_pays() -> None:
    schedule = schedule_kernel(matmul(125, 64, 64), "conv2d", target_for("rv32imac"))
    assert "split(o, (None, 4))" in " ".join(map(str, schedule.trace))


@pytest.mark.parametrize("cpu", CORES)
@pytest.mark.parametrize(("rows", "columns"), [(1, 3), (1, 7), (1, 9), (1, 11), (1, 1), (3, 5), (5, 7), (6, 1)])
def test_parts_of_tiles_are_exact(cpu: str, rows: int, columns: int) -> None:
    func = matmul(rows, 20, columns)
    schedule = schedule_kernel(func, "dense", target_for(cpu))
    np.testing.assert_array_equal(outputs(func, lowered=True, schedule=schedule), outputs(func, lowered=True))


@pytest.mark.parametrize("cpu", [cpu for cpu in CORES if cpu != "cortex-m55"])
@pytest.mark.parametrize("rows", [1, 8])
def test_an_odd_number_of_outputs_costs_what_the_next_even_one_does(cpu: str, rows: int) -> None:
    target = target_for(cpu)

    def cost(columns: int) -> float:
        func = matmul(rows, 256, columns)
        return float(estimate(lower(schedule_kernel(func, "dense", target).func), target).instructions)

    for columns in (5, 7, 9, 13, 127):
        assert cost(columns) < 1.15 * cost(columns + 1)


def test_a_single_row_takes_weights_of_16_bits_for_speed() -> None:
    """Two words of them come by one instruction: three for four products, where two columns in a word take 3.5."""
    net = GraphBuilder()
    x = net.input("x", (1, 256), "int8")
    weight = net.constant("w", (np.arange(64 * 256) % 100).astype(np.int8).reshape(64, 256))
    graph, target = net.graph("net", {"y": net.op("dense", x, weight, out_dtype="int32")}), target_for("cortex-m4")
    speed, balanced = (compile_graph(graph, "net", target, make_options(optimize=o)) for o in ("speed", "balanced"))
    assert (speed.const_bytes, balanced.const_bytes) == (2 * 64 * 256, 64 * 256)
    assert "dot4_int16_int16_loaded" in str(speed.calls[0].schedule)
    assert 0.8 < speed.calls[0].instructions / (64 * 256) < balanced.calls[0].instructions / (64 * 256) < 1.1


@pytest.mark.parametrize("cpu", ["x86-64-v2", "x86-64-v3", "x86-64-v4-vnni", "aarch64-dotprod"])
def test_wide_integers_are_no_pairs(cpu: str) -> None:
    """Words of vectors hold two numbers of 16 bits: data of 32 bits is multiplied one by one."""
    net = GraphBuilder()
    x = net.input("x", (3, 8), "int32")
    weights = net.constant("w", np.arange(-64, 64, dtype=np.int32).reshape(16, 8))
    graph = net.graph("wide", {"y": net.op("dense", x, weights, out_dtype="int64")})
    module = compile_graph(graph, "wide", target_for(cpu), make_options())
    assert not any("dot2" in str(kernel.func) for kernel in module.kernels)


@pytest.mark.parametrize("cpu", ["x86-64-v2", "x86-64-v3", "x86-64-v4-vnni", "aarch64-dotprod", "wasm-simd128"])
def test_sums_are_computed_by_vectors_before_an_epilogue_of_64_bits(cpu: str) -> None:
    """Vectors have no lanes of 64 bits. The epilogue alone is scalar code, and reads the sums from an array."""
    func = matmul(13, 64, 32, epilogue_dtype="int64")
    schedule = schedule_kernel(func, "dense", target_for(cpu))
    assert schedule.rule == "matrix vectors"
    np.testing.assert_array_equal(outputs(func, lowered=True, schedule=schedule), outputs(func, lowered=True))
