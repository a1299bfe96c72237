# SPDX-License-Identifier: Apache-2.0
"""Universal Binary JSON (UBJSON) as XGBoost writes it: a binary format of JSON values with lengths, and packed arrays of
numbers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.frontend.model_limits import MAX_NESTED, parse_model_json
from microc.frontend.trees.ensembles import (
    MOST_TARGETS,
    Ensemble,
    LinearModel,
    compute_category_bounds,
    parse_integers,
    parse_reals,
    replace_categorical_splits,
)
from microc.ops.trees.tree_arrays import AT_MOST, LESS, UNORDERED, Tree

_NUMBERS: Mapping[bytes, np.dtype[Any]] = {
    b"i": np.dtype(">i1"),
    b"U": np.dtype(">u1"),
    b"I": np.dtype(">i2"),
    b"l": np.dtype(">i4"),
    b"L": np.dtype(">i8"),
    b"d": np.dtype(">f4"),
    b"D": np.dtype(">f8"),
}
_LITERALS: Mapping[bytes, Any] = {b"Z": None, b"T": True, b"F": False}
_MOST_VALUES = 1 << 22
"""Maximum number of values that become Python objects. Elements of packed arrays do not count."""


def read_ubjson(data: bytes, where: str) -> Any:
    """Parse UBJSON (Universal Binary JSON) to dictionaries, lists, texts and numbers; packed arrays become numpy
    arrays.

    ModelError if the bytes are malformed, or contain more values than a model has.
    """
    return _UbjsonReader(data, where).read_value(0)


class _UbjsonReader:
    """Parser of UBJSON, which reads the bytes from front to back."""

    def __init__(self, data: bytes, where: str) -> None:
        self._data, self._where, self._at, self._values = data, where, 0, 0

    def read_value(self, depth: int, type_marker: bytes = b"") -> Any:
        """Read the next value.

        ``depth``: number of arrays and objects that enclose the value. ``type_marker``: UBJSON's marker of the value's
        type; if it is empty, the next byte is the marker."""
        self._values += 1
        if self._values > _MOST_VALUES or depth > MAX_NESTED:
            raise self._make_error(f"expected at most {_MOST_VALUES} values, nested at most {MAX_NESTED} deep")
        type_marker = type_marker or self._take_bytes(1)
        if type_marker in _NUMBERS:
            return self._read_numbers(type_marker, 1)[0].item()
        if type_marker in _LITERALS:
            return _LITERALS[type_marker]
        match type_marker:
            case b"S":
                return self._read_text()
            case b"C":
                return self._take_bytes(1).decode("ascii", "replace")
            case b"[":
                return self._read_array(depth)
            case b"{":
                return self._read_object(depth)
        raise self._make_error(f"got the type marker {type_marker!r}, expected one of UBJSON's")

    def _read_array(self, depth: int) -> Any:
        """Read the rest of an array; return a list, or a numpy array if the numbers are packed."""
        type_, count = self._read_container_header()
        if type_ in _NUMBERS and count is not None:
            return self._read_numbers(type_, count)
        items: list[Any] = []
        while not self._skip_end_of_container(b"]", len(items), count):
            items.append(self.read_value(depth + 1, type_))
        return items

    def _read_object(self, depth: int) -> dict[str, Any]:
        """Read the rest of a JSON object; return a dictionary."""
        type_, count = self._read_container_header()
        fields: dict[str, Any] = {}
        read = 0
        while not self._skip_end_of_container(b"}", read, count):
            name = self._read_text()
            fields[name] = self.read_value(depth + 1, type_)
            read += 1
        return fields

    def _read_container_header(self) -> tuple[bytes, int | None]:
        """Read the header of an array or object; return the type marker of all of its values and the number of values.

        A marker that is not declared is empty; a number that is not declared is None."""
        type_ = b""
        if self._skip_if_next(b"$"):
            type_ = self._take_bytes(1)
        return type_, self._read_length() if self._skip_if_next(b"#") else None

    def _skip_end_of_container(self, end_mark: bytes, values_read: int, declared_count: int | None) -> bool:
        """Test whether an array or object ends here: after ``declared_count`` values, or, if that is None, at
        ``end_mark``.

        The mark is skipped."""
        return self._skip_if_next(end_mark) if declared_count is None else values_read >= declared_count

    def _skip_if_next(self, mark: bytes) -> bool:
        """Skip the next byte if it is ``mark``; return True if it was."""
        is_next = self._data[self._at : self._at + 1] == mark
        self._at += is_next
        return is_next

    def _read_text(self) -> str:
        return self._take_bytes(self._read_length()).decode("utf-8", "replace")

    def _read_length(self) -> int:
        type_ = self._take_bytes(1)
        if type_ not in _NUMBERS or type_ in b"dD":
            raise self._make_error(f"length: got the type marker {type_!r}, expected an integer's")
        return int(self._read_numbers(type_, 1)[0])

    def _read_numbers(self, type_marker: bytes, count: int) -> np.ndarray[Any, np.dtype[Any]]:
        """Read ``count`` numbers of the type ``type_marker``; return an array in the machine's byte order."""
        dtype = _NUMBERS[type_marker]
        return np.frombuffer(self._take_bytes(count * dtype.itemsize), dtype).astype(dtype.newbyteorder("="))

    def _take_bytes(self, count: int) -> bytes:
        """Return the next ``count`` bytes; ModelError if there are fewer."""
        end = self._at + count
        if count < 0 or end > len(self._data):
            raise self._make_error(f"got {len(self._data)} bytes, expected at least {end}")
        chunk, self._at = self._data[self._at : end], end
        return chunk

    def _make_error(self, reason: str) -> ModelError:
        """Return the ModelError for malformed UBJSON at the current position."""
        return ModelError(f"the model's UBJSON is broken at byte {self._at}: {reason}", where=self._where)


