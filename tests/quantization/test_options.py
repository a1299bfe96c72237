# SPDX-License-Identifier: Apache-2.0
"""Weights alone as integers, dynamic range, and the types of inputs and outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.errors import UnsupportedError, UsageError
from microc.ops.meaning import evaluate
from microc.quantization.network_structure import flatten_graph
from tests.quantization.networks import UNREPAIRED, Net, classifier, images
from tests.quantization.recurrent import network, sequences
from tests.support.campaign import in_turn
from tests.support.onnx_session import session


def test_weights_alone_stay_packed(tmp_path: Path) -> None:
    """Half a byte for each weight, activations in floats, no integers but constants; ONNX Runtime answers the same."""
    net = Net((1, 128))
    graph = net.graph(net.dense(net.op("relu", net.dense(net.x, 64)), 32))
    data = np.random.default_rng(4).normal(size=(10, 1, 128)).astype(np.float32)
    found = microc.quantize(graph, data, weights=4, weight_only=["all"])
    assert {found.graph.types[node.outputs[0]].dtype for node in found.graph.nodes} == {"float32"}
    report = microc.compile(found.graph, board="mps2-an386", optimize="size").report()
    assert report["weight_bytes"] < (64 * 128 + 32 * 64) * 0.55 + 96 * 8
    runtime = session(found.save(tmp_path / "net.onnx"))
    mine = microc.compile(found.graph, check=False)
    for x in data:
        assert np.allclose(runtime.run(None, {"x": x})[0], np.asarray(mine(x)), atol=1e-5)
    assert found.report["outputs"][0]["decibels"] > 15


def test_weights_of_recurrent_layers_alone() -> None:
    """The turns' products open integers, all else of them is floats."""
    graph, data = network("lstm"), sequences(6)
    found = microc.quantize(graph, data, weight_only=["all"])
    flat = flatten_graph(found.graph)
    assert any(flat.consts[name].dtype == np.int8 for node in flat.nodes for name in node.inputs if name in flat.consts)
    assert not any(node.op == "quantize" for node in flat.nodes)
    assert found.report["outputs"][0]["decibels"] > 30


@pytest.mark.parametrize("option", ["weight_only", "dynamic_range"])
def test_all_of_no_layers_is_refused(option: str) -> None:
    options: dict[str, Any] = {option: ["all"]}
    net = Net((1, 8))
    graph = net.graph(net.op("add", net.op("tanh", net.x), net.x))
    data = np.random.default_rng(4).normal(size=(4, 1, 8)).astype(np.float32)
    with pytest.raises(UsageError, match=f"{option}: 'all' selects no layer"):
        microc.quantize(graph, data, **options)


def test_one_layer_opens_its_weights() -> None:
    """The others are on integers."""
    graph = classifier()
    name = next(node.outputs[0] for node in graph.nodes if node.op == "dense")
    found = microc.quantize(graph, images(7), weight_only=[name])
    kinds = [found.graph.types[node.outputs[0]].dtype for node in found.graph.nodes if node.op in ("conv2d", "dense")]
    assert kinds[-1] == "float32" and set(kinds[:-1]) == {"int8"}


def test_blocks_share_no_multipliers_in_floats() -> None:
    with pytest.raises(UsageError, match="one scale for each channel") as caught:
        microc.quantize(classifier(), images(4), weights=4, block=32, weight_only=["all"])
    assert caught.value.hint


@pytest.mark.parametrize(("which", "words"), [(2, "cannot dequantise its weights"), (None, "there is no layer")])
def test_weights_that_cannot_be_opened(which: int | None, words: str) -> None:
    """A depthwise convolution's, and a layer that is not there."""
    graph = classifier()
    layers = [node.outputs[0] for node in graph.nodes if node.attrs.get("groups", 1) != 1]
    with pytest.raises(UsageError, match=words) as caught:
        microc.quantize(graph, images(4), weight_only=[layers[0] if which else "nowhere"])
    assert caught.value.hint


def products(graph: microc.Graph) -> list[tuple[str, str]]:
    """The dtypes of layers' data and results, in loops too."""
    flat = flatten_graph(graph)
    layers = [node for node in flat.nodes if node.op in ("conv2d", "dense")]
    return [(flat.types[node.inputs[0]].dtype, flat.types[node.outputs[0]].dtype) for node in layers]


def test_dynamic_range_needs_no_range() -> None:
    """Each row has the scale of its own largest number: rows a thousand times those of the calibration are as near."""
    net = Net((4, 32))
    graph = net.graph(net.dense(net.op("relu", net.dense(net.x, 48)), 10))
    data = np.random.default_rng(4).normal(size=(20, 4, 32)).astype(np.float32)
    large = data[::-1] * np.array([1, 10, 100, 1000], np.float32)[:, None]
    found = microc.quantize(graph, data, evaluate=large, dynamic_range=["all"])
    assert products(found.graph) == [("int8", "int32")] * 2
    assert found.report["outputs"][0]["decibels"] > 35 and found.report["floats"]["share"] == 0
    real, mine = (microc.compile(each, check=False) for each in (graph, found.graph))
    for x in large:
        expected, answer = np.asarray(real(x)), np.asarray(mine(x))
        assert (np.abs(answer - expected).max(axis=1) < 0.03 * np.abs(expected).max(axis=1)).all()


