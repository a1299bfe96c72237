# SPDX-License-Identifier: Apache-2.0
"""Noise reduction in spectra of speech: ``spectral_subtraction`` and ``pcan`` (gain control by the noise estimate of
each channel).

Their results equal those of TFLite Micro's signal library bit for bit.

Sources: TFLite Micro ``signal/src``: ``filter_bank_spectral_subtraction.cc``, ``pcan_argc_fixed.cc``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Attr, TensorType
from microc.ops.arithmetic import build_bit_length, wrap_in_lets
from microc.ops.attributes import Attributes, flag, integer, mantissa
from microc.ops.registry import Case, OpCall, OpDef
from microc.ops.signal.power_spectrum import check_dtypes
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

_SUBTRACTION: Attributes = {
    "smoothing": mantissa("weight of the signal in an even channel's noise, of `spectral_subtraction_bits` bits", 0),
    "one_minus_smoothing": mantissa("weight of the old noise in even channels", 0),
    "alternate_smoothing": mantissa("weight of the signal in the noise of odd channels", 0),
    "alternate_one_minus_smoothing": mantissa("weight of the old noise in odd channels", 0),
    "smoothing_bits": integer("number of fractional bits that the noise has in addition to the signal's", 0, 0, 31),
    "min_signal_remaining": mantissa("least share of the signal that remains, in spectral_subtraction_bits bits", 0),
    "spectral_subtraction_bits": integer("of the weights and the share", 0, 0, 63),
    "clamping": flag("True if the noise estimate is limited to the signal"),
}


def _infer_spectral_subtraction_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Infer the types of the reduced signal and of the new noise estimate from the types of signal and old estimate."""
    check_dtypes("spectral_subtraction", types, "uint32", "uint32")
    if types[0].shape != types[1].shape or len(types[0].shape) != 1:
        raise ModelError(
            f"spectral_subtraction: signal and noise need one axis of the same extent; got {types[0].shape} and "
            f"{types[1].shape}"
        )
    return TensorType(types[0].shape, "uint32"), TensorType(types[0].shape, "uint32")


def _evaluate_spectral_subtraction_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    signal, noise = ([int(v) for v in a] for a in arrays)
    word, bits = (1 << 32) - 1, attrs["spectral_subtraction_bits"]
    signals, estimates = [], []
    for i, (value, old) in enumerate(zip(signal, noise, strict=True)):
        prefix = "alternate_" if i % 2 else ""
        scaled = value << attrs["smoothing_bits"] & word
        total = scaled * attrs[f"{prefix}smoothing"] + old * attrs[f"{prefix}one_minus_smoothing"]
        estimate = (total & (1 << 64) - 1) >> bits & word
        least = value * attrs["min_signal_remaining"] >> bits & word
        signals.append(max(scaled - min(estimate, scaled) >> attrs["smoothing_bits"], least))
        estimates.append(min(estimate, scaled) if attrs["clamping"] else estimate)
    return np.array(signals, np.uint32), np.array(estimates, np.uint32)


def _compute_spectral_subtraction(call: OpCall) -> tuple[te.Tensor, ...]:
    """Build a loop over channels that updates the noise estimate and subtracts it from the signal."""
    data, noise = call.present
    attrs, size = call.attrs, data.type.size
    smooth, bits = ir.const(attrs["smoothing_bits"], "uint32"), ir.const(attrs["spectral_subtraction_bits"], "uint64")

    def read_channel_weight(i: Expr, name: str) -> Expr:
        values = [ir.const(attrs[f"{prefix}{name}"], "uint64") for prefix in ("", "alternate_")]
        return ir.select((i % 2).eq(0), values[0], values[1])

    def build_spectral_subtraction_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, old), (out, new) = operands, results
        i, value, scaled, estimate, less = (
            Var("i"),
            *(Var(n, "uint32") for n in ("value", "scaled", "estimate", "less")),
        )
        total = ir.cast("uint64", scaled) * read_channel_weight(i, "smoothing")
        total = total + ir.cast("uint64", old[i]) * read_channel_weight(i, "one_minus_smoothing")
        least = ir.cast("uint64", value) * ir.const(attrs["min_signal_remaining"], "uint64") >> bits
        kept = ir.maximum((scaled - less) >> smooth, ir.cast("uint32", least))
        stores = ir.seq(ir.Store(out, (i,), kept), ir.Store(new, (i,), less if attrs["clamping"] else estimate))
        lets = [
            (value, x[i]),
            (scaled, value << smooth),
            (estimate, ir.cast("uint32", total >> bits)),
            (less, ir.minimum(estimate, scaled)),
        ]
        return ir.For(i, ir.const(size, "int32"), wrap_in_lets(lets, stores))

    results = (("out", (size,), "uint32"), ("noise", (size,), "uint32"))
    return te.extern(
        "subtraction", (data.tensor((size,)), noise.tensor((size,))), results, build_spectral_subtraction_loops
    )


def _make_spectral_subtraction_test_cases() -> Iterable[Case]:
    numbers: dict[str, Attr] = {"smoothing": 410, "one_minus_smoothing": 15974, "alternate_smoothing": 983}
    numbers |= {"alternate_one_minus_smoothing": 15401, "min_signal_remaining": 819, "spectral_subtraction_bits": 14}
    x = np.array([0, 1, 77, 5000, 1 << 20, 4000000000], np.uint32)
    for clamping in (False, True):
        for smoothing in (0, 10):
            attrs = {**numbers, "clamping": clamping, "smoothing_bits": smoothing}
            tensor_type = TensorType(x.shape, "uint32")
            yield Case(attrs, (tensor_type, tensor_type), arrays=(x, x[::-1].copy()), name=f"{clamping} {smoothing}")