# ---- Parsers of model files: LightGBM's text format, and XGBoost's JSON and UBJSON. Neither library is imported.


# ---- LightGBM's text format (``Booster.save_model``): a header, then a section of ``name=value`` lines for each tree.

START = b"tree\n"
_CATEGORICAL, _DEFAULT_LEFT = 1, 2
_MISSING_ZERO, _MISSING_NAN = 1, 2
_LIGHTGBM_IDENTITY = (
    "regression",
    "regression_l1",
    "huber",
    "fair",
    "quantile",
    "mape",
    "lambdarank",
    "rank_xendcg",
    "",
)
_LIGHTGBM_EXPONENTIAL = ("poisson", "gamma", "tweedie")
_MOST_TREES, _MOST_LEAVES, _LIGHTGBM_MOST_FEATURES = 1 << 20, 1 << 24, 1 << 26
"""Limits of the numbers in the text, far beyond what fits a microcontroller. They are checked before anything is
allocated."""


def is_lightgbm(data: bytes) -> bool:
    """Test whether ``data`` are the bytes of a model in LightGBM's text format."""
    return data.startswith(START) and b"\nversion=" in data[:64]


def parse_lightgbm(data: bytes, file: str) -> tuple[Ensemble, int]:
    """Parse a model in LightGBM's text format; return the ensemble and its number of features.

    ModelError if the text is malformed."""
    head, *sections = data.decode("utf-8", "replace").split("\nTree=")
    header = _parse_section_fields(head)
    sections = [section.split("\nend of trees")[0] for section in sections]
    features = _parse_integer_field(header, "max_feature_idx", 0, _LIGHTGBM_MOST_FEATURES, file) + 1
    targets = _parse_integer_field(header, "num_tree_per_iteration", 1, MOST_TARGETS, file)
    if not targets <= len(sections) <= _MOST_TREES or len(sections) % targets:
        raise ModelError(
            f"got {len(sections)} trees, expected a multiple of num_tree_per_iteration = {targets}, at most "
            f"{_MOST_TREES}",
            where=file,
        )
    trees = [
        _convert_lightgbm_tree(_parse_section_fields(s), features, k % targets, f"{file} tree {k}")
        for k, s in enumerate(sections)
    ]
    if "average_output" in head.split("\n"):
        trees = [tree.with_values(tree.values * targets / len(trees)) for tree in trees]
    post, factor = _lightgbm_post_transform_and_factor(header.get("objective", ""), targets, file)
    return Ensemble(
        tuple(tree.with_values(tree.values * factor) for tree in trees), targets, post_transform=post
    ), features


