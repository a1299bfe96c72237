"""Loops that copy neighbours in memory, marked by how many of them a core moves at once."""

from __future__ import annotations

from microc import dtypes
from microc.target import Target
from microc.tir import ir
from microc.tir.lower.lanes import COPIED, SHORT
from microc.tir.names import LANES, MOVED

WORD = 4
LEAST = 16
"""Bytes that are worth finding out whether words can be moved."""
Notes = tuple[tuple[str, int | str], ...]


def copy_loop(var: ir.Var, extent: int, store: ir.Store, target: Target) -> ir.For:
    """``for var in extent: store``, where iterations copy one element after the other: by vectors, by words wherever they lie, by
    words where both ends allow it, or one by one. The order of elements is kept, so that memory may move down over itself."""
    kind, notes = _way(store.buffer.dtype, extent, target)
    return ir.For(var, ir.const(extent, "int32"), store, kind, notes)


def _way(dtype: str, extent: int, target: Target) -> tuple[str, Notes]:
    """The kind of the loop, and its annotations."""
    width = dtypes.nbytes(dtype)
    if (target.has("lanes") or target.has("vectors")) and dtype in COPIED:
        return "vectorized", ((LANES, 4),)
    if target.has("unaligned") or width == WORD:
        return "vectorized", ()
    if target.has("words") and dtype in SHORT and extent * width >= LEAST:
        return "serial", ((MOVED, 1),)
    return "serial", ()
