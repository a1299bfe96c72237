"""How much noise each layer's numbers cause at the network's outputs when they alone are stored in few bits.

The noise of an output is the sum of squared differences from the float network over the sum of its squares; outputs and the new
contents of state add up. Layers are changed one at a time, in numpy, from the changed operator on: nothing is compiled. As
long as noise is small the network is linear in it and errors of different layers are uncorrelated, so that the noise of many
layers is near the sum of theirs: what the search (:mod:`.budget`) adds up, and what the networks it finds are measured against.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from microc.driver.compile.budget import count_macs
from microc.dtypes import Array
from microc.graph import interp
from microc.graph.ir import Graph
from microc.ops.meaning import meaning

Row = tuple[Array, ...]
Key = TypeVar("Key", bound=Hashable)
MOST_WORK = 1 << 33
"""Multiply-accumulates that are spent: about a minute of numpy."""
MOST_SAMPLES = 32
LEAST_SAMPLES = 2


def sample_count(graph: Graph, changes: int, most: int = MOST_SAMPLES) -> int:
    """On how many samples ``changes`` changes of a network can be tried within the budget."""
    return int(np.clip(MOST_WORK // max(1, count_macs(graph) * changes), LEAST_SAMPLES, most))


def noise_of(graph: Graph, rows: Sequence[Row], changes: Mapping[Key, Mapping[str, Array]]) -> dict[Key, float]:
    """For each change, constants by name with what takes their place: the noise that it causes alone.

    State lives from sample to sample as the float network leaves it.
    """
    rows = rows[: sample_count(graph, len(changes))]
    ends = tuple(dict.fromkeys((*graph.outputs, *graph.updates.values())))
    signal = dict.fromkeys(ends, 0.0)
    noise = {key: dict.fromkeys(ends, 0.0) for key in changes}
    apply, state = meaning(graph), graph.state
    for row in rows:
        values = interp.run(graph, dict(zip(graph.inputs, row, strict=True)), apply, state)
        for end in ends:
            signal[end] += _power(values[end])
        for key, change in changes.items():
            changed = _rerun(graph, apply, values, change)
            for end in ends:
                noise[key][end] += _power(values[end] - changed[end]) if end in changed else 0.0
        state = {name: values[value] for name, value in graph.updates.items()}
    return {key: sum(of[end] / signal[end] for end in ends if signal[end] > 0) for key, of in noise.items()}


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
