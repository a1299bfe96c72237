"""Common subexpression elimination in straight-line code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from microc.base import dtypes
from microc.tir import ir
from microc.tir.analysis.context import buffers_read, buffers_written, is_index
from microc.tir.analysis.simplification import linear
from microc.tir.rewrite import ExprMap, accesses_of, children, free_vars, map_children, stmt_exprs, walk_stmt

# ---- Value numbering: equal expressions get equal numbers, which are compared and hashed in constant time; hashing an
# expression itself costs as much as walking it.


class ValueFacts(NamedTuple):
    """Knowledge about an expression: its value number, the buffers that it accesses, and whether it loads or calls
    (``computed``)."""

    number: int
    buffers: frozenset[ir.Buffer]
    computed: bool


_NONE: frozenset[ir.Buffer] = frozenset()
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
"""What distinguishes an expression from others of its class with the same operands."""


class ValueNumbering:
    """Value numbers and facts of expressions, memoised by identity and derived from those of their operands."""

    def __init__(self) -> None:
        self._facts: dict[int, tuple[ir.Expr, ValueFacts]] = {}
        self._numbered: dict[object, ValueFacts] = {}

    def of(self, expr: ir.Expr) -> ValueFacts:
        """Return the facts of an expression."""
        found = self._facts.get(id(expr))
        if found is None:
            # The entry keeps the expression alive, so that its id is not used again.
            found = self._facts[id(expr)] = (expr, self._compute_facts(expr))
        return found[1]

    def _compute_facts(self, expr: ir.Expr) -> ValueFacts:
        """Compute the facts of an expression from those of its operands; equal expressions get the same value number."""
        if is_index(expr):  # it reads nothing, and knows its hash
            return self._numbered.get(expr) or self._numbered.setdefault(
                expr, ValueFacts(len(self._numbered), _NONE, False)
            )
        kind, parts = type(expr), [self.of(child) for child in children(expr)]
        key = (kind, _OWN[kind](expr), *[part.number for part in parts])
        found = self._numbered.get(key)
        if found is None:
            buffers = _NONE.union(*[part.buffers for part in parts])
            if isinstance(expr, (ir.Load, ir.AddressOf)):
                buffers = buffers | {expr.buffer}
            computed = bool(buffers) or isinstance(expr, ir.Call) or any(part.computed for part in parts)
            found = self._numbered[key] = ValueFacts(len(self._numbered), buffers, computed)
        return found


# ---- Values that straight-line code computes more than once get a name.
#
# Register blocking depends on it: after unrolling, every widened pair of weights is used for several pixels, and every
# widened pair of activations for several channels; each is loaded and widened once. A C compiler might find them, too,
# but only if it can exclude aliasing; named values make the C show what it does.

Versions = dict[ir.Buffer, int]
Key = tuple[int, tuple[int, ...]]
"""Number of an expression, and how often each buffer it reads has been written before."""


def share_values(stmt: ir.Stmt) -> ir.Stmt:
    """Introduce lets for repeated values in every run of stores; the order of stores stays."""
    return _ValueSharing(stmt).walk(stmt)


class _ValueSharing:
    """State of the elimination in one function: the names in use, and the value numbers."""

    def __init__(self, root: ir.Stmt) -> None:
        self.taken = {var.name for s in walk_stmt(root) for whole in stmt_exprs(s) for var in free_vars(whole)}
        self.taken |= {s.buffer.name for s in walk_stmt(root) if isinstance(s, ir.Alloc)}
        self.taken |= {buffer.name for buffer in buffers_read(root) | buffers_written(root)}
        self.counters: dict[str, int] = {}
        self.known = ValueNumbering()

    def walk(self, stmt: ir.Stmt) -> ir.Stmt:
        """Share values in ``stmt``; runs end at statements other than stores and calls."""
        match stmt:
            case ir.Seq(body):
                result: list[ir.Stmt] = []
                run: list[ir.Stmt] = []
                for child in body:
                    if isinstance(child, (ir.Store, ir.Evaluate)):
                        run.append(child)
                    else:
                        result += [*self.run(run), self.walk(child)]
                        run = []
                return _nest_lets(result + self.run(run))
            case ir.Store() | ir.Evaluate():
                return _nest_lets(self.run([stmt]))
            case ir.For(var, extent, body, kind, annotations):
                return ir.For(var, extent, self.walk(body), kind, annotations)
            case ir.If(condition, then, otherwise):
                return ir.If(condition, self.walk(then), self.walk(otherwise) if otherwise else None)
            case ir.Let(var, value, body):
                return ir.Let(var, value, self.walk(body))
            case ir.Alloc(buffer, body):
                return ir.Alloc(buffer, self.walk(body))
            case _:
                return stmt

    def fresh(self, expr: ir.Expr) -> ir.Var:
        """Return a new variable named after the source of the value: the first buffer it reads, else the function it
        calls."""
        sources = [x.buffer.name for x in accesses_of(expr) if x.buffer.scope != "register"]
        stem = sources[0] if sources else expr.name if isinstance(expr, ir.Call) else "t"
        number = self.counters.get(stem, 0)
        while f"{stem}_{number}" in self.taken:
            number += 1
        self.counters[stem] = number + 1
        name = f"{stem}_{number}"
        self.taken.add(name)
        return ir.Var(name, expr.dtype)

    def run(self, stmts: list[ir.Stmt]) -> list[ir.Stmt]:
        """Insert lets, with bodies still empty, before the first use of every repeated value of a run (consecutive stores
        and calls).

        Values are counted first, and replaced in a second pass. Versions of buffers make a value that is read again
        after a store a different value."""
        counts: dict[Key, int] = {}
        versions: Versions = {}
        for stmt in stmts:
            for expr in _computed_values(stmt):
                self.count_values(expr, counts, versions)
            _advance_versions(stmt, versions)
        if not any(n > 1 for n in counts.values()):
            return stmts
        names: dict[Key, ir.Var] = {}
        result: list[ir.Stmt] = []
        versions = {}
        for stmt in stmts:
            result += self.rebuild(stmt, counts, names, versions)
            _advance_versions(stmt, versions)
        return result

    def rebuild(
        self, stmt: ir.Stmt, counts: dict[Key, int], names: dict[Key, ir.Var], versions: Versions
    ) -> list[ir.Stmt]:
        """Replace repeated values in a statement by names; put the lets of new names before it."""
        lets: list[ir.Let] = []

        def replace_repeated(expr: ir.Expr) -> ir.Expr:
            facts = self.known.of(expr)
            if not facts.computed:
                return expr
            if not _is_worth_naming(expr):
                return expr if isinstance(expr, (ir.Load, ir.AddressOf)) else _map_strict(expr, replace_repeated)
            key = _versioned_key(facts, versions)
            if counts.get(key, 0) < 2:
                return expr if isinstance(expr, ir.Load) else _map_strict(expr, replace_repeated)
            if key not in names:
                value = expr if isinstance(expr, ir.Load) else _map_strict(expr, replace_repeated)
                names[key] = self.fresh(expr)
                lets.append(ir.Let(names[key], value, _HOLE))
            return names[key]

        match stmt:
            case ir.Store(buffer, indices, value):
                stored: ir.Stmt = ir.Store(buffer, indices, replace_repeated(value))
            case ir.Evaluate(value):
                stored = ir.Evaluate(_map_strict(value, replace_repeated))
            case _:
                stored = stmt
        return [*_sort_by_address(lets), stored]

    def count_values(self, expr: ir.Expr, counts: dict[Key, int], versions: Versions) -> None:
        """Count how often each value that may get a name is computed."""
        facts = self.known.of(expr)
        if not facts.computed:
            return
        if _is_worth_naming(expr):
            key = _versioned_key(facts, versions)
            counts[key] = counts.get(key, 0) + 1
            # Operands of a repeated value are computed once, with it: they are counted at its first occurrence only.
            if counts[key] > 1 or isinstance(expr, ir.Load):
                return
        for child in _strict_children(expr):
            self.count_values(child, counts, versions)


def _is_worth_naming(expr: ir.Expr) -> bool:
    """Test whether a value is worth a name: loads from memory, calls, arithmetic on these, conversions of loaded
    integers or half floats to float32. Register loads are not."""
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


def _versioned_key(facts: ValueFacts, versions: Versions) -> Key:
    """Return the key of a value at the current versions of the buffers that it reads."""
    return facts.number, tuple([versions.get(b, 0) for b in facts.buffers])


_HOLE = ir.Seq(())


def _sort_by_address(lets: list[ir.Let]) -> list[ir.Let]:
    """Put loads first, in order of address, then the values computed from them: a C compiler merges loads of
    adjacent words."""
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
    """Return an element's offset in its buffer as variable terms with their factors, and a constant."""
    varying: Counter[ir.Expr] = Counter()
    start = 0
    for index, stride in zip(indices, buffer.strides, strict=True):
        terms, offset = linear(index)
        start += offset * stride
        varying.update({term: factor * stride for term, factor in terms.items()})
    return frozenset(item for item in varying.items() if item[1]), start


