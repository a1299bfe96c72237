"""Spellings of ATen's recurrent layers (``lstm``, ``gru``, ``rnn_tanh``, ``rnn_relu``), several of them, one or both ways: loops
over time.

Gates lie side by side in the weights: LSTM input, forget, cell, output; GRU reset, update, new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from microc.base.dtypes import Array
from microc.frontend.formulas import Gates, State, Step, exchanged, gate, over_time
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.torch.context import Application, Spelling

Weights = Sequence[Array]
"""Of one direction: the data's matrix (G U, C) and the state's (G U, U), and their biases where there are some."""


def recurrent(cell: Callable[[Gates], Step], states: int) -> Spelling:
    """Layers of ``cell``, whose state is ``states`` values."""

    def spell(a: Application) -> tuple[str, ...]:
        if a.argument("batch_sizes") is not None:
            a.refuse("packed sequences", "export the model on padded ones")
        if a.argument("train") and a.argument("dropout"):
            a.refuse("dropout while training", "export the model in eval mode")
        directions = 2 if a.argument("bidirectional") else 1
        layers, parts = int(a.argument("num_layers")), _parts(a)
        if len(parts) != layers * directions:
            a.refuse("projected states", "build the layer with proj_size=0")
        data = a.operand("input")
        if a.argument("batch_first"):
            data = exchanged(a.write, data)
        initial, last = _initial(a, states), []
        for layer in range(layers):
            rows = []
            for k in range(layer * directions, (layer + 1) * directions):
                backwards = k % directions == 1
                state = [_part(a, value, k) for value in initial]
                gates, past = _gates(parts[k])
                made, ends = over_time(a.write, data, gates, state, cell(past), backwards=backwards)
                rows.append(a.emit("reverse", (made,), {"axes": (0,)}) if backwards else made)
                last.append(ends)
            data = rows[0] if directions == 1 else a.emit("concat", rows, {"axis": 2})
        ends_by_state = [_stacked(a, [ends[k] for ends in last]) for k in range(states)]
        return (exchanged(a.write, data) if a.argument("batch_first") else data, *ends_by_state)

    return spell


def _parts(a: Application) -> list[Weights]:
    """The weights of every direction of every layer."""
    given = a.argument("params")
    if any(isinstance(x, str) and x not in a.write.consts for x in given):
        a.refuse("weights that are not known when compiling", "make them parameters of the module")
    arrays = [a.write.consts[x] if isinstance(x, str) else a.array(x) for x in given]
    count = 4 if a.argument("has_biases") else 2
    return [arrays[k : k + count] for k in range(0, len(arrays), count)]


def _initial(a: Application, states: int) -> list[str]:
    """The states (layers and directions, N, U) from which all start."""
    given: Any = a.argument("hx")
    return [a.value(value) for value in (given if states > 1 else (given,))]


def _part(a: Application, value: str, k: int) -> str:
    """The state (N, U) of one direction."""
    count, batch, units = a.shape(value)
    if value in a.write.consts:
        return a.write.new_constant("state", a.write.consts[value][k])
    attrs = {"begin": (k, 0, 0), "end": (k + 1, batch, units), "strides": (1, 1, 1)}
    return a.reshaped(value if count == 1 else a.emit("slice", (value,), attrs), (batch, units))


def _stacked(a: Application, values: Sequence[str]) -> str:
    batch, units = a.shape(values[0])
    apart = [a.reshaped(value, (1, batch, units)) for value in values]
    return apart[0] if len(apart) == 1 else a.emit("concat", apart, {"axis": 0})


def _gates(weights: Weights) -> tuple[Gates, Gates]:
    """What they take of the data, and of the state."""
    return Gates(weights[0], *weights[2:3]), Gates(weights[1], *weights[3:])


def plain(function: str) -> Callable[[Gates], Step]:
    """h' = function(x W + h U)."""

    def cell(past: Gates) -> Step:
        def step(write: GraphBuilder, share: str, state: State) -> State:
            return (write.emit(function, (write.emit("add", (share, past.of(write, state[0]))),)),)

        return step

    return cell


def lstm(past: Gates) -> Step:
    """c' = f c + i g, h' = o tanh(c')."""

    def step(write: GraphBuilder, share: str, state: State) -> State:
        units, emit = past.weight.shape[1], write.emit
        total = emit("add", (share, past.of(write, state[0])))
        i, f, o = (emit("sigmoid", (gate(write, total, k, units),)) for k in (0, 1, 3))
        fresh = emit("mul", (i, emit("tanh", (gate(write, total, 2, units),))))
        cell = emit("add", (emit("mul", (f, state[1])), fresh))
        return emit("mul", (o, emit("tanh", (cell,)))), cell

    return step


def gru(past: Gates) -> Step:
    """n = tanh(x W + r (h U)), h' = (1 - z) n + z h."""

    def step(write: GraphBuilder, share: str, state: State) -> State:
        units, emit = past.weight.shape[1], write.emit
        sums = past.of(write, state[0])
        r, z = (
            emit("sigmoid", (emit("add", (gate(write, share, k, units), gate(write, sums, k, units))),)) for k in (0, 1)
        )
        remembered = emit("mul", (r, gate(write, sums, 2, units)))
        fresh = emit("tanh", (emit("add", (gate(write, share, 2, units), remembered)),))
        rest = emit("mul", (emit("sub", (write.scalar(1.0), z)), fresh))
        return (emit("add", (rest, emit("mul", (z, state[0])))),)

    return step


SPELLINGS: Mapping[str, Spelling] = {
    "gru": recurrent(gru, 1),
    "lstm": recurrent(lstm, 2),
    "rnn_relu": recurrent(plain("relu"), 1),
    "rnn_tanh": recurrent(plain("tanh"), 1),
}
