# SPDX-License-Identifier: Apache-2.0
"""Converters of Keras's recurrent layers to microc's layers ``rnn``, ``lstm`` and ``gru``.

A kernel contains the columns of all gates, in the order input, forget, cell, output for LSTM, and update, reset,
candidate for GRU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.keras.context import Bias, LayerConverter, OpContext
from microc.frontend.signature import Argument, ConverterTable, Only, Value
from microc.graph.ir import Attr
from microc.ops.recurrent.cells import STATES

CONVERTERS = ConverterTable(LayerConverter)
_GATE_FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    "rnn": ("activation",),
    "lstm": ("recurrent_activation", "activation", "activation"),
    "gru": ("recurrent_activation", "activation"),
}
"""Settings that contain the activation functions of a layer of microc, in its order."""
NoInitialState = Annotated[Argument, Only(None, "make the state an input and an output of the model")]


@frozen
class RecurrentSettings:
    """Settings of all recurrent layers, and the arguments of their calls. Only a GRU has ``reset_after``."""

    units: int
    return_sequences: bool = False
    return_state: bool = False
    go_backwards: bool = False
    stateful: bool = False
    reset_after: bool = True
    initial_state: NoInitialState = None


def make_recurrent_converter(op: str) -> Callable[..., Value | tuple[str, ...]]:
    """Return the converter of a layer that becomes microc's layer ``op`` over the second axis (time) of its data."""

    def convert_recurrent(
        context: OpContext, x: Value, kernel: Array, recurrent_kernel: Array, bias: Bias, *, settings: RecurrentSettings
    ) -> Value | tuple[str, ...]:
        # A GRU with reset_after has a row of biases for the data, and a row for the state.
        biases = [] if bias is None else list(np.atleast_2d(bias))
        functions = [context.resolve_activation(context.config[name]) for name in _GATE_FUNCTIONS[op]]
        attrs: dict[str, Attr] = {
            "backwards": settings.go_backwards,
            "returns_rows": settings.return_sequences,
            "optional": ("bias", "recurrent_bias")[: len(biases)],
            "activations": tuple(name for name, _ in functions),
            "activation_parameters": tuple(number for _, parameters in functions for number in parameters),
        }
        if op == "gru":
            attrs["linear_before_reset"] = settings.reset_after
        states = _add_initial_states(context, len(STATES[op]), (x.shape[0], settings.units), settings.stateful)
        weights = [context.add_weight("weight", matrix.T) for matrix in (kernel, recurrent_kernel)]
        constants = [context.add_weight("bias", row) for row in biases]
        results = context.builder.emit_all(op, (x, *weights, *states, *constants), attrs)
        last_states = results[1:] if settings.return_sequences else results
        if settings.stateful:
            for state, last in zip(states, last_states, strict=True):
                context.builder.update(state, last)
        return (results[0], *last_states) if settings.return_state else context.look_up(results[0])

    return convert_recurrent


for _name, _op in {"GRU": "gru", "LSTM": "lstm", "SimpleRNN": "rnn"}.items():
    CONVERTERS.register(_name, weights_of="cell")(make_recurrent_converter(_op))


def _add_initial_states(
    context: OpContext, state_count: int, state_shape: tuple[int, int], is_stateful: bool
) -> tuple[str, ...]:
    """Return the initial states.

    They are constants of zero, or, for a stateful layer, states of the graph, which keep their contents between
    runs."""
    zeros = np.zeros(state_shape, np.float32)
    if not is_stateful:
        return (context.add_weight("zero", zeros),) * state_count
    names = [f"{context.weights.path}/state_{k}" for k in range(state_count)]
    if names[0] in context.builder.types:
        context.refuse(
            "a stateful layer is called twice, expected once", "make the state an input and an output of the model"
        )
    return tuple(context.builder.state(name, zeros) for name in names)


@CONVERTERS.register("Bidirectional")
def convert_bidirectional(
    context: OpContext,
    x: Value,
    *,
    layer: Argument,
    merge_mode: Literal["concat", "sum", "mul", "ave"],
    initial_state: NoInitialState = None,
) -> Value:
    """Convert Bidirectional: run the wrapped layer forwards and backwards in time, and merge both results.

    A sequence that the backward layer returns is reversed first."""
    results = []
    if layer["class_name"] not in CONVERTERS.by_name:
        context.refuse(f"layer: got {layer['class_name']}, expected SimpleRNN, GRU or LSTM", "wrap one of these layers")
    for part, backwards in (("forward_layer", False), ("backward_layer", True)):
        config: dict[str, Any] = {**layer["config"], "go_backwards": backwards, "return_state": False}
        weights = context.weights.weights_of_inner_layer(part)
        value = context.convert_inner_layer({**layer, "config": config}, weights, x)
        if backwards and config.get("return_sequences"):
            value = context.emit("reverse", (value,), {"axes": (1,)})
        results.append(value)
    if merge_mode == "concat":
        return context.emit("concat", results, {"axis": -1})
    total = context.emit("mul" if merge_mode == "mul" else "add", results)
    return context.emit("mul", (total, context.scalar(0.5))) if merge_mode == "ave" else total