def _parse_section_fields(section: str) -> dict[str, str]:
    """Return the values of the ``name=value`` lines of a section, by name."""
    return dict(line.split("=", 1) for line in section.split("\n") if "=" in line)


def _split_field(fields: Mapping[str, str], field_name: str, word_count: int, where: str) -> list[str]:
    """Return the words of the field ``field_name``; ModelError if it is missing or has not ``word_count`` words."""
    if field_name not in fields:
        raise ModelError(f"{field_name!r} is missing", where=where)
    words = fields[field_name].split()
    if len(words) != word_count:
        raise ModelError(f"{field_name!r}: got {len(words)} numbers, expected {word_count}", where=where)
    return words


def _parse_integer_field(fields: Mapping[str, str], field_name: str, minimum: int, maximum: int, where: str) -> int:
    """Return the field ``field_name``, one integer; ModelError if it is not in ``minimum``..``maximum``."""
    return int(parse_integers(_split_field(fields, field_name, 1, where), where, repr(field_name), minimum, maximum)[0])


def _convert_lightgbm_tree(fields: Mapping[str, str], feature_count: int, result_index: int, where: str) -> Tree:
    """Convert one tree of LightGBM from the fields of its section.

    In the result the inner nodes are first, and leaf k is node ``inner + k``; in the file leaf k has the number -1 - k.
    ``result_index``: index of the result that the tree adds to."""
    leaves = _parse_integer_field(fields, "num_leaves", 1, _MOST_LEAVES, where)
    if fields.get("is_linear", "0") != "0":
        raise UnsupportedError(
            "linear leaves (is_linear) are not supported", where=where, hint="train with linear_tree=false"
        )
    values = parse_reals(_split_field(fields, "leaf_value", leaves, where), where, "'leaf_value'")
    inner = leaves - 1

    def parse_integer_per_inner_node(field_name: str, minimum: int, maximum: int) -> Array:
        """Return the field ``field_name``, which has one integer in ``minimum``..``maximum`` for every inner node."""
        return parse_integers(_split_field(fields, field_name, inner, where), where, repr(field_name), minimum, maximum)

    children = []
    for name in ("left_child", "right_child"):
        child = parse_integer_per_inner_node(name, -leaves, inner - 1) if inner else np.zeros(0, np.int64)
        child = np.where(child < 0, inner - 1 - child, child)
        children.append(np.concatenate([child, np.full(leaves, -1)]))
    feature, threshold = np.zeros(inner + leaves, np.int64), np.zeros(inner + leaves)
    mode = np.full(inner + leaves, AT_MOST)
    if inner:
        feature[:inner] = parse_integer_per_inner_node("split_feature", 0, feature_count - 1)
        threshold[:inner] = parse_reals(
            _split_field(fields, "threshold", inner, where), where, "'threshold'", must_be_finite=False
        )
        mode[:inner] = _decode_decision_types(
            parse_integer_per_inner_node("decision_type", -128, 255), threshold[:inner], where
        )
    node_values = np.concatenate([np.zeros(inner), values]).reshape(-1, 1)
    is_categorical = np.zeros(inner + leaves, bool)
    is_categorical[:inner] = inner and parse_integer_per_inner_node("decision_type", -128, 255) & _CATEGORICAL != 0
    bounds = _read_lightgbm_categories(fields, threshold, np.flatnonzero(is_categorical), where)
    # A category of the split goes left; replace_categorical_splits expects it to go right, and all other values, also missing
    # ones, left.
    left, right = (np.where(is_categorical, *pair) for pair in (children[::-1], children))
    mode = np.where(is_categorical, LESS | UNORDERED, mode)
    tree = Tree(left, right, feature, threshold, mode, node_values, result_index)
    return replace_categorical_splits(tree, bounds, where)


