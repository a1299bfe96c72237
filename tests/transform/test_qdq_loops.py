# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers in QDQ form: loops that carry integers, stack integers and are handed integers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.compiler.options import Options
from microc.compiler.pipeline import optimise_graph
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph
from microc.ops.meaning import evaluate
from microc.transform import NORMALISING
from microc.transform.pass_context import PassContext, run_passes
from tests.frontend.run import library
from tests.support.loops_over_time import GateWeights, State, emit_loop_over_time, slice_gate

RNG = np.random.default_rng(3)
STEPS, DEPTH, UNITS = 5, 6, 4
Q15 = (2.0**-15, 0, "int16")
HIDDEN, CELL, GATES = (1 / 127, 3, "int8"), (2.0**-12, 0, "int16"), (2.0**-11, 0, "int16")


def qdq(write: GraphBuilder, value: str, kind: tuple[float, int, str]) -> str:
    scale, zero, dtype = kind
    scaled: dict[str, Any] = {"scale": (scale,), "zero_point": (zero,), "axis": None}
    stored = write.emit("quantize", (value,), {**scaled, "out_dtype": dtype, "rounding": "even"})
    return write.emit("dequantize", (stored,), scaled)


def dense(write: GraphBuilder, value: str, gates: int) -> str:
    """int8 weights, a scale for each unit."""
    units, depth = gates * UNITS, write.shape(value)[-1]
    weight = write.new_constant("weight", RNG.integers(-127, 128, (units, depth)).astype(np.int8))
    scales = tuple(float(np.float32(s)) for s in RNG.uniform(0.004, 0.01, units))
    real = write.emit("dequantize", (weight,), {"scale": scales, "zero_point": (0,) * units, "axis": 0})
    bias = write.new_constant("bias", RNG.normal(0, 0.3, units).astype(np.float32))
    return qdq(write, write.emit("dense", (value, real, bias)), GATES)


def lstm_step(write: GraphBuilder, share: str, old: State) -> State:
    hidden, cell = (qdq(write, *each) for each in zip(old, (HIDDEN, CELL), strict=True))
    total = qdq(write, write.emit("add", (dense(write, share, 4), dense(write, hidden, 4))), GATES)
    parts = [slice_gate(write, total, k, UNITS) for k in range(4)]
    i, f, o = (qdq(write, write.emit("sigmoid", (part,)), Q15) for part in parts[:3])
    new = qdq(write, write.emit("tanh", (parts[3],)), Q15)
    kept, added = (qdq(write, write.emit("mul", pair), CELL) for pair in ((f, cell), (i, new)))
    cell = qdq(write, write.emit("add", (kept, added)), CELL)
    out = write.emit("mul", (o, qdq(write, write.emit("tanh", (cell,)), Q15)))
    return qdq(write, out, HIDDEN), cell


def gru_step(write: GraphBuilder, share: str, old: State) -> State:
    """The state has 16 bits."""
    (hidden,) = (qdq(write, value, Q15) for value in old)
    data, state = dense(write, share, 3), dense(write, hidden, 3)
    z, r = (
        qdq(write, write.emit("sigmoid", (qdq(write, write.emit("add", pair), GATES),)), Q15)
        for pair in ([slice_gate(write, value, k, UNITS) for value in (data, state)] for k in range(2))
    )
    inner = qdq(write, write.emit("mul", (r, slice_gate(write, state, 2, UNITS))), GATES)
    total = qdq(write, write.emit("add", (slice_gate(write, data, 2, UNITS), inner)), GATES)
    new = qdq(write, write.emit("tanh", (total,)), Q15)
    rest = qdq(write, write.emit("sub", (write.scalar(1.0), z)), Q15)
    parts = [qdq(write, write.emit("mul", pair), Q15) for pair in ((rest, new), (z, hidden))]
    return (qdq(write, write.emit("add", parts), Q15),)


def network(step: Any, states: int, computed_state: bool = False) -> Graph:
    """A recurrent layer of a sequence that is quantised: all its rows, and its last state."""
    write = GraphBuilder("net")
    write.at(0, "layer")
    data = qdq(write, write.input("x", (STEPS, 1, DEPTH)), (0.02, -5, "int8"))
    zeros = [write.new_constant("zeros", np.zeros((1, UNITS), np.float32)) for _ in range(states)]
    if computed_state:
        zeros[0] = write.input("h", (1, UNITS))
    rows, last = emit_loop_over_time(write, data, Plain(), zeros, step)
    made = qdq(write, rows, HIDDEN if states == 2 else Q15)
    return write.graph("net", {"y": made, "last": last[0]})


class Plain(GateWeights):
    """Data as they are: the step makes the products, which it quantises."""

    def __init__(self) -> None:
        super().__init__(np.zeros((DEPTH + 1, DEPTH), np.float32))

    def emit_gate_products(self, write: GraphBuilder, rows: str) -> str:
        return rows


def floats(graph: Graph) -> list[str]:
    """Operators that make floats, but for those at the network's ends."""
    return [node.op for node in graph.nodes for name in node.outputs if name and graph.types[name].dtype == "float32"]


@pytest.mark.parametrize("requantize", ["float", "fixed"])
@pytest.mark.parametrize("computed_state", [False, True])
@pytest.mark.parametrize(("step", "states"), [(lstm_step, 2), (gru_step, 1)])
def test_states_are_integers(step: Any, states: int, computed_state: bool, requantize: str) -> None:
    written = network(step, states, computed_state)
    graph = run_passes(written, NORMALISING, PassContext())
    (loop,) = [node for node in graph.nodes if node.op == "loop"]
    body = loop.attr("body")
    assert floats(body) == [] and set(floats(graph)) == {"dequantize"}
    assert all(body.types[name].dtype in ("int8", "int16", "int32") for name in body.inputs)
    options = Options(requantize=requantize)
    final, made = optimise_graph(replace(written, name="net"), options), library(written, options)
    for spread in (0.3, 2.0, 50.0):
        inputs: list[Array] = [
            RNG.normal(0, spread, written.types[name].shape).astype(np.float32) for name in written.inputs
        ]
        wanted, _ = evaluate(written, dict(zip(written.inputs, inputs, strict=True)))
        meant, _ = evaluate(final, dict(zip(written.inputs, inputs, strict=True)))
        given = made(*inputs)
        for got, exact, real in zip(given, meant, wanted, strict=True):
            np.testing.assert_array_equal(got, exact)
            # biases are rounded to the accumulator's unit; fixed point rounds at every operator
            quanta = 3 if requantize == "float" else 24
            np.testing.assert_allclose(got, real, rtol=0, atol=max(quanta * GATES[0], 1.5 * HIDDEN[0] * (states == 2)))
