# SPDX-License-Identifier: Apache-2.0
"""Limits on models (ranks, bytes, windows, nesting), JSON parsing within the limits, and member names of archives."""

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

# ---- Limits of a model: sizes are checked as numbers, before anything of that size is allocated.
#
# Every reader checks shapes here when it has read or inferred them. A model within the limits is read in seconds and in less
# than 2 GB; no microcontroller has memory for one beyond them.

MAX_RANK = 8
MAX_BYTES = 1 << 28
"""Maximum bytes of one tensor. Generated C has 32-bit indices; this leaves a margin for index arithmetic."""
MAX_STORED = 1 << 28
"""Maximum bytes of constants that a model unfolds to: from an archive, or computed from other constants."""
MAX_WINDOW, MAX_TAPS = 1 << 16, 1 << 24
"""Maximum extents, strides and paddings of a sliding window, and of its number of elements."""
MAX_OPERANDS = 128
"""Maximum operands of one operator: the loops of a concatenation nest as deep as it has parts."""
MAX_NESTED = 64
"""Maximum nesting depth: graphs in operators, models in models, operands in operands."""
MAX_BRACKETS = 4 * MAX_NESTED
"""Maximum nesting of a JSON text; each level of a model takes a few brackets."""


def check_shape(shape: Sequence[int], element_dtype: str, where: str) -> None:
    """Raise ModelError if a shape has a negative extent, UnsupportedError if it has more than MAX_RANK axes or
    MAX_BYTES bytes.

    ``shape`` contains Python integers, because their product cannot overflow. An element of an unknown
    ``element_dtype`` counts as one byte."""
    if len(shape) > MAX_RANK:
        raise UnsupportedError(f"got a tensor of rank {len(shape)}, expected at most {MAX_RANK}", where=where)
    if any(extent < 0 for extent in shape):
        raise ModelError(f"shape {tuple(shape)} has a negative extent, expected at least 0", where=where)
    size = prod(shape) * (dtypes.nbytes(element_dtype) if dtypes.is_valid(element_dtype) else 1)
    if size > MAX_BYTES:
        raise UnsupportedError(
            f"a tensor of shape {tuple(shape)} and dtype {element_dtype} takes {size} bytes, expected at most {MAX_BYTES}",
            where=where,
            hint="give smaller extents with --input-shape, or cut the network into several models",
        )


def infer_types(op: str, attrs: Mapping[str, Any], types: Sequence[TensorType], where: str) -> tuple[TensorType, ...]:
    """Infer the result types of the operator ``op`` for operands of ``types``, and check that the results are within
    the limits.

    Raises ModelError, with the location ``where``, for invalid operands or attributes; UnsupportedError for operands
    or results that are too large, or have a dtype that the operator does not support."""
    if len(types) > MAX_OPERANDS:
        raise UnsupportedError(
            f"{op} has {len(types)} operands, expected at most {MAX_OPERANDS}",
            where=where,
            hint="apply the operator to fewer operands at a time",
        )
    _check_window_attributes(attrs, types, where)
    try:
        result_types = registry.infer(op, attrs, types)
    except ModelError as error:
        refusal = UnsupportedError if _accepts_other_dtypes(op, attrs, types) else type(error)
        raise refusal(error.what, where=where, hint=error.hint) from error
    except IndexError as error:
        raise ModelError(f"{op}: operands are missing; got {len(types)}", where=where) from error
    except (ArithmeticError, ValueError) as error:
        raise ModelError(f"{op}: the shapes or attributes do not fit together: {error}", where=where) from error
    for type_ in result_types:
        check_shape(type_.shape, type_.dtype, where)
    return result_types


def _accepts_other_dtypes(op: str, attrs: Mapping[str, Any], types: Sequence[TensorType]) -> bool:
    """Test whether the operator accepts operands of these shapes in another dtype."""
    for dtype in ("float32", "int32", "bool"):
        with suppress(MicrocError, ArithmeticError, ValueError):
            registry.infer(op, attrs, [replace(type_, dtype=dtype) for type_ in types])
            return True
    return False


def _check_window_attributes(attrs: Mapping[str, Any], types: Sequence[TensorType], where: str) -> None:
    """Raise an error if an operator's window (kernel, strides, dilation, padding) or its padded input is too large.

    Also raise ModelError if a number of the window is no integer."""
    padding = attrs.get("padding", ())
    groups = [padding, *(attrs.get(name, ()) for name in ("kernel", "strides", "dilation"))]
    numbers = [n for group in groups for n in (group if isinstance(group, tuple) else (group,))]
    if any(isinstance(n, float) for n in numbers):
        raise ModelError(
            f"window: got kernel, strides, dilation and padding of {numbers}, expected integers", where=where
        )
    if not isinstance(padding, tuple) or not all(isinstance(n, int) for n in padding):
        return  # slices and similar operators: the inferred result's size is checked instead
    largest = max((abs(n) for n in numbers if isinstance(n, int)), default=0)
    if largest > MAX_WINDOW:
        raise UnsupportedError(
            f"window: got a kernel, stride, dilation or padding of {largest}, expected at most {MAX_WINDOW}",
            where=where,
        )
    # A window over all spatial axes pads its input: the padded tensor must be within the limits, too.
    rank = len(padding) // 2
    if rank and types and len(types[0].shape) == rank + 2:
        first = 2 if attrs.get("layout") == "NCHW" else 1
        shape = list(types[0].shape)
        for axis in range(rank):
            shape[first + axis] += padding[axis] + padding[rank + axis]
        check_shape([max(extent, 0) for extent in shape], types[0].dtype, where)
    kernel = attrs.get("kernel", ())
    if isinstance(kernel, tuple) and prod(kernel) > MAX_TAPS:
        raise UnsupportedError(
            f"window: got a kernel of {prod(kernel)} elements, expected at most {MAX_TAPS}", where=where
        )


def parse_model_json(text: bytes, where: str) -> Any:
    """Parse the JSON text of a model; raise ModelError if it is invalid or nested more than MAX_BRACKETS deep."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"the model's JSON is invalid: {error}", where=where) from error
    # The parser's own recursion limit depends on the interpreter; this one is the same everywhere.
    level = [data]
    for _ in range(MAX_BRACKETS):
        containers = [x for x in level if isinstance(x, (list, dict))]
        level = [inner for x in containers for inner in (x.values() if isinstance(x, dict) else x)]
        if not level:
            return data
    raise ModelError(f"the model's JSON is nested more than {MAX_BRACKETS} deep", where=where)


# ---- Zip archives and HDF5, containers of several formats.

ZIP_MAGIC = b"PK\x03\x04"
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
"""First bytes of these containers."""


def list_archive_members(file_data: bytes) -> list[str]:
    """Return the names of the members of a zip archive; an empty list if the bytes are no complete archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(file_data)) as archive:
            return archive.namelist()
    except zipfile.BadZipFile:
        return []
