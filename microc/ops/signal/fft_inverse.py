"""``irfft``: real numbers from their spectrum along the last axis, interleaved (real, imaginary).

In fixed point, KISS FFT's inverse bit for bit: the way of ``rfft`` back, through the same butterflies with real and imaginary
parts exchanged. Floats are divided by the length, integers are not.

Sources: TFLite Micro ``signal/src/kiss_fft_wrappers``, ``irfft_int16.cc``; KISS FFT 1.3.0 ``kiss_fftr.c``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import te
from microc.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.attributes import integer
from microc.ops.elementwise.complex_numbers import Arithmetic, Complex, Held, Named, arithmetic
from microc.ops.registry import Case, OpCall, OpDef
from microc.ops.signal.fft_stages import DTYPES, enter, stages, super_twiddles, transformed, twiddles
from microc.tir import ir
from microc.tir.ir import Buffer, Stmt, Var

_ZERO = ir.const(0, "int32")


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


OPERATORS: tuple[OpDef, ...] = (
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
