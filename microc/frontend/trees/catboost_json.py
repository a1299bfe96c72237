# SPDX-License-Identifier: Apache-2.0
"""Parser of CatBoost's JSON export (``save_model(..., format="json")``). CatBoost is not imported.

A split of CatBoost is true for features above its border, both in float32. A symmetric tree has one split for each level;
bit k of the index of its leaf is the result of split k. Other trees are nested objects. Results are ``scale`` times the sum of
the trees, plus a bias.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.base.file_access import read_bytes
from microc.errors import ModelError, UnsupportedError
from microc.frontend.model_limits import parse_model_json
from microc.frontend.trees.ensembles import MOST_NODES, MOST_TARGETS, Ensemble, parse_integers, parse_reals
from microc.ops.trees.tree_arrays import AT_MOST, UNORDERED, Tree

_SECTIONS = re.compile(rb'\s*\{\s*"(features_info|model_info|oblivious_trees|scale_and_bias|trees|ctr_data)"\s*:')
_MOST_JSON = 1 << 27
_MOST_FEATURES, _MOST_DEPTH = 1 << 20, 20
_OTHER_FEATURES = ("categorical_features", "text_features", "embedding_features")
_CLASS_LOSSES: Mapping[str, str] = {
    "Logloss": "sigmoid",
    "CrossEntropy": "sigmoid",
    "MultiClass": "softmax",
    "MultiClassOneVsAll": "logistic",
}
_POST_TRANSFORMS: Mapping[str, str] = {
    **_CLASS_LOSSES,
    **dict.fromkeys(("MultiLogloss", "MultiCrossEntropy"), "logistic"),
    **dict.fromkeys(("Poisson", "Tweedie"), "exp"),
    **dict.fromkeys(
        (
            "RMSE", "MAE", "MAPE", "Quantile", "MultiQuantile", "MultiRMSE", "MultiRMSEWithMissingValues", "Expectile", "Huber",
            "LogCosh", "Lq", "QueryRMSE", "QuerySoftMax", "QueryCrossEntropy", "YetiRank", "YetiRankPairwise", "PairLogit",
            "PairLogitPairwise", "StochasticRank", "LambdaMart",
        ),
        "none",
    ),
}  # fmt: skip
"""Transformation of results to scores, by CatBoost's loss function, as ``predict`` or ``predict_proba`` do it."""


def is_catboost(data: bytes) -> bool:
    """Test whether ``data`` are the bytes of CatBoost's JSON export."""
    return _SECTIONS.match(data[:256]) is not None


def parse_catboost(data: bytes, file: str) -> tuple[Ensemble, int]:
    """Parse CatBoost's JSON export; return the ensemble and its number of features.

    ModelError if the file is malformed, UnsupportedError for features that are no numbers and for losses whose
    prediction microc does not compute."""
    if len(data) > _MOST_JSON:
        raise UnsupportedError(f"model file: got {len(data)} bytes, expected at most {_MOST_JSON}", where=file)
    model = parse_model_json(data, file)
    try:
        return _read_model(model, file)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError) as error:
        raise ModelError(f"the model of CatBoost is broken: {error!r}", where=file) from error


def is_catboost_object(model: Any) -> bool:
    """Test whether an object is a model of CatBoost."""
    return any(base.__module__.split(".")[0] == "catboost" for base in type(model).__mro__)


def parse_catboost_object(model: Any) -> tuple[Ensemble, int]:
    """Convert a model of CatBoost, an object in memory; return the ensemble and its number of features.

    ModelError if it is not fitted."""
    where = type(model).__name__
    if not model.is_fitted():
        raise ModelError("the model is not fitted", where=where, hint="call fit first")
    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json")
        return parse_catboost(read_bytes(path, _MOST_JSON), where)


