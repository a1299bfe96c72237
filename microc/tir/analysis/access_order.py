"""Accesses of a lowered function and their order in time.

:func:`access_times` computes, for one size, when each element of a buffer is first written and last accessed.
:class:`Precedence` proves for many sizes at once which distances between two buffers are unsafe if they share memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import prod
from types import MappingProxyType

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import InternalError
from microc.tir import ir
from microc.tir.analysis.size_forms import Conflict, Form, FormConverter, FormRanges
from microc.tir.rewrite import free_vars, substitute, walk_expr, walk_stmt

# ---- Accesses of single statements of a lowered function, their order within a statement, and the walk over a
# sequence.

TICKS = 3
"""Ticks of a statement. It reads (0), then writes (1). An intrinsic that reads and writes through pointers may read
to its end (2)."""
FOLLOWED = ("global", "workspace")
"""Scopes whose accesses matter; constants and registers are not in the arena."""
_EXPRESSIONS = (ir.Load, ir.AddressOf, ir.Const, ir.Var, ir.Bin, ir.Un, ir.Cast, ir.Select, ir.Call)


@frozen
class Touch:
    """A memory access as it stands in a statement: ``extent`` elements of a buffer from an index on, ``step`` apart,
    ``tick`` ticks after the statement starts."""

    buffer: ir.Buffer
    indices: tuple[ir.Expr, ...]
    write: bool
    tick: int
    extent: int = 1
    step: int = 1


@dataclass(slots=True)
class LetScope:
    """Names bound by ``Let``, with the index expressions that they stand for. A name whose value depends on data stands
    for itself."""

    names: dict[ir.Var, ir.Expr]

    def name(self, var: ir.Var, value: ir.Expr) -> None:
        """Add a let-bound name; one whose value depends on data stands for itself."""
        data = any(isinstance(x, (ir.Load, ir.Call, ir.AddressOf)) for x in walk_expr(value))
        self.names[var] = var if data else self.expr(value)

    def expr(self, expr: ir.Expr) -> ir.Expr:
        """Replace let-bound names in an expression by the index expressions that they stand for."""
        return substitute(expr, self.names) if self.names else expr

    def indices(self, indices: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        """Replace let-bound names in the indices of an access."""
        return tuple(map(self.expr, indices))


def statements_in_order(stmt: ir.Stmt) -> Iterator[ir.Stmt]:
    """Yield statements in order of execution, without entering loops and branches; a ``Let`` comes before its body."""
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


def own_touches(stmt: ir.Stmt, scope: LetScope) -> list[Touch]:
    """Return the accesses of a statement itself: of a loop those of its extent, of an ``If`` those of its condition. A
    name that the statement binds is added to the scope."""
    match stmt:
        case ir.Store(buffer, indices, value):
            written = [Touch(buffer, scope.indices(indices), True, 1)] if buffer.scope in FOLLOWED else []
            return _expression_touches((*indices, value), scope) + written
        case ir.Evaluate(value):
            return _expression_touches((value,), scope)
        case ir.Let(var, value):
            found = _expression_touches((value,), scope)
            scope.name(var, value)
            return found
        case ir.If(condition):
            return _expression_touches((condition,), scope)
        case ir.For(_, extent):
            return _expression_touches((extent,), scope)
        case _:
            raise InternalError(f"access order: unexpected {type(stmt).__name__}; expected a lowered function")


def _expression_touches(exprs: tuple[ir.Expr, ...], scope: LetScope) -> list[Touch]:
    """Return the accesses of one statement's expressions. Operands of a call are read before it starts to write."""
    found, writes = [], False
    for x in (x for expr in exprs for x in walk_expr(expr)):
        match x:
            case ir.Load(buffer, indices) if buffer.scope in FOLLOWED:
                found.append(Touch(buffer, scope.indices(indices), False, 0))
            case ir.AddressOf(buffer, indices, extent, write, step) if buffer.scope in FOLLOWED:
                found.append(Touch(buffer, scope.indices(indices), write, 1 if write else 0, extent, step))
                writes = writes or write
            case x if not isinstance(x, _EXPRESSIONS):
                raise InternalError(f"access order: unknown type of expression; got {type(x).__name__}")
    if not writes:
        return found
    # A call may read through a pointer until it ends, since nothing is known about the order inside it. Its value
    # operands, and loads outside of it, are read before.
    call = exprs[0]
    outermost = isinstance(call, ir.Call) and any(isinstance(a, ir.AddressOf) and a.writes for a in call.args)
    pointed = {a.buffer for a in call.args if isinstance(a, ir.AddressOf)} if isinstance(call, ir.Call) else set()
    return [a if a.write or (outermost and a.buffer not in pointed) else replace(a, tick=2) for a in found]


