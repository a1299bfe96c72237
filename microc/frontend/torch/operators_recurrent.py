"""Converters of ATen's recurrent layers (``lstm``, ``gru``, ``rnn_tanh``, ``rnn_relu``) as loops over time, with several layers
and both directions.

Gates are side by side in the weights: LSTM input, forget, cell, output; GRU reset, update, new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from microc.base.dtypes import Array
from microc.frontend.formulas import Gates, State, Step, run_over_time, slice_gate, swap_batch_and_time
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.torch.context import Converter, OpContext

Weights = Sequence[Array]
"""Arrays of one direction: the matrices of the data (G U, C) and of the state (G U, U), and their biases, if any."""


def recurrent(cell: Callable[[Gates], Step], states: int) -> Converter:
    """Return the converter of layers of ``cell``, whose state is ``states`` values."""

    def convert(a: OpContext) -> tuple[str, ...]:
        if a.argument("batch_sizes") is not None:
            a.refuse("packed sequences", "export the model on padded ones")
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
        initial = [a.value(value) for value in (states_argument if states > 1 else (states_argument,))]
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
        stacked_states = [_stack_states(a, [final_state[k] for final_state in final_states]) for k in range(states)]
        return (swap_batch_and_time(a.write, data) if a.argument("batch_first") else data, *stacked_states)

    return convert


def _layer_weights(a: OpContext) -> list[Weights]:
    """Return the weights of every direction of every layer."""
    params = a.argument("params")
    if any(isinstance(x, str) and x not in a.write.consts for x in params):
        a.refuse("weights that are not known when compiling", "make them parameters of the module")
    arrays = [a.write.consts[x] if isinstance(x, str) else a.array(x) for x in params]
    count = 4 if a.argument("has_biases") else 2
    return [arrays[k : k + count] for k in range(0, len(arrays), count)]


def _direction_state(a: OpContext, value: str, k: int) -> str:
    """Return the state (N, U) of one direction of one layer."""
    count, batch, units = a.shape(value)
    if value in a.write.consts:
        return a.write.new_constant("state", a.write.consts[value][k])
    attrs = {"begin": (k, 0, 0), "end": (k + 1, batch, units), "strides": (1, 1, 1)}
    return a.reshape(value if count == 1 else a.emit("slice", (value,), attrs), (batch, units))


def _stack_states(a: OpContext, values: Sequence[str]) -> str:
    """Stack states (N, U) along a new first axis."""
    batch, units = a.shape(values[0])
    unsqueezed = [a.reshape(value, (1, batch, units)) for value in values]
    return unsqueezed[0] if len(unsqueezed) == 1 else a.emit("concat", unsqueezed, {"axis": 0})


def plain(function: str) -> Callable[[Gates], Step]:
    """Return the cell of a plain RNN: h' = function(x W + h U)."""

    def cell(past: Gates) -> Step:
        def step(write: GraphBuilder, share: str, state: State) -> State:
            return (write.emit(function, (write.emit("add", (share, past.of(write, state[0]))),)),)

        return step

    return cell


def lstm(past: Gates) -> Step:
    """LSTM: c' = f c + i g, h' = o tanh(c')."""

    def step(write: GraphBuilder, share: str, state: State) -> State:
        units, emit = past.weight.shape[1], write.emit
        total = emit("add", (share, past.of(write, state[0])))
        i, f, o = (emit("sigmoid", (slice_gate(write, total, k, units),)) for k in (0, 1, 3))
        new_part = emit("mul", (i, emit("tanh", (slice_gate(write, total, 2, units),))))
        cell = emit("add", (emit("mul", (f, state[1])), new_part))
        return emit("mul", (o, emit("tanh", (cell,)))), cell

    return step


def gru(past: Gates) -> Step:
    """GRU: n = tanh(x W + r (h U)), h' = (1 - z) n + z h."""

    def step(write: GraphBuilder, share: str, state: State) -> State:
        units, emit = past.weight.shape[1], write.emit
        sums = past.of(write, state[0])
        r, z = (
            emit("sigmoid", (emit("add", (slice_gate(write, share, k, units), slice_gate(write, sums, k, units))),))
            for k in (0, 1)
        )
        reset_sum = emit("mul", (r, slice_gate(write, sums, 2, units)))
        candidate = emit("tanh", (emit("add", (slice_gate(write, share, 2, units), reset_sum)),))
        rest = emit("mul", (emit("sub", (write.scalar(1.0), z)), candidate))
        return (emit("add", (rest, emit("mul", (z, state[0])))),)

    return step


RECURRENT_CONVERTERS: Mapping[str, Converter] = {
    "gru": recurrent(gru, 1),
    "lstm": recurrent(lstm, 2),
    "rnn_relu": recurrent(plain("relu"), 1),
    "rnn_tanh": recurrent(plain("tanh"), 1),
}
