"""Universal Binary JSON, as XGBoost writes it: JSON's values, lengths before what they count, arrays of one type packed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from microc.errors import ModelError
from microc.frontend.budget import MAX_NESTED

_NUMBERS: Mapping[bytes, np.dtype[Any]] = {
    b"i": np.dtype(">i1"),
    b"U": np.dtype(">u1"),
    b"I": np.dtype(">i2"),
    b"l": np.dtype(">i4"),
    b"L": np.dtype(">i8"),
    b"d": np.dtype(">f4"),
    b"D": np.dtype(">f8"),
}
_WORDS: Mapping[bytes, Any] = {b"Z": None, b"T": True, b"F": False}
_MOST_VALUES = 1 << 22
"""Values that are objects of Python's; those of packed arrays are none."""


def read_ubjson(data: bytes, where: str) -> Any:
    """The value in ``data``: dictionaries, lists (packed ones as numpy arrays), texts and numbers.

    ModelError where the bytes are no such value, or more of them than a model has.
    """
    return _Reader(data, where).value(0)


class _Reader:
    def __init__(self, data: bytes, where: str) -> None:
        self._data, self._where, self._at, self._values = data, where, 0, 0

    def value(self, depth: int, kind: bytes = b"") -> Any:
        """The next value, whose type is ``kind`` or stands before it."""
        self._values += 1
        if self._values > _MOST_VALUES or depth > MAX_NESTED:
            raise self._broken("it has too many values, or too deep ones")
        kind = kind or self._taken(1)
        if kind in _NUMBERS:
            return self._packed(kind, 1)[0].item()
        if kind in _WORDS:
            return _WORDS[kind]
        match kind:
            case b"S":
                return self._text()
            case b"C":
                return self._taken(1).decode("ascii", "replace")
            case b"[":
                return self._array(depth)
            case b"{":
                return self._object(depth)
        raise self._broken(f"no value is of the type {kind!r}")

    def _array(self, depth: int) -> Any:
        kind, count = self._container()
        if kind in _NUMBERS and count is not None:
            return self._packed(kind, count)
        found: list[Any] = []
        while not self._ends(b"]", len(found), count):
            found.append(self.value(depth + 1, kind))
        return found

    def _object(self, depth: int) -> dict[str, Any]:
        kind, count = self._container()
        found: dict[str, Any] = {}
        read = 0
        while not self._ends(b"}", read, count):
            name = self._text()
            found[name] = self.value(depth + 1, kind)
            read += 1
        return found

    def _container(self) -> tuple[bytes, int | None]:
        """What all values of a container are, and how many there are, where it says so."""
        kind = b""
        if self._skipped(b"$"):
            kind = self._taken(1)
        return kind, self._length() if self._skipped(b"#") else None

    def _ends(self, mark: bytes, read: int, count: int | None) -> bool:
        return self._skipped(mark) if count is None else read >= count

    def _skipped(self, mark: bytes) -> bool:
        there = self._data[self._at : self._at + 1] == mark
        self._at += there
        return there

    def _text(self) -> str:
        return self._taken(self._length()).decode("utf-8", "replace")

    def _length(self) -> int:
        kind = self._taken(1)
        if kind not in _NUMBERS or kind in b"dD":
            raise self._broken(f"a length is of the type {kind!r}")
        return int(self._packed(kind, 1)[0])

    def _packed(self, kind: bytes, count: int) -> np.ndarray[Any, np.dtype[Any]]:
        dtype = _NUMBERS[kind]
        return np.frombuffer(self._taken(count * dtype.itemsize), dtype).astype(dtype.newbyteorder("="))

    def _taken(self, count: int) -> bytes:
        end = self._at + count
        if count < 0 or end > len(self._data):
            raise self._broken("it ends too early")
        taken, self._at = self._data[self._at : end], end
        return taken

    def _broken(self, why: str) -> ModelError:
        return ModelError(f"the model's UBJSON is broken at byte {self._at}: {why}", where=self._where)
