"""Products of small matrices on MVE: rows of activations by rows of weights, 16 (bytes) or 8 (wider) products an instruction.

``dot_<a>_<b>_<R>x<C>`` adds to R x C sums in memory the dot products of R rows of ``a`` with C rows of ``b``; the sums of a
single row begin with the numbers at ``start``, perhaps themselves. The instructions are a loop, tail-predicated or, where it
comes out even, of two or four vectors an iteration: every vector is loaded once and multiplied with all of the other side
(``VMLADAVA`` sums across lanes into a core register, which must have an even number, so that there are at most six sums).
Strides that a single row or column does not need are no parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from microc.schedule.intrinsics.base import ANY, Intrin, Turns, i32
from microc.tir import ir
from microc.tir.ir import Buffer, Var

MVE = "defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 1)"

TILES = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2))
"""Rows and columns of the products that exist."""
TALL_TILES = ((2, 3), (3, 1), (3, 2))
"""More of bytes."""
UNROLLED = (4, 2)
"""Vectors of an iteration, where they come out even."""
_SUMS = ("r8", "r10", "r12", "r0", "r2", "r4")
_ADDRESSES = {8: ("r1", "r3", "r5", "r6", "r9"), 16: ("r1", "r3", "r5", "r6", "r2")}
"""Registers by bits of the products; r7 may be the frame pointer, and loads that widen want one of r0 to r7."""
SHORT = {"int8": "i8", "uint8": "u8", "int16": "i16"}


def _meaning(a: Buffer, b: Buffer, start: Buffer, sums: Buffer, rows: int, columns: int) -> ir.Stmt:
    """sums[r, c] += a[r, k] b[c, k] for k below ``depth``; before that sums[c] = start[c] of a single row."""
    k = Var("k")
    body, first = [], []
    for r, c in itertools.product(range(rows), range(columns)):
        place = (Var("stride_sums") * r + c if r else i32(c),)
        left = a[Var("stride_a") * r + k if r else k].astype("int32")
        right = b[Var("stride_b") * c + k if c else k].astype("int32")
        first += [ir.Store(sums, place, start[c])] if rows == 1 else []
        body.append(ir.Store(sums, place, ir.Load(sums, place) + left * right))
    return ir.seq(*first, ir.For(k, Var("depth"), ir.seq(*body)))


def _instructions(a: str, b: str, rows: int, columns: int) -> str:
    """The loop: a load right before the multiplications that use it, so that loads and products overlap. Registers are
    chosen here, since a compiler that is short of them would give up."""
    size, step = (8, 16) if a == b == "int8" else (16, 16)
    load = {"int8": f"vldrb.{'8' if size == 8 else 's16'}", "uint8": "vldrb.u16", "int16": "vldrh.u16"}
    advance = {"int8": step if size == 8 else 8, "uint8": 8, "int16": 16}
    lines = [f"{load[a]} q{r}, [%[a{r}]], #{advance[a]}" for r in range(rows)]
    for c in range(columns):
        lines.append(f"{load[b]} q{rows + c}, [%[b{c}]], #{advance[b]}")
        lines += [f"vmladava.s{size} %[c{r}{c}], q{r}, q{rows + c}" for r in range(rows)]
    sums = [f"c{r}{c}" for r in range(rows) for c in range(columns)]
    pointers = [f"a{r}" for r in range(rows)] + [f"b{c}" for c in range(columns)]
    outputs = [f'[{name}] "+r"({name})' for name in sums + pointers]
    clobbers = ", ".join(f'"q{n}"' for n in range(rows + columns))
    starts = [(a, f"a{f' + {r} * stride_a' if r else ''}") for r in range(rows)]
    starts += [(b, f"b{f' + {c} * stride_b' if c else ''}") for c in range(columns)]
    registers = _ADDRESSES[size]
    text = [
        f'register const {kind}_t *{name} __asm__("{register}") = {start};'
        for name, register, (kind, start) in zip(pointers, registers, starts, strict=False)
    ]
    places = {
        f"c{r}{c}": f"sums[{f'{r} * stride_sums + ' if r else ''}{c}]" for r in range(rows) for c in range(columns)
    }
    text += [
        f'register int32_t {name} __asm__("{register}") = {f"start[{name[2:]}]" if rows == 1 else place};'
        for (name, place), register in zip(places.items(), _SUMS, strict=False)
    ]
    text += ['register int32_t count __asm__("lr");', *_loops(size, lines, outputs, clobbers)]
    for name, place in places.items():
        if name == "c02":  # or a compiler gathers the sums on the stack, to store them as a vector
            text.append('__asm__ volatile("" : : : "memory");')
        text.append(f"{place} = {name};")
    return "\n".join(text)


def _loops(size: int, lines: list[str], outputs: list[str], clobbers: str) -> Iterator[str]:
    """The loop over ``lines`` for every way to divide ``depth``."""
    for times in UNROLLED:
        elements = times * 128 // size
        yield from (f"if (depth % {elements} == 0) {{", f"    count = depth / {elements};")
        yield from _assembly(("dls lr, lr", "0:", *(lines * times), "le lr, 0b"), outputs, clobbers)
        yield "} else"
    yield from ("{", "    count = depth;")
    yield from _assembly((f"dlstp.{size} lr, lr", "0:", *lines, "letp lr, 0b"), outputs, clobbers)
    yield "}"


def _assembly(lines: tuple[str, ...], outputs: list[str], clobbers: str) -> Iterator[str]:
    """The statement around a loop's instructions, ``inline``: else their number keeps compilers from inlining the function,
    whose depth then is no literal."""
    yield "    __asm__ volatile inline("
    yield from (f'        "{line}\\n"' for line in lines)
    yield f'        : {", ".join(outputs)}, "+r"(count)'
    yield "        :"
    yield f'        : "memory", {clobbers});'


def _product(a: str, b: str, rows: int, columns: int) -> Intrin:
    left, right = Buffer("a", (ANY,), a), Buffer("b", (ANY,), b)
    start, sums = (Buffer(name, (ANY,), "int32") for name in ("start", "sums"))
    needed = {"depth": True, "stride_a": rows > 1, "stride_b": columns > 1, "stride_sums": rows > 1}
    half = (rows * columns + 1) // 2  # two neighbours are loaded, and stored, by one instruction
    turn = (("vector_load", rows + columns), ("vector", rows * columns), ("branch", 1))
    numbers = tuple(Var(name) for name, used in needed.items() if used)
    return Intrin(
        f"dot_{SHORT[a]}_{SHORT[b]}_{rows}x{columns}",
        (left, right, *((start,) if rows == 1 else ()), sums, *numbers),
        _meaning(left, right, start, sums, rows, columns),
        "mve",
        MVE,
        _instructions(a, b, rows, columns),
        (("load", half), ("store", half), ("alu", 3 + rows + columns)),
        turns=Turns("depth", 16 if a == b == "int8" else 8, turn),
    )


MVE_PRODUCTS = tuple(
    _product(a, b, *tile)
    for a, b in (("int8", "int8"), ("uint8", "int8"), ("int16", "int8"), ("int8", "int16"), ("int16", "int16"))
    for tile in (*TILES, *(TALL_TILES if a == b == "int8" else ()))
)
