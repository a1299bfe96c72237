"""Elements in other places: ``reverse``, ``mirror_pad``, ``broadcast_to``, ``triangle``; and what operators with
indices have in common.

Sources: TFLite ``reverse.h``, ``mirror_pad``; ONNX Pad, Expand, Trilu.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.attributes import choice, extents, flag, integer, pairs_by_axis, some_axes
from microc.ops.axes import along_axes, broadcast, padded
from microc.ops.registry import Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Expr

INDICES = ("int32", "int64")


def clamped_index(index: Expr, extent: int) -> Expr:
    """An index made of data, within 0..extent - 1."""
    return ir.cast("int32", ir.clamp(index, 0, extent - 1))


def check_indices(name: str, kind: TensorType) -> None:
    if kind.dtype not in INDICES:
        raise ModelError(f"{name} with {kind.dtype} indices", hint="indices are int32 or int64")


def _infer_reverse(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    axes = attrs["axes"]
    if len(set(axes)) < len(axes) or any(not 0 <= axis < len(types[0].shape) for axis in axes):
        raise ModelError(f"reverse of shape {types[0].shape} along axes {attrs['axes']}")
    return (TensorType(types[0].shape, types[0].dtype),)


def _compute_reverse(call: OpCall) -> te.Tensor:
    data, axes = call.data, call.attrs["axes"]
    x, shape = data.tensor(), data.type.shape

    def element(*index: Expr) -> Expr:
        return x[tuple(shape[k] - 1 - i if k in axes else i for k, i in enumerate(index))]

    return te.compute(shape, element, "turned")


def _cases_reverse() -> Iterable[Case]:
    for shape, axes in (((5,), (0,)), ((2, 3, 4), (1,)), ((2, 3, 4), (0, 2)), ((3, 2), ())):
        yield Case({"axes": axes}, (TensorType(shape, "int8"),))
    yield Case({"axes": (1,)}, (TensorType((2, 3), "float32"),))


_MODES = ("reflect", "symmetric", "edge", "wrap")


def _infer_mirror(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    shape, padding, mode = types[0].shape, attrs["padding"], attrs["mode"]
    if mode not in _MODES or len(padding) != len(shape) or any(min(p) < 0 for p in padding):
        raise ModelError(f"padding {padding} of shape {shape} by mode {mode!r}")
    most = {"reflect": -1, "symmetric": 0, "wrap": 0}
    for extent, amounts in zip(shape, padding, strict=True):
        if not extent or (mode in most and max(amounts) > extent + most[mode]):
            raise ModelError(f"padding {amounts} of {extent} elements by mode {mode!r}")
    extents = (before + extent + after for extent, (before, after) in zip(shape, padding, strict=True))
    return (TensorType(tuple(extents), types[0].dtype),)


def _reference_mirror(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    return (np.pad(arrays[0], attrs["padding"], mode=attrs["mode"]) if arrays[0].ndim else arrays[0],)


def _compute_mirror(call: OpCall) -> te.Tensor:
    data, mode = call.data, call.attrs["mode"]
    x = data.tensor()

    def place(index: Expr, extent: int, before: int, after: int) -> Expr:
        inside = index - before if before else index
        skipped = 0 if mode == "reflect" else 1
        first = {"edge": ir.const(0, "int32"), "wrap": inside + extent}.get(mode, -inside - skipped)
        last = {"edge": ir.const(extent - 1, "int32"), "wrap": inside - extent}.get(
            mode, 2 * (extent - 1) + skipped - inside
        )
        found = ir.select(index >= before + extent, last, inside) if after else inside
        return ir.select(index < before, first, found) if before else found

    def element(*index: Expr) -> Expr:
        parts = zip(index, data.type.shape, call.attrs["padding"], strict=True)
        return x[tuple(place(i, extent, before, after) for i, extent, (before, after) in parts)]

    return te.compute(call.out_types[0].shape, element, "padded_out")


def _cases_mirror() -> Iterable[Case]:
    for mode in _MODES:
        for shape, padding in (((4,), ((3, 2),)), ((2, 3), ((0, 1), (2, 0))), ((1, 3, 2), ((0, 0), (2, 2), (1, 1)))):
            yield Case({"padding": padding, "mode": mode}, (TensorType(shape, "int8"),), name=f"{mode} {shape}")
    yield Case({"padding": ((1, 1),), "mode": "edge"}, (TensorType((1,), "float32"),), name="one element")


def _infer_broadcast(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    shape = tuple(attrs["shape"])
    try:
        fits = np.broadcast_shapes(types[0].shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ModelError(f"shape {types[0].shape} cannot be broadcast to {shape}")
    return (TensorType(shape, types[0].dtype),)


def _compute_broadcast(call: OpCall) -> te.Tensor:
    data, shape = call.data, call.attrs["shape"]
    x, own = data.tensor(), data.type.shape

    def element(*index: Expr) -> Expr:
        mine = index[len(index) - len(own) :]
        return x[tuple(0 if extent == 1 else i for i, extent in zip(mine, own, strict=True))]

    return te.compute(tuple(shape), element, "spread")


def _cases_broadcast() -> Iterable[Case]:
    for shape, result in (
        ((3,), (2, 3)),
        ((2, 1), (2, 4)),
        ((), (2, 2)),
        ((), (2, 24)),
        ((1, 3, 1), (2, 3, 2)),
        ((2,), (2,)),
    ):
        yield Case({"shape": result}, (TensorType(shape, "int8"),))
    yield Case({"shape": (2, 2)}, (TensorType((2, 1), "float32"),))
    yield Case({"shape": (0, 3)}, (TensorType((1, 3), "float32"),), name="empty")


def _infer_triangle(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if len(types[0].shape) < 2:
        raise ModelError(f"a triangle of shape {types[0].shape}")
    return (TensorType(types[0].shape, types[0].dtype),)


def _reference_triangle(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    return ((np.triu if attrs["upper"] else np.tril)(arrays[0], attrs["diagonal"]),)


def _compute_triangle(call: OpCall) -> te.Tensor:
    (data,) = call.present
    x, diagonal, upper = data.tensor(), int(call.attrs["diagonal"]), call.attrs["upper"]

    def element(*index: Expr) -> Expr:
        limit = index[-2] + diagonal
        kept = index[-1] >= limit if upper else index[-1] <= limit
        return ir.select(kept, x[index], ir.const(0, data.type.dtype))

    return te.compute(data.type.shape, element, "triangle")


def _cases_triangle() -> Iterable[Case]:
    for shape, dtype in (((3, 4), "int64"), ((2, 4, 3), "float32"), ((1, 1), "bool")):
        for diagonal in (0, 1, -1, 9, -9):
            for upper in (True, False):
                attrs = {"diagonal": diagonal, "upper": upper}
                yield Case(attrs, (TensorType(shape, dtype),), name=f"{shape} {diagonal}")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "reverse",
        attrs={"axes": some_axes("that are turned round")},
        axes=along_axes,
        moves=True,
        infer=_infer_reverse,
        reference=lambda attrs, arrays: (np.ascontiguousarray(np.flip(arrays[0], attrs["axes"])),),
        compute=_compute_reverse,
        cases=_cases_reverse,
        operand_names=("data",),
    ),
    OpDef(
        "mirror_pad",
        attrs={
            "padding": pairs_by_axis("elements before and behind each axis"),
            "mode": choice("what they are", "reflect", "symmetric", "edge", "wrap"),
        },
        axes=padded,
        moves=True,
        infer=_infer_mirror,
        reference=_reference_mirror,
        compute=_compute_mirror,
        cases=_cases_mirror,
        operand_names=("data",),
    ),
    OpDef(
        "broadcast_to",
        attrs={"shape": extents("of the result")},
        axes=lambda attrs, types: (broadcast(types[0], attrs["shape"], len(attrs["shape"])),),
        moves=True,
        infer=_infer_broadcast,
        reference=lambda attrs, arrays: (np.broadcast_to(arrays[0], attrs["shape"]).copy(),),
        compute=_compute_broadcast,
        cases=_cases_broadcast,
        operand_names=("data",),
    ),
    OpDef(
        "triangle",
        infer=_infer_triangle,
        reference=_reference_triangle,
        compute=_compute_triangle,
        cases=_cases_triangle,
        attrs={
            "diagonal": integer("the one that bounds it; positive above the main one", 0),
            "upper": flag("what is kept: above it, or below", True),
        },
        operand_names=("data",),
    ),
)
