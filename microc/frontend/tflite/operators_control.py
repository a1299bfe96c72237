# SPDX-License-Identifier: Apache-2.0
"""Converters of TFLite's control flow (WHILE, IF, CALL) and resource variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import MicrocError
from microc.frontend.signature import Range, ReadWith, Value
from microc.frontend.tflite.builder import ControlSubgraph
from microc.frontend.tflite.context import MOVABLE, ConverterTable, OpContext
from microc.frontend.tflite.file import Operator, TfliteFile
from microc.graph.ir import Attr, Graph, Node, TensorType, fresh_name, new_value
from microc.ops import registry
from microc.ops.control import UNBOUNDED

CONVERTERS = ConverterTable()
SubgraphIndex = Annotated[int, Range(1)]
"""Option that is the index of a subgraph; index 0 is the main subgraph."""

# ---- Converters of operators on resource variables. A variable becomes a state of the graph.
#
# READ_VARIABLE returns the state, or the value that an earlier ASSIGN_VARIABLE of the same call assigned. In control flow,
# variables are additional inputs and outputs of subgraphs (:mod:`microc.frontend.tflite.context`). CALL_ONCE runs a subgraph
# before the first call. This subgraph may only assign constants, which are the initial contents. A variable without
# initialisation starts at the real number 0, as in TFLite Micro.


def _read_variable_key(operator: Operator) -> str:
    """Return the key of a VAR_HANDLE's resource variable: its container and its shared name."""
    fields = operator.options.fields("VarHandleOptions", required=True)
    return f"{fields.read_string('Container')}/{fields.read_string('SharedName')}"


def _read_handle(context: OpContext, input_position: int) -> str:
    """Return the key of the variable whose handle an operand is."""
    tensor, keys_by_handle = context.input_tensor(input_position), context.builder.variables.keys_by_handle
    if tensor.index not in keys_by_handle:
        context.broken(f"resource_id: got tensor {tensor.name!r}, expected an output of VAR_HANDLE")
    return keys_by_handle[tensor.index]


_Handle = Annotated[Value, ReadWith(_read_handle)]


@CONVERTERS.register("VAR_HANDLE", dtypes=("resource",))
def convert_var_handle(context: OpContext) -> None:
    """Convert VAR_HANDLE: record the variable whose handle is the output."""
    context.builder.variables.keys_by_handle[context.output_tensor().index] = _read_variable_key(context.operator)


@CONVERTERS.register("READ_VARIABLE", dtypes=MOVABLE)
def convert_read_variable(context: OpContext, variable_key: _Handle) -> None:
    """Convert READ_VARIABLE: the output is the variable's content at this point of the call."""
    target = context.output_tensor()
    value = get_or_define_variable_value(context, variable_key, target.type, target.name)
    if value != target.name:
        context.result_reshape(value, context.type(value).shape)


@CONVERTERS.register("ASSIGN_VARIABLE", dtypes=())
def convert_assign_variable(context: OpContext, variable_key: _Handle, value: Value) -> None:
    """Convert ASSIGN_VARIABLE: record ``value`` as the variable's content for the operators that follow."""
    assign_variable_value(context, variable_key, value)


def get_or_define_variable_value(context: OpContext, variable_key: str, type_: TensorType, state_name: str = "") -> str:
    """Return the name of the value that the variable ``variable_key`` contains at this point of the call.

    At its first use a variable is defined as a state of the graph, or, in control flow, as an input of the subgraph's
    graph. ``state_name`` is the name of this state or input; by default it is made from the operator's name."""
    builder, variables = context.builder, context.builder.variables
    if variable_key not in variables.current_values:
        initial = variables.initial_contents.get(variable_key)
        if initial is not None and (initial.shape, str(initial.dtype)) != (type_.shape, type_.dtype):
            context.broken(
                f"variable: its initial content is {initial.dtype} {initial.shape}, expected {type_.dtype} "
                f"{type_.shape}"
            )
        state_name = state_name or builder.file.reserve_name(f"{context.loc.name}_variable")
        if builder.is_control_flow_body:
            builder.define_value(state_name, type_, context.where)
        else:
            builder.define_state(state_name, type_, initial, context.where)
        variables.current_values[variable_key] = variables.start_values[variable_key] = state_name
    return variables.current_values[variable_key]


