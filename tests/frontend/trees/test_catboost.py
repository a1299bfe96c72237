# SPDX-License-Identifier: Apache-2.0
"""CatBoost's JSON export, written by hand and by CatBoost, against what CatBoost predicts."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import microc
from microc.errors import ModelError, UnsupportedError
from microc.frontend.detect import read_model_data, read_object
from microc.frontend.trees.catboost_json import is_catboost
from microc.frontend.trees.sklearn import read_booster_file
from microc.graph.ir import Graph
from microc.ops.meaning import evaluate
from tests.frontend.mutate import survey

NAN = float("nan")


def feature(index: int, nan: str = "AsFalse") -> dict[str, Any]:
    return {"borders": [], "feature_index": index, "flat_feature_index": index, "nan_value_treatment": nan}


def split(index: int, border: float) -> dict[str, Any]:
    return {"border": border, "float_feature_index": index, "split_index": 0, "split_type": "FloatFeature"}


SYMMETRIC = {"leaf_values": [1, 2, 4, 8], "splits": [split(0, 0.5), split(1, -1.0)]}
"""Bit 0 of a leaf's number is x0 > 0.5, bit 1 is x1 > -1."""
OTHER = {**split(0, 1), "split_type": "OnlineCtr"}
NESTED = {
    "split": split(1, 0.0),
    "left": {"value": 1},
    "right": {"split": split(0, 2.0), "left": {"value": 2}, "right": {"value": 4}},
}


def model(
    trees: dict[str, Any], loss: str = "RMSE", nan: tuple[str, str] = ("AsFalse", "AsTrue"), **more: Any
) -> dict[str, Any]:
    return {
        "features_info": {"float_features": [feature(k, treatment) for k, treatment in enumerate(nan)]},
        "model_info": {"params": {"loss_function": {"type": loss}}},
        "scale_and_bias": [2, [0.25]],
        **trees,
        **more,
    }


def written(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()


ROWS = np.array([[0.5, -1], [0.6, -1], [0, 0], [3, 0.5], [NAN, -2], [NAN, NAN], [np.inf, np.inf]], np.float32)


@pytest.mark.parametrize(
    ("trees", "expected"),
    [
        ({"oblivious_trees": [SYMMETRIC, {"leaf_values": [16], "splits": []}]}, [17, 18, 20, 24, 17, 20, 24]),
        ({"trees": [NESTED]}, [1, 1, 1, 4, 1, 2, 4]),
    ],
)
def test_trees_are_scaled_and_biased(trees: dict[str, Any], expected: list[float]) -> None:
    data = written(model(trees))
    assert is_catboost(data)
    prediction = np.asarray(microc.compile(data, input_shapes={"input": ROWS.shape})(ROWS))
    assert prediction.tolist() == [2 * x + 0.25 for x in expected]


def evaluate_rows(graph: Graph, rows: np.ndarray[Any, Any]) -> list[Any]:
    found = [evaluate(graph, {graph.inputs[0]: row[None]})[0] for row in rows]
    return [np.concatenate([output[k] for output in found]) for k in range(len(graph.outputs))]


def test_several_classes_have_the_labels_of_the_file() -> None:
    tree = {"leaf_values": [1, 2, 3, 6, 5, 4], "splits": [split(0, 0.5)]}
    content = model({"oblivious_trees": [tree]}, "MultiClass", scale_and_bias=[1, [0, 0, 0]])
    content["model_info"]["class_params"] = {"class_names": [7, -1, 3]}
    label, probabilities = evaluate_rows(read_model_data(written(content), "x.json"), ROWS[:2])
    assert label.tolist() == [3, 7]
    assert np.allclose(
        probabilities, [np.exp([1, 2, 3]) / np.exp([1, 2, 3]).sum(), np.exp([6, 5, 4]) / np.exp([6, 5, 4]).sum()]
    )


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"features_info": {"categorical_features": [{}]}}, UnsupportedError, "categorical_features"),
        ({"model_info": {"params": {"loss_function": {"type": "RMSEWithUncertainty"}}}}, UnsupportedError, "RMSEWithUncertainty"),
        ({"oblivious_trees": [{**SYMMETRIC, "leaf_values": [1]}]}, ModelError, "expected 4"),
        ({"oblivious_trees": [{**SYMMETRIC, "splits": [split(0, 1)] * 60}]}, UnsupportedError, "at most 20"),
        ({"oblivious_trees": [{**SYMMETRIC, "splits": [split(5, 1), split(0, 1)]}]}, ModelError, "float_feature_index"),
        ({"oblivious_trees": [{**SYMMETRIC, "splits": [OTHER] * 2}]}, UnsupportedError, "OnlineCtr"),
        ({"scale_and_bias": [1, []]}, ModelError, "bias"),
        ({"scale_and_bias": [1]}, ModelError, "broken"),
        ({"model_info": {}}, ModelError, "params"),
        ({"oblivious_trees": []}, ModelError, "without trees"),
    ],
)  # fmt: skip
def test_other_models_are_refused(change: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read_model_data(written({**model({"oblivious_trees": [SYMMETRIC]}), **change}), "x.json")


def test_damaged_files() -> None:
    for trees in ({"oblivious_trees": [SYMMETRIC]}, {"trees": [NESTED]}):
        outcomes = survey(lambda data: read_booster_file(data, "m", {}), written(model(trees)), 300, seed=5)
        assert outcomes["ModelError"] + outcomes["UnsupportedError"] > 60


CLASSIFIERS = [
    {},
    {"loss_function": "MultiClass"},
    {"loss_function": "MultiClassOneVsAll"},
    {"grow_policy": "Lossguide"},
    {"nan_mode": "Max"},
]
REGRESSORS = [
    {},
    {"loss_function": "Poisson"},
    {"loss_function": "MultiRMSE"},
    {"grow_policy": "Depthwise", "nan_mode": "Max"},
]


@pytest.mark.parametrize(
    ("kind", "options"), [*(("Classifier", o) for o in CLASSIFIERS), *(("Regressor", o) for o in REGRESSORS)]
)
def test_networks_predict_as_catboost(kind: str, options: dict[str, Any]) -> None:
    catboost = pytest.importorskip("catboost")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 3)).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = NAN
    y = np.nan_to_num(x[:, 0] + x[:, 1] ** 2)
    target = np.digitize(y, [0, 1] if "Multi" in str(options) else [0]) * 2 + 5 if kind == "Classifier" else np.abs(y)
    target = np.stack([target, target**2], 1) if options.get("loss_function") == "MultiRMSE" else target
    estimator = getattr(catboost, f"CatBoost{kind}")(
        iterations=5, depth=3, verbose=0, allow_writing_files=False, **options
    )
    estimator.fit(x, target)
    outputs = evaluate_rows(read_object(estimator), x)
    expected = [estimator.predict(x)] + ([estimator.predict_proba(x)] if kind == "Classifier" else [])
    for ours, theirs in zip(outputs, expected, strict=True):
        assert np.allclose(ours.reshape(-1), np.ravel(theirs), rtol=2e-6, atol=2e-6)
