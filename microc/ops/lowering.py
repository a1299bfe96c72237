# SPDX-License-Identifier: Apache-2.0
"""Lowering of fusion groups. A fusion group is one anchor node and the elementwise nodes fused behind it.

A group becomes one function (kernel): the tensor expression of the anchor, then one stage for all elementwise
operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil, prod

import numpy as np

from microc import te
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import InternalError
from microc.graph.ir import Graph, Node, TensorType
from microc.ops import registry
from microc.ops.registry import ONES, Multiples, OpCall, Operand
from microc.ops.windows import Window, WindowAxis
from microc.te.tensor import ComputeDef, Reduce, TensorRead
from microc.tir import ir
from microc.tir.analysis.simplification import simplify
from microc.tir.names import ACC, BOUND, MAGNITUDE, OUT, SCALED

# ---- Loops of elementwise operators, and indices of their operands, which may view the same row-major memory in several shapes.


def elementwise_loop_extents(result: TensorType, operands: Sequence[TensorType]) -> tuple[int, ...]:
    """Return the loop extents of a group that is purely elementwise.

    - One loop over all elements, if every operand has either one element or as many as the result.
    - Two loops, rows by channels, if the other operands vary along the last axis only.
    - Otherwise one loop for each axis of the result."""
    odd = [t for t in operands if t.size not in (1, result.size)]
    if not odd or not result.shape:  # if the result is a scalar, the odd operands are tables
        return (result.size,)
    if all(varies_along_last_axis(t, result) for t in odd):
        return (result.size // result.shape[-1], result.shape[-1])
    return result.shape


def varies_along_last_axis(tensor_type: TensorType, result: TensorType) -> bool:
    """Test whether an operand has one element for each index of the result's last axis, and varies along no other
    axis."""
    return bool(tensor_type.shape) and tensor_type.size == tensor_type.shape[-1] == result.shape[-1]


def convert_index_to_shape(
    index_shape: tuple[int, ...], target_shape: tuple[int, ...], index: tuple[ir.Expr, ...]
) -> tuple[ir.Expr, ...]:
    """Convert an index in ``index_shape`` to the index of the same element in ``target_shape``; both shapes are
    row-major views of the same memory."""
    if index_shape == target_shape:
        return index
    flat: ir.Expr = ir.const(0, "int32")
    for i, extent in zip(index, index_shape, strict=True):
        flat = flat * extent + i
    indices: list[ir.Expr] = []
    for extent in reversed(target_shape):
        indices.append(flat % extent)
        flat = flat // extent
    return tuple(simplify(e) for e in reversed(indices))


# ---- Fusion groups that compute only some rows of their result. Striped layers (computed a band of rows at a time) use them.
#
# A group can be restricted to rows if the anchor declares which rows it reads (``OpDef.window``) and all other operands are
# constant along the height or have the result's shape. Tensors are (1, height, width, channels).


def window_of_one_output_row(graph: Graph, nodes: Sequence[Node], data_name: str) -> Window | None:
    """Return the window of rows of ``data_name`` that the group reads to compute one row of its result.

    Return None if the group cannot be computed row by row. It can be computed so if all of these hold:

    - ``data_name`` and the result are images of batch size 1, and all other values that are not constant have the
    result's shape.
    - Only one operand in the group is ``data_name``, and constants of elementwise nodes do not differ between rows.
    - The anchor is elementwise, and ``data_name`` has the result's shape; or the anchor's first operand is
    ``data_name``, its other operands are constants, and its window has no padding, or padding of a known value."""
    result = graph.types[nodes[-1].outputs[0]]
    values = [
        data_name,
        *(name for node in nodes for name in node.outputs if name),
        *other_inputs_read_by_row(graph, nodes, data_name),
    ]
    if any(graph.types[v].shape != result.shape for v in values[1:]) or not (
        _is_image(graph.types[data_name]) and _is_image(result)
    ):
        return None
    # A second reader of the data would need other rows than those in the window.
    if sum(node.inputs.count(data_name) for node in nodes) != 1 or not _constants_equal_in_all_rows(graph, nodes):
        return None
    first, definition = nodes[0], registry.get(nodes[0].op)
    if definition.elementwise:
        _, height, width, _ = result.shape
        unit = Window((WindowAxis(height), WindowAxis(width)))
        return unit if graph.types[data_name].shape == result.shape else None
    constant = all(v in graph.consts for v in first.inputs[1:] if v)
    if definition.window is None or first.inputs[0] != data_name or not constant:
        return None
    window = definition.window(first.attrs, [graph.types[v] for v in first.inputs if v])
    return None if window is None or (window.pad_value is None and window.is_padded) else window


def other_inputs_read_by_row(graph: Graph, nodes: Sequence[Node], data_name: str) -> tuple[str, ...]:
    """Return the names of the values that a group reads, except ``data_name`` and constants.

    To compute a row of its result, the group reads the row of the same index of these values."""
    computed = {name for node in nodes for name in node.outputs}
    read = dict.fromkeys(v for node in nodes for v in node.inputs if v)
    return tuple(v for v in read if v != data_name and v not in computed and v not in graph.consts)


def build_row_group(
    graph: Graph, nodes: Sequence[Node], data_name: str, window: Window, row_count: int
) -> tuple[Graph, tuple[Node, ...]]:
    """Build a graph that contains only the group and computes ``row_count`` rows of its result.

    The input ``data_name`` of this graph is the window of rows that the result's rows depend on. Return ``(graph,
    nodes)``."""
    result, types = graph.types[nodes[-1].outputs[0]], dict(graph.types)
    beside = other_inputs_read_by_row(graph, nodes, data_name)
    for name in (*beside, *(name for node in nodes for name in node.outputs if name)):
        types[name] = replace(types[name], shape=(1, row_count, *result.shape[2:]))
    types[data_name] = replace(
        types[data_name],
        shape=(1, window.rows.extent_of(row_count), *types[data_name].shape[2:]),
    )
    first = nodes[0]
    if "padding" in first.attrs:
        # The caller provides rows above and below; columns are padded here.
        columns = window.axes[1]
        first = replace(first, attrs={**first.attrs, "padding": (0, columns.before, 0, columns.after)})
    alone = replace(graph, inputs=(data_name, *beside), outputs=nodes[-1].outputs, types=types, state={}, updates={})
    members = (first, *nodes[1:])
    return alone.with_nodes(members), members


def _constants_equal_in_all_rows(graph: Graph, nodes: Sequence[Node]) -> bool:
    """Test whether all constants of elementwise nodes are scalars or vary along the channels only, and so are equal in
    all rows."""
    for node in nodes:
        definition, channels = registry.get(node.op), graph.types[node.outputs[0]].shape[-1]
        for position, name in enumerate(node.inputs):
            if not definition.elementwise or name not in graph.consts or position in definition.whole:
                continue
            tensor_type = graph.types[name]
            if tensor_type.size != 1 and not (tensor_type.size == tensor_type.shape[-1] == channels):
                return False
    return True


def _is_image(tensor_type: TensorType) -> bool:
    """Test whether a type has the shape (1, height, width, channels)."""
    return len(tensor_type.shape) == 4 and tensor_type.shape[0] == 1


# ---- Lowering of a fusion group: the anchor's tensor expression, then the elementwise chain as a single stage ``out``.
#
# The anchor may compute its result in another shape than the graph declares, with the same elements in row-major order: a
# convolution computes a matrix of pixels by channels. The loops of the elementwise operators then have the anchor's shape, and
# their operands broadcast as in the graph.

_LETTERS = ("x", "y", "z", "u", "v")
"""Parameter names of operands for which the operator defines no name."""


@frozen
class Param:
    """Parameter of a kernel and what is passed for it: a value of the graph, or a constant.

    ``role``: name of the operand in the operator's definition. ``value``: name of the graph's value. ``array``: data of
    a constant, possibly packed for the kernel; None for a value computed at run time."""

    role: str
    value: str
    array: Array | None = None


@frozen
class LoweredGroup:
    """A fusion group lowered to a kernel, before scheduling.

    - ``func``: the kernel. ``params`` describes its first parameters in order: inputs, then constants.
    - ``outputs``: names of the graph's values that the kernel writes.
    - ``nodes``: the nodes that were lowered, the anchor first.
    - ``macs``: number of multiply-accumulates.
    - ``tensors``: tensor expressions of the results. ``consts``: the constant tensors that these expressions read.
    - ``tables``: names of constants whose numbers may be used as indices, because operators bound the numbers
    (``OpDef.constants``) or computed them (``Operand.packed``)."""

    func: ir.PrimFunc
    params: tuple[Param, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    macs: int
    tensors: tuple[te.Tensor, ...]
    consts: tuple[te.Tensor, ...]
    tables: frozenset[str] = frozenset()

    @property
    def anchor(self) -> Node:
        """The first node. The others are elementwise operators on its result."""
        return self.nodes[0]

    @property
    def algorithm(self) -> str:
        """The name of the anchor's algorithm; ``direct`` if the operator's definition is used without a special
        algorithm."""
        return str(self.anchor.attrs.get("algorithm") or "direct")

    @property
    def text(self) -> str:
        """The tensor expressions as text."""
        return te.to_text(self.tensors, self.consts)


class _GroupLowering:
    """Lowering of one fusion group in progress: collects the placeholders and parameters of its kernel."""

    def __init__(self, graph: Graph, nodes: Sequence[Node]) -> None:
        self.graph, self.nodes = graph, nodes
        self.tensors: dict[str, te.Tensor] = {}
        self.params: list[tuple[te.Tensor, Param]] = []
        self.cache: dict[tuple[str, tuple[int, ...]], te.Tensor] = {}
        self.names: set[str] = {"out", "acc", "patch", "padded"}
        self.tables: set[str] = set()

    def unused_name(self, name_stem: str) -> str:
        """Return a tensor name that the kernel does not use yet, made from ``name_stem``."""
        name, number = name_stem, 1
        while name in self.names:
            name, number = f"{name_stem}{number}", number + 1
        self.names.add(name)
        return name

    def placeholder_of_value(self, value_name: str, parameter_name: str, shape: tuple[int, ...]) -> te.Tensor:
        """Return the placeholder tensor of a value that the group reads, viewed with the shape ``shape``.

        The shape may differ from the value's shape, but must have as many elements. Equal requests return the same
        placeholder."""
        tensor_type = self.graph.types[value_name]
        if prod(shape) != tensor_type.size:
            raise InternalError(
                f"{value_name}: a view must keep the number of elements; got {shape} of {tensor_type.shape}"
            )
        if (value_name, shape) not in self.cache:
            tensor = te.placeholder(shape, tensor_type.dtype, self.unused_name(parameter_name))
            self.cache[value_name, shape] = tensor
            self.params.append((tensor, Param(parameter_name, value_name, self.graph.consts.get(value_name))))
        return self.cache[value_name, shape]

    def add_packed_constant(
        self, value_name: str, parameter_name: str, array: Array, is_index_table: bool
    ) -> te.Tensor:
        """Add a kernel parameter for the constant ``array``, which was computed from the value ``value_name``;
        return its placeholder.

        ``is_index_table``: True if its numbers may be used as indices."""
        tensor = te.placeholder(array.shape, str(array.dtype), self.unused_name(parameter_name))
        if is_index_table:
            self.tables.add(tensor.name)
        self.params.append((tensor, Param(parameter_name, value_name, array)))
        return tensor

    def build_operand(self, value_name: str, parameter_name: str) -> Operand:
        """Return an operand of the anchor in the form that the anchor's ``compute`` function receives."""
        tensor_type = self.graph.types[value_name]

        def make_tensor(shape: tuple[int, ...] | None = None) -> te.Tensor:
            wanted = tensor_type.shape if shape is None else tuple(shape)
            if value_name in self.tensors:
                made = self.tensors[value_name]
                if made.shape != wanted:
                    raise InternalError(
                        f"{value_name}: a tensor of this kernel cannot be reshaped; got {wanted}, expected {made.shape}"
                    )
                return made
            return self.placeholder_of_value(value_name, parameter_name, wanted)

        def pack_constant(array: Array, *, table: bool = False) -> te.Tensor:
            return self.add_packed_constant(value_name, parameter_name, array, table)

        return Operand(tensor_type, self.graph.consts.get(value_name), make_tensor, pack_constant)

    def parameter_names(self, node: Node) -> list[str]:
        """Return the kernel's parameter names for the operands of a node: the names that the operator defines,
        otherwise letters."""
        given = registry.get(node.op).operand_names
        return [given[k] if k < len(given) else _LETTERS[k % len(_LETTERS)] for k in range(len(node.inputs))]


