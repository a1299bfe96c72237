"""Layers as products of matrices: what a convolution or a dense layer multiplies by its weights, row by row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from microc.dtypes import Array
from microc.frozen import frozen
from microc.graph.ir import Graph, Node
from microc.quantization.loops import flattened
from microc.transform.qdq import LAYERS

_MOST_DEPTH = 2048
"""Products in a sum, of which the second moments are kept: 32 MB."""


@frozen
class Layer:
    """A ``dense``, ``conv2d`` (NHWC) or ``conv2d_transpose`` with constant weights (O, ...). ``groups``: of outputs that read
    channels of their own; ``depth``: products in a sum; ``out``: height and width of a convolution's result."""

    node: Node
    weights: Array
    bias: Array
    groups: int
    out: tuple[int, int] = (1, 1)

    @property
    def name(self) -> str:
        """Of the result."""
        return self.node.outputs[0]

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
        """The places where a result is looked at: at most ``most`` of them, drawn evenly. ``data`` may be that of all turns of a
        loop, along one more axis."""
        if self.node.op == "dense":
            return Reads(self, np.sort(_drawn(data.size // self.depth, most, random)), ())
        images = data.size // int(np.prod(data.shape[-3:]))
        places = np.sort(_drawn(images * self.out[0] * self.out[1], most, random))
        image, place = np.divmod(places, self.out[0] * self.out[1])
        down, right = np.divmod(place, self.out[1])
        rows, columns = (self._taps(k, at, data.shape[k - 3]) for k, at in enumerate((down, right)))
        return Reads(self, places, (image[:, None, None], rows[:, :, None], columns[:, None, :]))

    def _taps(self, axis: int, at: Array, extent: int) -> Array:
        """Which rows (or columns) of the data are read for results ``at`` some places, tap by tap; for none ``extent``, which
        is beyond the last."""
        stride, step, before = (self.node.attr(name)[axis] for name in ("strides", "dilation", "padding"))
        taps = np.arange(self.weights.shape[1 + axis]) * step
        if self.node.op == "conv2d":
            found, meets = at[:, None] * stride - before + taps, np.True_
        else:
            found, apart = np.divmod(at[:, None] + before - taps, stride)
            meets = apart == 0
        return np.where(meets & (found >= 0) & (found < extent), found, extent)


@frozen
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
        padded = np.pad(data.reshape(-1, *data.shape[-3:]), ((0, 0), (0, 1), (0, 1), (0, 0)))
        taken = padded[self.window].astype(np.float64)
        parts = taken.reshape(len(taken), -1, layer.groups, layer.weights.shape[-1])
        return np.moveaxis(parts, 2, 0).reshape(layer.groups, len(taken), layer.depth)


def layers(graph: Graph, weights: frozenset[str]) -> Iterator[Layer]:
    """The layers of a graph and of its loops on ``weights``, of which each belongs to one layer, that are matrices of a size to
    keep."""
    flat = flattened(graph)
    users = [node.inputs[1] for node in flat.nodes if node.op in LAYERS]
    for node in flat.nodes:
        if node.op not in LAYERS or node.inputs[1] not in weights or users.count(node.inputs[1]) > 1:
            continue
        if node.attrs.get("layout") == "NCHW" or node.attrs.get("pad_value", 0):
            continue
        data = flat.consts[node.inputs[1]]
        name = (*node.inputs, "", "")[2]
        bias = np.zeros(len(data), np.float32) if not name else flat.consts.get(name)
        if bias is not None and bias.size == len(data) and data[0].size <= _MOST_DEPTH:
            groups: int = 1
            out: tuple[int, ...] = (1, 1)
            if node.op != "dense":
                groups = flat.types[node.inputs[0]].shape[3] // data.shape[3]
                out = flat.types[node.outputs[0]].shape[1:3]
            yield Layer(node, data, bias.reshape(-1), groups, (out[0], out[1]))


def _drawn(count: int, most: int, random: np.random.Generator) -> Array:
    return np.arange(count) if count <= most else random.choice(count, most, replace=False)
