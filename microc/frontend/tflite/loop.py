"""Spelling of TFLite's WHILE.

How often it runs follows from what it carries that starts as a constant and changes by constants: counters. They are
followed here, turn by turn. A counter that is the number of the turn goes; a list that gets its t-th element in turn t becomes
what the loop stacks; what a turn hands on unchanged is not carried. Where data end a loop, it is guarded by its condition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from microc.dtypes import Array
from microc.errors import MicrocError
from microc.frontend.tflite.application import Application
from microc.frontend.tflite.operands import Target, finish, handles, inline, operands, results_of, touched
from microc.frozen import frozen
from microc.graph.ir import Attr, Graph, Node, TensorType, fresh_name, new_value
from microc.ops import registry
from microc.ops.control import UNBOUNDED

_MOST_TURNS = 1 << 14
_FOLLOWED = 64
"""Largest tensor, in elements, that is followed through the turns."""


def loop(application: Application) -> None:
    """WHILE: a condition and a body, both subgraphs of what is carried."""
    fields = application.operator.options.fields("WhileOptions", required=True)
    keys = handles(application, 0)
    sides = [application.builder.subgraph(fields.integer(f"{f}SubgraphIndex", 1), keys) for f in ("Cond", "Body")]
    if sides[0].assigned or sides[1].handed != keys:
        what = "a condition that assigns a variable" if sides[0].assigned else "a handle that changes from turn to turn"
        application.refuse(f"a loop with {what}", "let the body assign it, to the same variable in every turn")
    variables = touched(application, sides)
    condition, body = sides[0].aligned(variables, ()), sides[1].aligned(variables, tuple(variables))
    given, targets = operands(application, keys, variables, 0), results_of(application, variables)
    if not len(body.inputs) == len(body.outputs) == len(condition.inputs) == len(given) == len(targets):
        application.broken("subgraphs with other values than the loop carries")
    starts = {k: application.builder.consts[name] for k, name in enumerate(given) if name in application.builder.consts}
    turns = _follow(condition, body, starts)
    if turns is None:
        _emit_guarded(application, condition, body, given, targets)
    else:
        _emit(application, _Loop(body, len(turns), _roles(body, turns)), given, targets)
    ends = zip(variables, (target.name for target in targets[len(targets) - len(variables) :]), strict=True)
    finish(application, keys, {key: name for key, name in ends if key in sides[1].assigned})


# ---------------------------------------------------------------- following counters

Known = Mapping[str, Array]


def _follow(condition: Graph, body: Graph, starts: Mapping[int, Array]) -> list[Known] | None:
    """What is known of the values of every turn; None where data end the loop, or too many turns."""
    known = {k: array for k, array in starts.items() if array.size <= _FOLLOWED}
    turns: list[Known] = []
    while True:
        tested = _partial(condition, {condition.inputs[k]: array for k, array in known.items()})
        go = tested.get(condition.outputs[0])
        if go is None or len(turns) > _MOST_TURNS:
            return None
        if not go.reshape(-1)[:1].any():
            return turns
        made = _partial(body, {body.inputs[k]: array for k, array in known.items()})
        turns.append(made)
        known = {k: made[name] for k, name in enumerate(body.outputs) if name in made}


def _partial(graph: Graph, given: Known) -> Known:
    """The values of a graph that follow from some of its inputs, small ones that are not quantised."""
    known: dict[str, Array] = {**{n: a for n, a in graph.consts.items() if a.size <= _FOLLOWED}, **given}
    for node in graph.nodes:
        inputs = [name for name in node.inputs if name]
        kinds = [graph.types[name] for name in (*inputs, *node.outputs)]
        if any(name not in known for name in inputs) or any(k.quant or k.size > _FOLLOWED for k in kinds):
            continue
        definition = registry.get(node.op)
        with np.errstate(all="ignore"):
            try:
                made = definition.reference({**definition.defaults, **node.attrs}, [known[name] for name in inputs])
            except MicrocError:
                continue
        known.update(zip(node.outputs, made, strict=True))
    return known


# ---------------------------------------------------------------- what becomes of what is carried


@frozen
class _Loop:
    """A body, how often it runs, and the role of everything carried: ``carried``, ``fixed``, ``counter`` or ``stacked``."""

    body: Graph
    count: int
    roles: tuple[str, ...]

    def having(self, role: str) -> list[int]:
        return [k for k, each in enumerate(self.roles) if each == role]


def _roles(body: Graph, turns: Sequence[Known]) -> tuple[str, ...]:
    makers, readers = body.producer(), body.consumers()
    roles = []
    for own, made in zip(body.inputs, body.outputs, strict=True):
        node = makers[made]
        if node.op == "reshape" and node.inputs[0] == own and body.types[own] == body.types[made]:
            roles.append("fixed")
        elif all(_is_turn(turn.get(own), number) for number, turn in enumerate(turns)) and turns:
            roles.append("counter")
        elif _is_stacked(body, node, own, turns) and len(readers.get(own, ())) == 1:
            roles.append("stacked")
        else:
            roles.append("carried")
    return tuple(roles)


def _is_turn(value: Array | None, number: int) -> bool:
    return value is not None and value.shape == () and value.dtype == np.int32 and int(value) == number


def _is_stacked(body: Graph, node: Node, own: str, turns: Sequence[Known]) -> bool:
    """Whether element t of a list of as many elements as turns is replaced in turn t."""
    if node.op != "dynamic_update_slice" or node.inputs[0] != own:
        return False
    shape, row = body.types[own].shape, body.types[node.inputs[1]].shape
    if shape[:1] != (len(turns),) or row != (1, *shape[1:]):
        return False
    starts = [turn.get(node.inputs[2]) for turn in turns]
    return all(start is not None and int(start[0]) == number for number, start in enumerate(starts))


# ---------------------------------------------------------------- the node


def _emit(application: Application, made: _Loop, given: Sequence[str], targets: Sequence[Target]) -> None:
    """The ``loop`` node and the operator's outputs."""
    builder, body = application.builder, _turn(made)
    carried, fixed, stacked = (made.having(role) for role in ("carried", "fixed", "stacked"))
    attrs: Mapping[str, Attr] = {"body": body, "count": made.count, "carried": len(carried), "guarded": False}
    inputs = [given[k] for k in (*carried, *fixed)]
    rows = {k: builder.file.unique(f"{targets[k].name}_rows") for k in stacked}
    if carried or stacked:
        names = (*(targets[k].name for k in carried), *rows.values())
        likes = [targets[k].type for k in (*carried, *stacked)]
        application.append("loop", inputs, attrs, names, likes)
    for k, name in rows.items():
        _hand_on(application, name, made.body.types[made.body.inputs[k]].shape, targets[k])
    for k in fixed:
        _hand_on(application, given[k], application.type(given[k]).shape, targets[k])
    for k in made.having("counter"):
        builder.constant(targets[k].name, np.array(made.count, np.int32))