def lower_group(graph: Graph, nodes: Sequence[Node], multiples: Multiples, kernel_name: str) -> LoweredGroup:
    """Lower the nodes of one fusion group to a kernel.

    The first node is the anchor. The other nodes are elementwise, in the order of computation."""
    group = _GroupLowering(graph, nodes)
    first, rest = nodes[0], list(nodes)
    if registry.get(first.op).elementwise:
        outputs: tuple[te.Tensor, ...] = (_build_elementwise(group, rest, None, first.outputs[0]),)
        names: tuple[str, ...] = (nodes[-1].outputs[0],)
    else:
        anchor_tensors = _compute_anchor(group, first, multiples)
        names = tuple(o for o in first.outputs if o)
        if len(rest) > 1:
            if len(anchor_tensors) != 1:
                raise InternalError(
                    f"{first.op}: a node with several outputs cannot be an anchor of fused nodes", where=str(first.loc)
                )
            outputs = (_build_elementwise(group, rest[1:], anchor_tensors[0], first.outputs[0]),)
            names = (nodes[-1].outputs[0],)
        else:
            outputs = tuple(_append_store_stage_for_sums(t) for t in anchor_tensors)
    return _create_kernel(group, kernel_name, outputs, names, sum(node_macs(graph, node) for node in nodes))


