"""``rfft``: the spectrum of real numbers along the last axis, interleaved (real, imaginary); ``irfft``: the way back.

``fft_length``, a power of two, is what shorter rows are filled up to with zeros. Integers are those of KISS FFT in fixed point,
bit for bit: a row of reals is taken for half as many complex numbers, which go through butterflies of four and two, each of
which divides by its radix; at the end the spectrum of the reals is put together. The inverse goes the other way, through the same
butterflies with real and imaginary parts exchanged; floats are divided by the length, integers are not.

Sources: TFLite Micro ``signal/src/kiss_fft_wrappers``, ``rfft_int16.cc``; KISS FFT 1.3.0 ``kiss_fft.c``, ``kiss_fftr.c``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any, Protocol

import numpy as np

from microc import te
from microc.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.registry import Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

_DTYPES = ("int16", "int32", "float32")
Complex = tuple[Any, Any]
_ZERO = ir.const(0, "int32")


def factors(size: int) -> tuple[int, ...]:
    """Radices of a power of two, outermost first: fours, then a two where one is left."""
    found = []
    while size > 1:
        found.append(4 if size % 4 == 0 else 2)
        size //= found[-1]
    return tuple(found)


class Arithmetic(Protocol):
    """Arithmetic of complex numbers, (real, imaginary)."""

    def times(self, a: Complex, b: Complex) -> Complex:
        """a b."""

    def divided(self, a: Complex, by: int) -> Complex:
        """What a stage divides its operands by, so that nothing overflows."""

    def add(self, a: Complex, b: Complex) -> Complex:
        """a + b."""

    def subtract(self, a: Complex, b: Complex) -> Complex:
        """a - b."""

    def half(self, a: Any, b: Any) -> Any:
        """Half of the sum of two numbers that are not complex."""

    def negative(self, a: Any) -> Any:
        """-a of a number that is not complex."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Arithmetic of fixed point of a dtype, over numpy (int64) and TIR: ``wrap`` stores, ``wide`` makes room for products."""

    fraction: int
    wide: Callable[[Any], Any]
    wrap: Callable[[Any], Any]

    def rounded(self, x: Any) -> Any:
        return self.wrap((x + (1 << self.fraction - 1)) >> self.fraction)

    def times(self, a: Complex, b: Complex) -> Complex:
        (ar, ai), (br, bi) = ((self.wide(p) for p in x) for x in (a, b))
        return self.rounded(ar * br - ai * bi), self.rounded(ar * bi + ai * br)

    def divided(self, a: Complex, by: int) -> Complex:
        share = ((1 << self.fraction) - 1) // by
        real, imaginary = (self.rounded(self.wide(part) * share) for part in a)
        return real, imaginary

    def add(self, a: Complex, b: Complex) -> Complex:
        return self.wrap(self.wide(a[0]) + self.wide(b[0])), self.wrap(self.wide(a[1]) + self.wide(b[1]))

    def subtract(self, a: Complex, b: Complex) -> Complex:
        return self.wrap(self.wide(a[0]) - self.wide(b[0])), self.wrap(self.wide(a[1]) - self.wide(b[1]))

    def half(self, a: Any, b: Any) -> Any:
        """Half of a + b."""
        return self.wrap((self.wide(a) + self.wide(b)) >> 1)

    def negative(self, a: Any) -> Any:
        return self.wrap(-self.wide(a))


class Real:
    """The same of floats, which need no division."""

    def times(self, a: Complex, b: Complex) -> Complex:
        return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]

    def divided(self, a: Complex, by: int) -> Complex:
        return a

    def add(self, a: Complex, b: Complex) -> Complex:
        return a[0] + b[0], a[1] + b[1]

    def subtract(self, a: Complex, b: Complex) -> Complex:
        return a[0] - b[0], a[1] - b[1]

    def half(self, a: Any, b: Any) -> Any:
        return (a + b) * 0.5

    def negative(self, a: Any) -> Any:
        return -a


def _arithmetic(dtype: str, *, loops: bool) -> Arithmetic:
    if dtype == "float32":
        return Real()
    fraction, width = (15, "int32") if dtype == "int16" else (31, "int64")
    if loops:
        return Fixed(fraction, lambda x: ir.cast(width, x), lambda x: ir.cast(dtype, x))
    return Fixed(fraction, lambda x: np.asarray(x, np.int64), lambda x: np.asarray(x).astype(dtype).astype(np.int64))


