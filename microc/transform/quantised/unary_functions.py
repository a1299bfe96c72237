# SPDX-License-Identifier: Apache-2.0
"""Simplification of elementwise operators that depend on one 8-bit value: they become table lookups or clamps, or are
removed.

A value is analysed as a function of its *root*: an 8-bit value that is not such a function itself, or that several
nodes read. All nodes between root and value are elementwise, and their other operands are constants with one number.
The table of a node's result is computed by applying the node's reference to the tables of its operands, whatever values
are in between (other scales, floats, a product with the root). An 8-bit result is then computed in the cheapest way
that is equal for every number that the root can have:

- as the root itself, if the table is the identity (a multiplication by one, another name for the same scale);
- by ``clip``, if the table is a clamp; after a rescaling it is merged into the rescaling's own clamp, since

      clamp(clamp(r, m, M), a, b)  =  clamp(r, clamp(m, a, b), clamp(M, a, b))

  (both sides rise with r, agree where a <= clamp(r, m, M) <= b, and are a or b elsewhere);
- by ``lookup``, if it replaces two nodes, or a fixed-point sum, product or quotient. A new table must be worth its
  flash: the tensor needs at least 256 elements, or floats in between, whose code is longer than a table and much
  slower.

If constants differ by channel, each channel has a function of its own, and the tables are concatenated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import Graph, Node, TensorType, fresh_name
from microc.graph.match import Match, P, Replacement, Rule, rewrite, without_dead_nodes
from microc.ops import registry
from microc.ops.attributes import Rounding
from microc.transform.pass_context import Pass, PassContext
from microc.transform.quantised.integer_ranges import Range, compute_value_ranges

ENTRIES = 256
"""Number of entries of a table; also the least number of elements per table with which a tensor is worth a table."""
COLOURS = 4
"""Largest number of channels that may have tables of their own."""

_FIXED = ("qadd", "qmul", "qdiv")
_RESCALERS = ("requantize", "requantize_float", "qadd", "qmul")


def simplify_unary_functions(graph: Graph, context: PassContext) -> Graph:
    """Rewrite 8-bit functions of one 8-bit value to the identity, a clamp or a table lookup."""
    simplified = _ByteFunctionSimplifier(graph).simplify_graph()
    return rewrite(simplified, _clamp_merging_rules())


def find_byte_functions(graph: Graph) -> Mapping[str, ByteFunction]:
    """Return the values that are functions of one 8-bit value each, with these functions."""
    functions = _ByteFunctionSimplifier(graph)
    for node in graph.nodes:
        function = functions.find_function(node)
        if function is not None:
            functions.known[node.outputs[0]] = function
    return functions.known


@frozen
class ByteFunction:
    """Function of the 8-bit value ``root`` that computes another value, as a table of shape (256, 1 or channels).

    The table begins with the result for the least number of the root's dtype. ``node_count``: number of nodes between
    root and value. ``contains_lookup``: True if one of the nodes is a table lookup, which can be replaced.
    ``contains_floats``: True if one of the values in between is a float."""

    root: str
    table: Array
    node_count: int = 0
    contains_lookup: bool = False
    contains_floats: bool = False


class _ByteFunctionSimplifier:
    """Finder and simplifier of the functions of one 8-bit value, in one walk over a graph.

    ``known``: functions found so far, by the value that they compute. ``alias`` maps values that equal their root to
    this root."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ranges = compute_value_ranges(graph)
        self.readers = graph.consumers()
        self.kept = {*graph.outputs, *graph.updates.values()}
        self.known: dict[str, ByteFunction] = {}
        self.alias: dict[str, str] = {}
        self.types, self.consts = dict(graph.types), dict(graph.consts)

    def simplify_graph(self) -> Graph:
        nodes = []
        for node in self.graph.nodes:
            function = self.find_function(node)
            if function is not None:
                self.known[node.outputs[0]] = function
                node = self.simplify_node(node, function)
            nodes.append(replace(node, inputs=tuple(self.alias.get(name, name) for name in node.inputs)))
        return without_dead_nodes(replace(self.graph, types=self.types, consts=self.consts).with_nodes(nodes))

    def find_function(self, node: Node) -> ByteFunction | None:
        """Return the function of one 8-bit value that the node computes, or None if it depends on anything else."""
        definition = registry.get(node.op)
        if not definition.elementwise or len(node.outputs) != 1 or node.attrs.get("axis") is not None:
            return None
        operands = [
            self.find_function_of_operand(node, k, k in definition.whole) for k, name in enumerate(node.inputs) if name
        ]
        functions = [operand for operand in operands if isinstance(operand, ByteFunction)]
        if len({f.root for f in functions}) != 1 or any(operand is None for operand in operands):
            return None
        tables = [operand.table if isinstance(operand, ByteFunction) else operand for operand in operands]
        # Tables have shape (256, 1 or channels), constants are scalars or rows: broadcasting evaluates all entries at once.
        with np.errstate(all="ignore"):
            (table,) = definition.reference({**definition.defaults, **node.attrs}, tables)
        # One column serves all channels if they turn out equal.
        if table.shape[1] > 1 and (table == table[:, :1]).all():
            table = table[:, :1]
        depth = 1 + max(f.node_count for f in functions)
        tabulated = node.op == "lookup" or any(f.contains_lookup for f in functions)
        real = table.dtype.kind == "f" or any(f.contains_floats for f in functions)
        return ByteFunction(functions[0].root, table, depth, tabulated, real)

    def find_function_of_operand(
        self, node: Node, operand_index: int, is_read_whole: bool
    ) -> ByteFunction | Array | None:
        """Return an operand as a function of a root or as a constant; None if it is neither.

        A constant must have one number, or one per channel, unless the operator reads the operand as a whole
        (``is_read_whole``)."""
        name = node.inputs[operand_index]
        array, kind, shape = (
            self.graph.consts.get(name),
            self.graph.types[name],
            self.graph.types[node.outputs[0]].shape,
        )
        if array is not None and not is_read_whole:
            return _expand_constant_by_channel(array, shape)
        if array is not None:
            return array
        if is_read_whole or kind.shape != shape:
            return None
        # An 8-bit value that several nodes read is computed in any case, so that it is a root itself.
        shared = name in self.kept or len(self.readers[name]) > 1
        if name in self.known and not (shared and _is_8_bit_integer(kind.dtype)):
            return self.known[name]
        return self.identity_of_8_bit_value(name, kind)

    def identity_of_8_bit_value(self, value_name: str, tensor_type: TensorType) -> ByteFunction | None:
        """Return the identity function of an 8-bit value; None for any other value."""
        if not _is_8_bit_integer(tensor_type.dtype) or value_name not in self.ranges or not tensor_type.size:
            return None
        return ByteFunction(value_name, _list_8_bit_numbers(tensor_type.dtype))

    def simplify_node(self, node: Node, function: ByteFunction) -> Node:
        """Return the node, or a cheaper one that reads the root. If the result equals the root, that is recorded in
        ``alias``."""
        name, (root, table) = node.outputs[0], (function.root, function.table)
        source, kind = self.types[root], self.types[name]
        if not _is_8_bit_integer(kind.dtype):
            return node
        domain = _slice_reachable_table_entries(self.ranges[root], source.dtype)
        before, after = _list_8_bit_numbers(source.dtype)[domain].astype(np.int64), table[domain].astype(np.int64)
        if source.dtype == kind.dtype and name not in self.kept and np.array_equal(before, after):
            self.alias[name], self.known[name] = root, replace(function, node_count=0)
            return node
        low, high = int(after[0, 0]), int(after[-1, 0])
        if source.dtype == kind.dtype and low <= high and np.array_equal(np.clip(before, low, high), after):
            return replace(
                node, op="clip", inputs=(root,), attrs={"minimum": low, "maximum": high, "rounding": Rounding.NONE}
            )
        saves_nodes = function.node_count > 1 or node.op in _FIXED
        channels = table.shape[1]
        is_worth_table = kind.size >= ENTRIES * channels or (
            channels == 1 and (function.contains_lookup or function.contains_floats)
        )
        if not saves_nodes or not is_worth_table:
            return node
        operands = {"table": np.ascontiguousarray(table.T).reshape(-1)}
        if channels > 1:
            operands["first"] = np.arange(0, table.size, ENTRIES, dtype=np.int16)
        inputs = [root]
        for stem, array in operands.items():
            inputs.append(fresh_name(self.types, f"{name}.{stem}"))
            self.types[inputs[-1]], self.consts[inputs[-1]] = TensorType(array.shape, str(array.dtype)), array
        return replace(node, op="lookup", inputs=tuple(inputs), attrs={})