def _create_kernel(
    group: _GroupLowering, kernel_name: str, outputs: tuple[te.Tensor, ...], output_names: tuple[str, ...], macs: int
) -> LoweredGroup:
    """Create the kernel that computes the tensors ``outputs``, which are the graph's values ``output_names``.

    Parameters of the kernel are the inputs, the constants, then the outputs."""
    inputs, consts = (
        [pair for pair in group.params if (pair[1].array is not None) == known] for known in (False, True)
    )
    tensors, stored = [t for t, _ in inputs], tuple(t for t, _ in consts)
    func = te.create_prim_func(kernel_name, tensors, outputs, stored)
    params = tuple(p for _, p in (*inputs, *consts))
    return LoweredGroup(
        func, params, output_names, tuple(group.nodes), macs, outputs, stored, _index_table_names(group)
    )


def _index_table_names(group: _GroupLowering) -> frozenset[str]:
    """Return the names of the constants whose numbers may be used as indices, because they are known to be within
    bounds."""
    bounded = {value for node in group.nodes for value in registry.bounded_operand_names(node, group.graph)}
    consts = group.graph.consts
    declared = (t.name for t, p in group.params if p.value in bounded and p.array is consts.get(p.value))
    return frozenset((*declared, *group.tables))


def lower_with_each_algorithm(
    graph: Graph,
    nodes: Sequence[Node],
    multiples: Multiples,
    kernel_name: str,
    suits_core: Callable[[str], bool],
    select_unbeaten: Callable[[Sequence[str]], Sequence[str]],
) -> tuple[LoweredGroup, ...]:
    """Lower the group with :func:`lower_group`, once for every algorithm of the anchor that is worth a comparison.

    Candidates are the algorithms that are valid for the anchor and for which ``suits_core`` is true.
    ``select_unbeaten`` selects from these candidates the algorithms to lower."""
    first, *rest = nodes
    algorithms = registry.get(first.op).algorithms
    if not algorithms or first.attrs.get("algorithm"):
        return (lower_group(graph, nodes, multiples, kernel_name),)
    call = _build_call(_GroupLowering(graph, nodes), first)
    names = ("direct", *(algorithm for algorithm, valid in algorithms.items() if suits_core(algorithm) and valid(call)))
    anchors = [replace(first, attrs={**first.attrs, "algorithm": algorithm}) for algorithm in select_unbeaten(names)]
    return tuple(lower_group(graph, (anchor, *rest), multiples, kernel_name) for anchor in anchors)


