"""A network at several sizes, and the rules by which its extents and attributes depend on them.

The graph is read at the largest sizes, the smallest, and at points between (:func:`choose_points`). All must have the
same structure. From the values at the points, :class:`Fitter` derives expressions for every extent; :func:`instantiate_graph`
evaluates them at other sizes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import MicrocError, ModelError, UnsupportedError, UsageError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.module import Size
from microc.ops import registry
from microc.tir import ir
from microc.tir.analysis.size_forms import FittedExtent, Fitter, Point, evaluate_at_sizes, strided_rules

# ---- Reading: the graph at several sizes, each read once, and the comparison of their structure.

Sizes = Mapping[str, int]
"""A value for every symbol, by label."""
Read = Callable[[Sizes], Graph]
"""Reads the graph at some sizes, all passes run; raises MicrocError if the model cannot have them."""
PARITY = "let the sizes be multiples of a step: --bound NAME=8:64:8"


class GraphsAtSizes:
    """The graphs of a network at several sizes, read on demand and each only once."""

    def __init__(self, sizes: tuple[Size, ...], read: Read) -> None:
        self.sizes, self._read = sizes, read
        self._known: dict[Point, Graph | None] = {}

    def graph(self, point: Point) -> Graph:
        """Read the graph at some sizes; raises the errors of reading."""
        found = self._known[point] = self._read({s.label: n for s, n in zip(self.sizes, point, strict=True)})
        return found

    def graph_or_none(self, point: Point) -> Graph | None:
        """Return the graph at some sizes; None if the model cannot have them."""
        if point not in self._known:
            try:
                return self.graph(point)
            except MicrocError:
                self._known[point] = None
        return self._known[point]

    def sizes_text(self, point: Point) -> str:
        """Format sizes as in ``--bound``."""
        return ", ".join(f"{size.label}={n}" for size, n in zip(self.sizes, point, strict=True))

    def scalars(self, point: Point) -> dict[str, int]:
        """Return the sizes ``point`` as values by the name of their scalar parameter."""
        return {size.scalar.name: n for size, n in zip(self.sizes, point, strict=True)}

    def agree(self, first: Graph, first_point: Point, second: Graph, second_point: Point) -> None:
        """Raise UsageError at the first difference between two graphs of the network, other than extents and numbers.

        ``first_point``, ``second_point``: the sizes at which the graphs were read."""
        between = f"{self.sizes_text(first_point)} and {self.sizes_text(second_point)}"
        for a, b in zip(first.nodes, second.nodes, strict=False):
            if (a.op, a.inputs, a.outputs, a.group) != (b.op, b.inputs, b.outputs, b.group):
                raise _structure_error(
                    f"the network differs between {between} here: {_format_node(a)} or {_format_node(b)}", a
                )
            for name in (n for n in (*a.inputs, *a.outputs) if n):
                x, y = first.types[name], second.types[name]
                if (x.dtype, len(x.shape)) != (y.dtype, len(y.shape)):
                    raise _structure_error(f"{name} has another dtype or rank at {between}", a)
            for key, inner in a.attrs.items():
                if isinstance(inner, Graph):
                    self.agree(inner, first_point, b.attrs[key], second_point)  # type: ignore[arg-type]
        is_same = (
            all(_dtype_and_rank(first, n) == _dtype_and_rank(second, n) for n in (*first.inputs, *first.outputs))
            and first.inputs == second.inputs
            and first.outputs == second.outputs
            and len(first.nodes) == len(second.nodes)
            and {n: s.shape for n, s in first.state.items()} == {n: s.shape for n, s in second.state.items()}
            and first.updates == second.updates
        )
        if not is_same:
            raise _structure_error(f"the network has other inputs, outputs, nodes or state at {between}", None)


def _dtype_and_rank(graph: Graph, name: str) -> tuple[str, int] | None:
    """Return dtype and rank of a value, if the graph has one of this name."""
    kind = graph.types.get(name)
    return None if kind is None else (kind.dtype, len(kind.shape))


def _structure_error(difference: str, node: Node | None) -> UsageError:
    """Build the UsageError for a structure that differs between sizes, at a node if one is known."""
    return UsageError(difference, where=str(node.loc) if node else "", hint=PARITY)


def _format_node(node: Node) -> str:
    """Format a node as an operator with its inputs."""
    return f"{node.op}({', '.join(node.inputs)})"


# ---- Points: sizes at which the graph is read, far apart and different from the network's static extents.

_FIRST = 19
"""The first size of a point, in steps: beyond the windows of usual kernels, where borders would meet."""
_SCALES = (1, 3, 8, 20)  # factors on the first size, tried one after the other
_NARROW = 5
"""Least extent at a point: larger points are tried until every dynamic extent has as many elements, after all strides."""
_APART = 7
"""Steps between points: odd, so that windows with strides 2, 4, 8 ... see all remainders, and several results."""
_POINTS, _MANY = 5, 8
"""Points for one symbol, and for several: two more than a usual rule has terms."""


def choose_points(readings: GraphsAtSizes, largest: Graph) -> tuple[Point, ...]:
    """Choose points, sizes that the model can have, at which the graph is read. They grow until no dynamic extent is small
    in any layer."""
    static_extents = {extent for kind in largest.types.values() for extent in kind.shape}
    points: tuple[Point, ...] = ()
    for scale in _SCALES:
        points = _points_at_scale(readings, static_extents, scale) or points
        if points and _smallest_dynamic_extent(readings, points) >= _NARROW:
            break
    if len(points) < 2:
        readings.graph(tuple(_FIRST * size.step for size in readings.sizes))  # which says why
        given = ", ".join(f"{size.label} = {size.minimum} to {size.maximum}" for size in readings.sizes)
        raise UsageError(
            f"bounds: too few sizes to derive how shapes depend on them; got {given}",
            hint="give a larger bound",
        )
    maxima = tuple(size.maximum for size in readings.sizes)
    if maxima not in points and _smallest_dynamic_extent(readings, (maxima, *points)) >= _NARROW:
        return (*points, maxima)
    return points


def _points_at_scale(readings: GraphsAtSizes, static_extents: set[int], scale: int) -> tuple[Point, ...]:
    """Choose points whose sizes are ``scale`` times the first ones; at scale 1 also small ones, if the model cannot have
    others. Empty if there are too few."""
    wanted = _POINTS if len(readings.sizes) == 1 else _MANY
    large = [
        _large_sizes(size, static_extents, wanted, _FIRST * scale + 16 * k) for k, size in enumerate(readings.sizes)
    ]  # far apart
    available = [large[k] + _available_sizes(size) for k, size in enumerate(readings.sizes)]
    points: dict[Point, None] = {}
    for point in (*_shuffled_points(large), *_shuffled_points(available if scale == 1 else large)):
        if readings.graph_or_none(point) is not None:
            points[point] = None
        if len(points) == wanted:
            return tuple(points)
    return tuple(points) if scale == 1 else ()


def _smallest_dynamic_extent(readings: GraphsAtSizes, points: Sequence[Point]) -> int:
    """Return the smallest extent that differs between the points."""
    kinds = [graph.types for graph in map(readings.graph_or_none, points) if graph is not None]
    columns = (zip(*(k[name].shape for k in kinds), strict=False) for name in kinds[0] if all(name in k for k in kinds))
    return min((min(column) for rows in columns for column in rows if len(set(column)) > 1), default=_NARROW)


def _large_sizes(size: Size, static_extents: set[int], count: int, first: int) -> list[int]:
    """List large values of one symbol, in steps from ``first`` on, that are no static extents of the model."""
    large = (size.step * k for k in range(first, first + 64 * _APART * count, _APART))
    return [n for n in large if n not in static_extents][: 2 * count]


def _available_sizes(size: Size) -> list[int]:
    """List the values of one symbol within its bounds, largest first, for models that cannot have large ones."""
    sizes = [n for n in range(size.maximum, max(size.minimum, 2) - 1, -1) if n % size.step == 0]
    return sizes[: 4 * _MANY]


def _shuffled_points(columns: Sequence[Sequence[int]]) -> Iterator[Point]:
    """Yield combinations of sizes such that no symbol determines another: the columns in shuffled orders, repeatedly."""
    shuffle = random.Random(0).shuffle
    if len(columns) == 1:
        yield from ((n,) for n in columns[0])
        return
    for _ in range(4):
        orders = [list(column) for column in columns]
        for order in orders:
            shuffle(order)
        yield from zip(*orders, strict=False)


# ---- Instances: the graph at further sizes, by the rules of its numbers.
#
# No pass runs, so that an axis of one element is treated like any other. Generalised functions are compared with instances.


def instantiate_graph(graphs: Sequence[Graph], largest: Graph, fitter: Fitter, sizes: Sizes) -> Graph:
    """Return the network at some sizes, from the graphs at the fitter's points and the largest one, which has the constants.

    Raises UnsupportedError for a node with a number that follows no rule.
    """
    types = {
        name: _type_at_sizes(kind, [g.types[name] for g in graphs], fitter, sizes, name)
        for name, kind in largest.types.items()
    }
    nodes = tuple(
        _node_at_sizes(node, together, fitter, sizes)
        for node, together in zip(largest.nodes, zip(*(g.nodes for g in graphs), strict=True), strict=True)
    )
    return replace(
        largest,
        types=types,
        nodes=nodes,
        consts={name: _leading_part(array, types[name].shape) for name, array in largest.consts.items()},
    )


def _leading_part(array: Array, shape: tuple[int, ...]) -> Array:
    """Return the leading part, of shape ``shape``, of a constant."""
    return array[tuple(slice(n) for n in shape)] if array.shape != shape else array


def _type_at_sizes(
    largest_type: TensorType, types_at_points: Sequence[TensorType], fitter: Fitter, sizes: Sizes, where: str
) -> TensorType:
    """Return the type of a value at some sizes, given its types at the points."""
    columns = zip(*(t.shape for t in types_at_points), strict=True)
    return replace(
        largest_type,
        shape=tuple(_integer_at_sizes(column, fitter, sizes, f"an axis of {where}", where) for column in columns),
    )


def _node_at_sizes(node: Node, nodes_at_points: Sequence[Node], fitter: Fitter, sizes: Sizes) -> Node:
    """Return a node at some sizes, given the node at the points."""
    attrs = {
        key: _attribute_at_sizes(key, [n.attrs[key] for n in nodes_at_points], fitter, sizes, str(node.loc), value)
        for key, value in node.attrs.items()
    }
    return replace(node, attrs=attrs)


def _attribute_at_sizes(
    name: str, values: Sequence[Attr], fitter: Fitter, sizes: Sizes, where: str, largest: Attr
) -> Any:
    """Return the value of an attribute at some sizes, given its values at the points; UnsupportedError if they follow no
    rule. ``largest``: its value at the largest sizes."""
    first = values[0]
    if isinstance(first, Graph) and isinstance(largest, Graph):
        return instantiate_graph([v for v in values if isinstance(v, Graph)], largest, fitter, sizes)
    if all(v == first for v in values):
        return first
    if isinstance(first, tuple) and all(isinstance(v, tuple) and len(v) == len(first) for v in values):
        columns = zip(*(v for v in values if isinstance(v, tuple)), strict=True)
        return tuple(_attribute_at_sizes(name, column, fitter, sizes, where, None) for column in columns)
    if all(type(v) is int for v in values):
        return _integer_at_sizes([v for v in values if isinstance(v, int)], fitter, sizes, f"its {name}", where)
    raise _no_rule_error(f"its {name}", values, where)


def _integer_at_sizes(values: Sequence[int], fitter: Fitter, sizes: Sizes, number_name: str, where: str) -> int:
    """Return an integer at some sizes, given its values at the points; UnsupportedError if they follow no rule."""
    rule = fitter.integer(values)
    if rule is None:
        raise _no_rule_error(number_name, values, where)
    return evaluate_at_sizes(rule, sizes)


def _no_rule_error(number_name: str, values: Sequence[object], where: str) -> UnsupportedError:
    """Build the UnsupportedError for a number that depends on the sizes by no rule."""
    return UnsupportedError(
        f"{number_name}: no rule gives this number from the sizes; got {', '.join(map(str, values))} at the sizes tried",
        where=where,
        hint="bind the sizes with --input-shape, or let them be multiples of a step: --bound NAME=8:64:8",
    )


# ---- Quantised means over a dynamic number of elements: their multiplier is computed when the network runs.

Nodes = Sequence[Node]
"""A node at several sizes."""


def add_mean_multipliers(graphs: Sequence[Graph]) -> tuple[Graph, ...]:
    """Add nodes that compute the multiplier of each mean whose number of elements differs between the graphs.

    ``graphs``: one network at several sizes, with the same nodes. The multiplier becomes an operand of the mean.
    """
    columns = [_with_multiplier_nodes(together) for together in zip(*(graph.nodes for graph in graphs), strict=True)]
    graphs_with_means = []
    for k, graph in enumerate(graphs):
        makers = [column[k][0] for column in columns if len(column[k]) > 1]
        types = {
            name: kind
            for node in makers
            for name, kind in zip(node.outputs, registry.infer(node.op, node.attrs, ()), strict=True)
        }
        nodes = (*makers, *(column[k][-1] for column in columns))
        graphs_with_means.append(
            replace(graph, nodes=nodes, types={**graph.types, **types}) if nodes != graph.nodes else graph
        )
    return tuple(graphs_with_means)


def _with_multiplier_nodes(nodes_at_sizes: Nodes) -> list[tuple[Node, ...]]:
    """Return a node at every size, behind the node that computes its multiplier if the multiplier depends on the size."""
    averages: list[Any] = [node.attrs.get("average") for node in nodes_at_sizes]
    if len(set(averages)) > 1:
        if nodes_at_sizes[0].op == "requantize_float":
            return [_float_mean_nodes(node, *average) for node, average in zip(nodes_at_sizes, averages, strict=True)]
        lowest = min(int(node.attr("shift")) for node in nodes_at_sizes)
        return [
            _integer_mean_nodes(node, lowest, *average) for node, average in zip(nodes_at_sizes, averages, strict=True)
        ]
    inside: dict[str, tuple[Graph, ...]] = {}
    for key, value in nodes_at_sizes[0].attrs.items():
        if isinstance(value, Graph):
            inside[key] = add_mean_multipliers([node.attrs[key] for node in nodes_at_sizes])  # type: ignore[misc]
    return [
        (replace(node, attrs={**node.attrs, **{key: graphs[k] for key, graphs in inside.items()}}),)
        for k, node in enumerate(nodes_at_sizes)
    ]


def _float_mean_nodes(node: Node, scale_in: float, scale_out: float, count: int) -> tuple[Node, Node]:
    """Return the nodes of a float mean: the scale, and the requantisation with the scale as operand."""
    name = f"{node.outputs[0]}.scale"
    maker = Node("mean_scale", (), (name,), {"scale_in": scale_in, "scale_out": scale_out, "count": count}, node.loc)
    return maker, _with_operands(node, (name,), {"scale": None})


def _integer_mean_nodes(node: Node, lowest: int, multiplier: int, shift: int, count: int) -> tuple[Node, Node]:
    """Return the nodes of an integer mean: multiplier and shift, and the requantisation with both as operands."""
    names = f"{node.outputs[0]}.multiplier", f"{node.outputs[0]}.shift"
    attrs: dict[str, Attr] = {"multiplier": multiplier, "shift": shift, "count": count}
    given = {"multiplier": None, "shift": None, "shift_range": (lowest, shift)}
    return Node("mean_multiplier", (), names, attrs, node.loc), _with_operands(node, names, given)


def _with_operands(node: Node, names: tuple[str, ...], attrs: dict[str, Any]) -> Node:
    """Replace attributes of a node by operands."""
    kept = {key: value for key, value in node.attrs.items() if key != "average"}
    return replace(node, inputs=(*node.inputs, *names), attrs={**kept, **attrs})


# ---- Families: the graphs at all points with the rules of their extents.
#
# The model is read, and all passes are run, at the largest sizes, at the smallest ones, and at the *points* between.
# Points differ from the static extents of the model, so that no dynamic extent equals a static one by accident.

_EXAMPLE = (
    "export the model with these sizes left open (the example's are fixed numbers in it), or bind them: --input-shape"
)
_DOMAIN = 512
"""Sizes at which a rule's divisions are tested."""
_MOST = 65
"""Sizes below this are tried to find one that a model can have."""
_QUESTIONS = 40
"""Most graphs that are read to distinguish rules."""


