# SPDX-License-Identifier: Apache-2.0
"""Decision trees as flat arrays, the constant operands of ``tree_ensemble``; also test cases of this operator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, floor, inf, isnan

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import InternalError, ModelError
from microc.graph.ir import Attr, TensorType
from microc.ops.registry import Case

# ---- Decision trees as the flat arrays that ``tree_ensemble`` walks.
#
# The inner nodes of a tree are stored in preorder, its leaves from left to right. No child indices are stored, but only s, the
# number of leaves below the left child of every inner node. A walk keeps three numbers: the index of its node, the index of the
# first leaf below this node, and the number of leaves below it. A step to the left adds 1 to the node index; the number of leaves
# becomes s. A step to the right adds s to both indices, because a subtree of s leaves has s - 1 inner nodes, and subtracts s from
# the number of leaves. The walk ends when this number is 1.
#
# The trees are concatenated in all arrays, so that the first leaf of the next tree follows the last leaf of a tree.

LESS, EQUAL, GREATER, UNORDERED = 1, 2, 4, 8
"""Bits for the outcomes of comparing a feature with a threshold. The mode of a node is the sum of the outcomes that
lead to its left child."""

AT_MOST = LESS | EQUAL
"""Mode of nodes whose left child is taken if feature <= threshold."""
ALWAYS = LESS | EQUAL | GREATER | UNORDERED
"""Mode of nodes whose left child is always taken."""
_LARGEST = {"uint8": 255, "uint16": 65535, "int32": (1 << 31) - 1}


@frozen
class Tree:
    """Binary decision tree as arrays over its nodes. The root is node 0.

    ``left``, ``right``: indices of the children, -1 for a leaf. ``feature``, ``threshold`` (float64) and ``mode``: the
    comparison of an inner node. ``values`` (nodes, width): numbers that a leaf adds to the results ``target``,
    ``target`` + 1 ..."""

    left: Array
    right: Array
    feature: Array
    threshold: Array
    mode: Array
    values: Array
    target: int = 0

    def with_mode(self, mode: Array) -> Tree:
        """Return a copy of the tree with other comparison modes."""
        return replace(self, mode=mode)

    def with_values(self, values: Array) -> Tree:
        """Return a copy of the tree with other leaf values."""
        return replace(self, values=values)

    def with_threshold(self, threshold: Array) -> Tree:
        """Return a copy of the tree with other thresholds."""
        return replace(self, threshold=threshold)


@frozen
class TreeArrays:
    """Constant operands of ``tree_ensemble``, and the depth of the deepest tree.

    ``feature``, ``threshold``, ``left_leaves`` (leaves below the left child) and ``mode`` have one entry per inner
    node; ``mode`` is an int if all nodes have the same mode. ``leaf`` contains for each leaf the index of its row in
    ``values``; None: leaf k has row k. ``leaves`` (number of leaves) and ``target`` (first result to which the tree
    adds) have one entry per tree; ``target`` None: all zero."""

    feature: Array
    threshold: Array
    left_leaves: Array
    leaves: Array
    values: Array
    mode: Array | int
    target: Array | None
    leaf: Array | None
    depth: int

    def attrs(self) -> dict[str, Attr]:
        """Return the attributes of the operator that follow from the arrays."""
        modes = {} if isinstance(self.mode, np.ndarray) else {"mode": self.mode}
        return {"depth": self.depth, "tables": tuple(self._present_tables()), **modes}

    def operands(self) -> tuple[Array, ...]:
        """Return the constant operands in the operator's order."""
        fixed = (self.feature, self.threshold, self.left_leaves, self.leaves, self.values)
        return (*fixed, *self._present_tables().values())

    def _present_tables(self) -> dict[str, Array]:
        """Return the optional operands that are needed, by name, in the operator's order."""
        found = {"target": self.target, "leaf": self.leaf, "mode": self.mode}
        return {name: table for name, table in found.items() if isinstance(table, np.ndarray)}


@frozen
class _SimplifiedNode:
    """Node of a simplified tree.

    ``node_index``: index of the node in the :class:`Tree`. ``leaf_count`` and ``depth``: number of leaves and of levels
    below the node. ``left_leaf_count``: number of leaves below its left child."""

    node_index: int
    leaf_count: int = 1
    depth: int = 0
    left_leaf_count: int = 0
    feature: int = 0
    threshold: float | int = 0
    mode: int = AT_MOST
    left: _SimplifiedNode | None = None
    right: _SimplifiedNode | None = None


