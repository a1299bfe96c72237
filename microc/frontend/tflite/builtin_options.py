"""Options of TFLite operators, quantisation parameters, sparse constants."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ModelError, UnsupportedError
from microc.frontend.model_limits import MAX_RANK
from microc.graph.ir import Quant

# ---- The only access to the generated flatbuffer classes, and options of operators.

_INT32_MAX = (1 << 31) - 1
_NAME_BYTES = 240
_BUILTIN_CODE = 10
"""Offset of ``builtin_code`` in a vtable of OperatorCode: the fourth field, after two sizes."""
_MOST_REALS = 1 << 12
_EMPTY_TABLE = struct.pack("<HHi", 4, 4, 4)
"""A table without fields (vtable, then the offset back to it), for which every accessor returns the schema's default."""


Custom = int | float | str | tuple[int | float | str, ...]
"""Type of a custom operator's option."""


@contextmanager
def guard_flatbuffer(where: str) -> Iterator[None]:
    """Convert exceptions that the generated flatbuffer classes raise on corrupt offsets into a ModelError."""
    try:
        yield
    except (struct.error, LookupError, ValueError, TypeError, OverflowError) as error:
        raise ModelError(
            "the file is corrupt or truncated",
            where=where,
            hint="copy or export the model again; a TFLite model is one flatbuffer, complete to the last byte",
        ) from error


@frozen
class Options:
    """The builtin options of one operator; fields are read by their schema names in camel case.

    ``second``: the options are in BuiltinOptions2, the union that newer operators use."""

    kind: int
    table: Any
    where: str
    second: bool = False

    def fields(self, table_name: str, *, required: bool = False) -> Fields:
        """Return the fields of the options table ``table_name``, such as ``Conv2DOptions``.

        If optional options are absent, fields have the schema's defaults."""
        import tflite

        union = tflite.BuiltinOptions2 if self.second else tflite.BuiltinOptions
        if (
            self.kind == getattr(union, table_name, None) and self.table is not None
        ):  # a corrupt file may say either union
            data, position = self.table.Bytes, self.table.Pos
        elif self.kind == 0 and not required:
            data, position = _EMPTY_TABLE, 4
        else:
            raise ModelError(f"the operator has no options, expected {table_name}", where=self.where)
        fields = getattr(tflite, table_name)()
        with guard_flatbuffer(self.where):
            fields.Init(data, position)
        return Fields(fields, self.where)


@frozen
class Fields:
    """Typed access to one options table."""

    table: Any
    where: str

    def _read_field(self, field_name: str) -> Any:
        """Return the field ``field_name`` of the options."""
        with guard_flatbuffer(self.where):
            return getattr(self.table, field_name)()

    def integer(self, name: str, lowest: int = -(1 << 31), highest: int = _INT32_MAX) -> int:
        """Return an integer, enumeration or bool within bounds."""
        value = int(self._read_field(name))
        if not lowest <= value <= highest:
            raise ModelError(f"{name} is {value}, expected {lowest}..{highest}", where=self.where)
        return value

    def real(self, name: str) -> float:
        """Return a finite float."""
        value = float(self._read_field(name))
        if not math.isfinite(value):
            raise ModelError(f"{name} is {value}, expected a finite number", where=self.where)
        return value

    def text(self, name: str) -> str:
        """Return a string, empty if absent."""
        return printable_text(self._read_field(name))

    def integers(self, name: str) -> tuple[int, ...]:
        """Return a short vector of integers, empty if absent."""
        with guard_flatbuffer(self.where):
            return short_vector(getattr(self.table, f"{name}AsNumpy")(), name, self.where)

    def reals(self, name: str) -> tuple[float, ...]:
        """Return a short vector of finite floats, empty if absent."""
        with guard_flatbuffer(self.where):
            entries = as_array(getattr(self.table, f"{name}AsNumpy")(), np.float32)
        if len(entries) > _MOST_REALS or not np.isfinite(entries).all():
            raise ModelError(
                f"{name} has {len(entries)} entries, expected at most {_MOST_REALS} finite numbers", where=self.where
            )
        return tuple(float(x) for x in entries)


