# SPDX-License-Identifier: Apache-2.0
"""Attention as loops over heads and over blocks of queries, so that only one block of scores is in memory at a time.

:func:`find_attention` recognises attention in a fused graph; :func:`block_attention` rewrites it. Each operand is
traced back through transposes, reshapes and slices to the value that it is a view of (:func:`find_source_views`). Each
iteration then gathers its part of that value (:func:`slice_view_along_axis`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import Attr, Graph, Loc, NameSet, Node, TensorType
from microc.graph.match import without_dead_nodes
from microc.ops import registry
from microc.ops.attributes import Rounding

# ---- Attention in a fused graph: scores, their softmax, and the product with the values. Each is a fusion group.

_SOFTMAX = frozenset(("softmax", "qsoftmax", "qsoftmax_scaled", "qsoftmax16"))


@frozen
class Attention:
    """Attention in a fused graph, as three fusion groups; each consists of an anchor and the elementwise nodes after
    it.

    ``score_nodes`` (..., M, N) is the product of queries and keys, ``softmax_nodes`` the softmax of the rows of the
    scores, and ``value_product_nodes`` (..., M, P) the product of the weights with the values. The first two results
    have no other readers."""

    score_nodes: tuple[Node, ...]
    softmax_nodes: tuple[Node, ...]
    value_product_nodes: tuple[Node, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes of the three groups, in order."""
        return (*self.score_nodes, *self.softmax_nodes, *self.value_product_nodes)

    @property
    def queries(self) -> str:
        """Name of the queries: the first operand of the product that computes the scores."""
        return self.score_nodes[0].inputs[0]


def find_attention(graph: Graph) -> tuple[Attention, ...]:
    """Return all attentions in a fused graph."""
    groups: dict[str, tuple[Node, ...]] = {}
    for node in graph.nodes:
        if node.group:
            groups[node.group] = (*groups.get(node.group, ()), node)
    makers = {group[-1].outputs[0]: group for group in groups.values()}
    readers = graph.consumers()

    def find_group_of_first_operand(group: tuple[Node, ...]) -> tuple[Node, ...]:
        """Return the group that computes the first operand of another group's anchor; empty if the operand has other
        readers."""
        name = group[0].inputs[0]
        has_one_reader = name not in graph.outputs and [id(node) for node in readers.get(name, ())] == [id(group[0])]
        return makers.get(name, ()) if has_one_reader else ()

    attentions = []
    for product in groups.values():
        softmax = find_group_of_first_operand(product) if _is_matmul_group(graph, product) else ()
        scores = find_group_of_first_operand(softmax) if softmax and _is_softmax_group(graph, softmax) else ()
        if scores and _is_matmul_group(graph, scores) and not product[0].attrs["axes_a"]:
            attentions.append(Attention(scores, softmax, product))
    return tuple(attentions)


def _is_matmul_group(graph: Graph, group: tuple[Node, ...]) -> bool:
    """Test whether the anchor of a group is a product of two different matrices and the other nodes keep its shape."""
    return group[0].op == "matmul" and group[0].inputs[0] != group[0].inputs[1] and _keeps_shape_of_anchor(graph, group)


def _is_softmax_group(graph: Graph, group: tuple[Node, ...]) -> bool:
    """Test whether the anchor of a group is a softmax over the last axis and the other nodes keep its shape."""
    axis: Mapping[str, object] = group[0].attrs
    rank = len(graph.types[group[0].inputs[0]].shape)
    return (
        group[0].op in _SOFTMAX
        and axis.get("axis", rank - 1) in (-1, rank - 1)
        and _keeps_shape_of_anchor(graph, group)
    )


def _keeps_shape_of_anchor(graph: Graph, group: tuple[Node, ...]) -> bool:
    """Test whether all results of a group have one shape, and the nodes after the anchor are elementwise without
    axis."""
    shape = graph.types[group[0].outputs[0]].shape
    return all(graph.types[node.outputs[0]].shape == shape and len(node.outputs) == 1 for node in group) and all(
        registry.get(node.op).elementwise and node.attrs.get("axis") is None for node in group[1:]
    )


# ---- Operands as strided views of the value from which they are taken. numpy computes offsets and strides: it makes views of a
# byte array whose content is never used.

_MOVES = frozenset(("reshape", "transpose", "slice"))
"""Operators that only move or select elements."""


