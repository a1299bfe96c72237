# SPDX-License-Identifier: Apache-2.0
"""Small graphs written down quickly, and what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.graph import ir
from microc.graph.ir import Graph, Loc, Node, Quant, TensorType, verify
from microc.ops import registry
from microc.transform.pass_context import PassContext


class Network:
    """A graph under construction; every method gives the name of a value. Types follow from inference."""

    def __init__(self, seed: int = 0, **inputs: tuple[int, ...] | TensorType) -> None:
        kinds = {name: k if isinstance(k, TensorType) else TensorType(k, "float32") for name, k in inputs.items()}
        self.inputs = tuple(inputs)
        self.types: dict[str, TensorType] = dict(kinds)
        self.consts: dict[str, Array] = {}
        self.nodes: list[Node] = []
        self.rng = np.random.default_rng(seed)

    def constant(self, array: Any, quant: Quant | None = None) -> str:
        name = f"c{len(self.consts)}"
        self.consts[name] = np.asarray(array)
        self.types[name] = TensorType(self.consts[name].shape, str(self.consts[name].dtype), quant)
        return name

    def random(self, *shape: int) -> str:
        """A float constant."""
        return self.constant(self.rng.uniform(-1, 1, shape).astype(np.float32))

    def op(self, op: str, *operands: str, output: str = "", quant: Quant | None = None, **attrs: Any) -> str:
        definition = registry.get(op)
        attrs = {**definition.defaults, **attrs}
        (kind,) = definition.infer(attrs, [self.types[name] for name in operands if name])
        name = output or f"v{len(self.nodes)}"
        self.types[name] = replace(kind, quant=quant)
        self.nodes.append(Node(op, operands, (name,), attrs, Loc("net.onnx", len(self.nodes), name)))
        return name

    def conv(self, data: str, units: int, kernel: int = 3, padding: int = 1, layout: str = "NCHW", **attrs: Any) -> str:
        """A convolution with random weights and bias."""
        channels = self.types[data].shape[1 if layout == "NCHW" else 3] // attrs.get("groups", 1)
        shape = (units, channels, kernel, kernel) if layout == "NCHW" else (units, kernel, kernel, channels)
        return self.op(
            "conv2d", data, self.random(*shape), self.random(units), padding=(padding,) * 4, layout=layout, **attrs
        )

    def dense(self, data: str, units: int) -> str:
        return self.op("dense", data, self.random(units, self.types[data].shape[1]), self.random(units))

    def flatten(self, data: str) -> str:
        shape = self.types[data].shape
        return self.op("reshape", data, shape=(shape[0], int(np.prod(shape[1:]))))

    def graph(self, *outputs: str) -> Graph:
        made = Graph("net", self.inputs, outputs or self.nodes[-1].outputs, tuple(self.nodes), self.types, self.consts)
        return made.with_nodes(made.nodes)


def apply(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """One node by its operator's reference."""
    definition = registry.get(node.op)
    return definition.reference({**definition.defaults, **node.attrs}, arrays)


def evaluate(graph: Graph, inputs: Mapping[str, Array]) -> list[Array]:
    """The graph's outputs."""
    values = ir.run(graph, inputs, apply)
    return [values[name] for name in graph.outputs]


def random_inputs(graph: Graph, seed: int = 1) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    found = {}
    for name in graph.inputs:
        kind = graph.types[name]
        if dtypes.is_float(kind.dtype):
            found[name] = rng.uniform(-3, 3, kind.shape).astype(kind.dtype)
        else:
            low, high = dtypes.int_range(kind.dtype)
            found[name] = rng.integers(low, high, kind.shape, endpoint=True).astype(kind.dtype)
    return found


def check(
    function: Callable[[Graph, PassContext], Graph],
    graph: Graph,
    tolerance: float = 0.0,
    context: PassContext | None = None,
) -> Graph:
    """Run a pass: the result is whole, has the interface it had, keeps known names, and computes the same."""
    verify(graph, registry.infer_node_types, "the test")
    result = function(graph, context or PassContext())
    verify(result, registry.infer_node_types, "the pass")
    assert (result.inputs, result.outputs) == (graph.inputs, graph.outputs)
    assert all(result.types[name] == graph.types[name] for name in (*graph.inputs, *graph.outputs))
    for seed in range(3):
        inputs = random_inputs(graph, seed)
        before, after = ir.run(graph, inputs, apply), ir.run(result, inputs, apply)
        for name in before.keys() & after.keys():
            np.testing.assert_allclose(after[name], before[name], rtol=tolerance, atol=tolerance, err_msg=name)
    return result


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]
