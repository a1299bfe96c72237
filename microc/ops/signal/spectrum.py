# SPDX-License-Identifier: Apache-2.0
"""Operators around the Fourier transform of speech frontends: ``signal_window``, ``fft_auto_scale``, ``signal_energy``.

They compute in fixed point; their results equal those of TFLite Micro's signal library bit for bit.

Sources: TFLite Micro ``signal/src``: ``window.cc``, ``fft_auto_scale.cc``, ``energy.cc``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.arithmetic import build_bit_length, wrap_in_lets
from microc.ops.attributes import integer
from microc.ops.registry import Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

_ZERO = ir.const(0, "int32")


def check_dtypes(op_name: str, types: Sequence[TensorType], *expected_dtypes: str) -> None:
    """Raise ModelError unless the operands have the dtypes ``expected_dtypes``, in this order."""
    if tuple(tensor_type.dtype for tensor_type in types) != expected_dtypes:
        raise ModelError(
            f"{op_name}: operands have unsupported dtypes; got {', '.join(tensor_type.dtype for tensor_type in types)}, "
            f"expected {', '.join(expected_dtypes)}"
        )


def _infer_signal_window_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    check_dtypes("signal_window", types, "int16", "int16")
    last, rank = types[0].shape[-1:], len(types[1].shape)
    if not 1 <= rank <= len(types[0].shape) or types[1].shape != (*(1,) * (rank - 1), *last):
        raise ModelError(
            f"signal_window: the window has a wrong shape; got {types[1].shape} for data {types[0].shape}, expected "
            "the extent of the data's last axis, preceded only by axes of 1"
        )
    return (TensorType(types[0].shape, "int16"),)


def _evaluate_signal_window_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    product = (arrays[0].astype(np.int64) * arrays[1]) >> attrs["shift"]
    return (np.clip(product, -32768, 32767).astype(np.int16),)


def _build_signal_window_scalar_expr(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
    product = ir.cast("int32", args[0]) * ir.cast("int32", args[1]) >> attrs["shift"]
    return ir.cast("int16", ir.clamp(product, -32768, 32767))


def _make_signal_window_test_cases() -> Iterable[Case]:
    for shape in ((6,), (2, 5)):
        types = (TensorType(shape, "int16"), TensorType(shape[-1:], "int16"))
        yield Case({"shift": 12}, types)
        yield Case({"shift": 15}, types, (1,))
    yield Case({"shift": 12}, (TensorType((1, 5), "int16"), TensorType((1, 5), "int16")))


def _infer_fft_auto_scale_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    check_dtypes("fft_auto_scale", types, "int16")
    return TensorType(types[0].shape, "int16"), TensorType((), "int32")


def _evaluate_fft_auto_scale_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    largest = 0
    for value in (int(v) for v in arrays[0].reshape(-1)):
        if max(value, -value) > largest:
            largest = value if value > largest else (-value + 32768) % 65536 - 32768
    bits = max(15 - largest.bit_length(), 0) if largest > 0 else 0
    return (arrays[0].astype(np.int32) << bits).astype(np.int16), np.array(bits, np.int32)


def _compute_fft_auto_scale(call: OpCall) -> tuple[te.Tensor, ...]:
    """Build a loop that finds the largest magnitude, and a loop that shifts all elements left so that this magnitude
    fills 15 bits.

    The magnitude is an int16 that wraps around, as in TFLite Micro. The second result is the number of bits of the
    shift."""
    (data,) = call.present

    def build_fft_auto_scale_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x,), (out, scale) = operands, results
        i, j, value = Var("i"), Var("j"), Var("value")
        size, largest = ir.const(x.size, "int32"), Buffer("largest", (1,), "int16", "register")
        known = ir.cast("int32", largest[0])
        grow = ir.If(
            value > known,
            ir.Store(largest, (_ZERO,), ir.cast("int16", value)),
            ir.If(-value > known, ir.Store(largest, (_ZERO,), ir.cast("int16", -value))),
        )
        find = ir.For(i, size, ir.Let(value, ir.cast("int32", x[i]), grow))
        lets, bits = build_bit_length(ir.cast("uint32", ir.maximum(known, 0)), "largest")
        left, factor = Var("left"), Var("factor")
        amount = ir.select(known > 0, ir.maximum(15 - bits, 0), _ZERO)
        move = ir.For(j, size, ir.Store(out, (j,), ir.cast("int16", ir.cast("int32", x[j]) * factor)))
        rest = ir.seq(ir.Store(scale, (_ZERO,), left), ir.Let(factor, ir.const(1, "int32") << left, move))
        start = ir.Store(largest, (_ZERO,), ir.const(0, "int16"))
        return ir.Alloc(largest, ir.seq(start, find, wrap_in_lets([*lets, (left, amount)], rest)))

    size = data.type.size
    results = (("out", (size,), "int16"), ("scale", (1,), "int32"))
    return te.extern("scale", (data.tensor((size,)),), results, build_fft_auto_scale_loops)


def _make_fft_auto_scale_test_cases() -> Iterable[Case]:
    for values in ([3, -5, 0, 2], [0, 0], [-32768, 1], [20000, -32768, 4], [1, -1, 16383]):
        x = np.array(values, np.int16)
        yield Case({}, (TensorType(x.shape, "int16"),), arrays=(x,), name=f"{values}")


def _infer_signal_energy_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    check_dtypes("signal_energy", types, "int16")
    shape, first, last = types[0].shape, attrs["start"], attrs["end"]
    if len(shape) != 1 or shape[0] % 2 or not 0 <= first <= last <= shape[0] // 2:
        raise ModelError(
            f"signal_energy: the data need one axis of (real, imaginary) pairs that contains start..end; got {shape}, "
            f"start={first} and end={last}"
        )
    return (TensorType((shape[0] // 2,), "uint32"),)


def _evaluate_signal_energy_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = arrays[0].astype(np.int64).reshape(-1, 2)
    energy = (x * x).sum(axis=1)
    energy[: attrs["start"]] = energy[attrs["end"] :] = 0
    return (energy.astype(np.uint32),)


def _compute_signal_energy(call: OpCall) -> te.Tensor:
    """Build the squared magnitudes of the frequencies from ``start`` to ``end`` - 1.

    All other elements of the result are zero; TFLite Micro does not write them."""
    (data,) = call.present
    count, first, last = data.type.size // 2, call.attrs["start"], call.attrs["end"]
    x = data.tensor((count, 2))

    def build_energy(i: Expr) -> Expr:
        parts = [ir.cast("int32", x[i, part]) for part in (0, 1)]
        squares = [ir.cast("uint32", part * part) for part in parts]
        inside = ir.Bin("and", i >= first, i < last)
        return ir.select(inside, squares[0] + squares[1], ir.const(0, "uint32"))

    return te.compute((count,), build_energy, "energy", ("i",))


def _make_signal_energy_test_cases() -> Iterable[Case]:
    for attrs in ({"start": 0, "end": 5}, {"start": 1, "end": 4}):
        x = np.array([1, -2, -32768, -32768, 300, 4, 32767, 0, 7, 7], np.int16)
        yield Case(attrs, (TensorType((10,), "int16"),), arrays=(x,))


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "signal_window",
        attrs={"shift": integer("of the products, to the right", least=0, most=31)},
        infer=_infer_signal_window_types,
        reference=_evaluate_signal_window_reference,
        scalar=_build_signal_window_scalar_expr,
        cases=_make_signal_window_test_cases,
        operand_names=("data", "window"),
    ),
    OpDef(
        "fft_auto_scale",
        infer=_infer_fft_auto_scale_types,
        reference=_evaluate_fft_auto_scale_reference,
        compute=_compute_fft_auto_scale,
        cases=_make_fft_auto_scale_test_cases,
        operand_names=("data",),
    ),
    OpDef(
        "signal_energy",
        attrs={
            "start": integer("the first element of the spectrum", least=0),
            "end": integer("behind the last", least=0),
        },
        infer=_infer_signal_energy_types,
        reference=_evaluate_signal_energy_reference,
        compute=_compute_signal_energy,
        cases=_make_signal_energy_test_cases,
        operand_names=("data",),
    ),
)
