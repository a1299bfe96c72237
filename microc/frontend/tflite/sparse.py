"""Constants of TFLite that are stored otherwise than they are used: sparse ones, and numbers of four bits.

A sparse tensor lists its dimensions in the order of traversal, blocks behind the tensor's own. Along each level there are all
elements (dense), or those between two segments, at the indices that are listed (compressed sparse rows). Source:
TFLite ``sparsity_format_converter.cc``; schema, SparsityParameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from microc.dtypes import Array
from microc.errors import ModelError
from microc.frontend.tflite.options import as_array, reading
from microc.frozen import frozen

_MOST_LEVELS = 16
_VECTORS = ("", "Int32Vector", "Uint16Vector", "Uint8Vector")


@frozen
class Level:
    """One level: of ``size`` elements each, or (size 0) of those that ``segments`` and ``indices`` tell."""

    size: int
    segments: Array
    indices: Array


@frozen
class Sparsity:
    """Dimensions in order of traversal (from the tensor's rank on: blocks), which of the tensor's each block divides, levels."""

    order: tuple[int, ...]
    blocks: tuple[int, ...]
    levels: tuple[Level, ...]


def read_sparsity(table: Any, where: str) -> Sparsity:
    """The flatbuffer's SparsityParameters."""
    with reading(where):
        count = int(table.DimMetadataLength())
        if count > _MOST_LEVELS:
            raise ModelError(f"{count} levels of a sparse tensor", where=where)
        levels = tuple(_level(table.DimMetadata(k)) for k in range(count))
        order, blocks = (as_array(v) for v in (table.TraversalOrderAsNumpy(), table.BlockMapAsNumpy()))
    return Sparsity(tuple(map(int, order)), tuple(map(int, blocks)), levels)


def _level(table: Any) -> Level:
    if int(table.Format()) == 0:
        return Level(int(table.DenseSize()), np.empty(0, np.int64), np.empty(0, np.int64))
    segments = _vector(int(table.ArraySegmentsType()), table.ArraySegments())
    return Level(0, segments, _vector(int(table.ArrayIndicesType()), table.ArrayIndices()))


def _vector(kind: int, table: Any) -> Array:
    """A union of vectors of three widths."""
    import tflite

    if not 1 <= kind < len(_VECTORS) or table is None:
        raise ValueError("a sparse dimension without indices")
    vector = getattr(tflite, _VECTORS[kind])()
    vector.Init(table.Bytes, table.Pos)
    return as_array(vector.ValuesAsNumpy()).astype(np.int64)


def dense(values: Array, shape: Sequence[int], sparsity: Sparsity, where: str) -> Array:
    """The whole tensor, zero where nothing is stored; ModelError where the description makes no sense."""
    rank, levels = len(shape), sparsity.levels
    if not rank:
        raise ModelError("a sparse tensor without axes", where=where)
    if sorted(sparsity.order) != list(range(rank + len(sparsity.blocks))) or len(levels) != len(sparsity.order):
        raise ModelError(f"a sparse tensor of shape {tuple(shape)} traversed as {sparsity.order}", where=where)
    if any(not 0 <= dimension < rank for dimension in sparsity.blocks):
        raise ModelError(f"blocks of dimensions {sparsity.blocks}", where=where)
    at: dict[int, Array] = {}
    place = np.zeros(1, np.int64)
    for dimension, level in zip(sparsity.order, levels, strict=True):
        rows, index, place = _step(level, place, prod(shape), where)
        at = {known: found[rows] for known, found in at.items()}
        at[dimension] = index
    if len(place) != values.size or (place != np.arange(len(place))).any():
        raise ModelError(f"{values.size} values for {len(place)} places of a sparse tensor", where=where)
    for position, dimension in enumerate(sparsity.blocks):
        size = levels[sparsity.order.index(rank + position)].size
        at[dimension] = at[dimension] * size + at[rank + position]
    found = np.zeros(tuple(shape), values.dtype)
    places = tuple(at[dimension] for dimension in range(rank))
    if any(index.size and not 0 <= index.min() <= index.max() < e for index, e in zip(places, shape, strict=True)):
        raise ModelError(f"an index of a sparse tensor lies outside of {tuple(shape)}", where=where)
    found[places] = values.reshape(-1)
    return found


def _step(level: Level, place: Array, most: int, where: str) -> tuple[Array, Array, Array]:
    """For every place of a level its parent's number, its index along the level's dimension, and its own place."""
    if level.size:
        counts = np.full(len(place), level.size, np.int64)
        starts = place * level.size
    else:
        if place.size and int(place.max()) + 1 >= len(level.segments):
            raise ModelError("a sparse tensor with too few segments", where=where)
        starts = level.segments[place]
        counts = level.segments[place + 1] - starts
    if counts.size and (counts.min() < 0 or int(counts.sum()) > most):
        raise ModelError("a sparse tensor with more places than elements", where=where)
    rows = np.repeat(np.arange(len(place)), counts)
    offsets = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    own = starts[rows] + offsets
    if level.size:
        return rows, offsets, own
    if own.size and int(own.max()) >= len(level.indices):
        raise ModelError("a sparse tensor with too few indices", where=where)
    return rows, level.indices[own], own


def unpack_int4(raw: Array, count: int) -> Array:
    """Two's-complement nibbles, low one first, as int8."""
    nibbles = np.stack([raw & 15, raw >> 4], axis=-1).reshape(-1)[:count].astype(np.int8)
    unpacked: Array = np.where(nibbles > 7, nibbles - 16, nibbles).astype(np.int8)
    return unpacked
