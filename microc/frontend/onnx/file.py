# SPDX-License-Identifier: Apache-2.0
"""Decoding of an ONNX protobuf into checked Python objects: tensors, attributes, operators and graphs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import field
from math import prod
from typing import Any, NoReturn

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ModelError, UnsupportedError
from microc.frontend.model_limits import check_shape

# ---- Tensors: data is checked against shape and dtype.

DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    16: "bfloat16",
    21: "uint8",
    22: "int8",
}
"""Dtypes by TensorProto.DataType. Four-bit integers (21, 22) are kept one to a byte."""
FOUR_BITS = (21, 22)
_TYPED_FIELDS = {
    "float32": "float_data",
    "float64": "double_data",
    "int64": "int64_data",
    "uint32": "uint64_data",
    "uint64": "uint64_data",
}
"""Field of a TensorProto that holds typed elements; all other dtypes use ``int32_data`` (see ``onnx.proto``)."""


def require_utf8_text(field_value: Any, where: str) -> str:
    """Return a string field of the protobuf; raise ModelError if it is not UTF-8.

    For a string that is not UTF-8, protobuf returns bytes."""
    if not isinstance(field_value, str):
        raise ModelError(f"name {field_value!r}: got bytes that are no UTF-8, expected UTF-8 text", where=where)
    return field_value


def get_onnx_dtype_name(data_type_code: int) -> str:
    """Return ONNX's name of a TensorProto.DataType number, in lower case, for error messages."""
    import onnx

    names = {number: str(word).lower() for word, number in onnx.TensorProto.DataType.items()}
    return names.get(data_type_code, f"number {data_type_code}")


def dtype_from_code(data_type_code: int, where: str) -> str:
    """Return microc's dtype for a TensorProto.DataType number; raise an error if microc does not support it."""
    if data_type_code == 0:
        raise ModelError("the element type is undefined (0), expected a number of TensorProto.DataType", where=where)
    if data_type_code not in DTYPES:
        raise UnsupportedError(
            f"dtype {get_onnx_dtype_name(data_type_code)} is not supported",
            where=where,
            hint="export the model with float32 or integer tensors",
        )
    return DTYPES[data_type_code]


def array_from_proto(tensor_proto: Any, where: str) -> Array:
    """Return the data of a TensorProto as an array in the tensor's shape.

    Raise ModelError if the number of bytes or elements does not match the shape, UnsupportedError if the data are in
    another file."""
    if tensor_proto.data_location == 1 or tensor_proto.external_data:
        location = {entry.key: entry.value for entry in tensor_proto.external_data}.get("location", "another file")
        raise UnsupportedError(
            f"the data is stored in {location!r}, expected it in the model file",
            where=where,
            hint="save the model as one file: onnx.save(model, path, save_as_external_data=False)",
        )
    if tensor_proto.HasField("segment"):
        raise UnsupportedError(
            "tensors that are split into segments are not supported",
            where=where,
            hint="save the model again with onnx.save, which stores whole tensors",
        )
    dtype, shape = dtype_from_code(tensor_proto.data_type, where), tuple(tensor_proto.dims)
    check_shape(shape, dtype, where)
    count = prod(shape)
    if tensor_proto.data_type in FOUR_BITS:
        return _unpack_four_bit_integers(tensor_proto, count, dtype, where).reshape(shape)
    if tensor_proto.HasField("raw_data"):
        if len(tensor_proto.raw_data) != count * dtypes.nbytes(dtype):
            raise ModelError(
                f"got {len(tensor_proto.raw_data)} bytes of data for shape {shape} of {dtype}, "
                f"expected {count * dtypes.nbytes(dtype)}",
                where=where,
            )
        if dtype == "bfloat16":
            return (
                np.frombuffer(tensor_proto.raw_data, np.dtype("<u2"))
                .astype(np.uint16)
                .view(dtypes.to_numpy(dtype))
                .reshape(shape)
            )
        stored = np.frombuffer(tensor_proto.raw_data, dtypes.to_numpy(dtype).newbyteorder("<"))
        return stored.astype(dtypes.to_numpy(dtype), copy=False).reshape(shape)
    values = getattr(tensor_proto, _TYPED_FIELDS.get(dtype, "int32_data"))
    if len(values) != count:
        raise ModelError(f"got {len(values)} elements of data, expected {count} for shape {shape}", where=where)
    return _array_from_typed_field(values, dtype, where).reshape(shape)


