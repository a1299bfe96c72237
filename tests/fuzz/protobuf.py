# SPDX-License-Identifier: Apache-2.0
"""Mutations of ONNX files that stay protobufs: fields of every message changed, taken out, doubled, exchanged."""

from __future__ import annotations

import random
from typing import Any

import onnx

from tests.fuzz.values import disturb, other_float, other_integer, other_text


class Mutator:
    """Mutants of one file."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        model = onnx.ModelProto.FromString(data)
        places = list(_places(model))
        self._integers = [int(v) for *_, v in places if isinstance(v, int) and -9 < v < 4096]
        self._texts = sorted({v for *_, v in places if isinstance(v, str)})

    def mutate(self, rng: random.Random) -> bytes:
        """One to four changes, one most often."""
        model = onnx.ModelProto.FromString(self._data)
        changes = rng.choice((1, 1, 1, 2, 2, 4))
        for _ in range(20):
            message, field, value = rng.choice(list(_places(model)))
            try:
                changes -= self._change(message, field, value, rng)
            except (ValueError, TypeError, OverflowError):  # a number that the field cannot hold
                continue
            if changes <= 0:
                break
        return bytes(model.SerializeToString())

    def _change(self, message: Any, field: Any, value: Any, rng: random.Random) -> bool:
        name = field.name
        if rng.random() < 0.1:
            message.ClearField(name)
        elif _repeated(field):
            entries = getattr(message, name)
            if rng.random() < 0.5 or field.message_type is not None:
                changed = [_copied(entry) for entry in entries]
                disturb(rng, changed)
                message.ClearField(name)
                getattr(message, name).extend(changed)
            else:
                place = rng.randrange(len(entries))
                entries[place] = self._other(rng, entries[place])
        elif field.message_type is None:
            setattr(message, name, self._other(rng, value))
        else:
            return False
        return True

    def _other(self, rng: random.Random, value: Any) -> Any:
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return other_integer(rng, value, self._integers)
        if isinstance(value, float):
            return other_float(rng, value)
        if isinstance(value, str):
            return other_text(rng, value, self._texts)
        data = bytearray(value)
        if rng.random() < 0.3 or not data:
            return bytes(data[: len(data) // 2]) + rng.randbytes(rng.randrange(5))
        data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        return bytes(data)


def _repeated(field: Any) -> bool:
    return bool(getattr(field, "is_repeated", None) or getattr(field, "label", 0) == 3)


def _copied(entry: Any) -> Any:
    if hasattr(entry, "CopyFrom"):
        copy = type(entry)()
        copy.CopyFrom(entry)
        return copy
    return entry


def _places(message: Any) -> Any:
    """Every field that is set: the message, the field, its value."""
    for field, value in message.ListFields():
        yield message, field, value
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in value if _repeated(field) else (value,):
                yield from _places(inner)
