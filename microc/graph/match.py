# SPDX-License-Identifier: Apache-2.0
"""Graph rewriting: patterns that match nodes, rules that replace matches, and the application of rules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from microc.base.dtypes import Array
from microc.errors import InternalError
from microc.graph.ir import Attr, Graph, Loc, NameSet, Node, TensorType

# ---- Rules: a rule is a pattern, and a function that returns the replacement of a match (None: no replacement).
#
# ::
#
#     def drop_zero(match: Match) -> Replacement | None:
#         return None if match.const("c").any() else match.same("x")
#
#     graph = rewrite(graph, [(P.op("add", P.any("x"), P.const("c"), commutative=True), drop_zero)])
#
# The root of a match is the node whose result the pattern describes. A replacement computes the outputs of the root under
# their old names, so that all references to these names remain valid.

_NO_ATTRS: Mapping[str, Attr] = MappingProxyType({})

# ---------------------------------------------------------------- patterns


@dataclass(frozen=True, slots=True)
class Leaf:
    """Pattern that matches any value, or only constants if ``constant`` is True. The value is captured as ``name``."""

    name: str = ""
    constant: bool = False


@dataclass(frozen=True, slots=True)
class Op:
    """Pattern that matches a value computed by one of the operators ``ops`` from ``operands`` (None: any operands).

    :meth:`P.op` explains the fields."""

    ops: frozenset[str]
    operands: tuple[Pattern, ...] | None
    attrs: Mapping[str, Attr]
    name: str
    commutative: bool
    shared: bool


Pattern = Leaf | Op


class P:
    """Functions that create patterns."""

    @staticmethod
    def any(name: str = "") -> Leaf:
        """Return a pattern that matches any value. A name that occurs twice in a pattern requires the same value
        twice."""
        return Leaf(name)

    @staticmethod
    def const(name: str = "") -> Leaf:
        """Return a pattern that matches a constant: a value that is known at compile time."""
        return Leaf(name, constant=True)

    @staticmethod
    def op(
        ops: str | Collection[str],
        *operands: Pattern,
        attrs: Mapping[str, Attr] = _NO_ATTRS,
        name: str = "",
        commutative: bool = False,
        shared: bool = False,
    ) -> Op:
        """Return a pattern that matches the first output of a node with one of the operators ``ops``.

        ``operands``: patterns of the node's operands; if there are none, any operands match. ``attrs``: values that the
        node's attributes must have, if the node has these attributes. ``name``: name under which the node is captured.
        ``commutative``: try the two operands in both orders. ``shared``: the value may have several readers or be an
        output of the graph. Otherwise only the root of a match may.
        """
        names = frozenset((ops,) if isinstance(ops, str) else ops)
        return Op(names, operands or None, attrs, name, commutative, shared)


# ---------------------------------------------------------------- input and result of a rule's function


@dataclass(frozen=True, slots=True, repr=False)
class Replacement:
    """Replacement of a match.

    It consists of ``nodes`` that compute the outputs of the root. Or ``existing_value`` names the value that replaces the
    root's output. ``types``, ``consts``: types and data of the new values and constants."""

    nodes: tuple[Node, ...] = ()
    types: Mapping[str, TensorType] = field(default_factory=dict)
    consts: Mapping[str, Array] = field(default_factory=dict)
    existing_value: str = ""

    def __repr__(self) -> str:
        return f"<Replacement: {self.existing_value or f'{len(self.nodes)} operators'}>"


