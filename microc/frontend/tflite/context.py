# SPDX-License-Identifier: Apache-2.0
"""Context of one TFLite operator, which its converter receives, types of its parameters, and tables of converters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Annotated, ClassVar, TypeVar

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.model_limits import infer_types
from microc.frontend.operator_context import MAX_INTEGERS, OperatorContext
from microc.frontend.signature import (
    AttributeReader,
    BoundConverter,
    DecodeWith,
    Range,
    ReadWith,
    Value,
)
from microc.frontend.tflite.builder import DTYPES, TfliteGraphBuilder
from microc.frontend.tflite.builtin_options import CustomOptions, TableOptions
from microc.frontend.tflite.file import Operator, Tensor
from microc.graph.ir import Attr, Loc, Node, Quant, TensorType
from microc.ops import registry
from microc.ops.attributes import Ties
from microc.ops.windows import compute_same_padding_of_axis

# ---- Context of one TFLite operator: its operands and options in the file, and functions that append nodes to the graph.
#
# Shapes of results are inferred by microc's operators, then compared with the shapes that the file declares.

_NO_ATTRS: Mapping[str, Attr] = {}

_CALIBRATE = "convert with a representative data set, so that all activations have scales"


@frozen
class OpContext(OperatorContext):
    """Context of the converter of one operator in a TFLite file.

    It provides the operator's operands, options and outputs, and appends nodes to the graph under construction.
    ``options_table``: the schema's name of the operator's options table; empty if the converter reads no options."""

    operator: Operator
    builder: TfliteGraphBuilder
    loc: Loc
    options_table: str = ""
    constant_hint: ClassVar[str] = "make it one: convert with fixed shapes and sizes, which kernels are compiled for"

    @property
    def where(self) -> str:
        """Location in the file and builtin name of the operator, for error messages."""
        return f"{self.loc} {self.operator.code}"

    @property
    def attributes(self) -> AttributeReader:
        """Options of the operator."""
        if self.operator.code.startswith("CUSTOM:"):
            return CustomOptions(self.operator.custom, self.where)
        return TableOptions(self.operator.options, self.options_table)

    def has_input(self, input_position: int) -> bool:
        """Test whether input ``input_position`` is present. Optional inputs are left out at the end of the list or have
        the tensor index -1."""
        return input_position < len(self.operator.inputs) and self.operator.inputs[input_position] >= 0

    def input_count(self) -> int:
        """Return the number of inputs, including absent inputs between others."""
        return len(self.operator.inputs)

    def input_tensor(self, input_position: int) -> Tensor:
        """Return the file's declaration of the tensor that is input ``input_position``; ModelError if the input is
        missing."""
        if not self.has_input(input_position):
            self.broken(f"input {input_position} is missing")
        return self.builder.file.tensor(self.operator.inputs[input_position])

    def output_tensor(self, output_position: int = 0) -> Tensor:
        """Return the file's declaration of the tensor that is output ``output_position``; ModelError if the output is
        missing."""
        if output_position >= len(self.operator.outputs):
            self.broken(f"output {output_position} is missing")
        return self.builder.file.tensor(self.operator.outputs[output_position])

    def output_dtype(self) -> str:
        """Return the dtype that the file declares for the first output."""
        return self.output_tensor().type.dtype

    def unchanged_operand(self, input_position: int) -> Value:
        """Return an operand whose elements the operator moves without computing on them.

        Refuse the operator if the operand and the output differ in dtype."""
        source, target = self.input_tensor(input_position), self.output_tensor()
        if source.type.dtype != target.type.dtype:
            self.refuse(
                f"input {input_position}: its dtype differs from the output's; got {source.type.dtype}, "
                f"expected {target.type.dtype}",
                "insert a CAST or a QUANTIZE before the operator",
            )
        return self.value(input_position)

    def moved_operand(self, input_position: int) -> Value:
        """Return an operand whose stored integers become those of the output.

        Refuse the operator if the operand and the output differ in dtype or quantisation: with another scale the same
        integer is another real number."""
        value = self.unchanged_operand(input_position)
        self.check_same_quantisation(input_position)
        return value

    def check_same_quantisation(self, input_position: int) -> None:
        """Refuse the operator if the quantisation of an operand differs from the output's."""
        source, target = self.input_tensor(input_position).type, self.output_tensor().type
        if target.dtype in QUANTISED and source.quant != target.quant:
            self.refuse("quantisation: operands and output have different scales or zero points", ONE_SCALE)

    def real_operand(self, input_position: int) -> Value:
        """Return an operand of float32."""
        return self.operand(input_position, "float32")

    def bool_operand(self, input_position: int) -> Value:
        """Return an operand of bools."""
        return self.operand(input_position, "bool")

    def index_operand(self, input_position: int) -> Value:
        """Return an operand of indices as int32 or int64; a narrower integer dtype is cast to int32."""
        return self.cast_indices(self.value(input_position))

    def operand(self, input_position: int, dtype: str = "", *, symmetric: bool = True) -> Value:
        """Return an operand of arithmetic, after checking its dtype and quantisation.

        Refuse the operator if the operand's dtype is not ``dtype`` (default: dtype of the output), or if the operand or
        the output has 8 or 16 bits and is not quantised per tensor. With ``symmetric`` the zero point of int16 must be
        0.
        """
        source, target = self.input_tensor(input_position), self.output_tensor()
        expected = dtype or target.type.dtype
        if source.type.dtype != expected:
            self.refuse(
                f"input {input_position} has dtype {source.type.dtype}, expected {expected}",
                f"cast or quantise it to {expected}",
            )
        for tensor in (source, target):
            self._require_per_tensor_quantisation(tensor, symmetric)
        return self.value(input_position)

    def _require_per_tensor_quantisation(self, tensor: Tensor, symmetric: bool) -> None:
        """Refuse an int8, uint8 or int16 tensor that is not quantised per tensor.

        With ``symmetric`` also refuse int16 with a zero point other than 0."""
        type_ = tensor.type
        if type_.dtype not in ("int8", "uint8", "int16"):
            return
        if type_.quant is None:
            self.refuse(f"{type_.dtype} tensor {tensor.name!r} has no quantisation", _CALIBRATE)
        if type_.quant.axis is not None:
            self.refuse(
                f"tensor {tensor.name!r}: got an activation quantised along axis {type_.quant.axis}, expected "
                "one scale",
                "quantise activations per tensor",
            )
        if symmetric and type_.dtype == "int16" and type_.quant.zero_point != (0,):
            self.refuse(
                f"int16 tensor {tensor.name!r} has zero point {type_.quant.zero_point[0]}, expected 0",
                "convert the model as int16x8, in which int16 activations are symmetric",
            )

    def value(self, input_position: int) -> Value:
        """Return input ``input_position``, of any dtype and quantisation.

        Refuse an int4 tensor that is no constant."""
        source = self.input_tensor(input_position)
        if source.is_packed_int4 and not source.is_constant:
            self.refuse(
                f"tensor {source.name!r}: got a computed int4 tensor, expected int8; only constants may be int4",
                "quantise activations to int8",
            )
        return self.look_up(self.builder.resolve_operand(source.index, self.where))

    def constant_value(self, input_position: int) -> Value:
        """Return a constant input; refuse the operator if the input is not known at compile time."""
        self.constant(input_position)
        return self.value(input_position)

    def variable_tensor(self, input_position: int) -> Value:
        """Return an operand that keeps its content between calls. It is not in the graph yet."""
        tensor = self.input_tensor(input_position)
        if not tensor.is_variable:
            self.refuse(
                f"state {tensor.name!r}: got is_variable = false, expected true",
                "set is_variable of the tensor to true",
            )
        return Value(tensor.name, tensor.type)

    def describe_input(self, input_key: int) -> str:
        """Return the position of an input and the name of its tensor, for error messages."""
        return f"input {input_key} ({self.input_tensor(input_key).name!r})"

    def constant_integer(self, input_position: int) -> int:
        """Return the first element of a constant input of integers; 0 if it has none."""
        return (*self.integers(input_position), 0)[0]

    def constant_number(self, input_position: int) -> float:
        """Return the first element of a constant input."""
        data = self.constant(input_position)
        if not data.size:
            self.broken(f"input {input_position}: got shape {data.shape}, expected one number")
        return float(data.reshape(-1)[0])

    def normalize_axes(self, signed_axes: Sequence[int], rank: int) -> tuple[int, ...]:
        """Return possibly negative axes as numbers of 0 to ``rank`` - 1, in ascending order, each once."""
        return tuple(sorted({self.axis(axis, rank) for axis in signed_axes}))

    def cast_indices(self, indices: Value) -> Value:
        """Return ``indices`` as int32 or int64; a narrower integer dtype is cast to int32."""
        if indices.dtype in ("int32", "int64"):
            return indices
        if indices.dtype not in ("int8", "int16", "uint8"):
            self.refuse(
                f"indices: got dtype {indices.dtype}, expected int8, int16, uint8, int32 or int64", "cast them to int32"
            )
        return self.emit("cast", (indices,), {"dtype": "int32"})

    def new_constant(self, stem: str, data: Array, quant: Quant | None = None) -> Value:
        """Add a constant that is no tensor of the file; its name is made unique from ``stem``."""
        return self.look_up(self.builder.define_constant(self.builder.file.reserve_name(stem), data, quant))

    def new_filled_constant(self, stem: str, shape: Sequence[int], fill_value: float, dtype: str) -> Value:
        """Add a constant whose elements all have the same number.

        The constant's bytes are subtracted from the file's reading budget before memory is allocated."""
        if any(extent < 0 for extent in shape):
            self.broken(f"got shape {tuple(shape)}, expected extents of at least 0")
        self.builder.file.charge_budget(prod(shape) * dtypes.nbytes(dtype))
        return self.new_constant(stem, np.full(tuple(shape), fill_value, dtypes.to_numpy(dtype)))

    def scalar(self, number: float) -> Value:
        """Add a float32 constant of shape (1,)."""
        return self.new_constant("scalar", np.array([number], np.float32))

    def emit(
        self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS, like: TensorType | None = None
    ) -> Value:
        """Append a node with one intermediate result, whose name is made from that of the TFLite operator's output; return
        the result.

        The result has the dtype and quantisation of ``like``. By default its dtype is inferred, and it has the
        quantisation of the first input if both have the same dtype."""
        name = self.builder.file.reserve_name(f"{self.loc.name}_{op}")
        self.write_node_with_outputs(op, inputs, attrs, (name,), (like,))
        return self.look_up(name)

    def emit_all(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS) -> list[Value]:
        """Append a node with several intermediate results, whose types are inferred; return them."""
        types = self.infer_types(op, inputs, attrs)
        names = [self.builder.file.reserve_name(f"{self.loc.name}_{op}") for _ in types]
        self.write_node_with_outputs(op, inputs, attrs, names, types)
        return [self.look_up(name) for name in names]

    def result(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS, position: int = 0) -> Value:
        """Append the node that computes output ``position`` of the operator; return the output.

        The output has the dtype and quantisation that the file declares, and the shape that microc infers."""
        target = self.output_tensor(position)
        self.write_node_with_outputs(op, inputs, attrs, (target.name,), (target.type,))
        self.check_declared_shape(target)
        return self.look_up(target.name)

    def results(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS) -> None:
        """Append one node that computes all outputs of the operator."""
        targets = [self.output_tensor(position) for position in range(len(self.operator.outputs))]
        types = tuple(target.type for target in targets)
        self.write_node_with_outputs(op, inputs, attrs, tuple(target.name for target in targets), types)
        for target in targets:
            self.check_declared_shape(target)

    def result_reshape(self, value: str, shape: Sequence[int], position: int = 0) -> Value:
        """Define output ``position`` as ``value`` reshaped to ``shape``; return the output."""
        if prod(shape) != self.type(value).size:
            self.broken(
                f"reshape: got {self.type(value).size} elements, expected {prod(shape)} for shape {tuple(shape)}"
            )
        return self.result("reshape", (value,), {"shape": tuple(shape)}, position)

    def result_constant(self, data: Array) -> None:
        """Define the first output as a constant."""
        target = self.output_tensor()
        self.builder.define_constant(target.name, data, target.type.quant)
        self.check_declared_shape(target)

    def result_with_state(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr], state: str) -> None:
        """Append a node with two results: the operator's output, and the content of ``state`` after this call."""
        target, next_state = self.output_tensor(), self.builder.file.reserve_name(f"{state}_next")
        self.write_node_with_outputs(op, inputs, attrs, (target.name, next_state), (target.type, self.type(state)))
        self.check_declared_shape(target)
        self.builder.updates[state] = next_state

    def infer_types(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> tuple[TensorType, ...]:
        """Infer the types of the results of microc's operator ``op``."""
        return infer_types(op, attrs, [self.type(name) for name in inputs], self.where)

    def write_node_with_outputs(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: Mapping[str, Attr],
        outputs: Sequence[str],
        output_types: Sequence[TensorType | None],
    ) -> None:
        """Append a node, or evaluate it now if it is arithmetic on small constants. Define its outputs.

        ``outputs`` are new names. ``output_types`` has one type for each output, which gives its dtype and
        quantisation; the shape is inferred. None means the default of :meth:`emit`."""
        definition = registry.get(op)
        attrs = {**definition.defaults, **attrs}
        inferred_types = self.infer_types(op, inputs, attrs)
        if len(inferred_types) != len(outputs):
            self.broken(f"got {len(outputs)} outputs, expected {len(inferred_types)}")
        if not definition.regions and self._is_foldable(inputs, inferred_types):
            self._fold_to_constants(op, inputs, attrs, outputs)
            return
        result_types = registry.keep_declared_dtypes(op, inferred_types, output_types)
        for name, like, type_ in zip(outputs, output_types, result_types, strict=True):
            if like is None:
                first = self.type(inputs[0])
                like = first if first.dtype == type_.dtype else type_
            if like.dtype != type_.dtype:
                self.broken(f"output {name!r} has dtype {like.dtype}, expected {type_.dtype}")
            self.builder.define_value(name, TensorType(type_.shape, like.dtype, like.quant), self.where)
        self.builder.append_node(Node(op, tuple(map(str, inputs)), tuple(outputs), attrs, self.loc))

    def _is_foldable(self, inputs: Sequence[str], result_types: Sequence[TensorType]) -> bool:
        """Test whether a node can be evaluated at compile time.

        This needs at least one input, constant inputs, and inputs and results without quantisation that have at most
        MAX_INTEGERS elements each. Such nodes are arithmetic on shapes and sizes."""
        known = bool(inputs) and all(name in self.builder.consts for name in inputs)
        types = (*result_types, *map(self.type, inputs)) if known else ()
        return known and all(type_.size <= MAX_INTEGERS and type_.quant is None for type_ in types)

    def _fold_to_constants(
        self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr], outputs: Sequence[str]
    ) -> None:
        """Evaluate microc's operator ``op`` by its reference implementation, and define the results as constants."""
        with np.errstate(all="ignore"):
            results = registry.get(op).reference(attrs, [self.builder.consts[name] for name in inputs])
        for name, data in zip(outputs, results, strict=True):
            self.builder.define_constant(name, np.asarray(data))

    def check_declared_shape(self, target: Tensor) -> None:
        """Raise ModelError if the inferred shape of an output contradicts the shape that the file declares.

        Extents that the file does not declare are not compared."""
        shape, declared = self.type(target.name).shape, target.type.shape
        agrees = len(shape) == len(declared) and all(
            axis in target.unknown_axes or extent == declared[axis] for axis, extent in enumerate(shape)
        )
        if declared and not agrees:
            self.broken(f"output shape: the file declares {declared}, which contradicts the operator; expected {shape}")


