# SPDX-License-Identifier: Apache-2.0
"""Small kernels with every habit that matters to memory: walking forth and back, windows, patches, planes, words, tables.

Each is a maker of ``(n) -> PrimFunc`` from ``x`` of n bytes (n is a multiple of 8) to ``out``; all arithmetic stays in range.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from microc.tir import ir
from microc.tir.text import from_text

Maker = Callable[[int], ir.PrimFunc]


def kernel(params: str, body: str, name: str = "kernel") -> ir.PrimFunc:
    """A function from its text: parameters as ``x: 8 int8``, the body without indentation. ``size_n`` is a symbolic size."""
    parts = []
    for param in params.split(","):
        label, size, *rest = re.sub(r" ([*+/-]+) ", r"\1", param.replace(":", " ")).split()
        scope = f', scope="{rest[1]}"' if len(rest) > 1 else ""
        parts.append(f'{label}: T.Buffer(({size},), "{rest[0]}"{scope})')
    lines = "\n".join("    " + line for line in body.strip("\n").split("\n"))
    if "size_n" in params:
        parts.append("size_n: T.int32")
    return from_text(f"@T.prim_func\ndef {name}({', '.join(parts)}):\n{lines}\n")


def half(value: str) -> str:
    """A byte made of a 32-bit expression."""
    return f'T.Cast("int8", ({value}) // 2)'


def wide(value: str) -> str:
    return f'T.Cast("int32", {value})'


def forward(n: int) -> ir.PrimFunc:
    return kernel(f"x: {n} int8, out: {n} int8", f"for i in T.serial({n}):\n    out[i] = {half(wide('x[i]') + ' + 3')}")


def backward(n: int) -> ir.PrimFunc:
    value = half(wide(f"x[{n - 1} - i]") + " - 5")
    return kernel(f"x: {n} int8, out: {n} int8", f"for i in T.serial({n}):\n    out[{n - 1} - i] = {value}")


def mirror(n: int) -> ir.PrimFunc:
    return kernel(f"x: {n} int8, out: {n} int8", f"for i in T.serial({n}):\n    out[{n - 1} - i] = x[i]")


def window(n: int) -> ir.PrimFunc:
    """Three neighbours, zero beyond the ends: by Select and by If."""
    body = f"""
for i in T.serial({n}):
    if i > 0:
        out[i] = {half(wide("x[i - 1]") + " + " + wide("T.Select(i < " + str(n - 1) + ", x[i + 1], x[i])"))}
    else:
        out[i] = x[i]
"""
    return kernel(f"x: {n} int8, out: {n} int8", body)


def shrink(n: int) -> ir.PrimFunc:
    value = half(wide("x[i * 2]") + " + " + wide("x[i * 2 + 1]"))
    return kernel(f"x: {n} int8, out: {n // 2} int8", f"for i in T.serial({n // 2}):\n    out[i] = {value}")


def expand(n: int) -> ir.PrimFunc:
    body = f"for i, c in T.grid({n}, 2):\n    out[i * 2 + c] = {half(wide('x[i]') + ' + c')}"
    return kernel(f"x: {n} int8, out: {n * 2} int8", body)


def patch(n: int) -> ir.PrimFunc:
    """Four bytes go to a workspace; all four results need all of them."""
    body = f"""
