"""Where a float network becomes integers: which values are quantised, and which of them share a scale.

Both follow from what :mod:`microc.transform.qdq` makes of ``dequantize -> operator -> quantize``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from microc.graph.ir import Graph, Node
from microc.transform.qdq import LAYERS, has_integer_form
from microc.transform.qdq_bias import sum_behind
from microc.transform.qdq_moves import moves

CLAMPS = frozenset(("relu", "clip"))
CHOOSING = frozenset(("max_pool2d", "max", "min"))


@dataclass(frozen=True, slots=True)
class Places:
    """``values``: the activations that become integers, in the order of the graph. ``leader``: value -> the first of those that
    share its scale. ``weights``: constants with a scale for each channel; ``constants``: with one scale. ``tables``:
    constants whose elements are moved -> the value that they become, whose scale they have."""

    values: tuple[str, ...]
    leader: dict[str, str]
    weights: tuple[str, ...]
    constants: tuple[str, ...]
    tables: dict[str, str]

    def groups(self) -> dict[str, list[str]]:
        """Leader -> the values that share its scale, in order."""
        found: dict[str, list[str]] = {}
        for value in self.values:
            found.setdefault(self.leader[value], []).append(value)
        return found


def places(graph: Graph, floating: frozenset[str] = frozenset()) -> Places:
    """The places of a float graph. ``floating``: names of values whose operators stay in floats."""
    return _Finder(graph, floating).found()


class _Finder:
    def __init__(self, graph: Graph, floating: frozenset[str]) -> None:
        self.graph, self.floating = graph, floating
        self.consumers, self.makers = graph.consumers(), graph.producer()
        self.leader: dict[str, str] = {}
        self.absorbed: set[str] = set()

    def found(self) -> Places:
        wanted: set[str] = set()
        weights, constants = dict[str, None](), dict[str, None]()
        for node in self.graph.nodes:
            if not self.is_integer(node) or node.outputs[0] in self.absorbed:
                continue
            wanted.update(self.activations(node))
            wanted.add(self.end(self.with_bias(node)))
            for position, name in enumerate(node.inputs):
                if name in self.graph.consts and self.is_float(name) and not self.is_bias(node, position):
                    (weights if node.op in LAYERS else constants)[name] = None
        wanted = self.spread(wanted)
        values = [value for value in self.ordered() if value in wanted]
        for value in values:
            self.leader.setdefault(value, value)
        for node in self.graph.nodes:
            self.share(node, wanted)
        leaders = {value: self.first(value) for value in values}
        tables = {
            node.inputs[0]: node.outputs[0]
            for node in self.graph.nodes
            if self.keeps_scale(node) and node.outputs[0] in wanted and node.inputs[0] in self.graph.consts
        }
        single = tuple(name for name in constants if name not in weights and name not in tables)
        return Places(tuple(values), leaders, tuple(weights), single, tables)

    def is_integer(self, node: Node) -> bool:
        return (
            node.outputs[0] not in self.floating
            and self.is_float(node.outputs[0])
            and has_integer_form(node, self.graph)
        )

    def is_float(self, value: str) -> bool:
        return self.graph.types[value].dtype == "float32"

    @staticmethod
    def is_bias(node: Node, position: int) -> bool:
        """Biases take the scale of the sums, which follows."""
        return node.op in LAYERS and position == 2

    def activations(self, node: Node) -> Iterator[str]:
        for name in node.inputs:
            if name and name not in self.graph.consts and self.is_float(name):
                yield name

    def ordered(self) -> Iterator[str]:
        yield from self.graph.inputs
        yield from self.graph.state
        for node in self.graph.nodes:
            yield from node.outputs

    def with_bias(self, node: Node) -> str:
        """The result of an operator, of a layer with the constant that is added right behind, of a norm with factors and
        terms."""
        if node.op == "layer_norm":
            return self.with_constants(node, "mul", "add")
        if node.op not in LAYERS:
            return node.outputs[0]
        sum_ = sum_behind(node, self.graph.types[node.inputs[1]].shape[0], self.graph.types, self.only_user)
        if sum_ is None or sum_.term not in self.graph.consts or sum_.output in self.floating:
            return node.outputs[0]
        self.absorbed.add(sum_.output)
        return sum_.output

    def with_constants(self, node: Node, *ops: str) -> str:
        """The result of a node and of operators with constants that follow it in turn."""
        value = node.outputs[0]
        for op in ops:
            user = self.only_user(value)
            if user is None or user.op != op or user.outputs[0] in self.floating or user.attrs.get("activation", ""):
                break
            if not any(name in self.graph.consts for name in user.inputs):
                break
            value = user.outputs[0]
            self.absorbed.add(value)
        return value

    def only_user(self, value: str) -> Node | None:
        users = self.consumers.get(value, ())
        kept = value in self.graph.outputs or value in self.graph.updates.values()
        return users[0] if len(users) == 1 and not kept else None

    def end(self, value: str) -> str:
        """Where the result of an operator becomes integers: behind a clamp that alone reads it."""
        user = self.only_user(value)
        if user is not None and user.op in CLAMPS and user.outputs[0] not in self.floating:
            self.absorbed.add(user.outputs[0])
            return self.end(user.outputs[0])
        return value

    def spread(self, wanted: set[str]) -> set[str]:
        """With the values on both sides of what only moves or chooses elements."""
        for node in reversed(self.graph.nodes):
            if self.keeps_scale(node) and node.outputs[0] in wanted:
                wanted.update(self.activations(node))
        for node in self.graph.nodes:
            if self.keeps_scale(node) and any(name in wanted for name in node.inputs[:1]):
                wanted.add(node.outputs[0])
        return wanted

    def keeps_scale(self, node: Node) -> bool:
        return (moves(node) or node.op in CHOOSING) and self.is_float(node.outputs[0])

    def share(self, node: Node, wanted: set[str]) -> None:
        """Operands and result of what moves elements have one scale; operands of a concatenation where nothing else reads
        them."""
        if node.outputs[0] not in wanted:
            return
        if self.keeps_scale(node) and node.inputs[0] in wanted:
            self.join(node.inputs[0], node.outputs[0])
        elif node.op == "concat":
            for name in node.inputs:
                if name in wanted and len(self.consumers[name]) == 1 and name not in self.graph.outputs:
                    self.join(name, node.outputs[0])

    def first(self, value: str) -> str:
        while self.leader[value] != value:
            value = self.leader[value]
        return value

    def join(self, a: str, b: str) -> None:
        a, b = self.first(a), self.first(b)
        self.leader[b] = a