def _read_lightgbm_categories(
    fields: Mapping[str, str], thresholds: Array, categorical_nodes: Array, where: str
) -> dict[int, list[float]]:
    """Return for each node with a categorical split the bounds of the features that go left.

    The threshold of the node is the number of a set of categories. Set k is a bit field in the 32-bit words
    ``cat_boundaries[k]`` to ``cat_boundaries[k + 1]`` of ``cat_threshold``. LightGBM truncates features towards 0."""
    if not len(categorical_nodes):
        return {}
    sets = _parse_integer_field(fields, "num_cat", 1, _MOST_LEAVES, where)
    ends = parse_integers(
        _split_field(fields, "cat_boundaries", sets + 1, where), where, "'cat_boundaries'", 0, _MOST_LEAVES
    )
    words = parse_integers(
        _split_field(fields, "cat_threshold", int(ends[-1]), where), where, "'cat_threshold'", 0, (1 << 32) - 1
    )
    bounds = {}
    for node, number in zip(categorical_nodes.tolist(), thresholds[categorical_nodes].tolist(), strict=True):
        set_index = int(parse_integers([number], where, "'threshold' of a categorical split", 0, sets - 1)[0])
        bit_field = words[int(ends[set_index]) : int(ends[set_index + 1])].astype("<u4").view(np.uint8)
        categories = np.flatnonzero(np.unpackbits(bit_field, bitorder="little"))
        bounds[node] = compute_category_bounds(categories, where, truncates=True)
    return bounds


def _decode_decision_types(decision_types: Array, thresholds: Array, where: str) -> Array:
    """Decode LightGBM's ``decision_type`` of each split to a comparison mode: values of at most the threshold go left.

    A missing value (NaN) goes in the split's default direction. If the split has none, NaN counts as 0. The modes of
    categorical splits have no meaning."""
    missing = decision_types >> 2 & 3
    if ((missing == _MISSING_ZERO) & (decision_types & _CATEGORICAL == 0)).any():
        raise UnsupportedError(
            "zero_as_missing=true is not supported", where=where, hint="train with zero_as_missing=false"
        )
    nan_goes_left = np.where(missing == _MISSING_NAN, decision_types & _DEFAULT_LEFT != 0, thresholds >= 0)
    return np.where(nan_goes_left, AT_MOST | UNORDERED, AT_MOST)


def _lightgbm_post_transform_and_factor(objective: str, result_count: int, where: str) -> tuple[str, float]:
    """Return the transformation of the ensemble's results to scores that ``objective`` implies, and the factor by which
    the results are multiplied before it."""
    name, *options = objective.split() or [""]
    slopes = [option.split(":")[1] for option in options if option.startswith("sigmoid:")]
    slope = float(parse_reals(slopes[:1] or [1.0], where, "'sigmoid' of the objective")[0])
    if "sqrt" in options:
        raise UnsupportedError("reg_sqrt=true is not supported", where=where, hint="train with reg_sqrt=false")
    if name == "binary":
        return "sigmoid", slope
    if name in ("multiclass", "softmax"):
        return "softmax", 1.0
    if name in ("multiclassova", "cross_entropy"):
        return "logistic", slope
    if name in (*_LIGHTGBM_IDENTITY, *_LIGHTGBM_EXPONENTIAL):
        return "exp" if name in _LIGHTGBM_EXPONENTIAL else "none", 1.0
    raise UnsupportedError(
        f"objective {objective!r} is not supported",
        where=where,
        hint="train with a built-in objective of LightGBM, such as regression",
    )


# ---- XGBoost's model files (``save_model``), JSON or UBJSON.
#
# In a tree of XGBoost a value goes left if it is less than the threshold, both in float32. Each node says whether missing
# values go left or right.

_JSON = re.compile(rb'\s*\{\s*"(learner|version)"\s*:')
_UBJSON = re.compile(rb"\{[iUIlL]\0*\x07(learner|version)")
_MOST_JSON = 1 << 26
_XGBOOST_MOST_FEATURES = 1 << 26

