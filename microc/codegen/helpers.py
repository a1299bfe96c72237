"""The small inline functions that printed expressions call: minimum and maximum, floor division, intrinsics."""

from __future__ import annotations

import re

from microc import dtypes
from microc.codegen.c_expr import ExprPrinter
from microc.codegen.c_stmt import StmtPrinter
from microc.errors import InternalError
from microc.schedule.intrinsics import SCALAR, Intrin
from microc.tir import ir

_LONG = {"i": "int", "u": "uint", "f": "float"}


def helper_source(name: str, printer: ExprPrinter) -> list[str]:
    """C of the helper called ``name``; what it needs in turn is added to the printer's helpers."""
    if name in SCALAR:
        return _intrinsic(SCALAR[name], printer)
    match = re.fullmatch(r"(min|max|floordiv|floormod)_([iuf])(\d+)", name)
    if match is None:
        raise InternalError(f"there is no helper {name!r}")
    kind = dtypes.c_name(f"{_LONG[match[2]]}{match[3]}")
    head = f"static inline {kind} {name}({kind} a, {kind} b)"
    body = {
        "min": ["return a < b ? a : b;"],
        "max": ["return a > b ? a : b;"],
        "floordiv": ["return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);"],
        "floormod": [f"const {kind} r = a % b;", "return (r != 0 && (r < 0) != (b < 0)) ? r + b : r;"],
    }[match[1]]
    return [head, "{", *(f"    {line}" for line in body), "}"]


def _intrinsic(intrin: Intrin, printer: ExprPrinter) -> list[str]:
    """The fast body where the compiler has the feature, otherwise the meaning."""
    if isinstance(intrin.meaning, ir.Stmt):
        result, meaning = "void", StmtPrinter(printer).lines(intrin.meaning)
    else:
        result, meaning = dtypes.c_name(intrin.meaning.dtype), [f"return {printer(intrin.meaning)};"]
    written = isinstance(intrin.meaning, ir.Stmt)
    params = ", ".join(
        f"{'' if written else 'const '}{dtypes.c_name(p.dtype)} *{p.name}"
        if isinstance(p, ir.Buffer)
        else f"{dtypes.c_name(p.dtype)} {p.name}"
        for p in intrin.params
    )
    if not intrin.guard:
        return [f"static inline {result} {intrin.name}({params})", "{", *(f"    {line}" for line in meaning), "}"]
    return [
        f"static inline {result} {intrin.name}({params})",
        "{",
        f"#if {intrin.guard}",
        *(f"    {line}" for line in intrin.body.splitlines()),
        "#else",
        *(f"    {line}" for line in meaning),
        "#endif",
        "}",
    ]
