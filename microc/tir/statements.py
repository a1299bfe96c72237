"""Statements, blocks and functions of the loop IR; :mod:`microc.tir.ir` says what they mean."""

from __future__ import annotations

from dataclasses import field

from microc.tir.expressions import Buffer, Expr, Var
from microc.tir.node import Node, node

GROUPS = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
ITEMS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
"""Kinds of loops whose turns are groups of an accelerator's items, or a group's items; they mean what plain loops mean."""
FOR_KINDS = ("serial", "unrolled", "vectorized", "parallel", "scalable", *GROUPS, *ITEMS)
"""A ``scalable`` loop takes several iterations at once in vectors, as many as the machine has lanes for
(:mod:`microc.tir.strips`)."""


class Stmt(Node):
    """A statement."""

    __slots__ = ("known_blocks", "known_read", "known_written")
    known_blocks: frozenset[str]
    known_read: frozenset[Buffer]
    known_written: frozenset[Buffer]  # all three found by microc.tir.facts when they are asked for


@node
class Store(Stmt):
    """``buffer[indices] = value``; the dtypes are equal."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr


ENDLESS = (1 << 31) - 1
"""The extent of a loop that a condition inside ends, and that does not address by its turn."""


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
    condition: Expr
    then: Stmt
    otherwise: Stmt | None = None


@node
class Seq(Stmt):
    """Statements in order; never nested directly in another (:func:`seq` flattens)."""

    body: tuple[Stmt, ...]


@node
class Let(Stmt):
    """A name for a value that is used more than once."""

    var: Var
    value: Expr
    body: Stmt


@node
class Alloc(Stmt):
    """A buffer that lives during ``body``."""

    buffer: Buffer
    body: Stmt


@node
class Evaluate(Stmt):
    """A call for its effect (an intrinsic that writes through :class:`AddressOf`)."""

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
    """One kernel: buffer parameters (scopes ``global`` and ``const``), a body.

    ``scalars`` are sizes that the caller gives, behind the buffers; none where all sizes are known.
    """

    name: str
    params: tuple[Buffer, ...]
    body: Stmt
    annotations: tuple[tuple[str, int | str], ...] = ()
    scalars: tuple[Var, ...] = field(default=(), repr=False)
