# SPDX-License-Identifier: Apache-2.0
"""Tree ensembles of all formats: checked numbers of model files, categorical splits, and nodes that evaluate trees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.frontend.graph_builder import Emitter
from microc.ops.trees.tree_arrays import LESS, UNORDERED, Tree, flatten_trees

# ---- Numbers in model files of trees (text, JSON or binary): they are converted if they are in a given range, else refused.

MOST_TARGETS = 1 << 12
"""Maximum number of results of one ensemble. Each result is a column of the generated code's output, and needs a tree
in every boosting round."""
_MOST = (1 << 31) - 1


def parse_integers(values: Any, where: str, list_name: str, minimum: int = 0, maximum: int = _MOST) -> Array:
    """Convert a list of numbers of a model file to an int64 vector.

    Raise ModelError if ``values`` is no list of whole numbers, or if a number is not in ``minimum``..``maximum``: no
    number is rounded, truncated or wrapped around. ``list_name`` is the name of the list in errors."""
    is_integer_row = isinstance(values, np.ndarray) and values.dtype.kind in "iu" and values.ndim == 1
    if is_integer_row and (not values.size or (minimum <= int(values.min()) and int(values.max()) <= maximum)):
        return np.asarray(values, np.int64)
    try:
        numbers = [_parse_integer(value) for value in values]
    except (TypeError, ValueError, OverflowError) as error:
        raise ModelError(f"{list_name}: {error}; expected whole numbers", where=where) from error
    outside = next((value for value in numbers if not minimum <= value <= maximum), None)
    if outside is not None:
        raise ModelError(f"{list_name}: got {outside}, expected {minimum}..{maximum}", where=where)
    return np.array(numbers, np.int64)


def parse_reals(values: Any, where: str, list_name: str, *, must_be_finite: bool = True) -> Array:
    """Convert a list of numbers of a model file to a float64 vector.

    Raise ModelError for NaN and, if ``must_be_finite``, for infinities. ``list_name`` is the name of the list in
    errors."""
    try:
        numbers: Array = np.array(values, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ModelError(f"{list_name}: {error}; expected numbers", where=where) from error
    if numbers.ndim != 1:
        raise ModelError(f"{list_name}: got an array of rank {numbers.ndim}, expected a list of numbers", where=where)
    is_invalid = ~np.isfinite(numbers) if must_be_finite else np.isnan(numbers)
    if is_invalid.any():
        raise ModelError(f"{list_name}: got {numbers[is_invalid][0]}, expected a number", where=where)
    return numbers


def _parse_integer(value: Any) -> int:
    """Convert a number, or a text that contains a number, to an integer; ValueError if it is no whole number."""
    if isinstance(value, str):
        return int(value)
    number = int(value)
    if number != value:
        raise ValueError(f"got {value!r}")
    return number


# ---- Conversion of categorical splits to splits at thresholds, because microc compiles only splits at thresholds.

MOST_CATEGORIES = 1 << 24
MOST_NODES = 1 << 20
"""Maximum number of nodes of one tree. The subtree below a categorical split is copied for each run of consecutive
categories, which can make a tree very large."""


def replace_categorical_splits(tree: Tree, right_bounds: Mapping[int, Sequence[float]], where: str) -> Tree:
    """Return the tree with categorical splits replaced by splits at thresholds.

    ``right_bounds`` maps each node with a categorical split to ascending bounds: features from the first bound to below
    the second, from the third to below the fourth, and so on, go to its right child. Other features go left. Missing
    values go where the node's mode says. Each pair of bounds needs two splits and a copy of the subtree."""
    if not right_bounds:
        return tree
    builder = _CategoricalSplitReplacer(tree, where)
    builder.append_all_nodes(right_bounds)
    return builder.finish_tree()


