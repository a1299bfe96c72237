"""What compilers move out of loops: values that every iteration would compute alike.

A value leaves a loop that changes nothing of what it is made of. Names and loop variables change where they get their value,
cells of register tiles in loops that write them, memory in loops that write any: pointers of a kernel may overlap, but for
constants, which nobody writes. What a condition guards stays behind the condition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from microc.isa import SCALAR
from microc.schedule.cost_expr import Selector
from microc.tir import ir
from microc.tir.facts import buffers_written
from microc.tir.rewrite import accesses_of, free_vars, map_children

_PURE = frozenset({*SCALAR, ir.REINTERPRET})


@dataclass(slots=True)
class _Level:
    """A loop, or the function: what it writes, and the names of values that are computed once an iteration of it."""

    written: frozenset[ir.Buffer]
    memory: bool
    names: dict[ir.Expr, ir.Var] = field(default_factory=dict)


class Invariants:
    """Names for values by the level that they are computed at: 0 is the function's body, others are loops from the outermost on.

    ``charge`` is told of every new name, with its value and its level.
    """

    def __init__(self, selector: Selector, charge: Callable[[ir.Var, ir.Expr, int], None]) -> None:
        self.selector = selector
        self.charge = charge
        self.guarded = 0
        self.levels: list[_Level] = []
        self.homes: dict[ir.Var, int] = {}
        self.known: dict[ir.Var, ir.Var] = {}

    def enter(self, var: ir.Var | None, body: ir.Stmt) -> None:
        """A loop begins, or the function."""
        written = buffers_written(body)
        self.levels.append(_Level(written, any(b.scope != "register" for b in written)))
        if var is not None:
            self.homes[var] = self.here

    def leave(self) -> None:
        self.levels.pop()

    @property
    def here(self) -> int:
        return len(self.levels) - 1

    def define(self, var: ir.Var, value: ir.Expr) -> ir.Expr | None:
        """A name of the source: its value as :meth:`settle` leaves it, or None where that has left its loop with the name."""
        moved = self.settle(value, self.here)
        self.known.pop(var, None)
        if isinstance(moved, ir.Var) and not isinstance(value, ir.Var):
            self.known[var] = moved
            return None
        self.homes[var] = self.here
        return moved

    def settle(self, expr: ir.Expr, level: int) -> ir.Expr:
        """``expr``, computed at a level, with names for its largest parts that are computed further out."""
        settled, home = self._visit(expr, level)
        return self._outside(settled, home) if home < level else settled

    def _visit(self, expr: ir.Expr, level: int) -> tuple[ir.Expr, int]:
        """An expression with what leaves the level named, and the level that itself is computed at."""
        match expr:
            case ir.Const():
                return expr, self.guarded
            case ir.Var():
                name = self.known.get(expr, expr)
                return name, max(self.homes.get(name, 0), self.guarded)
            case ir.Load() | ir.AddressOf():
                return expr, self._home_of_access(expr)
        homes: list[int] = []

        def visit(child: ir.Expr) -> ir.Expr:
            settled, home = self._visit(child, level)
            homes.append(home)
            return settled

        settled = map_children(expr, visit)
        home = max(homes, default=self.guarded)
        if home < level and not (isinstance(expr, ir.Call) and expr.name not in _PURE):
            return settled, home
        parts = iter(homes)
        return map_children(settled, lambda part: self._part(settled, part, next(parts), level)), level

    def _part(self, whole: ir.Expr, part: ir.Expr, home: int, level: int) -> ir.Expr:
        """A part of what stays. A choice's loads stay behind its condition."""
        behind = isinstance(whole, ir.Select) and part is not whole.condition and accesses_of(part)
        if home == level or behind or isinstance(part, ir.AddressOf):
            return part
        return self._outside(part, home)

    def _outside(self, expr: ir.Expr, home: int) -> ir.Expr:
        if not self.selector.count(expr):
            return expr
        names = self.levels[home].names
        if expr not in names:
            names[expr] = name = ir.Var(f"&{len(self.homes)}", expr.dtype)
            self.homes[name] = home
            self.charge(name, expr, home)
        return names[expr]

    def _home_of_access(self, access: ir.Load | ir.AddressOf) -> int:
        """The level that an element, or an address, is the same within."""
        home = max((self.homes.get(self.known.get(var, var), 0) for var in free_vars(access)), default=0)
        looked_up = (inner for index in access.indices for inner in accesses_of(index))
        home = max(home, *map(self._home_of_access, looked_up), 0)
        for level in range(self.here, max(home, self.guarded), -1):
            at = self.levels[level]
            if access.buffer in at.written or (at.memory and access.buffer.scope not in ("const", "register")):
                return level
        return max(home, self.guarded)
