# SPDX-License-Identifier: Apache-2.0
"""Edge cases, made of an operator's own cases: NaN, infinities, the ends of integer dtypes, tensors without elements.

An operator is tested on all edges that its dtypes have; those that its own cases show already are not made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.registry import Case, OpDef

EMPTY, NAN, INFINITY = "empty", "nan", "infinity"
_SIGNED = ("int8", "int16", "int32", "int64")


def random_array(kind: TensorType, rng: np.random.Generator) -> Array:
    """Data of a type: floats in -2..2, small dtypes over their whole range, wide integers within +-1000."""
    if dtypes.is_float(kind.dtype):
        return rng.uniform(-2, 2, kind.shape).astype(dtypes.to_numpy(kind.dtype))
    low, high = dtypes.int_range(kind.dtype)
    low, high = (low, high) if dtypes.nbytes(kind.dtype) <= 2 else (max(low, -1000), 1000)
    array = rng.integers(low, high, kind.shape, endpoint=True)
    extremes = rng.random(kind.shape) < 0.1
    array = np.where(extremes, np.where(array > (low + high) // 2, high, low), array)
    return np.asarray(array).astype(dtypes.to_numpy(kind.dtype))


def case_arrays(case: Case, seed: int = 0) -> list[Array]:
    """The case's operands; the ones it leaves open are random, with the extremes of 8- and 16-bit dtypes among them."""
    rng = np.random.default_rng(seed)
    given = (*case.arrays, *(None,) * len(case.types))
    return [random_array(kind, rng) if array is None else array for kind, array in zip(case.types, given, strict=False)]


def shown_edges(definition: OpDef) -> set[str]:
    """The edges of the operator's own cases."""
    return {edge for case in definition.cases() for edge in _edges(case)}


def wanted_edges(definition: OpDef) -> dict[str, Case]:
    """The edges that an operator has by the dtypes of its cases, each with the largest case that can show it."""
    wanted: dict[str, Case] = {}
    for case in definition.cases():
        if case.types:
            wanted.setdefault(EMPTY, case)
        for kind in _varying(case):
            for edge in _edges_of_dtype(kind.dtype):
                if edge not in wanted or kind.size > max(t.size for t in wanted[edge].types):
                    wanted[edge] = case
    return wanted


def edge_cases(definition: OpDef) -> Iterator[Case]:
    """A case, named after it, for every edge that the operator's own cases do not show and that it takes."""
    shown = shown_edges(definition)
    for edge, case in wanted_edges(definition).items():
        if edge == EMPTY and edge not in shown:
            yield from _first_empty(definition)
        elif edge not in shown:
            yield _with(case, edge)


def _edges_of_dtype(dtype: str) -> tuple[str, ...]:
    return (NAN, INFINITY) if dtypes.is_float(dtype) else (f"{dtype} ends",) if dtype in _SIGNED else ()


def _varying(case: Case) -> list[TensorType]:
    """The operands that are not known when compiling."""
    return [kind for k, kind in enumerate(case.types) if k not in case.consts and kind.size]


def _edges(case: Case) -> set[str]:
    found = set()
    for kind, array in zip(case.types, case_arrays(case), strict=True):
        if 0 in kind.shape:
            found.add(EMPTY)
        elif dtypes.is_float(kind.dtype):
            wide = array.astype(np.float64)
            found |= {name for name, seen in ((NAN, np.isnan(wide)), (INFINITY, np.isinf(wide))) if seen.any()}
        elif kind.dtype in _SIGNED and np.isin(dtypes.int_range(kind.dtype), array).all():
            found.add(f"{kind.dtype} ends")
    return found


def _with(case: Case, edge: str) -> Case:
    """The case with special numbers among its data: a third through it, or at both ends."""
    arrays = [np.array(array, order="C") for array in case_arrays(case)]
    for k, (kind, array) in enumerate(zip(case.types, arrays, strict=True)):
        flat = array.reshape(-1)
        if k in case.consts or not kind.size or edge not in _edges_of_dtype(kind.dtype):
            continue
        if edge == NAN:
            flat[kind.size // 3] = np.nan
        elif edge == INFINITY:
            flat[0], flat[-1] = np.inf, -np.inf
        else:
            flat[-1], flat[0] = dtypes.int_range(kind.dtype)
    return replace(case, arrays=tuple(arrays), name=edge)


# ---------------------------------------------------------------- tensors without elements


def _first_empty(definition: OpDef) -> Iterator[Case]:
    """The first case that the operator takes when extents of it become zero."""
    for case in definition.cases():
        for emptied in _emptied(case):
            try:
                definition.infer({**definition.defaults, **emptied.attrs}, emptied.types)
            except ModelError:
                continue
            yield emptied
            return


def _emptied(case: Case) -> Iterator[Case]:
    """The case with zeros for extents: axes that lie alike, axes of one extent, single axes."""
    rank = max((len(kind.shape) for kind in case.types), default=0)
    for place in range(rank):
        yield from _zeros(case, partial(_alike, case, place))
        yield from _zeros(case, partial(_equal, case, place))
        for k in range(len(case.types)):
            yield from _zeros(case, partial(_only, k, place))


def _zeros(case: Case, hit: Callable[[int, int], bool]) -> Iterator[Case]:
    """The case with zeros where ``hit`` (operand, axis) says so, if it does."""
    types, arrays = [], []
    given = (*case.arrays, *(None,) * len(case.types))
    for k, (kind, array) in enumerate(zip(case.types, given, strict=False)):
        shape = tuple(0 if hit(k, axis) else extent for axis, extent in enumerate(kind.shape))
        types.append(replace(kind, shape=shape))
        arrays.append(None if array is None else array[tuple(slice(0, extent) for extent in shape)])
    if any(0 in kind.shape for kind in types):
        yield replace(case, types=tuple(types), arrays=tuple(arrays), name=EMPTY)


def _alike(case: Case, place: int, k: int, axis: int) -> bool:
    """An axis that is as far from the last as ``place`` says, and not one that broadcasts."""
    shape = case.types[k].shape
    return len(shape) - 1 - axis == place and (shape[axis] != 1 or len(case.types) == 1)


def _equal(case: Case, place: int, k: int, axis: int) -> bool:
    """An axis of the extent that the first operand has at ``place``."""
    first = case.types[0].shape
    return place < len(first) and case.types[k].shape[axis] == first[place]


def _only(operand: int, place: int, k: int, axis: int) -> bool:
    return (k, axis) == (operand, place)
