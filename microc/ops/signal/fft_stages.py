"""The stages that the fast Fourier transform and its inverse share: radices, turns, butterflies; over numpy and as loops.

Source: KISS FFT 1.3.0 ``kiss_fft.c``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from operator import mul

import numpy as np

from microc.dtypes import Array
from microc.ops.elementwise.complex_numbers import Arithmetic, Complex, Held, Named, arithmetic
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

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
