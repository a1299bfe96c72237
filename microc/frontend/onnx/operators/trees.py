# SPDX-License-Identifier: Apache-2.0
"""Conversion of ONNX tree ensembles, and scores and labels of all classifiers (domain ai.onnx.ml)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.onnx.context import ConverterTable, OpContext
from microc.frontend.signature import Floats, Ints, Matrix, Strings, Value
from microc.frontend.trees.ensembles import (
    MOST_TARGETS,
    Ensemble,
    emit_both_probabilities,
    emit_ensemble,
    emit_post_transform,
    parse_integers,
)
from microc.ops.trees.tree_arrays import ALWAYS, AT_MOST, EQUAL, GREATER, LESS, UNORDERED, Tree

CONVERTERS = ConverterTable()
ML_DOMAIN = "ai.onnx.ml"
NUMBERS = ("float32", "float64", "int32", "int64")

# ---- Shared by the classifiers of ai.onnx.ml: features, labels, transformations of scores.

_TRANSFORMS = {"NONE": "none", "SOFTMAX": "softmax", "LOGISTIC": "logistic"}


def emit_feature_rows(context: OpContext, data: Value) -> Value:
    """Return data as a float32 matrix (rows, features); a vector becomes one row."""
    if data.rank == 1:
        data = context.reshape(data, (1, *data.shape))
    elif data.rank != 2:
        context.refuse(
            f"got features of shape {data.shape}, expected one or two axes", "give data of two axes, (rows, features)"
        )
    return context.cast(data, "float32")


def get_post_transform(context: OpContext, post_transform: str) -> str:
    """Return microc's name of the function that attribute ``post_transform`` applies to scores.

    The name is an argument of :func:`emit_post_transform`. Raise UnsupportedError if microc does not have the
    function."""
    if post_transform not in _TRANSFORMS:
        what = f"post_transform {post_transform!r} is not supported"
        context.refuse(what, f"use {', '.join(_TRANSFORMS)}, or apply it in the application")
    return _TRANSFORMS[post_transform]


def number_class_labels(integer_labels: Ints, string_labels: Strings) -> Ints:
    """Return the labels of a classifier's classes, which are integers or strings.

    String labels are replaced by the numbers 0, 1, ... in their order."""
    return tuple(range(len(string_labels))) if string_labels else integer_labels


def write_label_output(
    context: OpContext, labels: Sequence[int], scores: str, *, is_binary: bool = False, score_threshold: float = 0.0
) -> None:
    """Write the first output of a classifier: for each row the label of the class with the largest score.

    If ``is_binary``, each row has a single score. The label is the second one if the score exceeds ``score_threshold``,
    else the first."""
    if not context.output(0):
        return
    rows = context.type(scores).shape[0]
    if is_binary:
        above = context.emit("greater", (scores, context.scalar(score_threshold)))
        index = context.reshape(context.emit("cast", (above,), {"dtype": "int64"}), (rows,))
    else:
        index = context.emit("argmax", (scores,), {"axis": 1, "out_dtype": "int64"})
    if list(labels) == list(range(len(labels))):
        context.result_alias(index)
    else:
        table = context.new_constant("classes", np.array(labels, np.int64))
        context.result("gather", (table, index), {"axis": 0})


# ---- TreeEnsembleClassifier, TreeEnsembleRegressor (ai.onnx.ml 1 and 3) and TreeEnsemble (5) become ``tree_ensemble``.

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


@frozen
class NodeAttributes:
    """Attributes of TreeEnsembleClassifier and TreeEnsembleRegressor with one element for each node of all trees, and
    those of scores.

    Numbers are stored as float32 or, since version 3, in a tensor ``..._as_tensor``."""

    nodes_falsenodeids: Ints
    nodes_featureids: Ints
    nodes_modes: Strings
    nodes_nodeids: Ints
    nodes_treeids: Ints
    nodes_truenodeids: Ints
    nodes_missing_value_tracks_true: Ints = ()
    nodes_values: Floats = ()
    nodes_values_as_tensor: Array | None = None
    base_values: Floats = ()
    base_values_as_tensor: Array | None = None
    post_transform: str = "NONE"


@frozen
class _LeafWeights:
    """Weights of leaves in trees of version 1 or 3; each field has one element for each weight.

    ``targets``: index of the target or class to which the weight is added."""

    tree_ids: Ints
    node_ids: Ints
    targets: Ints
    weights: Array


@CONVERTERS.register("TreeEnsembleRegressor", dtypes=NUMBERS, domain=ML_DOMAIN)
def convert_tree_regressor(
    context: OpContext,
    x: Value,
    *,
    aggregate_function: str = "SUM",
    n_targets: int = 1,
    target_ids: Ints,
    target_nodeids: Ints,
    target_treeids: Ints,
    target_weights: Floats = (),
    target_weights_as_tensor: Array | None = None,
    nodes: NodeAttributes,
) -> None:
    """Convert TreeEnsembleRegressor, the sum, average, minimum or maximum of the leaf values of all trees."""
    targets = _check_target_count(context, n_targets)
    weights = _select_numbers(target_weights, target_weights_as_tensor)
    trees = _read_trees(context, nodes, _LeafWeights(target_treeids, target_nodeids, target_ids, weights), targets)
    if aggregate_function not in COMBINE:
        context.refuse(f"aggregate_function {aggregate_function!r} is not supported", f"use {', '.join(COMBINE)}")
    data, post = emit_feature_rows(context, x), get_post_transform(context, nodes.post_transform)
    base = _select_numbers(nodes.base_values, nodes.base_values_as_tensor)
    _write_ensemble(context, data, trees, targets, COMBINE[aggregate_function], post, base)


def _check_target_count(context: OpContext, target_count: int) -> int:
    """Return the number of targets (outputs per row) of a tree ensemble; raise an error if it is out of range."""
    return int(parse_integers([target_count], context.where, "n_targets", 1, MOST_TARGETS)[0])


@CONVERTERS.register("TreeEnsembleClassifier", dtypes=NUMBERS, domain=ML_DOMAIN)
def convert_tree_classifier(
    context: OpContext,
    x: Value,
    *,
    class_ids: Ints,
    class_nodeids: Ints,
    class_treeids: Ints,
    class_weights: Floats = (),
    class_weights_as_tensor: Array | None = None,
    classlabels_int64s: Ints = (),
    classlabels_strings: Strings = (),
    nodes: NodeAttributes,
) -> None:
    """Convert TreeEnsembleClassifier, which returns the class with the largest sum of leaf weights.

    If there are two classes and leaves have weights for only one of them, each row has a single sum. The label is the
    second class where this sum exceeds a threshold: 1/2 if no weight is negative, since weights are then probabilities,
    else 0."""
    labels = number_class_labels(classlabels_int64s, classlabels_strings)
    weights = _select_numbers(class_weights, class_weights_as_tensor)
    leaves = _LeafWeights(class_treeids, class_nodeids, class_ids, weights)
    post, data = get_post_transform(context, nodes.post_transform), emit_feature_rows(context, x)
    base = _select_numbers(nodes.base_values, nodes.base_values_as_tensor)
    if len(labels) != 2 or len(set(class_ids)) != 1:
        trees = _read_trees(context, nodes, leaves, len(labels))
        scores = emit_ensemble(context, data, Ensemble(trees, len(labels), base), context.where)
        write_label_output(context, labels, scores)
        context.result_alias(emit_post_transform(context, scores, post, context.where), 1)
        return
    trees = _read_trees(context, nodes, leaves, 1, only_class_id=class_ids[0])
    scores = emit_ensemble(context, data, Ensemble(trees, 1, base[-1:]), context.where)
    positive = bool((weights >= 0).all())
    write_label_output(context, labels, scores, is_binary=True, score_threshold=0.5 if positive else 0.0)
    if positive or post == "logistic":
        second = scores if positive else context.emit("sigmoid", (scores,))
        context.result_alias(emit_both_probabilities(context, second), 1)
    else:
        both = (context.emit("neg", (scores,)), scores)
        context.result_alias(context.emit("concat", both, {"axis": 1}), 1)


def _write_ensemble(
    context: OpContext,
    data: Value,
    trees: tuple[Tree, ...],
    target_count: int,
    leaf_combination: str,
    post_transform: str,
    base_scores: Array,
) -> None:
    """Write the output of a tree ensemble: the combined leaf values of all trees, transformed.

    ``leaf_combination``: combination of the leaf values of all trees, such as ``sum``. ``post_transform``: function
    that is then applied to the scores. ``base_scores``: initial score of each target; empty for zeros."""
    if leaf_combination == "average":
        trees, leaf_combination = tuple(tree.with_values(tree.values / len(trees)) for tree in trees), "sum"
    ensemble = Ensemble(trees, target_count, base_scores, leaf_combination)
    scores = emit_ensemble(context, data, ensemble, context.where, data.dtype)
    context.result_alias(emit_post_transform(context, scores, post_transform, context.where))


def _select_numbers(floats: Floats, tensor: Array | None) -> Array:
    """Return the numbers of an attribute as float64: those of the tensor attribute if there is one."""
    return np.array(floats, np.float64) if tensor is None else tensor.astype(np.float64).reshape(-1)


def _read_trees(
    context: OpContext, nodes: NodeAttributes, leaves: _LeafWeights, target_count: int, only_class_id: int | None = None
) -> tuple[Tree, ...]:
    """Return all trees of a tree operator of version 1 or 3, in the order in which their ids first appear.

    ``only_class_id``: the only class for which leaves have weights, which becomes target 0; None if there are several
    such classes."""
    tree_ids = nodes.nodes_treeids
    node_indices = {key: k for k, key in enumerate(zip(tree_ids, nodes.nodes_nodeids, strict=False))}
    votes: dict[int, list[tuple[int, float]]] = defaultdict(list)
    keys = zip(leaves.tree_ids, leaves.node_ids, strict=False)
    for key, target, weight in zip(keys, leaves.targets, leaves.weights.tolist(), strict=False):
        if key not in node_indices or not 0 <= (0 if only_class_id is not None else target) < target_count:
            context.broken(
                f"got a weight for (tree, node) {key} and target {target}, expected a node that exists and a target "
                f"below {target_count}"
            )
        votes[node_indices[key]].append((0 if only_class_id is not None else target, weight))
    tables = _read_node_tables(context, nodes, node_indices)
    order = list(dict.fromkeys(tree_ids))
    trees = (
        _build_tree(tables, [k for k, t in enumerate(tree_ids) if t == tree], votes, target_count) for tree in order
    )
    return _widen_leaf_values(tuple(trees), target_count)


@frozen
class _NodeTables:
    """Arrays with one element for each node of all trees.

    ``left``, ``right``: index of the child that is visited if the comparison is true (left) or false (right); -1 in
    leaves. ``feature``: index of the compared feature. ``mode``: comparison of the feature with ``threshold``, one of
    :data:`MODES`."""

    left: Array
    right: Array
    feature: Array
    threshold: Array
    mode: Array


def _read_node_tables(
    context: OpContext, nodes: NodeAttributes, node_indices: Mapping[tuple[int, int], int]
) -> _NodeTables:
    """Return the nodes of all trees as arrays.

    Raise ModelError if attributes differ in length or refer to a missing child."""
    modes, tree_ids, count = nodes.nodes_modes, nodes.nodes_treeids, len(nodes.nodes_treeids)
    unknown = set(modes) - set(MODES)
    if unknown:
        context.broken(f"nodes_modes: got {min(unknown)!r}, expected {', '.join(MODES)}")
    children = []
    for name, ids in (
        ("nodes_truenodeids", nodes.nodes_truenodeids),
        ("nodes_falsenodeids", nodes.nodes_falsenodeids),
    ):
        if len({len(ids), len(modes), len(node_indices), count}) != 1:
            lengths = f"{len(ids)} {name}, {len(modes)} nodes_modes, {count} nodes_treeids, {len(node_indices)} distinct nodes"
            context.broken(f"got {lengths}; expected equal numbers: one entry for each node, each node once")
        pairs = zip(tree_ids, ids, modes, strict=True)
        children.append(
            np.array([-1 if mode == "LEAF" else node_indices.get((tree, node), -2) for tree, node, mode in pairs])
        )
    threshold = _select_numbers(nodes.nodes_values, nodes.nodes_values_as_tensor)
    feature = np.array(nodes.nodes_featureids)
    missing = nodes.nodes_missing_value_tracks_true or (0,) * count
    if (min(children[0].min(), children[1].min()) < -1) or {len(threshold), len(feature), len(missing)} != {count}:
        lengths = f"{len(threshold)} thresholds, {len(feature)} features and {len(missing)} flags of missing values"
        context.broken(f"got {lengths} for {count} nodes, expected one of each and children that exist")
    mode = np.array(
        [_add_missing_value_flag(MODES[mode], bool(tracks)) for mode, tracks in zip(modes, missing, strict=True)]
    )
    return _NodeTables(children[0], children[1], feature, threshold, mode)


def _add_missing_value_flag(comparison_mode: int, missing_takes_true_branch: bool) -> int:
    """Return a comparison mode, with the flag UNORDERED added if a missing feature (NaN) takes the true branch."""
    return comparison_mode | UNORDERED if missing_takes_true_branch else comparison_mode


def _build_tree(
    node_tables: _NodeTables,
    node_indices: Sequence[int],
    leaf_votes: Mapping[int, Sequence[tuple[int, float]]],
    target_count: int,
) -> Tree:
    """Build one tree from the nodes ``node_indices``; the root, the node that is no child, becomes node 0.

    ``leaf_votes``: pairs of target and weight for each leaf. The array of leaf values has one column if all leaves have
    the same target, else a column for each of the ``target_count`` targets."""
    children = {int(c) for k in node_indices for c in (node_tables.left[k], node_tables.right[k])}
    root = next((k for k in node_indices if k not in children), node_indices[0])
    order = [root, *(k for k in node_indices if k != root)]
    rows = {old: row for row, old in enumerate(order)}
    targets_voted = {target for k in node_indices for target, _ in leaf_votes.get(k, ())}
    first, width = (targets_voted.pop(), 1) if len(targets_voted) == 1 else (0, target_count)
    values = np.zeros((len(order), width))
    for k in node_indices:
        for target, weight in leaf_votes.get(k, ()):
            values[rows[k], target - first] += weight
    left, right = (
        np.array([rows.get(int(side[k]), -1) for k in order]) for side in (node_tables.left, node_tables.right)
    )
    return Tree(
        left, right, node_tables.feature[order], node_tables.threshold[order], node_tables.mode[order], values, first
    )


# ---------------------------------------------------------------- version 5


@frozen
class TreeEnsembleAttributes:
    """Attributes of TreeEnsemble (version 5): tables of inner nodes and of leaves."""

    leaf_targetids: Ints
    leaf_weights: Array
    nodes_falseleafs: Ints
    nodes_falsenodeids: Ints
    nodes_featureids: Ints
    nodes_modes: Array
    nodes_splits: Array
    nodes_trueleafs: Ints
    nodes_truenodeids: Ints
    tree_roots: Ints
    membership_values: Array | None = None
    nodes_missing_value_tracks_true: Ints = ()


@CONVERTERS.register("TreeEnsemble", dtypes=("float32", "float64"), domain=ML_DOMAIN)
def convert_tree_ensemble(
    context: OpContext,
    x: Matrix,
    *,
    aggregate_function: Literal[0, 1, 2, 3] = 1,
    n_targets: int = 1,
    post_transform: Literal[0, 1, 2, 3, 4] = 0,
    attributes: TreeEnsembleAttributes,
) -> None:
    """Convert TreeEnsemble (version 5), which stores inner nodes and leaves in separate tables.

    A node that tests whether a feature is in a set becomes a chain of comparisons for equality."""
    targets = _check_target_count(context, n_targets)
    combine = ("average", "sum", "min", "max")[aggregate_function]
    post = ("none", "softmax", "logistic", "softmax_zero", "probit")[post_transform]
    reader = _TreeEnsembleReader(context, attributes, targets)
    trees = tuple(reader.build_tree(root) for root in attributes.tree_roots)
    _write_ensemble(context, x, _widen_leaf_values(trees, targets), targets, combine, post, np.zeros(0))


def _widen_leaf_values(trees: tuple[Tree, ...], target_count: int) -> tuple[Tree, ...]:
    """Return all trees with the same number of columns of leaf values.

    There is one column if every tree has a single target, else a column for each of the ``target_count`` targets."""
    if all(tree.values.shape[1] == 1 for tree in trees):
        return trees
    widened = []
    for tree in trees:
        values = np.zeros((len(tree.left), target_count))
        values[:, tree.target : tree.target + tree.values.shape[1]] = tree.values
        widened.append(replace(tree, values=values, target=0))
    return tuple(widened)


class _TreeEnsembleReader:
    """Reader of the tables of a TreeEnsemble (version 5)."""

    def __init__(self, context: OpContext, attributes: TreeEnsembleAttributes, targets: int) -> None:
        self.context, self.targets = context, targets
        self.modes = attributes.nodes_modes.reshape(-1).astype(int)
        self.splits = attributes.nodes_splits.reshape(-1).astype(np.float64)
        self.features = attributes.nodes_featureids
        self.children = [
            (attributes.nodes_truenodeids, attributes.nodes_trueleafs),
            (attributes.nodes_falsenodeids, attributes.nodes_falseleafs),
        ]
        self.missing = attributes.nodes_missing_value_tracks_true or (0,) * len(self.modes)
        self.leaf_targets = attributes.leaf_targetids
        self.weights = attributes.leaf_weights.reshape(-1).astype(np.float64)
        self.members = self._read_membership_sets(attributes.membership_values)
        self.max_rows = 4 * (len(self.modes) + len(self.weights)) + sum(map(len, self.members.values()))
        lengths = {len(part) for pair in self.children for part in pair}
        lengths |= {len(self.splits), len(self.features), len(self.missing), len(self.modes)}
        if len(lengths) != 1 or len(self.leaf_targets) != len(self.weights):
            context.broken(
                f"got tables of {sorted(lengths)} nodes, {len(self.leaf_targets)} leaf_targetids and {len(self.weights)} "
                "leaf_weights, expected equal numbers of nodes, and of leaves"
            )
        if self.leaf_targets and not 0 <= min(self.leaf_targets) <= max(self.leaf_targets) < targets:
            context.broken(
                f"leaf_targetids: got {min(self.leaf_targets)}..{max(self.leaf_targets)}, expected 0..{targets - 1}"
            )

    def _read_membership_sets(self, set_members: Array | None) -> dict[int, list[float]]:
        """Return the set of values for each node that tests membership of a feature in a set, by node index.

        ``set_members``: the values of all sets, separated by NaN; None if the attribute is absent."""
        sets: list[list[float]] = [[]]
        for value in [] if set_members is None else set_members.reshape(-1).astype(np.float64).tolist():
            if value != value:
                sets.append([])
            else:
                sets[-1].append(value)
        member_nodes = [k for k, mode in enumerate(self.modes) if mode == _MEMBER]
        if len(member_nodes) > len(sets):
            self.context.broken(
                f"membership_values: got {len(sets)} sets, expected {len(member_nodes)}, one for each node that tests membership"
            )
        return dict(zip(member_nodes, sets, strict=False))

    def build_tree(self, root_index: int) -> Tree:
        """Build the tree whose root is node ``root_index`` of the file.

        Its nodes are numbered in the order of a depth-first search."""
        rows: list[list[float]] = []  # left, right, feature, threshold, mode, target, value
        pending: list[tuple[str, int, int, int]] = [("node", root_index, -1, 0)]
        while pending:
            node_type, index, parent, side = pending.pop()
            limit = len(self.modes) if node_type == "node" else len(self.weights)
            if not 0 <= index < limit or len(rows) > 4 * (len(self.modes) + len(self.weights)) + sum(
                map(len, self.members.values())
            ):
                self.context.broken(f"a tree leads to {node_type} {index}, expected 0..{limit - 1} and no cycle")
            row = len(rows)
            if parent >= 0:
                rows[parent][side] = row
            if node_type == "leaf":
                rows.append([-1, -1, 0, 0, AT_MOST, self.leaf_targets[index], self.weights[index]])
                continue
            (true, true_leaf), (false, false_leaf) = ((ids[index], leaves[index]) for ids, leaves in self.children)
            yes, no = ("leaf" if true_leaf else "node", true), ("leaf" if false_leaf else "node", false)
            keys = self.members.get(index, [float(self.splits[index])])
            if not 0 <= self.modes[index] <= _MEMBER:
                self.context.broken(f"nodes_modes: got {self.modes[index]}, expected 0..{_MEMBER}")
            mode = EQUAL if index in self.members else MODES[_NUMBERED[self.modes[index]]]
            for k, key in enumerate(keys):
                row = len(rows)
                mode_with_missing = _add_missing_value_flag(mode, bool(self.missing[index]))
                rows.append([0, row + 1, self.features[index], key, mode_with_missing, 0, 0])
                pending.append((*yes, row, 0))
                if k + 1 == len(keys):
                    pending.append((*no, row, 1))
        return self._build_tree_from_rows(rows)

    def _build_tree_from_rows(self, rows: list[list[float]]) -> Tree:
        """Build a tree from a row for each node: left, right, feature, threshold, mode, target, value."""
        table = np.array(rows)
        left, right, feature, mode, target = (table[:, k].astype(np.int64) for k in (0, 1, 2, 4, 5))
        leaf = left < 0
        leaf_targets = sorted(set(target[leaf].tolist()))
        first, width = (leaf_targets[0], 1) if len(leaf_targets) == 1 else (0, self.targets)
        values = np.zeros((len(rows), width))
        values[leaf, target[leaf] - first] = table[leaf, 6]
        return Tree(left, right, feature, table[:, 3], mode, values, first)
