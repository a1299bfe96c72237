"""What operators with subgraphs are given and leave: their tensors, and what the variables hold that the subgraphs touch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from microc.frontend.tflite.application import Application
from microc.frontend.tflite.inside import Inside
from microc.frontend.tflite.variables import assign, held
from microc.frozen import frozen
from microc.graph.ir import Graph, TensorType


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
