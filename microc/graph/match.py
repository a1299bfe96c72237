"""Graph rewriting: patterns, rules, and their application."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from microc.base.dtypes import Array
from microc.errors import InternalError
from microc.graph.ir import Attr, Graph, Loc, NameSet, Node, TensorType

# ---- Rules: a pattern describes what to find, a function returns its replacement.
#
# ::
#
#     def drop_zero(match: Match) -> Replacement | None:
#         return None if match.const("c").any() else match.same("x")
#
#     graph = rewrite(graph, [(P.op("add", P.any("x"), P.const("c"), commutative=True), drop_zero)])
#
# A replacement computes the outputs of the pattern's root under their names, so that whatever refers to a name remains valid.

_NO_ATTRS: Mapping[str, Attr] = MappingProxyType({})

# ---------------------------------------------------------------- patterns


@dataclass(frozen=True, slots=True)
class Leaf:
    """Pattern of any value, or (``constant``) of a value whose data are known; captured as ``name``."""

    name: str = ""
    constant: bool = False


@dataclass(frozen=True, slots=True)
class Op:
    """Pattern of a value that one of the operators ``ops`` computes from ``operands`` (None: any). See :meth:`P.op`."""

    ops: frozenset[str]
    operands: tuple[Pattern, ...] | None
    attrs: Mapping[str, Attr]
    name: str
    commutative: bool
    shared: bool


Pattern = Leaf | Op


class P:
    """Constructors of patterns."""

    @staticmethod
    def any(name: str = "") -> Leaf:
        """Match any value; the same name twice requires the same value."""
        return Leaf(name)

    @staticmethod
    def const(name: str = "") -> Leaf:
        """Match a value known at compile time."""
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
        """Match the first output of a node of one of ``ops``; without ``operands``, any operands.

        Attributes of the node equal those in ``attrs``, if it has them; the node is captured as ``name``.
        ``commutative`` tries two operands in both orders. Below the root, the value must have a single reader and be no
        graph output, unless ``shared``.
        """
        names = frozenset((ops,) if isinstance(ops, str) else ops)
        return Op(names, operands or None, attrs, name, commutative, shared)


# ---------------------------------------------------------------- what a rule sees and gives


@dataclass(frozen=True, slots=True, repr=False)
class Replacement:
    """Replacement of a match: ``nodes`` that compute the root's outputs, or the value that is the ``same``; with the
    types and constants that it adds."""

    nodes: tuple[Node, ...] = ()
    types: Mapping[str, TensorType] = field(default_factory=dict)
    consts: Mapping[str, Array] = field(default_factory=dict)
    same: str = ""

    def __repr__(self) -> str:
        return f"<Replacement: {self.same or f'{len(self.nodes)} operators'}>"


class Scope:
    """State of a graph while it is rewritten: types, constants, producers and readers of values, as far as nodes have been
    visited."""

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
        """Return the node that computes a value; None for inputs, constants and state."""
        return self.producers.get(value)

    def is_alone(self, value: str) -> bool:
        """Test whether at most one node reads a value, and nothing outside of the graph does."""
        return value not in self.kept and len(self.readers.get(value, ())) <= 1

    def fresh(self, stem: str) -> str:
        """Return a name for a new value, and reserve it."""
        return self.taken.fresh(stem)


@dataclass(repr=False)
class Match:
    """A match of a pattern: ``root``, captured ``values`` and ``nodes``, and all nodes that it covers (``whole``).
    It also collects the nodes of the replacement."""

    scope: Scope
    root: Node
    values: Mapping[str, str]
    nodes: Mapping[str, Node]
    whole: tuple[Node, ...] = ()
    _nodes: list[Node] = field(default_factory=list)
    _types: dict[str, TensorType] = field(default_factory=dict)
    _consts: dict[str, Array] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Match of {self.root.op}: {', '.join(self.values)}>"

    def __getitem__(self, capture: str) -> str:
        return self.values[capture]

    @property
    def output(self) -> str:
        """The root's first output."""
        return self.root.outputs[0]

    def type(self, value: str) -> TensorType:
        """Return the type of a value, old or new."""
        return self._types[value] if value in self._types else self.scope.types[value]

    def is_like(self, capture: str) -> bool:
        """Test whether a captured value and the root's output have the same shape, dtype and quantisation."""
        source, result = self.type(self[capture]), self.type(self.output)
        return (source.shape, source.dtype, source.quant) == (result.shape, result.dtype, result.quant)

    def const(self, capture: str) -> Array:
        """Return the data of a captured constant."""
        return self.scope.consts[self.values[capture]]

    def constant(self, stem: str, array: Array, kind: TensorType | None = None) -> str:
        """Add a constant, of its array's type unless another is given; return its name."""
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
        """Append a node that computes a new value of type ``kind``, or without it the root's output; return the
        value's name."""
        name = self.output if kind is None else self.scope.fresh(stem or f"{self.output}.{op}")
        if kind is not None:
            self._types[name] = kind
        self._nodes.append(Node(op, tuple(inputs), (name,), attrs, loc or self.root.loc, self.root.group))
        return name

    def replacement(self) -> Replacement:
        """Return the emitted nodes, with their types and constants, as the replacement."""
        return Replacement(tuple(self._nodes), self._types, self._consts)

    def same(self, capture: str) -> Replacement:
        """Return the replacement of the root's output by a captured value."""
        return self.same_as(self.values[capture])

    def same_as(self, value: str) -> Replacement:
        """Return the replacement of the root's output by ``value``: an old one, or a new constant."""
        return Replacement((), self._types, self._consts, value)