# ---- Helpers that all families of converters share: dtypes, activations, padding.

FLOAT = ("float32",)
QUANTISED = ("int8", "uint8", "int16")
PLAIN = ("int32", "int64")
"""Integer dtypes of shapes, indices and counts, which are not quantised."""
REAL = FLOAT + QUANTISED
MOVABLE = DTYPES

ONE_SCALE = "give operands and output the same scale and zero point, or insert a QUANTIZE before the operator"
ACTIVATIONS = ("", "relu", "relu_n1_to_1", "relu6", "tanh")
"""microc's names of fused activations, indexed by TFLite's ActivationFunctionType."""


def activation_name(context: OpContext, activation_code: int) -> str:
    """Return microc's name of a fused activation; "" if there is none.

    ``activation_code`` is a number of TFLite's ActivationFunctionType. Refuse an activation that microc does not
    support for the output's dtype."""
    if not 0 <= activation_code < len(ACTIVATIONS):
        context.refuse(
            f"fused_activation_function: got number {activation_code}, expected 0..{len(ACTIVATIONS) - 1}",
            "fuse relu, relu6, relu_n1_to_1 or tanh, or make it an operator of its own",
        )
    name = ACTIVATIONS[activation_code]
    dtype = context.output_tensor().type.dtype
    if (name == "tanh" and dtype != "float32") or (name and dtype in PLAIN):
        context.refuse(
            f"fused_activation_function: {name} of {dtype} is not supported",
            "write the activation as a separate operator",
        )
    return name