def _unpack_four_bit_integers(tensor_proto: Any, element_count: int, dtype: str, where: str) -> Array:
    """Unpack the four-bit integers of a TensorProto to a flat array with one byte for each element.

    The file stores two elements in each byte, the first in the lower half. ``dtype``: dtype of the result, uint8 for
    unsigned or int8 for signed integers."""
    stored = (
        np.frombuffer(tensor_proto.raw_data, np.uint8)
        if tensor_proto.HasField("raw_data")
        else np.array(tensor_proto.int32_data)
    )
    if len(stored) != (element_count + 1) // 2:
        raise ModelError(
            f"got {len(stored)} bytes of data, expected {(element_count + 1) // 2} for {element_count} elements of four bits",
            where=where,
        )
    pairs = stored.astype(np.uint8)
    elements = np.stack([pairs & 15, pairs >> 4], 1).reshape(-1)[:element_count]
    # x ^ 8 - 8 extends the sign of a four-bit number.
    return elements if dtype == "uint8" else ((elements ^ 8).astype(np.int8) - 8).astype(np.int8)


def _array_from_typed_field(field_elements: Any, dtype: str, where: str) -> Array:
    """Convert the elements of a typed data field of TensorProto, such as ``int32_data``, to an array of ``dtype``.

    The field ``int32_data`` stores 16-bit floats as their bits, one in each int32."""
    if dtype in ("float32", "float64"):
        return np.array(field_elements, dtype=dtype)
    wide = np.array(field_elements, dtype=np.uint64 if dtype in ("uint32", "uint64") else np.int64)
    if dtype in dtypes.HALF:
        return (wide & 0xFFFF).astype(np.uint16).view(dtypes.to_numpy(dtype))
    low, high = dtypes.int_range(dtype)
    if wide.size and (int(wide.min()) < low or int(wide.max()) > high):
        raise ModelError(
            f"got data of {int(wide.min())}..{int(wide.max())}, expected {low}..{high} for {dtype}", where=where
        )
    return wide.astype(dtypes.to_numpy(dtype))


# ---- Attributes of one operator: each access states the expected type, and is checked.

_FLOAT, _INT, _STRING, _TENSOR, _GRAPH, _FLOATS, _INTS, _STRINGS = 1, 2, 3, 4, 5, 6, 7, 8
_TYPE_NAMES = {_FLOAT: "a float", _INT: "an integer", _STRING: "a string", _TENSOR: "a tensor", _GRAPH: "a graph"}
_TYPE_NAMES |= {_FLOATS: "a list of floats", _INTS: "a list of integers", _STRINGS: "a list of strings"}


