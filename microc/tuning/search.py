"""Searches, and what ranks candidates that were not measured."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from itertools import islice
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from microc.base.dtypes import Array
from microc.compiler.tuned.records import Task
from microc.errors import UsageError
from microc.tuning.search_space import Candidate, Point, Space

# ---- What ranks candidates that were not measured: the analytic cost model, or one that learns from what was.
#
# The learned one predicts by how much the analytic one errs, the logarithm of measured over estimated, from the decisions and
# what the cost model counts; so it starts as good as that, and what it learns of one layer holds for others. A line is drawn
# through few measurements; trees need more.

LEAST = 24
"""Measurements from which on trees have something to learn."""
FEW = 6
"""Those from which on a line is drawn through them."""
SHRINKING = 1.0
"""How much a weight of the linear model costs: as much as an error of one measurement."""
MOST = 3.0
"""The most that is believed of an error, either way: 20 times of what the analytic model says. A line that few measurements gave
goes anywhere beyond them."""
_SETTINGS: Mapping[str, Any] = {
    "objective": "regression", "num_leaves": 15, "min_data_in_leaf": 3, "learning_rate": 0.1, "verbose": -1,
    "num_threads": 1, "deterministic": True, "seed": 0,
}  # fmt: skip
_ROUNDS = 80


class Model(Protocol):
    """Ranks candidates of any task: what it predicts are ticks, up to a factor of the task."""

    def predict(self, task: Task, candidate: Candidate) -> float: ...

    def tell(self, task: Task, measured: Sequence[tuple[Candidate, float]]) -> None: ...


class Analytic:
    """The cost model's instructions, whatever is measured."""

    def predict(self, task: Task, candidate: Candidate) -> float:
        return candidate.instructions

    def tell(self, task: Task, measured: Sequence[tuple[Candidate, float]]) -> None:
        """Nothing to learn."""


class Learned:
    """What the analytic model errs by, learned: by a line (ridge regression) from a few measurements on, and what is left of it
    by gradient-boosted trees from more on, with ``trees`` (LightGBM)."""

    def __init__(self, *, trees: bool = True) -> None:
        self._with_trees = trees
        self._rows: list[Mapping[str, float]] = []
        self._errors: dict[Task, list[tuple[int, float]]] = {}
        self._linear = _Linear((), np.zeros(0), np.zeros(0))
        self._trees: Any = None

    def predict(self, task: Task, candidate: Candidate) -> float:
        row = np.array([self._linear.table([_features(task, candidate)])[0]])
        error = float(self._linear.predict(row)[0])
        if self._trees is not None:
            error += float(self._trees.predict(row)[0])
        return candidate.instructions * math.exp(min(max(error, -MOST), MOST))

    def tell(self, task: Task, measured: Sequence[tuple[Candidate, float]]) -> None:
        for candidate, ticks in measured:
            error = math.log(max(ticks, 1e-9) / max(candidate.instructions, 1.0))
            self._errors.setdefault(task, []).append((len(self._rows), error))
            self._rows.append(_features(task, candidate))
        if len(self._rows) >= FEW and measured:
            self._train()

    def _train(self) -> None:
        """From all measurements: how a kernel's differ from its mean, for what all of them have in common ranks nothing."""
        errors = np.zeros(len(self._rows))
        for found in self._errors.values():
            mean = float(np.mean([error for _, error in found]))
            for place, error in found:
                errors[place] = error - mean
        self._linear = _Linear.fitted(self._rows, errors)
        if self._with_trees and len(self._rows) >= LEAST:
            import lightgbm

            table = self._linear.table(self._rows)
            left = errors - self._linear.predict(table)
            self._trees = lightgbm.train(dict(_SETTINGS), lightgbm.Dataset(table, left), _ROUNDS)


class _Linear(NamedTuple):
    """A sum of features, each with its weight, about their means."""

    names: Sequence[str]
    means: Array
    weights: Array

    @staticmethod
    def fitted(rows: Sequence[Mapping[str, float]], errors: Array) -> _Linear:
        names = sorted({name for row in rows for name in row})
        table = np.array([[row.get(name, 0.0) for name in names] for row in rows])
        means = table.mean(0)
        table = table - means
        normal = table.T @ table + SHRINKING * np.eye(len(names))
        return _Linear(names, means, np.linalg.solve(normal, table.T @ errors))

    def table(self, rows: Sequence[Mapping[str, float]]) -> Array:
        """Features of some candidates, a row each."""
        return np.array([[row.get(name, 0.0) for name in self.names] for row in rows])

    def predict(self, table: Array) -> Array:
        return (table - self.means) @ self.weights


def _features(task: Task, candidate: Candidate) -> dict[str, float]:
    """Numbers by name: decisions (those that are words: one of each), and what the cost model says; large ones by their
    logarithm, since some stand for all that there is."""
    found = {
        "instructions": math.log1p(candidate.instructions),
        "code": math.log1p(candidate.code),
        "constants": math.log1p(candidate.constants),
        "workspace": math.log1p(candidate.workspace),
        f"op {task.op}": 1.0,
    }
    for name, value in candidate.point.values:
        found.update({f"{name} {value}": 1.0} if isinstance(value, str) else {name: math.asinh(value)})
    return found


