"""One network at several sizes."""

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
from microc.tir.analysis.size_forms import Extent, Fitter, Point, strided, value_at

# ---- One network read at several sizes, each once, and whether its graphs are alike but for their shapes.

Sizes = Mapping[str, int]
"""A size for every symbol, by its label."""
Read = Callable[[Sizes], Graph]
"""The graph, all passes run, at some sizes; raises MicrocError where the model cannot have them."""
PARITY = "let sizes be multiples of a step: --bound NAME=8:64:8"


class Readings:
    """The graphs of a network by its sizes, as far as anybody asked for them."""

    def __init__(self, sizes: tuple[Size, ...], read: Read) -> None:
        self.sizes, self._read = sizes, read
        self._known: dict[Point, Graph | None] = {}

    def graph(self, point: Point) -> Graph:
        """The graph at some sizes; raises what reading raises."""
        found = self._known[point] = self._read({s.label: n for s, n in zip(self.sizes, point, strict=True)})
        return found

    def asked(self, point: Point) -> Graph | None:
        """The graph at some sizes, None where the model cannot have them."""
        if point not in self._known:
            try:
                return self.graph(point)
            except MicrocError:
                self._known[point] = None
        return self._known[point]

    def spelled(self, point: Point) -> str:
        """Sizes as a user writes them."""
        return ", ".join(f"{size.label}={n}" for size, n in zip(self.sizes, point, strict=True))

    def scalars(self, point: Point) -> dict[str, int]:
        """Sizes by scalar."""
        return {size.scalar.name: n for size, n in zip(self.sizes, point, strict=True)}

    def agree(self, first: Graph, at: Point, other: Graph, there: Point) -> None:
        """UsageError at the first thing in which the graphs differ but for numbers."""
        between = f"{self.spelled(at)} and {self.spelled(there)}"
        for a, b in zip(first.nodes, other.nodes, strict=False):
            if (a.op, a.inputs, a.outputs, a.group) != (b.op, b.inputs, b.outputs, b.group):
                raise _differs(f"the network differs between {between} here: {_node(a)} or {_node(b)}", a)
            for name in (n for n in (*a.inputs, *a.outputs) if n):
                x, y = first.types[name], other.types[name]
                if (x.dtype, len(x.shape)) != (y.dtype, len(y.shape)):
                    raise _differs(f"{name} has another dtype or rank at {between}", a)
            for key, inner in a.attrs.items():
                if isinstance(inner, Graph):
                    self.agree(inner, at, b.attrs[key], there)  # type: ignore[arg-type]
        same = (
            all(_kind(first, n) == _kind(other, n) for n in (*first.inputs, *first.outputs))
            and first.inputs == other.inputs
            and first.outputs == other.outputs
            and len(first.nodes) == len(other.nodes)
            and {n: s.shape for n, s in first.state.items()} == {n: s.shape for n, s in other.state.items()}
            and first.updates == other.updates
        )
        if not same:
            raise _differs(f"the network has other inputs, outputs, nodes or state at {between}", None)


def _kind(graph: Graph, name: str) -> tuple[str, int] | None:
    """Dtype and rank of a value, if there is one of this name."""
    kind = graph.types.get(name)
    return None if kind is None else (kind.dtype, len(kind.shape))


def _differs(what: str, node: Node | None) -> UsageError:
    return UsageError(what, where=str(node.loc) if node else "", hint=PARITY)


def _node(node: Node) -> str:
    return f"{node.op}({', '.join(node.inputs)})"


# ---- Sizes at which a network with open sizes is looked at: far apart, and nothing that it has by itself.

_FIRST = 19
"""The first size of a point, in steps: beyond the windows of usual kernels, whose borders would meet."""
_SCALES = (1, 3, 8, 20)
_NARROW = 5
"""Larger points are tried until every extent that varies has as many elements, behind all strides."""
_APART = 7
"""Steps between points: windows that skip by 2, 4, 8 ... see all remainders, and several results."""
_POINTS, _MANY = 5, 8
"""Points for one symbol, and for several: two more than the terms of a usual rule."""


