# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers in ``microc.quantize``: their turns are on integers, as near as a network's other layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.graph.ir import Graph, Node
from microc.ops.meaning import evaluate
from microc.quantization.network_structure import (
    expose_values,
    find_quantisable_loop_body,
    flatten_graph,
    make_names_distinct,
)
from tests.quantization.networks import UNREPAIRED
from tests.quantization.recurrent import DEPTH, UNITS, network, sequences
from tests.support.campaign import in_campaign, in_turn


def floats(graph: Graph) -> set[str]:
    """Operators that make floats, in loops too."""
    flat = flatten_graph(graph)
    return {node.op for node in flat.nodes for name in node.outputs if name and flat.types[name].dtype == "float32"}


def loops(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "loop"]


@pytest.mark.parametrize(
    ("name", "activations"), in_turn(["lstm", "gru", "simple", "inner"], ["int8", "uint8", "int16"])
)
def test_turns_are_on_integers(name: str, activations: str) -> None:
    """Floats are left at the ends; 40 dB are 1 % of noise. Of 8 bits, ranges have room for more than these few samples."""
    found = microc.quantize(network(name), sequences(12), activations=activations)
    assert floats(found.graph) == {"dequantize"}
    assert min(told["decibels"] for told in found.report["outputs"]) > (31 if activations != "int16" else 40)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        pytest.param("lstm", {"layers": 2}, marks=in_campaign),
        ("gru", {"layers": 2, "depth": 40}),
        ("lstm", {"depth": 40, "start": "numbers"}),
        ("simple", {"start": "input"}),
        pytest.param("gru", {"start": "input"}, marks=in_campaign),
    ],
)
def test_layers_and_what_they_begin_with(name: str, how: dict[str, Any]) -> None:
    """Layers on layers; data of which all steps' products are made at once; a first state that is not zero, or an input."""
    graph, data = network(name, **how), sequences(12, depth=how.get("depth", DEPTH))
    states = np.random.default_rng(1).uniform(-0.9, 0.9, (12, 1, UNITS)).astype(np.float32)
    given = (data, states) if how.get("start") == "input" else data
    found = microc.quantize(graph, given)
    assert floats(found.graph) == {"dequantize"}
    assert min(told["decibels"] for told in found.report["outputs"]) > 30


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_saved_and_compiled_exactly(name: str, tmp_path: Path) -> None:
    """The code computes what the graph means, to the bit."""
    data = sequences(6)
    found = microc.quantize(network(name), data)
    again = microc.load(found.save(tmp_path / "net.mcg"))
    for graph in (found.graph, again):
        network_of = microc.compile(graph, check=False)
        for x in data:
            expected, _ = evaluate(graph, {"x": x})
            assert all(map(np.array_equal, network_of(x), expected))


@pytest.mark.parametrize(("bits", "most"), [(8, 127), (4, 7), (2, 2)])
def test_weights_in_loops(bits: int, most: int) -> None:
    found = microc.quantize(network("simple"), sequences(UNREPAIRED), weights=bits)
    flat = flatten_graph(found.graph)
    layers = [node for node in flat.nodes if node.op == "dense"]
    assert len(layers) == 3
    for node in layers:
        assert np.abs(flat.consts[node.inputs[1]]).max() == most
        assert len(set(flat.types[node.inputs[1]].quant.scale)) > 1  # type: ignore[union-attr]


def test_bits_of_states() -> None:
    """What turns average has 16 bits, of which layers read 8; what layers alone read has 8."""
    for name, wanted in (("lstm", ["int8", "int16"]), ("gru", ["int16"])):
        (loop,) = loops(microc.quantize(network(name), sequences(UNREPAIRED)).graph)
        body = loop.attr("body")
        carried = body.inputs[1 : 1 + loop.attr("carried")]
        assert [body.types[state].dtype for state in carried] == wanted
        assert {body.types[node.inputs[0]].dtype for node in body.nodes if node.op == "dense"} == {"int8"}


def test_every_value_has_its_name() -> None:
    graph = make_names_distinct(network("gru", layers=2))
    names = [
        name
        for each in (graph, *map(find_quantisable_loop_body, loops(graph)))
        if each is not None
        for name in each.types
    ]
    assert len(names) == len(set(names))


def test_what_turns_compute_is_seen() -> None:
    """A state at the beginning of a turn is the row of the turn before."""
    graph = make_names_distinct(network("simple"))
    (loop,) = loops(graph)
    state = loop.attr("body").inputs[1]
    x = sequences(1)[0]
    (rows, _, seen), _ = evaluate(_with(expose_values(graph, [state]), state), {"x": x})
    assert np.array_equal(seen[1:], rows[:-1]) and not seen[0].any()


def _with(graph: Graph, output: str) -> Graph:
    return Graph(graph.name, graph.inputs, (*graph.outputs, output), graph.nodes, graph.types, graph.consts)


def test_runs_are_repeatable() -> None:
    first, second = (microc.quantize(network("gru"), sequences(8), seed=2).recipe for _ in range(2))
    assert first.activations == second.activations and first.storage_of_narrowed == second.storage_of_narrowed
