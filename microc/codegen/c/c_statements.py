# SPDX-License-Identifier: Apache-2.0
"""Print TIR statements and functions as C99, including parallel loops for threads or cores, and inline helper functions."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.codegen.c.c_expressions import Bounds, ExprPrinter
from microc.codegen.c.identifiers import list_tile_scalar_names, make_names_distinct
from microc.codegen.c.libm import HALF_FLOAT_HELPERS, MATH_HELPERS
from microc.errors import InternalError
from microc.isa import CORES, FAMILIES, SCALAR, Intrin, c_bodies_of_intrinsic
from microc.isa.arm_product_loops import BYTES, END, HIGH, SCRATCH, WORDS, ProductLoop, find_product_loop
from microc.isa.instruction_set import LANE
from microc.isa.straight_line import Run, split_at_runs
from microc.module import Kernel, Module
from microc.tir import ir
from microc.tir.analysis.context import buffers_read, buffers_written, early_exit_branch, is_distributed
from microc.tir.analysis.cover import has_disjoint_iterations
from microc.tir.analysis.region import accesses
from microc.tir.analysis.simplification import bounds_of
from microc.tir.operators import BINARY
from microc.tir.rewrite import (
    map_expr,
    map_stmt,
    replace_buffers,
    stmt_children,
    walk_all_exprs,
    walk_stmt,
    while_branch,
)
from microc.tir.symbolic import find_active_lanes_let

# ---- Comments in printed loops, which describe what the following statements compute.
#
# Every block of a kernel (a computation of the schedule) writes a single buffer. A block therefore begins where the written
# buffer changes. The comment of a block is printed once. Where the block continues after other blocks, or in the remainder of a
# loop, only the title of the comment is printed.

BLOCK_COMMENT_WIDTH = 92
"""Maximum number of columns of a comment in a loop. It leaves space for the indentation of loops."""


class BlockComments:
    """Comments of a function's blocks, which are requested for statements in the order in which they are printed.

    ``descriptions``: text about the computation of a block, by the name of the buffer that the block writes. ``current``: name
    of the buffer that the preceding statement writes. ``written_by``: cached sets of the buffers that statements write, by the
    ``id`` of the statement.
    """

    def __init__(self, descriptions: Mapping[str, str]) -> None:
        self.descriptions = dict(descriptions)
        self.current = ""
        self.written_by: dict[int, frozenset[ir.Buffer]] = {}

    def comment_before(self, stmt: ir.Stmt) -> list[str]:
        """Return the lines of the comment before a statement.

        There are none if the statement belongs to the same block as the preceding one, or if its block has no description."""
        if isinstance(stmt, ir.Seq):
            return []
        written = self._written_buffers(_first_non_declaration(stmt))
        if len(written) != 1 or (name := self._description_key(next(iter(written)))) == self.current:
            return []
        self.current = name
        text = self.descriptions.get(name, "")
        self.descriptions[name] = re.split(r"[:\[]", text)[0]
        return wrap_comment(text, BLOCK_COMMENT_WIDTH) if text else []

    def _written_buffers(self, stmt: ir.Stmt) -> frozenset[ir.Buffer]:
        """Return the buffers that a statement writes.

        Results are memoised, since each statement is also visited for every statement that contains it."""
        if id(stmt) not in self.written_by:
            match stmt:
                case ir.Store(buffer):
                    buffers = frozenset({buffer})
                case ir.Evaluate():
                    buffers = buffers_written(stmt)
                case _:
                    buffers = frozenset[ir.Buffer]().union(*map(self._written_buffers, stmt_children(stmt)))
            self.written_by[id(stmt)] = buffers
        return self.written_by[id(stmt)]

    def _description_key(self, buffer: ir.Buffer) -> str:
        """Return the key of a buffer in ``descriptions``.

        A schedule appends the scope to the name of a copy of a tensor (``x_local``); the key is the name without the scope.
        If ``descriptions`` has no description of such a copy, one is added."""
        name = buffer.name.removesuffix(f"_{buffer.scope}")
        if name != buffer.name and name not in self.descriptions:
            self.descriptions[name] = f"copy of {name}"
        return name


def _first_non_declaration(stmt: ir.Stmt) -> ir.Stmt:
    """Return the first statement that is neither a declaration nor a sequence, inside of such statements."""
    match stmt:
        case ir.Let(_, _, body) | ir.Alloc(_, body):
            return _first_non_declaration(body)
        case ir.Seq((body, *_)):
            return _first_non_declaration(body)
        case _:
            return stmt


def wrap_comment(text: str, line_width: int) -> list[str]:
    """Return a C comment with ``text``, wrapped into lines.

    A blank is inserted into ``/*`` and ``*/`` in the text, and ``//`` becomes ``/``, the operator of division in C."""
    text_in_comment = text.replace("//", "/").replace("*/", "* /").replace("/*", "/ *")
    return textwrap.wrap(f"/* {text_in_comment} */", line_width, subsequent_indent=" *     ", break_on_hyphens=False)