def _hand_on(application: Application, value: str, shape: tuple[int, ...], target: Target) -> None:
    """A result that is a value under another shape."""
    if target.position >= 0:
        application.result_reshape(value, shape, target.position)
    else:
        application.append("reshape", (value,), {"shape": shape}, (target.name,), (target.type,))


def _emit_guarded(
    application: Application, condition: Graph, body: Graph, given: Sequence[str], targets: Sequence[Target]
) -> None:
    """A loop that its condition ends; it is computed once before, and then at the end of every turn."""
    start = dict(zip(condition.inputs, given, strict=True))
    inline(application, condition, start)
    flag = application.reshaped(start[condition.outputs[0]], ())
    fixed = [k for k, role in enumerate(_roles(body, ())) if role == "fixed"]
    carried = [k for k in range(len(given)) if k not in fixed]
    application.append(
        "loop",
        [flag, *(given[k] for k in (*carried, *fixed))],
        {
            "body": _going(condition, body, carried, fixed),
            "count": UNBOUNDED,
            "carried": 1 + len(carried),
            "guarded": True,
        },
        [application.builder.file.unique(f"{application.loc.name}_ended"), *(targets[k].name for k in carried)],
        [TensorType((), "bool"), *(targets[k].type for k in carried)],
    )
    for k in fixed:
        _hand_on(application, given[k], application.type(given[k]).shape, targets[k])


def _going(condition: Graph, body: Graph, carried: Sequence[int], fixed: Sequence[int]) -> Graph:
    """The body as ``loop`` wants it, followed by the condition on what it makes: whether there is a next turn."""
    types = dict(body.types)
    own = dict(zip(condition.inputs, body.outputs, strict=True))

    for name, kind in condition.types.items():
        if name not in own:
            own[name] = new_value(types, name, kind)
    turn, flag = new_value(types, "turn", TensorType((), "int32")), new_value(types, "flag", TensorType((), "bool"))
    nodes = [
        replace(n, inputs=tuple(own.get(i, i) for i in n.inputs), outputs=tuple(own.get(o, o) for o in n.outputs))
        for n in condition.nodes
    ]
    go = new_value(types, "go", TensorType((), "bool"))
    last = Node("reshape", (own[condition.outputs[0]],), (go,), {"shape": ()})
    inputs = (turn, flag, *(body.inputs[k] for k in (*carried, *fixed)))
    outputs = (go, *(body.outputs[k] for k in carried))
    consts = {**body.consts, **{own[name]: data for name, data in condition.consts.items()}}
    needed = _needed([*body.nodes, *nodes, last], outputs)
    return Graph(body.name, inputs, outputs, (), types, consts).with_nodes(needed)


def _turn(made: _Loop) -> Graph:
    """The body as ``loop`` wants it: the turn's number, the carried, the fixed; the next carried, a row of every list."""
    body, makers = made.body, made.body.producer()
    turn = fresh_name(body.types, "turn")
    carried, fixed, stacked = (made.having(role) for role in ("carried", "fixed", "stacked"))
    renamed = {body.inputs[k]: turn for k in made.having("counter")}
    types = {**body.types, turn: TensorType((), "int32")}
    nodes = [replace(node, inputs=tuple(renamed.get(name, name) for name in node.inputs)) for node in body.nodes]
    rows = []
    for k in stacked:
        update = makers[body.outputs[k]]
        row = new_value(types, "row", types[update.inputs[1]])
        nodes.append(Node("reshape", (update.inputs[1],), (row,), {"shape": types[row].shape}, update.loc))
        rows.append(row)
    lists = {makers[body.outputs[k]].outputs[0] for k in stacked}
    inputs = (turn, *(body.inputs[k] for k in (*carried, *fixed)))
    outputs = (*(body.outputs[k] for k in carried), *rows)
    kept = [node for node in nodes if node.outputs[0] not in lists]
    known = {name for node in kept for name in (*node.inputs, *node.outputs)} | {*inputs, *outputs}
    types = {name: kind for name, kind in types.items() if name in known}
    return Graph(body.name, inputs, outputs, (), types, body.consts).with_nodes(_needed(kept, outputs))


def _needed(nodes: Sequence[Node], outputs: Sequence[str]) -> list[Node]:
    """The nodes that the outputs depend on."""
    wanted, kept = set(outputs), list[Node]()
    for node in reversed(nodes):
        if wanted & set(node.outputs):
            wanted.update(node.inputs)
            kept.append(node)
    return kept[::-1]
