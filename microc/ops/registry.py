# SPDX-License-Identifier: Apache-2.0
"""The operator registry: definitions of operators, maps between axes of operands and results, and padding of
products."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import zip_longest
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from microc import te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import Registry, frozen
from microc.errors import InternalError, ModelError, ProgramError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.ops.attributes import Attributes, attribute_error_message, default_attributes
from microc.ops.constants import CheckedNode, Constants, NodeCheck
from microc.ops.constants import constant_error_message as fault_of_constants
from microc.ops.gradients.call import GradientRule
from microc.ops.windows import Product, Window
from microc.tir.analysis.context import buffers_written
from microc.tir.interp import execute
from microc.tir.ir import Buffer, Expr, PrimFunc, Stmt, Var
from microc.tir.rewrite import drop_blocks, replace_buffers
from microc.tir.symbolic import specialize

# ---- Maps from axes of operands to axes of results (``OpDef.axes``, ``OpDef.window``).
#
# Passes that stream along an axis, drop indices of it or permute axes need to know: does index i of the result depend only on
# index i of the operand, and in the same way for all i? If so, the two axes *correspond*.

Places = tuple[int | None, ...]
"""For each axis of an operand, the axis of the result that corresponds to it. None: no axis corresponds, because the
operand's axis is reduced or sliced, or windows slide along it."""
AxisMap = tuple[Places | None, ...]
"""One entry of :data:`Places` for each operand. An entry of None, or no entry at the end: the operand is read as a
whole."""


def map_unchanged_axes(rank: int, changed_axes: Collection[int], keepdims: bool = True) -> Places:
    """Map each of ``rank`` axes of an operand to the same axis of the result, except ``changed_axes``, which map to
    None.

    Negative axes count from the end. Without ``keepdims`` the result lacks the changed axes, so that later axes move
    up."""
    lost = {axis % rank for axis in changed_axes}
    left = [axis for axis in range(rank) if keepdims or axis not in lost]
    return tuple(None if axis in lost else left.index(axis) for axis in range(rank))


