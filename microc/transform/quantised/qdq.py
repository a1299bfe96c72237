# SPDX-License-Identifier: Apache-2.0
"""Recognition of quantised operators that are written as ``dequantize -> operator -> quantize`` (QDQ)."""

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
    LoopOperand,
    QdqGraphBuilder,
    convert_loop,
    is_unary_function,
    only_moves_elements,
    propagate_quantisation_over_moves,
    quant_and_dtype_of,
    store_uint16_as_int16,
)

# ---- Biases of quantised layers: integers at the scale of the accumulator, which is data scale times weight scale.
#
# Quantisers write int32 biases of exactly this scale, which are used unchanged. Other biases (floats, or integers of another
# scale) are rounded to this scale, with an error of at most half a unit of the accumulator: to int32, or to int64 if 16-bit data
# need it.

_TOLERANCE = 2.0**-20
"""Largest relative difference between the scale of a bias and that of the accumulator that float32 rounding can
cause."""


_SHORT, _LONG = ("int32", dtypes.int_range("int32")), ("int64", (-(1 << 46), 1 << 46))
_RANGES = {1: (_SHORT,), 2: (_SHORT, _LONG)}
"""Possible dtypes of a bias and their ranges, by number of bytes of the data. Sums of more than 48 bits cannot be
scaled in fixed point."""


@frozen
class ConstantAddition:
    """Node that adds a constant, described by the names of its values: ``output`` = ``operand`` + ``constant_name``."""

    output: str
    operand: str
    constant_name: str


def compute_accumulator_quant(data_quant: Quant, weight_quant: Quant) -> Quant:
    """Return the quantisation of sums of products of data and weights: one scale, or one for each output channel along
    axis 0."""
    scales = tuple(data_quant.scale[0] * scale for scale in weight_quant.scale)
    return Quant(scales, (0,) * len(scales), None if weight_quant.axis is None else 0)


def sum_terms_as_integer_bias(
    terms: Sequence[tuple[Array, Quant | None]], accumulator_quant: Quant, output_channel_count: int, data_dtype: str
) -> Array | None:
    """Return the sum of constant ``terms`` as integer biases for ``output_channel_count`` channels.

    A term consists of data and their quantisation, which is None for floats. If the only term is an int32 bias at the
    accumulator's scale, the same array is returned. Return None if a term is an integer without a suitable scale, or if
    the sum does not fit int32 (for 16-bit data, 2**46)."""
    if len(terms) == 1 and _is_accumulator_bias(*terms[0], accumulator_quant, output_channel_count):
        return terms[0][0]
    total = np.zeros(output_channel_count, np.float64)
    for data, quant in terms:
        real = _dequantise_constant(data, quant)
        if real is None or real.size not in (1, output_channel_count):
            return None
        total += real
    levels = np.rint(total / np.array(accumulator_quant.scale))
    for dtype, (low, high) in _RANGES[dtypes.nbytes(data_dtype)]:
        if np.isfinite(levels).all() and low <= levels.min() and levels.max() <= high:
            return np.asarray(levels, dtypes.to_numpy(dtype))
    return None


def find_constant_addition_after(
    node: Node,
    output_channel_count: int,
    types: Mapping[str, TensorType],
    find_only_reader: Callable[[str], Node | None],
) -> ConstantAddition | None:
    """Return the addition of a constant per output channel after a layer, or None.

    The addition must be the only reader of the layer's result, or of its reshaped result. ``find_only_reader`` returns
    the only reader of a value, or None."""
    product, value = registry.product_of(node, types), node.outputs[0]
    assert product is not None
    user, axis = find_only_reader(value), product.channel_axis
    is_reshaped = user is not None and user.op == "reshape" and (product.transposed or not product.windows)
    if user is not None and is_reshaped and types[user.outputs[0]].shape[-1:] == (output_channel_count,):
        value = user.outputs[0]
        user = find_only_reader(value)
    if user is None or user.op != "add" or user.attrs.get("activation", "") or user.inputs.count(value) != 1:
        return None
    term = user.inputs[1 - user.inputs.index(value)]
    shape = types[term].shape
    one_channel = all(extent == 1 for k, extent in enumerate(shape) if k != len(shape) + axis)
    if not one_channel or types[user.outputs[0]].shape != types[value].shape:
        return None
    return ConstantAddition(user.outputs[0], value, term)


