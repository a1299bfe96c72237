"""Classes of values: frozen dataclasses in a fourth of the time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

_Class = TypeVar("_Class")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[_Class]) -> type[_Class]:
    """A class of values with slots, which compares by its fields, for those that users of the library do not get.

    The type checker refuses to change a field; nothing does so at run time, which would make every object cost four times as
    much. Python compiles six methods for a frozen dataclass; a command loads some three hundred, for a fifth of a second. Here
    it compiles ``__init__`` alone. A class may have an ``__eq__`` with its ``__hash__``, or a ``__repr__``, of its own.
    """
    own = vars(cls)
    made: Any = dataclass(slots=True, eq=False, repr=False)(cls)
    if "__eq__" not in own:
        compared = _values([f.name for f in fields(made) if f.compare])
        hashed = _values([f.name for f in fields(made) if (f.compare if f.hash is None else f.hash)])

        def __eq__(self: Any, other: object) -> bool:
            return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

        made.__eq__, made.__hash__ = __eq__, lambda self: hash(hashed(self))
    if "__repr__" not in own:
        shown = [f.name for f in fields(made) if f.repr]

        def __repr__(self: Any) -> str:
            return f"{made.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

        made.__repr__ = __repr__
    return made  # type: ignore[no-any-return]


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """What gives some fields of an object, as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple([getattr(self, name) for name in names])
