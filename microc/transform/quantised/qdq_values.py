# SPDX-License-Identifier: Apache-2.0
"""State of the pass ``qdq``: quantisation of values that are only moved, integers from which float values are
dequantised, loops on integers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import Attr, Graph, Loc, Node, Quant, TensorType, fresh_name, new_value
from microc.ops import registry
from microc.ops.attributes import Rounding, Ties

# ---- Quantisation of integers that are only moved. It is the same before and after the move.
#
# Quantisers write Reshape and Transpose on integers whose quantisation the file does not contain; it follows from the nodes that
# read or compute these integers. Rules that reorder operators rely on it.


def propagate_quantisation_over_moves(graph: Graph) -> Graph:
    """Copy the per-tensor quantisation between operand and result of each move, if only one of them has a
    quantisation."""
    types = dict(graph.types)
    moves = [node for node in graph.nodes if registry.get(node.op).moves]
    _propagate_in_order_of_moves(types, moves)
    _propagate_in_order_of_moves(types, reversed(moves))
    return graph.with_nodes(graph.nodes, types=types)


def _propagate_in_order_of_moves(types_by_value: dict[str, TensorType], moves: Iterable[Node]) -> None:
    """Copy the per-tensor quantisation of one side of each move to the other side if that has none, in the order of
    ``moves``."""
    for node in moves:
        ends = node.inputs[0], node.outputs[0]
        for known, other in (ends, ends[::-1]):
            quant = types_by_value[known].quant
            if quant is not None and quant.axis is None and types_by_value[other].quant is None:
                types_by_value[other] = replace(types_by_value[other], quant=quant)


# ---- uint16 as int16. No integer kernel has uint16: integers and zero point are both reduced by 2**15. This changes neither the
# numbers that they represent nor where they saturate.

_UINT16_OFFSET = 1 << 15


def store_uint16_as_int16(graph: Graph) -> Graph:
    """Replace uint16 between ``quantize`` and ``dequantize`` by int16, in subgraphs too.

    Inputs, outputs and values that other nodes read or write keep uint16; a dequantize and a quantize convert them
    exactly."""
    kept = {*graph.inputs, *graph.outputs, *graph.state, *graph.updates.values()}
    types, consts, nodes = dict(graph.types), dict(graph.consts), list[Node]()
    quantised = {node.outputs[0] for node in graph.nodes if _is_quantize_of_floats(node, graph)}
    internal_values = {
        name
        for name, users in graph.consumers().items()
        if types[name].dtype == "uint16"
        and name not in kept
        and (name in consts or name in quantised)
        and all(user.op == "dequantize" for user in users)
    }

    for node in graph.nodes:
        regions = {name: store_uint16_as_int16(node.attr(name)) for name in registry.get(node.op).regions}
        node = replace(node, attrs={**node.attrs, **regions}) if regions else node
        is_dequantize = node.op == "dequantize"
        value = node.inputs[0] if is_dequantize else node.outputs[0]
        if not (is_dequantize or value in quantised) or graph.types[value].dtype != "uint16":
            nodes.append(node)
            continue
        scales: dict[str, Attr] = {"scale": node.attr("scale"), "axis": node.attr("axis")}
        scales["zero_point"] = tuple(zero - _UINT16_OFFSET for zero in node.attr("zero_point"))
        to_int16: Mapping[str, Attr] = {**scales, "out_dtype": "int16", **EVEN}
        if value in internal_values:
            types[value] = replace(types[value], dtype="int16")
            if value in consts and consts[value].dtype == np.uint16:
                consts[value] = (consts[value].astype(np.int32) - _UINT16_OFFSET).astype(np.int16)
            nodes.append(replace(node, attrs=scales if is_dequantize else {**node.attrs, **to_int16}))
            continue
        real = new_value(types, f"{value}_real", replace(graph.types[value], dtype="float32", quant=None))
        integers = new_value(types, f"{value}_int16", replace(graph.types[value], dtype="int16", quant=None))
        quantize = Node("quantize", (real,), (integers,), to_int16, node.loc)
        dequantize = Node("dequantize", (integers,), (real,), scales, node.loc)
        if is_dequantize:
            nodes += replace(node, outputs=(real,)), quantize, replace(dequantize, outputs=node.outputs)
        else:
            nodes += replace(quantize, inputs=node.inputs), dequantize, replace(node, inputs=(real,))
    return graph.with_nodes(nodes, types=types, consts=consts)


def _is_quantize_of_floats(node: Node, graph: Graph) -> bool:
    """Test whether a node quantises float32 values."""
    return node.op == "quantize" and graph.types[node.inputs[0]].dtype == "float32"


def is_unary_function(node: Node) -> bool:
    """Test whether a node is an elementwise function of one operand, so that a table computes it between integers of
    any two scales."""
    definition = registry.get(node.op)
    return definition.elementwise and len(node.inputs) == 1 and "rounding" in definition.attrs and node.op != "quantize"


def only_moves_elements(node: Node) -> bool:
    """Test whether all elements of a node's result are elements of its first operand or padding."""
    picks_elements = node.op == "resample" and len(node.inputs) == 1 + len(node.attr("axes"))
    return registry.get(node.op).moves or node.op == "pad" or picks_elements


