"""Spellings of ONNX's control flow: If and Loop become ``branch`` and ``loop``, or nothing where constants decide.

A Loop with elements to stack needs a bound of its turns: a constant, or the declared extent of what it stacks. One without runs
for as long as its condition holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc.frontend.onnx.application import Application, Spelling
from microc.frontend.onnx.bodies import Inside, all_of, append, body_of, known, read_here, scalar
from microc.frozen import frozen
from microc.graph.ir import Attr, TensorType
from microc.ops.control import UNBOUNDED

TURN = TensorType((), "int32")


def branch(application: Application) -> None:
    """If: one of two graphs, by a condition that is known or computed."""
    condition = application.value(0)
    decided = known(application, condition)
    if decided is not None:
        body = body_of(application, "then_branch" if decided else "else_branch")
        made = read_here(application, body, ())
        if len(made) != len(application.operator.outputs):
            application.broken(f"a branch of {len(made)} results")
        for position, value in enumerate(made):
            application.result_alias(value, position)
        return
    sides = [Inside(application, body_of(application, name)) for name in ("then_branch", "else_branch")]
    kinds = [[side.put(value) for value in side.read()] for side in sides]
    if [(k.shape, k.dtype) for k in kinds[0]] != [(k.shape, k.dtype) for k in kinds[1]]:
        application.refuse("branches that make values of different shapes", "shapes are static")
    captured = list(dict.fromkeys(name for side in sides for name in side.builder.captured))
    graphs = {name: side.graph(captured) for name, side in zip(("then", "otherwise"), sides, strict=True)}
    append(application, "branch", (condition, *captured), graphs, _outputs(application, len(kinds[0])))


def _outputs(application: Application, count: int) -> list[str]:
    """The names of the operator's outputs; new ones where it leaves them out."""
    if len(application.operator.outputs) > count:
        application.broken(f"{len(application.operator.outputs)} outputs of {count}")
    return [application.output(k) or application.builder.unique("unused") for k in range(count)]


# ---------------------------------------------------------------- Loop


def loop(application: Application) -> None:
    """Loop: turns up to a limit, while a condition holds."""
    limit, condition = (application.value(k) if application.has(k) else "" for k in (0, 1))
    most, start = (known(application, value) if value else None for value in (limit, condition))
    body, given = body_of(application, "body"), [application.value(k) for k in range(2, application.count())]
    if len(body.inputs) != 2 + len(given) or not 1 + len(given) <= len(body.outputs):
        application.broken(f"a body of {len(body.inputs)} inputs and {len(body.outputs)} outputs")
    stacks = len(body.outputs) > 1 + len(given)
    if (start is not None and not start) or (most is not None and int(most) <= 0):
        if stacks:
            application.refuse("a loop that stacks no elements", "remove the loop: it makes tensors without elements")
        for position, value in enumerate(given):
            application.result_alias(value, position)
        return
    if most is not None and int(most) == 1 and (start is not None or not condition):
        _once(application, body, given)
        return
    inside = _Turns(application, Inside(application, body), limit if most is None else "", given)
    inside.loop(condition if start is None else "", _bound(application, most, stacks, len(given)))


def _once(application: Application, body: Any, given: Sequence[str]) -> None:
    """A loop of one turn: its operators."""
    number = application.new_constant("turn", np.array(0, np.int64))
    going = application.new_constant("going", np.array(True))
    made = read_here(application, body, (number, going, *given))[1:]
    for position, value in enumerate(made):
        if position < len(given):
            application.result_alias(value, position)
        elif application.output(position):
            application.result_reshape(value, (1, *application.type(value).shape), position)


