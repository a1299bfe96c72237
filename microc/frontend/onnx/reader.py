"""Reader of ONNX models: converts operators to microc's graph, and reports all unsupported operators in one error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from microc.base.dtypes import HALF
from microc.base.immutable import Registry
from microc.errors import UnsupportedError, UsageError
from microc.frontend.onnx import operators_control as onnx_control
from microc.frontend.onnx import operators_elementwise as onnx_elementwise
from microc.frontend.onnx import operators_gather as onnx_gather
from microc.frontend.onnx import operators_images as onnx_images
from microc.frontend.onnx import operators_language as onnx_language
from microc.frontend.onnx import operators_linear as onnx_linear
from microc.frontend.onnx import operators_ml as onnx_ml
from microc.frontend.onnx import operators_quantized as onnx_quantized
from microc.frontend.onnx import operators_recurrent as onnx_recurrent
from microc.frontend.onnx import operators_shape as onnx_shape
from microc.frontend.onnx import operators_trees as onnx_trees
from microc.frontend.onnx import operators_windows as onnx_windows
from microc.frontend.onnx.builder import OnnxGraphBuilder
from microc.frontend.onnx.context import (
    CONSTANT_OPERATORS,
    Converter,
    OpContext,
    fold_constant_operator,
    merge_tables,
)
from microc.frontend.onnx.file import DTYPES, OLDEST_OPSET, Attributes, ModelInput, OnnxFile, Operator, decode_onnx
from microc.graph.ir import Graph, Loc, TensorType

# ---- Instantiating the body of an ONNX function: its nodes under new names, in place of the operator that it defines.

NewNames = dict[str, str]


def instantiate_function_nodes(
    node_protos: Iterable[Any],
    new_names: NewNames,
    attribute_values: Mapping[str, Any],
    make_name: Callable[[str], str],
    operator_index: int,
    opset: int,
) -> tuple[Operator, ...]:
    """Return the nodes of a function body as operators, with the body's values renamed to unique names in the model.

    ``new_names`` maps value names in the body to names in the model; results of nodes are added to it under names that
    ``make_name`` returns. ``attribute_values``: values (AttributeProtos) of the function's attributes, by name.
    ``operator_index``: index of the operator that the function defines. Names that the body does not define stay
    unchanged."""
    instantiated = []
    for node in node_protos:
        for name in node.output:
            if name and name not in new_names:
                new_names[name] = make_name(name)
        attributes = _instantiate_attributes(node.attribute, new_names, attribute_values, make_name)
        inputs, outputs = (tuple(new_names.get(name, name) for name in words) for words in (node.input, node.output))
        domain = "" if node.domain == "ai.onnx" else node.domain
        where = Attributes(attributes, f"#{operator_index} {node.op_type}")
        instantiated.append(Operator(operator_index, "", node.op_type, domain, inputs, outputs, where, opset))
    return tuple(instantiated)


def _instantiate_attributes(
    attribute_protos: Iterable[Any],
    new_names: NewNames,
    attribute_values: Mapping[str, Any],
    make_name: Callable[[str], str],
) -> list[Any]:
    """Return copies of the attributes of a node in a function body, for use in the model.

    A reference to an attribute of the function is replaced by its value in ``attribute_values``, or omitted if it has
    none. Values of subgraphs are renamed."""
    import onnx

    attributes_out = []
    for attribute in attribute_protos:
        if attribute.ref_attr_name and attribute.ref_attr_name not in attribute_values:
            continue
        copy = onnx.AttributeProto()
        copy.CopyFrom(attribute_values[attribute.ref_attr_name] if attribute.ref_attr_name else attribute)
        copy.name = attribute.name
        if copy.type == onnx.AttributeProto.GRAPH:
            _rename_subgraph_values(copy.g, new_names, attribute_values, make_name)
        attributes_out.append(copy)
    return attributes_out


def _rename_subgraph_values(
    graph_proto: Any, outer_new_names: NewNames, attribute_values: Mapping[str, Any], make_name: Callable[[str], str]
) -> None:
    """Rename the values of a subgraph in a function body, in place.

    Values that the subgraph defines get names from ``make_name``. Values of the enclosing body get their names in
    ``outer_new_names``."""
    names = dict(outer_new_names)
    for value in (*graph_proto.input, *graph_proto.initializer):
        names[value.name] = make_name(value.name)
        value.name = names[value.name]
    for node in graph_proto.node:
        for name in node.output:
            if name:
                names[name] = make_name(name)
        attributes = _instantiate_attributes(node.attribute, names, attribute_values, make_name)
        del node.attribute[:]
        node.attribute.extend(attributes)
        for words in (node.input, node.output):
            words[:] = [names.get(name, name) for name in words]
    for value in graph_proto.output:
        value.name = names.get(value.name, value.name)


# ---- Operators that an ONNX schema defines by a function body of other operators.

MAX_BODY_NODES = 4096


def expand_function_body(context: OpContext) -> tuple[Operator, ...]:
    """Return the operators of the function body that ONNX's schema defines for an operator; empty if it defines none.

    If the schema has several bodies for versions of the operator set, the newest up to the model's version is
    returned."""
    function = _get_function_proto(context)
    if function is None or len(function.node) > MAX_BODY_NODES:
        return ()
    operator, builder = context.operator, context.builder
    names = {"": ""} | {
        inner: operator.inputs[k] if k < len(operator.inputs) else "" for k, inner in enumerate(function.input)
    }
    names |= {inner: outer for inner, outer in zip(function.output, operator.outputs, strict=False) if outer}
    version = next((entry.version for entry in function.opset_import if entry.domain in ("", "ai.onnx")), 0)
    schema_attributes = _get_operator_schema(context).attributes
    defaults = {name: each.default_value for name, each in schema_attributes.items() if each.default_value.name}
    attribute_values = {**defaults, **operator.attributes.protos_by_name()}

    def make_unique_name(body_name: str) -> str:
        """Return a new name for a value of the function body."""
        return builder.make_unique_name(f"{context.output()}_{body_name}")

    return instantiate_function_nodes(function.node, names, attribute_values, make_unique_name, operator.index, version)


def has_function_body(context: OpContext) -> bool:
    """Test whether ONNX's schema defines the operator by a function body of other operators."""
    schema = _get_operator_schema(context)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def has_changed_since_oldest_opset(context: OpContext) -> bool:
    """Test whether the operator's schema in a model older than opset 7 differs from its schema in opset 7.

    Opset 7 is the oldest that microc supports."""
    from onnx import defs

    schema = _get_operator_schema(context)
    return (
        schema is None
        or defs.get_schema(context.operator.op_type, OLDEST_OPSET, "").since_version != schema.since_version
    )


