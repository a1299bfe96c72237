"""Conversion of ONNX RNN, GRU and LSTM to loops over time steps that carry the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend import formulas
from microc.frontend.formulas import should_precompute_input_products, slice_gate
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.onnx.context import ConverterTable, OpContext
from microc.frontend.signature import Floats, SameDtype, Strings, Value
from microc.graph.ir import Attr, Graph

CONVERTERS = ConverterTable()

# ---- One step of each cell, and the activation functions of the gates.
#
# Source: ONNX RNN, GRU, LSTM. Default parameters of the functions are those of ONNX's operators of the same names.


@frozen
class GateActivation:
    """Activation function of a gate.

    ``name``: ONNX's name in lower case. ``parameters``: alpha and beta, as far as the function has them."""

    name: str
    parameters: tuple[float, ...] = ()


@frozen
class _ActivationEmitter:
    """Function that emits an activation function, with the defaults of its parameters alpha and beta.

    A default is None if the activation function has no such parameter."""

    emit: Callable[..., str]
    alpha: float | None = None
    beta: float | None = None


def _make_operator_formula(op_name: str) -> _ActivationEmitter:
    """Return the emitter of an activation function that is a single graph operator, ``op_name``."""
    return _ActivationEmitter(lambda make, x: make(op_name, x))


FUNCTIONS: Mapping[str, _ActivationEmitter] = {
    "affine": _ActivationEmitter(formulas.emit_affine, 1.0, 0.0),
    "elu": _ActivationEmitter(lambda make, x, alpha: make("elu", x, alpha=alpha), 1.0),
    "hardsigmoid": _ActivationEmitter(formulas.emit_hard_sigmoid, 0.2, 0.5),
    "leakyrelu": _ActivationEmitter(lambda make, x, alpha: make("leaky_relu", x, alpha=alpha), 0.01),
    "relu": _make_operator_formula("relu"),
    "scaledtanh": _ActivationEmitter(formulas.emit_scaled_tanh, 1.0, 1.0),
    "sigmoid": _make_operator_formula("sigmoid"),
    "softplus": _make_operator_formula("softplus"),
    "softsign": _ActivationEmitter(formulas.emit_softsign),
    "tanh": _make_operator_formula("tanh"),
    "thresholdedrelu": _ActivationEmitter(formulas.emit_thresholded_relu, 1.0),
}
"""Activation functions by ONNX's names in lower case."""


def resolve_activations(
    activation_names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]
) -> tuple[GateActivation, ...]:
    """Return the activation functions with these names, and their parameters.

    Functions that have a parameter alpha take the numbers of ``alphas`` in order, and ONNX's default after the last
    number. ``betas`` are assigned to functions that have a parameter beta in the same way."""
    chosen = []
    for name in activation_names:
        formula, parameters = FUNCTIONS[name], []
        if formula.alpha is not None:
            alpha, alphas = (alphas[0], alphas[1:]) if alphas else (formula.alpha, alphas)
            parameters.append(alpha)
        if formula.beta is not None:
            beta, betas = (betas[0], betas[1:]) if betas else (formula.beta, betas)
            parameters.append(beta)
        chosen.append(GateActivation(name, tuple(parameters)))
    return tuple(chosen)


@frozen
class RecurrentAttributes:
    """Attributes of RNN, GRU and LSTM."""

    activation_alpha: Floats = ()
    activation_beta: Floats = ()
    activations: Strings = ()
    clip: float = 0.0
    direction: Literal["forward", "reverse", "bidirectional"] = "forward"
    hidden_size: int | None = None
    layout: bool = False


@frozen
class RecurrentOperands:
    """Operands of RNN, GRU and LSTM: data, input weights, state weights, bias, lengths of sequences, hidden state."""

    x: Value
    w: SameDtype
    r: SameDtype
    b: SameDtype | None
    sequence_lens: Value | None
    initial_h: SameDtype | None


