"""Layers as they are stored in so many bits, each alone in a float network: what the search for bits measures.

Weights are rounded for what their layer answers, and biases keep the means of the results (:mod:`.rounding`), since repairs
will do that to whatever is chosen: bits are compared as they come out of repairs. A layer of at most 8 bits reads data that were
rounded, and its result is rounded where more than layers read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from microc.dtypes import Array
from microc.graph import interp
from microc.graph.ir import Graph, Node
from microc.ops.meaning import meaning
from microc.quantization.layers import Layer, layers
from microc.quantization.observe import Row, state_of
from microc.quantization.rounding import shrunk, weights_by_answer
from microc.quantization.scheme import Weight, faked
from microc.quantization.sensitivity import Change, sample_count
from microc.quantization.weights import least_scales
from microc.quantization.write import Recipe
from microc.transform.qdq import LAYERS
from microc.transform.qdq_moves import moves
from microc.transform.qdq_values import CHOICES

_ROWS = 1 << 13
"""Results of a layer that its weights are rounded by, over all samples."""


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