def _nest_lets(stmts: Iterable[ir.Stmt]) -> ir.Stmt:
    """Move everything that follows a let with an empty body into that body."""
    rest: list[ir.Stmt] = []
    for stmt in reversed(list(stmts)):
        if isinstance(stmt, ir.Let) and stmt.body == _HOLE:
            rest = [ir.Let(stmt.var, stmt.value, ir.seq(*reversed(rest)))]
        else:
            rest.append(stmt)
    return ir.seq(*reversed(rest))


def _computed_values(stmt: ir.Stmt) -> tuple[ir.Expr, ...]:
    """Return the values that a statement computes."""
    match stmt:
        case ir.Store(_, _, value) | ir.Evaluate(value):
            return (value,)
        case _:
            return ()


def _strict_children(expr: ir.Expr) -> tuple[ir.Expr, ...]:
    """Return the operands that are always evaluated. A guarded load must not move in front of its guard; indices do
    not count."""
    match expr:
        case ir.Load() | ir.AddressOf():
            return ()
        case ir.Select(condition):
            return (condition,)
        case ir.Bin("and" | "or", a):
            return (a,)
        case ir.Bin(_, a, b):
            return (a, b)
        case ir.Un(_, a) | ir.Cast(_, a):
            return (a,)
        case ir.Call(_, args):
            return args
        case _:
            return ()


def _map_strict(expr: ir.Expr, transform: ExprMap) -> ir.Expr:
    """Map the operands that are always evaluated."""
    match expr:
        case ir.Load() | ir.AddressOf():
            return expr
        case ir.Select(condition, a, b):
            return ir.Select(transform(condition), a, b)
        case ir.Bin(("and" | "or") as op, a, b):
            return ir.Bin(op, transform(a), b)
        case _:
            return map_children(expr, transform)


def _advance_versions(stmt: ir.Stmt, versions: Versions) -> None:
    """Increment the versions of the buffers that a statement writes."""
    written = [x.buffer for e in stmt_exprs(stmt) for x in accesses_of(e) if isinstance(x, ir.AddressOf) and x.writes]
    if isinstance(stmt, ir.Store):
        written.append(stmt.buffer)
    for buffer in written:
        versions[buffer] = versions.get(buffer, 0) + 1
