"""Attention as loops: one over every axis of batches (the heads), and one over blocks of queries.

A turn takes its share of queries, keys, values and masks out of what they are cut from: a copy of each, in place of the
transposes and slices that made whole operands. Every row of scores is whole, so that no sum is ever rescaled: results are those
of the plain operators, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from microc import dtypes
from microc.graph.ir import Graph, Node
from microc.graph.rewriting import without_dead_nodes
from microc.ops import registry
from microc.transform.attention.body import Body
from microc.transform.attention.find import Attention
from microc.transform.attention.views import Dense, Piece, cut, dense, pieces

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