def map_along_axis(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    """Map the axes of an operator that keeps the rank and changes only the axis of its attribute ``axis`` (default: the
    last)."""
    return (map_unchanged_axes(len(types[0].shape), (attrs.get("axis", -1),)),)


def map_along_axes(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    """Map the axes of an operator that changes the axes of its attribute ``axes``, and removes them unless
    ``keepdims``."""
    return (map_unchanged_axes(len(types[0].shape), attrs["axes"], attrs.get("keepdims", True)),)


def map_batch_axis(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    """Map only axis 0, for an operator that treats the elements of a batch independently."""
    return ((0, *(None,) * (len(types[0].shape) - 1)),)


def map_padding(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    """Map the axes of an operator that pads its operand, except axes to which the attribute ``padding`` adds
    elements."""
    return (tuple(None if any(pair) else axis for axis, pair in enumerate(attrs["padding"])),)


def map_broadcast(operand_type: TensorType, result_extents: Sequence[int], result_rank: int) -> Places:
    """Map the axes of an operand that is broadcast, as in numpy, to a result of ``result_rank`` axes.

    ``result_extents``: extents of the result's last axes, at least as many as the operand has."""
    first = result_rank - len(operand_type.shape)
    pairs = zip(operand_type.shape, result_extents[len(result_extents) - len(operand_type.shape) :], strict=True)
    return tuple(
        first + axis if extent == result_extent else None for axis, (extent, result_extent) in enumerate(pairs)
    )


def map_elementwise(
    attrs: Mapping[str, Any], types: Sequence[TensorType | None], whole_positions: Collection[int]
) -> AxisMap:
    """Map the axes of an elementwise operator. The axis of the attribute ``axis``, if there is one, is not mapped,
    because parameters vary along it.

    ``whole_positions``: positions of operands that are read as whole tensors, whose axes are not mapped either."""
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
    """Return the axis of ``new_shape`` to which a reshape moves ``old_axis`` of ``old_shape``; None if the axis is
    merged or split."""
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
"""Number of neighbouring elements that such cores multiply in one instruction: the number of bytes in a word."""


@frozen
class Multiples:
    """Padding of matrix products for a core: multiples to which the numbers of terms and columns are rounded up.

    :func:`microc.schedule.rules.rule.product_multiples` returns it for a core. By default nothing is padded.

    - ``dtype_pairs``: pairs of dtypes for which one instruction sums the products of :data:`WORD` neighbouring
    elements.
    - ``multiplies_partial_words``: True if the core also multiplies the last elements of a row that do not fill a word,
    so that a matrix can be read in place.
    - ``vector_columns``: numbers of columns in a vector, the largest first.
    - ``short_depths``: numbers of terms, ascending, with which one loop multiplies rows of bytes by all columns."""

    dtype_pairs: Set[tuple[str, str]] = frozenset()
    multiplies_partial_words: bool = False
    vector_columns: tuple[int, ...] = ()
    short_depths: tuple[int, ...] = ()

    def round_up_terms(self, depth: int, *factor_dtypes: str) -> int:
        """Return the number of terms of a sum of ``depth`` products, rounded up to whole words if the core multiplies
        words, or to one of ``short_depths``.

        ``factor_dtypes``: the dtypes of both factors of a product."""
        if factor_dtypes not in self.dtype_pairs or depth % WORD == 0:
            return depth
        short = self.short_depths if factor_dtypes == ("int8", "int8") else ()
        return next((n for n in short if n >= depth), -(-depth // WORD) * WORD)

    def round_up_columns(self, unit_count: int) -> int:
        """Return ``unit_count``, the number of columns of a product, rounded up to whole vectors.

        The vector width is the smallest that contains all columns, or the largest if none does. The count stays
        unchanged if a narrower width divides it and needs no more vectors."""
        if not self.vector_columns:
            return unit_count
        wide = next((n for n in reversed(self.vector_columns) if n >= unit_count), self.vector_columns[0])
        even = next((n for n in self.vector_columns if unit_count % n == 0), 1)
        return -(-unit_count // wide) * wide if -(-unit_count // wide) < unit_count // even else unit_count


ONES = Multiples()
"""No padding."""


# ---- The operator registry: one :class:`OpDef` per operator.
#
# An operator has one of two forms. *Elementwise* operators define ``scalar``: the expression of one output element from one
# element of every input. Their operands are broadcast as in numpy; the lowering adds loops and fusion. All other operators define
# ``compute``: a tensor expression over their operands.


@dataclass(frozen=True)
class Operand:
    """An operand as the ``compute`` function of an operator receives it: its type, its data if constant, and functions
    that return tensors.

    ``tensor(shape)`` returns the operand as a tensor. With ``shape``, the same row-major memory is viewed with this
    shape of as many elements. ``packed(array)`` returns a constant tensor that the operator computes from ``data`` at
    compile time, in any layout. With ``table=True`` the operator guarantees that the constant's numbers are within
    bounds, so that they may be used as indices."""

    type: TensorType
    data: Array | None
    tensor: Callable[..., te.Tensor]
    packed: Callable[..., te.Tensor]


@dataclass(frozen=True)
class OpCall:
    """A node as the ``compute`` function of its operator receives it when the node is lowered.

    ``multiples``: padding of matrix products for the core."""

    attrs: Mapping[str, Any]
    operands: tuple[Operand | None, ...]
    out_types: tuple[TensorType, ...]
    multiples: Multiples = ONES

    @property
    def present(self) -> tuple[Operand, ...]:
        """The operands without optional operands that are absent."""
        return tuple(operand for operand in self.operands if operand is not None)

    @property
    def data(self) -> Operand:
        """The first operand, which is always present."""
        return self.present[0]

    @property
    def data_weight_bias(self) -> tuple[Operand, Operand, Operand | None]:
        """The operands data, weights and bias of a layer; bias is None if the layer has none."""
        data, weight, bias = (*self.operands, None)[:3]
        assert data is not None and weight is not None
        return data, weight, bias

    @property
    def has_constant_parameters(self) -> bool:
        """True if all operands except the first are constant."""
        return all(operand.data is not None for operand in self.present[1:])


Algorithms = Mapping[str, Callable[[OpCall], bool]]
"""Algorithms of an operator by name, each with a predicate that tests whether the algorithm can compute a call."""


@dataclass(frozen=True)
class Case:
    """A test case of one operator: attributes, operand types and the tolerance for floats.

    ``consts``: positions of the operands that are known at compile time. ``arrays``: data of the operands where random
    data would be meaningless (shifts, tables); None means random data."""

    attrs: Mapping[str, Attr]
    types: tuple[TensorType, ...]
    consts: tuple[int, ...] = ()
    arrays: tuple[Array | None, ...] = ()
    tolerance: float = 0.0
    name: str = ""


Legalized = tuple[tuple[Node, ...], Mapping[str, TensorType], Mapping[str, Array]]
"""Replacement of a node: the new nodes in order, and types and constants of the new values by name."""


@dataclass(frozen=True)
class Alias:
    """Overlap of a node's operands and its result in memory, which makes code for the node unnecessary.

    ``source``: index of the element in the first operand's memory where the output begins. ``parts``: for each operand,
    the index of the element in the output's memory where the operand begins."""

    source: int | None = None
    parts: tuple[int, ...] = ()


@dataclass(frozen=True)
class OpDef:
    """Definition of an operator.

    - ``infer(attrs, types) -> types`` returns the output types; it raises ModelError for invalid inputs.
    - ``reference(attrs, arrays) -> arrays`` defines the operator's semantics in numpy, exact for integers.
    - ``scalar(attrs, args) -> Expr``, of elementwise operators: the TIR expression of one result element from one
    element of each operand.
    - ``compute(call) -> tensor(s)``, of all other operators: tensor expressions, whose elements in row-major order are
      the elements of the outputs.
    - ``cases()`` returns test cases; every operator has some.
    - ``attrs``: declarations of the attributes; ``defaults`` follows from them and contains the attributes that may be
    omitted.
    - ``legalize(node, graph) -> nodes, types, consts`` rewrites a *quantised* node (inputs and outputs with ``quant``)
    to core operators with explicit integer parameters. It returns None if there is nothing to rewrite.
    - ``expand(node, graph) -> nodes, types, consts``, of composed operators: the core operators that replace the node.
    A composed operator exists so that backends of external code can implement it as a whole. The pass ``expand``
    replaces it, so it has neither ``scalar`` nor ``compute``. The replacement also defines the semantics of quantised
    nodes.
    - ``macs(attrs, types, out_types)``: the number of multiply-accumulates; 0 if not defined.
    - ``view``: True if the output is always the input's memory with another shape.
    - ``alias(attrs, types, out_types)``: how operands and result share memory, so that the node needs no code; None if
    the node needs code.
    - ``axes(attrs, types)``: the map from axes of operands to axes of the result (:data:`AxisMap`). Without it, the
    axes of an elementwise operator are mapped by broadcasting, and the axes of other operators are not mapped.
    - ``product(attrs, types)``, of layers: the sums of data times weights that the layer computes
    (:class:`~microc.ops.windows.Product`). Passes and quantisation ask for it instead of for operators by name.
    - ``window(attrs, types)``: the windows along height and width; None if there are none. A node that has windows can
    compute a part of its result from a padded part of its data, with its attribute ``padding`` zero.
    - ``moves``: True if every element of the result is an unchanged element of the first operand; other operands only
    select elements.
    - ``tables``: True if the operands after the first are tables of parameters, which are never quantised.
    - ``algorithms``: values of the attribute ``algorithm`` besides ``direct``, each with a predicate that tests
    validity. If the attribute is empty, all valid algorithms that suit the core are lowered, and the cost model selects
    one.
    - ``update(call) -> tensor``, of operators that change a part of their first operand: the loops that write only this
    part, in place. The compiler updates state with it.
    - ``operand_names``: names of the operands in the C code (default: letters).
    - ``constants``: by position, bounds of operands whose numbers generated loops rely on (indices, offsets, shifts,
    counts, factors), or a function from the :class:`CheckedNode` to such bounds. ``sound``: checks of several numbers
    together.
    - ``whole``: positions of the operands that ``scalar`` receives as a whole ``te.Tensor`` to index, not as one
    element.
    - ``repeats``: True if ``scalar`` uses its operands many times, or at several indices of a table. Such operands are
    read from memory: the node that computes them is never fused into the kernel.
    - ``formula``: the formula of ``scalar`` for comments in the C code. ``{attribute}`` is replaced by an attribute's
    value, ``{x}`` by an operand.
    - ``edges``: behaviour that the model formats do not define, for the documentation page of operators: NaN, overflow,
    indices out of range.
    - ``regions``: attributes that are graphs, of control flow. The compiler lowers these graphs, so the operator has
    neither ``scalar`` nor ``compute``.
    - ``gradient(call)``: the gradients of a loss by the operands, from those by the results
      (:class:`microc.ops.gradients.call.GradientCall`). Without it :func:`microc.gradient` refuses the operator.
    - ``unroll(node, graph) -> nodes, types, consts``, of loops: nodes without loops that compute the same, of which
      gradients are made."""

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
    product: Callable[[Mapping[str, Any], Sequence[TensorType]], Product] | None = None
    window: Callable[[Mapping[str, Any], Sequence[TensorType]], Window | None] | None = None
    moves: bool = False
    tables: bool = False
    algorithms: Algorithms = field(default_factory=dict)
    update: Callable[[OpCall], te.Tensor] | None = None
    operand_names: tuple[str, ...] = ()
    constants: Constants | Callable[[CheckedNode], Constants] = field(default_factory=dict)
    sound: tuple[NodeCheck, ...] = ()
    whole: tuple[int, ...] = ()
    repeats: bool = False
    formula: str = ""
    edges: str = ""
    regions: tuple[str, ...] = ()
    gradient: GradientRule | None = None
    unroll: Callable[[Node, Graph], Legalized] | None = None

    @classmethod
    def from_prim_func(cls, func: PrimFunc, *, tolerance: float = 1e-5) -> OpDef:
        """Define an operator by a function of loops, as TVM's ``call_tir`` calls one from a graph.

        The parameters to which ``func`` stores are the results, all others the operands, in their order; the operator has the
        name of the function. Symbolic extents follow from the shapes of the operands. ``tolerance``: bound of the
        difference of floats from the interpreter of TIR, for the test case of the operator. Raises ProgramError for an invalid
        function."""
        if not isinstance(func, PrimFunc):
            raise ProgramError(
                f"OpDef.from_prim_func: got {type(func).__name__}, expected a PrimFunc",
                hint="give the function of a schedule: schedule.func",
            )
        stored = buffers_written(func.body)
        operands = tuple(param for param in func.params if param not in stored)
        results = tuple(param for param in func.params if param in stored)
        if not results:
            raise ProgramError(
                f"function {func.name}: got no parameter to which it stores, expected at least one result",
                hint="store to a parameter: the results are the parameters that the function stores to",
            )
        solved = _solve_sizes(operands, [operand.shape for operand in operands])
        if unsolved := [size.name for size in func.scalars if size.name not in solved]:
            raise ProgramError(
                f"function {func.name}: the shapes of its operands do not give the sizes {', '.join(unsolved)}",
                hint=f"declare an operand one of whose extents is {unsolved[0]} itself",
            )

        def specialize_to(shapes: Sequence[tuple[int, ...]]) -> tuple[PrimFunc, dict[str, Buffer]]:
            at_shapes = specialize(func, _solve_sizes(operands, shapes))
            return at_shapes, {param.name: param for param in at_shapes.params}

        def infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
            if len(types) != len(operands):
                raise ModelError(f"{func.name}: got {len(types)} operands, expected {len(operands)}")
            for operand, got in zip(operands, types, strict=True):
                if len(got.shape) != len(operand.shape):
                    raise ModelError(
                        f"{func.name}: operand {operand.name}: wrong number of axes; got {len(got.shape)}, expected "
                        f"{len(operand.shape)}"
                    )
            _, params = specialize_to([tensor_type.shape for tensor_type in types])
            for operand, got in zip(operands, types, strict=True):
                param = params[operand.name]
                if (got.shape, got.dtype) != (param.shape, param.dtype):
                    raise ModelError(
                        f"{func.name}: operand {param.name}: got {got.dtype}{list(got.shape)}, expected "
                        f"{param.dtype}{list(param.shape)}"
                    )
            return tuple(TensorType(params[r.name].shape, r.dtype) for r in results)

        def reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
            at_shapes, params = specialize_to([array.shape for array in arrays])
            by_name = {operand.name: array for operand, array in zip(operands, arrays, strict=True)}
            filled = {r.name: np.zeros(params[r.name].shape, dtypes.to_numpy(r.dtype)) for r in results}
            outputs = execute(at_shapes, [{**by_name, **filled}[param.name] for param in at_shapes.params])
            values = dict(zip(params, outputs, strict=True))
            return tuple(values[r.name] for r in results)

        def compute(call: OpCall) -> te.Tensor | tuple[te.Tensor, ...]:
            at_shapes, params = specialize_to([operand.type.shape for operand in call.present])

            def build(read: tuple[Buffer, ...], written: tuple[Buffer, ...]) -> Stmt:
                names = [buffer.name for buffer in (*operands, *results)]
                buffers = {params[name]: new for name, new in zip(names, (*read, *written), strict=True)}
                return drop_blocks(replace_buffers(at_shapes.body, buffers))

            declared = [(r.name, params[r.name].shape, r.dtype) for r in results]
            tensors = te.extern(func.name, [operand.tensor() for operand in call.present], declared, build)
            return tensors[0] if len(tensors) == 1 else tensors

        def cases() -> Iterator[Case]:
            sizes = {scalar.name: 4 for scalar in func.scalars}
            at_shapes = {param.name: param for param in specialize(func, sizes).params}
            types = tuple(TensorType(at_shapes[operand.name].shape, operand.dtype) for operand in operands)
            yield Case({}, types, tolerance=tolerance, name="from its loops")

        return cls(
            func.name,
            infer=infer,
            reference=reference,
            compute=compute,
            cases=cases,
            operand_names=tuple(operand.name for operand in operands),
        )

    @cached_property
    def defaults(self) -> Mapping[str, Attr]:
        """Default values of the attributes that may be omitted, by attribute name."""
        return MappingProxyType(default_attributes(self.attrs))

    @property
    def composed(self) -> bool:
        """True if the operator consists of other operators or graphs, so that no kernel computes it directly."""
        return bool(self.regions) or self.expand is not None

    @property
    def elementwise(self) -> bool:
        """True if the operator is elementwise: it defines ``scalar``."""
        return self.scalar is not None

    def axis_map(self, node: Node, types: Mapping[str, TensorType]) -> AxisMap:
        """Return the axis map of a node, with an entry for every operand, absent operands included."""
        operand_types = [types[name] if name else None for name in node.inputs]
        attrs = {**self.defaults, **node.attrs}
        if self.axes is None:
            return (
                map_elementwise(attrs, operand_types, self.whole) if self.elementwise else (None,) * len(operand_types)
            )
        axes = self.axes(attrs, [tensor_type for tensor_type in operand_types if tensor_type is not None])
        return (*axes, *(None,) * (len(operand_types) - len(axes)))


def _solve_sizes(operands: Sequence[Buffer], shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """Return symbolic sizes by name: those that are extents of ``operands`` by themselves, at these ``shapes``."""
    sizes: dict[str, int] = {}
    for operand, shape in zip(operands, shapes, strict=True):
        extents: Sequence[Any] = operand.shape
        sizes |= {n.name: number for n, number in zip(extents, shape, strict=True) if isinstance(n, Var)}
    return sizes


FAMILIES = (
    "control",
    "convolution.conv2d",
    "convolution.conv2d_transpose",
    "convolution.conv_nd",
    "elementwise.compare",
    "elementwise.elementwise",
    "images.resample",
    "images.boxes",
    "matrix.dense",
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
    "quantised.requantize_floor",
    "quantised.requantize_split",
    "recurrent.layers",
    "recurrent.ring",
    "recurrent.svdf",
    "reduction.cumsum",
    "reduction.reduce",
    "signal.fft",
    "signal.filter_bank",
    "signal.digital_filters",
    "signal.noise",
    "signal.power_spectrum",
    "trees.tree_ensemble",
)
"""Modules below ``microc.ops`` that define operators."""


@lru_cache(maxsize=1)
def registry() -> Registry[OpDef]:
    """Return all operators by name: the ``OPERATORS`` of every family module, to which plugins add theirs
    temporarily."""
    operators: dict[str, OpDef] = {}
    for family in FAMILIES:
        for definition in importlib.import_module(f"microc.ops.{family}").OPERATORS:
            if definition.name in operators:
                raise InternalError(f"operator {definition.name} is defined twice")
            operators[definition.name] = definition
    return Registry("an operator", operators)


def get(name: str) -> OpDef:
    """Return the definition of the operator ``name``. An unknown name raises InternalError, because frontends reject it
    earlier."""
    try:
        return registry()[name]
    except KeyError:
        raise InternalError(f"unknown operator {name!r}") from None


def is_layer(node: Node) -> bool:
    """Test whether a node is a layer: a product of data, operand 0, with weights, operand 1."""
    return get(node.op).product is not None


def layer_operators() -> frozenset[str]:
    """Return the names of the operators whose nodes are layers."""
    return frozenset(name for name, definition in registry().items() if definition.product is not None)


def product_of(node: Node, types: Mapping[str, TensorType]) -> Product | None:
    """Return the product that a layer computes; None for a node that is no layer."""
    definition = get(node.op)
    if definition.product is None:
        return None
    return definition.product({**definition.defaults, **node.attrs}, [types[name] for name in node.inputs if name])


def infer(op: str, attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Infer the output types of the operator ``op``; attributes that are omitted have their default values.

    Raise ModelError for invalid inputs, and for an attribute that is unknown, missing or invalid."""
    definition = get(op)
    whole = {**definition.defaults, **attrs}
    if reason := attribute_error_message(definition.attrs, whole):
        raise ModelError(f"{op}: {reason}")
    return definition.infer(whole, types)


def keep_declared_dtypes(
    op: str, inferred: Sequence[TensorType], declared: Sequence[TensorType | None]
) -> tuple[TensorType, ...]:
    """Return the inferred result types of the operator ``op`` with the dtypes that a graph may declare instead.

    A quantised result of an operator that is legalised or expanded has the dtype that the graph declares, of at most 32 bits,
    because the replacement requantises to it. Every other result, also one that is not declared (None), has the inferred
    dtype."""
    definition = get(op)
    if definition.legalize is None and definition.expand is None:
        return tuple(inferred)
    quantised = [
        type_ if type_ is not None and type_.is_quantised and dtypes.dtype_parts(type_.dtype).bits <= 32 else None
        for type_ in declared
    ]
    return tuple(
        type_ if own is None else replace(type_, dtype=own.dtype)
        for type_, own in zip_longest(inferred, quantised[: len(inferred)])
    )


def infer_node_types(
    op: str, attrs: Mapping[str, Any], types: Sequence[TensorType], declared: Sequence[TensorType | None]
) -> tuple[TensorType, ...]:
    """Infer the output types of the operator ``op`` like :func:`infer`, for a graph that declares the results
    ``declared`` (:func:`keep_declared_dtypes`)."""
    return keep_declared_dtypes(op, infer(op, attrs, types), declared)


def node_constant_error_message(node: Node, graph: Graph, producers: Mapping[str, Node]) -> str:
    """Return the reason why a node's constants (indices, shifts, counts, factors) are invalid, or an empty string.

    ``producers``: the nodes that compute the graph's values, by name of the value. Bounds of attributes are checked by
    :func:`infer`, not here."""
    definition = get(node.op)
    if not (definition.constants or definition.sound):
        return ""
    checked_node = as_checked_node(node, graph, producers)
    return fault_of_constants(definition.constants, definition.sound, checked_node, definition.operand_names)


def bounded_operand_names(node: Node, graph: Graph) -> list[str]:
    """Return the names of a node's operands whose numbers the operator bounds; for an elementwise operator, all
    operands."""
    names = [name for name in node.inputs if name]
    if get(node.op).elementwise:
        return names
    declared, checked_node = get(node.op).constants, as_checked_node(node, graph, {})
    positions = declared(checked_node) if callable(declared) else declared
    return [names[position] for position in positions if position < len(names)]


def as_checked_node(node: Node, graph: Graph, producers: Mapping[str, Node]) -> CheckedNode:
    """Convert a node to the :class:`CheckedNode` that checks of constants receive.

    ``producers``: the nodes that compute the graph's values, by name of the value."""
    names = [name for name in node.inputs if name]
    return CheckedNode(
        {**get(node.op).defaults, **node.attrs},
        tuple(graph.types[name] for name in names),
        tuple(graph.consts.get(name) for name in names),
        tuple(producers.get(name) for name in names),
        tuple(graph.types[name] for name in node.outputs if name),
    )
