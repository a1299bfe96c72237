"""Converters of Keras's recurrent layers to loops over time.

A kernel contains the columns of all gates, in the order input, forget, cell, output for LSTM, and update, reset,
candidate for GRU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.frontend.formulas import GateWeights, State, emit_loop_over_time, slice_gate, swap_batch_and_time
from microc.frontend.keras.context import Converter, LayerContext, LayerWeights

StepEmitter = Callable[[LayerContext, str, State], State]
"""Type of a function that emits one time step into the loop's body. Its arguments are the layer, whose graph is the
body, the products of the input and its kernel, and the state; it returns the next state."""


def make_recurrent_converter(
    read_cell: Callable[[Mapping[str, Any], LayerWeights], tuple[Array, Array, StepEmitter]], state_count: int
) -> Converter:
    """Return the converter of a layer that runs a cell along the second axis (time) of its data.

    ``read_cell`` maps the layer's configuration and weights to the kernel and bias of the layer's input, and the
    function that emits one time step. ``state_count``: number of values that the state consists of (2 for LSTM)."""

    def convert_recurrent(layer: LayerContext) -> str | tuple[str, ...]:
        config = layer.config
        if len(layer.operands) > 1 or layer.kwargs.get("initial_state") is not None:
            layer.refuse("initial_state is not supported", "make the state an input and an output of the model")
        kernel, bias, step = read_cell(config, layer.weights.weights_of_inner_layer("cell"))
        start = _add_initial_states(layer, state_count, (layer.shape()[0], int(config["units"])))
        rows, state = emit_loop_over_time(
            layer.builder,
            swap_batch_and_time(layer.builder, layer.first_operand),
            GateWeights(kernel.T, bias),
            start,
            lambda body, share, old: step(replace(layer, builder=body), share, old),
            backwards=bool(config.get("go_backwards")),
            returns_rows=bool(config.get("return_sequences")),
        )
        if config.get("stateful"):
            for old_state, new_state in zip(start, state, strict=True):
                layer.builder.update(old_state, new_state)
        value = swap_batch_and_time(layer.builder, rows) if config.get("return_sequences") else state[0]
        return (value, *state) if config.get("return_state") else value

    return convert_recurrent


def _add_initial_states(layer: LayerContext, state_count: int, state_shape: tuple[int, int]) -> State:
    """Return the initial states of the loop over time.

    They are constants of zero, or, for a stateful layer, states of the graph, which keep their contents between
    runs."""
    zeros = np.zeros(state_shape, np.float32)
    if not layer.config.get("stateful"):
        return (layer.add_constant("zero", zeros),) * state_count
    names = [f"{layer.weights.path}/state_{k}" for k in range(state_count)]
    if names[0] in layer.builder.types:
        layer.refuse(
            "a stateful layer is called twice, expected once", "make the state an input and an output of the model"
        )
    return tuple(layer.builder.state(name, zeros) for name in names)


def _read_recurrent_weights(
    config: Mapping[str, Any], weights: LayerWeights, gate_count: int
) -> tuple[Array, Array, Array]:
    """Return the kernel, recurrent kernel and bias of a layer with ``gate_count`` gates. An absent bias becomes
    zeros."""
    arrays = weights.arrays()
    bias = arrays[2] if config["use_bias"] else np.zeros(int(config["units"]) * gate_count, np.float32)
    return arrays[0], arrays[1], bias


def read_simple_rnn_cell(config: Mapping[str, Any], weights: LayerWeights) -> tuple[Array, Array, StepEmitter]:
    """Return the kernel, the bias and the step function of a SimpleRNN: h' = activation(x W + h U + b)."""
    kernel, recurrent_kernel, bias = _read_recurrent_weights(config, weights, 1)

    def emit_rnn_step(layer: LayerContext, input_products: str, state: State) -> State:
        weight = layer.add_constant("recurrent", recurrent_kernel.T)
        total = layer.emit("add", (input_products, layer.emit("dense", (state[0], weight))))
        return (layer.emit_activation(total, config["activation"]),)

    return kernel, bias, emit_rnn_step


