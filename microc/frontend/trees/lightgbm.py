"""LightGBM's text model (``Booster.save_model``): sections ``name=value``, one for every tree. No import of LightGBM."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.frontend.trees.ensembles import Ensemble
from microc.ops.trees.arrays import AT_MOST, UNORDERED, Tree

START = b"tree\n"
_CATEGORICAL, _DEFAULT_LEFT = 1, 2
_MISSING_ZERO, _MISSING_NAN = 1, 2
_PLAIN = ("regression", "regression_l1", "huber", "fair", "quantile", "mape", "lambdarank", "rank_xendcg", "")
_EXPONENTIAL = ("poisson", "gamma", "tweedie")
_MOST_TREES = 1 << 20


def is_lightgbm(data: bytes) -> bool:
    """Whether a file holds a text model."""
    return data.startswith(START) and b"\nversion=" in data[:64]


def parse(data: bytes, file: str) -> tuple[Ensemble, int]:
    """The ensemble of a text model, and its number of features; ModelError where the text is broken."""
    head, *sections = data.decode("utf-8", "replace").split("\nTree=")
    header = _fields(head)
    sections = [section.split("\nend of trees")[0] for section in sections]
    features = _integer(header, "max_feature_idx", file) + 1
    targets = _integer(header, "num_tree_per_iteration", file)
    if not 1 <= targets <= len(sections) <= _MOST_TREES or len(sections) % targets:
        raise ModelError(f"{len(sections)} trees for {targets} targets", where=file)
    trees = [_tree(_fields(s), k % targets, f"{file} tree {k}") for k, s in enumerate(sections)]
    if "average_output" in head.split("\n"):
        trees = [tree.with_values(tree.values * targets / len(trees)) for tree in trees]
    post, factor = _post(header.get("objective", ""), targets, file)
    return Ensemble(tuple(tree.with_values(tree.values * factor) for tree in trees), targets, post=post), features


def _fields(section: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in section.split("\n") if "=" in line)


def _integer(fields: Mapping[str, str], name: str, where: str) -> int:
    return int(_numbers(fields, name, np.int64, 1, where)[0])


def _numbers(fields: Mapping[str, str], name: str, dtype: type, count: int, where: str) -> Array:
    try:
        found: Array = np.array(fields[name].split(), dtype)
    except (KeyError, ValueError) as error:
        raise ModelError(f"{name!r} is missing or holds no numbers", where=where) from error
    if len(found) != count:
        raise ModelError(f"{name!r} holds {len(found)} numbers, {count} expected", where=where)
    return found


def _tree(fields: Mapping[str, str], target: int, where: str) -> Tree:
    """One tree: inner nodes first, leaf k behind them (the file calls it -1 - k)."""
    leaves = _integer(fields, "num_leaves", where)
    if fields.get("is_linear", "0") != "0":
        raise UnsupportedError("linear models in the leaves", where=where, hint="train with linear_tree=false")
    values = _numbers(fields, "leaf_value", np.float64, leaves, where)
    inner = leaves - 1
    children = []
    for name in ("left_child", "right_child"):
        place = _numbers(fields, name, np.int64, inner, where) if inner else np.zeros(0, np.int64)
        place = np.where(place < 0, inner - 1 - place, place)
        children.append(np.concatenate([place, np.full(leaves, -1)]))
    feature, threshold = np.zeros(inner + leaves, np.int64), np.zeros(inner + leaves)
    mode = np.full(inner + leaves, AT_MOST)
    if inner:
        feature[:inner] = _numbers(fields, "split_feature", np.int64, inner, where)
        threshold[:inner] = _numbers(fields, "threshold", np.float64, inner, where)
        mode[:inner] = _modes(_numbers(fields, "decision_type", np.int64, inner, where), threshold[:inner], where)
    held = np.concatenate([np.zeros(inner), values]).reshape(-1, 1)
    return Tree(children[0], children[1], feature, threshold, mode, held, target)


def _modes(decisions: Array, threshold: Array, where: str) -> Array:
    """At most the threshold to the left; NaN by the node's default, or as the zero that it counts for."""
    if (decisions & _CATEGORICAL).any():
        raise UnsupportedError("splits over categories", where=where, hint="encode the categories as numbers")
    missing = decisions >> 2 & 3
    if (missing == _MISSING_ZERO).any():
        raise UnsupportedError("zeros that count as missing", where=where, hint="train with zero_as_missing=false")
    left = np.where(missing == _MISSING_NAN, decisions & _DEFAULT_LEFT != 0, threshold >= 0)
    return np.where(left, AT_MOST | UNORDERED, AT_MOST)


def _post(objective: str, targets: int, where: str) -> tuple[str, float]:
    """What makes scores of the sums, and what they are multiplied by before."""
    name, *options = objective.split() or [""]
    slope = next((float(option.split(":")[1]) for option in options if option.startswith("sigmoid:")), 1.0)
    if "sqrt" in options:
        raise UnsupportedError("reg_sqrt", where=where, hint="train without it and square outside")
    if name == "binary":
        return "sigmoid", slope
    if name in ("multiclass", "softmax"):
        return "softmax", 1.0
    if name in ("multiclassova", "cross_entropy"):
        return "logistic", slope
    if name in (*_PLAIN, *_EXPONENTIAL):
        return "exp" if name in _EXPONENTIAL else "none", 1.0
    raise UnsupportedError(f"the objective {objective!r}", where=where)
