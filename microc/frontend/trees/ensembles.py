"""Tree ensembles of any format: numbers, categories, sums over trees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.frontend.graph_builder import Emitter
from microc.ops.trees.tree_arrays import LESS, UNORDERED, Tree, flatten_trees

# ---- Numbers of model files of trees, of text, JSON or binary: converted within a declared range, or refused.

MOST_TARGETS = 1 << 12
"""Results of one ensemble: each is a column of the C code's output, and needs a tree in every round."""
_MOST = (1 << 31) - 1


def parse_integers(values: Any, where: str, description: str, minimum: int = 0, maximum: int = _MOST) -> Array:
    """Return a row of integers within ``minimum``..``maximum`` as int64; ``description`` names it in errors.

    Raise ModelError for what is no row of whole numbers, and for a number out of range: none is rounded, cut or
    wrapped."""
    is_integer_row = isinstance(values, np.ndarray) and values.dtype.kind in "iu" and values.ndim == 1
    if is_integer_row and (not values.size or (minimum <= int(values.min()) and int(values.max()) <= maximum)):
        return np.asarray(values, np.int64)
    try:
        numbers = [_to_integer(value) for value in values]
    except (TypeError, ValueError, OverflowError) as error:
        raise ModelError(f"{description}: {error}; expected whole numbers", where=where) from error
    outside = next((value for value in numbers if not minimum <= value <= maximum), None)
    if outside is not None:
        raise ModelError(f"{description}: got {outside}, expected {minimum}..{maximum}", where=where)
    return np.array(numbers, np.int64)


