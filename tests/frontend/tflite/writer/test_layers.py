# SPDX-License-Identifier: Apache-2.0
"""Each layer as TFLite has it, read again by our reader: the same integers out of the same integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microc
from microc import GraphBuilder
from microc.errors import UnsupportedError
from microc.frontend.tflite.writer import WRITERS, convert_node, to_tflite
from microc.graph.ir import Graph, Quant
from microc.ops.meaning import evaluate


def quant(scale: float, zero_point: int) -> Quant:
    """A scale as a file holds it."""
    return Quant((float(np.float32(scale)),), (zero_point,))


DATA, OUT = quant(0.05, 3), quant(0.9, -4)
SHARE = Quant((1 / 256,), (-128,))


def integers(shape: tuple[int, ...], seed: int, most: int = 127, dtype: str = "int8") -> Any:
    return np.random.default_rng(seed).integers(-most, most, shape, endpoint=True).astype(dtype)


def layer(
    op: str, x: tuple[int, ...], weight: tuple[int, ...] = (), *, result: Quant = OUT, dtype: str = "int8", **attrs: Any
) -> Graph:
    """One quantised layer; weights by channel, but for a dense one."""
    b = GraphBuilder("net")
    operands = [b.input("x", x, dtype, DATA)]
    if weight:
        channels = 1 if op == "dense" else weight[0]
        scales, axis = tuple(0.002 + 0.0003 * k for k in range(channels)), None if op == "dense" else 0
        operands.append(b.set_quant(b.constant("w", integers(weight, 1)), Quant(scales, (0,) * channels, axis)))
        terms = b.constant("b", integers(weight[:1], 2, 20000, "int32"))
        operands.append(b.set_quant(terms, Quant(tuple(0.05 * s for s in scales), (0,) * channels, axis)))
    made = b.op(op, *operands, **attrs)
    return b.graph("net", {"y": b.set_quant(made, result, dtype)})


def two(op: str, constant: bool = False, result: Quant = OUT, **attrs: Any) -> Graph:
    b = GraphBuilder("net")
    other = result if op == "concat" else quant(0.031, -7)
    shape = (4,) if op == "prelu" else (1, 3, 2, 4)
    x = b.input("x", (1, 3, 2, 4), "int8", result if op == "concat" else DATA)
    y = b.set_quant(b.constant("c", integers(shape, 3)), other) if constant else b.input("z", shape, "int8", other)
    return b.graph("net", {"y": b.set_quant(b.op(op, x, y, **attrs), result, "int8")})


WINDOW: dict[str, Any] = {"kernel": (3, 2), "strides": (2, 2), "result": DATA}
CASES: dict[str, Callable[[], Graph]] = {
    "conv2d": lambda: layer("conv2d", (1, 9, 7, 5), (6, 3, 3, 5), padding=(1, 1, 1, 1), activation="relu"),
    "conv2d valid": lambda: layer("conv2d", (2, 9, 8, 3), (7, 5, 2, 3), strides=(2, 2)),
    "conv2d padded": lambda: layer("conv2d", (1, 8, 8, 3), (7, 3, 3, 3), strides=(2, 2), padding=(1, 1, 1, 1)),
    "conv2d dilated": lambda: layer("conv2d", (1, 9, 9, 4), (4, 3, 3, 4), dilation=(2, 2), activation="relu6"),
    "conv2d depthwise": lambda: layer("conv2d", (1, 7, 6, 5), (10, 3, 3, 1), groups=5, padding=(1, 1, 1, 1)),
    "conv2d_transpose": lambda: layer(
        "conv2d_transpose", (1, 4, 4, 3), (5, 3, 3, 3), strides=(2, 2), padding=(0, 0, 1, 1)
    ),
    "conv2d_transpose valid": lambda: layer("conv2d_transpose", (1, 4, 4, 3), (5, 3, 3, 3), strides=(2, 2)),
    "dense": lambda: layer("dense", (3, 37), (11, 37), activation="relu"),
    "avg_pool2d": lambda: layer("avg_pool2d", (1, 7, 5, 3), count_include_pad=False, **WINDOW),
    "max_pool2d": lambda: layer("max_pool2d", (1, 7, 4, 3), activation="relu", padding=(1, 0, 1, 0), **WINDOW),
    "add": lambda: two("add", activation="relu"),
    "add constant": lambda: two("add", constant=True),
    "sub": lambda: two("sub"),
    "mul": lambda: two("mul", activation="relu6"),
    "concat": lambda: two("concat", axis=3),
    "prelu": lambda: two("prelu", constant=True),
    "reshape": lambda: layer("reshape", (1, 3, 2, 4), result=DATA, shape=(4, 6)),
    "slice": lambda: layer("slice", (1, 5, 4), result=DATA, begin=(0, 1, 1), end=(1, 4, 3), strides=(1, 1, 1)),
    "transpose": lambda: layer("transpose", (2, 3, 4), result=DATA, axes=(2, 0, 1)),
    "softmax": lambda: layer("softmax", (2, 10), result=SHARE, axis=1, beta=1.0),
    "sigmoid": lambda: layer("sigmoid", (2, 10), result=SHARE),
    "tanh": lambda: layer("tanh", (2, 10), result=Quant((1 / 128,), (0,))),
    "relu": lambda: layer("relu", (2, 10)),
    "hard_swish": lambda: layer("hard_swish", (2, 10)),
    "leaky_relu": lambda: layer("leaky_relu", (2, 10), alpha=0.1),
    "mean": lambda: layer("mean", (1, 4, 5, 3), axes=(1, 2), keepdims=True),
}
REFUSED: dict[str, tuple[Callable[[], Graph], str]] = {
    "no word": (lambda: layer("sin", (2, 3)), "no TFLite operator is written"),
    "dtype": (lambda: layer("sigmoid", (2, 3), dtype="int16", result=Quant((1 / 32768,), (0,))), "got int16"),
    "rounding": (lambda: layer("dense", (1, 4), (2, 4), rounding="even"), "rounding: got even"),
    "groups": (lambda: layer("conv2d", (1, 4, 4, 4), (4, 1, 1, 2), groups=2), "groups: got 2"),
    "scales": (
        lambda: layer("max_pool2d", (1, 7, 5, 3), kernel=(2, 2), strides=(1, 1), result=OUT),
        "different scales",
    ),
    "padding": (lambda: layer("max_pool2d", (1, 7, 5, 3), padding=(1, 1, 1, 1), **WINDOW), "padding: got"),
    "axis": (lambda: layer("softmax", (2, 10), result=SHARE, axis=0, beta=1.0), "axis: got 0, expected the last"),
    "steps": (lambda: layer("slice", (1, 6), result=DATA, begin=(0, 0), end=(1, 6), strides=(1, 2)), "strides: got"),
    "transposed": (
        lambda: layer("conv2d_transpose", (1, 4, 4, 3), (5, 3, 3, 3), strides=(2, 2), padding=(2, 2, 2, 2)),
        "padding: got",
    ),
    "computed": (lambda: two("prelu", result=OUT), "got a computed tensor"),
}


def test_every_row_has_a_case() -> None:
    assert {name.split()[0] for name in CASES} == set(WRITERS)


@pytest.mark.parametrize("name", CASES)
def test_a_layer_is_read_again_as_it_was(name: str, tmp_path: Any) -> None:
    graph = CASES[name]()
    path = tmp_path / "net.tflite"
    path.write_bytes(to_tflite(graph))
    again = microc.load(path)
    values = [integers(graph.types[each].shape, 10 + k) for k, each in enumerate(graph.inputs)]
    mine, theirs = (evaluate(g, dict(zip(g.inputs, values, strict=True)))[0] for g in (graph, again))
    np.testing.assert_array_equal(mine[0], theirs[0])
    assert len(again.outputs) == 1 and again.types[again.outputs[0]].quant == graph.types[graph.outputs[0]].quant


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_word_says_why(name: str) -> None:
    make, why = REFUSED[name]
    graph = make()
    node = next(node for node in graph.nodes if node.op in (*WRITERS, "sin") and node.op != "reshape")
    with pytest.raises(UnsupportedError, match=why):
        convert_node(graph, node)
