"""Repairs of a quantised network, kept only if they lower the noise on samples that they were not made from.

Every repair proposes another recipe, and other biases. It is made from three quarters of the calibration samples, layer by
layer, by what the quantised network hands to each (:mod:`.lockstep`); the last quarter judges, on compiled networks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from microc.driver.progress import Progress
from microc.dtypes import Array
from microc.frozen import frozen
from microc.graph.ir import Graph, Names
from microc.quantization.blocks import NONE
from microc.quantization.layers import Layer, layers
from microc.quantization.lockstep import Fit, Moments, in_turn
from microc.quantization.loops import body_of
from microc.quantization.observe import Row
from microc.quantization.pair import Pair, Reals
from microc.quantization.report.comparison import Noise
from microc.quantization.rounding import for_stored, shrunk, weights_by_answer
from microc.quantization.scheme import Weight
from microc.quantization.weights import least_scales
from microc.quantization.write import Recipe, quantised, simulated

FEWEST = 8
"""Samples, below which nothing is repaired: too few to judge by."""
_SILENT = 200.0
"""Decibels of an output without noise."""
Widths = Mapping[str, int]
"""Bits of weights, by name."""
Biases = Mapping[str, Array]
"""Of layers, by the names of their results."""


@frozen
class Attempt:
    """A recipe, and the biases that layers have with it instead of their own."""

    recipe: Recipe
    biases: Biases = field(default_factory=dict)

    def graph(self, graph: Graph) -> Graph:
        """The float graph with these biases."""
        names, types, consts = Names(graph.types), dict(graph.types), dict(graph.consts)
        nodes = []
        for node in graph.nodes:
            bias, body = self.biases.get(node.outputs[0]), body_of(node)
            if bias is not None:
                name = names.fresh(f"{node.outputs[0]}_bias")
                consts[name] = bias.astype(np.float32)
                types[name] = replace(types[node.inputs[1]], shape=bias.shape, layout="")
                node = replace(node, inputs=(*node.inputs[:2], name))
            elif body is not None:
                node = replace(node, attrs={**node.attrs, "body": self.graph(body)})
            nodes.append(node)
        return graph.with_nodes(nodes, types=types, consts=consts)


class Trial:
    """An attempt, compiled. ``reals``: as in :class:`.Pair`, of this graph."""

    def __init__(self, graph: Graph, attempt: Attempt, reals: Reals | None = None) -> None:
        self.attempt = attempt
        self.written = quantised(attempt.graph(graph), attempt.recipe)
        self.pair = Pair(graph, self.written, {} if reals is None else reals)

    def decibels(self, held: Sequence[Row]) -> float:
        """The ratio of signal to noise at the ends, their mean."""
        noises = {number: Noise(end=end) for number, end in self.pair.judged.items()}
        for real, integer in self.pair.rows(held):
            for number, noise in noises.items():
                noise.add(real[number], integer[number], self.pair.kinds[number])
        found = [noise.decibels for noise in noises.values()]
        return float(np.mean([each if each is not None else _SILENT for each in found]))


def rounding(graph: Graph, attempt: Attempt, samples: Sequence[Row], bits: Widths, seed: int) -> Attempt:
    """Weights rounded for what layers answer to the values that they are given, biases that keep the means of their results."""
    recipe = attempt.recipe
    weights, biases = dict(recipe.weights), dict(attempt.biases)

    def fit(layer: Layer, moments: Moments) -> None:
        real, read, square, cross = moments.centred()
        opened = layer.weight in recipe.opened
        least = np.zeros(layer.bias.size) if opened else least_scales(layer.bias, recipe.read(layer.node).scale)
        square, cross = shrunk(square, cross, moments.independent)
        wanted, block = for_stored(layer.rows, square, cross), NONE if opened else recipe.block
        found = weights_by_answer(wanted, square, least, bits[layer.weight], block, recipe.power_of_two)
        stored = weights[layer.weight] = replace(found, data=found.data.reshape(layer.weights.shape))
        biases[layer.name] = _bias(layer, real, read, stored)

    return _in_turn(graph, weights, biases, recipe, samples, fit, seed)


def bias_correction(graph: Graph, attempt: Attempt, samples: Sequence[Row], bits: Widths, seed: int) -> Attempt:
    """Biases that keep the mean of each result: "Data-Free Quantization Through Weight Equalization and Bias Correction"
    (Nagel et al., 2019), section 4.2, measured."""
    recipe, biases = attempt.recipe, dict(attempt.biases)

    def fit(layer: Layer, moments: Moments) -> None:
        real, read, _, _ = moments.centred()
        biases[layer.name] = _bias(layer, real, read, recipe.weights[layer.weight])

    return _in_turn(graph, dict(recipe.weights), biases, recipe, samples, fit, seed)


def _in_turn(
    graph: Graph,
    weights: dict[str, Weight],
    biases: dict[str, Array],
    recipe: Recipe,
    samples: Sequence[Row],
    fit: Fit,
    seed: int,
) -> Attempt:
    """The attempt with weights and biases that ``fit`` sets, layer by layer."""

    def attempt() -> Attempt:
        return Attempt(replace(recipe, weights=dict(weights)), dict(biases))

    stored = {*recipe.activations, *(layer.data for layer in layers(graph, recipe.opened))}
    found = [layer for layer in layers(graph, frozenset(weights)) if layer.data in stored]
    in_turn(graph, found, samples, lambda: simulated(attempt().graph(graph), attempt().recipe), fit, seed)
    return attempt()


def _bias(layer: Layer, real: Array, read: Array, stored: Weight) -> Array:
    """The float layer's bias, and by how much the products' mean is off where it reads factors of other means (G, K)."""
    rows = stored.real.reshape(layer.rows.shape)
    off = (layer.rows * real[:, None] - rows * read[:, None]).sum(axis=2)
    return np.asarray(layer.bias + off.reshape(-1))


Repair = Callable[[Graph, Attempt, Sequence[Row], Widths, int], Attempt]
REPAIRS: Mapping[str, Repair] = {"rounding by answers": rounding, "bias correction": bias_correction}
"""In order; the first one that helps is kept, since it does what those after it do."""

Repaired = tuple[Trial, list[dict[str, Any]]]


def repaired(
    graph: Graph,
    plain: Trial,
    bits: Widths,
    samples: Sequence[Row],
    seed: int,
    reals: Reals,
    progress: Progress | None = None,
) -> Repaired:
    """The ``plain`` network after the repair that helps, if any does, and the report on each: ``name``, ``before`` and
    ``after`` in decibels, ``kept``."""
    if len(samples) < FEWEST:
        return plain, []
    made, held = split(graph, samples, seed)
    before, told = plain.decibels(held), list[dict[str, Any]]()
    for number, (name, repair) in enumerate(REPAIRS.items()):
        if progress is not None:
            progress(f"repair: {name}", number, len(REPAIRS))
        trial = Trial(graph, repair(graph, plain.attempt, made, bits, seed), reals)
        after = trial.decibels(held)
        told.append({"name": name, "before": before, "after": after, "kept": after > before})
        if after > before:
            return trial, told
    return plain, told


def split(graph: Graph, samples: Sequence[Row], seed: int) -> tuple[list[Row], list[Row]]:
    """Samples to repair by, and a quarter to judge by: drawn, or the last ones where a sample goes on from those before."""
    order = np.arange(len(samples)) if graph.state else np.random.default_rng(seed).permutation(len(samples))
    end = len(samples) - len(samples) // 4
    return [samples[k] for k in np.sort(order[:end])], [samples[k] for k in np.sort(order[end:])]
