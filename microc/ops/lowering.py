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
    """Return the extents of the loops of a purely elementwise group: one loop, rows by channels, or the graph's own axes.

    One loop suffices if every operand has one element or the result's size; rows by channels if the others vary along
    the last axis only."""
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
    shape: tuple[int, ...], wanted: tuple[int, ...], index: tuple[ir.Expr, ...]
) -> tuple[ir.Expr, ...]:
    """Convert the index of an element in ``shape`` to its index in shape ``wanted`` of the same row-major memory."""
    if shape == wanted:
        return index
    flat: ir.Expr = ir.const(0, "int32")
    for i, extent in zip(index, shape, strict=True):
        flat = flat * extent + i
    indices: list[ir.Expr] = []
    for extent in reversed(wanted):
        indices.append(flat % extent)
        flat = flat // extent
    return tuple(simplify(e) for e in reversed(indices))


# ---- A fusion group for some rows of its result, which striped layers compute row by row.
#
# That is possible if the anchor declares which rows it reads (``OpDef.window``) and all other operands are constant along the
# height or have the result's shape. Tensors are (1, height, width, channels).


def row_window(graph: Graph, nodes: Sequence[Node], data: str) -> Window | None:
    """Return the window of rows of ``data`` that a row of the group's result needs; None if it cannot be computed row by row.

    These conditions must hold:

    - data and result are images of one batch, and all other values of the group have the result's shape;
    - the group reads ``data`` once, and constants of elementwise nodes are the same for all rows;
    - an elementwise anchor reads data of the result's shape; another anchor reads ``data`` first and constants besides, and its
      window has no padding, or padding of a known value.
    """
    result = graph.types[nodes[-1].outputs[0]]
    values = [data, *(name for node in nodes for name in node.outputs if name), *companion_inputs(graph, nodes, data)]
    if any(graph.types[v].shape != result.shape for v in values[1:]) or not (
        _is_image(graph.types[data]) and _is_image(result)
    ):
        return None
    # A second reader of data would need other rows of it than the window's.
    if sum(node.inputs.count(data) for node in nodes) != 1 or not _constants_equal_in_all_rows(graph, nodes):
        return None
    first, definition = nodes[0], registry.get(nodes[0].op)
    if definition.elementwise:
        return Window() if graph.types[data].shape == result.shape else None
    constant = all(v in graph.consts for v in first.inputs[1:] if v)
    if definition.window is None or first.inputs[0] != data or not constant:
        return None
    window = definition.window(first.attrs, [graph.types[v] for v in first.inputs if v])
    return None if window is None or (window.pad_value is None and any(window.padding)) else window


def companion_inputs(graph: Graph, nodes: Sequence[Node], data: str) -> tuple[str, ...]:
    """Return the names of the values that a group reads besides ``data`` and constants.

    For a row of its result the group reads the same row of them."""
    computed = {name for node in nodes for name in node.outputs}
    read = dict.fromkeys(v for node in nodes for v in node.inputs if v)
    return tuple(v for v in read if v != data and v not in computed and v not in graph.consts)


def build_row_group(
    graph: Graph, nodes: Sequence[Node], data: str, window: Window, rows: int
) -> tuple[Graph, tuple[Node, ...]]:
    """Build a graph that consists of the group alone and computes ``rows`` rows of its result.

    Its input ``data`` is the window of rows that these need. Return the graph and its nodes."""
    result, types = graph.types[nodes[-1].outputs[0]], dict(graph.types)
    beside = companion_inputs(graph, nodes, data)
    for name in (*beside, *(name for node in nodes for name in node.outputs if name)):
        types[name] = replace(types[name], shape=(1, rows, *result.shape[2:]))
    types[data] = replace(
        types[data], shape=(1, (rows - 1) * window.strides[0] + window.reach(0), *types[data].shape[2:])
    )
    first = nodes[0]
    if "padding" in first.attrs:
        _, left, _, right = window.padding
        # The caller provides rows above and below; columns are padded here.
        first = replace(first, attrs={**first.attrs, "padding": (0, left, 0, right)})
    alone = replace(graph, inputs=(data, *beside), outputs=nodes[-1].outputs, types=types, state={}, updates={})
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

    ``role``: the operator's name of the operand."""

    role: str
    value: str
    array: Array | None = None