def twiddles(size: int, count: int, first: float, dtype: str) -> Array:
    """(count, 2): e to the -2 pi i (k + first) / size; fixed point rounds halves up."""
    angle = -2 * np.pi * (np.arange(count) + first) / size
    table = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if dtype == "float32":
        return table.astype(np.float32)
    return np.floor(0.5 + ((1 << (15 if dtype == "int16" else 31)) - 1) * table).astype(dtype)


def _butterfly(k: Arithmetic, x: Sequence[Complex], turns: Sequence[Complex]) -> list[Complex]:
    """Two or four numbers, all but the first turned, become their sums and differences."""
    first, *others = (k.divided(value, len(x)) for value in x)
    turned = [k.times(value, turn) for value, turn in zip(others, turns, strict=True)]
    if len(x) == 2:
        return [k.add(first, turned[0]), k.subtract(first, turned[0])]
    difference, total = k.subtract(first, turned[1]), k.add(first, turned[1])
    outer, cross = k.add(turned[0], turned[2]), k.subtract(turned[0], turned[2])
    ahead, behind = (cross[1], k.negative(cross[0])), (k.negative(cross[1]), cross[0])
    return [k.add(total, outer), k.add(difference, ahead), k.subtract(total, outer), k.add(difference, behind)]


def _together(k: Arithmetic, low: Complex, high: Complex, turn: Complex) -> tuple[Complex, Complex]:
    """Frequencies k and n - k of the reals from those of the complex numbers."""
    low, high = k.divided(low, 2), k.divided((high[0], k.negative(high[1])), 2)
    total, turned = k.add(low, high), k.times(k.subtract(low, high), turn)
    below = k.half(total[0], turned[0]), k.half(total[1], turned[1])
    return below, (k.half(total[0], k.negative(turned[0])), k.half(turned[1], k.negative(total[1])))


# ---------------------------------------------------------------- reference


def _infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    kind, length = types[0], attrs["fft_length"]
    if length < 4 or length & (length - 1) or kind.dtype not in _DTYPES:
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
    return (np.stack(rows).reshape(*x.shape[:-1], length + 2).astype(x.dtype),)