def chosen_points(readings: Readings, largest: Graph) -> tuple[Point, ...]:
    """Sizes to look at, all of which the model can have. They grow until no extent that varies is small in any layer."""
    taken = {extent for kind in largest.types.values() for extent in kind.shape}
    found: tuple[Point, ...] = ()
    for scale in _SCALES:
        found = _scaled(readings, taken, scale) or found
        if found and _narrowest(readings, found) >= _NARROW:
            break
    if len(found) < 2:
        readings.graph(tuple(_FIRST * size.step for size in readings.sizes))  # which says why
        raise UsageError("too few sizes between the smallest and the largest", hint="give a larger bound")
    maxima = tuple(size.maximum for size in readings.sizes)
    if maxima not in found and _narrowest(readings, (maxima, *found)) >= _NARROW:
        return (*found, maxima)
    return found


def _scaled(readings: Readings, taken: set[int], scale: int) -> tuple[Point, ...]:
    """Points of larger and larger sizes; of small ones, where the model cannot have others."""
    wanted = _POINTS if len(readings.sizes) == 1 else _MANY
    usual = [_usual(size, taken, wanted, _FIRST * scale + 16 * k) for k, size in enumerate(readings.sizes)]  # far apart
    rare = [usual[k] + _small(size) for k, size in enumerate(readings.sizes)]
    found: dict[Point, None] = {}
    for point in (*_spread(usual), *_spread(rare if scale == 1 else usual)):
        if readings.asked(point) is not None:
            found[point] = None
        if len(found) == wanted:
            return tuple(found)
    return tuple(found) if scale == 1 else ()


def _narrowest(readings: Readings, points: Sequence[Point]) -> int:
    """The smallest extent that differs between the points."""
    kinds = [graph.types for graph in map(readings.asked, points) if graph is not None]
    columns = (zip(*(k[name].shape for k in kinds), strict=False) for name in kinds[0] if all(name in k for k in kinds))
    return min((min(column) for rows in columns for column in rows if len(set(column)) > 1), default=_NARROW)


def _usual(size: Size, taken: set[int], wanted: int, first: int) -> list[int]:
    """Sizes of one symbol to look at: large ones that the model does not use, those within the bound at first."""
    large = (size.step * k for k in range(first, first + 64 * _APART * wanted, _APART))
    return [n for n in large if n not in taken][: 2 * wanted]


def _small(size: Size) -> list[int]:
    """Other sizes of one symbol, where the model cannot have usual ones."""
    found = [n for n in range(size.maximum, max(size.minimum, 2) - 1, -1) if n % size.step == 0]
    return found[: 4 * _MANY]


def _spread(columns: Sequence[Sequence[int]]) -> Iterator[Point]:
    """Combinations of sizes in which no symbol follows from another: the columns in shuffled orders, again and again."""
    shuffle = random.Random(0).shuffle
    if len(columns) == 1:
        yield from ((n,) for n in columns[0])
        return
    for _ in range(4):
        orders = [list(column) for column in columns]
        for order in orders:
            shuffle(order)
        yield from zip(*orders, strict=False)


# ---- A network at sizes that nobody compiled it for: the graphs of other sizes with the rules of their numbers
# applied.
#
# No pass runs, so that an axis of one element is treated as any other; what is generalised is compared with this.


def instance(graphs: Sequence[Graph], largest: Graph, fitter: Fitter, sizes: Sizes) -> Graph:
    """The network at some sizes, from those at the fitter's points and the largest, which holds the constants.

    UnsupportedError names a node with a number that follows no rule.
    """
    types = {
        name: _type(kind, [g.types[name] for g in graphs], fitter, sizes, name) for name, kind in largest.types.items()
    }
    nodes = tuple(
        _instance_node(node, together, fitter, sizes)
        for node, together in zip(largest.nodes, zip(*(g.nodes for g in graphs), strict=True), strict=True)
    )
    return replace(
        largest,
        types=types,
        nodes=nodes,
        consts={name: _part(array, types[name].shape) for name, array in largest.consts.items()},
    )


def _part(array: Array, shape: tuple[int, ...]) -> Array:
    """The leading part of a constant."""
    return array[tuple(slice(n) for n in shape)] if array.shape != shape else array


def _type(kind: TensorType, together: Sequence[TensorType], fitter: Fitter, sizes: Sizes, where: str) -> TensorType:
    columns = zip(*(t.shape for t in together), strict=True)
    return replace(
        kind, shape=tuple(_integer(column, fitter, sizes, f"an axis of {where}", where) for column in columns)
    )


def _instance_node(node: Node, together: Sequence[Node], fitter: Fitter, sizes: Sizes) -> Node:
    attrs = {
        key: _attribute(key, [n.attrs[key] for n in together], fitter, sizes, str(node.loc), value)
        for key, value in node.attrs.items()
    }
    return replace(node, attrs=attrs)


