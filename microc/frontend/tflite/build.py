"""The graph under construction: values, constants and state, inputs bound to shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType

import numpy as np

from microc.dtypes import Array
from microc.errors import ModelError, UnsupportedError, UsageError
from microc.frontend.budget import check_shape
from microc.frontend.tflite.file import Tensor, TfliteFile
from microc.frontend.tflite.inside import Inside
from microc.frozen import frozen
from microc.graph.ir import Graph, Loc, Node, Quant, TensorType

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
