# SPDX-License-Identifier: Apache-2.0
"""Unification of patterns with expressions, and the equal forms in which meanings of intrinsics are matched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from microc.base import dtypes
from microc.isa import SCALAR, Intrin
from microc.tir import ir
from microc.tir.analysis.linear_forms import within
from microc.tir.analysis.simplification import bounds_of, fits_dtype, simplify
from microc.tir.extents import is_at_most, largest
from microc.tir.rewrite import children, free_vars, map_expr, substitute, with_children

# ---- Unification of patterns with expressions: a variable of a pattern matches any operand of its dtype,
# commutative operators of integers match in both orders, and so do the minimum and the maximum of a clamp. An
# operand that is a call of an intrinsic also matches the intrinsic's meaning.


_COMMUTATIVE = frozenset({"add", "mul", "bitand", "bitor", "bitxor", "min", "max", "eq", "ne"})
_OPERATORS_WITH_EQUAL_FORMS = frozenset({"mul", "sub", "shr"})
"""Binary operators of expressions that may have another form (:func:`equal_form`)."""
_OPERATORS_OF_EQUAL_FORMS: Mapping[str, frozenset[str]] = MappingProxyType(
    {"mul": frozenset({"shl"}), "sub": frozenset({"add", "neg"}), "neg": frozenset({"sub"}), "max": frozenset({"min"})}
)
"""Other outermost operators of the forms in which an expression is matched, by its own outermost operator."""
Operands = Mapping[ir.Expr, ir.Expr]
"""Operands by variable of a pattern."""


def root_operator(expr: ir.Expr | ir.Stmt) -> str:
    """Return the name of the outermost operator of an expression, by which patterns are looked up. Maxima are minima,
    because a clamp may be written in both orders."""
    match expr:
        case ir.Bin("max", ir.Bin("min")):
            return "min"
        case _:
            return _operator(expr) or type(expr).__name__


def normalise_clamp(expr: ir.Expr) -> tuple[ir.Expr, bool]:
    """Rewrite a clamp of int32 to ``min(max(x, low), high)`` with a simplified x, so that a final shift of x is visible.
    Leave any other expression unchanged. Return the expression, and whether it is a clamp."""
    parts = match_int32_clamp(expr)
    return (expr, False) if parts is None else (ir.clamp(simplify(parts[0]), *parts[1]), True)


def _clamp_with_outer_minimum(expr: ir.Expr) -> ir.Expr:
    """Rewrite a clamp of int32 to ``min(max(x, low), high)``. Leave any other expression unchanged."""
    parts = match_int32_clamp(expr)
    return expr if parts is None else ir.clamp(parts[0], *parts[1])


def match_int32_clamp(expr: ir.Expr) -> tuple[ir.Expr, tuple[int, int]] | None:
    """Match ``min(max(x, low), high)`` of int32, with minimum and maximum in either order. Return (x, (low, high));
    None if it does not match."""
    match expr:
        case ir.Bin("min", ir.Bin("max", x, ir.Const(low)), ir.Const(high)) if expr.dtype == "int32":
            return x, (int(low), int(high))
        case ir.Bin("max", ir.Bin("min", x, ir.Const(high)), ir.Const(low)) if expr.dtype == "int32" and low <= high:
            return x, (int(low), int(high))
        case _:
            return None


def add_constant(expr: ir.Expr, value: int) -> ir.Expr:
    """Build the sum of an integer expression and a constant. A constant that the expression adds or subtracts is included."""
    match expr:
        case ir.Const(int() as number):
            return ir.Const(number + value, expr.dtype)
        case ir.Bin("add" | "sub" as op, x, ir.Const(int() as number)):
            total = (number if op == "add" else -number) + value
            return x if total == 0 else x + total if total > 0 else x - -total
        case _:
            return simplify(expr + value)


def expand_call(call: ir.Call) -> ir.Expr:
    """Return the meaning of a call of a scalar intrinsic, with its arguments. Return any other call unchanged."""
    return _expand_call(call, SCALAR.entries)


@lru_cache(maxsize=256)
def _expand_call(call: ir.Call, _entries: object) -> ir.Expr:
    """Return :func:`expand_call`. The contents of the registry are part of the key, since plugins extend it."""
    intrin = SCALAR.get(call.name)
    if intrin is None or not intrin.is_scalar or not isinstance(intrin.meaning, ir.Expr):
        return call
    params = (param for param in intrin.params if isinstance(param, ir.Var))
    return substitute(intrin.meaning, dict(zip(params, call.args, strict=True)))


def unify(pattern: ir.Expr | ir.Stmt, expr: ir.Expr, known: Operands) -> Iterator[Operands]:
    """Iterate over the operands for which ``pattern`` is equal to ``expr``. ``known``: operands that were matched before."""
    if isinstance(pattern, ir.Var):
        if known.get(pattern, expr) == expr and pattern.dtype == expr.dtype:
            yield {**known, pattern: expr}
        return
    if isinstance(pattern, ir.Load):
        yield from _unify_element(pattern, expr, known)
        return
    if isinstance(expr, ir.Const):
        if isinstance(pattern, ir.Bin):
            yield from _unify_literal(pattern, expr, known)
        elif pattern == expr:
            yield known
        return
    match pattern:
        # A distance plus one may have been folded: d + 1 is s for d = s - 1.
        case ir.Bin("add", ir.Var() as var, ir.Const(int() as number)) if var in known:
            if add_constant(known[var], number) == expr:
                yield known
                return
        case ir.Bin("min", ir.Bin("max")):
            expr = _clamp_with_outer_minimum(expr)
        case _:
            pass
    if isinstance(expr, (ir.Load, ir.Var)):
        return
    yield from _unify_operands(pattern, expr, known)
    if isinstance(pattern, ir.Call) or (isinstance(expr, ir.Bin) and expr.op not in _OPERATORS_WITH_EQUAL_FORMS):
        return
    equal = equal_form(expr)
    if equal is not expr:
        yield from _unify_operands(pattern, equal, known)


def pointer_of(param: ir.Buffer) -> ir.Expr:
    """Return the expression by which :data:`Operands` know a pointer. Its operand is a load of the element at distance 0."""
    return ir.AddressOf(param, (), 0)


def _unify_element(pattern: ir.Load, expr: ir.Expr, known: Operands) -> Iterator[Operands]:
    """Iterate over the operands for which an element at a distance from a pointer is the one that ``expr`` loads. All elements of
    a pointer are in one row of a buffer."""
    if not isinstance(expr, ir.Load) or expr.dtype != pattern.dtype or not expr.indices:
        return
    if len(pattern.indices) != 1 or not free_vars(pattern) <= known.keys():
        return
    distance = substitute(pattern.indices[0], {var: known[var] for var in free_vars(pattern)})
    first = ir.Load(expr.buffer, (*map(simplify, expr.indices[:-1]), simplify(expr.indices[-1] - distance)))
    if known.get(key := pointer_of(pattern.buffer), first) == first:
        yield {**known, key: first}


def _operator(expr: ir.Expr | ir.Stmt) -> str:
    """Return the name of the operator or function of a node."""
    return expr.op if isinstance(expr, (ir.Bin, ir.Un)) else expr.name if isinstance(expr, ir.Call) else ""


def _unify_operands(pattern: ir.Expr | ir.Stmt, expr: ir.Expr, known: Operands) -> Iterator[Operands]:
    """Iterate over the operands for which two nodes are equal: they have the same operator, and all operands are equal."""
    if type(pattern) is not type(expr) or isinstance(pattern, ir.AddressOf):
        return
    if _operator(pattern) != _operator(expr) or pattern.dtype != expr.dtype:
        return
    patterns, parts = children(pattern), children(expr)
    yield from _unify_all(patterns, parts, known)
    if isinstance(pattern, ir.Bin) and pattern.op in _COMMUTATIVE and dtypes.is_integer(parts[0].dtype):
        yield from _unify_all(patterns, parts[::-1], known)
        if pattern.op == "add" and "add" in map(_operator, (*patterns, *parts)):
            yield from _unify_sums(pattern, expr, known)


def _unify_all(patterns: Sequence[ir.Expr], parts: Sequence[ir.Expr], known: Operands) -> Iterator[Operands]:
    """Iterate over the operands for which all patterns are equal to the expressions ``parts`` at the same positions. Variables
    come first, since what is computed from them alone may have been folded."""
    if len(patterns) != len(parts):
        return
    rest: list[tuple[ir.Expr, ir.Expr]] = []
    for pattern, part in zip(patterns, parts, strict=True):
        if not isinstance(pattern, ir.Var):
            if not _may_unify(pattern, part) or (isinstance(part, ir.Const) and not _may_be_folded(pattern, known)):
                return
            rest.append((pattern, part))
        elif pattern.dtype != part.dtype or known.get(pattern, part) != part:
            return
        else:
            known = {**known, pattern: part}
    if not rest:
        yield known
        return
    (pattern, part), *others = rest
    for operands in unify(pattern, part, known):
        if others:
            yield from _unify_all([p for p, _ in others], [e for _, e in others], operands)
        else:
            yield operands


def _may_unify(pattern: ir.Expr, expr: ir.Expr) -> bool:
    """Test whether the outermost operators permit that a pattern is equal to an expression. Most patterns fail at their
    second level of operators, where this test saves :func:`unify`."""
    match pattern, expr:
        case (
            (ir.Var(), _)
            | (_, ir.Call())
            | (ir.Load(), ir.Load())
            | (ir.Bin("add", ir.Var(), ir.Const()), _)
            | (ir.Bin(), ir.Const())
        ):
            may = True
        case _, ir.Bin(op) | ir.Un(op):
            own = _operator(pattern)
            may = own == op or own in _OPERATORS_OF_EQUAL_FORMS.get(op, ())
        case _, ir.Cast():
            may = isinstance(pattern, ir.Cast) or isinstance(expr.a, ir.Cast)
        case _, ir.Select():
            may = isinstance(pattern, (ir.Select, ir.Bin))
        case _:
            may = pattern == expr
    return may and pattern.dtype == expr.dtype


def _may_be_folded(pattern: ir.Expr, known: Operands) -> bool:
    """Test whether a pattern may be equal to a literal: as one, as a sum of a variable, or as arithmetic on known variables."""
    is_sum = isinstance(pattern, ir.Bin) and pattern.op in ("add", "sub") and isinstance(pattern.a, ir.Var)
    return is_sum or free_vars(pattern) <= known.keys()


def _unify_literal(pattern: ir.Bin, literal: ir.Const, known: Operands) -> Iterator[Operands]:
    """Iterate over the operands for which an arithmetic expression of variables was folded to a literal: the constant that
    a sum of one variable and a literal implies, or those that are known."""
    match pattern, literal:
        case ir.Bin("add" | "sub" as op, ir.Var() as var, ir.Const(int() as number)), ir.Const(int() as total):
            value = total - number if op == "add" else total + number
            if fits_dtype(value, var.dtype) and known.get(var) in (None, operand := ir.Const(value, var.dtype)):
                yield {**known, var: operand}
        case _:
            if all(isinstance(known.get(var), ir.Const) for var in free_vars(pattern)) and (
                substitute_operands(pattern, known) == literal
            ):
                yield known


MAX_TERMS = 6
"""Most terms of a sum that is matched in any order: their permutations are tried."""


def _unify_sums(pattern: ir.Bin, expr: ir.Expr, known: Operands) -> Iterator[Operands]:
    """Iterate over the operands for which two sums are equal in any order of their terms. The last variable of the pattern
    takes the terms that remain. Orders are equal only if no partial sum can overflow, which the bounds of the terms prove."""
    patterns, parts = list_terms(pattern), list_terms(expr)
    if not len(patterns) <= len(parts) <= MAX_TERMS:
        return
    if not all(any(_may_unify(pattern, part) for part in parts) for pattern in patterns):
        return
    ends = [bounds_of(part) or (-(1 << 63), 1 << 63) for part in parts]
    if not is_at_most(sum(largest(-low, high) for low, high in ends), dtypes.int_range(expr.dtype)[1]):
        return
    yield from _unify_terms(sorted(patterns, key=lambda x: isinstance(x, ir.Var)), parts, known)


def _unify_terms(patterns: Sequence[ir.Expr], parts: Sequence[ir.Expr], known: Operands) -> Iterator[Operands]:
    """Iterate over the operands for which the terms ``patterns`` are the terms ``parts`` in any order."""
    if len(patterns) == 1:
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        yield from unify(patterns[0], total, known) if len(parts) == 1 or isinstance(patterns[0], ir.Var) else ()
        return
    for k, part in enumerate(parts):
        for operands in unify(patterns[0], part, known):
            yield from _unify_terms(patterns[1:], (*parts[:k], *parts[k + 1 :]), operands)


def list_terms(expr: ir.Expr) -> list[ir.Expr]:
    """List the terms of a sum in the order in which they are written."""
    match expr:
        case ir.Bin("add", a, b):
            return [*list_terms(a), *list_terms(b)]
        case ir.Bin("sub", a, ir.Const(int() as number)) if fits_dtype(-number, expr.dtype):
            return [*list_terms(a), ir.Const(-number, expr.dtype)]
        case _:
            return [expr]


def substitute_operands(template: ir.Expr, operands: Operands) -> ir.Expr:
    """Build an expression from a template by replacing its variables by operands. Arithmetic on constants is computed;
    operands are not simplified."""
    if isinstance(template, ir.Var):
        return operands[template]
    parts = children(template)
    found = [substitute_operands(part, operands) for part in parts]
    built = with_children(template, found)
    match template, built:
        case ir.Cast(dtype), ir.Cast(_, ir.Const(value)) if dtypes.is_integer(dtype):
            return ir.Const(int(value), dtype)
        case ir.Bin("add" | "sub" as op, ir.Var(), ir.Const(int() as value)), _ if dtypes.is_integer(built.dtype):
            return add_constant(found[0], value if op == "add" else -value)
        case _, ir.Bin("add" | "shl" | "shr", a, ir.Const(0)):
            return a
        case _, ir.Bin(_, ir.Const(), ir.Const()):
            return simplify(built)
        case _:
            return built


# ---- Equal forms. An expression may be written in several ways; a meaning, too. Both are brought to one form where
# they differ.


def equal_form(expr: ir.Expr) -> ir.Expr:
    """Return the form of an integer expression in which meanings are matched, or the expression itself. Only the outermost
    operator changes:

    - a call of a scalar intrinsic: its meaning;
    - a select by the order of its own values: minimum or maximum; a select by ``ne``: by ``eq``;
    - a product by 2**n: a shift; a literal that is subtracted: one that is added; ``0 - x`` and ``-(x - y)``: ``-x``, ``y - x``;
    - ``(x + 2**(n - 1)) >> n``: ``((x >> (n - 1)) + 1) >> 1``, which cannot overflow;
    - a cast to a narrower dtype and back, if the value fits: the value."""
    if isinstance(expr, ir.Bin) and expr.op not in _OPERATORS_WITH_EQUAL_FORMS:
        return expr
    match expr:
        case ir.Call():
            return expand_call(expr)
        case ir.Select(ir.Bin("ne", x, y), a, b):
            return ir.Select(ir.Bin("eq", x, y), b, a)
        case ir.Cast(dtype, ir.Cast(narrow, x)) if x.dtype == dtype and dtypes.is_integer(dtype):
            fits = dtypes.is_integer(narrow) and within(
                bounds_of(x) or dtypes.int_range(dtype), dtypes.int_range(narrow)
            )
            return x if fits else expr
        case _:
            # Sums of unsigned numbers wrap around, and floats are rounded: they keep their form.
            return _signed_form(expr) if dtypes.dtype_parts(expr.dtype).kind == "int" else expr


def _signed_form(expr: ir.Expr) -> ir.Expr:
    """Return :func:`equal_form` of an arithmetic expression of signed integers."""
    match expr:
        case ir.Select(ir.Bin("lt" | "le", x, y), a, b) | ir.Select(ir.Bin("gt" | "ge", y, x), a, b):
            return (_extreme(a, b, x, y) if x.dtype == expr.dtype else None) or expr
        case ir.Bin("mul", x, ir.Const(int() as factor)) | ir.Bin("mul", ir.Const(int() as factor), x) if (
            factor > 1 and factor & (factor - 1) == 0
        ):
            return x << (factor.bit_length() - 1)
        case ir.Un("neg", ir.Bin("sub", x, y)) | ir.Bin("sub", ir.Const(0), ir.Bin("sub", x, y)):
            return y - x
        case ir.Bin("sub", ir.Const(0), x):
            return ir.Un("neg", x)
        case ir.Bin("sub", x, ir.Const(int() as number)) if fits_dtype(-number, expr.dtype):
            return x + -number
        case ir.Bin("shr", ir.Bin("add", x, ir.Const(int() as half)), ir.Const(int() as n)) if n > 1 and half == 1 << (
            n - 1
        ):
            return ((x >> (n - 1)) + 1) >> 1
        case _:
            return expr


def _extreme(a: ir.Expr, b: ir.Expr, x: ir.Expr, y: ir.Expr) -> ir.Expr | None:
    """Return the minimum or maximum that ``a if x < y else b`` is; None if it is neither.

    It is the maximum if a - b is a positive multiple of y - x, the minimum if it is one of x - y."""
    values, order = _difference(a, b), _difference(x, y)
    ratios = {values[part] / factor for part, factor in order.items() if part in values}
    if len(ratios) != 1 or values.keys() != order.keys():
        return None
    return ir.minimum(a, b) if ratios.pop() > 0 else ir.maximum(a, b)


def _difference(a: ir.Expr, b: ir.Expr) -> dict[ir.Expr, int]:
    """Return the factors of the terms of a - b, without zeros; the constant is that of the literal 1."""
    factors: dict[ir.Expr, int] = {}
    parts = [(a, 1), (b, -1)]
    for expr, sign in parts:
        match expr:
            case ir.Bin("add" | "sub" as op, x, y):
                parts += [(x, sign), (y, sign if op == "add" else -sign)]
            case ir.Un("neg", x):
                parts += [(x, -sign)]
            case ir.Const(int() as number):
                one = ir.Const(1, expr.dtype)
                factors[one] = factors.get(one, 0) + sign * number
            case _:
                factors[expr] = factors.get(expr, 0) + sign
    return {part: factor for part, factor in factors.items() if factor}


# A meaning in 64 bits is that of an expression in 32 bits, too, which cannot overflow. Fixed-point products are matched as
# the calls that operators write.

_A, _B = ir.Var("a"), ir.Var("b")
_WIDE = _A.astype("int64") * _B.astype("int64")
_TOP = (1 << 31) - 1


def _list_fixed_point_forms() -> Iterator[tuple[ir.Expr, ir.Expr]]:
    """Yield (product in 64 bits, equal call) for products of a and b by 2**-31 and 2**-32, rounded half up or down.

    Those by 2**-31 may saturate: the operand ``a << 1`` of the call cannot overflow, so that the product is in range."""
    doubled = _A << 1
    for value, call in (
        (((_WIDE << 1) >> 31) + 1 >> 1, ir.call("high_mul_round", doubled, _B)),
        ((_WIDE >> 30) + 1 >> 1, ir.call("high_mul_round", doubled, _B)),
        ((_WIDE << 1) >> 32, ir.call("high_product", doubled, _B)),
        (_WIDE >> 31, ir.call("high_product", doubled, _B)),
    ):
        for saturated in (value, ir.minimum(value, _TOP), ir.clamp(value, -_TOP - 1, _TOP)):
            yield saturated.astype("int32"), call
        yield ir.minimum(value.astype("int32"), _TOP), call
    yield ((_WIDE >> 31) + 1 >> 1).astype("int32"), ir.call("high_mul_round", _A, _B)
    yield (_WIDE >> 32).astype("int32"), ir.call("high_product", _A, _B)


_FIXED_POINT_FORMS = tuple(_list_fixed_point_forms())


@lru_cache(maxsize=1024)
def list_meanings(intrin: Intrin) -> tuple[ir.Expr, ...]:
    """Return the expressions that a scalar intrinsic computes: its meaning as it is declared, then other forms of it."""
    meaning = intrin.meaning
    assert isinstance(meaning, ir.Expr)
    wide = map_expr(meaning, _meaning_form)
    forms = [meaning, wide, _narrow(wide)]
    forms += [
        substitute_operands(call, operands)
        for pattern, call in _FIXED_POINT_FORMS
        if _may_unify(pattern, wide)
        for operands in tuple(unify(pattern, wide, {}))[:1]
    ]
    return tuple(form for form in dict.fromkeys(forms) if form is not None and not isinstance(form, ir.Var))


def _meaning_form(expr: ir.Expr) -> ir.Expr:
    """Return :func:`equal_form` of a part of a meaning. A rounding shift of 32 bits is left: instructions compute its sum,
    which overflows where that of the other form does not."""
    is_word_shift = isinstance(expr, ir.Bin) and expr.op == "shr" and expr.dtype != "int64"
    return expr if is_word_shift or isinstance(expr, ir.Call) else equal_form(expr)


def _narrow(meaning: ir.Expr) -> ir.Expr | None:
    """Return a meaning that is computed in int64 and cast to int32 as one in int32; None if a part has no such form."""
    match meaning:
        case ir.Cast("int32" | "int64", ir.Expr(dtype="int32") as word):
            return word
        case ir.Cast("int32", ir.Bin("shr", ir.Bin("add", value, half), distance)) if (
            (x := _narrow(value)) is not None and (n := _narrow(distance)) is not None and _is_half(half, distance)
        ):
            return ((x >> (n - 1)) + 1) >> 1
        case ir.Cast("int32", value):
            return _narrow(value)
        case ir.Const(int() as number, "int64") if -(1 << 31) <= number < 1 << 31:
            return ir.Const(number, "int32")
        case ir.Bin("add" | "sub" | "mul" | "shl" | "shr" | "min" | "max" as op, a, b) if meaning.dtype == "int64":
            left, right = _narrow(a), _narrow(b)
            return None if left is None or right is None else ir.binary(op, left, right)
        case _:
            return None


def _is_half(half: ir.Expr, distance: ir.Expr) -> bool:
    """Test whether an expression is 2**(distance - 1), half a unit of what a shift to the right by ``distance`` leaves."""
    one = ir.Const(1, half.dtype)
    return half in ((one << distance) >> one, one << (distance - one))