Rule = tuple[Op, Callable[[Match], Replacement | None]]


# ---------------------------------------------------------------- matching


@dataclass(frozen=True, slots=True)
class _Captures:
    """Values and nodes captured so far under names, and all nodes that the match covers."""

    values: Mapping[str, str]
    nodes: Mapping[str, Node]
    whole: tuple[Node, ...] = ()

    def with_value(self, name: str, value: str) -> _Captures | None:
        """Return the captures with one more value; None if the name stands for another value already."""
        if not name:
            return self
        if self.values.get(name, value) != value:
            return None
        return _Captures({**self.values, name: value}, self.nodes, self.whole)

    def with_node(self, name: str, node: Node) -> _Captures:
        """Return the captures with one more node, captured as ``name`` unless that is empty."""
        whole = self.whole if any(node is each for each in self.whole) else (*self.whole, node)
        return _Captures(self.values, {**self.nodes, name: node} if name else self.nodes, whole)


def find_matches(pattern: Op, node: Node, scope: Scope) -> Iterator[Match]:
    """Yield every match of a pattern whose root is ``node``."""
    for found in _match_node(pattern, node, scope, _Captures({}, {})):
        yield Match(scope, node, found.values, found.nodes, found.whole)


def _match_value(pattern: Pattern, value: str, scope: Scope, captures: _Captures) -> Iterator[_Captures]:
    if isinstance(pattern, Leaf):
        captured = captures.with_value(pattern.name, value)
        if value and captured is not None and (not pattern.constant or value in scope.consts):
            yield captured
        return
    node = scope.producer(value)
    if node is not None and node.outputs[0] == value and (pattern.shared or scope.is_alone(value)):
        yield from _match_node(pattern, node, scope, captures)


def _match_node(pattern: Op, node: Node, scope: Scope, captures: _Captures) -> Iterator[_Captures]:
    if node.op not in pattern.ops or any(node.attrs.get(name, value) != value for name, value in pattern.attrs.items()):
        return
    captures = captures.with_node(pattern.name, node)
    if pattern.operands is None:
        yield captures
        return
    orders = [node.inputs, node.inputs[::-1]] if pattern.commutative else [node.inputs]
    for inputs in orders:
        if len(inputs) == len(pattern.operands):
            yield from _match_all(pattern.operands, inputs, scope, captures)


def _match_all(
    patterns: Sequence[Pattern], values: Sequence[str], scope: Scope, captures: _Captures
) -> Iterator[_Captures]:
    if not patterns:
        yield captures
        return
    for captured in _match_value(patterns[0], values[0], scope, captures):
        yield from _match_all(patterns[1:], values[1:], scope, captured)


