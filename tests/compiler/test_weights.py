# SPDX-License-Identifier: Apache-2.0
"""Constants in 16 bits: asked for or found, on every kind of layer and core, with the results of the wide ones in every bit."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

import microc
from microc.compiler.api import Program
from microc.compiler.lowering.kernel_selection import group_algorithms, variants_with_16_bit_constants
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_model
from microc.graph.ir import Graph
from microc.module import Module
from microc.reports.advice import weight_storage_notes
from microc.run.against import build_kernels_for_host
from microc.schedule.schedule import Schedule
from microc.target import target_for
from tests.support import digits
from tests.support.campaign import in_turn
from tests.transform.network import Network

HALVES = ("float16", "bfloat16", "int32")
"""What constants of floats may be stored as: words hold two."""


def network() -> Graph:
    """A layer of every kind that has weights: a table, convolutions, a transposed one, products."""
    net = Network(x=(1, 8, 8, 4))
    y = net.op("relu", net.conv("x", 16, layout="NHWC"))
    y = net.op("conv2d", y, net.random(16, 3, 3, 1), groups=16, padding=(1, 1, 1, 1), layout="NHWC")
    y = net.op("conv2d_transpose", y, net.random(4, 2, 2, 16), strides=(2, 2))
    y = net.dense(net.op("reshape", y, shape=(16, 64)), 12)
    rows = net.op("cast", net.op("abs", net.op("slice", y, begin=(0, 0), end=(4, 1), strides=(1, 1))), dtype="int32")
    picked = net.op("gather", net.random(30, 12), net.op("reshape", rows, shape=(4,)), axis=0)
    return net.graph(net.op("matmul", picked, net.random(12, 12)))


def stored(module: Module) -> dict[str, int]:
    """Bytes of constants by dtype."""
    found: dict[str, int] = {}
    for value in module.values.values():
        if value.storage == "const":
            found[value.dtype] = found.get(value.dtype, 0) + value.nbytes
    return found


@pytest.mark.parametrize(
    ("cpu", "dtype"),
    in_turn(("cortex-m0", "cortex-m4", "x86-64-v3", "rv64gcv", "cortex-m55", "host"), ("float16", "bfloat16")),
)
def test_every_layer_is_the_same_in_every_bit(dtype: str, cpu: str) -> None:
    graph, target = network(), target_for(cpu)
    narrow = make_options(weight_dtype=dtype, optimize="speed", cache=False)
    module = compile_model(graph, target, narrow)
    wide = compile_model(graph, target, make_options(optimize="speed"))
    sizes, before = stored(module), stored(wide)
    assert sum(sizes.get(half, 0) for half in HALVES) * 2 + 64 * 4 > before["float32"]
    assert sizes.get("float32", 0) < 64 * 4 * 4
    library = build_kernels_for_host(graph, narrow, target)
    x = np.random.default_rng(3).normal(size=(1, 8, 8, 4)).astype(np.float32)
    rounded = network_of_rounded(graph, dtype)
    want = build_kernels_for_host(rounded, make_options(optimize="speed", cache=False), target)
    np.testing.assert_array_equal(np.asarray(library(x)), np.asarray(want(x)))


def network_of_rounded(graph: Graph, dtype: str) -> Graph:
    from microc.transform.pass_context import PassContext
    from microc.transform.quantised.weight_types import round_weights

    return round_weights(graph, PassContext(options={"weight_dtype": dtype}))


@pytest.mark.parametrize(("goal", "halves"), [("speed", False), ("balanced", True), ("size", True)])
def test_models_that_fit_keep_two_bytes_where_the_goal_wants_it(goal: str, halves: bool) -> None:
    graph = network_of_rounded(network(), "float16")
    on_board = stored(compile_model(graph, target_for("cortex-m4"), make_options(optimize=goal)))
    assert (on_board["float32"] < 64 * 4 * 4) == halves
    assert set(stored(compile_model(graph, target_for("x86-64-v3"), make_options()))) == {"float32"}


def test_what_a_schedule_stores_otherwise_stays() -> None:
    net, target = Network(x=(4, 16)), target_for("cortex-m4")
    graph = net.graph(net.op("dense", "x", net.constant(np.arange(128, dtype=np.float32).reshape(8, 16) / 8)))
    (group,) = group_algorithms(graph, graph.nodes, target, "kernel")[:1]
    packed = Schedule(group.func).set_dtype("weight", "bfloat16")
    found = variants_with_16_bit_constants(group, packed, target)
    assert found and all(each.func == packed.func and each.refused for each in found)


def test_constants_that_one_half_holds_do_not_hinder_others() -> None:
    """A kernel with weights that float16 alone holds, and a bias of powers of two that bfloat16 holds, too."""
    net, target = Network(x=(1, 16)), target_for("cortex-m55")
    weight = (1 + np.arange(1024, dtype=np.float32).reshape(64, 16) / 1024).astype(np.float32)
    bias = np.full(64, 2.0**40, np.float32)
    graph = net.graph(net.op("dense", "x", net.constant(weight), net.constant(bias)))
    found = stored(compile_model(graph, target, make_options(weight_dtype="float16", optimize="speed")))
    assert "float32" not in found and found["bfloat16"] == 128


def test_what_stays_wide_is_told() -> None:
    net = Network(x=(1, 16))
    weight = net.constant(np.linspace(1, 70000, 128, dtype=np.float32).reshape(8, 16))
    graph, target = net.graph(net.op("dense", "x", weight)), target_for("cortex-m4")
    for dtype, wide in (("float16", (weight,)), ("bfloat16", ())):
        module = compile_model(graph, target, make_options(weight_dtype=dtype))
        assert module.arithmetic.wide_weights == wide
        assert any("float16 cannot" in line for line in weight_storage_notes(module.arithmetic)) == bool(wide)
        assert module.options["weight_dtype"] == dtype


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_verify_compares_with_the_network_of_rounded_weights(dtype: Literal["float16", "bfloat16"]) -> None:
    found = microc.verify(digits.FLOAT, target="cortex-m4", weight_dtype=dtype, samples=2)
    assert found.agrees and "rounded" in found.reference and found.outputs[0].tolerance == 1e-4


def test_projects_are_smaller() -> None:
    plain, narrow = (
        microc.compile(digits.FLOAT, board="mps2-an386", weight_dtype=dtype) for dtype in ("model", "bfloat16")
    )
    assert isinstance(plain, Program) and isinstance(narrow, Program)
    before, after = plain.report(), narrow.report()
    assert after["weight_bytes"] < 0.6 * before["weight_bytes"] and before["half_weights"] == 0
    assert after["weight_bytes"] + 2 * after["half_weights"] == before["weight_bytes"]