@frozen
class StridedView:
    """Operand of an attention as a strided view of the value ``source``; both may have different dtypes.

    Numpy strides describe the view: ``source_array`` is an array with one byte per element of the value, and
    ``strided_array`` a view of ``source_array`` with one byte per element of the operand. ``axis_names``: names of the
    axes of ``strided_array``. Axes of extent 1 are left out, because they do not constrain the order.
    ``elementwise_nodes``: elementwise nodes that are applied after the view."""

    source: str
    source_array: Array
    strided_array: Array
    axis_names: tuple[str, ...]
    elementwise_nodes: tuple[Node, ...] = ()

    @property
    def element_offset(self) -> int:
        """Offset of the operand's first element in ``source``, in elements."""
        return _first_element_address(self.strided_array) - _first_element_address(self.source_array)


@frozen
class ViewSlice:
    """Slice of a :class:`StridedView` that one iteration of a loop reads.

    The value is reshaped to ``shape``; the iteration reads element ``first_index`` + iteration index along axis 1.
    ``remaining_view`` is the view of the operand within that slice."""

    shape: tuple[int, int, int]
    first_index: int
    remaining_view: StridedView


@frozen
class DenseLayout:
    """Layout of a :class:`StridedView` that contains all of its source value: that value reshaped to ``shape``, then
    transposed by ``axes``."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def is_row_major(self) -> bool:
        """True if ``axes`` is the identity, so that no transposition is needed."""
        return self.axes == tuple(range(len(self.axes)))


def find_source_views(
    graph: Graph, producers: Mapping[str, Node], value_name: str, axis_names: tuple[str, ...]
) -> list[StridedView]:
    """Return ``value_name`` as a view of each value from which reshapes, transposes and slices alone compute it.

    The value farthest back in the graph is first, ``value_name`` itself is last.

    ``axis_names`` are the names of its last axes; axes before these have extent 1. A source with a wider dtype is
    skipped, because a copy of its part would be larger. A source that is not stored, because it is inside a kernel, is
    skipped, too."""
    trail = _trace_back_through_moves(graph, producers, value_name)
    options = []
    for depth in reversed(range(len(trail))):
        source = trail[depth]
        is_wider = dtypes.nbytes(graph.types[source].dtype) > dtypes.nbytes(graph.types[value_name].dtype)
        if depth and (is_wider or _is_result_inside_kernel(graph, producers.get(source))):
            continue
        whole: Array = np.empty(graph.types[source].size, np.uint8)
        view: Array | None = whole.reshape(graph.types[source].shape)
        behind = [producers[value] for value in reversed(trail[:depth])]
        for node in behind:
            view = _apply_move_to_view(view, node) if view is not None else None
        if view is None or not np.may_share_memory(view, whole):
            continue
        missing = view.ndim - len(axis_names)
        solid = [axis for axis, extent in enumerate(view.shape) if extent > 1 and axis >= missing]
        squeezed = as_strided(view, tuple(view.shape[k] for k in solid), tuple(view.strides[k] for k in solid))
        scaled = tuple(node for node in behind if node.op not in _MOVES)
        options.append(
            StridedView(source, whole, squeezed, tuple(axis_names[axis - missing] for axis in solid), scaled)
        )
    return options


def _trace_back_through_moves(graph: Graph, producers: Mapping[str, Node], value_name: str) -> list[str]:
    """Return a value and the values before it, along a path of moves and of elementwise operators with one constant for
    all elements.

    Once a value on the path has other readers, the path continues through views only, because other operators would be
    computed again."""
    path, has_other_readers = [value_name], False
    while (maker := producers.get(path[-1])) is not None and maker.inputs[0] not in graph.consts:
        definition = registry.get(maker.op)
        has_other_readers |= path[-1] in graph.outputs or sum(n.inputs.count(path[-1]) for n in graph.nodes) > 1
        is_scaling = definition.elementwise and all(
            value in graph.consts and (graph.types[value].size == 1 or k in definition.whole)
            for k, value in enumerate(maker.inputs)
            if k and value
        )
        if not (maker.op in _MOVES or is_scaling) or (has_other_readers and not definition.view):
            break
        path.append(maker.inputs[0])
    return path


def _is_result_inside_kernel(graph: Graph, node: Node | None) -> bool:
    """Test whether a node's result is never stored, because it is not the last of its kernel."""
    group = [other for other in graph.nodes if node is not None and node.group and other.group == node.group]
    return bool(group) and group[-1] is not node


