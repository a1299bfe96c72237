# SPDX-License-Identifier: Apache-2.0
"""Read a network at several sizes, and derive the graph for all sizes, whose extents and attributes depend on the sizes.

The graph is read at the largest sizes, at the smallest sizes, and at several points, which are combinations of sizes
(:func:`choose_points`). All of these graphs must have the same structure. :class:`SymbolicGraphDeriver` makes the graph for
all sizes: operators infer shapes from symbolic operands.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from math import prod
from typing import Any

from microc.base.immutable import frozen
from microc.errors import MicrocError, ModelError, UnsupportedError, UsageError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.module import Size
from microc.ops import registry
from microc.tir import ir
from microc.tir.analysis.size_forms import Point, express_integer
from microc.tir.extents import DependsOnSize, Extent, SizeDomain, as_expr
from microc.tir.symbolic import evaluate_shape

# ---- Reading: the graph at several sizes, each of which is read once, and the comparison of the graphs' structure.

Sizes = Mapping[str, int]
"""Value of every dynamic size, by its label."""
ReadGraphAtSizes = Callable[[Sizes], Graph]
"""Function that reads the graph at given sizes and runs all passes. It raises MicrocError if the model does not support
the sizes."""
STEP_HINT = "let the sizes be multiples of a step: --bound NAME=8:64:8"


class GraphsAtSizes:
    """The graphs of a network at several sizes. A graph is read when it is first needed, and only once."""

    def __init__(self, sizes: tuple[Size, ...], read: ReadGraphAtSizes) -> None:
        self.sizes, self._read = sizes, read
        self._known: dict[Point, Graph | None] = {}

    def read_graph(self, point: Point) -> Graph:
        """Read the graph at the sizes ``point``. Raises the errors of reading a model."""
        found = self._known[point] = self._read({s.label: n for s, n in zip(self.sizes, point, strict=True)})
        return found

    def read_graph_or_none(self, point: Point) -> Graph | None:
        """Return the graph at the sizes ``point``; None if the model does not support them."""
        if point not in self._known:
            try:
                return self.read_graph(point)
            except MicrocError:
                self._known[point] = None
        return self._known[point]

    def format_sizes(self, point: Point) -> str:
        """Format the sizes ``point`` with their labels, for messages."""
        return ", ".join(f"{size.label}={n}" for size, n in zip(self.sizes, point, strict=True))

    def sizes_by_scalar_name(self, point: Point) -> dict[str, int]:
        """Return the sizes ``point`` by the name of the scalar parameter of each size."""
        return {size.scalar.name: n for size, n in zip(self.sizes, point, strict=True)}

    def check_same_structure(self, first: Graph, first_point: Point, second: Graph, second_point: Point) -> None:
        """Raise UsageError if two graphs of the network differ in anything except extents and numbers in attributes.

        ``first_point``, ``second_point``: the sizes at which the graphs were read.
        """
        points_text = f"{self.format_sizes(first_point)} and {self.format_sizes(second_point)}"
        for a, b in zip(first.nodes, second.nodes, strict=False):
            if (a.op, a.inputs, a.outputs, a.group) != (b.op, b.inputs, b.outputs, b.group):
                raise _structure_error(
                    f"a node of the network differs between {points_text}: {_format_node(a)} and {_format_node(b)}",
                    a,
                )
            for name in (n for n in (*a.inputs, *a.outputs) if n):
                x, y = first.types[name], second.types[name]
                if (x.dtype, len(x.shape)) != (y.dtype, len(y.shape)):
                    raise _structure_error(f"{name}: its dtype or rank differs between {points_text}", a)
            for key, inner in a.attrs.items():
                if isinstance(inner, Graph):
                    self.check_same_structure(inner, first_point, b.attrs[key], second_point)  # type: ignore[arg-type]
        is_same = (
            all(_dtype_and_rank(first, n) == _dtype_and_rank(second, n) for n in (*first.inputs, *first.outputs))
            and first.inputs == second.inputs
            and first.outputs == second.outputs
            and len(first.nodes) == len(second.nodes)
            and {n: s.shape for n, s in first.state.items()} == {n: s.shape for n, s in second.state.items()}
            and first.updates == second.updates
        )
        if not is_same:
            raise _structure_error(
                f"the inputs, outputs, nodes or state of the network differ between {points_text}", None
            )


def _dtype_and_rank(graph: Graph, name: str) -> tuple[str, int] | None:
    """Return the dtype and the rank of the value ``name``; None if the graph has no such value."""
    kind = graph.types.get(name)
    return None if kind is None else (kind.dtype, len(kind.shape))


def _structure_error(difference: str, node: Node | None) -> UsageError:
    """Create the UsageError for a network whose structure differs between sizes. ``node``: where it differs, if
    known."""
    return UsageError(difference, where=str(node.loc) if node else "", hint=STEP_HINT)


def _format_node(node: Node) -> str:
    """Format a node as its operator and its inputs."""
    return f"{node.op}({', '.join(node.inputs)})"


# ---- Points: the combinations of sizes at which the graph is read. Their sizes are far apart and differ from static extents.

_SMALLEST_POINT_STEPS = 19
"""Smallest size of a point, in steps of the size. It exceeds the windows of common kernels. In a smaller image, a
window could reach two opposite borders at once."""
_SCALES = (1, 3, 8, 20)  # factors on the smallest size, which are tried in this order
_MIN_DYNAMIC_EXTENT = 5
"""Minimum of every dynamic extent at the points. Larger points are tried until all extents reach it, after all
strides."""
_POINT_DISTANCE_STEPS = 7
"""Distance between the sizes of points, in steps. It is odd, so that sizes have all remainders modulo strides of 2, 4,
8 ..."""
_POINTS_FOR_ONE_SIZE, _POINTS_FOR_SEVERAL_SIZES = 5, 8
"""Number of points for one dynamic size, and for several: two more than a typical rule has terms."""


def choose_points(graphs_at_sizes: GraphsAtSizes, largest: Graph) -> tuple[Point, ...]:
    """Choose the points (combinations of sizes) at which the graph is read. The model must support them.

    Larger and larger sizes are tried, until no dynamic extent is small in any layer.
    """
    static_extents = {extent for kind in largest.types.values() for extent in kind.shape}
    count = _POINTS_FOR_ONE_SIZE if len(graphs_at_sizes.sizes) == 1 else _POINTS_FOR_SEVERAL_SIZES

    def choose_points_at_scale(scale: int, limit: int) -> tuple[Point, ...]:
        return _choose_points_at_scale(graphs_at_sizes, static_extents, scale, count, limit)

    def is_large_enough(points: Sequence[Point]) -> bool:
        return len(points) > 1 and _find_smallest_dynamic_extent(graphs_at_sizes, points) >= _MIN_DYNAMIC_EXTENT

    # The first two points show most scales to be too small, so that no more graphs are read at these scales.
    scales = (scale for scale in _SCALES if is_large_enough(choose_points_at_scale(scale, 2)))
    large_enough = filter(is_large_enough, (choose_points_at_scale(scale, count) for scale in scales))
    largest_possible = filter(None, (choose_points_at_scale(scale, count) for scale in reversed(_SCALES)))
    points = next(chain(large_enough, largest_possible), ())
    if len(points) < 2:
        graphs_at_sizes.read_graph(
            tuple(_SMALLEST_POINT_STEPS * size.step for size in graphs_at_sizes.sizes)
        )  # raises the error with the reason, if there is one
        given = ", ".join(f"{size.label} = {size.minimum} to {size.maximum}" for size in graphs_at_sizes.sizes)
        raise UsageError(
            f"bounds: the model supports too few sizes to derive rules for its shapes; got bounds {given}",
            hint="give a larger bound",
        )
    maxima = tuple(size.maximum for size in graphs_at_sizes.sizes)
    if (
        maxima not in points
        and _find_smallest_dynamic_extent(graphs_at_sizes, (maxima, *points)) >= _MIN_DYNAMIC_EXTENT
    ):
        return (*points, maxima)
    return points


def _choose_points_at_scale(
    graphs_at_sizes: GraphsAtSizes, static_extents: set[int], scale: int, count: int, limit: int
) -> tuple[Point, ...]:
    """Choose ``count`` points whose sizes are ``scale`` times the smallest ones. Return the first ``limit`` of them; an empty
    tuple if too few are possible.

    At scale 1, points with small sizes are added if the model does not support enough large ones.
    """
    large = [
        _list_large_sizes(size, static_extents, count, _SMALLEST_POINT_STEPS * scale + 16 * k)
        for k, size in enumerate(graphs_at_sizes.sizes)
    ]  # far apart
    available = [large[k] + _list_allowed_sizes(size) for k, size in enumerate(graphs_at_sizes.sizes)]
    points: dict[Point, None] = {}
    for point in (*_shuffle_points(large), *_shuffle_points(available if scale == 1 else large)):
        if graphs_at_sizes.read_graph_or_none(point) is not None:
            points[point] = None
        if len(points) == limit:
            return tuple(points)
    return tuple(points) if scale == 1 else ()


def _find_smallest_dynamic_extent(graphs_at_sizes: GraphsAtSizes, points: Sequence[Point]) -> int:
    """Return the smallest of all extents that differ between the points."""
    kinds = [graph.types for graph in map(graphs_at_sizes.read_graph_or_none, points) if graph is not None]
    columns = (zip(*(k[name].shape for k in kinds), strict=False) for name in kinds[0] if all(name in k for k in kinds))
    return min(
        (min(column) for rows in columns for column in rows if len(set(column)) > 1), default=_MIN_DYNAMIC_EXTENT
    )


def _list_large_sizes(size: Size, static_extents: set[int], count: int, first_step: int) -> list[int]:
    """List at most 2 * ``count`` large values of a size, without the static extents of the model.

    ``first_step``: the smallest of these values, in steps of the size.
    """
    large = (
        size.step * k for k in range(first_step, first_step + 64 * _POINT_DISTANCE_STEPS * count, _POINT_DISTANCE_STEPS)
    )
    return [n for n in large if n not in static_extents][: 2 * count]


def _list_allowed_sizes(size: Size) -> list[int]:
    """List the values of a size within its bounds, the largest first, for models that support no larger values."""
    sizes = [n for n in range(size.maximum, max(size.minimum, 2) - 1, -1) if n % size.step == 0]
    return sizes[: 4 * _POINTS_FOR_SEVERAL_SIZES]


def _shuffle_points(values_of_each_size: Sequence[Sequence[int]]) -> Iterator[Point]:
    """Yield combinations of sizes, shuffled so that no size determines another.

    ``values_of_each_size``: the values to combine, for each dynamic size."""
    shuffle = random.Random(0).shuffle
    if len(values_of_each_size) == 1:
        yield from ((n,) for n in values_of_each_size[0])
        return
    for _ in range(4):
        orders = [list(column) for column in values_of_each_size]
        for order in orders:
            shuffle(order)
        yield from zip(*orders, strict=False)


# ---- The symbolic graph, whose extents and attributes are extents (:mod:`microc.tir.extents`), and the graph at other sizes.
#
# Nodes are visited in order. Operators infer the shapes of their results from symbolic operands. An attribute that differs
# between the points is expressed by an extent that is known before its node: limits of slices, targets of reshapes, numbers of
# elements and pads follow from the extents of operands (:func:`microc.tir.analysis.size_forms.express_integer`). No graph pass
# runs on symbolic graphs, because passes treat axes of one element differently.


class SymbolicGraphDeriver:
    """Derives the symbolic graph of a network, node by node.

    ``points``: the combinations of sizes at which the network was read. ``known``: extents that are known so far, by their
    values at the points."""

    def __init__(self, graphs_at_sizes: GraphsAtSizes, points: Sequence[Point], domain: SizeDomain) -> None:
        self.graphs_at_sizes, self.points = graphs_at_sizes, points
        self.sizes = [domain.extent_of(size.scalar) for size in graphs_at_sizes.sizes]
        self.known: dict[Point, Any] = {self._values_at_points(extent): extent for extent in self.sizes}

    def _values_at_points(self, number: Any) -> Point:
        """Return an integer at each point."""
        return tuple(evaluate_shape((number,), self.graphs_at_sizes.sizes_by_scalar_name(p))[0] for p in self.points)

    def derive_graph(self, graphs: Sequence[Graph], largest: Graph) -> Graph:
        """Derive the network with symbolic sizes.

        ``graphs``: the network at the points. ``largest``: the network at the largest sizes, whose constants are used. Raises
        UnsupportedError if a number follows no rule, or if an operator does not infer the shapes of the points."""
        types: dict[str, TensorType] = {}
        nodes = list(largest.nodes)

        def derive_types(names: Iterable[str]) -> None:
            """Derive the types of inputs, constants and other values that no node computes from operands."""
            for name in names:
                if name and name not in types:
                    columns = zip(*(graph.types[name].shape for graph in graphs), strict=True)
                    shape = tuple(map(self._derive_integer, columns))
                    if None in shape:
                        raise self._no_extent_error(name, shape.index(None), [g.types[name].shape for g in graphs])
                    types[name] = replace(largest.types[name], shape=shape)

        derive_types(largest.inputs)
        # Nodes without operands come last, because their attributes are numbers of elements of values that others compute.
        for k in sorted(range(len(nodes)), key=lambda k: not nodes[k].inputs):
            derive_types(nodes[k].inputs)
            operands = [types[name] for name in nodes[k].inputs if name]
            nodes[k] = node = self._derive_node(nodes[k], [graph.nodes[k] for graph in graphs], operands)
            for name, inferred in zip(node.outputs, infer_symbolic_types(node, types), strict=False):
                if name:
                    types[name] = replace(largest.types[name], shape=inferred.shape)
                    shapes = [graph.types[name].shape for graph in (*graphs, largest)]
                    self._add_extents(node, inferred.shape, shapes)
        derive_types(largest.types)
        return replace(largest, types=types, nodes=tuple(nodes))

    def _add_extents(self, node: Node, shape: Sequence[Any], shapes: Sequence[Sequence[int]]) -> None:
        """Add the extents of a result to the known ones. ``shapes``: by point, and at last at the largest sizes. Raise
        UnsupportedError if an extent is wrong.

        Points may be beyond the largest sizes. An extent that is the same number at all sizes up to these may differ there."""
        for extent, (*at_points, at_largest) in zip(shape, zip(*shapes, strict=True), strict=True):
            column = tuple(at_points)
            if self._values_at_points(extent) == column:
                if isinstance(extent, Extent):
                    self.known.setdefault(column, extent)
            elif extent == at_largest and not isinstance(extent, Extent):
                self.known.setdefault(column, extent)
            else:
                raise _unproved_error(
                    node, f"the operator infers {shape}, other sizes give {', '.join(map(str, shapes[:-1]))}"
                )

    def _derive_node(self, largest: Node, at_points: Sequence[Node], operands: Sequence[TensorType]) -> Node:
        """Derive the attributes of a node. ``at_points``: the node at the points. ``operands``: the types of its operands."""
        extents: list[Any] = [n for operand in operands for n in operand.shape if isinstance(n, Extent)]
        strides: Any = largest.attrs.get("strides", ())

        def derive(name: str, values: Sequence[Attr]) -> Any:
            first, where = values[0], str(largest.loc)
            if isinstance(first, Graph):
                inner: Any = largest.attrs[name]
                return self.derive_graph([v for v in values if isinstance(v, Graph)], inner)
            if all(v == first for v in values):
                return first
            if isinstance(first, tuple) and all(isinstance(v, tuple) and len(v) == len(first) for v in values):
                columns = zip(*(v for v in values if isinstance(v, tuple)), strict=True)
                return tuple(derive(name, column) for column in columns)
            if all(type(v) is int for v in values):
                steps = strides if name == "padding" and isinstance(strides, tuple) else ()
                number = self._derive_integer([v for v in values if isinstance(v, int)], extents, steps)
                if number is not None:
                    return number
            raise _no_rule_error(f"its {name}", values, where)

        return replace(
            largest, attrs={name: derive(name, [node.attrs[name] for node in at_points]) for name in largest.attrs}
        )

    def _derive_integer(self, values: Sequence[int], near: Sequence[Any] = (), strides: Sequence[int] = ()) -> Any:
        """Return the integer that has these values at the points; None if no known extent expresses it.

        ``near``: extents that are tried first. ``strides``: strides of a window, if the integer is its padding."""
        column = tuple(values)
        if len(set(column)) == 1:
            return column[0]
        if column in self.known:
            return self.known[column]
        tried_first = {self._values_at_points(extent): extent for extent in (*near, *self.sizes)}
        return express_integer(column, tried_first, self.known, strides)

    def _no_extent_error(self, name: str, axis: int, shapes: Sequence[Sequence[int]]) -> UsageError:
        """Create the UsageError for an axis of an input or a constant. ``shapes``: by point."""
        at = zip(shapes, map(self.graphs_at_sizes.format_sizes, self.points), strict=True)
        observed = ", ".join(f"{shape[axis]} at {sizes}" for shape, sizes in at)
        return UsageError(
            f"axis {axis} of {name}: no rule derives its extent from the sizes; got {observed}", hint=STEP_HINT
        )


def infer_symbolic_types(node: Node, types: Mapping[str, TensorType]) -> tuple[TensorType, ...]:
    """Infer the types of the results of a node with symbolic attributes from symbolic types of its operands.

    Extents are equal only if they are equal at all sizes. So this also proves that attributes fit the operands: that a reshape
    keeps the number of elements, and a slice is inside of its operand. Raise UnsupportedError if they do not."""
    definition = registry.get(node.op)
    try:
        return tuple(
            definition.infer({**definition.defaults, **node.attrs}, [types[name] for name in node.inputs if name])
        )
    except (DependsOnSize, ModelError) as error:
        raise _unproved_error(node, str(error)) from error


def _unproved_error(node: Node, reason: str) -> UnsupportedError:
    """Create the UnsupportedError for a node whose results' shapes are not proved for all sizes."""
    return UnsupportedError(
        f"{node.op}: its shapes are not those of a rule at all sizes: {reason}", where=str(node.loc), hint=STEP_HINT
    )