def _is_accumulator_bias(data: Array, quant: Quant | None, accumulator_quant: Quant, output_channel_count: int) -> bool:
    """Test whether a bias is int32 with zero point 0 and the accumulator's scale (up to float32 rounding)."""
    if quant is None or data.dtype != np.int32 or data.shape != (output_channel_count,) or any(quant.zero_point):
        return False
    ratio = np.array(quant.scale) / np.array(accumulator_quant.scale)
    return len(quant.scale) in (1, output_channel_count) and bool((np.abs(ratio - 1) <= _TOLERANCE).all())


def _dequantise_constant(data: Array, quant: Quant | None) -> Array | None:
    """Return the real numbers that constant data represent, as a flat array; None for integers without a suitable
    quantisation."""
    if quant is None:
        return np.asarray(data, np.float64).reshape(-1) if dtypes.is_float(data.dtype.name) else None
    if len(quant.scale) not in (1, data.size):
        return None
    levels = data.astype(np.float64).reshape(-1) - np.array(quant.zero_point)
    return np.asarray(levels * np.array(quant.scale))


# ---- Fusion of relu and clip that keep a value's quantisation: they become the activation of the preceding layer, or are removed
# if the range of the integers implies them.

_ACTIVATIONS = ("", "relu", "relu6", "relu_n1_to_1")


def fuse_clamps(graph: Graph) -> Graph:
    """Fuse quantised relu and clip into the ``activation`` of their producer, or remove them if they change nothing."""
    readers = Counter(name for node in graph.nodes for name in node.inputs)
    kept = {*graph.outputs, *graph.updates.values()}
    readers.update(kept)
    renamed: dict[str, str] = {}
    made_by: dict[str, int] = {}
    nodes: list[Node] = []
    for old in graph.nodes:
        node = replace(old, inputs=tuple(renamed.get(name, name) for name in old.inputs))
        source = node.inputs[0] if node.inputs else ""
        activation = _find_equal_activation(graph, node)
        producer = nodes[made_by[source]] if source in made_by else None
        if activation == "" and node.outputs[0] not in kept:
            renamed[node.outputs[0]] = source
            readers[source] += readers[node.outputs[0]] - 1
            continue
        # Moves between the layer and the clamp commute with the clamp.
        while producer is not None and registry.get(producer.op).moves and readers[producer.inputs[0]] == 1:
            producer = nodes[made_by[producer.inputs[0]]] if producer.inputs[0] in made_by else None
        joinable = producer is not None and producer.attrs.get("activation") == "" and readers[source] == 1
        if producer is not None and activation is not None and joinable:
            position = made_by[producer.outputs[0]]
            nodes[position] = replace(producer, attrs={**producer.attrs, "activation": activation})
            last_position = made_by.pop(source)
            nodes[last_position] = replace(nodes[last_position], outputs=node.outputs)
            made_by[node.outputs[0]] = last_position
            continue
        made_by.update({name: len(nodes) for name in node.outputs})
        nodes.append(node)
    return graph.with_nodes(nodes)


def _find_equal_activation(graph: Graph, node: Node) -> str | None:
    """Return the activation that clamps to the same integers as the relu or clip ``node``.

    Return an empty string if the clamp changes nothing, and None for other nodes or if there is no such activation."""
    if node.op not in ("relu", "clip"):
        return None
    kind, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    if kind.quant is None or kind.quant.axis is not None or (kind.quant, kind.dtype) != (result.quant, result.dtype):
        return None
    limits = _find_clamp_limits_as_integers(node, kind)
    for name in _ACTIVATIONS:
        if activation_range(name, kind.quant, kind.dtype, Rounding.EVEN) == limits:
            return name
    return None


def _find_clamp_limits_as_integers(node: Node, tensor_type: TensorType) -> tuple[int, int]:
    """Return the least and the greatest stored integer of the result of a quantised relu or clip."""
    assert tensor_type.quant is not None
    low, high = dtypes.int_range(tensor_type.dtype)
    scale, zero = np.float32(tensor_type.quant.scale[0]), tensor_type.quant.zero_point[0]
    if node.op == "relu":
        return max(low, min(high, zero)), high

    def quantise_clamp_limit(real: float) -> int:
        return int(np.clip(zero + np.rint(float(np.float32(real)) / float(scale)), low, high))

    return quantise_clamp_limit(node.attr("minimum")), quantise_clamp_limit(node.attr("maximum"))


