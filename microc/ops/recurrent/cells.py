# SPDX-License-Identifier: Apache-2.0
"""Time steps of recurrent cells: the nodes that an LSTM, GRU or RNN layer computes in each iteration of its loop.

A step is emitted by :class:`StepBuilder` in floats or, for a quantised LSTM, in integers. The sums of its gates are int16 with
twelve fractional bits, and results of sigmoid and tanh have fifteen; the cell state has the scale of the operand ``cell``.
Every product and every sum saturates. Source of the integers: TFLite Micro ``lstm_eval.h``, ``lstm_eval_common.cc``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import Attr, Graph, Loc, Node, Quant, TensorType, new_value
from microc.ops import registry
from microc.ops.arithmetic import ACTIVATION_FUNCTIONS
from microc.ops.attributes import Rounding

# ---- Operands and attributes of a layer.

STATES: Mapping[str, tuple[str, ...]] = {"lstm": ("hidden", "cell"), "gru": ("hidden",), "rnn": ("hidden",)}
"""Operands that are a layer's state before the first step. Its last results are the state after the last step."""
_VECTORS_OF_LSTM = ("peephole_i", "peephole_f", "peephole_o", "projection", "projection_bias")
OPTIONAL_OPERANDS: Mapping[str, tuple[str, ...]] = {
    "lstm": ("bias", *_VECTORS_OF_LSTM, "lengths"),
    "gru": ("bias", "recurrent_bias", "lengths"),
    "rnn": ("bias", "lengths"),
}
"""Operands that may be absent, by operator."""
GATE_SUM_QUANT, ACTIVATION_QUANT = Quant((2.0**-12,), (0,)), Quant((2.0**-15,), (0,))
"""Quantisation of a quantised LSTM's sums of gates, and of the results of its activation functions."""


def list_required_operands(op: str) -> tuple[str, ...]:
    """Return the names of the operands that every layer of the operator ``op`` has, in order."""
    return ("data", "weights", "recurrent", *STATES[op])


def bind_operands(op: str, attrs: Mapping[str, Any], operands: Sequence[Any]) -> dict[str, Any]:
    """Return the operands of a layer by name. The attribute ``optional`` names those after the required ones."""
    return dict(zip((*list_required_operands(op), *attrs["optional"]), operands, strict=False))


def bind_activation_parameters(attrs: Mapping[str, Any]) -> list[tuple[str, tuple[float, ...]]]:
    """Return the names of a layer's activation functions, each with its parameters.

    Raise ValueError if there are more or fewer parameters than the functions have."""
    parameters, functions = [float(number) for number in attrs["activation_parameters"]], []
    for name in attrs["activations"]:
        count = len(ACTIVATION_FUNCTIONS[name].parameters)
        functions.append((name, tuple(parameters[:count])))
        del parameters[:count]
    if parameters or any(len(p) != len(ACTIVATION_FUNCTIONS[name].parameters) for name, p in functions):
        raise ValueError(f"{len(attrs['activation_parameters'])} parameters")
    return functions


