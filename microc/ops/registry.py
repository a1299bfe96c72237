"""The operator registry, how an operator's axes relate, what its products are filled up to."""

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
from microc.ops.attributes import Attributes, defaults_of, fault
from microc.ops.constants import Application, Constants, Sound
from microc.ops.constants import fault as fault_of_constants
from microc.tir.ir import Expr

# ---- Which axis of a result is which axis of an operand: what ``OpDef.axes`` and ``OpDef.window`` of an operator
# say.
#
# Graph passes ask the same question of every operator, whether they stream along an axis, drop indices of it or work in another
# order of axes: does index i of the result depend on index i of the operand alone, and on all i in the same way? Then the two
# axes are *one*.

Places = tuple[int | None, ...]
"""For each axis of an operand the axis of the result (of every result, where there are several) that is one with it; None if
there is no such axis: it is reduced, parts are taken of it, windows slide along it."""
AxisMap = tuple[Places | None, ...]
"""One entry for each operand; None: it is read as a whole. Operands that are not mentioned at the end are, too."""


@frozen
class Window:
    """Windows that slide along height and width of the first operand (N, H, W, C).

    Output (y, x) reads ``kernel`` elements, ``dilation`` apart, from ``(y, x) * strides - (top, left)`` on; ``padding`` is top,
    left, bottom, right. Elements outside hold ``pad_value``; None: nothing stands in for them, they are left out.
    """

    kernel: tuple[int, ...] = (1, 1)
    strides: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    pad_value: int | float | None = 0

    def reach(self, axis: int) -> int:
        """From the first element to the last, both counted, along height (0) or width (1)."""
        return (self.kernel[axis] - 1) * self.dilation[axis] + 1


def kept(rank: int, changed: Collection[int], keepdims: bool = True) -> Places:
    """All axes but ``changed`` (negative ones count from the end) stay; without ``keepdims`` these are gone."""
    lost = {axis % rank for axis in changed}
    left = [axis for axis in range(rank) if keepdims or axis not in lost]
    return tuple(None if axis in lost else left.index(axis) for axis in range(rank))