# ---- Recognition of quantised operators in ``dequantize -> operator -> quantize``, the form that ONNX quantisers write.
#
# A rewritten operator works on integer tensors whose types have ``quant``, with ``rounding="even"``, and computes the same as
# before: dequantize the inputs, compute in real numbers, divide by the output's scale, round half to even, saturate.
# Activations have 8 or 16 bits, weights 8 bits. An unknown operator stays unchanged, which is as exact but slower.
#
# The pass walks the graph once and records the integer value (``source``) of every float value that is dequantised from one. It
# is correct by four facts, for scales > 0 and zero points within the range of the dtype:
#
# - quantize(dequantize(q)) = q if both have the same scale and zero point and q has at most 16 bits;
# - operators that only move or select elements, such as max pooling, commute with quantize and dequantize;
# - relu and clip commute with quantize, because rounding is monotone;
# - therefore an operator whose only reader is quantize, perhaps after such operators, may itself compute integers.

_BINARY = frozenset(("add", "sub", "mul", "div", "squared_difference", "matmul", "prelu"))
"""Operators on two quantised operands."""
_MIXED = frozenset(("matmul", "prelu"))
"""Binary operators whose operands may have different dtypes."""
_COMPARISONS = frozenset(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"))
_UNARY = frozenset(("avg_pool2d", "cumsum", "l2_normalize", "log_softmax", "mean", "resample", "softmax", "sum"))
_SEARCHES = frozenset(("argmax", "argmin"))


def recognise_quantised_layers(graph: Graph, context: PassContext) -> Graph:
    """Replace ``dequantize -> operator -> quantize`` by quantised operators."""
    if all(node.op not in ("dequantize", "loop") for node in graph.nodes):
        return graph
    return _recognise_layers_of_graph(store_uint16_as_int16(graph))


PASS = Pass("qdq", recognise_quantised_layers, 0, around=True)


def _recognise_layers_of_graph(graph: Graph) -> Graph:
    """Recognise the quantised operators of a graph or of a loop's body, fuse clamps, and copy quantisation across
    moves."""
    return propagate_quantisation_over_moves(fuse_clamps(_QdqRecogniser(graph).recognise_operators()))


def has_integer_form(node: Node, graph: Graph) -> bool:
    """Test whether a float operator between ``dequantize`` and ``quantize`` becomes an integer operator, if its dtypes
    allow it."""
    if registry.is_layer(node):
        return node.inputs[1] in graph.consts
    return node.op in _BINARY | _UNARY | CHOICES | JOINS | {"layer_norm"} or is_unary_function(node)


class _QdqRecogniser(QdqGraphBuilder):
    """Writer of the graph with quantised operators, in one walk over the old graph.

    ``alias`` maps integers to equal integers that replace them. ``biased`` maps a sum that has become part of a layer's
    bias to the other operand of this sum."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.alias: dict[str, str] = {}
        self.biased: dict[str, str] = {}

    def recognise_operators(self) -> Graph:
        # Constants first: a constant that is added after a layer becomes part of the layer's bias, before the walk reaches the
        # node that dequantises this constant.
        for node in self.graph.nodes:
            if node.op == "dequantize" and node.inputs[0] in self.consts:
                self.visit_dequantize(node)
        for node in self.graph.nodes:
            self.visit(replace(node, inputs=tuple(self.alias.get(name, name) for name in node.inputs)))
        for name in (*self.graph.outputs, *self.graph.updates.values()):
            self.emit_dequantize(name)
        return self.graph.with_nodes(self.nodes, types=self.types, consts=self.consts)

    def visit(self, node: Node) -> None:
        """Rewrite one node. If no rule applies, the node is kept and its operands are dequantised."""
        sources = [self.source.get(name) for name in node.inputs]
        first = sources[0] if sources else None
        if node.op == "dequantize":
            is_rewritten = self.visit_dequantize(node)
        elif node.op == "quantize":
            is_rewritten = self.visit_quantize(node)
        elif node.outputs[0] in self.biased:  # this addition is already part of the bias of the preceding layer
            is_rewritten = self.record_dequantised(node.outputs[0], self.source[self.biased[node.outputs[0]]], node.loc)
        elif node.op in JOINS:
            is_rewritten = self.visit_concatenation(node)
        elif node.op == "loop":
            is_rewritten = self.visit_loop(node, sources)
        # Either operand may be a float constant, so binary operators come before the test of the first one.
        elif node.op in _BINARY:
            is_rewritten = self.visit_arithmetic_operator(node, self.find_integer_operands(node, sources))
        elif first is None:
            is_rewritten = False
        elif first in self.consts and registry.get(node.op).moves and len(node.inputs) == 1:
            is_rewritten = self.visit_constant_move(node, first)
        elif registry.is_layer(node):
            is_rewritten = self.visit_weighted_layer(node)
        elif node.op in _COMPARISONS | _SEARCHES:
            is_rewritten = self.visit_comparison_operator(node, [name for name in sources if name])
        # A choice that cannot keep its operand's quantisation, because of an activation, is computed.
        elif only_moves_elements(node) or node.op in CHOICES:
            is_rewritten = self.visit_data_movement(node, first) or (
                node.op in CHOICES and self.visit_arithmetic_operator(node, [first])
            )
        else:
            is_rewritten = (is_unary_function(node) or node.op in _UNARY) and self.visit_arithmetic_operator(
                node, [first]
            )
        if not is_rewritten:
            for name in node.inputs:
                self.emit_dequantize(name)
            self.append(node)

    def visit_dequantize(self, node: Node) -> bool:
        """Register the float result of a dequantize node; return False if its integers already have another
        quantisation."""
        value, (quant, _) = node.inputs[0], quant_and_dtype_of(node)
        kind = self.types[value]
        if kind.quant not in (None, quant):
            return False
        self.types[value] = replace(kind, quant=quant)
        return self.record_dequantised(node.outputs[0], value, node.loc)

    def visit_quantize(self, node: Node) -> bool:
        """Remove a quantize node if its operand is dequantised from the same integers; requantise the integers if the
        scales differ.

        Return False if the operand is not dequantised from integers."""
        quant, out_dtype = quant_and_dtype_of(node)
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

    def find_integer_operands(self, node: Node, known_integers: Sequence[str | None]) -> list[str]:
        """Return the integers from which the operands are dequantised; return an empty list if an operand has none.

        A float constant whose elements are all equal is converted to exact integers."""
        present = [source for source in known_integers if source]
        if not present or len(present) == len(known_integers):
            return present
        dtype = self.types[present[0]].dtype
        completed = [
            source or self.represent_constant_exactly(name, dtype)
            for name, source in zip(node.inputs, known_integers, strict=True)
        ]
        return [source for source in completed if source] if None not in completed else []

    def visit_arithmetic_operator(self, node: Node, sources: Sequence[str]) -> bool:
        """Rewrite an operator that computes new numbers to one on integers. If the dtypes of operands differ, the
        narrower operands are widened.

        Return False if the result is not quantised."""
        kind = self.find_type_after_quantize(node.outputs[0])
        if kind is None or not sources or not all(map(self.is_activation, sources)):
            return False
        mixed = len({self.types[source].dtype for source in sources}) > 1 and node.op not in _MIXED
        operands = [self.widen_to_int16(source, node.loc) for source in sources] if mixed else sources
        tables = node.inputs[1:] if registry.get(node.op).tables else ()
        return self.emit_integer_node(node, (*operands, *tables), kind, **EVEN)

    def visit_comparison_operator(self, node: Node, sources: Sequence[str]) -> bool:
        """Rewrite an operator that depends only on the order of numbers. Return False if the operands have different
        quantisations."""
        kinds = {(self.types[source].quant, self.types[source].dtype) for source in sources}
        if len(sources) != len(node.inputs) or len(kinds) != 1 or not self.is_activation(sources[0]):
            return False
        attrs = {**node.attrs, **EVEN} if node.op in _COMPARISONS else node.attrs
        self.append(replace(node, inputs=tuple(sources), attrs=attrs))
        return True

    def visit_data_movement(self, node: Node, source: str) -> bool:
        """Rewrite an operator that only selects or moves elements to the same operator on integers. Return False if
        that is not equivalent."""
        kind, attrs = self.types[source], dict(EVEN) if node.op in CHOICES else {}
        if not self.is_activation(source) or node.attrs.get("activation", ""):
            return False
        if node.op == "pad":
            value = self.quantise_padding_value(node, kind)
            if value is None:
                return False
            attrs["value"] = value
        return self.emit_integer_node(node, (source, *node.inputs[1:]), kind, **attrs)

    def visit_constant_move(self, node: Node, source: str) -> bool:
        """Move the integers of a constant at compile time, as weights are before a layer. Return False if the axis of its
        scales is no axis of the result."""
        kind = self.types[source]
        assert kind.quant is not None
        axis = kind.quant.axis
        if axis is not None:
            mapped_axes = registry.get(node.op).axis_map(node, self.types)[0]
            axis = None if mapped_axes is None else mapped_axes[axis]
            if axis is None:
                return False
        output = self.new_name(f"{node.outputs[0]}_quantized")
        (self.consts[output],) = registry.get(node.op).reference(node.attrs, [self.consts[source]])
        self.types[output] = TensorType(self.consts[output].shape, kind.dtype, replace(kind.quant, axis=axis))
        return self.record_dequantised(node.outputs[0], output, node.loc)

    def visit_concatenation(self, node: Node) -> bool:
        """Rewrite an operator that joins operands. Operands whose quantisation differs from the result's are
        requantised."""
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
        kind = self.types[integers[0]] if len(kinds) == 1 else self.find_type_after_quantize(node.outputs[0])
        if kind is None or node.attrs.get("activation", ""):
            return False
        operands = [self.requantise(source, kind, node.loc) for source in sources]
        return self.emit_integer_node(
            node, (*node.inputs[:first], *operands), kind, **(EVEN if "rounding" in node.attrs else {})
        )

    def visit_loop(self, node: Node, sources: Sequence[str | None]) -> bool:
        """Rewrite a loop to carry and stack integers if its iterations compute integers; its body is recognised again
        with integer inputs."""
        types = [self.types[source] if source and self.is_activation(source) else None for source in sources]
        loop_operands = [
            LoopOperand(kind, self.consts.get(name)) for kind, name in zip(types, node.inputs, strict=True)
        ]
        integer_loop = convert_loop(node.attr("body"), node.attr("carried"), loop_operands, _recognise_layers_of_graph)
        if not any((*integer_loop.operand_types, *integer_loop.result_types)):
            return False
        operands = [
            self.convert_loop_operand(*each, node.loc)
            for each in zip(node.inputs, sources, integer_loop.operand_types, strict=True)
        ]
        outputs = list(node.outputs)
        for k, kind in enumerate(integer_loop.result_types):
            if kind is not None and outputs[k]:
                kind = replace(kind, shape=self.types[outputs[k]].shape)
                outputs[k] = self.name_of_integers(outputs[k], kind)
                self.types[outputs[k]] = kind
                self.record_dequantised(node.outputs[k], outputs[k], node.loc)
        attrs = {**node.attrs, "body": integer_loop.body}
        self.append(replace(node, inputs=tuple(operands), outputs=tuple(outputs), attrs=attrs))
        return True

    def convert_loop_operand(
        self, value_name: str, integers_name: str | None, tensor_type: TensorType | None, loc: Loc
    ) -> str:
        """Return the name of an operand as integers of type ``tensor_type``, or as floats if ``tensor_type`` is
        None."""
        if tensor_type is None:
            self.emit_dequantize(value_name)
            return value_name
        return self.requantise(integers_name or value_name, tensor_type, loc)

    def visit_weighted_layer(self, node: Node) -> bool:
        """Rewrite a convolution or dense layer with constant 8-bit weights to one on integers.

        A constant that is added directly after the layer becomes part of its bias."""
        data, weight = self.source[node.inputs[0]], self.source.get(node.inputs[1], "")
        if not self.is_activation(data) or weight not in self.consts:
            return False
        kind = self.types[weight]
        if kind.dtype not in BYTES or kind.quant is None or kind.quant.axis not in (None, 0):
            return False
        terms = [name for name in node.inputs[2:] if name]
        sum_ = find_constant_addition_after(node, kind.shape[0], self.types, self.only_user)
        target = self.find_type_after_quantize(sum_.output if sum_ else node.outputs[0])
        bias = self.find_layer_bias(
            node,
            terms + ([sum_.constant_name] if sum_ else []),
            compute_accumulator_quant(self.quant(data), kind.quant),
        )
        if target is None or bias is None:
            return False
        if sum_:
            self.biased[sum_.output] = sum_.operand
        return self.emit_integer_node(node, (data, weight, *bias), target, **EVEN)

    def find_layer_bias(
        self, node: Node, bias_terms: Sequence[str], accumulator_quant: Quant
    ) -> tuple[str, ...] | None:
        """Return the operands of the layer that add the sum of ``bias_terms``: an empty tuple without terms, None if
        the sum is no integer bias.

        ``accumulator_quant``: quantisation of the accumulator."""
        if not bias_terms:
            return ()
        sources = [self.source.get(name, name) for name in bias_terms]
        if any(source not in self.consts for source in sources):
            return None
        term_data = [(self.consts[source], self.types[source].quant) for source in sources]
        data = sum_terms_as_integer_bias(
            term_data,
            accumulator_quant,
            self.types[node.inputs[1]].shape[0],
            self.types[self.source[node.inputs[0]]].dtype,
        )
        if data is None:
            return None
        if data is self.consts[sources[0]]:
            return (sources[0],)
        name = self.new_name(f"{node.outputs[0]}_bias")
        self.types[name] = TensorType(data.shape, data.dtype.name, accumulator_quant)
        self.consts[name] = data
        return (name,)
