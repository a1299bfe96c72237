# SPDX-License-Identifier: Apache-2.0
"""Forecast of the instructions of a schedule before it is lowered.

A forecast takes a thirtieth of the time of lowering a schedule and estimating its cost. It shows which candidates cannot
be the best, so that only the others are lowered (:mod:`microc.schedule.choose`)."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from microc.schedule.cost.operation_counts import Selector
from microc.target import Target
from microc.tir import ir
from microc.tir.lower.loop_splitting import only_moves_data
from microc.tir.names import LANES, MOVED, PRODUCT, STRIDED, UNIT, WINDOW, lanes_of
from microc.tir.rewrite import children, free_vars, stmt_children, walk_expr, walk_stmt

LOOP_CONTROL = 2
"""Number of instructions that control one iteration of a loop: they advance a counter or a pointer, and branch."""
COPIED_ELEMENTS = 4
"""Number of elements that an instruction copies at most: the bytes of a word."""
PRODUCT_LANES = 16
"""Number of products that an instruction computes at most: the bytes of a vector."""


def forecast_instructions(func: ir.PrimFunc, target: Target) -> float:
    """Return the approximate number of instructions that one call of a scheduled function executes.

    Operations, loads and stores are counted once for each combination of the loops on which they depend, as if
    everything that does not change was hoisted or shared. Address arithmetic, spills and predicates of blocks are not
    counted. On the corpus the forecast is 0.5 to 1.2 times the estimate of the lowered function; where instructions of
    a vector or tensor unit replace whole loops, it is less."""
    walker = _Forecaster(target)
    walker.visit(func.body)
    return walker.instructions


class _EnclosingLoop(NamedTuple):
    """A loop around the current statement.

    ``trip_count``: number of times that its body is executed in each execution of the loop; an instruction may execute
    several of its ``extent`` iterations. ``unrolled``: True if its iterations become a sequence of statements, which
    share equal values."""

    var: ir.Var
    extent: int
    trip_count: float
    unrolled: bool


Axis = frozenset[ir.Var]
"""Variables of loops on whose sum a value depends. An unrolled window of 3 taps over 4 pixels loads 6 different elements."""
Axes = frozenset[Axis]
"""Everything on which a value depends."""


class _Forecaster:
    """Visitor that adds up instructions.

    ``loops``: loops around the current statement, outermost first. ``in_lanes``: True inside of a vectorised loop,
    whose operations are one instruction each. ``loops_by_var``: variables of the loops on which a variable depends.
    ``axes_by_value``: dependences of the values that the current block has computed."""

    def __init__(self, target: Target) -> None:
        self.selector = Selector(target)
        self.instructions = 0.0
        self.loops: list[_EnclosingLoop] = []
        self.in_lanes = False
        self.loops_by_var: dict[ir.Var, Axis] = {}
        self.axes_by_value: dict[ir.Expr, Axes] = {}

    def visit(self, stmt: ir.Stmt) -> None:
        """Add the instructions of a statement."""
        match stmt:
            case ir.For() if _only_copies(stmt):
                self.instructions += self._iterations() * _stored_elements(stmt) / COPIED_ELEMENTS
            case ir.For():
                self._visit_loop(stmt)
            case ir.Block():
                self.loops_by_var |= {axis.var: self._loops_of(axis.binding) for axis in stmt.iters}
                self.axes_by_value.clear()
                outside, self.instructions = self.instructions, 0.0
                self.visit(stmt.body)
                self.instructions = outside + self._executed_share(stmt) * self.instructions
            case ir.Store(buffer, indices, value):
                if buffer.scope != "register":
                    self.instructions += self._executions(self._axes_of(*indices))
                self._visit_value(value)
            case ir.Evaluate(value):
                self._visit_value(value)
            case ir.Let(var, value, body):
                self._visit_value(value)
                self.loops_by_var[var] = self._loops_of(value)
                self.visit(body)
            case _:
                for child in stmt_children(stmt):
                    self.visit(child)

    def _visit_loop(self, loop: ir.For) -> None:
        """Add the instructions of a loop: its body, and the control of its iterations."""
        notes = dict(loop.annotations)
        extent = ir.int_value(loop.extent) or 1
        trip_count, unrolled = float(1 if extent == ir.ENDLESS else extent), loop.kind == "unrolled"
        if notes.keys() & {UNIT, WINDOW}:
            trip_count, unrolled = 1.0, True
        elif PRODUCT in notes:
            inside = any(isinstance(s, ir.For) and PRODUCT in dict(s.annotations) for s in walk_stmt(loop.body))
            trip_count, unrolled = trip_count if inside else max(1.0, trip_count / PRODUCT_LANES), True
        elif LANES in notes:
            trip_count = max(1.0, trip_count / lanes_of(loop)[0].count)
        elif loop.kind == "vectorized" or notes.keys() & {MOVED, STRIDED}:
            trip_count = max(1.0, trip_count / COPIED_ELEMENTS)
        self.loops.append(_EnclosingLoop(loop.var, extent, trip_count, unrolled))
        self.loops_by_var[loop.var] = frozenset((loop.var,))
        if trip_count > 1 and not unrolled:
            self.instructions += LOOP_CONTROL * self._iterations()
        outside, self.in_lanes = self.in_lanes, self.in_lanes or not notes.keys().isdisjoint((LANES, PRODUCT))
        self.visit(loop.body)
        self.in_lanes = outside
        self.loops.pop()

    def _visit_value(self, expr: ir.Expr) -> Axes:
        """Add the instructions that compute a value, and return its dependences."""
        if isinstance(expr, (ir.Const, ir.Var)):
            return self._axes_of(expr)
        if expr in self.axes_by_value:
            return self.axes_by_value[expr]
        own = 0.0
        match expr:
            case ir.Load(buffer) if buffer.scope == "register":
                axes = frozenset(frozenset((loop.var,)) for loop in self.loops)
            case ir.Load(_, indices):
                axes, own = self._axes_of(*indices), 1.0
            case ir.AddressOf(_, indices):
                axes = self._axes_of(*indices)
            case ir.Select(condition, a, b) if not any(isinstance(x, ir.Load) for x in walk_expr(condition)):
                axes = self._visit_value(a) | self._visit_value(b)  # lowering splits loops at such a condition
            case _:
                axes = frozenset[Axis]().union(*map(self._visit_value, children(expr)))
                own = self._instructions_without_operands(expr)
        self.instructions += own * self._executions(axes)
        self.axes_by_value[expr] = axes
        return axes

    def _instructions_without_operands(self, expr: ir.Expr) -> float:
        """Return the number of instructions that compute a value from its operands."""
        if self.in_lanes:
            return float(not isinstance(expr, ir.Cast))  # loads widen, and stores narrow
        counts = map(self.selector.count, (expr, *children(expr)))
        whole, *operands = map(self.selector.core.instructions, counts)
        return max(0.0, whole - sum(operands))

    def _executed_share(self, block: ir.Block) -> float:
        """Return the fraction of the iterations of the loops around a block that execute it. It is less than 1 if the
        last tile of some axis is a partial one."""
        extents = {loop.var: loop.extent for loop in self.loops}
        iterations = (prod(extents.get(var, 1) for var in self._loops_of(axis.binding)) for axis in block.iters)
        return prod(min(1.0, axis.extent / n) for axis, n in zip(block.iters, iterations, strict=True))

    def _loops_of(self, expr: ir.Expr) -> Axis:
        """Return the variables of the loops on which an expression depends."""
        return frozenset[ir.Var]().union(*(self.loops_by_var.get(var, frozenset()) for var in free_vars(expr)))

    def _axes_of(self, *indices: ir.Expr) -> Axes:
        """Return the dependences of an access to a buffer: an axis for each index."""
        return frozenset(map(self._loops_of, indices)) - {frozenset()}

    def _iterations(self) -> float:
        """Return the number of times that the current statement is executed."""
        return prod(loop.trip_count for loop in self.loops)

    def _executions(self, axes: Axes) -> float:
        """Return the number of times that a value with the dependences ``axes`` is computed.

        It is computed in the innermost loop on which it depends. Equal values in unrolled loops are computed once."""
        loops = frozenset[ir.Var]().union(*axes)
        level = max((k for k, loop in enumerate(self.loops) if loop.var in loops and not loop.unrolled), default=-1)
        executions, unrolled = 1.0, dict[ir.Var, float]()
        for k, loop in enumerate(self.loops):
            if not loop.unrolled and k <= level:
                executions *= loop.trip_count
            elif loop.unrolled and loop.var in loops:
                unrolled[loop.var] = loop.trip_count
        sums = [axis & unrolled.keys() for axis in axes]
        if sum(map(len, sums)) > len(unrolled):  # some loop is in several axes, so that all combinations differ
            return executions * prod(unrolled.values())
        return executions * prod(sum(unrolled[var] - 1 for var in part) + 1 for part in sums)


def _only_copies(loop: ir.For) -> bool:
    """Test whether a loop only copies elements or fills a buffer, so that several elements may be moved at once."""
    leaves = [s for s in walk_stmt(loop) if isinstance(s, (ir.Store, ir.Evaluate))]
    return all(isinstance(s, ir.Store) and s.buffer.scope != "register" and only_moves_data(s.value) for s in leaves)


def _stored_elements(stmt: ir.Stmt) -> float:
    """Return the number of elements that a statement stores."""
    if isinstance(stmt, ir.Store):
        return 1.0
    trip_count = (ir.int_value(stmt.extent) or 1) if isinstance(stmt, ir.For) else 1
    return trip_count * sum(map(_stored_elements, stmt_children(stmt)))
