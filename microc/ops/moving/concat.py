"""``concat`` and ``gather``: elements of several tensors, or of chosen places of one. Any dtype."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from microc import dtypes, te
from microc.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Graph, Node, TensorType
from microc.ops.arith import Rewrite
from microc.ops.attributes import ROUNDING, integer, one_axis
from microc.ops.axes import AxisMap, kept
from microc.ops.constants import BOUNDED
from microc.ops.elementwise.tables import IDENTITY, emit_lookup
from microc.ops.registry import Alias, Case, Legalized, OpCall, OpDef
from microc.ops.surface import dequantized, quantize_attrs
from microc.tir import ir
from microc.tir.ir import Expr

# ---------------------------------------------------------------- concat


def _infer_concat(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    shape, axis = types[0].shape, attrs["axis"]
    if not -len(shape) <= axis < len(shape):
        raise ModelError(f"concat along axis {axis} of shape {shape}")
    axis %= len(shape)
    for kind in types[1:]:
        others = kind.shape[:axis] + kind.shape[axis + 1 :]
        if len(kind.shape) != len(shape) or others != shape[:axis] + shape[axis + 1 :] or kind.dtype != types[0].dtype:
            shapes = ", ".join(f"{t.dtype} {t.shape}" for t in types)
            raise ModelError(f"concat along axis {axis} of {shapes}")
    total = sum(kind.shape[axis] for kind in types)
    return (TensorType((*shape[:axis], total, *shape[axis + 1 :]), types[0].dtype),)


def _reference_concat(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    return (np.concatenate([np.asarray(a) for a in arrays], axis=attrs["axis"]),)


_FEW = 16
"""Parts that are told apart one after the other; of more, halves are."""


def _compute_concat(call: OpCall) -> te.Tensor:
    """Rows made of one row of every operand."""
    shape = call.out_types[0].shape
    axis = call.attrs["axis"] % len(shape)
    outer = prod(shape[:axis])
    operands = call.present
    tensors = [operand.tensor((outer, prod(operand.type.shape[axis:]))) for operand in operands]

    starts = list(accumulate((tensor.shape[1] for tensor in tensors), initial=0))

    def element(n: Expr, i: Expr, first: int = 0, last: int = len(tensors)) -> Expr:
        if last - first == 1:
            return tensors[first][n, i - starts[first]]
        middle = first + 1 if len(tensors) <= _FEW else (first + last) // 2
        return ir.select(i < starts[middle], element(n, i, first, middle), element(n, i, middle, last))

    return te.compute((outer, prod(shape[axis:])), lambda n, i: element(n, i), "joined", ("n", "i"))


def rescaled(rewrite: Rewrite, name: str, like: TensorType, rounding: str) -> str:
    """A quantised value with the scale, zero point and dtype of ``like``: through a table, or (16 bits) through floats."""
    kind = rewrite.type(name)
    scaled = rewrite.value("scaled", kind.shape, like.dtype, like.quant)
    if dtypes.nbytes(kind.dtype) == 1:
        op, attrs = IDENTITY
        return emit_lookup(rewrite, op, attrs, name, scaled, rounding)
    return rewrite.emit("quantize", (dequantized(rewrite, name),), scaled, quantize_attrs(like, rounding))


def _legalize_concat(node: Node, graph: Graph) -> Legalized | None:
    """Operands with another scale or zero point than the result's are requantised first."""
    result = graph.types[node.outputs[0]]
    if result.quant is None or not dtypes.is_integer(result.dtype):
        return None
    differing = [name for name in node.inputs if graph.types[name].quant not in (None, result.quant)]
    if not differing:
        return None
    rewrite = Rewrite(node, graph)
    rounding = str(node.attr("rounding"))
    operands = [rescaled(rewrite, name, result, rounding) if name in differing else name for name in node.inputs]
    rewrite.emit("concat", operands, node.outputs[0], node.attrs)
    return rewrite.legalized()


def _alias_concat(
    attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]
) -> Alias | None:
    """The parts lie one after the other when nothing but ones stands before the axis."""
    shape = out_types[0].shape
    axis = attrs["axis"] % len(shape)
    if prod(shape[:axis]) != 1:
        return None
    starts = [sum(t.size for t in types[:k]) for k in range(len(types))]
    return Alias(parts=tuple(starts))


def _cases_concat() -> Iterable[Case]:
    for shapes, axis in (
        (((2, 3), (2, 5)), 1),
        (((2, 3), (1, 3), (4, 3)), 0),
        (((1, 2, 2, 3), (1, 2, 2, 1)), -1),
        (((3,), (1,)), -1),
        (((2, 3),), 0),
    ):
        yield Case({"axis": axis}, tuple(TensorType(s, "int8") for s in shapes))
    yield Case({"axis": 0}, (TensorType((2, 2), "float32"), TensorType((1, 2), "float32")))


# ---------------------------------------------------------------- gather


