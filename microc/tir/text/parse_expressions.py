# SPDX-License-Identifier: Apache-2.0
"""Parser of the expressions of TIR text, and of the literals and calls that statements also contain."""

from __future__ import annotations

import ast
import math
from collections.abc import Container, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import NoReturn, TypeGuard

from microc.base import dtypes
from microc.errors import InternalError, ModelError
from microc.tir import ir
from microc.tir.extents import find_size_in_texts
from microc.tir.operators import BINARY, FUNCTIONS, TOKENS
from microc.tir.rewrite import walk_expr
from microc.tir.text.print import INFIX, TVM_FUNCTIONS, TVM_OPERATORS, TVM_REFUSED, TVM_UNARY, unescape_keyword

Names = Mapping[str, ir.Var | ir.Buffer]
"""Variables and buffers by name."""


def raise_parse_error(node: ast.AST, problem: str, hint: str = "") -> NoReturn:
    """Raise ModelError for a problem at a node of Python's syntax tree. The error contains the line of the node."""
    raise ModelError(problem, where=f"line {getattr(node, 'lineno', 1)}", hint=hint)


def format_excerpt(node: ast.AST) -> str:
    """Return the text of a syntax tree node for an error, shortened to 60 characters."""
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:60]}..."


class CallParts:
    """The parts of a call ``T.a.b(positional, keyword=...)`` in TIR text.

    ``name``: name of the function without ``T.``, here ``a.b``. ``args``: positional arguments. ``options``: keyword
    arguments by name."""

    def __init__(self, node: ast.AST, builtins: Container[str] = ()) -> None:
        """Read a call of a function of ``T``, or of one of Python's functions ``builtins``."""
        if not isinstance(node, ast.Call):
            raise_parse_error(node, f"got {format_excerpt(node)}, expected a call of a function of T")
        self.node = node
        is_builtin = isinstance(node.func, ast.Name) and node.func.id in builtins
        self.name = ast.unparse(node.func) if is_builtin else _read_name_in_namespace_T(node.func)
        self.args = node.args
        self.options = {k.arg: k.value for k in node.keywords if k.arg is not None}
        if len(self.options) != len(node.keywords) or any(isinstance(a, ast.Starred) for a in node.args):
            raise_parse_error(node, f"T.{self.name}: unpacking is not possible here")

    def check_arguments(self, min_arguments: int, max_arguments: int, *options: str) -> None:
        """Check the number of positional arguments of a call, and that it has no keyword arguments but ``options``.

        Raises ModelError if the check fails."""
        if not min_arguments <= len(self.args) <= max_arguments:
            wanted = str(min_arguments) if min_arguments == max_arguments else f"{min_arguments} to {max_arguments}"
            raise_parse_error(
                self.node, f"T.{self.name}: wrong number of arguments; got {len(self.args)}, expected {wanted}"
            )
        for name in self.options:
            if name not in options:
                raise_parse_error(
                    self.node,
                    f"T.{self.name}: unknown keyword argument; got {name}",
                    "use one of " + ", ".join(options),
                )


def _read_name_in_namespace_T(node: ast.expr) -> str:
    """Return the name of a function in the namespace ``T``, such as ``axis.spatial`` for ``T.axis.spatial``."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id != "T" or not parts:
        raise_parse_error(node, f"wrong call; got {format_excerpt(node)}, expected one of the functions of T")
    return ".".join(reversed(parts))


def read_integer_literal(node: ast.expr) -> int:
    """Return the value of an integer literal. ModelError if the node is no integer literal."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -read_integer_literal(node.operand)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise_parse_error(node, f"got {format_excerpt(node)}, expected an integer literal")


def read_string_literal(node: ast.expr) -> str:
    """Return the value of a string literal. ModelError if the node is no string literal."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise_parse_error(node, f"got {format_excerpt(node)}, expected a string literal")


def is_number_literal(node: ast.expr) -> bool:
    """Test whether a node is a number without dtype, as in ``x + 1`` or ``-2.5``. It takes the dtype of its operator."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def is_int64_literal(node: ast.expr) -> TypeGuard[ast.Call]:
    """Test whether a node is an int64 literal, such as ``T.int64(8)``."""
    return (
        isinstance(node, ast.Call)
        and ast.unparse(node.func) == "T.int64"
        and [*map(is_number_literal, node.args)] == [True]
    )


