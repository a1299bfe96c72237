# SPDX-License-Identifier: Apache-2.0
"""Mutations of TFLite files that stay flatbuffers: numbers, lengths, references and presence of fields, in their places.

Nothing moves, so that any file can be mutated, also one with megabytes of weights; most mutants pass the verifier of tables.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tests.fuzz.values import other_float, other_integer

FIELDS: dict[str, tuple[str, ...]] = {
    "Model": ("I", "[OperatorCode]", "[SubGraph]", "[b]", "[Buffer]", "[i]", "[Metadata]", "[Signature]"),
    "OperatorCode": ("b", "[b]", "i", "i"),
    "SubGraph": ("[Tensor]", "[i]", "[i]", "[Operator]", "[b]"),
    "Tensor": ("[i]", "b", "I", "[b]", "Quantization", "b", "Sparsity", "[i]", "b"),
    "Quantization": ("[f]", "[f]", "[f]", "[q]", "b", "?", "i"),
    "Operator": ("I", "[i]", "[i]", "b", "?", "[b]", "b", "[b]", "[i]", "Q", "Q", "b", "?"),
    "Buffer": ("[b]", "Q", "Q"),
    "Sparsity": ("[i]", "[i]", "[Dimension]"),
    "Dimension": ("b", "i", "b", "?", "b", "?"),
    "Metadata": ("[b]", "I"),
    "Signature": ("[TensorMap]", "[TensorMap]", "[b]", "?", "I"),
    "TensorMap": ("[b]", "I"),
}
"""Kinds of the fields of each table: struct's letters, tables, vectors of either, ``?`` for tables of any fields."""

_MOST = 64  # elements of one vector that are places of their own
_SIZES = {"b": 1, "i": 4, "I": 4, "f": 4, "q": 8, "Q": 8}


@dataclass(frozen=True, slots=True)
class Place:
    """``what``: a letter of struct (a number), a table's name (a reference to one), ``length`` or ``field`` (of a vtable)."""

    at: int
    what: str


def places(data: bytes) -> list[Place]:
    """Everything that can be changed; of a broken file what can be reached."""
    found: list[Place] = []
    seen: set[tuple[int, str]] = set()
    try:
        stack = [(struct.unpack_from("<I", data, 0)[0], "Model")]
        while stack:
            table = stack.pop()
            if table not in seen and len(seen) < 20_000:
                seen.add(table)
                for place, target in _table(data, *table):
                    found.append(place)
                    if target:
                        stack.append(target)
    except struct.error:
        pass
    return found


def _table(data: bytes, at: int, name: str) -> Iterator[tuple[Place, tuple[int, str] | None]]:
    vtable = at - struct.unpack_from("<i", data, at)[0]
    if not 0 <= vtable < len(data):
        return
    size, _ = struct.unpack_from("<HH", data, vtable)
    starts = struct.unpack_from(f"<{min(max(0, size - 4) // 2, 32)}H", data, vtable + 4)
    ends = sorted(starts)
    for number, start in enumerate(starts):
        if not start:
            continue
        yield Place(vtable + 4 + 2 * number, "field"), None
        kinds = FIELDS.get(name, ())
        if number < len(kinds):
            kind = kinds[number]
        else:
            room = next((end for end in ends if end > start), start + 4) - start
            kind = "i" if room >= 4 else "b"
        yield from _field(data, at + start, kind)


def _field(data: bytes, at: int, kind: str) -> Iterator[tuple[Place, tuple[int, str] | None]]:
    if kind in _SIZES:
        yield Place(at, kind), None
        return
    target = at + struct.unpack_from("<I", data, at)[0]
    if kind[0] != "[":
        yield Place(at, kind), (target, kind)
        return
    (count,) = struct.unpack_from("<I", data, target)
    yield Place(target, "length"), None
    inner = kind[1:-1]
    for k in range(min(count, _MOST)):
        yield from _field(data, target + 4 + k * _SIZES.get(inner, 4), inner)


class Mutator:
    """Mutants of one file."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._places = places(data)
        self._pool = [v for p in self._places if p.what == "i" and -9 < (v := self._read(data, p)) < 4096]

    def mutate(self, rng: random.Random) -> bytes:
        """One to four changes, one most often."""
        data = bytearray(self._data)
        for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
            place = rng.choice(self._places)
            if place.what == "b" and rng.random() < 0.6:  # bytes are the most, and mostly weights
                place = rng.choice(self._places)
            self._change(data, place, rng)
        return bytes(data)

    def _change(self, data: bytearray, place: Place, rng: random.Random) -> None:
        if place.what == "field":
            struct.pack_into("<H", data, place.at, 0)
        elif place.what == "length":
            (count,) = struct.unpack_from("<I", data, place.at)
            struct.pack_into("<I", data, place.at, other_integer(rng, count, (0, 1, count // 2)) & 0xFFFFFFFF)
        elif place.what == "f":
            (value,) = struct.unpack_from("<f", data, place.at)
            data[place.at : place.at + 4] = _single(other_float(rng, value))
        elif place.what in _SIZES:
            number = other_integer(rng, self._read(data, place), self._pool)
            size = _SIZES[place.what]
            data[place.at : place.at + size] = (number & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        else:  # another table of the same kind
            other = rng.choice([p for p in self._places if p.what == place.what])
            target = other.at + struct.unpack_from("<I", self._data, other.at)[0] - place.at
            struct.pack_into("<I", data, place.at, target & 0xFFFFFFFF)

    @staticmethod
    def _read(data: bytes | bytearray, place: Place) -> int:
        return int(struct.unpack_from("<" + place.what, data, place.at)[0])


def _single(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf"))