def _infer_gather(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, indices = types
    axis, rank, batch = attrs["axis"], len(data.shape), attrs.get("batch_dims", 0)
    if not -rank <= axis < rank or 0 in data.shape:
        raise ModelError(f"gather along axis {axis} of shape {data.shape}")
    if indices.dtype not in ("int32", "int64"):
        raise ModelError(f"gather with {indices.dtype} indices", hint="indices are int32 or int64")
    axis %= rank
    if not 0 <= batch <= min(axis, len(indices.shape)) or data.shape[:batch] != indices.shape[:batch]:
        raise ModelError(
            f"gather of shape {data.shape} at indices of shape {indices.shape}, {batch} axes of them batches"
        )
    found = (*indices.shape[batch:], *((attrs["span"],) if attrs.get("span", 1) > 1 else ()))
    return (TensorType((*data.shape[:axis], *found, *data.shape[axis + 1 :]), data.dtype),)


def _spans(indices: Array, span: int) -> Array:
    """Places from indices of runs of so many neighbours."""
    if span == 1:
        return indices
    near = np.clip(indices.astype(np.int64), -(1 << 32), 1 << 32)
    return near[..., None] * span + np.arange(span)


def _axes_gather(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    """What comes of an index takes the place of the axis that it is along."""
    data, indices = (len(kind.shape) for kind in types)
    if attrs.get("batch_dims", 0) or attrs.get("span", 1) > 1:
        return ()
    axis = attrs["axis"] % data
    others = (None if k == axis else k if k < axis else k + indices - 1 for k in range(data))
    return tuple(others), tuple(range(axis, axis + indices))


def _reference_gather(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, indices = arrays
    axis, batch = attrs["axis"] % data.ndim, attrs.get("batch_dims", 0)
    extent, indices = data.shape[axis], _spans(indices, attrs.get("span", 1))
    places = np.clip(np.where(indices < 0, indices + extent, indices), 0, extent - 1)
    if not batch:
        return (np.take(data, places, axis=axis),)
    groups = prod(data.shape[:batch])
    pairs = zip(data.reshape(groups, *data.shape[batch:]), places.reshape(groups, *places.shape[batch:]), strict=True)
    found = np.stack([np.take(part, at, axis=axis - batch) for part, at in pairs])
    return (found.reshape(*data.shape[:batch], *found.shape[1:]),)


def _compute_gather(call: OpCall) -> te.Tensor:
    data, indices = call.present
    shape, batch = data.type.shape, call.attrs.get("batch_dims", 0)
    axis = call.attrs["axis"] % len(shape)
    groups, outer = prod(shape[:batch]), prod(shape[batch:axis])
    extent, inner, count = shape[axis], prod(shape[axis + 1 :]), prod(indices.type.shape[batch:])
    x, places, span = (
        data.tensor((groups, outer, extent, inner)),
        indices.tensor((groups, count)),
        call.attrs.get("span", 1),
    )

    def element(g: Expr, n: Expr, i: Expr, c: Expr) -> Expr:
        place = places[g, i]
        if span > 1:  # indices far outside would overflow: beyond the ends all runs read the same element
            runs = extent // span + 1
            place = ir.clamp(places[g, i // span], -runs, runs) * span + i % span
        wrapped = ir.select(place < 0, ir.clamp(place, -extent, -1) + extent, ir.minimum(place, extent - 1))
        return x[g, n, ir.cast("int32", wrapped), c]

    return te.compute((groups, outer, count * span, inner), element, "gathered", ("g", "n", "i", "c"))


def _cases_gather() -> Iterable[Case]:
    for dtype, shape, axis, places, batch in (
        ("float32", (5, 3), 0, [[0, 4], [-1, -5]], 0),
        ("int8", (2, 4, 3), 1, [3, 0, 3], 0),
        ("int8", (2, 4), -1, 2, 0),
        ("float32", (3, 2), 0, [7, -9, 1], 0),
        ("int8", (2, 4, 3), 1, [[3, 0], [1, -1]], 1),
        ("float32", (2, 2, 3, 2), 2, [[0, 1, 2], [2, 2, 0]], 1),
    ):
        indices = np.array(places, np.int64 if dtype == "int8" else np.int32)
        types = (TensorType(shape, dtype), TensorType(indices.shape, indices.dtype.name))
        yield Case({"axis": axis, "batch_dims": batch}, types, arrays=(None, indices), name=f"{dtype} {places}")
    kinds = TensorType((1, 7, 2), "int8"), TensorType((), "int32")
    yield Case({"axis": 1, "span": 3}, kinds, arrays=(None, np.array(2, np.int32)), name="span")


CONCAT = OpDef(
    "concat",
    infer=_infer_concat,
    reference=_reference_concat,
    compute=_compute_concat,
    alias=_alias_concat,
    cases=_cases_concat,
    attrs={"axis": one_axis(), "rounding": ROUNDING},
    axes=lambda attrs, types: tuple(kept(len(kind.shape), (attrs["axis"],)) for kind in types),
    legalize=_legalize_concat,
)
GATHER = OpDef(
    "gather",
    infer=_infer_gather,
    reference=_reference_gather,
    compute=_compute_gather,
    cases=_cases_gather,
    constants={1: BOUNDED},
    attrs={
        "axis": one_axis("of the data", 0),
        "batch_dims": integer("leading axes that both share", 0, least=0),
        "span": integer("neighbours that an index stands for, in runs of so many", 1, least=1, most=(1 << 28) - 1),
    },
    axes=_axes_gather,
    moves=True,
    operand_names=("data", "indices"),
    edges="Negative places count from the end; beyond the ends the nearest element is read",
)
"""``gather``: data at indices along an axis, each of the leading ``batch_dims`` axes at indices of its own.

Negative indices count from the end; beyond the ends the nearest element is read.
"""
