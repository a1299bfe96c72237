"""TFLite Micro's CIRCULAR_BUFFER: the last rows of a stream, and what runs behind it only once in so many calls.

A buffer whose period is longer than one ends a call early until the period is over: what the operators behind it make, outputs
and state, stays as it was. So these operators become one side of a ``branch`` (:func:`gated`), whose other side hands on what
was. Until their first period is over, outputs hold real zero. Source: TFLite Micro ``circular_buffer.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from microc.frontend.tflite.application import Application
from microc.frontend.tflite.signal import number
from microc.frontend.tflite.spelling import Spelling, check_alike
from microc.frozen import frozen
from microc.graph.ir import Attr, Graph, Node, TensorType, fresh_name
from microc.ops.rounding import Rounding

_MOST = 1 << 20


def circular_buffer(application: Application) -> None:
    """CIRCULAR_BUFFER: rows (N, 1, W, C) behind those that a buffer (N, rows, W, C) holds; int8 in TFLite Micro."""
    data, target = application.moved(0), application.target()
    check_alike(application, [0])
    shape, kept = application.rank(data, 4), target.type.shape
    if len(kept) != 4 or shape[1] != 1 or (shape[0], *shape[2:]) != (kept[0], *kept[2:]):
        application.broken(f"rows of shape {shape} in a buffer of shape {kept}")
    if "cycles_max" not in application.operator.custom:
        application.refuse(
            "a buffer without cycles_max", "write the option: how many calls there are to one run behind it"
        )
    period = number(application, "cycles_max", 1, _MOST)
    name = application.builder.file.unique(f"{target.name}_rows")
    state = application.builder.define_state(name, target.type, None, application.where)
    rest: Mapping[str, Attr] = {"begin": (0, 1, 0, 0), "end": kept, "strides": (1,) * 4}
    parts = [application.emit("slice", (state,), rest), data] if kept[1] > 1 else [data]
    application.builder.updates[state] = application.result("concat", parts, {"axis": 1})
    if period > 1:
        _period(application, period)


def _period(application: Application, period: int) -> None:
    """Counts calls; what follows runs in every ``period``-th."""
    builder = application.builder
    count = builder.file.unique(f"{application.loc.name}_calls")
    builder.define_state(count, TensorType((), "int32"), np.array(0, np.int32), application.where)
    one, last, none = (application.new_constant("calls", np.array(n, np.int32)) for n in (1, period, 0))
    following = application.emit("add", (count, one), {})
    over = application.emit("equal", (following, last), {"rounding": Rounding.NONE})
    builder.updates[count] = application.emit("where", (over, none, following), {})
    builder.gates.append((len(builder.nodes), over))


def gated(graph: Graph, gates: Sequence[tuple[int, str]]) -> Graph:
    """The graph whose nodes from a place on run only where a condition is true, for every (place, condition)."""
    for place, condition in reversed(gates):
        if place < len(graph.nodes):
            graph = _gated(_with_last_outputs(graph, place), place, condition)
    return graph


def _with_last_outputs(graph: Graph, place: int) -> Graph:
    """The graph that keeps every output that is made behind ``place`` as state, too."""
    made = {name for node in graph.nodes[place:] for name in node.outputs}
    types, state, updates = dict(graph.types), dict(graph.state), dict(graph.updates)
    for name in graph.outputs:
        if name not in made or name in updates.values():
            continue
        last, kind = fresh_name(types, f"{name}_last"), types[name]
        zero = kind.quant.zero_point[0] if kind.quant else 0
        types[last], updates[last] = kind, name
        state[last] = np.full(kind.shape, zero, kind.dtype)
    return replace(graph, types=types, state=state, updates=updates)


@frozen
class _Held:
    """A value made behind a gate that is seen outside, and the state that holds what it was."""

    value: str
    state: str


def _gated(graph: Graph, place: int, condition: str) -> Graph:
    behind = graph.nodes[place:]
    made = {name for node in behind for name in node.outputs}
    held = {value: _Held(value, state) for state, value in graph.updates.items() if value in made}
    read = dict.fromkeys(name for node in behind for name in node.inputs if name and name not in made)
    fixed = [name for name in (*read, *(h.state for h in held.values())) if name not in graph.consts]
    fixed = list(dict.fromkeys(fixed))
    inside = replace(graph, name="period", inputs=tuple(fixed), outputs=tuple(held), nodes=(), state={}, updates={})
    same = [_copy(graph, entry) for entry in held.values()]
    otherwise = replace(inside, name="between", consts={}).with_nodes(same)
    attrs: Mapping[str, Attr] = {"then": inside.with_nodes(behind), "otherwise": otherwise}
    node = Node("branch", (condition, *fixed), tuple(held), attrs, behind[0].loc)
    return graph.with_nodes((*graph.nodes[:place], node))


def _copy(graph: Graph, held: _Held) -> Node:
    return Node("reshape", (held.state,), (held.value,), {"shape": graph.types[held.value].shape})


SPELLINGS: Mapping[str, Spelling] = {"CUSTOM:CIRCULAR_BUFFER": Spelling(circular_buffer, ("int8", "int16", "float32"))}
