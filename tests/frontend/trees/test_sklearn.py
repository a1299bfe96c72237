# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's and LightGBM's trees, compiled, against the estimators themselves."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError, UsageError
from microc.frontend.trees import sklearn as reader
from microc.ops.meaning import evaluate
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
    label, probabilities = library(reader.read_estimator(estimator, (ROWS, FEATURES)))(x[:ROWS])
    np.testing.assert_allclose(probabilities, estimator.predict_proba(x[:ROWS]), atol=BOUND)
    np.testing.assert_array_equal(label, estimator.predict(x[:ROWS]))


@named(REGRESSORS)
def test_regressors(estimator: Any) -> None:
    x, y = problem(0)
    estimator.fit(x, y)
    found = library(reader.read_estimator(estimator, (ROWS, FEATURES)))(x[:ROWS])
    wanted = estimator.predict(x[:ROWS])
    np.testing.assert_allclose(found, wanted, atol=BOUND * np.abs(wanted).max())


@named(CLASSIFIERS)
def test_integers_decide_alike(estimator: Any) -> None:
    """Integer features lead to the leaves that their real values lead to; integer leaves keep the label."""
    x, y = problem(3)
    estimator.fit(x, y)
    stored = (x[:ROWS] * 256).astype(np.int16)
    options: dict[str, Any] = {"input_dtype": "int16", "input_scale": 1 / 256}
    _, probabilities = library(reader.read_estimator(estimator, (ROWS, FEATURES), **options))(stored)
    np.testing.assert_allclose(probabilities, estimator.predict_proba(x[:ROWS]), atol=BOUND)
    graph = reader.read_estimator(estimator, (ROWS, FEATURES), **options, leaf_dtype="int16")
    label, scores = library(graph)(stored)
    assert scores.dtype == np.int32 and not any(kind.dtype == "float32" for kind in graph.types.values())
    np.testing.assert_array_equal(label, estimator.predict(x[:ROWS]))


def test_two_classes_of_integers() -> None:
    x, y = problem(2)
    estimator = ensemble.GradientBoostingClassifier(n_estimators=9, random_state=0).fit(x, y)
    graph = reader.read_estimator(
        estimator, (ROWS, FEATURES), input_dtype="int16", input_scale=1 / 256, leaf_dtype="int16"
    )
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
    label, _ = library(reader.read_estimator(estimator, (ROWS, FEATURES)))(x[:ROWS])
    np.testing.assert_array_equal(label, estimator.predict(x[:ROWS]))


@pytest.mark.parametrize("kind", ["Classifier", "Regressor"])
def test_categories_of_histogram_boosting(kind: str) -> None:
    """Categories are any numbers; what training has not seen goes where missing values go."""
    ensemble = pytest.importorskip("sklearn.ensemble")
    rng = np.random.default_rng(3)
    x = rng.standard_normal((200, 4)).astype(np.float32)
    x[:, 1], x[:, 3] = rng.integers(0, 30, 200), rng.choice([2.5, 10, -3, 7], 200)
    y = x[:, 0] + 2 * np.isin(x[:, 1], [1, 5, 6, 7]) + (x[:, 3] == -3)
    x[rng.random(x.shape) < 0.1] = np.nan
    estimator = getattr(ensemble, f"HistGradientBoosting{kind}")(max_iter=5, categorical_features=[1, 3])
    estimator.fit(x, y if kind == "Regressor" else np.digitize(y, [0.5, 1.5]))
    x[::5, 1], x[::7, 3] = rng.choice([-1, 40, 2.5], 40), rng.choice([2.6, 0, np.nan], len(x[::7]))
    outputs, _ = evaluate(reader.read_estimator(estimator, x.shape), {"input": x})
    expected = [estimator.predict(x)] + ([estimator.predict_proba(x)] if kind == "Classifier" else [])
    for ours, theirs in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=2e-6)


def test_missing_values() -> None:
    x, y = problem(3)
    x = x.copy()
    x[::3, 0] = np.nan
    for estimator in (
        ensemble.HistGradientBoostingClassifier(max_iter=4, random_state=0),
        ensemble.RandomForestClassifier(4, random_state=0),
    ):
        estimator.fit(x, y)
        _, found = library(reader.read_estimator(estimator, (ROWS, FEATURES)))(x[:ROWS])
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
    results = library(reader.read_estimator(booster, (ROWS, FEATURES)))(x[:ROWS])
    found = results[1] if isinstance(results, tuple) else results
    found = found[:, 1] if found.ndim > wanted.ndim else found
    np.testing.assert_allclose(found, wanted, atol=BOUND * max(1, np.abs(wanted).max()))


