"""Writes the nodes of a graph, and of loops inside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from microc.dtypes import Array
from microc.graph.ir import Attr, Graph, Loc, Names, Node, TensorType
from microc.ops import registry
from microc.ops.rounding import Rounding


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
