"""Extraction of the part of a graph between named values, and conversion of inputs to state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import UsageError, known_names_hint, similar_names_hint
from microc.graph.ir import Graph, TensorType

# ---- Cutting: the part of a graph that computes given outputs from given inputs.


def cut_graph(graph: Graph, inputs: Sequence[str] = (), outputs: Sequence[str] = ()) -> Graph:
    """Return the part of a graph that computes the values ``outputs`` from the values ``inputs``, in these orders.

    Without ``outputs``, those of the graph remain; without ``inputs``, those of the graph's inputs remain that are
    needed. State that the part reads remains with everything its update depends on; a state named in ``inputs`` becomes
    an input.

    UsageError for an unknown name (the hint lists similar ones), for a constant, for an input that the outputs do not
    depend on, and if they depend on an input of the graph that is not in ``inputs``."""
    for what, names in (("input", inputs), ("output", outputs)):
        for name in names:
            _check_value_name(graph, what, name)
        if len(set(names)) != len(names):
            raise UsageError(
                f"an {what} is named twice; got {', '.join(names)}", where=graph.name, hint="name each tensor once"
            )
    both = sorted(set(inputs) & set(outputs))
    if both:
        raise UsageError(
            f"{both[0]!r} cannot be an input and an output at once",
            where=graph.name,
            hint="name another tensor behind or before it",
        )
    ends = tuple(outputs) or graph.outputs
    needed = _find_needed_nodes(graph, ends, frozenset(inputs))
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
    ).with_nodes(
        # A node that stays because of its other results no longer has those that are inputs now.
        replace(node, outputs=tuple("" if name in inputs else name for name in node.outputs))
        for node in graph.nodes
        if any(name in needed and name not in inputs for name in node.outputs if name)
    )


def _check_value_name(graph: Graph, role: str, name: str) -> None:
    """Raise UsageError unless ``name`` is a value of the graph and no constant; ``role``: "input" or "output"."""
    if name not in graph.types:
        raise UsageError(
            f"there is no tensor {name!r}",
            where=graph.name,
            hint=similar_names_hint(name, graph.types) or "list all tensors: microc check MODEL --tensors",
        )
    if name in graph.consts:
        raise UsageError(
            f"{name!r} is a constant and cannot be an {role}",
            where=graph.name,
            hint="name a tensor that is computed when the network runs",
        )


def _find_needed_nodes(graph: Graph, outputs: Iterable[str], inputs: frozenset[str]) -> set[str]:
    """Return the values on which ``outputs`` depend, these included; the search stops at ``inputs``."""
    producer = graph.producer()
    found: set[str] = set()
    waiting = list(outputs)
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
    graph: Graph, outputs: Sequence[str], inputs: Sequence[str], reached_inputs: Sequence[str], needed_values: set[str]
) -> None:
    """Raise UsageError unless ``inputs`` are exactly the inputs on which ``outputs`` depend."""
    idle = [name for name in inputs if name not in needed_values]
    if idle:
        raise UsageError(
            f"{', '.join(map(repr, outputs))} does not depend on {idle[0]!r}",
            where=graph.name,
            hint="leave it out of the inputs, or name an output behind it",
        )
    missing = [name for name in reached_inputs if name not in inputs]
    if missing:
        raise UsageError(
            f"{', '.join(map(repr, outputs))} also depends on the input {missing[0]!r}",
            where=graph.name,
            hint="name it among the inputs, or cut behind it on every path",
        )


# ---- Carrying: inputs that are fed with an output of the previous run become state of the graph.


def convert_to_state(graph: Graph, pairs: Mapping[str, str]) -> Graph:
    """Return the graph with the inputs and outputs of ``pairs`` (input -> output) converted to state.

    Each state has the input's name, starts as real zero and becomes the output. UsageError for a name that is no input
    or output, for an output that two inputs name, if shape, dtype or quantisation differ, and if no output would be
    left.
    """
    for name, output in pairs.items():
        for what, wanted, known in (("input", name, graph.inputs), ("output", output, graph.outputs)):
            if wanted not in known:
                hint = known_names_hint(wanted, known, f"{what}s")
                raise UsageError(f"there is no {what} {wanted!r} to keep as state", where=graph.name, hint=hint)
        given, made = graph.types[name], graph.types[output]
        if given != made:
            raise UsageError(
                f"the state {name!r} changes its type; got {_type_text(made)} from {output!r}, expected "
                f"{_type_text(given)}",
                where=graph.name,
                hint="bind the shapes with --input-shape so that the state keeps shape and dtype",
            )
    kept = tuple(name for name in graph.outputs if name not in pairs.values())
    twice = [output for output in pairs.values() if list(pairs.values()).count(output) > 1]
    if twice:
        raise UsageError(
            f"{twice[0]!r} would become two states", where=graph.name, hint="name another output for each state"
        )
    if not kept:
        raise UsageError(
            "no output would be left: all become states", where=graph.name, hint="keep one that is no state"
        )
    return replace(
        graph,
        inputs=tuple(name for name in graph.inputs if name not in pairs),
        outputs=kept,
        state={**graph.state, **{name: _real_zeros(graph.types[name]) for name in pairs}},
        updates={**graph.updates, **pairs},
    )


def _real_zeros(kind: TensorType) -> Array:
    """Return an array of a type that represents zeros: zero points if it is quantised."""
    zero = kind.quant.zero_point[0] if kind.quant else 0
    return np.full(kind.shape, zero, dtypes.to_numpy(kind.dtype))


def _type_text(kind: TensorType) -> str:
    """Return the text of a type: dtype and shape."""
    return f"{kind.dtype}[{','.join(map(str, kind.shape))}]"
