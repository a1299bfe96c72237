"""What ranks candidates that were not measured: the analytic cost model, or one that learns from what was.

The learned one predicts by how much the analytic one errs, the logarithm of measured over estimated, from the decisions and what
the cost model counts; so it starts as good as that, and what it learns of one layer holds for others. A line is drawn through
few measurements; trees need more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import numpy as np

from microc.driver.tuned.task import Task
from microc.dtypes import Array
from microc.errors import UsageError
from microc.tuning.space import Candidate, Point

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
