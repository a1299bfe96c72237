"""``rfft``: the spectrum of real numbers along the last axis, interleaved (real, imaginary).

``fft_length``, a power of two, is what shorter rows are filled up to with zeros. Integers are those of KISS FFT in fixed point,
bit for bit: a row of reals is taken for half as many complex numbers, which go through butterflies of four and two, each of
which divides by its radix; at the end the spectrum of the reals is put together.

Sources: TFLite Micro ``signal/src/kiss_fft_wrappers``, ``rfft_int16.cc``; KISS FFT 1.3.0 ``kiss_fft.c``, ``kiss_fftr.c``.
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
from microc.tir.ir import Buffer, Expr, Stmt, Var


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


OPERATORS: tuple[OpDef, ...] = (
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
