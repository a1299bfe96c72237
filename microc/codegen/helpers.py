"""The small inline functions that printed expressions call: minimum and maximum, floor division, intrinsics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from microc import dtypes
from microc.codegen.c_expr import ExprPrinter
from microc.codegen.c_stmt import StmtPrinter
from microc.codegen.halves import HALVES
from microc.codegen.libm import OWN
from microc.errors import InternalError
from microc.isa import CORES, FAMILIES, SCALAR, Intrin, bodies_of
from microc.isa.base import LANE
from microc.tir import ir
from microc.tir.facts import buffers_written
from microc.tir.operators import BINARY
from microc.tir.rewrite import map_expr, map_stmt

_LONG = {"i": "int", "u": "uint", "f": "float"}


def helper_texts(names: Iterable[str], cpu: str = "host", whole: ExprPrinter | None = None) -> dict[str, list[str]]:
    """The lines of all named helpers and of those that they need, each after what it needs, else by name, for a core. What is
    needed only where a core's own bodies are not compiled may be unused.

    ``whole``, the file's printer, is told which headers they need.
    """
    texts: dict[str, list[str]] = {}
    sure = set(names)
    own = FAMILIES[CORES[cpu].family].own_math

    def add(name: str) -> None:
        if name not in texts:
            printer = ExprPrinter(own=own)
            lines = helper_source(name, printer, cpu)
            if whole is not None and printer.needs_math:
                whole.needs_math = True
            for needed in sorted(printer.helpers):
                add(needed)
            if not any(line.startswith("#") for line in lines):
                sure.update(printer.helpers)
            texts[name] = lines

    for name in sorted(sure):
        add(name)
    return {
        name: lines if name in sure or dtypes.is_vector(name) else [*_attribute("unused"), *lines]
        for name, lines in texts.items()
    }


def _attribute(name: str) -> list[str]:
    """Of the function that follows, for compilers that know it."""
    return ["#if defined(__GNUC__)", f"__attribute__(({name}))", "#endif"]


def helper_source(name: str, printer: ExprPrinter, cpu: str) -> list[str]:
    """C of the helper called ``name`` on a core; what it needs in turn is added to the printer's helpers."""
    if dtypes.is_vector(name):
        return _vector(name, cpu)
    if name in HALVES:
        head, brace, *portable, end = HALVES[name]
        printer.helpers.update(dict.fromkeys(each for each in HALVES for line in portable if f"{each}(" in line))
        return [head, brace, *_guarded(name, [line.removeprefix("    ") for line in portable], cpu), end]
    if name in OWN:
        printer.needs_math = True
        called = set(re.findall(r"\w+", "\n".join(OWN[name])))  # whole words: acosh_f32 does not call cosh_f32
        printer.helpers.update(dict.fromkeys(each for each in OWN if each != name and each in called))
        return list(OWN[name])
    if name in SCALAR:
        return _intrinsic(SCALAR[name], printer, cpu)
    match = re.fullmatch(r"([iuf]\d+)_of_([iuf]\d+)", name)
    if match is not None:
        return _reinterpreted(name, _c_name(match[1]), _c_name(match[2]))
    op, _, short = name.rpartition("_")
    if op not in BINARY or not BINARY[op].body:
        raise InternalError(f"there is no helper {name!r}")
    kind = _c_name(short)
    head = f"static inline {kind} {name}({kind} a, {kind} b)"
    body = BINARY[op].body.replace("{type}", kind).splitlines()
    return [head, "{", *(f"    {line}" for line in body), "}"]


def _c_name(short: str) -> str:
    """``int32_t`` for ``i32``."""
    return dtypes.c_name(f"{_LONG[short[0]]}{short[1:]}")


def _reinterpreted(name: str, result: str, source: str) -> list[str]:
    """The bits of a float as an integer, or the other way."""
    return [
        f"static inline {result} {name}({source} x)",
        "{",
        f"    {result} bits;",
        "    (void)memcpy(&bits, &x, sizeof bits);",
        "    return bits;",
        "}",
    ]


