"""One TFLite operator as its converter sees it, and the graph under construction."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from math import prod
from types import MappingProxyType

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ModelError, UnsupportedError, UsageError
from microc.frontend.budget import check_shape, inferred
from microc.frontend.graph_builder import MOST_INTEGERS, Operands
from microc.frontend.tflite.file import Operator, Tensor, TfliteFile
from microc.graph.ir import Attr, Graph, Loc, Node, Quant, TensorType, new_value
from microc.ops import registry
from microc.ops.attributes import Ties

# ---- A subgraph inside of control flow: the variables that it touches come in behind its inputs, and go out behind
# its outputs.


@frozen
class Inside:
    """A subgraph as a graph whose last inputs are variables that it finds (``given``), and whose last outputs are those that it
    assigns. ``handed``: the outputs of the subgraph that stand for a variable, by position; they are none of the graph."""

    graph: Graph
    given: tuple[str, ...] = ()
    assigned: tuple[str, ...] = ()
    handed: Mapping[int, str] = field(default_factory=dict)

    @property
    def kinds(self) -> dict[str, TensorType]:
        """The types of the variables that it touches."""
        graph = self.graph
        results = zip(self.assigned, graph.outputs[len(graph.outputs) - len(self.assigned) :], strict=True)
        inputs = zip(self.given, graph.inputs[len(graph.inputs) - len(self.given) :], strict=True)
        return {key: graph.types[name] for key, name in (*results, *inputs)}

    def aligned(self, given: Mapping[str, TensorType], assigned: Sequence[str]) -> Graph:
        """The graph with these variables as last inputs and outputs; what it does not assign goes out as it came in."""
        graph, types = self.graph, dict(self.graph.types)
        inputs, outputs = len(graph.inputs) - len(self.given), len(graph.outputs) - len(self.assigned)
        found = dict(zip(self.given, graph.inputs[inputs:], strict=True))
        made = dict(zip(self.assigned, graph.outputs[outputs:], strict=True))
        nodes = list(graph.nodes)
        for key, kind in given.items():
            if key not in found:
                found[key] = new_value(types, "variable", kind)
        for key in assigned:
            if key not in made:
                made[key] = new_value(types, "kept", given[key])
                nodes.append(Node("reshape", (found[key],), (made[key],), {"shape": given[key].shape}))
        return replace(
            graph,
            inputs=(*graph.inputs[:inputs], *(found[key] for key in given)),
            outputs=(*graph.outputs[:outputs], *(made[key] for key in assigned)),
            nodes=tuple(nodes),
            types=types,
        )


# ---- The graph under construction: values, constants and state, inputs bound to shapes.

DTYPES = ("float32", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool")
"""What a value of the graph may be."""
_MAX_STATE_BYTES = 64 << 20
STATE_INSIDE = "keep recurrent layers outside, or write them with variables"


@frozen
class Variables:
    """Resource variables by name: the handles (tensor index -> variable), initial and current contents, and what they hold at
    first: values of the state, inside of control flow inputs of the graph. ``assigned``: those that are, in order."""

    initial: dict[str, Array] = field(default_factory=dict)
    handles: dict[int, str] = field(default_factory=dict)
    current: dict[str, str] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    assigned: dict[str, None] = field(default_factory=dict)


@frozen
class Piece:
    """A slice whose place or size is computed: of ``data`` from ``begin`` on, ``size`` elements (-1: the rest), both values."""

    data: str
    begin: str
    size: str


class Builder:
    """Nodes, types, constants and state found so far.

    ``subgraph`` reads another subgraph of the file, for control flow: by its index and the inputs of it that stand for
    variables. ``around`` is what this one is inside of, with such inputs (``handles``). ``pieces`` are slices whose extents
    nobody knows before they are joined again. ``gates``: from which node on there is a condition for running, and which.
    ``complexes``: values of floats that stand for complex tensors. ``halves``: constants of
    float16 that operators make, by tensor.
    """

    def __init__(
        self,
        file: TfliteFile,
        input_shapes: Mapping[str, tuple[int, ...]],
        subgraph: Callable[[int, Mapping[int, str]], Inside],
        around: Builder | None = None,
        handles: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self.file, self.subgraph, self.inside = file, subgraph, around is not None
        self.pieces: dict[str, Piece] = {}
        self.gates: list[tuple[int, str]] = []
        self.complexes: dict[str, str] = {}
        self.nodes: list[Node] = []
        self.types: dict[str, TensorType] = {}
        self.consts: dict[str, Array] = {}
        self.halves: dict[int, Array] = {}
        self.state: dict[str, Array] = {}
        self.updates: dict[str, str] = {}
        self.variables: Variables = Variables(around.variables.initial if around else {})
        self._computed: set[str] = set()
        self._bind_inputs(input_shapes, handles)

    def graph(self, name: str) -> Graph:
        """The finished graph; ModelError where an output was never written."""
        variables, outputs = self.variables, list[str]()
        inputs = [self.file.names[index] for index in self.file.inputs if index not in variables.handles]
        results = [
            self.value(index, f"{self.file.name} outputs")
            for index in self.file.outputs
            if index not in variables.handles
        ]
        if self.inside:
            inputs += variables.states.values()
            results += [variables.current[key] for key in variables.assigned]
        for result in results:
            outputs.append(self._output(result, outputs))
        if not outputs:
            raise ModelError("the model has no outputs", where=self.file.name)
        state = {name: data for name, data in self.state.items() if name in self.updates}
        consts = self.consts | {name: data for name, data in self.state.items() if name not in self.updates}
        return Graph(name, tuple(inputs), tuple(outputs), tuple(self.nodes), self.types, consts, state, self.updates)

    def value(self, index: int, where: str) -> str:
        """The name of tensor ``index`` as an operand; constants enter the graph when first used."""
        name = self.file.names[index]
        if name not in self.types:
            tensor = self.file.tensor(index)
            if not tensor.constant:
                raise ModelError(f"{name!r} is read before any operator writes it", where=where)
            self.constant(name, self.file.array(tensor), tensor.type.quant)
        return name

    def constant(self, name: str, data: Array, quant: Quant | None = None) -> str:
        """Define ``name`` as constant data."""
        self.file.charge(data.nbytes)
        self.define(name, TensorType(data.shape, str(data.dtype), quant), self.file.name)
        self.consts[name] = np.ascontiguousarray(data).reshape(data.shape)
        return name

    def define(self, name: str, kind: TensorType, where: str) -> None:
        """Give a new value its type."""
        if name in self.types:
            raise ModelError(f"{name!r} is written twice", where=where)
        if kind.dtype not in DTYPES:
            raise UnsupportedError(
                f"{name!r} has dtype {kind.dtype}", where=where, hint=f"microc has {', '.join(DTYPES)}"
            )
        check_shape(kind.shape, kind.dtype, where)
        self.types[name] = kind

    def define_state(self, name: str, kind: TensorType, data: Array | None, where: str) -> str:
        """A tensor that lives across calls; without ``data`` it starts at real zero (int8: the zero point, as in TFLM)."""
        self.define(name, kind, where)
        if kind.nbytes + sum(array.nbytes for array in self.state.values()) > _MAX_STATE_BYTES:
            raise ModelError(f"state tensors take more than {_MAX_STATE_BYTES} bytes", where=where)
        if data is None:
            zero = kind.quant.zero_point[0] if kind.quant and kind.dtype == "int8" else 0
            data = np.full(kind.shape, zero, dtype=kind.dtype)
        self.state[name] = data
        return name

    def _output(self, name: str, earlier: Sequence[str]) -> str:
        """``name``, or a copy of it where no node makes it or an earlier output is the same value."""
        if self.is_computed(name) and name not in earlier:
            return name
        copy, kind = self.file.unique(f"{name}_copy"), self.types[name]
        self.define(copy, kind, self.file.name)
        self.append(Node("reshape", (name,), (copy,), {"shape": kind.shape}, Loc(self.file.name, name=copy)))
        return copy

    def append(self, node: Node) -> None:
        self.nodes.append(node)
        self._computed.update(node.outputs)

    def is_computed(self, name: str) -> bool:
        """Whether a node makes the value (it is no input, constant or state)."""
        return name in self._computed

    def assume(self, indices: Sequence[int]) -> None:
        """Take the file's word for the outputs of an operator that could not be spelled."""
        for tensor in map(self.file.tensor, indices):
            self.types.setdefault(tensor.name, tensor.type)

    def _bind_inputs(self, shapes: Mapping[str, tuple[int, ...]], handles: Mapping[int, str]) -> None:
        names = [self.file.names[index] for index in self.file.inputs]
        for name in shapes:
            if name not in names:
                raise UsageError(
                    f"the model has no input {name!r}", where=self.file.name, hint=f"its inputs are {', '.join(names)}"
                )
        for position, index in enumerate(self.file.inputs):
            if position in handles:
                self.variables.handles[index] = handles[position]
                continue
            tensor = self.file.tensor(index)
            shape = self._bound_shape(tensor, shapes.get(tensor.name))
            where = self.file.where(tensor)
            if tensor.type.dtype == "resource":
                raise ModelError(f"{tensor.name!r} is given no variable", where=where)
            if 0 in shape:
                raise ModelError(f"the input has shape {shape}, without elements", where=where)
            self.define(tensor.name, TensorType(shape, tensor.type.dtype, tensor.type.quant), where)

    def _bound_shape(self, tensor: Tensor, given: tuple[int, ...] | None) -> tuple[int, ...]:
        """The shape of an input: unknown extents as given; an unknown batch (axis 0) is 1 unless given."""
        declared, where = tensor.type.shape, self.file.where(tensor)
        spelled = ",".join("?" if axis in tensor.unknown else str(extent) for axis, extent in enumerate(declared))
        if given is None:
            if any(axis > 0 for axis in tensor.unknown):
                raise UsageError(
                    f"the input has unknown extents: {spelled}",
                    where=where,
                    hint=f"give the shape of input {tensor.name!r}, for its kernels are compiled for one shape",
                )
            return declared
        fits = len(given) == len(declared) and all(
            extent >= 1 and (axis in tensor.unknown or extent == declared[axis]) for axis, extent in enumerate(given)
        )
        if not fits:
            raise UsageError(
                f"shape {','.join(map(str, given))} does not fit the input", where=where, hint=f"it is {spelled}"
            )
        return tuple(given)