def assign_variable_value(context: OpContext, variable_key: str, value_name: str) -> None:
    """Record that the variable ``variable_key`` contains ``value_name`` for the operators that follow."""
    builder, variables = context.builder, context.builder.variables
    state = variables.start_values.get(variable_key)
    if state is not None:
        type_, state_type = context.type(value_name), context.type(state)
        if (type_.shape, type_.dtype) != (state_type.shape, state_type.dtype):
            context.broken(
                f"got {type_.dtype} {type_.shape}, expected {state_type.dtype} {state_type.shape} as the variable has"
            )
        if not builder.is_computed(value_name):
            value_name = context.emit("reshape", (value_name,), {"shape": type_.shape})
        if not builder.is_control_flow_body:
            builder.updates[state] = value_name
    variables.current_values[variable_key] = str(value_name)
    variables.assigned_variables[variable_key] = None


@CONVERTERS.register("CALL_ONCE", options="CallOnceOptions", dtypes=())
def convert_call_once(context: OpContext, *, init_subgraph_index: SubgraphIndex) -> None:
    """Convert CALL_ONCE: record the initial contents of variables.

    Its subgraph may contain only VAR_HANDLE, and ASSIGN_VARIABLE of constants."""
    file = context.builder.file.subgraph(init_subgraph_index)
    handles: dict[int, str] = {}
    for operator in (file.operator(i) for i in range(file.operator_count)):
        if operator.code == "VAR_HANDLE" and len(operator.outputs) == 1:
            handles[operator.outputs[0]] = _read_variable_key(operator)
        elif operator.code == "ASSIGN_VARIABLE" and len(operator.inputs) == 2:
            _record_initial_content(context, file, handles, operator.inputs)
        else:
            context.refuse(
                f"init_subgraph: got operator {operator.code}, expected VAR_HANDLE and ASSIGN_VARIABLE only",
                "assign constants to variables in this subgraph",
            )


def _record_initial_content(
    context: OpContext,
    subgraph_file: TfliteFile,
    variable_keys_by_handle: Mapping[int, str],
    input_tensor_indices: tuple[int, ...],
) -> None:
    """Record the constant assigned by an ASSIGN_VARIABLE of CALL_ONCE's subgraph as a variable's initial content.

    ``variable_keys_by_handle`` maps indices of tensors of the subgraph ``subgraph_file`` to variable keys.
    ``input_tensor_indices`` are ASSIGN_VARIABLE's inputs: the handle and the assigned tensor."""
    key, index = variable_keys_by_handle.get(input_tensor_indices[0]), input_tensor_indices[1]
    if key is None or index < 0:
        context.broken("init_subgraph: ASSIGN_VARIABLE assigns to a tensor that is no output of VAR_HANDLE")
    tensor = subgraph_file.tensor(index)
    if not tensor.is_constant:
        context.refuse(
            f"init_subgraph: {tensor.name!r} is computed, expected a constant", "assign constants to variables in it"
        )
    context.builder.variables.initial_contents[key] = subgraph_file.array(tensor)


# ---- Operands and results of operators with subgraphs: tensors, then the contents of variables that the subgraphs use.


@frozen
class SubgraphResult:
    """A result of an operator with subgraphs: output ``position`` of the operator, or a variable's content after the
    operator.

    ``position`` is -1 for the content of a variable."""

    name: str
    type: TensorType
    position: int = -1


def list_variable_keys_by_input(context: OpContext, first_subgraph_input: int) -> dict[int, str]:
    """Return the keys of the variables whose handles are inputs of the operator's subgraph, by input position.

    ``first_subgraph_input``: position of the operator's input that is the subgraph's first input."""
    known = context.builder.variables.keys_by_handle
    return {k: known[index] for k, index in enumerate(context.operator.inputs[first_subgraph_input:]) if index in known}


def collect_variable_types(context: OpContext, subgraphs: Sequence[ControlSubgraph]) -> dict[str, TensorType]:
    """Return the types of all variables that the subgraphs read or assign, by key; ModelError if types of one variable
    differ."""
    types: dict[str, TensorType] = {}
    for key, type_ in ((key, type_) for side in subgraphs for key, type_ in side.variable_types.items()):
        first_type = types.setdefault(key, type_)
        if (first_type.shape, first_type.dtype) != (type_.shape, type_.dtype):
            context.broken(
                f"variable: got types {first_type.dtype} {first_type.shape} and {type_.dtype} {type_.shape}, "
                "expected one type"
            )
    return types


