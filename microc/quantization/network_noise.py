"""Compare a float network with its quantised form, and measure the noise that quantising each layer or value causes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from microc.base.dtypes import Array
from microc.compiler.fit.budget import count_macs
from microc.compiler.interaction import Progress
from microc.graph import interp
from microc.graph.ir import Graph, Node, TensorType
from microc.ops.meaning import reference_node_function
from microc.quantization.calibration_data import Row, compile_runner, run_on_samples, state_before
from microc.quantization.integer_scheme import (
    Activation,
    Weight,
    fake_quantise,
    least_scales,
    round_weights_for_output,
    shrink_moments,
)
from microc.quantization.network_structure import (
    End,
    Layer,
    expose_values,
    find_matrix_layers,
    find_measured_ends,
    flatten_graph,
    quantisable_body_of,
)
from microc.quantization.write import QuantisedGraph, Recipe, SimulatedGraph
from microc.run.desktop.library import Library
from microc.transform.quantised.qdq import LAYERS
from microc.transform.quantised.qdq_values import CHOICES, moves_elements

# ---- Pair of the float network and a quantised network, both compiled for this computer, whose values can be compared.

Reals = MutableMapping[tuple[str, ...], Library]
"""Compiled libraries of the same float network that return different values, by the names of these values."""


class NetworkPair:
    """A float network and its quantised form, compiled for this computer so that their values can be compared.

    ``names``: the float network's names of the values that both return: outputs, then all values that exist as integers in
    the quantised network. ``kinds``: their types in the quantised network. ``judged``: the ends (see :class:`End`) at which
    noise is measured, by index in ``names``. ``reals``: cache of compiled float networks by the names that they return."""

    def __init__(self, graph: Graph, written: QuantisedGraph, reals: Reals) -> None:
        types = flatten_graph(written.graph).types
        stored = {value: name for value, name in written.stored.items() if name in types}
        output_ends = find_measured_ends(graph)
        self.ends = list(output_ends)
        floats = {end.value: end.value for end in output_ends.values() if end.value in types}
        inner = [value for value in {**floats, **stored} if value not in {*graph.inputs, *self.ends}]
        self.names = [*self.ends, *inner]
        integer_names = [*self.ends, *({**floats, **stored}[value] for value in inner)]
        self.judged: dict[int, End] = {}
        for output, end in output_ends.items():
            end = end if end.value in self.names else End(output)
            self.judged[self.names.index(end.value)] = end
        self.kinds: list[TensorType] = [types[name] for name in integer_names]
        key = tuple(self.names)
        self._reals = reals[key] if key in reals else reals.setdefault(key, compile_runner(graph, self.names))
        self._integers = compile_runner(written.graph, integer_names)

    def rows(self, samples: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
        """Run both networks on samples. Yield for each sample the float network's values and the quantised network's integers."""
        reals, integers = (run_on_samples(library, samples) for library in (self._reals, self._integers))
        return zip(reals, integers, strict=True)


# ---- Evaluation of both networks in numpy, layer by layer on all samples. Each layer's weights are fitted to the data that the
# quantised layers before it compute.

_ROWS = 1 << 13
"""Maximum number of results of a layer, over all samples, whose data are used for moments."""
_WORK, _NODE, _LEAST = 1 << 29, 1 << 15, 16
"""Budget of multiply-accumulates over all samples (a second or two), the fixed cost of evaluating a node in multiply-accumulates,
and the minimum number of samples."""
_ADDED = frozenset(("quantize", "dequantize"))
Fit = Callable[[Layer, "Moments"], None]


@dataclass(slots=True)
class Moments:
    """Sums for the moments of a layer's factors: the data that its weights are multiplied by.

    A layer has G groups of channels, and K factors in each sum of products. Real factors are those of the float network,
    stored factors those of the quantised network. ``real`` and ``stored`` (G, K): sums for the means of real and stored
    factors. ``square`` (G, K, K): sums for the second moments of stored factors. ``cross`` (G, K, K): sums for the cross moments
    of real by stored factors. ``samples`` and ``rows``: number of samples, and number of rows of factors in them."""

    real: Array
    stored: Array
    square: Array
    cross: Array
    samples: int = 0
    rows: int = 0

    @classmethod
    def none(cls, layer: Layer) -> Moments:
        """Return moments of a layer's factors to which no sample was added yet."""
        means = layer.groups, layer.depth
        squares = *means, layer.depth
        return cls(np.zeros(means), np.zeros(means), np.zeros(squares), np.zeros(squares))

    def add(self, real: Array, stored: Array) -> None:
        """Add the factors (G, rows, K) that a layer has in one sample."""
        share = 1 / real.shape[1]
        self.real += share * real.sum(axis=1)
        self.stored += share * stored.sum(axis=1)
        self.square += share * (stored.swapaxes(1, 2) @ stored)
        self.cross += share * (real.swapaxes(1, 2) @ stored)
        self.samples += 1
        self.rows += real.shape[1]

    @property
    def independent(self) -> float:
        """Estimated number of independent rows of factors.

        It is between the number of samples and the number of rows, since the rows of a sample are similar."""
        return float(np.sqrt(self.samples * self.rows))

    def central_moments(self) -> tuple[Array, Array, Array, Array]:
        """Return the means of real factors and of stored factors, the covariances of stored factors, and the covariances of
        real by stored factors."""
        real, stored = self.real / self.samples, self.stored / self.samples
        square = self.square / self.samples - stored[:, :, None] * stored[:, None]
        cross = self.cross / self.samples - real[:, :, None] * stored[:, None]
        return real, stored, square, cross


