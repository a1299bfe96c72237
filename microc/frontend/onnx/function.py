"""Operators that ONNX defines by others: the body of the definition takes the operator's place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from microc.frontend.onnx.application import Application
from microc.frontend.onnx.file import OLD, Operator
from microc.frontend.onnx.inline import operators
from microc.frontend.onnx.tensor import DTYPES

_MOST_NODES = 4096


def body_of(application: Application) -> tuple[Operator, ...]:
    """The operators that ONNX's schema gives as the meaning of one; none where it gives no body.

    Bodies exist for some versions of the operator set; the newest that is not newer than the model's is taken. Values inside get
    new names, attributes that the body refers to are filled in.
    """
    function = _function(application)
    if function is None or len(function.node) > _MOST_NODES:
        return ()
    operator, builder = application.operator, application.builder
    names = {"": ""} | {
        inner: operator.inputs[k] if k < len(operator.inputs) else "" for k, inner in enumerate(function.input)
    }
    names |= {inner: outer for inner, outer in zip(function.output, operator.outputs, strict=False) if outer}
    version = next((entry.version for entry in function.opset_import if entry.domain in ("", "ai.onnx")), 0)
    given = {**_defaults(application), **operator.attributes.protos()}

    def fresh(name: str) -> str:
        return builder.unique(f"{application.output()}_{name}")

    return operators(function.node, names, given, fresh, operator.index, version)


def has_body(application: Application) -> bool:
    """Whether ONNX defines an operator by others."""
    schema = _schema(application)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def has_changed(application: Application) -> bool:
    """Whether an operator of an old model means something else in version 7 of the operator set."""
    from onnx import defs

    schema = _schema(application)
    return schema is None or defs.get_schema(application.operator.code, OLD, "").since_version != schema.since_version


def _schema(application: Application) -> Any:
    from onnx import defs

    try:
        return defs.get_schema(application.operator.code, application.opset, application.operator.domain)
    except defs.SchemaError:
        return None


def _function(application: Application) -> Any:
    """The FunctionProto, or None."""
    import onnx

    schema = _schema(application)
    if schema is None:
        return None
    if schema.has_context_dependent_function:
        version = _newest(schema.context_dependent_function_opset_versions, application.opset)
        types = [_type_proto(application, k).SerializeToString() for k in range(application.count())]
        node = _node_proto(application).SerializeToString()
        data = schema.get_context_dependent_function_with_opset_version(version, node, types)
    elif schema.has_function:
        data = schema.get_function_with_opset_version(_newest(schema.function_opset_versions, application.opset))
    else:
        return None
    return onnx.FunctionProto.FromString(data)


def _newest(versions: list[int], opset: int) -> int:
    return max((v for v in versions if v <= opset), default=min(versions))


def _defaults(application: Application) -> Mapping[str, Any]:
    """Attributes with default values."""
    attributes = _schema(application).attributes
    return {name: each.default_value for name, each in attributes.items() if each.default_value.name}


def _node_proto(application: Application) -> Any:
    import onnx

    operator = application.operator
    node = onnx.helper.make_node(operator.code, operator.inputs, operator.outputs, domain=operator.domain)
    node.attribute.extend(operator.attributes.protos().values())
    return node


def _type_proto(application: Application, position: int) -> Any:
    import onnx

    if not application.has(position):
        return onnx.TypeProto()
    kind = application.type(application.value(position))
    code = next(number for number, name in DTYPES.items() if name == kind.dtype)
    return onnx.helper.make_tensor_type_proto(code, kind.shape)
