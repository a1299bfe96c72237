# SPDX-License-Identifier: Apache-2.0
"""Expressions and buffers of the loop IR."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import copysign, prod
from typing import TypeVar, dataclass_transform

from microc.base import dtypes
from microc.errors import ProgramError
from microc.tir import operators

# ---- Immutable classes that memoise their hash and other facts: expressions, statements and buffers of the loop IR.

_Class = TypeVar("_Class")


class Node:
    """Base class of immutable objects that cache their hash, because it is composed of the hashes of all operands."""

    __slots__ = ("_hash",)
    _hash: int | None


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def immutable_node(cls: type[_Class]) -> type[_Class]:
    """Class decorator: make a subclass of :class:`Node` a dataclass that compares by its fields and caches its hash.

    Only the type checker enforces that fields are not assigned. A check at run time would make the creation of an object
    three times as expensive, and a compilation creates hundreds of thousands.

    Slots of the base classes cache facts that are computed on demand. They are None in a new object: a slot without a
    value would raise an AttributeError at its first use, which takes as long as the creation of four objects.
    """
    by_fields = "__eq__" not in vars(cls)
    for base in cls.__mro__[1:]:
        for slot in vars(base).get("__slots__", ()):
            cls.__annotations__[slot] = "object"
            setattr(cls, slot, field(default=None, init=False, repr=False, compare=False))
    made = dataclass(slots=True, eq=by_fields, unsafe_hash=by_fields)(cls)
    hash_fields = made.__hash__
    if hash_fields is object.__hash__:
        return made

    def __hash__(self: Node) -> int:
        found = self._hash
        if found is None:
            self._hash = found = hash_fields(self)
        return found

    made.__hash__ = __hash__  # type: ignore[assignment]
    made.__repr__ = made.__repr__.__wrapped__  # type: ignore[method-assign, attr-defined]  # no guard against recursion: no value contains itself
    return made


# ---- Expressions and buffers of the loop IR, and functions that build them. The docstring of :mod:`microc.tir.ir` defines
# their semantics.

REINTERPRET = "reinterpret"
"""Name of the function, called by :class:`Call`, that returns the bits of its argument as another dtype of the same width."""
COMPARISONS = frozenset(operators.COMPARISONS)
LOGICAL = frozenset(operators.LOGICAL)
ARITHMETIC = frozenset(operators.ARITHMETIC)
UNARY = frozenset(operators.UNARY)
UNIT_SCOPES = ("unit_input", "unit_weight", "unit_sums")
"""Scopes of buffers in the memories of a tensor unit (matrix accelerator), which only the unit's instructions can access
(:mod:`microc.isa.vocabulary.matrix_products`)."""
SCOPES = ("global", "const", "workspace", "shared", "register", "local", *UNIT_SCOPES)


class SizeDependent:
    """Base class of :class:`microc.tir.extents.Extent`, an integer that depends on symbolic sizes."""

    __slots__ = ()


class Expr(Node):
    """An expression of type ``dtype``. Python operators build expressions: ``a + b`` is an addition."""

    __slots__ = ("known_accesses", "known_index", "known_vars")
    dtype: str
    # All three are computed on demand, and None before: microc.tir.rewrite, microc.tir.analysis.context.
    known_accesses: tuple[Load | AddressOf, ...] | None
    known_index: bool | None
    known_vars: frozenset[Var] | None

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
        """Return the expression ``self == other``. Python's ``==`` compares the structure of expressions instead."""
        return binary("eq", self, other)

    def ne(self, other: Expr | int | float) -> Expr:
        return binary("ne", self, other)

    def astype(self, dtype: str) -> Expr:
        """Return the expression converted to ``dtype``, as by a cast in C: floats are truncated, integers wrap around."""
        return cast(dtype, self)


@immutable_node
class Const(Expr):
    """A literal, whose value is representable in ``dtype``. 0.0 and -0.0 are different literals."""

    value: int | float
    dtype: str

    def __eq__(self, other: object) -> bool:
        if type(other) is not Const or self.dtype != other.dtype or self.value != other.value:
            return False
        return self.value != 0 or copysign(1, self.value) == copysign(1, other.value)

    def __hash__(self) -> int:
        return hash((self.value, self.dtype))


@immutable_node
class Var(Expr):
    """A scalar variable: a loop variable, block iterator, let-bound variable or scalar parameter.

    Variables of equal name and dtype are the same variable, so no scope may declare a name that an enclosing scope declares.
    They are also the same object. So they are compared and hashed by identity, which takes no call of a Python function."""

    name: str
    dtype: str = "int32"

    def __new__(cls, name: str, dtype: str = "int32") -> Var:
        known = _VARIABLES.get((name, dtype))
        return known or _VARIABLES.setdefault((name, dtype), object.__new__(cls))

    def __reduce__(self) -> tuple[type[Var], tuple[str, str]]:
        return Var, (self.name, self.dtype)

    __eq__, __hash__ = object.__eq__, object.__hash__


_VARIABLES: dict[tuple[str, str], Var] = {}
"""All variables, by name and dtype. They are few: lowering names them after axes and numbers them in each function."""


@immutable_node
class Bin(Expr):
    """The binary operation ``a op b`` on operands of equal dtype.

    The result has the same dtype; the result of a comparison or logical operator has dtype ``bool``."""

    op: str
    a: Expr
    b: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return "bool" if self.op in COMPARISONS or self.op in LOGICAL else self.a.dtype


@immutable_node
class Un(Expr):
    """A unary operation: ``neg``, ``not`` (of bool) or ``bitnot``."""

    op: str
    a: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.a.dtype


