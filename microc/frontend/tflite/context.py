"""Context of a TFLite operator's converter: operands and options in the file, and the graph under construction."""

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
from microc.frontend.graph_builder import MAX_INTEGERS, Operands
from microc.frontend.model_limits import check_shape, infer_types
from microc.frontend.tflite.file import Operator, Tensor, TfliteFile
from microc.graph.ir import Attr, Graph, Loc, Node, Quant, TensorType, new_value
from microc.ops import registry
from microc.ops.attributes import Ties

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
        state = {name: data for name, data in self.state.items() if name in self.updates}
        consts = self.consts | {name: data for name, data in self.state.items() if name not in self.updates}
        return Graph(
            graph_name, tuple(inputs), tuple(outputs), tuple(self.nodes), self.types, consts, state, self.updates
        )

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


# ---- Context of one TFLite operator: its operands and options in the file, and functions that append nodes to the graph.
#
# Shapes of results are inferred by microc's operators, then compared with the shapes that the file declares.

_NO_ATTRS: Mapping[str, Attr] = {}

_CALIBRATE = "convert with a representative data set, so that all activations have scales"
_FIX = "make it one: convert with fixed shapes and sizes, which kernels are compiled for"


@frozen
class OpContext(Operands):
    """Context of the converter of one operator in a TFLite file.

    It provides the operator's operands, options and outputs, and appends nodes to the graph under construction."""

    operator: Operator
    builder: TfliteGraphBuilder
    loc: Loc

    @property
    def where(self) -> str:
        """Location in the file and builtin name of the operator, for error messages."""
        return f"{self.loc} {self.operator.code}"

    def has_input(self, input_position: int) -> bool:
        """Test whether input ``input_position`` is present. Optional inputs are left out at the end of the list or have
        the tensor index -1."""
        return input_position < len(self.operator.inputs) and self.operator.inputs[input_position] >= 0

    def input_tensor(self, input_position: int) -> Tensor:
        """Return the file's declaration of the tensor that is input ``input_position``; ModelError if the input is
        missing."""
        if not self.has_input(input_position):
            self.broken(f"input {input_position} is missing")
        return self.builder.file.tensor(self.operator.inputs[input_position])

    def output_tensor(self, output_position: int = 0) -> Tensor:
        """Return the file's declaration of the tensor that is output ``output_position``; ModelError if the output is
        missing."""
        if output_position >= len(self.operator.outputs):
            self.broken(f"output {output_position} is missing")
        return self.builder.file.tensor(self.operator.outputs[output_position])

    def unchanged_operand(self, input_position: int) -> str:
        """Return the name of an operand whose elements the operator moves without computing on them.

        Refuse the operator if the operand and the output differ in dtype."""
        source, target = self.input_tensor(input_position), self.output_tensor()
        if source.type.dtype != target.type.dtype:
            self.refuse(
                f"input {input_position}: its dtype differs from the output's; got {source.type.dtype}, "
                f"expected {target.type.dtype}",
                "insert a CAST or a QUANTIZE before the operator",
            )
        return self.value(input_position)

    def operand(self, input_position: int, dtype: str = "", *, symmetric: bool = True) -> str:
        """Return the name of an operand of arithmetic, after checking its dtype and quantisation.

        Refuse the operator if the operand's dtype is not ``dtype`` (default: dtype of the output), or if the operand or
        the output has 8 or 16 bits and is not quantised per tensor. With ``symmetric`` the zero point of int16 must be
        0.
        """
        source, target = self.input_tensor(input_position), self.output_tensor()
        expected = dtype or target.type.dtype
        if source.type.dtype != expected:
            self.refuse(
                f"input {input_position} has dtype {source.type.dtype}, expected {expected}",
                f"cast or quantise it to {expected}",
            )
        for tensor in (source, target):
            self._require_per_tensor_quantisation(tensor, symmetric)
        return self.value(input_position)

    def _require_per_tensor_quantisation(self, tensor: Tensor, symmetric: bool) -> None:
        """Refuse an int8, uint8 or int16 tensor that is not quantised per tensor.

        With ``symmetric`` also refuse int16 with a zero point other than 0."""
        type_ = tensor.type
        if type_.dtype not in ("int8", "uint8", "int16"):
            return
        if type_.quant is None:
            self.refuse(f"{type_.dtype} tensor {tensor.name!r} has no quantisation", _CALIBRATE)
        if type_.quant.axis is not None:
            self.refuse(
                f"tensor {tensor.name!r}: got an activation quantised along axis {type_.quant.axis}, expected "
                "one scale",
                "quantise activations per tensor",
            )
        if symmetric and type_.dtype == "int16" and type_.quant.zero_point != (0,):
            self.refuse(
                f"int16 tensor {tensor.name!r} has zero point {type_.quant.zero_point[0]}, expected 0",
                "convert the model as int16x8, in which int16 activations are symmetric",
            )

    def value(self, input_position: int) -> str:
        """Return the name of input ``input_position``, of any dtype and quantisation.

        Refuse an int4 tensor that is no constant."""
        source = self.input_tensor(input_position)
        if source.is_packed_int4 and not source.is_constant:
            self.refuse(
                f"tensor {source.name!r}: got a computed int4 tensor, expected int8; only constants may be int4",
                "quantise activations to int8",
            )
        return self.builder.resolve_operand(source.index, self.where)

    def type(self, value: str) -> TensorType:
        """Return the type of a value of the graph."""
        return self.builder.types[value]

    def constant(self, position: int) -> Array:
        """Return the data of a constant input; refuse the operator if the input is not known at compile time."""
        data = self.builder.consts.get(self.value(position))
        if data is None:
            self.refuse(
                f"input {position} ({self.input_tensor(position).name!r}): got a computed tensor, expected a constant",
                _FIX,
            )
        return data

    def cast_indices(self, indices: str) -> str:
        """Return the value ``indices`` as int32 or int64; a narrower integer dtype is cast to int32."""
        type_ = self.type(indices)
        if type_.dtype in ("int32", "int64"):
            return indices
        if type_.dtype not in ("int8", "int16", "uint8"):
            self.refuse(
                f"indices: got dtype {type_.dtype}, expected int8, int16, uint8, int32 or int64", "cast them to int32"
            )
        return self.emit("cast", (indices,), {"dtype": "int32"})

    def shape_of_rank(self, value: str, *allowed_ranks: int) -> tuple[int, ...]:
        """Return the shape of ``value``; raise ModelError unless its rank is one of ``allowed_ranks`` and no extent is
        0."""
        shape = self.type(value).shape
        if len(shape) not in allowed_ranks or 0 in shape:
            self.broken(
                f"{value!r}: got shape {shape}, expected rank {' or '.join(map(str, allowed_ranks))} and "
                "extents of at least 1"
            )
        return shape

    def new_constant(self, stem: str, data: Array, quant: Quant | None = None) -> str:
        """Add a constant that is no tensor of the file; return its name, which is made unique from ``stem``."""
        return self.builder.define_constant(self.builder.file.reserve_name(stem), data, quant)

    def new_filled_constant(self, stem: str, shape: Sequence[int], fill_value: float, dtype: str) -> str:
        """Add a constant whose elements all have the same number; return its name.

        The constant's bytes are subtracted from the file's reading budget before memory is allocated."""
        if any(extent < 0 for extent in shape):
            self.broken(f"got shape {tuple(shape)}, expected extents of at least 0")
        self.builder.file.charge_budget(prod(shape) * dtypes.nbytes(dtype))
        return self.new_constant(stem, np.full(tuple(shape), fill_value, dtypes.to_numpy(dtype)))

    def scalar(self, number: float) -> str:
        """Add a float32 constant of shape (1,); return its name."""
        return self.new_constant("scalar", np.array([number], np.float32))

    def emit(
        self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS, like: TensorType | None = None
    ) -> str:
        """Append a node with one intermediate result; return the result's name, made from that of the TFLite operator's
        output.

        The result has the dtype and quantisation of ``like``. By default its dtype is inferred, and it has the
        quantisation of the first input if both have the same dtype."""
        name = self.builder.file.reserve_name(f"{self.loc.name}_{op}")
        self.write_node_with_outputs(op, inputs, attrs, (name,), (like,))
        return name

    def result(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr], position: int = 0) -> str:
        """Append the node that computes output ``position`` of the operator; return the output's name.

        The output has the dtype and quantisation that the file declares, and the shape that microc infers."""
        target = self.output_tensor(position)
        self.write_node_with_outputs(op, inputs, attrs, (target.name,), (target.type,))
        self.check_declared_shape(target)
        return target.name

    def results(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> None:
        """Append one node that computes all outputs of the operator."""
        targets = [self.output_tensor(position) for position in range(len(self.operator.outputs))]
        types = tuple(target.type for target in targets)
        self.write_node_with_outputs(op, inputs, attrs, tuple(target.name for target in targets), types)
        for target in targets:
            self.check_declared_shape(target)

    def result_reshape(self, value: str, shape: Sequence[int], position: int = 0) -> str:
        """Define output ``position`` as ``value`` reshaped to ``shape``; return the output's name."""
        if prod(shape) != self.type(value).size:
            self.broken(
                f"reshape: got {self.type(value).size} elements, expected {prod(shape)} for shape {tuple(shape)}"
            )
        return self.result("reshape", (value,), {"shape": tuple(shape)}, position)

    def result_constant(self, data: Array) -> None:
        """Define the first output as a constant."""
        target = self.output_tensor()
        self.builder.define_constant(target.name, data, target.type.quant)
        self.check_declared_shape(target)

    def result_with_state(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr], state: str) -> None:
        """Append a node with two results: the operator's output, and the content of ``state`` after this call."""
        target, next_state = self.output_tensor(), self.builder.file.reserve_name(f"{state}_next")
        self.write_node_with_outputs(op, inputs, attrs, (target.name, next_state), (target.type, self.type(state)))
        self.check_declared_shape(target)
        self.builder.updates[state] = next_state

    def infer_types(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> tuple[TensorType, ...]:
        """Infer the types of the results of microc's operator ``op``."""
        return infer_types(op, attrs, [self.type(name) for name in inputs], self.where)

    def write_node_with_outputs(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: Mapping[str, Attr],
        outputs: Sequence[str],
        output_types: Sequence[TensorType | None],
    ) -> None:
        """Append a node, or evaluate it now if it is arithmetic on small constants. Define its outputs.

        ``outputs`` are new names. ``output_types`` has one type for each output, which gives its dtype and
        quantisation; the shape is inferred. None means the default of :meth:`emit`."""
        definition = registry.get(op)
        attrs = {**definition.defaults, **attrs}
        inferred_types = self.infer_types(op, inputs, attrs)
        if len(inferred_types) != len(outputs):
            self.broken(f"got {len(outputs)} outputs, expected {len(inferred_types)}")
        if not definition.regions and self._is_foldable(inputs, inferred_types):
            self._fold_to_constants(op, inputs, attrs, outputs)
            return
        for name, like, type_ in zip(outputs, output_types, inferred_types, strict=True):
            if like is None:
                first = self.type(inputs[0])
                like = first if first.dtype == type_.dtype else type_
            self.builder.define_value(name, TensorType(type_.shape, like.dtype, like.quant), self.where)
        self.builder.append_node(Node(op, tuple(inputs), tuple(outputs), attrs, self.loc))

    def _is_foldable(self, inputs: Sequence[str], result_types: Sequence[TensorType]) -> bool:
        """Test whether a node can be evaluated at compile time.

        This needs at least one input, constant inputs, and inputs and results without quantisation that have at most
        MAX_INTEGERS elements each. Such nodes are arithmetic on shapes and sizes."""
        known = bool(inputs) and all(name in self.builder.consts for name in inputs)
        types = (*result_types, *map(self.type, inputs)) if known else ()
        return known and all(type_.size <= MAX_INTEGERS and type_.quant is None for type_ in types)

    def _fold_to_constants(
        self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr], outputs: Sequence[str]
    ) -> None:
        """Evaluate microc's operator ``op`` by its reference implementation, and define the results as constants."""
        with np.errstate(all="ignore"):
            results = registry.get(op).reference(attrs, [self.builder.consts[name] for name in inputs])
        for name, data in zip(outputs, results, strict=True):
            self.builder.define_constant(name, np.asarray(data))

    def check_declared_shape(self, target: Tensor) -> None:
        """Raise ModelError if the inferred shape of an output contradicts the shape that the file declares.

        Extents that the file does not declare are not compared."""
        shape, declared = self.type(target.name).shape, target.type.shape
        agrees = len(shape) == len(declared) and all(
            axis in target.unknown_axes or extent == declared[axis] for axis, extent in enumerate(shape)
        )
        if declared and not agrees:
            self.broken(f"output shape: the file declares {declared}, which contradicts the operator; expected {shape}")