def _attribute(name: str, values: Sequence[Attr], fitter: Fitter, sizes: Sizes, where: str, largest: Attr) -> Any:
    first = values[0]
    if isinstance(first, Graph) and isinstance(largest, Graph):
        return instance([v for v in values if isinstance(v, Graph)], largest, fitter, sizes)
    if all(v == first for v in values):
        return first
    if isinstance(first, tuple) and all(isinstance(v, tuple) and len(v) == len(first) for v in values):
        columns = zip(*(v for v in values if isinstance(v, tuple)), strict=True)
        return tuple(_attribute(name, column, fitter, sizes, where, None) for column in columns)
    if all(type(v) is int for v in values):
        return _integer([v for v in values if isinstance(v, int)], fitter, sizes, f"its {name}", where)
    raise _unruled(f"its {name}", values, where)


def _integer(values: Sequence[int], fitter: Fitter, sizes: Sizes, what: str, where: str) -> int:
    rule = fitter.integer(values)
    if rule is None:
        raise _unruled(what, values, where)
    return value_at(rule, sizes)


def _unruled(what: str, values: Sequence[object], where: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what} depends on the sizes by no rule: {', '.join(map(str, values))}",
        where=where,
        hint="bind its sizes with --input-shape, or let them be multiples of a step: --bound NAME=8:64:8",
    )


# ---- Quantised means over as many elements as the sizes of a run say: what they are multiplied by is made when the
# network runs.

Nodes = Sequence[Node]
"""The same node at several sizes."""


def with_open_averages(graphs: Sequence[Graph]) -> tuple[Graph, ...]:
    """One network at several sizes, its graphs alike node by node: where the count of a mean differs, a node of its own makes
    the multiplier, which is an operand then."""
    columns = [_opened(together) for together in zip(*(graph.nodes for graph in graphs), strict=True)]
    made = []
    for k, graph in enumerate(graphs):
        first = [column[k][0] for column in columns if len(column[k]) > 1]
        types = {name: kind for node in first for name, kind in _made(node)}
        nodes = (*first, *(column[k][-1] for column in columns))
        made.append(replace(graph, nodes=nodes, types={**graph.types, **types}) if nodes != graph.nodes else graph)
    return tuple(made)


def _opened(together: Nodes) -> list[tuple[Node, ...]]:
    """A node at every size, behind what makes its multiplier if that differs."""
    averages: list[Any] = [node.attrs.get("average") for node in together]
    if len(set(averages)) > 1:
        if together[0].op == "requantize_float":
            return [_averages_scaled(node, *average) for node, average in zip(together, averages, strict=True)]
        lowest = min(int(node.attr("shift")) for node in together)
        return [_multiplied(node, lowest, *average) for node, average in zip(together, averages, strict=True)]
    inside: dict[str, tuple[Graph, ...]] = {}
    for key, value in together[0].attrs.items():
        if isinstance(value, Graph):
            inside[key] = with_open_averages([node.attrs[key] for node in together])  # type: ignore[misc]
    return [
        (replace(node, attrs={**node.attrs, **{key: graphs[k] for key, graphs in inside.items()}}),)
        for k, node in enumerate(together)
    ]


def _averages_scaled(node: Node, scale_in: float, scale_out: float, count: int) -> tuple[Node, Node]:
    name = f"{node.outputs[0]}.scale"
    maker = Node("mean_scale", (), (name,), {"scale_in": scale_in, "scale_out": scale_out, "count": count}, node.loc)
    return maker, _given(node, (name,), {"scale": None})


def _multiplied(node: Node, lowest: int, multiplier: int, shift: int, count: int) -> tuple[Node, Node]:
    names = f"{node.outputs[0]}.multiplier", f"{node.outputs[0]}.shift"
    attrs: dict[str, Attr] = {"multiplier": multiplier, "shift": shift, "count": count}
    given = {"multiplier": None, "shift": None, "shift_range": (lowest, shift)}
    return Node("mean_multiplier", (), names, attrs, node.loc), _given(node, names, given)


def _given(node: Node, names: tuple[str, ...], attrs: dict[str, Any]) -> Node:
    kept = {key: value for key, value in node.attrs.items() if key != "average"}
    return replace(node, inputs=(*node.inputs, *names), attrs={**kept, **attrs})


