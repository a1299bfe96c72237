# SPDX-License-Identifier: Apache-2.0
"""Support vector classifiers with probabilities, against scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import microc
from microc.errors import UnsupportedError
from microc.frontend.trees.sklearn import read_estimator
from microc.ops.meaning import evaluate

svm = pytest.importorskip("sklearn.svm")
pytestmark = pytest.mark.filterwarnings("ignore")


def fit_classifier(classes: int, kind: str = "SVC", **options: Any) -> tuple[Any, Any]:
    rng = np.random.default_rng(classes)
    x = rng.standard_normal((90, 4)).astype(np.float32)
    score = x[:, 0] + x[:, 1] * x[:, 2]
    y = np.digitize(score, np.quantile(score, np.arange(1, classes) / classes)) * 2 + 5
    return getattr(svm, kind)(probability=True, random_state=0, **options).fit(x, y), x


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize(
    "options",
    [{"kernel": "rbf"}, {"kernel": "linear"}, {"kernel": "poly", "coef0": 1.0}, {"kernel": "sigmoid"}],
    ids=str,
)
def test_labels_are_votes_and_probabilities_are_coupled(classes: int, options: dict[str, Any]) -> None:
    estimator, x = fit_classifier(classes, **options)
    (label, probabilities), _ = evaluate(read_estimator(estimator, x.shape), {"input": x})
    np.testing.assert_array_equal(label, estimator.predict(x))
    np.testing.assert_allclose(probabilities, estimator.predict_proba(x), atol=2e-5)


def test_compiled_networks_compute_as_their_estimators() -> None:
    estimator, x = fit_classifier(3, "NuSVC", nu=0.3)
    library = microc.compile(estimator)
    label, probabilities = library(x[:1])
    assert label.tolist() == estimator.predict(x[:1]).tolist()
    np.testing.assert_allclose(probabilities, estimator.predict_proba(x[:1]), atol=2e-5)


def test_broken_ties_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="break_ties=True"):
        read_estimator(fit_classifier(3, break_ties=True)[0])
