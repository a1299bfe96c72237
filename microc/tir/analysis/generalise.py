"""Generalise functions for some sizes to one function for many sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.errors import InternalError
from microc.tir import ir
from microc.tir.analysis.simplification import linear, simplify_stmt
from microc.tir.analysis.size_forms import Fitter, value_at
from microc.tir.rewrite import (
    children,
    free_vars,
    map_children,
    map_expr,
    map_stmt,
    replace_buffers,
    substitute_stmt,
    walk_all_exprs,
)
from microc.tir.symbolic import specialize
from microc.tir.text.print import expr_text

# ---- Expressions without their numbers or operands: what functions of the same structure have in common.


def is_sum(expr: ir.Expr) -> bool:
    """Test whether an expression is a sum, or a term of one, so that its terms may be in any order."""
    return (
        isinstance(expr, (ir.Const, ir.Var))
        or (isinstance(expr, ir.Bin) and expr.op in ("add", "sub", "mul"))
        or (isinstance(expr, ir.Un) and expr.op == "neg")
    )


def head(expr: ir.Expr) -> tuple[object, ...]:
    """Return what identifies an expression apart from its operands."""
    match expr:
        case ir.Bin(op) | ir.Un(op):
            return (op,)
        case ir.Call(name, args, dtype):
            return name, len(args), dtype
        case _:
            return (expr.dtype,)


def with_operands(expr: ir.Expr, parts: Sequence[ir.Expr]) -> ir.Expr:
    """Return an expression with other operands."""
    match expr:
        case ir.Bin(op):
            return ir.Bin(op, parts[0], parts[1])
        case ir.Un(op):
            return ir.Un(op, parts[0])
        case ir.Cast(dtype):
            return ir.cast(dtype, parts[0])
        case ir.Select():
            return ir.Select(parts[0], parts[1], parts[2])
        case ir.Call(name, _, dtype):
            return ir.Call(name, tuple(parts), dtype)
        case _:
            raise InternalError(f"unknown expression {type(expr).__name__}")


def skeleton(expr: ir.Expr) -> str:
    """Return an expression as text, with numbers left out."""
    match expr:
        case ir.Const():
            return "#"
        case ir.Var(name):
            return name
        case ir.Load(buffer, indices):
            return f"{buffer.name}[{', '.join(map(skeleton, indices))}]"
        case _:
            return f"{head(expr)}({', '.join(map(skeleton, children(expr)))})"


# ---- Lowering with hidden numbers: numbers that differ between functions are replaced by variables while these are
# lowered, so that the results have the same structure, too.


def lower_with_hidden_sizes(
    funcs: Sequence[ir.PrimFunc], lower: Callable[[ir.PrimFunc], ir.PrimFunc]
) -> list[ir.PrimFunc]:
    """Lower functions with every int32 number that differs between them replaced by a variable meanwhile.

    If they differ in more than numbers, only the extents of their loops (by name) are replaced.
    """
    walks = [_numbers(func) for func in funcs]
    if any(shape != walks[0][0] for shape, _ in walks):
        return _lower_with_open_extents(funcs, lower)
    names: dict[tuple[int, ...], ir.Var] = {}
    for together in zip(*(numbers for _, numbers in walks), strict=True):
        if len(set(together)) > 1:
            names.setdefault(together, ir.Var(f"number_{len(names)}"))
    found = []
    for k, func in enumerate(funcs):
        columns = iter(list(zip(*(numbers for _, numbers in walks), strict=True)))

        def hide(number: ir.Const, columns=columns) -> ir.Expr:  # type: ignore[no-untyped-def]
            return names.get(next(columns), number)

        made = lower(replace(func, body=_map_numbers(func.body, hide, lambda _: None)))
        values: dict[ir.Var, ir.Expr] = {name: ir.const(column[k], "int32") for column, name in names.items()}
        found.append(replace(made, body=substitute_stmt(made.body, values)))
    return found


def _numbers(func: ir.PrimFunc) -> tuple[list[object], list[int]]:
    """Return the structure of a function apart from its int32 numbers, and these numbers, in order."""
    shape: list[object] = []
    numbers: list[int] = []

    def keep(number: ir.Const) -> ir.Expr:
        numbers.append(int(number.value))
        return number

    _map_numbers(func.body, keep, shape.append)
    return shape, numbers


def _map_numbers(
    body: ir.Stmt, on_number: Callable[[ir.Const], ir.Expr], on_other: Callable[[object], None]
) -> ir.Stmt:
    """Replace the int32 numbers in ``body``, in an order that depends on the structure only; pass everything else to
    ``on_other``."""

    def on_expr(expr: ir.Expr) -> ir.Expr:
        if isinstance(expr, ir.Const) and expr.dtype == "int32":
            return on_number(expr)
        on_other(_head(expr))
        return map_children(expr, on_expr)

    def on_stmt(stmt: ir.Stmt) -> ir.Stmt:
        on_other(type(stmt))
        return stmt

    return map_stmt(body, on_stmt, on_expr)


def _head(expr: ir.Expr) -> object:
    """Return what identifies an expression in the structure of a function."""
    match expr:
        case ir.Const() | ir.Var():
            return expr
        case ir.Load(buffer) | ir.AddressOf(buffer):
            return buffer.name
        case ir.Bin(op) | ir.Un(op):
            return op
        case ir.Call(name):
            return name
        case _:
            return type(expr), expr.dtype


def _lower_with_open_extents(
    funcs: Sequence[ir.PrimFunc], lower: Callable[[ir.PrimFunc], ir.PrimFunc]
) -> list[ir.PrimFunc]:
    """Lower functions with the extents of loops hidden that differ between them."""
    extents: dict[str, set[int | None]] = {}
    for func in funcs:
        for name, extent in _loops(func).items():
            extents.setdefault(name, set()).add(ir.int_value(extent))
    open_loops = {name for name, found in extents.items() if len(found) > 1}
    return [_with_open_loops(func, open_loops, lower) for func in funcs]


def _loops(func: ir.PrimFunc) -> dict[str, ir.Expr]:
    """Return the extents of all loops by name."""
    found: dict[str, ir.Expr] = {}

    def on_stmt(stmt: ir.Stmt) -> ir.Stmt:
        if isinstance(stmt, ir.For):
            found[stmt.var.name] = stmt.extent
        return stmt

    map_stmt(func.body, on_stmt)
    return found


def _with_open_loops(
    func: ir.PrimFunc, open_loops: set[str], lower: Callable[[ir.PrimFunc], ir.PrimFunc]
) -> ir.PrimFunc:
    """Lower a function with the extents of ``open_loops`` hidden."""
    values: dict[ir.Var, ir.Expr] = {}

    def hide(stmt: ir.Stmt) -> ir.Stmt:
        if not isinstance(stmt, ir.For) or stmt.var.name not in open_loops:
            return stmt
        extent = ir.Var(f"extent_of_{stmt.var.name}")
        values[extent] = stmt.extent
        return replace(stmt, extent=extent)

    made = lower(replace(func, body=map_stmt(func.body, hide)))
    return replace(made, body=substitute_stmt(made.body, values))


# ---- Generalisation: one function for many sizes, from functions for some of them. Where their numbers differ it has
# an expression over the sizes.
#
# The functions are walked together. Their loops, conditions and accesses must have the same structure; numbers that
# differ are replaced by a rule that yields all of them (:mod:`microc.tir.analysis.size_forms`). Tensors become flat, so
# that their strides may depend on the sizes. Constants keep the strides of the largest sizes: smaller sizes read their
# leading part.

_ON_STACK = ("register", "local")


class StructureMismatch(Exception):
    """The functions differ in structure, or a number follows no rule; the message tells which."""


@frozen
class General:
    """A function for many sizes.

    ``func`` works on flat tensors that are as large as the bounds need. ``shaped`` is the same function on tensors with
    axes, whose extents are ``shapes`` by name; tensors of constant shape are not in it.
    """

    func: ir.PrimFunc
    shaped: ir.PrimFunc
    shapes: Mapping[str, tuple[ir.Expr, ...]]

    def at(self, sizes: Mapping[str, int]) -> ir.PrimFunc:
        """Return the function for some sizes, on tensors with axes."""
        made = instantiate(self.shaped, sizes)
        shapes = {name: tuple(value_at(e, sizes) for e in extents) for name, extents in self.shapes.items()}
        buffers = {p: replace(p, shape=shapes.get(p.name, p.shape)) for p in made.params}
        return replace(made, params=tuple(buffers[p] for p in made.params), body=replace_buffers(made.body, buffers))


def generalise(
    funcs: Sequence[ir.PrimFunc], fitter: Fitter, constants: Sequence[tuple[int, ...]], bounds: Mapping[str, int]
) -> General:
    """Return the function that equals ``funcs[k]`` at the fitter's k-th point; its ``scalars`` are sizes. Raises
    :class:`StructureMismatch`.

    ``constants``: shapes of the constant parameters at the bounds, in order. ``bounds``: the largest size of every
    symbol, for which the tensors of the result have room.
    """
    return _Generaliser(fitter, bounds).function(funcs, constants)


def instantiate(func: ir.PrimFunc, sizes: Mapping[str, int]) -> ir.PrimFunc:
    """Return the function for some sizes, simplified; a function without scalars is returned unchanged."""
    return replace(found := specialize(func, sizes), body=simplify_stmt(found.body)) if func.scalars else func


class _Generaliser:
    """Parallel walk over functions of the same structure."""

    def __init__(self, fitter: Fitter, bounds: Mapping[str, int]) -> None:
        self.fitter, self.bounds = fitter, bounds
        self.flat: dict[str, ir.Buffer] = {}
        self.shaped: dict[str, ir.Buffer] = {}
        self.shapes: dict[str, tuple[ir.Expr, ...]] = {}
        self.strides: dict[str, tuple[ir.Expr, ...]] = {}

    def function(self, funcs: Sequence[ir.PrimFunc], constants: Sequence[tuple[int, ...]]) -> General:
        """Generalise functions. Raises :class:`StructureMismatch`."""
        first, shapes = funcs[0], iter(constants)
        if len({tuple((p.name, p.dtype, p.scope, len(p.shape)) for p in f.params) for f in funcs}) != 1:
            raise StructureMismatch("its operands differ from size to size")
        for together in zip(*(f.params for f in funcs), strict=True):
            self.tensor(together, next(shapes) if together[0].scope == "const" else None)
        body = self.statement([f.body for f in funcs])
        flat = self.flatten(body)
        used = {x for x in walk_all_exprs(flat) if isinstance(x, ir.Var)}
        scalars = tuple(v for v in _symbols(self.fitter) if v in used)
        params = ([tensors[p.name] for p in first.params] for tensors in (self.flat, self.shaped))
        made = [
            replace(first, params=tuple(mine), body=own, scalars=scalars)
            for mine, own in zip(params, (flat, body), strict=True)
        ]
        return General(made[0], made[1], self.shapes)

    def flatten(self, body: ir.Stmt) -> ir.Stmt:
        """Rewrite accesses to the flat tensors."""

        def on_expr(expr: ir.Expr) -> ir.Expr:
            match expr:
                case ir.Load(buffer, indices) if buffer.name in self.flat:
                    return ir.Load(self.flat[buffer.name], (self.index(buffer.name, indices),))
                case ir.AddressOf(buffer, indices) if buffer.name in self.flat:
                    return replace(expr, buffer=self.flat[buffer.name], indices=(self.index(buffer.name, indices),))
                case _:
                    return expr

        def on_stmt(stmt: ir.Stmt) -> ir.Stmt:
            if isinstance(stmt, ir.Store) and stmt.buffer.name in self.flat:
                name = stmt.buffer.name
                return ir.Store(self.flat[name], (self.index(name, stmt.indices),), stmt.value)
            return stmt

        return map_stmt(body, on_stmt, lambda x: map_expr(x, on_expr))

    def index(self, name: str, indices: Sequence[ir.Expr]) -> ir.Expr:
        """Return the flat index of an element."""
        flat: ir.Expr | None = None
        for index, stride in zip(indices, self.strides[name], strict=True):
            if ir.int_value(index) != 0:
                term = index if ir.int_value(stride) == 1 else index * stride
                flat = term if flat is None else flat + term
        return ir.const(0, "int32") if flat is None else flat

    # ------------------------------------------------------------ numbers

    def number(self, values: Sequence[int | float], dtype: str, what: str) -> ir.Expr:
        """Return a rule for numbers that differ. Raises :class:`StructureMismatch` if there is none."""
        if dtypes.is_float(dtype):
            real = self.fitter.real([float(v) for v in values], dtype)
            if real is None:
                raise StructureMismatch(f"{what} follows no rule: {_format_numbers(values)}")
            return real
        found = self.fitter.integer([int(v) for v in values]) if dtype != "bool" else None
        if found is None:
            raise StructureMismatch(f"{what} follows no rule: {_format_numbers(values)}")
        return ir.cast(dtype, found)

    def tensor(self, together: Sequence[ir.Buffer], bound: tuple[int, ...] | None) -> None:
        """Register a parameter: its flat form, its strides, its shape over sizes. ``bound``: the shape of a constant
        at the bounds."""
        first = together[0]
        if bound is not None:
            whole = replace(first, shape=bound)
            self.strides[first.name] = tuple(ir.const(s, "int32") for s in whole.strides)
            self.shaped[first.name], self.flat[first.name] = whole, replace(first, shape=(whole.size,))
            return
        what = f"a stride of {first.name}"
        axes = [self.fitter.integer(column) for column in zip(*(b.shape for b in together), strict=True)]
        strides = [self.extent([b.strides[k] for b in together], axes[k + 1 :], what) for k in range(len(axes))]
        size = self.extent([b.size for b in together], axes, f"the size of {first.name}")
        self.strides[first.name] = tuple(strides)
        self.flat[first.name] = replace(first, shape=(value_at(size, self.bounds),))
        known = tuple(axis for axis in axes if axis is not None)
        if len(known) < len(axes):
            raise StructureMismatch(f"an axis of {first.name} follows no rule")
        self.shapes[first.name] = known
        self.shaped[first.name] = replace(first, shape=tuple(value_at(axis, self.bounds) for axis in known))

    def extent(self, values: Sequence[int], axes: Sequence[ir.Expr | None], what: str) -> ir.Expr:
        """Return a rule for a product of axes: one of its own, else the product of the axes' rules."""
        found = self.fitter.integer(values)
        if found is None and all(axis is not None for axis in axes):
            for axis in axes:
                found = axis if found is None else found * axis  # type: ignore[operator]
        return self.number(values, "int32", what) if found is None else found

    # ------------------------------------------------------------ statements

    def statement(self, together: Sequence[ir.Stmt]) -> ir.Stmt:
        """Generalise a statement: structure and names must agree, numbers become rules over the sizes."""
        first = together[0]
        if any(type(s) is not type(first) for s in together):
            raise StructureMismatch("its statements differ from size to size")
        match first:
            case ir.Store():
                buffer, indices = self.access(together)  # type: ignore[arg-type]
                return ir.Store(buffer, indices, self.expr([s.value for s in together]))  # type: ignore[attr-defined]
            # Loop variables must be equal: expr() compares occurrences of variables as they are, nothing is renamed.
            case ir.For(var, _, _, kind, annotations):
                self.same([(s.var, s.kind) for s in together], "loops")  # type: ignore[attr-defined]
                extent = self.expr([s.extent for s in together])  # type: ignore[attr-defined]
                return ir.For(var, extent, self.statement([s.body for s in together]), kind, annotations)  # type: ignore[attr-defined]
            case ir.If(_, _, otherwise):
                self.same([s.otherwise is None for s in together], "conditions")  # type: ignore[attr-defined]
                condition = self.expr([s.condition for s in together])  # type: ignore[attr-defined]
                then = self.statement([s.then for s in together])  # type: ignore[attr-defined]
                rest = None if otherwise is None else self.statement([s.otherwise for s in together])  # type: ignore[attr-defined]
                return ir.If(condition, then, rest)
            case ir.Seq():
                self.same([len(s.body) for s in together], "statements")  # type: ignore[attr-defined]
                return ir.seq(*map(self.statement, zip(*(s.body for s in together), strict=True)))  # type: ignore[attr-defined]
            case ir.Let(var):
                self.same([s.var for s in together], "names")  # type: ignore[attr-defined]
                value = self.expr([s.value for s in together])  # type: ignore[attr-defined]
                return ir.Let(var, value, self.statement([s.body for s in together]))  # type: ignore[attr-defined]
            # Whole buffers must be equal: extents on the stack have no rule.
            case ir.Alloc(buffer) if buffer.scope in _ON_STACK:
                self.same([s.buffer for s in together], "register tiles")  # type: ignore[attr-defined]
                return ir.Alloc(buffer, self.statement([s.body for s in together]))  # type: ignore[attr-defined]
            case ir.Evaluate():
                return ir.Evaluate(self.expr([s.value for s in together]))  # type: ignore[attr-defined]
            case _:
                raise InternalError(f"{type(first).__name__} was not lowered")

    def same(self, values: Sequence[object], what: str) -> None:
        """Check that values are equal in all functions. Raises :class:`StructureMismatch`."""
        if any(value != values[0] for value in values):
            raise StructureMismatch(f"its {what} differ from size to size")

    def access(self, together: Sequence[ir.Store | ir.Load | ir.AddressOf]) -> tuple[ir.Buffer, tuple[ir.Expr, ...]]:
        """Return buffer and indices of the same access in all functions."""
        first = together[0]
        self.same([(x.buffer.name, len(x.indices)) for x in together], "accesses")
        indices = tuple(map(self.expr, zip(*(x.indices for x in together), strict=True)))
        return self.shaped.get(first.buffer.name, first.buffer), indices

    # ------------------------------------------------------------ expressions

    def expr(self, together: Sequence[ir.Expr]) -> ir.Expr:
        """Generalise an expression: part by part if all have the same structure, else as a sum."""
        first = together[0]
        if any(type(x) is not type(first) or x.dtype != first.dtype for x in together):
            return self.sum(together)
        match first:
            case ir.Const(dtype=dtype):
                if all(x == first for x in together):
                    return first
                return self.number([x.value for x in together], dtype, "a number")  # type: ignore[attr-defined]
            case ir.Var():
                if all(x == first for x in together):
                    return first
                return self.sum(together)
            case ir.Load():
                return ir.Load(*self.access(together))  # type: ignore[arg-type]
            case ir.AddressOf():
                self.same([(x.extent, x.step, x.writes) for x in together], "addresses")  # type: ignore[attr-defined]
                buffer, indices = self.access(together)  # type: ignore[arg-type]
                return replace(first, buffer=buffer, indices=indices)
            case _:
                if any(head(x) != head(first) for x in together):
                    return self.sum(together)
                try:
                    parts = [self.expr(column) for column in zip(*map(children, together), strict=True)]
                except (
                    StructureMismatch
                ):  # simplification may have ordered the terms of a sum by their factors, which differ
                    return self.sum(together)
                return with_operands(first, parts)

    def sum(self, together: Sequence[ir.Expr]) -> ir.Expr:
        """Generalise sums whose terms are in different orders: terms are matched by their structure without numbers."""
        if any(x.dtype != "int32" or not is_sum(x) for x in together):
            raise _differ(together)
        forms = [linear(x) for x in together]
        terms = [{skeleton(atom): (atom, factor) for atom, factor in form[0].items()} for form in forms]
        # Two terms with the same structure could not be matched: then there are fewer keys than terms.
        alike = all(len(t) == len(f[0]) and t.keys() == terms[0].keys() for t, f in zip(terms, forms, strict=True))
        if not alike or any(x in free_vars(a) for a in forms[0][0] for x in _symbols(self.fitter)):
            raise _differ(together)
        total: ir.Expr = self.number([form[1] for form in forms], "int32", "a number")
        for key in sorted(terms[0]):
            atom = _generalise_atoms(self, [t[key][0] for t in terms])
            total = total + atom * self.number([t[key][1] for t in terms], "int32", "a factor")
        return total


def _generalise_atoms(generaliser: _Generaliser, atoms: Sequence[ir.Expr]) -> ir.Expr:
    """Generalise atoms of sums, which are no sums themselves; this ends the recursion."""
    if all((isinstance(a, ir.Bin) and a.op not in ("add", "sub", "mul")) or not isinstance(a, ir.Bin) for a in atoms):
        return generaliser.expr(atoms)
    raise _differ(atoms)


def _differ(together: Sequence[ir.Expr]) -> StructureMismatch:
    """Return the error for expressions that differ."""
    other = next(x for x in together if skeleton(x) != skeleton(together[0]) or x is together[-1])
    return StructureMismatch(
        f"its expressions differ from size to size: {expr_text(together[0])} and {expr_text(other)}"
    )


def _symbols(fitter: Fitter) -> tuple[ir.Var, ...]:
    """Return the symbols of sizes."""
    return tuple(e.expr for e in fitter.extents if isinstance(e.expr, ir.Var))


def _format_numbers(values: Sequence[int | float]) -> str:
    """Format numbers for an error."""
    return ", ".join(map(str, values))
