# SPDX-License-Identifier: Apache-2.0
"""What is computed in floats, and how the user lets it be."""

from __future__ import annotations

import numpy as np
import pytest

import microc
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_model
from microc.errors import UsageError
from microc.graph.ir import Graph
from microc.run.against import build_kernels_for_host
from microc.target import target_for
from tests.support import digits
from tests.transform.network import Network, evaluate, random_inputs


@pytest.mark.parametrize(("math", "rule"), [("exact", "matrix float"), ("fast", "winograd floats")])
def test_schedules_may_do_what_the_option_says(math: str, rule: str) -> None:
    net = Network(x=(1, 12, 12, 16))
    graph = net.graph(net.conv("x", 16, layout="NHWC"))
    module = compile_model(graph, target_for("cortex-m4"), make_options(math=math, optimize="speed"))
    assert module.calls[0].rule == rule
    assert module.options["math"] == math if math != "exact" else "math" not in module.options


@pytest.mark.parametrize(
    ("shape", "bound"), [((1, 13, 9, 16), 1e-6), ((2, 5, 4, 32), 1e-6), ((1, 8, 12, 16), 1e-5)], ids=str
)
def test_fast_floats_are_within_a_bound(shape: tuple[int, ...], bound: float) -> None:
    """That of floats where tiles of 4 x 4 outputs do not fill the image."""
    net = Network(x=shape)
    graph = net.graph(net.op("relu", net.conv("x", 16, layout="NHWC")))
    inputs = random_inputs(graph)
    library = microc.compile(graph, "native", math="fast", optimize="speed", cache=False)
    (want,) = evaluate(graph, inputs)
    np.testing.assert_allclose(np.asarray(library(inputs["x"])), want, rtol=0, atol=bound * np.abs(want).max())


def half_network() -> Graph:
    """A first layer, a separable one and a dense one, and what follows such."""
    net = Network(x=(1, 9, 8, 3))
    y = net.op("relu", net.conv("x", 16, layout="NHWC"))
    y = net.op("tanh", net.conv(y, 24, kernel=1, padding=0, layout="NHWC"))
    return net.graph(net.dense(net.flatten(y), 8))


def test_half_is_for_cores_that_compute_in_it() -> None:
    graph = half_network()
    module = compile_model(graph, target_for("cortex-m55"), make_options(math="half"))
    assert [call.rule for call in module.calls].count("matrix half") == 3 and module.options["math"] == "half"
    for cpu in ("cortex-m4", "host"):
        with pytest.raises(UsageError, match=f"math half: {cpu} does not compute in float16") as refusal:
            compile_model(graph, target_for(cpu), make_options(math="half"))
        assert "cortex-m55" in refusal.value.hint
    with pytest.raises(UsageError, match="float16 schedules need fixed sizes"):
        compile_model(graph, target_for("cortex-m55"), make_options(math="half", bounds={"x:0": 4}))


def test_half_is_held_against_floats() -> None:
    found = microc.verify(digits.FLOAT, target="cortex-m55", math="half", samples=2)
    assert found.agrees and found.outputs[0].tolerance == 2e-2
    found = microc.verify(digits.FLOAT, target="cortex-m55", math="half", samples=2, tolerance=1e-6)
    assert not found.agrees


def test_half_goes_by_rows_where_memory_is_short() -> None:
    net = Network(x=(1, 32, 32, 8))
    y = net.op("relu", net.conv(net.op("relu", net.conv("x", 16, layout="NHWC")), 16, layout="NHWC"))
    pooled = net.op("max_pool2d", y, kernel=(4, 4), strides=(4, 4), layout="NHWC")
    graph, x = net.graph(pooled), np.random.default_rng(5).normal(size=(1, 32, 32, 8)).astype(np.float32)
    results = []
    for ram in (0, 24000):
        options = make_options(math="half", ram=ram, io_in_arena=False, cache=False)
        assert len(compile_model(graph, target_for("cortex-m55"), options).calls) == (1 if ram else 3)
        results.append(np.asarray(build_kernels_for_host(graph, options, target_for("cortex-m55"))(x)))
    whole, by_rows = results
    np.testing.assert_array_equal(whole, by_rows)