def test_dynamic_range_compiles_as_it_is_meant() -> None:
    """Products are integers, so that C and numpy differ by the rounding of what is computed in floats around them alone."""
    graph, data = network("lstm"), sequences(UNREPAIRED)
    found = microc.quantize(graph, data, dynamic_range=["all"])
    assert set(products(found.graph)) == {("int8", "int32")}
    compiled = microc.compile(found.graph, check=False)
    for x in data:
        expected, _ = evaluate(found.graph, {"x": x})
        assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(compiled(x), expected, strict=True))
    reals, bytes_ = (microc.compile(each, board="microbit").report()["weight_bytes"] for each in (graph, found.graph))
    assert bytes_ < 0.7 * reals


@pytest.mark.parametrize("kind", ["depthwise", "dense"])
def test_one_layer_has_dynamic_range(kind: str, tmp_path: Path) -> None:
    """The others are on integers of known ranges; the file says it all."""
    graph = classifier()
    layers = [node for node in graph.nodes if node.op in ("conv2d", "dense")]
    number = len(layers) - 1 if kind == "dense" else next(k for k, n in enumerate(layers) if n.attr("groups") != 1)
    found = microc.quantize(graph, images(UNREPAIRED), dynamic_range=[layers[number].outputs[0]])
    again = microc.load(found.save(tmp_path / "net.mcg"))
    assert [made == "int32" for _, made in products(again)] == [k == number for k in range(len(layers))]
    assert found.report["outputs"][0]["decibels"] > 35
    with pytest.raises(UnsupportedError, match="dynamic_quantize cannot be written as ONNX"):
        found.save(tmp_path / "net.onnx")


def test_layers_that_have_no_dynamic_range() -> None:
    """Of computed weights; named twice; unknown; with blocks."""
    net = Net((1, 4))
    weight = net.op("reshape", net.dense(net.x, 8), shape=(2, 4))
    graph = net.graph(net.op("dense", net.op("tanh", net.x), weight, name="own"))
    data, layer = np.random.default_rng(4).normal(size=(20, 1, 4)).astype(np.float32), graph.nodes[0].outputs[0]
    refused: dict[str, dict[str, Any]] = {
        "weights of layer 'own' are computed": {"dynamic_range": ["own"]},
        "named in both weight_only and dynamic_range": {"dynamic_range": ["all"], "weight_only": [layer]},
        "no layer 'nowhere'": {"dynamic_range": ["nowhere"]},
        "one scale for each channel": {"dynamic_range": ["all"], "weights": 4, "block": 16},
    }
    for words, options in refused.items():
        with pytest.raises(UsageError, match=words) as caught:
            microc.quantize(graph, data, **options)
        assert caught.value.hint


@pytest.mark.parametrize(
    ("ends", "activations"),
    in_turn([("int8", "uint8"), ("uint8", "float32"), ("float32", "int8")], ["int8", "uint8"]),
)
def test_types_of_inputs_and_outputs(activations: str, ends: tuple[str, str]) -> None:
    """They are those that are asked for; integers stand for the reals of the network with floats at its ends."""
    graph, data = classifier(), images(4)
    plain = microc.quantize(graph, data, activations=activations)
    found = microc.quantize(graph, data, activations=activations, input_dtype=ends[0], output_dtype=ends[1])
    for made in (found.graph, found.exact):
        assert tuple(made.types[name].dtype for name in (*made.inputs, *made.outputs)) == ends
    before, after = (found.graph.types[name].quant for name in (*found.graph.inputs, *found.graph.outputs))
    mine, theirs = (microc.compile(each.graph, check=False) for each in (found, plain))
    for x in data:
        given: Any = x
        if before is not None:
            low, high = np.iinfo(ends[0]).min, np.iinfo(ends[0]).max
            given = np.clip(np.rint(x / before.scale[0]) + before.zero_point[0], low, high).astype(ends[0])
        answer = np.asarray(mine(given)).astype(np.float64)
        if after is not None:
            answer = (answer - after.zero_point[0]) * after.scale[0]
        assert np.allclose(answer, np.asarray(theirs(x)), atol=1e-6)


@pytest.mark.parametrize("weights", [8, 4])
def test_scales_that_are_powers_of_two(weights: int) -> None:
    """All that is stored has one; repairs keep to it."""
    found = microc.quantize(classifier(), images(9), weights=weights, scales="power-of-two")
    recipe = found.recipe
    quants = [each.quant for each in recipe.activations.values()] + [each.quant for each in recipe.weights.values()]
    assert all(np.frexp(scale)[0] == 0.5 for quant in quants for scale in quant.scale)
    assert found.report["outputs"][0]["decibels"] > (30 if weights == 8 else 20)
