"""Constant arrays as C initialisers."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from microc import dtypes
from microc.codegen.c_expr import ExprPrinter, single
from microc.dtypes import Array
from microc.module import Value

WIDTH = 112
ALIGNED = 8
"""What constants are aligned to by their types, or as words."""
_MARGIN = 3
"""Columns in front of the first number, the blank before it left out."""


def declaration(value: Value, space: str = "") -> str:
    """``const int8_t name[24]``, without storage class or initialiser. ``space`` is the address space that it lies in."""
    return f"const {space}{dtypes.c_name(value.dtype)} {value.name}[{max(1, np.prod(value.shape, dtype=int))}]"


def aligned_declaration(value: Value, attribute: str, space: str = "") -> str:
    """Declare a constant with the attribute that aligns it: kernels read small elements by words, and external code may ask for
    more, which is the attribute's argument. Declaration and definition have the same one: a compiler believes the declaration."""
    suffix = f" {attribute}" if dtypes.nbytes(value.dtype) < 4 else ""
    if value.align > ALIGNED:
        suffix = f" {attribute}_TO({value.align})"
    return declaration(value, space) + suffix


def definition(value: Value, attribute: str = "", space: str = "") -> list[str]:
    """Print the whole definition, wrapped into lines; with ``attribute``, aligned as :func:`aligned_declaration` says."""
    assert value.data is not None
    lines = _wrapped(*_words(np.ascontiguousarray(value.data).reshape(-1), value.dtype))
    declared = aligned_declaration(value, attribute, space) if attribute else declaration(value, space)
    return [f"{declared} = {{", *lines, "};"]


def _words(flat: Array, dtype: str) -> tuple[list[str], Array]:
    """Numbers, each printed once, and which of them every element is; a lone 0 stands for no element."""
    if not len(flat):
        return ["0"], np.zeros(1, np.int64)
    patterns = flat.view(f"u{flat.itemsize}")  # -0.0 is another number than 0.0
    if flat.itemsize == 1:
        bits, places = np.arange(256, dtype=np.uint8), patterns
    else:
        bits, places = np.unique(patterns, return_inverse=True)
    numbers = bits.view(flat.dtype)
    if dtype == "float32":
        return list(map(single, numbers)), places
    literal = ExprPrinter().literal if dtypes.is_float(dtype) else _integer
    return [literal(number, dtype) for number in numbers.tolist()], places


def _integer(number: int, dtype: str) -> str:
    """An integer in an initialiser; the array's type says the rest, except where a plain literal would not fit."""
    if dtype == "int32" and number == -(1 << 31):
        return "INT32_MIN"
    if dtype == "int64":
        return "INT64_MIN" if number == -(1 << 63) else f"INT64_C({number})"
    if dtype in ("uint32", "uint64"):
        return f"{number}U" if dtype == "uint32" else f"UINT64_C({number})"
    return str(int(number))


def _wrapped(words: list[str], places: Array) -> list[str]:
    """Lines as full as they can be, of the words at ``places``."""
    lengths = np.array([len(word) + 2 for word in words])
    ends = np.cumsum(lengths[places]).tolist()
    every = np.array([f"{word}, " for word in words], "S")[places].tobytes().translate(None, b"\0").decode("ascii")
    lines, start, used = list[str](), 0, 0
    while start < len(ends):
        start = max(start + 1, bisect_right(ends, used + WIDTH - _MARGIN, start))
        lines.append(f"    {every[used : ends[start - 1] - 1]}")
        used = ends[start - 1]
    return lines