# ---- Values of the pass ``qdq``: the integers from which a float value is dequantised, and those to which it is quantised.
#
# :class:`QdqGraphBuilder` writes the new graph. For a float value that is dequantised from integers it records the integers
# (``source``). The new graph dequantises the integers only if a node reads the floats.

BYTES = ("int8", "uint8")
ACTIVATIONS = (*BYTES, "int16")
"""Dtypes of quantised activations."""
EVEN: Mapping[str, Attr] = {"rounding": Rounding.EVEN}
"""Attribute ``rounding`` of ONNX's quantised operators."""
CHOICES = frozenset(("max_pool2d", "max", "min"))
"""Operators that compute each element of the result by selecting one of several elements."""

JOINS = frozenset(("concat", "maximum", "minimum", "where"))
"""Operators whose result contains elements of several operands."""

CLAMPS = frozenset(("relu", "clip"))
"""Operators that clamp each element."""


def quant_and_dtype_of(node: Node) -> tuple[Quant, Attr]:
    """Return the quantisation and the dtype of the integers of a quantize or dequantize node; the dtype is None for
    dequantize."""
    return Quant(node.attr("scale"), node.attr("zero_point"), node.attr("axis")), node.attrs.get("out_dtype")


class QdqGraphBuilder:
    """Builder of the graph that the pass ``qdq`` returns: its ``nodes``, ``types`` and ``consts``.

    ``source`` maps a float value to the integers from which it is dequantised, and ``origin`` maps it to the location
    of the dequantize node. ``written`` contains the values that a node of the new graph computes."""

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
        """Append a node to the new graph."""
        self.nodes.append(node)
        self.written.update(node.outputs)

    def record_dequantised(self, value: str, source: str, loc: Loc) -> bool:
        """Record that the float ``value`` is dequantised from the integers ``source``; return True."""
        self.source[value] = source
        self.origin[value] = loc
        return True

    def emit_dequantize(self, value: str) -> None:
        """Write the dequantize node of a float value, unless the new graph has it already."""
        if value not in self.source or value in self.written:
            return
        quant = self.quant(self.source[value])
        attrs: Mapping[str, Attr] = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis}
        self.append(Node("dequantize", (self.source[value],), (value,), attrs, self.origin[value]))

    def quant(self, value: str) -> Quant:
        """Return the quantisation of an integer value."""
        found = self.types[value].quant
        assert found is not None
        return found

    def is_activation(self, value: str) -> bool:
        """Test whether an integer value has 8 or 16 bits and one scale for all elements."""
        kind = self.types[value]
        return kind.dtype in ACTIVATIONS and kind.quant is not None and kind.quant.axis is None

    def only_user(self, value: str) -> Node | None:
        """Return the only node that reads ``value``; None if there are several, or if the value is an output or a
        state."""
        users = self.consumers.get(value, ())
        return users[0] if len(users) == 1 and value not in self.kept else None

    def find_type_after_quantize(self, value: str) -> TensorType | None:
        """Return the quantised type to which ``value`` is converted after moves and clamps, with the shape of
        ``value``.

        Return None if the value has other uses."""
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
            if len(users) > 1 or not (only_moves_elements(user) or user.op in CHOICES | CLAMPS | JOINS):
                return None
            value = user.outputs[0]
        return None

    def new_name(self, stem: str) -> str:
        """Return a new unique name that begins with ``stem``."""
        name = fresh_name(self.names, stem)
        self.names.add(name)
        return name

    def name_of_integers(self, value: str, tensor_type: TensorType) -> str:
        """Return a name for the integers of type ``tensor_type`` that represent ``value``.

        It is the name of an existing quantize result with the same quantisation, or a new name."""
        for user in self.consumers.get(value, ()):
            if (
                user.op == "quantize"
                and user.outputs[0] not in self.written
                and quant_and_dtype_of(user) == (tensor_type.quant, tensor_type.dtype)
            ):
                return user.outputs[0]
        return self.new_name(f"{value}_quantized")

    def emit_integer_node(self, node: Node, inputs: Sequence[str], tensor_type: TensorType, **attrs: Attr) -> bool:
        """Write ``node`` on the integers ``inputs``, with a result of type ``tensor_type``; return True."""
        output = self.name_of_integers(node.outputs[0], tensor_type)
        self.types[output] = replace(tensor_type, shape=self.types[node.outputs[0]].shape)
        self.append(replace(node, inputs=tuple(inputs), outputs=(output,), attrs={**node.attrs, **attrs}))
        return self.record_dequantised(node.outputs[0], output, node.loc)

    def requantise(self, source: str, tensor_type: TensorType, loc: Loc) -> str:
        """Return ``source`` converted to the dtype and quantisation of ``tensor_type``. A constant is converted at
        compile time."""
        source_type, quant = self.types[source], tensor_type.quant
        if (source_type.quant, source_type.dtype) == (quant, tensor_type.dtype) or quant is None:
            return source
        output = self.new_name(f"{source}_requantized")
        self.types[output] = replace(source_type, dtype=tensor_type.dtype, quant=quant)
        attrs: dict[str, Attr] = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": None}
        attrs |= {"out_dtype": tensor_type.dtype, **EVEN}
        if source in self.consts:
            data = self.consts[source]
            if source_type.quant is not None:
                source_attrs: Mapping[str, Attr] = {
                    "scale": source_type.quant.scale,
                    "zero_point": source_type.quant.zero_point,
                }
                (data,) = registry.get("dequantize").reference({**source_attrs, "axis": None}, [data])
            (self.consts[output],) = registry.get("quantize").reference(attrs, [data])
        else:
            self.append(Node("quantize", (source,), (output,), attrs, loc))
        return output

    def widen_to_int16(self, source: str, loc: Loc) -> str:
        """Return 8-bit integers converted to int16, with the same quantisation."""
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

    def represent_constant_exactly(self, value: str, dtype: str) -> str | None:
        """Return integers that represent a float constant exactly, if all its elements are the same number.

        Each integer is a power of two or its negative, in ``dtype``, with a scale chosen for it. Return None if the
        elements differ or if there is no such scale."""
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

    def quantise_padding_value(self, node: Node, tensor_type: TensorType) -> int | None:
        """Return the integer with which a ``pad`` node pads its quantised operand of type ``tensor_type``.

        It represents the float's value exactly, or is its quantised value if the result is quantised in the same way.
        Return None if neither is possible."""
        assert tensor_type.quant is not None
        scale, zero = np.float32(tensor_type.quant.scale[0]), tensor_type.quant.zero_point[0]
        low, high = dtypes.int_range(tensor_type.dtype)
        value = np.float32(node.attr("value"))
        level = int(np.clip(np.rint(value / scale) + zero, low, high))
        target = self.find_type_after_quantize(node.outputs[0])
        quantised = target is not None and (target.quant, target.dtype) == (tensor_type.quant, tensor_type.dtype)
        return level if quantised or np.float32(level - zero) * scale == value else None


