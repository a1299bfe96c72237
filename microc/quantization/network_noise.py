# SPDX-License-Identifier: Apache-2.0
"""Compare a float network with its quantised form, and measure the noise that quantising each layer or value causes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np

from microc.base.dtypes import Array
from microc.compiler.fit.budget import count_macs
from microc.compiler.interaction import Progress
from microc.graph import ir
from microc.graph.ir import Graph, Node, TensorType
from microc.ops import registry
from microc.ops.meaning import reference_node_function
from microc.quantization.calibration_data import Row, compile_runner, infer_sample, run_on_samples, state_before
from microc.quantization.integer_scheme import (
    Activation,
    Weight,
    fake_quantise,
    min_scales_for_biases,
    round_weights_for_output,
    shrink_moments,
)
from microc.quantization.network_structure import (
    Layer,
    MeasuredEnd,
    expose_values,
    find_matrix_layers,
    find_measured_ends,
    find_quantisable_loop_body,
    flatten_graph,
)
from microc.quantization.write import QuantisedGraph, Recipe, SimulatedGraph
from microc.run.desktop.library import Library
from microc.run.engine import NumpyReference
from microc.transform.quantised.qdq_values import CHOICES, only_moves_elements

# ---- Pair of the float network and a quantised network, both compiled for this computer, whose values can be compared.

FloatLibraries = MutableMapping[tuple[str, ...], Library]
"""Compiled libraries of the same float network, by the names of the values that each library returns."""


class NetworkPair:
    """A float network and its quantised form, compiled for this computer so that their values can be compared.

    ``ends``: names of the network's outputs. ``names``: names in the float network of the values that both networks
    return: outputs, then all values that exist as integers in the quantised network. ``integer_types``: type of each
    value in the quantised network. ``measured_ends``: the ends (see :class:`MeasuredEnd`) at which noise is measured,
    by index in ``names``. ``libraries``: cache of compiled float networks, to which this network is added."""

    def __init__(self, graph: Graph, written: QuantisedGraph, libraries: FloatLibraries) -> None:
        types = flatten_graph(written.graph).types
        stored = {value: name for value, name in written.stored.items() if name in types}
        output_ends = find_measured_ends(graph)
        self.ends = list(output_ends)
        floats = {end.value_name: end.value_name for end in output_ends.values() if end.value_name in types}
        inner = [value for value in {**floats, **stored} if value not in {*graph.inputs, *self.ends}]
        self.names = [*self.ends, *inner]
        integer_names = [*self.ends, *({**floats, **stored}[value] for value in inner)]
        self.measured_ends: dict[int, MeasuredEnd] = {}
        for output, end in output_ends.items():
            end = end if end.value_name in self.names else MeasuredEnd(output)
            self.measured_ends[self.names.index(end.value_name)] = end
        self.integer_types: list[TensorType] = [types[name] for name in integer_names]
        key = tuple(self.names)
        self._float_library = (
            libraries[key] if key in libraries else libraries.setdefault(key, compile_runner(graph, self.names))
        )
        self._integer_library = compile_runner(written.graph, integer_names)

    def run_both(self, samples: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
        """Run both networks on samples. Yield for each sample the float network's values and the quantised network's
        integers."""
        reals, integers = (run_on_samples(library, samples) for library in (self._float_library, self._integer_library))
        return zip(reals, integers, strict=True)


# ---- Evaluation of both networks in numpy, layer by layer on all samples. Each layer's weights are fitted to the data that the
# quantised layers before it compute.

_MAX_MOMENT_ROWS = 1 << 13
"""Maximum number of a layer's results, over all samples, whose factors are added to moments."""
_MAX_EVALUATION_MACS, _MACS_PER_NODE, _MIN_FITTING_SAMPLES = 1 << 29, 1 << 15, 16
"""Limits of the evaluation in numpy.

``_MAX_EVALUATION_MACS``: maximum number of multiply-accumulates over all samples, a second or two. ``_MACS_PER_NODE``:
fixed cost of evaluating a node, in multiply-accumulates. ``_MIN_FITTING_SAMPLES``: minimum number of samples."""
_QUANTISE_OPERATORS = frozenset(("quantize", "dequantize"))
"""Operators that the quantised network has in addition to those of the float network."""
FitLayer = Callable[[Layer, "Moments"], None]
"""Function that fits a layer's weights or bias to the moments of the layer's factors, and stores the result itself."""


