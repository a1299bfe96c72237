# SPDX-License-Identifier: Apache-2.0
"""Traversal and rewriting of TIR: the functions with which passes walk and rebuild expressions and statements.

Functions that rewrite return the same object if nothing changed, so that facts stored with it remain valid."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter, is_
from types import MappingProxyType
from typing import Any

from microc.errors import InternalError
from microc.tir import ir
from microc.tir.ir import Expr, Stmt

# The recursive functions below are callable objects or functions of the module, not nested functions. A nested function that
# refers to itself is a reference cycle, which stays in memory until the garbage collector runs. A compilation would create about
# ten thousand such cycles.
ExprMap = Callable[[Expr], Expr]


def _no_children(_: Any) -> tuple[Expr, ...]:
    return ()


_OPERANDS: Mapping[type[Expr], Callable[[Any], tuple[Expr, ...]]] = {
    ir.Bin: attrgetter("a", "b"),
    ir.Un: lambda x: (x.a,),
    ir.Cast: lambda x: (x.a,),
    ir.Select: attrgetter("condition", "a", "b"),
    ir.Load: attrgetter("indices"),
    ir.AddressOf: attrgetter("indices"),
    ir.Call: attrgetter("args"),
}
_REBUILDERS: Mapping[type[Expr], Callable[[Any, tuple[Expr, ...]], Expr]] = MappingProxyType(
    {
        ir.Bin: lambda x, new: ir.Bin(x.op, *new),
        ir.Un: lambda x, new: ir.Un(x.op, *new),
        ir.Cast: lambda x, new: ir.cast(x.dtype, *new),
        ir.Select: lambda _, new: ir.Select(*new),
        ir.Load: lambda x, new: ir.Load(x.buffer, new),
        ir.AddressOf: lambda x, new: ir.AddressOf(x.buffer, new, x.extent, x.writes, x.step),
        ir.Call: lambda x, new: ir.Call(x.name, new, x.dtype),
    }
)
"""Functions that build an expression of the same class with other operands, by class."""


_LEAVES = (ir.Var, ir.Const)


def children(expr: Expr) -> tuple[Expr, ...]:
    """Return the direct operands of an expression."""
    return _OPERANDS.get(type(expr), _no_children)(expr)


def map_children(expr: Expr, transform: ExprMap) -> Expr:
    """Return ``expr`` with ``transform`` applied to its direct operands; the same object if no operand changed."""
    if isinstance(expr, ir.Bin):  # most expressions are
        a, b = transform(expr.a), transform(expr.b)
        return expr if a is expr.a and b is expr.b else ir.Bin(expr.op, a, b)
    kind = type(expr)
    operands_of = _OPERANDS.get(kind)
    if operands_of is None:
        return expr
    old = operands_of(expr)
    if len(old) == 1:  # of the others, most have one
        operand = transform(old[0])
        return expr if operand is old[0] else _REBUILDERS[kind](expr, (operand,))
    new = tuple([transform(x) for x in old])
    return expr if all(map(is_, new, old)) else _REBUILDERS[kind](expr, new)


def with_children(expr: Expr, operands: Sequence[Expr]) -> Expr:
    """Return ``expr`` with other direct operands; the same object if they are its own."""
    if all(map(is_, operands, children(expr))):
        return expr
    return _REBUILDERS[type(expr)](expr, tuple(operands))


class BottomUpRewriter:
    """Bottom-up rewriting of expressions by a function ``transform``.

    An operand that occurs several times as the same object is rewritten once and remains shared, because polynomials and
    transforms are far smaller as graphs than as trees. ``is_fixed``: test whether an expression remains as it is, with
    all its operands. The rewritten expressions must exist as long as the rewriter."""

    __slots__ = ("is_fixed", "known", "transform")

    def __init__(self, transform: ExprMap, is_fixed: Callable[[Expr], bool] | None = None) -> None:
        self.transform, self.is_fixed = transform, is_fixed
        self.known: dict[int, Expr] = {}

    def __call__(self, expr: Expr) -> Expr:
        if self.is_fixed is not None and self.is_fixed(expr):
            return expr
        if isinstance(expr, _LEAVES):
            return self.transform(expr)
        found = self.known.get(id(expr))
        if found is None:
            found = self.known[id(expr)] = self.transform(map_children(expr, self))
        return found


def map_expr(expr: Expr, transform: ExprMap) -> Expr:
    """Rewrite an expression bottom-up: first its operands, then the rebuilt expression by ``transform``.

    ``transform`` is called once for an operand that occurs several times as the same object."""
    return BottomUpRewriter(transform)(expr)


def map_stmt(stmt: Stmt, on_stmt: Callable[[Stmt], Stmt], on_expr: ExprMap | None = None) -> Stmt:
    """Rewrite a statement bottom-up: first its expressions and sub-statements, then the rebuilt statement by ``on_stmt``.

    ``on_expr`` rewrites every complete expression of the statements, not each sub-expression. ``on_stmt`` receives the same
    object if nothing in the statement changed."""
    if on_expr is None and isinstance(stmt, (ir.Store, ir.Evaluate)):  # most statements; nothing inside can change
        return on_stmt(stmt)
    return on_stmt(_rewrite_parts(stmt, on_stmt, on_expr))


def _rewrite_parts(stmt: Stmt, on_stmt: Callable[[Stmt], Stmt], on_expr: ExprMap | None) -> Stmt:
    """Return a statement with its expressions and sub-statements rewritten; the same object if nothing changed."""
    # Classes are tested in the order of their frequency. Patterns with fields would take several times as long.
    if isinstance(stmt, (ir.Store, ir.Evaluate)):
        return stmt if on_expr is None else _rewrite_exprs(stmt, on_expr)
    if isinstance(stmt, ir.Seq):
        parts = [map_stmt(child, on_stmt, on_expr) for child in stmt.body]
        return stmt if all(map(is_, parts, stmt.body)) else ir.seq(*parts)
    if isinstance(stmt, ir.Block):
        return _rewrite_block_parts(stmt, on_stmt, on_expr)
    if isinstance(stmt, ir.If):
        test = stmt.condition if on_expr is None else on_expr(stmt.condition)
        then = map_stmt(stmt.then, on_stmt, on_expr)
        otherwise = map_stmt(stmt.otherwise, on_stmt, on_expr) if stmt.otherwise else None
        same = test is stmt.condition and then is stmt.then and otherwise is stmt.otherwise
        return stmt if same else ir.If(test, then, otherwise)
    if isinstance(stmt, ir.Let):
        value = stmt.value if on_expr is None else on_expr(stmt.value)
        body = map_stmt(stmt.body, on_stmt, on_expr)
        return stmt if value is stmt.value and body is stmt.body else ir.Let(stmt.var, value, body)
    if isinstance(stmt, ir.For):
        extent = stmt.extent if on_expr is None else on_expr(stmt.extent)
        body = map_stmt(stmt.body, on_stmt, on_expr)
        same = extent is stmt.extent and body is stmt.body
        return stmt if same else ir.For(stmt.var, extent, body, stmt.kind, stmt.annotations)
    if isinstance(stmt, ir.Alloc):
        body = map_stmt(stmt.body, on_stmt, on_expr)
        return stmt if body is stmt.body else ir.Alloc(stmt.buffer, body)
    raise InternalError(f"rewrite: unknown type of statement; got {type(stmt).__name__}")


def _rewrite_exprs(stmt: ir.Store | ir.Evaluate, on_expr: ExprMap) -> Stmt:
    """Return a store or call with its expressions rewritten; the same object if nothing changed."""
    # Identity is compared, not structure: it is cheap, and unchanged statements keep their memoised facts.
    if isinstance(stmt, ir.Evaluate):
        effect = on_expr(stmt.value)
        return stmt if effect is stmt.value else ir.Evaluate(effect)
    indices, value = tuple([on_expr(i) for i in stmt.indices]), on_expr(stmt.value)
    same = value is stmt.value and all(map(is_, indices, stmt.indices))
    return stmt if same else ir.Store(stmt.buffer, indices, value)


def _rewrite_block_parts(block: ir.Block, on_stmt: Callable[[Stmt], Stmt], on_expr: ExprMap | None) -> ir.Block:
    """Return a block with its bindings, predicate and sub-statements rewritten; the same object if nothing changed."""
    map_own = on_expr or _identity_expr
    bindings = [map_own(i.binding) for i in block.iters]
    init = map_stmt(block.init, on_stmt, on_expr) if block.init else None
    predicate = map_own(block.predicate) if block.predicate else None
    body = map_stmt(block.body, on_stmt, on_expr)
    pairs = zip(block.iters, bindings, strict=True)
    iters = tuple([i if new is i.binding else ir.IterVar(i.var, i.extent, i.kind, new) for i, new in pairs])
    same = body is block.body and init is block.init and predicate is block.predicate
    if same and all(map(is_, iters, block.iters)):
        return block
    return ir.Block(block.name, iters, body, init, predicate, block.annotations)


def _identity_expr(expr: Expr) -> Expr:
    return expr


class _Substitution:
    """Substitution of expressions for variables. Shared operands remain shared, as in :class:`BottomUpRewriter`."""

    __slots__ = ("known", "names", "values")

    def __init__(self, values: Mapping[ir.Var, Expr]) -> None:
        self.values = values
        self.names = frozenset(values)
        self.known: dict[int, Expr] = {}

    def __call__(self, expr: Expr) -> Expr:
        if isinstance(expr, ir.Var):
            return self.values.get(expr, expr)
        names = expr.known_vars
        if names is None:
            names = free_vars(expr)
        if self.names.isdisjoint(names):
            return expr
        found = self.known.get(id(expr))
        if found is None:
            found = self.known[id(expr)] = map_children(expr, self)
        return found


def substitute(expr: Expr, values: Mapping[ir.Var, Expr]) -> Expr:
    """Return ``expr`` with variables replaced by the expressions in ``values``."""
    return _Substitution(values)(expr)


def substitute_stmt(stmt: Stmt, values: Mapping[ir.Var, Expr]) -> Stmt:
    """Return ``stmt`` with free variables replaced by the expressions in ``values``."""
    return map_stmt(stmt, _identity_stmt, _Substitution(values)) if values else stmt


def _identity_stmt(stmt: Stmt) -> Stmt:
    return stmt


Indices = tuple[Expr, ...]


def _identity_indices(indices: Indices) -> Indices:
    return indices


def map_accesses(
    stmt: Stmt,
    buffers: Container[ir.Buffer],
    on_stmt: Callable[[Stmt], Stmt],
    on_access: Callable[[ir.Load | ir.AddressOf], Expr],
) -> Stmt:
    """Rewrite a statement bottom-up: the loads and addresses of ``buffers`` by ``on_access``, statements by ``on_stmt``."""

    def rewrite_access(expr: Expr) -> Expr:
        if isinstance(expr, (ir.Load, ir.AddressOf)) and expr.buffer in buffers:
            return on_access(expr)
        return expr

    return map_stmt(
        stmt, on_stmt, BottomUpRewriter(rewrite_access, lambda expr: not accesses_any_buffer(expr, buffers))
    )


def replace_buffers(
    stmt: Stmt,
    buffers: Mapping[ir.Buffer, ir.Buffer],
    convert_indices: Callable[[Indices], Indices] = _identity_indices,
) -> Stmt:
    """Return ``stmt`` with buffers replaced as in ``buffers`` (old -> new).

    ``convert_indices``: returns the indices in the new buffer; without it both buffers have the same number of axes."""

    def redirect_access(x: ir.Load | ir.AddressOf) -> Expr:
        buffer, indices = buffers[x.buffer], convert_indices(x.indices)
        return ir.Load(buffer, indices) if isinstance(x, ir.Load) else replace(x, buffer=buffer, indices=indices)

    def redirect_statement(s: Stmt) -> Stmt:
        match s:
            case ir.Store(buffer, indices, value) if buffer in buffers:
                return ir.Store(buffers[buffer], convert_indices(indices), value)
            case ir.Alloc(buffer, body) if buffer in buffers:
                return ir.Alloc(buffers[buffer], body)
            case _:
                return s

    return map_accesses(stmt, buffers, redirect_statement, redirect_access)


def drop_blocks(stmt: Stmt) -> Stmt:
    """Return a statement with blocks replaced by their bodies, and iterators by their bindings.

    The predicate of a block becomes an ``If``. A reduction that was not decomposed tests at run
    time whether it is in its first iteration, which runs ``init``."""

    def replace_block(s: Stmt) -> Stmt:
        if not isinstance(s, ir.Block):
            return s
        values = {i.var: i.binding for i in s.iters}
        body = substitute_stmt(s.body, values)
        if s.init is not None:
            first = ir.all_of(ir.Bin("eq", i.binding, ir.const(0, "int32")) for i in s.iters if i.kind == "reduce")
            init = substitute_stmt(s.init, values)
            body = ir.seq(ir.If(first, init) if first is not None else init, body)
        return ir.If(s.predicate, body) if s.predicate is not None else body

    return map_stmt(stmt, replace_block)


def accesses_any_buffer(expr: Expr, buffers: Container[ir.Buffer]) -> bool:
    """Test whether an expression reads one of ``buffers``, or takes an address in it."""
    return any(access.buffer in buffers for access in accesses_of(expr))


def walk_expr(expr: Expr) -> Iterator[Expr]:
    """Yield ``expr`` and all of its sub-expressions, each before its operands (pre-order)."""
    stack = [expr]
    while stack:
        found = stack.pop()
        yield found
        operands = _OPERANDS.get(type(found))
        if operands is not None:
            stack += operands(found)[::-1]


def stmt_exprs(stmt: Stmt) -> tuple[Expr, ...]:
    """Return the expressions that a statement contains directly, without the expressions of its sub-statements."""
    return _DIRECT_EXPRS.get(type(stmt), _no_children)(stmt)


def _value_as_tuple(stmt: Any) -> tuple[Expr, ...]:
    return (stmt.value,)


def _exprs_of_block(block: ir.Block) -> tuple[Expr, ...]:
    bindings = tuple([i.binding for i in block.iters])
    return (*bindings, block.predicate) if block.predicate else bindings


_DIRECT_EXPRS: Mapping[type[Stmt], Callable[[Any], tuple[Expr, ...]]] = {
    ir.Store: lambda s: (*s.indices, s.value),
    ir.For: lambda s: (s.extent,),
    ir.If: lambda s: (s.condition,),
    ir.Let: _value_as_tuple,
    ir.Evaluate: _value_as_tuple,
    ir.Block: _exprs_of_block,
}


def stmt_children(stmt: Stmt) -> tuple[Stmt, ...]:
    """Return the direct sub-statements of a statement."""
    return _PARTS.get(type(stmt), _no_parts)(stmt)


def _no_parts(_: Stmt) -> tuple[Stmt, ...]:
    return ()


def _body_as_tuple(stmt: Any) -> tuple[Stmt, ...]:
    return (stmt.body,)


_PARTS: Mapping[type[Stmt], Callable[[Any], tuple[Stmt, ...]]] = {
    ir.For: _body_as_tuple,
    ir.Let: _body_as_tuple,
    ir.Alloc: _body_as_tuple,
    ir.If: lambda s: (s.then, s.otherwise) if s.otherwise else (s.then,),
    ir.Seq: attrgetter("body"),
    ir.Block: lambda s: (s.init, s.body) if s.init else (s.body,),
}


def walk_stmt(stmt: Stmt) -> Iterator[Stmt]:
    """Yield ``stmt`` and all of its sub-statements, in program order, each before the statements that it contains."""
    stack = [stmt]
    while stack:
        found = stack.pop()
        yield found
        parts = _PARTS.get(type(found))
        if parts is not None:
            stack += parts(found)[::-1]


def declared_names(stmt: Stmt) -> Iterator[str]:
    """Yield the names of the variables and buffers that a statement declares."""
    for part in walk_stmt(stmt):
        match part:
            case ir.For(var) | ir.Let(var):
                yield var.name
            case ir.Alloc(buffer):
                yield buffer.name
            case ir.Block(_, iters):
                yield from (axis.var.name for axis in iters)
            case _:
                pass


def walk_all_exprs(stmt: Stmt) -> Iterator[Expr]:
    """Yield every expression and sub-expression of a statement and its sub-statements."""
    for s in walk_stmt(stmt):
        for expr in stmt_exprs(s):
            yield from walk_expr(expr)


def free_vars(expr: Expr) -> frozenset[ir.Var]:
    """Return the variables that occur in an expression. The result is cached in the expression."""
    known = expr.known_vars
    if known is None:
        known = frozenset((expr,)) if isinstance(expr, ir.Var) else _NO_VARS
        for child in children(expr):
            inner = child.known_vars
            if inner is None:
                inner = free_vars(child)
            known = inner if known <= inner else known | inner
        expr.known_vars = known
    return known


_NO_VARS: frozenset[ir.Var] = frozenset()


def accesses_of(expr: Expr) -> tuple[ir.Load | ir.AddressOf, ...]:
    """Return the loads and addresses in an expression, each before the loads in its own indices.

    The result is cached in the expression."""
    known = expr.known_accesses
    if known is None:
        known = (expr,) if isinstance(expr, (ir.Load, ir.AddressOf)) else ()
        for child in children(expr):
            if not isinstance(child, _LEAVES):
                known += accesses_of(child)
        expr.known_accesses = known
    return known


# ---- Loops that TIR text writes as ``while``: endless loops around a branch.


def is_endless(loop: ir.For) -> bool:
    """Test whether a loop ends by the condition in its body alone."""
    return isinstance(loop.extent, ir.Const) and loop.extent.value == ir.ENDLESS


def while_branch(loop: ir.For) -> ir.If | None:
    """Return the branch of a loop that is ``while condition: body``; None for other loops.

    The loop is endless, nothing uses its variable, and the body writes a buffer that the condition loads."""
    branch = loop.body
    if not is_endless(loop) or loop.kind != "serial" or loop.annotations or not isinstance(branch, ir.If):
        return None
    inside = list(walk_stmt(branch))
    exprs = [expr for stmt in inside for expr in stmt_exprs(stmt)]
    if branch.otherwise is not None or any(loop.var in free_vars(expr) for expr in exprs):
        return None
    written = {s.buffer for s in inside if isinstance(s, ir.Store)}
    written |= {x.buffer for e in exprs for x in accesses_of(e) if isinstance(x, ir.AddressOf) and x.writes}
    return branch if accesses_any_buffer(branch.condition, written) else None
