"""Cross-layer equalisation: channels of one tensor in like ranges, so that one scale serves all; the network's function stays.

Between two layers a channel may be stored in any unit: what makes it is divided by s, what reads it multiplied by s, and
whatever is positively homogeneous in between (a relu, a pool, a sum) does not see it. Layers with a scale for each output
channel make any unit at no loss; those that read it have weights of one scale for all inputs, unless they are depthwise.
Between both interests s = r^a / w^(1 - a) mediates, with r the range of the channel and w that of the weights that read it:
a = 1/2 is that of "Data-Free Quantization Through Weight Equalization and Bias Correction" (Nagel et al., 2019), others are
those of "SmoothQuant" (Xiao et al., 2022). Of all a the least expected noise is taken, tensor by tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.frozen import frozen
from microc.graph.ir import Graph, Node
from microc.quantization.observe import Statistics
from microc.quantization.scheme import levels
from microc.quantization.units import Units

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
