"""Registries: mappings that nobody changes, and that a context may extend for as long as it lasts."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Generic, TypeVar

from microc.errors import UsageError

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