def read_boolean_literal(node: ast.expr) -> bool:
    """Return the value of the literal ``True`` or ``False``. ModelError if the node is neither."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return node.value
    raise_parse_error(node, f"got {format_excerpt(node)}, expected True or False")


def read_dtype_name(node: ast.expr) -> str:
    """Return the dtype that a string literal names. ModelError if the dtype is unknown."""
    return check_dtype(read_string_literal(node), node)


def check_dtype(name: str, node: ast.AST) -> str:
    """Return ``name`` if it is the name of a dtype. ModelError with the line of ``node`` if it is not."""
    if not dtypes.is_valid(name):
        raise_parse_error(node, f"unknown dtype; got {name!r}")
    return name


_LARGEST: Mapping[str, float] = MappingProxyType(
    {"float16": 65504.0, "float32": 3.4028234663852886e38, "float64": 1.7976931348623157e308}
)


def _read_float_literal(node: ast.expr, dtype: str) -> float:
    """Return the value of a float literal, rounded to ``dtype``. Infinities and NaN are strings: ``"inf"``, ``"nan"``."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        if node.value not in ("inf", "-inf", "nan"):
            raise_parse_error(node, f"float literal: got {node.value!r}, expected 'inf', '-inf' or 'nan'")
        return math.nan if node.value == "nan" else float(node.value)
    sign, inner = 1.0, node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, inner = -1.0, node.operand
    if not isinstance(inner, ast.Constant) or not isinstance(inner.value, (int, float)) or dtype not in _LARGEST:
        raise_parse_error(node, f"got {format_excerpt(node)}, expected a literal of {dtype}")
    try:
        value = sign * float(inner.value)
    except OverflowError:
        raise_parse_error(node, f"the literal {format_excerpt(node)} does not fit {dtype}")
    rounded = float(ir.const(value, dtype).value) if abs(value) <= _LARGEST[dtype] else math.inf
    if not math.isfinite(rounded):
        raise_parse_error(node, f"the literal {format_excerpt(node)} does not fit {dtype}")
    return rounded


