# SPDX-License-Identifier: Apache-2.0
"""Selection of instructions by meaning: identities of expressions, and intrinsics."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from microc.base import dtypes
from microc.errors import ScheduleError, known_names_hint
from microc.isa import SCALAR, Intrin
from microc.isa.instruction_set import build_lane_operation, split_lane_form
from microc.schedule.identities import IDENTITIES, Context, Identity, Match
from microc.schedule.primitives.memory_selection import (
    build_arguments,
    find_memory_calls,
    is_selected_in_memory,
    list_faults,
    select_in_memory,
)
from microc.schedule.primitives.unification import (
    equal_form,
    expand_call,
    list_meanings,
    list_terms,
    match_int32_clamp,
    normalise_clamp,
    root_operator,
    substitute_operands,
    unify,
)
from microc.tir import ir
from microc.tir.analysis.context import is_index
from microc.tir.analysis.linear_forms import within
from microc.tir.analysis.simplification import bounds_of, simplify
from microc.tir.lower.lane_code import LANE_CALLS
from microc.tir.names import LANE_FORMS, LANE_OPERATIONS, RESULT_RANGES, SUFFIXES, Lanes, lanes_of
from microc.tir.rewrite import (
    ExprMap,
    free_vars,
    map_children,
    map_expr,
    map_stmt,
    stmt_children,
    stmt_exprs,
    substitute,
    walk_all_exprs,
    walk_expr,
    walk_stmt,
)

# ---- The primitive ``apply_identities``: it replaces occurrences of the left sides of identities by their right
# sides.
#
# Every expression is rewritten twice: before its operands, so that a large pattern is found before a part of it
# is replaced, and after them, so that the results of other identities are found.


def apply_identities(func: ir.PrimFunc, names: tuple[str, ...]) -> ir.PrimFunc:
    """Replace the pattern of every identity of ``names`` (:data:`.identities.IDENTITIES`) by the expression that is equal.

    If several match, the first one of ``names`` is applied. Index arithmetic is unchanged."""
    return _apply(func, names)[0]


def find_identities(func: ir.PrimFunc, names: Sequence[str]) -> tuple[str, ...]:
    """Return those of the identities ``names`` that :func:`apply_identities` would apply to a function, in the same order."""
    used = _apply(func, names)[1]
    return tuple(name for name in names if name in used)


def rewrite_expr(expr: ir.Expr, names: Sequence[str]) -> ir.Expr:
    """Apply identities to an expression that is in no statement, so that identities with conditions on it do not apply."""
    return _Rewriter(_index_patterns(tuple(names)), Context(), set())(expr)


def _apply(func: ir.PrimFunc, names: Sequence[str]) -> tuple[ir.PrimFunc, set[str]]:
    """Return the rewritten function, and the names of the applied identities. Raise ScheduleError for an unknown name."""
    patterns, used = _index_patterns(tuple(names)), set[str]()
    if not patterns:
        return func, used
    contexts: dict[int, Context] = {}
    for expr, context in _list_contexts(func.body, Context(), ()):
        # Of an object that several statements share, only what is common to all of them is known.
        contexts[id(expr)] = _common_context(contexts.get(id(expr), context), context)
    rewriters = {key: _Rewriter(patterns, context, used) for key, context in contexts.items()}

    def rewrite(expr: ir.Expr) -> ir.Expr:
        rewriter = rewriters.get(id(expr))
        return expr if rewriter is None else rewriter(expr)

    return replace(func, body=map_stmt(func.body, lambda s: s, rewrite)), used


@lru_cache(maxsize=256)
def _index_patterns(names: tuple[str, ...]) -> Mapping[tuple[str, str], list[Identity]]:
    """Return the identities ``names`` by the outermost operator and the dtype of their patterns. Raise ScheduleError for an
    unknown name."""
    patterns: dict[tuple[str, str], list[Identity]] = {}
    for name in names:
        if name not in IDENTITIES:
            raise ScheduleError(
                f"apply_identities: wrong name; got {name!r}, expected the name of an identity",
                hint=known_names_hint(name, IDENTITIES, "identities"),
            )
        pattern = IDENTITIES[name].pattern
        patterns.setdefault((root_operator(pattern), pattern.dtype), []).append(IDENTITIES[name])
    return patterns


def _list_contexts(stmt: ir.Stmt, context: Context, loops: tuple[ir.For, ...]) -> Iterator[tuple[ir.Expr, Context]]:
    """Yield every complete expression of a statement and its sub-statements that may be rewritten, with its context.

    ``loops``: loops around the statement inside the innermost block, outermost first."""
    target = ir.Load(stmt.buffer, stmt.indices) if isinstance(stmt, ir.Store) else None
    for expr in stmt_exprs(stmt):
        if not _is_fixed(expr):
            yield expr, replace(context, root=expr, target=target)
    match stmt:
        case ir.For():
            loops = (*loops, stmt)
        case ir.Block():
            context = Context(
                notes={**context.notes, **dict(stmt.annotations)},
                bindings={i.var: i.binding for i in stmt.iters},
                loop_var=next((loop.var for loop in reversed(loops) if loop.kind != "unrolled"), None),
            )
            loops = ()
        case _:
            pass
    for child in stmt_children(stmt):
        yield from _list_contexts(child, context, loops)


def _common_context(a: Context, b: Context) -> Context:
    """Return the context with the fields in which two contexts are equal."""
    if a is b:
        return a
    names = ("root", "target", "notes", "bindings", "loop_var")
    return Context(**{name: getattr(a, name) for name in names if getattr(a, name) == getattr(b, name)})


def _is_fixed(expr: ir.Expr) -> bool:
    """Test whether identities leave an expression unchanged, with all its operands."""
    return isinstance(expr, (ir.Const, ir.Var)) or is_index(expr)


class _Rewriter:
    """Rewriting of expressions of one context. An operand that occurs several times as the same object remains shared.

    ``used``: set to which the names of the applied identities are added."""

    def __init__(self, patterns: Mapping[tuple[str, str], list[Identity]], context: Context, used: set[str]) -> None:
        self.patterns, self.context, self.used = patterns, context, used
        self.known: dict[int, tuple[ir.Expr, ir.Expr]] = {}

    def __call__(self, expr: ir.Expr) -> ir.Expr:
        if _is_fixed(expr):
            return expr
        entry = self.known.get(id(expr))
        if entry is None:  # the expression is stored, too, so that its id is not reused
            outer = self._rewrite_root(expr)
            inner = map_children(outer, self)
            result = inner if inner is outer else self._rewrite_root(inner)
            entry = self.known[id(expr)] = (expr, result)
        return entry[1]

    def _rewrite_root(self, expr: ir.Expr) -> ir.Expr:
        """Apply identities to an expression as a whole until none matches."""
        while (found := self._apply_first(expr)) is not None:
            expr = found
        return expr

    def _apply_first(self, expr: ir.Expr) -> ir.Expr | None:
        """Return the replacement of an expression by the first identity that matches; None if none does."""
        for identity in self.patterns.get((root_operator(expr), expr.dtype), ()):
            for operands in unify(identity.pattern, expr, {}):
                match = Match(
                    expr, {var.name: found for var, found in operands.items() if isinstance(var, ir.Var)}, self.context
                )
                constants = (match.operands[name] for name in identity.constants)
                if (
                    all(isinstance(x, ir.Const) for x in constants)
                    and identity.condition(match)
                    and identity.context(match)
                ):
                    self.used.add(identity.name)
                    return substitute_operands(identity.replacement, operands)
        return None


# ---- The primitive ``select_intrinsics``: it finds the meanings of intrinsics in a function, and replaces them by calls.
#
# An intrinsic declares what it computes as an expression of its parameters, which is the pattern
# (:func:`unify`). So a new scalar instruction needs no code here. Expressions that only equal a meaning
# are first rewritten by identities (:func:`apply_identities`).


def select_intrinsics(func: ir.PrimFunc, names: tuple[str, ...]) -> ir.PrimFunc:
    """Replace every expression or statement that is the meaning of one of the intrinsics ``names`` by a call.

    Statements come first (:mod:`.memory_selection`), because they are larger than the expressions in them.

    If several match, the one with the largest meaning is called: ``saturate_i8_shr_1(x)`` rather than
    ``saturate_i8(x >> 1)``. Operands must be within the limits of the intrinsic, by the bounds that follow from their
    dtypes and operators. Casts of a result to a narrower dtype that holds it (:data:`.names.RESULT_RANGES`) and back are
    removed, because the C compiler cannot remove them from inline assembly."""
    return _select(func, names)[0]


def find_intrinsics(func: ir.PrimFunc, names: Sequence[str]) -> tuple[str, ...]:
    """Return those of the intrinsics ``names`` that :func:`select_intrinsics` would call in a function, in the same order."""
    called = _select(func, tuple(names))[1]
    return tuple(name for name in names if name in called)


def select_in_expr(expr: ir.Expr, names: Sequence[str]) -> ir.Expr:
    """Replace the meanings of the intrinsics ``names`` in an expression by calls, as :func:`select_intrinsics`."""
    return map_expr(expr, _intrinsic_selector(names, set()))


def _select(func: ir.PrimFunc, names: Sequence[str]) -> tuple[ir.PrimFunc, set[str]]:
    """Return the function with calls of intrinsics, and the names of the called intrinsics.

    A loop whose iterations run in lanes gets a note of the intrinsics that the core computes in these lanes."""
    own = set(names) - SCALAR.permanent_names
    func, called = select_in_memory(func, [name for name in names if name in own and is_selected_in_memory(name)])
    lanes_of_expr: dict[int, tuple[Lanes, ...]] = {}
    if any(isinstance(s, ir.For) and lanes_of(s) for s in walk_stmt(func.body)):
        lanes_of_expr = {id(expr): lanes for expr, lanes in _list_lanes(func.body, ()) if lanes}
    selectors = {lanes: _intrinsic_selector(names, called, lanes) for lanes in {(), *lanes_of_expr.values()}}

    def on_stmt(stmt: ir.Stmt) -> ir.Stmt:
        if isinstance(stmt, ir.Store):
            return _restore_bounds_of_indices(stmt)
        if not isinstance(stmt, ir.For) or not (lanes := lanes_of(stmt)):
            return stmt
        calls = {x.name for x in walk_all_exprs(stmt.body) if isinstance(x, ir.Call)}
        forms = {name for name in calls for form in lanes if f"{name}_{form.suffix}" in called}
        if not forms:
            return stmt
        notes = dict(stmt.annotations)
        forms.update(str(notes.pop(LANE_FORMS, "")).split())
        return replace(stmt, annotations=(*notes.items(), (LANE_FORMS, " ".join(sorted(forms)))))

    def on_expr(expr: ir.Expr) -> ir.Expr:
        return map_expr(expr, selectors[lanes_of_expr.get(id(expr), ())])

    return replace(func, body=map_stmt(func.body, on_stmt, on_expr)), called


def _list_lanes(stmt: ir.Stmt, lanes: tuple[Lanes, ...]) -> Iterator[tuple[ir.Expr, tuple[Lanes, ...]]]:
    """Yield every complete expression of a statement and its sub-statements, with the lanes in which it is computed."""
    for expr in stmt_exprs(stmt):
        yield expr, lanes
    if isinstance(stmt, ir.For):
        lanes = lanes_of(stmt) or lanes
    for child in stmt_children(stmt):
        yield from _list_lanes(child, lanes)


def _intrinsic_selector(names: Sequence[str], called: set[str], lanes: tuple[Lanes, ...] = ()) -> ExprMap:
    """Return the function that replaces an expression if it is the meaning of one of the intrinsics ``names``. It adds the
    names of the intrinsics to ``called``. Raise ScheduleError for a name that is no scalar intrinsic, nor one in lanes.

    ``lanes``: lanes in which the expression is computed, as :func:`~microc.tir.names.lanes_of`."""
    index = _index_intrinsics(tuple(names), lanes, SCALAR.entries)

    def select(expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Const() | ir.Var():
                return expr
            case ir.Cast("int32", ir.Cast(narrow, ir.Call(name) as call)) if _is_exact(name, narrow):
                return call
            case ir.Load(buffer, indices):
                return ir.Load(buffer, tuple(map(_restore_bounds, indices))) if _has_calls(indices) else expr
            case ir.Call(name) if name in names:
                return expr
        result, name = index.select(expr)
        if name:
            called.add(name)
        return result

    return select


def _has_calls(indices: Sequence[ir.Expr]) -> bool:
    """Test whether an index is computed by a call."""
    return any(isinstance(x, ir.Call) for index in indices if not is_index(index) for x in walk_expr(index))


def _restore_bounds_of_indices(store: ir.Store) -> ir.Store:
    """Return a store whose indices have the bounds that they had before selection (:func:`_restore_bounds`)."""
    return replace(store, indices=tuple(map(_restore_bounds, store.indices))) if _has_calls(store.indices) else store


def _restore_bounds(index: ir.Expr) -> ir.Expr:
    """Return an index with meanings in place of calls whose results have bounds that the verifier does not know
    (:data:`.names.RESULT_RANGES`): it proves accesses from them. What is clamped afterwards stays."""
    if match_int32_clamp(index) is not None or (isinstance(index, ir.Call) and index.name in RESULT_RANGES):
        return index
    if isinstance(index, ir.Call) and result_bounds(index.name) is not None:
        return expand_call(index)
    return map_children(index, _restore_bounds)


class Meaning(NamedTuple):
    """An expression that a scalar intrinsic computes. ``name``: the intrinsic that the core has, which is that of lanes in a
    loop over lanes."""

    name: str
    intrin: Intrin
    expr: ir.Expr


class _IntrinsicIndex:
    """Meanings of intrinsics by operator and dtype of their results (:func:`_pattern_key`).

    Selections are memoised by the structure of expressions, since candidate schedules of a kernel compute the same: of 1,319
    expressions with an operator of a meaning, 397 are distinct (keyword spotting on Cortex-M4)."""

    MEMO_ENTRIES = 4096

    def __init__(self, meanings: Mapping[object, Sequence[Meaning]]) -> None:
        self.meanings = meanings
        self.selected: dict[ir.Expr, tuple[ir.Expr, str]] = {}

    def find(self, expr: ir.Expr) -> list[Meaning]:
        """Return the meanings that may be equal to an expression, in the order in which they are tried."""
        return [meaning for key in _lookup_keys(expr) for meaning in self.meanings.get(key, ())]

    def select(self, expr: ir.Expr) -> tuple[ir.Expr, str]:
        """Return the call that is equal to an expression, and the name of the called intrinsic. Return the expression itself and
        no name if there is none."""
        candidates = self.find(expr)
        if not candidates:
            return expr, ""
        selected = self.selected.get(expr)
        if selected is None:
            if len(self.selected) >= self.MEMO_ENTRIES:
                self.selected.clear()
            selected = self.selected[expr] = _select_first(candidates, expr)
        return selected


def _select_first(candidates: Sequence[Meaning], expr: ir.Expr) -> tuple[ir.Expr, str]:
    """Return a call of the first intrinsic of ``candidates`` that matches an expression, and the intrinsic's name; the expression
    itself and no name if none matches."""
    expr, is_clamp = normalise_clamp(expr)
    # Index arithmetic keeps its form, since later passes simplify it. Only clamps are better as an instruction.
    if not is_clamp and is_index(expr):
        return expr, ""
    for name, intrin, meaning in candidates:
        args = next(match_arguments(intrin, meaning, expr), None)
        if args is not None:
            return ir.Call(intrin.name, args, intrin.result), name
    return expr, ""


@lru_cache(maxsize=64)
def _index_intrinsics(names: tuple[str, ...], lanes: tuple[Lanes, ...], _entries: object) -> _IntrinsicIndex:
    """Return an index of the meanings of the intrinsics ``names``, in all their forms, the largest meanings first. Those that
    the ``lanes`` of a loop cannot compute are left out. The contents of the registry are part of the key of the memo, since
    plugins extend it."""
    usable: dict[str, str] = {}
    for name in names:
        scalar, own_lanes = split_lane_form(name)
        if name in SCALAR and SCALAR[name].is_scalar and not (own_lanes and scalar in SCALAR):
            # Vectors compute no other scalar intrinsic; a loop over words that has one becomes a loop over single elements.
            if not lanes or lanes[0].is_word or (not lanes[0].is_narrow and name in LANE_CALLS):
                usable.setdefault(name, name)
        elif is_selected_in_memory(name):
            if not lanes and SCALAR[name].is_formula:
                usable[name] = name
        elif name in SCALAR and own_lanes and scalar in SCALAR and SCALAR[scalar].is_scalar:
            if own_lanes in lanes and fits_lanes(SCALAR[scalar], own_lanes):
                usable[scalar] = name
        else:
            scalars = [each.name for each in SCALAR.values() if each.is_scalar]
            raise ScheduleError(
                f"select_intrinsics: wrong name; got {name!r}, expected the name of a scalar intrinsic",
                hint=known_names_hint(name, scalars, "scalar intrinsics"),
            )
    patterns: dict[object, list[Meaning]] = {}
    for intrin in sorted((SCALAR[name] for name in usable), key=_meaning_size, reverse=True):
        for meaning in list_meanings(intrin):
            patterns.setdefault(_pattern_key(meaning), []).append(Meaning(usable[intrin.name], intrin, meaning))
    return _IntrinsicIndex(patterns)


def fits_lanes(intrin: Intrin, lanes: Lanes) -> bool:
    """Test whether lanes hold all results of a scalar intrinsic of numbers in such lanes. Lanes of 32 bits hold all."""
    if not lanes.is_narrow:
        return True
    reach = dtypes.int_range(lanes.dtype)
    ends = dict.fromkeys((param for param in intrin.params if isinstance(param, ir.Var)), reach)
    bounds = bounds_of(intrin.meaning, ends) if isinstance(intrin.meaning, ir.Expr) else None
    return bounds is not None and within(bounds, reach)


@lru_cache(maxsize=1024)
def find_lane_operation(intrin: Intrin) -> tuple[str, Lanes] | None:
    """Return the operation that an intrinsic computes in the lanes of a vector narrower than int32, and the lanes: one of
    :data:`~microc.tir.names.LANE_OPERATIONS`. Its meaning decides, not its name.

    None for other intrinsics."""
    registers = [
        dtype for dtype in (intrin.result, *(p.dtype for p in intrin.params)) if dtype and dtypes.is_vector(dtype)
    ]
    if not intrin.lanes or intrin.scalable or not registers:
        return None
    kind, bits, count = dtypes.dtype_parts(registers[0])
    if bits >= 32 or f"{kind}{bits}" not in SUFFIXES:
        return None
    lanes = Lanes(f"{kind}{bits}", count)
    for operation in LANE_OPERATIONS:
        wanted = build_lane_operation(f"{operation}_{lanes.suffix}")
        if wanted is not None and _have_equal_meanings(wanted, intrin):
            return operation, lanes
    return None


def _have_equal_meanings(wanted: Intrin, declared: Intrin) -> bool:
    """Test whether two intrinsics have parameters of the same dtypes, in this order, and equal meanings.

    An operation has no limits. Values in other forms are compared at all pairs of :data:`_SAMPLES`, which tell operations that
    wrap, saturate, round or average apart."""
    if len(wanted.params) != len(declared.params) or wanted.lanes != declared.lanes or declared.limits:
        return False
    names: dict[ir.Var, ir.Expr] = {}
    buffers: dict[ir.Buffer, ir.Buffer] = {}
    for p, q in zip(declared.params, wanted.params, strict=True):
        if p.dtype != q.dtype:
            return False
        if isinstance(p, ir.Buffer) and isinstance(q, ir.Buffer):
            buffers[p] = q
        elif isinstance(p, ir.Var) and isinstance(q, ir.Var):
            element = dtypes.dtype_parts(p.dtype)
            dtype = f"{element.kind}{element.bits}" if dtypes.is_vector(p.dtype) else p.dtype
            names[ir.Var(p.name, dtype)] = ir.Var(q.name, dtype)
        else:
            return False
    match wanted.meaning, declared.meaning:
        case ir.Store(buffer, indices, x), ir.Store(own, own_indices, y) if (
            buffers.get(own) == buffer and indices == own_indices
        ):
            pass
        case ir.Load(buffer, indices), ir.Load(own, own_indices):
            return buffers.get(own) == buffer and indices == own_indices
        case ir.Expr() as x, ir.Expr() as y:
            pass
        case _:
            return False
    y = substitute(y, names)
    if (
        x == y
        or x.dtype != y.dtype
        or free_vars(y) != free_vars(x)
        or any(isinstance(e, ir.Load) for e in walk_expr(y))
    ):
        return x == y
    operands = sorted(free_vars(x), key=lambda var: var.name)
    ranges = [dtypes.int_range(var.dtype) for var in operands]
    samples = [[n for n in _SAMPLES if low <= n <= high] for low, high in ranges]
    for numbers in itertools.product(*samples):
        values: dict[ir.Var, ir.Expr] = {v: ir.Const(n, v.dtype) for v, n in zip(operands, numbers, strict=True)}
        if simplify(substitute(x, values)) != simplify(substitute(y, values)):
            return False
    return True


_SAMPLES = sorted(
    {s * (1 << k) + d for k in (0, 7, 8, 15, 16) for s in (-1, 1) for d in (-1, 0, 1)} | {5, 77, 12345, -3210}
)
"""Numbers at which meanings are compared: the ends of all ranges of 8 and 16 bits, numbers around zero, and others."""


def _pattern_key(meaning: ir.Expr) -> object:
    """Return the key by which a meaning is looked up: the limits of a clamp, or the outermost operator with the dtype of its
    result."""
    clamp = match_int32_clamp(meaning) if isinstance(meaning, ir.Bin) else None
    return (root_operator(meaning), meaning.dtype) if clamp is None else clamp[1]


def _lookup_keys(expr: ir.Expr) -> tuple[object, ...]:
    """Return the keys of the meanings that may be equal to an expression, in the order in which they are tried."""
    match expr:
        case ir.Const() | ir.Var() | ir.Load():
            return ()
        case ir.Bin("max", ir.Bin("min")):
            roots: tuple[str, ...] = ("min", "max")
        case ir.Call(name) if name in SCALAR:
            meaning = SCALAR[name].meaning
            roots = (name, root_operator(meaning))
        case ir.Select() | ir.Cast() | ir.Un() | ir.Bin("mul" | "sub"):
            equal = equal_form(expr)
            roots = (root_operator(expr), *(() if equal is expr else (root_operator(equal),)))
        case _:
            roots = (root_operator(expr),)
    keys = tuple((root, expr.dtype) for root in roots)
    clamp = match_int32_clamp(expr)
    return keys if clamp is None else (clamp[1], *keys)


def _meaning_size(intrin: Intrin) -> int:
    """Return the number of nodes of the meaning of an intrinsic."""
    return sum(1 for _ in walk_expr(intrin.meaning)) if isinstance(intrin.meaning, ir.Expr) else 0


def match_arguments(intrin: Intrin, meaning: ir.Expr, expr: ir.Expr) -> Iterator[tuple[ir.Expr, ...]]:
    """Iterate over the arguments with which an intrinsic computes ``expr``, within the limits of its parameters."""
    if isinstance(expr, ir.Bin) and expr.op == "mul" and any(isinstance(x, ir.Const) for x in (expr.a, expr.b)):
        return  # the C compiler multiplies by a constant in fewer instructions
    for operands in unify(meaning, expr, {}):
        args = build_arguments(intrin, operands)
        if args is not None and not any(list_faults(intrin, args)) and _are_operands(args, expr):
            yield args


def find_occurrences(func: ir.PrimFunc, name: str) -> Iterator[str]:
    """Yield one text for each occurrence of an intrinsic's meaning in a function: the reason why the intrinsic cannot be called
    there, or an empty string if it can."""
    yield from (call.fault for _, call in find_memory_calls(func, name))
    index, intrin = _index_intrinsics((name,), (), SCALAR.entries), SCALAR[name]
    for expr in walk_all_exprs(func.body):
        for meaning in index.find(expr):
            for operands in unify(meaning.expr, normalise_clamp(expr)[0], {}):
                args = build_arguments(intrin, operands)
                if args is not None:
                    yield next(list_faults(intrin, args), "")


def find_equal_intrinsic(intrin: Intrin) -> str:
    """Return the name of another scalar intrinsic that computes the same of as many parameters; empty if there is none."""
    for other in SCALAR.values():
        if other.name != intrin.name and other.is_scalar and other.result == intrin.result and intrin.is_scalar:
            for operands in unify(other.meaning, intrin.meaning, {}) if isinstance(intrin.meaning, ir.Expr) else ():
                if set(operands.values()) == set(intrin.params) and len(other.params) == len(intrin.params):
                    return other.name
    return ""


def _are_operands(args: Sequence[ir.Expr], expr: ir.Expr) -> bool:
    """Test whether an expression computes all arguments, or their terms. Others, of an equal form, would cost more."""
    known = set(walk_expr(expr))
    values = (arg for arg in args if not isinstance(arg, ir.AddressOf))
    return all(isinstance(term, ir.Const) or term in known for arg in values for term in list_terms(arg))


def result_bounds(name: str) -> tuple[int, int] | None:
    """Return the bounds of all results of a scalar intrinsic within the limits of its parameters; None if unknown."""
    return _result_bounds(name, SCALAR.entries)


@lru_cache(maxsize=1024)
def _result_bounds(name: str, _entries: object) -> tuple[int, int] | None:
    """Return :func:`result_bounds`. The contents of the registry are part of the key, since plugins extend it."""
    intrin = SCALAR.get(name)
    if intrin is None or not intrin.is_scalar or not isinstance(intrin.meaning, ir.Expr):
        return None
    limits = {name: (low, high) for name, low, high in intrin.limits}
    bounds = {
        param: limits[param.name] for param in intrin.params if isinstance(param, ir.Var) and param.name in limits
    }
    return bounds_of(intrin.meaning, bounds) if dtypes.is_integer(intrin.result) else None


def _is_exact(name: str, narrow: str) -> bool:
    """Test whether the dtype ``narrow`` holds all results of the intrinsic ``name``."""
    bounds = result_bounds(name) if dtypes.is_integer(narrow) else None
    return bounds is not None and within(bounds, dtypes.int_range(narrow))
