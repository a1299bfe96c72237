# SPDX-License-Identifier: Apache-2.0
"""LightGBM's text model: every number within its range, or refused by one sentence."""

from __future__ import annotations

import numpy as np
import pytest

from microc.errors import ModelError
from microc.frontend.trees.sklearn import read_booster_file
from microc.ops.meaning import evaluate

HEADER = {
    "version": "v4",
    "num_class": "1",
    "num_tree_per_iteration": "1",
    "max_feature_idx": "3",
    "objective": "regression",
}
TREE = {
    "num_leaves": "3",
    "num_cat": "0",
    "split_feature": "0 1",
    "threshold": "0.5 0.25",
    "decision_type": "2 2",
    "left_child": "1 -1",
    "right_child": "-2 -3",
    "leaf_value": "1 2 3",
    "is_linear": "0",
}


def written(**change: str) -> bytes:
    """A model of one tree; ``change``: other texts for some fields."""
    head, tree = ({name: change.get(name, text) for name, text in part.items()} for part in (HEADER, TREE))
    lines = ["tree", *(f"{k}={v}" for k, v in head.items()), "", "Tree=0", *(f"{k}={v}" for k, v in tree.items())]
    return "\n".join([*lines, "", "end of trees", ""]).encode()


def test_a_model_decides() -> None:
    graph = read_booster_file(written(), "m.txt", {"input": (3, 4)})
    rows = np.array([[0, 0, 9, 9], [0, 1, 9, 9], [1, 0, 9, 9]], np.float32)
    (made,), _ = evaluate(graph, {"input": rows})
    np.testing.assert_array_equal(made, np.array([1, 3, 2], np.float32))


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        ("split_feature", "0 -100000", "split_feature': got -100000"),
        ("split_feature", "0 4", "split_feature': got 4, expected 0..3"),
        ("split_feature", "0 99999999999999999999", "split_feature"),
        ("split_feature", "0 1.5", "split_feature"),
        ("left_child", "-99 -1", "left_child': got -99"),
        ("left_child", "0 -1", "children"),
        ("right_child", "-2 2", "right_child"),
        ("max_feature_idx", "99999999999999999999", "max_feature_idx"),
        ("max_feature_idx", "-2", "max_feature_idx"),
        ("num_leaves", "99999999999999999999", "num_leaves"),
        ("num_leaves", "0", "num_leaves"),
        ("num_tree_per_iteration", "100000", "num_tree_per_iteration': got 100000, expected 1..4096"),
        ("leaf_value", "1 nan 3", "leaf_value': got nan"),
        ("leaf_value", "1 inf 3", "leaf_value': got inf"),
        ("threshold", "nan 0.5", "threshold': got nan"),
        ("decision_type", "2 1e3", "decision_type"),
        ("objective", "binary sigmoid:abc", "sigmoid"),
        ("objective", "binary sigmoid:nan", "sigmoid"),
        ("objective", "binary sigmoid:", "sigmoid"),
    ],
)
def test_numbers_are_refused(field: str, text: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        read_booster_file(written(**{field: text}), "m.txt", {})


def test_a_category_goes_left() -> None:
    """Features are truncated towards 0; missing, negative and unknown categories go right."""
    change = {"num_cat": "2", "threshold": "1 0.25", "decision_type": "9 2", "max_feature_idx": "1"}
    text = written(**change).decode().replace("num_cat=2", "num_cat=2\ncat_boundaries=0 1 3\ncat_threshold=4 11 1")
    graph = read_booster_file(text.encode(), "m.txt", {"input": (10, 2)})
    features = [0, -0.5, 1.9, 3, 32.5, -1, 2, 4, 33, np.nan]
    rows = np.array([[x, 0] for x in features], np.float32)
    (outputs,), _ = evaluate(graph, {"input": rows})
    assert outputs.tolist() == [1] * 5 + [2] * 5


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("", "num_cat"),
        ("cat_boundaries=0 1\ncat_threshold=4", "'threshold' of a categorical split: got 1"),
        ("cat_boundaries=0 1 99\ncat_threshold=4 11 1", "'cat_threshold': got 3 numbers, expected 99"),
        ("cat_boundaries=0 1 2\ncat_threshold=4 0", "got 0 categories"),
        ("cat_boundaries=0 1 2\ncat_threshold=4 -1", "'cat_threshold': got -1"),
    ],
)
def test_broken_categories(fields: str, said: str) -> None:
    count = max(len(fields.split("\n")[0].split()) - 1, 0)
    text = written(num_cat=str(count), threshold="1 0.25", decision_type="9 2").decode()
    with pytest.raises(ModelError, match=said):
        read_booster_file(text.replace("is_linear=0", f"{fields}\nis_linear=0").encode(), "m.txt", {})


@pytest.mark.parametrize("objective", ["regression", "binary", "multiclass"])
def test_networks_predict_as_lightgbm(objective: str) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 3)).astype(np.float32)
    x[:, 1] = rng.integers(0, 40, len(x))
    x[rng.random(x.shape) < 0.1] = np.nan
    y = np.nan_to_num(x[:, 0]) + 2 * np.isin(x[:, 1], [1, 5, 6, 7, 33])
    classes = {"binary": 2, "multiclass": 3}.get(objective, 0)
    y = np.digitize(y, np.quantile(y, np.arange(1, classes) / classes)) if classes else y
    options = {"objective": objective, "num_leaves": 12, "verbose": -1, "min_data_per_group": 5, "cat_smooth": 1}
    options |= {"num_class": classes} if classes > 2 else {}
    booster = lightgbm.train(options, lightgbm.Dataset(x, y, categorical_feature=[1]), 5)
    x[::7, 1] = rng.choice([-0.5, -1, 0.5, 41, 7.9, np.nan], len(x[::7]))
    graph = read_booster_file(booster.model_to_string().encode(), "m.txt", {"input": x.shape})
    expected = booster.predict(x)
    expected = np.stack([1 - expected, expected], 1) if classes == 2 else expected
    np.testing.assert_allclose(evaluate(graph, {"input": x})[0][-1], expected, rtol=2e-6, atol=2e-6)
