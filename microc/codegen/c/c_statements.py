"""TIR statements and functions as C99, loops for threads, inline functions."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.codegen.c.c_expressions import Bounds, ExprPrinter
from microc.codegen.c.identifiers import distinct, tile_names
from microc.codegen.c.libm import HALVES, OWN
from microc.errors import InternalError
from microc.isa import CORES, FAMILIES, SCALAR, Intrin, bodies_of
from microc.isa.instruction_set import LANE
from microc.tir import ir
from microc.tir.analysis.context import buffers_read, buffers_written, ending
from microc.tir.analysis.cover import has_parts
from microc.tir.analysis.simplification import bounds_of
from microc.tir.operators import BINARY
from microc.tir.rewrite import map_expr, map_stmt, stmt_children, walk_all_exprs, walk_stmt
from microc.tir.symbolic import taken

# ---- Comments in printed loops: what is computed from here on.
#
# Every block of a kernel writes one buffer, so that a new block begins where another buffer is written. What a block computes is
# told once; where it goes on, behind others or in a remainder, its title stands alone.

BLOCKS_WIDTH = 92
"""Of a comment in loops, which are indented."""


class Blocks:
    """What to say before the statements of a function, which are asked about in the order of the text."""

    def __init__(self, said: Mapping[str, str]) -> None:
        self.said = dict(said)
        self.current = ""
        self.known: dict[int, frozenset[ir.Buffer]] = {}

    def before(self, stmt: ir.Stmt) -> list[str]:
        """Lines of a comment: none where the block goes on, or where nothing is known of it."""
        if isinstance(stmt, ir.Seq):
            return []
        written = self._written(_first(stmt))
        if len(written) != 1 or (name := self._name(next(iter(written)))) == self.current:
            return []
        self.current = name
        text = self.said.get(name, "")
        self.said[name] = re.split(r"[:\[]", text)[0]
        return comment(text, BLOCKS_WIDTH) if text else []

    def _written(self, stmt: ir.Stmt) -> frozenset[ir.Buffer]:
        """The buffers that a statement writes, found once for those inside of others."""
        if id(stmt) not in self.known:
            match stmt:
                case ir.Store(buffer):
                    found = frozenset({buffer})
                case ir.Evaluate():
                    found = buffers_written(stmt)
                case _:
                    found = frozenset[ir.Buffer]().union(*map(self._written, stmt_children(stmt)))
            self.known[id(stmt)] = found
        return self.known[id(stmt)]

    def _name(self, buffer: ir.Buffer) -> str:
        """What a buffer is told as: one that a schedule put between is a copy, or holds the tensor that is made."""
        name = buffer.name.removesuffix(f"_{buffer.scope}")
        if name != buffer.name and name not in self.said:
            self.said[name] = f"copy of {name}"
        return name


def _first(stmt: ir.Stmt) -> ir.Stmt:
    """The first statement that does something."""
    match stmt:
        case ir.Let(_, _, body) | ir.Alloc(_, body):
            return _first(body)
        case ir.Seq((body, *_)):
            return _first(body)
        case _:
            return stmt


def comment(text: str, width: int) -> list[str]:
    """A comment as lines of C; nothing in it ends a comment or begins another. Integers are divided as C writes it."""
    shown = text.replace("//", "/").replace("*/", "* /").replace("/*", "/ *")
    return textwrap.wrap(f"/* {shown} */", width, subsequent_indent=" *     ", break_on_hyphens=False)


# ---- Parallel loops for threads: the turn of a loop as a function of its own, with what it sees of the kernel in a
# structure.

RUN = "microc_run_turns"
"""The function of ``templates/project/threads.c.j2`` that runs them."""


@frozen
class Turns:
    """C of a parallel loop: the functions before the kernel, and what stands in it instead of the loop."""

    function: tuple[str, ...]
    call: tuple[str, ...]


def seen_inside(loop: ir.For, params: Sequence[ir.Buffer]) -> tuple[list[ir.Buffer], list[ir.Var]]:
    """Parameters that a loop touches, and values from outside of it that it reads, both in a fixed order."""
    used, known = buffers_read(loop.body) | buffers_written(loop.body), {loop.var}
    own = set()
    for stmt in walk_stmt(loop.body):
        match stmt:
            case ir.For(var) | ir.Let(var):
                known.add(var)
            case ir.Alloc(buffer):
                own.add(buffer)
            case _:
                pass
    foreign = sorted(b.name for b in used - own - set(params))
    if foreign:
        raise InternalError(f"turns of parallel loop {loop.var.name} share {foreign[0]}, which is no parameter")
    values = {x for x in walk_all_exprs(loop.body) if isinstance(x, ir.Var)} - known
    return [b for b in params if b in used], sorted(values, key=lambda v: v.name)


def turns_of(name: str, loop: ir.For, extent: str, seen: Sequence[tuple[str, str]], body: Sequence[str]) -> Turns:
    """A loop whose indented ``body`` is printed. ``name``: of the function; ``seen``: declarations of what it sees without their
    names, and these."""
    members = [f"    {_member(kind)}{each};" for kind, each in seen]
    given = f"((const struct {name} *)microc_seen)"
    return Turns(
        (
            f"struct {name} {{",
            *members,
            "};",
            "",
            f"static void {name}(const void *microc_seen, {dtypes.c_name(loop.var.dtype)} {loop.var.name})",
            "{",
            *(f"    {kind}const {each} = {given}->{each};" for kind, each in seen),
            *body,
            "}",
            "",
        ),
        (
            "{",
            f"    const struct {name} microc_seen = {{{', '.join(each for _, each in seen)}}};",
            f"    {RUN}({name}, &microc_seen, {extent});",
            "}",
        ),
    )


def _member(kind: str) -> str:
    """A declaration's type inside of a structure, where nothing is promised of pointers."""
    return kind.replace("restrict ", "")


# ---- TIR statements and functions as C99.

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


C_STMT_WIDTH = 118
_BREAKS = (", ", " ? ", " : ", " && ", " || ", " + ", " = ")
_BRACKETS = {"(": 1, "[": 1, ")": -1, "]": -1}
_MARKS = re.compile(rf"[(\[)\]]|{'|'.join(map(re.escape, _BREAKS))}")


def wrapped(line: str) -> list[str]:
    """A line of code broken so that it stays within the width: behind the last separator within the fewest brackets."""
    indent = line[: len(line) - len(line.lstrip())]
    lines = []
    while len(line) > C_STMT_WIDTH and (cut := _place_to_break(line, len(indent) + 24)):
        lines.append(line[:cut])
        line = f"{indent}{INDENT}{line[cut:].lstrip()}"
    return [*lines, line]


def _place_to_break(line: str, first: int) -> int:
    depth, fewest, found = 0, len(line), 0
    for match in _MARKS.finditer(line):
        mark, end = match[0], match.start() + len(match[0].rstrip())
        if end >= C_STMT_WIDTH:
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


# ---- The small inline functions that printed expressions call: minimum and maximum, floor division, intrinsics.

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
