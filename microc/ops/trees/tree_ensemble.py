# SPDX-License-Identifier: Apache-2.0
"""``tree_ensemble``: sum, minimum or maximum of the leaf values that an ensemble of decision trees assigns to a row of
features.

Operands: data (N, F), floats or integers; then constants, in the layout of :mod:`microc.ops.trees.tree_arrays`: feature
(M), threshold (M, of the data's dtype), left_leaves (M), leaves (T), values (V, W); then the optional operands that the
attribute ``tables`` names, in this order: ``target`` (T), ``leaf`` (one for each leaf), ``mode`` (M). N is the number
of rows, F of features, M of inner nodes, T of trees, V of distinct leaves, W of values of a leaf. The result (N,
targets) has the dtype of ``values`` if these are floats, else int32.

The attribute ``mode`` contains the outcomes of the comparison of feature and threshold that lead to the left child, if
all nodes have the same. NaN leads to the right child unless the mode contains UNORDERED. Only the constants grow with
the ensemble; the size of the code does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.numerics import INT32_MAX
from microc.ops.attributes import choice, integer, names
from microc.ops.constants import CheckedNode, Constants, NumberUse, OperandBounds
from microc.ops.registry import OpCall, OpDef
from microc.ops.trees.tree_arrays import AT_MOST, EQUAL, GREATER, LESS, UNORDERED, make_test_cases
from microc.tir import ir
from microc.tir.ir import Expr

TABLES = ("target", "leaf", "mode")
"""Names of the optional operands, in order."""
COMBINE = ("sum", "min", "max")
"""Supported combinations of the values of all trees."""
_FIXED = 6
"""Number of operands that are always present."""


def _read_optional_tables(attrs: Mapping[str, Any], operands: Sequence[Any]) -> dict[str, Any]:
    """Return the optional operands that are present, by name."""
    return dict(zip(attrs["tables"], operands[_FIXED:], strict=True))


def _infer_tree_ensemble_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    tables = attrs["tables"]
    if len(types) != _FIXED + len(tables) or [t for t in TABLES if t in tables] != list(tables):
        raise ModelError(
            f"tree_ensemble: operands and tables disagree; got {len(types)} operands and tables={tables}, expected "
            f"{_FIXED} operands and one for each table, in the order {', '.join(TABLES)}"
        )
    data, feature, threshold, left_leaves, leaves, values = types[:_FIXED]
    if len(data.shape) != 2 or len(values.shape) != 2 or threshold.dtype != data.dtype:
        raise ModelError(
            f"tree_ensemble: operands have wrong types; got data {data.dtype} {data.shape}, thresholds "
            f"{threshold.dtype} and values {values.shape}, expected two axes for data and values, thresholds in the "
            "data's dtype"
        )
    found = _read_optional_tables(attrs, types)
    per_node = [tensor_type.size for tensor_type in (feature, threshold, left_leaves, found.get("mode", feature))]
    if len(set(per_node)) > 1 or found.get("target", leaves).size != leaves.size:
        raise ModelError(
            f"tree_ensemble: tables have different lengths; got {per_node} per node, and {leaves.size} and "
            f"{found.get('target', leaves).size} per tree, expected one length for each"
        )
    if any(len(tensor_type.shape) != 1 for tensor_type in (feature, threshold, left_leaves, leaves, *found.values())):
        raise ModelError(
            "tree_ensemble: tables need one axis; got "
            f"{', '.join(str(t.shape) for t in (feature, threshold, left_leaves, leaves, *found.values()))}"
        )
    if attrs["combine"] not in COMBINE or not 1 <= values.shape[1] <= attrs["targets"]:
        raise ModelError(
            f"tree_ensemble: combine or targets are out of range; got combine={attrs['combine']!r} and "
            f"targets={attrs['targets']}, expected one of {', '.join(COMBINE)}, and {values.shape[1]} (values of a "
            "leaf) at least"
        )
    return (TensorType((data.shape[0], attrs["targets"]), _result_dtype(values.dtype)),)


def _result_dtype(leaf_dtype: str) -> str:
    return leaf_dtype if dtypes.is_float(leaf_dtype) else "int32"


def _neutral_result(combiner: str, dtype: str) -> int | float:
    """Return the result of an ensemble without trees, from which its combination starts."""
    if combiner == "sum":
        return 0
    low, high = (float("-inf"), float("inf")) if dtypes.is_float(dtype) else dtypes.int_range(dtype)
    return low if combiner == "max" else high


# ---------------------------------------------------------------- reference


def _comparison_outcome_bit(x: Any, threshold: Any) -> int:
    """Return the bit (LESS, EQUAL, GREATER or UNORDERED) of the outcome of comparing ``x`` with ``threshold``."""
    return LESS if x < threshold else EQUAL if x == threshold else GREATER if x > threshold else UNORDERED


def _evaluate_tree_ensemble_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, feature, threshold, left_leaves, leaves, values = arrays[:_FIXED]
    tables = _read_optional_tables(attrs, arrays)
    dtype = dtypes.to_numpy(_result_dtype(values.dtype.name))
    target = tables.get("target", np.zeros(len(leaves), np.int64))
    rows = tables.get("leaf", np.arange(len(values)))
    mode = tables.get("mode", np.full(len(feature), attrs["mode"]))
    combine = {"sum": np.add, "min": np.minimum, "max": np.maximum}[attrs["combine"]]
    out = np.full((len(data), attrs["targets"]), _neutral_result(attrs["combine"], dtype.name), dtype)
    for x, result in zip(data, out, strict=True):
        first_node = first_leaf = 0
        for tree, count in enumerate(leaves.astype(int)):
            node, leaf, left = first_node, first_leaf, count
            while left > 1:
                below = int(left_leaves[node])
                if mode[node] & _comparison_outcome_bit(x[feature[node]], threshold[node]):
                    node, left = node + 1, below
                else:
                    node, leaf, left = node + below, leaf + below, left - below
            part = slice(int(target[tree]), int(target[tree]) + values.shape[1])
            result[part] = combine(result[part], values[rows[leaf]].astype(dtype))
            first_node, first_leaf = first_node + count - 1, first_leaf + count
    return (out,)


# ---------------------------------------------------------------- constants

_WAYS = LESS | EQUAL | GREATER | UNORDERED


def _tree_ensemble_operand_bounds(checked_node: CheckedNode) -> Constants:
    """Return the bounds of the indices and counts in the constant tables. The tables must be constant."""
    data, feature, *_, values = checked_node.types[:_FIXED]
    found = {
        1: OperandBounds(NumberUse.INDEX, 0, data.shape[1] - 1),
        3: OperandBounds(NumberUse.COUNT, 0, feature.size),
        4: OperandBounds(NumberUse.COUNT, 1, feature.size + 1),
    }
    tables = {
        "target": OperandBounds(NumberUse.OFFSET, 0, checked_node.attrs["targets"] - values.shape[1]),
        "leaf": OperandBounds(NumberUse.INDEX, 0, values.shape[0] - 1),
        "mode": OperandBounds(NumberUse.FACTOR, 0, _WAYS),
    }
    return {**found, **{_FIXED + k: tables[name] for k, name in enumerate(checked_node.attrs["tables"])}}


def _tree_error_message(checked_node: CheckedNode) -> str:
    """Return a message if a walk from root to leaf can leave the tables or is longer than the attribute ``depth``, else
    an empty string."""
    attrs, (data, feature, *_, values) = checked_node.attrs, checked_node.types[:_FIXED]
    tables = _read_optional_tables(attrs, checked_node.types)
    size, rows = feature.size, tables["leaf"].size if "leaf" in tables else values.shape[0]
    counts, below = (np.asarray(checked_node.data[k], np.int64).reshape(-1) for k in (4, 3))
    if len(counts) and (int(counts.sum()) - len(counts) > size or int(counts.sum()) > rows):
        return (
            f"the numbers in leaves exceed the tables; got {counts.sum()} leaves of {len(counts)} trees, expected at "
            f"most {min(size + len(counts), rows)} ({size} nodes, {rows} leaf rows)"
        )
    if data.dtype == "bool" or (not dtypes.is_float(values.dtype) and dtypes.nbytes(values.dtype) > 4):
        return (
            f"data or values have an unsupported dtype; got {data.dtype} and {values.dtype}, expected numbers, and "
            "values that are floats or integers of at most 32 bits"
        )
    nodes, left, depth = np.cumsum(counts - 1) - (counts - 1), counts, 0
    while len(nodes := nodes[left > 1]):
        left = left[left > 1]
        first = below[nodes]
        if ((first < 1) | (first >= left)).any():
            return (
                f"left_leaves is out of range; got {first[(first < 1) | (first >= left)][0]}, expected at least 1 and "
                "less than the number of leaves below the node"
            )
        depth += 1
        nodes, left = np.concatenate([nodes + 1, nodes + first]), np.concatenate([first, left - first])
    if not depth <= attrs["depth"] <= size:
        return f"depth is wrong; got {attrs['depth']}, expected {depth}..{size}"
    return _leaf_sum_overflow_message(checked_node, counts)


def _leaf_sum_overflow_message(checked_node: CheckedNode, counts: Array) -> str:
    """Return a message if sums of integer leaf values can overflow the result's int32, else an empty string."""
    values, attrs = checked_node.data[5], checked_node.attrs
    if attrs["combine"] != "sum" or dtypes.is_float(checked_node.types[5].dtype):
        return ""
    low, high = dtypes.int_range(checked_node.types[5].dtype)
    largest = float(max(-low, high)) * len(counts)
    if values is not None and largest > INT32_MAX and len(counts):
        rows = np.abs(np.asarray(values, np.float64)).max(axis=1)
        leaf = _read_optional_tables(attrs, checked_node.data).get("leaf", np.arange(len(rows)))
        largest = float(np.maximum.reduceat(rows[leaf], np.cumsum(counts) - counts).sum())
    return (
        ""
        if largest <= INT32_MAX
        else f"sums of leaf values can overflow int32; got up to {largest:.0f}, expected at most {INT32_MAX}"
    )


