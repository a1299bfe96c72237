"""XGBoost's boosters and estimators, which are asked themselves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from microc.driver.reference.runtime import Answer, RuntimeRefusal, imported, version_of
from microc.dtypes import Array
from microc.errors import ToolError
from microc.frontend.trees.answers import tied

EXTRA = "pip install microc[xgboost]"
_SHARES = ("binary:logistic", "multi:softprob", "multi:softmax")
"""Objectives of classes, for which the network gives a label, too."""


class Booster:
    """A booster, or a fitted estimator by its booster and the rounds that it counts."""

    name = "xgboost"

    def __init__(self, model: Any, file_of_estimator: bool = False) -> None:
        self._package = imported("xgboost", "XGBoost", EXTRA)
        self.version = version_of("xgboost")
        is_estimator = hasattr(model, "get_booster")
        self._booster = model.get_booster() if is_estimator else model
        best = self._booster.attr("best_iteration") if is_estimator or file_of_estimator else None
        self._rounds = (0, 0 if best is None else int(best) + 1)
        self._objective = _objective(self._booster)

    def run(self, arrays: Sequence[Array]) -> Answer:
        (x,) = arrays
        try:
            rows = self._package.DMatrix(x, feature_types=self._booster.feature_types)
            rows.feature_names = self._booster.feature_names
            margin = self._objective == "multi:softmax"
            found = self._booster.predict(rows, iteration_range=self._rounds, output_margin=margin)
        except (ValueError, self._package.core.XGBoostError) as error:
            raise RuntimeRefusal(str(error)) from error
        if self._objective not in _SHARES:
            return Answer((found,))
        shares = _softmax(found) if margin else found
        shares = np.stack([1 - shares, shares], axis=1) if shares.ndim == 1 else shares
        return Answer((shares.argmax(axis=1), shares), undecided={0: tied(shares)})

    def reset(self) -> None:
        """Trees have no state."""


def _objective(booster: Any) -> str:

    return str(json.loads(booster.save_config())["learner"]["objective"]["name"])


def _softmax(scores: Array) -> Array:
    powers: Array = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def loaded(data: bytes, file: str) -> Booster:
    """The booster of a model file."""
    package = imported("xgboost", "XGBoost", EXTRA)
    try:
        booster = package.Booster()
        booster.load_model(bytearray(data))
    except package.core.XGBoostError as error:
        raise ToolError(f"XGBoost does not load the model: {error}", where=file) from error
    return Booster(booster, booster.attr("scikit_learn") is not None)