def along_axis(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    """The map of what works along the attribute ``axis``, or the last one, and gives as many axes."""
    return (kept(len(types[0].shape), (attrs.get("axis", -1),)),)


def along_axes(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    """The map of what works along the attribute ``axes``, which go unless ``keepdims`` says that they stay."""
    return (kept(len(types[0].shape), attrs["axes"], attrs.get("keepdims", True)),)


def rows_only(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    """The map of layers, which treat elements of a batch alike."""
    return ((0, *(None,) * (len(types[0].shape) - 1)),)


def padded(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    """The map of what adds elements to the axes with ``padding``."""
    return (tuple(None if any(pair) else axis for axis, pair in enumerate(attrs["padding"])),)


def broadcast(kind: TensorType, shape: Sequence[int], rank: int) -> Places:
    """The places of an operand in a result of ``rank`` axes, those at the end of ``shape``, as numpy broadcasts."""
    first = rank - len(kind.shape)
    pairs = zip(kind.shape, shape[len(shape) - len(kind.shape) :], strict=True)
    return tuple(first + axis if extent == wanted else None for axis, (extent, wanted) in enumerate(pairs))


def elementwise(attrs: Mapping[str, Any], types: Sequence[TensorType | None], whole: Collection[int]) -> AxisMap:
    """The map of an elementwise operator. The attribute ``axis`` names the one along which its parameters vary."""
    shapes = [kind.shape for k, kind in enumerate(types) if kind is not None and k not in whole]
    rank = max(map(len, shapes), default=0)
    aligned = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result = [max(extents, key=lambda extent: extent != 1) for extents in zip(*aligned, strict=True)]
    varies = attrs.get("axis")
    places = [None if kind is None or k in whole else broadcast(kind, result, rank) for k, kind in enumerate(types)]
    return tuple(p and tuple(None if place == varies else place for place in p) for p in places)


def reshaped(before: Sequence[int], after: Sequence[int], axis: int) -> int | None:
    """Where a reshape leaves an axis; None where it is merged with others, or parted."""
    inner, behind, found = prod(before[axis + 1 :]), 1, None
    for place in range(len(after) - 1, -1, -1):
        if behind == inner and after[place] == before[axis] and (found is None or before[axis] == 1):
            found = place
            if before[axis] != 1 or place == axis:
                break
        behind *= after[place]
    return found


# ---- What the rows and columns of a product are filled up to with zeros, where several of their elements are
# multiplied at once.

WORD = 4
"""Neighbours that are multiplied at once, where any are."""


@frozen
class Multiples:
    """Of a core (:func:`microc.schedule.rules.rule.multiples_of`); without any, a product is as large as the model says.

    - ``factors``: dtypes of two factors of which the products of :data:`WORD` neighbours are summed at once.
    - ``partly``: matrices are multiplied where they lie, though their rows end within a word.
    - ``columns``: of vectors that hold columns, the most first.
    """

    factors: Set[tuple[str, str]] = frozenset()
    partly: bool = False
    columns: tuple[int, ...] = ()

    def terms(self, depth: int, *factors: str) -> int:
        """The terms of a sum of products of two dtypes: ``depth``, and zeros up to whole words where those are multiplied."""
        return -(-depth // WORD) * WORD if factors in self.factors else depth

    def units(self, units: int) -> int:
        """Columns: ``units``, and some of zeros where these fill fewer of the widest vectors than of those without a rest."""
        if not self.columns:
            return units
        wide = next((n for n in reversed(self.columns) if n >= units), self.columns[0])
        even = next((n for n in self.columns if units % n == 0), 1)
        return -(-units // wide) * wide if -(-units // wide) < units // even else units


ONES = Multiples()
"""Nothing is filled up."""


# ---- The operator registry: what every operator is called, infers, computes; one :class:`OpDef` per operator.
#
# An operator comes in one of two forms. *Elementwise* operators give ``scalar``: one output element from one element of
# every input, operands broadcast as in numpy; fusion and loops are not their business. All others give ``compute``: a
# tensor expression over their operands.


@dataclass(frozen=True)
class Operand:
    """One input as ``compute`` sees it: its graph type, its data when constant, and ways to a tensor expression.

    ``tensor(shape)`` is the value, viewed with another shape of as many elements if one is given (row-major memory is
    the same). ``packed(array)`` is a constant laid out anew at compile time: any array computed from ``data``;
    ``packed(array, table=True)`` one that the operator makes of numbers that it bounds, so that they may become indices.
    """

    type: TensorType
    data: Array | None
    tensor: Callable[..., te.Tensor]
    packed: Callable[..., te.Tensor]


@dataclass(frozen=True)
class OpCall:
    """One application of an operator, at lowering. ``multiples``: what products are filled up to."""

    attrs: Mapping[str, Any]
    operands: tuple[Operand | None, ...]
    out_types: tuple[TensorType, ...]
    multiples: Multiples = ONES

    @property
    def present(self) -> tuple[Operand, ...]:
        """The operands that are there: optional ones may be left out."""
        return tuple(operand for operand in self.operands if operand is not None)

    @property
    def data(self) -> Operand:
        """The first operand, which is never left out."""
        return self.present[0]

    @property
    def weighted(self) -> tuple[Operand, Operand, Operand | None]:
        """Data, weights and the bias, which may be left out, of a layer that has these."""
        data, weight, bias = (*self.operands, None)[:3]
        assert data is not None and weight is not None
        return data, weight, bias

    @property
    def constant(self) -> bool:
        """Whether all operands but the data are known."""
        return all(operand.data is not None for operand in self.present[1:])


Algorithms = Mapping[str, Callable[[OpCall], bool]]
"""Ways to compute an operator, by name: whether an application may be computed so."""


@dataclass(frozen=True)
class Case:
    """A test of one operator: attributes, operand types (a ``const`` operand is known at compile time), and a float bound.

    ``arrays`` fixes the operands' data where random data would be meaningless (shifts, tables); None means random.
    """

    attrs: Mapping[str, Attr]
    types: tuple[TensorType, ...]
    consts: tuple[int, ...] = ()
    arrays: tuple[Array | None, ...] = ()
    tolerance: float = 0.0
    name: str = ""


Legalized = tuple[tuple[Node, ...], Mapping[str, TensorType], Mapping[str, Array]]
"""What replaces a node: nodes in order, and the types and constants that they bring along."""


@dataclass(frozen=True)
class Alias:
    """How an application can be done by placing tensors: nothing is computed.

    ``source``: the output is the first input's memory from this element on. ``parts``: the inputs are parts of the output's
    memory, each from its element on.
    """

    source: int | None = None
    parts: tuple[int, ...] = ()


@dataclass(frozen=True)
class OpDef:
    """An operator.

    - ``infer(attrs, types) -> types``: output types; raises ModelError on inputs that make no sense.
    - ``reference(attrs, arrays) -> arrays``: numpy, exact for integers; the meaning of the operator.
    - ``scalar(attrs, args) -> Expr`` for elementwise operators: TIR over one element of each operand.
    - ``compute(call) -> tensor(s)`` for the others; the tensors' elements in row-major order are the outputs'.
    - ``cases()``: the tests; every operator has some.
    - ``attrs``: what attributes it has; ``defaults`` follow: those that may be left out when a node is built.
    - ``legalize(node, graph) -> nodes, types, consts`` rewrites a *quantised* application (inputs and outputs with
      ``quant``) into core operators with explicit integer parameters; None when there is nothing to rewrite.
    - ``expand(node, graph) -> nodes, types, consts``: of an operator that only names others, for those who know it as a whole
      (backends of external code); the pass ``expand`` writes these in its place, so that it has neither ``scalar`` nor
      ``compute``. Quantised applications mean what these do.
    - ``macs(attrs, types, out_types)``: multiply-accumulates, 0 unless given.
    - ``view``: the output is always the input's memory under another shape.
    - ``alias(attrs, types, out_types)``: whether this application needs no code, only placement; None if it needs some.
    - ``axes(attrs, types)``: which axis of the result is which axis of an operand (:mod:`microc.ops.registry`); unless given,
      of an
      elementwise operator what broadcasting makes it, of others nothing is known.
    - ``window(attrs, types)``: what slides along height and width, None where nothing does. The same application with ``padding``
      zero, on a padded part of the data, makes a part of the result.
    - ``moves``: every element of the result is one of the first operand, whatever it is; other operands only say which.
    - ``tables``: operands behind the first are tables, which say what is done with it, and are never quantised.
    - ``algorithms``: values of the attribute ``algorithm`` besides ``direct``, each with when it is valid, by numbers and shapes.
      Where the attribute is empty, all that are valid and suit the core are lowered, and the cost model chooses.
    - ``update(call) -> tensor``: for operators that change a part of their first operand, the loops that write this part only,
      into a result that holds the operand already: how state is updated in place.
    - ``operand_names``: what the operands are called in the C code (letters unless given).
    - ``constants``: operands whose numbers the loops trust (indices, offsets, shifts, counts, factors), by position, with their
      bounds; a function of the application where these depend on it. ``sound``: what must hold for several numbers together.
    - ``whole``: indices of the operands that ``scalar`` is given as a whole ``te.Tensor`` to index, not as one element.
    - ``repeats``: ``scalar`` writes its operands down many times, or in several places of a table, so that they are read from
      memory: whatever computes them is a kernel of its own.
    - ``formula``: what ``scalar`` computes as people write it, for comments; ``{attribute}`` stands for an attribute's value,
      ``{x}`` for what it is applied to.
    - ``edges``: what holds where the formats say nothing, for the page of operators: NaN, overflow, places outside.
    - ``regions``: attributes that hold graphs, of control flow; the driver lowers it, so that there is neither ``scalar`` nor
      ``compute``.
    """

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
        """Attributes that may be left out when a node is built, and what they are then."""
        return MappingProxyType(defaults_of(self.attrs))

    @property
    def composed(self) -> bool:
        """Whether it is made of other operators, so that it is no kernel itself."""
        return bool(self.regions) or self.expand is not None

    @property
    def elementwise(self) -> bool:
        return self.scalar is not None

    def axis_map(self, node: Node, types: Mapping[str, TensorType]) -> AxisMap:
        """Which axis of the results is which axis of an operand, for each of the node's operands, those that are absent too."""
        kinds = [types[name] if name else None for name in node.inputs]
        attrs = {**self.defaults, **node.attrs}
        if self.axes is None:
            return elementwise(attrs, kinds, self.whole) if self.elementwise else (None,) * len(kinds)
        found = self.axes(attrs, [kind for kind in kinds if kind is not None])
        return (*found, *(None,) * (len(kinds) - len(found)))


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
    """Every operator by name: each family module lists its own in ``OPERATORS``, and plugins extend them for a while."""
    found: dict[str, OpDef] = {}
    for family in FAMILIES:
        for definition in importlib.import_module(f"microc.ops.{family}").OPERATORS:
            if definition.name in found:
                raise InternalError(f"operator {definition.name} is defined twice")
            found[definition.name] = definition
    return Registry("an operator", found)


def get(name: str) -> OpDef:
    """The operator called ``name``; asking for an unknown one is a defect (frontends refuse earlier)."""
    try:
        return registry()[name]
    except KeyError:
        raise InternalError(f"unknown operator {name!r}") from None


def infer(op: str, attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Output types by the operator's own inference, attributes that are left out at their defaults.

    ModelError on an attribute that is unknown, missing or of a value that it cannot have.
    """
    definition = get(op)
    whole = {**definition.defaults, **attrs}
    if wrong := fault(definition.attrs, whole):
        raise ModelError(f"{op}: {wrong}")
    return definition.infer(whole, types)


def constant_fault(node: Node, graph: Graph, producers: Mapping[str, Node]) -> str:
    """Return what is wrong with the numbers of a node that become indices, shifts and the like, or nothing.

    ``producers``: the nodes that compute the graph's values. The attributes' own bounds are inference's.
    """
    definition = get(node.op)
    if not (definition.constants or definition.sound):
        return ""
    application = applied(node, graph, producers)
    return fault_of_constants(definition.constants, definition.sound, application, definition.operand_names)


def judged(node: Node, graph: Graph) -> list[str]:
    """Return the operands of a node whose numbers it declares bounds of; of an elementwise one all, which it computes with."""
    names = [name for name in node.inputs if name]
    if get(node.op).elementwise:
        return names
    declared, application = get(node.op).constants, applied(node, graph, {})
    positions = declared(application) if callable(declared) else declared
    return [names[position] for position in positions if position < len(names)]


def applied(node: Node, graph: Graph, producers: Mapping[str, Node]) -> Application:
    """A node as its constants are judged."""
    names = [name for name in node.inputs if name]
    return Application(
        {**get(node.op).defaults, **node.attrs},
        tuple(graph.types[name] for name in names),
        tuple(graph.consts.get(name) for name in names),
        tuple(producers.get(name) for name in names),
        tuple(graph.types[name] for name in node.outputs if name),
    )
