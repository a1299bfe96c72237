# SPDX-License-Identifier: Apache-2.0
"""Selection of intrinsics that store to memory by their meanings.

Such an intrinsic has pointers as parameters, and a meaning of one of two forms:

- ``p[0] = value(q[0], a)``: a store;
- ``for k in range(n): p[k] = value(q[k], a)``: a loop over contiguous elements, where n is a number or a parameter.

A loop of the function whose trip count is a multiple of n becomes a loop of calls. If n is a parameter, one call replaces the
loop. Values are matched as those of other intrinsics (:func:`.unification.unify`); a pointer matches the address of the element
at distance 0. Intrinsics that compute a value from elements are selected with those of scalars (:mod:`.selection`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

from microc.base import dtypes
from microc.isa import SCALAR, Intrin
from microc.schedule.primitives.unification import Operands, pointer_of, unify
from microc.tir import ir
from microc.tir.analysis.linear_forms import within
from microc.tir.analysis.simplification import bounds_of, linear, simplify
from microc.tir.rewrite import accesses_of, free_vars, map_stmt, substitute, walk_stmt

# ---- Meanings


class RunPattern(NamedTuple):
    """The meaning of an intrinsic that stores: ``store``, in ``loop`` if it stores several elements."""

    store: ir.Store
    loop: ir.For | None


def match_run_pattern(intrin: Intrin) -> RunPattern | None:
    """Return the meaning of an intrinsic that stores contiguous elements by a formula; None for any other meaning."""
    match intrin.meaning:
        case ir.Store() as store if not intrin.lanes:
            return RunPattern(store, None)
        case ir.For(var, ir.Const() | ir.Var(), ir.Store(_, indices, value) as store) as loop if not intrin.lanes:
            distances = (indices, *(access.indices for access in accesses_of(value)))
            return RunPattern(store, loop) if all(_is_contiguous(i, var) for i in distances) else None
        case _:
            return None


def _is_contiguous(distance: Sequence[ir.Expr], var: ir.Var) -> bool:
    """Test whether iterations of the loop over ``var`` access contiguous elements at a distance from a pointer."""
    return len(distance) == 1 and linear(simplify(distance[0]))[0] == {var: 1}


def is_selected_in_memory(name: str) -> bool:
    """Test whether an intrinsic that accesses memory is called where its meaning occurs. Intrinsics of the vocabulary are not:
    the rules and passes that call them also prepare alignment and layout."""
    if name not in SCALAR or name in SCALAR.permanent_names or SCALAR[name].is_scalar:
        return False
    return SCALAR[name].is_formula or match_run_pattern(SCALAR[name]) is not None


# ---- Arguments: operands of scalars, and addresses of pointers


def build_arguments(intrin: Intrin, operands: Operands, count: int = 1) -> tuple[ir.Expr, ...] | None:
    """Build the arguments of a call from the operands that :func:`.unify` found; None if a parameter has none.

    ``count``: number of iterations of the loop in the meaning. A pointer is the address of all elements that the meaning accesses
    then; the first is at distance 0."""
    pattern = match_run_pattern(intrin)
    value = intrin.meaning if pattern is None else pattern.store.value
    assert isinstance(value, ir.Expr)
    accesses = [*accesses_of(value), *([ir.Load(pattern.store.buffer, pattern.store.indices)] if pattern else [])]
    args: list[ir.Expr] = []
    for param in intrin.params:
        arg = operands.get(param if isinstance(param, ir.Var) else pointer_of(param))
        if isinstance(param, ir.Buffer) and isinstance(arg, ir.Load):
            distances = [linear(simplify(access.indices[0]))[1] for access in accesses if access.buffer == param]
            writes = pattern is not None and param == pattern.store.buffer
            arg = ir.AddressOf(arg.buffer, arg.indices, max(distances) + count, writes) if min(distances) == 0 else None
        if arg is None:
            return None
        args.append(arg)
    return tuple(args)


def list_faults(intrin: Intrin, args: Sequence[ir.Expr]) -> Iterator[str]:
    """Yield the reasons why a call whose result is right is impossible: arguments beyond the limits of parameters, and elements
    without an address."""
    limits = {name: (low, high) for name, low, high in intrin.limits}
    pattern = match_run_pattern(intrin)
    read = {x.buffer for x in accesses_of(pattern.store.value)} if pattern else set()
    written = {arg.buffer for arg in args if isinstance(arg, ir.AddressOf) and arg.writes}
    for param, arg in zip(intrin.params, args, strict=True):
        if isinstance(arg, ir.AddressOf):
            name = arg.buffer.name
            if arg.buffer.scope in ("register", *ir.UNIT_SCOPES):
                yield f"{name} is in registers, and {param.name} is a pointer"
            elif not arg.writes and arg.buffer in written:
                yield f"{param.name} points into {name}, to which the call writes"
            elif arg.writes and param in read and arg.buffer.scope == "global":
                # The memory plan counts an address that a call writes to as written only: it would not keep what is read there.
                yield f"{name} is an operand of the kernel, from which {param.name} reads what it replaces"
        elif param.name in limits:
            low, high = limits[param.name]
            bounds = bounds_of(arg) or dtypes.int_range(arg.dtype)
            if not within(bounds, (low, high)):
                yield f"{param.name} may be {bounds[0]} to {bounds[1]}, its limits are {low} to {high}"


# ---- Statements that are meanings


class MemoryCall(NamedTuple):
    """Calls of an intrinsic in place of a statement.

    ``call``: the call. ``repeats``: number of calls. ``rewritten``: statement that makes the calls. ``fault``: the reason why
    they are impossible; empty if they are possible."""

    call: ir.Call
    repeats: int
    rewritten: ir.Stmt
    fault: str


def find_memory_calls(func: ir.PrimFunc, name: str) -> Iterator[tuple[ir.Stmt, MemoryCall]]:
    """Yield the statements of a function that are the meaning of the intrinsic ``name``, with the calls that are equal."""
    scalar_loops = _list_scalar_loops(func)
    for stmt in walk_stmt(func.body):
        call = match_statement(stmt, SCALAR[name], scalar_loops)
        if call is not None:
            yield stmt, call


def select_in_memory(func: ir.PrimFunc, names: Sequence[str]) -> tuple[ir.PrimFunc, set[str]]:
    """Replace statements that are meanings of the intrinsics ``names`` by calls. Loops are replaced before the stores in them; if
    several intrinsics match, the first of ``names`` is called. Return the function, and the names of the called intrinsics.

    Formulas among ``names`` are ignored."""
    called = set[str]()
    loops = [name for name in names if isinstance(SCALAR[name].meaning, ir.For)]
    for tried in (loops, [name for name in names if name not in loops]):
        scalar_loops = _list_scalar_loops(func) if tried else frozenset()

        def on_stmt(stmt: ir.Stmt, tried: Sequence[str] = tried, known: Set[ir.Stmt] = scalar_loops) -> ir.Stmt:
            for name in tried:
                call = match_statement(stmt, SCALAR[name], known)
                if call is not None and not call.fault:
                    called.add(name)
                    return call.rewritten
            return stmt

        func = replace(func, body=map_stmt(func.body, on_stmt)) if tried else func
    return func, called


def _list_scalar_loops(func: ir.PrimFunc) -> Set[ir.Stmt]:
    """Return the stores and loops of a function that are in no loop whose iterations run in lanes."""
    in_lanes = {s for loop in walk_stmt(func.body) if _runs_in_lanes(loop) for s in walk_stmt(loop)}
    return {s for s in walk_stmt(func.body) if isinstance(s, (ir.Store, ir.For)) and s not in in_lanes}


def _runs_in_lanes(stmt: ir.Stmt) -> bool:
    """Test whether a statement is a loop that lowering vectorises or moves by words: they lower the stores in it."""
    return isinstance(stmt, ir.For) and (stmt.kind in ("vectorized", "scalable") or bool(stmt.annotations))


def match_statement(stmt: ir.Stmt, intrin: Intrin, scalar_loops: Set[ir.Stmt]) -> MemoryCall | None:
    """Return the calls of an intrinsic that are equal to a statement, one of ``scalar_loops``; None if there are none. Of several
    calls, the first possible one is returned."""
    pattern = match_run_pattern(intrin)
    if pattern is None or not isinstance(stmt, (ir.Store, ir.For)) or stmt not in scalar_loops:
        return None
    match stmt, pattern.loop:
        case ir.Store(), None:
            calls = [*_match_store(intrin, pattern, stmt)]
        case ir.For(kind="serial" | "unrolled"), ir.For():
            calls = [*_match_loop(intrin, pattern, pattern.loop, stmt)]
        case _:
            return None
    return min(calls, key=lambda call: bool(call.fault), default=None)


def _match_store(intrin: Intrin, pattern: RunPattern, store: ir.Store) -> Iterator[MemoryCall]:
    """Yield the calls that are equal to a store."""
    for args in _match_elements(intrin, pattern, store, {}, 1):
        call = ir.Call(intrin.name, args, "int32")
        yield MemoryCall(call, 1, ir.Evaluate(call), next(list_faults(intrin, args), ""))


def _match_elements(
    intrin: Intrin, pattern: RunPattern, store: ir.Store, known: Operands, count: int
) -> Iterator[tuple[ir.Expr, ...]]:
    """Yield the arguments with which an intrinsic stores what ``store`` does. ``known`` and ``count``: as for :func:`unify` and
    :func:`build_arguments`."""
    first, target = (ir.Load(s.buffer, s.indices) for s in (pattern.store, store))
    for operands in unify(first, target, known):
        for all_operands in unify(pattern.store.value, store.value, operands):
            args = build_arguments(intrin, all_operands, count)
            if args is not None:
                yield args


def _match_loop(intrin: Intrin, pattern: RunPattern, run: ir.For, loop: ir.For) -> Iterator[MemoryCall]:
    """Yield the calls that are equal to a loop of stores, or of a block that stores one element.

    Call number x covers the elements ``size`` x + k of the loop, 0 <= k < ``size``, counted by the iterator of its block, or by
    its variable if there is no block. ``run``: the loop in the meaning."""
    trips = ir.int_value(loop.extent) or 0
    size = ir.int_value(run.extent) or trips
    block = loop.body if isinstance(loop.body, ir.Block) else None
    store = block.body if block else loop.body
    if not isinstance(store, ir.Store) or not trips or trips % size:
        return
    element, step = loop.var, ir.Var(f"{loop.var.name}_of_run")
    iters: list[ir.IterVar] = []
    if block is not None:
        if block.init is not None or block.predicate is not None:
            return
        counting = [i for i in block.iters if loop.var in free_vars(i.binding)]
        if len(counting) != 1 or counting[0].kind != "space" or counting[0].extent % size:
            return
        element = counting[0].var
        binding = _divide(substitute(counting[0].binding, {loop.var: loop.var * size}), loop.var, size)
        if binding is None:
            return
        reduced = replace(counting[0], extent=counting[0].extent // size, binding=binding)
        iters = [reduced if i is counting[0] else i for i in block.iters]
    at = {element: element * size + step}
    indices = tuple(simplify(substitute(i, at)) for i in store.indices)
    elements = ir.Store(store.buffer, indices, substitute(store.value, at))
    known: Operands = (
        {run.var: step} if isinstance(run.extent, ir.Const) else {run.var: step, run.extent: ir.const(size, "int32")}
    )
    for args in _match_elements(intrin, pattern, elements, known, size):
        if any(step in free_vars(arg) for arg in args) or any(_reads(arg, store.buffer) for arg in args):
            continue
        call = ir.Call(intrin.name, args, "int32")
        body: ir.Stmt = ir.Evaluate(call)
        body = body if block is None else replace(block, iters=tuple(iters), body=body)
        rewritten = replace(loop, extent=ir.const(trips // size, "int32"), body=body)
        yield MemoryCall(call, trips // size, rewritten, next(list_faults(intrin, args), ""))


def _reads(arg: ir.Expr, buffer: ir.Buffer) -> bool:
    """Test whether an operand is computed from elements of a buffer, which the loop may change."""
    return not isinstance(arg, ir.AddressOf) and any(access.buffer == buffer for access in accesses_of(arg))


def _divide(binding: ir.Expr, var: ir.Var, divisor: int) -> ir.Expr | None:
    """Return the exact quotient of a binding by a divisor, in which ``var`` counts runs; None if it is not known to be exact."""
    terms, constant = linear(simplify(binding))
    if terms.get(var) != divisor or any(factor % divisor for factor in (*terms.values(), constant)):
        return None
    quotient: ir.Expr = ir.const(constant // divisor, "int32")
    for term, factor in terms.items():
        quotient = quotient + term * (factor // divisor)
    return simplify(quotient)
