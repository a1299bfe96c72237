# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's layers: what is called without a copy, and with one (MICROC_CMSIS_NN) the same bits as ours, here and on boards."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc import GraphBuilder
from microc.cli import main
from microc.external.backend import Code, Partition, Region, partition
from microc.external.cmsis_nn import BACKEND, cmsis_library
from microc.graph.ir import Graph, Quant
from microc.target import target_for
from tests.device.smoke import needs

COPY = os.environ.get("MICROC_CMSIS_NN", "")
copied = pytest.mark.skipif(not COPY, reason="MICROC_CMSIS_NN names no copy of CMSIS-NN")
DATA, WIDE = Quant((0.05,), (3,)), Quant((0.0002,), (0,))


def _integers(shape: tuple[int, ...], dtype: str, seed: int, most: int = 127) -> Any:
    return np.random.default_rng(seed).integers(-most, most, shape, endpoint=True).astype(dtype)


def _any(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    return _integers(shape, dtype, seed, np.iinfo(dtype).max)


def _layer(
    op: str,
    x: tuple[int, ...],
    weight: tuple[int, ...] = (),
    *,
    result: Quant = DATA,
    bias: str = "int32",
    dtype: str = "int8",
    **attrs: Any,
) -> Graph:
    """One quantised layer, its weights by channel but for a dense one."""
    b = GraphBuilder("net")
    given = DATA if dtype == "int8" else WIDE
    data = b.input("x", x, dtype, given)
    operands = [data]
    if weight:
        channels = 1 if op == "dense" else weight[0]
        scales = tuple(0.002 + 0.0003 * k for k in range(channels))
        axis = None if op == "dense" else 0
        zeros = (0,) * channels
        operands.append(b.set_quant(b.constant("w", _integers(weight, "int8", 1)), Quant(scales, zeros, axis)))
        if bias:
            shift = tuple(s * given.scale[0] for s in scales)
            terms = b.constant("b", _integers((weight[0],), bias, 2, 20000))
            operands.append(b.set_quant(terms, Quant(shift, zeros, axis)))
    made = b.set_quant(b.op(op, *operands, rounding="double", **attrs), result, dtype)
    return b.graph("net", {"y": made})


def _sum(activation: str = "", constant: bool = False, dtype: str = "int8") -> Graph:
    wide = dtype == "int16"
    mine, other, result = (
        Quant((scale,), (0 if wide else zero,))
        for scale, zero in zip((0.05, 0.031, 0.07), (*DATA.zero_point, -7, 5), strict=True)
    )
    b = GraphBuilder("net")
    x = b.input("x", (1, 6, 5, 4), dtype, mine)
    if constant:
        y = b.set_quant(b.constant("c", _integers((1, 6, 5, 4), dtype, 3)), other)
    else:
        y = b.input("z", (1, 6, 5, 4), dtype, other)
    return b.graph(
        "net", {"y": b.set_quant(b.op("add", x, y, rounding="double", activation=activation), result, dtype)}
    )


def _svdf(dtype: str, rank: int = 2, batch: int = 1) -> Graph:
    """Two layers whose state lives from run to run."""
    b = GraphBuilder("net")
    h = b.input("x", (batch, 11), "int8", DATA)
    for number, (depth, filters) in enumerate(((11, 8 * rank), (8, 5 * rank))):
        most = 127 if dtype == "int8" else 20000
        w = b.set_quant(b.constant(f"w{number}", _integers((filters, depth), "int8", number)), Quant((0.004,), (0,)))
        t = b.set_quant(
            b.constant(f"t{number}", _integers((filters, 6), dtype, number, most)), Quant((0.6 / most,), (0,))
        )
        c = b.constant(f"b{number}", _integers((filters // rank,), "int32", number, 900))
        kept = Quant((0.02 if dtype == "int8" else 0.0002,), (0,))
        state = b.state(f"s{number}", np.zeros((batch, filters * 6), dtype))
        b.set_quant(state, kept)
        terms = b.set_quant(c, Quant((kept.scale[0] * 0.6 / most,), (0,)))
        h, after = b.emit_all("svdf", (h, w, t, terms, state), {"rank": rank, "activation": "", "rounding": "double"})
        b.set_quant(h, DATA, "int8")
        b.update(state, b.set_quant(after, kept, dtype))
    return b.graph("net", {"y": h})


OUT = Quant((0.9,), (-4,))
SHORT: dict[str, Any] = {"dtype": "int16", "bias": "int64", "result": Quant((0.0031,), (0,))}
ALIKE: dict[str, Any] = {"dtype": "int16", "result": WIDE}
WINDOW: dict[str, Any] = {"kernel": (3, 2), "strides": (2, 2), "padding": (1, 0, 1, 1)}
LAYERS: dict[str, Callable[[], Graph]] = {
    "conv": lambda: _layer("conv2d", (1, 9, 7, 5), (6, 3, 3, 5), result=OUT, padding=(1, 1, 1, 1), activation="relu"),
    "conv strided": lambda: _layer(
        "conv2d", (2, 9, 8, 3), (7, 5, 2, 3), result=OUT, strides=(2, 2), padding=(1, 0, 2, 1)
    ),
    "conv dilated": lambda: _layer("conv2d", (1, 9, 9, 4), (4, 3, 3, 4), result=OUT, dilation=(2, 2), bias=""),
    "pointwise": lambda: _layer("conv2d", (1, 5, 5, 19), (13, 1, 1, 19), result=OUT, activation="relu6"),
    "pointwise strided": lambda: _layer("conv2d", (1, 5, 5, 8), (13, 1, 1, 8), result=OUT, strides=(2, 2)),
    "one row": lambda: _layer("conv2d", (1, 1, 20, 8), (5, 1, 4, 8), result=OUT, padding=(0, 1, 0, 2)),
    "one channel": lambda: _layer("conv2d", (1, 12, 9, 1), (16, 5, 4, 1), result=OUT, padding=(2, 1, 2, 2)),
    "depthwise 3x3": lambda: _layer(
        "conv2d", (1, 7, 6, 20), (20, 3, 3, 1), result=OUT, groups=20, padding=(1, 1, 1, 1)
    ),
    "depthwise 5x4": lambda: _layer(
        "conv2d", (1, 7, 6, 9), (9, 5, 4, 1), result=OUT, groups=9, strides=(2, 1), padding=(2, 1, 2, 2)
    ),
    "depthwise twice": lambda: _layer(
        "conv2d", (1, 7, 6, 5), (10, 3, 3, 1), result=OUT, groups=5, padding=(1, 1, 1, 1)
    ),
    "dense": lambda: _layer("dense", (3, 37), (11, 37), result=OUT, activation="relu"),
    "dense without bias": lambda: _layer("dense", (1, 16), (4, 16), result=OUT, bias=""),
    "average": lambda: _layer("avg_pool2d", (1, 7, 5, 17), count_include_pad=False, **WINDOW),
    "average relu": lambda: _layer("avg_pool2d", (1, 7, 5, 3), count_include_pad=False, activation="relu", **WINDOW),
    "largest": lambda: _layer("max_pool2d", (1, 7, 5, 17), **WINDOW),
    "largest relu6": lambda: _layer("max_pool2d", (1, 7, 5, 3), activation="relu6", **WINDOW),
    "sum": _sum,
    "sum relu": lambda: _sum("relu"),
    "sum of a constant": lambda: _sum(constant=True),
    "conv of int16": lambda: _layer(
        "conv2d", (2, 9, 7, 5), (6, 3, 3, 5), padding=(1, 1, 1, 1), activation="relu", **SHORT
    ),
    "conv of int16, int32 sums": lambda: _layer("conv2d", (1, 9, 7, 5), (6, 3, 3, 5), **{**SHORT, "bias": "int32"}),
    "conv of int16, no bias": lambda: _layer(
        "conv2d", (1, 9, 8, 3), (7, 5, 2, 3), strides=(2, 2), **{**SHORT, "bias": ""}
    ),
    "pointwise of int16": lambda: _layer("conv2d", (1, 5, 5, 19), (13, 1, 1, 19), **SHORT),
    "depthwise of int16": lambda: _layer(
        "conv2d", (1, 7, 6, 20), (20, 3, 3, 1), groups=20, padding=(1, 1, 1, 1), **SHORT
    ),
    "depthwise of int16 twice": lambda: _layer(
        "conv2d", (1, 7, 6, 5), (10, 5, 3, 1), groups=5, strides=(2, 2), **SHORT
    ),
    "dense of int16": lambda: _layer("dense", (3, 37), (11, 37), activation="relu", **SHORT),
    "average of int16": lambda: _layer("avg_pool2d", (1, 7, 5, 17), count_include_pad=False, **WINDOW, **ALIKE),
    "largest of int16": lambda: _layer("max_pool2d", (1, 7, 5, 17), activation="relu", **WINDOW, **ALIKE),
    "sum of int16": lambda: _sum("relu", dtype="int16"),
    "softmax of int16": lambda: _layer(
        "softmax", (4, 13), axis=1, beta=1.0, dtype="int16", result=Quant((1 / 32768,), (0,))
    ),
    "softmax": lambda: _layer("softmax", (4, 13), result=Quant((1 / 256,), (-128,)), axis=1, beta=1.0),
}


def parted(graph: Graph, cpu: str = "cortex-m4") -> Partition:
    return partition(graph, [BACKEND], target_for(cpu))


def only(graph: Graph, cpu: str = "cortex-m4") -> tuple[Region, Code]:
    (taken,) = parted(graph, cpu).taken
    return taken.region, taken.code


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_has_code(name: str) -> None:
    region, code = only(LAYERS[name]())
    assert code.functions and any(code.functions[0] in line for line in code.lines) and code.instructions > 0
    if "bias" in code.data:
        assert code.data["weight"].dtype == np.int8
    assert region.root.op != "conv2d" or code.data["multiplier"].size == region.output_types[0].shape[-1]


def test_a_convolution_in_full() -> None:
    _, code = only(LAYERS["conv strided"]())
    assert code.lines[1].startswith("const cmsis_nn_conv_params params = {.input_offset = -3, .output_offset = -4, ")
    assert ".stride = {.w = 2, .h = 2}, .padding = {.w = 0, .h = 1}" in code.lines[1]
    assert "const cmsis_nn_dims input = {.n = 2, .h = 9, .w = 8, .c = 3};" in code.lines
    assert "const cmsis_nn_dims filter = {.n = 7, .h = 5, .w = 2, .c = 3};" in code.lines
    assert code.workspace == 4 * 32 and "buf = scratch, .size = 128" in code.lines[0]


def test_depthwise_weights_have_channels_last_and_dense_layers_their_sums_on_mve() -> None:
    _, code = only(LAYERS["depthwise twice"]())
    assert code.data["weight"].shape == (1, 3, 3, 10) and ".ch_mult = 2" in code.lines[1]
    region, code = only(LAYERS["dense"](), "cortex-m55")
    weight, bias = code.data["weight"].astype(np.int64), code.data["bias"]
    np.testing.assert_array_equal(code.data["sums"], bias - 3 * weight.sum(axis=1))
    assert "sums" not in only(LAYERS["dense"]())[1].data and region.target.cpu == "cortex-m55"


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (lambda: _layer("conv2d", (1, 6, 6, 4), (4, 3, 3, 2), result=OUT, groups=2), "2 groups of 4 channels"),
        (lambda: _layer("conv2d", (1, 6, 6, 4), (4, 3, 3, 4), result=OUT, activation="tanh"), "integer operators"),
        (lambda: _layer("max_pool2d", (1, 6, 6, 4), result=OUT, kernel=(2, 2), strides=(1, 1)), "different scales"),
        (lambda: _layer("softmax", (4, 3), result=Quant((1 / 256,), (-128,)), axis=0, beta=1.0), "integer operators"),
        (lambda: _layer("avg_pool2d", (1, 7, 5, 17), count_include_pad=True, **WINDOW), "counts padding"),
    ],
)
def test_what_the_library_does_not_compute_stays_ours(graph: Callable[[], Graph], said: str) -> None:
    found = parted(graph())
    assert not found.taken and said in found.refused[0][1]


def test_other_rounding_and_floats_stay_ours() -> None:
    graph = LAYERS["dense"]()
    even = graph.with_nodes(
        replace(n, attrs={**n.attrs, **({"rounding": "even"} if n.op == "dense" else {})}) for n in graph.nodes
    )
    assert "rounded as even" in parted(even).refused[0][1]
    b = GraphBuilder("net")
    floats = b.graph("net", {"y": b.op("softmax", b.input("x", (2, 3)), axis=1)})
    assert "float32" in parted(floats).refused[0][1]


def test_cores_compile_three_versions() -> None:
    kinds = {
        cpu: cmsis_library.kernel_variant(target_for(cpu))
        for cpu in ("cortex-m0plus", "cortex-m3", "cortex-m4", "cortex-m33", "cortex-m55")
    }
    assert list(kinds.values()) == ["plain", "plain", "dsp", "dsp", "mve"]


@copied
@pytest.mark.parametrize("name", LAYERS)
def test_the_library_gives_our_bits_here(name: str) -> None:
    """Its plain C."""
    graph = LAYERS[name]()
    theirs = microc.compile(graph, external={"cmsis-nn": COPY}, external_choice="all")
    ours = microc.compile(graph)
    assert any("cmsis-nn" in kernel["rule"] for kernel in theirs.manifest["kernels"])
    for seed in range(3):
        inputs = [_any(tensor["shape"], tensor["dtype"], 10 + seed) for tensor in theirs.inputs]
        np.testing.assert_array_equal(theirs(*inputs), ours(*inputs))


def chain(dtype: str) -> Graph:
    """All layers in a small network: what one build on a board checks."""
    b, data = GraphBuilder("net"), DATA if dtype == "int8" else WIDE

    def product(op: str, x: str, shape: tuple[int, ...], seed: int, **attrs: Any) -> str:
        scales = tuple(0.002 + 0.0001 * k for k in range(shape[0])) if op == "conv2d" else (0.003,)
        axis, zeros = (0 if op == "conv2d" else None), (0,) * len(scales)
        w = b.set_quant(b.constant(f"w{seed}", _integers(shape, "int8", seed)), Quant(scales, zeros, axis))
        terms = b.constant(f"b{seed}", _integers(shape[:1], "int32" if dtype == "int8" else "int64", seed, 9000))
        c = b.set_quant(terms, Quant(tuple(s * data.scale[0] for s in scales), zeros, axis))
        return b.set_quant(b.op(op, x, w, c, rounding="double", **attrs), data, dtype)

    def plain(op: str, *x: str, result: Quant = data, **attrs: Any) -> str:
        return b.set_quant(b.op(op, *x, rounding="double", **attrs), result, dtype)

    x = b.input("x", (1, 13, 10, 1), dtype, data)
    h = product("conv2d", x, (18, 5, 4, 1), 1, strides=(2, 2), padding=(2, 1, 2, 1), activation="relu")
    d = product("conv2d", h, (18, 3, 3, 1), 2, groups=18, padding=(1, 1, 1, 1), activation="relu6")
    d = product("conv2d", d, (18, 5, 3, 1), 3, groups=18, padding=(2, 1, 2, 1))
    h = plain("add", h, product("conv2d", d, (18, 1, 1, 18), 4), activation="relu")
    h = product("conv2d", h, (9, 3, 3, 18), 5, padding=(1, 1, 1, 1))
    h = plain("max_pool2d", h, kernel=(2, 2), strides=(2, 2))
    h = plain("avg_pool2d", h, kernel=(3, 2), strides=(1, 1), count_include_pad=False)
    size = int(np.prod(b.shape(h)))
    h = product("dense", b.set_quant(b.reshape(h, (1, size)), data), (7, size), 6)
    ends = Quant((1 / 256,), (-128,)) if dtype == "int8" else Quant((1 / 32768,), (0,))
    return b.graph("net", {"y": plain("softmax", h, result=ends, axis=1)})


STATES = [("int8", 2, 1), ("int16", 2, 1), ("int16", 1, 2), ("int8", 1, 2)]


@pytest.mark.parametrize(("dtype", "rank", "batch"), STATES)
def test_a_state_is_copied_and_moved_on_by_the_library(dtype: str, rank: int, batch: int) -> None:
    found = parted(_svdf(dtype, rank, batch))
    assert [each.entry.name for each in found.taken] == ["svdf", "svdf"]
    assert found.taken[0].code.lines[0].startswith("(void)memcpy(out_1, in_1, ")
    assert found.taken[0].code.workspace == 4 * batch * (8 * rank + 8)


@copied
@pytest.mark.parametrize(("dtype", "rank", "batch"), STATES)
def test_states_go_on_from_run_to_run_as_ours(dtype: str, rank: int, batch: int) -> None:
    graph = _svdf(dtype, rank, batch)
    theirs = microc.compile(graph, external={"cmsis-nn": COPY}, external_choice="all")
    ours = microc.compile(graph)
    for seed in range(12):
        x = _integers((batch, 11), "int8", seed)
        np.testing.assert_array_equal(theirs(x), ours(x))


@copied
@pytest.mark.parametrize("dtype", ["int8", "int16", "svdf int8", "svdf int16"])
@pytest.mark.parametrize("board", ["mps2-an386", "mps3-an547"])
@needs("arm-none-eabi-gcc")
@needs("qemu-system-arm")
def test_emulated_boards_agree_with_our_code_kernel_by_kernel(
    board: str, dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, _, kind = dtype.rpartition(" ")
    graph = _svdf(kind) if state else chain(kind)
    program = microc.compile(graph, board=board, external={"cmsis-nn": COPY}, external_choice="all")
    external = [call for call in program.module.calls if "cmsis-nn" in call.rule]
    assert len(external) == (2 if state else 10)
    folder = program.write(tmp_path / "firmware")
    assert main(["verify", str(folder)]) == 0
    assert "every bit" in capsys.readouterr().out
