# SPDX-License-Identifier: Apache-2.0
"""Checked reading of the parts of a TFLite flatbuffer: operator options, quantisation parameters, sparse and int4
constants."""

from __future__ import annotations

import importlib.util
import math
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ModelError, UnsupportedError
from microc.frontend.model_limits import MAX_RANK
from microc.graph.ir import Quant

# ---- Access to the classes that the flatbuffer compiler generated (package ``tflite``), and options of operators.

_INT32_MAX = (1 << 31) - 1
_NAME_BYTES = 240
_BUILTIN_CODE = 10
"""Byte offset of the field ``builtin_code`` in a vtable of OperatorCode. It is the fourth field, and two sizes
precede the fields."""
_MOST_REALS = 1 << 12
_EMPTY_TABLE = struct.pack("<HHi", 4, 4, 4)
"""Bytes of a flatbuffer table without fields: a vtable, then the offset back to the vtable. Every accessor of such a
table returns the schema's default value."""


CustomOption = int | float | str | tuple[int | float | str, ...]
"""Type of the value of a custom operator's option."""


class _SchemaPackage(ModuleType):
    """The package ``tflite``, whose modules are imported when their classes are first used.

    The package itself imports all of its modules, one for each table, enumeration and union of the schema: 186 for the ten or
    so that a network needs. Each contains a class of its own name, which is then an attribute of the package. For any other
    attribute, such as the functions of the writer, the package's own code runs."""

    _is_complete = False
    """True after the package's own code ran."""

    def __setattr__(self, name: str, value: object) -> None:
        # A statement that imports the module ``tflite.Model`` also sets the package's attribute of this name.
        super().__setattr__(name, getattr(value, name, value) if isinstance(value, ModuleType) else value)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that the package does not have yet."""
        if self._is_complete or self.__spec__ is None or self.__spec__.loader is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)
        module = f"{self.__name__}.{name}"
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            self._is_complete = True
            self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def import_schema() -> Any:
    """Import the package ``tflite``, without its modules (:class:`_SchemaPackage`)."""
    if "tflite" not in sys.modules:
        spec = importlib.util.find_spec("tflite")
        if spec is None:
            raise ModuleNotFoundError("No module named 'tflite'", name="tflite")
        package = _SchemaPackage(spec.name)
        for name, value in vars(importlib.util.module_from_spec(spec)).items():
            setattr(package, name, value)
        sys.modules[spec.name] = package
    return sys.modules["tflite"]


@contextmanager
def guard_flatbuffer(where: str) -> Iterator[None]:
    """Run the body of a ``with`` statement, and raise ModelError for exceptions that flatbuffer classes raise on
    corrupt offsets. ``where`` is the location that the error mentions."""
    try:
        yield
    except (struct.error, LookupError, ValueError, TypeError, OverflowError) as error:
        raise ModelError(
            "the file is corrupt or truncated",
            where=where,
            hint="copy or export the model again; a TFLite model is one flatbuffer, complete to the last byte",
        ) from error


@frozen
class OperatorOptions:
    """The builtin options of one operator: a flatbuffer union of options tables.

    ``table_type`` is the number of the table's type in the union (0: no options), ``table`` the flatbuffer table,
    ``where`` the operator's location for errors. ``is_builtin_options_2`` is True if the options are in
    BuiltinOptions2, the union of newer operators."""

    table_type: int
    table: Any
    where: str
    is_builtin_options_2: bool = False

    def fields(self, table_name: str, *, required: bool = False) -> OptionFields:
        """Return a reader of the options as a table of the type ``table_name``, such as ``Conv2DOptions``.

        If the operator has no options, all fields have the schema's default values; with ``required`` this is a
        ModelError. Options of another table type are a ModelError too."""
        tflite = import_schema()
        union = tflite.BuiltinOptions2 if self.is_builtin_options_2 else tflite.BuiltinOptions
        if (
            self.table_type == getattr(union, table_name, None) and self.table is not None
        ):  # a corrupt file may say either union
            data, position = self.table.Bytes, self.table.Pos
        elif self.table_type == 0 and not required:
            data, position = _EMPTY_TABLE, 4
        else:
            raise ModelError(
                f"the operator's options: got none or another table, expected {table_name}", where=self.where
            )
        fields = getattr(tflite, table_name)()
        with guard_flatbuffer(self.where):
            fields.Init(data, position)
        return OptionFields(fields, self.where)


@frozen
class OptionFields:
    """Reader of the fields of one options table in the file.

    Fields are named as in the schema, such as ``stride_w``, or as the generated class names them, such as ``StrideW``.
    The methods raise ModelError for invalid values."""

    table: Any
    where: str

    def _read_field(self, field_name: str) -> Any:
        """Return the value of the field ``field_name``, as the generated class returns it."""
        with guard_flatbuffer(self.where):
            return getattr(self.table, _accessor_name(field_name))()

    def read_integer(self, field_name: str, lowest: int = -(1 << 31), highest: int = _INT32_MAX) -> int:
        """Return the field ``field_name``, an integer, enumeration or bool; ModelError if it is not in ``lowest`` ..
        ``highest``."""
        value = int(self._read_field(field_name))
        if not lowest <= value <= highest:
            raise ModelError(f"{field_name} is {value}, expected {lowest}..{highest}", where=self.where)
        return value

    def read_float(self, field_name: str) -> float:
        """Return the field ``field_name``, a float; ModelError if it is not finite."""
        value = float(self._read_field(field_name))
        if not math.isfinite(value):
            raise ModelError(f"{field_name} is {value}, expected a finite number", where=self.where)
        return value

    def read_string(self, field_name: str) -> str:
        """Return the field ``field_name``, a string; "" if the field is absent."""
        return decode_printable_text(self._read_field(field_name))

    def read_integers(self, field_name: str) -> tuple[int, ...]:
        """Return the field ``field_name``, a vector of at most MAX_RANK integers; an empty tuple if it is absent."""
        with guard_flatbuffer(self.where):
            return read_short_vector(
                getattr(self.table, f"{_accessor_name(field_name)}AsNumpy")(), field_name, self.where
            )

    def read_floats(self, field_name: str) -> tuple[float, ...]:
        """Return the field ``field_name``, a vector of at most _MOST_REALS finite floats; an empty tuple if it is
        absent."""
        with guard_flatbuffer(self.where):
            entries = convert_vector_to_array(getattr(self.table, f"{_accessor_name(field_name)}AsNumpy")(), np.float32)
        if len(entries) > _MOST_REALS or not np.isfinite(entries).all():
            raise ModelError(
                f"{field_name} has {len(entries)} entries, expected at most {_MOST_REALS} finite numbers",
                where=self.where,
            )
        return tuple(float(x) for x in entries)


def _accessor_name(field_name: str) -> str:
    """Return the name of a field's accessor in the generated class, such as ``StrideW`` for the field ``stride_w``."""
    return "".join(word[:1].upper() + word[1:] for word in field_name.split("_"))


