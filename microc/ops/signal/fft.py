"""The fast Fourier transform of real numbers and its inverse."""

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
    LetCollector,
    NamingComplex,
    complex_arithmetic,
)
from microc.ops.registry import Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

# ---- Stages of the transform and its inverse: radices, twiddle factors, butterflies; over numpy and as loops.
#
# Source: KISS FFT 1.3.0 ``kiss_fft.c``.

DTYPES = ("int16", "int32", "float32")
_ZERO = ir.const(0, "int32")


def fft_radices(size: int) -> tuple[int, ...]:
    """Return the radices of a power of two, outermost first: fours, and a two if one remains."""
    found = []
    while size > 1:
        found.append(4 if size % 4 == 0 else 2)
        size //= found[-1]
    return tuple(found)


def compute_twiddles(size: int, count: int, first: float, dtype: str) -> Array:
    """Return the table of twiddle factors (count, 2), e to the -2 pi i (k + first) / size for k = 0 .. count - 1.

    Fixed point rounds halves up."""
    angle = -2 * np.pi * (np.arange(count) + first) / size
    table = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if dtype.startswith("float"):
        return table.astype(dtype)
    return np.floor(0.5 + ((1 << (15 if dtype == "int16" else 31)) - 1) * table).astype(dtype)


def super_twiddles(length: int, dtype: str) -> Array:
    """Return KISS FFT's super twiddles of a transform of ``length`` reals, which combine their spectrum.

    They are twiddle factors a quarter period ahead."""
    return compute_twiddles(length, length // 4, 1 + length / 4, dtype)


def _butterfly(k: ComplexArithmetic, x: Sequence[Complex], twiddle_factors: Sequence[Complex]) -> list[Complex]:
    """Return the results of a butterfly of two or four numbers over the arithmetic ``k``.

    These are sums and differences; all inputs but the first are multiplied by a twiddle factor if there are any."""
    first, *others = x
    first = k.divide(first, len(x))
    if twiddle_factors:
        rotated = [k.rotate(value, len(x), twiddle) for value, twiddle in zip(others, twiddle_factors, strict=True)]
    else:
        rotated = [k.divide(value, len(x)) for value in others]
    if len(x) == 2:
        return [k.add(first, rotated[0]), k.subtract(first, rotated[0])]
    difference, total = k.subtract(first, rotated[1]), k.add(first, rotated[1])
    outer, cross = k.add(rotated[0], rotated[2]), k.subtract(rotated[0], rotated[2])
    ahead, behind = (cross[1], k.negative(cross[0])), (k.negative(cross[1]), cross[0])
    return [k.add(total, outer), k.add(difference, ahead), k.subtract(total, outer), k.add(difference, behind)]


def transform_array(k: ComplexArithmetic, z: Array, table: Array) -> Array:
    """Transform complex numbers (n, 2) stage by stage, over numpy; ``table`` holds the twiddle factors."""
    size, radices = len(z), fft_radices(len(z))
    steps = [1, *accumulate(radices, mul)]
    parts = [size // step for step in steps[1:]]
    order = np.zeros(radices, np.int64)
    for axis, radix in enumerate(radices):
        order += (np.arange(radix) * steps[axis]).reshape(-1, *(1,) * (len(radices) - axis - 1))
    z = z[order.reshape(-1)]
    for radix, part, step in reversed(list(zip(radices, parts, steps, strict=False))):
        blocks = z.reshape(-1, radix, part, 2)
        twiddle_table = [table[np.arange(part) * step * j] for j in range(1, radix)]
        x = [(blocks[:, j, :, 0], blocks[:, j, :, 1]) for j in range(radix)]
        made = _butterfly(k, x, [(t[:, 0], t[:, 1]) for t in twiddle_table])
        z = np.stack([np.stack(value, -1) for value in made], axis=1).reshape(-1, 2)
    return z


def load_reversed(value: Callable[[Expr, Expr], Expr], work: Buffer) -> Stmt:
    """Build loops that store complex numbers in digit-reversed order, as the butterflies need them, in ``work``.

    ``value`` returns part 0 (real) or 1 (imaginary) of the number at an index."""
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
    return ir.loops(loops, ir.Store(work, (place, part), value(source, part)))


def load_first_stage(value: Callable[[Expr, Expr], Expr], work: Buffer, k: ComplexArithmetic) -> Stmt:
    """Build loops that store as :func:`load_reversed` does, but through the first stage, which has no twiddle factors."""
    *radices, last = fft_radices(work.shape[0])
    digits = [Var(f"d{axis}") for axis in range(len(radices))]
    source: Expr = _ZERO
    place: Expr = _ZERO
    step, rest = 1, work.shape[0]
    for digit, radix in zip(digits, radices, strict=True):
        rest //= radix
        source, place, step = source + digit * step, place + digit * rest, step * radix
    held, parts = LetCollector("e"), [ir.const(part, "int32") for part in (0, 1)]
    x = [held.pair((value(source + j * step, parts[0]), value(source + j * step, parts[1]))) for j in range(last)]
    made = [held.pair(pair) for pair in _butterfly(NamingComplex(k, held), x, ())]
    stores = [ir.Store(work, (place + j, part), pair[i]) for j, pair in enumerate(made) for i, part in enumerate(parts)]
    return ir.loops(list(zip(digits, radices, strict=True)), held.around(ir.seq(*stores)))


def build_stages(
    work: Buffer, twiddle_table: Buffer, k: ComplexArithmetic | None = None, done: int = 0
) -> Iterable[Stmt]:
    """Yield the loops of the stages of butterflies, the smallest first, without the first ``done``.

    ``k``: the arithmetic (default: that of the dtype)."""
    k = k or complex_arithmetic(work.dtype, loops=True)
    size, radices = work.shape[0], fft_radices(work.shape[0])
    steps = [1, *accumulate(radices, mul)]
    for stage in reversed(range(len(radices) - done)):
        radix, step, part = radices[stage], steps[stage], size // steps[stage + 1]
        b, i = Var("b"), Var("i")
        places = [b * (radix * part) + i + j * part for j in range(radix)]
        x = [(work[place, 0], work[place, 1]) for place in places]
        stage_twiddles = [(twiddle_table[i * (step * j), 0], twiddle_table[i * (step * j), 1]) for j in range(1, radix)]
        held = LetCollector(f"s{stage}")
        inputs = [held.pair(value) for value in x]
        made = [held.pair(value) for value in _butterfly(NamingComplex(k, held), inputs, stage_twiddles)]
        stores = [
            ir.Store(work, (place, ir.const(part_, "int32")), value[part_])
            for place, value in zip(places, made, strict=True)
            for part_ in (0, 1)
        ]
        yield ir.loops([(b, size // (radix * part)), (i, part)], held.around(ir.seq(*stores)))


# ---- ``rfft``: the spectrum of real numbers along the last axis, interleaved (real, imaginary).
#
# Shorter rows are padded with zeros to ``fft_length``, a power of two. Integers are KISS FFT's fixed point, bit for bit: a row of
# reals is read as half as many complex numbers, which pass through butterflies of four and two, each of which divides by its
# radix; at the end the spectrum of the reals is combined from theirs.
#
# Sources: TFLite Micro ``signal/src/kiss_fft_wrappers``, ``rfft_int16.cc``; KISS FFT 1.3.0 ``kiss_fft.c``, ``kiss_fftr.c``.


def _infer_rfft(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    tensor_type, length = types[0], attrs["fft_length"]
    if length < 4 or length & (length - 1) or tensor_type.dtype not in DTYPES:
        raise ModelError(
            f"rfft: wrong length or dtype; got fft_length={length} and {tensor_type.dtype}, expected a power of two "
            f"from 4 on and {' or '.join(DTYPES)}"
        )
    if not tensor_type.shape or not 1 <= tensor_type.shape[-1] <= length:
        raise ModelError(
            f"rfft: the data's last axis does not fit; got {tensor_type.shape}, expected 1..{length} samples "
            "(fft_length)"
        )
    return (TensorType((*tensor_type.shape[:-1], length + 2), tensor_type.dtype),)


def _reference_rfft(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, length = arrays[0], attrs["fft_length"]
    if x.dtype == np.float32:
        spectrum = np.fft.rfft(x.astype(np.float64), length)
        return (np.stack([spectrum.real, spectrum.imag], -1).reshape(*x.shape[:-1], -1).astype(np.float32),)
    rows = [_transform_row(np.asarray(row, np.int64), length, x.dtype.name) for row in x.reshape(-1, x.shape[-1])]
    return (np.array(rows, np.int64).reshape(*x.shape[:-1], length + 2).astype(x.dtype),)


def _transform_row(x: Array, length: int, dtype: str) -> Array:
    """Transform one row of reals in fixed point, over numpy."""
    k, half = complex_arithmetic(dtype, loops=False), length // 2
    pairs = np.zeros(length, np.int64)
    pairs[: x.size] = x
    z = transform_array(k, pairs.reshape(half, 2), compute_twiddles(half, half, 0, dtype).astype(np.int64))
    out = np.zeros((half + 1, 2), np.int64)
    real, imaginary = k.divide((z[0, 0], z[0, 1]), 2)
    out[0, 0], out[half, 0] = k.add((real, 0), (imaginary, 0))[0], k.subtract((real, 0), (imaginary, 0))[0]
    table = super_twiddles(length, dtype).astype(np.int64)
    for i in range(1, half // 2 + 1):
        out[i], out[half - i] = combine_frequencies(k, tuple(z[i]), tuple(z[half - i]), tuple(table[i - 1]))
    return out.reshape(-1)


def combine_frequencies(k: ComplexArithmetic, low: Complex, high: Complex, twiddle: Complex) -> tuple[Complex, Complex]:
    """Return frequencies k and n - k of a spectrum of reals from those of the spectrum of half as many complex numbers."""
    low, high = k.divide(low, 2), k.divide((high[0], k.negative(high[1])), 2)
    total, rotated = k.add(low, high), k.multiply(k.subtract(low, high), twiddle)
    below = k.half(total[0], rotated[0]), k.half(total[1], rotated[1])
    return below, (k.half(total[0], k.negative(rotated[0])), k.half(k.negative(total[1]), rotated[1]))


def _compute_rfft(call: OpCall) -> te.Tensor:
    """Build a loop over rows, each transformed in a workspace of complex numbers."""
    data = call.data
    length, dtype, size = int(call.attrs["fft_length"]), data.type.dtype, data.type.shape[-1]
    rows, half = prod(data.type.shape[:-1]), length // 2
    tables = (data.packed(compute_twiddles(half, half, 0, dtype)), data.packed(super_twiddles(length, dtype)))

    def build(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, twiddle_table, last), (out, work) = operands, results
        n = Var("n")

        def sample(index: Expr, part: Expr) -> Expr:
            at = index * 2 + part
            return ir.select(at < size, x[n, at], ir.const(0, x.dtype)) if size < length else x[n, at]

        return ir.loops(
            [(n, rows)],
            ir.seq(
                load_reversed(sample, work),
                *build_stages(work, twiddle_table),
                _build_real_spectrum(work, last, out, n),
            ),
        )

    results = (("out", (rows, half + 1, 2), dtype), ("work", (half, 2), dtype))
    return te.extern("transform", (data.tensor((rows, size)), *tables), results, build)[0]


def _build_real_spectrum(work: Buffer, last: Buffer, out: Buffer, n: Var) -> Stmt:
    """Build the spectrum of a row of reals from that of half as many complex numbers."""
    k, half, i, held = complex_arithmetic(work.dtype, loops=True), work.shape[0], Var("f"), LetCollector("r")
    first = held.pair(k.divide((work[0, 0], work[0, 1]), 2))
    ends = (
        k.add((first[0], first[0]), (first[1], first[1]))[0],
        k.subtract((first[0], first[0]), (first[1], first[1]))[0],
    )
    zero = ir.const(0, work.dtype)
    stores = [
        ir.Store(out, (n, ir.const(place, "int32"), ir.const(part, "int32")), value)
        for place, pair in ((0, (ends[0], zero)), (half, (ends[1], zero)))
        for part, value in enumerate(pair)
    ]
    edge = held.around(ir.seq(*stores))
    held = LetCollector("m")
    low, high = (held.pair((work[place, 0], work[place, 1])) for place in (i + 1, half - 1 - i))
    pairs = combine_frequencies(NamingComplex(k, held), low, high, (last[i, 0], last[i, 1]))
    stores = [
        ir.Store(out, (n, place, ir.const(part, "int32")), value)
        for place, pair in zip((i + 1, half - 1 - i), pairs, strict=True)
        for part, value in enumerate(pair)
    ]
    return ir.seq(edge, ir.loops([(i, half // 2)], held.around(ir.seq(*stores))))


def _cases_rfft() -> Iterable[Case]:
    for shape, length in (((4,), 4), ((2, 7), 8), ((30,), 32), ((64,), 64), ((2, 3, 16), 16)):
        for dtype in DTYPES:
            yield Case({"fft_length": length}, (TensorType(shape, dtype),), tolerance=2e-5, name=f"{dtype} {length}")


FFT_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "rfft",
        attrs={"fft_length": integer("a power of two", least=1)},
        infer=_infer_rfft,
        reference=_reference_rfft,
        compute=_compute_rfft,
        cases=_cases_rfft,
        operand_names=("data",),
    ),
)


# ---- ``irfft``: real numbers from their spectrum along the last axis, interleaved (real, imaginary).
#
# In fixed point it is KISS FFT's inverse, bit for bit: the steps of ``rfft`` in reverse, with the same butterflies on exchanged
# real and imaginary parts. Floats are divided by the length, integers are not.
#
# Sources: TFLite Micro ``signal/src/kiss_fft_wrappers``, ``irfft_int16.cc``; KISS FFT 1.3.0 ``kiss_fftr.c``.


def _infer_irfft(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    tensor_type, length = types[0], attrs["fft_length"]
    if length < 4 or length & (length - 1) or tensor_type.dtype not in DTYPES:
        raise ModelError(
            f"irfft: wrong length or dtype; got fft_length={length} and {tensor_type.dtype}, expected a power of two "
            f"from 4 on and {' or '.join(DTYPES)}"
        )
    if not tensor_type.shape or tensor_type.shape[-1] != length + 2:
        raise ModelError(
            f"irfft: the data's last axis does not fit; got {tensor_type.shape}, expected {length + 2} numbers "
            "(fft_length + 2)"
        )
    return (TensorType((*tensor_type.shape[:-1], length), tensor_type.dtype),)


def _reference_irfft(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, length = arrays[0], attrs["fft_length"]
    pairs = x.reshape(-1, length // 2 + 1, 2)
    if x.dtype == np.float32:
        numbers = pairs[..., 0].astype(np.float64) + 1j * pairs[..., 1]
        return (np.fft.irfft(numbers, length).reshape(*x.shape[:-1], length).astype(np.float32),)
    rows = [_inverse_row(row.astype(np.int64), length, x.dtype.name) for row in pairs]
    return (np.array(rows, np.int64).reshape(*x.shape[:-1], length).astype(x.dtype),)


def _inverse_row(x: Array, length: int, dtype: str) -> Array:
    """Transform one spectrum back in fixed point, over numpy; complex numbers are stored as (imaginary, real)."""
    k, half = complex_arithmetic(dtype, loops=False), length // 2
    z, table = np.zeros((half, 2), np.int64), super_twiddles(length, dtype).astype(np.int64)
    z[0] = _combine_ends(k, x[0, 0], x[half, 0])[::-1]
    for i in range(1, half // 2 + 1):
        twiddle = (table[i - 1, 0], -table[i - 1, 1])
        low, high = _split_frequencies(k, tuple(x[i]), tuple(x[half - i]), twiddle)
        z[i], z[half - i] = low[::-1], high[::-1]
    return transform_array(k, z, compute_twiddles(half, half, 0, dtype).astype(np.int64))[:, ::-1].reshape(-1)


def _combine_ends(k: ComplexArithmetic, first: Any, last: Any) -> Complex:
    """Return the complex number that combines the lowest and the highest frequency."""
    total, difference = k.add((first, first), (last, last))[0], k.subtract((first, first), (last, last))[0]
    return k.divide((total, difference), 2)


def _split_frequencies(k: ComplexArithmetic, low: Complex, high: Complex, twiddle: Complex) -> tuple[Complex, Complex]:
    """Return the complex numbers k and n - k from frequencies k and n - k of a spectrum of reals."""
    low, high = k.divide(low, 2), k.divide((high[0], k.negative(high[1])), 2)
    even, odd = k.add(low, high), k.multiply(k.subtract(low, high), twiddle)
    above = k.subtract(even, odd)
    return k.add(even, odd), (above[0], k.negative(above[1]))


def _compute_irfft(call: OpCall) -> te.Tensor:
    """Build a loop over rows, each transformed in two workspaces of complex numbers."""
    data = call.data
    length, dtype = int(call.attrs["fft_length"]), data.type.dtype
    rows, half = prod(data.type.shape[:-1]), length // 2
    tables = (data.packed(compute_twiddles(half, half, 0, dtype)), data.packed(super_twiddles(length, dtype)))

    def build(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, twiddle_table, last), (out, front, work) = operands, results
        n, i, part = Var("n"), Var("i"), Var("part")
        value = work[i, 1 - part]
        sample = value / float(length) if dtype == "float32" else value
        leave = ir.loops([(i, half), (part, 2)], ir.Store(out, (n, i * 2 + part), sample))
        moved = load_reversed(lambda index, which: front[index, which], work)
        return ir.loops(
            [(n, rows)], ir.seq(*_load_frequencies(x, last, front, n), moved, *build_stages(work, twiddle_table), leave)
        )

    results = (("out", (rows, length), dtype), ("front", (half, 2), dtype), ("work", (half, 2), dtype))
    return te.extern("transform", (data.tensor((rows, half + 1, 2)), *tables), results, build)[0]


def _load_frequencies(x: Buffer, last: Buffer, front: Buffer, n: Var) -> Iterable[Stmt]:
    """Yield the loops that build the complex numbers (imaginary, real) whose transform is the samples."""
    k, half, i, held = complex_arithmetic(front.dtype, loops=True), front.shape[0], Var("f"), LetCollector("a")
    ends = enumerate(_combine_ends(k, x[n, 0, 0], x[n, half, 0]))
    yield ir.seq(*(ir.Store(front, (_ZERO, ir.const(1 - part, "int32")), value) for part, value in ends))
    low, high = (held.pair((x[n, place, 0], x[n, place, 1])) for place in (i + 1, half - 1 - i))
    named = NamingComplex(k, held)
    pairs = _split_frequencies(named, low, high, (last[i, 0], named.negative(last[i, 1])))
    stores = [
        ir.Store(front, (place, ir.const(1 - part, "int32")), value)
        for place, pair in zip((i + 1, half - 1 - i), pairs, strict=True)
        for part, value in enumerate(pair)
    ]
    yield ir.loops([(i, half // 2)], held.around(ir.seq(*stores)))


def _cases_irfft() -> Iterable[Case]:
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
        infer=_infer_irfft,
        reference=_reference_irfft,
        compute=_compute_irfft,
        cases=_cases_irfft,
        operand_names=("data",),
    ),
)


OPERATORS = (*FFT_OPERATORS, *FFT_INVERSE_OPERATORS)