class CentralMoments(NamedTuple):
    """Means and covariances of a layer's factors.

    ``real_mean`` and ``stored_mean`` (G, K): means in the float and in the quantised network. ``stored_covariance`` (G,
    K, K): covariances in the quantised network. ``cross_covariance`` (G, K, K): covariances of real by stored
    factors."""

    real_mean: Array
    stored_mean: Array
    stored_covariance: Array
    cross_covariance: Array


@dataclass(slots=True)
class Moments:
    """Sums for the moments of a layer's factors: the data that its weights are multiplied by.

    A layer has G groups of channels, and K factors in each sum of products. The float network computes the real
    factors, the quantised network the stored factors. ``real_sums`` and ``stored_sums`` (G, K): sums for the means of
    real and stored factors. ``stored_square_sums`` (G, K, K): sums for the second moments of stored factors.
    ``cross_sums`` (G, K, K): sums for the cross moments of real by stored factors. ``samples`` and ``rows``: number of
    samples, and number of rows of factors in them."""

    real_sums: Array
    stored_sums: Array
    stored_square_sums: Array
    cross_sums: Array
    samples: int = 0
    rows: int = 0

    @classmethod
    def zero(cls, layer: Layer) -> Moments:
        """Return the moments of a layer's factors before the first sample: all sums are zero."""
        means = layer.product.groups, layer.depth
        squares = *means, layer.depth
        return cls(np.zeros(means), np.zeros(means), np.zeros(squares), np.zeros(squares))

    def add(self, real: Array, stored: Array) -> None:
        """Add the factors of a layer in one sample: arrays (G, rows, K) of the float and of the quantised network."""
        share = 1 / real.shape[1]
        self.real_sums += share * real.sum(axis=1)
        self.stored_sums += share * stored.sum(axis=1)
        self.stored_square_sums += share * (stored.swapaxes(1, 2) @ stored)
        self.cross_sums += share * (real.swapaxes(1, 2) @ stored)
        self.samples += 1
        self.rows += real.shape[1]

    @property
    def independent_row_count(self) -> float:
        """Estimated number of independent rows of factors: the geometric mean of the number of samples and the number
        of rows.

        The rows of a sample are similar, so that they count less than rows of different samples."""
        return float(np.sqrt(self.samples * self.rows))

    def central_moments(self) -> CentralMoments:
        """Return the means and covariances of all factors that were added."""
        real, stored = self.real_sums / self.samples, self.stored_sums / self.samples
        square = self.stored_square_sums / self.samples - stored[:, :, None] * stored[:, None]
        cross = self.cross_sums / self.samples - real[:, :, None] * stored[:, None]
        return CentralMoments(real, stored, square, cross)


class _NetworkRun:
    """A run of the float or the quantised network on all samples at once, node by node.

    ``nodes``: all nodes except those that quantise or dequantise a constant, which are evaluated at once.
    ``compared_nodes``: indices in ``nodes`` of the nodes that both networks have. ``next_node_index``: index in
    ``nodes`` of the first node that was not evaluated yet. ``values``: for each sample the values that this node and
    later nodes read."""

    def __init__(self, graph: Graph, samples: Sequence[Row]) -> None:
        self.samples = samples
        self.values: list[dict[str, Array]] = [dict(zip(graph.inputs, row, strict=True)) for row in samples]
        self.next_node_index = 0
        self.replace_constants(graph)

    def replace_constants(self, graph: Graph) -> None:
        """Replace the network of the run by ``graph``: the same network with other constants."""
        self.graph, self.consts, self.nodes = graph, dict(graph.consts), list[Node]()
        self.apply_node = reference_node_function(graph)
        for node in graph.nodes:
            if all(name in self.consts for name in node.inputs if name) and node.op in _QUANTISE_OPERATORS:
                self._evaluate_node(node, self.consts)
            else:
                self.nodes.append(node)
        self.compared_nodes = [k for k, node in enumerate(self.nodes) if node.op not in _QUANTISE_OPERATORS]

    def evaluate_nodes_before(self, compared_index: int) -> None:
        """Evaluate all nodes before a node, and delete the values that neither this node nor a later node reads.

        ``compared_index``: index of the node in ``compared_nodes``, which is the same in the float and in the quantised
        network."""
        end = self.compared_nodes[compared_index]
        needed = {name for node in self.nodes[end:] for name in node.inputs}
        for values in self.values:
            for node in self.nodes[self.next_node_index : end]:
                self._evaluate_node(node, values)
            for name in values.keys() - needed:
                del values[name]
        self.next_node_index = end

    def iterate_values_before(self, compared_index: int) -> Iterator[Mapping[str, Array]]:
        """Yield for each sample the values that exist before a node, by name. The run itself does not advance.

        ``compared_index``: index of the node in ``compared_nodes``; its length means after the last node. In a network
        with state, the state before a sample is the state after the previous sample of the same sequence."""
        end = self.compared_nodes[compared_index] if compared_index < len(self.compared_nodes) else len(self.nodes)
        state = self.graph.state
        for row, values in zip(self.samples, self.values, strict=True):
            state = state_before(self.graph, row, state)
            all_values = {**self.consts, **state, **values}
            for node in self.nodes[self.next_node_index : end]:
                self._evaluate_node(node, all_values)
            state = {name: all_values[value] for name, value in self.graph.updates.items()}
            yield all_values

    def _evaluate_node(self, node: Node, values: dict[str, Array]) -> None:
        """Compute the results of a node from ``values`` and constants, and add them to ``values``."""
        arrays = [values[name] if name in values else self.consts[name] for name in node.inputs if name]
        values.update(
            (name, array) for name, array in zip(node.outputs, self.apply_node(node, arrays), strict=True) if name
        )


