# SPDX-License-Identifier: Apache-2.0
"""Requantisation of rows of sums on MVE: two vectors of a row are narrowed into one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from string import Template
from types import MappingProxyType

from microc.isa.instruction_order import Operation, Timing, order_operations
from microc.isa.instruction_set import Body, BodyLoop
from microc.tir.lower.lane_code import NARROWING_DISTANCES
from microc.tir.lower.unit_lowering import MAX_ROWS, requantisation_name

# ---- An iteration requantises eight columns of every row
#
# VQRSHRNB writes the even halfwords of a vector, VQRSHRNT the odd ones. So VLD2 loads even columns into one vector and odd
# columns into another, both of sums and of constants. VMLA overwrites its addend, which is copied for all rows but the last.
#
# A vector instruction occupies its unit for two cycles, and instructions of different units overlap. As gcc prints the formula,
# one vector of four columns after the other, three rows of eight columns take 92 cycles; in this order 49 (llvm-mca 19).

COLUMNS = 8
"""Columns of an iteration."""
PIPELINE: Mapping[str, Timing] = MappingProxyType(
    {
        "load": Timing("memory", 2, 1),
        "store": Timing("memory", 2, 1),
        "multiply": Timing("multiplier", 2, 2),
        "move": Timing("lanes", 2, 1),
        "narrow": Timing("lanes", 2, 3),
    }
)
"""Vector operations of Cortex-M55, as LLVM's scheduling model has them (ARMScheduleM55.td)."""
_VECTOR_REGISTERS = tuple(f"q{n}" for n in range(8))
_SUMS, _RESULTS = ("r0", "r1", "r2"), ("r4", "r5", "r6")
"""Registers of the pointers to rows of sums and of results. VSTRB needs a register of r0 to r7; r7 is not used, because it may be
the frame pointer."""
_DTYPES = {
    "i8": ("int8_t", {"to_half": "vqrshr", "half": "s16"}),
    "u8": ("uint8_t", {"to_half": "vqrshru", "half": "u16"}),
}
"""C type of the results, and the words of the narrowing instructions, by suffix."""


def _list_operations(rows: int) -> Iterator[Operation]:
    """Yield the operations of an iteration in the order of rows, with ``$distance`` for the shift and the words of
    ``_DTYPES``."""
    yield from _load_even_and_odd("addend0", "addend1", "addend")
    yield from _load_even_and_odd("multiplier0", "multiplier1", "multiplier")
    for r in range(rows):
        yield from _load_even_and_odd(f"sum{r}0", f"sum{r}1", f"s{r}")
        even, odd = results = [f"addend{v}" if r == rows - 1 else f"result{r}{v}" for v in range(2)]
        for v, result in enumerate(results):
            if r < rows - 1:
                yield Operation(f"vmov <{result}>, <addend{v}>", "move", (result,))
            yield Operation(f"vmla.s32 <{result}>, <sum{r}{v}>, %[factor]", "multiply", (result,))
            yield Operation(f"vmulh.s32 <{result}>, <{result}>, <multiplier{v}>", "multiply", (result,))
        yield Operation(f"${{to_half}}nb.s32 <{even}>, <{even}>, #$distance", "narrow", (even,))
        yield Operation(f"${{to_half}}nt.s32 <{even}>, <{odd}>, #$distance", "narrow", (even,))
        yield Operation(f"vqmovnb.$half <{even}>, <{even}>", "narrow", (even,))
        yield Operation(f"vstrb.16 <{even}>, [%[o{r}]], #{COLUMNS}", "store")


def _load_even_and_odd(even: str, odd: str, pointer: str) -> Iterator[Operation]:
    """Yield the two halves of a load of eight words, which advances the pointer."""
    vectors = f"{{<{even}>, <{odd}>}}"
    yield Operation(f"vld20.32 {vectors}, [%[{pointer}]]", "load", (even, odd))
    yield Operation(f"vld21.32 {vectors}, [%[{pointer}]]!", "load", (even, odd))


def _build_bodies(rows: int) -> Iterator[tuple[str, Body]]:
    """Yield (intrinsic name, C body) for all dtypes and distances of a number of rows.

    All registers are fixed, because compilers would else report that they have run out of registers."""
    operations = tuple(_list_operations(rows))
    loop = ("dls lr, lr", "0:", *order_operations(operations, PIPELINE, _VECTOR_REGISTERS), "le lr, 0b")
    names = [operation.type_ for operation in operations]
    loads, stores = names.count("load"), names.count("store")
    counts = (("vector_load", loads), ("vector_store", stores), ("vector", len(names) - loads - stores), ("branch", 1))
    clobbers = ", ".join(f'"{name}"' for name in ("memory", *_VECTOR_REGISTERS))
    for suffix, (c_type, words) in _DTYPES.items():
        pointers = {"addend": ("const int32_t", "r3", "addend"), "multiplier": ("const int32_t", "r8", "multiplier")}
        for r in range(rows):
            pointers[f"s{r}"] = ("const int32_t", _SUMS[r], f"sums{f' + {r} * stride_sums' if r else ''}")
            pointers[f"o{r}"] = (c_type, _RESULTS[r], f"out{f' + {r} * stride_out' if r else ''}")
        text = [
            f'register {pointee} *{name}_0 __asm__("{register}") = {start};'
            for name, (pointee, register, start) in pointers.items()
        ]
        outputs = ", ".join((*(f'[{name}] "+r"({name}_0)' for name in pointers), '"+r"(count)'))
        text += [
            'register int32_t factor_0 __asm__("r10") = factor;',
            f'register int32_t count __asm__("lr") = columns / {COLUMNS};',
            "__asm__ volatile inline(",
            *(f'    "{line}\\n"' for line in loop),
            f"    : {outputs}",
            '    : [factor] "r"(factor_0)',
            f"    : {clobbers});",
        ]
        template = Template("\n".join(text))
        for distance in NARROWING_DISTANCES:
            body = template.substitute(words, distance=distance)
            yield (
                requantisation_name(suffix, distance, rows),
                Body(body, (("alu", 4 + 2 * rows),), BodyLoop("columns", COLUMNS, counts)),
            )


REQUANTISATION_BODIES: Mapping[str, Body] = MappingProxyType(
    {name: body for rows in range(1, MAX_ROWS + 1) for name, body in _build_bodies(rows)}
)
