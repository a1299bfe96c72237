"""LightGBM's text model (``Booster.save_model``): sections ``name=value``, one for every tree. No import of LightGBM."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.frontend.trees.ensembles import Ensemble
from microc.frontend.trees.numbers import MOST_TARGETS, integers, reals
from microc.ops.trees.arrays import AT_MOST, UNORDERED, Tree

START = b"tree\n"
_CATEGORICAL, _DEFAULT_LEFT = 1, 2
_MISSING_ZERO, _MISSING_NAN = 1, 2
_PLAIN = ("regression", "regression_l1", "huber", "fair", "quantile", "mape", "lambdarank", "rank_xendcg", "")
_EXPONENTIAL = ("poisson", "gamma", "tweedie")
_MOST_TREES, _MOST_LEAVES, _MOST_FEATURES = 1 << 20, 1 << 24, 1 << 26
"""Far beyond what fits a microcontroller: what the text has of each is counted before anything is made."""


def is_lightgbm(data: bytes) -> bool:
    """Whether a file holds a text model."""
    return data.startswith(START) and b"\nversion=" in data[:64]


def parse(data: bytes, file: str) -> tuple[Ensemble, int]:
    """The ensemble of a text model, and its number of features; ModelError where the text is broken."""
    head, *sections = data.decode("utf-8", "replace").split("\nTree=")
    header = _fields(head)
    sections = [section.split("\nend of trees")[0] for section in sections]
    features = _integer(header, "max_feature_idx", 0, _MOST_FEATURES, file) + 1
    targets = _integer(header, "num_tree_per_iteration", 1, MOST_TARGETS, file)
    if not targets <= len(sections) <= _MOST_TREES or len(sections) % targets:
        raise ModelError(f"{len(sections)} trees for {targets} targets", where=file)
    trees = [_tree(_fields(s), features, k % targets, f"{file} tree {k}") for k, s in enumerate(sections)]
    if "average_output" in head.split("\n"):
        trees = [tree.with_values(tree.values * targets / len(trees)) for tree in trees]
    post, factor = _post(header.get("objective", ""), targets, file)
    return Ensemble(tuple(tree.with_values(tree.values * factor) for tree in trees), targets, post=post), features


def _fields(section: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in section.split("\n") if "=" in line)


def _words(fields: Mapping[str, str], name: str, count: int, where: str) -> list[str]:
    """The words of a field, as many as are expected."""
    if name not in fields:
        raise ModelError(f"{name!r} is missing", where=where)
    found = fields[name].split()
    if len(found) != count:
        raise ModelError(f"{name!r} holds {len(found)} numbers, {count} expected", where=where)
    return found


def _integer(fields: Mapping[str, str], name: str, least: int, most: int, where: str) -> int:
    return int(integers(_words(fields, name, 1, where), where, repr(name), least, most)[0])


def _tree(fields: Mapping[str, str], features: int, target: int, where: str) -> Tree:
    """One tree: inner nodes first, leaf k behind them (the file calls it -1 - k)."""
    leaves = _integer(fields, "num_leaves", 1, _MOST_LEAVES, where)
    if fields.get("is_linear", "0") != "0":
        raise UnsupportedError("linear models in the leaves", where=where, hint="train with linear_tree=false")
    values = reals(_words(fields, "leaf_value", leaves, where), where, "'leaf_value'")
    inner = leaves - 1

    def row(name: str, least: int, most: int) -> Array:
        return integers(_words(fields, name, inner, where), where, repr(name), least, most)

    children = []
    for name in ("left_child", "right_child"):
        place = row(name, -leaves, inner - 1) if inner else np.zeros(0, np.int64)
        place = np.where(place < 0, inner - 1 - place, place)
        children.append(np.concatenate([place, np.full(leaves, -1)]))
    feature, threshold = np.zeros(inner + leaves, np.int64), np.zeros(inner + leaves)
    mode = np.full(inner + leaves, AT_MOST)
    if inner:
        feature[:inner] = row("split_feature", 0, features - 1)
        threshold[:inner] = reals(_words(fields, "threshold", inner, where), where, "'threshold'", finite=False)
        mode[:inner] = _modes(row("decision_type", -128, 255), threshold[:inner], where)
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
    slopes = [option.split(":")[1] for option in options if option.startswith("sigmoid:")]
    slope = float(reals(slopes[:1] or [1.0], where, "'sigmoid' of the objective")[0])
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
