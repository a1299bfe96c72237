# SPDX-License-Identifier: Apache-2.0
"""Print TIR expressions as C99 expressions. Indices of elements are printed as sums of rows and columns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from microc.base import dtypes
from microc.errors import InternalError
from microc.tir import ir
from microc.tir.analysis.simplification import bounds_of, simplify
from microc.tir.operators import BINARY, UNARY

# ---- Indices as sums of rows: ``data[y * (8 * 320) + x * 64 + c + 2 * 320]`` shows the row length that ``data[y * 2560 + x * 64
# + c + 640]`` hides.
#
# C arrays are declared with a single subscript. With several subscripts gcc would generate different code, with up to a third
# more instructions in kernels that use all registers. Products of literals do not change the code, since gcc folds them.

MAX_INT16 = (1 << 15) - 1
"""Largest product of literals that does not overflow if C's ``int`` has 16 bits, the minimum."""
MAX_INT32 = (1 << 31) - 1
"""Largest product of literals that does not overflow if C's ``int`` has 32 bits."""
CACHED_INDICES = 1 << 12
"""Number of results of :func:`flat_index` that are cached: a kernel accesses the same elements several times."""


@lru_cache(maxsize=CACHED_INDICES)
def flat_index(buffer: ir.Buffer, indices: tuple[ir.Expr, ...], largest_literal: int) -> ir.Expr:
    """Return the row-major index of a buffer's element, given its index on each axis.

    A literal that is a multiple of a row's length becomes a product of the number of rows and the row's length, if it is not
    above ``largest_literal``."""
    strides = buffer.strides
    total: ir.Expr = ir.const(0, "int32")
    for index, stride in zip(indices, strides, strict=True):
        if ir.int_value(index) != 0:  # most indices of registers are 0
            total = total + (index * stride if stride != 1 else index)
    number = simplify(total)
    if len(strides) < 2:
        return number
    offsets = [(_find_trailing_literal(index), stride) for index, stride in zip(indices, strides, strict=True)]
    rows = [(count, stride) for count, stride in offsets if count]
    return _replace_literals_by_row_products(number, rows, {s for s in strides if s > 1}, largest_literal)


def _find_trailing_literal(index: ir.Expr) -> int:
    """Return the value of the literal that is the last term of an index; 0 if its last term is no literal."""
    match index:
        case ir.Const(int(value)) | ir.Bin("add", _, ir.Const(int(value))):
            return value
        case ir.Bin("sub", _, ir.Const(int(value))):
            return -value
        case _:
            return 0