class _CategoricalSplitReplacer:
    """Builder of a tree in which each categorical split is replaced by a chain of splits at thresholds."""

    def __init__(self, tree: Tree, where: str) -> None:
        self._old, self._where = tree, where
        self._rows: list[tuple[int, int, float, int]] = []  # the old node, left, threshold, mode
        self._right: list[int] = []

    def append_all_nodes(self, right_bounds: Mapping[int, Sequence[float]]) -> None:
        """Append all nodes of the old tree, parents before children, with categorical splits replaced.

        ``waiting`` contains the nodes still to be appended: (old node, new parent, True for the left child).
        """
        waiting: list[tuple[int, int, bool]] = [(0, -1, False)]
        while waiting:
            old, parent, is_left = waiting.pop()
            self._set_child_to_next_node(parent, is_left)
            if self._old.left[old] < 0 or old not in right_bounds:
                self._append_node(old, float(self._old.threshold[old]), int(self._old.mode[old]))
                if self._old.left[old] >= 0:
                    new = len(self._rows) - 1
                    waiting += [(int(self._old.right[old]), new, False), (int(self._old.left[old]), new, True)]
                continue
            waiting += self._append_categorical_split(old, right_bounds[old])

    def _append_categorical_split(self, old_node: int, edges: Sequence[float]) -> list[tuple[int, int, bool]]:
        """Append a categorical split as a chain of nodes, each the right child of the one before.

        Each node compares the feature with one of the bounds ``edges``. Missing values go right until the last node.
        Return the children still to be appended, as (old node, new parent, True for the left child)."""
        missing_left = bool(self._old.mode[old_node] & UNORDERED)
        sides = (int(self._old.left[old_node]), int(self._old.right[old_node]))
        children = []
        for k, edge in enumerate(edges):
            last = k == len(edges) - 1
            if k:
                self._set_child_to_next_node(len(self._rows) - 1, False)
            # Before the first edge nothing is wanted; pieces alternate from there. The last edge ends the last run.
            to_left = (k % 2 == 0) == missing_left
            self._append_node(old_node, edge, LESS | UNORDERED if last and to_left else LESS)
            children.append((sides[k % 2], len(self._rows) - 1, True))
            if last:
                children.append((sides[(k + 1) % 2], len(self._rows) - 1, False))
        return children

    def _set_child_to_next_node(self, parent: int, is_left: bool) -> None:
        """Set the child of ``parent`` to the node that will be appended next. -1 is no parent."""
        if parent < 0:
            return
        if is_left:
            old, _, threshold, mode = self._rows[parent]
            self._rows[parent] = (old, len(self._rows), threshold, mode)
        else:
            self._right[parent] = len(self._rows)

    def _append_node(self, old_node: int, threshold: float, mode: int) -> None:
        """Append a node that copies ``old_node`` with another threshold and mode; UnsupportedError if the tree is too
        large."""
        if len(self._rows) >= MOST_NODES:
            raise UnsupportedError(
                f"tree with categorical splits: got more than {MOST_NODES} nodes, expected at most {MOST_NODES}",
                where=self._where,
                hint="encode the categories as numbers, or as one column for each category",
            )
        self._rows.append((old_node, -1, threshold, mode))
        self._right.append(-1)

    def finish_tree(self) -> Tree:
        """Return the finished tree."""
        old, left, threshold, mode = (np.array(column) for column in zip(*self._rows, strict=True))
        return Tree(
            left,
            np.array(self._right),
            self._old.feature[old],
            threshold,
            mode,
            self._old.values[old],
            self._old.target,
        )


def compute_category_bounds(categories: Array, where: str, *, truncates: bool = False) -> list[float]:
    """Return the bounds of all runs of consecutive categories: for each run its first category, and its last category +
    1. Categories are integers of at least 0.

    ``truncates``: True if features are truncated towards 0, so that all numbers above -1 are category 0."""
    unique = np.unique(categories)
    if not len(unique) or unique[0] < 0:
        raise ModelError(
            f"categorical split: got {len(unique)} categories from {unique[0] if len(unique) else 'none'}, "
            "expected at least one, numbered from 0",
            where=where,
        )
    if unique[-1] >= MOST_CATEGORIES:
        what = f"categorical split: got category {unique[-1]}, expected 0..{MOST_CATEGORIES - 1}"
        raise UnsupportedError(what, where=where, hint="number the categories from 0 on")
    breaks = np.flatnonzero(np.diff(unique) > 1)
    begins, ends = np.concatenate([unique[:1], unique[breaks + 1]]), np.concatenate([unique[breaks], unique[-1:]]) + 1
    edges = [float(edge) for pair in zip(begins, ends, strict=True) for edge in pair]
    return [math.nextafter(-1.0, 0.0), *edges[1:]] if truncates and not edges[0] else edges


