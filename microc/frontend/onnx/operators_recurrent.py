"""Conversion of ONNX RNN, GRU and LSTM to loops over time steps that carry the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from microc.base.immutable import frozen
from microc.frontend import formulas
from microc.frontend.formulas import should_precompute_input_products, slice_gate
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.onnx.context import Converter, OpContext
from microc.graph.ir import Attr, Graph

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
class RecurrentLayer:
    """Sizes and attributes of a recurrent layer.

    ``op_type``: RNN, GRU or LSTM. ``activations``: activation functions of the gates. ``clip``: largest magnitude of
    the activation functions' arguments; 0 for no limit. ``input_forget``: the forget gate is one minus the input
    gate."""

    op_type: str
    step_count: int
    batch_size: int
    unit_count: int
    direction_count: int
    activations: tuple[GateActivation, ...]
    clip: float
    input_forget: bool


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
        data_of_constant, type_ = self.context.builder.consts.get(value_name), self.context.type(value_name)
        if data_of_constant is not None:
            return self.body.new_constant("weights", data_of_constant)
        self.fixed.append(value_name)
        return self.body.input("fixed", type_.shape, type_.dtype)

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


def finish_step_body(
    step: StepBuilder, context: OpContext, old_state_names: list[str], new_state_names: list[str]
) -> Graph:
    """Return the finished loop body, with the new states and the output row of the step as its outputs.

    If the operator has sequence lengths, a sequence that ended before this step keeps its old states, and its row is
    zero."""
    row = new_state_names[0]
    if context.has_input(4):
        lengths = step("cast", step.capture_value(context.value(4)), dtype="int32")
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
    if step.context.operator.attributes.flag("linear_before_reset"):
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


# ---- Converter of RNN, GRU and LSTM.
#
# Source: ONNX RNN, GRU, LSTM.

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_DEFAULTS = {"RNN": ("tanh",), "GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh")}


def _read_recurrent_layer(context: OpContext) -> RecurrentLayer:
    """Return the extents and attributes of a recurrent layer; raise ModelError if they are inconsistent."""
    attributes, op_type = context.operator.attributes, context.operator.op_type
    direction = attributes.text("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        context.broken(f"direction is {direction!r}, expected forward, reverse or bidirectional")
    shape, directions = context.shape(0), 2 if direction == "bidirectional" else 1
    if len(shape) != 3 or len(context.shape(1)) != 3 or context.shape(1)[0] != directions:
        context.broken(
            f"got data of shape {shape} and weights W of shape {context.shape(1)}, expected three axes each and "
            f"{directions} matrices of weights for direction {direction!r}"
        )
    steps, batch = (shape[1], shape[0]) if attributes.flag("layout") else shape[:2]
    names = tuple(name.lower() for name in attributes.texts("activations")) or _DEFAULTS[op_type] * directions
    if any(name not in FUNCTIONS for name in names) or len(names) != len(_DEFAULTS[op_type]) * directions:
        context.broken(
            f"got activations {', '.join(names)}, "
            f"expected {len(_DEFAULTS[op_type]) * directions} of {', '.join(FUNCTIONS)}"
        )
    chosen = resolve_activations(
        names, attributes.reals("activation_alpha", ()), attributes.reals("activation_beta", ())
    )
    units, forgets = context.shape(2)[2], attributes.flag("input_forget")
    return RecurrentLayer(op_type, steps, batch, units, directions, chosen, attributes.real("clip", 0.0), forgets)


def convert_recurrent_layer(context: OpContext) -> None:
    """Convert RNN, GRU or LSTM to a loop for each direction: forward, reverse, or both."""
    layer, attributes = _read_recurrent_layer(context), context.operator.attributes
    data = context.value(0)
    batch_first = attributes.flag("layout")
    if batch_first:
        data = context.emit("transpose", (data,), {"axes": (1, 0, 2)})
    directions = []
    for k in range(layer.direction_count):
        backwards = k == 1 or attributes.text("direction", "forward") == "reverse"
        count = len(layer.activations) // layer.direction_count
        direction_layer = replace(layer, activations=layer.activations[k * count : (k + 1) * count])
        directions.append(_emit_rows_and_final_states(context, direction_layer, data, k, backwards, batch_first))
    _write_recurrent_outputs(context, layer, directions, batch_first)


def _reverse_sequence(context: OpContext, value_name: str) -> str:
    """Emit the reversal of sequences (steps, batch, ...) in time; return the result's name.

    If the operator has sequence lengths, each sequence is reversed within its own length."""
    if context.has_input(4):
        return context.emit("reverse_sequence", (value_name, context.value(4)), {"batch_axis": 1, "time_axis": 0})
    return context.emit("reverse", (value_name,), {"axes": (0,)})


def _slice_direction(context: OpContext, input_index: int, direction_index: int, direction_axis: int = 0) -> str:
    """Return the name of the slice of an operand that belongs to direction ``direction_index``.

    ``input_index``: index of the operand. ``direction_axis``: its axis of directions, which is removed from the
    slice."""
    value = context.operand(input_index)
    shape, constant = context.type(value).shape, context.builder.consts.get(value)
    if constant is not None:
        return context.new_constant(
            f"{value}_{direction_index}", np.ascontiguousarray(np.take(constant, direction_index, direction_axis))
        )
    begin, end = [0] * len(shape), list(shape)
    begin[direction_axis], end[direction_axis] = direction_index, direction_index + 1
    if shape[direction_axis] > 1:
        attrs: Mapping[str, Attr] = {"begin": tuple(begin), "end": tuple(end), "strides": (1,) * len(shape)}
        value = context.emit("slice", (value,), attrs)
    return context.reshape(value, (*shape[:direction_axis], *shape[direction_axis + 1 :]))


def _get_initial_state(
    context: OpContext, layer: RecurrentLayer, input_index: int, direction_index: int, is_batch_first: bool
) -> str:
    """Return the name of the initial state (batch, units) of one direction.

    It is a constant of zeros if input ``input_index`` is absent."""
    if context.has_input(input_index):
        return _slice_direction(context, input_index, direction_index, 1 if is_batch_first else 0)
    zeros = np.zeros((layer.batch_size, layer.unit_count), np.float32)
    return context.new_constant(f"{context.output() or context.loc.name}_state", zeros)


def _emit_rows_and_final_states(
    context: OpContext,
    layer: RecurrentLayer,
    data_name: str,
    direction_index: int,
    is_reversed: bool,
    is_batch_first: bool,
) -> tuple[str, list[str]]:
    """Emit the loop over time steps for one direction of a recurrent layer.

    Return the name of the outputs of all steps (steps, batch, units), and the names of the final states."""
    weight, matrix = (_slice_direction(context, position, direction_index) for position in (1, 2))
    if is_reversed:
        data_name = _reverse_sequence(context, data_name)
    biases = _get_input_and_state_bias(context, layer, direction_index, context.type(weight).shape[0])
    states = [_get_initial_state(context, layer, 5, direction_index, is_batch_first)]
    if layer.op_type == "LSTM":
        states.append(_get_initial_state(context, layer, 6, direction_index, is_batch_first))
    step = StepBuilder(context, layer)
    old = [step.add_carried_input(value, name) for value, name in zip(states, ("hidden", "cell"), strict=False)]
    input_sums = _emit_input_sums(context, step, data_name, weight, biases[0])
    peepholes = (
        step.capture_value(_slice_direction(context, 7, direction_index))
        if layer.op_type == "LSTM" and context.has_input(7)
        else ""
    )
    cell = StateWeights(step.capture_value(matrix), step.capture_value(biases[1]) if biases[1] else "", peepholes)
    new = CELLS[layer.op_type](step, input_sums, old, cell)
    body = finish_step_body(step, context, old, new)
    attrs: dict[str, Any] = {"body": body, "count": layer.step_count, "carried": len(states), "guarded": False}
    loop_outputs = [
        context.builder.make_unique_name(f"{context.loc.name}_{stem}") for stem in (*("last",) * len(states), "rows")
    ]
    context.write_node_with_outputs("loop", (*states, *step.fixed), attrs, loop_outputs)
    rows = _reverse_sequence(context, loop_outputs[-1]) if is_reversed else loop_outputs[-1]
    return rows, loop_outputs[:-1]


def _get_input_and_state_bias(
    context: OpContext, layer: RecurrentLayer, direction_index: int, gate_element_count: int
) -> tuple[str, str]:
    """Return the names of the input bias (ONNX's Wb) and of the state bias (ONNX's Rb).

    Only GRU needs both. For other layers the first is the sum of both and the second is empty. Both are empty if the
    operator has no bias. ``gate_element_count``: number of gates times number of units."""
    if not context.has_input(3):
        return "", ""
    both = _slice_direction(context, 3, direction_index)
    data, state = (_slice_bias_half(context, both, gate_element_count, half) for half in (0, 1))
    return (data, state) if layer.op_type == "GRU" else (context.emit("add", (data, state)), "")


def _slice_bias_half(context: OpContext, bias_name: str, gate_element_count: int, half_index: int) -> str:
    """Return the name of the first (``half_index`` 0) or second half of a bias, ``gate_element_count`` elements
    each."""
    constant = context.builder.consts.get(bias_name)
    if constant is not None:
        return context.new_constant(
            f"{bias_name}_{half_index}", constant[half_index * gate_element_count :][:gate_element_count]
        )
    attrs: Mapping[str, Attr] = {
        "begin": (half_index * gate_element_count,),
        "end": ((half_index + 1) * gate_element_count,),
        "strides": (1,),
    }
    return context.emit("slice", (bias_name,), attrs)


def _emit_input_sums(context: OpContext, step: StepBuilder, data_name: str, weight_name: str, bias_name: str) -> str:
    """Emit the data of one step times the input weights, plus the bias; return the name of the sums in the loop's body.

    The products of all steps are computed before the loop if :func:`should_precompute_input_products` allows, and in
    the body otherwise."""
    steps, batch, depth = context.type(data_name).shape
    size = context.type(weight_name).shape[0]
    if not should_precompute_input_products(steps, size, depth):
        row = step("gather", step.capture_value(data_name), step.iteration, axis=0)
        return step(
            "dense", row, step.capture_value(weight_name), *((step.capture_value(bias_name),) if bias_name else ())
        )
    flat = context.reshape(data_name, (steps * batch, depth))
    sums = context.emit("dense", (flat, weight_name, bias_name) if bias_name else (flat, weight_name))
    return step("gather", step.capture_value(context.reshape(sums, (steps, batch, size))), step.iteration, axis=0)


def _write_recurrent_outputs(
    context: OpContext,
    layer: RecurrentLayer,
    rows_and_states_by_direction: list[tuple[str, list[str]]],
    is_batch_first: bool,
) -> None:
    """Write the operator's outputs: rows (steps, directions, batch, units) and final states (directions, batch, units).

    ``rows_and_states_by_direction``: for each direction the names of its rows and final states. With ``is_batch_first``
    batch is the first axis."""
    stacked = [
        [rows for rows, _ in rows_and_states_by_direction],
        *(
            [states[k] for _, states in rows_and_states_by_direction]
            for k in range(len(rows_and_states_by_direction[0][1]))
        ),
    ]
    for position, values in enumerate(stacked):
        if not context.output(position):
            continue
        shape = context.type(values[0]).shape
        axis = len(shape) - 2
        apart = [context.reshape(value, (*shape[:axis], 1, *shape[axis:])) for value in values]
        whole = apart[0] if len(apart) == 1 else context.emit("concat", apart, {"axis": axis})
        if is_batch_first:
            order = (2, 0, 1, 3) if position == 0 else (1, 0, 2)
            whole = context.emit("transpose", (whole,), {"axes": order})
        context.alias_output(context.output(position), whole)


RECURRENT_CONVERTERS: Mapping[str, Converter] = {
    op_type: Converter(convert_recurrent_layer, ("float32",)) for op_type in _GATES
}
