# SPDX-License-Identifier: Apache-2.0
"""Bits of layers under limits: the choice is the best there is, and what it promises is so."""

from __future__ import annotations

from itertools import chain, pairwise, product, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.base.knapsack import MAX_SUMS, LayerOption, Selection, pareto_front, pareto_front_by_time
from microc.device.boards import load_board
from microc.errors import FitError, MicrocError, UsageError
from microc.quantization.mixed_bits import estimate_network_cost
from tests.quantization import recurrent
from tests.quantization.networks import Net, classifier, images
from tests.support.campaign import in_campaign

BOARD = "nucleo-l476rg"


def random_layers(count: int, seed: int, unit: int = 7) -> list[list[LayerOption]]:
    random = np.random.default_rng(seed)
    layers = []
    for _ in range(count):
        noises, flash, cycles = (random.integers(1, most, 3) for most in (50, unit, 9))
        each = zip((8, 4, 2), noises, flash, cycles, strict=True)
        layers.append([LayerOption(b, float(n * 4.0**-b), int(b * f), int(c)) for b, n, f, c in each])
    return layers


def every_choice(layers: list[list[LayerOption]]) -> list[Selection]:
    points = []
    for options in product(*layers):
        point = Selection((), 0.0, 0, 0)
        for option in options:
            point = point.append(option)
        points.append(point)
    return points


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("cycles", [None, 30, 22])
def test_the_choice_is_exact(seed: int, cycles: int | None) -> None:
    """For every limit of flash, the least noise of all choices."""
    layers = random_layers(6, seed)
    choices = [p for p in every_choice(layers) if cycles is None or p.cycles <= cycles]
    for flash in (20, 60, 100, 140, 1000):
        possible = [p.loss for p in choices if p.flash <= flash]
        found = pareto_front(layers, flash, cycles)
        assert [p.loss for p in found[-1:]] == ([min(possible)] if possible else [])
        assert all(a.flash < b.flash and a.loss > b.loss for a, b in pairwise(found))


def test_the_front_by_time() -> None:
    """The least noise for each limit of time, whatever that takes of flash."""
    layers = random_layers(6, 1)
    found, choices = pareto_front_by_time(layers), every_choice(layers)
    assert all(a.cycles < b.cycles and a.loss > b.loss for a, b in pairwise(found))
    for cycles in (25, 35, 45):
        best = [p.loss for p in pareto_front_by_time(layers, max_cycles=cycles)[-1:]]
        assert best == [min(p.loss for p in choices if p.cycles <= cycles)] or not best


@pytest.mark.parametrize("cycles", [None, 200])
def test_many_layers_stay_within_limits(cycles: int | None) -> None:
    """Where sums are thinned, limits are kept, and the least flash is found."""
    layers = random_layers(40, 3, unit=100_000)
    least = sum(min(option.flash for option in layer) for layer in layers)
    whole = pareto_front(layers, None, cycles)
    assert len(whole) <= MAX_SUMS + 2 and (cycles is not None or whole[0].flash == least)
    limit = (whole[0].flash + whole[-1].flash) // 2
    found = pareto_front(layers, limit, cycles)[-1]
    assert found.flash <= limit and (cycles is None or found.cycles <= cycles)
    assert found.loss <= 1.05 * min(p.loss for p in whole if p.flash <= limit)


def deep() -> microc.Graph:
    """Layers that are packed, one of which has most of the weights."""
    net = Net((1, 12, 12, 3))
    x = net.op("relu", net.conv(net.x, 32, strides=(2, 2)))
    x = net.op("mean", x, axes=(1, 2), keepdims=False)
    return net.graph(net.dense(net.op("relu", net.dense(x, 256)), 10))


def flat() -> microc.Graph:
    """Three dense layers, which are scheduled sooner than convolutions."""
    net = Net((1, 12, 12, 3))
    x = net.op("relu", net.dense(net.op("reshape", net.x, shape=(1, 432)), 24))
    return net.graph(net.dense(net.op("relu", net.dense(x, 40)), 10))


def noise(graph: microc.Graph, other: microc.Graph, data: Array) -> float:
    first, second = (microc.compile(net, check=False) for net in (graph, other))
    pairs = [(np.asarray(first(x), np.float64), np.asarray(second(x), np.float64)) for x in data]
    return float(sum(np.square(a - b).sum() for a, b in pairs) / sum(np.square(a).sum() for a, _ in pairs))


@in_campaign
def test_half_way_between_4_and_8_bits() -> None:
    """At most half of the noise of 4 bits, within the flash; near what was predicted, and what was measured of it is told."""
    graph, data, board = deep(), images(16), load_board(BOARD)
    fine, coarse = (microc.quantize(graph, data, weights=bits) for bits in (8, 4))
    limit = (
        estimate_network_cost(fine.graph, board)["flash"] + estimate_network_cost(coarse.graph, board)["flash"]
    ) // 2
    found = microc.quantize(graph, data, flash=limit, board=BOARD)
    assert estimate_network_cost(found.graph, board)["flash"] <= limit
    measured = noise(graph, found.graph, images(8))
    assert measured < 0.5 * noise(graph, coarse.graph, images(8))
    chosen = next(point for point in found.report["mixed"]["front"] if point["chosen"])
    assert measured < 3 * chosen["noise"]
    bits = {layer["layer"]: layer["bits"] for layer in found.report["mixed"]["layers"]}
    assert set(bits.values()) > {4} and len(set(bits.values())) > 1


