"""Keras's recurrent layers, step after step: one time step is written for every element of the sequence.

Gates lie side by side in the kernels: LSTM input, forget, cell, output; GRU update, reset, candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from microc.dtypes import Array
from microc.frontend.keras_application import Layer, Spelling
from microc.frontend.keras_file import Weights

State = tuple[str, ...]
Step = Callable[[str, State], State]
"""The state after a step, the output first, from the step's share of the input and the state before."""


def recurrent(cell: Callable[[Layer, Mapping[str, Any], Weights], tuple[Array, Array, Step]], states: int) -> Spelling:
    """A layer that runs a cell along the second axis; ``cell`` gives the input's kernel, its bias, and the step."""

    def spell(layer: Layer) -> str | tuple[str, ...]:
        config = layer.config
        if config.get("stateful") or len(layer.operands) > 1 or layer.kwargs.get("initial_state") is not None:
            layer.refuse("a state from outside", "make the state an input and an output of the model")
        kernel, bias, step = cell(layer, config, layer.weights.inside("cell"))
        batch, length, width = layer.shape()
        rows = layer.reshape(layer.x, (batch * length, width))
        shares = layer.emit("dense", (rows, layer.constant("kernel", kernel.T), layer.constant("bias", bias)))
        shares = layer.reshape(shares, (batch, length, kernel.shape[1]))
        zero = layer.constant("zero", np.zeros((batch, int(config["units"]))))
        state: State = (zero,) * states
        outputs = []
        order = range(length - 1, -1, -1) if config.get("go_backwards") else range(length)
        for moment in order:
            state = step(_columns(layer, shares, moment), state)
            outputs.append(state[0])
        value = _sequence(layer, outputs) if config.get("return_sequences") else state[0]
        return (value, *state) if config.get("return_state") else value

    return spell


def _columns(layer: Layer, value: str, moment: int) -> str:
    """One time step of (N, T, C) as (N, C)."""
    batch, _, width = layer.shape(value)
    attrs = {"begin": (0, moment, 0), "end": (batch, moment + 1, width), "strides": (1, 1, 1)}
    return layer.reshape(layer.emit("slice", (value,), attrs), (batch, width))


def _sequence(layer: Layer, steps: Sequence[str]) -> str:
    batch, width = layer.shape(steps[0])
    return layer.emit("concat", [layer.reshape(step, (batch, 1, width)) for step in steps], {"axis": 1})


def _gate(layer: Layer, value: str, place: int, units: int) -> str:
    batch = layer.shape(value)[0]
    attrs = {"begin": (0, place * units), "end": (batch, (place + 1) * units), "strides": (1, 1)}
    return layer.emit("slice", (value,), attrs)


def _arrays(config: Mapping[str, Any], weights: Weights, gates: int) -> tuple[Array, Array, Array]:
    """Kernel, recurrent kernel, bias (zeros where there is none)."""
    found = weights.arrays()
    bias = found[2] if config["use_bias"] else np.zeros(int(config["units"]) * gates, np.float32)
    return found[0], found[1], bias


def simple(layer: Layer, config: Mapping[str, Any], weights: Weights) -> tuple[Array, Array, Step]:
    """h' = activation(x W + h U + b)."""
    kernel, recurrent_kernel, bias = _arrays(config, weights, 1)
    turned = layer.constant("recurrent", recurrent_kernel.T)

    def step(share: str, state: State) -> State:
        total = layer.emit("add", (share, layer.emit("dense", (state[0], turned))))
        return (layer.activation(total, config["activation"]),)

    return kernel, bias, step