def _read_model(model: Mapping[str, Any], file: str) -> tuple[Ensemble, int]:
    """Convert the JSON object of a model file; return the ensemble and its number of features."""
    columns, nan_is_above = _read_features(model["features_info"], file)
    loss = _read_loss_name(model["model_info"], file)
    scale, bias = model["scale_and_bias"]
    (factor,) = parse_reals([scale], file, "scale").tolist()
    base = parse_reals(bias if isinstance(bias, list) else [bias], file, "bias")
    if not 1 <= len(base) <= MOST_TARGETS:
        raise ModelError(f"bias: got {len(base)} numbers, expected 1..{MOST_TARGETS}", where=file)
    if "oblivious_trees" in model:
        trees = [
            _convert_symmetric_tree(tree, columns, nan_is_above, len(base), f"{file} tree {k}")
            for k, tree in enumerate(model["oblivious_trees"])
        ]
    else:
        trees = [
            _convert_nested_tree(tree, columns, nan_is_above, len(base), f"{file} tree {k}")
            for k, tree in enumerate(model["trees"])
        ]
    ensemble = Ensemble(
        tuple(tree.with_values(tree.values * factor) for tree in trees),
        len(base),
        base,
        post_transform=_POST_TRANSFORMS[loss],
        classes=_read_classes(model["model_info"], loss, len(base), file),
    )
    return ensemble, len(columns)


def _read_features(features_info: Mapping[str, Any], file: str) -> tuple[Array, Array]:
    """Return the column of each float feature, and True for each feature whose missing values count as above all
    borders.

    Raise UnsupportedError for a model of other features, which CatBoost replaces by statistics of the training rows."""
    for section in _OTHER_FEATURES:
        if features_info.get(section):
            raise UnsupportedError(
                f"{section}: got {len(features_info[section])} features, expected none",
                where=file,
                hint="train on numbers: encode categories as numbers, or as one column for each category",
            )
    features = features_info["float_features"]
    if not 1 <= len(features) <= _MOST_FEATURES:
        raise ModelError(f"float_features: got {len(features)}, expected 1..{_MOST_FEATURES}", where=file)
    columns = parse_integers(
        [feature["flat_feature_index"] for feature in features], file, "flat_feature_index", 0, len(features) - 1
    )
    if len(set(columns.tolist())) != len(columns):
        raise ModelError("flat_feature_index: got one index twice, expected different ones", where=file)
    treatments = [feature.get("nan_value_treatment", "AsIs") for feature in features]
    unknown = next((name for name in treatments if name not in ("AsIs", "AsFalse", "AsTrue")), None)
    if unknown is not None:
        raise ModelError(f"nan_value_treatment: got {unknown!r}, expected AsIs, AsFalse or AsTrue", where=file)
    return columns, np.array([name == "AsTrue" for name in treatments])


def _read_loss_name(model_info: Mapping[str, Any], file: str) -> str:
    """Return the name of the loss function, without its parameters; UnsupportedError for an unknown one."""
    params = model_info["params"]
    params = parse_model_json(params.encode(), file) if isinstance(params, str) else params
    loss = params["loss_function"]
    name = str(loss["type"] if isinstance(loss, dict) else loss).split(":")[0]
    if name not in _POST_TRANSFORMS:
        raise UnsupportedError(
            f"loss_function {name!r} is not supported",
            where=file,
            hint="train with one of " + ", ".join(sorted(_POST_TRANSFORMS)),
        )
    return name


def _read_classes(model_info: Mapping[str, Any], loss: str, result_count: int, file: str) -> Array | None:
    """Return the labels of a classifier in the order of its scores, indices if they are no integers; None for other
    models."""
    if loss not in _CLASS_LOSSES:
        return None
    names = model_info.get("class_params", {}).get("class_names", [])
    count = max(2, result_count)
    if names and len(names) != count:
        raise ModelError(f"class_names: got {len(names)} names, expected {count}", where=file)
    are_integers = bool(names) and all(isinstance(name, int) for name in names)
    return parse_integers(names, file, "class_names", -(1 << 31)) if are_integers else np.arange(count)


