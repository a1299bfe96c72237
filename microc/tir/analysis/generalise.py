# SPDX-License-Identifier: Apache-2.0
"""Generalisation: derive one function with symbolic sizes from several functions of the same structure for fixed sizes.

Where the numbers of the functions differ, the derived function has an expression over the sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.errors import InternalError
from microc.tir import ir
from microc.tir.analysis.simplification import linear, simplify_stmt
from microc.tir.analysis.size_forms import RuleFitter, evaluate_at_sizes
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
from microc.tir.text.print import format_expr

# ---- Structure of expressions without their numbers or operands, to compare functions for different sizes.


def is_sum_or_term(expr: ir.Expr) -> bool:
    """Test whether an expression is a sum or a term of a sum, so that it may be compared as a linear form."""
    return (
        isinstance(expr, (ir.Const, ir.Var))
        or (isinstance(expr, ir.Bin) and expr.op in ("add", "sub", "mul"))
        or (isinstance(expr, ir.Un) and expr.op == "neg")
    )


def operator_key(expr: ir.Expr) -> tuple[object, ...]:
    """Return a key that is equal for expressions that differ only in their operands.

    The key contains the operator, or the called function, or the dtype."""
    match expr:
        case ir.Bin(op) | ir.Un(op):
            return (op,)
        case ir.Call(name, args, dtype):
            return name, len(args), dtype
        case _:
            return (expr.dtype,)


def replace_operands(expr: ir.Expr, operands: Sequence[ir.Expr]) -> ir.Expr:
    """Return an expression with the operator of ``expr`` and the operands ``operands``."""
    match expr:
        case ir.Bin(op):
            return ir.Bin(op, operands[0], operands[1])
        case ir.Un(op):
            return ir.Un(op, operands[0])
        case ir.Cast(dtype):
            return ir.cast(dtype, operands[0])
        case ir.Select():
            return ir.Select(operands[0], operands[1], operands[2])
        case ir.Call(name, _, dtype):
            return ir.Call(name, tuple(operands), dtype)
        case _:
            raise InternalError(f"generalise: unknown type of expression; got {type(expr).__name__}")


def format_without_numbers(expr: ir.Expr) -> str:
    """Return the text of an expression with ``#`` in place of every literal."""
    match expr:
        case ir.Const():
            return "#"
        case ir.Var(name):
            return name
        case ir.Load(buffer, indices):
            return f"{buffer.name}[{', '.join(map(format_without_numbers, indices))}]"
        case _:
            return f"{operator_key(expr)}({', '.join(map(format_without_numbers, children(expr)))})"


# ---- Lowering with hidden numbers: numbers that differ between the functions are replaced by variables while the functions are
# lowered. So simplification does not depend on the numbers, and the lowered functions also have the same structure.


def lower_with_hidden_sizes(
    funcs: Sequence[ir.PrimFunc], lower: Callable[[ir.PrimFunc], ir.PrimFunc]
) -> list[ir.PrimFunc]:
    """Lower functions of the same structure so that the results also have the same structure.

    During the lowering, a variable replaces every int32 number that differs between the functions. If the functions
    differ in more than numbers, variables replace only the extents of loops that differ (loops are matched by name).
    """
    walks = [_structure_and_numbers(func) for func in funcs]
    if any(shape != walks[0][0] for shape, _ in walks):
        return _lower_hiding_differing_extents(funcs, lower)
    names: dict[tuple[int, ...], ir.Var] = {}
    for together in zip(*(numbers for _, numbers in walks), strict=True):
        if len(set(together)) > 1:
            names.setdefault(together, ir.Var(f"number_{len(names)}"))
    found = []
    for k, func in enumerate(funcs):
        columns = iter(list(zip(*(numbers for _, numbers in walks), strict=True)))

        def hide_number(number: ir.Const, columns=columns) -> ir.Expr:  # type: ignore[no-untyped-def]
            return names.get(next(columns), number)

        made = lower(replace(func, body=_map_numbers(func.body, hide_number, lambda _: None)))
        values: dict[ir.Var, ir.Expr] = {name: ir.const(column[k], "int32") for column, name in names.items()}
        found.append(replace(made, body=substitute_stmt(made.body, values)))
    return found


