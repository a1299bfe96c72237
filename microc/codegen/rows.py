"""Element numbers by rows: ``data[y * (8 * 320) + x * 64 + c + 2 * 320]`` says what ``data[y * 2560 + x * 64 + c + 640]`` hides.

Arrays of C have one subscript: gcc's code for several is not that for their sum, and takes up to a third more instructions in
kernels that use all registers. Products of literals leave its code as it is, since they are literals to it.
"""

from __future__ import annotations

from functools import lru_cache

from microc.tir import ir
from microc.tir.affine import simplify

NARROWEST = (1 << 15) - 1
"""Literals up to here are multiplied without overflow by every compiler, also where ``int`` has 16 bits."""
WIDEST = (1 << 31) - 1
"""The same where it has 32."""
REMEMBERED = 1 << 12
"""Numbers that are kept: a kernel comes to its elements more than once."""


@lru_cache(maxsize=REMEMBERED)
def element_number(buffer: ir.Buffer, indices: tuple[ir.Expr, ...], largest: int) -> ir.Expr:
    """The row-major number of an element; literals up to ``largest`` that are several rows are products."""
    strides = buffer.strides
    total: ir.Expr = ir.const(0, "int32")
    for index, stride in zip(indices, strides, strict=True):
        total = total + index * stride
    number = simplify(total)
    if len(strides) < 2:
        return number
    offsets = [(_offset(index), stride) for index, stride in zip(indices, strides, strict=True)]
    rows = [(count, stride) for count, stride in offsets if count]
    return _by_rows(number, rows, {s for s in strides if s > 1}, largest)


def _offset(index: ir.Expr) -> int:
    """The literal at the end of an index."""
    match index:
        case ir.Const(int(value)) | ir.Bin("add", _, ir.Const(int(value))):
            return value
        case ir.Bin("sub", _, ir.Const(int(value))):
            return -value
        case _:
            return 0


def _by_rows(number: ir.Expr, rows: list[tuple[int, int]], strides: set[int], largest: int) -> ir.Expr:
    match number:
        case ir.Bin("add" | "sub" as op, a, ir.Const(int(value)) as offset) if abs(value) <= largest:
            rest, sign = _by_rows(a, [], strides, largest), 1 if (op == "add") == (value > 0) else -1
            if sum(count * stride for count, stride in rows) != sign * abs(value):
                return ir.Bin(op, rest, offset)
            return ir.Bin("add" if sign > 0 else "sub", rest, _sum([(sign * n, s) for n, s in rows]))
        case ir.Bin("add" | "sub" as op, a, b):
            return ir.Bin(op, _by_rows(a, [], strides, largest), _by_rows(b, [], strides, largest))
        case ir.Bin("mul", a, ir.Const(int(value))) if value <= largest and value not in strides:
            stride = max((s for s in strides if value % s == 0), default=0)
            return ir.Bin("mul", a, _sum([(value // stride, stride)])) if stride else number
        case ir.Const(int(value)) if 0 < value <= largest and sum(count * stride for count, stride in rows) == value:
            return _sum(rows)
        case _:
            return number


def _sum(rows: list[tuple[int, int]]) -> ir.Expr:
    """Counts of strides as literals, positive ones first."""
    total: ir.Expr | None = None
    for count, stride in sorted(rows, key=lambda row: row[0] < 0):
        size, step = ir.const(abs(count), "int32"), ir.const(stride, "int32")
        row = size if stride == 1 else step if abs(count) == 1 else ir.Bin("mul", size, step)
        total = row if total is None else ir.Bin("add" if count > 0 else "sub", total, row)
    assert total is not None
    return total
