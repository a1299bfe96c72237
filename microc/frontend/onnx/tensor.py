"""Tensors of the ONNX protobuf, each checked against its own shape."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.frontend.budget import check_shape

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
