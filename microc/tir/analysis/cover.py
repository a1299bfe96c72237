# SPDX-License-Identifier: Apache-2.0
"""Proofs that loops cover the domain of a block, and that iterations of a parallel loop are independent."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import prod
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from microc.base.dtypes import Array, int_range
from microc.tir import ir
from microc.tir.analysis import simplification
from microc.tir.analysis.linear_forms import Atom, Int32Overflow, LinearForm
from microc.tir.analysis.region import Access, accesses, loop_bounds, split_index
from microc.tir.analysis.simplification import Simplifier, conditions_below_extent, linear, simplify, simplify_stmt
from microc.tir.extents import is_at_most, is_less, largest, smallest
from microc.tir.rewrite import (
    drop_blocks,
    free_vars,
    map_expr,
    walk_all_exprs,
    walk_expr,
    walk_stmt,
)
from microc.tir.text.print import format_expr

# ---- Coverage: do the iterators of a block take all values of their domain in the enclosing loops?
#
# Every binding is decomposed into digits of loop variables, as in a mixed-radix number: ``f // 12``, ``f // 4 % 3`` and
# ``f % 4`` are independent digits of ``f``. A sum of digits whose strides leave no gap takes all values of an interval.
# Conditions around the block (its predicate, ``If``, loops of variable extent) must hold for every instance within the
# domain. An instance of a tensorized block covers as many values of an iterator as its intrinsics access elements, so strides
# up to this number leave no gap.

_Base = frozenset[tuple[Atom, int]]


class _MixedRadixDigit(NamedTuple):
    """A digit of a sum of loop variables in mixed radix: ``base // lower % (upper / lower)``.

    ``base``: terms of the sum. ``upper`` is None for the most significant digit, ``base // lower``."""

    base: _Base
    lower: int
    upper: int | None


def explain_incomplete_coverage(block: ir.Block, outer_loops_and_conditions: Sequence[ir.For | ir.Expr]) -> str:
    """Return the reason why the enclosing loops may not cover the whole domain of a block; an empty string if they do.

    ``outer_loops_and_conditions``: the enclosing loops, and the conditions under which the block runs, outermost first."""
    bounds: dict[ir.Var, tuple[int, int]] = {}
    conditions = [x for x in outer_loops_and_conditions if isinstance(x, ir.Expr)]
    if block.predicate is not None:
        conditions.append(block.predicate)
    for loop in (x for x in outer_loops_and_conditions if isinstance(x, ir.For)):
        high = Simplifier(bounds).range_of(loop.extent)[1]
        if not isinstance(high, int):
            return f"loop {loop.var.name} has no known extent"
        if high == 0 and all(i.extent for i in block.iters):
            return f"loop {loop.var.name} has no iterations"
        bounds[loop.var] = (0, largest(high - 1, 0))
        conditions += conditions_below_extent(loop.var, loop.extent)
    try:
        reason = _explain_missing_instances(block, bounds, conditions)
        named = _name_bounded_sums(block, bounds, conditions) if reason else None
        if named is not None and not _explain_missing_instances(*named):
            return ""
        return "" if reason and _visits_all_instances(block, bounds, conditions) else reason
    except Int32Overflow:
        return "a number in the bindings does not fit int32"


_MAX_ENUMERATED = 1 << 16
"""Most iterations of loops that are enumerated to find the instances of a block: about 50 ms of CPU time for two splits, a
fusion and two guards (169 ms for 201,600 iterations, measured on an x86 PC). For more iterations, only proofs count."""
_OPERATORS: Mapping[str, Callable[[Array, Array], Array]] = MappingProxyType(
    {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "min": np.minimum,
        "max": np.maximum,
        "floordiv": np.floor_divide,
        "floormod": np.mod,
        "and": np.logical_and,
        "or": np.logical_or,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
        "eq": np.equal,
        "ne": np.not_equal,
    }
)
"""Numpy functions of operators of indices and conditions."""
_MAX_INT32 = int_range("int32")[1]


