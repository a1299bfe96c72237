# SPDX-License-Identifier: Apache-2.0
"""Splitting of loops: unswitching, peeling, double buffering, and distribution among two cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from microc.errors import ScheduleError
from microc.tir import ir
from microc.tir.analysis.context import buffers_read, buffers_written
from microc.tir.analysis.cover import has_disjoint_iterations
from microc.tir.analysis.region import accesses_to
from microc.tir.analysis.simplification import bounds_of, linear, simplify, simplify_stmt
from microc.tir.extents import Extent, is_at_most, is_less, largest, smallest
from microc.tir.lower.cleanup import hoist_fills
from microc.tir.names import DISTRIBUTED, DOUBLE_BUFFER, LANES, PEEL
from microc.tir.rewrite import (
    accesses_any_buffer,
    free_vars,
    map_expr,
    map_stmt,
    replace_buffers,
    substitute,
    substitute_stmt,
    walk_stmt,
)

# ---- Splitting of loops: loop unswitching, peeling, and double buffering.
#
# :func:`unswitch_loops` moves loop-invariant conditions out of loops, and divides a loop at a condition on its
# variable. :func:`partition_loops` peels the guarded last iterations after imperfect splits.
# :func:`double_buffer_loops` copies data for the next iteration while the current iteration computes.


# ---- Unswitching: loop-invariant conditions are moved out of loops.
#
# ``for c: padded[y, x, c] = select(0 <= y and 0 <= x, data[y, x, c], 0)`` becomes a test for each row, a test for each column,
# and inner loops that copy or fill. If vectors copy, all columns away from the border are tested once per row, and may be
# copied as one run of consecutive elements. A loop with a condition on its own variable, such as
# ``select(c < 8, a[c], b[c - 8])``, becomes several loops.
#
# A guarded copy is a loop body that copies if a condition holds, and else fills with a constant.

FAR = 1 << 31
"""End of a range without a bound. No int32 loop variable reaches it."""
LONG = 4
"""Smallest trip count of a guarded copy for which a second loop without guards is generated."""  # measured: unknown


def unswitch_loops(stmt: ir.Stmt) -> ir.Stmt:
    """Return a statement with the invariant conditions of guarded copies moved out of their loops, innermost loops first."""

    def unswitch_loop(s: ir.Stmt) -> ir.Stmt:
        return _move_guard_out_of_loop(s) if isinstance(s, ir.For) else s

    return map_stmt(stmt, unswitch_loop)


def _match_guarded_copy(body: ir.Stmt) -> tuple[ir.Expr, ir.Stmt, ir.Stmt] | None:
    """Match a guarded copy; return its condition, the copy, and the fill. None for other statements.

    A guarded copy copies if a condition holds, and else fills (stores a constant): ``if c: copy else: fill``, or a store of
    ``select(c, value, constant)``."""
    match body:
        case ir.Store(buffer, indices, ir.Select(condition, a, ir.Const() as b)):
            return condition, ir.Store(buffer, indices, a), ir.Store(buffer, indices, b)
        case ir.If(condition, then, ir.Stmt() as otherwise):
            return condition, then, otherwise
        case _:
            return None


def _divide_where_condition_changes(loop: ir.For) -> ir.Stmt | None:
    """Return a loop divided into several loops where a condition on its variable begins and ceases to hold.

    The loops before and after this range store the other operand of the select. None if there is no condition on the loop
    variable alone.
    """
    match loop.body:
        # A loop that computes more is not divided, because that would duplicate the code of the computation.
        case ir.Store(buffer, indices, ir.Select(condition, a, b)) if only_moves_data(a) and only_moves_data(b):
            pass
        case _:
            return None
    extent, terms = ir.int_value(loop.extent), ir.conjuncts(condition)
    ranges = {term: found for term in terms if (found := _range_where_true(term, loop.var)) is not None}
    if extent is None or not ranges:
        return None
    start = smallest(largest(0, *(low for low, _ in ranges.values())), extent)
    stop = largest(start, smallest(extent, *(high for _, high in ranges.values())))
    rest = ir.all_of(t for t in terms if t not in ranges)
    inside = a if rest is None else ir.select(rest, a, b)
    parts: list[ir.Stmt] = []
    for first, last, value in ((0, start, b), (start, stop, inside), (stop, extent, b)):
        if not is_at_most(last, first):
            suffix = len(parts) if isinstance(first, Extent) else first
            var = ir.Var(f"{loop.var.name}_from_{suffix}", loop.var.dtype) if first else loop.var
            store = substitute_stmt(ir.Store(buffer, indices, value), {loop.var: var + first} if first else {})
            part = replace(loop, var=var, extent=ir.const(last - first, "int32"), body=simplify_stmt(store))
            parts.append(_move_guard_out_of_loop(part))
    return ir.seq(*parts)


def _range_where_true(condition: ir.Expr, var: ir.Var) -> tuple[int, int] | None:
    """Return the range (start, stop) of ``var`` in which a condition holds, if it compares ``var`` with a constant; else None."""
    if not _is_affine_comparison(condition, var):
        return None
    assert isinstance(condition, ir.Bin)
    small, large = (condition.a, condition.b) if condition.op in ("lt", "le") else (condition.b, condition.a)
    terms, offset = linear(small - large)
    slack = offset - (condition.op in ("le", "ge"))  # factor * var + slack < 0
    if set(terms) != {var} or abs(terms[var]) != 1:
        return None
    return (-FAR, -slack) if terms[var] == 1 else (slack + 1, FAR)


def only_moves_data(value: ir.Expr) -> bool:
    """Test whether a value is only loaded, cast and selected, or a constant."""
    match value:
        case ir.Select(_, a, b):
            return only_moves_data(a) and only_moves_data(b)
        case ir.Cast(_, inner):
            return only_moves_data(inner)
        case _:
            return isinstance(value, (ir.Load, ir.Const))


def _move_guard_out_of_loop(loop: ir.For) -> ir.Stmt:
    """Return a loop with the invariant part of its guard moved out of it; ``loop`` itself if there is none."""
    divided = _divide_where_condition_changes(loop)
    if divided is not None:
        return divided
    parts = _match_guarded_copy(loop.body)
    if parts is None or accesses_any_buffer(
        parts[0], buffers_written(loop.body)
    ):  # an iteration may change the condition
        return loop
    condition, copy, fill = parts
    terms = ir.conjuncts(condition)
    outside = ir.all_of(t for t in terms if loop.var not in free_vars(t))
    inside = ir.all_of(t for t in terms if loop.var in free_vars(t))
    copying: ir.Stmt = replace(loop, body=copy)
    if inside is not None:
        guarded = replace(loop, body=_replace_guard(loop.body, inside, copy, fill))
        copying = _guard_whole_loop(loop, inside, copying, guarded)
    if outside is None:
        return copying
    return ir.If(outside, copying, replace(loop, body=fill))


def _guard_whole_loop(loop: ir.For, condition: ir.Expr, copying: ir.Stmt, guarded: ir.Stmt) -> ir.Stmt:
    """Return a loop with a test in front of it that selects between a copy without guards and the guarded copy.

    The copy without guards runs if the condition holds in all iterations, as it does away from the border of an image.
    Comparisons of expressions that are affine in the loop variable hold in all iterations if they hold in the first and the
    last, so only these two are tested. The code of the copy is duplicated. That pays off only if vectors copy runs of
    elements, or if the loop has at least LONG iterations; otherwise ``guarded`` is returned.
    """
    extent = ir.int_value(loop.extent)
    terms = ir.conjuncts(condition)
    if extent is None or not (
        _copies_consecutive_elements(copying) or (extent >= LONG and isinstance(loop.body, ir.Store))
    ):
        return guarded
    if not all(_is_affine_comparison(t, loop.var) for t in terms):
        return guarded
    ends = (ir.const(0, "int32"), ir.const(extent - 1, "int32"))
    checks = (simplify(substitute(t, {loop.var: end})) for t in terms for end in ends)
    always = ir.all_of(dict.fromkeys(checks))
    assert always is not None
    return ir.If(always, _move_guard_out_of_loop(copying) if isinstance(copying, ir.For) else copying, guarded)


def _copies_consecutive_elements(loop: ir.Stmt) -> bool:
    """Test whether the body of ``loop``, possibly under a condition, is a vector loop that copies consecutive elements."""
    match loop:
        case ir.For(body=ir.If(then=ir.For() as run)) | ir.For(body=ir.For() as run) if isinstance(run.body, ir.Store):
            return isinstance(run.body.value, ir.Load) and LANES in dict(run.annotations)
        case _:
            return False


def _is_affine_comparison(condition: ir.Expr, var: ir.Var) -> bool:
    """Test whether a condition compares two int32 expressions whose difference is affine in ``var``."""
    if (
        not isinstance(condition, ir.Bin)
        or condition.op not in ("lt", "le", "gt", "ge")
        or condition.a.dtype != "int32"
    ):
        return False
    terms, _ = linear(condition.a - condition.b)
    return all(term == var or var not in free_vars(term) for term in terms)


def _replace_guard(guarded_copy: ir.Stmt, condition: ir.Expr, copy: ir.Stmt, fill: ir.Stmt) -> ir.Stmt:
    """Return a guarded copy with another condition, which is a part of the original one.

    ``copy``, ``fill``: statements that run if the condition holds or does not hold."""
    if isinstance(guarded_copy, ir.Store) and isinstance(copy, ir.Store) and isinstance(fill, ir.Store):
        return ir.Store(guarded_copy.buffer, guarded_copy.indices, ir.Select(condition, copy.value, fill.value))
    return ir.If(condition, copy, fill)


# ---- Peeling: guards of imperfect splits are removed from the inner loop by peeling the last iteration of the outer loop.
#
# ``for i in 7: for j in 4: if i*4 + j < 26`` becomes six full iterations, and one iteration whose ``j`` loop runs to 2. This is
# possible for any conjunction of conditions ``affine < constant`` that holds in all iterations up to some iteration. A loop with
# the annotation ``peel`` = 0 keeps its guards as run-time tests, because its body is long and little of it is guarded. A
# parallel loop also keeps its guards: its iterations are distributed to threads, and no thread would run a peeled iteration.

Bounds = dict[ir.Var, tuple[int, int]]

PEEL_LIMIT = 1
"""Most iterations that are peeled from a loop, since each is a copy of the body. Guards that fail in more iterations remain
run-time tests."""


def partition_loops(stmt: ir.Stmt) -> ir.Stmt:
    """Return a statement with guarded last iterations of loops peeled, outermost loops first."""
    return _peel_guarded_iterations(stmt, {})


def _peel_guarded_iterations(stmt: ir.Stmt, bounds: Bounds) -> ir.Stmt:
    """Return ``stmt`` with guarded last iterations of loops peeled. ``bounds``: ranges of the enclosing loop variables."""
    match stmt:
        case ir.For(var, extent, body, kind, annotations):
            count = ir.int_value(extent)
            if count is None:
                return stmt
            shorter = _shorten_guarded_loop(stmt)
            if shorter is not stmt:
                return _peel_guarded_iterations(shorter, bounds)
            here: Bounds = {**bounds, var: (0, count - 1)}
            whole = kind in ("parallel", *ir.GROUPS, *ir.ITEMS) or (PEEL, 0) in annotations
            # Loops that are bound to thread axes of an accelerator must also stay one loop.
            peeled = None if whole else peel_last_iterations(stmt, bounds)
            if peeled is not None:
                return ir.seq(*peeled)
            return ir.For(var, extent, _peel_guarded_iterations(body, here), kind, annotations)
        case ir.Seq(body):
            return ir.seq(*(_peel_guarded_iterations(child, bounds) for child in body))
        case ir.Let(var, value, body):
            return ir.Let(var, value, _peel_guarded_iterations(body, bounds))
        case ir.Alloc(buffer, body):
            return ir.Alloc(buffer, _peel_guarded_iterations(body, bounds))
        case ir.If(condition, then, otherwise):
            rest = _peel_guarded_iterations(otherwise, bounds) if otherwise else None
            return ir.If(condition, _peel_guarded_iterations(then, bounds), rest)
        case _:
            return stmt


def peel_last_iterations(loop: ir.For, bounds: Bounds) -> tuple[ir.Stmt, ...] | None:
    """Peel the guarded last iterations of a loop of constant extent: return the loop of the full iterations, and a
    statement for each peeled iteration. None if there are no such iterations, or too many.

    ``bounds``: ranges of the enclosing loop variables."""
    var, count, body = loop.var, ir.int_value(loop.extent) or 0, loop.body
    cut = _first_failing_iteration(var, count, body, {**bounds, var: (0, count - 1)})
    if cut is None or not 0 <= cut < count or count - cut > PEEL_LIMIT:
        return None
    full = _shorten_guarded_loops(replace(loop, extent=ir.const(cut, "int32")), bounds)
    tails = (
        _shorten_guarded_loops(
            substitute_stmt(
                _rename_definitions(body, f"_{var.name.partition('_')[0]}{t}"), {var: ir.const(t, "int32")}
            ),
            bounds,
        )
        for t in range(cut, count)
    )
    return full, *tails


def _shorten_guarded_loop(stmt: ir.Stmt) -> ir.Stmt:
    """Return a loop with fewer iterations in place of ``for i: if i < n``; other statements are returned unchanged."""
    if not isinstance(stmt, ir.For) or not isinstance(stmt.body, ir.If) or stmt.body.otherwise is not None:
        return stmt
    count, limit = ir.int_value(stmt.extent), _match_upper_limit(stmt.var, stmt.body.condition)
    if count is None or limit is None:
        return stmt
    return ir.For(stmt.var, ir.const(smallest(count, limit), "int32"), stmt.body.then, stmt.kind, stmt.annotations)


def _shorten_guarded_loops(stmt: ir.Stmt, bounds: Bounds) -> ir.Stmt:
    """Return ``stmt`` simplified, with loops ``for i: if i < n`` replaced by loops with fewer iterations.

    ``bounds``: ranges of the enclosing loop variables."""

    def hoist_guard(s: ir.Stmt) -> ir.Stmt:
        """Move guards out of loops on whose variables they do not depend, up to the loop whose iterations they limit.

        A condition that loads what the loop writes stays: it may hold in some iterations only."""
        if isinstance(s, ir.For) and isinstance(s.body, ir.If) and s.body.otherwise is None:
            terms, written = ir.conjuncts(s.body.condition), buffers_written(s.body.then)
            free = [t for t in terms if not _contains_var(t, s.var) and not accesses_any_buffer(t, written)]
            if free:
                kept = ir.all_of(t for t in terms if t not in free)
                body = ir.If(kept, s.body.then) if kept is not None else s.body.then
                guard = ir.all_of(free)
                assert guard is not None
                return ir.If(guard, _shorten_guarded_loop(ir.For(s.var, s.extent, body, s.kind, s.annotations)))
        return _shorten_guarded_loop(s)

    shortened = map_stmt(simplify_stmt(stmt, bounds), hoist_guard)
    return simplify_stmt(_peel_guarded_iterations(shortened, bounds), bounds)


def _contains_var(expr: ir.Expr, var: ir.Var) -> bool:
    """Test whether an expression contains a variable."""
    return var in free_vars(expr)


def _match_upper_limit(var: ir.Var, condition: ir.Expr) -> int | None:
    """Return n if the condition is equivalent to ``var < n`` for a constant n; else None."""
    form = _match_less_than(condition)
    if form is None:
        return None
    terms, limit_offset = form
    if set(terms) != {var} or not is_less(0, terms[var]):
        return None
    limit: int = largest(0, -(-limit_offset // terms[var]))
    return limit


def _match_less_than(condition: ir.Expr) -> tuple[dict[ir.Expr, int], int] | None:
    """Return an int32 comparison as (terms, limit), with the meaning ``sum(factor * term) < limit``; None for other conditions.

    ``terms``: factors by term."""
    if not isinstance(condition, ir.Bin) or condition.op not in ("lt", "le", "gt", "ge"):
        return None
    if condition.a.dtype != "int32":
        return None
    small, large = condition.a, condition.b
    if condition.op in ("gt", "ge"):
        small, large = large, small
    terms, offset = linear(simplify(small - large))
    return dict(terms), -offset + (1 if condition.op in ("le", "ge") else 0)


def _first_failing_iteration(var: ir.Var, count: int, body: ir.Stmt, bounds: Bounds) -> int | None:
    """Return the first iteration of the loop over ``var`` in which a guard in its body may fail; None if no guard can fail, or
    if that depends on sizes.

    A guard is a condition ``factor * var + rest < limit`` with factor > 0. It certainly holds while
    ``factor * var + max(rest) < limit``. ``count``: trip count of the loop.
    """
    cut: int | None = None
    inside = dict(bounds)
    for s in walk_stmt(body):
        if isinstance(s, ir.For):
            extent = ir.int_value(s.extent)
            if extent is not None:
                inside[s.var] = (0, extent - 1)
    for s in walk_stmt(body):
        if not isinstance(s, ir.If):
            continue
        for condition in ir.conjuncts(s.condition):
            form = _match_less_than(condition)
            if form is None or not is_less(0, form[0].get(var, 0)):
                continue
            terms, limit_offset = form
            rest = 0
            for term, factor in terms.items():
                if term == var:
                    continue
                reach = bounds_of(term, inside)
                if reach is None:
                    break
                rest += largest(factor * reach[0], factor * reach[1])
            else:
                # The least var with terms[var] * var >= limit_offset - rest: the quotient rounded up.
                first = -(-(limit_offset - rest) // terms[var])
                cut = largest(0, first) if cut is None else smallest(cut, largest(0, first))
    if isinstance(cut, Extent) or isinstance(count, Extent):
        return None
    return cut if cut is not None and cut < count else None


def _rename_definitions(stmt: ir.Stmt, suffix: str) -> ir.Stmt:
    """Return a copy of a statement in which the variables and private buffers that it defines have a suffix.

    So names stay unique. Private buffers are those in registers and on the stack."""
    names = {
        s.var: ir.Var(s.var.name + suffix, s.var.dtype) for s in walk_stmt(stmt) if isinstance(s, (ir.For, ir.Let))
    }
    registers = {
        s.buffer: replace(s.buffer, name=s.buffer.name + suffix)
        for s in walk_stmt(stmt)
        if isinstance(s, ir.Alloc) and s.buffer.scope in ("register", "local")
    }

    def rename_definition(s: ir.Stmt) -> ir.Stmt:
        match s:
            case ir.For(var, extent, body, kind, annotations):
                return ir.For(names[var], extent, body, kind, annotations)
            case ir.Let(var, value, body):
                return ir.Let(names[var], value, body)
            case _:
                return s

    return replace_buffers(map_stmt(substitute_stmt(stmt, dict(names)), rename_definition), registers)


# ---- Double buffering: while an iteration of a loop computes, the data for the next iteration are copied. Each shared buffer
# gets two halves, which are used alternately.

Halves = dict[ir.Buffer, ir.Buffer]


def double_buffer_loops(stmt: ir.Stmt) -> ir.Stmt:
    """Return a statement with every loop that is annotated :data:`~microc.tir.names.DOUBLE_BUFFER` double-buffered.

    The data of the first iteration are copied before the loop. Each iteration copies the data of the next iteration:
    ``fill(0); for k: if k + 1 < n: fill(k + 1) into half (k + 1) % 2; compute from half k % 2``.
    """
    halves: Halves = {}

    def double_buffer_loop(s: ir.Stmt) -> ir.Stmt:
        return _double_buffer(s, halves) if isinstance(s, ir.For) and DOUBLE_BUFFER in dict(s.annotations) else s

    def allocate_both_halves(s: ir.Stmt) -> ir.Stmt:
        return ir.Alloc(halves[s.buffer], s.body) if isinstance(s, ir.Alloc) and s.buffer in halves else s

    changed = map_stmt(stmt, double_buffer_loop)
    return simplify_stmt(map_stmt(changed, allocate_both_halves)) if halves else stmt


def _double_buffer(loop: ir.For, halves: Halves) -> ir.Stmt:
    """Return a loop in double-buffered form. ``halves``: output; the buffers with two halves are added, by original buffer.

    Raises ScheduleError if the loop does not begin with copies into shared memory, or if these copies read shared memory
    or write other memory."""
    body = loop.body.body if isinstance(loop.body, ir.Seq) else (loop.body,)
    shared = {b for b in buffers_written(loop.body) if b.scope == "shared"}
    fills = [s for s in body if buffers_written(s) & shared]
    rest = [s for s in body if s not in fills]
    if not fills or not rest or body[: len(fills)] != tuple(fills):
        raise ScheduleError(
            f"prefetch: loop {loop.var.name!r} does not begin with copies into shared memory",
            hint="before prefetch, add copies by cache_read(block, buffer, 'shared'), and compute_at this loop",
        )
    wrong = sorted(b.name for s in fills for b in (buffers_written(s) - shared) | (buffers_read(s) & shared))
    if wrong:
        raise ScheduleError(
            f"prefetch: copies into shared memory in loop {loop.var.name!r} also access {wrong[0]!r}; expected copies "
            "that read global memory and write shared memory only",
            hint="move the other accesses out of these copies by compute_at",
        )
    doubled = {b: replace(b, shape=(2, *b.shape)) for b in shared}
    halves.update(doubled)
    zero, one, two = (ir.const(n, "int32") for n in range(3))
    following = loop.var + one
    fill, use = ir.seq(*fills), ir.seq(*rest)
    first = _redirect_to_half(substitute_stmt(fill, {loop.var: zero}), doubled, zero)
    later = _redirect_to_half(
        substitute_stmt(_rename_loops(fill), {loop.var: following}), doubled, ir.Bin("floormod", following, two)
    )
    # There is no next iteration after the last.
    guarded = ir.If(ir.Bin("lt", following, loop.extent), later)
    computed = _redirect_to_half(use, doubled, ir.Bin("floormod", loop.var, two))
    notes = tuple(note for note in loop.annotations if note[0] != DOUBLE_BUFFER)
    return ir.seq(first, replace(loop, body=ir.seq(guarded, computed), annotations=notes))


def _rename_loops(stmt: ir.Stmt) -> ir.Stmt:
    """Return a copy of a statement with new names of its loop variables."""

    def rename_loop(s: ir.Stmt) -> ir.Stmt:
        if not isinstance(s, ir.For):
            return s
        var = ir.Var(f"{s.var.name}_next1", s.var.dtype)
        return replace(s, var=var, body=substitute_stmt(s.body, {s.var: var}))

    return map_stmt(stmt, rename_loop)


def _redirect_to_half(stmt: ir.Stmt, halves: Halves, half_index: ir.Expr) -> ir.Stmt:
    """Return a statement with the accesses to double-buffered buffers redirected to half ``half_index`` of each.

    ``halves``: buffers with two halves, by original buffer."""

    def redirect_access(e: ir.Expr) -> ir.Expr:
        if isinstance(e, (ir.Load, ir.AddressOf)) and e.buffer in halves:
            return replace(e, buffer=halves[e.buffer], indices=(half_index, *e.indices))
        return e

    def redirect_store(s: ir.Stmt) -> ir.Stmt:
        if isinstance(s, ir.Store) and s.buffer in halves:
            return ir.Store(halves[s.buffer], (half_index, *s.indices), s.value)
        return s

    return map_stmt(stmt, redirect_store, lambda x: map_expr(x, redirect_access))


# ---- Distribution: the iterations of a parallel loop are divided among two cores.
#
# ``for y in 9`` with the annotation :data:`~microc.tir.names.DISTRIBUTED` becomes a parallel loop of two
# iterations, one for each core::
#
#     for y_core in parallel(2):
#         for y in 5:
#             if y < y_core + 4:
#                 ... iteration y_core * 4 + y
#
# Core 0 runs the first half of the iterations, core 1 the rest, which may be one iteration more. Neither takes
# iterations from the other, so that a run does the same in the same time whenever it is repeated. The
# iterations of a core keep their order.
#
# A guarded last iteration is peeled, as it is from serial loops, and belongs to core 0, which also forks and
# joins. Work that is moved out of the loop (a border that is filled once) is done by each core for its own
# workspaces, which get an axis for the cores.


_WITHOUT_PEELING = ((PEEL, 0),)


def distribute_loops(stmt: ir.Stmt) -> ir.Stmt:
    """Return a statement with every loop that is annotated :data:`~microc.tir.names.DISTRIBUTED` distributed among its cores."""
    loops = [s for s in walk_stmt(stmt) if isinstance(s, ir.For) and DISTRIBUTED in dict(s.annotations)]
    private = {b: replace(b, shape=(2, *b.shape)) for loop in loops for b in _list_private_workspaces(stmt, loop)}

    def distribute(s: ir.Stmt) -> ir.Stmt:
        match s:
            case ir.For() if DISTRIBUTED in dict(s.annotations):
                return _distribute(s, private)
            case ir.Alloc(buffer, body) if buffer in private:
                return ir.Alloc(private[buffer], body)
            case _:
                return s

    return map_stmt(stmt, distribute) if loops else stmt


def _list_private_workspaces(stmt: ir.Stmt, loop: ir.For) -> list[ir.Buffer]:
    """Return the workspaces of which each core needs its own: ``stmt`` uses them in ``loop`` only, and several iterations write
    the same elements."""
    written = sorted((b for b in buffers_written(loop.body) if b.scope == "workspace"), key=lambda b: b.name)
    return [
        b
        for b in written
        if len(accesses_to(loop, b)) == len(accesses_to(stmt, b)) and not has_disjoint_iterations(loop, b)
    ]


def _distribute(loop: ir.For, private: Mapping[ir.Buffer, ir.Buffer]) -> ir.Stmt:
    """Return a parallel loop over two cores, each of which runs a part of the iterations of ``loop``.

    A loop of less than two full iterations becomes serial. ``private``: workspaces with an axis for the cores, by workspace."""
    core = ir.Var(f"{loop.var.name}_core", loop.var.dtype)
    serial = replace(
        loop, kind="serial", annotations=tuple(note for note in loop.annotations if note[0] != DISTRIBUTED)
    )
    hoisted = hoist_fills(serial)
    *prologue, iterations = hoisted.body if isinstance(hoisted, ir.Seq) else (hoisted,)
    assert isinstance(iterations, ir.For)
    full, *tails = peel_last_iterations(iterations, {}) or (iterations,)
    count = ir.int_value(full.extent) if isinstance(full, ir.For) and full.var == loop.var else None
    if count is None or count < 2:
        return _use_workspaces_of_core(ir.seq(*prologue, full, *tails), private, ir.as_index(0))
    assert isinstance(full, ir.For)
    least = count // 2
    body = substitute_stmt(full.body, {loop.var: core * least + loop.var})
    notes = full.annotations
    if count % 2:  # a test in each iteration, since most analyses ask for a constant extent
        body, notes = ir.If(loop.var < core + least, body), _WITHOUT_PEELING
    parts = [*prologue, ir.For(loop.var, ir.as_index(count - least), body, "serial", notes)]
    if tails:
        parts.append(ir.If(ir.Bin("eq", core, ir.as_index(0)), ir.seq(*tails)))
    distributed = ir.For(core, ir.as_index(2), ir.seq(*parts), "parallel", ((DISTRIBUTED, 2),))
    return _use_workspaces_of_core(distributed, private, core)


def _use_workspaces_of_core(stmt: ir.Stmt, private: Mapping[ir.Buffer, ir.Buffer], core: ir.Expr) -> ir.Stmt:
    """Return a statement in which accesses to private workspaces go to the workspaces of ``core``."""
    return replace_buffers(stmt, private, lambda indices: (core, *indices))
