# SPDX-License-Identifier: Apache-2.0
"""Layers of 8 and of 16 bits, and in floats, side by side in one network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.errors import UsageError
from microc.graph import ir
from microc.ops.meaning import reference_node_function
from microc.quantization.decisions import names_of_operators_that_read
from tests.quantization.networks import Net, classifier, images
from tests.support.onnx_session import session

BOARD = "nucleo-l476rg"


def chain() -> microc.Graph:
    """Three layers, the middle one behind a clamp and a pool and in front of a sum."""
    net = Net((1, 12, 12, 3))
    x = net.op("relu", net.conv(net.x, 6))
    x = net.op("max_pool2d", x, kernel=(2, 2), strides=(2, 2), padding=(0, 0, 0, 0), layout="NHWC")
    y = net.conv(x, 6)
    x = net.op("mean", net.op("add", y, x), axes=(1, 2), keepdims=False)
    return net.graph(net.dense(x, 5))


def dtypes_of(graph: microc.Graph, op: str) -> list[tuple[str, str]]:
    """What each such operator reads and makes."""
    kinds = graph.types
    return [(kinds[n.inputs[0]].dtype, kinds[n.outputs[0]].dtype) for n in graph.nodes if n.op == op]


@pytest.mark.parametrize(
    ("bits", "layers", "quantised"),
    [
        ({"conv2d_1": 16}, [("int8", "int16"), ("int16", "int16"), ("int8", "int8")], [("float32", "int8")]),
        ({"y": 16}, [("int8", "int8"), ("int8", "int8"), ("int16", "int16")], [("float32", "int8")]),
        (
            {"conv2d": 16},
            [("int16", "int16"), ("int8", "int8"), ("int8", "int8")],
            [("float32", "int16"), ("int16", "int8")],
        ),
        (
            {"add": 16},
            [("int8", "int16"), ("int8", "int16"), ("int8", "int8")],
            [("float32", "int8"), ("int16", "int8")],
        ),
        ({"conv2d_1": 32}, [("int8", "int8"), ("float32", "float32"), ("int8", "int8")], [("float32", "int8")] * 2),
    ],
)
def test_one_operator_of_other_bits(bits: dict[str, int], layers: Any, quantised: Any, tmp_path: Path) -> None:
    """What it reads and makes has them, and is narrowed where layers of 8 read it; the C computes it, and ONNX Runtime does."""
    graph, data = chain(), images(7)
    found = microc.quantize(graph, data, bits=bits)
    assert [*dtypes_of(found.graph, "conv2d"), *dtypes_of(found.graph, "dense")] == layers
    assert sorted(dtypes_of(found.graph, "quantize")) == sorted(quantised)
    assert all(weight.data.dtype == np.int8 for weight in found.recipe.weights.values())
    assert np.array_equal(answers(found.graph, data), meant(found.graph, data))
    runtime = session(found.save(tmp_path / "net.onnx"), fused=False)
    expected = np.stack([runtime.run(None, {"x": row})[0] for row in data])
    assert np.abs(expected - meant(found.exact, data)).max() <= 1e-6 * np.abs(expected).max()


def answers(graph: microc.Graph, data: Array) -> Array:
    network = microc.compile(graph, check=False)
    return np.stack([np.asarray(network(row)) for row in data])


def meant(graph: microc.Graph, data: Array) -> Array:
    apply = reference_node_function(graph)
    return np.stack([ir.run(graph, {"x": row}, apply, {})[graph.outputs[0]] for row in data])


def test_all_layers_of_16_bits_are_as_good_as_int16() -> None:
    graph, data = classifier(), images(6)
    layers = [node.outputs[0] for node in graph.nodes if node.op in ("conv2d", "dense")]
    narrow = microc.quantize(graph, data)
    wide = microc.quantize(graph, data, bits=dict.fromkeys(layers, 16))
    assert {kind.dtype for kind in wide.graph.types.values() if kind.quant and not kind.quant.axis} >= {"int16"}
    assert {made for _, made in dtypes_of(wide.graph, "add") + dtypes_of(wide.graph, "softmax")} == {"int16"}
    assert wide.report["outputs"][0]["decibels"] > narrow.report["outputs"][0]["decibels"]


def test_what_advice_names_gives_16_bits() -> None:
    graph = chain()
    assert names_of_operators_that_read(graph, "relu") == ["conv2d_1", "add"]
    assert names_of_operators_that_read(graph, "y") == ["y"]


@pytest.mark.parametrize("bits", [{"add": 4}, {"mean": 32}, {"conv2d": 12}])
def test_bits_that_an_operator_cannot_have(bits: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=r"no constant weights|bits of 'conv2d'"):
        microc.quantize(chain(), images(2), bits=bits)


def rough() -> microc.Graph:
    """A dense layer whose data are small beside one number that nothing multiplies: 8 bits know nothing of them."""
    net = Net((1, 8))
    x = net.op("relu", net.dense(net.x, 24))
    return net.graph(net.dense(net.op("relu", net.dense(x, 24)), 4))


def test_where_8_bits_lose_too_much_some_layers_get_more() -> None:
    """16 bits or floats, in the least time; where they would keep the score anyway, none."""
    graph, random = rough(), np.random.default_rng(0)
    data = random.normal(size=(12, 1, 8)).astype(np.float32)
    data[:, :, 0] *= 1000
    wanted = [np.asarray(microc.compile(graph, check=False)(row)) for row in data]

    def score(network: Any) -> float:
        return -float(
            np.mean([np.square(np.asarray(network(row)) - y).sum() for row, y in zip(data, wanted, strict=True)])
        )

    plain = microc.quantize(graph, data[:7], evaluate=score).report["score"]
    found = microc.quantize(graph, data[:7], evaluate=score, max_drop=-plain / 50, board=BOARD)
    told = found.report["mixed"]
    assert told["against"] == "cycles" and found.report["score"] >= plain / 50
    assert {layer["bits"] for layer in told["layers"]} & {16, 32}
    fine = microc.quantize(graph, data[:7], evaluate=score, max_drop=-2 * plain, board=BOARD).report["mixed"]
    assert fine["against"] == "flash" and {layer["bits"] for layer in fine["layers"]} <= {8, 4, 2}