# ---- One TFLite operator as its spelling function sees it: what it reads from the file, what it writes to the graph.
#
# Shapes come from the operators' own inference; the file's declared shapes are compared with them.

_NO_ATTRS: Mapping[str, Attr] = {}

_CALIBRATE = "convert with a representative data set, so that all activations have scales"
_FIX = "make it one: convert with fixed shapes and sizes, which kernels are compiled for"


@frozen
class Application(Operands):
    """One operator of the file, with what a spelling function needs to read it and to write its nodes."""

    operator: Operator
    builder: Builder
    loc: Loc

    @property
    def where(self) -> str:
        return f"{self.loc} {self.operator.code}"

    def has(self, position: int) -> bool:
        """Whether input ``position`` is present (trailing and -1 inputs are absent)."""
        return position < len(self.operator.inputs) and self.operator.inputs[position] >= 0

    def source(self, position: int) -> Tensor:
        """Input ``position`` as the file declares it."""
        if not self.has(position):
            self.broken(f"input {position} is missing")
        return self.builder.file.tensor(self.operator.inputs[position])

    def target(self, position: int = 0) -> Tensor:
        """Output ``position`` as the file declares it."""
        if position >= len(self.operator.outputs):
            self.broken(f"output {position} is missing")
        return self.builder.file.tensor(self.operator.outputs[position])

    def moved(self, position: int) -> str:
        """An operand whose elements move unchanged: it has the output's dtype, quantised or not."""
        source, target = self.source(position), self.target()
        if source.type.dtype != target.type.dtype:
            self.refuse(
                f"{source.type.dtype} input {position} and {target.type.dtype} output",
                "put a CAST or a QUANTIZE between them",
            )
        return self.value(position)

    def operand(self, position: int, dtype: str = "", *, symmetric: bool = True) -> str:
        """An operand that is computed with: of ``dtype`` (the output's unless given); integers are quantised.

        ``symmetric``: int16 tensors must not have a zero point.
        """
        source, target = self.source(position), self.target()
        wanted = dtype or target.type.dtype
        if source.type.dtype != wanted:
            self.refuse(
                f"{source.type.dtype} input {position} where {wanted} is needed", f"cast or quantise it to {wanted}"
            )
        for tensor in (source, target):
            self._check_quantised(tensor, symmetric)
        return self.value(position)

    def _check_quantised(self, tensor: Tensor, symmetric: bool) -> None:
        """An integer of 8 or 16 bits that is computed with has one scale."""
        kind = tensor.type
        if kind.dtype not in ("int8", "uint8", "int16"):
            return
        if kind.quant is None:
            self.refuse(f"{kind.dtype} tensor {tensor.name!r} has no quantisation", _CALIBRATE)
        if kind.quant.axis is not None:
            self.refuse(f"{tensor.name!r} is quantised per channel and is no weight", "quantise activations per tensor")
        if symmetric and kind.dtype == "int16" and kind.quant.zero_point != (0,):
            self.refuse(
                f"int16 tensor {tensor.name!r} has a zero point", "int16 activations are symmetric: convert as int16x8"
            )

    def value(self, position: int) -> str:
        """The name of input ``position``, whatever its dtype."""
        source = self.source(position)
        if source.packed and not source.constant:
            self.refuse(
                f"{source.name!r} is computed in int4", "only constant weights may be; quantise activations to int8"
            )
        return self.builder.value(source.index, self.where)

    def type(self, value: str) -> TensorType:
        return self.builder.types[value]

    def constant(self, position: int) -> Array:
        """The data of an input that must be known when compiling."""
        data = self.builder.consts.get(self.value(position))
        if data is None:
            self.refuse(f"input {position} ({self.source(position).name!r}) is not a constant", _FIX)
        return data

    def index(self, indices: str) -> str:
        """Indices as int32 or int64."""
        kind = self.type(indices)
        if kind.dtype in ("int32", "int64"):
            return indices
        if kind.dtype not in ("int8", "int16", "uint8"):
            self.refuse(f"{kind.dtype} indices", "int32 or int64 are usual")
        return self.emit("cast", (indices,), {"dtype": "int32"})

    def rank(self, value: str, *ranks: int) -> tuple[int, ...]:
        """The shape of ``value``, which must have one of ``ranks`` axes and some elements."""
        shape = self.type(value).shape
        if len(shape) not in ranks or 0 in shape:
            self.broken(f"{value!r} has shape {shape}; its rank must be {' or '.join(map(str, ranks))}")
        return shape

    def new_constant(self, stem: str, data: Array, quant: Quant | None = None) -> str:
        """A constant that the file does not hold as such, under a new name made from ``stem``."""
        return self.builder.constant(self.builder.file.unique(stem), data, quant)

    def filled(self, stem: str, shape: Sequence[int], number: float, dtype: str) -> str:
        """A constant full of one number; its size is known to be reasonable before there is any memory."""
        if any(extent < 0 for extent in shape):
            self.broken(f"shape {tuple(shape)}")
        self.builder.file.charge(prod(shape) * dtypes.nbytes(dtype))
        return self.new_constant(stem, np.full(tuple(shape), number, dtypes.to_numpy(dtype)))

    def scalar(self, number: float) -> str:
        """A float32 constant of one element."""
        return self.new_constant("scalar", np.array([number], np.float32))

    def emit(
        self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS, like: TensorType | None = None
    ) -> str:
        """An intermediate value, named after the output; dtype and quantisation as ``like``, else as inferred: with the first
        input's dtype comes its quantisation."""
        name = self.builder.file.unique(f"{self.loc.name}_{op}")
        self.append(op, inputs, attrs, (name,), (like,))
        return name

    def result(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr], position: int = 0) -> str:
        """The operator's output ``position``: dtype and quantisation as the file declares, shape as inferred."""
        target = self.target(position)
        self.append(op, inputs, attrs, (target.name,), (target.type,))
        self.compare(target)
        return target.name

    def results(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> None:
        """All outputs of the operator, from one node."""
        targets = [self.target(position) for position in range(len(self.operator.outputs))]
        kinds = tuple(target.type for target in targets)
        self.append(op, inputs, attrs, tuple(target.name for target in targets), kinds)
        for target in targets:
            self.compare(target)

    def result_reshape(self, value: str, shape: Sequence[int], position: int = 0) -> str:
        """The output ``position`` as ``value`` under another (or the same) shape."""
        if prod(shape) != self.type(value).size:
            self.broken(f"shape {self.type(value).shape} cannot become {tuple(shape)}")
        return self.result("reshape", (value,), {"shape": tuple(shape)}, position)

    def result_constant(self, data: Array) -> None:
        """The first output, known when compiling."""
        target = self.target()
        self.builder.constant(target.name, data, target.type.quant)
        self.compare(target)

    def result_with_state(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr], state: str) -> None:
        """An operator with two outputs, the second of which is the next content of ``state``."""
        target, following = self.target(), self.builder.file.unique(f"{state}_next")
        self.append(op, inputs, attrs, (target.name, following), (target.type, self.type(state)))
        self.compare(target)
        self.builder.updates[state] = following

    def inferred(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> tuple[TensorType, ...]:
        """The types of what an application makes."""
        return inferred(op, attrs, [self.type(name) for name in inputs], self.where)

    def append(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: Mapping[str, Attr],
        outputs: Sequence[str],
        likes: Sequence[TensorType | None],
    ) -> None:
        """A node whose outputs have new names; dtypes and quantisation as ``likes``, shapes as inferred."""
        definition = registry.get(op)
        attrs = {**definition.defaults, **attrs}
        inferred = self.inferred(op, inputs, attrs)
        if len(inferred) != len(outputs):
            self.broken(f"{len(outputs)} outputs, {len(inferred)} are computed")
        if not definition.regions and self._folds(inputs, inferred):
            self._fold(op, inputs, attrs, outputs)
            return
        for name, like, kind in zip(outputs, likes, inferred, strict=True):
            if like is None:
                first = self.type(inputs[0])
                like = first if first.dtype == kind.dtype else kind
            self.builder.define(name, TensorType(kind.shape, like.dtype, like.quant), self.where)
        self.builder.append(Node(op, tuple(inputs), tuple(outputs), attrs, self.loc))

    def _folds(self, inputs: Sequence[str], kinds: Sequence[TensorType]) -> bool:
        """Whether an application is computed now: of the few numbers that shapes and sizes are made from, all known."""
        known = bool(inputs) and all(name in self.builder.consts for name in inputs)
        types = (*kinds, *map(self.type, inputs)) if known else ()
        return known and all(kind.size <= MOST_INTEGERS and kind.quant is None for kind in types)

    def _fold(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr], outputs: Sequence[str]) -> None:
        with np.errstate(all="ignore"):
            made = registry.get(op).reference(attrs, [self.builder.consts[name] for name in inputs])
        for name, data in zip(outputs, made, strict=True):
            self.builder.constant(name, np.asarray(data))

    def compare(self, target: Tensor) -> None:
        """The inferred shape of an output against the declared one, where that is known."""
        shape, declared = self.type(target.name).shape, target.type.shape
        agree = len(shape) == len(declared) and all(
            axis in target.unknown or extent == declared[axis] for axis, extent in enumerate(shape)
        )
        if declared and not agree:
            self.broken(f"computes shape {shape}, but the file declares {declared}")


