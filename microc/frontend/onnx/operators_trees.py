"""Tree ensembles of ai.onnx.ml, and scores of its classifiers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.onnx.context import Application
from microc.frontend.trees.ensembles import MOST_TARGETS, Ensemble, emit_ensemble, emit_post, integers, two_classes
from microc.ops.trees.tree_arrays import ALWAYS, AT_MOST, EQUAL, GREATER, LESS, UNORDERED, Tree

# ---- What the classifiers of ai.onnx.ml share: features, labels, transformations of scores.

_TRANSFORMS = {"NONE": "none", "SOFTMAX": "softmax", "LOGISTIC": "logistic"}


def features(application: Application) -> str:
    """The first operand as rows of float32 features."""
    data = application.value(0)
    shape = application.type(data).shape
    if len(shape) == 1:
        data = application.reshaped(data, (1, *shape))
    elif len(shape) != 2:
        application.refuse(f"features of shape {shape}", "rows of features have two axes")
    return (
        data if application.type(data).dtype == "float32" else application.emit("cast", (data,), {"dtype": "float32"})
    )


def post_transform(application: Application) -> str:
    """The transformation of scores, as ``emit_post`` names it."""
    name = application.operator.attributes.text("post_transform", "NONE")
    if name not in _TRANSFORMS:
        application.refuse(f"the transformation {name!r} of scores", "NONE, SOFTMAX or LOGISTIC")
    return _TRANSFORMS[name]


def class_labels(application: Application, integers: str, texts: str) -> tuple[int, ...]:
    """The classes; strings are numbered."""
    attributes = application.operator.attributes
    words = attributes.texts(texts)
    return tuple(range(len(words))) if words else attributes.integers(integers, ())


def result_label(
    application: Application, labels: Sequence[int], scores: str, *, two: bool = False, cut: float = 0.0
) -> None:
    """The first output: the class with the largest score, or (``two``) the second where the one score is above ``cut``."""
    if not application.output(0):
        return
    rows = application.type(scores).shape[0]
    if two:
        above = application.emit("greater", (scores, application.scalar(cut)))
        place = application.reshaped(application.emit("cast", (above,), {"dtype": "int64"}), (rows,))
    else:
        place = application.emit("argmax", (scores,), {"axis": 1, "out_dtype": "int64"})
    if list(labels) == list(range(len(labels))):
        application.result_alias(place)
    else:
        table = application.new_constant("classes", np.array(labels, np.int64))
        application.result("gather", (table, place), {"axis": 0})


# ---- TreeEnsembleClassifier, TreeEnsembleRegressor (ai.onnx.ml 1 and 3) and TreeEnsemble (5) as ``tree_ensemble``.

MODES: Mapping[str, int] = {
    "BRANCH_LEQ": AT_MOST,
    "BRANCH_LT": LESS,
    "BRANCH_GTE": GREATER | EQUAL,
    "BRANCH_GT": GREATER,
    "BRANCH_EQ": EQUAL,
    "BRANCH_NEQ": ALWAYS ^ EQUAL,
    "LEAF": AT_MOST,
}
_NUMBERED = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
_MEMBER = 6
COMBINE = {"SUM": "sum", "AVERAGE": "average", "MIN": "min", "MAX": "max"}


def tree_regressor(application: Application) -> None:
    """TreeEnsembleRegressor: sums, averages or extremes of the leaves' numbers."""
    attributes = application.operator.attributes
    targets = _targets(application)
    combine = COMBINE.get(attributes.text("aggregate_function", "SUM"), "")
    trees = _trees(application, "target", targets)
    _result(
        application, features(application), trees, targets, combine, post_transform(application), _base(application)
    )


def _targets(application: Application) -> int:
    """How many results there are: leaves hold as many numbers."""
    given = application.operator.attributes.integer("n_targets", 1)
    return int(integers([given], application.where, "n_targets", 1, MOST_TARGETS)[0])


