"""Searches, and models that rank candidates that were not measured."""

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
"""Measurements from which on trees are trained."""
FEW = 6
"""Measurements from which on the linear model is trained."""
SHRINKING = 1.0
"""Ridge penalty of the linear model: a squared weight costs as much as the squared error of one measurement."""
MOST = 3.0
"""Limit of a predicted error, the logarithm of measured over estimated, either way: a factor of 20. A line through few
measurements extrapolates without bounds."""
_SETTINGS: Mapping[str, Any] = {
    "objective": "regression", "num_leaves": 15, "min_data_in_leaf": 3, "learning_rate": 0.1, "verbose": -1,
    "num_threads": 1, "deterministic": True, "seed": 0,
}  # fmt: skip
_ROUNDS = 80


class RankingModel(Protocol):
    """Model that ranks candidates of any task by predicted ticks, which are right up to a factor per task."""

    def predict(self, task: Task, candidate: Candidate) -> float: ...

    def tell(self, task: Task, measured: Sequence[tuple[Candidate, float]]) -> None: ...


class AnalyticModel:
    """Ranks candidates by the instructions of the cost model; learns nothing."""

    def predict(self, task: Task, candidate: Candidate) -> float:
        return candidate.instructions

    def tell(self, task: Task, measured: Sequence[tuple[Candidate, float]]) -> None:
        """Ignore measurements."""


class LearnedModel:
    """Ranks candidates by the cost model's instructions, corrected by a learned prediction of its error: ridge regression
    after a few measurements, plus gradient-boosted trees (LightGBM, if ``trees``) on its residuals after more."""

    def __init__(self, *, trees: bool = True) -> None:
        self._with_trees = trees
        self._rows: list[Mapping[str, float]] = []
        self._errors: dict[Task, list[tuple[int, float]]] = {}
        self._linear = _LinearModel((), np.zeros(0), np.zeros(0))
        self._trees: Any = None

    def predict(self, task: Task, candidate: Candidate) -> float:
        row = np.array([self._linear.table([_candidate_features(task, candidate)])[0]])
        error = float(self._linear.predict(row)[0])
        if self._trees is not None:
            error += float(self._trees.predict(row)[0])
        return candidate.instructions * math.exp(min(max(error, -MOST), MOST))

    def tell(self, task: Task, measured: Sequence[tuple[Candidate, float]]) -> None:
        for candidate, ticks in measured:
            error = math.log(max(ticks, 1e-9) / max(candidate.instructions, 1.0))
            self._errors.setdefault(task, []).append((len(self._rows), error))
            self._rows.append(_candidate_features(task, candidate))
        if len(self._rows) >= FEW and measured:
            self._train_on_measurements()

    def _train_on_measurements(self) -> None:
        """Train on all measurements.

        The target is a kernel's error minus its mean over that kernel: an offset that all its candidates share does not affect
        their ranking.
        """
        errors = np.zeros(len(self._rows))
        for kernel_errors in self._errors.values():
            mean = float(np.mean([error for _, error in kernel_errors]))
            for row, error in kernel_errors:
                errors[row] = error - mean
        self._linear = _LinearModel.fit(self._rows, errors)
        if self._with_trees and len(self._rows) >= LEAST:
            import lightgbm

            table = self._linear.table(self._rows)
            residuals = errors - self._linear.predict(table)
            self._trees = lightgbm.train(dict(_SETTINGS), lightgbm.Dataset(table, residuals), _ROUNDS)


class _LinearModel(NamedTuple):
    """A linear model of named features, which are centred about their means."""

    names: Sequence[str]
    means: Array
    weights: Array

    @staticmethod
    def fit(rows: Sequence[Mapping[str, float]], errors: Array) -> _LinearModel:
        """Fit a linear model to the errors of candidates by ridge regression; ``rows``: features by name of each
        candidate."""
        names = sorted({name for row in rows for name in row})
        table = np.array([[row.get(name, 0.0) for name in names] for row in rows])
        means = table.mean(0)
        table = table - means
        normal = table.T @ table + SHRINKING * np.eye(len(names))
        return _LinearModel(names, means, np.linalg.solve(normal, table.T @ errors))

    def table(self, rows: Sequence[Mapping[str, float]]) -> Array:
        """Return a matrix of features, a row for each candidate; features that the model does not know are left out."""
        return np.array([[row.get(name, 0.0) for name in self.names] for row in rows])

    def predict(self, table: Array) -> Array:
        """Predict the error of each candidate from a matrix of features."""
        return (table - self.means) @ self.weights


