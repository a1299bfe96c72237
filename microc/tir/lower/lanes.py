"""Loops annotated ``lanes``: four iterations at once in the lanes of vectors, on cores that have such registers.

``for i in n [lanes=4]: body`` becomes a loop over vectors and a last partial vector, whose memory accesses are predicated.
Iterations are independent (``vectorized``). int32 expressions that vary along ``i`` become calls of the intrinsics named
``<op>_i32x4``; loads of neighbours widen and stores narrow; register buffers inside the loop become registers of vectors. A run
of bytes that is only copied or filled is one call. What has no such form stays a loop over single elements.

Rounding is recognised: ``(2 x m + 2**31) >> 32``, the doubling high multiply that scalar code spells with ``smmulr``, and the
rounding shift ``((x >> (n - 1)) + 1) >> 1`` are one instruction each; a constant folded into its rounding is added behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from microc.tir import ir
from microc.tir.affine import bounds_of, linear, simplify
from microc.tir.lower.lane_patterns import doubling_multiply, negated, rounding_shift
from microc.tir.rewrite import free_vars, map_stmt, substitute, walk_expr

LANES, VECTOR = 4, "int32x4"
KEY = "lanes"
"""The annotation."""
_TYPES = MappingProxyType({"int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16", "int32": "i32"})
_RUNS = ("int8", "uint8", "int16")
_OPS = MappingProxyType(
    {
        "add": "add",
        "sub": "sub",
        "mul": "mul",
        "min": "min",
        "max": "max",
        "bitand": "and",
        "bitor": "or",
        "bitxor": "xor",
    }
)
_NUMBERS = ("add", "sub", "mul")
"""Operations with a number for all lanes as second operand."""
_CLAMPS: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {
        f"{name}{suffix}": (*bounds, shift)
        for name, bounds in {"ssat8": (-128, 127), "usat8": (0, 255), "ssat16": (-32768, 32767)}.items()
        for suffix, shift in (("", 0), ("_asr1", 1))
    }
)


class _NoLanesError(Exception):
    """The loop has no form with vectors."""


def lower_lanes(stmt: ir.Stmt) -> ir.Stmt:
    """``stmt`` without loops annotated ``lanes``."""

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        if not isinstance(s, ir.For) or KEY not in dict(s.annotations):
            return s
        extent = ir.int_value(s.extent)
        plain = replace(s, kind="serial", annotations=tuple(a for a in s.annotations if a[0] != KEY))
        if extent is None:
            return plain
        try:
            return _run(s, extent) or _vectors(s, extent)
        except _NoLanesError:
            return plain

    return map_stmt(stmt, on_stmt)


def _run(loop: ir.For, extent: int) -> ir.Stmt | None:
    """The loop as one copy or fill of memory."""
    store = loop.body
    if not isinstance(store, ir.Store) or store.buffer.dtype not in _RUNS or store.buffer.scope == "register":
        return None
    if not _consecutive(store.indices, loop.var):
        return None
    first: dict[ir.Var, ir.Expr] = {loop.var: ir.const(0, "int32")}
    target = _address(store.buffer, store.indices, first, extent, writes=True)
    kind, count = _TYPES[store.buffer.dtype], ir.const(extent, "int32")
    match store.value:
        case ir.Load(buffer, indices) if buffer.dtype == store.buffer.dtype and _consecutive(indices, loop.var):
            source = _address(buffer, indices, first, extent, writes=False)
            return ir.Evaluate(ir.Call(f"copy_{kind}", (target, source, count), "int32"))
        case ir.Const(int() as value):
            return ir.Evaluate(ir.Call(f"fill_{kind}", (target, ir.const(value, "int32"), count), "int32"))
        case _:
            return None


def _vectors(loop: ir.For, extent: int) -> ir.Stmt:
    """The whole vectors, then a partial one."""
    count, rest = divmod(extent, LANES)
    parts: list[ir.Stmt] = []
    if count:
        lanes = _Lanes(loop.var, loop.var * LANES, LANES)
        body = lanes.statement(loop.body)
        parts.append(lanes.hoisted(ir.For(loop.var, ir.const(count, "int32"), body)))
    if rest:
        lanes = _Lanes(loop.var, ir.const(count * LANES, "int32"), rest)
        parts.append(lanes.statement(loop.body))
    return ir.seq(*parts)


@dataclass
class _Lanes:
    """Rewrites the body of a loop over ``var`` for the ``count`` iterations from ``start`` on."""

    var: ir.Var
    start: ir.Expr
    count: int
    registers: dict[ir.Buffer, ir.Buffer] = field(default_factory=dict)
    names: dict[ir.Var, ir.Var] = field(default_factory=dict)
    constants: dict[ir.Const, ir.Var] = field(default_factory=dict)

    # ------------------------------------------------------------ statements

    def statement(self, stmt: ir.Stmt) -> ir.Stmt:
        match stmt:
            case ir.Store(buffer, indices, value):
                return self.store(buffer, indices, value)
            case ir.Seq(body):
                return ir.seq(*(self.statement(child) for child in body))
            case ir.For(var, extent, body, kind, annotations) if not self.varies(extent):
                return ir.For(var, extent, self.statement(body), kind, annotations)
            case ir.Alloc(buffer, body) if buffer.scope == "register" and buffer.dtype == "int32":
                self.registers[buffer] = replace(buffer, dtype=VECTOR)
                return ir.Alloc(self.registers[buffer], self.statement(body))
            case ir.Let(var, value, body) if not self.varies(value):
                return ir.Let(var, value, self.statement(body))
            case ir.Let(var, value, body) if var.dtype == "int32":
                self.names[var] = ir.Var(var.name, VECTOR)
                return ir.Let(self.names[var], self.vector(value), self.statement(body))
            case _:
                raise _NoLanesError

    def store(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...], value: ir.Expr) -> ir.Stmt:
        if buffer in self.registers:
            return ir.Store(self.registers[buffer], indices, self.vector(value))
        if buffer.scope == "register" or not _consecutive(indices, self.var) or buffer.dtype not in _TYPES:
            raise _NoLanesError
        narrow = value.a if isinstance(value, ir.Cast) and value.a.dtype == "int32" else value
        if narrow.dtype != "int32":
            narrow = ir.cast("int32", narrow)
        target = self.address(buffer, indices, writes=True)
        name = f"store_{_TYPES[buffer.dtype]}_{_suffix()}"
        return ir.Evaluate(ir.Call(*self.partial(name, (target, self.vector(narrow))), "int32"))

    # ------------------------------------------------------------ expressions

    def varies(self, expr: ir.Expr) -> bool:
        """Whether lanes differ."""
        return any(
            x == self.var or x in self.names or (isinstance(x, ir.Load) and x.buffer in self.registers)
            for x in walk_expr(expr)
        )

    def vector(self, expr: ir.Expr) -> ir.Expr:
        """An int32 expression for all lanes."""
        if not self.varies(expr):
            return self.repeated(expr)
        special = self.rounding(expr)
        if special is not None:
            return special
        match expr:
            case ir.Var() if expr in self.names:
                return self.names[expr]
            case ir.Load(buffer, indices) if buffer in self.registers:
                return ir.Load(self.registers[buffer], indices)
            case ir.Load() if expr.dtype == "int32":
                return self.load(expr)
            case ir.Cast("int32", ir.Load() as load):
                return self.load(load)
            case ir.Cast("int32", ir.Cast(narrow, a)) if a.dtype == "int32":
                return self.narrowed(narrow, a)
            case ir.Cast("int32", ir.Select(condition, a, b)):
                return self.vector(ir.Select(condition, ir.cast("int32", a), ir.cast("int32", b)))
            case ir.Bin(op, a, b) if op in _OPS and expr.dtype == "int32":
                return self.operation(_OPS[op], a, b)
            case ir.Bin(("shl" | "shr") as op, a, b) if expr.dtype == "int32":
                return self.shift(a, b if op == "shl" else negated(b), rounds=False)
            case ir.Un("neg", a) if a.dtype == "int32":
                return _call("sub", self.repeated(ir.const(0, "int32")), self.vector(a))
            case ir.Select(condition, a, b) if not self.varies(condition):
                return ir.Select(self.uniform(condition), self.vector(a), self.vector(b))
            case ir.Select(ir.Bin(op, x, y), a, b) if op in ir.COMPARISONS and x.dtype == "int32":
                return _call(f"select_{op}", *(self.vector(e) for e in (x, y, a, b)))
            case ir.Call(name, (a,)) if name in _CLAMPS:
                low, high, shift = _CLAMPS[name]
                return self.vector(ir.clamp(a >> shift if shift else a, low, high))
            case ir.Call("smmulr", (a, b)):
                return _call("rmulh", self.vector(a), self.vector(b))
            case _:
                raise _NoLanesError

    def rounding(self, expr: ir.Expr) -> ir.Expr | None:
        """Multiplications and shifts that round."""
        product = doubling_multiply(expr)
        if product is not None:
            return self.operation("qrdmulh", *product, numbers=True)
        found = rounding_shift(expr)
        if found is None:
            return None
        value, distance, added = found
        rounded = self.shift(value, negated(distance), rounds=True)
        return _call("add_n", rounded, ir.const(added, "int32")) if added else rounded

    def operation(self, name: str, a: ir.Expr, b: ir.Expr, *, numbers: bool = False) -> ir.Expr:
        if (numbers or name in _NUMBERS) and not self.varies(b):
            return _call(f"{name}_n", self.vector(a), self.uniform(b))
        if name in ("add", "mul") and not self.varies(a):
            return _call(f"{name}_n", self.vector(b), self.uniform(a))
        return _call(name, self.vector(a), self.vector(b))

    def shift(self, a: ir.Expr, left: ir.Expr, *, rounds: bool) -> ir.Expr:
        """A shift by ``left``, to the right where it is negative."""
        name = "rshl" if rounds else "shl"
        if self.varies(left):
            return _call(name, self.vector(a), self.vector(left))
        return _call(f"{name}_n", self.vector(a), self.uniform(left))

    def narrowed(self, narrow: str, a: ir.Expr) -> ir.Expr:
        """A value that is stored in fewer bits and taken up again: unchanged, for it fits."""
        reach, room = bounds_of(simplify(_clamped(a))), bounds_of(ir.Cast("int32", ir.Var("any", narrow)))
        if reach is None or room is None or reach[0] < room[0] or reach[1] > room[1]:
            raise _NoLanesError
        return self.vector(a)

    def load(self, load: ir.Load) -> ir.Expr:
        kind = _TYPES.get(load.dtype)
        if kind is None:
            raise _NoLanesError
        if _consecutive(load.indices, self.var):
            name = f"load_{kind}_{_suffix()}"
            return ir.Call(*self.partial(name, (self.address(load.buffer, load.indices, writes=False),)), VECTOR)
        if len(load.indices) == 1 and kind in ("i8", "u8", "i32"):  # a table, looked up by value
            table = ir.AddressOf(load.buffer, (ir.const(0, "int32"),), load.buffer.size)
            return ir.Call(f"gather_{kind}_{_suffix()}", (table, self.vector(load.indices[0])), VECTOR)
        raise _NoLanesError

    def partial(self, name: str, args: tuple[ir.Expr, ...]) -> tuple[str, tuple[ir.Expr, ...]]:
        """An access of all lanes, or of the first ones."""
        return (name, args) if self.count == LANES else (f"{name}_first", (*args, ir.const(self.count, "int32")))

    def address(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...], *, writes: bool) -> ir.AddressOf:
        return _address(buffer, indices, {self.var: self.start}, self.count, writes=writes)

    def uniform(self, expr: ir.Expr) -> ir.Expr:
        if expr.dtype not in ("int32", "bool"):
            raise _NoLanesError
        return expr

    def repeated(self, expr: ir.Expr) -> ir.Expr:
        """A number in all lanes; literals are set before the loop."""
        if isinstance(expr, ir.Const) and self.count == LANES:
            name = f"{self.var.name}_{'m' if expr.value < 0 else ''}{abs(expr.value)}"
            return self.constants.setdefault(expr, ir.Var(name, VECTOR))
        return _call("dup", self.uniform(expr))

    def hoisted(self, loop: ir.Stmt) -> ir.Stmt:
        """The loop, after the vectors of literals that it uses."""
        for value, name in self.constants.items():
            loop = ir.Let(name, _call("dup", value), loop)
        return loop


def _suffix() -> str:
    return "i32x4"


def _call(name: str, *args: ir.Expr) -> ir.Expr:
    return ir.Call(f"{name}_{_suffix()}", args, VECTOR)


def _clamped(expr: ir.Expr) -> ir.Expr:
    """A saturation, spelled out."""
    if isinstance(expr, ir.Call) and expr.name in _CLAMPS:
        low, high, _ = _CLAMPS[expr.name]
        return ir.clamp(ir.Var("any"), low, high)
    return expr


def _address(
    buffer: ir.Buffer, indices: tuple[ir.Expr, ...], at: Mapping[ir.Var, ir.Expr], extent: int, *, writes: bool
) -> ir.AddressOf:
    return ir.AddressOf(buffer, tuple(simplify(substitute(i, at)) for i in indices), extent, writes)


def _consecutive(indices: tuple[ir.Expr, ...], var: ir.Var) -> bool:
    """Whether the last index moves by one with ``var`` and the others do not move."""
    for axis, index in enumerate(indices):
        terms, _ = linear(simplify(index))
        hidden = any(var in free_vars(t) for t in terms if t != var)
        if hidden or terms.get(var, 0) != (1 if axis == len(indices) - 1 else 0):
            return False
    return True
