# SPDX-License-Identifier: Apache-2.0
"""Loops of products on Armv6-M: their assembly computes what their statements do, and compiles with any options."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from microc.codegen.c.c_expressions import ExprPrinter
from microc.codegen.c.c_statements import StmtPrinter
from microc.isa.arm_product_loops import (
    BYTES,
    HIGH,
    MAX_BYTE_OFFSET,
    MOST_LINES,
    SCRATCH,
    WORDS,
    ProductLoop,
    find_product_loop,
)
from microc.tir import ir
from tests.device.smoke import WARNINGS, needs

MASK = (1 << 32) - 1


class Shape(NamedTuple):
    """A loop of ``iterations`` of ``blocks`` blocks, each with ``terms`` products of each of ``channels`` sums.

    ``start``: place of the word from which the sums of a block start, among the words of the block."""

    terms: int
    channels: int
    blocks: int
    iterations: int = 3
    start: int = 0

    def __str__(self) -> str:
        return " ".join(map(str, self))


SHAPES = [
    Shape(terms, channels, blocks, iterations, start)
    for terms, blocks, start in ((1, 1, 0), (2, 4, 2), (3, 4, 0), (4, 2, 4), (4, 3, 4), (6, 2, 6), (8, 1, 3), (8, 2, 8))
    for channels, iterations in ((1, 2), (2, 5))
]
WORD, BYTE = ir.Buffer("words", (2048,), "uint32"), ir.Buffer("bytes", (4, 512), "uint8", "const")
PART, TOTAL = ir.Buffer("part", (2,), "uint32", "register"), ir.Buffer("acc", (2, 2), "uint32", "register")
ROW, STEP = ir.Var("row"), ir.Var("j")


def number(value: int) -> ir.Expr:
    return ir.const(value, "int32")


def block_of(shape: Shape, block: int) -> Iterator[ir.Stmt]:
    """The statements of a block: sums start, products are added, the sums and their upper halves are added to totals."""
    first = (shape.terms + 1) * block

    def word(place: int) -> ir.Load:
        return ir.Load(WORD, (STEP * ((shape.terms + 1) * shape.blocks) + number(first + place),))

    def byte(term: int, channel: int) -> ir.Expr:
        position = (shape.terms * block + term) * shape.channels + channel
        step = shape.terms * shape.blocks * shape.channels
        return ir.cast("uint32", ir.Load(BYTE, (ROW, STEP * step + number(position))))

    places = [p for p in range(shape.terms + 1) if p != shape.start]
    for channel in range(shape.channels):
        yield ir.Store(PART, (number(channel),), word(shape.start))
    for term, place in enumerate(places):
        for channel in range(shape.channels):
            part = ir.Load(PART, (number(channel),))
            yield ir.Store(PART, (number(channel),), part + word(place) * byte(term, channel))
    for channel in range(shape.channels):
        part = ir.Load(PART, (number(channel),))
        for upper, value in enumerate((part, part >> ir.const(16, "uint32"))):
            total = ir.Load(TOTAL, (number(channel), number(upper)))
            yield ir.Store(TOTAL, total.indices, total + value)


def loop_of(shape: Shape, *more: ir.Stmt) -> ir.For:
    body = ir.seq(*(stmt for block in range(shape.blocks) for stmt in block_of(shape, block)), *more)
    return ir.For(STEP, number(shape.iterations), ir.Alloc(PART, body))


def found(shape: Shape) -> ProductLoop:
    loop = find_product_loop(loop_of(shape), "cortex-m0")
    assert loop is not None
    return loop


def expected_totals(shape: Shape, words: list[int], data: bytes, totals: list[int]) -> list[int]:
    """The totals by the formula: for each block its sum, and the upper half of its sum."""
    totals = [*totals]
    for block in range(shape.iterations * shape.blocks):
        inside = words[block * (shape.terms + 1) :][: shape.terms + 1]
        factors = [w for place, w in enumerate(inside) if place != shape.start]
        for channel in range(shape.channels):
            weights = data[block * shape.terms * shape.channels + channel :: shape.channels]
            part = inside[shape.start] + sum(w * x for w, x in zip(factors, weights, strict=False)) & MASK
            totals[2 * channel] = totals[2 * channel] + part & MASK
            totals[2 * channel + 1] = totals[2 * channel + 1] + (part >> 16) & MASK
    return totals


def executed_totals(loop: ProductLoop, words: list[int], data: bytes, totals: list[int]) -> list[int]:
    """The totals by the instructions, on a machine that knows no others."""
    registers = {WORDS: 0, BYTES: 0, **{f"%[s{n}]": total for n, total in enumerate(totals)}}
    while True:
        for line in loop.lines:
            mnemonic, _, rest = line.partition(" ")
            operands = re.split(r", (?![^{]*})", rest)
            match mnemonic, operands:
                case "ldmia", [pointer, names]:
                    assert pointer == f"{WORDS}!"
                    listed = names.strip("{}").split(", ")
                    assert listed == sorted(set(listed)) and set(listed) <= set(SCRATCH)  # ascending, as memory is
                    for name in listed:
                        registers[name] = words[registers[WORDS] // 4]
                        registers[WORDS] += 4
                case "ldrb", [name, pointer, offset]:
                    place = int(offset.strip("#]"))
                    assert pointer == f"[{BYTES}" and 0 <= place <= MAX_BYTE_OFFSET
                    registers[name] = data[registers[BYTES] + place]
                case "muls", [result, a, b]:
                    assert b == result
                    registers[result] = registers[a] * registers[b] & MASK
                case "adds", [pointer, step] if step.startswith("#"):
                    registers[pointer] += int(step[1:])
                case "adds", [result, a, b]:
                    registers[result] = registers[a] + registers[b] & MASK
                case "add", [total, a]:
                    registers[total] = registers[total] + registers[a] & MASK
                case "movs", [result, a]:
                    registers[result] = registers[a]
                case "lsrs", [result, a, shift]:
                    registers[result] = registers[a] >> int(shift[1:])
                case "cmp", [pointer, "%[end]"]:
                    is_end = registers[pointer] == 4 * loop.word_count
                case "bne", ["1b"]:
                    break
                case _:
                    raise AssertionError(line)
        if is_end:
            return [registers[f"%[s{n}]"] for n in range(len(totals))]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_instructions_compute_what_the_statements_do(shape: Shape) -> None:
    loop, random = found(shape), Random(str(shape))
    words = [random.getrandbits(32) for _ in range(loop.word_count)]
    data, totals = random.randbytes(loop.byte_count), [random.getrandbits(32) for _ in loop.totals]
    assert executed_totals(loop, words, data, totals) == expected_totals(shape, words, data, totals)
    assert len(loop.lines) <= MOST_LINES + 3
    instructions = sum(n for kind, n in loop.operations.items() if kind not in ("paired", "taken"))
    assert instructions == len(loop.lines)


def test_a_loop_takes_little_more_than_its_products() -> None:
    """32 products of two pixels: 16 pairs of load, product and sum for each channel, and 12 for the totals."""
    assert len(found(Shape(4, 2, 2, 8, 4)).lines) == 96 // 2 + 12 + 4 + 3


def test_loops_that_are_none() -> None:
    """Each differs in one point from a loop of products."""
    shape = Shape(4, 2, 2)
    cases = {
        "core": (loop_of(shape), "cortex-m3"),
        "one iteration": (loop_of(Shape(4, 2, 2, 1)), "cortex-m0"),
        "bytes out of reach": (loop_of(Shape(8, 2, 3)), "cortex-m0"),
        "gaps between words": (loop_of(shape, *list(block_of(shape, 3))), "cortex-m0"),
        "a sum without totals": (loop_of(shape, ir.Store(PART, (number(0),), WORD[STEP])), "cortex-m0"),
        "a total that is overwritten": (
            loop_of(shape, ir.Store(TOTAL, (number(0), number(0)), WORD[STEP])),
            "cortex-m0",
        ),
        "a store to memory": (loop_of(shape, ir.Store(WORD, (STEP,), WORD[STEP])), "cortex-m0"),
    }
    assert not [name for name, (loop, cpu) in cases.items() if find_product_loop(loop, cpu) is not None]
    assert find_product_loop(loop_of(shape), "cortex-m23") is not None


def kernels() -> str:
    """C of a function for every shape, whose totals start from constants or from memory."""
    printer, lines = StmtPrinter(ExprPrinter(), cpu="cortex-m0"), ["#include <stdint.h>"]
    for n, shape in enumerate(SHAPES):
        totals = [ir.Load(TOTAL, (number(c), number(upper))) for c in range(shape.channels) for upper in range(2)]
        starts = [ir.const(n, "uint32") if n % 2 else WORD[k] for k in range(len(totals))]
        result = ir.Buffer("out", (4, 4), "uint32")
        body = ir.seq(
            *(ir.Store(TOTAL, t.indices, start) for t, start in zip(totals, starts, strict=True)),
            loop_of(shape),
            *(ir.Store(result, (ROW, number(k)), total) for k, total in enumerate(totals)),
        )
        rows = ir.For(ROW, number(4), ir.Alloc(TOTAL, body))
        lines += printer.print_function(ir.PrimFunc(f"kernel_{n}", (WORD, BYTE, result), rows), "void")
    return "\n".join((*lines, ""))


OPTIONS = ("-O0", "-Os -fno-omit-frame-pointer", "-O2", "-O3 -fPIC -msingle-pic-base -mpic-register=r9")


@needs("arm-none-eabi-gcc")
@pytest.mark.parametrize("options", OPTIONS)
def test_statements_compile_with_any_options(options: str, tmp_path: Path) -> None:
    """A frame pointer and a base of data each take a register; without optimisation there is the portable meaning."""
    text = kernels()
    assert text.count("__asm__ volatile") == len(SHAPES) and all(f'"{name}"' in text for name in HIGH)
    (tmp_path / "kernels.c").write_text(text)
    flags = ("-mcpu=cortex-m0", "-mthumb", *options.split(), *WARNINGS, "-Wno-missing-prototypes")
    subprocess.run(
        ("arm-none-eabi-gcc", *flags, "-c", "kernels.c", "-o", "kernels.o"), cwd=tmp_path, check=True, timeout=300
    )


@needs("clang")
def test_clang_takes_the_statements(tmp_path: Path) -> None:
    (tmp_path / "kernels.c").write_text(kernels())
    flags = ("--target=thumbv6m-none-eabi", "-ffreestanding", "-Os", *WARNINGS, "-Wno-missing-prototypes")
    subprocess.run(("clang", *flags, "-c", "kernels.c", "-o", "kernels.o"), cwd=tmp_path, check=True, timeout=300)
