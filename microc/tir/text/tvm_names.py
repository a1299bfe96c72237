# SPDX-License-Identifier: Apache-2.0
"""Names of functions of TVMScript that differ from ours, and those that TIR text does not have."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

OPERATORS: Mapping[str, str] = MappingProxyType(
    {
        "Add": "add",
        "Sub": "sub",
        "Mul": "mul",
        "Div": "div",
        "FloorDiv": "floordiv",
        "FloorMod": "floormod",
        "Min": "min",
        "Max": "max",
        "EQ": "eq",
        "NE": "ne",
        "LT": "lt",
        "LE": "le",
        "GT": "gt",
        "GE": "ge",
        "And": "and",
        "Or": "or",
        "indexdiv": "floordiv",
        "indexmod": "floormod",
        "bitwise_and": "bitand",
        "bitwise_or": "bitor",
        "bitwise_xor": "bitxor",
        "shift_left": "shl",
        "shift_right": "shr",
    }
)
"""Binary operators of TVMScript that are called by name, and our names of them."""
UNARY: Mapping[str, str] = MappingProxyType({"Not": "not", "bitwise_not": "bitnot"})
FUNCTIONS: Mapping[str, str] = MappingProxyType({"power": "pow", "nearbyint": "rint"})

_EXTERN_HINT = "write what it computes as TIR, or declare it with its meaning as microc.plugin.extern"
_BUFFER_HINT = "write name = T.alloc_buffer(shape, dtype)"
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("call_extern", "call_packed", "call_pure_extern", "call_intrin"), _EXTERN_HINT),
        **dict.fromkeys(("call_llvm_intrin", "call_llvm_pure_intrin", "call_cpacked", "tvm_call_packed"), _EXTERN_HINT),
        **dict.fromkeys(("allocate", "decl_buffer", "allocate_const", "buffer_decl"), _BUFFER_HINT),
        "tvm_storage_sync": "leave it out: barriers are placed where nests of work items need them",
        "handle": "declare the parameter as name: T.Buffer(shape, dtype)",
        "thread_binding": "write for name in T.thread_binding(extent, thread=...)",
        "env_thread": "write for name in T.thread_binding(extent, thread=...)",
        "launch_thread": "write for name in T.thread_binding(extent, thread=...)",
    }
)
"""Functions of TVMScript that TIR text does not have, with hints."""

SPECIAL = frozenset(
    (
        *(*OPERATORS, *UNARY, *FUNCTIONS, *REFUSED),
        *("neg", "Cast", "cast", "Select", "if_then_else", "likely", "ceildiv", "min_value", "max_value", "infinity"),
        *("boolean", "address_of", "reinterpret", "call"),
    )
)
"""Names that the parser does not read as the call of a function of the same name."""
