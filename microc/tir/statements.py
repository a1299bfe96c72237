"""Statements, blocks and functions of the loop IR, and functions that build them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field

from microc.errors import ProgramError
from microc.tir.expressions import REINTERPRET, Bin, Buffer, Call, Const, Expr, Node, Select, Var, as_expr, binary, node

# ---- Statements, blocks and functions of the loop IR; :mod:`microc.tir.ir` defines their meaning.

GROUPS = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
ITEMS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
"""Types of loops whose iterations are groups of an accelerator's items, or the items of a group; the meaning is that
of plain loops."""
FOR_KINDS = ("serial", "unrolled", "vectorized", "parallel", "scalable", *GROUPS, *ITEMS)
"""Types of loops. A ``scalable`` loop runs several iterations at once in vectors, as many as the machine has lanes
(:mod:`microc.tir.symbolic`)."""


class Stmt(Node):
    """A statement."""

    __slots__ = ("known_blocks", "known_read", "known_written")
    known_blocks: frozenset[str]
    known_read: frozenset[Buffer]
    known_written: frozenset[Buffer]  # all three are computed on demand: microc.tir.analysis.context


@node
class Store(Stmt):
    """``buffer[indices] = value``; the dtypes are equal."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr


ENDLESS = (1 << 31) - 1
"""Extent of a loop that a condition inside ends, and whose counter is in no address."""


@node
class For(Stmt):
    """``for var in range(extent)``; ``kind`` is one of :data:`FOR_KINDS`; annotations are (key, value) pairs."""

    var: Var
    extent: Expr
    body: Stmt
    kind: str = "serial"
    annotations: tuple[tuple[str, int | str], ...] = ()


@node
class If(Stmt):
    """``if condition: then``, with ``else: otherwise`` if there is one."""

    condition: Expr
    then: Stmt
    otherwise: Stmt | None = None


@node
class Seq(Stmt):
    """Statements in order; never nested directly in another (:func:`seq` flattens)."""

    body: tuple[Stmt, ...]


@node
class Let(Stmt):
    """Binding of a variable to a value that ``body`` uses more than once."""

    var: Var
    value: Expr
    body: Stmt


@node
class Alloc(Stmt):
    """Allocation of a buffer that exists during ``body``."""

    buffer: Buffer
    body: Stmt


@node
class Evaluate(Stmt):
    """A call for its effect (an intrinsic that writes through :class:`.expressions.AddressOf`)."""

    value: Expr


@node
class IterVar(Node):
    """A block iterator: its variable, extent (domain 0..extent), ``space`` or ``reduce``, and the value bound to it."""

    var: Var
    extent: int
    kind: str
    binding: Expr


@node
class Block(Stmt):
    """A unit of computation, as in TensorIR: instances are independent along ``space`` iterators.

    ``init`` runs where all ``reduce`` iterators are zero, before ``body``. ``predicate`` (over loop variables) guards
    instances that an imperfect split made superfluous.
    """

    name: str
    iters: tuple[IterVar, ...]
    body: Stmt
    init: Stmt | None = None
    predicate: Expr | None = None
    annotations: tuple[tuple[str, int | str], ...] = ()


@node
class PrimFunc(Node):
    """A kernel: buffer parameters (scopes ``global`` and ``const``) and a body.

    ``scalars`` are sizes that the caller passes after the buffers; none if all sizes are known.
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
    """Return the conjunction of conditions; None if there are none."""
    result: Expr | None = None
    for condition in conditions:
        result = condition if result is None else Bin("and", result, condition)
    return result


def conjuncts(condition: Expr | None) -> list[Expr]:
    """Return the terms of a conjunction (:func:`all_of`), in order."""
    if isinstance(condition, Bin) and condition.op == "and":
        return conjuncts(condition.a) + conjuncts(condition.b)
    return [] if condition is None else [condition]


def call(name: str, *args: Expr, dtype: str | None = None) -> Call:
    """Return a call; the dtype defaults to that of the first argument."""
    return Call(name, args, dtype or args[0].dtype)


def reinterpret(dtype: str, a: Expr) -> Expr:
    """Return the bits of ``a`` as a dtype of the same width."""
    return a if a.dtype == dtype else Call(REINTERPRET, (a,), dtype)


def int_value(expr: Expr) -> int | None:
    """Return the value of an integer literal, or None."""
    return expr.value if isinstance(expr, Const) and isinstance(expr.value, int) else None


def seq(*stmts: Stmt | None) -> Stmt:
    """Join statements in order, flattened; a single statement is returned itself."""
    flat: list[Stmt] = []
    for stmt in stmts:
        if isinstance(stmt, Seq):
            flat.extend(stmt.body)
        elif stmt is not None:
            flat.append(stmt)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def loops(extents: Iterable[tuple[Var, int]], body: Callable[[], Stmt] | Stmt) -> Stmt:
    """Build nested serial loops around a body, outermost first."""
    result = body() if callable(body) else body
    for var, extent in reversed(list(extents)):
        result = For(var, as_expr(extent, var.dtype), result)
    return result