@frozen
class RecurrentLayer:
    """A recurrent layer: its operands, sizes and attributes.

    ``op_type``: RNN, GRU or LSTM. ``activations``: activation functions of the gates. ``clip``: largest magnitude of
    the activation functions' arguments; 0 for no limit. ``is_batch_first``: the batch is the first axis of data, states
    and results. ``initial_c``, ``p``: cell state and peephole weights of an LSTM. ``input_forget``: the forget gate is
    one minus the input gate."""

    op_type: str
    operands: RecurrentOperands
    step_count: int
    batch_size: int
    unit_count: int
    directions: tuple[Literal["forward", "reverse"], ...]
    activations: tuple[GateActivation, ...]
    clip: float
    is_batch_first: bool
    initial_c: Value | None = None
    p: Value | None = None
    input_forget: bool = False
    linear_before_reset: bool = False

    @property
    def initial_states(self) -> tuple[Value | None, ...]:
        """The hidden state and, of an LSTM, the cell state before the first step; None for zeros."""
        return (self.operands.initial_h, self.initial_c) if self.op_type == "LSTM" else (self.operands.initial_h,)


@frozen
class StateWeights:
    """Names of the weights that are applied to a recurrent layer's state: matrix, bias and peephole weights.

    They are values of the loop's body. A name is empty if the layer has no such weights."""

    matrix_name: str
    bias_name: str
    peepholes_name: str


class StepBuilder:
    """Builder of the loop body that computes one time step of a recurrent layer.

    Values of the surrounding graph that the body reads become constants or inputs of the body."""

    def __init__(self, context: OpContext, layer: RecurrentLayer) -> None:
        self.context, self.layer = context, layer
        self.body = GraphBuilder(context.loc.file)
        self.body.at(context.loc.index, context.loc.name)
        self.iteration = self.body.input("turn", (), "int32")
        self.fixed: list[str] = []

    def add_carried_input(self, initial_value_name: str, input_name: str) -> str:
        """Add an input to the body for a value that the loop carries from step to step, such as the hidden state.

        Return the input's name. ``initial_value_name``: the value before the first step, which has the same type."""
        type_ = self.context.type(initial_value_name)
        return self.body.input(input_name, type_.shape, type_.dtype)

    def capture_value(self, value_name: str) -> str:
        """Make a value of the surrounding graph readable in the loop's body; return its name in the body."""
        value = self.context.look_up(value_name)
        if value.constant is not None:
            return self.body.new_constant("weights", value.constant)
        self.fixed.append(value_name)
        return self.body.input("fixed", value.shape, value.dtype)

    def __call__(self, op: str, *operands: str | float, **attrs: Attr) -> str:
        names = [o if isinstance(o, str) else self.body.scalar(o) for o in operands]
        return self.body.emit(op, names, attrs)

    def slice_gate_sums(self, gate_sums_name: str, gate_index: int) -> str:
        """Emit a slice of ``gate_sums_name``, the concatenated sums of all gates.

        Return the name of the slice, the sums of gate ``gate_index``."""
        return slice_gate(self.body, gate_sums_name, gate_index, self.layer.unit_count)

    def emit_clipped_activation(self, function_index: int, value_name: str) -> str:
        """Clip a value if the layer has attribute ``clip``, then emit activation function number ``function_index``.

        Return the result's name."""
        if self.layer.clip:
            value_name = self("clip", value_name, minimum=-self.layer.clip, maximum=self.layer.clip)
        return self.emit_activation(function_index, value_name)

    def emit_activation(self, function_index: int, value_name: str) -> str:
        """Emit the layer's activation function number ``function_index`` of a value; return the result's name."""
        function = self.layer.activations[function_index]
        return FUNCTIONS[function.name].emit(self, value_name, *function.parameters)


def finish_step_body(step: StepBuilder, old_state_names: list[str], new_state_names: list[str]) -> Graph:
    """Return the finished loop body, with the new states and the output row of the step as its outputs.

    If the layer has sequence lengths, a sequence that ended before this step keeps its old states, and its row is
    zero."""
    row = new_state_names[0]
    if step.layer.operands.sequence_lens is not None:
        lengths = step("cast", step.capture_value(step.layer.operands.sequence_lens), dtype="int32")
        is_inside = step.body.reshape(step("greater", lengths, step.iteration), (step.layer.batch_size, 1))
        new_state_names = [
            step("where", is_inside, fresh, before)
            for fresh, before in zip(new_state_names, old_state_names, strict=True)
        ]
        row = step("where", is_inside, row, step.body.scalar(0.0))
    names = [*(f"next_{k}" for k in range(len(new_state_names))), "row"]
    return step.body.graph("step", dict(zip(names, (*new_state_names, row), strict=True)))


