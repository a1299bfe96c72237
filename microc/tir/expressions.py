"""Expressions and buffers of the loop IR."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import copysign, prod
from typing import TypeVar, dataclass_transform

from microc.base import dtypes
from microc.errors import ProgramError
from microc.tir import operators

# ---- Immutable classes that memoise their hash: expressions, statements and buffers of the loop IR.

_Class = TypeVar("_Class")


class Node:
    """A value that memoises its hash, which is composed of those of its operands."""

    __slots__ = ("_hash",)
    _hash: int


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def node(cls: type[_Class]) -> type[_Class]:
    """Make a class of values that compares by its fields and memoises its hash; a :class:`Node`.

    Fields are frozen for the type checker only. Enforcing it at run time would make every new object three times as
    expensive, and a compilation makes hundreds of thousands.
    """
    by_fields = "__eq__" not in vars(cls)
    made = dataclass(slots=True, eq=by_fields, unsafe_hash=by_fields)(cls)
    hash_fields = made.__hash__

    def __hash__(self: Node) -> int:
        try:
            return self._hash
        except AttributeError:
            self._hash = found = hash_fields(self)
            return found

    made.__hash__ = __hash__  # type: ignore[assignment]
    made.__repr__ = made.__repr__.__wrapped__  # type: ignore[method-assign, attr-defined]  # no guard against recursion: no value contains itself
    return made


# ---- Expressions and buffers of the loop IR, and functions that build them; :mod:`microc.tir.ir` defines their
# meaning.

REINTERPRET = "reinterpret"
"""Call that returns the bits of its argument as another dtype of the same width."""
COMPARISONS = frozenset(operators.COMPARISONS)
LOGICAL = frozenset(operators.LOGICAL)
ARITHMETIC = frozenset(operators.ARITHMETIC)
UNARY = frozenset(operators.UNARY)
UNIT_SCOPES = ("unit_input", "unit_weight", "unit_sums")
"""Memories of a tensor unit, accessible to its instructions only (:mod:`microc.isa.vocabulary.matrix_products`)."""
SCOPES = ("global", "const", "workspace", "shared", "register", "local", *UNIT_SCOPES)


class Expr(Node):
    """An expression; ``dtype`` is its type. Python operators build typed expressions."""

    __slots__ = ("known_accesses", "known_index", "known_vars")
    dtype: str
    known_accesses: tuple[Load | AddressOf, ...]
    known_index: bool
    known_vars: frozenset[Var]  # all three are computed on demand: microc.tir.rewrite, microc.tir.analysis.context

    def __add__(self, other: Expr | int | float) -> Expr:
        return binary("add", self, other)

    def __radd__(self, other: int | float) -> Expr:
        return binary("add", const(other, self.dtype), self)

    def __sub__(self, other: Expr | int | float) -> Expr:
        return binary("sub", self, other)

    def __rsub__(self, other: int | float) -> Expr:
        return binary("sub", const(other, self.dtype), self)

    def __mul__(self, other: Expr | int | float) -> Expr:
        return binary("mul", self, other)

    def __rmul__(self, other: int | float) -> Expr:
        return binary("mul", const(other, self.dtype), self)

    def __truediv__(self, other: Expr | int | float) -> Expr:
        return binary("div", self, other)

    def __rtruediv__(self, other: int | float) -> Expr:
        return binary("div", const(other, self.dtype), self)

    def __floordiv__(self, other: Expr | int) -> Expr:
        return binary("floordiv", self, other)

    def __mod__(self, other: Expr | int) -> Expr:
        return binary("floormod", self, other)

    def __lshift__(self, other: Expr | int) -> Expr:
        return binary("shl", self, other)

    def __rshift__(self, other: Expr | int) -> Expr:
        return binary("shr", self, other)

    def __and__(self, other: Expr | int) -> Expr:
        return binary("bitand", self, other)

    def __or__(self, other: Expr | int) -> Expr:
        return binary("bitor", self, other)

    def __xor__(self, other: Expr | int) -> Expr:
        return binary("bitxor", self, other)

    def __neg__(self) -> Expr:
        return Un("neg", self)

    def __lt__(self, other: Expr | int | float) -> Expr:
        return binary("lt", self, other)

    def __le__(self, other: Expr | int | float) -> Expr:
        return binary("le", self, other)

    def __gt__(self, other: Expr | int | float) -> Expr:
        return binary("gt", self, other)

    def __ge__(self, other: Expr | int | float) -> Expr:
        return binary("ge", self, other)

    def eq(self, other: Expr | int | float) -> Expr:
        """Return ``==`` as an expression (Python's ``==`` compares structure)."""
        return binary("eq", self, other)

    def ne(self, other: Expr | int | float) -> Expr:
        return binary("ne", self, other)

    def astype(self, dtype: str) -> Expr:
        """Return the value converted to ``dtype`` (C semantics: floats are truncated, integers wrap around)."""
        return cast(dtype, self)


@node
class Const(Expr):
    """A literal. Integer values fit the dtype; floats are exact in it. 0.0 and -0.0 are different literals."""

    value: int | float
    dtype: str

    def __eq__(self, other: object) -> bool:
        if type(other) is not Const or self.dtype != other.dtype or self.value != other.value:
            return False
        return self.value != 0 or copysign(1, self.value) == copysign(1, other.value)

    def __hash__(self) -> int:
        return hash((self.value, self.dtype))


@node
class Var(Expr):
    """A scalar variable: loop variable, block iterator, let-bound name or scalar parameter. Unique in its function."""

    name: str
    dtype: str = "int32"


@node
class Bin(Expr):
    """``a op b``; both operands have the same dtype; comparisons and logical operators have dtype ``bool``."""

    op: str
    a: Expr
    b: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return "bool" if self.op in COMPARISONS or self.op in LOGICAL else self.a.dtype


@node
class Un(Expr):
    """A unary operation: ``neg``, ``not`` (of bool) or ``bitnot``."""

    op: str
    a: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.a.dtype


@node
class Cast(Expr):
    """Conversion to ``dtype``."""

    dtype: str
    a: Expr


@node
class Select(Expr):
    """``condition ? a : b``; only the chosen side is evaluated, so the other may index out of bounds."""

    condition: Expr
    a: Expr
    b: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.a.dtype


@node
class Buffer(Node):
    """A tensor in memory, row-major.

    ``scope``: ``global`` (parameter), ``const`` (read-only parameter), ``workspace`` (scratch from the arena),
    ``register`` (small, unrolled completely into scalars), ``local`` (a small array on the stack), or one of
    :data:`UNIT_SCOPES`. Names are unique in a function. Buffers in a unit's memory: ``align`` is the alignment of rows
    in bytes; ``slots`` is the length of the first axis if it counts tiles that are used alternately.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scope: str = "global"
    align: int = 0
    slots: int = 0

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * dtypes.nbytes(self.dtype)

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements between consecutive indices along each axis."""
        found, step = [], 1
        for extent in reversed(self.shape):
            found.append(step)
            step *= extent
        return tuple(reversed(found))

    def __getitem__(self, indices: Expr | int | tuple[Expr | int, ...]) -> Load:
        items = indices if isinstance(indices, tuple) else (indices,)
        return Load(self, tuple(as_index(item) for item in items))


@node
class Load(Expr):
    """The value of one element of a buffer."""

    buffer: Buffer
    indices: tuple[Expr, ...]

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.buffer.dtype


@node
class AddressOf(Expr):
    """The address of an element; only as an argument of a :class:`Call` whose intrinsic accesses memory from there on.

    ``extent`` elements are accessed, ``step`` apart, from that one on (along the innermost axes); ``writes`` tells
    whether they are written.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    extent: int = 1
    writes: bool = False
    step: int = 1

    @property
    def reach(self) -> int:
        """Number of elements from the first to the last that is accessed."""
        return (self.extent - 1) * self.step + 1

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.buffer.dtype


@node
class Call(Expr):
    """A pure function: a mathematical one (``exp``, ``sqrt`` ...) or a scalar intrinsic (``dot2`` ...)."""

    name: str
    args: tuple[Expr, ...]
    dtype: str


@lru_cache(maxsize=1 << 12)
def _int32_literal(value: int) -> Const:
    """Return an int32 literal. Memoised."""
    return Const(value, "int32")


def const(value: int | float | bool, dtype: str) -> Const:
    """Return a literal of ``dtype``. ProgramError if the value does not fit."""
    if type(value) is int and dtype == "int32" and -(1 << 31) <= value < 1 << 31:
        return _int32_literal(value)
    if dtypes.is_float(dtype):
        return Const(float(dtypes.to_numpy(dtype).type(value)), dtype)
    low, high = dtypes.int_range(dtype)
    number = int(value)
    if number != value or not low <= number <= high:
        raise ProgramError(f"{value} does not fit {dtype}; expected a whole number of {low}..{high}")
    return Const(number, dtype)


def as_index(value: Expr | int) -> Expr:
    """Return ``value`` as an expression; a Python integer becomes an int32 literal."""
    return value if isinstance(value, Expr) else const(value, "int32")


def as_expr(value: Expr | int | float, dtype: str) -> Expr:
    """Return ``value`` as an expression; a Python number becomes a literal of ``dtype``."""
    return value if isinstance(value, Expr) else const(value, dtype)


def binary(op: str, a: Expr, b: Expr | int | float) -> Bin:
    """Return the expression ``a op b``. ProgramError if dtypes differ; a Python number takes the other operand's dtype."""
    right = as_expr(b, a.dtype)
    if a.dtype != right.dtype:
        raise ProgramError(
            f"{op}: operands have different dtypes; got {a.dtype} and {right.dtype}",
            hint="cast one of them, as in x.astype('int32')",
        )
    return Bin(op, a, right)


def cast(dtype: str, a: Expr) -> Expr:
    """Convert ``a`` to ``dtype``; conversions to the same dtype, and of literals that fit, are resolved here."""
    if a.dtype == dtype:
        return a
    if isinstance(a, Const) and dtypes.is_integer(a.dtype) and not dtypes.is_float(dtype):
        low, high = dtypes.int_range(dtype)
        if low <= a.value <= high:
            return Const(a.value, dtype)
    return Cast(dtype, a)
