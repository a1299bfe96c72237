"""The engine behind :mod:`microc.tir.affine`: expressions rewritten as what a context knows of them allows."""

from __future__ import annotations

from math import gcd

from microc import dtypes
from microc.tir import fold, interval, ir, rewrite
from microc.tir.context import NEGATED, Context, is_scalar_int
from microc.tir.interval import Interval
from microc.tir.ir import Bin, Const, Expr, Var
from microc.tir.linear import Linear, Unprintable, index

_ZERO: Interval = (0, 0)


def negate(condition: Expr) -> Expr:
    """The opposite of a condition; comparisons of floats keep a ``not``, since NaN compares false both ways."""
    match condition:
        case Bin(op, a, b) if op in NEGATED and not dtypes.is_float(a.dtype):
            return Bin(NEGATED[op], a, b)
        case ir.Un("not", a):
            return a
        case Const(value):
            return fold.boolean(not value)
        case _:
            return ir.Un("not", condition)


class Simplifier(Context):
    """Simplifies expressions under bounds and facts."""

    def simplify(self, expr: Expr) -> Expr:
        """An expression of the same value, canonical where it is index arithmetic."""
        found = self._visited.get(id(expr))
        if found is None:
            found = (expr, self._simplify(expr))
            self._visited[id(expr)] = found
        return found[1]

    def _simplify(self, expr: Expr) -> Expr:
        if isinstance(expr, Const):
            return expr
        if expr.dtype == "int32" and self.is_index(expr):
            try:
                return self.emit(self.tidy(self.linear(expr)))
            except Unprintable:
                pass
        return self.structural(expr)

    def structural(self, expr: Expr) -> Expr:
        """Operands simplified, then what holds for any dtype."""
        match expr:
            case Var():
                low, high = self.bounds.get(expr, interval.UNKNOWN)
                if low == high and expr not in self.kept and dtypes.is_integer(expr.dtype):
                    return Const(int(low), expr.dtype)
                return expr
            case ir.Select(c, a, b):
                return self.select(c, a, b)
            case Bin(("and" | "or") as op, a, b):
                return self._logical(op, a, b)
            case Bin(op, a, b):
                if op in ir.COMPARISONS and self.is_index(a) and self.is_index(b):
                    try:
                        return self._compare_index(op, a, b)
                    except Unprintable:
                        pass
                return self._binary(expr, op, self.simplify(a), self.simplify(b))
            case ir.Un(op, a):
                inner = self.simplify(a)
                folded = fold.unary(op, inner) if isinstance(inner, Const) else None
                if folded is None and op == "not":
                    return negate(inner)
                return folded or (expr if inner is a else ir.Un(op, inner))
            case ir.Cast(dtype, a):
                inner = self.simplify(a)
                folded = fold.cast(dtype, inner) if isinstance(inner, Const) else None
                return folded or (expr if inner is a else ir.cast(dtype, inner))
            case _:
                return rewrite.map_children(expr, self.simplify)

    def select(self, condition: Expr, a: Expr, b: Expr) -> Expr:
        """``condition ? a : b``, each side simplified knowing how the condition came out."""
        test = self.simplify(condition)
        if isinstance(test, Const):
            return self.simplify(a if test.value else b)
        first, second = self.assuming(test).simplify(a), self.assuming(test, False).simplify(b)
        same = first == second and repr(first) == repr(second)  # 0.0 equals -0.0, but is not the same
        return first if same else ir.Select(test, first, second)

    def _logical(self, op: str, a: Expr, b: Expr) -> Expr:
        left = self.simplify(a)
        if isinstance(left, Const):
            return self.simplify(b) if bool(left.value) == (op == "and") else left
        right = self.assuming(left, op == "and").simplify(b)
        if isinstance(right, Const):
            return left if bool(right.value) == (op == "and") else right
        return Bin(op, left, right)

    def _compare_index(self, op: str, a: Expr, b: Expr) -> Expr:
        """A comparison of index expressions: decided by bounds, else positive terms left, negative ones right."""
        form = self.tidy(self.linear(a).plus(self.linear(b), -1))
        known = interval.compare(op, self.span(form), _ZERO)
        if known is not None:
            return fold.boolean(known)
        if op in ("eq", "ne"):
            return self._compare_equal(op, form)
        if op in ("gt", "ge"):
            op, form = {"gt": "lt", "ge": "le"}[op], form.times(-1)
        if op == "lt":
            form = form.plus(Linear({}, 1))
        divisor = gcd(*form.terms.values())  # form <= 0 from here on
        form = Linear({t: k // divisor for t, k in form.terms.items()}, -(-form.const // divisor))
        left = Linear({t: k for t, k in form.terms.items() if k > 0})
        right = Linear({t: -k for t, k in form.terms.items() if k < 0})
        if not left.terms:
            return Bin("ge", self.emit(right), index(form.const))
        return Bin("lt", self.emit(left), self.emit(right.plus(Linear({}, 1 - form.const))))

    def _compare_equal(self, op: str, form: Linear) -> Expr:
        divisor = gcd(*form.terms.values())
        if form.const % divisor:
            return fold.boolean(op == "ne")
        form = Linear({t: k // divisor for t, k in form.terms.items()}, form.const // divisor)
        if form.terms[min(form.terms, key=lambda atom: self.key(atom.expr))] < 0:
            form = form.times(-1)
        left = Linear({t: k for t, k in form.terms.items() if k > 0})
        right = Linear({t: -k for t, k in form.terms.items() if k < 0}, -form.const)
        return Bin(op, self.emit(left), self.emit(right))

    def _binary(self, expr: Bin, op: str, a: Expr, b: Expr) -> Expr:
        if isinstance(a, Const) and isinstance(b, Const):
            folded = fold.binary(op, a, b)
            if folded is not None:
                return folded
        elif is_scalar_int(a.dtype):
            identity = self._identity(op, a, b)
            if identity is not None:
                return identity
        return expr if a is expr.a and b is expr.b else Bin(op, a, b)

    def _identity(self, op: str, a: Expr, b: Expr) -> Expr | None:
        """What ranges and neutral literals decide for integers that are not index arithmetic."""
        x, y = ir.int_value(a), ir.int_value(b)
        if op in ("min", "max") or op in ir.COMPARISONS:
            return self._decide(op, a, b)
        if y == 0 and op in ("add", "sub", "shl", "shr", "bitor", "bitxor"):
            return a
        if x == 0 and op in ("add", "bitor", "bitxor"):
            return b
        if (x == 0 or y == 0) and op in ("mul", "bitand"):
            return Const(0, a.dtype)
        if y == 1 and op in ("mul", "floordiv", "truncdiv"):
            return a
        if x == 1 and op == "mul":
            return b
        if y is not None and y > 0 and op in ("floordiv", "floormod", "shr"):
            low, high = self.reach(a)
            if not isinstance(low, int) or not isinstance(high, int):
                return None
            if op == "shr":
                return Const(low >> y, a.dtype) if low >> y == high >> y else None
            if low // y == high // y:
                if op == "floordiv":
                    return Const(low // y, a.dtype)
                return a if low // y == 0 else None
        return None

    def _decide(self, op: str, a: Expr, b: Expr) -> Expr | None:
        form = self.difference(a, b) if a.dtype == "int32" else None
        left, right = (self.reach(a), self.reach(b)) if form is None else (self.span(form), _ZERO)
        if op in ir.COMPARISONS:
            known = interval.compare(op, left, right)
            return None if known is None else fold.boolean(known)
        smaller = interval.compare("le", left, right)
        if smaller is None and interval.compare("ge", left, right):
            smaller = False
        return None if smaller is None else a if smaller == (op == "min") else b