def fit_layers_in_order(
    graph: Graph,
    fitted_layers: Sequence[Layer],
    samples: Sequence[Row],
    simulate_current_network: Callable[[], SimulatedGraph],
    fit_layer: FitLayer,
    seed: int,
) -> None:
    """Call ``fit_layer`` for each of ``fitted_layers`` in the order of the network, with the moments of the layer's
    factors.

    ``simulate_current_network``: function that returns the simulation of the quantised network, in which all layers
    that were fitted so far have their new weights and biases. ``seed``: seed for choosing the results whose factors are
    used."""
    samples = samples[
        : max(
            _MIN_FITTING_SAMPLES,
            _MAX_EVALUATION_MACS // (count_macs(graph) + _MACS_PER_NODE * _count_node_evaluations(graph)),
        )
    ]
    reals = _NetworkRun(expose_values(graph, [layer.data for layer in fitted_layers]), samples)
    quantized = simulate_current_network()
    data_names = [quantized.data[layer.name] for layer in fitted_layers]
    stored = _NetworkRun(expose_values(quantized.graph, data_names), samples)
    random, max_positions = np.random.default_rng(seed), max(1, _MAX_MOMENT_ROWS // len(samples))
    for begin, end, stage in _iterate_fitting_stages(graph, fitted_layers):
        if begin:
            reals.evaluate_nodes_before(begin)
            stored.evaluate_nodes_before(begin)
        moments = [Moments.zero(layer) for layer in stage]
        for a, b in zip(reals.iterate_values_before(end), stored.iterate_values_before(end), strict=True):
            for layer, layer_moments in zip(stage, moments, strict=True):
                real, read = a[layer.data], b[quantized.data[layer.name]]
                reads = layer.sample_reads(real, max_positions, random)
                layer_moments.add(reads.gather_factors(real), reads.gather_factors(read))
        for layer, layer_moments in zip(stage, moments, strict=True):
            fit_layer(layer, layer_moments)
        stored.replace_constants(expose_values(simulate_current_network().graph, data_names))


def _count_node_evaluations(graph: Graph) -> int:
    """Return how many times nodes are evaluated in a run on one sample. A node in a loop counts once for each
    iteration."""
    bodies = ((node, find_quantisable_loop_body(node)) for node in graph.nodes)
    return sum(1 if body is None else node.attr("count") * _count_node_evaluations(body) for node, body in bodies)


class _FittingStage(NamedTuple):
    """Layers that are fitted together, and the range of nodes that must be evaluated to compute the data of these
    layers.

    ``begin_node``: index of the range's first node. ``end_node``: index after the range's last node."""

    begin_node: int
    end_node: int
    layers: list[Layer]


def _iterate_fitting_stages(graph: Graph, fitted_layers: Sequence[Layer]) -> Iterator[_FittingStage]:
    """Yield the stages in which layers are fitted, in the order of the network.

    A layer outside of loops is fitted alone: its data exist before it, and the range of nodes is empty. The layers in
    the body of a loop are fitted together; the range is the loop. If the network has state, each sample depends on the
    previous one: all layers are then fitted together, and the range is the whole network."""
    if graph.state:
        yield _FittingStage(0, len(graph.nodes), list(fitted_layers))
        return
    for index, node in enumerate(graph.nodes):
        body = find_quantisable_loop_body(node)
        node_ids = {id(node)} if body is None else set(map(id, flatten_graph(body).nodes))
        stage = [layer for layer in fitted_layers if id(layer.node) in node_ids]
        if stage:
            yield _FittingStage(index, index if body is None else index + 1, stage)


# ---- Sensitivity: noise at the network's outputs if only the values of a single layer are quantised.
#
# The noise of an output is the sum of squared differences from the float network, divided by the sum of the float network's
# squares. If the last function of the network saturates, noise is measured before this function
# (:func:`.network_structure.find_measured_ends`). The noises of all outputs and of the next state are added. One layer is changed
# at a time, and the nodes that depend on it are evaluated in numpy: nothing is compiled. While noise is small, the network is
# linear in it, and errors of different layers are uncorrelated. The noise of several changed layers is therefore close to the sum
# of the noises that each layer causes alone. The search (:mod:`.mixed_bits`) adds these noises, and measures the networks that it
# finds.

ValueChange = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""Function that maps the float network's values in a sample to the values that a quantisation changes, both by name.

A changed value is a constant or an activation."""
Key = TypeVar("Key", bound=Hashable)
MAX_NOISE_MACS = 1 << 33
"""Maximum number of multiply-accumulates for measurements of noise: about a minute of numpy."""
MAX_REPORT_MACS = 1 << 31
"""Maximum number of multiply-accumulates for measurements whose results are only reported."""
MAX_SAMPLES = 32
REPORT_SAMPLES = 4
MIN_SAMPLES = 2


def sample_count_within_mac_limit(graph: Graph, change_count: int, max_samples: int = MAX_SAMPLES) -> int:
    """Return the number of samples on which the noise of ``change_count`` changes can be measured.

    The multiply-accumulates on these samples are at most :data:`MAX_NOISE_MACS`, unless that allows fewer than
    :data:`MIN_SAMPLES` samples."""
    return int(np.clip(MAX_NOISE_MACS // max(1, count_macs(graph) * change_count), MIN_SAMPLES, max_samples))


def measure_noise_of_changes(
    graph: Graph,
    rows: Sequence[Row],
    changes: Mapping[Key, ValueChange],
    max_samples: int = MAX_SAMPLES,
    progress: Progress | None = None,
) -> dict[Key, float]:
    """Return the noise that each change of values causes alone, as a ratio of noise power to signal power.

    Noise is measured at the ends of the network (see :class:`MeasuredEnd`) and in its next state, on at most
    ``max_samples`` samples; the ratios of all ends are added. The state before each sample is the state of the float
    network."""
    rows = rows[: sample_count_within_mac_limit(graph, len(changes), max_samples)]
    measured_ends = dict.fromkeys(
        (*(MeasuredEnd(name) for name in graph.updates.values()), *find_measured_ends(graph).values())
    )
    signal = dict.fromkeys(measured_ends, 0.0)
    noise = {key: dict.fromkeys(measured_ends, 0.0) for key in changes}
    reference = NumpyReference(graph)
    for number, row in enumerate(rows):
        if progress is not None:
            progress("sensitivity", number, len(rows))
        values = infer_sample(reference, row)
        for end in measured_ends:
            signal[end] += _sum_of_squares(end.measured_part(values[end.value_name]))
        for key, change in changes.items():
            changed = _evaluate_changed_values(graph, reference.apply_node, values, change(values))
            for end in measured_ends:
                if end.value_name in changed:
                    noise[key][end] += _sum_of_squares(
                        end.measured_part(values[end.value_name] - changed[end.value_name])
                    )
    return {
        key: sum(noise_at[end] / signal[end] for end in measured_ends if signal[end] > 0)
        for key, noise_at in noise.items()
    }


def weight_rounding_change(name: str, weight: Weight) -> ValueChange:
    """Return the change that replaces the constant ``name`` by its stored integers after dequantisation."""
    real = weight.real.astype(np.float32)
    return lambda _: {name: real}


def activation_rounding_change(name: str, storage: Activation) -> ValueChange:
    """Return the change that quantises the activation ``name`` to ``storage`` and dequantises it again."""
    return lambda values: {name: fake_quantise(values[name], storage).astype(np.float32)}


def measure_noise_of_values(
    graph: Graph, rows: Sequence[Row], recipe: Recipe, progress: Progress | None = None
) -> dict[str, float]:
    """Return the noise that quantising each activation and each constant of a recipe causes alone, by name.

    It is measured on at most :data:`REPORT_SAMPLES` samples. Values in the bodies of loops are left out. The result is
    empty if the measurement needs more multiply-accumulates than :data:`MAX_REPORT_MACS`."""
    changes = {
        name: activation_rounding_change(name, storage)
        for name, storage in recipe.activations.items()
        if name in graph.types
    }
    changes |= {
        name: weight_rounding_change(name, weight) for name, weight in recipe.weights.items() if name in graph.consts
    }
    if count_macs(graph) * len(changes) * MIN_SAMPLES > MAX_REPORT_MACS:
        return {}
    return measure_noise_of_changes(graph, rows, changes, REPORT_SAMPLES, progress)


def _evaluate_changed_values(
    graph: Graph, apply_node: ir.Apply, values: Mapping[str, Array], initial_changes: Mapping[str, Array]
) -> dict[str, Array]:
    """Evaluate the nodes that depend on changed values. Return all changed values by name, including the first ones.

    ``values``: the float network's values. ``initial_changes``: the values that were changed first."""
    changed = dict(initial_changes)
    for node in graph.nodes:
        if any(name in changed for name in node.inputs):
            arrays = [changed[name] if name in changed else values[name] for name in node.inputs if name]
            changed.update(
                (name, array) for name, array in zip(node.outputs, apply_node(node, arrays), strict=True) if name
            )
    return changed


def _sum_of_squares(array: Array) -> float:
    """Return the sum of the squares of all elements, computed in float64."""
    return float(np.square(array, dtype=np.float64).sum())


# ---- Changes for the search for numbers of bits: a single layer of a float network is quantised with a number of bits.
#
# Repairs (:mod:`.repairs`) will round the weights of the chosen network for the least output error, and correct biases so that
# the means of results stay the same. The changes here do both too, so that numbers of bits are compared as they are after
# repairs. A layer of at most 8 bits reads quantised data. Its result is quantised if operators other than layers read it.


def build_layer_changes(
    graph: Graph, rows: Sequence[Row], recipes: Mapping[int, Recipe], weights: Sequence[str], seed: int
) -> dict[tuple[str, int], ValueChange]:
    """Return the change of values that quantises the layers of each weight, by name of the weight and number of bits.

    ``recipes``: for each number of bits the recipe in which the weights of all layers have this number of bits.
    ``weights``: names of the weights. ``seed``: seed for choosing the results to which weights are fitted."""
    fitted = _fit_weights_and_biases(graph, rows[: sample_count_within_mac_limit(graph, 1)], recipes, weights, seed)
    apply_node, consumers = reference_node_function(graph), graph.consumers()
    changes: dict[tuple[str, int], ValueChange] = {}
    for name in weights:
        users = [node for node in graph.nodes if registry.is_layer(node) and node.inputs[1] == name]
        fused_nodes = [_find_fused_nodes(graph, consumers, node, next(iter(recipes.values()))) for node in users]
        for width, recipe in recipes.items():
            weight, bias = fitted.get((name, width), (recipe.weights[name], None))
            changes[name, width] = _build_layer_change(
                apply_node, recipe, list(zip(users, fused_nodes, strict=True)), weight, bias, consumers
            )
    return changes


def _build_layer_change(
    apply_node: ir.Apply,
    recipe: Recipe,
    layer_uses: Sequence[tuple[Node, Sequence[Node]]],
    weight: Weight,
    bias: Array | None,
    consumers: Mapping[str, Sequence[Node]],
) -> ValueChange:
    """Return the change that computes the layers of a weight with quantised data, weights, bias and result.

    ``layer_uses``: the layers that read the weight, each with the nodes that are fused with it. ``bias``: the corrected
    bias; None if the layers keep their own. ``consumers``: the nodes that read each value."""
    dequantised_weight = weight.real.astype(np.float32)

    def compute_changed_values(values: Mapping[str, Array]) -> dict[str, Array]:
        changed: dict[str, Array] = {}
        for node, fused_nodes in layer_uses:
            arrays = [values[name] for name in node.inputs if name]
            arrays[:2] = (
                fake_quantise(arrays[0], recipe.storage_of_read_data(node)).astype(np.float32),
                dequantised_weight,
            )
            if bias is not None:
                arrays[2:] = [bias.astype(np.float32)]
            result = node.outputs[0]
            (array,) = apply_node(node, arrays)
            for follower in fused_nodes:
                (array,) = apply_node(
                    follower, [array if name == result else values[name] for name in follower.inputs if name]
                )
                result = follower.outputs[0]
            if result in recipe.activations and not _is_read_by_layers_only(result, consumers):
                array = fake_quantise(array, recipe.activations[result]).astype(np.float32)
            changed[result] = array
        return changed

    return compute_changed_values


def _find_fused_nodes(graph: Graph, consumers: Mapping[str, Sequence[Node]], node: Node, recipe: Recipe) -> list[Node]:
    """Return the nodes that are fused with a layer: the nodes that follow it up to the first value that the recipe
    stores.

    Examples are the addition of a bias and a clamp. The result is empty if one of these values has several readers or
    is an output."""
    fused_nodes: list[Node] = []
    value = node.outputs[0]
    while value not in recipe.activations:
        users = consumers.get(value, ())
        if len(users) != 1 or value in graph.outputs or len(users[0].outputs) != 1:
            return []
        fused_nodes.append(users[0])
        value = users[0].outputs[0]
    return fused_nodes


def _is_read_by_layers_only(value: str, consumers: Mapping[str, Sequence[Node]]) -> bool:
    """Test whether only layers read a value as data, directly or after operators that move or choose elements.

    The change of such a layer quantises the value when the layer reads it."""
    users = consumers.get(value, ())
    return bool(users) and all(
        (registry.is_layer(user) and value == user.inputs[0])
        or ((only_moves_elements(user) or user.op in CHOICES) and _is_read_by_layers_only(user.outputs[0], consumers))
        for user in users
    )


def _fit_weights_and_biases(
    graph: Graph, rows: Sequence[Row], recipes: Mapping[int, Recipe], weights: Sequence[str], seed: int
) -> dict[tuple[str, int], tuple[Weight, Array]]:
    """Round weights for the least output error, and correct biases; return both by name of the weight and number of
    bits.

    Layers that cannot be written as matrix products (see :func:`find_matrix_layers`) are left out."""
    fitted = {}
    for layer, mean, covariance, count in _iterate_layer_covariances(graph, rows, frozenset(weights), seed):
        square, _ = shrink_moments(covariance, covariance, count)
        for width, recipe in recipes.items():
            least = min_scales_for_biases(layer.bias, recipe.storage_of_read_data(layer.node).scale)
            weight = round_weights_for_output(
                layer.rows, square, least, min(8, width), recipe.block_size, recipe.power_of_two
            )
            error = ((layer.rows - weight.real.reshape(layer.rows.shape)) * mean[:, None]).sum(axis=2)
            stored = replace(weight, data=weight.data.reshape(layer.weights.shape))
            fitted[layer.weight, width] = stored, layer.bias + error.reshape(-1)
    return fitted


def _iterate_layer_covariances(
    graph: Graph, rows: Sequence[Row], weights: frozenset[str], seed: int
) -> Iterator[tuple[Layer, Array, Array, float]]:
    """Yield each layer with the means (G, K) and covariances (G, K, K) of its factors: the data that weights are
    multiplied by.

    The last element is the estimated number of independent rows of factors from which the covariances were computed."""
    known_layers, random = list(find_matrix_layers(graph, weights)), np.random.default_rng(seed)
    counts = [0] * len(known_layers)
    sums = [
        (np.zeros((layer.product.groups, layer.depth)), np.zeros((layer.product.groups, layer.depth, layer.depth)))
        for layer in known_layers
    ]
    reference = NumpyReference(graph)
    for row in rows:
        values = infer_sample(reference, row)
        for number, (layer, (mean, square)) in enumerate(zip(known_layers, sums, strict=True)):
            data = values[layer.data]
            factors = layer.sample_reads(data, max(1, _MAX_MOMENT_ROWS // len(rows)), random).gather_factors(data)
            counts[number] += factors.shape[1]
            mean += factors.mean(axis=1) / len(rows)
            square += factors.swapaxes(1, 2) @ factors / (factors.shape[1] * len(rows))
    for layer, (mean, square), count in zip(known_layers, sums, counts, strict=True):
        yield layer, mean, square - mean[:, :, None] * mean[:, None], float(np.sqrt(len(rows) * count))
