"""Orders of axes: pure functions of shapes, for passes that move transpositions and reshapes about.

``axes`` always means numpy's: ``y = x.transpose(axes)`` has ``y.shape[i] == x.shape[axes[i]]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from microc.dtypes import Array
from microc.graph.ir import Attr, TensorType
from microc.ops.attributes import Attributes

T = TypeVar("T")
Axes = tuple[int, ...]
Shape = tuple[int, ...]


def inverse(axes: Sequence[int]) -> Axes:
    """The order that undoes ``axes``."""
    return tuple(sorted(range(len(axes)), key=lambda i: axes[i]))


def composed(first: Sequence[int], second: Sequence[int]) -> Axes:
    """The one order that equals transposing by ``first``, then by ``second``."""
    return tuple(first[axis] for axis in second)


def permuted(shape: Sequence[T], axes: Sequence[int]) -> tuple[T, ...]:
    """The shape, or whatever there is for each axis, after transposing by ``axes``."""
    return tuple(shape[axis] for axis in axes)


def keeps_memory(shape: Sequence[int], axes: Sequence[int]) -> bool:
    """Whether transposing ``shape`` by ``axes`` moves axes of one element only: the elements keep their order."""
    moved = [axis for axis in axes if shape[axis] != 1]
    return moved == sorted(moved)


def permuted_type(kind: TensorType, axes: Sequence[int]) -> TensorType:
    """The type after transposing by ``axes``; scales along an axis go with it, the meaning of the axes is forgotten."""
    quant = kind.quant
    if quant is not None and quant.axis is not None:
        quant = replace(quant, axis=tuple(axes).index(quant.axis))
    return TensorType(permuted(kind.shape, axes), kind.dtype, quant)


AXIS_KINDS = frozenset(("axis", "axes", "axes in order", "ints by axis", "pairs by axis"))
"""Kinds of attributes that name axes of the first operand, or have a value for each."""


def permuted_attrs(declared: Attributes, attrs: Mapping[str, Attr], axes: Axes) -> dict[str, Attr] | None:
    """The attributes of an application to ``x`` that does what they do to ``x.transpose(axes)``.

    None where axes with something else for each would come in another order: sums of floats are taken in it.
    """
    found = dict(attrs)
    for name, value in attrs.items():
        kind = declared[name].kind
        if kind not in AXIS_KINDS or value is None:
            continue
        given: Any = value
        if kind == "axis":
            found[name] = axes[given % len(axes)]
        elif kind.endswith("by axis"):
            found[name] = permuted(given, inverse(axes))
        else:
            named = tuple(axes[axis % len(axes)] for axis in given)
            if kind == "axes in order" and list(named) != sorted(named):
                return None
            found[name] = tuple(sorted(named))
    return found


def padded_shape(shape: Sequence[int], rank: int) -> Shape:
    """A shape with axes of one element in front, as broadcasting to ``rank`` sees it."""
    return (1,) * (rank - len(shape)) + tuple(shape)


def transposed_array(array: Array, axes: Sequence[int]) -> Array:
    """A contiguous copy in another order; the array may have fewer axes than ``axes``, as a broadcast operand."""
    return np.ascontiguousarray(array.reshape(padded_shape(array.shape, len(axes))).transpose(axes))


def through_reshape(shape: Shape, axes: Axes, wanted: Shape) -> tuple[Axes, Shape, Axes] | None:
    """``x.transpose(axes).reshape(wanted)``, x of ``shape``, as ``x.transpose(axes1).reshape(shape2).transpose(axes2)``.

    Gives ``(axes1, shape2, axes2)``; None for tensors without elements. What the reshape merges is brought together by
    ``axes1``, in the order that x has otherwise; ``axes1`` keeps the memory where those axes are neighbours in x too.
    """
    solid = [axis for axis in axes if shape[axis] != 1]
    runs = _runs([shape[axis] for axis in solid], [extent for extent in wanted if extent != 1])
    if runs is None:
        return None
    merged: list[tuple[list[int], int]] = []
    for before, after in runs:
        merged.append((solid[:before], after))
        solid = solid[before:]
    gathered = [axis for group, _ in sorted(merged, key=lambda item: min(item[0])) for axis in group]
    rest = [axis for axis in range(len(shape)) if shape[axis] == 1]
    return (*rest, *gathered), *_assembled(merged, wanted)


def _runs(before: list[int], after: list[int]) -> list[tuple[int, int]] | None:
    """Smallest runs of extents with equal products: how many of ``before`` become how many of ``after``."""
    runs: list[tuple[int, int]] = []
    i = j = 0
    while i < len(before) and j < len(after):
        first, second, left, right = i + 1, j + 1, before[i], after[j]
        while left != right:
            if left < right and first < len(before):
                left *= before[first]
                first += 1
            elif right < left and second < len(after):
                right *= after[second]
                second += 1
            else:
                return None
        runs.append((first - i, second - j))
        i, j = first, second
    return runs if (i, j) == (len(before), len(after)) else None


def _assembled(merged: Sequence[tuple[list[int], int]], wanted: Shape) -> tuple[Shape, Axes]:
    """Put the wanted axes, run by run, where their sources stand; an axis of one element follows the one before it."""
    owner: list[int] = []
    runs = [number for number, (_, count) in enumerate(merged) for _ in range(count)]
    current = -1
    for extent in wanted:
        if extent != 1:
            current = runs.pop(0)
        owner.append(current)
    place = {number: min(group) for number, (group, _) in enumerate(merged)}
    order = sorted(range(len(wanted)), key=lambda axis: (place.get(owner[axis], -1), axis))
    return permuted(wanted, order), inverse(order)