# ---- Parallel loops for threads or cores. The body of a loop becomes a function for one iteration; the parameters and variables
# of the kernel that it uses become the members of a structure, as in a closure.

RUN_LOOP = "microc_run_turns"
"""Name of the C function that distributes the iterations of a parallel loop over a thread pool, or over two cores; it is defined
in ``templates/project/threads.c.j2`` and ``cores.c.j2``."""


def thread_count_of(module: Module) -> int:
    """Return the number of threads that run a network's parallel loops. It is 1 if the network has no parallel loops."""
    return _worker_count(module, "threads")


def core_count_of(module: Module) -> int:
    """Return the number of cores that run a network's parallel loops. It is 1 if the network has no parallel loops."""
    return _worker_count(module, "cores")


def _worker_count(module: Module, option: str) -> int:
    """Return the number that an option of a module names, or 1 if the network has no parallel loops."""
    count = int(module.options.get(option, 1))
    return count if count > 1 and any(map(has_parallel_loop, module.kernels)) else 1


def has_parallel_loop(kernel: Kernel) -> bool:
    """Test whether threads or cores share a loop of a kernel."""
    return any(isinstance(s, ir.For) and s.kind == "parallel" for s in walk_stmt(kernel.func.body))


@frozen
class ParallelLoop:
    """Printed C of a parallel loop.

    ``function``: lines that are printed before the kernel: a structure, and a function that runs one iteration. ``call``:
    lines that are printed in the kernel in place of the loop."""

    function: tuple[str, ...]
    call: tuple[str, ...]


def find_captured_parameters_and_variables(
    loop: ir.For, params: Sequence[ir.Buffer]
) -> tuple[list[ir.Buffer], list[ir.Var]]:
    """Return the parameters of its kernel that the body of a parallel loop uses, and the variables from outside of the loop.

    Parameters are in the order of the kernel, variables are sorted by name. ``params``: all parameters of the kernel."""
    used, bound = buffers_read(loop.body) | buffers_written(loop.body), {loop.var}
    allocated = set()
    for stmt in walk_stmt(loop.body):
        match stmt:
            case ir.For(var) | ir.Let(var):
                bound.add(var)
            case ir.Alloc(buffer):
                allocated.add(buffer)
            case _:
                pass
    shared = sorted(b.name for b in used - allocated - set(params))
    if shared:
        raise InternalError(
            f"parallel loop {loop.var.name}: its iterations share buffer {shared[0]}; expected a parameter of the kernel"
        )
    values = {x for x in walk_all_exprs(loop.body) if isinstance(x, ir.Var)} - bound
    return [b for b in params if b in used], sorted(values, key=lambda v: v.name)


def print_parallel_loop(
    function_name: str,
    loop: ir.For,
    printed_extent: str,
    captured: Sequence[tuple[str, str]],
    body_lines: Sequence[str],
    workspace_sizes: Mapping[str, int],
) -> ParallelLoop:
    """Print a parallel loop as a function that runs one iteration, and a statement that calls the thread pool or forks.

    ``function_name``: name of the function that runs one iteration. ``printed_extent``: C expression of the number of
    iterations. ``captured``: declared type and name of each parameter and variable of the kernel that the loop uses.
    ``body_lines``: the printed lines of the loop's body. ``workspace_sizes``: elements of the workspace of one iteration, by
    the name of each captured parameter that has a workspace for every iteration."""
    members = [f"    {kind.replace('restrict ', '')}{member};" for kind, member in captured]
    captures = f"((const struct {function_name} *)microc_seen)"
    return ParallelLoop(
        (
            f"struct {function_name} {{",
            *members,
            "};",
            "",
            f"static void {function_name}(const void *microc_seen, {dtypes.c_name(loop.var.dtype)} {loop.var.name})",
            "{",
            *(
                f"    {kind}const {member} = {captures}->{member}"
                + (f" + {loop.var.name} * {workspace_sizes[member]};" if member in workspace_sizes else ";")
                for kind, member in captured
            ),
            *body_lines,
            "}",
            "",
        ),
        (
            "{",
            f"    const struct {function_name} microc_seen = {{{', '.join(member for _, member in captured)}}};",
            f"    {RUN_LOOP}({function_name}, &microc_seen, {printed_extent});",
            "}",
        ),
    )