def _visits_all_instances(
    block: ir.Block, bounds: Mapping[ir.Var, tuple[int, int]], conditions: Sequence[ir.Expr]
) -> bool:
    """Test by enumeration whether loops run every instance of a block. False for too many iterations, and if a binding or a
    condition depends on anything but loops.

    Loops that are split with a tail, fused and split again have no digits that the proof could name."""
    used = {var for expr in (*(i.binding for i in block.iters), *conditions) for var in free_vars(expr)}
    loops = [var for var in bounds if var in used]
    counts = [high + 1 for _, high in map(bounds.__getitem__, loops)]
    domain = [i.extent for i in block.iters]
    if any(type(n) is not int for n in (*counts, *domain)) or max(prod(counts), prod(domain)) > _MAX_ENUMERATED:
        return False
    values = dict(zip(loops, np.indices(counts, np.int64).reshape(len(counts), prod(counts)), strict=True))
    runs = np.ones(prod(counts), np.bool_)
    for condition in conditions:
        holds = _evaluate_at_points(condition, values)
        if holds is None:
            return False
        runs &= holds
    position: Array = np.zeros(prod(counts), np.int64)
    for i in block.iters:
        index = _evaluate_at_points(i.binding, values)
        if index is None:
            return False
        runs &= (index >= 0) & (index < i.extent)
        position = position * i.extent + index
    return int(np.unique(position[runs]).size) == prod(domain)


def _evaluate_at_points(expr: ir.Expr, values: Mapping[ir.Var, Array]) -> Array | None:
    """Return the values of an index or condition for arrays of loop variables; None if it loads, divides by 0, or a number in
    it does not fit int32."""
    match expr:
        case ir.Const(value) if type(value) is int:  # an Extent has a value for each size
            return np.asarray(value, np.bool_ if expr.dtype == "bool" else np.int64)
        case ir.Var():
            return values.get(expr)
        case ir.Un("not", a):
            x = _evaluate_at_points(a, values)
            return None if x is None else np.logical_not(x)
        case ir.Bin(op, a, b) if op in _OPERATORS:
            x, y = _evaluate_at_points(a, values), _evaluate_at_points(b, values)
            if x is None or y is None or (op in ("floordiv", "floormod") and not np.all(y)):
                return None
            result = _OPERATORS[op](x, y)
            return None if result.dtype != np.bool_ and np.any(np.abs(result) > _MAX_INT32) else result
        case _:
            return None


def _explain_missing_instances(
    block: ir.Block, bounds: dict[ir.Var, tuple[int, int]], conditions: Sequence[ir.Expr]
) -> str:
    """Return the reason why loops may not cover the domain of a block under conditions; an empty string if they do."""
    if excluded := _explain_excluding_condition(block, bounds, conditions):
        return excluded
    uncovered = _CoverageProof(bounds).explain_uncovered_binding(block)
    named = _name_dividends(block, bounds) if uncovered else None
    # The reason is that of the block itself: a user does not know the new variables.
    return uncovered if named is None or _CoverageProof(named[1]).explain_uncovered_binding(named[0]) else ""


def _explain_excluding_condition(
    block: ir.Block, bounds: dict[ir.Var, tuple[int, int]], conditions: Sequence[ir.Expr]
) -> str:
    """Return the reason why a condition may exclude instances of a block; an empty string if it excludes none."""
    inside = Simplifier(bounds)
    for i in block.iters:
        zero, extent = ir.const(0, i.var.dtype), ir.const(i.extent, i.var.dtype)
        inside = inside.assuming(ir.Bin("ge", i.binding, zero)).assuming(ir.Bin("lt", i.binding, extent))
    for condition in conditions:
        if inside.simplify(condition) != simplification.TRUE:
            return f"the condition {format_expr(condition)} may exclude instances"
    return ""