@frozen
class LoweredGroup:
    """A fusion group lowered to a kernel before scheduling. ``params`` correspond to ``func.params``.

    ``tensors``: its tensor expressions. ``consts``: the constant ones that they read. ``tables``: names of constants
    whose numbers may become indices, because operators bound them (``OpDef.constants``) or computed them
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
        """Name of the operator's algorithm; ``direct`` is its plain definition."""
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

    def fresh(self, stem: str) -> str:
        name, number = stem, 1
        while name in self.names:
            name, number = f"{stem}{number}", number + 1
        self.names.add(name)
        return name

    def placeholder(self, value: str, role: str, shape: tuple[int, ...]) -> te.Tensor:
        """Return the placeholder of a value from outside the group, viewed in a shape with the same number of elements."""
        tensor_type = self.graph.types[value]
        if prod(shape) != tensor_type.size:
            raise InternalError(f"{value} of shape {tensor_type.shape} viewed as {shape}")
        if (value, shape) not in self.cache:
            tensor = te.placeholder(shape, tensor_type.dtype, self.fresh(role))
            self.cache[value, shape] = tensor
            self.params.append((tensor, Param(role, value, self.graph.consts.get(value))))
        return self.cache[value, shape]

    def packed(self, value: str, role: str, array: Array, table: bool) -> te.Tensor:
        tensor = te.placeholder(array.shape, str(array.dtype), self.fresh(role))
        if table:
            self.tables.add(tensor.name)
        self.params.append((tensor, Param(role, value, array)))
        return tensor

    def operand(self, value: str, role: str) -> Operand:
        """Return an operand of the anchor."""
        tensor_type = self.graph.types[value]

        def tensor(shape: tuple[int, ...] | None = None) -> te.Tensor:
            wanted = tensor_type.shape if shape is None else tuple(shape)
            if value in self.tensors:
                made = self.tensors[value]
                if made.shape != wanted:
                    raise InternalError(f"{value} is computed as {made.shape}, wanted as {wanted}")
                return made
            return self.placeholder(value, role, wanted)

        def packed(array: Array, *, table: bool = False) -> te.Tensor:
            return self.packed(value, role, array, table)

        return Operand(tensor_type, self.graph.consts.get(value), tensor, packed)

    def roles(self, node: Node) -> list[str]:
        """Return parameter names of a node's operands: the operator's own, or letters."""
        given = registry.get(node.op).operand_names
        return [given[k] if k < len(given) else _LETTERS[k % len(_LETTERS)] for k in range(len(node.inputs))]


def lower_group(graph: Graph, nodes: Sequence[Node], multiples: Multiples, name: str) -> LoweredGroup:
    """Lower the nodes of one group (in order; the first is the anchor, the rest elementwise)."""
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
                raise InternalError(f"{first.op} has several outputs and cannot be fused", where=str(first.loc))
            outputs = (_build_elementwise(group, rest[1:], anchor_tensors[0], first.outputs[0]),)
            names = (nodes[-1].outputs[0],)
        else:
            outputs = tuple(_store_sums(t) for t in anchor_tensors)
    return _create_kernel(group, name, outputs, names, sum(node_macs(graph, node) for node in nodes))


def _create_kernel(
    group: _GroupLowering, name: str, outputs: tuple[te.Tensor, ...], names: tuple[str, ...], macs: int
) -> LoweredGroup:
    """Create the kernel that computes the tensors ``outputs``, values ``names``; constants are its last parameters."""
    inputs, consts = (
        [pair for pair in group.params if (pair[1].array is not None) == known] for known in (False, True)
    )
    tensors, stored = [t for t, _ in inputs], tuple(t for t, _ in consts)
    func = te.create_prim_func(name, tensors, outputs, stored)
    params = tuple(p for _, p in (*inputs, *consts))
    return LoweredGroup(func, params, names, group.nodes[0], macs, outputs, stored, _table_names(group))


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
    name: str,
    suits: Callable[[str], bool],
    unbeaten: Callable[[Sequence[str]], Sequence[str]],
) -> tuple[LoweredGroup, ...]:
    """Lower the group (:func:`lower_group`) once for every algorithm that is worth comparing.

    These are the algorithms that are valid for the anchor, for which ``suits`` returns True for the core, and that
    ``unbeaten`` selects among them."""
    first, *rest = nodes
    algorithms = registry.get(first.op).algorithms
    if not algorithms or first.attrs.get("algorithm"):
        return (lower_group(graph, nodes, multiples, name),)
    call = _build_call(_GroupLowering(graph, nodes), first)
    names = ("direct", *(algorithm for algorithm, valid in algorithms.items() if suits(algorithm) and valid(call)))
    anchors = [replace(first, attrs={**first.attrs, "algorithm": algorithm}) for algorithm in unbeaten(names)]
    return tuple(lower_group(graph, (anchor, *rest), multiples, name) for anchor in anchors)