def _read_subgraph_operand(context: OpContext, input_position: int) -> Value:
    """Return an operand that is passed to a subgraph. The handle of a variable is no value of the graph."""
    tensor = context.input_tensor(input_position)
    if tensor.index in context.builder.variables.keys_by_handle:
        return Value(tensor.name, tensor.type)
    return context.value(input_position)


Passed = Annotated[Value, ReadWith(_read_subgraph_operand)]


def list_subgraph_operands(
    context: OpContext,
    operands: Sequence[Value],
    handle_keys_by_input: Mapping[int, str],
    variable_types: Mapping[str, TensorType],
) -> list[str]:
    """Return the names of the values that an operator passes to its subgraphs: tensors, then the contents of variables.

    ``operands``: operands that are passed. ``handle_keys_by_input``: keys of variables whose handles are among them; these
    are left out. ``variable_types``: types of the variables that the subgraphs use, by key."""
    tensors = [str(operand) for position, operand in enumerate(operands) if position not in handle_keys_by_input]
    return [*tensors, *(get_or_define_variable_value(context, key, type_) for key, type_ in variable_types.items())]


def list_subgraph_results(context: OpContext, variable_types: Mapping[str, TensorType]) -> list[SubgraphResult]:
    """Return the results of an operator with subgraphs: outputs that are no handles, then the contents of
    ``variable_types``."""
    unique = context.builder.file.reserve_name
    outputs = [context.output_tensor(position) for position in range(len(context.operator.outputs))]
    tensors = [SubgraphResult(t.name, t.type, k) for k, t in enumerate(outputs) if t.type.dtype != "resource"]
    return [
        *tensors,
        *(SubgraphResult(unique(f"{context.loc.name}_assigned"), type_) for type_ in variable_types.values()),
    ]


def update_variables(
    context: OpContext, handle_keys_by_output: Mapping[int, str], assigned_values: Mapping[str, str]
) -> None:
    """Record the operator's outputs that are handles of variables, and the contents that its subgraphs assigned.

    ``handle_keys_by_output`` maps positions of such outputs to variable keys, ``assigned_values`` maps variable keys to
    values of the graph."""
    for position, key in handle_keys_by_output.items():
        context.builder.variables.keys_by_handle[context.output_tensor(position).index] = key
    for key, name in assigned_values.items():
        assign_variable_value(context, key, name)


def inline_graph(context: OpContext, subgraph: Graph, names_in_graph: dict[str, str]) -> None:
    """Append the nodes and constants of ``subgraph`` to the graph under construction, in place of the operator.

    ``names_in_graph`` maps the subgraph's inputs and outputs to values of the graph under construction. The function
    adds entries for the subgraph's other values."""
    builder, unique = context.builder, context.builder.file.reserve_name
    for name, data in subgraph.consts.items():
        names_in_graph[name] = builder.define_constant(
            unique(f"{context.loc.name}_{name}"), data, subgraph.types[name].quant
        )
    for node in subgraph.nodes:
        for name in node.outputs:
            if name not in names_in_graph:
                names_in_graph[name] = unique(f"{context.loc.name}_{name}")
        inputs = [names_in_graph[name] if name else "" for name in node.inputs]
        likes = [subgraph.types[name] for name in node.outputs]
        context.write_node_with_outputs(
            node.op, inputs, node.attrs, [names_in_graph[name] for name in node.outputs], likes
        )


# ---- Converter of WHILE, to microc's operator ``loop``.
#
# The converter evaluates the condition and the body at compile time, as far as they depend on constants. If the condition is
# known in every iteration, this gives the trip count. A carried value that equals the iteration's number (a counter) is then
# replaced by ``loop``'s own. A list whose element t is set in iteration t becomes a stacked output of the loop. A carried value
# that the body returns unchanged becomes a loop-invariant ("fixed") input. If the condition depends on data, the WHILE becomes
# a guarded loop, which tests the condition after every iteration.

_MAX_ITERATIONS = 1 << 14
"""Number of iterations after which compile-time evaluation of a WHILE stops. The loop then becomes a guarded loop."""
_MAX_EVALUATED = 64
"""Maximum number of elements of a tensor that is evaluated at compile time in every iteration."""


