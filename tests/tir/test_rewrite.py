# SPDX-License-Identifier: Apache-2.0
"""Rewriting: what is shared stays shared, what does not change stays the same object, and knows what was found of it."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from dataclasses import replace

from microc.tir import ir
from microc.tir.analysis.context import block_names_in, buffers_read, buffers_written, is_index
from microc.tir.rewrite import map_expr, map_stmt, substitute, substitute_stmt, walk_expr

DATA, OUT = ir.Buffer("data", (64,), "int32"), ir.Buffer("out", (64,), "int32")
ROW, COLUMN, OTHER = ir.Var("i"), ir.Var("j"), ir.Var("k")
DEPTH = 40


def doubled(leaf: ir.Expr) -> ir.Expr:
    """A sum with itself, again and again: DEPTH expressions as a graph, 2**DEPTH as a tree."""
    value = leaf
    for _ in range(DEPTH):
        value = value + value
    return value


def objects(expr: ir.Expr) -> int:
    seen: set[int] = set()
    waiting = [expr]
    while waiting:
        found = waiting.pop()
        if id(found) not in seen:
            seen.add(id(found))
            waiting += [found.a, found.b] if isinstance(found, ir.Bin) else []
    return len(seen)


def test_substituting_keeps_what_is_shared() -> None:
    assert objects(substitute(doubled(DATA[ROW]), {ROW: COLUMN})) == DEPTH + 1


def test_mapping_asks_once_about_what_is_shared() -> None:
    asked: list[ir.Expr] = []

    def f(expr: ir.Expr) -> ir.Expr:
        asked.append(expr)
        return ir.Load(OUT, expr.indices) if isinstance(expr, ir.Load) else expr

    assert objects(map_expr(doubled(DATA[ROW]), f)) == DEPTH + 1
    assert len(asked) == DEPTH + 2  # and the index


def nest(value: ir.Expr) -> ir.For:
    guarded = ir.If(ROW < 3, ir.Store(OUT, (ROW,), value), ir.Store(OUT, (ROW,), DATA[ROW]))
    block = ir.Block("sum", (ir.IterVar(COLUMN, 8, "space", ROW),), ir.Store(DATA, (COLUMN,), ir.const(1, "int32")))
    named = ir.Let(ir.Var("t"), DATA[ROW], ir.seq(guarded, block))
    return ir.For(ROW, ir.const(8, "int32"), named)


def test_what_does_not_change_is_the_same_object() -> None:
    stmt = nest(ir.const(0, "int32"))
    assert map_stmt(stmt, lambda s: s) is stmt
    assert substitute_stmt(stmt, {ir.Var("elsewhere"): COLUMN}) is stmt
    changed = substitute_stmt(stmt, {ROW: OTHER})
    assert changed != stmt
    assert isinstance(changed, ir.For)
    assert substitute_stmt(changed, {OTHER: ROW}) == stmt


def test_statements_know_what_they_touch() -> None:
    stmt = nest(OUT[ROW] + 1)
    assert buffers_written(stmt) == {OUT, DATA}
    assert buffers_read(stmt) == {OUT, DATA}
    assert buffers_read(nest(ir.const(0, "int32"))) == {DATA}
    assert block_names_in(stmt) == {"sum"}


def test_index_arithmetic_reads_nothing() -> None:
    assert is_index((ROW * 4 + COLUMN) // 3)
    assert not is_index(ROW + DATA[COLUMN])
    assert not is_index(ir.Var("x", "float32"))
    assert sum(isinstance(x, ir.Load) for x in walk_expr(ROW + DATA[COLUMN])) == 1


def test_modules_import_in_any_order() -> None:
    """A module that is the first of microc.tir to be imported needs none that imports it."""
    program = """
import importlib, pkgutil, sys
import microc.tir
for module in list(pkgutil.walk_packages(microc.tir.__path__, "microc.tir.")):
    for loaded in [name for name in sys.modules if name.split(".")[0] == "microc"]:
        del sys.modules[loaded]
    importlib.import_module(module.name)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_equal_variables_are_one_object() -> None:
    var = ir.Var("i")
    assert ir.Var("i", "int32") is var
    assert ir.Var("i", "int64") != var
    assert pickle.loads(pickle.dumps(var)) is var
    assert copy.deepcopy(ir.Un("neg", var)).a is var
    assert replace(ir.Var("j"), name="i") is var


def test_buffers_are_compared_by_all_fields() -> None:
    buffer = ir.Buffer("a", (2, 3), "int8")
    assert buffer == ir.Buffer("a", (2, 3), "int8")
    assert hash(buffer) == hash(ir.Buffer("a", (2, 3), "int8"))
    assert buffer != ir.Buffer("b", (2, 3), "int8")
    assert buffer != ir.Buffer("a", (3, 2), "int8")
    assert buffer != ir.Buffer("a", (2, 3), "uint8")
    assert buffer != ir.Buffer("a", (2, 3), "int8", "const")
    assert buffer != ir.Buffer("a", (2, 3), "int8", align=4)
    assert buffer != ir.Buffer("a", (2, 3), "int8", slots=2)
