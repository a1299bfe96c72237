"""The operator registry: definitions of operators, relations of axes, padding of products."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from types import MappingProxyType
from typing import Any

from microc import te
from microc.base.dtypes import Array
from microc.base.immutable import Registry, frozen
from microc.errors import InternalError, ModelError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.ops.attributes import Attributes, attribute_error_message, default_attributes
from microc.ops.constants import Application, Constants, Sound
from microc.ops.constants import constant_error_message as fault_of_constants
from microc.tir.ir import Expr

# ---- Relations of the axes of results and operands (``OpDef.axes``, ``OpDef.window``).
#
# Passes that stream along an axis, drop indices of it or permute axes need to know: does index i of the result depend only on
# index i of the operand, and on all i in the same way? If so, the two axes are *one*.

Places = tuple[int | None, ...]
"""For each axis of an operand the axis of the result (of all results) that is one with it; None if there is none, because the
axis is reduced or sliced, or windows slide along it."""
AxisMap = tuple[Places | None, ...]
"""One entry for each operand; None: the operand is read as a whole. So are operands at the end that have no entry."""


@frozen
class Window:
    """Windows that slide along height and width of the first operand (N, H, W, C).

    Output (y, x) reads ``kernel`` elements, ``dilation`` apart, from ``(y, x) * strides - (top, left)`` on; ``padding`` is top,
    left, bottom, right. Elements outside have the value ``pad_value``; None: they are left out.
    """

    kernel: tuple[int, ...] = (1, 1)
    strides: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    pad_value: int | float | None = 0

    def reach(self, axis: int) -> int:
        """Return the extent of a window with its dilation, along height (axis 0) or width (axis 1)."""
        return (self.kernel[axis] - 1) * self.dilation[axis] + 1


def keep_axes(rank: int, changed_axes: Collection[int], keepdims: bool = True) -> Places:
    """Map each axis of ``rank`` to itself, except ``changed_axes`` (negative ones count from the end).

    Without ``keepdims`` the result lacks the changed axes."""
    lost = {axis % rank for axis in changed_axes}
    left = [axis for axis in range(rank) if keepdims or axis not in lost]
    return tuple(None if axis in lost else left.index(axis) for axis in range(rank))


def map_along_axis(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    """Map the axes of an operator that works along its attribute ``axis`` (default: the last) and keeps the rank."""
    return (keep_axes(len(types[0].shape), (attrs.get("axis", -1),)),)


def map_along_axes(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    """Map the axes of an operator along the attribute ``axes``, which are dropped unless ``keepdims``."""
    return (keep_axes(len(types[0].shape), attrs["axes"], attrs.get("keepdims", True)),)


def map_batch_axis(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    """Map the first axis of an operator that treats all elements of a batch alike, and no other."""
    return ((0, *(None,) * (len(types[0].shape) - 1)),)


def map_padding(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    """Map the axes of an operator that adds elements; axes to which the attribute ``padding`` adds some are not mapped."""
    return (tuple(None if any(pair) else axis for axis, pair in enumerate(attrs["padding"])),)


def map_broadcast(operand_type: TensorType, result_extents: Sequence[int], result_rank: int) -> Places:
    """Map an operand's axes to those of a result of ``result_rank`` axes, as numpy broadcasts.

    ``result_extents``: extents of the result's last axes."""
    first = result_rank - len(operand_type.shape)
    pairs = zip(operand_type.shape, result_extents[len(result_extents) - len(operand_type.shape) :], strict=True)
    return tuple(
        first + axis if extent == result_extent else None for axis, (extent, result_extent) in enumerate(pairs)
    )


