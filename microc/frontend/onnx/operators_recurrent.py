"""ONNX RNN, GRU and LSTM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from microc.base.immutable import frozen
from microc.frontend import formulas
from microc.frontend.formulas import at_once, gate
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.onnx.context import Application, Spelling
from microc.graph.ir import Attr, Graph

# ---- The cells of RNN, GRU and LSTM: what one step makes of its data and of the state before, and the functions of
# the gates.
#
# Source: ONNX RNN, GRU, LSTM; the functions' default parameters are those of ONNX's operators of the same names.


@frozen
class Function:
    """A function of a gate, with the parameters that it takes."""

    name: str
    parameters: tuple[float, ...] = ()


@frozen
class _Kind:
    """How a function is computed, and its default parameters, None for one that it does not take."""

    formula: Callable[..., str]
    alpha: float | None = None
    beta: float | None = None


def _named(op: str) -> _Kind:
    return _Kind(lambda make, x: make(op, x))


FUNCTIONS: Mapping[str, _Kind] = {
    "affine": _Kind(formulas.line, 1.0, 0.0),
    "elu": _Kind(lambda make, x, alpha: make("elu", x, alpha=alpha), 1.0),
    "hardsigmoid": _Kind(formulas.hard_sigmoid, 0.2, 0.5),
    "leakyrelu": _Kind(lambda make, x, alpha: make("leaky_relu", x, alpha=alpha), 0.01),
    "relu": _named("relu"),
    "scaledtanh": _Kind(formulas.scaled_tanh, 1.0, 1.0),
    "sigmoid": _named("sigmoid"),
    "softplus": _named("softplus"),
    "softsign": _Kind(formulas.softsign),
    "tanh": _named("tanh"),
    "thresholdedrelu": _Kind(formulas.thresholded_relu, 1.0),
}
"""By ONNX's names in lower case."""


def functions(names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]) -> tuple[Function, ...]:
    """Functions with their parameters: each takes the next of ``alphas``, of ``betas``, if it has such a parameter."""
    found = []
    for name in names:
        kind, parameters = FUNCTIONS[name], []
        if kind.alpha is not None:
            alpha, alphas = (alphas[0], alphas[1:]) if alphas else (kind.alpha, alphas)
            parameters.append(alpha)
        if kind.beta is not None:
            beta, betas = (betas[0], betas[1:]) if betas else (kind.beta, betas)
            parameters.append(beta)
        found.append(Function(name, tuple(parameters)))
    return tuple(found)


@frozen
class Layer:
    """Extents of a recurrent layer, and its functions for one direction. ``input_forget``: the forget gate is one minus the input
    gate."""

    code: str
    steps: int
    batch: int
    units: int
    directions: int
    functions: tuple[Function, ...]
    clip: float
    input_forget: bool


@frozen
class Weights:
    """What a cell reads besides data and state, as names in its step; empty where there is none."""

    matrix: str
    bias: str
    peepholes: str


class Step:
    """The body of the loop, being written: values from around it come in as constants or as fixed inputs."""

    def __init__(self, application: Application, layer: Layer) -> None:
        self.application, self.layer = application, layer
        self.body = GraphBuilder(application.loc.file)
        self.body.at(application.loc.index, application.loc.name)
        self.turn = self.body.input("turn", (), "int32")
        self.fixed: list[str] = []

    def carried(self, value: str, name: str) -> str:
        kind = self.application.type(value)
        return self.body.input(name, kind.shape, kind.dtype)

    def bring(self, value: str) -> str:
        """A value from around the loop."""
        known, kind = self.application.builder.consts.get(value), self.application.type(value)
        if known is not None:
            return self.body.new_constant("weights", known)
        self.fixed.append(value)
        return self.body.input("fixed", kind.shape, kind.dtype)

    def __call__(self, op: str, *operands: str | float, **attrs: Attr) -> str:
        names = [o if isinstance(o, str) else self.body.scalar(o) for o in operands]
        return self.body.emit(op, names, attrs)

    def gate(self, value: str, k: int) -> str:
        """Gate ``k`` of sums of all gates side by side."""
        return gate(self.body, value, k, self.layer.units)

    def bend(self, k: int, value: str) -> str:
        """Function ``k`` of the clipped value."""
        if self.layer.clip:
            value = self("clip", value, minimum=-self.layer.clip, maximum=self.layer.clip)
        return self.function(k, value)

    def function(self, k: int, value: str) -> str:
        """Function ``k``."""
        function = self.layer.functions[k]
        return FUNCTIONS[function.name].formula(self, value, *function.parameters)