# ---------------------------------------------------------------- loops


def _build_goes_left_condition(x: Expr, threshold: Expr, mode: Expr | int, possible_modes: frozenset[int]) -> Expr:
    """Build the condition that the left child is the next node: the outcome of comparing ``x`` with ``threshold`` is
    one of the bits in ``mode``.

    ``possible_modes``: all modes that occur in the ensemble; few modes allow cheaper conditions."""
    if possible_modes == {AT_MOST}:
        return x <= threshold
    if possible_modes == {EQUAL}:
        return x.eq(threshold)
    if possible_modes <= {AT_MOST, AT_MOST | UNORDERED}:  # these modes differ only for NaN
        missing = x.ne(x) if isinstance(mode, int) else ir.Bin("and", x.ne(x), mode.ne(AT_MOST))
        return ir.Bin("or", x <= threshold, missing)
    least = UNORDERED if dtypes.is_float(x.dtype) else GREATER
    ways = ir.select(x > threshold, ir.const(GREATER, "int32"), least)
    for way, condition in ((EQUAL, x.eq(threshold)), (LESS, x < threshold)):
        ways = ir.select(condition, ir.const(way, "int32"), ways)
    return ir.binary("bitand", ways, mode).ne(0)


def _compute_tree_ensemble(call: OpCall) -> te.Tensor:
    attrs, operands = call.attrs, call.present
    out = call.out_types[0]
    table = _read_optional_tables(attrs, operands).get("mode")
    modes = (
        np.arange(16) if table is not None and table.data is None else attrs["mode"] if table is None else table.data
    )
    known = frozenset(np.unique(modes).tolist())

    def build_tree_ensemble_loops(buffers: tuple[ir.Buffer, ...], results: tuple[ir.Buffer, ...]) -> ir.Stmt:
        return _TreeWalkBuilder(attrs, buffers, results[0], known).build_row_loop()

    tensors = [operand.tensor() for operand in operands]
    return te.extern("trees", tensors, (("scores", out.shape, out.dtype),), build_tree_ensemble_loops)[0]


