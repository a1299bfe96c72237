# SPDX-License-Identifier: Apache-2.0
"""Immutable classes and registries: frozen dataclasses that are defined quickly, and mappings that are extended only
within a ``with`` block."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, dataclass, field, fields
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Generic, TypeVar, dataclass_transform

from microc.errors import UsageError

# ---- Frozen dataclasses, defined in an eighth of the time.

_Class = TypeVar("_Class")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[_Class]) -> type[_Class]:
    """Turn a class into a frozen dataclass with slots that is compared by its fields, for classes inside of the
    compiler.

    Immutability is enforced by the type checker alone, because a check at run time would make the construction of an
    object four times as expensive. The decorator of the standard library compiles up to six methods per class, which
    takes a fifth of a second for the three hundred or so classes of a command. This decorator compiles only
    ``__init__``, when the first object is created: a command creates objects of half the classes. A class may define its
    own ``__eq__`` together with ``__hash__``, or its own ``__repr__``."""
    own = vars(cls)
    cls_: Any = dataclass(slots=True, init=False, eq=False, repr=False)(cls)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        cls_.__init__ = _compile_init(cls_)
        cls_.__init__(self, *args, **kwargs)

    cls_.__init__ = __init__
    if "__eq__" not in own:
        key_of = _field_getter([f.name for f in fields(cls_) if f.compare])
        hash_key_of = _field_getter([f.name for f in fields(cls_) if (f.compare if f.hash is None else f.hash)])

        def __eq__(self: Any, other: object) -> bool:
            return key_of(self) == key_of(other) if other.__class__ is self.__class__ else NotImplemented

        cls_.__eq__, cls_.__hash__ = __eq__, lambda self: hash(hash_key_of(self))
    if "__repr__" not in own:
        repr_fields = [f.name for f in fields(cls_) if f.repr]

        def __repr__(self: Any) -> str:
            return f"{cls_.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in repr_fields)})"

        cls_.__repr__ = __repr__
    return cls_  # type: ignore[no-any-return]


def _compile_init(cls: Any) -> Callable[..., None]:
    """Compile the ``__init__`` of a dataclass, in half the time of the standard library's, which also makes a class."""
    # No field may hide these names; those of fields do not begin with two underscores.
    namespace: dict[str, Any] = {"MISSING": MISSING}
    positional: list[str] = ["self"]
    keywords: list[str] = []
    assignments: list[str] = []
    for f in fields(cls):
        name, value = f.name, f.name
        if f.default_factory is not MISSING:
            namespace[f"__make_{name}"] = f.default_factory
            value = f"__make_{name}() if {name} is MISSING else {name}" if f.init else f"__make_{name}()"
        elif f.default is not MISSING:
            namespace[f"__default_{name}"] = f.default
            value = name if f.init else f"__default_{name}"
        elif not f.init:
            continue  # __post_init__ sets it
        assignments.append(f"self.{name} = {value}")
        if f.init:
            default = "" if f.default is MISSING else f"=__default_{name}"
            parameter = name + ("=MISSING" if f.default_factory is not MISSING else default)
            (keywords if f.kw_only else positional).append(parameter)
    if hasattr(cls, "__post_init__"):
        assignments.append("self.__post_init__()")
    parameters = ", ".join([*positional, "*", *keywords] if keywords else positional)
    exec(f"def __init__({parameters}):\n " + "\n ".join(assignments or ["pass"]), namespace)
    init: Callable[..., None] = namespace["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _field_getter(field_names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that reads the named fields of an object into a tuple."""
    # attrgetter runs in C, but returns a bare value for one name and cannot take none.
    if len(field_names) > 1:
        return attrgetter(*field_names)
    return lambda self: tuple([getattr(self, name) for name in field_names])


# ---- Registries: immutable mappings that a context can extend while it lasts.

T = TypeVar("T")


class LazyEntry(Generic[T]):
    """A registry entry that is imported at its first use, given by the names of its module and attribute."""

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def load_entry(self) -> T:
        """Import the module and return its attribute, which is the entry."""
        entry: T = getattr(importlib.import_module(self.module), self.name)
        return entry


class RegistryContent(Generic[T]):
    """The current entries of a registry, by name. Instances are compared by identity, so that caches can use them as
    keys."""

    __slots__ = ("by_name",)

    def __init__(self, by_name: Mapping[str, T | LazyEntry[T]]) -> None:
        self.by_name = MappingProxyType(dict(by_name))


class Registry(Mapping[str, T], Generic[T]):
    """A read-only mapping of names to entries, such as operators or commands.

    :meth:`extend` adds entries inside a ``with`` block; only the current thread (or asyncio task) sees them.
    Existing entries cannot be replaced. ``what``: noun for an entry in messages, such as "an operator"."""

    def __init__(self, what: str, entries: Mapping[str, T | LazyEntry[T]]) -> None:
        self.what = what
        self._sealed = RegistryContent(entries)
        self._current: ContextVar[RegistryContent[T]] = ContextVar(what, default=self._sealed)

    def __getitem__(self, name: str) -> T:
        entry = self._current.get().by_name[name]
        return entry.load_entry() if isinstance(entry, LazyEntry) else entry

    def __iter__(self) -> Iterator[str]:
        return iter(self._current.get().by_name)

    def __len__(self) -> int:
        return len(self._current.get().by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._current.get().by_name

    @property
    def permanent_names(self) -> Set[str]:
        """Names of the permanent entries, without those added by :meth:`extend`."""
        return self._sealed.by_name.keys()

    @property
    def is_extended(self) -> bool:
        """True if the current context sees entries that :meth:`extend` added."""
        return self._current.get() is not self._sealed

    @property
    def entries(self) -> RegistryContent[T]:
        """The entries that the current context sees. The object stays the same while the entries do not change, so
        that it can be a cache key."""
        return self._current.get()

    @contextmanager
    def extend(self, entries: Mapping[str, T]) -> Iterator[None]:
        """Add entries inside the ``with`` block. Raise UsageError for a name that another entry already has."""
        current = self._current.get().by_name
        for name, entry in entries.items():
            if name in current and self[name] != entry:
                raise UsageError(f"there is already {self.what} {name!r}", hint="choose another name in the plugin")
        if entries.keys() <= current.keys():
            yield
            return
        token = self._current.set(RegistryContent({**current, **entries}))
        try:
            yield
        finally:
            self._current.reset(token)
