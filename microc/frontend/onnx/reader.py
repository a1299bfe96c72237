# SPDX-License-Identifier: Apache-2.0
"""Reader of ONNX models: converts operators to microc's graph, and reports all unsupported operators in one error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.base.dtypes import HALF, Array
from microc.base.immutable import Registry
from microc.errors import UnsupportedError, UsageError
from microc.frontend.onnx.builder import OnnxGraphBuilder
from microc.frontend.onnx.context import (
    CONSTANT_OPERATORS,
    Converter,
    OpContext,
    fold_constant_operator,
    merge_tables,
)
from microc.frontend.onnx.file import OLDEST_OPSET, ModelInput, OnnxFile, Operator, decode_onnx
from microc.frontend.onnx.functions import expand_function_body, has_changed_since_oldest_opset, has_function_body
from microc.frontend.onnx.operators import control as onnx_control
from microc.frontend.onnx.operators import elementwise as onnx_elementwise
from microc.frontend.onnx.operators import gather as onnx_gather
from microc.frontend.onnx.operators import images as onnx_images
from microc.frontend.onnx.operators import language as onnx_language
from microc.frontend.onnx.operators import linear as onnx_linear
from microc.frontend.onnx.operators import ml as onnx_ml
from microc.frontend.onnx.operators import qonnx as onnx_qonnx
from microc.frontend.onnx.operators import quantized as onnx_quantized
from microc.frontend.onnx.operators import recurrent as onnx_recurrent
from microc.frontend.onnx.operators import shape as onnx_shape
from microc.frontend.onnx.operators import trees as onnx_trees
from microc.frontend.onnx.operators import windows as onnx_windows
from microc.graph.cut import check_bound_names, make_bound_constant
from microc.graph.ir import Graph, Loc, TensorType

# ---- Reasons and hints for ONNX operators that microc does not support.

_CUT_BEFORE = "cut the network before it (--outputs) and do this in the application"
_CUT_BEHIND = "do this in the application and cut the network behind it (--inputs)"

_SEQUENCES = (
    "ConcatFromSequence",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
    "SequenceMap",
    "SplitToSequence",
)
_STRINGS = (
    "CastMap",
    "CategoryMapper",
    "DictVectorizer",
    "RegexFullMatch",
    "StringConcat",
    "StringNormalizer",
    "StringSplit",
    "TfIdfVectorizer",
)


def _map_to_reason_and_hint(operator_names: Iterable[str], reason: str, hint: str) -> Mapping[str, tuple[str, str]]:
    """Return a mapping of each operator name to the same pair (``reason``, ``hint``)."""
    return dict.fromkeys(operator_names, (reason, hint))


KNOWN: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        **_map_to_reason_and_hint(
            ("Compress", "NonMaxSuppression", "NonZero", "Unique"),
            "the size of its result depends on data",
            _CUT_BEFORE,
        ),
        **_map_to_reason_and_hint(
            _SEQUENCES,
            "it works on a sequence of tensors",
            "export lists as tensors, or simplify the model with onnxslim, which unfolds sequences of known length",
        ),
        **_map_to_reason_and_hint(
            ("Optional", "OptionalGetElement", "OptionalHasElement"),
            "it works on an optional tensor",
            "export the model with its optional inputs decided",
        ),
        **_map_to_reason_and_hint(
            _STRINGS,
            "it works on strings or dictionaries",
            _CUT_BEHIND,
        ),
        **_map_to_reason_and_hint(("ImageDecoder",), "it decodes files", _CUT_BEHIND),
        **_map_to_reason_and_hint(
            ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
            "it is random",
            "give random numbers as an input: cut the network behind it (--inputs)",
        ),
        **_map_to_reason_and_hint(
            ("Adagrad", "Adam", "Gradient", "Momentum"), "it is part of training", "export the model for inference"
        ),
        "MaxRoiPool": ("it divides boxes by rounding", "export RoiAlign with mode max instead"),
    }
)
"""Unsupported operators: the reason and a hint."""

UNKNOWN = "the operator is unknown to microc"


def get_unsupported_reason_and_hint(op_type: str, is_foreign_domain: bool) -> tuple[str, str]:
    """Return the reason why an operator without converter is not supported, and a hint for the user.

    ``is_foreign_domain``: the operator's domain is neither ONNX's nor ONNX Runtime's."""
    if op_type in KNOWN:
        return KNOWN[op_type]
    if is_foreign_domain:
        return UNKNOWN, "export the model with ONNX's own operators, or teach this one to microc with --plugin"
    return UNKNOWN, "replace the layer, or simplify the model with onnxslim or onnxruntime's offline optimiser"


