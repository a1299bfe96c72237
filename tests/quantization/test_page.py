# SPDX-License-Identifier: Apache-2.0
"""The report on layers, and its page: what it shows, and that names of strangers are text in it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.cli import main
from microc.cli.quantize import quantization_document
from microc.compiler.options import Options
from microc.document.renderers import render_text
from microc.graph.ir import Loc
from microc.quantization.decisions import normalise_float_graph
from microc.quantization.quantisation_points import find_quantisation_points
from microc.quantization.quantised_page import min_bits_of_integers, to_html
from microc.quantization.quantised_report import group_into_layers
from tests.quantization.networks import Net, classifier, images
from tests.run.test_profile import EVIL, Page

BOARD = "nucleo-l476rg"


def small() -> microc.Graph:
    net = Net((1, 12, 12, 3))
    pooled = net.op("mean", net.op("relu", net.conv(net.x, 4)), axes=(1, 2), keepdims=False)
    return net.graph(net.dense(pooled, 5))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a search, with labels of five classes."""
    path = tmp_path_factory.mktemp("data") / "data.npz"
    np.savez(path, x=images(7), truth=np.arange(7) % 5)
    found = microc.quantize(small(), path, labels="truth", board=BOARD, max_drop=1.0)
    return {**found.report, "repairs": [{"name": "rounding", "before": 30.0, "after": 31.0, "kept": True}]}


def test_layers_are_what_the_model_has() -> None:
    """Functions of elements belong to the layer before, where its result is not stored; pools, sums and joins stand alone."""
    graph = normalise_float_graph(classifier(), Options())
    assert [row.ops for row in group_into_layers(graph, find_quantisation_points(graph).values)] == [
        "input", "conv2d+relu", "conv2d+clip", "conv2d", "add", "conv2d", "sigmoid", "concat", "max_pool2d", "mean", "dense",
        "softmax",
    ]  # fmt: skip


def test_costs_of_layers_add_up(report: dict[str, Any]) -> None:
    """Every instruction is some layer's; flash is but for what surrounds the network."""
    for key in ("float_cost", "cost"):
        parts = [layer[key] for layer in report["layers"] if layer[key]]
        assert sum(part["instructions"] for part in parts) == pytest.approx(
            report[key]["estimated_instructions"], abs=5
        )
        assert sum(part["cycles"] for part in parts) == pytest.approx(report[key]["estimated_cycles"], abs=5)
        assert 2000 < report[key]["flash"] - sum(part["flash"] for part in parts) < 5000


def test_every_layer_is_told(report: dict[str, Any]) -> None:
    assert all(layer["decibels"] > 5 and layer["dtype"] == "int8" for layer in report["layers"][1:])
    assert all(layer["low"] < layer["high"] and layer["scale"] > 0 for layer in report["layers"])
    chosen = {layer["layer"]: layer["bits"] for layer in report["mixed"]["layers"]}
    assert {k["layer"]: k["bits"][0] for k in report["layers"] if k["bits"]} == chosen


@pytest.mark.parametrize(
    ("low", "high", "bits"), [(-1, 1, 2), (-2, 1, 2), (-7, 7, 4), (-128, 5, 8), (0, 128, 9), (0, 0, 2)]
)
def test_bits_that_integers_fit_in(low: int, high: int, bits: int) -> None:
    assert min_bits_of_integers(np.array([low, high], np.int16)) == bits


def test_page(report: dict[str, Any]) -> None:
    text = to_html(report)
    page = Page(text)
    assert text == to_html(report) and "default-src 'none'" in text and "src=" not in text
    assert text.count('class="plot"') == 2 and text.count('class="chosen"') == 3  # twice a point, once in the legend
    cells = sum(map(len, report["classification"]["confusion"]))
    assert text.count("<tr>") > len(report["layers"]) and text.count("<g><title>") == cells > 5
    assert sum(tag == "script" for tag, _ in page.tags) == 1
    for words in ("What to try next", "Confusion", "Signal to noise", "Repairs", "The front", "mean"):
        assert words in text


def test_many_classes_and_no_noise(report: dict[str, Any]) -> None:
    """A matrix that nobody could read is a list of mistakes; what is unknown is empty."""
    many = np.diag(np.full(40, 2))
    more = many.copy()
    more[3, 4] = 7
    found = {**report["classification"], "confusion": more.tolist(), "float_confusion": many.tolist()}
    layers = [
        {**layer, "decibels": None, "value_sensitivity": None, "weight_sensitivity": None} for layer in report["layers"]
    ]
    front = [{**point, "noise": 0.0} for point in report["mixed"]["front"][:1]]
    mixed = {**report["mixed"], "front": front}
    text = to_html({**report, "classification": found, "layers": layers, "mixed": mixed})
    assert "Most frequent mistakes" in text and 'class="confusion"' not in text


def test_names_of_models_are_text(tmp_path: Path) -> None:
    net = Net((1, 4))
    y = net.op("atan2", net.dense(net.x, 4), net.dense(net.x, 4))
    graph = net.graph(net.dense(net.op("relu", y), 3))
    evil = graph.with_nodes(replace(node, loc=Loc(EVIL, k, EVIL)) for k, node in enumerate(graph.nodes))
    data = np.random.default_rng(0).normal(size=(8, 1, 4)).astype(np.float32)
    path = microc.quantize(evil, data, board=BOARD).save_report(tmp_path / "report.html")
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text and "What stays in floats" in text
    assert sum(tag == "script" for tag, _ in page.tags) == 1
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)


@pytest.mark.parametrize("full", [False, True])
def test_terminal(report: dict[str, Any], full: bool) -> None:
    """Tables are cut, unless all is asked for."""
    layers = [{**report["layers"][1], "layer": f"layer {k}"} for k in range(20)]
    said = render_text(quantization_document({**report, "layers": layers}, "net.mcg", "out.mcg", full))
    assert [words in said for words in ("layer 19", "8 more layers", "--full")] == [full, not full, not full]
    for words in (
        "accuracy  ",
        "on nucleo-l476rg",
        "what to try next",
        "truth \\ answer",
        "% of noise",
        "the front on",
        "rounding  yes",
    ):
        assert words in said


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    microc.save(small(), tmp_path / "net.mcg")
    np.savez(tmp_path / "data.npz", x=images(7), truth=np.arange(7) % 5)
    words = [
        "quantize",
        "net.mcg",
        "--data",
        "data.npz",
        "--labels",
        "truth",
        "-o",
        "out.mcg",
        "--html",
        "page.html",
        "--json",
    ]
    assert main([str(tmp_path / word) if "." in word else word for word in words]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["layers"]) == 4 and len(told["classification"]["float_confusion"]) == 5
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert main([str(tmp_path / word) if "." in word else word for word in words[:-1]] + ["--pixels", "0", "1"]) == 2
    assert "--pixels requires pictures" in capsys.readouterr().err
