"""TIR statements and functions as C99."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from microc import dtypes
from microc.codegen.blocks import Blocks
from microc.codegen.c_expr import Bounds, ExprPrinter
from microc.codegen.scopes import distinct, tile_names
from microc.codegen.turns import Turns, seen_inside, turns_of
from microc.errors import InternalError
from microc.tir import ir
from microc.tir.affine import bounds_of
from microc.tir.facts import buffers_read, buffers_written, ending
from microc.tir.parallel import has_parts
from microc.tir.strips import taken

INDENT = "    "


class StmtPrinter:
    """Prints statements as lines; one instance per C file, so that helpers are collected for all its functions.

    ``space`` qualifies the constants that functions take: their address space and a blank, or empty where there is only one.
    ``sizes``: the smallest and largest values of functions' scalars. ``threads``: whether a pool of them runs parallel loops.
    """

    def __init__(
        self,
        expr: ExprPrinter | None = None,
        space: str = "",
        sizes: Bounds | None = None,
        *,
        threads: bool = False,
    ) -> None:
        self.expr = expr or ExprPrinter()
        self.threads = threads
        self.func: ir.PrimFunc | None = None
        self.turns: list[Turns] = []
        self.space = space
        self.sizes: Bounds = sizes or {}
        self.blocks: Blocks | None = None

    def lines(self, stmt: ir.Stmt) -> list[str]:
        """The statement, one string per line, without indentation of its own."""
        comment = self.blocks.before(stmt) if self.blocks else []
        return [*comment, *self._lines(stmt)]

    def _lines(self, stmt: ir.Stmt) -> list[str]:
        match stmt:
            case ir.Seq(body):
                return [line for child in body for line in self.lines(child)]
            case ir.Store(buffer, indices, value):
                return self._store(buffer, indices, value)
            case ir.For():
                return self._loop(stmt)
            case ir.If(condition, then, otherwise):
                text = [f"if ({self.expr(condition)}) {{", *_indented(self.lines(then))]
                if otherwise is not None:
                    text += ["} else {", *_indented(self.lines(otherwise))]
                return [*text, "}"]
            case ir.Let(var, value, body):
                return [f"const {dtypes.c_name(var.dtype)} {var.name} = {self.expr(value)};", *self.lines(body)]
            case ir.Alloc(buffer, body):
                return [*self._declare(buffer, body), *self.lines(body)]
            case ir.Evaluate(value):
                return [f"{self.expr(value)};"]
            case _:
                raise InternalError(f"cannot print {type(stmt).__name__} as C")

    def _store(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...], value: ir.Expr) -> list[str]:
        target = self.expr.element(buffer, indices)
        if isinstance(value, ir.Bin) and value.op in ("add", "sub", "mul") and value.a == ir.Load(buffer, indices):
            sign = {"add": "+", "sub": "-", "mul": "*"}[value.op]
            return [f"{target} {sign}= {self.expr(value.b)};"]
        return [f"{target} = {self.expr(value)};"]

    def _loop(self, loop: ir.For) -> list[str]:
        if loop.kind not in ("serial", "parallel", "scalable"):
            raise InternalError(f"{loop.kind} loop {loop.var.name} was not lowered")
        reach = bounds_of(loop.extent, self.expr.bounds)
        if reach is not None and (self.sizes or reach[0] == reach[1]):
            self.expr.bounds[loop.var] = (0, max(0, reach[1] - 1))
        kind, name = dtypes.c_name(loop.var.dtype), loop.var.name
        end, inside = f"{name} < {self.expr(loop.extent)}", loop.body
        ends = ending(loop)
        if ends is not None:
            end, inside = f"{end} && {self.expr(ends.condition)}", ends.then
        head = f"for ({kind} {name} = 0; {end}; ++{name}) {{"
        body = _indented(self.lines(inside))
        strip = taken(loop) if loop.kind == "scalable" else None
        if strip is not None:
            return [f"for ({kind} {name} = 0; {end};) {{", *body, f"{INDENT}{name} += {strip.var.name};", "}"]
        lines = [head, *body, "}"]
        if loop.kind == "parallel":
            written = (b for b in buffers_written(loop.body) if b.scope == "workspace")
            scratch = sorted(b.name for b in written if not has_parts(loop, b))
            if scratch:
                raise InternalError(f"iterations of parallel loop {name} share the workspace {scratch[0]}")
            if self.threads:
                return self._turns(loop, body)
            lines = ["#if defined(_OPENMP)", "#pragma omp parallel for", "#endif", *lines]
        return lines

    def _turns(self, loop: ir.For, body: list[str]) -> list[str]:
        """A parallel loop for the pool; ``body`` is printed."""
        assert self.func is not None
        buffers, values = seen_inside(loop, self.func.params)
        written = buffers_written(self.func.body)
        seen = [(_pointer(b, self.space, written=b in written), b.name) for b in buffers]
        seen += [(f"{dtypes.c_name(v.dtype)} ", v.name) for v in values]
        name = f"{self.func.name}__{len(self.turns)}"
        self.turns.append(turns_of(name, loop, self.expr(loop.extent), seen, body))
        return list(self.turns[-1].call)

    def _declare(self, buffer: ir.Buffer, body: ir.Stmt) -> list[str]:
        if buffer.scope in ir.UNIT_SCOPES:
            return []
        if buffer.scope == "local":
            return [f"{dtypes.c_name(buffer.dtype)} {buffer.name}[{buffer.size}];"]
        if buffer.scope != "register":
            raise InternalError(f"{buffer.scope} buffer {buffer.name} was not lowered")
        names = tile_names(buffer, body)
        return [f"{dtypes.c_name(buffer.dtype)} {', '.join(names)};"] if names else []

    def function(
        self, func: ir.PrimFunc, head: str = "static void", blocks: Iterable[tuple[str, str]] = ()
    ) -> list[str]:
        """The whole function, declared as ``head``; read-only parameters are pointers to const. ``blocks``: what comments say
        of what is written to buffers, by their names."""
        func = distinct(func)
        self.func, self.turns = func, []
        self.blocks = Blocks(dict(blocks))
        written = {b.name for b in buffers_written(func.body)}
        self.expr.bounds = dict(self.sizes)
        used = written | {b.name for b in buffers_read(func.body)}
        unused = [
            f"(void){p.name};" for p in func.params if p.name not in used
        ]  # a result proved constant reads nothing
        body = _indented([*unused, *self.lines(func.body)])
        before = [line for turns in self.turns for line in turns.function]
        return [*before, self._head(func, head, written), "{", *body, "}"]

    def foreign(self, func: ir.PrimFunc, lines: Sequence[str], head: str) -> list[str]:
        """A function of the parameters of ``func`` whose body is somebody's text."""
        used = {word for line in lines for word in re.findall(r"\w+", line)}
        unused = [f"(void){p.name};" for p in func.params if p.name not in used]
        return [
            self._head(func, head, {b.name for b in buffers_written(func.body)}), "{", *_indented([*unused, *lines]), "}"
        ]  # fmt: skip

    def _head(self, func: ir.PrimFunc, head: str, written: set[str]) -> str:
        scalars = (f"{dtypes.c_name(scalar.dtype)} {scalar.name}" for scalar in func.scalars)
        params = ", ".join([*(_parameter(p, self.space, written=p.name in written) for p in func.params), *scalars])
        return f"{head} {func.name}({params or 'void'})"