@frozen
class RecurrentLayer:
    """A node ``lstm``, ``gru`` or ``rnn`` of a graph: its operands by name, and its extents.

    ``gates``: the letters of its gates, in the order of the rows of its weights."""

    node: Node
    graph: Graph
    operands: Mapping[str, str]

    @classmethod
    def of(cls, node: Node, graph: Graph) -> RecurrentLayer:
        """Return the layer of a node."""
        names = [name for name in node.inputs if name]
        return cls(node, graph, bind_operands(node.op, {**registry.get(node.op).defaults, **node.attrs}, names))

    def attr(self, name: str) -> Any:
        """Return an attribute of the node, or its default."""
        return self.node.attrs.get(name, registry.get(self.node.op).defaults.get(name))

    def type(self, operand: str) -> TensorType:
        """Return the type of the operand with this name."""
        return self.graph.types[self.operands[operand]]

    def find_constant(self, operand: str) -> tuple[Array, Quant | None] | None:
        """Return the data of a constant operand, or of the constant that it dequantises, with their quantisation.

        Return None if the operand is computed."""
        name, consts = self.operands[operand], self.graph.consts
        if name in consts:
            return consts[name], self.graph.types[name].quant
        maker = next((node for node in self.graph.nodes if name in node.outputs), None)
        if maker is None or maker.op != "dequantize" or maker.inputs[0] not in consts:
            return None
        quant = Quant(maker.attr("scale"), maker.attr("zero_point"), maker.attr("axis"))
        return consts[maker.inputs[0]], quant

    @property
    def gates(self) -> str:
        return str(self.attr("gates")) if self.node.op != "rnn" else "h"

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the operands that are the state."""
        return STATES[self.node.op]

    @property
    def time_axis(self) -> int:
        """Axis of the data along which the time steps are."""
        return 0 if self.attr("time_major") else 1

    @property
    def step_count(self) -> int:
        return self.type("data").shape[self.time_axis]

    @property
    def batch_size(self) -> int:
        return self.type("data").shape[1 - self.time_axis]

    @property
    def unit_count(self) -> int:
        return self.type("weights").shape[0] // len(self.gates)

    @property
    def is_float(self) -> bool:
        """True if the step is computed in floats."""
        return self.type("data").dtype == "float32"


def _split_scales(quant: Quant, row_count: int) -> tuple[Quant, Quant]:
    """Return the quantisations of the first ``row_count`` rows, and of the others, of a tensor with a scale for each
    row."""
    first, second = slice(row_count), slice(row_count, None)
    return replace(quant, scale=quant.scale[first], zero_point=quant.zero_point[first]), replace(
        quant, scale=quant.scale[second], zero_point=quant.zero_point[second]
    )


# ---- Builder of the body of a layer's loop.


class StepBuilder:
    """Builder of the body of a layer's loop, which computes one time step.

    The body's inputs are the iteration index, the states, the data of all steps in order of computation, and the
    operands that are no constants (``captured``: their names in the graph). ``input_sums_type``: type of the sums of all
    gates over all steps' data, if they are computed before the loop and replace the data."""

    def __init__(self, layer: RecurrentLayer, input_sums_type: TensorType | None) -> None:
        self.layer, self.captured, self._dequantised = layer, list[str](), set[str]()
        self.body = LoopBodyBuilder(layer.node.loc)
        self.functions = bind_activation_parameters(
            {name: layer.attr(name) for name in ("activations", "activation_parameters")}
        )
        self.rounding = Rounding.NONE if layer.is_float else str(layer.attr("rounding"))
        self.iteration = self.body.add_input("iteration", TensorType((), "int32"))
        self.states = tuple(self.body.add_input(name, layer.type(name)) for name in layer.states)
        data_type = input_sums_type or layer.type("data")
        data = self.body.add_input("data", data_type)
        self.row = self.body.emit("gather", (data, self.iteration), data_type.quant, axis=layer.time_axis)
        self.has_input_sums = input_sums_type is not None

    def emit_input_sums(self) -> str:
        """Append the sums of all gates over the data of this step; return their name."""
        if self.has_input_sums:
            return self.row
        bias = [self.add_operand("bias")] if self.has_operand("bias") else []
        return self.emit_dense(self.row, self.add_operand("weights"), *bias)

    # ---- Operands.

    def has_operand(self, operand: str) -> bool:
        """Test whether the layer has the operand with this name."""
        return operand in self.layer.operands

    def add_operand(self, operand: str) -> str:
        """Add an operand to the body, as a constant or as an input that the loop captures; return its name."""
        constant = self.layer.find_constant(operand)
        if constant is not None:
            return self._add_constant(operand, *constant)
        self.captured.append(self.layer.operands[operand])
        return self.body.add_input(operand, self.layer.type(operand))

    def _add_constant(self, operand: str, data: Array, quant: Quant | None) -> str:
        """Add a constant to the body; return its name. Integers of a float layer are dequantised."""
        name = self.body.add_constant("weights" if operand == "recurrent" else operand, data, quant)
        if quant is None or not self.layer.is_float:
            return name
        real = self.body.emit("dequantize", (name,), scale=quant.scale, zero_point=quant.zero_point, axis=quant.axis)
        self._dequantised.add(real)
        return real

    def split_operand(self, operand: str, row_count: int) -> tuple[str, str]:
        """Add the first ``row_count`` rows of an operand and its other rows; return both names. Rows of a constant are
        constants."""
        constant = self.layer.find_constant(operand)
        if constant is not None:
            data, quant = constant
            quants = (quant, quant) if quant is None or quant.axis != 0 else _split_scales(quant, row_count)
            parts = zip(np.split(data, [row_count]), quants, strict=True)
            first, second = (self._add_constant("weights", part, scales) for part, scales in parts)
            return first, second
        shape = self.layer.type(operand).shape
        whole, strides = self.add_operand(operand), (1,) * len(shape)
        begin, middle = (0,) * len(shape), (row_count, *(0,) * (len(shape) - 1))
        first = self.body.emit("slice", (whole,), begin=begin, end=(row_count, *shape[1:]), strides=strides)
        return first, self.body.emit("slice", (whole,), begin=middle, end=shape, strides=strides)

    # ---- Arithmetic.

    def apply(self, op: str, *operands: str | float, **attrs: Attr) -> str:
        """Append an operator on floats; numbers become constants. It is the emitter of activation functions."""
        names = [
            o if isinstance(o, str) else self.body.add_constant("number", np.array(o, np.float32)) for o in operands
        ]
        if "rounding" in registry.get(op).attrs:
            attrs = {"rounding": Rounding.NONE, **attrs}
        return self.body.emit(op, names, None, "", **attrs)

    def emit_quantised(self, op: str, inputs: Sequence[str], quant: Quant, dtype: str = "int16") -> str:
        """Append an operator; its result is quantised by ``quant`` unless the step is computed in floats."""
        if self.layer.is_float:
            return self.apply(op, *inputs)
        return self.body.emit(op, inputs, quant, dtype, rounding=self.rounding)

    def emit_dense(self, rows: str, weights: str, *bias: str) -> str:
        """Append the dense layer that computes the sums of gates. With the attribute ``dynamic``, rows are quantised at
        run time."""
        if (dynamic := self.layer.attr("dynamic")) and weights in self._dequantised:
            return self.body.emit("dense", (rows, weights, *bias), rounding=Rounding.NONE, dynamic=dynamic)
        return self.emit_quantised("dense", (rows, weights, *bias), GATE_SUM_QUANT)

    def emit_sum(self, a: str, b: str, quant: Quant, limit: float = 0.0) -> str:
        """Append the sum of two values, clamped to +- ``limit`` unless it is 0.

        Quantised values are added as stored integers, and the sum saturates to int16."""
        if self.layer.is_float:
            return self.clip(self.apply("add", a, b), limit)
        wide = [self.body.emit("cast", (name,), dtype="int32") for name in (a, b)]
        total = self.body.emit("add", wide, rounding=Rounding.NONE)
        stored = float(int(min(limit / quant.scale[0], 32767.0)))
        low, high = (-stored, stored) if limit > 0 else (-32768.0, 32767.0)
        clipped = self.body.emit("clip", (total,), minimum=low, maximum=high, rounding=Rounding.NONE)
        return self.body.emit("cast", (clipped,), quant, dtype="int16")

    def clip(self, value: str, limit: float) -> str:
        """Clamp a float value to +- ``limit``; the value itself if the limit is 0."""
        return self.body.emit("clip", (value,), minimum=-limit, maximum=limit) if limit > 0 else value

    def slice_gate(self, sums: str, gate: str) -> str:
        """Append the slice of the sums of one gate; ``sums`` are those of all gates, in the order of ``gates``."""
        units, position = self.layer.unit_count, self.layer.gates.index(gate)
        batch, quant = self.layer.batch_size, self.body.types[sums].quant
        begin, end = (0, position * units), (batch, (position + 1) * units)
        return self.body.emit("slice", (sums,), quant, begin=begin, end=end, strides=(1, 1))

    def activate(self, position: int, value: str, has_clip: bool = True) -> str:
        """Append the layer's activation function number ``position``. Its argument is clamped by the attribute
        ``clip`` unless ``has_clip`` is False."""
        name, parameters = self.functions[position]
        if not self.layer.is_float:
            return self.emit_quantised(name, (value,), ACTIVATION_QUANT)
        if has_clip:
            value = self.clip(value, self.layer.attr("clip"))
        return ACTIVATION_FUNCTIONS[name].emit(self.apply, value, *parameters)

    def finish(self, new_states: Sequence[str]) -> Graph:
        """Return the body, whose outputs are the new states and the row of this step.

        If the layer has the operand ``lengths``, a sequence that ended before this step keeps its states, and its row is
        zero."""
        row = new_states[0]
        if self.has_operand("lengths"):
            lengths = self.body.emit("cast", (self.add_operand("lengths"),), dtype="int32")
            time = self.iteration
            if self.layer.attr("backwards"):
                last = self.body.add_constant("last", np.array(self.layer.step_count - 1, np.int32))
                time = self.apply("sub", last, time)
            is_inside = self.apply("greater", lengths, time)
            is_inside = self.body.emit("reshape", (is_inside,), shape=(self.layer.batch_size, 1))
            pairs = zip(new_states, self.states, strict=True)
            new_states = [self.apply("where", is_inside, new, old) for new, old in pairs]
            row = self.apply("where", is_inside, row, 0.0)
        outputs = {f"next_{name}": value for name, value in zip(self.layer.states, new_states, strict=True)}
        if self.layer.attr("returns_rows"):
            outputs["row"] = row
        return self.body.build_graph(self.layer.node.op, outputs)