def tree_classifier(application: Application) -> None:
    """TreeEnsembleClassifier: the class with the largest sum. One class of two with weights: its sum is cut at 0 or 1/2."""
    labels = class_labels(application, "classlabels_int64s", "classlabels_strings")
    ids, weights = application.operator.attributes.integers("class_ids"), _reals(application, "class_weights")
    post, data, base = post_transform(application), features(application), _base(application)
    if len(labels) != 2 or len(set(ids)) != 1:
        trees = _trees(application, "class", len(labels))
        scores = emit_ensemble(application, data, Ensemble(trees, len(labels), base), application.where)
        result_label(application, labels, scores)
        application.result_alias(emit_post(application, scores, post, application.where), 1)
        return
    trees = _trees(application, "class", 1, only=ids[0])
    scores = emit_ensemble(application, data, Ensemble(trees, 1, base[-1:]), application.where)
    positive = bool((weights >= 0).all())
    result_label(application, labels, scores, two=True, cut=0.5 if positive else 0.0)
    if positive or post == "logistic":
        second = scores if positive else application.emit("sigmoid", (scores,))
        application.result_alias(two_classes(application, second), 1)
    else:
        both = (application.emit("neg", (scores,)), scores)
        application.result_alias(application.emit("concat", both, {"axis": 1}), 1)


def _result(
    application: Application, data: str, trees: tuple[Tree, ...], targets: int, combine: str, post: str, base: Array
) -> None:
    if combine == "average":
        trees, combine = tuple(tree.with_values(tree.values / len(trees)) for tree in trees), "sum"
    if not combine:
        application.refuse("the way that leaves are combined", "SUM, AVERAGE, MIN or MAX")
    ensemble = Ensemble(trees, targets, base, combine)
    scores = emit_ensemble(application, data, ensemble, application.where, application.type(data).dtype)
    application.result_alias(emit_post(application, scores, post, application.where))


def _reals(application: Application, name: str) -> Array:
    """Numbers, float32 or (from version 3 on) a tensor of doubles."""
    attributes = application.operator.attributes
    if f"{name}_as_tensor" in attributes:
        return attributes.tensor(f"{name}_as_tensor").astype(np.float64).reshape(-1)
    return np.array(attributes.reals(name) if name in attributes else (), np.float64)


def _base(application: Application) -> Array:
    return _reals(application, "base_values")


def _trees(application: Application, role: str, targets: int, only: int | None = None) -> tuple[Tree, ...]:
    """All trees, in the order of their ids; ``only``: the one class that has weights."""
    attributes = application.operator.attributes
    tree_ids, node_ids = attributes.integers("nodes_treeids"), attributes.integers("nodes_nodeids")
    places = {key: k for k, key in enumerate(zip(tree_ids, node_ids, strict=False))}
    votes: dict[int, list[tuple[int, float]]] = defaultdict(list)
    weights = _reals(application, f"{role}_weights")
    ids = attributes.integers(f"{role}_ids")
    where = zip(attributes.integers(f"{role}_treeids"), attributes.integers(f"{role}_nodeids"), strict=False)
    for key, target, weight in zip(where, ids, weights.tolist(), strict=False):
        if key not in places or not 0 <= (0 if only is not None else target) < targets:
            application.broken(f"a weight for node {key} and target {target}")
        votes[places[key]].append((0 if only is not None else target, weight))
    nodes = _nodes(application, places, tree_ids)
    order = list(dict.fromkeys(tree_ids))
    trees = (_tree(nodes, [k for k, t in enumerate(tree_ids) if t == tree], votes, targets) for tree in order)
    return _same_width(tuple(trees), targets)


@frozen
class _Nodes:
    """All nodes of all trees: ``left`` and ``right`` are places among them, -1 in leaves."""

    left: Array
    right: Array
    feature: Array
    threshold: Array
    mode: Array


