# SPDX-License-Identifier: Apache-2.0
"""Checked access to a TFLite flatbuffer: its tensors, operators and options as Python objects; ModelError if it is
corrupt.

The tables of a flatbuffer refer to each other by unchecked offsets. The classes that the flatbuffer compiler generated
follow the offsets through ``struct`` and numpy, which raise exceptions for reads outside of the file;
:func:`~microc.frontend.tflite.builtin_options.guard_flatbuffer` converts these exceptions to ModelError. A small file
can still refer to the same bytes a million times. Therefore every file has a :class:`ReadBudget` of tables, bytes and
elements of sparse tensors that may be read, ten times what real files need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ModelError, UnsupportedError
from microc.frontend.model_limits import MAX_STORED, check_shape
from microc.frontend.tflite.builtin_options import (
    CustomOption,
    OperatorOptions,
    check_index,
    convert_vector_to_array,
    decode_custom_options,
    decode_custom_options_as_int32,
    decode_printable_text,
    enumeration_names_by_number,
    expand_sparse_values,
    guard_flatbuffer,
    import_schema,
    read_builtin_code,
    read_quantisation,
    read_short_vector,
    read_sparsity,
    unpack_int4,
)
from microc.graph.ir import TensorType

IDENTIFIER = b"TFL3"
_FREE_TABLES, _BYTES_OF_A_TABLE = 1 << 14, 8
"""Number of flatbuffer tables (tensors and operators) allowed in every file, and number of bytes that a file must have
for each additional table.

Real files have at least 81 bytes for each table, with names, shapes and scales (measured on 107 files written by the
TFLite converter, of 408 bytes to 1.9 MB).
"""
_INDEX_BYTES = 64
"""Bytes of Python memory for one tensor index of an operator, or for one scale with its zero point."""
_FREE_BYTES, _TIMES_READ = 2 * MAX_STORED, 40
"""Number of bytes that may be read from every file, and number of additional bytes for each byte of its size.

Bytes count each time they are read. Bytes of decoded constants count too. Real files are read 2.9 times at most, with
scales and names (measured on the same 107 files).
"""
_SPARSE_ELEMENTS, _LARGEST_SPARSE = 1 << 27, 1 << 23
"""Maximum number of elements of all sparse tensors of a file together, and of a single one.

