"""Layers that go through a sequence step by step, as readers write them: one loop, whatever the number of steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from microc.dtypes import Array
from microc.frontend.graph_builder import GraphBuilder
from microc.frozen import frozen
from microc.graph.ir import Attr

State = tuple[str, ...]
Step = Callable[[GraphBuilder, str, State], State]
"""Writes a step into a body: the state after it, its row first, from the step's share of the data (N, G) and the state before."""


@frozen
class Gates:
    """What all gates take of rows: products with ``weight`` (G, C), and ``bias`` (G) where there is one."""

    weight: Array
    bias: Array | None = None

    def of(self, write: GraphBuilder, rows: str) -> str:
        """(M, G) of rows (M, C)."""
        operands = [write.new_constant("weight", self.weight)]
        operands += [] if self.bias is None else [write.new_constant("bias", self.bias)]
        return write.emit("dense", (rows, *operands))


def at_once(steps: int, width: int, depth: int) -> bool:
    """Whether the products (``width`` a step) of all steps are made before the loop: where they take no more memory than the data
    (``depth`` a step)."""
    return steps > 1 and width <= depth


def over_time(
    write: GraphBuilder,
    data: str,
    gates: Gates,
    state: Sequence[str],
    step: Step,
    *,
    backwards: bool = False,
    rows: bool = True,
) -> tuple[str, State]:
    """Run ``step`` on what ``gates`` take of ``data`` (T, N, C) at every time, the last first if ``backwards``.

    The rows (T, N, U) in the order in which they are made (empty unless ``rows`` are wanted), and the last state.
    """
    (count, batch, depth), width = write.shape(data), len(gates.weight)
    early = at_once(count, width, depth)
    if early:
        flat = gates.of(write, write.reshape(data, (count * batch, depth)))
        data = write.reshape(flat, (count, batch, width))
    body = GraphBuilder(write.loc.file)
    body.at(write.loc.index, write.loc.name)
    moment = body.input("turn", (), "int32")
    old = tuple(body.input(f"state_{k}", write.shape(value)) for k, value in enumerate(state))
    every = body.input("data", write.shape(data))
    if backwards:
        moment = body.emit("sub", (body.new_constant("last", np.array(count - 1, np.int32)), moment))
    share = body.emit("gather", (every, moment), {"axis": 0})
    new = step(body, share if early else gates.of(body, share), old)
    results = {f"next_{k}": value for k, value in enumerate(new)} | ({"row": new[0]} if rows else {})
    attrs: Mapping[str, Attr] = {"body": body.graph("step", results), "count": count, "carried": len(old)}
    made = write.emit_all("loop", (*state, data), attrs)
    return made[len(old)] if rows else "", made[: len(old)]


def exchanged(write: GraphBuilder, value: str) -> str:
    """(A, B, C) with the first two axes, of batch and time, in each other's place."""
    first, second, width = write.shape(value)
    if min(first, second) == 1:
        return write.reshape(value, (second, first, width))
    return write.emit("transpose", (value,), {"axes": (1, 0, 2)})


def gate(write: GraphBuilder, value: str, place: int, units: int) -> str:
    """One of the gates (N, U) that lie side by side."""
    attrs = {"begin": (0, place * units), "end": (write.shape(value)[0], (place + 1) * units), "strides": (1, 1)}
    return write.emit("slice", (value,), attrs)