def _separate_workspaces(loop: ir.For) -> tuple[ir.Stmt, dict[str, int]]:
    """Return the body of a parallel loop in which the workspaces of an iteration begin at element 0, and the number of elements
    from one iteration's workspace to the next, by name of the workspace.

    The function of an iteration adds the distance to the pointer once, instead of in every index."""
    own = {
        a.buffer
        for a in accesses(loop.body)
        if a.buffer.scope == "workspace" and a.indices[0] == loop.var and a.buffer.shape[0] == ir.int_value(loop.extent)
    }
    own -= {a.buffer for a in accesses(loop.body) if a.indices[0] != loop.var}
    parts = {buffer: replace(buffer, shape=buffer.shape[1:]) for buffer in own}
    body = replace_buffers(loop.body, parts, lambda indices: indices[1:])
    return body, {b.name: b.size for b in parts.values()}


# ---- Statements and functions.

INDENT = "    "
WORD = "microc_word"
"""Beginning of the names of the variables for loaded words in the assembly statement of a run of products."""


class StmtPrinter:
    """Printer of statements and functions as lines of C.

    One instance prints all functions of a C file, so that ``expr`` records the helpers that any of them calls.
    ``address_space`` is the qualifier of the address space of constant parameters and a blank; it is empty if the core has a
    single address space. ``size_bounds`` are the smallest and the largest value of scalar parameters. ``runs_loops_by_function``
    is True if a thread pool or several cores run parallel loops. ``cpu`` is the core whose pipeline orders runs of products."""

    def __init__(
        self,
        expr: ExprPrinter | None = None,
        address_space: str = "",
        size_bounds: Bounds | None = None,
        *,
        runs_loops_by_function: bool = False,
        cpu: str = "host",
    ) -> None:
        self.expr = expr or ExprPrinter()
        self.runs_loops_by_function = runs_loops_by_function
        self.cpu = cpu
        self.loop: ir.Var | None = None
        self.func: ir.PrimFunc | None = None
        self.parallel_loops: list[ParallelLoop] = []
        self.address_space = address_space
        self.size_bounds: Bounds = size_bounds or {}
        self.blocks: BlockComments | None = None

    def print_statement(self, stmt: ir.Stmt) -> list[str]:
        """Print a statement as lines of C, after the comment of its block. The outermost lines are not indented."""
        lines: list[str] = []
        for part in split_at_runs(stmt, self.cpu, self.loop):
            lines += self._print_run(part) if isinstance(part, Run) else self._print_without_runs(part)
        return lines

    def _print_without_runs(self, stmt: ir.Stmt) -> list[str]:
        """Print a statement that is no run of products and contains none, except in its loops and branches."""
        comment = self.blocks.comment_before(stmt) if self.blocks else []
        return [*comment, *self._print_without_comment(stmt)]

    def _print_without_comment(self, stmt: ir.Stmt) -> list[str]:
        """Print a statement as :meth:`_print_without_runs` does, without the comment of its block."""
        match stmt:
            case ir.Seq(body):
                return [line for child in body for line in self._print_without_runs(child)]
            case ir.Store(buffer, indices, value):
                return self._print_store(buffer, indices, value)
            case ir.For():
                products = find_product_loop(stmt, self.cpu)
                lines = self._print_loop(stmt)
                return self._print_product_loop(products, lines) if products else lines
            case ir.If(condition, then, otherwise):
                text = [f"if ({self.expr(condition)}) {{", *_indent_lines(self.print_statement(then))]
                if otherwise is not None:
                    text += ["} else {", *_indent_lines(self.print_statement(otherwise))]
                return [*text, "}"]
            case ir.Let(var, value, body):
                return [
                    f"const {dtypes.c_name(var.dtype)} {var.name} = {self.expr(value)};",
                    *self._print_without_runs(body),
                ]
            case ir.Alloc(buffer, body):
                return [*self._print_declaration(buffer, body), *self.print_statement(body)]
            case ir.Evaluate(value):
                return [f"{self.expr(value)};"]
            case _:
                raise InternalError(f"statement {type(stmt).__name__}: the printer of C has no case for this type")

    def _print_run(self, run: Run) -> list[str]:
        """Print a run of products as an assembly statement, and beside it the statements that it replaces."""
        pipeline = CORES[self.cpu].pipeline
        assert pipeline is not None
        first_sum = next(s for s in run.statements if isinstance(s, ir.Store))
        comment = self.blocks.comment_before(first_sum) if self.blocks else []
        helpers = dict(self.expr.helpers)
        portable = [line for s in run.statements for line in self._print_without_comment(s)]
        self.expr.keep_helpers_of_portable_code(helpers)
        words = [f"{WORD}_{n}" for n in range(run.words)]
        outputs = [
            f'[s{n}] "{"=&r" if total in run.started else "+r"}"({self.expr(total)})'
            for n, total in enumerate(run.sums)
        ]
        outputs += [f'[w{n}] "=&r"({word})' for n, word in enumerate(words)]
        inputs = [f'[p{n}] "r"({self.expr(address)})' for n, address in enumerate(run.pointers)]
        inputs += [f'[i{n}] "r"({self.expr(var)})' for n, var in enumerate(run.inputs)]
        return [
            *comment,
            f"#if {pipeline.guard}",
            "__extension__({",  # C99 allows literals of 4095 characters, compilers any length; with this they do not warn
            f"    int32_t {', '.join(words)};",
            "    __asm__ volatile(",
            *(f'        "{line}\\n"' for line in run.order.lines),
            f"        : {', '.join(outputs)}",
            f"        : {', '.join(inputs)}",
            '        : "memory");',
            "});",
            "#else",
            *portable,
            "#endif",
        ]

    def _print_product_loop(self, loop: ProductLoop, portable: list[str]) -> list[str]:
        """Print a loop of sums of products as an assembly statement, and beside it the lines that it replaces."""
        pointers = [
            (name, register, f"const {dtypes.c_name(address.buffer.dtype)} *", self.expr(address))
            for name, register, address in (("words", WORDS, loop.words), ("bytes", BYTES, loop.bytes))
        ]
        totals = [
            (f"microc_total_{n}", register, self.expr(total))
            for n, (register, total) in enumerate(zip(HIGH, loop.totals, strict=False))
        ]
        outputs = [f'[s{n}] "+r"({name})' for n, (name, _, _) in enumerate(totals)]
        outputs += [f'"+r"(microc_{name})' for name, _, _, _ in pointers]
        clobbers = ", ".join(f'"{name}"' for name in (*SCRATCH, "cc", "memory"))
        # All operands are in registers that the declarations name, so that the compiler has none to choose at the statement.
        # Addresses are computed before, because a division in them may call a function, which changes r12 and lr.
        return [
            f"#if {loop.guard}",
            "{",
            *(f"    {c_type}microc_first_{name} = {address};" for name, _, c_type, address in pointers),
            *(f'    register uint32_t {name} __asm__("{register}") = {value};' for name, register, value in totals),
            f'    register const uint32_t *microc_end __asm__("{END}") = microc_first_words + {loop.word_count};',
            *(
                f'    register {c_type}microc_{name} __asm__("{register}") = microc_first_{name};'
                for name, register, c_type, _ in pointers
            ),
            "    __asm__ volatile(",
            '        ".syntax unified\\n1:\\n"',
            *(f'        "{line}\\n"' for line in loop.lines),
            f"        : {', '.join(outputs)}",
            '        : [end] "r"(microc_end)',
            f"        : {clobbers});",
            *(f"    {value} = {name};" for name, _, value in totals),
            "}",
            "#else",
            *portable,
            "#endif",
        ]

    def _print_store(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...], value: ir.Expr) -> list[str]:
        """Print a store as an assignment, or as a compound assignment (``+=``) if its value updates the stored element."""
        target = self.expr.print_element(buffer, indices)
        if isinstance(value, ir.Bin) and value.op in ("add", "sub", "mul") and value.a == ir.Load(buffer, indices):
            sign = {"add": "+", "sub": "-", "mul": "*"}[value.op]
            return [f"{target} {sign}= {self.expr(value.b)};"]
        return [f"{target} = {self.expr(value)};"]

    def _print_loop(self, loop: ir.For) -> list[str]:
        """Print a loop as a ``for`` statement, or as ``while`` if a condition alone ends it.

        A parallel loop is printed for the thread pool or for cores if there are such, else with an OpenMP pragma.
        InternalError for a loop that is not serial, parallel or scalable, and if iterations of a parallel loop share a
        workspace buffer."""
        if loop.kind not in ("serial", "parallel", "scalable"):
            raise InternalError(
                f"loop {loop.var.name}: got kind {loop.kind}, expected serial, parallel or scalable after lowering"
            )
        reach = bounds_of(loop.extent, self.expr.bounds)
        if reach is not None and (self.size_bounds or reach[0] == reach[1]):
            self.expr.bounds[loop.var] = (0, max(0, reach[1] - 1))
        kind, name = dtypes.c_name(loop.var.dtype), loop.var.name
        end, inside = f"{name} < {self.expr(loop.extent)}", loop.body
        ends = early_exit_branch(loop)
        if ends is not None:
            end, inside = f"{end} && {self.expr(ends.condition)}", ends.then
        workspace_sizes: dict[str, int] = {}
        if is_distributed(loop) and self.runs_loops_by_function:
            inside, workspace_sizes = _separate_workspaces(loop)
        head = f"for ({kind} {name} = 0; {end}; ++{name}) {{"
        if ends is not None and while_branch(loop) is not None:
            head = f"while ({self.expr(ends.condition)}) {{"
        around, self.loop = self.loop, loop.var
        body = _indent_lines(self.print_statement(inside))
        self.loop = around
        strip = find_active_lanes_let(loop) if loop.kind == "scalable" else None
        if strip is not None:
            return [f"for ({kind} {name} = 0; {end};) {{", *body, f"{INDENT}{name} += {strip.var.name};", "}"]
        lines = [head, *body, "}"]
        if loop.kind == "parallel":
            written = (b for b in buffers_written(loop.body) if b.scope == "workspace")
            # Proved before: iterations that were divided among cores, and those of symbolic sizes, at numbers for the sizes.
            if not is_distributed(loop) and not self.size_bounds:
                shared_workspaces = sorted(b.name for b in written if not has_disjoint_iterations(loop, b))
                if shared_workspaces:
                    raise InternalError(
                        f"iterations of parallel loop {name} share the workspace {shared_workspaces[0]}"
                    )
            if self.runs_loops_by_function:
                return self._print_shared_loop(loop, body, workspace_sizes)
            lines = ["#if defined(_OPENMP)", "#pragma omp parallel for", "#endif", *lines]
        return lines

    def _print_shared_loop(self, loop: ir.For, body: list[str], workspace_sizes: Mapping[str, int]) -> list[str]:
        """Print a parallel loop for the thread pool or for cores. Return the statement that replaces the loop in the kernel.

        ``body``: the printed lines of the loop's body. ``workspace_sizes``: as in :func:`print_parallel_loop`."""
        assert self.func is not None
        buffers, values = find_captured_parameters_and_variables(loop, self.func.params)
        written = buffers_written(self.func.body)
        captured = [(_pointer_type(b, self.address_space, written=b in written), b.name) for b in buffers]
        captured += [(f"{dtypes.c_name(v.dtype)} ", v.name) for v in values]
        name = f"{self.func.name}__{len(self.parallel_loops)}"
        self.parallel_loops.append(
            print_parallel_loop(name, loop, self.expr(loop.extent), captured, body, workspace_sizes)
        )
        return list(self.parallel_loops[-1].call)

    def _print_declaration(self, buffer: ir.Buffer, body: ir.Stmt) -> list[str]:
        """Print the declaration of a buffer: an array, or one scalar for each element of a register tile that ``body`` writes."""
        if buffer.scope in ir.UNIT_SCOPES:
            return []
        if buffer.scope == "local":
            return [f"{dtypes.c_name(buffer.dtype)} {buffer.name}[{buffer.size}];"]
        if buffer.scope != "register":
            raise InternalError(
                f"buffer {buffer.name}: got scope {buffer.scope}, expected register or local after lowering"
            )
        names = list_tile_scalar_names(buffer, body)
        return [f"{dtypes.c_name(buffer.dtype)} {', '.join(names)};"] if names else []

    def print_function(
        self, func: ir.PrimFunc, specifiers: str = "static void", blocks: Iterable[tuple[str, str]] = ()
    ) -> list[str]:
        """Print a function as lines of C. Parameters that the function only reads are pointers to const.

        ``specifiers``: storage class and result type. ``blocks``: for each block of the body the name of the buffer that it
        writes, and the comment that describes it."""
        func = make_names_distinct(func)
        self.func, self.parallel_loops = func, []
        self.blocks = BlockComments(dict(blocks))
        written = {b.name for b in buffers_written(func.body)}
        self.expr.bounds = dict(self.size_bounds)
        used = written | {b.name for b in buffers_read(func.body)}
        unused = [
            f"(void){p.name};" for p in func.params if p.name not in used
        ]  # a kernel whose result is constant does not read its inputs
        body = _indent_lines([*unused, *self.print_statement(func.body)])
        before = [line for parallel in self.parallel_loops for line in parallel.function]
        return [*before, self._function_signature(func, specifiers, written), "{", *body, "}"]

    def print_external_function(self, func: ir.PrimFunc, lines: Sequence[str], specifiers: str) -> list[str]:
        """Print a function whose body is external C code, as lines of C.

        ``func`` has the function's name and parameters, and ``lines`` is its body. ``specifiers``: storage class and result
        type."""
        used = {word for line in lines for word in re.findall(r"\w+", line)}
        unused = [f"(void){p.name};" for p in func.params if p.name not in used]
        signature = self._function_signature(func, specifiers, {b.name for b in buffers_written(func.body)})
        return [signature, "{", *_indent_lines([*unused, *lines]), "}"]

    def _function_signature(self, func: ir.PrimFunc, specifiers: str, written: set[str]) -> str:
        """Print the signature of a function.

        ``specifiers``: storage class and result type. ``written``: names of the parameters that the function writes."""
        scalars = (f"{dtypes.c_name(scalar.dtype)} {scalar.name}" for scalar in func.scalars)
        params = ", ".join(
            [*(_pointer_type(p, self.address_space, written=p.name in written) + p.name for p in func.params), *scalars]
        )
        return f"{specifiers} {func.name}({params or 'void'})"


