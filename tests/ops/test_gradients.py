# SPDX-License-Identifier: Apache-2.0
"""Every gradient rule against differences of the operator's reference, on the operator's own cases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import MicrocError, UnsupportedError
from microc.graph import ir
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.ops.meaning import reference_node_function
from microc.ops.registry import Case, infer, registry
from microc.transform.training.gradient import append_gradients, gradient_name

DIFFERENTIABLE = sorted(name for name, definition in registry().items() if definition.gradient or definition.unroll)
POSITIVE = ("acosh", "log", "pow", "rsqrt", "sqrt")
WITHIN_ONE = ("acos", "asin", "atanh")


def draw(op: str, tensor_type: TensorType, rng: np.random.Generator) -> Array:
    """Numbers that are apart from one another and from the corners of functions."""
    x = rng.permutation(tensor_type.size).reshape(tensor_type.shape) + rng.uniform(0.3, 0.7, tensor_type.shape)
    x = x / max(tensor_type.size, 1) * 4 - 2
    if op in POSITIVE:
        x = np.abs(x) + 1.2
    if op in WITHIN_ONE:
        x = x * 0.4
    return x.astype(dtypes.to_numpy(tensor_type.dtype))


def widened(op: str, case: Case) -> Case:
    """The case in float64, if the operator has that dtype: differences are exact to eight digits."""
    wide = replace(
        case,
        types=tuple(replace(t, dtype="float64") if t.dtype == "float32" else t for t in case.types),
        attrs={k: "float64" if v == "float32" and k in ("dtype", "out_dtype") else v for k, v in case.attrs.items()},
    )
    try:
        infer(op, wide.attrs, wide.types)
    except MicrocError:
        return case
    return wide


def graph_of(op: str, case: Case, rng: np.random.Generator) -> tuple[Graph, dict[str, Array], list[str]] | None:
    """A network of one node whose loss is a random weighting of all results; None if the case has no floats."""
    inputs = [f"x{k}" for k in range(len(case.types))]
    types = dict(zip(inputs, case.types, strict=True))
    if any(t.quant or t.size > 3000 for t in case.types) or not any(dtypes.is_float(t.dtype) for t in case.types):
        return None
    attrs = {**registry()[op].defaults, **case.attrs}
    results = infer(op, attrs, case.types)
    if not all(dtypes.is_float(t.dtype) and t.size for t in results):
        return None
    given = (*case.arrays, *[None] * len(case.types))
    arrays = {
        name: draw(op, t, rng) if array is None or dtypes.is_float(t.dtype) else array
        for (name, t), array in zip(types.items(), given, strict=False)
    }
    nodes = [Node(op, tuple(inputs), tuple(f"y{k}" for k in range(len(results))), attrs)]
    consts: dict[str, Array] = {}
    losses = []
    for k, t in enumerate(results):
        types[f"y{k}"], types[f"w{k}"], types[f"p{k}"] = t, t, t
        types[f"s{k}"] = TensorType((), t.dtype)
        consts[f"w{k}"] = rng.normal(size=t.shape).astype(dtypes.to_numpy(t.dtype))
        nodes.append(Node("mul", (f"y{k}", f"w{k}"), (f"p{k}",), registry()["mul"].defaults))
        axes: dict[str, Attr] = {"axes": tuple(range(len(t.shape))), "keepdims": False}
        whole: dict[str, Attr] = {**registry()["sum"].defaults, **axes}
        nodes.append(
            Node("sum", (f"p{k}",), (f"s{k}",), whole)
            if t.shape
            else Node("reshape", (f"p{k}",), (f"s{k}",), {"shape": ()})
        )
        losses.append(f"s{k}")
    total = losses[0]
    for k, other in enumerate(losses[1:]):
        types[f"total{k}"] = types[total]
        nodes.append(Node("add", (total, other), (f"total{k}",), registry()["add"].defaults))
        total = f"total{k}"
    graph = Graph("case", (), (total,), (), types, {**consts, **arrays}).with_nodes(nodes)
    return graph, arrays, [name for name in arrays if dtypes.is_float(types[name].dtype)]


def run(graph: Graph, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Run a network of constants, some of them replaced."""
    changed = replace(graph, consts={**graph.consts, **arrays})
    return ir.run(changed, {}, reference_node_function(changed))


def cases(op: str) -> Iterator[Case]:
    """Some cases of the operator, of different shapes and attributes."""
    seen = set()
    for case in registry()[op].cases():
        case = widened(op, case)
        key = (case.types, tuple(sorted((k, str(v)) for k, v in case.attrs.items() if k != "algorithm")))
        if key not in seen:
            seen.add(key)
            yield replace(case, attrs={**case.attrs, "algorithm": ""} if "algorithm" in case.attrs else case.attrs)


@pytest.mark.parametrize("op", DIFFERENTIABLE)
def test_gradients_are_those_of_differences(op: str) -> None:
    rng, tried = np.random.default_rng(7), 0
    for case in cases(op):
        if (made := graph_of(op, case, rng)) is None or tried == 12:
            continue
        graph, arrays, names = made
        (loss,) = graph.outputs
        try:
            trained = append_gradients(graph, loss, names)
        except UnsupportedError as error:
            assert "gradient" in error.what
            continue
        found = run(trained, arrays)
        wide = all(arrays[name].dtype == np.float64 for name in names)
        step = 1e-6 if wide else 2e-3
        for name in names:
            direction = rng.normal(size=arrays[name].shape)
            ends = [
                float(
                    run(graph, {**arrays, name: (arrays[name] + sign * step * direction).astype(arrays[name].dtype)})[
                        loss
                    ]
                )
                for sign in (1, -1)
            ]
            moved = float((found[gradient_name(name)] * direction).sum())
            scale = float(np.abs(found[gradient_name(name)] * direction).sum()) + 1.0
            assert abs((ends[0] - ends[1]) / (2 * step) - moved) <= (1e-5 if wide else 2e-2) * scale, (case, name)
        tried += 1
    assert tried, "no case has floats"