# ---- Cells.


def _emit_rnn_step(step: StepBuilder) -> tuple[str, ...]:
    """Emit h' = f(W x + R h + b); return the new hidden state."""
    sums, products = step.emit_input_sums(), step.emit_dense(step.states[0], step.add_operand("recurrent"))
    return (step.activate(0, step.emit_sum(sums, products, GATE_SUM_QUANT)),)


def _emit_gru_step(step: StepBuilder) -> tuple[str, ...]:
    """Emit z, r = f(...), n = g(...), h' = (1 - z) n + z h; return the new hidden state."""
    (hidden,), units, is_linear = step.states, step.layer.unit_count, bool(step.layer.attr("linear_before_reset"))
    input_sums = step.emit_input_sums()
    names = ["recurrent", *(["recurrent_bias"] if step.has_operand("recurrent_bias") else [])]
    # If the reset gate multiplies the hidden state, the candidate (the last gate) has a product of its own.
    parts = [(step.add_operand(name), "") if is_linear else step.split_operand(name, 2 * units) for name in names]
    sums = step.emit_dense(hidden, *(first for first, _ in parts))
    z, r = (
        step.activate(0, step.apply("add", step.slice_gate(input_sums, gate), step.slice_gate(sums, gate)))
        for gate in "zr"
    )
    if is_linear:
        reset = step.apply("mul", r, step.slice_gate(sums, "n"))
    else:
        reset = step.emit_dense(step.apply("mul", r, hidden), *(second for _, second in parts))
    candidate = step.activate(1, step.apply("add", step.slice_gate(input_sums, "n"), reset))
    new_part = step.apply("mul", step.apply("sub", 1.0, z), candidate)
    return (step.apply("add", new_part, step.apply("mul", z, hidden)),)