# ---- Conversion of a model's operators to ours.
#
# Convolutions and pools keep ONNX's channels-first layout and mark it (``layout="NCHW"``); quantisation stays as explicit
# quantize and dequantize nodes. Everything that depends only on constants and static shapes is computed here.

CONVERTERS: Mapping[str, Mapping[str, Converter]] = merge_tables(
    onnx_control.CONVERTERS,
    onnx_elementwise.CONVERTERS,
    onnx_gather.CONVERTERS,
    onnx_images.CONVERTERS,
    onnx_language.CONVERTERS,
    onnx_linear.CONVERTERS,
    onnx_ml.CONVERTERS,
    onnx_qonnx.CONVERTERS,
    onnx_quantized.CONVERTERS,
    onnx_recurrent.CONVERTERS,
    onnx_shape.CONVERTERS,
    onnx_trees.CONVERTERS,
    onnx_windows.CONVERTERS,
)
"""Converters by domain, then by operator."""

PLUGIN_CONVERTERS: Registry[Converter] = Registry("an ONNX operator", {})
"""Converters of plugins, by ``domain::operator``."""

EVERY_INPUT = "*"
MAX_LISTED_ERRORS = 40


def read_onnx(
    model_bytes: bytes,
    file_name: str,
    input_shapes: Mapping[str, tuple[int, ...]],
    input_values: Mapping[str, Any] = {},
) -> Graph:
    """Read an ONNX model from its bytes; return microc's graph of it.

    ``file_name``: name of the file without folders, for locations. ``input_shapes``: shape by input name; the name
    ``"*"`` stands for all other inputs. These shapes also determine the model's symbolic extents, and a symbol has the
    same value in all inputs. A symbolic first extent (the batch) that no shape determines is 1.
    ``input_values``: values of inputs that become constants, by input name.

    Raise ModelError for a corrupt or inconsistent model, UnsupportedError for a model with unsupported operators,
    which lists all of them, and UsageError for ``input_shapes`` or ``input_values`` that do not fit the model."""
    file = decode_onnx(model_bytes, file_name)
    builder = OnnxGraphBuilder(file, _translate_operators)
    _define_model_inputs(builder, input_shapes, input_values)
    builder.translate(builder, file.operators)
    return builder.finish_graph(file.graph_name or file_name)


def read_bound_inputs(
    model_bytes: bytes,
    file_name: str,
    input_shapes: Mapping[str, tuple[int, ...]],
    input_values: Mapping[str, Any],
) -> dict[str, Array]:
    """Return the constants that inputs of an ONNX model are bound to, by input name (see :func:`read_onnx`)."""
    builder = OnnxGraphBuilder(decode_onnx(model_bytes, file_name), _translate_operators)
    _define_model_inputs(builder, input_shapes, input_values)
    return {name: builder.consts[name] for name in input_values}


def _translate_operators(builder: OnnxGraphBuilder, operators: Sequence[Operator]) -> None:
    """Convert operators in order, and compute constant operators.

    Raise one UnsupportedError that lists all operators that are not supported."""
    refusals = []
    for operator in operators:
        try:
            _translate_operator(builder, operator)
        except UnsupportedError as error:
            builder.lost.update(name for name in operator.outputs if name)
            refusals.append(error)
    if refusals:
        raise _combine_unsupported_errors(builder.file, refusals)