def _candidate_features(task: Task, candidate: Candidate) -> dict[str, float]:
    """Return the features of a candidate by name: decisions (one-hot if they are words) and the cost model's numbers;
    large ones by their logarithm."""
    features = {
        "instructions": math.log1p(candidate.instructions),
        "code": math.log1p(candidate.code),
        "constants": math.log1p(candidate.constants),
        "workspace": math.log1p(candidate.workspace),
        f"op {task.op}": 1.0,
    }
    for name, value in candidate.point.values:
        features.update({f"{name} {value}": 1.0} if isinstance(value, str) else {name: math.asinh(value)})
    return features


def fit_price_guess(prices: Mapping[Point, float]) -> Callable[[Point], float]:
    """Fit a linear model over one-hot decisions to the known prices of points; return a function that guesses the
    logarithm of any point's price.

    Points without a kernel have the price infinity and are left out."""
    known = {point: math.log(max(price, 1.0)) for point, price in prices.items() if price < math.inf}
    line = _LinearModel.fit(
        [_one_hot_decisions(point) for point in known], np.array([*known.values()]) - np.mean([*known.values()])
    )
    weights = dict(zip(line.names, line.weights.tolist(), strict=True))
    return lambda point: sum(weights.get(name, 0.0) for name in _one_hot_decisions(point))


def _one_hot_decisions(point: Point) -> dict[str, float]:
    """Return a point's decisions as one-hot features."""
    return {f"{name} {value}": 1.0 for name, value in point.values}


def ranking_model_by_name(name: str) -> RankingModel:
    """Return a model that ranks candidates by its name: ``analytic``, ``learned``, or ``auto``: the learned one, without
    trees if LightGBM is not installed. UsageError if trees are requested without LightGBM."""
    if name == "analytic":
        return AnalyticModel()
    trees = find_spec("lightgbm") is not None
    if trees or name == "auto":
        return LearnedModel(trees=trees)
    raise UsageError(
        "--cost-model learned: LightGBM is not installed",
        hint="install it: pip install 'microc[tune]'; or use --cost-model analytic",
    )


# ---- Which points are measured next: at random, in order, or what an evolution finds that a cost model ranks.
#
# The evolution follows Ansor (Zheng et al., OSDI 2020): elites of what was measured are mutated and crossed, the cost model ranks
# the children, the best are measured, and a few points are drawn at random, for the model errs.

ELITES = 12
"""Fastest measured points, which become parents."""
CHILDREN = 12
"""Points that are compared for each one that is measured."""
KNOWN, PRICED = 32, 1
"""Candidates from which on prices are guessed from decisions; and how many of the compared points are then priced for each
one measured. Lowering a point takes longer than building and running it."""
RACE = 32
"""Unmeasured candidates kept for later batches, for each one measured at once."""
BLIND = 0.15
"""Share of measurements of random points."""
CROSSED = 0.3
"""Share of children with two parents."""
IDLE, HOPE, OPTIONS = 2, 0.98, 0.5
"""Batches without gain after which the last share (OPTIONS) of a batch tries compiler options on the fastest points; one
batch is enough if the model predicts more than the share HOPE of the best measured ticks for the best remaining point."""
FINALISTS = 3
"""Fastest points that are measured with all compiler options, too."""
DRAWS = 20
"""Attempts to find an unseen point, for each one wanted."""


