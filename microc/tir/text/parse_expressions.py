# SPDX-License-Identifier: Apache-2.0
"""Parser of the expressions of TIR text, and of the literals and calls that statements also contain."""

from __future__ import annotations

import ast
import math
from collections.abc import Container, Mapping, Sequence
from functools import reduce
from itertools import islice
from types import MappingProxyType
from typing import NoReturn, TypeGuard

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.errors import InternalError, ModelError
from microc.tir import ir
from microc.tir.analysis.context import INDEX_OPS, is_index
from microc.tir.analysis.simplification import fits_dtype, simplify
from microc.tir.extents import find_size_in_texts
from microc.tir.operators import BINARY, COMPARISONS, FUNCTIONS, LOGICAL, TOKENS
from microc.tir.rewrite import walk_expr
from microc.tir.text.print import (
    PYTHON_REFUSED,
    TVM_FUNCTIONS,
    TVM_OPERATORS,
    TVM_REFUSED,
    TVM_UNARY,
    unescape_keyword,
)


@frozen
class BufferView:
    """A second buffer over the memory of ``base``, which TVMScript declares as ``T.Buffer(shape, dtype, data=base)``.

    ``buffer``: its name, its shape, and the dtype of ``base``. The parser translates its indices into those of ``base``."""

    buffer: ir.Buffer
    base: ir.Buffer

    def translate_indices(self, indices: Sequence[ir.Expr]) -> tuple[ir.Expr, ...]:
        """Return the indices of the element of ``base`` at the same row-major position."""
        if not self.base.shape:
            return ()
        position: ir.Expr = ir.const(0, "int32")
        for index, extent in zip(indices, self.buffer.shape, strict=True):
            position = simplify(position * extent + index)
        found: list[ir.Expr] = []
        for extent in reversed(self.base.shape[1:]):
            found.append(simplify(position % extent))
            position = simplify(position // extent)
        return (position, *reversed(found))


Names = Mapping[str, ir.Var | ir.Buffer | BufferView]
"""Variables and buffers by name."""


_DENSE_LAYOUT = frozenset({"strides", "elem_offset", "offset_factor"})
"""Options of declarations that lay out memory. All buffers are dense here, so they may only say so."""


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

    def remove_dense_layout(self) -> None:
        """Remove the options that lay out memory. ModelError if they do not say that the buffer is dense."""
        for name in _DENSE_LAYOUT & self.options.keys():
            if ast.unparse(self.options[name]) not in ("None", "0", "1", "[]", "()"):
                raise_parse_error(
                    self.node,
                    f"T.{self.name}: {name}: got {format_excerpt(self.options[name])}, expected a buffer without gaps",
                    f"leave out {name}; index a larger buffer where elements lie apart",
                )
            del self.options[name]


def _read_name_in_namespace_T(node: ast.expr) -> str:
    """Return the name of a function in the namespace ``T``, such as ``axis.spatial`` for ``T.axis.spatial``."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id != "T" or not parts:
        raise_parse_error(
            node,
            f"wrong call; got {format_excerpt(node)}, expected one of the functions of T",
            PYTHON_REFUSED.get(node.id, "") if isinstance(node, ast.Name) else "",
        )
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


_COMPARED = frozenset((*COMPARISONS, "min", "max", "not"))
"""Operators that C computes on integers of 8 and 16 bits as they are."""


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
        index = ExprReader(self.names, self.wide, reads_indices=bool(self.wide)).read_expr(node)
        narrow = _narrow_index(index) if index.dtype == "int64" else index
        if narrow is None:
            raise_parse_error(
                node,
                f"index {format_excerpt(node)}: wrong dtype; got int64, expected int32",
                f"write T.cast({format_excerpt(node)}, 'int32')",
            )
        return narrow

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
                return _apply(TOKENS[type(op)], self.read_expr(a))
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
            case ast.Subscript(ast.Attribute(ast.Name(name), "shape"), ast.Constant(int(axis))):
                _, buffer = self.find_buffer(node, name)
                if not 0 <= axis < len(buffer.shape):
                    raise_parse_error(node, f"{name} has no axis {axis}; got {len(buffer.shape)} axes")
                return ir.as_index(buffer.shape[axis])
            case ast.Subscript():
                return ir.Load(*self.read_element(node))
            case ast.IfExp(test, a, b):
                first, second = self.read_operands(a, b)
                return ir.Select(self.read_condition(test), first, second)
            case ast.BinOp(op=ast.Pow()):
                raise_parse_error(
                    node, f"{format_excerpt(node)} is no expression of TIR", "write T.pow(x, y), or x * x"
                )
            case ast.Call(ast.Attribute(value, "astype"), [dtype], []):
                return self.read_cast(read_dtype_name(dtype), value)
            case ast.Call():
                return self.read_call(CallParts(node))
            case _:
                raise_parse_error(node, f"{ast.unparse(node)} is no expression of TIR")

    def read_name(self, node: ast.expr, name: str) -> ir.Expr:
        """Read a variable. ModelError if none of this name is declared."""
        value: ir.Expr | ir.Buffer | BufferView | None = self.names.get(unescape_keyword(name))
        if value is None:
            value = find_size_in_texts(name)
        if value is None or isinstance(value, (ir.Buffer, BufferView)):
            raise_parse_error(node, f"{name} is not a variable that is declared here")
        return value if self.reads_indices or name not in self.wide else ir.Cast("int64", value)

    def read_binary(self, node: ast.expr, op: str, a: ast.expr, b: ast.expr) -> ir.Expr:
        """Read an operation ``op`` on the operands ``a`` and ``b``, which are promoted to one dtype."""
        if op in COMPARISONS and not self.reads_indices and self.has_wide_indices(a, b):
            return ExprReader(self.names, self.wide, reads_indices=True).read_binary(node, op, a, b)
        if op in LOGICAL:
            return ir.Bin(op, self.read_condition(a), self.read_condition(b))
        left, right = self.read_operands(a, b)
        if op == "div" and not dtypes.is_float(left.dtype):
            raise_parse_error(
                node,
                f"{format_excerpt(node)}: wrong dtype; got {left.dtype}, expected a float: / is ambiguous for integers",
                "write a // b, which rounds down, T.truncdiv(a, b), which rounds towards zero, or T.cast(a, 'float32') / b",
            )
        return _apply(op, left, right)

    def read_operands(self, a: ast.expr, b: ast.expr) -> tuple[ir.Expr, ir.Expr]:
        """Read two expressions, and promote them to one dtype.

        If one of them is a number without dtype, it is read in the dtype of the other."""
        if is_number_literal(a) and not is_number_literal(b):
            right = self.read_expr(b)
            left = self.read_number_beside(a, right)
        else:
            left = self.read_expr(a)
            right = self.read_number_beside(b, left) if is_number_literal(b) else self.read_expr(b)
        if dtypes.dtype_parts(left.dtype).lanes != dtypes.dtype_parts(right.dtype).lanes:
            raise_parse_error(a, f"operands have different lanes; got {left.dtype} and {right.dtype}")
        dtype = _promote(left.dtype, right.dtype)
        return convert(left, dtype), convert(right, dtype)

    def read_number_beside(self, node: ast.expr, other: ir.Expr) -> ir.Expr:
        """Read a number without dtype that is an operand beside ``other``: it has the same dtype, or float32 if it has a
        fraction or an exponent and ``other`` is an integer."""
        number = node.operand if isinstance(node, ast.UnaryOp) else node
        is_real = isinstance(number, ast.Constant) and isinstance(number.value, float)
        has_own_dtype = other.dtype == "bool" or (is_real and dtypes.is_integer(other.dtype))
        return self.read_expr(node) if has_own_dtype else self.read_literal(node, other.dtype)

    def read_element(self, node: ast.expr) -> tuple[ir.Buffer, tuple[ir.Expr, ...]]:
        """Read ``buffer[indices]``; return the buffer and the indices.

        Raises ModelError if the buffer is unknown or has another number of axes."""
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
            raise_parse_error(node, f"got {format_excerpt(node)}, expected buffer[indices]")
        declared, buffer = self.find_buffer(node, node.value.id)
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(indices) != len(buffer.shape):
            raise_parse_error(
                node, f"{buffer.name}: wrong number of indices; got {len(indices)}, expected {len(buffer.shape)}"
            )
        if any(isinstance(index, ast.Slice) for index in indices):
            raise_parse_error(
                node,
                f"{format_excerpt(node)}: a slice is possible only where a slice is stored, as in B[0:4] = A[0:4]",
                "write a loop over its elements: for k in T.vectorized(4)",
            )
        values = tuple(map(self.read_index, indices))
        if isinstance(declared, BufferView):
            return declared.base, declared.translate_indices(values)
        return declared, values

    def find_buffer(self, node: ast.AST, name: str) -> tuple[ir.Buffer | BufferView, ir.Buffer]:
        """Return the buffer or view of a name, and the buffer whose shape the text sees. ModelError if there is none."""
        declared = self.names.get(unescape_keyword(name))
        if not isinstance(declared, (ir.Buffer, BufferView)):
            raise_parse_error(node, f"{name} is not a buffer that is declared here")
        return declared, declared.buffer if isinstance(declared, BufferView) else declared

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
                return _apply("neg", self.read_expr(args[0]))
            case "Not" | "bitwise_not":
                parts.check_arguments(1, 1)
                return _apply(TVM_UNARY[name], self.read_expr(args[0]))
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
            case "popcount" | "clz":
                parts.check_arguments(1, 1)
                if _counts_bits(args[0]):  # the operand is repeated: nested calls would multiply their sizes
                    raise_parse_error(
                        parts.node,
                        f"{format_excerpt(parts.node)}: T.{name} of a count of bits",
                        "give the inner one a name first: count = T.popcount(x)",
                    )
                operand = self.read_expr(args[0])
                if not dtypes.is_integer(operand.dtype):
                    raise_parse_error(parts.node, f"T.{name}: wrong dtype; got {operand.dtype}, expected an integer")
                return _count_set_bits(operand) if name == "popcount" else _count_leading_zeros(operand)
            case "likely":  # a hint for loop partitioning, which needs none here
                parts.check_arguments(1, 1)
                return self.read_expr(args[0])
            case "ceildiv":
                parts.check_arguments(2, 2)
                a, b = self.read_operands(args[0], args[1])
                _check_repeated_operand(parts, b)
                if not dtypes.is_integer(a.dtype):
                    raise_parse_error(parts.node, f"T.ceildiv: wrong dtype; got {a.dtype}, expected an integer")
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
        """Read the arguments of a function, and promote them to one dtype.

        Numbers without dtype take that of the first other argument."""
        read = [None if is_number_literal(node) else self.read_expr(node) for node in nodes]
        typed = next((value for value in read if value is not None), None)
        values = [
            value or (self.read_expr(node) if typed is None else self.read_number_beside(node, typed))
            for value, node in zip(read, nodes, strict=True)
        ]
        dtype = reduce(_promote, (value.dtype for value in values))
        return tuple(convert(value, dtype) for value in values)

    def check_dtype_option(self, parts: CallParts, dtype: str) -> None:
        """Check the keyword argument ``dtype``, which older TVM prints after the arguments, against the dtype of a result."""
        if "dtype" in parts.options and (written := read_dtype_name(parts.options["dtype"])) != dtype:
            raise_parse_error(parts.node, f"T.{parts.name}: wrong dtype; got {written}, expected {dtype}")

    def read_cast(self, dtype: str, value: ast.expr) -> ir.Expr:
        """Read the cast of an expression to ``dtype``. Indices that the text counts in int64 are int32 already."""
        if self.has_wide_indices(value) and (dtype == "int32" or (dtype == "int64" and self.reads_indices)):
            return self.read_index(value)
        return _cast(dtype, ExprReader(self.names, self.wide).read_expr(value))

    def read_typed_number(self, parts: CallParts, dtype: str) -> ir.Expr:
        """Read ``T.float32(0)``: a literal of ``dtype``, or the cast of another expression to it."""
        parts.check_arguments(1, 1)
        value = parts.args[0]
        if is_number_literal(value) or isinstance(value, ast.Constant):
            return self.read_literal(value, "int32" if self.reads_indices and dtype == "int64" else dtype)
        return self.read_cast(dtype, value)


def _narrow_index(expr: ir.Expr) -> ir.Expr | None:
    """Return an int64 index in int32 if it is arithmetic on int32 variables and literals; None for others.

    Ranges of loop variables bound every part of it. Loaded values could exceed int32 where int64 holds the result."""
    match expr:
        case ir.Const(int(value)) if fits_dtype(value, "int32"):
            return ir.const(value, "int32")
        case ir.Cast("int64", operand) if is_index(operand):
            return operand
        case ir.Bin(op, a, b) if op in INDEX_OPS:
            left, right = _narrow_index(a), _narrow_index(b)
            return None if left is None or right is None else ir.Bin(op, left, right)
        case ir.Select(condition, a, b):
            left, right = _narrow_index(a), _narrow_index(b)
            return None if left is None or right is None else ir.Select(condition, left, right)
        case _:
            return None


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


def _apply(op: str, *operands: ir.Expr) -> ir.Expr:
    """Return an operation of one or two operands of one dtype. C computes in 32 bits what is narrower.

    float32 has at least 2p + 2 bits for the p bits (11 and 8) of 16-bit floats, so that the second rounding of a sum, product
    or quotient changes nothing (Figueroa, When is double rounding innocuous?, 1995). Integers of 8 and 16 bits wrap around
    as in TVM."""
    dtype = operands[0].dtype
    kind, bits, lanes = dtypes.dtype_parts(dtype)
    is_narrow_integer = kind in ("int", "uint") and bits < 32 and lanes == 1 and op not in _COMPARED
    is_narrow = is_narrow_integer or dtype in dtypes.HALF
    wide = f"{kind}32" if is_narrow else dtype
    values = [convert(operand, wide) for operand in operands]
    result = ir.Bin(op, *values) if len(values) == 2 else ir.Un(op, *values)
    return result if wide == dtype or op in COMPARISONS else ir.Cast(dtype, result)


def _counts_bits(node: ast.expr) -> bool:
    """Test whether an expression contains ``T.popcount`` or ``T.clz``."""
    calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
    return any(ast.unparse(call.func) in ("T.popcount", "T.clz") for call in calls)


def _cast(dtype: str, operand: ir.Expr) -> ir.Expr:
    """Return the cast of an operand to ``dtype``."""
    pair = {dtype, operand.dtype}
    if len(pair) > 1 and "float32" not in pair and not pair.isdisjoint(dtypes.HALF):
        operand = ir.Cast("float32", operand)  # the only conversion of 16-bit floats that C gets
    return ir.Cast(dtype, operand)


def convert(operand: ir.Expr, dtype: str) -> ir.Expr:
    """Return an operand in ``dtype``: a literal where it represents the value, otherwise a cast unless it has the dtype."""
    if operand.dtype == dtype:
        return operand
    if (
        isinstance(operand, ir.Const)
        and dtypes.is_integer(operand.dtype)
        and dtypes.contains_range_of(dtype, operand.dtype)
    ):
        return ir.const(int(operand.value), dtype)
    return _cast(dtype, operand)


_DTYPE_RANKS: Mapping[str, int] = MappingProxyType({"bool": 0, "int": 1, "uint": 1, "float": 2})


def _promote(a: str, b: str) -> str:
    """Return the dtype to which TVM promotes operands of dtypes ``a`` and ``b`` (``BinaryOpMatchTypes`` in op.cc).

    It is the float beside an integer, the integer beside a boolean, otherwise the wider one; of a signed and an unsigned
    integer of one width the unsigned one, as in C. Neither of float16 and bfloat16 holds the other: both become float32."""
    if {a, b} == set(dtypes.HALF):
        return "float32"

    def rank(dtype: str) -> tuple[int, int, bool]:
        kind, bits, _ = dtypes.dtype_parts(dtype)
        return _DTYPE_RANKS[kind], bits, kind == "uint"

    return max(a, b, key=rank)


def is_widening(dtype: str, narrow: str) -> bool:
    """Test whether a store to ``dtype`` converts ``narrow`` by itself: to a float, or to an integer of all its values."""
    if dtypes.is_float(dtype):
        return _promote(dtype, narrow) == dtype
    return dtypes.is_integer(dtype) and (narrow == "bool" or dtypes.contains_range_of(dtype, narrow))


def _reinterpret_unsigned(x: ir.Expr) -> ir.Expr:
    """Return the bits of an integer as uint32, or as uint64 if it has 64: C computes in no narrower type."""
    bits = dtypes.dtype_parts(x.dtype).bits
    unsigned = convert(x, f"uint{bits}")
    return unsigned if bits >= 32 else ir.Cast("uint32", unsigned)


def _count_set_bits(x: ir.Expr) -> ir.Expr:
    """Return the number of bits of an integer that are 1, in its dtype: sums of 2, 4 and 8 neighbours, then of all bytes."""
    u = _reinterpret_unsigned(x)
    width = dtypes.dtype_parts(u.dtype).bits

    def repeat(byte: int) -> ir.Expr:
        return ir.const(byte * ((1 << width) // 255), u.dtype)

    def shift(value: ir.Expr, count: int) -> ir.Expr:
        return ir.Bin("shr", value, ir.const(count, u.dtype))

    pairs = u - ir.Bin("bitand", shift(u, 1), repeat(0x55))
    nibbles = ir.Bin("bitand", pairs, repeat(0x33)) + ir.Bin("bitand", shift(pairs, 2), repeat(0x33))
    octets = ir.Bin("bitand", nibbles + shift(nibbles, 4), repeat(0x0F))
    return convert(shift(octets * repeat(0x01), width - 8), x.dtype)


def _count_leading_zeros(x: ir.Expr) -> ir.Expr:
    """Return the number of zeros before the first 1 of an integer's bits as int32, all bits for 0: a binary search."""
    bits, u = dtypes.dtype_parts(x.dtype).bits, _reinterpret_unsigned(x)

    def search(low: int, high: int) -> ir.Expr:
        """Return the result for values of at least ``low`` and at most ``high`` significant bits."""
        if low == high:
            return ir.const(bits - low, "int32")
        middle = (low + high) // 2
        is_below = ir.Bin("lt", u, ir.const(1 << middle, u.dtype))
        return ir.Select(is_below, search(low, middle), search(middle + 1, high))

    return search(0, bits)


def _expand_function(name: str, x: ir.Expr) -> ir.Expr | None:
    """Return what a function of TVM computes, in operators and functions of TIR; None if ``x`` is no float.

    Floats of 16 bits are computed in float32. ``abs`` also takes integers."""
    if not dtypes.is_float(x.dtype):
        return ir.Select(ir.Bin("lt", x, ir.const(0, x.dtype)), _apply("neg", x), x) if name == "abs" else None
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
