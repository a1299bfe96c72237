"""Immutable classes and registries: frozen dataclasses that are quick to define, mappings that only a context extends."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Generic, TypeVar, dataclass_transform

from microc.errors import UsageError

# ---- Classes of values: frozen dataclasses in a fourth of the time.

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


# ---- Registries: mappings that nobody changes, and that a context may extend for as long as it lasts.

T = TypeVar("T")


class Later(Generic[T]):
    """An entry that a module has under a name; the module is imported when the entry is first asked for."""

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def loaded(self) -> T:
        found: T = getattr(importlib.import_module(self.module), self.name)
        return found


class Entries(Generic[T]):
    """What a registry holds at a time; two are equal only if they are one, which what is remembered of entries may ask for."""

    __slots__ = ("by_name",)

    def __init__(self, by_name: Mapping[str, T | Later[T]]) -> None:
        self.by_name = MappingProxyType(dict(by_name))


class Registry(Mapping[str, T], Generic[T]):
    """Entries by name, sealed when it is made.

    :meth:`extended` adds entries for the code that runs inside a ``with``: this thread (or task) sees them there, nobody else
    ever does, and what there was before cannot be replaced. ``what`` is what an entry is called in messages.
    """

    def __init__(self, what: str, entries: Mapping[str, T | Later[T]]) -> None:
        self.what = what
        self._sealed = Entries(entries)
        self._current: ContextVar[Entries[T]] = ContextVar(what, default=self._sealed)

    def __getitem__(self, name: str) -> T:
        entry = self._current.get().by_name[name]
        return entry.loaded() if isinstance(entry, Later) else entry

    def __iter__(self) -> Iterator[str]:
        return iter(self._current.get().by_name)

    def __len__(self) -> int:
        return len(self._current.get().by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._current.get().by_name

    @property
    def sealed(self) -> Set[str]:
        """The names of the entries without any extension."""
        return self._sealed.by_name.keys()

    @property
    def entries(self) -> Entries[T]:
        """The entries that the code which asks sees, the same object as long as they are the same."""
        return self._current.get()

    @contextmanager
    def extended(self, entries: Mapping[str, T]) -> Iterator[None]:
        """Add entries inside the ``with``; UsageError for a name that is taken by something else."""
        current = self._current.get().by_name
        for name, entry in entries.items():
            if name in current and self[name] != entry:
                raise UsageError(f"there is already {self.what} {name!r}", hint="give the plugin's another name")
        if entries.keys() <= current.keys():
            yield
            return
        token = self._current.set(Entries({**current, **entries}))
        try:
            yield
        finally:
            self._current.reset(token)
