# SPDX-License-Identifier: Apache-2.0
"""Comments in printed loops."""

from __future__ import annotations

from microc.codegen.c.c_statements import StmtPrinter
from microc.tir import ir

DATA = ir.Buffer("data", (4,), "int32")
ACC = ir.Buffer("acc", (1,), "int32", "register")
OUT = ir.Buffer("out", (4,), "int32")
COPY = ir.Buffer("data_workspace", (4,), "int32", "workspace")
I = ir.Var("i")  # noqa: E741
ZERO, FOUR = ir.const(0, "int32"), ir.const(4, "int32")


def loop(body: ir.Stmt) -> ir.Stmt:
    return ir.For(I, FOUR, body)


def test_a_block_begins_where_another_buffer_is_written() -> None:
    """The formula stands before the first block, its title before those that repeat it; a copy is told as one."""
    summed = ir.Alloc(ACC, ir.seq(ir.Store(ACC, (ZERO,), DATA[I]), ir.Store(ACC, (ZERO,), ACC[0] + 1)))
    stored = ir.Let(ir.Var("k"), ACC[0], ir.Store(OUT, (I,), ir.Var("k")))
    body = ir.seq(
        loop(ir.Store(COPY, (I,), DATA[I])), loop(ir.seq(summed, stored)), loop(ir.seq(summed, stored)),
    )  # fmt: skip
    said = (("acc", "accumulate: acc[p] = data[p]"), ("out", "relu */ p // 5"))
    lines = StmtPrinter().print_function(ir.PrimFunc("kernel", (DATA, OUT, COPY), body), blocks=said)
    comments = [line.strip() for line in lines if "/*" in line]
    first = "/* accumulate: acc[p] = data[p] */"
    assert comments == ["/* copy of data */", first, "/* relu * / p / 5 */", "/* accumulate */", "/* relu * / p / 5 */"]
    assert lines.index("        int32_t acc;") == lines.index("        /* accumulate: acc[p] = data[p] */") + 1
