"""Spellings of ONNX's control flow: If, Loop, Scan.

A branch that is known when compiling takes the If's place. Loops of a known number of turns are loops of the generated C; where a
body needs to know in which turn it is (shapes that depend on it), or all that it reads is known, the turns are written out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from microc.errors import UnsupportedError
from microc.frontend.onnx_application import Application
from microc.frontend.onnx_build import Builder
from microc.frontend.onnx_file import Operator, subgraph
from microc.frontend.onnx_inline import inline
from microc.graph.ir import Attr, Graph, TensorType

Translate = Callable[[Builder, Operator], None]
_WRITTEN_OUT = 64
"""So many turns are written out at most."""


class Region:
    """The graph of a branch or of a turn, being read: ``captured`` collects what it takes from around it."""

    def __init__(self, application: Application, attribute: str, inputs: Sequence[TensorType], names: Sequence[str]):
        outer = application.builder
        file = subgraph(application.operator.attributes.graph(attribute), outer.file, application.opset)
        self.builder = Builder(file, outer)
        self.inputs = []
        for name, kind in zip(names, inputs, strict=True):
            self.builder.define(name, kind, application.where)
            self.inputs.append(name)
        self.application = application

    def translate(self, translate: Translate) -> list[str]:
        """Read the body; the values of its outputs."""
        for operator in self.builder.file.operators:
            translate(self.builder, operator)
        return [self.builder.value(name, self.application.where) for name in self.builder.file.outputs]

    def graph(self, name: str, outputs: Sequence[str], fixed: Mapping[str, str]) -> Graph:
        """The finished region: its inputs, then the captured values ``fixed``, of which each region has all."""
        for inner, outer in fixed.items():
            if inner not in self.builder.types:
                self.builder.define(inner, self.application.type(outer), self.application.where)
        return self.builder.region(name, (*self.inputs, *fixed), outputs)


def if_(application: Application, translate: Translate) -> None:
    """If: the branch that is known, or both, of which one runs."""
    condition, builder = application.value(0), application.builder
    known = builder.consts.get(condition)
    if known is not None:
        name = "then_branch" if known.reshape(-1)[0] else "else_branch"
        _written(application, translate, name, {}, application.operator.outputs)
        return
    regions = [Region(application, name, (), ()) for name in ("then_branch", "else_branch")]
    made = [region.translate(translate) for region in regions]
    fixed = {**regions[0].builder.captured, **regions[1].builder.captured}
    then, otherwise = (r.graph(n, o, fixed) for r, n, o in zip(regions, ("then", "else"), made, strict=True))
    attrs: dict[str, Any] = {"then": then, "otherwise": otherwise}
    application.write_all("branch", (condition, *fixed.values()), attrs, application.operator.outputs)


def _written(
    application: Application, translate: Translate, attribute: str, inputs: dict[str, str], outputs: Sequence[str]
) -> tuple[str, ...]:
    """A graph's operators in the place of this one; ``outputs``: names for its results, empty for any. The values made."""
    graph, builder = application.operator.attributes.graph(attribute), application.builder
    found, names = inline(builder, graph, inputs, application.operator.index, application.opset, application.where)
    for operator in found:
        translate(builder, operator)
    values = tuple(builder.value(name, application.where) for name in names)
    for output, value in zip(outputs, values, strict=False):
        if output:
            application.rename(output, value)
    return values


def loop(application: Application, translate: Translate) -> None:
    """Loop of a number of turns that is known when compiling, which a condition may end earlier."""
    builder, graph = application.builder, application.operator.attributes.graph("body")
    count = int(application.constant(0).reshape(-1)[0]) if application.has(0) else None
    if count is None:
        application.refuse("a loop without a number of turns", "give the loop a trip count")
    guard = builder.consts.get(application.value(1)) if application.has(1) else np.array(True)
    carried = [application.value(position) for position in range(2, application.count())]
    if guard is not None and count <= _WRITTEN_OUT and all(value in builder.consts for value in carried):
        _turns(application, translate, count, carried)
        return
    try:
        _loop_region(application, translate, graph, max(count, 0), carried)
    except UnsupportedError:
        if guard is None or not guard.reshape(-1)[0] or count > _WRITTEN_OUT:
            raise
        _turns(application, translate, count, carried)


def _turns(application: Application, translate: Translate, count: int, carried: list[str]) -> None:
    """The turns of a loop one after the other; a condition that is not known ends none."""
    builder, graph = application.builder, application.operator.attributes.graph("body")
    names = [value.name for value in graph.input]
    rows: list[list[str]] = []
    going = builder.consts[application.value(1)].reshape(-1)[0] if application.has(1) else True
    for turn in range(count if going else 0):
        given = [
            application.new_constant(f"{application.loc.name}_turn", np.array(turn, np.int64)),
            application.new_constant(f"{application.loc.name}_go", np.array(True)),
            *carried,
        ]
        made = _written(application, translate, "body", dict(zip(names, given, strict=True)), ())
        carried = list(made[1 : 1 + len(carried)])
        rows.append(list(made[1 + len(carried) :]))
        known = builder.consts.get(made[0])
        if known is None:
            application.refuse("a condition that ends the loop at a turn that is not known")
        if not known.reshape(-1)[0]:
            break
    for position, value in enumerate(carried):
        if application.output(position):
            application.rename(application.output(position), value)
    for position, column in enumerate(zip(*rows, strict=True)):
        name = application.output(len(carried) + position)
        if name:
            parts = [application.reshaped(value, (1, *application.type(value).shape)) for value in column]
            application.write("concat", parts, {"axis": 0}, name)


