# SPDX-License-Identifier: Apache-2.0
"""Context of one ONNX operator, which its converter receives, and tables of converters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import ClassVar, TypeVar

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ModelError
from microc.frontend.model_limits import check_shape, infer_types
from microc.frontend.onnx.builder import OnnxGraphBuilder, StoredTensor
from microc.frontend.onnx.file import Attributes, Operator, dtype_from_code
from microc.frontend.operator_context import OperatorContext
from microc.frontend.signature import BoundConverter, Value, merge_converters
from microc.graph.ir import Attr, Loc, Node, TensorType
from microc.ops import registry

# ---- Context of one ONNX operator: typed access to its operands, and methods that write nodes.

FLOAT = ("float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
NUMBERS = (*FLOAT, *INTEGERS)
SIGNED = tuple(kind for kind in NUMBERS if not kind.startswith("uint"))
MOVABLE = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "bool",
)
"""Dtypes of operators that move elements without computing."""
MAX_FOLDED_BYTES = 1 << 12
_NO_ATTRS: Mapping[str, Attr] = {}


@frozen
class Converter:
    """Converter of one ONNX operator type.

    ``convert``: function that writes the operator's nodes to the graph. ``first_input_dtypes``: supported dtypes of the
    operator's first input; empty if all are. ``expand_for_16_bit_floats``: on data of 16-bit floats the operator is
    replaced by its function body in ONNX's schema, because ONNX rounds the result of each of the body's steps."""

    convert: Callable[[OpContext], None]
    first_input_dtypes: tuple[str, ...] = FLOAT
    expand_for_16_bit_floats: bool = False

    @property
    def restrictions(self) -> str:
        """Restrictions of models beyond dtypes, for the page of operators; empty if nothing is known."""
        return self.convert.signature.format_restrictions() if isinstance(self.convert, BoundConverter) else ""


_Function = TypeVar("_Function", bound=Callable[..., None])
Converters = dict[str, dict[str, Converter]]
"""Converters by domain, then by operator type."""


class ConverterTable:
    """Converters of one subject; each file of operators has one."""

    def __init__(self) -> None:
        self.by_domain: Converters = {}

    def register(
        self,
        *op_types: str,
        dtypes: tuple[str, ...] = FLOAT,
        domain: str = "",
        outputs: int | None = None,
        float_attributes: Mapping[str, float] = MappingProxyType({}),
        expand_for_16_bit_floats: bool = False,
    ) -> Callable[[_Function], _Function]:
        """Return a decorator that enters a function as the converter of the operators ``op_types`` of ``domain``.

        The function's parameters are the operator's signature (:mod:`microc.frontend.signature`). ``dtypes``: supported
        dtypes of the first input; empty if all are. ``outputs``: number of supported outputs, if the operator may have
        more. ``float_attributes``: names and defaults of the attributes of a converter that is made from a table.
        ``expand_for_16_bit_floats``: see :class:`Converter`."""

        def enter(function: _Function) -> _Function:
            converter = Converter(BoundConverter(function, outputs, float_attributes), dtypes, expand_for_16_bit_floats)
            self.by_domain.setdefault(domain, {}).update(dict.fromkeys(op_types, converter))
            return function

        return enter


def merge_tables(*tables: ConverterTable) -> Converters:
    """Return the converters of several tables; raise ValueError if two tables convert the same operator."""
    domains = dict.fromkeys(domain for table in tables for domain in table.by_domain)
    return {domain: merge_converters(*(table.by_domain.get(domain, {}) for table in tables)) for domain in domains}


@frozen
class OpContext(OperatorContext):
    """One ONNX operator and the graph builder, as the operator's converter receives them.

    Methods read the operator's inputs and attributes, and write nodes of microc's graph. ``loc``: location of the
    operator in the file."""

    operator: Operator
    builder: OnnxGraphBuilder
    loc: Loc
    has_constant_operands: bool = False
    """True if all operands are constant: its nodes are then folded regardless of their size."""
    constant_hint: ClassVar[str] = (
        "make this input a constant, or fold it with onnxslim: microc needs its value at compile time"
    )

    @property
    def where(self) -> str:
        """Location of the operator for error messages."""
        return f"{self.loc} ({self.operator.qualified_op_type})"

    @property
    def attributes(self) -> Attributes:
        """Attributes of the operator."""
        return self.operator.attributes

    @property
    def opset(self) -> int:
        """Version of the operator set that defines this operator."""
        return self.operator.opset or self.builder.file.opset

    def has_input(self, input_index: int) -> bool:
        """Test whether the operator has input ``input_index``; an input with an empty name is absent."""
        return input_index < len(self.operator.inputs) and self.operator.inputs[input_index] != ""

    def input_count(self) -> int:
        """Return the number of inputs, including absent inputs between others."""
        return len(self.operator.inputs)

    def value(self, input_index: int) -> Value:
        """Return input ``input_index``; raise ModelError if the input is absent."""
        if not self.has_input(input_index):
            self.broken(f"input {input_index} is missing; the operator requires it")
        name, builder = self.operator.inputs[input_index], self.builder
        name = builder.alias.get(name, name)
        return self.look_up(name if name in builder.types else builder.resolve_value(name, self.where))

    def operand(self, input_index: int) -> Value:
        """Return input ``input_index``; raise ModelError unless its dtype is that of input 0."""
        value = self.value(input_index)
        wanted = self.value(0).dtype
        if value.dtype != wanted:
            self.broken(f"input {input_index} has dtype {value.dtype}, expected {wanted}, the dtype of input 0")
        return value

    def is_four_bit_input(self, input_index: int) -> bool:
        """Test whether input ``input_index`` is a tensor of four-bit integers, which are kept one to a byte."""
        return self.has_input(input_index) and self.operator.inputs[input_index] in self.builder.file.four_bit_values

    def decode_dtype(self, dtype_code: int) -> str:
        """Return the dtype for a TensorProto.DataType number; raise an error if microc does not support it."""
        return dtype_from_code(dtype_code, self.where)

    def find_stored_tensor(self, value_name: str) -> StoredTensor | None:
        """Return the data and quantisation of a value that is a constant or dequantises one; None for any other."""
        return self.builder.get_stored_constant(value_name)

    def shape(self, input_index: int) -> tuple[int, ...]:
        """Return the shape of input ``input_index``."""
        return self.type(self.value(input_index)).shape

    def describe_input(self, input_key: int) -> str:
        """Return the index and name of an input, for error messages."""
        return f"input {input_key} ({self.operator.inputs[input_key]!r})"

    def broadcast_shapes(self, *shapes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape to which tensors of these shapes broadcast, by numpy's rules; raise ModelError if they do
        not."""
        rank = max(map(len, shapes))
        extents = [set(column) - {1} for column in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True)]
        if any(len(distinct) > 1 for distinct in extents):
            self.broken(f"shapes {' and '.join(map(str, shapes))} do not broadcast to each other")
        return tuple(next(iter(distinct), 1) for distinct in extents)

    def output(self, output_index: int = 0) -> str:
        """Return the name of output ``output_index``; empty if the operator does not have it."""
        return self.operator.outputs[output_index] if output_index < len(self.operator.outputs) else ""

    def refuse_extra_outputs(self, output_count: int = 1) -> None:
        """Raise UnsupportedError if the operator has more outputs than the first ``output_count``."""
        extra = [name for name in self.operator.outputs[output_count:] if name]
        if extra:
            self.refuse(
                f"output {extra[0]!r} is not supported, only the first {output_count} of the operator are",
                "export the model for inference",
            )

    def new_constant(self, stem: str, data: Array) -> Value:
        """Add a constant that is not in the file to the graph; its name is made from ``stem``."""
        return self.look_up(self.builder.define_constant(self.builder.make_unique_name(stem), data))

    def scalar(self, number: float, dtype: str = "float32") -> Value:
        """Add a constant of shape (1,) with the element ``number``."""
        return self.new_constant(f"{self.output()}_scalar", np.array([number], dtypes.to_numpy(dtype)))

    def add_stored_tensor(self, name_stem: str, stored_tensor: StoredTensor, output_name: str = "") -> Value:
        """Add a constant to the graph and, if it is quantised, a ``dequantize`` node; return the result.

        The name is ``output_name`` or, if this is empty, a new one made from ``name_stem``. If ``output_name`` is
        empty, a tensor that the graph already contains is not added again."""
        if stored_tensor.name and not output_name:
            return self.look_up(stored_tensor.name)
        if stored_tensor.quant is None:
            name = output_name or self.builder.make_unique_name(name_stem)
            return self.look_up(self.builder.define_constant(name, stored_tensor.data))
        name = self.new_constant(f"{name_stem}_quantized", stored_tensor.data)
        quant = stored_tensor.quant
        attrs: Mapping[str, Attr] = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis}
        return self.write_node("dequantize", (name,), attrs, output_name or self.builder.make_unique_name(name_stem))

    def emit(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS) -> Value:
        """Append a node for an intermediate result of this operator; return the result."""
        return self.write_node(op, inputs, attrs, self.builder.make_unique_name(f"{self.output()}_{op}"))

    def result(
        self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS, output_index: int = 0
    ) -> None:
        """Append the node that computes output ``output_index`` of this operator."""
        if not self.output(output_index):
            self.broken(f"output {output_index} has no name, expected one")
        self.write_node(op, inputs, attrs, self.output(output_index))

    def result_constant(self, data: Array, output_index: int = 0) -> None:
        """Write output ``output_index`` of this operator as a constant, if the operator has this output."""
        if self.output(output_index):
            self.builder.define_constant(self.output(output_index), data)

    def result_alias(self, value_name: str, output_index: int = 0) -> None:
        """Make output ``output_index`` equal to the graph's value ``value_name``.

        If the last node of this operator computes the value, the value gets the output's name. Otherwise the output
        becomes an alias of the value."""
        name, builder = self.output(output_index), self.builder
        if not name:
            return
        last = builder.nodes[-1] if builder.nodes else None
        if last is not None and last.outputs == (value_name,) and last.loc == self.loc:
            builder.define_value(name, builder.types.pop(value_name), self.where)
            builder.nodes[-1] = replace(last, outputs=(name,))
            return
        if name in builder.types or name in builder.alias:
            self.broken(f"value {name!r}: defined twice, expected once")
        builder.alias[name] = str(value_name)

    def alias_output(self, output_name: str, value_name: str) -> None:
        """Make the output ``output_name`` an alias of the graph's value ``value_name``."""
        if output_name in self.builder.types or output_name in self.builder.alias:
            self.broken(f"value {output_name!r}: defined twice, expected once")
        self.builder.alias[output_name] = str(value_name)

    def result_reshape(self, value_name: str, shape: Sequence[int], output_index: int = 0) -> None:
        """Write output ``output_index`` of this operator as ``value_name`` reshaped to ``shape``.

        A constant is reshaped at compile time. A value that already has this shape becomes the output by an alias."""
        if prod(shape) != self.type(value_name).size:
            self.broken(
                f"shape {self.type(value_name).shape} cannot become {tuple(shape)}, which has another number of elements"
            )
        stored = self.builder.get_stored_constant(value_name)
        reshaped = stored.reshape(tuple(shape)) if stored is not None else None
        if self.type(value_name).shape == tuple(shape):
            self.result_alias(value_name, output_index)
        elif reshaped is not None:
            self.add_stored_tensor(f"{value_name}_reshaped", reshaped, self.output(output_index))
        else:
            self.result("reshape", (value_name,), {"shape": tuple(shape)}, output_index)

    def write_node(self, op: str, input_names: Sequence[str], attrs: Mapping[str, Attr], output_name: str) -> Value:
        """Append a node that computes the value ``output_name``; return this value.

        If all inputs are constant, the value can be computed at compile time and becomes a constant (see
        ``_can_fold``)."""
        definition = registry.get(op)
        attrs = {**definition.defaults, **attrs}
        (type_,) = infer_types(op, attrs, [self.type(name) for name in input_names], self.where)
        if self._can_fold(op, input_names, type_):
            return self.look_up(self._fold_to_constant(op, input_names, attrs, output_name))
        if 0 in type_.shape:
            self.refuse(
                f"the result has shape {type_.shape}, expected at least one element",
                "cut the network before this operator with --outputs",
            )
        self.builder.define_value(output_name, type_, self.where)
        node = Node(op, tuple(map(str, input_names)), (output_name,), attrs, self.loc)
        self.builder.nodes.append(node)
        if op == "dequantize":
            self.builder.dequantized[output_name] = node
        return Value(output_name, type_)

    def _can_fold(self, op: str, input_names: Sequence[str], result_type: TensorType) -> bool:
        """Test whether a node should be computed at compile time (constant folding).

        All inputs must be constant. Unless all operands of the ONNX operator are constant, the result must have at most
        MAX_FOLDED_BYTES or twice the bytes of the inputs, whichever is more. ``quantize`` and ``dequantize`` are never
        folded, since they state how a constant is stored."""
        all_constant = bool(input_names) and all(name in self.builder.consts for name in input_names)
        input_bytes = sum(self.type(name).nbytes for name in input_names) if all_constant else 0
        is_small = self.has_constant_operands or result_type.nbytes <= max(MAX_FOLDED_BYTES, 2 * input_bytes)
        return all_constant and is_small and op not in ("quantize", "dequantize")

    def _fold_to_constant(
        self, op: str, input_names: Sequence[str], attrs: Mapping[str, Attr], output_name: str
    ) -> str:
        """Compute a node from its constant inputs; add the result as a constant and return its name."""
        with np.errstate(all="ignore"):
            (data,) = registry.get(op).reference(attrs, [self.builder.consts[name] for name in input_names])
        return self.builder.define_constant(output_name, data)

    def write_node_with_outputs(
        self, op: str, input_names: Sequence[str], attrs: Mapping[str, Attr], output_names: Sequence[str]
    ) -> None:
        """Append a node with several results.

        A result whose name in ``output_names`` is empty or missing gets a new name."""
        definition, builder = registry.get(op), self.builder
        attrs = {**definition.defaults, **attrs}
        types = infer_types(op, attrs, [self.type(name) for name in input_names], self.where)
        names = [
            name or builder.make_unique_name(f"{self.loc.name}_{op}")
            for name in (*output_names, *[""] * len(types))[: len(types)]
        ]
        for name, type_ in zip(names, types, strict=True):
            builder.define_value(name, type_, self.where)
        builder.nodes.append(Node(op, tuple(map(str, input_names)), tuple(names), attrs, self.loc))