def refuse_activation(context: OpContext, activation_code: int) -> None:
    """Refuse an operator with a fused activation."""
    if activation_name(context, activation_code):
        context.refuse(
            "fused_activation_function: got an activation, expected NONE", "write the activation as a separate operator"
        )


def emit_as_float32(context: OpContext, value: Value) -> Value:
    """Return a value as float32; a quantised value is dequantised.

    For operators that microc computes by several nodes on float32."""
    if value.quant is None:
        return value
    attrs: Mapping[str, Attr] = {"scale": value.quant.scale, "zero_point": value.quant.zero_point, "axis": None}
    return context.emit("dequantize", (value,), attrs)


def emit_output_from_float32(
    context: OpContext, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS
) -> None:
    """Append the last of the float32 nodes of an operator, and define the operator's output as its result.

    The result is quantised if the file declares a quantised output."""
    type_ = context.output_tensor().type
    if type_.quant is None:
        context.result(op, inputs, attrs)
        return
    scale: Mapping[str, Attr] = {"scale": type_.quant.scale, "zero_point": type_.quant.zero_point, "axis": None}
    real = context.emit(op, inputs, attrs)
    context.result("quantize", (real,), {**scale, "out_dtype": type_.dtype, "rounding": Ties.AWAY})


_BOUNDS = {"": (-math.inf, math.inf), "relu": (0.0, math.inf), "relu6": (0.0, 6.0), "relu_n1_to_1": (-1.0, 1.0)}