def instantiate_graph(symbolic: Graph, sizes: Sizes) -> Graph:
    """Return the symbolic graph at sizes, by the name of their variables. Of each constant the first elements are kept."""
    types = {name: replace(kind, shape=evaluate_shape(kind.shape, sizes)) for name, kind in symbolic.types.items()}
    nodes = tuple(
        replace(node, attrs={key: evaluate_attribute(value, sizes) for key, value in node.attrs.items()})
        for node in symbolic.nodes
    )
    consts = {name: array[tuple(map(slice, types[name].shape))] for name, array in symbolic.consts.items()}
    return replace(symbolic, types=types, nodes=nodes, consts=consts)


def evaluate_attribute(value: Attr, sizes: Sizes) -> Any:
    """Return an attribute of a symbolic graph at sizes, by the name of their variables."""
    if isinstance(value, Graph):
        return instantiate_graph(value, sizes)
    if isinstance(value, tuple):
        return tuple(evaluate_attribute(part, sizes) for part in value)
    return evaluate_shape((value,), sizes)[0] if isinstance(value, Extent) else value


def _no_rule_error(number_name: str, values: Sequence[object], where: str) -> UnsupportedError:
    """Create the UnsupportedError for a number whose dependence on the sizes follows no rule."""
    return UnsupportedError(
        f"{number_name}: no rule derives this number from the sizes; got {', '.join(map(str, values))}",
        where=where,
        hint="fix the sizes with --input-shape, or let them be multiples of a step: --bound NAME=8:64:8",
    )


