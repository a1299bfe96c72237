# SPDX-License-Identifier: Apache-2.0
"""Equalise the channels of a float network across layers, and repair a quantised network: output-aware rounding of
weights, and bias correction."""

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
    compensate_for_data_quantisation,
    level_span_of_weights,
    min_scales_for_biases,
    round_weights_for_output,
    shrink_moments,
)
from microc.quantization.network_noise import FitLayer, FloatLibraries, Moments, NetworkPair, fit_layers_in_order
from microc.quantization.network_structure import ChannelUnits, Layer, find_matrix_layers, find_quantisable_loop_body
from microc.quantization.quantised_page import Noise
from microc.quantization.write import Recipe, write_quantised_graph, write_simulated_graph

# ---- Cross-layer equalisation: rescale the channels of a tensor to similar ranges, so that a single scale suits all of them. The
# function of the network stays the same.
#
# Between two layers a channel may be stored in any unit. The weights of the first layer are divided by s, those of the second
# layer are multiplied by s, and a positively homogeneous operator between them (a relu, a pool, a sum) is not affected. The first
# layer has a scale for each output channel, and can produce any unit without loss. The second layer has a single scale for the
# weights of all input channels, unless it is depthwise, so that its weights get coarser. The compromise is s = r^a / w^(1 - a),
# where r is the range of the channel and w the range of the weights that read it. "Data-Free Quantization Through Weight
# Equalization and Bias Correction" (Nagel et al., 2019) has a = 1/2; "SmoothQuant" (Xiao et al., 2022) has other values of a. The
# a with the least expected noise is chosen for each group of tensors.

_EXPONENTS = (0.0, 0.25, 0.5, 0.75, 1.0)
_MAX_NOISE_RATIO = 0.9
"""Largest ratio of the expected noise after equalisation to the noise before, at which tensors are equalised."""


@frozen
class _ReadingLayer:
    """A layer that reads a tensor which may be equalised.

    ``weights`` (outputs, kernel positions, channels): its weights, those of each output divided by the root mean square
    of the output."""

    weights: Array
    depthwise: bool


def equalise_channels(
    graph: Graph, statistics_by_value: Mapping[str, Statistics], dtype: str = "int8", bits: int = 8
) -> Graph:
    """Return a float graph with its channels rescaled so that quantising it causes less noise.

    ``graph`` itself is returned if rescaling does not lower the expected noise, that of rounding activations and
    weights. ``statistics_by_value``: statistics of the activations. ``dtype``: dtype that activations will have.
    ``bits``: number of bits that weights will have."""
    units = ChannelUnits(graph)
    if not units.free.any():
        return graph
    factors = np.ones(units.count)
    for tensors in units.group_by_common_unit([value for value in statistics_by_value if value in graph.types]):
        block = _CoupledTensors(graph, units, {value: statistics_by_value[value] for value in tensors}, dtype, bits)
        factors = block.choose_unit_factors(factors)
    return graph if (factors == 1).all() else units.rescale_graph(factors)


class _CoupledTensors:
    """Tensors whose channels have common units (factors that must be chosen together), and the layers that read
    them."""

    def __init__(
        self, graph: Graph, units: ChannelUnits, seen: Mapping[str, Statistics], dtype: str, bits: int
    ) -> None:
        self.units, self.seen = units, seen
        self.steps, self.weight_steps = (1 << dtypes.dtype_parts(dtype).bits) - 1, level_span_of_weights(bits)[1]
        self.readers = {value: list(_iterate_reading_layers(graph, units, value, seen[value])) for value in seen}
        self.ranges, self.reach, self.weight = (np.zeros(units.count) for _ in range(3))
        for value, statistics in seen.items():
            own = units.units_of_channels(value)
            np.maximum.at(self.ranges, own, statistics.channel_magnitudes)
            for reader in self.readers[value]:
                np.maximum.at(self.weight, own, np.square(reader.weights).sum(axis=(0, 1)))
                if not reader.depthwise:
                    np.maximum.at(self.reach, own, np.abs(reader.weights).max(axis=(0, 1)))

    def choose_unit_factors(self, factors: Array) -> Array:
        """Return the factors of all units, with the factors of the units of these tensors chosen."""
        is_used = self.ranges > 0
        free = self.units.free & is_used
        if not free.any():
            return factors
        is_read = is_used & (self.reach > 0)
        common = float(np.median(self.ranges[is_read] * self.reach[is_read])) if is_read.any() else 1.0
        target = np.where(is_read, common / np.where(is_read, self.reach, 1.0), self.ranges)
        fixed = is_used & ~self.units.free
        best, least = factors, _MAX_NOISE_RATIO * self.noise(factors)
        # The exponent weighs two aims: 1 equalises the ranges of channels, 0 equalises the weights of the layers that read them.
        # A factor common to all channels changes nothing. Factors are therefore normalised: if the block has fixed channels,
        # whose factor is 1, by these, else by all.
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
        """Return the expected noise of the layers that read the tensors if channels are divided by ``factors``.

        It is a sum of squared quantisation steps, relative to the outputs of the layers. A tensor that no layer reads,
        such as an operand of a sum, counts with the weights that read the same units in other tensors."""
        total = 0.0
        for value, statistics in self.seen.items():
            own = self.units.units_of_channels(value)
            s = factors[own]
            step = float((statistics.channel_magnitudes / s).max()) / self.steps
            total += step**2 * float((np.square(s) * self.weight[own]).sum())
            for reader in self.readers[value]:
                if not reader.depthwise:
                    steps = np.abs(reader.weights * s).max(axis=(1, 2)) / self.weight_steps
                    power = float((statistics.mean_squares / np.square(s)).sum()) * reader.weights.shape[1]
                    total += float(np.square(steps).sum()) * power
        return total


