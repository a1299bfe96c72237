# SPDX-License-Identifier: Apache-2.0
"""Search policies, and models that predict the ticks of candidates that were not measured."""

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

# ---- Models that rank candidates that were not measured: the analytic cost model, or a model that learns from measurements.
#
# The learned model predicts the error of the analytic model: the logarithm of measured ticks over estimated ticks. Its
# features are the decisions of a candidate and the numbers of the cost model. So it starts as good as the analytic model, and
# what it learns from one layer applies to others. A linear model is fitted to few measurements. Decision trees need more.

MIN_TREE_MEASUREMENTS = 24
"""Minimum number of measurements with which trees are trained."""
MIN_LINEAR_MEASUREMENTS = 6
"""Minimum number of measurements with which the linear model is trained."""
RIDGE_PENALTY = 1.0
"""Ridge penalty of the linear model: a squared weight costs as much as the squared error of one measurement."""
MAX_LOG_ERROR = 3.0
"""Maximum magnitude of a predicted error (logarithm of measured over estimated), a factor of 20. It is needed because a
linear model of few measurements extrapolates without bounds."""
_LIGHTGBM_SETTINGS: Mapping[str, Any] = {
    "objective": "regression", "num_leaves": 15, "min_data_in_leaf": 3, "learning_rate": 0.1, "verbose": -1,
    "num_threads": 1, "deterministic": True, "seed": 0,
}  # fmt: skip
_BOOSTING_ROUNDS = 80


class RankingModel(Protocol):
    """Model that predicts the ticks of candidates to rank them. Predictions for a task may be wrong by a constant
    factor."""

    def predict(self, task: Task, candidate: Candidate) -> float: ...

    def tell(self, task: Task, measured: Sequence[tuple[Candidate, float]]) -> None: ...


class AnalyticModel:
    """Ranking model that predicts the number of instructions by the cost model, and does not learn."""

    def predict(self, task: Task, candidate: Candidate) -> float:
        return candidate.instructions

    def tell(self, task: Task, measured: Sequence[tuple[Candidate, float]]) -> None:
        """Ignore measurements."""


class LearnedModel:
    """Ranking model that corrects the number of instructions of the cost model by a learned prediction of its error.

    After a few measurements the error is predicted by ridge regression. After more measurements, and if ``trees`` is
    True, gradient-boosted trees (LightGBM) predict the residuals of the regression.
    """

    def __init__(self, *, trees: bool = True) -> None:
        self._with_trees = trees
        self._rows: list[Mapping[str, float]] = []
        self._errors: dict[Task, list[tuple[int, float]]] = {}
        self._linear = _LinearModel((), np.zeros(0), np.zeros(0))
        self._trees: Any = None

    def predict(self, task: Task, candidate: Candidate) -> float:
        row = np.array([self._linear.feature_matrix([_extract_features(task, candidate)])[0]])
        error = float(self._linear.predict(row)[0])
        if self._trees is not None:
            error += float(self._trees.predict(row)[0])
        return candidate.instructions * math.exp(min(max(error, -MAX_LOG_ERROR), MAX_LOG_ERROR))

    def tell(self, task: Task, measured: Sequence[tuple[Candidate, float]]) -> None:
        for candidate, ticks in measured:
            error = math.log(max(ticks, 1e-9) / max(candidate.instructions, 1.0))
            self._errors.setdefault(task, []).append((len(self._rows), error))
            self._rows.append(_extract_features(task, candidate))
        if len(self._rows) >= MIN_LINEAR_MEASUREMENTS and measured:
            self._train_on_measurements()

    def _train_on_measurements(self) -> None:
        """Train on all measurements.

        The mean error of each kernel is subtracted first, because an error that all candidates of a kernel share does
        not affect their ranking.
        """
        errors = np.zeros(len(self._rows))
        for kernel_errors in self._errors.values():
            mean = float(np.mean([error for _, error in kernel_errors]))
            for row, error in kernel_errors:
                errors[row] = error - mean
        self._linear = _LinearModel.fit(self._rows, errors)
        if self._with_trees and len(self._rows) >= MIN_TREE_MEASUREMENTS:
            import lightgbm

            table = self._linear.feature_matrix(self._rows)
            residuals = errors - self._linear.predict(table)
            self._trees = lightgbm.train(dict(_LIGHTGBM_SETTINGS), lightgbm.Dataset(table, residuals), _BOOSTING_ROUNDS)