# ---- Helpers that all families of converters share: dtypes, activations, padding.

FLOAT = ("float32",)
QUANTISED = ("int8", "uint8", "int16")
PLAIN = ("int32", "int64")
"""Integer dtypes of shapes, indices and counts, which are not quantised."""
REAL = FLOAT + QUANTISED
MOVABLE = DTYPES

ONE_SCALE = "give operands and output the same scale and zero point, or insert a QUANTIZE before the operator"
ACTIVATIONS = ("", "relu", "relu_n1_to_1", "relu6", "tanh")
"""microc's names of fused activations, indexed by TFLite's ActivationFunctionType."""


@frozen
class Converter:
    """Converter of one TFLite operator: a function that appends the operator's nodes to the graph, and the dtypes that
    the first output may have. An empty ``dtypes`` allows every dtype."""

    convert: Callable[[OpContext], None]
    dtypes: tuple[str, ...] = REAL


def activation_name(context: OpContext, activation_code: int) -> str:
    """Return microc's name of a fused activation; "" if there is none.

    ``activation_code`` is a number of TFLite's ActivationFunctionType. Refuse an activation that microc does not
    support for the output's dtype."""
    if not 0 <= activation_code < len(ACTIVATIONS):
        context.refuse(
            f"fused_activation_function: got number {activation_code}, expected 0..{len(ACTIVATIONS) - 1}",
            "fuse relu, relu6, relu_n1_to_1 or tanh, or make it an operator of its own",
        )
    name = ACTIVATIONS[activation_code]
    dtype = context.output_tensor().type.dtype
    if (name == "tanh" and dtype != "float32") or (name and dtype in PLAIN):
        context.refuse(
            f"fused_activation_function: {name} of {dtype} is not supported",
            "write the activation as a separate operator",
        )
    return name