def guess_of(prices: Mapping[Point, float]) -> Callable[[Point], float]:
    """The logarithms of prices, guessed: a line through those that are known, by the values of a point's decisions, each of which
    is dearer or cheaper whatever the others are. Points that make no kernel cost infinity, and teach nothing."""
    known = {point: math.log(max(price, 1.0)) for point, price in prices.items() if price < math.inf}
    line = _Linear.fitted([_taken(point) for point in known], np.array([*known.values()]) - np.mean([*known.values()]))
    weights = dict(zip(line.names, line.weights.tolist(), strict=True))
    return lambda point: sum(weights.get(name, 0.0) for name in _taken(point))


def _taken(point: Point) -> dict[str, float]:
    """The values of decisions, one of each."""
    return {f"{name} {value}": 1.0 for name, value in point.values}


def model_for(name: str) -> Model:
    """``analytic``, ``learned``, or ``auto``: the learned one, without trees where LightGBM is not installed."""
    if name == "analytic":
        return Analytic()
    trees = find_spec("lightgbm") is not None
    if trees or name == "auto":
        return Learned(trees=trees)
    raise UsageError("the learned cost model needs LightGBM", hint="pip install 'microc[tune]', or --model analytic")


# ---- Which points are measured next: at random, in order, or what an evolution finds that a cost model ranks.
#
# The evolution follows Ansor (Zheng et al., OSDI 2020): elites of what was measured are mutated and crossed, the cost model ranks
# the children, the best are measured, and a few points are drawn at random, for the model errs.

ELITES = 12
"""Measured points that have children."""
CHILDREN = 12
"""Points that are compared for each that is measured."""
KNOWN, PRICED = 32, 1
"""Candidates from which on prices are guessed from decisions, and how many of those that are compared are priced then, for each
that is measured: lowering them takes longer than building and running one."""
RACE = 32
"""Those that stay in the race, for each that is measured at once."""
BLIND = 0.15
"""Share of the measurements that go to points drawn at random."""
CROSSED = 0.3
"""Share of children that have two parents."""
IDLE, HOPE, OPTIONS = 2, 0.98, 0.5
"""Batches without a gain from which on the last share of a batch goes to the fastest points with options of the compiler. One is
enough where the best that is left takes more than the second share of the best that was measured, as the model has it."""
FINALISTS = 3
"""Points that are measured with all options of the compiler, too."""
DRAWS = 20
"""Attempts to find a point that was not seen, for each that is wanted."""


