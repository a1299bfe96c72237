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
from microc.ops.elementwise.complex_numbers import Arithmetic, Complex, Held, Named, arithmetic
from microc.ops.registry import Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

# ---- The stages that the fast Fourier transform and its inverse share: radices, turns, butterflies; over numpy and
# as loops.
#
# Source: KISS FFT 1.3.0 ``kiss_fft.c``.

DTYPES = ("int16", "int32", "float32")
_ZERO = ir.const(0, "int32")


def factors(size: int) -> tuple[int, ...]:
    """Radices of a power of two, outermost first: fours, then a two where one is left."""
    found = []
    while size > 1:
        found.append(4 if size % 4 == 0 else 2)
        size //= found[-1]
    return tuple(found)


def twiddles(size: int, count: int, first: float, dtype: str) -> Array:
    """(count, 2): e to the -2 pi i (k + first) / size; fixed point rounds halves up."""
    angle = -2 * np.pi * (np.arange(count) + first) / size
    table = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if dtype.startswith("float"):
        return table.astype(dtype)
    return np.floor(0.5 + ((1 << (15 if dtype == "int16" else 31)) - 1) * table).astype(dtype)


def super_twiddles(length: int, dtype: str) -> Array:
    """The turns that put the spectrum of reals together: those of ``length``, a quarter ahead."""
    return twiddles(length, length // 4, 1 + length / 4, dtype)


def _butterfly(k: Arithmetic, x: Sequence[Complex], turns: Sequence[Complex]) -> list[Complex]:
    """Two or four numbers, all but the first turned (or none), become their sums and differences."""
    first, *others = x
    first = k.divided(first, len(x))
    if turns:
        turned = [k.turned(value, len(x), turn) for value, turn in zip(others, turns, strict=True)]
    else:
        turned = [k.divided(value, len(x)) for value in others]
    if len(x) == 2:
        return [k.add(first, turned[0]), k.subtract(first, turned[0])]
    difference, total = k.subtract(first, turned[1]), k.add(first, turned[1])
    outer, cross = k.add(turned[0], turned[2]), k.subtract(turned[0], turned[2])
    ahead, behind = (cross[1], k.negative(cross[0])), (k.negative(cross[1]), cross[0])
    return [k.add(total, outer), k.add(difference, ahead), k.subtract(total, outer), k.add(difference, behind)]


def transformed(k: Arithmetic, z: Array, table: Array) -> Array:
    """The complex transform (n, 2), stage by stage."""
    size, radices = len(z), factors(len(z))
    steps = [1, *accumulate(radices, mul)]
    parts = [size // step for step in steps[1:]]
    order = np.zeros(radices, np.int64)
    for axis, radix in enumerate(radices):
        order += (np.arange(radix) * steps[axis]).reshape(-1, *(1,) * (len(radices) - axis - 1))
    z = z[order.reshape(-1)]
    for radix, part, step in reversed(list(zip(radices, parts, steps, strict=False))):
        blocks = z.reshape(-1, radix, part, 2)
        turns = [table[np.arange(part) * step * j] for j in range(1, radix)]
        x = [(blocks[:, j, :, 0], blocks[:, j, :, 1]) for j in range(radix)]
        made = _butterfly(k, x, [(t[:, 0], t[:, 1]) for t in turns])
        z = np.stack([np.stack(value, -1) for value in made], axis=1).reshape(-1, 2)
    return z


def enter(value: Callable[[Expr, Expr], Expr], work: Buffer) -> Stmt:
    """Complex numbers, given by index and part, in the order that the butterflies want."""
    radices = factors(work.shape[0])
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


def enter_first(value: Callable[[Expr, Expr], Expr], work: Buffer, k: Arithmetic) -> Stmt:
    """As :func:`enter`, through the first butterflies, which turn nothing."""
    *radices, last = factors(work.shape[0])
    digits = [Var(f"d{axis}") for axis in range(len(radices))]
    source: Expr = _ZERO
    place: Expr = _ZERO
    step, rest = 1, work.shape[0]
    for digit, radix in zip(digits, radices, strict=True):
        rest //= radix
        source, place, step = source + digit * step, place + digit * rest, step * radix
    held, parts = Held("e"), [ir.const(part, "int32") for part in (0, 1)]
    x = [held.pair((value(source + j * step, parts[0]), value(source + j * step, parts[1]))) for j in range(last)]
    made = [held.pair(pair) for pair in _butterfly(Named(k, held), x, ())]
    stores = [ir.Store(work, (place + j, part), pair[i]) for j, pair in enumerate(made) for i, part in enumerate(parts)]
    return ir.loops(list(zip(digits, radices, strict=True)), held.around(ir.seq(*stores)))


def stages(work: Buffer, turns: Buffer, k: Arithmetic | None = None, done: int = 0) -> Iterable[Stmt]:
    """The butterflies, the smallest first, ``done`` stages of which are done; ``k``: the dtype's arithmetic unless given."""
    k = k or arithmetic(work.dtype, loops=True)
    size, radices = work.shape[0], factors(work.shape[0])
    steps = [1, *accumulate(radices, mul)]
    for stage in reversed(range(len(radices) - done)):
        radix, step, part = radices[stage], steps[stage], size // steps[stage + 1]
        b, i = Var("b"), Var("i")
        places = [b * (radix * part) + i + j * part for j in range(radix)]
        x = [(work[place, 0], work[place, 1]) for place in places]
        turned = [(turns[i * (step * j), 0], turns[i * (step * j), 1]) for j in range(1, radix)]
        held = Held(f"s{stage}")
        inputs = [held.pair(value) for value in x]
        made = [held.pair(value) for value in _butterfly(Named(k, held), inputs, turned)]
        stores = [
            ir.Store(work, (place, ir.const(part_, "int32")), value[part_])
            for place, value in zip(places, made, strict=True)
            for part_ in (0, 1)
        ]
        yield ir.loops([(b, size // (radix * part)), (i, part)], held.around(ir.seq(*stores)))


# ---- ``rfft``: the spectrum of real numbers along the last axis, interleaved (real, imaginary).
#
# ``fft_length``, a power of two, is what shorter rows are filled up to with zeros. Integers are those of KISS FFT in fixed point,
# bit for bit: a row of reals is taken for half as many complex numbers, which go through butterflies of four and two, each of
# which divides by its radix; at the end the spectrum of the reals is put together.
#
# Sources: TFLite Micro ``signal/src/kiss_fft_wrappers``, ``rfft_int16.cc``; KISS FFT 1.3.0 ``kiss_fft.c``, ``kiss_fftr.c``.


def _infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    kind, length = types[0], attrs["fft_length"]
    if length < 4 or length & (length - 1) or kind.dtype not in DTYPES:
        raise ModelError(f"rfft of {kind.dtype} of length {length}", hint="the length is a power of two from 4 on")
    if not kind.shape or not 1 <= kind.shape[-1] <= length:
        raise ModelError(f"rfft of shape {kind.shape} of length {length}")
    return (TensorType((*kind.shape[:-1], length + 2), kind.dtype),)


def _reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, length = arrays[0], attrs["fft_length"]
    if x.dtype == np.float32:
        spectrum = np.fft.rfft(x.astype(np.float64), length)
        return (np.stack([spectrum.real, spectrum.imag], -1).reshape(*x.shape[:-1], -1).astype(np.float32),)
    rows = [_row(np.asarray(row, np.int64), length, x.dtype.name) for row in x.reshape(-1, x.shape[-1])]
    return (np.array(rows, np.int64).reshape(*x.shape[:-1], length + 2).astype(x.dtype),)


def _row(x: Array, length: int, dtype: str) -> Array:
    """One row in fixed point."""
    k, half = arithmetic(dtype, loops=False), length // 2
    pairs = np.zeros(length, np.int64)
    pairs[: x.size] = x
    z = transformed(k, pairs.reshape(half, 2), twiddles(half, half, 0, dtype).astype(np.int64))
    out = np.zeros((half + 1, 2), np.int64)
    real, imaginary = k.divided((z[0, 0], z[0, 1]), 2)
    out[0, 0], out[half, 0] = k.add((real, 0), (imaginary, 0))[0], k.subtract((real, 0), (imaginary, 0))[0]
    table = super_twiddles(length, dtype).astype(np.int64)
    for i in range(1, half // 2 + 1):
        out[i], out[half - i] = together(k, tuple(z[i]), tuple(z[half - i]), tuple(table[i - 1]))
    return out.reshape(-1)


def together(k: Arithmetic, low: Complex, high: Complex, turn: Complex) -> tuple[Complex, Complex]:
    """Frequencies k and n - k of the reals from those of the complex numbers."""
    low, high = k.divided(low, 2), k.divided((high[0], k.negative(high[1])), 2)
    total, turned = k.add(low, high), k.times(k.subtract(low, high), turn)
    below = k.half(total[0], turned[0]), k.half(total[1], turned[1])
    return below, (k.half(total[0], k.negative(turned[0])), k.half(k.negative(total[1]), turned[1]))


def _compute(call: OpCall) -> te.Tensor:
    """The rows one after the other, each through a workspace of complex numbers."""
    data = call.data
    length, dtype, size = int(call.attrs["fft_length"]), data.type.dtype, data.type.shape[-1]
    rows, half = prod(data.type.shape[:-1]), length // 2
    tables = (data.packed(twiddles(half, half, 0, dtype)), data.packed(super_twiddles(length, dtype)))

    def build(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, turns, last), (out, work) = operands, results
        n = Var("n")

        def sample(index: Expr, part: Expr) -> Expr:
            at = index * 2 + part
            return ir.select(at < size, x[n, at], ir.const(0, x.dtype)) if size < length else x[n, at]

        return ir.loops([(n, rows)], ir.seq(enter(sample, work), *stages(work, turns), _finish(work, last, out, n)))

    results = (("out", (rows, half + 1, 2), dtype), ("work", (half, 2), dtype))
    return te.extern("transform", (data.tensor((rows, size)), *tables), results, build)[0]


def _finish(work: Buffer, last: Buffer, out: Buffer, n: Var) -> Stmt:
    """The spectrum of the reals."""
    k, half, i, held = arithmetic(work.dtype, loops=True), work.shape[0], Var("f"), Held("r")
    first = held.pair(k.divided((work[0, 0], work[0, 1]), 2))
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
    held = Held("m")
    low, high = (held.pair((work[place, 0], work[place, 1])) for place in (i + 1, half - 1 - i))
    pairs = together(Named(k, held), low, high, (last[i, 0], last[i, 1]))
    stores = [
        ir.Store(out, (n, place, ir.const(part, "int32")), value)
        for place, pair in zip((i + 1, half - 1 - i), pairs, strict=True)
        for part, value in enumerate(pair)
    ]
    return ir.seq(edge, ir.loops([(i, half // 2)], held.around(ir.seq(*stores))))


def _cases() -> Iterable[Case]:
    for shape, length in (((4,), 4), ((2, 7), 8), ((30,), 32), ((64,), 64), ((2, 3, 16), 16)):
        for dtype in DTYPES:
            yield Case({"fft_length": length}, (TensorType(shape, dtype),), tolerance=2e-5, name=f"{dtype} {length}")


FFT_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "rfft",
        attrs={"fft_length": integer("a power of two", least=1)},
        infer=_infer,
        reference=_reference,
        compute=_compute,
        cases=_cases,
        operand_names=("data",),
    ),
)


# ---- ``irfft``: real numbers from their spectrum along the last axis, interleaved (real, imaginary).
#
# In fixed point, KISS FFT's inverse bit for bit: the way of ``rfft`` back, through the same butterflies with real and imaginary
# parts exchanged. Floats are divided by the length, integers are not.
#
# Sources: TFLite Micro ``signal/src/kiss_fft_wrappers``, ``irfft_int16.cc``; KISS FFT 1.3.0 ``kiss_fftr.c``.


def _infer_inverse(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    kind, length = types[0], attrs["fft_length"]
    if length < 4 or length & (length - 1) or kind.dtype not in DTYPES:
        raise ModelError(f"irfft of {kind.dtype} of length {length}", hint="the length is a power of two from 4 on")
    if not kind.shape or kind.shape[-1] != length + 2:
        raise ModelError(f"irfft of shape {kind.shape} of length {length}")
    return (TensorType((*kind.shape[:-1], length), kind.dtype),)


def _reference_inverse(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, length = arrays[0], attrs["fft_length"]
    pairs = x.reshape(-1, length // 2 + 1, 2)
    if x.dtype == np.float32:
        numbers = pairs[..., 0].astype(np.float64) + 1j * pairs[..., 1]
        return (np.fft.irfft(numbers, length).reshape(*x.shape[:-1], length).astype(np.float32),)
    rows = [_samples(row.astype(np.int64), length, x.dtype.name) for row in pairs]
    return (np.array(rows, np.int64).reshape(*x.shape[:-1], length).astype(x.dtype),)


def _samples(x: Array, length: int, dtype: str) -> Array:
    """One row in fixed point; the complex numbers lie the other way round, (imaginary, real)."""
    k, half = arithmetic(dtype, loops=False), length // 2
    z, table = np.zeros((half, 2), np.int64), super_twiddles(length, dtype).astype(np.int64)
    z[0] = _ends(k, x[0, 0], x[half, 0])[::-1]
    for i in range(1, half // 2 + 1):
        turn = (table[i - 1, 0], -table[i - 1, 1])
        low, high = _apart(k, tuple(x[i]), tuple(x[half - i]), turn)
        z[i], z[half - i] = low[::-1], high[::-1]
    return transformed(k, z, twiddles(half, half, 0, dtype).astype(np.int64))[:, ::-1].reshape(-1)


def _ends(k: Arithmetic, first: Any, last: Any) -> Complex:
    """The complex number made of the lowest and the highest frequency."""
    total, difference = k.add((first, first), (last, last))[0], k.subtract((first, first), (last, last))[0]
    return k.divided((total, difference), 2)


def _apart(k: Arithmetic, low: Complex, high: Complex, turn: Complex) -> tuple[Complex, Complex]:
    """The complex numbers k and n - k of frequencies k and n - k."""
    low, high = k.divided(low, 2), k.divided((high[0], k.negative(high[1])), 2)
    even, odd = k.add(low, high), k.times(k.subtract(low, high), turn)
    above = k.subtract(even, odd)
    return k.add(even, odd), (above[0], k.negative(above[1]))


def _compute_inverse(call: OpCall) -> te.Tensor:
    """The rows one after the other, through two workspaces of complex numbers."""
    data = call.data
    length, dtype = int(call.attrs["fft_length"]), data.type.dtype
    rows, half = prod(data.type.shape[:-1]), length // 2
    tables = (data.packed(twiddles(half, half, 0, dtype)), data.packed(super_twiddles(length, dtype)))

    def build(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, turns, last), (out, front, work) = operands, results
        n, i, part = Var("n"), Var("i"), Var("part")
        value = work[i, 1 - part]
        sample = value / float(length) if dtype == "float32" else value
        leave = ir.loops([(i, half), (part, 2)], ir.Store(out, (n, i * 2 + part), sample))
        moved = enter(lambda index, which: front[index, which], work)
        return ir.loops([(n, rows)], ir.seq(*_begin(x, last, front, n), moved, *stages(work, turns), leave))

    results = (("out", (rows, length), dtype), ("front", (half, 2), dtype), ("work", (half, 2), dtype))
    return te.extern("transform", (data.tensor((rows, half + 1, 2)), *tables), results, build)[0]


def _begin(x: Buffer, last: Buffer, front: Buffer, n: Var) -> Iterable[Stmt]:
    """The complex numbers whose transform are the samples, (imaginary, real)."""
    k, half, i, held = arithmetic(front.dtype, loops=True), front.shape[0], Var("f"), Held("a")
    ends = enumerate(_ends(k, x[n, 0, 0], x[n, half, 0]))
    yield ir.seq(*(ir.Store(front, (_ZERO, ir.const(1 - part, "int32")), value) for part, value in ends))
    low, high = (held.pair((x[n, place, 0], x[n, place, 1])) for place in (i + 1, half - 1 - i))
    named = Named(k, held)
    pairs = _apart(named, low, high, (last[i, 0], named.negative(last[i, 1])))
    stores = [
        ir.Store(front, (place, ir.const(1 - part, "int32")), value)
        for place, pair in zip((i + 1, half - 1 - i), pairs, strict=True)
        for part, value in enumerate(pair)
    ]
    yield ir.loops([(i, half // 2)], held.around(ir.seq(*stores)))


def _cases_inverse() -> Iterable[Case]:
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
        infer=_infer_inverse,
        reference=_reference_inverse,
        compute=_compute_inverse,
        cases=_cases_inverse,
        operand_names=("data",),
    ),
)


OPERATORS = (*FFT_OPERATORS, *FFT_INVERSE_OPERATORS)
