# SPDX-License-Identifier: Apache-2.0
"""Graph builder of the TFLite reader: nodes, types, constants, states and variables of a model or subgraph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ModelError, UnsupportedError, UsageError
from microc.frontend.model_limits import check_shape
from microc.frontend.tflite.file import Tensor, TfliteFile
from microc.graph.ir import Graph, Loc, Node, Quant, TensorType, new_value

# ---- A subgraph of control flow. Resource variables that the subgraph uses are appended to its inputs and outputs.


@frozen
class ControlSubgraph:
    """A TFLite subgraph of a control-flow operator (WHILE, IF, CALL), converted to a graph of its own.

    ``read_variables`` lists the keys of the resource variables that the subgraph reads; the last inputs of ``graph``
    are the contents of these variables. ``assigned_variables`` lists the keys of the variables that the subgraph
    assigns; the last outputs of ``graph`` are their new contents. An output of the subgraph that is a variable's handle
    is no output of ``graph``: ``handle_keys_by_output`` maps the position of each such output to the variable's key."""

    graph: Graph
    read_variables: tuple[str, ...] = ()
    assigned_variables: tuple[str, ...] = ()
    handle_keys_by_output: Mapping[int, str] = field(default_factory=dict)

    @property
    def variable_types(self) -> dict[str, TensorType]:
        """Types of the contents of all variables that the subgraph reads or assigns, by variable key."""
        graph = self.graph
        output_values = zip(
            self.assigned_variables, graph.outputs[len(graph.outputs) - len(self.assigned_variables) :], strict=True
        )
        inputs = zip(self.read_variables, graph.inputs[len(graph.inputs) - len(self.read_variables) :], strict=True)
        return {key: graph.types[name] for key, name in (*output_values, *inputs)}

    def add_variable_inputs_and_outputs(
        self, variable_types: Mapping[str, TensorType], assigned_keys: Sequence[str]
    ) -> Graph:
        """Return the graph with one more input for each variable of ``variable_types``, and one more output for each
        of ``assigned_keys``.

        The two subgraphs of an IF or WHILE need the same inputs and outputs. A variable in ``assigned_keys`` that this
        subgraph does not assign is copied from its input to its output."""
        graph, types = self.graph, dict(self.graph.types)
        inputs, outputs = (
            len(graph.inputs) - len(self.read_variables),
            len(graph.outputs) - len(self.assigned_variables),
        )
        variable_inputs = dict(zip(self.read_variables, graph.inputs[inputs:], strict=True))
        variable_outputs = dict(zip(self.assigned_variables, graph.outputs[outputs:], strict=True))
        nodes = list(graph.nodes)
        for key, type_ in variable_types.items():
            if key not in variable_inputs:
                variable_inputs[key] = new_value(types, "variable", type_)
        for key in assigned_keys:
            if key not in variable_outputs:
                variable_outputs[key] = new_value(types, "kept", variable_types[key])
                nodes.append(
                    Node(
                        "reshape",
                        (variable_inputs[key],),
                        (variable_outputs[key],),
                        {"shape": variable_types[key].shape},
                    )
                )
        return replace(
            graph,
            inputs=(*graph.inputs[:inputs], *(variable_inputs[key] for key in variable_types)),
            outputs=(*graph.outputs[:outputs], *(variable_outputs[key] for key in assigned_keys)),
            nodes=tuple(nodes),
            types=types,
        )


# ---- The graph under construction: values, constants and state, inputs bound to shapes.

