"""Converters of ATen's recurrent layers (``lstm``, ``gru``, ``rnn_tanh``, ``rnn_relu``) to loops over time. Several
layers and both directions are supported.

A weight matrix contains the rows of all gates, in the order input, forget, cell, output for LSTM, and reset, update,
new for GRU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from microc.base.dtypes import Array
from microc.frontend.formulas import (
    GateWeights,
    State,
    StepEmitter,
    emit_loop_over_time,
    slice_gate,
    swap_batch_and_time,
)
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.torch.context import Converter, OpContext

DirectionWeights = Sequence[Array]
"""Weights of one direction of a layer with G gates, U units and C input channels: the matrix multiplied by the data (G
U, C), the matrix multiplied by the state (G U, U), and the biases of both products, if any."""


def make_recurrent_converter(make_step: Callable[[GateWeights], StepEmitter], state_count: int) -> Converter:
    """Return the converter of recurrent layers of one type of cell.

    ``make_step`` maps the weights and bias of the state to the function that emits one time step.
    ``state_count``: number of values that the state consists of (2 for LSTM)."""

    def convert_recurrent(context: OpContext) -> tuple[str, ...]:
        if context.argument("batch_sizes") is not None:
            context.refuse("packed sequences are not supported", "export the model with padded sequences")
        if context.argument("train") and context.argument("dropout"):
            context.refuse("dropout in training mode is not supported", "export the model in eval mode")
        directions = 2 if context.argument("bidirectional") else 1
        layers, weights = int(context.argument("num_layers")), _read_direction_weights(context)
        if len(weights) != layers * directions:
            context.refuse(
                f"params: got {len(weights)} sets of weights, expected {layers * directions}, one for each layer and "
                "direction",
                "build the layer with proj_size=0",
            )
        data = context.operand("input")
        if context.argument("batch_first"):
            data = swap_batch_and_time(context.builder, data)
        states_argument: Any = context.argument("hx")  # each (layers * directions, N, U)
        initial = [
            context.convert_to_value(value) for value in (states_argument if state_count > 1 else (states_argument,))
        ]
        final_states = []
        for layer in range(layers):
            rows = []
            for k in range(layer * directions, (layer + 1) * directions):
                backwards = k % directions == 1
                state = [_emit_initial_state(context, value, k) for value in initial]
                # PyTorch's order: weights for the data, weights for the state, then the bias of each.
                gates, past = GateWeights(weights[k][0], *weights[k][2:3]), GateWeights(weights[k][1], *weights[k][3:])
                result, final_state = emit_loop_over_time(
                    context.builder, data, gates, state, make_step(past), backwards=backwards
                )
                rows.append(context.emit("reverse", (result,), {"axes": (0,)}) if backwards else result)
                final_states.append(final_state)
            data = rows[0] if directions == 1 else context.emit("concat", rows, {"axis": 2})
        stacked_states = [
            _emit_stacked_states(context, [final_state[k] for final_state in final_states]) for k in range(state_count)
        ]
        return (
            swap_batch_and_time(context.builder, data) if context.argument("batch_first") else data,
            *stacked_states,
        )

    return convert_recurrent


def _read_direction_weights(context: OpContext) -> list[DirectionWeights]:
    """Return the weights of every direction of every layer: layer by layer, in each layer the forward direction
    first."""
    params = context.argument("params")
    if any(isinstance(x, str) and x not in context.builder.consts for x in params):
        context.refuse("params: got computed weights, expected constants", "make them parameters of the module")
    arrays = [context.builder.consts[x] if isinstance(x, str) else context.to_numpy_array(x) for x in params]
    count = 4 if context.argument("has_biases") else 2
    return [arrays[k : k + count] for k in range(0, len(arrays), count)]


def _emit_initial_state(context: OpContext, stacked_states: str, direction_index: int) -> str:
    """Return the initial state (N, U) of one direction of one layer.

    ``stacked_states``: states of all directions of all layers, (layers * directions, N, U)."""
    count, batch, units = context.shape(stacked_states)
    if stacked_states in context.builder.consts:
        return context.builder.new_constant("state", context.builder.consts[stacked_states][direction_index])
    attrs = {"begin": (direction_index, 0, 0), "end": (direction_index + 1, batch, units), "strides": (1, 1, 1)}
    return context.reshape(
        stacked_states if count == 1 else context.emit("slice", (stacked_states,), attrs), (batch, units)
    )


def _emit_stacked_states(context: OpContext, values: Sequence[str]) -> str:
    """Stack states (N, U) along a new first axis; return the stacked value."""
    batch, units = context.shape(values[0])
    unsqueezed = [context.reshape(value, (1, batch, units)) for value in values]
    return unsqueezed[0] if len(unsqueezed) == 1 else context.emit("concat", unsqueezed, {"axis": 0})


def make_rnn_step_factory(activation: str) -> Callable[[GateWeights], StepEmitter]:
    """Return the function that makes a plain RNN's time step from the state weights: h' = ``activation``(x W + h U)."""

    def make_rnn_step(state_weights: GateWeights) -> StepEmitter:
        def emit_rnn_step(builder: GraphBuilder, input_products: str, state: State) -> State:
            return (
                builder.emit(
                    activation,
                    (builder.emit("add", (input_products, state_weights.emit_gate_products(builder, state[0]))),),
                ),
            )

        return emit_rnn_step

    return make_rnn_step


def make_lstm_step(state_weights: GateWeights) -> StepEmitter:
    """Return the function that emits one time step of an LSTM: c' = f c + i g, h' = o tanh(c')."""

    def emit_lstm_step(builder: GraphBuilder, input_products: str, state: State) -> State:
        units, emit = state_weights.weight.shape[1], builder.emit
        total = emit("add", (input_products, state_weights.emit_gate_products(builder, state[0])))
        i, f, o = (emit("sigmoid", (slice_gate(builder, total, k, units),)) for k in (0, 1, 3))
        new_part = emit("mul", (i, emit("tanh", (slice_gate(builder, total, 2, units),))))
        cell = emit("add", (emit("mul", (f, state[1])), new_part))
        return emit("mul", (o, emit("tanh", (cell,)))), cell

    return emit_lstm_step


def make_gru_step(state_weights: GateWeights) -> StepEmitter:
    """Return the function that emits one time step of a GRU: n = tanh(x W + r (h U)), h' = (1 - z) n + z h."""

    def emit_gru_step(builder: GraphBuilder, input_products: str, state: State) -> State:
        units, emit = state_weights.weight.shape[1], builder.emit
        sums = state_weights.emit_gate_products(builder, state[0])
        r, z = (
            emit(
                "sigmoid",
                (emit("add", (slice_gate(builder, input_products, k, units), slice_gate(builder, sums, k, units))),),
            )
            for k in (0, 1)
        )
        reset_sum = emit("mul", (r, slice_gate(builder, sums, 2, units)))
        candidate = emit("tanh", (emit("add", (slice_gate(builder, input_products, 2, units), reset_sum)),))
        rest = emit("mul", (emit("sub", (builder.scalar(1.0), z)), candidate))
        return (emit("add", (rest, emit("mul", (z, state[0])))),)

    return emit_gru_step


RECURRENT_CONVERTERS: Mapping[str, Converter] = {
    "gru": make_recurrent_converter(make_gru_step, 1),
    "lstm": make_recurrent_converter(make_lstm_step, 2),
    "rnn_relu": make_recurrent_converter(make_rnn_step_factory("relu"), 1),
    "rnn_tanh": make_recurrent_converter(make_rnn_step_factory("tanh"), 1),
}