@CONVERTERS.register("WHILE", options="WhileOptions", dtypes=())
def convert_while(
    context: OpContext, *values: Passed, cond_subgraph_index: SubgraphIndex, body_subgraph_index: SubgraphIndex
) -> None:
    """Convert WHILE. Its condition and its body are subgraphs whose inputs are the carried values."""
    keys = list_variable_keys_by_input(context, 0)
    sides = [context.builder.read_subgraph(index, keys) for index in (cond_subgraph_index, body_subgraph_index)]
    if sides[0].assigned_variables or sides[1].handle_keys_by_output != keys:
        reason = (
            "the condition assigns a variable"
            if sides[0].assigned_variables
            else "a variable's handle changes from iteration to iteration"
        )
        context.refuse(f"{reason}, which is not supported", "let the body assign the same variable in every iteration")
    variables = collect_variable_types(context, sides)
    condition, body = (
        sides[0].add_variable_inputs_and_outputs(variables, ()),
        sides[1].add_variable_inputs_and_outputs(variables, tuple(variables)),
    )
    carried_values, targets = (
        list_subgraph_operands(context, values, keys, variables),
        list_subgraph_results(context, variables),
    )
    if not len(body.inputs) == len(body.outputs) == len(condition.inputs) == len(carried_values) == len(targets):
        counts = (
            f"{len(body.inputs)} inputs and {len(body.outputs)} outputs, the condition {len(condition.inputs)} inputs"
        )
        context.broken(f"the body has {counts}, expected {len(carried_values)} of each, one for each carried value")
    starts = {
        k: context.builder.consts[name] for k, name in enumerate(carried_values) if name in context.builder.consts
    }
    iterations = _evaluate_known_iterations(condition, body, starts)
    if iterations is None:
        _emit_guarded_loop(context, condition, body, carried_values, targets)
    else:
        _emit_counted_loop(
            context,
            _WhileLoop(body, len(iterations), _classify_carried_values(body, iterations)),
            carried_values,
            targets,
        )
    ends = zip(variables, (target.name for target in targets[len(targets) - len(variables) :]), strict=True)
    update_variables(context, keys, {key: name for key, name in ends if key in sides[1].assigned_variables})


# ---------------------------------------------------------------- evaluating counters

KnownValues = Mapping[str, Array]
"""Contents of values that are known at compile time, by name of the value."""


def _evaluate_known_iterations(
    condition: Graph, body: Graph, start_values: Mapping[int, Array]
) -> list[KnownValues] | None:
    """Evaluate a WHILE at compile time; return, for each iteration, the values of the body that are known.

    ``start_values``: constant initial contents of carried values, by position. Return None if the trip count depends on
    data or exceeds _MAX_ITERATIONS."""
    known = {k: array for k, array in start_values.items() if array.size <= _MAX_EVALUATED}
    iterations: list[KnownValues] = []
    while True:
        condition_values = _evaluate_known_values(condition, {condition.inputs[k]: array for k, array in known.items()})
        continues = condition_values.get(condition.outputs[0])
        if continues is None or len(iterations) > _MAX_ITERATIONS:
            return None
        if not continues.reshape(-1)[:1].any():
            return iterations
        body_values = _evaluate_known_values(body, {body.inputs[k]: array for k, array in known.items()})
        iterations.append(body_values)
        known = {k: body_values[name] for k, name in enumerate(body.outputs) if name in body_values}


def _evaluate_known_values(graph: Graph, known_inputs: KnownValues) -> KnownValues:
    """Evaluate a graph as far as its values follow from constants and ``known_inputs``; return the known values.

    Only values without quantisation that have at most _MAX_EVALUATED elements are evaluated."""
    known: dict[str, Array] = {**{n: a for n, a in graph.consts.items() if a.size <= _MAX_EVALUATED}, **known_inputs}
    for node in graph.nodes:
        inputs = [name for name in node.inputs if name]
        types = [graph.types[name] for name in (*inputs, *node.outputs)]
        if any(name not in known for name in inputs) or any(k.quant or k.size > _MAX_EVALUATED for k in types):
            continue
        definition = registry.get(node.op)
        with np.errstate(all="ignore"):
            try:
                results = definition.reference({**definition.defaults, **node.attrs}, [known[name] for name in inputs])
            except MicrocError:
                continue
        known.update(zip(node.outputs, results, strict=True))
    return known


# ---------------------------------------------------------------- roles of carried values