# ---- Times of the first write and the last access of every element, on one clock.
#
# A lowered function runs its statements in a fixed order, so the time of a statement is an affine function of the loop
# variables around it. Every leaf statement takes :data:`TICKS`, a loop its body's time multiplied by its iterations.
# Two buffers may share a byte if the last access to it as part of one precedes the first write to it as part of the
# other (:mod:`microc.plan.liveness`).
#
# Unknowns are resolved conservatively: a guarded access counts wherever its indices are within the buffer, an index
# that depends on data reaches its whole axis, and a loop of variable extent runs to its bound. In a function with a
# parallel loop or one without a bound, no access is known to precede another. The computation is vectorised with numpy;
# there is no Python loop over elements.

NEVER_WRITTEN = np.iinfo(np.int64).max
"""First write of an element that is not written."""
NEVER_TOUCHED = -1
"""Last access of an element that is not accessed."""
_AT_ONCE = 1 << 20
"""Executions of an access that are computed in one array, which bounds memory."""
_MOST = 1 << 24
"""Executions of an access above which its address is not computed: it counts as an access to the whole buffer."""


@frozen
class AccessTimes:
    """Ticks of the first write (:data:`NEVER_WRITTEN` if none) and of the last access (:data:`NEVER_TOUCHED` if none) of
    each element of a buffer, int64."""

    first_write: Array
    last_touch: Array


@frozen
class _TimedLoop:
    """A loop around an access: ``span`` ticks pass between the starts of two iterations."""

    var: ir.Var
    extent: int
    span: int


@frozen
class _TimedAccess:
    """An access at tick ``at`` plus, for every loop around it, ``span`` times its iteration; loops innermost first."""

    touch: Touch
    at: int
    loops: tuple[_TimedLoop, ...] = ()


def access_times(func: ir.PrimFunc) -> dict[ir.Buffer, AccessTimes]:
    """Compute the ticks of the first write and the last access of every element of the parameters of a lowered function,
    except constants."""
    found = {
        b: AccessTimes(np.full(b.size, NEVER_WRITTEN, np.int64), np.full(b.size, NEVER_TOUCHED, np.int64))
        for b in func.params
        if b.scope in FOLLOWED
    }
    loops = [s for s in walk_stmt(func.body) if isinstance(s, ir.For)]
    if any(loop.kind == "parallel" or _max_trip_count(loop.extent) is None for loop in loops):
        return {b: AccessTimes(np.zeros_like(t.first_write), np.zeros_like(t.last_touch)) for b, t in found.items()}
    _, accesses = _timed_accesses(func.body, LetScope({}))
    for access in accesses:
        if access.touch.buffer in found:
            _record_access(access, found[access.touch.buffer])
    return found


# ---------------------------------------------------------------- all accesses of a function, with their loops

Timed = tuple[int, list[_TimedAccess]]


def _timed_accesses(stmt: ir.Stmt, outer_scope: LetScope) -> Timed:
    """Return the duration of a statement in ticks, and its accesses with ticks from its start."""
    scope = LetScope(dict(outer_scope.names))
    parts: list[Timed] = []
    for item in statements_in_order(stmt):
        own: Timed = TICKS, [_TimedAccess(touch, touch.tick) for touch in own_touches(item, scope)]
        match item:
            case ir.If(_, then, otherwise):
                parts += [own, _timed_accesses(then, scope)]
                parts += [_timed_accesses(otherwise, scope)] if otherwise else []
            case ir.For():
                parts += [
                    _timed_loop_accesses(item, scope),
                    own,
                ]  # C evaluates the extent before every iteration, for the last time at the end
            case _:
                parts.append(own)
    return _concatenate_with_times(parts)


def _concatenate_with_times(parts: Iterable[Timed]) -> Timed:
    """Concatenate statements with their accesses: the accesses of each are moved behind the statements before it."""
    total, found = 0, []
    for duration, accesses in parts:
        found += [replace(access, at=access.at + total) for access in accesses] if total else accesses
        total += duration
    return total, found


def _timed_loop_accesses(loop: ir.For, scope: LetScope) -> Timed:
    """Return the duration of a loop in ticks, and the accesses in its body."""
    extent = _max_trip_count(loop.extent) or 0
    span, inner = _timed_accesses(loop.body, LetScope({**scope.names, loop.var: loop.var}))
    timed = _TimedLoop(loop.var, extent, span)
    return extent * span, [replace(access, loops=(*access.loops, timed)) for access in inner] if extent else []