def _emit_lstm_step(step: StepBuilder) -> tuple[str, ...]:
    """Emit c' = clip(f c + i g), h' = o tanh(c') and its projection; return the new hidden state and cell state."""
    hidden, cell = step.states
    layer, cell_quant = step.layer, step.layer.type("cell").quant or ACTIVATION_QUANT
    sums = step.emit_input_sums()
    sums = step.emit_sum(sums, step.emit_dense(hidden, step.add_operand("recurrent")), GATE_SUM_QUANT)

    def emit_gate(gate: str, cell_state: str) -> str:
        value = step.slice_gate(sums, gate)
        if step.has_operand(f"peephole_{gate}"):
            value = step.apply("add", value, step.apply("mul", step.add_operand(f"peephole_{gate}"), cell_state))
        return step.activate(0, value)

    gates = {gate: emit_gate(gate, cell) for gate in "if" if gate in layer.gates}
    candidate = step.activate(1, step.slice_gate(sums, "g"))
    if not step.has_operand("peephole_o"):
        gates["o"] = emit_gate("o", cell)
    # A gate that has no weights is coupled to the other.
    enter = gates["i"] if "i" in gates else step.apply("sub", 1.0, gates["f"])
    forget = gates["f"] if "f" in gates else step.apply("sub", 1.0, gates["i"])
    kept, new = (step.emit_quantised("mul", pair, cell_quant) for pair in ((forget, cell), (enter, candidate)))
    cell = step.emit_sum(kept, new, cell_quant, layer.attr("cell_clip"))
    bent = step.activate(2, cell, has_clip=False)
    leave = gates["o"] if "o" in gates else emit_gate("o", cell)
    hidden_type = layer.type("hidden")
    hidden = step.emit_quantised("mul", (bent, leave), hidden_type.quant or ACTIVATION_QUANT, hidden_type.dtype)
    if step.has_operand("projection"):
        bias = (step.add_operand("projection_bias"),) if step.has_operand("projection_bias") else ()
        projected = step.emit_dense(hidden, step.add_operand("projection"), *bias)
        hidden = step.clip(projected, layer.attr("projection_clip"))
    return hidden, cell


