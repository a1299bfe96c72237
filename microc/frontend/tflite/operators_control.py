"""TFLite control flow, subgraphs and resource variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import MicrocError
from microc.frontend.tflite.context import MOVABLE, Application, Inside, Spelling
from microc.frontend.tflite.file import Operator, TfliteFile
from microc.graph.ir import Attr, Graph, Node, TensorType, fresh_name, new_value
from microc.ops import registry
from microc.ops.control import UNBOUNDED

# ---- Spellings of TFLite's resource variables: they become state of the graph, read at the start of a call.
#
# The first READ_VARIABLE of a variable is its state value; ASSIGN_VARIABLE gives the next contents, which later reads of
# the same call see. Inside of control flow they are values that come in and go out (:mod:`microc.frontend.tflite.context`).
# CALL_ONCE runs a subgraph before the first call: only assignments of constants, which are the initial contents. A variable
# that nobody initialises starts at real zero, as in TFLM.


def _key(operator: Operator) -> str:
    fields = operator.options.fields("VarHandleOptions", required=True)
    return f"{fields.text('Container')}/{fields.text('SharedName')}"


def var_handle(application: Application) -> None:
    """VAR_HANDLE: a tensor that stands for the variable of a name."""
    application.builder.variables.handles[application.target().index] = _key(application.operator)


def read_variable(application: Application) -> None:
    """READ_VARIABLE: what the variable holds at this point of the call."""
    target, key = application.target(), _variable(application)
    value = held(application, key, target.type, target.name)
    if value != target.name:
        application.result_reshape(value, application.type(value).shape)


def assign_variable(application: Application) -> None:
    """ASSIGN_VARIABLE: what the variable holds from here on."""
    assign(application, _variable(application), application.value(1))


def held(application: Application, key: str, kind: TensorType, name: str = "") -> str:
    """What a variable of this type holds; ``name`` is what it is called if it is asked for the first time."""
    builder, variables = application.builder, application.builder.variables
    if key not in variables.current:
        initial = variables.initial.get(key)
        if initial is not None and (initial.shape, str(initial.dtype)) != (kind.shape, kind.dtype):
            application.broken(f"the variable starts as {initial.dtype} {initial.shape}, but is read otherwise")
        name = name or builder.file.unique(f"{application.loc.name}_variable")
        if builder.inside:
            builder.define(name, kind, application.where)
        else:
            builder.define_state(name, kind, initial, application.where)
        variables.current[key] = variables.states[key] = name
    return variables.current[key]


def assign(application: Application, key: str, value: str) -> None:
    """A variable holds a value from here on."""
    builder, variables = application.builder, application.builder.variables
    state = variables.states.get(key)
    if state is not None:
        kind, before = application.type(value), application.type(state)
        if (kind.shape, kind.dtype) != (before.shape, before.dtype):
            application.broken(f"{kind.dtype} {kind.shape} assigned to a variable of {before.dtype} {before.shape}")
        if not builder.is_computed(value):
            value = application.emit("reshape", (value,), {"shape": kind.shape})
        if not builder.inside:
            builder.updates[state] = value
    variables.current[key] = value
    variables.assigned[key] = None


def call_once(application: Application) -> None:
    """CALL_ONCE: the initial contents of variables, from a subgraph of VAR_HANDLE and ASSIGN_VARIABLE."""
    index = application.operator.options.fields("CallOnceOptions", required=True).integer("InitSubgraphIndex", 1)
    file = application.builder.file.subgraph(index)
    handles: dict[int, str] = {}
    for operator in (file.operator(i) for i in range(file.operator_count)):
        if operator.code == "VAR_HANDLE" and len(operator.outputs) == 1:
            handles[operator.outputs[0]] = _key(operator)
        elif operator.code == "ASSIGN_VARIABLE" and len(operator.inputs) == 2:
            _initialise(application, file, handles, operator.inputs)
        else:
            application.refuse(
                f"{operator.code} in the subgraph that initialises variables",
                "variables start as constants: assign these there",
            )


def _initialise(
    application: Application, file: TfliteFile, handles: Mapping[int, str], inputs: tuple[int, ...]
) -> None:
    key, index = handles.get(inputs[0]), inputs[1]
    if key is None or index < 0:
        application.broken("an assignment to no variable in the subgraph that initialises variables")
    tensor = file.tensor(index)
    if not tensor.constant:
        application.refuse(f"{tensor.name!r} is not a constant", "variables start as constants: assign these there")
    application.builder.variables.initial[key] = file.array(tensor)


def _variable(application: Application) -> str:
    """The variable that input 0 stands for."""
    index = application.source(0).index
    if index not in application.builder.variables.handles:
        application.broken(f"{application.source(0).name!r} is no variable")
    return application.builder.variables.handles[index]


VARIABLES_SPELLINGS: Mapping[str, Spelling] = {
    "ASSIGN_VARIABLE": Spelling(assign_variable, ()),
    "CALL_ONCE": Spelling(call_once, ()),
    "READ_VARIABLE": Spelling(read_variable, MOVABLE),
    "VAR_HANDLE": Spelling(var_handle, ("resource",)),
}


# ---- What operators with subgraphs are given and leave: their tensors, and what the variables hold that the
# subgraphs touch.


@frozen
class Target:
    """A result: of the operator, or what a variable holds behind it (position -1)."""

    name: str
    type: TensorType
    position: int = -1


def handles(application: Application, first: int) -> dict[int, str]:
    """The inputs of a subgraph that stand for variables, by position; they begin with the operator's input ``first``."""
    known = application.builder.variables.handles
    return {k: known[index] for k, index in enumerate(application.operator.inputs[first:]) if index in known}