@frozen
class _WhileLoop:
    """A WHILE with the constant trip count ``trip_count``.

    ``roles`` classifies every carried value: ``fixed`` (loop-invariant: the body returns it unchanged); ``counter``
    (the iteration's number); ``stacked`` (a list whose element t is replaced in iteration t); ``carried`` (any other
    value)."""

    body: Graph
    trip_count: int
    roles: tuple[str, ...]

    def positions_with_role(self, role: str) -> list[int]:
        """Return the positions of the carried values whose role is ``role``."""
        return [k for k, own_role in enumerate(self.roles) if own_role == role]


def _classify_carried_values(body: Graph, known_values_by_iteration: Sequence[KnownValues]) -> tuple[str, ...]:
    """Classify every carried value; return its role (see :class:`_WhileLoop`).

    ``known_values_by_iteration``: values of the body that are known in each iteration; empty for a guarded loop, which
    has no role but ``fixed`` and ``carried``."""
    makers, readers = body.producer(), body.consumers()
    roles = []
    for input_, output in zip(body.inputs, body.outputs, strict=True):
        node = makers[output]
        if node.op == "reshape" and node.inputs[0] == input_ and body.types[input_] == body.types[output]:
            roles.append("fixed")
        elif (
            all(
                _is_int32_scalar(iteration.get(input_), number)
                for number, iteration in enumerate(known_values_by_iteration)
            )
            and known_values_by_iteration
        ):
            roles.append("counter")
        elif _is_stacked_list(body, node, input_, known_values_by_iteration) and len(readers.get(input_, ())) == 1:
            roles.append("stacked")
        else:
            roles.append("carried")
    return tuple(roles)


def _is_int32_scalar(known_value: Array | None, expected_value: int) -> bool:
    """Test whether a value is known at compile time, and is the int32 scalar ``expected_value``."""
    return (
        known_value is not None
        and known_value.shape == ()
        and known_value.dtype == np.int32
        and int(known_value) == expected_value
    )


def _is_stacked_list(
    body: Graph, update_node: Node, list_name: str, known_values_by_iteration: Sequence[KnownValues]
) -> bool:
    """Test whether the carried list ``list_name`` has one element for each iteration, and ``update_node`` replaces
    element t of it in iteration t."""
    if update_node.op != "dynamic_update_slice" or update_node.inputs[0] != list_name:
        return False
    shape, row = body.types[list_name].shape, body.types[update_node.inputs[1]].shape
    if shape[:1] != (len(known_values_by_iteration),) or row != (1, *shape[1:]):
        return False
    starts = [iteration.get(update_node.inputs[2]) for iteration in known_values_by_iteration]
    return all(start is not None and int(start[0]) == number for number, start in enumerate(starts))


# ---------------------------------------------------------------- the node


def _emit_counted_loop(
    context: OpContext, while_loop: _WhileLoop, carried_values: Sequence[str], targets: Sequence[SubgraphResult]
) -> None:
    """Append a ``loop`` node with a constant trip count, and define the results ``targets`` of the WHILE."""
    builder, body = context.builder, _make_counted_loop_body(while_loop)
    carried, fixed, stacked = (while_loop.positions_with_role(role) for role in ("carried", "fixed", "stacked"))
    attrs: Mapping[str, Attr] = {
        "body": body,
        "count": while_loop.trip_count,
        "carried": len(carried),
        "guarded": False,
    }
    inputs = [carried_values[k] for k in (*carried, *fixed)]
    rows = {k: builder.file.reserve_name(f"{targets[k].name}_rows") for k in stacked}
    if carried or stacked:
        names = (*(targets[k].name for k in carried), *rows.values())
        likes = [targets[k].type for k in (*carried, *stacked)]
        context.write_node_with_outputs("loop", inputs, attrs, names, likes)
    for k, name in rows.items():
        _define_loop_result(context, name, while_loop.body.types[while_loop.body.inputs[k]].shape, targets[k])
    for k in fixed:
        _define_loop_result(context, carried_values[k], context.type(carried_values[k]).shape, targets[k])
    for k in while_loop.positions_with_role("counter"):
        builder.define_constant(targets[k].name, np.array(while_loop.trip_count, np.int32))


def _define_loop_result(context: OpContext, value: str, shape: tuple[int, ...], target: SubgraphResult) -> None:
    """Define a result of the WHILE as the existing ``value``, reshaped to ``shape``."""
    if target.position >= 0:
        context.result_reshape(value, shape, target.position)
    else:
        context.write_node_with_outputs("reshape", (value,), {"shape": shape}, (target.name,), (target.type,))