EMIT_STEP: Mapping[str, Callable[[StepBuilder], tuple[str, ...]]] = {
    "gru": _emit_gru_step,
    "lstm": _emit_lstm_step,
    "rnn": _emit_rnn_step,
}
"""Functions that emit a time step and return the new states, by operator."""


# ---- The same steps in numpy, in float64.


def _apply_operator(op: str, *operands: Any, **attrs: Attr) -> Array:
    """Apply an operator by its reference; numbers and arrays are operands."""
    definition = registry.get(op)
    arrays = [np.asarray(operand, np.float64) for operand in operands]
    return definition.reference({**definition.defaults, **attrs}, arrays)[0]


class ReferenceStep:
    """Time steps of a float layer in numpy. ``operands``: the layer's operands by name."""

    def __init__(self, op: str, attrs: Mapping[str, Any], operands: Mapping[str, Array]) -> None:
        self.attrs, self.operands = attrs, operands
        self.functions = bind_activation_parameters(attrs)
        steps: Mapping[str, Callable[..., tuple[Array, ...]]] = {
            "gru": self._compute_gru, "lstm": self._compute_lstm, "rnn": self._compute_rnn
        }  # fmt: skip
        self.compute = steps[op]
        self.gates = attrs["gates"] if op != "rnn" else "h"

    def activate(self, position: int, value: Array, has_clip: bool = True) -> Array:
        name, parameters = self.functions[position]
        if has_clip:
            value = self.clip(value, "clip")
        return np.asarray(ACTIVATION_FUNCTIONS[name].emit(_apply_operator, value, *parameters))

    def clip(self, value: Array, attribute: str) -> Array:
        limit = self.attrs[attribute]
        return np.clip(value, -limit, limit) if limit > 0 else value

    def multiply(self, x: Array, weights: str, bias: str) -> dict[str, Array]:
        """Return the sums of each gate."""
        sums = x @ self.operands[weights].T + self.operands.get(bias, 0.0)
        return dict(zip(self.gates, np.split(sums, len(self.gates), axis=1), strict=True))

    def _compute_rnn(self, x: Array, hidden: Array) -> tuple[Array, ...]:
        sums = self.multiply(x, "weights", "bias")["h"] + self.multiply(hidden, "recurrent", "")["h"]
        return (self.activate(0, sums),)

    def _compute_gru(self, x: Array, hidden: Array) -> tuple[Array, ...]:
        data_sums = self.multiply(x, "weights", "bias")
        state_sums = self.multiply(hidden, "recurrent", "recurrent_bias")
        z, r = (self.activate(0, data_sums[gate] + state_sums[gate]) for gate in "zr")
        if self.attrs["linear_before_reset"]:
            reset = r * state_sums["n"]
        else:
            reset = self.multiply(r * hidden, "recurrent", "recurrent_bias")["n"]
        return ((1.0 - z) * self.activate(1, data_sums["n"] + reset) + z * hidden,)

    def _compute_lstm(self, x: Array, hidden: Array, cell: Array) -> tuple[Array, ...]:
        data_sums, state_sums = self.multiply(x, "weights", "bias"), self.multiply(hidden, "recurrent", "")

        def gate(name: str, cell_state: Array) -> Array:
            peephole = self.operands.get(f"peephole_{name}", 0.0)
            return self.activate(0, data_sums[name] + state_sums[name] + peephole * cell_state)

        enter = gate("i", cell) if "i" in self.gates else 1.0 - gate("f", cell)
        forget = gate("f", cell) if "f" in self.gates else 1.0 - enter
        cell = self.clip(forget * cell + enter * self.activate(1, data_sums["g"] + state_sums["g"]), "cell_clip")
        hidden = gate("o", cell) * self.activate(2, cell, has_clip=False)
        if "projection" in self.operands:
            projected = hidden @ self.operands["projection"].T + self.operands.get("projection_bias", 0.0)
            hidden = self.clip(projected, "projection_clip")
        return hidden, cell