def _name_bounded_sums(
    block: ir.Block, bounds: dict[ir.Var, tuple[int, int]], conditions: Sequence[ir.Expr]
) -> tuple[ir.Block, dict[ir.Var, tuple[int, int]], list[ir.Expr]] | None:
    """Return a block, bounds and conditions with a variable in place of every sum of loops that a condition bounds; None if
    there is no such sum.

    A loop that was split with a guarded tail and split again is ``a * 2 + b < 3``: the sum takes the values 0 to 2, like the
    variable of the loop before the second split. It is replaced if it takes all values from 0, and if its loops occur in
    bindings and other conditions as multiples of the sum alone."""
    bindings = [i.binding for i in block.iters]
    pending = [part for condition in conditions for part in ir.conjuncts(condition)]
    used = {*bounds, *(var for expr in (*bindings, *pending) for var in free_vars(expr))}
    replaced_any = False
    while sums := [
        (form, k) for k, part in enumerate(pending) if (form := _match_bounded_sum(part, bounds)) is not None
    ]:
        for (terms, length), k in sorted(
            sums, key=lambda found: len(found[0][0])
        ):  # sums inside of other sums come first
            name = _make_new_variable("sum", {*used, *bounds})
            others = pending[:k] + pending[k + 1 :]
            found = [_replace_sum(each, terms, name) for each in (*bindings, *others)]
            replaced = [each for each in found if each is not None]
            if len(replaced) == len(found):
                bindings, pending = replaced[: len(bindings)], replaced[len(bindings) :]
                bounds = {**bounds, name: (0, length - 1)}
                replaced_any = True
                break
        else:
            break
    iters = tuple(replace(i, binding=binding) for i, binding in zip(block.iters, bindings, strict=True))
    return (replace(block, iters=iters), bounds, pending) if replaced_any else None


def _match_bounded_sum(
    condition: ir.Expr, bounds: Mapping[ir.Var, tuple[int, int]]
) -> tuple[dict[ir.Var, int], int] | None:
    """Match ``sum < limit``, where a sum of multiples of loops takes all values from 0 on.

    Return the coefficients by loop, and the number of values below the limit."""
    match condition:
        case ir.Bin("lt", sum_, ir.Const(int(limit))) if sum_.dtype == "int32" and is_less(0, limit):
            form = Simplifier(bounds).linear_form(sum_)
        case _:
            return None
    terms = {atom.expr: k for atom, k in form.terms.items() if isinstance(atom.expr, ir.Var) and atom.expr in bounds}
    if form.const or not terms or len(terms) < len(form.terms) or not all(is_less(0, k) for k in terms.values()):
        return None
    extents = {atom: bounds[loop][1] + 1 for atom, loop in zip(form.terms, terms, strict=True)}
    start, length = _covered_start_and_length(form, extents)
    return (terms, smallest(length, limit)) if start == 0 and isinstance(length, int) else None


def _replace_sum(expr: ir.Expr, terms: Mapping[ir.Var, int], name: ir.Var) -> ir.Expr | None:
    """Return an index or a comparison with ``name`` in place of the sum of ``terms``, coefficients by loop; None if a loop
    occurs otherwise than as a multiple of the sum."""
    if free_vars(expr).isdisjoint(terms):
        return expr
    if isinstance(expr, ir.Bin) and expr.op in ("lt", "ge", "floordiv", "floormod"):
        left = _replace_sum(expr.a, terms, name)
        return None if left is None or not free_vars(expr.b).isdisjoint(terms) else ir.Bin(expr.op, left, expr.b)
    if expr.dtype != "int32":
        return None
    found, offset = linear(expr)
    if expr in found and expr not in terms:  # neither a sum nor a quotient
        return None
    loop, coefficient = next(iter(terms.items()))
    multiple = found.get(loop, 0) // coefficient
    if any(found.get(each, 0) != k * multiple for each, k in terms.items()):
        return None
    rest = [(_replace_sum(part, terms, name), k) for part, k in found.items() if part not in terms]
    result: ir.Expr = name * multiple + offset
    for part, k in rest:
        if part is None:
            return None
        result = result + part * k
    return result