@frozen
class NetworkFamily:
    """A network at several sizes: ``graphs[k]`` at ``points[k]``, ``largest`` at the largest, ``small`` at some of the smallest.

    ``extents``: the shape of every value with a dynamic extent, as expressions of the sizes' scalars; ``fitter`` knows
    the points.
    """

    sizes: tuple[Size, ...]
    points: tuple[Point, ...]
    graphs: tuple[Graph, ...]
    largest: Graph
    small: tuple[tuple[Point, Graph], ...]
    extents: Mapping[str, tuple[ir.Expr, ...]]
    fitter: Fitter

    @property
    def maxima(self) -> dict[str, int]:
        """The largest sizes, by the name of their scalar."""
        return self.at(tuple(size.maximum for size in self.sizes))

    def at(self, point: Point) -> dict[str, int]:
        """Return the sizes ``point`` by the name of their scalar."""
        return {size.scalar.name: n for size, n in zip(self.sizes, point, strict=True)}


def read_family(sizes: Sequence[Size], read: Read) -> NetworkFamily:
    """Read the network at its points. Raises the errors of reading, and UsageError if the graphs differ in structure."""
    return _FamilyReader(GraphsAtSizes(tuple(sizes), read)).family()


class _FamilyReader:
    """Reads the graphs of a family and derives the rules of its extents."""

    def __init__(self, readings: GraphsAtSizes) -> None:
        self.readings, self.sizes = readings, readings.sizes

    def family(self) -> NetworkFamily:
        """Read the graphs at all points, derive and check the rules of extents, and return the family."""
        maxima = tuple(size.maximum for size in self.sizes)
        largest = self.largest(maxima)
        points = choose_points(self.readings, largest)
        graphs = [g for g in map(self.readings.graph_or_none, points) if g is not None]
        for point, graph in zip(points, graphs, strict=True):
            self.readings.agree(largest, maxima, graph, point)
        largest, *graphs = add_mean_multipliers((largest, *graphs))
        extents, fitter = self.rules(points, graphs)
        shapes = {name: rules for name, rules in extents.items() if any(not isinstance(e, ir.Const) for e in rules)}
        self.check(shapes, largest, maxima)
        sizes, starts = self.smallest(shapes, largest, maxima)
        small = tuple((at, instantiate_graph(graphs, largest, fitter, self.readings.scalars(at))) for at in starts)
        return NetworkFamily(sizes, points, tuple(graphs), largest, small, shapes, fitter)

    def largest(self, maxima: Point) -> Graph:
        """Read the network at its largest sizes; the error for impossible sizes names possible ones."""
        try:
            return self.readings.graph(maxima)
        except ModelError as error:
            small = (
                tuple(n if j == k else 1 for j in range(len(maxima)))
                for n in range(1, _MOST)
                for k in range(len(maxima))
            )
            candidates = (point for point in dict.fromkeys(small) if _is_allowed(point, self.sizes))
            possible = [point for point in candidates if self.readings.graph_or_none(point) is not None]
            if not possible:
                raise
            several = " or ".join(self.readings.sizes_text(point) for point in possible[-3:])
            what = f"the network cannot have sizes {self.readings.sizes_text(maxima)}, only {several}: {error.what}"
            raise ModelError(what, where=error.where, hint=_EXAMPLE) from error

    def rules(
        self, points: tuple[Point, ...], graphs: Sequence[Graph]
    ) -> tuple[dict[str, tuple[ir.Expr, ...]], Fitter]:
        """Derive the shape of every value as expressions, and a fitter over the extents that these consist of."""
        extents = [FittedExtent(size.scalar, tuple(p[k] for p in points)) for k, size in enumerate(self.sizes)]
        columns = {
            (name, axis): tuple(g.types[name].shape[axis] for g in graphs)
            for name, kind in graphs[0].types.items()
            for axis in range(len(kind.shape))
        }
        domain = self.domain()
        fitter = Fitter(extents, domain)
        for (name, axis), values in columns.items():  # strided extents first, which the others are made of
            if fitter.integer(values, terms=1) is None:
                rule = self.strided_rule(points, values, name, axis)
                if rule is not None:
                    extents.append(FittedExtent(rule, values))
                    fitter = Fitter(extents, domain)
        shapes: dict[str, tuple[ir.Expr, ...]] = {}
        for name, kind in graphs[0].types.items():
            rules = [fitter.integer(columns[name, axis]) for axis in range(len(kind.shape))]
            shapes[name] = tuple(rule for rule in rules if rule is not None)
            if None in rules:
                axis = rules.index(None)
                at = zip(points, columns[name, axis], strict=True)
                observed = ", ".join(f"{n} at {self.readings.sizes_text(p)}" for p, n in at)
                raise UsageError(
                    f"axis {axis} of {name}: no rule gives its extent from the sizes; got {observed}", hint=PARITY
                )
        return shapes, fitter

    def domain(self) -> list[dict[str, int]]:
        """Return sizes that a run may have: all for one symbol, a sample for several."""
        columns = [range(-(-s.minimum // s.step) * s.step, s.maximum + 1, s.step) for s in self.sizes]
        if prod(map(len, columns)) <= _DOMAIN:
            return [self.readings.scalars(point) for point in product(*columns)]
        draw = random.Random(0).choice
        return [self.readings.scalars(tuple(draw(column) for column in columns)) for _ in range(_DOMAIN)]

    def strided_rule(self, points: tuple[Point, ...], values: Sequence[int], name: str, axis: int) -> ir.Expr | None:
        """Derive a rule ``(a * size + b) // c`` of one symbol for an axis of a value; None if none fits. If several fit,
        further sizes are read to distinguish them."""
        for k, size in enumerate(self.sizes):
            pairs: dict[int, int] = {}
            if any(pairs.setdefault(p[k], v) != v for p, v in zip(points, values, strict=True)):
                continue
            for _ in range(_QUESTIONS):
                rules = strided_rules(size.scalar, pairs)
                if not rules:
                    break
                question = self.question(size, k, rules, pairs, points[0])
                if question is None:
                    return rules[0][0]
                graph = self.readings.graph_or_none(question)
                assert graph is not None
                pairs[question[k]] = graph.types[name].shape[axis]
        return None

    def question(
        self,
        size: Size,
        size_index: int,
        rules: Sequence[tuple[ir.Expr, tuple[int, int, int]]],
        pairs: Mapping[int, int],
        base: Point,
    ) -> Point | None:
        """Return a point at which the rules disagree and the model can be read; None if there is none.

        The point is ``base`` with another value of the symbol ``size_index``."""
        start = -(-size.minimum // size.step) * size.step
        for n in range(start, size.maximum + 1, size.step):
            if n not in pairs and len({(a * n + b) // c for _, (a, b, c) in rules}) > 1:
                point = (*base[:size_index], n, *base[size_index + 1 :])
                if self.readings.graph_or_none(point) is not None:
                    return point
        return None

    def check(self, extents: Mapping[str, tuple[ir.Expr, ...]], graph: Graph, point: Point) -> None:
        """Raise UsageError if the shape of a value in the graph at ``point`` differs from its rule."""
        for name, rules in extents.items():
            expected = tuple(evaluate_at_sizes(rule, self.readings.scalars(point)) for rule in rules)
            if graph.types[name].shape != expected:
                actual = graph.types[name].shape
                raise UsageError(
                    f"{name} has shape {actual} at {self.readings.sizes_text(point)}, but the rule that fits "
                    f"the other sizes gives {expected}",
                    hint=PARITY,
                )

    def smallest(
        self, extents: Mapping[str, tuple[ir.Expr, ...]], largest: Graph, maxima: Point
    ) -> tuple[tuple[Size, ...], tuple[Point, ...]]:
        """Return the sizes with the minima that the model has, and the points there and one and two steps further.

        Passes create other graphs if an axis has one element; so only inputs and outputs are compared with the rules.
        """
        sizes, ends = list(self.sizes), {*largest.inputs, *largest.outputs}
        for k, size in enumerate(sizes):
            first = -(-max(size.minimum, 1) // size.step) * size.step
            for n in range(first, size.maximum + 1, size.step):
                if self.readings.graph_or_none((*maxima[:k], n, *maxima[k + 1 :])) is not None:
                    sizes[k] = Size(size.name, size.label, n, size.maximum, size.step)
                    break
        small = []
        for extra in range(3):
            point = tuple(min(s.minimum + extra * s.step, s.maximum) for s in sizes)
            graph = self.readings.graph_or_none(point)
            if graph is None:
                raise UsageError(
                    f"the model cannot have sizes {self.readings.sizes_text(point)}",
                    hint="give larger minima: NAME=8:64",
                )
            self.check({name: r for name, r in extents.items() if name in ends}, graph, point)
            small.append(point)
        return tuple(sizes), tuple(small)


def _is_allowed(point: Point, sizes: Sequence[Size]) -> bool:
    """Test whether a point keeps within the maxima of the sizes and consists of multiples of their steps."""
    return all(n <= s.maximum and n % s.step == 0 for n, s in zip(point, sizes, strict=True))
