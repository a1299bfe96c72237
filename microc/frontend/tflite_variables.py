"""Spellings of TFLite's resource variables: they become state of the graph, read at the start of a call.

The first READ_VARIABLE of a variable is its state value; ASSIGN_VARIABLE gives the next contents, which later reads of
the same call see. CALL_ONCE runs a subgraph before the first call: only assignments of constants, which are the
initial contents. A variable that nobody initialises starts at real zero, as in TFLM.
"""

from __future__ import annotations

from collections.abc import Mapping

from microc.frontend.tflite_application import Application
from microc.frontend.tflite_file import Operator, TfliteFile
from microc.frontend.tflite_spelling import MOVABLE, Spelling


def _key(operator: Operator) -> str:
    fields = operator.options.fields("VarHandleOptions", required=True)
    return f"{fields.text('Container')}/{fields.text('SharedName')}"


def var_handle(application: Application) -> None:
    """VAR_HANDLE: a tensor that stands for the variable of a name."""
    application.builder.variables.handles[application.target().index] = _key(application.operator)


def read_variable(application: Application) -> None:
    """READ_VARIABLE: what the variable holds at this point of the call."""
    variables, target = application.builder.variables, application.target()
    key = _variable(application)
    if key in variables.current:
        value = variables.current[key]
        application.result_reshape(value, application.type(value).shape)
        return
    initial = variables.initial.get(key)
    if initial is not None and (initial.shape, str(initial.dtype)) != (target.type.shape, target.type.dtype):
        application.broken(f"the variable starts as {initial.dtype} {initial.shape}, but is read otherwise")
    variables.current[key] = application.builder.define_state(target.name, target.type, initial, application.where)
    variables.states[key] = target.name


def assign_variable(application: Application) -> None:
    """ASSIGN_VARIABLE: what the variable holds from here on."""
    builder, key = application.builder, _variable(application)
    value = application.value(1)
    state = builder.variables.states.get(key)
    if state is not None:
        kind, held = application.type(value), application.type(state)
        if (kind.shape, kind.dtype) != (held.shape, held.dtype):
            application.broken(f"{kind.dtype} {kind.shape} assigned to a variable of {held.dtype} {held.shape}")
        if not builder.is_computed(value):
            value = application.emit("reshape", (value,), {"shape": kind.shape})
        builder.updates[state] = value
    builder.variables.current[key] = value


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
