"""Immutable classes that know their hash: expressions, statements and buffers of the loop IR."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_Class = TypeVar("_Class")


class Node:
    """What keeps its hash once it was asked for: that of an expression is made of those of its operands."""

    __slots__ = ("_hash",)
    _hash: int


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def node(cls: type[_Class]) -> type[_Class]:
    """A class of values that compares by its fields and keeps its hash; a :class:`Node`.

    The type checker refuses to change a field. Nothing does so at run time: it would make every new object cost three times as
    much, and a compilation makes hundreds of thousands.
    """
    by_fields = "__eq__" not in vars(cls)
    made = dataclass(slots=True, eq=by_fields, unsafe_hash=by_fields)(cls)
    hash_fields = made.__hash__

    def __hash__(self: Node) -> int:
        try:
            return self._hash
        except AttributeError:
            self._hash = found = hash_fields(self)
            return found

    made.__hash__ = __hash__  # type: ignore[assignment]
    made.__repr__ = made.__repr__.__wrapped__  # type: ignore[method-assign, attr-defined]  # nothing holds itself: no guard
    return made
