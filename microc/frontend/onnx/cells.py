"""The cells of RNN, GRU and LSTM: what one step makes of its data and of the state before, and the functions of the gates.

Source: ONNX RNN, GRU, LSTM; the functions' default parameters are those of ONNX's operators of the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from microc.frontend import formulas
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.onnx.application import Application
from microc.frontend.recurrent import gate
from microc.frozen import frozen
from microc.graph.ir import Attr, Graph


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
