"""Layers as products of matrices: what a convolution or a dense layer multiplies by its weights, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from microc.dtypes import Array
from microc.graph.ir import Graph, Node
from microc.ops.convolution.geometry import geometry

_MOST_DEPTH = 2048
"""Products in a sum, of which the second moments are kept: 32 MB."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A ``dense`` or ``conv2d`` (NHWC) with constant weights (O, ...). ``groups``: of outputs that read channels of their own;
    ``depth``: products in a sum."""

    node: Node
    weights: Array
    bias: Array
    groups: int

    @property
    def data(self) -> str:
        return self.node.inputs[0]

    @property
    def weight(self) -> str:
        return self.node.inputs[1]

    @property
    def depth(self) -> int:
        return int(self.weights[0].size)

    @property
    def rows(self) -> Array:
        """The weights (groups, outputs of a group, depth)."""
        return self.weights.reshape(self.groups, -1, self.depth).astype(np.float64)

    def reads(self, data: Array, most: int, random: np.random.Generator) -> Reads:
        """The places of ``data``'s shape where a result is looked at: at most ``most`` of them, drawn evenly."""
        if self.node.op == "dense":
            return Reads(self, np.sort(_drawn(data.size // self.depth, most, random)), ())
        found = geometry(self.node.attrs, data.shape, self.weights.shape)
        places = np.sort(_drawn(found.pixels, most, random))
        image, place = np.divmod(places, found.out_height * found.out_width)
        down, right = np.divmod(place, found.out_width)
        rows = (down * found.strides[0])[:, None] + np.arange(found.kernel[0]) * found.dilation[0]
        columns = (right * found.strides[1])[:, None] + np.arange(found.kernel[1]) * found.dilation[1]
        return Reads(self, places, (image[:, None, None], rows[:, :, None], columns[:, None, :]))


@dataclass(frozen=True, slots=True)
class Reads:
    """Some of a layer's results: which elements of the data each of them multiplies by weights."""

    layer: Layer
    places: Array
    window: tuple[Array, ...]

    def of(self, data: Array) -> Array:
        """The factors (groups, results, depth)."""
        layer = self.layer
        if not self.window:
            return np.asarray(data.reshape(-1, layer.depth)[self.places], np.float64)[np.newaxis]
        top, left, bottom, right = geometry(layer.node.attrs, data.shape, layer.weights.shape).padding
        padded = np.pad(data, ((0, 0), (top, bottom), (left, right), (0, 0)))
        taken = padded[self.window].astype(np.float64)
        parts = taken.reshape(len(taken), -1, layer.groups, layer.weights.shape[-1])
        return np.moveaxis(parts, 2, 0).reshape(layer.groups, len(taken), layer.depth)


def layers(graph: Graph, weights: frozenset[str]) -> Iterator[Layer]:
    """The layers of a graph on ``weights``, of which each belongs to one layer, that are matrices of a size to keep."""
    users = [node.inputs[1] for node in graph.nodes if node.op in ("dense", "conv2d")]
    for node in graph.nodes:
        if node.op not in ("dense", "conv2d") or node.inputs[1] not in weights or users.count(node.inputs[1]) > 1:
            continue
        if node.op == "conv2d" and (node.attrs.get("layout") == "NCHW" or node.attrs.get("pad_value", 0)):
            continue
        data = graph.consts[node.inputs[1]]
        name = (*node.inputs, "", "")[2]
        bias = np.zeros(len(data), np.float32) if not name else graph.consts.get(name)
        if bias is not None and bias.size == len(data) and data[0].size <= _MOST_DEPTH:
            groups = (
                geometry(node.attrs, graph.types[node.inputs[0]].shape, data.shape).groups if node.op == "conv2d" else 1
            )
            yield Layer(node, data, bias.reshape(-1), groups)


def _drawn(count: int, most: int, random: np.random.Generator) -> Array:
    return np.arange(count) if count <= most else random.choice(count, most, replace=False)