def _structure_and_numbers(func: ir.PrimFunc) -> tuple[list[object], list[int]]:
    """Return the structure of a function without its int32 numbers, for comparison; and the numbers in order."""
    shape: list[object] = []
    numbers: list[int] = []

    def record_number(number: ir.Const) -> ir.Expr:
        numbers.append(int(number.value))
        return number

    _map_numbers(func.body, record_number, shape.append)
    return shape, numbers


def _map_numbers(
    body: ir.Stmt, replace_number: Callable[[ir.Const], ir.Expr], report_structure: Callable[[object], None]
) -> ir.Stmt:
    """Return ``body`` with its int32 numbers replaced by ``replace_number``.

    The order in which the numbers are visited depends only on the structure. ``report_structure`` is called with the key of
    every other expression and with the class of every statement."""

    def map_numbers_in_expr(expr: ir.Expr) -> ir.Expr:
        if isinstance(expr, ir.Const) and expr.dtype == "int32":
            return replace_number(expr)
        report_structure(_structure_key(expr))
        return map_children(expr, map_numbers_in_expr)

    def report_statement(stmt: ir.Stmt) -> ir.Stmt:
        report_structure(type(stmt))
        return stmt

    return map_stmt(body, report_statement, map_numbers_in_expr)


def _structure_key(expr: ir.Expr) -> object:
    """Return a key of an expression without its operands, for the comparison of structures."""
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


def _lower_hiding_differing_extents(
    funcs: Sequence[ir.PrimFunc], lower: Callable[[ir.PrimFunc], ir.PrimFunc]
) -> list[ir.PrimFunc]:
    """Lower functions. During the lowering, variables replace the loop extents that differ between the functions."""
    extents: dict[str, set[int | None]] = {}
    for func in funcs:
        for name, extent in _loop_extents(func).items():
            extents.setdefault(name, set()).add(ir.int_value(extent))
    open_loops = {name for name, found in extents.items() if len(found) > 1}
    return [_lower_hiding_extents(func, open_loops, lower) for func in funcs]


def _loop_extents(func: ir.PrimFunc) -> dict[str, ir.Expr]:
    """Return the extents of all loops of a function, by the name of the loop variable."""
    found: dict[str, ir.Expr] = {}

    def record_extent(stmt: ir.Stmt) -> ir.Stmt:
        if isinstance(stmt, ir.For):
            found[stmt.var.name] = stmt.extent
        return stmt

    map_stmt(func.body, record_extent)
    return found


def _lower_hiding_extents(
    func: ir.PrimFunc, hidden_loops: set[str], lower: Callable[[ir.PrimFunc], ir.PrimFunc]
) -> ir.PrimFunc:
    """Lower a function. During the lowering, variables replace the extents of the loops named in ``hidden_loops``."""
    values: dict[ir.Var, ir.Expr] = {}

    def hide_extent(stmt: ir.Stmt) -> ir.Stmt:
        if not isinstance(stmt, ir.For) or stmt.var.name not in hidden_loops:
            return stmt
        extent = ir.Var(f"extent_of_{stmt.var.name}")
        values[extent] = stmt.extent
        return replace(stmt, extent=extent)

    made = lower(replace(func, body=map_stmt(func.body, hide_extent)))
    return replace(made, body=substitute_stmt(made.body, values))


# ---- Generalisation: one function for many sizes, derived from functions for some of these sizes.
#
# The functions are walked in parallel. Their loops, conditions and accesses must have the same structure. Numbers that differ
# are replaced by a rule, an expression over the sizes that has all of their values (:mod:`microc.tir.analysis.size_forms`).
# Tensors become one-dimensional, so that their strides may depend on the sizes. Constants keep the strides of the largest
# sizes; smaller sizes read only their first elements along each axis.

_ON_STACK = ("register", "local")


class StructureMismatch(Exception):
    """Raised if functions differ in structure, or if there is no rule for a number. The message describes the difference."""