def _nodes(application: Application, places: Mapping[tuple[int, int], int], tree_ids: Sequence[int]) -> _Nodes:
    attributes = application.operator.attributes
    modes, count = attributes.texts("nodes_modes"), len(tree_ids)
    unknown = set(modes) - set(MODES)
    if unknown:
        application.broken(f"a node compares by {min(unknown)!r}")
    children = []
    for name in ("nodes_truenodeids", "nodes_falsenodeids"):
        ids = attributes.integers(name)
        if len({len(ids), len(modes), len(places), count}) != 1:
            application.broken("the tables of nodes differ in length, or a node is listed twice")
        pairs = zip(tree_ids, ids, modes, strict=True)
        children.append(
            np.array([-1 if mode == "LEAF" else places.get((tree, node), -2) for tree, node, mode in pairs])
        )
    threshold, feature = _reals(application, "nodes_values"), np.array(attributes.integers("nodes_featureids"))
    missing = attributes.integers("nodes_missing_value_tracks_true", ()) or (0,) * count
    if (min(children[0].min(), children[1].min()) < -1) or {len(threshold), len(feature), len(missing)} != {count}:
        application.broken("the tables of nodes do not fit together")
    mode = np.array([_mode(MODES[mode], bool(tracks)) for mode, tracks in zip(modes, missing, strict=True)])
    return _Nodes(children[0], children[1], feature, threshold, mode)


def _mode(mode: int, tracks: bool) -> int:
    """The ways to the left, NaN's too where a missing value follows the true branch."""
    return mode | UNORDERED if tracks else mode


def _tree(nodes: _Nodes, mine: Sequence[int], votes: Mapping[int, Sequence[tuple[int, float]]], targets: int) -> Tree:
    """One tree, its root first: the node that is no child. Values are one target's where all leaves vote for that alone."""
    children = {int(c) for k in mine for c in (nodes.left[k], nodes.right[k])}
    root = next((k for k in mine if k not in children), mine[0])
    order = [root, *(k for k in mine if k != root)]
    new = {old: place for place, old in enumerate(order)}
    known = {target for k in mine for target, _ in votes.get(k, ())}
    first, width = (known.pop(), 1) if len(known) == 1 else (0, targets)
    values = np.zeros((len(order), width))
    for k in mine:
        for target, weight in votes.get(k, ()):
            values[new[k], target - first] += weight
    left, right = (np.array([new.get(int(side[k]), -1) for k in order]) for side in (nodes.left, nodes.right))
    return Tree(left, right, nodes.feature[order], nodes.threshold[order], nodes.mode[order], values, first)


# ---------------------------------------------------------------- version 5


def tree_ensemble(application: Application) -> None:
    """TreeEnsemble: inner nodes and leaves in tables of their own; membership of a set is a chain of comparisons."""
    attributes = application.operator.attributes
    targets, data = _targets(application), application.value(0)
    if len(application.type(data).shape) != 2:
        application.refuse(f"features of shape {application.type(data).shape}", "rows of features have two axes")
    combine = ("average", "sum", "min", "max")[attributes.integer("aggregate_function", 1) & 3]
    post = ("none", "softmax", "logistic", "softmax_zero", "probit")[attributes.integer("post_transform", 0) % 5]
    trees = tuple(_Reader(application, targets).tree(root) for root in attributes.integers("tree_roots"))
    _result(application, data, _same_width(trees, targets), targets, combine, post, np.zeros(0))


def _same_width(trees: tuple[Tree, ...], targets: int) -> tuple[Tree, ...]:
    """All trees of one width: a single target's where every tree has one, else all targets'."""
    if all(tree.values.shape[1] == 1 for tree in trees):
        return trees
    spread = []
    for tree in trees:
        values = np.zeros((len(tree.left), targets))
        values[:, tree.target : tree.target + tree.values.shape[1]] = tree.values
        spread.append(replace(tree, values=values, target=0))
    return tuple(spread)