def flatten_trees(
    trees: Sequence[Tree], data_dtype: str, where: str = "", feature_count: int | None = None
) -> TreeArrays:
    """Convert trees to flat arrays, for data rows of ``feature_count`` numbers of ``data_dtype`` (a float or integer
    dtype).

    Thresholds are rounded to ``data_dtype`` such that every comparison with a number of this dtype has the same
    outcome. A split is removed if all numbers of ``data_dtype`` take the same child, or if both children are leaves
    with equal values. Raise ModelError for arrays that do not describe a tree."""
    inner: list[_SimplifiedNode] = []
    rows: list[Array] = []
    roots = []
    for tree in trees:
        _check_tree(tree, where, feature_count)
        root = _simplify_tree(tree, data_dtype, where)
        roots.append(root)
        for node in _preorder_nodes(root):
            if node.left is None:
                rows.append(tree.values[node.node_index])
            else:
                inner.append(node)
    values, leaf = _deduplicate_leaves(np.stack(rows))
    modes = np.array([node.mode for node in inner] or [AT_MOST], np.uint8)
    targets = [tree.target for tree in trees]
    return TreeArrays(
        feature=to_smallest_dtype([node.feature for node in inner]),
        threshold=np.array([node.threshold for node in inner] or [0], dtypes.to_numpy(data_dtype)),
        left_leaves=to_smallest_dtype([node.left_leaf_count for node in inner]),
        leaves=to_smallest_dtype([root.leaf_count for root in roots]),
        values=values,
        mode=int(modes[0]) if (modes == modes[0]).all() else modes,
        target=to_smallest_dtype(targets) if any(targets) else None,
        leaf=leaf,
        depth=max(root.depth for root in roots),
    )


def to_smallest_dtype(nonnegative_integers: Sequence[int]) -> Array:
    """Convert non-negative integers to an array of the smallest dtype that can represent them: uint8, uint16 or int32.

    An empty sequence becomes an array of one zero."""
    found = np.array(nonnegative_integers or [0], np.int64)
    dtype = next((name for name, most in _LARGEST.items() if found.max() <= most), None)
    if dtype is None or found.min() < 0:
        raise InternalError(f"tables of trees must hold numbers from 0 to 2**32 - 1; got {found.min()}..{found.max()}")
    return found.astype(dtype)


def _check_tree(tree: Tree, where: str, feature_count: int | None) -> None:
    """Raise ModelError if nodes compare features that do not exist, have unknown modes, or if leaf values are not
    finite.

    Frontends of all formats call this function, because a feature number becomes an array index in the generated C
    code."""
    inner = np.asarray(tree.left) >= 0
    asked = np.asarray(tree.feature)[inner]
    most = _LARGEST["int32"] if feature_count is None else feature_count - 1
    if asked.size and not (asked.min() >= 0 and asked.max() <= most):
        outside = asked[(asked < 0) | (asked > most)][0]
        raise ModelError(
            f"a tree compares a feature that does not exist; got {outside}, expected 0..{most}", where=where
        )
    ways = np.asarray(tree.mode)[inner]
    if ways.size and not (ways.min() >= 0 and ways.max() <= ALWAYS):
        raise ModelError(
            f"a node of a tree has an unknown comparison mode; got {ways[(ways < 0) | (ways > ALWAYS)][0]}, expected "
            f"0..{ALWAYS}",
            where=where,
        )
    held = np.asarray(tree.values)[~inner]
    if not np.isfinite(held.astype(np.float64)).all():
        raise ModelError(
            f"a leaf of a tree is not finite; got {held[~np.isfinite(held.astype(np.float64))][0]}, expected a number",
            where=where,
        )


