"""ONNX control flow: If, Loop, Scan and their bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc.base.immutable import frozen
from microc.frontend.budget import inferred
from microc.frontend.onnx.context import Application, Builder, Spelling
from microc.frontend.onnx.file import OnnxFile, decode_body
from microc.frontend.onnx.operators_shape import cut, joined
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.ops import registry
from microc.ops.control import UNBOUNDED

# ---- Graphs inside ONNX's operators: read in place, or as graphs of their own whose captured values become inputs.
#
# Names inside a graph hide nothing once they are read: those that are taken get fresh ones first.

_GRAPH = 5


def body_of(application: Application, name: str) -> OnnxFile:
    """The graph in an attribute, under names that nothing else has."""
    proto = type(application.operator.attributes.graph(name))()
    proto.CopyFrom(application.operator.attributes.graph(name))
    made = [value.name for value in (*proto.input, *proto.initializer)]
    made += [output for node in proto.node for output in node.output if output]
    unique = application.builder.unique
    _rename(proto, {old: unique(old) for old in dict.fromkeys(made)})
    return decode_body(proto, application.builder.file, application.where)


def _rename(proto: Any, names: Mapping[str, str]) -> None:
    """New names for values of a graph, wherever it and the graphs inside it speak of them."""
    for value in (*proto.input, *proto.output, *proto.initializer, *proto.value_info):
        value.name = names.get(value.name, value.name)
    for node in proto.node:
        for words in (node.input, node.output):
            words[:] = [names.get(word, word) for word in words]
        for attribute in node.attribute:
            if attribute.type == _GRAPH:
                _rename(attribute.g, names)


def read_here(application: Application, body: OnnxFile, given: Sequence[str]) -> list[str]:
    """The operators of a graph in the place of the one that holds it; ``given``: its inputs. The values it makes."""
    builder = application.builder
    if body.unreadable:
        application.refuse(
            f"constants of type {next(iter(body.unreadable.values()))}", "docs/operators.md lists the dtypes"
        )
    builder.alias.update((value.name, name) for value, name in zip(body.inputs, given, strict=True))
    for name, data in body.initializers.items():
        if name not in builder.alias:
            builder.constant(name, data)
    builder.translate(builder, body.operators)
    return [builder.value(name, application.where) for name in body.outputs]


class Inside:
    """A graph inside an operator under construction: nodes go there, and outputs are nodes' and distinct."""

    def __init__(self, application: Application, body: OnnxFile) -> None:
        outer = application.builder
        self.body = body
        self.builder = Builder(body, outer.translate, outer)
        self.application = Application(application.operator, self.builder, application.loc)
        self.inputs: list[str] = []
        self.outputs: list[str] = []

    def give(self, name: str, kind: TensorType) -> str:
        """An input."""
        self.builder.define(name, TensorType(kind.shape, kind.dtype), self.application.where)
        self.inputs.append(name)
        return name

    def read(self) -> list[str]:
        """All operators; the values of the body's outputs."""
        self.builder.translate(self.builder, self.body.operators)
        return [self.builder.value(name, self.application.where) for name in self.body.outputs]

    def put(self, value: str) -> TensorType:
        """An output: the value, or a copy of it where no operator makes it or it is one already. Its type."""
        made = any(value in node.outputs for node in self.builder.nodes)
        if not made or value in self.outputs:
            value = self.application.emit("reshape", (value,), {"shape": self.builder.types[value].shape})
        self.outputs.append(value)
        return self.builder.types[value]

    def graph(self, captured: Sequence[str]) -> Graph:
        """The finished graph. Its last inputs are the captured values."""
        builder = self.builder
        for name in captured:
            builder.capture(name)
        inputs = (*self.inputs, *captured)
        plain = {
            name: TensorType(builder.types[name].shape, builder.types[name].dtype) if name in inputs else kind
            for name, kind in builder.types.items()
        }
        name = self.body.graph_name or self.application.operator.code.lower()
        return Graph(name, inputs, tuple(self.outputs), (), plain, builder.consts).with_nodes(builder.nodes)


def append(
    application: Application, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr], outputs: Sequence[str]
) -> None:
    """A node of several results."""
    definition = registry.get(op)
    attrs = {**definition.defaults, **attrs}
    kinds = inferred(op, attrs, [application.type(name) for name in inputs], application.where)
    for name, kind in zip(outputs, kinds, strict=True):
        application.builder.define(name, kind, application.where)
    application.builder.nodes.append(Node(op, tuple(inputs), tuple(outputs), attrs, application.loc))


def scalar(application: Application, value: str) -> str:
    """A value of one element, without axes."""
    if application.type(value).size != 1:
        application.broken(f"{value!r} of shape {application.type(value).shape} is not one element")
    return application.reshaped(value, ())


def all_of(application: Application, conditions: Sequence[str]) -> str:
    """A bool scalar: whether all of some are true."""
    first, *rest = conditions
    for other in rest:
        first = application.emit("logical_and", (first, other))
    return first


def known(application: Application, value: str) -> np.generic | None:
    """The number in a constant of one element; None if it is computed."""
    data = application.builder.consts.get(value)
    if data is None:
        return None
    if data.size != 1:
        application.broken(f"{value!r} of shape {data.shape} is not one element")
    number: np.generic = data.reshape(-1)[0]
    return number


# ---- Spellings of ONNX's control flow: If and Loop become ``branch`` and ``loop``, or nothing where constants
# decide.
#
# A Loop with elements to stack needs a bound of its turns: a constant, or the declared extent of what it stacks. One without runs
# for as long as its condition holds.

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


CONTROL_SPELLINGS: Mapping[str, Spelling] = {
    "If": Spelling(branch, ()),
    "Loop": Spelling(loop, ()),
}


# ---- Spelling of ONNX's Scan: a ``loop`` with a turn for every element along an axis.


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


SCAN_SPELLINGS: Mapping[str, Spelling] = {"Scan": Spelling(scan, ())}
