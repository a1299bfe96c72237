"""What the qdq pass knows of values, moves and loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import Attr, Graph, Loc, Node, Quant, TensorType, fresh_name
from microc.ops import registry
from microc.ops.attributes import Rounding, Ties

# ---- Integers that are only moved stand for the same numbers before and behind: one quantisation for both.
#
# Quantisers of operators let Reshape and Transpose work on integers, of which the file says nothing more; what reads and
# what writes them says which numbers they stand for. Rules that change the order of operators rely on that.


def spread_quantisation(graph: Graph) -> Graph:
    """The graph where both sides of a move carry the quantisation, per tensor, that one of them has."""
    types = dict(graph.types)
    moves = [node for node in graph.nodes if registry.get(node.op).moves]
    _spread(types, moves)
    _spread(types, reversed(moves))
    return graph.with_nodes(graph.nodes, types=types)


def _spread(types: dict[str, TensorType], moves: Iterable[Node]) -> None:
    for node in moves:
        ends = node.inputs[0], node.outputs[0]
        for known, other in (ends, ends[::-1]):
            quant = types[known].quant
            if quant is not None and quant.axis is None and types[other].quant is None:
                types[other] = replace(types[other], quant=quant)


def is_function(node: Node) -> bool:
    """Whether it is a function of one number, of which integers of any two scales are a table."""
    definition = registry.get(node.op)
    return definition.elementwise and len(node.inputs) == 1 and "rounding" in definition.attrs and node.op != "quantize"


def moves(node: Node) -> bool:
    """Whether elements of the result are those of the first operand, or what pads them."""
    picks = node.op == "resample" and len(node.inputs) == 1 + len(node.attr("axes"))
    return registry.get(node.op).moves or node.op == "pad" or picks


# ---- What the qdq pass knows of values: which integers stand for a float value, and which it is going to become.
#
# :class:`Values` writes the new graph. Of a float value that is an integer value dequantised it knows the integers (``source``);
# they are dequantised in the new graph only where somebody reads the floats.

BYTES = ("int8", "uint8")
ACTIVATIONS = (*BYTES, "int16")
EVEN: Mapping[str, Attr] = {"rounding": Rounding.EVEN}
CHOICES = frozenset(("max_pool2d", "max", "min"))
"""Operators that choose one of several elements."""

JOINS = frozenset(("concat", "maximum", "minimum", "where"))
"""Operators whose result holds elements of several operands."""

CLAMPS = frozenset(("relu", "clip"))


def quantised_as(node: Node) -> tuple[Quant, Attr]:
    """The quantisation and the dtype that a quantize or dequantize node names."""
    return Quant(node.attr("scale"), node.attr("zero_point"), node.attr("axis")), node.attrs.get("out_dtype")


class Values:
    """``nodes``, ``types`` and ``consts`` are the new graph's."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.consumers = graph.consumers()
        self.kept = {*graph.outputs, *graph.updates.values()}
        self.nodes: list[Node] = []
        self.types = dict(graph.types)
        self.consts = dict(graph.consts)
        self.names = set(graph.types)
        self.source: dict[str, str] = {}
        self.origin: dict[str, Loc] = {}
        self.written: set[str] = set()

    def append(self, node: Node) -> None:
        self.nodes.append(node)
        self.written.update(node.outputs)

    def register(self, value: str, source: str, loc: Loc) -> bool:
        """Note that the float ``value`` is ``source`` dequantised."""
        self.source[value] = source
        self.origin[value] = loc
        return True

    def materialise(self, value: str) -> None:
        """Write the dequantize node that makes a float value, unless it is there."""
        if value not in self.source or value in self.written:
            return
        quant = self.quant(self.source[value])
        attrs: Mapping[str, Attr] = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis}
        self.append(Node("dequantize", (self.source[value],), (value,), attrs, self.origin[value]))

    def quant(self, value: str) -> Quant:
        found = self.types[value].quant
        assert found is not None
        return found

    def is_activation(self, value: str) -> bool:
        """Whether an integer value has 8 or 16 bits and one scale."""
        kind = self.types[value]
        return kind.dtype in ACTIVATIONS and kind.quant is not None and kind.quant.axis is None

    def only_user(self, value: str) -> Node | None:
        """The one node that reads ``value``, unless it is needed elsewhere."""
        users = self.consumers.get(value, ())
        return users[0] if len(users) == 1 and value not in self.kept else None

    def target(self, value: str) -> TensorType | None:
        """The quantised type that ``value`` ends as, if that is all that becomes of it; the shape is ``value``'s."""
        shape = self.types[value].shape
        while value not in self.kept:
            users = self.consumers.get(value, ())
            if not users or any(dict(user.attrs) != dict(users[0].attrs) or user.op != users[0].op for user in users):
                return None
            user = users[0]
            if user.op == "quantize":
                one_scale = user.attr("axis") is None and user.attr("rounding") == Rounding.EVEN
                if not one_scale or user.attr("out_dtype") not in ACTIVATIONS:
                    return None
                quant = Quant(user.attr("scale"), user.attr("zero_point"))
                return TensorType(shape, user.attr("out_dtype"), quant, self.types[value].layout)
            if len(users) > 1 or not (moves(user) or user.op in CHOICES | CLAMPS | JOINS):
                return None
            value = user.outputs[0]
        return None

    def new_name(self, stem: str) -> str:
        name = fresh_name(self.names, stem)
        self.names.add(name)
        return name

    def name(self, value: str, kind: TensorType) -> str:
        """A name for the integers of type ``kind`` that stand for ``value``: what a quantize that makes just them calls them."""
        for user in self.consumers.get(value, ()):
            if (
                user.op == "quantize"
                and user.outputs[0] not in self.written
                and quantised_as(user) == (kind.quant, kind.dtype)
            ):
                return user.outputs[0]
        return self.new_name(f"{value}_quantized")

    def produce(self, node: Node, inputs: Sequence[str], kind: TensorType, **attrs: Attr) -> bool:
        """Write ``node`` on integers, making integers of type ``kind``."""
        output = self.name(node.outputs[0], kind)
        self.types[output] = replace(kind, shape=self.types[node.outputs[0]].shape)
        self.append(replace(node, inputs=tuple(inputs), outputs=(output,), attrs={**node.attrs, **attrs}))
        return self.register(node.outputs[0], output, node.loc)

    def requantised(self, source: str, kind: TensorType, loc: Loc) -> str:
        """``source`` with the dtype and quantisation of ``kind``."""
        found, quant = self.types[source], kind.quant
        if (found.quant, found.dtype) == (quant, kind.dtype) or quant is None:
            return source
        output = self.new_name(f"{source}_requantized")
        self.types[output] = replace(found, dtype=kind.dtype, quant=quant)
        attrs: dict[str, Attr] = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": None}
        attrs |= {"out_dtype": kind.dtype, **EVEN}
        if source in self.consts:
            real = self.consts[source]
            if found.quant is not None:
                given: Mapping[str, Attr] = {"scale": found.quant.scale, "zero_point": found.quant.zero_point}
                (real,) = registry.get("dequantize").reference({**given, "axis": None}, [real])
            (self.consts[output],) = registry.get("quantize").reference(attrs, [real])
        else:
            self.append(Node("quantize", (source,), (output,), attrs, loc))
        return output

    def widened(self, source: str, loc: Loc) -> str:
        """Bytes as int16, which stand for the same numbers."""
        kind = self.types[source]
        if kind.dtype == "int16":
            return source
        output = self.new_name(f"{source}_wide")
        self.types[output] = replace(kind, dtype="int16")
        if source in self.consts:
            self.consts[output] = self.consts[source].astype(np.int16)
        else:
            self.append(Node("cast", (source,), (output,), {"dtype": "int16"}, loc))
        return output

    def number(self, value: str, dtype: str) -> str | None:
        """A constant that holds one number only as integers, exactly: a power of two as large as ``dtype`` has it, in a scale
        of its own."""
        data = self.consts.get(value)
        if data is None or data.dtype != np.float32 or not data.size or (data != data.flat[0]).any():
            return None
        real, level = float(data.flat[0]), (dtypes.int_range(dtype)[1] + 1) // 2
        scale = abs(real) / level
        if not np.isfinite(real) or not scale > np.finfo(np.float32).tiny or (real < 0 and dtype == "uint8"):
            return None
        output = self.new_name(f"{value}_quantized")
        self.consts[output] = np.full(data.shape, -level if real < 0 else level, dtypes.to_numpy(dtype))
        self.types[output] = TensorType(data.shape, dtype, Quant((scale,), (0,)))
        return output

    def padding_value(self, node: Node, kind: TensorType) -> int | None:
        """What pads the integers: exactly the float's value, or what it is quantised to where the result is."""
        assert kind.quant is not None
        scale, zero = np.float32(kind.quant.scale[0]), kind.quant.zero_point[0]
        low, high = dtypes.int_range(kind.dtype)
        value = np.float32(node.attr("value"))
        level = int(np.clip(np.rint(value / scale) + zero, low, high))
        target = self.target(node.outputs[0])
        quantised = target is not None and (target.quant, target.dtype) == (kind.quant, kind.dtype)
        return level if quantised or np.float32(level - zero) * scale == value else None