def lstm(layer: Layer, config: Mapping[str, Any], weights: Weights) -> tuple[Array, Array, Step]:
    """c' = f c + i g, h' = o activation(c')."""
    kernel, recurrent_kernel, bias = _arrays(config, weights, 4)
    units, turned = int(config["units"]), layer.constant("recurrent", recurrent_kernel.T)

    def step(share: str, state: State) -> State:
        total = layer.emit("add", (share, layer.emit("dense", (state[0], turned))))
        kinds = ("recurrent_activation", "recurrent_activation", "activation", "recurrent_activation")
        i, f, g, o = (layer.activation(_gate(layer, total, k, units), config[kind]) for k, kind in enumerate(kinds))
        cell = layer.emit("add", (layer.emit("mul", (f, state[1])), layer.emit("mul", (i, g))))
        return (layer.emit("mul", (o, layer.activation(cell, config["activation"]))), cell)

    return kernel, bias, step


def gru(layer: Layer, config: Mapping[str, Any], weights: Weights) -> tuple[Array, Array, Step]:
    """h' = z h + (1 - z) g; the reset acts on h U + b (``reset_after``) or on h."""
    kernel, recurrent_kernel, bias = _arrays(config, weights, 3)
    units, after = int(config["units"]), bool(config.get("reset_after", True))
    if bias.ndim == 1:
        bias = np.stack([bias, np.zeros_like(bias)])
    inner = layer.constant("recurrent_bias", bias[1])
    parts = (recurrent_kernel,) if after else (recurrent_kernel[:, : 2 * units], recurrent_kernel[:, 2 * units :])
    turned = [layer.constant("recurrent", part.T) for part in parts]

    def step(share: str, state: State) -> State:
        hidden = layer.emit("dense", (state[0], turned[0], inner) if after else (state[0], turned[0]))
        z, r = (
            layer.activation(
                layer.emit("add", (_gate(layer, share, k, units), _gate(layer, hidden, k, units))),
                config["recurrent_activation"],
            )
            for k in (0, 1)
        )
        if after:
            remembered = layer.emit("mul", (r, _gate(layer, hidden, 2, units)))
        else:
            remembered = layer.emit("dense", (layer.emit("mul", (r, state[0])), turned[1]))
        candidate = layer.activation(
            layer.emit("add", (_gate(layer, share, 2, units), remembered)), config["activation"]
        )
        old = layer.emit("mul", (z, state[0]))
        rest = layer.emit("mul", (layer.emit("sub", (layer.scalar(1.0), z)), candidate))
        return (layer.emit("add", (old, rest)),)

    return kernel, bias[0], step


def bidirectional(layer: Layer) -> str:
    """The layer forwards and backwards, the results merged; the backward sequence is turned round."""
    merged = layer.config.get("merge_mode")
    if merged not in ("concat", "sum", "mul", "ave"):
        layer.refuse(f"the merge {merged!r}")
    inner, results = layer.config["layer"], []
    for part, backwards in (("forward_layer", False), ("backward_layer", True)):
        config = {**inner["config"], "go_backwards": backwards, "return_state": False}
        spelling = SPELLINGS.get(inner["class_name"])
        if spelling is None:
            layer.refuse(f"of {inner['class_name']}")
        made = spelling(replace(layer, config=config, weights=layer.weights.inside(part)))
        value = made if isinstance(made, str) else made[0]
        if backwards and config.get("return_sequences"):
            value = _reversed(layer, value)
        results.append(value)
    if merged == "concat":
        return layer.emit("concat", results, {"axis": -1})
    total = layer.emit("mul" if merged == "mul" else "add", results)
    return layer.emit("mul", (total, layer.scalar(0.5))) if merged == "ave" else total


def _reversed(layer: Layer, value: str) -> str:
    length = layer.shape(value)[1]
    places = layer.write.new_constant("places", np.arange(length - 1, -1, -1, dtype=np.int32))
    return layer.emit("gather", (value, places), {"axis": 1})


SPELLINGS: Mapping[str, Spelling] = {
    "Bidirectional": bidirectional,
    "GRU": recurrent(gru, 1),
    "LSTM": recurrent(lstm, 2),
    "SimpleRNN": recurrent(simple, 1),
}