Unpacking takes 50 bytes per element. The first limit is ten times the elements of 50 MB of float32 weights.
"""

_DTYPES = {
    "FLOAT16": "float16",
    "FLOAT32": "float32",
    "FLOAT64": "float64",
    "BOOL": "bool",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT4": "int8",
}
_NEWER_TYPES = {19: "INT2", 20: "UINT4"}
"""Names of tensor types that are newer than the generated classes of the ``tflite`` package, by number in the
schema."""


@frozen
class Tensor:
    """Declaration of a tensor in a TFLite file.

    ``unknown_axes`` lists the axes whose extents the file does not declare; their extents in ``type.shape`` are 1. If
    microc does not have the file's dtype, ``type.dtype`` is the schema's name in lower case (``string``, ``resource``).
    ``is_packed_int4`` is True for int4 with two elements in a byte; the dtype is int8 then. ``is_variable`` is True for
    a tensor that keeps its content between calls, ``is_constant`` for one with data in the file. ``buffer`` is the
    index of the buffer with the data."""

    index: int
    name: str
    type: TensorType
    unknown_axes: tuple[int, ...]
    is_variable: bool
    is_constant: bool
    is_sparse: bool
    is_packed_int4: bool
    buffer: int


@frozen
class Operator:
    """An operator of a TFLite file: its position in the subgraph, name, input and output tensors, and options.

    ``code`` is the name of the builtin operator, or ``CUSTOM:<code>``. ``inputs`` and ``outputs`` are tensor indices;
    an optional input that is absent has the index -1. ``custom`` contains the options of a custom operator by name
    (numbers, text, or tuples of both); it is empty if the options are no flexbuffer map. ``custom_int32``
    contains the bytes of the same options as int32 numbers, for custom operators whose options are a C structure."""

    index: int
    code: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: OperatorOptions
    custom: Mapping[str, CustomOption] = field(default_factory=dict)
    custom_int32: tuple[int, ...] = ()


@dataclass(slots=True)
class ReadBudget:
    """Reading budget of a TFLite file: how many flatbuffer tables of tensors and operators, bytes, and elements of
    sparse tensors may still be read from it. It stops malformed files that refer to the same bytes again and again."""

    tables: int
    bytes: int
    elements: int = _SPARSE_ELEMENTS

    @staticmethod
    def for_file_size(file_byte_count: int) -> ReadBudget:
        """Return the initial budget of a file of ``file_byte_count`` bytes."""
        return ReadBudget(
            _FREE_TABLES + file_byte_count // _BYTES_OF_A_TABLE, _FREE_BYTES + _TIMES_READ * file_byte_count
        )


class TfliteFile:
    """One subgraph of a TFLite model in memory. Its tensors and operators are read on demand.

    ``data``: bytes of the whole file. ``subgraph``: index of the subgraph. ``budget``: remaining reading budget of the
    file; a new one by default. Raises ModelError if the file is corrupt, UnsupportedError for features that microc does
    not read.
    """

    def __init__(self, data: bytes, file_name: str, subgraph: int = 0, budget: ReadBudget | None = None) -> None:
        tflite = import_schema()
        self.name = file_name
        self._data = data
        if len(data) < 8 or data[4:8] != IDENTIFIER:
            raise ModelError(
                f"not a TFLite model: got {data[4:8]!r} at byte 4, expected {IDENTIFIER!r}",
                where=file_name,
                hint="give a .tflite file as the TFLite converter writes it",
            )
        self._budget = budget or ReadBudget.for_file_size(len(data))
        self._builtins = enumeration_names_by_number(tflite.BuiltinOperator)
        self._types = enumeration_names_by_number(tflite.TensorType)
        with guard_flatbuffer(file_name):
            self._model = tflite.Model.GetRootAs(data, 0)
            self.version = int(self._model.Version())
            self.subgraphs = int(self._model.SubgraphsLength())
            if self.version != 3:
                raise UnsupportedError(
                    f"schema version: got {self.version}, expected 3",
                    where=file_name,
                    hint="convert the model again with a current converter, which writes version 3",
                )
            if not subgraph < self.subgraphs:
                raise ModelError(f"got subgraph {subgraph}, expected 0..{self.subgraphs - 1}", where=file_name)
            self._graph = self._model.Subgraphs(subgraph)
            self.tensor_count = int(self._graph.TensorsLength())
            self.operator_count = int(self._graph.OperatorsLength())
            self.charge_budget(table_count=1 + self.tensor_count + self.operator_count)
            self.inputs = self._read_tensor_indices(self._graph.InputsAsNumpy(), "graph inputs", optional=False)
            self.outputs = self._read_tensor_indices(self._graph.OutputsAsNumpy(), "graph outputs", optional=False)
        self._stems: dict[str, int] = {}
        self._taken: set[str] = set()
        self.names = tuple(self._reserve_tensor_name(index) for index in range(self.tensor_count))
        self._tensors: dict[int, Tensor] = {}
        self._arrays: dict[int, Array] = {}

    def subgraph(self, subgraph_index: int) -> TfliteFile:
        """Open another subgraph of the same file, with the same reading budget. Each call reads the subgraph again."""
        return TfliteFile(self._data, self.name, subgraph_index, self._budget)

    def charge_budget(self, byte_count: int = 0, *, table_count: int = 0, element_count: int = 0) -> None:
        """Subtract bytes, tables and elements of sparse tensors from the file's reading budget.

        Raise ModelError if the budget is used up. It stops malformed files whose tables refer to the same bytes again
        and again."""
        left = self._budget
        left.bytes, left.tables, left.elements = (
            left.bytes - byte_count,
            left.tables - table_count,
            left.elements - element_count,
        )
        if spent := next((what for what in ("bytes", "tables", "elements") if getattr(left, what) < 0), ""):
            raise ModelError(
                f"the file refers to the same {spent} too often to be a real model",
                where=self.name,
            )

    def tensor(self, tensor_index: int) -> Tensor:
        """Return the declaration of tensor ``tensor_index``. The index must be in range."""
        if tensor_index not in self._tensors:
            self._tensors[tensor_index] = self._read_tensor(tensor_index)
        return self._tensors[tensor_index]

    def operator(self, operator_index: int) -> Operator:
        """Return operator ``operator_index`` of the subgraph, with its options."""
        where = f"{self.name} #{operator_index}"
        with guard_flatbuffer(where):
            table = self._graph.Operators(operator_index)
            code = self._model.OperatorCodes(check_index(table.OpcodeIndex(), self._model.OperatorCodesLength()))
            number = read_builtin_code(code)
            name = self._builtins.get(number, f"BUILTIN_{number}")
            custom: Mapping[str, CustomOption] = {}
            words: tuple[int, ...] = ()
            if name == "CUSTOM":
                name = f"CUSTOM:{decode_printable_text(code.CustomCode())}"
                raw_options = convert_vector_to_array(table.CustomOptionsAsNumpy(), np.uint8).tobytes()
                custom, words = decode_custom_options(raw_options), decode_custom_options_as_int32(raw_options)
            if table.LargeCustomOptionsOffset() > 1:
                raise UnsupportedError(
                    f"options of {name} are stored outside the flatbuffer",
                    where=where,
                    hint="export a model of less than 2 GB, as one flatbuffer",
                )
            inputs = self._read_tensor_indices(table.InputsAsNumpy(), f"#{operator_index} inputs", optional=True)
            outputs = self._read_tensor_indices(table.OutputsAsNumpy(), f"#{operator_index} outputs", optional=False)
            options = OperatorOptions(int(table.BuiltinOptionsType()), table.BuiltinOptions(), f"{where} {name}")
            if not options.table_type:
                second = int(table.BuiltinOptions2Type())
                options = OperatorOptions(second, table.BuiltinOptions2(), options.where, True) if second else options
        return Operator(operator_index, name, inputs, outputs, options, custom, words)

    def array(self, tensor: Tensor) -> Array:
        """Return the data of a constant tensor as an array of its dtype and shape. int4 is unpacked, sparse data made
        dense.

        The array is cached, and not connected to the file's bytes."""
        if tensor.index not in self._arrays:
            self._arrays[tensor.index] = self._read_array(tensor)
        return self._arrays[tensor.index]

    def tensor_location(self, tensor: Tensor) -> str:
        """Return the file's name with a tensor's index and name, for error messages."""
        return f"{self.name} tensor {tensor.index} {tensor.name}"

    def _read_tensor_indices(self, index_vector: Any, vector_name: str, *, optional: bool) -> tuple[int, ...]:
        """Return a flatbuffer vector of tensor indices as a tuple; ModelError if an index is out of range.

        With ``optional`` the index -1, which means an absent tensor, is valid too."""
        indices = tuple(int(i) for i in convert_vector_to_array(index_vector))
        self.charge_budget(_INDEX_BYTES * len(indices))
        for index in indices:
            if not (-1 if optional else 0) <= index < self.tensor_count:
                raise ModelError(
                    f"{vector_name}: got tensor index {index}, expected 0..{self.tensor_count - 1}", where=self.name
                )
        return indices

    def _reserve_tensor_name(self, tensor_index: int) -> str:
        """Return a unique name for tensor ``tensor_index``, made from the tensor's name in the file."""
        with guard_flatbuffer(f"{self.name} tensor {tensor_index}"):
            raw = self._graph.Tensors(tensor_index).Name() or b""
        self.charge_budget(len(raw))
        return self.reserve_name(decode_printable_text(raw) or f"tensor_{tensor_index}")

    def reserve_name(self, stem: str) -> str:
        """Reserve and return the first unused name of ``stem``, ``stem_1``, ``stem_2`` ..."""
        name = stem
        while name in self._taken:
            self._stems[stem] = self._stems.get(stem, 0) + 1
            name = f"{stem}_{self._stems[stem]}"
        self._taken.add(name)
        return name

    def _read_tensor(self, tensor_index: int) -> Tensor:
        """Read the declaration of a tensor."""
        name = self.names[tensor_index]
        where = f"{self.name} tensor {tensor_index} {name}"
        with guard_flatbuffer(where):
            table = self._graph.Tensors(tensor_index)
            shape = read_short_vector(table.ShapeAsNumpy(), "shape", where)
            signature = read_short_vector(table.ShapeSignatureAsNumpy(), "shape signature", where) or shape
            buffer = check_index(table.Buffer(), self._model.BuffersLength())
            holder = self._model.Buffers(buffer)
            length = int(holder.DataLength())
            if holder.Offset() > 1:
                raise UnsupportedError(
                    "constants are stored outside the flatbuffer",
                    where=where,
                    hint="export a model of less than 2 GB, as one flatbuffer",
                )
            type_name = self._types.get(table.Type()) or _NEWER_TYPES.get(table.Type(), f"type_{table.Type()}")
            dtype = _DTYPES.get(type_name, type_name.lower())
            variable = bool(table.IsVariable())
            sparse = table.Sparsity() is not None
            quant = read_quantisation(table.Quantization(), shape, dtype, where)
        self.charge_budget(_INDEX_BYTES * len(quant.scale) if quant is not None else 0)
        if len(signature) != len(shape):
            raise ModelError(
                f"shape_signature: got {signature}, expected {len(shape)} entries, as in shape {shape}", where=where
            )
        unknown = tuple(axis for axis, extent in enumerate(signature) if extent == -1)
        if any(extent < (-1 if axis in unknown else 0) for axis, extent in enumerate(shape)):
            raise ModelError(f"shape: got {shape}, expected extents of at least 0", where=where)
        type_ = TensorType(tuple(1 if axis in unknown else extent for axis, extent in enumerate(shape)), dtype, quant)
        check_shape(type_.shape, dtype, where)
        constant = buffer > 0 and not variable and (length > 0 or type_.size == 0)
        return Tensor(tensor_index, name, type_, unknown, variable, constant, sparse, type_name == "INT4", buffer)

    def _read_array(self, tensor: Tensor) -> Array:
        """Read the data of a constant tensor; ModelError if the number of bytes contradicts shape and dtype."""
        where = self.tensor_location(tensor)
        with guard_flatbuffer(where):
            raw = convert_vector_to_array(self._model.Buffers(tensor.buffer).DataAsNumpy(), np.uint8)
        if not dtypes.is_valid(tensor.type.dtype):
            raise UnsupportedError(
                f"constant: dtype {tensor.type.dtype} is not supported",
                where=where,
                hint="cut the model so that strings, complex numbers and resources stay on the host",
            )
        if tensor.is_sparse:
            return self._read_sparse_array(tensor, raw, where)
        expected = (tensor.type.size + 1) // 2 if tensor.is_packed_int4 else tensor.type.nbytes
        if len(raw) != expected:
            raise ModelError(f"got {len(raw)} bytes of data, expected {expected} for its shape and dtype", where=where)
        self.charge_budget(tensor.type.nbytes)
        if tensor.is_packed_int4:
            return unpack_int4(raw, tensor.type.size).reshape(tensor.type.shape)
        if tensor.type.dtype == "bool":
            return raw.astype(np.bool_).reshape(tensor.type.shape)
        native = dtypes.to_numpy(tensor.type.dtype)
        stored: Array = np.frombuffer(raw.tobytes(), native.newbyteorder("<"))
        return stored.astype(native).reshape(tensor.type.shape)

    def _read_sparse_array(self, tensor: Tensor, stored_bytes: Array, where: str) -> Array:
        """Convert the data ``stored_bytes`` of a sparse constant to a dense array."""
        if tensor.is_packed_int4 or tensor.type.dtype == "bool":
            dtype = "int4" if tensor.is_packed_int4 else "bool"
            raise UnsupportedError(
                f"sparse constant: dtype {dtype} is not supported",
                where=where,
                hint="convert the model with dense weights",
            )
        with guard_flatbuffer(where):
            table = self._graph.Tensors(tensor.index).Sparsity()
        if tensor.type.size > _LARGEST_SPARSE:
            what = f"sparse constant: got {tensor.type.size} elements, expected at most {_LARGEST_SPARSE}"
            raise UnsupportedError(what, where=where, hint="convert the model with dense weights")
        self.charge_budget(tensor.type.nbytes, element_count=tensor.type.size)
        native = dtypes.to_numpy(tensor.type.dtype)
        if len(stored_bytes) % native.itemsize:
            raise ModelError(
                f"got {len(stored_bytes)} bytes of data, expected a multiple of {native.itemsize} for "
                f"{tensor.type.dtype}",
                where=where,
            )
        values: Array = np.frombuffer(stored_bytes.tobytes(), native.newbyteorder("<")).astype(native)
        return expand_sparse_values(values, tensor.type.shape, read_sparsity(table, where), where)
