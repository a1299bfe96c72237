"""Spellings of TFLite's operators that hold subgraphs: IF, STABLEHLO_COMPOSITE and CALL; WHILE is in ``tflite_loop``."""

from __future__ import annotations

from collections.abc import Mapping

from microc.frontend.tflite.application import Application
from microc.frontend.tflite.loop import loop
from microc.frontend.tflite.operands import finish, handles, inline, operands, results_of, touched
from microc.frontend.tflite.spelling import Spelling
from microc.graph.ir import Attr

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


SPELLINGS: Mapping[str, Spelling] = {
    "CALL": Spelling(composite, ()),
    "IF": Spelling(branch, ()),
    "STABLEHLO_COMPOSITE": Spelling(composite, ()),
    "WHILE": Spelling(loop, ()),
}
