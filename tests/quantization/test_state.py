# SPDX-License-Identifier: Apache-2.0
"""Networks that keep state in ``microc.quantize``: integers from run to run, of as many bits as their errors add up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.errors import ModelError, UsageError
from microc.frontend.tflite import reader as tflite
from microc.graph.ir import Graph
from microc.ops.meaning import evaluate
from tests.frontend.tflite.test_state import variables
from tests.quantization import states
from tests.quantization.networks import UNREPAIRED, Net
from tests.quantization.states import DEPTH, frames
from tests.support.campaign import in_turn
from tests.support.onnx_session import session

NETWORKS = {
    "lstm": states.cell("lstm"),
    "gru": states.cell("gru", 0.3),
    "simple": states.cell("simple"),
    "pieces": states.pieces(),
    "memories": states.memories(),
    "window": states.window(),
    "average": states.average(),
    "delays": states.delays(),
    "peak": states.peak(),
    "fixed": states.fixed(),
}
STORED = {
    "lstm": ["int8", "int16"],
    "gru": ["int16"],
    "simple": ["int8"],
    "pieces": ["int8", "int16"],
    "memories": ["int8"],
    "window": ["int8", "int8"],
    "average": ["int16"],
    "delays": ["int8", "int8"],
    "peak": ["int8"],
    "fixed": ["int8", "int8", "int32"],
}
"""What feeds back into itself has 16 bits, but what layers alone read of it; what is only moved or chosen has 8."""


def data(graph: Graph, count: int, seed: int = 0) -> Array:
    return frames(count, seed, graph.types["x"].shape)


def answers(graph: Graph, rows: Array) -> list[list[Array]]:
    """Run after run, as the operators' references say."""
    state, found = graph.state, []
    for x in rows:
        outputs, state = evaluate(graph, {"x": x}, state)
        found.append(outputs)
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_state_is_stored_as_integers(name: str) -> None:
    """Floats are left at the ends; 28 dB are 4 % of noise, over 64 other frames: it does not grow from run to run."""
    graph = NETWORKS[name]
    found = microc.quantize(graph, data(graph, 400), evaluate=data(graph, 64, 1))
    assert [found.graph.types[state].dtype for state in found.graph.state] == STORED[name]
    kinds = found.graph.types
    floats = {node.op for node in found.graph.nodes for value in node.outputs if kinds[value].dtype == "float32"}
    assert floats == {"dequantize"}
    assert min(told["decibels"] or 99 for told in found.report["outputs"]) > 28


@pytest.mark.parametrize(("name", "activations"), in_turn(list(NETWORKS), ["int8", "uint8", "int16"]))
def test_all_forms_stream_alike(name: str, activations: str, tmp_path: Path) -> None:
    """Saved, compiled, in numpy: the same integers run after run, of two instances by turns, and again from a reset."""
    graph = NETWORKS[name]
    rows = data(graph, 24)
    found = microc.quantize(graph, rows[:UNREPAIRED], activations=activations)
    again = microc.load(found.save(tmp_path / "net.mcg"))
    one, expected = microc.compile(again, check=False), answers(found.graph, rows)
    two = one.instance()
    for network in (one, two, one):
        network.reset()
        for x, outputs in zip(rows, expected, strict=True):
            made = network(x)
            assert all(map(np.array_equal, made if isinstance(made, tuple) else (made,), outputs))


@pytest.mark.parametrize("start", [0.0, 0.3, 1.5])
def test_starts_are_the_nearest_numbers(start: float) -> None:
    """Even beyond what the state ever is again."""
    found = microc.quantize(states.cell("lstm", start), frames(UNREPAIRED)).graph
    for name, stored in found.state.items():
        quant = found.types[name].quant
        assert quant is not None
        real = (stored.astype(np.float64) - quant.zero_point[0]) * quant.scale[0]
        assert np.abs(real - start).max() <= (quant.scale[0] / 2 if start else 0)


