"""Quantised operators out of dequantize, operator, quantize."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import Graph, Loc, Node, Quant, TensorType
from microc.ops import registry
from microc.ops.arithmetic import activation_range
from microc.ops.attributes import Rounding
from microc.transform.pass_context import Pass, PassContext
from microc.transform.quantised.qdq_values import (
    BYTES,
    CHOICES,
    EVEN,
    JOINS,
    Given,
    Values,
    is_function,
    moves,
    on_integers,
    quantised_as,
    spread_quantisation,
)

# ---- Biases of quantised layers: integers at the scale of the accumulator, data scale times weight scale.
#
# Quantisers write int32 biases of just that scale; they are taken as they are. Others (floats, or integers of another
# scale) are rounded to it, an error of half a unit of the accumulator: to int32, or beside data of 16 bits to int64 where they
# need it.

_TOLERANCE = 2.0**-20
"""Relative distance of a bias' scale from the accumulator's that float32 rounding explains."""


_SHORT, _LONG = ("int32", dtypes.int_range("int32")), ("int64", (-(1 << 46), 1 << 46))
_RANGES = {1: (_SHORT,), 2: (_SHORT, _LONG)}
"""By bytes of the data: what a bias may be; sums of more than 48 bits are not scaled in fixed point."""


@frozen
class Sum:
    """``output`` = ``operand`` + the constant ``term``."""

    output: str
    operand: str
    term: str


def accumulator_quant(data: Quant, weight: Quant) -> Quant:
    """The quantisation of the sum of products: one scale, or one per output channel along axis 0."""
    scales = tuple(data.scale[0] * scale for scale in weight.scale)
    return Quant(scales, (0,) * len(scales), None if weight.axis is None else 0)


def integer_bias(
    terms: Sequence[tuple[Array, Quant | None]], accumulator: Quant, units: int, data_dtype: str
) -> Array | None:
    """The sum of constant ``terms`` (data, quantisation or None for floats), int32 of ``units`` elements.

    A single term that is an int32 bias at the accumulator's scale is returned as it is, the same array. None where an
    integer term has no scale or one per channel that do not fit, or where the sum leaves int32 (2**46, of int64 for 16-bit data).
    """
    if len(terms) == 1 and _fits(*terms[0], accumulator, units):
        return terms[0][0]
    total = np.zeros(units, np.float64)
    for data, quant in terms:
        real = _real(data, quant)
        if real is None or real.size not in (1, units):
            return None
        total += real
    levels = np.rint(total / np.array(accumulator.scale))
    for dtype, (low, high) in _RANGES[dtypes.nbytes(data_dtype)]:
        if np.isfinite(levels).all() and low <= levels.min() and levels.max() <= high:
            return np.asarray(levels, dtypes.to_numpy(dtype))
    return None


def sum_behind(
    node: Node, units: int, types: Mapping[str, TensorType], only_user: Callable[[str], Node | None]
) -> Sum | None:
    """The addition of a constant per output channel that is the only reader of a layer, or of its reshaped result."""
    value, axis = node.outputs[0], -1
    user = only_user(value)
    if node.op == "conv2d":
        axis = {"NCHW": -3}.get(node.attr("layout"), -1)
    elif user is not None and user.op == "reshape" and types[user.outputs[0]].shape[-1:] == (units,):
        value = user.outputs[0]
        user = only_user(value)
    if user is None or user.op != "add" or user.attrs.get("activation", "") or user.inputs.count(value) != 1:
        return None
    term = user.inputs[1 - user.inputs.index(value)]
    shape = types[term].shape
    one_channel = all(extent == 1 for k, extent in enumerate(shape) if k != len(shape) + axis)
    if not one_channel or types[user.outputs[0]].shape != types[value].shape:
        return None
    return Sum(user.outputs[0], value, term)


def _fits(data: Array, quant: Quant | None, accumulator: Quant, units: int) -> bool:
    """Whether a bias is int32 with the accumulator's scale (up to float32 rounding) and zero point 0."""
    if quant is None or data.dtype != np.int32 or data.shape != (units,) or any(quant.zero_point):
        return False
    ratio = np.array(quant.scale) / np.array(accumulator.scale)
    return len(quant.scale) in (1, units) and bool((np.abs(ratio - 1) <= _TOLERANCE).all())