def _get_operator_schema(context: OpContext) -> Any:
    """Return ONNX's schema of the operator in its opset; None if ONNX does not define the operator."""
    from onnx import defs

    try:
        return defs.get_schema(context.operator.op_type, context.opset, context.operator.domain)
    except defs.SchemaError:
        return None


def _get_function_proto(context: OpContext) -> Any:
    """Return the function body in the operator's schema as a FunctionProto; None if the schema has none."""
    import onnx

    schema = _get_operator_schema(context)
    if schema is None:
        return None
    # A body may depend on the attributes and operand types of this node; ONNX then builds it on request.
    if schema.has_context_dependent_function:
        version = _get_newest_version_up_to(schema.context_dependent_function_opset_versions, context.opset)
        types = [_make_input_type_proto(context, k).SerializeToString() for k in range(context.input_count())]
        node = _make_node_proto(context).SerializeToString()
        data = schema.get_context_dependent_function_with_opset_version(version, node, types)
    elif schema.has_function:
        data = schema.get_function_with_opset_version(
            _get_newest_version_up_to(schema.function_opset_versions, context.opset)
        )
    else:
        return None
    return onnx.FunctionProto.FromString(data)


def _get_newest_version_up_to(schema_versions: list[int], opset: int) -> int:
    """Return the newest of ``schema_versions`` that is at most ``opset``, or the oldest if all are newer."""
    return max((v for v in schema_versions if v <= opset), default=min(schema_versions))


def _make_node_proto(context: OpContext) -> Any:
    """Make a NodeProto of the operator."""
    import onnx

    operator = context.operator
    node = onnx.helper.make_node(operator.op_type, operator.inputs, operator.outputs, domain=operator.domain)
    node.attribute.extend(operator.attributes.protos_by_name().values())
    return node


def _make_input_type_proto(context: OpContext, input_index: int) -> Any:
    """Make a TypeProto of input ``input_index``; return an empty TypeProto if the input is absent."""
    import onnx

    if not context.has_input(input_index):
        return onnx.TypeProto()
    kind = context.type(context.value(input_index))
    code = next(number for number, name in DTYPES.items() if name == kind.dtype)
    return onnx.helper.make_tensor_type_proto(code, kind.shape)


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


def read_onnx(model_bytes: bytes, file_name: str, input_shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    """Read an ONNX model from its bytes; return microc's graph of it.

    ``file_name``: name of the file without folders, for locations. ``input_shapes``: shape by input name; the name
    ``"*"`` stands for all other inputs. These shapes also determine the model's symbolic extents, and a symbol has the
    same value in all inputs. A symbolic first extent (the batch) that no shape determines is 1.

    Raise ModelError for a corrupt or inconsistent model, UnsupportedError for a model with unsupported operators,
    which lists all of them, and UsageError for ``input_shapes`` that do not fit the model."""
    file = decode_onnx(model_bytes, file_name)
    builder = OnnxGraphBuilder(file, _translate_operators)
    _define_model_inputs(builder, input_shapes)
    builder.translate(builder, file.operators)
    return builder.finish_graph(file.graph_name or file_name)


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
    """Convert the operators of the function body in the operator's schema; return False if the schema has none."""
    body = expand_function_body(context)
    for inner in body:
        _translate_operator(context.builder, inner)
    return bool(body)


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


def _define_model_inputs(builder: OnnxGraphBuilder, shapes_by_input: Mapping[str, tuple[int, ...]]) -> None:
    """Add the model's inputs to the graph, with symbolic extents replaced by numbers.

    ``shapes_by_input``: shapes that the user gave, by input name."""
    inputs = {value.name: value for value in builder.file.inputs}
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
        builder.define_value(value.name, TensorType(shape, value.dtype), _format_input_location(builder, value))


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