def _name_dividends(
    block: ir.Block, bounds: dict[ir.Var, tuple[int, int]]
) -> tuple[ir.Block, dict[ir.Var, tuple[int, int]]] | None:
    """Return a block whose bindings have variables in place of sums that are divided, and the bounds of all variables.

    ``(a * 4 + b) // 3`` and ``(a * 4 + b) % 3``, of a fused loop that was split by 4, become digits of one variable. None
    unless the loops in such a sum occur nowhere else, and the sum takes all values from 0."""
    engine, names, extended = Simplifier(bounds), dict[ir.Expr, ir.Expr](), dict(bounds)
    used = {var for i in block.iters for var in free_vars(i.binding)}
    for x in (x for i in block.iters for x in walk_expr(i.binding)):
        if not isinstance(x, ir.Bin) or x.op not in ("floordiv", "floormod") or x.a in names:
            continue
        form = engine.linear_form(x.a)
        if len(form.terms) < 2 or form.const or not all(v.expr in bounds for v in form.terms):
            continue
        extents = {v: bounds[v.expr][1] + 1 for v in form.terms if isinstance(v.expr, ir.Var)}
        start, length = _covered_start_and_length(form, extents)
        if start == 0:
            names[x.a] = name = _make_new_variable("dividend", {*used, *extended})
            extended[name] = (0, length - 1)
    iters = tuple(replace(i, binding=map_expr(i.binding, lambda x: names.get(x, x))) for i in block.iters)
    divided = [var for dividend in names for var in free_vars(dividend)]
    shared = len(set(divided)) < len(divided) or any(not free_vars(i.binding).isdisjoint(divided) for i in iters)
    if not names or shared:
        return None
    return replace(block, iters=iters), extended


def _make_new_variable(stem: str, used: Container[ir.Var]) -> ir.Var:
    """Return a variable that is none of ``used``: variables of equal name are the same."""
    return next(var for k in count() if (var := ir.Var(f"{stem}_{k}")) not in used)


class _CoverageProof:
    """Proof that bindings of block iterators cover a domain. Bindings are sums of mixed-radix digits of loop variables.

    ``extents``: number of values of each base (a sum of loop variables whose digits occur in bindings)."""

    def __init__(self, bounds: dict[ir.Var, tuple[int, int]]) -> None:
        self.engine = Simplifier(bounds)
        self.bounds = bounds
        self.extents: dict[_Base, int] = {}

    def explain_uncovered_binding(self, block: ir.Block) -> str:
        """Return the reason why the bindings of a block's iterators may not cover its domain; an empty string if they do."""
        holds_blocks = any(isinstance(s, ir.Block) for s in walk_stmt(block.body))  # which are checked themselves
        touched = () if holds_blocks else walk_all_exprs(block.body)
        step = max((x.reach for x in touched if isinstance(x, ir.AddressOf)), default=1)
        return self.explain_missing_value([(i.var.name, i.binding, i.extent) for i in block.iters], step)

    def explain_missing_value(self, indices: Sequence[tuple[str, ir.Expr, int]], step: int) -> str:
        """Return the reason why indices may not take all combinations of their values; an empty string if they do.

        ``indices``: name, expression and extent of each. ``step``: number of consecutive values that each value covers."""
        forms = [self.engine.join_quotients_and_remainders(self.engine.linear_form(index)) for _, index, _ in indices]
        digits: dict[Atom, _MixedRadixDigit] = {}
        for (name, index, _), form in zip(indices, forms, strict=True):
            for atom in form.terms:
                digit = self.match_digit(atom)
                if digit is None or atom in digits:
                    return f"{name} = {format_expr(index)} is no independent mixed-radix digit of the loops"
                digits[atom] = digit
        sizes = self.count_values_of_independent_digits(digits)
        if sizes is None:
            return "two iterators share the same part of a loop"
        for (name, index, extent), form in zip(indices, forms, strict=True):
            if not _covers_extent(form, sizes, extent, step):
                return f"{name} = {format_expr(index)} does not take every value of 0..{extent - 1}"
        return ""

    def match_digit(self, atom: Atom) -> _MixedRadixDigit | None:
        """Return ``atom`` as a mixed-radix digit of a sum of loop variables, and record the extent of the sum.

        None if the atom is no such digit."""
        parts = self.engine.match_quotient_or_remainder(atom)
        if parts is None:
            return self.match_leading_digit(LinearForm({atom: 1}), 1)
        op, inner, divisor = parts
        if op == "floordiv":
            return self.match_leading_digit(inner, divisor)
        lower = self.engine.match_quotient_or_remainder(inner.single_atom) if inner.single_atom is not None else None
        dividend, step = lower[1:] if lower is not None and lower[0] == "floordiv" else (inner, 1)
        digit = self.match_leading_digit(dividend, step)
        return None if digit is None else _MixedRadixDigit(digit.base, digit.lower, digit.lower * divisor)

    def match_leading_digit(self, form: LinearForm, lower: int) -> _MixedRadixDigit | None:
        """Return ``form // lower`` as the most significant digit of ``form``, and record the extent of ``form``.

        None unless ``form`` is a sum of multiples of loop variables, without a constant."""
        if form.const or not all(isinstance(v.expr, ir.Var) and v.expr in self.bounds for v in form.terms):
            return None
        extents = {v: self.bounds[v.expr][1] + 1 for v in form.terms if isinstance(v.expr, ir.Var)}
        base = frozenset(form.terms.items())
        self.extents[base] = _covered_start_and_length(form, extents)[1]
        return _MixedRadixDigit(base, lower, None)

    def count_values_of_independent_digits(self, digits: dict[Atom, _MixedRadixDigit]) -> dict[Atom, int] | None:
        """Return the number of values that each mixed-radix digit takes, independently of the other digits.

        None if some digits are not independent of each other."""
        owners = [v for base in {d.base for d in digits.values()} for v, _ in base]
        if len(owners) != len(set(owners)):
            return None
        found: dict[Atom, int] = {}
        for base, extent in self.extents.items():
            group = sorted(((d, atom) for atom, d in digits.items() if d.base == base), key=lambda x: x[0].lower)
            for k, (digit, atom) in enumerate(group):
                last = k + 1 == len(group)
                if digit.upper is None:
                    if not last:
                        return None
                    found[atom] = extent // digit.lower if k else -(-extent // digit.lower)
                elif (not last and group[k + 1][0].lower % digit.upper) or not is_at_most(digit.upper, extent):
                    return None
                else:
                    found[atom] = digit.upper // digit.lower
        return found


