"""Elementwise work that depends on one 8-bit value only is a function of 256 numbers, known in full.

Values are followed from an 8-bit *root*, the first that is no such function itself or that several nodes read, through
elementwise nodes whose other operands are one number. The node's reference, applied to the tables of its operands, gives the
table of its result, whatever lies in between (other scales, floats, a product with the root). A result of 8 bits is then
written in the cheapest way that gives the same number for every number that the root can hold:

- the root itself, where the table is the identity (a multiplication by one, another name for the same scale);
- ``clip``, where the table is one; behind a rescaling it becomes that one's own clamp, since

      clamp(clamp(r, m, M), a, b)  =  clamp(r, clamp(m, a, b), clamp(M, a, b))

  (both sides rise with r, agree where a <= clamp(r, m, M) <= b, and are a or b elsewhere);
- ``lookup``, where it takes the place of two nodes, or of a fixed-point sum, product or quotient; a new table has to earn its
  bytes, which it does of few elements, too, where floats lie in between: their code is longer than a table, and slower by far.

Of pixels each channel may have a function of its own, because constants differ by channel: as many tables, one behind the other.
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
from microc.transform.quantised.integer_ranges import Range, value_ranges

ENTRIES = 256
"""A value with so many elements is worth a table of its own."""
COLOURS = 4
"""So many channels may differ."""

_FIXED = ("qadd", "qmul", "qdiv")
_RESCALERS = ("requantize", "requantize_float", "qadd", "qmul")


def simplify_unary_functions(graph: Graph, context: PassContext) -> Graph:
    """Rewrite 8-bit functions of one 8-bit value as nothing, a clamp, or a table."""
    found = _Functions(graph).run()
    return rewrite(found, _clamp_rules())


def byte_functions(graph: Graph) -> Mapping[str, Function]:
    """The values that are functions of one 8-bit value each."""
    found = _Functions(graph)
    for node in graph.nodes:
        function = found.function(node)
        if function is not None:
            found.known[node.outputs[0]] = function
    return found.known


@frozen
class Function:
    """A value as a function of ``root``: its numbers for the root's lowest number up to the highest, for all channels alike or
    for each, of shape (256, 1 or channels).

    ``depth`` counts the nodes in between; ``tabulated`` says that one of them is a table, which can be replaced, ``real`` that
    floats are among their values.
    """

    root: str
    table: Array
    depth: int = 0
    tabulated: bool = False
    real: bool = False


class _Functions:
    """One walk; ``known`` grows, and ``alias`` maps values to the roots that they equal."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ranges = value_ranges(graph)
        self.readers = graph.consumers()
        self.kept = {*graph.outputs, *graph.updates.values()}
        self.known: dict[str, Function] = {}
        self.alias: dict[str, str] = {}
        self.types, self.consts = dict(graph.types), dict(graph.consts)

    def run(self) -> Graph:
        nodes = []
        for node in self.graph.nodes:
            found = self.function(node)
            if found is not None:
                self.known[node.outputs[0]] = found
                node = self.simplified(node, found)
            nodes.append(replace(node, inputs=tuple(self.alias.get(name, name) for name in node.inputs)))
        return without_dead_nodes(replace(self.graph, types=self.types, consts=self.consts).with_nodes(nodes))

    def function(self, node: Node) -> Function | None:
        """What the node computes of one 8-bit value; None if that is not all it depends on."""
        definition = registry.get(node.op)
        if not definition.elementwise or len(node.outputs) != 1 or node.attrs.get("axis") is not None:
            return None
        operands = [self.operand(node, k, k in definition.whole) for k, name in enumerate(node.inputs) if name]
        functions = [operand for operand in operands if isinstance(operand, Function)]
        if len({f.root for f in functions}) != 1 or any(operand is None for operand in operands):
            return None
        tables = [operand.table if isinstance(operand, Function) else operand for operand in operands]
        with np.errstate(all="ignore"):
            (table,) = definition.reference({**definition.defaults, **node.attrs}, tables)
        if table.shape[1] > 1 and (table == table[:, :1]).all():
            table = table[:, :1]
        depth = 1 + max(f.depth for f in functions)
        tabulated = node.op == "lookup" or any(f.tabulated for f in functions)
        real = table.dtype.kind == "f" or any(f.real for f in functions)
        return Function(functions[0].root, table, depth, tabulated, real)

    def operand(self, node: Node, position: int, whole: bool) -> Function | Array | None:
        """A function of a root, or a constant that is one number, or one for each channel (or, ``whole``, anything); None for
        others."""
        name = node.inputs[position]
        array, kind, shape = (
            self.graph.consts.get(name),
            self.graph.types[name],
            self.graph.types[node.outputs[0]].shape,
        )
        if array is not None and not whole:
            return _by_channel(array, shape)
        if array is not None:
            return array
        if whole or kind.shape != shape:
            return None
        shared = name in self.kept or len(self.readers[name]) > 1
        if name in self.known and not (shared and _is_byte(kind.dtype)):
            return self.known[name]
        return self.identity(name, kind)

    def identity(self, name: str, kind: TensorType) -> Function | None:
        if not _is_byte(kind.dtype) or name not in self.ranges or not kind.size:
            return None
        return Function(name, _numbers(kind.dtype))

    def simplified(self, node: Node, found: Function) -> Node:
        """The node, or one in its place that reads the root; an alias where the result is the root."""
        name, (root, table) = node.outputs[0], (found.root, found.table)
        source, kind = self.types[root], self.types[name]
        if not _is_byte(kind.dtype):
            return node
        domain = _domain(self.ranges[root], source.dtype)
        before, after = _numbers(source.dtype)[domain].astype(np.int64), table[domain].astype(np.int64)
        if source.dtype == kind.dtype and name not in self.kept and np.array_equal(before, after):
            self.alias[name], self.known[name] = root, replace(found, depth=0)
            return node
        low, high = int(after[0, 0]), int(after[-1, 0])
        if source.dtype == kind.dtype and low <= high and np.array_equal(np.clip(before, low, high), after):
            return replace(
                node, op="clip", inputs=(root,), attrs={"minimum": low, "maximum": high, "rounding": Rounding.NONE}
            )
        saves = found.depth > 1 or node.op in _FIXED
        channels = table.shape[1]
        worth = kind.size >= ENTRIES * channels or (channels == 1 and (found.tabulated or found.real))
        if not saves or not worth:
            return node
        operands = {"table": np.ascontiguousarray(table.T).reshape(-1)}
        if channels > 1:
            operands["first"] = np.arange(0, table.size, ENTRIES, dtype=np.int16)
        inputs = [root]
        for stem, array in operands.items():
            inputs.append(fresh_name(self.types, f"{name}.{stem}"))
            self.types[inputs[-1]], self.consts[inputs[-1]] = TensorType(array.shape, str(array.dtype)), array
        return replace(node, op="lookup", inputs=tuple(inputs), attrs={})