# ---- Loops whose turns work on integers carry integers, are handed integers, and stack integers.
#
# A value that a turn leaves dequantised, q, is carried as q where it begins as such a number, or is quantised alike wherever a
# turn reads it: quantize(dequantize(q)) = q. Elements that are stacked are dequantised behind the loop; what all turns are
# given dequantised, they dequantise.


@frozen
class Given:
    """An operand of a loop: the type of the integers that it is dequantised from, if it is, and its data if they are known."""

    integers: TensorType | None
    data: Array | None


@frozen
class IntegerLoop:
    """A body, and of which type the integers are that stand for its operands (the turn's number apart) and results; None: the
    value stays as it is."""

    body: Graph
    operands: tuple[TensorType | None, ...]
    results: tuple[TensorType | None, ...]


def on_integers(body: Graph, carried: int, given: Sequence[Given], recognised: Callable[[Graph], Graph]) -> IntegerLoop:
    """The loop's body with integers for inputs and outputs where that is the same, its operators ``recognised``."""
    operands = [None if k < carried else each.integers for k, each in enumerate(given)]
    body = recognised(_with_inputs(body, operands))
    results = [_dequantised(body, name) for name in body.outputs]
    states: list[TensorType | None] = [None] * len(given)
    for k, kind in enumerate(results[:carried]):
        name = body.inputs[1 + k]
        fits = kind is not None and (_begins_as(given[k], kind) or _read_as(body, name, kind))
        operands[k] = states[k] = results[k] = kind if fits else None
    changed = recognised(_with_outputs(_with_inputs(body, states), results))
    return IntegerLoop(changed, tuple(operands), tuple(results))


