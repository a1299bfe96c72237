# SPDX-License-Identifier: Apache-2.0
"""Memory accesses of a lowered function and their order in time.

:class:`UnsafeDistanceProver` proves, for many sizes at once, at which distances between their addresses two buffers must not
overlap in memory. For one size :mod:`microc.tir.analysis.access_times` computes when each element is accessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import InternalError
from microc.tir import ir
from microc.tir.analysis.size_forms import FormConverter, FormRanges, LoopLinearForm, UnsafeDistances
from microc.tir.rewrite import accesses_of, substitute, walk_expr, walk_stmt

# ---- Accesses of single statements of a lowered function, their order within a statement, and the walk over a sequence.
#
# Time is counted in ticks. A touch is a read or a write.

TICKS = 3
"""Duration of a simple statement in ticks. It reads in tick 0 and writes in tick 1. An intrinsic that reads and writes through
pointers may still read in tick 2."""
FOLLOWED = ("global", "workspace")
"""Scopes of the buffers whose accesses are analysed. Buffers of other scopes (constants, registers) are not in the arena."""


@frozen
class BufferAccess:
    """A memory access in a statement, without the loops around it.

    It touches ``extent`` elements of ``buffer``, ``step`` elements apart, from ``indices`` on. ``tick_in_statement``:
    time of the access in ticks after the start of the statement."""

    buffer: ir.Buffer
    indices: tuple[ir.Expr, ...]
    writes: bool
    tick_in_statement: int
    extent: int = 1
    step: int = 1


@dataclass(slots=True)
class LetScope:
    """Variables bound by ``Let``, with the index expressions that replace them.

    A variable whose value depends on data is not replaced (it is mapped to itself)."""

    names: dict[ir.Var, ir.Expr]

    def bind(self, var: ir.Var, value: ir.Expr) -> None:
        """Add a let-bound variable and its value. A variable whose value depends on data is mapped to itself."""
        data = any(isinstance(x, (ir.Load, ir.Call, ir.AddressOf)) for x in walk_expr(value))
        self.names[var] = var if data else self.substitute(value)

    def substitute(self, expr: ir.Expr) -> ir.Expr:
        """Return an expression with let-bound variables replaced by their index expressions."""
        return substitute(expr, self.names) if self.names else expr

    def substitute_in_indices(self, indices: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        """Return the indices of an access with let-bound variables replaced by their index expressions."""
        return tuple(map(self.substitute, indices))


def statements_in_order(stmt: ir.Stmt) -> Iterator[ir.Stmt]:
    """Yield the statements of a sequence in program order. Loops and branches are yielded as a whole.

    A ``Let`` is yielded before the statements of its body."""
    stack = [stmt]
    while stack:
        match stack.pop():
            case ir.Seq(body):
                stack += reversed(body)
            case ir.Let(_, _, body) as let:
                yield let
                stack.append(body)
            case ir.Alloc(_, body):
                stack.append(body)
            case other:
                yield other


def accesses_of_statement(stmt: ir.Stmt, scope: LetScope) -> list[BufferAccess]:
    """Return the memory accesses of a statement, without those of its sub-statements.

    For a loop these are the accesses in its extent, for an ``If`` those in its condition. ``scope``: the enclosing
    let-bound variables, to which the variable of a ``Let`` is added."""
    match stmt:
        case ir.Store(buffer, indices, value):
            written = (
                [BufferAccess(buffer, scope.substitute_in_indices(indices), True, 1)]
                if buffer.scope in FOLLOWED
                else []
            )
            return _accesses_in_expressions((*indices, value), scope) + written
        case ir.Evaluate(value):
            return _accesses_in_expressions((value,), scope)
        case ir.Let(var, value):
            found = _accesses_in_expressions((value,), scope)
            scope.bind(var, value)
            return found
        case ir.If(condition):
            return _accesses_in_expressions((condition,), scope)
        case ir.For(_, extent):
            return _accesses_in_expressions((extent,), scope)
        case _:
            raise InternalError(f"access order: unexpected {type(stmt).__name__}; expected a lowered function")


def _accesses_in_expressions(exprs: tuple[ir.Expr, ...], scope: LetScope) -> list[BufferAccess]:
    """Return the memory accesses in the expressions of one statement.

    The operands of a call are read before the call starts to write."""
    found, writes = [], False
    for access in (access for expr in exprs for access in accesses_of(expr) if access.buffer.scope in FOLLOWED):
        indices = scope.substitute_in_indices(access.indices)
        match access:
            case ir.AddressOf(buffer, _, extent, write, step):
                found.append(BufferAccess(buffer, indices, write, 1 if write else 0, extent, step))
                writes = writes or write
            case ir.Load(buffer):
                found.append(BufferAccess(buffer, indices, False, 0))
    if not writes:
        return found
    # A call may read through a pointer until it returns, since the order of accesses inside of it is unknown. Operands that
    # are passed by value, and loads outside of the call, are read before.
    call = exprs[0]
    outermost = isinstance(call, ir.Call) and any(isinstance(a, ir.AddressOf) and a.writes for a in call.args)
    pointed = {a.buffer for a in call.args if isinstance(a, ir.AddressOf)} if isinstance(call, ir.Call) else set()
    return [
        a if a.writes or (outermost and a.buffer not in pointed) else replace(a, tick_in_statement=2) for a in found
    ]


# ---- Unsafe distances between two buffers that overlap in memory, for many sizes at once.
#
# Two buffers may share a byte of memory if the last access to the byte in the old buffer precedes its first write in the new
# buffer. :mod:`microc.tir.analysis.access_times` decides this for one size, element by element. The code below proves it for all
# sizes, from the nesting of loops. An execution of one statement is later than an execution of another in two cases: all common
# loops are in the same iteration and the statement is later in program order; or the outermost common loop whose iterations
# differ is in a later iteration. In each case the distance of the two addresses is a sum over loop variables, whose range is
# known at every size (:mod:`microc.tir.analysis.size_forms`). The result is a list of :class:`UnsafeDistances`.

_ZERO = np.zeros(1, np.int64)
Guard = tuple[ir.Expr, bool]
"""A condition, and the outcome that it must have."""


@frozen
class _LocatedAccess:
    """A memory access with its position in the function.

    ``loops``: variables of the enclosing loops. ``statement_number``: number of its statement in program order.
    ``guards``: the conditions under which it runs."""

    touch: BufferAccess
    loops: tuple[ir.Var, ...]
    statement_number: int
    guards: tuple[Guard, ...]


@frozen
class _AccessForms:
    """A memory access as linear forms over loop variables.

    ``byte_addresses``: addresses of the accessed bytes. ``nonnegative_forms``: forms that are non-negative whenever the access
    runs. ``loops``: variables of the enclosing loops. ``program_order``: position in program order."""

    byte_addresses: LoopLinearForm
    nonnegative_forms: tuple[LoopLinearForm, ...]
    loops: tuple[ir.Var, ...]
    program_order: tuple[int, int]
    writes: bool


class UnsafeDistanceProver:
    """Proofs of the distances at which two buffers of a lowered function must not overlap in memory.

    ``sizes``: values of the function's symbolic sizes, by name. Element k of all arrays is the k-th combination of sizes."""

    def __init__(self, func: ir.PrimFunc, sizes: Mapping[str, Array]) -> None:
        self.forms = FormConverter(sizes)
        self._statement_number = 0
        loops = (s for s in walk_stmt(func.body) if isinstance(s, ir.For))
        self._ordered = all(loop.kind != "parallel" for loop in loops)
        followed = {b for b in func.params if b.scope in FOLLOWED}
        found = [
            x for x in self._iterate_located_accesses(func.body, LetScope({}), (), ()) if x.touch.buffer in followed
        ]
        self._places: dict[ir.Buffer, list[_AccessForms]] = {}
        # The conversion of an address may split a loop variable into two digits, which changes the forms of other addresses.
        # So the conversion is repeated until no further variable is split.
        digits = -1
        while digits < len(self.forms.digits):
            digits = len(self.forms.digits)
            self._places = {b: [] for b in followed}
            for x in found:
                self._places[x.touch.buffer].append(self._access_forms(x))

    def find_unsafe_distances(self, old: ir.Buffer, new: ir.Buffer) -> list[UnsafeDistances]:
        """Return the unsafe distances from ``old`` to ``new``.

        At these distances some byte of ``old`` is accessed after ``new`` has been written to the same memory."""
        if not self._ordered:
            return [UnsafeDistances(-new.nbytes, old.nbytes)]
        touched, written = self._places[old], [place for place in self._places[new] if place.writes]
        found = [
            self._find_conflict_of_accesses(a, b, _loops_around_both(a, b), None)
            for a in touched
            for b in written
            if a.program_order >= b.program_order
        ]
        for a in self._merge_accesses_of_unrolled_loop(touched, old.name):
            for b in self._merge_accesses_of_unrolled_loop(written, new.name):
                common = _loops_around_both(a, b)
                found += [self._find_conflict_of_accesses(a, b, common[:k], var) for k, var in enumerate(common)]
        return list(dict.fromkeys(conflict for conflict in found if conflict is not None))

    # ------------------------------------------------------------ touches

    def _iterate_located_accesses(
        self, stmt: ir.Stmt, around: LetScope, loops: tuple[ir.Var, ...], guards: tuple[Guard, ...]
    ) -> Iterator[_LocatedAccess]:
        """Yield all accesses of a statement and its sub-statements, with their positions. Loop variables get unique names."""
        scope = LetScope(dict(around.names))
        for item in statements_in_order(stmt):
            self._statement_number += 1
            own, number = accesses_of_statement(item, scope), self._statement_number
            match item:
                case ir.If(condition, then, otherwise):
                    decided = scope.substitute(condition)
                    yield from self._iterate_located_accesses(then, scope, loops, (*guards, (decided, True)))
                    if otherwise is not None:
                        yield from self._iterate_located_accesses(otherwise, scope, loops, (*guards, (decided, False)))
                case ir.For(var, extent, body):
                    unique, count = ir.Var(f"{var.name}.{number}"), scope.substitute(extent)
                    self.forms.record_loop(unique, count)
                    inner = LetScope({**scope.names, var: unique})
                    yield from self._iterate_located_accesses(
                        body, inner, (*loops, unique), (*guards, (unique < count, True))
                    )
                    # C evaluates the extent for the last time after the last iteration.
                    self._statement_number = number = self._statement_number + 1
            for touch in own:
                yield _LocatedAccess(touch, loops, number, guards)

    def _access_forms(self, located: _LocatedAccess) -> _AccessForms:
        """Return an access as linear forms."""
        loops = tuple(digit for var in located.loops for digit in self.forms.digit_variables(var))
        facts = tuple(fact for guard in located.guards for fact in self.forms.facts_of_condition(*guard) if fact.terms)
        order = located.statement_number, located.touch.tick_in_statement
        return _AccessForms(self._byte_addresses(located.touch), facts, loops, order, located.touch.writes)

    def _byte_addresses(self, touch: BufferAccess) -> LoopLinearForm:
        """Return the byte addresses of an access as a linear form. If they depend on data, the form covers the whole
        buffer."""
        buffer, width = touch.buffer, dtypes.nbytes(touch.buffer.dtype)
        total = LoopLinearForm({}, _ZERO, _ZERO + (touch.extent - 1) * touch.step * width + width - 1)
        for index, stride in zip(touch.indices, buffer.strides, strict=True):
            form = self.forms.form_of(index)
            if form is None:
                return LoopLinearForm({}, _ZERO, _ZERO + buffer.nbytes - 1)
            total = total.plus(form.times(_ZERO + stride * width))
        return total

    # ------------------------------------------------------------ distances

    def _merge_accesses_of_unrolled_loop(
        self, accesses: Sequence[_AccessForms], loop_name: str
    ) -> Iterator[_AccessForms]:
        """Yield the accesses, with those in the same loops that differ only by a constant merged into one.

        The merged access is in an additional loop, as if the loop had not been unrolled. ``loop_name``: part of the name of
        this loop's variable."""
        found: dict[object, list[_AccessForms]] = {}
        for place in accesses:
            found.setdefault(
                (place.loops, place.byte_addresses.slopes, frozenset(f.key for f in place.nonnegative_forms)), []
            ).append(place)
        for k, group in enumerate(found.values()):
            unrolled = ir.Var(f"{k} of {loop_name}")
            bytes_, self.forms.extents[unrolled] = LoopLinearForm.cover_forms(
                [place.byte_addresses for place in group], unrolled
            )
            yield replace(group[0], byte_addresses=bytes_, loops=(*group[0].loops, unrolled))

    def _find_conflict_of_accesses(
        self, a: _AccessForms, b: _AccessForms, shared_loops: tuple[ir.Var, ...], later_loop: ir.Var | None
    ) -> UnsafeDistances | None:
        """Return the unsafe distances that follow from two accesses; None if there are none.

        Both accesses are in the same iterations of ``shared_loops``. If ``later_loop`` is not None, access ``a`` is in a later
        iteration of this loop than access ``b``. All other loops are independent of each other."""
        extents = self.forms.extents
        mine, other = (
            {var: _form_of_variable(var) for var in shared_loops},
            {var: _form_of_variable(var) for var in shared_loops},
        )
        reach = {var: self.forms.largest_value(var) for var in shared_loops if extents[var] is not None}
        for names, place, mark in ((mine, a, "'"), (other, b, '"')):
            for var in place.loops[len(shared_loops) :]:
                if extents[var] is not None:
                    names[var] = _form_of_variable(ir.Var(var.name + mark))
                    reach[ir.Var(var.name + mark)] = self.forms.largest_value(var)
        ranges = FormRanges(reach)
        if later_loop is not None and (extent := extents[later_loop]) is not None:
            mine[later_loop], other[later_loop] = ranges.later_and_earlier_iteration(later_loop, extent)
        facts = [
            *(f.substitute(mine) for f in a.nonnegative_forms),
            *(f.substitute(other) for f in b.nonnegative_forms),
        ]
        return ranges.unsafe_distances(
            a.byte_addresses.substitute(mine).plus(b.byte_addresses.substitute(other).times(_ZERO - 1)), facts
        )


def _form_of_variable(var: ir.Var) -> LoopLinearForm:
    """Return the linear form that consists of a variable alone."""
    return LoopLinearForm({var: _ZERO + 1}, _ZERO, _ZERO)


def _loops_around_both(a: _AccessForms, b: _AccessForms) -> tuple[ir.Var, ...]:
    """Return the variables of the loops that enclose both accesses, outermost first."""
    pairs = zip(a.loops, b.loops, strict=False)
    return tuple(x for x, y in takewhile(lambda pair: pair[0] == pair[1], pairs))
