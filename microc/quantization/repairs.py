"""Cross-layer equalisation of a float network, and repairs of a quantised one: output-aware rounding and bias correction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.compiler.interaction import Progress
from microc.graph.ir import Graph, NameSet, Node
from microc.quantization.calibration_data import Row, Statistics
from microc.quantization.integer_scheme import (
    NONE,
    Weight,
    fit_to_stored_factors,
    least_scales,
    round_weights_for_output,
    shrink_moments,
    weight_levels,
)
from microc.quantization.network_noise import Fit, Moments, NetworkPair, Reals, fit_layers_in_order
from microc.quantization.network_structure import ChannelUnits, Layer, find_matrix_layers, quantisable_body_of
from microc.quantization.quantised_page import Noise
from microc.quantization.write import Recipe, write_quantised_graph, write_simulated_graph

# ---- Cross-layer equalisation: bring the channels of a tensor to similar ranges, so that one scale suits all. The network's
# function stays the same.
#
# Between two layers a channel may be stored in any unit: the layer before is divided by s, the layer behind multiplied by s,
# and a positively homogeneous operator in between (a relu, a pool, a sum) is not affected. A layer with a scale per output
# channel produces any unit at no loss; a layer that reads it has one weight scale for all inputs, unless it is depthwise. The
# compromise is s = r^a / w^(1 - a), with r the range of the channel and w that of the weights that read it: a = 1/2 is that of
# "Data-Free Quantization Through Weight Equalization and Bias Correction" (Nagel et al., 2019), other a are those of
# "SmoothQuant" (Xiao et al., 2022). The a with the least expected noise is chosen for each tensor.

_EXPONENTS = (0.0, 0.25, 0.5, 0.75, 1.0)
_LEAST_GAIN = 0.9
"""Ratio of the noise after to the noise before, above which a tensor is not changed."""


@frozen
class _Reader:
    """A layer that reads a tensor: weights (outputs, taps, channels), each output divided by its own RMS."""

    weights: Array
    depthwise: bool


def equalise_channels(
    graph: Graph, statistics_by_value: Mapping[str, Statistics], dtype: str = "int8", bits: int = 8
) -> Graph:
    """Rescale the channels of a float graph for less noise; returns the same object if nothing is gained.

    ``statistics_by_value``: statistics of its activations, which will have ``dtype``, and weights ``bits`` bits. The
    expected noise weighs both."""
    units = ChannelUnits(graph)
    if not units.free.any():
        return graph
    factors = np.ones(units.count)
    for tensors in units.blocks([value for value in statistics_by_value if value in graph.types]):
        block = _Block(graph, units, {value: statistics_by_value[value] for value in tensors}, dtype, bits)
        factors = block.choose_factors(factors)
    return graph if (factors == 1).all() else units.apply(factors)


class _Block:
    """Tensors that share units, and the layers that read them."""

    def __init__(
        self, graph: Graph, units: ChannelUnits, seen: Mapping[str, Statistics], dtype: str, bits: int
    ) -> None:
        self.units, self.seen = units, seen
        self.steps, self.weight_steps = (1 << dtypes.dtype_parts(dtype).bits) - 1, weight_levels(bits)[1]
        self.readers = {value: list(_layers_that_read(graph, units, value, seen[value])) for value in seen}
        self.ranges, self.reach, self.weight = (np.zeros(units.count) for _ in range(3))
        for value, statistics in seen.items():
            own = units.of(value)
            np.maximum.at(self.ranges, own, statistics.channels)
            for reader in self.readers[value]:
                np.maximum.at(self.weight, own, np.square(reader.weights).sum(axis=(0, 1)))
                if not reader.depthwise:
                    np.maximum.at(self.reach, own, np.abs(reader.weights).max(axis=(0, 1)))

    def choose_factors(self, factors: Array) -> Array:
        """Return the factors with those of this block's units chosen."""
        is_used = self.ranges > 0
        free = self.units.free & is_used
        if not free.any():
            return factors
        is_read = is_used & (self.reach > 0)
        common = float(np.median(self.ranges[is_read] * self.reach[is_read])) if is_read.any() else 1.0
        target = np.where(is_read, common / np.where(is_read, self.reach, 1.0), self.ranges)
        fixed = is_used & ~self.units.free
        best, least = factors, _LEAST_GAIN * self.noise(factors)
        # r / target is a geometric mean of both interests: exponent 1 equalises ranges, 0 equalises the readers' weights.
        # Factors are normalised, since a common factor changes nothing: by the fixed channels of the block, whose factor is 1,
        # if it has any.
        for exponent in _EXPONENTS:
            logs = np.zeros(len(factors))
            logs[is_used] = exponent * np.log(self.ranges[is_used]) + (1 - exponent) * np.log(target[is_used])
            trial = factors.copy()
            trial[free] = np.exp(logs[free] - logs[fixed if fixed.any() else free].mean())
            noise = self.noise(trial)
            if noise < least:
                best, least = trial, noise
        return best

    def noise(self, factors: Array) -> float:
        """Return the expected relative noise of the layers that read the tensors: squared uniform errors of one step,
        summed.

        Channels that no layer reads in this tensor (an operand of a sum) count like the same units elsewhere.
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


def _layers_that_read(graph: Graph, units: ChannelUnits, value: str, statistics: Statistics) -> Iterator[_Reader]:
    """Yield the layers that read a tensor, with weights divided by the RMS of each output."""
    for node in graph.nodes:
        if node.inputs[:1] == (value,) and units.is_layer(node):
            weights, depthwise = _weights_by_channel(graph, node, len(statistics.power))
            size = np.sqrt((np.square(weights) * statistics.power).sum(axis=(1, 2), keepdims=True))
            yield _Reader(weights / np.where(size > 0, size, 1.0), depthwise)


def _weights_by_channel(graph: Graph, node: Node, channels: int) -> tuple[Array, bool]:
    """Return a layer's weights (outputs, taps, channels), and True for a depthwise one, which is zero except at the channel
    that an output reads."""
    data = graph.consts[node.inputs[1]].astype(np.float64)
    flat = data.reshape(len(data), -1, data.shape[-1])
    if flat.shape[2] == channels:
        return flat, False
    dense_weights = np.zeros((len(flat), flat.shape[1], channels))
    rows = np.arange(len(flat))
    dense_weights[rows, :, rows // (len(flat) // channels)] = flat[:, :, 0]
    return dense_weights, True


# ---- Repairs of a quantised network, kept only if they lower the noise on held-back samples.
#
# Every repair proposes another recipe and other biases. It is fitted to three quarters of the calibration samples, layer by
# layer, on the data that the quantised network gives to each layer (:mod:`.network_noise`). The last quarter judges, on
# compiled networks.

MIN_SAMPLES = 8
"""Samples below which nothing is repaired: too few to judge by."""
_SILENT = 200.0
"""Decibels that stand for an output without noise."""
Widths = Mapping[str, int]
"""Bits of weights, by name."""
Biases = Mapping[str, Array]
"""Biases of layers, by the names of their results."""


@frozen
class Attempt:
    """A recipe, and biases of layers that replace their own."""

    recipe: Recipe
    biases: Biases = field(default_factory=dict)

    def graph(self, graph: Graph) -> Graph:
        """Return the float graph with these biases."""
        names, types, consts = NameSet(graph.types), dict(graph.types), dict(graph.consts)
        nodes = []
        for node in graph.nodes:
            bias, body = self.biases.get(node.outputs[0]), quantisable_body_of(node)
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
    """A compiled attempt. ``reals``: compiled float networks, as in :class:`.NetworkPair`."""

    def __init__(self, graph: Graph, attempt: Attempt, reals: Reals | None = None) -> None:
        self.attempt = attempt
        self.written = write_quantised_graph(attempt.graph(graph), attempt.recipe)
        self.pair = NetworkPair(graph, self.written, {} if reals is None else reals)

    def decibels(self, held_back_samples: Sequence[Row]) -> float:
        """Return the mean signal-to-noise ratio in decibels at the network's measured ends on ``held_back_samples``
        samples."""
        noises = {number: Noise(end=end) for number, end in self.pair.judged.items()}
        for real, integer in self.pair.rows(held_back_samples):
            for number, noise in noises.items():
                noise.add(real[number], integer[number], self.pair.kinds[number])
        ratios = [noise.decibels for noise in noises.values()]
        return float(np.mean([ratio if ratio is not None else _SILENT for ratio in ratios]))


def round_for_outputs(
    graph: Graph, attempt: Attempt, samples: Sequence[Row], bits_by_weight: Widths, seed: int
) -> Attempt:
    """Round weights for the least output error (GPTQ), with biases that keep the means of results."""
    recipe = attempt.recipe
    weights, biases = dict(recipe.weights), dict(attempt.biases)

    def fit(layer: Layer, moments: Moments) -> None:
        real, read, square, cross = moments.central_moments()
        is_float_layer = layer.weight in recipe.opened
        least = np.zeros(layer.bias.size) if is_float_layer else least_scales(layer.bias, recipe.read(layer.node).scale)
        square, cross = shrink_moments(square, cross, moments.independent)
        fitted, block = fit_to_stored_factors(layer.rows, square, cross), NONE if is_float_layer else recipe.block
        rounded_weight = round_weights_for_output(
            fitted, square, least, bits_by_weight[layer.weight], block, recipe.power_of_two
        )
        stored = weights[layer.weight] = replace(rounded_weight, data=rounded_weight.data.reshape(layer.weights.shape))
        biases[layer.name] = _corrected_bias(layer, real, read, stored)

    return _fit_layers(graph, weights, biases, recipe, samples, fit, seed)


def correct_biases(
    graph: Graph, attempt: Attempt, samples: Sequence[Row], bits_by_weight: Widths, seed: int
) -> Attempt:
    """Correct biases so that each result keeps its mean.

    "Data-Free Quantization Through Weight Equalization and Bias Correction" (Nagel et al., 2019), section 4.2, with measured
    means.
    """
    recipe, biases = attempt.recipe, dict(attempt.biases)

    def fit(layer: Layer, moments: Moments) -> None:
        real, read, _, _ = moments.central_moments()
        biases[layer.name] = _corrected_bias(layer, real, read, recipe.weights[layer.weight])

    return _fit_layers(graph, dict(recipe.weights), biases, recipe, samples, fit, seed)


def _fit_layers(
    graph: Graph,
    weights: dict[str, Weight],
    biases: dict[str, Array],
    recipe: Recipe,
    samples: Sequence[Row],
    fit: Fit,
    seed: int,
) -> Attempt:
    """Return the attempt with the weights and biases that ``fit`` sets, layer by layer in the order of the network."""

    def attempt() -> Attempt:
        """Return the attempt with the weights and biases fitted so far."""
        return Attempt(replace(recipe, weights=dict(weights)), dict(biases))

    stored = {*recipe.activations, *(layer.data for layer in find_matrix_layers(graph, recipe.opened))}
    fitted_layers = [layer for layer in find_matrix_layers(graph, frozenset(weights)) if layer.data in stored]
    fit_layers_in_order(
        graph,
        fitted_layers,
        samples,
        lambda: write_simulated_graph(attempt().graph(graph), attempt().recipe),
        fit,
        seed,
    )
    return attempt()


def _corrected_bias(layer: Layer, real_means: Array, stored_means: Array, stored_weight: Weight) -> Array:
    """Return a layer's float bias plus the mean error that quantisation causes in the sums of products.

    ``real_means``, ``stored_means``: means of the layer's factors (G, K) in the float and in the quantised network;
    ``stored_weight``: the quantised weights."""
    rows = stored_weight.real.reshape(layer.rows.shape)
    error = (layer.rows * real_means[:, None] - rows * stored_means[:, None]).sum(axis=2)
    return np.asarray(layer.bias + error.reshape(-1))


Repair = Callable[[Graph, Attempt, Sequence[Row], Widths, int], Attempt]
REPAIRS: Mapping[str, Repair] = {"rounding by answers": round_for_outputs, "bias correction": correct_biases}
"""Repairs in order. The first one that helps is kept, since it includes those behind it."""

Repaired = tuple[Trial, list[dict[str, Any]]]


def repair_network(
    graph: Graph,
    unrepaired: Trial,
    bits: Widths,
    samples: Sequence[Row],
    seed: int,
    reals: Reals,
    progress: Progress | None = None,
) -> Repaired:
    """Return the network after the first repair that lowers the noise, else ``unrepaired``; and a report on each repair
    tried.

    A report has ``name``, ``before`` and ``after`` in decibels, ``kept``."""
    if len(samples) < MIN_SAMPLES:
        return unrepaired, []
    fitting_samples, held = split_samples(graph, samples, seed)
    before, reports = unrepaired.decibels(held), list[dict[str, Any]]()
    for number, (name, repair) in enumerate(REPAIRS.items()):
        if progress is not None:
            progress(f"repair: {name}", number, len(REPAIRS))
        trial = Trial(graph, repair(graph, unrepaired.attempt, fitting_samples, bits, seed), reals)
        after = trial.decibels(held)
        reports.append({"name": name, "before": before, "after": after, "kept": after > before})
        if after > before:
            return trial, reports
    return unrepaired, reports


def split_samples(graph: Graph, samples: Sequence[Row], seed: int) -> tuple[list[Row], list[Row]]:
    """Split samples into three quarters to fit repairs to and a quarter to judge them by.

    They are drawn at random; if the network has state, the last ones judge."""
    order = np.arange(len(samples)) if graph.state else np.random.default_rng(seed).permutation(len(samples))
    end = len(samples) - len(samples) // 4
    return [samples[k] for k in np.sort(order[:end])], [samples[k] for k in np.sort(order[end:])]