def _made(node: Node) -> list[tuple[str, TensorType]]:
    return list(zip(node.outputs, registry.infer(node.op, node.attrs, ()), strict=True))


# ---- One network at several sizes: graphs that are alike but for their shapes, and the rules that their extents
# follow.
#
# The model is read, and all passes are run, at the largest sizes, at the smallest ones, and at some *points* between: numbers
# that are no extents of the model already, so that nothing is alike by accident. The graphs must agree node by node.

_EXAMPLE = "sizes of the example that it was exported with stand in it as numbers: export it with these left open, or bind them"
_DOMAIN = 512
"""Sizes of a run at which divisions are tried."""
_MOST = 65
"""Sizes below this are tried to find one that a model can have."""
_QUESTIONS = 40
"""Graphs that may be asked for to tell rules apart."""


@frozen
class Family:
    """``graphs[k]`` is the network at ``points[k]``, ``largest`` at the largest sizes, ``small`` at some of the smallest.

    ``extents``: the shape of every value that depends on sizes, as expressions over their scalars; ``fitter`` knows the points.
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
        """The largest sizes by scalar."""
        return self.at(tuple(size.maximum for size in self.sizes))

    def at(self, point: Point) -> dict[str, int]:
        """Sizes by scalar."""
        return {size.scalar.name: n for size, n in zip(self.sizes, point, strict=True)}


def read_family(sizes: Sequence[Size], read: Read) -> Family:
    """The network at the ends of its sizes and between. Raises what reading raises, and UsageError where the graphs differ."""
    return _Reader(Readings(tuple(sizes), read)).family()


class _Reader:
    def __init__(self, readings: Readings) -> None:
        self.readings, self.sizes = readings, readings.sizes

    def family(self) -> Family:
        maxima = tuple(size.maximum for size in self.sizes)
        largest = self.largest(maxima)
        points = chosen_points(self.readings, largest)
        graphs = [g for g in map(self.readings.asked, points) if g is not None]
        for point, graph in zip(points, graphs, strict=True):
            self.readings.agree(largest, maxima, graph, point)
        largest, *graphs = with_open_averages((largest, *graphs))
        extents, fitter = self.rules(points, graphs)
        shapes = {name: rules for name, rules in extents.items() if any(not isinstance(e, ir.Const) for e in rules)}
        self.check(shapes, largest, maxima)
        sizes, starts = self.smallest(shapes, largest, maxima)
        small = tuple((at, instance(graphs, largest, fitter, self.readings.scalars(at))) for at in starts)
        return Family(sizes, points, tuple(graphs), largest, small, shapes, fitter)

    def largest(self, maxima: Point) -> Graph:
        """The network at its largest sizes. Where it cannot have these, the error says which others it can have."""
        try:
            return self.readings.graph(maxima)
        except ModelError as error:
            small = (
                tuple(n if j == k else 1 for j in range(len(maxima)))
                for n in range(1, _MOST)
                for k in range(len(maxima))
            )
            tried = (point for point in dict.fromkeys(small) if _within(point, self.sizes))
            possible = [point for point in tried if self.readings.asked(point) is not None]
            if not possible:
                raise
            several = " or ".join(self.readings.spelled(point) for point in possible[-3:])
            what = f"the network cannot have sizes {self.readings.spelled(maxima)}, but {several}: {error.what}"
            raise ModelError(what, where=error.where, hint=_EXAMPLE) from error

    def rules(
        self, points: tuple[Point, ...], graphs: Sequence[Graph]
    ) -> tuple[dict[str, tuple[ir.Expr, ...]], Fitter]:
        """The shape of every value as expressions, and a fitter over the extents that they are made of."""
        extents = [Extent(size.scalar, tuple(p[k] for p in points)) for k, size in enumerate(self.sizes)]
        columns = {
            (name, axis): tuple(g.types[name].shape[axis] for g in graphs)
            for name, kind in graphs[0].types.items()
            for axis in range(len(kind.shape))
        }
        domain = self.domain()
        fitter = Fitter(extents, domain)
        for (name, axis), values in columns.items():  # strided extents first, which the others are made of
            if fitter.integer(values, terms=1) is None:
                rule = self.strided(points, values, name, axis)
                if rule is not None:
                    extents.append(Extent(rule, values))
                    fitter = Fitter(extents, domain)
        found: dict[str, tuple[ir.Expr, ...]] = {}
        for name, kind in graphs[0].types.items():
            rules = [fitter.integer(columns[name, axis]) for axis in range(len(kind.shape))]
            found[name] = tuple(rule for rule in rules if rule is not None)
            if None in rules:
                axis = rules.index(None)
                at = zip(points, columns[name, axis], strict=True)
                listed = ", ".join(f"{n} at {self.readings.spelled(p)}" for p, n in at)
                raise UsageError(f"axis {axis} of {name} follows no rule: {listed}", hint=PARITY)
        return found, fitter

    def domain(self) -> list[dict[str, int]]:
        """Sizes that a run may have: all of one symbol, many of several."""
        columns = [range(-(-s.minimum // s.step) * s.step, s.maximum + 1, s.step) for s in self.sizes]
        if prod(map(len, columns)) <= _DOMAIN:
            return [self.readings.scalars(point) for point in product(*columns)]
        draw = random.Random(0).choice
        return [self.readings.scalars(tuple(draw(column) for column in columns)) for _ in range(_DOMAIN)]

    def strided(self, points: tuple[Point, ...], values: Sequence[int], name: str, axis: int) -> ir.Expr | None:
        """The rule ``(a * size + b) // c`` of one symbol; where several hold, further sizes tell them apart."""
        for k, size in enumerate(self.sizes):
            pairs: dict[int, int] = {}
            if any(pairs.setdefault(p[k], v) != v for p, v in zip(points, values, strict=True)):
                continue
            for _ in range(_QUESTIONS):
                rules = strided(size.scalar, pairs)
                if not rules:
                    break
                question = self.question(size, k, rules, pairs, points[0])
                if question is None:
                    return rules[0][0]
                graph = self.readings.asked(question)
                assert graph is not None
                pairs[question[k]] = graph.types[name].shape[axis]
        return None

    def question(
        self,
        size: Size,
        k: int,
        rules: Sequence[tuple[ir.Expr, tuple[int, int, int]]],
        pairs: Mapping[int, int],
        base: Point,
    ) -> Point | None:
        """Sizes at which the rules disagree and the model can be read; None if there are none."""
        start = -(-size.minimum // size.step) * size.step
        for n in range(start, size.maximum + 1, size.step):
            if n not in pairs and len({(a * n + b) // c for _, (a, b, c) in rules}) > 1:
                point = (*base[:k], n, *base[k + 1 :])
                if self.readings.asked(point) is not None:
                    return point
        return None

    def check(self, extents: Mapping[str, tuple[ir.Expr, ...]], graph: Graph, point: Point) -> None:
        """UsageError where a shape is not what the rules say."""
        for name, rules in extents.items():
            told = tuple(value_at(rule, self.readings.scalars(point)) for rule in rules)
            if graph.types[name].shape != told:
                made = graph.types[name].shape
                raise UsageError(
                    f"{name} has shape {made} at {self.readings.spelled(point)}; the rule of other sizes gives {told}",
                    hint=PARITY,
                )

    def smallest(
        self, extents: Mapping[str, tuple[ir.Expr, ...]], largest: Graph, maxima: Point
    ) -> tuple[tuple[Size, ...], tuple[Point, ...]]:
        """The sizes with the minima that the model has, and the points there and a step further.

        Passes make other graphs where an axis has one element; only their inputs and outputs are compared.
        """
        sizes, ends = list(self.sizes), {*largest.inputs, *largest.outputs}
        for k, size in enumerate(sizes):
            first = -(-max(size.minimum, 1) // size.step) * size.step
            for n in range(first, size.maximum + 1, size.step):
                if self.readings.asked((*maxima[:k], n, *maxima[k + 1 :])) is not None:
                    sizes[k] = Size(size.name, size.label, n, size.maximum, size.step)
                    break
        small = []
        for extra in range(3):
            point = tuple(min(s.minimum + extra * s.step, s.maximum) for s in sizes)
            graph = self.readings.asked(point)
            if graph is None:
                raise UsageError(
                    f"the model cannot have sizes {self.readings.spelled(point)}", hint="give larger minima: NAME=8:64"
                )
            self.check({name: r for name, r in extents.items() if name in ends}, graph, point)
            small.append(point)
        return tuple(sizes), tuple(small)


def _within(point: Point, sizes: Sequence[Size]) -> bool:
    return all(n <= s.maximum and n % s.step == 0 for n, s in zip(point, sizes, strict=True))