def lower_in_place_update(graph: Graph, node: Node, kernel_name: str) -> LoweredGroup:
    """Lower a node to a kernel that writes a part of its first operand in place (``OpDef.update``)."""
    update = registry.get(node.op).update
    if update is None:
        raise InternalError(f"operator {node.op} defines no in-place update", where=str(node.loc))
    group = _GroupLowering(graph, (node,))
    return _create_kernel(group, kernel_name, (update(_build_call(group, node)),), node.outputs, 0)


def node_macs(graph: Graph, node: Node) -> int:
    """Return the number of multiply-accumulates of a node."""
    count = registry.get(node.op).macs
    if count is None:
        return 0
    ins = [graph.types[i] for i in node.inputs if i]
    return count(node.attrs, ins, [graph.types[o] for o in node.outputs if o])


def _build_call(group: _GroupLowering, node: Node, multiples: Multiples = ONES) -> OpCall:
    """Build the :class:`OpCall` of an anchor: its attributes, operands of the group, and output types."""
    roles = group.parameter_names(node)
    operands = tuple(group.build_operand(v, r) if v else None for v, r in zip(node.inputs, roles, strict=True))
    return OpCall(node.attrs, operands, tuple(group.graph.types[o] for o in node.outputs if o), multiples)


def _compute_anchor(group: _GroupLowering, node: Node, multiples: Multiples) -> tuple[te.Tensor, ...]:
    """Return the result tensors of the anchor, as the ``compute`` function of its operator builds them."""
    definition = registry.get(node.op)
    if definition.compute is None:
        raise InternalError(f"operator {node.op} has no tensor expression", where=str(node.loc))
    made = definition.compute(_build_call(group, node, multiples))
    return made if isinstance(made, tuple) else (made,)