_XGBOOST_IDENTITY = (
    "reg:squarederror", "reg:linear", "reg:absoluteerror", "reg:pseudohubererror", "reg:quantileerror", "reg:squaredlogerror",
    "rank:ndcg", "rank:map", "rank:pairwise",
)  # fmt: skip
_XGBOOST_EXPONENTIAL = ("count:poisson", "reg:gamma", "reg:tweedie", "survival:cox", "survival:aft")
_POST_TRANSFORMS: Mapping[str, str] = {
    **dict.fromkeys(_XGBOOST_IDENTITY, "none"),
    **dict.fromkeys(_XGBOOST_EXPONENTIAL, "exp"),
    "binary:logitraw": "none",
    "binary:logistic": "sigmoid",
    "reg:logistic": "logistic",
    "multi:softprob": "softmax",
    "multi:softmax": "softmax",
    "binary:hinge": "hinge",
}
"""Transformation of an ensemble's results to scores, by XGBoost's objective."""


def is_xgboost(data: bytes) -> bool:
    """Test whether ``data`` are the bytes of an XGBoost model, in JSON or UBJSON."""
    return _JSON.match(data[:256]) is not None or _UBJSON.match(data[:64]) is not None


def parse_xgboost(
    data: bytes, file: str, stops_at_best_iteration: bool | None = None
) -> tuple[Ensemble | LinearModel, int]:
    """Parse an XGBoost model file; return the ensemble or linear model and its number of features.

    ``stops_at_best_iteration``: True to leave out the boosting rounds after the best iteration, as XGBoost's
    scikit-learn estimators do, but its boosters do not. None means True if an estimator saved the file. Raise
    ModelError if the file is malformed, UnsupportedError for an objective that microc does not compute."""
    if len(data) > _MOST_JSON:
        raise UnsupportedError(f"model file: got {len(data)} bytes, expected at most {_MOST_JSON}", where=file)
    model = read_ubjson(data, file) if _UBJSON.match(data[:64]) else parse_model_json(data, file)
    try:
        return _read_learner(model["learner"], file, stops_at_best_iteration)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError) as error:
        raise ModelError(f"the model of XGBoost is broken: {error!r}", where=file) from error


def is_xgboost_object(model: Any) -> bool:
    """Test whether an object is a booster or an estimator of XGBoost."""
    return hasattr(model, "get_booster") or hasattr(model, "save_raw")


def parse_xgboost_object(model: Any) -> tuple[Ensemble | LinearModel, int]:
    """Convert a booster or an estimator of XGBoost, an object in memory; return the ensemble or linear model and its
    number of features.

    ModelError if the estimator is not fitted."""
    where = type(model).__name__
    try:
        booster = model.get_booster() if hasattr(model, "get_booster") else model
    except Exception as error:  # of a class of scikit-learn's, which need not be there
        raise ModelError(f"the estimator is not fitted: {error}", where=where, hint="call fit first") from error
    data = bytes(booster.save_raw(raw_format="ubj"))
    converted, features = parse_xgboost(data, where, stops_at_best_iteration=booster is not model)
    missing = getattr(model, "missing", None)
    return replace(converted, missing=math.nan if missing is None else float(missing)), features