class _NetworkRun:
    """A run of the float or the quantised network on all samples at once, node by node.

    ``position``: index of the first node that was not evaluated yet. ``values``: for each sample the values that nodes from
    there on read."""

    def __init__(self, graph: Graph, samples: Sequence[Row]) -> None:
        self.samples = samples
        self.values: list[dict[str, Array]] = [dict(zip(graph.inputs, row, strict=True)) for row in samples]
        self.position = 0
        self.replace_constants(graph)

    def replace_constants(self, graph: Graph) -> None:
        """Replace the network of the run by ``graph``, which must be the same network with other constants."""
        self.graph, self.consts, self.nodes = graph, dict(graph.consts), list[Node]()
        self.apply = reference_node_function(graph)
        for node in graph.nodes:
            if all(name in self.consts for name in node.inputs if name) and node.op in _ADDED:
                self._run(node, self.consts)
            else:
                self.nodes.append(node)
        self.order = [k for k, node in enumerate(self.nodes) if node.op not in _ADDED]

    def evaluate_up_to(self, index: int) -> None:
        """Evaluate all nodes before a node, and delete the values that no later node reads.

        ``index``: index of that node among the nodes other than ``quantize`` and ``dequantize``, which is the same in the float
        and in the quantised network."""
        end = self.order[index]
        needed = {name for node in self.nodes[end:] for name in node.inputs}
        for values in self.values:
            for node in self.nodes[self.position : end]:
                self._run(node, values)
            for name in values.keys() - needed:
                del values[name]
        self.position = end

    def values_at(self, index: int) -> Iterator[Mapping[str, Array]]:
        """Yield for each sample all values that exist before a node, without changing ``position``.

        ``index``: as in :meth:`evaluate_up_to`. The state of a sample follows from the sample before it in a sequence."""
        end = self.order[index] if index < len(self.order) else len(self.nodes)
        state = self.graph.state
        for row, values in zip(self.samples, self.values, strict=True):
            state = state_before(self.graph, row, state)
            all_values = {**self.consts, **state, **values}
            for node in self.nodes[self.position : end]:
                self._run(node, all_values)
            state = {name: all_values[value] for name, value in self.graph.updates.items()}
            yield all_values

    def _run(self, node: Node, values: dict[str, Array]) -> None:
        arrays = [values[name] if name in values else self.consts[name] for name in node.inputs if name]
        values.update((name, array) for name, array in zip(node.outputs, self.apply(node, arrays), strict=True) if name)


