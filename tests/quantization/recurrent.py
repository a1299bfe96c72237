# SPDX-License-Identifier: Apache-2.0
"""Small float networks with loops, and sequences for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph
from tests.support.loops_over_time import GateWeights, State, emit_loop_over_time, slice_gate

STEPS, DEPTH, UNITS = 12, 6, 8


def sequences(count: int, seed: int = 0, depth: int = DEPTH) -> Array:
    """Wandering numbers (count, 12, 1, depth)."""
    steps = np.random.default_rng(seed).normal(scale=0.5, size=(count, STEPS, 1, depth))
    return np.cumsum(steps, axis=1).astype(np.float32)


class Cell:
    """A recurrent layer with random weights. ``states``: how many values it carries."""

    def __init__(self, gates: int, depth: int) -> None:
        self.random, self.gates = np.random.default_rng(5), gates
        self.given = GateWeights(
            self.weight(depth), self.random.normal(scale=0.2, size=gates * UNITS).astype(np.float32)
        )
        self.own = self.weight(UNITS)

    def weight(self, depth: int) -> Array:
        drawn = self.random.normal(scale=depth**-0.5, size=(self.gates * UNITS, depth))
        return drawn.astype(np.float32)

    def product(self, write: GraphBuilder, value: str) -> str:
        return write.emit("dense", (value, write.new_constant("weight", self.own)))


class Lstm(Cell):
    def __init__(self, depth: int = DEPTH) -> None:
        super().__init__(4, depth)

    def step(self, write: GraphBuilder, share: str, old: State) -> State:
        hidden, cell = old
        total = write.emit("add", (share, self.product(write, hidden)))
        parts = [slice_gate(write, total, k, UNITS) for k in range(4)]
        i, f, o = (write.emit("sigmoid", (part,)) for part in parts[:3])
        added = write.emit("mul", (i, write.emit("tanh", (parts[3],))))
        cell = write.emit("add", (write.emit("mul", (f, cell)), added))
        return write.emit("mul", (o, write.emit("tanh", (cell,)))), cell


class Gru(Cell):
    def __init__(self, depth: int = DEPTH) -> None:
        super().__init__(3, depth)

    def step(self, write: GraphBuilder, share: str, old: State) -> State:
        (hidden,) = old
        own = self.product(write, hidden)
        z, r, n = ([slice_gate(write, value, k, UNITS) for value in (share, own)] for k in range(3))
        update, reset = (write.emit("sigmoid", (write.emit("add", pair),)) for pair in (z, r))
        new = write.emit("tanh", (write.emit("add", (n[0], write.emit("mul", (reset, n[1])))),))
        rest = write.emit("sub", (write.scalar(1.0), update))
        return (write.emit("add", (write.emit("mul", (rest, new)), write.emit("mul", (update, hidden)))),)


class Simple(Cell):
    """The hidden value is all that there is."""

    def __init__(self, depth: int = DEPTH) -> None:
        super().__init__(1, depth)

    def step(self, write: GraphBuilder, share: str, old: State) -> State:
        return (write.emit("tanh", (write.emit("add", (share, self.product(write, old[0]))),)),)


class Inner(Cell):
    """Two layers one behind the other in every step, of which the first has a clamp."""

    def __init__(self, depth: int = DEPTH) -> None:
        super().__init__(1, depth)

    def step(self, write: GraphBuilder, share: str, old: State) -> State:
        inner = write.emit("relu", (write.emit("add", (share, self.product(write, old[0]))),))
        return (write.emit("tanh", (self.product(write, inner),)),)


CELLS: Mapping[str, Any] = {"lstm": Lstm, "gru": Gru, "simple": Simple, "inner": Inner}


def network(name: str, *, depth: int = DEPTH, layers: int = 1, start: str = "zeros") -> Graph:
    """A recurrent network: rows of the last layer, what a dense layer says of its last state. ``start``: zeros, ``input``, or
    ``numbers``."""
    write = GraphBuilder("net")
    write.at(0, "layer")
    data = write.input("x", (STEPS, 1, depth))
    last: State = ()
    for layer in range(layers):
        cell = CELLS[name](depth if layer == 0 else UNITS)
        states = 2 if name == "lstm" else 1
        first = [
            write.new_constant("start", np.full((1, UNITS), 0.3 if start == "numbers" else 0, np.float32))
        ] * states
        if start == "input":
            first[0] = write.input(f"h{layer}", (1, UNITS))
        data, last = emit_loop_over_time(write, data, cell.given, first, cell.step)
    weight = write.new_constant("weight", np.random.default_rng(9).normal(size=(5, UNITS)).astype(np.float32))
    return write.graph("net", {"rows": data, "y": write.emit("dense", (last[0], weight))})
