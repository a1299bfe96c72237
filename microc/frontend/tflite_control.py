"""Spellings of TFLite's operators that hold subgraphs: IF, WHILE, STABLEHLO_COMPOSITE.

How often a WHILE runs follows from what it carries that starts as a constant and changes by constants: counters. They are
followed here, turn by turn. A counter that is the number of the turn goes; a list that gets its t-th element in turn t becomes
what the loop stacks; what a turn hands on unchanged is not carried. Where data end a loop, it is guarded by its condition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from microc.dtypes import Array
from microc.errors import MicrocError
from microc.frontend.tflite_application import Application
from microc.frontend.tflite_spelling import Spelling
from microc.graph.ir import Attr, Graph, Node, TensorType, fresh_name
from microc.ops import registry
from microc.ops.control import UNBOUNDED

_MOST_TURNS = 1 << 14
_COMPOSITE = ("StableHLOCompositeOptions", "DecompositionSubgraphIndex")
_FOLLOWED = 64
"""Largest tensor, in elements, that is followed through the turns."""


def branch(application: Application) -> None:
    """IF: one of two subgraphs, by a computed condition."""
    fields = application.operator.options.fields("IfOptions", required=True)
    inside = {
        name: application.builder.subgraph(fields.integer(f"{field}SubgraphIndex", 1))
        for name, field in (("then", "Then"), ("otherwise", "Else"))
    }
    inputs = [application.value(position) for position in range(len(application.operator.inputs))]
    application.results("branch", inputs, inside)


def loop(application: Application) -> None:
    """WHILE: a condition and a body, both subgraphs of what is carried."""
    fields = application.operator.options.fields("WhileOptions", required=True)
    condition = application.builder.subgraph(fields.integer("CondSubgraphIndex", 1))
    body = application.builder.subgraph(fields.integer("BodySubgraphIndex", 1))
    given = [application.value(position) for position in range(len(application.operator.inputs))]
    count = len(given)
    if not len(body.inputs) == len(body.outputs) == len(condition.inputs) == count == len(application.operator.outputs):
        application.broken("subgraphs with other values than the loop carries")
    starts = {k: application.builder.consts[name] for k, name in enumerate(given) if name in application.builder.consts}
    turns = _follow(condition, body, starts)
    if turns is None:
        _emit_guarded(application, condition, body, given)
        return
    _emit(application, _Loop(body, len(turns), _roles(body, turns)), given)


def composite(application: Application) -> None:
    """STABLEHLO_COMPOSITE and CALL: the operators that it stands for, in its place."""
    table, field = ("CallOptions", "Subgraph") if application.operator.code == "CALL" else _COMPOSITE
    fields = application.operator.options.fields(table, required=True)
    inside = application.builder.subgraph(fields.integer(field, 1))
    given = [application.value(position) for position in range(len(application.operator.inputs))]
    targets = [application.target(position) for position in range(len(application.operator.outputs))]
    kinds = [[application.type(name) for name in given], [target.type for target in targets]]
    if any(
        [(inside.types[name].shape, inside.types[name].dtype) for name in names] != [(k.shape, k.dtype) for k in wanted]
        for names, wanted in zip((inside.inputs, inside.outputs), kinds, strict=True)
    ):
        application.broken("a decomposition with other inputs or outputs")
    _inline(
        application,
        inside,
        dict(zip((*inside.inputs, *inside.outputs), (*given, *(t.name for t in targets)), strict=True)),
    )


def _inline(application: Application, inside: Graph, names: dict[str, str]) -> None:
    """The nodes of a graph in the place of the operator; ``names``: what some of its values are called here, then all."""
    builder, unique = application.builder, application.builder.file.unique
    for name, data in inside.consts.items():
        names[name] = builder.constant(unique(f"{application.loc.name}_{name}"), data, inside.types[name].quant)
    for node in inside.nodes:
        for name in node.outputs:
            if name not in names:
                names[name] = unique(f"{application.loc.name}_{name}")
        inputs = [names[name] if name else "" for name in node.inputs]
        likes = [inside.types[name] for name in node.outputs]
        application.append(node.op, inputs, node.attrs, [names[name] for name in node.outputs], likes)


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


@dataclass(frozen=True, slots=True)
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


def _emit(application: Application, made: _Loop, given: Sequence[str]) -> None:
    """The ``loop`` node and the operator's outputs."""
    builder, body = application.builder, _turn(made)
    carried, fixed, stacked = (made.having(role) for role in ("carried", "fixed", "stacked"))
    attrs: Mapping[str, Attr] = {"body": body, "count": made.count, "carried": len(carried), "guarded": False}
    inputs = [given[k] for k in (*carried, *fixed)]
    rows = {k: builder.file.unique(f"{application.target(k).name}_rows") for k in stacked}
    if carried or stacked:
        names = (*(application.target(k).name for k in carried), *rows.values())
        likes = [application.target(k).type for k in (*carried, *stacked)]
        application.append("loop", inputs, attrs, names, likes)
    for k, name in rows.items():
        application.result_reshape(name, made.body.types[made.body.inputs[k]].shape, k)
    for k in fixed:
        application.result_reshape(given[k], application.type(given[k]).shape, k)
    for k in made.having("counter"):
        builder.constant(application.target(k).name, np.array(made.count, np.int32))


def _emit_guarded(application: Application, condition: Graph, body: Graph, given: Sequence[str]) -> None:
    """A loop that its condition ends; it is computed once before, and then at the end of every turn."""
    start = dict(zip(condition.inputs, given, strict=True))
    _inline(application, condition, start)
    flag = application.reshaped(start[condition.outputs[0]], ())
    fixed = [k for k, role in enumerate(_roles(body, ())) if role == "fixed"]
    carried = [k for k in range(len(given)) if k not in fixed]
    names = [application.target(k).name for k in carried]
    application.append(
        "loop",
        [flag, *(given[k] for k in (*carried, *fixed))],
        {
            "body": _going(condition, body, carried, fixed),
            "count": UNBOUNDED,
            "carried": 1 + len(carried),
            "guarded": True,
        },
        [application.builder.file.unique(f"{application.loc.name}_ended"), *names],
        [TensorType((), "bool"), *(application.target(k).type for k in carried)],
    )
    for k in fixed:
        application.result_reshape(given[k], application.type(given[k]).shape, k)


def _going(condition: Graph, body: Graph, carried: Sequence[int], fixed: Sequence[int]) -> Graph:
    """The body as ``loop`` wants it, followed by the condition on what it makes: whether there is a next turn."""
    types = dict(body.types)
    own = dict(zip(condition.inputs, body.outputs, strict=True))

    def named(stem: str, kind: TensorType) -> str:
        name = fresh_name(types, stem)
        types[name] = kind
        return name

    for name, kind in condition.types.items():
        if name not in own:
            own[name] = named(name, kind)
    turn, flag = named("turn", TensorType((), "int32")), named("flag", TensorType((), "bool"))
    nodes = [
        replace(n, inputs=tuple(own.get(i, i) for i in n.inputs), outputs=tuple(own.get(o, o) for o in n.outputs))
        for n in condition.nodes
    ]
    go = named("go", TensorType((), "bool"))
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
        row, update = fresh_name(types, "row"), makers[body.outputs[k]]
        types[row] = types[update.inputs[1]]
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


SPELLINGS: Mapping[str, Spelling] = {
    "CALL": Spelling(composite, ()),
    "IF": Spelling(branch, ()),
    "STABLEHLO_COMPOSITE": Spelling(composite, ()),
    "WHILE": Spelling(loop, ()),
}
