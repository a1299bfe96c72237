"""The one boundary to the generated flatbuffer classes, and the options of operators read through it."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from microc.dtypes import Array
from microc.errors import ModelError
from microc.frontend.budget import MAX_RANK
from microc.frozen import frozen

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
