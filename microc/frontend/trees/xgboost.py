"""XGBoost's model files (``save_model``, as JSON or UBJSON): plain data, without an import of XGBoost.

Its trees go left where a feature is less than the threshold, both in float32; each node says where missing values go.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from microc.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.frontend.budget import read_json
from microc.frontend.trees.categories import by_thresholds
from microc.frontend.trees.ensembles import Ensemble
from microc.frontend.trees.numbers import MOST_TARGETS, integers, reals
from microc.frontend.trees.ubjson import read_ubjson
from microc.ops.trees.arrays import LESS, UNORDERED, Tree

_JSON = re.compile(rb'\s*\{\s*"(learner|version)"\s*:')
_UBJSON = re.compile(rb"\{[iUIlL]\0*\x07(learner|version)")
_MOST_JSON = 1 << 26
_MOST_FEATURES = 1 << 26

_PLAIN = (
    "reg:squarederror", "reg:linear", "reg:absoluteerror", "reg:pseudohubererror", "reg:quantileerror", "reg:squaredlogerror",
    "rank:ndcg", "rank:map", "rank:pairwise",
)  # fmt: skip
_EXPONENTIAL = ("count:poisson", "reg:gamma", "reg:tweedie", "survival:cox", "survival:aft")
_POSTS: Mapping[str, str] = {
    **dict.fromkeys(_PLAIN, "none"),
    **dict.fromkeys(_EXPONENTIAL, "exp"),
    "binary:logitraw": "none",
    "binary:logistic": "sigmoid",
    "reg:logistic": "logistic",
    "multi:softprob": "softmax",
    "multi:softmax": "softmax",
}
"""What makes results of sums, by the objective."""


def is_xgboost(data: bytes) -> bool:
    """Whether a file holds a model, in JSON or UBJSON."""
    return _JSON.match(data[:256]) is not None or _UBJSON.match(data[:64]) is not None


def parse(data: bytes, file: str, stopped: bool | None = None) -> tuple[Ensemble, int]:
    """The ensemble of a model file, and its number of features.

    ``stopped``: whether rounds behind the best iteration are left out, as estimators do and boosters do not; None: where the
    file was saved by an estimator. ModelError where the file is broken, UnsupportedError for what is no sum of trees.
    """
    if len(data) > _MOST_JSON:
        raise UnsupportedError(f"{len(data)} bytes of trees; the most are {_MOST_JSON}", where=file)
    model = read_ubjson(data, file) if _UBJSON.match(data[:64]) else read_json(data, file)
    try:
        return _ensemble(model["learner"], file, stopped)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError) as error:
        raise ModelError(f"the model of XGBoost is broken: {error!r}", where=file) from error


def is_object(model: Any) -> bool:
    """Whether it is a booster, or an estimator, whose classes are numbered from 0."""
    return hasattr(model, "get_booster") or hasattr(model, "save_raw")


def of_object(model: Any) -> tuple[Ensemble, int]:
    """The same of a booster or an estimator in this process; ModelError where it is not fitted."""
    where = type(model).__name__
    missing = getattr(model, "missing", None)
    if missing is not None and not math.isnan(missing):
        raise UnsupportedError(f"numbers that count as missing, {missing}", where=where, hint="train with missing=nan")
    try:
        booster = model.get_booster() if hasattr(model, "get_booster") else model
    except Exception as error:  # of a class of scikit-learn's, which need not be there
        raise ModelError(f"the estimator is not fitted: {error}", where=where, hint="call fit first") from error
    return parse(bytes(booster.save_raw(raw_format="ubj")), where, stopped=booster is not model)


def _ensemble(learner: Mapping[str, Any], file: str, stopped: bool | None) -> tuple[Ensemble, int]:
    sizes = learner["learner_model_param"]
    features = _size(sizes["num_feature"], file, "num_feature")
    counts = [_size(sizes.get(name, 0), file, name, MOST_TARGETS) for name in ("num_class", "num_target")]
    targets = max(1, *counts)
    objective = str(learner["objective"]["name"])
    if objective not in _POSTS:
        raise UnsupportedError(f"the objective {objective!r}", where=file, hint="known: " + ", ".join(sorted(_POSTS)))
    model, weights = _booster(learner["gradient_booster"], file)
    held = model["trees"][: _rounds(model, learner.get("attributes", {}), stopped)]
    groups = integers(model["tree_info"][: len(held)], file, "tree_info", 0, targets - 1)
    if len(groups) < len(held):
        raise ModelError("trees belong to results that there are none of", where=file)
    trees = [_tree(tree, int(groups[k]), f"{file} tree {k}") for k, tree in enumerate(held)]
    if weights:
        trees = [tree.with_values(tree.values * weights[k]) for k, tree in enumerate(trees)]
    base = np.broadcast_to(_margin(_base(sizes["base_score"]), objective), (targets,))
    return Ensemble(tuple(trees), targets, base.astype(np.float64), post=_POSTS[objective]), features


def _booster(booster: Mapping[str, Any], file: str) -> tuple[Mapping[str, Any], Sequence[float]]:
    """The trees, and what each is multiplied by; nothing where all count once."""
    name = str(booster["name"])
    if name == "gbtree":
        return booster["model"], ()
    if name == "dart":
        shares = reals(booster["weight_drop"], file, "weight_drop").tolist()
        return booster["gbtree"]["model"], shares
    raise UnsupportedError(f"the booster {name!r}", where=file, hint="train with booster='gbtree' or 'dart'")


def _rounds(model: Mapping[str, Any], attributes: Mapping[str, Any], stopped: bool | None) -> int:
    """How many trees count."""
    best = attributes.get("best_iteration")
    if stopped is None:
        stopped = "scikit_learn" in attributes
    if best is None or not stopped:
        return len(model["trees"])
    round_ = _size(best, "best_iteration", "best_iteration", len(model["iteration_indptr"]) - 2)
    return _size(model["iteration_indptr"][round_ + 1], "iteration_indptr", "iteration_indptr", len(model["trees"]))


def _size(value: Any, where: str, what: str, most: int = _MOST_FEATURES) -> int:
    """A number that the file may hold as text."""
    return int(integers([value], where, what, 0, most)[0])


def _base(text: Any) -> Array:
    """A number, or one for each result, as text."""
    found = np.atleast_1d(np.asarray(json.loads(str(text)), np.float64))
    if found.ndim != 1 or not np.isfinite(found).all():
        raise ValueError(f"base_score {text!r}")
    return found


def _margin(base: Array, objective: str) -> Array:
    """The base in the unit of the sums: files have it in that of the results."""
    into: Callable[[float], float] = float
    if objective.endswith(":logistic"):
        into = _logit
    elif _POSTS[objective] == "exp":
        into = math.log
    return np.array([into(float(each)) for each in base])


def _logit(share: float) -> float:
    return -math.log(1 / share - 1)


def _tree(tree: Mapping[str, Any], target: int, where: str) -> Tree:
    """One tree; the file's nodes are ours, leaves have their values among the thresholds."""
    if _size(tree.get("tree_param", {}).get("size_leaf_vector", 1), where, "size_leaf_vector") > 1:
        raise UnsupportedError(
            "trees of several results", where=where, hint="train with multi_strategy='one_output_per_tree'"
        )
    count = len(tree["left_children"])
    left, right = (integers(tree[name], where, name, -1, count - 1) for name in ("left_children", "right_children"))
    feature = integers(tree["split_indices"], where, "split_indices")  # nodes that were pruned hold the largest number
    with np.errstate(over="ignore"):
        conditions = reals(tree["split_conditions"], where, "split_conditions", finite=False)
        threshold = conditions.astype(np.float32).astype(np.float64)
    mode = np.where(integers(tree["default_left"], where, "default_left", 0, 1) != 0, LESS | UNORDERED, LESS)
    if len({len(each) for each in (left, right, feature, threshold, mode)}) > 1 or not len(left):
        raise ModelError("the arrays of a tree have different lengths", where=where)
    if ((left < 0) != (right < 0)).any():
        raise ModelError("a tree has nodes with one child", where=where)
    values = np.where(left < 0, threshold, 0.0).reshape(-1, 1)
    if not np.isfinite(values).all():
        raise ModelError("a leaf is no number", where=where)
    categories = _categories(tree, left, where)
    return by_thresholds(Tree(left, right, feature, threshold, mode, values, target), categories, where)


def _categories(tree: Mapping[str, Any], left: Array, where: str) -> dict[int, Array]:
    """The categories that lead to the right, by the nodes that ask for any."""
    nodes = integers(tree.get("categories_nodes", ()), where, "categories_nodes", 0, len(left) - 1)
    held = integers(tree.get("categories", ()), where, "categories")
    begins, counts = (
        integers(tree.get(f"categories_{name}", ()), where, f"categories_{name}", 0, len(held))
        for name in ("segments", "sizes")
    )
    kinds = integers(tree.get("split_type", [0] * len(left)), where, "split_type", 0, 1)
    asking = np.flatnonzero((kinds == 1) & (left >= 0))
    found = {int(node): held[begin : begin + count] for node, begin, count in zip(nodes, begins, counts, strict=True)}
    if set(asking.tolist()) != set(found):
        raise ValueError("the nodes of categories are not those that split by them")
    return found