def _row(x: Array, length: int, dtype: str) -> Array:
    """One row in fixed point."""
    k, half = _arithmetic(dtype, loops=False), length // 2
    pairs = np.zeros(length, np.int64)
    pairs[: x.size] = x
    z = _transformed(k, pairs.reshape(half, 2), twiddles(half, half, 0, dtype).astype(np.int64))
    out = np.zeros((half + 1, 2), np.int64)
    real, imaginary = k.divided((z[0, 0], z[0, 1]), 2)
    out[0, 0], out[half, 0] = k.add((real, 0), (imaginary, 0))[0], k.subtract((real, 0), (imaginary, 0))[0]
    table = _super(length, dtype).astype(np.int64)
    for i in range(1, half // 2 + 1):
        out[i], out[half - i] = _together(k, tuple(z[i]), tuple(z[half - i]), tuple(table[i - 1]))
    return out.reshape(-1)


def _super(length: int, dtype: str) -> Array:
    """The turns that put the spectrum of reals together: those of ``length``, a quarter ahead."""
    return twiddles(length, length // 4, 1 + length / 4, dtype)


def _transformed(k: Arithmetic, z: Array, table: Array) -> Array:
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


# ---------------------------------------------------------------- loops


def _compute(call: OpCall) -> te.Tensor:
    """The rows one after the other, each through a workspace of complex numbers."""
    data = call.operands[0]
    assert data is not None
    length, dtype, size = int(call.attrs["fft_length"]), data.type.dtype, data.type.shape[-1]
    rows, half = prod(data.type.shape[:-1]), length // 2
    tables = (data.packed(twiddles(half, half, 0, dtype)), data.packed(_super(length, dtype)))

    def build(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, turns, last), (out, work) = operands, results
        n = Var("n")

        def sample(index: Expr, part: Expr) -> Expr:
            at = index * 2 + part
            return ir.select(at < size, x[n, at], ir.const(0, x.dtype)) if size < length else x[n, at]

        stages = [_enter(sample, work), *_stages(work, turns), _finish(work, last, out, n)]
        return ir.loops([(n, rows)], ir.seq(*stages))

    results = (("out", (rows, half + 1, 2), dtype), ("work", (half, 2), dtype))
    return te.extern("transform", (data.tensor((rows, size)), *tables), results, build)[0]


def _enter(value: Callable[[Expr, Expr], Expr], work: Buffer) -> Stmt:
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


def _stages(work: Buffer, turns: Buffer) -> Iterable[Stmt]:
    """The butterflies, the smallest first."""
    k, size, radices = _arithmetic(work.dtype, loops=True), work.shape[0], factors(work.shape[0])
    steps = [1, *accumulate(radices, mul)]
    for stage in reversed(range(len(radices))):
        radix, step, part = radices[stage], steps[stage], size // steps[stage + 1]
        b, i = Var("b"), Var("i")
        places = [b * (radix * part) + i + j * part for j in range(radix)]
        x = [(work[place, 0], work[place, 1]) for place in places]
        turned = [(turns[i * (step * j), 0], turns[i * (step * j), 1]) for j in range(1, radix)]
        held = _Held(f"s{stage}")
        inputs = [held.pair(value) for value in x]
        made = [held.pair(value) for value in _butterfly(_Named(k, held), inputs, turned)]
        stores = [
            ir.Store(work, (place, ir.const(part_, "int32")), value[part_])
            for place, value in zip(places, made, strict=True)
            for part_ in (0, 1)
        ]
        yield ir.loops([(b, size // (radix * part)), (i, part)], held.around(ir.seq(*stores)))


def _finish(work: Buffer, last: Buffer, out: Buffer, n: Var) -> Stmt:
    """The spectrum of the reals."""
    k, half, i, held = _arithmetic(work.dtype, loops=True), work.shape[0], Var("f"), _Held("r")
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
    held = _Held("m")
    low, high = (held.pair((work[place, 0], work[place, 1])) for place in (i + 1, half - 1 - i))
    pairs = _together(_Named(k, held), low, high, (last[i, 0], last[i, 1]))
    stores = [
        ir.Store(out, (n, place, ir.const(part, "int32")), value)
        for place, pair in zip((i + 1, half - 1 - i), pairs, strict=True)
        for part, value in enumerate(pair)
    ]
    return ir.seq(edge, ir.loops([(i, half // 2)], held.around(ir.seq(*stores))))


# ---------------------------------------------------------------- inverse


def _infer_inverse(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    kind, length = types[0], attrs["fft_length"]
    if length < 4 or length & (length - 1) or kind.dtype not in _DTYPES:
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
    return (np.stack(rows).reshape(*x.shape[:-1], length).astype(x.dtype),)


def _samples(x: Array, length: int, dtype: str) -> Array:
    """One row in fixed point; the complex numbers lie the other way round, (imaginary, real)."""
    k, half = _arithmetic(dtype, loops=False), length // 2
    z, table = np.zeros((half, 2), np.int64), _super(length, dtype).astype(np.int64)
    z[0] = _ends(k, x[0, 0], x[half, 0])[::-1]
    for i in range(1, half // 2 + 1):
        turn = (table[i - 1, 0], -table[i - 1, 1])
        low, high = _apart(k, tuple(x[i]), tuple(x[half - i]), turn)
        z[i], z[half - i] = low[::-1], high[::-1]
    return _transformed(k, z, twiddles(half, half, 0, dtype).astype(np.int64))[:, ::-1].reshape(-1)


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
    data = call.operands[0]
    assert data is not None
    length, dtype = int(call.attrs["fft_length"]), data.type.dtype
    rows, half = prod(data.type.shape[:-1]), length // 2
    tables = (data.packed(twiddles(half, half, 0, dtype)), data.packed(_super(length, dtype)))

    def build(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, turns, last), (out, front, work) = operands, results
        n, i, part = Var("n"), Var("i"), Var("part")
        value = work[i, 1 - part]
        sample = value / float(length) if dtype == "float32" else value
        leave = ir.loops([(i, half), (part, 2)], ir.Store(out, (n, i * 2 + part), sample))
        enter = _enter(lambda index, which: front[index, which], work)
        return ir.loops([(n, rows)], ir.seq(*_begin(x, last, front, n), enter, *_stages(work, turns), leave))

    results = (("out", (rows, length), dtype), ("front", (half, 2), dtype), ("work", (half, 2), dtype))
    return te.extern("transform", (data.tensor((rows, half + 1, 2)), *tables), results, build)[0]


def _begin(x: Buffer, last: Buffer, front: Buffer, n: Var) -> Iterable[Stmt]:
    """The complex numbers whose transform are the samples, (imaginary, real)."""
    k, half, i, held = _arithmetic(front.dtype, loops=True), front.shape[0], Var("f"), _Held("a")
    ends = enumerate(_ends(k, x[n, 0, 0], x[n, half, 0]))
    yield ir.seq(*(ir.Store(front, (_ZERO, ir.const(1 - part, "int32")), value) for part, value in ends))
    low, high = (held.pair((x[n, place, 0], x[n, place, 1])) for place in (i + 1, half - 1 - i))
    named = _Named(k, held)
    pairs = _apart(named, low, high, (last[i, 0], named.negative(last[i, 1])))
    stores = [
        ir.Store(front, (place, ir.const(1 - part, "int32")), value)
        for place, pair in zip((i + 1, half - 1 - i), pairs, strict=True)
        for part, value in enumerate(pair)
    ]
    yield ir.loops([(i, half // 2)], held.around(ir.seq(*stores)))


class _Held:
    """Names for values that are used more than once."""

    def __init__(self, stem: str) -> None:
        self.stem = stem
        self.lets: list[tuple[Var, Expr]] = []

    def name(self, value: Expr) -> Expr:
        if isinstance(value, (Var, ir.Const)):
            return value
        var = Var(f"{self.stem}_{len(self.lets)}", value.dtype)
        self.lets.append((var, value))
        return var

    def pair(self, value: Complex) -> Complex:
        return self.name(value[0]), self.name(value[1])

    def around(self, body: Stmt) -> Stmt:
        for var, value in reversed(self.lets):
            body = ir.Let(var, value, body)
        return body


class _Named:
    """Arithmetic whose every result gets a name."""

    def __init__(self, inner: Arithmetic, held: _Held) -> None:
        self.inner, self.held = inner, held

    def times(self, a: Complex, b: Complex) -> Complex:
        return self.held.pair(self.inner.times(a, b))

    def divided(self, a: Complex, by: int) -> Complex:
        return self.held.pair(self.inner.divided(a, by))

    def add(self, a: Complex, b: Complex) -> Complex:
        return self.held.pair(self.inner.add(a, b))

    def subtract(self, a: Complex, b: Complex) -> Complex:
        return self.held.pair(self.inner.subtract(a, b))

    def half(self, a: Any, b: Any) -> Any:
        return self.held.name(self.inner.half(a, b))

    def negative(self, a: Any) -> Any:
        return self.held.name(self.inner.negative(a))


def _cases() -> Iterable[Case]:
    for shape, length in (((4,), 4), ((2, 7), 8), ((30,), 32), ((64,), 64), ((2, 3, 16), 16)):
        for dtype in _DTYPES:
            yield Case({"fft_length": length}, (TensorType(shape, dtype),), tolerance=2e-5, name=f"{dtype} {length}")


def _cases_inverse() -> Iterable[Case]:
    rng = np.random.default_rng(6)
    for shape, length in (((6,), 4), ((2, 10), 8), ((34,), 32), ((66,), 64)):
        for dtype in _DTYPES:
            most = {"int16": 8000, "int32": 1 << 28, "float32": 4}[dtype]
            x = rng.uniform(-most, most, shape).astype(dtype)
            x[..., 1] = x[..., -1] = 0
            types = (TensorType(shape, dtype),)
            yield Case({"fft_length": length}, types, arrays=(x,), tolerance=2e-5, name=f"{dtype} {length}")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "rfft",
        infer=_infer,
        reference=_reference,
        compute=_compute,
        cases=_cases,
        operand_names=("data",),
    ),
    OpDef(
        "irfft",
        infer=_infer_inverse,
        reference=_reference_inverse,
        compute=_compute_inverse,
        cases=_cases_inverse,
        operand_names=("data",),
    ),
)
