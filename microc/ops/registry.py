"""The operator registry: what every operator is called, infers, computes; one :class:`OpDef` per operator.

An operator comes in one of two forms. *Elementwise* operators give ``scalar``: one output element from one element of
every input, operands broadcast as in numpy; fusion and loops are not their business. All others give ``compute``: a
tensor expression over their operands.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

from microc import te
from microc.dtypes import Array
from microc.errors import InternalError, ModelError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.ops.attributes import Attributes, defaults_of, fault
from microc.ops.axes import AxisMap, Window, elementwise
from microc.ops.constants import Application, Constants, Sound
from microc.ops.constants import fault as fault_of_constants
from microc.ops.multiples import ONES, Multiples
from microc.sealed import Registry
from microc.tir.ir import Expr


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
    - ``axes(attrs, types)``: which axis of the result is which axis of an operand (:mod:`microc.ops.axes`); unless given, of an
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
    "elementwise.bit_cast",
    "elementwise.compare",
    "elementwise.elementwise",
    "elementwise.lookup",
    "elementwise.prelu",
    "external",
    "images.grid_sample",
    "images.resample",
    "images.roi_align",
    "images.suppression",
    "matrix.dense",
    "matrix.einsum",
    "matrix.matmul",
    "moving.dynamic_slices",
    "moving.elements",
    "moving.indexing",
    "moving.places",
    "moving.sequences",
    "moving.shape",
    "normalisation.l2_normalize",
    "normalisation.layer_norm",
    "normalisation.log_softmax",
    "normalisation.softmax",
    "pooling.pool",
    "pooling.window",
    "quantised.dynamic",
    "quantised.even",
    "quantised.inverse_root",
    "quantised.mean_scale",
    "quantised.quantization",
    "quantised.quotient",
    "quantised.requantize",
    "recurrent.lstm",
    "recurrent.ring",
    "recurrent.svdf",
    "reduction.cumsum",
    "reduction.reduce",
    "reduction.search",
    "signal.bands",
    "signal.biquads",
    "signal.fft",
    "signal.fft_inverse",
    "signal.filter_bank",
    "signal.fir",
    "signal.frames",
    "signal.logarithm",
    "signal.noise",
    "signal.power_spectrum",
    "signal.spectrum",
    "trees.ensemble",
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