class Attributes:
    """Attributes of one operator, read by name and type.

    Methods raise ModelError if the attribute has another type, or if it is absent and has no default."""

    def __init__(self, attribute_protos: Iterable[Any], where: str) -> None:
        self._protos: dict[str, Any] = {}
        self._where = where
        for attribute in attribute_protos:
            name = require_utf8_text(attribute.name, where)
            if name in self._protos:
                raise ModelError(f"attribute {name!r} is given twice, expected once", where=where)
            self._protos[name] = attribute

    def __contains__(self, name: str) -> bool:
        return name in self._protos

    def protos_by_name(self) -> Mapping[str, Any]:
        """Return the AttributeProto of each attribute by its name."""
        return self._protos

    def names(self) -> tuple[str, ...]:
        """Return the names of all attributes in the order of the file."""
        return tuple(self._protos)

    def _get_attribute_proto(self, attribute_name: str, expected_type: int) -> Any:
        """Return the AttributeProto of an attribute that is present.

        Raise ModelError if its type is not ``expected_type``, or if it refers to an attribute of a function."""
        attribute = self._protos[attribute_name]
        if attribute.type != expected_type or attribute.ref_attr_name:
            raise ModelError(f"attribute {attribute_name!r} is not {_TYPE_NAMES[expected_type]}", where=self._where)
        return attribute

    def _raise_missing_attribute(self, attribute_name: str) -> NoReturn:
        """Raise ModelError because a required attribute is absent."""
        raise ModelError(f"attribute {attribute_name!r} is missing; the operator requires it", where=self._where)

    def integer(self, attribute_name: str, default: int | None = None) -> int:
        """Return an integer attribute; ``default`` if it is absent."""
        if attribute_name in self._protos:
            return int(self._get_attribute_proto(attribute_name, _INT).i)
        return self._raise_missing_attribute(attribute_name) if default is None else default

    def flag(self, attribute_name: str, default: bool = False) -> bool:
        """Return an integer attribute as a bool; ``default`` if it is absent."""
        return self.integer(attribute_name, int(default)) != 0

    def unchecked_real(self, attribute_name: str, default: float | None = None) -> float:
        """Return a float attribute, which may be NaN or infinite; ``default`` if it is absent."""
        if attribute_name not in self._protos:
            return self._raise_missing_attribute(attribute_name) if default is None else default
        return float(self._get_attribute_proto(attribute_name, _FLOAT).f)

    def real(self, attribute_name: str, default: float | None = None) -> float:
        """Return a float attribute, which must be finite; ``default`` if it is absent."""
        if attribute_name not in self._protos:
            return self._raise_missing_attribute(attribute_name) if default is None else default
        number = float(self._get_attribute_proto(attribute_name, _FLOAT).f)
        if not math.isfinite(number):
            raise ModelError(f"attribute {attribute_name!r} is {number}, expected a finite number", where=self._where)
        return number

    def reals(self, attribute_name: str, default: tuple[float, ...] | None = None) -> tuple[float, ...]:
        """Return an attribute that is a list of floats; ``default`` if it is absent."""
        if attribute_name not in self._protos:
            return self._raise_missing_attribute(attribute_name) if default is None else default
        return tuple(float(number) for number in self._get_attribute_proto(attribute_name, _FLOATS).floats)

    def text(self, attribute_name: str, default: str | None = None) -> str:
        """Return a string attribute; ``default`` if it is absent."""
        if attribute_name not in self._protos:
            return self._raise_missing_attribute(attribute_name) if default is None else default
        return str(self._get_attribute_proto(attribute_name, _STRING).s.decode("utf-8", "replace"))

    def texts(self, attribute_name: str) -> tuple[str, ...]:
        """Return an attribute that is a list of strings; an empty tuple if it is absent."""
        if attribute_name not in self._protos:
            return ()
        return tuple(
            word.decode("utf-8", "replace") for word in self._get_attribute_proto(attribute_name, _STRINGS).strings
        )

    def integers(self, attribute_name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Return an attribute that is a list of integers; ``default`` if it is absent."""
        if attribute_name in self._protos:
            return tuple(int(number) for number in self._get_attribute_proto(attribute_name, _INTS).ints)
        return self._raise_missing_attribute(attribute_name) if default is None else default

    def tensor(self, attribute_name: str) -> Array:
        """Return the data of a tensor attribute."""
        if attribute_name not in self._protos:
            self._raise_missing_attribute(attribute_name)
        return array_from_proto(
            self._get_attribute_proto(attribute_name, _TENSOR).t, f"{self._where} attribute {attribute_name!r}"
        )

    def graph(self, attribute_name: str) -> Any:
        """Return the GraphProto of a subgraph attribute, which :func:`decode_subgraph_proto` decodes."""
        return (
            self._get_attribute_proto(attribute_name, _GRAPH).g
            if attribute_name in self._protos
            else self._raise_missing_attribute(attribute_name)
        )

    def find_values_read_by_subgraphs(self) -> set[str]:
        """Return the names of all values that the operator's subgraphs read, at any depth of nesting."""
        graphs = [attribute.g for attribute in self._protos.values() if attribute.type == _GRAPH]
        names_read: set[str] = set()
        while graphs:
            for node in graphs.pop().node:
                names_read.update(node.input)
                graphs += [attribute.g for attribute in node.attribute if attribute.type == _GRAPH]
        return names_read


# ---- The model: protobuf checks only the wire format, so everything else is checked here. Data outside the file is refused.


class NotOnnxError(ModelError):
    """Error for bytes that are no complete ONNX model."""


OPSETS = range(1, 29)
OLDEST_OPSET = 7
"""Oldest supported version of the default operator set, the first with numpy's broadcasting. Operators that have not changed
since may be of older versions."""


@frozen
class ModelInput:
    """Declaration of an input of an ONNX graph.

    ``shape``: for each axis its extent, the name of a symbolic extent, or None if the extent is unknown; None
    instead of a tuple if the rank is unknown."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None


@frozen
class Operator:
    """A node of an ONNX graph.

    ``index``: position in the file's list of nodes. ``op_type``: operator type, such as Gemm. ``domain``: domain of the
    operator type; empty for ONNX's own. ``inputs``, ``outputs``: names of values; empty for absent ones."""

    index: int
    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Attributes
    opset: int = 0
    """Version of the operator set that this operator belongs to; 0: the model's."""

    @property
    def qualified_op_type(self) -> str:
        """Operator type with its domain, such as ``com.microsoft.QGemm``."""
        return f"{self.domain}.{self.op_type}" if self.domain else self.op_type


@frozen
class OnnxFile:
    """A decoded ONNX model or subgraph.

    ``initializers``: data of constants by name. ``unsupported_initializers``: ONNX's dtype name of each initialiser
    whose dtype microc does not support. ``declared_shapes``: declared shape of outputs and intermediate values by
    name, with extents as in :class:`ModelInput`."""

    name: str
    opset: int
    graph_name: str
    inputs: tuple[ModelInput, ...]
    outputs: tuple[str, ...]
    initializers: Mapping[str, Array]
    unsupported_initializers: Mapping[str, str]
    operators: tuple[Operator, ...]
    declared_shapes: Mapping[str, tuple[int | str | None, ...]]
    four_bit_values: frozenset[str] = frozenset()
    """Inputs and initialisers of four-bit integers, which are kept one to a byte."""
    functions: Mapping[tuple[str, str], Any] = field(default_factory=dict)
    """Functions that the model defines as FunctionProtos, by domain and name."""


def decode_onnx(model_bytes: bytes, file_name: str) -> OnnxFile:
    """Decode an ONNX model.

    Raise ModelError if the model is corrupt, UnsupportedError if a part of it is in another file or is not
    supported. ``file_name``: name of the file without folders, for error messages."""
    model = _parse_model_proto(model_bytes, file_name)
    graph = model.graph
    if graph.sparse_initializer:
        raise UnsupportedError(
            "sparse initialisers are not supported", where=file_name, hint="export the model with dense weights"
        )
    constants = {tensor.name for tensor in graph.initializer}
    inputs = tuple(_decode_input(value, file_name) for value in graph.input if value.name not in constants)
    functions = _decode_functions(model.functions, file_name)
    return _decode_graph_proto(graph, file_name, file_name, _read_default_opset(model, file_name), inputs, functions)


def _decode_functions(function_protos: Iterable[Any], file_name: str) -> Mapping[tuple[str, str], Any]:
    """Return the functions that a model defines as FunctionProtos, by domain and name.

    Raise an error for two functions of one name, overloads, and unknown versions of the operator set."""
    functions: dict[tuple[str, str], Any] = {}
    for function in function_protos:
        where = f"{file_name} function {require_utf8_text(function.name, file_name)!r}"
        key = ("" if function.domain == "ai.onnx" else require_utf8_text(function.domain, where), function.name)
        if key in functions or function.overload:
            raise UnsupportedError(
                "the model defines several functions of this name, expected one",
                where=where,
                hint="inline them: onnx.inliner.inline_local_functions(model)",
            )
        for words in (function.input, function.output):
            for word in words:
                require_utf8_text(word, where)
        versions = [entry.version for entry in function.opset_import if entry.domain in ("", "ai.onnx")]
        if any(version not in OPSETS for version in versions):
            raise UnsupportedError(
                f"operator set version {versions[0]} is not supported",
                where=where,
                hint=f"export with opset {OPSETS.start} to {OPSETS.stop - 1}, or convert with onnx.version_converter",
            )
        functions[key] = function
    return functions


def decode_subgraph_proto(graph_proto: Any, outer_file: OnnxFile, where: str) -> OnnxFile:
    """Decode the GraphProto of a subgraph, such as the body of a Loop.

    The declared types of the subgraph's inputs are ignored, because they follow from the operator's operands."""
    if graph_proto.sparse_initializer:
        raise UnsupportedError(
            "sparse initialisers are not supported", where=where, hint="export the model with dense weights"
        )
    inputs = tuple(ModelInput(require_utf8_text(value.name, where), "", None) for value in graph_proto.input)
    return _decode_graph_proto(graph_proto, outer_file.name, where, outer_file.opset, inputs, outer_file.functions)


def _decode_graph_proto(
    graph_proto: Any,
    file_name: str,
    where: str,
    opset: int,
    inputs: tuple[ModelInput, ...],
    functions: Mapping[tuple[str, str], Any],
) -> OnnxFile:
    """Decode a GraphProto of a model or subgraph, whose inputs are already decoded."""
    initializers, unreadable = _decode_initializers_and_unsupported_dtypes(graph_proto, where)
    outputs = tuple(require_utf8_text(value.name, f"{where} outputs") for value in graph_proto.output)
    operators = tuple(_decode_operator(index, node, file_name) for index, node in enumerate(graph_proto.node))
    declared = {}
    for value in (*graph_proto.output, *graph_proto.value_info):
        tensor = value.type.tensor_type
        if value.type.WhichOneof("value") == "tensor_type" and tensor.HasField("shape"):
            declared[require_utf8_text(value.name, where)] = _decode_shape_proto(tensor.shape, where)
    label = require_utf8_text(graph_proto.name, where)
    four_bit = frozenset(
        {value.name for value in graph_proto.input if value.type.tensor_type.elem_type in FOUR_BITS}
        | {tensor.name for tensor in graph_proto.initializer if tensor.data_type in FOUR_BITS}
    )
    return OnnxFile(
        file_name, opset, label, inputs, outputs, initializers, unreadable, operators, declared, four_bit, functions
    )


def _decode_shape_proto(shape_proto: Any, where: str) -> tuple[int | str | None, ...]:
    """Decode a TensorShapeProto to a tuple with an entry for each axis.

    An entry is a positive extent, the name of a symbolic extent, or None for an unknown extent."""
    extents: list[int | str | None] = []
    for dimension in shape_proto.dim:
        if dimension.WhichOneof("value") == "dim_value":
            extents.append(int(dimension.dim_value) if dimension.dim_value > 0 else None)
        else:
            extents.append(require_utf8_text(dimension.dim_param, where) or None)
    return tuple(extents)


def _parse_model_proto(model_bytes: bytes, file_name: str) -> Any:
    """Parse a ModelProto; raise NotOnnxError if the bytes are no ONNX model or its graph has no outputs."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.ModelProto.FromString(model_bytes)
    except DecodeError as error:
        raise NotOnnxError(
            "the file is no ONNX model, or is corrupt or truncated",
            where=file_name,
            hint="copy or export the model again; an ONNX model is one protobuf, complete to the last byte",
        ) from error
    if not model.HasField("graph") or not model.graph.output:
        raise NotOnnxError("the file contains no ONNX graph with outputs", where=file_name)
    return model


def _read_default_opset(model_proto: Any, file_name: str) -> int:
    """Return the version of ONNX's default operator set that a model imports.

    If the model imports only operator sets of other domains, return the newest supported version. Raise ModelError
    if it imports no operator set or several versions of the default one, UnsupportedError if the version is not
    supported."""
    versions = {entry.version for entry in model_proto.opset_import if entry.domain in ("", "ai.onnx")}
    if not versions and any(entry.domain for entry in model_proto.opset_import):
        return OPSETS.stop - 1  # none of the default operators is there
    if len(versions) != 1:
        raise ModelError(
            "opset_import has no version of ONNX's operators, expected one"
            if not versions
            else f"opset_import has the versions {', '.join(map(str, sorted(versions)))} of ONNX's operators, expected one",
            where=f"{file_name} opset_import",
        )
    (version,) = versions
    if version not in OPSETS:
        raise UnsupportedError(
            f"operator set version {version} is not supported",
            where=f"{file_name} opset_import",
            hint=f"export with opset {OPSETS.start} to {OPSETS.stop - 1}, or convert with onnx.version_converter",
        )
    return int(version)


def _decode_initializers_and_unsupported_dtypes(
    graph_proto: Any, file_name: str
) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the data of supported initialisers, and ONNX's dtype names of unsupported initialisers, both by name."""
    arrays: dict[str, Array] = {}
    unreadable: dict[str, str] = {}
    for tensor in graph_proto.initializer:
        where = f"{file_name} initialiser {require_utf8_text(tensor.name, file_name)!r}"
        if not tensor.name or tensor.name in arrays or tensor.name in unreadable:
            raise ModelError(
                "an initialiser has no name, expected one"
                if not tensor.name
                else "two initialisers have this name, expected only one",
                where=where,
            )
        if tensor.data_type in DTYPES:
            arrays[tensor.name] = array_from_proto(tensor, where)
        else:
            unreadable[tensor.name] = get_onnx_dtype_name(tensor.data_type)
    return arrays, unreadable


def _decode_input(value_info: Any, file_name: str) -> ModelInput:
    """Decode the ValueInfoProto of a model's input; raise UnsupportedError unless the input is a tensor."""
    where = f"{file_name} input {require_utf8_text(value_info.name, file_name)!r}"
    if not value_info.name:
        raise ModelError("an input has no name, expected one", where=file_name)
    if value_info.type.WhichOneof("value") != "tensor_type":
        kind = value_info.type.WhichOneof("value") or "nothing"
        raise UnsupportedError(
            f"the input is of type {kind}, expected a tensor",
            where=where,
            hint="export a model whose inputs are tensors",
        )
    tensor = value_info.type.tensor_type
    kind = dtype_from_code(tensor.elem_type, where)
    if not tensor.HasField("shape"):
        return ModelInput(value_info.name, kind, None)
    return ModelInput(value_info.name, kind, _decode_shape_proto(tensor.shape, where))


def _decode_operator(node_index: int, node_proto: Any, file_name: str) -> Operator:
    """Decode a NodeProto; ``node_index`` is its position in the file's list of nodes."""
    where = f"{file_name} #{node_index}"
    label, op_type, domain = (
        require_utf8_text(word, where) for word in (node_proto.name, node_proto.op_type, node_proto.domain)
    )
    inputs, outputs = (
        tuple(require_utf8_text(word, where) for word in words) for words in (node_proto.input, node_proto.output)
    )
    domain = "" if domain == "ai.onnx" else domain
    qualified_op_type = f"{domain}.{op_type}" if domain else op_type
    attributes = Attributes(node_proto.attribute, f"{where} {label or next(iter(outputs), '')} ({qualified_op_type})")
    return Operator(node_index, label, op_type, domain, inputs, outputs, attributes)