def _is_byte(dtype: str) -> bool:
    return dtypes.is_integer(dtype) and dtypes.nbytes(dtype) == 1


def _by_channel(array: Array, shape: Sequence[int]) -> Array | None:
    """A constant operand of a result of ``shape`` as one number, or as one for each channel; None where it is more."""
    first = array.reshape(-1)[:1]
    if array.size and array.tobytes() == first.tobytes() * array.size:  # -0.0 is not 0.0, NaN is NaN
        return first
    along = bool(shape) and array.ndim and array.size == array.shape[-1] == shape[-1] <= COLOURS
    return array.reshape(-1) if along else None


def _numbers(dtype: str) -> Array:
    """All numbers of an 8-bit dtype, in its own dtype, as a column."""
    low, high = dtypes.int_range(dtype)
    return np.arange(low, high + 1).astype(dtypes.to_numpy(dtype))[:, None]


def _domain(known: Range, dtype: str) -> slice:
    """The table's entries that some channel can reach."""
    lowest, _ = dtypes.int_range(dtype)
    return slice(int(known.low.min()) - lowest, int(known.high.max()) - lowest + 1)


def _clamp_rules() -> tuple[Rule, ...]:
    """A clamp of stored integers joins the rescaling before it."""
    return ((P.op("clip", P.op(_RESCALERS, name="first"), attrs={"rounding": Rounding.NONE}), _clamped_at_once),)


def _clamped_at_once(match: Match) -> Replacement:
    first, (low, high) = match.nodes["first"], (match.root.attr("minimum"), match.root.attr("maximum"))
    bounds = {side: min(max(first.attr(side), low), high) for side in ("minimum", "maximum")}
    match.emit(first.op, first.inputs, {**first.attrs, **bounds}, loc=first.loc)
    return match.replacement()


PASS = Pass("unary_functions", simplify_unary_functions, 2)
