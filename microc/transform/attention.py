"""Attention by heads and blocks of queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import Attr, Graph, Loc, Names, Node, TensorType
from microc.graph.match import without_dead_nodes
from microc.ops import registry
from microc.ops.attributes import Rounding

# ---- Attention in a fused graph: scores, their softmax, and what it weighs, each a group.

_SOFTMAX = frozenset(("softmax", "qsoftmax", "qsoftmax_scaled", "qsoftmax16"))


@frozen
class Attention:
    """Three groups, each of an anchor and elementwise nodes behind it: ``scores`` (..., M, N), ``weights`` of its rows, and the
    ``product`` (..., M, P) with the values. Nothing else reads the first two."""

    scores: tuple[Node, ...]
    weights: tuple[Node, ...]
    product: tuple[Node, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (*self.scores, *self.weights, *self.product)

    @property
    def queries(self) -> str:
        return self.scores[0].inputs[0]


def find_attention(graph: Graph) -> tuple[Attention, ...]:
    """All of a fused graph."""
    groups: dict[str, tuple[Node, ...]] = {}
    for node in graph.nodes:
        if node.group:
            groups[node.group] = (*groups.get(node.group, ()), node)
    makers = {group[-1].outputs[0]: group for group in groups.values()}
    readers = graph.consumers()

    def before(group: tuple[Node, ...]) -> tuple[Node, ...]:
        """The group that makes the first operand of a group's anchor, for it alone."""
        name = group[0].inputs[0]
        alone = name not in graph.outputs and [id(node) for node in readers.get(name, ())] == [id(group[0])]
        return makers.get(name, ()) if alone else ()

    found = []
    for product in groups.values():
        weights = before(product) if _is_product(graph, product) else ()
        scores = before(weights) if weights and _is_softmax(graph, weights) else ()
        if scores and _is_product(graph, scores) and not product[0].attrs["axes_a"]:
            found.append(Attention(scores, weights, product))
    return tuple(found)


def _is_product(graph: Graph, group: tuple[Node, ...]) -> bool:
    return group[0].op == "matmul" and group[0].inputs[0] != group[0].inputs[1] and _plain(graph, group)


def _is_softmax(graph: Graph, group: tuple[Node, ...]) -> bool:
    axis: Mapping[str, object] = group[0].attrs
    rank = len(graph.types[group[0].inputs[0]].shape)
    return group[0].op in _SOFTMAX and axis.get("axis", rank - 1) in (-1, rank - 1) and _plain(graph, group)


def _plain(graph: Graph, group: tuple[Node, ...]) -> bool:
    """Whether a group's results are all alike, and no node behind the anchor speaks of an axis."""
    shape = graph.types[group[0].outputs[0]].shape
    return all(graph.types[node.outputs[0]].shape == shape and len(node.outputs) == 1 for node in group) and all(
        registry.get(node.op).elementwise and node.attrs.get("axis") is None for node in group[1:]
    )


# ---- Where the elements of an operand lie in the value that it is cut from: numpy's own rules of views, on bytes
# nobody touches.

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


# ---- Writes the nodes of a graph, and of loops inside it.


