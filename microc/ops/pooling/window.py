# SPDX-License-Identifier: Apache-2.0
"""Reductions of windows over any number of spatial axes: ``window_sum``, ``window_max`` and ``window_argmax`` of data
(N, C, spatial ...).

``window_argmax`` also returns the index of each largest element. The attribute ``padding`` lists the padding before
each spatial axis, then the padding after each; padding elements do not contribute to the result. For pools with two
spatial axes there are ``avg_pool2d`` and ``max_pool2d``. Source: ONNX AveragePool, LpPool, MaxPool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Attr, TensorType
from microc.ops.arithmetic import FLOAT, NUMBERS, build_replaces_best_condition, computation_dtype
from microc.ops.attributes import SPATIAL, Attributes, flag, integers
from microc.ops.gradients.call import GradientRule
from microc.ops.gradients.rules import build_window_max_gradient, build_window_sum_gradient
from microc.ops.registry import Case, OpCall, OpDef
from microc.ops.windows import Windows, build_tap_indices, gather_taps, window_axes
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var
from microc.tir.names import ACC

_WINDOW: Attributes = {"kernel": integers("of each spatial axis", least=1), **SPATIAL}


def _infer_windows(attrs: Mapping[str, Any], tensor_type: TensorType) -> Windows:
    """Return the windows along the spatial axes; raise ModelError if kernel, padding or dtype do not fit the data."""
    rank = len(tensor_type.shape) - 2
    if (
        rank < 1
        or len(attrs["kernel"]) != rank
        or len(attrs["padding"]) != 2 * rank
        or tensor_type.dtype not in NUMBERS
    ):
        raise ModelError(
            f"window: kernel and padding disagree with the data; got {tensor_type.dtype} {tensor_type.shape}, "
            f"kernel={attrs['kernel']} and padding={attrs['padding']}, expected (N, C, spatial axes) of numbers, and "
            "one and two numbers for each spatial axis"
        )
    windows = _windows(attrs, tensor_type.shape)
    if min(axis.count for axis in windows) < 1 or min(attrs["padding"]) < 0:
        raise ModelError(
            f"window: padding={attrs['padding']} is negative or leaves no output; got windows of "
            f"{[axis.span for axis in windows]} (with dilation) on {tensor_type.shape}"
        )
    return windows


def _windows(attrs: Mapping[str, Any], shape: Sequence[int]) -> Windows:
    return window_axes(shape[2:], attrs["kernel"], attrs["strides"], attrs["padding"], attrs["dilation"])


def _result_shape(windows: Windows, shape: Sequence[int]) -> tuple[int, ...]:
    return (*shape[:2], *(axis.count for axis in windows))


def _infer_window_reduction_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    return (TensorType(_result_shape(_infer_windows(attrs, types[0]), types[0].shape), types[0].dtype),)


def _neutral_element(combiner: str, dtype: str) -> float:
    """Return the neutral element of the combiner ``add`` or ``maximum``, with which padding does not change the
    result."""
    if combiner == "add":
        return 0
    return float("-inf") if dtypes.is_float(dtype) else dtypes.int_range(dtype)[0]


def _evaluate_window_reduction_reference(
    combiner: str, attrs: Mapping[str, Any], arrays: Sequence[Any]
) -> tuple[Array, ...]:
    x = arrays[0]
    wide = np.float64 if x.dtype.kind == "f" else x.dtype if combiner != "add" else np.int64
    padding = _neutral_element(combiner, x.dtype.name)
    taps = np.stack([elements for _, elements in gather_taps(_windows(attrs, x.shape), x.astype(wide), padding, 2)])
    return ((taps.sum(0) if combiner == "add" else taps.max(0)).astype(x.dtype),)


def _compute_window_reduction(combiner: str, call: OpCall) -> te.Tensor:
    data, attrs = call.data, call.attrs
    x, tensor_type = data.tensor(), data.type
    wide = computation_dtype(tensor_type.dtype)
    if combiner == "add" and tensor_type.dtype in ("int32", "int64"):
        wide = f"u{tensor_type.dtype}"  # sums may overflow; C defines the result for unsigned integers only
    taps = [te.reduce_axis(extent, f"t{k}") for k, extent in enumerate(attrs["kernel"])]
    nothing = ir.const(_neutral_element(combiner, tensor_type.dtype), wide)
    windows = _windows(attrs, tensor_type.shape)

    def build_reduced_element(*index: Expr) -> Expr:
        indices, inside = build_tap_indices(windows, index[2:], [tap.var for tap in taps])
        value = ir.cast(wide, x[(*index[:2], *indices)])
        return te.Reduce(combiner, value if inside is None else ir.select(inside, value, nothing), tuple(taps), nothing)

    shape = call.out_types[0].shape
    acc = te.compute(shape, build_reduced_element, ACC)
    return (
        acc
        if wide == tensor_type.dtype
        else te.compute(shape, lambda *index: ir.cast(tensor_type.dtype, acc[index]), "narrowed")
    )


def _make_window_reduction_test_cases() -> Iterable[Case]:
    for shape, kernel, strides, padding, dilation in (
        ((1, 2, 6), (3,), (2,), (1, 0), (1,)),
        ((2, 1, 5, 4), (2, 3), (1, 1), (1, 0, 0, 1), (2, 1)),
        ((1, 2, 3, 4, 4), (2, 2, 2), (1, 2, 2), (0,) * 6, (1, 1, 1)),
    ):
        attrs: dict[str, Attr] = {"kernel": kernel, "strides": strides, "padding": padding, "dilation": dilation}
        for dtype in ("float32", "int8"):
            x = np.arange(prod(shape)).reshape(shape) % 13 - 4
            yield Case(attrs, (TensorType(shape, dtype),), arrays=(x.astype(dtype),), name=f"{dtype} {len(kernel)}")


# ---------------------------------------------------------------- largest element and its index


def _infer_window_argmax_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    windows = _infer_windows(attrs, types[0])
    if any(axis.has_empty_window for axis in windows):
        raise ModelError(
            f"window_argmax: a window holds padding only; got padding={attrs['padding']} for {types[0].shape}",
            hint="make every window hold one element at least",
        )
    shape = _result_shape(windows, types[0].shape)
    return (TensorType(shape, types[0].dtype), TensorType(shape, "int64"))


def _flat_index_strides(attrs: Mapping[str, Any], shape: Sequence[int]) -> list[int]:
    """Return the strides of flat indices along the spatial axes: row-major, or column-major if the attribute
    ``column_major`` is set."""
    order = range(len(shape)) if attrs["column_major"] else reversed(range(len(shape)))
    steps, step = [0] * len(shape), 1
    for axis in order:
        steps[axis], step = step, step * shape[axis]
    return steps


def _evaluate_window_argmax_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = arrays[0]
    spatial, size = x.shape[2:], prod(x.shape[2:])
    windows = _windows(attrs, x.shape)
    shape = _result_shape(windows, x.shape)
    steps = np.array(_flat_index_strides(attrs, spatial)).reshape(-1, *[1] * len(spatial))
    flat = (np.indices(spatial) * steps).sum(0)
    planes = np.arange(prod(x.shape[:2])).reshape(*x.shape[:2], *[1] * len(spatial)) * size
    value, place = np.zeros(shape, x.dtype), np.full(shape, -1, np.int64)
    taps = zip(gather_taps(windows, x, 0, 2), gather_taps(windows, flat + planes, -1, 2), strict=True)
    for (_, tap), (
        _,
        where,
    ) in taps:  # compared in the data's own dtype: float64 cannot distinguish all 64-bit integers
        larger = (tap > value) | (np.isnan(tap) & ~np.isnan(value))
        better = (where >= 0) & ((place < 0) | larger)
        value, place = np.where(better, tap, value), np.where(better, where, place)
    return value, place


def _compute_window_argmax(call: OpCall) -> tuple[te.Tensor, ...]:
    data, attrs = call.data, call.attrs
    tensor_type, shape = data.type, call.out_types[0].shape
    extents, steps, size = (
        tensor_type.shape[2:],
        _flat_index_strides(attrs, tensor_type.shape[2:]),
        prod(tensor_type.shape[2:]),
    )

    def build_window_argmax_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x,), (values, places) = operands, results
        index = tuple(Var(f"i{k}") for k in range(len(shape)))
        taps = [Var(f"t{k}") for k in range(len(extents))]
        where, inside = build_tap_indices(_windows(attrs, tensor_type.shape), index[2:], taps)
        flat: Expr = (index[0] * shape[1] + index[1]) * size
        for place, step in zip(where, steps, strict=True):
            flat = flat + place * step
        value = x[(*index[:2], *where)]
        new = ir.Bin("or", places[index] < 0, build_replaces_best_condition("gt", value, values[index]))
        better: Expr = new if inside is None else ir.Bin("and", inside, new)
        keep = ir.seq(ir.Store(values, index, value), ir.Store(places, index, ir.cast("int64", flat)))
        search = ir.loops(zip(taps, attrs["kernel"], strict=True), ir.If(better, keep))
        start = ir.seq(
            ir.Store(values, index, ir.const(0, tensor_type.dtype)), ir.Store(places, index, ir.const(-1, "int64"))
        )
        return ir.loops(zip(index, shape, strict=True), ir.seq(start, search))

    return te.extern(
        "search",
        (data.tensor(),),
        (("values", shape, tensor_type.dtype), ("places", shape, "int64")),
        build_window_argmax_loops,
    )


def _make_window_argmax_test_cases() -> Iterable[Case]:
    for case in _make_window_reduction_test_cases():
        for column_major in (False, True):
            attrs = {**case.attrs, "column_major": column_major}
            yield Case(attrs, case.types, arrays=case.arrays, name=f"{case.name} {column_major}")


def _define_window_reduction(op_name: str, combiner: str, gradient: GradientRule) -> OpDef:
    """Return the definition of the operator ``op_name``, which reduces each window by ``combiner``."""
    return OpDef(
        op_name,
        infer=_infer_window_reduction_types,
        reference=lambda attrs, arrays: _evaluate_window_reduction_reference(combiner, attrs, arrays),
        compute=lambda call: _compute_window_reduction(combiner, call),
        cases=_make_window_reduction_test_cases,
        gradient=gradient,
        attrs=_WINDOW,
        operand_names=("data",),
    )


WINDOW_OPERATORS: tuple[OpDef, ...] = (
    _define_window_reduction("window_sum", "add", build_window_sum_gradient),
    _define_window_reduction("window_max", "maximum", build_window_max_gradient),
    OpDef(
        "window_argmax",
        infer=_infer_window_argmax_types,
        reference=_evaluate_window_argmax_reference,
        compute=_compute_window_argmax,
        cases=_make_window_argmax_test_cases,
        attrs={**_WINDOW, "column_major": flag("True if indices count along columns first")},
        operand_names=("data",),
    ),
)


# ---- Operator ``max_pool2d_gradient``: the gradient of ``max_pool2d`` by its data, from the data and the gradient
# of the result.
#
# Every window adds its gradient to its first largest element, in row-major order, as PyTorch does. One loop
# over the windows searches and adds, so that no indices are stored between the passes. NaN counts as the
# largest element.


_ATTRS: Attributes = {
    "kernel": integers("down and to the right", least=1),
    "strides": integers("down and to the right", least=1),
    "padding": integers("top, left, bottom, right", (0, 0, 0, 0), least=0),
}


def _pool_windows(attrs: Mapping[str, Any], shape: Sequence[int]) -> Windows:
    return window_axes(shape[1:3], attrs["kernel"], attrs["strides"], attrs["padding"])


def _infer_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, gradient = types
    shape: tuple[int, ...] = ()
    if len(data.shape) == 4 and len(attrs["kernel"]) == len(attrs["strides"]) == 2 and len(attrs["padding"]) == 4:
        windows = _pool_windows(attrs, data.shape)
        if not any(axis.count < 1 or axis.has_empty_window for axis in windows):
            shape = (data.shape[0], *(axis.count for axis in windows), data.shape[3])
    if shape != gradient.shape or data.dtype != gradient.dtype or data.dtype not in FLOAT:
        raise ModelError(
            f"max_pool2d_gradient: data and gradient disagree; got {data.dtype} {data.shape} and {gradient.dtype} "
            f"{gradient.shape}, expected floats (N, H, W, C) and a gradient for each window, none of them empty"
        )
    return (TensorType(data.shape, data.dtype),)


def _evaluate_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, g = arrays
    windows = _pool_windows(attrs, x.shape)
    numbers = np.arange(x.size).reshape(x.shape)
    values = np.stack([taps for _, taps in gather_taps(windows, x.astype(np.float64), -np.inf, 1)])
    places = np.stack([taps for _, taps in gather_taps(windows, numbers, -1, 1)])
    ranks = np.where(np.isnan(values), np.inf, values)
    # Padding never wins, not even against elements of -inf.
    ranks = np.where(places < 0, -np.inf, np.maximum(ranks, np.finfo(np.float64).min))
    first = np.take_along_axis(places, ranks.argmax(0)[None], 0)[0]
    result = np.zeros(x.size, np.float64)
    np.add.at(result, first.reshape(-1), g.reshape(-1))
    return (result.reshape(x.shape).astype(x.dtype),)


def _compute(call: OpCall) -> te.Tensor:
    """Build the loops that clear the result and then add the gradient of every window."""
    data, gradient = call.present
    windows, shape, dtype = _pool_windows(call.attrs, data.type.shape), data.type.shape, data.type.dtype

    def build_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, g), (out,) = operands, results
        cleared = tuple(Var(f"i{k}") for k in range(4))
        clear = ir.loops(zip(cleared, shape, strict=True), ir.Store(out, cleared, ir.const(0, dtype)))
        n, y, column, c = window = tuple(Var(name) for name in ("n", "y", "x", "c"))
        taps = (Var("ky"), Var("kx"))
        best = Buffer("best", (1,), dtype, "register")
        place = tuple(Buffer(name, (1,), "int32", "register") for name in ("row", "column"))
        zero = ir.const(0, "int32")

        def keep(at: Sequence[Expr]) -> Stmt:
            stores = (ir.Store(buffer, (zero,), index) for buffer, index in zip(place, at, strict=True))
            return ir.seq(ir.Store(best, (zero,), x[n, at[0], at[1], c]), *stores)

        first: list[Expr] = []
        for axis, index in zip(windows, (y, column), strict=True):
            start = index * axis.stride - axis.before
            first.append(ir.maximum(start, 0) if axis.before else start)
        indices, inside = build_tap_indices(windows, (y, column), taps)
        better = build_replaces_best_condition("gt", x[n, indices[0], indices[1], c], best[0])
        search: Stmt = ir.If(better, keep(indices))
        if inside is not None:
            search = ir.If(inside, search)
        chosen = (n, place[0][0], place[1][0], c)
        add = ir.Store(out, chosen, out[chosen] + g[n, y, column, c])
        body = ir.seq(keep(first), ir.loops(zip(taps, call.attrs["kernel"], strict=True), search), add)
        for buffer in (best, *place):
            body = ir.Alloc(buffer, body)
        return ir.seq(clear, ir.loops(zip(window, gradient.type.shape, strict=True), body))

    tensors = (data.tensor(), gradient.tensor())
    return te.extern("spread", tensors, (("out", shape, dtype),), build_loops)[0]


def _make_test_cases() -> Iterable[Case]:
    for shape, kernel, strides, padding in (
        ((1, 4, 6, 3), (2, 2), (2, 2), (0, 0, 0, 0)),
        ((2, 5, 5, 2), (3, 3), (2, 1), (1, 1, 1, 1)),
        ((1, 7, 4, 1), (3, 2), (1, 2), (2, 0, 1, 1)),
        ((1, 3, 3, 2), (3, 3), (1, 1), (0, 0, 0, 0)),
    ):
        attrs: dict[str, Attr] = {"kernel": kernel, "strides": strides, "padding": padding}
        rows, columns = (axis.count for axis in _pool_windows(attrs, shape))
        for dtype in FLOAT:
            # Numbers repeat, so that windows have ties.
            x = (np.arange(np.prod(shape)) * 7 % 5).reshape(shape).astype(dtypes.to_numpy(dtype))
            types = (TensorType(shape, dtype), TensorType((shape[0], rows, columns, shape[3]), dtype))
            yield Case(attrs, types, arrays=(x, None), tolerance=1e-6, name=f"{dtype} {shape} {kernel}")
    x = np.array([np.nan, 1.0, -np.inf, -np.inf, 3.0, np.nan], np.float32).reshape(1, 1, 6, 1)
    attrs = {"kernel": (1, 2), "strides": (1, 2), "padding": (0, 0, 0, 0)}
    types = (TensorType(x.shape, "float32"), TensorType((1, 1, 3, 1), "float32"))
    yield Case(attrs, types, arrays=(x, None), name="special")


MAX_POOL_GRADIENT_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "max_pool2d_gradient",
        infer=_infer_types,
        reference=_evaluate_reference,
        compute=_compute,
        cases=_make_test_cases,
        attrs=_ATTRS,
        operand_names=("data", "gradient"),
        edges="The first of equal elements gets the gradient; NaN is larger than any number",
    ),
)


OPERATORS = (*WINDOW_OPERATORS, *MAX_POOL_GRADIENT_OPERATORS)