def _loop_region(application: Application, translate: Translate, graph: Any, count: int, carried: list[str]) -> None:
    """The loop as one of the generated C."""
    builder = application.builder
    names = [builder.unique(f"{application.loc.name}_turn"), *(value.name for value in graph.input[1:])]
    go = application.value(1) if application.has(1) else application.new_constant("go", np.array(True))
    go = application.reshaped(go, ())
    kinds = [TensorType((), "int32"), *(application.type(value) for value in (go, *carried))]
    region = Region(application, "body", kinds, names)
    inner = Application(
        Operator(0, "", "Cast", "", (), (graph.input[0].name,), application.operator.attributes),
        region.builder,
        application.loc,
    )
    inner.write("cast", (names[0],), {"dtype": "int64"}, graph.input[0].name)
    made = region.translate(translate)
    fixed = region.builder.captured
    body = region.graph("turn", made, fixed)
    attrs: dict[str, Any] = {"body": body, "count": count, "carried": 1 + len(carried), "guarded": True}
    application.write_all("loop", (go, *carried, *fixed.values()), attrs, ("", *application.operator.outputs))


def scan(application: Application, translate: Translate) -> None:
    """Scan: the turns go through the elements of some operands along an axis, and stack what they make along one."""
    attributes, builder = application.operator.attributes, application.builder
    old = application.opset < 9
    scanned = attributes.integer("num_scan_inputs")
    operands = [application.value(position) for position in range(int(old), application.count())]
    states, sequences = operands[: len(operands) - scanned], operands[len(operands) - scanned :]
    if old:
        if any(application.type(value).shape[0] != 1 for value in operands) or application.has(0):
            application.refuse("a scan of a batch, or with lengths", "export the model with opset 9 or newer")
        states, sequences = ([_without(application, v) for v in values] for values in (states, sequences))
    ranks = [len(application.type(value).shape) for value in sequences]
    axes = attributes.integers("scan_input_axes", (0,) * scanned)
    axes = tuple(application.axis(axis, rank) for axis, rank in zip(axes, ranks, strict=True))
    backwards = attributes.integers("directions" if old else "scan_input_directions", (0,) * scanned)
    sequences = [
        application.emit("reverse", (value,), {"axes": (axis,)}) if back else value
        for value, axis, back in zip(sequences, axes, backwards, strict=True)
    ]
    count = application.type(sequences[0]).shape[axes[0]]
    graph = attributes.graph("body")
    turn = builder.unique(f"{application.loc.name}_turn")
    labels = [value.name for value in graph.input]
    wholes = [builder.unique(f"{label}_whole") for label in labels[len(states) :]]
    kinds = [TensorType((), "int32"), *(application.type(value) for value in (*states, *sequences))]
    region = Region(application, "body", kinds, (turn, *labels[: len(states)], *wholes))
    inner = Application(application.operator, region.builder, application.loc)
    for label, whole, axis in zip(labels[len(states) :], wholes, axes, strict=True):
        inner.write("gather", (whole, turn), {"axis": axis}, label)
    made = region.translate(translate)
    body = region.graph("turn", made, region.builder.captured)
    attrs: dict[str, Any] = {"body": body, "count": count, "carried": len(states), "guarded": False}
    results = [builder.unique(f"{application.loc.name}_scan") for _ in made]
    fixed = region.builder.captured.values()
    application.write_all("loop", (*states, *sequences, *fixed), attrs, results)
    _scan_results(application, results, len(states), old)


def _without(application: Application, value: str) -> str:
    """``value`` without its first axis of one element."""
    return application.reshaped(value, application.type(value).shape[1:])


def _scan_results(application: Application, results: Sequence[str], states: int, old: bool) -> None:
    """The outputs: stacked ones turned back, with the axis where it is asked for; the batch axis of the first version."""
    attributes = application.operator.attributes
    rows = len(results) - states
    backwards = attributes.integers("scan_output_directions", (0,) * rows)
    axes = attributes.integers("scan_output_axes", (0,) * rows)
    for position, value in enumerate(results):
        rank = len(application.type(value).shape)
        if position >= states:
            axis = application.axis(axes[position - states], rank)
            if backwards[position - states]:
                value = application.emit("reverse", (value,), {"axes": (0,)})
            if axis:
                order: tuple[Attr, ...] = tuple(k + 1 if k < axis else 0 if k == axis else k for k in range(rank))
                value = application.emit("transpose", (value,), {"axes": order})
        if old:
            value = application.reshaped(value, (1, *application.type(value).shape))
        if application.output(position):
            application.rename(application.output(position), value)


CONTROL: Mapping[str, Callable[[Application, Translate], None]] = {"If": if_, "Loop": loop, "Scan": scan}
