"""Recurrent layers of TFLite against TFLite Micro, over several calls."""

from __future__ import annotations

import numpy as np
import pytest

from microc.dtypes import Array
from microc.frontend import tflite
from microc.frontend.tflite_file import TfliteFile
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
    graph, state = tflite.read(model, "lstm.tflite"), dict[str, Array]()
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
        graph, state = tflite.read(data_, "rnn.tflite"), dict[str, Array]()
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
