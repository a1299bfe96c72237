# SPDX-License-Identifier: Apache-2.0
"""Small ONNX models written in a line or two, and what onnxruntime makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from microc.base.dtypes import Array
from microc.frontend.onnx import reader as onnx_reader
from microc.graph.ir import Graph
from microc.ops import registry
from tests.support.onnx_session import session

Shape = Sequence[int | str | None]


def node(code: str, inputs: Sequence[str], outputs: Sequence[str] = ("y",), domain: str = "", **attrs: Any) -> Any:
    """One operator; its name is that of its first output in upper case."""
    return helper.make_node(code, list(inputs), list(outputs), name=outputs[0].upper(), domain=domain, **attrs)


def proto(
    nodes: Sequence[Any],
    inputs: Mapping[str, Shape],
    constants: Mapping[str, Array] = {},
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
    dtypes: Mapping[str, str] = {},
) -> Any:
    """A model; inputs and outputs are float32 unless ``dtypes`` says otherwise."""

    def info(name: str, shape: Shape | None) -> Any:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtypes.get(name, "float32")))
        return helper.make_tensor_value_info(name, kind, shape)

    graph = helper.make_graph(
        list(nodes),
        "small",
        [info(name, shape) for name, shape in inputs.items()],
        [info(name, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8 if opset < 21 else 10)


def read(model: Any, shapes: Mapping[str, tuple[int, ...]] = {}) -> Graph:
    data = model if isinstance(model, bytes) else model.SerializeToString()
    return onnx_reader.read_onnx(data, "small.onnx", shapes)


def evaluate(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """Run a graph as it is written, by the operators' references."""
    values = {**graph.consts, **dict(zip(graph.inputs, inputs, strict=True))}
    for each in graph.nodes:
        results = registry.get(each.op).reference(each.attrs, [values[name] for name in each.inputs])
        for name, result in zip(each.outputs, results, strict=True):
            kind = graph.types[name]
            assert (result.shape, result.dtype.name) == (kind.shape, kind.dtype), each
            values[name] = result
    return [values[name] for name in graph.outputs]


def expected(model: Any, inputs: Sequence[Array]) -> list[Array]:
    """What onnxruntime computes, without its optimisations."""
    runtime = session(model.SerializeToString(), fused=False)
    names = [value.name for value in runtime.get_inputs()]
    return list(runtime.run(None, dict(zip(names, inputs, strict=True))))


def ops(graph: Graph) -> list[str]:
    return [each.op for each in graph.nodes]


__all__ = ["evaluate", "expected", "node", "onnx", "ops", "proto", "read"]
