"""Safe access to the ONNX protobuf: tensors, operators, attributes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, NoReturn

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ModelError, UnsupportedError
from microc.frontend.budget import check_shape

# ---- Tensors of the ONNX protobuf, each checked against its own shape.

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
"""Integers of four bits (21, 22) are kept in bytes."""
FOUR_BITS = (21, 22)
_FIELDS = {
    "float32": "float_data",
    "float64": "double_data",
    "int64": "int64_data",
    "uint32": "uint64_data",
    "uint64": "uint64_data",
}
"""Where values live that are not raw bytes; all other dtypes use ``int32_data`` (TensorProto in ``onnx.proto``)."""


def text(value: Any, where: str) -> str:
    """A string field, which protobuf hands over as bytes where it is not UTF-8."""
    if not isinstance(value, str):
        raise ModelError(f"the name {value!r} is not UTF-8", where=where)
    return value


def dtype_name(code: int) -> str:
    """What ONNX calls a TensorProto.DataType number."""
    import onnx

    names = {number: str(word).lower() for word, number in onnx.TensorProto.DataType.items()}
    return names.get(code, f"number {code}")


def dtype(code: int, where: str) -> str:
    """The dtype with a TensorProto.DataType number."""
    if code == 0:
        raise ModelError("the element type is not given", where=where)
    if code not in DTYPES:
        raise UnsupportedError(f"elements of type {dtype_name(code)}", where=where)
    return DTYPES[code]


def array(tensor: Any, where: str) -> Array:
    """The data of a TensorProto, checked against its shape."""
    if tensor.data_location == 1 or tensor.external_data:
        location = {entry.key: entry.value for entry in tensor.external_data}.get("location", "another file")
        raise UnsupportedError(
            f"the data lives in {location!r}, outside the model file",
            where=where,
            hint="save the model as one file: onnx.save(model, path, save_as_external_data=False)",
        )
    if tensor.HasField("segment"):
        raise UnsupportedError("the tensor is split into segments", where=where)
    kind, shape = dtype(tensor.data_type, where), tuple(tensor.dims)
    check_shape(shape, kind, where)
    count = prod(shape)
    if tensor.data_type in FOUR_BITS:
        return _nibbles(tensor, count, kind, where).reshape(shape)
    if tensor.HasField("raw_data"):
        if len(tensor.raw_data) != count * dtypes.nbytes(kind):
            raise ModelError(
                f"{len(tensor.raw_data)} bytes of data for shape {shape} of {kind}: "
                f"{count * dtypes.nbytes(kind)} are needed",
                where=where,
            )
        if kind == "bfloat16":
            return (
                np.frombuffer(tensor.raw_data, np.dtype("<u2"))
                .astype(np.uint16)
                .view(dtypes.to_numpy(kind))
                .reshape(shape)
            )
        stored = np.frombuffer(tensor.raw_data, dtypes.to_numpy(kind).newbyteorder("<"))
        return stored.astype(dtypes.to_numpy(kind), copy=False).reshape(shape)
    values = getattr(tensor, _FIELDS.get(kind, "int32_data"))
    if len(values) != count:
        raise ModelError(f"{len(values)} elements of data for shape {shape}", where=where)
    return _typed(values, kind, where).reshape(shape)


def _nibbles(tensor: Any, count: int, kind: str, where: str) -> Array:
    """Integers of four bits, the first of two in the lower half of its byte."""
    stored = np.frombuffer(tensor.raw_data, np.uint8) if tensor.HasField("raw_data") else np.array(tensor.int32_data)
    if len(stored) != (count + 1) // 2:
        raise ModelError(f"{len(stored)} bytes of data for {count} elements of four bits", where=where)
    pairs = stored.astype(np.uint8)
    found = np.stack([pairs & 15, pairs >> 4], 1).reshape(-1)[:count]
    return found if kind == "uint8" else ((found ^ 8).astype(np.int8) - 8).astype(np.int8)


def _typed(values: Any, kind: str, where: str) -> Array:
    """Elements of a typed field; float16 is stored as its bits."""
    if kind in ("float32", "float64"):
        return np.array(values, dtype=kind)
    wide = np.array(values, dtype=np.uint64 if kind in ("uint32", "uint64") else np.int64)
    if kind in dtypes.HALF:
        return (wide & 0xFFFF).astype(np.uint16).view(dtypes.to_numpy(kind))
    low, high = dtypes.int_range(kind)
    if wide.size and (int(wide.min()) < low or int(wide.max()) > high):
        raise ModelError(f"the data does not fit {kind}", where=where)
    return wide.astype(dtypes.to_numpy(kind))


# ---- The attributes of an ONNX operator: each is checked against the type that is asked for.

_FLOAT, _INT, _STRING, _TENSOR, _GRAPH, _FLOATS, _INTS, _STRINGS = 1, 2, 3, 4, 5, 6, 7, 8
_KINDS = {_FLOAT: "a float", _INT: "an integer", _STRING: "a string", _TENSOR: "a tensor", _GRAPH: "a graph"}
_KINDS |= {_FLOATS: "a list of floats", _INTS: "a list of integers", _STRINGS: "a list of strings"}


class Attributes:
    """The attributes of one operator, each asked for by name and type."""

    def __init__(self, attributes: Iterable[Any], where: str) -> None:
        self._found: dict[str, Any] = {}
        self._where = where
        for attribute in attributes:
            name = text(attribute.name, where)
            if name in self._found:
                raise ModelError(f"attribute {name!r} is given twice", where=where)
            self._found[name] = attribute

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def protos(self) -> Mapping[str, Any]:
        """The attributes as the file holds them."""
        return self._found

    def names(self) -> tuple[str, ...]:
        return tuple(self._found)

    def _get(self, name: str, kind: int) -> Any:
        attribute = self._found[name]
        if attribute.type != kind or attribute.ref_attr_name:
            raise ModelError(f"attribute {name!r} is not {_KINDS[kind]}", where=self._where)
        return attribute

    def _absent(self, name: str) -> NoReturn:
        raise ModelError(f"attribute {name!r} is missing", where=self._where)

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer; ModelError if it is absent and there is no default."""
        if name in self._found:
            return int(self._get(name, _INT).i)
        return self._absent(name) if default is None else default

    def flag(self, name: str, default: bool = False) -> bool:
        return self.integer(name, int(default)) != 0

    def raw_real(self, name: str, default: float) -> float:
        """A float32, NaN and infinities too."""
        return float(self._get(name, _FLOAT).f) if name in self._found else default

    def real(self, name: str, default: float | None = None) -> float:
        """A finite float32."""
        if name not in self._found:
            return self._absent(name) if default is None else default
        number = float(self._get(name, _FLOAT).f)
        if not math.isfinite(number):
            raise ModelError(f"attribute {name!r} is {number}", where=self._where)
        return number

    def reals(self, name: str, default: tuple[float, ...] | None = None) -> tuple[float, ...]:
        """Float32 numbers; ModelError where they are absent and have no default."""
        if name not in self._found:
            return self._absent(name) if default is None else default
        return tuple(float(number) for number in self._get(name, _FLOATS).floats)

    def text(self, name: str, default: str) -> str:
        if name not in self._found:
            return default
        return str(self._get(name, _STRING).s.decode("utf-8", "replace"))

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings, empty if it is absent."""
        if name not in self._found:
            return ()
        return tuple(word.decode("utf-8", "replace") for word in self._get(name, _STRINGS).strings)

    def integers(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        if name in self._found:
            return tuple(int(number) for number in self._get(name, _INTS).ints)
        return self._absent(name) if default is None else default

    def tensor(self, name: str) -> Array:
        """A tensor; ModelError where it is absent."""
        if name not in self._found:
            self._absent(name)
        return array(self._get(name, _TENSOR).t, f"{self._where} attribute {name!r}")

    def graph(self, name: str) -> Any:
        """The protobuf of a graph, which must be there; :func:`decode_body` makes sense of it."""
        return self._get(name, _GRAPH).g if name in self._found else self._absent(name)

    def read_inside(self) -> set[str]:
        """What the operators of graphs in attributes read."""
        graphs = [attribute.g for attribute in self._found.values() if attribute.type == _GRAPH]
        found: set[str] = set()
        while graphs:
            for node in graphs.pop().node:
                found.update(node.input)
                graphs += [attribute.g for attribute in node.attribute if attribute.type == _GRAPH]
        return found


# ---- Safe access to the ONNX protobuf: plain tensors, operators and attributes, or a ModelError.
#
# Protobuf checks the wire format and nothing else. Everything that lives outside the file is refused here.


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