class GridSearch:
    """The search for one kernel: what was proposed, what was measured. What the compiler takes by itself comes first, then all
    points in order. The same seed proposes the same points."""

    def __init__(self, space: Space, seed: int, model: Model) -> None:
        self.space, self.model = space, model
        self.draw = random.Random(f"{seed} {space.task.key}")
        self.untuned = list(space.untuned)
        self.seen: set[object] = set(map(_same, space.untuned))
        self.left = list(space.points)
        self.ticks: dict[Point, float] = {}

    def tell(self, measured: Sequence[tuple[Candidate, float]]) -> None:
        """What candidates took; those that failed are not told."""
        for candidate, ticks in measured:
            self.ticks[candidate.point] = ticks
        self.model.tell(self.space.task, measured)

    def know(self, candidate: Candidate, ticks: float) -> None:
        """A measurement of an earlier run."""
        self.seen.add(_same(candidate))
        self.untuned = [each for each in self.untuned if each is not candidate]
        self.tell([(candidate, ticks)])

    @property
    def spent(self) -> bool:
        """Whether every point was proposed, and the fastest ones with all options of the compiler."""
        return not self.left and not self.untuned and not self._unflagged()

    def propose(self, count: int) -> list[Candidate]:
        """At most so many candidates that were never proposed; none once the space is spent."""
        first, self.untuned = self.untuned[:count], self.untuned[count:]
        found = first + self._others(count - len(first))
        return found + self._flagged(count - len(found))

    def _flagged(self, count: int) -> list[Candidate]:
        """The fastest points once more, with options of the compiler."""
        return self._take(self._unflagged()[:count])

    def _unflagged(self) -> list[Candidate]:
        """Those of them that were not proposed, and what the compiler takes by itself: a gain that loops give need not be left to
        options there. Each option is tried on all of them before the next one is."""
        fastest = sorted(self.ticks, key=lambda point: self.ticks[point])[:FINALISTS]
        default = [point for point in (self.space.default.point,) if point in self.ticks]
        finalists = dict.fromkeys((*fastest[:1], *default, *fastest[1:]))
        points = (other for others in zip(*map(self.space.flagged, finalists), strict=True) for other in others)
        return [candidate for point in points if (candidate := self._new(point))]

    def _others(self, count: int) -> list[Candidate]:
        """Those that are points."""
        found: list[Candidate] = []
        while self.left and len(found) < count:
            candidate = self._new(self._next())
            found += self._take([candidate] if candidate else [])
        return found

    def _next(self) -> Point:
        return self.left.pop(0)

    def _new(self, point: Point) -> Candidate | None:
        """A point as a candidate, unless there is no such kernel, or one with the same loops was proposed."""
        candidate = self.space.priced(point)
        if candidate is None or _same(candidate) in self.seen:
            return None
        return candidate

    def _take(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those that differ from each other, and that the verifier does not refuse; from now on they were proposed."""
        taken = []
        for candidate in candidates:
            if _same(candidate) not in self.seen:
                self.seen.add(_same(candidate))
                taken.append(self.space.candidate_at(candidate.point))
        return [candidate for candidate in taken if candidate is not None]


class RandomSearch(GridSearch):
    """All points, each as likely as any other to be next."""

    def _next(self) -> Point:
        place = self.draw.randrange(len(self.left))
        self.left[place], self.left[-1] = self.left[-1], self.left[place]
        return self.left.pop()


class EvolutionarySearch(RandomSearch):
    """Children of the best, ranked by the model. Those that were priced, and were not good enough to be measured, stay in the
    race; what was priced says which points are worth pricing."""

    def __init__(self, space: Space, seed: int, model: Model) -> None:
        super().__init__(space, seed, model)
        self.priced: dict[object, Candidate] = {}
        self.prices: dict[Point, Candidate | None] = {}
        self.best, self.idle = inf, 0

    def tell(self, measured: Sequence[tuple[Candidate, float]]) -> None:
        super().tell(measured)
        fastest = min((ticks for _, ticks in measured), default=inf)
        self.idle = 0 if fastest < self.best else self.idle + 1
        self.best = min(self.best, fastest)

    def _others(self, count: int) -> list[Candidate]:
        if not self.left or not count:
            return []
        blind, late = max(1, round(BLIND * count)), round(OPTIONS * count)
        options = self._flagged(late) if self.idle >= IDLE else []
        for candidate in self._children(count - len(options)):
            self.priced.setdefault(_same(candidate), candidate)
        ranked = sorted(self.priced.values(), key=self._predicted)
        if 0 < self.idle < IDLE and self._hopeless(ranked):
            options = self._flagged(late)
        found = options + self._take(ranked[: max(0, count - blind - len(options))])
        found += super()._others(count - len(found))
        kept = (candidate for candidate in ranked if _same(candidate) not in self.seen)
        self.priced = {_same(candidate): candidate for candidate in islice(kept, RACE * count)}
        return found

    def _hopeless(self, ranked: Sequence[Candidate]) -> bool:
        """Whether the model knows of nothing that takes less than what was measured."""
        best = self.space.candidate_at(min(self.ticks, key=self.ticks.__getitem__)) if self.ticks else None
        return best is not None and all(self._predicted(each) > HOPE * self._predicted(best) for each in ranked[:1])

    def _predicted(self, candidate: Candidate) -> float:
        return self.model.predict(self.space.task, candidate)

    def _children(self, count: int) -> list[Candidate]:
        """New candidates near the elites, for so many that are measured; near the default and anywhere before there are any."""
        found: dict[object, Candidate] = {}
        points = self._unpriced(CHILDREN * count)
        if len(self.prices) >= KNOWN:
            prices = {p: self._predicted(c) if c else inf for p, c in self.prices.items()}  # as the model has it by now
            points = sorted(points, key=guess_of(prices))
        for point in points:
            if len(found) >= PRICED * count and len(self.prices) >= KNOWN:
                break
            candidate = self.prices[point] = self._new(point)
            if candidate is not None and _same(candidate) not in self.priced:
                found.setdefault(_same(candidate), candidate)
        return list(found.values())

    def _unpriced(self, wanted: int) -> list[Point]:
        """Points that were no children yet, as many as are found."""
        elites = sorted(self.ticks, key=lambda point: self.ticks[point])[:ELITES]
        parents = [point for point in elites if point in self.space]
        found: dict[Point, None] = {}
        for _ in range(DRAWS * wanted):
            if len(found) >= wanted:
                break
            child = self._child(parents).with_flags("")
            if child not in self.prices:
                found.setdefault(child)
        return list(found)

    def _child(self, parents: Sequence[Point]) -> Point:
        if not parents or self.draw.random() < BLIND:
            return self.draw.choice(self.space.points)
        one = self.draw.choice(parents)
        if len(parents) > 1 and self.draw.random() < CROSSED:
            one = self.space.crossed(one, self.draw.choice(parents), self.draw)
        return self.space.mutated(one, self.draw)


def _same(candidate: Candidate) -> object:
    """What two points have in common that are one kernel."""
    return candidate.number, candidate.choice.func.body, candidate.point.flags


SEARCHES: Mapping[str, Callable[[Space, int, Model], GridSearch]] = MappingProxyType(
    {"evolutionary": EvolutionarySearch, "random": RandomSearch, "grid": GridSearch}
)
