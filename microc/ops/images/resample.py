# SPDX-License-Identifier: Apache-2.0
"""Operator ``resample``: every element of the result is a weighted sum of a few elements along some axes, or one of
these elements.

The elements and weights are known at compile time, so any rule of resizing (nearest, linear, cubic; corners or centres
aligned) becomes two tables for each axis: indices (out, taps), and weights of the same shape. With one tap there are no
weights. Integers are multiplied by integer weights; the sum is scaled by 2**-``shift`` and rounded half away from zero.

Quantised bytes with float weights are legalised to integer weights if the scale is unchanged. The weights then have 14
bits (11 and 12 along two axes). For ONNX, ties are rounded to even distances from the zero point. The result is exact
for weights that are multiples of these powers of two, as when scaling by two. Other weights have an error of at most
2**-12, so a result of n taps has an error of at most n 2**-5 steps of its data before it is rounded.

Source: TFLite ``reference/resize_bilinear.h`` (ResizeBilinearInteger), ``resize_nearest_neighbor.h``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from microc import te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.numerics import INT32_MAX, INT32_MIN
from microc.ops.arithmetic import Rewrite, is_quantised, legalize_in_float, per_tensor_quant
from microc.ops.attributes import ROUNDING, Rounding, integer, some_axes
from microc.ops.constants import CheckedNode, Constants, NumberUse, OperandBounds
from microc.ops.registry import Case, Legalized, OpCall, OpDef, map_along_axes
from microc.tir import ir
from microc.tir.ir import Expr
from microc.tir.names import ACC, TWO_ROUNDINGS

INDEX_DTYPES = ("int16", "int32")
_MOST_BITS = 14
"""Largest number of fraction bits of a weight, which may exceed one."""
_SUM_BITS = 23
"""Largest number of fraction bits of the weights of all axes together: products of bytes and these weights are summed
in int32."""


def _split_index_and_weight_tables(
    attrs: Mapping[str, Any], operands: Sequence[Any]
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return ``(indices, weights)``: for each axis an operand with tap indices, and an operand with tap weights.

    ``weights`` is empty if each element has one tap."""
    count = len(attrs["axes"])
    return operands[1 : 1 + count], operands[1 + count :]


def _infer_resample_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, axes = types[0], attrs["axes"]
    indices, weights = _split_index_and_weight_tables(attrs, types)
    if not axes or sorted(set(axes)) != list(axes) or not 0 <= axes[0] <= axes[-1] < len(data.shape) or 0 in data.shape:
        raise ModelError(
            f"resample: axes must be axes of data that are not empty, in ascending order; got axes={tuple(axes)} for "
            f"{data.shape}"
        )
    if len(indices) != len(axes) or len(weights) not in (0, len(axes)):
        raise ModelError(
            f"resample: wrong number of tables; got {len(indices)} of indices and {len(weights)} of weights, "
            f"expected {len(axes)} of each, or no weights"
        )
    if any(tensor_type.dtype not in INDEX_DTYPES or len(tensor_type.shape) != 2 for tensor_type in indices):
        raise ModelError(
            f"resample: index tables have wrong types; got {', '.join(f'{t.dtype} {t.shape}' for t in indices)}, "
            f"expected {' or '.join(INDEX_DTYPES)} with two axes (rows, taps)"
        )
    if any(tensor_type.shape != index.shape for tensor_type, index in zip(weights, indices, strict=False)):
        raise ModelError(
            f"resample: weights need the shapes of the index tables; got {', '.join(str(t.shape) for t in weights)}, "
            f"expected {', '.join(str(t.shape) for t in indices)}"
        )
    if not weights and any(tensor_type.shape[1] != 1 for tensor_type in indices):
        raise ModelError(
            "resample: index tables without weights must have one tap per row; "
            f"got shapes {', '.join(str(t.shape) for t in indices)}, expected (rows, 1) each"
        )
    shape = list(data.shape)
    for axis, tensor_type in zip(axes, indices, strict=True):
        shape[axis] = tensor_type.shape[0]
    return (TensorType(tuple(shape), data.dtype),)


def _evaluate_resample_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    """Interpolate along one axis after the other. Integers are summed in int64."""
    data, (indices, weights) = arrays[0], _split_index_and_weight_tables(attrs, arrays)
    if not weights:
        for axis, index in zip(attrs["axes"], indices, strict=True):
            data = np.take(data, index[:, 0], axis=axis)
        return (data,)
    if data.dtype.kind == "f":
        return (_sum_weighted_taps_in_floats(attrs["axes"], data, indices, weights),)
    total = data.astype(np.int64)
    for axis, index, weight in zip(attrs["axes"], indices, weights, strict=True):
        factors = weight.astype(total.dtype).reshape(*weight.shape, *(1,) * (total.ndim - axis - 1))
        total = (np.take(total, index, axis=axis) * factors).sum(axis=axis + 1)
    half, shift, even = 1 << attrs["shift"] >> 1, attrs["shift"], attrs.get("even_from")
    if even is not None:
        return ((total + half - 1 + ((total >> shift) + even & 1) >> shift).astype(data.dtype),)
    return ((np.sign(total) * (abs(total) + half >> shift)).astype(data.dtype),)