def _replace_literals_by_row_products(
    index: ir.Expr, literals_and_strides: list[tuple[int, int]], strides: set[int], largest_literal: int
) -> ir.Expr:
    """Return a flat index with its literals replaced by products of a number of rows and the row's length.

    ``literals_and_strides``: for each axis whose index ends with a literal, the literal and the axis's stride.
    ``strides``: strides of the buffer. ``largest_literal``: larger literals are not replaced."""
    # The literal at the end of the index is replaced only if the products in ``literals_and_strides`` add up to it exactly.
    match index:
        case ir.Bin("add" | "sub" as op, a, ir.Const(int(value)) as offset) if abs(value) <= largest_literal:
            rest, sign = (
                _replace_literals_by_row_products(a, [], strides, largest_literal),
                1 if (op == "add") == (value > 0) else -1,
            )
            if sum(count * stride for count, stride in literals_and_strides) != sign * abs(value):
                return ir.Bin(op, rest, offset)
            return ir.Bin(
                "add" if sign > 0 else "sub", rest, _sum_row_products([(sign * n, s) for n, s in literals_and_strides])
            )
        case ir.Bin("add" | "sub" as op, a, b):
            return ir.Bin(
                op,
                _replace_literals_by_row_products(a, [], strides, largest_literal),
                _replace_literals_by_row_products(b, [], strides, largest_literal),
            )
        case ir.Bin("mul", a, ir.Const(int(value))) if value <= largest_literal and value not in strides:
            stride = max((s for s in strides if value % s == 0), default=0)
            return ir.Bin("mul", a, _sum_row_products([(value // stride, stride)])) if stride else index
        case ir.Const(int(value)) if (
            0 < value <= largest_literal and sum(count * stride for count, stride in literals_and_strides) == value
        ):
            return _sum_row_products(literals_and_strides)
        case _:
            return index


def _sum_row_products(counts_and_strides: list[tuple[int, int]]) -> ir.Expr:
    """Return the sum of products of literals for pairs of a number of rows and a stride. Positive products are first."""
    total: ir.Expr | None = None
    for count, stride in sorted(counts_and_strides, key=lambda row: row[0] < 0):
        size, step = ir.const(abs(count), "int32"), ir.const(stride, "int32")
        row = size if stride == 1 else step if abs(count) == 1 else ir.Bin("mul", size, step)
        total = row if total is None else ir.Bin("add" if count > 0 else "sub", total, row)
    assert total is not None
    return total


# ---- Expressions. The printed C does not rely on implicit conversions: every change of type is printed as a cast.

Bounds = dict[ir.Var, tuple[int, int]]
"""The smallest and the largest value of each integer variable."""

_C_BINARY_OPERATORS = {name: operator.c_notation for name, operator in BINARY.items() if operator.c_notation}
_C_UNARY_OPERATORS = {name: operator.c_notation[0] for name, operator in UNARY.items() if operator.c_notation}
_PRIMARY_PRECEDENCE, _PREFIX_PRECEDENCE, _TERNARY_PRECEDENCE = 16, 14, 3
_OPERATORS_WITHOUT_BRACKETS = frozenset({"+", "-", "*"})  # operators that are nested without brackets
_UNBRACKETED_ABOVE = {"&&": 5, "||": 5, "==": 10, "!=": 10, "<": 10, "<=": 10, ">": 10, ">=": 10}
"""A precedence for each logical and comparison operator: operands of a higher precedence are printed without brackets.

Comparisons inside of a comparison, and ``&&`` inside of ``||``, are therefore bracketed."""

# fmt: off
MATH_FUNCTIONS = frozenset({
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "cos", "cosh", "erf", "exp", "exp2", "expm1",
    "fabs", "floor", "fma", "fmax", "fmin", "fmod", "hypot", "log", "log10", "log1p", "log2", "pow", "rint", "round", "sin",
    "sinh", "sqrt", "tan", "tanh", "trunc",
})
# fmt: on
"""Functions of ``<math.h>`` that TIR calls, by the name of the function for double. C appends ``f`` for float."""
_NON_FINITE_LITERALS = {"nan": "NAN", "inf": "INFINITY", "-inf": "-INFINITY"}


def float32_literal(number: np.float32) -> str:
    """Return the C literal of a float32 (``0.1f``), with the fewest digits that identify the number."""
    digits = str(number)
    return _NON_FINITE_LITERALS.get(digits) or f"{digits}f"


class ExprPrinter:
    """Printer of expressions, which also records the helper functions and headers that the printed text needs.

    ``helpers`` are the names of the small inline functions (``min_i32``) and intrinsics that were printed. ``portable_helpers``
    are those that may be printed in vain, because the compiler takes an assembly statement in their place. ``needs_math``
    becomes True when a function of ``<math.h>`` is printed. ``bounds`` are the smallest and the largest value of variables.
    ``largest_literal`` is the largest product of literals that fits an ``int``. ``own_math`` are functions of ``<math.h>`` for
    which microc prints its own definitions, because the C library lacks them (``Family.own_math``). These compute in
    float32, since ``double`` is not wider on such cores.
    """

    def __init__(self, largest_literal: int = MAX_INT16, own_math: frozenset[str] = frozenset()) -> None:
        self.helpers: dict[str, None] = {}
        self.portable_helpers: dict[str, None] = {}
        self.needs_math = False
        self.bounds: Bounds = {}
        self.largest_literal = largest_literal
        self.own_math = own_math

    def __call__(self, expr: ir.Expr) -> str:
        return self._print(expr)[0]

    def keep_helpers_of_portable_code(self, helpers_before: Mapping[str, None]) -> None:
        """Keep the helpers that were recorded since ``helpers_before`` as those of code beside an assembly statement."""
        self.portable_helpers |= self.helpers
        self.helpers = dict(helpers_before)

    def _use_helper(self, name: str) -> str:
        """Record that the printed text calls the helper function ``name``. Return ``name``."""
        self.helpers[name] = None
        return name

    def _print_with_brackets(self, expr: ir.Expr, precedence: int) -> str:
        """Print ``expr``, in brackets if the precedence of its outermost operator is lower than ``precedence``."""
        text, inner_precedence = self._print(expr)
        return text if inner_precedence >= precedence else f"({text})"

    def _print(self, expr: ir.Expr) -> tuple[str, int]:
        """Print an expression. Return the text and the precedence of its outermost operator."""
        match expr:
            case ir.Bin():
                return self._print_binary(expr)
            case ir.Const(value, dtype):
                text = self.print_literal(value, dtype)
                return text, _PREFIX_PRECEDENCE if text.startswith(("-", "(")) else _PRIMARY_PRECEDENCE
            case ir.Var(name):
                return name, _PRIMARY_PRECEDENCE
            case ir.Load(buffer, indices):
                return self.print_element(buffer, indices), _PRIMARY_PRECEDENCE
            case ir.AddressOf(buffer, indices) if buffer.scope in ir.UNIT_SCOPES:
                return self._print(flat_index(buffer, indices, self.largest_literal))
            case ir.AddressOf(buffer, indices):
                return f"&{self.print_element(buffer, indices)}", _PREFIX_PRECEDENCE
            case ir.Cast(dtype, a) if dtype in dtypes.HALF or a.dtype in dtypes.HALF:
                return self._print_16_bit_float_cast(dtype, a), _PRIMARY_PRECEDENCE
            case ir.Cast("float32", ir.Call("floor", (ir.Bin("div", a, b),))) if self.own_math and a.dtype == "float64":
                self.needs_math = True  # a double of 32 bits would round the quotient up
                pair = f"{self(ir.cast('float32', a))}, {self(ir.cast('float32', b))}"
                return f"{self._use_helper('floor_quotient_f32')}({pair})", _PRIMARY_PRECEDENCE
            case ir.Cast(dtype, a):
                return f"({dtypes.c_name(dtype)}){self._print_with_brackets(a, _PREFIX_PRECEDENCE)}", _PREFIX_PRECEDENCE
            case ir.Un(op, a):
                inner = self._print_with_brackets(a, _PREFIX_PRECEDENCE)
                space = " " if op == "neg" and inner.startswith("-") else ""
                return f"{_C_UNARY_OPERATORS[op]}{space}{inner}", _PREFIX_PRECEDENCE
            case ir.Select(condition, a, b):
                first, second, third = (self._print_with_brackets(operand, 4) for operand in (condition, a, b))
                return f"{first} ? {second} : {third}", _TERNARY_PRECEDENCE
            case ir.Call(ir.REINTERPRET, (a,), dtype):
                return self._print_reinterpret(dtype, a)
            case ir.Call(name, args):
                return self._print_call(name, args), _PRIMARY_PRECEDENCE
            case _:
                raise InternalError(f"expression {type(expr).__name__}: the printer of C has no case for this type")

    def _print_16_bit_float_cast(self, dtype: str, operand: ir.Expr) -> str:
        """Print a conversion between float32 and float16 or bfloat16 as a call of a helper function.

        C99 has no types for 16-bit floats, so a cast cannot convert them."""
        if (dtype == "float32") == (operand.dtype == "float32"):
            raise InternalError(
                f"cast of {operand.dtype} to {dtype}: no helper exists; expected two casts, by way of float32"
            )
        name = f"{operand.dtype}_to_float" if dtype == "float32" else f"float_to_{dtype}"
        return f"{self._use_helper(name)}({self(operand)})"

    def _print_reinterpret(self, dtype: str, operand: ir.Expr) -> tuple[str, int]:
        """Print a reinterpretation of the bits of ``operand`` as ``dtype``. Return the text and its precedence.

        If C stores both dtypes as integers, it is printed as a cast, otherwise as a call of a helper function."""
        source, kind = dtypes.c_name(operand.dtype), dtypes.c_name(dtype)
        if {source, kind} & {"float", "double"}:
            return (
                f"{self._use_helper(f'{dtype_abbreviation(dtype)}_of_{dtype_abbreviation(operand.dtype)}')}({self(operand)})",
                _PRIMARY_PRECEDENCE,
            )
        return f"({kind}){self._print_with_brackets(operand, _PREFIX_PRECEDENCE)}", _PREFIX_PRECEDENCE

    def print_literal(self, value: int | float, dtype: str) -> str:
        """Return a C literal of ``value`` whose type is exactly that of ``dtype``."""
        if dtype in dtypes.HALF:
            return f"(uint16_t){int(dtypes.to_numpy(dtype).type(value).view(np.uint16))}"
        if dtypes.is_float(dtype):
            self.needs_math |= not np.isfinite(value)
            if dtype == "float32":
                return float32_literal(np.float32(value))
            digits = repr(float(value))
            return f"(double){_NON_FINITE_LITERALS[digits]}" if digits in _NON_FINITE_LITERALS else digits
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

    def print_element(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> str:
        """Print one element of a buffer as an lvalue: ``name[flat index]``, or the name of a register tile's C variable."""
        if buffer.scope == "register":
            numbers = [ir.int_value(i) for i in indices]
            if all(n is not None for n in numbers):
                return register_name(buffer, [n for n in numbers if n is not None])
        return f"{buffer.name}[{self(flat_index(buffer, indices, self.largest_literal))}]"

    def _print_call(self, name: str, args: tuple[ir.Expr, ...]) -> str:
        """Print a call of an intrinsic or of a function of ``<math.h>``."""
        printed = ", ".join(self(a) for a in args)
        if name == "fma" and args[0].dtype in dtypes.HALF:
            return f"{self._use_helper(f'{args[0].dtype}_fma')}({printed})"
        if name in MATH_FUNCTIONS:
            self.needs_math = True
            if name in self.own_math:
                return f"{self._use_helper(f'{name}_f32')}({printed})"
            return f"{name}{'f' if args[0].dtype == 'float32' else ''}({printed})"
        return f"{self._use_helper(name)}({printed})"

    def _print_binary(self, expr: ir.Bin) -> tuple[str, int]:
        """Print a binary operation with an operator of C, or as a call of a helper. Return the text and its precedence."""
        op, a, b = expr.op, expr.a, expr.b
        if a.dtype in dtypes.HALF:
            raise InternalError(
                f"{op}: got operands of {a.dtype}, expected float32: C has no arithmetic in 16-bit floats"
            )
        if op not in _C_BINARY_OPERATORS and op not in ("floordiv", "floormod"):
            return (
                f"{self._use_helper(f'{op}_{dtype_abbreviation(a.dtype)}')}({self(a)}, {self(b)})",
                _PRIMARY_PRECEDENCE,
            )
        if op in ("floordiv", "floormod"):
            # C's division truncates. It equals floor division if neither operand can be negative, which their bounds prove.
            dividend = bounds_of(a, self.bounds)
            divisor = bounds_of(b, self.bounds)
            same_in_c = dividend is not None and dividend[0] >= 0 and divisor is not None and divisor[0] > 0
            if not same_in_c and dtypes.dtype_parts(a.dtype).kind != "uint":
                return (
                    f"{self._use_helper(f'{op}_{dtype_abbreviation(a.dtype)}')}({self(a)}, {self(b)})",
                    _PRIMARY_PRECEDENCE,
                )
            op = "truncdiv" if op == "floordiv" else "truncmod"
        if op == "shl" and a.dtype in ("int32", "int64"):  # a negative value must not be shifted left in C
            count = ir.int_value(b)
            if count is not None and count < dtypes.dtype_parts(a.dtype).bits - 1:  # the power of 2 must fit the type
                return self._print_infix("mul", a, ir.Const(1 << count, a.dtype))
            unsigned = dtypes.c_name("u" + a.dtype)
            left, right = (self._print_with_brackets(operand, _PREFIX_PRECEDENCE) for operand in (a, b))
            return f"({dtypes.c_name(a.dtype)})(({unsigned}){left} << {right})", _PREFIX_PRECEDENCE
        # ``a + -1`` is printed as ``a - 1``; -2**31 has no positive counterpart.
        if op == "add" and isinstance(b, ir.Const) and isinstance(b.value, int) and -(1 << 31) < b.value < 0:
            return self._print_infix("sub", a, ir.Const(-b.value, b.dtype))
        if op == "sub" and a.dtype in ("int32", "int64") and ir.int_value(a) == 0:
            return self._print(ir.Un("neg", b))
        return self._print_infix(op, a, b)

    def _print_infix(self, op: str, left: ir.Expr, right: ir.Expr) -> tuple[str, int]:
        """Print two operands with an operator of C between them. Return the text and its precedence."""
        c_operator, precedence = _C_BINARY_OPERATORS[op]
        left_text = self._print_operand(left, c_operator, precedence)
        right_text = self._print_operand(right, c_operator, precedence + 1)
        if op in ("shl", "shr") and isinstance(left, ir.Const) and self.largest_literal == MAX_INT16:
            # A shift has the type of its left operand, and a literal may be a 16-bit int.
            left_text = f"({dtypes.c_name(left.dtype)}){left_text}"
        return f"{left_text} {c_operator} {right_text}", precedence

    def _print_operand(self, expr: ir.Expr, c_operator: str, precedence: int) -> str:
        """Print an operand of the C operator ``c_operator``, in brackets if they are needed.

        ``precedence``: the lowest precedence for which C needs no brackets. Operations other than + - * inside of others are
        always in brackets, as gcc's warning -Wparentheses recommends."""
        text, inner_precedence = self._print(expr)
        no_brackets = inner_precedence >= _PREFIX_PRECEDENCE or (
            inner_precedence >= precedence
            and c_operator in _OPERATORS_WITHOUT_BRACKETS
            and inner_precedence in (12, 13)
        )
        no_brackets = no_brackets or inner_precedence > _UNBRACKETED_ABOVE.get(c_operator, _PREFIX_PRECEDENCE)
        return text if no_brackets else f"({text})"


def dtype_abbreviation(dtype: str) -> str:
    """Return the abbreviation of a dtype in the names of helper functions: ``i32`` for int32, ``f32`` for float32."""
    kind, bits, _ = dtypes.dtype_parts(dtype)
    return f"{ {'int': 'i', 'uint': 'u', 'float': 'f', 'bool': 'b'}[kind] }{bits}"


def register_name(buffer: ir.Buffer, element_indices: list[int]) -> str:
    """Return the name of the C variable for one element of a register tile: ``acc_0_1``.

    The name contains the element's index on each axis, except for axes of extent 1."""
    coordinates = [str(n) for n, extent in zip(element_indices, buffer.shape, strict=True) if extent > 1]
    return "_".join([buffer.name, *coordinates])