C_STMT_WIDTH = 118
"""Maximum number of columns of a printed line of C."""
_SEPARATORS = (", ", " ? ", " : ", " && ", " || ", " + ", " = ")
_DEPTH_CHANGES = {"(": 1, "[": 1, ")": -1, "]": -1}
_BRACKET_OR_SEPARATOR = re.compile(rf"[(\[)\]]|{'|'.join(map(re.escape, _SEPARATORS))}")


def wrap_line(line: str) -> list[str]:
    """Break a line of C into lines of at most :data:`C_STMT_WIDTH` columns, and indent the continuation lines.

    A line is broken after a separator (a comma or an operator) that the fewest brackets enclose; of several such separators,
    after the last one that fits."""
    indent = line[: len(line) - len(line.lstrip())]
    lines = []
    while len(line) > C_STMT_WIDTH and (cut := _find_break_column(line, len(indent) + 24)):
        lines.append(line[:cut])
        line = f"{indent}{INDENT}{line[cut:].lstrip()}"
    return [*lines, line]


def _find_break_column(line: str, min_position: int) -> int:
    """Return the column at which a line of C that is too long is broken; 0 if it cannot be broken.

    It is the end of the last separator that the fewest brackets enclose, among those that end after ``min_position`` and before
    the maximum width."""
    depth, fewest, position = 0, len(line), 0
    for match in _BRACKET_OR_SEPARATOR.finditer(line):
        mark, end = match[0], match.start() + len(match[0].rstrip())
        if end >= C_STMT_WIDTH:
            break
        if mark in _DEPTH_CHANGES:
            depth += _DEPTH_CHANGES[mark]
        elif depth <= fewest and min_position < end:
            fewest, position = depth, end
    return position