# ---- Emission of a tree ensemble as nodes: ``tree_ensemble``, the sum with the base scores, and the transformation of the
# scores.


@dataclass(frozen=True)
class Ensemble:
    """A tree ensemble with ``target_count`` results. Each tree adds the values of one leaf to one or more results.

    ``base_scores``: constants, which are added to the results. ``combine_op``: ``sum``, ``min`` or ``max``, the
    operation that combines the trees. ``post_transform``: transformation of the results to scores: ``none``,
    ``softmax``, ``sigmoid`` (one result gives the probabilities of two classes), ``logistic`` (sigmoid of every
    result), ``exp``, or ``hinge`` (one result above 0 makes the second of two classes certain). ``classes``: labels of
    a classifier, if the model has them. ``missing``: the number that stands for a missing feature, besides NaN."""

    trees: tuple[Tree, ...]
    target_count: int
    base_scores: Array = field(default_factory=lambda: np.zeros(0))
    combine_op: str = "sum"
    post_transform: str = "none"
    classes: Array | None = None
    missing: float = math.nan


@dataclass(frozen=True)
class LinearModel:
    """A linear model: ``weights`` (targets, features) times the features, plus ``bias``. A missing feature counts as 0.

    For the other fields see :class:`Ensemble`."""

    weights: Array
    bias: Array
    post_transform: str = "none"
    classes: Array | None = None
    missing: float = math.nan

    @property
    def target_count(self) -> int:
        """Number of results."""
        return len(self.bias)


def emit_linear_model(emitter: Emitter, feature_rows: str, model: LinearModel) -> str:
    """Emit the results (N, ``target_count``) of a linear model, before the transformation ``post_transform``."""
    zero = emitter.new_constant("zero", np.zeros((1, 1), np.float32))
    is_missing = emitter.emit("not_equal", (feature_rows, feature_rows))
    present = emitter.emit("where", (is_missing, zero, feature_rows))
    weights, bias = (
        emitter.new_constant(stem, numbers.astype(np.float32))
        for stem, numbers in (("weights", model.weights), ("bias", model.bias))
    )
    return emitter.emit("dense", (present, weights, bias))


def emit_missing_as_nan(emitter: Emitter, feature_rows: str, missing: float) -> str:
    """Emit the features with the number ``missing`` replaced by NaN, which trees take as missing."""
    if math.isnan(missing):
        return feature_rows
    number, nan = (
        emitter.new_constant(stem, np.full((1, 1), value, np.float32))
        for stem, value in (("missing", missing), ("nan", math.nan))
    )
    return emitter.emit("where", (emitter.emit("equal", (feature_rows, number)), nan, feature_rows))


def emit_ensemble(
    emitter: Emitter, feature_rows: str, ensemble: Ensemble, where: str, leaf_dtype: str = "float32"
) -> str:
    """Emit the results (N, ``target_count``) of an ensemble for the rows of ``feature_rows``, before the
    transformation ``post_transform``.

    With an integer ``leaf_dtype`` the leaves are rounded to multiples of :func:`compute_leaf_scale`, and the results
    are int32 numbers in this unit."""
    if not ensemble.trees:
        raise ModelError("got an ensemble without trees, expected at least one", where=where)
    type_ = emitter.type(feature_rows)
    if len(type_.shape) != 2:
        raise ModelError(f"tree ensemble: got data of shape {type_.shape}, expected (rows, features)", where=where)
    if ensemble.target_count < 1:
        raise ModelError(f"tree ensemble: got {ensemble.target_count} results, expected 1..{MOST_TARGETS}", where=where)
    if ensemble.target_count > MOST_TARGETS:
        raise UnsupportedError(
            f"tree ensemble: got {ensemble.target_count} results, expected 1..{MOST_TARGETS}", where=where
        )
    for tree in ensemble.trees:
        if not 0 <= tree.target <= ensemble.target_count - tree.values.shape[1]:
            raise ModelError(
                f"tree: got {tree.target} as index of its first result, expected "
                f"0..{ensemble.target_count - tree.values.shape[1]}",
                where=where,
            )
    base = ensemble.base_scores.reshape(-1)
    if not np.isfinite(base).all():
        raise ModelError(f"base scores: got {base}, expected finite numbers", where=where)
    if dtypes.is_float(leaf_dtype):
        real = dtypes.to_numpy(leaf_dtype)
        trees, base = [tree.with_values(tree.values.astype(real)) for tree in ensemble.trees], base.astype(real)
    else:
        trees, base = _round_leaves(ensemble, leaf_dtype, where)
    arrays = flatten_trees(trees, type_.dtype, where, type_.shape[1])
    operands = [feature_rows, *(emitter.new_constant("trees", array) for array in arrays.operands())]
    attrs = {"combine": ensemble.combine_op, "targets": ensemble.target_count, **arrays.attrs()}
    scores = emitter.emit("tree_ensemble", operands, attrs)
    return emitter.emit("add", (scores, emitter.new_constant("base", base))) if base.any() else scores


