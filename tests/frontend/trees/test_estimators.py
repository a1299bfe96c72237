# SPDX-License-Identifier: Apache-2.0
"""What scikit-learn's estimators predict, compiled, as they say it (`python -m tests.estimators` asks on more data)."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs scikit-learn and skl2onnx (pip install microc[sklearn])")
pytest.importorskip("skl2onnx", reason="needs skl2onnx (pip install microc[sklearn])")

from sklearn import (
    calibration,
    datasets,
    discriminant_analysis,
    ensemble,
    linear_model,
    mixture,
    multiclass,
    naive_bayes,
    neighbors,
    neural_network,
    pipeline,
    preprocessing,
    svm,
    tree,
)

from microc.errors import ModelError, UnsupportedError
from microc.frontend.trees import sklearn as reader
from tests.estimators import NAMES, wrong
from tests.frontend.run import library
from tests.support.campaign import everything

REFUSED = ("GaussianProcessClassifier",)
"""Estimators that skl2onnx does not convert for several classes."""


@pytest.mark.parametrize("name", [name for name in NAMES if name not in REFUSED])
def test_estimators(name: str) -> None:
    """Ensembles are of ten members, or of as many as their constructors say where everything is asked for."""
    assert not wrong(name, "iris", **({} if everything() else {"n_estimators": 10}))


@pytest.mark.parametrize("name", REFUSED)
def test_what_skl2onnx_does_not_convert_is_refused(name: str) -> None:
    assert "skl2onnx cannot convert" in wrong(name, "iris")


@pytest.mark.parametrize("features", [1.0, 0.5])
def test_isolation_forest(features: float) -> None:
    """Scores as well as labels, of trees that see all features or some; a threshold that training found, too."""
    x = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)
    estimator = ensemble.IsolationForest(n_estimators=20, max_features=features, contamination=0.1, random_state=0).fit(
        x
    )
    rows = np.float32(1.5) * x[:40] + np.float32(0.01)
    label, scores = library(reader.read_estimator(estimator, rows.shape))(rows)
    np.testing.assert_allclose(scores, estimator.decision_function(rows), atol=2e-6)
    np.testing.assert_array_equal(label, estimator.predict(rows))


@pytest.mark.parametrize("data_set", ["iris", "digits"])
def test_quantile_transformer(data_set: str) -> None:
    """Features equal to repeated quantiles, constant ones, quantiles that differ in float64 only."""
    x = getattr(datasets, f"load_{data_set}")().data[:, :30].astype(np.float32)
    estimator = preprocessing.QuantileTransformer(n_quantiles=75).fit(x[::2])
    rows = np.concatenate([x[1:160:4], x[:20] * np.float32(1.01) - np.float32(0.3)])
    found = library(reader.read_estimator(estimator, rows.shape))(rows)
    np.testing.assert_allclose(found, estimator.transform(rows), atol=2e-4)
    with pytest.raises(UnsupportedError, match="QuantileTransformer with output_distribution='normal'"):
        reader.read_estimator(preprocessing.QuantileTransformer(n_quantiles=9, output_distribution="normal").fit(x))
    before = pipeline.make_pipeline(preprocessing.QuantileTransformer(n_quantiles=75), linear_model.Ridge())
    with pytest.raises(UnsupportedError, match="QuantileTransformer with repeated quantiles_"):
        reader.read_estimator(before.fit(x, x[:, 2]))


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_mixture_far_from_zero(kind: str) -> None:
    """Means 1e4 deviations from zero, whose squares cancel in float32 unless the means are subtracted first."""
    x = np.random.default_rng(4).normal(size=(90, 3)) + np.repeat([[0.0], [1.5], [4.0]], 30, axis=0)
    x = (x + 1e4).astype(np.float32)
    estimator = mixture.GaussianMixture(3, covariance_type=kind, random_state=0).fit(x.astype(np.float64))
    label, shares = library(reader.read_estimator(estimator, x.shape))(x)
    np.testing.assert_allclose(shares, estimator.predict_proba(x.astype(np.float64)), atol=1e-3)
    np.testing.assert_array_equal(label, estimator.predict(x.astype(np.float64)))


@pytest.mark.parametrize("data_set", ["iris", "breast_cancer"])
@pytest.mark.parametrize("member", [svm.LinearSVC(random_state=0), linear_model.RidgeClassifier()])
def test_one_for_each_class_of_linear_scores(data_set: str, member: object) -> None:
    held = getattr(datasets, f"load_{data_set}")()
    x = held.data.astype(np.float32)
    estimator = multiclass.OneVsRestClassifier(member).fit(x[::2], held.target[::2])
    label, scores = library(reader.read_estimator(estimator, x[1:80:2].shape))(x[1:80:2])
    wanted = estimator.decision_function(x[1:80:2].astype(np.float64))
    np.testing.assert_allclose(scores[:, 1] if wanted.ndim == 1 else scores, wanted, atol=1e-4 * np.abs(wanted).max())
    np.testing.assert_array_equal(label, estimator.predict(x[1:80:2]))


def test_outliers_by_neighbours_that_tie_are_refused() -> None:
    x = datasets.load_digits().data[:300].astype(np.float32)
    with pytest.raises(UnsupportedError, match="LocalOutlierFactor with n_neighbors=20"):
        reader.read_estimator(neighbors.LocalOutlierFactor(novelty=True).fit(x))
    x = datasets.load_wine().data.astype(np.float32)
    estimator = neighbors.LocalOutlierFactor(novelty=True).fit(x[::2])
    scores = library(reader.read_estimator(estimator, x[1:40:2].shape))(x[1:40:2])[1]
    np.testing.assert_allclose(scores.reshape(-1), estimator.decision_function(x[1:40:2]), atol=1e-4)


def test_trees_of_one_row() -> None:
    x = np.eye(4, dtype=np.float32)
    estimator = ensemble.IsolationForest(n_estimators=3, max_samples=1, random_state=0).fit(x)
    np.testing.assert_array_equal(
        library(reader.read_estimator(estimator, x.shape))(x)[1], estimator.decision_function(x)
    )


@pytest.mark.parametrize("metric", ["euclidean", "manhattan"])
def test_nearest_centroid(metric: str) -> None:
    x = np.random.default_rng(1).normal(size=(90, 3)).astype(np.float32)
    estimator = neighbors.NearestCentroid(metric=metric).fit(x, np.repeat([7, 2, 5], 30))
    np.testing.assert_array_equal(library(reader.read_estimator(estimator, x.shape))(x), estimator.predict(x))
    uneven = neighbors.NearestCentroid(priors=[0.5, 0.25, 0.25]).fit(x, np.repeat([7, 2, 5], 30))
    with pytest.raises(UnsupportedError, match="priors"):
        reader.read_estimator(uneven)


def test_names_of_results() -> None:
    x, y = np.eye(3, dtype=np.float32), [0, 1, 2]
    assert reader.read_estimator(linear_model.LogisticRegression().fit(x, y)).outputs == ("label", "probabilities")
    assert reader.read_estimator(tree.DecisionTreeClassifier().fit(x, y)).outputs == ("label", "probabilities")
    assert reader.read_estimator(svm.LinearSVC().fit(x, y)).outputs == ("label", "probabilities")
    assert reader.read_estimator(ensemble.IsolationForest(n_estimators=2).fit(x)).outputs == ("label", "scores")
    for unfitted in (ensemble.IsolationForest(), pipeline.Pipeline([])):
        with pytest.raises(ModelError, match="not fitted"):
            reader.read_estimator(unfitted)


def test_conversions_that_drop_parameters_are_refused() -> None:
    """Weights of neighbours, calibrations of steps, labels that do not exclude each other."""
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(120, 4)) * [1, 10, 0.1, 3]).astype(np.float32)
    y = (x[:, 0] + x[:, 1] / 10 > 0).astype(int) + (x[:, 3] > 2)
    many = np.stack([y > 0, x[:, 2] > 0], axis=1).astype(int)
    for estimator in (
        neighbors.KNeighborsRegressor(4, weights="distance").fit(x, x[:, 1]),
        neighbors.KNeighborsClassifier(4, weights="distance").fit(x, y),
        pipeline.make_pipeline(preprocessing.StandardScaler(), neighbors.KNeighborsRegressor(weights="distance")).fit(
            x, x[:, 1]
        ),
        calibration.CalibratedClassifierCV(naive_bayes.GaussianNB(), method="isotonic", cv=3).fit(x, y),
        neural_network.MLPClassifier((4,), max_iter=5, random_state=0).fit(x, many),
        multiclass.OneVsRestClassifier(svm.SVC()).fit(x, y),
        linear_model.SGDClassifier(loss="modified_huber", random_state=0).fit(*datasets.load_wine(return_X_y=True)),
    ):
        with pytest.raises(UnsupportedError):
            reader.read_estimator(estimator)
    read = neighbors.KNeighborsRegressor(4).fit(x, x[:, 1])
    assert reader.read_estimator(read).outputs


def test_a_discriminant_of_badly_scaled_features() -> None:
    held = datasets.load_breast_cancer()
    x = held.data.astype(np.float32)
    estimator = discriminant_analysis.LinearDiscriminantAnalysis().fit(x[::2], held.target[::2])
    label, shares = library(reader.read_estimator(estimator, (60, x.shape[1])))(x[1::2][:60])
    np.testing.assert_allclose(shares, estimator.predict_proba(x[1::2][:60]), atol=1e-4)
    np.testing.assert_array_equal(label, estimator.predict(x[1::2][:60]))


@pytest.mark.parametrize("scaler", [None, "StandardScaler", "MinMaxScaler", "MaxAbsScaler", "RobustScaler"])
def test_saturated_probabilities_do_not_make_the_label(scaler: str | None) -> None:
    """Scores of hundreds: probabilities of several classes are 1, or all are 0, while the label is clear."""
    x, y = datasets.load_digits(return_X_y=True)
    x = x.astype(np.float32)
    for last in (
        linear_model.SGDClassifier(loss="log_loss", random_state=0),
        multiclass.OneVsRestClassifier(linear_model.LogisticRegression(C=1e3, max_iter=200)),
    ):
        estimator = last if scaler is None else pipeline.make_pipeline(getattr(preprocessing, scaler)(), last)
        estimator.fit(x[::8], y[::8])
        label, shares = library(reader.read_estimator(estimator, (200, 64)))(x[1:1600:8])
        np.testing.assert_array_equal(label, estimator.predict(x[1:1600:8]))
        np.testing.assert_allclose(shares, estimator.predict_proba(x[1:1600:8]), atol=1e-4)
