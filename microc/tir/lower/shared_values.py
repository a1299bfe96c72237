# SPDX-License-Identifier: Apache-2.0
"""Common subexpression elimination in straight-line code (sequences of stores and calls), by value numbering."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from microc.base import dtypes
from microc.tir import ir
from microc.tir.analysis.context import is_index
from microc.tir.analysis.simplification import linear
from microc.tir.rewrite import ExprMap, accesses_of, children, free_vars, map_children, stmt_exprs, walk_stmt

# ---- Value numbering: equal expressions get equal numbers. Numbers are hashed in constant time, whereas hashing an expression
# costs as much as walking it.


class ValueFacts(NamedTuple):
    """Facts about an expression: its value number, and the names of the buffers that it accesses.

    ``is_worth_naming``: True if the value, where it is repeated, should be bound to a variable."""

    value_number: int
    buffer_names: frozenset[str]
    has_load_or_call: bool
    is_worth_naming: bool


_NONE: frozenset[str] = frozenset()
_OWN: Mapping[type[ir.Expr], Callable[[Any], object]] = MappingProxyType(
    {
        ir.Const: lambda x: x,
        ir.Var: lambda x: x,
        ir.Bin: attrgetter("op"),
        ir.Un: attrgetter("op"),
        ir.Cast: attrgetter("dtype"),
        ir.Load: attrgetter("buffer"),
        ir.AddressOf: attrgetter("buffer", "extent", "writes", "step"),
        ir.Call: attrgetter("name", "dtype"),
        ir.Select: type,
    }
)
"""Functions that return, by class, the fields that distinguish an expression from others of its class with equal operands."""


class ValueNumbering:
    """Table of value numbers and facts of expressions, derived from those of their operands and cached by identity."""

    def __init__(self) -> None:
        self._facts: dict[int, ValueFacts] = {}
        self._alive: list[ir.Expr] = []  # the expressions of ``_facts``, so that their ids are not used again
        self._numbered: dict[object, ValueFacts] = {}

    def facts_of(self, expr: ir.Expr) -> ValueFacts:
        """Return the facts about an expression, including its value number."""
        found = self._facts.get(id(expr))
        if found is None:
            found = self._facts[id(expr)] = self._compute_facts(expr)
            self._alive.append(expr)
        return found

    def _compute_facts(self, expr: ir.Expr) -> ValueFacts:
        """Compute the facts about an expression from those of its operands. Equal expressions get the same value number."""
        if is_index(expr):  # it loads nothing, and its hash is cached
            return self._numbered.get(expr) or self._numbered.setdefault(
                expr, ValueFacts(len(self._numbered), _NONE, False, False)
            )
        kind, parts = type(expr), [self.facts_of(child) for child in children(expr)]
        key = (kind, _OWN[kind](expr), *[part.value_number for part in parts])
        found = self._numbered.get(key)
        if found is None:
            buffers = _NONE.union(*[part.buffer_names for part in parts])
            if isinstance(expr, (ir.Load, ir.AddressOf)):
                buffers = buffers | {expr.buffer.name}
            computed = bool(buffers) or isinstance(expr, ir.Call) or any(part.has_load_or_call for part in parts)
            nameable = computed and _is_worth_naming(expr)
            found = self._numbered[key] = ValueFacts(len(self._numbered), buffers, computed, nameable)
        return found


# ---- Elimination: a value that straight-line code computes more than once is bound to a variable.
#
# Register tiles depend on it: after unrolling, every widened pair of weights is used for several pixels, and every widened pair
# of activations for several channels. Each pair should be loaded and widened once. A C compiler finds such values only if it can
# exclude aliasing. Variables also make the generated C easier to read.

Versions = dict[str, int]
"""Numbers of writes so far, by name of the buffer."""
Key = tuple[int, tuple[int | None, ...]]
"""Key of a value: the value number of an expression, and the number of earlier writes to each buffer that it reads."""


def share_values(stmt: ir.Stmt) -> ir.Stmt:
    """Return a statement in which let statements bind the repeated values of every sequence of stores and calls.

    The order of the stores and calls does not change."""
    return _ValueSharing(stmt).share_values_in_statement(stmt)


class _ValueSharing:
    """Common subexpression elimination in one function: the names in use, and the value numbers of expressions."""

    def __init__(self, root: ir.Stmt) -> None:
        self.taken: set[str] = set()
        for s in walk_stmt(root):
            if isinstance(s, (ir.For, ir.Let)):
                self.taken.add(s.var.name)
            elif isinstance(s, (ir.Alloc, ir.Store)):
                self.taken.add(s.buffer.name)
            for expr in stmt_exprs(s):
                self.taken.update([access.buffer.name for access in accesses_of(expr)])
                self.taken.update([var.name for var in free_vars(expr)])
        self.counters: dict[str, int] = {}
        self.known = ValueNumbering()

    def share_values_in_statement(self, stmt: ir.Stmt) -> ir.Stmt:
        """Return ``stmt`` with repeated values bound to variables.

        Values are shared within a run: consecutive stores and calls. Any other statement ends a run."""
        match stmt:
            case ir.Seq(body):
                result: list[ir.Stmt] = []
                run: list[ir.Stmt] = []
                for child in body:
                    if isinstance(child, (ir.Store, ir.Evaluate)):
                        run.append(child)
                    else:
                        result += [*self.share_values_in_run(run), self.share_values_in_statement(child)]
                        run = []
                return _nest_lets(result + self.share_values_in_run(run))
            case ir.Store() | ir.Evaluate():
                return _nest_lets(self.share_values_in_run([stmt]))
            case ir.For(var, extent, body, kind, annotations):
                return ir.For(var, extent, self.share_values_in_statement(body), kind, annotations)
            case ir.If(condition, then, otherwise):
                return ir.If(
                    condition,
                    self.share_values_in_statement(then),
                    self.share_values_in_statement(otherwise) if otherwise else None,
                )
            case ir.Let(var, value, body):
                return ir.Let(var, value, self.share_values_in_statement(body))
            case ir.Alloc(buffer, body):
                return ir.Alloc(buffer, self.share_values_in_statement(body))
            case _:
                return stmt

    def fresh_variable(self, expr: ir.Expr) -> ir.Var:
        """Return a new variable for a value, named after the first buffer that it loads from, else after the called function."""
        sources = [x.buffer.name for x in accesses_of(expr) if x.buffer.scope != "register"]
        stem = sources[0] if sources else expr.name if isinstance(expr, ir.Call) else "t"
        number = self.counters.get(stem, 0)
        while f"{stem}_{number}" in self.taken:
            number += 1
        self.counters[stem] = number + 1
        name = f"{stem}_{number}"
        self.taken.add(name)
        return ir.Var(name, expr.dtype)

    def share_values_in_run(self, stmts: list[ir.Stmt]) -> list[ir.Stmt]:
        """Insert a let statement before the first use of every repeated value of a run (consecutive stores and calls).

        The bodies of the let statements are still empty. Values are counted in a first pass and replaced in a second pass.
        The versions of buffers, which are numbers of earlier writes, distinguish values that are loaded before and after a
        store."""
        counts: dict[Key, int] = {}
        versions: Versions = {}
        for stmt in stmts:
            for expr in _value_of_store_or_call(stmt):
                self.count_values(expr, counts, versions)
            _increment_versions_of_written_buffers(stmt, versions)
        if not any(n > 1 for n in counts.values()):
            return stmts
        names: dict[Key, ir.Var] = {}
        result: list[ir.Stmt] = []
        versions = {}
        for stmt in stmts:
            result += self.replace_repeated_values(stmt, counts, names, versions)
            _increment_versions_of_written_buffers(stmt, versions)
        return result

    def replace_repeated_values(
        self, stmt: ir.Stmt, counts: dict[Key, int], names: dict[Key, ir.Var], versions: Versions
    ) -> list[ir.Stmt]:
        """Replace repeated values in a statement by variables.

        Returns the let statements of new variables, followed by the statement."""
        lets: list[ir.Let] = []
        stored = stmt
        replaced: dict[int, tuple[ir.Expr, ir.Expr, int]] = {}  # the expression is stored, so that its id is not reused

        def replace(expr: ir.Expr) -> ir.Expr:
            facts = self.known.facts_of(expr)
            if not facts.has_load_or_call:
                return expr
            if not facts.is_worth_naming:
                return expr if isinstance(expr, (ir.Load, ir.AddressOf)) else _map_operands(expr, replace, reuse)
            key = _key_with_buffer_versions(facts, versions)
            if counts.get(key, 0) < 2:
                return expr if isinstance(expr, ir.Load) else _map_operands(expr, replace, reuse)
            if key not in names:
                value = expr if isinstance(expr, ir.Load) else _map_operands(expr, replace, reuse)
                names[key] = self.fresh_variable(expr)
                lets.append(ir.Let(names[key], value, _HOLE))
            return names[key]

        def reuse(expr: ir.Expr) -> ir.Expr:
            """Replace values that have variables, and bind no others, in an operand that is not always evaluated."""
            facts = self.known.facts_of(expr)
            if not facts.has_load_or_call:
                return expr
            if facts.is_worth_naming and (key := _key_with_buffer_versions(facts, versions)) in names:
                return names[key]
            if isinstance(expr, (ir.Load, ir.AddressOf)):
                return expr
            # Inlined functions repeat their operands: a walk that ignores this would take exponential time.
            _, result, name_count = replaced.get(id(expr), (expr, expr, -1))
            if name_count != len(names):
                result = map_children(expr, reuse)
                replaced[id(expr)] = expr, result, len(names)
            return result

        match stmt:
            case ir.Store(buffer, indices, value):
                shared = replace(value)
                if shared is not value:  # the same statement keeps its memoised facts
                    stored = ir.Store(buffer, indices, shared)
            case ir.Evaluate(value):
                shared = _map_operands(value, replace, reuse)
                if shared is not value:
                    stored = ir.Evaluate(shared)
            case _:
                pass
        return [*_sort_by_address(lets), stored]

    def count_values(self, expr: ir.Expr, counts: dict[Key, int], versions: Versions) -> None:
        """Count, in ``counts``, how often an expression computes each value that may be bound to a variable."""
        facts = self.known.facts_of(expr)
        if not facts.has_load_or_call:
            return
        if facts.is_worth_naming:
            key = _key_with_buffer_versions(facts, versions)
            counts[key] = count = counts.get(key, 0) + 1
            # Operands of a repeated value are computed once, with it: they are counted at its first occurrence only.
            if count > 1 or isinstance(expr, ir.Load):
                return
        always, sometimes = _operands_by_evaluation(expr)
        for child in always:
            self.count_values(child, counts, versions)
        seen: set[int] = set()
        for child in sometimes:
            self.count_reuses(child, counts, versions, seen)

    def count_reuses(self, expr: ir.Expr, counts: dict[Key, int], versions: Versions, seen: set[int]) -> None:
        """Count, in ``counts``, the values in an operand that is not always evaluated, of those that were computed before.

        ``seen``: ids of the expressions that were walked, which inlined functions repeat."""
        facts = self.known.facts_of(expr)
        if not facts.has_load_or_call or id(expr) in seen:
            return
        seen.add(id(expr))
        if facts.is_worth_naming and (key := _key_with_buffer_versions(facts, versions)) in counts:
            counts[key] += 1
        elif not isinstance(expr, (ir.Load, ir.AddressOf)):
            for child in children(expr):
                self.count_reuses(child, counts, versions, seen)


def _is_worth_naming(expr: ir.Expr) -> bool:
    """Test whether a repeated value should be bound to a variable.

    This holds for loads from memory, calls, arithmetic on these, and conversions of loaded integers or 16-bit floats to
    float32. It does not hold for loads from registers."""
    match expr:
        case ir.Load(buffer):
            return buffer.scope != "register"
        case ir.Call() | ir.Bin():
            return True
        case ir.Cast("float32", ir.Load(buffer)) if buffer.scope != "register":
            return dtypes.is_integer(buffer.dtype) or buffer.dtype in dtypes.HALF
        case ir.Cast(_, a) | ir.Un(_, a):
            return not isinstance(a, ir.Load)
        case _:
            return False


def _key_with_buffer_versions(facts: ValueFacts, versions: Versions) -> Key:
    """Return the key of a value, given the current versions of the buffers that it reads."""
    return facts.value_number, tuple(map(versions.get, facts.buffer_names))


_HOLE = ir.Seq(())


def _sort_by_address(lets: list[ir.Let]) -> list[ir.Let]:
    """Return let statements with loads first, in order of address, followed by the values computed from these.

    The order allows a C compiler to merge loads of adjacent words."""
    if len(lets) < 2:
        return lets
    own = {let.var for let in lets}
    groups: dict[tuple[ir.Buffer, frozenset[tuple[ir.Expr, int]]], list[tuple[int, ir.Let]]] = {}
    rest: list[ir.Let] = []
    for let in lets:
        match let.value:
            case ir.Load(buffer, indices) | ir.Call(_, (ir.AddressOf(buffer, indices),)) if (
                not free_vars(let.value) & own
            ):
                start, offset = _element_offset(buffer, indices)
                groups.setdefault((buffer, start), []).append((offset, let))
            case _:
                rest.append(let)
    reads = [let for group in groups.values() for _, let in sorted(group, key=lambda item: item[0])]
    return [*reads, *rest]


def _element_offset(buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> tuple[frozenset[tuple[ir.Expr, int]], int]:
    """Return the row-major offset of an element as (set of pairs of a variable term and its factor, constant)."""
    varying: Counter[ir.Expr] = Counter()
    start = 0
    for index, stride in zip(indices, buffer.strides, strict=True):
        terms, offset = linear(index)
        start += offset * stride
        varying.update({term: factor * stride for term, factor in terms.items()})
    return frozenset(item for item in varying.items() if item[1]), start


def _nest_lets(stmts: Iterable[ir.Stmt]) -> ir.Stmt:
    """Return a sequence in which all statements after a let statement with an empty body are moved into this body."""
    rest: list[ir.Stmt] = []
    for stmt in reversed(list(stmts)):
        if isinstance(stmt, ir.Let) and stmt.body == _HOLE:
            rest = [ir.Let(stmt.var, stmt.value, ir.seq(*reversed(rest)))]
        else:
            rest.append(stmt)
    return ir.seq(*reversed(rest))


def _value_of_store_or_call(stmt: ir.Stmt) -> tuple[ir.Expr, ...]:
    """Return the value that a store or call statement computes, as a tuple; an empty tuple for other statements."""
    match stmt:
        case ir.Store(_, _, value) | ir.Evaluate(value):
            return (value,)
        case _:
            return ()


def _operands_by_evaluation(expr: ir.Expr) -> tuple[tuple[ir.Expr, ...], tuple[ir.Expr, ...]]:
    """Return the operands of an expression that are always evaluated, and the others, without indices of loads.

    The others may be guarded loads, which must not be moved in front of their guards."""
    match expr:
        case ir.Bin(op, a, b) if op in ir.LOGICAL:
            return (a,), (b,)
        case ir.Select(condition, a, b):
            return (condition,), (a, b)
        case ir.Load() | ir.AddressOf():
            return (), ()
        case _:
            return children(expr), ()


def _map_operands(expr: ir.Expr, always: ExprMap, sometimes: ExprMap) -> ir.Expr:
    """Return an expression with ``always`` applied to the operands that are always evaluated, then ``sometimes`` to the
    others."""
    match expr:
        case ir.Bin(op, a, b) if op in ir.LOGICAL:
            first = always(a)
            return ir.Bin(op, first, sometimes(b))
        case ir.Select(condition, a, b):
            test = always(condition)
            return ir.Select(test, sometimes(a), sometimes(b))
        case ir.Load() | ir.AddressOf():
            return expr
        case _:
            return map_children(expr, always)


def _increment_versions_of_written_buffers(stmt: ir.Stmt, versions: Versions) -> None:
    """Increment the versions (numbers of writes so far) of the buffers that a statement writes."""
    written = [
        x.buffer.name for e in stmt_exprs(stmt) for x in accesses_of(e) if isinstance(x, ir.AddressOf) and x.writes
    ]
    if isinstance(stmt, ir.Store):
        written.append(stmt.buffer.name)
    for name in written:
        versions[name] = versions.get(name, 0) + 1