def _read_learner(
    learner_json: Mapping[str, Any], file: str, stops_at_best_iteration: bool | None
) -> tuple[Ensemble | LinearModel, int]:
    """Convert the JSON object ``learner_json`` of a model file; return the ensemble or linear model and its number of
    features."""
    sizes = learner_json["learner_model_param"]
    features = _parse_bounded_integer(sizes["num_feature"], file, "num_feature")
    counts = [
        _parse_bounded_integer(sizes.get(name, 0), file, name, MOST_TARGETS) for name in ("num_class", "num_target")
    ]
    targets = max(1, *counts)
    objective = str(learner_json["objective"]["name"])
    if objective not in _POST_TRANSFORMS:
        raise UnsupportedError(
            f"objective {objective!r} is not supported",
            where=file,
            hint="train with one of " + ", ".join(sorted(_POST_TRANSFORMS)),
        )
    base = np.broadcast_to(_undo_post_transform(_parse_base_scores(sizes["base_score"]), objective), (targets,))
    if learner_json["gradient_booster"]["name"] == "gblinear":
        linear = _read_linear_booster(learner_json["gradient_booster"]["model"], features, base, file)
        return replace(linear, post_transform=_POST_TRANSFORMS[objective]), features
    model, weights = _find_trees_and_weights(learner_json["gradient_booster"], file)
    trees_data = model["trees"][
        : _count_used_trees(model, learner_json.get("attributes", {}), file, stops_at_best_iteration)
    ]
    groups = parse_integers(model["tree_info"][: len(trees_data)], file, "tree_info", 0, targets - 1)
    if len(groups) < len(trees_data):
        raise ModelError(
            f"tree_info: got {len(groups)} entries, expected {len(trees_data)}, one for each tree", where=file
        )
    trees = [_convert_xgboost_tree(tree, int(groups[k]), f"{file} tree {k}") for k, tree in enumerate(trees_data)]
    if weights:
        trees = [tree.with_values(tree.values * weights[k]) for k, tree in enumerate(trees)]
    return Ensemble(
        tuple(trees), targets, base.astype(np.float64), post_transform=_POST_TRANSFORMS[objective]
    ), features


def _read_linear_booster(model_json: Mapping[str, Any], feature_count: int, base: Array, file: str) -> LinearModel:
    """Convert the booster ``gblinear``. Its weights are a row of one number per result for each feature, and a last row
    of biases."""
    weights = parse_reals(model_json["weights"], file, "weights")
    if len(weights) != (feature_count + 1) * len(base):
        raise ModelError(
            f"weights: got {len(weights)}, expected {(feature_count + 1) * len(base)} for {feature_count} features and "
            f"{len(base)} results",
            where=file,
        )
    rows = weights.reshape(feature_count + 1, len(base))
    return LinearModel(rows[:-1].T, rows[-1] + base[0])  # XGBoost 3.2 adds the first base score to every result


def _find_trees_and_weights(booster_json: Mapping[str, Any], file: str) -> tuple[Mapping[str, Any], Sequence[float]]:
    """Return the JSON object of a booster that contains its trees, and the weight of each tree. Without weights all
    trees have weight 1."""
    name = str(booster_json["name"])
    if name == "gbtree":
        return booster_json["model"], ()
    if name == "dart":
        weights = parse_reals(booster_json["weight_drop"], file, "weight_drop").tolist()
        return booster_json["gbtree"]["model"], weights
    raise UnsupportedError(
        f"booster: got {name!r}, expected 'gbtree', 'dart' or 'gblinear'",
        where=file,
        hint="train with one of these boosters",
    )


def _count_used_trees(
    tree_model: Mapping[str, Any], attributes: Mapping[str, Any], file: str, stops_at_best_iteration: bool | None
) -> int:
    """Return the number of trees that the ensemble consists of: all, or those up to the best iteration if
    ``stops_at_best_iteration``."""
    best = attributes.get("best_iteration")
    if stops_at_best_iteration is None:
        stops_at_best_iteration = "scikit_learn" in attributes
    if best is None or not stops_at_best_iteration:
        return len(tree_model["trees"])
    round_ = _parse_bounded_integer(best, file, "best_iteration", len(tree_model["iteration_indptr"]) - 2)
    return _parse_bounded_integer(
        tree_model["iteration_indptr"][round_ + 1], file, "iteration_indptr", len(tree_model["trees"])
    )


def _parse_bounded_integer(value: Any, where: str, field_name: str, maximum: int = _XGBOOST_MOST_FEATURES) -> int:
    """Convert a number or text of the file to an integer from 0 to ``maximum``; ModelError if that is not possible.

    ``field_name`` is the name of the number in errors."""
    return int(parse_integers([value], where, field_name, 0, maximum)[0])


def _parse_base_scores(stored_scores: Any) -> Array:
    """Convert the base scores, which the file stores as text, to a vector of one number, or one number for each
    result."""
    scores = np.atleast_1d(np.asarray(json.loads(str(stored_scores)), np.float64))
    if scores.ndim != 1 or not np.isfinite(scores).all():
        raise ValueError(f"base_score is {stored_scores!r}, expected finite numbers")
    return scores


