# SPDX-License-Identifier: Apache-2.0
"""Converters of Keras's recurrent layers to microc's layers ``rnn``, ``lstm`` and ``gru``.

A kernel contains the columns of all gates, in the order input, forget, cell, output for LSTM, and update, reset,
candidate for GRU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from microc.frontend.keras.context import Converter, LayerContext
from microc.graph.ir import Attr
from microc.ops.recurrent.cells import STATES

_GATE_FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    "rnn": ("activation",),
    "lstm": ("recurrent_activation", "activation", "activation"),
    "gru": ("recurrent_activation", "activation"),
}
"""Settings that contain the activation functions of a layer of microc, in its order."""


def make_recurrent_converter(op: str) -> Converter:
    """Return the converter of a layer that becomes microc's layer ``op`` over the second axis (time) of its data."""

    def convert_recurrent(layer: LayerContext) -> str | tuple[str, ...]:
        config = layer.config
        if len(layer.operands) > 1 or layer.kwargs.get("initial_state") is not None:
            layer.refuse("initial_state is not supported", "make the state an input and an output of the model")
        has_bias, returns_rows = bool(config["use_bias"]), bool(config.get("return_sequences"))
        cell = replace(layer, weights=layer.weights.weights_of_inner_layer("cell"))
        kernel, recurrent_kernel, *biases = cell.read_weight_arrays(2 + has_bias)
        # A GRU with reset_after has a row of biases for the data, and a row for the state.
        biases = [row for bias in biases for row in np.atleast_2d(bias)]
        functions = [layer.resolve_activation(config[setting]) for setting in _GATE_FUNCTIONS[op]]
        attrs: dict[str, Attr] = {
            "backwards": bool(config.get("go_backwards")),
            "returns_rows": returns_rows,
            "optional": ("bias", "recurrent_bias")[: len(biases)],
            "activations": tuple(name for name, _ in functions),
            "activation_parameters": tuple(number for _, parameters in functions for number in parameters),
        }
        if op == "gru":
            attrs["linear_before_reset"] = bool(config.get("reset_after", True))
        states = _add_initial_states(layer, len(STATES[op]), (layer.shape()[0], int(config["units"])))
        weights = [layer.add_constant("weight", matrix.T) for matrix in (kernel, recurrent_kernel)]
        constants = [layer.add_constant("bias", bias) for bias in biases]
        results = layer.builder.emit_all(op, (layer.first_operand, *weights, *states, *constants), attrs)
        last_states = results[1:] if returns_rows else results
        if config.get("stateful"):
            for state, last in zip(states, last_states, strict=True):
                layer.builder.update(state, last)
        return (results[0], *last_states) if config.get("return_state") else results[0]

    return convert_recurrent


def _add_initial_states(layer: LayerContext, state_count: int, state_shape: tuple[int, int]) -> tuple[str, ...]:
    """Return the initial states.

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


def convert_bidirectional(layer: LayerContext) -> str:
    """Convert Bidirectional: run the wrapped layer forwards and backwards in time, and merge both results.

    A sequence that the backward layer returns is reversed first."""
    merge_mode = layer.config.get("merge_mode")
    if merge_mode not in ("concat", "sum", "mul", "ave"):
        layer.refuse(f"merge_mode {merge_mode!r} is not supported", "use concat, sum, mul or ave")
    inner, results = layer.config["layer"], []
    for part, backwards in (("forward_layer", False), ("backward_layer", True)):
        config: dict[str, Any] = {**inner["config"], "go_backwards": backwards, "return_state": False}
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
    "GRU": make_recurrent_converter("gru"),
    "LSTM": make_recurrent_converter("lstm"),
    "SimpleRNN": make_recurrent_converter("rnn"),
}
