"""The float network and a quantised one side by side: the noise of each layer."""

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
from microc.ops.meaning import meaning
from microc.quantization.calibration_data import Row, rows_of, runner, state_of
from microc.quantization.integer_scheme import Activation, Weight, faked, least_scales, shrunk, weights_by_answer
from microc.quantization.network_structure import End, Layer, body_of, ends, exposed, flattened, layers
from microc.quantization.write import Recipe, Simulated, Written
from microc.run.desktop.library import Library
from microc.transform.quantised.qdq import LAYERS
from microc.transform.quantised.qdq_values import CHOICES, moves

# ---- The float network and a quantised one beside each other, value by value.

Reals = MutableMapping[tuple[str, ...], Library]
"""One float network as libraries, by the names of their outputs."""


class Pair:
    """Both networks, compiled. ``names``: the outputs, then those values whose integers there still are; ``kinds``: the types
    that the quantised network has for them; ``judged``: by which of them the noise is judged (:mod:`.ends`), by number.
    ``reals``: the float network by the values that are looked at, compiled: it is not compiled again for the same ones."""

    def __init__(self, graph: Graph, written: Written, reals: Reals) -> None:
        types = flattened(written.graph).types
        stored = {value: name for value, name in written.stored.items() if name in types}
        in_front = ends(graph)
        self.ends = list(in_front)
        floats = {end.value: end.value for end in in_front.values() if end.value in types}
        inner = [value for value in {**floats, **stored} if value not in {*graph.inputs, *self.ends}]
        self.names = [*self.ends, *inner]
        shown = [*self.ends, *({**floats, **stored}[value] for value in inner)]
        self.judged: dict[int, End] = {}
        for output, end in in_front.items():
            end = end if end.value in self.names else End(output)
            self.judged[self.names.index(end.value)] = end
        self.kinds: list[TensorType] = [types[name] for name in shown]
        key = tuple(self.names)
        self._reals = reals[key] if key in reals else reals.setdefault(key, runner(graph, self.names))
        self._integers = runner(written.graph, shown)

    def rows(self, samples: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
        """For each sample the reals, and what is stored of them."""
        reals, integers = (rows_of(library, samples) for library in (self._reals, self._integers))
        return zip(reals, integers, strict=True)


# ---- The float network and a quantised one in numpy, on all samples side by side: a layer's weights may be chosen by
# what the layers before it, as they are stored, hand to it.

_ROWS = 1 << 13
"""Results of a layer that are looked at, over all samples."""
_WORK, _NODE, _LEAST = 1 << 29, 1 << 15, 16
"""Multiply-accumulates of a network that are spent on samples, which take as long as a node takes besides, and so many samples at
least: a second or two."""
_ADDED = frozenset(("quantize", "dequantize"))
Fit = Callable[[Layer, "Moments"], None]


@dataclass(slots=True)
class Moments:
    """Of a layer's factors, group by group: means (G, K) of the ``real`` and the ``stored`` ones, second moments (G, K, K) of the
    stored ones, ``square``, and of real by stored ones, ``cross``. ``samples`` and ``rows``: how many they are of."""

    real: Array
    stored: Array
    square: Array
    cross: Array
    samples: int = 0
    rows: int = 0

    @classmethod
    def none(cls, layer: Layer) -> Moments:
        means = layer.groups, layer.depth
        squares = *means, layer.depth
        return cls(np.zeros(means), np.zeros(means), np.zeros(squares), np.zeros(squares))

    def add(self, real: Array, stored: Array) -> None:
        """Rows (G, rows, K) of a sample."""
        share = 1 / real.shape[1]
        self.real += share * real.sum(axis=1)
        self.stored += share * stored.sum(axis=1)
        self.square += share * (stored.swapaxes(1, 2) @ stored)
        self.cross += share * (real.swapaxes(1, 2) @ stored)
        self.samples += 1
        self.rows += real.shape[1]

    @property
    def independent(self) -> float:
        """How many independent rows these may count for: those of a sample are alike, but not the same."""
        return float(np.sqrt(self.samples * self.rows))

    def centred(self) -> tuple[Array, Array, Array, Array]:
        """Means, covariances."""
        real, stored = self.real / self.samples, self.stored / self.samples
        square = self.square / self.samples - stored[:, :, None] * stored[:, None]
        cross = self.cross / self.samples - real[:, :, None] * stored[:, None]
        return real, stored, square, cross


class _Side:
    """A network that has come to a node. Of each sample there are the values that later nodes read."""

    def __init__(self, graph: Graph, samples: Sequence[Row]) -> None:
        self.samples = samples
        self.values: list[dict[str, Array]] = [dict(zip(graph.inputs, row, strict=True)) for row in samples]
        self.position = 0
        self.become(graph)

    def become(self, graph: Graph) -> None:
        """The same network with other constants."""
        self.graph, self.consts, self.nodes = graph, dict(graph.consts), list[Node]()
        self.apply = meaning(graph)
        for node in graph.nodes:
            if all(name in self.consts for name in node.inputs if name) and node.op in _ADDED:
                self._run(node, self.consts)
            else:
                self.nodes.append(node)
        self.order = [k for k, node in enumerate(self.nodes) if node.op not in _ADDED]

    def advance(self, place: int) -> None:
        """To the node of a place, those that quantise not counted."""
        end = self.order[place]
        needed = {name for node in self.nodes[end:] for name in node.inputs}
        for values in self.values:
            for node in self.nodes[self.position : end]:
                self._run(node, values)
            for name in values.keys() - needed:
                del values[name]
        self.position = end

    def peek(self, place: int) -> Iterator[Mapping[str, Array]]:
        """The values of each sample there. State lives from sample to sample of a sequence."""
        end = self.order[place] if place < len(self.order) else len(self.nodes)
        state = self.graph.state
        for row, values in zip(self.samples, self.values, strict=True):
            state = state_of(self.graph, row, state)
            found = {**self.consts, **state, **values}
            for node in self.nodes[self.position : end]:
                self._run(node, found)
            state = {name: found[value] for name, value in self.graph.updates.items()}
            yield found

    def _run(self, node: Node, values: dict[str, Array]) -> None:
        arrays = [values[name] if name in values else self.consts[name] for name in node.inputs if name]
        values.update((name, array) for name, array in zip(node.outputs, self.apply(node, arrays), strict=True) if name)


def in_turn(
    graph: Graph,
    found: Sequence[Layer],
    samples: Sequence[Row],
    network: Callable[[], Simulated],
    fit: Fit,
    seed: int,
) -> None:
    """``fit`` of every layer, from the first one on, with the moments of what it reads. ``network``: the quantised one as it is
    by then."""
    samples = samples[: max(_LEAST, _WORK // (count_macs(graph) + _NODE * _steps(graph)))]
    reals = _Side(exposed(graph, [layer.data for layer in found]), samples)
    at = network()
    inner = [at.data[layer.name] for layer in found]
    stored = _Side(exposed(at.graph, inner), samples)
    random, most = np.random.default_rng(seed), max(1, _ROWS // len(samples))
    for begin, end, own in _stages(graph, found):
        if begin:
            reals.advance(begin)
            stored.advance(begin)
        moments = [Moments.none(layer) for layer in own]
        for a, b in zip(reals.peek(end), stored.peek(end), strict=True):
            for layer, of in zip(own, moments, strict=True):
                real, read = a[layer.data], b[at.data[layer.name]]
                reads = layer.reads(real, most, random)
                of.add(reads.of(real), reads.of(read))
        for layer, of in zip(own, moments, strict=True):
            fit(layer, of)
        stored.become(exposed(network().graph, inner))


def _steps(graph: Graph) -> int:
    """How many nodes are run for a sample."""
    bodies = ((node, body_of(node)) for node in graph.nodes)
    return sum(1 if body is None else node.attr("count") * _steps(body) for node, body in bodies)


def _stages(graph: Graph, found: Sequence[Layer]) -> Iterator[tuple[int, int, list[Layer]]]:
    """Layers that are fitted together, and the places of nodes from which to which what they read is computed for that alone:
    nothing for a layer, the loop for those in its body, the whole network where a sample goes on from the one before."""
    if graph.state:
        yield 0, len(graph.nodes), list(found)
        return
    for place, node in enumerate(graph.nodes):
        body = body_of(node)
        inside = {id(node)} if body is None else set(map(id, flattened(body).nodes))
        own = [layer for layer in found if id(layer.node) in inside]
        if own:
            yield place, place if body is None else place + 1, own


# ---- How much noise each layer's numbers cause at the network's outputs when they alone are stored in few bits.
#
# The noise of an output, in front of a last function that saturates (:mod:`.ends`), is the sum of squared differences from the
# float network over the sum of its squares; outputs and the new contents of state add up. Layers are changed one at a time, in
# numpy, from the changed operator on: nothing is compiled. As long as noise is small the network is linear in it and errors of
# different layers are uncorrelated, so that the noise of many layers is near the sum of theirs: what the search (:mod:`.budget`)
# adds up, and what the networks it finds are measured against.

Change = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""From all values of the network to some of them as they shall be: constants, activations."""
Key = TypeVar("Key", bound=Hashable)
MOST_WORK = 1 << 33
"""Multiply-accumulates that are spent: about a minute of numpy."""
MOST_REPORT_WORK = 1 << 31
"""The same, for what is only told."""
MOST_SAMPLES = 32
FEW_SAMPLES = 4
LEAST_SAMPLES = 2


def sample_count(graph: Graph, changes: int, most: int = MOST_SAMPLES) -> int:
    """On how many samples ``changes`` changes of a network can be tried within the budget."""
    return int(np.clip(MOST_WORK // max(1, count_macs(graph) * changes), LEAST_SAMPLES, most))


def noise_of(
    graph: Graph,
    rows: Sequence[Row],
    changes: Mapping[Key, Change],
    most: int = MOST_SAMPLES,
    progress: Progress | None = None,
) -> dict[Key, float]:
    """For each change the noise that it causes alone, on at most so many samples.

    State lives from sample to sample of a sequence as the float network leaves it.
    """
    rows = rows[: sample_count(graph, len(changes), most)]
    judged = dict.fromkeys((*(End(name) for name in graph.updates.values()), *ends(graph).values()))
    signal = dict.fromkeys(judged, 0.0)
    noise = {key: dict.fromkeys(judged, 0.0) for key in changes}
    apply, state = meaning(graph), graph.state
    for number, row in enumerate(rows):
        if progress is not None:
            progress("sensitivity", number, len(rows))
        found = state_of(graph, row, state)
        values = interp.run(graph, dict(zip(graph.inputs, row, strict=True)), apply, found)
        for end in judged:
            signal[end] += _power(end.seen(values[end.value]))
        for key, change in changes.items():
            changed = _rerun(graph, apply, values, change(values))
            for end in judged:
                if end.value in changed:
                    noise[key][end] += _power(end.seen(values[end.value] - changed[end.value]))
        state = {name: values[value] for name, value in graph.updates.items()}
    return {key: sum(of[end] / signal[end] for end in judged if signal[end] > 0) for key, of in noise.items()}


def rounded_weight(name: str, weight: Weight) -> Change:
    """A constant as it is stored."""
    real = weight.real.astype(np.float32)
    return lambda _: {name: real}


def rounded_value(name: str, how: Activation) -> Change:
    """An activation as it is stored."""
    return lambda values: {name: faked(values[name], how).astype(np.float32)}


def alone(graph: Graph, rows: Sequence[Row], recipe: Recipe, progress: Progress | None = None) -> dict[str, float]:
    """The noise that each activation and each constant of a recipe causes alone, on a few samples; of what loops make in a
    turn it is not told, nor of anything in a network too large for it."""
    changes = {name: rounded_value(name, how) for name, how in recipe.activations.items() if name in graph.types}
    changes |= {name: rounded_weight(name, weight) for name, weight in recipe.weights.items() if name in graph.consts}
    if count_macs(graph) * len(changes) * LEAST_SAMPLES > MOST_REPORT_WORK:
        return {}
    return noise_of(graph, rows, changes, FEW_SAMPLES, progress)


def _rerun(
    graph: Graph, apply: interp.Apply, values: Mapping[str, Array], change: Mapping[str, Array]
) -> dict[str, Array]:
    """The values that differ when those of ``change`` do."""
    found = dict(change)
    for node in graph.nodes:
        if any(name in found for name in node.inputs):
            arrays = [found[name] if name in found else values[name] for name in node.inputs if name]
            found.update((name, array) for name, array in zip(node.outputs, apply(node, arrays), strict=True) if name)
    return found


def _power(array: Array) -> float:
    return float(np.square(array, dtype=np.float64).sum())


# ---- Layers as they are stored in so many bits, each alone in a float network: what the search for bits measures.
#
# Weights are rounded for what their layer answers, and biases keep the means of the results (:mod:`.rounding`), since repairs
# will do that to whatever is chosen: bits are compared as they come out of repairs. A layer of at most 8 bits reads data that
# were rounded, and its result is rounded where more than layers read it.


def layer_changes(
    graph: Graph, rows: Sequence[Row], recipes: Mapping[int, Recipe], weights: Sequence[str], seed: int
) -> dict[tuple[str, int], Change]:
    """Of each weight and each width the change that it makes. ``recipes``: by width, of the network that has it throughout."""
    fitted = _fitted(graph, rows[: sample_count(graph, 1)], recipes, weights, seed)
    apply, consumers = meaning(graph), graph.consumers()
    changes: dict[tuple[str, int], Change] = {}
    for name in weights:
        users = [node for node in graph.nodes if node.op in LAYERS and node.inputs[1] == name]
        tails = [_tail(graph, consumers, node, next(iter(recipes.values()))) for node in users]
        for width, recipe in recipes.items():
            weight, bias = fitted.get((name, width), (recipe.weights[name], None))
            changes[name, width] = _change(apply, recipe, list(zip(users, tails, strict=True)), weight, bias, consumers)
    return changes


def _change(
    apply: interp.Apply,
    recipe: Recipe,
    users: Sequence[tuple[Node, Sequence[Node]]],
    weight: Weight,
    bias: Array | None,
    consumers: Mapping[str, Sequence[Node]],
) -> Change:
    real = weight.real.astype(np.float32)

    def change(values: Mapping[str, Array]) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for node, tail in users:
            arrays = [values[name] for name in node.inputs if name]
            arrays[:2] = faked(arrays[0], recipe.read(node)).astype(np.float32), real
            if bias is not None:
                arrays[2:] = [bias.astype(np.float32)]
            result = node.outputs[0]
            (at,) = apply(node, arrays)
            for follower in tail:
                (at,) = apply(follower, [at if name == result else values[name] for name in follower.inputs if name])
                result = follower.outputs[0]
            if result in recipe.activations and not _for_layers(result, consumers):
                at = faked(at, recipe.activations[result]).astype(np.float32)
            found[result] = at
        return found

    return change


def _tail(graph: Graph, consumers: Mapping[str, Sequence[Node]], node: Node, recipe: Recipe) -> list[Node]:
    """What follows a layer before its result is stored: a bias, a clamp."""
    tail: list[Node] = []
    value = node.outputs[0]
    while value not in recipe.activations:
        users = consumers.get(value, ())
        if len(users) != 1 or value in graph.outputs or len(users[0].outputs) != 1:
            return []
        tail.append(users[0])
        value = users[0].outputs[0]
    return tail


def _for_layers(value: str, consumers: Mapping[str, Sequence[Node]]) -> bool:
    """Whether layers alone read a value, or its elements elsewhere: they round it themselves."""
    users = consumers.get(value, ())
    return bool(users) and all(
        (user.op in LAYERS and value == user.inputs[0])
        or ((moves(user) or user.op in CHOICES) and _for_layers(user.outputs[0], consumers))
        for user in users
    )


def _fitted(
    graph: Graph, rows: Sequence[Row], recipes: Mapping[int, Recipe], weights: Sequence[str], seed: int
) -> dict[tuple[str, int], tuple[Weight, Array]]:
    """Weights and biases of those layers that can be rounded so, by weight and width."""
    found = {}
    for layer, mean, covariance, count in _moments(graph, rows, frozenset(weights), seed):
        square, _ = shrunk(covariance, covariance, count)
        for width, recipe in recipes.items():
            least = least_scales(layer.bias, recipe.read(layer.node).scale)
            weight = weights_by_answer(layer.rows, square, least, min(8, width), recipe.block, recipe.power_of_two)
            off = ((layer.rows - weight.real.reshape(layer.rows.shape)) * mean[:, None]).sum(axis=2)
            stored = replace(weight, data=weight.data.reshape(layer.weights.shape))
            found[layer.weight, width] = stored, layer.bias + off.reshape(-1)
    return found


def _moments(
    graph: Graph, rows: Sequence[Row], weights: frozenset[str], seed: int
) -> Iterator[tuple[Layer, Array, Array, float]]:
    """Of the factors of each layer the means (G, K) and covariances (G, K, K), and for how many independent rows they count."""
    known, random = list(layers(graph, weights)), np.random.default_rng(seed)
    counts = [0] * len(known)
    sums = [(np.zeros((each.groups, each.depth)), np.zeros((each.groups, each.depth, each.depth))) for each in known]
    apply, state = meaning(graph), graph.state
    for row in rows:
        found = state_of(graph, row, state)
        values = interp.run(graph, dict(zip(graph.inputs, row, strict=True)), apply, found)
        for number, (layer, (mean, square)) in enumerate(zip(known, sums, strict=True)):
            data = values[layer.data]
            factors = layer.reads(data, max(1, _ROWS // len(rows)), random).of(data)
            counts[number] += factors.shape[1]
            mean += factors.mean(axis=1) / len(rows)
            square += factors.swapaxes(1, 2) @ factors / (factors.shape[1] * len(rows))
        state = {name: values[value] for name, value in graph.updates.items()}
    for layer, (mean, square), count in zip(known, sums, counts, strict=True):
        yield layer, mean, square - mean[:, :, None] * mean[:, None], float(np.sqrt(len(rows) * count))