def emit_float32_activation_as_output(context: OpContext, value: str, activation: str) -> None:
    """Apply a fused activation to a float value and write the result as the operator's output."""
    if activation not in _BOUNDS:
        context.refuse(
            f"fused_activation_function: {activation} is not supported here",
            "write the activation as a separate operator",
        )
    low, high = _BOUNDS[activation]
    context.result("clip", (value,), {"minimum": low, "maximum": high})


def reinterpret_as_integers(context: OpContext, input_position: int) -> Value:
    """Return an operand of the output's dtype as plain integers, without scale and zero point."""
    value = context.unchanged_operand(input_position)
    if value.quant is None:
        return value
    return context.emit("reshape", (value,), {"shape": value.shape}, like=replace(value.type, quant=None))


def resolve_padding_scheme(
    context: OpContext,
    padding_scheme: int,
    data_extents: tuple[int, int],
    window_extents: tuple[int, int],
    strides: tuple[int, int],
    dilation: tuple[int, int] = (1, 1),
) -> tuple[int, int, int, int]:
    """Return the padding of TFLite's scheme SAME (0) or VALID (1) as numbers of elements (top, left, bottom, right)."""
    if padding_scheme not in (0, 1):
        context.broken(f"padding is {padding_scheme}, expected 0 (SAME) or 1 (VALID)")
    return (
        (0, 0, 0, 0) if padding_scheme == 1 else compute_same_padding(data_extents, window_extents, strides, dilation)
    )


