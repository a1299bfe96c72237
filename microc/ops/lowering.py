"""Lowering of a fusion group to one function: the anchor's tensor expression, then a stage of elementwise operators."""

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
from microc.ops.registry import ONES, Multiples, OpCall, Operand, Window
from microc.te.tensor import ComputeDef, Reduce, TensorRead
from microc.tir import ir
from microc.tir.analysis.simplification import simplify
from microc.tir.names import ACC, BOUND, MAGNITUDE, OUT, SCALED

# ---- Loops of elementwise operators, and indices of their operands: different shapes of the same row-major memory.


def loop_extents(result: TensorType, operands: Sequence[TensorType]) -> tuple[int, ...]:
    """Return the extents of the loops of a purely elementwise group: one loop, rows by channels, or the result's axes.

    One loop suffices if every operand has one element or the result's size. Rows by channels suffice if the other
    operands vary along the last axis only."""
    odd = [t for t in operands if t.size not in (1, result.size)]
    if not odd or not result.shape:  # if the result is a scalar, the odd operands are tables
        return (result.size,)
    if all(varies_along_last_axis(t, result) for t in odd):
        return (result.size // result.shape[-1], result.shape[-1])
    return result.shape


def varies_along_last_axis(tensor_type: TensorType, result: TensorType) -> bool:
    """Test whether an operand varies along the last axis of the result only."""
    return bool(tensor_type.shape) and tensor_type.size == tensor_type.shape[-1] == result.shape[-1]


def convert_index_to_shape(
    index_shape: tuple[int, ...], target_shape: tuple[int, ...], index: tuple[ir.Expr, ...]
) -> tuple[ir.Expr, ...]:
    """Convert an index in ``index_shape`` to the index of the same element in ``target_shape``, both row-major."""
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


# ---- A fusion group for some rows of its result, which striped layers compute row by row.
#
# That is possible if the anchor declares which rows it reads (``OpDef.window``) and all other operands are constant along the
# height or have the result's shape. Tensors are (1, height, width, channels).


def row_window(graph: Graph, nodes: Sequence[Node], data_name: str) -> Window | None:
    """Return the window of rows of ``data_name`` that one row of the group's result needs.

    Return None if the group cannot be computed row by row. It can if:

    - data and result are images of one batch, and all other values of the group have the result's shape;
    - the group reads ``data_name`` once, and constants of elementwise nodes are the same for all rows;
    - the anchor is elementwise and reads data of the result's shape; or it reads ``data_name`` first and constants
    besides, and its window has no padding, or padding of a known value."""
    result = graph.types[nodes[-1].outputs[0]]
    values = [
        data_name,
        *(name for node in nodes for name in node.outputs if name),
        *row_companion_inputs(graph, nodes, data_name),
    ]
    if any(graph.types[v].shape != result.shape for v in values[1:]) or not (
        _is_image(graph.types[data_name]) and _is_image(result)
    ):
        return None
    # A second reader of data would need other rows of it than the window's.
    if sum(node.inputs.count(data_name) for node in nodes) != 1 or not _constants_equal_in_all_rows(graph, nodes):
        return None
    first, definition = nodes[0], registry.get(nodes[0].op)
    if definition.elementwise:
        return Window() if graph.types[data_name].shape == result.shape else None
    constant = all(v in graph.consts for v in first.inputs[1:] if v)
    if definition.window is None or first.inputs[0] != data_name or not constant:
        return None
    window = definition.window(first.attrs, [graph.types[v] for v in first.inputs if v])
    return None if window is None or (window.pad_value is None and any(window.padding)) else window


def row_companion_inputs(graph: Graph, nodes: Sequence[Node], data_name: str) -> tuple[str, ...]:
    """Return the names of the values that a group reads besides ``data_name`` and constants.

    For a row of its result the group reads the same row of them."""
    computed = {name for node in nodes for name in node.outputs}
    read = dict.fromkeys(v for node in nodes for v in node.inputs if v)
    return tuple(v for v in read if v != data_name and v not in computed and v not in graph.consts)


def build_row_group(
    graph: Graph, nodes: Sequence[Node], data_name: str, window: Window, row_count: int
) -> tuple[Graph, tuple[Node, ...]]:
    """Build a graph of the group alone that computes ``row_count`` rows of its result.

    Its input ``data_name`` is the window of rows that these need. Return the graph and its nodes."""
    result, types = graph.types[nodes[-1].outputs[0]], dict(graph.types)
    beside = row_companion_inputs(graph, nodes, data_name)
    for name in (*beside, *(name for node in nodes for name in node.outputs if name)):
        types[name] = replace(types[name], shape=(1, row_count, *result.shape[2:]))
    types[data_name] = replace(
        types[data_name], shape=(1, (row_count - 1) * window.strides[0] + window.reach(0), *types[data_name].shape[2:])
    )
    first = nodes[0]
    if "padding" in first.attrs:
        _, left, _, right = window.padding
        # The caller provides rows above and below; columns are padded here.
        first = replace(first, attrs={**first.attrs, "padding": (0, left, 0, right)})
    alone = replace(graph, inputs=(data_name, *beside), outputs=nodes[-1].outputs, types=types, state={}, updates={})
    members = (first, *nodes[1:])
    return alone.with_nodes(members), members


def _constants_equal_in_all_rows(graph: Graph, nodes: Sequence[Node]) -> bool:
    """Test whether no constant of an elementwise node varies along height and width."""
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
    """Test for the shape (1, height, width, channels)."""
    return len(tensor_type.shape) == 4 and tensor_type.shape[0] == 1


# ---- Lowering of a fusion group: the anchor's tensor expression, then the elementwise chain as a single stage ``out``.
#
# The anchor may compute in another shape of the same row-major memory than the graph's (a convolution computes a matrix of pixels
# by channels). Elementwise operators then run over the anchor's shape; their operands broadcast as in the graph.

_LETTERS = ("x", "y", "z", "u", "v")


@frozen
class Param:
    """Binding of a kernel parameter: a graph value, or a constant packed for the kernel (``array``).

    ``role``: name of the operand in the operator's definition."""

    role: str
    value: str
    array: Array | None = None


@frozen
class LoweredGroup:
    """A fusion group lowered to a kernel before scheduling. ``params`` correspond to ``func.params``.

    ``tensors``: the kernel's tensor expressions. ``consts``: the constant tensors that they read. ``tables``: names of
    constants whose numbers may become indices, because operators bound them (``OpDef.constants``) or computed them
    (``Operand.packed``)."""

    func: ir.PrimFunc
    params: tuple[Param, ...]
    outputs: tuple[str, ...]
    anchor: Node
    macs: int
    tensors: tuple[te.Tensor, ...]
    consts: tuple[te.Tensor, ...]
    tables: frozenset[str] = frozenset()

    @property
    def algorithm(self) -> str:
        """Name of the operator's algorithm; ``direct`` is its definition without an algorithm."""
        return str(self.anchor.attrs.get("algorithm") or "direct")

    @property
    def text(self) -> str:
        """The tensor expressions as text."""
        return te.to_text(self.tensors, self.consts)


class _GroupLowering:
    """Collects the placeholders and parameters of a fusion group while it is lowered."""

    def __init__(self, graph: Graph, nodes: Sequence[Node]) -> None:
        self.graph, self.nodes = graph, nodes
        self.tensors: dict[str, te.Tensor] = {}
        self.params: list[tuple[te.Tensor, Param]] = []
        self.cache: dict[tuple[str, tuple[int, ...]], te.Tensor] = {}
        self.names: set[str] = {"out", "acc", "patch", "padded"}
        self.tables: set[str] = set()

    def fresh(self, name_stem: str) -> str:
        name, number = name_stem, 1
        while name in self.names:
            name, number = f"{name_stem}{number}", number + 1
        self.names.add(name)
        return name

    def placeholder(self, value_name: str, parameter_name: str, shape: tuple[int, ...]) -> te.Tensor:
        """Return the placeholder, of shape ``shape``, of a value that the group reads.

        The shape may differ from the value's, but has as many elements."""
        tensor_type = self.graph.types[value_name]
        if prod(shape) != tensor_type.size:
            raise InternalError(f"{value_name} {tensor_type.shape} cannot be viewed as {shape}: sizes differ")
        if (value_name, shape) not in self.cache:
            tensor = te.placeholder(shape, tensor_type.dtype, self.fresh(parameter_name))
            self.cache[value_name, shape] = tensor
            self.params.append((tensor, Param(parameter_name, value_name, self.graph.consts.get(value_name))))
        return self.cache[value_name, shape]

    def packed(self, value: str, role: str, array: Array, table: bool) -> te.Tensor:
        """Add a kernel parameter for the constant ``array``, computed from ``value``; return its placeholder.

        ``table``: its numbers may become indices."""
        tensor = te.placeholder(array.shape, str(array.dtype), self.fresh(role))
        if table:
            self.tables.add(tensor.name)
        self.params.append((tensor, Param(role, value, array)))
        return tensor

    def operand(self, value_name: str, parameter_name: str) -> Operand:
        """Return an operand of the anchor as its ``compute`` function receives it."""
        tensor_type = self.graph.types[value_name]

        def tensor(shape: tuple[int, ...] | None = None) -> te.Tensor:
            wanted = tensor_type.shape if shape is None else tuple(shape)
            if value_name in self.tensors:
                made = self.tensors[value_name]
                if made.shape != wanted:
                    raise InternalError(f"{value_name} is computed as {made.shape} and cannot be viewed as {wanted}")
                return made
            return self.placeholder(value_name, parameter_name, wanted)

        def packed(array: Array, *, table: bool = False) -> te.Tensor:
            return self.packed(value_name, parameter_name, array, table)

        return Operand(tensor_type, self.graph.consts.get(value_name), tensor, packed)

    def roles(self, node: Node) -> list[str]:
        """Return the kernel's parameter names of a node's operands: those that the operator defines, or letters."""
        given = registry.get(node.op).operand_names
        return [given[k] if k < len(given) else _LETTERS[k % len(_LETTERS)] for k in range(len(node.inputs))]


def lower_group(graph: Graph, nodes: Sequence[Node], multiples: Multiples, kernel_name: str) -> LoweredGroup:
    """Lower the nodes of one fusion group to a kernel.

    The first node is the anchor, the others are elementwise and follow in order."""
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
                raise InternalError(f"{first.op} with several outputs cannot be fused", where=str(first.loc))
            outputs = (_build_elementwise(group, rest[1:], anchor_tensors[0], first.outputs[0]),)
            names = (nodes[-1].outputs[0],)
        else:
            outputs = tuple(_store_sums(t) for t in anchor_tensors)
    return _create_kernel(group, kernel_name, outputs, names, sum(node_macs(graph, node) for node in nodes))


def _create_kernel(
    group: _GroupLowering, kernel_name: str, outputs: tuple[te.Tensor, ...], output_names: tuple[str, ...], macs: int
) -> LoweredGroup:
    """Create the kernel that computes ``outputs``, the values ``output_names``; constants are its last parameters."""
    inputs, consts = (
        [pair for pair in group.params if (pair[1].array is not None) == known] for known in (False, True)
    )
    tensors, stored = [t for t, _ in inputs], tuple(t for t, _ in consts)
    func = te.create_prim_func(kernel_name, tensors, outputs, stored)
    params = tuple(p for _, p in (*inputs, *consts))
    return LoweredGroup(func, params, output_names, group.nodes[0], macs, outputs, stored, _table_names(group))


def _table_names(group: _GroupLowering) -> frozenset[str]:
    """Return the names of the constants whose numbers may become indices, since they are known to be within bounds."""
    bounded = {value for node in group.nodes for value in registry.bounded_operands(node, group.graph)}
    consts = group.graph.consts
    declared = (t.name for t, p in group.params if p.value in bounded and p.array is consts.get(p.value))
    return frozenset((*declared, *group.tables))


def lower_algorithms(
    graph: Graph,
    nodes: Sequence[Node],
    multiples: Multiples,
    kernel_name: str,
    suits_core: Callable[[str], bool],
    select_unbeaten: Callable[[Sequence[str]], Sequence[str]],
) -> tuple[LoweredGroup, ...]:
    """Lower the group by :func:`lower_group`, once for every algorithm that is worth comparing.

    These are the algorithms that are valid for the anchor and for which ``suits_core`` is true; of these
    ``select_unbeaten`` returns the ones to lower."""
    first, *rest = nodes
    algorithms = registry.get(first.op).algorithms
    if not algorithms or first.attrs.get("algorithm"):
        return (lower_group(graph, nodes, multiples, kernel_name),)
    call = _build_call(_GroupLowering(graph, nodes), first)
    names = ("direct", *(algorithm for algorithm, valid in algorithms.items() if suits_core(algorithm) and valid(call)))
    anchors = [replace(first, attrs={**first.attrs, "algorithm": algorithm}) for algorithm in select_unbeaten(names)]
    return tuple(lower_group(graph, (anchor, *rest), multiples, kernel_name) for anchor in anchors)


def lower_update(graph: Graph, node: Node, kernel_name: str) -> LoweredGroup:
    """Lower a node to the kernel that changes a part of its first operand in place (``OpDef.update``)."""
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
    """Build the :class:`OpCall` of an anchor on operands of the group."""
    roles = group.roles(node)
    operands = tuple(group.operand(v, r) if v else None for v, r in zip(node.inputs, roles, strict=True))
    return OpCall(node.attrs, operands, tuple(group.graph.types[o] for o in node.outputs if o), multiples)


def _compute_anchor(group: _GroupLowering, node: Node, multiples: Multiples) -> tuple[te.Tensor, ...]:
    """Return the result tensors of the anchor, built by the ``compute`` function of its operator."""
    definition = registry.get(node.op)
    if definition.compute is None:
        raise InternalError(f"operator {node.op} has no tensor expression", where=str(node.loc))
    made = definition.compute(_build_call(group, node, multiples))
    return made if isinstance(made, tuple) else (made,)


def _store_sums(tensor: te.Tensor) -> te.Tensor:
    """Append a copy ``out`` to a tensor of sums: schedules then accumulate sums in registers and store each once."""
    if not isinstance(tensor.definition, ComputeDef) or not (tensor.name == SCALED or _is_sum(tensor.definition.body)):
        return tensor
    return te.compute(tensor.shape, lambda *i: tensor[i], OUT, tuple(v.name for v in tensor.definition.axes))


def _is_sum(body: ir.Expr) -> bool:
    """Test whether an element is a sum, or is read from a tensor named ``acc``."""
    return isinstance(body, Reduce) or (isinstance(body, TensorRead) and body.tensor.name == ACC)


def _build_elementwise(
    group: _GroupLowering, nodes: Sequence[Node], anchor_tensor: te.Tensor | None, anchor_value: str
) -> te.Tensor:
    """Build one stage ``out`` that applies the elementwise nodes in order.

    ``anchor_tensor``: the anchor's result, which is the graph's value ``anchor_value``; None if there is no anchor."""
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
        shape, axes = loop_extents(result, [graph.types[v] for v in outside]), None

    def element(*index: ir.Expr) -> ir.Expr:
        values: dict[str, ir.Expr] = {}
        if anchor_tensor is not None:
            values[anchor_value] = anchor_tensor[index]
        for node in nodes:
            values[node.outputs[0]] = _apply_node(group, node, values, shape, result, index)
        return values[nodes[-1].outputs[0]]

    notes = (*_bound_note(nodes[0]), *_magnitude_note(group)) if anchor_tensor is not None else _magnitude_note(group)
    return te.compute(shape, element, OUT, axes, notes)


def _bound_note(node: Node) -> tuple[tuple[str, int | str], ...]:
    """Return the bound of the anchor's values that a ``requantize`` behind it declares, as a note; empty without one."""
    bound = node.attrs.get("bound", -1) if node.op == "requantize" and not node.attrs.get("input_zero_point") else -1
    return ((BOUND, int(bound)),) if isinstance(bound, int) and bound >= 0 else ()


def _magnitude_note(group: _GroupLowering) -> tuple[tuple[str, int | str], ...]:
    """Return the largest magnitude of the group's float constants as a note, if all are finite."""
    arrays = (group.graph.consts.get(name) for node in group.nodes for name in node.inputs)
    ends = [float(np.abs(a).max(initial=0)) for a in arrays if a is not None and a.dtype.kind == "f"]
    return ((MAGNITUDE, ceil(max(ends, default=0.0))),) if np.isfinite(ends).all() else ()


def _apply_node(
    group: _GroupLowering,
    node: Node,
    computed_elements: Mapping[str, ir.Expr],
    index_shape: tuple[int, ...],
    result: TensorType,
    index: tuple[ir.Expr, ...],
) -> ir.Expr:
    """Return the element of an elementwise node's result at ``index`` of ``index_shape``.

    ``computed_elements``: elements of the values that earlier nodes of the group compute."""
    definition = registry.get(node.op)
    if definition.scalar is None:
        raise InternalError(f"{node.op} is not elementwise", where=str(node.loc))
    args: list[ir.Expr | te.Tensor] = []
    for position, (value, role) in enumerate(zip(node.inputs, group.roles(node), strict=True)):
        if not value:
            continue
        if value in computed_elements:
            args.append(computed_elements[value])
        elif position in definition.whole:
            args.append(group.placeholder(value, role, group.graph.types[value].shape))
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
    """Return the element of an operand that the group reads from memory, for the result's element at ``index``."""
    value_type = group.graph.types[value_name]
    if value_type.size == 1:
        array = group.graph.consts.get(value_name)
        if array is not None:
            return ir.const(array.reshape(-1)[0].item(), value_type.dtype)
        return group.placeholder(value_name, parameter_name, (1,))[0]
    if value_type.size == result.size:
        return group.placeholder(value_name, parameter_name, index_shape)[index]
    if varies_along_last_axis(value_type, result) and index_shape[-1] == value_type.size:
        return group.placeholder(value_name, parameter_name, (value_type.size,))[index[-1]]
    full = convert_index_to_shape(index_shape, result.shape, index)
    padded = (1,) * (len(result.shape) - len(value_type.shape)) + value_type.shape
    offset = len(result.shape) - len(value_type.shape)
    position = tuple(ir.const(0, "int32") if padded[a] == 1 else full[a] for a in range(offset, len(padded)))
    return group.placeholder(value_name, parameter_name, value_type.shape)[position]
