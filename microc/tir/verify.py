# SPDX-License-Identifier: Apache-2.0
"""Verifier of TIR: :func:`verify` raises :class:`~microc.errors.InternalError` at the first violation of these rules.

- Names are identifiers. No scope declares a name that an enclosing scope declares; sibling scopes may declare the same name.
- Operands have equal dtypes. Arithmetic is done in int32, int64, uint32, uint64, float32 and float64; comparisons,
  ``min`` and ``max`` in any scalar dtype. Vectors are only loaded, stored and passed to calls. Conditions are bool.
- Every index is int32 and provably within its buffer. Proofs use conditions: each branch of ``If`` and each operand of
  ``Select``, ``and`` and ``or`` is checked under the outcome of the condition that leads to it. Constants are never written.
- Block iterators are bound within their domain. The bindings of a block that writes a parameter cover its whole domain
  (:mod:`microc.tir.analysis.cover`). For a nested block, the iterators of the enclosing block count as loops.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from functools import cached_property, partial
from typing import NoReturn

from microc.base import dtypes
from microc.errors import ProgramError
from microc.tir import ir, rewrite, symbolic
from microc.tir.analysis import context, linear_forms, simplification
from microc.tir.analysis.cover import explain_incomplete_coverage
from microc.tir.analysis.simplification import (
    IllFormedError,
    Names,
    Simplifier,
    WalkPosition,
    branch_context,
    check_name,
    let_context,
    loop_context,
    raise_ill_formed,
    with_declared_buffer,
    with_declared_name,
)
from microc.tir.names import RESULT_RANGES
from microc.tir.operators import BINARY, FUNCTIONS, UNARY
from microc.tir.symbolic import require_constant_sizes
from microc.tir.text.print import format_expr

COMPUTE = frozenset({"int32", "int64", "uint32", "uint64", "float32", "float64"})
_INTEGER_ONLY = {name for name, each in {**BINARY, **UNARY}.items() if each.is_integer_only}
_OWN = ("workspace", "shared", "register", "local")
_CHECK_HINT = (
    "bound the index, declare the operand in OpDef.constants, or pack what the operator has checked as a table"
)
_ANY_SCALAR = ir.COMPARISONS | {"min", "max"}


def verify(
    func: ir.PrimFunc,
    *,
    tables: Container[str] | None = None,
    numbers: Mapping[str, linear_forms.Interval] | None = None,
) -> None:
    """Check every rule of TIR on ``func``. Raises :class:`IllFormedError` at the first violation.

    ``tables``: names of the constants whose numbers have been checked (``OpDef.constants``, or loops that were verified with
    these constants before). An index that is computed from such numbers, or from data that are known only at run time, need
    not be proved, because only the author of the operator knows its range; the interpreter checks it at every access. If
    ``tables`` is None, every index must be proved. ``numbers``: range of the numbers of constants, by name, for proofs.
    """
    require_constant_sizes(func)
    check_name(func.name, func.name)
    names: Names = {}
    for buffer in func.params:
        if buffer.scope in ("shared", "register", "local", *ir.UNIT_SCOPES):
            raise_ill_formed(func.name, f"parameter {buffer.name} has scope {buffer.scope}")
        names = with_declared_buffer(names, buffer, func.name)
    _Verifier(func, tables, numbers or {}).check_statement(func.body, WalkPosition(names, Simplifier(), ()))


def explain_fault(func: ir.PrimFunc, *, tables: Container[str] | None = None) -> str:
    """Return the error message of :func:`verify` for a function; an empty string if the function is well-formed.

    For callers that can continue without the function."""
    try:
        verify(func, tables=tables)
    except (IllFormedError, ProgramError) as error:
        return str(error)
    return ""


def constant_names(func: ir.PrimFunc) -> frozenset[str]:
    """Return the names of all constants of a function.

    They can be passed to :func:`verify` as ``tables`` if the loops of the function were verified before."""
    return frozenset(buffer.name for buffer in func.params if buffer.scope == "const")


class _Verifier:
    """Walk over one function that checks every rule.

    Parameter ``position`` of the methods: position of the walk, with the names declared and the facts known there."""

    def __init__(
        self, func: ir.PrimFunc, tables: Container[str] | None, numbers: Mapping[str, linear_forms.Interval]
    ) -> None:
        self.func = self.where = func.name
        self.body, self.tables, self.numbers = func.body, tables, numbers
        self.unchecked: dict[ir.Var, str] = {}
        self.looked_up: set[ir.Var] = set()
        self.bound: dict[ir.Var, ir.Expr] = {}

    def fail(self, problem: str) -> NoReturn:
        raise_ill_formed(self.where, problem)

    # ------------------------------------------------------------ statements

    def check_statement(self, stmt: ir.Stmt, position: WalkPosition) -> None:
        match stmt:
            case ir.Store(buffer, indices, value):
                self.check_element(buffer, indices, position)
                if buffer.scope == "const":
                    self.fail(f"store to the constant buffer {buffer.name}; expected a buffer that may be written")
                if value.dtype != buffer.dtype:
                    self.fail(
                        f"store to {buffer.name}: wrong dtype of the value; got {value.dtype}, expected {buffer.dtype}"
                    )
                self.check_expr(value, position)
            case ir.For():
                self.check_loop(stmt, position)
            case ir.If(condition, then, otherwise):
                self.check_condition(condition, position)
                self.check_branch(condition, True, then, position)
                if otherwise is not None:
                    self.check_branch(condition, False, otherwise, position)
            case ir.Seq(body):
                for child in body:
                    self.check_statement(child, position)
            case ir.Let(var, value, body):
                self.check_expr(value, position)
                if var.dtype != value.dtype:
                    self.fail(f"let {var.name}: wrong dtype of the value; got {value.dtype}, expected {var.dtype}")
                names = with_declared_name(position.names, var, self.where)
                self.looked_up |= {var} if self.depends_on_data(value) else set()
                if constant := self.find_unchecked_constant(value):
                    self.unchecked[var] = constant
                known = let_context(var, value, position.known)
                if dtypes.is_integer(value.dtype) and (
                    self.numbers or any(map(_range_of_call, rewrite.walk_expr(value)))
                ):
                    known = known.with_variable(var, self.range_of_value(value, position), opaque=var in known.opaque)
                self.check_statement(body, WalkPosition(names, known, position.around))
            case ir.Alloc(buffer, body):
                if buffer.scope not in ("workspace", "shared", "register", "local", *ir.UNIT_SCOPES):
                    self.fail(f"allocation of {buffer.name}: only parameters may have the scope {buffer.scope}")
                names = with_declared_buffer(position.names, buffer, self.where)
                self.check_statement(body, WalkPosition(names, position.known, position.around))
            case ir.Evaluate(value):
                if not isinstance(value, ir.Call):
                    self.fail(f"statement without effect; got {format_expr(value)}, expected a call")
                self.check_expr(value, position)
            case ir.Block():
                self.check_block(stmt, position)
            case _:
                self.fail(f"unknown statement {type(stmt).__name__}")

    def check_loop(self, loop: ir.For, position: WalkPosition) -> None:
        self.check_expr(loop.extent, position)
        if loop.kind not in ir.FOR_KINDS:
            self.fail(
                f"loop {loop.var.name}: unknown kind; got {loop.kind!r}, expected one of {', '.join(ir.FOR_KINDS)}"
            )
        if loop.extent.dtype != loop.var.dtype or not dtypes.is_integer(loop.var.dtype):
            self.fail(
                f"loop {loop.var.name}: dtypes of variable and extent; got {loop.var.dtype} and {loop.extent.dtype}, "
                "expected one integer dtype"
            )
        if loop.kind == "scalable" and (wrong := symbolic.explain_scalable_loop_fault(loop)):
            self.fail(wrong)
        names = with_declared_name(position.names, loop.var, self.where)
        self.check_statement(loop.body, position.inside_of(names, loop_context(loop, position.known), loop))

    def check_branch(self, condition: ir.Expr, holds: bool, body: ir.Stmt, position: WalkPosition) -> None:
        """Check one branch of an ``If`` under the outcome ``holds`` of its condition."""
        known = branch_context(condition, holds, body, position.known)
        self.check_statement(
            body, position.inside_of(position.names, known, condition if holds else ir.Un("not", condition))
        )

    def check_block(self, block: ir.Block, position: WalkPosition) -> None:
        outer, self.where = self.where, f"{self.func}, block {block.name}"
        inside = position
        if block.predicate is not None:
            self.check_condition(block.predicate, position)
            inside = position.with_knowledge(position.known.assuming(block.predicate))
        names, known = position.names, inside.known
        for i in block.iters:
            reach = self.check_binding(i, inside)
            names = with_declared_name(names, i.var, self.where)
            known = known.with_variable(i.var, reach, kept=True)
            self.bound[i.var] = rewrite.substitute(i.binding, self.bound)
        if any(b.scope == "global" for b in context.buffers_written(block)):
            missing = explain_incomplete_coverage(block, position.around)
            if missing:
                self.fail(f"the bindings do not provably cover the block's domain: {missing}")
        body = WalkPosition(
            names, known, tuple(ir.For(i.var, ir.const(i.extent, i.var.dtype), block.body) for i in block.iters)
        )
        if block.init is not None:
            self.check_statement(block.init, body)
        self.check_statement(block.body, body)
        self.where = outer

    def check_binding(self, iterator: ir.IterVar, position: WalkPosition) -> linear_forms.Interval:
        """Check the value bound to a block iterator; return its range."""
        self.check_expr(iterator.binding, position)
        if iterator.kind not in ("space", "reduce"):
            self.fail(f"iterator {iterator.var.name}: unknown kind; got {iterator.kind!r}, expected space or reduce")
        if iterator.binding.dtype != iterator.var.dtype or iterator.var.dtype != "int32":
            self.fail(
                f"iterator {iterator.var.name}: dtypes of variable and binding; got {iterator.var.dtype} and "
                f"{iterator.binding.dtype}, expected int32"
            )
        return self.prove_index_within(
            iterator.binding, iterator.extent, position, lambda: f"iterator {iterator.var.name}"
        )

    # ------------------------------------------------------------ expressions

    def check_condition(self, expr: ir.Expr, position: WalkPosition) -> None:
        self.check_expr(expr, position)
        if expr.dtype != "bool":
            self.fail(f"condition {format_expr(expr)}: wrong dtype; got {expr.dtype}, expected bool")

    def check_expr(self, expr: ir.Expr, position: WalkPosition) -> None:
        match expr:
            case ir.Const():
                self.check_literal(expr)
            case ir.Var(name):
                if position.names.get(name) != expr:
                    self.fail(f"variable {name} ({expr.dtype}) is not defined here")
            case ir.Load(buffer, indices):
                self.check_element(buffer, indices, position)
            case ir.Bin(op, a, b) if op in ir.LOGICAL:
                self.check_condition(a, position)
                self.check_condition(b, position.with_knowledge(position.known.assuming(a, op == "and")))
            case ir.Bin(op, a, b):
                self.check_expr(a, position)
                self.check_expr(b, position)
                if a.dtype != b.dtype:
                    self.fail(
                        f"{op}: operands have different dtypes; got {op} of {a.dtype} and {b.dtype}: {format_expr(expr)}"
                    )
                self.check_operator(op, a.dtype, expr)
            case ir.Un(op, a):
                self.check_expr(a, position)
                if op != "not":
                    self.check_operator(op, a.dtype, expr)
                elif a.dtype != "bool":
                    self.fail(
                        f"operator not: wrong dtype of the operand; got {a.dtype}, expected bool: {format_expr(expr)}"
                    )
            case ir.Select(c, a, b):
                self.check_condition(c, position)
                self.check_expr(a, position.with_knowledge(position.known.assuming(c)))
                self.check_expr(b, position.with_knowledge(position.known.assuming(c, False)))
                if a.dtype != b.dtype:
                    self.fail(
                        f"select: operands have different dtypes; got {a.dtype} and {b.dtype}: {format_expr(expr)}"
                    )
            case ir.Cast(dtype, a):
                self.check_expr(a, position)
                if dtypes.dtype_parts(dtype).lanes > 1 or dtypes.dtype_parts(a.dtype).lanes > 1:
                    self.fail(f"cast: got {a.dtype} to {dtype}, expected scalar dtypes")
            case ir.Call():
                self.check_call(expr, position)
            case ir.AddressOf(buffer):
                self.fail(
                    f"the address of {buffer.name} is used outside of a call; expected it as an argument of a call"
                )
            case _:
                self.fail(f"unknown expression {type(expr).__name__}")

    def check_literal(self, expr: ir.Const) -> None:
        if not dtypes.is_valid(expr.dtype):
            self.fail(f"literal: unknown dtype; got {expr.dtype!r}")
        if dtypes.is_float(expr.dtype):
            fits = expr.value != expr.value or float(dtypes.to_numpy(expr.dtype).type(expr.value)) == expr.value
        else:
            fits = isinstance(expr.value, int) and simplification.fits_dtype(expr.value, expr.dtype)
        if not fits:
            self.fail(f"literal {expr.value} cannot be represented in {expr.dtype}")

    def check_operator(self, op: str, dtype: str, expr: ir.Expr) -> None:
        """Check that an operator is defined for a dtype."""
        kind, _, lanes = dtypes.dtype_parts(dtype)
        if op not in ir.COMPARISONS and op not in ir.ARITHMETIC and op not in ir.UNARY:
            self.fail(f"unknown operator {op} of {dtype}")
        allowed = lanes == 1 if op in _ANY_SCALAR else dtype in COMPUTE
        misused = (op in _INTEGER_ONLY and kind == "float") or (op == "div" and kind != "float")
        if not allowed or misused:
            self.fail(f"operator {op} is not defined for {dtype}: {format_expr(expr)}")

    def check_call(self, expr: ir.Call, position: WalkPosition) -> None:
        if not dtypes.is_valid(expr.dtype):
            self.fail(f"call of {expr.name}: unknown dtype of the result; got {expr.dtype!r}")
        for a in expr.args:
            if isinstance(a, ir.AddressOf):
                self.check_address(a, position)
            else:
                self.check_expr(a, position)
        if expr.name == ir.REINTERPRET and [dtypes.nbytes(a.dtype) for a in expr.args] != [dtypes.nbytes(expr.dtype)]:
            self.fail(f"wrong reinterpretation: {format_expr(expr)} has another number of bits than its operand")
        if expr.name in FUNCTIONS and any(a.dtype != expr.dtype for a in expr.args):
            self.fail(
                f"{format_expr(expr)}: wrong dtypes of the arguments; got {', '.join(a.dtype for a in expr.args)}, "
                f"expected {expr.dtype}"
            )
        if expr.name in FUNCTIONS and dtypes.dtype_parts(expr.dtype).kind != "float":
            self.fail(f"{format_expr(expr)}: wrong dtype of the result; got {expr.dtype}, expected a float")

    # ------------------------------------------------------------ memory

    def check_element(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...], position: WalkPosition) -> None:
        """Check an access to an element: its buffer is declared, and every index is int32 and within its axis."""
        if position.names.get(buffer.name) != buffer:
            self.fail(f"buffer {buffer.name} is not declared here (or with another shape, dtype or scope)")
        if len(indices) != len(buffer.shape):
            self.fail(f"{buffer.name}: wrong number of indices; got {len(indices)}, expected {len(buffer.shape)}")
        for axis, (index, extent) in enumerate(zip(indices, buffer.shape, strict=True)):
            if index.dtype == "int32" and (number := ir.int_value(index)) is not None and 0 <= number < extent:
                continue  # the index of nearly every register
            self.check_expr(index, position)
            if index.dtype != "int32":
                self.fail(
                    f"index {format_expr(index)} of {buffer.name}: wrong dtype; got {index.dtype}, expected int32"
                )
            self.prove_index_within(index, extent, position, partial(_format_axis, axis, buffer))

    def check_address(self, a: ir.AddressOf, position: WalkPosition) -> None:
        """Check an address: its element is valid, constants are not written, and all accessed elements are in the buffer."""
        self.check_element(a.buffer, a.indices, position)
        if a.writes and a.buffer.scope == "const":
            self.fail(f"a call writes the constant buffer {a.buffer.name}; expected a buffer that may be written")
        if a.extent < 1 or a.step < 1:
            self.fail(
                f"address in {a.buffer.name}: wrong extent or step; got {a.extent} and {a.step}, expected at least 1"
            )
        beyond = a.reach - 1
        row = position.known.range_of(a.indices[-1] + beyond if beyond else a.indices[-1]) if a.indices else (0, 0)
        if a.indices and linear_forms.within(row, (0, a.buffer.shape[-1] - 1)):
            return  # all accessed elements are in one row, and the row exists
        flat: ir.Expr = ir.const(0, "int32")
        for index, stride in zip(a.indices, a.buffer.strides, strict=True):
            flat = flat + index * stride
        flat = position.known.simplify(
            rewrite.substitute(flat, self.bound)
        )  # only the bindings of iterators show which elements an instruction skips
        self.prove_index_within(flat + (a.reach - 1), a.buffer.size, position, lambda: f"the end of {format_expr(a)}")

    def prove_index_within(
        self, index: ir.Expr, extent: int, position: WalkPosition, describe_access: Callable[[], str]
    ) -> linear_forms.Interval:
        """Prove ``0 <= index < extent``; return the range of the index. Raises an error if there is no proof.

        ``describe_access``: function that returns the beginning of the error message, which names the access."""
        allowed = (0, extent - 1)
        reach = position.known.range_of(index)
        if not linear_forms.within(
            reach, allowed
        ):  # rare: most indices are proved by the bounds of loop variables alone
            reach = self.range_of_value(index, position)
        if not linear_forms.within(reach, allowed):
            if self.tables is not None and self.depends_on_data(index):
                if constant := self.find_unchecked_constant(index, through=True):
                    known, bounds = constant in self.numbers, f"expected 0..{extent - 1}"
                    what_is_known = (
                        f" and may be {_format_range(reach)}" if known else ", whose numbers are not checked"
                    )
                    raise ProgramError(
                        f"{describe_access()}: {format_expr(index)} is loaded from {constant}{what_is_known}, {bounds}",
                        hint="bound it: min(max(index, 0), size - 1)" if known else _CHECK_HINT,
                        where=self.where,
                    )
                return allowed
            self.fail(
                f"{describe_access()}: {format_expr(index)} may be {_format_range(reach)}, expected 0..{extent - 1}"
            )
        return reach

    def range_of_value(self, value: ir.Expr, position: WalkPosition) -> linear_forms.Interval:
        """Return the range of a value, using facts about dividends, result ranges of saturating intrinsics and constants.

        Only the verifier uses these ranges, because simplification by them would change generated code."""
        found, quotient = position.known.range_of(value), position.known.range_of_quotient(value)
        bounded: dict[ir.Expr, tuple[ir.Var, linear_forms.Interval]] = {}

        def name_bounded_load(subexpression: ir.Expr) -> ir.Expr:
            span = _range_of_call(subexpression)
            if isinstance(subexpression, ir.Load) and subexpression.buffer.scope == "const":
                span = self.numbers.get(subexpression.buffer.name)
            if span is None:
                return subexpression
            return bounded.setdefault(subexpression, (ir.Var(f"bounded.{len(bounded)}", subexpression.dtype), span))[0]

        named, known = rewrite.map_expr(value, name_bounded_load), position.known
        for var, span in bounded.values():
            known = known.with_variable(var, span)
        low, high = known.range_of(named) if bounded else found
        return max(low, found[0], quotient[0]), min(high, found[1], quotient[1])

    def find_unchecked_constant(self, value: ir.Expr, *, through: bool = False) -> str:
        """Return the name of a constant that a value is loaded from and whose numbers are not checked (not in ``tables``).

        The value may be loaded directly, through a variable, or, if ``through`` is True, through a buffer of the function
        that stores such numbers. An empty string if there is no such constant."""
        if self.tables is None:
            return ""
        for x in rewrite.walk_expr(value):
            if isinstance(x, ir.Load | ir.AddressOf) and x.buffer.scope == "const" and x.buffer.name not in self.tables:
                return x.buffer.name
            if (
                isinstance(x, ir.Load | ir.AddressOf)
                and through
                and x.buffer.name in self.buffers_with_unchecked_numbers
            ):
                return self.buffers_with_unchecked_numbers[x.buffer.name]
            if isinstance(x, ir.Var) and x in self.unchecked:
                return self.unchecked[x]
        return ""

    @cached_property
    def buffers_with_unchecked_numbers(self) -> dict[str, str]:
        """Buffers of the function that store numbers of an unchecked constant (not in ``tables``).

        Name of the constant by the name of the buffer."""
        found: dict[str, str] = {}
        assigned = [
            (s.var, s.value) if isinstance(s, ir.Let) else (s.buffer, s.value)
            for s in rewrite.walk_stmt(self.body)
            if isinstance(s, ir.Let) or (isinstance(s, ir.Store) and s.buffer.scope in _OWN)
        ]
        named: dict[ir.Var, str] = {}
        count = -1
        while count < len(found) + len(named):
            count = len(found) + len(named)
            for target, value in assigned:
                for x in rewrite.walk_expr(value):
                    constant = ""
                    if isinstance(x, ir.Load | ir.AddressOf):
                        own = x.buffer.scope == "const" and x.buffer.name not in (self.tables or ())
                        constant = x.buffer.name if own else found.get(x.buffer.name, "")
                    elif isinstance(x, ir.Var):
                        constant = named.get(x, "")
                    if constant and isinstance(target, ir.Var):
                        named.setdefault(target, constant)
                    elif constant:
                        found.setdefault(target.name, constant)
        return found

    def depends_on_data(self, value: ir.Expr) -> bool:
        """Test whether a value is computed from loads or calls, or from variables bound to such values."""
        if not self.looked_up.isdisjoint(rewrite.free_vars(value)):
            return True
        return any(isinstance(x, (ir.Load, ir.Call)) for x in rewrite.walk_expr(value))


def _range_of_call(x: ir.Expr) -> linear_forms.Interval | None:
    """Return the range of the result of an intrinsic; None if it is unknown, or if the expression is not a call."""
    return RESULT_RANGES.get(x.name) if isinstance(x, ir.Call) else None


def _format_axis(axis: int, buffer: ir.Buffer) -> str:
    """Return the description of an axis of a buffer for an error."""
    return f"axis {axis} of {buffer.name}{list(buffer.shape)}"


def _format_range(value_range: linear_forms.Interval) -> str:
    """Return the text of a range for an error, with ``?`` for an unknown end."""
    low, high = ("?" if isinstance(end, float) else str(end) for end in value_range)
    return f"{low}..{high}"
