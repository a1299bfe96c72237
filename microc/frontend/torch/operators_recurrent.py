"""Converters of ATen's recurrent layers (``lstm``, ``gru``, ``rnn_tanh``, ``rnn_relu``) to loops over time. Several
layers and both directions are supported.

A weight matrix contains the rows of all gates, in the order input, forget, cell, output for LSTM, and reset, update, new for GRU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from microc.base.dtypes import Array
from microc.frontend.formulas import Gates, State, Step, run_over_time, slice_gate, swap_batch_and_time
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.torch.context import Converter, OpContext

Weights = Sequence[Array]
"""Weights of one direction of a layer with G gates, U units and C input channels: the matrix multiplied by the data (G U, C), the
matrix multiplied by the state (G U, U), and the biases of both products, if any."""


def recurrent(cell: Callable[[Gates], Step], state_count: int) -> Converter:
    """Return the converter of recurrent layers with the given cell.

    ``cell`` receives the weights and bias of the state, and returns the function that emits one time step. ``state_count``:
    number of values that the state consists of (2 for LSTM)."""

    def convert(a: OpContext) -> tuple[str, ...]:
        if a.argument("batch_sizes") is not None:
            a.refuse("packed sequences are not supported", "export the model on padded ones")
        if a.argument("train") and a.argument("dropout"):
            a.refuse("dropout while training", "export the model in eval mode")
        directions = 2 if a.argument("bidirectional") else 1
        layers, weights = int(a.argument("num_layers")), _layer_weights(a)
        if len(weights) != layers * directions:
            a.refuse("projected states", "build the layer with proj_size=0")
        data = a.operand("input")
        if a.argument("batch_first"):
            data = swap_batch_and_time(a.write, data)
        states_argument: Any = a.argument("hx")  # each (layers * directions, N, U)
        initial = [a.value(value) for value in (states_argument if state_count > 1 else (states_argument,))]
        final_states = []
        for layer in range(layers):
            rows = []
            for k in range(layer * directions, (layer + 1) * directions):
                backwards = k % directions == 1
                state = [_direction_state(a, value, k) for value in initial]
                # PyTorch's order: weights for the data, weights for the state, then the bias of each.
                gates, past = Gates(weights[k][0], *weights[k][2:3]), Gates(weights[k][1], *weights[k][3:])
                result, final_state = run_over_time(a.write, data, gates, state, cell(past), backwards=backwards)
                rows.append(a.emit("reverse", (result,), {"axes": (0,)}) if backwards else result)
                final_states.append(final_state)
            data = rows[0] if directions == 1 else a.emit("concat", rows, {"axis": 2})
        stacked_states = [
            _stack_states(a, [final_state[k] for final_state in final_states]) for k in range(state_count)
        ]
        return (swap_batch_and_time(a.write, data) if a.argument("batch_first") else data, *stacked_states)

    return convert


def _layer_weights(a: OpContext) -> list[Weights]:
    """Return the weights of every direction of every layer, in PyTorch's order."""
    params = a.argument("params")
    if any(isinstance(x, str) and x not in a.write.consts for x in params):
        a.refuse("weights that are not known when compiling", "make them parameters of the module")
    arrays = [a.write.consts[x] if isinstance(x, str) else a.array(x) for x in params]
    count = 4 if a.argument("has_biases") else 2
    return [arrays[k : k + count] for k in range(0, len(arrays), count)]


def _direction_state(a: OpContext, stacked_states: str, direction_index: int) -> str:
    """Return the initial state (N, U) of one direction of one layer.

    ``stacked_states``: states of all directions of all layers, (layers * directions, N, U)."""
    count, batch, units = a.shape(stacked_states)
    if stacked_states in a.write.consts:
        return a.write.new_constant("state", a.write.consts[stacked_states][direction_index])
    attrs = {"begin": (direction_index, 0, 0), "end": (direction_index + 1, batch, units), "strides": (1, 1, 1)}
    return a.reshape(stacked_states if count == 1 else a.emit("slice", (stacked_states,), attrs), (batch, units))


def _stack_states(a: OpContext, values: Sequence[str]) -> str:
    """Stack states (N, U) along a new first axis; return the stacked value."""
    batch, units = a.shape(values[0])
    unsqueezed = [a.reshape(value, (1, batch, units)) for value in values]
    return unsqueezed[0] if len(unsqueezed) == 1 else a.emit("concat", unsqueezed, {"axis": 0})


def plain(activation: str) -> Callable[[Gates], Step]:
    """Return the cell function of a plain RNN: h' = ``activation``(x W + h U)."""

    def cell(state_gates: Gates) -> Step:
        def step(write: GraphBuilder, input_products: str, state: State) -> State:
            return (write.emit(activation, (write.emit("add", (input_products, state_gates.of(write, state[0]))),)),)

        return step

    return cell


def lstm(state_gates: Gates) -> Step:
    """Return the function that emits one time step of an LSTM: c' = f c + i g, h' = o tanh(c')."""

    def step(write: GraphBuilder, input_products: str, state: State) -> State:
        units, emit = state_gates.weight.shape[1], write.emit
        total = emit("add", (input_products, state_gates.of(write, state[0])))
        i, f, o = (emit("sigmoid", (slice_gate(write, total, k, units),)) for k in (0, 1, 3))
        new_part = emit("mul", (i, emit("tanh", (slice_gate(write, total, 2, units),))))
        cell = emit("add", (emit("mul", (f, state[1])), new_part))
        return emit("mul", (o, emit("tanh", (cell,)))), cell

    return step


def gru(state_gates: Gates) -> Step:
    """Return the function that emits one time step of a GRU: n = tanh(x W + r (h U)), h' = (1 - z) n + z h."""

    def step(write: GraphBuilder, input_products: str, state: State) -> State:
        units, emit = state_gates.weight.shape[1], write.emit
        sums = state_gates.of(write, state[0])
        r, z = (
            emit(
                "sigmoid",
                (emit("add", (slice_gate(write, input_products, k, units), slice_gate(write, sums, k, units))),),
            )
            for k in (0, 1)
        )
        reset_sum = emit("mul", (r, slice_gate(write, sums, 2, units)))
        candidate = emit("tanh", (emit("add", (slice_gate(write, input_products, 2, units), reset_sum)),))
        rest = emit("mul", (emit("sub", (write.scalar(1.0), z)), candidate))
        return (emit("add", (rest, emit("mul", (z, state[0])))),)

    return step


RECURRENT_CONVERTERS: Mapping[str, Converter] = {
    "gru": recurrent(gru, 1),
    "lstm": recurrent(lstm, 2),
    "rnn_relu": recurrent(plain("relu"), 1),
    "rnn_tanh": recurrent(plain("tanh"), 1),
}