class Scope:
    """State of a graph while its nodes are visited and rewritten in order.

    ``types``, ``consts`` and ``producers`` (the node that computes each value) include the replacements made so far.
    ``readers``: the nodes that read each value in the original graph. ``kept``: values whose names must not change,
    because they are outputs or state updates of the graph. ``taken``: all names in use."""

    def __init__(self, graph: Graph) -> None:
        self.types = dict(graph.types)
        self.consts = dict(graph.consts)
        self.producers: dict[str, Node] = {}
        self.kept = frozenset((*graph.outputs, *graph.updates.values()))
        self.readers = graph.consumers()
        self.taken = NameSet(graph.types)

    def type(self, value: str) -> TensorType:
        return self.types[value]

    def producer(self, value: str) -> Node | None:
        """Return the node that computes a value; None for inputs, constants and state, and for nodes not visited
        yet."""
        return self.producers.get(value)

    def has_only_one_reader(self, value: str) -> bool:
        """Test whether at most one node reads a value, and the value is neither an output nor a state update of the
        graph."""
        return value not in self.kept and len(self.readers.get(value, ())) <= 1

    def fresh(self, stem: str) -> str:
        """Return an unused name for a new value, derived from ``stem``, and mark it as used."""
        return self.taken.fresh(stem)


@dataclass(repr=False)
class Match:
    """A match of a pattern, from which a rule's function builds the replacement.

    ``root``: the node whose output the pattern describes. ``values``, ``nodes``: captured values and nodes by name.
    ``covered_nodes``: all nodes that the pattern covers. :meth:`emit` and :meth:`constant` collect new nodes and constants;
    :meth:`replacement` returns them."""

    scope: Scope
    root: Node
    values: Mapping[str, str]
    nodes: Mapping[str, Node]
    covered_nodes: tuple[Node, ...] = ()
    _nodes: list[Node] = field(default_factory=list)
    _types: dict[str, TensorType] = field(default_factory=dict)
    _consts: dict[str, Array] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Match of {self.root.op}: {', '.join(self.values)}>"

    def __getitem__(self, capture: str) -> str:
        return self.values[capture]

    @property
    def output(self) -> str:
        """Name of the first output of the root node."""
        return self.root.outputs[0]

    def type(self, value: str) -> TensorType:
        """Return the type of a value of the graph, or of a new value of the replacement."""
        return self._types[value] if value in self._types else self.scope.types[value]

    def has_type_of_root(self, capture: str) -> bool:
        """Test whether a captured value and the root's first output have the same shape, dtype and quantisation."""
        source, result = self.type(self[capture]), self.type(self.output)
        return (source.shape, source.dtype, source.quant) == (result.shape, result.dtype, result.quant)

    def const(self, capture: str) -> Array:
        """Return the data of a captured constant."""
        return self.scope.consts[self.values[capture]]

    def constant(self, stem: str, array: Array, kind: TensorType | None = None) -> str:
        """Add a new constant to the replacement; return its name.

        ``kind``: type of the constant; the default is the shape and dtype of ``array``."""
        name = self.scope.fresh(stem)
        self._types[name] = kind or TensorType(array.shape, str(array.dtype))
        self._consts[name] = array
        return name

    def emit(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: Mapping[str, Attr],
        kind: TensorType | None = None,
        stem: str = "",
        loc: Loc | None = None,
    ) -> str:
        """Append a node to the replacement; return the name of the value that it computes.

        The node computes a new value of type ``kind``, or the root's output if ``kind`` is None. ``stem``: beginning of
        the new value's name; ``loc``: location of the node, by default that of the root."""
        name = self.output if kind is None else self.scope.fresh(stem or f"{self.output}.{op}")
        if kind is not None:
            self._types[name] = kind
        self._nodes.append(Node(op, tuple(inputs), (name,), attrs, loc or self.root.loc, self.root.group))
        return name

    def replacement(self) -> Replacement:
        """Return the replacement that consists of the nodes and constants added so far."""
        return Replacement(tuple(self._nodes), self._types, self._consts)

    def same(self, capture: str) -> Replacement:
        """Return a replacement that substitutes the captured value for the root's output."""
        return self.same_as(self.values[capture])

    def same_as(self, value: str) -> Replacement:
        """Return a replacement that substitutes ``value`` (a value of the graph, or a new constant) for the root's
        output."""
        return Replacement((), self._types, self._consts, value)


Rule = tuple[Op, Callable[[Match], Replacement | None]]


# ---------------------------------------------------------------- matching


