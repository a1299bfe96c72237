"""Rules that rewrite graphs: a pattern says what to look for, a function what to put in its place.

::

    def drop_zero(match: Match) -> Replacement | None:
        return None if match.const("c").any() else match.same("x")

    graph = rewrite(graph, [(P.op("add", P.any("x"), P.const("c"), commutative=True), drop_zero)])

A replacement makes the outputs of the pattern's root under their names, so that a name keeps its meaning for all who know it.
:mod:`microc.graph.rewriting` applies rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from microc.dtypes import Array
from microc.graph.ir import Attr, Graph, Loc, Names, Node, TensorType

_NO_ATTRS: Mapping[str, Attr] = MappingProxyType({})

# ---------------------------------------------------------------- patterns


@dataclass(frozen=True, slots=True)
class Leaf:
    """Any value, or (``constant``) one whose data are known; captured as ``name``."""

    name: str = ""
    constant: bool = False


@dataclass(frozen=True, slots=True)
class Op:
    """A value that one of the operators ``ops`` makes from ``operands`` (None: whatever they are). See :meth:`P.op`."""

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
        """Any value; the same name twice asks for the same value."""
        return Leaf(name)

    @staticmethod
    def const(name: str = "") -> Leaf:
        """A value known at compile time."""
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
        """The first output of a node of one of ``ops``; without ``operands``, of whatever it is computed from.

        The node's attributes equal those in ``attrs`` where it has them at all; it is captured as ``name``. ``commutative``
        tries two operands in both orders. Below the root, the value has one reader and is no graph output, unless ``shared``.
        """
        names = frozenset((ops,) if isinstance(ops, str) else ops)
        return Op(names, operands or None, attrs, name, commutative, shared)


# ---------------------------------------------------------------- what a rule sees and gives


@dataclass(frozen=True, slots=True, repr=False)
class Replacement:
    """``nodes`` that make the root's outputs, or the value that is the ``same``; types and constants that they bring along."""

    nodes: tuple[Node, ...] = ()
    types: Mapping[str, TensorType] = field(default_factory=dict)
    consts: Mapping[str, Array] = field(default_factory=dict)
    same: str = ""

    def __repr__(self) -> str:
        return f"<Replacement: {self.same or f'{len(self.nodes)} operators'}>"


class Scope:
    """The graph around a match, as far as it has been rewritten."""

    def __init__(self, graph: Graph) -> None:
        self.types = dict(graph.types)
        self.consts = dict(graph.consts)
        self.producers: dict[str, Node] = {}
        self.kept = frozenset((*graph.outputs, *graph.updates.values()))
        self.readers = graph.consumers()
        self.taken = Names(graph.types)

    def type(self, value: str) -> TensorType:
        return self.types[value]

    def producer(self, value: str) -> Node | None:
        """The node that makes a value; None for inputs, constants and state."""
        return self.producers.get(value)

    def is_alone(self, value: str) -> bool:
        """Whether one node at most reads a value, and nobody outside of the graph."""
        return value not in self.kept and len(self.readers.get(value, ())) <= 1

    def fresh(self, stem: str) -> str:
        """A new value name."""
        return self.taken.fresh(stem)


@dataclass(repr=False)
class Match:
    """What a pattern found: ``root``, captured ``values`` and ``nodes``, and all nodes that it stands for (``whole``). Also
    collects the nodes of the replacement."""

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
        """The type of a value, new or old."""
        return self._types[value] if value in self._types else self.scope.types[value]

    def is_like(self, capture: str) -> bool:
        """Whether a captured value and the root's output have one shape, dtype and quantisation."""
        source, result = self.type(self[capture]), self.type(self.output)
        return (source.shape, source.dtype, source.quant) == (result.shape, result.dtype, result.quant)

    def const(self, capture: str) -> Array:
        """The data of a captured constant."""
        return self.scope.consts[self.values[capture]]

    def constant(self, stem: str, array: Array, kind: TensorType | None = None) -> str:
        """A new constant, of its array's type unless another is given."""
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
        """Append a node that makes a new value of type ``kind``; without it, the root's output. The value's name."""
        name = self.output if kind is None else self.scope.fresh(stem or f"{self.output}.{op}")
        if kind is not None:
            self._types[name] = kind
        self._nodes.append(Node(op, tuple(inputs), (name,), attrs, loc or self.root.loc, self.root.group))
        return name

    def replacement(self) -> Replacement:
        """What has been emitted."""
        return Replacement(tuple(self._nodes), self._types, self._consts)

    def same(self, capture: str) -> Replacement:
        """The root's output is a captured value."""
        return self.same_as(self.values[capture])

    def same_as(self, value: str) -> Replacement:
        """The root's output is ``value``: an old one, or a new constant."""
        return Replacement((), self._types, self._consts, value)


Rule = tuple[Op, Callable[[Match], Replacement | None]]


# ---------------------------------------------------------------- matching


@dataclass(frozen=True, slots=True)
class _Captures:
    values: Mapping[str, str]
    nodes: Mapping[str, Node]
    whole: tuple[Node, ...] = ()

    def with_value(self, name: str, value: str) -> _Captures | None:
        if not name:
            return self
        if self.values.get(name, value) != value:
            return None
        return _Captures({**self.values, name: value}, self.nodes, self.whole)

    def with_node(self, name: str, node: Node) -> _Captures:
        whole = self.whole if any(node is each for each in self.whole) else (*self.whole, node)
        return _Captures(self.values, {**self.nodes, name: node} if name else self.nodes, whole)


def matches(pattern: Op, node: Node, scope: Scope) -> Iterator[Match]:
    """Every way in which a node is the root of a pattern."""
    for found in _match_node(pattern, node, scope, _Captures({}, {})):
        yield Match(scope, node, found.values, found.nodes, found.whole)


def _match_value(pattern: Pattern, value: str, scope: Scope, found: _Captures) -> Iterator[_Captures]:
    if isinstance(pattern, Leaf):
        captured = found.with_value(pattern.name, value)
        if value and captured is not None and (not pattern.constant or value in scope.consts):
            yield captured
        return
    node = scope.producer(value)
    if node is not None and node.outputs[0] == value and (pattern.shared or scope.is_alone(value)):
        yield from _match_node(pattern, node, scope, found)


def _match_node(pattern: Op, node: Node, scope: Scope, found: _Captures) -> Iterator[_Captures]:
    if node.op not in pattern.ops or any(node.attrs.get(name, value) != value for name, value in pattern.attrs.items()):
        return
    found = found.with_node(pattern.name, node)
    if pattern.operands is None:
        yield found
        return
    orders = [node.inputs, node.inputs[::-1]] if pattern.commutative else [node.inputs]
    for inputs in orders:
        if len(inputs) == len(pattern.operands):
            yield from _match_all(pattern.operands, inputs, scope, found)


def _match_all(
    patterns: Sequence[Pattern], values: Sequence[str], scope: Scope, found: _Captures
) -> Iterator[_Captures]:
    if not patterns:
        yield found
        return
    for captured in _match_value(patterns[0], values[0], scope, found):
        yield from _match_all(patterns[1:], values[1:], scope, captured)
