# SPDX-License-Identifier: Apache-2.0
"""What spelled float models compute, by the operators' references, against numpy and against the corpus."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.frontend.tflite import reader as tflite
from microc.graph.ir import Graph
from microc.ops import registry
from microc.ops.arithmetic import ACTIVATIONS
from tests.frontend.tflite_model import Op, Tensor, constant, model
from tests.support.corpus import cases, models

RNG = np.random.default_rng(3)


def evaluate(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """Run a graph of float operators by their references, each followed by its activation."""
    values = {**graph.consts, **graph.state, **dict(zip(graph.inputs, inputs, strict=True))}
    for node in graph.nodes:
        results = registry.get(node.op).reference(node.attrs, [values[name] for name in node.inputs])
        if node.attrs.get("activation"):
            op, attrs = ACTIVATIONS[node.attr("activation")]
            results = registry.get(op).reference(attrs, results)
        values.update(zip(node.outputs, results, strict=True))
    return [values[name] for name in graph.outputs]


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def depth_to_space(x: Array, block: int) -> Array:
    out = np.empty((x.shape[0], x.shape[1] * block, x.shape[2] * block, x.shape[3] // block**2), x.dtype)
    for row in range(block):
        for column in range(block):
            first = (row * block + column) * out.shape[3]
            out[:, row::block, column::block] = x[..., first : first + out.shape[3]]
    return out


ERF = np.vectorize(math.erf)
ALPHA = normal(1, 1, 3)
ONES = np.ones((1, 1), np.float32)
Meaning = Callable[..., Array]
CASES: dict[str, tuple[Op, Meaning, tuple[tuple[int, ...], ...], tuple[Tensor, ...]]] = {
    "prelu": (
        Op("PRELU", ("x0", "alpha"), ("y",)),
        lambda x: np.where(x > 0, x, x * ALPHA),
        ((2, 4, 3),),
        (constant("alpha", ALPHA),),
    ),
    "gelu": (
        Op("GELU", ("x0",), ("y",), "GeluOptions"),
        lambda x: x / 2 * (1 + ERF(x / math.sqrt(2))),
        ((2, 5),),
        (),
    ),
    "gelu by tanh": (
        Op("GELU", ("x0",), ("y",), "GeluOptions", {"Approximate": True}),
        lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        ((2, 5),),
        (),
    ),
    "l2 normalization": (
        Op("L2_NORMALIZATION", ("x0",), ("y",), "L2NormOptions"),
        lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True),
        ((2, 5),),
        (),
    ),
    "log softmax": (
        Op("LOG_SOFTMAX", ("x0",), ("y",)),
        lambda x: x - np.log(np.exp(x).sum(-1, keepdims=True)),
        ((3, 5),),
        (),
    ),
    "softmax of five axes": (
        Op("SOFTMAX", ("x0",), ("y",), "SoftmaxOptions", {"Beta": 1.0}),
        lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
        ((1, 2, 3, 2, 5),),
        (),
    ),
    "squared difference": (
        Op("SQUARED_DIFFERENCE", ("x0", "x1"), ("y",)),
        lambda a, b: (a - b) ** 2,
        ((3, 5), (5,)),
        (),
    ),
    "batch matmul": (
        Op("BATCH_MATMUL", ("x0", "x1"), ("y",), "BatchMatMulOptions", {"AdjY": True}),
        lambda a, b: a @ b.swapaxes(-1, -2),
        ((2, 3, 5), (2, 4, 5)),
        (),
    ),
    "space to depth": (
        Op("SPACE_TO_DEPTH", ("x0",), ("y",), "SpaceToDepthOptions", {"BlockSize": 2}),
        lambda x: np.concatenate([x[:, r::2, c::2] for r in range(2) for c in range(2)], -1),
        ((1, 4, 6, 3),),
        (),
    ),
    "depth to space": (
        Op("DEPTH_TO_SPACE", ("x0",), ("y",), "DepthToSpaceOptions", {"BlockSize": 2}),
        lambda x: depth_to_space(x, 2),
        ((1, 2, 3, 12),),
        (),
    ),
    "tile": (
        Op("TILE", ("x0", "times"), ("y",)),
        lambda x: np.tile(x, (2, 1, 3)),
        ((2, 1, 3),),
        (constant("times", np.array([2, 1, 3], np.int32)),),
    ),
    "pack": (
        Op("PACK", ("x0", "x1"), ("y",), "PackOptions", {"ValuesCount": 2, "Axis": -1}),
        lambda a, b: np.stack([a, b], -1),
        ((2, 3), (2, 3)),
        (),
    ),
    "mean": (
        Op("MEAN", ("x0", "axes"), ("y",), "ReducerOptions"),
        lambda x: x.mean((1, 2)),
        ((2, 3, 4, 5),),
        (constant("axes", np.array([-2, 1], np.int32)),),
    ),
    "relu6": (Op("RELU6", ("x0",), ("y",)), lambda x: np.clip(x * 1, 0, 6), ((9,),), ()),
}


@pytest.mark.parametrize("name", CASES)
def test_spelling_means_what_the_operator_means(name: str) -> None:
    op, meaning, shapes, extra = CASES[name]
    inputs = [normal(*shape) for shape in shapes]
    wanted = meaning(*inputs)
    tensors = [Tensor(f"x{i}", shape) for i, shape in enumerate(shapes)]
    names = [tensor.name for tensor in tensors]
    graph = tflite.read_tflite(model([*tensors, *extra, Tensor("y", wanted.shape)], [op], names, ["y"]), "one.tflite")
    (result,) = evaluate(graph, inputs)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, wanted, rtol=2e-5, atol=2e-6)


FLOAT_MODELS = models(
    "mlperf_*_float.tflite", "tflm_hello_world_float.tflite", "gen_dscnn_float.tflite", "litert_sqrt*.tflite"
)


@pytest.mark.corpus
@pytest.mark.parametrize("path", FLOAT_MODELS, ids=lambda path: path.stem)
def test_real_float_models_give_their_reference(path: Path) -> None:
    """Within 1e-4 of the largest output; a hybrid model (integer weights, float data) within 5 %: TFLite rounds its data."""
    graph = tflite.read_tflite(path.read_bytes(), path.name)
    hybrid = any(node.op == "dequantize" for node in graph.nodes)
    for inputs, outputs in cases(path)[:1]:
        for got, wanted in zip(evaluate(graph, inputs), outputs, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=0, atol=(5e-2 if hybrid else 1e-4) * np.abs(wanted).max())
