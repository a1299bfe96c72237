"""The one boundary to the generated flatbuffer classes, and the options of operators read through it."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from microc.dtypes import Array
from microc.errors import ModelError

MAX_RANK = 8
_INT32_MAX = (1 << 31) - 1
_NAME_BYTES = 240
_CUSTOM_BYTES, _CUSTOM_ITEMS = 1 << 16, 256
_EMPTY_TABLE = struct.pack("<HHi", 4, 4, 4)
"""A table without fields (vtable, then the offset back to it): every accessor answers with the schema's default."""


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


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one operator: builtin ones, whose fields are asked for by their schema name in camel case, or the bytes of
    a custom one."""

    kind: int
    table: Any
    where: str
    custom: bytes = b""

    def custom_fields(self) -> Mapping[str, Any]:
        """Custom options as TFLite writes them, a FlexBuffer: numbers, bools, strings and tuples of them by name."""
        from flatbuffers import flexbuffers

        if not self.custom:
            return {}
        if len(self.custom) > _CUSTOM_BYTES:
            raise ModelError(f"{len(self.custom)} bytes of custom options", where=self.where)
        with reading(self.where):
            root = flexbuffers.GetRoot(self.custom)
            if not root.IsMap:
                raise ModelError("the custom options are no map of names to values", where=self.where)
            names = [key.AsKey for key in root.AsMap.Keys]
            return {name: self._custom(root.AsMap[name]) for name in names}

    def _custom(self, found: Any) -> Any:
        if (found.IsVector or found.IsTypedVector) and not found.IsMap:
            items = found.AsVector if found.IsVector else found.AsTypedVector
            if len(items) > _CUSTOM_ITEMS:
                raise ModelError(f"{len(items)} items in a custom option", where=self.where)
            return tuple(self._simple(items[k]) for k in range(len(items)))
        return self._simple(found)

    def _simple(self, found: Any) -> Any:
        if not (found.IsInt or found.IsFloat or found.IsBool or found.IsString):
            raise ModelError("a custom option is neither a number nor a string", where=self.where)
        return found.Value

    def fields(self, name: str, *, required: bool = False) -> Fields:
        """The options as table ``name`` (``Conv2DOptions``); absent optional ones read as the schema's defaults."""
        import tflite

        if self.kind == getattr(tflite.BuiltinOptions, name) and self.table is not None:
            data, position = self.table.Bytes, self.table.Pos
        elif self.kind == 0 and not required:
            data, position = _EMPTY_TABLE, 4
        else:
            raise ModelError(f"the operator carries no {name}", where=self.where)
        fields = getattr(tflite, name)()
        with reading(self.where):
            fields.Init(data, position)
        return Fields(fields, self.where)


@dataclass(frozen=True, slots=True)
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


def text(raw: bytes | None) -> str:
    """A name from the file: bounded, and printable whatever its bytes are."""
    decoded = (raw or b"")[:_NAME_BYTES].decode("utf-8", errors="replace")
    return "".join(char if char.isprintable() else "_" for char in decoded)


def as_array(vector: Any, dtype: Any = np.int64) -> Array:
    """A vector from the generated ``AsNumpy`` accessors, which answer 0 where there is none."""
    return vector if isinstance(vector, np.ndarray) else np.empty(0, dtype)


def short_vector(vector: Any, what: str, where: str) -> tuple[int, ...]:
    entries = as_array(vector)
    if len(entries) > MAX_RANK:
        raise ModelError(f"{what} has {len(entries)} entries; at most {MAX_RANK} are allowed", where=where)
    return tuple(int(i) for i in entries)
