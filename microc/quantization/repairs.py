"""Cross-layer equalisation and repairs of a quantised network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.compiler.interaction import Progress
from microc.graph.ir import Graph, Names, Node
from microc.quantization.calibration_data import Row, Statistics
from microc.quantization.integer_scheme import NONE, Weight, for_stored, least_scales, levels, shrunk, weights_by_answer
from microc.quantization.network_noise import Fit, Moments, Pair, Reals, in_turn
from microc.quantization.network_structure import Layer, Units, body_of, layers
from microc.quantization.quantised_page import Noise
from microc.quantization.write import Recipe, quantised, simulated

# ---- Cross-layer equalisation: channels of one tensor in like ranges, so that one scale serves all; the network's
# function stays.
#
# Between two layers a channel may be stored in any unit: what makes it is divided by s, what reads it multiplied by s, and
# whatever is positively homogeneous in between (a relu, a pool, a sum) does not see it. Layers with a scale for each output
# channel make any unit at no loss; those that read it have weights of one scale for all inputs, unless they are depthwise.
# Between both interests s = r^a / w^(1 - a) mediates, with r the range of the channel and w that of the weights that read it:
# a = 1/2 is that of "Data-Free Quantization Through Weight Equalization and Bias Correction" (Nagel et al., 2019), others are
# those of "SmoothQuant" (Xiao et al., 2022). Of all a the least expected noise is taken, tensor by tensor.

_EXPONENTS = (0.0, 0.25, 0.5, 0.75, 1.0)
_LEAST_GAIN = 0.9
"""Noise after and before, above which a tensor stays as it is."""


@frozen
class _Reader:
    """A layer that reads a tensor: its weights as (outputs, taps, channels), each output in units of its own size."""

    weights: Array
    depthwise: bool


def equalised(graph: Graph, seen: Mapping[str, Statistics], dtype: str = "int8", bits: int = 8) -> Graph:
    """The float graph with its channels in better units; the same object where none is found.

    ``seen``: its activations, which will be of ``dtype``, and weights of ``bits``: the finer ones leave the interest to the
    others.
    """
    units = Units(graph)
    if not units.free.any():
        return graph
    factors = np.ones(units.count)
    for tensors in units.blocks([value for value in seen if value in graph.types]):
        block = _Block(graph, units, {value: seen[value] for value in tensors}, dtype, bits)
        factors = block.mediated(factors)
    return graph if (factors == 1).all() else units.applied(factors)


class _Block:
    """Tensors that have units in common, and what reads them."""

    def __init__(self, graph: Graph, units: Units, seen: Mapping[str, Statistics], dtype: str, bits: int) -> None:
        self.units, self.seen = units, seen
        self.steps, self.weight_steps = (1 << dtypes.info(dtype).bits) - 1, levels(bits)[1]
        self.readers = {value: list(_readers(graph, units, value, seen[value])) for value in seen}
        self.ranges, self.reach, self.weight = (np.zeros(units.count) for _ in range(3))
        for value, statistics in seen.items():
            own = units.of(value)
            np.maximum.at(self.ranges, own, statistics.channels)
            for reader in self.readers[value]:
                np.maximum.at(self.weight, own, np.square(reader.weights).sum(axis=(0, 1)))
                if not reader.depthwise:
                    np.maximum.at(self.reach, own, np.abs(reader.weights).max(axis=(0, 1)))

    def mediated(self, factors: Array) -> Array:
        """The factors, those of this block's units chosen."""
        used = self.ranges > 0
        free = self.units.free & used
        if not free.any():
            return factors
        read = used & (self.reach > 0)
        common = float(np.median(self.ranges[read] * self.reach[read])) if read.any() else 1.0
        wanted = np.where(read, common / np.where(read, self.reach, 1.0), self.ranges)
        fixed = used & ~self.units.free
        best, least = factors, _LEAST_GAIN * self.noise(factors)
        for exponent in _EXPONENTS:
            logs = np.zeros(len(factors))
            logs[used] = exponent * np.log(self.ranges[used]) + (1 - exponent) * np.log(wanted[used])
            tried = factors.copy()
            tried[free] = np.exp(logs[free] - logs[fixed if fixed.any() else free].mean())
            found = self.noise(tried)
            if found < least:
                best, least = tried, found
        return best

    def noise(self, factors: Array) -> float:
        """The expected noise of what reads the tensors, relative to its signal: uniform errors of a step, squared and summed.

        Channels that no layer reads in this tensor (an operand of a sum) count as those of their units do elsewhere.
        """
        total = 0.0
        for value, statistics in self.seen.items():
            own = self.units.of(value)
            s = factors[own]
            step = float((statistics.channels / s).max()) / self.steps
            total += step**2 * float((np.square(s) * self.weight[own]).sum())
            for reader in self.readers[value]:
                if not reader.depthwise:
                    steps = np.abs(reader.weights * s).max(axis=(1, 2)) / self.weight_steps
                    power = float((statistics.power / np.square(s)).sum()) * reader.weights.shape[1]
                    total += float(np.square(steps).sum()) * power
        return total


def _readers(graph: Graph, units: Units, value: str, seen: Statistics) -> Iterator[_Reader]:
    """The layers that read a tensor."""
    for node in graph.nodes:
        if node.inputs[:1] == (value,) and units.is_layer(node):
            weights, depthwise = _by_channel(graph, node, len(seen.power))
            size = np.sqrt((np.square(weights) * seen.power).sum(axis=(1, 2), keepdims=True))
            yield _Reader(weights / np.where(size > 0, size, 1.0), depthwise)


def _by_channel(graph: Graph, node: Node, channels: int) -> tuple[Array, bool]:
    """Weights (outputs, taps, channels) of a layer; of a depthwise one, zero but at the channel that an output reads."""
    data = graph.consts[node.inputs[1]].astype(np.float64)
    flat = data.reshape(len(data), -1, data.shape[-1])
    if flat.shape[2] == channels:
        return flat, False
    whole = np.zeros((len(flat), flat.shape[1], channels))
    rows = np.arange(len(flat))
    whole[rows, :, rows // (len(flat) // channels)] = flat[:, :, 0]
    return whole, True


# ---- Repairs of a quantised network, kept only if they lower the noise on samples that they were not made from.
#
# Every repair proposes another recipe, and other biases. It is made from three quarters of the calibration samples, layer by
# layer, by what the quantised network hands to each (:mod:`.lockstep`); the last quarter judges, on compiled networks.

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
