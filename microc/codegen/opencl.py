# SPDX-License-Identifier: Apache-2.0
"""Print TIR functions as OpenCL C 1.2 kernels. Their loops must be bound to work-groups and work-items."""

from __future__ import annotations

import re
from dataclasses import replace

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.codegen.c.c_expressions import MATH_FUNCTIONS, ExprPrinter, dtype_abbreviation
from microc.codegen.c.c_statements import INDENT, StmtPrinter, wrap_line
from microc.codegen.c.identifiers import list_tile_scalar_names, make_names_distinct
from microc.codegen.render import Name
from microc.errors import ScheduleError, UnsupportedError
from microc.tir import ir
from microc.tir.analysis.context import buffers_written
from microc.tir.analysis.simplification import linear, simplify
from microc.tir.lower.work_groups import BARRIER, GLOBAL, LOCAL, Grid, lower_grid
from microc.tir.operators import BINARY
from microc.tir.rewrite import free_vars, map_stmt, replace_buffers, substitute_stmt, walk_stmt

_FENCES = {
    f"{BARRIER}_{LOCAL}": "CLK_LOCAL_MEM_FENCE",
    f"{BARRIER}_{GLOBAL}": "CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE",
}
_OPENCL_KEYWORDS = frozenset(
    {"kernel", "global", "local", "constant", "private", "half", "uchar", "ushort", "uint", "ulong", "pipe"}
    | {"read_only", "write_only", "read_write", "image1d_t", "image2d_t", "image3d_t", "sampler_t", "event_t"}
)
"""Keywords of OpenCL C that are not keywords of C."""
_VECTOR_LANES = (2, 3, 4, 8, 16)
"""Numbers of elements that OpenCL C's vector types can have."""
_OPENCL_SCALAR_TYPES = {
    "int8": "char", "int16": "short", "int32": "int", "int64": "long", "uint8": "uchar", "uint16": "ushort", "uint32": "uint",
    "uint64": "ulong", "float32": "float", "float64": "double",
}  # fmt: skip
"""OpenCL C's scalar type for each dtype. The name of a vector type is a scalar type and a number of lanes: ``char4``."""


@frozen
class DeviceKernel:
    """An OpenCL kernel: its name, its source and the grid that it is launched with.

    ``groups`` is the number of work-groups along x, y and z. ``items`` is the number of work-items in each work-group along
    x, y and z."""

    name: str
    source: str
    groups: tuple[int, int, int]
    items: tuple[int, int, int]


def print_opencl_kernel(func: ir.PrimFunc) -> DeviceKernel:
    """Print a TIR function as an OpenCL kernel.

    The kernel switches FP_CONTRACT off. Its results therefore equal those of C printed from the same schedule if both
    compute in the same order. ScheduleError if the function's loops are not bound to work-groups and work-items in a way
    that OpenCL can run."""
    grid = lower_grid(func)
    func = _rename_opencl_keywords(make_names_distinct(grid.func))
    name = Name(f"{func.name}_kernel")  # the suffix avoids the names of OpenCL's built-in functions
    expr = _OpenClExprPrinter()
    body = _OpenClStmtPrinter(expr, grid).print_statement(func.body)
    written = {b.name for b in buffers_written(func.body)}
    params = ", ".join(
        f"__global {'' if p.name in written else 'const '}{dtypes.c_name(p.dtype)} *restrict {p.name}"
        for p in func.params
    )
    shape = ", ".join(map(str, grid.items))
    kernel = [
        f"__kernel __attribute__((reqd_work_group_size({shape})))",
        f"void {name}({params})",
        "{",
        *(INDENT + line for line in body),
        "}",
    ]
    text = [*expr.helper_definitions(), "", *kernel]
    used = set(re.findall(r"\w+", "\n".join(text)))
    types = [
        f"typedef {own} {dtypes.c_name(dtype)};" for dtype, own in _OPENCL_SCALAR_TYPES.items() if f"{dtype}_t" in used
    ]
    doubles = ["#pragma OPENCL EXTENSION cl_khr_fp64 : enable"] if "double" in used else []
    lines = [*doubles, "#pragma OPENCL FP_CONTRACT OFF", *types, *text]
    return DeviceKernel(
        name, "\n".join(line for whole in lines for line in wrap_line(whole)) + "\n", grid.groups, grid.items
    )