class ExprReader:
    """Parser of expressions. ``names``: the variables and buffers that names refer to.

    TVM's loops may count in int64, ours index in int32: a loop or iterator whose extent is an int64 literal becomes an int32
    variable, whose name is in ``wide``. Indices are read in int32 (``reads_indices``), also their int64 literals; elsewhere
    such a variable is cast to the int64 that the text says."""

    def __init__(self, names: Names, wide: frozenset[str] = frozenset(), reads_indices: bool = False) -> None:
        self.names, self.wide, self.reads_indices = names, wide, reads_indices

    def read_index(self, node: ast.expr) -> ir.Expr:
        """Read an index, an extent or a binding of an iterator: an expression in which int64 loop variables are int32."""
        if is_int64_literal(node):
            return self.read_literal(node.args[0], "int32")
        return ExprReader(self.names, self.wide, reads_indices=bool(self.wide)).read_expr(node)

    def has_wide_indices(self, *nodes: ast.expr) -> bool:
        """Test whether expressions contain int64 loop variables, and nothing but index arithmetic."""
        if not self.wide:  # in all text that we print: a walk of every operand of a tree is quadratic in its depth
            return False
        inside = [part for node in nodes for part in ast.walk(node)]
        has_loads = any(isinstance(part, ast.Subscript) for part in inside)
        return not has_loads and any(isinstance(part, ast.Name) and part.id in self.wide for part in inside)

    def read_expr_of_type(self, node: ast.expr, dtype: str) -> ir.Expr:
        """Read an expression. A number without dtype is read as ``dtype``. ModelError if the dtype is another one."""
        is_literal = is_number_literal(node) and dtype != "bool"
        result = self.read_literal(node, dtype) if is_literal else self.read_expr(node)
        if result.dtype != dtype:
            raise_parse_error(node, f"{ast.unparse(node)}: wrong dtype; got {result.dtype}, expected {dtype}")
        return result

    def read_condition(self, node: ast.expr) -> ir.Expr:
        return self.read_expr_of_type(node, "bool")

    def read_expr(self, node: ast.expr) -> ir.Expr:
        """Read an expression. ModelError if the node is no expression of TIR."""
        match node:
            case ast.Constant(bool(value)):
                return ir.Const(int(value), "bool")
            case ast.Constant(float()) | ast.UnaryOp(ast.USub(), ast.Constant(float())):
                return self.read_literal(node, "float32")
            case ast.Constant(int()) | ast.UnaryOp(ast.USub(), ast.Constant(int())):
                return self.read_literal(node, "int32")
            case ast.Name(name):
                return self.read_name(node, name)
            case ast.UnaryOp(op, a) if type(op) in TOKENS:
                operand = self.read_expr(a)
                if operand.dtype in dtypes.HALF:
                    return ir.Cast(operand.dtype, ir.Un(TOKENS[type(op)], ir.Cast("float32", operand)))
                return ir.Un(TOKENS[type(op)], operand)
            case ast.BinOp(a, op, b) if type(op) in TOKENS:
                return self.read_binary(node, TOKENS[type(op)], a, b)
            case ast.Compare(a, ops, others) if all(type(op) in TOKENS for op in ops):
                pairs = zip((a, *others), ops, others, strict=False)  # a < b < c: a < b and b < c
                parts = [self.read_binary(node, TOKENS[type(op)], left, right) for left, op, right in pairs]
                result = ir.all_of(parts)
                assert result is not None
                return result
            case ast.BoolOp(op, values):
                result = self.read_condition(values[0])
                for part in values[1:]:
                    result = ir.Bin(TOKENS[type(op)], result, self.read_condition(part))
                return result
            case ast.Subscript():
                return ir.Load(*self.read_element(node))
            case ast.Call(ast.Attribute(value, "astype"), [dtype], []):
                return self.read_cast(read_dtype_name(dtype), value)
            case ast.Call():
                return self.read_call(CallParts(node))
            case _:
                raise_parse_error(node, f"{ast.unparse(node)} is no expression of TIR")

    def read_name(self, node: ast.expr, name: str) -> ir.Expr:
        """Read a variable. ModelError if none of this name is declared."""
        value: ir.Expr | ir.Buffer | None = self.names.get(unescape_keyword(name))
        if value is None:
            value = find_size_in_texts(name)
        if value is None or isinstance(value, ir.Buffer):
            raise_parse_error(node, f"{name} is not a variable that is declared here")
        return value if self.reads_indices or name not in self.wide else ir.Cast("int64", value)

    def read_binary(self, node: ast.expr, op: str, a: ast.expr, b: ast.expr) -> ir.Expr:
        """Read an operation ``op`` on the operands ``a`` and ``b``. ModelError if their dtypes differ."""
        if op in ir.COMPARISONS and not self.reads_indices and self.has_wide_indices(a, b):
            return ExprReader(self.names, self.wide, reads_indices=True).read_binary(node, op, a, b)
        left, right = self.read_operands(a, b)
        if left.dtype != right.dtype:
            sign = INFIX[op][0] if op in INFIX else op
            raise_parse_error(
                node,
                f"{sign}: operands have different dtypes; got {left.dtype} and {right.dtype}",
                "cast one of them with T.Cast",
            )
        if left.dtype in dtypes.HALF:
            # C99 has no arithmetic in 16-bit floats. float32 has at least 2p + 2 bits for their p (11 and 8), so that the second
            # rounding of a sum, product or quotient changes nothing (Figueroa, When is double rounding innocuous?, 1995).
            wide = ir.Bin(op, ir.Cast("float32", left), ir.Cast("float32", right))
            return wide if op in ir.COMPARISONS else ir.Cast(left.dtype, wide)
        return ir.Bin(op, left, right)

    def read_operands(self, a: ast.expr, b: ast.expr) -> tuple[ir.Expr, ir.Expr]:
        """Read two expressions. If one of them is a number without dtype, it is read in the dtype of the other."""
        if is_number_literal(a) and not is_number_literal(b):
            right = self.read_expr(b)
            return self.read_number_beside(a, right), right
        left = self.read_expr(a)
        return left, self.read_number_beside(b, left) if is_number_literal(b) else self.read_expr(b)

    def read_number_beside(self, node: ast.expr, other: ir.Expr) -> ir.Expr:
        """Read a number without dtype that is an operand beside ``other``: it has the same dtype."""
        return self.read_expr(node) if other.dtype == "bool" else self.read_literal(node, other.dtype)

    def read_element(self, node: ast.expr) -> tuple[ir.Buffer, tuple[ir.Expr, ...]]:
        """Read ``buffer[indices]``; return the buffer and the indices.

        Raises ModelError if the buffer is unknown or has another number of axes."""
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
            raise_parse_error(node, f"got {format_excerpt(node)}, expected buffer[indices]")
        buffer = self.names.get(unescape_keyword(node.value.id))
        if not isinstance(buffer, ir.Buffer):
            raise_parse_error(node, f"{node.value.id} is not a buffer that is declared here")
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(indices) != len(buffer.shape):
            raise_parse_error(
                node, f"{buffer.name}: wrong number of indices; got {len(indices)}, expected {len(buffer.shape)}"
            )
        return buffer, tuple(map(self.read_index, indices))

    def read_literal(self, node: ast.expr, dtype: str) -> ir.Const:
        """Read a literal as a constant of ``dtype``. ModelError if its value does not fit the dtype."""
        if dtypes.is_float(dtype):
            return ir.Const(_read_float_literal(node, dtype), dtype)
        if dtype == "bool":
            return ir.Const(int(read_boolean_literal(node)), dtype)
        try:
            return ir.const(read_integer_literal(node), dtype)
        except InternalError as fault:
            raise_parse_error(node, fault.what, fault.hint)

    def read_call(self, parts: CallParts) -> ir.Expr:
        name, args = TVM_FUNCTIONS.get(parts.name, parts.name), parts.args
        if dtypes.is_valid(name) or name == "boolean":
            return self.read_typed_number(parts, "bool" if name == "boolean" else name)
        if (op := TVM_OPERATORS.get(name, name)) in BINARY:
            parts.check_arguments(2, 2)
            return self.read_binary(parts.node, op, args[0], args[1])
        if name in TVM_REFUSED:
            raise_parse_error(parts.node, f"T.{name}: TIR text has no such function", TVM_REFUSED[name])
        match name:
            case "neg":
                parts.check_arguments(1, 1)
                return ir.Un("neg", self.read_expr(args[0]))
            case "Not" | "bitwise_not":
                parts.check_arguments(1, 1)
                return ir.Un(TVM_UNARY[name], self.read_expr(args[0]))
            case "Cast":
                parts.check_arguments(2, 2)
                return self.read_cast(read_dtype_name(args[0]), args[1])
            case "cast":  # TVM's T.cast has the value first
                count = 2 - len(parts.options)
                parts.check_arguments(count, count, "dtype")
                value, dtype = *args, *parts.options.values()
                return self.read_cast(read_dtype_name(dtype), value)
            case "Select" | "if_then_else":
                parts.check_arguments(3, 3, "dtype")
                first, second = self.read_operands(args[1], args[2])
                if first.dtype != second.dtype:
                    raise_parse_error(
                        parts.node, f"T.{name}: values have different dtypes; got {first.dtype} and {second.dtype}"
                    )
                self.check_dtype_option(parts, first.dtype)
                return ir.Select(self.read_condition(args[0]), first, second)
            case "abs" | "rsqrt" | "sigmoid" | "isnan" | "isinf" | "isfinite":
                parts.check_arguments(1, 1, "dtype")
                operand = self.read_expr(args[0])
                if name == "isnan" or not dtypes.is_float(operand.dtype):
                    _check_repeated_operand(parts, operand)
                result = _expand_function(name, operand)
                if result is None:
                    raise_parse_error(parts.node, f"T.{name}: wrong dtype; got {operand.dtype}, expected a float")
                self.check_dtype_option(parts, result.dtype)
                return result
            case "likely":  # a hint for loop partitioning, which needs none here
                parts.check_arguments(1, 1)
                return self.read_expr(args[0])
            case "ceildiv":
                parts.check_arguments(2, 2)
                a, b = self.read_operands(args[0], args[1])
                _check_repeated_operand(parts, b)
                return (a + b - 1) // b
            case "min_value" | "max_value" | "infinity":
                parts.check_arguments(1, 1)
                return _read_limit(name, args[0])
            case "address_of":
                parts.check_arguments(1, 1, "extent", "writes", "step")
                extent = read_integer_literal(parts.options["extent"]) if "extent" in parts.options else 1
                writes = read_boolean_literal(parts.options["writes"]) if "writes" in parts.options else False
                step = read_integer_literal(parts.options["step"]) if "step" in parts.options else 1
                return ir.AddressOf(*self.read_element(args[0]), extent, writes, step)
            case "reinterpret" if len(args) == 2:
                return ir.Call(name, (self.read_expr(args[1]),), read_dtype_name(args[0]))
            case "call":
                parts.check_arguments(1, 1000, "dtype")
                if "dtype" not in parts.options:
                    raise_parse_error(parts.node, "T.call: the keyword argument dtype is missing")
                return ir.Call(
                    read_string_literal(args[0]),
                    tuple(self.read_expr(a) for a in args[1:]),
                    read_dtype_name(parts.options["dtype"]),
                )
            case _:
                parts.check_arguments(1, 1000, "dtype")
                values = self.read_values(args) if name in FUNCTIONS else tuple(self.read_expr(a) for a in args)
                self.check_dtype_option(parts, values[0].dtype)
                if values[0].dtype in dtypes.HALF and name in FUNCTIONS and name != "fma":
                    wide = tuple(ir.cast("float32", a) for a in values)
                    return ir.Cast(values[0].dtype, ir.Call(name, wide, "float32"))
                return ir.Call(name, values, values[0].dtype)

    def read_values(self, nodes: Sequence[ast.expr]) -> tuple[ir.Expr, ...]:
        """Read the arguments of a function whose arguments have one dtype. Numbers without dtype take that of the others."""
        read = [None if is_number_literal(node) else self.read_expr(node) for node in nodes]
        typed = next((value for value in read if value is not None), None)
        return tuple(
            value or (self.read_expr(node) if typed is None else self.read_number_beside(node, typed))
            for value, node in zip(read, nodes, strict=True)
        )

    def check_dtype_option(self, parts: CallParts, dtype: str) -> None:
        """Check the keyword argument ``dtype``, which older TVM prints after the arguments, against the dtype of a result."""
        if "dtype" in parts.options and (written := read_dtype_name(parts.options["dtype"])) != dtype:
            raise_parse_error(parts.node, f"T.{parts.name}: wrong dtype; got {written}, expected {dtype}")

    def read_cast(self, dtype: str, value: ast.expr) -> ir.Expr:
        """Read the cast of an expression to ``dtype``. Indices that the text counts in int64 are int32 already."""
        if self.has_wide_indices(value) and (dtype == "int32" or (dtype == "int64" and self.reads_indices)):
            return self.read_index(value)
        operand = ExprReader(self.names, self.wide).read_expr(value)
        pair = {dtype, operand.dtype}
        if len(pair) > 1 and "float32" not in pair and not pair.isdisjoint(dtypes.HALF):
            operand = ir.Cast("float32", operand)  # the only conversion of 16-bit floats that C gets
        return ir.Cast(dtype, operand)

    def read_typed_number(self, parts: CallParts, dtype: str) -> ir.Expr:
        """Read ``T.float32(0)``: a literal of ``dtype``, or the cast of another expression to it."""
        parts.check_arguments(1, 1)
        value = parts.args[0]
        if is_number_literal(value) or isinstance(value, ast.Constant):
            return self.read_literal(value, "int32" if self.reads_indices and dtype == "int64" else dtype)
        return self.read_cast(dtype, value)