def _undo_post_transform(base_scores: Array, objective: str) -> Array:
    """Apply the inverse of an objective's post-transform to the base scores. The file contains transformed scores, but
    base scores are added before the transformation."""
    inverse: Callable[[float], float] = float
    if objective.endswith(":logistic"):
        inverse = _logit
    elif _POST_TRANSFORMS[objective] == "exp":
        inverse = math.log
    return np.array([inverse(float(score)) for score in base_scores])


def _logit(probability: float) -> float:
    """Return log(p / (1 - p)) of a probability p, the inverse of the sigmoid."""
    return -math.log(1 / probability - 1)


def _convert_xgboost_tree(tree_json: Mapping[str, Any], result_index: int, where: str) -> Tree:
    """Convert one tree of XGBoost. Nodes have the same numbers as in the file.

    The file stores the value of a leaf in place of the threshold. ``result_index``: index of the result that the tree
    adds to."""
    if (
        _parse_bounded_integer(tree_json.get("tree_param", {}).get("size_leaf_vector", 1), where, "size_leaf_vector")
        > 1
    ):
        raise UnsupportedError(
            "size_leaf_vector: leaves with several values are not supported, expected 1",
            where=where,
            hint="train with multi_strategy='one_output_per_tree'",
        )
    count = len(tree_json["left_children"])
    left, right = (
        parse_integers(tree_json[name], where, name, -1, count - 1) for name in ("left_children", "right_children")
    )
    feature = parse_integers(
        tree_json["split_indices"], where, "split_indices"
    )  # nodes that were pruned hold the largest number
    with np.errstate(over="ignore"):
        conditions = parse_reals(tree_json["split_conditions"], where, "split_conditions", must_be_finite=False)
        threshold = conditions.astype(np.float32).astype(np.float64)
    mode = np.where(parse_integers(tree_json["default_left"], where, "default_left", 0, 1) != 0, LESS | UNORDERED, LESS)
    if len({len(column) for column in (left, right, feature, threshold, mode)}) > 1 or not len(left):
        lengths = [len(column) for column in (left, right, feature, threshold, mode)]
        raise ModelError(f"tree arrays: got lengths {lengths}, expected equal lengths of at least 1", where=where)
    if ((left < 0) != (right < 0)).any():
        raise ModelError("tree: got a node with one child, expected two or none", where=where)
    values = np.where(left < 0, threshold, 0.0).reshape(-1, 1)
    if not np.isfinite(values).all():
        raise ModelError(f"leaf value: got {values[~np.isfinite(values)][0]}, expected a finite number", where=where)
    categories = _read_right_categories(tree_json, left, where)
    return replace_categorical_splits(
        Tree(left, right, feature, threshold, mode, values, result_index), categories, where
    )


def _read_right_categories(tree_json: Mapping[str, Any], left_children: Array, where: str) -> dict[int, list[float]]:
    """Return, for each node of a tree with a categorical split, the bounds of the categories that go to its right child.

    ``left_children``: left child of each node, -1 for a leaf."""
    nodes = parse_integers(tree_json.get("categories_nodes", ()), where, "categories_nodes", 0, len(left_children) - 1)
    all_categories = parse_integers(tree_json.get("categories", ()), where, "categories")
    begins, counts = (
        parse_integers(tree_json.get(f"categories_{name}", ()), where, f"categories_{name}", 0, len(all_categories))
        for name in ("segments", "sizes")
    )
    split_types = parse_integers(tree_json.get("split_type", [0] * len(left_children)), where, "split_type", 0, 1)
    category_nodes = np.flatnonzero((split_types == 1) & (left_children >= 0))
    categories_of_node = {
        int(node): compute_category_bounds(all_categories[begin : begin + count], where)
        for node, begin, count in zip(nodes, begins, counts, strict=True)
    }
    if set(category_nodes.tolist()) != set(categories_of_node):
        raise ValueError(
            f"categories_nodes: got {sorted(categories_of_node)}, expected {sorted(category_nodes.tolist())}"
        )
    return categories_of_node