def _pointer_type(buffer: ir.Buffer, address_space: str, *, written: bool) -> str:
    """Print the C type of a parameter that points to a buffer. The parameter's name can be appended directly.

    ``written``: True if the function writes the buffer."""
    kind = dtypes.c_name(buffer.dtype)
    if buffer.scope == "const":  # flash never changes, so the compiler may keep its values
        return f"const {address_space}{kind} *restrict "
    return f"{'' if written else 'const '}{kind} *"


def _indent_lines(lines: list[str]) -> list[str]:
    return [INDENT + line if line else line for line in lines]


# ---- Helper functions that printed expressions call, usually inline: minimum and maximum, floor division, intrinsics.

_DTYPE_OF_LETTER = {"i": "int", "u": "uint", "f": "float"}
"""Beginning of a dtype by the first letter of its abbreviation in a helper's name: ``int`` for the ``i`` of ``i32``."""


def print_helper_functions(
    helper_names: Iterable[str],
    cpu: str = "host",
    file_printer: ExprPrinter | None = None,
    portable_names: Iterable[str] = (),
) -> dict[str, list[str]]:
    """Return the C of the helper functions ``helper_names`` and of all helpers that they call: lines by helper name.

    Each helper follows the helpers that it calls. An intrinsic may have an implementation for the core and a portable one, of
    which the preprocessor selects one. Helpers that only the portable one calls may be unused, and get the attribute ``unused``.
    ``file_printer``: the printer of the C file, which records whether helpers need ``<math.h>``. ``portable_names``: further
    helpers, which only code beside assembly statements calls.
    """
    sources: dict[str, list[str]] = {}
    always_used = set(helper_names)
    own_math = FAMILIES[CORES[cpu].family].own_math

    def add_with_dependencies(name: str) -> None:
        if name not in sources:
            printer = ExprPrinter(own_math=own_math)
            lines = print_helper_definition(name, printer, cpu)
            if file_printer is not None and printer.needs_math:
                file_printer.needs_math = True
            for dependency in sorted(printer.helpers):
                add_with_dependencies(dependency)
            if not any(line.startswith("#") for line in lines):
                always_used.update(printer.helpers)
            sources[name] = lines

    for name in sorted(always_used.union(portable_names)):
        add_with_dependencies(name)
    return {
        name: lines if name in always_used or dtypes.is_vector(name) else [*_print_attribute("unused"), *lines]
        for name, lines in sources.items()
    }


