# SPDX-License-Identifier: Apache-2.0
"""Functions of ONNX: operators that a model, or ONNX's schema, defines by a body of other operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from microc.base.immutable import frozen
from microc.frontend.onnx.context import OpContext
from microc.frontend.onnx.file import DTYPES, OLDEST_OPSET, Attributes, Operator

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


# ---- The body of an operator: the model's own function of this name, or that of ONNX's schema.

MAX_BODY_NODES = 4096


@frozen
class FunctionBody:
    """Body of an operator, ready to be converted in its place.

    ``operators``: the body's operators under the model's names. ``passed_values``: pairs of an output of the operator and
    the value that it equals, for outputs that no operator of the body computes of its own."""

    operators: tuple[Operator, ...]
    passed_values: tuple[tuple[str, str], ...]


def expand_function_body(context: OpContext) -> FunctionBody | None:
    """Return the body of the function that defines an operator; None if there is none.

    If the schema has several bodies for versions of the operator set, the newest up to the model's version is
    returned."""
    local = get_local_function(context)
    function = _get_schema_function(context) if local is None else local
    if function is None or (local is None and len(function.node) > MAX_BODY_NODES):
        return None
    operator, builder = context.operator, context.builder
    names = {"": ""} | {
        inner: operator.inputs[k] if k < len(operator.inputs) else "" for k, inner in enumerate(function.input)
    }
    passed = []
    for inner, outer in zip(function.output, operator.outputs, strict=False):
        if outer and inner in names:
            passed.append((outer, names[inner]))
        elif outer:
            names[inner] = outer
    version = next((entry.version for entry in function.opset_import if entry.domain in ("", "ai.onnx")), 0)
    attribute_values = {**_get_attribute_defaults(context, local), **operator.attributes.protos_by_name()}

    def make_unique_name(body_name: str) -> str:
        """Return a new name for a value of the function body."""
        return builder.make_unique_name(f"{context.output()}_{body_name}")

    operators = instantiate_function_nodes(
        function.node, names, attribute_values, make_unique_name, operator.index, version
    )
    return FunctionBody(operators, tuple(passed))


def has_function_body(context: OpContext) -> bool:
    """Test whether the model or ONNX's schema defines the operator by a function body of other operators."""
    if get_local_function(context) is not None:
        return True
    schema = _get_operator_schema(context)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def get_local_function(context: OpContext) -> Any:
    """Return the FunctionProto by which the model itself defines the operator; None if it does not."""
    return context.builder.file.functions.get((context.operator.domain, context.operator.op_type))


def _get_attribute_defaults(context: OpContext, local_function: Any) -> dict[str, Any]:
    """Return the defaults of a function's attributes as AttributeProtos, by name."""
    if local_function is not None:
        return {attribute.name: attribute for attribute in local_function.attribute_proto}
    schema_attributes = _get_operator_schema(context).attributes
    return {name: each.default_value for name, each in schema_attributes.items() if each.default_value.name}


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


def _get_schema_function(context: OpContext) -> Any:
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
        try:
            data = schema.get_context_dependent_function_with_opset_version(version, node, types)
        except (ValueError, RuntimeError) as error:
            context.broken(f"the operands do not suit the operator's function: {error}")
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
