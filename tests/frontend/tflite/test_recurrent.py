# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers of TFLite against TFLite Micro, over several calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.errors import UnsupportedError
from microc.frontend.tflite import reader as tflite
from microc.frontend.tflite.file import TfliteFile
from tests.frontend.tflite_model import Op, Tensor, constant, quantised
from tests.ops.oracle import run, single

RNG = np.random.default_rng(5)
UNITS, DEPTH = 3, 4


def lstm(dtype: str, batch: int, steps: int, time_major: bool, clip: float) -> bytes:
    """A model of one layer; its weights are random."""
    shape = (steps, batch) if time_major else (batch, steps)
    real, bias = dtype == "float32", {"float32": np.float32, "int8": np.int32, "int16": np.int64}[dtype]

    def weights(name: str, depth: int) -> Tensor:
        if real:
            return constant(name, RNG.normal(size=(UNITS, depth)).astype(np.float32))
        values = RNG.integers(-127, 128, (UNITS, depth)).astype(np.int8)
        return constant(name, values, scale=(float(RNG.uniform(0.005, 0.02)),), zero_point=(0,))

    def activation(name: str, *extents: int, scale: float, variable: bool = False) -> Tensor:
        zero = 5 if dtype == "int8" else 0
        kind = () if real else (scale if dtype == "int8" else scale / 256,)
        return Tensor(name, extents, dtype.upper(), scale=kind, zero_point=(zero,) * len(kind), variable=variable)

    tensors = [activation("x", *shape, DEPTH, scale=0.03), activation("y", *shape, UNITS, scale=0.008)]
    tensors += [weights(f"w{k}", DEPTH) for k in range(1, 5)] + [weights(f"w{k}", UNITS) for k in range(5, 9)]
    for k in range(12, 16):
        values = RNG.normal(size=UNITS) if real else RNG.integers(-900, 900, UNITS)
        tensors.append(constant(f"b{k}", values.astype(bias)))
    tensors.append(activation("hidden", batch, UNITS, scale=0.008, variable=True))
    cell = (
        Tensor("cell", (batch, UNITS), variable=True) if real else quantised("cell", (batch, UNITS), 2**-11, 0, "INT16")
    )
    tensors.append(Tensor(**{**{f: getattr(cell, f) for f in cell.__dataclass_fields__}, "variable": True}))
    names = {0: "x", 18: "hidden", 19: "cell"} | {k: f"w{k}" for k in range(1, 9)} | {k: f"b{k}" for k in range(12, 16)}
    inputs = tuple(names.get(k, "") for k in range(24))
    fields = {"FusedActivationFunction": 4, "CellClip": clip, "TimeMajor": time_major}
    return single(
        Op("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, ("y",), "UnidirectionalSequenceLSTMOptions", fields), tensors
    )


def data(dtype: str, shape: tuple[int, ...]) -> Array:
    if dtype == "float32":
        return RNG.normal(size=shape).astype(np.float32)
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("dtype", ["float32", "int8", "int16"])
@pytest.mark.parametrize(
    ("batch", "steps", "time_major", "clip"),
    [(1, 5, False, 0.0), (2, 3, False, 1.5), (2, 3, True, 0.7), (1, 1, True, 0.0)],
)
def test_lstm_over_several_calls(dtype: str, batch: int, steps: int, time_major: bool, clip: float) -> None:
    """The state lives on from call to call; integers are the same bit for bit."""
    runtime = pytest.importorskip("tflite_micro").runtime
    model = lstm(dtype, batch, steps, time_major, clip)
    interpreter = runtime.Interpreter.from_bytes(model, arena_size=1 << 20)
    graph, state = tflite.read_tflite(model, "lstm.tflite"), dict[str, Array]()
    for _ in range(3):
        x = data(dtype, graph.types[graph.inputs[0]].shape)
        interpreter.set_input(x, 0)
        interpreter.invoke()
        (ours,) = run(graph, (x,), state)
        wanted = np.asarray(interpreter.get_output(0))
        if dtype == "float32":
            np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(ours, wanted)


def rnn(sequence: bool, time_major: bool, hybrid: bool, activation: int) -> bytes:
    """A model of plain cells."""
    batch, steps = (2, 3) if sequence else (2, 1)
    lead = ((steps, batch) if time_major else (batch, steps)) if sequence else (batch,)
    matrices = []
    for name, depth in (("w", DEPTH), ("r", UNITS)):
        if hybrid:
            values = RNG.integers(-127, 128, (UNITS, depth)).astype(np.int8)
            matrices.append(constant(name, values, scale=(0.006,), zero_point=(0,)))
        else:
            matrices.append(constant(name, RNG.normal(size=(UNITS, depth)).astype(np.float32)))
    tensors = (
        Tensor("x", (*lead, DEPTH)),
        *matrices,
        constant("b", RNG.normal(size=UNITS).astype(np.float32)),
        Tensor("h", (batch, UNITS), variable=True),
        Tensor("y", (*lead, UNITS)),
    )
    fields = {"FusedActivationFunction": activation, **({"TimeMajor": time_major} if sequence else {})}
    code, options = ("UNIDIRECTIONAL_SEQUENCE_RNN", "SequenceRNNOptions") if sequence else ("RNN", "RNNOptions")
    return single(Op(code, ("x", "w", "r", "b", "h"), ("y",), options, fields), tensors)


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize(("sequence", "time_major"), [(False, False), (True, False), (True, True)])
def test_plain_cells_over_several_calls(sequence: bool, time_major: bool, hybrid: bool) -> None:
    for activation, bend in ((4, np.tanh), (1, lambda x: np.maximum(x, 0)), (0, lambda x: x)):
        data_ = rnn(sequence, time_major, hybrid, activation)
        graph, state = tflite.read_tflite(data_, "rnn.tflite"), dict[str, Array]()
        consts = [TfliteFile(data_, "rnn.tflite").array(TfliteFile(data_, "rnn.tflite").tensor(k)) for k in (1, 2, 3)]
        scale = np.float64(np.float32(0.006)) if hybrid else 1.0
        w, r, b = consts[0] * scale, consts[1] * scale, consts[2]
        hidden = np.zeros((2, UNITS))
        for _ in range(2):
            x = RNG.normal(size=graph.types["x"].shape).astype(np.float32)
            steps = x[None] if not sequence else x if time_major else x.swapaxes(0, 1)
            rows = []
            for step in steps:
                hidden = bend(step @ w.T + hidden @ r.T + b)
                rows.append(hidden)
            wanted = rows[0] if not sequence else np.stack(rows, 0 if time_major else 1)
            (found,) = run(graph, (x,), state)
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


class Cell:
    """A float LSTM cell in numpy, by the equations, and its operands as tensors of a file. ``first``: its first operand."""

    def __init__(self, first: int, *, coupled: bool, peepholes: bool, projected: int, hybrid: bool) -> None:
        self.first, self.outputs = first, projected or UNITS
        self.arrays: dict[int, Array] = {}
        self.tensors: list[Tensor] = []
        gates = (1, 2, 3) if coupled else (0, 1, 2, 3)
        for gate in gates:
            self.weights(gate, UNITS, DEPTH, hybrid)
            self.weights(4 + gate, UNITS, self.outputs, hybrid)
            self.vector(11 + gate, UNITS)
        for k in (1, 2) if coupled else (0, 1, 2):
            if peepholes:
                self.vector(8 + k, UNITS)
        if projected:
            self.weights(15, projected, UNITS, hybrid)
            self.vector(16, projected)

    def weights(self, offset: int, rows: int, depth: int, hybrid: bool) -> None:
        name = f"p{self.first + offset}"
        if hybrid:
            values = RNG.integers(-127, 128, (rows, depth)).astype(np.int8)
            scale = float(np.float32(RNG.uniform(0.005, 0.02)))
            self.arrays[offset] = values * np.float64(np.float32(scale))
            self.tensors.append(constant(name, values, scale=(scale,), zero_point=(0,)))
        else:
            self.arrays[offset] = RNG.normal(size=(rows, depth)).astype(np.float32)
            self.tensors.append(constant(name, self.arrays[offset]))

    def vector(self, offset: int, size: int) -> None:
        self.arrays[offset] = RNG.normal(size=size).astype(np.float32)
        self.tensors.append(constant(f"p{self.first + offset}", self.arrays[offset]))

    def step(self, x: Array, h: Array, c: Array, clips: tuple[float, float]) -> tuple[Array, Array]:
        p = self.arrays

        def total(gate: int) -> Array:
            return np.asarray(x @ p[gate].T + h @ p[4 + gate].T + p[11 + gate])

        seen = [p.get(8 + k, np.zeros(UNITS)) for k in range(3)]
        forget = sigmoid(total(1) + seen[1] * c)
        keep = sigmoid(total(0) + seen[0] * c) if 0 in p else 1 - forget
        c = forget * c + keep * np.tanh(total(2))
        c = np.clip(c, -clips[0], clips[0]) if clips[0] else c
        h = sigmoid(total(3) + seen[2] * c) * np.tanh(c)
        if 15 in p:
            h = h @ p[15].T + p[16]
            h = np.clip(h, -clips[1], clips[1]) if clips[1] else h
        return h, c

    def run(self, steps: list[Array], state: list[Array], clips: tuple[float, float]) -> list[Array]:
        """The rows of all steps; the state goes on."""
        rows = []
        for x in steps:
            state[:] = self.step(x, state[0], state[1], clips)
            rows.append(state[0])
        return rows


VARIANTS = (
    {"coupled": False, "peepholes": True, "projected": 0, "hybrid": False},
    {"coupled": True, "peepholes": True, "projected": 2, "hybrid": False},
    {"coupled": False, "peepholes": False, "projected": 5, "hybrid": True},
    {"coupled": True, "peepholes": False, "projected": 0, "hybrid": False},
)


@pytest.mark.parametrize("clips", [(0.0, 0.0), (0.6, 0.4)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_cells(variant: dict[str, Any], clips: tuple[float, float]) -> None:
    batch, steps = 2, 3
    cell = Cell(1, **variant)
    held = (Tensor("h", (batch, cell.outputs), variable=True), Tensor("c", (batch, UNITS), variable=True))
    tensors = (Tensor("x", (batch, steps, DEPTH)), Tensor("y", (batch, steps, cell.outputs)), *held, *cell.tensors)
    names = {0: "x", 18: "h", 19: "c"} | {1 + k: f"p{1 + k}" for k in cell.arrays}
    fields = {"FusedActivationFunction": 4, "CellClip": clips[0], "ProjClip": clips[1]}
    inputs = tuple(names.get(k, "") for k in range(20))
    op = Op("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, ("y",), "UnidirectionalSequenceLSTMOptions", fields)
    graph, memory = tflite.read_tflite(single(op, tensors), "lstm.tflite"), dict[str, Array]()
    state = [np.zeros((batch, cell.outputs)), np.zeros((batch, UNITS))]
    for _ in range(2):
        x = RNG.normal(size=(batch, steps, DEPTH)).astype(np.float32)
        wanted = np.stack(cell.run(list(x.swapaxes(0, 1)), state, clips), 1)
        (found,) = run(graph, (x,), memory)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("time_major", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_both_directions(variant: dict[str, Any], time_major: bool, merged: bool) -> None:
    """Both states live on; the second direction's rows stand in the order of time."""
    batch, steps = 2, 3
    cells = [Cell(first, **variant) for first in (1, 18)]
    lead, width = (steps, batch) if time_major else (batch, steps), cells[0].outputs
    outputs = ("y",) if merged else ("y", "z")
    tensors = [Tensor("x", (*lead, DEPTH)), *(Tensor(n, (*lead, width * 2 if merged else width)) for n in outputs)]
    names = {0: "x"}
    for k, cell in enumerate(cells):
        tensors += [Tensor(f"h{k}", (batch, width), variable=True), Tensor(f"c{k}", (batch, UNITS), variable=True)]
        tensors += cell.tensors
        names |= {35 + 2 * k: f"h{k}", 36 + 2 * k: f"c{k}"} | {
            cell.first + n: f"p{cell.first + n}" for n in cell.arrays
        }
    fields = {"FusedActivationFunction": 4, "TimeMajor": time_major, "MergeOutputs": merged}
    inputs = tuple(names.get(k, "") for k in range(48))
    op = Op("BIDIRECTIONAL_SEQUENCE_LSTM", inputs, outputs, "BidirectionalSequenceLSTMOptions", fields)
    graph, memory = tflite.read_tflite(single(op, tensors), "lstm.tflite"), dict[str, Array]()
    states = [[np.zeros((batch, width)), np.zeros((batch, UNITS))] for _ in cells]
    for _ in range(2):
        x = RNG.normal(size=(*lead, DEPTH)).astype(np.float32)
        rows = list(x if time_major else x.swapaxes(0, 1))
        there = cells[0].run(rows, states[0], (0.0, 0.0))
        back = cells[1].run(rows[::-1], states[1], (0.0, 0.0))[::-1]
        both = [np.stack(side, 0 if time_major else 1) for side in (there, back)]
        found = run(graph, (x,), memory)
        for ours, wanted in zip(found, [np.concatenate(both, 2)] if merged else both, strict=True):
            np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("merged", [True, False])
def test_plain_cells_both_ways(merged: bool) -> None:
    batch, steps = 2, 4
    sides = [[RNG.normal(size=s).astype(np.float32) for s in ((UNITS, DEPTH), (UNITS, UNITS), (UNITS,))] for _ in "fb"]
    outputs = ("y",) if merged else ("y", "z")
    width = UNITS * (2 if merged else 1)
    tensors = [Tensor("x", (batch, steps, DEPTH)), *(Tensor(n, (batch, steps, width)) for n in outputs)]
    inputs = ["x"]
    for k, arrays in enumerate(sides):
        tensors += [constant(f"p{k}{n}", array) for n, array in enumerate(arrays)]
        tensors.append(Tensor(f"h{k}", (batch, UNITS), variable=True))
        inputs += [f"p{k}0", f"p{k}1", f"p{k}2", f"h{k}"]
    fields = {"FusedActivationFunction": 4, "MergeOutputs": merged}
    op = Op("BIDIRECTIONAL_SEQUENCE_RNN", (*inputs, "", "", ""), outputs, "BidirectionalSequenceRNNOptions", fields)
    graph, memory = tflite.read_tflite(single(op, tensors), "rnn.tflite"), dict[str, Array]()
    hidden = [np.zeros((batch, UNITS)), np.zeros((batch, UNITS))]
    for _ in range(2):
        x = RNG.normal(size=(batch, steps, DEPTH)).astype(np.float32)
        rows: list[list[Array]] = [[], []]
        for k, order in enumerate((range(steps), range(steps - 1, -1, -1))):
            for t in order:
                w, r, b = sides[k]
                hidden[k] = np.tanh(x[:, t] @ w.T + hidden[k] @ r.T + b)
                rows[k].append(hidden[k])
        both = [np.stack(rows[0], 1), np.stack(rows[1][::-1], 1)]
        for ours, wanted in zip(run(graph, (x,), memory), [np.concatenate(both, 2)] if merged else both, strict=True):
            np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-5)


def test_normalised_cells_are_refused() -> None:
    cell = Cell(1, coupled=False, peepholes=False, projected=0, hybrid=False)
    held = (Tensor("h", (1, UNITS), variable=True), Tensor("c", (1, UNITS), variable=True))
    names = {0: "x", 18: "h", 19: "c", 20: "n"} | {1 + k: f"p{1 + k}" for k in cell.arrays}
    tensors = (Tensor("x", (1, 2, DEPTH)), Tensor("y", (1, 2, UNITS)), *held, *cell.tensors)
    normal = constant("n", np.ones(UNITS, np.float32))
    inputs = tuple(names.get(k, "") for k in range(24))
    fields = {"FusedActivationFunction": 4}
    op = Op("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, ("y",), "UnidirectionalSequenceLSTMOptions", fields)
    with pytest.raises(UnsupportedError, match="layer normalisation"):
        tflite.read_tflite(single(op, (*tensors, normal)), "lstm.tflite")
