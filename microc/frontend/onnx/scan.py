"""Spelling of ONNX's Scan: a ``loop`` with a turn for every element along an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from microc.frontend.onnx.application import Application, Spelling
from microc.frontend.onnx.bodies import Inside, append, body_of
from microc.frontend.onnx.control import TURN
from microc.frontend.onnx.slice import cut, joined
from microc.frozen import frozen
from microc.graph.ir import Attr


@frozen
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
    turn = inside.give(builder.unique("turn"), TURN)
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
            place = inner.emit("sub", (last, turn))
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


SPELLINGS: Mapping[str, Spelling] = {"Scan": Spelling(scan, ())}
