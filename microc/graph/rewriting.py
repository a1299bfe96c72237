"""Rules (:mod:`microc.graph.match`) applied to a graph until none gives a replacement; dead nodes taken out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from microc.errors import InternalError
from microc.graph.ir import Graph, Node
from microc.graph.match import Replacement, Rule, Scope, matches


def rewrite(graph: Graph, rules: Sequence[Rule], sweeps: int | None = None) -> Graph:
    """Apply the first rule that gives a replacement at every node, in order, until no rule does; dead nodes go.

    The same object comes back where nothing matches. InternalError after ``sweeps`` walks over the graph (unless given, a
    number that grows with the graph): the rules then undo each other.
    """
    table: dict[str, list[Rule]] = {}
    for rule in rules:
        for op in rule[0].ops:
            table.setdefault(op, []).append(rule)
    for _ in range(sweeps if sweeps is not None else 100 + 4 * len(graph.nodes)):
        swept = _Sweep(graph, table).run()
        if swept is graph:
            return graph
        graph = without_dead_nodes(swept)
    raise InternalError(f"the rules for graph {graph.name} come to no end")


class _Sweep:
    """One walk: every node is replaced once at most, and later nodes see what earlier ones became."""

    def __init__(self, graph: Graph, table: Mapping[str, Sequence[Rule]]) -> None:
        self.graph, self.table = graph, table
        self.scope = Scope(graph)
        self.nodes: list[Node] = []
        self.alias: dict[str, str] = {}
        self.renamed: dict[str, str] = {}
        self.changed = False

    def run(self) -> Graph:
        for old in self.graph.nodes:
            inputs = tuple(self.alias.get(name, name) for name in old.inputs)
            node = old if inputs == old.inputs else replace(old, inputs=inputs)
            if not self.replaced(node):
                self.append(node)
        if not self.changed:
            return self.graph
        nodes = [self.with_promised_names(node) for node in self.nodes] if self.renamed else self.nodes
        return replace(self.graph, types=self.scope.types, consts=self.scope.consts).with_nodes(nodes)

    def append(self, node: Node) -> None:
        self.nodes.append(node)
        self.scope.producers.update(dict.fromkeys(node.outputs, node))

    def with_promised_names(self, node: Node) -> Node:
        """``node`` with values called as the graph's outputs that they turned out to be."""
        inputs, outputs = (tuple(self.renamed.get(n, n) for n in names) for names in (node.inputs, node.outputs))
        return (
            node if (inputs, outputs) == (node.inputs, node.outputs) else replace(node, inputs=inputs, outputs=outputs)
        )

    def replaced(self, node: Node) -> bool:
        for pattern, function in self.table.get(node.op, ()):
            for match in matches(pattern, node, self.scope):
                replacement = function(match)
                if replacement is not None and self.accept(node, replacement):
                    self.changed = True
                    return True
        return False

    def accept(self, node: Node, replacement: Replacement) -> bool:
        if replacement.same and not self.unify(node.outputs[0], replacement.same):
            return False
        made = {name for new in replacement.nodes for name in new.outputs}
        if not replacement.same and not made.issuperset(name for name in node.outputs if name):
            raise InternalError(f"a replacement of {node.op} makes only {sorted(made)}", where=str(node.loc))
        self.scope.types.update(replacement.types)
        self.scope.consts.update(replacement.consts)
        for new in replacement.nodes:
            self.append(new)
        return True

    def unify(self, output: str, value: str) -> bool:
        """``output`` is ``value``: its readers read that. A graph output lends ``value`` its name, if it is computed here."""
        if output not in self.scope.kept:
            self.alias[output] = value
            for name, target in self.alias.items():
                if target == output:
                    self.alias[name] = value
            return True
        busy = value in self.scope.kept or value in self.renamed or value not in self.scope.producers
        if busy:
            return False
        self.renamed[value] = output
        return True


def without_dead_nodes(graph: Graph) -> Graph:
    """The graph without nodes that neither outputs nor state updates depend on; itself if there are none."""
    needed = {*graph.outputs, *graph.updates.values()}
    alive: list[Node] = []
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            alive.append(node)
            needed.update(node.inputs)
    return graph if len(alive) == len(graph.nodes) else graph.with_nodes(reversed(alive))
