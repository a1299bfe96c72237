# SPDX-License-Identifier: Apache-2.0
"""Modules of TIR: several functions, by position or by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, SupportsIndex, overload

from microc.errors import ProgramError, known_names_hint
from microc.tir.ir import PrimFunc


class IRModule(tuple[PrimFunc, ...]):
    """Functions of unique names, in order: ``module["main"]`` and ``module[0]``. ``microc.build`` builds them together."""

    __slots__ = ()

    def __new__(cls, functions: Iterable[PrimFunc]) -> IRModule:
        """Create a module of functions. ProgramError if two have the same name."""
        module = super().__new__(cls, functions)
        names = module.names
        if len(set(names)) < len(names):
            raise ProgramError(
                f"module: two functions have the same name; got {', '.join(names)}",
                hint="rename one: schedule.renamed(name).func",
            )
        return module

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the functions, in order."""
        return tuple(func.name for func in self)

    @overload
    def __getitem__(self, key: SupportsIndex | str) -> PrimFunc: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[PrimFunc, ...]: ...
    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        for func in self:
            if func.name == key:
                return func
        raise ProgramError(f"module: there is no function {key!r}", hint=known_names_hint(key, self.names, "functions"))
