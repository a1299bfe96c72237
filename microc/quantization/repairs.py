"""Repairs of a quantised network, each kept only if it lowers the noise on samples that it was not made from.

Every repair proposes another recipe, and other biases. It is made from three quarters of the calibration samples, on which
the quantised network runs beside the float one; the last quarter judges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from microc.dtypes import Array
from microc.graph.ir import Graph, Names
from microc.quantization.blocks import NONE
from microc.quantization.layers import Layer, layers
from microc.quantization.observe import Progress, Row
from microc.quantization.pair import Pair
from microc.quantization.report import Noise
from microc.quantization.rounding import weights_by_answer
from microc.quantization.scheme import Weight, dequantised, faked
from microc.quantization.weights import least_scales
from microc.quantization.write import Recipe, quantised

FEWEST = 8
"""Samples, below which nothing is repaired: too few to judge by."""
_ROWS = 1 << 13
"""Results of a layer that are looked at, over all samples."""
_SILENT = 200.0
"""Decibels of an output without noise."""
Widths = Mapping[str, int]
"""Bits of weights, by name."""
Biases = Mapping[str, Array]
"""Of layers, by the names of their results."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A recipe, and the biases that layers have with it instead of their own."""

    recipe: Recipe
    biases: Biases = field(default_factory=dict)

    def graph(self, graph: Graph) -> Graph:
        """The float graph with these biases."""
        names, types, consts = Names(graph.types), dict(graph.types), dict(graph.consts)
        nodes = []
        for node in graph.nodes:
            bias = self.biases.get(node.outputs[0])
            if bias is not None:
                name = names.fresh(f"{node.outputs[0]}_bias")
                consts[name] = bias.astype(np.float32)
                types[name] = replace(types[node.inputs[1]], shape=bias.shape, layout="")
                node = replace(node, inputs=(*node.inputs[:2], name))
            nodes.append(node)
        return graph.with_nodes(nodes, types=types, consts=consts)


@dataclass(slots=True)
class Moments:
    """Of a layer's factors, group by group: means (G, K) of the ``real`` and the ``stored`` ones, ``square``: second moments
    (G, K, K) of the real ones."""

    real: Array
    stored: Array
    square: Array

    @classmethod
    def none(cls, layer: Layer) -> Moments:
        means = layer.groups, layer.depth
        return cls(np.zeros(means), np.zeros(means), np.zeros((*means, layer.depth)))

    def add(self, real: Array, stored: Array, share: float) -> None:
        """Rows (G, rows, K) of a sample, which is this share of all."""
        self.real += share * real.mean(axis=1)
        self.stored += share * stored.mean(axis=1)
        self.square += share / real.shape[1] * (real.swapaxes(1, 2) @ real)

    @property
    def covariance(self) -> Array:
        """``square`` without what the means do, for which biases make up."""
        return np.asarray(self.square - self.real[:, :, None] * self.real[:, None])