def _emit_state_sums(step: StepBuilder, hidden_state: str, state_weights: StateWeights) -> str:
    """Emit the hidden state times the weights of all gates, plus the bias; return the name of the sums."""
    return step(
        "dense",
        hidden_state,
        state_weights.matrix_name,
        *((state_weights.bias_name,) if state_weights.bias_name else ()),
    )


def _emit_rnn_step(step: StepBuilder, input_sums: str, old_states: list[str], state_weights: StateWeights) -> list[str]:
    """Emit a time step of an RNN; return a list with the new hidden state."""
    return [
        step.emit_clipped_activation(0, step("add", input_sums, _emit_state_sums(step, old_states[0], state_weights)))
    ]


def _emit_gru_step(step: StepBuilder, input_sums: str, old_states: list[str], state_weights: StateWeights) -> list[str]:
    """Emit a time step of a GRU.

    Return a list with the new hidden state. The order of gates is update, reset, hidden."""
    (hidden,), units = old_states, step.layer.unit_count
    sums = _emit_state_sums(step, hidden, state_weights)
    update, reset = (
        step.emit_clipped_activation(0, step("add", step.slice_gate_sums(input_sums, k), step.slice_gate_sums(sums, k)))
        for k in (0, 1)
    )
    if step.layer.linear_before_reset:
        reset_sums = step("mul", reset, step.slice_gate_sums(sums, 2))
    else:
        ends: dict[str, Attr] = {"begin": (2 * units, 0), "end": (3 * units, units), "strides": (1, 1)}
        reset_sums = step("dense", step("mul", reset, hidden), step("slice", state_weights.matrix_name, **ends))
        if state_weights.bias_name:
            reset_sums = step(
                "add",
                reset_sums,
                step("slice", state_weights.bias_name, begin=(2 * units,), end=(3 * units,), strides=(1,)),
            )
    candidate = step.emit_clipped_activation(1, step("add", step.slice_gate_sums(input_sums, 2), reset_sums))
    return [step("add", step("mul", step("sub", 1.0, update), candidate), step("mul", update, hidden))]


def _emit_lstm_step(
    step: StepBuilder, input_sums: str, old_states: list[str], state_weights: StateWeights
) -> list[str]:
    """Emit a time step of an LSTM; return the new hidden state and the new cell state.

    The order of gates is input, output, forget, cell; that of peephole weights is input, output, forget. As in ONNX
    Runtime, the cell state is not clipped before the last activation function."""
    hidden, cell = old_states
    sums = step("add", input_sums, _emit_state_sums(step, hidden, state_weights))
    units = step.layer.unit_count

    def add_peephole(gate_index: int, cell_state: str) -> str:
        """Emit the sums of gate ``gate_index`` plus its peephole weights times the cell state; return the result's
        name.

        If the layer has no peephole weights, the sums are unchanged."""
        if not state_weights.peepholes_name:
            return step.slice_gate_sums(sums, gate_index)
        peephole = step(
            "slice",
            state_weights.peepholes_name,
            begin=(gate_index * units,),
            end=((gate_index + 1) * units,),
            strides=(1,),
        )
        return step("add", step.slice_gate_sums(sums, gate_index), step("mul", peephole, cell_state))

    enter = step.emit_clipped_activation(0, add_peephole(0, cell))
    forget = (
        step("sub", 1.0, enter) if step.layer.input_forget else step.emit_clipped_activation(0, add_peephole(2, cell))
    )
    candidate = step.emit_clipped_activation(1, step.slice_gate_sums(sums, 3))
    following = step("add", step("mul", forget, cell), step("mul", enter, candidate))
    leave = step.emit_clipped_activation(0, add_peephole(1, following))
    return [step("mul", leave, step.emit_activation(2, following)), following]


CELLS: Mapping[str, Callable[[StepBuilder, str, list[str], StateWeights], list[str]]] = {
    "RNN": _emit_rnn_step,
    "GRU": _emit_gru_step,
    "LSTM": _emit_lstm_step,
}


# ---- Converters of RNN, GRU and LSTM.
#
# Source: ONNX RNN, GRU, LSTM.

_DEFAULTS = {"RNN": ("tanh",), "GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh")}


