"""Products of small matrices on MVE: 16 (bytes) or 8 (wider) products an instruction.

The instructions are a loop, tail-predicated or, where it comes out even, of two or four vectors an iteration: every vector is
loaded once and multiplied with all of the other side (``VMLADAVA`` sums across lanes into a core register, which must have an
even number, so that there are at most six sums).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from microc.isa.base import Body, Turns
from microc.isa.vocabulary.products import PRODUCT_SHAPES, product_name

UNROLLED = (4, 2)
"""Vectors of an iteration, where they come out even."""
_SUMS = ("r8", "r10", "r12", "r0", "r2", "r4")
_ADDRESSES = {8: ("r1", "r3", "r5", "r6", "r9"), 16: ("r1", "r3", "r5", "r6", "r2")}
"""Registers by bits of the products; r7 may be the frame pointer, and loads that widen want one of r0 to r7."""


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


def _body(a: str, b: str, rows: int, columns: int) -> Body:
    half = (rows * columns + 1) // 2  # two neighbours are loaded, and stored, by one instruction
    turn = (("vector_load", rows + columns), ("vector", rows * columns), ("branch", 1))
    return Body(
        _instructions(a, b, rows, columns),
        (("load", half), ("store", half), ("alu", 3 + rows + columns)),
        Turns("depth", 16 if a == b == "int8" else 8, turn),
    )


PRODUCT_BODIES: Mapping[str, Body] = MappingProxyType({product_name(*shape): _body(*shape) for shape in PRODUCT_SHAPES})