def _real(data: Array, quant: Quant | None) -> Array | None:
    """The real numbers that constant data stands for, flat; None for integers without quantisation."""
    if quant is None:
        return np.asarray(data, np.float64).reshape(-1) if dtypes.is_float(data.dtype.name) else None
    if len(quant.scale) not in (1, data.size):
        return None
    levels = data.astype(np.float64).reshape(-1) - np.array(quant.zero_point)
    return np.asarray(levels * np.array(quant.scale))


# ---- Relu and clip that keep a value's quantisation are limits on integers: they join the layer before, or mean
# nothing.

_ACTIVATIONS = ("", "relu", "relu6", "relu_n1_to_1")


def fuse_clamps(graph: Graph) -> Graph:
    """The graph with quantised relu and clip made the ``activation`` of their producer, or dropped where implied."""
    readers = Counter(name for node in graph.nodes for name in node.inputs)
    kept = {*graph.outputs, *graph.updates.values()}
    readers.update(kept)
    renamed: dict[str, str] = {}
    made: dict[str, int] = {}
    nodes: list[Node] = []
    for old in graph.nodes:
        node = replace(old, inputs=tuple(renamed.get(name, name) for name in old.inputs))
        source = node.inputs[0] if node.inputs else ""
        activation = _activation(graph, node)
        producer = nodes[made[source]] if source in made else None
        if activation == "" and node.outputs[0] not in kept:
            renamed[node.outputs[0]] = source
            readers[source] += readers[node.outputs[0]] - 1
            continue
        while producer is not None and registry.get(producer.op).moves and readers[producer.inputs[0]] == 1:
            producer = nodes[made[producer.inputs[0]]] if producer.inputs[0] in made else None
        joinable = producer is not None and producer.attrs.get("activation") == "" and readers[source] == 1
        if producer is not None and activation is not None and joinable:
            place = made[producer.outputs[0]]
            nodes[place] = replace(producer, attrs={**producer.attrs, "activation": activation})
            last = made.pop(source)
            nodes[last] = replace(nodes[last], outputs=node.outputs)
            made[node.outputs[0]] = last
            continue
        made.update({name: len(nodes) for name in node.outputs})
        nodes.append(node)
    return graph.with_nodes(nodes)


def _activation(graph: Graph, node: Node) -> str | None:
    """The activation that limits integers as ``node`` does; None if it is no such limit, or one without a name."""
    if node.op not in ("relu", "clip"):
        return None
    kind, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    if kind.quant is None or kind.quant.axis is not None or (kind.quant, kind.dtype) != (result.quant, result.dtype):
        return None
    limits = _limits(node, kind)
    for name in _ACTIVATIONS:
        if activation_range(name, kind.quant, kind.dtype, Rounding.EVEN) == limits:
            return name
    return None


def _limits(node: Node, kind: TensorType) -> tuple[int, int]:
    """The least and the greatest integer that a quantised relu or clip lets through."""
    assert kind.quant is not None
    low, high = dtypes.int_range(kind.dtype)
    scale, zero = np.float32(kind.quant.scale[0]), kind.quant.zero_point[0]
    if node.op == "relu":
        return max(low, min(high, zero)), high

    def level(real: float) -> int:
        return max(low, min(high, zero + int(np.rint(np.float32(real) / scale))))

    return level(node.attr("minimum")), level(node.attr("maximum"))


# ---- Quantised operators out of ``dequantize -> operator -> quantize``, the form in which ONNX quantisers write
# them.
#
# A rewritten operator works on integer tensors whose types carry ``quant``, with ``rounding="even"``, and still means
# what was written: dequantize the inputs, compute in real numbers, divide by the output's scale, round half to even,
# saturate. Activations have 8 or 16 bits, weights 8. What the pass does not know stays as it is, which is as exact and slower.
#
# The pass walks the graph once and keeps, for every float value that is an integer value dequantised, that integer
# value (``source``). Four facts carry it, for scales > 0 and zero points inside the dtype:
#
# - quantize(dequantize(q)) = q where both have one scale and zero point and q has at most 16 bits;
# - moving elements, max pooling and maxima, which only choose elements, commute with both;
# - relu and clip commute with quantize, for rounding is monotone;
# - so an operator whose only reader is quantize, perhaps behind such operators, may itself produce integers.