@frozen
class SizeGenericFunction:
    """A function with symbolic sizes.

    ``func``: the function on one-dimensional tensors, which are large enough for the largest sizes. ``shaped``: the same
    function on tensors with axes. ``shapes``: extents of these axes as expressions over the sizes, by the name of the
    tensor; constants are not in it.
    """

    func: ir.PrimFunc
    shaped: ir.PrimFunc
    shapes: Mapping[str, tuple[ir.Expr, ...]]

    def specialised_to(self, sizes: Mapping[str, int]) -> ir.PrimFunc:
        """Return the function on tensors with axes, specialised to the given sizes."""
        made = instantiate(self.shaped, sizes)
        shapes = {name: tuple(evaluate_at_sizes(e, sizes) for e in extents) for name, extents in self.shapes.items()}
        buffers = {p: replace(p, shape=shapes.get(p.name, p.shape)) for p in made.params}
        return replace(made, params=tuple(buffers[p] for p in made.params), body=replace_buffers(made.body, buffers))


def generalise(
    funcs: Sequence[ir.PrimFunc],
    fitter: RuleFitter,
    constant_shapes: Sequence[tuple[int, ...]],
    largest_sizes: Mapping[str, int],
) -> SizeGenericFunction:
    """Return a function with symbolic sizes that equals ``funcs[k]`` at the k-th point (combination of sizes) of ``fitter``.

    ``constant_shapes``: shapes of the constant parameters at the largest sizes, in order. ``largest_sizes``: largest
    value of each symbolic size, which determines the size of the tensors. Raises :class:`StructureMismatch` if the
    functions differ in structure, or if there is no rule for a number."""
    return _Generaliser(fitter, largest_sizes).generalise_function(funcs, constant_shapes)


def instantiate(func: ir.PrimFunc, sizes: Mapping[str, int]) -> ir.PrimFunc:
    """Return a function specialised to the given sizes and simplified.

    A function without symbolic sizes (scalars) is returned unchanged."""
    return replace(found := specialize(func, sizes), body=simplify_stmt(found.body)) if func.scalars else func


