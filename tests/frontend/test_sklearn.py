"""scikit-learn's and LightGBM's trees, compiled, against the estimators themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from microc.dtypes import Array
from microc.errors import ModelError, UnsupportedError, UsageError
from microc.frontend import sklearn as reader
from tests.frontend.run import library

ensemble = pytest.importorskip("sklearn.ensemble", reason="needs scikit-learn (pip install microc[sklearn])")
tree = pytest.importorskip("sklearn.tree")

ROWS, FEATURES = 40, 6
BOUND = 2e-6
"""Leaves are float32, their sums too: relative to the largest result."""


def problem(classes: int) -> tuple[Array, Array]:
    """Data of float32 that are multiples of 1/256, so that they are integers too, and targets (``classes`` 0: numbers)."""
    rng = np.random.default_rng(classes)
    x = (rng.integers(-1000, 1000, (300, FEATURES)) / 256).astype(np.float32)
    score = x[:, 0] * x[:, 1] + np.abs(x[:, 2]) + rng.normal(0, 0.5, 300)
    if not classes:
        return x, score
    return x, np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))


CLASSIFIERS = (
    tree.DecisionTreeClassifier(random_state=0),
    tree.DecisionTreeClassifier(max_depth=1, random_state=0),
    ensemble.RandomForestClassifier(8, random_state=0),
    ensemble.ExtraTreesClassifier(5, random_state=0),
    ensemble.GradientBoostingClassifier(n_estimators=5, random_state=0),
    ensemble.HistGradientBoostingClassifier(max_iter=5, random_state=0),
)
REGRESSORS = (
    tree.DecisionTreeRegressor(random_state=0),
    ensemble.RandomForestRegressor(8, random_state=0),
    ensemble.GradientBoostingRegressor(n_estimators=5, random_state=0),
    ensemble.HistGradientBoostingRegressor(max_iter=5, random_state=0),
)


def named(estimators: tuple[Any, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("estimator", estimators, ids=lambda e: type(e).__name__)


@named(CLASSIFIERS)
@pytest.mark.parametrize("classes", [2, 3])
def test_classifiers(estimator: Any, classes: int) -> None:
    x, y = problem(classes)
    estimator.fit(x, y)
    label, probabilities = library(reader.read(estimator, (ROWS, FEATURES)))(x[:ROWS])
    np.testing.assert_allclose(probabilities, estimator.predict_proba(x[:ROWS]), atol=BOUND)
    np.testing.assert_array_equal(label, estimator.predict(x[:ROWS]))


@named(REGRESSORS)
def test_regressors(estimator: Any) -> None:
    x, y = problem(0)
    estimator.fit(x, y)
    found = library(reader.read(estimator, (ROWS, FEATURES)))(x[:ROWS])
    wanted = estimator.predict(x[:ROWS])
    np.testing.assert_allclose(found, wanted, atol=BOUND * np.abs(wanted).max())


@named(CLASSIFIERS)
def test_integers_decide_alike(estimator: Any) -> None:
    """Integer features lead to the leaves that their real values lead to; integer leaves keep the label."""
    x, y = problem(3)
    estimator.fit(x, y)
    stored = (x[:ROWS] * 256).astype(np.int16)
    options: dict[str, Any] = {"input_dtype": "int16", "input_scale": 1 / 256}
    _, probabilities = library(reader.read(estimator, (ROWS, FEATURES), **options))(stored)
    np.testing.assert_allclose(probabilities, estimator.predict_proba(x[:ROWS]), atol=BOUND)
    graph = reader.read(estimator, (ROWS, FEATURES), **options, leaf_dtype="int16")
    label, scores = library(graph)(stored)
    assert scores.dtype == np.int32 and not any(kind.dtype == "float32" for kind in graph.types.values())
    np.testing.assert_array_equal(label, estimator.predict(x[:ROWS]))


def test_two_classes_of_integers() -> None:
    x, y = problem(2)
    estimator = ensemble.GradientBoostingClassifier(n_estimators=9, random_state=0).fit(x, y)
    graph = reader.read(estimator, (ROWS, FEATURES), input_dtype="int16", input_scale=1 / 256, leaf_dtype="int16")
    label, scores = library(graph)((x[:ROWS] * 256).astype(np.int16))
    np.testing.assert_array_equal(label, estimator.predict(x[:ROWS]))
    (name,) = (
        name
        for name in graph.types
        if graph.types[name].quant and graph.types[name].dtype == "int32" and "scores" in name
    )
    quant = graph.types[name].quant
    assert quant is not None
    np.testing.assert_allclose(scores * quant.scale[0], estimator.decision_function(x[:ROWS])[:, None], atol=1e-3)


def test_classes_that_are_not_places() -> None:
    x, y = problem(3)
    estimator = tree.DecisionTreeClassifier(random_state=0).fit(x, np.array([-7, 20, 3000])[y])
    label, _ = library(reader.read(estimator, (ROWS, FEATURES)))(x[:ROWS])
    np.testing.assert_array_equal(label, estimator.predict(x[:ROWS]))


def test_missing_values() -> None:
    x, y = problem(3)
    x = x.copy()
    x[::3, 0] = np.nan
    for estimator in (
        ensemble.HistGradientBoostingClassifier(max_iter=4, random_state=0),
        ensemble.RandomForestClassifier(4, random_state=0),
    ):
        estimator.fit(x, y)
        _, found = library(reader.read(estimator, (ROWS, FEATURES)))(x[:ROWS])
        np.testing.assert_allclose(found, estimator.predict_proba(x[:ROWS]), atol=BOUND)


@pytest.mark.parametrize("objective", ["binary", "multiclass", "regression", "poisson", "rf"])
def test_lightgbm(objective: str, capfd: pytest.CaptureFixture[str]) -> None:
    lightgbm = pytest.importorskip("lightgbm", reason="needs LightGBM (pip install microc[lightgbm])")
    x, y = problem({"binary": 2, "multiclass": 3, "rf": 2}.get(objective, 0))
    x = x.copy()
    x[::5, 1] = np.nan
    options: dict[str, Any] = {"objective": objective, "num_leaves": 7, "verbose": -1, "min_data_in_leaf": 5}
    if objective == "multiclass":
        options["num_class"] = 3
    if objective == "rf":
        options |= {"objective": "binary", "boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.7}
    booster = lightgbm.train(options, lightgbm.Dataset(x, np.abs(y)), 6)
    wanted = booster.predict(x[:ROWS])
    results = library(reader.read(booster, (ROWS, FEATURES)))(x[:ROWS])
    found = results[1] if isinstance(results, tuple) else results
    found = found[:, 1] if found.ndim > wanted.ndim else found
    np.testing.assert_allclose(found, wanted, atol=BOUND * max(1, np.abs(wanted).max()))


def test_refusals() -> None:
    x, y = problem(2)
    with pytest.raises(ModelError, match="not fitted"):
        reader.read(tree.DecisionTreeClassifier())
    fitted = tree.DecisionTreeClassifier(max_depth=2).fit(x, y)
    with pytest.raises(UsageError, match="features"):
        reader.read(fitted, (1, 3))
    with pytest.raises(UsageError, match="dtype"):
        reader.read(fitted, leaf_dtype="float16")
    with pytest.raises(UsageError, match="positive"):
        reader.read(fitted, input_dtype="int8", input_scale=0.0)
    several = tree.DecisionTreeClassifier(max_depth=2).fit(x, np.stack([y, y], axis=1))
    with pytest.raises(UnsupportedError, match="several outputs"):
        reader.read(several)
