"""``grid_sample``: data (N, C, spatial ...) read at real places (N, out ..., axes), by ``nearest``, ``linear`` or ``cubic``
interpolation. Places run from -1 to 1 and name the last axis first; with ``corners`` these are the centres of the first and last
elements, otherwise their outer edges. ``border``: what lies outside: ``zeros``, the ``edge``, or a ``reflection``.

Source: ONNX GridSample.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Attr, TensorType
from microc.ops.registry import Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Expr

TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
BORDERS = ("zeros", "edge", "reflection")
_SHARPNESS = -0.75
_FARTHEST = float(1 << 20)
"""Places farther away are taken to lie there, so that they can be made integers."""


def _infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, grid = types
    rank = len(data.shape) - 2
    fits = rank >= 1 and len(grid.shape) == rank + 2 and grid.shape[-1] == rank and grid.shape[0] == data.shape[0]
    if not fits or attrs["mode"] not in TAPS or attrs["border"] not in BORDERS:
        raise ModelError(f"grid_sample of shape {data.shape} at {grid.shape}, {attrs['mode']!r}, {attrs['border']!r}")
    if (data.dtype, grid.dtype) != ("float32", "float32"):
        raise ModelError(f"grid_sample of {data.dtype} at {grid.dtype} places")
    return (TensorType((*data.shape[:2], *grid.shape[1:-1]), data.dtype),)


def _reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, grid = arrays[0].astype(np.float64), arrays[1].astype(np.float64)
    rank, taps = data.ndim - 2, TAPS[attrs["mode"]]
    out = grid.shape[1:-1]
    total = np.zeros((*data.shape[:2], *out))
    for tap in np.ndindex(*(taps,) * rank):
        weight, met = np.ones((data.shape[0], 1, *out)), np.ones((data.shape[0], 1, *out), bool)
        where: list[Array] = [np.arange(data.shape[0]).reshape(-1, *[1] * rank)]
        for k, extent in enumerate(data.shape[2:]):
            g = grid[..., rank - 1 - k]
            place = (g + 1) / 2 * (extent - 1) if attrs["corners"] else ((g + 1) * extent - 1) / 2
            place = np.where(place > -_FARTHEST, np.minimum(place, _FARTHEST), -_FARTHEST)
            first = np.rint(place) if taps == 1 else np.floor(place)
            share, index = place - first, first.astype(np.int64) + tap[k] - (taps // 2 - 1 if taps > 1 else 0)
            weight = weight * _share_array(attrs["mode"], share, tap[k])[:, None]
            index, inside = _bordered_array(attrs, index, extent)
            met &= inside[:, None] > 0
            where.append(index)
        values = data[(where[0], slice(None), *where[1:])]
        total += np.where(met, np.moveaxis(values, -1, 1) * weight, 0)
    return (total.astype(np.float32),)


def _share_array(mode: str, share: Array, tap: int) -> Array:
    if mode == "nearest":
        return np.ones_like(share)
    if mode == "linear":
        return share if tap else 1 - share
    x, a = np.abs(tap - 1 - share), _SHARPNESS
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.asarray(np.where(x <= 1, near, far))


def _bordered_array(attrs: Mapping[str, Any], index: Array, extent: int) -> tuple[Array, Array]:
    inside = np.ones(index.shape) if attrs["border"] != "zeros" else ((index >= 0) & (index < extent)).astype(float)
    if attrs["border"] == "reflection" and extent > 1:
        period = 2 * (extent - 1) if attrs["corners"] else 2 * extent
        index = np.mod(index, period)
        index = np.minimum(index, period - (0 if attrs["corners"] else 1) - index)
    return np.clip(index, 0, extent - 1), inside


def _share(mode: str, share: Expr, tap: Expr) -> Expr:
    """The weight of a tap: the triangle, or Keys' cubic."""
    if mode == "linear":
        return ir.select(tap.eq(0), 1.0 - share, share)
    x, a = ir.call("fabs", ir.cast("float32", tap - 1) - share), _SHARPNESS
    near, far = (x * (a + 2) - (a + 3)) * x * x + 1.0, ((x * a - 5 * a) * x + 8 * a) * x - 4 * a
    return ir.select(x <= 1.0, near, far)


def _bordered(attrs: Mapping[str, Any], index: Expr, extent: int) -> Expr:
    """An index brought inside."""
    if attrs["border"] == "reflection" and extent > 1:
        period = 2 * (extent - 1) if attrs["corners"] else 2 * extent
        index = index % period
        index = ir.minimum(index, period - (0 if attrs["corners"] else 1) - index)
    return ir.clamp(index, 0, extent - 1)


def _compute(call: OpCall) -> te.Tensor:
    data, grid = (operand for operand in call.operands if operand is not None)
    attrs, mode, extents = call.attrs, call.attrs["mode"], data.type.shape[2:]
    rank, taps = len(extents), TAPS[mode]
    x, g = data.tensor(), grid.tensor()
    axes = [te.reduce_axis(taps, f"t{k}") for k in range(rank)]

    def element(*index: Expr) -> Expr:
        weight: Expr | None = None
        places, inside = [], []
        for k, (extent, axis) in enumerate(zip(extents, axes, strict=True)):
            given = g[(index[0], *index[2:], rank - 1 - k)] + 1.0
            place = given * ((extent - 1) / 2) if attrs["corners"] else (given * float(extent) - 1.0) * 0.5
            place = ir.select(place > -_FARTHEST, ir.minimum(place, _FARTHEST), -_FARTHEST)
            first = ir.call("rint" if mode == "nearest" else "floor", place)
            at = ir.cast("int32", first) + axis.var - (taps // 2 - 1 if taps > 1 else 0)
            if mode != "nearest":
                share = _share(mode, place - first, axis.var)
                weight = share if weight is None else weight * share
            inside += [at >= 0, at < extent] if attrs["border"] == "zeros" else []
            places.append(_bordered(attrs, at, extent))
        value: Expr = x[(index[0], index[1], *places)]
        met = ir.all_of(inside)
        value = value if met is None else ir.select(met, value, 0.0)
        return te.sum_reduce(value if weight is None else value * weight, *axes)

    return te.compute(call.out_types[0].shape, element, "acc")


def _cases() -> Iterable[Case]:
    grid = np.array([[[-1.6, 0.1], [0.0, -1.0]], [[0.3, 0.7], [1.0, 2.3]], [[-0.4, -0.9], [0.9, 0.45]]], np.float32)
    for mode in TAPS:
        for border in BORDERS:
            for corners in (False, True):
                attrs: dict[str, Attr] = {"mode": mode, "border": border, "corners": corners}
                types = (TensorType((1, 2, 4, 3), "float32"), TensorType((1, 3, 2, 2), "float32"))
                name = f"{mode} {border} {corners}"
                yield Case(attrs, types, arrays=(None, grid[None]), tolerance=1e-5, name=name)


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "grid_sample",
        infer=_infer,
        reference=_reference,
        compute=_compute,
        cases=_cases,
        operand_names=("data", "grid"),
    ),
)