def test_a_window_has_the_scale_of_its_frames() -> None:
    """They are moved as they are."""
    graph = microc.quantize(states.window(), data(states.window(), UNREPAIRED)).graph
    for state, update in graph.updates.items():
        assert graph.types[state].quant == graph.types[update].quant
    assert [node.op for node in graph.nodes if node.op == "quantize"] == ["quantize"]


def test_state_of_a_file_of_tflite() -> None:
    """A resource variable is summed up."""
    graph = tflite.read_tflite(variables(np.array([[0.5, 0.5, -0.5]], np.float32)), "state.tflite")
    rows = frames(40, 2, (1, 3)) - frames(40, 3, (1, 3))
    found = microc.quantize(graph, rows)
    assert [found.graph.types[state].dtype for state in found.graph.state] == ["int16"]
    assert found.report["outputs"][0]["decibels"] > 35


def test_onnx_runtime_streams_alike(tmp_path: Path) -> None:
    """State goes in and comes out as integers of a file in QDQ form."""
    graph = NETWORKS["window"]
    rows = data(graph, 32)
    found = microc.quantize(graph, rows[:UNREPAIRED])
    runtime = session(found.save(tmp_path / "net.onnx"))
    state, scale, most = dict(found.exact.state), found.recipe.activations["y"].scale, 0.0
    for x, (expected,) in zip(rows, answers(found.graph, rows), strict=True):
        made, *new = runtime.run(None, {"x": x, **state})
        assert all(array.dtype == np.int8 for array in new)
        state = dict(zip(found.exact.updates, new, strict=True))
        most = max(most, float(np.abs(made - expected).max() / scale))
    assert most < 1.01


def test_state_in_floats_where_its_layers_are() -> None:
    graph = NETWORKS["simple"]
    found = microc.quantize(graph, frames(24), weight_only=["all"])
    assert [found.graph.types[state].dtype for state in found.graph.state] == ["float32"]


def test_sequences(tmp_path: Path) -> None:
    """State starts anew with each; labels are of the last answers."""
    graph = NETWORKS["lstm"]
    rows = np.stack([frames(12, seed) for seed in range(24)])
    truth = [np.argmax(answers(graph, sequence)[-1]) for sequence in rows]
    np.savez(tmp_path / "data.npz", x=rows, truth=truth)
    found = microc.quantize(graph, tmp_path / "data.npz", labels="truth").report
    assert (found["samples"], found["evaluated_samples"]) == (288, 288)
    assert found["classification"]["samples"] == 24 and found["classification"]["float_accuracy"] == 1
    assert found["classification"]["accuracy"] > 0.9
    few = rows[:8]
    apart, together = (microc.quantize(graph, data).recipe for data in (few, few.reshape(96, 1, DEPTH)))
    assert apart.activations != together.activations


def test_sequences_that_are_refused(tmp_path: Path) -> None:
    """Of a network without state; with a label for each frame."""
    graph, rows = NETWORKS["simple"], frames(24).reshape(2, 12, 1, DEPTH)
    net = Net((1, DEPTH))
    with pytest.raises(UsageError, match="takes samples of shape Nx1x6"):
        microc.quantize(net.graph(net.dense(net.x, 3)), rows)
    np.savez(tmp_path / "data.npz", x=rows, truth=np.zeros((2, 12)))
    with pytest.raises(UsageError, match="x 2, labels 24"):
        microc.quantize(graph, tmp_path / "data.npz", labels="truth")


def test_a_state_without_end_is_refused() -> None:
    """It doubles in every run."""
    net = Net((1, DEPTH))
    total = net.builder.state("total", np.ones((1, DEPTH), np.float32))
    new = net.op("add", net.op("add", total, total), net.x)
    net.builder.update(total, new)
    with pytest.raises(ModelError, match="got infinity or NaN in sample 12") as caught:
        microc.quantize(net.graph(net.dense(new, 3)), frames(200))
    assert "calibrate" in caught.value.hint