def finished(step: Step, application: Application, old: list[str], new: list[str]) -> Graph:
    """The body: beyond the end of a sequence its state stays, and its rows are zero."""
    row = new[0]
    if application.has(4):
        lengths = step("cast", step.bring(application.value(4)), dtype="int32")
        inside = step.body.reshape(step("greater", lengths, step.turn), (step.layer.batch, 1))
        new = [step("where", inside, fresh, before) for fresh, before in zip(new, old, strict=True)]
        row = step("where", inside, row, step.body.scalar(0.0))
    names = [*(f"next_{k}" for k in range(len(new))), "row"]
    return step.body.graph("step", dict(zip(names, (*new, row), strict=True)))


def _sums(step: Step, hidden: str, weights: Weights) -> str:
    """The state's products with all gates."""
    return step("dense", hidden, weights.matrix, *((weights.bias,) if weights.bias else ()))


def _rnn(step: Step, now: str, old: list[str], weights: Weights) -> list[str]:
    return [step.bend(0, step("add", now, _sums(step, old[0], weights)))]


def _gru(step: Step, now: str, old: list[str], weights: Weights) -> list[str]:
    """Gates update, reset, hidden."""
    (hidden,), units = old, step.layer.units
    sums = _sums(step, hidden, weights)
    update, reset = (step.bend(0, step("add", step.gate(now, k), step.gate(sums, k))) for k in (0, 1))
    if step.application.operator.attributes.flag("linear_before_reset"):
        past = step("mul", reset, step.gate(sums, 2))
    else:
        ends: dict[str, Attr] = {"begin": (2 * units, 0), "end": (3 * units, units), "strides": (1, 1)}
        past = step("dense", step("mul", reset, hidden), step("slice", weights.matrix, **ends))
        if weights.bias:
            past = step("add", past, step("slice", weights.bias, begin=(2 * units,), end=(3 * units,), strides=(1,)))
    fresh = step.bend(1, step("add", step.gate(now, 2), past))
    return [step("add", step("mul", step("sub", 1.0, update), fresh), step("mul", update, hidden))]


def _lstm(step: Step, now: str, old: list[str], weights: Weights) -> list[str]:
    """Gates input, output, forget, cell; peepholes input, output, forget. The cell is not clipped, as in onnxruntime."""
    hidden, cell = old
    sums = step("add", now, _sums(step, hidden, weights))
    units = step.layer.units

    def seen(k: int, state: str) -> str:
        """Gate ``k``, and what it sees of the cell."""
        if not weights.peepholes:
            return step.gate(sums, k)
        looking = step("slice", weights.peepholes, begin=(k * units,), end=((k + 1) * units,), strides=(1,))
        return step("add", step.gate(sums, k), step("mul", looking, state))

    enter = step.bend(0, seen(0, cell))
    forget = step("sub", 1.0, enter) if step.layer.input_forget else step.bend(0, seen(2, cell))
    fresh = step.bend(1, step.gate(sums, 3))
    following = step("add", step("mul", forget, cell), step("mul", enter, fresh))
    leave = step.bend(0, seen(1, following))
    return [step("mul", leave, step.function(2, following)), following]


CELLS: Mapping[str, Callable[[Step, str, list[str], Weights], list[str]]] = {
    "RNN": _rnn,
    "GRU": _gru,
    "LSTM": _lstm,
}


# ---- Spellings of RNN, GRU and LSTM: a loop over time that carries the state.
#
# Source: ONNX RNN, GRU, LSTM.

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
