"""Models of LightGBM, of its text, and of XGBoost, as JSON or UBJSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.frontend.budget import MAX_NESTED, read_json
from microc.frontend.trees.ensembles import MOST_TARGETS, Ensemble, by_thresholds, integers, reals
from microc.ops.trees.tree_arrays import AT_MOST, LESS, UNORDERED, Tree

# ---- LightGBM's text model (``Booster.save_model``): sections ``name=value``, one for every tree. No import of
# LightGBM.

START = b"tree\n"
_CATEGORICAL, _DEFAULT_LEFT = 1, 2
_MISSING_ZERO, _MISSING_NAN = 1, 2
_LIGHTGBM_PLAIN = ("regression", "regression_l1", "huber", "fair", "quantile", "mape", "lambdarank", "rank_xendcg", "")
_LIGHTGBM_EXPONENTIAL = ("poisson", "gamma", "tweedie")
_MOST_TREES, _MOST_LEAVES, _LIGHTGBM_MOST_FEATURES = 1 << 20, 1 << 24, 1 << 26
"""Far beyond what fits a microcontroller: what the text has of each is counted before anything is made."""


def is_lightgbm(data: bytes) -> bool:
    """Whether a file holds a text model."""
    return data.startswith(START) and b"\nversion=" in data[:64]


def parse_lightgbm(data: bytes, file: str) -> tuple[Ensemble, int]:
    """The ensemble of a text model, and its number of features; ModelError where the text is broken."""
    head, *sections = data.decode("utf-8", "replace").split("\nTree=")
    header = _fields(head)
    sections = [section.split("\nend of trees")[0] for section in sections]
    features = _integer(header, "max_feature_idx", 0, _LIGHTGBM_MOST_FEATURES, file) + 1
    targets = _integer(header, "num_tree_per_iteration", 1, MOST_TARGETS, file)
    if not targets <= len(sections) <= _MOST_TREES or len(sections) % targets:
        raise ModelError(f"{len(sections)} trees for {targets} targets", where=file)
    trees = [_lightgbm_tree(_fields(s), features, k % targets, f"{file} tree {k}") for k, s in enumerate(sections)]
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


def _lightgbm_tree(fields: Mapping[str, str], features: int, target: int, where: str) -> Tree:
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
    if name in (*_LIGHTGBM_PLAIN, *_LIGHTGBM_EXPONENTIAL):
        return "exp" if name in _LIGHTGBM_EXPONENTIAL else "none", 1.0
    raise UnsupportedError(f"the objective {objective!r}", where=where)


# ---- Universal Binary JSON, as XGBoost writes it: JSON's values, lengths before what they count, arrays of one type
# packed.

_NUMBERS: Mapping[bytes, np.dtype[Any]] = {
    b"i": np.dtype(">i1"),
    b"U": np.dtype(">u1"),
    b"I": np.dtype(">i2"),
    b"l": np.dtype(">i4"),
    b"L": np.dtype(">i8"),
    b"d": np.dtype(">f4"),
    b"D": np.dtype(">f8"),
}
_WORDS: Mapping[bytes, Any] = {b"Z": None, b"T": True, b"F": False}
_MOST_VALUES = 1 << 22
"""Values that are objects of Python's; those of packed arrays are none."""


def read_ubjson(data: bytes, where: str) -> Any:
    """The value in ``data``: dictionaries, lists (packed ones as numpy arrays), texts and numbers.

    ModelError where the bytes are no such value, or more of them than a model has.
    """
    return _Reader(data, where).value(0)