# ---- Options by name, as the signature of an operator's converter reads them.


class TableOptions:
    """Options of a builtin operator: the fields of a flatbuffer table, by their names in the schema.

    The table is opened when a field is read: an operator without options has the defaults of its converter's
    signature, and ModelError is raised if the signature has an option without default."""

    def __init__(self, options: OperatorOptions, table_name: str) -> None:
        self._options, self._table_name = options, table_name
        self._fields: OptionFields | None = None

    def __contains__(self, field_name: str) -> bool:
        """Test whether the operator has options: a field that the file leaves out has the schema's default."""
        return self._options.table_type != 0

    @property
    def _table(self) -> OptionFields:
        if self._fields is None:
            self._fields = self._options.fields(self._table_name, required=True)
        return self._fields

    def flag(self, attribute_name: str) -> bool:
        return bool(self._table.read_integer(attribute_name))

    def integer(self, attribute_name: str) -> int:
        return self._table.read_integer(attribute_name)

    def integers(self, attribute_name: str) -> tuple[int, ...]:
        return self._table.read_integers(attribute_name)

    def real(self, attribute_name: str) -> float:
        return self._table.read_float(attribute_name)

    def reals(self, attribute_name: str) -> tuple[float, ...]:
        return self._table.read_floats(attribute_name)

    def text(self, attribute_name: str) -> str:
        return self._table.read_string(attribute_name)