REAL = {
    "diabetes": (tree.DecisionTreeRegressor, ensemble.RandomForestRegressor, ensemble.ExtraTreesRegressor),
    "iris": (tree.DecisionTreeClassifier, ensemble.RandomForestClassifier),
    "wine": (tree.ExtraTreeClassifier, ensemble.HistGradientBoostingClassifier),
    "breast_cancer": (ensemble.RandomForestClassifier, ensemble.GradientBoostingClassifier),
    "digits": (tree.DecisionTreeClassifier, ensemble.ExtraTreesClassifier),
}
"""Measurements, whose thresholds lie in the middle of two neighbouring floats, or of floats as near as that."""


def real_problem(name: str) -> tuple[Array, Array, Array]:
    """Features for training, the targets of these, features for testing."""
    datasets = pytest.importorskip("sklearn.datasets")
    held = getattr(datasets, f"load_{name}")()
    order = np.random.default_rng(0).permutation(len(held.data))
    train, test = np.split(order, [2 * len(order) // 3])
    x = held.data.astype(np.float32)
    return x[train], held.target[train], x[test]


def agree(estimator: Any, x: Array) -> None:
    """Every row as the estimator says: sums of leaves within the rounding of float32, classes the same."""
    wanted = estimator.predict_proba(x) if hasattr(estimator, "classes_") else estimator.predict(x)
    results = library(reader.read_estimator(estimator, x.shape))(x)
    if hasattr(estimator, "classes_"):
        label, results = results
        np.testing.assert_array_equal(label, estimator.predict(x))
    np.testing.assert_allclose(results, wanted, rtol=0, atol=BOUND * max(1, np.abs(wanted).max()))


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kinds in REAL.items() for kind in kinds])
def test_measurements(name: str, kind: Any) -> None:
    train, target, test = real_problem(name)
    few = {"n_estimators": 20} if "n_estimators" in kind().get_params() else {}
    agree(kind(random_state=0, **few).fit(train, target), test)


@pytest.mark.parametrize("name", ["diabetes", "breast_cancer"])
def test_lightgbm_on_measurements(name: str) -> None:
    lightgbm = pytest.importorskip("lightgbm", reason="needs LightGBM (pip install microc[lightgbm])")
    train, target, test = real_problem(name)
    kind = lightgbm.LGBMRegressor if name == "diabetes" else lightgbm.LGBMClassifier
    agree(kind(n_estimators=20, verbose=-1).fit(train, target), test)


def test_features_next_to_thresholds() -> None:
    """Neighbouring floats, every one of its own class: all thresholds lie between two of them."""
    start = np.array([1.0, 0.1, 1e-40, 3.0e38, -7.3], np.float32)
    x = np.stack([start, *(start + np.float32(0) for _ in range(39))])
    for k in range(1, len(x)):
        x[k] = np.nextafter(x[k - 1], np.float32(np.inf))
    for column in range(len(start)):
        agree(tree.DecisionTreeRegressor(random_state=0).fit(x[:, [column]], np.arange(40.0)), x[:, [column]])


def test_integers_next_to_thresholds() -> None:
    """The quotient of a threshold and the input's scale may round to an integer that lies on the other side."""
    scale = 0.1
    q = np.arange(-400, 400, dtype=np.int16).reshape(-1, 1)
    for k in (3, 7, 57, 123, 391):
        for threshold in (np.nextafter(k * scale, 0), k * scale, np.nextafter(k * scale, 99)):
            found = reader._divide_threshold(float(threshold), scale)
            exact = [Fraction(int(n)) * Fraction(scale) <= Fraction(float(threshold)) for n in q[:, 0]]
            assert [n <= found for n in q[:, 0].tolist()] == exact, (k, threshold)


def test_refusals() -> None:
    x, y = problem(2)
    with pytest.raises(ModelError, match="not fitted"):
        reader.read_estimator(tree.DecisionTreeClassifier())
    fitted = tree.DecisionTreeClassifier(max_depth=2).fit(x, y)
    with pytest.raises(UsageError, match="features"):
        reader.read_estimator(fitted, (1, 3))
    with pytest.raises(UsageError, match="dtype"):
        reader.read_estimator(fitted, leaf_dtype="float16")
    with pytest.raises(UsageError, match="positive"):
        reader.read_estimator(fitted, input_dtype="int8", input_scale=0.0)
    several = tree.DecisionTreeClassifier(max_depth=2).fit(x, np.stack([y, y], axis=1))
    with pytest.raises(UnsupportedError, match="got 2 outputs"):
        reader.read_estimator(several)