def printable_text(raw: bytes | None) -> str:
    """Decode a name of the file, at most _NAME_BYTES bytes; characters that are not printable become ``_``."""
    decoded = (raw or b"")[:_NAME_BYTES].decode("utf-8", errors="replace")
    return "".join(char if char.isprintable() else "_" for char in decoded)


def as_array(numpy_vector: Any, element_dtype: Any = np.int64) -> Array:
    """Return the result of a generated ``AsNumpy`` accessor as an array; empty if it is 0, which means absent."""
    return numpy_vector if isinstance(numpy_vector, np.ndarray) else np.empty(0, element_dtype)


def enumeration_names(enumeration: Any) -> Mapping[int, str]:
    """Return the names of a generated enumeration class, by value."""
    return {value: name for name, value in vars(enumeration).items() if isinstance(value, int)}


def builtin_code(code: Any) -> int:
    """Return an operator's number: the larger one of its two fields.

    Old writers know only the deprecated field, of 8 bits. New ones may leave it out; then ``OperatorCode.BuiltinCode()`` of the
    generated classes returns 0, which is ADD, for numbers below 127. So the table's own field is read. Source: TFLite
    ``schema_utils.cc``.
    """
    from flatbuffers.number_types import Int32Flags

    table = code._tab
    at = table.Offset(_BUILTIN_CODE)
    return max(int(table.Get(Int32Flags, at + table.Pos)) if at else 0, int(code.DeprecatedBuiltinCode()))


def check_index(index: int, table_count: int) -> int:
    """Return ``index`` if there are more tables than that; raise IndexError if not."""
    if not 0 <= index < table_count:
        raise IndexError(index)
    return index


def short_vector(vector: Any, description: str, where: str) -> tuple[int, ...]:
    """Return a vector of at most MAX_RANK integers, for shapes and axes."""
    entries = as_array(vector)
    if len(entries) > MAX_RANK:
        raise ModelError(f"{description} has {len(entries)} entries, expected at most {MAX_RANK}", where=where)
    return tuple(int(i) for i in entries)


_CUSTOM_ITEMS = 256
MOST_CUSTOM_BYTES = 4096
"""Bytes of a custom operator's options; longer ones are ignored."""


def custom_options(data: bytes) -> Mapping[str, Custom]:
    """Return the options of a flexbuffer map by name: numbers, texts, and tuples of them; empty if ``data`` is no such map."""
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


