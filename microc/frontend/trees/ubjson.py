# SPDX-License-Identifier: Apache-2.0
"""Universal Binary JSON (UBJSON) as XGBoost writes it: a binary format of JSON values with lengths, and packed arrays of
numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from microc.errors import ModelError
from microc.frontend.model_limits import MAX_NESTED

_NUMBERS: Mapping[bytes, np.dtype[Any]] = {
    b"i": np.dtype(">i1"),
    b"U": np.dtype(">u1"),
    b"I": np.dtype(">i2"),
    b"l": np.dtype(">i4"),
    b"L": np.dtype(">i8"),
    b"d": np.dtype(">f4"),
    b"D": np.dtype(">f8"),
}
_LITERALS: Mapping[bytes, Any] = {b"Z": None, b"T": True, b"F": False}
_MOST_VALUES = 1 << 22
"""Maximum number of values that become Python objects. Elements of packed arrays do not count."""


def read_ubjson(data: bytes, where: str) -> Any:
    """Parse UBJSON (Universal Binary JSON) to dictionaries, lists, texts and numbers; packed arrays become numpy
    arrays.

    ModelError if the bytes are malformed, or contain more values than a model has.
    """
    return _UbjsonReader(data, where).read_value(0)


class _UbjsonReader:
    """Parser of UBJSON, which reads the bytes from front to back."""

    def __init__(self, data: bytes, where: str) -> None:
        self._data, self._where, self._at, self._values = data, where, 0, 0

    def read_value(self, depth: int, type_marker: bytes = b"") -> Any:
        """Read the next value.

        ``depth``: number of arrays and objects that enclose the value. ``type_marker``: UBJSON's marker of the value's
        type; if it is empty, the next byte is the marker."""
        self._values += 1
        if self._values > _MOST_VALUES or depth > MAX_NESTED:
            raise self._make_error(f"expected at most {_MOST_VALUES} values, nested at most {MAX_NESTED} deep")
        type_marker = type_marker or self._take_bytes(1)
        if type_marker in _NUMBERS:
            return self._read_numbers(type_marker, 1)[0].item()
        if type_marker in _LITERALS:
            return _LITERALS[type_marker]
        match type_marker:
            case b"S":
                return self._read_text()
            case b"C":
                return self._take_bytes(1).decode("ascii", "replace")
            case b"[":
                return self._read_array(depth)
            case b"{":
                return self._read_object(depth)
        raise self._make_error(f"got the type marker {type_marker!r}, expected one of UBJSON's")

    def _read_array(self, depth: int) -> Any:
        """Read the rest of an array; return a list, or a numpy array if the numbers are packed."""
        type_, count = self._read_container_header()
        if type_ in _NUMBERS and count is not None:
            return self._read_numbers(type_, count)
        items: list[Any] = []
        while not self._skip_end_of_container(b"]", len(items), count):
            items.append(self.read_value(depth + 1, type_))
        return items

    def _read_object(self, depth: int) -> dict[str, Any]:
        """Read the rest of a JSON object; return a dictionary."""
        type_, count = self._read_container_header()
        fields: dict[str, Any] = {}
        read = 0
        while not self._skip_end_of_container(b"}", read, count):
            name = self._read_text()
            fields[name] = self.read_value(depth + 1, type_)
            read += 1
        return fields

    def _read_container_header(self) -> tuple[bytes, int | None]:
        """Read the header of an array or object; return the type marker of all of its values and the number of values.

        A marker that is not declared is empty; a number that is not declared is None."""
        type_ = b""
        if self._skip_if_next(b"$"):
            type_ = self._take_bytes(1)
        return type_, self._read_length() if self._skip_if_next(b"#") else None

    def _skip_end_of_container(self, end_mark: bytes, values_read: int, declared_count: int | None) -> bool:
        """Test whether an array or object ends here: after ``declared_count`` values, or, if that is None, at
        ``end_mark``.

        The mark is skipped."""
        return self._skip_if_next(end_mark) if declared_count is None else values_read >= declared_count

    def _skip_if_next(self, mark: bytes) -> bool:
        """Skip the next byte if it is ``mark``; return True if it was."""
        is_next = self._data[self._at : self._at + 1] == mark
        self._at += is_next
        return is_next

    def _read_text(self) -> str:
        return self._take_bytes(self._read_length()).decode("utf-8", "replace")

    def _read_length(self) -> int:
        type_ = self._take_bytes(1)
        if type_ not in _NUMBERS or type_ in b"dD":
            raise self._make_error(f"length: got the type marker {type_!r}, expected an integer's")
        return int(self._read_numbers(type_, 1)[0])

    def _read_numbers(self, type_marker: bytes, count: int) -> np.ndarray[Any, np.dtype[Any]]:
        """Read ``count`` numbers of the type ``type_marker``; return an array in the machine's byte order."""
        dtype = _NUMBERS[type_marker]
        return np.frombuffer(self._take_bytes(count * dtype.itemsize), dtype).astype(dtype.newbyteorder("="))

    def _take_bytes(self, count: int) -> bytes:
        """Return the next ``count`` bytes; ModelError if there are fewer."""
        end = self._at + count
        if count < 0 or end > len(self._data):
            raise self._make_error(f"got {len(self._data)} bytes, expected at least {end}")
        chunk, self._at = self._data[self._at : end], end
        return chunk

    def _make_error(self, reason: str) -> ModelError:
        """Return the ModelError for malformed UBJSON at the current position."""
        return ModelError(f"the model's UBJSON is broken at byte {self._at}: {reason}", where=self._where)