def _max_trip_count(extent: ir.Expr) -> int | None:
    """Return the largest number of iterations of a loop of this extent; None if unknown."""
    if isinstance(extent, ir.Bin) and extent.op == "min":
        return min((n for n in (_max_trip_count(extent.a), _max_trip_count(extent.b)) if n is not None), default=None)
    value = ir.int_value(extent)
    if value == ir.ENDLESS:
        return 2  # iterations access the same elements: the first and the last determine all times
    return None if value is None else max(value, 0)


# ---------------------------------------------------------------- addresses and times as arrays


def _record_access(access: _TimedAccess, times: AccessTimes) -> None:
    """Update the times of all elements of one access: a write counts at its earliest tick, any access at its latest."""
    touch, buffer = access.touch, access.touch.buffer
    for grid, rank in _index_grids(access):
        flat: Array = _reshape_to_axis(np.arange(touch.extent) * touch.step, rank - 1, rank)
        inside: Array = np.ones((1,) * rank, bool)
        for axis, (index, size, stride) in enumerate(zip(touch.indices, buffer.shape, buffer.strides, strict=True)):
            value = _evaluate_index(index, grid) if grid is not None else None
            if value is None:
                value = _reshape_to_axis(np.arange(size), rank - 2 - axis, rank)
            inside = inside & (value >= 0) & (value < size)
            flat = flat + value * stride
        inside = inside & (flat < buffer.size)
        if touch.write:
            _update_times(times.first_write, np.minimum, flat, inside, _access_ticks(access, grid or {}, last=False))
        _update_times(times.last_touch, np.maximum, flat, inside, _access_ticks(access, grid or {}, last=True))


Grid = Mapping[ir.Var, Array]