def takes_all_values(
    indices: Sequence[tuple[ir.Expr, int]], bounds: dict[ir.Var, tuple[int, int]], step: int = 1
) -> bool:
    """Test whether indices take all combinations of the values 0..extent-1 in the loops of ``bounds``.

    ``indices``: expression and extent of each. ``step``: number of consecutive values that each value covers."""
    try:
        return not _CoverageProof(bounds).explain_missing_value([("", *index) for index in indices], step)
    except Int32Overflow:
        return False


def _covered_start_and_length(form: LinearForm, digit_sizes: dict[Atom, int], step: int = 1) -> tuple[int, int]:
    """Return (start, length) of the interval that a sum of independent mixed-radix digits covers without a gap.

    The interval starts at the lowest value of the sum. ``step``: number of consecutive values that each value covers, because
    an instance of a tensorized block computes several elements."""
    start, length = form.const, step
    for atom, k in sorted(form.terms.items(), key=lambda item: abs(item[1])):
        if is_less(k, 0):
            start += k * (digit_sizes[atom] - 1)
        elif not is_at_most(0, k):
            continue  # its sign depends on the sizes: only the value 0 of this digit counts
        # Digits are visited in order of stride. A stride up to the length covered so far leaves no gap. A larger stride leaves
        # a gap, so its digit does not extend the interval.
        if is_at_most(abs(k), length):
            length += abs(k) * (digit_sizes[atom] - 1)
    return start, length


def _covers_extent(form: LinearForm, digit_sizes: dict[Atom, int], extent: int, step: int) -> bool:
    """Test whether a sum of independent mixed-radix digits covers all values 0..extent-1.

    ``step``: number of consecutive values that each value covers."""
    start, length = _covered_start_and_length(form, digit_sizes, step)
    return is_at_most(start, 0) and is_at_most(extent, start + length)