DTYPES = ("float32", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool")
"""Dtypes that a value of the graph may have."""
_MAX_STATE_BYTES = 64 << 20
STATE_INSIDE = "keep recurrent layers outside, or write them with variables"


@frozen
class ResourceVariables:
    """TFLite's resource variables of one subgraph, while its operators are converted. All but ``keys_by_handle`` are
    indexed by variable key (container and shared name).

    ``initial_contents`` maps a key to the variable's content before the first run, ``current_values`` to the value that
    contains the variable at this point of the conversion. ``keys_by_handle`` maps the index of a tensor that is a
    handle to the variable's key. ``start_values`` maps a key to the value that contains the variable at the start of a
    run: a state of the graph, or an input if the subgraph belongs to control flow. ``assigned_variables`` is an ordered
    set of the keys of assigned variables."""

    initial_contents: dict[str, Array] = field(default_factory=dict)
    keys_by_handle: dict[int, str] = field(default_factory=dict)
    current_values: dict[str, str] = field(default_factory=dict)
    start_values: dict[str, str] = field(default_factory=dict)
    assigned_variables: dict[str, None] = field(default_factory=dict)


@frozen
class ComputedSlice:
    """A slice of the value ``data_name`` whose begin or size is computed at run time.

    ``begin_name`` and ``size_name`` are names of values of the graph: the index of the first element and the number of
    elements along each axis. A size of -1 means all elements from the begin to the end of the axis.
    """

    data_name: str
    begin_name: str
    size_name: str


class TfliteGraphBuilder:
    """Builder of the graph of one TFLite subgraph. It stores the nodes, types, constants and states defined so far.

    ``read_subgraph(index, handle_inputs)`` reads another subgraph of the file, for control flow. ``enclosing_builder``
    is the builder of the enclosing subgraph, or None for the main subgraph. ``handle_inputs`` maps the positions of
    those inputs that are handles of resource variables to the keys of these variables.

    Some tensors of the file have no value in the graph of their own. ``computed_slices`` contains slices of computed
    size, by tensor name, until a CONCATENATION joins them. ``complex_values`` maps names of complex tensors to float
    values with an additional last axis of real and imaginary parts. ``float16_constants`` contains float16 constants
    computed by operators, by tensor index. ``gates`` lists pairs (index of a node, condition): that node and all later
    ones run only if the condition is true."""

    def __init__(
        self,
        file: TfliteFile,
        input_shapes: Mapping[str, tuple[int, ...]],
        read_subgraph: Callable[[int, Mapping[int, str]], ControlSubgraph],
        enclosing_builder: TfliteGraphBuilder | None = None,
        handle_inputs: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self.file, self.read_subgraph, self.is_control_flow_body = file, read_subgraph, enclosing_builder is not None
        self.computed_slices: dict[str, ComputedSlice] = {}
        self.gates: list[tuple[int, str]] = []
        self.complex_values: dict[str, str] = {}
        self.nodes: list[Node] = []
        self.types: dict[str, TensorType] = {}
        self.consts: dict[str, Array] = {}
        self.float16_constants: dict[int, Array] = {}
        self.state: dict[str, Array] = {}
        self.updates: dict[str, str] = {}
        self.variables: ResourceVariables = ResourceVariables(
            enclosing_builder.variables.initial_contents if enclosing_builder else {}
        )
        self._computed: set[str] = set()
        self._define_inputs(input_shapes, handle_inputs)

    def finish_graph(self, graph_name: str) -> Graph:
        """Return the finished graph; ModelError if no operator writes one of its outputs."""
        variables, outputs = self.variables, list[str]()
        inputs = [self.file.names[index] for index in self.file.inputs if index not in variables.keys_by_handle]
        results = [
            self.resolve_operand(index, f"{self.file.name} outputs")
            for index in self.file.outputs
            if index not in variables.keys_by_handle
        ]
        if self.is_control_flow_body:
            inputs += variables.start_values.values()
            results += [variables.current_values[key] for key in variables.assigned_variables]
        for result in results:
            outputs.append(self._make_distinct_output(result, outputs))
        if not outputs:
            raise ModelError("the model has no outputs", where=self.file.name)
        updates = {state: str(value) for state, value in self.updates.items()}
        state = {name: data for name, data in self.state.items() if name in updates}
        consts = self.consts | {name: data for name, data in self.state.items() if name not in updates}
        return Graph(graph_name, tuple(inputs), tuple(outputs), tuple(self.nodes), self.types, consts, state, updates)

    def resolve_operand(self, tensor_index: int, where: str) -> str:
        """Return the name of tensor ``tensor_index`` as an operand. A constant is added to the graph at its first
        use."""
        name = self.file.names[tensor_index]
        if name not in self.types:
            tensor = self.file.tensor(tensor_index)
            if not tensor.is_constant:
                raise ModelError(f"{name!r} is read before any operator writes it", where=where)
            self.define_constant(name, self.file.array(tensor), tensor.type.quant)
        return name

    def define_constant(self, name: str, data: Array, quant: Quant | None = None) -> str:
        """Define a constant value ``name`` with the content ``data``; return the name."""
        self.file.charge_budget(data.nbytes)
        self.define_value(name, TensorType(data.shape, str(data.dtype), quant), self.file.name)
        self.consts[name] = np.ascontiguousarray(data).reshape(data.shape)
        return name

    def define_value(self, name: str, type_: TensorType, where: str) -> None:
        """Define the type of a new value ``name``; ModelError if the name is defined already."""
        if name in self.types:
            raise ModelError(f"{name!r} is defined twice, expected one operator that writes it", where=where)
        if type_.dtype not in DTYPES:
            raise UnsupportedError(
                f"{name!r} has dtype {type_.dtype}", where=where, hint=f"convert it to one of {', '.join(DTYPES)}"
            )
        check_shape(type_.shape, type_.dtype, where)
        self.types[name] = type_

    def define_state(self, name: str, type_: TensorType, data: Array | None, where: str) -> str:
        """Define a state: a tensor that keeps its content between calls. Return its name.

        ``data`` is the initial content. By default it is the real number 0, as in TFLite Micro: int8 elements start at
        the zero point.
        """
        self.define_value(name, type_, where)
        if type_.nbytes + sum(array.nbytes for array in self.state.values()) > _MAX_STATE_BYTES:
            raise ModelError(
                f"state tensors: got more than {_MAX_STATE_BYTES} bytes in total, expected at most {_MAX_STATE_BYTES}",
                where=where,
            )
        if data is None:
            zero = type_.quant.zero_point[0] if type_.quant and type_.dtype == "int8" else 0
            data = np.full(type_.shape, zero, dtype=type_.dtype)
        self.state[name] = data
        return name

    def _make_distinct_output(self, value_name: str, earlier_outputs: Sequence[str]) -> str:
        """Return ``value_name``, or the name of a copy of this value, for use as an output of the graph.

        The value is copied if no node computes it, or if an earlier output is the same value."""
        if self.is_computed(value_name) and value_name not in earlier_outputs:
            return value_name
        copy, type_ = self.file.reserve_name(f"{value_name}_copy"), self.types[value_name]
        self.define_value(copy, type_, self.file.name)
        self.append_node(
            Node("reshape", (value_name,), (copy,), {"shape": type_.shape}, Loc(self.file.name, name=copy))
        )
        return copy

    def append_node(self, node: Node) -> None:
        """Append a node, and record that its outputs are computed by a node."""
        self.nodes.append(node)
        self._computed.update(node.outputs)

    def is_computed(self, name: str) -> bool:
        """Test whether a node computes the value ``name``. False for inputs, constants and states."""
        return name in self._computed

    def define_declared_outputs(self, tensor_indices: Sequence[int]) -> None:
        """Define the outputs of an operator that was not converted, with the types that the file declares.

        Later operators that read these outputs can then still be checked."""
        for tensor in map(self.file.tensor, tensor_indices):
            self.types.setdefault(tensor.name, tensor.type)

    def _define_inputs(self, requested_shapes: Mapping[str, tuple[int, ...]], handle_inputs: Mapping[int, str]) -> None:
        """Define the subgraph's inputs in order.

        ``requested_shapes`` maps names of inputs to the shapes that the caller requests. ``handle_inputs`` maps
        positions of inputs that are handles to keys of variables; such inputs are not defined as values."""
        names = [self.file.names[index] for index in self.file.inputs]
        for name in requested_shapes:
            if name not in names:
                raise UsageError(
                    f"the model has no input {name!r}",
                    where=self.file.name,
                    hint=f"use one of its inputs: {', '.join(names)}",
                )
        for position, index in enumerate(self.file.inputs):
            if position in handle_inputs:
                self.variables.keys_by_handle[index] = handle_inputs[position]
                continue
            tensor = self.file.tensor(index)
            shape = self._resolve_input_shape(tensor, requested_shapes.get(tensor.name))
            where = self.file.tensor_location(tensor)
            if tensor.type.dtype == "resource":
                raise ModelError(
                    f"input {tensor.name!r}: got a resource handle, expected a tensor of numbers", where=where
                )
            if 0 in shape:
                raise ModelError(f"the input has shape {shape}, expected extents of at least 1", where=where)
            self.define_value(tensor.name, TensorType(shape, tensor.type.dtype, tensor.type.quant), where)

    def _resolve_input_shape(self, tensor: Tensor, requested_shape: tuple[int, ...] | None) -> tuple[int, ...]:
        """Return the shape of an input. Extents that the file does not declare are taken from ``requested_shape``.

        Without a requested shape an unknown batch (axis 0) becomes 1. UsageError if another extent is unknown then, or
        if the requested shape contradicts the declared one."""
        declared, where = tensor.type.shape, self.file.tensor_location(tensor)
        declared_text = ",".join(
            "?" if axis in tensor.unknown_axes else str(extent) for axis, extent in enumerate(declared)
        )
        if requested_shape is None:
            if any(axis > 0 for axis in tensor.unknown_axes):
                raise UsageError(
                    f"the input has unknown extents: {declared_text}",
                    where=where,
                    hint=f"give the shape of input {tensor.name!r}: kernels are compiled for one shape",
                )
            return declared
        fits = len(requested_shape) == len(declared) and all(
            extent >= 1 and (axis in tensor.unknown_axes or extent == declared[axis])
            for axis, extent in enumerate(requested_shape)
        )
        if not fits:
            raise UsageError(
                f"input shape: got {','.join(map(str, requested_shape))}, expected {declared_text}",
                where=where,
                hint=f"give a shape that fits {declared_text}" + ", with a number for each ?" * ("?" in declared_text),
            )
        return tuple(requested_shape)
