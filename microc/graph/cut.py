# SPDX-License-Identifier: Apache-2.0
"""Extraction of the subgraph between named values, and conversion of inputs to constants, or to state that persists across
runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import UsageError, known_names_hint, similar_names_hint
from microc.graph.ir import Graph, Loc, Node, TensorType, new_value

# ---- Cutting: extraction of the subgraph that computes given outputs from given inputs.


def cut_graph(graph: Graph, inputs: Sequence[str] = (), outputs: Sequence[str] = ()) -> Graph:
    """Return the subgraph that computes the values ``outputs`` from the values ``inputs``, in these orders.

    If ``outputs`` is empty, the outputs of the graph are kept. If ``inputs`` is empty, the inputs of the graph on which
    the outputs depend are kept. State that the subgraph reads is kept, together with the nodes that compute its update.
    A state named in ``inputs`` becomes an input.

    Raises UsageError for an unknown name (the hint lists similar names), for the name of a constant, for an input on
    which the outputs do not depend, and if the outputs depend on an input of the graph that is not in ``inputs``."""
    for what, names in (("input", inputs), ("output", outputs)):
        for name in names:
            _check_value_name(graph, what, name)
        if len(set(names)) != len(names):
            raise UsageError(
                f"an {what} is named twice; got {', '.join(names)}, expected distinct names",
                where=graph.name,
                hint="name each tensor once",
            )
    both = sorted(set(inputs) & set(outputs))
    if both:
        raise UsageError(
            f"{both[0]!r} cannot be an input and an output at once",
            where=graph.name,
            hint="name a tensor before or after it as one of the two",
        )
    ends = tuple(outputs) or graph.outputs
    needed = _find_needed_values(graph, ends, frozenset(inputs))
    reached = tuple(name for name in graph.inputs if name in needed)
    if inputs:
        _check_dependence_on_inputs(graph, ends, inputs, reached, needed)
    state = {name: data for name, data in graph.state.items() if name in needed and name not in inputs}
    return replace(
        graph,
        inputs=tuple(inputs) or reached,
        outputs=ends,
        state=state,
        updates={name: graph.updates[name] for name in state},
    ).with_nodes(
        # A node may be kept because of some of its results although another result is an input now: drop the latter.
        replace(node, outputs=tuple("" if name in inputs else name for name in node.outputs))
        for node in graph.nodes
        if any(name in needed and name not in inputs for name in node.outputs if name)
    )


def _check_value_name(graph: Graph, role: str, name: str) -> None:
    """Raise UsageError unless ``name`` is a value of the graph, and not a constant.

    ``role``: "input" or "output", the intended use of the value, for the error."""
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


def _find_needed_values(graph: Graph, outputs: Iterable[str], inputs: frozenset[str]) -> set[str]:
    """Return the names of the values on which ``outputs`` depend, including ``outputs``. The search stops at
    ``inputs``."""
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


def _check_dependence_on_inputs(
    graph: Graph, outputs: Sequence[str], inputs: Sequence[str], reached_inputs: Sequence[str], needed_values: set[str]
) -> None:
    """Raise UsageError unless ``outputs`` depend on all of ``inputs``, and on no other input of the graph.

    ``reached_inputs``: inputs of the graph on which ``outputs`` depend; ``needed_values``: all values on which
    ``outputs`` depend."""
    idle = [name for name in inputs if name not in needed_values]
    if idle:
        raise UsageError(
            f"output {', '.join(map(repr, outputs))} does not depend on {idle[0]!r}",
            where=graph.name,
            hint="leave out this input, or name an output that depends on it",
        )
    missing = [name for name in reached_inputs if name not in inputs]
    if missing:
        raise UsageError(
            f"output {', '.join(map(repr, outputs))} also depends on the input {missing[0]!r}",
            where=graph.name,
            hint="name it as an input too, or name a tensor on every path from it to the output",
        )


# ---- Binding: an input becomes a constant, so that passes fold what depends on it alone.


def bind_inputs(graph: Graph, values: Mapping[str, Any]) -> Graph:
    """Return the graph with inputs converted to constants.

    ``values``: a number or nested tuples of numbers by the name of an input (:func:`make_bound_constant`). An output
    that is a bound input becomes a copy of the constant. Raises UsageError for an unknown input, for a value that does
    not fit its input, and if no input would be left."""
    check_bound_names(values, graph.inputs, graph.name)
    consts = {name: make_bound_constant(name, value, graph.types[name], graph.name) for name, value in values.items()}
    types, nodes, outputs = dict(graph.types), list(graph.nodes), list(graph.outputs)
    for position, name in enumerate(graph.outputs):
        if name in consts:
            outputs[position] = new_value(types, f"{name}_copy", graph.types[name])
            shape = {"shape": graph.types[name].shape}
            nodes.append(Node("reshape", (name,), (outputs[position],), shape, Loc(graph.name, -1, name)))
    return replace(
        graph,
        inputs=tuple(name for name in graph.inputs if name not in consts),
        outputs=tuple(outputs),
        types=types,
        consts={**graph.consts, **consts},
    ).with_nodes(nodes)


def check_bound_names(values: Mapping[str, Any], inputs: Sequence[str], where: str) -> None:
    """Raise UsageError unless each name in ``values`` is one of a network's ``inputs``, and another input is left."""
    for name in values:
        if name not in inputs:
            hint = known_names_hint(name, inputs, "inputs")
            raise UsageError(f"there is no input {name!r} to bind to a value", where=where, hint=hint)
    if values and set(inputs) <= set(values):
        raise UsageError(
            f"input values: got values of all {len(inputs)} inputs, expected an input without one",
            where=where,
            hint="leave out the value of an input that the application sets",
        )