def _apply_move_to_view(index_view: Array, node: Node) -> Array | None:
    """Apply a node that only moves elements to a numpy view; return None if numpy would have to copy elements."""
    match node.op:
        case "transpose":
            return index_view.transpose(node.attr("axes"))
        case "slice":
            triples = zip(*(node.attr(name) for name in ("begin", "end", "strides")), strict=True)
            return index_view[tuple(slice(*bounds) for bounds in triples)] if min(node.attr("strides")) > 0 else None
        case "reshape":
            view = index_view.reshape(node.attr("shape"))
            return view if np.may_share_memory(view, index_view) else None
        case _:
            return index_view


def slice_view_along_axis(view: StridedView, axis_name: str) -> ViewSlice | None:
    """Return the slice of a view that one iteration of a loop along the axis ``axis_name`` reads.

    Return None if the value cannot be reshaped such that this axis is one of its axes."""
    # Let ``step`` be the stride of the axis and ``block`` the next larger stride. The value reshaped to (size / block, block /
    # step, step) has the axis as its axis 1, if all larger strides are multiples of block and all smaller offsets are below step.
    axis = view.axis_names.index(axis_name)
    size, step, count = view.source_array.size, view.strided_array.strides[axis], view.strided_array.shape[axis]
    others = [k for k in range(view.strided_array.ndim) if k != axis]
    strides = [view.strided_array.strides[k] for k in others]
    block = min([stride for stride in strides if stride > step], default=size)
    first = view.element_offset % block // step
    low = sum(
        (view.strided_array.shape[k] - 1) * view.strided_array.strides[k]
        for k in others
        if view.strided_array.strides[k] < step
    )
    is_aligned = size % block == block % step == 0 and all(s < step or s % block == 0 for s in strides)
    if not is_aligned or first + count > block // step or view.element_offset % step + low >= step:
        return None
    rest: Array = np.empty(size // block * step, np.uint8)
    start = view.element_offset // block * step + view.element_offset % step
    inner = tuple(s if s < step else s // block * step for s in strides)
    places = as_strided(rest[start:], tuple(view.strided_array.shape[k] for k in others), inner)
    labels = tuple(view.axis_names[k] for k in others)
    return ViewSlice(
        (size // block, block // step, step),
        first,
        replace(view, source_array=rest, strided_array=places, axis_names=labels),
    )


def find_dense_layout(view: StridedView, axis_names: tuple[str, ...]) -> DenseLayout | None:
    """Return the reshape and the transposition that compute an operand from its source value, with all of
    ``axis_names`` as axes.

    Return None if the operand does not contain all elements of that value."""
    order = sorted(range(view.strided_array.ndim), key=lambda k: -view.strided_array.strides[k])
    shape = [view.strided_array.shape[k] for k in order]
    packed_strides = [prod(shape[k + 1 :]) for k in range(len(shape))]
    if (
        view.element_offset
        or [view.strided_array.strides[k] for k in order] != packed_strides
        or prod(shape) != view.source_array.size
    ):
        return None
    ordered = [view.axis_names[k] for k in order]
    ordered = [*(label for label in axis_names if label not in ordered), *ordered]
    extents = dict(zip(view.axis_names, view.strided_array.shape, strict=True))
    if len(ordered) == 2 and ordered != list(axis_names) and min(extents.get(label, 1) for label in axis_names) == 1:
        ordered = list(axis_names)  # a matrix of one row or column has the same memory order as its transpose
    return DenseLayout(
        tuple(extents.get(label, 1) for label in ordered), tuple(ordered.index(label) for label in axis_names)
    )


def _first_element_address(array: Array) -> int:
    """Return the address of an array's first element."""
    return int(array.__array_interface__["data"][0])


# ---- Builder of nodes in a graph and in the loops inside it.


class AttentionGraphBuilder:
    """Builder of nodes: of the graph ``graph`` itself, or of the body of a loop that the builder ``parent``
    contains."""

    def __init__(self, graph: Graph, loc: Loc, parent: AttentionGraphBuilder | None = None) -> None:
        self.graph, self.loc, self.parent = graph, loc, parent
        self.names = NameSet(graph.types if parent is None else ())
        self.types: dict[str, TensorType] = {}
        self.consts: dict[str, Array] = {}
        self.nodes: list[Node] = []
        self.inputs: dict[str, str] = {}
        """Values of the parent, by their names in this body."""

    def type_of(self, name: str) -> TensorType:
        return self.types.get(name) or self.graph.types[name]

    def shape_of(self, name: str) -> tuple[int, ...]:
        return self.type_of(name).shape

    # ------------------------------------------------------------ values

    def new_value(self, stem: str, tensor_type: TensorType) -> str:
        """Add a value of type ``tensor_type``; return its unique name, which begins with ``stem``."""
        name = self.names.fresh(stem)
        self.types[name] = tensor_type
        return name

    def add_constant(self, stem: str, data: Array) -> str:
        """Add a constant; return its unique name, which begins with ``stem``."""
        name = self.new_value(stem, TensorType(data.shape, data.dtype.name))
        self.consts[name] = data
        return name

    def add_captured_input(self, outer: str) -> str:
        """Make the value ``outer`` of the parent an input of this body, if it is none yet; return its name in the
        body."""
        assert self.parent is not None
        known = {value: name for name, value in self.inputs.items()}
        if outer not in known:
            known[outer] = self.new_value(outer, self.parent.type_of(outer))
            self.inputs[known[outer]] = outer
        return known[outer]

    def capture_whole_value(self, value_name: str) -> str:
        """Make a value of the graph available in this body, with all its elements; return its name in the body.

        A value of one element gets at most two axes."""
        kind = self.graph.types[value_name]
        if self.parent is None:
            local = value_name
        elif value_name in self.graph.consts:
            local = self.add_constant(value_name, self.graph.consts[value_name])
            self.types[local] = kind
        else:
            local = self.add_captured_input(self.parent.capture_whole_value(value_name))
        return self.emit_reshape(local, (1, 1)) if kind.size == 1 and len(self.shape_of(local)) > 2 else local

    # ------------------------------------------------------------ nodes

    def emit(self, op: str, inputs: tuple[str, ...], attrs: Mapping[str, Attr], stem: str = "") -> str:
        """Append a node that forms a kernel of its own; return the name of its result."""
        (kind,) = registry.infer(op, attrs, [self.type_of(name) for name in inputs])
        result = self.new_value(stem or inputs[0], replace(kind, quant=self.type_of(inputs[0]).quant))
        group = "" if registry.get(op).view else result
        self.nodes.append(Node(op, inputs, (result,), attrs, self.loc, group))
        return result

    def copy_node(self, node: Node, inputs: tuple[str, ...], attrs: Mapping[str, Attr]) -> str:
        """Append a copy of a node of the graph, with other operands and attributes, in the same fusion group; return
        its result."""
        (kind,) = registry.infer(node.op, attrs, [self.type_of(name) for name in inputs if name])
        result = self.new_value(node.outputs[0], replace(kind, quant=self.graph.types[node.outputs[0]].quant))
        self.nodes.append(replace(node, inputs=inputs, outputs=(result,), attrs=attrs))
        return result

    def emit_elementwise_copies(self, name: str, nodes: Sequence[Node]) -> str:
        """Append copies of elementwise ``nodes`` applied to a value, in one kernel; return the result."""
        group = self.names.fresh(name) if nodes else ""
        for node in nodes:
            others = tuple(self.capture_whole_value(value) if value else "" for value in node.inputs[1:])
            name = self.copy_node(replace(node, group=group), (name, *others), node.attrs)
        return name

    def emit_reshape(self, name: str, shape: tuple[int, ...]) -> str:
        """Append a reshape to ``shape`` if the value has another shape; return the result."""
        return name if self.shape_of(name) == shape else self.emit("reshape", (name,), {"shape": shape})

    def emit_transpose(self, name: str, axes: tuple[int, ...]) -> str:
        """Append a transposition by ``axes``; return the result."""
        return self.emit("transpose", (name,), {"axes": axes})

    def emit_gather(self, name: str, iteration_index: str, first_index: int, axis: int) -> str:
        """Append a gather of element ``first_index`` + ``iteration_index`` of a value along ``axis``; return its
        result."""
        if first_index:
            offset = self.add_constant("first", np.array(first_index, np.int32))
            iteration_index = self.emit(
                "add", (iteration_index, offset), {"activation": "", "rounding": Rounding.DOUBLE}
            )
        return self.emit("gather", (name, iteration_index), {"axis": axis, "batch_dims": 0})

    def emit_row_slice(self, name: str, start: int, stop: int) -> str:
        """Append the slice of rows ``start`` to ``stop`` - 1 along the first axis; return the result."""
        shape = self.shape_of(name)
        if (start, stop) == (0, shape[0]):
            return name
        attrs: Mapping[str, Attr] = {
            "begin": (start, *(0 for _ in shape[1:])),
            "end": (stop, *shape[1:]),
            "strides": (1,) * len(shape),
        }
        return self.emit("slice", (name,), attrs)

    def emit_concat(self, first: str, second: str) -> str:
        """Append the concatenation of two values along their first axis; return the result."""
        return self.emit("concat", (first, second), {"axis": 0, "rounding": Rounding.DOUBLE})

    # ------------------------------------------------------------ loops

    def begin_loop_body(self) -> tuple[AttentionGraphBuilder, str]:
        """Begin the body of a loop; return the body and the name of its iteration index."""
        inner = AttentionGraphBuilder(self.graph, self.loc, self)
        return inner, inner.new_value("iteration", TensorType((), "int32"))

    def emit_loop(self, loop_body: AttentionGraphBuilder, result: str, iteration_count: int) -> str:
        """Append a loop of ``iteration_count`` iterations over the body ``loop_body``; return its results, stacked
        along a new first axis."""
        iteration = next(iter(loop_body.types))
        graph = Graph(
            "iteration",
            (iteration, *loop_body.inputs),
            (result,),
            loop_body.sort_nodes_depth_first(result),
            loop_body.types,
            loop_body.consts,
        )
        attrs: Mapping[str, Attr] = {"body": graph, "count": iteration_count, "carried": 0, "guarded": False}
        kind = loop_body.type_of(result)
        stacked = self.new_value(result, replace(kind, shape=(iteration_count, *kind.shape)))
        self.nodes.append(Node("loop", tuple(loop_body.inputs.values()), (stacked,), attrs, self.loc, stacked))
        return stacked

    def sort_nodes_depth_first(self, result: str) -> tuple[Node, ...]:
        """Return the nodes on which ``result`` depends, in depth-first order from it.

        Each node is then close to its readers, so that copies are live for a short time."""
        makers = {node.outputs[0]: node for node in self.nodes}
        order: dict[str, Node] = {}

        def append_after_operands(name: str) -> None:
            node = makers.get(name)
            if node is not None and name not in order:
                for operand in node.inputs:
                    append_after_operands(operand)
                order[name] = node

        append_after_operands(result)
        return tuple(order.values())


# ---- Attention as loops: one over every batch axis (the heads), and one over blocks of queries.
#
# An iteration copies its part of queries, keys, values and masks from the values of which they are views; the transposes and
# slices that computed whole operands are no longer needed. Unlike in FlashAttention, a block contains whole rows of scores, so
# that no sum is ever rescaled: results equal those of the plain operators bit for bit.

_OperandKey = tuple[int, int]
"""Key of an operand: index of its node in the attention, and position among the operands of the node."""
_OperandViews = dict[_OperandKey, StridedView]
ROWS, COLUMNS, DEPTH, WIDTH = "rows", "columns", "depth", "width"
"""Names of the matrix axes: queries, keys, features of queries and keys, features of values. Batch axes are called
``batch0``, ``batch1``, ..."""


def block_attention(graph: Graph, attentions: Sequence[Attention], query_row_count: int) -> Graph:
    """Rewrite attentions as loops over blocks of ``query_row_count`` queries. An attention whose operands cannot be
    divided into blocks is left unchanged."""
    for attention in attentions:
        graph = _rewrite_attention(graph, attention, query_row_count)
    return graph


def _rewrite_attention(graph: Graph, attention: Attention, query_row_count: int) -> Graph:
    """Replace one attention by loops, at the position of its last node; return the graph itself if that is not
    possible."""
    plan = _BlockedAttention(graph, attention, query_row_count)
    operands = plan.find_divisible_operands()
    if operands is None:
        return graph
    body = AttentionGraphBuilder(graph, attention.value_product_nodes[-1].loc)
    last = attention.value_product_nodes[-1].outputs[0]
    result = plan.emit_loops(body, operands, plan.batch_axes)
    nodes, inside = list[Node](), {id(node) for node in attention.nodes}
    end = max(k for k, node in enumerate(graph.nodes) if id(node) in inside)
    restore_shape = Node(
        "reshape", (result,), (last,), {"shape": graph.types[last].shape}, attention.value_product_nodes[-1].loc
    )
    for k, node in enumerate(graph.nodes):
        if k == end:
            nodes += [*body.nodes, restore_shape]
        elif id(node) not in inside:
            nodes.append(node)
    types = {**graph.types, **body.types}
    return without_dead_nodes(replace(graph, types=types, consts={**graph.consts, **body.consts}).with_nodes(nodes))


class _BlockedAttention:
    """Rewriting of one attention to loops over blocks of ``rows`` queries: it selects the parts of operands and emits
    the loops.

    ``transposed``: right operands of integer products whose matrices remain transposed; ``matmul`` reads them by its
    attribute ``axes_b``."""

    def __init__(self, graph: Graph, attention: Attention, rows: int) -> None:
        self.graph, self.attention, self.rows = graph, attention, rows
        self.transposed: set[_OperandKey] = set()

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """Names of the batch axes (such as heads) with an extent above 1. Each becomes a loop."""
        shape = self.graph.types[self.attention.value_product_nodes[0].outputs[0]].shape
        return tuple(f"batch{axis}" for axis, extent in enumerate(shape[:-2]) if extent > 1)

    def find_divisible_operands(self) -> _OperandViews | None:
        """Return the operands from which an iteration reads only a part; each is a view of the farthest source that all
        loops can divide.

        Return None if one of the operands cannot be divided."""
        producers = self.graph.producer()
        own = {node.outputs[0] for node in self.attention.nodes}
        chosen: _OperandViews = {}
        for number, node in enumerate(self.attention.nodes):
            for position, name in enumerate(node.inputs):
                if not name or name in own:
                    continue
                labels = self.operand_axis_names(number, position)
                if labels is None:
                    continue
                options = find_source_views(self.graph, producers, name, labels)
                ends = [
                    (view, self.find_innermost_matrix(view, self.matrix_axis_names(number, position)))
                    for view in options
                ]
                view, matrix = next(((p, e) for p, e in ends if e is not None), (None, None))
                if view is None or matrix is None:
                    return None
                chosen[number, position] = view
                if position == 1 and not matrix.is_row_major and dtypes.is_integer(self.graph.types[name].dtype):
                    self.transposed.add((number, position))
        return chosen

    def find_innermost_matrix(self, view: StridedView, wanted_axes: tuple[str, str]) -> DenseLayout | None:
        """Return the layout of the matrix that remains of an operand inside all batch loops.

        Return None if one of the loops cannot divide the view, or if the matrix is not contiguous."""
        for axis in self.batch_axes:
            if axis in view.axis_names:
                part = slice_view_along_axis(view, axis)
                if part is None:
                    return None
                view = part.remaining_view
        return find_dense_layout(view, wanted_axes)

    def matrix_axis_names(self, node_index: int, operand_index: int) -> tuple[str, str]:
        """Return the names of the axes of an operand's matrices, in the order of the original operators."""
        node = self.attention.nodes[node_index]
        scores = node_index < len(self.attention.score_nodes)
        if node.op == "matmul":
            return ((ROWS, DEPTH), (DEPTH, COLUMNS))[operand_index] if scores else (COLUMNS, WIDTH)
        return ROWS, COLUMNS if node_index < len(self.attention.nodes) - len(
            self.attention.value_product_nodes
        ) else WIDTH

    def emit_operand_matrix(self, body: AttentionGraphBuilder, operand_key: _OperandKey, view: StridedView) -> str:
        """Emit the nodes that compute the matrix of an operand inside all batch loops; return the matrix."""
        matrix = find_dense_layout(view, self.matrix_axis_names(*operand_key))
        assert matrix is not None
        value = body.emit_elementwise_copies(body.emit_reshape(view.source, matrix.shape), view.elementwise_nodes)
        return (
            value if matrix.is_row_major or operand_key in self.transposed else body.emit_transpose(value, matrix.axes)
        )

    def operand_axis_names(self, node_index: int, operand_index: int) -> tuple[str, ...] | None:
        """Return the names of an operand's axes; None if every iteration reads all elements of the operand."""
        node = self.attention.nodes[node_index]
        kind = self.graph.types[node.inputs[operand_index]]
        rank = len(self.graph.types[self.attention.value_product_nodes[0].outputs[0]].shape)
        ends = self.matrix_axis_names(node_index, operand_index)
        labels = (*(f"batch{axis}" for axis in range(rank - 2)), *ends)[rank - len(kind.shape) :]
        if node.op == "matmul":
            axes = node.attr("axes_b" if operand_index else "axes_a")
            return tuple(labels[axes.index(k)] for k in range(len(axes))) if axes else labels
        definition = registry.get(node.op)
        is_whole = not definition.elementwise or operand_index in definition.whole or kind.size == 1
        return None if is_whole else labels

    # ------------------------------------------------------------ loops

    def emit_loops(self, body: AttentionGraphBuilder, operands: _OperandViews, axes: Sequence[str]) -> str:
        """Emit loops over the batch axes ``axes`` and the attention of one matrix inside; return the result."""
        if not axes:
            return self.emit_row_blocks(
                body, {key: self.emit_operand_matrix(body, key, view) for key, view in operands.items()}
            )
        axis, shape = axes[0], self.graph.types[self.attention.value_product_nodes[0].outputs[0]].shape
        iterations = shape[int(axis.removeprefix("batch"))]
        inner, iteration = body.begin_loop_body()
        shares: _OperandViews = {}
        for key, view in operands.items():
            if axis not in view.axis_names:
                shares[key] = replace(view, source=inner.add_captured_input(view.source))
                continue
            part = slice_view_along_axis(view, axis)
            assert part is not None
            whole = inner.add_captured_input(body.emit_reshape(view.source, part.shape))
            shares[key] = replace(part.remaining_view, source=inner.emit_gather(whole, iteration, part.first_index, 1))
        return body.emit_loop(inner, self.emit_loops(inner, shares, axes[1:]), iterations)

    def emit_row_blocks(self, body: AttentionGraphBuilder, operands: Mapping[_OperandKey, str]) -> str:
        """Emit the attention of one matrix: a loop over full blocks of rows, then the remaining rows; return the
        result."""
        queries = (0, 0)
        height = body.shape_of(operands[queries])[0]
        if self.rows >= height:
            return self.emit_matrix_operators(body, operands)
        by_row = {key for key, name in operands.items() if self.has_row_per_query(key) and body.shape_of(name)[0] > 1}
        blocks = height // self.rows
        inner, iteration = body.begin_loop_body()
        shares = {}
        for key, name in operands.items():
            if key not in by_row:
                shares[key] = inner.add_captured_input(name)
                continue
            head = body.emit_row_slice(name, 0, blocks * self.rows)
            whole = body.emit_reshape(head, (blocks, self.rows, body.shape_of(name)[1]))
            shares[key] = inner.emit_gather(inner.add_captured_input(whole), iteration, 0, 0)
        result = body.emit_loop(inner, self.emit_matrix_operators(inner, shares), blocks)
        result = body.emit_reshape(result, (blocks * self.rows, body.shape_of(result)[-1]))
        if blocks * self.rows == height:
            return result
        remaining = {
            k: body.emit_row_slice(v, blocks * self.rows, height) if k in by_row else v for k, v in operands.items()
        }
        return body.emit_concat(result, self.emit_matrix_operators(body, remaining))

    def has_row_per_query(self, operand_key: _OperandKey) -> bool:
        """Test whether an operand has one row for each query, as the queries and the operands of elementwise nodes
        do."""
        return operand_key == (0, 0) or self.attention.nodes[operand_key[0]].op != "matmul"

    def emit_matrix_operators(self, body: AttentionGraphBuilder, operands: Mapping[_OperandKey, str]) -> str:
        """Emit the operators of the attention on matrices; return the name of the result."""
        results: dict[str, str] = {}
        for number, node in enumerate(self.attention.nodes):
            inputs, attrs = list[str](), dict(node.attrs)
            for position, name in enumerate(node.inputs):
                operand = operands.get((number, position)) or results.get(name)
                inputs.append(operand or (body.capture_whole_value(name) if name else ""))
            if node.op == "matmul":
                attrs |= {"axes_a": (), "axes_b": (1, 0) if (number, 1) in self.transposed else ()}
            elif "axis" in attrs and attrs["axis"] is not None:
                attrs["axis"] = 1
            results[node.outputs[0]] = body.copy_node(node, tuple(inputs), attrs)
        return results[self.attention.value_product_nodes[-1].outputs[0]]
