"""How much noise each layer's numbers cause at the network's outputs when they alone are stored in few bits.

The noise of an output, in front of a last function that saturates (:mod:`.ends`), is the sum of squared differences from the
float network over the sum of its squares; outputs and the new contents of state add up. Layers are changed one at a time, in
numpy, from the changed operator on: nothing is compiled. As long as noise is small the network is linear in it and errors of
different layers are uncorrelated, so that the noise of many layers is near the sum of theirs: what the search (:mod:`.budget`)
adds up, and what the networks it finds are measured against.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from microc.driver.compile.budget import count_macs
from microc.driver.progress import Progress
from microc.dtypes import Array
from microc.graph import interp
from microc.graph.ir import Graph
from microc.ops.meaning import meaning
from microc.quantization.ends import End, ends
from microc.quantization.observe import Row, state_of
from microc.quantization.scheme import Activation, Weight, faked
from microc.quantization.write import Recipe

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
