"""A fusion group becomes one function: extents, rows."""

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

# ---- The loops of elementwise work, and where its operands' elements are in them: shapes of one row-major memory.


def loop_extents(result: TensorType, operands: Sequence[TensorType]) -> tuple[int, ...]:
    """Loops for a purely elementwise group: one if all operands are alike, rows by channels, or the graph's own axes."""
    odd = [t for t in operands if t.size not in (1, result.size)]
    if not odd or not result.shape:  # of a scalar, tables are odd
        return (result.size,)
    if all(varies_last(t, result) for t in odd):
        return (result.size // result.shape[-1], result.shape[-1])
    return result.shape


def varies_last(kind: TensorType, result: TensorType) -> bool:
    """Whether an operand varies along the last axis only."""
    return bool(kind.shape) and kind.size == kind.shape[-1] == result.shape[-1]


def index_in(shape: tuple[int, ...], wanted: tuple[int, ...], index: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
    """The index in shape ``wanted`` of the element at ``index`` of ``shape`` (same row-major memory)."""
    if shape == wanted:
        return index
    flat: ir.Expr = ir.const(0, "int32")
    for i, extent in zip(index, shape, strict=True):
        flat = flat * extent + i
    found: list[ir.Expr] = []
    for extent in reversed(wanted):
        found.append(flat % extent)
        flat = flat // extent
    return tuple(simplify(e) for e in reversed(found))


# ---- A fusion group for some rows of its result: the graph that a layer that works row by row is lowered from.
#
# A group can work so when its anchor says which rows it reads (``OpDef.window``) and everything else that it reads is constant
# along the height, or has the result's own shape. Tensors are (1, height, width, channels).


def row_window(graph: Graph, nodes: Sequence[Node], data: str) -> Window | None:
    """Which rows of ``data`` a row of the group's result needs; None if the group cannot work row by row of it."""
    result = graph.types[nodes[-1].outputs[0]]
    values = [data, *(name for node in nodes for name in node.outputs if name), *companions(graph, nodes, data)]
    if any(graph.types[v].shape != result.shape for v in values[1:]) or not (
        _image(graph.types[data]) and _image(result)
    ):
        return None
    if sum(node.inputs.count(data) for node in nodes) != 1 or not _alike_in_every_row(graph, nodes):
        return None
    first, definition = nodes[0], registry.get(nodes[0].op)
    if definition.elementwise:
        return Window() if graph.types[data].shape == result.shape else None
    constant = all(v in graph.consts for v in first.inputs[1:] if v)
    if definition.window is None or first.inputs[0] != data or not constant:
        return None
    window = definition.window(first.attrs, [graph.types[v] for v in first.inputs if v])
    return None if window is None or (window.pad_value is None and any(window.padding)) else window


def companions(graph: Graph, nodes: Sequence[Node], data: str) -> tuple[str, ...]:
    """What a group reads beside ``data`` and constants: of these it takes the rows that it makes."""
    made = {name for node in nodes for name in node.outputs}
    read = dict.fromkeys(v for node in nodes for v in node.inputs if v)
    return tuple(v for v in read if v != data and v not in made and v not in graph.consts)


def row_group(
    graph: Graph, nodes: Sequence[Node], data: str, window: Window, rows: int
) -> tuple[Graph, tuple[Node, ...]]:
    """The group for ``rows`` rows of its result, alone in a graph: ``data`` is the window that they need."""
    result, types = graph.types[nodes[-1].outputs[0]], dict(graph.types)
    beside = companions(graph, nodes, data)
    for name in (*beside, *(name for node in nodes for name in node.outputs if name)):
        types[name] = replace(types[name], shape=(1, rows, *result.shape[2:]))
    types[data] = replace(
        types[data], shape=(1, (rows - 1) * window.strides[0] + window.reach(0), *types[data].shape[2:])
    )
    first = nodes[0]
    if "padding" in first.attrs:
        _, left, _, right = window.padding
        first = replace(first, attrs={**first.attrs, "padding": (0, left, 0, right)})
    alone = replace(graph, inputs=(data, *beside), outputs=nodes[-1].outputs, types=types, state={}, updates={})
    members = (first, *nodes[1:])
    return alone.with_nodes(members), members


def _alike_in_every_row(graph: Graph, nodes: Sequence[Node]) -> bool:
    """Whether the constants of elementwise nodes do not vary along height and width."""
    for node in nodes:
        definition, channels = registry.get(node.op), graph.types[node.outputs[0]].shape[-1]
        for position, name in enumerate(node.inputs):
            if not definition.elementwise or name not in graph.consts or position in definition.whole:
                continue
            kind = graph.types[name]
            if kind.size != 1 and not (kind.size == kind.shape[-1] == channels):
                return False
    return True


def _image(kind: TensorType) -> bool:
    return len(kind.shape) == 4 and kind.shape[0] == 1


# ---- A fusion group becomes one function: the anchor's tensor expression, then the elementwise chain as a single
# stage ``out``.
#
# The anchor may compute in another shape than the graph's (a convolution works on a matrix of pixels by channels); row-major
# memory is what counts. Elementwise operators then run over the anchor's shape, their operands broadcast as the graph says.

_LETTERS = ("x", "y", "z", "u", "v")


@frozen
class Param:
    """What a kernel parameter is bound to: a graph value, or a constant packed for the kernel (``array``)."""

    role: str
    value: str
    array: Array | None = None


@frozen
class LoweredGroup:
    """A kernel before scheduling. ``params`` follow ``func.params``.

    ``tensors``: the tensor expressions that it was made of, ``consts`` the constant ones that they read; ``tables``: names of
    those that may become indices, because operators declare their bounds (``OpDef.constants``) or made them (``Operand.packed``).
    """

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
        """Which of its operator's ways to compute it is; ``direct``: as it is written."""
        return str(self.anchor.attrs.get("algorithm") or "direct")

    @property
    def text(self) -> str:
        """The tensor expressions, for people."""
        return te.to_text(self.tensors, self.consts)


class _Group:
    """Collects placeholders while a group is lowered."""

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
        """The tensor that reads an outside value, under a shape of as many elements."""
        kind = self.graph.types[value]
        if prod(shape) != kind.size:
            raise InternalError(f"{value} of shape {kind.shape} viewed as {shape}")
        if (value, shape) not in self.cache:
            tensor = te.placeholder(shape, kind.dtype, self.fresh(role))
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
        """An operand of the anchor."""
        kind = self.graph.types[value]

        def tensor(shape: tuple[int, ...] | None = None) -> te.Tensor:
            wanted = kind.shape if shape is None else tuple(shape)
            if value in self.tensors:
                made = self.tensors[value]
                if made.shape != wanted:
                    raise InternalError(f"{value} is computed as {made.shape}, wanted as {wanted}")
                return made
            return self.placeholder(value, role, wanted)

        def packed(array: Array, *, table: bool = False) -> te.Tensor:
            return self.packed(value, role, array, table)

        return Operand(kind, self.graph.consts.get(value), tensor, packed)

    def roles(self, node: Node) -> list[str]:
        """Parameter names for a node's operands: what the operator calls them, or letters."""
        given = registry.get(node.op).operand_names
        return [given[k] if k < len(given) else _LETTERS[k % len(_LETTERS)] for k in range(len(node.inputs))]


def lower_group(graph: Graph, nodes: Sequence[Node], multiples: Multiples, name: str) -> LoweredGroup:
    """Lower the nodes of one group (in order; the first is the anchor, the rest elementwise)."""
    group = _Group(graph, nodes)
    first, rest = nodes[0], list(nodes)
    if registry.get(first.op).elementwise:
        outputs: tuple[te.Tensor, ...] = (_elementwise(group, rest, None, first.outputs[0]),)
        names: tuple[str, ...] = (nodes[-1].outputs[0],)
    else:
        made = _anchor(group, first, multiples)
        names = tuple(o for o in first.outputs if o)
        if len(rest) > 1:
            if len(made) != 1:
                raise InternalError(f"{first.op} has several outputs and cannot be fused", where=str(first.loc))
            outputs = (_elementwise(group, rest[1:], made[0], first.outputs[0]),)
            names = (nodes[-1].outputs[0],)
        else:
            outputs = tuple(_stored(t) for t in made)
    return _finished(group, name, outputs, names, sum(macs_of(graph, node) for node in nodes))


def _finished(
    group: _Group, name: str, outputs: tuple[te.Tensor, ...], names: tuple[str, ...], macs: int
) -> LoweredGroup:
    """The kernel that makes ``outputs``; constants come last among its parameters."""
    inputs, consts = (
        [pair for pair in group.params if (pair[1].array is not None) == known] for known in (False, True)
    )
    tensors, stored = [t for t, _ in inputs], tuple(t for t, _ in consts)
    func = te.create_prim_func(name, tensors, outputs, stored)
    params = tuple(p for _, p in (*inputs, *consts))
    return LoweredGroup(func, params, names, group.nodes[0], macs, outputs, stored, _tables(group))


def _tables(group: _Group) -> frozenset[str]:
    """Names of the constants whose numbers are known to be in bounds."""
    judged = {value for node in group.nodes for value in registry.judged(node, group.graph)}
    consts = group.graph.consts
    declared = (t.name for t, p in group.params if p.value in judged and p.array is consts.get(p.value))
    return frozenset((*declared, *group.tables))


def lower_algorithms(
    graph: Graph,
    nodes: Sequence[Node],
    multiples: Multiples,
    name: str,
    suits: Callable[[str], bool],
    unbeaten: Callable[[Sequence[str]], Sequence[str]],
) -> tuple[LoweredGroup, ...]:
    """The group as :func:`lower_group` makes it, once for every algorithm that is valid for its anchor, ``suits`` the core and is
    ``unbeaten`` by another one."""
    first, *rest = nodes
    known = registry.get(first.op).algorithms
    if not known or first.attrs.get("algorithm"):
        return (lower_group(graph, nodes, multiples, name),)
    call = _call(_Group(graph, nodes), first)
    found = ("direct", *(algorithm for algorithm, valid in known.items() if suits(algorithm) and valid(call)))
    anchors = [replace(first, attrs={**first.attrs, "algorithm": algorithm}) for algorithm in unbeaten(found)]
    return tuple(lower_group(graph, (anchor, *rest), multiples, name) for anchor in anchors)


def lower_update(graph: Graph, node: Node, name: str) -> LoweredGroup:
    """The kernel that changes a part of a node's first operand where it lies (``OpDef.update``)."""
    update = registry.get(node.op).update
    if update is None:
        raise InternalError(f"operator {node.op} changes nothing in place", where=str(node.loc))
    group = _Group(graph, (node,))
    return _finished(group, name, (update(_call(group, node)),), node.outputs, 0)


def macs_of(graph: Graph, node: Node) -> int:
    """Multiply-accumulates of a node."""
    count = registry.get(node.op).macs
    if count is None:
        return 0
    ins = [graph.types[i] for i in node.inputs if i]
    return count(node.attrs, ins, [graph.types[o] for o in node.outputs if o])


def _call(group: _Group, node: Node, multiples: Multiples = ONES) -> OpCall:
    """The application of an anchor to operands of the group."""
    roles = group.roles(node)
    operands = tuple(group.operand(v, r) if v else None for v, r in zip(node.inputs, roles, strict=True))
    return OpCall(node.attrs, operands, tuple(group.graph.types[o] for o in node.outputs if o), multiples)


def _anchor(group: _Group, node: Node, multiples: Multiples) -> tuple[te.Tensor, ...]:
    definition = registry.get(node.op)
    if definition.compute is None:
        raise InternalError(f"operator {node.op} has no tensor expression", where=str(node.loc))
    made = definition.compute(_call(group, node, multiples))
    return made if isinstance(made, tuple) else (made,)


def _stored(tensor: te.Tensor) -> te.Tensor:
    """A reduction, as it is, a part of it, or scaled, accumulates somewhere else (registers, after scheduling) and stores its
    result once."""
    if not isinstance(tensor.definition, ComputeDef) or not (tensor.name == SCALED or _is_sum(tensor.definition.body)):
        return tensor
    return te.compute(tensor.shape, lambda *i: tensor[i], OUT, tuple(v.name for v in tensor.definition.axes))


def _is_sum(body: ir.Expr) -> bool:
    """Whether an element is a sum, or one of a tensor ``acc``."""
    return isinstance(body, Reduce) or (isinstance(body, TensorRead) and body.tensor.name == ACC)


def _elementwise(group: _Group, nodes: Sequence[Node], base: te.Tensor | None, start: str) -> te.Tensor:
    """One stage ``out`` that applies the nodes in order; ``base`` is the anchor's tensor, for value ``start``."""
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
            values[node.outputs[0]] = _apply(group, node, values, shape, result, index)
        return values[nodes[-1].outputs[0]]

    notes = (*_bound(nodes[0]), *_magnitude(group)) if base is not None else _magnitude(group)
    return te.compute(shape, element, OUT, axes, notes)


def _bound(node: Node) -> tuple[tuple[str, int | str], ...]:
    """What the node behind an anchor promises about the anchor's values: their largest magnitude, as a note."""
    bound = node.attrs.get("bound", -1) if node.op == "requantize" and not node.attrs.get("input_zero_point") else -1
    return ((BOUND, int(bound)),) if isinstance(bound, int) and bound >= 0 else ()


def _magnitude(group: _Group) -> tuple[tuple[str, int | str], ...]:
    """What a schedule may know of the group's float constants: the largest magnitude, where all are finite, as a note."""
    arrays = (group.graph.consts.get(name) for node in group.nodes for name in node.inputs)
    ends = [float(np.abs(a).max(initial=0)) for a in arrays if a is not None and a.dtype.kind == "f"]
    return ((MAGNITUDE, ceil(max(ends, default=0.0))),) if np.isfinite(ends).all() else ()


def _apply(
    group: _Group,
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
            args.append(_element(group, value, role, shape, result, index))
    return definition.scalar(node.attrs, args)  # type: ignore[arg-type]


def _element(
    group: _Group, value: str, role: str, shape: tuple[int, ...], result: TensorType, index: tuple[ir.Expr, ...]
) -> ir.Expr:
    """One element of an outside operand for the output element at ``index`` of ``shape``."""
    kind = group.graph.types[value]
    if kind.size == 1:
        array = group.graph.consts.get(value)
        if array is not None:
            return ir.const(array.reshape(-1)[0].item(), kind.dtype)
        return group.placeholder(value, role, (1,))[0]
    if kind.size == result.size:
        return group.placeholder(value, role, shape)[index]
    if varies_last(kind, result) and shape[-1] == kind.size:
        return group.placeholder(value, role, (kind.size,))[index[-1]]
    full = index_in(shape, result.shape, index)
    padded = (1,) * (len(result.shape) - len(kind.shape)) + kind.shape
    offset = len(result.shape) - len(kind.shape)
    where = tuple(ir.const(0, "int32") if padded[a] == 1 else full[a] for a in range(offset, len(padded)))
    return group.placeholder(value, role, kind.shape)[where]