class _Generaliser:
    """Parallel walk over functions of the same structure, which builds the function with symbolic sizes.

    Counterparts are the statements or expressions at the same position in all functions."""

    def __init__(self, fitter: RuleFitter, bounds: Mapping[str, int]) -> None:
        self.fitter, self.bounds = fitter, bounds
        self.flat: dict[str, ir.Buffer] = {}
        self.shaped: dict[str, ir.Buffer] = {}
        self.shapes: dict[str, tuple[ir.Expr, ...]] = {}
        self.strides: dict[str, tuple[ir.Expr, ...]] = {}

    def generalise_function(
        self, funcs: Sequence[ir.PrimFunc], constants: Sequence[tuple[int, ...]]
    ) -> SizeGenericFunction:
        """Return the function with symbolic sizes. Raises :class:`StructureMismatch`."""
        first, shapes = funcs[0], iter(constants)
        if len({tuple((p.name, p.dtype, p.scope, len(p.shape)) for p in f.params) for f in funcs}) != 1:
            raise StructureMismatch("the operands of the function differ from size to size")
        for together in zip(*(f.params for f in funcs), strict=True):
            self.register_parameter(together, next(shapes) if together[0].scope == "const" else None)
        body = self.generalise_statement([f.body for f in funcs])
        flat = self.redirect_to_flat_tensors(body)
        used = {x for x in walk_all_exprs(flat) if isinstance(x, ir.Var)}
        scalars = tuple(v for v in _variables_of_symbolic_sizes(self.fitter) if v in used)
        params = ([tensors[p.name] for p in first.params] for tensors in (self.flat, self.shaped))
        made = [
            replace(first, params=tuple(mine), body=own, scalars=scalars)
            for mine, own in zip(params, (flat, body), strict=True)
        ]
        return SizeGenericFunction(made[0], made[1], self.shapes)

    def redirect_to_flat_tensors(self, body: ir.Stmt) -> ir.Stmt:
        """Return ``body`` with all accesses redirected to the one-dimensional form of each tensor."""

        def redirect_access(expr: ir.Expr) -> ir.Expr:
            match expr:
                case ir.Load(buffer, indices) if buffer.name in self.flat:
                    return ir.Load(self.flat[buffer.name], (self.flat_index(buffer.name, indices),))
                case ir.AddressOf(buffer, indices) if buffer.name in self.flat:
                    return replace(
                        expr, buffer=self.flat[buffer.name], indices=(self.flat_index(buffer.name, indices),)
                    )
                case _:
                    return expr

        def redirect_store(stmt: ir.Stmt) -> ir.Stmt:
            if isinstance(stmt, ir.Store) and stmt.buffer.name in self.flat:
                name = stmt.buffer.name
                return ir.Store(self.flat[name], (self.flat_index(name, stmt.indices),), stmt.value)
            return stmt

        return map_stmt(body, redirect_store, lambda x: map_expr(x, redirect_access))

    def flat_index(self, name: str, indices: Sequence[ir.Expr]) -> ir.Expr:
        """Return the index of an element in the one-dimensional form of the tensor ``name``."""
        flat: ir.Expr | None = None
        for index, stride in zip(indices, self.strides[name], strict=True):
            if ir.int_value(index) != 0:
                term = index if ir.int_value(stride) == 1 else index * stride
                flat = term if flat is None else flat + term
        return ir.const(0, "int32") if flat is None else flat

    # ------------------------------------------------------------ numbers

    def generalise_number(self, values: Sequence[int | float], dtype: str, description: str) -> ir.Expr:
        """Return an expression over the sizes whose values, one for each function, are ``values``.

        Raises :class:`StructureMismatch` if there is no such rule. ``description``: name of the number for the error."""
        if dtypes.is_float(dtype):
            real = self.fitter.fit_float([float(v) for v in values], dtype)
            if real is None:
                raise StructureMismatch(f"{description} follows no rule over the sizes; got {_format_numbers(values)}")
            return real
        found = self.fitter.fit_integer([int(v) for v in values]) if dtype != "bool" else None
        if found is None:
            raise StructureMismatch(f"{description} follows no rule over the sizes; got {_format_numbers(values)}")
        return ir.cast(dtype, found)

    def register_parameter(self, counterparts: Sequence[ir.Buffer], constant_shape: tuple[int, ...] | None) -> None:
        """Record a parameter of the functions: its one-dimensional form, and its strides and shape as expressions.

        ``counterparts``: the parameter in each function. ``constant_shape``: shape at the largest sizes if the parameter is a
        constant; None for other parameters."""
        first = counterparts[0]
        if constant_shape is not None:
            whole = replace(first, shape=constant_shape)
            self.strides[first.name] = tuple(ir.const(s, "int32") for s in whole.strides)
            self.shaped[first.name], self.flat[first.name] = whole, replace(first, shape=(whole.size,))
            return
        what = f"a stride of {first.name}"
        axes = [self.fitter.fit_integer(column) for column in zip(*(b.shape for b in counterparts), strict=True)]
        strides = [
            self.generalise_extent([b.strides[k] for b in counterparts], axes[k + 1 :], what) for k in range(len(axes))
        ]
        size = self.generalise_extent([b.size for b in counterparts], axes, f"the size of {first.name}")
        self.strides[first.name] = tuple(strides)
        self.flat[first.name] = replace(first, shape=(evaluate_at_sizes(size, self.bounds),))
        known = tuple(axis for axis in axes if axis is not None)
        if len(known) < len(axes):
            raise StructureMismatch(f"an axis of {first.name} follows no rule over the sizes")
        self.shapes[first.name] = known
        self.shaped[first.name] = replace(first, shape=tuple(evaluate_at_sizes(axis, self.bounds) for axis in known))

    def generalise_extent(self, values: Sequence[int], axes: Sequence[ir.Expr | None], description: str) -> ir.Expr:
        """Return an expression over the sizes for an extent or stride, which is a product of the extents ``axes``.

        The expression is a rule for ``values``, one value for each function. If there is no such rule, it is the
        product of the expressions ``axes``. Raises :class:`StructureMismatch` if neither exists. ``description``: name
        of the extent for the error."""
        found = self.fitter.fit_integer(values)
        if found is None and all(axis is not None for axis in axes):
            for axis in axes:
                found = axis if found is None else found * axis  # type: ignore[operator]
        return self.generalise_number(values, "int32", description) if found is None else found

    # ------------------------------------------------------------ statements

    def generalise_statement(self, counterparts: Sequence[ir.Stmt]) -> ir.Stmt:
        """Return the statement with symbolic sizes for the counterparts of one statement in all functions."""
        first = counterparts[0]
        if any(type(s) is not type(first) for s in counterparts):
            raise StructureMismatch("the statements of the function differ from size to size")
        match first:
            case ir.Store():
                buffer, indices = self.generalise_access(counterparts)  # type: ignore[arg-type]
                return ir.Store(buffer, indices, self.generalise_expr([s.value for s in counterparts]))  # type: ignore[attr-defined]
            # Loop variables must be equal: expr() compares occurrences of variables as they are, nothing is renamed.
            case ir.For(var, _, _, kind, annotations):
                self.require_equal([(s.var, s.kind) for s in counterparts], "loops")  # type: ignore[attr-defined]
                extent = self.generalise_expr([s.extent for s in counterparts])  # type: ignore[attr-defined]
                return ir.For(var, extent, self.generalise_statement([s.body for s in counterparts]), kind, annotations)  # type: ignore[attr-defined]
            case ir.If(_, _, otherwise):
                self.require_equal([s.otherwise is None for s in counterparts], "conditions")  # type: ignore[attr-defined]
                condition = self.generalise_expr([s.condition for s in counterparts])  # type: ignore[attr-defined]
                then = self.generalise_statement([s.then for s in counterparts])  # type: ignore[attr-defined]
                rest = None if otherwise is None else self.generalise_statement([s.otherwise for s in counterparts])  # type: ignore[attr-defined]
                return ir.If(condition, then, rest)
            case ir.Seq():
                self.require_equal([len(s.body) for s in counterparts], "statements")  # type: ignore[attr-defined]
                return ir.seq(*map(self.generalise_statement, zip(*(s.body for s in counterparts), strict=True)))  # type: ignore[attr-defined]
            case ir.Let(var):
                self.require_equal([s.var for s in counterparts], "names")  # type: ignore[attr-defined]
                value = self.generalise_expr([s.value for s in counterparts])  # type: ignore[attr-defined]
                return ir.Let(var, value, self.generalise_statement([s.body for s in counterparts]))  # type: ignore[attr-defined]
            # Buffers on the stack must be equal, because their extents must be constants.
            case ir.Alloc(buffer) if buffer.scope in _ON_STACK:
                self.require_equal([s.buffer for s in counterparts], "register tiles")  # type: ignore[attr-defined]
                return ir.Alloc(buffer, self.generalise_statement([s.body for s in counterparts]))  # type: ignore[attr-defined]
            case ir.Evaluate():
                return ir.Evaluate(self.generalise_expr([s.value for s in counterparts]))  # type: ignore[attr-defined]
            case _:
                raise InternalError(f"generalise: unexpected {type(first).__name__}; expected a lowered function")

    def require_equal(self, values: Sequence[object], description: str) -> None:
        """Raise :class:`StructureMismatch` unless all values, one for each function, are equal.

        ``description``: plural noun for the values, for the error."""
        if any(value != values[0] for value in values):
            raise StructureMismatch(f"the {description} of the function differ from size to size")

    def generalise_access(
        self, counterparts: Sequence[ir.Store | ir.Load | ir.AddressOf]
    ) -> tuple[ir.Buffer, tuple[ir.Expr, ...]]:
        """Return the buffer and the indices, with symbolic sizes, for the counterparts of one access in all functions."""
        first = counterparts[0]
        self.require_equal([(x.buffer.name, len(x.indices)) for x in counterparts], "accesses")
        indices = tuple(map(self.generalise_expr, zip(*(x.indices for x in counterparts), strict=True)))
        return self.shaped.get(first.buffer.name, first.buffer), indices

    # ------------------------------------------------------------ expressions

    def generalise_expr(self, counterparts: Sequence[ir.Expr]) -> ir.Expr:
        """Return the expression with symbolic sizes for the counterparts of one expression in all functions.

        Expressions of the same structure are generalised operand by operand, others as linear forms."""
        first = counterparts[0]
        if any(type(x) is not type(first) or x.dtype != first.dtype for x in counterparts):
            return self.generalise_sum(counterparts)
        match first:
            case ir.Const(dtype=dtype):
                if all(x == first for x in counterparts):
                    return first
                return self.generalise_number([x.value for x in counterparts], dtype, "a number")  # type: ignore[attr-defined]
            case ir.Var():
                if all(x == first for x in counterparts):
                    return first
                return self.generalise_sum(counterparts)
            case ir.Load():
                return ir.Load(*self.generalise_access(counterparts))  # type: ignore[arg-type]
            case ir.AddressOf():
                self.require_equal([(x.extent, x.step, x.writes) for x in counterparts], "addresses")  # type: ignore[attr-defined]
                buffer, indices = self.generalise_access(counterparts)  # type: ignore[arg-type]
                return replace(first, buffer=buffer, indices=indices)
            case _:
                if any(operator_key(x) != operator_key(first) for x in counterparts):
                    return self.generalise_sum(counterparts)
                try:
                    parts = [self.generalise_expr(column) for column in zip(*map(children, counterparts), strict=True)]
                except (
                    StructureMismatch
                ):  # simplification orders the terms of a sum by their coefficients, which may differ between functions
                    return self.generalise_sum(counterparts)
                return replace_operands(first, parts)

    def generalise_sum(self, counterparts: Sequence[ir.Expr]) -> ir.Expr:
        """Return the sum with symbolic sizes for counterparts whose terms may be in different orders.

        Terms are matched by their structure without numbers."""
        if any(x.dtype != "int32" or not is_sum_or_term(x) for x in counterparts):
            raise _mismatch_error(counterparts)
        forms = [linear(x) for x in counterparts]
        terms = [{format_without_numbers(atom): (atom, factor) for atom, factor in form[0].items()} for form in forms]
        # Two terms with the same structure cannot be matched. In this case there are fewer keys than terms.
        alike = all(len(t) == len(f[0]) and t.keys() == terms[0].keys() for t, f in zip(terms, forms, strict=True))
        if not alike or any(x in free_vars(a) for a in forms[0][0] for x in _variables_of_symbolic_sizes(self.fitter)):
            raise _mismatch_error(counterparts)
        total: ir.Expr = self.generalise_number([form[1] for form in forms], "int32", "a number")
        for key in sorted(terms[0]):
            atom = _generalise_atoms(self, [t[key][0] for t in terms])
            total = total + atom * self.generalise_number([t[key][1] for t in terms], "int32", "a factor")
        return total