def test_accuracy_is_kept_with_the_least_flash(tmp_path: Path) -> None:
    graph, data = flat(), images(60)
    network = microc.compile(graph, check=False)
    truth = np.array([np.asarray(network(x)).argmax() for x in data])
    np.savez(tmp_path / "data.npz", x=data, truth=truth)
    found = microc.quantize(graph, tmp_path / "data.npz", labels="truth", max_drop=0.05, board=BOARD)
    points = found.report["mixed"]["front"]
    chosen = next(point for point in points if point["chosen"])
    assert found.report["classification"]["accuracy"] == chosen["score"] >= 0.95  # as it is after repairs
    assert chosen["flash"] < points[-1]["flash"]
    assert all(p["score"] is None or 1 - p["score"] > 0.05 for p in points if p["flash"] < chosen["flash"])


def test_a_loss_of_just_the_limit_keeps_it() -> None:
    """0.95 - 0.94 is 0.010000000000000009. Of every step it is told when it begins."""
    told: dict[str, list[tuple[int, int]]] = {}
    scores = chain([0.95], repeat(0.94))
    found = microc.quantize(
        flat(), images(12), board=BOARD, max_drop=0.01, evaluate=lambda _: next(scores),
        progress=lambda what, done, steps: told.setdefault(what, []).append((done, steps)),
    )  # fmt: skip
    chosen = next(point for point in found.report["mixed"]["front"] if point["chosen"])
    assert chosen["flash"] == found.report["mixed"]["front"][0]["flash"]
    for what in ("search: prices", "search: networks", "sensitivity"):
        assert all(0 <= done < steps for done, steps in told[what])
    for what in ("search: prices", "search: networks"):
        done, steps = zip(*told[what], strict=True)
        assert len(set(steps)) == 1 and list(done) == sorted(done) and done[-1] + 1 == steps[0] > 3
    assert "repair: rounding by answers" not in told


def test_bits_by_hand() -> None:
    graph = classifier()
    weights = [node.inputs[1] for node in graph.nodes if node.op in ("conv2d", "dense")]
    found = microc.quantize(graph, images(8), bits={weights[1]: 2, weights[3]: 4})
    most = [int(np.abs(weight.data).max()) for name, weight in found.recipe.weights.items() if name in weights]
    assert sorted(most) == [2, 7, 127, 127, 127][: len(most)]
    result = next(node.outputs[0] for node in graph.nodes if node.op == "dense")
    floats = microc.quantize(graph, images(8), float_layers=[result])
    kept = next(node for node in floats.graph.nodes if node.op == "dense")
    assert floats.graph.types[kept.inputs[1]].dtype == "float32"


def test_fixed_layers_stay_in_a_search() -> None:
    graph = deep()
    first = next(node.inputs[1] for node in graph.nodes if node.op == "conv2d")
    found = microc.quantize(graph, images(4), bits={first: 2}, flash=1 << 20, board=BOARD)
    assert [layer["bits"] for layer in found.report["mixed"]["layers"]] == [2, 8, 8]


REFUSED: dict[str, tuple[dict[str, Any], type[MicrocError], str]] = {
    "too little flash": ({"flash": 2000, "board": BOARD}, FitError, "flash of at least [0-9]+, 2000 allowed"),
    "too little time": ({"time": 1e-5, "board": BOARD}, FitError, "cycles of at least [0-9]+, 800 allowed"),
    "too little RAM": ({"ram": 100, "board": BOARD}, FitError, "expected at most 100"),
    "no board": ({"flash": 5000}, UsageError, "require board"),
    "no clock": ({"time": 1.0, "board": "host"}, UsageError, "has no clock rate"),
    "no labels": ({"max_drop": 0.1, "board": BOARD}, UsageError, "max_drop requires labels"),
    "other bits": ({"bits": {"w": 3}}, UsageError, "bits of 'w'"),
    "no layer": ({"bits": {"nothing": 4}}, UsageError, "no layer 'nothing'"),
    "no float layer": ({"float_layers": "nothing"}, UsageError, "no layer 'nothing'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    given, error, words = REFUSED[name]
    with pytest.raises(error, match=words) as caught:
        microc.quantize(flat(), images(3), **given)
    assert caught.value.hint


def test_that_loops_are_not_searched_is_told() -> None:
    with pytest.raises(FitError, match="flash of at least") as caught:
        microc.quantize(recurrent.network("lstm"), recurrent.sequences(4), flash=1000, board=BOARD)
    assert "loops, whose weights are not searched" in str(caught.value.hint)


def test_a_drop_that_nothing_keeps() -> None:
    graph, data = deep(), images(3)
    expected = microc.compile(graph, optimize="speed", check=False)(data[0])
    with pytest.raises(FitError, match="max_drop: the score falls"):
        microc.quantize(
            graph, data, board=BOARD, max_drop=0.0, evaluate=lambda network: -np.abs(network(data[0]) - expected).sum()
        )
