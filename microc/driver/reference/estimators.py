"""Fitted scikit-learn and LightGBM estimators, which are asked themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from microc.driver.reference.runtime import Answer, RuntimeRefusal, imported, version_of
from microc.dtypes import Array
from microc.errors import ToolError
from microc.frontend.trees import lightgbm
from microc.frontend.trees.answers import answers, tied


class Estimator:
    """A fitted estimator, or LightGBM's booster: rows of features to a prediction, or to a label and probabilities."""

    def __init__(self, estimator: Any) -> None:
        homes = {kind.__module__.split(".")[0] for kind in type(estimator).__mro__}
        self.name = "lightgbm" if "lightgbm" in homes else "sklearn"
        self.version = version_of("lightgbm" if self.name == "lightgbm" else "scikit-learn")
        self._estimator = estimator

    def run(self, arrays: Sequence[Array]) -> Answer:
        (x,) = arrays
        estimator = self._estimator
        try:
            if hasattr(estimator, "model_to_string"):
                return self._boosted(np.asarray(estimator.predict(x)))
            outputs, undecided = answers(estimator, x)
            return Answer(outputs, undecided=undecided)
        except Exception as error:
            raise RuntimeRefusal(str(error)) from error

    def _boosted(self, found: Array) -> Answer:
        """A booster gives no label; where its objective makes classes, the network gives one."""
        post = lightgbm.parse(self._estimator.model_to_string().encode(), self.name)[0].post
        if post not in ("sigmoid", "softmax"):
            return Answer((found,))
        shares = np.stack([1 - found, found], axis=1) if post == "sigmoid" else found
        return Answer((shares.argmax(axis=1), shares), undecided={0: tied(shares)})

    def reset(self) -> None:
        """Estimators have no state."""


def booster(text: bytes, file: str) -> Estimator:
    """The booster of LightGBM's text model."""
    package = imported("lightgbm", "LightGBM")
    try:
        return Estimator(package.Booster(model_str=text.decode("utf-8", "replace")))
    except package.basic.LightGBMError as error:
        raise ToolError(f"LightGBM does not load the model: {error}", where=file) from error