# ---- Loops on integers: iterations carry, receive and stack integers instead of floats.
#
# If the value that an iteration carries to the next is dequantised from integers q, the loop carries q. This needs one of two
# conditions: the initial value is exactly representable by such integers, or every iteration only quantises the carried value in
# the same way, since quantize(dequantize(q)) = q. Stacked elements are dequantised after the loop. Dequantised operands of the
# loop are dequantised inside its body.


@frozen
class LoopOperand:
    """Operand of a loop: the type of the integers from which it is dequantised, if any, and its data if it is
    constant."""

    integer_type: TensorType | None
    constant_data: Array | None


@frozen
class IntegerLoop:
    """Body of a loop, with the integer types of its operands (without the iteration index) and results. None marks
    values that do not change."""

    body: Graph
    operand_types: tuple[TensorType | None, ...]
    result_types: tuple[TensorType | None, ...]


def convert_loop(
    body: Graph, carried_count: int, loop_operands: Sequence[LoopOperand], recognise: Callable[[Graph], Graph]
) -> IntegerLoop:
    """Convert a loop's body such that it takes and returns integers instead of floats if that is equivalent.

    ``recognise``: function that converts the operators of the body to integer operators."""
    operands = [None if k < carried_count else operand.integer_type for k, operand in enumerate(loop_operands)]
    body = recognise(_replace_inputs_by_integers(body, operands))
    results = [_find_integer_type_of_output(body, name) for name in body.outputs]
    states: list[TensorType | None] = [None] * len(loop_operands)
    for k, kind in enumerate(results[:carried_count]):
        name = body.inputs[1 + k]
        can_carry = kind is not None and (
            _has_exact_integer_start(loop_operands[k], kind) or _is_only_quantised_to(body, name, kind)
        )
        operands[k] = states[k] = results[k] = kind if can_carry else None
    new_body = recognise(_replace_outputs_by_integers(_replace_inputs_by_integers(body, states), results))
    return IntegerLoop(new_body, tuple(operands), tuple(results))