WIDTH = 118
_BREAKS = (", ", " ? ", " : ", " && ", " || ", " + ", " = ")
_BRACKETS = {"(": 1, "[": 1, ")": -1, "]": -1}
_MARKS = re.compile(rf"[(\[)\]]|{'|'.join(map(re.escape, _BREAKS))}")


def wrapped(line: str) -> list[str]:
    """A line of code broken so that it stays within the width: behind the last separator within the fewest brackets."""
    indent = line[: len(line) - len(line.lstrip())]
    lines = []
    while len(line) > WIDTH and (cut := _place_to_break(line, len(indent) + 24)):
        lines.append(line[:cut])
        line = f"{indent}{INDENT}{line[cut:].lstrip()}"
    return [*lines, line]


def _place_to_break(line: str, first: int) -> int:
    depth, fewest, found = 0, len(line), 0
    for match in _MARKS.finditer(line):
        mark, end = match[0], match.start() + len(match[0].rstrip())
        if end >= WIDTH:
            break
        if mark in _BRACKETS:
            depth += _BRACKETS[mark]
        elif depth <= fewest and first < end:
            fewest, found = depth, end
    return found


def _parameter(buffer: ir.Buffer, space: str, *, written: bool) -> str:
    return _pointer(buffer, space, written=written) + buffer.name


def _pointer(buffer: ir.Buffer, space: str, *, written: bool) -> str:
    kind = dtypes.c_name(buffer.dtype)
    if buffer.scope == "const":  # flash never changes, so the compiler may keep its values
        return f"const {space}{kind} *restrict "
    return f"{'' if written else 'const '}{kind} *"


def _indented(lines: list[str]) -> list[str]:
    return [INDENT + line if line else line for line in lines]
