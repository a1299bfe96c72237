"""Spellings of ONNX's control flow: If, Loop and Scan become ``branch`` and ``loop``, or nothing where constants decide.

A Loop with elements to stack needs a bound of its turns: a constant, or the declared extent of what it stacks. One without runs
for as long as its condition holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from microc.frontend.onnx.application import Application, Spelling
from microc.frontend.onnx.bodies import Inside, all_of, append, body_of, known, read_here, scalar
from microc.frontend.onnx.slice import cut, joined
from microc.graph.ir import Attr, TensorType
from microc.ops.control import UNBOUNDED

_TURN = TensorType((), "int32")


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


@dataclass(frozen=True, slots=True)
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
        turn = inside.give(builder.unique("turn"), _TURN)
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
            following = inner.emit("add", (number, one), {"rounding": "double"})
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


# ---------------------------------------------------------------- Scan


@dataclass(frozen=True, slots=True)
class _Ways:
    """Axes and directions (1: from the end) of what a Scan goes through, and of what it stacks."""

    in_axes: tuple[int, ...]
    in_turned: tuple[int, ...]
    out_axes: tuple[int, ...]
    out_turned: tuple[int, ...]


def scan(application: Application) -> None:
    """Scan: a turn for every element along an axis; before opset 9 along axis 1 of every batch."""
    attributes, count = application.operator.attributes, application.count()
    scanned = attributes.integer("num_scan_inputs")
    first = 0 if application.opset >= 9 else 1
    if not 1 <= scanned <= count - first:
        application.broken(f"{scanned} of {count - first} inputs are scanned")
    stacked = len(application.operator.outputs) - (count - first - scanned)

    def each(name: str, number: int) -> tuple[int, ...]:
        found = attributes.integers(name, (0,) * number)
        if len(found) != number:
            application.broken(f"{name} has {len(found)} entries for {number} values")
        return found

    if stacked < 0:
        application.broken(f"{len(application.operator.outputs)} outputs")
    values = [application.value(k) for k in range(first, count)]
    if first:
        _batches(
            application, values, _Ways((0,) * scanned, each("directions", scanned), (0,) * stacked, (0,) * stacked)
        )
        return
    ways = _Ways(
        each("scan_input_axes", scanned),
        each("scan_input_directions", scanned),
        each("scan_output_axes", stacked),
        each("scan_output_directions", stacked),
    )
    for position, value in enumerate(_scanned(application, values, ways, application.operator.outputs)):
        if application.output(position) != value:
            application.result_alias(value, position)


def _batches(application: Application, values: Sequence[str], ways: _Ways) -> None:
    """Every batch for itself."""
    if application.has(0):
        application.refuse("sequences of different lengths", "export with opset 9 or later")
    batch, rows = application.type(values[0]).shape[:1], list[list[str]]()
    for index in range(*batch):
        parts = [cut(application, value, 0, index, index + 1) for value in values]
        parts = [application.reshaped(part, application.type(part).shape[1:]) for part in parts]
        made = _scanned(application, parts, ways, ())
        rows.append([application.reshaped(each, (1, *application.type(each).shape)) for each in made])
    for position, column in enumerate(zip(*rows, strict=True)):
        if application.output(position):
            application.result_alias(joined(application, column, 0), position)


def _scanned(application: Application, values: Sequence[str], ways: _Ways, outputs: Sequence[str]) -> list[str]:
    """The values that a Scan makes, under the names of ``outputs`` where they come right from the loop."""
    inside = Inside(application, body_of(application, "body"))
    builder, names = inside.builder, [value.name for value in inside.body.inputs]
    scanned, stacked = len(ways.in_axes), len(ways.out_axes)
    carried = len(values) - scanned
    if len(names) != len(values) or len(inside.body.outputs) != carried + stacked:
        application.broken(f"a body of {len(names)} inputs and {len(inside.body.outputs)} outputs")
    turn = inside.give(builder.unique("turn"), _TURN)
    for name, value in zip(names[:carried], values, strict=False):
        inside.give(name, application.type(value))
    count = _gone_through(application, inside, turn, values[carried:], ways)
    kinds = [inside.put(value) for value in inside.read()]
    for kind, value in zip(kinds[:carried], values, strict=False):
        if kind.shape != application.type(value).shape:
            application.refuse(
                f"a scan that carries {application.type(value).shape}, then {kind.shape}", "shapes are static"
            )
    direct = [True] * carried + [not (a or t) for a, t in zip(ways.out_axes, ways.out_turned, strict=True)]
    results = [
        outputs[k] if k < len(outputs) and outputs[k] and direct[k] else builder.unique("scanned")
        for k in range(carried + stacked)
    ]
    attrs: Mapping[str, Attr] = {"count": count, "carried": carried, "body": inside.graph(builder.captured)}
    append(application, "loop", (*values, *builder.captured), attrs, results)
    for k, (axis, turned) in enumerate(zip(ways.out_axes, ways.out_turned, strict=True), carried):
        results[k] = _laid_out(application, results[k], axis, turned)
    return results


def _gone_through(application: Application, inside: Inside, turn: str, values: Sequence[str], ways: _Ways) -> int:
    """Give the body one element of every value a turn; how many turns that makes."""
    builder, inner = inside.builder, inside.application
    extents = []
    for name, value, axis, turned in zip(
        [value.name for value in inside.body.inputs][-len(values) :], values, ways.in_axes, ways.in_turned, strict=True
    ):
        kind = application.type(value)
        whole, axis = inside.give(builder.unique("whole"), kind), application.axis(axis, len(kind.shape))
        extents.append(kind.shape[axis])
        place = turn
        if turned:
            last = inner.new_constant("last", np.array(kind.shape[axis] - 1, np.int32))
            place = inner.emit("sub", (last, turn), {"rounding": "double"})
        inner.write("gather", (whole, place), {"axis": axis}, name)
    if len(set(extents)) != 1:
        application.broken(f"scanned extents {extents} differ")
    return extents[0]


def _laid_out(application: Application, value: str, axis: int, turned: int) -> str:
    """What was stacked, along another axis, or from the end."""
    if turned:
        value = application.emit("reverse", (value,), {"axes": (0,)})
    rank = len(application.type(value).shape)
    axis = application.axis(axis, rank)
    if not axis:
        return value
    axes = [*range(1, axis + 1), 0, *range(axis + 1, rank)]
    return application.emit("transpose", (value,), {"axes": tuple(axes)})


SPELLINGS: Mapping[str, Spelling] = {
    "If": Spelling(branch, ()),
    "Loop": Spelling(loop, ()),
    "Scan": Spelling(scan, ()),
}