# ---- Independence: do the iterations of a parallel loop access disjoint elements of a buffer that they write?

IndexParts = tuple[ir.Expr, int, int, int]
"""Decomposition of an index in a parallel loop: (part that is the same in all iterations, lowest and highest value of the part
that depends on inner loops, stride of the parallel loop)."""


def has_disjoint_iterations(loop: ir.For, buffer: ir.Buffer) -> bool:
    """Test whether no two iterations of a loop access the same element of ``buffer``.

    Along one axis, or in memory order, all elements that an iteration accesses must be before the elements that the next
    iteration accesses."""
    if ir.int_value(loop.extent) == 1:
        return True
    found = [a for a in accesses(simplify_stmt(drop_blocks(loop))) if a.buffer == buffer]
    if all(_stays_within_row(access) for access in found):
        axes = ([(a, a.indices[axis], 1) for a in found] for axis in range(len(buffer.shape) - 1))
        if any(_are_iterations_disjoint(loop, touches) for touches in axes) or _are_iterations_disjoint(
            loop, [(a, a.indices[-1], a.extent) for a in found]
        ):
            return True
    return _are_iterations_disjoint(loop, [(a, _element_offset(buffer, a.indices), a.extent) for a in found])


def _element_offset(buffer: ir.Buffer, indices: Sequence[ir.Expr]) -> ir.Expr:
    """Return the row-major offset of an element of a buffer, as an expression."""
    total: ir.Expr = ir.const(0, "int32")
    for index, stride in zip(indices, buffer.strides, strict=True):
        total = total + index * stride
    return total


def _stays_within_row(access: Access) -> bool:
    """Test whether all elements of an access are in one row, that is, along the last axis."""
    if access.extent == 1:
        return True
    reach = _split_parallel_index(access.indices[-1], access, ir.Var(""), access.loops)
    return (
        reach is not None
        and ir.int_value(reach[0]) == 0
        and is_at_most(reach[2] + access.extent, access.buffer.shape[-1])
    )


def _are_iterations_disjoint(loop: ir.For, touches: Iterable[tuple[Access, ir.Expr, int]]) -> bool:
    """Test whether the range of indices that an iteration accesses ends before the range of the next iteration begins.

    ``touches``: triples (access, index, number of elements accessed from this index on).
    """
    parts = [
        (_split_parallel_index(index, a, loop.var, _loops_around_access_inside(a, loop)), extent)
        for a, index, extent in touches
    ]
    known = [(part, extent) for part, extent in parts if part is not None]
    if len(known) < len(parts) or len({(part[0], part[3]) for part, _ in known}) != 1:
        return False
    low = smallest(*(part[1] for part, _ in known))
    high = largest(*(part[2] + extent - 1 for part, extent in known))
    return is_less(high - low, known[0][0][3])


def _loops_around_access_inside(access: Access, loop: ir.For) -> tuple[ir.For, ...]:
    """Return the loops around an access that are inside of ``loop``."""
    variables = [each.var for each in access.loops]
    if loop.var not in variables:  # a loop of one iteration, which simplification has replaced by its body
        return access.loops
    return access.loops[variables.index(loop.var) + 1 :]


def _split_parallel_index(
    index: ir.Expr, access: Access, parallel_var: ir.Var, inner_loops: tuple[ir.For, ...]
) -> IndexParts | None:
    """Decompose an index in a parallel loop: (part common to all iterations, lowest and highest value of the rest, stride).

    The stride is the coefficient of the parallel loop's variable. None if the stride is not constant, or if the range of the
    rest is unknown."""
    bounds = loop_bounds(access.loops)
    terms, _ = linear(simplify(index, bounds))
    step = terms.get(parallel_var, 0)
    inner = {each.var: bounds.get(each.var, (0, 0)) for each in inner_loops}
    if any(each.var not in bounds and each.var in free_vars(index) for each in inner_loops):
        return None
    parts = split_index(simplify(index - parallel_var * step, bounds), inner, bounds)
    if parts is None or parallel_var in free_vars(parts[0]):
        return None
    return (*parts, step)