def compute_leaf_scale(ensemble: Ensemble, leaf_dtype: str) -> float:
    """Return the scale of leaves that are rounded to integers: the real number that the integer 1 stands for.

    The leaf of the largest magnitude becomes the largest number of ``leaf_dtype``."""
    _, high = dtypes.int_range(leaf_dtype)
    return max(float(abs(tree.values[tree.left < 0]).max()) for tree in ensemble.trees) / high or 1.0


def _round_leaves(ensemble: Ensemble, leaf_dtype: str, where: str) -> tuple[list[Tree], Array]:
    """Return the trees with leaves rounded to integers of ``leaf_dtype``, and the base scores as int32 in the same
    unit."""
    low, _ = dtypes.int_range(leaf_dtype)
    if not low and any(tree.values.min() < 0 for tree in ensemble.trees):
        raise UnsupportedError(
            f"leaf dtype {leaf_dtype}: got negative leaves, expected a signed dtype",
            where=where,
            hint="choose int8 or int16",
        )
    scale = compute_leaf_scale(ensemble, leaf_dtype)
    trees = [
        tree.with_values(
            np.rint(np.where(tree.left[:, None] < 0, tree.values, 0) / scale).astype(dtypes.to_numpy(leaf_dtype))
        )
        for tree in ensemble.trees
    ]
    return trees, np.rint(ensemble.base_scores.reshape(-1) / scale).astype(np.int32)


def emit_post_transform(emitter: Emitter, scores: str, post_transform: str, where: str) -> str:
    """Emit the transformation of an ensemble's results to scores; ``post_transform``: name of the
    transformation, see :class:`Ensemble`."""
    match post_transform:
        case "none":
            return scores
        case "softmax":
            return emitter.emit("softmax", (scores,), {"axis": -1})
        case "logistic":
            return emitter.emit("sigmoid", (scores,))
        case "exp":
            return emitter.emit("exp", (scores,))
        case "hinge":
            zero, one = (
                emitter.new_constant(stem, np.full((1, 1), value, np.float32))
                for stem, value in (("zero", 0), ("one", 1))
            )
            is_second = emitter.emit("greater", (scores, zero))
            return emit_both_probabilities(emitter, emitter.emit("where", (is_second, one, zero)))
        case "sigmoid":
            return emit_both_probabilities(emitter, emitter.emit("sigmoid", (scores,)))
        case _:
            raise UnsupportedError(f"post_transform: {post_transform!r} is not supported", where=where)


def emit_both_probabilities(emitter: Emitter, probability: str) -> str:
    """Emit the probabilities of two classes (N, 2) from the probability of the second class (N, 1)."""
    one = emitter.new_constant("one", np.array(1.0, np.float32))
    return emitter.emit("concat", (emitter.emit("sub", (one, probability)), probability), {"axis": 1})


def emit_class_of_index(emitter: Emitter, class_index: str, classes: Array | None) -> str:
    """Emit the class for an index. The result is the index itself if classes are no integers, or are 0, 1, 2 ..."""
    if classes is None or classes.dtype.kind not in "iu" or np.array_equal(classes, np.arange(len(classes))):
        return class_index
    return emitter.emit("gather", (emitter.new_constant("classes", classes.astype(np.int32)), class_index), {"axis": 0})
