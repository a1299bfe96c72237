# SPDX-License-Identifier: Apache-2.0
"""Weights rounded by answers, and layers as products of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import microc
from microc.graph.ir import Graph
from microc.quantization.integer_scheme import (
    compensate_for_data_quantisation,
    level_span_of_weights,
    quantise_weights,
    round_weights_for_output,
    shrink_moments,
)
from microc.quantization.network_structure import find_matrix_layers
from tests.quantization.networks import Net


def correlated(count: int, depth: int) -> np.ndarray:
    """Rows of factors that hang together, as pixels do."""
    random = np.random.default_rng(2)
    return random.normal(size=(count, depth // 4)) @ random.normal(size=(depth // 4, depth)) + 0.1 * random.normal(
        size=(count, depth)
    )


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("groups", [1, 3])
def test_rounding_lowers_the_noise_of_answers(bits: int, groups: int) -> None:
    """At least 3 dB below what the nearest levels of the best scales leave, in levels that are allowed."""
    depth, outputs = 32, 5
    x = np.stack([correlated(400, depth) for _ in range(groups)])
    w = np.random.default_rng(3).normal(size=(groups, outputs, depth))
    square = x.swapaxes(1, 2) @ x / 400
    square, cross = shrink_moments(square, square, 400)
    found = round_weights_for_output(
        compensate_for_data_quantisation(w, square, cross), square, np.zeros(groups * outputs), bits
    )
    nearest = quantise_weights(w.reshape(-1, depth), bits)

    def noise(stored: np.ndarray) -> float:
        return float(np.square(x @ (stored.reshape(w.shape) - w).swapaxes(1, 2)).sum())

    assert level_span_of_weights(bits)[0] <= found.data.min() and found.data.max() <= level_span_of_weights(bits)[1]
    assert noise(found.real) < noise(nearest.real) / 2


def test_factors_that_are_never_seen() -> None:
    """Constant factors leave no moments: the weights are the nearest, and none is lost."""
    w = np.array([[[0.5, -1.0, 0.25]]])
    square, cross = shrink_moments(np.zeros((1, 3, 3)), np.zeros((1, 3, 3)), 10)
    found = round_weights_for_output(compensate_for_data_quantisation(w, square, cross), square, np.zeros(1), 8)
    assert np.abs(found.real - w[0]).max() < 0.01


def test_weights_make_up_for_noise_that_hangs_together() -> None:
    """Where a stored factor is always too large by a tenth of another one, the weights take that back."""
    x = correlated(400, 8)
    stored = x.copy()
    stored[:, 0] += 0.1 * x[:, 1]
    w = np.random.default_rng(3).normal(size=(1, 5, 8))
    square, cross = shrink_moments((stored.T @ stored)[None] / 400, (x.T @ stored)[None] / 400, 400)
    found = compensate_for_data_quantisation(w, square, cross)
    wrong, left = (np.square(stored @ v[0].T - x @ w[0].T).sum() for v in (w, found))
    assert left < wrong / 10


def conv(op: str = "conv2d", **attrs: object) -> Graph:
    net = Net((1, 9, 8, 4))
    whole: dict[str, Any] = {"padding": (1, 1, 1, 1), "layout": "NHWC", **attrs}
    if op == "conv2d_transpose":
        del whole["layout"]
    weight = net.weight(8, 3, 3, 4 // whole.get("groups", 1))
    return net.graph(net.op(op, net.x, weight, net.bias(8), **whole))


@pytest.mark.parametrize(
    "attrs",
    [{}, {"groups": 4}, {"groups": 2, "strides": (2, 1)}, {"dilation": (2, 1), "padding": (2, 0, 1, 3)}],
)
@pytest.mark.parametrize("op", ["conv2d", "conv2d_transpose"])
def test_reads_are_what_a_convolution_multiplies(op: str, attrs: dict[str, object]) -> None:
    graph = conv(op, **attrs)
    data = np.random.default_rng(0).normal(size=(1, 9, 8, 4)).astype(np.float32)
    (layer,) = find_matrix_layers(graph, frozenset(graph.consts))
    reads = layer.sample_reads(data, 1 << 20, np.random.default_rng(0)).gather_factors(data)
    sums = np.moveaxis(reads @ layer.rows.swapaxes(1, 2), 0, 1).reshape(reads.shape[1], -1) + layer.bias
    expected = np.asarray(microc.compile(graph, check=False)(data))
    assert np.allclose(sums, expected.reshape(sums.shape), atol=1e-4)


def test_few_places_are_drawn() -> None:
    graph = conv()
    data = np.zeros((1, 9, 8, 4), np.float32)
    (layer,) = find_matrix_layers(graph, frozenset(graph.consts))
    assert layer.sample_reads(data, 7, np.random.default_rng(0)).gather_factors(data).shape == (1, 7, 36)