# ---- Operators without a converter that are supported on constants only: they make tensors of numbers and shapes.
#
# Operators with a converter are folded by :meth:`OpContext.write_node`, using the reference of each node.

ConstantEvaluator = Callable[[OpContext], Array]


def fold_constant_operator(context: OpContext) -> None:
    """Compute an operator of :data:`CONSTANT_OPERATORS`, whose inputs are all constant, at compile time."""
    try:
        with np.errstate(all="ignore"):
            context.result_constant(CONSTANT_OPERATORS[context.operator.op_type](context))
    except (ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError) as error:
        raise ModelError(
            f"the operator cannot be computed from its constant inputs: {error}", where=context.where
        ) from error


def _require_shape_within_limits(context: OpContext, shape: tuple[int, ...], dtype_name: str) -> tuple[int, ...]:
    """Return ``shape`` unchanged; raise an error if a tensor of this shape and dtype is too large."""
    check_shape(shape, dtype_name, context.where)
    return shape


def _evaluate_constant_of_shape(context: OpContext) -> Array:
    """Return the result of ConstantOfShape, a tensor of equal elements."""
    attributes = context.operator.attributes
    value = attributes.tensor("value") if "value" in attributes else np.zeros(1, np.float32)
    if value.size != 1:
        context.broken(f"attribute 'value': got shape {value.shape}, expected one element")
    return np.full(_require_shape_within_limits(context, context.integers(0), value.dtype.name), value.reshape(()))


def _evaluate_range(context: OpContext) -> Array:
    """Return the result of Range, the numbers from start to limit (exclusive) in steps of delta."""
    start, limit, delta = (context.constant(position).reshape(()) for position in range(3))
    if delta == 0 or not np.isfinite([start, limit, delta]).all():
        context.broken(
            f"range: got start {start}, limit {limit} and delta {delta}, expected finite numbers and delta != 0"
        )
    count = max(math.ceil((float(limit) - float(start)) / float(delta)), 0)
    _require_shape_within_limits(context, (count,), start.dtype.name)
    return (start + np.arange(count) * delta).astype(start.dtype)


CONSTANT_OPERATORS: Mapping[str, ConstantEvaluator] = {
    "ConstantOfShape": _evaluate_constant_of_shape,
    "Range": _evaluate_range,
}