def read_lstm_cell(config: Mapping[str, Any], weights: LayerWeights) -> tuple[Array, Array, StepEmitter]:
    """Return the kernel, the bias and the step function of an LSTM: c' = f c + i g, h' = o activation(c')."""
    kernel, recurrent_kernel, bias = _read_recurrent_weights(config, weights, 4)
    units = int(config["units"])

    def emit_lstm_step(layer: LayerContext, input_products: str, state: State) -> State:
        weight = layer.add_constant("recurrent", recurrent_kernel.T)
        total = layer.emit("add", (input_products, layer.emit("dense", (state[0], weight))))
        activations = ("recurrent_activation", "recurrent_activation", "activation", "recurrent_activation")
        i, f, g, o = (
            layer.emit_activation(slice_gate(layer.builder, total, k, units), config[activation])
            for k, activation in enumerate(activations)
        )
        cell = layer.emit("add", (layer.emit("mul", (f, state[1])), layer.emit("mul", (i, g))))
        return (layer.emit("mul", (o, layer.emit_activation(cell, config["activation"]))), cell)

    return kernel, bias, emit_lstm_step


def read_gru_cell(config: Mapping[str, Any], weights: LayerWeights) -> tuple[Array, Array, StepEmitter]:
    """Return the kernel, the bias and the step function of a GRU: h' = z h + (1 - z) g.

    With the setting ``reset_after`` the reset gate multiplies h U + b, otherwise it multiplies h."""
    kernel, recurrent_kernel, bias = _read_recurrent_weights(config, weights, 3)
    units, after = int(config["units"]), bool(config.get("reset_after", True))
    if bias.ndim == 1:
        bias = np.stack([bias, np.zeros_like(bias)])
    parts = (recurrent_kernel,) if after else (recurrent_kernel[:, : 2 * units], recurrent_kernel[:, 2 * units :])

    def emit_gru_step(layer: LayerContext, input_products: str, state: State) -> State:
        kernels = [layer.add_constant("recurrent", part.T) for part in parts]
        inner = (layer.add_constant("recurrent_bias", bias[1]),) if after else ()
        hidden = layer.emit("dense", (state[0], kernels[0], *inner))
        z, r = (
            layer.emit_activation(
                layer.emit(
                    "add",
                    (slice_gate(layer.builder, input_products, k, units), slice_gate(layer.builder, hidden, k, units)),
                ),
                config["recurrent_activation"],
            )
            for k in (0, 1)
        )
        if after:
            reset_hidden = layer.emit("mul", (r, slice_gate(layer.builder, hidden, 2, units)))
        else:
            reset_hidden = layer.emit("dense", (layer.emit("mul", (r, state[0])), kernels[1]))
        candidate = layer.emit_activation(
            layer.emit("add", (slice_gate(layer.builder, input_products, 2, units), reset_hidden)), config["activation"]
        )
        old = layer.emit("mul", (z, state[0]))
        rest = layer.emit("mul", (layer.emit("sub", (layer.scalar(1.0), z)), candidate))
        return (layer.emit("add", (old, rest)),)

    return kernel, bias[0], emit_gru_step


def convert_bidirectional(layer: LayerContext) -> str:
    """Convert Bidirectional: run the wrapped layer forwards and backwards in time, and merge both results.

    A sequence that the backward layer returns is reversed first."""
    merge_mode = layer.config.get("merge_mode")
    if merge_mode not in ("concat", "sum", "mul", "ave"):
        layer.refuse(f"merge_mode {merge_mode!r} is not supported", "use concat, sum, mul or ave")
    inner, results = layer.config["layer"], []
    for part, backwards in (("forward_layer", False), ("backward_layer", True)):
        config = {**inner["config"], "go_backwards": backwards, "return_state": False}
        converter = RECURRENT_CONVERTERS.get(inner["class_name"])
        if converter is None:
            layer.refuse(
                f"layer: got {inner['class_name']}, expected SimpleRNN, GRU or LSTM", "wrap one of these layers"
            )
        result = converter(replace(layer, config=config, weights=layer.weights.weights_of_inner_layer(part)))
        value = result if isinstance(result, str) else result[0]
        if backwards and config.get("return_sequences"):
            value = layer.emit("reverse", (value,), {"axes": (1,)})
        results.append(value)
    if merge_mode == "concat":
        return layer.emit("concat", results, {"axis": -1})
    total = layer.emit("mul" if merge_mode == "mul" else "add", results)
    return layer.emit("mul", (total, layer.scalar(0.5))) if merge_mode == "ave" else total


RECURRENT_CONVERTERS: Mapping[str, Converter] = {
    "Bidirectional": convert_bidirectional,
    "GRU": make_recurrent_converter(read_gru_cell, 1),
    "LSTM": make_recurrent_converter(read_lstm_cell, 2),
    "SimpleRNN": make_recurrent_converter(read_simple_rnn_cell, 1),
}
