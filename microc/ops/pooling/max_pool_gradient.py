# SPDX-License-Identifier: Apache-2.0
"""Operator ``max_pool2d_gradient``: the gradient of ``max_pool2d`` by its data, from the data and the gradient of the
result.

Every window adds its gradient to its first largest element, in row-major order, as PyTorch does. One loop over the
windows searches and adds, so that no indices are stored between the passes. NaN counts as the largest element.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Attr, TensorType
from microc.ops.arithmetic import FLOAT, build_replaces_best_condition
from microc.ops.attributes import Attributes, integers
from microc.ops.registry import Case, OpCall, OpDef
from microc.ops.windows import Windows, build_tap_indices, gather_taps, window_axes
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

_ATTRS: Attributes = {
    "kernel": integers("down and to the right", least=1),
    "strides": integers("down and to the right", least=1),
    "padding": integers("top, left, bottom, right", (0, 0, 0, 0), least=0),
}


def _windows(attrs: Mapping[str, Any], shape: Sequence[int]) -> Windows:
    return window_axes(shape[1:3], attrs["kernel"], attrs["strides"], attrs["padding"])


def _infer_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, gradient = types
    shape: tuple[int, ...] = ()
    if len(data.shape) == 4 and len(attrs["kernel"]) == len(attrs["strides"]) == 2 and len(attrs["padding"]) == 4:
        windows = _windows(attrs, data.shape)
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
    windows = _windows(attrs, x.shape)
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
    windows, shape, dtype = _windows(call.attrs, data.type.shape), data.type.shape, data.type.dtype

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
        rows, columns = (axis.count for axis in _windows(attrs, shape))
        for dtype in FLOAT:
            # Numbers repeat, so that windows have ties.
            x = (np.arange(np.prod(shape)) * 7 % 5).reshape(shape).astype(dtypes.to_numpy(dtype))
            types = (TensorType(shape, dtype), TensorType((shape[0], rows, columns, shape[3]), dtype))
            yield Case(attrs, types, arrays=(x, None), tolerance=1e-6, name=f"{dtype} {shape} {kernel}")
    x = np.array([np.nan, 1.0, -np.inf, -np.inf, 3.0, np.nan], np.float32).reshape(1, 1, 6, 1)
    attrs = {"kernel": (1, 2), "strides": (1, 2), "padding": (0, 0, 0, 0)}
    types = (TensorType(x.shape, "float32"), TensorType((1, 1, 3, 1), "float32"))
    yield Case(attrs, types, arrays=(x, None), name="special")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "max_pool2d_gradient",
        infer=_infer_types,
        reference=_evaluate_reference,
        compute=_compute,
        cases=_make_test_cases,
        attrs=_ATTRS,
        operand_names=("data", "gradient"),
        edges="Of equal elements the first gets the gradient; the first NaN is the largest",
    ),
)