# ---- Application: rules are applied until none returns a replacement; dead nodes are removed.


def rewrite(graph: Graph, rules: Sequence[Rule], sweeps: int | None = None) -> Graph:
    """Apply the first rule that returns a replacement at every node, in order, until no rule does; remove dead nodes.

    The same object is returned if nothing matches. InternalError after ``sweeps`` walks over the graph (default: a
    number that grows with the graph), since the rules then undo each other.
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
    raise InternalError(f"the rewrite rules do not terminate on graph {graph.name}")


class _Sweep:
    """One walk over the graph that applies rules: every node is replaced at most once, and later nodes see the
    replacements of earlier ones."""

    def __init__(self, graph: Graph, table: Mapping[str, Sequence[Rule]]) -> None:
        self.graph, self.table = graph, table
        self.scope = Scope(graph)
        self.nodes: list[Node] = []
        self.alias: dict[str, str] = {}
        self.renamed: dict[str, str] = {}
        self.changed = False

    def run(self) -> Graph:
        """Walk over the graph and return the rewritten graph; the same object if no rule applied."""
        for old in self.graph.nodes:
            inputs = tuple(self.alias.get(name, name) for name in old.inputs)
            node = old if inputs == old.inputs else replace(old, inputs=inputs)
            if not self.try_rules(node):
                self.append(node)
        if not self.changed:
            return self.graph
        nodes = [self.with_promised_names(node) for node in self.nodes] if self.renamed else self.nodes
        return replace(self.graph, types=self.scope.types, consts=self.scope.consts).with_nodes(nodes)

    def append(self, node: Node) -> None:
        self.nodes.append(node)
        self.scope.producers.update(dict.fromkeys(node.outputs, node))

    def with_promised_names(self, node: Node) -> Node:
        """Rename values to the graph outputs that they replace."""
        inputs, outputs = (tuple(self.renamed.get(n, n) for n in names) for names in (node.inputs, node.outputs))
        return (
            node if (inputs, outputs) == (node.inputs, node.outputs) else replace(node, inputs=inputs, outputs=outputs)
        )

    def try_rules(self, node: Node) -> bool:
        """Apply the first rule that returns a replacement; return whether one did."""
        for pattern, function in self.table.get(node.op, ()):
            for match in find_matches(pattern, node, self.scope):
                replacement = function(match)
                if replacement is not None and self.apply_replacement(node, replacement):
                    self.changed = True
                    return True
        return False

    def apply_replacement(self, node: Node, replacement: Replacement) -> bool:
        """Apply the replacement of a node; return False if the graph's inputs and outputs do not permit it."""
        if replacement.same and not self.alias_output(node.outputs[0], replacement.same):
            return False
        made = {name for new in replacement.nodes for name in new.outputs}
        if not replacement.same and not made.issuperset(name for name in node.outputs if name):
            raise InternalError(
                f"a replacement of {node.op} does not compute all of its outputs; got {sorted(made)}",
                where=str(node.loc),
            )
        self.scope.types.update(replacement.types)
        self.scope.consts.update(replacement.consts)
        for new in replacement.nodes:
            self.append(new)
        return True

    def alias_output(self, output: str, value: str) -> bool:
        """Make ``output`` an alias of ``value``, which its readers read instead; return False if that is not possible.

        An output of the graph keeps its name, which ``value`` takes if it is computed here."""
        if output not in self.scope.kept:
            self.alias[output] = value
            for name, target in self.alias.items():
                if target == output:
                    self.alias[name] = value
            return True
        # A value that is visible itself, has another such name already, or is not computed here cannot take the name.
        busy = value in self.scope.kept or value in self.renamed or value not in self.scope.producers
        if busy:
            return False
        self.renamed[value] = output
        return True


def without_dead_nodes(graph: Graph) -> Graph:
    """Remove nodes on which neither outputs nor state updates depend; the same graph if there are none."""
    needed = {*graph.outputs, *graph.updates.values()}
    alive: list[Node] = []
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            alive.append(node)
            needed.update(node.inputs)
    return graph if len(alive) == len(graph.nodes) else graph.with_nodes(reversed(alive))
