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