def _iterate_reading_layers(
    graph: Graph, units: ChannelUnits, value: str, statistics: Statistics
) -> Iterator[_ReadingLayer]:
    """Yield the layers that read a tensor, with the weights of each output divided by the root mean square of the
    output.

    ``statistics``: statistics of the tensor."""
    for node in graph.nodes:
        if node.inputs[:1] == (value,) and units.can_convert_units(node):
            weights, depthwise = _weights_by_channel(graph, node, len(statistics.mean_squares))
            size = np.sqrt((np.square(weights) * statistics.mean_squares).sum(axis=(1, 2), keepdims=True))
            yield _ReadingLayer(weights / np.where(size > 0, size, 1.0), depthwise)


def _weights_by_channel(graph: Graph, node: Node, channels: int) -> tuple[Array, bool]:
    """Return a layer's weights in the shape (outputs, kernel positions, input channels), and whether the layer is
    depthwise.

    The weights of a depthwise layer are zero except for the input channel that an output reads."""
    data = graph.consts[node.inputs[1]].astype(np.float64)
    flat = data.reshape(len(data), -1, data.shape[-1])
    if flat.shape[2] == channels:
        return flat, False
    dense_weights = np.zeros((len(flat), flat.shape[1], channels))
    rows = np.arange(len(flat))
    dense_weights[rows, :, rows // (len(flat) // channels)] = flat[:, :, 0]
    return dense_weights, True


# ---- Repairs of a quantised network. A repair is kept only if it lowers the noise on held-back samples.
#
# Every repair proposes another recipe and other biases. Repairs are fitted to three quarters of the calibration samples,
# layer by layer, on the data that each layer reads in the quantised network (:mod:`.network_noise`). The noise before and
# after a repair is measured by running compiled networks on the last quarter of the samples.

MIN_SAMPLES = 8
"""Minimum number of calibration samples for repairs. With fewer samples the noise cannot be measured on held-back
samples."""
_NOISELESS_DECIBELS = 200.0
"""Signal-to-noise ratio in decibels that is assumed for an output without noise."""
Widths = Mapping[str, int]
"""Numbers of bits of weights, by the weights' names."""
Biases = Mapping[str, Array]
"""Biases of layers, by the names of their results."""


@frozen
class Attempt:
    """A proposal for a quantised network: a recipe (storage of all values), and biases that replace those of some
    layers."""

    recipe: Recipe
    biases: Biases = field(default_factory=dict)

    def graph(self, graph: Graph) -> Graph:
        """Return a float graph with its biases replaced by those of the attempt."""
        names, types, consts = NameSet(graph.types), dict(graph.types), dict(graph.consts)
        nodes = []
        for node in graph.nodes:
            bias, body = self.biases.get(node.outputs[0]), find_quantisable_loop_body(node)
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
    """The quantised network of an attempt, written as a graph and compiled for this computer together with the float
    network.

    ``reals``: cache of compiled float networks (see :class:`.NetworkPair`)."""

    def __init__(self, graph: Graph, attempt: Attempt, reals: FloatLibraries | None = None) -> None:
        self.attempt = attempt
        self.written = write_quantised_graph(attempt.graph(graph), attempt.recipe)
        self.pair = NetworkPair(graph, self.written, {} if reals is None else reals)

    def decibels(self, held_back_samples: Sequence[Row]) -> float:
        """Return the signal-to-noise ratio of the quantised network in decibels, as the mean over its outputs.

        ``held_back_samples``: samples on which both networks run; repairs were not fitted to them."""
        noises = {number: Noise(measured_end=end) for number, end in self.pair.measured_ends.items()}
        for real, integer in self.pair.run_both(held_back_samples):
            for number, noise in noises.items():
                noise.add(real[number], integer[number], self.pair.integer_types[number])
        ratios = [noise.decibels for noise in noises.values()]
        return float(np.mean([ratio if ratio is not None else _NOISELESS_DECIBELS for ratio in ratios]))


def round_weights_and_correct_biases(
    graph: Graph, attempt: Attempt, samples: Sequence[Row], bits_by_weight: Widths, seed: int
) -> Attempt:
    """Return the attempt with weights rounded for the least output error (GPTQ), and with biases corrected.

    Corrected biases keep the mean of each layer's result that of the float network."""
    recipe = attempt.recipe
    weights, biases = dict(recipe.weights), dict(attempt.biases)

    def round_and_correct_layer(layer: Layer, moments: Moments) -> None:
        real, read, square, cross = moments.central_moments()
        is_float_layer = layer.weight in recipe.dequantised_weights
        least = (
            np.zeros(layer.bias.size)
            if is_float_layer
            else min_scales_for_biases(layer.bias, recipe.storage_of_read_data(layer.node).scale)
        )
        square, cross = shrink_moments(square, cross, moments.independent_row_count)
        fitted, block = (
            compensate_for_data_quantisation(layer.rows, square, cross),
            NONE if is_float_layer else recipe.block_size,
        )
        rounded_weight = round_weights_for_output(
            fitted, square, least, bits_by_weight[layer.weight], block, recipe.power_of_two
        )
        stored = weights[layer.weight] = replace(rounded_weight, data=rounded_weight.data.reshape(layer.weights.shape))
        biases[layer.name] = _compute_corrected_bias(layer, real, read, stored)

    return _fit_layers_of_attempt(graph, weights, biases, recipe, samples, round_and_correct_layer, seed)


def correct_biases(
    graph: Graph, attempt: Attempt, samples: Sequence[Row], bits_by_weight: Widths, seed: int
) -> Attempt:
    """Return the attempt with biases corrected, so that the mean of each layer's result is that of the float network.

    See "Data-Free Quantization Through Weight Equalization and Bias Correction" (Nagel et al., 2019), section 4.2. Here
    means are measured on samples."""
    recipe, biases = attempt.recipe, dict(attempt.biases)

    def correct_layer_bias(layer: Layer, moments: Moments) -> None:
        real, read, _, _ = moments.central_moments()
        biases[layer.name] = _compute_corrected_bias(layer, real, read, recipe.weights[layer.weight])

    return _fit_layers_of_attempt(graph, dict(recipe.weights), biases, recipe, samples, correct_layer_bias, seed)


def _fit_layers_of_attempt(
    graph: Graph,
    weights: dict[str, Weight],
    biases: dict[str, Array],
    recipe: Recipe,
    samples: Sequence[Row],
    fit_layer: FitLayer,
    seed: int,
) -> Attempt:
    """Return the attempt with the weights and biases that ``fit_layer`` sets for each layer in the order of the
    network.

    ``weights`` and ``biases``: the dicts in which ``fit_layer`` sets them. ``recipe``: storage of all other values."""

    def current_attempt() -> Attempt:
        """Return an attempt with the weights and biases that were fitted so far."""
        return Attempt(replace(recipe, weights=dict(weights)), dict(biases))

    stored = {*recipe.activations, *(layer.data for layer in find_matrix_layers(graph, recipe.dequantised_weights))}
    fitted_layers = [layer for layer in find_matrix_layers(graph, frozenset(weights)) if layer.data in stored]
    fit_layers_in_order(
        graph,
        fitted_layers,
        samples,
        lambda: write_simulated_graph(current_attempt().graph(graph), current_attempt().recipe),
        fit_layer,
        seed,
    )
    return current_attempt()


def _compute_corrected_bias(layer: Layer, real_means: Array, stored_means: Array, stored_weight: Weight) -> Array:
    """Return the bias of a layer for which the mean of its result is that of the float network.

    It is the float bias plus the mean error that quantisation causes in the sums of products. ``real_means`` and
    ``stored_means`` (G, K): means of the data that weights are multiplied by, in the float and in the quantised
    network. ``stored_weight``: the quantised weights."""
    rows = stored_weight.real.reshape(layer.rows.shape)
    error = (layer.rows * real_means[:, None] - rows * stored_means[:, None]).sum(axis=2)
    return np.asarray(layer.bias + error.reshape(-1))


Repair = Callable[[Graph, Attempt, Sequence[Row], Widths, int], Attempt]
REPAIRS: Mapping[str, Repair] = {
    "rounding by answers": round_weights_and_correct_biases,
    "bias correction": correct_biases,
}
"""Repairs by name, in the order in which they are tried. Only the first repair that lowers the noise is applied,
because it includes the repairs after it."""

Repaired = tuple[Trial, list[dict[str, Any]]]


def repair_network(
    graph: Graph,
    unrepaired: Trial,
    bits: Widths,
    samples: Sequence[Row],
    seed: int,
    reals: FloatLibraries,
    progress: Progress | None = None,
) -> Repaired:
    """Return the quantised network after the first repair that lowers its noise, and a report on each repair that was
    tried.

    If no repair lowers the noise, the network is ``unrepaired``. ``bits``: number of bits of each weight. ``samples``:
    the calibration samples. A report contains the repair's ``name``, the signal-to-noise ratio ``before`` and ``after``
    it in decibels, and whether it was ``kept``."""
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
    """Split samples into three quarters, to which repairs are fitted, and a quarter, on which noise is measured.

    The quarter is chosen at random. If the network has state, it consists of the last samples."""
    order = np.arange(len(samples)) if graph.state else np.random.default_rng(seed).permutation(len(samples))
    end = len(samples) - len(samples) // 4
    return [samples[k] for k in np.sort(order[:end])], [samples[k] for k in np.sort(order[end:])]
