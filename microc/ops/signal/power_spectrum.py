# SPDX-License-Identifier: Apache-2.0
"""Operators around the Fourier transform: the power spectrum, windows, scaling of a transform's input, and energies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import te
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.arithmetic import build_bit_length, wrap_in_lets
from microc.ops.attributes import integer
from microc.ops.elementwise.complex_numbers import (
    Complex,
    ComplexArithmetic,
    LetBindingComplexArithmetic,
    LetCollector,
    fft_arithmetic,
    high_multiply_fft_arithmetic,
)
from microc.ops.registry import AxisMap, Case, OpCall, OpDef, map_unchanged_axes
from microc.ops.signal.fft import (
    build_fft_stages,
    build_load_and_first_stage,
    combine_half_length_frequencies,
    compute_twiddles,
    fft_in_numpy,
    super_twiddles,
)
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

# ---- ``power_spectrum``: squared magnitudes of the spectrum of real samples times a window, along the last axis.
#
# Rows are padded with zeros to N = ``fft_length`` samples, a power of two. Element k of the result is
#
#     |sum_n x[n] window[n] e**(-2 pi i k n / N)|**2,  0 <= k <= N / 2.
#
# int16 data x and an int16 window w represent x / 2**15 and w / 2**15, or numbers of any other scale. The sum
# is divided by N and rounded to 32-bit integers. Its squared magnitude, a uint64 of 61 bits, is shifted right
# by ``shift`` bits. Nothing can overflow. The operator also defines where integers are rounded: products of
# data and window are exact; a butterfly of radix r divides by r and rounds the high half of each product; the
# combination to the spectrum of the reals rounds twice more.
#
# Source: a transform of N reals as a transform of N / 2 complex numbers, Sorensen et al., *Real-valued fast
# Fourier transform algorithms*, 1987; the order of butterflies is KISS FFT's.


RESULTS: Mapping[str, str] = {"float32": "float32", "int16": "uint64"}
"""Dtype of the result by dtype of the data."""
LONGEST = 1 << 16
"""Largest ``fft_length``."""
MOST_SHIFT = 60
"""Largest right shift of the squared magnitudes of int16 data."""
_TWIDDLE_BITS = 30
"""Number of fractional bits of fixed-point twiddle factors."""


def _infer_power_spectrum_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, window = types
    length = attrs["fft_length"]
    if length & (length - 1) or length > LONGEST:
        raise ModelError(
            f"power_spectrum: fft_length is not supported; got {length}, expected a power of two, at most {LONGEST}"
        )
    if data.dtype not in RESULTS or window.dtype != data.dtype:
        raise ModelError(
            f"power_spectrum: data and window have unsupported dtypes; got {data.dtype} and {window.dtype}, expected both "
            "float32 or both int16"
        )
    if not data.shape or not 1 <= data.shape[-1] <= length or window.shape != data.shape[-1:]:
        raise ModelError(
            f"power_spectrum: data or window have a wrong shape; got data {data.shape} and window {window.shape}, "
            f"expected 1..{length} samples (fft_length) and a window {data.shape[-1:]}"
        )
    if attrs["shift"] > (MOST_SHIFT if data.dtype == "int16" else 0):
        raise ModelError(
            f"power_spectrum: the shift is out of range; got shift={attrs['shift']}, expected "
            f"{f'at most {MOST_SHIFT}' if data.dtype == 'int16' else 0} for {data.dtype}"
        )
    return (TensorType((*data.shape[:-1], length // 2 + 1), RESULTS[data.dtype]),)


def _spectrum_arithmetic(dtype: str, *, over_tir: bool) -> ComplexArithmetic:
    """Return the complex arithmetic for data of ``dtype``, either over TIR expressions or over numpy."""
    return (
        fft_arithmetic(dtype, over_tir=over_tir)
        if dtype == "float32"
        else high_multiply_fft_arithmetic(over_tir=over_tir)
    )


def _twiddle_tables(sample_count: int, dtype: str) -> tuple[Array, Array]:
    """Return two tables of twiddle factors: one for the butterflies, and one that combines the spectrum of the
    reals."""
    half = sample_count // 2
    if dtype == "float32":
        return compute_twiddles(half, half, 0, dtype), super_twiddles(sample_count, dtype)
    exact = compute_twiddles(half, half, 0, "float64") * (1 << _TWIDDLE_BITS)
    return np.rint(exact).astype(np.int32), super_twiddles(sample_count, "int32")


def _evaluate_power_spectrum_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, window = arrays
    length, shape = attrs["fft_length"], (*data.shape[:-1], attrs["fft_length"] // 2 + 1)
    if data.dtype == np.float32:
        spectrum = np.fft.rfft(data.astype(np.float64) * window, length)
        return ((spectrum.real**2 + spectrum.imag**2).astype(np.float32),)
    rows = data.reshape(-1, data.shape[-1]).astype(np.int64) * window
    made = [_compute_row_power_spectrum(row, length, attrs["shift"]) for row in rows]
    return (np.array(made, np.uint64).reshape(shape),)


def _compute_row_power_spectrum(products: Array, length: int, right_shift: int) -> Array:
    """Compute the power spectrum of one row of integers over numpy.

    ``products``: samples times window. ``length``: ``fft_length``."""
    k, half = _spectrum_arithmetic("int16", over_tir=False), length // 2
    twiddle_table, last = (table.astype(np.int64) for table in _twiddle_tables(length, "int16"))
    pairs = np.zeros(length, np.int64)
    pairs[: products.size] = products
    z = fft_in_numpy(k, pairs.reshape(half, 2), twiddle_table)
    spectrum = np.zeros((half + 1, 2), np.int64)
    real, imaginary = k.divide_by_radix((z[0, 0], z[0, 1]), 2)
    spectrum[0, 0], spectrum[half, 0] = real + imaginary, real - imaginary
    for i in range(1, half // 2 + 1):
        spectrum[i], spectrum[half - i] = combine_half_length_frequencies(
            k, tuple(z[i]), tuple(z[half - i]), tuple(last[i - 1])
        )
    power: Array = (spectrum * spectrum).sum(axis=1) >> right_shift
    return power


def _compute_power_spectrum(call: OpCall) -> te.Tensor:
    """Build a loop over rows, each of which is transformed in a workspace of complex numbers."""
    data, window = call.present
    length, size = int(call.attrs["fft_length"]), data.type.shape[-1]
    rows, half, out_dtype = prod(data.type.shape[:-1]), length // 2, call.out_types[0].dtype
    floats = data.type.dtype == "float32"
    k = _spectrum_arithmetic(data.type.dtype, over_tir=True)
    twiddle_table, last = _twiddle_tables(length, data.type.dtype)
    tables = (data.packed(twiddle_table[: max(3 * half // 4, 1)]), data.packed(last))

    def build_power_spectrum_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, by, twiddle_table, last), (out, work) = operands, results
        n = Var("n")

        def read_windowed_sample(index: Expr, part: Expr) -> Expr:
            at = index * 2 + part
            value = x[n, at] * by[at] if floats else ir.cast("int32", x[n, at]) * ir.cast("int32", by[at])
            return ir.select(at < size, value, ir.const(0, work.dtype)) if size < length else value

        parts = (
            build_load_and_first_stage(read_windowed_sample, work, k),
            *build_fft_stages(work, twiddle_table, k, 1),
            _build_power_spectrum_loop(work, last, out, n, k, call),
        )
        return ir.loops([(n, rows)], ir.seq(*parts))

    results = (("out", (rows, half + 1), out_dtype), ("work", (half, 2), "float32" if floats else "int32"))
    return te.extern(
        "spectrum", (data.tensor((rows, size)), window.tensor(), *tables), results, build_power_spectrum_loops
    )[0]


def _build_power_spectrum_loop(
    work: Buffer, super_twiddle_table: Buffer, out: Buffer, row_index: Var, arith: ComplexArithmetic, call: OpCall
) -> Stmt:
    """Build the loop that combines the spectrum of one row of reals and stores its squared magnitudes, two frequencies
    per iteration."""
    half, f, held = work.shape[0], Var("f"), LetCollector("r")

    def build_squared_magnitude(x: Complex) -> Expr:
        if out.dtype == "float32":
            return ir.as_expr(x[0] * x[0] + x[1] * x[1], "float32")
        real, imaginary = (ir.cast("int64", part) for part in x)
        return ir.cast("uint64", (real * real + imaginary * imaginary) >> call.attrs["shift"])

    first = held.bind_complex(arith.divide_by_radix((work[0, 0], work[0, 1]), 2))
    none = ir.const(0, work.dtype)
    ends = (first[0] + first[1], first[0] - first[1])
    stores = [
        ir.Store(out, (row_index, ir.const(place, "int32")), build_squared_magnitude((held.bind(end), none)))
        for place, end in zip((0, half), ends, strict=True)
    ]
    edge = held.wrap_in_definitions(ir.seq(*stores))
    held = LetCollector("m")
    low, high = (held.bind_complex((work[place, 0], work[place, 1])) for place in (f + 1, half - 1 - f))
    pairs = combine_half_length_frequencies(
        LetBindingComplexArithmetic(arith, held), low, high, (super_twiddle_table[f, 0], super_twiddle_table[f, 1])
    )
    places = (f + 1, half - 1 - f)
    stores = [
        ir.Store(out, (row_index, place), build_squared_magnitude(pair))
        for place, pair in zip(places, pairs, strict=True)
    ]
    return ir.seq(edge, ir.loops([(f, half // 2)], held.wrap_in_definitions(ir.seq(*stores))))


def _map_power_spectrum_axes(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    return (map_unchanged_axes(len(types[0].shape), (-1,)), None)


def _make_power_spectrum_test_cases() -> Iterable[Case]:
    rng = np.random.default_rng(3)
    for shape, length in (((4,), 4), ((2, 7), 8), ((30,), 32), ((64,), 64), ((2, 3, 16), 16), ((100,), 128)):
        operand_types = [TensorType(s, "float32") for s in (shape, shape[-1:])]
        yield Case({"fft_length": length}, tuple(operand_types), (1,), tolerance=2e-5, name=f"float32 {length}")
        window = np.rint(32767 * np.hanning(shape[-1] + 2)[1:-1]).astype(np.int16)
        integers = (TensorType(shape, "int16"), TensorType(shape[-1:], "int16"))
        for shift in (0, 14):
            attrs = {"fft_length": length, "shift": shift}
            yield Case(attrs, integers, (1,), (None, window), name=f"int16 {length} {shift}")
    worst = np.where(rng.random(64) < 0.5, -32768, 32767).astype(np.int16)
    for x in (np.full(64, -32768, np.int16), worst):
        operand_types = [TensorType((64,), "int16")] * 2
        yield Case({"fft_length": 64}, tuple(operand_types), arrays=(x, x), name="the largest numbers")


POWER_SPECTRUM_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "power_spectrum",
        attrs={
            "fft_length": integer("a power of two", least=4),
            "shift": integer("number of bits by which squares of integers are shifted right", 0, least=0),
        },
        infer=_infer_power_spectrum_types,
        reference=_evaluate_power_spectrum_reference,
        compute=_compute_power_spectrum,
        cases=_make_power_spectrum_test_cases,
        axes=_map_power_spectrum_axes,
        operand_names=("data", "window"),
    ),
)


# ---- Operators around the Fourier transform of speech frontends: ``signal_window``, ``fft_auto_scale``,
# ``signal_energy``.
#
# They compute in fixed point; their results equal those of TFLite Micro's signal library bit for bit.
#
# Sources: TFLite Micro ``signal/src``: ``window.cc``, ``fft_auto_scale.cc``, ``energy.cc``.


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


SPECTRUM_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "signal_window",
        attrs={"shift": integer("number of bits by which products are shifted right", least=0, most=31)},
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
            "end": integer("element behind the last one", least=0),
        },
        infer=_infer_signal_energy_types,
        reference=_evaluate_signal_energy_reference,
        compute=_compute_signal_energy,
        cases=_make_signal_energy_test_cases,
        operand_names=("data",),
    ),
)


OPERATORS = (*POWER_SPECTRUM_OPERATORS, *SPECTRUM_OPERATORS)