class _LinearModel(NamedTuple):
    """A linear model of named features. The mean of each feature is subtracted from the feature."""

    names: Sequence[str]
    means: Array
    weights: Array

    @staticmethod
    def fit(rows: Sequence[Mapping[str, float]], errors: Array) -> _LinearModel:
        """Fit a linear model to the errors of candidates by ridge regression. ``rows``: the features of each candidate,
        by name."""
        names = sorted({name for row in rows for name in row})
        table = np.array([[row.get(name, 0.0) for name in names] for row in rows])
        means = table.mean(0)
        table = table - means
        normal = table.T @ table + RIDGE_PENALTY * np.eye(len(names))
        return _LinearModel(names, means, np.linalg.solve(normal, table.T @ errors))

    def feature_matrix(self, rows: Sequence[Mapping[str, float]]) -> Array:
        """Return the matrix of features, with a row for each candidate. Features that the model does not know are left
        out."""
        return np.array([[row.get(name, 0.0) for name in self.names] for row in rows])

    def predict(self, table: Array) -> Array:
        """Return the predicted error of each candidate, given the matrix of features."""
        return (table - self.means) @ self.weights


def _extract_features(task: Task, candidate: Candidate) -> dict[str, float]:
    """Return the features of a candidate by name: its decisions (one-hot if they are words) and the numbers of the cost
    model.

    Large numbers are replaced by their logarithm.
    """
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


def fit_price_estimator(prices: Mapping[Point, float]) -> Callable[[Point], float]:
    """Fit a linear model over one-hot decisions to known prices (predicted ticks) of points. Return a function that
    estimates the logarithm of the price of any point, up to a constant.

    Points that give no kernel have an infinite price, and are left out.
    """
    known = {point: math.log(max(price, 1.0)) for point, price in prices.items() if price < math.inf}
    line = _LinearModel.fit(
        [_encode_decisions_one_hot(point) for point in known], np.array([*known.values()]) - np.mean([*known.values()])
    )
    weights = dict(zip(line.names, line.weights.tolist(), strict=True))
    return lambda point: sum(weights.get(name, 0.0) for name in _encode_decisions_one_hot(point))


def _encode_decisions_one_hot(point: Point) -> dict[str, float]:
    """Return the decisions of a point as one-hot features."""
    return {f"{name} {value}": 1.0 for name, value in point.values}


def make_ranking_model(name: str) -> RankingModel:
    """Return the ranking model with the given name.

    ``analytic``: the cost model. ``learned``: the learned model with trees; raise UsageError if LightGBM is not
    installed. ``auto``: the learned model, without trees if LightGBM is not installed.
    """
    if name == "analytic":
        return AnalyticModel()
    trees = find_spec("lightgbm") is not None
    if trees or name == "auto":
        return LearnedModel(trees=trees)
    raise UsageError(
        "--cost-model learned: LightGBM is not installed",
        hint='install it: pip install "microc[tune]"; or use --cost-model analytic',
    )


# ---- Search policies, which decide which points are measured next: in order, at random, or by an evolutionary search.
#
# The evolutionary search follows Ansor (Zheng et al., OSDI 2020). The fastest measured points are mutated and crossed, the
# ranking model ranks the resulting points, and the best of these are measured. A few points are drawn at random, because the
# model errs.

ELITES = 12
"""Number of the fastest measured points that are parents of new points."""
CHILDREN_PER_MEASUREMENT = 12
"""Number of new points that are compared for each point that is measured."""
MIN_PRICED_CANDIDATES, PRICED_PER_MEASUREMENT = 32, 1
"""MIN_PRICED_CANDIDATES: number of priced candidates from which on the prices of further points are estimated from
their decisions.

PRICED_PER_MEASUREMENT: number of points that are then still priced for each point that is measured. To price a point it
must be lowered, which takes longer than building and running it. """
KEPT_PER_MEASUREMENT = 32
"""Number of priced but unmeasured candidates that are kept for later batches, for each candidate of a batch."""
RANDOM_FRACTION = 0.15
"""Fraction of the measurements that are of random points."""
CROSSOVER_FRACTION = 0.3
"""Fraction of the new points that have two parents."""
IDLE_BATCHES, EXHAUSTED_RATIO, OPTIONS_FRACTION = 2, 0.98, 0.5
"""After IDLE_BATCHES batches without a gain, the fraction OPTIONS_FRACTION of a batch tries compiler options on the
fastest points. One such batch is enough if the model predicts for the best remaining point more than the fraction
EXHAUSTED_RATIO of the ticks that it predicts for the fastest measured point."""
FINALISTS = 3
"""Number of the fastest points that are also measured with all compiler options."""
MAX_DRAWS = 20
"""Maximum number of attempts to find a new point, for each point that is wanted."""


