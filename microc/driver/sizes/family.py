"""One network at several sizes: graphs that are alike but for their shapes, and the rules that their extents follow.

The model is read, and all passes are run, at the largest sizes, at the smallest ones, and at some *points* between: numbers that
are no extents of the model already, so that nothing is alike by accident. The graphs must agree node by node.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

from microc.driver.sizes.averages import with_open_averages
from microc.driver.sizes.instance import instance
from microc.driver.sizes.points import chosen_points
from microc.driver.sizes.readings import PARITY, Read, Readings
from microc.errors import ModelError, UsageError
from microc.frozen import frozen
from microc.graph.ir import Graph
from microc.module import Size
from microc.tir import ir
from microc.tir.fit import Extent, Fitter, Point, strided, value_at

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
