# SPDX-License-Identifier: Apache-2.0
"""Quantised graphs by the operators' own legalisation and references, and TFLite Micro as the oracle for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.frontend.tflite import reader as tflite
from microc.graph.ir import Attr, Graph, Node, Quant, TensorType
from microc.ops import registry
from microc.transform import canonicalise
from microc.transform.pass_context import PassContext, run_passes
from microc.transform.quantised import legalize
from tests.frontend.tflite_model import Op, Tensor, model
from tests.ops.harness import run_graph


def run(graph: Graph, inputs: Sequence[Array], state: dict[str, Array] | None = None) -> list[Array]:
    """The graph's outputs, every node expanded, and legalized as often as it wants. ``state`` is read, and updated in place."""
    values: dict[str, Any] = {**graph.consts, **graph.state, **(state or {})}
    values.update(zip(graph.inputs, inputs, strict=True))
    whole = run_passes(graph, (canonicalise.EXPAND_PASS, legalize.LEGALIZE_PASS), PassContext())
    values.update({name: data for name, data in whole.consts.items() if name not in values})
    values = run_graph(whole.nodes, whole.types, values)
    if state is not None:
        state.update({name: values[value] for name, value in graph.updates.items()})
    return [values[name] for name in graph.outputs]


def single(op: Op, tensors: Sequence[Tensor]) -> bytes:
    """A model of one operator; tensors without data that it reads are the inputs."""
    inputs = [t.name for t in tensors if t.name in op.inputs and t.data is None and not t.variable]
    return model(tensors, (op,), inputs, op.outputs)


def tflm(data: bytes, *inputs: Array) -> Array:
    """The first output of a model run by TFLite Micro; the test is skipped where that is not installed."""
    runtime = pytest.importorskip("tflite_micro").runtime
    interpreter = runtime.Interpreter.from_bytes(data, arena_size=1 << 20)
    for position, array in enumerate(inputs):
        interpreter.set_input(array, position)
    interpreter.invoke()
    return np.asarray(interpreter.get_output(0))


def check(data: bytes, *inputs: Array) -> None:
    """TFLite Micro and our references agree bit for bit on a model."""
    (ours,) = run(tflite.read_tflite(data, "one.tflite"), inputs)
    np.testing.assert_array_equal(ours, tflm(data, *inputs))


def every(dtype: str) -> Array:
    """All values of an 8- or 16-bit dtype."""
    info = np.iinfo(dtype)
    return np.arange(info.min, info.max + 1).astype(dtype)


def scale(rng: np.random.Generator, low: float = -10, high: float = -1) -> float:
    """A random float32 scale, 2**low to 2**high."""
    return float(np.float32(2.0 ** rng.uniform(low, high)))


def quantised_graph(
    op: str,
    shapes: Sequence[tuple[int, ...]],
    out_shape: tuple[int, ...],
    quants: Sequence[Quant],
    dtype: str,
    **attrs: Attr,
) -> tuple[Node, Graph]:
    """One quantised application: operands ``a``, ``b`` ..., result ``y``, whose quantisations are given in that order."""
    names = tuple("abcd"[: len(shapes)])
    types = {
        name: TensorType(shape, dtype, quant)
        for name, shape, quant in zip((*names, "y"), (*shapes, out_shape), quants, strict=True)
    }
    node = Node(op, names, ("y",), {**registry.get(op).defaults, **attrs})
    return node, Graph("g", names, ("y",), (node,), types)