class Body:
    """Nodes that are written into ``graph``, or (with a ``parent``) into the body of a loop there."""

    def __init__(self, graph: Graph, loc: Loc, parent: Body | None = None) -> None:
        self.graph, self.loc, self.parent = graph, loc, parent
        self.names = Names(graph.types if parent is None else ())
        self.types: dict[str, TensorType] = {}
        self.consts: dict[str, Array] = {}
        self.nodes: list[Node] = []
        self.inputs: dict[str, str] = {}
        """Values of the parent, by what they are called here."""

    def type(self, name: str) -> TensorType:
        return self.types.get(name) or self.graph.types[name]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.type(name).shape

    # ------------------------------------------------------------ values

    def value(self, stem: str, kind: TensorType) -> str:
        name = self.names.fresh(stem)
        self.types[name] = kind
        return name

    def constant(self, stem: str, data: Array) -> str:
        name = self.value(stem, TensorType(data.shape, data.dtype.name))
        self.consts[name] = data
        return name

    def given(self, outer: str) -> str:
        """A value of the parent as an input of the body."""
        assert self.parent is not None
        known = {value: name for name, value in self.inputs.items()}
        if outer not in known:
            known[outer] = self.value(outer, self.parent.type(outer))
            self.inputs[known[outer]] = outer
        return known[outer]

    def whole(self, name: str) -> str:
        """A value of the graph that every turn takes as it is; one element has two axes at most."""
        kind = self.graph.types[name]
        if self.parent is None:
            found = name
        elif name in self.graph.consts:
            found = self.constant(name, self.graph.consts[name])
            self.types[found] = kind
        else:
            found = self.given(self.parent.whole(name))
        return self.reshape(found, (1, 1)) if kind.size == 1 and len(self.shape(found)) > 2 else found

    # ------------------------------------------------------------ nodes

    def emit(self, op: str, inputs: tuple[str, ...], attrs: Mapping[str, Attr], stem: str = "") -> str:
        """A node with a kernel of its own."""
        (kind,) = registry.infer(op, attrs, [self.type(name) for name in inputs])
        made = self.value(stem or inputs[0], replace(kind, quant=self.type(inputs[0]).quant))
        group = "" if registry.get(op).view else made
        self.nodes.append(Node(op, inputs, (made,), attrs, self.loc, group))
        return made

    def again(self, node: Node, inputs: tuple[str, ...], attrs: Mapping[str, Attr]) -> str:
        """A node of the graph on other operands, in the group that it is in."""
        (kind,) = registry.infer(node.op, attrs, [self.type(name) for name in inputs if name])
        made = self.value(node.outputs[0], replace(kind, quant=self.graph.types[node.outputs[0]].quant))
        self.nodes.append(replace(node, inputs=inputs, outputs=(made,), attrs=attrs))
        return made

    def scaled(self, name: str, nodes: Sequence[Node]) -> str:
        """A value with these done to each of its elements, by one kernel."""
        group = self.names.fresh(name) if nodes else ""
        for node in nodes:
            others = tuple(self.whole(value) if value else "" for value in node.inputs[1:])
            name = self.again(replace(node, group=group), (name, *others), node.attrs)
        return name

    def reshape(self, name: str, shape: tuple[int, ...]) -> str:
        return name if self.shape(name) == shape else self.emit("reshape", (name,), {"shape": shape})

    def transpose(self, name: str, axes: tuple[int, ...]) -> str:
        return self.emit("transpose", (name,), {"axes": axes})

    def share(self, name: str, turn: str, first: int, axis: int) -> str:
        """The element ``first + turn`` along an axis."""
        if first:
            place = self.constant("first", np.array(first, np.int32))
            turn = self.emit("add", (turn, place), {"activation": "", "rounding": Rounding.DOUBLE})
        return self.emit("gather", (name, turn), {"axis": axis, "batch_dims": 0})

    def rows(self, name: str, start: int, stop: int) -> str:
        """Some of the first axis."""
        shape = self.shape(name)
        if (start, stop) == (0, shape[0]):
            return name
        attrs: Mapping[str, Attr] = {
            "begin": (start, *(0 for _ in shape[1:])),
            "end": (stop, *shape[1:]),
            "strides": (1,) * len(shape),
        }
        return self.emit("slice", (name,), attrs)

    def joined(self, first: str, second: str) -> str:
        """Two values along their first axis."""
        return self.emit("concat", (first, second), {"axis": 0, "rounding": Rounding.DOUBLE})

    # ------------------------------------------------------------ loops

    def inside(self) -> tuple[Body, str]:
        """The body of a loop, and the number of its turn."""
        inner = Body(self.graph, self.loc, self)
        return inner, inner.value("turn", TensorType((), "int32"))

    def loop(self, inner: Body, result: str, turns: int) -> str:
        """``turns`` of a body, its results one behind the other."""
        turn = next(iter(inner.types))
        graph = Graph("turn", (turn, *inner.inputs), (result,), inner.late(result), inner.types, inner.consts)
        attrs: Mapping[str, Attr] = {"body": graph, "count": turns, "carried": 0, "guarded": False}
        kind = inner.type(result)
        made = self.value(result, replace(kind, shape=(turns, *kind.shape)))
        self.nodes.append(Node("loop", tuple(inner.inputs.values()), (made,), attrs, self.loc, made))
        return made

    def late(self, result: str) -> tuple[Node, ...]:
        """The nodes, each as late as its readers allow, so that copies are made when they are needed."""
        makers = {node.outputs[0]: node for node in self.nodes}
        order: dict[str, Node] = {}

        def visit(name: str) -> None:
            node = makers.get(name)
            if node is not None and name not in order:
                for operand in node.inputs:
                    visit(operand)
                order[name] = node

        visit(result)
        return tuple(order.values())


