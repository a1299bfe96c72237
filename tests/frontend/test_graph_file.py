# SPDX-License-Identifier: Apache-2.0
"""The reader of graph files: what it wrote it reads, whatever else is put into one is refused as the file's fault."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from microc.errors import MicrocError, ModelError, UnsupportedError, UsageError
from microc.frontend import detect, graph_file
from microc.graph.file import to_bytes
from microc.graph.ir import Attr, Graph, Node, Quant, TensorType
from microc.graph.text import to_text
from tests.frontend.mutate import survey
from tests.graph.graphs import diamond
from tests.graph.test_file import archive_of, members
from tests.support import digits


@pytest.fixture(scope="module")
def graph() -> Graph:
    return detect.load_model_file(digits.INT8)


def with_text(graph: Graph, change: Callable[[str], str]) -> bytes:
    """The file of a graph whose text somebody has edited."""
    parts = members(to_bytes(graph))
    return archive_of({**parts, "graph.txt": change(to_text(graph)).encode("ascii", "replace")})


def test_it_is_known_by_its_content(graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(to_bytes(graph))
    again = detect.load_model_file(path)
    assert to_text(again) == to_text(graph)
    assert all(again.consts[name].tobytes() == array.tobytes() for name, array in graph.consts.items())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("conv2d(", "conv9d(", "not supported: conv9d"),
        ("strides=(1, 1)", "strides=none", "strides=None has a wrong type; expected ints"),
        ("strides=(1, 1)", "strides=7", "strides=7 has a wrong type; expected ints"),
        ("groups=1", "groups=2", "is inconsistent"),
        ("int8[1,8,8,1]", "int8[1,8,8,9]", "is inconsistent"),
        ("int8[1,8,8,1]", "int8x4[1,8,8,1]", "expected a scalar dtype"),
        ("int8[1,8,8,1]", "float32[1,8,8,1]", "got scales for dtype float32, expected an integer dtype"),
        ("int8[1,8,8,1]", "int8[65536,65536,8,1]", "bytes, expected at most"),
        ("output %", "output %x", "not defined"),
    ],
)
def test_edits_that_make_no_sense(graph: Graph, old: str, new: str, message: str) -> None:
    assert old in to_text(graph)
    with pytest.raises(ModelError, match=message) as caught:
        graph_file.read_graph_file(with_text(graph, lambda text: text.replace(old, new)), "net.mcg")
    assert caught.value.where.startswith("net.mcg")


def test_declared_dtypes_of_quantised_results(graph: Graph) -> None:
    """Legalisation requantises a layer to the dtype that is declared, but to none of 64 bits, and ``quantize`` to its own."""

    def refuse(network: Graph, name: str, dtype: str) -> str:
        types = {**network.types, name: replace(network.types[name], dtype=dtype)}
        with pytest.raises(ModelError) as caught:
            graph_file.read_graph_file(to_bytes(replace(network, types=types)), "net.mcg")
        return caught.value.what

    layer = next(node for node in graph.nodes if node.op == "conv2d")
    assert "got int64" in refuse(graph, layer.outputs[0], "int64")
    quant = Quant((0.5,), (0,))
    types = {"x": TensorType((4,), "int8", quant), "y": TensorType((4,), "int16", Quant((0.25,), (0,)))}
    attrs: dict[str, Attr] = {"scale": (0.25,), "zero_point": (0,), "out_dtype": "int16", "rounding": "away"}
    network = Graph("model", ("x",), ("y",), (), types, {}).with_nodes([Node("quantize", ("x",), ("y",), attrs)])
    graph_file.read_graph_file(to_bytes(network), "net.mcg")
    assert "got uint8[4], expected int16[4]" in refuse(network, "y", "uint8")


def test_attributes_that_are_left_out_have_their_defaults(graph: Graph) -> None:
    data = with_text(graph, lambda text: text.replace("groups=1, ", ""))
    assert graph_file.read_graph_file(data, "net.mcg").nodes == graph.nodes


def test_all_unknown_operators_are_listed() -> None:
    data = with_text(diamond(), lambda text: text.replace("relu(", "warp(").replace("mul(", "bend("))
    with pytest.raises(UnsupportedError, match="bend, warp"):
        graph_file.read_graph_file(data, "net.mcg")


def test_shapes_are_those_of_the_import(graph: Graph) -> None:
    data, name = to_bytes(graph), graph.inputs[0]
    assert graph_file.read_graph_file(data, "net.mcg", {name: graph.types[name].shape}).inputs == (name,)
    with pytest.raises(UsageError, match="got shape"):
        graph_file.read_graph_file(data, "net.mcg", {"*": (2, 8, 8, 1)})
    with pytest.raises(UsageError, match="no input"):
        graph_file.read_graph_file(data, "net.mcg", {"y": (1,)})


def test_damage(graph: Graph) -> None:
    outcomes = survey(lambda data: graph_file.read_graph_file(data, "net.mcg"), to_bytes(graph), 200, seed=5)
    assert outcomes["ModelError"] > 100


def test_damaged_text_behind_right_checksums(graph: Graph) -> None:
    dice = random.Random(8)
    refused = 0
    for _ in range(200):
        at, piece = dice.random(), dice.choice(["", "0", "-", "9", "(", ", ", "%", "none", "true", "e", "1e9"])

        def edit(text: str, at: float = at, piece: str = piece) -> str:
            position = int(at * len(text))
            return text[:position] + piece + text[position + 1 :]

        try:
            graph_file.read_graph_file(with_text(graph, edit), "net.mcg")
        except MicrocError as error:
            assert error.exit_code == 3, error
            refused += 1
    assert refused > 50
