# SPDX-License-Identifier: Apache-2.0
"""Random networks over sequences, of floats and of quantised integers, and their runs frame by frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import microc
from microc.base.dtypes import Array
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph, Quant
from microc.ops.meaning import evaluate
from microc.run.desktop.library import Library
from tests.support.campaign import everything


class Sequence:
    """A network over (1, time, features) that grows layer by layer; values are images (1, time, width, channels)."""

    def __init__(self, seed: int, *, integers: bool, length: int = 40, width: int = 1, channels: int = 5) -> None:
        self.rng = np.random.default_rng(seed)
        self.integers = integers
        self.write = GraphBuilder("sequence")
        self.layers = 0
        self.x = self.write.input("x", (1, length, width, channels), "int8" if integers else "float32", self.scale())

    def scale(self) -> Quant | None:
        if not self.integers:
            return None
        return Quant((float(np.float32(self.rng.uniform(0.01, 0.05))),), (int(self.rng.integers(-20, 21)),))

    def op(self, name: str, inputs: tuple[str, ...], quant: Quant | None = None, **attrs: Any) -> str:
        """A layer; its result has a scale of its own unless one is given."""
        self.layers += 1
        self.write.at(self.layers, f"{name}_{self.layers}")
        made = self.write.emit(name, inputs, attrs)
        if self.integers:
            self.write.set_quant(made, quant or self.scale(), "int8")
        return made

    def constant(self, array: Array, quant: Quant | None = None) -> str:
        name = self.write.new_constant("weights", array)
        return self.write.set_quant(name, quant)

    def conv(
        self,
        x: str,
        kernel: tuple[int, int],
        *,
        channels: int = 4,
        strides: tuple[int, int] = (1, 1),
        dilation: tuple[int, int] = (1, 1),
        padding: tuple[int, int, int, int] = (0, 0, 0, 0),
        depthwise: bool = False,
    ) -> str:
        depth = self.write.shape(x)[3]
        channels = depth if depthwise else channels
        shape = (channels, *kernel, 1 if depthwise else depth)
        attrs: dict[str, Any] = {"strides": strides, "dilation": dilation, "padding": padding, "rounding": "double"}
        attrs["groups"] = depth if depthwise else 1
        if not self.integers:
            weights = self.rng.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(np.prod(shape[1:])))
            bias = self.constant(self.rng.standard_normal(channels).astype(np.float32))
            return self.op("conv2d", (x, self.constant(weights), bias), **attrs, activation="relu")
        scales = tuple(float(np.float32(s)) for s in self.rng.uniform(0.002, 0.02, channels))
        quant = self.write.type(x).quant
        assert quant is not None
        sums = Quant(tuple(float(np.float32(s * quant.scale[0])) for s in scales), (0,) * channels, 0)
        weights = self.rng.integers(-127, 128, shape).astype(np.int8)
        bias = self.constant(self.rng.integers(-500, 500, channels).astype(np.int32), sums)
        operands = (x, self.constant(weights, Quant(scales, (0,) * channels, 0)), bias)
        return self.op("conv2d", operands, **attrs, activation="")

    def add(self, a: str, b: str) -> str:
        return self.op("add", (a, b), activation="", rounding="double")

    def graph(self, x: str) -> Graph:
        return self.write.graph("sequence", {"y": x})


def input_of(graph: Graph, seed: int) -> Array:
    kind, rng = graph.types[graph.inputs[0]], np.random.default_rng(seed)
    if kind.dtype == "int8":
        return rng.integers(-128, 128, kind.shape).astype(np.int8)
    return rng.standard_normal(kind.shape).astype(np.float32)


def run_stream(step: Library, x: Array, axis: int) -> list[Array]:
    """The outputs of all steps."""
    hop = step.manifest["streaming"]["hop"]
    return [np.asarray(step(np.take(x, range(n, n + hop), axis))) for n in range(0, x.shape[axis] - hop + 1, hop)]


def compared(graph: Graph, axis: int = 1, seed: int = 0, tolerance: float = 0.0, **options: Any) -> Mapping[str, Any]:
    """Assert that a stream gives every frame that the whole run gives, whatever comes after the sequence, and that it does so
    again after a reset; what the manifest says of its output. The whole run is in numpy, and compiled, too, where
    everything is asked for."""
    step = microc.compile(graph, stream=axis, **options)
    x = input_of(graph, seed)
    (want,), _ = evaluate(graph, {graph.inputs[0]: x})
    if everything():
        np.testing.assert_allclose(microc.compile(graph)(x), want, rtol=tolerance, atol=tolerance)
    streaming = step.manifest["streaming"]
    output: dict[str, Any]
    (output,) = streaming["outputs"].values()
    frames, delay = output["frames"], output["delay"]
    steps = -(-(want.shape[output["axis"]] + delay) // frames) if frames else output["first"] + 1
    for turn in range(2):
        more = max(steps * streaming["hop"] - x.shape[axis], 0)
        after = np.take(input_of(graph, seed + 1 + turn), np.arange(more) % x.shape[axis], axis)
        made = run_stream(step, np.concatenate([x, after], axis), axis)
        got = made[output["first"]]
        if frames:
            got = np.concatenate(made, output["axis"])
            got = np.take(got, range(delay, delay + want.shape[output["axis"]]), output["axis"])
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
        step.reset()
    return output