def custom_words(data: bytes) -> tuple[int, ...]:
    """Return the leading options as little-endian int32, at most _MOST_WORDS; an incomplete last word is dropped."""
    count = min(len(data) // 4, _MOST_WORDS)
    return struct.unpack(f"<{count}i", data[: 4 * count])


def _convert_custom_option(option: Any) -> Custom | None:
    """Convert an option of a flexbuffer; None for maps, nested lists, and lists of more than _CUSTOM_ITEMS items."""
    if (option.IsVector or option.IsTypedVector) and not option.IsMap:
        items = option.AsVector if option.IsVector else option.AsTypedVector
        values = tuple(_scalar_option(items[k]) for k in range(len(items))) if len(items) <= _CUSTOM_ITEMS else ()
        return tuple(v for v in values if v is not None) if values and None not in values else None
    return _scalar_option(option)


def _scalar_option(option: Any) -> int | float | str | None:
    """Return an option of a flexbuffer that is a number or a text, else None."""
    value: int | float | str | None = (
        option.Value if option.IsInt or option.IsFloat or option.IsBool or option.IsString else None
    )
    return value


# ---- Quantisation parameters of a TFLite tensor: scales and zero points, checked.

_CUSTOM, _BLOCKS = 1, 2
"""Kinds of quantisation details: custom ones are ignored by TFLite too; blocks of scales are stored in a tensor of their own."""


def read_quantisation(quantization_table: Any, shape: tuple[int, ...], dtype: str, where: str) -> Quant | None:
    """Read scales and zero points, checked against shape and dtype; None without them or for a real dtype.

    Raises ModelError if they are inconsistent, UnsupportedError for kinds of details that microc does not know.
    """
    if quantization_table is None:
        return None
    details = int(quantization_table.DetailsType())
    if details > _CUSTOM:
        what = "scales for blocks of elements" if details == _BLOCKS else f"quantisation of kind {details}"
        raise UnsupportedError(what, where=where, hint="quantise per tensor or per channel")
    if quantization_table.ScaleLength() == 0 or not dtypes.is_valid(dtype) or not dtypes.is_integer(dtype):
        return None
    scale, zero_point = as_array(quantization_table.ScaleAsNumpy()), as_array(quantization_table.ZeroPointAsNumpy())
    axis = int(quantization_table.QuantizedDimension()) if len(scale) > 1 else None
    if axis is not None and len(shape) == 1:
        axis = 0  # converters copy the axis of the weights to the bias
    if len(scale) != len(zero_point):
        raise ModelError(
            f"got {len(scale)} scales but {len(zero_point)} zero points, expected equal numbers", where=where
        )
    if axis is not None and not 0 <= axis < len(shape):
        raise ModelError(f"quantised along axis {axis}, expected 0..{len(shape) - 1}", where=where)
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


# ---- Constants that are stored in another form than they are used in: sparse tensors and int4.
#
# A sparse tensor lists its dimensions in order of traversal, blocks after the tensor's own dimensions. A level holds all elements
# of its dimension (dense), or those between two segments, at listed indices (compressed sparse rows). Source: TFLite
# ``sparsity_format_converter.cc``; schema, SparsityParameters.

_MOST_LEVELS = 16
_VECTORS = ("", "Int32Vector", "Uint16Vector", "Uint8Vector")


@frozen
class Level:
    """One level of a sparse tensor: ``size`` elements below each parent, or, if ``size`` is 0, those that CSR arrays list."""

    size: int
    segments: Array
    indices: Array


@frozen
class Sparsity:
    """The layout of a sparse tensor: its dimensions in order of traversal (numbers from the tensor's rank on are blocks), the
    tensor's dimension that each block divides, and the levels."""

    order: tuple[int, ...]
    blocks: tuple[int, ...]
    levels: tuple[Level, ...]


def read_sparsity(table: Any, where: str) -> Sparsity:
    """Read the flatbuffer's SparsityParameters."""
    with guard_flatbuffer(where):
        count = int(table.DimMetadataLength())
        if count > _MOST_LEVELS:
            raise ModelError(f"sparsity: got {count} levels, expected at most {_MOST_LEVELS}", where=where)
        levels = tuple(_read_level(table.DimMetadata(k)) for k in range(count))
        order, blocks = (as_array(v) for v in (table.TraversalOrderAsNumpy(), table.BlockMapAsNumpy()))
    return Sparsity(tuple(map(int, order)), tuple(map(int, blocks)), levels)


def _read_level(table: Any) -> Level:
    """Read one level of a sparse tensor: dense, or as segments and indices."""
    if int(table.Format()) == 0:
        return Level(int(table.DenseSize()), np.empty(0, np.int64), np.empty(0, np.int64))
    segments = _read_index_vector(int(table.ArraySegmentsType()), table.ArraySegments())
    return Level(0, segments, _read_index_vector(int(table.ArrayIndicesType()), table.ArrayIndices()))


def _read_index_vector(vector_type: int, table: Any) -> Array:
    """Read a union of vectors of three integer widths as int64."""
    import tflite

    if not 1 <= vector_type < len(_VECTORS) or table is None:
        raise ValueError("a sparse dimension has no array of segments or indices")
    vector = getattr(tflite, _VECTORS[vector_type])()
    vector.Init(table.Bytes, table.Pos)
    return as_array(vector.ValuesAsNumpy()).astype(np.int64)


def dense_array(values: Array, shape: Sequence[int], sparsity: Sparsity, where: str) -> Array:
    """Return a sparse tensor as a dense array, zero where nothing is stored; ModelError if the layout is inconsistent."""
    rank, levels = len(shape), sparsity.levels
    if not rank:
        raise ModelError("got a sparse tensor without axes, expected at least one", where=where)
    if sorted(sparsity.order) != list(range(rank + len(sparsity.blocks))) or len(levels) != len(sparsity.order):
        raise ModelError(
            f"sparsity of shape {tuple(shape)}: got traversal_order {sparsity.order}, expected each axis and block once",
            where=where,
        )
    if any(not 0 <= dimension < rank for dimension in sparsity.blocks):
        raise ModelError(f"sparsity: got block_map {sparsity.blocks}, expected axes 0..{rank - 1}", where=where)
    coordinates: dict[int, Array] = {}
    positions = np.zeros(1, np.int64)
    for dimension, level in zip(sparsity.order, levels, strict=True):
        rows, index, positions = _expand_level(level, positions, prod(shape), where)
        coordinates = {dimension: index[rows] for dimension, index in coordinates.items()}
        coordinates[dimension] = index
    if len(positions) != values.size or (positions != np.arange(len(positions))).any():
        raise ModelError(
            f"sparsity: got {values.size} values, expected {len(positions)}, one for each position", where=where
        )
    for position, dimension in enumerate(sparsity.blocks):
        size = levels[sparsity.order.index(rank + position)].size
        coordinates[dimension] = coordinates[dimension] * size + coordinates[rank + position]
    result = np.zeros(tuple(shape), values.dtype)
    coordinates_by_axis = tuple(coordinates[dimension] for dimension in range(rank))
    if any(
        index.size and not 0 <= index.min() <= index.max() < e
        for index, e in zip(coordinates_by_axis, shape, strict=True)
    ):
        raise ModelError(f"sparsity: got an index beyond shape {tuple(shape)}", where=where)
    result[coordinates_by_axis] = values.reshape(-1)
    return result


def _expand_level(level: Level, parent_positions: Array, max_elements: int, where: str) -> tuple[Array, Array, Array]:
    """Expand one level of a sparse tensor below the positions ``parent_positions``.

    Return for every element of the level the index of its parent in ``parent_positions``, its index along the level's
    dimension, and its own position. Raise ModelError for more than ``max_elements``."""
    if level.size:
        counts = np.full(len(parent_positions), level.size, np.int64)
        starts = parent_positions * level.size
    else:
        if parent_positions.size and int(parent_positions.max()) + 1 >= len(level.segments):
            raise ModelError(
                f"sparsity: got {len(level.segments)} segments, expected at least {int(parent_positions.max()) + 2}",
                where=where,
            )
        starts = level.segments[parent_positions]
        counts = level.segments[parent_positions + 1] - starts
    if counts.size and (counts.min() < 0 or int(counts.sum()) > max_elements):
        raise ModelError(
            f"sparsity: got {int(counts.sum())} positions, expected at most {max_elements}, the elements of the tensor",
            where=where,
        )
    rows = np.repeat(np.arange(len(parent_positions)), counts)
    offsets = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    positions = starts[rows] + offsets
    if level.size:
        return rows, offsets, positions
    if positions.size and int(positions.max()) >= len(level.indices):
        raise ModelError(
            f"sparsity: got {len(level.indices)} indices, expected at least {int(positions.max()) + 1}", where=where
        )
    return rows, level.indices[positions], positions


def unpack_int4(packed_bytes: Array, element_count: int) -> Array:
    """Unpack two's-complement four-bit integers, the lower half of a byte first, to int8."""
    nibbles = np.stack([packed_bytes & 15, packed_bytes >> 4], axis=-1).reshape(-1)[:element_count].astype(np.int8)
    unpacked: Array = np.where(nibbles > 7, nibbles - 16, nibbles).astype(np.int8)
    return unpacked