class _OpenClExprPrinter(ExprPrinter):
    """Printer of expressions with OpenCL's function names: ``exp`` accepts floats as well as vectors, where C has ``expf``."""

    def helper_definitions(self) -> list[str]:
        """Print the definitions of the helper functions that are called by the expressions printed so far.

        UnsupportedError for a helper that has no definition in OpenCL C."""
        lines = []
        kinds = {dtype_abbreviation(dtype): dtypes.c_name(dtype) for dtype in _OPENCL_SCALAR_TYPES}
        for name in self.helpers:
            op, _, short = name.rpartition("_")
            if op not in BINARY or not BINARY[op].c_helper_body:
                raise UnsupportedError(
                    f"intrinsic {name}: it has no definition in OpenCL C",
                    hint="replace the intrinsic by arithmetic operators",
                )
            body = BINARY[op].c_helper_body.replace("{type}", kinds[short]).splitlines()
            head = f"static inline {kinds[short]} {name}({kinds[short]} a, {kinds[short]} b)"
            lines += [head, "{", *(INDENT + line for line in body), "}"]
        return lines

    def print_literal(self, value: int | float, dtype: str) -> str:
        text = super().print_literal(value, dtype)
        for macro, suffix in (("INT64_C(", "L"), ("UINT64_C(", "UL")):
            if text.startswith(macro):
                return text.removeprefix(macro).removesuffix(")") + suffix
        return {"INT32_MIN": "INT_MIN", "INT64_MIN": "LONG_MIN"}.get(text, text)

    def _print_call(self, name: str, args: tuple[ir.Expr, ...]) -> str:
        if name in MATH_FUNCTIONS:
            return f"{name}({', '.join(self(a) for a in args)})"
        return super()._print_call(name, args)


class _OpenClStmtPrinter(StmtPrinter):
    """Printer of the statements of an OpenCL kernel.

    A loop that is bound to work-items is printed as a block that a single work-item runs. Shared buffers are declared at the
    beginning of the kernel, as OpenCL requires. ``idle_axes`` are the axes of the work-group that no loop around the current
    statement is bound to: along these axes all work-items would run the same statement."""

    def __init__(self, expr: _OpenClExprPrinter, grid: Grid) -> None:
        super().__init__(expr)
        self.grid = grid
        self.idle_axes: frozenset[str] = frozenset(kind for kind, n in zip(ir.ITEMS, grid.items, strict=True) if n > 1)

    def _print_without_comment(self, stmt: ir.Stmt) -> list[str]:
        match stmt:
            case ir.For(kind=kind) if kind in ir.GROUPS:
                self.expr.bounds[stmt.var] = (0, self.grid.groups[ir.GROUPS.index(kind)] - 1)
                own = f"const int {stmt.var.name} = get_group_id({ir.GROUPS.index(kind)});"
                return [own, *self.print_statement(stmt.body)]
            case ir.For(kind=kind) if kind in ir.ITEMS:
                return self._print_item_loop(stmt)
            case ir.For(kind="vectorized"):
                return self._print_vector_loop(stmt)
            case ir.Evaluate(ir.Call(name)) if name in _FENCES:
                return [f"barrier({_FENCES[name]});"]
            case ir.Store() if self.idle_axes and stmt.buffer.scope not in ("register", "local"):
                return self._guard_by_first_item(super()._print_without_comment(stmt))
            case _:
                return super()._print_without_comment(stmt)

    def _print_item_loop(self, loop: ir.For) -> list[str]:
        """Print a loop that is bound to work-items as a block that one work-item runs.

        If the loop has fewer iterations than the work-group has work-items, an ``if`` excludes the other work-items."""
        axis, count = ir.ITEMS.index(loop.kind), ir.int_value(loop.extent)
        assert count is not None
        idle_outside, self.idle_axes = self.idle_axes, self.idle_axes - {loop.kind}
        self.expr.bounds[loop.var] = (0, count - 1)
        inside = self.print_statement(loop.body)
        self.idle_axes = idle_outside
        name = loop.var.name
        if count < self.grid.items[axis]:
            inside = [f"if ({name} < {count}) {{", *(INDENT + line for line in inside), "}"]
        return ["{", f"{INDENT}const int {name} = get_local_id({axis});", *(INDENT + line for line in inside), "}"]

    def _print_declaration(self, buffer: ir.Buffer, body: ir.Stmt) -> list[str]:
        kind = dtypes.c_name(buffer.dtype)
        if buffer.scope == "shared":
            return [f"__local {kind} {buffer.name}[{buffer.size}];"]
        if buffer.scope == "local":
            return [f"{kind} {buffer.name}[{buffer.size}];"]
        names = list_tile_scalar_names(buffer, body)
        return [f"{kind} {', '.join(names)};"] if names else []

    def _print_vector_loop(self, loop: ir.For) -> list[str]:
        """Print a vectorised loop as one store of an OpenCL vector.

        The loop's body must be one store to adjacent elements. ScheduleError for other loops."""
        lanes, store = ir.int_value(loop.extent), loop.body
        if isinstance(store, ir.If):  # guarded at the edge of a tensor: store the elements one by one
            return self._print_without_comment(replace(loop, kind="serial"))
        if lanes not in _VECTOR_LANES or not isinstance(store, ir.Store) or store.buffer.scope == "register":
            raise ScheduleError(
                f"loop {loop.var.name!r} cannot be vectorized: got {loop.extent} iterations of {type(store).__name__}, "
                "expected 2, 3, 4, 8 or 16 iterations of one store to memory",
                hint="split the loop and vectorize its inner part",
            )
        address = self.expr.print_element(
            store.buffer, _indices_in_first_iteration(store.buffer, store.indices, loop.var)
        )
        value = self._print_vector_value(store.value, loop.var, lanes)
        return self._guard_by_first_item([f"vstore{lanes}({value}, 0, &{address});"])

    def _guard_by_first_item(self, lines: list[str]) -> list[str]:
        """Return lines of C guarded by an ``if``, so that only the first work-item along each idle axis runs them.

        The other work-items would store the same values."""
        if not self.idle_axes:
            return lines
        items = " && ".join(f"get_local_id({ir.ITEMS.index(kind)}) == 0" for kind in sorted(self.idle_axes))
        return [f"if ({items}) {{", *(INDENT + line for line in lines), "}"]

    def _print_vector_value(self, value: ir.Expr, var: ir.Var, lanes: int) -> str:
        """Print the values that an expression has in all iterations of a vectorised loop, as one OpenCL vector.

        ``var``: the loop's variable. ``lanes``: the loop's trip count, which is the number of elements of the vector.
        ScheduleError if the expression reads elements that are not adjacent, or has no vector equivalent."""
        kind = f"{_OPENCL_SCALAR_TYPES[value.dtype]}{lanes}"
        match value:
            case _ if var not in free_vars(value):
                return f"({kind})({self.expr(value)})"
            case ir.Load(buffer, indices) if buffer.scope != "register":
                return f"vload{lanes}(0, &{self.expr.print_element(buffer, _indices_in_first_iteration(buffer, indices, var))})"
            case ir.Bin("add" | "sub" | "mul" as op, a, b) | ir.Bin("div" as op, a, b):
                left, right = (self._print_vector_value(operand, var, lanes) for operand in (a, b))
                return f"({left} {_operator_token(op)} {right})"
            case ir.Cast(_, a):
                return f"convert_{kind}({self._print_vector_value(a, var, lanes)})"
            case ir.Call(name, args) if name in MATH_FUNCTIONS:
                return f"{name}({', '.join(self._print_vector_value(a, var, lanes) for a in args)})"
            case _:
                raise ScheduleError(
                    f"loop {var.name!r} cannot be vectorized: {type(value).__name__} has no equivalent on vectors",
                    hint="leave out vectorize for this loop",
                )


