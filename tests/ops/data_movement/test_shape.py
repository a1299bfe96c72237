# SPDX-License-Identifier: Apache-2.0
"""Operators that move elements: merged transpositions, requantised concatenations, gather's ends, refusals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from microc.errors import ModelError
from microc.graph.ir import Quant, TensorType
from microc.ops import registry
from microc.ops.data_movement.reshape import simplify_transposition
from tests.ops.harness import legalized, run_legalized
from tests.ops.oracle import every, quantised_graph


@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 3, 1, 2), (2, 1, 3, 4), (1, 1)])
def test_merged_axes_move_memory_alike(shape: tuple[int, ...]) -> None:
    x = np.arange(int(np.prod(shape))).reshape(shape)
    for axes in itertools.permutations(range(len(shape))):
        fewer, order = simplify_transposition(shape, axes)
        np.testing.assert_array_equal(x.reshape(fewer).transpose(order).reshape(-1), x.transpose(axes).reshape(-1))


def test_merged_axes_are_few() -> None:
    assert simplify_transposition((1, 8, 9, 3), (0, 3, 1, 2)) == ((72, 3), (1, 0))
    assert simplify_transposition((2, 3, 4), (0, 1, 2)) == ((24,), (0,))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_concat_requantises_what_differs(dtype: str) -> None:
    quants = (Quant((0.05,), (9,)), Quant((0.031,), (5,)), Quant((0.031,), (5,)))
    node, graph = quantised_graph("concat", [(64, 2), (64, 1)], (64, 3), quants, dtype, axis=1, rounding="even")
    x = every(dtype)[:: 1 if dtype != "int16" else 256]
    a, b = x[:128].reshape(64, 2), x[128:192].reshape(64, 1)
    (got,) = run_legalized(node, graph, {"a": a, "b": b})
    info = np.iinfo(dtype)
    real = (a.astype(np.float32) - np.float32(9)) * np.float32(0.05)
    wanted = np.clip(np.rint(real / np.float32(0.031)) + 5, info.min, info.max).astype(dtype)
    np.testing.assert_array_equal(got, np.concatenate((wanted, b), axis=1))


def test_concat_of_one_quantisation_stays() -> None:
    node, graph = quantised_graph("concat", [(2,), (3,)], (5,), [Quant((0.1,), (0,))] * 3, "int8", axis=0)
    with pytest.raises(AssertionError, match="stays"):
        legalized(node, graph)


def test_gather_reads_the_nearest_element_beyond_the_ends() -> None:
    data, indices = np.array([10, 20, 30], np.int8), np.array([-4, -3, -1, 0, 2, 3, 99], np.int32)
    (got,) = registry.get("gather").reference({"axis": 0, "batch_dims": 0}, [data, indices])
    assert got.tolist() == [10, 10, 30, 10, 30, 30, 30]


@pytest.mark.parametrize(
    ("op", "shapes", "attrs"),
    [
        ("reshape", [(2, 3)], {"shape": (4,)}),
        ("reshape", [(2, 3)], {"shape": (-1, 3)}),
        ("transpose", [(2, 3)], {"axes": (0, 0)}),
        ("transpose", [(2, 3)], {"axes": (0,)}),
        ("concat", [(2, 3), (2, 4)], {"axis": 0}),
        ("concat", [(2, 3), (2,)], {"axis": 0}),
        ("concat", [(2, 3)], {"axis": 2}),
        ("slice", [(4,)], {"begin": (0,), "end": (5,), "strides": (1,)}),
        ("slice", [(4,)], {"begin": (2,), "end": (2,), "strides": (1,)}),
        ("slice", [(4,)], {"begin": (0,), "end": (4,), "strides": (-1,)}),
        ("slice", [(4,)], {"begin": (0, 0), "end": (4,), "strides": (1,)}),
        ("pad", [(4,)], {"padding": ((0, -1),)}),
        ("pad", [(4,)], {"padding": ((0, 1), (0, 0))}),
        ("gather", [(4,), (2,)], {"axis": 1}),
    ],
)
def test_inference_refuses(op: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any]) -> None:
    definition = registry.get(op)
    types = [TensorType(shape, "int8" if k == 0 or op != "gather" else "int32") for k, shape in enumerate(shapes)]
    with pytest.raises(ModelError):
        definition.infer({**definition.defaults, **attrs}, types)