def touched(application: Application, sides: Sequence[Inside]) -> dict[str, TensorType]:
    """The variables that subgraphs touch."""
    found: dict[str, TensorType] = {}
    for key, kind in ((key, kind) for side in sides for key, kind in side.kinds.items()):
        before = found.setdefault(key, kind)
        if (before.shape, before.dtype) != (kind.shape, kind.dtype):
            application.broken(f"a variable of {before.dtype} {before.shape} and of {kind.dtype} {kind.shape}")
    return found


def operands(
    application: Application, keys: Mapping[int, str], variables: Mapping[str, TensorType], first: int
) -> list[str]:
    """The operands of subgraphs: tensors, then what variables hold."""
    positions = range(first, len(application.operator.inputs))
    tensors = [application.value(position) for position in positions if position - first not in keys]
    return [*tensors, *(held(application, key, kind) for key, kind in variables.items())]


def results_of(application: Application, variables: Mapping[str, TensorType]) -> list[Target]:
    """The results of subgraphs: tensors, then what variables hold."""
    unique = application.builder.file.unique
    outputs = [application.target(position) for position in range(len(application.operator.outputs))]
    tensors = [Target(t.name, t.type, k) for k, t in enumerate(outputs) if t.type.dtype != "resource"]
    return [*tensors, *(Target(unique(f"{application.loc.name}_assigned"), kind) for kind in variables.values())]


def finish(application: Application, handed: Mapping[int, str], assigned: Mapping[str, str]) -> None:
    """Results that stand for variables, and what variables hold from here on."""
    for position, key in handed.items():
        application.builder.variables.handles[application.target(position).index] = key
    for key, name in assigned.items():
        assign(application, key, name)


def inline(application: Application, inside: Graph, names: dict[str, str]) -> None:
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


# ---- Spelling of TFLite's WHILE.
#
# How often it runs follows from what it carries that starts as a constant and changes by constants: counters. They are
# followed here, turn by turn. A counter that is the number of the turn goes; a list that gets its t-th element in turn t becomes
# what the loop stacks; what a turn hands on unchanged is not carried. Where data end a loop, it is guarded by its condition.

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


# ---- Spellings of TFLite's operators that hold subgraphs: IF, STABLEHLO_COMPOSITE and CALL; WHILE is in
# ``tflite_loop``.

_COMPOSITE = ("StableHLOCompositeOptions", "DecompositionSubgraphIndex")


def branch(application: Application) -> None:
    """IF: one of two subgraphs, by a computed condition."""
    fields = application.operator.options.fields("IfOptions", required=True)
    keys = handles(application, 1)
    sides = [application.builder.subgraph(fields.integer(f"{f}SubgraphIndex", 1), keys) for f in ("Then", "Else")]
    if sides[0].handed != sides[1].handed:
        application.refuse("which variable a tensor stands for is decided by data", "read it on both sides")
    variables = touched(application, sides)
    assigned = [key for key in variables if any(key in side.assigned for side in sides)]
    then, otherwise = (side.aligned(variables, assigned) for side in sides)
    inputs = operands(application, keys, variables, 1)
    targets = results_of(application, {key: variables[key] for key in assigned})
    attrs: Mapping[str, Attr] = {"then": then, "otherwise": otherwise}
    names, kinds = [target.name for target in targets], [target.type for target in targets]
    application.append("branch", [application.value(0), *inputs], attrs, names, kinds)
    for target in targets:
        if target.position >= 0:
            application.compare(application.target(target.position))
    finish(application, sides[0].handed, dict(zip(assigned, names[len(names) - len(assigned) :], strict=True)))


def composite(application: Application) -> None:
    """STABLEHLO_COMPOSITE and CALL: the operators that it stands for, in its place."""
    table, field = ("CallOptions", "Subgraph") if application.operator.code == "CALL" else _COMPOSITE
    fields = application.operator.options.fields(table, required=True)
    keys = handles(application, 0)
    side = application.builder.subgraph(fields.integer(field, 1), keys)
    inside, variables = side.graph, touched(application, [side])
    given = operands(application, keys, {key: variables[key] for key in side.given}, 0)
    targets = results_of(application, {key: variables[key] for key in side.assigned})
    kinds = [[application.type(name) for name in given], [target.type for target in targets]]
    if any(
        [(inside.types[name].shape, inside.types[name].dtype) for name in names] != [(k.shape, k.dtype) for k in wanted]
        for names, wanted in zip((inside.inputs, inside.outputs), kinds, strict=True)
    ):
        application.broken("a decomposition with other inputs or outputs")
    names = [target.name for target in targets]
    inline(application, inside, dict(zip((*inside.inputs, *inside.outputs), (*given, *names), strict=True)))
    finish(application, side.handed, dict(zip(side.assigned, names[len(names) - len(side.assigned) :], strict=True)))


CONTROL_SPELLINGS: Mapping[str, Spelling] = {
    "CALL": Spelling(composite, ()),
    "IF": Spelling(branch, ()),
    "STABLEHLO_COMPOSITE": Spelling(composite, ()),
    "WHILE": Spelling(loop, ()),
}