# ---- What the spelling tables of the TFLite operator families share: rows, dtypes, activations, padding.

FLOAT = ("float32",)
QUANTISED = ("int8", "uint8", "int16")
PLAIN = ("int32", "int64")
"""Integers that stand for themselves: shapes, indices, counts."""
REAL = FLOAT + QUANTISED
MOVABLE = DTYPES

ONE_SCALE = "give them one scale and zero point, as converters do, or put a QUANTIZE before the operator"
ACTIVATIONS = ("", "relu", "relu_n1_to_1", "relu6", "tanh")
"""TFLite's ActivationFunctionType in our words."""


@frozen
class Spelling:
    """One TFLite operator: the function that spells it, and the dtypes that its first output may have."""

    spell: Callable[[Application], None]
    dtypes: tuple[str, ...] = REAL


def activation(application: Application, code: int) -> str:
    """TFLite's ActivationFunctionType as our ``activation`` attribute."""
    if not 0 <= code < len(ACTIVATIONS):
        application.refuse(f"the fused activation number {code}", "relu, relu6, relu_n1_to_1 and tanh are known")
    name = ACTIVATIONS[code]
    dtype = application.target().type.dtype
    if (name == "tanh" and dtype != "float32") or (name and dtype in PLAIN):
        application.refuse(f"a fused {name} on {dtype} tensors", "make the activation an operator of its own")
    return name


