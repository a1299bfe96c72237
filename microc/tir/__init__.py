# SPDX-License-Identifier: Apache-2.0
"""The loop IR (TIR): functions of loops, blocks and buffers, as in TVM's TensorIR. It is independent of the graph IR.

::

    from microc import tir

    func = tir.from_text(text)               # TVMScript; module = tir.module_from_text(text) reads several: module["main"]
    tir.verify_func(func)                    # InternalError (or its subclass ProgramError) if it violates a rule
    tir.run(func, [a, b, c])                 # on numpy arrays, in the order of its parameters; outputs are written in place
    print(tir.to_text(tir.lower_func(func)))      # plain loops, as C is printed from
    tir.specialize(func, {"n": 64})          # a function of symbolic extents at some sizes

:mod:`microc.tir.ir` defines the expressions and statements. Modules are imported when their names are first used.
"""

from __future__ import annotations

import importlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from microc.tir.interp import execute, run
    from microc.tir.ir import PrimFunc
    from microc.tir.lower import lower as lower_func
    from microc.tir.statements import IRModule
    from microc.tir.symbolic import specialize
    from microc.tir.text import from_text, module_from_text, to_text
    from microc.tir.verify import verify as verify_func


__all__ = (
    "IRModule",
    "PrimFunc",
    "execute",
    "from_text",
    "lower_func",
    "module_from_text",
    "run",
    "specialize",
    "to_text",
    "verify_func",
)

_HOMES = MappingProxyType(
    {
        "IRModule": ("microc.tir.statements", "IRModule"),
        "PrimFunc": ("microc.tir.ir", "PrimFunc"),
        "execute": ("microc.tir.interp", "execute"),
        "from_text": ("microc.tir.text", "from_text"),
        "lower_func": ("microc.tir.lower", "lower"),
        "module_from_text": ("microc.tir.text", "module_from_text"),
        "run": ("microc.tir.interp", "run"),
        "specialize": ("microc.tir.symbolic", "specialize"),
        "to_text": ("microc.tir.text", "to_text"),
        "verify_func": ("microc.tir.verify", "verify"),
    }
)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'microc.tir' has no attribute {name!r}")
    home, attribute = _HOMES[name]
    return getattr(importlib.import_module(home), attribute)


def __dir__() -> list[str]:
    return sorted((*globals(), *__all__))
