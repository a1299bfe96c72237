# SPDX-License-Identifier: Apache-2.0
"""RNN, GRU and LSTM of ONNX in all their variants, compiled to C: the same as onnxruntime."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import microc
from microc.base.dtypes import Array
from microc.compiler.options import Options
from microc.compiler.pipeline import optimise_graph
from microc.errors import ModelError
from microc.graph.ir import Graph
from microc.graph.text import nested_graphs
from microc.transform.canonicalise import EXPAND_PASS
from microc.transform.pass_context import PassContext
from tests.compiler.control.test_function import compiled
from tests.frontend.onnx_model import evaluate, expected, node, proto, read

STEPS, BATCH, DEPTH, UNITS = 6, 2, 5, 3
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def model(code: str, operands: str = "", depth: int = DEPTH, **attrs: Any) -> Any:
    """A layer with random weights; ``operands``: which of the optional ones it has, b(ias), l(engths), h, c, p(eepholes)."""
    rng = np.random.default_rng(7)
    sides, gates = 2 if attrs.get("direction") == "bidirectional" else 1, GATES[code]

    def numbers(*shape: int) -> Array:
        return rng.uniform(-0.7, 0.7, shape).astype(np.float32)

    constants = {"W": numbers(sides, gates * UNITS, depth), "R": numbers(sides, gates * UNITS, UNITS)}
    optional = {
        "b": ("B", numbers(sides, 2 * gates * UNITS)),
        "l": ("lengths", np.array([4, 6], np.int32)),
        "h": ("h", numbers(sides, BATCH, UNITS)),
        "c": ("c", numbers(sides, BATCH, UNITS)),
        "p": ("P", numbers(sides, 3 * UNITS)),
    }
    names = ["x", "W", "R"]
    for letter in "blhcp"[: 5 if code == "LSTM" else 3]:
        name, array = optional[letter]
        names.append(name if letter in operands else "")
        if letter in operands:
            constants[name] = array
    outputs = ("y", "last", "cell")[: 3 if code == "LSTM" else 2]
    layer = node(code, names, outputs, hidden_size=UNITS, **attrs)
    return proto([layer], {"x": (STEPS, BATCH, depth)}, constants, outputs, opset=14)


def data(depth: int = DEPTH) -> Array:
    return np.random.default_rng(8).standard_normal((STEPS, BATCH, depth)).astype(np.float32)


def check(made: Any, depth: int = DEPTH) -> Graph:
    """Within 1e-5: both sum in floats, in orders of their own."""
    graph, x = read(made), data(depth)
    for got, want in zip(compiled(graph)(x), expected(made, [x]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    return graph


@pytest.mark.parametrize("code", GATES)
@pytest.mark.parametrize(
    ("operands", "attrs"),
    [
        ("", {}),
        ("b", {"clip": 0.4}),
        ("bl", {"direction": "reverse"}),
        ("blhc", {"direction": "bidirectional"}),
        ("bhc", {"direction": "bidirectional", "clip": 0.3}),
    ],
)
def test_operands_and_directions(code: str, operands: str, attrs: Mapping[str, Any]) -> None:
    check(model(code, operands, **attrs))


def test_variants_of_cells() -> None:
    check(model("GRU", "bh", linear_before_reset=1))
    check(model("LSTM", "bhcp"))
    check(model("LSTM", "bhcpl", direction="bidirectional"))
    check(model("LSTM", "bhc", input_forget=1))
    check(model("LSTM", "bp", input_forget=1, clip=0.5))


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        ("Affine", (0.7, 0.1)),
        ("Elu", (0.6,)),
        ("HardSigmoid", (0.3, 0.4)),
        ("HardSigmoid", ()),
        ("LeakyRelu", (0.2,)),
        ("LeakyRelu", ()),
        ("Relu", ()),
        ("ScaledTanh", (0.8, 0.9)),
        ("Sigmoid", ()),
        ("Softplus", ()),
        ("Softsign", ()),
        ("Tanh", ()),
        ("ThresholdedRelu", (0.1,)),
    ],
)
def test_functions(function: str, parameters: tuple[float, ...]) -> None:
    check(model("RNN", "b", activations=[function], **named(parameters)))


def named(alphas: tuple[float, ...], betas: tuple[float, ...] = ()) -> dict[str, Any]:
    """Parameters of one function: alpha, and beta where there are two."""
    if not betas and len(alphas) == 2:
        alphas, betas = alphas[:1], alphas[1:]
    return {**({"activation_alpha": alphas} if alphas else {}), **({"activation_beta": betas} if betas else {})}


def test_functions_of_both_directions() -> None:
    """Each takes the next parameters that it has a use for."""
    names = ["HardSigmoid", "Tanh", "LeakyRelu", "Sigmoid", "ScaledTanh", "Elu"]
    attrs = named((0.3, 0.2, 0.9, 0.5), (0.4, 0.8))
    check(model("LSTM", "bhc", direction="bidirectional", activations=names, **attrs))


def test_wrong_functions_are_refused() -> None:
    for names in (["Sin"], ["Tanh", "Tanh"]):
        with pytest.raises(ModelError, match="activations"):
            read(model("RNN", activations=names))


@pytest.mark.parametrize("code", GATES)
def test_batch_first(code: str) -> None:
    """layout=1, which onnxruntime does not know: the same as the other, turned."""
    graph = read(model(code, "b", direction="bidirectional"))
    operands = {**graph.consts}
    turned = model(code, "b", direction="bidirectional", layout=1)
    turned.graph.input[0].CopyFrom(proto([], {"x": (BATCH, STEPS, DEPTH)}, {}, ()).graph.input[0])
    rows, last, *_ = compiled(graph)(data())
    rows_turned, last_turned, *_ = compiled(read(turned))(np.ascontiguousarray(data().transpose(1, 0, 2)))
    assert operands
    np.testing.assert_allclose(rows_turned, rows.transpose(2, 0, 1, 3), rtol=1e-6)
    np.testing.assert_allclose(last_turned, last.transpose(1, 0, 2), rtol=1e-6)


def test_the_arena_does_not_hold_the_products_of_all_steps() -> None:
    """Sums of all steps come before the loop only where they are no larger than the data."""
    arenas = [arena(read(model("LSTM", "b", depth=depth))) for depth in (2, 4 * UNITS)]
    products = STEPS * BATCH * 4 * UNITS * 4
    outputs = (STEPS + 2) * BATCH * UNITS * 4
    assert arenas[0] < products + outputs
    assert arenas[1] < products * 2 + outputs + 400
    check(model("LSTM", "b", depth=4 * UNITS), depth=4 * UNITS)


def arena(graph: Graph) -> int:
    program = microc.compile(graph, board="mps2-an386")
    assert isinstance(program, microc.Program)
    return int(program.report()["arena"])


def quantise_weights(made: Any, per_row: bool, depth: int = DEPTH) -> Any:
    """Replace W, R and B by DequantizeLinear of int8, with one scale each, or one for each row of W and R."""
    arrays = {each.name: numpy_helper.to_array(each) for each in made.graph.initializer}
    nodes = []
    for name in ("W", "R", "B"):
        real, axis = arrays.pop(name), 1 if per_row and name != "B" else None
        scale = np.abs(real).max(axis=None if axis is None else (0, 2)).astype(np.float32) / np.float32(127)
        levels = np.rint(real / (scale if axis is None else scale[:, None])).astype(np.int8)
        arrays |= {f"{name}_q": levels, f"{name}_s": scale}
        attrs: dict[str, Any] = {"axis": axis} if axis else {}
        nodes.append(node("DequantizeLinear", [f"{name}_q", f"{name}_s"], [name], **attrs))
    outputs = [each.name for each in made.graph.output]
    return proto([*nodes, *made.graph.node], {"x": (STEPS, BATCH, depth)}, arrays, outputs, opset=14)


@pytest.mark.parametrize(
    ("code", "operands", "attrs"),
    [
        ("LSTM", "b", {"direction": "bidirectional"}),
        ("LSTM", "bp", {"input_forget": 1}),
        ("GRU", "b", {}),
        ("GRU", "b", {"linear_before_reset": 1}),
        ("RNN", "b", {}),
    ],
)
@pytest.mark.parametrize("per_row", [False, True])
def test_dequantised_weights_stay_integers_in_flash(
    code: str, operands: str, attrs: Mapping[str, Any], per_row: bool
) -> None:
    """The file's formula in floats, and a byte for each weight: constants of the loop are int8 with their scales."""
    made = quantise_weights(model(code, operands, **attrs), per_row)
    expanded = EXPAND_PASS.function(read(made), PassContext())
    for got, want in zip(evaluate(expanded, [data()]), expected(made, [data()]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    for body in nested_graphs(expanded):
        matrices = [node.inputs[1] for node in body.nodes if node.op == "dense"]
        makers = body.producer()
        assert matrices
        assert all(body.consts[makers[name].inputs[0]].dtype == np.int8 for name in matrices)


@pytest.mark.parametrize("depth", [DEPTH, 4 * UNITS])
def test_dequantised_weights_are_bytes_in_generated_code(depth: int, tmp_path: Path) -> None:
    """Also if the products of all steps are computed before the loop."""
    program = microc.compile(read(quantise_weights(model("LSTM", "b", depth), True, depth)), board="mps2-an386")
    program.write(tmp_path)
    generated = "".join(file.read_text() for file in tmp_path.rglob("*.c"))
    arrays = re.findall(r"const (\w+) \w+\[(\d+)\]", generated)
    assert {("int8_t", str(4 * UNITS * width)) for width in (depth, UNITS)} <= set(arrays)
    assert max(int(size) for dtype, size in arrays if dtype == "float") == 4 * UNITS


@pytest.mark.parametrize(
    ("zero", "per_row", "sides", "depth"),
    [(0, True, 2, DEPTH), (128, False, 1, DEPTH), (120, True, 1, DEPTH), (0, False, 1, 4 * UNITS)],
)
@pytest.mark.parametrize("hybrid", ["float", "dynamic"])
def test_dynamically_quantised_lstm(zero: int, per_row: bool, sides: int, depth: int, hybrid: str) -> None:
    """Within 0.01 of onnxruntime, which quantises all steps of the data by one scale, of 1 / 255 of their range. int8
    weights have 7 bits, since its products of uint8 and int8 saturate on computers without VNNI."""
    rng = np.random.default_rng(6)
    shape, low, high = ((sides, 4 * UNITS) if per_row else (sides,)), *((0, 256) if zero else (-64, 64))
    dtype = np.uint8 if zero else np.int8
    arrays: dict[str, Array] = {
        "w": rng.integers(low, high, (sides, depth, 4 * UNITS)).astype(dtype),
        "r": rng.integers(low, high, (sides, UNITS, 4 * UNITS)).astype(dtype),
        **{name: rng.uniform(0.002, 0.004, shape).astype(np.float32) for name in ("ws", "rs")},
        **{name: np.full(shape, zero, dtype) for name in ("wz", "rz")},
        "b": rng.normal(scale=0.2, size=(sides, 8 * UNITS)).astype(np.float32),
    }
    names = ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"]
    direction = "bidirectional" if sides == 2 else "forward"
    layer = node("DynamicQuantizeLSTM", names, domain="com.microsoft", hidden_size=UNITS, direction=direction)
    made, x = proto([layer], {"x": (STEPS, BATCH, depth)}, arrays, ["y"]), data(depth)
    graph = optimise_graph(read(made), Options(hybrid=hybrid))
    dtypes = {
        part.types[each.inputs[0]].dtype
        for part in (graph, *nested_graphs(graph))
        for each in part.nodes
        if each.op == "dense"
    }
    assert dtypes == ({"int16"} if hybrid == "dynamic" else {"float32"})
    (found,) = evaluate(graph, [x])
    np.testing.assert_allclose(found, expected(made, [x])[0], atol=0.01)


def test_products_of_all_steps_are_quantised_dynamically() -> None:
    """The inputs of all steps are multiplied before the loop if a step's gates are no wider than its input."""
    rows = np.random.default_rng(9).standard_normal((3, STEPS, BATCH, 4 * UNITS)).astype(np.float32)
    quantised = microc.quantize(read(model("GRU", "b", depth=4 * UNITS)), rows, dynamic_range=["all"])
    assert min(output["decibels"] for output in quantised.report["outputs"]) > 30


@pytest.mark.parametrize(
    ("name", "array", "said"),
    [
        ("w", np.zeros((1, DEPTH, 4 * UNITS), np.float32), "W: got float32 with zero points of int8, expected int8 or"),
        ("rz", np.zeros(1, np.int32), "R: got int8 with zero points of int32"),
        ("w", np.zeros((DEPTH, 4 * UNITS), np.int8), "W: got shape (5, 12), expected three axes, the first of 1"),
        ("w", np.zeros((1, 0, 4 * UNITS), np.int8), "W: got shape (1, 0, 12), expected at least one element"),
        ("rs", np.array([np.nan], np.float32), "R_scale: got nan, expected positive finite numbers"),
        ("ws", np.zeros(1, np.float32), "W_scale: got 0.0, expected positive finite numbers"),
        ("ws", np.ones((1, 1), np.float32), "W_scale: got float32 (1, 1), expected float32 (1,) or (1, 12)"),
        *(
            ("rs", np.ones(1, dtype), f"R_scale: got {np.dtype(dtype)} (1,), expected float32 (1,) or (1, 12)")
            for dtype in (np.int32, np.bool_, np.float16, np.float64)
        ),
        ("wz", np.zeros((1, 4 * UNITS), np.int8), "W_zero_point: got shape (1, 12), expected (1,), as W_scale has"),
    ],
)
def test_wrong_integers_of_dynamically_quantised_lstm(name: str, array: Array, said: str) -> None:
    arrays: dict[str, Array] = {
        "w": np.ones((1, DEPTH, 4 * UNITS), np.int8),
        "r": np.ones((1, UNITS, 4 * UNITS), np.int8),
        **{scale: np.ones(1, np.float32) for scale in ("ws", "rs")},
        **{zero: np.zeros(1, np.int8) for zero in ("wz", "rz")},
    }
    names = ["x", "w", "r", "", "", "", "", "", "ws", "wz", "rs", "rz"]
    layer = node("DynamicQuantizeLSTM", names, domain="com.microsoft", hidden_size=UNITS)
    with pytest.raises(ModelError, match=re.escape(said)):
        read(proto([layer], {"x": (STEPS, BATCH, DEPTH)}, {**arrays, name: array}, ["y"]))


@pytest.mark.parametrize("code", ["LSTM", "GRU", "RNN"])
def test_wrong_hidden_size(code: str) -> None:
    made = model(code)
    (size,) = [each for each in made.graph.node[0].attribute if each.name == "hidden_size"]
    size.i = UNITS + 1
    with pytest.raises(ModelError, match="hidden_size: got 4, expected 3, as the weights R have"):
        read(made)