def dequantised_operand(context: OpContext, position: int) -> str:
    """Return the name of an operand as float32; a quantised operand is dequantised.

    For operators that microc computes by several nodes on float32."""
    value = context.operand(position)
    quant = context.type(value).quant
    if quant is None:
        return value
    attrs: Mapping[str, Attr] = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": None}
    return context.emit("dequantize", (value,), attrs)


def emit_output_from_float32(
    context: OpContext, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS
) -> None:
    """Append the last of the float32 nodes of an operator, and define the operator's output as its result.

    The result is quantised if the file declares a quantised output."""
    type_ = context.output_tensor().type
    if type_.quant is None:
        context.result(op, inputs, attrs)
        return
    scale: Mapping[str, Attr] = {"scale": type_.quant.scale, "zero_point": type_.quant.zero_point, "axis": None}
    real = context.emit(op, inputs, attrs)
    context.result("quantize", (real,), {**scale, "out_dtype": type_.dtype, "rounding": Ties.AWAY})


_BOUNDS = {"": (-math.inf, math.inf), "relu": (0.0, math.inf), "relu6": (0.0, 6.0), "relu_n1_to_1": (-1.0, 1.0)}


def emit_float32_activation_as_output(context: OpContext, value: str, activation: str) -> None:
    """Apply a fused activation to a float value and write the result as the operator's output."""
    if activation not in _BOUNDS:
        context.refuse(
            f"fused_activation_function: {activation} is not supported here",
            "write the activation as a separate operator",
        )
    low, high = _BOUNDS[activation]
    context.result("clip", (value,), {"minimum": low, "maximum": high})


