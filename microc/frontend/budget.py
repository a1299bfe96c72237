"""What a model may ask for, and archives within it."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Any

from microc.base import dtypes
from microc.errors import MicrocError, ModelError, UnsupportedError
from microc.graph.ir import TensorType
from microc.ops import registry

# ---- What a model may ask for, in one place: sizes are judged as numbers, before anything of that size is made.
#
# Every reader asks here when it has read or inferred a shape. A model within these bounds is read in seconds and in less than
# 2 GB; no microcontroller has memory for one beyond them.

MAX_RANK = 8
MAX_BYTES = 1 << 28
"""Of one tensor. The generated C indexes with 32 bits; this leaves room for what is computed of indices."""
MAX_STORED = 1 << 28
"""Bytes of constants that one model unfolds: of an archive, of constants computed from constants."""
MAX_WINDOW, MAX_TAPS = 1 << 16, 1 << 24
"""Of what moves over pixels: its extents, steps and paddings, and its elements."""
MAX_OPERANDS = 128
"""Of one of our operators: the loops of a concatenation nest as deep as it has parts."""
MAX_NESTED = 64
"""Depth of what is inside of something else: graphs in operators, models in models, operands in operands."""
_MOST_BRACKETS = 4 * MAX_NESTED
"""Depth of a JSON text: what is nested takes a few brackets each time."""


def check_shape(shape: Sequence[int], dtype: str, where: str) -> None:
    """ModelError for extents below zero, UnsupportedError for a tensor larger than any and for one of too many axes.

    ``shape``: extents as Python's integers, whose product does not overflow. ``dtype``: one that is none counts as a byte.
    """
    if len(shape) > MAX_RANK:
        raise UnsupportedError(f"a tensor of rank {len(shape)}; the largest is {MAX_RANK}", where=where)
    if any(extent < 0 for extent in shape):
        raise ModelError(f"shape {tuple(shape)} has a negative extent", where=where)
    size = prod(shape) * (dtypes.nbytes(dtype) if dtypes.is_valid(dtype) else 1)
    if size > MAX_BYTES:
        raise UnsupportedError(
            f"a tensor of shape {tuple(shape)} and dtype {dtype} takes {size} bytes; the largest takes {MAX_BYTES}",
            where=where,
            hint="bind smaller extents with --input-shape, or cut the network",
        )


def inferred(op: str, attrs: Mapping[str, Any], types: Sequence[TensorType], where: str) -> tuple[TensorType, ...]:
    """The types of what one of our operators makes of ``types``, each within the bounds.

    Raises ModelError, with the place, for operands and attributes that make no sense, UnsupportedError for those that are too
    large or of a dtype that the operator does not take.
    """
    if len(types) > MAX_OPERANDS:
        raise UnsupportedError(
            f"{op} of {len(types)} operands; the most are {MAX_OPERANDS}", where=where, hint="apply it to parts"
        )
    _check_window(attrs, types, where)
    try:
        made = registry.infer(op, attrs, types)
    except ModelError as error:
        refusal = UnsupportedError if _hangs_on_dtypes(op, attrs, types) else type(error)
        raise refusal(error.what, where=where, hint=error.hint) from error
    except (ArithmeticError, ValueError) as error:
        raise ModelError(f"{op} cannot have these sizes: {error}", where=where) from error
    for kind in made:
        check_shape(kind.shape, kind.dtype, where)
    return made


def _hangs_on_dtypes(op: str, attrs: Mapping[str, Any], types: Sequence[TensorType]) -> bool:
    """Test whether the operator takes operands of these shapes in some other dtype."""
    for dtype in ("float32", "int32", "bool"):
        with suppress(MicrocError, ArithmeticError, ValueError):
            registry.infer(op, attrs, [replace(kind, dtype=dtype) for kind in types])
            return True
    return False


def _check_window(attrs: Mapping[str, Any], types: Sequence[TensorType], where: str) -> None:
    """A window that moves over pixels: itself, its steps, and the pixels with what is put around them."""
    padding = attrs.get("padding", ())
    groups = [padding, *(attrs.get(name, ()) for name in ("kernel", "strides", "dilation"))]
    numbers = [n for group in groups for n in (group if isinstance(group, tuple) else (group,))]
    if any(isinstance(n, float) for n in numbers):
        raise ModelError(f"a window of {numbers}, which are no whole numbers", where=where)
    if not isinstance(padding, tuple) or not all(isinstance(n, int) for n in padding):
        return  # of slices and the like, whose results say how large they are
    largest = max((abs(n) for n in numbers if isinstance(n, int)), default=0)
    if largest > MAX_WINDOW:
        raise UnsupportedError(f"a window, a step or a padding of {largest}; the largest is {MAX_WINDOW}", where=where)
    rank = len(padding) // 2
    if rank and types and len(types[0].shape) == rank + 2:
        first = 2 if attrs.get("layout") == "NCHW" else 1
        shape = list(types[0].shape)
        for axis in range(rank):
            shape[first + axis] += padding[axis] + padding[rank + axis]
        check_shape([max(extent, 0) for extent in shape], types[0].dtype, where)
    kernel = attrs.get("kernel", ())
    if isinstance(kernel, tuple) and prod(kernel) > MAX_TAPS:
        raise UnsupportedError(f"a window of {prod(kernel)} elements; the largest has {MAX_TAPS}", where=where)


def read_json(text: bytes, where: str) -> Any:
    """What a JSON text of a model holds; ModelError where it is broken or nested too deeply."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"the model's JSON is broken: {error}", where=where) from error
    level = [found]
    for _ in range(_MOST_BRACKETS):
        level = [inner for x in level if isinstance(x, (list, dict)) for inner in _inside(x)]
        if not level:
            return found
    raise ModelError(f"the model's JSON is nested more than {_MOST_BRACKETS} deep", where=where)


def _inside(x: Any) -> list[Any]:
    return list(x.values()) if isinstance(x, dict) else x


# ---- Zip archives and HDF5, which several formats are.

ZIP = b"PK\x03\x04"
HDF5 = b"\x89HDF\r\n\x1a\n"
"""What each starts with."""


def members(data: bytes) -> list[str]:
    """The names of what an archive's bytes hold; none where they are no whole archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return archive.namelist()
    except zipfile.BadZipFile:
        return []
