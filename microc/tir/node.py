"""Frozen classes that know their hash: the expressions of the loop IR, and its buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

_Class = TypeVar("_Class")


class Node:
    """What keeps its hash once it was asked for: that of an expression is made of those of its operands."""

    __slots__ = ("_hash",)
    _hash: int


@dataclass_transform(frozen_default=True)
def node(cls: type[_Class]) -> type[_Class]:
    """A frozen class that compares by its fields and keeps its hash; a :class:`Node`."""
    made = dataclass(frozen=True, slots=True, eq="__eq__" not in vars(cls))(cls)
    hash_fields = made.__hash__

    def __hash__(self: Node) -> int:
        try:
            return self._hash
        except AttributeError:
            found = hash_fields(self)
            object.__setattr__(self, "_hash", found)
            return found

    made.__hash__ = __hash__  # type: ignore[assignment]
    return made