def reinterpret_as_integers(context: OpContext, value: str) -> str:
    """Return a quantised value reinterpreted as plain integers, without scale and zero point."""
    type_ = context.type(value)
    if type_.quant is None:
        return value
    return context.emit("reshape", (value,), {"shape": type_.shape}, like=replace(type_, quant=None))


def check_same_quantisation(context: OpContext, input_positions: Sequence[int]) -> None:
    """Refuse the operator if an operand's quantisation differs from the output's.

    For operators that move the stored integers: with another scale the same integer is another real number."""
    target = context.output_tensor().type
    if target.dtype in QUANTISED and any(context.input_tensor(i).type.quant != target.quant for i in input_positions):
        context.refuse("quantisation: operands and output have different scales or zero points", ONE_SCALE)


def resolve_padding_scheme(
    context: OpContext,
    padding_scheme: int,
    data_extents: tuple[int, int],
    window_extents: tuple[int, int],
    strides: tuple[int, int],
    dilation: tuple[int, int] = (1, 1),
) -> tuple[int, int, int, int]:
    """Return the padding of TFLite's scheme SAME (0) or VALID (1) as numbers of elements (top, left, bottom, right)."""
    if padding_scheme not in (0, 1):
        context.broken(f"padding is {padding_scheme}, expected 0 (SAME) or 1 (VALID)")
    return (
        (0, 0, 0, 0) if padding_scheme == 1 else compute_same_padding(data_extents, window_extents, strides, dilation)
    )


def compute_same_padding(
    data_extents: Sequence[int], window_extents: Sequence[int], strides: Sequence[int], dilation: Sequence[int] = (1, 1)
) -> tuple[int, int, int, int]:
    """Return the padding of TFLite's scheme SAME as numbers of elements (top, left, bottom, right).

    The padding of an axis is max((ceil(extent / stride) - 1) * stride + (window - 1) * dilation + 1 - extent, 0)
    elements. An odd number is split with the smaller half before the data. Source: TFLite ``padding.h``,
    ComputePaddingWithOffset.
    """
    before, after = [], []
    for size, taps, stride, spread in zip(data_extents, window_extents, strides, dilation, strict=True):
        total = max((-(-size // stride) - 1) * stride + (taps - 1) * spread + 1 - size, 0)
        before.append(total // 2)
        after.append(total - total // 2)
    return (before[0], before[1], after[0], after[1])