def compute_same_padding(
    data_extents: Sequence[int], window_extents: Sequence[int], strides: Sequence[int], dilation: Sequence[int] = (1, 1)
) -> tuple[int, int, int, int]:
    """Return the padding of TFLite's scheme SAME as numbers of elements (top, left, bottom, right).

    An odd number of elements of an axis is split with the smaller half before the data. Source: TFLite ``padding.h``,
    ComputePaddingWithOffset."""
    rows = zip(data_extents, window_extents, strides, dilation, strict=True)
    (top, bottom), (left, right) = (compute_same_padding_of_axis(*row) for row in rows)
    return (top, left, bottom, right)


# ---- Types of converters' parameters.

Operand = Annotated[Value, ReadWith(OpContext.operand)]
"""Operand of arithmetic: it has the output's dtype, and integers of 8 and 16 bits are quantised per tensor."""
Unchanged = Annotated[Value, ReadWith(OpContext.unchanged_operand)]
"""Operand of the output's dtype."""
Moved = Annotated[Value, ReadWith(OpContext.moved_operand)]
"""Operand of the output's dtype, scale and zero point."""
StoredIntegers = Annotated[Value, ReadWith(reinterpret_as_integers)]
"""Operand of the output's dtype, whose scale and zero point are ignored."""
Real = Annotated[Value, ReadWith(OpContext.real_operand)]
"""Operand of float32."""
Bool = Annotated[Value, ReadWith(OpContext.bool_operand)]
"""Operand of bools."""
Indices = Annotated[Value, ReadWith(OpContext.index_operand)]
"""Operand of integers, as int32 or int64."""