# ---- Builder of the body of an operator ``loop``: the graph of one iteration over time.


class LoopBodyBuilder:
    """Builder of the graph that an operator ``loop`` runs in each iteration. Nodes are appended one by one.

    ``loc``: the location (name of a layer in the model file) of all nodes; values are named after it."""

    def __init__(self, loc: Loc) -> None:
        self.loc = loc
        self.types: dict[str, TensorType] = {}
        self.consts: dict[str, Array] = {}
        self._inputs: list[str] = []
        self._nodes: list[Node] = []

    def add_input(self, name: str, tensor_type: TensorType) -> str:
        """Add an input of the graph; return its unique name."""
        self._inputs.append(new_value(self.types, name, tensor_type))
        return self._inputs[-1]

    def add_constant(self, stem: str, data: Array, quant: Quant | None = None) -> str:
        """Add a constant to the graph; return its unique name, which begins with ``stem``."""
        name = new_value(self.types, stem, TensorType(data.shape, data.dtype.name, quant))
        self.consts[name] = np.asarray(data, order="C")
        return name

    def emit(
        self, op: str, inputs: Sequence[str], quant: Quant | None = None, stored_dtype: str = "", **attrs: Attr
    ) -> str:
        """Append a node of operator ``op``; return the name of its result.

        ``quant``: scale and zero point of a quantised result. ``stored_dtype``: dtype of the result if it differs from
        the inferred one."""
        whole = {**registry.get(op).defaults, **attrs}
        (tensor_type,) = registry.infer(op, whole, [self.types[name] for name in inputs])
        name = new_value(
            self.types, self.loc.name or op, replace(tensor_type, quant=quant, dtype=stored_dtype or tensor_type.dtype)
        )
        self._nodes.append(Node(op, tuple(inputs), (name,), whole, self.loc))
        return name

    def copy_node(self, node: Node, result_types: Sequence[TensorType]) -> tuple[str, ...]:
        """Append a copy of ``node`` whose results have new names; return these names.

        ``result_types``: types of the results."""
        result_names = tuple(
            new_value(self.types, name, tensor_type)
            for name, tensor_type in zip(node.outputs, result_types, strict=True)
        )
        self._nodes.append(replace(node, outputs=result_names))
        return result_names

    def build_graph_with_value_names(self, graph_name: str, output_values: Sequence[str]) -> Graph:
        """Return the graph; its outputs are the values ``output_values``, under their own names."""
        return Graph(graph_name, tuple(self._inputs), tuple(output_values), (), self.types, self.consts).with_nodes(
            self._nodes
        )

    def build_graph(self, graph_name: str, outputs: Mapping[str, str]) -> Graph:
        """Return the graph; ``outputs`` maps the name of each output to the value that it returns."""
        names: list[str] = []
        for label, value in outputs.items():
            names.append(new_value(self.types, label, self.types[value]))
            shape = self.types[value].shape
            self._nodes.append(Node("reshape", (value,), (names[-1],), {"shape": shape}, Loc(self.loc.file, -1, label)))
        return self.build_graph_with_value_names(graph_name, names)
