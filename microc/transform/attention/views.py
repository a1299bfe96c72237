"""Where the elements of an operand lie in the value that it is cut from: numpy's own rules of views, on bytes nobody touches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from microc import dtypes
from microc.dtypes import Array
from microc.frozen import frozen
from microc.graph.ir import Graph, Node
from microc.ops import registry

_MOVES = frozenset(("reshape", "transpose", "slice"))


@frozen
class Piece:
    """An operand as a view of ``value``: ``places`` views a byte for each of its elements, with an axis for each of ``labels``.

    Axes of extent 1 have none: where an operand is broadcast it says nothing of that axis. ``scaled``: what is done to each
    element behind that.
    """

    value: str
    whole: Array
    places: Array
    labels: tuple[str, ...]
    scaled: tuple[Node, ...] = ()

    @property
    def start(self) -> int:
        """The first element."""
        return _address(self.places) - _address(self.whole)


@frozen
class Cut:
    """How a turn finds its share of a piece: the element ``first + turn`` along axis 1 of the value as ``shape``, three axes."""

    shape: tuple[int, int, int]
    first: int
    rest: Piece


@frozen
class Dense:
    """A piece that is all of its value: the value as ``shape``, its axes as ``axes`` orders them."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def ordered(self) -> bool:
        return self.axes == tuple(range(len(self.axes)))


def pieces(graph: Graph, producers: Mapping[str, Node], name: str, labels: tuple[str, ...]) -> list[Piece]:
    """A value as a view of what it is made from by moves that nothing else needs, of the farthest first; of itself last.

    ``labels`` name its last axes; axes before them have one element.
    """
    trail = _trail(graph, producers, name)
    found = []
    for depth in reversed(range(len(trail))):
        source = trail[depth]
        wider = dtypes.nbytes(graph.types[source].dtype) > dtypes.nbytes(graph.types[name].dtype)
        if depth and (wider or _inside(graph, producers.get(source))):
            continue
        whole: Array = np.empty(graph.types[source].size, np.uint8)
        places: Array | None = whole.reshape(graph.types[source].shape)
        behind = [producers[value] for value in reversed(trail[:depth])]
        for node in behind:
            places = _moved(places, node) if places is not None else None
        if places is None or not np.may_share_memory(places, whole):
            continue
        missing = places.ndim - len(labels)
        kept = [axis for axis, extent in enumerate(places.shape) if extent > 1 and axis >= missing]
        bare = as_strided(places, tuple(places.shape[k] for k in kept), tuple(places.strides[k] for k in kept))
        scaled = tuple(node for node in behind if node.op not in _MOVES)
        found.append(Piece(source, whole, bare, tuple(labels[axis - missing] for axis in kept), scaled))
    return found


def _trail(graph: Graph, producers: Mapping[str, Node], name: str) -> list[str]:
    """A value and those before it that lead to it alone, by moves and by work on each element, the same for all. What several
    read is viewed, but not made again."""
    trail, shared = [name], False
    while (maker := producers.get(trail[-1])) is not None and maker.inputs[0] not in graph.consts:
        definition = registry.get(maker.op)
        shared |= trail[-1] in graph.outputs or sum(n.inputs.count(trail[-1]) for n in graph.nodes) > 1
        scaling = definition.elementwise and all(
            value in graph.consts and (graph.types[value].size == 1 or k in definition.whole)
            for k, value in enumerate(maker.inputs)
            if k and value
        )
        if not (maker.op in _MOVES or scaling) or (shared and not definition.view):
            break
        trail.append(maker.inputs[0])
    return trail


def _inside(graph: Graph, node: Node | None) -> bool:
    """Whether a node's result is never in memory: its kernel goes on with it."""
    group = [other for other in graph.nodes if node is not None and node.group and other.group == node.group]
    return bool(group) and group[-1] is not node


def _moved(places: Array, node: Node) -> Array | None:
    """The view that a move makes; None where it would have to copy."""
    match node.op:
        case "transpose":
            return places.transpose(node.attr("axes"))
        case "slice":
            triples = zip(*(node.attr(name) for name in ("begin", "end", "strides")), strict=True)
            return places[tuple(slice(*each) for each in triples)] if min(node.attr("strides")) > 0 else None
        case "reshape":
            seen = places.reshape(node.attr("shape"))
            return seen if np.may_share_memory(seen, places) else None
        case _:
            return places


def cut(piece: Piece, label: str) -> Cut | None:
    """The share of one turn along an axis; None where no axis of any shape of the value is that one."""
    axis = piece.labels.index(label)
    size, step, count = piece.whole.size, piece.places.strides[axis], piece.places.shape[axis]
    others = [k for k in range(piece.places.ndim) if k != axis]
    strides = [piece.places.strides[k] for k in others]
    block = min([stride for stride in strides if stride > step], default=size)
    first = piece.start % block // step
    low = sum((piece.places.shape[k] - 1) * piece.places.strides[k] for k in others if piece.places.strides[k] < step)
    whole = size % block == block % step == 0 and all(s < step or s % block == 0 for s in strides)
    if not whole or first + count > block // step or piece.start % step + low >= step:
        return None
    rest: Array = np.empty(size // block * step, np.uint8)
    start = piece.start // block * step + piece.start % step
    inner = tuple(s if s < step else s // block * step for s in strides)
    places = as_strided(rest[start:], tuple(piece.places.shape[k] for k in others), inner)
    labels = tuple(piece.labels[k] for k in others)
    return Cut((size // block, block // step, step), first, replace(piece, whole=rest, places=places, labels=labels))


def dense(piece: Piece, labels: tuple[str, ...]) -> Dense | None:
    """The piece with all of ``labels`` as axes; None where it is not all of its value."""
    order = sorted(range(piece.places.ndim), key=lambda k: -piece.places.strides[k])
    shape = [piece.places.shape[k] for k in order]
    wanted = [prod(shape[k + 1 :]) for k in range(len(shape))]
    if piece.start or [piece.places.strides[k] for k in order] != wanted or prod(shape) != piece.whole.size:
        return None
    here = [piece.labels[k] for k in order]
    here = [*(label for label in labels if label not in here), *here]
    extents = dict(zip(piece.labels, piece.places.shape, strict=True))
    if len(here) == 2 and here != list(labels) and min(extents.get(label, 1) for label in labels) == 1:
        here = list(labels)  # one row or one column lies in any order
    return Dense(tuple(extents.get(label, 1) for label in here), tuple(here.index(label) for label in labels))


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