class GridSearch:
    """Search over the space of one kernel: default candidates first, then all points in order. The same seed proposes the
    same points."""

    def __init__(self, space: Space, seed: int, model: RankingModel) -> None:
        self.space, self.model = space, model
        self.draw = random.Random(f"{seed} {space.task.key}")
        self.untuned = list(space.untuned)
        self.seen: set[object] = set(map(_kernel_identity, space.untuned))
        self.left = list(space.points)
        self.ticks: dict[Point, float] = {}

    def tell(self, measured: Sequence[tuple[Candidate, float]]) -> None:
        """Take measurements of candidates that did not fail."""
        for candidate, ticks in measured:
            self.ticks[candidate.point] = ticks
        self.model.tell(self.space.task, measured)

    def know(self, candidate: Candidate, ticks: float) -> None:
        """Take a measurement of an earlier run, so that its candidate is not proposed."""
        self.seen.add(_kernel_identity(candidate))
        self.untuned = [each for each in self.untuned if each is not candidate]
        self.tell([(candidate, ticks)])

    @property
    def spent(self) -> bool:
        """True if every point was proposed, and the fastest ones with all compiler options."""
        return not self.left and not self.untuned and not self._unproposed_compiler_options()

    def propose(self, count: int) -> list[Candidate]:
        """Return up to ``count`` candidates that were not proposed before; none if the space is spent."""
        first, self.untuned = self.untuned[:count], self.untuned[count:]
        proposed = first + self._propose_points(count - len(first))
        return proposed + self._propose_compiler_options(count - len(proposed))

    def _propose_compiler_options(self, count: int) -> list[Candidate]:
        """Propose up to ``count`` candidates that are the fastest points with compiler options."""
        return self._mark_and_verify(self._unproposed_compiler_options()[:count])

    def _unproposed_compiler_options(self) -> list[Candidate]:
        """Return the fastest points and the default with compiler options that were not proposed.

        The default is included since options may give it the gain that loops give others. Each option is tried on all points
        before the next one.
        """
        fastest = sorted(self.ticks, key=lambda point: self.ticks[point])[:FINALISTS]
        default = [point for point in (self.space.default.point,) if point in self.ticks]
        finalists = dict.fromkeys((*fastest[:1], *default, *fastest[1:]))
        points = (other for others in zip(*map(self.space.with_each_flag, finalists), strict=True) for other in others)
        return [candidate for point in points if (candidate := self._unproposed_candidate(point))]

    def _propose_points(self, count: int) -> list[Candidate]:
        """Propose candidates of up to ``count`` new points."""
        proposed: list[Candidate] = []
        while self.left and len(proposed) < count:
            candidate = self._unproposed_candidate(self._next())
            proposed += self._mark_and_verify([candidate] if candidate else [])
        return proposed

    def _next(self) -> Point:
        """Remove and return the next point."""
        return self.left.pop(0)

    def _unproposed_candidate(self, point: Point) -> Candidate | None:
        """Return a point's candidate; None if it has none, or if a candidate with the same loops was proposed."""
        candidate = self.space.price_point(point)
        if candidate is None or _kernel_identity(candidate) in self.seen:
            return None
        return candidate

    def _mark_and_verify(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Mark distinct candidates as proposed, and return those that the verifier accepts."""
        taken = []
        for candidate in candidates:
            if _kernel_identity(candidate) not in self.seen:
                self.seen.add(_kernel_identity(candidate))
                taken.append(self.space.candidate_at(candidate.point))
        return [candidate for candidate in taken if candidate is not None]


class RandomSearch(GridSearch):
    """Search over all points of a kernel's space in random order."""

    def _next(self) -> Point:
        place = self.draw.randrange(len(self.left))
        self.left[place], self.left[-1] = self.left[-1], self.left[place]
        return self.left.pop()


class EvolutionarySearch(RandomSearch):
    """Search over mutated and crossed points of the fastest ones, ranked by the model.
    Priced candidates that were not good enough to be measured stay for later batches. Prices so far tell which points
    are worth pricing."""

    def __init__(self, space: Space, seed: int, model: RankingModel) -> None:
        super().__init__(space, seed, model)
        self.priced: dict[object, Candidate] = {}
        self.prices: dict[Point, Candidate | None] = {}
        self.best, self.idle = inf, 0

    def tell(self, measured: Sequence[tuple[Candidate, float]]) -> None:
        super().tell(measured)
        fastest = min((ticks for _, ticks in measured), default=inf)
        self.idle = 0 if fastest < self.best else self.idle + 1
        self.best = min(self.best, fastest)

    def _propose_points(self, count: int) -> list[Candidate]:
        if not self.left or not count:
            return []
        blind, late = max(1, round(BLIND * count)), round(OPTIONS * count)
        options = self._propose_compiler_options(late) if self.idle >= IDLE else []
        for candidate in self._draw_children(count - len(options)):
            self.priced.setdefault(_kernel_identity(candidate), candidate)
        ranked = sorted(self.priced.values(), key=self._predicted_ticks)
        if 0 < self.idle < IDLE and self._predicts_no_gain(ranked):
            options = self._propose_compiler_options(late)
        found = options + self._mark_and_verify(ranked[: max(0, count - blind - len(options))])
        found += super()._propose_points(count - len(found))
        kept = (candidate for candidate in ranked if _kernel_identity(candidate) not in self.seen)
        self.priced = {_kernel_identity(candidate): candidate for candidate in islice(kept, RACE * count)}
        return found

    def _predicts_no_gain(self, ranked: Sequence[Candidate]) -> bool:
        """Test whether the model predicts that no ranked candidate is faster than the best measurement."""
        best = self.space.candidate_at(min(self.ticks, key=self.ticks.__getitem__)) if self.ticks else None
        return best is not None and all(
            self._predicted_ticks(each) > HOPE * self._predicted_ticks(best) for each in ranked[:1]
        )

    def _predicted_ticks(self, candidate: Candidate) -> float:
        """Predict a candidate's ticks by the model."""
        return self.model.predict(self.space.task, candidate)

    def _draw_children(self, count: int) -> list[Candidate]:
        """Return new candidates near the fastest measured points (without any: near the default and anywhere), to choose
        ``count`` measurements from."""
        children: dict[object, Candidate] = {}
        points = self._draw_unpriced_points(CHILDREN * count)
        if len(self.prices) >= KNOWN:
            prices = {
                p: self._predicted_ticks(c) if c else inf for p, c in self.prices.items()
            }  # as the model has it by now
            points = sorted(points, key=fit_price_guess(prices))
        for point in points:
            if len(children) >= PRICED * count and len(self.prices) >= KNOWN:
                break
            candidate = self.prices[point] = self._unproposed_candidate(point)
            if candidate is not None and _kernel_identity(candidate) not in self.priced:
                children.setdefault(_kernel_identity(candidate), candidate)
        return list(children.values())

    def _draw_unpriced_points(self, max_points: int) -> list[Point]:
        """Draw up to ``max_points`` different points whose candidates were not priced yet."""
        elites = sorted(self.ticks, key=lambda point: self.ticks[point])[:ELITES]
        parents = [point for point in elites if point in self.space]
        drawn: dict[Point, None] = {}
        for _ in range(DRAWS * max_points):
            if len(drawn) >= max_points:
                break
            child = self._draw_child(parents).with_flags("")
            if child not in self.prices:
                drawn.setdefault(child)
        return list(drawn)

    def _draw_child(self, parents: Sequence[Point]) -> Point:
        """Draw a point: any one, or a mutation or crossing of the parents."""
        if not parents or self.draw.random() < BLIND:
            return self.draw.choice(self.space.points)
        one = self.draw.choice(parents)
        if len(parents) > 1 and self.draw.random() < CROSSED:
            one = self.space.cross(one, self.draw.choice(parents), self.draw)
        return self.space.mutate(one, self.draw)


def _kernel_identity(candidate: Candidate) -> object:
    """Return the key that identifies a candidate's kernel: candidates with equal keys give the same kernel."""
    return candidate.number, candidate.choice.func.body, candidate.point.flags


SEARCHES: Mapping[str, Callable[[Space, int, RankingModel], GridSearch]] = MappingProxyType(
    {"evolutionary": EvolutionarySearch, "random": RandomSearch, "grid": GridSearch}
)
