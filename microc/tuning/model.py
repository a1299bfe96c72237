"""What ranks candidates that were not measured: the analytic cost model, or one that learns from what was.

The learned one predicts by how much the analytic one errs, the logarithm of measured over estimated, from the decisions and what
the cost model counts; so it starts as good as that, and what it learns of one layer holds for others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from microc.driver.tuned.task import Task
from microc.errors import UsageError
from microc.tuning.space import Candidate

LEAST = 24
"""Measurements from which on it pays to learn."""
EVERY = 16
"""New ones after which the model is trained again."""
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
    """Gradient-boosted trees on the analytic model's error (LightGBM)."""

    def __init__(self) -> None:
        self._rows: list[Mapping[str, float]] = []
        self._errors: list[float] = []
        self._names: list[str] = []
        self._trees: Any = None
        self._trained = 0

    def predict(self, task: Task, candidate: Candidate) -> float:
        if self._trees is None:
            return candidate.instructions
        row = _features(task, candidate)
        error = self._trees.predict(np.array([[row.get(name, 0.0) for name in self._names]]))[0]
        return candidate.instructions * math.exp(float(error))

    def tell(self, task: Task, measured: Sequence[tuple[Candidate, float]]) -> None:
        for candidate, ticks in measured:
            self._rows.append(_features(task, candidate))
            self._errors.append(math.log(max(ticks, 1e-9) / max(candidate.instructions, 1.0)))
        if len(self._rows) >= max(LEAST, self._trained + EVERY):
            self._train()

    def _train(self) -> None:
        import lightgbm

        self._names = sorted({name for row in self._rows for name in row})
        table = np.array([[row.get(name, 0.0) for name in self._names] for row in self._rows])
        errors = np.array(self._errors) - np.median(self._errors)
        self._trees = lightgbm.train(dict(_SETTINGS), lightgbm.Dataset(table, errors), _ROUNDS)
        self._trained = len(self._rows)


def _features(task: Task, candidate: Candidate) -> dict[str, float]:
    """Numbers by name: decisions (those that are words: one of each), and what the cost model says."""
    found = {
        "instructions": math.log1p(candidate.instructions),
        "code": math.log1p(candidate.code),
        "constants": math.log1p(candidate.constants),
        "workspace": math.log1p(candidate.workspace),
        f"op {task.op}": 1.0,
    }
    for name, value in candidate.point.values:
        found.update({f"{name} {value}": 1.0} if isinstance(value, str) else {name: float(value)})
    return found


def model_for(name: str) -> Model:
    """``analytic``, ``learned``, or ``auto``: the learned one where LightGBM is installed."""
    if name == "analytic":
        return Analytic()
    if find_spec("lightgbm") is not None:
        return Learned()
    if name == "auto":
        return Analytic()
    raise UsageError("the learned cost model needs LightGBM", hint="pip install 'microc[tune]', or --model analytic")