@immutable_node
class Cast(Expr):
    """Conversion to ``dtype``."""

    dtype: str
    a: Expr


@immutable_node
class Select(Expr):
    """The conditional expression ``condition ? a : b``. Only the selected operand is evaluated.

    So the other operand may contain an index that is out of bounds."""

    condition: Expr
    a: Expr
    b: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.a.dtype


@immutable_node
class Buffer(Node):
    """A tensor in memory, in row-major order.

    ``scope``: ``global`` (a parameter), ``const`` (a read-only parameter), ``workspace`` (scratch memory in the arena),
    ``shared`` (memory shared by the items of a group), ``register`` (a small buffer that is unrolled completely into scalar
    variables), ``local`` (a small array on the stack), or one of :data:`UNIT_SCOPES`. Two fields are for buffers in a tensor
    unit's memory. ``align``: alignment of rows in bytes. ``slots``: extent of the first axis if it counts tiles that are
    used alternately (double buffering), else 0.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scope: str = "global"
    align: int = 0
    slots: int = 0

    def __eq__(self, other: object) -> bool:
        # Buffers of one function differ in their names, so most comparisons end there.
        return self is other or (
            type(other) is Buffer
            and self.name == other.name
            and (self.shape, self.dtype, self.scope, self.align, self.slots)
            == (other.shape, other.dtype, other.scope, other.align, other.slots)
        )

    def __hash__(self) -> int:
        return hash((self.name, self.shape, self.dtype, self.scope))

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * dtypes.nbytes(self.dtype)

    @property
    def strides(self) -> tuple[int, ...]:
        """Stride of each axis: number of elements between consecutive indices."""
        found, step = [], 1
        for extent in reversed(self.shape):
            found.append(step)
            step *= extent
        return tuple(reversed(found))

    def __getitem__(self, indices: Expr | int | tuple[Expr | int, ...]) -> Load:
        items = indices if isinstance(indices, tuple) else (indices,)
        return Load(self, tuple(as_index(item) for item in items))


@immutable_node
class Load(Expr):
    """A load: the value of one element of a buffer."""

    buffer: Buffer
    indices: tuple[Expr, ...]

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.buffer.dtype


@immutable_node
class AddressOf(Expr):
    """The address of an element, as an argument of a :class:`Call` of an intrinsic that accesses memory.

    The intrinsic accesses ``extent`` elements, ``step`` elements apart in row-major order, starting at this element. ``writes``:
    True if it writes these elements, False if it reads them.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    extent: int = 1
    writes: bool = False
    step: int = 1

    @property
    def reach(self) -> int:
        """Number of elements from the first to the last accessed element, including skipped elements between."""
        return (self.extent - 1) * self.step + 1

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.buffer.dtype


@immutable_node
class Call(Expr):
    """A call of a mathematical function (``exp``, ``sqrt`` ...) or of a scalar intrinsic (``dot2`` ...).

    Calls are pure. Only a call that is a statement (:class:`.statements.Evaluate`) has side effects."""

    name: str
    args: tuple[Expr, ...]
    dtype: str


@lru_cache(maxsize=1 << 12)
def _int32_literal(value: int) -> Const:
    """Return an int32 literal; equal literals are one cached object."""
    return Const(value, "int32")


def const(value: int | float | bool, dtype: str) -> Const:
    """Return a literal of ``dtype``. Floats are rounded to the dtype.

    ProgramError if an integer does not fit, or if ``value`` is no number."""
    if type(value) is int and dtype == "int32" and -(1 << 31) <= value < 1 << 31:
        return _int32_literal(value)
    try:
        if dtypes.is_float(dtype):
            return Const(float(dtypes.to_numpy(dtype).type(value)), dtype)
        number = value if isinstance(value, int) and not isinstance(value, bool) else int(value)
    except (TypeError, ValueError) as error:
        raise ProgramError(
            f"an operand is neither an expression nor a number; got {value!r}",
            hint="write axis.var for a reduction axis, and tensor[i, j] for an element of a tensor",
        ) from error
    low, high = dtypes.int_range(dtype)
    if number != value or not low <= number <= high:
        raise ProgramError(f"{value} does not fit {dtype}; expected an integer from {low} to {high}")
    return Const(number, dtype)


def as_index(value: Expr | int) -> Expr:
    """Return ``value`` as an expression; a Python integer becomes an int32 literal."""
    return value if isinstance(value, Expr) else const(value, "int32")


def as_expr(value: Expr | int | float, dtype: str) -> Expr:
    """Return ``value`` as an expression; a Python number becomes a literal of ``dtype``."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, SizeDependent):
        return cast(dtype, Const(value, "int32"))
    return const(value, dtype)


def binary(op: str, a: Expr, b: Expr | int | float) -> Bin:
    """Return the expression ``a op b``. If ``b`` is a Python number, it becomes a literal of the dtype of ``a``.

    Raises ProgramError if the dtypes of the operands differ."""
    right = as_expr(b, a.dtype)
    if a.dtype != right.dtype:
        raise ProgramError(
            f"{op}: operands have different dtypes; got {a.dtype} and {right.dtype}",
            hint="cast one of them, as in x.astype('int32')",
        )
    return Bin(op, a, right)


def cast(dtype: str, a: Expr) -> Expr:
    """Return ``a`` converted to ``dtype``.

    No :class:`Cast` is created if ``a`` already has this dtype, or is an integer literal that fits the dtype."""
    if a.dtype == dtype:
        return a
    if isinstance(a, Const) and dtypes.is_integer(a.dtype) and not dtypes.is_float(dtype):
        low, high = dtypes.int_range(dtype)
        if low <= a.value <= high:
            return Const(a.value, dtype)
    return Cast(dtype, a)