LAYERS = frozenset(("conv2d", "conv2d_transpose", "dense"))
"""Products with constant weights, which may have a scale for each output channel, and a bias."""
_BINARY = frozenset(("add", "sub", "mul", "div", "squared_difference", "matmul", "prelu"))
_MIXED = frozenset(("matmul", "prelu"))
"""Those of them whose operands may differ in dtype."""
_COMPARISONS = frozenset(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"))
_UNARY = frozenset(("avg_pool2d", "cumsum", "l2_normalize", "log_softmax", "mean", "resample", "softmax", "sum"))
_SEARCHES = frozenset(("argmax", "argmin"))


def recognise(graph: Graph, context: PassContext) -> Graph:
    """The graph with quantised operators where it says ``dequantize -> operator -> quantize``."""
    if all(node.op not in ("dequantize", "loop") for node in graph.nodes):
        return graph
    return _recognised(graph)


PASS = Pass("qdq", recognise, 0, around=True)


def _recognised(graph: Graph) -> Graph:
    return spread_quantisation(fuse_clamps(_Recogniser(graph).run()))


def has_integer_form(node: Node, graph: Graph) -> bool:
    """Whether an operator on floats becomes one on integers between ``dequantize`` and ``quantize``, where dtypes allow it."""
    if node.op in LAYERS:
        return node.inputs[1] in graph.consts
    return node.op in _BINARY | _UNARY | CHOICES | JOINS | {"layer_norm"} or is_function(node)


class _Recogniser(Values):
    """One walk over the graph."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
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
        first = known[0] if known else None
        if node.op == "dequantize":
            done = self.dequantize(node)
        elif node.op == "quantize":
            done = self.quantize(node)
        elif node.outputs[0] in self.biased:
            done = self.register(node.outputs[0], self.source[self.biased[node.outputs[0]]], node.loc)
        elif node.op in JOINS:
            done = self.join(node)
        elif node.op == "loop":
            done = self.loop(node, known)
        elif node.op in _BINARY:
            done = self.compute(node, self.with_number(node, known))
        elif first is None:
            done = False
        elif node.op in LAYERS:
            done = self.product(node)
        elif node.op in _COMPARISONS | _SEARCHES:
            done = self.ordered(node, [name for name in known if name])
        elif moves(node) or node.op in CHOICES:
            done = self.move(node, first) or (node.op in CHOICES and self.compute(node, [first]))
        else:
            done = (is_function(node) or node.op in _UNARY) and self.compute(node, [first])
        if not done:
            for name in node.inputs:
                self.materialise(name)
            self.append(node)

    def dequantize(self, node: Node) -> bool:
        """Register the result; False where the integers are already known under another quantisation."""
        value, (quant, _) = node.inputs[0], quantised_as(node)
        kind = self.types[value]
        if kind.quant not in (None, quant):
            return False
        self.types[value] = replace(kind, quant=quant)
        return self.register(node.outputs[0], value, node.loc)

    def quantize(self, node: Node) -> bool:
        """Drop it where its operand is an integer already; requantise where the scales differ."""
        quant, out_dtype = quantised_as(node)
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
        if node.attr("rounding") != Rounding.EVEN or not (self.is_activation(source) and self.is_activation(output)):
            return False
        self.append(replace(node, inputs=(source,)))
        return True

    def with_number(self, node: Node, known: Sequence[str | None]) -> list[str]:
        """The operands' integers, those of a constant that is one number among them; none where an operand has none."""
        given = [source for source in known if source]
        if not given or len(given) == len(known):
            return given
        dtype = self.types[given[0]].dtype
        found = [source or self.number(name, dtype) for name, source in zip(node.inputs, known, strict=True)]
        return [source for source in found if source] if None not in found else []

    def compute(self, node: Node, sources: Sequence[str]) -> bool:
        """An operator that computes: of operands that differ in dtype those with fewer bits are widened."""
        kind = self.target(node.outputs[0])
        if kind is None or not sources or not all(map(self.is_activation, sources)):
            return False
        mixed = len({self.types[source].dtype for source in sources}) > 1 and node.op not in _MIXED
        operands = [self.widened(source, node.loc) for source in sources] if mixed else sources
        tables = node.inputs[1:] if registry.get(node.op).tables else ()
        return self.produce(node, (*operands, *tables), kind, **EVEN)

    def ordered(self, node: Node, sources: Sequence[str]) -> bool:
        """What depends on the order of numbers alone finds it in integers of one quantisation."""
        kinds = {(self.types[source].quant, self.types[source].dtype) for source in sources}
        if len(sources) != len(node.inputs) or len(kinds) != 1 or not self.is_activation(sources[0]):
            return False
        attrs = {**node.attrs, **EVEN} if node.op in _COMPARISONS else node.attrs
        self.append(replace(node, inputs=tuple(sources), attrs=attrs))
        return True

    def move(self, node: Node, source: str) -> bool:
        """An operator that only chooses elements works on the integers as they are."""
        kind, attrs = self.types[source], dict(EVEN) if node.op in CHOICES else {}
        if not self.is_activation(source) or node.attrs.get("activation", ""):
            return False
        if node.op == "pad":
            value = self.padding_value(node, kind)
            if value is None:
                return False
            attrs["value"] = value
        return self.produce(node, (source, *node.inputs[1:]), kind, **attrs)

    def join(self, node: Node) -> bool:
        """Operands of one quantisation are joined as they are; others, constants too, become what the result does."""
        first = 1 if node.op == "where" else 0
        sources = [self.source.get(name, name) for name in node.inputs[first:]]
        integers = [source for source in sources if self.is_activation(source)]
        on_integers_already = self.types[node.outputs[0]].quant is not None
        if (
            on_integers_already
            or not integers
            or any(source not in self.consts for source in sources if source not in integers)
        ):
            return False
        kinds = {(self.types[source].quant, self.types[source].dtype) for source in sources}
        kind = self.types[integers[0]] if len(kinds) == 1 else self.target(node.outputs[0])
        if kind is None or node.attrs.get("activation", ""):
            return False
        operands = [self.requantised(source, kind, node.loc) for source in sources]
        return self.produce(node, (*node.inputs[:first], *operands), kind, **(EVEN if "rounding" in node.attrs else {}))

    def loop(self, node: Node, known: Sequence[str | None]) -> bool:
        """A loop hands integers from turn to turn where its turns make integers; its body is recognised anew with them."""
        kinds = [self.types[source] if source and self.is_activation(source) else None for source in known]
        given = [Given(kind, self.consts.get(name)) for kind, name in zip(kinds, node.inputs, strict=True)]
        found = on_integers(node.attr("body"), node.attr("carried"), given, _recognised)
        if not any((*found.operands, *found.results)):
            return False
        operands = [self.handed(*each, node.loc) for each in zip(node.inputs, known, found.operands, strict=True)]
        outputs = list(node.outputs)
        for k, kind in enumerate(found.results):
            if kind is not None and outputs[k]:
                kind = replace(kind, shape=self.types[outputs[k]].shape)
                outputs[k] = self.name(outputs[k], kind)
                self.types[outputs[k]] = kind
                self.register(node.outputs[k], outputs[k], node.loc)
        attrs = {**node.attrs, "body": found.body}
        self.append(replace(node, inputs=tuple(operands), outputs=tuple(outputs), attrs=attrs))
        return True

    def handed(self, name: str, source: str | None, kind: TensorType | None, loc: Loc) -> str:
        """An operand as integers of ``kind``, or as it is."""
        if kind is None:
            self.materialise(name)
            return name
        return self.requantised(source or name, kind, loc)

    def product(self, node: Node) -> bool:
        """A convolution or dense layer with constant 8-bit weights; a constant added right behind joins its bias."""
        data, weight = self.source[node.inputs[0]], self.source.get(node.inputs[1], "")
        if not self.is_activation(data) or weight not in self.consts:
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
        return self.produce(node, (data, weight, *bias), target, **EVEN)

    def bias(self, node: Node, terms: Sequence[str], quant: Quant) -> tuple[str, ...] | None:
        """The bias that is the sum of ``terms``, as the inputs to add (none without terms); None if there is none."""
        if not terms:
            return ()
        sources = [self.source.get(name, name) for name in terms]
        if any(source not in self.consts for source in sources):
            return None
        known = [(self.consts[source], self.types[source].quant) for source in sources]
        data = integer_bias(
            known, quant, self.types[node.inputs[1]].shape[0], self.types[self.source[node.inputs[0]]].dtype
        )
        if data is None:
            return None
        if data is self.consts[sources[0]]:
            return (sources[0],)
        name = self.new_name(f"{node.outputs[0]}_bias")
        self.types[name] = TensorType(data.shape, data.dtype.name, quant)
        self.consts[name] = data
        return (name,)