class CustomOptions:
    """Options of a custom operator: the entries of its flexbuffer map."""

    def __init__(self, options: Mapping[str, CustomOption], where: str) -> None:
        self._options, self._where = options, where

    def __contains__(self, option_name: str) -> bool:
        return option_name in self._options

    def _refuse(self, option_name: str, expected: str) -> NoReturn:
        value = self._options.get(option_name)
        raise ModelError(f"option {option_name} is {value!r}, expected {expected}", where=self._where)

    def flag(self, attribute_name: str) -> bool:
        return bool(self.integer(attribute_name))

    def integer(self, attribute_name: str) -> int:
        value = self._options.get(attribute_name)
        if not isinstance(value, int):
            self._refuse(attribute_name, "an integer")
        return int(value)

    def integers(self, attribute_name: str) -> tuple[int, ...]:
        value = self._options.get(attribute_name)
        if not isinstance(value, tuple):
            self._refuse(attribute_name, "a list of integers")
        return tuple(entry for entry in value if isinstance(entry, int))

    def real(self, attribute_name: str) -> float:
        value = self._options.get(attribute_name)
        if not isinstance(value, int | float) or not math.isfinite(value):
            self._refuse(attribute_name, "a number")
        return float(value)

    def text(self, attribute_name: str) -> str:
        value = self._options.get(attribute_name)
        if not isinstance(value, str):
            self._refuse(attribute_name, "a text")
        return value


# ---- Texts, vectors and enumerations of a flatbuffer, and options of custom operators.


def decode_printable_text(name_bytes: bytes | None) -> str:
    """Decode the first _NAME_BYTES bytes of a name in the file as UTF-8. Characters that are not printable become
    ``_``."""
    decoded = (name_bytes or b"")[:_NAME_BYTES].decode("utf-8", errors="replace")
    return "".join(char if char.isprintable() else "_" for char in decoded)


def convert_vector_to_array(accessor_result: Any, element_dtype: Any = np.int64) -> Array:
    """Return the result of a generated ``...AsNumpy()`` accessor of a flatbuffer vector as an array.

    The accessor returns the number 0 if the vector is absent; the array is empty then."""
    return accessor_result if isinstance(accessor_result, np.ndarray) else np.empty(0, element_dtype)


def enumeration_names_by_number(enumeration: Any) -> Mapping[int, str]:
    """Return the names of the members of a generated enumeration class, by their numbers."""
    return {value: name for name, value in vars(enumeration).items() if isinstance(value, int)}


def read_builtin_code(operator_code: Any) -> int:
    """Return the BuiltinOperator number of an OperatorCode table: the larger value of its two fields.

    Old writers set only the deprecated field of 8 bits. New writers may set only ``builtin_code``; for numbers
    below 127 the generated ``OperatorCode.BuiltinCode()`` then returns 0, which is ADD. Therefore the field
    ``builtin_code`` is read directly from the flatbuffer table. Source: TFLite ``schema_utils.cc``.
    """
    from flatbuffers.number_types import Int32Flags

    table = operator_code._tab
    at = table.Offset(_BUILTIN_CODE)
    return max(int(table.Get(Int32Flags, at + table.Pos)) if at else 0, int(operator_code.DeprecatedBuiltinCode()))


def check_index(index: int, table_count: int) -> int:
    """Return ``index``; IndexError if it is not the index of one of ``table_count`` tables."""
    if not 0 <= index < table_count:
        raise IndexError(index)
    return index


def read_short_vector(numpy_vector: Any, vector_name: str, where: str) -> tuple[int, ...]:
    """Return a flatbuffer vector of integers, such as a shape, as a tuple; ModelError if it has more than MAX_RANK
    entries."""
    entries = convert_vector_to_array(numpy_vector)
    if len(entries) > MAX_RANK:
        raise ModelError(f"{vector_name} has {len(entries)} entries, expected at most {MAX_RANK}", where=where)
    return tuple(int(i) for i in entries)


_CUSTOM_ITEMS = 256
MOST_CUSTOM_BYTES = 4096
"""Maximum number of bytes of a custom operator's options. Longer options are ignored."""