@dataclass(frozen=True, slots=True)
class _Captures:
    """Values and nodes that a partial match has captured, by name. ``covered_nodes``: all nodes that the match covers."""

    values: Mapping[str, str]
    nodes: Mapping[str, Node]
    covered_nodes: tuple[Node, ...] = ()

    def with_value(self, name: str, value: str) -> _Captures | None:
        """Return the captures with ``value`` added under ``name``; None if another value is already captured as
        ``name``."""
        if not name:
            return self
        if self.values.get(name, value) != value:
            return None
        return _Captures({**self.values, name: value}, self.nodes, self.covered_nodes)

    def with_node(self, name: str, node: Node) -> _Captures:
        """Return the captures with ``node`` added, under ``name`` unless the name is empty."""
        whole = self.covered_nodes if any(node is each for each in self.covered_nodes) else (*self.covered_nodes, node)
        return _Captures(self.values, {**self.nodes, name: node} if name else self.nodes, whole)


def find_matches(pattern: Op, node: Node, scope: Scope) -> Iterator[Match]:
    """Yield every match of a pattern that has ``node`` as its root."""
    for found in _match_node(pattern, node, scope, _Captures({}, {})):
        yield Match(scope, node, found.values, found.nodes, found.covered_nodes)


def _match_value(pattern: Pattern, value: str, scope: Scope, captures: _Captures) -> Iterator[_Captures]:
    """Yield the captures of every match of a pattern with a value, added to ``captures``."""
    if isinstance(pattern, Leaf):
        captured = captures.with_value(pattern.name, value)
        if value and captured is not None and (not pattern.constant or value in scope.consts):
            yield captured
        return
    node = scope.producer(value)
    if node is not None and node.outputs[0] == value and (pattern.shared or scope.has_only_one_reader(value)):
        yield from _match_node(pattern, node, scope, captures)


def _match_node(pattern: Op, node: Node, scope: Scope, captures: _Captures) -> Iterator[_Captures]:
    """Yield the captures of every match of a pattern with a node, added to ``captures``."""
    if node.op not in pattern.ops or any(node.attrs.get(name, value) != value for name, value in pattern.attrs.items()):
        return
    captures = captures.with_node(pattern.name, node)
    if pattern.operands is None:
        yield captures
        return
    orders = [node.inputs, node.inputs[::-1]] if pattern.commutative else [node.inputs]
    for inputs in orders:
        if len(inputs) == len(pattern.operands):
            yield from _match_operands(pattern.operands, inputs, scope, captures)


def _match_operands(
    patterns: Sequence[Pattern], values: Sequence[str], scope: Scope, captures: _Captures
) -> Iterator[_Captures]:
    if not patterns:
        yield captures
        return
    for captured in _match_value(patterns[0], values[0], scope, captures):
        yield from _match_operands(patterns[1:], values[1:], scope, captured)


# ---- Application: rules are applied until no rule returns a replacement. Nodes whose results nothing reads are removed.


def rewrite(graph: Graph, rules: Sequence[Rule], sweeps: int | None = None) -> Graph:
    """Rewrite a graph by rules until no rule returns a replacement, and remove dead nodes.

    At every node the first rule that returns a replacement is applied. If no rule does, the same object is returned.
    Raises InternalError after ``sweeps`` walks over the graph, because the rules then probably undo each other. By
    default, the limit grows with the graph.
    """
    table: dict[str, list[Rule]] = {}
    for rule in rules:
        for op in rule[0].ops:
            table.setdefault(op, []).append(rule)
    for _ in range(sweeps if sweeps is not None else 100 + 4 * len(graph.nodes)):
        swept = _RewriteSweep(graph, table).rewrite_nodes()
        if swept is graph:
            return graph
        graph = without_dead_nodes(swept)
    raise InternalError(f"rewrite: the rules do not terminate on graph {graph.name}")


