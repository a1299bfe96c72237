# SPDX-License-Identifier: Apache-2.0
"""Streams: what a network gives frame by frame is what it gives for the whole sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import microc
from microc.compiler.api import Program
from microc.errors import UnsupportedError, UsageError
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph
from tests.support.campaign import examples
from tests.support.corpus import models
from tests.transform.streams import Sequence, compared, input_of, run_stream

FLOAT = 1e-5
"""Sums of a few dozen products of magnitude one: their order may differ between a window and a whole image."""


def random_stack(seed: int, integers: bool) -> Graph:
    """Convolutions along time, causal or without padding, dilated, strided, by channels, with pools and shortcuts."""
    rng = np.random.default_rng(seed)
    width = int(rng.choice([1, 4]))
    net = Sequence(seed, integers=integers, length=64, width=width, channels=int(rng.integers(1, 6)))
    x = net.x
    for _ in range(int(rng.integers(2, 6))):
        shape = net.write.shape(x)
        kind = rng.choice(["conv", "conv", "depthwise", "pool", "shortcut", "pad", "transpose"])
        kernel, dilation = int(rng.integers(1, 5)), int(rng.choice([1, 1, 2, 4, 8]))
        reach = (kernel - 1) * dilation + 1
        if reach > shape[1] // 2:
            continue
        before = int(rng.choice([0, reach - 1, reach - 1, min(1, reach - 1)]))
        across = (1, 3, 1) if width > 1 and rng.random() < 0.5 else (0, 1, 0)
        if kind in ("conv", "depthwise"):
            x = net.conv(
                x,
                (kernel, across[1]),
                channels=int(rng.integers(1, 9)),
                strides=(int(rng.choice([1, 1, 1, 2])), 1),
                dilation=(dilation, 1),
                padding=(before, across[0], 0, across[2]),
                depthwise=kind == "depthwise",
            )
        elif kind == "pool":
            op = str(rng.choice(["max_pool2d", "avg_pool2d"]))
            before = min(before, kernel - 1) if op == "max_pool2d" else 0
            attrs: dict[str, Any] = {"kernel": (kernel, 1), "strides": (int(rng.choice([1, 2])), 1)}
            x = net.op(op, (x,), net.write.type(x).quant, padding=(before, 0, 0, 0), rounding="double", **attrs)
        elif kind == "shortcut":
            inner = net.conv(x, (kernel, 1), channels=shape[3], dilation=(dilation, 1), padding=(before, 0, 0, 0))
            left_out: dict[str, Any] = {
                "begin": (0, reach - 1 - before, 0, 0),
                "end": shape,
                "strides": (1, 1, 1, 1),
            }
            x = net.add(net.op("slice", (x,), net.write.type(x).quant, **left_out), inner)
        elif kind == "pad":
            quant = net.write.type(x).quant
            value: float = quant.zero_point[0] if quant is not None else 0.0
            padding = ((0, 0), (before, 0), (0, 0), (0, 0))
            both = net.op("pad", (x,), quant, padding=padding, value=value)
            x = net.add(net.conv(both, (1, 1), channels=shape[3]), both)
        else:
            axes = (0, 3, 1, 2)
            turned = net.op("transpose", (x,), net.write.type(x).quant, axes=axes)
            bent = net.op("tanh", (turned,), rounding="double")
            x = net.op("transpose", (bent,), net.write.type(bent).quant, axes=(0, 2, 3, 1))
    return net.graph(x)


@given(seed=st.integers(0, 1 << 30), hop=st.sampled_from([0, 0, 1, 2, 4]))
@settings(max_examples=examples(6), deadline=None)
def test_streams_of_integers_equal_the_whole_run(seed: int, hop: int) -> None:
    check(random_stack(seed, True), hop, 0.0)


@given(seed=st.integers(0, 1 << 30), hop=st.sampled_from([0, 0, 1, 2, 4]))
@settings(max_examples=examples(6), deadline=None)
def test_streams_of_floats_equal_the_whole_run(seed: int, hop: int) -> None:
    check(random_stack(seed, False), hop, FLOAT)


def check(graph: Graph, hop: int, tolerance: float) -> None:
    """Hops that strides do not divide are refused, by a message that says what would do."""
    try:
        compared(graph, hop=hop, tolerance=tolerance)
    except UsageError as error:
        assert hop and "a multiple of" in error.hint
        least = int(error.hint.rsplit("=", 1)[1])
        compared(graph, hop=least, tolerance=tolerance)


def causal(integers: bool, dilations: tuple[int, ...] = (1, 2, 4, 8), channels: int = 8) -> Sequence:
    """A stack of dilated causal convolutions with shortcuts, as of TCN and WaveNet."""
    net = Sequence(3, integers=integers, length=48, channels=channels)
    x = net.x
    for dilation in dilations:
        inner = net.conv(x, (3, 1), channels=channels, dilation=(dilation, 1), padding=(2 * dilation, 0, 0, 0))
        x = net.add(x, inner)
    net.x = x
    return net


@pytest.mark.parametrize("integers", [True, False])
def test_causal_stacks_have_no_delay(integers: bool) -> None:
    net = causal(integers)
    output = compared(net.graph(net.x), tolerance=0 if integers else FLOAT)
    assert (output["axis"], output["frames"], output["delay"], output["first"]) == (1, 1, 0, 0)


def test_taps_far_apart_come_from_rings() -> None:
    """History is kept in order where windows are dense, in rings where they are not; none is copied as a whole."""
    net = causal(True, (1, 8, 16), channels=16)
    program = microc.compile(net.graph(net.x), board="mps2-an386", stream=1)
    assert isinstance(program, Program)
    steps = [layer["op"] for layer in program.report()["layers"]]
    assert [steps.count(op) for op in ("shift_in", "ring_slice", "ring_write", "state")] == [1, 2, 2, 0]
    whole = microc.compile(net.graph(net.x), board="mps2-an386")
    assert isinstance(whole, Program)
    assert 30 * program.report()["macs"] < whole.report()["macs"]


def test_a_longer_sequence_than_the_models() -> None:
    """A stream goes on: it equals a network for a longer sequence."""
    nets = [Sequence(5, integers=True, length=length) for length in (16, 40)]
    short, long = (net.graph(net.conv(net.x, (3, 1), dilation=(2, 1), padding=(4, 0, 0, 0))) for net in nets)
    x = input_of(long, 1)
    np.testing.assert_array_equal(
        np.concatenate(run_stream(microc.compile(short, stream=1), x, 1), 1), microc.compile(long)(x)
    )


def test_padding_cut_off_again_is_no_lookahead() -> None:
    """Padding at both ends, and the end cut off (Chomp1d of TCN networks)."""
    net = Sequence(1, integers=False)
    both = net.conv(net.x, (3, 1), dilation=(2, 1), padding=(4, 0, 4, 0))
    cut = net.op("slice", (both,), begin=(0, 0, 0, 0), end=(1, 40, 1, 4), strides=(1, 1, 1, 1))
    assert compared(net.graph(cut), tolerance=FLOAT)["delay"] == 0


def same(length: int = 32) -> Sequence:
    net = Sequence(2, integers=True, length=length)
    net.x = net.conv(net.x, (3, 1), padding=(1, 0, 1, 0))
    net.x = net.conv(net.x, (5, 1), padding=(2, 0, 2, 0))
    return net


def test_lookahead_is_refused_or_a_delay() -> None:
    """Padding behind the end is not known to a stream; as a delay, all frames but the last are those of the whole run."""
    net = same()
    graph = net.graph(net.x)
    with pytest.raises(UnsupportedError, match="pads behind the end") as refusal:
        microc.compile(graph, stream=1)
    assert "conv2d_1" in refusal.value.where and "lookahead" in refusal.value.hint
    step, x = microc.compile(graph, stream=1, stream_allow="lookahead"), input_of(graph, 0)
    (output,) = step.manifest["streaming"]["outputs"].values()
    assert output["delay"] == 3
    made = np.concatenate(run_stream(step, x, 1), 1)[:, 3:]
    np.testing.assert_array_equal(made, np.asarray(microc.compile(graph)(x))[:, :-3])


def tail(net: Sequence, x: str, op: str) -> str:
    """What keyword networks end in."""
    shape = net.write.shape(x)
    if op == "flatten":
        flat = net.write.set_quant(net.write.reshape(x, (1, int(np.prod(shape)))), net.write.type(x).quant)
        return net.op("tanh", (flat,), rounding="double")
    if op == "softmax":
        return net.op("softmax", (x,), axis=1, beta=1.0, rounding="double")
    return net.op("mean", (x,), net.write.type(x).quant, axes=(1, 2), keepdims=False, rounding="double")


@pytest.mark.parametrize("op", ["flatten", "mean", "softmax"])
@pytest.mark.parametrize("hop", [1, 3])
def test_tails_that_need_all_frames(op: str, hop: int) -> None:
    """They are refused, or see the last frames: in every step what the whole run gives for the frames that end there."""
    net = Sequence(4, integers=False, length=20)
    graph = net.graph(tail(net, net.conv(net.x, (4, 1)), op))
    with pytest.raises(UnsupportedError, match="needs all 17 frames") as refusal:
        microc.compile(graph, stream=1, hop=hop)
    assert "17 frames" in refusal.value.hint and refusal.value.where
    output = compared(graph, tolerance=FLOAT, hop=hop, stream_allow="window")
    assert output["axis"] == -1
    step, whole = microc.compile(graph, stream=1, hop=hop, stream_allow="window"), microc.compile(graph)
    x = np.random.default_rng(9).standard_normal((1, 60, 1, 5)).astype(np.float32)
    for n, got in enumerate(run_stream(step, x, 1)):
        start = (n - output["first"]) * hop
        if start >= 0:
            np.testing.assert_allclose(got, whole(x[:, start : start + 20]), rtol=FLOAT, atol=FLOAT)


def test_the_last_frame_needs_no_window() -> None:
    net = Sequence(4, integers=True, length=20)
    x = net.conv(net.x, (3, 1), padding=(2, 0, 0, 0))
    last: dict[str, Any] = {"begin": (0, 19, 0, 0), "end": (1, 20, 1, 4), "strides": (1, 1, 1, 1)}
    x = net.op("slice", (x,), net.write.type(x).quant, **last)
    flat = net.write.set_quant(net.write.reshape(x, (1, 4)), net.write.type(x).quant)
    assert compared(net.graph(net.op("tanh", (flat,), rounding="double")))["first"] == 19


def test_several_inputs() -> None:
    """One that is a sequence, and one that stays the same."""
    net = Sequence(6, integers=False, length=12)
    gain = net.write.input("gain", (5,))
    x = net.op("mul", (net.conv(net.x, (3, 1), channels=5, padding=(2, 0, 0, 0)), gain), activation="", rounding="")
    graph = net.graph(x)
    whole, step = microc.compile(graph), microc.compile(graph, stream={"x": 1})
    x_data, gains = input_of(graph, 0), np.arange(5, dtype=np.float32)
    made = np.concatenate([step(x_data[:, n : n + 1], gains) for n in range(12)], 1)
    np.testing.assert_allclose(made, whole(x_data, gains), rtol=FLOAT, atol=FLOAT)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"stream": {"y": 1}}, "no input 'y'"),
        ({"stream": 4}, "has no axis 4"),
        ({"stream": "time"}, "stream cannot be"),
        ({"hop": 2}, "hop requires the option stream"),
        ({"stream": 1, "stream_allow": "everything"}, "stream_allow cannot be"),
        ({"stream": 1, "hop": -1}, r"hop \(frames per run\) cannot be -1"),
    ],
)
def test_wrong_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        microc.compile(Sequence(1, integers=False).graph("x"), **options)


def test_a_network_with_state_is_refused() -> None:
    net = Sequence(1, integers=False)
    graph = net.graph(net.conv(net.x, (1, 1)))
    kept = Graph(
        graph.name, graph.inputs, graph.outputs, graph.nodes, {**graph.types, "s": graph.types["x"]}, graph.consts,
        {"s": input_of(graph, 0)}, {"s": "x"},
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match="keeps state"):
        microc.compile(kept, stream=1)


def recurrent(before: int, rows: bool, length: int = 14) -> Graph:
    """A convolution, a loop over its frames that keeps a running mixture, and what comes of its rows or of its last state."""
    net = Sequence(11, integers=False, length=length)
    x = net.conv(net.x, (3, 1), padding=(before, 0, 0, 0))
    frames = net.write.shape(x)[1]
    data = net.write.reshape(x, (frames, 4))
    body = GraphBuilder("cell")
    turn, state = body.input("turn", (), "int32"), body.input("state", (1, 4))
    row = body.reshape(body.emit("gather", (body.input("data", (frames, 4)), turn), {"axis": 0}), (1, 4))
    mixed = body.emit("tanh", (body.emit("add", (body.emit("mul", (state, body.scalar(0.5))), row)),))
    cell = body.graph("cell", {"next": mixed, "row": mixed})
    start = net.constant(np.full((1, 4), 0.25, np.float32))
    attrs: dict[str, Any] = {"body": cell, "count": frames, "carried": 1, "guarded": False}
    last, stacked = net.write.emit_all("loop", (start, data), attrs)
    return net.graph(net.op("exp", (stacked if rows else last,)))


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("hop", [1, 3])
@pytest.mark.parametrize("rows", [True, False])
def test_recurrent_layers_carry_on(before: int, hop: int, rows: bool) -> None:
    """Their state is that of the frame before, and does not begin before the sequence does."""
    graph = recurrent(before, rows)
    output = compared(graph, hop=hop, tolerance=FLOAT)
    assert output["axis"] == (0 if rows else -1)


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "axis", "allowed"),
    [
        ("mlperf_strww_int8.tflite", 1, ()),
        ("ortq_tcn_qdq_s8.onnx", 2, ("window",)),
        ("torch_tcn_har__legacy_op17.onnx", 2, ("window",)),
        ("torch_lstm2_kws__legacy_op17.onnx", 1, ()),
        ("gen_lstm2_float.tflite", 1, ()),
    ],
)
def test_networks_people_deploy(name: str, axis: int, allowed: tuple[str, ...]) -> None:
    (path,) = models(name)
    graph = microc.load(path)
    compared(graph, axis, tolerance=0 if "int8" in name or "_s8" in name else FLOAT, stream_allow=allowed)