def _print_attribute(name: str) -> list[str]:
    """Print the attribute ``name`` for the function that follows, for compilers that know gcc's attributes."""
    return ["#if defined(__GNUC__)", f"__attribute__(({name}))", "#endif"]


def print_helper_definition(name: str, printer: ExprPrinter, cpu: str) -> list[str]:
    """Return the lines of the C definition of the helper ``name`` for the core ``cpu``.

    The helpers that it calls are added to ``printer.helpers``."""
    if dtypes.is_vector(name):
        return _print_vector_typedef(name, cpu)
    if name in HALF_FLOAT_HELPERS:
        head, brace, *portable, end = HALF_FLOAT_HELPERS[name]
        printer.helpers.update(
            dict.fromkeys(each for each in HALF_FLOAT_HELPERS for line in portable if f"{each}(" in line)
        )
        return [head, brace, *_print_bodies_by_guard(name, [line.removeprefix("    ") for line in portable], cpu), end]
    if name in MATH_HELPERS:
        printer.needs_math = True
        called = set(re.findall(r"\w+", "\n".join(MATH_HELPERS[name])))  # whole words: acosh_f32 does not call cosh_f32
        printer.helpers.update(dict.fromkeys(each for each in MATH_HELPERS if each != name and each in called))
        return list(MATH_HELPERS[name])
    if name in SCALAR:
        return _print_intrinsic_function(SCALAR[name], printer, cpu)
    match = re.fullmatch(r"([iuf]\d+)_of_([iuf]\d+)", name)
    if match is not None:
        return _print_reinterpret_helper(name, _c_type_of_abbreviation(match[1]), _c_type_of_abbreviation(match[2]))
    op, _, short = name.rpartition("_")
    if op not in BINARY or not BINARY[op].c_helper_body:
        raise InternalError(f"helper function {name!r}: it has no definition in C")
    kind = _c_type_of_abbreviation(short)
    head = f"static inline {kind} {name}({kind} a, {kind} b)"
    body = BINARY[op].c_helper_body.replace("{type}", kind).splitlines()
    return [head, "{", *(f"    {line}" for line in body), "}"]


