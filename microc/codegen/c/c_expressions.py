"""Print TIR expressions as C99 expressions, and indices of elements by rows."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from microc.base import dtypes
from microc.errors import InternalError
from microc.tir import ir
from microc.tir.analysis.simplification import bounds_of, simplify
from microc.tir.operators import BINARY, UNARY

# ---- Indices by rows: ``data[y * (8 * 320) + x * 64 + c + 2 * 320]`` shows the row length that ``data[y * 2560 + x * 64 + c
# + 640]`` hides.
#
# C arrays are declared with one subscript: for several, gcc generates other code than for their sum, with up to a third more
# instructions in kernels that use all registers. Products of literals do not change its code, since it folds them.

MAX_INT16 = (1 << 15) - 1
"""Largest product of literals that no compiler overflows, even with an ``int`` of 16 bits."""
MAX_INT32 = (1 << 31) - 1
"""Largest product of literals for an ``int`` of 32 bits."""
CACHED_INDICES = 1 << 12
"""Size of the cache of :func:`flat_index`: a kernel accesses the same elements several times."""


@lru_cache(maxsize=CACHED_INDICES)
def flat_index(buffer: ir.Buffer, indices: tuple[ir.Expr, ...], largest_literal: int) -> ir.Expr:
    """Return the row-major index of an element.

    Literals of several rows, up to ``largest_literal``, are printed as products of a number of rows and the row's
    length."""
    strides = buffer.strides
    total: ir.Expr = ir.const(0, "int32")
    for index, stride in zip(indices, strides, strict=True):
        total = total + index * stride
    number = simplify(total)
    if len(strides) < 2:
        return number
    offsets = [(_literal_term(index), stride) for index, stride in zip(indices, strides, strict=True)]
    rows = [(count, stride) for count, stride in offsets if count]
    return _split_by_rows(number, rows, {s for s in strides if s > 1}, largest_literal)


def _literal_term(index: ir.Expr) -> int:
    """Return the literal term at the end of an index, 0 if there is none."""
    match index:
        case ir.Const(int(value)) | ir.Bin("add", _, ir.Const(int(value))):
            return value
        case ir.Bin("sub", _, ir.Const(int(value))):
            return -value
        case _:
            return 0


def _split_by_rows(index: ir.Expr, rows: list[tuple[int, int]], strides: set[int], largest_literal: int) -> ir.Expr:
    """Return a flat index whose literals are products of a number of rows and the row's length.

    ``rows``: the indices' own literals, as counts and strides; ``largest_literal``: the largest literal that is split."""
    # A literal is split into rows only if the sum of the indices' own offsets accounts for all of it.
    match index:
        case ir.Bin("add" | "sub" as op, a, ir.Const(int(value)) as offset) if abs(value) <= largest_literal:
            rest, sign = _split_by_rows(a, [], strides, largest_literal), 1 if (op == "add") == (value > 0) else -1
            if sum(count * stride for count, stride in rows) != sign * abs(value):
                return ir.Bin(op, rest, offset)
            return ir.Bin("add" if sign > 0 else "sub", rest, _sum_of_rows([(sign * n, s) for n, s in rows]))
        case ir.Bin("add" | "sub" as op, a, b):
            return ir.Bin(
                op, _split_by_rows(a, [], strides, largest_literal), _split_by_rows(b, [], strides, largest_literal)
            )
        case ir.Bin("mul", a, ir.Const(int(value))) if value <= largest_literal and value not in strides:
            stride = max((s for s in strides if value % s == 0), default=0)
            return ir.Bin("mul", a, _sum_of_rows([(value // stride, stride)])) if stride else index
        case ir.Const(int(value)) if (
            0 < value <= largest_literal and sum(count * stride for count, stride in rows) == value
        ):
            return _sum_of_rows(rows)
        case _:
            return index


def _sum_of_rows(rows: list[tuple[int, int]]) -> ir.Expr:
    """Return the sum of counts times strides with literals as operands, positive ones first."""
    total: ir.Expr | None = None
    for count, stride in sorted(rows, key=lambda row: row[0] < 0):
        size, step = ir.const(abs(count), "int32"), ir.const(stride, "int32")
        row = size if stride == 1 else step if abs(count) == 1 else ir.Bin("mul", size, step)
        total = row if total is None else ir.Bin("add" if count > 0 else "sub", total, row)
    assert total is not None
    return total


# ---- Typed expressions. Nothing relies on C's implicit conversions: every change of type is printed as a cast.

Bounds = dict[ir.Var, tuple[int, int]]

_INFIX = {name: operator.c for name, operator in BINARY.items() if operator.c}
_UNARY = {name: operator.c[0] for name, operator in UNARY.items() if operator.c}
_PRIMARY, _PREFIX, _TERNARY = 16, 14, 3
_MIXABLE = frozenset({"+", "-", "*"})  # operators that readers nest without brackets
_LOOSEST = {"&&": 5, "||": 5, "==": 10, "!=": 10, "<": 10, "<=": 10, ">": 10, ">=": 10}
"""Loosest operator that may stand unbracketed inside of these: no comparison inside of a comparison, no && inside of ||."""

# fmt: off
MATH_FUNCTIONS = frozenset({
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "cos", "cosh", "erf", "exp", "exp2", "expm1",
    "fabs", "floor", "fma", "fmax", "fmin", "fmod", "hypot", "log", "log10", "log1p", "log2", "pow", "rint", "round", "sin",
    "sinh", "sqrt", "tan", "tanh", "trunc",
})
# fmt: on
"""Functions of ``<math.h>``: the name is that for double; ``f`` is appended for float."""
_NOT_FINITE = {"nan": "NAN", "inf": "INFINITY", "-inf": "-INFINITY"}


def float32_literal(number: np.float32) -> str:
    """Return the literal of a float32, with the fewest digits that identify it."""
    digits = str(number)
    return _NOT_FINITE.get(digits) or f"{digits}f"


class ExprPrinter:
    """Prints expressions, and collects the helpers and headers that they need.

    ``helpers`` are names of small inline functions (``min_i32``) and intrinsics. ``needs_math`` is set when a function of
    ``<math.h>`` was printed. ``largest`` is the largest product of literals that fits an ``int``. ``own`` are functions of
    ``<math.h>`` that are printed with the code (``Family.own_math``); they compute in float32, since these C libraries have
    no wider ``double``.
    """

    def __init__(self, largest: int = MAX_INT16, own: frozenset[str] = frozenset()) -> None:
        self.helpers: dict[str, None] = {}
        self.needs_math = False
        self.bounds: Bounds = {}
        self.largest = largest
        self.own = own

    def __call__(self, expr: ir.Expr) -> str:
        return self._print(expr)[0]

    def _use_helper(self, name: str) -> str:
        """Record that the text calls the helper ``name``; return the name."""
        self.helpers[name] = None
        return name

    def _with_brackets(self, expr: ir.Expr, precedence: int) -> str:
        """Print ``expr``, in brackets if it binds less tightly than ``precedence``."""
        text, binds = self._print(expr)
        return text if binds >= precedence else f"({text})"

    def _print(self, expr: ir.Expr) -> tuple[str, int]:
        """Print an expression; return the text, and the precedence of its outermost operator."""
        match expr:
            case ir.Const(value, dtype):
                text = self.literal(value, dtype)
                return text, _PREFIX if text.startswith(("-", "(")) else _PRIMARY
            case ir.Var(name):
                return name, _PRIMARY
            case ir.Load(buffer, indices):
                return self.element(buffer, indices), _PRIMARY
            case ir.AddressOf(buffer, indices) if buffer.scope in ir.UNIT_SCOPES:
                return self._print(flat_index(buffer, indices, self.largest))
            case ir.AddressOf(buffer, indices):
                return f"&{self.element(buffer, indices)}", _PREFIX
            case ir.Cast(dtype, a) if dtype in dtypes.HALF or a.dtype in dtypes.HALF:
                return self._print_16_bit_float_cast(dtype, a), _PRIMARY
            case ir.Cast("float32", ir.Call("floor", (ir.Bin("div", a, b),))) if self.own and a.dtype == "float64":
                self.needs_math = True  # a double of 32 bits would round the quotient up
                pair = f"{self(ir.cast('float32', a))}, {self(ir.cast('float32', b))}"
                return f"{self._use_helper('floor_quotient_f32')}({pair})", _PRIMARY
            case ir.Cast(dtype, a):
                return f"({dtypes.c_name(dtype)}){self._with_brackets(a, _PREFIX)}", _PREFIX
            case ir.Un(op, a):
                inner = self._with_brackets(a, _PREFIX)
                space = " " if op == "neg" and inner.startswith("-") else ""
                return f"{_UNARY[op]}{space}{inner}", _PREFIX
            case ir.Select(condition, a, b):
                return (
                    f"{self._with_brackets(condition, 4)} ? {self._with_brackets(a, 4)} : {self._with_brackets(b, 4)}",
                    _TERNARY,
                )
            case ir.Call(ir.REINTERPRET, (a,), dtype):
                return self._print_reinterpret(dtype, a)
            case ir.Call(name, args):
                return self._call(name, args), _PRIMARY
            case ir.Bin():
                return self._print_binary(expr)
            case _:
                raise InternalError(f"cannot print {type(expr).__name__} as C")

    def _print_16_bit_float_cast(self, dtype: str, operand: ir.Expr) -> str:
        """Print a conversion between float32 and float16 or bfloat16, which C has no types for, as a call of a helper."""
        if (dtype == "float32") == (operand.dtype == "float32"):
            raise InternalError(f"cast of {operand.dtype} to {dtype}: go through float32")
        name = f"{operand.dtype}_to_float" if dtype == "float32" else f"float_to_{dtype}"
        return f"{self._use_helper(name)}({self(operand)})"

    def _print_reinterpret(self, dtype: str, operand: ir.Expr) -> tuple[str, int]:
        """Print the bits of a value as another dtype, and return the text's precedence too; between dtypes that C stores
        as integers a cast does it."""
        source, kind = dtypes.c_name(operand.dtype), dtypes.c_name(dtype)
        if {source, kind} & {"float", "double"}:
            return (
                f"{self._use_helper(f'{short_name(dtype)}_of_{short_name(operand.dtype)}')}({self(operand)})",
                _PRIMARY,
            )
        return f"({kind}){self._with_brackets(operand, _PREFIX)}", _PREFIX

    def literal(self, value: int | float, dtype: str) -> str:
        """Return a literal of exactly this dtype."""
        if dtype in dtypes.HALF:
            return f"(uint16_t){int(dtypes.to_numpy(dtype).type(value).view(np.uint16))}"
        if dtypes.is_float(dtype):
            self.needs_math |= not np.isfinite(value)
            if dtype == "float32":
                return float32_literal(np.float32(value))
            digits = repr(float(value))
            return f"(double){_NOT_FINITE[digits]}" if digits in _NOT_FINITE else digits
        number = int(value)
        match dtype:
            case "bool":
                return "true" if number else "false"
            case "int64":
                return "INT64_MIN" if number == -(1 << 63) else f"INT64_C({number})"
            case "uint64":
                return f"UINT64_C({number})"
            case "uint32":
                return f"{number}U"
            case "int32":
                return "INT32_MIN" if number == -(1 << 31) else str(number)
            case _:
                return f"({dtypes.c_name(dtype)}){number}" if number >= 0 else f"({dtypes.c_name(dtype)})({number})"

    def element(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> str:
        """Print one element: the scalar of a register tile, or ``name[flat index]``."""
        if buffer.scope == "register":
            numbers = [ir.int_value(i) for i in indices]
            if all(n is not None for n in numbers):
                return register_name(buffer, [n for n in numbers if n is not None])
        return f"{buffer.name}[{self(flat_index(buffer, indices, self.largest))}]"

    def _call(self, name: str, args: tuple[ir.Expr, ...]) -> str:
        """Print a call of a helper, or of a function of ``<math.h>``."""
        printed = ", ".join(self(a) for a in args)
        if name == "fma" and args[0].dtype in dtypes.HALF:
            return f"{self._use_helper(f'{args[0].dtype}_fma')}({printed})"
        if name in MATH_FUNCTIONS:
            self.needs_math = True
            if name in self.own:
                return f"{self._use_helper(f'{name}_f32')}({printed})"
            return f"{name}{'f' if args[0].dtype == 'float32' else ''}({printed})"
        return f"{self._use_helper(name)}({printed})"

    def _print_binary(self, expr: ir.Bin) -> tuple[str, int]:
        """Print a binary operation, by an operator of C or by a helper; return the text and its precedence."""
        op, a, b = expr.op, expr.a, expr.b
        if a.dtype in dtypes.HALF:
            raise InternalError(f"{op} of {a.dtype}: compute in float32")
        if op not in _INFIX and op not in ("floordiv", "floormod"):
            return f"{self._use_helper(f'{op}_{short_name(a.dtype)}')}({self(a)}, {self(b)})", _PRIMARY
        if op in ("floordiv", "floormod"):
            # C's division truncates. It equals floor division if no operand is negative, for which the bounds are proved.
            dividend = bounds_of(a, self.bounds)
            divisor = bounds_of(b, self.bounds)
            same_in_c = dividend is not None and dividend[0] >= 0 and divisor is not None and divisor[0] > 0
            if not same_in_c and dtypes.dtype_parts(a.dtype).kind != "uint":
                return f"{self._use_helper(f'{op}_{short_name(a.dtype)}')}({self(a)}, {self(b)})", _PRIMARY
            op = "truncdiv" if op == "floordiv" else "truncmod"
        if op == "shl" and a.dtype in ("int32", "int64"):  # a negative value must not be shifted left in C
            count = ir.int_value(b)
            if count is not None and count < dtypes.dtype_parts(a.dtype).bits - 1:  # the factor must fit, too
                return self._print_infix("mul", a, ir.Const(1 << count, a.dtype))
            unsigned = dtypes.c_name("u" + a.dtype)
            return (
                f"({dtypes.c_name(a.dtype)})(({unsigned}){self._with_brackets(a, _PREFIX)} << {self._with_brackets(b, _PREFIX)})",
                _PREFIX,
            )
        # ``a + -1`` is printed as ``a - 1``; -2**31 has no positive counterpart.
        if op == "add" and isinstance(b, ir.Const) and isinstance(b.value, int) and -(1 << 31) < b.value < 0:
            return self._print_infix("sub", a, ir.Const(-b.value, b.dtype))
        if op == "sub" and a.dtype in ("int32", "int64") and ir.int_value(a) == 0:
            return self._print(ir.Un("neg", b))
        return self._print_infix(op, a, b)

    def _print_infix(self, op: str, a: ir.Expr, b: ir.Expr) -> tuple[str, int]:
        """Print two operands with an operator of C between them; return the text and its precedence."""
        sign, level = _INFIX[op]
        left, right = self._print_operand(a, sign, level), self._print_operand(b, sign, level + 1)
        if op in ("shl", "shr") and isinstance(a, ir.Const) and self.largest == MAX_INT16:
            left = f"({dtypes.c_name(a.dtype)}){left}"  # a shift has the type of its left side, which may be an int of 16 bits
        return f"{left} {sign} {right}", level

    def _print_operand(self, expr: ir.Expr, sign: str, precedence: int) -> str:
        """Print an operand of the C operator ``sign``, in brackets if needed. Operators other than + - * are bracketed
        inside each other, as -Wparentheses asks for."""
        text, binds = self._print(expr)
        no_brackets = binds >= _PREFIX or (binds >= precedence and sign in _MIXABLE and binds in (12, 13))
        no_brackets = no_brackets or binds > _LOOSEST.get(sign, _PREFIX)
        return text if no_brackets else f"({text})"


def short_name(dtype: str) -> str:
    """Return the suffix of helper functions for a dtype: ``i32`` for int32, ``f32`` for float32."""
    kind, bits, _ = dtypes.dtype_parts(dtype)
    return f"{ {'int': 'i', 'uint': 'u', 'float': 'f', 'bool': 'b'}[kind] }{bits}"


def register_name(buffer: ir.Buffer, element_indices: list[int]) -> str:
    """Return the name of the scalar that holds one element of a register tile: ``acc_0_1``; axes of extent 1 are left out."""
    coordinates = [str(n) for n, extent in zip(element_indices, buffer.shape, strict=True) if extent > 1]
    return "_".join([buffer.name, *coordinates])