def make_bound_constant(name: str, value: Any, input_type: TensorType, where: str) -> Array:
    """Return the constant that the input ``name`` of ``input_type`` is bound to.

    ``value``: a number, which fills the whole tensor, or nested tuples of numbers in the input's shape. Numbers of a
    quantised input are its stored integers. Numbers are rounded to a float dtype; an integer dtype must hold them
    exactly, and bool takes False, True, 0 and 1. Raises UsageError for a value that does not fit."""
    given = np.array(value, object)  # Python's numbers: float64 does not hold every int64
    expected = f"{input_type.dtype} of shape {input_type.shape}"
    if given.ndim and given.shape != input_type.shape:
        raise UsageError(
            f"value of input {name!r}: got shape {given.shape}, expected {expected}",
            where=where,
            hint="give one number for all elements, or a value in the input's shape",
        )
    wrong = next((number for number in given.reshape(-1) if not _is_representable(number, input_type.dtype)), None)
    if wrong is not None:
        raise UsageError(
            f"value of input {name!r}: got {wrong}, expected {expected}",
            where=where,
            hint=f"give numbers that {input_type.dtype} represents",
        )
    constant = given.astype(np.float64) if dtypes.is_float(input_type.dtype) else given
    return np.ascontiguousarray(np.broadcast_to(constant.astype(dtypes.to_numpy(input_type.dtype)), input_type.shape))


def _is_representable(number: float, dtype: str) -> bool:
    """Test whether an element of ``dtype`` can hold a number. Floats may round it, but not to infinity."""
    if dtypes.is_float(dtype):
        with np.errstate(over="ignore"):
            rounded = float(np.float64(number).astype(dtypes.to_numpy(dtype)))
        return math.isfinite(rounded) or not math.isfinite(number)
    low, high = dtypes.int_range(dtype) if dtypes.is_integer(dtype) else (0, 1)
    return low <= number <= high and number == int(number)


# ---- Conversion to state: an input that the caller would set to an output of the previous run becomes state of the graph.


def convert_inputs_to_state(graph: Graph, output_by_input: Mapping[str, str]) -> Graph:
    """Return the graph with pairs of an input and an output converted to state that persists across runs.

    ``output_by_input``: the name of each output by the name of its input. Each state has the input's name. It starts as
    real zero, and after each run its value is the output. Raises UsageError for an unknown input or output, for an
    output that occurs in two pairs, if shape, dtype or quantisation of a pair differ, and if no output would be left.
    """
    for name, output in output_by_input.items():
        for what, wanted, known in (("input", name, graph.inputs), ("output", output, graph.outputs)):
            if wanted not in known:
                hint = known_names_hint(wanted, known, f"{what}s")
                raise UsageError(f"there is no {what} {wanted!r} to keep as state", where=graph.name, hint=hint)
        given, made = graph.types[name], graph.types[output]
        if given != made:
            raise UsageError(
                f"the state {name!r} changes its type; got {_format_type(made)} from {output!r}, expected "
                f"{_format_type(given)}",
                where=graph.name,
                hint="fix the shapes with --input-shape so that the state keeps shape and dtype",
            )
    kept = tuple(name for name in graph.outputs if name not in output_by_input.values())
    twice = [output for output in output_by_input.values() if list(output_by_input.values()).count(output) > 1]
    if twice:
        raise UsageError(
            f"output {twice[0]!r} is given for two states, expected one",
            where=graph.name,
            hint="name another output for each state",
        )
    if not kept:
        raise UsageError(
            "no output would be left, because all outputs become states",
            where=graph.name,
            hint="leave one output out of the states",
        )
    return replace(
        graph,
        inputs=tuple(name for name in graph.inputs if name not in output_by_input),
        outputs=kept,
        state={**graph.state, **{name: _make_real_zeros(graph.types[name]) for name in output_by_input}},
        updates={**graph.updates, **output_by_input},
    )


def _make_real_zeros(kind: TensorType) -> Array:
    """Return an array of type ``kind`` whose elements represent real zero: the zero point if the type is quantised."""
    zero = kind.quant.zero_point[0] if kind.quant else 0
    return np.full(kind.shape, zero, dtypes.to_numpy(kind.dtype))


def _format_type(kind: TensorType) -> str:
    """Return the dtype and shape of a type as text, as in ``int8[1,4]``."""
    return f"{kind.dtype}[{','.join(map(str, kind.shape))}]"
