"""Expressions of TIR as Python source, for :mod:`microc.tir.interp_source`: each with its range, to omit idle checks."""

from __future__ import annotations

from typing import Any, NamedTuple

from microc import dtypes
from microc.errors import InternalError
from microc.tir import interval, ir
from microc.tir.interval import Interval
from microc.tir.mathematics import FUNCTIONS
from microc.tir.operators import BINARY

_INFIX = {name: each.text[0] for name, each in BINARY.items() if each.text}
_DEEPEST = 40  # brackets within one Python expression (the parser allows 200, walking takes some)


class Code(NamedTuple):
    """Python source of a value, its range (integers), and how deeply its brackets nest."""

    text: str
    range: Interval = interval.UNKNOWN
    depth: int = 0


def _int_range(dtype: str) -> Interval:
    kind, _, lanes = dtypes.info(dtype)
    return interval.UNKNOWN if kind == "float" or lanes > 1 else dtypes.int_range(dtype)


class ExpressionWriter:
    """Writes expressions of a function, and lines. ``constants`` are names that the source needs bound."""

    def __init__(self, func: ir.PrimFunc) -> None:
        self.func = func
        self.constants: dict[str, Any] = {}
        self.intrinsics: set[str] = set()
        self.lines: list[str] = []
        self.indent = 1
        self.counter = 0
        self.buffers: dict[ir.Buffer, str] = {}
        self.ranges: dict[ir.Var, Interval] = {}
        self.names: dict[ir.Var, str] = {}

    def line(self, text: str, offset: int = 0) -> None:
        self.lines.append(" " * (self.indent + offset) + text)

    def fresh(self, stem: str) -> str:
        self.counter += 1
        return f"{stem}{self.counter}"

    # ------------------------------------------------------------ expressions

    def value(self, expr: ir.Expr) -> Code:
        """The value of an expression. Deep nesting moves into a local function, evaluated only where it is called."""
        code = self._value(expr)
        if code.depth < _DEEPEST:
            return code
        name = self.fresh("part")
        self.line(f"def {name}(): return {code.text}")
        return Code(f"{name}()", code.range, 1)

    def _value(self, expr: ir.Expr) -> Code:
        match expr:
            case ir.Const():
                return self._literal(expr)
            case ir.Var():
                if expr not in self.names:
                    raise InternalError(f"{expr.name} is not defined", where=self.func.name)
                return Code(self.names[expr], self.ranges[expr])
            case ir.Load(buffer, indices):
                element = self.element(buffer, indices)
                return Code(element.text, _int_range(buffer.dtype), element.depth)
            case ir.Bin(("and" | "or") as op, a, b):
                x, y = self.value(a), self.value(b)
                return Code(f"({x.text} {op} {y.text})", interval.BOOLEAN, _deeper(x, y))
            case ir.Bin():
                return self._binary(expr)
            case ir.Un(op, a):
                return self._unary(op, a)
            case ir.Cast(dtype, a):
                return self._cast(dtype, a)
            case ir.Select(condition, a, b):
                c, x, y = self.value(condition), self.value(a), self.value(b)
                text = f"({x.text} if {c.text} else {y.text})"
                return Code(text, interval.union(x.range, y.range), _deeper(c, x, y))
            case ir.Call(name, args, dtype):
                return self._call(name, args, dtype)
            case _:
                raise InternalError(f"{type(expr).__name__} has no value of its own", where=self.func.name)

    def _literal(self, expr: ir.Const) -> Code:
        if isinstance(expr.value, int) and not dtypes.is_float(expr.dtype):
            text = str(expr.value) if expr.value >= 0 else f"({expr.value})"
            return Code(text, (expr.value, expr.value))
        name = self.fresh("k")
        self.constants[name] = dtypes.to_numpy(expr.dtype).type(expr.value)
        return Code(name)

    def _binary(self, expr: ir.Bin) -> Code:
        op, dtype = expr.op, expr.a.dtype
        if dtype != expr.b.dtype:
            raise InternalError(f"{op} of {dtype} and {expr.b.dtype}", where=self.func.name)
        x, y = self.value(expr.a), self.value(expr.b)
        depth = _deeper(x, y)
        if op in ("min", "max"):
            first, second = self.fresh("t"), self.fresh("t")
            sign = "<" if op == "min" else ">"
            text = f"({first} if ({first} := {x.text}) {sign} ({second} := {y.text}) else {second})"
            return Code(text, interval.binary(op, x.range, y.range), depth + 1)
        if op in ir.COMPARISONS or dtypes.is_float(dtype):
            if op not in ir.COMPARISONS and op not in ("add", "sub", "mul", "div"):
                raise InternalError(f"{op} of {dtype}", where=self.func.name)
            bounds = interval.BOOLEAN if op in ir.COMPARISONS else interval.UNKNOWN
            return Code(f"({x.text} {_INFIX[op]} {y.text})", bounds, depth)
        if op == "div":
            raise InternalError(f"div of {dtype}: choose floordiv or truncdiv", where=self.func.name)
        if op in ("shl", "shr"):
            y = self._shift_count(op, dtype, y)
        if op in ("floormod", "truncmod"):
            x, y = self._with_quotient(op, dtype, x, y)
        text = f"{op}({x.text}, {y.text})" if op not in _INFIX else f"({x.text} {_INFIX[op]} {y.text})"
        return self._checked(op, dtype, Code(text, interval.binary(op, x.range, y.range), depth))

    def _with_quotient(self, op: str, dtype: str, x: Code, y: Code) -> tuple[Code, Code]:
        """The operands of a remainder; the lowest number by -1 is refused, since C computes the quotient, too."""
        low = dtypes.int_range(dtype)[0]
        if not low or not (x.range[0] <= low and y.range[0] <= -1 <= y.range[1]):
            return x, y
        a, b = self.fresh("t"), self.fresh("t")
        fits = f"(({a} := {x.text}) != {low}) | (({b} := {y.text}) != -1)"
        text = f"({a} if {fits} else overflow(_func, {op!r}, {dtype!r}, -{a}))"
        return Code(text, x.range, _deeper(x, y) + 3), Code(b, y.range)

    def _shift_count(self, op: str, dtype: str, y: Code) -> Code:
        bits = dtypes.info(dtype).bits
        if interval.within(y.range, (0, bits - 1)):
            return y
        t = self.fresh("t")
        text = f"({t} if 0 <= ({t} := {y.text}) < {bits} else bad_shift(_func, {op!r}, {dtype!r}, {t}))"
        return Code(text, (0, bits - 1), y.depth + 2)

    def _checked(self, op: str, dtype: str, code: Code) -> Code:
        """An integer result within its dtype: unsigned wraps, signed is checked unless its range fits."""
        low, high = dtypes.int_range(dtype)
        if interval.within(code.range, (low, high)):
            return code
        if dtypes.info(dtype).kind == "uint":
            return Code(f"({code.text} & {high})", (low, high), code.depth + 1)
        t = self.fresh("t")
        text = f"({t} if {low} <= ({t} := {code.text}) <= {high} else overflow(_func, {op!r}, {dtype!r}, {t}))"
        return Code(text, (max(low, code.range[0]), min(high, code.range[1])), code.depth + 2)

    def _unary(self, op: str, a: ir.Expr) -> Code:
        x = self.value(a)
        if op == "not":
            return Code(f"(not {x.text})", interval.BOOLEAN, x.depth + 1)
        if dtypes.is_float(a.dtype):
            return Code(f"(-{x.text})", depth=x.depth + 1)
        low, high = x.range
        text, bounds = (f"(-{x.text})", (-high, -low)) if op == "neg" else (f"(~{x.text})", (-high - 1, -low - 1))
        return self._checked(op, a.dtype, Code(text, bounds, x.depth + 1))

    def _cast(self, dtype: str, a: ir.Expr) -> Code:
        x, source = self.value(a), a.dtype
        kind, bits, lanes = dtypes.info(dtype)
        if lanes > 1 or dtypes.info(source).lanes > 1:
            raise InternalError(f"cast of {source} to {dtype}", where=self.func.name)
        depth = x.depth + 2
        if kind == "float":
            exact = dtypes.is_float(source) or dtypes.info(source).bits < 64 or bits == 64
            name = "bf16" if dtype == "bfloat16" else f"f{bits}"
            return Code(f"{name if exact else 'int_to_float32'}({x.text})", depth=depth)
        if kind == "bool":
            return Code(f"({x.text} != 0)", interval.BOOLEAN, depth)
        low, high = dtypes.int_range(dtype)
        if dtypes.is_float(source):
            return Code(f"float_to_int(_func, {dtype!r}, {low}, {high}, {x.text})", (low, high), depth)
        if source == "bool":
            return Code(f"int({x.text})", interval.BOOLEAN, depth)
        if interval.within(x.range, (low, high)):
            return x
        mask = (1 << bits) - 1
        text = f"(({x.text} + {-low} & {mask}) - {-low})" if low else f"({x.text} & {mask})"
        return Code(text, (low, high), depth)

    # ------------------------------------------------------------ memory and calls

    def element(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> Code:
        flat = self._flat(buffer, indices)
        return Code(f"{self._buffer(buffer)}[{flat.text}]", flat.range, flat.depth + 1)

    def _buffer(self, buffer: ir.Buffer) -> str:
        if buffer not in self.buffers:
            raise InternalError(f"{buffer.name} is neither a parameter nor allocated", where=self.func.name)
        return self.buffers[buffer]

    def _flat(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> Code:
        """The flat element index, every axis checked unless its range is within bounds."""
        if len(indices) != len(buffer.shape):
            raise InternalError(
                f"{buffer.name} has {len(buffer.shape)} axes, {len(indices)} indices", where=self.func.name
            )
        codes = [self.value(i) for i in indices]
        parts: list[str] = []
        for k, (code, extent, stride) in enumerate(zip(codes, buffer.shape, buffer.strides, strict=True)):
            text = code.text
            if not interval.within(code.range, (0, extent - 1)):
                t = self.fresh("t")
                shown = ", ".join(t if j == k else other.text for j, other in enumerate(codes))
                fault = f"out_of_bounds(_func, {buffer.name!r}, {buffer.shape!r}, ({shown},))"
                text = f"({t} if 0 <= ({t} := {text}) < {extent} else {fault})"
            if text != "0" or stride == 1:
                parts.append(f"{text} * {stride}" if stride != 1 else text)
        return Code(" + ".join(parts) or "0", interval.UNKNOWN, _deeper(*codes) + 2)

    def _call(self, name: str, args: tuple[ir.Expr, ...], dtype: str) -> Code:
        if name in FUNCTIONS:
            codes = [self.value(a) for a in args]
            text = f"_math[{name!r}]({', '.join(c.text for c in codes)})"
            code = Code(text, depth=_deeper(*codes) + 1)
            return code if dtypes.is_float(dtype) else self._checked(name, dtype, code)
        if name == ir.REINTERPRET:
            (x,) = (self.value(a) for a in args)
            return Code(f"reinterpret({args[0].dtype!r}, {dtype!r}, {x.text})", _int_range(dtype), x.depth + 1)
        self.intrinsics.add(name)
        texts, deepest = [], 0
        for a in args:
            code = self._address(a) if isinstance(a, ir.AddressOf) else self.value(a)
            texts.append(code.text)
            deepest = max(deepest, code.depth)
        text = f"intrinsics[{name!r}]([{', '.join(texts)}])"
        return Code(text, _int_range(dtype), deepest + 2)

    def _address(self, a: ir.AddressOf) -> Code:
        if a.writes and a.buffer.scope == "const":
            raise InternalError(f"store to constant {a.buffer.name}", where=self.func.name)
        flat = self._flat(a.buffer, a.indices)
        t = self.fresh("t")
        last = a.buffer.size - a.reach
        fault = f"out_of_bounds(_func, {a.buffer.name!r}, {a.buffer.shape!r}, ({t} + {a.reach - 1},))"
        text = f"({self._buffer(a.buffer)}_array, {t} if ({t} := {flat.text}) <= {last} else {fault})"
        return Code(text, depth=flat.depth + 2)


def _deeper(*codes: Code) -> int:
    return 1 + max((code.depth for code in codes), default=0)