def _is_8_bit_integer(dtype: str) -> bool:
    return dtypes.is_integer(dtype) and dtypes.nbytes(dtype) == 1


def _expand_constant_by_channel(array: Array, result_shape: Sequence[int]) -> Array | None:
    """Return a constant operand as one number, or as one per channel of a result of ``result_shape``; None if it has
    more numbers."""
    first = array.reshape(-1)[:1]
    if (
        array.size and array.tobytes() == first.tobytes() * array.size
    ):  # as bytes, -0.0 differs from 0.0 and NaN equals NaN
        return first
    along = bool(result_shape) and array.ndim and array.size == array.shape[-1] == result_shape[-1] <= COLOURS
    return array.reshape(-1) if along else None


def _list_8_bit_numbers(dtype: str) -> Array:
    """Return all numbers of an 8-bit dtype, in ascending order, as a column of that dtype."""
    low, high = dtypes.int_range(dtype)
    return np.arange(low, high + 1).astype(dtypes.to_numpy(dtype))[:, None]


def _slice_reachable_table_entries(root_range: Range, dtype: str) -> slice:
    """Return the slice of the table entries that a channel of a value with this range can read."""
    lowest, _ = dtypes.int_range(dtype)
    return slice(int(root_range.low.min()) - lowest, int(root_range.high.max()) - lowest + 1)


def _clamp_merging_rules() -> tuple[Rule, ...]:
    """Return the rule that merges a clamp of stored integers into the preceding rescaling."""
    return (
        (P.op("clip", P.op(_RESCALERS, name="first"), attrs={"rounding": Rounding.NONE}), _merge_clamp_into_rescaling),
    )


def _merge_clamp_into_rescaling(match: Match) -> Replacement:
    """Narrow the clamp bounds of a rescaling to the bounds of the clamp that follows."""
    first, (low, high) = match.nodes["first"], (match.root.attr("minimum"), match.root.attr("maximum"))
    bounds = {side: min(max(first.attr(side), low), high) for side in ("minimum", "maximum")}
    match.emit(first.op, first.inputs, {**first.attrs, **bounds}, loc=first.loc)
    return match.replacement()


PASS = Pass("unary_functions", simplify_unary_functions, 2)