def _operator_token(op: str) -> str:
    """Return the token of C and OpenCL C for a binary operator of TIR: ``+`` for ``add``."""
    c_operator = BINARY[op].c_notation
    assert c_operator is not None
    return c_operator[0]


def _rename_opencl_keywords(func: ir.PrimFunc) -> ir.PrimFunc:
    """Return the function with the suffix ``_cl`` on every buffer and variable whose name is an OpenCL keyword."""
    own = [*func.params, *(s.buffer for s in walk_stmt(func.body) if isinstance(s, ir.Alloc))]
    buffers = {b: replace(b, name=f"{b.name}_cl") for b in own if b.name in _OPENCL_KEYWORDS}

    def rename_declared_variable(stmt: ir.Stmt) -> ir.Stmt:
        if not isinstance(stmt, (ir.For, ir.Let)) or stmt.var.name not in _OPENCL_KEYWORDS:
            return stmt
        var = ir.Var(f"{stmt.var.name}_cl", stmt.var.dtype)
        return replace(stmt, var=var, body=substitute_stmt(stmt.body, {stmt.var: var}))

    params = tuple(buffers.get(p, p) for p in func.params)
    return replace(func, params=params, body=map_stmt(replace_buffers(func.body, buffers), rename_declared_variable))


def _indices_in_first_iteration(buffer: ir.Buffer, indices: tuple[ir.Expr, ...], var: ir.Var) -> tuple[ir.Expr, ...]:
    """Return the indices of the element that the first iteration of a vectorised loop accesses.

    ``indices``: the indices of the element that an iteration accesses. ``var``: the loop's variable. ScheduleError unless
    ``var`` occurs only in the last index, with a coefficient of 1: the loop then accesses adjacent elements."""
    *outer, last = indices
    terms, _ = linear(last)
    if (
        any(var in free_vars(i) for i in outer)
        or terms.get(var) != 1
        or sum(var in free_vars(atom) for atom in terms) > 1
    ):
        raise ScheduleError(
            f"loop {var.name!r} cannot be vectorized: its iterations do not access adjacent elements of {buffer.name!r}",
            hint="leave out vectorize, or vectorize the loop over the last axis",
        )
    return (*outer, simplify(last - var))