class GridSearch:
    """Search that proposes the default candidates of a kernel first, and then all points of its space in order.

    ``seed``: seed of random choices; with equal seeds, equal points are proposed. ``model``: model by which subclasses
    rank candidates.
    """

    def __init__(self, space: Space, seed: int, model: RankingModel) -> None:
        self.space, self.model = space, model
        self.draw = random.Random(f"{seed} {space.task.key}")
        self.untuned = list(space.untuned)
        self.seen: set[object] = set(map(_key_of_equal_kernels, space.untuned))
        self.left = list(space.points)
        self.ticks: dict[Point, float] = {}

    def tell(self, measured: Sequence[tuple[Candidate, float]]) -> None:
        """Record measurements of candidates that did not fail."""
        for candidate, ticks in measured:
            self.ticks[candidate.point] = ticks
        self.model.tell(self.space.task, measured)

    def add_earlier_measurement(self, candidate: Candidate, ticks: float) -> None:
        """Record a measurement of an earlier run, so that the candidate is not proposed."""
        self.seen.add(_key_of_equal_kernels(candidate))
        self.untuned = [each for each in self.untuned if each is not candidate]
        self.tell([(candidate, ticks)])

    @property
    def is_exhausted(self) -> bool:
        """True if every point has been proposed, and the fastest points have been proposed with all compiler
        options."""
        return not self.left and not self.untuned and not self._candidates_with_new_compiler_options()

    def propose(self, count: int) -> list[Candidate]:
        """Return up to ``count`` candidates that have not been proposed yet; none if the space is exhausted."""
        first, self.untuned = self.untuned[:count], self.untuned[count:]
        proposed = first + self._propose_points(count - len(first))
        return proposed + self._propose_compiler_options(count - len(proposed))

    def _propose_compiler_options(self, count: int) -> list[Candidate]:
        """Propose up to ``count`` candidates that are the fastest points with compiler options."""
        return self._mark_proposed_and_verify(self._candidates_with_new_compiler_options()[:count])

    def _candidates_with_new_compiler_options(self) -> list[Candidate]:
        """Return the fastest points and the default, with compiler options that have not been proposed yet.

        The default is included because compiler options may improve its loops as much as other schedules do. Each
        option is tried on all points before the next option.
        """
        fastest = sorted(self.ticks, key=lambda point: self.ticks[point])[:FINALISTS]
        default = [point for point in (self.space.default.point,) if point in self.ticks]
        finalists = dict.fromkeys((*fastest[:1], *default, *fastest[1:]))
        points = (other for others in zip(*map(self.space.with_each_flag, finalists), strict=True) for other in others)
        return [candidate for point in points if (candidate := self._unproposed_candidate(point))]

    def _propose_points(self, count: int) -> list[Candidate]:
        """Propose the candidates of up to ``count`` new points."""
        proposed: list[Candidate] = []
        while self.left and len(proposed) < count:
            candidate = self._unproposed_candidate(self._pop_next_point())
            proposed += self._mark_proposed_and_verify([candidate] if candidate else [])
        return proposed

    def _pop_next_point(self) -> Point:
        """Remove the next point from the remaining points, and return it."""
        return self.left.pop(0)

    def _unproposed_candidate(self, point: Point) -> Candidate | None:
        """Return the candidate of a point; None if it has none, or if a candidate with the same loops has been
        proposed."""
        candidate = self.space.price_point(point)
        if candidate is None or _key_of_equal_kernels(candidate) in self.seen:
            return None
        return candidate

    def _mark_proposed_and_verify(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Mark candidates as proposed; return those that the verifier accepts, without duplicates."""
        taken = []
        for candidate in candidates:
            if _key_of_equal_kernels(candidate) not in self.seen:
                self.seen.add(_key_of_equal_kernels(candidate))
                taken.append(self.space.candidate_at(candidate.point))
        return [candidate for candidate in taken if candidate is not None]


class RandomSearch(GridSearch):
    """Search that proposes all points of a kernel's space in random order."""

    def _pop_next_point(self) -> Point:
        place = self.draw.randrange(len(self.left))
        self.left[place], self.left[-1] = self.left[-1], self.left[place]
        return self.left.pop()


class EvolutionarySearch(RandomSearch):
    """Evolutionary search: it mutates and crosses the fastest points (choices of algorithm, rule and decisions), and
    proposes those resulting points that the model ranks best.

    Candidates that were priced but not proposed are kept for later batches. To price a point means to lower it and
    predict its ticks. Known prices are used to estimate which points are worth pricing.
    """

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
        blind, late = max(1, round(RANDOM_FRACTION * count)), round(OPTIONS_FRACTION * count)
        options = self._propose_compiler_options(late) if self.idle >= IDLE_BATCHES else []
        for candidate in self._draw_children(count - len(options)):
            self.priced.setdefault(_key_of_equal_kernels(candidate), candidate)
        ranked = sorted(self.priced.values(), key=self._predicted_ticks)
        if 0 < self.idle < IDLE_BATCHES and self._predicts_no_gain(ranked):
            options = self._propose_compiler_options(late)
        found = options + self._mark_proposed_and_verify(ranked[: max(0, count - blind - len(options))])
        found += super()._propose_points(count - len(found))
        kept = (candidate for candidate in ranked if _key_of_equal_kernels(candidate) not in self.seen)
        self.priced = {
            _key_of_equal_kernels(candidate): candidate for candidate in islice(kept, KEPT_PER_MEASUREMENT * count)
        }
        return found

    def _predicts_no_gain(self, ranked: Sequence[Candidate]) -> bool:
        """Test whether the model predicts that no ranked candidate is faster than the fastest measured candidate."""
        best = self.space.candidate_at(min(self.ticks, key=self.ticks.__getitem__)) if self.ticks else None
        return best is not None and all(
            self._predicted_ticks(each) > EXHAUSTED_RATIO * self._predicted_ticks(best) for each in ranked[:1]
        )

    def _predicted_ticks(self, candidate: Candidate) -> float:
        """Return the number of ticks that the model predicts for a candidate."""
        return self.model.predict(self.space.task, candidate)

    def _draw_children(self, count: int) -> list[Candidate]:
        """Return new candidates, from which ``count`` are to be chosen for measurement.

        Their points are derived from the fastest measured points. If none was measured, they are drawn from the whole
        space.
        """
        children: dict[object, Candidate] = {}
        points = self._draw_unpriced_points(CHILDREN_PER_MEASUREMENT * count)
        if len(self.prices) >= MIN_PRICED_CANDIDATES:
            prices = {
                p: self._predicted_ticks(c) if c else inf for p, c in self.prices.items()
            }  # predicted again, because the model has learned since these points were priced
            points = sorted(points, key=fit_price_estimator(prices))
        for point in points:
            if len(children) >= PRICED_PER_MEASUREMENT * count and len(self.prices) >= MIN_PRICED_CANDIDATES:
                break
            candidate = self.prices[point] = self._unproposed_candidate(point)
            if candidate is not None and _key_of_equal_kernels(candidate) not in self.priced:
                children.setdefault(_key_of_equal_kernels(candidate), candidate)
        return list(children.values())

    def _draw_unpriced_points(self, max_points: int) -> list[Point]:
        """Draw up to ``max_points`` different points that have not been priced yet."""
        elites = sorted(self.ticks, key=lambda point: self.ticks[point])[:ELITES]
        parents = [point for point in elites if point in self.space]
        drawn: dict[Point, None] = {}
        for _ in range(MAX_DRAWS * max_points):
            if len(drawn) >= max_points:
                break
            child = self._draw_child(parents).with_flags("")
            if child not in self.prices:
                drawn.setdefault(child)
        return list(drawn)

    def _draw_child(self, parents: Sequence[Point]) -> Point:
        """Draw a point: a random point of the space, or a mutation or crossing of the points ``parents``."""
        if not parents or self.draw.random() < RANDOM_FRACTION:
            return self.draw.choice(self.space.points)
        one = self.draw.choice(parents)
        if len(parents) > 1 and self.draw.random() < CROSSOVER_FRACTION:
            one = self.space.cross(one, self.draw.choice(parents), self.draw)
        return self.space.mutate(one, self.draw)


def _key_of_equal_kernels(candidate: Candidate) -> object:
    """Return a key that is equal for candidates whose kernels are identical."""
    return candidate.number, candidate.choice.func.body, candidate.point.flags


SEARCHES: Mapping[str, Callable[[Space, int, RankingModel], GridSearch]] = MappingProxyType(
    {"evolutionary": EvolutionarySearch, "random": RandomSearch, "grid": GridSearch}
)