def _sum_weighted_taps_in_floats(
    axes: Sequence[int], data: Array, indices: Sequence[Array], weights: Sequence[Array]
) -> Array:
    """Sum the weighted taps one by one in the dtype of the data, in the order of the generated loops.

    The order matters, because the last bit decides whether a later quantisation meets a tie."""
    total: Array | None = None
    for taps in np.ndindex(*(weight.shape[1] for weight in weights)):
        factor, part = np.ones((), data.dtype), data
        for axis, index, weight, tap in zip(axes, indices, weights, taps, strict=True):
            factor = factor * weight[:, tap].reshape(-1, *(1,) * (data.ndim - axis - 1))
            part = np.take(part, index[:, tap], axis=axis)
        total = part * factor if total is None else total + part * factor
    assert total is not None
    return total


def _compute_resample(call: OpCall) -> te.Tensor:
    operands = call.present
    x, axes = operands[0].tensor(), call.attrs["axes"]
    indices, weights = (
        [table.tensor() for table in tables] for tables in _split_index_and_weight_tables(call.attrs, operands)
    )
    shape, dtype = call.out_types[0].shape, x.dtype

    def build_source_index(index: Sequence[Expr], taps: Sequence[Expr]) -> tuple[Expr, ...]:
        found = list(index)
        for axis, table, tap in zip(axes, indices, taps, strict=True):
            found[axis] = ir.cast("int32", table[index[axis], tap])
        return tuple(found)

    if not weights:
        return te.compute(
            shape, lambda *index: x[build_source_index(index, [ir.const(0, "int32")] * len(axes))], "picked"
        )
    taps = [te.reduce_axis(table.shape[1], f"k{k}") for k, table in enumerate(indices)]
    wide = dtype if dtypes.is_float(dtype) else "int32" if dtypes.nbytes(dtype) == 1 else "int64"

    def build_weighted_sum(*index: Expr) -> Expr:
        parts = [
            ir.cast(wide, table[index[axis], tap.var]) for axis, table, tap in zip(axes, weights, taps, strict=True)
        ]
        factor = reduce(lambda a, b: a * b, parts)
        return te.sum_reduce(ir.cast(wide, x[build_source_index(index, [tap.var for tap in taps])]) * factor, *taps)

    notes = ((TWO_ROUNDINGS, 1),) if dtypes.is_float(dtype) and call.attrs.get("rounding") == Rounding.EVEN else ()
    acc = te.compute(shape, build_weighted_sum, ACC, notes=notes)
    if dtypes.is_float(dtype):
        return acc
    half, shift, even = 1 << call.attrs["shift"] >> 1, call.attrs["shift"], call.attrs.get("even_from")

    def build_rounded_sum(*index: Expr) -> Expr:
        total = acc[index]
        if even is not None:
            odd = ((total >> shift) + even % 2) & 1
            return ir.cast(dtype, (total + (half - 1) + odd) >> shift)
        nearest = total + ir.select(total > 0, ir.const(half, wide), -half)
        return ir.cast(dtype, ir.binary("truncdiv", nearest, 1 << shift))

    return te.compute(shape, build_rounded_sum, "rounded")


