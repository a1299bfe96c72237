# SPDX-License-Identifier: Apache-2.0
"""Sparse constants are dense once they are read; descriptions that make no sense are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.frontend.tflite import reader as tflite
from tests.frontend.tflite_model import Op, Sparsity, Tensor, model

ROWS = np.array([[0, 7, 0, 8], [0, 0, 0, 0], [9, 0, 0, 5]], np.float32)
BY_ROWS = Sparsity((0, 1), (), (3, ((0, 2, 2, 4), (1, 3, 0, 3))))
BLOCKS = np.array([[1, 2, 0, 0], [3, 4, 0, 0], [0, 0, 5, 6], [0, 0, 7, 8]], np.float32)
BY_BLOCKS = Sparsity((0, 1, 2, 3), (0, 1), (2, ((0, 1, 2), (0, 1)), 2, 2))


def written(shape: tuple[int, ...], values: list[float], sparsity: Sparsity) -> bytes:
    data = np.array(values, np.float32).tobytes()
    tensors = (Tensor("s", shape, data=data, sparsity=sparsity), Tensor("x", shape), Tensor("y", shape))
    dense = Tensor("d", shape)
    ops = (Op("DENSIFY", ("s",), ("d",)), Op("ADD", ("x", "d"), ("y",), "AddOptions"))
    return model((*tensors, dense), ops, ("x",), ("y",))


@pytest.mark.parametrize(
    ("wanted", "values", "sparsity"),
    [(ROWS, [7, 8, 9, 5], BY_ROWS), (BLOCKS, [1, 2, 3, 4, 5, 6, 7, 8], BY_BLOCKS)],
    ids=["rows", "blocks"],
)
def test_sparse_constants(wanted: Array, values: list[float], sparsity: Sparsity) -> None:
    graph = tflite.read_tflite(written(wanted.shape, values, sparsity), "sparse.tflite")
    np.testing.assert_array_equal(graph.consts["d"], wanted)


@pytest.mark.parametrize(
    "sparsity",
    [
        replace(BY_ROWS, order=(0, 0)),
        replace(BY_ROWS, levels=(3, ((0, 2, 2), (1, 3, 0, 3)))),
        replace(BY_ROWS, levels=(3, ((0, 2, 2, 4), (1, 3, 0)))),
        replace(BY_ROWS, levels=(3, ((0, 2, 2, 4), (1, 3, 0, 4)))),
        replace(BY_ROWS, levels=(3, ((0, 2, 2, 1000), (1, 3, 0, 3)))),
        replace(BY_ROWS, levels=(3, ((0, 2, 0, 4), (1, 3, 0, 3)))),
        replace(BY_ROWS, blocks=(7,), order=(0, 1, 2), levels=(3, ((0, 2, 2, 4), (1, 3, 0, 3)), 1)),
    ],
)
def test_broken_descriptions_are_refused(sparsity: Sparsity) -> None:
    with pytest.raises(ModelError):
        tflite.read_tflite(written(ROWS.shape, [7, 8, 9, 5], sparsity), "sparse.tflite")
