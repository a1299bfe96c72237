"""One network at several sizes: graphs that are alike but for their shapes, and the rules that their extents follow.

The model is read, and all passes are run, at the largest sizes, at the smallest ones, and at some *points* between: numbers that
are no extents of the model already, so that nothing is alike by accident. The graphs must agree node by node.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from microc.driver.averages import with_open_averages
from microc.driver.instance import instance
from microc.errors import MicrocError, UsageError
from microc.graph.ir import Graph, Node
from microc.module import Size
from microc.tir import ir
from microc.tir.fit import Extent, Fitter, Point, strided, value_at

Sizes = Mapping[str, int]
"""A size for every symbol, by its label."""
Read = Callable[[Sizes], Graph]
"""The graph, all passes run, at some sizes; raises MicrocError where the model cannot have them."""

_FIRST = 19
"""The first size of a point, in steps: beyond the windows of usual kernels, whose borders would meet."""
_SCALES = (1, 3, 8, 20)
_NARROW = 5
"""Larger points are tried until every extent that varies has as many elements, behind all strides."""
_APART = 7
"""Steps between points: windows that skip by 2, 4, 8 ... see all remainders, and several results."""
_POINTS, _MANY = 5, 8
"""Points for one symbol, and for several: two more than the terms of a usual rule."""
_DOMAIN = 512
"""Sizes of a run at which divisions are tried."""
_QUESTIONS = 40
"""Graphs that may be asked for to tell rules apart."""


@dataclass(frozen=True, slots=True)
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
    return _Reader(tuple(sizes), read).family()


class _Reader:
    def __init__(self, sizes: tuple[Size, ...], read: Read) -> None:
        self.sizes, self.read = sizes, read
        self.known: dict[Point, Graph | None] = {}

    def graph(self, point: Point) -> Graph:
        return self.read({size.label: n for size, n in zip(self.sizes, point, strict=True)})

    def asked(self, point: Point) -> Graph | None:
        """The graph at some sizes, None where the model cannot have them."""
        if point not in self.known:
            try:
                self.known[point] = self.graph(point)
            except MicrocError:
                self.known[point] = None
        return self.known[point]

    def spelled(self, point: Point) -> str:
        return ", ".join(f"{size.label}={n}" for size, n in zip(self.sizes, point, strict=True))

    def family(self) -> Family:
        maxima = tuple(size.maximum for size in self.sizes)
        largest = self.graph(maxima)
        self.known[maxima] = largest
        points = self.points(largest)
        graphs = [g for g in map(self.asked, points) if g is not None]
        for point, graph in zip(points, graphs, strict=True):
            self.agree(largest, maxima, graph, point)
        largest, *graphs = with_open_averages((largest, *graphs))
        extents, fitter = self.rules(points, graphs)
        shapes = {name: rules for name, rules in extents.items() if any(not isinstance(e, ir.Const) for e in rules)}
        self.check(shapes, largest, maxima)
        sizes, starts = self.smallest(shapes, largest, maxima)
        small = tuple((at, instance(graphs, largest, fitter, self.scalars(at))) for at in starts)
        return Family(sizes, points, tuple(graphs), largest, small, shapes, fitter)

    def scalars(self, point: Point) -> dict[str, int]:
        """Sizes by scalar."""
        return {size.scalar.name: n for size, n in zip(self.sizes, point, strict=True)}

    # ------------------------------------------------------------ points

    def points(self, largest: Graph) -> tuple[Point, ...]:
        """Sizes to look at, all of which the model can have. They grow until no extent that varies is small in any layer."""
        taken = {extent for kind in largest.types.values() for extent in kind.shape}
        found: tuple[Point, ...] = ()
        for scale in _SCALES:
            found = self.scaled(taken, scale) or found
            if found and self.narrowest(found) >= _NARROW:
                break
        if len(found) < 2:
            self.graph(tuple(_FIRST * size.step for size in self.sizes))  # which says why
            raise UsageError("too few sizes between the smallest and the largest", hint="give a larger bound")
        maxima = tuple(size.maximum for size in self.sizes)
        if maxima not in found and self.narrowest((maxima, *found)) >= _NARROW:
            return (*found, maxima)
        return found

    def scaled(self, taken: set[int], scale: int) -> tuple[Point, ...]:
        """Points of larger and larger sizes; of small ones, where the model cannot have others."""
        wanted = _POINTS if len(self.sizes) == 1 else _MANY
        usual = [
            self.usual(size, taken, wanted, _FIRST * scale + 16 * k) for k, size in enumerate(self.sizes)
        ]  # far apart
        rare = [usual[k] + self.small(size) for k, size in enumerate(self.sizes)]
        found: dict[Point, None] = {}
        for point in (*_spread(usual), *_spread(rare if scale == 1 else usual)):
            if self.asked(point) is not None:
                found[point] = None
            if len(found) == wanted:
                return tuple(found)
        return tuple(found) if scale == 1 else ()

    def narrowest(self, points: Sequence[Point]) -> int:
        """The smallest extent that differs between the points."""
        kinds = [graph.types for graph in map(self.asked, points) if graph is not None]
        columns = (
            zip(*(k[name].shape for k in kinds), strict=False) for name in kinds[0] if all(name in k for k in kinds)
        )
        return min((min(column) for rows in columns for column in rows if len(set(column)) > 1), default=_NARROW)

    def usual(self, size: Size, taken: set[int], wanted: int, first: int) -> list[int]:
        """Sizes of one symbol to look at: large ones that the model does not use, those within the bound at first."""
        large = (size.step * k for k in range(first, first + 64 * _APART * wanted, _APART))
        return [n for n in large if n not in taken][: 2 * wanted]

    def small(self, size: Size) -> list[int]:
        """Other sizes of one symbol, where the model cannot have usual ones."""
        found = [n for n in range(size.maximum, max(size.minimum, 2) - 1, -1) if n % size.step == 0]
        return found[: 4 * _MANY]

    # ------------------------------------------------------------ agreement

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
            first.inputs == other.inputs
            and first.outputs == other.outputs
            and len(first.nodes) == len(other.nodes)
            and {n: s.shape for n, s in first.state.items()} == {n: s.shape for n, s in other.state.items()}
            and first.updates == other.updates
        )
        if not same:
            raise _differs(f"the network has other inputs, outputs, nodes or state at {between}", None)

    # ------------------------------------------------------------ rules

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
                listed = ", ".join(f"{n} at {self.spelled(p)}" for p, n in at)
                raise UsageError(f"axis {axis} of {name} follows no rule: {listed}", hint=_PARITY)
        return found, fitter

    def domain(self) -> list[dict[str, int]]:
        """Sizes that a run may have: all of one symbol, many of several."""
        columns = [range(-(-s.minimum // s.step) * s.step, s.maximum + 1, s.step) for s in self.sizes]
        if prod(map(len, columns)) <= _DOMAIN:
            return [self.scalars(point) for point in product(*columns)]
        draw = random.Random(0).choice
        return [self.scalars(tuple(draw(column) for column in columns)) for _ in range(_DOMAIN)]

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
                graph = self.asked(question)
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
                if self.asked(point) is not None:
                    return point
        return None

    def check(self, extents: Mapping[str, tuple[ir.Expr, ...]], graph: Graph, point: Point) -> None:
        """UsageError where a shape is not what the rules say."""
        for name, rules in extents.items():
            told = tuple(value_at(rule, self.scalars(point)) for rule in rules)
            if graph.types[name].shape != told:
                made = graph.types[name].shape
                raise UsageError(
                    f"{name} has shape {made} at {self.spelled(point)}; the rule of other sizes gives {told}",
                    hint=_PARITY,
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
                if self.asked((*maxima[:k], n, *maxima[k + 1 :])) is not None:
                    sizes[k] = Size(size.name, size.label, n, size.maximum, size.step)
                    break
        small = []
        for extra in range(3):
            point = tuple(min(s.minimum + extra * s.step, s.maximum) for s in sizes)
            graph = self.asked(point)
            if graph is None:
                raise UsageError(
                    f"the model cannot have sizes {self.spelled(point)}", hint="give larger minima: NAME=8:64"
                )
            self.check({name: r for name, r in extents.items() if name in ends}, graph, point)
            small.append(point)
        return tuple(sizes), tuple(small)


_PARITY = "let sizes be multiples of a step: --bound NAME=8:64:8"


def _differs(what: str, node: Node | None) -> UsageError:
    return UsageError(what, where=str(node.loc) if node else "", hint=_PARITY)


def _node(node: Node) -> str:
    return f"{node.op}({', '.join(node.inputs)})"


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