def _emit_guarded_loop(
    context: OpContext,
    condition: Graph,
    body: Graph,
    carried_values: Sequence[str],
    targets: Sequence[SubgraphResult],
) -> None:
    """Append a guarded ``loop`` node, which ends when its condition is false, and define the results ``targets`` of the
    WHILE.

    The condition is computed once before the loop, and again at the end of every iteration.
    """
    start = dict(zip(condition.inputs, carried_values, strict=True))
    inline_graph(context, condition, start)
    flag = context.reshape(start[condition.outputs[0]], ())
    fixed = [k for k, role in enumerate(_classify_carried_values(body, ())) if role == "fixed"]
    carried = [k for k in range(len(carried_values)) if k not in fixed]
    context.write_node_with_outputs(
        "loop",
        [flag, *(carried_values[k] for k in (*carried, *fixed))],
        {
            "body": _make_guarded_loop_body(condition, body, carried, fixed),
            "count": UNBOUNDED,
            "carried": 1 + len(carried),
            "guarded": True,
        },
        [context.builder.file.reserve_name(f"{context.loc.name}_ended"), *(targets[k].name for k in carried)],
        [TensorType((), "bool"), *(targets[k].type for k in carried)],
    )
    for k in fixed:
        _define_loop_result(context, carried_values[k], context.type(carried_values[k]).shape, targets[k])


def _make_guarded_loop_body(
    condition: Graph, body: Graph, carried_positions: Sequence[int], fixed_positions: Sequence[int]
) -> Graph:
    """Return the body graph of a guarded ``loop``: the nodes of the WHILE's body, then those of its condition.

    The condition is evaluated on the body's results; its value is the first output. ``carried_positions`` and
    ``fixed_positions``: positions of the carried values that change, and of the loop-invariant ones."""
    types = dict(body.types)
    values = dict(zip(condition.inputs, body.outputs, strict=True))

    for name, type_ in condition.types.items():
        if name not in values:
            values[name] = new_value(types, name, type_)
    iteration, flag = (
        new_value(types, "iteration", TensorType((), "int32")),
        new_value(types, "flag", TensorType((), "bool")),
    )
    nodes = [
        replace(n, inputs=tuple(values.get(i, i) for i in n.inputs), outputs=tuple(values.get(o, o) for o in n.outputs))
        for n in condition.nodes
    ]
    continues = new_value(types, "go", TensorType((), "bool"))
    last = Node("reshape", (values[condition.outputs[0]],), (continues,), {"shape": ()})
    inputs = (iteration, flag, *(body.inputs[k] for k in (*carried_positions, *fixed_positions)))
    outputs = (continues, *(body.outputs[k] for k in carried_positions))
    consts = {**body.consts, **{values[name]: data for name, data in condition.consts.items()}}
    needed = _prune_nodes([*body.nodes, *nodes, last], outputs)
    return Graph(body.name, inputs, outputs, (), types, consts).with_nodes(needed)


def _make_counted_loop_body(while_loop: _WhileLoop) -> Graph:
    """Return the body graph of a ``loop`` with a constant trip count.

    Its inputs are the iteration's number, the carried values and the fixed values. Its outputs are the next carried
    values, and one row of each stacked list."""
    body, makers = while_loop.body, while_loop.body.producer()
    iteration = fresh_name(body.types, "iteration")
    carried, fixed, stacked = (while_loop.positions_with_role(role) for role in ("carried", "fixed", "stacked"))
    renamed = {body.inputs[k]: iteration for k in while_loop.positions_with_role("counter")}
    types = {**body.types, iteration: TensorType((), "int32")}
    nodes = [replace(node, inputs=tuple(renamed.get(name, name) for name in node.inputs)) for node in body.nodes]
    rows = []
    for k in stacked:
        update = makers[body.outputs[k]]
        row = new_value(types, "row", types[update.inputs[1]])
        nodes.append(Node("reshape", (update.inputs[1],), (row,), {"shape": types[row].shape}, update.loc))
        rows.append(row)
    lists = {makers[body.outputs[k]].outputs[0] for k in stacked}
    inputs = (iteration, *(body.inputs[k] for k in (*carried, *fixed)))
    outputs = (*(body.outputs[k] for k in carried), *rows)
    kept = [node for node in nodes if node.outputs[0] not in lists]
    known = {name for node in kept for name in (*node.inputs, *node.outputs)} | {*inputs, *outputs}
    types = {name: type_ for name, type_ in types.items() if name in known}
    return Graph(body.name, inputs, outputs, (), types, body.consts).with_nodes(_prune_nodes(kept, outputs))