def _append_store_stage_for_sums(tensor: te.Tensor) -> te.Tensor:
    """Append a stage ``out`` that copies a tensor of sums. Schedules then accumulate sums in registers and store each
    sum once.

    Return any other tensor unchanged."""
    if not isinstance(tensor.definition, ComputeDef) or not (tensor.name == SCALED or _is_sum(tensor.definition.body)):
        return tensor
    return te.compute(tensor.shape, lambda *i: tensor[i], OUT, tuple(v.name for v in tensor.definition.axes))


def _is_sum(body: ir.Expr) -> bool:
    """Test whether an element's expression is a reduction, or is read from a tensor named ``acc`` (an accumulator)."""
    return isinstance(body, Reduce) or (isinstance(body, TensorRead) and body.tensor.name == ACC)


def _build_elementwise(
    group: _GroupLowering, nodes: Sequence[Node], anchor_tensor: te.Tensor | None, anchor_value: str
) -> te.Tensor:
    """Build the stage ``out``, which applies the elementwise nodes in order.

    ``anchor_tensor``: the anchor's result tensor, or None if there is no anchor; ``anchor_value``: its name in the
    graph."""
    graph = group.graph
    result = graph.types[nodes[-1].outputs[0]]
    inner = {o for node in nodes for o in node.outputs} | ({anchor_value} if anchor_tensor is not None else set())
    outside = [v for node in nodes for v in node.inputs if v and v not in inner]
    if anchor_tensor is not None:
        shape = anchor_tensor.shape
        axes = (
            tuple(v.name for v in anchor_tensor.definition.axes)
            if isinstance(anchor_tensor.definition, ComputeDef)
            else None
        )
    else:
        shape, axes = elementwise_loop_extents(result, [graph.types[v] for v in outside]), None

    def build_result_element(*index: ir.Expr) -> ir.Expr:
        values: dict[str, ir.Expr] = {}
        if anchor_tensor is not None:
            values[anchor_value] = anchor_tensor[index]
        for node in nodes:
            values[node.outputs[0]] = _build_node_element(group, node, values, shape, result, index)
        return values[nodes[-1].outputs[0]]

    notes = (
        (*_anchor_bound_annotation(nodes[0]), *_float_magnitude_annotation(group))
        if anchor_tensor is not None
        else _float_magnitude_annotation(group)
    )
    return te.compute(shape, build_result_element, OUT, axes, notes)


