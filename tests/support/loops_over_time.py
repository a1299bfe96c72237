# SPDX-License-Identifier: Apache-2.0
"""Loops over time whose steps a test writes itself: cells that no operator of microc is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Attr
from microc.ops.recurrent.layers import should_precompute_input_products

State = tuple[str, ...]
StepEmitter = Callable[[GraphBuilder, str, State], State]
"""Writes a step into a loop's body: from its input (N, G) and the old state to the new state, whose first value is the
row."""


@frozen
class GateWeights:
    """Weights that multiply the input of a recurrent layer, for all gates in one matrix.

    ``weight`` has the shape (G, C), with G = gates * units and C input channels. ``bias`` has the shape (G), or is
    None."""

    weight: Array
    bias: Array | None = None

    def emit_gate_products(self, builder: GraphBuilder, rows: str) -> str:
        """Emit a dense layer that computes all gates for ``rows`` (M, C); return the name of its result (M, G)."""
        operands = [builder.new_constant("weight", self.weight)]
        operands += [] if self.bias is None else [builder.new_constant("bias", self.bias)]
        return builder.emit("dense", (rows, *operands))


def emit_loop_over_time(
    builder: GraphBuilder,
    data: str,
    input_gates: GateWeights,
    initial_state: Sequence[str],
    emit_step: StepEmitter,
    *,
    backwards: bool = False,
    returns_rows: bool = True,
) -> tuple[str, State]:
    """Emit a ``loop`` whose body, written by ``emit_step``, computes one time step of ``data`` (T, N, C).

    ``emit_step`` receives the products of the step's input and the gates' weights, and the old state. ``backwards``:
    the loop begins with the last time step. Return the names of the outputs of all steps (T, N, units), in the order of
    computation, and of the final state. The first name is empty unless ``returns_rows``."""
    (count, batch, depth), width = builder.shape(data), len(input_gates.weight)
    products_first = should_precompute_input_products(count, width, depth)
    if products_first:
        flat = input_gates.emit_gate_products(builder, builder.reshape(data, (count * batch, depth)))
        data = builder.reshape(flat, (count, batch, width))
    body = GraphBuilder(builder.loc.file)
    body.at(builder.loc.index, builder.loc.name)
    step_index = body.input("turn", (), "int32")
    old = tuple(body.input(f"state_{k}", builder.shape(value)) for k, value in enumerate(initial_state))
    sequence = body.input("data", builder.shape(data))
    if backwards:
        step_index = body.emit("sub", (body.new_constant("last", np.array(count - 1, np.int32)), step_index))
    step_data = body.emit("gather", (sequence, step_index), {"axis": 0})
    new = emit_step(body, step_data if products_first else input_gates.emit_gate_products(body, step_data), old)
    results = {f"next_{k}": value for k, value in enumerate(new)} | ({"row": new[0]} if returns_rows else {})
    attrs: Mapping[str, Attr] = {"body": body.graph("step", results), "count": count, "carried": len(old)}
    results_of_loop = builder.emit_all("loop", (*initial_state, data), attrs)
    return results_of_loop[len(old)] if returns_rows else "", results_of_loop[: len(old)]


def slice_gate(builder: GraphBuilder, gate_sums: str, gate_index: int, unit_count: int) -> str:
    """Slice the sums of one gate (N, ``unit_count``) from ``gate_sums``; return the name of the slice.

    ``gate_sums``: name of the sums of all gates, concatenated along the last axis."""
    attrs = {
        "begin": (0, gate_index * unit_count),
        "end": (builder.shape(gate_sums)[0], (gate_index + 1) * unit_count),
        "strides": (1, 1),
    }
    return builder.emit("slice", (gate_sums,), attrs)