def _find_integer_type_of_output(body: Graph, output_name: str) -> TensorType | None:
    """Return the type of the integers from which a body dequantises ``output_name``, or None if it does not."""
    node = body.producer().get(output_name)
    if node is None or node.op != "dequantize" or node.attr("axis") is not None:
        return None
    kind = body.types[node.inputs[0]]
    return replace(kind, quant=quant_and_dtype_of(node)[0]) if kind.dtype in ACTIVATIONS else None


def _has_exact_integer_start(operand: LoopOperand, tensor_type: TensorType) -> bool:
    """Test whether integers of type ``tensor_type`` represent the initial value of a carried operand exactly."""
    assert tensor_type.quant is not None
    if operand.integer_type is not None:
        return (operand.integer_type.quant, operand.integer_type.dtype) == (tensor_type.quant, tensor_type.dtype)
    if operand.constant_data is None:
        return False
    scale_attrs = {"scale": tensor_type.quant.scale, "zero_point": tensor_type.quant.zero_point, "axis": None}
    quantize_attrs = {**scale_attrs, "out_dtype": tensor_type.dtype, "rounding": Ties.EVEN}
    levels = registry.get("quantize").reference(quantize_attrs, [operand.constant_data])
    return np.array_equal(registry.get("dequantize").reference(scale_attrs, levels)[0], operand.constant_data)


def _is_only_quantised_to(body: Graph, value_name: str, tensor_type: TensorType) -> bool:
    """Test whether iterations read a value only to quantise it to the type ``tensor_type``."""
    users = body.consumers().get(value_name, ())
    quantises_same = all(
        user.op == "quantize" and quant_and_dtype_of(user) == (tensor_type.quant, tensor_type.dtype) for user in users
    )
    return quantises_same and value_name not in body.outputs


def _replace_inputs_by_integers(body: Graph, tensor_types: Sequence[TensorType | None]) -> Graph:
    """Replace inputs of a body by integers of the types ``tensor_types``, which the body dequantises first; None leaves
    an input unchanged."""
    inputs, types, nodes, taken = list(body.inputs), dict(body.types), list[Node](), set(body.types)
    for position, kind in enumerate(tensor_types, 1):
        if kind is None or kind.quant is None:
            continue
        real = inputs[position]
        inputs[position] = fresh_name(taken, f"{real}_quantized")
        taken.add(inputs[position])
        types[inputs[position]] = kind
        scale_attrs: dict[str, Attr] = {"scale": kind.quant.scale, "zero_point": kind.quant.zero_point, "axis": None}
        nodes.append(Node("dequantize", (inputs[position],), (real,), scale_attrs, body.nodes[0].loc))
    return replace(body, inputs=tuple(inputs), types=types).with_nodes((*nodes, *body.nodes))


def _replace_outputs_by_integers(body: Graph, tensor_types: Sequence[TensorType | None]) -> Graph:
    """Replace outputs of a body by the integers from which they are dequantised; None in ``tensor_types`` leaves an
    output unchanged."""
    outputs, types, nodes, taken = list(body.outputs), dict(body.types), list(body.nodes), set(body.types)
    makers = body.producer()
    for position, kind in enumerate(tensor_types):
        if kind is None:
            continue
        maker = makers[outputs[position]]
        outputs[position] = fresh_name(taken, f"{outputs[position]}_quantized")
        taken.add(outputs[position])
        types[outputs[position]] = kind
        nodes.append(Node("reshape", maker.inputs, (outputs[position],), {"shape": kind.shape}, maker.loc))
    return replace(body, outputs=tuple(outputs), types=types).with_nodes(nodes)