def _anchor_bound_annotation(node: Node) -> tuple[tuple[str, int | str], ...]:
    """Return a block annotation: the bound of the anchor's values that a ``requantize`` or ``requantize_floor`` node after
    the anchor declares.

    Empty if the node declares none."""
    declares = node.op in ("requantize", "requantize_floor") and not node.attrs.get("input_zero_point")
    bound = node.attrs.get("bound", -1) if declares else -1
    return ((BOUND, bound),) if isinstance(bound, int) and bound >= 0 else ()


def _float_magnitude_annotation(group: _GroupLowering) -> tuple[tuple[str, int | str], ...]:
    """Return a block annotation: the largest magnitude of the group's float constants. Empty if a constant is not
    finite."""
    arrays = (group.graph.consts.get(name) for node in group.nodes for name in node.inputs)
    ends = [float(np.abs(a).max(initial=0)) for a in arrays if a is not None and a.dtype.kind == "f"]
    return ((MAGNITUDE, ceil(max(ends, default=0.0))),) if np.isfinite(ends).all() else ()


def _build_node_element(
    group: _GroupLowering,
    node: Node,
    computed_elements: Mapping[str, ir.Expr],
    index_shape: tuple[int, ...],
    result: TensorType,
    index: tuple[ir.Expr, ...],
) -> ir.Expr:
    """Return the expression of an elementwise node's result, for the element at ``index`` of the loops' shape
    ``index_shape``.

    ``computed_elements``: expressions of the values that earlier nodes of the group compute. ``result``: type of the
    group's result."""
    definition = registry.get(node.op)
    if definition.scalar is None:
        raise InternalError(f"{node.op} is not elementwise", where=str(node.loc))
    args: list[ir.Expr | te.Tensor] = []
    for position, (value, role) in enumerate(zip(node.inputs, group.parameter_names(node), strict=True)):
        if not value:
            continue
        if value in computed_elements:
            args.append(computed_elements[value])
        elif position in definition.whole:
            args.append(group.placeholder_of_value(value, role, group.graph.types[value].shape))
        else:
            args.append(_read_operand(group, value, role, index_shape, result, index))
    return definition.scalar(node.attrs, args)  # type: ignore[arg-type]


def _read_operand(
    group: _GroupLowering,
    value_name: str,
    parameter_name: str,
    index_shape: tuple[int, ...],
    result: TensorType,
    index: tuple[ir.Expr, ...],
) -> ir.Expr:
    """Return the element of an operand that the group reads from memory to compute the result's element at ``index``.

    The operand is broadcast to the result's shape. An operand that is a constant scalar becomes a literal."""
    value_type = group.graph.types[value_name]
    if value_type.size == 1:
        array = group.graph.consts.get(value_name)
        if array is not None:
            return ir.const(array.reshape(-1)[0].item(), value_type.dtype)
        return group.placeholder_of_value(value_name, parameter_name, (1,))[0]
    if value_type.size == result.size:
        return group.placeholder_of_value(value_name, parameter_name, index_shape)[index]
    if varies_along_last_axis(value_type, result) and index_shape[-1] == value_type.size:
        return group.placeholder_of_value(value_name, parameter_name, (value_type.size,))[index[-1]]
    full = convert_index_to_shape(index_shape, result.shape, index)
    padded = (1,) * (len(result.shape) - len(value_type.shape)) + value_type.shape
    offset = len(result.shape) - len(value_type.shape)
    position = tuple(ir.const(0, "int32") if padded[a] == 1 else full[a] for a in range(offset, len(padded)))
    return group.placeholder_of_value(value_name, parameter_name, value_type.shape)[position]
