# SPDX-License-Identifier: Apache-2.0
"""Every contradiction in a TFLite file is a ModelError that says where."""

from __future__ import annotations

import re
import struct
from dataclasses import replace

import numpy as np
import pytest

from microc.errors import ModelError, UnsupportedError
from microc.frontend.tflite import reader as tflite
from microc.frontend.tflite.file import TfliteFile
from tests.frontend.mutate import survey
from tests.frontend.tflite.test_reader import small_cnn, variable_model
from tests.frontend.tflite_model import Op, Tensor, constant, model, quantised

CONV = {"Padding": 0, "StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1}
CHANNELS = {"scale": (0.1, 0.2), "zero_point": (0, 0)}
X, Y = quantised("x", (1, 4, 4, 3), 0.1, 0), quantised("y", (1, 4, 4, 2), 0.1, 0)
W = constant("w", np.ones((2, 1, 1, 3), np.int8), **CHANNELS)
B = constant("b", np.ones(2, np.int32), **CHANNELS)


def conv(x: Tensor = X, w: Tensor = W, b: Tensor = B, y: Tensor = Y, **fields: int) -> bytes:
    op = Op("CONV_2D", ("x", "w", "b"), ("y",), "Conv2DOptions", CONV | fields)
    return model([x, w, b, y], [op], ["x"], ["y"])


def one(code: str, inputs: tuple[str, ...], *tensors: Tensor, options: str = "", **fields: object) -> bytes:
    return model(tensors, [Op(code, inputs, ("y",), options, fields)], ["x"], ["y"])


def refused(data: bytes) -> ModelError:
    with pytest.raises(ModelError) as caught:
        tflite.read_tflite(data, "broken.tflite")
    assert "broken.tflite" in caught.value.where
    return caught.value


FLOAT_X, FLOAT_Y = Tensor("x", (1, 4)), Tensor("y", (1, 4))

BROKEN = {
    "not a TFLite model": b"\0" * 64,
    "at byte 4, expected b'TFL3'": b"",
    "corrupt or truncated": struct.pack("<I4s", 0xFFFFFFF0, b"TFL3"),
    "schema version: got 2, expected 3": model([FLOAT_X], [], ["x"], ["x"], version=2),
    "no outputs": model([FLOAT_X], [], ["x"], []),
    "got 5 bytes of data, expected 6": conv(w=replace(W, data=b"12345")),
    "takes .* bytes": model([replace(FLOAT_X, shape=(1 << 30, 4))], [], ["x"], ["x"]),
    "got .1, -4., expected extents of at least 0": model([replace(FLOAT_X, shape=(1, -4))], [], ["x"], ["x"]),
    "expected extents of at least 1": model([replace(FLOAT_X, shape=(1, 0))], [], ["x"], ["x"]),
    "at most 8": model([replace(FLOAT_X, shape=(1,) * 9)], [], ["x"], ["x"]),
    "shape_signature: got": model([replace(FLOAT_X, signature=(-1, 4, 4))], [], ["x"], ["x"]),
    "broken.tflite tensor 0 x": model([replace(FLOAT_X, buffer=77)], [], ["x"], ["x"]),
    "2 scales but 1 zero points": conv(w=replace(W, zero_point=(0,))),
    "3 scales along axis 0": conv(w=replace(W, scale=(1.0,) * 3, zero_point=(0,) * 3)),
    "quantized_dimension: got 7, expected 0..3": conv(w=replace(W, axis=7)),
    "quantisation axis is 3, expected 0|scales along axis 3": conv(w=replace(W, axis=3)),
    "scales nan.* expected positive": conv(w=replace(W, scale=(0.1, float("nan")))),
    "scales -1.0.* expected positive": conv(x=replace(X, scale=(-1.0,))),
    "scales 0.0.* expected positive": conv(x=replace(X, scale=(0.0,))),
    "zero points 400..400, expected -128..127": conv(x=replace(X, zero_point=(400,))),
    "declares": conv(y=replace(Y, shape=(1, 4, 5, 2))),
    "filter: got 2 x 1 channels for 5": conv(
        w=replace(W, shape=(2, 1, 3, 1), data=np.ones((2, 1, 3, 1), np.int8)), x=replace(X, shape=(1, 4, 4, 5))
    ),
    "bias: got shape": conv(b=constant("b", np.ones(3, np.int32))),
    "stride_h is 0": conv(StrideH=0),
    "dilation_w_factor is -2": conv(DilationWFactor=-2),
    "padding is 9": conv(Padding=9),
    "expected four axes": conv(x=replace(X, shape=(4, 4, 3))),
    "weights: dtype int32": conv(w=replace(W, dtype="INT32", data=np.ones((2, 1, 1, 3), np.int32))),
    "fused_activation_function: got number 5": conv(FusedActivationFunction=5),
    "got none or another table, expected Conv2DOptions": one("CONV_2D", ("x", "w", "b"), X, W, B, Y),
    "options: got none or another table, expected Conv2D": one(
        "CONV_2D", ("x", "w", "b"), X, W, B, Y, options="Pool2DOptions"
    ),
    "input 1 is missing": one("CONV_2D", ("x",), X, Y, options="Conv2DOptions", **CONV),
    "before any operator writes it": one("ADD", ("x", "late"), FLOAT_X, Tensor("late", (1, 4)), FLOAT_Y),
    "'y' is read before": one("ADD", ("x", "y"), FLOAT_X, FLOAT_Y),
    "y' is defined twice": model([FLOAT_X, FLOAT_Y], [Op("RELU", ("x",), ("y",))] * 2, ["x"], ["y"]),
    "'x' is defined twice": model([FLOAT_X, FLOAT_Y], [Op("RELU", ("x",), ("x",))], ["x"], ["x"]),
    "axis 9": one("CONCATENATION", ("x",), FLOAT_X, FLOAT_Y, options="ConcatenationOptions", Axis=9),
    "perm: got .0, 0., expected each of 0..1": one(
        "TRANSPOSE", ("x", "p"), FLOAT_X, constant("p", np.array([0, 0], np.int32)), FLOAT_Y
    ),
    "got a computed tensor, expected a constant": model(
        [FLOAT_X, Tensor("p", (2,), "INT32"), FLOAT_Y], [Op("TRANSPOSE", ("x", "p"), ("y",))], ["x", "p"], ["y"]
    ),
    "got 2 elements of float32, expected at most": one(
        "TRANSPOSE", ("x", "p"), FLOAT_X, constant("p", np.zeros(2, np.float32)), FLOAT_Y
    ),
    "reshape: got": one("RESHAPE", ("x", "s"), FLOAT_X, constant("s", np.array([3], np.int32)), FLOAT_Y),
    "shape: got \\(-1, -1\\)": one(
        "RESHAPE", ("x", "s"), FLOAT_X, constant("s", np.array([-1, -1], np.int32)), FLOAT_Y
    ),
    "float16": model([Tensor("x", (1,), "FLOAT16")], [], ["x"], ["x"]),
    "string": model([Tensor("x", (1,), "STRING")], [], ["x"], ["x"]),
    "has no quantisation": one("RELU", ("x",), Tensor("x", (1,), "INT8"), Tensor("y", (1,), "INT8")),
    "output 'y' has dtype int8, expected float32": model(
        [
            FLOAT_X,
            constant("sizes", np.array([2, 2], np.int32)),
            constant("axis", np.array([1], np.int32)),
            Tensor("first", (1, 2)),
            quantised("y", (1, 2), 0.1, 0),
        ],
        [Op("SPLIT_V", ("x", "sizes", "axis"), ("first", "y"), "SplitVOptions", {"NumSplits": 2})],
        ["x"],
        ["first", "y"],
    ),
    "input 0: its dtype differs from the output's; got int8, expected int16": one(
        "RESHAPE",
        ("x", "s"),
        quantised("x", (1, 4), 0.1, 0),
        constant("s", np.array([2, 2], np.int32)),
        replace(quantised("y", (2, 2), 0.1, 0), dtype="INT16"),
    ),
    "got 6 bytes, expected 4 for an output float32": one(
        "BITCAST", ("c",), FLOAT_X, constant("c", np.zeros(3, np.int16)), Tensor("y", (1,))
    ),
    "alpha is nan": one("LEAKY_RELU", ("x",), FLOAT_X, FLOAT_Y, options="LeakyReluOptions", Alpha=float("nan")),
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_contradiction_is_named(message: str) -> None:
    assert re.search(message, str(refused(BROKEN[message])))


def test_operators_may_not_name_tensors_that_do_not_exist() -> None:
    data = small_cnn()
    good, bad = struct.pack("<3i", 0, 1, 2), struct.pack("<3i", 0, 1, 99)
    assert data.count(good) == 1
    assert "tensor index 99" in str(refused(data.replace(good, bad)))


def test_tables_that_share_bytes_run_out_of_budget() -> None:
    """20,000 operators that are one table: cheap to write, dear to read."""
    tensors = [FLOAT_X, FLOAT_Y]
    data = bytearray(model(tensors, [Op("RELU", ("x",), ("y",))], ["x"], ["y"]))
    graph = TfliteFile(bytes(data), "m")._graph
    vector = graph._tab.Vector(graph._tab.Offset(10)) - 4
    target = graph.Operators(0)._tab.Pos
    start = len(data) + -len(data) % 4
    count = 20_000
    data += bytes(start - len(data)) + struct.pack("<I", count)
    data += b"".join(struct.pack("<I", (target - start - 4 - 4 * i) & 0xFFFFFFFF) for i in range(count))
    field = graph._tab.Pos + graph._tab.Offset(10)
    assert struct.unpack_from("<I", data, field)[0] == vector - field
    struct.pack_into("<I", data, field, start - field)
    refused(bytes(data))


def test_an_initial_value_of_another_shape_is_refused() -> None:
    assert "its initial content is float32 (1, 3), expected float32 (1, 2)" in str(
        refused(variable_model(np.zeros((1, 3), np.float32)))
    )


@pytest.mark.parametrize("seed", range(3))
def test_mutations_are_graphs_or_refusals(seed: int) -> None:
    data = (small_cnn(), small_cnn(None), variable_model(np.zeros((1, 2), np.float32)))[seed]
    outcomes = survey(lambda mutant: tflite.read_tflite(mutant, "mutant.tflite"), data, 250, seed)
    assert outcomes["ModelError"] > 50, outcomes


def test_the_unsupported_are_told_from_the_broken() -> None:
    assert isinstance(refused(conv(FusedActivationFunction=5)), UnsupportedError)
    assert not isinstance(refused(conv(StrideH=0)), UnsupportedError)