def _prune_nodes(nodes: Sequence[Node], wanted_values: Sequence[str]) -> list[Node]:
    """Return the nodes that the values ``wanted_values`` depend on, in their order. Other nodes are dropped."""
    wanted, kept = set(wanted_values), list[Node]()
    for node in reversed(nodes):
        if wanted & set(node.outputs):
            wanted.update(node.inputs)
            kept.append(node)
    return kept[::-1]


# ---- Converters of the other operators with subgraphs: IF, STABLEHLO_COMPOSITE and CALL.


@CONVERTERS.register("IF", options="IfOptions", dtypes=())
def convert_if(
    context: OpContext,
    condition: Value,
    *values: Passed,
    then_subgraph_index: SubgraphIndex,
    else_subgraph_index: SubgraphIndex,
) -> None:
    """Convert IF: run one of two subgraphs, selected by the condition."""
    keys = list_variable_keys_by_input(context, 1)
    sides = [context.builder.read_subgraph(index, keys) for index in (then_subgraph_index, else_subgraph_index)]
    if sides[0].handle_keys_by_output != sides[1].handle_keys_by_output:
        context.refuse("the branches return handles of different variables", "read the variable in both branches")
    variables = collect_variable_types(context, sides)
    assigned = [key for key in variables if any(key in side.assigned_variables for side in sides)]
    then, otherwise = (side.add_variable_inputs_and_outputs(variables, assigned) for side in sides)
    inputs = list_subgraph_operands(context, values, keys, variables)
    targets = list_subgraph_results(context, {key: variables[key] for key in assigned})
    attrs: Mapping[str, Attr] = {"then": then, "otherwise": otherwise}
    names, types = [target.name for target in targets], [target.type for target in targets]
    context.write_node_with_outputs("branch", [condition, *inputs], attrs, names, types)
    for target in targets:
        if target.position >= 0:
            context.check_declared_shape(context.output_tensor(target.position))
    update_variables(
        context, sides[0].handle_keys_by_output, dict(zip(assigned, names[len(names) - len(assigned) :], strict=True))
    )


@CONVERTERS.register("CALL", options="CallOptions", dtypes=())
def convert_call(context: OpContext, *values: Passed, subgraph: SubgraphIndex) -> None:
    """Convert CALL: append the nodes of the operator's subgraph in place of it."""
    _convert_subgraph_call(context, values, subgraph)


@CONVERTERS.register("STABLEHLO_COMPOSITE", options="StableHLOCompositeOptions", dtypes=())
def convert_composite(context: OpContext, *values: Passed, decomposition_subgraph_index: SubgraphIndex) -> None:
    """Convert STABLEHLO_COMPOSITE: append the nodes of its decomposition in place of it."""
    _convert_subgraph_call(context, values, decomposition_subgraph_index)


def _convert_subgraph_call(context: OpContext, values: Sequence[Value], subgraph_index: int) -> None:
    """Append the nodes of a subgraph, whose inputs are ``values``, in place of the operator."""
    keys = list_variable_keys_by_input(context, 0)
    side = context.builder.read_subgraph(subgraph_index, keys)
    inside, variables = side.graph, collect_variable_types(context, [side])
    operands = list_subgraph_operands(context, values, keys, {key: variables[key] for key in side.read_variables})
    targets = list_subgraph_results(context, {key: variables[key] for key in side.assigned_variables})
    expected_types = [[context.type(name) for name in operands], [target.type for target in targets]]
    if any(
        [(inside.types[name].shape, inside.types[name].dtype) for name in names]
        != [(k.shape, k.dtype) for k in expected]
        for names, expected in zip((inside.inputs, inside.outputs), expected_types, strict=True)
    ):
        context.broken("decomposition: its inputs or outputs differ from the operator's in number, shape or dtype")
    names = [target.name for target in targets]
    inline_graph(context, inside, dict(zip((*inside.inputs, *inside.outputs), (*operands, *names), strict=True)))
    update_variables(
        context,
        side.handle_keys_by_output,
        dict(zip(side.assigned_variables, names[len(names) - len(side.assigned_variables) :], strict=True)),
    )