class _Splits:
    """Columns of a tree's splits: feature, border and mode."""

    def __init__(self, splits: Sequence[Mapping[str, Any]], columns: Array, nan_is_above: Array, where: str) -> None:
        for split in splits:
            if split["split_type"] != "FloatFeature":
                raise UnsupportedError(
                    f"split_type: got {split['split_type']!r}, expected 'FloatFeature'",
                    where=where,
                    hint="train on numbers: encode categories as numbers",
                )
        index = parse_integers(
            [split["float_feature_index"] for split in splits], where, "float_feature_index", 0, len(columns) - 1
        )
        borders = parse_reals([split["border"] for split in splits], where, "border", must_be_finite=False)
        self.feature = columns[index] if len(splits) else np.zeros(0, np.int64)
        with np.errstate(over="ignore"):
            self.border = borders.astype(np.float32).astype(np.float64)
        self.mode = np.where(nan_is_above[index], AT_MOST, AT_MOST | UNORDERED) if len(splits) else index


def _convert_symmetric_tree(
    tree: Mapping[str, Any], columns: Array, nan_is_above: Array, result_count: int, where: str
) -> Tree:
    """Convert a tree with one split for each level to a complete binary tree.

    Nodes are numbered by level, the root is node 0. The children of a node are at its position in the next level, below
    and above the border."""
    depth = len(tree["splits"])
    if depth > _MOST_DEPTH:
        raise UnsupportedError(f"splits: got {depth}, expected at most {_MOST_DEPTH}", where=where)
    splits = _Splits(tree["splits"], columns, nan_is_above, where)
    leaves = 1 << depth
    values = parse_reals(tree["leaf_values"], where, "leaf_values")
    if len(values) != leaves * result_count:
        raise ModelError(
            f"leaf_values: got {len(values)} numbers, expected {leaves * result_count} of {leaves} leaves", where=where
        )
    level = np.repeat(np.arange(depth), 1 << np.arange(depth))
    inner = np.arange(leaves - 1)
    left = np.concatenate([2 * inner + 1, np.full(leaves, -1)])
    # The first split decides the lowest bit of a leaf's index, but the highest bit of its position.
    position = np.arange(leaves)
    index = sum(((position >> (depth - 1 - k) & 1) << k for k in range(depth)), np.zeros(leaves, np.int64))
    node_values = np.zeros((2 * leaves - 1, result_count))
    node_values[leaves - 1 :] = values.reshape(leaves, result_count)[index]

    def spread(numbers: Array, leaf_number: Any) -> Array:
        """Return a column of the tree: ``numbers`` of the splits for inner nodes, ``leaf_number`` for leaves."""
        return np.concatenate([numbers[level], np.full(leaves, leaf_number, numbers.dtype)])

    return Tree(
        left,
        np.where(left < 0, -1, left + 1),
        spread(splits.feature, 0),
        spread(splits.border, 0.0),
        spread(splits.mode, AT_MOST),
        node_values,
    )


def _convert_nested_tree(
    tree: Mapping[str, Any], columns: Array, nan_is_above: Array, result_count: int, where: str
) -> Tree:
    """Convert a tree of nested objects: a split with the children ``left`` and ``right``, or a leaf with its ``value``."""
    nodes: list[Mapping[str, Any]] = [tree]
    left: list[int] = []
    while len(left) < len(nodes):
        node = nodes[len(left)]
        if len(nodes) > MOST_NODES:
            raise UnsupportedError(f"tree: got more than {MOST_NODES} nodes", where=where)
        left.append(len(nodes) if "split" in node else -1)
        nodes += [node["left"], node["right"]] if "split" in node else []
    left_children = np.array(left)
    is_inner = left_children >= 0
    splits = _Splits([node["split"] for node in nodes if "split" in node], columns, nan_is_above, where)
    values = np.zeros((len(nodes), result_count))
    for k, node in enumerate(nodes):
        if not is_inner[k]:
            value = node["value"]
            numbers = parse_reals(value if isinstance(value, list) else [value], where, "value")
            if len(numbers) != result_count:
                raise ModelError(f"value: got {len(numbers)} numbers, expected {result_count}", where=where)
            values[k] = numbers
    feature, border, mode = np.zeros(len(nodes), np.int64), np.zeros(len(nodes)), np.full(len(nodes), AT_MOST)
    feature[is_inner], border[is_inner], mode[is_inner] = splits.feature, splits.border, splits.mode
    return Tree(left_children, np.where(is_inner, left_children + 1, -1), feature, border, mode, values)