def _generalise_atoms(generaliser: _Generaliser, atoms: Sequence[ir.Expr]) -> ir.Expr:
    """Return the expression with symbolic sizes for the counterparts of one atom of a sum.

    Atoms must not be sums themselves, so that the recursion ends."""
    if all((isinstance(a, ir.Bin) and a.op not in ("add", "sub", "mul")) or not isinstance(a, ir.Bin) for a in atoms):
        return generaliser.generalise_expr(atoms)
    raise _mismatch_error(atoms)


def _mismatch_error(counterparts: Sequence[ir.Expr]) -> StructureMismatch:
    """Return the error for expressions that differ between functions. It contains two of them as text."""
    other = next(
        x
        for x in counterparts
        if format_without_numbers(x) != format_without_numbers(counterparts[0]) or x is counterparts[-1]
    )
    return StructureMismatch(
        f"the expressions of the function differ from size to size: {format_expr(counterparts[0])} and {format_expr(other)}"
    )


def _variables_of_symbolic_sizes(fitter: RuleFitter) -> tuple[ir.Var, ...]:
    """Return the variables for the symbolic sizes."""
    return tuple(e.expr for e in fitter.extents if isinstance(e.expr, ir.Var))


def _format_numbers(values: Sequence[int | float]) -> str:
    """Return numbers as text for an error."""
    return ", ".join(map(str, values))
