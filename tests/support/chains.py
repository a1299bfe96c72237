# SPDX-License-Identifier: Apache-2.0
"""Networks of layers that work row by row, and modules run by the interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from microc.base.dtypes import Array
from microc.compiler.fit.striping import Chain, ChainLowering, Group, find_layer_runs
from microc.compiler.lowering.graph_to_module import build_module
from microc.compiler.lowering.kernel_builder import Configuration, KernelBuilder
from microc.compiler.lowering.kernel_selection import groups_of
from microc.graph.ir import Graph, TensorType
from microc.module import Module
from microc.schedule.identities import intrinsic_functions
from microc.target import SPEED, target_for
from microc.tir.interp import execute
from microc.transform.fuse import fuse
from microc.transform.pass_context import PassContext
from tests.transform.network import Network


@dataclass(frozen=True)
class Step:
    """A layer of a random chain; ``padding``: top, left, bottom, right."""

    kind: str
    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    units: int = 2


KINDS = ("conv", "depthwise", "max", "sum", "lookup", "scale", "residual")


@st.composite
def steps(draw: st.DrawFn) -> tuple[Step, ...]:
    """Two to four layers of any kind and geometry."""
    kernel = st.integers(1, 3)
    found = []
    for _ in range(draw(st.integers(2, 4))):
        size = draw(kernel)
        side = st.integers(0, size - 1)
        found.append(
            Step(
                kind=draw(st.sampled_from(KINDS)),
                kernel=size,
                stride=draw(st.integers(1, 3)),
                dilation=draw(st.integers(1, 2)),
                padding=(draw(side), draw(side), draw(side), draw(side)),
                units=draw(st.integers(1, 5)),
            )
        )
    return tuple(found)


def network(layers: Sequence[Step], shape: tuple[int, int, int, int], seed: int = 0, dtype: str = "int8") -> Graph:
    """A fused graph of integer layers; every layer ends in its input's dtype."""
    net = Network(seed, x=TensorType(shape, dtype))
    name = "x"
    for layer in layers:
        name = _layer(net, name, layer, dtype)
    return fuse(net.graph(), PassContext())


def _layer(net: Network, data: str, layer: Step, dtype: str) -> str:
    channels = net.types[data].shape[3]
    window: dict[str, Any] = {
        "kernel": (layer.kernel, layer.kernel),
        "strides": (layer.stride,) * 2,
        "padding": layer.padding,
    }
    match layer.kind:
        case "conv" | "depthwise":
            groups = channels if layer.kind == "depthwise" else 1
            units = channels if layer.kind == "depthwise" else layer.units
            weights = net.rng.integers(-9, 10, (units, layer.kernel, layer.kernel, channels // groups)).astype(np.int8)
            attrs: dict[str, Any] = {
                "dilation": (layer.dilation,) * 2,
                "groups": groups,
                "pad_value": -3,
                "out_dtype": "int32",
            }
            attrs |= {"strides": window["strides"], "padding": layer.padding}
            return narrowed(net, net.op("conv2d", data, net.constant(weights), **attrs), dtype)
        case "max":
            return net.op("max_pool2d", data, **window)
        case "sum":
            return narrowed(net, net.op("sum_pool2d", data, pad_value=2, offset=5, **window), dtype)
        case "lookup":
            table = net.rng.integers(-128, 128, 256).astype(np.int8)
            return net.op("lookup", data, net.constant(table))
        case "scale":
            factor = net.constant(net.rng.integers(-3, 4, (channels,)).astype(np.int32))
            return narrowed(net, net.op("mul", net.op("cast", data, dtype="int32"), factor), dtype)
        case _:
            if data == "x" or net.types["x"].shape != net.types[data].shape:
                return net.op("clip", data, minimum=-50, maximum=60, rounding="")
            return net.op("maximum", data, "x")


def narrowed(net: Network, wide: str, dtype: str) -> str:
    """A remainder that fits a byte, so that every bit of a sum counts."""
    low, high = (-100, 101) if dtype == "int8" else (-1000, 1001)
    return net.op("cast", net.op("clip", wide, minimum=low, maximum=high, rounding=""), dtype=dtype)


def groups(graph: Graph) -> dict[str, Group]:
    return {nodes[0].group: nodes for nodes in groups_of(graph) if nodes[0].group}


def longest_chains(graph: Graph, height: int = 1) -> list[Chain]:
    """Everything that can be streamed."""
    return [run.chain(0, len(run.groups), height) for run in find_layer_runs(graph, groups(graph))]


def module(graph: Graph, chains: Sequence[Chain] = (), cpu: str = "cortex-m4") -> Module:
    target = target_for(cpu)
    lowered = ChainLowering(graph, target, SPEED)
    return build_module(
        KernelBuilder(Configuration(graph, SPEED), target),
        "net",
        lowered_chains=[lowered.lower(chain) for chain in chains],
    )


def run(made: Module, inputs: Mapping[str, Array]) -> list[Array]:
    """A module's outputs, its kernels run by the interpreter. Workspaces and results start with rubbish."""
    assert not made.views
    values = {
        name: np.full(v.shape, 85, v.dtype) if v.data is None else v.data for name, v in made.values.items()
    } | dict(zip(made.inputs, inputs.values(), strict=True))
    kernels = {kernel.name: kernel.func for kernel in made.kernels}
    for call in made.calls:
        func = kernels[call.kernel]
        arrays = [values[name].reshape(p.shape) for name, p in zip(call.args, func.params, strict=True)]
        for name, array in zip(call.args, execute(func, arrays, intrinsic_functions()), strict=True):
            values[name] = array.reshape(made.values[name].shape)
    return [values[name] for name in made.outputs]
