# SPDX-License-Identifier: Apache-2.0
"""Statements, blocks, functions and modules of the loop IR, and functions that build them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Any, SupportsIndex, overload

from microc.errors import ProgramError, known_names_hint
from microc.tir.expressions import (
    REINTERPRET,
    Bin,
    Buffer,
    Call,
    Const,
    Expr,
    Node,
    Select,
    Var,
    as_expr,
    binary,
    immutable_node,
)

# ---- Statements, blocks and functions of the loop IR. The docstring of :mod:`microc.tir.ir` defines their semantics.

GROUPS = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
ITEMS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
"""Kinds of loops that are bound to thread axes of an accelerator. Iterations of a :data:`GROUPS` loop are work groups,
iterations of an :data:`ITEMS` loop are the work items (threads) of a group. The semantics is that of serial loops."""
FOR_KINDS = ("serial", "unrolled", "vectorized", "parallel", "scalable", *GROUPS, *ITEMS)
"""Kinds of loops. A ``scalable`` loop runs several iterations at once in vector lanes; their number is known only at run time
(:mod:`microc.tir.symbolic`)."""


class Stmt(Node):
    """Base class of statements."""

    __slots__ = ("known_blocks", "known_read", "known_written")
    # All three are computed on demand, and None before: microc.tir.analysis.context.
    known_blocks: frozenset[str] | None
    known_read: frozenset[Buffer] | None
    known_written: frozenset[Buffer] | None


@immutable_node
class Store(Stmt):
    """The store ``buffer[indices] = value``. ``value`` has the buffer's dtype."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr


ENDLESS = (1 << 31) - 1
"""Extent of an endless loop: a condition in its body ends it, and no address depends on its loop variable."""


@immutable_node
class For(Stmt):
    """The loop ``for var in range(extent): body``.

    ``kind``: one of :data:`FOR_KINDS`. ``annotations``: (key, value) pairs."""

    var: Var
    extent: Expr
    body: Stmt
    kind: str = "serial"
    annotations: tuple[tuple[str, int | str], ...] = ()


@immutable_node
class If(Stmt):
    """The branch ``if condition: then``, followed by ``else: otherwise`` unless ``otherwise`` is None."""

    condition: Expr
    then: Stmt
    otherwise: Stmt | None = None


@immutable_node
class Seq(Stmt):
    """A sequence of statements. Its statements are not sequences themselves, because :func:`seq` flattens them."""

    body: tuple[Stmt, ...]


@immutable_node
class Let(Stmt):
    """A let statement: binds a variable to a value in ``body``."""

    var: Var
    value: Expr
    body: Stmt


@immutable_node
class Alloc(Stmt):
    """Allocation of a buffer that exists while ``body`` runs."""

    buffer: Buffer
    body: Stmt


@immutable_node
class Evaluate(Stmt):
    """A call as a statement, for its side effect: an intrinsic that writes through :class:`.expressions.AddressOf`."""

    value: Expr


@immutable_node
class IterVar(Node):
    """A block iterator, as in TensorIR.

    Its variable ``var`` runs from 0 to ``extent`` - 1. ``kind``: ``space`` or ``reduce``. ``binding``: value of the iterator,
    an expression over loop variables."""

    var: Var
    extent: int
    kind: str
    binding: Expr


@immutable_node
class Block(Stmt):
    """A block of computation, as in TensorIR. Its instances are independent along ``space`` iterators.

    ``init`` runs before ``body`` in instances in which all ``reduce`` iterators are zero. ``predicate``: condition over loop
    variables; an instance is skipped if it is false. It excludes the superfluous iterations after a split that does not
    divide a loop evenly.
    """

    name: str
    iters: tuple[IterVar, ...]
    body: Stmt
    init: Stmt | None = None
    predicate: Expr | None = None
    annotations: tuple[tuple[str, int | str], ...] = ()


@immutable_node
class PrimFunc(Node):
    """A function of the loop IR: buffer parameters (of scope ``global`` or ``const``) and a body.

    ``scalars``: symbolic sizes, which the caller passes after the buffers; empty if all sizes are constant.
    """

    name: str
    params: tuple[Buffer, ...]
    body: Stmt
    annotations: tuple[tuple[str, int | str], ...] = ()
    scalars: tuple[Var, ...] = field(default=(), repr=False)