_MAX_REPEATED_NODES = 1000
"""Maximum number of nodes of an operand that an expression repeats. ``abs`` of integers has it three times, so that a chain of
them grows by that factor at each call: 12 of them took 16 s to read and verify, 6 take 20 ms (measured)."""


def _check_repeated_operand(parts: CallParts, operand: ir.Expr) -> None:
    """Raise ModelError if an operand that the expression of a function repeats is too long."""
    if next(islice(walk_expr(operand), _MAX_REPEATED_NODES, None), None) is not None:
        raise_parse_error(
            parts.node,
            f"T.{parts.name}: the operand, which the result repeats, has more than {_MAX_REPEATED_NODES} parts",
            "give the operand a name first: value = ...",
        )


def _expand_function(name: str, x: ir.Expr) -> ir.Expr | None:
    """Return what a function of TVM computes, in operators and functions of TIR; None if ``x`` is no float.

    Floats of 16 bits are computed in float32. ``abs`` also takes integers."""
    if not dtypes.is_float(x.dtype):
        return ir.Select(ir.Bin("lt", x, ir.const(0, x.dtype)), ir.Un("neg", x), x) if name == "abs" else None
    if x.dtype in dtypes.HALF:
        wide = _expand_function(name, ir.Cast("float32", x))
        return wide if wide is None or wide.dtype == "bool" else ir.Cast(x.dtype, wide)
    one, infinity = ir.const(1, x.dtype), ir.const(math.inf, x.dtype)
    match name:
        case "isnan":
            return ir.Bin("ne", x, x)
        case "isinf":
            return ir.Bin("eq", ir.call("fabs", x), infinity)
        case "isfinite":
            return ir.Bin("lt", ir.call("fabs", x), infinity)
        case "rsqrt":
            return one / ir.call("sqrt", x)
        case "sigmoid":
            return one / (one + ir.call("exp", -x))
        case _:
            return ir.call("fabs", x)


def _read_limit(name: str, node: ast.expr) -> ir.Const:
    """Read ``T.min_value(dtype)``, ``T.max_value(dtype)`` or ``T.infinity(dtype)``."""
    dtype = read_dtype_name(node)
    if name == "infinity" or dtypes.is_float(dtype):
        if dtype not in _LARGEST:
            raise_parse_error(node, f"T.{name}: wrong dtype; got {dtype}, expected one of {', '.join(_LARGEST)}")
        largest = math.inf if name == "infinity" else _LARGEST[dtype]
        return ir.const(-largest if name == "min_value" else largest, dtype)
    return ir.const(dtypes.int_range(dtype)[name == "max_value"], dtype)