def _bound(application: Application, most: Any, stacks: bool, carried: int) -> int:
    """How many turns there are at most."""
    file, bounds = application.builder.file, [] if most is None else [int(most)]
    stacked = [name for name in application.operator.outputs[carried:] if name]
    for operator in file.operators:  # exporters declare what is returned, and cast before
        if operator.code in ("Cast", "Identity") and operator.inputs[:1] and operator.inputs[0] in stacked:
            stacked += operator.outputs
    for name in stacked:
        bounds += [extent for extent in file.declared.get(name, ())[:1] if isinstance(extent, int)]
    bound = min(bounds, default=UNBOUNDED)
    if stacks and bound >= UNBOUNDED:
        application.refuse(
            "a loop that stacks elements, of a number that only data tell",
            "declare the shape of what it stacks, or give it a constant number of turns",
        )
    return min(bound, UNBOUNDED)


@frozen
class _Turns:
    """A Loop to be emitted. ``limit``: the number of turns where it is computed, ``given``: what it starts from."""

    application: Application
    inside: Inside
    limit: str
    given: Sequence[str]

    def loop(self, condition: str, bound: int) -> None:
        """``condition``: whether to start, where that is computed."""
        application, inside = self.application, self.inside
        builder, body = inside.builder, inside.body
        turn = inside.give(builder.unique("turn"), TURN)
        going = builder.unique("going")
        number = inside.application.write("cast", (turn,), {"dtype": "int64"}, body.inputs[0].name)
        builder.alias[body.inputs[1].name] = builder.constant(builder.unique("true"), np.array(True))
        names = [value.name for value in body.inputs[2:]]
        for name, value in zip(names, self.given, strict=True):
            builder.define(name, application.type(value), application.where)
        again, *made = inside.read()
        fixed = [k for k, name in enumerate(names) if made[k] == name]
        moving = [k for k in range(len(names)) if k not in fixed]
        goes = self.goes(again, number)
        guarded = bool(goes or condition or self.limit)
        if bound == UNBOUNDED and not guarded:
            application.broken("a loop that never ends")
        if guarded:
            inside.give(going, TensorType((), "bool"))
            inside.put(goes or builder.constant(builder.unique("true"), np.array(True)))
        inside.inputs += [names[k] for k in (*moving, *fixed)]
        for k in moving:
            kind, wanted = inside.put(made[k]), application.type(self.given[k])
            if (kind.shape, kind.dtype) != (wanted.shape, wanted.dtype):
                application.refuse(f"a loop that carries {wanted.shape}, then {kind.shape}", "shapes are static")
        for value in made[len(names) :]:
            inside.put(value)
        start = [self.start(condition)] if guarded else []
        inputs = [*start, *(self.given[k] for k in (*moving, *fixed)), *builder.captured]
        carried = len(start) + len(moving)
        attrs: dict[str, Attr] = {"count": bound, "carried": carried, "guarded": guarded}
        outputs = _outputs(application, len(made))
        results = [builder.unique("ended") for _ in start] + [outputs[k] for k in moving] + outputs[len(names) :]
        append(application, "loop", inputs, {**attrs, "body": inside.graph(builder.captured)}, results)
        for k in fixed:
            application.result_alias(self.given[k], k)

    def goes(self, again: str, number: str) -> str:
        """Whether there is a next turn: a value of the body, empty if there always is up to the bound."""
        inner, conditions = self.inside.application, list[str]()
        if known(inner, again) is None or not known(inner, again):
            conditions.append(scalar(inner, again))
        if self.limit:
            one = inner.new_constant("one", np.array(1, np.int64))
            following = inner.emit("add", (number, one))
            limit = scalar(inner, self.inside.builder.capture(self.limit))
            conditions.append(inner.emit("less", (following, limit)))
        return all_of(inner, conditions) if conditions else ""

    def start(self, condition: str) -> str:
        """Whether there is a first turn."""
        application, conditions = self.application, list[str]()
        if condition:
            conditions.append(scalar(application, condition))
        if self.limit:
            zero = application.new_constant("zero", np.array(0, np.int64))
            conditions.append(application.emit("less", (zero, scalar(application, self.limit))))
        return all_of(application, conditions) if conditions else application.new_constant("true", np.array(True))


SPELLINGS: Mapping[str, Spelling] = {
    "If": Spelling(branch, ()),
    "Loop": Spelling(loop, ()),
}
