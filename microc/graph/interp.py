# SPDX-License-Identifier: Apache-2.0
"""Interpreter of graphs: executes the operators one by one on numpy arrays.

With the operators defined in ``ops/meaning.py``, it is the reference that a compiled network must match. The graph can
be run after every pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from microc.base.dtypes import Array, to_numpy
from microc.errors import InternalError, UsageError
from microc.graph.ir import Graph, Node, TensorType

Apply = Callable[[Node, Sequence[Array]], Sequence[Array]]


def run(
    graph: Graph, inputs: Mapping[str, Array], apply: Apply, state: Mapping[str, Array] | None = None
) -> dict[str, Array]:
    """Run a graph on arrays; return the arrays of all values by name, constants and state included.

    ``apply(node, arrays)`` computes the results of one node; ``arrays`` are the operands that are present, in order.
    ``state``: contents of the state before this run, by default the initial contents. The contents after this run are
    the values named in ``graph.updates``.

    Raises UsageError if inputs or state do not fit the graph, and InternalError if a result does not have its type."""
    state = graph.state if state is None else state
    _check_arrays("input", graph, graph.inputs, inputs)
    _check_arrays("state", graph, tuple(graph.state), state)
    values: dict[str, Array] = {**graph.consts, **inputs, **state}
    for node in graph.nodes:
        results = apply(node, [values[name] for name in node.inputs if name])
        if len(results) != len(node.outputs):
            raise InternalError(
                f"{node.op} gave a wrong number of results; got {len(results)}, expected {len(node.outputs)}",
                where=str(node.loc),
            )
        for name, array in zip(node.outputs, results, strict=True):
            if not name:
                continue
            if not _has_type(graph.types[name], array):
                raise InternalError(
                    f"{node.op} gave a wrong type for {name!r}; got {_format_array_type(array)}, "
                    f"expected {graph.types[name].dtype}{list(graph.types[name].shape)}",
                    where=str(node.loc),
                )
            values[name] = array
    return values


def _check_arrays(role: str, graph: Graph, names: tuple[str, ...], arrays: Mapping[str, Array]) -> None:
    """Raise UsageError unless ``arrays`` has exactly the values ``names``, with the shapes and dtypes of the graph.

    ``role``: "input" or "state", for the error."""
    if set(arrays) != set(names):
        raise UsageError(
            f"wrong names of {role}s; got {', '.join(sorted(arrays)) or 'none'}, expected {', '.join(sorted(names))}"
        )
    for name in names:
        kind = graph.types[name]
        if not _has_type(kind, arrays[name]):
            raise UsageError(
                f"{role} {name!r} has a wrong type; got {_format_array_type(arrays[name])}, expected "
                f"{kind.dtype}{list(kind.shape)}"
            )


def _has_type(kind: TensorType, array: Array) -> bool:
    """Test whether an array has the shape and dtype of a type."""
    return array.shape == kind.shape and array.dtype == to_numpy(kind.dtype)


def _format_array_type(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)}"
