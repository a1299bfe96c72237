# SPDX-License-Identifier: Apache-2.0
"""``cumsum`` and ``cumprod``: running sums and products along an axis, from either end, with or without the element
itself.

The quantised form of ``cumsum`` is ``qcumsum``. It adds scaled integers as TFLite does (sources: TFLite
``reference/cumsum.h``, TFLite Micro ``cumsum.cc``): the zero point is subtracted from every element, the difference is
shifted left by 20 bits, halved, and added; the sum is scaled to the output. As in TFLite the sum starts from the term
of an element of zero, and wraps around. With rounding ``single`` the sum starts from zero, nothing is shifted, and the
sum is scaled once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.numerics import INT32_MAX, INT32_MIN, NUMPY, quantize_multiplier
from microc.ops.arithmetic import (
    NUMBERS,
    Rewrite,
    build_wrapping_binary,
    computation_dtype,
    is_quantised,
    legalize_in_float,
    per_tensor_quant,
)
from microc.ops.attributes import (
    MULTIPLIER_ROUNDING,
    ROUNDING,
    SCALED,
    Attributes,
    Multiplier,
    Rounding,
    default_attributes,
    flag,
    integer,
    one_axis,
)
from microc.ops.constants import make_zero_point_range_check, stored_range_error_message
from microc.ops.gradients.rules import build_cumsum_gradient
from microc.ops.quantised.scaling import FixedPointScale, ScaledResult, scale_double_rounding, scale_single_rounding
from microc.ops.registry import Case, Legalized, OpCall, OpDef, map_along_axis
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

_SHIFT = 20
_ATTRS: Attributes = {
    "axis": one_axis("axis along which the operator computes", 0),
    "exclusive": flag("True if the result at an element leaves the element out"),
    "reverse": flag("True if the computation begins at the end of the axis"),
    "rounding": ROUNDING,
}
_DEFAULTS = default_attributes(_ATTRS)


def _infer_cumsum_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    rank = len(types[0].shape)
    if not -rank <= attrs["axis"] < rank or types[0].dtype not in NUMBERS:
        raise ModelError(
            f"cumsum: the axis is outside of the data, or the data are not numeric; got axis={attrs['axis']} of "
            f"{types[0].dtype} {types[0].shape}"
        )
    return (TensorType(types[0].shape, types[0].dtype),)


def _compute_running_sums(attrs: Mapping[str, Any], x: Array) -> Array:
    """Return the running sums of ``x`` (float64 or int64) that the attributes ``axis``, ``exclusive`` and ``reverse``
    describe."""
    axis = attrs["axis"]
    ordered = np.flip(x, axis) if attrs["reverse"] else x
    total = np.cumsum(ordered, axis=axis)
    if attrs["exclusive"]:  # shifted by one element; subtracting the element itself would give NaN for infinity
        total = np.concatenate([np.zeros_like(total.take([0], axis)), total], axis).take(range(x.shape[axis]), axis)
    return np.flip(total, axis) if attrs["reverse"] else total


def _evaluate_cumsum_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = arrays[0]
    return (_compute_running_sums(attrs, x.astype(np.float64 if x.dtype.kind == "f" else np.int64)).astype(x.dtype),)


def _build_scan(
    call: OpCall,
    initial_value: ir.Const,
    build_term: Callable[[Expr], Expr],
    build_result: Callable[[Expr], Expr],
    combiner: str = "add",
) -> te.Tensor:
    """Build one pass along the axis that accumulates elements in a scalar.

    The scalar starts from ``initial_value``. For each element, ``build_term`` of the element is added to it (or
    multiplied, by ``combiner``), and ``build_result`` of the scalar is stored."""
    data, attrs = call.data, call.attrs
    shape = data.type.shape
    axis = attrs["axis"] % len(shape)
    sizes = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))

    def build_scan_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x,), (out,) = operands, results
        if 0 in sizes:
            return ir.seq()
        n, k, i, zero = Var("n"), Var("k"), Var("i"), ir.const(0, "int32")
        total, value = Buffer("total", (1,), initial_value.dtype, "register"), Var("value", initial_value.dtype)
        place = sizes[1] - 1 - k if attrs["reverse"] else k
        add = ir.Store(total, (zero,), build_wrapping_binary(combiner, total[0], value))
        store = ir.Store(out, (n, place, i), build_result(total[0]))
        steps = ir.seq(store, add) if attrs["exclusive"] else ir.seq(add, store)
        step = ir.Let(value, build_term(x[n, place, i]), steps)
        body = ir.Alloc(
            total, ir.seq(ir.Store(total, (zero,), initial_value), ir.For(k, ir.const(sizes[1], "int32"), step))
        )
        return ir.loops([(n, sizes[0]), (i, sizes[2])], body)

    results = (("out", sizes, call.out_types[0].dtype),)
    return te.extern("scan", (data.tensor(sizes),), results, build_scan_loops)[0]


def _compute_cumsum(call: OpCall) -> te.Tensor:
    dtype = call.out_types[0].dtype
    wide = computation_dtype(dtype)
    return _build_scan(call, ir.const(0, wide), lambda x: ir.cast(wide, x), lambda total: ir.cast(dtype, total))


def _make_cumsum_test_cases() -> Iterable[Case]:
    for shape, axis in (((5,), 0), ((2, 4, 3), 1), ((2, 3), -1), ((1, 1), 0)):
        for exclusive in (False, True):
            for reverse in (False, True):
                attrs = {**_DEFAULTS, "axis": axis, "exclusive": exclusive, "reverse": reverse}
                for dtype in ("float32", "int32", "int64"):
                    yield Case(attrs, (TensorType(shape, dtype),), tolerance=1e-5, name=f"{dtype} {shape}")


def _evaluate_cumprod_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, axis = arrays[0], attrs["axis"]
    wide = x.astype(np.float64 if x.dtype.kind == "f" else np.int64)
    ordered = np.flip(wide, axis) if attrs["reverse"] else wide
    if attrs["exclusive"]:
        ordered = np.roll(ordered, 1, axis)
        ordered[tuple(0 if k == axis % x.ndim else slice(None) for k in range(x.ndim))] = 1
    total = np.cumprod(ordered, axis=axis)
    return ((np.flip(total, axis) if attrs["reverse"] else total).astype(x.dtype),)


def _compute_cumprod(call: OpCall) -> te.Tensor:
    dtype = call.out_types[0].dtype
    wide = computation_dtype(dtype)
    return _build_scan(call, ir.const(1, wide), lambda x: ir.cast(wide, x), lambda total: ir.cast(dtype, total), "mul")


# ---------------------------------------------------------------- quantised


def _legalize_cumsum(node: Node, graph: Graph) -> Legalized | None:
    if not is_quantised(node, graph):
        return None
    result = graph.types[node.outputs[0]]
    if node.attr("rounding") == Rounding.EVEN or dtypes.nbytes(result.dtype) != 1:
        return legalize_in_float(node, graph)
    (scale, zero), (scale_out, zero_out) = (per_tensor_quant(node, graph, n) for n in (*node.inputs, *node.outputs))
    once = node.attr("rounding") == Rounding.SINGLE
    factor = float(np.float32(scale)) * (1.0 if once else 2.0 / (1 << _SHIFT))
    attrs: dict[str, Attr] = {name: node.attr(name) for name in ("axis", "exclusive", "reverse")}
    attrs |= {"input_zero_point": zero, "zero_point": zero_out}
    attrs["multiplier"], attrs["shift"] = quantize_multiplier(factor / float(np.float32(scale_out)))
    attrs["rounding"] = Rounding(str(node.attr("rounding"))).multiplier
    rewrite = Rewrite(node, graph)
    rewrite.emit("qcumsum", node.inputs, node.outputs, attrs)
    return rewrite.legalized()


def _infer_qcumsum_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    tensor_type = types[0]
    if dtypes.nbytes(tensor_type.dtype) != 1 or tensor_type.dtype == "bool":
        raise ModelError(
            f"qcumsum: the data have an unsupported dtype; got {tensor_type.dtype}, expected int8 or uint8"
        )
    if not -len(tensor_type.shape) <= attrs["axis"] < len(tensor_type.shape):
        raise ModelError(f"qcumsum: the axis is outside of the data; got axis={attrs['axis']} of {tensor_type.shape}")
    return (TensorType(tensor_type.shape, tensor_type.dtype),)


def _evaluate_qcumsum_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    start, left = _initial_sum_and_left_shift(attrs)
    x = (arrays[0].astype(np.int64) - attrs["input_zero_point"]) << left
    total = (_compute_running_sums(attrs, x) + start).astype(np.int32).astype(np.int64)
    scaled = Multiplier(attrs["rounding"]).multiply_function(total, attrs["multiplier"], attrs["shift"], NUMPY)
    low, high = dtypes.int_range(arrays[0].dtype.name)
    return (np.clip(scaled + attrs["zero_point"], low, high).astype(arrays[0].dtype),)


def _initial_sum_and_left_shift(attrs: Mapping[str, Any]) -> tuple[int, int]:
    """Return the initial sum of ``qcumsum`` and the left shift of its elements. Both depend on the attribute
    ``rounding``."""
    if attrs["rounding"] == Multiplier.SINGLE:
        return 0, 0
    return -attrs["input_zero_point"] << _SHIFT - 1, _SHIFT - 1


def _compute_qcumsum(call: OpCall) -> te.Tensor:
    attrs, dtype = call.attrs, call.out_types[0].dtype
    out = ScaledResult(attrs["zero_point"], *dtypes.int_range(dtype), dtype)
    scale = FixedPointScale.from_mantissa_and_shift(attrs["multiplier"], attrs["shift"])
    start, left = _initial_sum_and_left_shift(attrs)
    bound = min(call.out_types[0].size << 8, INT32_MAX)

    def scale_total(total: Expr) -> Expr:
        if attrs["rounding"] == Multiplier.SINGLE:
            return scale_single_rounding(ir.cast("int32", total), bound, scale, out)
        return scale_double_rounding(ir.cast("int32", total), INT32_MIN, INT32_MAX, scale, out)

    return _build_scan(
        call,
        ir.const(start % (1 << 32), "uint32"),
        lambda x: ir.cast("uint32", (ir.cast("int32", x) - attrs["input_zero_point"]) << left),
        scale_total,
    )


def _make_qcumsum_test_cases() -> Iterable[Case]:
    for shape, axis, exclusive in (((6,), 0, False), ((2, 40, 2), 1, True)):
        attrs = {"axis": axis, "exclusive": exclusive, "reverse": exclusive}
        scaling = {"input_zero_point": 3, "zero_point": -7, "multiplier": 1500000000, "shift": -19}
        yield Case({**attrs, **scaling}, (TensorType(shape, "int8"),))
        once: dict[str, Attr] = {**attrs, **scaling, "shift": -1, "rounding": Multiplier.SINGLE}
        yield Case(once, (TensorType(shape, "int8"),), name=f"{shape} once")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "cumsum",
        gradient=build_cumsum_gradient,
        infer=_infer_cumsum_types,
        reference=_evaluate_cumsum_reference,
        compute=_compute_cumsum,
        cases=_make_cumsum_test_cases,
        attrs=_ATTRS,
        axes=map_along_axis,
        legalize=_legalize_cumsum,
        operand_names=("data",),
    ),
    OpDef(
        "cumprod",
        infer=_infer_cumsum_types,
        reference=_evaluate_cumprod_reference,
        compute=_compute_cumprod,
        cases=lambda: (case for case in _make_cumsum_test_cases() if not case.name.startswith("int")),
        attrs=_ATTRS,
        axes=map_along_axis,
        operand_names=("data",),
    ),
    OpDef(
        "qcumsum",
        attrs={
            "axis": one_axis(),
            "exclusive": _ATTRS["exclusive"],
            "reverse": _ATTRS["reverse"],
            **SCALED,
            "zero_point": integer("of the result"),
            "input_zero_point": integer("of the data"),
            "rounding": MULTIPLIER_ROUNDING,
        },
        infer=_infer_qcumsum_types,
        reference=_evaluate_qcumsum_reference,
        axes=map_along_axis,
        compute=_compute_qcumsum,
        cases=_make_qcumsum_test_cases,
        sound=(stored_range_error_message, make_zero_point_range_check("input_zero_point", 0)),
        operand_names=("data",),
    ),
)