class _Reader:
    """The tables of one TreeEnsemble."""

    def __init__(self, application: Application, targets: int) -> None:
        attributes = application.operator.attributes
        self.application, self.targets = application, targets
        self.modes = attributes.tensor("nodes_modes").reshape(-1).astype(int)
        self.splits = attributes.tensor("nodes_splits").reshape(-1).astype(np.float64)
        self.features = attributes.integers("nodes_featureids")
        self.children = [
            (attributes.integers(f"nodes_{side}nodeids"), attributes.integers(f"nodes_{side}leafs"))
            for side in ("true", "false")
        ]
        self.missing = attributes.integers("nodes_missing_value_tracks_true", ()) or (0,) * len(self.modes)
        self.leaf_targets = attributes.integers("leaf_targetids")
        self.weights = attributes.tensor("leaf_weights").reshape(-1).astype(np.float64)
        self.members = self._members(
            attributes.tensor("membership_values") if "membership_values" in attributes else None
        )
        self.most = 4 * (len(self.modes) + len(self.weights)) + sum(map(len, self.members.values()))
        lengths = {len(part) for pair in self.children for part in pair}
        lengths |= {len(self.splits), len(self.features), len(self.missing), len(self.modes)}
        if len(lengths) != 1 or len(self.leaf_targets) != len(self.weights):
            application.broken("the tables of nodes or leaves differ in length")
        if self.leaf_targets and not 0 <= min(self.leaf_targets) <= max(self.leaf_targets) < targets:
            application.broken("a leaf has no target")

    def _members(self, values: Array | None) -> dict[int, list[float]]:
        """The set of every node that asks for membership: sets end with NaN."""
        sets: list[list[float]] = [[]]
        for value in [] if values is None else values.reshape(-1).astype(np.float64).tolist():
            if value != value:
                sets.append([])
            else:
                sets[-1].append(value)
        asking = [k for k, mode in enumerate(self.modes) if mode == _MEMBER]
        if len(asking) > len(sets):
            self.application.broken(f"{len(sets)} sets for {len(asking)} nodes")
        return dict(zip(asking, sets, strict=False))

    def tree(self, root: int) -> Tree:
        """The tree from one root on; places are given in the order of discovery."""
        rows: list[list[float]] = []  # left, right, feature, threshold, mode, target, value
        pending: list[tuple[str, int, int, int]] = [("node", root, -1, 0)]
        while pending:
            kind, index, parent, side = pending.pop()
            limit = len(self.modes) if kind == "node" else len(self.weights)
            if not 0 <= index < limit or len(rows) > 4 * (len(self.modes) + len(self.weights)) + sum(
                map(len, self.members.values())
            ):
                self.application.broken(f"a tree leads to {kind} {index} of {limit}, or around in a circle")
            place = len(rows)
            if parent >= 0:
                rows[parent][side] = place
            if kind == "leaf":
                rows.append([-1, -1, 0, 0, AT_MOST, self.leaf_targets[index], self.weights[index]])
                continue
            (true, true_leaf), (false, false_leaf) = ((ids[index], leaves[index]) for ids, leaves in self.children)
            yes, no = ("leaf" if true_leaf else "node", true), ("leaf" if false_leaf else "node", false)
            keys = self.members.get(index, [float(self.splits[index])])
            if not 0 <= self.modes[index] <= _MEMBER:
                self.application.broken(f"comparison {self.modes[index]}")
            mode = EQUAL if index in self.members else MODES[_NUMBERED[self.modes[index]]]
            for k, key in enumerate(keys):
                here = len(rows)
                ways = _mode(mode, bool(self.missing[index]))
                rows.append([0, here + 1, self.features[index], key, ways, 0, 0])
                pending.append((*yes, here, 0))
                if k + 1 == len(keys):
                    pending.append((*no, here, 1))
        return self._as_tree(rows)

    def _as_tree(self, rows: list[list[float]]) -> Tree:
        table = np.array(rows)
        left, right, feature, mode, target = (table[:, k].astype(np.int64) for k in (0, 1, 2, 4, 5))
        leaf = left < 0
        known = sorted(set(target[leaf].tolist()))
        first, width = (known[0], 1) if len(known) == 1 else (0, self.targets)
        values = np.zeros((len(rows), width))
        values[leaf, target[leaf] - first] = table[leaf, 6]
        return Tree(left, right, feature, table[:, 3], mode, values, first)
