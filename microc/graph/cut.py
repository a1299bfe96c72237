"""The part of a graph between named values: what computes these outputs from those inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from microc.errors import UsageError, nearest
from microc.graph.ir import Graph, Node


def cut(graph: Graph, inputs: Sequence[str] = (), outputs: Sequence[str] = ()) -> Graph:
    """The graph that computes the values ``outputs`` from the values ``inputs``, in these orders.

    Without ``outputs`` they stay as they are; without ``inputs`` those of the graph's inputs stay that are needed. State that
    the part reads stays with all that its update takes; a state named in ``inputs`` becomes an input.

    Raises UsageError for a name that no value has (the hint lists near ones), for a constant, for an input that the outputs
    do not depend on, and where they depend on an input of the graph that is not among ``inputs``.
    """
    for what, names in (("input", inputs), ("output", outputs)):
        for name in names:
            _check(graph, what, name)
        if len(set(names)) != len(names):
            raise UsageError(f"an {what} is named twice: {', '.join(names)}", where=graph.name)
    both = sorted(set(inputs) & set(outputs))
    if both:
        raise UsageError(f"{both[0]!r} cannot be an input and an output at once", where=graph.name)
    ends = tuple(outputs) or graph.outputs
    needed = _needed(graph, ends, frozenset(inputs))
    reached = tuple(name for name in graph.inputs if name in needed)
    if inputs:
        _check_inputs(graph, ends, inputs, reached, needed)
    state = {name: data for name, data in graph.state.items() if name in needed and name not in inputs}
    return replace(
        graph,
        inputs=tuple(inputs) or reached,
        outputs=ends,
        state=state,
        updates={name: graph.updates[name] for name in state},
    ).with_nodes(_without(node, inputs) for node in graph.nodes if _makes(node, needed, inputs))


def _check(graph: Graph, what: str, name: str) -> None:
    if name not in graph.types:
        raise UsageError(
            f"there is no tensor {name!r}",
            where=graph.name,
            hint=nearest(name, graph.types) or "microc check MODEL --tensors lists all tensors",
        )
    if name in graph.consts:
        raise UsageError(f"{name!r} is a constant and cannot be an {what}", where=graph.name)


def _needed(graph: Graph, ends: Iterable[str], inputs: frozenset[str]) -> set[str]:
    """The values that the ends depend on (themselves too), not looking behind the inputs."""
    producer = graph.producer()
    found: set[str] = set()
    waiting = list(ends)
    while waiting:
        name = waiting.pop()
        if not name or name in found:
            continue
        found.add(name)
        if name in inputs:
            continue
        if name in producer:
            waiting.extend(producer[name].inputs)
        elif name in graph.updates:
            waiting.append(graph.updates[name])
    return found


def _check_inputs(
    graph: Graph, ends: Sequence[str], inputs: Sequence[str], reached: Sequence[str], needed: set[str]
) -> None:
    idle = [name for name in inputs if name not in needed]
    if idle:
        raise UsageError(f"{', '.join(map(repr, ends))} does not depend on {idle[0]!r}", where=graph.name)
    missing = [name for name in reached if name not in inputs]
    if missing:
        raise UsageError(
            f"{', '.join(map(repr, ends))} also depends on the input {missing[0]!r}",
            where=graph.name,
            hint="name it among the inputs, or cut behind it on every way",
        )


def _makes(node: Node, needed: set[str], inputs: Sequence[str]) -> bool:
    return any(name in needed and name not in inputs for name in node.outputs if name)


def _without(node: Node, inputs: Sequence[str]) -> Node:
    """A node of several results, one of which is an input now."""
    return replace(node, outputs=tuple("" if name in inputs else name for name in node.outputs))