# ---- Quantised means over a dynamic number of elements. Their requantisation multiplier is computed while the network runs.

Nodes = Sequence[Node]
"""Versions of one node, one for each size at which the graph was read."""


def add_mean_multipliers(graphs: Sequence[Graph]) -> tuple[Graph, ...]:
    """Add nodes that compute the multiplier of each mean whose number of elements differs between the graphs.

    ``graphs``: the network at several sizes, with the same nodes. The multiplier becomes an operand of the mean.
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
    """Return the nodes that replace a node, for each size. If the multiplier of the node depends on the sizes, a node
    that computes the multiplier comes first."""
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
    """Create the two nodes that replace a mean with float scale: the first computes the scale from the number of
    elements, the second requantises with this scale as an operand."""
    name = f"{node.outputs[0]}.scale"
    maker = Node("mean_scale", (), (name,), {"scale_in": scale_in, "scale_out": scale_out, "count": count}, node.loc)
    return maker, _with_operands(node, (name,), {"scale": None})


def _integer_mean_nodes(node: Node, lowest: int, multiplier: int, shift: int, count: int) -> tuple[Node, Node]:
    """Create the two nodes that replace an integer mean: the first computes multiplier and shift from the number of
    elements, the second requantises with both as operands. ``lowest``: the smallest shift at any size."""
    names = f"{node.outputs[0]}.multiplier", f"{node.outputs[0]}.shift"
    attrs: dict[str, Attr] = {"multiplier": multiplier, "shift": shift, "count": count}
    given = {"multiplier": None, "shift": None, "shift_range": (lowest, shift)}
    return Node("mean_multiplier", (), names, attrs, node.loc), _with_operands(node, names, given)


def _with_operands(node: Node, names: tuple[str, ...], attrs: dict[str, Any]) -> Node:
    """Return a node with additional operands and changed attributes. The attribute ``average`` is removed."""
    kept = {key: value for key, value in node.attrs.items() if key != "average"}
    return replace(node, inputs=(*node.inputs, *names), attrs={**kept, **attrs})


# ---- Families: the graphs of a network at all points, with the rules of their extents.
#
# The model is read, and all passes are run, at the largest sizes, at the smallest sizes, and at the points. The sizes of points
# differ from the static extents of the model, so that no dynamic extent equals a static extent by coincidence.

_FIXED_SIZES_HINT = (
    "export the model with these dimensions symbolic (some are fixed numbers in it), or fix them with --input-shape"
)
_MAX_LISTED_COMBINATIONS = 512
"""Maximum number of combinations of sizes that are listed, besides random ones."""
_RANDOM_COMBINATIONS = 512
"""Number of random combinations of sizes that can refute a fact, if the combinations are too many to list all."""
_TRIED_SIZES_END = 65
"""Exclusive upper bound on the sizes that are tried to find sizes that a model supports."""


@frozen
class NetworkFamily:
    """A network at several sizes.

    ``graphs``: the network at several points. ``largest``: the network at the largest sizes. ``symbolic``: the network
    whose extents are extents of ``domain``. ``small``: a few of the smallest combinations of sizes. ``extents``: the shape
    of every value that has a dynamic extent, as expressions of the sizes' scalar parameters.
    """

    sizes: tuple[Size, ...]
    graphs: tuple[Graph, ...]
    largest: Graph
    symbolic: Graph
    domain: SizeDomain
    small: tuple[Sizes, ...]
    extents: Mapping[str, tuple[ir.Expr, ...]]

    @property
    def maxima(self) -> dict[str, int]:
        """The largest sizes, by the name of their scalar parameter."""
        return {size.scalar.name: size.maximum for size in self.sizes}


def make_size_domain(sizes: Sequence[Size], small: Sequence[Sizes]) -> SizeDomain:
    """Create the domain of the extents of a network. ``small``: the smallest combinations of sizes."""
    allowed, ranges = list_allowed_sizes(sizes), {size.scalar.name: _values_of(size) for size in sizes}
    listed = prod(map(len, ranges.values())) <= _MAX_LISTED_COMBINATIONS
    return SizeDomain((*small, *allowed), list_large_sizes(sizes), None if listed else ranges)


def _values_of(size: Size) -> range:
    """Return the values that a size may have in a run."""
    return range(-(-size.minimum // size.step) * size.step, size.maximum + 1, size.step)


def list_allowed_sizes(sizes: Sequence[Size]) -> list[dict[str, int]]:
    """List combinations of sizes that a run may have, by scalar parameter: all, or, if there are too many, random ones and those
    of small, spaced and largest values of each size.

    Random combinations show remainders that the others hide: spaced values may all leave the same."""
    ranges = [_values_of(size) for size in sizes]
    points = [*product(*ranges)] if prod(map(len, ranges)) <= _MAX_LISTED_COMBINATIONS else _sample_combinations(ranges)
    return [{s.scalar.name: n for s, n in zip(sizes, point, strict=True)} for point in points]


def _sample_combinations(ranges: Sequence[range]) -> list[Point]:
    """Return random combinations of values, and those of small, spaced and largest values."""
    limit = int(_MAX_LISTED_COMBINATIONS ** (1 / len(ranges)) + 1e-9)
    half = limit // 2
    columns: list[Sequence[int]] = []
    for values in ranges:
        spaced = (values[half + (len(values) - 1 - half) * k // (limit - half)] for k in range(1, limit - half + 1))
        columns.append(values if len(values) <= limit else [*values[:half], *spaced])
    choose = random.Random(0).choice
    return [tuple(map(choose, ranges)) for _ in range(_RANDOM_COMBINATIONS)] + [*product(*columns)]


def list_large_sizes(sizes: Sequence[Size]) -> list[dict[str, int]]:
    """List combinations of sizes that are larger than most other numbers of networks, each size once larger and once smaller
    than the others."""
    orders = (range(len(sizes)), reversed(range(len(sizes))))
    return [{s.scalar.name: (997 + 16 * k) * s.step for s, k in zip(sizes, order, strict=True)} for order in orders]


def read_family(sizes: Sequence[Size], read: ReadGraphAtSizes) -> NetworkFamily:
    """Read the network at several sizes, and derive the rules of its extents.

    Raises the errors of reading, and UsageError if the structure of the network differs between sizes.
    """
    return _FamilyReader(GraphsAtSizes(tuple(sizes), read)).read_family()


class _FamilyReader:
    """Reads the graphs of a network family and derives the rules of its extents."""

    def __init__(self, graphs_at_sizes: GraphsAtSizes) -> None:
        self.graphs_at_sizes, self.sizes = graphs_at_sizes, graphs_at_sizes.sizes

    def read_family(self) -> NetworkFamily:
        """Read the graphs at all points, derive and check the rules of extents, and return the family."""
        maxima = tuple(size.maximum for size in self.sizes)
        largest = self.read_largest(maxima)
        points = choose_points(self.graphs_at_sizes, largest)
        graphs = [g for g in map(self.graphs_at_sizes.read_graph_or_none, points) if g is not None]
        for point, graph in zip(points, graphs, strict=True):
            self.graphs_at_sizes.check_same_structure(largest, maxima, graph, point)
        largest, *graphs = add_mean_multipliers((largest, *graphs))
        sizes, starts = self.find_smallest_points(maxima)
        small = tuple(map(self.graphs_at_sizes.sizes_by_scalar_name, starts))
        domain = make_size_domain(sizes, small)
        symbolic = SymbolicGraphDeriver(self.graphs_at_sizes, points, domain).derive_graph(graphs, largest)
        self.check_shapes(symbolic, symbolic.types, largest, maxima)
        self.check_attributes(symbolic, largest, maxima)
        ends = {*largest.inputs, *largest.outputs}  # passes may create other values if an axis has only one element
        for point in starts:
            smallest = self.graphs_at_sizes.read_graph_or_none(point)
            assert smallest is not None
            self.check_shapes(symbolic, ends, smallest, point)
        extents = {
            name: tuple(map(as_expr, kind.shape))
            for name, kind in symbolic.types.items()
            if any(isinstance(extent, Extent) for extent in kind.shape)
        }
        return NetworkFamily(sizes, tuple(graphs), largest, symbolic, domain, small, extents)

    def read_largest(self, maxima: Point) -> Graph:
        """Read the network at its largest sizes ``maxima``.

        If the model does not support these sizes, the ModelError lists sizes that it supports, as far as they are found by
        varying one size.
        """
        try:
            return self.graphs_at_sizes.read_graph(maxima)
        except ModelError as error:
            small = (
                tuple(n if j == k else 1 for j in range(len(maxima)))
                for n in range(1, _TRIED_SIZES_END)
                for k in range(len(maxima))
            )
            candidates = (point for point in dict.fromkeys(small) if _is_allowed(point, self.sizes))
            possible = [point for point in candidates if self.graphs_at_sizes.read_graph_or_none(point) is not None]
            if not possible and error.hint:
                raise
            several = " or ".join(self.graphs_at_sizes.format_sizes(point) for point in possible[-3:])
            sizes = self.graphs_at_sizes.format_sizes(maxima) + (f", only {several}" if possible else "")
            what = f"the model does not support {sizes}: {error.what}"
            raise ModelError(what, where=error.where, hint=_FIXED_SIZES_HINT) from error

    def check_shapes(self, symbolic: Graph, names: Iterable[str], graph: Graph, point: Point) -> None:
        """Raise UsageError if the symbolic shape of one of the values ``names`` is not that of the graph at ``point``."""
        sizes = self.graphs_at_sizes.sizes_by_scalar_name(point)
        for name in names:
            actual, expected = graph.types[name].shape, evaluate_shape(symbolic.types[name].shape, sizes)
            if actual != expected:
                raise UsageError(
                    f"{name}: its shape at {self.graphs_at_sizes.format_sizes(point)} violates the rule of the other sizes; "
                    f"got {actual}, expected {expected}",
                    hint=STEP_HINT,
                )

    def check_attributes(self, symbolic: Graph, graph: Graph, point: Point) -> None:
        """Raise UsageError if an attribute in the graph at ``point`` differs from the attribute by its rule."""
        sizes = self.graphs_at_sizes.sizes_by_scalar_name(point)
        for general, node in zip(symbolic.nodes, graph.nodes, strict=True):
            for name, value in node.attrs.items():
                rule = general.attrs[name]
                if isinstance(value, Graph) and isinstance(rule, Graph):
                    self.check_attributes(rule, value, point)
                elif value != (rule := evaluate_attribute(rule, sizes)):
                    raise UsageError(
                        f"{node.op}: its {name} at {self.graphs_at_sizes.format_sizes(point)} violates the rule of the other "
                        f"sizes; got {value}, expected {rule}",
                        where=str(node.loc),
                        hint=STEP_HINT,
                    )

    def find_smallest_points(self, maxima: Point) -> tuple[tuple[Size, ...], tuple[Point, ...]]:
        """Find the smallest sizes that the model supports. Return the sizes with these minima, and three points: the
        minima, one step above them, and two steps above them."""
        sizes = list(self.sizes)
        for k, size in enumerate(sizes):
            first = -(-max(size.minimum, 1) // size.step) * size.step
            for n in range(first, size.maximum + 1, size.step):
                if self.graphs_at_sizes.read_graph_or_none((*maxima[:k], n, *maxima[k + 1 :])) is not None:
                    sizes[k] = Size(size.name, size.label, n, size.maximum, size.step)
                    break
        small = [tuple(min(s.minimum + extra * s.step, s.maximum) for s in sizes) for extra in range(3)]
        for point in small:
            try:
                self.graphs_at_sizes.read_graph(point)
            except MicrocError as error:
                raise UsageError(
                    f"the model does not support {self.graphs_at_sizes.format_sizes(point)}: {error.what}",
                    where=error.where,
                    hint="give larger minima, for example --bound NAME=8:64",
                ) from error
        return tuple(sizes), tuple(small)


def _is_allowed(point: Point, sizes: Sequence[Size]) -> bool:
    """Test whether the sizes ``point`` do not exceed their maxima and are multiples of their steps."""
    return all(n <= s.maximum and n % s.step == 0 for n, s in zip(point, sizes, strict=True))