class _TreeWalkBuilder:
    """Builder of the loops of ``tree_ensemble``: for every row and tree a walk from the root to a leaf, whose values
    are added to the result."""

    def __init__(
        self, attrs: Mapping[str, Any], buffers: tuple[ir.Buffer, ...], out: ir.Buffer, modes: frozenset[int]
    ) -> None:
        self.attrs, self.out, self.modes = attrs, out, modes
        self.data, self.feature, self.threshold, self.left_leaves, self.leaves, self.values = buffers[:_FIXED]
        self.tables = _read_optional_tables(attrs, buffers)
        names = ("node", "leaf", "below", "first_node", "first_leaf")
        self.node, self.leaf, self.below, self.first_node, self.first_leaf = (
            ir.Buffer(name, (1,), "int32", "register") for name in names
        )
        self.row, self.tree = ir.Var("row"), ir.Var("tree")

    def build_row_loop(self) -> ir.Stmt:
        """Build the loop over rows of features."""
        k = ir.Var("k")
        start = ir.const(_neutral_result(self.attrs["combine"], self.out.dtype), self.out.dtype)
        clear = ir.loops([(k, self.out.shape[1])], ir.Store(self.out, (self.row, k), start))
        rows = [(self.row, self.data.shape[0])]
        if not self.attrs["depth"]:
            return ir.loops(
                rows, ir.seq(clear, ir.loops([(self.tree, self.leaves.size)], self.build_leaf_accumulation(self.tree)))
            )
        trees = ir.loops([(self.tree, self.leaves.size)], self.build_tree_walk())
        body = ir.seq(clear, _store_register(self.first_node, 0), _store_register(self.first_leaf, 0), trees)
        for buffer in (self.first_leaf, self.first_node):
            body = ir.Alloc(buffer, body)
        return ir.loops(rows, body)

    def build_tree_walk(self) -> ir.Stmt:
        """Build the walk through one tree from root to leaf, and the advance of all indices to the next tree."""
        count = ir.cast("int32", self.leaves[self.tree])
        steps = ir.loops([(ir.Var("level"), self.attrs["depth"])], ir.If(self.below[0] > 1, self.build_step_to_child()))
        body = ir.seq(
            _store_register(self.node, self.first_node[0]),
            _store_register(self.leaf, self.first_leaf[0]),
            _store_register(self.below, count),
            _store_register(self.first_node, self.first_node[0] + count - 1),
            _store_register(self.first_leaf, self.first_leaf[0] + count),
            steps,
            self.build_leaf_accumulation(self.leaf[0]),
        )
        for buffer in (self.below, self.leaf, self.node):
            body = ir.Alloc(buffer, body)
        return body

    def build_step_to_child(self) -> ir.Stmt:
        """Build the step to a child. The node index is updated last, because all other statements of the step read
        it."""
        node = self.node[0]
        feature, left = ir.cast("int32", self.feature[node]), ir.cast("int32", self.left_leaves[node])
        mode = ir.cast("int32", self.tables["mode"][node]) if "mode" in self.tables else self.attrs["mode"]
        down = ir.seq(_store_register(self.below, left), _store_register(self.node, node + 1))
        across = ir.seq(
            _store_register(self.below, self.below[0] - left),
            _store_register(self.leaf, self.leaf[0] + left),
            _store_register(self.node, node + left),
        )
        goes = _build_goes_left_condition(self.data[self.row, feature], self.threshold[node], mode, self.modes)
        return ir.If(goes, down, across)

    def build_leaf_accumulation(self, leaf: Expr) -> ir.Stmt:
        """Build the addition of a leaf's values to the result; with other combinations, their minimum or maximum."""
        k = ir.Var("w")
        row = ir.cast("int32", self.tables["leaf"][leaf]) if "leaf" in self.tables else leaf
        target = ir.cast("int32", self.tables["target"][self.tree]) + k if "target" in self.tables else k
        value = ir.cast(self.out.dtype, self.values[row, k])
        combine = {"sum": "add"}.get(self.attrs["combine"], self.attrs["combine"])
        joined = ir.binary(combine, self.out[self.row, target], value)
        return ir.loops([(k, self.values.shape[1])], ir.Store(self.out, (self.row, target), joined))


def _store_register(register: ir.Buffer, value: Expr | int) -> ir.Stmt:
    return ir.Store(register, (ir.const(0, "int32"),), ir.as_index(value))


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "tree_ensemble",
        infer=_infer_tree_ensemble_types,
        reference=_evaluate_tree_ensemble_reference,
        compute=_compute_tree_ensemble,
        cases=make_test_cases,
        constants=_tree_ensemble_operand_bounds,
        sound=(_tree_error_message,),
        attrs={
            "combine": choice("how the values of the trees are combined", "sum", "min", "max", default="sum"),
            "mode": integer(
                "comparisons with which samples go to the left child, as a sum of flags", AT_MOST, 0, _WAYS
            ),
            "tables": names("names of the optional operands that are present", ()),
            "targets": integer("number of values of the result", least=1),
            "depth": integer("depth of the deepest tree", least=0),
        },
        operand_names=("data", "feature", "threshold", "left_leaves", "leaves", "values"),
    ),
)
