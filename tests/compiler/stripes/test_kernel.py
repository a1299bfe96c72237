# SPDX-License-Identifier: Apache-2.0
"""Chains of layers that work row by row compute what the layers compute one after another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from microc.errors import ModelError
from microc.graph.ir import Graph, TensorType
from microc.tir.striped_layers import LayerGeometry, Window, choose_blocks
from microc.transform.fuse import fuse
from microc.transform.pass_context import PassContext
from tests.support.campaign import examples
from tests.support.chains import Step, longest_chains, module, network, run, steps
from tests.transform.network import Network, evaluate, random_inputs


def agrees(graph: Graph, height: int, cpu: str = "cortex-m4", seed: int = 0) -> None:
    """The graph computes the same with everything streamed that can be."""
    chains = longest_chains(graph, height)
    assert chains
    inputs = random_inputs(graph, seed)
    (wanted,) = evaluate(graph, inputs)
    (got,) = run(module(graph, chains, cpu), inputs)
    np.testing.assert_array_equal(got, wanted)


@settings(max_examples=examples(40), deadline=None)
@given(
    layers=steps(),
    height=st.integers(3, 14),
    width=st.integers(3, 6),
    block=st.integers(1, 6),
    cpu=st.sampled_from(("cortex-m0", "cortex-m4")),
)
def test_random_chains(layers: tuple[Step, ...], height: int, width: int, block: int, cpu: str) -> None:
    try:
        graph = network(layers, (1, height, width, 3))
    except ModelError:
        assume(False)
    assume(longest_chains(graph))
    agrees(graph, block, cpu)


@pytest.mark.parametrize("height", [1, 2, 3, 12])
def test_blocks_that_reach_beyond_the_image(height: int) -> None:
    layers = (
        Step("depthwise", 3, 2, padding=(1, 1, 1, 1)),
        Step("conv", 1, units=4),
        Step("depthwise", 3, padding=(1, 1, 1, 1)),
        Step("conv", 1, units=5),
    )
    agrees(network(layers, (1, 24, 5, 3)), height)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_a_residual_is_read_row_by_row(dtype: str) -> None:
    layers = (Step("conv", 3, padding=(1, 1, 1, 1), units=3), Step("conv", 3, padding=(1, 1, 1, 1), units=3))
    agrees(network((*layers, Step("residual")), (1, 8, 4, 3), dtype=dtype), 4)


def test_skipped_rows() -> None:
    """A stride longer than the kernel."""
    agrees(network((Step("conv", 3, padding=(1, 0, 1, 0)), Step("max", 1, 3), Step("conv", 2, 3)), (1, 13, 13, 2)), 1)


def test_floats() -> None:
    net = Network(x=(1, 9, 5, 3))
    made = net.op("relu", net.conv("x", 4, layout="NHWC"))
    made = net.op("avg_pool2d", made, kernel=(2, 2), strides=(2, 2))
    graph = fuse(net.graph(net.conv(made, 3, layout="NHWC")), PassContext())
    inputs = random_inputs(graph)
    plain, streamed = (run(module(graph, chains), inputs) for chains in ((), longest_chains(graph, 2)))
    np.testing.assert_array_equal(streamed[0], plain[0])


def test_tensors_between_layers_do_not_exist() -> None:
    graph = network((Step("conv", units=16), Step("conv", 3, padding=(1, 1, 1, 1))), (1, 32, 8, 4))
    plain, streamed = module(graph), module(graph, longest_chains(graph))
    size = 32 * 8 * 16
    assert any(v.nbytes == size for v in plain.values.values())
    (call,) = streamed.calls
    assert sum(streamed.values[name].nbytes for name in call.workspace) < size // 3
    assert call.streamed is not None and call.streamed.extra_macs == 0
    assert call.macs == plain.macs


def test_a_result_with_two_readers_ends_a_chain() -> None:
    net = Network(x=TensorType((1, 8, 8, 2), "float32"))
    first = net.conv("x", 2, layout="NHWC")
    second = net.conv(first, 2, layout="NHWC")
    graph = fuse(net.graph(net.op("add", net.conv(second, 2, layout="NHWC"), first)), PassContext())
    (chain,) = longest_chains(graph)
    assert chain.data == first and len(chain.groups) == 2


def test_batches_and_averages_at_the_border_are_left_alone() -> None:
    batch = Network(x=(2, 6, 6, 2))
    batch.conv(batch.conv("x", 2, layout="NHWC"), 2, layout="NHWC")
    border = Network(x=(1, 6, 6, 2))
    border.op("avg_pool2d", border.conv("x", 2, layout="NHWC"), kernel=(3, 3), strides=(1, 1), padding=(1, 1, 1, 1))
    for net in (batch, border):
        assert longest_chains(fuse(net.graph(), PassContext())) == []


def test_blocks_divide_what_the_next_layer_asks_for() -> None:
    window = Window(3, 1, 8, 1, 1)
    last, down = LayerGeometry(Window(3, 2, 8), 6), LayerGeometry(window, 13)
    assert [s.block for s in choose_blocks((down, last), 3)] == [3, 3]
    assert [s.block for s in choose_blocks((down, last), 4)] == [3, 3]
    first, second = choose_blocks((down, LayerGeometry(window, 13)), 13)
    assert (first.block, second.block, first.phase) == (13, 13, 1)
    assert first.computed_row_count == 26  # from row -12 on
    reading = LayerGeometry(window, 13, whole=True)
    assert choose_blocks((reading, LayerGeometry(window, 13)), 13)[0].block == 1
