# SPDX-License-Identifier: Apache-2.0
"""Weights that are integers times scales: found from the numbers, kept as bytes or fewer bits, opened in registers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import microc
from microc.base.dtypes import Array
from microc.errors import UnsupportedError
from microc.ops.matrix.gemm import NEAR, recover_quantised_weights
from tests.frontend.onnx_model import expected, read
from tests.frontend.qdq_networks import shape_of
from tests.frontend.run import library

DICE = np.random.default_rng(12)


def dequantised(units: int, depth: int, block: int, highest: int) -> tuple[Array, Array]:
    """Integers (units, depth), and the weights that they stand for."""
    levels = DICE.integers(-highest - 1, highest + 1, (units, depth)).astype(np.int8)
    scales = DICE.uniform(0.001, 1.0, (units, depth // block)).astype(np.float32)
    return levels, levels.astype(np.float32) * np.repeat(scales, block, axis=1)


@pytest.mark.parametrize("highest", [127, 7, 1])
@pytest.mark.parametrize(("depth", "block"), [(64, 64), (96, 32), (80, 16), (33, 33)])
def test_levels_are_found_from_the_numbers(depth: int, block: int, highest: int) -> None:
    _, weights = dequantised(9, depth, block, highest)
    found = recover_quantised_weights(weights)
    assert found is not None and found.block == block
    again = found.values.astype(np.float64) * np.repeat(found.scales.astype(np.float64), block, axis=1)
    assert (np.abs(again - weights) <= NEAR * np.abs(weights)).all()


def test_a_scale_per_channel_survives_a_factor_per_channel() -> None:
    _, weights = dequantised(5, 40, 40, 127)
    assert recover_quantised_weights(weights * DICE.uniform(0.5, 2.0, (5, 1)).astype(np.float32)) is not None


def test_weights_of_floats_and_of_wider_integers_have_no_levels() -> None:
    assert recover_quantised_weights(DICE.normal(size=(6, 64)).astype(np.float32)) is None
    wide = DICE.integers(-255, 256, (6, 64))
    wide[:, :2] = 255, 1
    assert recover_quantised_weights((wide * 0.25).astype(np.float32)) is None
    mixed = np.concatenate((dequantised(5, 64, 64, 127)[1], DICE.normal(size=(1, 64)).astype(np.float32)))
    assert recover_quantised_weights(mixed) is None


def test_zeros_have_levels() -> None:
    found = recover_quantised_weights(np.zeros((3, 8), np.float32))
    assert found is not None and not found.values.any()


def saved(path: Path, nodes: list[Any], shapes: tuple[tuple[int, ...], tuple[int, ...]], constants: list[Any]) -> str:
    """An ONNX file from ``x`` to ``y``."""
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip("xy", shapes, strict=True)]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], constants)
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    file = path / "weight_only.onnx"
    file.write_bytes(helper.make_model(graph, opset_imports=domains, ir_version=10).SerializeToString())
    return str(file)


def array(data: Array, name: str) -> Any:
    return numpy_helper.from_array(data, name)


def dense_8(path: Path, units: int = 48, depth: int = 64) -> str:
    """Int8, a scale per output."""
    constants = [
        array(DICE.integers(-127, 128, (depth, units)).astype(np.int8), "q"),
        array(DICE.uniform(0.001, 0.02, units).astype(np.float32), "s"),
        array(DICE.normal(size=units).astype(np.float32), "b"),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=1),
        helper.make_node("Gemm", ["x", "w", "b"], ["y"]),
    ]
    return saved(path, nodes, ((2, depth), (2, units)), constants)


def dense_4(path: Path, units: int = 48, depth: int = 64) -> str:
    """Int4, a scale for 32 inputs."""
    levels = DICE.integers(-8, 8, (depth, units))
    constants = [
        helper.make_tensor("q", TensorProto.INT4, levels.shape, levels.reshape(-1).tolist()),
        array(DICE.uniform(0.001, 0.02, (depth // 32, units)).astype(np.float32), "s"),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    return saved(path, nodes, ((1, depth), (1, units)), constants)


def n_bits(path: Path, units: int = 48, depth: int = 80, block: int = 32, zeros: bool = False) -> str:
    """MatMulNBits; the last block is half full."""
    blocks = -(-depth // block)
    constants = [
        array(DICE.integers(0, 256, (units, blocks, block // 2)).astype(np.uint8), "q"),
        array(DICE.uniform(0.001, 0.02, units * blocks).astype(np.float32), "s"),
    ]
    if zeros:
        constants.append(array(DICE.integers(0, 256, units * -(-blocks // 2)).astype(np.uint8), "z"))
    names = ["x", *(constant.name for constant in constants)]
    sizes = {"K": depth, "N": units, "bits": 4, "block_size": block}
    node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", **sizes)
    return saved(path, [node], ((1, depth), (1, units)), constants)


def convolution(path: Path) -> str:
    """Three by three, int8, a scale per channel."""
    constants = [
        array(DICE.integers(-127, 128, (12, 8, 3, 3)).astype(np.int8), "q"),
        array(DICE.uniform(0.001, 0.02, 12).astype(np.float32), "s"),
        array(DICE.normal(size=12).astype(np.float32), "b"),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=0),
        helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[1] * 4),
    ]
    return saved(path, nodes, ((1, 8, 7, 7), (1, 12, 7, 7)), constants)


NETWORKS: dict[str, tuple[Callable[[Path], str], int]] = {
    "int8": (dense_8, 48 * 64 + 4 * 48 + 4 * 48),
    "int4": (dense_4, 48 * 64 // 2 + 4 * 96),
    "n bits": (n_bits, 48 * 80),
    "n bits, zero points": (lambda path: n_bits(path, depth=64, zeros=True), 48 * 64 + 4 * 96),
    "convolution": (convolution, 12 * 72 + 4 * 12 + 4 * 12),
}
"""How a network is made, and the bytes that its weights, scales and bias may take."""


@pytest.mark.parametrize("name", NETWORKS)
def test_weights_stay_packed_and_results_are_those_of_onnxruntime(name: str, tmp_path: Path) -> None:
    make, most = NETWORKS[name]
    file = make(tmp_path)
    program = microc.compile(file, board="host")
    assert program.report()["weight_bytes"] <= most
    model = onnx.load_model(file)
    data = DICE.normal(size=shape_of(model)).astype(np.float32)
    (wanted,) = expected(model, [data])
    given = library(read(model))(data)
    assert np.abs(given - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_quantising_data_of_such_layers_is_refused(tmp_path: Path) -> None:
    for make in (dense_8, dense_4, convolution):
        with pytest.raises(UnsupportedError, match="hybrid: 'dynamic' does not apply"):
            microc.compile(make(tmp_path), board="host", hybrid="dynamic")
