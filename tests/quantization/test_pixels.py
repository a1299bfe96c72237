# SPDX-License-Identifier: Apache-2.0
"""A network that is quantised on raw frames: what prepares them is part of it, and costs floats nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import microc
from microc.base.dtypes import Array
from microc.compiler.options import make_options
from microc.compiler.pipeline import optimise_graph
from microc.graph.ir import Graph
from microc.quantization import Quantized
from tests.transform.network import Network

FRAMES = np.random.default_rng(0).integers(0, 256, (4, 1, 20, 20, 3)).astype(np.uint8)
COLOURS = ((123.7, 116.3, 103.5), (58.4, 57.1, 57.4))


def network(padding: int = 1) -> Graph:
    net = Network(x=(1, 20, 20, 3))
    net.dense(net.flatten(net.op("relu", net.conv("x", 4, padding=padding, layout="NHWC", strides=(2, 2)))), 3)
    return net.graph()


def quantised(**options: Any) -> Quantized:
    return microc.quantize(network(options.pop("padding", 1)), FRAMES, **options)


def lowered(found: Quantized) -> tuple[list[str], Graph]:
    graph = optimise_graph(found.graph, make_options())
    return [node.op for node in graph.nodes], graph


def noise(found: Quantized, real: Array, padding: int = 1) -> float:
    """The share of noise in the answers to frames, of those that the float network gives to ``real`` numbers."""
    floats, integers = microc.compile(network(padding)), microc.compile(found.graph)
    wanted = np.stack([np.asarray(floats(x.astype(np.float32))) for x in real])
    got = np.stack([np.asarray(integers(x)) for x in FRAMES])
    return float(np.square(got - wanted).sum() / np.square(wanted).sum())


@pytest.mark.parametrize(("mean", "std", "padding"), [(128, 64, 1), (127.5, 127.5, 1), (COLOURS[0], COLOURS[1], 0)])
def test_bytes_are_what_the_first_layer_reads(mean: Any, std: Any, padding: int) -> None:
    found = quantised(input_normalize=(mean, std), padding=padding)
    ops, graph = lowered(found)
    assert ops[0] == "conv2d" and graph.nodes[0].inputs[0] == "x" and graph.types["x"].dtype == "uint8"
    assert not found.report["floats"]["operators"]
    assert noise(found, (FRAMES - np.array(mean)) / np.array(std), padding) < 2e-4


def test_means_that_differ_before_padding_are_tables() -> None:
    found = quantised(input_normalize=COLOURS, input_colour="bgr")
    ops, graph = lowered(found)
    assert ops[:2] == ["lookup", "conv2d"] and graph.types[graph.nodes[0].inputs[1]].shape == (768,)
    assert noise(found, (FRAMES[..., ::-1] - np.array(COLOURS[0])) / np.array(COLOURS[1])) < 4e-4


def test_pictures_are_read_in_the_order_of_the_frames(tmp_path: Path) -> None:
    """A folder of them is what arrays with their channels reversed are."""
    for number, frame in enumerate(FRAMES):
        Image.fromarray(frame[0]).save(tmp_path / f"{number}.png")
    options: Any = {"input_normalize": COLOURS, "input_colour": "bgr"}
    found = microc.quantize(network(), tmp_path, **options)
    assert found.recipe.activations == microc.quantize(network(), FRAMES[..., ::-1], **options).recipe.activations
    assert found.recipe.activations != microc.quantize(network(), FRAMES, **options).recipe.activations
    assert any("BGR" in note for note in found.report["notes"])


def test_a_larger_frame_is_resized_in_bytes() -> None:
    frames = FRAMES.repeat(2, axis=2).repeat(2, axis=3)
    found = microc.quantize(network(), frames, input_normalize=(0, 255), input_frame=(40, 40))
    ops, graph = lowered(found)
    assert ops[:2] == ["resample", "conv2d"] and graph.types["x"].shape == (1, 40, 40, 3)
    assert not found.report["floats"]["operators"]


def test_a_quantised_network_is_prepared_later_too() -> None:
    """Its input stays in floats, which preparation in front and the quantisation behind make a table."""
    real = (FRAMES / 255).astype(np.float32)
    found = microc.quantize(network(), real)
    options = make_options(input_normalize=(0, 255))
    graph = optimise_graph(microc.load(found.graph, input_normalize=(0, 255)), options)
    assert [node.op for node in graph.nodes][:2] == ["lookup", "conv2d"]
    prepared, plain = microc.compile(found.graph, input_normalize=(0, 255)), microc.compile(found.graph)
    np.testing.assert_array_equal(prepared(FRAMES[0]), plain((FRAMES[0] * np.float32(1 / 255)).astype(np.float32)))