@CONVERTERS.register("RNN", dtypes=("float32",))
def convert_rnn(context: OpContext, operands: RecurrentOperands, *, attributes: RecurrentAttributes) -> None:
    """Convert RNN."""
    _write_layer(context, _make_layer(context, "RNN", operands, attributes))


@CONVERTERS.register("GRU", dtypes=("float32",))
def convert_gru(
    context: OpContext,
    operands: RecurrentOperands,
    *,
    linear_before_reset: bool = False,
    attributes: RecurrentAttributes,
) -> None:
    """Convert GRU."""
    layer = _make_layer(context, "GRU", operands, attributes)
    _write_layer(context, replace(layer, linear_before_reset=linear_before_reset))


@CONVERTERS.register("LSTM", dtypes=("float32",))
def convert_lstm(
    context: OpContext,
    operands: RecurrentOperands,
    initial_c: SameDtype | None,
    p: SameDtype | None,
    *,
    input_forget: bool = False,
    attributes: RecurrentAttributes,
) -> None:
    """Convert LSTM."""
    layer = _make_layer(context, "LSTM", operands, attributes)
    _write_layer(context, replace(layer, initial_c=initial_c, p=p, input_forget=input_forget))


@CONVERTERS.register("DynamicQuantizeLSTM", dtypes=("float32",), domain="com.microsoft")
def convert_dynamic_quantize_lstm(
    context: OpContext,
    x: Value,
    w: Array,
    r: Array,
    b: SameDtype | None,
    sequence_lens: Value | None,
    initial_h: SameDtype | None,
    initial_c: SameDtype | None,
    p: SameDtype | None,
    w_scale: Array,
    w_zero_point: Array | None,
    r_scale: Array,
    r_zero_point: Array | None,
    *,
    input_forget: bool = False,
    attributes: RecurrentAttributes,
) -> None:
    """Convert DynamicQuantizeLSTM to an LSTM in float32 with weights dequantised at compile time.

    ONNX Runtime's operator also quantises data and state at every time step. The float32 LSTM does not, so its results
    are closer to those of the trained network."""
    real_w, real_r = (
        context.new_constant(f"{context.output()}_weight", _dequantise_lstm_weights(context, *operands))
        for operands in ((w, w_scale, w_zero_point), (r, r_scale, r_zero_point))
    )
    operands = RecurrentOperands(x, real_w, real_r, b, sequence_lens, initial_h)
    layer = _make_layer(context, "LSTM", operands, attributes)
    _write_layer(context, replace(layer, initial_c=initial_c, p=p, input_forget=input_forget))