def fit_layers_in_order(
    graph: Graph,
    fitted_layers: Sequence[Layer],
    samples: Sequence[Row],
    build_current_network: Callable[[], SimulatedGraph],
    fit: Fit,
    seed: int,
) -> None:
    """Call ``fit`` for each of ``fitted_layers`` in the order of the network, with the moments of the layer's data.

    ``build_current_network``: function that returns the quantised network with the layers that were fitted so far.
    ``seed``: seed of the random choice of results whose data are used."""
    samples = samples[: max(_LEAST, _WORK // (count_macs(graph) + _NODE * _count_node_runs(graph)))]
    reals = _NetworkRun(expose_values(graph, [layer.data for layer in fitted_layers]), samples)
    quantized = build_current_network()
    data_names = [quantized.data[layer.name] for layer in fitted_layers]
    stored = _NetworkRun(expose_values(quantized.graph, data_names), samples)
    random, most = np.random.default_rng(seed), max(1, _ROWS // len(samples))
    for begin, end, stage in _fitting_stages(graph, fitted_layers):
        if begin:
            reals.evaluate_up_to(begin)
            stored.evaluate_up_to(begin)
        moments = [Moments.none(layer) for layer in stage]
        for a, b in zip(reals.values_at(end), stored.values_at(end), strict=True):
            for layer, layer_moments in zip(stage, moments, strict=True):
                real, read = a[layer.data], b[quantized.data[layer.name]]
                reads = layer.reads(real, most, random)
                layer_moments.add(reads.of(real), reads.of(read))
        for layer, layer_moments in zip(stage, moments, strict=True):
            fit(layer, layer_moments)
        stored.replace_constants(expose_values(build_current_network().graph, data_names))


def _count_node_runs(graph: Graph) -> int:
    """Return the number of node evaluations for a sample. A node in a loop counts once for each iteration."""
    bodies = ((node, quantisable_body_of(node)) for node in graph.nodes)
    return sum(1 if body is None else node.attr("count") * _count_node_runs(body) for node, body in bodies)


def _fitting_stages(graph: Graph, fitted_layers: Sequence[Layer]) -> Iterator[tuple[int, int, list[Layer]]]:
    """Yield lists of layers that are fitted together, each with the range of nodes that must be evaluated for their data.

    The range is given by the index of its first node and the index after its last node. A layer outside of loops is fitted
    alone: its data exist before it, and the range is empty. For the layers in the body of a loop the range is the loop. If
    the network has state, each sample depends on the sample before it: all layers are then fitted together, and the range
    is the whole network."""
    if graph.state:
        yield 0, len(graph.nodes), list(fitted_layers)
        return
    for index, node in enumerate(graph.nodes):
        body = quantisable_body_of(node)
        node_ids = {id(node)} if body is None else set(map(id, flatten_graph(body).nodes))
        stage = [layer for layer in fitted_layers if id(layer.node) in node_ids]
        if stage:
            yield index, index if body is None else index + 1, stage


# ---- Sensitivity: noise at the network's outputs if the values of only one layer are quantised.
#
# The noise of an output is the sum of squared differences from the float network, divided by the sum of the float network's
# squares. If the last function of the network saturates, noise is measured before this function
# (:func:`.network_structure.find_measured_ends`). The noises of all outputs and of the next state are added. One layer is changed
# at a time, and the nodes that depend on it are evaluated in numpy: nothing is compiled. While noise is small, the network is
# linear in it, and errors of different layers are uncorrelated. The noise of several changed layers is therefore close to the sum
# of the noises that each layer causes alone. The search (:mod:`.mixed_bits`) adds these noises, and measures the networks that it
# finds.

Change = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""Function from all values of the float network in a sample to the changed values (constants or activations), by name."""
Key = TypeVar("Key", bound=Hashable)
MOST_WORK = 1 << 33
"""Maximum number of multiply-accumulates for measurements of noise: about a minute of numpy."""
MOST_REPORT_WORK = 1 << 31
"""Maximum number of multiply-accumulates for figures that are only reported."""
MOST_SAMPLES = 32
FEW_SAMPLES = 4
LEAST_SAMPLES = 2


def sample_count(graph: Graph, change_count: int, max_samples: int = MOST_SAMPLES) -> int:
    """Return the number of samples on which the noise of ``change_count`` changes can be measured within the budget."""
    return int(np.clip(MOST_WORK // max(1, count_macs(graph) * change_count), LEAST_SAMPLES, max_samples))


def noise_by_change(
    graph: Graph,
    rows: Sequence[Row],
    changes: Mapping[Key, Change],
    max_samples: int = MOST_SAMPLES,
    progress: Progress | None = None,
) -> dict[Key, float]:
    """Return the noise that each change of values causes alone, relative to the signal.

    Noise is measured at the ends of the network (see :class:`End`) and in its next state, on at most ``max_samples`` samples.
    The state before each sample is that of the float network."""
    rows = rows[: sample_count(graph, len(changes), max_samples)]
    measured_ends = dict.fromkeys(
        (*(End(name) for name in graph.updates.values()), *find_measured_ends(graph).values())
    )
    signal = dict.fromkeys(measured_ends, 0.0)
    noise = {key: dict.fromkeys(measured_ends, 0.0) for key in changes}
    apply, state = reference_node_function(graph), graph.state
    for number, row in enumerate(rows):
        if progress is not None:
            progress("sensitivity", number, len(rows))
        before = state_before(graph, row, state)
        values = interp.run(graph, dict(zip(graph.inputs, row, strict=True)), apply, before)
        for end in measured_ends:
            signal[end] += _sum_of_squares(end.seen(values[end.value]))
        for key, change in changes.items():
            changed = _propagate_change(graph, apply, values, change(values))
            for end in measured_ends:
                if end.value in changed:
                    noise[key][end] += _sum_of_squares(end.seen(values[end.value] - changed[end.value]))
        state = {name: values[value] for name, value in graph.updates.items()}
    return {key: sum(of[end] / signal[end] for end in measured_ends if signal[end] > 0) for key, of in noise.items()}


def weight_rounding(name: str, weight: Weight) -> Change:
    """Return the change that replaces a constant by the dequantised numbers of its stored integers."""
    real = weight.real.astype(np.float32)
    return lambda _: {name: real}


def activation_rounding(name: str, storage: Activation) -> Change:
    """Return the change that quantises an activation and dequantises it again."""
    return lambda values: {name: fake_quantise(values[name], storage).astype(np.float32)}


def noise_by_value(
    graph: Graph, rows: Sequence[Row], recipe: Recipe, progress: Progress | None = None
) -> dict[str, float]:
    """Return the noise that quantising each activation and each constant of a recipe causes alone, measured on a few samples.

    Values in the bodies of loops are left out. The result is empty if a network requires more work than
    :data:`MOST_REPORT_WORK`.
    """
    changes = {name: activation_rounding(name, how) for name, how in recipe.activations.items() if name in graph.types}
    changes |= {name: weight_rounding(name, weight) for name, weight in recipe.weights.items() if name in graph.consts}
    if count_macs(graph) * len(changes) * LEAST_SAMPLES > MOST_REPORT_WORK:
        return {}
    return noise_by_change(graph, rows, changes, FEW_SAMPLES, progress)


def _propagate_change(
    graph: Graph, apply: interp.Apply, values: Mapping[str, Array], change: Mapping[str, Array]
) -> dict[str, Array]:
    """Evaluate the nodes that depend on changed values. Return all changed values by name.

    ``values``: the float network's values. ``change``: the values that were changed first."""
    changed = dict(change)
    for node in graph.nodes:
        if any(name in changed for name in node.inputs):
            arrays = [changed[name] if name in changed else values[name] for name in node.inputs if name]
            changed.update((name, array) for name, array in zip(node.outputs, apply(node, arrays), strict=True) if name)
    return changed


def _sum_of_squares(array: Array) -> float:
    return float(np.square(array, dtype=np.float64).sum())


# ---- Changes for the search for numbers of bits: a single layer of a float network is quantised with a number of bits.
#
# Repairs (:mod:`.repairs`) will round the weights of the chosen network for the least output error, and correct biases so that
# the means of results stay the same. The changes here do both too, so that numbers of bits are compared as they are after
# repairs. A layer of at most 8 bits reads quantised data. Its result is quantised if operators other than layers read it.


def layer_changes(
    graph: Graph, rows: Sequence[Row], recipes: Mapping[int, Recipe], weights: Sequence[str], seed: int
) -> dict[tuple[str, int], Change]:
    """Return the change of values that quantises the layers of each weight with each number of bits, by weight and number.

    ``recipes``: for each number of bits the recipe of the network whose layers all have this number."""
    fitted = _fit_weights(graph, rows[: sample_count(graph, 1)], recipes, weights, seed)
    apply, consumers = reference_node_function(graph), graph.consumers()
    changes: dict[tuple[str, int], Change] = {}
    for name in weights:
        users = [node for node in graph.nodes if node.op in LAYERS and node.inputs[1] == name]
        tails = [_absorbed_nodes(graph, consumers, node, next(iter(recipes.values()))) for node in users]
        for width, recipe in recipes.items():
            weight, bias = fitted.get((name, width), (recipe.weights[name], None))
            changes[name, width] = _layer_change(
                apply, recipe, list(zip(users, tails, strict=True)), weight, bias, consumers
            )
    return changes


def _layer_change(
    apply: interp.Apply,
    recipe: Recipe,
    layer_uses: Sequence[tuple[Node, Sequence[Node]]],
    weight: Weight,
    bias: Array | None,
    consumers: Mapping[str, Sequence[Node]],
) -> Change:
    """Return the change that computes the layers of a weight with quantised data, weights, bias and result.

    ``layer_uses``: the layers that read the weight, each with the nodes that are fused with it. ``consumers``: the nodes
    that read each value."""
    real = weight.real.astype(np.float32)

    def change(values: Mapping[str, Array]) -> dict[str, Array]:
        changed: dict[str, Array] = {}
        for node, tail in layer_uses:
            arrays = [values[name] for name in node.inputs if name]
            arrays[:2] = fake_quantise(arrays[0], recipe.read(node)).astype(np.float32), real
            if bias is not None:
                arrays[2:] = [bias.astype(np.float32)]
            result = node.outputs[0]
            (array,) = apply(node, arrays)
            for follower in tail:
                (array,) = apply(
                    follower, [array if name == result else values[name] for name in follower.inputs if name]
                )
                result = follower.outputs[0]
            if result in recipe.activations and not _only_layers_read(result, consumers):
                array = fake_quantise(array, recipe.activations[result]).astype(np.float32)
            changed[result] = array
        return changed

    return change


def _absorbed_nodes(graph: Graph, consumers: Mapping[str, Sequence[Node]], node: Node, recipe: Recipe) -> list[Node]:
    """Return the nodes that are fused with a layer, such as an added bias or a clamp.

    They are the nodes between the layer and the first value that the recipe stores."""
    tail: list[Node] = []
    value = node.outputs[0]
    while value not in recipe.activations:
        users = consumers.get(value, ())
        if len(users) != 1 or value in graph.outputs or len(users[0].outputs) != 1:
            return []
        tail.append(users[0])
        value = users[0].outputs[0]
    return tail


def _only_layers_read(value: str, consumers: Mapping[str, Sequence[Node]]) -> bool:
    """Test whether only layers read a value, directly or after operators that move elements.

    The changes of these layers quantise the value when they read it."""
    users = consumers.get(value, ())
    return bool(users) and all(
        (user.op in LAYERS and value == user.inputs[0])
        or ((moves_elements(user) or user.op in CHOICES) and _only_layers_read(user.outputs[0], consumers))
        for user in users
    )


def _fit_weights(
    graph: Graph, rows: Sequence[Row], recipes: Mapping[int, Recipe], weights: Sequence[str], seed: int
) -> dict[tuple[str, int], tuple[Weight, Array]]:
    """Return weights that are rounded for the least output error, and the corrected biases, by weight and number of bits.

    Layers that cannot be written as a matrix product (:func:`find_matrix_layers`) are left out."""
    fitted = {}
    for layer, mean, covariance, count in _layer_moments(graph, rows, frozenset(weights), seed):
        square, _ = shrink_moments(covariance, covariance, count)
        for width, recipe in recipes.items():
            least = least_scales(layer.bias, recipe.read(layer.node).scale)
            weight = round_weights_for_output(
                layer.rows, square, least, min(8, width), recipe.block, recipe.power_of_two
            )
            error = ((layer.rows - weight.real.reshape(layer.rows.shape)) * mean[:, None]).sum(axis=2)
            stored = replace(weight, data=weight.data.reshape(layer.weights.shape))
            fitted[layer.weight, width] = stored, layer.bias + error.reshape(-1)
    return fitted


def _layer_moments(
    graph: Graph, rows: Sequence[Row], weights: frozenset[str], seed: int
) -> Iterator[tuple[Layer, Array, Array, float]]:
    """Yield each layer with the means (G, K) and covariances (G, K, K) of the data that its weights are multiplied by.

    The last element is the estimated number of independent rows from which the covariances were computed."""
    known_layers, random = list(find_matrix_layers(graph, weights)), np.random.default_rng(seed)
    counts = [0] * len(known_layers)
    sums = [
        (np.zeros((layer.groups, layer.depth)), np.zeros((layer.groups, layer.depth, layer.depth)))
        for layer in known_layers
    ]
    apply, state = reference_node_function(graph), graph.state
    for row in rows:
        before = state_before(graph, row, state)
        values = interp.run(graph, dict(zip(graph.inputs, row, strict=True)), apply, before)
        for number, (layer, (mean, square)) in enumerate(zip(known_layers, sums, strict=True)):
            data = values[layer.data]
            factors = layer.reads(data, max(1, _ROWS // len(rows)), random).of(data)
            counts[number] += factors.shape[1]
            mean += factors.mean(axis=1) / len(rows)
            square += factors.swapaxes(1, 2) @ factors / (factors.shape[1] * len(rows))
        state = {name: values[value] for name, value in graph.updates.items()}
    for layer, (mean, square), count in zip(known_layers, sums, counts, strict=True):
        yield layer, mean, square - mean[:, :, None] * mean[:, None], float(np.sqrt(len(rows) * count))