for p in T.serial({n // 4}):
    for k in T.serial(4):
        work[k] = x[p * 4 + k]
    for o in T.serial(4):
        out[p * 4 + o] = {half(wide("work[o]") + " + " + wide("work[3 - o]"))}
"""
    return kernel(f"x: {n} int8, out: {n} int8, work: 4 int8 workspace", body)


def blocks(n: int) -> ir.PrimFunc:
    """Like a pointwise layer without a patch: every result of a block reads the whole block."""
    body = f"""
for p, o in T.grid({n // 4}, 4):
    out[p * 4 + o] = {half(wide("x[p * 4 + o]") + " + " + wide("x[p * 4 + 3 - o]"))}
"""
    return kernel(f"x: {n} int8, out: {n} int8", body)


def planes(n: int) -> ir.PrimFunc:
    """Like a depthwise layer by planes: one of four channels at a time is copied away and comes back mixed."""
    body = f"""
for c in T.serial(4):
    for p in T.serial({n // 4}):
        work[p] = T.Cast("int16", x[p * 4 + c])
    for p in T.serial({n // 4}):
        out[p * 4 + c] = {half(wide("work[p]") + " + " + wide(f"work[{n // 4 - 1} - p]"))}
"""
    return kernel(f"x: {n} int8, out: {n} int8, work: {n // 4} int16 workspace", body)


def words(n: int) -> ir.PrimFunc:
    """A copy by words, two words further on a ring."""
    body = f"""
for i in T.serial({n // 4}):
    T.evaluate(T.call("store_i8x4", T.address_of(out[i * 4], extent=4, writes=True),
        T.call("load_i8x4", T.address_of(x[(i + 2) % {n // 4} * 4], extent=4), dtype="int32"), dtype="int32"))
"""
    return kernel(f"x: {n} int8, out: {n} int8", body)


def table(n: int) -> ir.PrimFunc:
    """Data decides what is read."""
    body = f"""
for i in T.serial({n}):
    j: T.int32 = {wide("x[i]")} % {n}
    out[i] = x[j]
"""
    return kernel(f"x: {n} int8, out: {n} int8", body)


def named(n: int) -> ir.PrimFunc:
    """A name for an index, and one for data that is read long before it is used."""
    body = f"""
for i in T.serial({n // 2}):
    j: T.int32 = i * 2
    first: T.int8 = x[j]
    out[j + 1] = x[j + 1]
    out[j] = first
"""
    return kernel(f"x: {n} int8, out: {n} int8", body)


def twice(n: int) -> ir.PrimFunc:
    """Scopes side by side share a name: an index first, a loop later."""
    body = f"""
for i in T.serial({n // 2}):
    if i >= 0:
        j: T.int32 = i + {n // 2}
        out[j] = x[i]
    for j in T.serial(2):
        out[i] = x[{n - 2} - i + j]
"""
    return kernel(f"x: {n} int8, out: {n} int8", body)


def tail(n: int) -> ir.PrimFunc:
    """The inner loop is shorter at the end."""
    count = -(-n // 6)
    body = f"for i in T.serial({count}):\n    for k in T.serial(T.min(6, {n} - i * 6)):\n        out[i * 6 + k] = x[i * 6 + k]"
    return kernel(f"x: {n} int8, out: {n} int8", body)


def rounds(n: int) -> ir.PrimFunc:
    """The whole input is read twice, once after the results were written for the first time."""
    return kernel(f"x: {n} int8, out: {n} int8", f"for r, i in T.grid(2, {n}):\n    out[i] = x[i]")


KERNELS: Mapping[str, Maker] = {
    f.__name__: f
    for f in (
        *(
            forward,
            backward,
            mirror,
            window,
            shrink,
            expand,
            patch,
            blocks,
            planes,
            words,
            table,
            named,
            twice,
            tail,
            rounds,
        ),
    )
}


def add(n: int) -> ir.PrimFunc:
    value = half(wide("x[i]") + " + " + wide("y[i]"))
    return kernel(f"x: {n} int8, y: {n} int8, out: {n} int8", f"for i in T.serial({n}):\n    out[i] = {value}")


def widen(n: int) -> ir.PrimFunc:
    return kernel(f"x: {n} int8, out: {n} int32", f"for i in T.serial({n}):\n    out[i] = {wide('x[i]')}")


def float_to_int(n: int) -> ir.PrimFunc:
    return kernel(f"x: {n} float32, out: {n} int32", f'for i in T.serial({n}):\n    out[i] = T.Cast("int32", x[i])')