def _c_type_of_abbreviation(abbreviation: str) -> str:
    """Return the C type for the abbreviation of a dtype in a helper's name: ``int32_t`` for ``i32``."""
    return dtypes.c_name(f"{_DTYPE_OF_LETTER[abbreviation[0]]}{abbreviation[1:]}")


def _print_reinterpret_helper(name: str, result_type: str, source_type: str) -> list[str]:
    """Print a helper function that returns the bits of a float as an integer, or the bits of an integer as a float."""
    return [
        f"static inline {result_type} {name}({source_type} x)",
        "{",
        f"    {result_type} bits;",
        "    (void)memcpy(&bits, &x, sizeof bits);",
        "    return bits;",
        "}",
    ]


def _print_vector_typedef(name: str, cpu: str) -> list[str]:
    """Print the definition of a vector type.

    It is the core's register type if the compiler supports the core's instructions, else a structure with an array of lanes."""
    kind, bits, lanes = dtypes.dtype_parts(name)
    lines = ["typedef struct {", f"    {dtypes.c_name(f'{kind}{bits}')} lane[{lanes}];", f"}} {name};"]
    for instructions in CORES[cpu].sets:
        if instructions.unit is not None and name in instructions.unit.c_types:
            unit = instructions.unit
            types = [f"#include <{unit.header}>"] if unit.header else []
            types.append(f"typedef {unit.c_types[name]} {name};")
            lines = [f"#if {instructions.guard}", *types, "#else", *lines, "#endif"]
    return lines