def _translate_operator(builder: OnnxGraphBuilder, operator: Operator) -> None:
    """Convert one operator, or compute it if it is constant.

    An operator that reads a result of an unsupported operator is skipped without an error of its own."""
    label = operator.name or next((name for name in operator.outputs if name), "")
    context = OpContext(operator, builder, Loc(builder.file.name, operator.index, label))
    for name in operator.outputs:
        if name in builder.file.initializers or name in builder.file.unsupported_initializers:
            context.broken(f"value {name!r}: both an initialiser and an output of this node, expected one of them")
        if operator.outputs.count(name) > 1 and name:
            context.broken(f"output {name!r}: listed twice, expected once")
    custom = PLUGIN_CONVERTERS.get(f"{operator.domain}::{operator.op_type}")
    converter = CONVERTERS.get(operator.domain, {}).get(operator.op_type, custom)
    computed = not operator.domain and operator.op_type in CONSTANT_OPERATORS
    if not any(operator.outputs):
        context.broken("the operator has no output with a name, expected at least one")
    # Before version 7 broadcasting was explicit (attributes axis and broadcast), so only unchanged operators are accepted.
    if context.opset < OLDEST_OPSET and not operator.domain and has_changed_since_oldest_opset(context):
        context.refuse(
            f"version {context.opset} of the operator is not supported, expected {OLDEST_OPSET} or later",
            "convert the model with onnx.version_converter",
        )
    is_known = converter is not None or computed
    if not is_known and not has_function_body(context):
        context.refuse(*get_unsupported_reason_and_hint(operator.op_type, operator.domain not in CONVERTERS))
    # Unsupported operators are known before their results are used: mark everything behind them as lost, so that each cause
    # is reported once.
    if builder.lost & {*operator.inputs, *operator.attributes.find_values_read_by_subgraphs()}:
        builder.lost.update(name for name in operator.outputs if name)
        return
    if converter is None and not computed:
        if not _try_convert_function_body(context):
            context.refuse(*get_unsupported_reason_and_hint(operator.op_type, operator.domain not in CONVERTERS))
        return
    values = [context.value(position) for position in range(context.input_count()) if context.has_input(position)]
    is_constant = bool(values) and all(value in builder.consts for value in values)
    if computed and is_constant:
        fold_constant_operator(context)
        return
    if converter is None:
        hint = "replace its inputs by constants, for example by simplifying the model with onnxslim"
        context.refuse("got an input that is computed at run time, expected only constant inputs", hint)
    # Data of an unsupported 16-bit float is computed by the definition's steps if each of them rounds, else in float32.
    if converter.first_input_dtypes:
        data_dtype = context.type(context.value(0)).dtype
        if data_dtype in HALF and data_dtype not in converter.first_input_dtypes:
            if converter.expand_for_16_bit_floats and _try_convert_function_body(context):
                return
            _convert_in_float32(context, converter, data_dtype)
            return
        if data_dtype not in converter.first_input_dtypes:
            context.refuse(
                f"{data_dtype} data are not supported", "export the model in float32, or quantised to 8 bits"
            )
    converter.convert(replace(context, has_constant_operands=is_constant))


def _try_convert_function_body(context: OpContext) -> bool:
    """Convert the operators of the function body that defines an operator; return False if there is none."""
    body = expand_function_body(context)
    if body is None:
        return False
    builder, operator = context.builder, context.operator
    with builder.function_calls.enter((operator.domain, operator.op_type), len(body.operators), context.where):
        for inner in body.operators:
            _translate_operator(builder, inner)
    for output, value in body.passed_values:
        context.alias_output(output, builder.resolve_value(value, context.where))
    return True


def _convert_in_float32(context: OpContext, converter: Converter, half_dtype: str) -> None:
    """Convert an operator on 16-bit floats as a cast to float32, the operator in float32, and a cast back.

    This is exact, because ONNX's definition rounds only the result to 16 bits."""
    builder, operator = context.builder, context.operator
    inputs = list(operator.inputs)
    for position, name in enumerate(operator.inputs):
        if name and context.type(context.value(position)).dtype in HALF:
            inputs[position] = context.emit("cast", (context.value(position),), {"dtype": "float32"})
    float32_names = [builder.make_unique_name(f"{name}_wide") if name else "" for name in operator.outputs]
    float32_operator = replace(operator, inputs=tuple(inputs), outputs=tuple(float32_names))
    converter.convert(OpContext(float32_operator, builder, context.loc))
    for position, name in enumerate(float32_names):
        if not name:
            continue
        value = builder.resolve_value(name, context.where)
        if context.type(value).dtype == "float32":
            context.result("cast", (value,), {"dtype": half_dtype}, position)
        else:
            context.result_alias(value, position)


def _combine_unsupported_errors(onnx_file: OnnxFile, errors: list[UnsupportedError]) -> UnsupportedError:
    """Return one error that lists the errors of several operators, one in each line."""
    if len(errors) == 1:
        return errors[0]
    lines = [f"{error.where}: {error.what}" + (f" (help: {error.hint})" if error.hint else "") for error in errors]
    if len(lines) > MAX_LISTED_ERRORS:
        lines[MAX_LISTED_ERRORS:] = [f"and {len(lines) - MAX_LISTED_ERRORS} more"]
    return UnsupportedError(
        f"the model uses {len(errors)} operators that are not supported:\n  " + "\n  ".join(lines), where=onnx_file.name
    )


