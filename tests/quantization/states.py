# SPDX-License-Identifier: Apache-2.0
"""Small float networks that keep state from run to run, and frames for them."""

from __future__ import annotations

import numpy as np

from microc import Graph
from microc.base.dtypes import Array
from tests.quantization.networks import Net
from tests.quantization.recurrent import CELLS, UNITS
from tests.support.loops_over_time import emit_loop_over_time

DEPTH = 6


def frames(count: int, seed: int = 0, shape: tuple[int, ...] = (1, DEPTH)) -> Array:
    """Numbers that wander about zero (count, *shape)."""
    random, frame, found = np.random.default_rng(seed), np.zeros(shape), []
    for _ in range(count):
        frame = 0.8 * frame + random.normal(scale=0.6, size=shape)
        found.append(frame)
    return np.array(found, np.float32)


def cell(name: str, start: float = 0.0) -> Graph:
    """A step of a recurrent layer, and what a dense layer says of its first state."""
    net, layer = Net((1, DEPTH)), CELLS[name](DEPTH)
    write = net.builder
    states = [
        write.state(f"state{k}", np.full((1, UNITS), start, np.float32)) for k in range(2 if name == "lstm" else 1)
    ]
    new = layer.step(write, layer.given.emit_gate_products(write, net.x), tuple(states))
    for state, value in zip(states, new, strict=True):
        write.update(state, value)
    return net.graph(net.dense(new[0], 5))


def pieces() -> Graph:
    """An LSTM over four steps a run, which goes on where the run before ended."""
    net, layer = Net((4, 1, DEPTH)), CELLS["lstm"](DEPTH)
    states = [net.builder.state(f"state{k}", np.zeros((1, UNITS), np.float32)) for k in range(2)]
    rows, last = emit_loop_over_time(net.builder, net.x, layer.given, states, layer.step)
    for state, value in zip(states, last, strict=True):
        net.builder.update(state, value)
    return net.graph(net.dense(last[0], 5), rows)


def memories(batch: int = 1, rank: int = 2, memory: int = 5, activation: str = "relu") -> Graph:
    """SVDF of eight filters."""
    net = Net((batch, DEPTH))
    operands = (net.weight(8, DEPTH), net.weight(8, memory), net.bias(8 // rank))
    start = net.random.normal(size=(batch, 8 * memory)).astype(np.float32)
    state = net.builder.state("memory", start)
    y, new = net.builder.emit_all("svdf", (net.x, *operands, state), {"rank": rank, "activation": activation})
    net.builder.update(state, new)
    return net.graph(y)


def window() -> Graph:
    """Two convolutions over time, a frame of (1, 1, 1, 6) at a time: each keeps the two frames before."""
    net = Net((1, 1, 1, DEPTH))

    def layer(name: str, x: str, outputs: int) -> str:
        depth = net.builder.shape(x)[3]
        past = net.builder.state(name, np.zeros((1, 2, 1, depth), np.float32))
        line = net.op("concat", past, x, axis=1)
        net.builder.update(past, net.op("slice", line, begin=(0, 1, 0, 0), end=(1, 3, 1, depth), strides=(1, 1, 1, 1)))
        weight, bias = net.weight(outputs, 3, 1, depth), net.bias(outputs)
        return net.op("relu", net.op("conv2d", line, weight, bias, padding=(0, 0, 0, 0), layout="NHWC"))

    last = layer("past1", layer("past0", net.x, 8), 6)
    return net.graph(net.dense(net.op("reshape", last, shape=(1, 6)), 3))


def average() -> Graph:
    """0.9 of what was, 0.1 of what comes."""
    net = Net((1, DEPTH))
    mean = net.builder.state("mean", np.zeros((1, DEPTH), np.float32))
    kept, added = (net.op("mul", x, net.builder.scalar(share)) for x, share in ((mean, 0.9), (net.x, 0.1)))
    new = net.op("add", kept, added)
    net.builder.update(mean, new)
    return net.graph(net.dense(new, 3))


def delays() -> Graph:
    """What comes less what came two runs before: state that an input, and another state, go into. One begins as ones."""
    net = Net((1, DEPTH))
    first = net.builder.state("first", np.zeros((1, DEPTH), np.float32))
    second = net.builder.state("second", np.ones((1, DEPTH), np.float32))
    net.builder.update(first, net.x)
    net.builder.update(second, first)
    return net.graph(net.dense(net.op("sub", net.x, second), 3))


def peak() -> Graph:
    """The largest of all that came."""
    net = Net((1, DEPTH))
    most = net.builder.state("most", np.full((1, DEPTH), -1, np.float32))
    new = net.op("maximum", most, net.x)
    net.builder.update(most, new)
    return net.graph(net.dense(new, 3))


def fixed() -> Graph:
    """A state that a constant replaces, one that stays, and a count of runs in integers."""
    net = Net((1, DEPTH))
    write = net.builder
    once = write.state("once", np.full((1, DEPTH), 2, np.float32))
    ever = write.state("ever", np.full((1, DEPTH), 0.5, np.float32))
    count = write.state("count", np.zeros((1,), np.int32))
    write.update(once, write.constant("zero", np.zeros((1, DEPTH), np.float32)))
    write.update(ever, ever)
    write.update(count, net.op("add", count, write.constant("one", np.ones(1, np.int32))))
    return net.graph(net.dense(net.op("add", net.op("mul", ever, net.x), once), 3), count)
