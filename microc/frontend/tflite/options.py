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
from microc.frontend.budget import MAX_RANK
from microc.graph.ir import Quant

# ---- The one boundary to the generated flatbuffer classes, and the options of operators read through it.

_INT32_MAX = (1 << 31) - 1
_NAME_BYTES = 240
_BUILTIN_CODE = 10
"""Where a vtable of OperatorCode says ``builtin_code``: the fourth field, behind two sizes."""
_MOST_REALS = 1 << 12
_EMPTY_TABLE = struct.pack("<HHi", 4, 4, 4)
"""A table without fields (vtable, then the offset back to it): every accessor answers with the schema's default."""


Custom = int | float | str | tuple[int | float | str, ...]
"""What a custom option may be."""


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Turn what the generated flatbuffer classes raise on corrupt offsets into a ModelError."""
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
    """The builtin options of one operator; fields are asked for by their schema name in camel case.

    ``second``: they are of the schema's second union, which newer operators use.
    """

    kind: int
    table: Any
    where: str
    second: bool = False

    def fields(self, name: str, *, required: bool = False) -> Fields:
        """The options as table ``name`` (``Conv2DOptions``); absent optional ones read as the schema's defaults."""
        import tflite

        union = tflite.BuiltinOptions2 if self.second else tflite.BuiltinOptions
        if self.kind == getattr(union, name, None) and self.table is not None:  # a corrupt file may say either union
            data, position = self.table.Bytes, self.table.Pos
        elif self.kind == 0 and not required:
            data, position = _EMPTY_TABLE, 4
        else:
            raise ModelError(f"the operator carries no {name}", where=self.where)
        fields = getattr(tflite, name)()
        with reading(self.where):
            fields.Init(data, position)
        return Fields(fields, self.where)


@frozen
class Fields:
    """Typed access to one options table."""

    table: Any
    where: str

    def _get(self, name: str) -> Any:
        with reading(self.where):
            return getattr(self.table, name)()

    def integer(self, name: str, lowest: int = -(1 << 31), highest: int = _INT32_MAX) -> int:
        """An integer, enumeration or bool within bounds."""
        value = int(self._get(name))
        if not lowest <= value <= highest:
            raise ModelError(f"{name} is {value}, outside {lowest}..{highest}", where=self.where)
        return value

    def real(self, name: str) -> float:
        """A finite float."""
        value = float(self._get(name))
        if not math.isfinite(value):
            raise ModelError(f"{name} is {value}", where=self.where)
        return value

    def text(self, name: str) -> str:
        """A string, empty if absent."""
        return text(self._get(name))

    def integers(self, name: str) -> tuple[int, ...]:
        """A short vector of integers, empty if absent."""
        with reading(self.where):
            return short_vector(getattr(self.table, f"{name}AsNumpy")(), name, self.where)

    def reals(self, name: str) -> tuple[float, ...]:
        """A short vector of finite floats, empty if absent."""
        with reading(self.where):
            entries = as_array(getattr(self.table, f"{name}AsNumpy")(), np.float32)
        if len(entries) > _MOST_REALS or not np.isfinite(entries).all():
            raise ModelError(f"{name} has {len(entries)} entries, or one that is no number", where=self.where)
        return tuple(float(x) for x in entries)


def text(raw: bytes | None) -> str:
    """A name from the file: bounded, and printable whatever its bytes are."""
    decoded = (raw or b"")[:_NAME_BYTES].decode("utf-8", errors="replace")
    return "".join(char if char.isprintable() else "_" for char in decoded)


def as_array(vector: Any, dtype: Any = np.int64) -> Array:
    """A vector from the generated ``AsNumpy`` accessors, which answer 0 where there is none."""
    return vector if isinstance(vector, np.ndarray) else np.empty(0, dtype)


def names_of(enumeration: Any) -> Mapping[int, str]:
    """Value -> name of a generated enumeration class."""
    return {value: name for name, value in vars(enumeration).items() if isinstance(value, int)}


def builtin_code(code: Any) -> int:
    """The number of an operator: the larger of the two fields that say it.

    Old writers know only the deprecated one, of 8 bits; new ones may leave it out, and then ``OperatorCode.BuiltinCode()`` of
    the generated classes answers 0, which is ADD, for numbers below 127. So the table's own field is read.
    Source: TFLite ``schema_utils.cc``.
    """
    from flatbuffers.number_types import Int32Flags

    table = code._tab
    at = table.Offset(_BUILTIN_CODE)
    return max(int(table.Get(Int32Flags, at + table.Pos)) if at else 0, int(code.DeprecatedBuiltinCode()))


def below(index: int, count: int) -> int:
    """An index into ``count`` tables; IndexError for another one."""
    if not 0 <= index < count:
        raise IndexError(index)
    return index