def _define_model_inputs(
    builder: OnnxGraphBuilder, shapes_by_input: Mapping[str, tuple[int, ...]], values_by_input: Mapping[str, Any]
) -> None:
    """Add the model's inputs to the graph, with symbolic extents replaced by numbers.

    ``shapes_by_input``: shapes that the user gave, by input name. ``values_by_input``: values of inputs that are added
    as constants."""
    inputs = {value.name: value for value in builder.file.inputs}
    check_bound_names(values_by_input, tuple(inputs), builder.file.name)
    value_shapes = {name: np.shape(value) for name, value in values_by_input.items() if isinstance(value, tuple)}
    shapes_by_input = {**value_shapes, **shapes_by_input}
    for name in shapes_by_input:
        if name not in inputs and name != EVERY_INPUT:
            input_names = ", ".join(map(repr, inputs))
            raise UsageError(
                f"the model has no input {name!r}",
                where=builder.file.name,
                hint=f"use one of its inputs: {input_names}",
            )
    symbols: dict[str, int] = {}
    for value in inputs.values():
        user_shape = shapes_by_input.get(value.name, shapes_by_input.get(EVERY_INPUT))
        if user_shape is not None:
            _check_user_shape(builder, value, user_shape)
            declared = value.shape or (None,) * len(user_shape)
            for extent, bound in zip(declared, user_shape, strict=True):
                if isinstance(extent, str):
                    symbols.setdefault(extent, bound)
    for value in builder.file.inputs:
        user_shape = shapes_by_input.get(value.name, shapes_by_input.get(EVERY_INPUT))
        shape = tuple(user_shape) if user_shape is not None else _infer_input_shape(builder, value, symbols)
        type_ = TensorType(shape, value.dtype)
        if value.name in values_by_input:
            bound_value = values_by_input[value.name]
            builder.define_constant(value.name, make_bound_constant(value.name, bound_value, type_, builder.file.name))
        else:
            builder.define_value(value.name, type_, _format_input_location(builder, value))


def _format_input_location(builder: OnnxGraphBuilder, model_input: ModelInput) -> str:
    """Return the location of an input for error messages."""
    return f"{builder.file.name} input {model_input.name!r}"


def _format_declared_shape(model_input: ModelInput) -> str:
    """Return the declared shape of an input as text for error messages, such as ``(?, 3, 224)``."""
    if model_input.shape is None:
        return "of unknown rank"
    return "(" + ", ".join("?" if extent is None else str(extent) for extent in model_input.shape) + ")"


def _check_user_shape(builder: OnnxGraphBuilder, model_input: ModelInput, user_shape: tuple[int, ...]) -> None:
    """Raise UsageError if the shape that the user gave for an input does not fit the input's declared shape."""
    declared = model_input.shape if model_input.shape is not None else (None,) * len(user_shape)
    fits = len(declared) == len(user_shape) and all(
        bound >= 1 and (not isinstance(extent, int) or extent == bound)
        for extent, bound in zip(declared, user_shape, strict=True)
    )
    if not fits:
        raise UsageError(
            f"got shape {tuple(user_shape)}, expected {_format_declared_shape(model_input)} as the model declares",
            where=_format_input_location(builder, model_input),
            hint=f"give a shape that fits {_format_declared_shape(model_input)}",
        )


def _infer_input_shape(
    builder: OnnxGraphBuilder, model_input: ModelInput, extents_by_symbol: Mapping[str, int]
) -> tuple[int, ...]:
    """Return the shape of an input for which the user gave no shape; an unknown first extent (the batch) is 1.

    ``extents_by_symbol``: values of symbolic extents. Raise UnsupportedError if any other extent is unknown."""
    extents: list[int] = []
    for axis, extent in enumerate(model_input.shape or ()):
        bound = extents_by_symbol.get(extent) if isinstance(extent, str) else extent
        if bound is None and axis == 0:
            bound = 1
        if bound is not None:
            extents.append(bound)
    if model_input.shape is None or len(extents) != len(model_input.shape):
        raise UnsupportedError(
            f"the input's shape {_format_declared_shape(model_input)} is not fully known",
            where=_format_input_location(builder, model_input),
            hint=f"give the shape with --input-shape {model_input.name}=1,... (kernels are compiled for one shape)",
        )
    return tuple(extents)