def lower_update(graph: Graph, node: Node, name: str) -> LoweredGroup:
    """Lower the kernel that changes a part of a node's first operand in place (``OpDef.update``)."""
    update = registry.get(node.op).update
    if update is None:
        raise InternalError(f"operator {node.op} changes nothing in place", where=str(node.loc))
    group = _GroupLowering(graph, (node,))
    return _create_kernel(group, name, (update(_build_call(group, node)),), node.outputs, 0)


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
    """Return the tensors that the ``compute`` function of the anchor's operator builds."""
    definition = registry.get(node.op)
    if definition.compute is None:
        raise InternalError(f"operator {node.op} has no tensor expression", where=str(node.loc))
    made = definition.compute(_build_call(group, node, multiples))
    return made if isinstance(made, tuple) else (made,)


def _store_sums(tensor: te.Tensor) -> te.Tensor:
    """Append a stage ``out`` to a tensor of sums, so that schedules accumulate these in registers and store them once."""
    if not isinstance(tensor.definition, ComputeDef) or not (tensor.name == SCALED or _is_sum(tensor.definition.body)):
        return tensor
    return te.compute(tensor.shape, lambda *i: tensor[i], OUT, tuple(v.name for v in tensor.definition.axes))


def _is_sum(body: ir.Expr) -> bool:
    """Test whether an element is a sum, or is read from a tensor ``acc``."""
    return isinstance(body, Reduce) or (isinstance(body, TensorRead) and body.tensor.name == ACC)


def _build_elementwise(group: _GroupLowering, nodes: Sequence[Node], base: te.Tensor | None, start: str) -> te.Tensor:
    """Build one stage ``out`` that applies the nodes in order; ``base`` is the anchor's tensor, of value ``start``."""
    graph = group.graph
    result = graph.types[nodes[-1].outputs[0]]
    inner = {o for node in nodes for o in node.outputs} | ({start} if base is not None else set())
    outside = [v for node in nodes for v in node.inputs if v and v not in inner]
    if base is not None:
        shape = base.shape
        axes = tuple(v.name for v in base.definition.axes) if isinstance(base.definition, ComputeDef) else None
    else:
        shape, axes = loop_extents(result, [graph.types[v] for v in outside]), None

    def element(*index: ir.Expr) -> ir.Expr:
        values: dict[str, ir.Expr] = {}
        if base is not None:
            values[start] = base[index]
        for node in nodes:
            values[node.outputs[0]] = _apply_node(group, node, values, shape, result, index)
        return values[nodes[-1].outputs[0]]

    notes = (*_bound_note(nodes[0]), *_magnitude_note(group)) if base is not None else _magnitude_note(group)
    return te.compute(shape, element, OUT, axes, notes)


def _bound_note(node: Node) -> tuple[tuple[str, int | str], ...]:
    """Return, as a note, the bound of the anchor's values that a following ``requantize`` declares; empty if there is
    none."""
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
    values: Mapping[str, ir.Expr],
    shape: tuple[int, ...],
    result: TensorType,
    index: tuple[ir.Expr, ...],
) -> ir.Expr:
    definition = registry.get(node.op)
    if definition.scalar is None:
        raise InternalError(f"{node.op} is not elementwise", where=str(node.loc))
    args: list[ir.Expr | te.Tensor] = []
    for position, (value, role) in enumerate(zip(node.inputs, group.roles(node), strict=True)):
        if not value:
            continue
        if value in values:
            args.append(values[value])
        elif position in definition.whole:
            args.append(group.placeholder(value, role, group.graph.types[value].shape))
        else:
            args.append(_read_operand(group, value, role, shape, result, index))
    return definition.scalar(node.attrs, args)  # type: ignore[arg-type]


def _read_operand(
    group: _GroupLowering, value: str, role: str, shape: tuple[int, ...], result: TensorType, index: tuple[ir.Expr, ...]
) -> ir.Expr:
    """Return the element of an operand from outside the group for the result's element at ``index`` of ``shape``."""
    value_type = group.graph.types[value]
    if value_type.size == 1:
        array = group.graph.consts.get(value)
        if array is not None:
            return ir.const(array.reshape(-1)[0].item(), value_type.dtype)
        return group.placeholder(value, role, (1,))[0]
    if value_type.size == result.size:
        return group.placeholder(value, role, shape)[index]
    if varies_along_last_axis(value_type, result) and shape[-1] == value_type.size:
        return group.placeholder(value, role, (value_type.size,))[index[-1]]
    full = convert_index_to_shape(shape, result.shape, index)
    padded = (1,) * (len(result.shape) - len(value_type.shape)) + value_type.shape
    offset = len(result.shape) - len(value_type.shape)
    position = tuple(ir.const(0, "int32") if padded[a] == 1 else full[a] for a in range(offset, len(padded)))
    return group.placeholder(value, role, value_type.shape)[position]