def _dequantise_lstm_weights(context: OpContext, weights: Array, scales: Array, zero_points: Array | None) -> Array:
    """Return the dequantised weights of DynamicQuantizeLSTM in the layout of LSTM, (directions, 4 * hidden, inputs).

    ``weights`` have the layout (directions, inputs, 4 * hidden). There is one scale, and one zero point, for each
    direction, or for each direction and each of the 4 * hidden columns."""
    zero = np.zeros_like(scales) if zero_points is None else zero_points
    if weights.ndim != 3 or scales.shape not in (weights.shape[:1], weights.shape[::2]) or zero.shape != scales.shape:
        context.broken(
            f"got weights of shape {weights.shape} with scales {scales.shape} and zero points {zero.shape}, expected three "
            f"axes and one scale for each of {weights.shape[:1]} or of {weights.shape[::2]}"
        )
    shape = (weights.shape[0], 1, scales.size // weights.shape[0])
    real = (weights.astype(np.float32) - zero.astype(np.float32).reshape(shape)) * scales.reshape(shape)
    return np.ascontiguousarray(real.transpose(0, 2, 1))


def _make_layer(
    context: OpContext, op_type: str, operands: RecurrentOperands, attributes: RecurrentAttributes
) -> RecurrentLayer:
    """Return a recurrent layer; raise ModelError if its operands and attributes are inconsistent."""
    direction_count = 2 if attributes.direction == "bidirectional" else 1
    x, w = operands.x, operands.w
    if x.rank != 3 or w.rank != 3 or w.shape[0] != direction_count:
        context.broken(
            f"got data of shape {x.shape} and weights W of shape {w.shape}, expected three axes each and "
            f"{direction_count} matrices of weights for direction {attributes.direction!r}"
        )
    defaults = _DEFAULTS[op_type] * direction_count
    names = tuple(name.lower() for name in attributes.activations) or defaults
    if any(name not in FUNCTIONS for name in names) or len(names) != len(defaults):
        context.broken(f"got activations {', '.join(names)}, expected {len(defaults)} of {', '.join(FUNCTIONS)}")
    return RecurrentLayer(
        op_type,
        operands,
        step_count=x.shape[1] if attributes.layout else x.shape[0],
        batch_size=x.shape[0] if attributes.layout else x.shape[1],
        unit_count=operands.r.shape[2],
        directions=("forward", "reverse") if attributes.direction == "bidirectional" else (attributes.direction,),
        activations=resolve_activations(names, attributes.activation_alpha, attributes.activation_beta),
        clip=attributes.clip,
        is_batch_first=attributes.layout,
    )


def _write_layer(context: OpContext, layer: RecurrentLayer) -> None:
    """Write a recurrent layer as a loop for each direction: forward, reverse, or both."""
    data = layer.operands.x
    if layer.is_batch_first:
        data = context.emit("transpose", (data,), {"axes": (1, 0, 2)})
    rows_and_states = []
    count = len(layer.activations) // len(layer.directions)
    for k in range(len(layer.directions)):
        direction_layer = replace(layer, activations=layer.activations[k * count : (k + 1) * count])
        rows_and_states.append(_emit_rows_and_final_states(context, direction_layer, data, k))
    _write_recurrent_outputs(context, layer, rows_and_states)


def _reverse_sequence(context: OpContext, layer: RecurrentLayer, value: str) -> str:
    """Emit the reversal of sequences (steps, batch, ...) in time; return the result's name.

    If the layer has sequence lengths, each sequence is reversed within its own length."""
    if layer.operands.sequence_lens is not None:
        return context.emit(
            "reverse_sequence", (value, layer.operands.sequence_lens), {"batch_axis": 1, "time_axis": 0}
        )
    return context.emit("reverse", (value,), {"axes": (0,)})


def _slice_direction(context: OpContext, value: Value, direction_index: int, direction_axis: int = 0) -> Value:
    """Return the slice of an operand that belongs to direction ``direction_index``.

    ``direction_axis``: the operand's axis of directions, which is removed from the slice."""
    shape = value.shape
    if value.constant is not None:
        return context.new_constant(
            f"{value}_{direction_index}", np.ascontiguousarray(np.take(value.constant, direction_index, direction_axis))
        )
    begin, end = [0] * len(shape), list(shape)
    begin[direction_axis], end[direction_axis] = direction_index, direction_index + 1
    if shape[direction_axis] > 1:
        attrs: Mapping[str, Attr] = {"begin": tuple(begin), "end": tuple(end), "strides": (1,) * len(shape)}
        value = context.emit("slice", (value,), attrs)
    return context.reshape(value, (*shape[:direction_axis], *shape[direction_axis + 1 :]))


def _get_initial_state(
    context: OpContext, layer: RecurrentLayer, initial_state: Value | None, direction_index: int
) -> Value:
    """Return the initial state (batch, units) of one direction: a constant of zeros if ``initial_state`` is absent."""
    if initial_state is not None:
        return _slice_direction(context, initial_state, direction_index, 1 if layer.is_batch_first else 0)
    zeros = np.zeros((layer.batch_size, layer.unit_count), np.float32)
    return context.new_constant(f"{context.output() or context.loc.name}_state", zeros)


def _emit_rows_and_final_states(
    context: OpContext, layer: RecurrentLayer, data: str, direction_index: int
) -> tuple[str, list[str]]:
    """Emit the loop over time steps for one direction of a recurrent layer.

    Return the name of the outputs of all steps (steps, batch, units), and the names of the final states."""
    weight, matrix = (
        _slice_direction(context, value, direction_index) for value in (layer.operands.w, layer.operands.r)
    )
    is_reversed = layer.directions[direction_index] == "reverse"
    if is_reversed:
        data = _reverse_sequence(context, layer, data)
    biases = _get_input_and_state_bias(context, layer, direction_index, weight.shape[0])
    states = [_get_initial_state(context, layer, state, direction_index) for state in layer.initial_states]
    step = StepBuilder(context, layer)
    old = [step.add_carried_input(value, name) for value, name in zip(states, ("hidden", "cell"), strict=False)]
    input_sums = _emit_input_sums(context, step, data, weight, biases[0])
    peepholes = "" if layer.p is None else step.capture_value(_slice_direction(context, layer.p, direction_index))
    cell = StateWeights(step.capture_value(matrix), step.capture_value(biases[1]) if biases[1] else "", peepholes)
    new = CELLS[layer.op_type](step, input_sums, old, cell)
    body = finish_step_body(step, old, new)
    attrs: dict[str, Any] = {"body": body, "count": layer.step_count, "carried": len(states), "guarded": False}
    loop_outputs = [
        context.builder.make_unique_name(f"{context.loc.name}_{stem}") for stem in (*("last",) * len(states), "rows")
    ]
    context.write_node_with_outputs("loop", (*states, *step.fixed), attrs, loop_outputs)
    rows = _reverse_sequence(context, layer, loop_outputs[-1]) if is_reversed else loop_outputs[-1]
    return rows, loop_outputs[:-1]


def _get_input_and_state_bias(
    context: OpContext, layer: RecurrentLayer, direction_index: int, gate_element_count: int
) -> tuple[str, str]:
    """Return the names of the input bias (ONNX's Wb) and of the state bias (ONNX's Rb).

    Only GRU needs both. For other layers the first is the sum of both and the second is empty. Both are empty if the
    layer has no bias. ``gate_element_count``: number of gates times number of units."""
    if layer.operands.b is None:
        return "", ""
    both = _slice_direction(context, layer.operands.b, direction_index)
    data, state = (_slice_bias_half(context, both, gate_element_count, half) for half in (0, 1))
    return (data, state) if layer.op_type == "GRU" else (context.emit("add", (data, state)), "")


def _slice_bias_half(context: OpContext, bias: Value, gate_element_count: int, half_index: int) -> Value:
    """Return the first (``half_index`` 0) or second half of a bias, ``gate_element_count`` elements each."""
    begin = half_index * gate_element_count
    if bias.constant is not None:
        return context.new_constant(f"{bias}_{half_index}", bias.constant[begin:][:gate_element_count])
    attrs: Mapping[str, Attr] = {"begin": (begin,), "end": (begin + gate_element_count,), "strides": (1,)}
    return context.emit("slice", (bias,), attrs)


def _emit_input_sums(context: OpContext, step: StepBuilder, data: str, weight: Value, bias_name: str) -> str:
    """Emit the data of one step times the input weights, plus the bias; return the name of the sums in the loop's body.

    The products of all steps are computed before the loop if :func:`should_precompute_input_products` allows, and in
    the body otherwise."""
    steps, batch, depth = context.type(data).shape
    size = weight.shape[0]
    if not should_precompute_input_products(steps, size, depth):
        row = step("gather", step.capture_value(data), step.iteration, axis=0)
        return step("dense", row, step.capture_value(weight), *((step.capture_value(bias_name),) if bias_name else ()))
    flat = context.reshape(data, (steps * batch, depth))
    sums = context.emit("dense", (flat, weight, bias_name) if bias_name else (flat, weight))
    return step("gather", step.capture_value(context.reshape(sums, (steps, batch, size))), step.iteration, axis=0)


def _write_recurrent_outputs(
    context: OpContext, layer: RecurrentLayer, rows_and_states_by_direction: list[tuple[str, list[str]]]
) -> None:
    """Write the operator's outputs: rows (steps, directions, batch, units) and final states (directions, batch, units).

    ``rows_and_states_by_direction``: for each direction the names of its rows and final states. If the layer is batch
    first, the batch is the first axis."""
    stacked = [
        [rows for rows, _ in rows_and_states_by_direction],
        *([states[k] for _, states in rows_and_states_by_direction] for k in range(len(layer.initial_states))),
    ]
    for position, values in enumerate(stacked):
        if not context.output(position):
            continue
        shape = context.type(values[0]).shape
        axis = len(shape) - 2
        apart = [context.reshape(value, (*shape[:axis], 1, *shape[axis:])) for value in values]
        whole = apart[0] if len(apart) == 1 else context.emit("concat", apart, {"axis": axis})
        if layer.is_batch_first:
            order = (2, 0, 1, 3) if position == 0 else (1, 0, 2)
            whole = context.emit("transpose", (whole,), {"axes": order})
        context.alias_output(context.output(position), whole)