def _preorder_nodes(root: _SimplifiedNode) -> Iterator[_SimplifiedNode]:
    """Iterate over the nodes in preorder."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack += [child for child in (node.right, node.left) if child is not None]


def _simplify_tree(tree: Tree, data_dtype: str, where: str) -> _SimplifiedNode:
    """Simplify a tree from the leaves up; return the root of the simplified tree."""
    known: dict[int, _SimplifiedNode] = {}
    for place in reversed(_top_down_order(tree, where)):
        known[place] = (
            _SimplifiedNode(place) if tree.left[place] < 0 else _simplify_split(tree, place, known, data_dtype, where)
        )
    return known[0]


def _top_down_order(tree: Tree, where: str) -> list[int]:
    """Return the indices of the root and of all nodes below it. Parents come before their children.

    Raise ModelError if the nodes form a cycle or if a child does not exist."""
    order, stack, count = [], [0], len(tree.left)
    while stack:
        place = stack.pop()
        order.append(place)
        if len(order) > count:
            raise ModelError(
                f"the nodes of a tree form a cycle; got more than {count} nodes from the root on, expected each once",
                where=where,
            )
        if tree.left[place] >= 0:
            children = (int(tree.right[place]), int(tree.left[place]))
            if any(not 0 < child < count for child in children):
                raise ModelError(
                    f"node {place} of a tree has children that do not exist; got {children[::-1]}, expected "
                    f"1..{count - 1}",
                    where=where,
                )
            stack += children
    return order


def _simplify_split(
    tree: Tree, node_index: int, simplified_nodes: Mapping[int, _SimplifiedNode], data_dtype: str, where: str
) -> _SimplifiedNode:
    """Return the simplified inner node ``node_index``, or one of its children if the split is not needed.

    ``simplified_nodes``: simplified nodes below it, by index."""
    left, right = simplified_nodes[int(tree.left[node_index])], simplified_nodes[int(tree.right[node_index])]
    threshold, mode = float(tree.threshold[node_index]), int(tree.mode[node_index])
    if isnan(threshold):
        raise ModelError(f"node {node_index} of a tree compares with NaN; expected a number", where=where)
    if mode & GREATER:  # exchanging the children removes GREATER from the mode
        left, right, mode = right, left, mode ^ ALWAYS
    bound, mode = _round_threshold(threshold, mode, data_dtype)
    if mode in (0, ALWAYS):
        return left if mode else right
    if left.left is None and right.left is None:
        values = tree.values
        if values[left.node_index].tobytes() == values[right.node_index].tobytes():
            return left
    leaves, depth = left.leaf_count + right.leaf_count, 1 + max(left.depth, right.depth)
    return _SimplifiedNode(
        node_index, leaves, depth, left.leaf_count, int(tree.feature[node_index]), bound, mode, left, right
    )


def _round_threshold(threshold: float, mode: int, data_dtype: str) -> tuple[float | int, int]:
    """Return a threshold of ``data_dtype`` and a mode that, for all numbers of this dtype, decide as ``threshold`` and
    ``mode`` do.

    Neither the given nor the returned mode contains GREATER, except :data:`ALWAYS`. If the returned mode is 0, all
    numbers go right; if it is ALWAYS, all go left."""
    if dtypes.is_float(data_dtype):
        with np.errstate(over="ignore"):  # a threshold above the largest number becomes infinity
            nearest = dtypes.to_numpy(data_dtype).type(threshold)
            before = np.nextafter(nearest, nearest.dtype.type(-inf))
        real = float(
            nearest
        )  # compared as float64: NumPy would round the threshold to the narrower dtype of the other scalar
        if mode & LESS and (mode & EQUAL or threshold > -inf):
            beyond = real > threshold or (real == threshold and not mode & EQUAL)
            return float(before) if beyond else real, mode | EQUAL
        exact = mode & EQUAL and real == threshold
        return real, mode if exact else mode & UNORDERED
    low, high = dtypes.int_range(data_dtype)
    near = min(max(threshold, low - 1), high + 1)
    if mode & LESS:
        bound = floor(near) if mode & EQUAL else ceil(near) - 1
        return bound, ALWAYS if bound >= high else AT_MOST if bound >= low else 0
    found = mode & EQUAL and near == floor(near) and low <= near <= high
    return floor(near), EQUAL if found else 0


def _deduplicate_leaves(leaf_values: Array) -> tuple[Array, Array | None]:
    """Return the distinct rows of ``leaf_values``, and for each leaf the index of its row.

    If that would take as many bytes as the leaf values themselves or more, return all rows and None."""
    seen: dict[bytes, int] = {}
    places = [seen.setdefault(row.tobytes(), len(seen)) for row in leaf_values]
    kept = np.unique(places, return_index=True)[1]
    leaf = to_smallest_dtype(places)
    if leaf_values[kept].nbytes + leaf.nbytes >= leaf_values.nbytes:
        return leaf_values, None
    return leaf_values[kept], leaf


# ---- Test cases of ``tree_ensemble``: random forests, trees of one leaf, large tables, all comparison modes.


def make_random_tree(
    rng: np.random.Generator,
    split_count: int,
    feature_count: int,
    data_dtype: str,
    value_width: int,
    first_target: int = 0,
) -> Tree:
    """Return a tree of ``split_count`` random splits, with thresholds in the range of random data of ``data_dtype``."""
    left, right = [-1], [-1]
    for _ in range(split_count):
        place = int(rng.choice([k for k, child in enumerate(left) if child < 0]))
        left[place], right[place] = len(left), len(left) + 1
        left, right = [*left, -1, -1], [*right, -1, -1]
    low, high = (-2.0, 2.0) if dtypes.is_float(data_dtype) else dtypes.int_range(data_dtype)
    count = len(left)
    values = rng.uniform(-1, 1, (count, value_width)).astype(np.float32)
    feature, threshold = rng.integers(0, feature_count, count), rng.uniform(low, high, count)
    return Tree(np.array(left), np.array(right), feature, threshold, np.full(count, AT_MOST), values, first_target)


def make_ensemble_test_case(
    trees: Iterable[Tree],
    data: Array | TensorType,
    target_count: int,
    name: str,
    combine: str = "sum",
    leaf_dtype: str = "float32",
) -> Case:
    """Return a test case of ``tree_ensemble`` for ``trees`` on the array ``data``, or on random data of the type
    ``data``.

    If ``leaf_dtype`` is an integer dtype, leaf values are multiplied by 100 and converted to it."""
    tensor_type = data if isinstance(data, TensorType) else TensorType(data.shape, data.dtype.name)
    if leaf_dtype != "float32":
        trees = [tree.with_values((tree.values * 100).astype(dtypes.to_numpy(leaf_dtype))) for tree in trees]
    arrays = flatten_trees(tuple(trees), tensor_type.dtype)
    operands = arrays.operands()
    attrs: dict[str, Attr] = {"combine": combine, "targets": target_count, **arrays.attrs()}
    types = (tensor_type, *(TensorType(array.shape, array.dtype.name) for array in operands))
    given = None if isinstance(data, TensorType) else data
    return Case(attrs, types, tuple(range(1, len(types))), (given, *operands), tolerance=2e-6, name=name)


def make_test_cases() -> Iterable[Case]:
    rng = np.random.default_rng(1)
    for dtype in ("float32", "int16", "uint8", "int32"):
        forest = [make_random_tree(rng, splits, 5, dtype, 3) for splits in (7, 1, 0, 20)]
        yield make_ensemble_test_case(forest, TensorType((4, 5), dtype), 3, f"forest {dtype}")
    boosted = [make_random_tree(rng, 6, 4, "float32", 1, k % 3) for k in range(6)]
    yield make_ensemble_test_case(boosted, TensorType((3, 4), "float32"), 3, "a target per tree")
    for combine in ("min", "max"):
        yield make_ensemble_test_case(boosted[::3], TensorType((3, 4), "float32"), 1, combine, combine)
    whole = [make_random_tree(rng, 30, 4, "int16", 2) for _ in range(3)]
    yield make_ensemble_test_case(whole, TensorType((5, 4), "int16"), 2, "integers only", leaf_dtype="int8")
    yield make_ensemble_test_case(whole, TensorType((5, 4), "int16"), 2, "largest of integers", "max", "int16")
    yield make_ensemble_test_case(
        [make_random_tree(rng, 0, 1, "float32", 2)], TensorType((1, 1), "float32"), 2, "a leaf alone"
    )
    yield make_ensemble_test_case(
        [make_random_tree(rng, 400, 300, "float32", 1)], TensorType((2, 300), "float32"), 1, "wide tables"
    )
    yield from _make_comparison_mode_test_cases(rng)


def _make_comparison_mode_test_cases(rng: np.random.Generator) -> Iterable[Case]:
    """Yield test cases of all comparison modes, on features that equal their threshold, are the next number to it,
    infinite or NaN."""
    x = np.array([0.5, np.nextafter(np.float32(0.5), np.float32(0)), 0.0, -0.0, np.inf, -np.inf, np.nan, 7], np.float32)
    for mode in range(LESS, 16):
        left, right = np.array([1, -1, 3, -1, -1]), np.array([2, -1, 4, -1, -1])
        threshold, values = np.array([0.5, 0.0, 0.1, 0.0, 0.0]), np.arange(5, dtype=np.float32).reshape(5, 1)
        tree = Tree(left, right, np.zeros(5, np.int64), threshold, np.full(5, mode), values)
        yield make_ensemble_test_case([tree], x.reshape(-1, 1), 1, f"mode {mode}")
    mixed = [make_random_tree(rng, 9, 2, "float32", 1) for _ in range(2)]
    modes = np.array([AT_MOST, GREATER | UNORDERED, LESS] * 7)[: len(mixed[0].left)]
    yield make_ensemble_test_case([tree.with_mode(modes) for tree in mixed], rng.choice(x, (6, 2)), 1, "mixed modes")
    modes = np.array([AT_MOST, AT_MOST | UNORDERED] * 10)[: len(mixed[0].left)]
    yield make_ensemble_test_case([tree.with_mode(modes) for tree in mixed], rng.choice(x, (6, 2)), 1, "missing values")
    pixels = np.array([[0], [127], [128], [255]], np.uint8)
    for mode in (LESS, AT_MOST, GREATER):
        stump = make_random_tree(rng, 1, 1, "uint8", 1).with_mode(np.full(3, mode))
        for bound in (-1.0, 127.0, 127.5, 255.0, 300.0):
            yield make_ensemble_test_case([stump.with_threshold(np.full(3, bound))], pixels, 1, f"{mode} {bound}")