# ---- Attention as loops: one over every axis of batches (the heads), and one over blocks of queries.
#
# A turn takes its share of queries, keys, values and masks out of what they are cut from: a copy of each, in place of the
# transposes and slices that made whole operands. Every row of scores is whole, so that no sum is ever rescaled: results are those
# of the plain operators, bit for bit.

_Key = tuple[int, int]
"""An operand: its node, by position, and its position there."""
_Pieces = dict[_Key, Piece]
ROWS, COLUMNS, DEPTH, WIDTH = "rows", "columns", "depth", "width"
"""Axes of a matrix: queries, keys, features of both, features of values. Those before are numbered."""


def in_blocks(graph: Graph, found: Sequence[Attention], rows: int) -> Graph:
    """The graph with these attentions as loops over blocks of ``rows`` queries; those that no loop can take as they were."""
    for attention in found:
        graph = _replaced(graph, attention, rows)
    return graph


def _replaced(graph: Graph, attention: Attention, rows: int) -> Graph:
    plan = _Plan(graph, attention, rows)
    operands = plan.operands()
    if operands is None:
        return graph
    made = Body(graph, attention.product[-1].loc)
    last = attention.product[-1].outputs[0]
    result = plan.write(made, operands, plan.batches)
    nodes, inside = list[Node](), {id(node) for node in attention.nodes}
    end = max(k for k, node in enumerate(graph.nodes) if id(node) in inside)
    shaped = Node("reshape", (result,), (last,), {"shape": graph.types[last].shape}, attention.product[-1].loc)
    for k, node in enumerate(graph.nodes):
        if k == end:
            nodes += [*made.nodes, shaped]
        elif id(node) not in inside:
            nodes.append(node)
    types = {**graph.types, **made.types}
    return without_dead_nodes(replace(graph, types=types, consts={**graph.consts, **made.consts}).with_nodes(nodes))