class Trial:
    """An attempt, compiled. ``before``: the one that it was made from."""

    def __init__(self, graph: Graph, attempt: Attempt, seed: int, before: Trial | None = None) -> None:
        self.graph, self.attempt, self.seed = graph, attempt, seed
        self.written = quantised(attempt.graph(graph), attempt.recipe)
        self.pair: Pair = Pair(graph, self.written, None if before is None else before.pair)

    def decibels(self, held: Sequence[Row]) -> float:
        """The ratio of signal to noise at the ends, their mean."""
        noises = {number: Noise(end=end) for number, end in self.pair.judged.items()}
        for real, integer in self.pair.rows(held):
            for number, noise in noises.items():
                noise.add(real[number], integer[number], self.pair.kinds[number])
        found = [noise.decibels for noise in noises.values()]
        return float(np.mean([each if each is not None else _SILENT for each in found]))

    def moments(self, samples: Sequence[Row]) -> dict[str, tuple[Layer, Moments]]:
        """Of all layers, by the names of their results."""
        found = {
            layer.node.outputs[0]: (layer, Moments.none(layer))
            for layer in layers(self.graph, frozenset(self.attempt.recipe.weights))
            if layer.data in {*self.pair.names, *self.graph.inputs}
        }
        random = np.random.default_rng(self.seed)
        for arrays, (real, integer) in zip(samples, self.pair.rows(samples), strict=True):
            reals = dict(zip((*self.graph.inputs, *self.pair.names), (*arrays, *real), strict=True))
            stored = self._stored(arrays, integer)
            for layer, moments in found.values():
                a, b = reals[layer.data], stored[layer.data]
                reads = layer.reads(a, max(1, _ROWS // len(samples)), random)
                moments.add(reads.of(a), reads.of(b), 1 / len(samples))
        return found

    def _stored(self, arrays: Row, integer: Row) -> dict[str, Array]:
        """The reals that the integers stand for."""
        how = self.attempt.recipe.activations
        given = zip(self.graph.inputs, arrays, strict=True)
        found = {name: faked(a, how[name]) if name in how else a for name, a in given}
        for name, kind, array in zip(self.pair.names, self.pair.kinds, integer, strict=True):
            found[name] = array if kind.quant is None else dequantised(array, kind.quant)
        return found


def rounding(trial: Trial, samples: Sequence[Row], bits: Widths) -> Attempt:
    """Weights rounded for what layers answer to the float network's values, biases that keep the means of their results."""
    recipe = trial.attempt.recipe
    weights, biases = dict(recipe.weights), dict(trial.attempt.biases)
    for name, (layer, moments) in trial.moments(samples).items():
        opened = layer.data not in recipe.activations
        least = np.zeros(layer.bias.size) if opened else least_scales(layer.bias, recipe.read(layer.node).scale)
        block = NONE if layer.weight in recipe.opened else recipe.block
        found = weights_by_answer(layer.rows, moments.covariance, least, bits[layer.weight], block, recipe.power_of_two)
        stored = replace(found, data=found.data.reshape(layer.weights.shape))
        weights[layer.weight] = stored
        biases[name] = _bias(layer, moments.real, moments.real, stored)
    return Attempt(replace(recipe, weights=weights), biases)


def bias_correction(trial: Trial, samples: Sequence[Row], bits: Widths) -> Attempt:
    """Biases that bring the mean of each result nearer to the float network's: "Data-Free Quantization Through Weight
    Equalization and Bias Correction" (Nagel et al., 2019), section 4.2, measured. All layers at once, and by half of what
    each is off: the other half is gone where those before are right."""
    attempt = trial.attempt
    biases = dict(attempt.biases)
    for name, (layer, moments) in trial.moments(samples).items():
        wanted = _bias(layer, moments.real, moments.stored, attempt.recipe.weights[layer.weight])
        biases[name] = (biases.get(name, layer.bias) + wanted) / 2
    return replace(attempt, biases=biases)


def _bias(layer: Layer, real: Array, read: Array, stored: Weight) -> Array:
    """The float layer's bias, and by how much the products' mean is off where it reads factors of other means (G, K)."""
    rows = stored.real.reshape(layer.rows.shape)
    off = (layer.rows * real[:, None] - rows * read[:, None]).sum(axis=2)
    return np.asarray(layer.bias + off.reshape(-1))


Repair = Callable[[Trial, Sequence[Row], Widths], Attempt]
REPAIRS: Mapping[str, tuple[Repair, int]] = {
    "rounding by answers": (rounding, 1),
    "bias correction": (bias_correction, 3),
}
"""In order, each with how often it is done at most, as long as it helps."""

Repaired = tuple[Trial, list[dict[str, Any]]]


def repaired(
    graph: Graph, recipe: Recipe, bits: Widths, samples: Sequence[Row], seed: int, progress: Progress | None = None
) -> Repaired:
    """The network after those repairs that help, and the report on each: ``name``, ``before`` and ``after`` in decibels,
    ``kept``."""
    best = Trial(graph, Attempt(recipe), seed)
    if len(samples) < FEWEST:
        return best, []
    made, held = split(graph, samples, seed)
    before, told = best.decibels(held), list[dict[str, Any]]()
    for number, (name, (repair, rounds)) in enumerate(REPAIRS.items()):
        for _ in range(rounds):
            if progress is not None:
                progress(f"repair: {name}", number, len(REPAIRS))
            trial = Trial(graph, repair(best, made, bits), seed, best)
            after = trial.decibels(held)
            told.append({"name": name, "before": before, "after": after, "kept": after > before})
            if after <= before:
                break
            best, before = trial, after
    return best, told


def split(graph: Graph, samples: Sequence[Row], seed: int) -> tuple[list[Row], list[Row]]:
    """Samples to repair by, and a quarter to judge by: drawn, or the last ones where a sample goes on from those before."""
    order = np.arange(len(samples)) if graph.state else np.random.default_rng(seed).permutation(len(samples))
    end = len(samples) - len(samples) // 4
    return [samples[k] for k in np.sort(order[:end])], [samples[k] for k in np.sort(order[end:])]
