"""Linear forms over atoms, and how they are written as expressions in one canonical order."""

from __future__ import annotations

from collections.abc import Iterable

from microc.tir import ir
from microc.tir.ir import Bin, Const, Expr, Var

INDEX_LIMIT = (1 << 31) - 1


class Unprintable(Exception):
    """A linear form whose numbers do not fit int32; the expression is then left as it was written."""


class Atom:
    """An expression that linear forms are made of. Equal expressions share one atom (of an :class:`Atoms` table), so that
    atoms compare and hash by identity: hashing an expression costs as much as walking it."""

    __slots__ = ("expr", "order")

    def __init__(self, expr: Expr, order: int) -> None:
        self.expr = expr
        self.order = order


class Atoms:
    """One atom for every expression met, numbered in order of appearance. ``emitted``: the expressions of forms of them."""

    def __init__(self) -> None:
        self._by_identity: dict[int, tuple[Expr, Atom]] = {}
        self._by_structure: dict[Expr, Atom] = {}
        self.emitted: dict[tuple[int, tuple[tuple[Atom, int], ...]], Expr] = {}

    def of(self, expr: Expr) -> Atom:
        found = self._by_identity.get(id(expr))
        if found is None:
            atom = self._by_structure.setdefault(expr, Atom(expr, len(self._by_structure)))
            found = self._by_identity[id(expr)] = (expr, atom)
        return found[1]


class Linear:
    """``sum(terms[atom] * atom) + const``; coefficients are never zero. Treated as immutable once built."""

    __slots__ = ("const", "terms")

    def __init__(self, terms: dict[Atom, int], const: int = 0) -> None:
        self.terms = terms
        self.const = const

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        terms = dict(self.terms)
        for atom, k in other.terms.items():
            value = terms.get(atom, 0) + k * factor
            if value:
                terms[atom] = value
            else:
                terms.pop(atom, None)
        return Linear(terms, self.const + other.const * factor)

    def times(self, factor: int) -> Linear:
        if factor == 0:
            return Linear({})
        return Linear({atom: k * factor for atom, k in self.terms.items()}, self.const * factor)

    def same(self, other: Linear) -> bool:
        return self.const == other.const and self.terms == other.terms

    @property
    def single(self) -> Atom | None:
        """The atom, when the form is exactly that atom."""
        if self.const == 0 and len(self.terms) == 1:
            (atom, k), *_ = self.terms.items()
            return atom if k == 1 else None
        return None


Fact = Linear  # a fact says that the form is at most zero


def index(value: int) -> Const:
    """An int32 literal; what does not fit is unprintable."""
    if not -INDEX_LIMIT - 1 <= value <= INDEX_LIMIT:
        raise Unprintable
    return Const(value, "int32")


def split(form: Linear, c: int) -> tuple[Linear, Linear]:
    """``form = c * quotient + rest``: every coefficient of ``rest`` below c in size, its constant in 0..c-1."""
    quotient: dict[Atom, int] = {}
    rest: dict[Atom, int] = {}
    for atom, k in form.terms.items():
        q = k // c if k > 0 else -(-k // c)
        if q:
            quotient[atom] = q
        if k - q * c:
            rest[atom] = k - q * c
    return Linear(quotient, form.const // c), Linear(rest, form.const % c)


def factors(form: Linear, fact: Fact) -> set[int]:
    """Multiples of the fact that cancel one of its atoms in the form."""
    shared = ((form.terms[t], v) for t, v in fact.terms.items() if t in form.terms)
    return {k // v for k, v in shared if k % v == 0 and k // v > 0}


def inequalities(op: str, form: Linear) -> Iterable[Fact]:
    """``form op 0`` as facts ``terms <= -const``."""
    one = Linear({}, 1)
    if not form.terms:
        return
    match op:
        case "lt":
            yield form.plus(one)
        case "le":
            yield form
        case "gt":
            yield form.times(-1).plus(one)
        case "ge":
            yield form.times(-1)
        case "eq":
            yield form
            yield form.times(-1)


class Emitter:
    """Writes linear forms as int32 expressions."""

    def __init__(self, atoms: Atoms | None = None) -> None:
        self.atoms = atoms or Atoms()
        self._keys: dict[int, tuple[Expr, str]] = {}

    def form(self, expr: Expr) -> Linear:
        """The form that is just this expression."""
        return Linear({self.atoms.of(expr): 1})

    def key(self, expr: Expr) -> str:
        """A text that orders expressions the same way in every run; of data, by order of appearance."""
        found = self._keys.get(id(expr))
        if found is None:
            found = self._keys[id(expr)] = (expr, self._key(expr))
        return found[1]

    def _key(self, expr: Expr) -> str:
        match expr:
            case Var(name):
                return name
            case Bin(op, a, b):
                return f"({self.key(a)} {op} {self.key(b)})"
            case Const(value):
                return str(value)
            case ir.Un(op, a):
                return f"{op} {self.key(a)}"
            case ir.Select(c, a, b):
                return f"({self.key(c)} ? {self.key(a)} : {self.key(b)})"
            case _:
                return f"#{self.atoms.of(expr).order}"

    def emit(self, form: Linear) -> Expr:
        """The form as an expression: positive terms first, large strides before small ones, the constant last. Equal forms are
        one object, about which everything is found once."""
        key = form.const, tuple(form.terms.items())
        found = self.atoms.emitted.get(key)
        if found is None:
            found = self.atoms.emitted[key] = self._emit(form)
        return found

    def _emit(self, form: Linear) -> Expr:
        terms = sorted(form.terms.items(), key=lambda item: (item[1] < 0, -abs(item[1]), self.key(item[0].expr)))
        result: Expr | None = None
        rest = form.const
        for atom, k in terms:
            size = index(abs(k))
            term = atom.expr if abs(k) == 1 else Bin("mul", atom.expr, size)
            if result is None and k < 0 and rest > 0:
                result, rest = index(rest), 0
            if result is None:
                result = term if k > 0 else ir.Un("neg", atom.expr) if k == -1 else Bin("mul", atom.expr, index(k))
            else:
                result = Bin("add" if k > 0 else "sub", result, term)
        if result is None:
            return index(rest)
        if rest:
            result = Bin("add" if rest > 0 else "sub", result, index(abs(rest)))
        return result
