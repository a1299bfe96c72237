"""Layers that go through a sequence step by step, as readers write them: one loop, whatever the number of steps.

The products with the data of all steps are made at once, before the loop; a step adds what the state contributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from microc.frontend.writer import GraphWriter
from microc.graph.ir import Attr

State = tuple[str, ...]
Step = Callable[[GraphWriter, str, State], State]
"""Writes a step into a body: the state after it, its row first, from the step's share of the data (N, C) and the state before."""


def over_time(
    write: GraphWriter, shares: str, state: Sequence[str], step: Step, *, backwards: bool = False, rows: bool = True
) -> tuple[str, State]:
    """Run ``step`` on every one of ``shares`` (T, N, C), the last first if ``backwards``.

    The rows (T, N, U) in the order in which they are made (empty unless ``rows`` are wanted), and the last state.
    """
    body = GraphWriter(write.loc.file)
    body.at(write.loc.index, write.loc.name)
    moment = body.input("turn", (), "int32")
    old = tuple(body.input(f"state_{k}", write.shape(value)) for k, value in enumerate(state))
    every = body.input("shares", write.shape(shares))
    count = write.shape(shares)[0]
    if backwards:
        moment = body.emit("sub", (body.new_constant("last", np.array(count - 1, np.int32)), moment))
    new = step(body, body.emit("gather", (every, moment), {"axis": 0}), old)
    results = {f"next_{k}": value for k, value in enumerate(new)} | ({"row": new[0]} if rows else {})
    attrs: Mapping[str, Attr] = {"body": body.graph("step", results), "count": count, "carried": len(old)}
    made = write.emit_all("loop", (*state, shares), attrs)
    return made[len(old)] if rows else "", made[: len(old)]


def exchanged(write: GraphWriter, value: str) -> str:
    """(A, B, C) with the first two axes, of batch and time, in each other's place."""
    first, second, width = write.shape(value)
    if min(first, second) == 1:
        return write.reshape(value, (second, first, width))
    return write.emit("transpose", (value,), {"axes": (1, 0, 2)})


def gate(write: GraphWriter, value: str, place: int, units: int) -> str:
    """One of the gates (N, U) that lie side by side."""
    attrs = {"begin": (0, place * units), "end": (write.shape(value)[0], (place + 1) * units), "strides": (1, 1)}
    return write.emit("slice", (value,), attrs)