class _Reader:
    def __init__(self, data: bytes, where: str) -> None:
        self._data, self._where, self._at, self._values = data, where, 0, 0

    def value(self, depth: int, kind: bytes = b"") -> Any:
        """The next value, whose type is ``kind`` or stands before it."""
        self._values += 1
        if self._values > _MOST_VALUES or depth > MAX_NESTED:
            raise self._broken("it has too many values, or too deep ones")
        kind = kind or self._taken(1)
        if kind in _NUMBERS:
            return self._packed(kind, 1)[0].item()
        if kind in _WORDS:
            return _WORDS[kind]
        match kind:
            case b"S":
                return self._text()
            case b"C":
                return self._taken(1).decode("ascii", "replace")
            case b"[":
                return self._array(depth)
            case b"{":
                return self._object(depth)
        raise self._broken(f"no value is of the type {kind!r}")

    def _array(self, depth: int) -> Any:
        kind, count = self._container()
        if kind in _NUMBERS and count is not None:
            return self._packed(kind, count)
        found: list[Any] = []
        while not self._ends(b"]", len(found), count):
            found.append(self.value(depth + 1, kind))
        return found

    def _object(self, depth: int) -> dict[str, Any]:
        kind, count = self._container()
        found: dict[str, Any] = {}
        read = 0
        while not self._ends(b"}", read, count):
            name = self._text()
            found[name] = self.value(depth + 1, kind)
            read += 1
        return found

    def _container(self) -> tuple[bytes, int | None]:
        """What all values of a container are, and how many there are, where it says so."""
        kind = b""
        if self._skipped(b"$"):
            kind = self._taken(1)
        return kind, self._length() if self._skipped(b"#") else None

    def _ends(self, mark: bytes, read: int, count: int | None) -> bool:
        return self._skipped(mark) if count is None else read >= count

    def _skipped(self, mark: bytes) -> bool:
        there = self._data[self._at : self._at + 1] == mark
        self._at += there
        return there

    def _text(self) -> str:
        return self._taken(self._length()).decode("utf-8", "replace")

    def _length(self) -> int:
        kind = self._taken(1)
        if kind not in _NUMBERS or kind in b"dD":
            raise self._broken(f"a length is of the type {kind!r}")
        return int(self._packed(kind, 1)[0])

    def _packed(self, kind: bytes, count: int) -> np.ndarray[Any, np.dtype[Any]]:
        dtype = _NUMBERS[kind]
        return np.frombuffer(self._taken(count * dtype.itemsize), dtype).astype(dtype.newbyteorder("="))

    def _taken(self, count: int) -> bytes:
        end = self._at + count
        if count < 0 or end > len(self._data):
            raise self._broken("it ends too early")
        taken, self._at = self._data[self._at : end], end
        return taken

    def _broken(self, why: str) -> ModelError:
        return ModelError(f"the model's UBJSON is broken at byte {self._at}: {why}", where=self._where)


# ---- XGBoost's model files (``save_model``, as JSON or UBJSON): plain data, without an import of XGBoost.
#
# Its trees go left where a feature is less than the threshold, both in float32; each node says where missing values go.

_JSON = re.compile(rb'\s*\{\s*"(learner|version)"\s*:')
_UBJSON = re.compile(rb"\{[iUIlL]\0*\x07(learner|version)")
_MOST_JSON = 1 << 26
_XGBOOST_MOST_FEATURES = 1 << 26

_XGBOOST_PLAIN = (
    "reg:squarederror", "reg:linear", "reg:absoluteerror", "reg:pseudohubererror", "reg:quantileerror", "reg:squaredlogerror",
    "rank:ndcg", "rank:map", "rank:pairwise",
)  # fmt: skip
_XGBOOST_EXPONENTIAL = ("count:poisson", "reg:gamma", "reg:tweedie", "survival:cox", "survival:aft")
_POSTS: Mapping[str, str] = {
    **dict.fromkeys(_XGBOOST_PLAIN, "none"),
    **dict.fromkeys(_XGBOOST_EXPONENTIAL, "exp"),
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


def parse_xgboost(data: bytes, file: str, stopped: bool | None = None) -> tuple[Ensemble, int]:
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
    return parse_xgboost(bytes(booster.save_raw(raw_format="ubj")), where, stopped=booster is not model)


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


def _size(value: Any, where: str, what: str, most: int = _XGBOOST_MOST_FEATURES) -> int:
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
