"""Spellings of TFLite's resource variables: they become state of the graph, read at the start of a call.

The first READ_VARIABLE of a variable is its state value; ASSIGN_VARIABLE gives the next contents, which later reads of
the same call see. Inside of control flow they are values that come in and go out (:mod:`microc.frontend.tflite.inside`).
CALL_ONCE runs a subgraph before the first call: only assignments of constants, which are the initial contents. A variable
that nobody initialises starts at real zero, as in TFLM.
"""

from __future__ import annotations

from collections.abc import Mapping

from microc.frontend.tflite.application import Application
from microc.frontend.tflite.file import Operator, TfliteFile
from microc.frontend.tflite.spelling import MOVABLE, Spelling
from microc.graph.ir import TensorType


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


SPELLINGS: Mapping[str, Spelling] = {
    "ASSIGN_VARIABLE": Spelling(assign_variable, ()),
    "CALL_ONCE": Spelling(call_once, ()),
    "READ_VARIABLE": Spelling(read_variable, MOVABLE),
    "VAR_HANDLE": Spelling(var_handle, ("resource",)),
}
