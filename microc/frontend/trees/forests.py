"""scikit-learn's trees, forests and boosted trees as ensembles: from a fitted estimator's arrays, without calling it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from microc.dtypes import Array
from microc.errors import UnsupportedError
from microc.frontend.trees.ensembles import Ensemble
from microc.ops.trees.arrays import AT_MOST, UNORDERED, Tree

Read = Callable[[Any], Ensemble]


def ensemble_of(estimator: Any) -> Ensemble | None:
    """The ensemble of a fitted estimator; None where it is none of trees that are known here."""
    names = [kind.__name__ for kind in type(estimator).__mro__]
    read = next((READERS[name] for name in names if name in READERS), None)
    return read(estimator) if read is not None else None


def _refuse(estimator: Any, what: str, hint: str = "") -> UnsupportedError:
    return UnsupportedError(what, where=type(estimator).__name__, hint=hint)


def _modes(structure: Any, left: Array) -> Array:
    """At most the threshold to the left; missing values too where training saw some and found it better."""
    missing = getattr(structure, "missing_go_to_left", np.zeros(len(left), bool))
    return np.where(np.asarray(missing, bool), AT_MOST | UNORDERED, AT_MOST)


def _tree(estimator: Any, values: Array, target: int = 0) -> Tree:
    """One of scikit-learn's trees, with values of its nodes (nodes, width)."""
    structure = estimator.tree_
    left, right = np.asarray(structure.children_left), np.asarray(structure.children_right)
    return Tree(left, right, structure.feature, structure.threshold, _modes(structure, left), values, target)


def _average(estimator: Any) -> Ensemble:
    """Trees whose values are averaged: shares of the classes, or one number per output."""
    trees = getattr(estimator, "estimators_", [estimator])
    found = []
    for tree in trees:
        values = np.asarray(tree.tree_.value, np.float64)
        if hasattr(estimator, "classes_"):
            if values.shape[1] != 1:
                raise _refuse(estimator, "a classifier of several outputs", "train one for every output")
            values = values[:, 0] / values[:, 0].sum(axis=1, keepdims=True)
        else:
            values = values[:, :, 0]
        found.append(_tree(tree, values / len(trees)))
    return Ensemble(tuple(found), found[0].values.shape[1])


def _boosted(estimator: Any) -> Ensemble:
    """Gradient boosting: one tree per round and class, times the learning rate, onto a constant."""
    rounds = np.asarray(estimator.estimators_)
    constant = estimator.init_ == "zero" or type(estimator.init_).__name__.startswith("Dummy")
    if not constant:
        raise _refuse(estimator, "boosting that starts from another estimator", "leave init at its default")
    first = estimator._raw_predict_init(np.zeros((1, estimator.n_features_in_), np.float32))
    found = [
        _tree(tree, np.asarray(tree.tree_.value)[:, :, 0] * estimator.learning_rate, k)
        for row in rounds
        for k, tree in enumerate(row)
    ]
    post = "none"
    if hasattr(estimator, "classes_"):
        post = "softmax" if rounds.shape[1] > 1 else "sigmoid"
        if estimator.loss == "exponential":
            found = [tree.with_values(2 * tree.values) for tree in found]
            first = 2 * first
    return Ensemble(tuple(found), rounds.shape[1], np.asarray(first, np.float64), post=post)


def _histogram(estimator: Any) -> Ensemble:
    """Gradient boosting over histograms; missing values go where training sent them."""
    found = [_histogram_tree(estimator, tree.nodes, k) for row in estimator._predictors for k, tree in enumerate(row)]
    targets = len(estimator._predictors[0])
    post = "none"
    if hasattr(estimator, "classes_"):
        post = "softmax" if targets > 1 else "sigmoid"
    elif estimator.loss in ("poisson", "gamma"):
        post = "exp"
    return Ensemble(tuple(found), targets, np.asarray(estimator._baseline_prediction, np.float64), post=post)


def _histogram_tree(estimator: Any, nodes: Array, target: int) -> Tree:
    leaf = nodes["is_leaf"].astype(bool)
    if (nodes["is_categorical"].astype(bool) & ~leaf).any():
        raise _refuse(estimator, "splits over categories", "encode the categories as numbers before the trees")
    left = np.where(leaf, -1, nodes["left"].astype(np.int64))
    mode = np.where(nodes["missing_go_to_left"].astype(bool), AT_MOST | UNORDERED, AT_MOST)
    right, values = nodes["right"].astype(np.int64), nodes["value"].astype(np.float64).reshape(-1, 1)
    return Tree(left, right, nodes["feature_idx"].astype(np.int64), nodes["num_threshold"], mode, values, target)


def isolating(estimator: Any) -> Ensemble:
    """An isolation forest: how deep a leaf lies, and what it would take to part the rows that it was trained with, so scaled
    that exp of the sum is 2 ** (-depth / c). Trees may see some of the features only; those of one row count as c deep."""
    trees, found = estimator.estimators_, []
    depths, more = estimator._decision_path_lengths, estimator._average_path_length_per_tree
    average = _path_length(int(estimator.max_samples_))
    for tree, features, depth, below in zip(trees, estimator.estimators_features_, depths, more, strict=True):
        depth = np.asarray(depth) + np.asarray(below) - 1.0
        share = depth / average if average else np.ones_like(depth)
        read = _tree(tree, -math.log(2) / len(trees) * share.reshape(-1, 1))
        found.append(replace(read, feature=np.where(read.left >= 0, np.asarray(features)[read.feature], read.feature)))
    return Ensemble(tuple(found), 1, post="exp")


def _path_length(rows: int) -> float:
    """The comparisons of a search that fails in a random binary tree of so many rows (Liu, Ting and Zhou, 2008, eq. 1)."""
    if rows <= 2:
        return float(rows == 2)
    return 2.0 * (math.log(rows - 1) + float(np.euler_gamma)) - 2.0 * (rows - 1.0) / rows


READERS: Mapping[str, Read] = {
    "DecisionTreeClassifier": _average,
    "DecisionTreeRegressor": _average,
    "ForestClassifier": _average,
    "ForestRegressor": _average,
    "GradientBoostingClassifier": _boosted,
    "GradientBoostingRegressor": _boosted,
    "HistGradientBoostingClassifier": _histogram,
    "HistGradientBoostingRegressor": _histogram,
}
"""By the name of the class or of one that it extends (ExtraTrees and RandomForest extend the forests)."""