def _print_intrinsic_function(intrin: Intrin, printer: ExprPrinter, cpu: str) -> list[str]:
    """Print an intrinsic as a C function.

    The preprocessor selects an implementation for the core by its guard (an ``#if`` condition), else the portable meaning of
    the intrinsic."""
    written = buffers_written(intrin.meaning) if isinstance(intrin.meaning, ir.Stmt) else set()
    params = ", ".join(
        f"{'' if p in written else 'const '}{dtypes.c_name(p.dtype)} *{p.name}"
        if isinstance(p, ir.Buffer)
        else f"{dtypes.c_name(p.dtype)} {p.name}"
        for p in intrin.params
    )
    vector_dtypes = (dtype for _, body in c_bodies_of_intrinsic(intrin.name, cpu) for dtype in body.types)
    for dtype in (intrin.result, *(p.dtype for p in intrin.params), *vector_dtypes):
        if dtype and dtypes.is_vector(dtype):
            printer.helpers[dtype] = None
    is_out_of_line = any(body.apart for _, body in c_bodies_of_intrinsic(intrin.name, cpu))
    attribute = _print_attribute("noinline") if is_out_of_line else []
    storage_class = "static" if is_out_of_line else "static inline"
    head = f"{storage_class} {dtypes.c_name(intrin.result) if intrin.result else 'void'} {intrin.name}({params})"
    units = [(each.guard, each.unit) for each in CORES[cpu].sets if intrin.lanes]
    own = [
        (guard, _print_portable_body(intrin, printer, "")) for guard, unit in units if unit and unit.has_lane_subscripts
    ]
    return [
        *attribute,
        head,
        "{",
        *_print_bodies_by_guard(intrin.name, _print_portable_body(intrin, printer), cpu, own),
        "}",
    ]


def _print_bodies_by_guard(
    name: str, portable_lines: list[str], cpu: str, own_bodies: Sequence[tuple[str, list[str]]] = ()
) -> list[str]:
    """Print the alternative bodies of an intrinsic as branches of an ``#if``, with the portable body in ``#else``.

    A body's guard is the condition of its branch. Of several bodies with the same guard only the first is printed.
    ``own_bodies``: guards and lines of further bodies, which are variants of the portable body."""
    lines: list[str] = []
    bodies: dict[str, list[str]] = {}
    for guard, text in (
        *((g, body.text.splitlines()) for g, body in c_bodies_of_intrinsic(name, cpu) if body.text),
        *own_bodies,
    ):
        bodies.setdefault(guard, text)
    for guard, text in bodies.items():
        lines += [f"#{'elif' if lines else 'if'} {guard}", *(f"    {line}" for line in text)]
    portable_lines = [f"    {line}" for line in portable_lines]
    return [*lines, "#else", *portable_lines, "#endif"] if lines else portable_lines


def _print_portable_body(intrin: Intrin, printer: ExprPrinter, lane_suffix: str = ".lane") -> list[str]:
    """Print the portable meaning of an intrinsic (its TIR definition) as the lines of a C function's body.

    For vectors it is a loop over lanes. ``lane_suffix``: text between a vector's name and the index of a lane."""
    statements = StmtPrinter(printer)
    if not intrin.lanes:
        meaning = intrin.meaning
        return statements.print_statement(meaning) if isinstance(meaning, ir.Stmt) else [f"return {printer(meaning)};"]
    vectors: dict[ir.Expr, ir.Expr] = {}
    for p in intrin.params:
        if isinstance(p, ir.Var) and dtypes.is_vector(p.dtype):
            element = ir.Buffer(f"{p.name}{lane_suffix}", (intrin.lanes,), p.dtype.partition("x")[0])
            vectors[ir.Var(p.name, element.dtype)] = element[LANE]
    body = intrin.meaning
    if isinstance(body, ir.Expr):
        body = ir.Store(ir.Buffer(f"r{lane_suffix}", (intrin.lanes,), body.dtype), (LANE,), body)
    body = map_stmt(body, lambda s: s, lambda e: map_expr(e, lambda x: vectors.get(x, x)))
    lines = statements.print_statement(ir.For(LANE, intrin.active_lane_count, body))
    initializer = "" if lane_suffix else " = {0}"  # compilers do not see that subscripts set all of a vector
    return [f"{intrin.result} r{initializer};", *lines, "return r;"] if intrin.result else lines
