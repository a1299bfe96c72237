"""The loop IR: typed expressions, statements, buffers, blocks, functions.

Everything is frozen and compares by structure. Operand dtypes are equal by construction: nothing is promoted
implicitly. Arithmetic happens in int32, int64, uint32, uint64, float32 and float64; narrower types are loaded,
widened (:class:`Cast`), and narrowed again at the store.

Integer semantics: ``+ - *`` must not overflow (a schedule or an operator proves it from bounds); ``floordiv`` and
``floormod`` round to minus infinity, ``truncdiv`` to zero as C does; ``shr`` of a signed value is arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import copysign, prod

from microc import dtypes
from microc.errors import InternalError

COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
LOGICAL = frozenset({"and", "or"})
ARITHMETIC = frozenset(
    {"add", "sub", "mul", "div", "floordiv", "floormod", "truncdiv", "truncmod", "min", "max"}
    | {"bitand", "bitor", "bitxor", "shl", "shr"}
)
UNARY = frozenset({"neg", "not", "bitnot"})
FOR_KINDS = ("serial", "unrolled", "vectorized", "parallel")
SCOPES = ("global", "const", "workspace", "register", "local")


class Expr:
    """An expression; ``dtype`` is its type. Python operators build typed expressions."""

    __slots__ = ()
    dtype: str

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
        """``==`` as an expression (Python's ``==`` compares structure)."""
        return binary("eq", self, other)

    def ne(self, other: Expr | int | float) -> Expr:
        return binary("ne", self, other)

    def astype(self, dtype: str) -> Expr:
        """The value converted to ``dtype`` (C semantics: truncation of floats, wrap-around of integers)."""
        return cast(dtype, self)


@dataclass(frozen=True, slots=True, eq=False)
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


@dataclass(frozen=True, slots=True)
class Var(Expr):
    """A scalar variable: loop variable, block iterator, let-bound name or scalar parameter. Unique in its function."""

    name: str
    dtype: str = "int32"


@dataclass(frozen=True, slots=True)
class Bin(Expr):
    """``a op b``; both operands have one dtype; comparisons and logic give ``bool``."""

    op: str
    a: Expr
    b: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return "bool" if self.op in COMPARISONS or self.op in LOGICAL else self.a.dtype


@dataclass(frozen=True, slots=True)
class Un(Expr):
    """``neg``, ``not`` (of bool), ``bitnot``."""

    op: str
    a: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.a.dtype


@dataclass(frozen=True, slots=True)
class Cast(Expr):
    """Conversion to ``dtype``."""

    dtype: str
    a: Expr


@dataclass(frozen=True, slots=True)
class Select(Expr):
    """``condition ? a : b``; only the chosen side is evaluated, so the other may index out of bounds."""

    condition: Expr
    a: Expr
    b: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.a.dtype


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor in memory, row-major.

    ``scope``: ``global`` (parameter), ``const`` (read-only parameter), ``workspace`` (scratch from the arena),
    ``register`` (small, wholly unrolled away into scalars), ``local`` (a small array on the stack). Names are unique in a
    function.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scope: str = "global"
    align: int = 0

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * dtypes.nbytes(self.dtype)

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each axis."""
        found, step = [], 1
        for extent in reversed(self.shape):
            found.append(step)
            step *= extent
        return tuple(reversed(found))

    def __getitem__(self, indices: Expr | int | tuple[Expr | int, ...]) -> Load:
        items = indices if isinstance(indices, tuple) else (indices,)
        return Load(self, tuple(as_index(item) for item in items))


@dataclass(frozen=True, slots=True)
class Load(Expr):
    """One element of a buffer."""

    buffer: Buffer
    indices: tuple[Expr, ...]

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.buffer.dtype


@dataclass(frozen=True, slots=True)
class AddressOf(Expr):
    """Where an element lies; only an argument of a :class:`Call` whose intrinsic reads or writes from there on.

    ``extent`` elements are touched, ``step`` apart, from that one on (along the innermost axes); ``writes`` says whether they are
    written.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    extent: int = 1
    writes: bool = False
    step: int = 1

    @property
    def reach(self) -> int:
        """How many elements lie from the first that is touched to the last."""
        return (self.extent - 1) * self.step + 1

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.buffer.dtype


@dataclass(frozen=True, slots=True)
class Call(Expr):
    """A pure function: of mathematics (``exp``, ``sqrt`` ...) or a scalar intrinsic (``smlad`` ...)."""

    name: str
    args: tuple[Expr, ...]
    dtype: str


class Stmt:
    """A statement."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Store(Stmt):
    """``buffer[indices] = value``; the dtypes are equal."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr


ENDLESS = (1 << 31) - 1
"""The extent of a loop that a condition inside ends, and that does not address by its turn."""


@dataclass(frozen=True, slots=True)
class For(Stmt):
    """``for var in range(extent)``; ``kind`` is one of :data:`FOR_KINDS`; annotations are (key, value) pairs."""

    var: Var
    extent: Expr
    body: Stmt
    kind: str = "serial"
    annotations: tuple[tuple[str, int | str], ...] = ()


@dataclass(frozen=True, slots=True)
class If(Stmt):
    condition: Expr
    then: Stmt
    otherwise: Stmt | None = None


@dataclass(frozen=True, slots=True)
class Seq(Stmt):
    """Statements in order; never nested directly in another (:func:`seq` flattens)."""

    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Let(Stmt):
    """A name for a value that is used more than once."""

    var: Var
    value: Expr
    body: Stmt


@dataclass(frozen=True, slots=True)
class Alloc(Stmt):
    """A buffer that lives during ``body``."""

    buffer: Buffer
    body: Stmt


@dataclass(frozen=True, slots=True)
class Evaluate(Stmt):
    """A call for its effect (an intrinsic that writes through :class:`AddressOf`)."""

    value: Expr


@dataclass(frozen=True, slots=True)
class IterVar:
    """A block iterator: its variable, extent (domain 0..extent), ``space`` or ``reduce``, and the value bound to it."""

    var: Var
    extent: int
    kind: str
    binding: Expr


@dataclass(frozen=True, slots=True)
class Block(Stmt):
    """A unit of computation, as in TensorIR: instances are independent along ``space`` iterators.

    ``init`` runs where all ``reduce`` iterators are zero, before ``body``. ``predicate`` (over loop variables) guards
    instances that an imperfect split made superfluous.
    """

    name: str
    iters: tuple[IterVar, ...]
    body: Stmt
    init: Stmt | None = None
    predicate: Expr | None = None
    annotations: tuple[tuple[str, int | str], ...] = ()


@dataclass(frozen=True, slots=True)
class PrimFunc:
    """One kernel: buffer parameters (scopes ``global`` and ``const``), a body.

    ``scalars`` are sizes that the caller gives, behind the buffers; none where all sizes are known.
    """

    name: str
    params: tuple[Buffer, ...]
    body: Stmt
    annotations: tuple[tuple[str, int | str], ...] = ()
    scalars: tuple[Var, ...] = ()


# ---------------------------------------------------------------- builders


def const(value: int | float | bool, dtype: str) -> Const:
    """A literal of ``dtype``, checked to fit."""
    if dtypes.is_float(dtype):
        return Const(float(dtypes.to_numpy(dtype).type(value)), dtype)
    low, high = dtypes.int_range(dtype)
    number = int(value)
    if number != value or not low <= number <= high:
        raise InternalError(f"{value} does not fit {dtype}")
    return Const(number, dtype)


def as_index(value: Expr | int) -> Expr:
    return value if isinstance(value, Expr) else const(value, "int32")


def as_expr(value: Expr | int | float, dtype: str) -> Expr:
    return value if isinstance(value, Expr) else const(value, dtype)


def binary(op: str, a: Expr, b: Expr | int | float) -> Bin:
    """A checked binary expression; a Python number takes the other side's dtype."""
    right = as_expr(b, a.dtype)
    if a.dtype != right.dtype:
        raise InternalError(f"{op} of {a.dtype} and {right.dtype}: cast one of them")
    return Bin(op, a, right)


def cast(dtype: str, a: Expr) -> Expr:
    """``a`` as ``dtype``; a no-op and a literal cost nothing."""
    if a.dtype == dtype:
        return a
    if isinstance(a, Const) and dtypes.is_integer(a.dtype) and not dtypes.is_float(dtype):
        low, high = dtypes.int_range(dtype)
        if low <= a.value <= high:
            return Const(a.value, dtype)
    return Cast(dtype, a)


def minimum(a: Expr, b: Expr | int | float) -> Expr:
    return binary("min", a, b)


def maximum(a: Expr, b: Expr | int | float) -> Expr:
    return binary("max", a, b)


def clamp(a: Expr, low: Expr | int | float, high: Expr | int | float) -> Expr:
    return minimum(maximum(a, low), high)


def select(condition: Expr, a: Expr, b: Expr | int | float) -> Expr:
    """``condition ? a : b`` with one dtype on both sides."""
    other = as_expr(b, a.dtype)
    if condition.dtype != "bool" or other.dtype != a.dtype:
        raise InternalError(f"select({condition.dtype}, {a.dtype}, {other.dtype})")
    return Select(condition, a, other)


def all_of(conditions: Iterable[Expr]) -> Expr | None:
    """The conjunction, or None of nothing."""
    result: Expr | None = None
    for condition in conditions:
        result = condition if result is None else Bin("and", result, condition)
    return result


def call(name: str, *args: Expr, dtype: str | None = None) -> Call:
    """A call; the dtype defaults to that of the first argument."""
    return Call(name, args, dtype or args[0].dtype)


def seq(*stmts: Stmt | None) -> Stmt:
    """Statements in order, flattened; one statement stays itself."""
    flat: list[Stmt] = []
    for stmt in stmts:
        if isinstance(stmt, Seq):
            flat.extend(stmt.body)
        elif stmt is not None:
            flat.append(stmt)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def loops(extents: Iterable[tuple[Var, int]], body: Callable[[], Stmt] | Stmt) -> Stmt:
    """Nested serial loops around a body, outermost first."""
    result = body() if callable(body) else body
    for var, extent in reversed(list(extents)):
        result = For(var, const(extent, var.dtype), result)
    return result


def int_value(expr: Expr) -> int | None:
    """The value of an integer literal, or None."""
    return expr.value if isinstance(expr, Const) and isinstance(expr.value, int) else None