class _Plan:
    """How one attention becomes loops. ``turned``: right operands of integer products that lie with their axes exchanged."""

    def __init__(self, graph: Graph, attention: Attention, rows: int) -> None:
        self.graph, self.attention, self.rows = graph, attention, rows
        self.turned: set[_Key] = set()

    @property
    def batches(self) -> tuple[str, ...]:
        """The axes of batches that a loop runs over."""
        shape = self.graph.types[self.attention.product[0].outputs[0]].shape
        return tuple(f"batch{axis}" for axis, extent in enumerate(shape[:-2]) if extent > 1)

    def operands(self) -> _Pieces | None:
        """What turns take shares of, as far back as all loops can cut it; None where one cannot be."""
        producers = self.graph.producer()
        own = {node.outputs[0] for node in self.attention.nodes}
        found: _Pieces = {}
        for number, node in enumerate(self.attention.nodes):
            for position, name in enumerate(node.inputs):
                if not name or name in own:
                    continue
                labels = self.labels(number, position)
                if labels is None:
                    continue
                options = pieces(self.graph, producers, name, labels)
                ends = [(piece, self.end(piece, self.matrix_of(number, position))) for piece in options]
                piece, end = next(((p, e) for p, e in ends if e is not None), (None, None))
                if piece is None or end is None:
                    return None
                found[number, position] = piece
                if position == 1 and not end.ordered and dtypes.is_integer(self.graph.types[name].dtype):
                    self.turned.add((number, position))
        return found

    def end(self, piece: Piece, wanted: tuple[str, str]) -> Dense | None:
        """A piece behind all loops over batches; None where one of them cannot cut it, or leaves it in parts."""
        for axis in self.batches:
            if axis in piece.labels:
                found = cut(piece, axis)
                if found is None:
                    return None
                piece = found.rest
        return dense(piece, wanted)

    def matrix_of(self, number: int, position: int) -> tuple[str, str]:
        """The axes of an operand's matrices, in the order in which the plain operators take them."""
        node = self.attention.nodes[number]
        scores = number < len(self.attention.scores)
        if node.op == "matmul":
            return ((ROWS, DEPTH), (DEPTH, COLUMNS))[position] if scores else (COLUMNS, WIDTH)
        return ROWS, COLUMNS if number < len(self.attention.nodes) - len(self.attention.product) else WIDTH

    def matrix(self, body: Body, key: _Key, piece: Piece) -> str:
        """A piece behind all loops over batches as a matrix of its own."""
        end = dense(piece, self.matrix_of(*key))
        assert end is not None
        made = body.scaled(body.reshape(piece.value, end.shape), piece.scaled)
        return made if end.ordered or key in self.turned else body.transpose(made, end.axes)

    def labels(self, number: int, position: int) -> tuple[str, ...] | None:
        """The names of an operand's axes; None for one that every turn takes whole."""
        node = self.attention.nodes[number]
        kind = self.graph.types[node.inputs[position]]
        rank = len(self.graph.types[self.attention.product[0].outputs[0]].shape)
        ends = self.matrix_of(number, position)
        labels = (*(f"batch{axis}" for axis in range(rank - 2)), *ends)[rank - len(kind.shape) :]
        if node.op == "matmul":
            axes = node.attr("axes_b" if position else "axes_a")
            return tuple(labels[axes.index(k)] for k in range(len(axes))) if axes else labels
        definition = registry.get(node.op)
        taken_whole = not definition.elementwise or position in definition.whole or kind.size == 1
        return None if taken_whole else labels

    # ------------------------------------------------------------ loops

    def write(self, body: Body, operands: _Pieces, axes: Sequence[str]) -> str:
        """The product over all of ``axes``, and of the matrices behind them."""
        if not axes:
            return self.by_rows(body, {key: self.matrix(body, key, piece) for key, piece in operands.items()})
        axis, shape = axes[0], self.graph.types[self.attention.product[0].outputs[0]].shape
        turns = shape[int(axis.removeprefix("batch"))]
        inner, turn = body.inside()
        shares: _Pieces = {}
        for key, piece in operands.items():
            if axis not in piece.labels:
                shares[key] = replace(piece, value=inner.given(piece.value))
                continue
            found = cut(piece, axis)
            assert found is not None
            whole = inner.given(body.reshape(piece.value, found.shape))
            shares[key] = replace(found.rest, value=inner.share(whole, turn, found.first, 1))
        return body.loop(inner, self.write(inner, shares, axes[1:]), turns)

    def by_rows(self, body: Body, operands: Mapping[_Key, str]) -> str:
        """The product of one matrix: whole blocks of rows in a loop, what is left behind it."""
        queries = (0, 0)
        height = body.shape(operands[queries])[0]
        if self.rows >= height:
            return self.plain(body, operands)
        by_row = {key for key, name in operands.items() if self.has_rows(key) and body.shape(name)[0] > 1}
        blocks = height // self.rows
        inner, turn = body.inside()
        shares = {}
        for key, name in operands.items():
            if key not in by_row:
                shares[key] = inner.given(name)
                continue
            head = body.rows(name, 0, blocks * self.rows)
            whole = body.reshape(head, (blocks, self.rows, body.shape(name)[1]))
            shares[key] = inner.share(inner.given(whole), turn, 0, 0)
        made = body.loop(inner, self.plain(inner, shares), blocks)
        made = body.reshape(made, (blocks * self.rows, body.shape(made)[-1]))
        if blocks * self.rows == height:
            return made
        left = {k: body.rows(v, blocks * self.rows, height) if k in by_row else v for k, v in operands.items()}
        return body.joined(made, self.plain(body, left))

    def has_rows(self, key: _Key) -> bool:
        """Whether an operand is the queries, or is of the result's shape."""
        return key == (0, 0) or self.attention.nodes[key[0]].op != "matmul"

    def plain(self, body: Body, operands: Mapping[_Key, str]) -> str:
        """The operators on matrices."""
        made: dict[str, str] = {}
        for number, node in enumerate(self.attention.nodes):
            inputs, attrs = list[str](), dict(node.attrs)
            for position, name in enumerate(node.inputs):
                given = operands.get((number, position)) or made.get(name)
                inputs.append(given or (body.whole(name) if name else ""))
            if node.op == "matmul":
                attrs |= {"axes_a": (), "axes_b": (1, 0) if (number, 1) in self.turned else ()}
            elif "axis" in attrs and attrs["axis"] is not None:
                attrs["axis"] = 1
            made[node.outputs[0]] = body.again(node, tuple(inputs), attrs)
        return made[self.attention.product[-1].outputs[0]]