_SNR_BITS, _OUTPUT_BITS = 12, 6


def _infer_pcan_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Infer the type from the signal, the noise estimate, and the table of gains.

    The table contains three gains, for noise levels 0 to 2, then four numbers for each further bit length of the noise
    level."""
    check_dtypes("pcan", types, "uint32", "uint32", "int16")
    if types[0].shape != types[1].shape or types[2].shape != (125,):
        raise ModelError(
            f"pcan: shapes do not fit each other; got signal {types[0].shape}, noise {types[1].shape} and table "
            f"{types[2].shape}, expected the same for signal and noise, and (125,)"
        )
    return (TensorType(types[0].shape, "uint32"),)


def _evaluate_pcan_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    table, word, made = [int(v) for v in arrays[2]], (1 << 32) - 1, []
    for value, noise in zip(*([int(v) for v in a.reshape(-1)] for a in arrays[:2]), strict=True):
        gain = table[noise] if noise <= 2 else _interpolate_gain(noise, table)
        snr = (value * (gain & word) >> attrs["snr_shift"]) & word
        small = snr < 2 << _SNR_BITS
        square = (snr * snr & word) >> 2 + 2 * _SNR_BITS - _OUTPUT_BITS
        made.append(square if small else ((snr >> _SNR_BITS - _OUTPUT_BITS) - (1 << _OUTPUT_BITS)) & word)
    return (np.array(made, np.uint32).reshape(arrays[0].shape),)


def _interpolate_gain(noise: int, table: Sequence[int]) -> int:
    """Return the gain for a noise level above 2. The table contains the coefficients of a parabola for each bit length
    of the level."""
    bits = noise.bit_length()
    first = 4 * bits - 6
    share = (noise << 11 - bits if bits < 11 else noise >> bits - 11) & 0x3FF
    value = ((table[first + 2] * share >> 5) + (table[first + 1] << 5)) * share
    total = (value + (1 << 14) >> 15) + table[first]
    return (total + (1 << 15)) % (1 << 16) - (1 << 15)


def _compute_pcan(call: OpCall) -> te.Tensor:
    """Build a loop over channels that looks up the gain for the noise level, applies it to the signal, and compresses
    the product."""
    data, noise, gains = call.present
    size, shift = data.type.size, ir.const(call.attrs["snr_shift"], "uint64")

    def build_pcan_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, old, table), (out,) = operands, results
        i, level, first, share = Var("i"), Var("level", "uint32"), Var("first"), Var("share")
        gain, snr = Var("gain"), Var("snr", "uint32")
        lets, bits = build_bit_length(level, "level")
        left, right = (ir.cast("uint32", ir.maximum(n, 0)) for n in (11 - bits, bits - 11))
        part = ir.cast("int32", ((level << left) >> right) & ir.const(0x3FF, "uint32"))
        entry = [ir.cast("int32", table[ir.clamp(first, 0, 122) + k]) for k in range(3)]
        parabola = ((((entry[2] * share) >> 5) + entry[1] * 32) * share + (1 << 14)) >> 15
        small = ir.cast("int32", table[ir.cast("int32", ir.minimum(level, 2))])
        chosen = ir.select(ir.binary("le", level, 2), small, ir.cast("int32", ir.cast("int16", parabola + entry[0])))
        product = ir.cast("uint64", x[i]) * ir.cast("uint64", ir.cast("uint32", gain))
        square = snr * snr >> ir.const(2 + 2 * _SNR_BITS - _OUTPUT_BITS, "uint32")
        line = (snr >> ir.const(_SNR_BITS - _OUTPUT_BITS, "uint32")) - ir.const(1 << _OUTPUT_BITS, "uint32")
        lets = [
            (level, old[i]),
            *lets,
            (first, bits * 4 - 6),
            (share, part),
            (gain, chosen),
            (snr, ir.cast("uint32", product >> shift)),
        ]
        shrunk = ir.select(ir.binary("lt", snr, 2 << _SNR_BITS), square, line)
        return ir.For(i, ir.const(size, "int32"), wrap_in_lets(lets, ir.Store(out, (i,), shrunk)))

    operands = (data.tensor((size,)), noise.tensor((size,)), gains.tensor())
    return te.extern("gain", operands, (("out", (size,), "uint32"),), build_pcan_loops)[0]


def _make_pcan_test_cases() -> Iterable[Case]:
    noise = np.array([0, 1, 2, 3, 9, 1000, 2047, 2048, 70000, 1 << 30, (1 << 32) - 1], np.uint32)
    x = np.array([0, 9, 70000, 1 << 31, 5, 77, 123456, 1, 4000000000, 3, 99], np.uint32)
    table = (np.arange(125) * 37 % 3000).astype(np.int16)
    tensor_type = TensorType(x.shape, "uint32")
    for shift in (6, 0):
        yield Case(
            {"snr_shift": shift}, (tensor_type, tensor_type, TensorType((125,), "int16")), (2,), (x, noise, table)
        )


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "spectral_subtraction",
        infer=_infer_spectral_subtraction_types,
        reference=_evaluate_spectral_subtraction_reference,
        compute=_compute_spectral_subtraction,
        cases=_make_spectral_subtraction_test_cases,
        attrs=_SUBTRACTION,
        operand_names=("data", "noise"),
    ),
    OpDef(
        "pcan",
        attrs={
            "snr_shift": integer("number of bits by which the ratio of signal and noise is shifted", least=0, most=63)
        },
        infer=_infer_pcan_types,
        reference=_evaluate_pcan_reference,
        compute=_compute_pcan,
        cases=_make_pcan_test_cases,
        operand_names=("data", "noise", "gains"),
    ),
)
