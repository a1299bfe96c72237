"""Keras's recurrent layers, as loops over time.

Gates lie side by side in the kernels: LSTM input, forget, cell, output; GRU update, reset, candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.frontend.formulas import Gates, State, exchanged, gate, over_time
from microc.frontend.keras.context import Layer, LayerWeights, Spelling

Cell = Callable[[Layer, str, State], State]
"""A step, written into the layer's graph, which is the loop's body."""


def recurrent(cell: Callable[[Mapping[str, Any], LayerWeights], tuple[Array, Array, Cell]], states: int) -> Spelling:
    """A layer that runs a cell along the second axis; ``cell`` gives the input's kernel, its bias, and the step."""

    def spell(layer: Layer) -> str | tuple[str, ...]:
        config = layer.config
        if len(layer.operands) > 1 or layer.kwargs.get("initial_state") is not None:
            layer.refuse("a state from outside", "make the state an input and an output of the model")
        kernel, bias, step = cell(config, layer.weights.inside("cell"))
        start = _start(layer, states, (layer.shape()[0], int(config["units"])))
        made, state = over_time(
            layer.write,
            exchanged(layer.write, layer.x),
            Gates(kernel.T, bias),
            start,
            lambda body, share, old: step(replace(layer, write=body), share, old),
            backwards=bool(config.get("go_backwards")),
            rows=bool(config.get("return_sequences")),
        )
        if config.get("stateful"):
            for kept, following in zip(start, state, strict=True):
                layer.write.update(kept, following)
        value = exchanged(layer.write, made) if config.get("return_sequences") else state[0]
        return (value, *state) if config.get("return_state") else value

    return spell


def _start(layer: Layer, states: int, shape: tuple[int, int]) -> State:
    """What the first step takes for the state before: zeros, or where a stateful layer stopped in the run before."""
    zeros = np.zeros(shape, np.float32)
    if not layer.config.get("stateful"):
        return (layer.constant("zero", zeros),) * states
    names = [f"{layer.weights.path}/state_{k}" for k in range(states)]
    if names[0] in layer.write.types:
        layer.refuse("a stateful layer that is called twice", "make the state an input and an output of the model")
    return tuple(layer.write.state(name, zeros) for name in names)


def _arrays(config: Mapping[str, Any], weights: LayerWeights, gates: int) -> tuple[Array, Array, Array]:
    """Kernel, recurrent kernel, bias (zeros where there is none)."""
    found = weights.arrays()
    bias = found[2] if config["use_bias"] else np.zeros(int(config["units"]) * gates, np.float32)
    return found[0], found[1], bias


def simple(config: Mapping[str, Any], weights: LayerWeights) -> tuple[Array, Array, Cell]:
    """h' = activation(x W + h U + b)."""
    kernel, recurrent_kernel, bias = _arrays(config, weights, 1)

    def step(layer: Layer, share: str, state: State) -> State:
        turned = layer.constant("recurrent", recurrent_kernel.T)
        total = layer.emit("add", (share, layer.emit("dense", (state[0], turned))))
        return (layer.activation(total, config["activation"]),)

    return kernel, bias, step


def lstm(config: Mapping[str, Any], weights: LayerWeights) -> tuple[Array, Array, Cell]:
    """c' = f c + i g, h' = o activation(c')."""
    kernel, recurrent_kernel, bias = _arrays(config, weights, 4)
    units = int(config["units"])

    def step(layer: Layer, share: str, state: State) -> State:
        turned = layer.constant("recurrent", recurrent_kernel.T)
        total = layer.emit("add", (share, layer.emit("dense", (state[0], turned))))
        kinds = ("recurrent_activation", "recurrent_activation", "activation", "recurrent_activation")
        i, f, g, o = (
            layer.activation(gate(layer.write, total, k, units), config[kind]) for k, kind in enumerate(kinds)
        )
        cell = layer.emit("add", (layer.emit("mul", (f, state[1])), layer.emit("mul", (i, g))))
        return (layer.emit("mul", (o, layer.activation(cell, config["activation"]))), cell)

    return kernel, bias, step


def gru(config: Mapping[str, Any], weights: LayerWeights) -> tuple[Array, Array, Cell]:
    """h' = z h + (1 - z) g; the reset acts on h U + b (``reset_after``) or on h."""
    kernel, recurrent_kernel, bias = _arrays(config, weights, 3)
    units, after = int(config["units"]), bool(config.get("reset_after", True))
    if bias.ndim == 1:
        bias = np.stack([bias, np.zeros_like(bias)])
    parts = (recurrent_kernel,) if after else (recurrent_kernel[:, : 2 * units], recurrent_kernel[:, 2 * units :])

    def step(layer: Layer, share: str, state: State) -> State:
        turned = [layer.constant("recurrent", part.T) for part in parts]
        inner = (layer.constant("recurrent_bias", bias[1]),) if after else ()
        hidden = layer.emit("dense", (state[0], turned[0], *inner))
        z, r = (
            layer.activation(
                layer.emit("add", (gate(layer.write, share, k, units), gate(layer.write, hidden, k, units))),
                config["recurrent_activation"],
            )
            for k in (0, 1)
        )
        if after:
            remembered = layer.emit("mul", (r, gate(layer.write, hidden, 2, units)))
        else:
            remembered = layer.emit("dense", (layer.emit("mul", (r, state[0])), turned[1]))
        candidate = layer.activation(
            layer.emit("add", (gate(layer.write, share, 2, units), remembered)), config["activation"]
        )
        old = layer.emit("mul", (z, state[0]))
        rest = layer.emit("mul", (layer.emit("sub", (layer.scalar(1.0), z)), candidate))
        return (layer.emit("add", (old, rest)),)

    return kernel, bias[0], step


def bidirectional(layer: Layer) -> str:
    """The layer forwards and backwards, the results merged; the backward sequence is turned round."""
    merged = layer.config.get("merge_mode")
    if merged not in ("concat", "sum", "mul", "ave"):
        layer.refuse(f"the merge {merged!r}", "use concat, sum, mul or ave")
    inner, results = layer.config["layer"], []
    for part, backwards in (("forward_layer", False), ("backward_layer", True)):
        config = {**inner["config"], "go_backwards": backwards, "return_state": False}
        spelling = SPELLINGS.get(inner["class_name"])
        if spelling is None:
            layer.refuse(f"of {inner['class_name']}", "wrap a SimpleRNN, a GRU or an LSTM")
        made = spelling(replace(layer, config=config, weights=layer.weights.inside(part)))
        value = made if isinstance(made, str) else made[0]
        if backwards and config.get("return_sequences"):
            value = layer.emit("reverse", (value,), {"axes": (1,)})
        results.append(value)
    if merged == "concat":
        return layer.emit("concat", results, {"axis": -1})
    total = layer.emit("mul" if merged == "mul" else "add", results)
    return layer.emit("mul", (total, layer.scalar(0.5))) if merged == "ave" else total


SPELLINGS: Mapping[str, Spelling] = {
    "Bidirectional": bidirectional,
    "GRU": recurrent(gru, 1),
    "LSTM": recurrent(lstm, 2),
    "SimpleRNN": recurrent(simple, 1),
}