def _dequantised(body: Graph, output: str) -> TensorType | None:
    """The integers that a body dequantises last."""
    node = body.producer().get(output)
    if node is None or node.op != "dequantize" or node.attr("axis") is not None:
        return None
    kind = body.types[node.inputs[0]]
    return replace(kind, quant=quantised_as(node)[0]) if kind.dtype in ACTIVATIONS else None


def _begins_as(given: Given, kind: TensorType) -> bool:
    """Whether the first turn's value is one of the numbers of ``kind``."""
    assert kind.quant is not None
    if given.integers is not None:
        return (given.integers.quant, given.integers.dtype) == (kind.quant, kind.dtype)
    if given.data is None:
        return False
    scaled = {"scale": kind.quant.scale, "zero_point": kind.quant.zero_point, "axis": None}
    into = {**scaled, "out_dtype": kind.dtype, "rounding": Ties.EVEN}
    levels = registry.get("quantize").reference(into, [given.data])
    return np.array_equal(registry.get("dequantize").reference(scaled, levels)[0], given.data)


def _read_as(body: Graph, name: str, kind: TensorType) -> bool:
    """Whether a turn quantises a value wherever it reads it, as ``kind``."""
    users = body.consumers().get(name, ())
    alike = all(user.op == "quantize" and quantised_as(user) == (kind.quant, kind.dtype) for user in users)
    return alike and name not in body.outputs


def _with_inputs(body: Graph, kinds: Sequence[TensorType | None]) -> Graph:
    inputs, types, nodes, taken = list(body.inputs), dict(body.types), list[Node](), set(body.types)
    for position, kind in enumerate(kinds, 1):
        if kind is None or kind.quant is None:
            continue
        real = inputs[position]
        inputs[position] = fresh_name(taken, f"{real}_quantized")
        taken.add(inputs[position])
        types[inputs[position]] = kind
        scaled: dict[str, Attr] = {"scale": kind.quant.scale, "zero_point": kind.quant.zero_point, "axis": None}
        nodes.append(Node("dequantize", (inputs[position],), (real,), scaled, body.nodes[0].loc))
    return replace(body, inputs=tuple(inputs), types=types).with_nodes((*nodes, *body.nodes))


def _with_outputs(body: Graph, kinds: Sequence[TensorType | None]) -> Graph:
    outputs, types, nodes, taken = list(body.outputs), dict(body.types), list(body.nodes), set(body.types)
    makers = body.producer()
    for position, kind in enumerate(kinds):
        if kind is None:
            continue
        maker = makers[outputs[position]]
        outputs[position] = fresh_name(taken, f"{outputs[position]}_quantized")
        taken.add(outputs[position])
        types[outputs[position]] = kind
        nodes.append(Node("reshape", maker.inputs, (outputs[position],), {"shape": kind.shape}, maker.loc))
    return replace(body, outputs=tuple(outputs), types=types).with_nodes(nodes)
