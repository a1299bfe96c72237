# SPDX-License-Identifier: Apache-2.0
"""Support vector classifiers with and without probabilities, against scikit-learn."""

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
    return getattr(svm, kind)(**{"probability": True, "random_state": 0, **options}).fit(x, y), x


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


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("options", [{}, {"kernel": "linear"}, {"decision_function_shape": "ovo"}], ids=str)
def test_scores_are_those_of_the_decision_function(classes: int, options: dict[str, Any]) -> None:
    """Of two classes, the last column is the score, which is positive for the second class."""
    estimator, x = fit_classifier(classes, probability=False, **options)
    graph = read_estimator(estimator, x.shape)
    assert graph.outputs == ("label", "scores")
    (label, scores), _ = evaluate(graph, {"input": x})
    np.testing.assert_array_equal(label, estimator.predict(x))
    wanted = estimator.decision_function(x)
    np.testing.assert_allclose(scores[:, -1] if classes == 2 else scores, wanted, atol=2e-5)


def test_more_classes_than_probabilities_allow() -> None:
    x = np.random.default_rng(0).standard_normal((80, 4)).astype(np.float32)
    estimator = svm.SVC(gamma=1.0).fit(x, np.arange(80) % 20)
    (label, _), _ = evaluate(read_estimator(estimator, x.shape), {"input": x})
    np.testing.assert_array_equal(label, estimator.predict(x))


def test_compiled_networks_compute_as_their_estimators() -> None:
    estimator, x = fit_classifier(3, "NuSVC", nu=0.3)
    library = microc.compile(estimator)
    label, probabilities = library(x[:1])
    assert label.tolist() == estimator.predict(x[:1]).tolist()
    np.testing.assert_allclose(probabilities, estimator.predict_proba(x[:1]), atol=2e-5)


@pytest.mark.parametrize("probability", [False, True])
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_ties_are_broken_by_scores(classes: int, probability: bool) -> None:
    """Rows of 3 classes have ties of votes: the first class would win, and the scores choose another."""
    estimator, x = fit_classifier(classes, break_ties=True, probability=probability)
    (label, _), _ = evaluate(read_estimator(estimator, x.shape), {"input": x})
    np.testing.assert_array_equal(label, estimator.predict(x))
    estimator.break_ties = False
    assert (label != estimator.predict(x)).any() == (classes == 3)


def test_broken_ties_of_pairs_are_refused() -> None:
    """scikit-learn's predict raises an error, too."""
    with pytest.raises(UnsupportedError, match=r"expected .* break_ties=False with 'ovo'"):
        read_estimator(fit_classifier(3, break_ties=True, decision_function_shape="ovo")[0])