def real_operand(application: Application, position: int) -> str:
    """An operand as floats, for operators that are spelled as several ones on real numbers."""
    value = application.operand(position)
    quant = application.type(value).quant
    if quant is None:
        return value
    attrs: Mapping[str, Attr] = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": None}
    return application.emit("dequantize", (value,), attrs)


def real_result(
    application: Application, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS
) -> None:
    """The output of the last of them, rounded to the output's integers if it has such."""
    kind = application.target().type
    if kind.quant is None:
        application.result(op, inputs, attrs)
        return
    scale: Mapping[str, Attr] = {"scale": kind.quant.scale, "zero_point": kind.quant.zero_point, "axis": None}
    real = application.emit(op, inputs, attrs)
    application.result("quantize", (real,), {**scale, "out_dtype": kind.dtype, "rounding": Ties.AWAY})


_BOUNDS = {"": (-math.inf, math.inf), "relu": (0.0, math.inf), "relu6": (0.0, 6.0), "relu_n1_to_1": (-1.0, 1.0)}


def real_clip(application: Application, value: str, function: str) -> None:
    """The output as a float value behind an activation."""
    if function not in _BOUNDS:
        application.refuse(f"a fused {function}", "make the activation an operator of its own")
    low, high = _BOUNDS[function]
    application.result("clip", (value,), {"minimum": low, "maximum": high})