def _vector(name: str, cpu: str) -> list[str]:
    """A vector in a register where the core has such, else its lanes in memory."""
    kind, bits, lanes = dtypes.info(name)
    lines = ["typedef struct {", f"    {dtypes.c_name(f'{kind}{bits}')} lane[{lanes}];", f"}} {name};"]
    for instructions in CORES[cpu].sets:
        if instructions.unit is not None and name in instructions.unit.types:
            unit = instructions.unit
            types = [f"#include <{unit.header}>"] if unit.header else []
            types.append(f"typedef {unit.types[name]} {name};")
            lines = [f"#if {instructions.guard}", *types, "#else", *lines, "#endif"]
    return lines


def _intrinsic(intrin: Intrin, printer: ExprPrinter, cpu: str) -> list[str]:
    """The core's bodies where the compiler has their instructions, otherwise the meaning."""
    written = buffers_written(intrin.meaning) if isinstance(intrin.meaning, ir.Stmt) else set()
    params = ", ".join(
        f"{'' if p in written else 'const '}{dtypes.c_name(p.dtype)} *{p.name}"
        if isinstance(p, ir.Buffer)
        else f"{dtypes.c_name(p.dtype)} {p.name}"
        for p in intrin.params
    )
    inside = (dtype for _, body in bodies_of(intrin.name, cpu) for dtype in body.types)
    for dtype in (intrin.result, *(p.dtype for p in intrin.params), *inside):
        if dtype and dtypes.is_vector(dtype):
            printer.helpers[dtype] = None
    apart = any(body.apart for _, body in bodies_of(intrin.name, cpu))
    kept = _attribute("noinline") if apart else []
    how = "static" if apart else "static inline"
    head = f"{how} {dtypes.c_name(intrin.result) if intrin.result else 'void'} {intrin.name}({params})"
    units = [(each.guard, each.unit) for each in CORES[cpu].sets if intrin.lanes]
    own = [(guard, _portable(intrin, printer, "")) for guard, unit in units if unit and unit.elements]
    return [*kept, head, "{", *_guarded(intrin.name, _portable(intrin, printer), cpu, own), "}"]


def _guarded(name: str, portable: list[str], cpu: str, own: Sequence[tuple[str, list[str]]] = ()) -> list[str]:
    """The core's bodies behind their conditions, the best one behind each, else its ``own`` forms of the meaning behind theirs,
    else the portable lines."""
    lines: list[str] = []
    bodies: dict[str, list[str]] = {}
    for guard, text in (*((g, body.text.splitlines()) for g, body in bodies_of(name, cpu) if body.text), *own):
        bodies.setdefault(guard, text)
    for guard, text in bodies.items():
        lines += [f"#{'elif' if lines else 'if'} {guard}", *(f"    {line}" for line in text)]
    portable = [f"    {line}" for line in portable]
    return [*lines, "#else", *portable, "#endif"] if lines else portable


def _portable(intrin: Intrin, printer: ExprPrinter, lane: str = ".lane") -> list[str]:
    """The meaning as C; lane by lane for vectors, whose elements ``lane`` leads to."""
    statements = StmtPrinter(printer)
    if not intrin.lanes:
        meaning = intrin.meaning
        return statements.lines(meaning) if isinstance(meaning, ir.Stmt) else [f"return {printer(meaning)};"]
    vectors: dict[ir.Expr, ir.Expr] = {}
    for p in intrin.params:
        if isinstance(p, ir.Var) and dtypes.is_vector(p.dtype):
            element = ir.Buffer(f"{p.name}{lane}", (intrin.lanes,), p.dtype.partition("x")[0])
            vectors[ir.Var(p.name, element.dtype)] = element[LANE]
    body = intrin.meaning
    if isinstance(body, ir.Expr):
        body = ir.Store(ir.Buffer(f"r{lane}", (intrin.lanes,), body.dtype), (LANE,), body)
    body = map_stmt(body, lambda s: s, lambda e: map_expr(e, lambda x: vectors.get(x, x)))
    lines = statements.lines(ir.For(LANE, intrin.turns, body))
    begun = "" if lane else " = {0}"  # compilers do not see that subscripts set all of a vector
    return [f"{intrin.result} r{begun};", *lines, "return r;"] if intrin.result else lines