# ---- Functions that build expressions and statements of the loop IR.


def minimum(a: Expr, b: Expr | int | float) -> Expr:
    return binary("min", a, b)


def maximum(a: Expr, b: Expr | int | float) -> Expr:
    return binary("max", a, b)


def clamp(a: Expr, low: Expr | int | float, high: Expr | int | float) -> Expr:
    return minimum(maximum(a, low), high)


def select(condition: Expr, a: Expr, b: Expr | int | float) -> Expr:
    """Return ``condition ? a : b``; ProgramError if the dtypes differ."""
    other = as_expr(b, a.dtype)
    if condition.dtype != "bool" or other.dtype != a.dtype:
        raise ProgramError(
            f"select: operands have wrong dtypes; got {condition.dtype}, {a.dtype} and {other.dtype}, expected bool "
            "and two equal dtypes",
            hint="cast one of them, as in x.astype('int32')",
        )
    return Select(condition, a, other)


def all_of(conditions: Iterable[Expr]) -> Expr | None:
    """Return the conjunction (logical and) of conditions; None if there are no conditions."""
    result: Expr | None = None
    for condition in conditions:
        result = condition if result is None else Bin("and", result, condition)
    return result


def conjuncts(condition: Expr | None) -> list[Expr]:
    """Return the conditions that a conjunction consists of, in order: the inverse of :func:`all_of`."""
    if isinstance(condition, Bin) and condition.op == "and":
        return conjuncts(condition.a) + conjuncts(condition.b)
    return [] if condition is None else [condition]


def call(name: str, *args: Expr, dtype: str | None = None) -> Call:
    """Return a call of the function ``name``. ``dtype``: type of its result, by default that of the first argument."""
    return Call(name, args, dtype or args[0].dtype)


def reinterpret(dtype: str, a: Expr) -> Expr:
    """Return the bits of ``a`` as a dtype of the same width."""
    return a if a.dtype == dtype else Call(REINTERPRET, (a,), dtype)


def int_value(expr: Expr) -> int | None:
    """Return the value of an integer literal; None if the expression is no integer literal."""
    return expr.value if isinstance(expr, Const) and isinstance(expr.value, int) else None


def seq(*stmts: Stmt | None) -> Stmt:
    """Return a flat sequence of statements; None is skipped. A single statement is returned itself, without a sequence."""
    flat: list[Stmt] = []
    for stmt in stmts:
        if isinstance(stmt, Seq):
            flat.extend(stmt.body)
        elif stmt is not None:
            flat.append(stmt)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def loops(extents: Iterable[tuple[Var, int]], body: Callable[[], Stmt] | Stmt) -> Stmt:
    """Return nested serial loops around a body. ``extents``: (variable, extent) of each loop, outermost first."""
    result = body() if callable(body) else body
    for var, extent in reversed(list(extents)):
        result = For(var, as_expr(extent, var.dtype), result)
    return result


# ---- Modules of TIR: several functions, by position or by name.


class IRModule(tuple[PrimFunc, ...]):
    """Functions of unique names, in order: ``module["main"]`` and ``module[0]``. ``microc.build`` builds them together."""

    __slots__ = ()

    def __new__(cls, functions: Iterable[PrimFunc]) -> IRModule:
        """Create a module of functions. ProgramError if two have the same name."""
        module = super().__new__(cls, functions)
        names = module.names
        if len(set(names)) < len(names):
            raise ProgramError(
                f"module: two functions have the same name; got {', '.join(names)}",
                hint="rename one: schedule.renamed(name).func",
            )
        return module

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the functions, in order."""
        return tuple(func.name for func in self)

    @overload
    def __getitem__(self, key: SupportsIndex | str) -> PrimFunc: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[PrimFunc, ...]: ...
    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        for func in self:
            if func.name == key:
                return func
        raise ProgramError(f"module: there is no function {key!r}", hint=known_names_hint(key, self.names, "functions"))