def _index_grids(access: _TimedAccess) -> Iterator[tuple[Grid | None, int]]:
    """Yield the values of the loop variables in the address as arrays, each along an axis of its own, in pieces of bounded
    size; and the rank of these arrays.

    After the axes of loops there is one for every index, in case it is unknown, and one for the elements from an
    address on. The grid is None if it would be too large."""
    names = {var for index in access.touch.indices for var in free_vars(index)}
    used = [loop for loop in reversed(access.loops) if loop.var in names]
    rank = len(used) + len(access.touch.indices) + 1
    points = prod(loop.extent for loop in used) * access.touch.extent * _unknown_element_count(access.touch, used)
    if points > _MOST:
        yield None, rank
        return
    first = used[0].extent if used else 1
    step = max(1, first * _AT_ONCE // points) if points else 1
    fixed = {t.var: _reshape_to_axis(np.arange(t.extent), axis, rank) for axis, t in enumerate(used)}
    for start in range(0, first, step):
        # The first axis is split into pieces, to bound the memory of each.
        piece = {used[0].var: _reshape_to_axis(np.arange(start, min(start + step, first)), 0, rank)} if used else {}
        yield {**fixed, **piece}, rank


def _unknown_element_count(touch: Touch, address_loops: Iterable[_TimedLoop]) -> int:
    """Return the number of elements along the axes whose index depends on data.

    Any of them may be accessed in every iteration of ``address_loops``."""
    start = {loop.var: np.zeros((), np.int64) for loop in address_loops}
    axes = zip(touch.indices, touch.buffer.shape, strict=True)
    return prod(size for index, size in axes if _evaluate_index(index, start) is None)


def _access_ticks(access: _TimedAccess, grid: Grid, *, last: bool) -> Array:
    """Return the tick of the access at every point of the grid, in the last (or first) iteration of loops that its address
    does not depend on."""
    when: Array = np.array(access.at, np.int64)
    for loop in access.loops:
        if loop.var in grid:
            when = when + grid[loop.var] * loop.span
        elif last:
            when = when + (loop.extent - 1) * loop.span
    return when


def _update_times(times: Array, better: np.ufunc, flat_indices: Array, in_bounds: Array, ticks: Array) -> None:
    """Update the times of the accessed elements that are inside of the buffer: the ``better`` tick remains.

    ``better``: ``np.minimum`` or ``np.maximum``."""
    flat_indices, in_bounds, ticks = (part.reshape(-1) for part in np.broadcast_arrays(flat_indices, in_bounds, ticks))
    if not in_bounds.all():
        flat_indices, ticks = flat_indices[in_bounds], ticks[in_bounds]
    better.at(times, flat_indices, ticks)


def _reshape_to_axis(values: Array, axis: int, rank: int) -> Array:
    """Reshape a vector to one axis of a grid of ``rank`` axes, as int64."""
    shape = [1] * rank
    shape[axis] = -1
    return values.astype(np.int64).reshape(shape)


def _evaluate_index(expr: ir.Expr, grid: Grid) -> Array | None:
    """Evaluate an index over the grid; None if it depends on data."""
    match expr:
        case ir.Const(int() as value):
            return np.array(value, np.int64)
        case ir.Var():
            return grid.get(expr)
        case ir.Bin(op, a, b) if op in _OPERATORS:
            x, y = _evaluate_index(a, grid), _evaluate_index(b, grid)
            return None if x is None or y is None else _OPERATORS[op](x, y)
        case _:
            return None


_OPERATORS: Mapping[str, Callable[[Array, Array], Array]] = MappingProxyType(
    {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "floordiv": np.floor_divide,
        "floormod": np.mod,
        "min": np.minimum,
        "max": np.maximum,
    }
)
"""Operators of index arithmetic; any other makes an index unknown."""


# ---- Unsafe distances between two buffers that share memory, for many sizes at once.
#
# A byte of one buffer may be a byte of another if its last access as part of the former precedes its first write as
# part of the latter. The code above decides this for one size, element by element. Here it is proved for all sizes,
# from the nesting of loops. Of two statements, one runs later if it is further down in the same iterations of all
# common loops, or if the outermost common loop whose iterations differ is at a later iteration. In each of these cases
# the distance of the two addresses is a sum over loop variables, whose range is known at every size
# (:mod:`microc.tir.analysis.size_forms`). The result is a list of :class:`Conflict`.

_ZERO = np.zeros(1, np.int64)
Guard = tuple[ir.Expr, bool]
"""A condition, and whether it holds."""


@frozen
class _LocatedTouch:
    """An access in a function: the loops around it, the number of its statement in order of execution, and the conditions
    (guards) under which it runs."""

    touch: Touch
    loops: tuple[ir.Var, ...]
    number: int
    guards: tuple[Guard, ...]


@frozen
class _AccessForms:
    """An access as linear forms: its byte addresses, and facts that are non-negative when it runs. ``order`` rises in
    order of execution."""

    bytes: Form
    facts: tuple[Form, ...]
    loops: tuple[ir.Var, ...]
    order: tuple[int, int]
    write: bool


class Precedence:
    """Proof of the distances at which two buffers of a lowered function may not share memory. ``sizes``: values of its
    scalars, one element for each size."""

    def __init__(self, func: ir.PrimFunc, sizes: Mapping[str, Array]) -> None:
        self.forms = FormConverter(sizes)
        self._form_of_variable = 0
        loops = (s for s in walk_stmt(func.body) if isinstance(s, ir.For))
        self._ordered = all(loop.kind != "parallel" for loop in loops)
        followed = {b for b in func.params if b.scope in FOLLOWED}
        found = [x for x in self._located_touches(func.body, LetScope({}), (), ()) if x.touch.buffer in followed]
        self._places: dict[ir.Buffer, list[_AccessForms]] = {}
        # Converting an address may split a loop variable into digits, which changes the forms of other addresses:
        # repeat until none is split any more.
        digits = -1
        while digits < len(self.forms.digits):
            digits = len(self.forms.digits)
            self._places = {b: [] for b in followed}
            for x in found:
                self._places[x.touch.buffer].append(self._access_forms(x))

    def conflicts(self, old: ir.Buffer, new: ir.Buffer) -> list[Conflict]:
        """Return the distances from ``old`` to ``new`` at which some byte of ``old`` is accessed after ``new`` was
        written there."""
        if not self._ordered:
            return [Conflict(-new.nbytes, old.nbytes)]
        touched, written = self._places[old], [place for place in self._places[new] if place.write]
        found = [
            self._access_conflict(a, b, _common_loops(a, b), None)
            for a in touched
            for b in written
            if a.order >= b.order
        ]
        for a in self._merge_unrolled_copies(touched, old.name):
            for b in self._merge_unrolled_copies(written, new.name):
                common = _common_loops(a, b)
                found += [self._access_conflict(a, b, common[:k], var) for k, var in enumerate(common)]
        return list(dict.fromkeys(conflict for conflict in found if conflict is not None))

    # ------------------------------------------------------------ touches

    def _located_touches(
        self, stmt: ir.Stmt, around: LetScope, loops: tuple[ir.Var, ...], guards: tuple[Guard, ...]
    ) -> Iterator[_LocatedTouch]:
        """Yield all accesses under a statement. Loop variables get unique names."""
        scope = LetScope(dict(around.names))
        for item in statements_in_order(stmt):
            self._form_of_variable += 1
            own, number = own_touches(item, scope), self._form_of_variable
            match item:
                case ir.If(condition, then, otherwise):
                    decided = scope.expr(condition)
                    yield from self._located_touches(then, scope, loops, (*guards, (decided, True)))
                    if otherwise is not None:
                        yield from self._located_touches(otherwise, scope, loops, (*guards, (decided, False)))
                case ir.For(var, extent, body):
                    unique, count = ir.Var(f"{var.name}.{number}"), scope.expr(extent)
                    self.forms.loop(unique, count)
                    inner = LetScope({**scope.names, var: unique})
                    yield from self._located_touches(body, inner, (*loops, unique), (*guards, (unique < count, True)))
                    self._form_of_variable = number = (
                        self._form_of_variable + 1
                    )  # C evaluates the extent for the last time at the end
            for touch in own:
                yield _LocatedTouch(touch, loops, number, guards)

    def _access_forms(self, located: _LocatedTouch) -> _AccessForms:
        """Convert an access to linear forms."""
        loops = tuple(digit for var in located.loops for digit in self.forms.variables(var))
        facts = tuple(fact for guard in located.guards for fact in self.forms.facts(*guard) if fact.terms)
        order = located.number, located.touch.tick
        return _AccessForms(self._byte_addresses(located.touch), facts, loops, order, located.touch.write)

    def _byte_addresses(self, touch: Touch) -> Form:
        """Return the byte addresses of an access as a linear form; those of the whole buffer if they depend on data."""
        buffer, width = touch.buffer, dtypes.nbytes(touch.buffer.dtype)
        total = Form({}, _ZERO, _ZERO + (touch.extent - 1) * touch.step * width + width - 1)
        for index, stride in zip(touch.indices, buffer.strides, strict=True):
            form = self.forms.of(index)
            if form is None:
                return Form({}, _ZERO, _ZERO + buffer.nbytes - 1)
            total = total.plus(form.times(_ZERO + stride * width))
        return total

    # ------------------------------------------------------------ distances

    def _merge_unrolled_copies(self, accesses: Sequence[_AccessForms], loop_name: str) -> Iterator[_AccessForms]:
        """Merge accesses in the same loops that differ by a constant into one access in an additional loop.

        That loop, called after ``loop_name``, restores what unrolling has removed."""
        found: dict[object, list[_AccessForms]] = {}
        for place in accesses:
            found.setdefault((place.loops, place.bytes.slopes, frozenset(f.key for f in place.facts)), []).append(place)
        for k, group in enumerate(found.values()):
            unrolled = ir.Var(f"{k} of {loop_name}")
            bytes_, self.forms.extents[unrolled] = Form.around([place.bytes for place in group], unrolled)
            yield replace(group[0], bytes=bytes_, loops=(*group[0].loops, unrolled))

    def _access_conflict(
        self, a: _AccessForms, b: _AccessForms, shared_loops: tuple[ir.Var, ...], later_loop: ir.Var | None
    ) -> Conflict | None:
        """Return the unsafe distances that follow from two accesses; None if there are none.

        Both are in the same iterations of ``shared_loops``, except of ``later_loop`` if given: its iteration at ``a``
        is later than the one at ``b``. All other loops are independent of each other."""
        extents = self.forms.extents
        mine, other = (
            {var: _form_of_variable(var) for var in shared_loops},
            {var: _form_of_variable(var) for var in shared_loops},
        )
        reach = {var: self.forms.reach(var) for var in shared_loops if extents[var] is not None}
        for names, place, mark in ((mine, a, "'"), (other, b, '"')):
            for var in place.loops[len(shared_loops) :]:
                if extents[var] is not None:
                    names[var] = _form_of_variable(ir.Var(var.name + mark))
                    reach[ir.Var(var.name + mark)] = self.forms.reach(var)
        ranges = FormRanges(reach)
        if later_loop is not None and (extent := extents[later_loop]) is not None:
            mine[later_loop], other[later_loop] = ranges.later_and_earlier(later_loop, extent)
        facts = [*(f.substitute(mine) for f in a.facts), *(f.substitute(other) for f in b.facts)]
        return ranges.conflict(a.bytes.substitute(mine).plus(b.bytes.substitute(other).times(_ZERO - 1)), facts)


def _form_of_variable(var: ir.Var) -> Form:
    """Return the linear form that consists of a variable alone."""
    return Form({var: _ZERO + 1}, _ZERO, _ZERO)


def _common_loops(a: _AccessForms, b: _AccessForms) -> tuple[ir.Var, ...]:
    """Return the variables of the loops around both accesses."""
    pairs = zip(a.loops, b.loops, strict=False)
    return tuple(x for x, y in takewhile(lambda pair: pair[0] == pair[1], pairs))