def map_elementwise(
    attrs: Mapping[str, Any], types: Sequence[TensorType | None], whole_positions: Collection[int]
) -> AxisMap:
    """Map the axes of an elementwise operator; along the attribute ``axis``, if any, its parameters vary.

    ``whole_positions``: operands that are read as whole tensors, whose axes are not mapped."""
    shapes = [
        tensor_type.shape for k, tensor_type in enumerate(types) if tensor_type is not None and k not in whole_positions
    ]
    rank = max(map(len, shapes), default=0)
    aligned = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result = [max(extents, key=lambda extent: extent != 1) for extents in zip(*aligned, strict=True)]
    varies = attrs.get("axis")
    places = [
        None if tensor_type is None or k in whole_positions else map_broadcast(tensor_type, result, rank)
        for k, tensor_type in enumerate(types)
    ]
    return tuple(p and tuple(None if place == varies else place for place in p) for p in places)


def axis_after_reshape(old_shape: Sequence[int], new_shape: Sequence[int], old_axis: int) -> int | None:
    """Return the axis of ``new_shape`` to which a reshape maps ``old_axis`` of ``old_shape``; None if merged or split."""
    inner, behind, result_axis = prod(old_shape[old_axis + 1 :]), 1, None
    for place in range(len(new_shape) - 1, -1, -1):
        if (
            behind == inner
            and new_shape[place] == old_shape[old_axis]
            and (result_axis is None or old_shape[old_axis] == 1)
        ):
            result_axis = place
            if old_shape[old_axis] != 1 or place == old_axis:
                break
        behind *= new_shape[place]
    return result_axis


# ---- Padding of a product's rows and columns with zeros, for cores that multiply several elements in one instruction.

WORD = 4
"""Number of neighbours that such cores multiply together: the bytes of a word."""