def parse_reals(values: Any, where: str, description: str, *, finite: bool = True) -> Array:
    """Return a row of numbers as float64; raise ModelError for NaN and, if ``finite``, for infinities.

    ``description`` names the row in errors."""
    try:
        numbers: Array = np.array(values, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ModelError(f"{description}: {error}; expected numbers", where=where) from error
    if numbers.ndim != 1:
        raise ModelError(f"{description}: got {numbers.ndim} axes, expected a row of numbers", where=where)
    is_invalid = ~np.isfinite(numbers) if finite else np.isnan(numbers)
    if is_invalid.any():
        raise ModelError(f"{description}: got {numbers[is_invalid][0]}, expected a number", where=where)
    return numbers


def _to_integer(value: Any) -> int:
    """Return a number, or a text of one, as an integer; ValueError where it is none."""
    if isinstance(value, str):
        return int(value)
    number = int(value)
    if number != value:
        raise ValueError(f"got {value!r}")
    return number


# ---- Splits over categories, converted to splits at thresholds, the only ones that are compiled.

MOST_CATEGORIES = 1 << 24
MOST_NODES = 1 << 20
"""Nodes of one tree. The subtree below a split over categories is copied for each run of categories."""


def replace_category_splits(tree: Tree, categories: Mapping[int, Array], where: str) -> Tree:
    """Replace splits over categories by splits at thresholds, for features that are integers from 0 on.

    ``categories``: for each such node the categories that go right. Others go left, missing values as the node's mode
    says. A run of consecutive categories takes two thresholds and a copy of the subtree."""
    if not categories:
        return tree
    builder = _TreeBuilder(tree, where)
    builder.grow(categories)
    return builder.tree()


class _TreeBuilder:
    """Builder of a tree whose splits over categories are replaced by chains of thresholds."""

    def __init__(self, tree: Tree, where: str) -> None:
        self._old, self._where = tree, where
        self._rows: list[tuple[int, int, float, int]] = []  # the old node, left, threshold, mode
        self._right: list[int] = []

    def grow(self, categories: Mapping[int, Array]) -> None:
        """Add all nodes, parents before children.

        ``waiting`` holds (old node, new parent, whether it is the left child).
        """
        waiting: list[tuple[int, int, bool]] = [(0, -1, False)]
        while waiting:
            old, parent, is_left = waiting.pop()
            self._attach_next(parent, is_left)
            if self._old.left[old] < 0 or old not in categories:
                self._append_node(old, float(self._old.threshold[old]), int(self._old.mode[old]))
                if self._old.left[old] >= 0:
                    new = len(self._rows) - 1
                    waiting += [(int(self._old.right[old]), new, False), (int(self._old.left[old]), new, True)]
                continue
            waiting += self._add_category_split(old, categories[old])

    def _add_category_split(self, old_node: int, categories: Array) -> list[tuple[int, int, bool]]:
        """Add a split over categories: comparisons with the ends of their runs, as a chain of right children.

        Missing values reach the last one. Return the children that are still to be added."""
        edges = _run_bounds(categories, self._where)
        missing_left = bool(self._old.mode[old_node] & UNORDERED)
        sides = (int(self._old.left[old_node]), int(self._old.right[old_node]))
        children = []
        for k, edge in enumerate(edges):
            last = k == len(edges) - 1
            if k:
                self._attach_next(len(self._rows) - 1, False)
            # Before the first edge nothing is wanted; pieces alternate from there. The last edge ends the last run.
            to_left = (k % 2 == 0) == missing_left
            self._append_node(old_node, edge, LESS | UNORDERED if last and to_left else LESS)
            children.append((sides[k % 2], len(self._rows) - 1, True))
            if last:
                children.append((sides[(k + 1) % 2], len(self._rows) - 1, False))
        return children

    def _attach_next(self, parent: int, is_left: bool) -> None:
        """Make the next node to be added a child of ``parent``."""
        if parent < 0:
            return
        if is_left:
            old, _, threshold, mode = self._rows[parent]
            self._rows[parent] = (old, len(self._rows), threshold, mode)
        else:
            self._right[parent] = len(self._rows)

    def _append_node(self, old_node: int, threshold: float, mode: int) -> None:
        """Append a node; UnsupportedError if there are too many."""
        if len(self._rows) >= MOST_NODES:
            raise UnsupportedError(
                "splits over categories that take too many thresholds",
                where=self._where,
                hint="encode the categories as numbers, frequent ones side by side, or one column for each",
            )
        self._rows.append((old_node, -1, threshold, mode))
        self._right.append(-1)

    def tree(self) -> Tree:
        """Return the tree."""
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


def _run_bounds(categories: Array, where: str) -> list[float]:
    """Return the bounds of runs of categories: the first category, and the one after the last, of each run."""
    unique = np.unique(categories)
    if not len(unique) or unique[0] < 0:
        raise ModelError(
            f"a split over {len(unique)} categories from {unique[0] if len(unique) else 'none'}, expected numbers of at least 0",
            where=where,
        )
    if unique[-1] >= MOST_CATEGORIES:
        what = f"a split by category {unique[-1]}, expected 0..{MOST_CATEGORIES - 1}"
        raise UnsupportedError(what, where=where, hint="number the categories from 0 on")
    breaks = np.flatnonzero(np.diff(unique) > 1)
    begins, ends = np.concatenate([unique[:1], unique[breaks + 1]]), np.concatenate([unique[breaks], unique[-1:]]) + 1
    return [float(edge) for pair in zip(begins, ends, strict=True) for edge in pair]


# ---- Tree ensembles of any format in our operators: the sum over the trees, the base, and the transformation to scores.


@dataclass(frozen=True)
class Ensemble:
    """Trees whose leaves add to ``targets`` results.

    ``base``: start values of the sums (or of ``min``, ``max``). ``post``: transformation of the results, ``none``,
    ``softmax``, ``sigmoid`` (one score gives two classes), ``logistic`` (of every score), ``exp``."""

    trees: tuple[Tree, ...]
    targets: int
    base: Array = field(default_factory=lambda: np.zeros(0))
    combine: str = "sum"
    post: str = "none"


def emit_ensemble(
    emitter: Emitter, feature_rows: str, ensemble: Ensemble, where: str, leaf_dtype: str = "float32"
) -> str:
    """Emit the results (N, targets) for the rows of ``feature_rows``, before ``post``.

    With an integer ``leaf_dtype`` leaves are rounded to multiples of :func:`leaf_scale`; results are int32 multiples of
    it."""
    if not ensemble.trees:
        raise ModelError("got an ensemble without trees, expected at least one", where=where)
    type_ = emitter.type(feature_rows)
    if len(type_.shape) != 2:
        raise ModelError(f"trees take data of two axes, (rows, features); got shape {type_.shape}", where=where)
    if ensemble.targets < 1:
        raise ModelError(f"trees give {ensemble.targets} results, expected 1..{MOST_TARGETS}", where=where)
    if ensemble.targets > MOST_TARGETS:
        raise UnsupportedError(f"trees give {ensemble.targets} results, expected 1..{MOST_TARGETS}", where=where)
    for tree in ensemble.trees:
        if not 0 <= tree.target <= ensemble.targets - tree.values.shape[1]:
            raise ModelError(
                f"a tree adds to result {tree.target}, expected 0..{ensemble.targets - tree.values.shape[1]}",
                where=where,
            )
    base = ensemble.base.reshape(-1)
    if not np.isfinite(base).all():
        raise ModelError(f"base scores are {base}, expected finite numbers", where=where)
    if dtypes.is_float(leaf_dtype):
        real = dtypes.to_numpy(leaf_dtype)
        trees, base = [tree.with_values(tree.values.astype(real)) for tree in ensemble.trees], base.astype(real)
    else:
        trees, base = _round_leaves(ensemble, leaf_dtype, where)
    arrays = flatten_trees(trees, type_.dtype, where, type_.shape[1])
    operands = [feature_rows, *(emitter.new_constant("trees", array) for array in arrays.operands())]
    attrs = {"combine": ensemble.combine, "targets": ensemble.targets, **arrays.attrs()}
    scores = emitter.emit("tree_ensemble", operands, attrs)
    return emitter.emit("add", (scores, emitter.new_constant("base", base))) if base.any() else scores


def leaf_scale(ensemble: Ensemble, leaf_dtype: str) -> float:
    """Return the real value of one unit of an integer leaf: the largest leaf fills the dtype."""
    _, high = dtypes.int_range(leaf_dtype)
    return max(float(abs(tree.values[tree.left < 0]).max()) for tree in ensemble.trees) / high or 1.0


def _round_leaves(ensemble: Ensemble, leaf_dtype: str, where: str) -> tuple[list[Tree], Array]:
    """Return trees with integer leaves, and the base in the same unit."""
    low, _ = dtypes.int_range(leaf_dtype)
    if not low and any(tree.values.min() < 0 for tree in ensemble.trees):
        raise UnsupportedError(
            f"negative leaves as {leaf_dtype}", where=where, hint="choose a signed dtype for the leaves"
        )
    scale = leaf_scale(ensemble, leaf_dtype)
    trees = [
        tree.with_values(
            np.rint(np.where(tree.left[:, None] < 0, tree.values, 0) / scale).astype(dtypes.to_numpy(leaf_dtype))
        )
        for tree in ensemble.trees
    ]
    return trees, np.rint(ensemble.base.reshape(-1) / scale).astype(np.int32)


def emit_post_transform(emitter: Emitter, scores: str, post_name: str, where: str) -> str:
    """Emit the transformation of scores that ONNX or a loss function names."""
    match post_name:
        case "none":
            return scores
        case "softmax":
            return emitter.emit("softmax", (scores,), {"axis": -1})
        case "logistic":
            return emitter.emit("sigmoid", (scores,))
        case "exp":
            return emitter.emit("exp", (scores,))
        case "sigmoid":
            return emit_both_probabilities(emitter, emitter.emit("sigmoid", (scores,)))
        case _:
            raise UnsupportedError(f"the transformation {post_name!r} of scores", where=where)


def emit_both_probabilities(emitter: Emitter, probability: str) -> str:
    """Emit the probabilities of both classes from those of the second class, (N, 1)."""
    one = emitter.new_constant("one", np.array(1.0, np.float32))
    return emitter.emit("concat", (emitter.emit("sub", (one, probability)), probability), {"axis": 1})
