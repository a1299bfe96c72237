"""Which axis of a result is which axis of an operand: what ``OpDef.axes`` and ``OpDef.window`` of an operator say.

Graph passes ask the same question of every operator, whether they stream along an axis, drop indices of it or work in another
order of axes: does index i of the result depend on index i of the operand alone, and on all i in the same way? Then the two axes
are *one*.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

from microc.frozen import frozen
from microc.graph.ir import TensorType

Places = tuple[int | None, ...]
"""For each axis of an operand the axis of the result (of every result, where there are several) that is one with it; None if
there is no such axis: it is reduced, parts are taken of it, windows slide along it."""
AxisMap = tuple[Places | None, ...]
"""One entry for each operand; None: it is read as a whole. Operands that are not mentioned at the end are, too."""


@frozen
class Window:
    """Windows that slide along height and width of the first operand (N, H, W, C).

    Output (y, x) reads ``kernel`` elements, ``dilation`` apart, from ``(y, x) * strides - (top, left)`` on; ``padding`` is top,
    left, bottom, right. Elements outside hold ``pad_value``; None: nothing stands in for them, they are left out.
    """

    kernel: tuple[int, ...] = (1, 1)
    strides: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    pad_value: int | float | None = 0

    def reach(self, axis: int) -> int:
        """From the first element to the last, both counted, along height (0) or width (1)."""
        return (self.kernel[axis] - 1) * self.dilation[axis] + 1


def kept(rank: int, changed: Collection[int], keepdims: bool = True) -> Places:
    """All axes but ``changed`` (negative ones count from the end) stay; without ``keepdims`` these are gone."""
    lost = {axis % rank for axis in changed}
    left = [axis for axis in range(rank) if keepdims or axis not in lost]
    return tuple(None if axis in lost else left.index(axis) for axis in range(rank))


def along_axis(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    """The map of what works along the attribute ``axis``, or the last one, and gives as many axes."""
    return (kept(len(types[0].shape), (attrs.get("axis", -1),)),)


def along_axes(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    """The map of what works along the attribute ``axes``, which go unless ``keepdims`` says that they stay."""
    return (kept(len(types[0].shape), attrs["axes"], attrs.get("keepdims", True)),)


def rows_only(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    """The map of layers, which treat elements of a batch alike."""
    return ((0, *(None,) * (len(types[0].shape) - 1)),)


def padded(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    """The map of what adds elements to the axes with ``padding``."""
    return (tuple(None if any(pair) else axis for axis, pair in enumerate(attrs["padding"])),)


def broadcast(kind: TensorType, shape: Sequence[int], rank: int) -> Places:
    """The places of an operand in a result of ``rank`` axes, those at the end of ``shape``, as numpy broadcasts."""
    first = rank - len(kind.shape)
    pairs = zip(kind.shape, shape[len(shape) - len(kind.shape) :], strict=True)
    return tuple(first + axis if extent == wanted else None for axis, (extent, wanted) in enumerate(pairs))


def elementwise(attrs: Mapping[str, Any], types: Sequence[TensorType | None], whole: Collection[int]) -> AxisMap:
    """The map of an elementwise operator. The attribute ``axis`` names the one along which its parameters vary."""
    shapes = [kind.shape for k, kind in enumerate(types) if kind is not None and k not in whole]
    rank = max(map(len, shapes), default=0)
    aligned = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result = [max(extents, key=lambda extent: extent != 1) for extents in zip(*aligned, strict=True)]
    varies = attrs.get("axis")
    places = [None if kind is None or k in whole else broadcast(kind, result, rank) for k, kind in enumerate(types)]
    return tuple(p and tuple(None if place == varies else place for place in p) for p in places)


def reshaped(before: Sequence[int], after: Sequence[int], axis: int) -> int | None:
    """Where a reshape leaves an axis; None where it is merged with others, or parted."""
    inner, behind, found = prod(before[axis + 1 :]), 1, None
    for place in range(len(after) - 1, -1, -1):
        if behind == inner and after[place] == before[axis] and (found is None or before[axis] == 1):
            found = place
            if before[axis] != 1 or place == axis:
                break
        behind *= after[place]
    return found