@frozen
class Multiples:
    """Multiples to which a core's products are padded (:func:`microc.schedule.rules.rule.product_multiples`); none by
    default.

    - ``factors``: pairs of dtypes for which one instruction sums the products of :data:`WORD` neighbours.
    - ``partly``: True if matrices are multiplied in place even if their rows end within a word.
    - ``columns``: numbers of columns in a vector, the largest first."""

    factors: Set[tuple[str, str]] = frozenset()
    partly: bool = False
    columns: tuple[int, ...] = ()

    def terms(self, depth: int, *factors: str) -> int:
        """Return the number of terms of a sum of products: ``depth``, padded to whole words if the core multiplies such.

        ``factors``: the dtypes of both factors."""
        return -(-depth // WORD) * WORD if factors in self.factors else depth

    def units(self, unit_count: int) -> int:
        """Return ``unit_count``, padded to whole vectors.

        The width of the vectors is the smallest that holds all units, else the largest; it is not padded if a narrower
        width that divides ``unit_count`` needs no more vectors."""
        if not self.columns:
            return unit_count
        wide = next((n for n in reversed(self.columns) if n >= unit_count), self.columns[0])
        even = next((n for n in self.columns if unit_count % n == 0), 1)
        return -(-unit_count // wide) * wide if -(-unit_count // wide) < unit_count // even else unit_count


ONES = Multiples()
"""No padding."""


# ---- The operator registry: one :class:`OpDef` per operator.
#
# An operator has one of two forms. *Elementwise* operators define ``scalar``: one output element from one element of every input,
# with operands broadcast as in numpy; fusion and loops are added by the lowering. All others define ``compute``: a tensor
# expression over their operands.


@dataclass(frozen=True)
class Operand:
    """One operand as ``compute`` receives it: its graph type, its data if constant, and functions that return tensors.

    ``tensor(shape)`` is the value, viewed with another shape of as many elements if one is given (the row-major memory
    is the same). ``packed(array)`` is a constant that the operator computes from ``data`` at compile time, in any
    layout; ``packed(array, table=True)`` one whose numbers the operator bounds, so that they may become indices."""

    type: TensorType
    data: Array | None
    tensor: Callable[..., te.Tensor]
    packed: Callable[..., te.Tensor]


@dataclass(frozen=True)
class OpCall:
    """Node as its operator's ``compute`` receives it at lowering. ``multiples``: padding of products for the core."""

    attrs: Mapping[str, Any]
    operands: tuple[Operand | None, ...]
    out_types: tuple[TensorType, ...]
    multiples: Multiples = ONES

    @property
    def present(self) -> tuple[Operand, ...]:
        """The operands without optional ones that are absent."""
        return tuple(operand for operand in self.operands if operand is not None)

    @property
    def data(self) -> Operand:
        """The first operand, which is never absent."""
        return self.present[0]

    @property
    def weighted(self) -> tuple[Operand, Operand, Operand | None]:
        """Data, weights and bias of a layer; the bias is None if it has none."""
        data, weight, bias = (*self.operands, None)[:3]
        assert data is not None and weight is not None
        return data, weight, bias

    @property
    def constant(self) -> bool:
        """True if all operands but the data are constant."""
        return all(operand.data is not None for operand in self.present[1:])


Algorithms = Mapping[str, Callable[[OpCall], bool]]
"""Algorithms of an operator by name, each with a predicate: whether it can compute a call."""


@dataclass(frozen=True)
class Case:
    """Test case of one operator: attributes, operand types and the tolerance of floats.

    ``consts``: positions of the operands that are known at compile time. ``arrays`` fixes the operands' data where
    random data would be meaningless (shifts, tables); None means random."""

    attrs: Mapping[str, Attr]
    types: tuple[TensorType, ...]
    consts: tuple[int, ...] = ()
    arrays: tuple[Array | None, ...] = ()
    tolerance: float = 0.0
    name: str = ""


Legalized = tuple[tuple[Node, ...], Mapping[str, TensorType], Mapping[str, Array]]
"""Replacement of a node: nodes in order, and their new types and constants."""


@dataclass(frozen=True)
class Alias:
    """Sharing of memory between a node's operands and its result, by which it needs no code.

    ``source``: the output is the first input's memory from this element on. ``parts``: the inputs are parts of the
    output's memory, each from its element on."""

    source: int | None = None
    parts: tuple[int, ...] = ()


@dataclass(frozen=True)
class OpDef:
    """Definition of an operator.

    - ``infer(attrs, types) -> types``: output types; raises ModelError for invalid inputs.
    - ``reference(attrs, arrays) -> arrays``: the operator's semantics in numpy, exact for integers.
    - ``scalar(attrs, args) -> Expr`` of elementwise operators: TIR over one element of each operand.
    - ``compute(call) -> tensor(s)`` of the others; the tensors' elements in row-major order are the outputs'.
    - ``cases()``: test cases; every operator has some.
    - ``attrs``: declarations of its attributes; ``defaults`` follows from them: attributes that may be left out.
    - ``legalize(node, graph) -> nodes, types, consts`` rewrites a *quantised* node (inputs and outputs with ``quant``)
    into core operators with explicit integer parameters; None when there is nothing to rewrite.
    - ``expand(node, graph) -> nodes, types, consts`` of a composed operator, which only names others and exists for
    backends of external code that implement it as a whole. The pass ``expand`` replaces it, so that it has neither
    ``scalar`` nor ``compute``. The replacement also defines the semantics of quantised nodes.
    - ``macs(attrs, types, out_types)``: multiply-accumulates; 0 unless given.
    - ``view``: the output is always the input's memory with another shape.
    - ``alias(attrs, types, out_types)``: how tensors share memory so that the node needs no code; None if it needs
    some.
    - ``axes(attrs, types)``: relations of the axes of result and operands (:data:`AxisMap`). Unless given, broadcasting
    determines those of an elementwise operator, and nothing is known of others.
    - ``window(attrs, types)``: windows along height and width; None if there are none. The same node with ``padding``
    zero, on a padded part of the data, computes a part of the result.
    - ``moves``: every element of the result is an unchanged element of the first operand; other operands only select
    it.
    - ``tables``: operands behind the first are tables of parameters and never quantised.
    - ``algorithms``: values of the attribute ``algorithm`` besides ``direct``, each with a predicate of validity. If
    the
    attribute is empty, all that are valid and suit the core are lowered, and the cost model chooses.
    - ``update(call) -> tensor`` of operators that change a part of their first operand: the loops that write only this
    part, into a result that is the operand. State is updated in place by it.
    - ``operand_names``: names of the operands in the C code (default: letters).
    - ``constants``: bounds of operands whose numbers the loops rely on (indices, offsets, shifts, counts, factors), by
    position, or a function of the application that returns them. ``sound``: checks of several numbers together.
    - ``whole``: indices of the operands that ``scalar`` receives as a whole ``te.Tensor`` to index, not as one element.
    - ``repeats``: ``scalar`` uses its operands many times, or at several indices of a table, so that they are read from
    memory: their producer is never fused into the kernel.
    - ``formula``: the formula of ``scalar`` for comments; ``{attribute}`` stands for an attribute's value, ``{x}`` for
    an
    operand.
    - ``edges``: behaviour that the formats leave open, for the page of operators: NaN, overflow, indices outside.
    - ``regions``: attributes that hold graphs, of control flow; the compiler lowers these, so that there is neither
    ``scalar`` nor ``compute``."""

    name: str
    infer: Callable[[Mapping[str, Any], Sequence[TensorType]], tuple[TensorType, ...]]
    reference: Callable[[Mapping[str, Any], Sequence[Any]], tuple[Array, ...]]
    scalar: Callable[[Mapping[str, Any], Sequence[Expr]], Expr] | None = None
    compute: Callable[[OpCall], te.Tensor | tuple[te.Tensor, ...]] | None = None
    cases: Callable[[], Iterable[Case]] = tuple
    attrs: Attributes = field(default_factory=dict)
    legalize: Callable[[Node, Graph], Legalized | None] | None = None
    expand: Callable[[Node, Graph], Legalized] | None = None
    macs: Callable[[Mapping[str, Any], Sequence[TensorType], Sequence[TensorType]], int] | None = None
    view: bool = False
    alias: Callable[[Mapping[str, Any], Sequence[TensorType], Sequence[TensorType]], Alias | None] | None = None
    axes: Callable[[Mapping[str, Any], Sequence[TensorType]], AxisMap] | None = None
    window: Callable[[Mapping[str, Any], Sequence[TensorType]], Window | None] | None = None
    moves: bool = False
    tables: bool = False
    algorithms: Algorithms = field(default_factory=dict)
    update: Callable[[OpCall], te.Tensor] | None = None
    operand_names: tuple[str, ...] = ()
    constants: Constants | Callable[[Application], Constants] = field(default_factory=dict)
    sound: tuple[Sound, ...] = ()
    whole: tuple[int, ...] = ()
    repeats: bool = False
    formula: str = ""
    edges: str = ""
    regions: tuple[str, ...] = ()

    @cached_property
    def defaults(self) -> Mapping[str, Attr]:
        """Defaults of the attributes that may be left out."""
        return MappingProxyType(default_attributes(self.attrs))

    @property
    def composed(self) -> bool:
        """True if the operator consists of others, so that it is no kernel itself."""
        return bool(self.regions) or self.expand is not None

    @property
    def elementwise(self) -> bool:
        return self.scalar is not None

    def axis_map(self, node: Node, types: Mapping[str, TensorType]) -> AxisMap:
        """Return the relations of axes for every operand of a node, absent ones included."""
        operand_types = [types[name] if name else None for name in node.inputs]
        attrs = {**self.defaults, **node.attrs}
        if self.axes is None:
            return (
                map_elementwise(attrs, operand_types, self.whole) if self.elementwise else (None,) * len(operand_types)
            )
        axes = self.axes(attrs, [tensor_type for tensor_type in operand_types if tensor_type is not None])
        return (*axes, *(None,) * (len(operand_types) - len(axes)))


FAMILIES = (
    "control",
    "convolution.conv2d",
    "convolution.conv2d_transpose",
    "convolution.conv_nd",
    "elementwise.compare",
    "elementwise.elementwise",
    "elementwise.lookup",
    "elementwise.prelu",
    "external_region",
    "images.grid_sample",
    "images.resample",
    "images.boxes",
    "matrix.dense",
    "matrix.einsum",
    "matrix.matmul",
    "data_movement.gather_scatter",
    "data_movement.rearrange",
    "data_movement.reshape",
    "normalisation.norms",
    "normalisation.log_softmax",
    "normalisation.softmax",
    "pooling.pool",
    "pooling.window",
    "quantised.computed_scales",
    "quantised.exact_rounding",
    "quantised.quantization",
    "quantised.quantised_arithmetic",
    "quantised.requantize",
    "recurrent.lstm",
    "recurrent.ring",
    "recurrent.svdf",
    "reduction.cumsum",
    "reduction.reduce",
    "reduction.argmax",
    "signal.bands",
    "signal.biquads",
    "signal.fft",
    "signal.filter_bank",
    "signal.fir",
    "signal.logarithm",
    "signal.noise",
    "signal.power_spectrum",
    "signal.spectrum",
    "trees.tree_ensemble",
)


@lru_cache(maxsize=1)
def registry() -> Registry[OpDef]:
    """Return all operators by name: each family module lists its own in ``OPERATORS``, and plugins extend them temporarily."""
    operators: dict[str, OpDef] = {}
    for family in FAMILIES:
        for definition in importlib.import_module(f"microc.ops.{family}").OPERATORS:
            if definition.name in operators:
                raise InternalError(f"operator {definition.name} is defined twice")
            operators[definition.name] = definition
    return Registry("an operator", operators)


def get(name: str) -> OpDef:
    """Return the operator called ``name``; an unknown name is an internal error (frontends reject it earlier)."""
    try:
        return registry()[name]
    except KeyError:
        raise InternalError(f"unknown operator {name!r}") from None


def infer(op: str, attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Infer output types; attributes that are left out have their defaults.

    Raise ModelError for invalid inputs and for an attribute that is unknown, missing or of an invalid value.
    """
    definition = get(op)
    whole = {**definition.defaults, **attrs}
    if reason := attribute_error_message(definition.attrs, whole):
        raise ModelError(f"{op}: {reason}")
    return definition.infer(whole, types)


def node_constant_error_message(node: Node, graph: Graph, producers: Mapping[str, Node]) -> str:
    """Return why a node's constants that become indices, shifts and the like are invalid, or an empty string.

    ``producers``: the nodes that compute the graph's values, by value. Bounds of attributes are checked by
    :func:`infer`."""
    definition = get(node.op)
    if not (definition.constants or definition.sound):
        return ""
    application = as_application(node, graph, producers)
    return fault_of_constants(definition.constants, definition.sound, application, definition.operand_names)


def bounded_operands(node: Node, graph: Graph) -> list[str]:
    """Return the names of a node's operands whose numbers are declared to be bounded; of an elementwise node all."""
    names = [name for name in node.inputs if name]
    if get(node.op).elementwise:
        return names
    declared, application = get(node.op).constants, as_application(node, graph, {})
    positions = declared(application) if callable(declared) else declared
    return [names[position] for position in positions if position < len(names)]


def as_application(node: Node, graph: Graph, producers: Mapping[str, Node]) -> Application:
    """Convert a node to the form in which checks of constants receive it.

    ``producers``: the nodes that compute the graph's values."""
    names = [name for name in node.inputs if name]
    return Application(
        {**get(node.op).defaults, **node.attrs},
        tuple(graph.types[name] for name in names),
        tuple(graph.consts.get(name) for name in names),
        tuple(producers.get(name) for name in names),
        tuple(graph.types[name] for name in node.outputs if name),
    )
