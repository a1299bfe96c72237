"""Constant arrays as C initialisers."""

from __future__ import annotations

import numpy as np

from microc import dtypes
from microc.codegen.c_expr import ExprPrinter
from microc.module import Value

WIDTH = 112


def declaration(value: Value, space: str = "") -> str:
    """``const int8_t name[24]``, without storage class or initialiser. ``space`` is the address space that it lies in."""
    return f"const {space}{dtypes.c_name(value.dtype)} {value.name}[{max(1, np.prod(value.shape, dtype=int))}]"


def definition(value: Value, attribute: str = "", space: str = "") -> list[str]:
    """The whole definition, wrapped into lines. ``attribute`` follows the name: kernels read small elements by words."""
    assert value.data is not None
    printer = ExprPrinter()
    flat = np.ascontiguousarray(value.data).reshape(-1)
    if dtypes.is_float(value.dtype):
        words = [printer.literal(x, value.dtype) for x in flat.tolist()]
    else:
        words = [_integer(x, value.dtype) for x in flat.tolist()]
    suffix = f" {attribute}" if attribute and dtypes.nbytes(value.dtype) < 4 else ""
    return [f"{declaration(value, space)}{suffix} = {{", *_wrapped(words or ["0"]), "};"]


def _integer(number: int, dtype: str) -> str:
    """An integer in an initialiser; the array's type says the rest, except where a plain literal would not fit."""
    if dtype == "int32" and number == -(1 << 31):
        return "INT32_MIN"
    if dtype == "int64":
        return "INT64_MIN" if number == -(1 << 63) else f"INT64_C({number})"
    if dtype in ("uint32", "uint64"):
        return f"{number}U" if dtype == "uint32" else f"UINT64_C({number})"
    return str(int(number))


def _wrapped(words: list[str]) -> list[str]:
    lines: list[str] = []
    line = "   "
    for word in words:
        if len(line) + len(word) + 2 > WIDTH:
            lines.append(line)
            line = "   "
        line += f" {word},"
    return [*lines, line]