def decode_custom_options(data: bytes) -> Mapping[str, CustomOption]:
    """Decode the options of a custom operator, a flexbuffer map; return the options by name.

    An option is a number, a text, or a tuple of both; options of other types are dropped. The result is empty if
    ``data`` is no flexbuffer map, or has more than MOST_CUSTOM_BYTES bytes."""
    from flatbuffers import flexbuffers

    if not 3 <= len(data) <= MOST_CUSTOM_BYTES:
        return {}
    try:
        root = flexbuffers.GetRoot(data)
        fields = root.AsMap if root.IsMap else None
        options = (
            {str(key.AsKey): _convert_custom_option(fields[key.AsKey]) for key in fields.Keys}
            if fields is not None
            else {}
        )
    except (struct.error, LookupError, ValueError, TypeError, ArithmeticError, AttributeError, RecursionError):
        return {}
    return {name: value for name, value in options.items() if value is not None}


_MOST_WORDS = 16


def decode_custom_options_as_int32(data: bytes) -> tuple[int, ...]:
    """Decode the options of a custom operator as little-endian int32 words, for options that are a C structure.

    At most _MOST_WORDS words are returned. An incomplete last word is dropped."""
    count = min(len(data) // 4, _MOST_WORDS)
    return struct.unpack(f"<{count}i", data[: 4 * count])


def _convert_custom_option(option: Any) -> CustomOption | None:
    """Convert the flexbuffer value of an option to Python. Return None for maps, nested lists, and lists of more than
    _CUSTOM_ITEMS items."""
    if (option.IsVector or option.IsTypedVector) and not option.IsMap:
        items = option.AsVector if option.IsVector else option.AsTypedVector
        values = (
            tuple(_convert_scalar_option(items[k]) for k in range(len(items))) if len(items) <= _CUSTOM_ITEMS else ()
        )
        return tuple(v for v in values if v is not None) if values and None not in values else None
    return _convert_scalar_option(option)


def _convert_scalar_option(option: Any) -> int | float | str | None:
    """Convert a flexbuffer value that is a number or text to Python; return None for other values."""
    value: int | float | str | None = (
        option.Value if option.IsInt or option.IsFloat or option.IsBool or option.IsString else None
    )
    return value


# ---- Quantisation parameters of a TFLite tensor: scales and zero points, checked.

_CUSTOM, _BLOCKS = 1, 2
"""Types of the schema's QuantizationDetails union. Custom details are ignored, by TFLite too. With blockwise
quantisation a block of elements has a scale, and the scales are in another tensor."""


def read_quantisation(quantization_table: Any, shape: tuple[int, ...], dtype: str, where: str) -> Quant | None:
    """Read the scales and zero points of a tensor, and check them against its shape and dtype.

    Return None for a tensor without scales, or one that is not of integers. Raises ModelError if scales, zero points,
    axis and shape contradict each other, UnsupportedError for blockwise quantisation and other QuantizationDetails that
    microc does not support.
    """
    if quantization_table is None:
        return None
    details = int(quantization_table.DetailsType())
    if details > _CUSTOM:
        got = "blockwise scales" if details == _BLOCKS else f"type {details}"
        what = f"quantization details: got {got}, expected none or custom details"
        raise UnsupportedError(what, where=where, hint="quantise per tensor or per channel")
    if quantization_table.ScaleLength() == 0 or not dtypes.is_valid(dtype) or not dtypes.is_integer(dtype):
        return None
    scale, zero_point = (
        convert_vector_to_array(quantization_table.ScaleAsNumpy()),
        convert_vector_to_array(quantization_table.ZeroPointAsNumpy()),
    )
    axis = int(quantization_table.QuantizedDimension()) if len(scale) > 1 else None
    if axis is not None and len(shape) == 1:
        axis = 0  # converters copy the axis of the weights to the bias
    if len(scale) != len(zero_point):
        raise ModelError(
            f"got {len(scale)} scales but {len(zero_point)} zero points, expected equal numbers", where=where
        )
    if axis is not None and not 0 <= axis < len(shape):
        raise ModelError(f"quantized_dimension: got {axis}, expected 0..{len(shape) - 1}", where=where)
    if axis is not None and shape[axis] != len(scale):
        raise ModelError(f"got {len(scale)} scales along axis {axis}, expected {shape[axis]}, its extent", where=where)
    if not (np.all(np.isfinite(scale)) and np.all(scale > 0)):
        raise ModelError(
            f"got quantisation scales {scale.min()}..{scale.max()}, expected positive numbers", where=where
        )
    lowest, highest = dtypes.int_range(dtype)
    if np.any(zero_point < lowest) or np.any(zero_point > highest):
        raise ModelError(
            f"got zero points {zero_point.min()}..{zero_point.max()}, expected {lowest}..{highest} for {dtype}",
            where=where,
        )
    return Quant(tuple(map(float, scale)), tuple(map(int, zero_point)), axis)


# ---- Constants whose stored format differs from the array that the network computes with: sparse tensors and int4.
#
# A sparse tensor is stored as a tree with one level for each dimension, in the order of traversal. Dimensions are the axes of
# the tensor, then block dimensions, each of which divides an axis into blocks. A dense level stores all elements of its
# dimension. A compressed level is in the format of compressed sparse rows (CSR): segments say where the elements of each parent
# begin, indices say where each element is along the dimension. Source: TFLite ``sparsity_format_converter.cc``; schema,
# SparsityParameters.

_MOST_LEVELS = 16
_VECTORS = ("", "Int32Vector", "Uint16Vector", "Uint8Vector")


@frozen
class SparseLevel:
    """One level of a sparse tensor's tree of dimensions.

    In a dense level ``dense_size`` is the number of elements below each parent. In a compressed level it is 0, and the
    CSR arrays ``segments`` and ``indices`` list the elements."""

    dense_size: int
    segments: Array
    indices: Array


@frozen
class Sparsity:
    """Layout of a sparse tensor.

    ``traversal_order`` lists the dimensions in the order of traversal: numbers below the tensor's rank are axes, others
    are block dimensions. ``block_axes`` contains, for each block dimension, the axis that it divides. ``levels``
    describes the storage of each dimension, in the order of traversal."""

    traversal_order: tuple[int, ...]
    block_axes: tuple[int, ...]
    levels: tuple[SparseLevel, ...]


def read_sparsity(table: Any, where: str) -> Sparsity:
    """Read a SparsityParameters table of the flatbuffer."""
    with guard_flatbuffer(where):
        count = int(table.DimMetadataLength())
        if count > _MOST_LEVELS:
            raise ModelError(
                f"sparsity: dim_metadata has {count} entries, expected at most {_MOST_LEVELS}", where=where
            )
        levels = tuple(_read_sparse_level(table.DimMetadata(k)) for k in range(count))
        order, blocks = (convert_vector_to_array(v) for v in (table.TraversalOrderAsNumpy(), table.BlockMapAsNumpy()))
    return Sparsity(tuple(map(int, order)), tuple(map(int, blocks)), levels)


def _read_sparse_level(table: Any) -> SparseLevel:
    """Read a DimensionMetadata table of the flatbuffer: one level of a sparse tensor, dense or compressed."""
    if int(table.Format()) == 0:
        return SparseLevel(int(table.DenseSize()), np.empty(0, np.int64), np.empty(0, np.int64))
    segments = _read_index_vector(int(table.ArraySegmentsType()), table.ArraySegments())
    return SparseLevel(0, segments, _read_index_vector(int(table.ArrayIndicesType()), table.ArrayIndices()))


def _read_index_vector(vector_type: int, table: Any) -> Array:
    """Read a SparseIndexVector, a flatbuffer union of int32, uint16 and uint8 vectors, as int64.

    ValueError if the union is empty; :func:`guard_flatbuffer` converts it."""
    if not 1 <= vector_type < len(_VECTORS) or table is None:
        raise ValueError("a sparse dimension has no array of segments or indices")
    vector = getattr(import_schema(), _VECTORS[vector_type])()
    vector.Init(table.Bytes, table.Pos)
    return convert_vector_to_array(vector.ValuesAsNumpy()).astype(np.int64)


def expand_sparse_values(stored_values: Array, shape: Sequence[int], sparsity: Sparsity, where: str) -> Array:
    """Convert the ``stored_values`` of a sparse tensor to a dense array. Elements that are not stored become
    zero.

    ModelError if the layout contradicts itself, the shape or the number of values."""
    rank, levels = len(shape), sparsity.levels
    if not rank:
        raise ModelError("got a sparse tensor without axes, expected at least one", where=where)
    if sorted(sparsity.traversal_order) != list(range(rank + len(sparsity.block_axes))) or len(levels) != len(
        sparsity.traversal_order
    ):
        raise ModelError(
            f"sparsity of shape {tuple(shape)}: got traversal_order {sparsity.traversal_order}, expected each axis and "
            "block dimension once",
            where=where,
        )
    if any(not 0 <= dimension < rank for dimension in sparsity.block_axes):
        raise ModelError(f"sparsity: got block_map {sparsity.block_axes}, expected axes 0..{rank - 1}", where=where)
    coordinates: dict[int, Array] = {}
    positions = np.zeros(1, np.int64)
    for dimension, level in zip(sparsity.traversal_order, levels, strict=True):
        rows, index, positions = _list_level_elements(level, positions, prod(shape), where)
        coordinates = {dimension: index[rows] for dimension, index in coordinates.items()}
        coordinates[dimension] = index
    if len(positions) != stored_values.size or (positions != np.arange(len(positions))).any():
        raise ModelError(
            f"sparsity: got {stored_values.size} values, expected {len(positions)}, one for each position", where=where
        )
    for position, dimension in enumerate(sparsity.block_axes):
        size = levels[sparsity.traversal_order.index(rank + position)].dense_size
        coordinates[dimension] = coordinates[dimension] * size + coordinates[rank + position]
    result = np.zeros(tuple(shape), stored_values.dtype)
    coordinates_by_axis = tuple(coordinates[dimension] for dimension in range(rank))
    if any(
        index.size and not 0 <= index.min() <= index.max() < e
        for index, e in zip(coordinates_by_axis, shape, strict=True)
    ):
        raise ModelError(f"sparsity: got an element outside of shape {tuple(shape)}", where=where)
    result[coordinates_by_axis] = stored_values.reshape(-1)
    return result


def _list_level_elements(
    level: SparseLevel, parent_positions: Array, max_elements: int, where: str
) -> tuple[Array, Array, Array]:
    """List the elements of one level of a sparse tensor.

    ``parent_positions`` are the positions of the elements of the level above, in that level's storage. Return three
    arrays with one entry for each element: the index of its parent in ``parent_positions``, its index along the level's
    dimension, and its position in the storage of this level. ModelError for more than ``max_elements`` elements."""
    if level.dense_size:
        counts = np.full(len(parent_positions), level.dense_size, np.int64)
        starts = parent_positions * level.dense_size
    else:
        if parent_positions.size and int(parent_positions.max()) + 1 >= len(level.segments):
            raise ModelError(
                f"sparsity: array_segments has {len(level.segments)} entries, expected at least "
                f"{int(parent_positions.max()) + 2}",
                where=where,
            )
        starts = level.segments[parent_positions]
        counts = level.segments[parent_positions + 1] - starts
    if counts.size and (counts.min() < 0 or int(counts.sum()) > max_elements):
        raise ModelError(
            f"sparsity: array_segments lists {int(counts.sum())} elements, expected at most {max_elements}, as in the tensor",
            where=where,
        )
    rows = np.repeat(np.arange(len(parent_positions)), counts)
    offsets = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    positions = starts[rows] + offsets
    if level.dense_size:
        return rows, offsets, positions
    if positions.size and int(positions.max()) >= len(level.indices):
        raise ModelError(
            f"sparsity: array_indices has {len(level.indices)} entries, expected at least {int(positions.max()) + 1}",
            where=where,
        )
    return rows, level.indices[positions], positions


def unpack_int4(packed_bytes: Array, element_count: int) -> Array:
    """Unpack two's-complement 4-bit integers to int8. The lower four bits of a byte are the first element."""
    nibbles = np.stack([packed_bytes & 15, packed_bytes >> 4], axis=-1).reshape(-1)[:element_count].astype(np.int8)
    unpacked: Array = np.where(nibbles > 7, nibbles - 16, nibbles).astype(np.int8)
    return unpacked