def short_vector(vector: Any, what: str, where: str) -> tuple[int, ...]:
    entries = as_array(vector)
    if len(entries) > MAX_RANK:
        raise ModelError(f"{what} has {len(entries)} entries; at most {MAX_RANK} are allowed", where=where)
    return tuple(int(i) for i in entries)


_CUSTOM_ITEMS = 256
MOST_CUSTOM_BYTES = 4096
"""Options of custom operators that are longer are not looked into."""


def custom_options(data: bytes) -> Mapping[str, Custom]:
    """The options in a flexbuffer map by name: numbers, texts, and tuples of them; empty where ``data`` is no such map."""
    from flatbuffers import flexbuffers

    if not 3 <= len(data) <= MOST_CUSTOM_BYTES:
        return {}
    try:
        root = flexbuffers.GetRoot(data)
        fields = root.AsMap if root.IsMap else None
        found = {str(key.AsKey): _custom(fields[key.AsKey]) for key in fields.Keys} if fields is not None else {}
    except (struct.error, LookupError, ValueError, TypeError, ArithmeticError, AttributeError, RecursionError):
        return {}
    return {name: value for name, value in found.items() if value is not None}


_MOST_WORDS = 16


def custom_words(data: bytes) -> tuple[int, ...]:
    """The first of the options as signed 32-bit integers, lowest byte first; what is left of a last one is none."""
    count = min(len(data) // 4, _MOST_WORDS)
    return struct.unpack(f"<{count}i", data[: 4 * count])


def _custom(found: Any) -> Custom | None:
    """One option; None for maps and other nests. Lists are as long as a tensor has axes, or a little longer."""
    if (found.IsVector or found.IsTypedVector) and not found.IsMap:
        items = found.AsVector if found.IsVector else found.AsTypedVector
        values = tuple(_simple(items[k]) for k in range(len(items))) if len(items) <= _CUSTOM_ITEMS else ()
        return tuple(v for v in values if v is not None) if values and None not in values else None
    return _simple(found)


def _simple(found: Any) -> int | float | str | None:
    value: int | float | str | None = (
        found.Value if found.IsInt or found.IsFloat or found.IsBool or found.IsString else None
    )
    return value


# ---- What the integers of a TFLite tensor stand for: scales and zero points, checked.

_CUSTOM, _BLOCKS = 1, 2
"""Details of quantisation: custom ones say nothing to TFLite either; blocks of scales lie in a tensor of their own."""


def read_quantisation(table: Any, shape: tuple[int, ...], dtype: str, where: str) -> Quant | None:
    """Scales and zero points, checked against shape and dtype; None where there are none or the dtype is real.

    Raises ModelError where they make no sense, UnsupportedError for details that microc does not know.
    """
    if table is None:
        return None
    details = int(table.DetailsType())
    if details > _CUSTOM:
        what = "scales for blocks of elements" if details == _BLOCKS else f"quantisation of kind {details}"
        raise UnsupportedError(what, where=where, hint="quantise per tensor or per channel")
    if table.ScaleLength() == 0 or not dtypes.is_valid(dtype) or not dtypes.is_integer(dtype):
        return None
    scale, zero_point = as_array(table.ScaleAsNumpy()), as_array(table.ZeroPointAsNumpy())
    axis = int(table.QuantizedDimension()) if len(scale) > 1 else None
    if axis is not None and len(shape) == 1:
        axis = 0  # converters copy the axis of the weights to the bias
    if len(scale) != len(zero_point):
        raise ModelError(f"{len(scale)} scales but {len(zero_point)} zero points", where=where)
    if axis is not None and not 0 <= axis < len(shape):
        raise ModelError(f"quantised along axis {axis} of a tensor of rank {len(shape)}", where=where)
    if axis is not None and shape[axis] != len(scale):
        raise ModelError(f"{len(scale)} scales along axis {axis} of extent {shape[axis]}", where=where)
    if not (np.all(np.isfinite(scale)) and np.all(scale > 0)):
        raise ModelError("a quantisation scale is not a positive number", where=where)
    lowest, highest = dtypes.int_range(dtype)
    if np.any(zero_point < lowest) or np.any(zero_point > highest):
        raise ModelError(f"a zero point lies outside {dtype}", where=where)
    return Quant(tuple(map(float, scale)), tuple(map(int, zero_point)), axis)


# ---- Constants of TFLite that are stored otherwise than they are used: sparse ones, and numbers of four bits.
#
# A sparse tensor lists its dimensions in the order of traversal, blocks behind the tensor's own. Along each level there are all
# elements (dense), or those between two segments, at the indices that are listed (compressed sparse rows). Source:
# TFLite ``sparsity_format_converter.cc``; schema, SparsityParameters.

_MOST_LEVELS = 16
_VECTORS = ("", "Int32Vector", "Uint16Vector", "Uint8Vector")


@frozen
class Level:
    """One level: of ``size`` elements each, or (size 0) of those that ``segments`` and ``indices`` tell."""

    size: int
    segments: Array
    indices: Array


@frozen
class Sparsity:
    """Dimensions in order of traversal (from the tensor's rank on: blocks), which of the tensor's each block divides, levels."""

    order: tuple[int, ...]
    blocks: tuple[int, ...]
    levels: tuple[Level, ...]


def read_sparsity(table: Any, where: str) -> Sparsity:
    """The flatbuffer's SparsityParameters."""
    with reading(where):
        count = int(table.DimMetadataLength())
        if count > _MOST_LEVELS:
            raise ModelError(f"{count} levels of a sparse tensor", where=where)
        levels = tuple(_level(table.DimMetadata(k)) for k in range(count))
        order, blocks = (as_array(v) for v in (table.TraversalOrderAsNumpy(), table.BlockMapAsNumpy()))
    return Sparsity(tuple(map(int, order)), tuple(map(int, blocks)), levels)


def _level(table: Any) -> Level:
    if int(table.Format()) == 0:
        return Level(int(table.DenseSize()), np.empty(0, np.int64), np.empty(0, np.int64))
    segments = _vector(int(table.ArraySegmentsType()), table.ArraySegments())
    return Level(0, segments, _vector(int(table.ArrayIndicesType()), table.ArrayIndices()))


def _vector(kind: int, table: Any) -> Array:
    """A union of vectors of three widths."""
    import tflite

    if not 1 <= kind < len(_VECTORS) or table is None:
        raise ValueError("a sparse dimension without indices")
    vector = getattr(tflite, _VECTORS[kind])()
    vector.Init(table.Bytes, table.Pos)
    return as_array(vector.ValuesAsNumpy()).astype(np.int64)


def dense(values: Array, shape: Sequence[int], sparsity: Sparsity, where: str) -> Array:
    """The whole tensor, zero where nothing is stored; ModelError where the description makes no sense."""
    rank, levels = len(shape), sparsity.levels
    if not rank:
        raise ModelError("a sparse tensor without axes", where=where)
    if sorted(sparsity.order) != list(range(rank + len(sparsity.blocks))) or len(levels) != len(sparsity.order):
        raise ModelError(f"a sparse tensor of shape {tuple(shape)} traversed as {sparsity.order}", where=where)
    if any(not 0 <= dimension < rank for dimension in sparsity.blocks):
        raise ModelError(f"blocks of dimensions {sparsity.blocks}", where=where)
    at: dict[int, Array] = {}
    place = np.zeros(1, np.int64)
    for dimension, level in zip(sparsity.order, levels, strict=True):
        rows, index, place = _step(level, place, prod(shape), where)
        at = {known: found[rows] for known, found in at.items()}
        at[dimension] = index
    if len(place) != values.size or (place != np.arange(len(place))).any():
        raise ModelError(f"{values.size} values for {len(place)} places of a sparse tensor", where=where)
    for position, dimension in enumerate(sparsity.blocks):
        size = levels[sparsity.order.index(rank + position)].size
        at[dimension] = at[dimension] * size + at[rank + position]
    found = np.zeros(tuple(shape), values.dtype)
    places = tuple(at[dimension] for dimension in range(rank))
    if any(index.size and not 0 <= index.min() <= index.max() < e for index, e in zip(places, shape, strict=True)):
        raise ModelError(f"an index of a sparse tensor lies outside of {tuple(shape)}", where=where)
    found[places] = values.reshape(-1)
    return found


def _step(level: Level, place: Array, most: int, where: str) -> tuple[Array, Array, Array]:
    """For every place of a level its parent's number, its index along the level's dimension, and its own place."""
    if level.size:
        counts = np.full(len(place), level.size, np.int64)
        starts = place * level.size
    else:
        if place.size and int(place.max()) + 1 >= len(level.segments):
            raise ModelError("a sparse tensor with too few segments", where=where)
        starts = level.segments[place]
        counts = level.segments[place + 1] - starts
    if counts.size and (counts.min() < 0 or int(counts.sum()) > most):
        raise ModelError("a sparse tensor with more places than elements", where=where)
    rows = np.repeat(np.arange(len(place)), counts)
    offsets = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    own = starts[rows] + offsets
    if level.size:
        return rows, offsets, own
    if own.size and int(own.max()) >= len(level.indices):
        raise ModelError("a sparse tensor with too few indices", where=where)
    return rows, level.indices[own], own


def unpack_int4(raw: Array, count: int) -> Array:
    """Two's-complement nibbles, low one first, as int8."""
    nibbles = np.stack([raw & 15, raw >> 4], axis=-1).reshape(-1)[:count].astype(np.int8)
    unpacked: Array = np.where(nibbles > 7, nibbles - 16, nibbles).astype(np.int8)
    return unpacked
