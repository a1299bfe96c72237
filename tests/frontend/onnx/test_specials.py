# SPDX-License-Identifier: Apache-2.0
"""What becomes of NaN, infinities, zeros with a sign, denormal and huge numbers: the same as in onnxruntime, or argued here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from tests.frontend.onnx_model import evaluate, expected, node, onnx, proto, read
from tests.frontend.run import library

NAN, INF = np.nan, np.inf
NUMBERS = np.array(
    [0, -0.0, 1, -1, 0.5, -2.5, NAN, INF, -INF, 1e-41, -1e-41, 3e38, -3e38, 88, -89, 104, -104, 1e-8, 20, 6, 3, -3],
    np.float32,
)
FUNCTIONS = (
    *(
        "Abs",
        "Ceil",
        "Elu",
        "Erf",
        "Exp",
        "Floor",
        "HardSigmoid",
        "HardSwish",
        "LeakyRelu",
        "Log",
        "Mish",
        "Neg",
        "Relu",
    ),
    *("Reciprocal", "Round", "Sign", "Softplus", "Softsign", "Sqrt", "Tanh", "ThresholdedRelu"),
)
PAIRS = ("Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu", "Pow")


def outputs(nodes: list[Any], inputs: dict[str, Array], constants: dict[str, Array]) -> list[tuple[str, Array, Array]]:
    """The name, our result and onnxruntime's of every node's outputs; our reference computes what the C does."""
    names = [name for each in nodes for name in each.output]
    model = proto(nodes, {name: x.shape for name, x in inputs.items()}, constants, names, opset=18)
    del model.graph.output[:]
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    graph, arrays = read(model), list(inputs.values())
    with np.errstate(all="ignore"):
        made = library(graph)(*arrays)
        found = made if isinstance(made, tuple) else (made,)
        for got, meant in zip(found, evaluate(graph, arrays), strict=True):
            np.testing.assert_allclose(got, meant, rtol=2e-5, atol=1e-6)
    return list(zip(names, found, expected(model, arrays), strict=True))


def test_functions_of_special_numbers() -> None:
    nodes = [node(code, ["x"], [code]) for code in FUNCTIONS]
    nodes += [node("Pow", ["x", f"p{k}"], [f"Pow {k}"]) for k in range(4)]
    constants = {f"p{k}": np.asarray(power, np.float32) for k, power in enumerate((0.5, 2, 3, -1))}
    for name, got, wanted in outputs(nodes, {"x": NUMBERS}, constants):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-6, err_msg=name)
        zeros = (wanted == 0) & (got == 0)
        np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(wanted[zeros]), name)


def test_pairs_of_special_numbers() -> None:
    x, z = np.repeat(NUMBERS, len(NUMBERS)), np.tile(NUMBERS, len(NUMBERS))
    nodes = [node(code, ["x", "z"], [code]) for code in PAIRS] + [node("Mod", ["x", "z"], ["Mod"], fmod=1)]
    for name, got, wanted in outputs(nodes, {"x": x, "z": z}, {}):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-6, err_msg=name)


def rows(seed: int = 0) -> Array:
    """Rows with NaN and infinities at any place, one of NaN only, one of -inf only."""
    dice = np.random.default_rng(seed)
    x = dice.normal(0, 1, (40, 6)).astype(np.float32)
    for number in (NAN, INF, -INF):
        x[dice.random(x.shape) < 0.15] = number
    x[0], x[1] = NAN, -INF
    return x


def test_places_in_rows_with_nan() -> None:
    """TopK takes NaN for the largest; ArgMax and ArgMin pass over it, but where it comes first."""
    nodes = [node("TopK", ["x", "k"], [f"values {k}", f"places {k}"], largest=k, axis=-1) for k in (0, 1)]
    for code in ("ArgMax", "ArgMin"):
        nodes += [node(code, ["x"], [f"{code} {last}"], axis=-1, select_last_index=last) for last in (0, 1)]
    for name, got, wanted in outputs(nodes, {"x": rows()}, {"k": np.array([6])}):
        np.testing.assert_array_equal(got, wanted, name)


def test_nan_goes_through_the_largest_and_the_smallest() -> None:
    """Wherever it is; onnxruntime loses it where it is neither the first nor the last that a lane sees."""
    x = rows()
    image = x.reshape(1, 4, 10, 6)
    nodes = [node(code, ["x"], [code], axes=[-1], keepdims=0) for code in ("ReduceMax", "ReduceMin")]
    model = proto(nodes, {"x": x.shape}, {}, ("ReduceMax", "ReduceMin"), opset=13)
    for got, wanted in zip(library(read(model))(x), (x.max(1), x.min(1)), strict=True):
        np.testing.assert_array_equal(got, wanted)
    pool = node("MaxPool", ["x"], kernel_shape=[2, 2], strides=[2, 2])
    pooled = library(read(proto([pool], {"x": image.shape})))(image)
    np.testing.assert_array_equal(pooled, image.reshape(1, 4, 5, 2, 3, 2).max((3, 5)))


@pytest.mark.parametrize("code", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_nan_goes_through_recurrent_layers(code: str, direction: str) -> None:
    dice, gates, sides = np.random.default_rng(1), {"LSTM": 4, "GRU": 3, "RNN": 1}[code], 1 + (direction != "forward")
    constants = {
        "W": dice.normal(0, 0.5, (sides, gates * 4, 6)).astype(np.float32),
        "R": dice.normal(0, 0.5, (sides, gates * 4, 4)).astype(np.float32),
    }
    x = dice.normal(0, 1, (6, 3, 6)).astype(np.float32)
    x[3, 1, 2], x[2, 2, 0] = NAN, INF
    layer = node(code, ["x", "W", "R"], ["y"], hidden_size=4, direction=direction)
    ((_, got, wanted),) = outputs([layer], {"x": x}, constants)
    assert np.isnan(wanted).any()
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)


def test_powers_of_integers_that_do_not_fit() -> None:
    """They become the end of the range, but for squares, which wrap around as products do; onnxruntime's is undefined in C."""
    x, powers = (
        np.array([10, -10, -11, 3, 1 << 16], np.int32),
        {"p": np.array(11, np.int32), "q": np.array(2, np.int32)},
    )
    nodes = [node("Pow", ["x", "p"], ["y"]), node("Pow", ["x", "q"], ["z"])]
    graph = read(proto(nodes, {"x": x.shape}, powers, ("y", "z"), dtypes=dict.fromkeys("xyz", "int32")))
    high, low = (1 << 31) - 1, -(1 << 31)
    for made in (evaluate(graph, [x]), library(graph)(x)):
        np.testing.assert_array_equal(made[0], [high, low, low, 3**11, high])
        np.testing.assert_array_equal(made[1], [100, 100, 121, 9, 0])