def bare(application: Application, value: str) -> str:
    """The stored integers of a value, without what they stand for."""
    kind = application.type(value)
    if kind.quant is None:
        return value
    return application.emit("reshape", (value,), {"shape": kind.shape}, like=replace(kind, quant=None))


def check_alike(application: Application, positions: Sequence[int]) -> None:
    """Moved elements keep their meaning only where operands and output share one quantisation."""
    target = application.target().type
    if target.dtype in QUANTISED and any(application.source(i).type.quant != target.quant for i in positions):
        application.refuse("operands and output are quantised differently", ONE_SCALE)


def explicit_padding(
    application: Application,
    scheme: int,
    extent: tuple[int, int],
    window: tuple[int, int],
    strides: tuple[int, int],
    dilation: tuple[int, int] = (1, 1),
) -> tuple[int, int, int, int]:
    """TFLite's SAME (0) or VALID (1) as (top, left, bottom, right) elements."""
    if scheme not in (0, 1):
        application.broken(f"padding scheme {scheme}; SAME is 0 and VALID is 1")
    return (0, 0, 0, 0) if scheme == 1 else same_padding(extent, window, strides, dilation)


def same_padding(
    extent: Sequence[int], window: Sequence[int], strides: Sequence[int], dilation: Sequence[int] = (1, 1)
) -> tuple[int, int, int, int]:
    """Top, left, bottom, right of SAME: max((ceil(extent / stride) - 1) * stride + (window - 1) * dilation + 1 - extent, 0) on
    each axis, the smaller half before (TFLite ``padding.h``, ComputePaddingWithOffset)."""
    before, after = [], []
    for size, taps, stride, spread in zip(extent, window, strides, dilation, strict=True):
        total = max((-(-size // stride) - 1) * stride + (taps - 1) * spread + 1 - size, 0)
        before.append(total // 2)
        after.append(total - total // 2)
    return (before[0], before[1], after[0], after[1])