class _RewriteSweep:
    """One walk over the nodes of a graph that applies rules.

    Every node is replaced at most once. Rules at later nodes see the replacements of earlier nodes. ``alias``: values
    that are replaced by another value; ``renamed``: values that take over the name of a graph output."""

    def __init__(self, graph: Graph, table: Mapping[str, Sequence[Rule]]) -> None:
        self.graph, self.table = graph, table
        self.scope = Scope(graph)
        self.nodes: list[Node] = []
        self.alias: dict[str, str] = {}
        self.renamed: dict[str, str] = {}
        self.changed = False

    def rewrite_nodes(self) -> Graph:
        """Apply the rules to all nodes, and return the rewritten graph; the same object if no rule was applied."""
        for old in self.graph.nodes:
            inputs = tuple(self.alias.get(name, name) for name in old.inputs)
            node = old if inputs == old.inputs else replace(old, inputs=inputs)
            if not self.try_rules(node):
                self.append(node)
        if not self.changed:
            return self.graph
        nodes = [self.rename_to_graph_outputs(node) for node in self.nodes] if self.renamed else self.nodes
        return replace(self.graph, types=self.scope.types, consts=self.scope.consts).with_nodes(nodes)

    def append(self, node: Node) -> None:
        """Append a node to the rewritten graph."""
        self.nodes.append(node)
        self.scope.producers.update(dict.fromkeys(node.outputs, node))

    def rename_to_graph_outputs(self, node: Node) -> Node:
        """Return a node with values renamed to the graph outputs that they replace."""
        inputs, outputs = (tuple(self.renamed.get(n, n) for n in names) for names in (node.inputs, node.outputs))
        return (
            node if (inputs, outputs) == (node.inputs, node.outputs) else replace(node, inputs=inputs, outputs=outputs)
        )

    def try_rules(self, node: Node) -> bool:
        """Apply the first rule that returns a replacement for ``node``. Returns True if a rule was applied."""
        for pattern, function in self.table.get(node.op, ()):
            for match in find_matches(pattern, node, self.scope):
                replacement = function(match)
                if replacement is not None and self.apply_replacement(node, replacement):
                    self.changed = True
                    return True
        return False

    def apply_replacement(self, node: Node, replacement: Replacement) -> bool:
        """Apply the replacement of a node. Returns False if it is impossible, because graph outputs must keep their
        names."""
        if replacement.existing_value and not self.alias_output(node.outputs[0], replacement.existing_value):
            return False
        made = {name for new in replacement.nodes for name in new.outputs}
        if not replacement.existing_value and not made.issuperset(name for name in node.outputs if name):
            raise InternalError(
                f"rewrite: a replacement of {node.op} does not compute all of its outputs; got {sorted(made)}, "
                f"expected {sorted(name for name in node.outputs if name)}",
                where=str(node.loc),
            )
        self.scope.types.update(replacement.types)
        self.scope.consts.update(replacement.consts)
        for new in replacement.nodes:
            self.append(new)
        return True

    def alias_output(self, output: str, value: str) -> bool:
        """Make all readers of ``output`` read ``value`` instead. Returns False if that is impossible.

        If ``output`` is an output of the graph, its name must stay, so ``value`` is renamed to ``output``. That
        requires that a node computes ``value``, and that ``value`` is not an output itself."""
        if output not in self.scope.kept:
            self.alias[output] = value
            for name, target in self.alias.items():
                if target == output:
                    self.alias[name] = value
            return True
        # The name cannot be given to a value that is a graph output itself, is already renamed, or is not computed by a node.
        busy = value in self.scope.kept or value in self.renamed or value not in self.scope.producers
        if busy:
            return False
        self.renamed[value] = output
        return True


def without_dead_nodes(graph: Graph) -> Graph:
    """Remove the nodes on which neither outputs nor state updates of the graph depend.

    If there are no such nodes, the same object is returned."""
    needed = {*graph.outputs, *graph.updates.values()}
    alive: list[Node] = []
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            alive.append(node)
            needed.update(node.inputs)
    return graph if len(alive) == len(graph.nodes) else graph.with_nodes(reversed(alive))
