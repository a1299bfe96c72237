"""Quantised graphs by the operators' own legalisation and references, and TFLite Micro as the oracle for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from microc.dtypes import Array
from microc.frontend import tflite
from microc.graph.ir import Graph, Node
from microc.ops import registry
from tests.frontend.tflite_model import Op, Tensor, model
from tests.ops.harness import run_graph


def run(graph: Graph, inputs: Sequence[Array], state: dict[str, Array] | None = None) -> list[Array]:
    """The graph's outputs, every node legalized as often as it wants. ``state`` is read, and updated in place."""
    values: dict[str, Any] = {**graph.consts, **graph.state, **(state or {})}
    values.update(zip(graph.inputs, inputs, strict=True))
    types = dict(graph.types)
    for node in graph.nodes:
        legalize = registry.get(node.op).legalize
        found = legalize(node, graph) if legalize is not None else None
        nodes: tuple[Node, ...] = (node,)
        if found is not None:
            nodes, new_types, consts = found
            types.update(new_types)
            values.update(consts)
        values = run_graph(nodes, types, values)
    if state is not None:
        state.update({name: values[value] for name, value in graph.updates.items()})
    return [values[name] for name in graph.outputs]


def single(op: Op, tensors: Sequence[Tensor]) -> bytes:
    """A model of one operator; tensors without data that it reads are the inputs."""
    inputs = [t.name for t in tensors if t.name in op.inputs and t.data is None and not t.variable]
    return model(tensors, (op,), inputs, op.outputs)


def check(data: bytes, inputs: Sequence[Array]) -> None:
    """TFLite Micro and our references agree bit for bit on a model."""
    from tflite_micro import runtime

    interpreter = runtime.Interpreter.from_bytes(data, arena_size=1 << 20)
    for position, array in enumerate(inputs):
        interpreter.set_input(array, position)
    interpreter.invoke()
    (ours,) = run(tflite.read(data, "one.tflite"), inputs)
    np.testing.assert_array_equal(ours, interpreter.get_output(0))


def every(dtype: str, shape: tuple[int, ...]) -> Array:
    """All 256 values of an 8-bit dtype, or values over the whole range of int16, in a shape."""
    info = np.iinfo(dtype)
    return np.linspace(info.min, info.max, int(np.prod(shape))).round().astype(dtype).reshape(shape)
