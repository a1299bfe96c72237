"""Spellings of RNN, GRU and LSTM: a loop over time that carries the state.

Source: ONNX RNN, GRU, LSTM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from microc.frontend.onnx.application import Application, Spelling
from microc.frontend.onnx.cells import CELLS, FUNCTIONS, Layer, Step, Weights, finished, functions
from microc.frontend.recurrent import at_once
from microc.graph.ir import Attr

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_DEFAULTS = {"RNN": ("tanh",), "GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh")}


def _layer(application: Application) -> Layer:
    """The attributes, checked."""
    attributes, code = application.operator.attributes, application.operator.code
    direction = attributes.text("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        application.broken(f"direction is {direction!r}")
    shape, directions = application.shape(0), 2 if direction == "bidirectional" else 1
    if len(shape) != 3 or len(application.shape(1)) != 3 or application.shape(1)[0] != directions:
        application.broken(f"data of shape {shape} and weights of shape {application.shape(1)}")
    steps, batch = (shape[1], shape[0]) if attributes.flag("layout") else shape[:2]
    given = tuple(name.lower() for name in attributes.texts("activations")) or _DEFAULTS[code] * directions
    if any(name not in FUNCTIONS for name in given) or len(given) != len(_DEFAULTS[code]) * directions:
        application.broken(f"activations {', '.join(given)} in {directions} directions of {code}")
    found = functions(given, attributes.reals("activation_alpha", ()), attributes.reals("activation_beta", ()))
    units, forgets = application.shape(2)[2], attributes.flag("input_forget")
    return Layer(code, steps, batch, units, directions, found, attributes.real("clip", 0.0), forgets)


def recurrent(application: Application) -> None:
    """RNN, GRU and LSTM, forwards, backwards or both."""
    layer, attributes = _layer(application), application.operator.attributes
    data = application.value(0)
    batch_first = attributes.flag("layout")
    if batch_first:
        data = application.emit("transpose", (data,), {"axes": (1, 0, 2)})
    parts = []
    for k in range(layer.directions):
        backwards = k == 1 or attributes.text("direction", "forward") == "reverse"
        count = len(layer.functions) // layer.directions
        one = replace(layer, functions=layer.functions[k * count : (k + 1) * count])
        parts.append(_direction(application, one, data, k, backwards, batch_first))
    _outputs(application, layer, parts, batch_first)


def _turned(application: Application, value: str) -> str:
    """A sequence backwards in time; with lengths, each within its own."""
    if application.has(4):
        return application.emit("reverse_sequence", (value, application.value(4)), {"batch_axis": 1, "time_axis": 0})
    return application.emit("reverse", (value,), {"axes": (0,)})


def _part(application: Application, position: int, k: int, axis: int = 0) -> str:
    """Direction ``k`` of an operand, without that axis."""
    value = application.operand(position)
    shape, known = application.type(value).shape, application.builder.consts.get(value)
    if known is not None:
        return application.new_constant(f"{value}_{k}", np.ascontiguousarray(np.take(known, k, axis)))
    begin, end = [0] * len(shape), list(shape)
    begin[axis], end[axis] = k, k + 1
    if shape[axis] > 1:
        attrs: Mapping[str, Attr] = {"begin": tuple(begin), "end": tuple(end), "strides": (1,) * len(shape)}
        value = application.emit("slice", (value,), attrs)
    return application.reshaped(value, (*shape[:axis], *shape[axis + 1 :]))


def _state(application: Application, layer: Layer, position: int, k: int, batch_first: bool) -> str:
    """The initial state (batch, units), zeros if it is not given."""
    if application.has(position):
        return _part(application, position, k, 1 if batch_first else 0)
    zeros = np.zeros((layer.batch, layer.units), np.float32)
    return application.new_constant(f"{application.output() or application.loc.name}_state", zeros)


def _direction(
    application: Application, layer: Layer, data: str, k: int, backwards: bool, batch_first: bool
) -> tuple[str, list[str]]:
    """One direction: the stacked rows (steps, batch, units) and the last states."""
    weight, matrix = (_part(application, position, k) for position in (1, 2))
    if backwards:
        data = _turned(application, data)
    biases = _biases(application, layer, k, application.type(weight).shape[0])
    states = [_state(application, layer, 5, k, batch_first)]
    if layer.code == "LSTM":
        states.append(_state(application, layer, 6, k, batch_first))
    step = Step(application, layer)
    old = [step.carried(value, name) for value, name in zip(states, ("hidden", "cell"), strict=False)]
    now = _shares(application, step, data, weight, biases[0])
    peepholes = step.bring(_part(application, 7, k)) if layer.code == "LSTM" and application.has(7) else ""
    cell = Weights(step.bring(matrix), step.bring(biases[1]) if biases[1] else "", peepholes)
    new = CELLS[layer.code](step, now, old, cell)
    body = finished(step, application, old, new)
    attrs: dict[str, Any] = {"body": body, "count": layer.steps, "carried": len(states), "guarded": False}
    made = [application.builder.unique(f"{application.loc.name}_{stem}") for stem in (*("last",) * len(states), "rows")]
    application.write_all("loop", (*states, *step.fixed), attrs, made)
    rows = _turned(application, made[-1]) if backwards else made[-1]
    return rows, made[:-1]


def _biases(application: Application, layer: Layer, k: int, size: int) -> tuple[str, str]:
    """What is added to the data's products, and to the state's; one sum unless the cell takes them apart."""
    if not application.has(3):
        return "", ""
    both = _part(application, 3, k)
    data, state = (_cut(application, both, size, half) for half in (0, 1))
    return (data, state) if layer.code == "GRU" else (application.emit("add", (data, state)), "")


def _cut(application: Application, bias: str, size: int, half: int) -> str:
    known = application.builder.consts.get(bias)
    if known is not None:
        return application.new_constant(f"{bias}_{half}", known[half * size :][:size])
    attrs: Mapping[str, Attr] = {"begin": (half * size,), "end": ((half + 1) * size,), "strides": (1,)}
    return application.emit("slice", (bias,), attrs)


def _shares(application: Application, step: Step, data: str, weight: str, bias: str) -> str:
    """The data's products with the weights in a step."""
    steps, batch, depth = application.type(data).shape
    size = application.type(weight).shape[0]
    if not at_once(steps, size, depth):
        row = step("gather", step.bring(data), step.turn, axis=0)
        return step("dense", row, step.bring(weight), *((step.bring(bias),) if bias else ()))
    flat = application.reshaped(data, (steps * batch, depth))
    sums = application.emit("dense", (flat, weight, bias) if bias else (flat, weight))
    return step("gather", step.bring(application.reshaped(sums, (steps, batch, size))), step.turn, axis=0)


def _outputs(application: Application, layer: Layer, parts: list[tuple[str, list[str]]], batch_first: bool) -> None:
    """Directions side by side: rows (steps, directions, batch, units), last states (directions, batch, units)."""
    stacked = [[rows for rows, _ in parts], *([states[k] for _, states in parts] for k in range(len(parts[0][1])))]
    for position, values in enumerate(stacked):
        if not application.output(position):
            continue
        shape = application.type(values[0]).shape
        axis = len(shape) - 2
        apart = [application.reshaped(value, (*shape[:axis], 1, *shape[axis:])) for value in values]
        whole = apart[0] if len(apart) == 1 else application.emit("concat", apart, {"axis": axis})
        if batch_first:
            order = (2, 0, 1, 3) if position == 0 else (1, 0, 2)
            whole = application.emit("transpose", (whole,), {"axes": order})
        application.rename(application.output(position), whole)


SPELLINGS: Mapping[str, Spelling] = {code: Spelling(recurrent, ("float32",)) for code in _GATES}