Variable = Annotated[Value, ReadWith(OpContext.variable_tensor)]
"""Operand that keeps its content between calls."""

Activation = Annotated[str, DecodeWith(activation_name)]
"""Option with a fused activation; the converter receives microc's name, empty for none."""
NoActivation = Annotated[None, DecodeWith(refuse_activation)]
"""Option with a fused activation, which must be none."""
Positive = Annotated[int, Range(1)]
"""Option that is a number of at least 1."""
Natural = Annotated[int, Range(0)]
"""Option that is a number of at least 0."""


# ---- Tables of converters.


@frozen
class Converter:
    """Converter of one TFLite operator: a function that appends the operator's nodes to the graph, and the dtypes that
    the first output may have. An empty ``dtypes`` allows every dtype.

    ``options_table``: the schema's name of the operator's options table; empty if the converter reads no options."""

    convert: Callable[[OpContext], None]
    dtypes: tuple[str, ...] = REAL
    options_table: str = ""


_Function = TypeVar("_Function", bound=Callable[..., None])


class ConverterTable:
    """Converters of one subject, by operator code; each file of operators has one."""

    def __init__(self) -> None:
        self.by_code: dict[str, Converter] = {}

    def register(
        self, *codes: str, options: str = "", dtypes: tuple[str, ...] = REAL
    ) -> Callable[[_Function], _Function]:
        """Return a decorator that enters a function as the converter of the operators ``codes``.

        The function's parameters are the operator's signature (:mod:`microc.frontend.signature`). ``options``: the
        schema's name of the options table. ``dtypes``: supported dtypes of the first output; empty if all are."""

        def enter(function: _Function) -> _Function:
            self.by_code.update(dict.fromkeys(codes, Converter(BoundConverter(function), dtypes, options)))
            return function

        return enter