def _legalize_resample(node: Node, graph: Graph) -> Legalized | None:
    """Rewrite quantised data to integer weights if scale and zero point stay the same, else to float operators."""
    axes = node.attr("axes")
    weights = [graph.consts.get(name) for name in node.inputs[1 + len(axes) :]]
    if not is_quantised(node, graph) or not weights or any(w is None or w.dtype.kind != "f" for w in weights):
        return None
    (source, zero), result = (
        per_tensor_quant(node, graph, node.inputs[0]),
        per_tensor_quant(node, graph, node.outputs[0]),
    )
    bytes_alike = (source, zero) == result and dtypes.nbytes(graph.types[node.inputs[0]].dtype) == 1
    if node.attr("rounding") == Rounding.EVEN or not bytes_alike:
        return legalize_in_float(node, graph)
    bits = [min(_MOST_BITS, (_SUM_BITS + k) // len(axes)) for k in range(len(axes))]
    rewrite = Rewrite(node, graph)
    levels = [
        rewrite.add_constant("weights", round_weights(w, b))
        for w, b in zip(weights, bits, strict=True)
        if w is not None
    ]
    attrs = {**node.attrs, "shift": sum(bits), "even_from": zero}
    rewrite.emit("resample", (*node.inputs[: 1 + len(axes)], *levels), node.outputs, attrs)
    return rewrite.legalized()


def round_weights(weights: Array, fraction_bits: int) -> Array:
    """Round weights (out, taps) to int16 multiples of 2**-``fraction_bits``.

    The largest weight of each row is adjusted so that the sum of the row is unchanged. If the sum is one, zero points
    cancel."""
    scaled = weights.astype(np.float64) * (1 << fraction_bits)
    levels = np.rint(scaled)
    rows = np.arange(len(weights))
    levels[rows, np.abs(scaled).argmax(axis=1)] += np.rint(scaled.sum(axis=1)) - levels.sum(axis=1)
    return levels.astype(np.int16)


def _resample_operand_bounds(checked_node: CheckedNode) -> Constants:
    """Return bounds of the index operands (the extents of their axes). Integer weights must be constant, because they
    bound the sums."""
    axes, (data, *_) = checked_node.attrs["axes"], checked_node.types
    found = {1 + k: OperandBounds(NumberUse.INDEX, 0, data.shape[axis] - 1) for k, axis in enumerate(axes)}
    if not dtypes.is_float(data.dtype) and not _has_quantised_float_weights(checked_node):
        weights = range(1 + len(axes), len(checked_node.types))
        found |= {position: OperandBounds(NumberUse.FACTOR, INT32_MIN, INT32_MAX) for position in weights}
    return found


def _has_quantised_float_weights(checked_node: CheckedNode) -> bool:
    """Test whether the node has quantised data and float weights, which its legalisation converts to integers."""
    return checked_node.quantised and dtypes.is_float(checked_node.types[-1].dtype)


def _weighted_sum_overflow_message(checked_node: CheckedNode) -> str:
    """Return an error message if sums of integers, with the half unit for rounding, can overflow their dtype; else an
    empty string."""
    attrs, data = checked_node.attrs, checked_node.types[0]
    weights = [checked_node.data[k] for k in range(1 + len(attrs["axes"]), len(checked_node.types))]
    if not weights or dtypes.is_float(data.dtype) or _has_quantised_float_weights(checked_node):
        return ""
    if data.dtype == "bool":
        return "the data must be numbers; got bool"
    most = INT32_MAX if dtypes.nbytes(data.dtype) == 1 else 1 << 62
    bits = 30 if most == INT32_MAX else 61
    if attrs["shift"] > bits:
        return f"shift is out of range; got {attrs['shift']}, expected at most {bits}"
    low, high = dtypes.int_range(data.dtype)
    largest, factor = float(max(-low, high)), 1.0
    for array in weights:
        rows = np.abs(np.asarray(array, np.float64))
        largest, factor = largest * rows.sum(axis=1).max(initial=0), factor * rows.max(initial=0)
    largest += 2.0 ** attrs["shift"]
    if max(largest, factor) > most:
        return f"weighted sums are too large; got up to {max(largest, factor):.0f}, expected at most {most}"
    even = attrs.get("even_from")
    return (
        ""
        if even is None or low <= even <= high
        else f"even_from does not fit {data.dtype}; got {even}, expected {low}..{high}"
    )


def _make_resample_test_cases() -> Iterable[Case]:
    rows, columns = np.array([[0], [0], [2], [1]], np.int16), np.array([[3], [1]], np.int32)
    for dtype in ("float32", "int8", "bool"):
        operand_types = (TensorType((2, 3, 4, 3), dtype), TensorType((4, 1), "int16"), TensorType((2, 1), "int32"))
        yield Case({"axes": (1, 2), "shift": 0}, operand_types, (1, 2), (None, rows, columns), name=f"picked {dtype}")
    pairs = np.array([[0, 1], [1, 2], [2, 2]], np.int16)
    for dtype, weight, one in (("float32", "float32", 1.0), ("int8", "int16", 1024), ("int16", "int16", 1024)):
        share = np.array([[0.25, 0.75], [0.5, 0.5], [1.0, 0.0]]) * one
        tables = (pairs, share.astype(weight))
        for shape, axes in (((1, 3, 3, 2), (1, 2)), ((3,), (0,)), ((2, 3), (1,))):
            types: tuple[TensorType, ...] = (
                TensorType(shape, dtype),
                *(TensorType((3, 2), "int16"),) * len(axes),
                *(TensorType((3, 2), weight),) * len(axes),
            )
            arrays = (None, *tables[:1] * len(axes), *tables[1:] * len(axes))
            consts = tuple(range(1, len(types)))
            attrs: dict[str, Attr] = {"axes": axes, "shift": 10 * len(axes)}
            yield Case(attrs, types, consts, arrays, tolerance=2e-6, name=f"{dtype} {shape}")
            if dtype == "int8":
                yield Case({**attrs, "even_from": -3}, types, consts, arrays, name=f"{dtype} {shape} even")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "resample",
        infer=_infer_resample_types,
        reference=_evaluate_resample_reference,
        compute=_compute_resample,
        cases=_make_resample_test_cases,
        attrs={
            "axes": some_axes("along which is resampled, one table each", in_order=True),
            "shift": integer("of integers: bits of the weights' sum", 0, least=0),
            "even_from": integer("of integers: halves go to even distances from it, else away from zero", None),
            "rounding": ROUNDING,
        },
        tables=True,
        legalize=_legalize_resample,
        axes=map_along_axes,
        constants=_resample_operand_bounds,
        sound=(_weighted_sum_overflow_message,),
        operand_names=("data",),
    ),
)
