"""Safe access to the ONNX protobuf: plain tensors, operators and attributes, or a ModelError.

Protobuf checks the wire format and nothing else. Everything that lives outside the file is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from microc.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.frontend.onnx.attributes import Attributes
from microc.frontend.onnx.tensor import DTYPES, FOUR_BITS, array, dtype, dtype_name, text
from microc.frozen import frozen


class NotOnnxError(ModelError):
    """Bytes that are no ONNX model at all, or less than one."""


OPSETS = range(1, 29)
OLD = 7
"""Versions of the default operator set: numpy broadcasting came with 7. What has not changed since may be older."""


@frozen
class Input:
    """A model input: ``shape`` holds extents, names of symbolic extents and None for nameless ones; None: no rank."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None


@frozen
class Operator:
    """One node: operator name, domain (empty: ONNX's own), value names (empty: absent)."""

    index: int
    name: str
    code: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Attributes
    opset: int = 0
    """The version of the operator set that it belongs to; 0: the model's."""

    @property
    def spelled(self) -> str:
        """The operator with its domain, as in ``com.microsoft.QGemm``."""
        return f"{self.domain}.{self.code}" if self.domain else self.code


@frozen
class OnnxFile:
    """A decoded model. ``unreadable`` maps initialisers of dtypes that we have not to their dtype's name.

    ``declared``: values whose shapes the file states, extents as those of :class:`Input`.
    """

    name: str
    opset: int
    graph_name: str
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    initializers: Mapping[str, Array]
    unreadable: Mapping[str, str]
    operators: tuple[Operator, ...]
    declared: Mapping[str, tuple[int | str | None, ...]]
    four_bit: frozenset[str] = frozenset()
    """Inputs and initialisers whose integers have four bits, though they are kept in bytes."""


def decode(data: bytes, name: str) -> OnnxFile:
    """The model in ``data``; ModelError where it is corrupt, UnsupportedError where its parts live elsewhere.

    ``name`` is the file's name without folders, for messages.
    """
    model = _parse(data, name)
    graph = model.graph
    if model.functions:
        functions = ", ".join(sorted(f"{f.domain}.{f.name}" for f in model.functions)[:8])
        raise UnsupportedError(
            f"the model defines functions of its own: {functions}",
            where=name,
            hint="inline them first: onnx.inliner.inline_local_functions(model)",
        )
    if graph.sparse_initializer:
        raise UnsupportedError(
            "the model holds sparse initialisers", where=name, hint="export the model with dense weights"
        )
    constants = {tensor.name for tensor in graph.initializer}
    inputs = tuple(_input(value, name) for value in graph.input if value.name not in constants)
    return _decoded(graph, name, name, _opset(model, name), inputs)


def decode_body(graph: Any, outer: OnnxFile, where: str) -> OnnxFile:
    """A graph inside an operator. Its inputs' types are not looked at: they follow from what it is given."""
    if graph.sparse_initializer:
        raise UnsupportedError(
            "a graph with sparse initialisers", where=where, hint="store them dense before exporting"
        )
    inputs = tuple(Input(text(value.name, where), "", None) for value in graph.input)
    return _decoded(graph, outer.name, where, outer.opset, inputs)


def _decoded(graph: Any, name: str, where: str, opset: int, inputs: tuple[Input, ...]) -> OnnxFile:
    """The parts of a graph that a model and a body have in common."""
    initializers, unreadable = _initializers(graph, where)
    outputs = tuple(text(value.name, f"{where} outputs") for value in graph.output)
    operators = tuple(_operator(index, node, name) for index, node in enumerate(graph.node))
    declared = {}
    for value in (*graph.output, *graph.value_info):
        tensor = value.type.tensor_type
        if value.type.WhichOneof("value") == "tensor_type" and tensor.HasField("shape"):
            declared[text(value.name, where)] = _extents(tensor.shape, where)
    label = text(graph.name, where)
    four = frozenset(
        {value.name for value in graph.input if value.type.tensor_type.elem_type in FOUR_BITS}
        | {tensor.name for tensor in graph.initializer if tensor.data_type in FOUR_BITS}
    )
    return OnnxFile(name, opset, label, inputs, outputs, initializers, unreadable, operators, declared, four)


def _extents(shape: Any, where: str) -> tuple[int | str | None, ...]:
    """Positive extents, names of symbolic ones, None for those that nobody knows."""
    found: list[int | str | None] = []
    for dimension in shape.dim:
        if dimension.WhichOneof("value") == "dim_value":
            found.append(int(dimension.dim_value) if dimension.dim_value > 0 else None)
        else:
            found.append(text(dimension.dim_param, where) or None)
    return tuple(found)


def _parse(data: bytes, name: str) -> Any:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise NotOnnxError(
            "the file is no ONNX model, or is corrupt or truncated",
            where=name,
            hint="copy or export the model again; an ONNX model is one protobuf, complete to the last byte",
        ) from error
    if not model.HasField("graph") or not model.graph.output:
        raise NotOnnxError("the file holds no ONNX graph with outputs", where=name)
    return model


def _opset(model: Any, name: str) -> int:
    versions = {entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")}
    if not versions and any(entry.domain for entry in model.opset_import):
        return OPSETS.stop - 1  # none of the default operators is there
    if len(versions) != 1:
        raise ModelError(
            "the model does not say which version of ONNX's operators it uses"
            if not versions
            else "the model names several versions of ONNX's operators",
            where=f"{name} opset_import",
        )
    (version,) = versions
    if version not in OPSETS:
        raise UnsupportedError(
            f"operator set version {version}",
            where=f"{name} opset_import",
            hint=f"export with opset {OPSETS.start} to {OPSETS.stop - 1}, or convert with onnx.version_converter",
        )
    return int(version)


def _initializers(graph: Any, name: str) -> tuple[dict[str, Array], dict[str, str]]:
    found: dict[str, Array] = {}
    unreadable: dict[str, str] = {}
    for tensor in graph.initializer:
        where = f"{name} initialiser {text(tensor.name, name)!r}"
        if not tensor.name or tensor.name in found or tensor.name in unreadable:
            raise ModelError(
                "an initialiser has no name" if not tensor.name else "the name is taken twice", where=where
            )
        if tensor.data_type in DTYPES:
            found[tensor.name] = array(tensor, where)
        else:
            unreadable[tensor.name] = dtype_name(tensor.data_type)
    return found, unreadable


def _input(value: Any, name: str) -> Input:
    where = f"{name} input {text(value.name, name)!r}"
    if not value.name:
        raise ModelError("an input has no name", where=name)
    if value.type.WhichOneof("value") != "tensor_type":
        kind = value.type.WhichOneof("value") or "nothing"
        raise UnsupportedError(f"the input is not a tensor but {kind}", where=where)
    tensor = value.type.tensor_type
    kind = dtype(tensor.elem_type, where)
    if not tensor.HasField("shape"):
        return Input(value.name, kind, None)
    return Input(value.name, kind, _extents(tensor.shape, where))


def _operator(index: int, node: Any, name: str) -> Operator:
    where = f"{name} #{index}"
    label, code, domain = (text(word, where) for word in (node.name, node.op_type, node.domain))
    inputs, outputs = (tuple(text(word, where) for word in words) for words in (node.input, node.output))
    attributes = Attributes(node.attribute, f"{where} {label or next(iter(outputs), '')}")
    return Operator(index, label, code, "" if domain == "ai.onnx" else domain, inputs, outputs, attributes)
