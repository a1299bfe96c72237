"""Quantised operators out of ``dequantize -> operator -> quantize``, the form in which ONNX quantisers write them.

A rewritten operator works on integer tensors whose types carry ``quant``, with ``rounding="even"``, and still means
what was written: dequantize the inputs, compute in real numbers, divide by the output's scale, round half to even,
saturate. What the pass does not know stays as it is, which is as exact and slower.

The pass walks the graph once and keeps, for every float value that is an integer value dequantised, that integer
value (``source``). Four facts carry it, for scales > 0 and zero points inside the dtype:

- quantize(dequantize(q)) = q where both have one scale and zero point and q has at most 16 bits;
- moving elements, max pooling and maxima, which only choose elements, commute with both;
- relu and clip commute with quantize, for rounding is monotone;
- so an operator whose only reader is quantize, perhaps behind such operators, may itself produce integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from microc import dtypes
from microc.graph.ir import Attr, Graph, Loc, Node, Quant, TensorType, fresh_name
from microc.transform.context import Pass, PassContext
from microc.transform.qdq_bias import accumulator_quant, integer_bias, sum_behind
from microc.transform.qdq_clamp import fuse_clamps
from microc.transform.qdq_moves import is_function, moves, spread_quantisation

BYTES = ("int8", "uint8")
_CHOICES = frozenset(("max_pool2d", "max", "min"))
LAYERS = frozenset(("conv2d", "conv2d_transpose", "dense"))
"""Products with constant weights, which may have a scale for each output channel, and a bias."""
_CLAMPS = frozenset(("relu", "clip"))
_BINARY = frozenset(("add", "sub", "mul", "matmul"))
_UNARY = frozenset(("avg_pool2d", "mean", "softmax"))
_EVEN: Mapping[str, Attr] = {"rounding": "even"}


def recognise(graph: Graph, context: PassContext) -> Graph:
    """The graph with quantised operators where it says ``dequantize -> operator -> quantize``."""
    if all(node.op != "dequantize" for node in graph.nodes):
        return graph
    return spread_quantisation(fuse_clamps(_Recogniser(graph).run()))


PASS = Pass("qdq", recognise, 0)


def has_integer_form(node: Node, graph: Graph) -> bool:
    """Whether an operator on floats becomes one on integers between ``dequantize`` and ``quantize``, where dtypes allow it."""
    if node.op in LAYERS:
        return node.inputs[1] in graph.consts
    return node.op in _BINARY | _UNARY | _CHOICES | {"concat"} or is_function(node)


def _quantised_as(node: Node) -> tuple[Quant, Attr]:
    """The quantisation and the dtype that a quantize or dequantize node names."""
    return Quant(node.attr("scale"), node.attr("zero_point"), node.attr("axis")), node.attrs.get("out_dtype")


class _Recogniser:
    """One walk over the graph. ``nodes``, ``types`` and ``consts`` are the new graph's."""

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
        self.alias: dict[str, str] = {}
        self.biased: dict[str, str] = {}

    def run(self) -> Graph:
        for node in self.graph.nodes:
            if node.op == "dequantize" and node.inputs[0] in self.consts:
                self.dequantize(node)
        for node in self.graph.nodes:
            self.visit(replace(node, inputs=tuple(self.alias.get(name, name) for name in node.inputs)))
        for name in (*self.graph.outputs, *self.graph.updates.values()):
            self.materialise(name)
        return self.graph.with_nodes(self.nodes, types=self.types, consts=self.consts)

    def visit(self, node: Node) -> None:
        """Rewrite one node, or keep it with its inputs dequantised."""
        known = [self.source.get(name) for name in node.inputs]
        if node.op == "dequantize":
            done = self.dequantize(node)
        elif node.op == "quantize":
            done = self.quantize(node)
        elif node.outputs[0] in self.biased:
            done = self.register(node.outputs[0], self.source[self.biased[node.outputs[0]]], node.loc)
        elif node.op == "concat":
            done = self.concat(node)
        elif not node.inputs or known[0] is None:
            done = False
        elif node.op in LAYERS:
            done = self.product(node)
        elif node.op in _BINARY:
            done = None not in known and self.compute(node, [name for name in known if name])
        elif moves(node) or node.op in _CHOICES:
            done = self.move(node, known[0]) or (node.op in _CHOICES and self.compute(node, [known[0]]))
        else:
            done = (is_function(node) or node.op in _UNARY) and self.compute(node, [known[0]])
        if not done:
            for name in node.inputs:
                self.materialise(name)
            self.append(node)

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

    def is_bytes(self, value: str) -> bool:
        """Whether an integer value is an 8-bit activation with one scale."""
        kind = self.types[value]
        return kind.dtype in BYTES and kind.quant is not None and kind.quant.axis is None

    def dequantize(self, node: Node) -> bool:
        """Register the result; False where the integers are already known under another quantisation."""
        value, (quant, _) = node.inputs[0], _quantised_as(node)
        kind = self.types[value]
        if kind.quant not in (None, quant):
            return False
        self.types[value] = replace(kind, quant=quant)
        return self.register(node.outputs[0], value, node.loc)

    def quantize(self, node: Node) -> bool:
        """Drop it where its operand is an integer already; requantise where the scales differ."""
        quant, out_dtype = _quantised_as(node)
        output, source = node.outputs[0], self.source.get(node.inputs[0])
        self.types[output] = replace(self.types[output], quant=quant)
        if source is None:
            return False
        kind = self.types[source]
        if (kind.quant, kind.dtype) == (quant, out_dtype) and dtypes.nbytes(str(out_dtype)) <= 2:
            if output in self.kept and source != output:
                self.append(Node("reshape", (source,), (output,), {"shape": kind.shape}, node.loc))
            elif source != output:
                self.alias[output] = source
            return True
        if node.attr("rounding") != "even" or not self.is_bytes(source) or not self.is_bytes(output):
            return False
        self.append(replace(node, inputs=(source,)))
        return True

    def target(self, value: str) -> TensorType | None:
        """The quantised type that ``value`` ends as, if that is all that becomes of it; the shape is ``value``'s."""
        shape = self.types[value].shape
        while value not in self.kept:
            users = self.consumers.get(value, ())
            if not users or any(dict(user.attrs) != dict(users[0].attrs) or user.op != users[0].op for user in users):
                return None
            user = users[0]
            if user.op == "quantize":
                if (
                    user.attr("axis") is not None
                    or user.attr("rounding") != "even"
                    or user.attr("out_dtype") not in BYTES
                ):
                    return None
                quant = Quant(user.attr("scale"), user.attr("zero_point"))
                return TensorType(shape, user.attr("out_dtype"), quant, self.types[value].layout)
            if len(users) > 1 or not (moves(user) or user.op in _CHOICES | _CLAMPS | {"concat"}):
                return None
            value = user.outputs[0]
        return None

    def name(self, value: str, kind: TensorType) -> str:
        """A name for the integers of type ``kind`` that stand for ``value``: what a quantize that makes just them calls them."""
        for user in self.consumers.get(value, ()):
            if (
                user.op == "quantize"
                and user.outputs[0] not in self.written
                and _quantised_as(user) == (kind.quant, kind.dtype)
            ):
                return user.outputs[0]
        name = fresh_name(self.names, f"{value}_quantized")
        self.names.add(name)
        return name

    def produce(self, node: Node, inputs: Sequence[str], kind: TensorType, **attrs: Attr) -> bool:
        """Write ``node`` on integers, making integers of type ``kind``."""
        output = self.name(node.outputs[0], kind)
        self.types[output] = replace(kind, shape=self.types[node.outputs[0]].shape)
        self.append(replace(node, inputs=tuple(inputs), outputs=(output,), attrs={**node.attrs, **attrs}))
        return self.register(node.outputs[0], output, node.loc)

    def compute(self, node: Node, sources: Sequence[str]) -> bool:
        """An operator that computes: it needs 8-bit operands and result of one dtype, functions of one number any of 8 bits."""
        kind = self.target(node.outputs[0])
        if kind is None or not all(map(self.is_bytes, sources)):
            return False
        found = {self.types[source].dtype for source in sources}
        alike = len(found) == 1 and (found == {kind.dtype} or is_function(node))
        return (alike or node.op == "matmul") and self.produce(node, sources, kind, **_EVEN)

    def move(self, node: Node, source: str) -> bool:
        """An operator that only chooses elements works on the integers as they are."""
        kind, attrs = self.types[source], dict(_EVEN) if node.op in _CHOICES else {}
        if not self.is_bytes(source) or node.attrs.get("activation", ""):
            return False
        if node.op == "pad":
            value = self.padding_value(node, kind)
            if value is None:
                return False
            attrs["value"] = value
        return self.produce(node, (source, *node.inputs[1:]), kind, **attrs)

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

    def concat(self, node: Node) -> bool:
        """Operands of one quantisation are joined as they are; others are requantised to what the result becomes."""
        sources = [self.source[name] for name in node.inputs if name in self.source]
        if len(sources) != len(node.inputs) or not sources or not all(map(self.is_bytes, sources)):
            return False
        kinds = {(self.types[source].quant, self.types[source].dtype) for source in sources}
        kind = self.types[sources[0]] if len(kinds) == 1 else self.target(node.outputs[0])
        if kind is None:
            return False
        return self.produce(node, [self.requantised(source, kind, node.loc) for source in sources], kind)

    def requantised(self, source: str, kind: TensorType, loc: Loc) -> str:
        """``source`` with the dtype and quantisation of ``kind``."""
        found, quant = self.types[source], kind.quant
        if (found.quant, found.dtype) == (quant, kind.dtype) or quant is None:
            return source
        output = fresh_name(self.names, f"{source}_requantized")
        self.names.add(output)
        self.types[output] = replace(found, dtype=kind.dtype, quant=quant)
        attrs: Mapping[str, Attr] = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": None}
        self.append(Node("quantize", (source,), (output,), {**attrs, "out_dtype": kind.dtype, **_EVEN}, loc))
        return output

    def product(self, node: Node) -> bool:
        """A convolution or dense layer with constant 8-bit weights; a constant added right behind joins its bias."""
        data, weight = self.source[node.inputs[0]], self.source.get(node.inputs[1], "")
        if not self.is_bytes(data) or weight not in self.consts:
            return False
        kind = self.types[weight]
        if kind.dtype not in BYTES or kind.quant is None or kind.quant.axis not in (None, 0):
            return False
        terms = [name for name in node.inputs[2:] if name]
        sum_ = sum_behind(node, kind.shape[0], self.types, self.only_user)
        target = self.target(sum_.output if sum_ else node.outputs[0])
        bias = self.bias(node, terms + ([sum_.term] if sum_ else []), accumulator_quant(self.quant(data), kind.quant))
        if target is None or bias is None:
            return False
        if sum_:
            self.biased[sum_.output] = sum_.operand
        return self.produce(node, (data, weight, *bias), target, **_EVEN)

    def bias(self, node: Node, terms: Sequence[str], quant: Quant) -> tuple[str, ...] | None:
        """The int32 bias that is the sum of ``terms``, as the inputs to add (none without terms); None if there is none."""
        if not terms:
            return ()
        sources = [self.source.get(name, name) for name in terms]
        if any(source not in self.consts for source in sources):
            return None
        known = [(self.consts[source], self.types[source].quant) for source in sources]
        data = integer_bias(known, quant, self.types[node.inputs[1]].shape[0])
        if data is None:
            return None
        if data is self.consts[sources[0]]:
            return (sources[0],)
        name = fresh_name(self.names, f"{node.outputs[0]}_bias")
        self.names.add(name)
        self.types[name] = TensorType(data.shape, "int32", quant)
        self.consts[name] = data
        return (name,)

    def only_user(self, value: str) -> Node | None:
        """The one node that reads ``value``, unless it is needed elsewhere."""
        users = self.consumers.get(value, ())
        return users[0] if len(users) == 1 and value not in self.kept else None
