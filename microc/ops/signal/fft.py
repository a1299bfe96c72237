# SPDX-License-Identifier: Apache-2.0
"""Fast Fourier transform of real numbers, ``rfft``, and its inverse, ``irfft``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any

import numpy as np

from microc import te
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.attributes import integer
from microc.ops.elementwise.complex_numbers import (
    Complex,
    ComplexArithmetic,
    LetBindingComplexArithmetic,
    LetCollector,
    fft_arithmetic,
)
from microc.ops.registry import Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

# ---- Stages of the transform and of its inverse: radices, twiddle factors and butterflies, both over numpy and as loops.
#
# Source: KISS FFT 1.3.0 ``kiss_fft.c``.

DTYPES = ("int16", "int32", "float32")
_ZERO = ir.const(0, "int32")


def fft_radices(transform_size: int) -> tuple[int, ...]:
    """Return radices whose product is ``transform_size``, a power of two: as many fours as possible, then a two if it
    remains."""
    found = []
    while transform_size > 1:
        found.append(4 if transform_size % 4 == 0 else 2)
        transform_size //= found[-1]
    return tuple(found)


def compute_twiddles(period: int, twiddle_count: int, first_index: float, dtype: str) -> Array:
    """Return twiddle factors (``twiddle_count``, 2): e**(-2 pi i (k + ``first_index``) / ``period``) for k from 0 on,
    as real and imaginary parts.

    Fixed-point factors are rounded half up."""
    angle = -2 * np.pi * (np.arange(twiddle_count) + first_index) / period
    table = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if dtype.startswith("float"):
        return table.astype(dtype)
    return np.floor(0.5 + ((1 << (15 if dtype == "int16" else 31)) - 1) * table).astype(dtype)


def super_twiddles(sample_count: int, dtype: str) -> Array:
    """Return KISS FFT's super twiddles: twiddle factors advanced by a quarter period.

    They combine the spectrum of ``sample_count`` reals from the transform of half as many complex numbers."""
    return compute_twiddles(sample_count, sample_count // 4, 1 + sample_count / 4, dtype)


def _compute_butterfly(
    arith: ComplexArithmetic, inputs: Sequence[Complex], twiddle_factors: Sequence[Complex]
) -> list[Complex]:
    """Return the outputs of a radix-2 or radix-4 butterfly, computed in the complex arithmetic ``arith``.

    They are sums and differences of the inputs. All inputs but the first are multiplied by a twiddle factor first,
    unless ``twiddle_factors`` is empty."""
    first, *others = inputs
    first = arith.divide_by_radix(first, len(inputs))
    if twiddle_factors:
        rotated = [
            arith.multiply_by_twiddle(value, len(inputs), twiddle)
            for value, twiddle in zip(others, twiddle_factors, strict=True)
        ]
    else:
        rotated = [arith.divide_by_radix(value, len(inputs)) for value in others]
    if len(inputs) == 2:
        return [arith.add(first, rotated[0]), arith.subtract(first, rotated[0])]
    difference, total = arith.subtract(first, rotated[1]), arith.add(first, rotated[1])
    outer, cross = arith.add(rotated[0], rotated[2]), arith.subtract(rotated[0], rotated[2])
    ahead, behind = (cross[1], arith.negate(cross[0])), (arith.negate(cross[1]), cross[0])
    return [
        arith.add(total, outer),
        arith.add(difference, ahead),
        arith.subtract(total, outer),
        arith.add(difference, behind),
    ]


def fft_in_numpy(arith: ComplexArithmetic, z: Array, twiddles_of_stages: Array) -> Array:
    """Transform an array of n complex numbers, of shape (n, 2), stage by stage over numpy.

    ``twiddles_of_stages``: the table of twiddle factors that all stages use."""
    size, radices = len(z), fft_radices(len(z))
    steps = [1, *accumulate(radices, mul)]
    parts = [size // step for step in steps[1:]]
    order = np.zeros(radices, np.int64)
    for axis, radix in enumerate(radices):
        order += (np.arange(radix) * steps[axis]).reshape(-1, *(1,) * (len(radices) - axis - 1))
    z = z[order.reshape(-1)]
    for radix, part, step in reversed(list(zip(radices, parts, steps, strict=False))):
        blocks = z.reshape(-1, radix, part, 2)
        twiddle_table = [twiddles_of_stages[np.arange(part) * step * j] for j in range(1, radix)]
        x = [(blocks[:, j, :, 0], blocks[:, j, :, 1]) for j in range(radix)]
        made = _compute_butterfly(arith, x, [(t[:, 0], t[:, 1]) for t in twiddle_table])
        z = np.stack([np.stack(value, -1) for value in made], axis=1).reshape(-1, 2)
    return z


def build_digit_reversed_load(read_part: Callable[[Expr, Expr], Expr], work: Buffer) -> Stmt:
    """Build loops that store complex numbers in ``work`` in digit-reversed order, which the butterflies need.

    ``read_part`` returns the real part (0) or imaginary part (1) of the number at an index."""
    radices = fft_radices(work.shape[0])
    digits = [Var(f"d{axis}") for axis in range(len(radices))]
    part = Var("part")
    source: Expr = _ZERO
    place: Expr = _ZERO
    step, rest = 1, work.shape[0]
    for digit, radix in zip(digits, radices, strict=True):
        rest //= radix
        source, place, step = source + digit * step, place + digit * rest, step * radix
    loops = [*zip(digits, radices, strict=True), (part, 2)]
    return ir.loops(loops, ir.Store(work, (place, part), read_part(source, part)))


def build_load_and_first_stage(read_part: Callable[[Expr, Expr], Expr], work: Buffer, arith: ComplexArithmetic) -> Stmt:
    """Build the loops of :func:`build_digit_reversed_load` fused with the first stage of butterflies, which need no
    twiddle factors."""
    *radices, last = fft_radices(work.shape[0])
    digits = [Var(f"d{axis}") for axis in range(len(radices))]
    source: Expr = _ZERO
    place: Expr = _ZERO
    step, rest = 1, work.shape[0]
    for digit, radix in zip(digits, radices, strict=True):
        rest //= radix
        source, place, step = source + digit * step, place + digit * rest, step * radix
    held, parts = LetCollector("e"), [ir.const(part, "int32") for part in (0, 1)]
    x = [
        held.bind_complex((read_part(source + j * step, parts[0]), read_part(source + j * step, parts[1])))
        for j in range(last)
    ]
    made = [held.bind_complex(pair) for pair in _compute_butterfly(LetBindingComplexArithmetic(arith, held), x, ())]
    stores = [ir.Store(work, (place + j, part), pair[i]) for j, pair in enumerate(made) for i, part in enumerate(parts)]
    return ir.loops(list(zip(digits, radices, strict=True)), held.wrap_in_definitions(ir.seq(*stores)))


def build_fft_stages(
    work: Buffer, twiddle_table: Buffer, arith: ComplexArithmetic | None = None, skipped_stages: int = 0
) -> Iterable[Stmt]:
    """Yield the loops of the stages of butterflies, beginning with the smallest butterflies, without the first
    ``skipped_stages`` stages.

    ``arith``: the complex arithmetic (default: the arithmetic for the dtype of ``work``)."""
    arith = arith or fft_arithmetic(work.dtype, over_tir=True)
    size, radices = work.shape[0], fft_radices(work.shape[0])
    steps = [1, *accumulate(radices, mul)]
    for stage in reversed(range(len(radices) - skipped_stages)):
        radix, step, part = radices[stage], steps[stage], size // steps[stage + 1]
        b, i = Var("b"), Var("i")
        places = [b * (radix * part) + i + j * part for j in range(radix)]
        x = [(work[place, 0], work[place, 1]) for place in places]
        stage_twiddles = [(twiddle_table[i * (step * j), 0], twiddle_table[i * (step * j), 1]) for j in range(1, radix)]
        held = LetCollector(f"s{stage}")
        inputs = [held.bind_complex(value) for value in x]
        made = [
            held.bind_complex(value)
            for value in _compute_butterfly(LetBindingComplexArithmetic(arith, held), inputs, stage_twiddles)
        ]
        stores = [
            ir.Store(work, (place, ir.const(part_, "int32")), value[part_])
            for place, value in zip(places, made, strict=True)
            for part_ in (0, 1)
        ]
        yield ir.loops([(b, size // (radix * part)), (i, part)], held.wrap_in_definitions(ir.seq(*stores)))


# ---- ``rfft``: the spectrum of real numbers along the last axis, interleaved (real, imaginary).
#
# Shorter rows are padded with zeros to ``fft_length``, a power of two. Integer results equal KISS FFT's fixed point bit for bit:
# a row of reals is read as half as many complex numbers. These pass through butterflies of radix four and two, each of which
# divides by its radix. At the end the spectrum of the reals is combined from the spectrum of the complex numbers.
#
# Sources: TFLite Micro ``signal/src/kiss_fft_wrappers``, ``rfft_int16.cc``; KISS FFT 1.3.0 ``kiss_fft.c``, ``kiss_fftr.c``.


def _infer_rfft_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    tensor_type, length = types[0], attrs["fft_length"]
    if length < 4 or length & (length - 1) or tensor_type.dtype not in DTYPES:
        raise ModelError(
            f"rfft: unsupported length or dtype; got fft_length={length} and {tensor_type.dtype}, expected a power of two "
            f"from 4 on and {' or '.join(DTYPES)}"
        )
    if not tensor_type.shape or not 1 <= tensor_type.shape[-1] <= length:
        raise ModelError(
            f"rfft: the data's last axis does not fit; got {tensor_type.shape}, expected 1..{length} samples "
            "(fft_length)"
        )
    return (TensorType((*tensor_type.shape[:-1], length + 2), tensor_type.dtype),)


def _evaluate_rfft_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, length = arrays[0], attrs["fft_length"]
    if x.dtype == np.float32:
        spectrum = np.fft.rfft(x.astype(np.float64), length)
        return (np.stack([spectrum.real, spectrum.imag], -1).reshape(*x.shape[:-1], -1).astype(np.float32),)
    rows = [_rfft_row_in_numpy(np.asarray(row, np.int64), length, x.dtype.name) for row in x.reshape(-1, x.shape[-1])]
    return (np.array(rows, np.int64).reshape(*x.shape[:-1], length + 2).astype(x.dtype),)


def _rfft_row_in_numpy(samples: Array, length: int, dtype: str) -> Array:
    """Transform one row of reals in fixed point over numpy; return real and imaginary parts interleaved."""
    k, half = fft_arithmetic(dtype, over_tir=False), length // 2
    pairs = np.zeros(length, np.int64)
    pairs[: samples.size] = samples
    z = fft_in_numpy(k, pairs.reshape(half, 2), compute_twiddles(half, half, 0, dtype).astype(np.int64))
    out = np.zeros((half + 1, 2), np.int64)
    real, imaginary = k.divide_by_radix((z[0, 0], z[0, 1]), 2)
    out[0, 0], out[half, 0] = k.add((real, 0), (imaginary, 0))[0], k.subtract((real, 0), (imaginary, 0))[0]
    table = super_twiddles(length, dtype).astype(np.int64)
    for i in range(1, half // 2 + 1):
        out[i], out[half - i] = combine_half_length_frequencies(k, tuple(z[i]), tuple(z[half - i]), tuple(table[i - 1]))
    return out.reshape(-1)


def combine_half_length_frequencies(
    arith: ComplexArithmetic, low: Complex, high: Complex, twiddle: Complex
) -> tuple[Complex, Complex]:
    """Return frequencies k and n - k of the spectrum of 2 n reals.

    ``low`` and ``high``: frequencies k and n - k of the transform of the same reals read as n complex numbers.
    ``twiddle``: the super twiddle of k."""
    low, high = arith.divide_by_radix(low, 2), arith.divide_by_radix((high[0], arith.negate(high[1])), 2)
    total, rotated = arith.add(low, high), arith.multiply(arith.subtract(low, high), twiddle)
    below = arith.half_of_sum(total[0], rotated[0]), arith.half_of_sum(total[1], rotated[1])
    return below, (
        arith.half_of_sum(total[0], arith.negate(rotated[0])),
        arith.half_of_sum(arith.negate(total[1]), rotated[1]),
    )


def _compute_rfft(call: OpCall) -> te.Tensor:
    """Build a loop over rows, each of which is transformed in a workspace of complex numbers."""
    data = call.data
    length, dtype, size = int(call.attrs["fft_length"]), data.type.dtype, data.type.shape[-1]
    rows, half = prod(data.type.shape[:-1]), length // 2
    tables = (data.packed(compute_twiddles(half, half, 0, dtype)), data.packed(super_twiddles(length, dtype)))

    def build_rfft_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, twiddle_table, last), (out, work) = operands, results
        n = Var("n")

        def read_sample(index: Expr, part: Expr) -> Expr:
            at = index * 2 + part
            return ir.select(at < size, x[n, at], ir.const(0, x.dtype)) if size < length else x[n, at]

        return ir.loops(
            [(n, rows)],
            ir.seq(
                build_digit_reversed_load(read_sample, work),
                *build_fft_stages(work, twiddle_table),
                _build_real_spectrum(work, last, out, n),
            ),
        )

    results = (("out", (rows, half + 1, 2), dtype), ("work", (half, 2), dtype))
    return te.extern("transform", (data.tensor((rows, size)), *tables), results, build_rfft_loops)[0]


def _build_real_spectrum(work: Buffer, super_twiddle_table: Buffer, out: Buffer, row_index: Var) -> Stmt:
    """Build the loop that combines the spectrum of a row of reals from the transform of half as many complex
    numbers."""
    k, half, i, held = fft_arithmetic(work.dtype, over_tir=True), work.shape[0], Var("f"), LetCollector("r")
    first = held.bind_complex(k.divide_by_radix((work[0, 0], work[0, 1]), 2))
    ends = (
        k.add((first[0], first[0]), (first[1], first[1]))[0],
        k.subtract((first[0], first[0]), (first[1], first[1]))[0],
    )
    zero = ir.const(0, work.dtype)
    stores = [
        ir.Store(out, (row_index, ir.const(place, "int32"), ir.const(part, "int32")), value)
        for place, pair in ((0, (ends[0], zero)), (half, (ends[1], zero)))
        for part, value in enumerate(pair)
    ]
    edge = held.wrap_in_definitions(ir.seq(*stores))
    held = LetCollector("m")
    low, high = (held.bind_complex((work[place, 0], work[place, 1])) for place in (i + 1, half - 1 - i))
    pairs = combine_half_length_frequencies(
        LetBindingComplexArithmetic(k, held), low, high, (super_twiddle_table[i, 0], super_twiddle_table[i, 1])
    )
    stores = [
        ir.Store(out, (row_index, place, ir.const(part, "int32")), value)
        for place, pair in zip((i + 1, half - 1 - i), pairs, strict=True)
        for part, value in enumerate(pair)
    ]
    return ir.seq(edge, ir.loops([(i, half // 2)], held.wrap_in_definitions(ir.seq(*stores))))


def _make_rfft_test_cases() -> Iterable[Case]:
    for shape, length in (((4,), 4), ((2, 7), 8), ((30,), 32), ((64,), 64), ((2, 3, 16), 16)):
        for dtype in DTYPES:
            yield Case({"fft_length": length}, (TensorType(shape, dtype),), tolerance=2e-5, name=f"{dtype} {length}")


FFT_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "rfft",
        attrs={"fft_length": integer("a power of two", least=1)},
        infer=_infer_rfft_types,
        reference=_evaluate_rfft_reference,
        compute=_compute_rfft,
        cases=_make_rfft_test_cases,
        operand_names=("data",),
    ),
)


# ---- ``irfft``: real numbers from their spectrum along the last axis, interleaved (real, imaginary).
#
# In fixed point it equals KISS FFT's inverse bit for bit: the steps of ``rfft`` in reverse order, with the same butterflies on
# exchanged real and imaginary parts. Float results are divided by the length, integer results are not.
#
# Sources: TFLite Micro ``signal/src/kiss_fft_wrappers``, ``irfft_int16.cc``; KISS FFT 1.3.0 ``kiss_fftr.c``.


def _infer_irfft_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    tensor_type, length = types[0], attrs["fft_length"]
    if length < 4 or length & (length - 1) or tensor_type.dtype not in DTYPES:
        raise ModelError(
            f"irfft: unsupported length or dtype; got fft_length={length} and {tensor_type.dtype}, expected a power of two "
            f"from 4 on and {' or '.join(DTYPES)}"
        )
    if not tensor_type.shape or tensor_type.shape[-1] != length + 2:
        raise ModelError(
            f"irfft: the data's last axis does not fit; got {tensor_type.shape}, expected {length + 2} numbers "
            "(fft_length + 2)"
        )
    return (TensorType((*tensor_type.shape[:-1], length), tensor_type.dtype),)


def _evaluate_irfft_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, length = arrays[0], attrs["fft_length"]
    pairs = x.reshape(-1, length // 2 + 1, 2)
    if x.dtype == np.float32:
        numbers = pairs[..., 0].astype(np.float64) + 1j * pairs[..., 1]
        return (np.fft.irfft(numbers, length).reshape(*x.shape[:-1], length).astype(np.float32),)
    rows = [_irfft_row_in_numpy(row.astype(np.int64), length, x.dtype.name) for row in pairs]
    return (np.array(rows, np.int64).reshape(*x.shape[:-1], length).astype(x.dtype),)


def _irfft_row_in_numpy(spectrum: Array, length: int, dtype: str) -> Array:
    """Compute the inverse transform of one spectrum in fixed point over numpy. Complex numbers are stored as
    (imaginary, real)."""
    k, half = fft_arithmetic(dtype, over_tir=False), length // 2
    z, table = np.zeros((half, 2), np.int64), super_twiddles(length, dtype).astype(np.int64)
    z[0] = _combine_lowest_and_highest_frequency(k, spectrum[0, 0], spectrum[half, 0])[::-1]
    for i in range(1, half // 2 + 1):
        twiddle = (table[i - 1, 0], -table[i - 1, 1])
        low, high = _split_into_half_length_frequencies(k, tuple(spectrum[i]), tuple(spectrum[half - i]), twiddle)
        z[i], z[half - i] = low[::-1], high[::-1]
    return fft_in_numpy(k, z, compute_twiddles(half, half, 0, dtype).astype(np.int64))[:, ::-1].reshape(-1)


def _combine_lowest_and_highest_frequency(arith: ComplexArithmetic, first: Any, last: Any) -> Complex:
    """Return element 0 of the input of the inverse transform: the ``first`` (lowest) and ``last`` (highest) frequency
    of a spectrum of reals, which have no imaginary part, as one complex number."""
    total, difference = arith.add((first, first), (last, last))[0], arith.subtract((first, first), (last, last))[0]
    return arith.divide_by_radix((total, difference), 2)


def _split_into_half_length_frequencies(
    arith: ComplexArithmetic, low: Complex, high: Complex, twiddle: Complex
) -> tuple[Complex, Complex]:
    """Return elements k and n - k of the input of the inverse transform of n complex numbers.

    ``low`` and ``high``: frequencies k and n - k of the spectrum of 2 n reals. ``twiddle``: the factor for k."""
    low, high = arith.divide_by_radix(low, 2), arith.divide_by_radix((high[0], arith.negate(high[1])), 2)
    even, odd = arith.add(low, high), arith.multiply(arith.subtract(low, high), twiddle)
    above = arith.subtract(even, odd)
    return arith.add(even, odd), (above[0], arith.negate(above[1]))


def _compute_irfft(call: OpCall) -> te.Tensor:
    """Build a loop over rows, each of which is transformed in two workspaces of complex numbers."""
    data = call.data
    length, dtype = int(call.attrs["fft_length"]), data.type.dtype
    rows, half = prod(data.type.shape[:-1]), length // 2
    tables = (data.packed(compute_twiddles(half, half, 0, dtype)), data.packed(super_twiddles(length, dtype)))

    def build_irfft_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, twiddle_table, last), (out, front, work) = operands, results
        n, i, part = Var("n"), Var("i"), Var("part")
        value = work[i, 1 - part]
        sample = value / float(length) if dtype == "float32" else value
        leave = ir.loops([(i, half), (part, 2)], ir.Store(out, (n, i * 2 + part), sample))
        moved = build_digit_reversed_load(lambda index, which: front[index, which], work)
        return ir.loops(
            [(n, rows)],
            ir.seq(
                *_build_input_loops_of_inverse_fft(x, last, front, n),
                moved,
                *build_fft_stages(work, twiddle_table),
                leave,
            ),
        )

    results = (("out", (rows, length), dtype), ("front", (half, 2), dtype), ("work", (half, 2), dtype))
    return te.extern("transform", (data.tensor((rows, half + 1, 2)), *tables), results, build_irfft_loops)[0]


def _build_input_loops_of_inverse_fft(
    spectrum: Buffer, super_twiddle_table: Buffer, work_buffer: Buffer, row_index: Var
) -> Iterable[Stmt]:
    """Yield the loops that compute the input of the inverse transform, as complex numbers (imaginary, real) in
    ``work_buffer``."""
    k, half, i, held = (
        fft_arithmetic(work_buffer.dtype, over_tir=True),
        work_buffer.shape[0],
        Var("f"),
        LetCollector("a"),
    )
    ends = enumerate(_combine_lowest_and_highest_frequency(k, spectrum[row_index, 0, 0], spectrum[row_index, half, 0]))
    yield ir.seq(*(ir.Store(work_buffer, (_ZERO, ir.const(1 - part, "int32")), value) for part, value in ends))
    low, high = (
        held.bind_complex((spectrum[row_index, place, 0], spectrum[row_index, place, 1]))
        for place in (i + 1, half - 1 - i)
    )
    named = LetBindingComplexArithmetic(k, held)
    pairs = _split_into_half_length_frequencies(
        named, low, high, (super_twiddle_table[i, 0], named.negate(super_twiddle_table[i, 1]))
    )
    stores = [
        ir.Store(work_buffer, (place, ir.const(1 - part, "int32")), value)
        for place, pair in zip((i + 1, half - 1 - i), pairs, strict=True)
        for part, value in enumerate(pair)
    ]
    yield ir.loops([(i, half // 2)], held.wrap_in_definitions(ir.seq(*stores)))


def _make_irfft_test_cases() -> Iterable[Case]:
    rng = np.random.default_rng(6)
    for shape, length in (((6,), 4), ((2, 10), 8), ((34,), 32), ((66,), 64)):
        for dtype in DTYPES:
            most = {"int16": 8000, "int32": 1 << 28, "float32": 4}[dtype]
            x = rng.uniform(-most, most, shape).astype(dtype)
            x[..., 1] = x[..., -1] = 0
            types = (TensorType(shape, dtype),)
            yield Case({"fft_length": length}, types, arrays=(x,), tolerance=2e-5, name=f"{dtype} {length}")


FFT_INVERSE_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "irfft",
        attrs={"fft_length": integer("a power of two", least=1)},
        infer=_infer_irfft_types,
        reference=_evaluate_irfft_reference,
        compute=_compute_irfft,
        cases=_make_irfft_test_cases,
        operand_names=("data",),
    ),
)


# ---- Matrices of discrete Fourier transforms, for lengths that ``rfft`` and ``irfft`` do not have.


def _compute_dft_factors(sample_count: int, frequency_count: int, is_inverse: bool) -> tuple[Array, Array]:
    """Return the real and the imaginary parts of the factors of a discrete Fourier transform.

    Both have shape (``sample_count``, ``frequency_count``). They are cosines and negated sines; for the inverse
    transform, cosines and sines divided by ``sample_count``."""
    # The product of indices is reduced modulo length first, so that large angles lose no precision.
    angle = 2 * np.pi * (np.outer(np.arange(sample_count), np.arange(frequency_count)) % sample_count) / sample_count
    scale = 1 / sample_count if is_inverse else 1.0
    return np.cos(angle) * scale, (np.sin(angle) if is_inverse else -np.sin(angle)) * scale


def compute_dft_matrix(
    sample_count: int, bin_count: int, is_input_complex: bool, is_inverse: bool, is_output_real: bool
) -> Array:
    """Return the matrix of a discrete Fourier transform, of shape (samples, input parts, bins, output parts).

    Parts are the real and the imaginary part of a number; the axis has one element where numbers are real.
    ``is_input_complex``: the input is complex. ``is_output_real``: the matrix is that of the inverse transform to real
    numbers, from the lower half (``sample_count`` // 2 + 1 rows) of a conjugate symmetric spectrum. Its rows are
    doubled to include the mirrored upper half. The row of frequency 0 is not, nor that of half the sampling rate, since
    they have no mirror image."""
    cosine, sine = _compute_dft_factors(sample_count, bin_count, is_inverse)
    if is_output_real:
        half = sample_count // 2 + 1
        twice = np.full((half, 1), 2.0)
        twice[0] = 1
        if sample_count % 2 == 0:
            twice[-1] = 1
        return np.stack([cosine[:half] * twice, -sine[:half] * twice], 1)[..., None]
    real = np.stack([cosine, sine], -1)
    imaginary = np.stack([-sine, cosine], -1)
    return np.stack([real, imaginary], 1) if is_input_complex else real[:, None]


OPERATORS = (*FFT_OPERATORS, *FFT_INVERSE_OPERATORS)
