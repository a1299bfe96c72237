# SPDX-License-Identifier: Apache-2.0
"""Weights of few bits with multipliers for blocks: kernels know the form, and it is nearer than one scale for a channel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.errors import UsageError
from microc.quantization.integer_scheme import quantise_in_blocks, round_weights_for_output, shrink_moments
from microc.tir.bit_fields import smallest_bits_and_block
from tests.quantization.networks import Net, classifier, images
from tests.support.onnx_session import session


def noise(stored: Array, reals: Array) -> float:
    return float(np.square(stored.reshape(reals.shape) - reals).sum())


@pytest.mark.parametrize("bits", [4, 2])
@pytest.mark.parametrize("block", [16, 32, 64])
def test_blocks_are_nearer_in_the_form_of_kernels(bits: int, block: int) -> None:
    """Whatever their sizes are: channels of zeros and of unlike blocks, and rows that end within a block."""
    w = np.random.default_rng(1).normal(size=(6, 5, 5, 8)).astype(np.float32)
    w[0], w[1, 2:] = 0, 0.05 * w[1, 2:]
    plain, found = quantise_in_blocks(w, bits, 0), quantise_in_blocks(w, bits, block)
    assert smallest_bits_and_block(found.data.reshape(6, -1)) == (bits, block)
    assert all(noise(found.real[k], w[k]) < noise(plain.real[k], w[k]) for k in range(1, 6))
    assert not found.data[0].any()


@pytest.mark.parametrize("bits", [4, 2])
def test_rounding_by_answers_keeps_the_form(bits: int) -> None:
    random = np.random.default_rng(2)
    w, x = random.normal(size=(1, 5, 100)), random.normal(size=(300, 25)) @ random.normal(size=(25, 100))
    found = round_weights_for_output(
        w, shrink_moments((x.T @ x / 300)[None], (x.T @ x / 300)[None], 300)[0], np.zeros(5), bits, 16
    )
    assert smallest_bits_and_block(found.data) == (bits, 16)
    nearest = quantise_in_blocks(w[0], bits, 16)
    assert noise(x @ found.real.T, x @ w[0].T) < noise(x @ nearest.real.T, x @ w[0].T) / 2


def test_one_block_and_bytes_have_no_multipliers() -> None:
    w = np.random.default_rng(3).normal(size=(4, 32))
    for bits, block in ((4, 32), (8, 16)):
        assert np.array_equal(quantise_in_blocks(w, bits, block).data, quantise_in_blocks(w, bits, 0).data)


def test_blocks_are_packed_and_exported(tmp_path: Path) -> None:
    """A dense layer of 4 bits with a byte for every 32 inputs; ONNX Runtime finds the same integers."""
    net = Net((1, 128))
    graph = net.graph(net.dense(net.op("relu", net.dense(net.x, 128)), 32))
    data = np.random.default_rng(4).normal(size=(10, 1, 128)).astype(np.float32)
    found = microc.quantize(graph, data, weights=4, block=32)
    report = microc.compile(found.graph, board="mps2-an386", optimize="size").report()
    assert report["weight_bytes"] < 160 * 128 * (0.5 + 1 / 32) + 160 * 12
    runtime = session(found.save(tmp_path / "net.onnx"))
    mine = microc.compile(found.graph, check=False)
    step = found.recipe.activations["y"].scale
    for x in data:
        (theirs,) = runtime.run(None, {"x": x})
        assert np.abs(theirs - np.asarray(mine(x))).max() < 1.5 * step


def test_grouped_layers_stay_bytes() -> None:
    """Kernels pack no depthwise convolution, so that fewer bits would bring nothing."""
    found = microc.quantize(classifier(), images(7), weights=2)
    for node in found.graph.nodes:
        if node.op == "conv2d":
            least, most = found.graph.consts[node.inputs[1]].min(), found.graph.consts[node.inputs[1]].max()
            assert (least >= -2 and most <= 1) == (node.attrs["groups"] == 1)


def test_other_blocks_are_refused() -> None:
    with pytest.raises(UsageError, match="block"):
        microc.quantize(classifier(), images(4), weights=4, block=24)
